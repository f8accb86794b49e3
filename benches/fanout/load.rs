//! The load client: one thread, one epoll, many connections. Every response is ACKed.

use std::io::{self, BufRead as _, Read as _, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use deltafan::proto::{DeltaDiscoveryRequest, DiscoveryRequest, Node};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use prost::Message as _;

use super::h2::{self, Event, Reader};
use super::measure::monotonic_nanos;
use super::shape::{Load, Transport};

const PATIENCE: Duration = Duration::from_secs(120);
const NONCE_FIELD: u64 = 5;

struct Connection {
    socket: TcpStream,
    reader: Reader,
    outgoing: Vec<u8>,
    /// Stops taking what is sent to it once its first state came.
    silent: bool,
    greeted: usize,
}

/// Runs the load as the commands on stdin say: `expect N` waits for N responses and tells when they came.
pub(crate) fn run(target: SocketAddr, load: &Load) -> io::Result<()> {
    let mut clients = Clients::connect(target, load)?;
    let begun = Instant::now();
    clients.greet(load)?;
    println!("ready {}", begun.elapsed().as_nanos());
    for command in io::stdin().lock().lines() {
        let command = command?;
        let Some(expected) = command.strip_prefix("expect ") else { break };
        let times = clients.expect(expected.parse().map_err(io::Error::other)?)?;
        let at = |fraction: f64| times[((times.len() - 1) as f64 * fraction) as usize];
        println!("got {} {} {} {}", times.len(), at(0.5), at(0.99), at(1.0));
    }
    Ok(())
}

struct Clients {
    poll: Poll,
    events: Events,
    connections: Vec<Connection>,
    buffer: Vec<u8>,
    ack: Ack,
    streams_each: usize,
}

impl Clients {
    fn connect(target: SocketAddr, load: &Load) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut connections = Vec::new();
        let count = load.clients / load.streams_per_connection;
        for at in 0..count {
            let socket = std::net::TcpStream::connect(target)?;
            socket.set_nodelay(true)?;
            socket.set_nonblocking(true)?;
            let mut socket = TcpStream::from_std(socket);
            poll.registry().register(&mut socket, Token(at), Interest::READABLE)?;
            let silent = (at * 100 / count.max(1)) < load.silent_percent;
            connections.push(Connection {
                socket,
                reader: Reader::default(),
                outgoing: Vec::new(),
                silent,
                greeted: 0,
            });
        }
        Ok(Self {
            poll,
            events: Events::with_capacity(1024),
            connections,
            buffer: vec![0; 1 << 20],
            ack: Ack::of(load),
            streams_each: load.streams_per_connection,
        })
    }

    /// Opens all streams and waits until each has its first state.
    fn greet(&mut self, load: &Load) -> io::Result<()> {
        for at in 0..self.connections.len() {
            let mut out = Vec::new();
            h2::preface(&mut out);
            for inner in 0..self.streams_each {
                let stream = 2 * inner as u32 + 1;
                h2::open(&mut out, stream, load.method());
                h2::message(&mut out, stream, &first_request(load, at * self.streams_each + inner));
            }
            let connection = &mut self.connections[at];
            connection.outgoing = out;
            flush(connection)?;
            // The listen queue and the server's first answers are not what is measured.
            self.turn(Duration::ZERO, &mut |_| {})?;
        }
        let deadline = Instant::now() + PATIENCE;
        while self.connections.iter().any(|connection| connection.greeted < self.streams_each) {
            self.turn(Duration::from_millis(100), &mut |_| {})?;
            if Instant::now() > deadline {
                return Err(io::Error::other("not every client has its first state"));
            }
        }
        Ok(())
    }

    /// Waits for so many responses and returns when they came, in order.
    fn expect(&mut self, count: usize) -> io::Result<Vec<u64>> {
        let mut times = Vec::with_capacity(count);
        let deadline = Instant::now() + PATIENCE;
        while times.len() < count {
            self.turn(Duration::from_millis(100), &mut |now| times.push(now))?;
            if Instant::now() > deadline {
                return Err(io::Error::other(format!("{} of {count} responses", times.len())));
            }
        }
        Ok(times)
    }

    fn turn(&mut self, wait: Duration, heard: &mut impl FnMut(u64)) -> io::Result<()> {
        self.poll.poll(&mut self.events, Some(wait))?;
        for event in &self.events {
            let connection = &mut self.connections[event.token().0];
            if connection.silent && connection.greeted >= self.streams_each {
                continue;
            }
            loop {
                let read = match connection.socket.read(&mut self.buffer) {
                    Ok(0) => return Err(io::Error::other("the server closed a connection")),
                    Ok(read) => read,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                };
                let now = monotonic_nanos();
                let mut fault = None;
                let (ack, greeted) = (&self.ack, &mut connection.greeted);
                connection.reader.read(&self.buffer[..read], &mut connection.outgoing, |event, out| {
                    match event {
                        Event::Message { stream, message } => {
                            *greeted += 1;
                            heard(now);
                            ack.write(out, stream, message);
                        }
                        Event::Ended { stream } => fault = Some(stream),
                    }
                });
                if let Some(stream) = fault {
                    return Err(io::Error::other(format!("the server ended stream {stream}")));
                }
                if read < self.buffer.len() {
                    break;
                }
            }
            flush(connection)?;
        }
        Ok(())
    }
}

fn flush(connection: &mut Connection) -> io::Result<()> {
    while !connection.outgoing.is_empty() {
        match connection.socket.write(&connection.outgoing) {
            Ok(written) => _ = connection.outgoing.drain(..written),
            // Requests are small and the server reads them; what is left goes out with the next event.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn first_request(load: &Load, client: usize) -> Vec<u8> {
    let node = Some(Node { id: format!("load-{client}"), cluster: "load".to_owned(), ..Node::default() });
    let type_url = load.type_url().to_owned();
    let names = load.names_of(client);
    match load.transport {
        Transport::Delta => DeltaDiscoveryRequest {
            node,
            type_url,
            resource_names_subscribe: names,
            ..DeltaDiscoveryRequest::default()
        }
        .encode_to_vec(),
        Transport::Sotw => {
            DiscoveryRequest { node, type_url, resource_names: names, ..DiscoveryRequest::default() }
                .encode_to_vec()
        }
    }
}

/// What is the same in every ACK of a load.
struct Ack {
    transport: Transport,
    type_url: &'static str,
}

impl Ack {
    const fn of(load: &Load) -> Self {
        Self { transport: load.transport, type_url: load.type_url() }
    }

    fn write(&self, out: &mut Vec<u8>, stream: u32, response: &[u8]) {
        let text = |number| {
            let text = h2::field(response, number).unwrap_or_default();
            String::from_utf8_lossy(text).into_owned()
        };
        let type_url = self.type_url.to_owned();
        let message = match self.transport {
            Transport::Delta => DeltaDiscoveryRequest {
                type_url,
                response_nonce: text(NONCE_FIELD),
                ..DeltaDiscoveryRequest::default()
            }
            .encode_to_vec(),
            Transport::Sotw => DiscoveryRequest {
                type_url,
                version_info: text(1),
                response_nonce: text(NONCE_FIELD),
                ..DiscoveryRequest::default()
            }
            .encode_to_vec(),
        };
        h2::message(out, stream, &message);
    }
}
