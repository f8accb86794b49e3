//! State-of-the-world requests.

use std::time::Instant;

use super::asks::Asks;
use super::own::Brought;
use super::session::{Heard, Refusal, Session};
use super::stream_type::StreamType;
use crate::cache::{Seen, Snapshot, Subscription, View};
use crate::proto::{self, ResourceLocator};
use crate::resource::Name;

/// How a list of names is read, which depends on the lists before it (R-SotW-13).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wants {
    /// A name, or `*`, was sent on this stream: from then on an empty list means nothing.
    explicit: bool,
}

impl Wants {
    /// Whether an empty list means nothing.
    pub(super) const fn is_explicit(self) -> bool {
        self.explicit
    }

    /// What a complete list of names subscribes to.
    pub(super) fn read(
        &mut self,
        names: &[String],
        locators: Vec<ResourceLocator>,
        legacy_wildcard: bool,
    ) -> Subscription {
        self.explicit |= !names.is_empty() || !locators.is_empty();
        let mut asks = Asks::new(!self.explicit && legacy_wildcard);
        names.iter().for_each(|name| drop(asks.subscribe(name)));
        locators.into_iter().for_each(|locator| drop(asks.locate(locator)));
        asks.into_plain_subscription()
    }
}

impl Session {
    /// Takes in a request of a state-of-the-world stream.
    pub fn hear_sotw(&mut self, request: proto::DiscoveryRequest, now: Instant) -> Result<Heard, Refusal> {
        self.meet(request.node)?;
        let type_url = self.type_of(&request.type_url)?;
        self.rules.check_list(&request.resource_names, &request.resource_locators)?;
        let legacy = self.allows_legacy_wildcard(&type_url);
        let one_shot = self.is_one_shot();

        let Some(at) = self.find(&type_url) else {
            // The first request of the type. A nonce or a version in it is of another stream (R-SotW-09).
            let mut wants = Wants::default();
            let subscription = wants.read(&request.resource_names, request.resource_locators, legacy);
            let only_wildcard = subscription.wildcard && subscription.names().is_empty();
            let mut state = StreamType::new(self.join(&type_url, subscription)?, now);
            state.wants = wants;
            state.must_answer = (state.kind.full_state() && !state.subscription().is_empty()) || one_shot;
            state.may_hold = !request.version_info.is_empty();
            if state.kind.full_state() && only_wildcard && !request.version_info.is_empty() {
                state.own_mut().brought = Some(Brought::Digest(request.version_info));
            }
            self.insert(state);
            self.turn_endpoints_of(&type_url);
            return Ok(Heard::Subscribed { type_url });
        };

        let state = self.state(at);
        let newest = state.is_newest(request.response_nonce.as_bytes());
        if newest {
            state.open_gate();
        } else if !request.response_nonce.is_empty() {
            state.answered_late(now);
        }
        // The list counts whatever the nonce: requests arrive in order, so it is the latest (R-SotW-05).
        let subscription = state.wants.read(&request.resource_names, request.resource_locators, legacy);
        if subscription != *state.subscription() {
            let is_new = |name: &&Name| {
                let (old, new, name) = (state.subscription(), &subscription, name.as_str());
                !old.contains(name) || old.locates(name) != new.locates(name)
            };
            let added: Vec<Name> = subscription.names().iter().filter(is_new).cloned().collect();
            let wildcard = subscription.wildcard && !state.subscription().wildcard;
            let is_left_with_some = state.kind.full_state()
                && leaves_some(state.subscription(), &subscription, &state.membership.of().snapshot());
            let of = self.store(&type_url, &subscription)?;
            self.count_hidden(wildcard, added.iter());
            let dialect = self.dialect;
            let state = self.state(at);
            state.look_again();
            state.resubscribe(of, subscription, dialect, now)?;
            if is_left_with_some {
                // It may be a member that has not come yet.
                (state.must_answer, state.may_hold) = (true, true);
            }
            self.turn_endpoints_of(&type_url);
            let state = self.state(at);
            let subscription = state.subscription().clone();
            let snapshot = state.membership.of().snapshot();
            let owed = &mut state.own_mut().owed;
            owed.held.retain(|name, _| subscription.contains(name.as_str()) && !added.contains(name));
            owed.names
                .retain(|name| subscription.contains(name.as_str()) || subscription.covers(name.as_str()));
            for name in added {
                owed.names.extend(snapshot.answers_of(&name).cloned());
                owed.names.insert(name);
            }
            state.trim();
        }
        // Told by `error_detail` alone, never by versions (R-SotW-01).
        Ok(match request.error_detail {
            _ if !newest => Heard::Stale { type_url },
            Some(_) if !self.state(at).reject() => Heard::Stale { type_url },
            Some(error) => Heard::Nack { type_url, error },
            None => Heard::Ack { type_url },
        })
    }
}

/// Whether a client that lets go of names goes on holding them: beside a wildcard it cannot tell whether they are members, and
/// only a full state that lacks them says so (R-SotW-18, as R-Delta-09).
fn leaves_some(old: &Subscription, new: &Subscription, snapshot: &Snapshot) -> bool {
    let is_member = |name: &str| snapshot.held(View::Wildcard, name).is_some();
    let is_no_member = |name: &Name| match snapshot.by_name(name.as_str()) {
        Seen::Unknown => false,
        seen => !is_member(seen.existing().map_or(name, |resource| resource.name()).as_str()),
    };
    let mut left = old.names().iter().filter(|name| !new.contains(name.as_str()));
    old.wildcard && new.wildcard && left.any(is_no_member)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(wants: &mut Wants, names: &[&str]) -> String {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        format!("{:?}", wants.read(&names, Vec::new(), true))
    }

    #[test]
    fn r_sotw_13_wildcard_vector_of_the_protocol() {
        let mut wants = Wants::default();
        assert_eq!(read(&mut wants, &[]), r#"{"*"}"#);
        assert_eq!(read(&mut wants, &["*", "A"]), r#"{"*", "A"}"#);
        assert_eq!(read(&mut wants, &["A"]), r#"{"A"}"#);
        assert_eq!(read(&mut wants, &[]), "{}");
    }

    #[test]
    fn r_sotw_14_without_legacy_only_the_star_is_a_wildcard() {
        let mut wants = Wants::default();
        assert!(wants.read(&[], Vec::new(), false).is_empty());
        assert!(wants.read(&["*".to_owned()], Vec::new(), false).wildcard);
    }
}
