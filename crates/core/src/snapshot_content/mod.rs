//! Content of a cache as records for a snapshot on disk, and records as content.
//!
//! Owns which records follow from a store, and what follows from records. Knows neither files nor
//! clocks: times are arguments.
//!
//! Kept:
//! - resources with version, bytes, constraints and TTL, as wildcard members or by name;
//! - aliases with their resource, known collections, and the completeness of the wildcard set.
//!
//! Not kept: bodies that must not be (R-XT-09), denied resources (R-Err-06), Secrets by default,
//! and absence. A restart leaves a gap: an absent name may have come since, and a client may hold
//! it. So nothing is absent after a restart, a wildcard set is complete only once the control plane
//! confirms it, and a collection has members but no end.
//!
//! A name has one record. For a wildcard member it is the member; the answer to the name itself is
//! requested again.
//!
//! Invariant: records depend only on a snapshot and the time, so that an updated copy equals a new
//! one.

mod store_content;
mod store_record;

pub use store_content::{Content, StoreContent, wildcard_kept};
pub use store_record::{Clock, Kept, Record, Selection, StoreId, record_of};

#[cfg(test)]
mod tests;
