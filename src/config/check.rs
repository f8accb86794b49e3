//! Holds a tree against the schema: unknown keys, keys refused for now, wrong shapes.
//!
//! Wrong values are reported and struck out (`Value::Refused`), so that readers meet only keys they know, in the shape
//! they expect. Judges no single value.

use super::errors::{Report, quoted};
use super::schema::{self, Key, NOT_YET, Shape, When};
use super::yaml::{Entry, Tree, Value};

/// Checks the whole document.
pub(super) fn document(root: &mut Tree, keys: &'static [Key], report: &Report) {
    check(root, "", Shape::Section(keys), report);
}

fn check(tree: &mut Tree, path: &str, shape: Shape, report: &Report) {
    let is_null = tree.is_null();
    match (shape, &mut tree.value) {
        (_, Value::Refused) | (Shape::Free, Value::Map(_)) => {}
        (Shape::Section(keys), Value::Map(entries)) => {
            for entry in entries {
                check_entry(entry, path, keys, report);
            }
        }
        (Shape::Sections(keys), Value::List(items)) => {
            check_items(items, path, Shape::Section(keys), report);
        }
        (Shape::Texts, Value::List(items)) => check_items(items, path, Shape::Text, report),
        // A section whose keys are all commented out.
        (Shape::Section(_) | Shape::Free, Value::Scalar { .. }) if is_null => {}
        (Shape::Section(_) | Shape::Free, _) => refuse_shape(tree, path, "a mapping", report),
        (Shape::Sections(_) | Shape::Texts, _) => refuse_shape(tree, path, "a list", report),
        (_, Value::Scalar { .. }) if !is_null => {}
        (_, _) => refuse_shape(tree, path, "a single value", report),
    }
}

fn check_items(items: &mut [Tree], list: &str, shape: Shape, report: &Report) {
    let path = format!("{list}[]");
    for item in items {
        check(item, &path, shape, report);
    }
}

fn check_entry(entry: &mut Entry, section: &str, keys: &'static [Key], report: &Report) {
    let path = schema::join(section, &entry.key);
    refuse_what_is_not_supported(&mut entry.value, &path, report);
    if let Some(key) = schema::children(keys).into_iter().find(|key| key.name == entry.key) {
        return check(&mut entry.value, &path, key.shape, report);
    }
    if NOT_YET.iter().any(|row| row.path == path) {
        return;
    }
    let advice = match schema::nearest(section, keys, &entry.key) {
        Some(known) => format!("did you mean `{known}`?"),
        None => format!("known are {}", schema::names(section, keys).join(", ")),
    };
    report.at(entry.line, &format!("unknown key {} {}; {advice}", quoted(&entry.key), place(section)));
    entry.value.value = Value::Refused;
}

fn place(section: &str) -> String {
    if section.is_empty() { "at the top level".to_owned() } else { format!("in `{section}`") }
}

fn refuse_what_is_not_supported(tree: &mut Tree, path: &str, report: &Report) {
    for row in NOT_YET.iter().filter(|row| row.path == path) {
        if !row.refuses(tree) {
            continue;
        }
        match (&row.when, &mut tree.value) {
            // The first entry is still read, so that its problems are told as well.
            (When::Several, Value::List(items)) => {
                let second = items.get(1).map_or(tree.line, |item| item.line);
                report.at(second, &row.message());
                items.truncate(1);
            }
            _ => {
                report.at(tree.line, &row.message());
                tree.value = Value::Refused;
            }
        }
    }
}

fn refuse_shape(tree: &mut Tree, path: &str, wanted: &str, report: &Report) {
    let subject = if path.is_empty() { "the file".to_owned() } else { format!("`{path}`") };
    report.at(tree.line, &format!("{subject} must be {wanted}, not {}", tree.describe()));
    tree.value = Value::Refused;
}
