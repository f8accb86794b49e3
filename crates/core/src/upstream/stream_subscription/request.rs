//! Next request for a type on a stream.

use std::collections::VecDeque;
use std::ops::Bound;
use std::time::Duration;

use foldhash::HashSet;

use super::super::arrival::Arrival;
use super::super::response::ask_for_end;
use super::target::Target;
use super::{Asked, Awaited, EndMark, Incomplete, StreamSubscription};
use crate::cache::View;
use crate::fairness::UPSTREAM_NAME_BYTES;
use crate::proto::DeltaDiscoveryRequest;
use crate::resource::{Collection, Name, take_out};

/// A request is cut when its names reach this many bytes: servers that kept gRPC's default take 4 MiB.
pub(in crate::upstream) const REQUEST_BYTES: usize = 1 << 20;

/// How many bytes of names go into a request, which may be the first one for a type of which something is held: that one
/// says the versions, and what is behind it is not said with versions any more (R-Delta-05). In state of the world each request
/// repeats the names of all before it.
pub(in crate::upstream) const fn room(is_first_of_held: bool, speaks_sotw: bool) -> usize {
    if is_first_of_held || speaks_sotw { REQUEST_BYTES } else { UPSTREAM_NAME_BYTES }
}

/// The versions of a wildcard's members go into one request, and no more than this of them: servers that kept gRPC's
/// default take 4 MiB. The other members are sent again in full.
const VERSIONS_BYTES: usize = 3 << 20;

impl StreamSubscription {
    /// The next request that brings the origin closer to the target, and whether another has to follow.
    pub(in crate::upstream) fn changes(
        &mut self,
        target: &Target<'_>,
        wanted: &dyn Fn(&Name) -> bool,
    ) -> (Option<DeltaDiscoveryRequest>, bool) {
        self.dirty = false;
        let mut request = DeltaDiscoveryRequest::default();
        let left_wildcard = self.leave_wildcard(target, &mut request);
        let cut = self.exchange_names(target, wanted, &mut request);
        let is_new = target.view == Some(View::Wildcard) && self.wildcard.is_none();
        let join = is_new && !left_wildcard && !target.wildcard_waits;
        if join {
            self.join_wildcard(target, &mut request);
        }
        let empty = !join
            && request.resource_names_subscribe.is_empty()
            && request.resource_names_unsubscribe.is_empty()
            && request.resource_locators_subscribe.is_empty()
            && request.resource_locators_unsubscribe.is_empty();
        ((!empty).then_some(request), cut || (left_wildcard && is_new))
    }

    /// Whether the wildcard was let go, and the origin is still to be told.
    pub(in crate::upstream) fn leaves_wildcard(&self) -> bool {
        self.wildcard == Some(true)
    }

    /// The origin was asked for the wildcard on this stream in the words of these clients, for others: its answer is for both.
    pub(in crate::upstream) fn share_wildcard(&mut self, of: &Self, held: impl Iterator<Item = Name>) {
        if of.covers_wildcard() {
            self.wildcard = Some(false);
            self.arrival = of.arrival;
            let is_unclaimed = |name: &Name| of.unheard.get(name) == Some(&false);
            self.unheard = held.filter(is_unclaimed).map(|name| (name, false)).collect();
        }
    }

    fn leave_wildcard(&mut self, target: &Target<'_>, request: &mut DeltaDiscoveryRequest) -> bool {
        let leave = self.leaves_wildcard();
        if leave {
            // A wildcard that was forgotten is left and joined again in requests of their own: no document says how a
            // server is to treat a second subscribe to it.
            target.unsubscribe(Name::WILDCARD, request);
            self.wildcard = None;
        }
        leave
    }

    fn join_wildcard(&mut self, target: &Target<'_>, request: &mut DeltaDiscoveryRequest) {
        self.wildcard = Some(false);
        if self.started || !target.fresh || !target.has_legacy_wildcard {
            target.subscribe(Name::WILDCARD, request);
        }
        // Otherwise the request stays empty: the form that every server understands (R-Up-05).
        if !self.started {
            self.claim_members(target, request);
            self.ask_for_end(target, request);
        }
        // A response may be for others alone.
        let hold = if target.beside { target.settings.settle_max } else { Duration::ZERO };
        self.started = true;
        self.arrival = Arrival::asked(target.moment.quiet, hold);
    }

    /// Tells the versions of the members that are held, as far as they fit. The others have to come
    /// again if they are still there.
    fn claim_members(&mut self, target: &Target<'_>, request: &mut DeltaDiscoveryRequest) {
        let mut room = VERSIONS_BYTES;
        for held in target.snapshot.members() {
            let name = held.name().as_str();
            let claim = target.claim(View::Wildcard, held).filter(|_| target.tells_versions());
            let bytes = claim.map_or(usize::MAX, |version| name.len() + version.len() + 10);
            match claim {
                Some(version) if bytes <= room => {
                    room -= bytes;
                    request.initial_resource_versions.insert(name.to_owned(), version.to_owned());
                    self.unheard.insert(held.name().clone(), true);
                }
                _ if target.is_claimed(held) => {}
                _ => drop(self.unheard.insert(held.name().clone(), false)),
            }
        }
    }

    /// Claims the end mark.
    fn ask_for_end(&mut self, target: &Target<'_>, request: &mut DeltaDiscoveryRequest) {
        if target.speaks_sotw || !target.is_first {
            return;
        }
        self.end_mark = EndMark::Asked;
        if !target.claimed.contains_key(Name::END_MARK) {
            ask_for_end(request, self.wildcard.is_none());
        }
    }

    /// Puts names to leave and to join into the request; returns whether some did not fit.
    fn exchange_names(
        &mut self,
        target: &Target<'_>,
        wanted: &dyn Fn(&Name) -> bool,
        request: &mut DeltaDiscoveryRequest,
    ) -> bool {
        let named = target.view == Some(View::Named);
        let mut joined = false;
        let first = !self.started;
        let is_first_of_held = first && target.fresh && target.snapshot.holds_anything();
        let mut room = room(is_first_of_held, target.speaks_sotw);
        let (mut last, mut least) = (self.cut_at.take(), room / 5);
        while let Some(name) = self.next_pending(&mut last, &mut room, &mut least) {
            let asked = self.names.get(&name);
            if !(named && wanted(&name)) {
                self.incomplete.remove(&name);
                if take_out(&mut self.names, &name).is_some() {
                    room = room.saturating_sub(target.unsubscribe(name.as_str(), request));
                }
            } else if asked.is_some_and(|asked| asked.repeated && !asked.dropped) {
                if let Some(asked) = self.names.get_mut(&name) {
                    asked.repeated = false;
                }
                room = room.saturating_sub(target.subscribe(name.as_str(), request));
            } else if asked.is_none_or(|asked| asked.dropped) {
                joined = true;
                room = room.saturating_sub(self.ask_for(target, wanted, name, first, request));
            }
        }
        if self.leaves_end_mark && self.started {
            self.leaves_end_mark = false;
            request.resource_names_unsubscribe.push(Name::END_MARK.to_owned());
        }
        let cut = !self.pending.is_empty();
        self.cut_at = last.filter(|_| cut);
        if !cut {
            self.fresh = VecDeque::new();
        }
        if joined {
            self.started = true;
            self.arrival = self.arrival.asked_more(target.moment.quiet);
            if first {
                self.start_names(target, wanted, request);
            }
        }
        if self.names.is_empty() && self.wildcard.is_none() {
            self.arrival = Arrival::Idle;
            self.unheard.clear();
        }
        cut
    }

    /// Subscribes to a name; returns the bytes that this takes.
    fn ask_for(
        &mut self,
        target: &Target<'_>,
        wanted: &dyn Fn(&Name) -> bool,
        name: Name,
        first: bool,
        request: &mut DeltaDiscoveryRequest,
    ) -> usize {
        let bytes = target.subscribe(name.as_str(), request);
        let trusts = first && target.tells_versions();
        bytes + self.join_name(target, wanted, name, trusts, request)
    }

    /// Takes the next pending name while there is room: those that clients came to want on this stream, in the order in which the cache
    /// took them from their peers in turn, then those that the stream repeats. These have this room at `least`, and go on after the `last`.
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

    /// Notes a name as asked for; returns the bytes that its version took.
    fn join_name(
        &mut self,
        target: &Target<'_>,
        wanted: &dyn Fn(&Name) -> bool,
        name: Name,
        trusts: bool,
        request: &mut DeltaDiscoveryRequest,
    ) -> usize {
        let bytes = if Collection::named(name.as_str()).is_some() {
            self.join_collection(target, wanted, &name, trusts, request)
        } else {
            let held = trusts.then(|| target.version_held(name.as_str())).flatten();
            held.map_or(0, |(own, version)| {
                let bytes = own.len() + version.len() + 8;
                request.initial_resource_versions.insert(own, version);
                bytes
            })
        };
        let is_claimed = bytes > 0 || target.claimed.contains_key(name.as_str());
        let awaited = if is_claimed { Awaited::Claimed } else { Awaited::Answer };
        let (at, in_first) = (target.moment.quiet, target.is_first && !self.started);
        if !(is_claimed || in_first) && target.parameters.is_empty() {
            self.unanswered = self.unanswered.into_iter().chain([at]).min();
        }
        let asked = Asked { at, awaited, dropped: false, inquiries: 0, repeated: false, in_first };
        self.names.insert(name, asked);
        bytes
    }

    /// Notes a collection as not complete yet; returns the bytes that the versions of its members took.
    fn join_collection(
        &mut self,
        target: &Target<'_>,
        wanted: &dyn Fn(&Name) -> bool,
        name: &Name,
        trusts: bool,
        request: &mut DeltaDiscoveryRequest,
    ) -> usize {
        // A member that is asked for by its own name too is claimed and doubted by that.
        let members = || target.snapshot.members_of(name).filter(|member| !wanted(member.name()));
        let versions =
            || members().filter_map(|held| Some((held.name().as_str(), target.claim(View::Named, held)?)));
        let all: usize = versions().map(|(name, version)| name.len() + version.len() + 8).sum();
        let (mut bytes, mut unseen) = (0, HashSet::default());
        if trusts && (1..=VERSIONS_BYTES).contains(&all) {
            let versions = versions().map(|(name, version)| (name.to_owned(), version.to_owned()));
            request.initial_resource_versions.extend(versions);
            bytes = all;
        } else {
            unseen =
                members().filter(|held| !target.is_claimed(held)).map(|held| held.name().clone()).collect();
        }
        let arrival = Arrival::asked(target.moment.quiet, Duration::ZERO);
        self.incomplete.insert(name.clone(), Incomplete { arrival, unseen });
        bytes
    }

    /// Notes which of the names that are held were not claimed: they have to come again if they are still there.
    fn start_names(
        &mut self,
        target: &Target<'_>,
        wanted: &dyn Fn(&Name) -> bool,
        request: &mut DeltaDiscoveryRequest,
    ) {
        let is_unclaimed = |name: &&Name| {
            let awaited = self.names.get(*name).map(|asked| asked.awaited);
            awaited != Some(Awaited::Claimed)
                && wanted(name)
                && target.snapshot.held(View::Named, name.as_str()).is_some()
        };
        let names = self.names.keys().chain(&self.pending).filter(is_unclaimed);
        self.unheard = names.map(|name| (name.clone(), false)).collect();
        self.ask_for_end(target, request);
        if !self.unheard.is_empty() {
            self.arrival = Arrival::asked(target.moment.quiet, Duration::ZERO);
        }
    }
}
