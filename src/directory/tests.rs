//! Helpers that the tests of this module share.

mod decode;
mod watch;

use prost_reflect::DynamicMessage;
use serde_json::{Value, json};

use crate::descriptors::{ANY, any_to_json, message, text_formats};
use crate::resource::{Resource, wire};

const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
const LISTENER: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
const WRAPPER: &str = "type.googleapis.com/envoy.service.discovery.v3.Resource";
const RESPONSE: &str = "type.googleapis.com/envoy.service.discovery.v3.DiscoveryResponse";

/// The encoding of an Any that is given as JSON.
fn encode_any(value: &Value) -> Vec<u8> {
    text_formats::encode(&DynamicMessage::deserialize(message(ANY).unwrap(), value).unwrap()).unwrap()
}

fn cluster(name: &str) -> Value {
    json!({"@type": CLUSTER, "name": name, "connectTimeout": "1s"})
}

fn response(resources: &[Value]) -> Value {
    json!({"resources": resources, "versionInfo": "7"})
}

/// The encoding of a DiscoveryResponse that is given as JSON.
fn binary_response(mut value: Value) -> Vec<u8> {
    value["@type"] = RESPONSE.into();
    field(&encode_any(&value), 2)
}

/// Content of a length-delimited field of a message.
fn field(bytes: &[u8], number: u32) -> Vec<u8> {
    let mut fields = wire::fields(bytes).map(Result::unwrap);
    fields
        .find(|field| field.number == number)
        .and_then(|field| field.bytes().ok())
        .unwrap_or_default()
        .to_vec()
}

/// The encoding of a resource as it is served: an `envoy.service.discovery.v3.Resource`.
fn wrapper(of: &Resource) -> Vec<u8> {
    field(of.delta_entry(), 2)
}

/// A wrapper as JSON, with all that it holds.
fn shown(wrapper: &[u8]) -> Value {
    let mut any = Vec::new();
    wire::put_bytes(&mut any, 1, WRAPPER.as_bytes());
    wire::put_bytes(&mut any, 2, wrapper);
    any_to_json(&any).unwrap()
}
