//! Probes of the servers that are more preferred than the one in use.
//!
//! Owns, for each of them, a task with one stream: it asks for one thing, and tells whether the server answers. A server answers from
//! its first response on, until a stream is not answered or no connection can be made; if nothing is asked for, for as long as the
//! stream stands. A response that lacks what the relay holds, or that came through this relay, is no answer. The link to the server
//! is that of its clients, with its back-off. Nothing of the answers is kept.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Code, Status};

use super::call::is_reset;
use super::connection::{OpenStream, Server};
use super::link::{Connected, Lease, Link, UnreachableError};
use super::relay_watch::RelayWatch;
use super::servers::Servers;
use super::{Backoff, Counters};
use super::{Question, Representative, came_from};
use crate::cache::Protocol;
use crate::proto::Node;

/// Stream on which nothing is asked for stands if it was not refused by then.
const STANDS: Duration = Duration::from_secs(1);
/// Words of all probes that may wait.
const WORDS: usize = 16;

/// Things to ask for, the best first, and the node that is shown.
#[derive(Clone, Debug, Default)]
pub(super) struct Questions {
    pub(super) asked: Vec<Question>,
    pub(super) node: Arc<Node>,
    /// Node of a client, in the place of that.
    pub(super) representative: Option<Arc<Representative>>,
}

/// Word of a probe: the number of the server, and whether it answers.
pub(super) type Word = (usize, bool);

/// Probes of one client.
#[derive(Debug)]
pub(super) struct Probes {
    servers: Arc<Servers>,
    counters: Arc<Counters>,
    questions: watch::Sender<Questions>,
    words: (mpsc::Sender<Word>, mpsc::Receiver<Word>),
    tasks: Vec<AbortOnDropHandle<()>>,
}

impl Probes {
    pub(super) fn new(servers: Arc<Servers>, counters: Arc<Counters>) -> Self {
        let questions = watch::Sender::new(Questions::default());
        Self { servers, counters, questions, words: mpsc::channel(WORDS), tasks: Vec::new() }
    }

    /// Probes the servers before this one, and no others.
    pub(super) fn before(&mut self, active: usize) {
        self.tasks.truncate(active);
        for server in self.tasks.len()..active {
            let probe = Probe {
                server,
                link: Arc::clone(self.servers.link(server)),
                after: self.servers.times().after,
                counters: Arc::clone(&self.counters),
                questions: self.questions.subscribe(),
                words: self.words.0.clone(),
                turn: 0,
            };
            self.tasks.push(AbortOnDropHandle::new(tokio::spawn(probe.run())));
        }
    }

    /// Sets the questions of streams that are opened from now on, and of those on which nothing is asked for.
    pub(super) fn set_questions(&self, questions: Questions) {
        self.questions.send_if_modified(|before| {
            let is_news = before.asked != questions.asked;
            *before = questions;
            is_news
        });
    }

    /// Next word. Cancel-safe.
    pub(super) async fn next(&mut self) -> Word {
        match self.words.1.recv().await {
            Some(word) => word,
            // The sender lives here too.
            None => std::future::pending().await,
        }
    }
}

/// Probe of one server.
struct Probe {
    server: usize,
    link: Arc<Link>,
    /// Time without an answer after which something else is asked for.
    after: Duration,
    counters: Arc<Counters>,
    questions: watch::Receiver<Questions>,
    words: mpsc::Sender<Word>,
    /// Number of questions that were left unanswered.
    turn: usize,
}

/// End of a stream.
enum End {
    /// It was not answered.
    Silent,
    /// The server does not implement the protocol, or reset the stream, which may mean the same.
    Unfit,
    /// It failed, or ended. `answered`: after a response.
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
                    self.tell(false).await;
                    tracing::debug!(uri = %link.uri(), reason, "a preferred control plane is unreachable");
                    continue;
                }
            };
            let wait = self.converse_on(lease, &mut backoff).await;
            tokio::time::sleep(wait).await;
        }
    }

    /// Serves streams on a connection, until it is lost or the server stays silent on it. Returns the wait before the next one, in which
    /// the connection is held by nobody.
    async fn converse_on(&mut self, lease: Lease, backoff: &mut Backoff) -> Duration {
        let options = self.link.options();
        let (server, fixed) = (lease.server(options), options.protocol);
        let mut protocol = fixed.unwrap_or(Protocol::Delta);
        loop {
            let end = self.converse(&server, &lease, protocol).await;
            // A stream that ends after a response is no error (gRFC A57): the next one shows whether the server answers.
            if !matches!(end, End::Lost { answered: true }) {
                self.tell(false).await;
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

    async fn tell(&self, answers: bool) {
        // The receiver is gone when the client is.
        _ = self.words.send((self.server, answers)).await;
    }

    /// Serves one stream to its end.
    async fn converse(&mut self, server: &Server, lease: &Lease, protocol: Protocol) -> End {
        self.counters.probes.add(1);
        let mut open = OpenStream::on(server, protocol);
        let mut watch = RelayWatch::new(server.channel.clone());
        let (mut answered, mut is_cut_off) = (false, false);
        let mut question = self.ask(&open, protocol);
        let mut wait = Box::pin(tokio::time::sleep(if question.is_some() { self.after } else { STANDS }));
        let (mut waits, mut rests) = (true, false);
        loop {
            tokio::select! {
                message = open.incoming.next() => match message {
                    Some(Ok(response)) => {
                        if open.is_relay() {
                            watch.begin();
                        }
                        // A server that has it from this relay is none that answers (R-Relay-24).
                        if came_from(&response, protocol, &server.identity) {
                            return End::Lost { answered: false };
                        }
                        // A server that has lost what is held is not returned to from one that has it.
                        if question.as_ref().is_some_and(|question| question.is_denied_by(&response)) {
                            acknowledge(&open, question.as_ref(), protocol, &response);
                            continue;
                        }
                        if !std::mem::replace(&mut answered, true) {
                            lease.answered();
                            self.link.answered();
                        }
                        acknowledge(&open, question.as_ref(), protocol, &response);
                        self.tell(!is_cut_off).await;
                        waits = false;
                    }
                    Some(Err(status)) => return ended(&status, answered),
                    None => return End::Lost { answered },
                },
                Some(is_answered) = watch.next() => {
                    is_cut_off = !is_answered;
                    self.tell(answered && !is_cut_off).await;
                }
                changed = self.questions.changed(), if question.is_none() => {
                    if changed.is_err() {
                        std::future::pending::<()>().await;
                    }
                    question = self.ask(&open, protocol);
                    if question.is_some() {
                        self.tell(false).await;
                        wait = Box::pin(tokio::time::sleep(self.after));
                        waits = true;
                    }
                }
                () = &mut wait, if waits => {
                    if question.is_some() {
                        return End::Silent;
                    }
                    self.tell(true).await;
                    (waits, rests) = (false, open.is_relay());
                    if rests {
                        // It ends streams on which nothing is asked.
                        open = OpenStream::when_asked(server, protocol);
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

    /// Asks for one thing on a new stream. Returns that, if there is any.
    fn ask(&mut self, open: &OpenStream, protocol: Protocol) -> Option<Question> {
        let questions = self.questions.borrow_and_update();
        let question = questions.asked.get(self.turn.checked_rem(questions.asked.len())?)?.clone();
        let message = question.ask(protocol, &questions.node);
        let message = match &questions.representative {
            Some(representative) => representative.lend(message, protocol),
            None => message,
        };
        // The stream is new: it has room.
        open.outgoing.try_send(message).ok()?;
        Some(question)
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
