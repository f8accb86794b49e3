//! Differences between two configurations, and when each takes effect.
//!
//! Compares key by key, as `check` prints them. Keys declare their effect, which docs/configure.md shows to
//! users.

use std::collections::BTreeSet;

use super::Config;
use super::notation::{Nested, Notation as _};
use super::place::{is_within, join};
use super::schema::{self, Effect, Key, Printed, Section as _, entry};

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
    let [old, new] = [old, new].map(Nested::print);
    compare("", old.as_ref(), new.as_ref(), &mut differing);
    let keys = schema::all(Config::KEYS);
    let (restart, live) = differing.into_iter().partition(|path| effect(&keys, path) == Effect::Restart);
    Changes { live, restart }
}

fn compare(path: &str, old: Option<&Printed>, new: Option<&Printed>, differing: &mut BTreeSet<String>) {
    match (old, new) {
        (old, new) if old == new => {}
        (Some(Printed::Section(old)), Some(Printed::Section(new))) => {
            for name in old.iter().chain(new).map(|(name, _)| *name).collect::<BTreeSet<_>>() {
                compare(&join(path, name), entry(old, name), entry(new, name), differing);
            }
        }
        (Some(Printed::List(old)), Some(Printed::List(new))) if old.len() == new.len() => {
            for (old, new) in old.iter().zip(new) {
                compare(&format!("{path}[]"), Some(old), Some(new), differing);
            }
        }
        _ => _ = differing.insert(path.to_owned()),
    }
}

/// Effect of the key, or else of its section or list.
fn effect(keys: &[(String, &Key)], path: &str) -> Effect {
    let declared = keys.iter().filter(|(of, _)| is_within(path, of));
    let declared = declared.filter_map(|(of, key)| Some((of.len(), key.effect?)));
    declared.max_by_key(|(length, _)| *length).map_or(Effect::Restart, |(_, effect)| effect)
}
