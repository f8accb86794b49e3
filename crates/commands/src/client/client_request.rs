//! Node that asks, and encoded requests of each transport.
//!
//! Invariant: the node of a file is sent unchanged, with fields that a relay does not read. Fields of the
//! command line are appended: protobuf readers take the last of two values, and join lists.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use bytes::{Bytes, BytesMut};
use deltafan_core::descriptors::text_formats::{message_json, read_node};
use deltafan_core::proto::{DeltaDiscoveryRequest, DiscoveryRequest, Node, ResourceLocator};
use deltafan_core::resource::{Name, wire};
use deltafan_core::subscription::OBSERVER;
use deltafan_transport::terminal::printable;
use prost::Message as _;
use serde_json::Value as Json;

use super::Transport;
use super::server_address::Server;
use super::subscribed_names::Subscription;

/// Any full bootstrap is far smaller.
const MAX_BYTES: u64 = 16 << 20;
// Numbers of the field `node`.
const NODE_OF_DELTA: u8 = 1;
const NODE_OF_SOTW: u8 = 2;

/// Node of a file, for `get --node` and `check --node`.
#[derive(Debug)]
pub struct NodeFile {
    pub node: Node,
    pub encoded: Vec<u8>,
}

impl NodeFile {
    /// Reads a Node of xDS, or the bootstrap of Envoy or gRPC. An error names the file.
    ///
    /// # Errors
    ///
    /// File that cannot be read, is larger than 16 MiB, or holds no node.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let read_file = || {
            let mut bytes = Vec::new();
            let file = File::open(path).context("cannot be read")?;
            file.take(MAX_BYTES + 1).read_to_end(&mut bytes).context("cannot be read")?;
            if bytes.len() as u64 > MAX_BYTES {
                bail!("is larger than {MAX_BYTES} bytes");
            }
            let encoded = read_node(path, &bytes)?;
            let node = Node::decode(&encoded[..]).context("is a node that no request could carry")?;
            Ok(Self { node, encoded })
        };
        read_file().map_err(|error: anyhow::Error| {
            let problem = printable(&format!("{}: {error:#}", path.display()));
            anyhow::Error::msg(problem)
        })
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Query {
    pub server: Server,
    pub transport: Transport,
    pub asker: Asker,
    pub asked: Subscription,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asker {
    node: Vec<u8>,
    id: String,
}

impl Asker {
    /// Uses the node in a file, if any; `id` and `cluster` replace its own. Without file and ID the ID is
    /// `default_id`.
    pub(crate) fn new(
        file: Option<NodeFile>,
        default_id: &str,
        id: Option<String>,
        cluster: Option<String>,
    ) -> Self {
        let (node, own_id) = match file {
            Some(file) => (file.encoded, file.node.id),
            None => (Vec::new(), default_id.to_owned()),
        };
        let id = id.unwrap_or(own_id);
        let given = Node { id: id.clone(), cluster: cluster.unwrap_or_default(), ..Node::default() };
        Self { node, id }.with(&given)
    }

    /// One of many nodes with IDs `ID-NUMBER`.
    pub(crate) fn numbered(&self, number: usize) -> Self {
        self.clone().with(&Node { id: format!("{}-{number}", self.id), ..Node::default() })
    }

    /// Tells relays that the node only observes (see [`OBSERVER`]).
    #[must_use]
    pub(crate) fn observing(self) -> Self {
        self.with(&Node { client_features: vec![OBSERVER.to_owned()], ..Node::default() })
    }

    fn with(mut self, fields: &Node) -> Self {
        self.node.extend(fields.encode_to_vec());
        self
    }
}

impl Subscription {
    /// First delta request, with held versions. Only the first one of a stream needs a node.
    pub(super) fn delta(&self, node: Option<&Asker>, held: HashMap<String, String>) -> Bytes {
        let (resource_names_subscribe, resource_locators_subscribe) = self.located(false);
        let request = DeltaDiscoveryRequest {
            type_url: self.type_url.as_str().to_owned(),
            resource_names_subscribe,
            resource_locators_subscribe,
            initial_resource_versions: held,
            ..DeltaDiscoveryRequest::default()
        };
        with_node(request.encode_to_vec(), NODE_OF_DELTA, node)
    }

    /// State-of-the-world request: the first one, or the ACK of this version and nonce.
    pub(super) fn sotw(&self, node: Option<&Asker>, version: &str, nonce: &str) -> Bytes {
        let (resource_names, resource_locators) = self.located(true);
        let request = DiscoveryRequest {
            version_info: version.to_owned(),
            type_url: self.type_url.as_str().to_owned(),
            response_nonce: nonce.to_owned(),
            resource_names,
            resource_locators,
            ..DiscoveryRequest::default()
        };
        with_node(request.encode_to_vec(), NODE_OF_SOTW, node)
    }

    /// JSON poll, with the version of the last answer.
    pub(super) fn poll(&self, node: &Asker, version: &str) -> anyhow::Result<Json> {
        Ok(message_json("envoy.service.discovery.v3.DiscoveryRequest", &self.sotw(Some(node), version, ""))?)
    }

    /// Plain names, or with parameters locators only. A full list uses the legacy wildcard if the type has one: not
    /// every server knows the other (R-SotW-14).
    fn located(&self, is_full: bool) -> (Vec<String>, Vec<ResourceLocator>) {
        let is_plain = self.parameters.is_empty();
        let is_legacy = is_full && is_plain && self.type_url.kind().has_legacy_wildcard();
        let mut names: Vec<String> = self.names.iter().cloned().collect();
        if names.is_empty() && !is_legacy {
            names.push(Name::WILDCARD.to_owned());
        }
        if is_plain {
            return (names, Vec::new());
        }
        let parameters: HashMap<String, String> =
            self.parameters.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let locator = |name| ResourceLocator { name, dynamic_parameters: parameters.clone() };
        (Vec::new(), names.into_iter().map(locator).collect())
    }
}

fn with_node(request: Vec<u8>, number: u8, node: Option<&Asker>) -> Bytes {
    let mut out = BytesMut::from(&request[..]);
    wire::put_field(&mut out, number, node.map_or(&[], |node| &node.node));
    out.freeze()
}
