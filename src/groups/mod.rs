//! Running node groups: the group of each client, and the content of each group.
//!
//! Owns a cache and a control plane client per group, on one link. The group of the relay's own node always
//! exists; clients create others by the rules of `groups`. [`GroupRules`] place clients and [`GroupTable`]
//! ends groups; this module starts and stops them. Knows no transport of clients.
//!
//! Invariants:
//! - A client is in one group for the whole of its stream or request, and the group outlives it.
//! - All groups share one cache budget, and one bound for lingering names.
//! - A created group counts against the share of the client's peer.

mod origin;
mod rule_figures;
mod running_group;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

pub use origin::Origin;
pub use rule_figures::RuleFigures;
pub use running_group::{Events, Group, ShownNode, Starter, spawn_essential};

use crate::group_table::GroupTable;
use crate::identity::Certificate;
use crate::node_group::{GroupKey, GroupRules};
use crate::pool::Tenant;
use crate::proto::Node;
use crate::snapshot::LiveGroup;
use crate::subscription::SessionError;
use crate::upstream::{Counters, Stay, Tuned, sleep_until};
use running_group::visitor;

/// Client that enters a group.
#[derive(Clone, Copy, Debug)]
pub struct Newcomer<'a> {
    /// Node of its first request.
    pub node: &'a Node,
    /// Its proven certificate.
    pub certificate: Option<&'a Certificate>,
    /// Tenant that is charged for a new group.
    pub tenant: Option<&'a Tenant>,
    /// Stream, or single answer.
    pub stay: Stay,
}

/// All node groups of a relay.
#[derive(Debug)]
pub struct Groups {
    rules: GroupRules,
    own: Arc<Group>,
    table: Mutex<GroupTable<GroupKey, Arc<Group>>>,
    max: usize,
    linger: Duration,
    /// `None` for a directory, which sees no node: all clients share one group.
    starter: Option<Starter>,
    tuner: watch::Sender<Tuned>,
    /// Notified when a group has a time of release.
    released: Notify,
    /// Events of released groups.
    past: Mutex<Events>,
}

impl Groups {
    /// Creates the groups; only the own one runs. Others are released after `linger` without use.
    pub fn new(
        rules: GroupRules,
        own: Arc<Group>,
        starter: Option<Starter>,
        max: usize,
        linger: Duration,
        tuner: watch::Sender<Tuned>,
    ) -> Arc<Self> {
        Arc::new(Self {
            rules,
            own,
            table: Mutex::default(),
            max,
            linger,
            starter,
            tuner,
            released: Notify::new(),
            past: Mutex::new(Counters::default().all()),
        })
    }

    /// Whether all clients share the own group, whatever their nodes.
    pub fn is_trivial(&self) -> bool {
        self.rules.is_trivial()
    }

    /// Source of the own group.
    pub fn origin(&self) -> &Origin {
        self.own.origin()
    }

    /// Takes a place in the own group, where a stream is until its first request.
    pub fn own(&self) -> GroupSeat {
        GroupSeat { group: Arc::clone(&self.own), visit: None }
    }

    /// Takes a place in the client's group, created if missing. `raw` is the node as sent.
    ///
    /// # Errors
    ///
    /// [`SessionError`] if no group takes the client, no further group is allowed, or its node is too long to
    /// be lent.
    pub fn enter(
        self: &Arc<Self>,
        newcomer: Newcomer<'_>,
        raw: impl FnOnce() -> Bytes,
    ) -> Result<GroupSeat, SessionError> {
        let Some(place) = self.rules.place(newcomer.node, newcomer.certificate)? else {
            return Ok(self.own());
        };
        let Some(starter) = &self.starter else { return Ok(self.own()) };
        let visitor = visitor(self.rules.rule(&place).lends(), newcomer.stay, raw)?;
        let (group, number) = {
            let mut table = self.table.lock();
            let make = || starter.start(&place.key, self.rules.node(&place));
            let group = Arc::clone(table.join(&place.key, newcomer.tenant, self.max, make)?);
            // With the table locked: a new group begins only once it has a client.
            let number = match group.arrive(visitor, newcomer.tenant) {
                Ok(number) => number,
                Err(full) => {
                    table.leave(&place.key, Instant::now());
                    self.released.notify_one();
                    return Err(full);
                }
            };
            group.begin();
            (group, number)
        };
        let visit = Some(Visit { groups: Arc::clone(self), key: place.key, number });
        Ok(GroupSeat { group, visit })
    }

    /// Releases unused groups while polled. While the control plane is away, a group with content stays for
    /// returning clients (R-Relay-06).
    pub async fn release_unused(&self) {
        loop {
            let next = self.table.lock().next_release();
            tokio::select! {
                () = sleep_until(next) => {}
                () = self.released.notified() => continue,
            }
            loop {
                let mut table = self.table.lock();
                let now = Instant::now();
                let later = now + self.linger;
                let Some((key, group)) = table.release_unless(now, later, |group| group.is_irreplaceable())
                else {
                    break;
                };
                // With the table locked, so that no sum of events misses the group.
                if let Some(events) = group.events() {
                    add(&mut self.past.lock(), &events);
                }
                drop(table);
                tracing::debug!(group = %key, "releasing a node group that nobody uses");
                group.stop();
            }
        }
    }

    /// Applies changed settings to all groups, present and future.
    pub fn tune(&self, tuned: Tuned) {
        self.tuner.send_replace(tuned);
    }

    /// All groups, the own one first.
    pub fn all(&self) -> Vec<Arc<Group>> {
        let table = self.table.lock();
        std::iter::once(&self.own).chain(table.iter().map(|(_, group, _)| group)).cloned().collect()
    }

    /// All groups, or the one with this key; an empty key is the own.
    pub fn chosen(&self, only: Option<&str>) -> Vec<(Option<String>, Arc<Group>)> {
        let made = self.made().into_iter().map(|(key, group, _)| (Some(key.to_string()), group));
        let all = std::iter::once((None, Arc::clone(&self.own))).chain(made);
        all.filter(|(key, _)| only.is_none_or(|only| only == key.as_deref().unwrap_or_default())).collect()
    }

    /// Groups that clients made, with the number of clients in each, in no order.
    pub fn made(&self) -> Vec<(GroupKey, Arc<Group>, usize)> {
        let table = self.table.lock();
        table.iter().map(|(key, group, clients)| (key.clone(), Arc::clone(group), clients)).collect()
    }

    /// Groups for the snapshot.
    pub fn live(&self, now: Instant) -> Vec<LiveGroup> {
        self.all().iter().filter_map(|group| group.live(now)).collect()
    }

    /// Upstream events of all groups, including released ones.
    pub fn events(&self) -> Events {
        let table = self.table.lock();
        let mut sum = *self.past.lock();
        let all = std::iter::once(&self.own).chain(table.iter().map(|(_, group, _)| group));
        all.filter_map(|group| group.events()).for_each(|events| add(&mut sum, &events));
        sum
    }

    /// Figures of every rule, even without groups.
    pub fn figures(&self, now: Instant) -> Vec<RuleFigures> {
        let none = |rule: &Arc<str>| RuleFigures { rule: rule.to_string(), ..RuleFigures::default() };
        let mut all: Vec<_> = self.rules.names().map(none).collect();
        let table = self.table.lock();
        for (key, group, clients) in table.iter() {
            let Some(figures) = all.iter_mut().find(|of| of.rule == *key.rule()) else { continue };
            figures.groups += 1;
            figures.clients += clients;
            group.count(figures, now);
        }
        all
    }

    /// Number of connections to the control plane; `None` for a directory.
    pub fn connections(&self) -> Option<usize> {
        self.starter.as_ref().map(Starter::connections)
    }
}

fn add(sum: &mut Events, more: &Events) {
    sum.iter_mut().zip(more).for_each(|((_, sum), (_, more))| *sum += more);
}

/// Place of a client in its group. The client leaves on drop.
#[derive(Debug)]
pub struct GroupSeat {
    group: Arc<Group>,
    /// `None` in the own group, which always exists.
    visit: Option<Visit>,
}

#[derive(Debug)]
struct Visit {
    groups: Arc<Groups>,
    key: GroupKey,
    number: Option<u64>,
}

impl GroupSeat {
    /// Key of the group; `None` in the own group.
    pub fn key(&self) -> Option<&GroupKey> {
        self.visit.as_ref().map(|visit| &visit.key)
    }

    /// The group.
    pub const fn group(&self) -> &Arc<Group> {
        &self.group
    }
}

impl Drop for GroupSeat {
    fn drop(&mut self) {
        let Some(Visit { groups, key, number }) = self.visit.take() else { return };
        self.group.leave(number);
        groups.table.lock().leave(&key, Instant::now() + groups.linger);
        groups.released.notify_one();
    }
}
