//! The check `rollout`: changes that are held, since when and why, and the next command.

use std::time::Duration;

use super::check::{Check, State, joined};
use crate::cache::{HeldChange, HoldReason, OrderKind, Phase, RolloutStatus};
use crate::fleet::of_order;
use crate::terminal::age;

/// Held changes that are named.
const NAMED: usize = 3;

pub(super) fn rollout(groups: &[(Option<String>, RolloutStatus)]) -> Check {
    let sum = |of: fn(&RolloutStatus) -> usize| groups.iter().map(|(_, status)| of(status)).sum::<usize>();
    let changes = sum(|of| of.trying + of.waiting);
    let (unanswered, kept_back) = (sum(|of| of.unanswered), sum(|of| of.kept_back));
    let holds = groups.iter().filter(|(_, of)| of.phase == Phase::Held);
    let holds = joined(holds.map(|(group, of)| hold(group.as_deref(), of)), "; ");
    let (state, finding) = if !holds.is_empty() {
        (State::Fault, holds)
    } else if unanswered > 0 {
        let next = "see whether the canaries are alive, or `deltafan rollout release`";
        (State::Note, format!("no canary answers, for {unanswered} trials; changes wait: {changes}; {next}"))
    } else if groups.is_empty() {
        (State::Ok, "no type is guarded".to_owned())
    } else if changes > 0 {
        (State::Note, format!("changes on trial: {}, waiting: {}", sum(|of| of.trying), sum(|of| of.waiting)))
    } else if kept_back > 0 {
        let next = "correct them at the control plane; `deltafan rollout show` has them";
        (
            State::Note,
            format!("resources that were discarded or restored, and differ still: {kept_back}; {next}"),
        )
    } else {
        (State::Ok, "nothing is on trial or held".to_owned())
    };
    Check::of("rollout", vec![(state, finding)], "")
}

/// The hold of one node group.
fn hold(group: Option<&str>, of: &RolloutStatus) -> String {
    let held = &of.held;
    if held.is_empty() {
        return on_hold(of);
    }
    let names = joined(held.iter().take(NAMED).map(change), ", ");
    let more = held.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let group = group.map(|group| format!(" in node group {group}")).unwrap_or_default();
    let since = of
        .held_seconds
        .map(|since| format!(" for {}", age(Duration::from_secs_f64(since))))
        .unwrap_or_default();
    let why = match of.reason {
        Some(HoldReason::Removals) => "more removals than `rollout.max_removed` allows",
        _ if of.searching => "canaries reject some of them; looking for the bad ones",
        _ => "canaries reject this",
    };
    let next = "correct it at the control plane, or `deltafan rollout release` or `discard`; `deltafan rollout show` has all";
    let text = held.iter().flat_map(|change| &change.texts).next();
    let because = text.map(|text| format!(": {text}")).unwrap_or_default();
    format!("held{group}{since}: {names}{more}; {why}{because}; {next}")
}

/// Types that an operator put on hold.
fn on_hold(of: &RolloutStatus) -> String {
    let orders = of.orders.iter().filter(|order| order.kind == OrderKind::Hold);
    let orders =
        orders.map(|of| format!("{} since {} by {}", of.type_url.kind().short(), of_order(of), of.note.by));
    format!(
        "held by order: {}; changes wait: {}; `deltafan rollout release` or `discard` ends it",
        joined(orders, ", "),
        of.on_hold
    )
}

/// As in `cds backend 18`.
fn change(of: &HeldChange) -> String {
    let version = of.version.as_deref().unwrap_or_default();
    format!("{} {} {version}", of.type_url.kind().short(), of.name).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{Note, StandingOrder};
    use crate::resource::{Kind, Name, Parameters};

    const IDLE: RolloutStatus = RolloutStatus {
        phase: Phase::Idle,
        canaries: 1,
        trying: 0,
        waiting: 0,
        on_hold: 0,
        kept_back: 0,
        unanswered: 0,
        orders: Vec::new(),
        held: Vec::new(),
        held_seconds: None,
        reason: None,
        searching: false,
    };

    fn found(group: Option<&str>, of: RolloutStatus) -> (State, String) {
        let check = rollout(&[(group.map(str::to_owned), of)]);
        (check.state, check.finding)
    }

    fn change(kind: Kind, name: &str, version: Option<&str>, texts: &[&str]) -> HeldChange {
        HeldChange {
            type_url: kind.into(),
            parameters: Parameters::default(),
            name: Name::normal(name),
            version: version.map(Box::from),
            accepted: 0,
            rejected: 1,
            texts: texts.iter().map(|text| (*text).into()).collect(),
        }
    }

    #[test]
    fn a_hold_is_told_with_its_reason_its_age_and_the_next_command() {
        let rejected = RolloutStatus {
            phase: Phase::Held,
            held: vec![change(Kind::Cluster, "a", Some("7"), &["bad timeout"])],
            held_seconds: Some(190.0),
            ..IDLE
        };
        let next = "correct it at the control plane, or `deltafan rollout release` or `discard`; `deltafan rollout show` has all";
        let told = format!("held for 3m: cds a 7; canaries reject this: bad timeout; {next}");
        assert_eq!(found(None, rejected), (State::Fault, told));
        let braked = RolloutStatus {
            phase: Phase::Held,
            held: ["a", "b", "c", "d", "e"].map(|name| change(Kind::Listener, name, None, &[])).into(),
            held_seconds: Some(2.0),
            reason: Some(HoldReason::Removals),
            ..IDLE
        };
        let told = "held in node group edge for 2s: lds a, lds b, lds c and 2 more; more removals than `rollout.max_removed` allows";
        assert_eq!(found(Some("edge"), braked), (State::Fault, format!("{told}; {next}")));
        let hold = StandingOrder {
            kind: OrderKind::Hold,
            type_url: Kind::Cluster.into(),
            parameters: Parameters::default(),
            name: None,
            digest: None,
            version: None,
            note: Note { at: 1_772_373_731, by: "10.0.0.1 (alice)".into() },
        };
        let ordered = RolloutStatus { phase: Phase::Held, on_hold: 3, orders: vec![hold], ..IDLE };
        let told = "held by order: cds since 2026-03-01T14:02:11Z by 10.0.0.1 (alice); changes wait: 3; `deltafan rollout release` or \
                    `discard` ends it";
        assert_eq!(found(None, ordered), (State::Fault, told.to_owned()));
    }

    #[test]
    fn clients_that_are_held_back_are_never_all_well() {
        let trying = RolloutStatus { trying: 2, waiting: 1, unanswered: 3, ..IDLE };
        let (state, finding) = found(None, trying.clone());
        assert_eq!(state, State::Note);
        assert!(finding.starts_with("no canary answers, for 3 trials; changes wait: 3; "), "{finding}");
        let told = (State::Note, "changes on trial: 2, waiting: 1".to_owned());
        assert_eq!(found(None, RolloutStatus { unanswered: 0, ..trying }), told);
        assert_eq!(found(None, RolloutStatus { kept_back: 1, ..IDLE }).0, State::Note);
        assert_eq!(found(None, IDLE).0, State::Ok);
    }
}
