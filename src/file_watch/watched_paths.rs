//! Folders and the entries in them that count.
//!
//! Owns the way from a path to its file: each step is an entry of a folder, and replacing it redirects the
//! path. Reads links, but no files.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

/// The kernel's limit for one path.
const MAX_LINKS: usize = 40;

/// Entries that count, by the real path of their folder.
#[derive(Debug, Default)]
pub struct WatchedPaths(BTreeMap<PathBuf, Entries>);

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Entries {
    names: BTreeSet<OsString>,
    rules: Vec<fn(&OsStr) -> bool>,
}

impl WatchedPaths {
    /// Adds each step on the way to a path. Returns the real path; `None` if it is missing or unreadable.
    ///
    /// Example: `/etc/relay/a.yaml` is a link to `..data/a.yaml`, and `..data` one to `..1`. These count:
    /// `etc` in `/`, `relay` in `/etc`, `a.yaml`, `..data` and `..1` in `/etc/relay`, and `a.yaml` in
    /// `/etc/relay/..1`.
    pub fn add(&mut self, path: &Path) -> Option<PathBuf> {
        let path = std::path::absolute(path).ok()?;
        let mut ahead = Vec::new();
        push_steps(&mut ahead, &path);
        let mut at = PathBuf::new();
        let mut links = 0;
        while let Some(step) = ahead.pop() {
            match step {
                Step::Root => at = PathBuf::from("/"),
                Step::Up => {
                    at.pop();
                }
                Step::Into(name) => {
                    self.0.entry(at.clone()).or_default().names.insert(name.clone());
                    let next = at.join(&name);
                    match fs::read_link(&next) {
                        Ok(target) => {
                            links += 1;
                            if links > MAX_LINKS {
                                return None;
                            }
                            push_steps(&mut ahead, &target);
                        }
                        // It exists, and is no link.
                        Err(error) if error.kind() == ErrorKind::InvalidInput => at = next,
                        Err(_) => return None,
                    }
                }
            }
        }
        Some(at)
    }

    /// Adds a folder with its entries, present and future, for which `counts` holds. Follows those that are
    /// links.
    pub fn add_entries(&mut self, folder: &Path, counts: fn(&OsStr) -> bool) {
        let Some(folder) = self.add(folder) else { return };
        self.0.entry(folder.clone()).or_default().rules.push(counts);
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if counts(&entry.file_name()) && entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
                self.add(&entry.path());
            }
        }
    }

    pub(super) fn into_folders(self) -> impl Iterator<Item = (PathBuf, Entries)> {
        self.0.into_iter()
    }
}

impl Entries {
    pub(super) fn include(&self, name: &OsStr) -> bool {
        self.names.contains(name) || self.rules.iter().any(|counts| counts(name))
    }

    pub(super) fn extend(&mut self, other: Self) {
        self.names.extend(other.names);
        self.rules.extend(other.rules);
    }
}

enum Step {
    Root,
    Up,
    Into(OsString),
}

/// So that the first step is popped first.
fn push_steps(ahead: &mut Vec<Step>, path: &Path) {
    ahead.extend(path.components().rev().filter_map(|component| match component {
        Component::RootDir => Some(Step::Root),
        Component::ParentDir => Some(Step::Up),
        Component::Normal(name) => Some(Step::Into(name.to_owned())),
        Component::CurDir | Component::Prefix(_) => None,
    }));
}
