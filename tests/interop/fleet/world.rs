//! Numbered resources of a control plane, and clients that are held against them.

use std::collections::{BTreeMap, BTreeSet};

use deltafan::descriptors;
use prost::Message as _;
use prost_reflect::DynamicMessage;
use serde_json::Value;

use super::client::{Client, Subscription};
use crate::fixture::{Origin, resources::numbered};

/// A client, and the resources that it asks for.
pub(crate) struct Guest {
    pub(crate) client: Client,
    pub(crate) who: String,
    pub(crate) asked: Vec<Subscription>,
}

impl Guest {
    /// Why it does not hold what it should.
    pub(crate) fn complaint(&self, world: &World) -> Option<String> {
        let Self { client, who, asked } = self;
        if let Some(failure) = client.failure() {
            return Some(format!("{who}: {failure}"));
        }
        asked.iter().find_map(|subscription| {
            let type_url = subscription.type_url;
            let is_asked = |name: &&str| subscription.is_for(name);
            let expected: BTreeSet<_> = world.names(type_url).filter(is_asked).map(str::to_owned).collect();
            let held = client.names(type_url);
            if held != expected {
                return Some(format!("{who}: {type_url}: holds {held:?}, not {expected:?}"));
            }
            let old = |name: &&String| {
                let body = client.resource(type_url, name).unwrap();
                descriptors::any_to_json(&body).unwrap() != world.body(type_url, name)
            };
            let old: Vec<_> = held.iter().filter(old).collect();
            (!old.is_empty()).then(|| format!("{who}: {type_url}: holds old {old:?}"))
        })
    }
}

/// Subscriptions to these names of these types; to all resources of a type without names.
pub(crate) fn subscriptions(asked: &[(&'static str, &[&str])]) -> Vec<Subscription> {
    let subscription = |(type_url, names): &(&'static str, &[&str])| Subscription {
        type_url,
        names: names.iter().map(|name| (*name).to_owned()).collect(),
    };
    asked.iter().map(subscription).collect()
}

/// Resources of the control plane: how often each was changed, by type and name.
#[derive(Clone, Default)]
pub(crate) struct World {
    resources: BTreeMap<&'static str, BTreeMap<&'static str, u16>>,
    changes: u16,
}

impl World {
    pub(crate) fn set(&mut self, origin: &Origin, type_url: &'static str, name: &'static str) {
        self.changes += 1;
        self.set_to(origin, type_url, name, self.changes);
    }

    pub(crate) fn set_to(
        &mut self,
        origin: &Origin,
        type_url: &'static str,
        name: &'static str,
        number: u16,
    ) {
        origin.put(&numbered(type_url, name, number));
        self.resources.entry(type_url).or_default().insert(name, number);
    }

    pub(crate) fn toggle(&mut self, origin: &Origin, type_url: &'static str, name: &'static str) {
        if self.names(type_url).any(|is| is == name) {
            self.remove(origin, type_url, name);
        } else {
            self.set(origin, type_url, name);
        }
    }

    pub(crate) fn remove(&mut self, origin: &Origin, type_url: &'static str, name: &'static str) {
        self.resources.entry(type_url).or_default().remove(name);
        origin.delete(type_url, name);
    }

    pub(crate) fn names(&self, type_url: &str) -> impl Iterator<Item = &'static str> {
        self.resources[type_url].keys().copied()
    }

    pub(crate) fn number(&self, type_url: &str, name: &str) -> u16 {
        self.resources[type_url][name]
    }

    /// The canonical JSON of a resource.
    pub(crate) fn body(&self, type_url: &str, name: &str) -> Value {
        canonical(numbered(type_url, name, self.number(type_url, name)))
    }
}

/// The canonical form of the JSON of a resource.
pub(crate) fn canonical(body: Value) -> Value {
    let any = descriptors::pool().get_message_by_name("google.protobuf.Any").unwrap();
    let encoded = DynamicMessage::deserialize(any, body).unwrap().encode_to_vec();
    descriptors::any_to_json(&encoded).unwrap()
}
