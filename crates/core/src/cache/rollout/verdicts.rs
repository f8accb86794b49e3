//! Answers of canaries to changes.
//!
//! Owns the counts, and which change a rejection's text blames. Changes with equal answers share a record:
//! rejecting 20,000 names costs one record and 20,000 pointers.

use std::sync::Arc;

use foldhash::{HashMap, HashSet};
use imbl::OrdSet;

use super::super::Generation;

/// Texts kept per change, and characters of each.
const TEXTS: usize = 4;
const TEXT_CHARS: usize = 500;
/// Most clients counted per verdict; more make no difference.
const COUNTED: usize = 10_000;
/// Bytes of a text that are searched for names.
const TEXT_SEARCHED: usize = 4 << 10;

/// A canary's answer to a response with a change.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer<'a> {
    Accepts,
    Rejects(&'a str),
    /// Rejects the response because of other changes.
    RejectsOthers,
}

/// Clients that answered, by the hash of their node ID, so that each counts once.
#[derive(Clone, Debug, Default)]
pub(super) struct Verdicts {
    accepted: OrdSet<u64>,
    rejected: OrdSet<u64>,
    texts: Vec<Arc<str>>,
    /// A response with it was rejected because of other changes.
    is_beside_others: bool,
}

impl Verdicts {
    /// Copy with one more answer. A rejection outweighs an acceptance on another stream or of a part.
    fn and(&self, node: u64, answer: Answer<'_>) -> Self {
        let mut all = self.clone();
        match answer {
            Answer::Accepts if all.accepted.len() < COUNTED && !all.rejected.contains(&node) => {
                all.accepted.insert(node);
            }
            Answer::Accepts => {}
            Answer::Rejects(text) => {
                if all.rejected.len() < COUNTED {
                    all.rejected.insert(node);
                    all.accepted.remove(&node);
                }
                let text: String = text.chars().take(TEXT_CHARS).collect();
                if all.texts.len() < TEXTS && !all.texts.iter().any(|other| **other == *text) {
                    all.texts.push(text.into());
                }
            }
            Answer::RejectsOthers => all.is_beside_others = true,
        }
        all
    }

    pub(super) fn accepted(&self) -> usize {
        self.accepted.len()
    }

    pub(super) fn rejected(&self) -> usize {
        self.rejected.len()
    }

    pub(super) fn are_any(&self) -> bool {
        self.is_beside_others || self.accepted() + self.rejected() > 0
    }

    pub(super) fn texts(&self) -> &[Arc<str>] {
        &self.texts
    }

    pub(super) fn exceed(&self, threshold: f64) -> bool {
        self.rejected() as f64 > threshold * (self.accepted() + self.rejected()) as f64
    }
}

#[derive(Clone, Debug)]
pub(super) struct Evidence {
    /// Generation before the first change since the last cut. Responses up to there hold the tried content.
    pub(super) first: Generation,
    /// Generation before the change. Responses from there or earlier to a later one hold it.
    pub(super) before: Generation,
    /// Whether a canary asked for the name at that time.
    pub(super) is_asked: bool,
    pub(super) verdicts: Arc<Verdicts>,
}

impl Evidence {
    pub(super) fn count<'a>(changes: impl IntoIterator<Item = &'a mut Self>, node: u64, answer: Answer<'_>) {
        // Old records live as long as the map, so no address is reused.
        let mut next: HashMap<*const Verdicts, [Arc<Verdicts>; 2]> = HashMap::default();
        for change in changes {
            let [_, new] = next.entry(Arc::as_ptr(&change.verdicts)).or_insert_with(|| {
                let old = Arc::clone(&change.verdicts);
                let new = Arc::new(old.and(node, answer));
                [old, new]
            });
            change.verdicts = Arc::clone(new);
        }
    }
}

/// Text of a rejection, searched for names.
pub(super) struct Rejection<'a> {
    text: &'a str,
    /// Runs of characters that may be part of a name. They rule out most names quickly.
    words: HashSet<&'a str>,
}

impl<'a> Rejection<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let text = &text[..text.floor_char_boundary(TEXT_SEARCHED)];
        let runs = text.split(|c| !is_part(c));
        let words = runs.flat_map(|run| [run, run.strip_suffix('.').unwrap_or(run)]).collect();
        Self { text, words }
    }

    /// Whether the text has the name as a word.
    pub(super) fn mentions(&self, name: &str) -> bool {
        let first = name.split(|c| !is_part(c)).next().unwrap_or_default();
        (first.is_empty() || self.words.contains(first)) && mentions(self.text, name)
    }
}

fn is_part(c: char) -> bool {
    c.is_alphanumeric() || "-_./".contains(c)
}

fn mentions(text: &str, name: &str) -> bool {
    text.match_indices(name).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        // The full stop of a sentence is not part of the name.
        let mut after = text[at + name.len()..].chars();
        let follows = match after.next() {
            Some('.') => after.next().is_some_and(is_part),
            next => next.is_some_and(is_part),
        };
        !before.is_some_and(is_part) && !follows
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_mentioned_as_a_word() {
        let text = "Error adding/updating cluster(s) a: bad, outbound|80||b.svc: bad. See c. And e.f";
        let rejection = Rejection::new(text);
        for name in ["a", "outbound|80||b.svc", "c", "e.f", "cluster", "adding/updating"] {
            assert!(rejection.mentions(name), "{name}");
        }
        for name in
            ["b", "outbound|80||b", "e", "f", "d", "ba", "(s)", "updating", "Error adding/updating clusters"]
        {
            assert!(!rejection.mentions(name), "{name}");
        }
    }

    #[test]
    fn changes_with_the_same_answers_share_them() {
        let none = Arc::default();
        let mut changes = [0, 1, 2].map(|at| Evidence {
            first: Generation::ZERO,
            before: Generation::from(at),
            is_asked: true,
            verdicts: Arc::clone(&none),
        });
        Evidence::count(&mut changes, 1, Answer::Accepts);
        Evidence::count(&mut changes[..2], 2, Answer::Rejects("bad"));
        Evidence::count(&mut changes, 2, Answer::Accepts);
        assert!(Arc::ptr_eq(&changes[0].verdicts, &changes[1].verdicts));
        let counts = changes.map(|change| (change.verdicts.accepted(), change.verdicts.rejected()));
        assert_eq!(counts, [(1, 1), (1, 1), (2, 0)]);
    }
}
