//! Answers for people and for programs.

use std::fmt::Write as _;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::Answer;
use crate::descriptors;

/// How to show an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// A line per resource.
    #[default]
    Table,
    /// The resources in canonical proto3 JSON.
    Json,
    /// The same as YAML.
    Yaml,
}

/// Writes an answer out.
pub fn show(answer: &Answer, format: Format) -> anyhow::Result<String> {
    match format {
        Format::Table => Ok(table(answer)),
        Format::Json => Ok(serde_json::to_string_pretty(&tree(answer)?)? + "\n"),
        Format::Yaml => serde_saphyr::to_string(&tree(answer)?).context("could not write the answer as YAML"),
    }
}

fn table(answer: &Answer) -> String {
    let names = answer.found.keys().chain(&answer.absent).chain(&answer.unanswered);
    let width = names.map(|name| name.chars().count()).chain([4]).max().unwrap_or(4);
    let versions = answer.found.values().map(|found| found.version.chars().count());
    let version_width = versions.chain([7]).max().unwrap_or(7);
    let mut out = format!("{:width$}  {:version_width$}  BYTES\n", "NAME", "VERSION");
    let mut row = |name: &str, version: &str, bytes: &dyn std::fmt::Display| {
        // Writing to a String cannot fail.
        _ = writeln!(out, "{name:width$}  {version:version_width$}  {bytes}");
    };
    for (name, found) in &answer.found {
        row(name, &found.version, &found.body.len());
    }
    answer.absent.iter().for_each(|name| row(name, "-", &"does not exist"));
    answer.unanswered.iter().for_each(|name| row(name, "-", &"no answer"));
    out
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
