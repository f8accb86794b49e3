//! `deltafan get` over each transport, by the real binary.

use deltafan::proto::DiscoveryResponse;
use deltafan_test_support::origin::state;
use deltafan_test_support::process::Ran;

use super::admin_commands;
use super::admin_commands::run;
use crate::prelude::*;

const TRANSPORTS: [&str; 3] = ["delta", "sotw", "rest"];

const ENDPOINTS: &str = "resources:
- \"@type\": type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment
  cluster_name: a
";

/// Runs `deltafan get` at a server.
async fn get(server: &str, transport: &str, args: &[&str]) -> Ran {
    let fixed = ["get", "--server", server, "--transport", transport, "--timeout", "5"];
    run(&[&fixed, args].concat()).await
}

/// Server that gives every request this answer over HTTP/1.1.
fn server(status: &str, content_type: &str, body: &str) -> String {
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\n");
    admin_commands::server(&format!("{head}content-length: {}\r\n\r\n{body}", body.len()))
}

fn cds() -> TypeUrl {
    Kind::Cluster.into()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_transport_shows_one_answer() {
    let files = [("clusters.yaml", &*clusters(["a", "b"])), ("endpoints.yaml", ENDPOINTS)];
    let relay = Process::start(&files, "");
    for (args, count) in [(&["cds"][..], 2), (&["cds", "*"], 2), (&["cds", "b"], 1), (&["eds", "a"], 1)] {
        let mut answers = Vec::new();
        for transport in TRANSPORTS {
            let json = get(&relay.uri(), transport, &[args, &["-o", "json"]].concat()).await;
            assert_eq!((json.code, json.stderr.as_str()), (Some(0), ""), "{transport}: {}", json.stdout);
            let yaml = get(&relay.uri(), transport, &[args, &["-o", "yaml"]].concat()).await;
            assert!(yaml.stdout.contains("\nresources:\n- name: "), "{transport}: {}", yaml.stdout);
            let mut json: Json = serde_json::from_str(&json.stdout).unwrap();
            for resource in json["resources"].as_array_mut().unwrap() {
                // In state of the world a response has a version, and its resources have none.
                assert!(resource["version"].take().as_str().is_some_and(|version| !version.is_empty()));
            }
            answers.push(json);
        }
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{args:?}: {answers:?}");
        assert_eq!(answers[0]["resources"].as_array().unwrap().len(), count);
    }
    let sizes = async |transport| {
        let table = get(&relay.uri(), transport, &["cds"]).await.stdout;
        let rows = table.lines().skip(1).map(|line| line.split_whitespace().map(str::to_owned).collect());
        let rows: Vec<Vec<String>> = rows.collect();
        rows.iter().map(|row| (row[0].clone(), row[2].clone())).collect::<Vec<_>>()
    };
    let delta = sizes("delta").await;
    assert_eq!(delta.len(), 2, "{delta:?}");
    assert_eq!(sizes("sotw").await, delta);
    assert_eq!(sizes("rest").await, delta);

    for transport in TRANSPORTS {
        // A response by state of the world leaves out what does not exist, and what a relay has not heard of yet.
        let end = if transport == "delta" { "does not exist" } else { "no answer" };
        for of in ["cds", "eds"] {
            let ran = get(&relay.uri(), transport, &[of, "a", "none"]).await;
            assert_eq!(ran.code, Some(1));
            assert!(
                ran.stdout.lines().any(|line| line.starts_with("none ") && line.ends_with(end)),
                "{transport} {of}: {}",
                ran.stdout
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_the_transport_is_told_with_the_one_to_try() {
    let origin = Origin::start().await;
    let ran = get(&origin.uri(), "sotw", &["cds"]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    ran.complains(&["Unimplemented", "use --transport delta or rest"]);
    origin.implement(false, true);
    let ran = get(&origin.uri(), "delta", &["cds"]).await;
    ran.complains(&["Unimplemented", "use --transport sotw or rest"]);
    let ran = get(&origin.uri(), "rest", &["cds"]).await;
    ran.complains(&["use --transport delta or sotw"]);
    let ran = get(&origin.uri(), "rest", &["vhds"]).await;
    ran.complains(&["REST-JSON has no path", "--transport delta"]);

    let other = server("404 Not Found", "text/plain", "no such page\n");
    let ran = get(&other, "rest", &["cds"]).await;
    ran.complains(&["404 Not Found: no such page; the server has no REST-JSON at this address"]);
    for transport in ["delta", "sotw"] {
        let ran = get(&other, transport, &["cds"]).await;
        ran.complains(&[
            "the server does not speak HTTP/2; for a server of REST-JSON use --transport rest\n",
        ]);
    }
    let html = "<html>\n<head><title>404 Not Found</title></head>\n<body><h1>nginx</h1></body></html>";
    let page = server("404 Not Found", "text/html", html);
    let ran = get(&page, "rest", &["cds"]).await;
    assert_eq!(
        ran.stderr,
        "deltafan: the server answered 404 Not Found: a page with the title `404 Not Found`; the server has no REST-JSON at this address; use \
         --transport delta or sotw, or check the port of --server\n"
    );
    let page = server("200 OK", "text/html", "<html>");
    let ran = get(&page, "rest", &["cds"]).await;
    ran.complains(&["the answer is no DiscoveryResponse in JSON: not JSON: "]);
}

#[tokio::test(flavor = "multi_thread")]
async fn polls_go_on_until_the_control_plane_has_answered() {
    let mut origin = Origin::start().await;
    let relay = Process::behind(&origin.uri(), "");
    let ran = get(&relay.uri(), "rest", &["cds"]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    ran.complains(&["has not answered within 5s: the control plane has not answered"]);
    let ran = get(&relay.uri(), "rest", &["eds", "e"]).await;
    assert!(ran.stdout.lines().any(|line| line.starts_with("e ") && line.ends_with("no answer")));
    ran.complains(&["the control plane has not answered"]);
    let mut upstream = origin.accept().await;
    assert_eq!(upstream.expect_request().await.type_url, cds().as_str(), "a poll is asked on, by a client");
}

#[tokio::test(flavor = "multi_thread")]
async fn state_of_the_world_is_asked_as_servers_know_it() {
    let mut origin = Origin::start().await;
    origin.implement(false, true);
    let uri = origin.uri();
    let ask = tokio::spawn(async move { get(&uri, "sotw", &["cds", "-o", "json"]).await });
    let mut stream = origin.accept_sotw().await;
    let request = stream.expect_request().await;
    assert!(request.resource_names.is_empty(), "the legacy wildcard: {request:?}");
    assert_eq!(request.node.unwrap().id, "deltafan-get");
    stream.send(&state(&cds(), "7", &[("a", "")]));
    let shown: Json = serde_json::from_str(&ask.await.unwrap().stdout).unwrap();
    assert_eq!(shown["resources"][0]["version"], "7");

    let uri = origin.uri();
    let ask = tokio::spawn(async move { get(&uri, "sotw", &["eds", "x", "y"]).await });
    let mut stream = origin.accept_sotw().await;
    let request = stream.expect_request().await;
    assert_eq!(request.resource_names, ["x", "y"]);
    let eds: TypeUrl = Kind::Endpoint.into();
    stream.send(&state(&eds, "1", &[("y", "")]));
    let ack = stream.expect_request().await;
    assert_eq!(
        (ack.resource_names, ack.version_info),
        (vec!["x".to_owned(), "y".to_owned()], "1".to_owned())
    );
    stream.send(&DiscoveryResponse { nonce: "2".to_owned(), ..state(&eds, "2", &[("x", "")]) });
    let ran = ask.await.unwrap();
    assert_eq!(ran.code, Some(0), "{}", ran.stdout);

    let uri = origin.uri();
    let ask = tokio::spawn(async move { get(&uri, "sotw", &["eds"]).await });
    let mut stream = origin.accept_sotw().await;
    assert_eq!(stream.expect_request().await.resource_names, ["*"], "no legacy wildcard");
    stream.send(&state(&cds(), "1", &[]));
    let ran = ask.await.unwrap();
    ran.complains(&["a response of `type.googleapis.com/envoy.config.cluster.v3.Cluster`; `"]);
}

/// The form that other servers may give to an answer.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_another_server_of_rest_json_is_read() {
    let answer = r#"{"version_info": "3", "new_field": 1, "resources": [{"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
        "name": "a", "connect_timeout": "1s", "newer_field": true}]}"#;
    let other = server("200 OK", "application/json", answer);
    let ran = get(&other, "rest", &["cds", "-o", "json"]).await;
    let shown: Json = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.stderr));
    assert_eq!(shown["resources"][0]["version"], "3");
    assert_eq!(shown["resources"][0]["resource"]["connectTimeout"], "1s");
}

/// A bootstrap with parts of the node that deltafan has no use for.
const BOOTSTRAP: &str = "node:
  id: envoy-1
  cluster: edge
  metadata: {env: prod}
  locality: {zone: z1}
  extensions: [{name: e, category: c}]
  client_features: [own]
static_resources: {}
";

#[tokio::test(flavor = "multi_thread")]
async fn the_node_of_a_bootstrap_is_sent_whole() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("envoy.yaml");
    std::fs::write(&file, BOOTSTRAP).unwrap();
    let file = file.to_str().unwrap().to_owned();
    let mut origin = Origin::start().await;
    let mut node_of = async |args: &[&str]| {
        let (uri, fixed) = (origin.uri(), ["cds", "--timeout", "1", "--node", &file]);
        let args: Vec<String> = fixed.iter().chain(args).map(|arg| (*arg).to_owned()).collect();
        tokio::spawn(async move {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            run(&[&["get", "--server", &uri], &args[..]].concat()).await
        });
        origin.accept().await.expect_request().await.node.unwrap()
    };
    let node = node_of(&[]).await;
    assert_eq!((&*node.id, &*node.cluster), ("envoy-1", "edge"));
    assert_eq!(node.client_features, ["own", "deltafan.observer"]);
    assert_eq!(node.locality.unwrap().zone, "z1");
    assert!(!node.metadata.is_empty());
    let node = node_of(&["--node-id", "other", "--subscribe"]).await;
    assert_eq!((&*node.id, &*node.cluster), ("other", "edge"));
    assert_eq!(node.client_features, ["own"]);
    assert_eq!(node_of(&["--node-cluster", "core"]).await.cluster, "core");

    let ran = run(&["get", "cds", "--node", folder.path().join("none").to_str().unwrap()]).await;
    assert_eq!(ran.code, Some(1));
    ran.complains(&["none: cannot be read: "]);
}

/// Parameters of the relay's rules follow from the file, over each transport; those of the command line come first.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sees_the_resources_of_an_envoy() {
    let rules = "dynamic_parameters: [{key: env, from: node.metadata.env}]\n";
    let variant = |name: &str, env: &str| {
        format!(
            "- \"@type\": type.googleapis.com/envoy.service.discovery.v3.Resource
  resource_name:
    name: {name}
    dynamic_parameter_constraints: {{constraint: {{key: env, value: {env}}}}}
  resource: {{\"@type\": {CDS}, name: {name}, connect_timeout: 1s}}
"
        )
    };
    let file = format!("resources:\n{}{}", variant("for-prod", "prod"), variant("for-dev", "dev"));
    let relay = Process::start(&[("clusters.yaml", &file)], rules);
    let envoy = relay.home().join("envoy.yaml");
    std::fs::write(&envoy, BOOTSTRAP).unwrap();
    for transport in TRANSPORTS {
        let names = async |args: &[&str]| {
            let ran = get(&relay.uri(), transport, &[&["cds"], args].concat()).await;
            let rows = ran.stdout.lines().skip(1).map(|row| row.split(' ').next().unwrap().to_owned());
            (rows.collect::<Vec<_>>(), ran.stderr)
        };
        let node = ["--node", envoy.to_str().unwrap()];
        assert_eq!(names(&node).await.0, ["for-prod"], "{transport}");
        let dev = names(&[&node[..], &["--param", "env=dev"]].concat()).await;
        assert_eq!(dev.0, ["for-dev"], "{transport}: {}", dev.1);
    }
}

/// Names in a table.
fn names(ran: &Ran) -> Vec<&str> {
    ran.stdout.lines().skip(1).map(|row| row.split(' ').next().unwrap()).collect()
}

/// State of the world has no aliases: it is not known whether this is the resource.
#[tokio::test(flavor = "multi_thread")]
async fn a_resource_under_another_name_may_be_the_answer() {
    let eds: TypeUrl = Kind::Endpoint.into();
    let mut origin = Origin::start().await;
    origin.implement(false, true);
    let uri = origin.uri();
    let ask = tokio::spawn(async move { get(&uri, "sotw", &["eds", "alias"]).await });
    let mut stream = origin.accept_sotw().await;
    stream.expect_request().await;
    stream.send(&state(&eds, "1", &[("own", "")]));
    let ran = ask.await.unwrap();
    assert_eq!((ran.code, names(&ran)), (Some(1), vec!["own", "alias"]), "{}", ran.stdout);
    ran.complains(&["--transport delta shows aliases"]);
}
