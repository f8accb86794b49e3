//! Positions: how far a client, or a cohort, is in the changes of a type.
//!
//! Owns generations, which are the cache's only notion of time, and their order. Knows nothing of resources or encodings.
//!
//! Example: a client is at 7, and the log has a change of `a` at 5, of `b` at 8, and the removal of `c` at 9.
//! Its update holds `b` and the removal of `c` and leads to 9. With additions first (make before break), one
//! response holds `b` and leads to (added 9, removed 7), the next the removal of `c` and leads to (9, 9).

use std::fmt;

use crate::resource::Name;

/// Point in the history of a group's cache. Each change of a resource has its own. All types of a group share
/// one counter, so generations order everything.
///
/// Example: the control plane sends clusters `a` and `b`, then endpoints of `a`. The clusters get 1 and 2, the
/// endpoints 3. A client at 1 was sent `a` alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(u64);

impl Generation {
    pub const ZERO: Self = Self(0);

    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// As a number, for nonces and metrics.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl From<u64> for Generation {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Newest addition or change sent.
    pub added: Generation,
    /// Newest removal sent; may lag behind `added` (R-ADS-03).
    pub removed: Generation,
    /// Newest state of which anything was sent; the client cannot hold later ones.
    pub(super) newest_state: Generation,
    /// Place in an answer that is sent in parts (R-Up-23).
    pub(super) part: Part,
}

/// Place in an answer.
///
/// Example: 1,000 members do not fit into one response. The first part ends with `m500`, at generation 20: the
/// client is at `Members { at: 20, after: "m500" }`. Then `m100` changes at 21. The second part holds `m501`
/// and later. The run is over, and the next update, from 20 on, holds `m100`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Part {
    /// Nothing was sent yet. Not generation zero, which is complete for an empty store.
    #[default]
    Start,
    Whole,
    /// In a run through the changes since `floor`.
    Changes {
        floor: Generation,
    },
    /// In a run through all members by name, begun at `at`.
    Members {
        at: Generation,
        after: Name,
    },
    /// In a run through requested names, begun at `at`. Names up to `after` were sent as of `at`; for others
    /// the position counts.
    Names {
        at: Generation,
        after: Name,
    },
}

impl Position {
    /// Everything up to `generation` was sent.
    pub fn up_to(generation: Generation) -> Self {
        Self { added: generation, removed: generation, newest_state: generation, part: Part::Whole }
    }

    pub fn is_start(&self) -> bool {
        self.part == Part::Start
    }

    /// Whether an answer was sent only in part.
    pub fn is_in_parts(&self) -> bool {
        matches!(self.part, Part::Changes { .. } | Part::Members { .. } | Part::Names { .. })
    }

    /// Newest generation of which something may have been sent.
    pub fn latest_sent(&self) -> Generation {
        match self.part {
            Part::Members { at, .. } | Part::Names { at, .. } => self.added.max(at),
            Part::Start | Part::Whole | Part::Changes { .. } => self.added,
        }
    }

    /// Whether a change of a name was sent. `place` is later than `changed` if other changes, no news to the
    /// client, moved the name.
    pub(super) fn was_sent(&self, name: &str, changed: Generation, place: Generation) -> bool {
        let reach = self.reach().filter(|_| self.has_passed(name));
        place <= self.added || reach.is_some_and(|reach| changed <= reach)
    }

    /// Whether a run through requested names is beyond this one.
    pub(super) fn has_passed(&self, name: &str) -> bool {
        matches!(&self.part, Part::Names { after, .. } if name <= after.as_str())
    }

    /// Generation of a run through names. Later changes come after the run, since a name may have passed; other
    /// names are then sent twice.
    pub(super) fn reach(&self) -> Option<Generation> {
        match self.part {
            Part::Names { at, .. } => Some(at),
            Part::Start | Part::Whole | Part::Changes { .. } | Part::Members { .. } => None,
        }
    }

    /// Whether everything up to `generation` was sent, including removals, and no answer only in part.
    pub fn was_sent_all(&self, generation: Generation) -> bool {
        self.was_sent_additions(generation) && generation <= self.removed
    }

    /// As [`was_sent_all`](Self::was_sent_all), without removals, which may lag behind.
    pub fn was_sent_additions(&self, generation: Generation) -> bool {
        !self.is_start() && generation <= self.floor()
    }

    pub(super) fn floor(&self) -> Generation {
        match self.part {
            Part::Changes { floor } => floor,
            Part::Start | Part::Whole | Part::Members { .. } | Part::Names { .. } => self.added,
        }
    }
}

/// Part of an update that a response carries (R-ADS-03).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Both,
    /// Additions and changes, before the removals. In state of the world: the union of old and new.
    Additions,
}

/// Removals after the client's position are forgotten: it must reconnect with its versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too far behind: reconnect to resume from the versions held")]
pub struct FellBehindError;
