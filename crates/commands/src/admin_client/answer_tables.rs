//! Tables for people of what the admin address answers.

use std::fmt::Write as _;
use std::time::Duration;

use deltafan_transport::terminal::{age, printable};
use serde_json::{Value as Json, json};

use crate::output::{Table, or_dash, text};

fn items(list: &Json) -> &[Json] {
    list.as_array().map_or(&[], Vec::as_slice)
}

/// Version of a delivery or a change; without one its generation: `#7`.
fn version(of: &Json) -> String {
    match (of["version"].as_str(), of["generation"].as_u64()) {
        (Some(version), _) if !version.is_empty() => version.to_owned(),
        (_, Some(generation)) => format!("#{generation}"),
        _ => "-".to_owned(),
    }
}

fn age_of(field: &Json) -> String {
    let of = field.as_f64().map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default());
    of.map_or_else(|| "-".to_owned(), age)
}

fn joined(list: &Json, between: &str) -> String {
    items(list).iter().map(text).collect::<Vec<_>>().join(between)
}

fn or(text: String, if_empty: &str) -> String {
    if text.is_empty() { if_empty.to_owned() } else { text }
}

/// Cell of a column. Most show the field of that name.
fn cell(row: &Json, header: &str) -> String {
    let field = &row[header.to_lowercase()];
    match header {
        "AGE" => age_of(&row["seconds_ago"]),
        "LEFT" => age_of(&row["seconds_left"]),
        "TTL_LEFT" => age_of(&row["ttl_left_seconds"]),
        "NODE" => or_dash(&row["node"]["id"]),
        "SENT" if !row["held"].is_null() => or_dash(&row["held"]),
        "SENT" | "ACKED" => version(field),
        "REJECTED" if field.is_object() && row["state"] == "rejected" => {
            format!("{}: {}", version(field), text(&field["text"]))
        }
        "REJECTED" if field.is_object() => "-".to_owned(),
        // A removal has a time, and no version.
        "VERSION" if !row["seconds_ago"].is_null() => version(row),
        "NEWEST" if row.get("newest") == Some(&Json::Null) => "removed".to_owned(),
        "CHANGED" if field.is_null() => "all".to_owned(),
        "NOW" => or(text(&row["state"]), "gone"),
        _ if field.is_array() => or(joined(field, ", "), "-"),
        _ if field.is_object() => pairs(field),
        _ if *field == false => "-".to_owned(),
        _ => or_dash(field),
    }
}

/// Columns without anything are left out.
fn table<'r>(headers: &str, rows: impl IntoIterator<Item = &'r Json>) -> Table {
    let headers: Vec<&str> = headers.split(' ').collect();
    let mut table = Table::new(headers.iter().copied());
    rows.into_iter().for_each(|row| table.row(headers.iter().map(|header| cell(row, header))));
    table.without_empty_columns()
}

/// Fields of `inner` beside those of `outer`, of which they take the place.
fn beside(outer: &Json, inner: &Json) -> Json {
    let fields = [outer, inner].into_iter().flat_map(|of| of.as_object().into_iter().flatten());
    fields.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// As in `region=eu, zone=a`.
fn pairs(of: &Json) -> String {
    let pairs = of.as_object().into_iter().flatten().map(|(key, value)| (key, text(value)));
    let pairs = pairs.filter(|(_, text)| !text.is_empty()).map(|(key, text)| format!("{key}={text}"));
    or(pairs.collect::<Vec<_>>().join(", "), "-")
}

/// As in `rejected 1, synced 3`.
fn counts(of: &Json) -> String {
    let counts: Vec<String> =
        of.as_object().into_iter().flatten().map(|(word, count)| format!("{word} {count}")).collect();
    or(counts.join(", "), "none")
}

/// The figures follow if there are any rows.
fn with_figures(table: &Table, figures: &str, page: &Json) -> String {
    let mut out = if table.is_empty() { String::new() } else { table.show() + "\n" };
    out.push_str(&printable(figures));
    out.push('\n');
    if page["next"].as_u64().is_some_and(|next| next > 0) {
        out.push_str("more match; raise --limit, or leave it out\n");
    }
    out
}

pub(super) fn clients(page: &Json) -> String {
    let mut rows = Vec::new();
    for client in items(&page["clients"]) {
        match items(&client["types"]) {
            [] => rows.push(beside(client, &json!({"state": "new"}))),
            types => rows.extend(types.iter().map(|of| beside(client, of))),
        }
    }
    let table = table("ID NODE PEER TRANSPORT GROUP TYPE STATE SENT ACKED LAG REJECTED", &rows);
    let figures =
        format!("matched: {}; open streams and polls: {}", counts(&page["states"]), or_dash(&page["open"]));
    with_figures(&table, &figures, page)
}

/// Names that a client asks for stand last: there may be many.
pub(super) fn one_client(client: &Json) -> String {
    let types = table("TYPE STATE WILDCARD NAMES SENT ACKED LAG REJECTED LISTED", items(&client["types"]));
    format!("{}\n{}", fields(client), types.show())
}

pub(super) fn nacks(page: &Json) -> String {
    let table = table("AGE CLIENT NODE PEER TYPE VERSION NOW COUNT CHANGED TEXT", items(&page["nacks"]));
    with_figures(&table, &format!("remembered rejections: {}", or_dash(&page["remembered"])), page)
}

pub(super) fn resources(page: &Json) -> String {
    let headers = "TYPE NAME GROUP PARAMETERS STATE VERSION NEWEST BYTES CLIENTS ERROR";
    let table = table(headers, items(&page["resources"]));
    with_figures(&table, &format!("matched: {}", counts(&page["matched"])), page)
}

pub(super) fn history(page: &Json) -> String {
    if page["changes"].is_array() { recent_changes(page) } else { one_history(page) }
}

fn recent_changes(page: &Json) -> String {
    let headers = "AGE TIME TYPE NAME GROUP PARAMETERS EVENT VERSION BYTES";
    match items(&page["changes"]) {
        [] => "no changes remembered; the relay keeps those since its start, within `cache.history_bytes`\n"
            .to_owned(),
        changes => table(headers, changes).show(),
    }
}

/// Newest first, with a diff, for each group with the resource.
fn one_history(page: &Json) -> String {
    let mut out = String::new();
    for history in items(&page["histories"]) {
        let mut title = format!("{} {}", or_dash(&page["type"]), or_dash(&page["name"]));
        for key in ["group", "parameters", "clients"] {
            if !history[key].is_null() {
                title = format!("{title}, {key} {}", text(&history[key]));
            }
        }
        let headers = "AGE TIME EVENT VERSION BYTES ACCEPTED REJECTED UNANSWERED";
        let changes = table(headers, items(&history["changes"])).show();
        // Writing to a String cannot fail.
        _ = writeln!(out, "{}\n\n{changes}", printable(&title));
        let diff = &history["diff"];
        for line in text(&diff["text"]).lines() {
            _ = writeln!(out, "{}", printable(line));
        }
        if !diff["note"].is_null() {
            let versions =
                format!("{} to {}: {}", or_dash(&diff["from"]), or_dash(&diff["to"]), text(&diff["note"]));
            _ = writeln!(out, "{}", printable(&versions));
        }
        out.push('\n');
    }
    match page["left_out"].as_u64() {
        Some(0) | None if !out.is_empty() => _ = out.pop(),
        left_out => {
            _ = writeln!(out, "groups not shown: {}; choose one with --group", left_out.unwrap_or_default())
        }
    }
    out
}

/// Groups, and below them the held changes and the orders in force.
pub(super) fn rollout(groups: &Json) -> String {
    if items(groups).is_empty() {
        return "no type is guarded (`rollout.types`)\n".to_owned();
    }
    let mut rows = Vec::new();
    for of in items(groups) {
        let group = json!({"group": of["group"]});
        for held in items(&of["held"]) {
            let version = held["version"].as_str().unwrap_or("removed");
            let it = json!({"state": "held", "version": version, "text": joined(&held["texts"], "; ")});
            rows.push(beside(&group, &beside(held, &it)));
        }
        let orders = items(&of["orders"]).iter();
        rows.extend(orders.map(|order| beside(&group, &beside(order, &json!({"state": order["order"]})))));
    }
    let headers = "GROUP PHASE LEFT CANARIES TRYING WAITING UNANSWERED REASON SEARCHING";
    let groups = table(headers, items(groups)).show();
    let changes = table("GROUP STATE TYPE NAME VERSION ACCEPTED REJECTED SINCE BY TEXT", &rows);
    if changes.is_empty() { groups } else { format!("{groups}\n{}", changes.show()) }
}

/// Resources of a snapshot, with their groups and types.
pub(crate) fn snapshot(report: &Json) -> String {
    let mut rows = Vec::new();
    for group in items(&report["groups"]) {
        let own = json!({"group": group["group"], "rule": group["rule"], "values": group["values"], "server": group["server"],
                         "seconds_ago": group["age_seconds"]});
        for of in items(&group["types"]) {
            let names =
                json!({"type": of["type"], "parameters": of["parameters"], "wildcard": of["wildcard"]});
            let of_type = beside(&own, &names);
            match items(&of["resources"]) {
                [] => rows.push(of_type),
                all => rows.extend(all.iter().map(|one| beside(&of_type, one))),
            }
        }
    }
    // Groups of several rules and values may have one text.
    table("GROUP RULE VALUES SERVER AGE TYPE PARAMETERS WILDCARD NAME VERSION BYTES TTL_LEFT HELD_AS", &rows)
        .show()
}

pub(super) fn status(status: &Json) -> String {
    let checks = items(&status["checks"]);
    let is_noted = checks.iter().any(|check| check["state"] == "note");
    let verdict = match (status["well"] == true, is_noted) {
        (true, false) => "all is well",
        (true, true) => "no fault, but notes",
        (false, _) => "not well",
    };
    let relay = printable(&text(&status["relay"]));
    format!("{verdict}: {relay}\n\n{}", table("STATE CHECK FINDING", checks).show())
}

/// Fields of an answer that are no lists of objects, a line each.
pub(super) fn fields(answer: &Json) -> String {
    let mut out = String::new();
    // `null` in a list is the group of the relay's own node.
    let in_list = |one: &Json| if one.is_null() { "own".to_owned() } else { text(one) };
    for (key, value) in answer.as_object().into_iter().flatten() {
        let value = match value {
            Json::Array(all) if all.iter().any(Json::is_object) => continue,
            Json::Array(all) => all.iter().map(in_list).collect::<Vec<_>>().join(", "),
            Json::Object(_) => pairs(value),
            one => or_dash(one),
        };
        // Writing to a String cannot fail.
        _ = writeln!(out, "{:14}  {}", printable(key), printable(&value));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [fn(&Json) -> String; 6] = [clients, nacks, resources, one_client, history, rollout];

    /// An older relay may lack a field, a newer one may have further ones.
    #[test]
    fn every_document_can_be_shown() {
        for page in
            [json!(null), json!({}), json!({"clients": [{}], "nacks": [{}], "resources": [{"new": 1}]})]
        {
            for table in ALL {
                assert!(!table(&page).is_empty());
            }
        }
    }

    #[test]
    fn a_history_without_changes_is_told_in_words() {
        let shown = history(&json!({"changes": []}));
        assert!(shown.starts_with("no changes remembered") && !shown.contains("AGE"), "{shown}");
    }

    /// The server at the address may be no relay.
    #[test]
    fn nothing_of_a_document_steers_a_terminal() {
        let raw = "\u{1b}[31m\u{9b}2J\u{7f}\u{202e}";
        let one = json!({"id": raw, "listed": [raw], "text": raw, "type": raw});
        let counted = json!({ raw: raw });
        let page = json!({"clients": [one], "nacks": [one], "resources": [one], "open": raw, "states": counted, "matched": counted,
                          "remembered": raw, "types": [one]});
        let held = json!([{"group": raw, "held": [one], "orders": [{"order": raw, "by": raw}]}]);
        let shown = ALL.map(|table| table(&page)).into_iter();
        for shown in shown.chain([rollout(&held), fields(&json!({ raw: [raw] }))]) {
            assert!(!shown.contains(['\u{1b}', '\u{9b}', '\u{7f}', '\u{202e}']), "{shown:?}");
        }
    }

    #[test]
    fn held_changes_stand_below_their_groups_with_the_orders() {
        let held = json!({"type": "cds", "name": "a", "version": "2", "accepted": 0, "rejected": 1, "texts": ["bad", "worse"]});
        let removed =
            json!({"type": "rds", "name": "b", "version": null, "accepted": 0, "rejected": 0, "texts": []});
        let hold = json!({"order": "hold", "type": "cds", "since": "2026-03-01T14:02:11Z", "by": "127.0.0.1 (alice)"});
        let group = json!({"group": null, "phase": "held", "canaries": 1, "trying": 0, "waiting": 0, "unanswered": 0,
                           "reason": "rejected", "searching": true, "held": [held, removed], "orders": [hold]});
        let shown = rollout(&json!([group]));
        let rows: Vec<String> =
            shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let expected = [
            "PHASE CANARIES TRYING WAITING UNANSWERED REASON SEARCHING",
            "held 1 0 0 0 rejected true",
            "",
            "STATE TYPE NAME VERSION ACCEPTED REJECTED SINCE BY TEXT",
            "held cds a 2 0 1 - - bad; worse",
            "held rds b removed 0 0 - - -",
            "hold cds - - - - 2026-03-01T14:02:11Z 127.0.0.1 (alice) -",
        ];
        assert_eq!(rows, expected, "{shown}");
    }
}
