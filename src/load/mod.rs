//! Load generator: `deltafan load`, thousands of xDS clients for any server.
//!
//! Owns the clients, their pace, and the measures. The relay does not use it.
//!
//! Propagation is measured in this process alone, so any server will do: from the first client that receives a version to each of the
//! others. The time from the control plane to the first client is not part of it.

mod fleet;
mod measures;
mod progress;
mod report;
mod run;
mod settings;

pub use report::Report;
pub use run::load;
pub use settings::Load;
