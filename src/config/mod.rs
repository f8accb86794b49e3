//! The configuration: one YAML file, read into values that are right by construction.
//!
//! Owns the schema (names, notations, ranges, defaults, help), reading into [`Config`], messages for a wrong
//! file, and printing of the effective configuration. Uses types of the core. Knows nothing of caches,
//! streams or sockets, and does not act on what it reads. No value needs a second check.
//!
//! Steps: `yaml` makes nodes with line numbers. Sections read their keys at their `place`, each in its
//! `notation`, and `check` finds other keys. One run reports all wrong values, or else all that do not fit
//! together. `changes` compares two configurations.
//!
//! Every key is declared once, in the struct of its section: see `section`.

mod address_conflict;
mod authorization;
mod changes;
mod check;
mod downstream;
mod dynamic_parameters;
mod errors;
mod groups;
mod node;
mod notation;
mod place;
mod rollout;
mod schema;
mod section;
mod system_limits;
mod tls;
mod upstream;
mod values;
mod yaml;

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::node_group::Unmatched;
use errors::Report;
use notation::{Count, Flag, HOUR, List, Nested, Notation as _, Optional, Size, TIB, TICK, Text, Time};
use place::Place;
use schema::Section;
use section::section;
use system_limits::budget;

pub use authorization::{Authorization, AuthorizationRule, DefaultAccess};
pub use changes::{Changes, diff};
pub use downstream::{Downstream, ListenAddress, Listener, MakeBeforeBreak};
pub use dynamic_parameters::DynamicParameter;
pub use errors::{ConfigError, UnknownKeys};
pub use groups::{GroupRule, Groups};
pub use node::{Locality, Node};
pub use rollout::{HoldReport, Percent, Rollout};
pub use system_limits::Memory;
pub use tls::{ListenerTls, ServerTls};
pub use upstream::{Backoff, Failover, Server, ServerUri, Upstream, UpstreamKeepalive};

const DEFAULT_ADMIN_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 15000);

section! {
    /// The whole configuration. Only the source of `upstream` has no default.
    ///
    /// Its [`Display`](fmt::Display) is the effective configuration as YAML: every key with its value. Reading that again
    /// gives an equal value.
    #[check(check)]
    pub struct Config {
        /// Node of the relay, as the control plane sees it.
        #[key(Nested, effect = Restart)]
        pub node: Node,
        /// The source of the resources, and how the relay uses it.
        #[key(Nested, effect = Restart)]
        pub upstream: Upstream,
        /// The side that serves clients.
        #[key(Nested)]
        pub downstream: Downstream,
        /// REST-JSON: POST /v3/discovery:clusters and the like, on the same listeners. The limits on requests and names
        /// under `downstream` apply here too.
        #[key(Nested)]
        pub rest: Rest,
        /// For operators: /ready, /healthz and /metrics. Separate from the listeners; do not expose it to the open
        /// network.
        #[key(Nested, effect = Restart)]
        pub admin: Admin,
        /// Memory limits of the cache and the history.
        #[key(Nested)]
        pub cache: Cache,
        /// Dynamic parameters for clients that send none: one rule for each key. `deltafan check --config FILE --node
        /// FILE` shows the parameters of a node.
        #[key(
            List<Nested>, default = Vec::new(), effect = Rights,
            note = "all of them, because parameters follow from the nodes of clients"
        )]
        pub dynamic_parameters: Vec<DynamicParameter>,
        /// Permissions of clients. When the rules change, open connections are checked again.
        #[key(Nested, effect = Rights, note = "if the permissions of their clients change")]
        pub authorization: Authorization,
        /// Node groups: clients of one group share the control plane's answers for the group's node. Without rules
        /// there is one group, with the relay's own `node`.
        #[key(Nested, effect = Restart)]
        pub groups: Groups,
        /// Warm restart: resources are kept on disk, and served after a restart while the control plane is away.
        #[key(Nested, effect = Restart)]
        pub snapshot: Snapshot,
        /// Rollout guard: a change is sent to a share of the clients first, and to the others only if these accept it.
        #[key(Nested, effect = Restart)]
        pub rollout: Rollout,
    }
}

section! {
    /// REST-JSON long polls, on the same listeners.
    #[derive(Eq)]
    pub struct Rest {
        /// How long a poll is held while nothing that it requests has changed. Envoy gives up after its
        /// `request_timeout`, by default 1s. If the client sends x-envoy-expected-rq-timeout-ms, the hold is shortened
        /// to fit.
        #[key(Time<TICK, HOUR>, default = Duration::from_millis(800), effect = Polls, note = "on any connection")]
        pub hold: Duration,
        /// How long an HTTP/1 connection may be without a request, and how long the headers of a request may take. Set
        /// it above the clients' `refresh_delay`, or each poll needs a new connection.
        #[key(Time<TICK, HOUR>, default = Duration::from_secs(60), effect = Connections)]
        pub idle_timeout: Duration,
        /// Polls held at a time for one address; further ones get 429.
        #[key(Count<1, 100_000_000>, default = 10_000, effect = Polls, note = "on any connection")]
        pub max_polls_per_peer: usize,
        /// Budget of the JSON that clients share; too little costs time, never correctness. Default: 256MiB, or a 16th of
        /// the memory.
        #[key(Size<1, TIB>, default = budget(), example = "256MiB", effect = Restart)]
        pub json_bytes: u64,
        /// Files with descriptors of types that your resources contain and deltafan does not know. Each is a
        /// google.protobuf.FileDescriptorSet, as `protoc --include_imports --descriptor_set_out` writes it, gzipped or
        /// not. A .proto file in it replaces the one that deltafan ships. Default: none.
        #[key(List<Text>, default = Vec::new(), example = "[acme.binpb]", effect = Restart)]
        pub descriptor_sets: Vec<PathBuf>,
    }
}

section! {
    /// The endpoint for operators.
    #[derive(Eq)]
    pub struct Admin {
        /// IP:PORT; port 0 lets the system choose.
        #[key(Text, default = DEFAULT_ADMIN_ADDRESS)]
        pub address: SocketAddr,
        /// Further host names under which browsers and scripts reach it. IP addresses, names without a dot, and names
        /// below `.internal`, `.local`, `.localhost` and `.svc` always work. Requests to another name are refused,
        /// because a page from another site may send them. /ready, /healthz and /metrics are answered under any name.
        #[key(List<Text>, default = Vec::new())]
        pub hosts: Vec<String>,
    }
}

section! {
    /// Bounds of what is remembered.
    #[derive(Copy, Eq)]
    pub struct Cache {
        /// Budget of the encoded responses that clients share; too little costs time, never correctness. Default: 256MiB, or
        /// a 16th of the memory.
        #[key(Size<1, TIB>, default = budget(), example = "256MiB", effect = Restart)]
        pub encoded_bytes: u64,
        /// Number of removed names remembered per type, for clients that were slow or away.
        #[key(Count<1, 100_000_000>, default = 10_000, effect = AtOnce, note = "for each type with its next change")]
        pub tombstones: usize,
        /// Limit on views, over all types. Each set of dynamic parameters that clients choose takes one view per type. A
        /// client that requests names of one type with several sets takes one more for that combination. A client that
        /// needs a view above the limit is refused with RESOURCE_EXHAUSTED, as is a stream with more than 16 sets for
        /// one type. One address or identity gets at most half of the views, one connection a quarter.
        #[key(Count<1, 1_000_000>, default = 4096, effect = AtOnce, note = "but sets in use stay")]
        pub max_parameter_sets: usize,
        /// Budget of the history of changes (`deltafan history`): about 300 bytes for each change, plus the replaced
        /// content. At most 16 changes per resource are kept. 0 turns it off.
        #[key(Size<0, TIB>, default = 64 << 20, effect = Restart)]
        pub history_bytes: u64,
    }
}

impl Config {
    /// Reads the text of a file of at most 1 MiB.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if the file cannot be read, is larger than 1 MiB, or is not UTF-8.
    pub fn read(path: &Path) -> Result<String, ConfigError> {
        yaml::read_file(path)
    }

    /// Reads a text, with a line for each ignored key. `origin` names it in messages; relative paths start from its folder.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] with every problem of the text, by line.
    pub fn parse_file(
        text: &str,
        origin: &Path,
        unknown_keys: UnknownKeys,
    ) -> Result<(Self, Vec<String>), ConfigError> {
        let base = origin.parent().unwrap_or_else(|| Path::new("")).to_owned();
        let known = schema::all(Self::KEYS).into_iter().map(|(path, _)| path);
        let report = Report::new(unknown_keys, known.collect(), base);
        let root = yaml::read(text, &report);
        let config = root.and_then(|root| Nested::read(&Place::root(&root, &report)));
        report.finish(&origin.display().to_string(), config)
    }

    /// As [`parse_file`](Self::parse_file), without unknown keys.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] with every problem of the text, by line.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ConfigError> {
        Self::parse_file(text, Path::new(origin), UnknownKeys::Refuse).map(|(config, _)| config)
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        serde_saphyr::to_fmt_writer(f, &Nested::print(self)).map_err(|_| fmt::Error)
    }
}

section! {
    /// Resources on disk.
    #[derive(Eq)]
    pub struct Snapshot {
        /// Folder for this relay alone; created if it does not exist. Default: nothing is kept on disk.
        #[key(Optional<Text>, example = "/var/lib/deltafan")]
        pub path: Option<PathBuf>,
        /// Whether Secrets are kept too. They are not encrypted; only the owner can read the file (mode 0600).
        #[key(Flag, default = false)]
        pub secrets: bool,
        /// Whether a relay that has loaded resources is ready before its control plane has answered.
        #[key(Flag, default = true)]
        pub ready: bool,
    }
}

/// Compares values of different sections.
fn check(config: &Config, root: &Place<'_>) {
    dynamic_parameters::check(config, root);
    address_conflict::check(config, root);
    authorization::check(config, root);
    if config.upstream.directory.is_none() {
        return;
    }
    if config.snapshot.path.is_some() {
        let problem = "is of no use with `upstream.directory`, which is read at each start; leave it out";
        root.at("snapshot").at("path").wrong(problem);
    }
    if !config.groups.rules.is_empty() || config.groups.default == Unmatched::Refuse {
        root.at("groups").wrong("needs `upstream.servers`: a directory is the same for every node");
    }
}
