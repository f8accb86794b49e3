//! Judgement of a relay, for `/status`: one finding for each possible fault.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Serialize;

use self::check::{Check, Found, State, joined};
use self::metric_checks::{certificates, configuration, limits, refusals};
use self::rollout_check::rollout;
use super::relay_status::RelayStatus;
use crate::directory::Scan;
use crate::fleet::{ClientFigures, KindFigures, rollouts_of};
use crate::groups::{Origin, RuleFigures};
use crate::resource::Kind;
use crate::snapshot::DiskStatus;
use crate::subscription::ClientState;
use crate::terminal::age;
use crate::upstream::UpstreamState;

mod check;
mod metric_checks;
mod rollout_check;

/// Wait for an ACK that is worth a note. Clients that warm clusters may take so long.
const UNACKED: Duration = Duration::from_secs(30);

#[derive(Debug, Serialize)]
pub(super) struct StatusReport {
    well: bool,
    relay: String,
    checks: Vec<Check>,
}

impl StatusReport {
    pub(super) fn of(relay: &RelayStatus, now: Instant) -> Self {
        let (view, metrics) = (relay.view(), relay.metrics.render());
        let (kinds, lost) = (view.figures().0, relay.type_figures(now));
        let lost = lost.into_iter().map(|(kind, figures)| (kind, figures.lost)).collect();
        let rollouts = rollouts_of(&relay.groups, None).map(|(key, rollout)| (key, rollout.status(now)));
        let disk = relay.disk.as_ref().map(|disk| disk.status());
        let always = [
            Check::of("ready", readiness(relay.ready()), "clients can be sent here"),
            match relay.groups.origin() {
                Origin::Server { state, .. } => control_plane(&relay.servers, &state.borrow(), now),
                Origin::Directory { state } => directory(&state.borrow()),
            },
            clients(&view.client_figures(), &kinds),
            rejections(&kinds, || view.newest_rejection()),
            removals(&lost),
            rollout(&rollouts.collect::<Vec<_>>()),
            snapshot(disk, now),
            configuration(&metrics),
            refusals(&metrics),
            limits(&metrics),
        ];
        let checks = always.into_iter().chain(node_groups(&relay.groups.figures(now)));
        let checks: Vec<_> = checks.chain(certificates(&metrics)).collect();
        Self {
            // Notes are no faults.
            well: checks.iter().all(|check| check.state != State::Fault),
            relay: format!("deltafan {} ({})", env!("CARGO_PKG_VERSION"), env!("DELTAFAN_COMMIT")),
            checks,
        }
    }
}

fn readiness(ready: Result<(), String>) -> Found {
    ready.err().map(|reason| (State::Fault, format!("not ready: {reason}"))).into_iter().collect()
}

fn control_plane(servers: &[String], state: &UpstreamState, now: Instant) -> Check {
    let uri = |at: usize| servers.get(at).map_or("", String::as_str);
    let error = |at: usize| state.errors.get(&at).map(|error| format!(": {error}")).unwrap_or_default();
    let (server, last) = (uri(state.server), error(state.server));
    let (stale, answered) = (state.stale_for(now), state.answered_ago(now));
    let is_stale = !stale.is_zero();
    let outdated = format!("resources may be out of date for {}", age(stale));
    let fault = if !state.connected {
        let outdated = if is_stale { format!("; {outdated}") } else { String::new() };
        format!("{server} is not connected{last}{outdated}")
    } else if is_stale && answered.is_none() {
        format!("{server} has not answered yet, and was asked {} ago; nothing is held", age(stale))
    } else if is_stale {
        format!("{server} does not answer; {outdated}")
    } else if !state.refusals.is_empty() {
        let refused = state.refusals.iter().map(|of| {
            let since = now.saturating_duration_since(of.since);
            format!("{} for {}: {}", of.type_url.kind().short(), age(since), of.fault)
        });
        let refused = joined(refused, "; ");
        format!(
            "{server} sent what had to be refused, and what was there before it stays in force: {refused}"
        )
    } else {
        let answered = answered.map(|ago| format!("answered {} ago", age(ago)));
        let answered = answered.unwrap_or_else(|| "nothing asked yet".to_owned());
        let protocol = state.protocol.map_or("", |protocol| protocol.label());
        let mut found = vec![(State::Ok, format!("{server}, {protocol}, {answered}"))];
        let mut note = |words| found.push((State::Note, words));
        if state.unanswered.count > 0 {
            note(format!("unanswered subscriptions: {}", state.unanswered.count));
        }
        if state.is_unsteady(now) {
            note(format!("its connection or stream keeps ending{last}"));
        }
        if state.server > 0 {
            note(format!("in the place of {}{}", uri(0), error(0)));
        }
        return Check::of("control plane", found, "");
    };
    Check::of("control plane", vec![(State::Fault, fault)], "")
}

fn directory(state: &Scan) -> Check {
    let found = match state.failures.len() {
        0 if state.is_whole => Vec::new(),
        0 => vec![(State::Fault, "not read yet".to_owned())],
        failing => {
            let words = format!("files that are not in force as they are: {failing}; the log names them");
            vec![(State::Fault, words)]
        }
    };
    Check::of("directory", found, "read")
}

/// Node groups whose control plane is away, or has never answered.
fn node_groups(rules: &[RuleFigures]) -> Option<Check> {
    const SEE: &str = "see GET /upstreams?group=*";
    let mut found = Vec::new();
    for of in rules {
        let (rule, groups, stale) = (&of.rule, of.groups, Duration::from_secs_f64(of.stale_seconds));
        let mut tell = |state, words: String| found.push((state, format!("{rule}: {words}")));
        if !stale.is_zero() {
            tell(State::Fault, format!("resources may be out of date for {}", age(stale)));
        }
        if of.refused > 0 {
            tell(
                State::Fault,
                format!("updates of {} of {groups} groups had to be refused, {SEE}", of.refused),
            );
        }
        if of.unsteady > 0 {
            tell(
                State::Note,
                format!("connections of {} of {groups} groups keep ending, {SEE}", of.unsteady),
            );
        }
        // A client with a made-up node is no fault of the relay.
        if of.unanswered > 0 {
            let words = "groups were never answered, does the control plane know these nodes?";
            tell(State::Note, format!("{} of {groups} {words}", of.unanswered));
        }
    }
    (!rules.is_empty()).then(|| Check::of("node groups", found, "answered"))
}

fn clients(of: &ClientFigures, kinds: &BTreeMap<Kind, KindFigures>) -> Check {
    let is_odd = ["waiting", "resuming", "held_back"].iter().any(|state| of.states.contains_key(state));
    let states = of.states.iter().map(|(state, clients)| format!("{state} {clients}"));
    let states = if of.states.is_empty() { "none".to_owned() } else { joined(states, ", ") };
    let open = format!("open streams and polls: {}; {states}", of.open);
    let mut found = vec![(if is_odd { State::Note } else { State::Ok }, open)];
    if of.shared_node_ids.count > 0 {
        let (count, some) = (of.shared_node_ids.count, of.shared_node_ids.some.join(", "));
        let words = format!(
            "node IDs that several clients share: {count} ({some}), give each a `node.id` of its own"
        );
        found.push((State::Note, words));
    }
    let oldest = kinds.iter().max_by_key(|(_, figures)| figures.unanswered);
    if let Some((kind, oldest)) = oldest.filter(|(_, oldest)| oldest.unanswered >= UNACKED) {
        let words = format!(
            "the oldest {} response without ACK or NACK was sent {} ago, see `deltafan clients --state unacked`",
            kind.short(),
            age(oldest.unanswered)
        );
        found.push((State::Note, words));
    }
    Check::of("clients", found, "")
}

/// By type: clients that reject something, of all that ask.
fn rejections(kinds: &BTreeMap<Kind, KindFigures>, newest: impl FnOnce() -> Option<String>) -> Check {
    let types = kinds.iter().filter_map(|(kind, figures)| {
        let (rejecting, all) =
            (figures.states[ClientState::Rejected as usize], figures.states.iter().sum::<usize>());
        (rejecting > 0).then(|| format!("{} by {rejecting} of {all} clients", kind.short()))
    });
    let types: Vec<String> = types.collect();
    let mut found = Vec::new();
    if !types.is_empty() {
        let newest = newest().map(|newest| format!("; the newest is of {newest}")).unwrap_or_default();
        found.push((State::Fault, format!("{}{newest}; see `deltafan nacks`", types.join(", "))));
    }
    Check::of("rejections", found, "none")
}

/// Resources that were removed in a mass.
fn removals(lost: &BTreeMap<Kind, usize>) -> Check {
    let told = lost.iter().filter(|(_, lost)| **lost > 0);
    let told = joined(told.map(|(kind, lost)| format!("{lost} {}", kind.short())), ", ");
    let mut found = Vec::new();
    if !told.is_empty() {
        let words = format!(
            "most resources of a type went within a minute: {told}; if that is a mistake, put them back at the control plane; \
             see `deltafan history`, and `rollout.max_removed`, which holds such changes"
        );
        found.push((State::Fault, words));
    }
    Check::of("removals", found, "no mass removal")
}

fn snapshot(disk: Option<DiskStatus>, now: Instant) -> Check {
    let found = disk.map(|disk| match disk.error {
        Some(error) => (State::Fault, format!("{}: {error}", disk.path)),
        None => {
            let ago = disk.last_write.map(|at| age(now.saturating_duration_since(at)));
            let written =
                ago.map_or_else(|| "nothing written yet".to_owned(), |ago| format!("written {ago} ago"));
            (State::Ok, format!("{}, {} bytes, {written}", disk.path, disk.bytes))
        }
    });
    Check::of("snapshot", found.into_iter().collect(), "off")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cache::Protocol;
    use crate::fleet::SharedIds;
    use crate::resource::TypeUrl;
    use crate::upstream::Refusal;

    fn told(check: Check) -> (State, String) {
        (check.state, check.finding)
    }

    fn is(state: State, finding: &str) -> (State, String) {
        (state, finding.to_owned())
    }

    #[test]
    fn a_control_plane_is_told_with_its_error() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let servers = ["http://cp/", "http://second/"].map(str::to_owned);
        let judged = |state: &UpstreamState, at| told(control_plane(&servers, state, after(at)));
        let mut state = UpstreamState::new(start);
        state.connected(start);
        state.protocol = Some(Protocol::Delta);
        state.accepted(start);
        assert_eq!(judged(&state, 3), is(State::Ok, "http://cp/, delta, answered 3s ago"));
        for _ in 0..3 {
            state.connected(start);
            state.lost("reset".to_owned(), start);
        }
        let finding = "http://cp/ is not connected: reset; resources may be out of date for 2m";
        assert_eq!(judged(&state, 130), is(State::Fault, finding));
        state.connected(after(130));
        let finding = "http://cp/ does not answer; resources may be out of date for 2m";
        assert_eq!(judged(&state, 130), is(State::Fault, finding));
        state.accepted(after(130));
        state.protocol = Some(Protocol::Delta);
        let finding = "http://cp/, delta, answered 3s ago; its connection or stream keeps ending: reset";
        assert_eq!(judged(&state, 133), is(State::Note, finding), "however it stands at the moment");
        state.changed_to(1, None);
        let finding = "http://second/, delta, answered 0s ago; in the place of http://cp/: reset";
        state.accepted(after(400));
        assert_eq!(judged(&state, 400), is(State::Note, finding));
        let type_url = TypeUrl::from(Kind::Cluster);
        state.refusals.push(Refusal { type_url, since: after(300), fault: Arc::from("`a` is there twice") });
        let finding = "http://second/ sent what had to be refused, and what was there before it stays in force: \
                       cds for 2m: `a` is there twice";
        assert_eq!(judged(&state, 430), is(State::Fault, finding));
    }

    #[test]
    fn node_groups_are_told_by_rule() {
        let rule = |rule: &str| RuleFigures { rule: rule.to_owned(), groups: 3, ..RuleFigures::default() };
        assert!(node_groups(&[]).is_none());
        assert_eq!(told(node_groups(&[rule("a")]).unwrap()), is(State::Ok, "answered"));
        let edge = RuleFigures { unanswered: 1, unsteady: 2, ..rule("edge") };
        let notes = "edge: connections of 2 of 3 groups keep ending, see GET /upstreams?group=*; \
                     edge: 1 of 3 groups were never answered, does the control plane know these nodes?";
        assert_eq!(told(node_groups(std::slice::from_ref(&edge)).unwrap()), is(State::Note, notes));
        let core = RuleFigures { stale_seconds: 42.5, refused: 1, ..rule("core") };
        let faults = "core: resources may be out of date for 42s; core: updates of 1 of 3 groups had to be refused, \
                      see GET /upstreams?group=*";
        assert_eq!(
            told(node_groups(&[core, edge]).unwrap()),
            is(State::Fault, &format!("{faults}; {notes}"))
        );
    }

    #[test]
    fn clients_that_wait_are_noted_and_those_that_reject_are_a_fault() {
        let figures = |states: &[(&'static str, usize)]| ClientFigures {
            open: 2,
            states: states.iter().copied().collect(),
            shared_node_ids: SharedIds::default(),
        };
        let kinds = |unanswered, states| {
            let figures =
                KindFigures { unanswered: Duration::from_secs(unanswered), states, ..KindFigures::default() };
            BTreeMap::from([(Kind::Cluster, figures)])
        };
        let none = kinds(29, [0; 7]);
        let open = "open streams and polls: 2; unacked 2";
        assert_eq!(told(clients(&figures(&[("unacked", 2)]), &none)), is(State::Ok, open));
        for state in ["waiting", "resuming", "held_back"] {
            assert_eq!(clients(&figures(&[(state, 1), ("synced", 1)]), &none).state, State::Note, "{state}");
        }
        let late = "the oldest cds response without ACK or NACK was sent 31s ago, see `deltafan clients --state unacked`";
        let late = is(State::Note, &format!("{open}; {late}"));
        assert_eq!(told(clients(&figures(&[("unacked", 2)]), &kinds(31, [0; 7]))), late);
        let mut shared = figures(&[]);
        shared.shared_node_ids = SharedIds { count: 2, some: vec!["a".to_owned(), "b".to_owned()] };
        let finding = "open streams and polls: 2; none; node IDs that several clients share: 2 (a, b), give each a `node.id` of its own";
        assert_eq!(told(clients(&shared, &none)), is(State::Note, finding));

        assert_eq!(told(rejections(&none, || None)), is(State::Ok, "none"));
        let some = kinds(0, [3, 0, 0, 0, 0, 0, 197]);
        let finding = "cds by 3 of 200 clients; the newest is of cds 18 by n: bad; see `deltafan nacks`";
        assert_eq!(
            told(rejections(&some, || Some("cds 18 by n: bad".to_owned()))),
            is(State::Fault, finding)
        );
    }

    #[test]
    fn what_else_is_at_fault_is_told() {
        let (state, finding) = told(removals(&[(Kind::Cluster, 12), (Kind::Endpoint, 0)].into()));
        assert!(state == State::Fault && finding.contains("went within a minute: 12 cds; if"), "{finding}");
        assert_eq!(removals(&[(Kind::Cluster, 0)].into()).state, State::Ok);
        let now = Instant::now();
        let (path, error) = ("/var/x".to_owned(), Some("no space left".to_owned()));
        let full = snapshot(Some(DiskStatus { path, error, ..DiskStatus::default() }), now);
        assert_eq!(told(full), is(State::Fault, "/var/x: no space left"));
        assert_eq!(told(snapshot(None, now)), is(State::Ok, "off"));
        assert_eq!(readiness(Err("draining".to_owned())), [is(State::Fault, "not ready: draining")]);
    }
}
