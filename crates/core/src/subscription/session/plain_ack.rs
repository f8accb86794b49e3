//! Plain ACKs, recognized from their bytes: nearly every request is one.
//!
//! Decoding copies all strings of a request, and the repeated ones (node, names) can be long. An
//! ACK holds nothing new, so comparing is enough. All else goes to the decoder: this module rejects
//! nothing, and its result is that of decoding.

use smallvec::SmallVec;

use super::super::stream_type::StreamType;
use super::Session;
use crate::cache::Protocol;
use crate::resource::{Kind, Name, wire};

/// Relevant fields of a request.
#[derive(Default)]
struct Answer<'a> {
    type_url: Option<&'a [u8]>,
    nonce: Option<&'a [u8]>,
    /// Names of a SotW request. A delta request with names is no plain ACK.
    names: SmallVec<[&'a [u8]; 16]>,
}

impl<'a> Answer<'a> {
    /// `None` for other or repeated fields.
    fn read(protocol: Protocol, message: &'a [u8]) -> Option<Self> {
        let mut answer = Self::default();
        let (mut version, mut node) = (None, None);
        for field in wire::fields(message) {
            let field = field.ok()?;
            let value = field.bytes().ok()?;
            let place = match (protocol, field.number) {
                (Protocol::Delta, 2) | (Protocol::Sotw, 4) => &mut answer.type_url,
                (Protocol::Delta, 6) | (Protocol::Sotw, 5) => &mut answer.nonce,
                // A repeated node is ignored (R-EP-05).
                (Protocol::Delta, 1) | (Protocol::Sotw, 2) => &mut node,
                (Protocol::Sotw, 1) => {
                    std::str::from_utf8(value).ok()?;
                    &mut version
                }
                (Protocol::Sotw, 3) => {
                    answer.names.push(value);
                    continue;
                }
                _ => return None,
            };
            if place.replace(value).is_some() {
                return None;
            }
        }
        Some(answer)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckedType {
    /// See [`Session::types`].
    pub at: usize,
    pub kind: Kind,
}

impl Session {
    /// Handles a request that only accepts the newest response. `None` if it must be decoded.
    pub fn on_ack(&mut self, message: &[u8]) -> Option<AckedType> {
        self.client()?;
        let answer = Answer::read(self.profile.protocol, message)?;
        let at = self.find_text(answer.type_url.unwrap_or_default())?;
        let protocol = self.profile.protocol;
        let state = &mut self.types[at];
        let asks_nothing = match protocol {
            Protocol::Delta => answer.names.is_empty(),
            Protocol::Sotw => lists_the_same(state, &answer.names),
        };
        let nonce = answer.nonce?;
        if !asks_nothing || !state.is_newest(nonce) || state.is_rejected() {
            return None;
        }
        state.open_gate();
        let kind = state.kind;
        self.vote(at, nonce, None);
        Some(AckedType { at, kind })
    }

    /// The type may be missing on a per-type stream (R-EP-03).
    fn find_text(&self, text: &[u8]) -> Option<usize> {
        if text.is_empty() && !self.profile.aggregated {
            return (self.types.len() == 1).then_some(0);
        }
        self.types.iter().position(|state| state.type_url().as_str().as_bytes() == text)
    }
}

fn lists_the_same(state: &StreamType, names: &[&[u8]]) -> bool {
    let subscription = state.subscription();
    if subscription.locators().is_some() {
        // A list without locators ends those.
        return false;
    }
    if !state.wants.is_explicit() {
        // An empty list still means the same (R-SotW-13).
        return names.is_empty();
    }
    let is_star = |name: &&&[u8]| **name == Name::WILDCARD.as_bytes();
    let stars = names.iter().filter(is_star).count();
    if stars != usize::from(subscription.wildcard) || names.len() - stars != subscription.names().len() {
        return false;
    }
    // In any order: the count matches, all names are known and none comes twice.
    let mut seen: SmallVec<[u64; 4]> = SmallVec::from_elem(0, subscription.names().len().div_ceil(64));
    names.iter().filter(|name| !is_star(name)).all(|name| {
        subscription.position(name).is_some_and(|at| {
            let (word, bit) = (&mut seen[at / 64], 1 << (at % 64));
            let is_new = *word & bit == 0;
            *word |= bit;
            is_new
        })
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;
    use crate::cache::{Cache, Change, Completeness, Limits, Op, Resend, View};
    use crate::proto::{DeltaDiscoveryRequest, DiscoveryRequest, Node, Status};
    use crate::resource::{Envelope, TypeUrl};
    use crate::subscription::{NextStep, RequestKind, SessionConfig, Upstream};

    const KIND: Kind = Kind::Cluster;

    /// A stream that has been told `a`, and the nonce of that. What it first listed is what it subscribes to.
    fn told(protocol: Protocol, listed: &[String], now: Instant) -> (Session, String) {
        let (cache, mut writer) = Cache::new(Limits::default());
        let type_url = TypeUrl::from(KIND);
        let any = [&[10, type_url.as_str().len() as u8], type_url.as_str().as_bytes()].concat();
        let sent = [&[18, any.len() as u8], &any[..], &[26, 1, b'a']].concat();
        let resource = Envelope::parse(&sent, &type_url).unwrap().encode(&type_url, "a".into()).unwrap();
        let ops = vec![Op::Set {
            view: View::Wildcard,
            resource: Arc::new(resource),
            resend: Resend::Answer,
            lease: None,
        }];
        let change = Change { ops, wildcard_known: Some(Completeness::Complete), ..Change::default() };
        writer.apply(&type_url, change, now).unwrap();

        let mut session = Session::new(cache, Arc::new(SessionConfig::default()), protocol, None, now);
        say(&mut session, protocol, listed, "", None, now);
        let nonce = match session.next(now, Upstream::Answering) {
            NextStep::Send(outgoing) => outgoing.frame.nonce.to_string(),
            _ => String::new(),
        };
        (session, nonce)
    }

    /// A client asks for these names, or answers.
    fn say(
        session: &mut Session,
        protocol: Protocol,
        listed: &[String],
        nonce: &str,
        error_detail: Option<Status>,
        now: Instant,
    ) {
        let (node, type_url) = (Some(Node::default()), TypeUrl::from(KIND).as_str().to_owned());
        let (names, response_nonce) = (listed.to_vec(), nonce.to_owned());
        let heard = match protocol {
            Protocol::Delta => {
                let resource_names_subscribe = if nonce.is_empty() { names } else { Vec::new() };
                let request = DeltaDiscoveryRequest {
                    node,
                    type_url,
                    resource_names_subscribe,
                    response_nonce,
                    error_detail,
                    ..Default::default()
                };
                session.on_delta_request(request, Default::default(), now)
            }
            Protocol::Sotw => {
                let request = DiscoveryRequest {
                    node,
                    type_url,
                    resource_names: names,
                    response_nonce,
                    error_detail,
                    ..Default::default()
                };
                session.on_sotw_request(request, now)
            }
        };
        heard.unwrap();
    }

    fn lists() -> impl Strategy<Value = Vec<String>> {
        let name = prop_oneof![4 => "[abc]", 1 => Just("*".to_owned()), 1 => Just(String::new())];
        proptest::collection::vec(name, 0..4)
    }

    fn is_set(names: &[String]) -> bool {
        names.iter().collect::<std::collections::BTreeSet<_>>().len() == names.len()
    }

    fn maybe<T: Clone + std::fmt::Debug>(value: T) -> impl Strategy<Value = Option<T>> {
        prop_oneof![6 => Just(None), 1 => Just(Some(value))]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn an_ack_read_from_bytes_is_the_one_that_decoding_gives(
            delta: bool,
            listed in lists(),
            again in lists(),
            same: bool,
            ended in maybe("a".to_owned()),
            node in maybe(Node::default()),
            error_detail in maybe(Status::default()),
            other_type in maybe(()),
            other_nonce in maybe("1.1~7".to_owned()),
            extra in maybe(vec![0xfa, 0x06, 0x02, b'h', b'i']),
            rejected in maybe(Status::default()),
            cut in 0_usize..200,
        ) {
            let (now, ends) = (Instant::now(), ended.is_some());
            let protocol = if delta { Protocol::Delta } else { Protocol::Sotw };
            let mut listed_again = if same { listed.clone() } else { again };
            let ((mut quick, nonce), (mut slow, _)) =
                (told(protocol, &listed, now), told(protocol, &listed, now));
            if rejected.is_some() && !nonce.is_empty() {
                for session in [&mut quick, &mut slow] {
                    say(session, protocol, &listed, &nonce, rejected.clone(), now);
                }
            }
            let response_nonce = other_nonce.unwrap_or(nonce);
            let kind = other_type.map_or(KIND, |()| Kind::Listener);
            let type_url = TypeUrl::from(kind).as_str().to_owned();
            let (mut bytes, heard) = if delta {
                if same { listed_again.clear() }
                let request = DeltaDiscoveryRequest {
                    node, type_url, response_nonce, error_detail,
                    resource_names_subscribe: listed_again,
                    resource_names_unsubscribe: ended.into_iter().collect(),
                    ..Default::default()
                };
                (request.encode_to_vec(), slow.on_delta_request(request, Default::default(), now))
            } else {
                listed_again.reverse();
                let request = DiscoveryRequest {
                    node, type_url, response_nonce, error_detail,
                    resource_names: listed_again,
                    version_info: "7".to_owned(),
                    ..Default::default()
                };
                (request.encode_to_vec(), slow.on_sotw_request(request, now))
            };
            bytes.extend(extra.iter().flatten());

            let before = format!("{quick:?}");
            match quick.on_ack(&bytes) {
                Some(AckedType { at: 0, kind }) => {
                    prop_assert_eq!(heard, Ok(RequestKind::Ack { type_url: kind.into() }));
                    for (quick, slow) in quick.types.iter().zip(&slow.types) {
                        prop_assert_eq!(quick.subscription(), slow.subscription());
                        prop_assert_eq!(&quick.own().owed.names, &slow.own().owed.names);
                        prop_assert_eq!(quick.wants.is_explicit(), slow.wants.is_explicit());
                        prop_assert!(!quick.is_unanswered() && !slow.is_unanswered());
                    }
                }
                Some(other) => prop_assert!(false, "{:?} of one type", other),
                None => {
                    prop_assert_eq!(format!("{quick:?}"), before, "nothing was taken in");
                    let plain = same && !ends && extra.is_none() && !listed.iter().any(String::is_empty);
                    let is_ack = heard == Ok(RequestKind::Ack { type_url: KIND.into() });
                    prop_assert!(!(plain && is_ack && is_set(&listed)), "an ordinary ACK");
                }
            }
            // A message may end anywhere.
            _ = slow.on_ack(&bytes[..cut.min(bytes.len())]);
        }
    }
}
