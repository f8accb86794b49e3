//! Differences between two configurations, and what comes of them while the relay runs.
//!
//! Compares key by key what `check` would print. When a change takes effect is declared with the key; docs/configure.md
//! shows the same to users.

use std::collections::BTreeSet;

use super::Config;
use super::mapping::{is_within, join};
use super::schema::{self, Effect, Entries, Key, Printed, Section as _, entry};

/// Lists whose entries have a name: their order says nothing, and an entry is compared with its namesake.
const NAMED: [(&str, &str); 1] = [("downstream.listeners", "address")];

/// The keys in which two configurations differ, by what comes of it. Paths are those of the reference, with `[]` for any
/// entry of a list; each is there once, in the order of the alphabet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Keys that take effect while the relay runs.
    pub live: Vec<String>,
    /// Keys that do not before it is started again.
    pub restart: Vec<String>,
}

impl Changes {
    /// Whether no key differs.
    pub fn is_nothing(&self) -> bool {
        self.live.is_empty() && self.restart.is_empty()
    }

    /// Whether anything in this section or list, or the key itself, changes while the relay runs.
    pub fn concerns(&self, path: &str) -> bool {
        self.live.iter().any(|changed| is_within(changed, path))
    }
}

/// Compares two configurations key by key.
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
    let name = NAMED.iter().find(|(list, _)| *list == path).map(|(_, name)| *name);
    let pairs: Vec<_> = match name {
        Some(name) => {
            let namesake = |of: &Entries| new.iter().find(|new| entry(new, name) == entry(of, name));
            old.iter().filter_map(|old| Some((old, namesake(old)?))).collect()
        }
        None => old.iter().zip(new).collect(),
    };
    if pairs.len() != old.len() || old.len() != new.len() {
        differing.insert(path.to_owned());
        if name.is_none() {
            return;
        }
    }
    for (old, new) in pairs {
        compare(&format!("{path}[]"), old, new, differing);
    }
}

/// When a change takes effect: as the key says, or else the section or list that it is in.
fn effect(keys: &[(String, &Key)], path: &str) -> Effect {
    let declared = keys.iter().filter(|(of, _)| is_within(path, of));
    let declared = declared.filter_map(|(of, key)| Some((of.len(), key.effect?)));
    declared.max_by_key(|(length, _)| *length).map_or(Effect::Restart, |(_, effect)| effect)
}
