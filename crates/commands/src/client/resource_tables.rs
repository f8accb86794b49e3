//! Answers and changes for people and for programs.

use std::time::SystemTime;

use anyhow::Context as _;
use deltafan_core::descriptors;
use deltafan_core::resource::{Kind, TypeUrl};
use deltafan_transport::terminal::{printable, printable_json};
use deltafan_transport::utc;
use serde_json::{Value, json};

use super::subscribed_names::is_collection;
use super::watched_resources::{Change, Held};
use super::whole_answer::Answer;
use crate::output::{self, Format, Table, or_dash};

/// Prints an answer.
pub(crate) fn show(answer: &Answer, format: Format) -> anyhow::Result<String> {
    format.write(|| document(answer), || table(answer))
}

/// Header of a watch; empty unless it prints a table.
pub(crate) fn watch_header(format: Format) -> String {
    match format {
        Format::Table => row(["TIME", "EVENT", "TYPE", "NAME", "VERSION", "BYTES"].map(str::to_owned)),
        Format::Json | Format::Yaml => String::new(),
    }
}

/// Prints a change: a line of a table, one line of JSON, or YAML after `---`.
pub(crate) fn show_change(
    change: &Change,
    type_url: &TypeUrl,
    at: SystemTime,
    format: Format,
) -> anyhow::Result<String> {
    let mut document = json!({
        "time": utc::milliseconds(at),
        "event": change.event.label(),
        "type": type_url.kind().short(),
        "type_url": type_url.as_str(),
        "name": change.name,
        "version": change.version,
    });
    if let Some(body) = &change.body {
        document["bytes"] = json!(body.len());
    }
    if format == Format::Table {
        let kind = if type_url.kind() == Kind::Other { "type_url" } else { "type" };
        let cells = ["time", "event", kind, "name", "version", "bytes"];
        return Ok(row(cells.map(|key| or_dash(&document[key]))));
    }
    if let Some(body) = &change.body {
        // The watch goes on if a type is unknown.
        match descriptors::any_to_json(body) {
            Ok(resource) => document["resource"] = resource,
            Err(error) => document["error"] = json!(format!("the resource cannot be shown: {error}")),
        }
    }
    match format {
        Format::Yaml => Ok(format!("---\n{}", output::yaml(&document)?)),
        Format::Table | Format::Json => Ok(printable_json(document.to_string() + "\n")),
    }
}

/// Fixed widths: later rows are not known yet.
fn row(cells: [String; 6]) -> String {
    const WIDTHS: [usize; 6] = [24, 7, 4, 32, 18, 0];
    let cells = cells.iter().zip(WIDTHS).map(|(cell, width)| format!("{:width$}  ", printable(cell)));
    cells.collect::<String>().trim_end().to_owned() + "\n"
}

fn table(answer: &Answer) -> String {
    let mut table = Table::new(["NAME", "VERSION", "BYTES"]);
    for (name, found) in &answer.held.found {
        table.row([name, &found.version, &found.body.len().to_string()]);
    }
    for name in &answer.held.absent {
        let end = if is_collection(name) { "no members" } else { "does not exist" };
        table.row([name.as_str(), "-", end]);
    }
    answer.held.unanswered.iter().for_each(|name| table.row([name, "-", "no answer"]));
    table.show()
}

fn document(answer: &Answer) -> anyhow::Result<Value> {
    let mut resources = Vec::new();
    for (name, found) in &answer.held.found {
        let resource = descriptors::any_to_json(&found.body)
            .with_context(|| format!("cannot show `{name}`; `-o table` can"))?;
        resources.push(json!({"name": name, "version": found.version, "resource": resource}));
    }
    let Answer { held: Held { absent, unanswered, .. }, reason } = answer;
    Ok(json!({"resources": resources, "absent": absent, "unanswered": unanswered, "reason": reason}))
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::super::client_response::Found;
    use super::super::subscribed_names::Subscription;
    use super::super::watched_resources::Event;
    use super::*;

    #[test]
    fn a_table_needs_no_descriptors() {
        let found = Found { version: "7".to_owned(), body: "xyz".into(), aliases: Vec::new() };
        let held = Held::new(&Subscription::of_test(Kind::Cluster, &[]));
        let mut answer = Answer { held, reason: None };
        answer.held.found.insert("a".to_owned(), found);
        for name in ["b", "xdstp://a/t/*"] {
            answer.held.absent.insert(name.to_owned());
        }
        let rows = [
            "NAME           VERSION  BYTES",
            "a              7        3",
            "b              -        does not exist",
            "xdstp://a/t/*  -        no members",
        ];
        assert_eq!(show(&answer, Format::Table).unwrap().lines().collect::<Vec<_>>(), rows);
        show(&answer, Format::Json).unwrap_err();
    }

    #[test]
    fn nothing_of_a_change_steers_a_terminal() {
        let name = "a\u{202e}b\u{1b}".to_owned();
        let change = Change { event: Event::Removed, name, version: "\u{2066}".to_owned(), body: None };
        for format in [Format::Table, Format::Json, Format::Yaml] {
            let shown = show_change(&change, &Kind::Cluster.into(), UNIX_EPOCH, format).unwrap();
            assert!(!shown.contains(['\u{202e}', '\u{1b}', '\u{2066}']), "{shown:?}");
            if let Some(yaml) = shown.strip_prefix("---\n") {
                let read: Value = serde_saphyr::from_str(yaml).unwrap();
                assert_eq!(read["name"], change.name);
            }
        }
    }
}
