//! One request, and the whole answer to it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use anyhow::bail;

use super::conversation::Conversation;
use super::ended::Ended;
use super::request::{Asker, Subscription};
use super::response::{Found, Update};
use super::server::Server;
use super::transport::Transport;

/// Nothing more has come for this long: the answer to a wildcard is taken for complete, as streams have no mark for its
/// end (R-Up-22).
const QUIET: Duration = Duration::from_millis(300);

/// Request, and the server that it goes to.
#[derive(Clone, Debug)]
pub struct Query {
    /// The server.
    pub server: Server,
    /// How to ask.
    pub transport: Transport,
    /// As whom to ask.
    pub asker: Asker,
    /// The resources.
    pub asked: Subscription,
    /// How long to wait for the whole answer.
    pub timeout: Duration,
}

/// Result of a query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Resources that exist.
    pub found: BTreeMap<String, Found>,
    /// Names that were asked for and do not exist.
    pub absent: BTreeSet<String>,
    /// Names that were asked for and were not answered in time.
    pub unanswered: BTreeSet<String>,
    /// The words with which the server ended the conversation before it had answered all, or put it off.
    pub reason: Option<String>,
}

/// Asks and waits for the whole answer.
///
/// # Errors
///
/// Server that cannot be reached or speaks no xDS, with the remedy where there is one.
pub async fn get(query: Query) -> anyhow::Result<Answer> {
    let Query { server, transport, asker, asked, timeout } = query;
    let mut answer = Answer { unanswered: asked.names.clone(), ..Answer::default() };
    let opened = Conversation::open(&server, transport, &asker, &asked, &HashMap::new()).await;
    let mut conversation = opened.map_err(|ended| ended.explain(transport))?;
    match tokio::time::timeout(timeout, answer.take_all(&mut conversation, transport, &asked)).await {
        Ok(result) => result.map_err(|ended| ended.explain(transport))?,
        Err(_) if asked.names.is_empty() => {
            let why = answer.reason.map(|words| format!(": {words}")).unwrap_or_default();
            bail!("{} has not answered within {timeout:?}{why}", server.uri())
        }
        Err(_) => {}
    }
    Ok(answer)
}

impl Answer {
    async fn take_all(
        &mut self,
        conversation: &mut Conversation,
        transport: Transport,
        asked: &Subscription,
    ) -> Result<(), Ended> {
        let mut first = true;
        while first || asked.names.is_empty() || !self.unanswered.is_empty() {
            let next = if first || !asked.names.is_empty() {
                conversation.next(asked).await
            } else {
                let Ok(next) = tokio::time::timeout(QUIET, conversation.next(asked)).await else { break };
                next
            };
            let update = match next {
                Ok(update) => update,
                Err(Ended::NotYet(words)) => {
                    self.reason = Some(words);
                    continue;
                }
                // A relay has said all that it holds.
                Err(ended) if ended.is_unavailable() && !asked.names.is_empty() => {
                    self.reason = Some(ended.to_string());
                    break;
                }
                Err(ended) => return Err(ended),
            };
            first = false;
            self.reason = None;
            let is_whole = update.is_whole(asked);
            self.take(update, asked);
            // A poll has one answer, and so has everything of a type with full states.
            if transport == Transport::Rest || is_whole {
                break;
            }
        }
        Ok(())
    }

    fn take(&mut self, update: Update, asked: &Subscription) {
        for (name, found) in update.found {
            self.unanswered.remove(&name);
            self.absent.remove(&name);
            self.found.insert(name, found);
        }
        for removed in update.removed {
            let held = self.found.get(&removed.name);
            // A variant that is not held says nothing of the others.
            if !removed.is(held.and_then(|held| held.constraints.as_ref())) {
                continue;
            }
            let name = removed.name;
            self.unanswered.remove(&name);
            self.found.remove(&name);
            if asked.names.contains(&name) {
                self.absent.insert(name);
            }
        }
    }
}
