//! The admin address of a relay for people: `deltafan clients`, `nacks`, `resources`, `history` and `status`.
//!
//! Owns the requests to it, the pages put together, and the tables. Reads the JSON as any script would: it knows nothing of
//! the relay's own types, and says "-" where an older relay does not have a field.

mod checks;
mod facts;
mod http;
mod listing;
mod metrics;
mod show;
mod status;

pub use http::{AdminAddress, AdminClient};
pub use listing::{Filters, Listing, Report, client, history, list};
pub use show::show;
pub use status::{Status, status};
