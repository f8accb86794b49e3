//! The value of every key that a file leaves out.
//!
//! `config/reference.yaml` shows the same to users; a test holds the two together.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::machine::budget;
use super::{
    Admin, Authorization, Backoff, Cache, Config, ConnectionLimits, Downstream, Keepalive, ListenAddress,
    Listener, Locality, Locators, Memory, Node, NonEmpty, Reconcile, Rest, Source, Upstream, values,
};

const NAME: &str = "deltafan";
const MIB: usize = 1024 * 1024;

impl Config {
    /// The defaults around the one thing that has none.
    pub fn new(source: Source) -> Self {
        Self {
            node: Node::default(),
            upstream: Upstream::new(source),
            downstream: Downstream::default(),
            rest: Rest::default(),
            admin: Admin::default(),
            cache: Cache::default(),
            dynamic_parameters: Vec::new(),
            authorization: Authorization::default(),
        }
    }
}

impl Default for Node {
    fn default() -> Self {
        Self {
            id: host_name(),
            cluster: NAME.to_owned(),
            locality: Locality::default(),
            metadata: serde_json::Map::new(),
        }
    }
}

/// The kernel's word where it is a file, else the shell's: both without a system call of our own.
fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| NAME.to_owned())
}

impl Upstream {
    /// The defaults around the one thing that has none.
    pub fn new(source: Source) -> Self {
        Self {
            source,
            connect_timeout: Duration::from_secs(5),
            max_response_bytes: 256 * MIB,
            request_interval: Duration::from_millis(10),
            unsubscribe_linger: Duration::from_secs(60),
            max_lingering_names: 100_000,
            ready_wait: Duration::from_secs(24 * 60 * 60),
            reconcile: Reconcile::Trust,
            locators: Locators::Native,
            backoff: Backoff::default(),
            keepalive: Keepalive::default(),
        }
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self { initial: Duration::from_millis(500), max: Duration::from_secs(30) }
    }
}

impl Default for Keepalive {
    fn default() -> Self {
        Self { interval: Duration::from_secs(30), timeout: Duration::from_secs(10) }
    }
}

impl Default for Downstream {
    fn default() -> Self {
        Self {
            listeners: NonEmpty::one(Listener::default()),
            settle: Duration::from_millis(200),
            settle_max: Duration::from_secs(1),
            cold_deadline: Duration::from_secs(10),
            ack_timeout: Duration::from_secs(5),
            max_connection_age: Duration::from_secs(30 * 60),
            drain: Duration::from_secs(20),
            handshake_timeout: Duration::from_secs(5),
            first_request_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(5 * 60),
            unacked_timeout: Duration::from_secs(10 * 60),
            keepalive: Keepalive::default(),
            max_request_bytes: 4 * MIB,
            max_response_bytes: MIB,
            max_name_bytes: 16 * 1024,
            max_names: 100_000,
            max_names_per_connection: 1_000_000,
            max_subscription_bytes: 16 * MIB,
            max_streams_per_connection: 1000,
            limits: ConnectionLimits::default(),
            max_buffered_request_bytes: budget() as usize,
            max_buffered_request_bytes_per_connection: 16 * MIB,
            // Half of it is the most for one address, behind which a fleet may come back.
            max_initial_version_bytes: 2 * budget() as usize,
            max_initial_version_bytes_per_connection: 64 * MIB,
            max_unsent_bytes: budget() as usize,
            memory: Memory::default(),
            trust_initial_versions_for_explicit: false,
            eds_repush_on_cds_change: true,
            resource_errors: true,
            secrets_without_authentication: false,
            secrets_over_loopback: true,
            no_legacy_wildcard: ["eds", "rds", "sds", "ecds", "rtds", "leds"]
                .into_iter()
                .filter_map(values::type_url)
                .collect(),
        }
    }
}

impl Default for Listener {
    fn default() -> Self {
        Self {
            address: ListenAddress::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 15010)),
            tls: None,
        }
    }
}

impl Default for Rest {
    fn default() -> Self {
        Self {
            hold: Duration::from_millis(800),
            idle_timeout: Duration::from_secs(60),
            max_polls_per_peer: 10_000,
            json_bytes: budget(),
            descriptor_sets: Vec::new(),
        }
    }
}

impl Default for Admin {
    fn default() -> Self {
        Self { address: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 15000) }
    }
}

impl Default for Cache {
    fn default() -> Self {
        Self { encoded_bytes: budget(), tombstones: 10_000, max_parameter_sets: 4096 }
    }
}
