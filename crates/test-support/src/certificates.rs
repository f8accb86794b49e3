//! Certificates made on the fly, and clients that use them.
//!
//! Owns the one authority of tests: it certifies whatever it is asked to, and revokes. Knows nothing of the relay.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SanType,
    SerialNumber, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};

/// An authority.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate with its key.
pub struct Identity {
    pub cert: CertificateDer<'static>,
    pub cert_pem: String,
    pub key_pem: String,
    /// Certificates that are shown behind its own.
    chain: Vec<CertificateDer<'static>>,
    key: Vec<u8>,
    serial: SerialNumber,
}

/// Purpose of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Servers and clients, for centuries.
    Any,
    /// Clients only.
    Client,
    /// Nothing any more since 2020.
    Expired,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Its own certificate, in PEM.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Its own certificate.
    pub fn der(&self) -> CertificateDer<'static> {
        self.0.der().clone()
    }

    /// A certificate for DNS names, addresses and URIs.
    pub fn certify(&self, names: &[impl AsRef<str>], usage: Use) -> Identity {
        let (uris, others): (Vec<&str>, Vec<&str>) =
            names.iter().map(AsRef::as_ref).partition(|name| name.contains("://"));
        let others: Vec<String> = others.into_iter().map(str::to_owned).collect();
        let mut params = CertificateParams::new(others).unwrap();
        let uris = uris.into_iter().map(|uri| SanType::URI(uri.try_into().unwrap()));
        params.subject_alt_names.extend(uris);
        params.extended_key_usages = match usage {
            Use::Any | Use::Expired => {
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]
            }
            Use::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
        };
        if usage == Use::Expired {
            params.not_before = date_time_ymd(2019, 1, 1);
            params.not_after = date_time_ymd(2020, 1, 1);
        }
        self.issue(params)
    }

    /// Writes the certificate of a server of this authority and the authority of its clients into a folder. Returns the configuration of
    /// a listener with these, and further keys in which `AT` is the folder.
    pub fn write_server(&self, folder: &Path, clients: &Self, further: &str) -> String {
        let server = self.server();
        for (name, text) in
            [("cert.pem", &server.cert_pem), ("key.pem", &server.key_pem), ("clients.pem", &clients.pem())]
        {
            put(folder, name, text);
        }
        let listener = "{address: \"127.0.0.1:0\", tls: {cert_file: AT/cert.pem, key_file: AT/key.pem";
        format!("{listener}{further}}}}}").replace("AT", &folder.display().to_string())
    }

    /// For a server on this machine.
    pub fn server(&self) -> Identity {
        self.certify(&["localhost", "127.0.0.1"], Use::Any)
    }

    /// For a client with this SPIFFE ID.
    pub fn client(&self, spiffe_id: &str) -> Identity {
        self.certify(&[spiffe_id], Use::Client)
    }

    fn issue(&self, mut params: CertificateParams) -> Identity {
        let key = KeyPair::generate().unwrap();
        let serial = SerialNumber::from(rand::random::<u64>() >> 1);
        params.serial_number = Some(serial.clone());
        let issuer: &Issuer<'_, KeyPair> = &self.0;
        let cert = params.signed_by(&key, issuer).unwrap();
        Identity {
            cert: cert.der().clone(),
            cert_pem: cert.pem(),
            key_pem: key.serialize_pem(),
            chain: Vec::new(),
            key: key.serialize_der(),
            serial,
        }
    }

    /// A list of these as revoked, in PEM.
    pub fn revoke(&self, revoked: &[&Identity]) -> String {
        let revoked_certs = revoked.iter().map(|identity| RevokedCertParams {
            serial_number: identity.serial.clone(),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2100, 1, 1),
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: revoked_certs.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let issuer: &Issuer<'_, KeyPair> = &self.0;
        params.signed_by(issuer).unwrap().pem().unwrap()
    }

    /// Configuration of a client of a server of this authority; with its identity, if it has one.
    pub fn trusting(
        &self,
        identity: Option<&Identity>,
        versions: &[&'static SupportedProtocolVersion],
        alpn: &[&str],
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => builder.with_client_auth_cert(identity.chain(), identity.key()).unwrap(),
        };
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

impl Identity {
    /// Shows these certificates behind its own.
    #[must_use]
    pub fn chained(self, chain: impl IntoIterator<Item = CertificateDer<'static>>) -> Self {
        Self { chain: chain.into_iter().collect(), ..self }
    }

    /// Certificates that it shows, its own first.
    pub fn chain(&self) -> Vec<CertificateDer<'static>> {
        std::iter::once(&self.cert).chain(&self.chain).cloned().collect()
    }

    pub fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.clone()))
    }
}

/// Puts a file in its place, whole or not at all, as careful writers do.
pub fn put(folder: &Path, name: &str, text: &str) -> PathBuf {
    let (path, hidden) = (folder.join(name), folder.join(format!(".{name}.new")));
    std::fs::write(&hidden, text).unwrap();
    std::fs::rename(hidden, &path).unwrap();
    path
}

/// A handshake. With TLS 1.3 a client learns only afterwards whether its certificate was accepted.
pub async fn shake_hands(
    server: SocketAddr,
    config: Arc<ClientConfig>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let socket = TcpStream::connect(server).await?;
    TlsConnector::from(config).connect(ServerName::try_from("localhost").unwrap(), socket).await
}

/// A gRPC channel over TLS.
pub async fn connect_tls(
    server: SocketAddr,
    config: Arc<ClientConfig>,
) -> Result<Channel, tonic::transport::Error> {
    let connector = tower::service_fn(move |_| {
        let config = Arc::clone(&config);
        async move { shake_hands(server, config).await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://localhost").connect_with_connector(connector).await
}
