use proptest::prelude::*;

use super::*;
use crate::descriptors::MAX_DEPTH;

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
    let locality = proto::Locality { region: "r".to_owned(), zone: "z".to_owned(), sub_zone: "s".to_owned() };
    assert_eq!(node(true).locality, Some(locality));
    let json = serde_json::json!({"env": "prod", "n": 1.5, "deep": {"list": [true, null]}});
    let encoded = proto::structure(json.as_object().expect("an object")).encode_to_vec();
    assert_eq!(node(true).metadata, encoded);
    assert_eq!(node(false), proto::Node { id: "a".to_owned(), ..proto::Node::default() });

    let nulls = r#"{"node":{"locality":null,"metadata":null}}"#;
    assert_eq!(read(nulls.as_bytes(), 10, true).expect("a request").node, Some(proto::Node::default()));
    for (node, reason) in [
        (r#"{"metadata":[]}"#, "expected a map"),
        (r#"{"locality":["r"]}"#, "a message as an object"),
        (r#"{"locality":{"zone":1}}"#, "expected a string"),
        (r#"{"locality":{"sub_zone":"a","subZone":"b"}}"#, "duplicate field `sub_zone`"),
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
        ("[]", "a message as an object"),
        ("null", "a message as an object"),
        ("\"x\"", "a message as an object"),
        ("{} {}", "trailing characters"),
        (r#"{"version_info":7}"#, "invalid type: integer `7`, expected a string"),
        (r#"{"resource_names":"a"}"#, "expected a sequence"),
        (r#"{"resource_names":["a",null]}"#, "expected a string"),
        (r#"{"node":"a"}"#, "a message as an object"),
        (r#"{"node":["a","b"]}"#, "a message as an object"),
        (r#"{"node":{"id":{}}}"#, "expected a string"),
        (r#"{"version_info":"1","versionInfo":"2"}"#, "duplicate field `version_info`"),
        (r#"{"type_url":"t",}"#, "trailing comma"),
        (r#"{"resource_locators":{}}"#, "expected a sequence"),
        (r#"{"resource_locators":["a"]}"#, "a message as an object"),
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
        for place in
            [r#"{"node":{"metadata":"#, r#"{"error_detail":"#, r#"{"unknown":"#, r#"{"node":{"extensions":"#]
        {
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
    assert_eq!(check_bounds(format!("]]]]{}", "[".repeat(101)).as_bytes(), 1000), Err(BoundsError::TooDeep));
}

#[test]
fn values_are_counted() {
    let list = format!("[{}]", vec!["0"; 100].join(","));
    assert_eq!(check_bounds(list.as_bytes(), 100), Ok(()));
    assert_eq!(check_bounds(list.as_bytes(), 99), Err(BoundsError::TooMany(99)));
}
