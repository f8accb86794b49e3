//! Servers in their order of preference, shared by the clients of all node groups.
//!
//! Owns one link for each, so that only one of its users and probes dials a server. Knows neither streams nor
//! each client's choice.

use std::sync::Arc;

use super::link::{Link, Options};
use super::{FailoverTimes, ServerId};

/// Servers in their order of preference, and the times of a change.
#[derive(Debug)]
pub struct Servers {
    links: Vec<Arc<Link>>,
    times: FailoverTimes,
}

impl Servers {
    /// Creates the links to a server and its substitutes.
    ///
    /// With several, no wait between attempts exceeds `times.after`, so that a returned server is noticed in
    /// that time.
    pub fn new(first: Options, others: impl IntoIterator<Item = Options>, times: FailoverTimes) -> Self {
        let mut options = vec![first];
        options.extend(others);
        let is_choice = options.len() > 1;
        let link = |mut options: Options| {
            if is_choice {
                options.backoff = options.backoff.at_most(times.after);
            }
            Arc::new(Link::new(options))
        };
        Self { links: options.into_iter().map(link).collect(), times }
    }

    pub(super) fn count(&self) -> usize {
        self.links.len()
    }

    pub(super) const fn times(&self) -> FailoverTimes {
        self.times
    }

    /// Link to a server; the first one if there are fewer.
    pub(super) fn link(&self, server: usize) -> &Arc<Link> {
        self.links.get(server).unwrap_or(&self.links[0])
    }

    /// Identity of the first one if there are several.
    pub fn first(&self) -> Option<ServerId> {
        (self.count() > 1).then(|| self.links[0].server().clone())
    }

    /// Notes that an earlier process's resources are served.
    pub(super) fn restored(&self) {
        self.links.iter().for_each(|link| link.restored());
    }

    /// Whether any server has answered any client since the start.
    pub fn have_answered(&self) -> bool {
        self.links.iter().any(|link| link.has_answered())
    }

    pub fn connections(&self) -> usize {
        self.links.iter().map(|link| link.connections()).sum()
    }
}
