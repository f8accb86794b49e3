//! Resources that are held when another server takes the place of the last one.

use std::sync::Arc;

use super::super::ServerId;
use super::Topic;
use crate::cache::{Op, Snapshot, View};
use crate::resource::{Name, Resource};

impl Topic {
    /// Another server takes the place of the last one; `servers` are both, unless versions of the one are offered to the other.
    pub(in crate::upstream) fn switched(
        &mut self,
        servers: Option<(&ServerId, &ServerId)>,
        snapshot: &Snapshot,
    ) {
        self.rivals.clear();
        if let Some((from, to)) = servers {
            let own = |view, held: &Arc<Resource>| (view, held.name().clone());
            let named = snapshot.entries().filter_map(|entry| {
                snapshot.held(View::Named, entry.name().as_str()).map(|held| own(View::Named, held))
            });
            let members = snapshot.members().map(|held| own(View::Wildcard, held));
            self.provenance.switch(from, to, members.chain(named));
        }
    }

    /// Server that a resource came from, if that is not the present one.
    pub(in crate::upstream) fn server_of(&self, view: View, name: &Name) -> Option<ServerId> {
        self.provenance.of(view, name)
    }

    /// Whether everything came from the present server.
    pub(in crate::upstream) fn has_one_server(&self) -> bool {
        self.provenance.is_empty()
    }

    /// Members are held that another topic holds.
    pub(in crate::upstream) fn share_provenance(&mut self, of: &Self, held: &[Op]) {
        for name in held.iter().map(Op::name) {
            self.provenance.share(View::Wildcard, name, of.server_of(View::Wildcard, name));
        }
    }
}
