//! Updates about resources that are seen under other names than their own (R-Relay-20).

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::HashSet;

use super::super::Generation;
use super::super::entry::{Entry, Named, Seen};
use super::super::subscription::Look;
use super::super::update::Update;
use super::Diff;
use crate::resource::Name;
impl Diff<'_> {
    /// Whether the client sees the resource of this name through an alias.
    pub(super) fn is_seen_by_alias(&self, own: &Name) -> bool {
        self.snapshot.is_seen_by_alias(self.subscription, own.as_str())
    }

    /// Whether it sees it in any way.
    pub(super) fn is_seen(&self, own: &Name) -> bool {
        self.snapshot.is_seen_by_itself(self.subscription, own.as_str()) || self.is_seen_by_alias(own)
    }

    /// Adds what the client holds and sees through this alias no longer, unless it sees it in another way, and when that
    /// went. Returns whether there was anything that it holds through it.
    pub(super) fn lost_through(
        &self,
        entry: &Entry,
        look: &Look<'_>,
        lost: &mut BTreeMap<Name, Generation>,
    ) -> bool {
        let Named::Alias(alias) = entry.named() else { return false };
        if self.position.is_start() || !self.subscription.contains(entry.name().as_str()) {
            return false;
        }
        // That a name is an alias of nothing is never told as a removal (R-Delta-22).
        let is_answer = |name: &Name| matches!(look.seen, Seen::Unresolved(answer) if answer.name() == name);
        let mut stood_for = false;
        let reach = self.position.reach();
        for past in alias.past.iter().filter(|past| reach.is_none_or(|reach| past.until <= reach)) {
            if past.until > self.position.removed
                && past.since <= self.position.seen
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

    /// Answers for a name that the client let go beside a wildcard (R-Delta-09): what it is an alias of may be a member.
    /// Returns how many bytes that takes.
    pub(super) fn let_go(
        &self,
        update: &mut Update,
        name: &Name,
        entry: Option<&Arc<Entry>>,
        told: &mut HashSet<Name>,
    ) -> usize {
        let mut bytes = 0;
        if let Some(resource) = entry.and_then(|entry| entry.stands_for()) {
            let own = resource.name();
            let member = self.snapshot.get(own.as_str()).and_then(|entry| entry.as_member().present());
            if let Some(member) = member {
                update.resources.push(Arc::clone(member));
                return self.bytes_of(update, member);
            }
            if !self.is_seen(own) && told.insert(own.clone()) {
                update.absent.push(own.clone());
                bytes += self.gone_bytes(own);
            }
        }
        if !self.is_seen_by_alias(name) && told.insert(name.clone()) {
            update.absent.push(name.clone());
            bytes += self.gone_bytes(name);
        }
        bytes
    }
}
