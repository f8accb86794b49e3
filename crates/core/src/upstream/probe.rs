//! Probe messages for a server that is not in use, to find out whether it answers.
//!
//! Owns one request for one subscription of the relay, and ACKs. Keeps nothing of the answers.
//! Knows neither streams nor time.

use bytes::Bytes;
use prost::Message as _;

use crate::RelayIdentity;
use crate::cache::Protocol;
use crate::proto::{ControlPlane, DeltaDiscoveryRequest, DiscoveryRequest, Node, ResourceLocator};
use crate::resource::wire;
use crate::resource::{Name, Parameters, TypeUrl};

/// One subscription to ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub(super) type_url: TypeUrl,
    pub(super) parameters: Parameters,
    /// Name, or `None` for the wildcard.
    pub(super) name: Option<Name>,
    /// Whether anything of it is held.
    pub(super) is_held: bool,
}

/// Whether an encoded response came through this relay itself (R-Relay-24).
pub fn came_from(response: &[u8], protocol: Protocol, identity: &RelayIdentity) -> bool {
    let number = match protocol {
        Protocol::Delta => 7,
        Protocol::Sotw => 6,
    };
    let field = wire::fields(response).map_while(Result::ok).find(|field| field.number == number);
    let control_plane = field.and_then(|field| ControlPlane::decode(field.bytes().ok()?).ok());
    control_plane.is_some_and(|control_plane| identity.is_in(&control_plane.identifier))
}

impl Question {
    /// Names as the mux requests them; R-Up-05 has the forms of the wildcard.
    fn names(&self, protocol: Protocol) -> Vec<String> {
        let has_legacy_form = protocol == Protocol::Sotw || self.type_url.kind().has_legacy_wildcard();
        let is_legacy_wildcard = self.name.is_none() && has_legacy_form;
        let name = self.name.as_ref().map_or(Name::WILDCARD, Name::as_str);
        (!is_legacy_wildcard).then(|| name.to_owned()).into_iter().collect()
    }

    /// Whether a response lacks the resources that are held: an answer, but no reason to use the
    /// server.
    pub fn is_denied_by(&self, response: &[u8]) -> bool {
        const RESOURCES: u32 = 2;
        self.is_held && !wire::fields(response).map_while(Result::ok).any(|field| field.number == RESOURCES)
    }

    /// Encodes the first request of a stream.
    pub fn ask(&self, protocol: Protocol, node: &Node) -> Bytes {
        let (node, type_url) = (Some(node.clone()), self.type_url.as_str().to_owned());
        let message = match protocol {
            Protocol::Sotw => {
                let resource_names = self.names(protocol);
                DiscoveryRequest { node, type_url, resource_names, ..DiscoveryRequest::default() }
                    .encode_to_vec()
            }
            Protocol::Delta if self.parameters.is_empty() => {
                let resource_names_subscribe = self.names(protocol);
                DeltaDiscoveryRequest { node, type_url, resource_names_subscribe, ..Default::default() }
                    .encode_to_vec()
            }
            Protocol::Delta => {
                let pairs = self.parameters.iter();
                let dynamic_parameters =
                    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
                let name = self.name.as_ref().map_or(Name::WILDCARD, Name::as_str).to_owned();
                let resource_locators_subscribe = vec![ResourceLocator { name, dynamic_parameters }];
                DeltaDiscoveryRequest { node, type_url, resource_locators_subscribe, ..Default::default() }
                    .encode_to_vec()
            }
        };
        message.into()
    }

    /// Encodes the ACK of a response; `None` if that is unreadable.
    pub fn acknowledge(&self, protocol: Protocol, response: &[u8]) -> Option<Bytes> {
        // Field numbers in responses of both protocols.
        const VERSION: u32 = 1;
        const NONCE: u32 = 5;
        let (mut version_info, mut response_nonce) = (String::new(), String::new());
        for field in wire::fields(response) {
            let field = field.ok()?;
            match field.number {
                VERSION => version_info = field.text().ok()?.to_owned(),
                NONCE => response_nonce = field.text().ok()?.to_owned(),
                _ => {}
            }
        }
        let type_url = self.type_url.as_str().to_owned();
        let message = match protocol {
            Protocol::Delta => {
                DeltaDiscoveryRequest { type_url, response_nonce, ..Default::default() }.encode_to_vec()
            }
            Protocol::Sotw => {
                let resource_names = self.names(protocol);
                DiscoveryRequest {
                    version_info,
                    type_url,
                    resource_names,
                    response_nonce,
                    ..Default::default()
                }
                .encode_to_vec()
            }
        };
        Some(message.into())
    }
}
