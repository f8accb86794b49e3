//! Certificates, keys and revocation lists in files.
//!
//! Owns the reading of PEM files, within bounds, and the words for what is wrong with one. A key is never part of a
//! message.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

/// The largest file: the roots of the public web take 250 KiB, revocation lists of large authorities some megabytes.
const MAX_BYTES: u64 = 64 << 20;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    /// It cannot be read.
    #[error("cannot read {path}: {error}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        error: std::io::Error,
    },
    /// It is larger than such a file is allowed to be.
    #[error("{path} is larger than {MAX_BYTES} bytes")]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// It holds none of what it is to hold.
    #[error("{path} holds no {expected} (PEM)")]
    Empty {
        /// The file.
        path: PathBuf,
        /// Content that it is to hold.
        expected: &'static str,
    },
    /// A section of it is broken.
    #[error("{path} is no PEM file: {error}")]
    Broken {
        /// The file.
        path: PathBuf,
        /// Error of the reader.
        error: pem::Error,
    },
}

/// The certificates of a file, in their order; at least one.
///
/// # Errors
///
/// [`PemError`] if the file cannot be read, holds none, or one that cannot be read.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
    certificates_in(path, &read(path)?)
}

/// The revocation lists of a file; at least one.
///
/// # Errors
///
/// [`PemError`] if the file cannot be read, holds none, or one that cannot be read.
pub fn revocation_lists(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, PemError> {
    revocation_lists_in(path, &read(path)?)
}

/// The private key of a file, the first one where there are several.
///
/// # Errors
///
/// [`PemError`] if the file cannot be read, holds none, or one that cannot be read.
pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, PemError> {
    private_key_in(path, &read(path)?)
}

/// The certificates in the bytes of a file that was read already; `path` is for messages.
pub(super) fn certificates_in(path: &Path, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    all(path, bytes, "certificate")
}

/// The revocation lists in the bytes of a file that was read already; `path` is for messages.
pub(super) fn revocation_lists_in(
    path: &Path,
    bytes: &[u8],
) -> Result<Vec<CertificateRevocationListDer<'static>>, PemError> {
    all(path, bytes, "certificate revocation list")
}

/// The private key in the bytes of a file that was read already; `path` is for messages.
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

/// Reads the bytes of a file.
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
