//! Resources without keys and passwords, as JSON and encoded.
//!
//! Hidden are fields that Envoy's API marks with `udpa.annotations.sensitive`, and other
//! credentials ([`UNMARKED`], and values of headers). In a `TypedStruct` all values are, as nothing
//! tells which one is a key.

use foldhash::HashMap;
use prost::Message as _;
use prost_reflect::{
    DynamicMessage, ExtensionDescriptor, FieldDescriptor, Kind, ReflectMessage as _, SerializeOptions, Value,
};

use super::{ANY, DescriptorError, Descriptors, not_showable, pool, read_any, unpack_any};
use crate::resource::CREDENTIAL_HEADERS;

const SENSITIVE: &str = "udpa.annotations.sensitive";
const UNMARKED: [&str; 7] = [
    "envoy.config.core.v3.GrpcService.GoogleGrpc.CallCredentials.access_token",
    "envoy.config.core.v3.GrpcService.GoogleGrpc.CallCredentials.google_refresh_token",
    "envoy.config.core.v3.GrpcService.GoogleGrpc.CallCredentials.ServiceAccountJWTAccessCredentials.json_key",
    "envoy.config.core.v3.GrpcService.GoogleGrpc.CallCredentials.GoogleIAMCredentials.authorization_token",
    "envoy.extensions.grpc_service.call_credentials.access_token.v3.AccessTokenCredentials.token",
    "udpa.type.v1.TypedStruct.value",
    "xds.type.v3.TypedStruct.value",
];
/// Header of additions, health checks and initial metadata.
const HEADER: &str = "envoy.config.core.v3.HeaderValue";
const REDACTED: &str = "[redacted]";

impl Descriptors {
    /// Proto3 JSON of an encoded `google.protobuf.Any`. Sensitive texts and bytes are `[redacted]`,
    /// other sensitive values zero, and sensitive maps empty. `proto_names`: with field names of the
    /// API, as in Envoy's config dump, instead of the canonical ones.
    ///
    /// # Errors
    ///
    /// [`DescriptorError`] if the type has no descriptor, or the bytes do not fit it.
    pub fn redacted_json(&self, any: &[u8], proto_names: bool) -> Result<serde_json::Value, DescriptorError> {
        let any = self.redacted(any)?;
        let options = SerializeOptions::new().use_proto_field_name(proto_names);
        let json = any.serialize_with_options(serde_json::value::Serializer, &options);
        json.map_err(|error| not_showable(&any, &error))
    }

    /// Encoding of what [`redacted_json`](Self::redacted_json) shows. Fields without a descriptor
    /// are left out: they may be sensitive.
    ///
    /// # Errors
    ///
    /// [`DescriptorError`] if the type has no descriptor, or the bytes do not fit it.
    pub fn redacted_any(&self, any: &[u8]) -> Result<Vec<u8>, DescriptorError> {
        Ok(self.redacted(any)?.encode_to_vec())
    }

    fn redacted(&self, any: &[u8]) -> Result<DynamicMessage, DescriptorError> {
        let mut any = read_any(self.pool(), any)?;
        let sensitive = self.pool().get_extension_by_name(SENSITIVE);
        Redaction { sensitive, known: HashMap::default() }.message(&mut any, false)?;
        Ok(any)
    }
}

struct Redaction {
    sensitive: Option<ExtensionDescriptor>,
    /// By full name: finding out decodes their options.
    known: HashMap<String, bool>,
}

impl Redaction {
    /// Hides sensitive values, or `all`, and drops unknown fields.
    fn message(&mut self, message: &mut DynamicMessage, all: bool) -> Result<(), DescriptorError> {
        message.take_unknown_fields().for_each(drop);
        if message.descriptor().full_name() == ANY {
            let mut inner = unpack_any(message)?;
            self.message(&mut inner, all)?;
            message.set_field_by_number(2, Value::Bytes(inner.encode_to_vec().into()));
            return Ok(());
        }
        let hides_value = message.descriptor().full_name() == HEADER
            && message.get_field_by_name("key").is_some_and(|key| key.as_str().is_some_and(is_credential));
        for (field, value) in message.fields_mut() {
            let all = all || self.is_sensitive(&field) || (hides_value && field.name() != "key");
            self.value(value, &field.kind(), all)?;
        }
        Ok(())
    }

    fn value(&mut self, value: &mut Value, kind: &Kind, all: bool) -> Result<(), DescriptorError> {
        match value {
            Value::Message(message) => self.message(message, all)?,
            Value::List(items) => items.iter_mut().try_for_each(|item| self.value(item, kind, all))?,
            // A key may be sensitive too.
            Value::Map(entries) if all => entries.clear(),
            Value::Map(entries) => entries.values_mut().try_for_each(|entry| self.value(entry, kind, all))?,
            _ if !all => {}
            Value::String(text) => REDACTED.clone_into(text),
            Value::Bytes(bytes) => *bytes = REDACTED.into(),
            value => *value = Value::default_value(kind),
        }
        Ok(())
    }

    fn is_sensitive(&mut self, field: &FieldDescriptor) -> bool {
        if let Some(known) = self.known.get(field.full_name()) {
            return *known;
        }
        // An operator's file may have lost its options.
        let embedded = || {
            let message = pool().get_message_by_name(field.parent_message().full_name())?;
            Some(is_marked(&message.get_field(field.number())?, &pool().get_extension_by_name(SENSITIVE)?))
        };
        let own = self.sensitive.as_ref().is_some_and(|sensitive| is_marked(field, sensitive));
        let is_sensitive = own || UNMARKED.contains(&field.full_name()) || embedded().unwrap_or_default();
        self.known.insert(field.full_name().to_owned(), is_sensitive);
        is_sensitive
    }
}

fn is_credential(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    CREDENTIAL_HEADERS.iter().any(|part| key.contains(part))
}

fn is_marked(field: &FieldDescriptor, sensitive: &ExtensionDescriptor) -> bool {
    let options = field.options();
    options.has_extension(sensitive) && options.get_extension(sensitive).as_bool().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use prost_types::{FileDescriptorProto, FileDescriptorSet};
    use serde_json::json;

    use super::super::{DescriptorSet, message};
    use super::*;

    #[test]
    fn keys_and_passwords_are_hidden_however_deep_they_are() {
        let tls = json!({
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "sni": "checkout.example.com",
            "commonTlsContext": {"tlsCertificates": [{
                "certificateChain": {"inlineString": "CERTIFICATE"},
                "privateKey": {"inlineString": "PRIVATE"},
                "password": {"inlineBytes": "UFJJVkFURQ=="},
            }]},
        });
        let cluster = json!({
            "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            "name": "checkout",
            "transportSocket": {"name": "tls", "typedConfig": tls},
        });
        let any = DynamicMessage::deserialize(message(ANY).unwrap(), &cluster).unwrap().encode_to_vec();
        let mut expected = cluster;
        let certificate = "/transportSocket/typedConfig/commonTlsContext/tlsCertificates/0";
        let certificate = expected.pointer_mut(certificate).unwrap();
        certificate["privateKey"]["inlineString"] = json!("[redacted]");
        certificate["password"]["inlineBytes"] = json!("W3JlZGFjdGVkXQ==");
        // Whatever else operators add, and be it the same files without their options.
        let file =
            FileDescriptorProto { name: Some("other.proto".to_owned()), ..FileDescriptorProto::default() };
        let unrelated = FileDescriptorSet { file: vec![file] };
        let stripped = FileDescriptorSet::decode(super::super::shipped().as_slice()).unwrap();
        let with = |set: FileDescriptorSet| {
            let bytes = set.encode_to_vec();
            Descriptors::with(&[DescriptorSet { origin: "a set".to_owned(), bytes }]).unwrap()
        };
        for descriptors in [Descriptors::default(), with(unrelated), with(stripped)] {
            assert_eq!(descriptors.redacted_json(&any, false).unwrap(), expected);
            let encoded = descriptors.redacted_any(&any).unwrap();
            assert_eq!(super::super::any_to_json(&encoded).unwrap(), expected);
        }
    }

    #[test]
    fn credentials_that_the_api_does_not_mark_are_hidden_too() {
        let header = |key: &str| json!({"header": {"key": key, "value": "PRIVATE"}});
        let google = |credentials: serde_json::Value| {
            json!({"googleGrpc": {"targetUri": "host", "callCredentials": [credentials]},
                "initialMetadata": [{"key": "authorization", "value": "PRIVATE"}]})
        };
        let typed = |type_name: &str| json!({"@type": format!("type.googleapis.com/{type_name}"), "typeUrl": "t/a", "value": {"key": "PRIVATE"}});
        let tokens = json!({
            "@type": "type.googleapis.com/envoy.extensions.grpc_service.call_credentials.access_token.v3.AccessTokenCredentials",
            "token": "PRIVATE",
        });
        let health = json!({"httpHealthCheck": {"path": "/", "requestHeadersToAdd": [header("Authorization"), header("x-api-key")]}});
        let cluster = json!({
            "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            "healthChecks": [health, {"grpcHealthCheck": {"initialMetadata": [header("proxy-authorization")]}}],
            "edsClusterConfig": {"edsConfig": {"apiConfigSource": {"grpcServices": [
                google(json!({"accessToken": "PRIVATE"})),
                google(json!({"googleRefreshToken": "PRIVATE"})),
                google(json!({"serviceAccountJwtAccess": {"jsonKey": "PRIVATE"}})),
                google(json!({"googleIam": {"authorizationToken": "PRIVATE"}})),
                google(json!({"fromPlugin": {"name": "x", "typedConfig": tokens}})),
            ]}}},
            "typedExtensionProtocolOptions": {"a": typed("xds.type.v3.TypedStruct"), "b": typed("udpa.type.v1.TypedStruct")},
        });
        let routes = json!({
            "@type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
            "requestHeadersToAdd": [header("authorization"), header("cookie"), header("x-auth-token")],
            "responseHeadersToAdd": [{"header": {"key": "x-shown", "value": "shown"}}],
        });
        for resource in [cluster, routes] {
            let any = DynamicMessage::deserialize(message(ANY).unwrap(), &resource).unwrap().encode_to_vec();
            let text = Descriptors::default().redacted_json(&any, false).unwrap().to_string();
            assert!(!text.contains("PRIVATE") && text.contains("[redacted]"), "{text}");
            assert!(!text.contains("x-shown") || text.contains("\"shown\""), "{text}");
            let encoded = Descriptors::default().redacted_any(&any).unwrap();
            assert!(!String::from_utf8_lossy(&encoded).contains("PRIVATE"));
        }
    }

    /// All that is hidden by its field has a name at which a text is cut.
    #[test]
    fn a_rejection_is_cut_at_each_hidden_field() {
        let sensitive = pool().get_extension_by_name(SENSITIVE).unwrap();
        let fields = pool().all_messages().flat_map(|message| message.fields().collect::<Vec<_>>());
        let hidden =
            fields.filter(|field| is_marked(field, &sensitive) || UNMARKED.contains(&field.full_name()));
        let hidden: Vec<_> = hidden.collect();
        assert!(hidden.len() > 20, "{}", hidden.len());
        // Of these two the message, or the field that it is in, has the word.
        let is_named = |field: &&FieldDescriptor| {
            !["TypedStruct", "PrivateKeyProvider"].contains(&field.parent_message().name())
        };
        for field in hidden.iter().filter(is_named) {
            for text in [
                format!("bad: {} {{ inline_string: \"PRIVATE\"", field.name()),
                format!("bad: \"{}\": \"PRIVATE\"", field.json_name()),
            ] {
                let shown = crate::resource::shown_rejection(&text);
                assert!(
                    shown.starts_with("bad: ") && !shown.contains("PRIVATE"),
                    "{}: {shown}",
                    field.full_name()
                );
            }
        }
    }

    #[test]
    fn a_secret_shows_no_key() {
        for (secret, shown) in [
            (json!({"genericSecret": {"secret": {"inlineString": "PRIVATE"}}}), "[redacted]"),
            (json!({"sessionTicketKeys": {"keys": [{"inlineBytes": "UFJJVkFURQ=="}]}}), "W3JlZGFjdGVkXQ=="),
        ] {
            let mut secret = secret;
            secret["@type"] = json!("type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret");
            let any = DynamicMessage::deserialize(message(ANY).unwrap(), &secret).unwrap().encode_to_vec();
            let text = Descriptors::default().redacted_json(&any, false).unwrap().to_string();
            assert!(text.contains(shown) && !text.contains("PRIVATE"), "{text}");
            assert!(!text.contains("UFJJVkFURQ"), "{text}");
        }
    }

    #[test]
    fn a_field_without_a_descriptor_is_not_shown() {
        let inner = |value: &[u8]| {
            let type_url = "type.googleapis.com/envoy.config.cluster.v3.Cluster".to_owned();
            prost_types::Any { type_url, value: value.to_vec() }.encode_to_vec()
        };
        // `name`, then field 9999.
        let (name, newer) = (b"\x0a\x01a", b"\xfa\xf0\x04\x07PRIVATE");
        let any = [&inner(&[&name[..], newer].concat())[..], newer].concat();
        assert_eq!(Descriptors::default().redacted_any(&any).unwrap(), inner(name));
    }
}
