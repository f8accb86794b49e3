//! Output of commands that ask servers: tables for people, JSON and YAML for programs.
//!
//! Owns the choice of `-o`, tables, and document printing. Invariant: no document steers a terminal, and its JSON and
//! YAML read back the same.

use std::borrow::Borrow;
use std::fmt::Write as _;

use anyhow::Context as _;
use deltafan_transport::terminal::{is_printable, printable, printable_json};
use serde_json::Value as Json;

/// Form of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Table for people.
    #[default]
    Table,
    /// JSON, which has more than the table.
    Json,
    /// The JSON document, written as YAML.
    Yaml,
}

impl Format {
    /// Prints an answer. Makes only the requested form.
    pub(crate) fn write<D: Borrow<Json>>(
        self,
        document: impl FnOnce() -> anyhow::Result<D>,
        table: impl FnOnce() -> String,
    ) -> anyhow::Result<String> {
        match self {
            Self::Table => Ok(table()),
            Self::Json => Ok(json(document()?.borrow())),
            Self::Yaml => yaml(document()?.borrow()),
        }
    }
}

/// On several lines.
fn json(document: &Json) -> String {
    printable_json(format!("{document:#}\n"))
}

/// Prints YAML.
pub(crate) fn yaml(document: &Json) -> anyhow::Result<String> {
    let text = serde_saphyr::to_string(document).context("could not write the answer as YAML")?;
    // Escapes need quotes, which the writer omits where it can. JSON, which is valid YAML, quotes all text.
    Ok(if is_printable(&text) { text } else { json(document) })
}

/// Empty if the field is `null` or missing.
pub(crate) fn text(field: &Json) -> String {
    match field {
        Json::Null => String::new(),
        Json::String(text) => text.clone(),
        other => other.to_string(),
    }
}

pub(crate) fn or_dash(field: &Json) -> String {
    Some(text(field)).filter(|text| !text.is_empty()).unwrap_or_else(|| "-".to_owned())
}

/// Columns are as wide as their widest cell. Control characters are escaped, so that no cell steers the
/// terminal.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<'h>(headers: impl IntoIterator<Item = &'h str>) -> Self {
        let mut table = Self { rows: Vec::new() };
        table.row(headers);
        table
    }

    /// Adds a row. Extra cells are dropped, missing ones empty.
    pub(crate) fn row<C: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = C>) {
        let mut row: Vec<String> = cells.into_iter().map(|cell| printable(cell.as_ref())).collect();
        if let Some(header) = self.rows.first() {
            row.resize(header.len(), String::new());
        }
        self.rows.push(row);
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.rows.len() <= 1
    }

    /// Leaves out columns in which each cell is empty, or a dash.
    pub(crate) fn without_empty_columns(mut self) -> Self {
        let headers = self.rows.first().map_or(0, Vec::len);
        let is_empty = |at: &usize| self.rows.iter().skip(1).all(|row| matches!(&*row[*at], "" | "-"));
        let empty: Vec<usize> = (0..headers).filter(is_empty).collect();
        if !self.is_empty() {
            for row in &mut self.rows {
                let mut at = 0..;
                row.retain(|_| at.next().is_some_and(|at| !empty.contains(&at)));
            }
        }
        self
    }

    pub(crate) fn show(&self) -> String {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |at: usize| {
            let cells = self.rows.iter().map(|row| row[at].chars().count());
            cells.max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut out = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                // Writing to a String cannot fail.
                _ = write!(line, "{cell:width$}  ");
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Json {
        serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    #[test]
    fn the_form_that_is_not_asked_for_is_not_made() {
        let document = || -> anyhow::Result<Json> { anyhow::bail!("not asked for") };
        assert_eq!(Format::Table.write(document, || "table".to_owned()).unwrap(), "table");
        let table = || -> String { unreachable!("not asked for") };
        assert_eq!(Format::Json.write(|| Ok(json!({"a": 1})), table).unwrap(), "{\n  \"a\": 1\n}\n");
        assert_eq!(Format::Yaml.write(|| Ok(json!({"a": [1]})), table).unwrap(), "a:\n- 1\n");
    }

    #[test]
    fn nothing_of_yaml_steers_a_terminal_and_it_reads_back_equal() {
        for c in ['\u{202e}', '\u{2066}', '\u{200f}', '\u{61c}', '\u{2028}', '\u{feff}', '\u{9b}', '\u{1b}'] {
            let text = format!("a {c} b");
            let lines = format!("first\n  {c}second\n");
            for document in [json!({"name": text}), json!({ text.as_str(): [lines] }), json!([c.to_string()])]
            {
                let written = yaml(&document).unwrap();
                assert!(is_printable(&written), "{written:?}");
                assert_eq!(read(&written), document, "{written}");
            }
        }
        let plain = yaml(&json!({"lua": "if x then\n\treturn\nend\n"})).unwrap();
        assert!(plain.starts_with("lua: |"), "a tab is no reason for quotes: {plain}");
    }

    #[test]
    fn a_table_leaves_the_terminal_alone() {
        let mut table = Table::new(["NAME", "VERSION"]);
        table.row(["a\u{1b}[31m\u{e9}\n", "1\r2"]);
        table.row(["b", "12345678"]);
        let rows = ["NAME            VERSION", "a\\u{1b}[31m\u{e9}\\n  1\\r2", "b               12345678"];
        assert_eq!(table.show().lines().collect::<Vec<_>>(), rows);
    }

    #[test]
    fn a_column_without_anything_is_left_out() {
        let mut table = Table::new(["NAME", "GROUP", "STATE"]);
        assert_eq!(table.clone().without_empty_columns().show(), "NAME  GROUP  STATE\n");
        table.row(["a", "-", "synced"]);
        assert_eq!(table.without_empty_columns().show(), "NAME  STATE\na     synced\n");
    }

    proptest! {
        #[test]
        fn any_text_reads_back_equal(key in ".*", value in "(.|\n)*", mark in "[a\u{202a}-\u{202e}\u{2066}-\u{2069}]") {
            let document = json!({ format!("{key}{mark}"): format!("{value}{mark}"), "other": value });
            let written = yaml(&document).unwrap();
            prop_assert!(is_printable(&written), "{:?}", written);
            prop_assert_eq!(read(&written), document);
        }
    }
}
