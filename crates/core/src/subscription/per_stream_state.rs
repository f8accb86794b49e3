//! State of one type on one stream that its cohort and position do not hold. Most streams have none.
//!
//! Owns also the versions that a client brings (`initial_resource_versions`), in a compact form. A client of a large wildcard
//! set brings hundreds of thousands, and a cold relay keeps them until the set is known. Invariant: their memory is charged
//! before it grows. If that is refused there are none, and the client is answered as if it had sent none (R-Delta-06).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crate::cache::{Class, Generation, Nonce, OwedItems, Update};
use crate::resource::{Name, normal_form};

/// Versions that the first request of a type brought.
#[derive(Debug)]
pub(super) enum ResumedVersions {
    /// `initial_resource_versions`.
    Versions(Versions),
    /// `version_info`: the digest of a whole set (R-SotW-10).
    Digest(String),
}

/// Response that a canary has not answered.
#[derive(Clone, Debug)]
pub(super) struct Unjudged {
    pub(super) nonce: Nonce,
    pub(super) update: Arc<Update>,
    pub(super) class: Class,
}

/// State of one type on one stream beside its cohort and position. Usually there is none.
#[derive(Debug, Default)]
pub(super) struct PerStreamState {
    pub(super) owed: OwedItems,
    /// Bytes of subscribed and unsubscribed names: the last count, plus all since. An upper bound:
    /// names answered meanwhile still count.
    pub(super) weight: usize,
    pub(super) resumed: Option<ResumedVersions>,
    /// Charge for brought names that are gone, until all removals are sent.
    pub(super) gone: Option<Box<dyn ByteCharge>>,
    pub(super) answering: BTreeSet<Name>,
    /// Names that the client may hold and that its new parameters have not resolved, with the time
    /// of the change.
    pub(super) obscured: BTreeMap<Name, Instant>,
    /// Position of removals when the client left the wildcard with a response unanswered.
    pub(super) wildcard_left: Option<Generation>,
    /// Responses to vote on, oldest first.
    pub(super) to_judge: Vec<Unjudged>,
    /// Removed names that the newest response left out although it mentioned others.
    pub(super) left_out: BTreeSet<Name>,
    /// The client claimed the end mark. Its removal is due once all that the client asked for is
    /// known (R-Up-23).
    pub(super) asks_end: bool,
    /// Response before the newest, if both are unanswered.
    pub(super) overtaken: Option<Nonce>,
}

impl PerStreamState {
    pub(super) fn is_empty(&self) -> bool {
        self.owed.is_empty()
            && self.owed.doubt == Generation::ZERO
            && self.owed.refused.is_empty()
            && self.resumed.is_none()
            && self.answering.is_empty()
            && self.obscured.is_empty()
            && self.wildcard_left.is_none()
            && self.to_judge.is_empty()
            && self.left_out.is_empty()
            && !self.asks_end
            && self.overtaken.is_none()
    }
}

/// Store, cohort, and the cohort's mark before the data was read.
pub(super) type Mark = (u32, u64, Generation);

/// Whether unknown endpoints hold back routes. Valid while both marks stay.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guard {
    pub(super) endpoints: Mark,
    pub(super) clusters: Mark,
    pub(super) protects: bool,
}

pub trait ByteCharge: fmt::Debug + Send + Sync {
    /// Sets the total charge. Returns false, and nothing may be allocated, if that is too much.
    fn charge(&mut self, bytes: usize) -> bool;
}

/// Versions by the normal form of names. The last of a repeated name counts.
#[derive(Default)]
pub struct Versions {
    text: String,
    entries: Vec<Entry>,
    charge: Option<Box<dyn ByteCharge>>,
    is_over: bool,
}

/// Offsets in the text: a name, then its version.
#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u32,
    version: u32,
    end: u32,
}

impl Versions {
    pub fn within(charge: Box<dyn ByteCharge>) -> Self {
        Self { charge: Some(charge), ..Self::default() }
    }

    /// Adds a version. If that is too much, all are dropped.
    pub fn add(&mut self, name: &str, version: &str) {
        if self.is_over || name.is_empty() {
            return;
        }
        let name = normal_form(name);
        let start = self.text.len();
        let places = [start, start + name.len(), start + name.len() + version.len()].map(u32::try_from);
        if let [Ok(start), Ok(version_at), Ok(end)] = places
            && self.grow(name.len() + version.len())
        {
            self.text.push_str(&name);
            self.text.push_str(version);
            self.entries.push(Entry { start, version: version_at, end });
        } else {
            *self = Self { is_over: true, ..Self::default() };
        }
    }

    /// Grows by a quarter, charged first. Doubling would waste up to a half.
    fn grow(&mut self, len: usize) -> bool {
        let grown = |capacity: usize, needed: usize| match needed <= capacity {
            true => capacity,
            false => needed.max(capacity + capacity / 4),
        };
        let text = grown(self.text.capacity(), self.text.len() + len);
        let entries = grown(self.entries.capacity(), self.entries.len() + 1);
        if (text, entries) == (self.text.capacity(), self.entries.capacity()) {
            return true;
        }
        let bytes = text + entries * size_of::<Entry>();
        if self.charge.as_mut().is_some_and(|charge| !charge.charge(bytes)) {
            return false;
        }
        self.text.reserve_exact(text - self.text.len());
        self.entries.reserve_exact(entries - self.entries.len());
        true
    }

    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    /// Takes the charge over, for the names.
    pub fn take_charge(&mut self) -> Option<Box<dyn ByteCharge>> {
        self.charge.take()
    }

    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let text = |from: u32, to: u32| &self.text[from as usize..to as usize];
        self.entries
            .iter()
            .map(move |entry| (text(entry.start, entry.version), text(entry.version, entry.end)))
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(name, _)| name)
    }

    pub fn forget_versions(&mut self) {
        self.entries.iter_mut().for_each(|entry| entry.end = entry.version);
    }

    pub fn retain(&mut self, mut is_kept: impl FnMut(&str) -> bool) {
        let text = &self.text;
        self.entries.retain(|entry| is_kept(&text[entry.start as usize..entry.version as usize]));
    }
}

impl fmt::Debug for Versions {
    /// There may be hundreds of thousands.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Versions").field("len", &self.len()).field("is_over", &self.is_over).finish()
    }
}

impl<N: AsRef<str>, V: AsRef<str>> Extend<(N, V)> for Versions {
    fn extend<I: IntoIterator<Item = (N, V)>>(&mut self, versions: I) {
        versions.into_iter().for_each(|(name, version)| self.add(name.as_ref(), version.as_ref()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Debug)]
    struct Purse(Arc<AtomicUsize>, usize);

    impl ByteCharge for Purse {
        fn charge(&mut self, bytes: usize) -> bool {
            self.0.store(bytes, Ordering::Relaxed);
            bytes <= self.1
        }
    }

    impl Drop for Purse {
        fn drop(&mut self) {
            self.0.store(0, Ordering::Relaxed);
        }
    }

    #[test]
    fn memory_of_versions_is_charged_and_all_are_let_go_where_it_is_too_much() {
        let charged = Arc::new(AtomicUsize::new(0));
        let mut versions = Versions::within(Box::new(Purse(Arc::clone(&charged), 20_000)));
        let mut most = 0;
        for number in 0..1000 {
            let taken = versions.len() * 29;
            versions.add(&format!("name-{number:05}"), "version");
            let paid = charged.load(Ordering::Relaxed);
            assert!(
                versions.is_over() || (taken..=taken + taken / 3 + 100).contains(&paid),
                "{number}: {paid} for {taken}"
            );
            most = most.max(versions.len());
        }
        assert!((500..=690).contains(&most), "{most} of 29 bytes");
        assert_eq!((versions.is_over(), versions.len(), charged.load(Ordering::Relaxed)), (true, 0, 0));
    }

    #[test]
    fn names_come_back_in_their_normal_form() {
        let mut versions = Versions::default();
        versions.extend([("a", "1"), ("", "9"), ("b", ""), ("xdstp://x/t/n?b=1&a=2", "3")]);
        let all: Vec<_> = versions.iter().collect();
        assert_eq!(all, [("a", "1"), ("b", ""), ("xdstp://x/t/n?a=2&b=1", "3")]);
        versions.retain(|name| name != "a");
        assert_eq!(versions.names().collect::<Vec<_>>(), ["b", "xdstp://x/t/n?a=2&b=1"]);
    }
}
