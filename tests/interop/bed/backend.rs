//! HTTP servers that answer every request with their own name.

use std::{
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    thread,
};

/// Serves until the test process ends: a thread that waits for connections costs nothing.
pub(crate) fn http_backend(name: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            thread::spawn(move || answer(&connection, name));
        }
    });
    port
}

/// Answers one request and closes, so that each request shows where the route leads at that moment.
fn answer(mut connection: &TcpStream, name: &str) -> Option<()> {
    let mut request = BufReader::new(connection).lines();
    while !request.next()?.ok()?.is_empty() {}
    let length = name.len();
    let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{name}");
    connection.write_all(response.as_bytes()).ok()
}
