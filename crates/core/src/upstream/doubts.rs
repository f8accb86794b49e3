//! Resources that are held and that the origin was expected to send, and did not.
//!
//! Owns the reason for each doubt, and what it means for the next question: whether the version is told, so that the
//! origin can say itself that the resource is gone. Knows neither streams nor time.

use std::collections::hash_map::Entry;

use foldhash::HashMap;

use crate::cache::{Op, View};
use crate::resource::Name;

/// Reason for which a resource is in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doubt {
    /// It was missing from an answer that was complete as far as its silence tells. Missing from the next one on another
    /// stream too, it is gone.
    Missing,
    /// Nothing came at all, which is evidence of nothing.
    Silence,
    /// Its version was told on this connection. The answer may have been lost with its stream.
    Told,
    /// As before, and the origin had nothing to say of it: it is as it was, or the origin knows as little as we do, or never
    /// says what is gone.
    Unanswered,
}

impl Doubt {
    /// Whether the origin could say that the resource is gone, as far as it ever can.
    pub(super) const fn was_told(self) -> bool {
        matches!(self, Self::Told | Self::Unanswered)
    }
}

/// After so many streams on which the origin answered, and said nothing of versions that were told because of a doubt, it is taken
/// not to say what is gone. A few show nothing: of what is there and current nothing is said either.
const UNHEEDED: u32 = 16;

/// Held resources that the origin was expected to send, with the reason for each doubt.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    of: HashMap<(View, Name), Doubt>,
    /// Streams of which that is so, in a row.
    unheeded: u32,
}

impl Doubts {
    pub(super) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// Whether the origin, asked by version, may still say that a resource is gone.
    pub(super) const fn may_be_heeded(&self) -> bool {
        self.unheeded <= UNHEEDED
    }

    /// An answer is over on a stream where versions in doubt were told, and said nothing of these.
    pub(super) const fn note_unheeded(&mut self) {
        self.unheeded += 1;
    }

    pub(super) fn get(&self, view: View, name: &Name) -> Option<Doubt> {
        if self.is_empty() { None } else { self.of.get(&(view, name.clone())).copied() }
    }

    /// Notes a doubt; returns whether it is a reason to ask on another stream.
    pub(super) fn insert(&mut self, view: View, name: Name, doubt: Doubt) -> bool {
        match self.of.entry((view, name)) {
            Entry::Vacant(free) => {
                free.insert(doubt);
                true
            }
            Entry::Occupied(mut before) => before.insert(doubt) != doubt,
        }
    }

    /// Takes over the doubts that others have about these.
    pub(super) fn share(&mut self, others: &Self, keys: impl Iterator<Item = (View, Name)>) {
        if !others.is_empty() {
            self.of.extend(keys.filter_map(|key| others.of.get(&key).map(|doubt| (key, *doubt))));
        }
    }

    /// The version of a resource was told.
    pub(super) fn tell(&mut self, view: View, name: &str) {
        if !self.is_empty()
            && let Some(doubt) = self.of.get_mut(&(view, name.into()))
            && *doubt != Doubt::Unanswered
        {
            *doubt = Doubt::Told;
        }
    }

    /// No word of these came on a stream where their versions were told, for as long as one may take. Returns whether there were
    /// any.
    pub(super) fn met_silence(&mut self, view: View, was_claimed: impl Fn(&Name) -> bool) -> bool {
        let told = self.of.iter_mut().filter(|(_, doubt)| **doubt == Doubt::Told);
        let claimed = told.filter(|((of, name), _)| *of == view && was_claimed(name));
        claimed.map(|(_, doubt)| *doubt = Doubt::Unanswered).count() > 0
    }

    /// There is no doubt any more.
    pub(super) fn remove(&mut self, view: View, name: &Name) {
        if !self.is_empty() && self.of.remove(&(view, name.clone())).is_some() {
            self.unheeded = 0;
        }
    }

    pub(super) fn drop_wildcard(&mut self) {
        self.of.retain(|(view, _), _| *view != View::Wildcard);
    }

    /// Forgets doubts about what is gone.
    pub(super) fn note(&mut self, ops: &[Op]) {
        let ends = |op: &&Op| matches!(op, Op::Remove { .. } | Op::Forget { .. } | Op::Withdraw { .. });
        if !self.is_empty() {
            ops.iter().filter(ends).for_each(|op| self.remove(op.view(), op.name()));
        }
    }

    /// A connection stands: versions that were told on the last one are told anew.
    pub(super) fn connected(&mut self) {
        self.of.retain(|_, doubt| !doubt.was_told());
        self.unheeded = 0;
    }
}
