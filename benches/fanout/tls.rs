//! TLS of the load client, and the certificates of a run: both sides show one, ECDSA over P-256 as meshes have them.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use deltafan_test_support::certificates::{Authority, put};
use mio::net::TcpStream;
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

/// Name in the relay's certificate.
const NAME: &str = "localhost";

/// An authority, and what it certified: files for as long as this lives.
pub(crate) struct Certificates(tempfile::TempDir);

impl Certificates {
    pub(crate) fn make() -> io::Result<Self> {
        let home = tempfile::tempdir()?;
        let authority = Authority::new("authority of the bench");
        put(home.path(), "ca.pem", &authority.pem());
        for who in ["relay", "client"] {
            let identity = authority.server();
            put(home.path(), &format!("{who}.pem"), &identity.cert_pem);
            put(home.path(), &format!("{who}.key"), &identity.key_pem);
        }
        Ok(Self(home))
    }

    /// Where they are.
    pub(crate) fn folder(&self) -> PathBuf {
        self.0.path().to_owned()
    }
}

/// Configuration of a listener of the relay.
pub(crate) fn of_listener(folder: &Path) -> String {
    let file = |name| folder.join(name).display().to_string();
    format!(
        "tls: {{cert_file: \"{}\", key_file: \"{}\", client_ca_file: \"{}\"}}",
        file("relay.pem"),
        file("relay.key"),
        file("ca.pem")
    )
}

/// Configuration of clients. Nothing is resumed: each handshake is a whole one.
pub(crate) fn of_clients(folder: &Path) -> io::Result<Arc<ClientConfig>> {
    let certificate = |name| CertificateDer::from_pem_file(folder.join(name)).map_err(io::Error::other);
    let mut roots = RootCertStore::empty();
    roots.add(certificate("ca.pem")?).map_err(io::Error::other)?;
    let key = PrivateKeyDer::from_pem_file(folder.join("client.key")).map_err(io::Error::other)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| {
            let chain =
                vec![certificate("client.pem").map_err(|error| rustls::Error::General(error.to_string()))?];
            builder.with_root_certificates(roots).with_client_auth_cert(chain, key)
        })
        .map_err(io::Error::other)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// A client's side of a connection.
pub(crate) struct Session(Box<ClientConnection>);

impl Session {
    pub(crate) fn new(config: &Arc<ClientConfig>) -> io::Result<Self> {
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        let mut session = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        // Bytes that are sent before the handshake is over wait for that.
        session.set_buffer_limit(None);
        Ok(Self(Box::new(session)))
    }

    pub(crate) fn is_shaking_hands(&self) -> bool {
        self.0.is_handshaking()
    }

    /// Reads what was meant for the client, as a socket that does not block does.
    pub(crate) fn read(&mut self, socket: &mut TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            if self.0.read_tls(socket)? == 0 {
                return Ok(0);
            }
            self.0.process_new_packets().map_err(io::Error::other)?;
        }
    }

    /// Takes all that is outgoing, and writes of it what the socket takes. Returns how much that was.
    pub(crate) fn flush(&mut self, socket: &mut TcpStream, outgoing: &mut Vec<u8>) -> io::Result<usize> {
        self.0.writer().write_all(outgoing)?;
        outgoing.clear();
        let mut sent = 0;
        while self.0.wants_write() {
            match self.0.write_tls(socket) {
                Ok(written) => sent += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }
}
