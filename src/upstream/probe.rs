//! Probes of the servers preferred over the one in use.
//!
//! Owns one task with one stream per server. It sends one question and reports whether the server answers. A
//! server answers from its first response, until a stream stays unanswered or no connection can be made.
//! Without a question it answers while the stream stands. A response that lacks held resources, or came
//! through this relay, is no answer. The link and its back-off are shared with clients. Answers are not kept.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use deltafan_transport::call::is_reset;
use deltafan_transport::stream::OpenStream;
use futures_util::StreamExt as _;
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Code, Status};

use super::link::{Connected, Lease, Link, Server, Servers, UnreachableError};
use super::relay_watch::RelayWatch;
use super::{Backoff, Counters, Question, Representative, came_from};
use crate::cache::Protocol;
use crate::proto::Node;

/// Time without a refusal after which a stream without a question stands.
const STANDS: Duration = Duration::from_secs(1);
/// Reports of all probes that may wait.
const REPORTS: usize = 16;

/// Report of a probe: the number of the server, and whether it answers.
pub(super) type ProbeReport = (usize, bool);

#[derive(Debug)]
pub(super) struct Probes {
    servers: Arc<Servers>,
    counters: Arc<Counters>,
    /// The best first.
    questions: watch::Sender<Vec<Question>>,
    reports: (mpsc::Sender<ProbeReport>, mpsc::Receiver<ProbeReport>),
    tasks: Vec<AbortOnDropHandle<()>>,
}

impl Probes {
    pub(super) fn new(servers: Arc<Servers>, counters: Arc<Counters>) -> Self {
        let questions = watch::Sender::default();
        Self { servers, counters, questions, reports: mpsc::channel(REPORTS), tasks: Vec::new() }
    }

    /// Probes the servers before this one, and no others. They are shown the node of the representative, if
    /// there is one.
    pub(super) fn before(
        &mut self,
        active: usize,
        node: &Node,
        representative: Option<&Arc<Representative>>,
    ) {
        self.tasks.truncate(active);
        for server in self.tasks.len()..active {
            let probe = Probe {
                server,
                link: Arc::clone(self.servers.link(server)),
                after: self.servers.times().after,
                counters: Arc::clone(&self.counters),
                node: node.clone(),
                representative: representative.cloned(),
                questions: self.questions.subscribe(),
                reports: self.reports.0.clone(),
                turn: 0,
            };
            self.tasks.push(AbortOnDropHandle::new(tokio::spawn(probe.run())));
        }
    }

    /// Sets the questions of new streams, and of those without a question.
    pub(super) fn set_questions(&self, questions: Vec<Question>) {
        self.questions.send_if_modified(|before| {
            let is_news = *before != questions;
            *before = questions;
            is_news
        });
    }

    /// Next report. Cancel-safe.
    pub(super) async fn next(&mut self) -> ProbeReport {
        match self.reports.1.recv().await {
            Some(word) => word,
            // The sender lives here too.
            None => std::future::pending().await,
        }
    }
}

struct Probe {
    server: usize,
    link: Arc<Link>,
    /// Time without an answer until the next question.
    after: Duration,
    counters: Arc<Counters>,
    node: Node,
    representative: Option<Arc<Representative>>,
    questions: watch::Receiver<Vec<Question>>,
    reports: mpsc::Sender<ProbeReport>,
    /// Number of unanswered questions.
    turn: usize,
}

enum End {
    /// It was not answered.
    Silent,
    /// The server does not implement the protocol, or reset the stream, which may mean that.
    Unfit,
    /// It failed or ended. `answered`: after a response.
    Lost { answered: bool },
}

impl Probe {
    async fn run(mut self) {
        let mut backoff = self.link.options().backoff;
        loop {
            // The link waits before it connects again.
            let link = Arc::clone(&self.link);
            let lease = match link.connect().await {
                Ok(Connected { lease, .. }) => lease,
                Err(UnreachableError { reason, .. }) => {
                    self.report(false).await;
                    tracing::debug!(uri = %link.uri(), reason, "a preferred control plane is unreachable");
                    continue;
                }
            };
            let wait = self.converse_on(lease, &mut backoff).await;
            tokio::time::sleep(wait).await;
        }
    }

    /// Serves streams on a connection, until it is lost or the server stays silent. Returns the wait before
    /// the next one, and releases the connection meanwhile.
    async fn converse_on(&mut self, lease: Lease, backoff: &mut Backoff) -> Duration {
        let options = self.link.options();
        let (server, fixed) = (lease.server(), options.protocol);
        let mut protocol = fixed.unwrap_or(Protocol::Delta);
        loop {
            let end = self.converse(&server, &lease, protocol).await;
            // A stream that ends after a response is no error (gRFC A57): the next one decides.
            if !matches!(end, End::Lost { answered: true }) {
                self.report(false).await;
            }
            match end {
                End::Silent => {
                    self.turn += 1;
                    lease.silent();
                    return backoff.next(&mut rand::rng());
                }
                End::Unfit if protocol == Protocol::Delta && fixed.is_none() => {
                    protocol = Protocol::Sotw;
                    continue;
                }
                End::Lost { answered: true } => backoff.reset(),
                End::Unfit | End::Lost { answered: false } => lease.failed(),
            }
            let wait = backoff.next(&mut rand::rng());
            if lease.is_closed() {
                return wait;
            }
            tokio::time::sleep(wait).await;
        }
    }

    async fn report(&self, answers: bool) {
        // The receiver is gone when the client is.
        _ = self.reports.send((self.server, answers)).await;
    }

    async fn converse(&mut self, server: &Server, lease: &Lease, protocol: Protocol) -> End {
        self.counters.probes.add(1);
        let mut open = server.open(protocol);
        let mut watch = RelayWatch::new(server.channel.clone());
        let (mut answered, mut is_cut_off) = (false, false);
        let question = self.ask(&open, protocol);
        let wait = tokio::time::sleep(if question.is_some() { self.after } else { STANDS });
        tokio::pin!(wait);
        let (mut waits, mut rests) = (true, false);
        loop {
            tokio::select! {
                message = open.incoming.next() => match message {
                    Some(Ok(response)) => {
                        if open.is_relay() {
                            watch.begin();
                        }
                        // A server that has it from this relay does not answer (R-Relay-24).
                        if came_from(&response, protocol, &server.identity) {
                            return End::Lost { answered: false };
                        }
                        acknowledge(&open, question.as_ref(), protocol, &response);
                        // The relay does not return to a server that has lost held resources.
                        if question.as_ref().is_some_and(|question| question.is_denied_by(&response)) {
                            continue;
                        }
                        if !std::mem::replace(&mut answered, true) {
                            lease.answered();
                            self.link.answered();
                        }
                        self.report(!is_cut_off).await;
                        waits = false;
                    }
                    Some(Err(status)) => return ended(&status, answered),
                    None => return End::Lost { answered },
                },
                Some(is_answered) = watch.next() => {
                    is_cut_off = !is_answered;
                    self.report(answered && !is_cut_off).await;
                }
                Ok(()) = self.questions.changed(), if question.is_none() => {
                    // The next stream asks. Until its answer this server counts as silent.
                    self.report(false).await;
                    return End::Lost { answered: true };
                }
                () = &mut wait, if waits => {
                    if question.is_some() {
                        return End::Silent;
                    }
                    self.report(true).await;
                    (waits, rests) = (false, open.is_relay());
                    if rests {
                        // It ends streams without a request.
                        open = server.open_when_asked(protocol);
                    }
                }
                () = tokio::time::sleep(STANDS), if rests && question.is_none() => {
                    if lease.is_closed() {
                        return End::Lost { answered: true };
                    }
                }
            }
        }
    }

    /// Sends one question on a new stream, and returns it, if any.
    fn ask(&mut self, open: &OpenStream, protocol: Protocol) -> Option<Question> {
        let questions = self.questions.borrow_and_update();
        let question = questions.get(self.turn.checked_rem(questions.len())?)?.clone();
        let message = question.ask(protocol, &self.node);
        let message = lend(self.representative.as_deref(), message, protocol);
        // The stream is new: it has room.
        open.outgoing.try_send(message).ok()?;
        Some(question)
    }
}

/// Puts a client's node, if any, into a request that carries one.
pub(super) fn lend(representative: Option<&Representative>, message: Bytes, protocol: Protocol) -> Bytes {
    match representative {
        Some(representative) => representative.lend(message, protocol),
        None => message,
    }
}

fn ended(status: &Status, answered: bool) -> End {
    match status.code() {
        Code::Unimplemented => End::Unfit,
        _ if !answered && is_reset(status) => End::Unfit,
        _ => End::Lost { answered },
    }
}

/// Acknowledges a response, unless the server does not read.
fn acknowledge(open: &OpenStream, question: Option<&Question>, protocol: Protocol, response: &Bytes) {
    if let Some(ack) = question.and_then(|question| question.acknowledge(protocol, response)) {
        _ = open.outgoing.try_send(ack);
    }
}
