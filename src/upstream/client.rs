//! Task that keeps a [`Mux`] connected.
//!
//! Owns the connection, the back-off and the clock. Decides nothing about the protocol. It reports events to
//! the core, and asks for the next request when a stream has room, so that nothing queues up here.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

mod choice;
mod conversation;
mod messages;
mod report;

use super::link::{Connected, Link, Servers, UnreachableError};
use super::probe::Probes;
use super::wait::{Clock as PauseClock, next_interest, next_once, next_tuning, now};
use super::{
    Backoff, Counters, Failover, Mux, Representative, Restored, ServerChange, ServerCondition, ServerId,
    StreamId, Tuned, UpstreamState,
};
use crate::cache::{Protocol, Wanted};
use crate::snapshot_content::{Clock, Content};

use conversation::{Conversation, Delta, Ended, Event};

/// Subscriptions of one node group at one of several control planes.
#[derive(Debug)]
pub struct Client {
    mux: Mux,
    servers: Arc<Servers>,
    failover: Failover,
    probes: Probes,
    /// Time of the next update of the probes' questions.
    asks_again: Option<Instant>,
    /// Link of the server in use.
    link: Arc<Link>,
    /// Node of one of the group's clients, shown in place of the relay's.
    representative: Option<Arc<Representative>>,
    /// Wait before the streams are reopened.
    backoff: Backoff,
    state: watch::Sender<UpstreamState>,
    tuned: watch::Receiver<Tuned>,
    /// Rule of the node group, for the log; `None` for the relay's own node.
    group: Option<Arc<str>>,
    /// Silence that was logged: its start, and the time of the line.
    silence: Option<(Instant, Instant)>,
    /// Numbers of requests and responses at the last check for unanswered subscriptions.
    looked_at: Option<(u64, u64)>,
    /// Time to take the rest of the interest, if there is more.
    more_interest: Option<Instant>,
    /// Source of an earlier process's resources, until the control plane answers.
    late: Option<oneshot::Receiver<LateRestore>>,
}

/// Late restore of an earlier process's resources, which could not be read before the client ran.
pub struct LateRestore(Box<dyn FnOnce(&mut Client) + Send>);

impl LateRestore {
    /// Creates it from a function that [restores](Client::restore) them.
    pub fn new(restore: impl FnOnce(&mut Client) + Send + 'static) -> Self {
        Self(Box::new(restore))
    }
}

/// Age of the resources when the client began; it has not been connected since.
fn age_at_start(age: Duration, state: &UpstreamState, now: Instant) -> Duration {
    age.saturating_sub(now.saturating_duration_since(state.since))
}

impl std::fmt::Debug for LateRestore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LateRestore")
    }
}

impl Client {
    /// Creates a client that shares connections. It does nothing until [`run`](Self::run).
    pub fn on(mux: Mux, servers: Arc<Servers>, tuned: watch::Receiver<Tuned>) -> Self {
        let link = Arc::clone(servers.link(0));
        let state = watch::Sender::new(UpstreamState::new(now()));
        let (silence, looked_at, more_interest, late) = Default::default();
        Self {
            backoff: link.options().backoff,
            link,
            failover: Failover::new(servers.count(), servers.times()),
            probes: Probes::new(Arc::clone(&servers), Arc::clone(mux.counters())),
            servers,
            asks_again: None,
            mux,
            representative: None,
            state,
            tuned,
            group: None,
            silence,
            looked_at,
            more_interest,
            late,
        }
    }

    /// Names the node group's rule in log lines. With a representative, shows the control plane the node of one
    /// of the group's clients, as sent.
    #[must_use]
    pub fn of_group(mut self, rule: Arc<str>, representative: Option<Arc<Representative>>) -> Self {
        (self.group, self.representative) = (Some(rule), representative);
        self
    }

    /// Accepts an earlier process's resources while it runs, until the control plane answers.
    pub fn restore_later(&mut self, late: oneshot::Receiver<LateRestore>) {
        self.late = Some(late);
    }

    pub fn state(&self) -> watch::Receiver<UpstreamState> {
        self.state.subscribe()
    }

    pub const fn cache(&self) -> &Arc<crate::cache::Cache> {
        self.mux.cache()
    }

    pub const fn counters(&self) -> &Arc<Counters> {
        self.mux.counters()
    }

    /// Takes in resources of an earlier process, with their age and server: see [`Mux::restore`]. Call it
    /// while no stream is open, before the control plane has answered.
    pub fn restore(
        &mut self,
        content: Content,
        from: Option<ServerId>,
        age: Option<Duration>,
        clock: Clock,
    ) -> Restored {
        let restored = self.mux.restore(content, from, clock);
        if restored.resources > 0 {
            self.failover.restored();
            let source = self.mux.source().cloned();
            self.state.send_modify(|state| {
                state.restored(age_at_start(age.unwrap_or_default(), state, clock.now));
                state.source = source;
            });
        }
        restored
    }

    /// Notes that other node groups have stored resources, the newest of this age: the relay can serve.
    pub fn others_restored(&mut self, age: Duration) {
        self.state.send_modify(|state| state.restored(age_at_start(age, state, now())));
    }

    /// Takes in resources of an earlier process on a connection without a response yet, and renews the
    /// subscriptions.
    fn restore_late(&mut self, talk: &mut Conversation) {
        let Some(restore) = self.late.as_mut().and_then(|late| late.try_recv().ok()) else { return };
        self.late = None;
        self.mux.closed(StreamId::Primary);
        (restore.0)(self);
        talk.renew(StreamId::Primary);
        self.choose_node();
        self.mux.connected(self.link.server());
        // The watch of a relay restarts with the stream, and reports again.
        self.state.send_modify(|state| state.origin_is_cut_off = false);
        self.mux.opened(StreamId::Primary, now());
    }

    /// Connects, and reconnects after each loss, until `shutdown`.
    ///
    /// By reference: a future has room for its arguments and for its state, and each group has one.
    pub async fn run(&mut self, shutdown: CancellationToken) {
        shutdown.run_until_cancelled(self.run_on()).await;
    }

    async fn run_on(&mut self) {
        loop {
            let ended = match self.connect().await {
                None => continue,
                Some(Ok(connected)) => self.converse(connected).await,
                Some(Err(error)) => {
                    // The link waits before it connects again.
                    self.unreachable(error);
                    continue;
                }
            };
            let Some(ended) = ended else { continue };
            let wait = self.ended(ended);
            self.meanwhile(tokio::time::sleep(wait)).await;
        }
    }

    /// Waits for a connection. `None`: the server has changed.
    async fn connect(&mut self) -> Option<Result<Connected, UnreachableError>> {
        let link = Arc::clone(&self.link);
        // On the heap: otherwise each group would keep room for it, more than once.
        self.meanwhile(Box::pin(link.connect())).await
    }

    /// Waits for a future while interest and deadlines are served without a server. `None`: the server has
    /// changed.
    async fn meanwhile<F: Future>(&mut self, future: F) -> Option<F::Output> {
        let cache = Arc::clone(self.mux.cache());
        let mut clock = PauseClock::new(now());
        tokio::pin!(future);
        loop {
            if let Some(pause) = clock.overslept(now()) {
                self.mux.exclude_pause(pause, now());
                self.failover.excuse(pause);
            }
            self.mux.on_deadline(now());
            if self.choose(ServerCondition::Away).is_some() {
                return None;
            }
            let deadline = self.mux.next_deadline().into_iter().chain(self.failover.deadline()).min();
            tokio::select! {
                output = &mut future => return Some(output),
                (server, answers) = self.probes.next() => self.failover.probed(server, answers, now()),
                tuned = next_tuning(&mut self.tuned) => self.tune(tuned),
                interest = next_interest(&cache, self.more_interest) => {
                    self.take(interest).await;
                }
                restore = next_once(&mut self.late) => (restore.0)(self),
                () = clock.wait(deadline) => tokio::task::yield_now().await,
            }
        }
    }

    /// Serves both streams until the primary one ends. `None`: the next connection is due at once. Either the
    /// server has changed, or no request was lost with the connection.
    async fn converse(&mut self, connected: Connected) -> Option<Ended> {
        let cache = Arc::clone(self.mux.cache());
        let Connected { lease, is_new } = connected;
        let options = self.link.options();
        let protocol = options.protocol.unwrap_or(Protocol::Delta);
        let liveness = options.liveness;
        let mut talk = Conversation::new(lease.server(), protocol, options.backoff, liveness);
        self.connected(is_new, protocol);
        let ended = loop {
            if let Some(stream) = self.mux.renewal_due(now()) {
                self.renew(stream, &mut talk);
            }
            talk.adjust_secondary(&mut self.mux, now());
            talk.inquire(&mut self.mux, self.representative.as_deref());
            if let Some(change) = self.choose(self.condition(&talk)) {
                if matches!(change, ServerChange::Next { .. }) {
                    lease.silent();
                }
                self.disconnected(|state| state.disconnected(now()));
                break None;
            }
            let interest = next_interest(&cache, self.more_interest);
            let probed = (&mut self.probes, self.failover.deadline());
            let event = talk.next(&mut self.mux, interest, next_tuning(&mut self.tuned), probed).await;
            self.failover.excuse(std::mem::take(&mut talk.excused));
            match event {
                Event::Message(stream, message) => {
                    if let Some(end) = self.on_message(stream, message, &lease, &mut talk) {
                        break Some(end);
                    }
                }
                Event::Inquiry(answer) => self.on_inquiry(answer, &talk),
                Event::Room(stream) => self.ask(stream, &talk),
                Event::Interest(interest) => self.take(interest).await,
                Event::Tuned(tuned) => self.tune(tuned),
                Event::Watched(word) => self.on_word(word, &mut talk),
                Event::Probed((server, answers)) => self.failover.probed(server, answers, now()),
                Event::Look if lease.is_closed() && !self.mux.has_asked(StreamId::Primary) => break None,
                Event::Look => {
                    if let Some(end) = self.look(&lease, &mut talk) {
                        break Some(end);
                    }
                }
                // Due work may come in parts: it gives way after each.
                Event::Deadline => {
                    self.mux.on_deadline(now());
                    tokio::task::yield_now().await;
                }
                Event::Checked => self.link.checks().answered(),
                Event::Nothing => tokio::task::yield_now().await,
            }
        };
        self.mux.closed(StreamId::Primary);
        if talk.liveness.tries() {
            self.link.checks().trial_lost();
        }
        if let Some(Ended::Failed(_) | Ended::Reset(_) | Ended::Unfit(_)) = ended {
            self.counters().stream_failures.add(1);
            lease.failed();
        }
        ended
    }

    fn tune(&mut self, (tuning, limits): Tuned) {
        self.mux.tune(tuning);
        self.mux.cache().set_limits(&limits);
    }

    /// Chooses the client whose node new streams show.
    fn choose_node(&self) {
        if let Some(representative) = &self.representative {
            representative.choose(now());
        }
    }

    /// Reopens a stream on its connection, with all subscriptions.
    fn renew(&mut self, stream: StreamId, talk: &mut Conversation) {
        tracing::debug!(?stream, "opening a stream to the control plane anew");
        self.counters().renewals.add(1);
        self.mux.closed(stream);
        talk.renew(stream);
        if stream == StreamId::Primary {
            self.choose_node();
            self.mux.opened(StreamId::Primary, now());
        }
    }

    /// Takes the interest of clients. The rest waits for the next upstream request, so that names of other
    /// clients go first.
    async fn take(&mut self, interest: Vec<Wanted>) {
        let now = now();
        self.mux.interest(interest, now);
        let has_more = self.mux.cache().has_interest();
        self.more_interest = has_more.then(|| now + self.mux.request_interval());
        tokio::task::yield_now().await;
    }

    fn connected(&mut self, is_new: bool, protocol: Protocol) {
        self.choose_node();
        self.mux.connected(self.link.server());
        self.mux.set_protocol(protocol);
        self.mux.opened(StreamId::Primary, now());
        let again = self.counters().connects.get() > 0;
        let source = self.mux.source().cloned();
        self.state.send_modify(|state| {
            state.connected(now());
            state.protocol = Some(protocol);
            state.source = source;
        });
        self.counters().connects.add(u64::from(is_new));
        self.counters().reconnects.add(u64::from(is_new && again));
        let uri = self.link.uri();
        tracing::debug!(%uri, again, "connected to the control plane");
    }

    /// Notes the first response: only now the control plane is known to work.
    fn answered(&mut self, delta: Delta) {
        self.late = None;
        self.state.send_modify(|state| state.answered = true);
        self.link.answered();
        self.report_protocol(delta);
        self.report_answer();
    }

    /// Logs a failed attempt to connect, unless another client made it.
    fn unreachable(&mut self, error: UnreachableError) {
        let UnreachableError { reason, retry_in } = error;
        if let Some(wait) = retry_in {
            self.counters().connect_failures.add(1);
            self.log(Ended::Lost(reason.clone()), wait);
        }
        self.lost(reason);
    }

    /// Logs the end of the streams, and returns the wait before the next attempt.
    fn ended(&mut self, ended: Ended) -> Duration {
        if matches!(ended, Ended::Lost(_) | Ended::Broken(_) | Ended::Closed(_)) {
            self.backoff.reset();
        }
        let wait = self.backoff.next(&mut rand::rng());
        let reason = self.log(ended, wait);
        self.lost(reason);
        wait
    }

    fn lost(&mut self, reason: String) {
        self.disconnected(|state| state.lost(reason, now()));
    }

    fn disconnected(&mut self, note: impl FnOnce(&mut UpstreamState)) {
        self.looked_at = None;
        self.state.send_modify(note);
    }
}
