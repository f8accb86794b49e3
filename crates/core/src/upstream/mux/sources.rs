//! Source of the cached resources: the connected server, another one, or the snapshot of an earlier
//! process.

use std::sync::Arc;
use std::time::Duration;

use super::super::ServerId;
use super::super::inquiry::Inquiries;
use super::super::linger::Want;
use super::super::topic::OriginTraits;
use super::super::topic_set::TopicSet;
use super::Mux;
use crate::cache::{Change, Completeness, Op};
use crate::snapshot_content::{Clock, Content, StoreContent, StoreId};

impl Mux {
    /// Notes a connection to a server. Answers on an earlier connection prove nothing for this one.
    pub fn connected(&mut self, server: &ServerId) {
        let has_plain_versions = self.settings.same_versions || self.has_plain_versions(server);
        self.mark = if has_plain_versions { String::new() } else { server.mark() };
        if self.server.replace(server.clone()).is_some_and(|before| before != *server) {
            self.switched();
        }
        self.asks_plainly = false;
        self.cut_off = None;
        self.inquiries = Inquiries::default();
        self.set_traits(OriginTraits { is_relay: false, refuses_census: false, ..self.traits });
        self.writer.reset_answers();
    }

    /// Whether clients see versions of a server without a mark. After a restart the server of the
    /// restored resources counts: the list may have another first server.
    fn has_plain_versions(&self, server: &ServerId) -> bool {
        let is_first = self.settings.first_server.as_ref().is_none_or(|first| first == server);
        is_first && self.restored_plain.as_ref().is_none_or(|restored| restored == server)
    }

    /// Server of everything that is held; `None` if there were several, or none yet.
    pub fn source(&self) -> Option<&ServerId> {
        let is_of_one = self.topic_sets.values().all(TopicSet::has_one_server);
        self.server.as_ref().filter(|_| is_of_one)
    }

    /// Notes that another server took over. Held resources and known absences stay; open questions
    /// and learned behaviour do not.
    fn switched(&mut self) {
        self.has_answered = false;
        self.renewals = Default::default();
        self.suspects = Default::default();
        let offers = self.settings.same_versions;
        let cache = Arc::clone(self.writer.cache());
        for topic_set in self.topic_sets.values_mut() {
            topic_set.switched(offers, &cache);
        }
    }
}

/// Content that was restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Resources, each counted for each name that it is held under.
    pub resources: usize,
    /// Bytes of these.
    pub bytes: usize,
    /// Resources whose TTL had ended.
    pub ended: usize,
}

impl Mux {
    /// Restores content of an earlier process, as if all clients had just left. It is served,
    /// claimed on the next stream, kept while the control plane is away, and let go after the
    /// linger if nobody wants it.
    ///
    /// `from` is the server of all of it; its versions are claimed there only (R-Up-04). `None` if
    /// there were several. Call it while no stream is open, before the first response.
    pub fn restore(&mut self, content: Content, from: Option<ServerId>, clock: Clock) -> Restored {
        debug_assert!(self.streams.iter().all(Option::is_none), "a stream is open");
        let mut restored = Restored::default();
        // No server has this identity.
        let nobody = || ServerId::from("");
        let is_known = from.is_some();
        let from = from.unwrap_or_else(nobody);
        let is_plain = !content.has_mark(&from.mark());
        self.server = Some(from.clone());
        for store in content.stores {
            self.restore_store(store, clock, &mut restored);
        }
        // Clients may hold resources that are not in the content. A relay without any answer has
        // sent them nothing.
        if is_known || restored.resources > 0 {
            self.restored_plain = Some(if is_plain { from } else { nobody() });
        }
        restored
    }

    fn restore_store(&mut self, store: StoreContent, clock: Clock, restored: &mut Restored) {
        let StoreId { type_url, parameters } = store.id.clone();
        let held = store.restore_at(clock);
        restored.ended += held.ended;
        if held.names.is_empty() && held.wildcard.is_none() {
            return;
        }
        let until = clock.now + self.settings.linger.max(Duration::from_secs(1));
        let traits = self.traits;
        let new = || TopicSet::new(type_url.clone(), [false; 2], traits);
        let topic_set = self.topic_sets.entry(type_url.clone()).or_insert_with(new);
        let topic = topic_set.topic(&parameters);
        for op in &held.ops {
            if let Op::Set { resource, .. } | Op::Alias { resource, .. } = op {
                restored.resources += 1;
                restored.bytes += resource.delta_entry().len();
            }
            topic.note_restored(op);
        }
        let wildcard = held.wildcard.is_some().then_some(None);
        for name in held.names.into_iter().map(Some).chain(wildcard) {
            // Clients may want it already.
            if topic.want_of(name.as_ref()) == Want::No {
                topic.set_want(name.as_ref(), Want::Until(until));
                self.lingering.insert(until, (type_url.clone(), parameters.clone(), name));
            }
        }
        topic_set.arrange();
        let wildcard_known = held.wildcard.filter(|known| *known > Completeness::Unknown);
        let change = Change { ops: held.ops, wildcard_known, ..Change::default() };
        self.apply(&type_url, vec![(parameters, change)], clock.now);
    }
}
