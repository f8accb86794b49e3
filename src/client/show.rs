//! Answers for people and for programs.

use anyhow::Context as _;
use serde_json::{Value, json};

use super::get::Answer;
use crate::descriptors;
use crate::table::Table;
use crate::terminal::printable_json;

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
