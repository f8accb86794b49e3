//! Versions of whole sets, which clients name when they ask again.
//!
//! A poll sends the version of the set that it holds, and gets the whole set if that differs (R-REST-04, R-REST-07). A
//! state-of-the-world client that returns names its last accepted wildcard set by digest (`version_info`, R-Relay-11).
//! [`EarlierStates`] says when the set had it, so what went since, and whether its clients may hold something else. Owns
//! how many are remembered per store.
//!
//! Invariant: a version depends only on type, subscription and visible resources, not on order, generations or history.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use xxhash_rust::xxh3::Xxh3;

use super::Generation;
use super::change::Completeness;
use super::entry::VisibleState;
use super::snapshot::Snapshot;
use super::subscription::Subscription;
use crate::resource::{Resource, TypeUrl};

/// Version of a subscription and all that it sees: `version_info` of REST-JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SetVersion(u128);

impl SetVersion {
    /// Its bits. The hash has no secret: a client may produce any version.
    pub const fn bits(self) -> u128 {
        self.0
    }

    /// Reads only what [`Display`](fmt::Display) writes, not other spellings of the number.
    pub fn parse(text: &str) -> Option<Self> {
        let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_written = text.len() == 32 && text.bytes().all(is_hex);
        u128::from_str_radix(text, 16).ok().filter(|_| is_written).map(Self)
    }

    fn of(type_url: &TypeUrl, subscription: &Subscription, found: u128) -> Self {
        let mut hasher = Xxh3::new();
        let text = |hasher: &mut Xxh3, text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        let count = |hasher: &mut Xxh3, count: usize| hasher.update(&(count as u64).to_le_bytes());
        text(&mut hasher, type_url.as_str());
        hasher.update(&[subscription.wildcard.into()]);
        count(&mut hasher, subscription.names().len());
        subscription.names().iter().for_each(|name| text(&mut hasher, name.as_str()));
        // Clients that asked by locators get equal resources in another form (R-DP-09).
        for (name, parameters) in subscription.locators().into_iter().flatten() {
            text(&mut hasher, name.as_str());
            // Otherwise a parameter of one locator could pass for the next name.
            count(&mut hasher, parameters.iter().count());
            parameters.iter().flat_map(|(key, value)| [key, value]).for_each(|part| text(&mut hasher, part));
        }
        hasher.update(&found.to_le_bytes());
        Self(hasher.digest128())
    }
}

impl fmt::Display for SetVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// State of a cohort's polls, without the resources.
#[derive(Clone, Copy, Debug)]
pub struct SetState {
    /// Mark of the cohort for which it was computed.
    pub(super) touched: Generation,
    pub version: SetVersion,
    /// Time of the newest change in it.
    pub changed_at: Option<Instant>,
    /// Completeness of the wildcard set, if subscribed (R-Relay-05).
    pub wildcard: Completeness,
    /// Whether a subscribed name is still unknown (R-Relay-04).
    pub unknown_name: bool,
    /// Whether anything requested is known, even that it does not exist.
    pub knows_something: bool,
    /// Whether a resource has no body to send (R-XT-09). It counts in the version but cannot be written.
    pub dropped: bool,
}

impl SetState {
    /// `is_known`: whether any visible name is known, for clients with a limited scope.
    pub(super) fn of(
        type_url: &TypeUrl,
        subscription: &Subscription,
        snapshot: &Snapshot,
        touched: Generation,
        is_known: impl FnOnce() -> Option<bool>,
    ) -> Self {
        let knows_wildcard = subscription.wildcard && snapshot.wildcard_known();
        let (mut found, mut unknown_name, mut knows_something) = (0, false, knows_wildcard);
        let mut dropped = false;
        for_each_visible(snapshot, subscription, |seen| match seen {
            VisibleState::Present(resource) => {
                knows_something = true;
                found = u128::wrapping_add(found, resource.digest());
            }
            VisibleState::Dropped(resource) => {
                (knows_something, dropped) = (true, true);
                found = u128::wrapping_add(found, resource.digest());
            }
            VisibleState::Absent | VisibleState::Collection | VisibleState::Unresolved(_) => {
                knows_something = true
            }
            // REST has no form for errors (R-REST-12): the name waits, and is not shown as missing.
            VisibleState::Unknown | VisibleState::Failed | VisibleState::Denied(_) => unknown_name = true,
        });
        if unknown_name && !knows_wildcard {
            knows_something = is_known().unwrap_or(knows_something);
        }
        Self {
            touched,
            version: SetVersion::of(type_url, subscription, found),
            changed_at: snapshot.changed_at(),
            wildcard: if subscription.wildcard { snapshot.completeness() } else { Completeness::Complete },
            unknown_name,
            knows_something,
            dropped,
        }
    }
}

/// All that a cohort's polls see.
#[derive(Clone, Debug)]
pub struct SetContents {
    pub version: SetVersion,
    /// Members of the wildcard set by name, then requested resources beside them.
    pub resources: Vec<Arc<Resource>>,
    /// The subscription, if it has locators.
    pub asked: Option<Subscription>,
}

impl SetContents {
    pub(super) fn of(type_url: &TypeUrl, asked: &Subscription, snapshot: &Snapshot) -> Self {
        let (mut resources, mut found) = (Vec::new(), 0);
        for_each_visible(snapshot, asked, |seen| {
            if let VisibleState::Present(resource) = seen {
                found = u128::wrapping_add(found, resource.digest());
                resources.push(Arc::clone(resource));
            }
        });
        let version = SetVersion::of(type_url, asked, found);
        Self { version, resources, asked: asked.locators().is_some().then(|| asked.clone()) }
    }
}

/// Visits each subscribed name once: members of the wildcard set, then all beside them.
fn for_each_visible<'s>(
    snapshot: &'s Snapshot,
    subscription: &'s Subscription,
    mut with: impl FnMut(VisibleState<'s>),
) {
    if subscription.wildcard {
        let members = snapshot.members().filter(|member| !member.is_delta_only());
        members.for_each(|member| with(VisibleState::Present(member)));
    }
    // A redirect is no resource of the type, and REST can express nothing else (R-XT-07).
    snapshot.beside_wildcard(subscription).for_each(|seen| match seen {
        VisibleState::Present(resource) if resource.is_delta_only() => with(VisibleState::Absent),
        seen => with(seen),
    });
}

/// Remembered states, at most 4 KiB per store: two minutes of clusters that change each second.
const EARLIER_STATES: usize = 128;

/// State of a set before the current one.
#[derive(Debug)]
struct EarlierState {
    digest: u128,
    /// Last generation at which the set had this digest.
    until: Generation,
    /// Whether a client of it rejected a later one. An Envoy applies the good part of a rejected response, but
    /// names the state before it.
    is_doubted: bool,
}

/// The newest states before the current one.
///
/// Example: the set is `{a, b}` up to generation 4, and `{a, c}` up to 9. A client with the digest of the first
/// is at 4: it is sent `a`, `c` and, until its routes have left it, `b`.
///
/// Example: an Envoy accepted `{a: 1}` and rejected `{a: 2, b}`, of which it runs `a: 2`. The control plane
/// goes back to `{a: 1}` while it is away. It returns with the digest of `{a: 1}`, and must be sent that
/// nevertheless.
#[derive(Debug, Default)]
pub(super) struct EarlierStates(Mutex<VecDeque<EarlierState>>);

impl EarlierStates {
    /// Records that the set had this digest up to `until`.
    pub(super) fn record(&self, digest: u128, until: Generation) {
        let mut states = self.0.lock();
        if states.len() == EARLIER_STATES {
            states.pop_front();
        }
        states.push_back(EarlierState { digest, until, is_doubted: false });
    }

    /// Last generation at which an earlier set had this digest.
    pub(super) fn find(&self, digest: u128) -> Option<Generation> {
        self.0.lock().iter().rev().find(|earlier| earlier.digest == digest).map(|earlier| earlier.until)
    }

    /// Records that a client of this set may hold something else.
    pub(super) fn doubt(&self, digest: u128) {
        let mut states = self.0.lock();
        let newest = states.iter_mut().rev().find(|earlier| earlier.digest == digest);
        newest.into_iter().for_each(|earlier| earlier.is_doubted = true);
    }

    pub(super) fn is_doubted(&self, digest: u128) -> bool {
        self.0.lock().iter().any(|earlier| earlier.digest == digest && earlier.is_doubted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::{Kind, Name, Parameters};

    #[test]
    fn names_asked_for_in_another_way_have_another_version() {
        let version = |located: &[(&str, &[(&str, &str)])]| {
            let parameters = |pairs: &[(&str, &str)]| pairs.iter().copied().collect::<Parameters>();
            let located =
                located.iter().map(|(name, pairs)| (Name::from(*name), parameters(pairs))).collect();
            let asked = Subscription::new(false, ["a", "b", "c"].map(Name::from)).located(located);
            SetVersion::of(&Kind::Endpoint.into(), &asked, 0)
        };
        assert_ne!(version(&[("a", &[("b", "c")])]), version(&[("a", &[]), ("b", &[]), ("c", &[])]));
    }

    #[test]
    fn a_version_is_read_as_it_is_written_and_in_no_other_form() {
        let version = SetVersion(0xab);
        assert_eq!(SetVersion::parse(&version.to_string()), Some(version));
        for other in ["", "ab", "v7", "+00000000000000000000000000000ab", "000000000000000000000000000000AB"]
        {
            assert_eq!(SetVersion::parse(other), None, "{other}");
        }
    }

    #[test]
    fn the_newest_earlier_states_are_remembered_each_with_its_last_generation() {
        let (states, mut last) = (EarlierStates::default(), Generation::ZERO);
        let mut at = Vec::new();
        for number in 0..=EARLIER_STATES {
            last = last.next();
            at.push(last);
            states.record(number as u128, last);
        }
        assert_eq!(states.find(0), None);
        assert_eq!(states.find(1), Some(at[1]));
        states.doubt(7);
        states.doubt(0);
        last = last.next();
        states.record(7, last);
        assert_eq!(states.find(7), Some(last));
        assert!(states.is_doubted(7) && !states.is_doubted(0) && !states.is_doubted(8));
    }
}
