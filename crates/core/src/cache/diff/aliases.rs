//! Updates about resources that clients see through aliases (R-Relay-20).

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::HashSet;

use super::super::Generation;
use super::super::entry::{Entry, Named, VisibleState};
use super::super::subscription::VisibleEntry;
use super::super::update::Update;
use super::Diff;
use crate::resource::Name;
impl Diff<'_> {
    pub(super) fn is_seen_by_alias(&self, own: &Name) -> bool {
        self.snapshot.is_seen_by_alias(self.subscription, own.as_str())
    }

    /// Whether the client sees it under any name.
    pub(super) fn is_seen(&self, own: &Name) -> bool {
        self.snapshot.is_seen_by_itself(self.subscription, own.as_str()) || self.is_seen_by_alias(own)
    }

    /// Adds resources that the client held through this alias and sees no longer. Returns whether there were
    /// any.
    pub(super) fn lost_through(
        &self,
        entry: &Entry,
        visible: &VisibleEntry<'_>,
        lost: &mut BTreeMap<Name, Generation>,
    ) -> bool {
        let Named::Alias(alias) = entry.named() else { return false };
        if self.position.is_start() || !self.subscription.contains(entry.name().as_str()) {
            return false;
        }
        // An alias of nothing is never sent as a removal (R-Delta-22).
        let is_answer =
            |name: &Name| matches!(visible.state, VisibleState::Unresolved(answer) if answer.name() == name);
        let mut stood_for = false;
        let reach = self.position.reach();
        for past in alias.past.iter().filter(|past| reach.is_none_or(|reach| past.until <= reach)) {
            if past.until > self.position.removed
                && past.since <= self.position.newest_state
                && !is_answer(&past.name)
            {
                stood_for = true;
                if !self.is_seen(&past.name) {
                    let until = lost.entry(past.name.clone()).or_default();
                    *until = past.until.max(*until);
                }
            }
        }
        stood_for
    }

    /// Answers for a name unsubscribed beside a wildcard (R-Delta-09): the alias's resource may be a member.
    /// Returns the bytes.
    pub(super) fn answer_dropped_name(
        &self,
        update: &mut Update,
        name: &Name,
        entry: Option<&Arc<Entry>>,
        sent: &mut HashSet<Name>,
    ) -> usize {
        let mut bytes = 0;
        if let Some(resource) = entry.and_then(|entry| entry.stands_for()) {
            let own = resource.name();
            let member = self.snapshot.get(own.as_str()).and_then(|entry| entry.as_member().present());
            if let Some(member) = member {
                update.resources.push(Arc::clone(member));
                return self.bytes_of(update, member);
            }
            if !self.is_seen(own) && sent.insert(own.clone()) {
                update.absent.push(own.clone());
                bytes += self.gone_bytes(own);
            }
        }
        if !self.is_seen_by_alias(name) && sent.insert(name.clone()) {
            update.absent.push(name.clone());
            bytes += self.gone_bytes(name);
        }
        bytes
    }
}
