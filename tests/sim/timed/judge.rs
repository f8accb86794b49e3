//! Rules that every response has to keep.
//!
//! Owns what arrived at each relay, and how often each client was told the same. Every judgement is by the time line of the
//! origin: a client that follows the protocol never loses what is there, and what is not known is never said to be absent.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use super::client::{Client, Effect, Held, Views};
use super::reading::Told;
use super::truth::{TYPES, Truth};

/// Unchanged responses in a row that somebody may be sent: cause enough may lie in what others asked for.
const SAME: u32 = 4;
/// And whatever else happens meanwhile.
const SAME_AT_ALL: u32 = 30;

/// Arrival of a resource at a relay.
#[derive(Clone, Debug)]
struct Came {
    at: Instant,
    /// When it was said.
    made: Instant,
    /// Whether it came on a stream with the wildcard.
    wildcard: bool,
    text: String,
}

/// Arrivals at a relay from upstream since it started.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    bodies: HashMap<(usize, String), Vec<Came>>,
    words: HashMap<(usize, String, bool), Instant>,
    /// Since when the relay asks for each name by itself, and on which stream it did last.
    asked: HashMap<(usize, String), (Instant, u32)>,
    /// Names of which the last word was that they are gone.
    gone: HashSet<(usize, String)>,
    /// When the last silence ended that was longer than the time to live.
    expired: HashMap<(usize, String, bool), Instant>,
}

impl Seen {
    pub(crate) fn note(
        &mut self,
        told: &Told,
        made: Instant,
        wildcard: bool,
        ttl: Option<Duration>,
        now: Instant,
    ) {
        self.gone.extend(told.removed.iter().map(|name| (told.at, name.clone())));
        for (name, text, _) in &told.resources {
            let key = (told.at, name.clone());
            self.gone.remove(&key);
            let view = (told.at, name.clone(), wildcard);
            if let (Some(last), Some(ttl)) = (self.words.insert(view.clone(), now), ttl)
                && now >= last + ttl
            {
                self.expired.insert(view, now);
            }
            if !text.is_empty() {
                self.bodies.entry(key).or_default().push(Came {
                    at: now,
                    made,
                    wildcard,
                    text: text.clone(),
                });
            }
        }
    }

    /// An inquiry was answered. The time of a resource begins with that where nothing else has come of it.
    pub(crate) fn note_inquiry(&mut self, told: &Told, now: Instant) {
        for (name, ..) in &told.resources {
            self.words.entry((told.at, name.clone(), false)).or_insert(now);
        }
    }

    /// Whether a resource with a TTL had reason to end after this moment, in one of the views.
    fn expired_after(&self, at: usize, name: &str, ttl: Duration, after: Instant, now: Instant) -> bool {
        [false, true].into_iter().any(|wildcard| {
            let key = (at, name.to_owned(), wildcard);
            self.expired.get(&key).is_some_and(|gap| *gap >= after)
                || self.words.get(&key).is_some_and(|last| now >= *last + ttl)
        })
    }

    /// The relay asks for a name. Once more on one stream means that it let go of it without a word (R-Up-19), unless it was
    /// told that the name is gone.
    pub(crate) fn ask(&mut self, at: usize, name: &str, stream: u32, now: Instant) {
        let key = (at, name.to_owned());
        let before = self.asked.get(&key).filter(|(_, on)| *on != stream || self.gone.contains(&key));
        let since = before.map_or(now, |(since, _)| *since);
        self.asked.insert(key, (since, stream));
    }

    /// The relay lets go of a name. What arrives of it from here on is nobody's.
    pub(crate) fn leave(&mut self, at: usize, name: &str) {
        self.asked.remove(&(at, name.to_owned()));
    }

    /// The relay lets go of all names of a type but these.
    pub(crate) fn leave_others(&mut self, at: usize, names: &[String]) {
        self.asked.retain(|(of, name), _| *of != at || names.contains(name));
    }

    /// Whether a name came that was asked for by itself, since it was last asked for after it had been let go.
    pub(crate) fn had(&self, at: usize, name: &str) -> bool {
        let key = (at, name.to_owned());
        let Some((asked, _)) = self.asked.get(&key) else { return false };
        let mut came = self.bodies.get(&key).into_iter().flatten();
        came.any(|came| !came.wildcard && came.at > *asked)
    }

    /// Whether anything came of a name after this moment, where it was asked for by itself.
    pub(crate) fn came_by_name(&self, at: usize, name: &str, after: Instant) -> bool {
        let mut came = self.bodies.get(&(at, name.to_owned())).into_iter().flatten();
        came.any(|came| !came.wildcard && came.at >= after)
    }

    /// Whether a resource came with this text on a stream with the wildcard.
    pub(crate) fn came_by_wildcard(&self, at: usize, name: &str, text: &str) -> bool {
        let mut came = self.bodies.get(&(at, name.to_owned())).into_iter().flatten();
        came.any(|came| came.wildcard && came.text == text)
    }

    /// Whether the origin's word came that it has what it has had since a moment, be it by the name or with the wildcard.
    pub(crate) fn knows_of(&self, truth: &Truth, at: usize, name: &str, since: Instant, by: Instant) -> bool {
        self.had_between(truth, (at, name), Views { wildcard: true, name: true }, since, by)
    }

    /// When what last came of a name by this moment was said.
    fn last_came(&self, at: usize, name: &str, by: Instant) -> Option<Instant> {
        let came = self.bodies.get(&(at, name.to_owned())).into_iter().flatten();
        came.filter(|came| came.at <= by).map(|came| came.made).max()
    }

    /// Whether a body that the origin has had since one moment came by another one, in a view that was asked for. A part that
    /// was on its way before is of an older time.
    fn had_between(
        &self,
        truth: &Truth,
        (at, name): (usize, &str),
        views: Views,
        since: Instant,
        by: Instant,
    ) -> bool {
        let is_seen = |came: &Came| if came.wildcard { views.wildcard } else { views.name };
        let is_new = |came: &Came| {
            let published = truth.published(at, name, &came.text, came.made);
            published.is_some_and(|published| published >= since)
        };
        let mut came = self.bodies.get(&(at, name.to_owned())).into_iter().flatten();
        came.any(|came| (since..=by).contains(&came.at) && is_seen(came) && is_new(came))
    }
}

/// Knowledge of the relay that sent a response.
pub(crate) struct Scene<'a> {
    pub(crate) truth: &'a Truth,
    pub(crate) seen: &'a Seen,
    /// Input that arrived at each relay on the way, the first relay first.
    pub(crate) way: &'a [Seen],
    /// When the first relay of those on the way started.
    pub(crate) started: Instant,
    pub(crate) ttl: Option<Duration>,
    /// When it was said, and when it is heard.
    pub(crate) made: Instant,
    pub(crate) now: Instant,
}

impl Scene<'_> {
    pub(crate) fn judge(&self, client: &Client, effect: &Effect, told: &Told) {
        let Self { truth, now, .. } = *self;
        let at = effect.at;
        for (name, held, views) in &effect.lost {
            assert!(
                self.may_be_lost(at, name, held, *views),
                "LOST: client {} lost {name} of {}, held since {:?} ago, which the origin has as {:?}: {}",
                client.id,
                TYPES[at],
                now - held.since,
                truth.get(at, name).map(|body| &body.text),
                told.shown(),
            );
        }
        // A state-of-the-world client that does not hold a name waits for it for a moment only.
        let by_wildcard = effect.absent.iter().filter(|(_, views)| views.wildcard);
        for (name, views) in by_wildcard.chain(&effect.removed) {
            let Some(since) = truth.present_since(at, name) else { continue };
            let was_known = self.seen.had_between(truth, (at, name), *views, since, self.made);
            let expired = self.ttl.is_some_and(|ttl| self.seen.expired_after(at, name, ttl, since, now));
            assert!(
                (since > self.started && !was_known) || expired,
                "ABSENT: client {} is shown no {name} of {}, which the origin has had for {:?} (the relay knew: {was_known}): {}",
                client.id,
                TYPES[at],
                now - since,
                told.shown(),
            );
        }
        // An empty response claims that nothing exists, which unknown names do not justify.
        let says_nothing = told.resources.is_empty() && told.removed.is_empty();
        for (name, _) in effect.absent.iter().filter(|_| says_nothing) {
            let since = truth.present_since(at, name);
            assert!(
                since.is_none_or(|since| since > self.started) || self.ttl.is_some(),
                "EMPTY: client {} is shown nothing at all of {}, and the origin has {name}",
                client.id,
                TYPES[at],
            );
        }
    }

    fn may_be_lost(&self, at: usize, name: &str, held: &Held, views: Views) -> bool {
        // A client that had a new resource by name and asks for the wildcard now may be ahead of the wildcard's stream.
        let since = self.truth.present_since(at, name).filter(|since| *since > self.started);
        let had = |since: Instant| self.seen.had_between(self.truth, (at, name), views, since, self.made);
        if since.is_some_and(|since| !views.name && !had(since)) {
            return true;
        }
        // The text may have been published again since: the client was shown the state that the relay knew by then, which is one
        // that the relay before it knew by the time at which it said so.
        let came = |by, seen: &Seen| seen.last_came(at, name, by).unwrap_or(by);
        let known = self.way.iter().rev().fold(held.since, came);
        let published = self.truth.published(at, name, &held.text, known);
        let published = published.or_else(|| self.truth.published(at, name, &held.text, held.since));
        let published = published.unwrap_or_else(|| panic!("{name}:{} was never published", held.text));
        self.truth.was_absent_after(at, name, published)
            || self.ttl.is_some_and(|ttl| self.seen.expired_after(at, name, ttl, held.may_end_from, self.now))
    }
}

/// Names with their texts, and what is removed.
type Content = (Vec<(String, String)>, Vec<String>);

#[derive(Debug, Default)]
struct Last {
    told: Option<Content>,
    changes: u64,
    /// How often it was told so in a row, and how often without anything that may be a cause.
    in_row: u32,
    count: u32,
    counted: u64,
}

/// How often each stream is told the same.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    last: BTreeMap<(usize, usize), Last>,
}

impl Repeats {
    /// `changes` counts what happened that may be a cause: at the origin, to the relay, and at this client.
    pub(crate) fn note(&mut self, client: usize, told: &Told, changes: u64) {
        let last = self.last.entry((client, told.at)).or_default();
        last.counted += 1;
        let resources = told.resources.iter().map(|(name, text, _)| (name.clone(), text.clone()));
        let content = (resources.collect::<Vec<_>>(), told.removed.clone());
        let same = last.told.as_ref() == Some(&content);
        last.in_row = if same { last.in_row + 1 } else { 0 };
        last.count = if same && last.changes == changes { last.count + 1 } else { 0 };
        assert!(last.in_row < SAME_AT_ALL, "AGAIN: client {client} is told ever the same: {}", told.shown());
        assert!(
            last.count < SAME,
            "AGAIN: client {client} is told the same {} times: {}",
            SAME,
            told.shown()
        );
        (last.told, last.changes) = (Some(content), changes);
    }

    /// Begins to count anew after a quiet time: every response before it had its cause.
    pub(crate) fn rest(&mut self) {
        self.last.values_mut().for_each(|last| (last.in_row, last.count) = (0, 0));
    }

    /// A client that is sent to another server comes back, and is told what there is, for as long as that lasts.
    pub(crate) fn sent_away(&mut self, client: usize) {
        self.last.range_mut((client, 0)..(client + 1, 0)).for_each(|(_, last)| last.in_row = 0);
    }

    /// Number of responses to a client.
    pub(crate) fn told(&self, client: usize) -> u64 {
        self.last.range((client, 0)..(client + 1, 0)).map(|(_, last)| last.counted).sum()
    }

    pub(crate) fn all(&self) -> u64 {
        self.last.values().map(|last| last.counted).sum()
    }
}
