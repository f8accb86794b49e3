//! Task that keeps a [`Mux`] connected.
//!
//! Owns the connection, the back-off and the clock. Decides nothing about the protocol: it tells the core
//! what happened, and asks it for the next request when a stream has room for one, so that nothing queues up
//! here.

mod conversation;
mod ended;
mod secondary;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use super::connection::OpenStream;
use super::dial::{Target, dial};
use super::wait::{next_interest, next_tuning, now, sleep_until};
use super::{Backoff, Counters, Mux, ProtocolError, StreamId, Tuner, Tuning, UpstreamState};
use super::{SilenceEvent, SilenceLog};
use crate::cache::{Protocol, Wanted};
use crate::telemetry::{self, LogThrottle};
use crate::tls::client::ClientTls;
use crate::tls::reload::Reloaded;
use conversation::{Conversation, Event};
use ended::{Ended, in_words};

/// Server, and how to connect to it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Server, from [`Transport::endpoint`](super::Transport::endpoint).
    pub endpoint: Endpoint,
    /// TLS settings of an `https://` endpoint. Each connection uses those in force when it begins.
    pub tls: Option<Reloaded<ClientTls>>,
    /// Wait between attempts.
    pub backoff: Backoff,
    /// Largest accepted response in bytes (R-Up-23).
    pub max_message: usize,
    /// Protocol of the server; `None`: delta, and state of the world on connections on which delta is not implemented.
    pub protocol: Option<Protocol>,
}

impl Options {
    /// Returns the defaults for a server, in cleartext.
    pub const fn new(endpoint: Endpoint) -> Self {
        let backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
        Self { endpoint, tls: None, backoff, max_message: 256 << 20, protocol: None }
    }
}

/// Connection to one control plane.
#[derive(Debug)]
pub struct Client {
    mux: Mux,
    options: Options,
    state: watch::Sender<UpstreamState>,
    tuner: Tuner,
    tuning: watch::Receiver<Option<Tuning>>,
    complaints: LogThrottle,
    endings: LogThrottle,
    second_endings: LogThrottle,
    watch_words: LogThrottle,
    relay_complaints: LogThrottle,
    silence: SilenceLog,
    /// Protocol in which the server answered last.
    answered_in: Option<Protocol>,
    /// Numbers of requests and responses at the last check for unanswered subscriptions.
    looked_at: Option<(u64, u64)>,
    /// Time at which to take the rest of the interest, if more is known to be there.
    more_interest: Option<Instant>,
}

impl Client {
    /// Creates a client that does nothing until [`run`](Self::run).
    pub fn new(mux: Mux, options: Options) -> Self {
        let state = watch::Sender::new(UpstreamState::new(now()));
        let (tuner, tuning) = watch::channel(None);
        let (complaints, endings, second_endings, watch_words, relay_complaints) = Default::default();
        let (silence, answered_in, looked_at, more_interest) = Default::default();
        Self {
            mux,
            options,
            state,
            tuner,
            tuning,
            complaints,
            endings,
            second_endings,
            watch_words,
            relay_complaints,
            silence,
            answered_in,
            looked_at,
            more_interest,
        }
    }

    /// Returns the state, now and later.
    pub fn state(&self) -> watch::Receiver<UpstreamState> {
        self.state.subscribe()
    }

    /// Returns a handle to change settings while it runs.
    pub fn tuner(&self) -> Tuner {
        self.tuner.clone()
    }

    /// Returns the counters of events.
    pub const fn counters(&self) -> &Arc<Counters> {
        self.mux.counters()
    }

    /// Connects, and reconnects whenever the connection is lost, until `shutdown`.
    pub async fn run(mut self, shutdown: CancellationToken) {
        shutdown.run_until_cancelled(self.run_on()).await;
    }

    async fn run_on(&mut self) {
        loop {
            let ended = match self.connect().await {
                Ok(channel) => self.converse(channel).await,
                Err(error) => {
                    self.counters().connect_failures.add(1);
                    Ended::Unreachable(error)
                }
            };
            let wait = self.ended(ended);
            self.meanwhile(tokio::time::sleep(wait)).await;
        }
    }

    async fn connect(&mut self) -> Result<Channel, String> {
        let endpoint = self.options.endpoint.clone();
        let target = self.options.tls.as_ref().map_or(Target::Cleartext, |tls| Target::Tls(tls.load()));
        self.meanwhile(dial(endpoint, target)).await
    }

    /// Waits for a future while interest and deadlines are served.
    async fn meanwhile<F: Future>(&mut self, future: F) -> F::Output {
        let cache = Arc::clone(self.mux.cache());
        tokio::pin!(future);
        loop {
            self.mux.on_deadline(now());
            let deadline = self.mux.next_deadline();
            tokio::select! {
                output = &mut future => return output,
                tuning = next_tuning(&mut self.tuning) => self.mux.tune(tuning),
                interest = next_interest(&cache, self.more_interest) => {
                    self.take(interest).await;
                }
                () = sleep_until(deadline) => tokio::task::yield_now().await,
            }
        }
    }

    /// Serves both streams until the primary one ends.
    async fn converse(&mut self, channel: Channel) -> Ended {
        let cache = Arc::clone(self.mux.cache());
        let protocol = self.options.protocol.unwrap_or(Protocol::Delta);
        let mut talk = Conversation::new(channel, protocol, self.options.max_message, self.options.backoff);
        self.connected(protocol);
        let ended = loop {
            if let Some(stream) = self.mux.renewal_due(now()) {
                self.renew(stream, &mut talk);
            }
            talk.secondary.adjust(&mut self.mux, now());
            let interest = next_interest(&cache, self.more_interest);
            let event = talk.next(&self.mux, interest, next_tuning(&mut self.tuning)).await;
            match event {
                Event::Message(stream, message) => {
                    match (stream, self.on_message(stream, message, &mut talk)) {
                        (_, None) => {}
                        (StreamId::Secondary, Some(end)) => {
                            self.counters().stream_failures.add(1);
                            let why = end.reason(self.options.endpoint.uri());
                            talk.secondary.lost(&mut self.mux, &mut self.second_endings, &why);
                        }
                        (StreamId::Primary, Some(Ended::Unfit(Protocol::Delta)))
                            if self.options.protocol.is_none() =>
                        {
                            self.go_on_with_sotw(&mut talk);
                        }
                        (StreamId::Primary, Some(end)) => break end,
                    }
                }
                Event::Room(stream) => self.ask(stream, &talk),
                Event::Interest(interest) => self.take(interest).await,
                Event::Tuning(tuning) => self.mux.tune(tuning),
                Event::Watched(is_answered) => self.origin_says(is_answered),
                Event::Look => self.look_for_silence(),
                // Work that is due may be done in parts: it gives way after each.
                Event::Overslept(pause) => {
                    self.mux.overslept(pause, now());
                    tokio::task::yield_now().await;
                }
                Event::Deadline => {
                    self.mux.on_deadline(now());
                    tokio::task::yield_now().await;
                }
                Event::Nothing => tokio::task::yield_now().await,
            }
        };
        self.mux.closed(StreamId::Primary);
        if matches!(ended, Ended::Failed(_) | Ended::Unfit(_)) {
            self.counters().stream_failures.add(1);
        }
        ended
    }

    /// Hears a message, or the end of a stream. Returns that end, if it is one.
    fn on_message(
        &mut self,
        stream: StreamId,
        message: Option<Result<Bytes, Status>>,
        talk: &mut Conversation,
    ) -> Option<Ended> {
        let message = match message {
            Some(Ok(message)) => message,
            Some(Err(status)) => return Some(Ended::by(&status, talk.protocol(), talk.answered)),
            None => return Some(Ended::orderly(talk.answered)),
        };
        self.learn_if_relay(stream, talk);
        match self.apply(stream, message) {
            Ok(is_of_use) => {
                // An origin of which everything is refused is as good as silent.
                if is_of_use && !std::mem::replace(&mut talk.answered, true) {
                    self.answered();
                }
                talk.secondary.answered |= is_of_use && stream == StreamId::Secondary;
                // A burst of responses is answered with a burst of ACKs.
                self.ask(stream, talk);
                None
            }
            Err(fault) => Some(Ended::Failed(fault.to_string())),
        }
    }

    /// Notes whether the server at the other end of a stream is a relay, which says more of its own origin.
    fn learn_if_relay(&mut self, stream: StreamId, talk: &mut Conversation) {
        if talk.open(stream).is_some_and(OpenStream::is_relay) {
            self.mux.origin_is_relay();
            if talk.watch.begin()
                && talk.protocol() == Protocol::Sotw
                && let Some(unsaid) = self.relay_complaints.say(now())
            {
                let uri = self.options.endpoint.uri();
                tracing::warn!(%uri, unsaid, "the server is a relay, and is asked by state of the world: clients may be shown less than there is; set upstream.servers[].protocol to auto or delta");
            }
            return;
        }
        self.mux.origin_is_no_relay();
        if talk.watch.end() {
            self.origin_says(true);
        }
    }

    /// Sends requests on a stream as far as there is room.
    fn ask(&mut self, stream: StreamId, talk: &Conversation) {
        let Some(open) = talk.open(stream) else { return };
        while self.mux.has_request(stream)
            && let Ok(room) = open.outgoing.try_reserve()
        {
            if let Some(message) = self.mux.next_message(stream, now()) {
                room.send(message);
            }
        }
    }

    /// Reopens a stream on the same connection. Everything is subscribed to anew there.
    fn renew(&mut self, stream: StreamId, talk: &mut Conversation) {
        tracing::debug!(?stream, "opening a stream to the control plane anew");
        self.counters().renewals.add(1);
        self.mux.closed(stream);
        talk.renew(stream);
        if stream == StreamId::Primary {
            self.mux.opened(StreamId::Primary, now());
        }
    }

    /// Goes on with state of the world on a connection whose server does not implement delta. The next connection tries delta
    /// again: the server may have been replaced.
    fn go_on_with_sotw(&mut self, talk: &mut Conversation) {
        self.mux.closed(StreamId::Primary);
        self.mux.set_protocol(Protocol::Sotw);
        talk.speak(Protocol::Sotw);
        self.mux.opened(StreamId::Primary, now());
        self.state.send_modify(|state| state.protocol = Some(Protocol::Sotw));
    }

    /// Takes the interest of clients. If there is more, it waits for the next request upstream, so that the
    /// names of other clients that come until then go first.
    async fn take(&mut self, interest: Vec<Wanted>) {
        let now = now();
        self.mux.interest(interest, now);
        let has_more = self.mux.cache().has_interest();
        self.more_interest = has_more.then(|| now + self.mux.request_interval());
        tokio::task::yield_now().await;
    }

    /// Applies a response. Returns whether it was accepted.
    fn apply(&mut self, stream: StreamId, message: Bytes) -> Result<bool, ProtocolError> {
        let begun = now();
        let of_no_use =
            |counters: &Counters| counters.nacks_sent.get() + counters.unrequested_responses.get();
        let before = of_no_use(self.counters());
        let result = self.mux.on_message(stream, message, begun);
        let done = now();
        telemetry::upstream_applied(done.saturating_duration_since(begun));
        result?;
        let is_of_use = of_no_use(self.counters()) == before;
        if is_of_use {
            self.state.send_if_modified(|state| state.accepted(done));
        }
        Ok(is_of_use)
    }

    fn connected(&mut self, protocol: Protocol) {
        self.mux.connected();
        self.mux.set_protocol(protocol);
        self.mux.opened(StreamId::Primary, now());
        let mut again = false;
        self.state.send_modify(|state| {
            again = state.connected(now());
            state.protocol = Some(protocol);
        });
        self.counters().connects.add(1);
        self.counters().reconnects.add(u64::from(again));
        let uri = self.options.endpoint.uri();
        tracing::debug!(%uri, again, "connected to the control plane");
    }

    /// Notes the first response: only now the control plane is known to work.
    fn answered(&mut self) {
        self.state.send_modify(|state| state.answered = true);
        self.report_protocol();
        if let Some(unsaid) = self.complaints.over() {
            tracing::info!(uri = %self.options.endpoint.uri(), unsaid, "the control plane answers again");
        }
    }

    /// Logs the protocol in which the control plane answers, where the relay finds it out and it is another one than before.
    fn report_protocol(&mut self) {
        let protocol = self.state.borrow().protocol;
        let before = std::mem::replace(&mut self.answered_in, protocol);
        if self.options.protocol.is_some() || before == protocol {
            return;
        }
        let uri = self.options.endpoint.uri();
        match (protocol, before) {
            (Some(Protocol::Sotw), _) => tracing::warn!(
                %uri,
                "the control plane does not implement delta ADS (UNIMPLEMENTED); using state of the world. Set upstream.servers[].protocol to sotw if that is how it is meant"
            ),
            (Some(Protocol::Delta), Some(_)) => {
                tracing::info!(%uri, "the control plane implements delta ADS; using delta again");
            }
            (Some(Protocol::Delta) | None, _) => {}
        }
    }

    /// The relay that is the origin says whether its own control plane answers it.
    fn origin_says(&mut self, is_answered: bool) {
        if !self.state.send_if_modified(|state| state.origin_says(is_answered, now())) {
            return;
        }
        if is_answered {
            self.mux.origin_is_back(now());
        }
        let Some(unsaid) = self.watch_words.say(now()) else { return };
        let uri = self.options.endpoint.uri();
        if is_answered {
            tracing::info!(%uri, unsaid, "the relay upstream is answered by its control plane again");
        } else {
            tracing::warn!(%uri, unsaid, "the relay upstream is cut off from its control plane; serving cached resources");
        }
    }

    /// Notes unanswered subscriptions, and logs them after a while.
    fn look_for_silence(&mut self) {
        let now = now();
        let said = Some((self.counters().requests.get(), self.counters().responses.get()));
        // Unanswered requests may end by themselves; nothing else changes without a message.
        if self.looked_at != said || self.state.borrow().unanswered.count > 0 {
            self.looked_at = said;
            let unanswered = self.mux.unanswered();
            self.state.send_if_modified(|state| state.look(unanswered));
        }
        let (told, answers_others) = {
            let state = self.state.borrow();
            (self.silence.look(&state.unanswered, state.last_answer, now), state.answered)
        };
        let hint = match answers_others {
            true => "it answers other types: does it have these resources?",
            false => "does the control plane know this node?",
        };
        let uri = self.options.endpoint.uri();
        match told {
            Some(SilenceEvent::Silent { types, waited }) => tracing::warn!(
                %uri,
                "subscribed to {types} {} s ago as node {}, no answer: {hint}",
                waited.as_secs(),
                self.mux.node_id(),
            ),
            Some(SilenceEvent::Over { waited }) => {
                tracing::info!(%uri, "the control plane answers, {} s after the subscription", waited.as_secs());
            }
            None => {}
        }
    }

    /// Logs the end of a connection, and returns the wait before the next attempt.
    fn ended(&mut self, ended: Ended) -> Duration {
        let uri = self.options.endpoint.uri().clone();
        if matches!(ended, Ended::Lost(_) | Ended::Closed(_)) {
            self.options.backoff.reset();
        }
        let wait = self.options.backoff.next(&mut rand::rng());
        let retry_in = in_words(wait);
        let serving = match self.state.borrow().last_answer {
            Some(_) => "serving cached resources",
            None => "nothing is cached yet",
        };
        let now = now();
        let level = match &ended {
            Ended::Closed(_) => &mut self.endings,
            _ => &mut self.complaints,
        };
        let unsaid = level.say(now);
        let what = match &ended {
            Ended::Unreachable(_) | Ended::Lost(_) => "control plane unreachable",
            Ended::Failed(_) => "no usable answer from the control plane",
            Ended::Unfit(_) | Ended::Closed(_) => "the control plane ended the stream",
        };
        let is_unfit = matches!(ended, Ended::Unfit(_));
        let is_ordinary = matches!(ended, Ended::Closed(_));
        let reason = ended.reason(&uri);
        match unsaid {
            None => {}
            Some(unsaid) if is_unfit => tracing::error!(%uri, retry_in, unsaid, "{reason}"),
            Some(unsaid) if is_ordinary => {
                tracing::info!(%uri, reason, retry_in, unsaid, "{what}; reconnecting")
            }
            Some(unsaid) => tracing::warn!(%uri, reason, retry_in, unsaid, "{what}; {serving}"),
        }
        self.silence.interrupted();
        self.looked_at = None;
        self.state.send_modify(|state| state.lost(reason, now));
        wait
    }
}
