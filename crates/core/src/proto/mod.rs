//! xDS messages of `proto/discovery.proto` and `proto/status.proto`, and JSON as protobuf.
//!
//! The generated code is committed: its generator takes longer to compile than the rest of the
//! core. A test compares it with the definitions; `make proto` writes it.

#[rustfmt::skip]
#[allow(unreachable_pub, clippy::all)]
mod discovery;

/// Messages of the client status discovery service.
#[rustfmt::skip]
#[allow(unreachable_pub, missing_docs, clippy::all)]
pub mod status;

pub use discovery::*;
// By the name of its package, for the module beside it.
use discovery as xds;

/// `envoy.service.status.v3.ConfigStatus`. Generated code would have its names too, which nobody uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum ConfigStatus {
    Unknown = 0,
    Synced = 1,
    NotSent = 2,
    Stale = 3,
    Error = 4,
}

/// `envoy.admin.v3.ClientResourceStatus`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum ClientResourceStatus {
    Unknown = 0,
    Requested = 1,
    DoesNotExist = 2,
    Acked = 3,
    Nacked = 4,
    ReceivedError = 5,
}

/// An object as a `google.protobuf.Struct`.
pub fn structure(object: &serde_json::Map<String, serde_json::Value>) -> prost_types::Struct {
    prost_types::Struct { fields: object.iter().map(|(key, json)| (key.clone(), value(json))).collect() }
}

/// Recursion is bounded by the depth of the JSON.
fn value(json: &serde_json::Value) -> prost_types::Value {
    use prost_types::value::Kind;
    let kind = match json {
        serde_json::Value::Null => Kind::NullValue(0),
        serde_json::Value::Bool(flag) => Kind::BoolValue(*flag),
        // Struct has only doubles; other integers are rounded, as everywhere in JSON.
        serde_json::Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or(f64::NAN)),
        serde_json::Value::String(text) => Kind::StringValue(text.clone()),
        serde_json::Value::Array(values) => {
            Kind::ListValue(prost_types::ListValue { values: values.iter().map(value).collect() })
        }
        serde_json::Value::Object(object) => Kind::StructValue(structure(object)),
    };
    prost_types::Value { kind: Some(kind) }
}

#[cfg(test)]
mod tests;
