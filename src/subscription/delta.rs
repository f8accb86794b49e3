//! Incremental requests.

use std::collections::{BTreeSet, HashSet};
use std::time::Instant;

use super::own::Brought;
use super::session::{Heard, Refusal, Session};
use super::stream_type::StreamType;
use crate::cache::Subscription;
use crate::proto;
use crate::resource::Name;

fn is_wildcard(name: &String) -> bool {
    name == Name::WILDCARD
}

impl Session {
    /// Takes in a request of a delta stream.
    pub fn hear_delta(
        &mut self,
        request: proto::DeltaDiscoveryRequest,
        now: Instant,
    ) -> Result<Heard, Refusal> {
        self.meet(request.node)?;
        let type_url = self.type_of(&request.type_url)?;
        let (subscribe, unsubscribe) = (request.resource_names_subscribe, request.resource_names_unsubscribe);
        let versions = request.initial_resource_versions;
        let names = self.find(&type_url).map_or(subscribe.len(), |at| {
            // A name that is asked for again is not one more.
            let held = self.types[at].subscription();
            held.names().len() + subscribe.iter().filter(|name| !held.contains(name)).count()
        });
        self.rules.check_names(subscribe.iter().chain(versions.keys()), names.max(versions.len()))?;

        let Some(at) = self.find(&type_url) else {
            let legacy =
                subscribe.is_empty() && unsubscribe.is_empty() && self.allows_legacy_wildcard(&type_url);
            let star = subscribe.iter().any(is_wildcard) && !unsubscribe.iter().any(is_wildcard);
            let wildcard = legacy || star;
            // Subscribing comes first (R-Delta-03).
            let ended: HashSet<&String> = unsubscribe.iter().collect();
            let named = subscribe.iter().filter(|name| !ended.contains(name));
            let names = named
                .filter(|name| !name.is_empty() && !is_wildcard(name))
                .map(|name| Name::from(name.as_str()));
            let subscription = Subscription::new(wildcard, names);
            let mut state = StreamType::new(self.join(&type_url, subscription)?, now);
            state.must_answer = wildcard;
            if !versions.is_empty() {
                state.own_mut().brought = Some(Brought::Versions(versions));
            }
            self.insert(state);
            return Ok(Heard::Subscribed { type_url });
        };

        // `initial_resource_versions` of a later request are not looked at (R-Delta-05).
        let max_owed = self.rules.max_names.saturating_mul(2);
        let state = self.state(at);
        let newest = state.is_newest(request.response_nonce.as_bytes());
        if newest {
            state.open_gate();
        }
        if !subscribe.is_empty() || !unsubscribe.is_empty() {
            let old = state.subscription().clone();
            let mut names: BTreeSet<Name> = old.names().iter().cloned().collect();
            // A wildcard that is asked for again is answered, but what the client holds is not repeated: clients say
            // `*` to make a legacy wildcard explicit when they add a name.
            let star = subscribe.iter().any(is_wildcard);
            let wildcard = (old.wildcard || star) && !unsubscribe.iter().any(is_wildcard);
            state.must_answer = wildcard && (state.must_answer || star);
            let mut owed = Vec::new();
            for name in subscribe.iter().filter(|name| !name.is_empty() && !is_wildcard(name)) {
                // Answered even if held: to subscribe again is to ask again (R-Delta-04).
                let name = Name::from(name.as_str());
                state.own_mut().owed.gone.remove(&name);
                owed.push(name.clone());
                names.insert(name);
            }
            let mut ended = Vec::new();
            for name in &unsubscribe {
                if let Some(name) = names.take(name.as_str()) {
                    ended.push(name);
                }
            }
            let subscription = Subscription::new(wildcard, names);
            if let Some(Brought::Versions(versions)) = state.own_mut().brought.as_mut().filter(|_| !wildcard)
            {
                // What it lets go of it does not hold when it asks for it again.
                if old.wildcard {
                    versions.retain(|name, _| subscription.contains(name));
                }
                for name in &unsubscribe {
                    versions.remove(name);
                }
            }
            state.resubscribe(subscription, now)?;
            let names = &mut state.own_mut().owed.names;
            names.extend(owed);
            for name in ended {
                // Beside a wildcard the client cannot tell whether it still has it (R-Delta-09).
                if wildcard {
                    names.insert(name);
                } else {
                    names.remove(&name);
                }
            }
            let owed = names.len();
            state.trim();
            // Beside what it asks for, answers for what it let go: while none can be sent they would pile up.
            if owed > max_owed {
                return Err(Refusal::exhausted(format!(
                    "more than {max_owed} names of one type to be answered"
                )));
            }
        }
        Ok(match request.error_detail {
            _ if request.response_nonce.is_empty() => Heard::Subscribed { type_url },
            _ if !newest => Heard::Stale { type_url },
            Some(_) if !self.state(at).reject() => Heard::Stale { type_url },
            Some(error) => Heard::Nack { type_url, error },
            None => Heard::Ack { type_url },
        })
    }
}
