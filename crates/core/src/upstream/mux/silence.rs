//! Subscriptions that the origin leaves unanswered, over all types.

use super::super::silence::Unanswered;
use super::super::stream_subscription::Silence;
use super::Mux;
use crate::cache::View;

impl Mux {
    /// Subscriptions that the origin has not answered on this connection.
    ///
    /// Its cost grows with the names that are subscribed to: it is for a look now and then.
    pub fn unanswered(&self) -> Unanswered {
        let mut all = Unanswered::default();
        for (type_url, topic_set) in &self.topic_sets {
            let subscriptions =
                topic_set.topics.values().flat_map(|topic| View::ALL.map(|view| topic.subscription(view)));
            let silence = subscriptions.flatten().map(|subscription| subscription.silence()).fold(
                Silence::default(),
                |all, one| Silence {
                    count: all.count + one.count,
                    since: all.since.into_iter().chain(one.since).min(),
                    answered: all.answered || one.answered,
                },
            );
            all.add(type_url, silence, &self.clock);
        }
        all
    }
}
