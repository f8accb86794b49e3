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

mod file_decoder;
mod resource_files;

use std::sync::Arc;

pub use resource_files::{Directory, scan};

use crate::resource::{Constraints, Name, Resource};

/// Identity of a resource in a directory.
type ResourceKey<'a> = (&'a str, &'a Name, Option<&'a Constraints>);

fn key(resource: &Resource) -> ResourceKey<'_> {
    (resource.type_url(), resource.name(), resource.constraints())
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
    /// In the order of their types, names and constraints.
    pub resources: Vec<Arc<Resource>>,
    /// By file name.
    pub failures: Vec<FileFailure>,
    /// Whether each file was read at least once. Until then missing resources may be in another one.
    pub is_whole: bool,
}

#[cfg(test)]
mod tests;
