//! Server that a connection leads to, and the change from one to another.

use std::sync::Arc;

use super::super::ServerId;
use super::super::topic_set::TopicSet;
use super::Mux;

impl Mux {
    /// A connection to a server stands. What the origin answered on the last one says nothing of whether it answers on this.
    pub fn connected(&mut self, server: &ServerId) {
        let settings = &self.settings;
        let is_first = settings.first_server.as_ref().is_none_or(|first| first == server);
        self.mark = if is_first || settings.same_versions { String::new() } else { server.mark() };
        if let Some(before) = self.server.replace(server.clone()).filter(|before| before != server) {
            self.switched(&before, server);
        }
        self.asks_plainly = false;
        self.cut_off = None;
        self.set_habits(self.habits.of_another());
        self.topic_sets.values_mut().for_each(TopicSet::connected);
        self.writer.unheard();
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
        let offers = self.settings.same_versions;
        let cache = Arc::clone(self.writer.cache());
        for topic_set in self.topic_sets.values_mut() {
            topic_set.switched(from, to, offers, &cache);
        }
    }
}
