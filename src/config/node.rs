//! `node`: the xDS node of the relay.

use serde_json::{Map, Value as Json};

use super::notation::{Anything, Filled, Nested, Text};
use super::section::section;

const NAME: &str = "deltafan";

section! {
    /// The xDS node of the relay.
    pub struct Node {
        /// Node ID of the relay. Default: the host name.
        #[key(Filled, default = host_name(), example = "relay-1")]
        pub id: String,
        /// Cluster of the relay's node.
        #[key(Filled, default = NAME.to_owned())]
        pub cluster: String,
        /// Where the relay runs. Empty parts are not sent.
        #[key(Nested)]
        pub locality: Locality,
        /// Any values: text, numbers, true and false, null, lists and mappings.
        #[key(Anything, default = Map::new())]
        pub metadata: Map<String, Json>,
    }
}

section! {
    /// Location of the relay, as xDS puts it.
    #[derive(Eq)]
    pub struct Locality {
        /// As in `us-east-1`.
        #[key(Text, default = String::new())]
        pub region: String,
        /// As in `us-east-1a`.
        #[key(Text, default = String::new())]
        pub zone: String,
        /// Part of a zone.
        #[key(Text, default = String::new())]
        pub sub_zone: String,
    }
}

/// From the kernel's file, else from the shell: neither needs a system call of our own.
fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| NAME.to_owned())
}
