//! Subscriptions that the origin leaves unanswered, over all types.

use super::super::answer::Silence;
use super::super::silence::Unanswered;
use super::Mux;
use crate::cache::View;

impl Mux {
    /// Subscriptions that the origin has not answered on this connection.
    ///
    /// Its cost grows with the names that are subscribed to: it is for a look now and then.
    pub fn unanswered(&self) -> Unanswered {
        let mut all = Unanswered::default();
        for (type_url, topic_set) in &self.topic_sets {
            let silences =
                topic_set.topics.values().flat_map(|topic| View::ALL.map(|view| topic.silence(view)));
            all.add(type_url, silences.fold(Silence::default(), Silence::with), &self.clock);
        }
        all
    }
}
