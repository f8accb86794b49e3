//! A client without manners: raw bytes on a socket, and frames made by hand.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

pub(crate) use deltafan_test_support::client::DELTA_ADS;
pub(crate) use deltafan_test_support::frames::*;

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
    pub(crate) fn lasts(&self) -> bool {
        Instant::now() < self.until
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

    /// So many connections that say this, nothing more until the end, and vanish.
    pub(crate) fn hold_peers(&self, count: usize, says: &[u8]) {
        let peers = self.peers(count, says);
        std::thread::sleep(self.until.saturating_duration_since(Instant::now()));
        peers.into_iter().for_each(Peer::vanish);
    }

    /// Opens stream after stream with what `piece` says of its number, so many at a time.
    pub(crate) fn flood_streams(&self, at_a_time: u32, piece: impl Fn(u32) -> Vec<u8>) {
        self.flood(&[], |turn| (0..at_a_time).flat_map(|n| piece(stream(turn * at_a_time + n))).collect());
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

    /// Leaves without a word: the other side is reset.
    pub(crate) fn vanish(self) {
        _ = socket2::SockRef::from(self.0.tcp()).set_linger(Some(Duration::ZERO));
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
