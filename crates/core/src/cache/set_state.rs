//! State of a poll's subscription at one moment.
//!
//! A poll sends the version of the set that it holds, and gets the whole set if that differs (R-REST-04,
//! R-REST-07). Its cohort computes the version once per change. Invariant: the version depends only on type,
//! subscription and visible resources, not on order, generations or history.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use xxhash_rust::xxh3::Xxh3;

use super::Generation;
use super::change::Completeness;
use super::entry::VisibleState;
use super::snapshot::Snapshot;
use super::subscription::Subscription;
use crate::resource::{Resource, TypeUrl};

/// Version of a subscription and all that it sees: `version_info` of REST-JSON.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SetVersion(u128);

impl SetVersion {
    /// Its bits. The hash has no secret: a client may produce any version.
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

impl fmt::Debug for SetVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is no version that a relay gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignVersionError;

impl FromStr for SetVersion {
    type Err = ForeignVersionError;

    /// Reads only what [`Display`](fmt::Display) writes, not other spellings of the number.
    fn from_str(text: &str) -> Result<Self, ForeignVersionError> {
        let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 32 || !text.bytes().all(is_hex) {
            return Err(ForeignVersionError);
        }
        u128::from_str_radix(text, 16).map(Self).map_err(|_| ForeignVersionError)
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
