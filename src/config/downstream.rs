//! `downstream`: the side that clients see.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::mapping::Mapping;
use super::notation::{
    Beside, Count, DAY, Each, Flag, HOUR, List, MESSAGE, MONTH, Nested, NonEmpty, Optional, Size, TIB, TICK,
    Text, Time, Written,
};
use super::section::section;
use super::system_limits::{ConnectionLimits, Memory, budget};
use super::tls::ListenerTls;
use super::values::TypeName;
use crate::resource::Kind;

pub(super) const DEFAULT_ADDRESS: ListenAddress =
    ListenAddress::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 15010));
const MIB: usize = 1 << 20;

section! {
    /// Order of routes and clusters on aggregated streams.
    #[derive(Copy, Eq)]
    pub struct MakeBeforeBreak {
        /// How long routes wait until a client has acknowledged its clusters, which Envoy does when they are warm, and removals
        /// until it has acknowledged its routes. 0s: they do not wait.
        #[key(Time<0, HOUR>, default = Duration::from_secs(5))]
        pub wait: Duration,
    }
}

section! {
    /// HTTP/2 pings that tell a dead connection from a quiet one.
    #[derive(Copy, Eq)]
    pub struct Keepalive {
        /// A connection that is silent this long is pinged.
        #[key(Time<TICK, DAY>, default = Duration::from_secs(30))]
        pub interval: Duration,
        /// How long the answer to a ping may take.
        #[key(Time<TICK, HOUR>, default = Duration::from_secs(10))]
        pub timeout: Duration,
    }
}

section! {
    /// The side that clients see.
    #[check(check)]
    pub struct Downstream {
        /// Where clients connect, over gRPC or REST-JSON. At least one, none twice.
        #[key(
            Each, default = NonEmpty::one(Listener { address: DEFAULT_ADDRESS, tls: None }), effect = Restart,
            note = "as none is added, removed or moved while the relay runs"
        )]
        pub listeners: NonEmpty<Listener>,
        /// Of a control plane that does not say where its answer ends, a set counts as settled once nothing new has come for this
        /// long. A state-of-the-world client that holds nothing yet waits as long for names that are not known, and is then
        /// told of those that are. Never above `settle_max`.
        #[key(
            Time<0, HOUR>, default = Duration::from_millis(200), effect = AtOnce,
            note = "for sets that have not settled yet"
        )]
        pub settle: Duration,
        /// A wildcard beside wildcards with other dynamic parameters settles no sooner after the first part of its answer, which may
        /// be for the others. A resource with `do_not_cache` is dropped this long after it came.
        #[key(
            Time<0, HOUR>, default = Duration::from_secs(1), effect = AtOnce,
            note = "for sets that have not settled yet"
        )]
        pub settle_max: Duration,
        /// Where nothing is known and the control plane is out of reach or silent this long, streams end with UNAVAILABLE,
        /// so that clients turn to another server.
        #[key(Time<TICK, HOUR>, default = Duration::from_secs(10), effect = Connections)]
        pub cold_deadline: Duration,
        /// How long a response that a client does not acknowledge holds back the next one of its type.
        #[key(Time<TICK, HOUR>, default = Duration::from_secs(5), effect = Connections)]
        pub ack_timeout: Duration,
        /// Order of routes and clusters on aggregated streams, so that no request fails at a change of both.
        #[key(Nested, effect = Connections)]
        pub make_before_break: MakeBeforeBreak,
        /// Connections of this age, jittered, are asked to go, so that load evens out over relays.
        #[key(Time<TICK, MONTH>, default = Duration::from_secs(30 * 60), effect = Connections)]
        pub max_connection_age: Duration,
        /// How long clients are given to leave when the relay shuts down, and to come again when a reload changes what they
        /// may do.
        #[key(
            Time<0, DAY>, default = Duration::from_secs(20), effect = AtOnce,
            note = "but not for a drain that has begun"
        )]
        pub drain: Duration,
        /// How long a TLS handshake may take, beside what it waits for its turn.
        #[key(Time<TICK, HOUR>, default = Duration::from_secs(5), effect = Restart)]
        pub handshake_timeout: Duration,
        /// How long a new connection or stream may stay silent before it is closed.
        #[key(Time<TICK, HOUR>, default = Duration::from_secs(30), effect = Connections)]
        pub first_request_timeout: Duration,
        /// A connection whose transport takes less than 32 KiB in this time, though there is more to send, is closed; so is
        /// a stream that opens windows as slowly, and one on which a request began to come and is not whole.
        #[key(Time<TICK, HOUR>, default = Duration::from_secs(60), effect = Connections)]
        pub stall_timeout: Duration,
        /// A connection over HTTP/2 on which no stream is open this long is asked to go.
        #[key(Time<TICK, DAY>, default = Duration::from_secs(5 * 60), effect = Connections)]
        pub idle_timeout: Duration,
        /// A stream whose client takes responses and answers none of them, neither ACK nor NACK, this long is closed. Envoy
        /// may hold back the ACK of clusters until their endpoints came: keep it far above `ack_timeout`.
        #[key(Time<TICK, DAY>, default = Duration::from_secs(10 * 60), effect = Connections)]
        pub unacked_timeout: Duration,
        /// HTTP/2 pings to clients.
        #[key(Nested, effect = Connections)]
        pub keepalive: Keepalive,
        /// The largest request accepted, without the versions that a client says it holds.
        #[key(Size<1, MESSAGE>, default = 4 * MIB, effect = Connections, note = "and new polls on any")]
        pub max_request_bytes: usize,
        /// Incremental answers, removals included, are split below this size; a single larger resource still goes out
        /// whole.
        #[key(
            Size<1, MESSAGE>, default = MIB, effect = AtOnce,
            note = "but an answer that is being sent in parts goes on where it stands"
        )]
        pub max_response_bytes: usize,
        /// The longest resource name accepted.
        #[key(Size<1, MESSAGE>, default = 16 * 1024, effect = Connections)]
        pub max_name_bytes: usize,
        /// Names that one stream may subscribe to, per type.
        #[key(Count<1, 100_000_000>, default = 100_000, effect = Connections)]
        pub max_names: usize,
        /// Names that all streams, Fetches and polls of one connection may ask for together.
        #[key(Count<1, 1_000_000_000>, default = 1_000_000, effect = Connections)]
        pub max_names_per_connection: usize,
        /// Bytes of these names, with their spellings and locators, together.
        #[key(Size<1, TIB>, default = 16 * MIB, effect = Connections)]
        pub max_subscription_bytes: usize,
        /// Streams that one connection may have open at a time.
        #[key(Count<1, 1_000_000>, default = 1000, effect = Connections)]
        pub max_streams_per_connection: u32,
        /// How many connections may be open.
        #[key(Beside)]
        pub limits: ConnectionLimits,
        /// Bytes that requests may take together while they are not whole. Default: 256MiB, or a 16th of the memory of the
        /// control group, or of the machine, if that is less.
        #[key(Size<1, TIB>, default = budget() as usize, example = "256MiB", effect = Restart)]
        pub max_buffered_request_bytes: usize,
        /// Such bytes on one connection. At least twice `max_request_bytes`, or no request is so large: while one comes, it
        /// takes up to twice its length. More than a quarter of `max_buffered_request_bytes` is of no use.
        #[key(Size<1, TIB>, default = 16 * MIB, effect = Restart)]
        pub max_buffered_request_bytes_per_connection: usize,
        /// Bytes of `initial_resource_versions` of all clients that come back, until they have been compared with the
        /// current resources. A wildcard client of 300,000 resources with names of 80 bytes says 30 MiB. A client that says
        /// more is sent everything again, and is not told what has gone. One address, behind which a fleet may come back,
        /// has half of it at most. Default: 512MiB, or an 8th of the memory.
        #[key(Size<1, TIB>, default = 2 * budget() as usize, example = "512MiB", effect = Restart)]
        pub max_initial_version_bytes: usize,
        /// Bytes of `initial_resource_versions` on one connection.
        #[key(Size<1, TIB>, default = 64 * MIB, effect = Restart)]
        pub max_initial_version_bytes_per_connection: usize,
        /// Bytes that are kept in memory for messages of 16 KiB and more that are being sent; those that are sent to many
        /// clients count once. Above it, and above four times the largest message, the connections that keep most are given
        /// up. Default: 256MiB, or a 16th of the memory.
        #[key(Size<1, TIB>, default = budget() as usize, example = "256MiB", effect = Restart)]
        pub max_unsent_bytes: usize,
        /// The memory in use above which clients are turned away: resident memory without that which the allocator keeps
        /// free. `refuse_above` is not above `close_above`.
        #[key(Nested, effect = Restart)]
        pub memory: Memory,
        /// A client that reconnects says which versions it holds. true: names it asks for and holds at the current version
        /// are not sent again. Some Envoy versions have lost the body by then and would wait for it in vain.
        #[key(Flag, default = false, effect = Connections)]
        pub trust_initial_versions_for_explicit: bool,
        /// Send a cluster's endpoints again right after the cluster changed, even if they did not: Envoy waits for
        /// them.
        #[key(Flag, default = true, effect = AtOnce, note = "for what the control plane sends from then on")]
        pub eds_repush_on_cds_change: bool,
        /// Tell gRPC clients the errors that the control plane reports of single resources (`resource_errors`);
        /// clients that do not know the field ignore it. false: only that a resource does not exist is told, as a removal.
        #[key(Flag, default = true, effect = AtOnce, note = "for what the control plane sends from then on")]
        pub resource_errors: bool,
        /// Serve Secrets (SDS) to clients that come over the network though nobody has authenticated them.
        #[key(Flag, default = false, effect = Rights, note = "where it changes what their clients may have")]
        pub secrets_without_authentication: bool,
        /// Serve Secrets to clients that come over loopback and have shown no certificate. false: set it where a proxy, a
        /// tunnel or another container with this network connects for others. Unix sockets are always served.
        #[key(Flag, default = true, effect = Rights, note = "where it changes what their clients may have")]
        pub secrets_over_loopback: bool,
        /// Types for which an empty first request asks for nothing, where it would otherwise ask for everything:
        /// short names (lds, rds, srds, vhds, cds, eds, leds, sds, rtds, ecds) or full type URLs. A `"*"` always asks for
        /// everything, and so does an empty first request of another relay.
        #[key(List<TypeName>, default = default_no_legacy_wildcard(), effect = Connections)]
        pub no_legacy_wildcard: BTreeSet<String>,
    }
}

section! {
    /// One place where clients connect; gRPC and REST-JSON share it.
    #[derive(Eq)]
    pub struct Listener {
        /// IP:PORT; port 0 lets the system choose. Or unix:PATH, a Unix socket: a client that may open it, by its folder and
        /// its mode (0660, less what the umask forbids), may connect, and is served Secrets.
        #[key(Text, default = DEFAULT_ADDRESS)]
        pub address: ListenAddress,
        /// TLS 1.2 and 1.3. Files are PEM, and followed while running: those of a listener are one set, which is put in
        /// force for new connections when all of it can be used. docs/tls.md has an example. Default: cleartext.
        #[key(Optional<Nested>)]
        pub tls: Option<ListenerTls>,
    }
}

impl Listener {
    /// Whether its clients show certificates.
    pub fn proves_clients(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.clients.is_some())
    }
}

fn check(downstream: &Downstream, mapping: &Mapping<'_>) {
    let Downstream { settle, settle_max, .. } = downstream;
    if !mapping.is_refused("listeners") && mapping.has("listeners") && mapping.is_empty("listeners") {
        mapping.wrong_here("listeners", "is empty; list at least one");
    }
    mapping.check_order(("settle", *settle), ("settle_max", *settle_max));
}

fn default_no_legacy_wildcard() -> BTreeSet<String> {
    let denied = Kind::KNOWN.into_iter().filter(|kind| !kind.has_legacy_wildcard());
    denied.filter_map(Kind::url).map(str::to_owned).collect()
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ListenAddress {
    /// The system chooses port 0.
    Tcp(SocketAddr),
    /// Absolute path of a Unix socket.
    Unix(PathBuf),
}

impl Written for ListenAddress {
    fn parse(text: &str, base: &Path) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some(path) => PathBuf::parse(path, base).map(Self::Unix),
            None => SocketAddr::parse(text, base).map(Self::Tcp),
        }
    }

    fn text(&self) -> String {
        self.to_string()
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
