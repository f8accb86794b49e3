//! A fleet that comes all at once, and gives up what takes too long, as Envoy does with its defaults.
//!
//! A connection that does not stand after 5 s is closed. What was given up, or ended by the server, is tried again with a jittered
//! exponential backoff from 0.5 s to 30 s. An answer that comes more than 15 s after its connection was begun counts as late.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use rustls::ClientConfig;
use serde::{Deserialize, Serialize};

use super::load::{Connection, Heard, flush, read};
use super::measure::quantile;
use super::report::{Quantiles, Stormed};
use super::shape::Load;
use super::tls;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const INITIAL_FETCH_TIMEOUT: Duration = Duration::from_secs(15);
const MIN_BACKOFF: Duration = Duration::from_millis(500);
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// Time after which the bench gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// The fleet: clients that hold nothing come first, then those that resume, all without a pause.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Storm {
    pub(crate) cold: Load,
    pub(crate) resuming: Load,
}

/// One client.
#[derive(Default)]
struct Client {
    connection: Option<Connection>,
    begun: Option<Instant>,
    tries: u32,
    answered: Option<Duration>,
}

/// Event of a client at a time, if it has not been tried again meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Alarm {
    Connect,
    GiveUp,
}

struct Fleet<'a> {
    storm: &'a Storm,
    target: SocketAddr,
    tls: Option<Arc<ClientConfig>>,
    pool: Vec<String>,
    poll: Poll,
    clients: Vec<Client>,
    alarms: BinaryHeap<Reverse<(Instant, usize, u32, Alarm)>>,
    heard: Heard,
    random: StdRng,
    start: Instant,
    unanswered: usize,
    refused: u64,
    given_up: u64,
    late: u64,
}

/// Runs the fleet until all are answered, and reports how that went.
pub(crate) fn run(target: SocketAddr, storm: &Storm) -> io::Result<()> {
    let count = storm.cold.clients + storm.resuming.clients;
    let start = Instant::now();
    let mut fleet = Fleet {
        storm,
        target,
        tls: storm.cold.certificates.as_deref().map(tls::of_clients).transpose()?,
        pool: storm.cold.pool(),
        poll: Poll::new()?,
        clients: (0..count).map(|_| Client::default()).collect(),
        alarms: (0..count).map(|at| Reverse((start, at, 0, Alarm::Connect))).collect(),
        heard: Heard::new(&storm.cold),
        random: StdRng::seed_from_u64(1),
        start,
        unanswered: count,
        refused: 0,
        given_up: 0,
        late: 0,
    };
    println!("ready {}", serde_json::to_string(&fleet.run()?)?);
    Ok(())
}

impl Fleet<'_> {
    fn run(&mut self) -> io::Result<Stormed> {
        let mut events = Events::with_capacity(1024);
        let mut buffer = vec![0; 256 << 10];
        while self.unanswered > 0 {
            if self.start.elapsed() > PATIENCE {
                let unanswered = self.unanswered;
                return Err(io::Error::other(format!(
                    "{unanswered} clients are not answered after {PATIENCE:?}"
                )));
            }
            self.ring()?;
            let next =
                self.alarms.peek().map(|Reverse((at, ..))| at.saturating_duration_since(Instant::now()));
            self.poll.poll(&mut events, Some(next.unwrap_or(PATIENCE).min(Duration::from_secs(1))))?;
            for event in &events {
                self.serve(event.token().0, event.is_readable(), &mut buffer);
            }
        }
        let times = |range: std::ops::Range<usize>| {
            let mut times: Vec<u64> = (self.clients[range].iter())
                .filter_map(|client| client.answered.map(|time| time.as_nanos() as u64))
                .collect();
            times.sort_unstable();
            Quantiles { p50: quantile(&times, 0.5), p99: quantile(&times, 0.99), max: quantile(&times, 1.0) }
        };
        let cold = self.storm.cold.clients;
        Ok(Stormed {
            resuming: times(cold..self.clients.len()),
            cold: times(0..cold),
            refused: self.refused,
            given_up: self.given_up,
            late: self.late,
        })
    }

    /// Does what is due, but not for so long that nothing is read meanwhile.
    fn ring(&mut self) -> io::Result<()> {
        for _ in 0..64 {
            match self.alarms.peek() {
                Some(Reverse((at, ..))) if *at <= Instant::now() => {}
                _ => return Ok(()),
            }
            let Some(Reverse((_, at, tries, alarm))) = self.alarms.pop() else { return Ok(()) };
            let client = &self.clients[at];
            if client.tries != tries {
                continue;
            }
            match alarm {
                Alarm::Connect => self.connect(at)?,
                Alarm::GiveUp if client.connection.as_ref().is_some_and(Connection::is_shaking_hands) => {
                    self.given_up += 1;
                    self.try_again(at);
                }
                Alarm::GiveUp => {}
            }
        }
        Ok(())
    }

    fn connect(&mut self, at: usize) -> io::Result<()> {
        let cold = self.storm.cold.clients;
        let load = if at < cold { &self.storm.cold } else { &self.storm.resuming };
        let mut socket = TcpStream::connect(self.target)?;
        self.poll.registry().register(&mut socket, Token(at), Interest::READABLE | Interest::WRITABLE)?;
        let client = &mut self.clients[at];
        client.tries += 1;
        client.begun = Some(Instant::now());
        client.connection = Some(Connection::new(socket, self.tls.as_ref(), (load, at), &self.pool)?);
        self.alarms.push(Reverse((Instant::now() + CONNECT_TIMEOUT, at, client.tries, Alarm::GiveUp)));
        Ok(())
    }

    fn try_again(&mut self, at: usize) {
        let client = &mut self.clients[at];
        client.connection = None;
        let most = (MIN_BACKOFF * (1_u32 << client.tries.min(10)).saturating_sub(1)).min(MAX_BACKOFF);
        let wait = self.random.random_range(Duration::ZERO..=most);
        self.alarms.push(Reverse((Instant::now() + wait, at, client.tries, Alarm::Connect)));
    }

    fn serve(&mut self, at: usize, readable: bool, buffer: &mut [u8]) {
        let client = &mut self.clients[at];
        let Some(connection) = &mut client.connection else { return };
        let waited = connection.missing > 0;
        let mut done = if readable { read(connection, buffer, &mut self.heard) } else { Ok(()) };
        done = done.and_then(|()| match flush(connection, &mut self.heard) {
            // The connection does not stand yet.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            done => done,
        });
        let is_answered = waited && connection.missing == 0;
        if is_answered && client.answered.is_none() {
            client.answered = Some(self.start.elapsed());
            self.unanswered -= 1;
            self.late += u64::from(client.begun.is_some_and(|begun| begun.elapsed() > INITIAL_FETCH_TIMEOUT));
        }
        if done.is_err() && client.answered.is_none() {
            self.refused += 1;
            self.try_again(at);
        }
    }
}
