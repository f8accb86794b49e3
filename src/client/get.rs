//! One request and the whole answer to it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use anyhow::bail;

use super::conversation::{Conversation, Query};
use super::ended::Ended;
use super::request::Subscription;
use super::response::{Found, Update};
use super::transport::Transport;

/// Silence after which the answer to a wildcard counts as complete: streams do not mark its end (R-Up-22).
const QUIET: Duration = Duration::from_millis(300);

/// Answer to a query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Resources that exist.
    pub found: BTreeMap<String, Found>,
    /// Names that were asked for and do not exist.
    pub absent: BTreeSet<String>,
    /// Names that were asked for and were not answered in time.
    pub unanswered: BTreeSet<String>,
    /// Reason why the answer is not complete, in the words of the server if it gave any.
    pub reason: Option<String>,
}

/// Asks, and waits up to `timeout` for the whole answer.
///
/// # Errors
///
/// Server that cannot be reached, speaks no xDS or has not answered, with the remedy if there is one.
pub async fn get(query: Query, timeout: Duration) -> anyhow::Result<Answer> {
    let Query { server, transport, asked, .. } = &query;
    let mut answer = Answer { unanswered: asked.names.clone(), ..Answer::default() };
    let opened = Conversation::open(&query, &HashMap::new()).await;
    let mut conversation = opened.map_err(|ended| ended.explain(*transport))?;
    let all = answer.take_all(&mut conversation, *transport, asked);
    match tokio::time::timeout(timeout, all).await {
        Ok(result) => result.map_err(|ended| ended.explain(*transport))?,
        Err(_) if asked.names.is_empty() => {
            let why = answer.reason.map(|words| format!(": {words}")).unwrap_or_default();
            bail!("{} has not answered within {timeout:?}{why}", server.uri())
        }
        Err(_) => {}
    }
    Ok(answer)
}

impl Answer {
    /// Whether everything that was asked for exists and is here.
    pub fn is_whole(&self) -> bool {
        self.absent.is_empty() && self.unanswered.is_empty() && self.reason.is_none()
    }

    async fn take_all(
        &mut self,
        conversation: &mut Conversation,
        transport: Transport,
        asked: &Subscription,
    ) -> Result<(), Ended> {
        let mut is_first = true;
        while is_first || !self.unanswered.is_empty() || asked.names.is_empty() {
            let next = if is_first || !self.unanswered.is_empty() {
                conversation.next().await
            } else {
                let Ok(next) = tokio::time::timeout(QUIET, conversation.next()).await else { break };
                next
            };
            let update = match next {
                Ok(update) => update,
                Err(Ended::NotYet(words)) => {
                    self.reason = Some(words);
                    continue;
                }
                // A relay has sent everything that it holds.
                Err(ended) if ended.is_unavailable() && !asked.names.is_empty() => {
                    self.reason = Some(ended.to_string());
                    break;
                }
                Err(ended) => return Err(ended),
            };
            is_first = false;
            self.reason = None;
            let is_whole = update.is_whole(asked);
            self.take(update, asked);
            // A poll has one answer, and so has all of a type whose responses are full states.
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
