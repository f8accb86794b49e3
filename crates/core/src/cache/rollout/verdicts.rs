//! Answers of canaries to changes.
//!
//! Owns the counts, and which names a rejection's text mentions. Changes with equal answers share a record:
//! rejecting 20,000 names costs one record and 20,000 pointers.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::HashMap;
use imbl::OrdSet;

/// Texts kept per change, and characters of each.
const TEXTS: usize = 4;
const TEXT_CHARS: usize = 500;
/// Most clients counted per verdict; more make no difference.
const COUNTED: usize = 10_000;
/// Bytes of a text that are searched for names.
const TEXT_SEARCHED: usize = 4 << 10;

/// A canary: its step, and hashes of its peer and of its node ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Voter {
    pub(super) step: u8,
    pub(super) peer: u64,
    pub(super) node: u64,
}

/// A canary's answer to a response with a change.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer<'a> {
    Accepts,
    /// Rejects a response with changes that it has not accepted before.
    Rejects {
        /// Absent if the text is about other changes.
        text: Option<&'a str>,
        /// There was only this one.
        is_alone: bool,
    },
}

#[derive(Clone, Debug, Default)]
pub(super) struct Verdicts {
    accepted: OrdSet<Voter>,
    /// Clients that rejected responses with it and accepted none.
    rejected: OrdSet<Voter>,
    texts: Vec<Arc<str>>,
    is_rejected_alone: bool,
}

impl Verdicts {
    /// Copy with one more answer. Content that a client accepted once stays accepted by it: later rejections are
    /// about other changes.
    fn and(&self, voter: Voter, answer: Answer<'_>) -> Self {
        let mut all = self.clone();
        match answer {
            Answer::Accepts => {
                all.rejected.remove(&voter);
                if all.accepted.len() < COUNTED {
                    all.accepted.insert(voter);
                }
            }
            Answer::Rejects { text, is_alone } => {
                if all.rejected.len() < COUNTED {
                    all.rejected.insert(voter);
                }
                all.is_rejected_alone |= is_alone;
                let text = text.map(|text| text.chars().take(TEXT_CHARS).collect::<String>());
                if let Some(text) = text
                    && all.texts.len() < TEXTS
                    && !all.texts.iter().any(|other| **other == *text)
                {
                    all.texts.push(text.into());
                }
            }
        }
        all
    }

    pub(super) fn without_rejections(&self) -> Self {
        Self { rejected: OrdSet::new(), ..self.clone() }
    }

    pub(super) fn accepted(&self) -> usize {
        self.accepted.len()
    }

    pub(super) fn rejected(&self) -> usize {
        self.rejected.len()
    }

    pub(super) fn has_acceptance_in(&self, step: u8) -> bool {
        let first = Voter { step, peer: 0, node: 0 };
        self.accepted.range(first..).next().is_some_and(|voter| voter.step == step)
    }

    pub(super) fn has_accepted(&self, voter: Voter) -> bool {
        self.accepted.contains(&voter)
    }

    pub(super) fn texts(&self) -> &[Arc<str>] {
        &self.texts
    }

    /// Whether a canary rejected it in a response without other changes.
    pub(super) const fn is_rejected_alone(&self) -> bool {
        self.is_rejected_alone
    }

    /// Whether too many canaries rejected it, or all that answered. Each peer counts once, however many clients
    /// it has, for the share of them that rejected: nobody outvotes others with node IDs.
    pub(super) fn is_suspect(&self, threshold: f64) -> bool {
        let mut peers: BTreeMap<u64, [f64; 2]> = BTreeMap::new();
        for (at, voters) in [&self.accepted, &self.rejected].into_iter().enumerate() {
            voters.iter().for_each(|voter| peers.entry(voter.peer).or_default()[at] += 1.0);
        }
        let rejecting: f64 =
            peers.values().map(|[accepted, rejected]| rejected / (accepted + rejected)).sum();
        !self.rejected.is_empty() && (self.accepted.is_empty() || rejecting > threshold * peers.len() as f64)
    }

    /// Counts an answer for changes that share records.
    pub(super) fn count<'a>(
        changes: impl IntoIterator<Item = &'a mut Arc<Self>>,
        voter: Voter,
        answer: Answer<'_>,
    ) {
        // Old records live as long as the map, so no address is reused.
        let mut next: HashMap<*const Self, [Arc<Self>; 2]> = HashMap::default();
        for verdicts in changes {
            let [_, new] = next.entry(Arc::as_ptr(verdicts)).or_insert_with(|| {
                let old = Arc::clone(verdicts);
                let new = Arc::new(old.and(voter, answer));
                [old, new]
            });
            *verdicts = Arc::clone(new);
        }
    }
}

fn is_part(c: char) -> bool {
    c.is_alphanumeric() || "-_./".contains(c)
}

/// Whether a text has the name as a word.
pub(super) fn mentions(text: &str, name: &str) -> bool {
    let text = &text[..text.floor_char_boundary(TEXT_SEARCHED)];
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
        for name in ["a", "outbound|80||b.svc", "c", "e.f", "cluster", "adding/updating"] {
            assert!(mentions(text, name), "{name}");
        }
        for name in
            ["b", "outbound|80||b", "e", "f", "d", "ba", "(s)", "updating", "Error adding/updating clusters"]
        {
            assert!(!mentions(text, name), "{name}");
        }
    }

    const fn voter(peer: u64, node: u64) -> Voter {
        Voter { step: 0, peer, node }
    }

    const REJECTS: Answer<'static> = Answer::Rejects { text: Some("bad"), is_alone: false };

    #[test]
    fn changes_with_the_same_answers_share_them() {
        let mut changes: [Arc<Verdicts>; 3] = [const { Arc::default }; 3].map(|new| new());
        let none = Arc::clone(&changes[0]);
        changes.fill(none);
        Verdicts::count(&mut changes, voter(1, 1), Answer::Accepts);
        Verdicts::count(&mut changes[..2], voter(2, 2), REJECTS);
        Verdicts::count(&mut changes[2..], voter(2, 2), Answer::Accepts);
        assert!(Arc::ptr_eq(&changes[0], &changes[1]));
        let counts = changes.map(|verdicts| (verdicts.accepted(), verdicts.rejected()));
        assert_eq!(counts, [(1, 1), (1, 1), (2, 0)]);
    }

    #[test]
    fn each_peer_counts_once() {
        let all = |answers: &[(u64, u64, Answer<'_>)]| {
            let verdicts = Verdicts::default();
            answers.iter().fold(verdicts, |all, (peer, node, answer)| all.and(voter(*peer, *node), *answer))
        };
        let accepting: Vec<_> = (0..100).map(|node| (1, node, Answer::Accepts)).collect();
        let mut answers = accepting.clone();
        answers.extend([(2, 200, REJECTS), (3, 300, REJECTS)]);
        assert!(all(&answers).is_suspect(0.5), "a hundred node IDs of one peer are one peer");
        answers.push((4, 400, Answer::Accepts));
        assert!(!all(&answers).is_suspect(0.5));
        // Clients that share an identity are each a part of it.
        let mut answers = accepting;
        answers.push((1, 200, REJECTS));
        assert!(!all(&answers).is_suspect(0.1));
        // Without an acceptance no threshold is high enough.
        assert!(all(&[(1, 1, REJECTS)]).is_suspect(1.0));
        assert!(!all(&[(1, 1, REJECTS), (1, 1, Answer::Accepts)]).is_suspect(0.0), "accepted by itself");
    }
}
