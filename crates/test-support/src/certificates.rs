//! Certificates made on the fly, and clients that use them.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType, IsCa,
    Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber, date_time_ymd,
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

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub fn pem(&self) -> String {
        self.0.pem()
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

    /// For a server on this machine.
    pub fn server(&self) -> Identity {
        self.issue(CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap())
    }

    /// For a client with this SPIFFE ID.
    pub fn client(&self, spiffe_id: &str) -> Identity {
        self.issue(Self::params(spiffe_id))
    }

    /// For a client with so many names.
    pub fn client_of_many(&self, names: usize) -> Identity {
        let mut params = Self::params("spiffe://many.test/client");
        let more = (0..names).map(|n| SanType::DnsName(format!("n{n}.many.test").try_into().unwrap()));
        params.subject_alt_names.extend(more);
        self.issue(params)
    }

    /// This client with a chain of certificates behind its own.
    pub fn chained(
        &self,
        identity: Identity,
        chain: impl IntoIterator<Item = CertificateDer<'static>>,
    ) -> Identity {
        Identity { chain: chain.into_iter().collect(), ..identity }
    }

    /// Its own certificate.
    pub fn der(&self) -> CertificateDer<'static> {
        self.0.der().clone()
    }

    /// For a client, and no longer valid.
    pub fn expired_client(&self, spiffe_id: &str) -> Identity {
        let mut params = Self::params(spiffe_id);
        params.not_after = date_time_ymd(2001, 1, 1);
        self.issue(params)
    }

    fn params(spiffe_id: &str) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "client");
        params.subject_alt_names = vec![SanType::URI(spiffe_id.try_into().unwrap())];
        params
    }

    /// A list of what it has revoked.
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
        roots.add(self.0.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(identity.key.clone()));
                let chain = std::iter::once(&identity.cert).chain(&identity.chain).cloned().collect();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

/// Replaces a file, as careful writers do.
pub fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, path).unwrap();
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
