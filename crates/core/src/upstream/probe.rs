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
        self.request(protocol, Some(node), String::new(), String::new())
    }

    /// Encodes the ACK of a response; `None` if that is unreadable.
    pub fn acknowledge(&self, protocol: Protocol, response: &[u8]) -> Option<Bytes> {
        // Field numbers in responses of both protocols.
        const VERSION: u32 = 1;
        const NONCE: u32 = 5;
        let (mut version, mut nonce) = (String::new(), String::new());
        for field in wire::fields(response) {
            let field = field.ok()?;
            match field.number {
                VERSION => version = field.text().ok()?.to_owned(),
                NONCE => nonce = field.text().ok()?.to_owned(),
                _ => {}
            }
        }
        Some(self.request(protocol, None, version, nonce))
    }

    /// Only the first request has a node. In SotW each request has the names.
    fn request(
        &self,
        protocol: Protocol,
        node: Option<&Node>,
        version_info: String,
        response_nonce: String,
    ) -> Bytes {
        let (is_first, node) = (node.is_some(), node.cloned());
        let type_url = self.type_url.as_str().to_owned();
        if protocol == Protocol::Sotw {
            let resource_names = self.names(protocol);
            return DiscoveryRequest {
                version_info,
                node,
                resource_names,
                type_url,
                response_nonce,
                ..DiscoveryRequest::default()
            }
            .encode_to_vec()
            .into();
        }
        let mut request =
            DeltaDiscoveryRequest { node, type_url, response_nonce, ..DeltaDiscoveryRequest::default() };
        if is_first && self.parameters.is_empty() {
            request.resource_names_subscribe = self.names(protocol);
        } else if is_first {
            let name = self.name.as_ref().map_or(Name::WILDCARD, Name::as_str);
            request.resource_locators_subscribe.push(locator(name, &self.parameters));
        }
        request.encode_to_vec().into()
    }
}

/// Name with parameters, as it is requested.
pub(super) fn locator(name: &str, parameters: &Parameters) -> ResourceLocator {
    let pairs = parameters.iter();
    let dynamic_parameters = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    ResourceLocator { name: name.to_owned(), dynamic_parameters }
}
