//! How far a client has been told, and how it moves on.
//!
//! Owns positions and their order. Knows nothing of resources or encodings.
//!
//! Example: a client stands at 7, and the log has a change of `a` at 5, of `b` at 8, and the removal of `c` at 9. Its update
//! holds `b` and the removal of `c` and leads to 9. If additions go first (make before break), the first response holds `b`
//! and leads to (added 9, removed 7); the second one holds the removal of `c` and leads to (9, 9).

use super::Generation;
use crate::resource::Name;

/// Position of a client in the history of one type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Position {
    /// Newest addition or change that it was told.
    pub added: Generation,
    /// Newest removal that it was told; may lag behind `added` (R-ADS-03).
    pub removed: Generation,
    /// The newest state that it was ever sent anything of: what came later it cannot hold.
    pub(super) seen: Generation,
    /// Place in an answer that is sent in parts (R-Up-23).
    pub(super) part: Part,
}

/// Place in an answer.
///
/// Example: 1,000 members do not fit into one response. The first part ends with the name `m500`, at generation 20: the
/// client is at `Members { at: 20, after: "m500" }`. Meanwhile `m100` changes at 21. The second part holds `m501` and on as
/// they are; then the run is over, and the next update, from 20 on, holds `m100`.
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
    /// In a run through the names that were asked for, begun at `at`: up to `after` everything until then was told, beyond it
    /// what the position says.
    Names { at: Generation, after: Name },
}

impl Position {
    /// Position of a client that was told everything up to `generation`.
    pub fn up_to(generation: Generation) -> Self {
        Self { added: generation, removed: generation, seen: generation, part: Part::Whole }
    }

    /// Whether nothing was told yet.
    pub fn is_start(&self) -> bool {
        self.part == Part::Start
    }

    /// Whether a part of an answer was sent and the rest was not.
    pub fn is_in_parts(&self) -> bool {
        matches!(self.part, Part::Changes { .. } | Part::Members { .. } | Part::Names { .. })
    }

    /// Newest generation of which it may have been told something.
    pub fn told(&self) -> Generation {
        match self.part {
            Part::Members { at, .. } | Part::Names { at, .. } => self.added.max(at),
            Part::Start | Part::Whole | Part::Changes { .. } => self.added,
        }
    }

    /// Whether the change of a name at `changed` has been told, where the name stands at `place` in the order of changes:
    /// another change, which is no news to the client, may have moved it there.
    pub(super) fn has_told(&self, name: &str, changed: Generation, place: Generation) -> bool {
        let reach = self.reach().filter(|_| self.has_passed(name));
        place <= self.added || reach.is_some_and(|reach| changed <= reach)
    }

    /// Whether a run through the names that were asked for is beyond this one.
    pub(super) fn has_passed(&self, name: &str) -> bool {
        matches!(&self.part, Part::Names { after, .. } if name <= after.as_str())
    }

    /// Generation to which a run through names leads. What changes later is told once the run is over, since it may be of a
    /// name that was passed; of the other names it is told twice.
    pub(super) fn reach(&self) -> Option<Generation> {
        match self.part {
            Part::Names { at, .. } => Some(at),
            Part::Start | Part::Whole | Part::Changes { .. } | Part::Members { .. } => None,
        }
    }

    /// Whether everything up to `generation` has been told, removals too.
    pub fn is_done(&self, generation: Generation) -> bool {
        generation <= self.added && generation <= self.removed
    }

    /// Whether everything up to `generation` has been told, removals too, whatever part of an answer was sent since.
    pub fn has_told_all(&self, generation: Generation) -> bool {
        self.has_told_additions(generation) && generation <= self.removed
    }

    /// Whether every addition and change up to `generation` has been told, whatever part of an answer was sent since. Removals may lag
    /// behind.
    pub fn has_told_additions(&self, generation: Generation) -> bool {
        !self.is_start() && generation <= self.floor()
    }

    pub(super) fn floor(&self) -> Generation {
        match self.part {
            Part::Changes { floor } => floor,
            Part::Start | Part::Whole | Part::Members { .. } | Part::Names { .. } => self.added,
        }
    }

    /// Place among additions after an update that leads to `to`.
    pub(super) fn after(&self, next: &NextPosition, to: Generation) -> Self {
        let part = match next {
            NextPosition::Names { at, after } => Part::Names { at: *at, after: after.clone() },
            NextPosition::Stay => self.part.clone(),
            NextPosition::Changes { .. } | NextPosition::Members { .. } | NextPosition::Done => Part::Whole,
        };
        let added = if let NextPosition::Names { .. } = next { self.added } else { to };
        Self { added, part, ..self.clone() }
    }
}

/// Place of a client once it took an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NextPosition {
    /// Unchanged: the update held nothing but what it was owed.
    Stay,
    /// Within the changes up to `to`.
    Changes { floor: Generation },
    /// Within the members.
    Members { at: Generation, after: Name },
    /// Within the names that were asked for.
    Names { at: Generation, after: Name },
    /// At `to`.
    Done,
}

/// Half of an update that a response carries (R-ADS-03).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Everything.
    Both,
    /// Additions and changes; state of the world: old and new united. The removals follow.
    Additions,
}

/// The client stands before what the cache remembers of removals: it has to come again with its versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too far behind: reconnect to resume from the versions held")]
pub struct FellBehindError;
