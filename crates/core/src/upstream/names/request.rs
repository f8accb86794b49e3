//! Next request for names.

use std::collections::VecDeque;
use std::ops::Bound;
use std::time::Duration;

use foldhash::HashSet;

use super::super::answer::AnswerProgress;
use super::super::members::VERSIONS_BYTES;
use super::super::target::Target;
use super::{Asked, Awaited, Incomplete, Names, Stream};
use crate::cache::View;
use crate::fairness::UPSTREAM_NAME_BYTES;
use crate::proto::DeltaDiscoveryRequest;
use crate::resource::{Collection, Name, take_out};

/// Bytes of names after which a request is cut: servers with gRPC's default take 4 MiB.
pub(in crate::upstream) const REQUEST_BYTES: usize = 1 << 20;

/// Bytes of names in a request. The first one of a type with held resources is large, as later ones
/// cannot claim versions (R-Delta-05). So is any in SotW, as it repeats all names.
pub(in crate::upstream) const fn room(is_first_of_held: bool, speaks_sotw: bool) -> usize {
    if is_first_of_held || speaks_sotw { REQUEST_BYTES } else { UPSTREAM_NAME_BYTES }
}

impl Stream {
    /// Takes the next pending name while there is room: first those that clients added, in the
    /// order of the cache, then those that a new stream repeats. The latter have this room at
    /// `least`, and continue after `last`.
    fn next_pending(&mut self, last: &mut Option<Name>, room: &mut usize, least: &mut usize) -> Option<Name> {
        while *room > 0
            && *least > 0
            && let Some(name) = self.fresh.pop_front()
        {
            if self.pending.remove(&name) {
                return Some(name);
            }
        }
        *room = (*room).max(std::mem::take(least));
        if *room == 0 {
            return None;
        }
        let after = last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.pending.range::<Name, _>((after, Bound::Unbounded)).next();
        let next = next.or_else(|| self.pending.first())?.clone();
        *last = Some(next.clone());
        self.pending.take(&next)
    }
}

impl Names {
    /// Returns the next request.
    pub(in crate::upstream) fn changes(&mut self, target: &Target<'_>) -> Option<DeltaDiscoveryRequest> {
        let mut request = DeltaDiscoveryRequest::default();
        let mut room = target.room;
        let (mut last, mut least) = (self.stream.cut_at.take(), room / 5);
        let mut joined = false;
        while let Some(name) = self.stream.next_pending(&mut last, &mut room, &mut least) {
            let Some(record) = self.records.get_mut(&name) else { continue };
            let is_wanted = record.is_wanted();
            let bytes = match &mut record.asked {
                Some(_) if !is_wanted => {
                    self.forget(&name);
                    target.unsubscribe(name.as_str(), &mut request)
                }
                Some(asked) if asked.repeated && !asked.dropped => {
                    asked.repeated = false;
                    target.subscribe(name.as_str(), &mut request)
                }
                asked if is_wanted && asked.is_none_or(|asked| asked.dropped) => {
                    joined = true;
                    let bytes = target.subscribe(name.as_str(), &mut request);
                    bytes + self.join(target, name, &mut request)
                }
                _ => 0,
            };
            room = room.saturating_sub(bytes);
        }
        if std::mem::take(&mut self.stream.leaves_end_mark) {
            request.resource_names_unsubscribe.push(Name::END_MARK.to_owned());
        }
        let cut = !self.stream.pending.is_empty();
        self.stream.cut_at = last.filter(|_| cut);
        if !cut {
            self.stream.fresh = VecDeque::new();
        }
        if joined {
            self.stream.end_mark.ask(target, true, &mut request);
        }
        let is_empty = request.resource_names_subscribe.is_empty()
            && request.resource_names_unsubscribe.is_empty()
            && request.resource_locators_subscribe.is_empty()
            && request.resource_locators_unsubscribe.is_empty();
        (!is_empty).then_some(request)
    }

    fn forget(&mut self, name: &Name) {
        self.stream.incomplete.remove(name);
        let Some(record) = self.records.get_mut(name) else { return };
        record.asked = None;
        if !record.is_wanted() {
            take_out(&mut self.records, name);
        }
    }

    /// Notes a name as requested. Returns the bytes of its version.
    fn join(&mut self, target: &Target<'_>, name: Name, request: &mut DeltaDiscoveryRequest) -> usize {
        let bytes = if Collection::named(name.as_str()).is_some() {
            self.join_collection(target, &name, request)
        } else {
            let held = target.tells_versions.then(|| target.version_held(name.as_str())).flatten();
            held.map_or(0, |(own, version)| {
                let bytes = own.len() + version.len() + 8;
                request.initial_resource_versions.insert(own, version);
                bytes
            })
        };
        let is_claimed = bytes > 0;
        let awaited = if is_claimed { Awaited::Claimed } else { Awaited::Answer };
        let (at, in_first) = (target.moment.quiet, target.is_first);
        if !(is_claimed || in_first) && target.parameters.is_empty() {
            self.stream.unanswered = self.stream.unanswered.into_iter().chain([at]).min();
        }
        self.records.entry(name).or_default().asked = Some(Asked::new(at, awaited, in_first));
        bytes
    }

    /// Notes a collection as incomplete. Returns the bytes of the versions of its members.
    fn join_collection(
        &mut self,
        target: &Target<'_>,
        name: &Name,
        request: &mut DeltaDiscoveryRequest,
    ) -> usize {
        // A member that is requested by name too is claimed there.
        let members = || {
            let members = target.snapshot.members_of(name);
            members.filter(|member| !self.is_wanted(member.name().as_str()))
        };
        let versions =
            || members().filter_map(|held| Some((held.name().as_str(), target.claim(View::Named, held)?)));
        let all: usize = versions().map(|(name, version)| name.len() + version.len() + 8).sum();
        let (mut bytes, mut unseen) = (0, HashSet::default());
        if target.tells_versions && (1..=VERSIONS_BYTES).contains(&all) {
            let versions = versions().map(|(name, version)| (name.to_owned(), version.to_owned()));
            request.initial_resource_versions.extend(versions);
            bytes = all;
        } else {
            unseen = members().map(|held| held.name().clone()).collect();
        }
        let progress = AnswerProgress::asked(target.moment.quiet, Duration::ZERO);
        self.stream.incomplete.insert(name.clone(), Incomplete { progress, unseen });
        bytes
    }
}
