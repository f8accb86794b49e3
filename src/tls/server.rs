//! Server side of TLS: from files to a configuration of rustls, and the names of handshake failures.
//!
//! Owns the offer: TLS 1.2 and 1.3, HTTP/2 before HTTP/1.1, client certificates if there are authorities for
//! them. There are no tickets, and nothing is kept of closed connections. A resumed session would skip the
//! check of a client that was revoked since, or whose authority was removed. It would save little on
//! connections of half an hour.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, InconsistentKeys, InvalidMessage,
    ServerConfig, SignatureScheme, version,
};
use x509_parser::prelude::{CertificateRevocationList, FromDer as _, X509Certificate};

use crate::config::ListenerTls;

use super::files::{Fact, Files, LoadError, Loaded, authorities, fact};

/// Listener's side of TLS, made of one state of its files.
#[derive(Debug)]
pub struct ServerTls {
    config: Arc<ServerConfig>,
    /// `None` if clients show no certificate.
    clients: Option<Clients>,
}

#[derive(Debug)]
struct Clients {
    verifier: Arc<dyn ClientCertVerifier>,
    /// Of its authorities and revocation lists.
    digest: u128,
}

/// A client's own certificate, then its chain.
#[derive(Clone, Debug)]
pub struct Shown {
    chain: Box<[CertificateDer<'static>]>,
    at: UnixTime,
}

impl Shown {
    /// `None` if there are none.
    pub fn now(chain: &[CertificateDer<'static>]) -> Option<Self> {
        (!chain.is_empty()).then(|| Self { chain: chain.into(), at: UnixTime::now() })
    }

    pub fn own(&self) -> &CertificateDer<'static> {
        &self.chain[0]
    }
}

impl ServerTls {
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    pub fn judges_like(&self, other: &Self) -> bool {
        let digest = |one: &Self| one.clients.as_ref().map(|clients| clients.digest);
        digest(self) == digest(other)
    }

    /// Whether these authorities and lists would have admitted the client when it showed its certificates.
    /// Time alone ends no connection: expired certificates are checked when clients reconnect. Verifies
    /// signatures, in a fraction of a millisecond.
    pub fn would_accept(&self, shown: &Shown) -> bool {
        let Some(clients) = &self.clients else { return true };
        clients.verifier.verify_client_cert(&shown.chain[0], &shown.chain[1..], shown.at).is_ok()
    }
}

impl ListenerTls {
    pub fn paths(&self) -> Vec<PathBuf> {
        let always = [&self.cert_file, &self.key_file].into_iter();
        always.chain(&self.client_ca_file).chain(&self.crl_file).cloned().collect()
    }

    /// Makes a server side of the files.
    ///
    /// # Errors
    ///
    /// [`LoadError`] if a file cannot be used, or the key is not that of the certificate.
    pub fn load(&self, files: &Files) -> Result<Loaded<ServerTls>, LoadError> {
        let provider = Arc::new(ring::default_provider());
        let mut facts = Vec::new();
        let certified = self.certified_key(files, &provider, &mut facts)?;
        let versions = [&version::TLS13, &version::TLS12];
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&versions)
            .map_err(|error| LoadError::unusable(&self.cert_file, error))?;
        let (builder, clients) = match &self.client_ca_file {
            Some(path) => {
                let verifier = self.verifier(path, files, provider, &mut facts)?;
                let digest = files.digest_of(&[Some(path), self.crl_file.as_ref()]);
                let clients = Clients { verifier: Arc::clone(&verifier), digest };
                (builder.with_client_cert_verifier(verifier), Some(clients))
            }
            None => (builder.with_no_client_auth(), None),
        };
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        Ok(Loaded { value: ServerTls { config: Arc::new(config), clients }, facts })
    }

    fn certified_key(
        &self,
        files: &Files,
        provider: &CryptoProvider,
        facts: &mut Vec<Fact>,
    ) -> Result<CertifiedKey, LoadError> {
        let path = &self.cert_file;
        let chain = files.certificates(path)?;
        facts.push(fact("cert", &chain, path)?);
        let key =
            provider.key_provider.load_private_key(files.private_key(&self.key_file)?).map_err(|_| {
                LoadError::unusable(&self.key_file, "it holds a key of a kind that cannot be used")
            })?;
        let certified = CertifiedKey::new(chain, key);
        match certified.keys_match() {
            // This kind of key does not reveal its public half.
            Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certified),
            Err(Error::InconsistentKeys(_)) => {
                let reason = format!("it is not the key of the first certificate in {}", path.display());
                Err(LoadError::unusable(&self.key_file, reason))
            }
            Err(error) => Err(LoadError::unusable(path, error)),
        }
    }

    /// Checks the whole chain against the lists. Without a list of its issuer, a certificate is accepted: one
    /// authority without a list must not lock out the clients of the others. A list past its `nextUpdate`
    /// stays in force, so that a late renewal locks out nobody; a metric reports it. If all lists are of
    /// other issuers, a warning says so: they may be of intermediate authorities, or undo revocations by
    /// mistake.
    fn verifier(
        &self,
        path: &Path,
        files: &Files,
        provider: Arc<CryptoProvider>,
        facts: &mut Vec<Fact>,
    ) -> Result<Arc<dyn ClientCertVerifier>, LoadError> {
        let (roots, authorities) = authorities(files, path, "client_ca", facts)?;
        let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        if let Some(revoked) = &self.crl_file {
            let lists = files.revocation_lists(revoked)?;
            if !note_lists(&lists, revoked, &authorities, facts)? {
                let (lists, of) = (revoked.display(), path.display());
                tracing::warn!(
                    "no list in {lists} is by an authority in {of}: nothing that these revoked counts"
                );
            }
            builder = builder.with_crls(lists).allow_unknown_revocation_status();
        }
        let lists = self.crl_file.as_deref().unwrap_or(path);
        let verifier = builder.build().map_err(|error| LoadError::unusable(lists, error))?;
        Ok(Arc::new(ShortChains(verifier)))
    }
}

/// Verifies clients, and refuses uselessly long chains. Until its signature is checked, each certificate may
/// be the issuer of another: a hundred of one name block the thread for milliseconds.
#[derive(Debug)]
struct ShortChains(Arc<dyn ClientCertVerifier>);

impl ShortChains {
    const MOST: usize = 10;
}

impl ClientCertVerifier for ShortChains {
    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if intermediates.len() > Self::MOST {
            return Err(CertificateError::ApplicationVerificationFailure.into());
        }
        self.0.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        self.0.requires_raw_public_keys()
    }
}

/// Notes when the first list is out of date, if any list says so. Returns whether one of these authorities issued
/// any of the lists, by its name.
fn note_lists(
    lists: &[CertificateRevocationListDer<'_>],
    path: &Path,
    authorities: &[CertificateDer<'_>],
    facts: &mut Vec<Fact>,
) -> Result<bool, LoadError> {
    let (mut expires, mut is_ours) = (None, false);
    for der in lists {
        let (_, list) = CertificateRevocationList::from_der(der)
            .map_err(|_| LoadError::unusable(path, "a revocation list in it is none of X.509"))?;
        let next = list.next_update().map(|next| next.timestamp());
        expires = expires.into_iter().chain(next).min();
        is_ours |= authorities.iter().any(|der| {
            X509Certificate::from_der(der)
                .is_ok_and(|(_, authority)| authority.subject().as_raw() == list.issuer().as_raw())
        });
    }
    facts.extend(expires.map(|expires| Fact { which: "crl", expires }));
    Ok(is_ours)
}

/// Cause of a failed handshake, as a label of a metric.
pub fn failure(error: &std::io::Error) -> &'static str {
    let Some(error) = error.get_ref().and_then(|error| error.downcast_ref::<Error>()) else {
        return "closed";
    };
    match error {
        Error::NoCertificatesPresented => "no_certificate",
        Error::InvalidCertificate(error) => match error {
            CertificateError::Revoked => "revoked",
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => "expired",
            CertificateError::UnknownIssuer => "unknown_ca",
            _ => "bad_certificate",
        },
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => "not_tls",
        Error::AlertReceived(_) => "refused_by_peer",
        Error::PeerIncompatible(_) | Error::NoApplicationProtocol => "incompatible",
        _ => "protocol",
    }
}
