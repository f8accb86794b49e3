//! `authorization`: rules about peers.
//!
//! Owns the notation of peers, patterns and rules; knows no peer. Every rule that parses can be followed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use serde_json::json;

use super::errors::quoted;
use super::notation::{Choice, List, Nested, Notation, OneOf, Optional, Text, Written};
use super::place::Place;
use super::schema::Printed;
use super::section::section;
use super::{Config, Listener};
use crate::identity::PeerPattern;
use crate::resource::{Pattern, PatternError, Segments, TypeUrl};

section! {
    /// The rules, and the access of peers that match none.
    #[derive(Eq)]
    pub struct Authorization {
        /// Access of a peer that matches no rule: `allow` everything, or `deny` everything (PERMISSION_DENIED, REST
        /// 403). Secrets have further conditions, see `downstream.secrets_without_authentication`.
        #[key(OneOf, default = DefaultAccess::Allow)]
        pub default: DefaultAccess,
        /// Only the first rule whose `peers` match applies. It does not restrict what it does not mention.
        #[key(List<Nested>, default = Vec::new())]
        pub rules: Vec<AuthorizationRule>,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultAccess {
    Allow,
    Deny,
}

impl Choice for DefaultAccess {
    const WORDS: &'static [(&'static str, Self)] = &[("allow", Self::Allow), ("deny", Self::Deny)];
}

section! {
    /// Access of some peers. What is absent is not restricted.
    #[derive(Eq)]
    #[check(check_rule)]
    pub struct AuthorizationRule {
        /// spiffe://…, dns:NAME and subject:… match the client's certificate (a listener with `client_ca_file`). An
        /// address or network matches its source address. unix matches clients on Unix sockets. In patterns `*` is
        /// anything within a segment (up to the next /, . or ,) and `**` is anything.
        #[key(
            List<Text>, default = Vec::new(),
            example = "[\"spiffe://mesh/ns/prod/**\", \"dns:*.prod.example\", \"subject:CN=envoy-*,O=example\", 10.0.0.0/8, unix]"
        )]
        pub peers: Vec<PeerPattern>,
        /// Values of node.id that peers may claim. Any other ends the stream. Default: anything.
        #[key(Optional<List<Text>>, example = "[\"prod-*\"]")]
        pub node_ids: Option<Vec<Pattern>>,
        /// Values of node.cluster that peers may claim. Any other ends the stream. Default: anything.
        #[key(Optional<List<Text>>, example = "[edge]")]
        pub clusters: Option<Vec<Pattern>>,
        /// Types that peers may request, as short names or type URLs. Any other ends the stream. Default: all.
        #[key(Optional<List<Text>>, example = "[cds, eds, lds, rds]")]
        pub types: Option<BTreeSet<TypeUrl>>,
        /// Names of resources that peers may see. Others are answered as absent, and left out of wildcards. For all
        /// xdstp names of an authority write `xdstp://authority/**`. A pattern without `?` matches only xdstp names
        /// without context parameters, unless it ends with `**`. After `?`, `*` stops at `&`. A name with the segment
        /// `.` or `..` matches no wildcard. Default: all.
        #[key(Optional<List<NamePattern>>, example = "[\"prod/*\"]")]
        pub names: Option<Vec<Pattern>>,
        /// Allowed values of dynamic parameters, by key, whether sent or derived. Other values are refused. A request without
        /// one of these keys gets the value if only one is allowed, and is refused otherwise. Default: anything.
        #[key(AllowedValues, default = BTreeMap::new(), example = "{env: [prod]}")]
        pub parameters: BTreeMap<String, BTreeSet<String>>,
    }
}

fn check_rule(rule: &AuthorizationRule, place: &Place<'_>) {
    if rule.peers.is_empty() {
        let problem = "names nobody; list who the rule is about, as in [\"spiffe://mesh/ns/prod/**\"]";
        place.at("peers").wrong(problem);
    }
}

/// Reports rules about certificates where no client shows one: they match nobody.
pub(super) fn check(config: &Config, root: &Place<'_>) {
    if config.downstream.listeners.iter().any(Listener::proves_clients) {
        return;
    }
    let places = root.at("authorization").at("rules").items().into_iter().flatten();
    for (place, rule) in places.zip(&config.authorization.rules) {
        if let Some(peer) = rule.peers.iter().find(|peer| peer.is_proven()) {
            place.at("peers").wrong(&format!(
                "{} matches no client, because no listener learns a certificate; set `tls.client_ca_file` in `downstream.listeners`",
                quoted(&peer.text())
            ));
        }
    }
}

/// Lists of values by key. Numbers and flags count as they are written.
#[derive(Debug)]
struct AllowedValues;

impl Notation<BTreeMap<String, BTreeSet<String>>> for AllowedValues {
    fn read(place: &Place<'_>) -> Option<BTreeMap<String, BTreeSet<String>>> {
        place.is_mapping("a mapping");
        let values = |(key, place): (&str, Place<'_>)| {
            let values: BTreeSet<String> = List::<Text>::read(&place)?;
            if place.items().is_some_and(|items| items.is_empty()) {
                place.wrong("allows nothing; list the values that are allowed, as in [prod, canary]");
            }
            Some((key.to_owned(), values))
        };
        Some(place.children().filter_map(values).collect())
    }

    fn print(value: &BTreeMap<String, BTreeSet<String>>) -> Option<Printed> {
        (!value.is_empty()).then(|| Printed::Value(json!(value)))
    }
}

const PEERS: &str =
    "write spiffe://…, dns:NAME, subject:…, an address, a network such as 10.0.0.0/8, or unix";

/// `spiffe://…`, `dns:NAME`, `subject:CN=…` (RFC 4514), an address, a network, or `unix`.
impl Written for PeerPattern {
    fn parse(text: &str, _: &Path) -> Result<Self, String> {
        if text == "unix" {
            return Ok(Self::Unix);
        }
        if text.starts_with("spiffe://") {
            return glob(text, text, Segments::Path).map(Self::SpiffeId);
        }
        if let Some(name) = text.strip_prefix("dns:").filter(|name| !name.is_empty()) {
            return glob(text, name, Segments::Dns).map(Self::DnsName);
        }
        if let Some(subject) = text.strip_prefix("subject:").filter(|subject| !subject.is_empty()) {
            return glob(text, subject, Segments::Subject).map(Self::Subject);
        }
        let address = || text.parse::<IpAddr>().map(IpNet::from);
        let network: IpNet = text
            .parse()
            .or_else(|_| address())
            .map_err(|_| format!("{} is no peer; {PEERS}", quoted(text)))?;
        if let IpNet::V6(mapped) = network
            && let Some(address) = mapped.addr().to_ipv4_mapped()
            && let Some(length) = mapped.prefix_len().checked_sub(96)
        {
            // A mapped IPv4 address is treated as IPv4, so this network would match no peer.
            return Err(format!("{} is a network of IPv4; write {address}/{length}", quoted(text)));
        }
        if network != network.trunc() {
            let network = network.trunc();
            return Err(format!("{} has bits beyond its network; write {network}", quoted(text)));
        }
        Ok(Self::Network(network))
    }

    fn text(&self) -> String {
        match self {
            Self::SpiffeId(pattern) | Self::DnsName(pattern) | Self::Subject(pattern) => {
                pattern.text().to_owned()
            }
            Self::Network(network) => network.to_string(),
            Self::Unix => "unix".to_owned(),
        }
    }
}

/// Pattern with segments that end at `/`.
impl Written for Pattern {
    fn parse(text: &str, _: &Path) -> Result<Self, String> {
        glob(text, text, Segments::Path)
    }

    fn text(&self) -> String {
        Self::text(self).to_owned()
    }
}

#[derive(Debug)]
struct NamePattern;

impl Notation<Pattern> for NamePattern {
    fn read(place: &Place<'_>) -> Option<Pattern> {
        place.parsed(|text| Pattern::of_names(text).map_err(|error| unusable(text, &error)))
    }

    fn print(value: &Pattern) -> Option<Printed> {
        Text::print(value)
    }
}

/// Compiles `pattern`, which stands in the file as `text`.
fn glob(text: &str, pattern: &str, segments: Segments) -> Result<Pattern, String> {
    Pattern::read(text, pattern, segments).map_err(|error| unusable(text, &error))
}

fn unusable(text: &str, error: &PatternError) -> String {
    format!("{} is {error}", quoted(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(peer: &str, text: &str) -> bool {
        match PeerPattern::parse(peer, Path::new("")).unwrap() {
            PeerPattern::SpiffeId(pattern)
            | PeerPattern::DnsName(pattern)
            | PeerPattern::Subject(pattern) => pattern.matches(text),
            PeerPattern::Network(network) => network.contains(&text.parse::<IpAddr>().unwrap()),
            PeerPattern::Unix => false,
        }
    }

    #[test]
    fn a_star_stays_within_a_segment_and_two_go_across() {
        assert!(matches("spiffe://mesh/ns/*/sa/web", "spiffe://mesh/ns/prod/sa/web"));
        assert!(!matches("spiffe://mesh/ns/*", "spiffe://mesh/ns/prod/sa/web"));
        assert!(matches("spiffe://mesh/ns/**", "spiffe://mesh/ns/prod/sa/web"));
        assert!(!matches("spiffe://mesh/ns/**", "spiffe://mesh.evil/ns/prod"));
        assert!(!matches("spiffe://mesh/ns/a", "spiffe://mesh/ns/a\n"));
        assert!(matches("dns:*.example.com", "Envoy.Example.COM"));
        assert!(!matches("dns:*.example.com", "a.b.example.com"));
        assert!(!matches("dns:a.example.com", "aXexample.com"));
        assert!(matches("dns:**.example.com", "a.b.example.com"));
        for pattern in ["dns:*.example.com", "dns:**.example.com", "dns:**"] {
            assert!(!matches(pattern, "evil/a.example.com"), "{pattern}");
        }
    }

    #[test]
    fn an_escaped_comma_is_no_end_of_a_segment() {
        assert!(matches("subject:CN=envoy-*,O=example", "CN=envoy-1,O=example"));
        assert!(!matches("subject:CN=envoy-*,O=example", r"CN=envoy-1\,O=example"));
        assert!(!matches("subject:CN=envoy-*", "CN=envoy-1,O=other"));
    }

    #[test]
    fn networks() {
        assert!(matches("10.0.0.0/8", "10.1.2.3") && !matches("10.0.0.0/8", "11.0.0.0"));
        assert!(matches("::1", "::1") && matches("192.0.2.7", "192.0.2.7"));
        for (wrong, expected) in [
            ("10.0.0.1/8", "write 10.0.0.0/8"),
            ("mesh", "is no peer"),
            ("dns:", "is no peer"),
            ("*", "is no peer"),
            ("10.0.0.0/33", "is no peer"),
            ("::ffff:10.0.0.0/104", "write 10.0.0.0/8"),
            ("::ffff:10.0.0.1", "write 10.0.0.1/32"),
        ] {
            let error = PeerPattern::parse(wrong, Path::new("")).unwrap_err();
            assert!(error.contains(expected), "{wrong}: {error}");
        }
    }
}
