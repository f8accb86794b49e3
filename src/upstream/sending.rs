//! What one stream carries of one type: what the origin was asked for there, and what is to be asked next.
//!
//! Owns the difference between what was sent and what is wanted, and how far the origin's answer has come. Knows
//! neither why something is wanted nor what the other stream carries.

use std::collections::BTreeSet;
use std::time::Instant;

use foldhash::{HashMap, HashSet};

use super::topic::Want;
use super::{Reconcile, Settings};
use crate::cache::{Snapshot, View};
use crate::proto::DeltaDiscoveryRequest;
use crate::resource::Name;

/// A request is cut when its names reach this many bytes: servers that kept gRPC's default take 4 MiB.
const REQUEST_BYTES: usize = 1 << 20;

/// The versions of a wildcard's members cannot be cut. Where they would take more than this they are not sent, and
/// what is gone is found by sweeping.
const VERSIONS_BYTES: usize = 3 << 20;

/// Whether what the origin sends unchanged is an answer to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    No,
    Answer,
    /// We said which version we hold: the origin need not answer, and after a while it will not (R-Up-02).
    Until(Instant),
}

/// A name that the origin was asked for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    awaited: Awaited,
    /// Let go since, without the origin having been told. It is forgotten, so that wanting it again takes a new
    /// subscribe (R-Up-19).
    dropped: bool,
}

/// How far the answer to the first request for a type has come.
#[derive(Clone, Copy, Debug, Default)]
enum Phase {
    #[default]
    Idle,
    /// Asked for. Where versions were sent, silence is an answer too, at `quiet_at`.
    Asked {
        quiet_at: Option<Instant>,
    },
    Arriving {
        first: Instant,
        last: Instant,
    },
    Settled,
}

/// What a stream is to carry of a type.
pub(super) struct Target<'a> {
    pub(super) view: Option<View>,
    pub(super) names: &'a HashMap<Name, Want>,
    /// Whether the other stream carries it too, and stays the authority on what is gone.
    pub(super) copy: bool,
    pub(super) snapshot: &'a Snapshot,
    pub(super) settings: &'a Settings,
    pub(super) now: Instant,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// Whether a request for the type was sent on this stream.
    started: bool,
    /// Whether the wildcard was asked for, and if so whether it was let go since as in [`Asked::dropped`].
    wildcard: Option<bool>,
    names: HashMap<Name, Asked>,
    /// Names of which what was sent may differ from what is wanted.
    pending: BTreeSet<Name>,
    dirty: bool,
    phase: Phase,
    /// What is held and has not been sent again on this stream, where it is to be swept (R-Up-21).
    unseen: HashSet<Name>,
    /// When the last of these came. A sweep waits for those that are still coming, however many there are.
    last_seen: Option<Instant>,
    awaiting: usize,
    answer_by: Option<Instant>,
    /// The view that was left last, and until when responses to it may still be on their way. The other view is
    /// not subscribed to before: what comes for the one must not be taken for the other.
    turn: Option<(View, Instant)>,
}

impl Link {
    pub(super) const fn is_started(&self) -> bool {
        self.started
    }

    pub(super) const fn is_dirty(&self) -> bool {
        self.dirty
    }

    pub(super) fn touch(&mut self, names: impl IntoIterator<Item = Name>) {
        self.pending.extend(names);
        self.dirty = true;
    }

    pub(super) fn touch_sent(&mut self) {
        self.pending.extend(self.names.keys().cloned());
        self.dirty = true;
    }

    pub(super) fn drop_name(&mut self, name: &Name) {
        if self.wildcard.is_none() {
            self.unseen.remove(name);
        }
        if let Some(asked) = self.names.get_mut(name) {
            asked.dropped = true;
            self.touch([name.clone()]);
        } else {
            self.pending.remove(name);
        }
    }

    pub(super) fn drop_wildcard(&mut self) {
        self.unseen.clear();
        self.dirty = true;
        if let Some(dropped) = &mut self.wildcard {
            *dropped = true;
        }
    }

    pub(super) fn covers_wildcard(&self) -> bool {
        self.wildcard == Some(false)
    }

    /// A name that was asked for and not let go.
    pub(super) fn covered(&self, name: &str) -> Option<&Name> {
        self.names.get_key_value(name).filter(|(_, asked)| !asked.dropped).map(|(name, _)| name)
    }

    /// The origin said something of a name. Returns whether it answers us.
    pub(super) fn heard(&mut self, name: &str, now: Instant) -> bool {
        if self.unseen.remove(name) {
            self.last_seen = Some(now);
        }
        if self.wildcard.is_some() {
            return matches!(self.phase, Phase::Asked { .. } | Phase::Arriving { .. });
        }
        let Some(asked) = self.names.get_mut(name) else { return false };
        let awaited = std::mem::replace(&mut asked.awaited, Awaited::No);
        self.awaiting -= usize::from(awaited != Awaited::No);
        match awaited {
            Awaited::No => false,
            Awaited::Answer => true,
            Awaited::Until(end) => now < end,
        }
    }

    /// A response for the type was accepted.
    pub(super) const fn arrived(&mut self, now: Instant) {
        self.phase = match self.phase {
            Phase::Asked { .. } => Phase::Arriving { first: now, last: now },
            Phase::Arriving { first, .. } => Phase::Arriving { first, last: now },
            Phase::Idle => Phase::Idle,
            Phase::Settled => Phase::Settled,
        };
    }

    fn settles_at(&self, settings: &Settings) -> Option<Instant> {
        match self.phase {
            Phase::Asked { quiet_at } => quiet_at,
            Phase::Arriving { first, last } => {
                let complete = (last + settings.settle).min(first + settings.settle_max);
                let sweep = self.last_seen.filter(|_| !self.unseen.is_empty());
                Some(sweep.map_or(complete, |last| complete.max(last + settings.settle)))
            }
            Phase::Idle | Phase::Settled => None,
        }
    }

    /// Where the answer is complete now: what was held and not sent again.
    pub(super) fn settle(&mut self, settings: &Settings, now: Instant) -> Option<HashSet<Name>> {
        if self.settles_at(settings).is_none_or(|at| at > now) {
            return None;
        }
        self.phase = Phase::Settled;
        Some(std::mem::take(&mut self.unseen))
    }

    /// Lets the other view in once nothing of the last one can be on its way.
    pub(super) fn end_turn(&mut self, now: Instant) {
        if self.turn.is_some_and(|(_, end)| end <= now) {
            self.turn = None;
            self.dirty = true;
        }
    }

    /// Whether this stream can stand alone for a view: the wildcard has settled, or every name was answered or had
    /// [`Settings::settle_max`] for it. A name without an answer is subscribed to all the same; a wildcard without
    /// one may not have been understood.
    pub(super) fn is_complete(&self, view: View, now: Instant) -> bool {
        match view {
            View::Wildcard => self.covers_wildcard() && matches!(self.phase, Phase::Settled),
            View::Named => {
                let answered = self.awaiting == 0 || self.answer_by.is_some_and(|end| end <= now);
                !self.names.is_empty() && self.pending.is_empty() && answered
            }
        }
    }

    /// When to look again though nothing happened.
    pub(super) fn deadline(&self, moving: Option<View>, settings: &Settings) -> Option<Instant> {
        let turn = self.turn.map(|(_, end)| end);
        let waits = moving == Some(View::Named) && self.awaiting > 0 && self.pending.is_empty();
        let answer = self.answer_by.filter(|_| waits);
        [turn, answer, self.settles_at(settings)].into_iter().flatten().min()
    }

    /// The next request that brings the origin closer to the target, and whether another has to follow.
    pub(super) fn changes(&mut self, target: &Target<'_>) -> (Option<DeltaDiscoveryRequest>, bool) {
        self.dirty = false;
        let mut request = DeltaDiscoveryRequest::default();
        let left_wildcard = self.leave_wildcard(target, &mut request);
        let cut = self.exchange_names(target, &mut request);
        let is_new = target.view == Some(View::Wildcard) && self.wildcard.is_none();
        let join = is_new && !left_wildcard && self.names.is_empty() && !self.is_turning(View::Wildcard);
        if join {
            self.join_wildcard(target, &mut request);
        }
        let empty = !join
            && request.resource_names_subscribe.is_empty()
            && request.resource_names_unsubscribe.is_empty();
        ((!empty).then_some(request), cut || (left_wildcard && is_new))
    }

    fn is_turning(&self, view: View) -> bool {
        self.turn.is_some_and(|(left, _)| left != view)
    }

    fn leave_wildcard(&mut self, target: &Target<'_>, request: &mut DeltaDiscoveryRequest) -> bool {
        let leave = self.wildcard.is_some_and(|dropped| dropped || target.view != Some(View::Wildcard));
        if leave {
            // A wildcard that was forgotten is left and joined again in requests of their own: what a server makes
            // of a second subscribe to it is not written anywhere.
            request.resource_names_unsubscribe.push(Name::WILDCARD.to_owned());
            self.wildcard = None;
            self.phase = Phase::Idle;
            self.unseen.clear();
            self.turn = Some((View::Wildcard, target.now + target.settings.settle));
        }
        leave
    }

    fn join_wildcard(&mut self, target: &Target<'_>, request: &mut DeltaDiscoveryRequest) {
        self.wildcard = Some(false);
        let members = || target.snapshot.members();
        let versions = || members().filter_map(|held| Some((held.name().as_str(), held.origin_version()?)));
        let bytes = || versions().map(|(name, version)| name.len() + version.len() + 10).sum::<usize>();
        let mut quiet_at = None;
        if self.started {
            request.resource_names_subscribe.push(Name::WILDCARD.to_owned());
        } else if target.settings.reconcile == Reconcile::Trust
            && target.snapshot.wildcard_known()
            && bytes() <= VERSIONS_BYTES
        {
            request.initial_resource_versions =
                versions().map(|(name, version)| (name.to_owned(), version.to_owned())).collect();
            quiet_at = Some(target.now + target.settings.settle_max);
        } else if !target.copy {
            // A set that never was complete is asked for anew: to an origin that had already sent everything
            // there would be nothing to answer, and it would never become known.
            self.unseen = members().map(|held| held.name().clone()).collect();
        }
        // Otherwise the request stays empty: the form that every server understands (R-Up-05).
        self.started = true;
        self.phase = Phase::Asked { quiet_at };
    }

    /// Puts names to leave and to join into the request; returns whether some did not fit.
    fn exchange_names(&mut self, target: &Target<'_>, request: &mut DeltaDiscoveryRequest) -> bool {
        let named = target.view == Some(View::Named);
        let may_join = named && !self.is_turning(View::Named);
        let had_names = !self.names.is_empty();
        let first = !self.started;
        let mut room = REQUEST_BYTES;
        let mut kept = Vec::new();
        while room > 0
            && let Some(name) = self.pending.pop_first()
        {
            let wanted = named && target.names.contains_key(&name);
            let asked = self.names.get(&name);
            if !wanted {
                if let Some(asked) = self.names.remove(&name) {
                    self.awaiting -= usize::from(asked.awaited != Awaited::No);
                    room = room.saturating_sub(name.as_str().len() + 4);
                    request.resource_names_unsubscribe.push(name.to_string());
                }
            } else if asked.is_none_or(|asked| asked.dropped) {
                if !may_join {
                    kept.push(name);
                    continue;
                }
                room = room.saturating_sub(name.as_str().len() + 4);
                request.resource_names_subscribe.push(name.to_string());
                room = room.saturating_sub(self.join_name(target, name, first, request));
            }
        }
        let cut = !self.pending.is_empty();
        self.pending.extend(kept);
        if !request.resource_names_subscribe.is_empty() {
            self.started = true;
            self.answer_by = Some(target.now + target.settings.settle_max);
            if first {
                self.start_names(target);
            }
        }
        if had_names && self.names.is_empty() {
            self.turn = Some((View::Named, target.now + target.settings.settle));
            self.phase = Phase::Idle;
            self.unseen.clear();
        }
        cut
    }

    /// Notes a name as asked for; returns the bytes that its version took.
    fn join_name(
        &mut self,
        target: &Target<'_>,
        name: Name,
        first: bool,
        request: &mut DeltaDiscoveryRequest,
    ) -> usize {
        let version = (first && target.settings.reconcile == Reconcile::Trust)
            .then(|| version_held(target.snapshot, name.as_str()))
            .flatten();
        let awaited = match &version {
            Some(_) => Awaited::Until(target.now + target.settings.settle_max),
            None => Awaited::Answer,
        };
        let mut bytes = 0;
        if let Some(version) = version {
            bytes = name.as_str().len() + version.len() + 8;
            request.initial_resource_versions.insert(name.to_string(), version);
        }
        let before = self.names.insert(name, Asked { awaited, dropped: false });
        self.awaiting += usize::from(before.is_none_or(|asked| asked.awaited == Awaited::No));
        bytes
    }

    fn start_names(&mut self, target: &Target<'_>) {
        self.phase = Phase::Settled;
        if target.settings.reconcile == Reconcile::Sweep && !target.copy {
            self.phase = Phase::Asked { quiet_at: None };
            let is_held = |name: &&Name| target.snapshot.held(View::Named, name.as_str()).is_some();
            self.unseen = target.names.keys().filter(is_held).cloned().collect();
        }
    }
}

/// The version under which the origin knows what it sent by this name.
fn version_held(snapshot: &Snapshot, name: &str) -> Option<String> {
    snapshot.held(View::Named, name)?.origin_version().map(str::to_owned)
}
