//! The load client that polls: one thread, one epoll, a connection over HTTP/1.1 for each client. Every answer is
//! followed by the next poll, which offers its version.

use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use super::load::{Fleet, WAKE, obey};
use super::measure::{monotonic_nanos, quantile};
use super::report::{Arrivals, Joined, Tally};
use super::shape::{Kind, Load};

const HEAD_END: &[u8] = b"\r\n\r\n";
/// Beginning of an answer; its version follows.
const VERSION: &[u8] = b"{\"versionInfo\":\"";

struct Client {
    socket: TcpStream,
    arrived: Vec<u8>,
    outgoing: Vec<u8>,
    at: usize,
}

struct Clients<'a> {
    load: &'a Load,
    target: SocketAddr,
    pool: Vec<String>,
    poll: Poll,
    events: Events,
    clients: Vec<Client>,
    times: Vec<u64>,
    sums: Tally,
}

/// Reads the lines that the load client of streams understands.
pub(crate) fn run(target: SocketAddr, load: &Load) -> io::Result<()> {
    obey(&mut Clients {
        load,
        target,
        pool: load.pool(),
        poll: Poll::new()?,
        events: Events::with_capacity(1024),
        clients: Vec::with_capacity(load.clients),
        times: Vec::new(),
        sums: Tally::default(),
    })
}

impl Fleet for Clients<'_> {
    fn poll(&self) -> &Poll {
        &self.poll
    }

    fn join(&mut self) -> io::Result<Joined> {
        let begun = Instant::now();
        for at in 0..self.load.clients {
            let mut socket = TcpStream::connect(self.target)?;
            socket.set_nodelay(true)?;
            self.poll.registry().register(&mut socket, Token(at), Interest::READABLE | Interest::WRITABLE)?;
            let outgoing = self.request(at, "");
            self.clients.push(Client { socket, arrived: Vec::new(), outgoing, at });
            self.turn(Duration::ZERO)?;
        }
        self.wait(self.load.clients)?;
        self.times.clear();
        Ok(Joined { nanos: begun.elapsed().as_nanos() as u64, tally: self.tally() })
    }

    fn expect(&mut self, count: usize) -> io::Result<Arrivals> {
        self.times.clear();
        self.sums = Tally::default();
        println!("waiting");
        self.wait(count)?;
        self.times.sort_unstable();
        let [median, p99, last] = [0.5, 0.99, 1.0].map(|part| quantile(&self.times, part));
        Ok(Arrivals { median, p99, last, tally: self.tally() })
    }

    fn tally(&mut self) -> Tally {
        std::mem::take(&mut self.sums)
    }

    fn turn(&mut self, wait: Duration) -> io::Result<()> {
        self.poll.poll(&mut self.events, Some(wait))?;
        let ready: Vec<usize> = self
            .events
            .iter()
            .map(|event| event.token())
            .filter(|token| *token != WAKE)
            .map(|token| token.0)
            .collect();
        for at in ready {
            self.read(at)?;
            self.flush(at)?;
        }
        Ok(())
    }
}

impl Clients<'_> {
    /// Waits until so many answers have come.
    fn wait(&mut self, count: usize) -> io::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(self.load.patience);
        while self.times.len() < count {
            self.turn(Duration::from_millis(100))?;
            if Instant::now() > deadline {
                return Err(io::Error::other(format!("{} of {count} answers came", self.times.len())));
            }
        }
        Ok(())
    }

    /// A poll as Envoy sends it.
    fn request(&self, client: usize, version: &str) -> Vec<u8> {
        let kind = self.load.kinds[0];
        let path = match kind {
            Kind::Cds => "clusters",
            Kind::Eds => "endpoints",
            Kind::Lds => "listeners",
            Kind::Rds => "routes",
        };
        let names = serde_json::json!(self.load.names_of(client, 0, &self.pool));
        let type_url = kind.type_url();
        let body = format!(
            "{{\"version_info\":\"{version}\",\"node\":{{\"id\":\"node-{client}\",\"cluster\":\"bench\",\
             \"user_agent_name\":\"envoy\"}},\"resource_names\":{names},\"type_url\":\"{type_url}\"}}"
        );
        let length = body.len();
        format!(
            "POST /v3/discovery:{path} HTTP/1.1\r\nhost: deltafan\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        )
        .into_bytes()
    }

    fn read(&mut self, at: usize) -> io::Result<()> {
        let mut buffer = [0; 64 << 10];
        loop {
            let read = match self.clients[at].socket.read(&mut buffer) {
                Ok(0) => return Err(io::Error::other("the server closed a connection")),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::NotConnected => return Ok(()),
                Err(error) => return Err(error),
            };
            self.sums.bytes += read as u64;
            self.clients[at].arrived.extend_from_slice(&buffer[..read]);
            self.take(at)?;
            if read < buffer.len() {
                return Ok(());
            }
        }
    }

    /// Takes an answer if it is whole, and polls again.
    fn take(&mut self, at: usize) -> io::Result<()> {
        let arrived = &self.clients[at].arrived;
        let Some(end) = arrived.windows(HEAD_END.len()).position(|window| window == HEAD_END) else {
            return Ok(());
        };
        let head = std::str::from_utf8(&arrived[..end]).map_err(io::Error::other)?;
        let status = head.get(9..12).unwrap_or_default().to_owned();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(Ok(0), str::parse).map_err(io::Error::other)?;
        let body = end + HEAD_END.len();
        if arrived.len() < body + length {
            return Ok(());
        }
        if status != "200" {
            return Err(io::Error::other(format!(
                "an answer with {status}: {}",
                String::from_utf8_lossy(arrived)
            )));
        }
        let version = arrived[body..].strip_prefix(VERSION).and_then(|rest| rest.get(..32));
        let version = version.ok_or_else(|| io::Error::other("an answer without a version"))?;
        let version = String::from_utf8_lossy(version).into_owned();
        self.times.push(monotonic_nanos());
        self.sums.messages += 1;
        let request = self.request(self.clients[at].at, &version);
        let client = &mut self.clients[at];
        client.arrived.clear();
        client.outgoing = request;
        Ok(())
    }

    fn flush(&mut self, at: usize) -> io::Result<()> {
        let client = &mut self.clients[at];
        while !client.outgoing.is_empty() {
            match client.socket.write(&client.outgoing) {
                Ok(written) => {
                    self.sums.sent += written as u64;
                    client.outgoing.drain(..written);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::NotConnected => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
