//! The load client: one thread, one epoll, many connections. Every response is ACKed.

use std::io::{self, BufRead as _, Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use deltafan_test_support::frames::{message, preface, stream};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token, Waker};
use rustls::ClientConfig;

use super::h2::{self, Ended, Reader};
use super::measure::{Histogram, monotonic_nanos, quantile};
use super::polls::Poller;
use super::report::{Arrivals, Joined, Tally};
use super::request::first_requests;
use super::response::{Hear, Responses, Summary};
use super::shape::{Load, Transport};
use super::tls::{self, Session};

const WAKE: Token = Token(usize::MAX);
/// Bytes that the kernel may keep for a client that does not read.
const SILENT_BUFFER: usize = 16 << 10;

/// Runs the load as the lines on stdin say: `expect N` waits for N responses and tells when they came, `tally` tells
/// what came since it was asked last. Its end, or anything else, ends it.
pub(crate) fn run(target: SocketAddr, load: &Load) -> io::Result<()> {
    if load.yields {
        rustix::process::setpriority_process(None, 19)?;
    }
    let mut fleet = Clients::new(target, load)?;
    let commands = commands(&fleet.poll)?;
    println!("ready {}", serde_json::to_string(&fleet.join()?)?);
    loop {
        match commands.try_recv() {
            Ok(command) if command == "tally" => println!("tally {}", serde_json::to_string(&fleet.tally())?),
            Ok(command) => {
                let Some(count) = command.strip_prefix("expect ") else { return Ok(()) };
                let count = count.parse().map_err(io::Error::other)?;
                println!("got {}", serde_json::to_string(&fleet.expect(count)?)?);
            }
            Err(TryRecvError::Empty) => fleet.turn(Duration::from_secs(1))?,
            Err(TryRecvError::Disconnected) => return Ok(()),
        }
    }
}

/// The lines of stdin. They come through a thread, so that connections are looked after while there is none.
fn commands(poll: &Poll) -> io::Result<Receiver<String>> {
    let (send, receive) = channel();
    let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if send.send(line).is_err() || waker.wake().is_err() {
                return;
            }
        }
        drop(send);
        // With nobody left to tell, the other thread has ended and the process is about to.
        _ = waker.wake();
    });
    Ok(receive)
}

/// Protocol of a connection.
enum Speech {
    Streams(Reader),
    Polls(Poller),
}

/// One connection, with the clients on it.
pub(crate) struct Connection {
    pub(crate) socket: TcpStream,
    tls: Option<Session>,
    speech: Speech,
    outgoing: Vec<u8>,
    /// Stops taking what is sent to it once its first state came.
    silent: bool,
    /// Resources or responses that are missing of its first state.
    pub(crate) missing: usize,
}

impl Connection {
    /// A connection whose first requests are to be sent.
    pub(crate) fn new(
        socket: TcpStream,
        tls: Option<&Arc<ClientConfig>>,
        (load, at): (&Load, usize),
        pool: &[String],
    ) -> io::Result<Self> {
        let silent = load.is_silent(at);
        let tls = tls.map(Session::new).transpose()?;
        if load.polls {
            let poller = Poller::new(load, at, pool);
            let outgoing = poller.request("");
            return Ok(Self { socket, tls, speech: Speech::Polls(poller), outgoing, silent, missing: 1 });
        }
        let mut outgoing = preface(window(load, silent));
        let streams = load.streams_per_connection;
        for inner in 0..streams {
            let id = stream(inner as u32);
            h2::open(&mut outgoing, id, load.method());
            for request in first_requests(load, at * streams + inner, pool) {
                outgoing.extend(message(id, 0, &request));
            }
        }
        if outgoing.len() > h2::DEFAULT_WINDOW as usize {
            let bytes = outgoing.len();
            return Err(io::Error::other(format!(
                "the requests of one connection have {bytes} bytes, more than a server takes at once: use fewer \
                 names, or fewer streams per connection"
            )));
        }
        let reader = Reader::new(load.client, (0..streams).map(|_| Responses::new(load.transport)));
        // Where any response will do, there is one per stream and type.
        let each = if load.first > 0 { load.first } else { load.kinds.len() };
        let speech = Speech::Streams(reader);
        Ok(Self { socket, tls, speech, outgoing, silent, missing: streams * each })
    }

    /// Whether its handshake is still to be done.
    pub(crate) fn is_shaking_hands(&self) -> bool {
        self.tls.as_ref().is_some_and(Session::is_shaking_hands)
    }
}

/// A client that stops reading has a window for its first state, with some to spare, as clients that keep theirs small have: what
/// follows is the server's to hold, or to let go.
fn window(load: &Load, silent: bool) -> u32 {
    const OF_RESOURCE: usize = 1024;
    if !silent {
        return h2::WINDOW;
    }
    let bytes = load.first * load.streams_per_connection * OF_RESOURCE;
    u32::try_from(bytes).unwrap_or(h2::WINDOW).clamp(2 * h2::DEFAULT_WINDOW, h2::WINDOW)
}

struct Clients<'a> {
    load: &'a Load,
    target: SocketAddr,
    tls: Option<Arc<ClientConfig>>,
    pool: Vec<String>,
    poll: Poll,
    events: Events,
    connections: Vec<Option<Connection>>,
    waiting: usize,
    buffer: Vec<u8>,
    heard: Heard,
}

/// Messages that came, over all connections.
pub(crate) struct Heard {
    transport: Transport,
    counts_resources: bool,
    now: u64,
    /// When the responses came that are waited for.
    times: Vec<u64>,
    ages: Histogram,
    sums: Tally,
    /// Progress of the connection that is being read.
    progress: usize,
}

impl Hear for Heard {
    fn version(&mut self, version: u64) {
        self.ages.record(self.now.saturating_sub(version));
    }

    fn message(&mut self, stream: u32, summary: &Summary, out: &mut Vec<u8>) {
        self.note(if self.counts_resources { summary.resources } else { 1 });
        self.sums.resources += summary.resources as u64;
        summary.ack(self.transport, stream, out);
    }
}

impl Heard {
    pub(crate) fn new(load: &Load) -> Self {
        Self {
            transport: load.transport,
            counts_resources: load.first > 0,
            now: 0,
            times: Vec::new(),
            ages: Histogram::new(),
            sums: Tally::default(),
            progress: 0,
        }
    }

    /// Notes a response, and how much of the first state it was.
    pub(crate) fn note(&mut self, progress: usize) {
        self.times.push(self.now);
        self.sums.messages += 1;
        self.progress += progress;
    }
}

impl<'a> Clients<'a> {
    fn new(target: SocketAddr, load: &'a Load) -> io::Result<Self> {
        Ok(Self {
            load,
            target,
            tls: load.certificates.as_deref().map(tls::of_clients).transpose()?,
            pool: load.pool(),
            poll: Poll::new()?,
            events: Events::with_capacity(1024),
            connections: Vec::with_capacity(load.connections()),
            waiting: 0,
            buffer: vec![0; 256 << 10],
            heard: Heard::new(load),
        })
    }

    fn connect(&mut self, at: usize) -> io::Result<()> {
        let domain = socket2::Domain::for_address(self.target);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
        if self.load.is_silent(at) {
            socket.set_recv_buffer_size(SILENT_BUFFER)?;
        }
        socket
            .connect(&self.target.into())
            .map_err(|error| io::Error::other(format!("connection {at} to {}: {error}", self.target)))?;
        socket.set_tcp_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let mut socket = TcpStream::from_std(socket.into());
        self.poll.registry().register(&mut socket, Token(at), Interest::READABLE | Interest::WRITABLE)?;
        let mut connection = Connection::new(socket, self.tls.as_ref(), (self.load, at), &self.pool)?;
        flush(&mut connection, &mut self.heard)?;
        self.connections[at] = Some(connection);
        self.waiting += 1;
        Ok(())
    }

    const fn patience(&self) -> Duration {
        Duration::from_secs(self.load.patience)
    }

    /// Brings the clients up, and waits until each has its first state.
    fn join(&mut self) -> io::Result<Joined> {
        let begun = Instant::now();
        self.connections.resize_with(self.load.connections(), || None);
        let mut progress = (begun, self.heard.sums.bytes);
        let mut next = 0;
        while next < self.connections.len() || self.waiting > 0 {
            if self.waiting < self.load.at_once && next < self.connections.len() {
                self.connect(next)?;
                next += 1;
                self.turn(Duration::ZERO)?;
                continue;
            }
            self.turn(Duration::from_millis(100))?;
            if self.heard.sums.bytes > progress.1 {
                progress = (Instant::now(), self.heard.sums.bytes);
            } else if progress.0.elapsed() > self.patience() {
                let waiting = self.waiting;
                return Err(io::Error::other(format!("{waiting} connections do not get their first state")));
            }
        }
        let nanos = begun.elapsed().as_nanos() as u64;
        self.heard.times.clear();
        Ok(Joined { nanos, tally: self.tally() })
    }

    /// Waits for so many responses and returns when they came.
    fn expect(&mut self, count: usize) -> io::Result<Arrivals> {
        // A message that nobody waited for, like a second response to a change, is no answer to the next.
        self.heard.times.clear();
        self.tally();
        println!("waiting");
        let deadline = Instant::now() + self.patience();
        while self.heard.times.len() < count {
            self.turn(Duration::from_millis(100))?;
            if Instant::now() > deadline {
                let got = self.heard.times.len();
                return Err(io::Error::other(format!(
                    "{got} of {count} updates within {:?}",
                    self.patience()
                )));
            }
        }
        let times = &mut self.heard.times;
        times.sort_unstable();
        let (median, p99, last) = (quantile(times, 0.5), quantile(times, 0.99), quantile(times, 1.0));
        times.clear();
        Ok(Arrivals { median, p99, last, tally: self.tally() })
    }

    fn tally(&mut self) -> Tally {
        let ages = std::mem::replace(&mut self.heard.ages, Histogram::new());
        let sums = std::mem::take(&mut self.heard.sums);
        self.heard.times.clear();
        Tally { p50_age: ages.quantile(0.5), p99_age: ages.quantile(0.99), max_age: ages.max(), ..sums }
    }

    fn turn(&mut self, wait: Duration) -> io::Result<()> {
        self.poll.poll(&mut self.events, Some(wait))?;
        for event in self.events.iter().filter(|event| event.token() != WAKE) {
            let place = &mut self.connections[event.token().0];
            let Some(connection) = place else { continue };
            if connection.silent && connection.missing == 0 {
                continue;
            }
            let waited = connection.missing > 0;
            if event.is_readable() {
                read(connection, &mut self.buffer, &mut self.heard)?;
            }
            flush(connection, &mut self.heard)?;
            if waited && connection.missing == 0 {
                self.waiting -= 1;
                if self.load.leaves {
                    *place = None;
                }
            }
        }
        Ok(())
    }
}

/// Reads what there is. An error is the end of the connection, or of a stream on it.
pub(crate) fn read(connection: &mut Connection, buffer: &mut [u8], heard: &mut Heard) -> io::Result<()> {
    loop {
        let Connection { socket, tls, .. } = connection;
        let taken = match tls {
            Some(tls) => tls.read(socket, buffer),
            None => socket.read(buffer),
        };
        let read = match taken {
            Ok(0) => return Err(io::Error::other("the server closed a connection")),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        heard.now = monotonic_nanos();
        heard.progress = 0;
        heard.sums.bytes += read as u64;
        let Connection { speech, outgoing, .. } = connection;
        match speech {
            Speech::Streams(reader) => reader
                .read(&buffer[..read], outgoing, heard)
                .map_err(|Ended { stream }| io::Error::other(format!("the server ended stream {stream}"))),
            Speech::Polls(poller) => poller.read(&buffer[..read], outgoing, heard),
        }?;
        connection.missing = connection.missing.saturating_sub(heard.progress);
        // Less than there was room for: there is no more, and what comes later is told as a new event. TLS reads
        // a record at a time.
        if read < buffer.len() && connection.tls.is_none() {
            return Ok(());
        }
    }
}

/// Writes as much as the socket takes.
pub(crate) fn flush(connection: &mut Connection, heard: &mut Heard) -> io::Result<()> {
    if let Some(tls) = &mut connection.tls {
        heard.sums.sent += tls.flush(&mut connection.socket, &mut connection.outgoing)? as u64;
        return Ok(());
    }
    while !connection.outgoing.is_empty() {
        match connection.socket.write(&connection.outgoing) {
            Ok(written) => {
                heard.sums.sent += written as u64;
                connection.outgoing.drain(..written);
            }
            // The socket tells when it can take more.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
