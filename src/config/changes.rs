//! Differences between two configurations, and when each takes effect.
//!
//! Compares key by key, as `check` prints them. Keys declare their effect, which docs/configure.md shows to
//! users.

use std::collections::BTreeSet;

use super::Config;
use super::mapping::{is_within, join};
use super::schema::{self, Effect, Entries, Key, Printed, Section as _, entry};

/// Keys that differ, sorted, each once. Paths are those of the reference, with `[]` for any entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    pub live: Vec<String>,
    pub restart: Vec<String>,
}

impl Changes {
    pub fn is_nothing(&self) -> bool {
        self.live.is_empty() && self.restart.is_empty()
    }

    /// Whether this key, or one below it, changes while the relay runs.
    pub fn concerns(&self, path: &str) -> bool {
        self.live.iter().any(|changed| is_within(changed, path))
    }
}

pub fn diff(old: &Config, new: &Config) -> Changes {
    let mut differing = BTreeSet::new();
    let [old, new] = [old, new].map(|config| {
        let mut entries = Entries::new();
        config.print(&mut entries);
        entries
    });
    compare("", &old, &new, &mut differing);
    let keys = schema::all(Config::KEYS);
    let (restart, live) = differing.into_iter().partition(|path| effect(&keys, path) == Effect::Restart);
    Changes { live, restart }
}

fn compare(section: &str, old: &Entries, new: &Entries, differing: &mut BTreeSet<String>) {
    let names: BTreeSet<&str> = old.iter().chain(new).map(|(name, _)| *name).collect();
    for name in names {
        let path = join(section, name);
        match (entry(old, name), entry(new, name)) {
            (old, new) if old == new => {}
            (Some(Printed::Section(old)), Some(Printed::Section(new))) => {
                compare(&path, old, new, differing);
            }
            (Some(Printed::Sections(old)), Some(Printed::Sections(new))) => {
                compare_lists(&path, old, new, differing);
            }
            _ => _ = differing.insert(path),
        }
    }
}

fn compare_lists(path: &str, old: &[Entries], new: &[Entries], differing: &mut BTreeSet<String>) {
    if old.len() != new.len() {
        differing.insert(path.to_owned());
        return;
    }
    for (old, new) in old.iter().zip(new) {
        compare(&format!("{path}[]"), old, new, differing);
    }
}

/// Effect of the key, or else of its section or list.
fn effect(keys: &[(String, &Key)], path: &str) -> Effect {
    let declared = keys.iter().filter(|(of, _)| is_within(path, of));
    let declared = declared.filter_map(|(of, key)| Some((of.len(), key.effect?)));
    declared.max_by_key(|(length, _)| *length).map_or(Effect::Restart, |(_, effect)| effect)
}
