//! A client of HTTP/1.1 that keeps its connection, and says exactly what a test tells it to.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

/// One connection.
#[derive(Debug)]
pub struct Http1 {
    socket: BufReader<TcpStream>,
}

/// Response to a request.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// Seconds after which to try again, if it says so.
    pub fn retry_after(&self) -> Option<u64> {
        self.header("retry-after").map(|seconds| seconds.parse().unwrap())
    }

    pub fn json(&self) -> serde_json::Value {
        assert_eq!(self.status, 200, "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/json"));
        serde_json::from_str(&self.body).unwrap()
    }

    pub fn version(&self) -> String {
        self.json()["versionInfo"].as_str().unwrap().to_owned()
    }
}

impl Http1 {
    pub fn connect(server: SocketAddr) -> Self {
        let socket = TcpStream::connect(server).unwrap();
        socket.set_read_timeout(Some(crate::PATIENCE)).unwrap();
        socket.set_nodelay(true).unwrap();
        Self { socket: BufReader::new(socket) }
    }

    pub fn socket(&self) -> &TcpStream {
        self.socket.get_ref()
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.socket.get_mut().write_all(bytes).unwrap();
    }

    /// Sends a request of this method, path and further header lines.
    pub fn request(&mut self, line: &str, headers: &str, body: &str) {
        let length = body.len();
        let head = format!("{line} HTTP/1.1\r\nhost: relay\r\n{headers}content-length: {length}\r\n\r\n");
        self.send(&[head.as_bytes(), body.as_bytes()].concat());
    }

    /// The next answer; `None` where the connection ends instead.
    pub fn answer(&mut self) -> Option<Answer> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if self.socket.read_line(&mut line).unwrap_or(0) == 0 {
                return None;
            }
            if line == "\r\n" {
                break;
            }
            lines.push(line.trim_end().to_owned());
        }
        let status = lines[0].split(' ').nth(1).unwrap().parse().unwrap();
        let header = |line: &String| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.to_ascii_lowercase(), value.to_owned())
        };
        let headers: Vec<_> = lines[1..].iter().map(header).collect();
        let length = headers.iter().find(|(name, _)| name == "content-length");
        let mut body = vec![0; length.map_or(0, |(_, length)| length.parse().unwrap())];
        self.socket.read_exact(&mut body).unwrap();
        Some(Answer { status, headers, body: String::from_utf8(body).unwrap() })
    }

    /// Sends a poll and waits for its answer.
    pub fn poll(&mut self, what: &str, body: &str) -> Answer {
        self.request(&format!("POST /v3/discovery:{what}"), "", body);
        self.answer().expect("an answer")
    }
}
