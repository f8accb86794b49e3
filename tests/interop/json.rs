//! Answers over REST-JSON, read by a proto3-JSON parser that is not ours.

use std::fs;
use std::path::Path;
use std::process::Command;

use deltafan::resource::TypeUrl;
use deltafan_test_support::client::{Sotw, connect};
use deltafan_test_support::http1::Http1;
use deltafan_test_support::process::Process;

use crate::fixture::{in_repository, require};

/// Fields with special forms in proto3 JSON, in the places where Envoy has them.
const SPECIAL: &str = r##"
type_url: type.googleapis.com/envoy.config.cluster.v3.Cluster
resources:
- "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: "d\u00fcrer \u2028 \"quoted\" \\ \U0001F980"
  connect_timeout: 0.000000001s
  dns_lookup_family: 99
  per_connection_buffer_limit_bytes: 0
  cluster_type:
    name: nested
    typed_config:
      "@type": type.googleapis.com/google.protobuf.Any
      value: {"@type": type.googleapis.com/google.protobuf.Duration, value: 315576000000s}
  metadata:
    filter_metadata:
      "": {}
      all: {"null": null, yes: true, number: -1.5e-300, integer: 9007199254740993, text: "", list: [[], {}, [null]], deep: {a: {b: {c: [1]}}}}
    typed_filter_metadata:
      struct: {"@type": type.googleapis.com/google.protobuf.Struct, value: {a: [1]}}
      "null": {"@type": type.googleapis.com/google.protobuf.Value, value: null}
      list: {"@type": type.googleapis.com/google.protobuf.ListValue, value: [a]}
      time: {"@type": type.googleapis.com/google.protobuf.Timestamp, value: "0001-01-01T00:00:00.000000001Z"}
      int64: {"@type": type.googleapis.com/google.protobuf.Int64Value, value: "-9223372036854775808"}
      uint64: {"@type": type.googleapis.com/google.protobuf.UInt64Value, value: "18446744073709551615"}
      bytes: {"@type": type.googleapis.com/google.protobuf.BytesValue, value: "/+8A"}
      mask: {"@type": type.googleapis.com/google.protobuf.FieldMask, value: "a.b,userAgent.buildVersion"}
      xds: {"@type": type.googleapis.com/xds.type.v3.TypedStruct, type_url: acme/a.Filter, value: {rules: [{a: {b: [null, {}, 1.5]}}]}}
      udpa: {"@type": type.googleapis.com/udpa.type.v1.TypedStruct, type_url: acme/a.Filter, value: {"@type": text, value: {"": []}}}
- "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: tls
  transport_socket:
    name: tls
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
      common_tls_context: {tls_certificates: [{private_key: {inline_bytes: AAEC/w==}}]}
  typed_extension_protocol_options:
    envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
      "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
      explicit_http_config: {http2_protocol_options: {connection_keepalive: {interval: 30s, timeout: 5s}}}
"##;

const TYPES: [(&str, &str); 4] =
    [("cds", "clusters"), ("eds", "endpoints"), ("lds", "listeners"), ("rds", "routes")];

/// Every answer of the examples, and what proto3 JSON has special forms for.
#[tokio::test(flavor = "multi_thread")]
async fn r_rest_11_another_parser_reads_the_same_resources() {
    let python = in_repository(".venv/bin/python");
    if require(python.exists(), "no Python").is_none() {
        return;
    }
    let examples = fs::read_dir(in_repository("config/resources")).unwrap();
    let mut files: Vec<(String, String)> = examples
        .map(|file| file.unwrap().path())
        .map(|path| (file_name(&path), fs::read_to_string(&path).unwrap()))
        .collect();
    files.push(("special.yaml".to_owned(), SPECIAL.to_owned()));
    let folder = tempfile::tempdir().unwrap();
    let relay = tokio::task::spawn_blocking(move || {
        let files: Vec<_> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        Process::start(&files, "")
    })
    .await
    .unwrap();
    assert_eq!(relay.metric("deltafan_directory_failing_files"), 0.0, "the examples are good");
    let channel = connect(&relay.uri()).await;
    let mut read = 0;
    for (short, what) in TYPES {
        let answer = Http1::connect(relay.listener).poll(what, r#"{"resource_names": ["*"]}"#);
        answer.json();
        let type_url = TypeUrl::from_user(short).unwrap();
        let mut stream = Sotw::asking(&channel, "reader", type_url.as_str(), &["*"]).await;
        let binary = stream.next_message().await.unwrap().expect("a response");
        let [text, bytes] = ["json", "binpb"].map(|kind| folder.path().join(format!("{short}.{kind}")));
        fs::write(&text, &answer.body).unwrap();
        fs::write(&bytes, &binary).unwrap();
        let output = Command::new(&python)
            .arg(in_repository("tests/interop/read_json.py"))
            .args([in_repository("proto/descriptors.binpb.gz"), text, bytes])
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{short}: {told}\n{}", answer.body);
        read += String::from_utf8_lossy(&output.stdout).trim().parse::<usize>().unwrap();
    }
    assert!(read >= 7, "{read} resources are not all");
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}
