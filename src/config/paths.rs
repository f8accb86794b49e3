//! Paths of keys: segments joined by `.`, with `[]` for each entry of a list, as in `downstream.listeners[].address`.

pub(super) fn join(section: &str, name: &str) -> String {
    if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") }
}

/// Whether a path is this one or below it.
pub(super) fn is_within(path: &str, of: &str) -> bool {
    path.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}
