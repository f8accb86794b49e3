//! The filesystem subscription: a directory whose files hold the resources that a control plane would send.
//!
//! Owns reading, watching and merging the files into one state. Knows descriptors and the resource types of the
//! protocol, and nothing else of the relay: the caller decides what to do with the resources.
//!
//! Invariants: every [`Scan`] is the whole effective state · a file that turns bad keeps what it last held, until
//! it is good again or deleted · which of two files wins does not depend on the order of events · the bytes of a
//! binary resource are kept as they came, and those made from a readable form are the same on every reading · the
//! version of a resource is a hash of its content.

mod canonical_encoding;
mod directory_watch;
mod document_fault;
mod file_decoder;
mod file_document;
mod resource_files;
mod text_formats;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use bytes::Bytes;

pub use directory_watch::Directory;

/// Identity of a resource in a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceKey {
    pub type_url: String,
    pub name: String,
    /// The encoding of the `DynamicParameterConstraints` of a variant; empty without.
    pub constraints: Vec<u8>,
}

/// One resource of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileResource {
    pub key: ResourceKey,
    /// A hash of the resource's content; also the version inside `wrapper`.
    pub version: String,
    /// The encoding of an `envoy.service.discovery.v3.Resource`.
    pub wrapper: Bytes,
}

/// Fault of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileFailure {
    /// The file's name within the directory, or the directory's path when it cannot be read itself.
    pub file: String,
    pub message: String,
}

/// The whole effective state of a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scan {
    /// In the order of type URLs and names.
    pub resources: BTreeMap<ResourceKey, FileResource>,
    /// In the order of file names.
    pub failures: Vec<FileFailure>,
    /// Whether the content of some file has never been known: resources that are not here may be in it.
    pub is_incomplete: bool,
}

/// Why a directory cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    #[error("{} does not exist: create the directory, or correct upstream.directory", .0.display())]
    Missing(PathBuf),
    #[error("{} is not a directory: upstream.directory takes a directory of resource files", .0.display())]
    NotADirectory(PathBuf),
    #[error("cannot read directory {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("cannot start the thread that watches {}: {source}", path.display())]
    NoThread { path: PathBuf, source: std::io::Error },
}

/// Text that does not hold the message that is looked for.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct MessageError(#[from] file_document::DecodeError);

/// The encoding of the `envoy.config.core.v3.Node` in a file: by itself, or the `node` of a whole bootstrap. JSON where
/// the file's name ends so, YAML elsewhere.
///
/// # Errors
///
/// [`MessageError`] if the bytes are neither JSON nor YAML, or hold no node.
pub fn read_node(file: &Path, bytes: &[u8]) -> Result<Vec<u8>, MessageError> {
    let format = file_document::Format::of(file).unwrap_or(file_document::Format::Yaml);
    Ok(text_formats::node(format, bytes)?)
}

/// An encoded `envoy.config.core.v3.Node` as JSON.
///
/// # Errors
///
/// [`MessageError`] if the bytes are no such message.
pub fn node_json(encoded: &[u8]) -> Result<serde_json::Value, MessageError> {
    Ok(text_formats::node_json(encoded)?)
}

/// A DiscoveryResponse in proto3 JSON in its binary form; equal texts give equal bytes. Fields without a descriptor are left out.
///
/// # Errors
///
/// [`MessageError`] if the bytes are no such JSON, or hold a type without a descriptor.
pub fn read_response(json: &[u8]) -> Result<Vec<u8>, MessageError> {
    Ok(text_formats::response(json)?)
}

#[cfg(test)]
mod tests;
