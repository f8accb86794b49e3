//! Incremental requests.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Instant;

use super::own::Brought;
use super::session::{Heard, Refusal, Session};
use super::stream_type::StreamType;
use crate::cache::{Snapshot, Subscription};
use crate::proto;
use crate::resource::{Name, normal_form, without_directives};

fn is_wildcard(name: &String) -> bool {
    name == Name::WILDCARD
}

/// Takes in a name as a client spells it. Where that is not the normal form, it is answered by its own spelling: not
/// every client compares names by their components.
fn take_in(text: &str, spelled: &mut BTreeMap<Name, Name>) -> Name {
    let name = Name::normal(text);
    match without_directives(text) {
        own if own == name.as_str() => spelled.remove(&name),
        own => spelled.insert(name.clone(), own.into()),
    };
    name
}

/// Versions by the normal form of their names.
fn by_normal_form(versions: HashMap<String, String>) -> HashMap<String, String> {
    if versions.keys().all(|name| matches!(normal_form(name), Cow::Borrowed(_))) {
        return versions;
    }
    versions.into_iter().map(|(name, version)| (normal_form(&name).into_owned(), version)).collect()
}

/// Takes out the names of resources that are let go by another name than they were asked for by (R-Delta-21).
fn take_other_names(
    snapshot: &Snapshot,
    names: &mut BTreeSet<Name>,
    let_go: &HashSet<Cow<'_, str>>,
) -> BTreeSet<Name> {
    let is_let_go = |name: &Name| {
        snapshot.by_name(name.as_str()).existing().is_some_and(|resource| {
            let_go.contains(resource.name().as_str())
                || resource.aliases().any(|alias| let_go.contains(&*normal_form(alias)))
        })
    };
    let (ended, kept) = std::mem::take(names).into_iter().partition(is_let_go);
    *names = kept;
    ended
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
        let versions = by_normal_form(request.initial_resource_versions);
        let names = self.find(&type_url).map_or(subscribe.len(), |at| {
            // A name that is asked for again is not one more.
            let held = self.types[at].subscription();
            held.names().len() + subscribe.iter().filter(|name| !held.contains(&normal_form(name))).count()
        });
        self.rules.check_names(subscribe.iter().chain(versions.keys()), names.max(versions.len()))?;

        let Some(at) = self.find(&type_url) else {
            let legacy =
                subscribe.is_empty() && unsubscribe.is_empty() && self.allows_legacy_wildcard(&type_url);
            let star = subscribe.iter().any(is_wildcard) && !unsubscribe.iter().any(is_wildcard);
            let wildcard = legacy || star;
            // Subscribing comes first (R-Delta-03).
            let ended: HashSet<Cow<'_, str>> = unsubscribe.iter().map(|name| normal_form(name)).collect();
            let mut spelled = BTreeMap::new();
            let named = subscribe.iter().filter(|name| !name.is_empty() && !is_wildcard(name));
            let named: Vec<Name> = named.map(|name| take_in(name, &mut spelled)).collect();
            let names = named.into_iter().filter(|name| !ended.contains(name.as_str()));
            let subscription = Subscription::new(wildcard, names).spelled(spelled);
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
            let mut spelled = old.spellings().cloned().unwrap_or_default();
            let mut owed = Vec::new();
            for name in subscribe.iter().filter(|name| !name.is_empty() && !is_wildcard(name)) {
                // Answered even if held: to subscribe again is to ask again (R-Delta-04).
                let name = take_in(name, &mut spelled);
                state.own_mut().owed.gone.remove(&name);
                owed.push(name.clone());
                names.insert(name);
            }
            let mut ended = Vec::new();
            let mut strangers = HashSet::new();
            for name in &unsubscribe {
                match names.take(&*normal_form(name)) {
                    Some(name) => ended.push(name),
                    None => drop(strangers.insert(normal_form(name))),
                }
            }
            if !strangers.is_empty() {
                ended.extend(take_other_names(&state.membership.of().snapshot(), &mut names, &strangers));
            }
            let subscription = Subscription::new(wildcard, names).spelled(spelled);
            if let Some(Brought::Versions(versions)) = state.own_mut().brought.as_mut().filter(|_| !wildcard)
            {
                // What it lets go of it does not hold when it asks for it again.
                if old.wildcard {
                    versions.retain(|name, _| subscription.contains(name));
                }
                for name in &unsubscribe {
                    versions.remove(&*normal_form(name));
                }
            }
            state.resubscribe(subscription.clone(), now)?;
            let snapshot = state.membership.of().snapshot();
            let names = &mut state.own_mut().owed.names;
            for name in owed {
                names.extend(snapshot.members_of(&name).map(|member| member.name().clone()));
                names.insert(name);
            }
            for name in ended {
                // Beside a wildcard the client cannot tell whether it still has it (R-Delta-09).
                if wildcard {
                    names.insert(name);
                } else {
                    names.remove(&name);
                }
            }
            // What the cache has of collections takes none of a client's own.
            let owed = names.iter().filter(|name| !subscription.covers(name.as_str())).count();
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
