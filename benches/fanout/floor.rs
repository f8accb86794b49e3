//! The floor: the same bytes over as many sockets by a loop that does nothing else.

use std::io::{self, BufRead as _, Read as _, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use super::measure::{monotonic_nanos, quantile};
use super::report::{Arrivals, Tally};

const PATIENCE: Duration = Duration::from_secs(60);

/// A socket and what is on its way on it.
struct Peer {
    socket: TcpStream,
    unwritten: usize,
    read: usize,
}

/// Bytes of an update: the message, the client's answer, and what the server answers to that, if anything. A client reads
/// the latter together with its next message.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Sizes {
    pub(crate) message: usize,
    pub(crate) ack: usize,
    pub(crate) answer: usize,
}

impl Peer {
    fn new(socket: std::net::TcpStream, at: usize, poll: &Poll) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let mut socket = TcpStream::from_std(socket);
        poll.registry().register(&mut socket, Token(at), Interest::READABLE | Interest::WRITABLE)?;
        Ok(Self { socket, unwritten: 0, read: 0 })
    }

    /// Writes what the socket takes of the end of `message` that is not written yet.
    fn write(&mut self, message: &[u8]) -> io::Result<()> {
        while self.unwritten > 0 {
            match self.socket.write(&message[message.len() - self.unwritten..]) {
                Ok(written) => self.unwritten -= written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads what there is.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        loop {
            match self.socket.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    self.read += read;
                    if read < buffer.len() {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether as much was read as a message has; the next begins anew.
    const fn has_read(&mut self, message: usize) -> bool {
        let whole = self.read >= message;
        if whole {
            self.read -= message;
        }
        whole
    }
}

/// Clients that are gone are how a run ends.
pub(crate) fn until_closed(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error)
            if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) =>
        {
            Ok(())
        }
        other => other,
    }
}

/// Accepts the clients, then sends each a message, reads its ACK and answers whenever told to.
pub(crate) fn run_server(clients: usize, Sizes { message, ack, answer }: Sizes) -> io::Result<()> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    println!("listening {}", listener.local_addr()?);
    let mut poll = Poll::new()?;
    let peers = (0..clients).map(|at| Peer::new(listener.accept()?.0, at, &poll));
    let mut peers: Vec<Peer> = peers.collect::<io::Result<_>>()?;
    let (message, answer) = (vec![b'x'; message], vec![b'p'; answer]);
    let mut buffer = [0; 4096];
    let mut events = Events::with_capacity(1024);
    for line in io::stdin().lock().lines() {
        if line? != "go" {
            break;
        }
        for peer in &mut peers {
            peer.unwritten = message.len();
            peer.write(&message)?;
        }
        let (mut missing, deadline) = (clients, Instant::now() + PATIENCE);
        while missing > 0 {
            poll.poll(&mut events, Some(Duration::from_secs(1)))?;
            for event in &events {
                let peer = &mut peers[event.token().0];
                peer.write(&message)?;
                if event.is_readable() {
                    peer.read(&mut buffer)?;
                    if peer.has_read(ack) {
                        missing -= 1;
                        if !answer.is_empty() {
                            peer.socket.write_all(&answer)?;
                        }
                    }
                }
            }
            if Instant::now() > deadline {
                return Err(io::Error::other(format!("the floor's clients do not answer: {missing}")));
            }
        }
    }
    Ok(())
}

/// Connects, then answers every message with an ACK; `expect` as in the load client, for all of them.
pub(crate) fn run_load(
    target: SocketAddr,
    clients: usize,
    Sizes { message, ack, answer }: Sizes,
) -> io::Result<()> {
    let mut poll = Poll::new()?;
    let peers = (0..clients).map(|at| Peer::new(std::net::TcpStream::connect(target)?, at, &poll));
    let mut peers: Vec<Peer> = peers.collect::<io::Result<_>>()?;
    for peer in &mut peers {
        peer.read = answer;
    }
    println!("ready");
    let ack = vec![b'a'; ack];
    let mut buffer = vec![0; 256 << 10];
    let mut events = Events::with_capacity(1024);
    for line in io::stdin().lock().lines() {
        if !line?.starts_with("expect ") {
            break;
        }
        println!("waiting");
        let mut times = Vec::with_capacity(clients);
        let deadline = Instant::now() + PATIENCE;
        while times.len() < clients {
            poll.poll(&mut events, Some(Duration::from_secs(1)))?;
            for event in &events {
                let peer = &mut peers[event.token().0];
                if event.is_readable() {
                    peer.read(&mut buffer)?;
                    if peer.has_read(answer + message) {
                        times.push(monotonic_nanos());
                        peer.unwritten = ack.len();
                    }
                }
                peer.write(&ack)?;
            }
            if Instant::now() > deadline {
                return Err(io::Error::other(format!("{} of {clients} messages of the floor", times.len())));
            }
        }
        let (median, p99, last) = (quantile(&times, 0.5), quantile(&times, 0.99), quantile(&times, 1.0));
        let bytes = (clients * message) as u64;
        let tally = Tally { messages: clients as u64, bytes, ..Tally::default() };
        println!("got {}", serde_json::to_string(&Arrivals { median, p99, last, tally })?);
    }
    Ok(())
}
