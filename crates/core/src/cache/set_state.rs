//! View that a poll has of its subscription at one moment.
//!
//! A poll has no position and no history: it says which version of the whole it holds, and is given the whole when that
//! is another one (R-REST-04, R-REST-07). So all it needs is the version of what there is, which its cohort works out
//! once per change. Invariant: the version follows from the type, the subscription and the resources that it sees
//! alone: not from their order, from generations, or from what was seen before.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use xxhash_rust::xxh3::Xxh3;

use super::Generation;
use super::change::Completeness;
use super::entry::Seen;
use super::snapshot::Snapshot;
use super::subscription::Subscription;
use crate::resource::{Resource, TypeUrl};

/// The version of a subscription and everything that it sees: `version_info` of REST-JSON.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SetVersion(u128);

impl SetVersion {
    /// Its bits: those of a hash without a secret, over texts that clients choose, so that a client may bring about
    /// any version.
    pub const fn bits(self) -> u128 {
        self.0
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
        // For a client that asked by locators, equal resources are written in another way (R-DP-09).
        for (name, parameters) in subscription.locators().into_iter().flatten() {
            text(&mut hasher, name.as_str());
            // Or a parameter of one locator would look as the name of the next.
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

impl fmt::Debug for SetVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// No version that a relay has given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignVersionError;

impl FromStr for SetVersion {
    type Err = ForeignVersionError;

    /// Reads what [`Display`](fmt::Display) writes, and nothing else that means the same number.
    fn from_str(text: &str) -> Result<Self, ForeignVersionError> {
        let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 32 || !text.bytes().all(is_hex) {
            return Err(ForeignVersionError);
        }
        u128::from_str_radix(text, 16).map(Self).map_err(|_| ForeignVersionError)
    }
}

/// View of a cohort's polls, without the resources.
#[derive(Clone, Copy, Debug)]
pub struct SetState {
    /// The mark of the cohort that it was looked at for.
    pub(super) touched: Generation,
    /// The version of it all.
    pub version: SetVersion,
    /// When the newest change was made that is in it.
    pub changed_at: Option<Instant>,
    /// How much of the wildcard set is known, if it is subscribed to (R-Relay-05).
    pub wildcard: Completeness,
    /// Whether a name in the subscription is not known yet (R-Relay-04).
    pub unknown_name: bool,
    /// Whether anything is known of what was asked for, be it that it does not exist.
    pub knows_something: bool,
    /// Whether there is something in it whose body was not to be kept (R-XT-09): it can be told from another version, but
    /// not be written out.
    pub dropped: bool,
}

impl SetState {
    /// `is_known` says whether anything is known of names that may be seen, where some may not.
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
        look(snapshot, subscription, |seen| match seen {
            Seen::Present(resource) => {
                knows_something = true;
                found = u128::wrapping_add(found, resource.digest());
            }
            Seen::Dropped(resource) => {
                (knows_something, dropped) = (true, true);
                found = u128::wrapping_add(found, resource.digest());
            }
            Seen::Absent | Seen::Collection | Seen::Unresolved(_) => knows_something = true,
            // An error has no form here (R-REST-12): what it is about waits, and is not shown as missing.
            Seen::Unknown | Seen::Failed | Seen::Denied(_) => unknown_name = true,
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

/// Everything that a cohort's polls see.
#[derive(Clone, Debug)]
pub struct SetContents {
    /// The version of it all.
    pub version: SetVersion,
    /// Members of the wildcard set by name, then what was asked for beside them.
    pub resources: Vec<Arc<Resource>>,
    /// How they were asked for, where some were by locators.
    pub asked: Option<Subscription>,
}

impl SetContents {
    pub(super) fn of(type_url: &TypeUrl, asked: &Subscription, snapshot: &Snapshot) -> Self {
        let (mut resources, mut found) = (Vec::new(), 0);
        look(snapshot, asked, |seen| {
            if let Seen::Present(resource) = seen {
                found = u128::wrapping_add(found, resource.digest());
                resources.push(Arc::clone(resource));
            }
        });
        let version = SetVersion::of(type_url, asked, found);
        Self { version, resources, asked: asked.locators().is_some().then(|| asked.clone()) }
    }
}

/// Each name that is subscribed to, once: the members of the wildcard set if that is subscribed to, and what is seen
/// beside them.
fn look<'s>(snapshot: &'s Snapshot, subscription: &'s Subscription, mut with: impl FnMut(Seen<'s>)) {
    if subscription.wildcard {
        let members = snapshot.members().filter(|member| !member.is_delta_only());
        members.for_each(|member| with(Seen::Present(member)));
    }
    // A redirect is no resource of the type, which is all that there are words for (R-XT-07).
    snapshot.beside_wildcard(subscription).for_each(|seen| match seen {
        Seen::Present(resource) if resource.is_delta_only() => with(Seen::Absent),
        seen => with(seen),
    });
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
        assert_eq!(version.to_string().parse(), Ok(version));
        for other in ["", "ab", "v7", "+00000000000000000000000000000ab", "000000000000000000000000000000AB"]
        {
            assert_eq!(other.parse::<SetVersion>(), Err(ForeignVersionError), "{other}");
        }
    }
}
