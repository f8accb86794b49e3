//! Requests of delta and state-of-the-world streams.

use std::borrow::Cow;
use std::collections::HashSet;
use std::time::Instant;

use super::super::per_stream_state::{ResumedVersions, Versions};
use super::super::permissions::SessionError;
use super::super::stream_type::StreamType;
use super::super::stream_type::ack_gate::Answered;
use super::super::subscription_edit::{SotwNames, SubscriptionEdit};
use super::{RequestKind, Session};
use crate::cache::{Snapshot, Subscription, TypeCache, View, VisibleState};
use crate::limit::Limit;
use crate::proto::{self, ResourceLocator};
use crate::resource::{Name, TypeUrl, normal_form};

struct RequestedNames {
    subscribe: Vec<String>,
    locate: Vec<ResourceLocator>,
    unsubscribe: Vec<String>,
    unlocate: Vec<ResourceLocator>,
}

#[derive(Default)]
struct ChangedNames<'r> {
    /// Answered even if the client holds them: subscribing again asks again (R-Delta-04).
    owed: Vec<Name>,
    ended: Vec<Name>,
    /// Unsubscribed names that were not subscribed on this stream, in normal form.
    strangers: HashSet<Cow<'r, str>>,
}

impl RequestedNames {
    fn added(&self) -> impl Iterator<Item = &String> {
        self.subscribe.iter().chain(self.locate.iter().map(|locator| &locator.name))
    }

    fn asks_for_wildcard(&self) -> bool {
        self.added().any(|name| name == Name::WILDCARD)
    }

    fn is_empty(&self) -> bool {
        self.subscribe.is_empty()
            && self.locate.is_empty()
            && self.unsubscribe.is_empty()
            && self.unlocate.is_empty()
    }

    /// Subscribing comes first (R-Delta-03). `of`: the store of earlier subscriptions.
    fn apply(&mut self, asks: &mut SubscriptionEdit, of: Option<&TypeCache>) -> ChangedNames<'_> {
        let mut changed = ChangedNames::default();
        changed.owed.extend(self.subscribe.iter().filter_map(|name| asks.subscribe(name, None)));
        for ResourceLocator { name, dynamic_parameters } in self.locate.drain(..) {
            changed.owed.extend(asks.subscribe(&name, Some(dynamic_parameters.into_iter().collect())));
        }
        for name in &self.unsubscribe {
            match asks.unsubscribe(name, None) {
                Some(name) => changed.ended.push(name),
                None => drop(changed.strangers.insert(normal_form(name))),
            }
        }
        if let Some(of) = of.filter(|_| !changed.strangers.is_empty()) {
            changed.ended.extend(asks.unsubscribe_others(&of.snapshot(), &changed.strangers));
        }
        for ResourceLocator { name, dynamic_parameters } in self.unlocate.drain(..) {
            let parameters = dynamic_parameters.into_iter().collect();
            changed.ended.extend(asks.unsubscribe(&name, Some(&parameters)));
        }
        changed
    }
}

impl ChangedNames<'_> {
    /// Names that the client no longer holds, even if it only brought them along.
    fn let_go(&self) -> HashSet<&str> {
        self.ended.iter().map(Name::as_str).chain(self.strangers.iter().map(|name| &**name)).collect()
    }
}

impl Session {
    /// Handles a request of a delta stream. Its `initial_resource_versions` may have been moved into
    /// `versions`, in part or whole.
    ///
    /// # Errors
    ///
    /// [`SessionError`] if the request breaks the protocol or a limit, or is denied. The stream
    /// must end.
    pub fn on_delta_request(
        &mut self,
        request: proto::DeltaDiscoveryRequest,
        mut versions: Versions,
        now: Instant,
    ) -> Result<RequestKind, SessionError> {
        self.set_node(request.node, now)?;
        let type_url = self.type_of(&request.type_url)?;
        let mut requested = RequestedNames {
            subscribe: request.resource_names_subscribe,
            locate: request.resource_locators_subscribe,
            unsubscribe: request.resource_names_unsubscribe,
            unlocate: request.resource_locators_unsubscribe,
        };
        versions.extend(request.initial_resource_versions);
        let is_legacy = requested.is_empty();
        // Relays claim the end mark as held.
        for names in [&mut requested.subscribe, &mut requested.unsubscribe] {
            names.retain(|name| name != Name::END_MARK);
        }
        self.check_request(&type_url, &requested)?;
        let Some(at) = self.find(&type_url) else {
            self.begin_type(&type_url, requested, is_legacy, versions, now)?;
            return Ok(RequestKind::Subscribed { type_url });
        };
        // Later `initial_resource_versions` are ignored (R-Delta-05).
        let answered = self.types[at].match_nonce(request.response_nonce.as_bytes(), now);
        if !requested.is_empty() {
            self.change_type(at, &type_url, requested, now)?;
        }
        if request.error_detail.is_some() {
            self.types[at].doubt();
        }
        if request.response_nonce.is_empty() {
            return Ok(RequestKind::Subscribed { type_url });
        }
        Ok(self.record_answer(at, type_url, &request.response_nonce, answered, request.error_detail))
    }

    /// A repeated name counts once.
    fn check_request(&self, type_url: &TypeUrl, requested: &RequestedNames) -> Result<(), SessionError> {
        let nothing = Subscription::none();
        let held = self.find(type_url).map_or(&nothing, |at| self.types[at].subscription());
        let more = requested.added().filter(|name| !held.contains(&normal_form(name))).count();
        self.rules.check_names(requested.subscribe.iter(), held.names().len() + more)?;
        self.rules.check_locators(requested.locate.iter().chain(&requested.unlocate))
    }

    fn begin_type(
        &mut self,
        type_url: &TypeUrl,
        mut requested: RequestedNames,
        is_legacy: bool,
        mut versions: Versions,
        now: Instant,
    ) -> Result<(), SessionError> {
        let asks_nothing = is_legacy && !self.allows_legacy_wildcard(type_url);
        let mut asks = SubscriptionEdit::new(is_legacy && !asks_nothing);
        let changed = requested.apply(&mut asks, None);
        let subscription = asks.into_subscription();
        let wildcard = subscription.wildcard;
        let mut state = StreamType::new(self.join(type_url, subscription)?, now);
        state.must_answer = wildcard;
        if !wildcard {
            let let_go = changed.let_go();
            versions.retain(|name| !let_go.contains(name));
        }
        if versions.names().any(|name| name == Name::END_MARK) {
            versions.retain(|name| name != Name::END_MARK);
            state.own_mut().asks_end = !asks_nothing;
        }
        if !versions.is_empty() {
            state.own_mut().resumed = Some(ResumedVersions::Versions(versions));
        }
        self.insert(state);
        Ok(())
    }

    fn change_type(
        &mut self,
        at: usize,
        type_url: &TypeUrl,
        mut requested: RequestedNames,
        now: Instant,
    ) -> Result<(), SessionError> {
        let star = requested.asks_for_wildcard();
        let state = &mut self.types[at];
        let old = state.subscription().clone();
        // A repeated wildcard is answered, but held resources are not repeated. Clients send `*` to
        // make a legacy wildcard explicit when they add a name.
        let mut asks = SubscriptionEdit::of(&old);
        let changed = requested.apply(&mut asks, Some(state.membership.of()));
        let wildcard = asks.wildcard;
        state.must_answer = wildcard && (state.must_answer || star);
        for name in &changed.owed {
            state.own_mut().owed.gone.remove(name);
        }
        let subscription = asks.into_subscription();
        if let Some(ResumedVersions::Versions(versions)) =
            state.own_mut().resumed.as_mut().filter(|_| !wildcard)
        {
            let let_go = changed.let_go();
            if old.wildcard || !let_go.is_empty() {
                versions
                    .retain(|name| !let_go.contains(name) && (!old.wildcard || subscription.contains(name)));
            }
        }
        drop(old);
        let of = self.store(type_url, &subscription)?;
        self.count_hidden(star && wildcard, changed.owed.iter());
        let state = &mut self.types[at];
        if !changed.ended.is_empty() || state.subscription().wildcard != wildcard {
            state.reevaluate();
        }
        state.resubscribe(of, subscription, now)?;
        self.forget_accepted(at);
        self.owe_answers(at, changed)
    }

    fn owe_answers(&mut self, at: usize, changed: ChangedNames<'_>) -> Result<(), SessionError> {
        let max_owed = self.rules.max_names.saturating_mul(2);
        let max_owed_bytes = self.rules.max_subscription_bytes.saturating_mul(2);
        let ChangedNames { owed, ended, .. } = changed;
        let state = &mut self.types[at];
        let subscription = state.subscription().clone();
        let snapshot = state.membership.of().snapshot();
        let own = state.own_mut();
        let weight: usize = owed.iter().chain(&ended).map(|name| name.as_str().len()).sum();
        own.weight = own.weight.saturating_add(weight);
        let names = &mut own.owed.names;
        for name in owed {
            names.extend(snapshot.answers_of(&name).cloned());
            names.insert(name);
        }
        for name in ended {
            // Beside a wildcard the client cannot tell whether it has the resource (R-Delta-09).
            if subscription.wildcard {
                names.insert(name);
            } else {
                names.remove(&name);
            }
        }
        // Answers for unsubscribed names pile up while none can be sent. They are counted only once
        // there can be too many.
        if names.len() > max_owed || own.weight > max_owed_bytes {
            // The cache keeps names in collections.
            let own_names = names.iter().filter(|name| !subscription.covers(name.as_str()));
            let (count, bytes) =
                own_names.fold((0, 0), |(count, bytes), name| (count + 1, bytes + name.as_str().len()));
            own.weight = bytes;
            if count > max_owed {
                let message = format!("more than {max_owed} names of one type to be answered");
                return Err(SessionError::over(Limit::Names, message));
            }
            if bytes > max_owed_bytes {
                let message = format!("names of more than {max_owed_bytes} bytes of one type to be answered");
                return Err(SessionError::over(Limit::SubscriptionBytes, message));
            }
        }
        state.trim();
        Ok(())
    }
}

impl Session {
    /// Handles a request of a state-of-the-world stream.
    ///
    /// # Errors
    ///
    /// [`SessionError`] if the request breaks the protocol or a limit, or is denied. The stream
    /// must end.
    pub fn on_sotw_request(
        &mut self,
        request: proto::DiscoveryRequest,
        now: Instant,
    ) -> Result<RequestKind, SessionError> {
        self.set_node(request.node, now)?;
        let type_url = self.type_of(&request.type_url)?;
        self.rules.check_list(&request.resource_names, &request.resource_locators)?;
        let legacy = self.allows_legacy_wildcard(&type_url);

        let Some(at) = self.find(&type_url) else {
            // A nonce or a version in the first request belongs to another stream (R-SotW-09).
            let mut wants = SotwNames::default();
            let subscription = wants.read(&request.resource_names, request.resource_locators, legacy);
            let only_wildcard = subscription.is_lone_wildcard();
            let mut state = StreamType::new(self.join(&type_url, subscription)?, now);
            state.wants = wants;
            state.must_answer = state.kind.full_state() && !state.subscription().is_empty();
            state.may_hold = !request.version_info.is_empty();
            if state.kind.full_state() && only_wildcard && !request.version_info.is_empty() {
                state.own_mut().resumed = Some(ResumedVersions::Digest(request.version_info));
            }
            self.insert(state);
            return Ok(RequestKind::Subscribed { type_url });
        };

        let state = &mut self.types[at];
        let answered = state.match_nonce(request.response_nonce.as_bytes(), now);
        // Whatever the nonce: requests arrive in order, so the list is the newest (R-SotW-05).
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
            let state = &mut self.types[at];
            state.reevaluate();
            state.resubscribe(of, subscription, now)?;
            if is_left_with_some {
                // It may be a member that has not come yet.
                (state.must_answer, state.may_hold) = (true, true);
            }
            self.forget_accepted(at);
            let state = &mut self.types[at];
            let subscription = state.subscription().clone();
            if !subscription.wildcard {
                // The client no longer holds the set that it named first.
                state.take_resumed();
            }
            let snapshot = state.membership.of().snapshot();
            let owed = &mut state.own_mut().owed;
            owed.names
                .retain(|name| subscription.contains(name.as_str()) || subscription.covers(name.as_str()));
            for name in added {
                owed.names.extend(snapshot.answers_of(&name).cloned());
                owed.names.insert(name);
            }
            state.trim();
        }
        let state = &mut self.types[at];
        let rejects = request.error_detail.is_some() && answered != Answered::Other;
        if rejects && state.kind.full_state() && state.subscription().is_lone_wildcard() {
            // The client sends this version when it reconnects (R-SotW-02), and may have applied
            // parts of the response.
            state.membership.of().doubt_holders_of(&request.version_info);
        }
        Ok(self.record_answer(at, type_url, &request.response_nonce, answered, request.error_detail))
    }
}

/// Whether a client may still hold unsubscribed names. Beside a wildcard it cannot tell whether
/// they are members; only a full state without them says so (R-SotW-18, as R-Delta-09).
fn leaves_some(old: &Subscription, new: &Subscription, snapshot: &Snapshot) -> bool {
    let is_member = |name: &str| snapshot.held(View::Wildcard, name).is_some();
    let is_no_member = |name: &Name| match snapshot.by_name(name.as_str()) {
        VisibleState::Unknown => false,
        seen => !is_member(seen.existing().map_or(name, |resource| resource.name()).as_str()),
    };
    let mut left = old.names().iter().filter(|name| !new.contains(name.as_str()));
    old.wildcard && new.wildcard && left.any(is_no_member)
}
