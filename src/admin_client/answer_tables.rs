//! Answers of the admin address for people and for programs.

use std::fmt::Write as _;

use serde_json::Value as Json;

use super::listing::{Listing, Report};
use crate::output::Format;
use crate::table::Table;
use crate::terminal::printable;

/// Prints a report.
///
/// # Errors
///
/// Report that has no form in YAML.
pub fn show(report: &Report, format: Format) -> anyhow::Result<String> {
    match report {
        Report::List(Listing::Clients, page) => format.write(|| Ok(page), || clients(page)),
        Report::List(Listing::Nacks, page) => format.write(|| Ok(page), || nacks(page)),
        Report::List(Listing::Resources, page) => format.write(|| Ok(page), || resources(page)),
        Report::Client(client) => format.write(|| Ok(client), || one_client(client)),
        Report::History(page) => format.write(|| Ok(page), || history(page)),
    }
}

/// Empty if the field is `null` or missing.
pub(super) fn text(field: &Json) -> String {
    match field {
        Json::Null => String::new(),
        Json::String(text) => text.clone(),
        other => other.to_string(),
    }
}

pub(super) fn items(list: &Json) -> &[Json] {
    list.as_array().map_or(&[], Vec::as_slice)
}

fn or_dash(field: &Json) -> String {
    Some(text(field)).filter(|text| !text.is_empty()).unwrap_or_else(|| "-".to_owned())
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

fn rejection(of: &Json) -> String {
    if of.is_null() { String::new() } else { format!("{}: {}", version(of), text(&of["text"])) }
}

fn type_cells(of: &Json) -> [String; 6] {
    let sent = if of["held"].is_null() { version(&of["sent"]) } else { or_dash(&of["held"]) };
    let is_rejected = of["state"] == "rejected";
    let rejected = if is_rejected { rejection(&of["rejected"]) } else { String::new() };
    [or_dash(&of["type"]), or_dash(&of["state"]), sent, version(&of["acked"]), or_dash(&of["lag"]), rejected]
}

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

fn clients(page: &Json) -> String {
    let headers =
        ["ID", "NODE", "PEER", "TRANSPORT", "GROUP", "TYPE", "STATE", "SENT", "ACKED", "LAG", "REJECTED"];
    let mut table = Table::new(headers);
    for client in items(&page["clients"]) {
        let own = [
            or_dash(&client["id"]),
            or_dash(&client["node"]["id"]),
            or_dash(&client["peer"]),
            or_dash(&client["transport"]),
            text(&client["group"]),
        ];
        let types = items(&client["types"]);
        for of in types {
            table.row(own.iter().chain(&type_cells(of)));
        }
        if types.is_empty() {
            table.row(own.iter().map(String::as_str).chain(["-", "new"]));
        }
    }
    let figures =
        format!("matched: {}; open streams and polls: {}", counts(&page["states"]), or_dash(&page["open"]));
    with_figures(&table.without_empty_columns(), &figures, page)
}

fn one_client(client: &Json) -> String {
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
    let mut table = Table::new(["TYPE", "STATE", "SENT", "ACKED", "LAG", "REJECTED"]);
    items(&client["types"]).iter().for_each(|of| table.row(type_cells(of)));
    out.push('\n');
    out.push_str(&table.without_empty_columns().show());
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

fn nacks(page: &Json) -> String {
    let headers = ["AGE", "CLIENT", "NODE", "PEER", "TYPE", "VERSION", "NOW", "COUNT", "CHANGED", "TEXT"];
    let mut table = Table::new(headers);
    for nack in items(&page["nacks"]) {
        let changed: Vec<String> = items(&nack["changed"]).iter().map(text).collect();
        table.row([
            age_of(&nack["seconds_ago"]),
            or_dash(&nack["client"]),
            or_dash(&nack["node"]["id"]),
            or_dash(&nack["peer"]),
            or_dash(&nack["type"]),
            version(nack),
            if nack["state"].is_null() { "gone".to_owned() } else { text(&nack["state"]) },
            or_dash(&nack["count"]),
            if nack["changed"].is_null() { "all".to_owned() } else { changed.join(",") },
            or_dash(&nack["text"]),
        ]);
    }
    let figures = format!("remembered rejections: {}", or_dash(&page["remembered"]));
    with_figures(&table, &figures, page)
}

fn resources(page: &Json) -> String {
    let headers =
        ["TYPE", "NAME", "GROUP", "PARAMETERS", "TRACK", "STATE", "VERSION", "BYTES", "CLIENTS", "ERROR"];
    let mut table = Table::new(headers);
    for resource in items(&page["resources"]) {
        let parameters: Vec<String> = items(&resource["parameters"]).iter().map(text).collect();
        table.row([
            or_dash(&resource["type"]),
            or_dash(&resource["name"]),
            text(&resource["group"]),
            parameters.join(" "),
            text(&resource["track"]),
            or_dash(&resource["state"]),
            or_dash(&resource["version"]),
            or_dash(&resource["bytes"]),
            or_dash(&resource["clients"]),
            text(&resource["error"]),
        ]);
    }
    let figures = format!("matched: {}", counts(&page["matched"]));
    with_figures(&table.without_empty_columns(), &figures, page)
}

fn history(page: &Json) -> String {
    if page["changes"].is_array() { recent_changes(page) } else { one_history(page) }
}

fn recent_changes(page: &Json) -> String {
    let headers = ["AGE", "TIME", "TYPE", "NAME", "GROUP", "PARAMETERS", "EVENT", "VERSION", "BYTES"];
    let mut table = Table::new(headers);
    for change in items(&page["changes"]) {
        table.row([
            age_of(&change["seconds_ago"]),
            or_dash(&change["time"]),
            or_dash(&change["type"]),
            or_dash(&change["name"]),
            text(&change["group"]),
            text(&change["parameters"]),
            or_dash(&change["event"]),
            version(change),
            or_dash(&change["bytes"]),
        ]);
    }
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// An older relay may lack a field, a newer one may have further ones.
    #[test]
    fn every_document_can_be_shown() {
        for page in
            [json!(null), json!({}), json!({"clients": [{}], "nacks": [{}], "resources": [{"new": 1}]})]
        {
            for listing in [Listing::Clients, Listing::Nacks, Listing::Resources] {
                for format in [Format::Table, Format::Json, Format::Yaml] {
                    assert!(!show(&Report::List(listing, page.clone()), format).unwrap().is_empty());
                }
            }
            assert!(!show(&Report::Client(page.clone()), Format::Table).unwrap().is_empty());
            assert!(!show(&Report::History(page), Format::Table).unwrap().is_empty());
        }
    }

    #[test]
    fn a_history_without_changes_is_told_in_words() {
        let shown = show(&Report::History(json!({"changes": []})), Format::Table).unwrap();
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
        for listing in [Listing::Clients, Listing::Nacks, Listing::Resources] {
            for format in [Format::Table, Format::Json, Format::Yaml] {
                for report in [Report::List(listing, page.clone()), Report::Client(page.clone())] {
                    let shown = show(&report, format).unwrap();
                    assert!(!shown.contains(['\u{1b}', '\u{9b}', '\u{7f}', '\u{202e}']), "{shown:?}");
                }
            }
        }
    }

    #[test]
    fn an_age_has_one_unit() {
        assert_eq!(
            [0.0, 119.9, 120.0, 7_200.0, 1e6, -1.0, f64::NAN, f64::INFINITY].map(age)[..6],
            ["0s", "119s", "2m", "2h", "11d", "0s"]
        );
    }
}
