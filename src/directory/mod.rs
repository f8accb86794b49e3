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

use crate::descriptors::DescriptorError;
use crate::descriptors::text_formats::TextError;
use crate::resource::{ConstraintError, Constraints, EnvelopeError, Name, Resource};

const WRAPPER: &str = "envoy.service.discovery.v3.Resource";

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
    /// Whether some file's content was never known: missing resources may be in it.
    pub is_incomplete: bool,
}

/// Bytes that do not hold the expected message or resources.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    #[error("neither a binary DiscoveryResponse nor a binary google.protobuf.Any")]
    Unrecognized,
    #[error("cut short or damaged: the bytes are not a valid {0}")]
    Damaged(String),
    #[error(transparent)]
    Text(#[from] TextError),
    #[error(transparent)]
    Descriptor(#[from] DescriptorError),
    #[error("the type is {found:?}, but the DiscoveryResponse's type_url says {expected:?}")]
    TypeMismatch { found: String, expected: String },
    #[error("{0} has no name: every resource needs one")]
    Unnamed(String),
    #[error(
        "how a {0} is named is not known: wrap it in type.googleapis.com/envoy.service.discovery.v3.Resource, \
         whose `name` says it"
    )]
    NeedsWrapper(String),
    #[error("the {WRAPPER} {0:?} must hold exactly one `resource`, and not a {WRAPPER} again")]
    BadWrapper(String),
    #[error(transparent)]
    Envelope(#[from] EnvelopeError),
    #[error("the dynamic_parameter_constraints of {name:?} cannot be used: {source}")]
    Constraints { name: String, source: ConstraintError },
    #[error("{} {:?} is there twice{}", .0.type_url(), .0.name(), .0.constraints().map_or("", |_| " with the same constraints"))]
    Duplicate(Arc<Resource>),
    #[error("resources[{index}]: {source}")]
    In { index: usize, source: Box<Self> },
}

#[cfg(test)]
mod tests;
