//! Pieces that several scenarios share.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use deltafan::cache::{Cache, Entry, HeldTotals, Named, Protocol, Snapshot, VisibleState};
use deltafan::subscription::{Session, SessionConfig};

use deltafan_test_support::wire::{message, put, type_url};

/// Messages on their way, which arrive in order.
#[derive(Debug)]
pub(crate) struct Pipe<T>(VecDeque<(Instant, T)>);

impl<T> Default for Pipe<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Pipe<T> {
    /// Sends a message, which arrives at this moment or after the one before.
    pub(crate) fn send(&mut self, message: T, due: Instant) {
        let due = self.0.back().map_or(due, |(last, _)| due.max(*last));
        self.0.push_back((due, message));
    }

    /// When the first message arrives.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.front().map(|(at, _)| *at)
    }

    /// Takes the first message, if it has arrived by now.
    pub(crate) fn take(&mut self, now: Instant) -> Option<T> {
        self.0.pop_front_if(|(at, _)| *at <= now).map(|(_, message)| message)
    }
}

/// A new stream of a client; with `only` it is a per-type stream.
pub(crate) fn session(
    cache: &Arc<Cache>,
    rules: &Arc<SessionConfig>,
    protocol: Protocol,
    only: Option<&str>,
    now: Instant,
) -> Session {
    Session::new(Arc::clone(cache), Arc::clone(rules), protocol, only.map(type_url), now)
}

/// Body of a resource, as an `Any`, that says its name and `text`. Clusters named `eds…` ask EDS for endpoints of their own name.
pub(crate) fn any(short: &str, name: &str, text: &str) -> BytesMut {
    let mut value = message(name, text);
    if short == "cds" && name.starts_with("eds") {
        value.extend_from_slice(&[0x10, 3]);
    }
    let mut any = BytesMut::new();
    put(&mut any, 1, type_url(short).as_str().as_bytes());
    put(&mut any, 2, &value);
    any
}

/// Adds names to a subscription, `*` as its wildcard (R-Delta-03).
pub(crate) fn subscribe(wildcard: &mut bool, names: &mut BTreeSet<String>, add: &[String]) {
    for name in add {
        if name == "*" {
            *wildcard = true;
        } else {
            names.insert(name.clone());
        }
    }
}

/// The totals of a store are those of its entries.
pub(crate) fn check_totals(snapshot: &Snapshot) {
    let held = |entry: &Entry| match (entry.as_member(), entry.named()) {
        (VisibleState::Present(resource), _) | (_, Named::Present(resource)) => {
            Some(HeldTotals { resources: 1, bytes: resource.delta_entry().len(), digest: resource.digest() })
        }
        _ => None,
    };
    let sum = snapshot.entries().filter_map(held).fold(HeldTotals::default(), HeldTotals::plus);
    assert_eq!(snapshot.held_in_all(), sum);
}
