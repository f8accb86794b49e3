//! Polls over HTTP/1.1 on one connection. Every answer is followed by the next poll, which offers its version.

use std::io;

use super::load::Heard;
use super::shape::{Kind, Load};

const HEAD_END: &[u8] = b"\r\n\r\n";
/// Beginning of an answer; its version follows.
const VERSION: &[u8] = b"{\"versionInfo\":\"";

pub(crate) struct Poller {
    arrived: Vec<u8>,
    path: &'static str,
    /// Body of each poll behind the version.
    rest: String,
}

impl Poller {
    pub(crate) fn new(load: &Load, client: usize, pool: &[String]) -> Self {
        let kind = load.kinds[0];
        let path = match kind {
            Kind::Cds => "clusters",
            Kind::Eds => "endpoints",
            Kind::Lds => "listeners",
            Kind::Rds => "routes",
        };
        let names = serde_json::json!(load.names_of(client, 0, pool));
        let type_url = kind.type_url();
        let rest = format!(
            "\"node\":{{\"id\":\"node-{client}\",\"cluster\":\"bench\",\"user_agent_name\":\"envoy\"}},\
             \"resource_names\":{names},\"type_url\":\"{type_url}\"}}"
        );
        Self { arrived: Vec::new(), path, rest }
    }

    /// A poll as Envoy sends it.
    pub(crate) fn request(&self, version: &str) -> Vec<u8> {
        let Self { path, rest, .. } = self;
        let body = format!("{{\"version_info\":\"{version}\",{rest}");
        let length = body.len();
        format!(
            "POST /v3/discovery:{path} HTTP/1.1\r\nhost: deltafan\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        )
        .into_bytes()
    }

    /// Takes bytes in. If an answer is whole with them, the next poll goes to `out`.
    pub(crate) fn read(&mut self, bytes: &[u8], out: &mut Vec<u8>, heard: &mut Heard) -> io::Result<()> {
        self.arrived.extend_from_slice(bytes);
        let arrived = &self.arrived;
        let Some(end) = arrived.windows(HEAD_END.len()).position(|window| window == HEAD_END) else {
            return Ok(());
        };
        let head = std::str::from_utf8(&arrived[..end]).map_err(io::Error::other)?;
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(Ok(0), str::parse).map_err(io::Error::other)?;
        let body = end + HEAD_END.len();
        if arrived.len() < body + length {
            return Ok(());
        }
        if head.get(9..12) != Some("200") {
            return Err(io::Error::other(format!("an answer of {}", String::from_utf8_lossy(arrived))));
        }
        let version = arrived[body..].strip_prefix(VERSION).and_then(|rest| rest.get(..32));
        let version = version.ok_or_else(|| io::Error::other("an answer without a version"))?;
        *out = self.request(&String::from_utf8_lossy(version));
        self.arrived.clear();
        heard.note(1);
        Ok(())
    }
}
