//! Contents of several files that belong together.
//!
//! Owns the bounded reading of PEM, facts about certificates for operators, and the words for faults. No message
//! contains a key. Files may be replaced while they are read: a set that is then unusable, or mixed, is read again
//! with the event of that change.

use std::fmt::Display;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer as _, X509Certificate};
use xxhash_rust::xxh3::Xxh3Default;

/// End of the line before a private key of any kind in PEM.
const KEY: &[u8] = b"PRIVATE KEY-----";
const READ_BY_OTHERS: u32 = 0o004;
/// The roots of the public web take 250 KiB, revocation lists of large authorities some megabytes.
const MAX_BYTES: u64 = 64 << 20;

/// Why files cannot be used: the file and the reason.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct LoadError(pub String);

impl LoadError {
    pub fn unusable(path: &Path, reason: impl Display) -> Self {
        Self(format!("{}: {reason}", path.display()))
    }

    fn empty(path: &Path, expected: &str) -> Self {
        Self(format!("{} holds no {expected} (PEM)", path.display()))
    }
}

#[derive(Debug)]
pub struct Loaded<T> {
    pub value: T,
    pub facts: Vec<Fact>,
}

/// Data on a certificate or list in force, for operators; never secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Kind, as in the configuration's keys: a label of a metric.
    pub which: &'static str,
    /// Earliest expiry, in seconds since 1970.
    pub expires: i64,
}

/// `Debug` prints the names only.
pub struct Files(Vec<(PathBuf, Vec<u8>)>);

impl Files {
    /// Reads all files.
    ///
    /// # Errors
    ///
    /// [`LoadError`] if a file cannot be read.
    pub fn read(paths: &[PathBuf]) -> Result<Self, LoadError> {
        let read = |path: &PathBuf| Ok((path.clone(), read(path)?));
        paths.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// Contents of a file; one outside the set counts as unreadable.
    ///
    /// # Errors
    ///
    /// [`LoadError`] for a file of another set.
    pub fn bytes(&self, path: &Path) -> Result<&[u8], LoadError> {
        let found = self.0.iter().find(|(of, _)| of == path).map(|(_, bytes)| &**bytes);
        found.ok_or_else(|| LoadError::unusable(path, "it was not read with the others"))
    }

    /// Certificates of a file in order; at least one.
    ///
    /// # Errors
    ///
    /// [`LoadError`] if there is none, or one cannot be read.
    pub fn certificates(&self, path: &Path) -> Result<Vec<CertificateDer<'static>>, LoadError> {
        self.all(path, "certificate")
    }

    /// At least one revocation list.
    ///
    /// # Errors
    ///
    /// [`LoadError`] if there is none, or one cannot be read.
    pub fn revocation_lists(
        &self,
        path: &Path,
    ) -> Result<Vec<CertificateRevocationListDer<'static>>, LoadError> {
        self.all(path, "certificate revocation list")
    }

    /// First private key of a file.
    ///
    /// # Errors
    ///
    /// [`LoadError`] if there is none, or it cannot be read.
    pub fn private_key(&self, path: &Path) -> Result<PrivateKeyDer<'static>, LoadError> {
        let key = PrivateKeyDer::from_pem_slice(self.bytes(path)?);
        key.map_err(|error| wrong(path, "private key", error))
    }

    fn all<T: PemObject>(&self, path: &Path, expected: &'static str) -> Result<Vec<T>, LoadError> {
        let found: Result<Vec<T>, _> = T::pem_slice_iter(self.bytes(path)?).collect();
        let found = found.map_err(|error| wrong(path, expected, error))?;
        if found.is_empty() {
            return Err(LoadError::empty(path, expected));
        }
        Ok(found)
    }

    /// Files with a private key that every user can read.
    pub fn exposed_keys(&self) -> impl Iterator<Item = &Path> {
        let holds_key = |bytes: &[u8]| bytes.windows(KEY.len()).any(|window| window == KEY);
        let is_open =
            |path: &Path| std::fs::metadata(path).is_ok_and(|file| file.mode() & READ_BY_OTHERS != 0);
        let keys = self.0.iter().filter(move |(_, bytes)| holds_key(bytes)).map(|(path, _)| path.as_path());
        keys.filter(move |path| is_open(path))
    }

    pub fn digest(&self) -> u128 {
        digest(&self.0)
    }

    /// Equal for equal contents of these files.
    pub fn digest_of(&self, paths: &[Option<&PathBuf>]) -> u128 {
        digest(self.0.iter().filter(|(path, _)| paths.contains(&Some(path))))
    }
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(path, _)| path)).finish()
    }
}

fn digest<'f>(files: impl IntoIterator<Item = &'f (PathBuf, Vec<u8>)>) -> u128 {
    let mut hash = Xxh3Default::new();
    for (_, bytes) in files {
        hash.update(&bytes.len().to_le_bytes());
        hash.update(bytes);
    }
    hash.digest128()
}

fn wrong(path: &Path, expected: &'static str, error: pem::Error) -> LoadError {
    match error {
        pem::Error::NoItemsFound => LoadError::empty(path, expected),
        error => LoadError(format!("{} is no PEM file: {error}", path.display())),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    let unreadable = |error| LoadError(format!("cannot read {}: {error}", path.display()));
    let mut bytes = Vec::new();
    let mut file = File::open(path).map_err(unreadable)?.take(MAX_BYTES + 1);
    file.read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(LoadError::unusable(path, format!("it is larger than {MAX_BYTES} bytes")));
    }
    Ok(bytes)
}

/// Authorities of a file, and their certificates.
///
/// # Errors
///
/// [`LoadError`] if one cannot be used.
pub fn authorities(
    files: &Files,
    path: &Path,
    which: &'static str,
    facts: &mut Vec<Fact>,
) -> Result<(RootCertStore, Vec<CertificateDer<'static>>), LoadError> {
    let certificates = files.certificates(path)?;
    facts.push(fact(which, &certificates, path)?);
    let mut roots = RootCertStore::empty();
    for certificate in &certificates {
        roots.add(certificate.clone()).map_err(|error| LoadError::unusable(path, error))?;
    }
    Ok((roots, certificates))
}

/// Earliest expiry of these certificates.
///
/// # Errors
///
/// [`LoadError`] if one cannot be read.
pub fn fact(
    which: &'static str,
    certificates: &[CertificateDer<'_>],
    path: &Path,
) -> Result<Fact, LoadError> {
    let mut expires = i64::MAX;
    for (at, der) in certificates.iter().enumerate() {
        let (_, certificate) = X509Certificate::from_der(der)
            .map_err(|_| LoadError::unusable(path, format!("certificate {} is none of X.509", at + 1)))?;
        expires = expires.min(certificate.validity().not_after.timestamp());
    }
    Ok(Fact { which, expires })
}
