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
        Format::Json => Ok(serde_json::to_string_pretty(&tree(answer)?)? + "\n"),
        Format::Yaml => serde_saphyr::to_string(&tree(answer)?).context("could not write the answer as YAML"),
    }
}

fn table(answer: &Answer) -> String {
    let names = answer.found.keys().chain(&answer.absent).chain(&answer.unanswered);
    let width = names.map(|name| plain(name).chars().count()).chain([4]).max().unwrap_or(4);
    let versions = answer.found.values().map(|found| plain(&found.version).chars().count());
    let version_width = versions.chain([7]).max().unwrap_or(7);
    let mut out = format!("{:width$}  {:version_width$}  BYTES\n", "NAME", "VERSION");
    let mut row = |name: &str, version: &str, bytes: &dyn std::fmt::Display| {
        // Writing to a String cannot fail.
        _ = writeln!(out, "{:width$}  {:version_width$}  {bytes}", plain(name), plain(version));
    };
    for (name, found) in &answer.found {
        row(name, &found.version, &found.body.len());
    }
    answer.absent.iter().for_each(|name| row(name, "-", &"does not exist"));
    answer.unanswered.iter().for_each(|name| row(name, "-", &"no answer"));
    out
}

/// Text that a server sent, without power over the terminal: control characters are escaped.
fn plain(text: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_default().collect() } else { c.to_string() };
    text.chars().map(escape).collect()
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

#[cfg(test)]
mod tests {
    use super::super::Found;
    use super::*;

    #[test]
    fn a_table_leaves_the_terminal_alone() {
        let found = Found { version: "1\r2".to_owned(), body: b"123"[..].into() };
        let answer =
            Answer { found: [("a\u{1b}[31m\u{e9}\n".to_owned(), found)].into(), ..Answer::default() };
        let table = table(&answer);
        assert_eq!(table.lines().nth(1), Some("a\\u{1b}[31m\u{e9}\\n  1\\r2     3"), "{table}");
    }
}
