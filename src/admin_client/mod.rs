//! The admin address of a relay for people: `deltafan clients`, `nacks`, `resources`, `history` and `status`.
//!
//! Owns the requests to it, the pages put together, and the tables. Reads the JSON as any script would: it knows nothing of
//! the relay's own types, and says "-" where an older relay does not have a field.

mod admin_connection;
mod answer_tables;
mod listing;
mod prometheus_text;
mod status_checks;
mod status_command;
mod status_facts;

pub use admin_connection::{AdminAddress, AdminClient};
pub use answer_tables::show;
pub use listing::{Filters, Listing, Report, client, history, list};
pub use status_command::{Status, status};
