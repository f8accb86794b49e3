//! Content of the stores of a node group, restored from records.

use std::time::{Duration, Instant};

use super::store_record::is_own;
use super::{Clock, Kept, Record, StoreId};
use crate::cache::{Completeness, Op, Resend, Snapshot, View};
use crate::resource::{Collection, Name, NameSet};

#[derive(Clone, Debug, Default)]
pub struct Content {
    pub stores: Vec<StoreContent>,
}

#[derive(Clone, Debug)]
pub struct StoreContent {
    pub id: StoreId,
    /// Completeness of the wildcard set.
    pub completeness: Completeness,
    /// Members of the set, recorded or not.
    pub members: usize,
    /// Records by name.
    pub records: Vec<(Name, Record)>,
}

impl Content {
    /// Whether any resource has a version with this server mark.
    pub(crate) fn has_mark(&self, mark: &str) -> bool {
        let mut records = self.stores.iter().flat_map(|store| &store.records);
        records.any(|(_, record)| match &record.kept {
            Kept::Resource(resource) => resource.version_mark().starts_with(mark),
            Kept::Collection => false,
        })
    }
}

/// Time without a change after which a settled set is presumed complete, if nobody asks for proof.
const QUIET: Duration = Duration::from_secs(5);

/// Completeness and member count of the wildcard set, for [`StoreContent`]. The former may grow
/// with time alone.
pub fn wildcard_kept(snapshot: &Snapshot, now: Instant) -> (Completeness, usize) {
    let is_quiet = snapshot.changed_at().is_some_and(|at| now >= at + QUIET);
    let known = match snapshot.completeness() {
        Completeness::Settled if is_quiet && snapshot.member_count() > 0 => Completeness::Presumed,
        known => known,
    };
    (known, snapshot.member_count())
}

/// Part of a store's content that is held again.
#[derive(Debug, Default)]
pub(crate) struct RestoredContent {
    /// Operations that bring it into an empty store.
    pub(crate) ops: Vec<Op>,
    /// Names to subscribe to, without members of collections, which come with the collection.
    pub(crate) names: NameSet,
    /// Completeness of the wildcard set, if it is subscribed to.
    pub(crate) wildcard: Option<Completeness>,
    /// Records with an expired TTL.
    pub(crate) ended: usize,
}

impl StoreContent {
    /// Part of the content that is valid at this moment.
    pub(crate) fn restore_at(self, clock: Clock) -> RestoredContent {
        let mut held = RestoredContent::default();
        let is_collection = |(_, record): &&(Name, Record)| matches!(record.kept, Kept::Collection);
        let collections: NameSet =
            self.records.iter().filter(is_collection).map(|(name, _)| name.clone()).collect();
        let is_listed = |name: &Name| {
            let covering = Collection::covering(name.as_str());
            covering.is_some_and(|covering| collections.contains(covering.as_str()))
        };
        let mut members = 0;
        for (name, record) in self.records {
            let Some(lease) = record.lease_at(clock) else {
                held.ended += 1;
                continue;
            };
            let view = record.view;
            let is_subscribed = view == View::Named && !is_listed(&name);
            members += usize::from(view == View::Wildcard);
            match record.kept {
                Kept::Collection => {}
                Kept::Resource(resource) if is_own(&name, &resource) => {
                    held.ops.push(Op::held(view, resource, lease));
                }
                Kept::Resource(resource) => {
                    let name = name.clone();
                    held.ops.push(Op::Alias { name, resource, resend: Resend::Answer });
                }
            }
            if is_subscribed {
                held.names.insert(name);
            }
        }
        held.wildcard = wildcard_known(self.completeness, self.members, members);
        held
    }
}

/// Completeness of a restored wildcard set with `held` of its former `members`; `None` if there is
/// no reason to subscribe to it.
/// Only the control plane can make it complete: clients may hold members that came after the last
/// record. A set that lacks some is shown to clients that get the rest when it comes.
fn wildcard_known(before: Completeness, members: usize, held: usize) -> Option<Completeness> {
    let known = match held {
        _ if before == Completeness::Unknown => Completeness::Unknown,
        _ if held == members => before.min(Completeness::Presumed),
        0 => Completeness::Unknown,
        _ => Completeness::Settled,
    };
    (held > 0 || known > Completeness::Unknown).then_some(known)
}
