//! A relay's admin address for people: `deltafan clients`, `nacks`, `resources`, `history` and `status`.
//!
//! Owns requests, joined pages and tables. Reads JSON like any script: knows no type of the relay, and prints
//! "-" for fields that older relays lack.

mod admin_connection;
mod answer_tables;
mod listing;
mod prometheus_text;
mod status_checks;
mod status_command;

pub use admin_connection::{AdminAddress, AdminClient};
pub use answer_tables::show;
pub use listing::{Asked, Filters, Listing, Report, ask};
pub use status_command::{Status, status};
