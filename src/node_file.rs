//! Node file of `check --node` and `get --node`.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use prost::Message as _;

use crate::descriptors::text_formats::read_node;
use crate::proto::Node;
use crate::terminal::printable;

/// Any full bootstrap is far smaller.
const MAX_BYTES: u64 = 16 << 20;

#[derive(Debug)]
pub struct NodeFile {
    pub node: Node,
    pub encoded: Vec<u8>,
}

/// Reads a Node of xDS, or the bootstrap of Envoy or gRPC. An error names the file.
///
/// # Errors
///
/// File that cannot be read, is larger than 16 MiB, or holds no node.
pub fn read(path: &Path) -> anyhow::Result<NodeFile> {
    let read_file = || {
        let mut bytes = Vec::new();
        let file = File::open(path).context("cannot be read")?;
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes).context("cannot be read")?;
        if bytes.len() as u64 > MAX_BYTES {
            bail!("is larger than {MAX_BYTES} bytes");
        }
        let encoded = read_node(path, &bytes)?;
        let node = Node::decode(&encoded[..]).context("is a node that no request could carry")?;
        Ok(NodeFile { node, encoded })
    };
    read_file().map_err(|error: anyhow::Error| {
        let problem = printable(&format!("{}: {error:#}", path.display()));
        anyhow::Error::msg(problem)
    })
}
