//! Server that a connection leads to, and the change from one to another.

use std::sync::Arc;

use super::super::ServerId;
use super::super::inquiry::Inquiries;
use super::super::topic::OriginHabits;
use super::super::topic_set::TopicSet;
use super::Mux;

impl Mux {
    /// A connection to a server stands. What the origin answered on the last one says nothing of whether it answers on this.
    pub fn connected(&mut self, server: &ServerId) {
        let has_plain_versions = self.settings.same_versions || self.has_plain_versions(server);
        self.mark = if has_plain_versions { String::new() } else { server.mark() };
        if let Some(before) = self.server.replace(server.clone()).filter(|before| before != server) {
            self.switched(&before, server);
        }
        self.asks_plainly = false;
        self.cut_off = None;
        self.inquiries = Inquiries::default();
        self.set_habits(OriginHabits { is_relay: false, refuses_census: false, ..self.habits });
        self.writer.unheard();
    }

    /// Whether clients are told versions of a server without a mark. Those of an earlier process hold what was restored: there the first
    /// server in the list may be another one than it was.
    fn has_plain_versions(&self, server: &ServerId) -> bool {
        let is_first = self.settings.first_server.as_ref().is_none_or(|first| first == server);
        is_first && self.restored_plain.as_ref().is_none_or(|restored| restored == server)
    }

    /// The server that gave everything that is held; `None` if there were several, or none yet.
    pub fn source(&self) -> Option<&ServerId> {
        let is_of_one = self.topic_sets.values().all(TopicSet::has_one_server);
        self.server.as_ref().filter(|_| is_of_one)
    }

    /// Another server takes the place of the last one. What is held stays, and so does what the last server said is absent; what it
    /// left open, and how it behaved, says nothing of this one.
    fn switched(&mut self, from: &ServerId, to: &ServerId) {
        self.is_heard = false;
        self.renewals = Default::default();
        self.suspects = Default::default();
        let offers = self.settings.same_versions;
        let cache = Arc::clone(self.writer.cache());
        for topic_set in self.topic_sets.values_mut() {
            topic_set.switched(from, to, offers, &cache);
        }
    }
}
