//! Requests of one type, from the increments of the mux.
//!
//! A request that adds names says no version. The LinearCache of go-control-plane before 0.14 compares the version with that of
//! each resource, and would leave a name unanswered that was listed late and changed early. For others it makes no difference: a
//! request with a new name is answered in any case (R-SotW-15). So does the ACK after it, if a response crossed the request: an
//! origin may have dropped it for its old nonce, and reads the names in the ACK. A report (a NACK of a response that had its ACK) says
//! no version then either: it may take the place of that ACK at an origin that has not answered yet.
//!
//! A NACK of a response that a newer one has overtaken keeps its nonce: with the newest one it would refuse the newer response,
//! which may be good. An origin may drop it as stale (R-SotW-04), so nothing else depends on it: a change of the list that goes
//! with it is said once more, with the newest nonce. If the newer response is refused too, its own NACK tells the origin.

use std::collections::BTreeSet;

use super::{Listed, TypeState};
use crate::proto::{DeltaDiscoveryRequest, DiscoveryRequest};
use crate::resource::{Name, take_out};

impl TypeState {
    /// Requests that say what this one says: none, one, one more where a name is asked for again that is in the list, and one more
    /// for an overtaken NACK. No list says that a name is asked for again, so it leaves the list and comes back (R-SotW-17).
    pub(super) fn ask(&mut self, request: DeltaDiscoveryRequest) -> Vec<DiscoveryRequest> {
        // An origin may give no nonces (Envoy answers it all the same): then the next request is the answer.
        let has_no_nonce = self.owes_answer && self.asked && self.nonce.is_empty();
        let answers = has_no_nonce || !request.response_nonce.is_empty();
        let is_newest = answers && request.response_nonce == self.nonce;
        let refuses = request.error_detail.is_some();
        let is_report = refuses && is_newest && !self.owes_answer;
        let next = self.responses + if is_newest && self.owes_answer { 1 } else { 2 };
        let reflected_in = if self.asked { next } else { 1 };
        self.owes_answer &= !is_newest;

        let was_wildcard = self.wildcard;
        let starts_wildcard = !self.asked
            && !answers
            && request.resource_names_subscribe.is_empty()
            && request.resource_names_unsubscribe.is_empty();
        self.wildcard |= starts_wildcard;
        let (mut has_left, mut has_joined) = (false, false);
        // A wildcard that is let go stays: it cannot be left with an empty list. What comes of it is ignored.
        for name in request.resource_names_unsubscribe {
            let name = Name::from(name.as_str());
            has_left |= take_out(&mut self.names, &name).is_some();
            take_out(&mut self.delivered, &name);
        }
        let mut again = BTreeSet::new();
        for name in request.resource_names_subscribe {
            if name == Name::WILDCARD {
                self.wildcard = true;
                continue;
            }
            let name = Name::from(name.as_str());
            // Whatever comes of it from now on is an answer. Where no list says so, the origin believes that it has sent it.
            for delivered in self.delivered.get_mut(&name).into_iter().flatten() {
                delivered.is_retold = true;
            }
            if let Some(listed) = self.names.get_mut(&name) {
                listed.is_absent = false;
                again.insert(name);
            } else {
                has_joined = true;
                self.names.insert(name, Listed { reflected_in, is_absent: false });
            }
        }
        self.has_listed |= !self.names.is_empty();
        let is_changed = has_left || has_joined || was_wildcard != self.wildcard;
        // A response of a full-state type that crosses a list without the name would seem to say that it is gone.
        let repeats = !again.is_empty() && !self.full_state;
        let accepts = is_newest && (!refuses || is_report);
        let may_be_unread = accepts && self.names.values().any(|listed| listed.reflected_in > self.responses);
        // Without a nonce an ACK that repeats the one before would be a request: an origin that answers each would be asked for ever.
        let repeats_ack = has_no_nonce && self.told_version.as_ref() == Some(&self.version);
        if !(is_changed || repeats || refuses || (is_newest && !repeats_ack)) {
            // An ACK that a newer response has overtaken says nothing.
            return Vec::new();
        }
        self.told_version =
            (accepts && !(has_joined || repeats || may_be_unread)).then(|| self.version.clone());
        self.asked = true;
        let say = |resource_names: Vec<String>, adds: bool| DiscoveryRequest {
            version_info: if adds { String::new() } else { self.version.clone() },
            type_url: request.type_url.clone(),
            response_nonce: self.nonce.clone(),
            resource_names,
            ..DiscoveryRequest::default()
        };
        let mut said = Vec::with_capacity(2);
        let is_overtaken = refuses && !is_newest;
        if is_overtaken {
            let response_nonce = request.response_nonce;
            said.push(DiscoveryRequest { response_nonce, ..say(self.list(|_| true), has_joined) });
        }
        if repeats {
            said.push(say(self.list(|name| !again.contains(name)), has_joined || may_be_unread));
        }
        if is_changed || repeats || !is_overtaken {
            said.push(say(self.list(|_| true), has_joined || repeats || may_be_unread));
        }
        said[0].error_detail = request.error_detail;
        said
    }

    fn list(&self, is_listed: impl Fn(&Name) -> bool) -> Vec<String> {
        let wildcard = (self.wildcard && self.has_listed).then(|| Name::WILDCARD.to_owned());
        let names = self.names.keys().filter(|name| is_listed(name)).map(|name| name.as_str().to_owned());
        wildcard.into_iter().chain(names).collect()
    }
}
