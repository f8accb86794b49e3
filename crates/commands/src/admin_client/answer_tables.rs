//! Tables for people of what the admin address answers.

use std::fmt::Write as _;

use deltafan_transport::terminal::printable;
use serde_json::Value as Json;

use crate::output::{Table, or_dash, text};

pub(super) fn items(list: &Json) -> &[Json] {
    list.as_array().map_or(&[], Vec::as_slice)
}

/// Or its generation without a version: `#7`.
pub(super) fn version(delivery: &Json) -> String {
    match (delivery["version"].as_str(), delivery["generation"].as_u64()) {
        (Some(version), _) if !version.is_empty() => version.to_owned(),
        (_, Some(generation)) => format!("#{generation}"),
        _ => "-".to_owned(),
    }
}

/// In one unit: `59s`, `3m`, `47h`, `12d`.
pub(super) fn age(seconds: f64) -> String {
    // A float is cut at the bounds of the integer.
    let whole = seconds as u64;
    match whole {
        0..120 => format!("{whole}s"),
        120..7_200 => format!("{}m", whole / 60),
        7_200..172_800 => format!("{}h", whole / 3_600),
        _ => format!("{}d", whole / 86_400),
    }
}

fn age_of(field: &Json) -> String {
    field.as_f64().map_or_else(|| "-".to_owned(), age)
}

pub(super) fn joined(list: &Json, between: &str) -> String {
    items(list).iter().map(text).collect::<Vec<_>>().join(between)
}

/// Header, and cell of an entry.
type Column = (&'static str, fn(&Json) -> String);

fn table(columns: &[Column], entries: &Json) -> Table {
    let mut table = Table::new(columns.iter().map(|(header, _)| *header));
    items(entries).iter().for_each(|entry| table.row(columns.iter().map(|(_, cell)| cell(entry))));
    table
}

const TYPE_COLUMNS: [Column; 6] = [
    ("TYPE", |of| or_dash(&of["type"])),
    ("STATE", |of| or_dash(&of["state"])),
    ("SENT", |of| if of["held"].is_null() { version(&of["sent"]) } else { or_dash(&of["held"]) }),
    ("ACKED", |of| version(&of["acked"])),
    ("LAG", |of| or_dash(&of["lag"])),
    ("REJECTED", |of| match &of["rejected"] {
        rejected if of["state"] == "rejected" && !rejected.is_null() => {
            format!("{}: {}", version(rejected), text(&rejected["text"]))
        }
        _ => String::new(),
    }),
];

/// As in `rejected 1, synced 3`.
pub(super) fn counts(of: &Json) -> String {
    let counts: Vec<String> =
        of.as_object().into_iter().flatten().map(|(word, count)| format!("{word} {count}")).collect();
    if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }
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
    const COLUMNS: [Column; 5] = [
        ("ID", |client| or_dash(&client["id"])),
        ("NODE", |client| or_dash(&client["node"]["id"])),
        ("PEER", |client| or_dash(&client["peer"])),
        ("TRANSPORT", |client| or_dash(&client["transport"])),
        ("GROUP", |client| text(&client["group"])),
    ];
    let mut table = Table::new(COLUMNS.iter().chain(&TYPE_COLUMNS).map(|(header, _)| *header));
    for client in items(&page["clients"]) {
        let own = COLUMNS.map(|(_, cell)| cell(client));
        let types = items(&client["types"]);
        for of in types {
            table.row(own.iter().cloned().chain(TYPE_COLUMNS.map(|(_, cell)| cell(of))));
        }
        if types.is_empty() {
            table.row(own.iter().map(String::as_str).chain(["-", "new"]));
        }
    }
    let figures =
        format!("matched: {}; open streams and polls: {}", counts(&page["states"]), or_dash(&page["open"]));
    with_figures(&table.without_empty_columns(), &figures, page)
}

pub(super) fn one_client(client: &Json) -> String {
    let mut out = String::new();
    let mut line = |key: &str, value: String| {
        if !value.is_empty() {
            // Writing to a String cannot fail.
            _ = writeln!(out, "{key:10}  {}", printable(&value));
        }
    };
    line("node", or_dash(&client["node"]["id"]));
    line("cluster", text(&client["node"]["cluster"]));
    line("agent", text(&client["node"]["user_agent"]));
    line("identity", text(&client["identity"]));
    line("peer", format!("{}, connection {}", or_dash(&client["peer"]), or_dash(&client["connection"])));
    line(
        "transport",
        format!("{}, open for {}", or_dash(&client["transport"]), age_of(&client["open_seconds"])),
    );
    line("group", text(&client["group"]));
    let parameters = client["parameters"].as_object().into_iter().flatten();
    let parameters = parameters.map(|(key, value)| format!("{key}={}", text(value)));
    line("parameters", parameters.collect::<Vec<_>>().join(", "));
    out.push('\n');
    out.push_str(&table(&TYPE_COLUMNS, &client["types"]).without_empty_columns().show());
    out.push('\n');
    for of in items(&client["types"]) {
        let wildcard = of["wildcard"].as_bool().unwrap_or_default().then(|| "everything".to_owned());
        let listed = items(&of["listed"]);
        let names = of["names"].as_u64().unwrap_or_default() as usize;
        let rest = (names > listed.len()).then(|| format!("{} names more", names - listed.len()));
        let all: Vec<String> = wildcard.into_iter().chain(listed.iter().map(text)).chain(rest).collect();
        _ = writeln!(out, "{} asks for: {}", printable(&text(&of["type"])), printable(&all.join(", ")));
    }
    out
}

pub(super) fn nacks(page: &Json) -> String {
    const COLUMNS: [Column; 10] = [
        ("AGE", |nack| age_of(&nack["seconds_ago"])),
        ("CLIENT", |nack| or_dash(&nack["client"])),
        ("NODE", |nack| or_dash(&nack["node"]["id"])),
        ("PEER", |nack| or_dash(&nack["peer"])),
        ("TYPE", |nack| or_dash(&nack["type"])),
        ("VERSION", version),
        ("NOW", |nack| if nack["state"].is_null() { "gone".to_owned() } else { text(&nack["state"]) }),
        ("COUNT", |nack| or_dash(&nack["count"])),
        (
            "CHANGED",
            |nack| if nack["changed"].is_null() { "all".to_owned() } else { joined(&nack["changed"], ",") },
        ),
        ("TEXT", |nack| or_dash(&nack["text"])),
    ];
    let figures = format!("remembered rejections: {}", or_dash(&page["remembered"]));
    with_figures(&table(&COLUMNS, &page["nacks"]), &figures, page)
}

pub(super) fn resources(page: &Json) -> String {
    const COLUMNS: [Column; 10] = [
        ("TYPE", |resource| or_dash(&resource["type"])),
        ("NAME", |resource| or_dash(&resource["name"])),
        ("GROUP", |resource| text(&resource["group"])),
        ("PARAMETERS", |resource| joined(&resource["parameters"], " ")),
        ("STATE", |resource| or_dash(&resource["state"])),
        ("VERSION", |resource| or_dash(&resource["version"])),
        ("NEWEST", |resource| match resource.get("newest") {
            Some(Json::Null) => "removed".to_owned(),
            Some(newest) => text(newest),
            None => String::new(),
        }),
        ("BYTES", |resource| or_dash(&resource["bytes"])),
        ("CLIENTS", |resource| or_dash(&resource["clients"])),
        ("ERROR", |resource| text(&resource["error"])),
    ];
    let table = table(&COLUMNS, &page["resources"]).without_empty_columns();
    with_figures(&table, &format!("matched: {}", counts(&page["matched"])), page)
}

pub(super) fn history(page: &Json) -> String {
    if page["changes"].is_array() { recent_changes(page) } else { one_history(page) }
}

fn recent_changes(page: &Json) -> String {
    const COLUMNS: [Column; 9] = [
        ("AGE", |change| age_of(&change["seconds_ago"])),
        ("TIME", |change| or_dash(&change["time"])),
        ("TYPE", |change| or_dash(&change["type"])),
        ("NAME", |change| or_dash(&change["name"])),
        ("GROUP", |change| text(&change["group"])),
        ("PARAMETERS", |change| text(&change["parameters"])),
        ("EVENT", |change| or_dash(&change["event"])),
        ("VERSION", version),
        ("BYTES", |change| or_dash(&change["bytes"])),
    ];
    let table = table(&COLUMNS, &page["changes"]);
    if table.is_empty() {
        return "no changes remembered; the relay keeps those since its start, within `cache.history_bytes`\n".to_owned();
    }
    table.without_empty_columns().show()
}

/// Newest first, with a diff, for each group with the resource.
fn one_history(page: &Json) -> String {
    let mut out = String::new();
    for history in items(&page["histories"]) {
        let mut title = format!("{} {}", or_dash(&page["type"]), or_dash(&page["name"]));
        for (word, value) in [("group", &history["group"]), ("parameters", &history["parameters"])] {
            if !value.is_null() {
                title = format!("{title}, {word} {}", text(value));
            }
        }
        // Writing to a String cannot fail.
        _ = writeln!(out, "{}\n\n{}", printable(&title), history_table(history).show());
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

fn history_table(history: &Json) -> Table {
    let mut table = Table::new(["AGE", "TIME", "EVENT", "VERSION", "BYTES", "CLIENTS"]);
    for (index, change) in items(&history["changes"]).iter().enumerate() {
        let it = if index == 0 { "it" } else { "it or a newer one" };
        let mut clients =
            format!("{} of {} have {it}", or_dash(&change["accepted"]), or_dash(&history["clients"]));
        for (count, word) in [("rejected", "reject it"), ("unanswered", "have not answered")] {
            if change[count].as_u64().is_some_and(|count| count > 0) {
                clients = format!("{clients}, {} {word}", text(&change[count]));
            }
        }
        table.row([
            age_of(&change["seconds_ago"]),
            or_dash(&change["time"]),
            or_dash(&change["event"]),
            version(change),
            or_dash(&change["bytes"]),
            clients,
        ]);
    }
    table
}

/// Groups, and below them the held changes and the orders in force.
pub(super) fn rollout(groups: &Json) -> String {
    const GROUPS: [Column; 8] = [
        ("GROUP", |of| text(&of["group"])),
        ("PHASE", |of| or_dash(&of["phase"])),
        ("LEFT", |of| of["seconds_left"].as_f64().map(age).unwrap_or_default()),
        ("CANARIES", |of| or_dash(&of["canaries"])),
        ("TRYING", |of| or_dash(&of["trying"])),
        ("WAITING", |of| or_dash(&of["waiting"])),
        ("UNANSWERED", |of| or_dash(&of["unanswered"])),
        ("REASON", |of| match of["searching"].as_bool() {
            Some(true) => format!("{}, searching", text(&of["reason"])),
            _ => text(&of["reason"]),
        }),
    ];
    if items(groups).is_empty() {
        return "no type is guarded (`rollout.types`)\n".to_owned();
    }
    let mut changes = Table::new([
        "GROUP", "STATE", "TYPE", "NAME", "VERSION", "ACCEPTED", "REJECTED", "SINCE", "BY", "TEXT",
    ]);
    for of in items(groups) {
        let group = || text(&of["group"]);
        for held in items(&of["held"]) {
            changes.row([
                group(),
                "held".to_owned(),
                or_dash(&held["type"]),
                or_dash(&held["name"]),
                held["version"].as_str().map_or_else(|| "removed".to_owned(), str::to_owned),
                or_dash(&held["accepted"]),
                or_dash(&held["rejected"]),
                String::new(),
                String::new(),
                joined(&held["texts"], "; "),
            ]);
        }
        for order in items(&of["orders"]) {
            let [word, of_type, since, by] = ["order", "type", "since", "by"].map(|key| or_dash(&order[key]));
            let [name, version] = ["name", "version"].map(|key| text(&order[key]));
            changes.row([group(), word, of_type, name, version, String::new(), String::new(), since, by]);
        }
    }
    let groups = table(&GROUPS, groups).without_empty_columns().show();
    if changes.is_empty() { groups } else { format!("{groups}\n{}", changes.without_empty_columns().show()) }
}

/// Groups of a snapshot, and below them their types with the resources.
pub(crate) fn snapshot(report: &Json) -> String {
    const RESOURCES: [Column; 5] = [
        ("NAME", |of| or_dash(&of["name"])),
        ("VERSION", |of| text(&of["version"])),
        ("BYTES", |of| text(&of["bytes"])),
        ("TTL LEFT", |of| age_of(&of["ttl_left_seconds"])),
        ("HELD AS", |of| or_dash(&of["held_as"])),
    ];
    let mut lines = Vec::new();
    for group in items(&report["groups"]) {
        // Groups of several rules and values may have one text.
        let rule = match group["rule"].as_str() {
            Some(rule) => format!(" (rule {rule}, values {})", group["values"]),
            None => String::new(),
        };
        let age = group["age_seconds"].as_f64().map(|seconds| format!("age {}", age(seconds)));
        let age = age.unwrap_or_else(|| "never answered".to_owned());
        lines.push(format!(
            "group {}{rule}: from {}, {age}",
            text(&group["group"]),
            or_dash(&group["server"])
        ));
        for of in items(&group["types"]) {
            let parameters = counts(&of["parameters"]);
            let records = items(&of["resources"]).len();
            let (of_type, known) = (text(&of["type"]), text(&of["wildcard"]));
            lines.push(format!("  {of_type}, parameters {parameters}: {records} records, wildcard {known}"));
            let table = table(&RESOURCES, &of["resources"]).show();
            lines.extend(table.lines().map(|row| format!("    {row}")));
        }
    }
    lines.iter().map(|line| printable(line) + "\n").collect()
}

/// Fields of the relay's answer, a line each.
pub(super) fn order(answer: &Json) -> String {
    let mut out = String::new();
    // `null` in a list is the group of the relay's own node.
    let in_list = |one: &Json| if one.is_null() { "own".to_owned() } else { text(one) };
    for (key, value) in answer.as_object().into_iter().flatten() {
        let value = match value {
            Json::Array(all) => all.iter().map(in_list).collect::<Vec<_>>().join(", "),
            one => or_dash(one),
        };
        // Writing to a String cannot fail.
        _ = writeln!(out, "{:14}  {}", printable(key), printable(&value));
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
        for shown in shown.chain([rollout(&held), order(&json!({ raw: [raw] }))]) {
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
            "PHASE CANARIES TRYING WAITING UNANSWERED REASON",
            "held 1 0 0 0 rejected, searching",
            "",
            "STATE TYPE NAME VERSION ACCEPTED REJECTED SINCE BY TEXT",
            "held cds a 2 0 1 bad; worse",
            "held rds b removed 0 0",
            "hold cds 2026-03-01T14:02:11Z 127.0.0.1 (alice)",
        ];
        assert_eq!(rows, expected, "{shown}");
    }

    #[test]
    fn an_age_has_one_unit() {
        assert_eq!(
            [0.0, 119.9, 120.0, 7_200.0, 1e6, -1.0, f64::NAN, f64::INFINITY].map(age)[..6],
            ["0s", "119s", "2m", "2h", "11d", "0s"]
        );
    }
}
