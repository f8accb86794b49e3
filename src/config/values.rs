//! Values that only exist if they are valid: server URIs, listen addresses, lists that hold something.
//!
//! Owns their reading from text and printing; knows no key.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::ser::SerializeSeq as _;
use serde::{Serialize, Serializer};

use super::errors::quoted;
use super::upstream_tls::ClientTls;

/// A list with at least one entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct NonEmpty<T>(Vec<T>);

impl<T> NonEmpty<T> {
    /// A list of one.
    pub fn one(entry: T) -> Self {
        Self(vec![entry])
    }

    /// `None` if there is nothing in it.
    pub fn new(entries: Vec<T>) -> Option<Self> {
        (!entries.is_empty()).then_some(Self(entries))
    }

    /// The entry that is always there.
    pub fn first(&self) -> &T {
        &self.0[0]
    }
}

impl<T> std::ops::Deref for NonEmpty<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

/// Where resources come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Control planes, in order of preference.
    Servers(NonEmpty<Server>),
    /// A directory of resource files, watched. Absolute.
    #[serde(serialize_with = "serialize_path")]
    Directory(PathBuf),
}

/// One control plane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Server {
    /// Where it listens.
    pub uri: ServerUri,
    /// Of an `https://` only. Default: the system's authorities, and nothing is shown to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<ClientTls>,
}

/// `http://HOST:PORT` or `https://HOST:PORT`: HTTP/2 in cleartext or over TLS, nothing but scheme, host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerUri(http::Uri);

impl ServerUri {
    /// For a client that connects to it.
    pub fn as_uri(&self) -> &http::Uri {
        &self.0
    }

    /// Whether it is spoken to over TLS.
    pub fn is_tls(&self) -> bool {
        self.0.scheme() == Some(&http::uri::Scheme::HTTPS)
    }
}

impl FromStr for ServerUri {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse =
            |what: &str| format!("{} {what}; write http://HOST:PORT or https://HOST:PORT", quoted(text));
        let uri: http::Uri = text.parse().map_err(|_| refuse("is not a URI"))?;
        let authority = uri.authority().ok_or_else(|| refuse("has no host"))?;
        match uri.scheme_str() {
            None => return Err(refuse("has no scheme")),
            Some("http" | "https") => {}
            Some(other) => return Err(refuse(&format!("has the scheme `{other}`"))),
        }
        if authority.as_str().contains('@') {
            return Err(refuse("has a user name"));
        }
        if authority.host().is_empty() {
            return Err(refuse("has no host"));
        }
        if authority.port_u16().is_none_or(|port| port == 0) {
            return Err(refuse("has no port of 1 to 65535"));
        }
        if uri.path_and_query().is_some_and(|path| path.as_str() != "/") {
            return Err(refuse("has a path"));
        }
        Ok(Self(uri))
    }
}

impl fmt::Display for ServerUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls() { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.0.authority().map_or("", http::uri::Authority::as_str))
    }
}

impl Serialize for ServerUri {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// How deletions are found that an origin made while the relay was not connected (R-Up-21).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reconcile {
    /// The relay sends the versions it holds; the origin names what is gone.
    Trust,
    /// The relay sends none, and drops what the origin did not send again.
    Sweep,
}

impl FromStr for Reconcile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "trust" => Ok(Self::Trust),
            "sweep" => Ok(Self::Sweep),
            other => Err(format!("{} is neither `trust` nor `sweep`", quoted(other))),
        }
    }
}

/// How the relay asks for names that clients have asked for with dynamic parameters (R-Up-18).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Locators {
    /// By resource locators.
    Native,
    /// By their names alone, for origins that send every variant of a name.
    Plain,
}

impl FromStr for Locators {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "native" => Ok(Self::Native),
            "plain" => Ok(Self::Plain),
            other => Err(format!("{} is neither `native` nor `plain`", quoted(other))),
        }
    }
}

/// Where a listener listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ListenAddress {
    /// Port 0 lets the system choose one.
    Tcp(SocketAddr),
    /// The path of a Unix socket. Absolute.
    Unix(PathBuf),
}

impl ListenAddress {
    /// Relative socket paths start from `base`.
    pub(super) fn parse(text: &str, base: &Path) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some(path) => parse_path(path, base).map(Self::Unix),
            None => parse_socket_address(text).map(Self::Tcp),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Serialize for ListenAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Names are refused: what one resolves to can change between two starts, and an interface with it.
pub(super) fn parse_socket_address(text: &str) -> Result<SocketAddr, String> {
    let forms = "write IP:PORT, for example 127.0.0.1:15010 or [::1]:15010";
    text.parse().map_err(|_| format!("{} is not an address; {forms}", quoted(text)))
}

/// Absolute, so that what is printed means the same file wherever it is read again.
pub(super) fn parse_path(text: &str, base: &Path) -> Result<PathBuf, String> {
    if text.is_empty() {
        return Err("a path must not be empty".to_owned());
    }
    std::path::absolute(base.join(text)).map_err(|error| format!("{}: {error}", quoted(text)))
}

/// A path that is not Unicode prints with replacement characters; it still works.
pub(super) fn serialize_path<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// The same for one that may be absent.
pub(super) fn serialize_optional_path<S: Serializer>(
    path: &Option<PathBuf>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match path {
        Some(path) => serialize_path(path, serializer),
        None => serializer.serialize_none(),
    }
}

/// The same for a list of them.
pub(super) fn serialize_paths<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(paths.iter().map(|path| path.to_string_lossy()))
}

/// The short names of the xDS types, as users write them.
const TYPES: [(&str, &str); 10] = [
    ("lds", "type.googleapis.com/envoy.config.listener.v3.Listener"),
    ("rds", "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"),
    ("srds", "type.googleapis.com/envoy.config.route.v3.ScopedRouteConfiguration"),
    ("vhds", "type.googleapis.com/envoy.config.route.v3.VirtualHost"),
    ("cds", "type.googleapis.com/envoy.config.cluster.v3.Cluster"),
    ("eds", "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"),
    ("leds", "type.googleapis.com/envoy.config.endpoint.v3.LbEndpoint"),
    ("sds", "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"),
    ("rtds", "type.googleapis.com/envoy.service.runtime.v3.Runtime"),
    ("ecds", "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"),
];

/// The type URL of a short name.
pub(super) fn type_url(short: &str) -> Option<String> {
    TYPES.into_iter().find(|(name, _)| *name == short).map(|(_, url)| url.to_owned())
}

/// A short name, or a type URL as it is: the relay carries types it has never heard of (R-EP-06).
pub(super) fn parse_type(text: &str) -> Result<String, String> {
    if let Some(url) = type_url(text) {
        return Ok(url);
    }
    let is_url = text.split_once('/').is_some_and(|(host, name)| !host.is_empty() && !name.is_empty());
    if is_url && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(text.to_owned());
    }
    let names: Vec<&str> = TYPES.iter().map(|(name, _)| *name).collect();
    Err(format!("{} is not a type; write a type URL or one of {}", quoted(text), names.join(", ")))
}

/// Short names where there are any: the notation of the file.
pub(super) fn serialize_type_urls<S: Serializer>(
    urls: &std::collections::BTreeSet<String>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut list = serializer.serialize_seq(Some(urls.len()))?;
    for url in urls {
        let short = TYPES.iter().find(|(_, known)| known == url).map(|(name, _)| *name);
        list.serialize_element(short.unwrap_or(url))?;
    }
    list.end()
}
