//! Connected clients and their progress, the resources they ask for, and their node groups.
//!
//! Owns a record for each stream and poll, filled by the connection's task at requests, sends and answers.
//! Also owns the newest rejections, their log lines, and the JSON of all that for operators. Decides nothing
//! about xDS, and knows no transport.
//!
//! Invariants:
//! - A look changes nothing: it reads records, wakes no stream and keeps nothing alive beyond its answer.
//! - A record holds names of its client and nothing that grows with a subscription; rejections are bounded in
//!   number and bytes.
//! - No lock is held while another client's is taken.

mod clients_report;
mod config_dump;
mod groups_report;
mod json_diff;
mod nacks;
mod registry;
mod resource_history;
mod resources_report;
mod view;

pub use clients_report::{ClientFigures, KindFigures, SharedIds};
pub use groups_report::{of_order, refusals, rollouts_of};
pub use registry::{Fleet, PollRequest, Registration};
pub use resource_history::{GroupStates, earlier_states};
pub use view::{Document, LookError, Query, View, clip, document, seconds};
