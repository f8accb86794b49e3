//! Keys of the file that are not declared.

use super::errors::{near, quoted};
use super::place::Place;
use super::schema::Key;

/// Reports the keys of a section that are not among these.
pub(super) fn unknown_keys(section: &Place<'_>, keys: &'static [Key]) {
    let known: Vec<&str> = keys.iter().map(|key| key.name).collect();
    for (name, key) in section.children().filter(|(name, _)| !known.contains(name)) {
        let nearest = nearest(section, &known, name);
        // A name near a known one is a slip.
        let may_be_ignored = nearest.is_none() && is_key_like(name) && !is_security(key.path());
        let advice = match nearest {
            Some(known) => format!("did you mean `{known}`?"),
            None => format!("known are {}", known.join(", ")),
        };
        let message = format!("unknown key {} {}; {advice}", quoted(name), place(section.path()));
        section.report().unknown_key(key.line(), may_be_ignored, &message);
    }
}

/// Likely intended key: a near name in this section, else this name elsewhere.
fn nearest(section: &Place<'_>, known: &[&str], name: &str) -> Option<String> {
    if let Some(known) = near(known.iter().copied(), name) {
        return Some(known.to_owned());
    }
    let all = section.report().known.iter();
    let elsewhere = all.filter(|path| path.rsplit('.').next() == Some(name));
    elsewhere.min_by_key(|path| !path.starts_with(section.path())).cloned()
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

fn place(section: &str) -> String {
    if section.is_empty() { "at the top level".to_owned() } else { format!("in `{section}`") }
}
