//! What one client may ask for, in numbers and in bytes.
//!
//! Owns the bounds that a refusal can name, and those that are checked over a whole subscription or over a request before
//! it is decoded: on the wire a name can take two bytes, and in memory dozens.

use super::session::{Refusal, Rules};
use crate::cache::{Protocol, Subscription};
use crate::resource::TypeUrl;
use crate::resource::wire::{self, Malformed, Value};

/// What was reached by who is refused, or closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// `max_names`
    Names,
    /// `max_names_per_connection`
    ConnectionNames,
    /// `max_name_bytes`
    NameBytes,
    /// `max_subscription_bytes`
    SubscriptionBytes,
    /// Dynamic parameters of one locator, or sets of them for one type.
    Parameters,
    /// What the cache keeps of them for all clients.
    ParameterSets,
    /// Types of one stream, or those that the control plane does not have, of all streams.
    Types,
    /// `unacked_timeout`
    Unacked,
}

/// Features of a client beyond which its node is not decoded. What is known are a handful.
const MAX_FEATURES: usize = 10_000;

impl Refusal {
    /// It is for this bound.
    pub(super) const fn over(mut self, bound: Bound) -> Self {
        self.bound = Some(bound);
        self
    }
}

impl From<Malformed> for Refusal {
    fn from(_: Malformed) -> Self {
        Self::invalid("the request is not a proto3 message")
    }
}

impl Rules {
    /// Whether what a client subscribes to of one type stays within bounds.
    pub(super) fn check_weight(&self, subscription: &Subscription) -> Result<(), Refusal> {
        let (bytes, max) = (subscription.weight(), self.max_subscription_bytes);
        if bytes <= max {
            return Ok(());
        }
        let message =
            format!("the names and locators of one type take {bytes} bytes, more than the limit of {max}");
        Err(Refusal::exhausted(message).over(Bound::SubscriptionBytes))
    }

    /// Whether a request, decoded, would be of a size that its length lets expect. Groups are refused: the decoder would
    /// skip them, and read behind them what is not counted here.
    pub fn check_parts(&self, protocol: Protocol, message: &[u8]) -> Result<(), Refusal> {
        // Names may come twice, which is nobody's fault, and beside them there is the wildcard.
        let max = self.max_names.saturating_mul(2).saturating_add(64);
        let (mut names, mut node_parts) = (0_usize, 0);
        for field in wire::fields(message) {
            let field = field?;
            let Value::Bytes(bytes) = field.value else { continue };
            match (protocol, field.number) {
                (Protocol::Sotw, 3) | (Protocol::Delta, 3 | 4) => names += 1,
                (Protocol::Sotw, 7) | (Protocol::Delta, 8 | 9) => {
                    names += 1;
                    if parts(bytes, 2)? > self.max_parameters {
                        let max = self.max_parameters;
                        let message = format!("more than {max} dynamic parameters in one locator");
                        return Err(Refusal::exhausted(message).over(Bound::Parameters));
                    }
                }
                (Protocol::Sotw, 2) | (Protocol::Delta, 1) => node_parts += parts(bytes, 10)?,
                _ => {}
            }
        }
        if names > max {
            let message = format!("more than {max} names in one request");
            return Err(Refusal::exhausted(message).over(Bound::Names));
        }
        if node_parts > MAX_FEATURES {
            return Err(Refusal::exhausted(format!("more than {MAX_FEATURES} `node.client_features`")));
        }
        Ok(())
    }

    /// Refuses a connection that asks for more names than one may, over all its streams and requests.
    pub fn check_connection(&self, names: usize) -> Result<(), Refusal> {
        let max = self.max_connection_names;
        if names <= max {
            return Ok(());
        }
        let message = format!("more than {max} names over all streams and requests of one connection");
        Err(Refusal::exhausted(message).over(Bound::ConnectionNames))
    }

    /// A client that takes responses and answers none.
    pub(super) fn unanswered(&self, type_url: &TypeUrl) -> Refusal {
        let after = self.unacked_timeout;
        let message =
            format!("no response of {type_url} was answered for {after:?}; ACK or NACK what is sent");
        Refusal::exhausted(message).over(Bound::Unacked)
    }
}

/// How many fields of this number a message has.
fn parts(message: &[u8], number: u32) -> Result<usize, Malformed> {
    wire::fields(message).try_fold(0, |count, field| Ok(count + usize::from(field?.number == number)))
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::proto::{DeltaDiscoveryRequest, DiscoveryRequest, Node, ResourceLocator};
    use crate::resource::Name;
    use crate::subscription::Code;

    #[test]
    fn what_is_small_on_the_wire_and_large_in_memory_is_refused_undecoded() {
        let rules = Rules { max_names: 10, max_parameters: 2, ..Rules::default() };
        let many = |count| vec![String::new(); count];
        let locator = |count: usize| ResourceLocator {
            name: "a".to_owned(),
            dynamic_parameters: (0..count).map(|at| (at.to_string(), String::new())).collect(),
        };
        let node = |features| Some(Node { client_features: many(features), ..Node::default() });
        for (count, locators, parameters, features, expected) in [
            (84, 0, 0, 0, Ok(())),
            (85, 0, 0, 0, Err(Some(Bound::Names))),
            (80, 5, 0, 0, Err(Some(Bound::Names))),
            (0, 84, 2, 0, Ok(())),
            (0, 1, 3, 0, Err(Some(Bound::Parameters))),
            (0, 0, 0, MAX_FEATURES, Ok(())),
            (0, 0, 0, MAX_FEATURES + 1, Err(None)),
        ] {
            let sotw = DiscoveryRequest {
                node: node(features),
                resource_names: many(count),
                resource_locators: vec![locator(parameters); locators],
                ..Default::default()
            };
            let delta = DeltaDiscoveryRequest {
                node: node(features),
                resource_names_unsubscribe: many(count),
                resource_locators_subscribe: vec![locator(parameters); locators],
                ..Default::default()
            };
            for (protocol, message) in
                [(Protocol::Sotw, sotw.encode_to_vec()), (Protocol::Delta, delta.encode_to_vec())]
            {
                let checked = rules.check_parts(protocol, &message);
                let told = checked.as_ref().map_err(|refusal| refusal.bound).copied();
                assert_eq!(told, expected, "{protocol:?} {count} {locators} {parameters} {features}");
                assert!(checked.is_ok_and(|()| true) || expected.is_err());
            }
        }
    }

    #[test]
    fn a_group_is_refused_wherever_it_would_hide_what_is_counted() {
        // The start of group 12, and its end.
        let group = [0x63, 0x64];
        let around = |number: u8| [&[number << 3 | 2, group.len() as u8], &group[..]].concat();
        for (protocol, node, locators) in [(Protocol::Sotw, 2, 7), (Protocol::Delta, 1, 8)] {
            for message in [group.to_vec(), around(node), around(locators)] {
                let refusal = Rules::default().check_parts(protocol, &message).expect_err("a group");
                assert_eq!(refusal.code, Code::InvalidArgument, "{protocol:?} {message:?}");
            }
            assert_eq!(Rules::default().check_parts(protocol, &around(12)), Ok(()), "it is not looked into");
        }
    }

    #[test]
    fn a_subscription_weighs_its_names_spellings_and_locators() {
        let rules = Rules { max_subscription_bytes: 10, ..Rules::default() };
        let plain = Subscription::new(false, ["abcde", "fghij"].map(Name::from));
        assert_eq!((plain.weight(), rules.check_weight(&plain)), (10, Ok(())));
        let parameters = [("k", "v")].into_iter().collect();
        let located = plain.located([(Name::from("abcde"), parameters)].into_iter().collect());
        let refusal = rules.check_weight(&located).expect_err("twelve bytes");
        assert_eq!((refusal.code, refusal.bound), (Code::ResourceExhausted, Some(Bound::SubscriptionBytes)));
    }
}
