//! State-of-the-world requests.

use std::time::Instant;

use super::super::per_stream_state::ResumedVersions;
use super::super::session_error::SessionError;
use super::super::stream_type::StreamType;
use super::super::stream_type::ack_gate::Answered;
use super::super::subscription_edit::SotwNames;
use super::{RequestKind, Session};
use crate::cache::{Snapshot, Subscription, View, VisibleState};
use crate::proto;
use crate::resource::Name;

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
        let one_shot = self.is_one_shot();

        let Some(at) = self.find(&type_url) else {
            // A nonce or a version in the first request belongs to another stream (R-SotW-09).
            let mut wants = SotwNames::default();
            let subscription = wants.read(&request.resource_names, request.resource_locators, legacy);
            let only_wildcard = subscription.is_lone_wildcard();
            let mut state = StreamType::new(self.join(&type_url, subscription)?, now);
            state.wants = wants;
            state.must_answer = (state.kind.full_state() && !state.subscription().is_empty()) || one_shot;
            state.may_hold = !request.version_info.is_empty();
            if state.kind.full_state() && only_wildcard && !request.version_info.is_empty() {
                state.own_mut().resumed = Some(ResumedVersions::Digest(request.version_info));
            }
            self.insert(state);
            self.update_endpoint_profile(&type_url);
            return Ok(RequestKind::Subscribed { type_url });
        };

        let state = self.state(at);
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
            let profile = self.profile;
            let state = self.state(at);
            state.reevaluate();
            state.resubscribe(of, subscription, profile, now)?;
            if is_left_with_some {
                // It may be a member that has not come yet.
                (state.must_answer, state.may_hold) = (true, true);
            }
            self.update_endpoint_profile(&type_url);
            let state = self.state(at);
            let subscription = state.subscription().clone();
            if !subscription.wildcard {
                // The client no longer holds the set that it named first.
                state.take_resumed();
            }
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
        let state = self.state(at);
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
