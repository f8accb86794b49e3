//! Servers in their order of preference, shared by the clients of all node groups.
//!
//! Owns one link for each, so that a server is dialled by one of all that wait for it, whether they use it or probe it. Knows neither
//! streams nor which server a client uses: each client decides that for itself.

use std::sync::Arc;

use super::link::{Link, Options};
use super::{FailoverTimes, ServerId};

/// Servers in their order of preference, and the times of a change between them.
#[derive(Debug)]
pub struct Servers {
    links: Vec<Arc<Link>>,
    times: FailoverTimes,
}

impl Servers {
    /// Creates the links to a server, and to others that take its place when it does not answer.
    ///
    /// If there are several, no wait between two attempts to connect to one is longer than `times.after`: a server that is back is
    /// noticed in that time.
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

    /// Creates the link to the only server.
    pub fn only(options: Options) -> Self {
        Self::new(options, [], FailoverTimes::default())
    }

    /// Number of servers.
    pub(super) fn count(&self) -> usize {
        self.links.len()
    }

    pub(super) const fn times(&self) -> FailoverTimes {
        self.times
    }

    /// Link to a server; that to the first one if there are fewer.
    pub(super) fn link(&self, server: usize) -> &Arc<Link> {
        self.links.get(server).unwrap_or(&self.links[0])
    }

    /// Identity of the first one if there are several.
    pub fn first(&self) -> Option<ServerId> {
        (self.count() > 1).then(|| self.links[0].server().clone())
    }

    /// Notes that resources of an earlier process are served.
    pub(super) fn restored(&self) {
        self.links.iter().for_each(|link| link.restored());
    }

    /// Whether any of them has answered the client of any node group since the start.
    pub fn have_answered(&self) -> bool {
        self.links.iter().any(|link| link.has_answered())
    }

    /// Number of connections that stand.
    pub fn connections(&self) -> usize {
        self.links.iter().map(|link| link.connections()).sum()
    }
}
