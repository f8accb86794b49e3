//! Clients that are connected: who they are, and how far each has been told of what it asks for; the resources that they
//! ask for; and their node groups.
//!
//! Owns a record for each stream and each poll, filled by the connection's task at requests, sends and answers; the newest
//! rejections; the log lines about these; and the JSON in which operators see all of it. Decides nothing about xDS, and knows
//! no transport.
//!
//! Invariants:
//! - A look changes nothing: it reads records, wakes no stream and keeps nothing alive beyond its answer.
//! - A record holds names of its client and nothing that grows with a subscription; rejections are bounded in number and bytes.
//! - No lock is held while another client's is taken.

mod client_status;
mod config_dump;
mod groups;
mod history;
mod json_diff;
mod nacks;
mod node_matcher;
mod query;
mod recent_changes;
mod record;
mod registry;
mod rejection_log;
mod report;
mod resources;
mod spread;

pub use client_status::{ClientStatusError, client_status};
pub use config_dump::{DumpError, config_dump};
pub use groups::{groups, refusals, rules};
pub use history::{HistoryError, history};
pub use query::{QueryError, RefreshQuery, no_filters};
pub use record::PollRequest;
pub use registry::{Fleet, Registration};
pub use report::{ClientFigures, client, clients, figures, nacks};
pub use resources::resources;
pub use spread::{FollowedChange, Spread, spread};
