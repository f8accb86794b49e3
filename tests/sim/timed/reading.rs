//! Responses as they are read from the wire.
//!
//! Owns the checks that hold of every response. Knows nothing of subscriptions.

use bytes::Bytes;
use deltafan::cache::Protocol;
use deltafan::proto::{DeltaDiscoveryResponse, DiscoveryResponse};
use deltafan::resource::{Envelope, SotwElement, TypeUrl, normal_form};
use prost::Message as _;

use super::truth::{TYPES, at_of};
use deltafan_test_support::wire::{body, type_url};

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) at: usize,
    pub(crate) version: String,
    pub(crate) nonce: String,
    /// Name, text and version; a heartbeat has no text.
    pub(crate) resources: Vec<(String, String, String)>,
    pub(crate) removed: Vec<String>,
}

impl Told {
    pub(crate) fn has(&self, name: &str) -> bool {
        self.resources.iter().any(|(told, ..)| told == name)
    }

    /// For people to read.
    pub(crate) fn shown(&self) -> String {
        let shown: Vec<String> =
            self.resources.iter().map(|(name, text, _)| format!("{name}:{text}")).collect();
        format!("{} #{} [{}] -{:?}", TYPES[self.at], self.nonce, shown.join(" "), self.removed)
    }
}

pub(crate) fn read_delta(message: &[u8]) -> Told {
    let message = DeltaDiscoveryResponse::decode(message).expect("a response");
    let at = at_of(&message.type_url);
    let type_url = type_url(TYPES[at]);
    let read = |bytes: &Bytes| {
        let envelope = Envelope::parse(bytes, &type_url).expect("a resource");
        let text = envelope.body.map(|any| body(any, &type_url).1).unwrap_or_default();
        (normal_form(envelope.name).into_owned(), text, envelope.version.to_owned())
    };
    let told = Told {
        at,
        version: String::new(),
        nonce: message.nonce,
        resources: message.resources.iter().map(read).collect(),
        removed: message.removed_resources.iter().map(|name| normal_form(name).into_owned()).collect(),
    };
    told.check();
    told
}

/// State of the world as a relay reads it: resources may be wrapped.
pub(crate) fn read_state(message: &[u8]) -> Told {
    read_state_with(message, |bytes, type_url| {
        let resource = SotwElement::parse(bytes, type_url).expect("a resource").as_delta("");
        let envelope = Envelope::parse(&resource, type_url).expect("a resource");
        let text = envelope.body.map(|any| body(any, type_url).1).unwrap_or_default();
        (envelope.name.to_owned(), text)
    })
}

/// A response as a client of this protocol reads it.
pub(crate) fn read(protocol: Protocol, message: &[u8]) -> Told {
    match protocol {
        Protocol::Delta => read_delta(message),
        Protocol::Sotw => read_state_with(message, |any, type_url| body(any, type_url)),
    }
}

fn read_state_with(message: &[u8], read: impl Fn(&Bytes, &TypeUrl) -> (String, String)) -> Told {
    let message = DiscoveryResponse::decode(message).expect("a response");
    let at = at_of(&message.type_url);
    let type_url = type_url(TYPES[at]);
    let read = |bytes| {
        let (name, text) = read(bytes, &type_url);
        (normal_form(&name).into_owned(), text, String::new())
    };
    let told = Told {
        at,
        version: message.version_info,
        nonce: message.nonce,
        resources: message.resources.iter().map(read).collect(),
        removed: Vec::new(),
    };
    told.check();
    told
}

impl Told {
    fn check(&self) {
        let mut names: Vec<&str> = self.resources.iter().map(|(name, ..)| name.as_str()).collect();
        names.extend(self.removed.iter().map(String::as_str));
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "a name twice in {}", self.shown());
        assert!(!self.nonce.is_empty());
    }
}
