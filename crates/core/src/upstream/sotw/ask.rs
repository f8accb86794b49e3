//! SotW requests of one type, from the increments of the mux.
//!
//! A request that adds names has no version. go-control-plane's LinearCache before 0.14 compares
//! the version with that of each resource, and would not answer a name that was listed late and
//! changed early. Others answer a new name in any case (R-SotW-15).
//!
//! The ACK after it has no version either, if a response crossed the request: the control plane may
//! have dropped that for its old nonce, and reads the names in the ACK. The same holds for a report
//! (a NACK after the ACK), which may replace that ACK.
//!
//! A NACK of an overtaken response keeps its nonce: the newest one would reject the newer response,
//! which may be good. It may be dropped as stale (R-SotW-04), so a change of the list is repeated
//! with the newest nonce. A newer response that is bad gets its own NACK.

use std::collections::BTreeSet;

use super::{Listed, TypeState};
use crate::proto::{DeltaDiscoveryRequest, DiscoveryRequest};
use crate::resource::{Name, take_out};

impl TypeState {
    /// Returns the requests for this change: none or one, one more for a name that is requested
    /// again, and one more for an overtaken NACK. A name is requested again by leaving the list and
    /// coming back (R-SotW-17).
    pub(super) fn ask(&mut self, request: DeltaDiscoveryRequest) -> Vec<DiscoveryRequest> {
        // Without nonces (Envoy answers all the same) the next request is the answer.
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
        // A wildcard stays, as an empty list cannot end it. Its resources are ignored.
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
            // Any further copy is an answer. A control plane that sees no change of the list
            // believes that it has sent it.
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
        // A full-state response that crosses a list without the name would seem to remove it.
        let repeats = !again.is_empty() && !self.full_state;
        let accepts = is_newest && (!refuses || is_report);
        let may_be_unread = accepts && self.names.values().any(|listed| listed.reflected_in > self.responses);
        // Without a nonce a repeated ACK would be a request, and never end.
        let repeats_ack = has_no_nonce && self.told_version.as_ref() == Some(&self.version);
        if !(is_changed || repeats || refuses || (is_newest && !repeats_ack)) {
            // An ACK that a newer response has overtaken is not sent.
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
