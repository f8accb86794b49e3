//! A lasting subscription: each change of its resources, over any number of connections.

use std::convert::Infallible;
use std::time::Duration;

use anyhow::bail;
use tokio::time::Instant;

use super::backoff;
use super::client_request::Query;
use super::conversation::Conversation;
use super::conversation_end::Ended;
use super::watched_resources::{Change, Held};

/// Length of a conversation that resets the wait. Longer than an attempt to connect may take.
const SOUND: Duration = Duration::from_secs(30);
/// Then the user learns that the server has not answered.
const SILENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) enum News {
    Change(Change),
    /// Connected without an answer yet. With the server's text, if any.
    Waiting(Option<String>),
    /// The connection ended; the next attempt follows after this time.
    Lost(String, Duration),
    /// An answer came after [`Self::Lost`].
    Back,
}

/// Reports each change to `tell`, until `stop` is done. Reconnects when a connection is lost.
///
/// # Errors
///
/// Server that has never answered: the first conversation ended without an answer, or `stop` was done before
/// one. Or an error of `tell`.
pub(crate) async fn watch(
    query: &Query,
    stop: impl Future<Output = ()>,
    mut tell: impl FnMut(News) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut state = State::default();
    let failed = tokio::select! {
        error = state.run(query, &mut tell) => Some(error),
        () = stop => None,
    };
    match failed {
        Some(error) => Err(error),
        None if state.is_answered => Ok(()),
        None => {
            let why = state.words.map(|words| format!(": {words}")).unwrap_or_default();
            bail!("{} has not answered{why}", query.server.uri)
        }
    }
}

#[derive(Default)]
struct State {
    held: Held,
    is_answered: bool,
    /// Server's text that it has no answer yet.
    words: Option<String>,
    is_lost: bool,
    told: Option<String>,
}

impl State {
    /// Returns the error that ends the watch.
    async fn run(
        &mut self,
        query: &Query,
        tell: &mut impl FnMut(News) -> anyhow::Result<()>,
    ) -> anyhow::Error {
        let mut backoff = backoff();
        loop {
            let begun = Instant::now();
            let Err(error) = self.converse(query, tell).await;
            // An error of `tell` ends the watch.
            let ended = match error.downcast::<Ended>() {
                Ok(ended) => ended,
                Err(error) => return error,
            };
            if !self.is_answered {
                return ended.explain(query.transport);
            }
            if begun.elapsed() >= SOUND {
                backoff.reset();
                self.told = None;
            }
            let wait = backoff.next(&mut rand::rng());
            let why = ended.to_string();
            // A relay ends an observer's stream whenever it lacks a part. Report that once.
            if self.told.as_ref() != Some(&why) {
                if let Err(error) = tell(News::Lost(why.clone(), wait)) {
                    return error;
                }
                (self.told, self.is_lost) = (Some(why), true);
            }
            tokio::time::sleep(wait).await;
        }
    }

    async fn converse(
        &mut self,
        query: &Query,
        tell: &mut impl FnMut(News) -> anyhow::Result<()>,
    ) -> anyhow::Result<Infallible> {
        let mut conversation = Conversation::open(query, &self.held.versions()).await?;
        // Once per conversation.
        let mut is_waiting = false;
        loop {
            let next = if is_waiting || self.is_answered {
                conversation.next().await
            } else if let Some(next) = conversation.next_unless_quiet(SILENCE).await {
                next
            } else {
                is_waiting = true;
                tell(News::Waiting(None))?;
                continue;
            };
            let update = match next {
                Ok(update) => update,
                Err(Ended::NotYet(words)) => {
                    self.words = Some(words.clone());
                    if !std::mem::replace(&mut is_waiting, true) {
                        tell(News::Waiting(Some(words)))?;
                    }
                    continue;
                }
                Err(ended) => return Err(ended.into()),
            };
            self.is_answered = true;
            if std::mem::take(&mut self.is_lost) {
                tell(News::Back)?;
            }
            for change in self.held.apply(update, &query.asked) {
                tell(News::Change(change))?;
            }
        }
    }
}
