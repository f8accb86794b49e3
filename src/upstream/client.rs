//! Task that keeps a [`Mux`] connected.
//!
//! Owns the connection, the back-off and the clock. Decides nothing about the protocol: it tells the core
//! what happened, and asks it for the next request when a stream has room for one, so that nothing queues up
//! here.

use std::future::{Future, pending};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::connection::{OpenStream, status_text};
use super::dial::{Target, dial};
use super::relay_watch::RelayWatch;
use super::wait::{Clock, next_interest, next_tuning, now, sleep_until};
use super::{Backoff, Counters, Mux, ProtocolError, StreamId, Tuner, Tuning, UpstreamState};
use super::{SilenceEvent, SilenceLog};
use crate::cache::Wanted;
use crate::fairness::MESSAGES_IN_A_ROW;
use crate::proto::DeltaDiscoveryRequest;
use crate::telemetry::{self, LogThrottle};
use crate::tls::client::ClientTls;
use crate::tls::reload::Reloaded;

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
}

impl Options {
    /// Returns the defaults for a server, in cleartext.
    pub const fn new(endpoint: Endpoint) -> Self {
        let backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
        Self { endpoint, tls: None, backoff, max_message: 256 << 20 }
    }
}

/// ACKs that may wait for the transport before responses are no longer read.
const ACKS: usize = 256;

/// Next event on a connection.
enum Event {
    Message(StreamId, Option<Result<Bytes, Status>>),
    Room(StreamId),
    Interest(Vec<Wanted>),
    Tuning(Tuning),
    /// Word of the relay at the other end.
    Watched(bool),
    Timer,
    Look,
    Nothing,
}

/// End of a connection, with its reason.
enum Ended {
    /// No connection. The back-off grows.
    Unreachable(String),
    /// No response, or a malformed one. The back-off grows.
    Failed(String),
    /// The server does not implement delta ADS. The back-off grows, and retrying helps little.
    Unfit,
    /// An error after responses. The back-off begins anew.
    Lost(String),
    /// An orderly end after responses (gRFC A57). The back-off begins anew.
    Closed(String),
}

/// Time between two checks for unanswered subscriptions. A refusal of the stream takes a round trip, and
/// comes before the first check.
const LOOK: Duration = Duration::from_secs(1);

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
    silence: SilenceLog,
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
        let (complaints, endings, second_endings, watch_words) = Default::default();
        let (silence, looked_at, more_interest) = Default::default();
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
            silence,
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
        let mut primary = OpenStream::on(channel.clone(), self.options.max_message);
        let mut watch = RelayWatch::new(channel.clone());
        let mut secondary = Secondary::new(channel, &self.options);
        self.connected();
        let mut answered = false;
        let mut clock = Clock::new(now());
        // Messages read in a row; after [`MESSAGES_IN_A_ROW`] everything else gets a turn.
        let mut messages = 0;
        let mut look_at = now() + LOOK;
        let mut insists = false;
        let ended = loop {
            if let Some(stream) = self.mux.renewal_due(now()) {
                watch.restart();
                self.renew(stream, &mut primary, &mut secondary);
            }
            secondary.adjust(&mut self.mux, now());
            let retry = secondary.retry_at.filter(|_| secondary.open.is_none() && self.mux.wants_secondary());
            let deadline = self.mux.next_deadline().into_iter().chain(retry).min();
            let says = StreamId::ALL.map(|stream| self.mux.has_request(stream));
            let (second_in, second_out) = match &mut secondary.open {
                Some(open) => (Some(&mut open.incoming), Some(&open.outgoing)),
                None => (None, None),
            };
            // Fair among themselves, whichever is ready.
            let others = async {
                tokio::select! {
                    room = room(Some(&primary.outgoing)), if says[0] => {
                        drop(room);
                        Event::Room(StreamId::Primary)
                    }
                    room = room(second_out), if says[1] => {
                        drop(room);
                        Event::Room(StreamId::Secondary)
                    }
                    interest = next_interest(&cache, self.more_interest) => Event::Interest(interest),
                    tuning = next_tuning(&mut self.tuning) => Event::Tuning(tuning),
                    word = watch.next() => Event::Watched(word),
                    () = clock.wait(deadline) => Event::Timer,
                    () = sleep_until(Some(look_at)) => Event::Look,
                }
            };
            // Messages that have arrived are read before a timer is judged. After many messages everything
            // else gets a turn, and a server that is slow to read ACKs is not sent more and more of them.
            let is_behind = !insists && self.mux.acks_waiting() > ACKS && !primary.outgoing.is_closed();
            let event = if is_behind {
                tokio::select! {
                    biased;
                    event = others => event,
                    () = primary.outgoing.closed() => Event::Nothing,
                }
            } else if messages < MESSAGES_IN_A_ROW {
                let (first, second) = (primary.incoming.next(), next(second_in));
                tokio::select! {
                    biased;
                    message = either(first, second, messages % 2 == 1) => message,
                    event = others => event,
                }
            } else {
                tokio::select! {
                    biased;
                    event = others => event,
                    () = std::future::ready(()) => Event::Nothing,
                }
            };
            messages = if matches!(event, Event::Message(..)) { messages + 1 } else { 0 };
            // Read now and then all the same: the server may have ended the stream.
            insists = matches!(event, Event::Look) || (insists && messages > 0);
            let (stream, message) = match event {
                Event::Message(stream, message) => (stream, message),
                Event::Room(stream) => {
                    self.ask(stream, &primary, &secondary);
                    continue;
                }
                Event::Interest(interest) => {
                    self.take(interest).await;
                    continue;
                }
                Event::Tuning(tuning) => {
                    self.mux.tune(tuning);
                    continue;
                }
                Event::Watched(is_answered) => {
                    self.origin_says(is_answered);
                    continue;
                }
                Event::Timer => {
                    if let Some(pause) = clock.overslept(now()) {
                        self.mux.overslept(pause, now());
                    } else if clock.is_due(deadline, now()) {
                        self.mux.on_deadline(now());
                    }
                    // Work that is due may be done in parts.
                    tokio::task::yield_now().await;
                    continue;
                }
                Event::Look => {
                    look_at = now() + LOOK;
                    self.look_for_silence();
                    continue;
                }
                Event::Nothing => {
                    tokio::task::yield_now().await;
                    continue;
                }
            };
            let end = match message {
                Some(Ok(message)) => {
                    let open = match stream {
                        StreamId::Primary => Some(&primary),
                        StreamId::Secondary => secondary.open.as_ref(),
                    };
                    match open.is_some_and(OpenStream::is_relay) {
                        true => {
                            self.mux.origin_is_relay();
                            watch.begin();
                        }
                        false => {
                            self.mux.origin_is_no_relay();
                            if watch.end() {
                                self.origin_says(true);
                            }
                        }
                    }
                    match self.apply(stream, message) {
                        Ok(is_of_use) => {
                            // An origin of which everything is refused is as good as silent.
                            if is_of_use && !std::mem::replace(&mut answered, true) {
                                self.answered();
                            }
                            secondary.answered |= is_of_use && stream == StreamId::Secondary;
                            // A burst of responses is answered with a burst of ACKs.
                            self.ask(stream, &primary, &secondary);
                            continue;
                        }
                        Err(fault) => Ended::Failed(fault.to_string()),
                    }
                }
                Some(Err(status)) => failed(&status, answered),
                None if answered => Ended::Closed(ENDED.to_owned()),
                None => Ended::Failed(ENDED.to_owned()),
            };
            match (stream, end) {
                (StreamId::Secondary, end) => {
                    self.counters().stream_failures.add(1);
                    let why = self.why(end);
                    secondary.lost(&mut self.mux, &mut self.second_endings, &why);
                }
                (StreamId::Primary, end) => break end,
            }
        };
        self.mux.closed(StreamId::Primary);
        if matches!(ended, Ended::Failed(_) | Ended::Unfit) {
            self.counters().stream_failures.add(1);
        }
        ended
    }

    /// Sends requests on a stream as far as there is room.
    fn ask(&mut self, stream: StreamId, primary: &OpenStream, secondary: &Secondary) {
        let open = match stream {
            StreamId::Primary => Some(primary),
            StreamId::Secondary => secondary.open.as_ref(),
        };
        let Some(open) = open else { return };
        while self.mux.has_request(stream)
            && let Ok(room) = open.outgoing.try_reserve()
        {
            if let Some(request) = self.mux.next_request(stream, now()) {
                room.send(request);
            }
        }
    }

    /// Reopens a stream on the same connection. Everything is subscribed to anew there.
    fn renew(&mut self, stream: StreamId, primary: &mut OpenStream, secondary: &mut Secondary) {
        tracing::debug!(?stream, "opening a stream to the control plane anew");
        self.counters().renewals.add(1);
        self.mux.closed(stream);
        secondary.open = None;
        if stream == StreamId::Primary {
            *primary = OpenStream::on(secondary.channel.clone(), self.options.max_message);
            self.mux.opened(StreamId::Primary, now());
        }
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

    fn connected(&mut self) {
        self.mux.connected();
        self.mux.opened(StreamId::Primary, now());
        let mut again = false;
        self.state.send_modify(|state| again = state.connected(now()));
        self.counters().connects.add(1);
        self.counters().reconnects.add(u64::from(again));
        let uri = self.options.endpoint.uri();
        tracing::debug!(%uri, again, "connected to the control plane");
    }

    /// Notes the first response: only now the control plane is known to work.
    fn answered(&mut self) {
        self.state.send_modify(|state| state.answered = true);
        if let Some(unsaid) = self.complaints.over() {
            tracing::info!(uri = %self.options.endpoint.uri(), unsaid, "the control plane answers again");
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

    fn why(&self, ended: Ended) -> String {
        match ended {
            Ended::Unreachable(why) | Ended::Failed(why) | Ended::Lost(why) | Ended::Closed(why) => why,
            Ended::Unfit => format!(
                "the control plane at {} does not implement delta ADS (UNIMPLEMENTED); deltafan needs incremental xDS: have it serve AggregatedDiscoveryService.DeltaAggregatedResources, or set another server in upstream.servers",
                self.options.endpoint.uri()
            ),
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
            Ended::Unfit | Ended::Closed(_) => "the control plane ended the stream",
        };
        let is_unfit = matches!(ended, Ended::Unfit);
        let is_ordinary = matches!(ended, Ended::Closed(_));
        let reason = self.why(ended);
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

/// Secondary stream, open only while something is subscribed to on it.
struct Secondary {
    channel: Channel,
    max_message: usize,
    open: Option<OpenStream>,
    answered: bool,
    backoff: Backoff,
    retry_at: Option<Instant>,
}

impl Secondary {
    fn new(channel: Channel, options: &Options) -> Self {
        let (max_message, mut backoff) = (options.max_message, options.backoff);
        backoff.reset();
        Self { channel, max_message, open: None, answered: false, backoff, retry_at: None }
    }

    fn adjust(&mut self, mux: &mut Mux, now: Instant) {
        match (mux.wants_secondary(), self.open.is_some()) {
            (true, false) if self.retry_at.is_none_or(|at| at <= now) => {
                self.answered = false;
                self.open = Some(OpenStream::on(self.channel.clone(), self.max_message));
                mux.opened(StreamId::Secondary, now);
            }
            (false, true) => {
                self.open = None;
                mux.closed(StreamId::Secondary);
            }
            _ => {}
        }
    }

    /// Notes that the server ended it. The primary lives on: a server may not accept two streams.
    fn lost(&mut self, mux: &mut Mux, complaints: &mut LogThrottle, error: &str) {
        self.open = None;
        mux.closed(StreamId::Secondary);
        if self.answered {
            self.backoff.reset();
        }
        let wait = self.backoff.next(&mut rand::rng());
        self.retry_at = Some(now() + wait);
        if let Some(unsaid) = complaints.say(now()) {
            tracing::warn!(
                error,
                retry_in = in_words(wait),
                unsaid,
                "the second stream to the control plane ended; types with both a wildcard and names wait for it"
            );
        }
    }
}

const ENDED: &str = "it closed the stream without an error";

fn failed(status: &Status, answered: bool) -> Ended {
    match status.code() {
        Code::Unimplemented => Ended::Unfit,
        _ if answered => Ended::Lost(status_text(status)),
        _ => Ended::Failed(status_text(status)),
    }
}

fn in_words(wait: Duration) -> String {
    format!("{:.1} s", wait.as_secs_f64())
}

async fn next(
    stream: Option<&mut (impl futures_util::Stream<Item = Result<Bytes, Status>> + Unpin)>,
) -> Option<Result<Bytes, Status>> {
    match stream {
        Some(stream) => stream.next().await,
        None => pending().await,
    }
}

/// Next message of either stream. If both have one, `prefers_second` decides.
async fn either(
    first: impl Future<Output = Option<Result<Bytes, Status>>>,
    second: impl Future<Output = Option<Result<Bytes, Status>>>,
    prefers_second: bool,
) -> Event {
    tokio::pin!(first, second);
    if prefers_second {
        tokio::select! {
            biased;
            message = second => Event::Message(StreamId::Secondary, message),
            message = first => Event::Message(StreamId::Primary, message),
        }
    } else {
        tokio::select! {
            biased;
            message = first => Event::Message(StreamId::Primary, message),
            message = second => Event::Message(StreamId::Secondary, message),
        }
    }
}

/// Waits for room for one request. A stream that takes none any more reports that as its end.
async fn room(
    outgoing: Option<&mpsc::Sender<DeltaDiscoveryRequest>>,
) -> mpsc::Permit<'_, DeltaDiscoveryRequest> {
    match outgoing {
        Some(outgoing) => match outgoing.reserve().await {
            Ok(room) => room,
            Err(_) => pending().await,
        },
        None => pending().await,
    }
}
