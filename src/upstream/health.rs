//! Health of a server, as gRPC's xDS clients see it (gRFC A57, A78), for metrics.
//!
//! A server is unhealthy after a connection that could not be made, or a stream that ended before any response, until it answers on
//! one. The streams of all node groups count together: while it answers on one of them, the end of another is no fault of the server.

use std::sync::Arc;

use parking_lot::Mutex;

use super::ReceivedUpdates;
use crate::telemetry::ServerMetrics;

/// Health of one server.
#[derive(Debug)]
pub(super) struct Health {
    state: Mutex<State>,
    metrics: ServerMetrics,
}

#[derive(Debug, Default)]
struct State {
    /// Primary streams that are open.
    open: usize,
    /// Those of them that have been answered.
    answered: usize,
    is_unhealthy: bool,
    is_connected: bool,
}

impl State {
    fn opened(&mut self) {
        self.open += 1;
        self.is_connected |= !self.is_unhealthy;
    }

    fn answered(&mut self) {
        self.answered += 1;
        (self.is_unhealthy, self.is_connected) = (false, true);
    }

    /// Returns whether that makes it unhealthy.
    fn failed(&mut self) -> bool {
        if self.answered > 0 {
            return false;
        }
        self.is_connected = false;
        !std::mem::replace(&mut self.is_unhealthy, true)
    }

    fn closed(&mut self, is_answered: bool) {
        self.open -= 1;
        self.answered -= usize::from(is_answered);
    }

    /// Another server is used.
    fn left(&mut self) {
        self.is_connected &= self.open > 0;
    }
}

impl Health {
    pub(super) fn new(uri: &str) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), metrics: ServerMetrics::of(uri) })
    }

    /// Notes that a primary stream is opened. It is closed when what is returned is dropped.
    pub(super) fn open(self: &Arc<Self>) -> WatchedStream {
        self.change(State::opened);
        WatchedStream { health: Arc::clone(self), is_answered: false }
    }

    /// Notes that a connection could not be made.
    pub(super) fn failed(&self) {
        if self.change(State::failed) {
            self.metrics.failed();
        }
    }

    /// Counts the resources of a response.
    pub(super) fn received(&self, updates: ReceivedUpdates) {
        self.metrics.received(updates);
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let before = state.is_connected;
        let result = change(&mut state);
        if state.is_connected != before {
            // With the state locked: of two changes the later one is reported last.
            self.metrics.report_connected(state.is_connected);
        }
        result
    }
}

/// A primary stream, for as long as it is open.
#[derive(Debug)]
pub(super) struct WatchedStream {
    health: Arc<Health>,
    is_answered: bool,
}

impl WatchedStream {
    /// Notes a response.
    pub(super) fn answered(&mut self) {
        if !std::mem::replace(&mut self.is_answered, true) {
            self.health.change(State::answered);
        }
    }

    /// Notes an end for which the server is to blame.
    pub(super) fn failed(self) {
        let health = Arc::clone(&self.health);
        drop(self);
        health.failed();
    }

    /// Notes that another server is used from here on.
    pub(super) fn left(self) {
        let health = Arc::clone(&self.health);
        drop(self);
        health.change(State::left);
    }
}

impl Drop for WatchedStream {
    fn drop(&mut self) {
        self.health.change(|state| state.closed(self.is_answered));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_healthy_until_it_fails_and_again_once_it_answers() {
        let mut state = State::default();
        state.opened();
        assert!(state.is_connected, "before any response");
        state.answered();
        state.closed(true);
        assert!(state.is_connected, "a stream that was answered may end");
        assert!(state.failed() && !state.failed(), "the next connection could not be made");
        assert!(!state.is_connected);
        state.opened();
        assert!(!state.is_connected, "nothing has come on the new stream");
        state.answered();
        assert!(state.is_connected);
    }

    #[test]
    fn while_one_stream_is_answered_the_end_of_another_is_no_failure() {
        let mut state = State::default();
        state.opened();
        state.answered();
        state.opened();
        state.closed(false);
        assert!(!state.failed() && state.is_connected);
        state.closed(true);
        state.left();
        assert!(!state.is_connected && !state.is_unhealthy, "it is not used any more");
        state.opened();
        assert!(state.is_connected);
    }
}
