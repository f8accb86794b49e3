//! Checks a tree against the schema: unknown keys, wrong shapes.
//!
//! Reports wrong values and replaces them by `Value::Refused`: readers meet only known keys of the expected
//! shape. Judges no single value.

use super::errors::{Report, near, quoted};
use super::mapping::join;
use super::schema::{self, Key, Shape};
use super::yaml::{Entry, Tree, Value};

pub(super) fn document(root: &mut Tree, keys: &'static [Key], report: &Report) {
    Check { all: schema::all(keys), report }.tree(root, "", Shape::Section(keys));
}

struct Check<'r> {
    all: Vec<(String, &'static Key)>,
    report: &'r Report,
}

impl Check<'_> {
    fn tree(&self, tree: &mut Tree, path: &str, shape: Shape) {
        let is_null = tree.is_null();
        match (shape, &mut tree.value) {
            (_, Value::Refused) | (Shape::Free, Value::Map(_)) => {}
            (Shape::Section(keys), Value::Map(entries)) => {
                for entry in entries {
                    self.entry(entry, path, keys);
                }
            }
            (Shape::Sections(keys), Value::List(items)) => {
                self.items(items, path, Shape::Section(keys));
            }
            (Shape::WordOr(_, keys), Value::Map(entries)) => {
                for entry in entries {
                    self.entry(entry, path, keys);
                }
            }
            (Shape::WordOr(word, _), Value::Scalar { text, .. }) if text == word => {}
            (Shape::TextsByKey, Value::Map(entries)) => {
                for entry in entries {
                    self.tree(&mut entry.value, &join(path, &entry.key), Shape::Text);
                }
            }
            (Shape::Texts, Value::List(items)) => self.items(items, path, Shape::Text),
            // A section whose keys are all commented out.
            (Shape::Section(_) | Shape::Free, Value::Scalar { .. }) if is_null => {}
            (Shape::WordOr(word, _), _) => {
                self.refuse_shape(tree, path, &format!("`{word}` or a mapping"));
            }
            (Shape::Section(_) | Shape::Free | Shape::TextsByKey, _) => {
                self.refuse_shape(tree, path, "a mapping")
            }
            (Shape::Sections(_) | Shape::Texts, _) => self.refuse_shape(tree, path, "a list"),
            (_, Value::Scalar { .. }) if !is_null => {}
            (_, _) => self.refuse_shape(tree, path, "a single value"),
        }
    }

    fn items(&self, items: &mut [Tree], list: &str, shape: Shape) {
        let path = format!("{list}[]");
        for item in items {
            self.tree(item, &path, shape);
        }
    }

    fn entry(&self, entry: &mut Entry, section: &str, keys: &'static [Key]) {
        let path = join(section, &entry.key);
        if let Some(key) = schema::children(keys).into_iter().find(|key| key.name == entry.key) {
            return self.tree(&mut entry.value, &path, key.shape);
        }
        let nearest = self.nearest(section, keys, &entry.key);
        // A name near a known one is a slip.
        let may_be_ignored = nearest.is_none() && is_key_like(&entry.key) && !is_security(&path);
        let advice = match nearest {
            Some(known) => format!("did you mean `{known}`?"),
            None => format!("known are {}", names(keys).join(", ")),
        };
        let message = format!("unknown key {} {}; {advice}", quoted(&entry.key), place(section));
        self.report.unknown_key(entry.line, may_be_ignored, &message);
        entry.value.value = Value::Refused;
    }

    fn refuse_shape(&self, tree: &mut Tree, path: &str, wanted: &str) {
        let subject = if path.is_empty() { "the file".to_owned() } else { format!("`{path}`") };
        self.report.at(tree.line, &format!("{subject} must be {wanted}, not {}", tree.describe()));
        tree.value = Value::Refused;
    }

    /// Likely intended key: a near name in this section, else this name elsewhere.
    fn nearest(&self, section: &str, keys: &'static [Key], name: &str) -> Option<String> {
        if let Some(known) = near(names(keys), name) {
            return Some(known.to_owned());
        }
        let elsewhere = self.all.iter().filter(|(_, key)| key.name == name);
        elsewhere.map(|(path, _)| path).min_by_key(|path| !path.starts_with(section)).cloned()
    }
}

/// Whether some version could have this key. A merge key (`<<`) is none.
fn is_key_like(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// Whether a key may decide who is trusted with what, by its own name or its section's.
fn is_security(path: &str) -> bool {
    const SECTIONS: [&str; 6] =
        ["listeners", "servers", "authorization", "groups", "dynamic_parameters", "admin"];
    const PARTS: [&str; 16] = [
        "tls", "ssl", "mtls", "auth", "cert", "secret", "token", "spiffe", "peer", "rbac", "allow", "deny",
        "access", "encrypt", "security", "group",
    ];
    path.split('.').any(|part| SECTIONS.contains(&part.trim_end_matches("[]")))
        || PARTS.iter().any(|part| path.contains(part))
}

fn names(keys: &'static [Key]) -> Vec<&'static str> {
    schema::children(keys).into_iter().map(|key| key.name).collect()
}

fn place(section: &str) -> String {
    if section.is_empty() { "at the top level".to_owned() } else { format!("in `{section}`") }
}
