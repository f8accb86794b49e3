//! Resources: their type, name and version, and their bytes as they go to clients.
//!
//! Owns the parsing of `envoy.service.discovery.v3.Resource` and the two encodings of each version.
//! Knows nothing of subscriptions, caches or time.
//!
//! Invariant: the bytes of a resource's `Any` are never decoded and written again, so unknown
//! fields survive.

mod constraints;
mod encoded;
mod kind;
mod name;
mod pattern;
mod referenced_names;
mod sotw_element;
pub mod wire;

pub use constraints::{ConstraintError, Constraints, MAX_DEPTH, MAX_NODES, Parameters};
pub use encoded::{Envelope, EnvelopeError, Form, NameForm, Resource, VersionForm};
pub use kind::{CREDENTIAL_HEADERS, Kind, TypeUrl, UnknownKindError, shown_rejection};
pub use name::{
    Collection, Name, NameMap, NameSet, normal_form, parse_resource_name, resource_name, take_out,
    without_directives,
};
pub(crate) use name::{has_other_spellings, is_xdstp};
pub use pattern::{MAX_AUTOMATON, Pattern, PatternError, Patterns, Scope, Segments, whole_match};
pub use referenced_names::clusters_in_routes;
pub use sotw_element::SotwElement;
