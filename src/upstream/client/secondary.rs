//! Second stream of a connection: when it is opened, closed and retried.

use std::time::Instant;

use super::super::connection::{OpenStream, Server};
use super::super::link::{Line, Link};
use super::super::wait::now;
use super::super::{Backoff, Mux, StreamId};
use super::ended::in_words;
use crate::cache::Protocol;

/// Secondary stream, open only while it has subscriptions.
pub(super) struct Secondary {
    server: Server,
    pub(super) protocol: Protocol,
    pub(super) open: Option<OpenStream>,
    /// Whether a useful response came on it.
    pub(super) answered: bool,
    backoff: Backoff,
    retry_at: Option<Instant>,
}

impl Secondary {
    pub(super) fn new(server: Server, protocol: Protocol, mut backoff: Backoff) -> Self {
        backoff.reset();
        Self { server, protocol, open: None, answered: false, backoff, retry_at: None }
    }

    /// Opens or closes it as `mux` needs it.
    pub(super) fn adjust(&mut self, mux: &mut Mux, now: Instant) {
        match (mux.wants_secondary(), self.open.is_some()) {
            (true, false) if self.retry_at.is_none_or(|at| at <= now) => {
                self.answered = false;
                self.open = Some(OpenStream::on(&self.server, self.protocol));
                mux.opened(StreamId::Secondary, now);
            }
            (false, true) => {
                self.open = None;
                mux.closed(StreamId::Secondary);
            }
            _ => {}
        }
    }

    /// Returns the time of the next attempt while it should be open and is not.
    pub(super) fn retry_at(&self, mux: &Mux) -> Option<Instant> {
        self.retry_at.filter(|_| self.open.is_none() && mux.wants_secondary())
    }

    /// Notes that the server ended it. The primary lives on: a server may not accept two streams.
    pub(super) fn lost(&mut self, mux: &mut Mux, link: &Link, group: Option<&str>, error: &str) {
        self.open = None;
        mux.closed(StreamId::Secondary);
        if self.answered {
            self.backoff.reset();
        }
        let wait = self.backoff.next(&mut rand::rng());
        self.retry_at = Some(now() + wait);
        if let Some(suppressed) = link.say(Line::Secondary) {
            tracing::warn!(
                group,
                error,
                retry_in = in_words(wait),
                suppressed,
                "the second stream to the control plane ended; types with both a wildcard and names wait for it"
            );
        }
    }
}
