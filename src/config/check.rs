//! Holds a tree against the tables: unknown keys, keys refused for now, wrong shapes.
//!
//! What is wrong is reported and struck out (`Value::Refused`), so that readers meet only keys they know, in the shape
//! they expect. Judges no value.

use super::errors::{Report, quoted};
use super::keys::{self, NOT_YET, Shape, When};
use super::tree::{Entry, Tree, Value};

/// Checks the whole document.
pub(super) fn document(root: &mut Tree, report: &Report) {
    check(root, "", report);
}

fn check(tree: &mut Tree, path: &str, report: &Report) {
    refuse_what_is_not_supported(tree, path, report);
    let Some(shape) = keys::shape(path) else { return };
    let is_null = tree.is_null();
    match (shape, &mut tree.value) {
        (_, Value::Refused) | (Shape::Free, Value::Map(_)) => {}
        (Shape::Section, Value::Map(entries)) => {
            for entry in entries {
                check_entry(entry, path, report);
            }
        }
        (Shape::List, Value::List(items)) => {
            let path = format!("{path}[]");
            for item in items {
                check(item, &path, report);
            }
        }
        // A section whose keys are all commented out.
        (Shape::Section | Shape::Free, Value::Scalar { .. }) if is_null => {}
        (Shape::Section | Shape::Free, _) => refuse_shape(tree, path, "a mapping", report),
        (Shape::List, _) => refuse_shape(tree, path, "a list", report),
        (_, Value::Scalar { .. }) if !is_null => {}
        (_, _) => refuse_shape(tree, path, "a single value", report),
    }
}

fn check_entry(entry: &mut Entry, section: &str, report: &Report) {
    if keys::children(section).any(|known| known == entry.key) {
        return check(&mut entry.value, &keys::join(section, &entry.key), report);
    }
    let advice = match keys::nearest(section, &entry.key) {
        Some(known) => format!("did you mean `{known}`?"),
        None => format!("known are {}", keys::children(section).collect::<Vec<_>>().join(", ")),
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
