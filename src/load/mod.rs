//! Load generator: `deltafan load`, thousands of xDS clients against any server.
//!
//! Owns the clients, their pace, and the measures. The relay uses nothing of it.
//!
//! Propagation is measured within this process only, so that it needs nothing of the server: from the first client that is sent
//! a version to each other one. The time from the control plane to that first client is not in it.

mod fleet;
mod measures;
mod progress;
mod report;
mod run;
mod settings;

pub use report::{Format, Report};
pub use run::load;
pub use settings::Load;
