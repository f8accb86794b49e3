//! Who may ask for what: the rules of `authorization`.
//!
//! Owns the notation of peers, patterns and rules. Knows no peer; a rule that exists can be followed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use regex::{Regex, RegexBuilder};
use serde::{Serialize, Serializer};

use super::errors::quoted;
use super::values;

/// What the automaton of one pattern may take, in bytes.
const MAX_PATTERN: usize = 256 * 1024;
/// Start of every name of the form xdstp.
const XDSTP: &str = "xdstp://";

/// The rules, and what holds where none does. Default: everybody may ask for everything.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Authorization {
    /// What a peer may that no rule is about. Default: allow.
    pub default: DefaultAccess,
    /// The first rule whose peers match decides.
    pub rules: Vec<AuthorizationRule>,
}

/// What a peer may that no rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DefaultAccess {
    /// Everything.
    #[default]
    Allow,
    /// Nothing.
    Deny,
}

/// What some peers may. What is absent is not restricted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AuthorizationRule {
    /// Whom it is about; never empty.
    pub peers: Vec<PeerMatch>,
    /// The values of `node.id` that they may claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_ids: Option<Vec<Glob>>,
    /// The values of `node.cluster` that they may claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clusters: Option<Vec<Glob>>,
    /// The full type URLs that they may ask for.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "serialize_types")]
    pub types: Option<BTreeSet<String>>,
    /// The names of resources that they may see.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub names: Option<Vec<Glob>>,
    /// The values of dynamic parameters that they may send or be given, by key. No list is empty.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, BTreeSet<String>>,
}

fn serialize_types<S: Serializer>(
    types: &Option<BTreeSet<String>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    values::serialize_type_urls(types.as_ref().unwrap_or(&BTreeSet::new()), serializer)
}

/// Some peers, by what they have proven to be or where they come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerMatch {
    /// `spiffe://…`: the SPIFFE ID of the certificate. Segments end at `/`.
    SpiffeId(Glob),
    /// `dns:NAME`: one of the DNS names of the certificate, whatever the case. Segments end at `.`.
    DnsName(Glob),
    /// `subject:CN=…`: the subject of the certificate as RFC 4514 writes it. Segments end at `,`.
    Subject(Glob),
    /// An address or a network (`10.0.0.0/8`).
    Network(IpNet),
    /// `unix`: whoever comes over a Unix socket.
    Unix,
}

const PEERS: &str =
    "write spiffe://…, dns:NAME, subject:…, an address, a network such as 10.0.0.0/8, or unix";

impl FromStr for PeerMatch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "unix" {
            return Ok(Self::Unix);
        }
        if text.starts_with("spiffe://") {
            return Glob::parse(text, text, Segments::Path).map(Self::SpiffeId);
        }
        if let Some(name) = text.strip_prefix("dns:").filter(|name| !name.is_empty()) {
            return Glob::parse(text, name, Segments::Dns).map(Self::DnsName);
        }
        if let Some(subject) = text.strip_prefix("subject:").filter(|subject| !subject.is_empty()) {
            return Glob::parse(text, subject, Segments::Subject).map(Self::Subject);
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
            // Where a socket maps an address of IPv4, it is taken for what it is: this would match nobody.
            return Err(format!("{} is a network of IPv4; write {address}/{length}", quoted(text)));
        }
        if network != network.trunc() {
            let network = network.trunc();
            return Err(format!("{} has bits beyond its network; write {network}", quoted(text)));
        }
        Ok(Self::Network(network))
    }
}

impl fmt::Display for PeerMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SpiffeId(glob) | Self::DnsName(glob) | Self::Subject(glob) => write!(f, "{glob}"),
            Self::Network(network) => write!(f, "{network}"),
            Self::Unix => f.write_str("unix"),
        }
    }
}

impl Serialize for PeerMatch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A pattern in which `*` stands for anything within a segment, `**` for anything, and all else for itself.
#[derive(Debug, Clone)]
pub struct Glob {
    text: String,
    whole: Regex,
    /// The expression for names of the form xdstp, if it may match any.
    xdstp: Option<Regex>,
}

/// Where segments end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Segments {
    Path,
    /// As in a path, and at the `?` of the context parameters; these end at `&`.
    Xdstp,
    Dns,
    Subject,
}

impl Segments {
    /// The expression for `*`.
    const fn within(self, in_context: bool) -> &'static str {
        match self {
            Self::Path => "[^/]*",
            // A context parameter selects another resource, and its value may look like the rest of a path.
            Self::Xdstp if in_context => "[^&]*",
            Self::Xdstp => "[^/?]*",
            Self::Dns => r"[^.]*",
            // An escaped comma ends no segment, so it must not look as if it did.
            Self::Subject => r"[^,\\]*",
        }
    }

    /// The expression for `**`. At the end of a pattern it is whatever follows.
    const fn across(self, in_context: bool, is_last: bool) -> &'static str {
        match self {
            Self::Xdstp if !in_context && !is_last => "[^?]*",
            _ => ".*",
        }
    }

    /// The expression that is anchored at both ends and means the same as a pattern.
    fn whole(self, pattern: &str) -> Result<Regex, regex::Error> {
        let mut whole = String::from(r"\A");
        let (mut rest, mut in_context) = (pattern, false);
        while let Some((literal, after)) = rest.split_once('*') {
            in_context |= literal.contains('?');
            whole += &regex::escape(literal);
            let (wild, after) = match after.strip_prefix('*') {
                Some(after) => (self.across(in_context, after.is_empty()), after),
                None => (self.within(in_context), after),
            };
            whole += wild;
            rest = after;
        }
        whole += &regex::escape(rest);
        whole += r"\z";
        RegexBuilder::new(&whole)
            .dot_matches_new_line(true)
            .case_insensitive(self == Self::Dns)
            .size_limit(MAX_PATTERN)
            .dfa_size_limit(MAX_PATTERN)
            .build()
    }
}

impl Glob {
    /// A pattern of names of resources.
    pub fn of_names(text: &str) -> Result<Self, String> {
        let glob: Self = text.parse()?;
        let literal = text.split('*').next().unwrap_or_default();
        if !literal.starts_with(XDSTP) && !XDSTP.starts_with(literal) {
            return Ok(glob);
        }
        let xdstp = Segments::Xdstp.whole(text).map_err(|_| too_large(text))?;
        Ok(Self { xdstp: Some(xdstp), ..glob })
    }

    /// Anchored at both ends.
    pub fn whole(&self) -> &Regex {
        &self.whole
    }

    /// Variant for names of the form xdstp; `None` if it matches none of them.
    pub const fn xdstp(&self) -> Option<&Regex> {
        self.xdstp.as_ref()
    }

    /// As it stands in the file.
    pub fn text(&self) -> &str {
        &self.text
    }

    fn parse(text: &str, pattern: &str, segments: Segments) -> Result<Self, String> {
        let whole = segments.whole(pattern).map_err(|_| too_large(text))?;
        Ok(Self { text: text.to_owned(), whole, xdstp: None })
    }
}

fn too_large(text: &str) -> String {
    format!("{} is too large a pattern", quoted(text))
}

impl FromStr for Glob {
    type Err = String;

    /// One whose segments end at `/`.
    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text, text, Segments::Path)
    }
}

impl PartialEq for Glob {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Glob {}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Glob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(peer: &str, text: &str) -> bool {
        match peer.parse().unwrap() {
            PeerMatch::SpiffeId(glob) | PeerMatch::DnsName(glob) | PeerMatch::Subject(glob) => {
                glob.whole().is_match(text)
            }
            PeerMatch::Network(network) => network.contains(&text.parse::<std::net::IpAddr>().unwrap()),
            PeerMatch::Unix => false,
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
            let error = wrong.parse::<PeerMatch>().unwrap_err();
            assert!(error.contains(expected), "{wrong}: {error}");
        }
    }
}
