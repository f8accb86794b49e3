//! Commands that ask the admin address: `deltafan clients`, `nacks` and `resources`, by the real binary.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use deltafan_test_support::process;
use deltafan_test_support::process::Ran;
use percent_encoding::percent_decode_str;

use crate::fleet::wait_for_state;
use crate::prelude::*;

/// Runs a command line beside what goes on in the test.
pub(crate) async fn run(args: &[&str]) -> Ran {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    tokio::task::spawn_blocking(move || process::run(&args)).await.unwrap()
}

/// Runs a command at a relay.
pub(crate) async fn ask(relay: &Process, args: &[&str]) -> Ran {
    run(&[args, &["--admin", &format!("http://{}", relay.admin)]].concat()).await
}

/// Output of a command that succeeds.
pub(crate) async fn found(relay: &Process, args: &[&str]) -> String {
    let ran = ask(relay, args).await;
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{args:?}: {}", ran.stdout);
    ran.stdout
}

/// Options that name these relays.
pub(crate) fn admin_options(relays: &[String]) -> Vec<&str> {
    relays.iter().flat_map(|relay| ["--admin", relay]).collect()
}

/// Cells of each row of a table, up to the empty line behind it.
fn rows(table: &str) -> Vec<Vec<&str>> {
    table.lines().take_while(|line| !line.is_empty()).map(|line| line.split_whitespace().collect()).collect()
}

/// Without times, which go on between two looks.
fn timeless(mut page: Json) -> Json {
    fn strip(value: &mut Json) {
        match value {
            Json::Object(fields) => {
                fields.retain(|key, _| key != "seconds_ago" && key != "open_seconds");
                fields.values_mut().for_each(strip);
            }
            Json::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    strip(&mut page);
    page
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_show_clients_rejections_and_resources() {
    let (relay, mut origin, mut upstream) = relay_and_origin("").await;
    let channel = connect(&relay.uri()).await;
    let mut good = Delta::asking(&channel, "good", CDS, &["*"]).await;
    upstream.answer(&clusters_at("17", &["a", "b"])).await;
    good.take().await;
    let mut bad = Delta::asking(&channel, "bad\u{1b}[2J", CDS, &["a", "wanted"]).await;
    let told = bad.response().await;
    bad.nack(&told).await;
    // A name beside a wildcard is asked for on a stream of its own. With its answer nothing is on its way any more.
    let second = origin.accept_asked().await;
    second.send(&changes(Kind::Cluster, "1", &[], &["wanted"]));
    relay.wait_for("the answer", || relay.admin_get("/resources?name=wanted").1.contains("\"absent\""));
    wait_for_state(&relay, "bad*", "rejected");
    wait_for_state(&relay, "good", "synced");

    let table = found(&relay, &["clients"]).await;
    assert_eq!(rows(&table)[2][1], "bad\\u{1b}[2J", "{table}");
    let page: Json = serde_json::from_str(&found(&relay, &["clients", "-o", "json"]).await).unwrap();
    assert_eq!(timeless(page), timeless(serde_json::from_str(&relay.admin_get("/clients").1).unwrap()));
    let yaml = found(&relay, &["clients", "--node", "g*d", "-o", "yaml"]).await;
    assert!(yaml.contains("\n    id: good\n") && !yaml.contains("rejected by the test"), "{yaml}");

    let filtered = |args: &'static [&'static str]| {
        let relay = &relay;
        async move {
            let all = [&["clients"], args].concat();
            let table = found(relay, &all).await;
            rows(&table)[1..].iter().map(|row| row[1].to_owned()).collect::<Vec<_>>()
        }
    };
    assert_eq!(filtered(&["--state", "synced"]).await, ["good"]);
    assert_eq!(filtered(&["--type", "cds", "--asks-for", "a"]).await, ["good", "bad\\u{1b}[2J"]);
    assert_eq!(filtered(&["--asks-for", "b"]).await, ["good"], "through the wildcard");
    assert_eq!(filtered(&["--asks-for", "wanted"]).await, ["bad\\u{1b}[2J"], "by its name");
    let figures = found(&relay, &["clients", "--limit", "0", "--node", "good"]).await;
    assert_eq!(figures, "matched: synced 1; open streams and polls: 2\n");
    for filter in [["--node", "nobody"], ["--type", "lds"], ["--asks-for", "c"], ["--state", "behind"]] {
        let ran = ask(&relay, &[&["clients"], &filter[..]].concat()).await;
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), "deltafan: nothing matches\n"), "{filter:?}");
    }

    let id = rows(&table)[2][0].to_owned();
    let one = found(&relay, &["clients", &id]).await;
    assert!(one.contains("a, wanted\n") && one.contains("bad\\u{1b}[2J"), "{one}");
    let one: Json = serde_json::from_str(&found(&relay, &["clients", &id, "-o", "json"]).await).unwrap();
    assert_eq!(one["types"][0]["listed"], json!(["a", "wanted"]));
    let ran = ask(&relay, &["clients", "999999"]).await;
    assert_eq!(ran.code, Some(1));
    ran.complains(&["no such client; "]);

    let page: Json = serde_json::from_str(&found(&relay, &["nacks", "-o", "json"]).await).unwrap();
    assert_eq!(timeless(page), timeless(serde_json::from_str(&relay.admin_get("/nacks").1).unwrap()));
    assert_eq!(ask(&relay, &["nacks", "--node", "good"]).await.code, Some(1));

    let table = found(&relay, &["resources"]).await;
    let names: Vec<&str> = rows(&table)[1..].iter().map(|row| row[1]).collect();
    assert_eq!(names, ["a", "b", "wanted"], "{table}");
    assert!(table.ends_with("\nmatched: cds 3\n"), "{table}");
    let table = found(&relay, &["resources", "--type", "cds", "--name", "b"]).await;
    let cells = rows(&table)[1].clone();
    assert_eq!((cells[2], cells[3], cells[5]), ("present", "17", "1"), "{table}");
    assert_eq!(ask(&relay, &["resources", "--type", "lds"]).await.code, Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_put_all_pages_together() {
    const COUNT: usize = 2_500;
    let relay =
        Process::start(&[("clusters.yaml", &clusters((0..COUNT).map(|number| format!("c{number}"))))], "");
    let names = |page: &Json| -> BTreeSet<String> {
        let all = page["resources"].as_array().unwrap().iter();
        all.map(|one| one["name"].to_string()).collect()
    };
    let all: Json = serde_json::from_str(&found(&relay, &["resources", "-o", "json"]).await).unwrap();
    assert_eq!(
        (names(&all).len(), &all["matched"], &all["next"]),
        (COUNT, &json!({"cds": COUNT}), &Json::Null)
    );
    let some = found(&relay, &["resources", "-o", "json", "--limit", "1500"]).await;
    let some: Json = serde_json::from_str(&some).unwrap();
    assert_eq!((names(&some).len(), &some["next"]), (1_500, &json!(1_500)));
    let table = found(&relay, &["resources", "--limit", "1500"]).await;
    assert_eq!(rows(&table).len(), 1_501);
    assert!(table.ends_with("\nmore match; raise --limit, or leave it out\n"), "{table}");
    // Nothing is asked for, and nothing is there: no failure.
    assert_eq!(found(&relay, &["nacks"]).await, "remembered rejections: 0\n");
}

/// A server that answers each request with these bytes.
pub(crate) fn server(answer: &str) -> String {
    let answer = answer.to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut socket in listener.incoming().map_while(Result::ok) {
            while socket.read(&mut [0; 4096]).is_ok_and(|length| length > 0)
                && socket.write_all(answer.as_bytes()).is_ok()
                && !answer.is_empty()
            {}
        }
    });
    format!("http://{address}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_says_why_it_has_no_answer() {
    const PAGE: &str = "{\"clients\":[{}],\"next\":7}";
    let relay = Process::start(&[("clusters.yaml", &clusters(["a"]))], "");
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let older =
        server("HTTP/1.1 404 Not Found\r\ncontent-length: 36\r\n\r\nno such page; there are /ready, /x\n\n");
    for (admin, reason) in [
        (format!("http://{free}"), "could not connect to http://127.0.0.1:"),
        (format!("http://{free}"), "is this its `admin.address` (--admin)?"),
        (relay.uri(), "maybe one of its xDS listeners; use the port of `admin.address`"),
        (server("\u{15}\u{3}\u{1} alert"), "does not answer in HTTP"),
        (server(""), "does not answer in HTTP"),
        (server("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno"), "is no JSON; is this the admin address"),
        (server("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"), "has no `clients`"),
        (
            server(&format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{PAGE}", PAGE.len())),
            "one page again and again",
        ),
        (server("HTTP/1.1 500 E\r\ncontent-length: 8\r\n\r\n\u{1b}[31mred"), "\\u{1b}[31mred"),
        (older, "it is older than this command"),
    ] {
        let ran = run(&["clients", "--admin", &admin]).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{admin}: {}", ran.stderr);
        assert!(ran.stderr.starts_with("deltafan: ") && ran.stderr.contains(reason), "{}", ran.stderr);
    }
    // A server that says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let admin = format!("http://{}", silent.local_addr().unwrap());
    let ran = run(&["nacks", "--admin", &admin, "--timeout", "0.3"]).await;
    assert!(ran.code == Some(1) && ran.stderr.contains("has not answered within 300ms"), "{}", ran.stderr);

    for (args, reason) in [
        (&["clients", "--admin", "https://relay:15000"][..], "it speaks no TLS"),
        (&["clients", "--stat", "synced"], "--state"),
        (&["clients", "--state", "synched"], "synced"),
        (&["clients", "--type", "cows"], "cows"),
        (&["clients", "7", "--node", "a"], "cannot be used with"),
        (&["nacks", "--timeout", "-1"], "a number of seconds above 0, at most 86400"),
        (&["nacks", "--timeout", "0"], "a number of seconds above 0, at most 86400"),
        (&["client"], "clients"),
    ] {
        let ran = run(args).await;
        assert!(ran.code == Some(2) && ran.stderr.contains(reason), "{args:?}: {}", ran.stderr);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_confirmed_and_reaches_every_relay() {
    let (one, other) = (relay(""), relay(""));
    let both = [format!("http://{}", one.admin), format!("http://{}", other.admin)];
    let both_options = admin_options(&both);
    let order = async |args: &[&str]| run(&[args, &both_options].concat()).await;
    let before = |relay: &Process, level: &str| {
        let (status, text) = relay.admin_post(&format!("/log?level={level}"));
        assert_eq!(status, 200, "{text}");
        serde_json::from_str::<Json>(&text).unwrap()["before"].clone()
    };

    let ran = order(&["log-level", "debug"]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    ran.complains(&["stdin is no terminal", "--yes"]);
    assert_eq!(before(&one, "info"), "info", "nothing was ordered");
    let ran = order(&["log-level", "debug", "--yes"]).await;
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let answer = |relay: &String| format!("==> {relay} <==\nbefore          info\nnow             debug\n");
    assert_eq!(ran.stdout, format!("{}\n{}", answer(&both[0]), answer(&both[1])));
    assert_eq!([before(&one, "info"), before(&other, "info")], ["debug", "debug"]);
    let ran = order(&["log-level", "verbose", "--yes"]).await;
    assert_eq!(ran.code, Some(1));
    ran.complains(&["relays that could not be asked: 2 of 2"]);

    let mut client = one.client("envoy", &["*"]).await;
    client.take().await;
    let id = one.admin_json("/clients")["clients"][0]["id"].to_string();
    let ran = order(&["disconnect", &id, "--yes"]).await;
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(1), ""),
        "it may be another client's at the other relay"
    );
    ran.complains(&["choose one with --admin", &both[0], &both[1]]);
    let answer = found(&one, &["disconnect", &id, "--yes"]).await;
    assert!(answer.ends_with("node            envoy\n"), "{answer}");
    assert_eq!(client.end().await.code(), tonic::Code::Unavailable);
    drop(client);
    let ran = ask(&one, &["disconnect", "999999", "-y"]).await;
    assert_eq!(ran.code, Some(1));
    ran.complains(&["no such client"]);
    ask(&one, &["refresh", "cds", "a", "-y"]).await.complains(&["resources come from a directory"]);

    // A relay that is not there does not keep the others from following.
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let three = [&both[..], &[format!("http://{gone}")]].concat();
    let args = [&["drain", "--yes", "-o", "json"], &*admin_options(&three)].concat();
    let ran = run(&args).await;
    assert_eq!(ran.code, Some(1));
    ran.complains(&["relays that could not be asked: 1 of 3"]);
    let answers: Json = serde_json::from_str(&ran.stdout).unwrap();
    for (at, relay) in [&one, &other].into_iter().enumerate() {
        assert_eq!(
            (&answers[at]["relay"], &answers[at]["answer"]["began"]),
            (&json!(both[at]), &json!(true))
        );
        assert_eq!(relay.admin_get("/ready").0, 503, "it drains");
    }
    let error = answers[2]["error"].as_str().unwrap();
    assert!(answers[2]["answer"].is_null() && error.contains("could not connect"), "{answers}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_is_a_request_with_its_scope_and_its_author() {
    for (args, query) in [
        (&["hold"][..], "hold?by=alice"),
        (&["hold", "cds", "--group", ""], "hold?type=CDS&group=&by=alice"),
        (&["release", "cds", "--group", "a b"], "release?type=CDS&group=a b&by=alice"),
        (&["discard"], "discard?by=alice"),
        (&["restore", "cds", "a", "--version", "1&2"], "restore?type=CDS&name=a&version=1&2&by=alice"),
        (
            &["restore", "cds", "--at", "2026-03-01T14:02:11Z"],
            "restore?type=CDS&at=2026-03-01T14:02:11Z&by=alice",
        ),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let admin = format!("http://{}", listener.local_addr().unwrap());
        let asked = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            let length = socket.read(&mut request).unwrap();
            socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap();
            String::from_utf8(request[..length].to_vec()).unwrap()
        });
        let args = [&["rollout"], args, &["--by", "alice", "--yes", "--admin", &admin]].concat();
        let ran = run(&args).await;
        assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
        let asked = asked.join().unwrap();
        let asked = percent_decode_str(asked.lines().next().unwrap()).decode_utf8().unwrap().into_owned();
        assert_eq!(asked, format!("POST /rollout/{} HTTP/1.1", query.replace("CDS", CDS)));
    }
    for wrong in [&["restore", "cds"][..], &["restore", "cds", "--version", "1"], &["hold", "cows"]] {
        assert_eq!(run(&[&["rollout"], wrong].concat()).await.code, Some(2), "{wrong:?}");
    }
}
