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

mod admin_query;
mod change_spread;
mod clients_report;
mod config_dump;
mod csds_response;
mod earlier_states;
mod groups_report;
mod json_diff;
mod nacks;
mod registry;
mod rejection_log;
mod resource_history;
mod resources_report;
mod view;

pub use admin_query::{LookError, Query, clip};
pub use change_spread::{FollowedChange, Spread, spread};
pub use clients_report::{client, clients, nacks, report_clients};
pub use config_dump::config_dump;
pub use csds_response::client_status;
pub use earlier_states::{GroupStates, earlier_states};
pub use groups_report::{groups, refusals, rollouts, rollouts_of, rules};
pub use registry::{Fleet, PollRequest, Registration};
pub use resource_history::history;
pub use resources_report::resources;
pub use view::seconds;
