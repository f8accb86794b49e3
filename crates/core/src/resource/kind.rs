//! Type URLs, the protocol's rules for its own types, and texts of rejections that are safe to show.
//!
//! A client quotes the rejected message as JSON or text with field names, so the text is cut at the
//! name of a hidden field.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, LazyLock};

use regex::Regex;
use serde::Serialize;

crate::labelled! {
    /// Type with rules of the protocol. All others are [`Kind::Other`]: passed through on ADS, not
    /// full-state, flushed last (R-EP-06).
    ///
    /// The order of the variants is the flush order of aggregated streams (R-ADS-01, R-ADS-02).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Kind {
        Cluster = "cds",
        Endpoint = "eds",
        LocalityEndpoint = "leds",
        Listener = "lds",
        ScopedRoute = "srds",
        Route = "rds",
        VirtualHost = "vhds",
        Secret = "sds",
        ExtensionConfig = "ecds",
        Runtime = "rtds",
        Other = "other",
    }
}

impl Kind {
    /// All but [`Kind::Other`], in flush order.
    pub fn known() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|kind| *kind != Self::Other)
    }

    pub fn of_url(url: &str) -> Self {
        Self::known().find(|kind| kind.url() == Some(url)).unwrap_or(Self::Other)
    }

    /// Type URL; [`Kind::Other`] has none.
    pub const fn url(self) -> Option<&'static str> {
        Some(match self {
            Self::Cluster => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            Self::Endpoint => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            Self::LocalityEndpoint => "type.googleapis.com/envoy.config.endpoint.v3.LbEndpoint",
            Self::Listener => "type.googleapis.com/envoy.config.listener.v3.Listener",
            Self::ScopedRoute => "type.googleapis.com/envoy.config.route.v3.ScopedRouteConfiguration",
            Self::Route => "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
            Self::VirtualHost => "type.googleapis.com/envoy.config.route.v3.VirtualHost",
            Self::Secret => "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
            Self::ExtensionConfig => "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig",
            Self::Runtime => "type.googleapis.com/envoy.service.runtime.v3.Runtime",
            Self::Other => return None,
        })
    }

    pub const fn short(self) -> &'static str {
        self.label()
    }

    pub fn of_short(short: &str) -> Option<Self> {
        Self::known().find(|kind| kind.short() == short)
    }

    /// `cds, eds, …`
    pub fn short_names() -> String {
        Self::known().map(Self::short).collect::<Vec<_>>().join(", ")
    }

    /// Whether field 1 of a resource is the name to subscribe to. LEDS endpoints have none, and
    /// other types are unknown: those need a wrapper.
    pub const fn is_named_by_first_field(self) -> bool {
        !matches!(self, Self::LocalityEndpoint | Self::Other)
    }

    /// Whether an empty first request asks for everything by default (R-SotW-14).
    pub const fn has_legacy_wildcard(self) -> bool {
        matches!(self, Self::Cluster | Self::Listener | Self::ScopedRoute | Self::VirtualHost | Self::Other)
    }

    /// Whether a SotW response deletes what it lacks (R-SotW-18, R-SotW-20).
    pub const fn full_state(self) -> bool {
        matches!(self, Self::Cluster | Self::Listener | Self::ScopedRoute)
    }

    /// Whether this type refers to clusters or endpoints, and must not overtake them on an
    /// aggregated stream (R-ADS-01).
    /// Never a type that warming waits for (EDS, SDS, ECDS): a client that warms a cluster
    /// withholds the ACK of CDS until they came (V1).
    pub const fn follows_clusters(self) -> bool {
        matches!(self, Self::Listener | Self::ScopedRoute | Self::Route | Self::VirtualHost)
    }

    /// Whether [`follows_clusters`](Self::follows_clusters) types wait for this one.
    pub const fn leads_routes(self) -> bool {
        self.outlasts_routes() || matches!(self, Self::LocalityEndpoint)
    }

    /// Whether removals of this type wait while routes may lead there. No route names a single
    /// endpoint of a collection, and a dead endpoint is useless.
    pub const fn outlasts_routes(self) -> bool {
        matches!(self, Self::Cluster | Self::Endpoint)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no resource type: use {names}, or a type URL with a `/`", names = Kind::short_names())]
pub struct UnknownKindError(pub String);

/// Type URL of a resource, with its [`Kind`] looked up once. Its order is the flush order of kinds, then the text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct TypeUrl {
    #[serde(rename = "type")]
    kind: Kind,
    #[serde(rename = "type_url")]
    text: Arc<str>,
}

impl TypeUrl {
    /// Type by short name (`cds`) or URL. `type.googleapis.com/` may be left out. Unknown types are allowed (R-EP-06).
    ///
    /// # Errors
    ///
    /// [`UnknownKindError`] for other text.
    pub fn from_user(text: &str) -> Result<Self, UnknownKindError> {
        if let Some(kind) = Kind::of_short(text) {
            return Ok(kind.into());
        }
        let is_graphic = text.bytes().all(|byte| byte.is_ascii_graphic());
        match text.split_once('/') {
            Some((host, name)) if is_graphic && !host.is_empty() && !name.is_empty() => Ok(Self::from(text)),
            None if is_graphic && text.contains('.') => {
                Ok(Self::from(format!("type.googleapis.com/{text}").as_str()))
            }
            _ => Err(UnknownKindError(text.to_owned())),
        }
    }

    /// Short name, or the URL of a type without one.
    pub fn user_text(&self) -> &str {
        if self.kind == Kind::Other { &self.text } else { self.kind.short() }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// With any URL prefix and API version: an origin may compare less of a URL.
    pub fn is_secret(&self) -> bool {
        let message = self.text.rsplit('/').next().unwrap_or_default();
        message.rsplit('.').next() == Some("Secret")
    }

    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Text of a rejection, safe to show. None for Secrets: Envoy quotes the whole message that
    /// breaks a constraint.
    pub fn rejection_text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if self.is_secret() {
            "withheld, because it may quote the Secret; see the log of the client".into()
        } else {
            shown_rejection(text)
        }
    }
}

impl From<&str> for TypeUrl {
    fn from(text: &str) -> Self {
        Self { text: Arc::from(text), kind: Kind::of_url(text) }
    }
}

impl From<Kind> for TypeUrl {
    /// [`Kind::Other`] gives the empty URL.
    fn from(kind: Kind) -> Self {
        Self { text: Arc::from(kind.url().unwrap_or_default()), kind }
    }
}

impl fmt::Debug for TypeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.text, f)
    }
}

impl fmt::Display for TypeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Parts of names of headers with credentials.
pub const CREDENTIAL_HEADERS: [&str; 7] =
    ["authorization", "cookie", "token", "secret", "password", "api-key", "apikey"];

/// Ends of the names of hidden fields, with `_` before each word that JSON begins with a capital.
const HIDDEN: &str = "access_key|context_extensions|credentials|credentials_data_source|json_key|keys|passwords?|pkcs12\
    |private_key|private_key_provider|secrets?|secret_data|token|token_data_source|username|users";

const CUT: &str = "… (cut: what follows may quote a hidden value; see the log of the client)";

static QUOTED: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let fields = HIDDEN.replace('_', "_?");
    let headers = CREDENTIAL_HEADERS.join("|");
    let any = format!(
        r#"(?i)\b\w*(?:{fields})"?\s*(?::\s*["{{\[<]|[{{<])|TypedStruct["\]]*\s*[:{{<,]|\bkey"?\s*:\s*"[^"]*(?:{headers})"#
    );
    Regex::new(&any).ok()
});

/// The text up to the first field that may hold a hidden value.
pub fn shown_rejection(text: &str) -> Cow<'_, str> {
    match QUOTED.as_ref().map(|quoted| quoted.find(text)) {
        Some(None) => text.into(),
        Some(Some(found)) => format!("{}{CUT}", &text[..found.start()]).into(),
        None => CUT.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_found_by_short_name_and_by_url() {
        for kind in Kind::known() {
            let by_short = TypeUrl::from_user(kind.short()).expect("a known short name");
            assert_eq!(by_short.kind(), kind);
            assert_eq!(TypeUrl::from(by_short.as_str()).kind(), kind);
        }
        let opaque = TypeUrl::from_user("example.v1.Thing").expect("a message name");
        assert_eq!(opaque.as_str(), "type.googleapis.com/example.v1.Thing");
        assert_eq!(opaque.kind(), Kind::Other);
        for wrong in ["clusters", "/a.B", "a.com/", "a.com/b c", "a.\u{e9}"] {
            assert!(TypeUrl::from_user(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_text_is_cut_where_it_quotes_a_credential() {
        for (text, shown) in [
            ("Error adding cluster a: no such token", None),
            ("no tls_certificate: private_key is missing", None),
            ("token_uri: \"x\"", None),
            (
                r#"bad: header { key: "x-a" value: "1" } header { key: "Authorization" value: "PRIVATE" }"#,
                Some(r#"bad: header { key: "x-a" value: "1" } header { "#),
            ),
            (r#"bad: {"header":{"key":"x-api-key","value":"PRIVATE"}}"#, Some(r#"bad: {"header":{""#)),
            (r#"bad: access_token: "PRIVATE""#, Some("bad: ")),
            (r#"bad: {"googleRefreshToken": "PRIVATE"}"#, Some(r#"bad: {""#)),
            (
                "bad: [type.googleapis.com/xds.type.v3.TypedStruct] {\n value { fields {",
                Some("bad: [type.googleapis.com/xds.type.v3."),
            ),
            (
                r#"bad: {"@type":"t/udpa.type.v1.TypedStruct","value":{"key":"PRIVATE"}}"#,
                Some(r#"bad: {"@type":"t/udpa.type.v1."#),
            ),
        ] {
            let expected = shown.map_or_else(|| text.to_owned(), |shown| format!("{shown}{CUT}"));
            assert_eq!(shown_rejection(text), expected);
        }
    }
}
