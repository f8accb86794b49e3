//! Source of a group's resources: a control plane, or a directory.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;

use crate::directory::Scan;
use crate::subscription::Upstream;
use crate::telemetry;
use crate::upstream::{Readiness, Servers, UpstreamState};

/// Source of resources, and its state.
#[derive(Clone, Debug)]
pub enum Origin {
    Server { state: watch::Receiver<UpstreamState>, servers: Arc<Servers> },
    Directory { state: watch::Receiver<Arc<Scan>> },
}

impl Origin {
    /// State of the control plane; `None` for a directory.
    pub fn state(&self) -> Option<UpstreamState> {
        match self {
            Self::Server { state, .. } => Some(state.borrow().clone()),
            Self::Directory { .. } => None,
        }
    }

    /// State as the group's sessions see it.
    pub fn upstream(&self) -> Upstream {
        match self {
            Self::Server { state, .. } => {
                let state = state.borrow();
                match (state.connected, state.answered) {
                    (false, _) => Upstream::Away,
                    (true, _) if state.origin_is_cut_off => Upstream::Away,
                    (true, false) => Upstream::Silent,
                    (true, true) => Upstream::Answering,
                }
            }
            Self::Directory { state } => {
                let state = state.borrow();
                match (state.is_whole, state.failures.is_empty()) {
                    (true, _) => Upstream::Answering,
                    (false, false) => Upstream::Unread,
                    (false, true) => Upstream::Away,
                }
            }
        }
    }

    /// Whether relays downstream may trust missing answers.
    pub fn vouches(&self, now: Instant) -> bool {
        match self {
            Self::Server { state, .. } => state.borrow().vouches(now),
            Self::Directory { state } => state.borrow().is_whole,
        }
    }

    /// Evaluates whether clients should come to a relay with this source.
    ///
    /// # Errors
    ///
    /// The reason why not.
    pub fn readiness(&self, readiness: &mut Readiness) -> Result<(), String> {
        match self {
            Self::Server { state, servers } => {
                readiness.look(&state.borrow(), servers.have_answered(), Instant::now())
            }
            Self::Directory { state } => {
                let state = state.borrow();
                let why = || match state.failures.first() {
                    Some(failure) => {
                        format!(
                            "a file of the directory cannot be read: {}: {}",
                            failure.file, failure.message
                        )
                    }
                    None => "the directory has not been read yet".to_owned(),
                };
                state.is_whole.then_some(()).ok_or_else(why)
            }
        }
    }

    /// Waits for a change.
    ///
    /// # Errors
    ///
    /// The task of the source has ended.
    pub async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        match self {
            Self::Server { state, .. } => state.changed().await,
            Self::Directory { state } => state.changed().await,
        }
    }

    pub fn is_idle(&self) -> bool {
        match self {
            Self::Server { state, .. } => {
                let state = state.borrow();
                state.connected && !state.answered && state.unanswered.count == 0
            }
            Self::Directory { .. } => false,
        }
    }

    /// Reports the source, with the events of all groups.
    pub fn report(&self, events: &[(&'static str, u64)]) {
        let now = Instant::now();
        match self {
            Self::Server { state, .. } => {
                let state = state.borrow().clone();
                telemetry::report_upstream(state.connected, Some(&state), events, now);
            }
            Self::Directory { state } => {
                let (is_read, failing) = (state.borrow().is_whole, state.borrow().failures.len());
                telemetry::report_upstream(is_read, None, &[], now);
                telemetry::set(telemetry::DIRECTORY_FAILURES, &[], failing as f64);
            }
        }
    }
}
