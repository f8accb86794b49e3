//! Client side of TLS: from a configuration and its files to connections.
//!
//! Owns a server's expected authority and name, the client certificate, and ALPN for HTTP/2. Knows nothing of
//! a connection's data. No session is resumed: each connection verifies the server against the files then in
//! force.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::version::{TLS12, TLS13};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use super::diagnosis::{Diagnosis, Http, IdentityError, Own, Settings};
use super::files::{Files, LoadError, Loaded, authorities, fact};
use super::options::{CertificateFiles, ServerIdentity, TlsOptions};

const H2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// Client side of TLS, made of one state of its files.
#[derive(Debug)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    /// Explains errors before the server's first bytes, when it may refuse our certificate.
    pub diagnosis: Diagnosis,
}

#[derive(Debug, Clone)]
pub struct ClientFiles {
    files: TlsOptions,
    expected: ServerIdentity,
    name: ServerName<'static>,
    settings: Settings,
}

impl ClientFiles {
    /// For the server at this address.
    ///
    /// # Errors
    ///
    /// [`LoadError`] if neither `server_name` nor the address names the server.
    pub fn new(files: TlsOptions, uri: &http::Uri) -> Result<Self, LoadError> {
        let host = ServerIdentity::of_host(uri);
        let expected = match &files.server_name {
            Some(expected) => expected.clone(),
            None => host.clone().map_err(LoadError)?,
        };
        let name = match (&expected, host) {
            (ServerIdentity::Name(name), _) => name.clone(),
            (ServerIdentity::Spiffe(_), Ok(ServerIdentity::Name(name))) => name,
            // A handshake cannot name an ID, and omits an address.
            (ServerIdentity::Spiffe(_), _) => ServerName::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        };
        Ok(Self { files, expected, name, settings: Settings::KEYS })
    }

    /// Makes messages name these settings instead of keys of a configuration.
    #[must_use]
    pub fn set_by(self, settings: Settings) -> Self {
        Self { settings, ..self }
    }

    /// Uses the current files.
    ///
    /// # Errors
    ///
    /// [`LoadError`] if a file cannot be used.
    pub fn read(&self) -> Result<ClientTls, LoadError> {
        Ok(self.load(&Files::read(&self.paths())?)?.value)
    }

    pub fn paths(&self) -> Vec<PathBuf> {
        let TlsOptions { ca_file, own, crl_file, server_name: _ } = &self.files;
        let own = own.iter().flat_map(|own| [&own.cert_file, &own.key_file]);
        ca_file.iter().chain(crl_file).chain(own).cloned().collect()
    }

    /// Makes a client side of the files.
    ///
    /// # Errors
    ///
    /// [`LoadError`] if a file cannot be used, or the key is not that of the certificate.
    pub fn load(&self, files: &Files) -> Result<Loaded<ClientTls>, LoadError> {
        let provider = Arc::new(ring::default_provider());
        let mut facts = Vec::new();
        let roots = Arc::new(match &self.files.ca_file {
            Some(path) => authorities(files, path, "ca", &mut facts)?.0,
            None => authorities_of_the_system(self.settings.authorities)?,
        });
        let lists = self.files.crl_file.as_ref().map(|path| files.revocation_lists(path)).transpose()?;
        // An authority without a list has revoked nothing.
        let chain = WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .with_crls(lists.unwrap_or_default())
            .allow_unknown_revocation_status()
            .build();
        // Without lists it fails only without authorities; here there are some.
        let lists = self.files.crl_file.as_deref().unwrap_or_else(|| Path::new("ca_file"));
        let chain = chain.map_err(|error| LoadError::unusable(lists, error))?;
        let verifier: Arc<dyn ServerCertVerifier> = match &self.expected {
            ServerIdentity::Name(_) => chain,
            ServerIdentity::Spiffe(id) => {
                Arc::new(SpiffeVerifier { id: id.clone(), chain, roots, provider: Arc::clone(&provider) })
            }
        };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS12, &TLS13])
            .map_err(|error| LoadError::unusable(Path::new("ring"), error))?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut own = None;
        let mut config = match &self.files.own {
            None => builder.with_no_client_auth(),
            Some(CertificateFiles { cert_file, key_file }) => {
                let certificates = files.certificates(cert_file)?;
                let fact = fact("cert", &certificates, cert_file)?;
                own = Some(Own::new(cert_file, fact.expires));
                facts.push(fact);
                builder.with_client_auth_cert(certificates, files.private_key(key_file)?).map_err(
                    |error| {
                        let reason = match error {
                            rustls::Error::InconsistentKeys(_) => {
                                format!("is not the key of the first certificate in {}", cert_file.display())
                            }
                            other => format!("cannot be used with {}: {other}", cert_file.display()),
                        };
                        LoadError::unusable(key_file, reason)
                    },
                )?
            }
        };
        config.alpn_protocols = vec![H2.to_vec()];
        config.resumption = Resumption::disabled();
        let diagnosis = Diagnosis::new(&self.files, own, &self.expected, self.settings);
        let value = ClientTls { config: Arc::new(config), name: self.name.clone(), diagnosis };
        Ok(Loaded { value, facts })
    }
}

impl ClientTls {
    /// Starts TLS for this protocol on a connection.
    ///
    /// # Errors
    ///
    /// Cause and remedy, for operators.
    pub async fn connect<S>(&self, socket: S, http: Http) -> Result<TlsStream<S>, String>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut config = Arc::clone(&self.config);
        if http == Http::One {
            Arc::make_mut(&mut config).alpn_protocols = vec![HTTP1.to_vec()];
        }
        let connected = TlsConnector::from(config).connect(self.name.clone(), socket).await;
        let stream = connected.map_err(|error| self.diagnosis.of(&error, http))?;
        match stream.get_ref().1.alpn_protocol() {
            Some(H2) => Ok(stream),
            _ if http == Http::One => Ok(stream),
            _ => Err(self.diagnosis.no_http2()),
        }
    }
}

fn authorities_of_the_system(setting: &str) -> Result<RootCertStore, LoadError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Systems have some unreadable ones; these are skipped.
    let (usable, _) = roots.add_parsable_certificates(found.certs);
    if usable == 0 {
        let reason = match found.errors.first() {
            Some(error) => format!("there are none ({error}); set {setting}"),
            None => format!("there are none; set {setting}"),
        };
        return Err(LoadError::unusable(Path::new("the system's authorities"), reason));
    }
    Ok(roots)
}

/// Accepts a certificate of an authority with the expected ID as its one URI (X.509-SVID of SPIFFE).
#[derive(Debug)]
struct SpiffeVerifier {
    id: String,
    chain: Arc<WebPkiServerVerifier>,
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for SpiffeVerifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let algorithms = self.provider.signature_verification_algorithms.all;
        let parsed = ParsedCertificate::try_from(leaf)?;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, algorithms)?;
        // Repeated for the revocation lists: rustls checks them only with a DNS name, which this certificate
        // is not for.
        match self.chain.verify_server_cert(leaf, intermediates, server_name, ocsp_response, now) {
            Ok(_) => {}
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => {}
            Err(error) => return Err(error),
        }
        match uris(leaf).as_slice() {
            [one] if *one == self.id => Ok(ServerCertVerified::assertion()),
            presented => Err(CertificateError::Other(OtherError(Arc::new(IdentityError {
                expected: self.id.clone(),
                presented: presented.to_vec(),
            })))
            .into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

/// URIs among the names of a certificate; none if it cannot be read.
fn uris(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return Vec::new() };
    let uri = |name: &GeneralName<'_>| match name {
        GeneralName::URI(uri) => Some((*uri).to_owned()),
        _ => None,
    };
    names.value.general_names.iter().filter_map(uri).collect()
}
