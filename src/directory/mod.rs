//! Filesystem subscription: a directory of files with the resources that a control plane would send.
//!
//! Owns reading, watching and merging the files. Knows descriptors and resource types; the caller decides the
//! use of the resources.
//!
//! Invariants:
//! - Every [`Scan`] is the whole effective state.
//! - A file that becomes bad keeps its last content until it is good again or deleted.
//! - Precedence between files does not depend on the order of events.
//! - Binary resources keep their bytes; those made from text are equal on every reading.
//! - The version of a resource is a hash of its content.

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
    /// Encoded `DynamicParameterConstraints` of a variant; empty without.
    pub constraints: Vec<u8>,
}

/// One resource of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileResource {
    pub key: ResourceKey,
    /// Hash of the content; also the version inside `wrapper`.
    pub version: String,
    /// Encoded `envoy.service.discovery.v3.Resource`.
    pub wrapper: Bytes,
}

/// Fault of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileFailure {
    /// Name within the directory, or the path of an unreadable directory.
    pub file: String,
    pub message: String,
}

/// Whole effective state of a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scan {
    /// By type URL and name.
    pub resources: BTreeMap<ResourceKey, FileResource>,
    /// By file name.
    pub failures: Vec<FileFailure>,
    /// Whether some file's content was never known: missing resources may be in it.
    pub is_incomplete: bool,
}

/// Reason for which a directory cannot be used at all.
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

/// Text that does not hold the expected message.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct MessageError(#[from] file_document::DecodeError);

/// Reads an encoded `envoy.config.core.v3.Node` from a file that is a node or a bootstrap with one. The
/// extension decides between JSON and YAML, which is the default.
///
/// # Errors
///
/// [`MessageError`] if the bytes are neither JSON nor YAML, or hold no node.
pub fn read_node(file: &Path, bytes: &[u8]) -> Result<Vec<u8>, MessageError> {
    let format = file_document::Format::of(file).unwrap_or(file_document::Format::Yaml);
    Ok(text_formats::node(format, bytes)?)
}

/// Encoded `envoy.config.core.v3.Node` as JSON.
///
/// # Errors
///
/// [`MessageError`] if the bytes are no such message.
pub fn node_json(encoded: &[u8]) -> Result<serde_json::Value, MessageError> {
    Ok(text_formats::node_json(encoded)?)
}

/// Encodes a DiscoveryResponse from proto3 JSON; equal texts give equal bytes. Omits fields without a
/// descriptor.
///
/// # Errors
///
/// [`MessageError`] if the bytes are no such JSON, or hold a type without a descriptor.
pub fn read_response(json: &[u8]) -> Result<Vec<u8>, MessageError> {
    Ok(text_formats::response(json)?)
}

#[cfg(test)]
mod tests;
