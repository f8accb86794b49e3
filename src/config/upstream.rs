//! `upstream`: the source of the resources, and how the relay uses it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::errors::quoted;
use super::notation::{
    Choice, Count, DAY, Flag, HOUR, List, MESSAGE, MONTH, Nested, OneOf, Optional, SECOND, Size, TICK, Text,
    Time, Written,
};
use super::place::{Place, check_unique};
use super::section::section;
use super::tls::ServerTls;
use deltafan_core::cache::Protocol;
use deltafan_core::upstream::Locators;
use deltafan_transport::tls::options::ServerIdentity;

section! {
    /// The source of the resources, and how the relay uses it.
    #[check(check)]
    pub struct Upstream {
        /// Control planes in order of preference: the relay uses the first one that answers. Set either `servers` or
        /// `directory`.
        #[key(List<Nested>, default = Vec::new())]
        pub servers: Vec<Server>,
        /// Instead of `servers`: a directory of resource files. Changes take effect within about 2s.
        #[key(Optional<Text>, example = "./resources")]
        pub directory: Option<PathBuf>,
        /// How long one attempt to connect may take.
        #[key(Time<TICK, HOUR>, default = Duration::from_secs(5))]
        pub connect_timeout: Duration,
        /// The largest response accepted.
        #[key(Size<1, MESSAGE>, default = 256 << 20)]
        pub max_response_bytes: usize,
        /// Subscription changes are collected for this long and sent as one request. More than 500 names or 16 KiB go
        /// out as several requests, this far apart. 0s sends each change at once.
        #[key(Time<0, 10>, default = Duration::from_millis(10))]
        pub request_interval: Duration,
        /// How long a name that no client requests any more stays subscribed, for clients that come back. Below 1s a
        /// relay behind this one could miss removals.
        #[key(Time<SECOND, DAY>, default = Duration::from_secs(60))]
        pub unsubscribe_linger: Duration,
        /// Limit on such names. Above it the oldest are unsubscribed early. So clients that come and go with new names
        /// cannot grow the subscription without bound.
        #[key(Count<0, 100_000_000>, default = 100_000)]
        pub max_lingering_names: usize,
        /// Subscribe to the endpoints of a new EDS cluster before a client does, so that they arrive early. If no
        /// client requests them, the relay unsubscribes after `unsubscribe_linger`, and after 5s at the earliest. Set
        /// false if each name is costly for the control plane, or if it is a java-control-plane that speaks state of
        /// the world: if that lacks one name of a request, it does not answer at all.
        #[key(Flag, default = true, effect = AtOnce, note = "for clusters that come from then on")]
        pub prefetch_endpoints: bool,
        /// How long /ready and gRPC health wait for the control plane's first answer, once something is requested, so
        /// that an empty relay does not replace one that has resources. 0s: ready once connected.
        #[key(Time<0, MONTH>, default = Duration::from_secs(24 * 60 * 60))]
        pub ready_wait: Duration,
        /// How names with dynamic parameters are requested. `native`: by resource locators. `plain`: by name alone, for
        /// control planes that send every variant of a name and do not support locators.
        #[key(OneOf, default = Locators::Native)]
        pub locators: Locators,
        /// Waits between attempts to connect. They grow from `initial` to `max`, with jitter.
        #[key(Nested)]
        pub backoff: Backoff,
        /// When the relay switches to another one of `servers`. Has no effect with one server.
        #[key(Nested)]
        pub failover: Failover,
        /// How the relay detects a dead control plane. TCP finds a dead connection within 30s. If a control plane owes
        /// an answer and sends nothing for 30s, the relay makes a gRPC health check. Without any answer to it within
        /// `timeout` the control plane counts as dead. Only after that does a name without an answer count as absent
        /// for state-of-the-world clients that may hold it: after 50s by default. That is 30s plus `timeout` (at least
        /// 40s) plus `downstream.cold_deadline`, and at least three times the latter.
        #[key(Nested)]
        pub keepalive: UpstreamKeepalive,
    }
}

section! {
    /// An exponential wait between attempts.
    #[derive(Copy, Eq)]
    pub struct Backoff {
        /// The first wait is at most this long.
        #[key(Time<TICK, HOUR>, default = Duration::from_millis(500))]
        pub initial: Duration,
        /// No wait is longer. After a refused connection none is above 4s.
        #[key(Time<TICK, HOUR>, default = Duration::from_secs(30))]
        pub max: Duration,
    }
}

section! {
    /// When another control plane is used.
    #[derive(Copy, Eq)]
    pub struct Failover {
        /// If the control plane has not answered for this long, the relay uses the next one in the list, and after the
        /// last the first. It may be unreachable, end the stream, or leave a request unanswered. The relay never waits
        /// longer than this between two attempts to connect.
        #[key(Time<TICK, HOUR>, default = Duration::from_secs(10))]
        pub after: Duration,
        /// The relay returns to an earlier server in the list once that has answered its probes for this long.
        #[key(Time<TICK, DAY>, default = Duration::from_secs(30))]
        pub return_after: Duration,
        /// Set true if all servers give equal contents equal versions, and different contents different ones. After a
        /// switch the relay then offers the versions that it holds, and the new server sends only what differs.
        #[key(Flag, default = false)]
        pub same_versions: bool,
    }
}

section! {
    /// Checks that a control plane is alive.
    #[derive(Copy, Eq)]
    pub struct UpstreamKeepalive {
        /// A connection that is silent this long gets an HTTP/2 ping. By default gRPC servers close connections that
        /// are pinged more often than every 5m: the log then says too_many_pings or broken pipe.
        #[key(Time<TICK, DAY>, default = Duration::from_secs(6 * 60))]
        pub interval: Duration,
        /// How long the answer to a ping, or to a health check, may take.
        #[key(Time<TICK, HOUR>, default = Duration::from_secs(10))]
        pub timeout: Duration,
    }
}

/// A server listed twice would be tried twice, and follow itself.
fn check(upstream: &Upstream, place: &Place<'_>) {
    match (&*upstream.servers, &upstream.directory) {
        ([], None) => place.wrong("has no source; write `servers` or `directory`"),
        ([_, ..], Some(_)) => {
            place.at("directory").wrong("stands beside `servers`; one of them is allowed");
        }
        _ => {}
    }
    let servers = place.at("servers").items().into_iter().flatten().zip(&upstream.servers);
    check_unique(servers.map(|(place, server)| (place.at("uri"), server.uri.to_string())), "is listed");
}

section! {
    /// One control plane.
    #[derive(Eq)]
    #[check(check_server)]
    pub struct Server {
        /// `http://HOST:PORT` for cleartext HTTP/2, or `https://HOST:PORT` for HTTP/2 over TLS 1.2 or 1.3.
        #[key(Text, required = "http://HOST:PORT or https://HOST:PORT")]
        pub uri: ServerUri,
        /// `delta` (incremental xDS), `sotw` (state of the world) or `auto`. `auto` uses delta, and state of the world
        /// on connections where delta is UNIMPLEMENTED or each delta stream is reset.
        #[key(OneOf, default = None)]
        pub protocol: Option<Protocol>,
        /// Only with `https://`. All files are PEM. Changed files are used from the next connection on.
        #[key(Optional<Nested>)]
        pub tls: Option<ServerTls>,
    }
}

fn check_server(server: &Server, place: &Place<'_>) {
    let Server { uri, protocol: _, tls } = server;
    if uri.is_tls() {
        let named = tls.as_ref().is_some_and(|tls| tls.server_name.is_some());
        if !named && let Err(problem) = ServerIdentity::of_host(uri.as_uri()) {
            place.at("uri").wrong(&problem);
        }
    } else if tls.is_some() {
        let problem = format!("does not go with `{uri}`, which is cleartext; write https:// or leave it out");
        place.at("tls").wrong(&problem);
    }
}

/// `http://HOST:PORT` or `https://HOST:PORT`: HTTP/2, cleartext or TLS; only scheme, host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerUri(http::Uri);

impl ServerUri {
    pub fn as_uri(&self) -> &http::Uri {
        &self.0
    }

    pub fn is_tls(&self) -> bool {
        self.0.scheme() == Some(&http::uri::Scheme::HTTPS)
    }
}

impl Written for ServerUri {
    fn parse(text: &str, _: &Path) -> Result<Self, String> {
        let uri: Option<http::Uri> = text.parse().ok();
        let is_server = |uri: &http::Uri| {
            let is_known = matches!(uri.scheme_str(), Some("http" | "https"));
            let is_host = |of: &http::uri::Authority| !of.host().is_empty() && !of.as_str().contains('@');
            let has_path = uri.path_and_query().is_some_and(|path| path.as_str() != "/");
            is_known
                && uri.authority().is_some_and(is_host)
                && uri.port_u16().is_some_and(|port| port > 0)
                && !has_path
        };
        let server = uri.filter(is_server).map(Self);
        server.ok_or_else(|| {
            format!("{} names no server; write http://HOST:PORT or https://HOST:PORT", quoted(text))
        })
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for ServerUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls() { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.0.authority().map_or("", http::uri::Authority::as_str))
    }
}

impl Choice for Option<Protocol> {
    const WORDS: &'static [(&'static str, Self)] =
        &[("auto", None), ("delta", Some(Protocol::Delta)), ("sotw", Some(Protocol::Sotw))];
}

impl Choice for Locators {
    const WORDS: &'static [(&'static str, Self)] = &[("native", Self::Native), ("plain", Self::Plain)];
}
