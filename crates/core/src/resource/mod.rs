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
mod parameters;
mod pattern;
mod rejection_text;
mod route_clusters;
mod scope;
mod sotw_element;
pub mod wire;
mod xdstp;

pub use constraints::{ConstraintError, Constraints, MAX_DEPTH, MAX_NODES};
pub use encoded::{Envelope, EnvelopeError, Form, NameForm, Resource, VersionForm};
pub use kind::{Kind, TypeUrl, UnknownKindError};
pub use name::{Name, NameMap, NameSet, parse_resource_name, resource_name, take_out};
pub use parameters::Parameters;
pub use pattern::{MAX_AUTOMATON, Pattern, PatternError, Patterns, Segments, whole_match};
pub use rejection_text::{CREDENTIAL_HEADERS, shown_rejection};
pub use route_clusters::clusters_in_routes;
pub use scope::Scope;
pub use sotw_element::SotwElement;
pub use xdstp::{Collection, normal_form, without_directives};
pub(crate) use xdstp::{has_other_spellings, is_xdstp};
