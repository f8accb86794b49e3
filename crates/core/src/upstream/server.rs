//! Identity of a server, and the server of each held resource.
//!
//! Versions belong to the server that gave them (R-Up-04): "7" of one says nothing of "7" of
//! another. Owns the notes that decide whether a version may be claimed at the connected server.
//! Knows neither streams nor time.
//!
//! A returning client must not count as current because another server gave its version to other
//! content. So clients receive versions of the first server in the list unchanged, and those of
//! others with a mark.
//!
//! Example: a and b came from server A. At B both are foreign. B sends a, which is B's from then
//! on. Back at A, a is foreign and b is A's again, so only the version of b is claimed.

use std::fmt;
use std::sync::Arc;

use foldhash::HashMap;
use xxhash_rust::xxh3;

use crate::cache::{Op, View};
use crate::resource::{Name, Resource};

/// Identity of a server: its URI as configured.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerId(Arc<str>);

impl ServerId {
    /// The URI.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl ServerId {
    /// Suffix of versions of this server: `~` and 8 hexadecimal digits, a hash of the URI. It is
    /// equal in all relays, and after a restart.
    pub(super) fn mark(&self) -> String {
        format!("~{:08x}", xxh3::xxh3_64(self.0.as_bytes()) as u32)
    }
}

impl From<&str> for ServerId {
    fn from(uri: &str) -> Self {
        Self(uri.into())
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Servers of the resources that did not come from the present one.
#[derive(Debug, Default)]
pub(super) struct Provenance(HashMap<(View, Name), ServerId>);

impl Provenance {
    /// Moves from one server to another, with everything held at this moment.
    pub(super) fn switch(
        &mut self,
        from: &ServerId,
        to: &ServerId,
        held: impl Iterator<Item = (View, Name)>,
    ) {
        let before = std::mem::take(&mut self.0);
        let with_server = held.map(|key| {
            let server = before.get(&key).unwrap_or(from).clone();
            (key, server)
        });
        self.0 = with_server.filter(|(_, server)| server != to).collect();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a resource came from another server than the present one.
    pub(super) fn is_foreign(&self, view: View, name: &Name) -> bool {
        !self.0.is_empty() && self.0.contains_key(&(view, name.clone()))
    }

    /// Whether the version of a resource may be claimed at the present server: versions go by names
    /// alone (R-DP-14).
    pub(super) fn may_claim(&self, view: View, held: &Resource) -> bool {
        held.origin_version().is_some() && held.constraints().is_none() && !self.is_foreign(view, held.name())
    }

    /// Server of a foreign resource.
    pub(super) fn of(&self, view: View, name: &Name) -> Option<ServerId> {
        if self.0.is_empty() { None } else { self.0.get(&(view, name.clone())).cloned() }
    }

    /// Notes the server of a resource shared by another topic; `None` is the present one.
    pub(super) fn share(&mut self, view: View, name: &Name, server: Option<ServerId>) {
        match server {
            Some(server) => drop(self.0.insert((view, name.clone()), server)),
            None if self.0.is_empty() => {}
            None => drop(self.0.remove(&(view, name.clone()))),
        }
    }

    /// Notes that a member is now held by its name.
    pub(super) fn hold_by_name(&mut self, name: &Name) {
        let server = self.of(View::Wildcard, name);
        self.share(View::Named, name, server);
    }

    /// Notes changes by the present server.
    pub(super) fn note(&mut self, ops: &[Op]) {
        for op in ops {
            if self.0.is_empty() {
                return;
            }
            match op {
                Op::Set { .. } | Op::Remove { .. } | Op::Forget { .. } | Op::LeaveCollection { .. } => {
                    self.share(op.view(), op.name(), None);
                }
                Op::Alias { name, resource, .. } => {
                    self.share(View::Named, name, None);
                    self.share(View::Named, resource.name(), None);
                }
                Op::Drop { .. }
                | Op::Renew { .. }
                | Op::Complete { .. }
                | Op::Fail { .. }
                | Op::ResendEndpoints { .. } => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(names: &[&str]) -> Vec<(View, Name)> {
        names.iter().map(|name| (View::Named, Name::from(*name))).collect()
    }

    fn foreign(provenance: &Provenance, names: &[&'static str]) -> Vec<&'static str> {
        let is_foreign = |name: &&&str| provenance.is_foreign(View::Named, &Name::from(**name));
        names.iter().filter(is_foreign).copied().collect()
    }

    #[test]
    fn versions_go_back_to_the_server_that_they_came_from() {
        let [first, second] = ["http://a", "http://b"].map(ServerId::from);
        let (all, mut provenance) = (["a", "b", "c"], Provenance::default());
        provenance.switch(&first, &second, keys(&["a", "b"]).into_iter());
        assert_eq!(foreign(&provenance, &all), ["a", "b"]);
        let came = Op::Forget { view: View::Named, name: "a".into() };
        provenance.note(&[came]);
        assert_eq!(foreign(&provenance, &all), ["b"]);
        provenance.switch(&second, &first, keys(&["a", "b", "c"]).into_iter());
        assert_eq!(foreign(&provenance, &all), ["a", "c"], "b came from the first one");
        provenance.switch(&first, &second, keys(&["a", "b", "c"]).into_iter());
        assert_eq!(foreign(&provenance, &all), ["b"]);
    }
}
