//! Answers for people and for programs.

use std::time::SystemTime;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::get::Answer;
use super::held::Change;
use crate::descriptors;
use crate::resource::{Kind, TypeUrl};
use crate::table::Table;
use crate::terminal::{printable, printable_json};
use crate::utc;

/// How to show an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// A line per resource.
    #[default]
    Table,
    /// The resources in canonical proto3 JSON.
    Json,
    /// The resources in canonical proto3 JSON, written as YAML.
    Yaml,
}

/// Writes an answer out.
///
/// # Errors
///
/// Resource whose type has no descriptor, or whose body does not fit its type.
pub fn show(answer: &Answer, format: Format) -> anyhow::Result<String> {
    match format {
        Format::Table => Ok(table(answer)),
        Format::Json => Ok(printable_json(serde_json::to_string_pretty(&tree(answer)?)? + "\n")),
        Format::Yaml => serde_saphyr::to_string(&tree(answer)?).context("could not write the answer as YAML"),
    }
}

/// Line above the changes; a table only has one.
pub fn watch_header(format: Format) -> String {
    match format {
        Format::Table => row(["TIME", "EVENT", "TYPE", "NAME", "VERSION", "BYTES"]),
        Format::Json | Format::Yaml => String::new(),
    }
}

/// Writes a change out, as one line, or as one document.
///
/// # Errors
///
/// Change that has no form in YAML.
pub fn show_change(
    change: &Change,
    type_url: &TypeUrl,
    at: SystemTime,
    format: Format,
) -> anyhow::Result<String> {
    let time = utc::milliseconds(at);
    let bytes = change.found.as_ref().map(|found| found.body.len());
    if format == Format::Table {
        let kind = match type_url.kind() {
            Kind::Other => type_url.as_str(),
            known => known.short(),
        };
        let version = if change.version.is_empty() { "-" } else { &change.version };
        let bytes = bytes.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
        return Ok(row([&time, change.event.label(), kind, &change.name, version, &bytes]));
    }
    let mut document = json!({
        "time": time,
        "event": change.event.label(),
        "type": type_url.kind().short(),
        "type_url": type_url.as_str(),
        "name": change.name,
        "version": change.version,
    });
    if let Some(found) = &change.found {
        document["bytes"] = json!(found.body.len());
        // A type that is unknown here is no reason to stop.
        match descriptors::any_to_json(&found.body) {
            Ok(resource) => document["resource"] = resource,
            Err(error) => document["error"] = json!(format!("the resource cannot be shown: {error}")),
        }
    }
    match format {
        Format::Yaml => {
            let document = serde_saphyr::to_string(&document).context("could not write a change as YAML")?;
            Ok(format!("---\n{document}"))
        }
        Format::Table | Format::Json => Ok(printable_json(document.to_string() + "\n")),
    }
}

/// Row of a table whose further rows are not known yet.
fn row(cells: [&str; 6]) -> String {
    const WIDTHS: [usize; 6] = [24, 7, 4, 32, 18, 0];
    let cells = cells.iter().zip(WIDTHS).map(|(cell, width)| format!("{:width$}  ", printable(cell)));
    cells.collect::<String>().trim_end().to_owned() + "\n"
}

fn table(answer: &Answer) -> String {
    let mut table = Table::new(["NAME", "VERSION", "BYTES"]);
    for (name, found) in &answer.found {
        table.row([name, &found.version, &found.body.len().to_string()]);
    }
    answer.absent.iter().for_each(|name| table.row([name, "-", "does not exist"]));
    answer.unanswered.iter().for_each(|name| table.row([name, "-", "no answer"]));
    table.show()
}

fn tree(answer: &Answer) -> anyhow::Result<Value> {
    let mut resources = Vec::new();
    for (name, found) in &answer.found {
        let resource = descriptors::any_to_json(&found.body)
            .with_context(|| format!("cannot show `{name}`; `-o table` can"))?;
        resources.push(json!({"name": name, "version": found.version, "resource": resource}));
    }
    Ok(json!({"resources": resources, "absent": answer.absent, "unanswered": answer.unanswered}))
}
