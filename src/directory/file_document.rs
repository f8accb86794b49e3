//! Documents in files: their format, their binary form, and decoding errors.

use std::ffi::OsStr;
use std::path::Path;

use super::ResourceKey;
use crate::descriptors::DescriptorError;

pub(super) const DISCOVERY_RESPONSE: &str = "envoy.service.discovery.v3.DiscoveryResponse";
pub(super) const WRAPPER: &str = "envoy.service.discovery.v3.Resource";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Binary,
    Json,
    Yaml,
    Text,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Document {
    Response(Vec<u8>),
    Any(Vec<u8>),
}

#[derive(Debug, thiserror::Error)]
pub(super) enum DecodeError {
    #[error("the file is empty: expected a DiscoveryResponse or one google.protobuf.Any")]
    Empty,
    #[error("neither a binary DiscoveryResponse nor a binary google.protobuf.Any")]
    Unrecognized,
    #[error("cut short or damaged: the bytes are not a valid {0}")]
    Damaged(String),
    #[error("{0}")]
    Syntax(String),
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
    #[error("{} {:?} is there twice{}", .0.type_url, .0.name, if .0.constraints.is_empty() { "" } else { " with the same constraints" })]
    Duplicate(ResourceKey),
    #[error("resources[{index}]: {source}")]
    In { index: usize, source: Box<Self> },
}

impl Format {
    /// Returns the format by the extension; `None` for other files.
    pub(super) fn of(file: &Path) -> Option<Self> {
        match file.extension().and_then(OsStr::to_str)? {
            "pb" | "binpb" => Some(Self::Binary),
            "json" => Some(Self::Json),
            "yaml" | "yml" => Some(Self::Yaml),
            "pb_text" | "textproto" | "txtpb" => Some(Self::Text),
            _ => None,
        }
    }
}
