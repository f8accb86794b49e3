//! Pages for users that follow from the declared keys: `config/reference.yaml` and the list of reloads in
//! `docs/configure.md`.

use serde_json::Value as Json;

use crate::config::Config;
use crate::config::schema::{self, Effect, Entries, Key, Printed, Section as _, Shape, entry};

/// Width of a page, in characters.
const WIDTH: usize = 120;

const HEAD: &str = "\
# Every key of deltafan, with its default. Only `upstream` is required; a key that you leave out has the value shown.
#
# Durations: a number with ms, s, m or h, down to a millisecond (300ms, 20s, 1.5h). A number without unit is an error.
# Sizes: KiB, MiB, GiB, or plain bytes. Ranges include both ends. Relative paths start from the folder of this file.
# YAML aliases, tags and a second document are refused, as are unknown keys, keys set twice and files above 1 MiB.
#
#   deltafan check --config FILE      prints the configuration in effect
#
# The relay reads the file again when it changes, and on SIGHUP. docs/configure.md says which keys take effect then, and
# which at the next start. This page is generated from src/config. The docs/ folder is in deltafan's repository.
";

/// Text of `config/reference.yaml`: every key with its help, range and default. `example` is a configuration with the
/// defaults, whose source is shown.
pub(super) fn reference(example: &Config) -> String {
    let values = example.print();
    let mut page = HEAD.to_owned();
    for key in Config::KEYS {
        page.push('\n');
        write_keys(&mut page, std::slice::from_ref(key), &values);
    }
    page
}

/// Keys of the top level, with those below them.
pub(super) fn write_keys(page: &mut String, keys: &'static [Key], values: &Entries) {
    for key in keys {
        write_key(page, key, entry(values, key.name), Place { margin: "", dash: "", commented: false });
    }
}

/// Where a key is written.
#[derive(Clone, Copy)]
struct Place<'p> {
    /// Start of every line.
    margin: &'p str,
    /// `- ` before the first key of an entry of a list, spaces before the others.
    dash: &'p str,
    /// The section is in a comment already, by the margin.
    commented: bool,
}

/// A key without a value, or whose default depends on the machine, is shown in a comment with its example.
fn write_key(page: &mut String, key: &Key, value: Option<&Printed>, place: Place<'_>) {
    let Place { margin, dash, commented } = place;
    let beside = format!("{margin}{}", " ".repeat(dash.len()));
    write_help(page, key, if dash == "- " { margin } else { &beside });
    let is_absent = match value {
        None => true,
        Some(Printed::List(items)) if matches!(key.shape, Shape::Sections(_)) => items.is_empty(),
        Some(_) => key.example.is_some(),
    };
    let hash = if is_absent && !commented { "# " } else { "" };
    let (value, commented) = if is_absent { (None, true) } else { (value, commented) };
    page.push_str(&format!("{margin}{dash}{hash}{}:", key.name));
    match (key.shape.keys(), value) {
        ([], Some(value)) => {
            page.push_str(&format!(" {}\n", notation(&serde_json::to_value(value).unwrap())));
        }
        ([], _) => page.push_str(&format!(" {}\n", key.example.unwrap_or_default())),
        (keys, value) => {
            page.push('\n');
            let (margin, nothing) = (format!("{beside}{hash}  "), Entries::new());
            let sections = match value {
                Some(Printed::List(items)) => items.iter().map(Some).collect(),
                value => vec![value],
            };
            for section in sections {
                let values = if let Some(Printed::Section(entries)) = section { entries } else { &nothing };
                for (at, below) in keys.iter().enumerate() {
                    let dash = match (key.shape, at) {
                        (Shape::Section(_), _) => "",
                        (_, 0) => "- ",
                        _ => "  ",
                    };
                    let place = Place { margin: &margin, dash, commented };
                    write_key(page, below, entry(values, below.name), place);
                }
            }
        }
    }
}

/// The help of a key and its range, as a comment.
fn write_help(page: &mut String, key: &Key, margin: &str) {
    let range = key.shape.range().map(|range| format!("{range}."));
    let mut line = format!("{margin}#");
    // No line ends within the range.
    for word in key.help.split_whitespace().chain(range.as_deref()) {
        if line.chars().count() + 1 + word.chars().count() > WIDTH {
            page.push_str(&line);
            page.push('\n');
            line = format!("{margin}#");
        }
        line.push(' ');
        line.push_str(word);
    }
    page.push_str(&line);
    page.push('\n');
}

/// YAML on one line. Texts of defaults need no quotes, but for the empty one.
fn notation(value: &Json) -> String {
    match value {
        Json::String(text) if !text.is_empty() => text.clone(),
        Json::Array(items) => format!("[{}]", items.iter().map(notation).collect::<Vec<_>>().join(", ")),
        value => value.to_string(),
    }
}

/// List in `docs/configure.md` that says when a change of each key takes effect: an item for each moment. A section or list
/// that is named stands for all of its keys.
pub(super) fn reload_list() -> String {
    let keys = schema::all(Config::KEYS);
    let item = |effect: Effect| {
        let keys = keys.iter().filter(|(_, key)| key.effect == Some(effect));
        let keys = keys.map(|(path, key)| {
            let note = key.note.map(|note| format!(" ({note})")).unwrap_or_default();
            format!("`{path}`{note}")
        });
        format!("- **{}**: {}\n", words(effect), keys.collect::<Vec<_>>().join(", "))
    };
    EFFECTS.map(item).concat()
}

const EFFECTS: [Effect; 5] =
    [Effect::AtOnce, Effect::Connections, Effect::Polls, Effect::Rights, Effect::Restart];

/// The words of docs/configure.md.
const fn words(effect: Effect) -> &'static str {
    match effect {
        Effect::AtOnce => "at once",
        Effect::Connections => "new connections",
        Effect::Polls => "new polls",
        Effect::Rights => "new connections; others are closed",
        Effect::Restart => "at the next start",
    }
}
