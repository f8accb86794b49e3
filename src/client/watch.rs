//! A subscription that lasts: each change of its resources, over as many connections as it takes.

use std::convert::Infallible;
use std::time::Duration;

use tokio::time::Instant;

use super::conversation::Conversation;
use super::ended::Ended;
use super::held::{Change, Held};
use super::request::{Asker, Subscription};
use super::server::Server;
use super::transport::Transport;
use crate::upstream::Backoff;

/// Waits between two connections are up to the first at first, and up to the second at last.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(15));
/// A conversation that lasted for so long was sound: the next wait is short again. Longer than an attempt to connect may take.
const SOUND: Duration = Duration::from_secs(30);
/// Silence after which people are told that they wait.
const SILENCE: Duration = Duration::from_secs(5);

/// Resources to watch, and the server that has them.
#[derive(Clone, Debug)]
pub struct Watch {
    /// The server.
    pub server: Server,
    /// How to ask.
    pub transport: Transport,
    /// As whom to ask.
    pub asker: Asker,
    /// The resources.
    pub asked: Subscription,
}

/// News for the one who watches.
#[derive(Debug)]
pub enum News {
    /// A resource changed.
    Change(Change),
    /// No answer has come yet, with words of the server if there are any.
    Waiting(Option<String>),
    /// The connection ended; the next attempt follows after this time.
    Lost(String, Duration),
    /// An answer came after [`Self::Lost`].
    Back,
}

/// Tells each change until `tell` fails. Connects again when a connection is lost.
///
/// # Errors
///
/// Server that cannot be asked at all: the first conversation ended before an answer. Or an error of `tell`.
pub async fn watch(
    of: &Watch,
    mut tell: impl FnMut(News) -> anyhow::Result<()>,
) -> anyhow::Result<Infallible> {
    let (mut state, mut backoff) = (State::default(), Backoff::new(BACKOFF.0, BACKOFF.1));
    loop {
        let begun = Instant::now();
        let ended = match state.converse(of, &mut tell).await {
            Stop::Ended(ended) => ended,
            Stop::Told(error) => return Err(error),
        };
        if !state.is_answered {
            return Err(ended.explain(of.transport));
        }
        if begun.elapsed() >= SOUND {
            backoff.reset();
            state.told = None;
        }
        let wait = backoff.next(&mut rand::rng());
        let why = ended.to_string();
        // A relay ends a stream that only looks on whenever it lacks a part: that is told once.
        if state.told.as_ref() != Some(&why) {
            tell(News::Lost(why.clone(), wait))?;
            (state.told, state.is_lost) = (Some(why), true);
        }
        tokio::time::sleep(wait).await;
    }
}

/// Reason for the end of a conversation.
enum Stop {
    Ended(Ended),
    /// The one who watches takes no more.
    Told(anyhow::Error),
}

impl From<Ended> for Stop {
    fn from(ended: Ended) -> Self {
        Self::Ended(ended)
    }
}

#[derive(Default)]
struct State {
    held: Held,
    /// Whether the server has ever answered.
    is_answered: bool,
    /// Whether the last news is [`News::Lost`].
    is_lost: bool,
    /// Words of the last [`News::Lost`].
    told: Option<String>,
}

impl State {
    async fn converse(&mut self, of: &Watch, tell: &mut impl FnMut(News) -> anyhow::Result<()>) -> Stop {
        match self.listen(of, tell).await {
            Err(stop) => stop,
            Ok(never) => match never {},
        }
    }

    async fn listen(
        &mut self,
        of: &Watch,
        tell: &mut impl FnMut(News) -> anyhow::Result<()>,
    ) -> Result<Infallible, Stop> {
        let held = self.held.versions();
        let opened = Conversation::open(&of.server, of.transport, &of.asker, &of.asked, &held);
        let mut conversation = opened.await?;
        // Said once for each conversation.
        let mut is_waiting = false;
        loop {
            let next = conversation.next(&of.asked);
            let quiet = tokio::time::sleep(SILENCE);
            tokio::pin!(next, quiet);
            let news = loop {
                tokio::select! {
                    news = &mut next => break news,
                    () = &mut quiet, if !is_waiting && !self.is_answered => {
                        is_waiting = true;
                        tell(News::Waiting(None)).map_err(Stop::Told)?;
                    }
                }
            };
            let update = match news {
                Ok(update) => update,
                Err(Ended::NotYet(words)) => {
                    if !std::mem::replace(&mut is_waiting, true) {
                        tell(News::Waiting(Some(words))).map_err(Stop::Told)?;
                    }
                    continue;
                }
                Err(ended) => return Err(ended.into()),
            };
            self.is_answered = true;
            if std::mem::take(&mut self.is_lost) {
                tell(News::Back).map_err(Stop::Told)?;
            }
            for change in self.held.apply(update, &of.asked) {
                tell(News::Change(change)).map_err(Stop::Told)?;
            }
        }
    }
}
