//! Checks of `deltafan status`: one finding for each possible fault.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value as Json, json};

use super::admin_connection::AdminClient;
use super::answer_tables::{age, counts, items, joined, version};
use super::prometheus_text::{Metrics, Sample};
use crate::output::text;

mod refusal_checks;
mod rollout_check;

/// Seconds before a certificate's expiry that are worth a note, as in docs/alerts.md.
const EXPIRES_SOON: f64 = 7.0 * 86_400.0;

/// Seconds without an ACK that are worth a note. Clients that warm clusters may take so long.
const UNACKED: f64 = 30.0;

/// Answers of a relay, from which it is judged.
#[derive(Debug)]
pub(super) struct Facts {
    /// An error is the reason against sending clients there.
    pub(super) ready: Result<(), String>,
    pub(super) upstreams: Json,
    /// A page of clients without any client.
    pub(super) clients: Json,
    pub(super) nacks: Json,
    pub(super) rollout: Json,
    pub(super) metrics: Metrics,
    /// Seconds since 1970.
    pub(super) now: f64,
}

impl Facts {
    /// Asks a relay.
    pub(super) async fn of(relay: &mut AdminClient) -> anyhow::Result<Self> {
        Ok(Self {
            ready: relay.ready().await?,
            upstreams: relay.get("/upstreams").await?,
            clients: relay.get("/clients?limit=0").await?,
            // The newest that counts is among them, unless many of departed clients followed.
            nacks: relay.get("/nacks?limit=1000").await?,
            rollout: relay.get("/rollout").await?,
            metrics: Metrics::read(&relay.text("/metrics").await?),
            now: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Ok,
    /// Worth knowing; all can be well.
    Note,
    Fault,
}

impl State {
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Fault => "FAULT",
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) state: State,
    /// For people, with the remedy of a fault.
    pub(super) finding: String,
    /// For programs.
    pub(super) figures: Json,
}

impl Check {
    fn new(name: &'static str, state: State, finding: impl Into<String>, figures: Json) -> Self {
        Self { name, state, finding: finding.into(), figures }
    }

    fn of(name: &'static str, faults: Vec<String>, notes: Vec<String>, well: &str, figures: Json) -> Self {
        let state = match (faults.is_empty(), notes.is_empty()) {
            (false, _) => State::Fault,
            (true, false) => State::Note,
            (true, true) => return Self::new(name, State::Ok, well, figures),
        };
        Self::new(name, state, [faults, notes].concat().join("; "), figures)
    }
}

pub(super) fn checks(facts: &Facts) -> Vec<Check> {
    let always = [
        readiness(facts),
        source(facts),
        clients(facts),
        rejections(facts),
        removals(facts),
        rollout_check::rollout(&facts.rollout),
        snapshot(facts),
        configuration(facts),
        refusal_checks::refusals(&facts.metrics, facts.now),
        refusal_checks::limits(&facts.metrics, facts.now),
    ];
    always.into_iter().chain(groups(facts)).chain(certificates(facts)).collect()
}

fn readiness(facts: &Facts) -> Check {
    match &facts.ready {
        Ok(()) => Check::new("ready", State::Ok, "clients can be sent here", json!({"ready": true})),
        Err(reason) => {
            let reason = reason.strip_prefix("not ready: ").unwrap_or(reason);
            Check::new("ready", State::Fault, format!("not ready: {reason}"), json!({"ready": false}))
        }
    }
}

fn seconds(field: &Json) -> f64 {
    field.as_f64().unwrap_or_default()
}

fn source(facts: &Facts) -> Check {
    let of = &facts.upstreams;
    let servers = items(&of["servers"]);
    if servers.is_empty() {
        return directory(facts);
    }
    let stale = seconds(&of["stale_seconds"]);
    let unanswered = facts.metrics.sum("deltafan_upstream_unanswered_subscriptions");
    let figures = json!({
        "stale_seconds": stale,
        "last_answer_seconds_ago": of["last_answer_seconds_ago"],
        "unanswered_subscriptions": unanswered,
        "unsteady": of["unsteady"],
        "refused": of["refused"],
    });
    let in_use = servers.iter().position(|server| server["active"] == true).unwrap_or_default();
    let (server, preferred) = (&servers[in_use], &servers[0]);
    let uri = text(&server["uri"]);
    let error = |of: &Json| if of.is_null() { String::new() } else { format!(": {}", text(of)) };
    let last = error(&server["last_error"]);
    let refused = items(&of["refused"]).iter().map(|one| {
        format!("{} for {}: {}", text(&one["type"]), age(seconds(&one["seconds"])), text(&one["error"]))
    });
    let refused = refused.collect::<Vec<_>>().join("; ");
    let answered = of["last_answer_seconds_ago"].as_f64();
    let is_stale = format!("resources may be out of date for {}", age(stale));
    let fault = if server["connected"] != true {
        let stale = if stale > 0.0 { format!("; {is_stale}") } else { String::new() };
        format!("{uri} is not connected{last}{stale}")
    } else if stale > 0.0 && answered.is_none() {
        format!("{uri} has not answered yet, and was asked {} ago; nothing is held", age(stale))
    } else if stale > 0.0 {
        format!("{uri} does not answer; {is_stale}")
    } else if !refused.is_empty() {
        format!("{uri} sent what had to be refused, and what was there before it stays in force: {refused}")
    } else {
        let answered = answered
            .map_or_else(|| "nothing asked yet".to_owned(), |ago| format!("answered {} ago", age(ago)));
        let mut findings = vec![format!("{uri}, {}, {answered}", text(&server["protocol"]))];
        if unanswered > 0.0 {
            findings.push(format!("unanswered subscriptions: {unanswered}"));
        }
        if of["unsteady"] == true {
            findings.push(format!("its connection or stream keeps ending{last}"));
        }
        if in_use > 0 {
            let why = error(&preferred["last_error"]);
            findings.push(format!("in the place of {}{why}", text(&preferred["uri"])));
        }
        let state = if findings.len() > 1 { State::Note } else { State::Ok };
        return Check::new("control plane", state, findings.join("; "), figures);
    };
    Check::new("control plane", State::Fault, fault, figures)
}

fn directory(facts: &Facts) -> Check {
    let failing = facts.metrics.sum("deltafan_directory_failing_files");
    let figures = json!({"failing_files": failing});
    if failing > 0.0 {
        let finding = format!("files that are not in force as they are: {failing}; the log names them");
        return Check::new("directory", State::Fault, finding, figures);
    }
    let is_read = facts.metrics.sum("deltafan_upstream_connected") > 0.0;
    let (state, finding) = if is_read { (State::Ok, "read") } else { (State::Fault, "not read yet") };
    Check::new("directory", state, finding, figures)
}

/// Names with a figure above zero, in words; `None` if there are none.
fn listed(of: &BTreeMap<&str, f64>, told: impl Fn(&str, f64) -> String) -> Option<String> {
    let positive = of.iter().filter(|(_, value)| **value > 0.0);
    let words: Vec<String> = positive.map(|(name, value)| told(name, *value)).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

/// Node groups whose control plane is away, or has never answered.
fn groups(facts: &Facts) -> Option<Check> {
    let rules = items(&facts.upstreams["groups"]["rules"]);
    if rules.is_empty() {
        return None;
    }
    let of = |key: &str| -> BTreeMap<&str, f64> {
        rules.iter().filter_map(|rule| Some((rule["rule"].as_str()?, rule[key].as_f64()?))).collect()
    };
    let keys = ["stale_seconds", "groups", "unanswered", "refused", "unsteady"];
    let [stale, groups, unanswered, refused, unsteady] = keys.map(of);
    let counted = |group: &str, count| format!("{group} ({count} groups)");
    let waiting = |group: &str, waiting: f64| {
        let all = groups.get(group).copied().unwrap_or_default().max(waiting);
        format!("{group} ({waiting} of {all} groups)")
    };
    let see = "see GET /upstreams?group=*";
    let faults = [
        listed(&stale, |group, stale| format!("{group} for {}", age(stale)))
            .map(|of| format!("resources may be out of date: {of}")),
        listed(&refused, counted)
            .map(|of| format!("updates of the control plane had to be refused: {of}; {see}")),
    ];
    let notes = [
        listed(&unsteady, counted).map(|of| format!("connections or streams keep ending: {of}; {see}")),
        listed(&unanswered, waiting)
            .map(|of| format!("never answered, does the control plane know these nodes? {of}")),
    ];
    let [faults, notes] = [faults, notes].map(|told| told.into_iter().flatten().collect());
    let figures =
        json!({"stale_seconds": stale, "unanswered": unanswered, "refused": refused, "unsteady": unsteady});
    Some(Check::of("node groups", faults, notes, "answered", figures))
}

fn clients(facts: &Facts) -> Check {
    let states = &facts.clients["states"];
    let figures = json!({"open": facts.clients["open"], "states": states});
    let open = text(&facts.clients["open"]);
    let is_any = |state: &&str| states[state].as_u64().is_some_and(|clients| clients > 0);
    let mut state = match ["waiting", "resuming", "held_back"].iter().any(is_any) {
        true => State::Note,
        false => State::Ok,
    };
    let mut finding = format!("open streams and polls: {open}; {}", counts(states));
    let mut note = |words: String| {
        state = State::Note;
        finding += &words;
    };
    let shared = &facts.clients["shared_node_ids"];
    if shared["count"].as_u64().is_some_and(|count| count > 0) {
        let (count, some) = (&shared["count"], joined(&shared["some"], ", "));
        note(format!(
            "; node IDs that several clients share: {count} ({some}), give each a `node.id` of its own"
        ));
    }
    let oldest = facts.metrics.all("deltafan_client_max_unanswered_seconds");
    let oldest = oldest.max_by(|a, b| a.value.total_cmp(&b.value));
    if let Some(oldest) = oldest.filter(|oldest| oldest.value >= UNACKED) {
        let (kind, ago) = (oldest.label("type"), age(oldest.value));
        note(format!(
            "; the oldest {kind} response without ACK or NACK was sent {ago} ago, see `deltafan clients --state unacked`"
        ));
    }
    Check::new("clients", state, finding, figures)
}

/// By type: clients that reject something, of all that ask.
fn rejections(facts: &Facts) -> Check {
    let mut types: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for sample in facts.metrics.all("deltafan_clients") {
        let (rejecting, all) = types.entry(sample.label("type")).or_default();
        *all += sample.value;
        if sample.label("state") == "rejected" {
            *rejecting += sample.value;
        }
    }
    types.retain(|_, (rejecting, _)| *rejecting > 0.0);
    let figures: BTreeMap<&str, Json> = types
        .iter()
        .map(|(kind, (rejecting, all))| (*kind, json!({"rejecting": rejecting, "clients": all})))
        .collect();
    if types.is_empty() {
        return Check::new("rejections", State::Ok, "none", json!(figures));
    }
    let told = types.iter().map(|(kind, (rejecting, all))| format!("{kind} by {rejecting} of {all} clients"));
    let mut finding = told.collect::<Vec<_>>().join(", ");
    if let Some(nack) = items(&facts.nacks["nacks"]).iter().find(|nack| nack["state"] == "rejected") {
        let (kind, node) = (text(&nack["type"]), text(&nack["node"]["id"]));
        finding += &format!("; the newest is of {kind} {} by {node}: {}", version(nack), text(&nack["text"]));
    }
    Check::new("rejections", State::Fault, finding + "; see `deltafan nacks`", json!(figures))
}

/// Resources that were removed in a mass.
fn removals(facts: &Facts) -> Check {
    let lost = facts.metrics.all("deltafan_lost_resources").filter(|one| one.value > 0.0);
    let lost: BTreeMap<&str, f64> = lost.map(|one| (one.label("type"), one.value)).collect();
    let (state, finding) = match listed(&lost, |kind, lost| format!("{lost} {kind}")) {
        None => (State::Ok, "no mass removal".to_owned()),
        Some(told) => (
            State::Fault,
            format!(
                "most resources of a type went within a minute: {told}; if that is a mistake, put them back at the control \
                 plane; see `deltafan history`, and `rollout.max_removed`, which holds such changes"
            ),
        ),
    };
    Check::new("removals", state, finding, json!(lost))
}

fn snapshot(facts: &Facts) -> Check {
    let (name, of) = ("snapshot", &facts.upstreams["snapshot"]);
    if of.is_null() {
        return Check::new(name, State::Ok, "off", Json::Null);
    }
    let path = text(&of["path"]);
    let figures = json!({"bytes": of["bytes"], "last_write_seconds_ago": of["last_write_seconds_ago"]});
    if !of["error"].is_null() {
        return Check::new(name, State::Fault, format!("{path}: {}", text(&of["error"])), figures);
    }
    let written = of["last_write_seconds_ago"].as_f64();
    let written =
        written.map_or_else(|| "nothing written yet".to_owned(), |ago| format!("written {} ago", age(ago)));
    Check::new(name, State::Ok, format!("{path}, {} bytes, {written}", text(&of["bytes"])), figures)
}

fn configuration(facts: &Facts) -> Check {
    let first = |metric| facts.metrics.all(metric).next().map(|sample| sample.value);
    let is_good = first("deltafan_config_last_reload_successful") != Some(0.0);
    let is_pending = first("deltafan_config_restart_pending") == Some(1.0);
    let (state, finding) = match (is_good, is_pending) {
        (false, _) => (
            State::Fault,
            "the file is wrong, and the one before it in force; see `deltafan check` or the log",
        ),
        (true, true) => (State::Note, "changes wait for a restart; the log names their keys"),
        (true, false) => (State::Ok, "in force as it is in the file"),
    };
    let figures = json!({"last_reload_successful": is_good, "restart_pending": is_pending});
    Check::new("configuration", state, finding, figures)
}

/// Certificates in force, and files that could not replace them.
fn certificates(facts: &Facts) -> Option<Check> {
    let left = |sample: &Sample| sample.value - facts.now;
    let all = || facts.metrics.all("deltafan_tls_certificate_expiry_seconds");
    let first = all().min_by(|a, b| left(a).total_cmp(&left(b)))?;
    let (left, of) = (left(first), format!("{} of {}", first.label("which"), first.label("of")));
    let refused =
        facts.metrics.all("deltafan_tls_last_reload_successful").filter(|sample| sample.value == 0.0);
    let refused: Vec<&str> = refused.map(|sample| sample.label("of")).collect();
    let figures = json!({"first_expires_in_seconds": left, "refused_files": refused});
    let (state, finding) = if left <= 0.0 {
        (State::Fault, format!("{of} has expired {} ago", age(-left)))
    } else if !refused.is_empty() {
        let of = refused.join(", ");
        (
            State::Fault,
            format!("the files of {of} cannot be used, and those before are in force; the log says why"),
        )
    } else if left < EXPIRES_SOON {
        (State::Note, format!("{of} expires in {}", age(left)))
    } else {
        (State::Ok, format!("the first to expire is {of}, in {}", age(left)))
    };
    Some(Check::new("certificates", state, finding, figures))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A relay of one control plane with which all is well, and these metrics.
    fn facts(metrics: &str) -> Facts {
        let server = json!({"uri": "http://cp/", "active": true, "connected": true, "protocol": "delta", "last_error": null});
        Facts {
            ready: Ok(()),
            upstreams: json!({"servers": [server], "last_answer_seconds_ago": 3.0, "stale_seconds": 0.0, "snapshot": null}),
            clients: json!({"open": 0, "states": {}}),
            nacks: json!({"nacks": []}),
            rollout: json!([]),
            metrics: Metrics::read(metrics),
            now: 1_000_000.0,
        }
    }

    /// Findings that are not ok.
    fn found(facts: &Facts) -> Vec<(State, String)> {
        let all = checks(facts).into_iter().filter(|check| check.state != State::Ok);
        all.map(|check| (check.state, format!("{}: {}", check.name, check.finding))).collect()
    }

    fn only(facts: &Facts) -> (State, String) {
        let found = found(facts);
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].clone()
    }

    #[test]
    fn all_is_well_where_nothing_is_at_fault() {
        assert_eq!(found(&facts("")), []);
        let quiet = "deltafan_refused_total{reason=\"idle_timeout\"} 7\ndeltafan_refused_total{reason=\"stall_timeout\"} 0\n\
                     deltafan_tls_certificate_expiry_seconds{of=\"x\",which=\"cert\"} 9000000";
        assert_eq!(found(&facts(quiet)), []);
    }

    #[test]
    fn what_flaps_is_told_however_it_stands_at_the_moment() {
        let mut flaps = facts("");
        flaps.upstreams["unsteady"] = json!(true);
        flaps.upstreams["servers"][0]["last_error"] = json!("reset");
        flaps.upstreams["groups"] = json!({"rules": [{"rule": "g", "refused": 0, "unsteady": 2}]});
        let told = [
            "control plane: http://cp/, delta, answered 3s ago; its connection or stream keeps ending: reset",
            "node groups: connections or streams keep ending: g (2 groups); see GET /upstreams?group=*",
        ];
        assert_eq!(found(&flaps), told.map(|told| (State::Note, told.to_owned())));
    }

    #[test]
    fn a_client_that_does_not_answer_for_long_is_told() {
        let metrics = |seconds| {
            format!(
                "deltafan_client_max_unanswered_seconds{{type=\"cds\"}} {seconds}\ndeltafan_client_max_unanswered_seconds{{type=\"eds\"}} 1"
            )
        };
        let relay = |seconds| {
            let mut facts = facts(&metrics(seconds));
            facts.clients = json!({"open": 2, "states": {"unacked": 2}});
            facts
        };
        assert_eq!(found(&relay(29)), []);
        let (state, finding) = only(&relay(31));
        let told = "the oldest cds response without ACK or NACK was sent 31s ago, see `deltafan clients --state unacked`";
        assert!(state == State::Note && finding.ends_with(told), "{finding}");
    }

    #[test]
    fn a_control_plane_is_told_with_its_error() {
        let mut away = facts("");
        away.upstreams["servers"][0]["connected"] = json!(false);
        away.upstreams["servers"][0]["last_error"] = json!("connection refused");
        away.upstreams["stale_seconds"] = json!(130.0);
        let told = "control plane: http://cp/ is not connected: connection refused; resources may be out of date for 2m";
        assert_eq!(only(&away), (State::Fault, told.to_owned()));
        away.upstreams["servers"][0]["connected"] = json!(true);
        assert_eq!(
            only(&away).1,
            "control plane: http://cp/ does not answer; resources may be out of date for 2m"
        );
        away.upstreams["stale_seconds"] = json!(0.0);
        away.upstreams["refused"] =
            json!([{"type": "cds", "seconds": 130.0, "error": "resource `a` is in one response twice"}]);
        let told = "control plane: http://cp/ sent what had to be refused, and what was there before it stays in force: \
                    cds for 2m: resource `a` is in one response twice";
        assert_eq!(only(&away), (State::Fault, told.to_owned()));
        away.upstreams["refused"] = json!([]);
        let second = json!({"uri": "http://second/", "active": true, "connected": true, "protocol": "sotw"});
        away.upstreams["servers"][0]["active"] = json!(false);
        let servers = vec![away.upstreams["servers"][0].clone(), second];
        away.upstreams["servers"] = json!(servers);
        let told = "control plane: http://second/, sotw, answered 3s ago; in the place of http://cp/: connection refused";
        assert_eq!(only(&away), (State::Note, told.to_owned()));
    }

    #[test]
    fn each_fault_is_found() {
        let metrics = |line: &str| only(&facts(line));
        let of = |state, text: &str| (state, text.to_owned());
        let rules = |rules: Json| {
            let mut facts = facts("");
            facts.upstreams["groups"] = json!({ "rules": rules });
            only(&facts)
        };
        let core = json!({"rule": "core", "groups": 2, "stale_seconds": 42.5, "refused": 0});
        let finding = "node groups: resources may be out of date: core for 42s";
        assert_eq!(rules(json!([core])), of(State::Fault, finding));
        // A client with a made-up node is no fault of the relay.
        let edge = json!({"rule": "edge", "groups": 3, "unanswered": 1, "stale_seconds": 0.0});
        let told = "never answered, does the control plane know these nodes? edge (1 of 3 groups)";
        assert_eq!(rules(json!([edge])), of(State::Note, &format!("node groups: {told}")));
        assert_eq!(rules(json!([edge, core])), of(State::Fault, &format!("{finding}; {told}")));
        let finding = "node groups: updates of the control plane had to be refused: edge (2 groups); see GET /upstreams?group=*";
        assert_eq!(rules(json!([{"rule": "edge", "refused": 2}])), of(State::Fault, finding));
        assert_eq!(metrics("deltafan_config_last_reload_successful 0").0, State::Fault);
        assert_eq!(metrics("deltafan_config_restart_pending 1").0, State::Note);
        assert_eq!(
            metrics(
                "deltafan_refused_total{reason=\"max_connections\",protocol=\"h2\"} 3\n\
                     deltafan_refused_total{reason=\"max_connections\"} 2\ndeltafan_refused_total{reason=\"types\"} 1"
            ),
            of(
                State::Note,
                "limits: refused or closed since the start: downstream.max_connections 5, types 1"
            )
        );
        let limits = "deltafan_refused_total{reason=\"types\"} 1\ndeltafan_last_refusal_timestamp_seconds{cause=\"limit\"} 999950";
        let finding = "limits: refused or closed since the start: types 1";
        assert_eq!(metrics(limits), of(State::Fault, finding));
        let expiry = |at: f64| {
            metrics(&format!("deltafan_tls_certificate_expiry_seconds{{of=\"a\",which=\"crl\"}} {at}"))
        };
        assert_eq!(expiry(999_940.0), of(State::Fault, "certificates: crl of a has expired 60s ago"));
        assert_eq!(expiry(1_000_060.0), of(State::Note, "certificates: crl of a expires in 60s"));
        let refused = "deltafan_tls_certificate_expiry_seconds{of=\"a\",which=\"cert\"} 9000000\n\
                       deltafan_tls_last_reload_successful{of=\"a\"} 0\ndeltafan_tls_last_reload_successful{of=\"b\"} 1";
        let finding =
            "certificates: the files of a cannot be used, and those before are in force; the log says why";
        assert_eq!(metrics(refused), of(State::Fault, finding));
        let mut draining = facts("");
        draining.ready = Err("not ready: draining".to_owned());
        assert_eq!(only(&draining), of(State::Fault, "ready: not ready: draining"));
        let mut waiting = facts("");
        waiting.clients = json!({"open": 2, "states": {"waiting": 2}});
        assert_eq!(only(&waiting), of(State::Note, "clients: open streams and polls: 2; waiting 2"));
        waiting.clients = json!({"open": 2, "states": {"resuming": 1, "synced": 1}});
        assert_eq!(
            only(&waiting),
            of(State::Note, "clients: open streams and polls: 2; resuming 1, synced 1")
        );
        let mut shared = facts("");
        shared.clients =
            json!({"open": 4, "states": {"synced": 4}, "shared_node_ids": {"count": 2, "some": ["a", "b"]}});
        let finding = "clients: open streams and polls: 4; synced 4; node IDs that several clients share: 2 (a, b), give each a `node.id` of its own";
        assert_eq!(only(&shared), of(State::Note, finding));
        let mut saved = facts("");
        saved.upstreams["snapshot"] = json!({"path": "/var/x", "error": "no space left"});
        assert_eq!(only(&saved), of(State::Fault, "snapshot: /var/x: no space left"));
        waiting.clients = json!({"open": 2, "states": {"held_back": 1, "synced": 1}});
        assert_eq!(
            only(&waiting),
            of(State::Note, "clients: open streams and polls: 2; held_back 1, synced 1")
        );
        let (state, finding) =
            metrics("deltafan_lost_resources{type=\"cds\"} 12\ndeltafan_lost_resources{type=\"eds\"} 0");
        assert!(state == State::Fault && finding.contains("went within a minute: 12 cds; if"), "{finding}");
        let mut directory = facts("deltafan_upstream_connected 1\ndeltafan_directory_failing_files 2");
        directory.upstreams["servers"] = json!([]);
        assert_eq!(only(&directory).0, State::Fault);
    }

    #[test]
    fn rejections_are_counted_by_type() {
        let mut facts = facts(
            "deltafan_clients{type=\"cds\",state=\"rejected\"} 3\ndeltafan_clients{type=\"cds\",state=\"synced\"} 197\n\
             deltafan_clients{type=\"lds\",state=\"synced\"} 200",
        );
        let nack = |state: Json, text: &str| json!({"state": state, "type": "cds", "version": "18", "node": {"id": "n"}, "text": text});
        facts.nacks = json!({"nacks": [nack(Json::Null, "gone"), nack(json!("synced"), "mended"), nack(json!("rejected"), "bad")]});
        let told =
            "rejections: cds by 3 of 200 clients; the newest is of cds 18 by n: bad; see `deltafan nacks`";
        assert_eq!(only(&facts), (State::Fault, told.to_owned()));
    }
}
