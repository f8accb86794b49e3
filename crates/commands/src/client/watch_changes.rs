//! A lasting subscription: each change of its resources, over any number of connections.

use std::convert::Infallible;
use std::io::Write as _;
use std::time::{Duration, SystemTime};

use anyhow::bail;
use deltafan_transport::terminal::printable;
use tokio::time::Instant;

use super::backoff;
use super::client_request::Query;
use super::conversation::Conversation;
use super::conversation_end::Ended;
use super::resource_tables::{show_change, watch_header};
use super::watched_resources::Held;
use crate::output::Format;
use crate::process::complain;

/// Length of a conversation that resets the wait. Longer than an attempt to connect may take.
const SOUND: Duration = Duration::from_secs(30);
/// Then the user learns that the server has not answered.
const SILENCE: Duration = Duration::from_secs(5);

/// Prints each change, until `stop` is done. Reconnects when a connection is lost.
///
/// # Errors
///
/// Server that has never answered: the first conversation ended without an answer, or `stop` was done before
/// one. Or output that cannot be written.
pub(crate) async fn watch(
    query: &Query,
    format: Format,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let held = Held::new(&query.asked);
    let mut watch = Watch { query, format, held, is_answered: false, words: None, is_lost: false };
    print(&watch_header(format))?;
    tokio::select! {
        error = watch.run() => error.map(|never| match never {}),
        () = stop => match watch.words {
            _ if watch.is_answered => Ok(()),
            Some(words) => bail!("{} has not answered: {words}", query.server.uri),
            None => bail!("{} has not answered", query.server.uri),
        },
    }
}

fn print(text: &str) -> std::io::Result<()> {
    std::io::stdout().write_all(text.as_bytes())
}

struct Watch<'q> {
    query: &'q Query,
    format: Format,
    held: Held,
    is_answered: bool,
    /// Server's text that it has no answer yet.
    words: Option<String>,
    /// Whether the user was told that the connection was lost.
    is_lost: bool,
}

impl Watch<'_> {
    async fn run(&mut self) -> anyhow::Result<Infallible> {
        let (mut backoff, mut told) = (backoff(), None);
        loop {
            let begun = Instant::now();
            let Err(error) = self.converse().await;
            // An error of the output ends the watch.
            let ended = error.downcast::<Ended>()?;
            if !self.is_answered {
                return Err(ended.explain(self.query.transport));
            }
            if begun.elapsed() >= SOUND {
                backoff.reset();
                told = None;
            }
            let wait = backoff.next(&mut rand::rng());
            let why = printable(&ended.to_string());
            // A relay ends an observer's stream whenever it lacks a part. Report that once.
            if told.as_ref() != Some(&why) {
                complain(format_args!("deltafan: {why}; connecting again in {:.1} s", wait.as_secs_f64()));
                (told, self.is_lost) = (Some(why), true);
            }
            tokio::time::sleep(wait).await;
        }
    }

    async fn converse(&mut self) -> anyhow::Result<Infallible> {
        let mut conversation = Conversation::open(self.query, &self.held).await?;
        // Once per conversation.
        let mut is_waiting = false;
        loop {
            let quiet = if is_waiting || self.is_answered { Duration::MAX } else { SILENCE };
            let update = match conversation.next(quiet).await {
                Ok(Some(update)) => update,
                Ok(None) => {
                    is_waiting = true;
                    complain("deltafan: connected; the server has not answered yet");
                    continue;
                }
                Err(Ended::NotYet(words)) => {
                    if !std::mem::replace(&mut is_waiting, true) {
                        complain(format_args!("deltafan: no answer yet: {}", printable(&words)));
                    }
                    self.words = Some(words);
                    continue;
                }
                Err(ended) => return Err(ended.into()),
            };
            self.is_answered = true;
            if std::mem::take(&mut self.is_lost) {
                complain("deltafan: connected again");
            }
            for change in self.held.apply(update, &self.query.asked) {
                print(&show_change(&change, &self.query.asked.type_url, SystemTime::now(), self.format)?)?;
            }
        }
    }
}
