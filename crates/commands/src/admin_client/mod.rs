//! Relays' admin addresses for people: reports such as `deltafan clients` and `status`, and orders.
//!
//! Owns requests, joined pages and tables, of one relay or of several at once. Reads JSON like any script: knows no type of
//! the relay, and prints "-" for missing fields.

mod admin_connection;
mod answer_tables;
mod listing;
mod relays;

pub(crate) use admin_connection::AdminAddress;
pub(crate) use answer_tables::snapshot;
pub(crate) use listing::{Asked, Filters};
pub(crate) use relays::Answers;
