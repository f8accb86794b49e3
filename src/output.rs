//! Output of commands that ask servers: tables for people, JSON and YAML for programs.
//!
//! Owns the choice of `-o`, and document printing. Invariant: no document steers a terminal, and its JSON and
//! YAML read back the same.

use std::borrow::Borrow;

use anyhow::Context as _;
use serde_json::Value as Json;

use crate::terminal::{is_printable, printable_json};

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
    ///
    /// # Errors
    ///
    /// Document that cannot be made, or has no form in YAML.
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
///
/// # Errors
///
/// Document that has no form in YAML.
pub(crate) fn yaml(document: &Json) -> anyhow::Result<String> {
    let text = serde_saphyr::to_string(document).context("could not write the answer as YAML")?;
    // Escapes need quotes, which the writer omits where it can. JSON, which is valid YAML, quotes all text.
    Ok(if is_printable(&text) { text } else { json(document) })
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
