//! Content of a cache as records for a snapshot on disk, and records as content.
//!
//! Owns which records follow from a store, and what follows from records. Knows neither files nor clocks, and not how records
//! are kept: times come in as arguments, and a record is a name and bytes.
//!
//! Kept of a store: its resources with version, bytes, constraints and TTL, as members of the wildcard set or by name; aliases
//! with their resource; which collections were known; how much of the wildcard set was known. Not kept: bodies that may not be
//! (R-XT-09), resources that were denied (R-Err-06), Secrets unless asked for, and that something is absent. A relay that restarts
//! has a gap: a name that was absent may have come since, and a client may hold it. So nothing is absent after it, a wildcard set
//! is complete only when the control plane has confirmed it, and a collection has its members but no end.
//!
//! A name has one record. The wildcard's clients and those that ask by name see the member, if it is one: what was said of the
//! name itself is asked for again.
//!
//! Invariants: records follow from a snapshot and the time alone, so that a copy that has taken in every changed name is equal
//! to one that is made anew · what cannot be read is no content.

mod clock;
mod content;
mod record;
mod store_id;

pub use clock::Clock;
pub use content::{Content, StoreContent, wildcard_kept};
pub use record::{Kept, Record, RecordError, Selection, record_of};
pub use store_id::StoreId;

#[cfg(test)]
mod tests;
