//! The check `rollout`: changes that are held, since when and why, and the next command.

use serde_json::{Value as Json, json};

use super::super::answer_tables::{age, items};
use super::{Check, State, seconds};
use crate::output::text;

/// Held changes that are named.
const NAMED: usize = 3;

pub(super) fn rollout(rollout: &Json) -> Check {
    let name = "rollout";
    let all = items(rollout);
    let sum = |key: &str| all.iter().filter_map(|group| group[key].as_u64()).sum::<u64>();
    let orders = || all.iter().flat_map(|group| items(&group["orders"]));
    let (trying, waiting, unanswered) = (sum("trying"), sum("waiting"), sum("unanswered"));
    let held = all.iter().map(|group| items(&group["held"]).len()).sum::<usize>();
    let kept_back = orders().filter(|order| order["order"] != "hold").count();
    let figures = json!({
        "held": held,
        "trying": trying,
        "waiting": waiting,
        "unanswered": unanswered,
        "on_hold": sum("on_hold"),
        "kept_back": kept_back,
    });
    let holds: Vec<String> = all.iter().filter(|group| group["phase"] == "held").map(hold).collect();
    let (state, finding) = if !holds.is_empty() {
        (State::Fault, holds.join("; "))
    } else if unanswered > 0 {
        let changes = trying + waiting;
        let next = "see whether the canaries are alive, or `deltafan rollout release`";
        (State::Note, format!("no canary answers, for {unanswered} trials; changes wait: {changes}; {next}"))
    } else if all.is_empty() {
        (State::Ok, "no type is guarded".to_owned())
    } else if trying + waiting > 0 {
        (State::Note, format!("changes on trial: {trying}, waiting: {waiting}"))
    } else if kept_back > 0 {
        let next = "correct them at the control plane; `deltafan rollout show` has them";
        (
            State::Note,
            format!("resources that were discarded or restored, and differ still: {kept_back}; {next}"),
        )
    } else {
        (State::Ok, "nothing is on trial or held".to_owned())
    };
    Check::new(name, state, finding, figures)
}

/// The hold of one node group.
fn hold(group: &Json) -> String {
    let held = items(&group["held"]);
    if held.is_empty() {
        return on_hold(group);
    }
    let names: Vec<String> = held.iter().take(NAMED).map(change).collect();
    let more = held.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let of = match text(&group["group"]) {
        key if key.is_empty() => key,
        key => format!(" in node group {key}"),
    };
    let since = match seconds(&group["held_seconds"]) {
        0.0 => String::new(),
        since => format!(" for {}", age(since)),
    };
    let names = format!("held{of}{since}: {}{more}", names.join(", "));
    let (why, next) = match group["reason"].as_str() {
        Some("removals") => (
            "more removals than `rollout.max_removed` allows".to_owned(),
            "put them back at the control plane, or `deltafan rollout release` or `discard`",
        ),
        Some("rejected") if group["searching"] == true => {
            ("canaries reject some of them; looking for the bad ones".to_owned(), "`deltafan rollout show`")
        }
        Some("rejected") => (
            format!("canaries reject {}", if held.len() == 1 { "it" } else { "them" }),
            "correct it at the control plane, or `deltafan rollout discard`; `deltafan rollout show` has all",
        ),
        _ => (String::new(), "`deltafan rollout show`"),
    };
    let texts = held.iter().flat_map(|change| items(&change["texts"])).map(text).next();
    let because = texts.map_or_else(String::new, |text| format!(": {text}"));
    format!("{names}; {why}{because}; {next}")
}

/// Types that an operator put on hold.
fn on_hold(group: &Json) -> String {
    let orders = items(&group["orders"]).iter().filter(|order| order["order"] == "hold");
    let order = |order: &Json| {
        format!("{} since {} by {}", text(&order["type"]), text(&order["since"]), text(&order["by"]))
    };
    let orders: Vec<String> = orders.map(order).collect();
    let waiting = group["on_hold"].as_u64().unwrap_or_default();
    format!(
        "held by order: {}; changes wait: {waiting}; `deltafan rollout release` or `discard` ends it",
        orders.join(", ")
    )
}

/// As in `cds backend 18`.
fn change(held: &Json) -> String {
    let version = text(&held["version"]);
    let version = if held["version"].is_null() { "" } else { &version };
    [&text(&held["type"]), &text(&held["name"]), version].join(" ").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(group: Json) -> (State, String) {
        let check = rollout(&json!([group]));
        (check.state, check.finding)
    }

    #[test]
    fn a_hold_is_told_with_its_reason_its_age_and_the_next_command() {
        let change =
            |name: &str, texts: &[&str]| json!({"type": "cds", "name": name, "version": "7", "texts": texts});
        let held = json!({"phase": "held", "reason": "rejected", "held_seconds": 190.0, "held": [change("a", &["bad timeout"])]});
        let told = "held for 3m: cds a 7; canaries reject it: bad timeout; correct it at the control plane, or \
                    `deltafan rollout discard`; `deltafan rollout show` has all";
        assert_eq!(found(held), (State::Fault, told.to_owned()));
        let gone = |name: &str| json!({"type": "lds", "name": name, "version": null, "texts": []});
        let names = ["a", "b", "c", "d", "e"].map(gone);
        let braked = json!({"phase": "held", "group": "edge", "reason": "removals", "held_seconds": 2.0, "held": names});
        let told = "held in node group edge for 2s: lds a, lds b, lds c and 2 more; more removals than `rollout.max_removed` allows; \
                    put them back at the control plane, or `deltafan rollout release` or `discard`";
        assert_eq!(found(braked), (State::Fault, told.to_owned()));
        let order = json!({"order": "hold", "type": "cds", "since": "2026-03-01T14:02:11Z", "by": "10.0.0.1 (alice)"});
        let ordered = json!({"phase": "held", "on_hold": 3, "held": [], "orders": [order]});
        let told = "held by order: cds since 2026-03-01T14:02:11Z by 10.0.0.1 (alice); changes wait: 3; `deltafan rollout release` or \
                    `discard` ends it";
        assert_eq!(found(ordered), (State::Fault, told.to_owned()));
    }

    #[test]
    fn clients_that_are_held_back_are_never_all_well() {
        let (state, finding) = found(json!({"phase": "trying", "trying": 2, "waiting": 1, "unanswered": 3}));
        assert_eq!(state, State::Note);
        assert!(finding.starts_with("no canary answers, for 3 trials; changes wait: 3; "), "{finding}");
        let trying = json!({"phase": "trying", "trying": 2, "waiting": 1, "unanswered": 0});
        assert_eq!(found(trying), (State::Note, "changes on trial: 2, waiting: 1".to_owned()));
        let given_up = json!({"phase": "idle", "orders": [{"order": "discard", "type": "cds", "name": "a"}]});
        assert_eq!(found(given_up).0, State::Note);
        assert_eq!(found(json!({"phase": "idle", "orders": []})).0, State::Ok);
    }
}
