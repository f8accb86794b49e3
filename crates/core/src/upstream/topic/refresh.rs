//! Resources that are asked for anew although they are held.

use super::super::StreamId;
use super::{Renewal, Topic, VIEWS};
use crate::cache::{Snapshot, View};
use crate::resource::{Collection, Name};

impl Topic {
    /// Has what is held of a name, or of all, asked for without its version on the streams that carry it, which are opened anew.
    pub(in crate::upstream) fn refresh(
        &mut self,
        name: Option<&Name>,
        homes: [Option<StreamId>; 2],
        snapshot: &Snapshot,
    ) {
        for view in VIEWS {
            if !self.wants(view) {
                continue;
            }
            let held: Vec<Name> = match name {
                Some(name) => {
                    let held = snapshot.held(view, name.as_str()).is_some();
                    let asks = view == View::Named && self.covers_by_name(name);
                    if !held && !asks {
                        continue;
                    }
                    vec![name.clone()]
                }
                None if view == View::Wildcard => {
                    snapshot.members().map(|held| held.name().clone()).collect()
                }
                None => snapshot.entries().map(|entry| entry.name().clone()).collect(),
            };
            let held = held.into_iter().filter(|name| snapshot.held(view, name.as_str()).is_some());
            held.for_each(|name| self.provenance.ask_anew(view, name));
            if let Some(home) = homes[view as usize] {
                self.renewals[home as usize].insert(Renewal::Doubt);
            }
        }
    }

    /// Whether a name is asked for, by itself or through its collection.
    fn covers_by_name(&self, name: &Name) -> bool {
        let covering = || Collection::covering(name.as_str());
        self.names.contains_key(name)
            || covering().is_some_and(|covering| self.names.contains_key(covering.as_str()))
    }
}
