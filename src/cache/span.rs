//! How far a client has been told, and how it moves on.

use super::Generation;
use super::update::Update;
use crate::resource::Name;

/// How far a client has been told of one type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Span {
    /// Of additions and changes.
    pub added: Generation,
    /// Of removals, which may lag behind (R-ADS-03).
    pub removed: Generation,
    /// The newest state that it was ever sent anything of: what came later it cannot hold.
    pub(super) seen: Generation,
    /// Where it stands in an answer that is sent in parts (R-Up-23).
    pub(super) part: Part,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Part {
    /// Before the first: told nothing yet. A state of its own: a store of which nothing was ever heard is at generation
    /// zero, and a client that was told so has been told all of it.
    #[default]
    Start,
    /// In none.
    Whole,
    /// In a run through the changes: those that were pending when it began are the ones since `floor`.
    Changes { floor: Generation },
    /// In a run through all members by name, begun at `at`.
    Members { at: Generation, after: Name },
}

impl Span {
    /// Told everything up to here.
    pub fn up_to(generation: Generation) -> Self {
        Self { added: generation, removed: generation, seen: generation, part: Part::Whole }
    }

    /// Told nothing yet.
    pub fn is_start(&self) -> bool {
        self.part == Part::Start
    }

    /// Whether a part of an answer was sent and the rest was not.
    pub fn is_in_parts(&self) -> bool {
        matches!(self.part, Part::Changes { .. } | Part::Members { .. })
    }

    /// Whether the change at `generation` has been told.
    pub fn covers(&self, generation: Generation) -> bool {
        generation <= self.added
    }

    /// Whether everything up to `generation` has been told, removals too.
    pub fn is_done(&self, generation: Generation) -> bool {
        generation <= self.added && generation <= self.removed
    }

    /// Told everything that there was when `update` was made, which must have been nothing.
    pub fn settle(&mut self, update: &Update) {
        debug_assert!(
            !update.additions && !update.removals,
            "only what has nothing to say may be passed over"
        );
        *self = Self::up_to(update.seen);
    }

    pub(super) fn floor(&self) -> Generation {
        match self.part {
            Part::Changes { floor } => floor,
            Part::Start | Part::Whole | Part::Members { .. } => self.added,
        }
    }

    /// Moves on over an update of which `class` was sent.
    pub fn advance(&mut self, update: &Update, class: Class) {
        self.seen = self.seen.max(update.seen);
        if self.is_start() && update.next != Next::Stay {
            // The first that it was told: what was gone by then it cannot hold, what goes from then on it may.
            self.removed = update.seen;
        }
        match &update.next {
            Next::Stay => {}
            Next::Members { at, after } => self.part = Part::Members { at: *at, after: after.clone() },
            Next::Changes { floor } => {
                self.part = Part::Changes { floor: *floor };
                self.added = update.to;
            }
            Next::Done => {
                self.part = Part::Whole;
                self.added = update.to;
                if class != Class::Additions {
                    self.removed = update.to;
                }
            }
        }
    }
}

/// Where a client stands once it took an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Where it stood: the update held nothing but what it was owed.
    Stay,
    /// Within the changes up to `to`.
    Changes { floor: Generation },
    /// Within the members.
    Members { at: Generation, after: Name },
    /// At `to`.
    Done,
}

/// Which half of an update a response carries (R-ADS-03).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Everything.
    Both,
    /// Additions and changes; state of the world: old and new united. The removals follow.
    Additions,
}
