use std::sync::Arc;

use proptest::prelude::*;
use prost_reflect::DynamicMessage;
use serde_json::{Value, json};

use super::{
    super::file_decoder::decode, CLUSTER, LISTENER, RESPONSE, WRAPPER, binary_response, cluster, encode_any,
    field, response, shown, wrapper,
};
use crate::descriptors::text_formats::Format;
use crate::descriptors::{ANY, message};
use crate::resource::wire::put_bytes;
use crate::resource::{Kind, Resource};

const FORMATS: [Format; 4] = [Format::Binary, Format::Json, Format::Yaml, Format::Text];

/// Writes a document in one of the four forms.
fn write(format: Format, document: &Value) -> Vec<u8> {
    let is_any = document.get("@type").is_some();
    let type_name = if is_any { ANY } else { &RESPONSE[20..] };
    match format {
        Format::Json => serde_json::to_vec(document).unwrap(),
        Format::Yaml => serde_saphyr::to_string(document).unwrap().into_bytes(),
        Format::Binary if is_any => encode_any(document),
        Format::Binary => binary_response(document.clone()),
        Format::Text => {
            let message = DynamicMessage::deserialize(message(type_name).unwrap(), document).unwrap();
            let options = prost_reflect::text_format::FormatOptions::new().expand_any(true).pretty(true);
            message.to_text_format_with_options(&options).into_bytes()
        }
    }
}

fn names(resources: &[Arc<Resource>]) -> Vec<&str> {
    resources.iter().map(|of| of.name().as_str()).collect()
}

fn version(of: &Resource) -> String {
    of.version().to_owned()
}

fn error(format: Format, bytes: impl AsRef<[u8]>) -> String {
    decode(format, bytes.as_ref()).unwrap_err().to_string()
}

#[test]
fn both_shapes_in_all_four_forms_give_the_same_resources() {
    let rich = json!({
        "@type": CLUSTER,
        "name": "b/with-slash",
        "metadata": {"filterMetadata": {"z": {"k": [1, "x"]}, "a": {"l": null}, "m": {}}},
        "transportSocket": {"name": "tls", "typedConfig": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "sni": "b.example.com",
        }},
    });
    for document in [response(&[cluster("a"), rich.clone()]), response(&[]), rich] {
        let expected = decode(Format::Binary, &write(Format::Binary, &document)).unwrap();
        for format in FORMATS {
            let resources = decode(format, &write(format, &document)).unwrap();
            assert_eq!(resources, expected, "{format:?} of {document}");
        }
    }
}

#[test]
fn extensions_say_the_form() {
    for (name, format) in [
        ("a.pb", Some(Format::Binary)),
        ("a.binpb", Some(Format::Binary)),
        ("a.json", Some(Format::Json)),
        ("a.b.yaml", Some(Format::Yaml)),
        ("a.yml", Some(Format::Yaml)),
        ("a.pb_text", Some(Format::Text)),
        ("a.textproto", Some(Format::Text)),
        ("a.txtpb", Some(Format::Text)),
        ("a.yaml~", None),
        ("README.md", None),
        ("yaml", None),
    ] {
        assert_eq!(Format::of(name.as_ref()), format, "{name}");
    }
}

#[test]
fn the_wrapper_carries_name_version_and_the_any_as_it_came() {
    // Fields of the Any in an unusual order, and one that nobody knows: kept byte for byte.
    let mut body = Vec::new();
    put_bytes(&mut body, 9999, b"unknown");
    put_bytes(&mut body, 1, b"a");
    let mut any = Vec::new();
    put_bytes(&mut any, 2, &body);
    put_bytes(&mut any, 1, CLUSTER.as_bytes());
    let mut bytes = Vec::new();
    put_bytes(&mut bytes, 2, &any);
    put_bytes(&mut bytes, 4, CLUSTER.as_bytes());

    let resource = decode(Format::Binary, &bytes).unwrap().remove(0);
    assert_eq!((resource.type_url(), resource.name().as_str()), (CLUSTER, "a"));
    assert_eq!(resource.body(), any);
    assert_eq!(field(&wrapper(&resource), 3), b"a");
    assert_eq!(field(&wrapper(&resource), 1), resource.version().as_bytes());
}

#[test]
fn versions_follow_the_content_and_stay_as_they_were() {
    let version =
        |document: &Value| version(&decode(Format::Json, &write(Format::Json, document)).unwrap()[0]);
    let labels: serde_json::Map<_, _> = (0..50).map(|n| (format!("k{n}"), n.into())).collect();
    let cluster =
        json!({"@type": CLUSTER, "name": "a", "metadata": {"filterMetadata": {"envoy.lb": labels}}});
    let first = version(&cluster);
    for _ in 0..20 {
        assert_eq!(version(&cluster), first, "maps are written in one order");
    }
    // Pinned: another value here means that every resource of every fleet changes with an upgrade.
    assert_eq!(version(&json!({"@type": CLUSTER, "name": "a"})), "2ad6cc4e9d6bac1b");
    assert_ne!(
        version(&json!({"@type": CLUSTER, "name": "b"})),
        version(&json!({"@type": CLUSTER, "name": "a"}))
    );
}

#[test]
fn a_wrapped_resource_is_named_by_its_wrapper_and_keeps_the_rest_of_it() {
    let wrapped = json!({
        "@type": WRAPPER,
        "name": "routes/default",
        "version": "theirs",
        "aliases": ["routes/other"],
        "ttl": "5s",
        "cacheControl": {"doNotCache": true},
        "resource": {"@type": "type.googleapis.com/google.protobuf.StringValue", "value": "any type will do"},
    });
    for format in FORMATS {
        let resource =
            decode(format, &write(format, &response(std::slice::from_ref(&wrapped)))).unwrap().remove(0);
        assert_eq!(resource.type_url(), "type.googleapis.com/google.protobuf.StringValue");
        let mut expected = wrapped.clone();
        expected["version"] = version(&resource).into();
        // A directory has no TTLs.
        expected.as_object_mut().unwrap().remove("ttl");
        assert_eq!(shown(&wrapper(&resource)), expected, "{format:?}");
    }
    let mut longer_lived = wrapped.clone();
    longer_lived["ttl"] = "6s".into();
    let version = |value: &Value| version(&decode(Format::Binary, &encode_any(value)).unwrap()[0]);
    assert_ne!(version(&wrapped), version(&longer_lived), "a changed TTL is a change");
}

#[test]
fn a_wrapper_keeps_fields_nobody_knows_and_may_name_by_resource_name() {
    let mut document = encode_any(&json!({
        "@type": WRAPPER,
        "resourceName": {"name": "a", "dynamicParameterConstraints": {"constraint": {"key": "env", "value": "prod"}}},
        "resource": cluster("inner"),
    }));
    let mut value = field(&document, 2);
    put_bytes(&mut value, 77, b"from the future");
    document.clear();
    put_bytes(&mut document, 1, WRAPPER.as_bytes());
    put_bytes(&mut document, 2, &value);
    let resource = decode(Format::Binary, &document).unwrap().remove(0);
    assert_eq!(resource.name().as_str(), "a");
    assert_eq!(field(&wrapper(&resource), 77), b"from the future");
    let constraints = resource.constraints().unwrap();
    assert_eq!(constraints.encoded()[..], field(&field(&value, 8), 2));
}

#[test]
fn a_resource_without_a_wrapper_is_named_by_its_first_field_where_that_is_a_name() {
    for kind in Kind::known() {
        let mut body = Vec::new();
        put_bytes(&mut body, 1, b"a");
        for prefix in ["type.googleapis.com", "example.com"] {
            let message = kind.url().unwrap().rsplit_once('/').unwrap().1;
            let mut any = Vec::new();
            put_bytes(&mut any, 1, format!("{prefix}/{message}").as_bytes());
            put_bytes(&mut any, 2, &body);
            let mut document = Vec::new();
            put_bytes(&mut document, 2, &any);
            if kind == Kind::LocalityEndpoint {
                assert!(
                    error(Format::Binary, &document).contains("Resource"),
                    "its first field is a message"
                );
            } else {
                assert_eq!(names(&decode(Format::Binary, &document).unwrap()), ["a"], "{prefix}, {kind:?}");
            }
        }
    }
}

#[test]
fn bad_wrappers_are_told() {
    let wrap = |inner: Value| encode_any(&json!({"@type": WRAPPER, "name": "n", "resource": inner}));
    assert!(error(Format::Binary, wrap(json!({"@type": WRAPPER, "name": "m"}))).contains("exactly one"));
    assert!(
        error(Format::Binary, encode_any(&json!({"@type": WRAPPER, "name": "n"}))).contains("exactly one")
    );
    let unnamed = encode_any(&json!({"@type": WRAPPER, "resource": cluster("a")}));
    assert!(error(Format::Binary, unnamed).contains("has no name"));
    let nothing = json!({"constraint": {"key": "env"}});
    let name = json!({"name": "a", "dynamicParameterConstraints": nothing});
    let unclear = encode_any(&json!({"@type": WRAPPER, "resourceName": name, "resource": cluster("a")}));
    assert!(error(Format::Binary, unclear).contains("neither `value` nor `exists`"));
}

#[test]
fn yaml_is_read_in_snake_case_and_camel_case_and_its_words_stay_words() {
    let yaml = br#"
version_info: "1"
typeUrl: type.googleapis.com/envoy.config.cluster.v3.Cluster
resources:
- "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: no
  connect_timeout: 0.25s
- "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: "on"
  connectTimeout: 0.25s
"#;
    assert_eq!(names(&decode(Format::Yaml, yaml).unwrap()), ["no", "on"]);
}

#[test]
fn text_may_be_an_any_in_either_way_of_writing_one() {
    let expanded = "# a cluster\n[type.googleapis.com/envoy.config.cluster.v3.Cluster] { name: \"a\" }\n";
    let raw = r#"type_url: "type.googleapis.com/envoy.config.cluster.v3.Cluster" value: "\n\001a""#;
    assert_eq!(
        decode(Format::Text, expanded.as_bytes()).unwrap(),
        decode(Format::Text, raw.as_bytes()).unwrap()
    );
}

#[test]
fn anys_in_anys_are_encoded_by_their_types() {
    let listener = json!({
        "@type": LISTENER,
        "name": "ingress",
        "filterChains": [{"filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typedConfig": {
                "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                "statPrefix": "ingress",
                "rds": {"routeConfigName": "local", "configSource": {"ads": {}, "resourceApiVersion": "V3"}},
                "httpFilters": [{"name": "router", "typedConfig": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
                    "suppressEnvoyHeaders": true,
                }}],
            },
        }]}],
    });
    let resource = decode(Format::Json, &write(Format::Json, &listener)).unwrap().remove(0);
    assert_eq!(shown(&wrapper(&resource))["resource"], listener);
}

#[test]
fn an_any_of_a_discovery_response_is_one() {
    let mut document = response(&[cluster("a"), cluster("b")]);
    document["@type"] = RESPONSE.into();
    for format in FORMATS {
        assert_eq!(names(&decode(format, &write(format, &document)).unwrap()), ["a", "b"], "{format:?}");
    }
}

#[test]
fn the_binary_shapes_are_told_apart_even_when_they_look_alike() {
    let endpoints = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
    let slashed = json!({"@type": endpoints, "clusterName": "prod/a", "endpoints": [{"priority": 1}]});
    assert_eq!(names(&decode(Format::Binary, &encode_any(&slashed)).unwrap()), ["prod/a"]);
    let versioned = json!({"versionInfo": "release/7", "resources": [slashed]});
    assert_eq!(names(&decode(Format::Binary, &binary_response(versioned)).unwrap()), ["prod/a"]);
    let empty = json!({"versionInfo": "release/7"});
    assert_eq!(decode(Format::Binary, &binary_response(empty)).unwrap(), []);
}

#[test]
fn unknown_types_are_named() {
    let unknown = json!({"@type": "type.googleapis.com/acme.Widget", "name": "w"});
    let nested =
        json!({"@type": CLUSTER, "name": "a", "transportSocket": {"name": "t", "typedConfig": unknown}});
    for document in [unknown, nested.clone(), response(&[cluster("a"), nested])] {
        for format in [Format::Json, Format::Yaml] {
            let message = error(format, write(format, &document));
            assert!(message.contains("\"acme.Widget\" is not among"), "{message}");
        }
    }
    assert!(error(Format::Text, "[type.googleapis.com/acme.Widget] {}").contains("acme.Widget"));
    assert!(error(Format::Text, r#"resources { type_url: "x.com/acme.Widget" }"#).contains("acme.Widget"));
    let mut binary = Vec::new();
    put_bytes(&mut binary, 1, b"type.googleapis.com/acme.Widget");
    assert!(
        error(Format::Binary, binary)
            .contains("wrap it in type.googleapis.com/envoy.service.discovery.v3.Res")
    );
}

#[test]
fn errors_name_the_place_and_the_cause() {
    let fields = json!({"@type": CLUSTER, "name": "a", "conect_timeout": "1s"});
    let message = error(Format::Json, write(Format::Json, &response(&[cluster("x"), fields])));
    assert_eq!(
        message,
        "not a valid envoy.service.discovery.v3.DiscoveryResponse: resources[1] (line 1): \
         unknown field of envoy.config.cluster.v3.Cluster; did you mean connect_timeout?"
    );

    let mut mismatched = response(&[cluster("a")]);
    mismatched["typeUrl"] = LISTENER.into();
    for format in FORMATS {
        assert!(error(format, write(format, &mismatched)).contains("type_url says"), "{format:?}");
        let unnamed = json!({"@type": CLUSTER, "connectTimeout": "1s"});
        assert!(error(format, write(format, &response(&[unnamed]))).contains("has no name"), "{format:?}");
        let twice = response(&[cluster("a"), cluster("a")]);
        assert!(error(format, write(format, &twice)).contains("\"a\" is there twice"), "{format:?}");
        let variant = |env: &str| {
            let constraints = json!({"constraint": {"key": "env", "value": env}});
            let name = json!({"name": "a", "dynamicParameterConstraints": constraints});
            json!({"@type": WRAPPER, "resourceName": name, "resource": cluster("a")})
        };
        let variants = response(&[variant("prod"), variant("test"), cluster("a")]);
        assert_eq!(names(&decode(format, &write(format, &variants)).unwrap()), ["a", "a", "a"]);
        let twice = error(format, write(format, &response(&[variant("prod"), variant("prod")])));
        assert!(twice.contains("\"a\" is there twice with the same constraints"), "{twice}");
        assert!(error(format, b"").contains("the file is empty"));
        assert!(error(format, b" \n").contains("the file is empty"));
    }
    assert!(error(Format::Text, b"# nothing yet\n").contains("the file is empty"));
    assert!(error(Format::Yaml, "a: [").contains("line 1"), "{}", error(Format::Yaml, "a: ["));
    assert!(error(Format::Yaml, "- 1").contains("expected an object"));
    assert!(error(Format::Json, "{").contains("line 1 column 1"));
    assert!(
        error(Format::Text, "resources [").contains("text of a envoy.service.discovery.v3.DiscoveryResponse")
    );
    assert!(error(Format::Binary, b"resources: []").contains("neither"));
}

/// A text that must be in no message.
const KEY: &str = "MIIEvQIBADANBgkq";

#[test]
fn a_fault_has_a_path_and_a_line_and_repeats_no_value() {
    let certificate = |key: Value| json!({"tlsCertificate": {"privateKey": key}});
    for (mut secret, expected) in [
        (certificate(json!(KEY)), "privateKey (line 11): expected envoy.config.core.v3.DataSource"),
        (certificate(json!([KEY])), "privateKey (line 11): expected envoy.config.core.v3.DataSource"),
        (
            certificate(json!({"inlineString": {"x": KEY}})),
            "privateKey.inlineString (line 12): expected string",
        ),
        (
            certificate(json!({"inlineBytes": format!("-{KEY}!")})),
            "privateKey.inlineBytes (line 12): expected bytes",
        ),
        (
            certificate(json!({"inlineStrin": KEY})),
            "privateKey (line 12): unknown field of envoy.config.core.v3.DataSource; did you mean inlineString?",
        ),
        (
            certificate(json!({KEY: 1})),
            "privateKey (line 12): unknown field of envoy.config.core.v3.DataSource",
        ),
        (
            certificate(json!({"inlineString": KEY, "filename": KEY})),
            "privateKey (line 11): only one of filename and inline_string may be set",
        ),
        (
            json!({"genericSecret": KEY}),
            "genericSecret (line 10): expected envoy.extensions.transport_sockets.tls.v3.GenericSecret",
        ),
        (json!({"sessionTicketKeys": {"keys": KEY}}), "sessionTicketKeys.keys (line 11): expected a list"),
        (
            json!({"sessionTicketKeys": {"keys": [{}, KEY]}}),
            "sessionTicketKeys.keys[1] (line 13): expected envoy.config.core.v3.DataSource",
        ),
        (
            json!({"validationContext": {"trustChainVerification": KEY}}),
            "validationContext.trustChainVerification (line 11): expected envoy.extensions.transport_sockets.tls.v3.CertificateValidationContext.TrustChainVerification",
        ),
        (
            json!({"validationContext": {"maxVerifyDepth": KEY}}),
            "validationContext.maxVerifyDepth (line 11): expected google.protobuf.UInt32Value",
        ),
        (
            json!({"zz": [KEY]}),
            "resources[1] (line 10): unknown field of envoy.extensions.transport_sockets.tls.v3.Secret",
        ),
    ] {
        secret["@type"] = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret".into();
        let resources = json!({"resources": [cluster("a"), secret]});
        let message = error(Format::Json, serde_json::to_string_pretty(&resources).unwrap());
        assert!(message.contains(expected), "{message}\n{expected}");
        let message = error(Format::Yaml, write(Format::Yaml, &resources));
        assert!(!message.contains(KEY) && message.contains("(line "), "{message}");
    }
}

#[test]
fn a_text_that_cannot_be_read_is_not_repeated() {
    let yaml = |key: &str| format!("\"@type\": t/envoy.config.core.v3.DataSource\ninlineString: {key}");
    let text = |key: &str| format!("resources {{\n [t/envoy.config.core.v3.DataSource] {{\n  {key}\n }}\n}}");
    for (format, document, expected) in [
        (Format::Yaml, yaml(&format!("|\n-----BEGIN\n{KEY}")), "line "),
        (Format::Yaml, yaml(&format!("\"{KEY}")), "line "),
        (Format::Yaml, yaml(&format!("*{KEY}")), "line "),
        (Format::Yaml, yaml(&format!("a\n{KEY}: 1\n{KEY}: 1")), "line 4: a key is there twice"),
        (Format::Json, format!("{{\"a\": \"{KEY}\" \"{KEY}\"}}"), "line 1 column"),
        (Format::Text, text(&format!("inline_string: {KEY}")), "line 3: "),
        (Format::Text, text(&format!("inline_string: \"x\" {KEY}: 1")), "line 3: "),
        (Format::Text, text(&format!("inline_string: \"x\"\n  {KEY}")), "line 5: "),
        (Format::Text, text(&format!("inline_string: \"{KEY}")), "line 3: "),
        (Format::Text, text(&format!("filename: \"{KEY}\"\n  inline_string: \"{KEY}\"")), "line 4: "),
    ] {
        let message = error(format, document);
        assert!(!message.contains(KEY) && message.contains(expected), "{message}");
    }
}

#[test]
fn a_binary_file_that_was_cut_short_is_refused() {
    let whole = binary_response(response(&[cluster("a"), cluster("b")]));
    let complete = decode(Format::Binary, &whole).unwrap();
    for end in 0..whole.len() {
        if let Ok(resources) = decode(Format::Binary, &whole[..end]) {
            // Cut between two fields: what is there is whole.
            assert!(complete.starts_with(&resources), "{end}");
        }
    }
}

#[test]
fn deep_nesting_is_refused_and_overflows_nothing() {
    let open = "list_value { values { ".repeat(100_000);
    let message = error(Format::Text, format!("[type.googleapis.com/google.protobuf.Value] {{ {open}"));
    assert!(message.contains("deeper"), "{message}");
    assert!(!error(Format::Json, "[".repeat(100_000)).is_empty());
    assert!(!error(Format::Yaml, "[".repeat(100_000)).is_empty());
    let value = format!(
        r#"{{"@type": "type.googleapis.com/google.protobuf.Value", "value": {}{}}}"#,
        "[".repeat(120),
        "]".repeat(120)
    );
    assert!(!error(Format::Json, value).is_empty());

    // An Any in text may hold bytes, and those another Any, which no counting of brackets sees.
    let mut inner = Vec::new();
    for _ in 0..5_000 {
        let mut outer = Vec::new();
        put_bytes(&mut outer, 1, b"type.googleapis.com/google.protobuf.Any");
        put_bytes(&mut outer, 2, &inner);
        inner = outer;
    }
    let escaped: String = inner.iter().map(|byte| format!("\\x{byte:02x}")).collect();
    let message = error(
        Format::Text,
        format!(r#"resources {{ type_url: "t/google.protobuf.Any" value: "{escaped}" }}"#),
    );
    assert!(message.contains("deeper"), "{message}");
}

proptest! {
    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        for format in FORMATS {
            let found = decode(format, &bytes).map_or(0, |resources| resources.len());
            prop_assert!(found <= bytes.len());
        }
    }

    #[test]
    fn damaged_files_never_panic(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let document = response(&[cluster("a"), json!({
            "@type": WRAPPER, "name": "n", "ttl": "5s", "resource": cluster("b"),
        })]);
        for format in FORMATS {
            let mut bytes = write(format, &document);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if cut {
                bytes.truncate(at);
            }
            if let Ok(resources) = decode(format, &bytes) {
                prop_assert!(names(&resources).iter().all(|name| !name.is_empty()));
            }
        }
    }
}
