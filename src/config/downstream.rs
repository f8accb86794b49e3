//! `downstream`: the side that serves clients.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::notation::{
    Count, DAY, Flag, HOUR, List, MESSAGE, MONTH, Nested, Optional, Size, TIB, TICK, Text, Time, Written,
};
use super::place::Place;
use super::section::section;
use super::system_limits::{Memory, budget, descriptors, half};
use super::tls::ListenerTls;
use crate::resource::TypeUrl;
use crate::subscription::SessionConfig;

const DEFAULT_ADDRESS: ListenAddress =
    ListenAddress::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 15010));
const MIB: usize = 1 << 20;

section! {
    /// Order of routes and clusters on aggregated streams.
    #[derive(Copy, Eq)]
    pub struct MakeBeforeBreak {
        /// How long routes wait for the client's ACK of its clusters, which Envoy sends when they are warm. Removals
        /// wait as long for the ACK of its routes. 0s: no wait.
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
    /// The side that serves clients.
    #[check(check)]
    pub struct Downstream {
        /// Where clients connect, over gRPC or REST-JSON. At least one, no duplicates.
        #[key(
            List<Nested>, default = vec![Listener { address: DEFAULT_ADDRESS, tls: None }], effect = Restart,
            note = "none is added, removed or moved while the relay runs"
        )]
        pub listeners: Vec<Listener>,
        /// If a control plane does not mark the end of its answer, a wildcard set is settled once nothing new has come
        /// for this long. A state-of-the-world client that holds nothing yet waits as long for unknown names, and then
        /// gets the known ones.
        #[key(
            Time<0, HOUR>, default = Duration::from_millis(200), effect = AtOnce,
            note = "for sets that have not settled yet"
        )]
        pub settle: Duration,
        /// If wildcards with several sets of dynamic parameters are requested, none settles sooner than this after the
        /// first part of its answer, which may be meant for another. A resource with `do_not_cache` is dropped this
        /// long after it arrived.
        #[key(
            Time<0, HOUR>, default = Duration::from_secs(1), effect = AtOnce,
            note = "for sets that have not settled yet"
        )]
        pub settle_max: Duration,
        /// If nothing is known and the control plane is unreachable or silent for this long, streams end with
        /// UNAVAILABLE. Clients then turn to another server.
        #[key(Time<TICK, HOUR>, default = Duration::from_secs(10), effect = Connections)]
        pub cold_deadline: Duration,
        /// How long a response without an ACK or NACK holds back the next one of its type.
        #[key(Time<TICK, HOUR>, default = Duration::from_secs(5), effect = Connections)]
        pub ack_timeout: Duration,
        /// Order of routes and clusters on aggregated streams, so that no request fails when both change.
        #[key(Nested, effect = Connections)]
        pub make_before_break: MakeBeforeBreak,
        /// Connections are drained at this age, or up to a fifth earlier, so that load spreads over relays.
        #[key(Time<TICK, MONTH>, default = Duration::from_secs(30 * 60), effect = Connections)]
        pub max_connection_age: Duration,
        /// How long a new connection or stream may stay silent before it is closed.
        #[key(Time<TICK, HOUR>, default = Duration::from_secs(30), effect = Connections)]
        pub first_request_timeout: Duration,
        /// A connection is closed if it takes less than 32 KiB in this time while more is waiting. A stream is closed if
        /// its flow-control window opens as slowly, or if a request on it stays incomplete this long.
        #[key(Time<TICK, HOUR>, default = Duration::from_secs(60), effect = Connections)]
        pub stall_timeout: Duration,
        /// An HTTP/2 connection without an open stream for this long is drained.
        #[key(Time<TICK, DAY>, default = Duration::from_secs(5 * 60), effect = Connections)]
        pub idle_timeout: Duration,
        /// HTTP/2 pings to clients. These and the other timeouts of a connection may be up to an eighth late.
        #[key(Nested, effect = Connections)]
        pub keepalive: Keepalive,
        /// The largest request accepted, not counting its `initial_resource_versions`.
        #[key(Size<1, MESSAGE>, default = 4 * MIB, effect = Connections, note = "and new polls on any")]
        pub max_request_bytes: usize,
        /// Streams that one connection may have open at a time.
        #[key(Count<1, 1_000_000>, default = 1000, effect = Connections)]
        pub max_streams_per_connection: u32,
        /// How long clients have to leave when the relay shuts down, and to reconnect when a reload changes their
        /// permissions.
        #[key(
            Time<0, DAY>, default = Duration::from_secs(20), effect = AtOnce,
            note = "but not for a drain that has begun"
        )]
        pub drain: Duration,
        /// How long a TLS handshake may take, not counting its wait in the queue.
        #[key(Time<TICK, HOUR>, default = Duration::from_secs(5), effect = Restart)]
        pub handshake_timeout: Duration,
        /// A stream is closed if its client takes responses but sends no ACK or NACK for this long. Envoy may hold back
        /// the ACK of clusters until their endpoints arrive: keep this far above `ack_timeout`.
        #[key(Time<TICK, DAY>, default = Duration::from_secs(10 * 60), effect = Connections)]
        pub unacked_timeout: Duration,
        /// Delta responses, removals included, are split to stay below this size. A larger resource is sent whole.
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
        /// Names that all streams and polls of one connection may request together.
        #[key(Count<1, 1_000_000_000>, default = 1_000_000, effect = Connections)]
        pub max_names_per_connection: usize,
        /// Bytes of the names that one stream may subscribe to, per type, with their spellings and locators.
        #[key(Size<1, TIB>, default = 16 * MIB, effect = Connections)]
        pub max_subscription_bytes: usize,
        /// Open connections at a time, on all listeners together; further ones are closed before anything is read.
        /// Default: the hard limit of file descriptors minus 256, at most 1000000.
        #[key(Count<1, 100_000_000>, default = descriptors(), example = "1000000", effect = Restart)]
        pub max_connections: usize,
        /// Connections from one address, even that of a NAT gateway, a load balancer or this machine. All Unix sockets
        /// count as one. Default: half of `max_connections`.
        #[key(Count<1, 100_000_000>, default = half(max_connections), example = "500000", effect = Restart)]
        pub max_connections_per_address: usize,
        /// Connections of one identity: the SPIFFE ID of the client certificate, or else its subject. A fleet may share
        /// one. Default: half of `max_connections`.
        #[key(Count<1, 100_000_000>, default = half(max_connections), example = "500000", effect = Restart)]
        pub max_connections_per_identity: usize,
        /// Total bytes of requests that have not fully arrived. Default: 256MiB, or a 16th of the memory of the control
        /// group, or of the machine, if that is less.
        #[key(Size<1, TIB>, default = budget() as usize, example = "256MiB", effect = Restart)]
        pub max_buffered_request_bytes: usize,
        /// Such bytes on one connection. Set it to at least twice `max_request_bytes`, because an arriving request takes
        /// up to twice its length. Values above a quarter of `max_buffered_request_bytes` have no effect.
        #[key(Size<1, TIB>, default = 16 * MIB, effect = Restart)]
        pub max_buffered_request_bytes_per_connection: usize,
        /// Total bytes of the `initial_resource_versions` of reconnecting clients, until they are compared with the
        /// current resources. A wildcard client with 300,000 resources and 80-byte names sends 30 MiB. A client above
        /// the limit gets everything again, but no removals. One address, even that of a whole fleet, gets at most half.
        /// Default: 512MiB, or an 8th of the memory.
        #[key(Size<1, TIB>, default = 2 * budget() as usize, example = "512MiB", effect = Restart)]
        pub max_initial_version_bytes: usize,
        /// Bytes of `initial_resource_versions` on one connection.
        #[key(Size<1, TIB>, default = 64 * MIB, effect = Restart)]
        pub max_initial_version_bytes_per_connection: usize,
        /// Memory for messages of 16 KiB and more that are being sent; a message to many clients counts once. Above it,
        /// and above four times the largest message, the connections that hold most are closed. Default: 256MiB, or a
        /// 16th of the memory.
        #[key(Size<1, TIB>, default = budget() as usize, example = "256MiB", effect = Restart)]
        pub max_unsent_bytes: usize,
        /// Overload manager: limits on the memory in use, which is resident memory minus what the allocator keeps free.
        /// `refuse_above` must not exceed `close_above`.
        #[key(Nested, effect = Restart)]
        pub memory: Memory,
        /// A client that reconnects reports the versions that it holds. true: do not resend a resource that it requests
        /// by name and reports at the current version. Some versions of Envoy have lost the resource by then and would
        /// wait for it in vain.
        #[key(Flag, default = false, effect = Connections)]
        pub trust_initial_versions_for_explicit: bool,
        /// Resend a cluster's endpoints after the cluster has changed, even if they have not: Envoy waits for them.
        #[key(Flag, default = true, effect = AtOnce, note = "for what the control plane sends from then on")]
        pub eds_repush_on_cds_change: bool,
        /// Forward the control plane's errors for single resources to gRPC clients (`resource_errors`). Clients that do
        /// not know the field ignore it. false: report only resources that do not exist, as removals.
        #[key(Flag, default = true, effect = AtOnce, note = "for what the control plane sends from then on")]
        pub resource_errors: bool,
        /// Serve Secrets (SDS) to unauthenticated clients on the network.
        #[key(Flag, default = false, effect = Rights, note = "if the permissions of their clients change")]
        pub secrets_without_authentication: bool,
        /// Serve Secrets to loopback clients without a certificate. Set false if a proxy, a tunnel or another container
        /// in the same network namespace connects on behalf of others. Clients on Unix sockets always get Secrets.
        #[key(Flag, default = true, effect = Rights, note = "if the permissions of their clients change")]
        pub secrets_over_loopback: bool,
        /// Types for which an empty first request subscribes to nothing instead of everything: short names (lds, rds,
        /// srds, vhds, cds, eds, leds, sds, rtds, ecds) or full type URLs. A `"*"` always subscribes to everything, and
        /// so does an empty first request of another relay. That of a gRPC client never does.
        #[key(List<Text>, default = SessionConfig::default().no_legacy_wildcard, effect = Connections)]
        pub no_legacy_wildcard: BTreeSet<TypeUrl>,
    }
}

section! {
    /// One place where clients connect; gRPC and REST-JSON share it.
    #[derive(Eq)]
    pub struct Listener {
        /// IP:PORT; port 0 lets the system choose. Or unix:PATH, a Unix socket. Its folder and its mode (0660 minus the
        /// umask) decide which clients may connect. These clients get Secrets.
        #[key(Text, default = DEFAULT_ADDRESS)]
        pub address: ListenAddress,
        /// TLS 1.2 and 1.3. Files are PEM, and read again when they change. New connections use the changed files once
        /// all files of the listener fit together. docs/tls.md has an example. Default: cleartext.
        #[key(Optional<Nested>)]
        pub tls: Option<ListenerTls>,
    }
}

impl Listener {
    pub fn proves_clients(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.client_ca_file.is_some())
    }
}

fn check(downstream: &Downstream, place: &Place<'_>) {
    if downstream.listeners.is_empty() {
        place.at("listeners").wrong("is empty; list at least one");
    }
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
