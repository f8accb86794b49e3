//! Certificates, keys and revocation lists in files.
//!
//! Owns bounded reading of PEM files, and the words for their faults. No message contains a key.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

/// The roots of the public web take 250 KiB, revocation lists of large authorities some megabytes.
const MAX_BYTES: u64 = 64 << 20;

#[derive(Debug, thiserror::Error)]
pub enum PemError {
    #[error("cannot read {path}: {error}")]
    Unreadable { path: PathBuf, error: std::io::Error },
    #[error("{path} is larger than {MAX_BYTES} bytes")]
    TooLarge { path: PathBuf },
    #[error("{path} holds no {expected} (PEM)")]
    Empty { path: PathBuf, expected: &'static str },
    #[error("{path} is no PEM file: {error}")]
    Broken { path: PathBuf, error: pem::Error },
}

/// Certificates of a file in order; at least one.
///
/// # Errors
///
/// [`PemError`] if the file cannot be read, holds none, or one that cannot be read.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
    certificates_in(path, &read(path)?)
}

/// At least one revocation list.
///
/// # Errors
///
/// [`PemError`] if the file cannot be read, holds none, or one that cannot be read.
pub fn revocation_lists(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, PemError> {
    revocation_lists_in(path, &read(path)?)
}

/// First private key of a file.
///
/// # Errors
///
/// [`PemError`] if the file cannot be read, holds none, or one that cannot be read.
pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, PemError> {
    private_key_in(path, &read(path)?)
}

/// Certificates in bytes read before; `path` is for messages.
pub(super) fn certificates_in(path: &Path, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    all(path, bytes, "certificate")
}

pub(super) fn revocation_lists_in(
    path: &Path,
    bytes: &[u8],
) -> Result<Vec<CertificateRevocationListDer<'static>>, PemError> {
    all(path, bytes, "certificate revocation list")
}

pub(super) fn private_key_in(path: &Path, bytes: &[u8]) -> Result<PrivateKeyDer<'static>, PemError> {
    PrivateKeyDer::from_pem_slice(bytes).map_err(|error| wrong(path, "private key", error))
}

fn all<T: PemObject>(path: &Path, bytes: &[u8], expected: &'static str) -> Result<Vec<T>, PemError> {
    let found: Vec<T> =
        T::pem_slice_iter(bytes).collect::<Result<_, _>>().map_err(|error| wrong(path, expected, error))?;
    if found.is_empty() {
        return Err(PemError::Empty { path: path.to_owned(), expected });
    }
    Ok(found)
}

fn wrong(path: &Path, expected: &'static str, error: pem::Error) -> PemError {
    let path = path.to_owned();
    match error {
        pem::Error::NoItemsFound => PemError::Empty { path, expected },
        error => PemError::Broken { path, error },
    }
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, PemError> {
    let unreadable = |error| PemError::Unreadable { path: path.to_owned(), error };
    let mut bytes = Vec::new();
    let mut file = File::open(path).map_err(unreadable)?.take(MAX_BYTES + 1);
    file.read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(PemError::TooLarge { path: path.to_owned() });
    }
    Ok(bytes)
}
