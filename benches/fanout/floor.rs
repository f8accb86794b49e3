//! The floor: the same bytes over as many sockets by a loop that does nothing else.

use std::io::{self, BufRead as _, Read as _, Write as _};
use std::net::SocketAddr;
use std::time::Duration;

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use super::measure::monotonic_nanos;

/// An ACK of a delta stream with its frame header.
const ACK: usize = 110;

/// Accepts the clients, then sends each a message and reads its ACK whenever told to.
pub(crate) fn run_server(clients: usize, message: usize) -> io::Result<()> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    println!("listening {}", listener.local_addr()?);
    let mut poll = Poll::new()?;
    let mut sockets = Vec::new();
    for at in 0..clients {
        let (socket, _) = listener.accept()?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let mut socket = TcpStream::from_std(socket);
        poll.registry().register(&mut socket, Token(at), Interest::READABLE)?;
        sockets.push(socket);
    }
    let message = vec![b'x'; message];
    let mut buffer = [0; 4096];
    let mut events = Events::with_capacity(1024);
    for line in io::stdin().lock().lines() {
        if line? != "go" {
            break;
        }
        for socket in &mut sockets {
            write_all(socket, &message)?;
        }
        let mut missing = clients * ACK;
        while missing > 0 {
            poll.poll(&mut events, Some(Duration::from_secs(30)))?;
            for event in &events {
                match sockets[event.token().0].read(&mut buffer) {
                    Ok(read) => missing -= read,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
        }
        println!("done");
    }
    Ok(())
}

/// Connects, then answers every message with an ACK; `expect N` as in the load client.
pub(crate) fn run_load(target: SocketAddr, clients: usize, message: usize) -> io::Result<()> {
    let mut poll = Poll::new()?;
    let mut sockets = Vec::new();
    for at in 0..clients {
        let socket = std::net::TcpStream::connect(target)?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let mut socket = TcpStream::from_std(socket);
        poll.registry().register(&mut socket, Token(at), Interest::READABLE)?;
        sockets.push((socket, 0));
    }
    println!("ready 0");
    let mut buffer = vec![0; 1 << 20];
    let mut events = Events::with_capacity(1024);
    for line in io::stdin().lock().lines() {
        if !line?.starts_with("expect ") {
            break;
        }
        let mut times = Vec::with_capacity(clients);
        while times.len() < clients {
            poll.poll(&mut events, Some(Duration::from_secs(30)))?;
            for event in &events {
                let (socket, have) = &mut sockets[event.token().0];
                match socket.read(&mut buffer) {
                    Ok(read) => *have += read,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                    Err(error) => return Err(error),
                }
                if *have >= message {
                    *have -= message;
                    times.push(monotonic_nanos());
                    write_all(socket, &[b'a'; ACK])?;
                }
            }
        }
        let at = |fraction: f64| times[((times.len() - 1) as f64 * fraction) as usize];
        println!("got {} {} {} {}", times.len(), at(0.5), at(0.99), at(1.0));
    }
    Ok(())
}

fn write_all(socket: &mut TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match socket.write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
