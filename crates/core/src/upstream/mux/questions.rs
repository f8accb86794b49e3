//! Choice of the questions for a probe of another server.

use super::super::probe::Question;
use super::super::topic::Topic;
use super::super::topic_set::snapshot;
use super::Mux;
use crate::cache::View;
use crate::proto::Node;
use crate::resource::{Name, Parameters, TypeUrl};

/// Most questions of one kind. A server that does not answer one is asked the next.
const QUESTIONS: usize = 3;
/// Names of a topic that are examined.
const LOOKED_AT: usize = 64;

impl Mux {
    /// Returns questions, the best first: names that exist, then wildcards, then unknown names.
    /// Many servers ignore names that do not exist (O2).
    pub fn questions(&self) -> Vec<Question> {
        let (mut held, mut wildcards, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
        // Every server understands those without parameters.
        for is_plain in [true, false] {
            for (type_url, topic_set) in &self.topic_sets {
                let topics = topic_set.topics.iter();
                for (parameters, topic) in topics.filter(|(of, _)| of.is_empty() == is_plain) {
                    let question = |name, is_held| {
                        let (type_url, parameters) = (type_url.clone(), parameters.clone());
                        Question { type_url, parameters, name, is_held }
                    };
                    let (exists, open) = self.names_to_ask(type_url, parameters, topic);
                    held.extend(exists.map(|name| question(Some(name), true)));
                    unknown.extend(open.map(|name| question(Some(name), false)));
                    if topic.wants(View::Wildcard) {
                        let members = snapshot(self.writer.cache(), type_url, parameters).member_count();
                        wildcards.push(question(None, members > 0));
                    }
                }
            }
        }
        [held, wildcards, unknown].into_iter().flat_map(|of| of.into_iter().take(QUESTIONS)).collect()
    }

    /// Returns a name that exists, and one of which nothing is known.
    fn names_to_ask(
        &self,
        type_url: &TypeUrl,
        parameters: &Parameters,
        topic: &Topic,
    ) -> (Option<Name>, Option<Name>) {
        if topic.names.is_empty() {
            return (None, None);
        }
        let snapshot = snapshot(self.writer.cache(), type_url, parameters);
        let is_held = |name: &&Name| snapshot.held(View::Named, name.as_str()).is_some();
        let names = || topic.names.wanted().map(|(name, _)| name).take(LOOKED_AT);
        (names().find(is_held).cloned(), names().find(|name| !is_held(name)).cloned())
    }

    /// Node of the streams, unless one of a client is lent to them.
    pub const fn node(&self) -> &Node {
        &self.settings.node
    }
}
