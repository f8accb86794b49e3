//! The configuration of the real binary, changed while it runs.

use std::os::unix::fs::symlink;
use std::thread;

use deltafan_test_support::process::run;

use crate::prelude::*;

fn applied(relay: &Process, times: f64) {
    relay.wait_for("a reload", || relay.reloads("applied") >= times);
    assert_eq!(relay.reloads("applied"), times);
}

/// Output of `deltafan check` about the file as it is.
fn check(relay: &Process) -> Vec<String> {
    let checked = run(&["check", "--config", relay.config().to_str().unwrap()]);
    assert_eq!(checked.code, Some(78));
    checked.stderr.lines().map(str::to_owned).collect()
}

async fn subscribed(relay: &Process, names: &[&str]) -> Delta {
    relay.client("client", names).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_for_new_connections_and_drops_no_stream() {
    let relay = relay("  max_names: 1\n");
    let mut open = subscribed(&relay, &["a"]).await;
    open.take().await;

    relay.reconfigure(&relay.config_with("  max_names: 2\n"));
    applied(&relay, 1.0);
    let told = relay.wait_for_message("configuration reloaded");
    assert_eq!((told.len(), &told[0]["changed"]), (1, &"downstream.max_names".into()));
    assert_eq!(names(&subscribed(&relay, &["a", "b"]).await.response().await).len(), 2);

    // The one that was open goes on, as it began.
    relay.write("clusters.yaml", &clusters(["a", "b"]).replace("1s", "2s"));
    let update = open.response().await;
    assert_eq!(names(&update), ["a"]);
    open.ack(&update).await;
    let more = subscription("client", CDS, &["b"]);
    open.send(more).await;
    assert_eq!(open.end().await.code(), Code::ResourceExhausted);

    // And back: newcomers are held to it at once.
    relay.reconfigure(&relay.config_with("  max_names: 1\n"));
    applied(&relay, 2.0);
    assert_eq!(subscribed(&relay, &["a", "b"]).await.end().await.code(), Code::ResourceExhausted);
    assert_eq!(relay.metric("deltafan_config_restart_pending"), 0.0);
}

#[test]
fn polls_are_held_as_is_in_force_when_they_come() {
    let relay = relay("rest: {hold: 1h}\n");
    let mut client = Http1::connect(relay.listener);
    let version = client.poll("clusters", "{}").version();
    relay.reconfigure(&relay.config_with("rest: {hold: 50ms, max_polls_per_peer: 1}\n"));
    applied(&relay, 1.0);
    let body = format!("{{\"version_info\": \"{version}\"}}");
    // Long before an hour is over.
    assert_eq!(client.poll("clusters", &body).status, 304, "on the connection from before");
}

/// Keys outside of `downstream` are changed too: a set that would not settle for an hour does with the reload.
#[tokio::test(flavor = "multi_thread")]
async fn the_source_is_tuned_while_it_runs() {
    use deltafan::resource::Kind;
    use deltafan_test_support::origin::{Origin, resource, response};

    let mut origin = Origin::start().await;
    let (uri, slow) = (origin.uri(), "  settle: 1h\n  settle_max: 1h\n  cold_deadline: 1h\n");
    let relay = Process::behind(&uri, slow);
    let mut upstream = origin.accept().await;
    upstream.answers_no_end_mark();
    let mut stream = Sotw::asking(&connect(&relay.uri()).await, "client", CDS, &[]).await;
    upstream.expect_request().await;
    let cds = Kind::Cluster.into();
    upstream.send(&deltafan::proto::DeltaDiscoveryResponse {
        resources: vec![resource(&cds, "a", "1", &[10, 1, b'a'])],
        ..response(&cds, "n")
    });
    upstream.expect_ack("n").await;
    stream.silence().await;
    relay.reconfigure(&relay.config_with("  settle: 0s\n  settle_max: 0s\n  cold_deadline: 1h\n"));
    assert_eq!(stream.response().await.resources.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_wrong_changes_nothing_and_is_named_line_by_line() {
    let relay = relay("  max_names: 1\n");
    let in_force = || relay.metric("deltafan_config_last_reload_successful");
    let since = || relay.metric("deltafan_config_last_reload_success_timestamp_seconds");
    relay.wait_for("the first reading", || since() > 0.0);
    let started = since();
    assert_eq!(in_force(), 1.0);

    relay.reconfigure(&relay.config_with("  max_names: 2\n  setle: 1s\nrest: {hold: 5}\n"));
    relay.wait_for("a refusal", || relay.reloads("refused") == 1.0);
    assert_eq!((in_force(), since()), (0.0, started));
    let wrong = check(&relay);
    assert_eq!(wrong.len(), 2, "{wrong:?}");
    let warned: Vec<String> = {
        let log = relay.events();
        log.iter()
            .filter(|event| event["level"] == "WARN")
            .map(|event| event["message"].as_str().unwrap().to_owned())
            .collect()
    };
    assert!(wrong.iter().all(|line| warned.contains(line)), "{wrong:?} in {warned:?}");
    // Nothing of it is in force, not even what is right.
    assert_eq!(subscribed(&relay, &["a", "b"]).await.end().await.code(), Code::ResourceExhausted);

    // It is not counted again until it changes or somebody asks.
    relay.signal("HUP");
    relay.wait_for("a second refusal", || relay.reloads("refused") == 2.0);
    std::fs::remove_file(relay.config()).unwrap();
    relay.wait_for("a refusal of nothing", || relay.reloads("refused") == 3.0);
    assert!(subscribed(&relay, &["a"]).await.response().await.removed_resources.is_empty());

    relay.reconfigure(&relay.config_with("  max_names: 1\n"));
    relay.wait_for("the file from before", || relay.reloads("unchanged") == 1.0);
    assert_eq!((in_force(), relay.reloads("refused"), relay.reloads("applied")), (1.0, 3.0, 0.0));
    assert!(since() > started);
}

/// Its listener, as the configuration has it.
fn cleartext(relay: &Process) -> String {
    format!("{{address: \"{}:0\"}}", relay.listener.ip())
}

/// Files that belong together are not written at once: what the configuration points at may come after it.
#[test]
fn files_that_the_configuration_names_may_be_mended_while_it_stays_as_it_is() {
    let relay = relay("  max_names: 1\n");
    let put = |name: &str, text: &str| std::fs::write(relay.config().with_file_name(name), text).unwrap();
    let server = deltafan_test_support::certificates::Authority::new("servers").server();
    let listener = "{address: \"127.0.0.1:0\", tls: {cert_file: cert.pem, key_file: key.pem}}";
    put("cert.pem", &server.cert_pem);
    let text = relay.config_with("  max_names: 2\n");
    relay.reconfigure(&text.replace(&cleartext(&relay), listener));
    relay.wait_for("a refusal", || relay.reloads("refused") == 1.0);
    // Looked at again, and found as it was: that is not counted.
    put("another", "");
    thread::sleep(Duration::from_secs(3));
    assert_eq!(relay.reloads("refused"), 1.0);
    put("key.pem", &server.key_pem);
    applied(&relay, 1.0);
    assert_eq!(relay.metric("deltafan_config_last_reload_successful"), 1.0);
}

#[test]
fn keys_that_need_a_restart_are_named_one_by_one_and_the_rest_is_in_force() {
    let relay = relay("");
    let pending = || relay.metric("deltafan_config_restart_pending");
    let message = "this change of the configuration needs a restart";
    let named = || {
        let told = relay.wait_for_messages(message, 3);
        told.iter().map(|event| event["key"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let moved = |text: String| {
        text.replace("{id: test}", "{id: other}").replace(&cleartext(&relay), "{address: \"127.0.0.1:1\"}")
    };
    relay.reconfigure(&moved(relay.config_with("  max_names: 7\ncache: {encoded_bytes: 1MiB}\n")));
    applied(&relay, 1.0);
    assert_eq!(pending(), 1.0);
    assert_eq!(named(), ["cache.encoded_bytes", "downstream.listeners[].address", "node.id"]);
    // Said again, because it is still so; and only while it is.
    relay.signal("HUP");
    relay.wait_for("a reading", || relay.reloads("unchanged") == 1.0);
    assert_eq!((pending(), named().len()), (1.0, 3));
    relay.reconfigure(&relay.config_with("  max_names: 7\n"));
    applied(&relay, 2.0);
    assert_eq!((pending(), relay.said(message).len()), (0.0, 0));
}

/// Kubernetes replaces a mounted ConfigMap by moving a link that the file's own link goes through.
#[test]
fn a_folder_that_is_swapped_is_noticed_at_once() {
    let relay = relay("  max_names: 1\n");
    let home = relay.config().parent().unwrap().to_owned();
    let publish = |folder: &str, text: &str| {
        std::fs::create_dir(home.join(folder)).unwrap();
        std::fs::write(home.join(folder).join("relay.yaml"), text).unwrap();
        symlink(folder, home.join("..data_tmp")).unwrap();
        std::fs::rename(home.join("..data_tmp"), home.join("..data")).unwrap();
    };
    publish("..first", &relay.config_with("  max_names: 1\n"));
    symlink("..data/relay.yaml", home.join("link")).unwrap();
    std::fs::rename(home.join("link"), relay.config()).unwrap();
    let start = Instant::now();
    publish("..second", &relay.config_with("  max_names: 2\n"));
    applied(&relay, 1.0);
    assert!(start.elapsed() < Duration::from_secs(8), "by a poll, after {:?}", start.elapsed());
    // Written in place, where it really is.
    let start = Instant::now();
    std::fs::write(home.join("..second/relay.yaml"), relay.config_with("  max_names: 3\n")).unwrap();
    applied(&relay, 2.0);
    assert!(start.elapsed() < Duration::from_secs(8), "by a poll, after {:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_are_given_other_parameters_come_again_and_others_stay() {
    let relay = relay("  drain: 5s\n");
    let mut open = Vec::new();
    for _ in 0..20 {
        let mut stream = subscribed(&relay, &["*"]).await;
        stream.take().await;
        open.push(stream);
    }
    // On loopback everybody has Secrets already: nobody's rights change.
    relay.reconfigure(&relay.config_with("  drain: 5s\n  secrets_without_authentication: true\n"));
    applied(&relay, 1.0);
    open[0].silence().await;
    assert_eq!(relay.metric("deltafan_connections"), 20.0);

    let rules = "  drain: 5s\ndynamic_parameters: [{key: env, from: node.cluster}]\n";
    relay.reconfigure(&relay.config_with(rules));
    for mut stream in open {
        let status = stream.end().await;
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    }
    relay.wait_for("their end", || relay.metric("deltafan_connections") == 0.0);
    assert_eq!(names(&subscribed(&relay, &["*"]).await.response().await), ["a", "b"]);
    assert_eq!(relay.metric("deltafan_config_restart_pending"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn loopback_is_trusted_with_secrets_unless_a_proxy_may_be_there() {
    let secret = format!("type_url: {SDS}\nresources:\n- \"@type\": {SDS}\n  name: key\n");
    let relay = Process::start(&[("secrets.yaml", &secret)], "  drain: 1s\n");
    let subscribed = async || Delta::asking(&connect(&relay.uri()).await, "client", SDS, &["key"]).await;
    let mut open = subscribed().await;
    assert_eq!(names(&open.response().await), ["key"]);

    relay.reconfigure(&relay.config_with("  drain: 1s\n  secrets_over_loopback: false\n"));
    assert_eq!(open.end().await.code(), Code::Unavailable, "what it may have has changed");
    assert_eq!(subscribed().await.end().await.code(), Code::PermissionDenied);
    assert_eq!(relay.metric("deltafan_config_restart_pending"), 0.0);
}
