//! Habits of the origin.

/// Word of the origin about names that do not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::upstream) enum Absences {
    /// None so far: many origins never say it (O2).
    #[default]
    Untold,
    /// It says so of each name, perhaps of one after the other: its silence about one proves nothing.
    Told,
    /// It says so of each name, and may itself wait for an origin that is silent. It is a relay like this one.
    Relay,
}

/// Habits of the origin, as far as they were seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::upstream) struct OriginHabits {
    pub(in crate::upstream) absences: Absences,
    /// The most bytes of resources that it has put into one response of several. From one that sends each by itself, or cuts
    /// its answers before that, a single resource proves nothing.
    pub(in crate::upstream) filled: usize,
    /// It speaks state of the world. Nothing can be proven to it by versions, and nothing need be: what is missing from a state
    /// is gone, and of a type without states nothing is missing (R-SotW-18, R-SotW-19).
    pub(in crate::upstream) speaks_sotw: bool,
    /// It keeps the versions that it sent (O1): each name that is let go and wanted again costs a stream.
    pub(in crate::upstream) keeps_versions: bool,
    /// It gives resources versions: one that does not reads none.
    pub(in crate::upstream) gives_versions: bool,
    /// It sends what was claimed in the version that it has: each new stream costs all that is subscribed to.
    pub(in crate::upstream) ignores_versions: bool,
}

/// An origin that puts several resources into a response fills it with this many bytes at least. Those that cut their answers do
/// so because of gRPC's bound on a message, which is 4 MiB by default.
const FILLS: usize = 64 << 10;

impl OriginHabits {
    /// Bytes of resources that it would put into one response, as far as is known.
    pub(in crate::upstream) fn fills(&self) -> usize {
        if self.filled == 0 { 0 } else { self.filled.max(FILLS) }
    }

    /// Habits that were seen here or there.
    pub(in crate::upstream) fn and(self, other: Self) -> Self {
        Self {
            absences: self.absences.max(other.absences),
            filled: self.filled.max(other.filled),
            speaks_sotw: self.speaks_sotw || other.speaks_sotw,
            keeps_versions: self.keeps_versions || other.keeps_versions,
            gives_versions: self.gives_versions || other.gives_versions,
            ignores_versions: self.ignores_versions || other.ignores_versions,
        }
    }

    /// Habits to be expected of an origin that may be another one. That it says what does not exist is held on to: where that
    /// is wrong, it costs time. All else would be evidence.
    pub(in crate::upstream) fn of_another(self) -> Self {
        let absences = if self.absences == Absences::Told { Absences::Told } else { Absences::Untold };
        Self {
            absences,
            filled: 0,
            keeps_versions: false,
            gives_versions: false,
            ignores_versions: false,
            ..self
        }
    }
}
