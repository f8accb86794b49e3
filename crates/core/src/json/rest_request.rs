//! A DiscoveryRequest from proto3 JSON.
//!
//! Field names are read in both spellings (R-REST-03). Unknown fields, which newer clients may
//! have, are skipped. `null` is the same as no field.

use std::marker::PhantomData;

use prost::Message as _;
use serde::de::{DeserializeOwned, DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::descriptors::MAX_DEPTH;
use crate::proto;

const OTHER_VALUES: usize = 1 << 16;

#[derive(Debug, thiserror::Error)]
pub enum JsonRequestError {
    #[error("the body is empty; send a DiscoveryRequest as JSON, at least {{}}")]
    Empty,
    #[error("the body is not UTF-8: {0}")]
    NotText(#[from] std::str::Utf8Error),
    #[error("the body is refused: {0}")]
    OutOfBounds(#[from] BoundsError),
    #[error("the body is no DiscoveryRequest in proto3 JSON: {0}")]
    Malformed(String),
}

impl From<serde_json::Error> for JsonRequestError {
    fn from(error: serde_json::Error) -> Self {
        // It may quote the request.
        let text = error.to_string();
        if text.len() <= 400 {
            return Self::Malformed(text);
        }
        let start: String = text.chars().take(200).collect();
        Self::Malformed(format!("{start}… at line {} column {}", error.line(), error.column()))
    }
}

/// Reads a request for about `max_names` names at most. Large, seldom needed parts of the node are
/// read only with `whole_node`.
///
/// # Errors
///
/// [`JsonRequestError`] for a body that is no such request, or too large.
pub fn read(
    body: &[u8],
    max_names: usize,
    whole_node: bool,
) -> Result<proto::DiscoveryRequest, JsonRequestError> {
    let text = std::str::from_utf8(body)?;
    if text.trim_ascii().is_empty() {
        return Err(JsonRequestError::Empty);
    }
    check_bounds(body, max_names.saturating_add(OTHER_VALUES))?;
    let mut json = serde_json::Deserializer::from_str(text);
    let request = if whole_node {
        Message::<Request<true>>(PhantomData).deserialize(&mut json)?.0
    } else {
        Message::<Request<false>>(PhantomData).deserialize(&mut json)?.0
    };
    json.end()?;
    Ok(request)
}

trait Fields: Default {
    const NAME: &'static str;

    fn read_field<'de, A: MapAccess<'de>>(&mut self, field: &str, map: &mut A) -> Result<FieldUse, A::Error>;
}

enum FieldUse {
    Read,
    Skipped,
}

/// Reads a message from an object. `derive` would accept a list too.
struct Message<M>(PhantomData<M>);

impl<'de, M: Fields> DeserializeSeed<'de> for Message<M> {
    type Value = M;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<M, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, M: Fields> Visitor<'de> for Message<M> {
    type Value = M;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a {} as an object", M::NAME)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<M, A::Error> {
        let mut message = M::default();
        while let Some(field) = map.next_key::<String>()? {
            if matches!(message.read_field(&field, &mut map)?, FieldUse::Skipped) {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(message)
    }
}

/// `null` is `None`.
struct Optional<M>(PhantomData<M>);

impl<'de, M: Fields> DeserializeSeed<'de> for Optional<M> {
    type Value = Option<M>;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Option<M>, D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de, M: Fields> Visitor<'de> for Optional<M> {
    type Value = Option<M>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Message::<M>(PhantomData).expecting(f)
    }

    fn visit_none<E>(self) -> Result<Option<M>, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Option<M>, E> {
        Ok(None)
    }

    fn visit_some<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Option<M>, D::Error> {
        Message(PhantomData).deserialize(deserializer).map(Some)
    }
}

/// `null` is none.
struct List<M>(PhantomData<M>);

impl<'de, M: Fields> DeserializeSeed<'de> for List<M> {
    type Value = Vec<M>;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Vec<M>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, M: Fields> Visitor<'de> for List<M> {
    type Value = Vec<M>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a list of {}", M::NAME)
    }

    fn visit_unit<E>(self) -> Result<Vec<M>, E> {
        Ok(Vec::new())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<M>, A::Error> {
        let mut messages = Vec::new();
        while let Some(message) = items.next_element_seed(Message(PhantomData))? {
            messages.push(message);
        }
        Ok(messages)
    }
}

/// A field that is set twice, in either spelling, is an error: readers would disagree.
fn set<'de, T, A>(into: &mut T, field: &str, map: &mut A) -> Result<FieldUse, A::Error>
where
    T: Default + PartialEq + DeserializeOwned,
    A: MapAccess<'de>,
{
    let value = map.next_value::<Option<T>>()?.unwrap_or_default();
    if *into != T::default() {
        return Err(A::Error::custom(format_args!("`{field}` is set twice")));
    }
    *into = value;
    Ok(FieldUse::Read)
}

/// `WHOLE`: with the whole node.
#[derive(Default)]
struct Request<const WHOLE: bool>(proto::DiscoveryRequest);

/// `WHOLE`: with locality and metadata.
#[derive(Default)]
struct Node<const WHOLE: bool>(proto::Node);

impl<const WHOLE: bool> Fields for Request<WHOLE> {
    const NAME: &'static str = "DiscoveryRequest";

    fn read_field<'de, A: MapAccess<'de>>(&mut self, field: &str, map: &mut A) -> Result<FieldUse, A::Error> {
        match field {
            "version_info" | "versionInfo" => set(&mut self.0.version_info, field, map),
            "resource_names" | "resourceNames" => set(&mut self.0.resource_names, field, map),
            "type_url" | "typeUrl" => set(&mut self.0.type_url, field, map),
            "resource_locators" | "resourceLocators" if !self.0.resource_locators.is_empty() => {
                Err(A::Error::duplicate_field("resource_locators"))
            }
            "resource_locators" | "resourceLocators" => {
                self.0.resource_locators = map.next_value_seed(List(PhantomData))?;
                Ok(FieldUse::Read)
            }
            "node" if self.0.node.is_some() => Err(A::Error::duplicate_field("node")),
            "node" => {
                let node = map.next_value_seed(Optional::<Node<WHOLE>>(PhantomData))?;
                self.0.node = node.map(|node| node.0);
                Ok(FieldUse::Read)
            }
            // REST-JSON has no nonces and no rejections (R-REST-02).
            _ => Ok(FieldUse::Skipped),
        }
    }
}

impl<const WHOLE: bool> Fields for Node<WHOLE> {
    const NAME: &'static str = "Node";

    fn read_field<'de, A: MapAccess<'de>>(&mut self, field: &str, map: &mut A) -> Result<FieldUse, A::Error> {
        match field {
            "id" => set(&mut self.0.id, field, map),
            "cluster" => set(&mut self.0.cluster, field, map),
            "user_agent_name" | "userAgentName" => set(&mut self.0.user_agent_name, field, map),
            "locality" if WHOLE && self.0.locality.is_some() => Err(A::Error::duplicate_field("locality")),
            "locality" if WHOLE => {
                self.0.locality = map.next_value_seed(Optional(PhantomData))?;
                Ok(FieldUse::Read)
            }
            "metadata" if WHOLE && !self.0.metadata.is_empty() => Err(A::Error::duplicate_field("metadata")),
            "metadata" if WHOLE => {
                let read = map.next_value::<Option<_>>()?;
                self.0.metadata = read
                    .as_ref()
                    .map(|read| proto::structure(read).encode_to_vec().into())
                    .unwrap_or_default();
                Ok(FieldUse::Read)
            }
            _ => Ok(FieldUse::Skipped),
        }
    }
}

impl Fields for proto::ResourceLocator {
    const NAME: &'static str = "ResourceLocator";

    fn read_field<'de, A: MapAccess<'de>>(&mut self, field: &str, map: &mut A) -> Result<FieldUse, A::Error> {
        match field {
            "name" => set(&mut self.name, field, map),
            "dynamic_parameters" | "dynamicParameters" => set(&mut self.dynamic_parameters, field, map),
            _ => Ok(FieldUse::Skipped),
        }
    }
}

impl Fields for proto::Locality {
    const NAME: &'static str = "Locality";

    fn read_field<'de, A: MapAccess<'de>>(&mut self, field: &str, map: &mut A) -> Result<FieldUse, A::Error> {
        match field {
            "region" => set(&mut self.region, field, map),
            "zone" => set(&mut self.zone, field, map),
            "sub_zone" | "subZone" => set(&mut self.sub_zone, field, map),
            _ => Ok(FieldUse::Skipped),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BoundsError {
    #[error("it nests deeper than {MAX_DEPTH} levels")]
    TooDeep,
    #[error("it has more than {0} values")]
    TooMany(usize),
}

/// Checks depth and number of values of a text before it is parsed.
///
/// All nesting in JSON needs a bracket. So one count of brackets covers messages, `Struct`,
/// `Value`, `ListValue` and `Any` in any mixture, without a second count inside (CVE-2026-0994).
/// One pass, no recursion, no memory. Invalid JSON may pass; the parser finds it.
fn check_bounds(text: &[u8], max_values: usize) -> Result<(), BoundsError> {
    let (mut depth, mut values) = (0_usize, 0_usize);
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => {
                while let Some(inner) = bytes.next().filter(|inner| **inner != b'"') {
                    if *inner == b'\\' {
                        bytes.next();
                    }
                }
            }
            b'{' | b'[' => {
                depth += 1;
                values += 1;
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' | b':' => values += 1,
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(BoundsError::TooDeep);
        }
        if values > max_values {
            return Err(BoundsError::TooMany(max_values));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fault(body: &str) -> String {
        read(body.as_bytes(), 10, true).expect_err(body).to_string()
    }

    #[test]
    fn r_rest_02_a_request_of_envoy_is_read() {
        // As Envoy 1.40 sends it, shortened where it repeats itself (V4).
        let body = r#"{"version_info":"v1","node":{"id":"envoy-1","cluster":"edge","user_agent_name":"envoy",
            "user_agent_build_version":{"version":{"major_number":1},"metadata":{"ssl.version":"BoringSSL","n":[1,{"a":null}]}},
            "extensions":[{"name":"e","category":"c","type_urls":["x"]}],"client_features":["f"]},
            "resource_names":["a","b"],"type_url":"type.googleapis.com/envoy.config.cluster.v3.Cluster"}"#;
        let request = read(body.as_bytes(), 10, true).expect("a request of Envoy's");
        let node = request.node.expect("its node");
        assert_eq!(
            (node.id.as_str(), node.cluster.as_str(), node.user_agent_name.as_str()),
            ("envoy-1", "edge", "envoy")
        );
        assert_eq!(request.resource_names, ["a", "b"]);
        assert_eq!(request.version_info, "v1");
        assert!(request.type_url.ends_with(".Cluster"));
    }

    #[test]
    fn r_rest_03_both_spellings_are_read_and_unknown_fields_ignored() {
        let snake = r#"{"version_info":"7","resource_names":["a"],"type_url":"t","node":{"user_agent_name":"u"},"new_field":{"x":[]}}"#;
        let camel = r#"{"versionInfo":"7","resourceNames":["a"],"typeUrl":"t","node":{"userAgentName":"u","newField":1}}"#;
        let read = |body: &str| read(body.as_bytes(), 10, true).expect("both are good");
        assert_eq!(read(snake), read(camel));
        assert_eq!(read("{}"), proto::DiscoveryRequest::default());
        let nulls = r#"{"version_info":null,"resource_names":null,"node":null,"type_url":null}"#;
        assert_eq!(read(nulls), proto::DiscoveryRequest::default());
    }

    #[test]
    fn r_dp_17_the_whole_node_is_read_where_rules_may_want_it_and_passed_over_elsewhere() {
        let body = r#"{"node":{"id":"a","locality":{"region":"r","zone":"z","subZone":"s","new":1},
            "metadata":{"env":"prod","n":1.5,"deep":{"list":[true,null]}}}}"#;
        let node = |whole| read(body.as_bytes(), 10, whole).expect("a request").node.expect("its node");
        let locality =
            proto::Locality { region: "r".to_owned(), zone: "z".to_owned(), sub_zone: "s".to_owned() };
        assert_eq!(node(true).locality, Some(locality));
        let json = serde_json::json!({"env": "prod", "n": 1.5, "deep": {"list": [true, null]}});
        let encoded = proto::structure(json.as_object().expect("an object")).encode_to_vec();
        assert_eq!(node(true).metadata, encoded);
        assert_eq!(node(false), proto::Node { id: "a".to_owned(), ..proto::Node::default() });

        let nulls = r#"{"node":{"locality":null,"metadata":null}}"#;
        assert_eq!(read(nulls.as_bytes(), 10, true).expect("a request").node, Some(proto::Node::default()));
        for (node, reason) in [
            (r#"{"metadata":[]}"#, "expected a map"),
            (r#"{"locality":["r"]}"#, "a Locality as an object"),
            (r#"{"locality":{"zone":1}}"#, "expected a string"),
            (r#"{"locality":{"sub_zone":"a","subZone":"b"}}"#, "set twice"),
            (r#"{"metadata":{"a":1},"metadata":{}}"#, "duplicate field `metadata`"),
        ] {
            let told = fault(&format!("{{\"node\":{node}}}"));
            assert!(told.contains(reason), "{node}: {told}");
        }
    }

    #[test]
    fn r_dp_11_locators_are_read_in_both_spellings() {
        let snake = r#"{"resource_locators":[{"name":"a","dynamic_parameters":{"k":"v"}},{"name":"b"}]}"#;
        let camel = r#"{"resourceLocators":[{"name":"a","dynamicParameters":{"k":"v"},"new":1},{"name":"b","dynamicParameters":null}]}"#;
        let read = |body: &str| read(body.as_bytes(), 10, true).expect("both are good");
        assert_eq!(read(snake), read(camel));
        let locators = read(snake).resource_locators;
        assert_eq!(locators[0].dynamic_parameters["k"], "v");
        assert_eq!((locators.len(), locators[1].name.as_str()), (2, "b"));
        assert_eq!(read(r#"{"resource_locators":null}"#), proto::DiscoveryRequest::default());
    }

    #[test]
    fn r_rest_13_a_body_that_is_no_request_is_told_with_its_reason() {
        for (body, reason) in [
            ("", "empty"),
            (" \n", "empty"),
            ("{", "EOF"),
            ("[]", "a DiscoveryRequest as an object"),
            ("null", "a DiscoveryRequest as an object"),
            ("\"x\"", "a DiscoveryRequest as an object"),
            ("{} {}", "trailing characters"),
            (r#"{"version_info":7}"#, "invalid type: integer `7`, expected a string"),
            (r#"{"resource_names":"a"}"#, "expected a sequence"),
            (r#"{"resource_names":["a",null]}"#, "expected a string"),
            (r#"{"node":"a"}"#, "a Node as an object"),
            (r#"{"node":["a","b"]}"#, "a Node as an object"),
            (r#"{"node":{"id":{}}}"#, "expected a string"),
            (r#"{"version_info":"1","versionInfo":"2"}"#, "`versionInfo` is set twice"),
            (r#"{"type_url":"t",}"#, "trailing comma"),
            (r#"{"resource_locators":{}}"#, "a list of ResourceLocator"),
            (r#"{"resource_locators":["a"]}"#, "a ResourceLocator as an object"),
            (r#"{"resource_locators":[{"name":"a","dynamic_parameters":["x"]}]}"#, "expected a map"),
            (r#"{"resource_locators":[{"name":"a","dynamic_parameters":{"k":1}}]}"#, "expected a string"),
        ] {
            let told = fault(body);
            assert!(told.contains(reason), "{body}: {told}");
        }
        assert!(read(b"{\"x\":\"\xff\"}", 10, true).expect_err("no text").to_string().contains("UTF-8"));
    }

    #[test]
    fn bombs_are_refused_before_they_are_parsed() {
        // CVE-2026-0994 and what its fix left open: nesting through Any, and through Struct, Value and ListValue.
        let any = r#"{"@type":"type.googleapis.com/google.protobuf.Any","value":"#;
        let shapes = [
            ("{\"a\":".to_owned(), "}"),
            ("[".to_owned(), "]"),
            (any.to_owned(), "}"),
            ("{\"listValue\":{\"values\":[{\"structValue\":{\"fields\":{\"x\":".to_owned(), "}}}]}}"),
        ];
        for (open, close) in shapes {
            for place in [
                r#"{"node":{"metadata":"#,
                r#"{"error_detail":"#,
                r#"{"unknown":"#,
                r#"{"node":{"extensions":"#,
            ] {
                let levels = 50_000;
                let bomb = [place, &open.repeat(levels), "1", &close.repeat(levels), "}}"].concat();
                assert!(fault(&bomb).contains("nests deeper"), "{place} {open}");
            }
        }
        let many = format!("{{\"resource_names\":[{}]}}", vec!["\"\""; OTHER_VALUES + 100].join(","));
        assert!(fault(&many).contains("more than"));
        // Fields that nobody reads are not decoded: an unknown type in one is no fault.
        let detail = r#"{"error_detail":{"details":[{"@type":"type.googleapis.com/no.such.Type","x":1}]}}"#;
        assert!(read(detail.as_bytes(), 10, true).is_ok());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_without_a_panic(bytes: Vec<u8>, text in "[\\[\\]{}\":,a-z0-9\\\\ ]{0,200}") {
            _ = read(&bytes, 10, true);
            _ = read(text.as_bytes(), 10, true);
        }
    }

    #[test]
    fn depth_is_counted_across_everything_and_not_within_strings() {
        let nested = |open: &str, close: &str, levels: usize| {
            [open.repeat(levels), "1".to_owned(), close.repeat(levels)].concat()
        };
        assert_eq!(check_bounds(nested("[", "]", MAX_DEPTH).as_bytes(), 1000), Ok(()));
        assert_eq!(check_bounds(nested("[", "]", MAX_DEPTH + 1).as_bytes(), 1000), Err(BoundsError::TooDeep));
        let mixed = nested("{\"value\":[", "]}", MAX_DEPTH / 2 + 1);
        assert_eq!(check_bounds(mixed.as_bytes(), 1000), Err(BoundsError::TooDeep));
        let quoted = format!("[\"{}\\\"{}\"]", "[".repeat(500), "{".repeat(500));
        assert_eq!(check_bounds(quoted.as_bytes(), 1000), Ok(()));
        // Closing too often does not make room for more.
        assert_eq!(
            check_bounds(format!("]]]]{}", "[".repeat(101)).as_bytes(), 1000),
            Err(BoundsError::TooDeep)
        );
    }

    #[test]
    fn values_are_counted() {
        let list = format!("[{}]", vec!["0"; 100].join(","));
        assert_eq!(check_bounds(list.as_bytes(), 100), Ok(()));
        assert_eq!(check_bounds(list.as_bytes(), 99), Err(BoundsError::TooMany(99)));
    }
}
