//! Contents of several files that belong together, as of one moment.
//!
//! Owns a read without tearing: an old certificate with a new key would be refused without an operator's
//! mistake. Owns the bounded reading of PEM, and the words for its faults. No message contains a key.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use xxhash_rust::xxh3::Xxh3Default;

use crate::file_watch::{Fingerprint, fingerprint};

/// Reads of a set that changes meanwhile. After that, the next event reads it again.
const ATTEMPTS: usize = 5;

/// End of the line before a private key of any kind in PEM.
const KEY: &[u8] = b"PRIVATE KEY-----";
const READ_BY_OTHERS: u32 = 0o004;
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

/// `Debug` prints the names only.
pub struct Files(Vec<(PathBuf, Vec<u8>)>);

impl Files {
    /// Reads all files, without a change between the first and the last.
    ///
    /// # Errors
    ///
    /// [`PemError`] if a file cannot be read, or they do not stop changing.
    pub fn read(paths: &[PathBuf]) -> Result<Self, PemError> {
        let mut before = stamps(paths);
        for _ in 1..ATTEMPTS {
            let read = Self::read_once(paths);
            let after = stamps(paths);
            if before == after {
                return read;
            }
            before = after;
        }
        Self::read_once(paths)
    }

    fn read_once(paths: &[PathBuf]) -> Result<Self, PemError> {
        let read = |path: &PathBuf| Ok((path.clone(), read(path)?));
        paths.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// Contents of a file; one outside the set counts as unreadable.
    ///
    /// # Errors
    ///
    /// [`PemError::Unreadable`] for a file of another set.
    pub fn bytes(&self, path: &Path) -> Result<&[u8], PemError> {
        match self.0.iter().find(|(of, _)| of == path) {
            Some((_, bytes)) => Ok(bytes),
            None => Err(PemError::Unreadable {
                path: path.to_owned(),
                error: std::io::Error::other("it was not read with the others"),
            }),
        }
    }

    /// Certificates of a file in order; at least one.
    ///
    /// # Errors
    ///
    /// [`PemError`] if there is none, or one cannot be read.
    pub fn certificates(&self, path: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
        self.all(path, "certificate")
    }

    /// At least one revocation list.
    ///
    /// # Errors
    ///
    /// [`PemError`] if there is none, or one cannot be read.
    pub fn revocation_lists(
        &self,
        path: &Path,
    ) -> Result<Vec<CertificateRevocationListDer<'static>>, PemError> {
        self.all(path, "certificate revocation list")
    }

    /// First private key of a file.
    ///
    /// # Errors
    ///
    /// [`PemError`] if there is none, or it cannot be read.
    pub fn private_key(&self, path: &Path) -> Result<PrivateKeyDer<'static>, PemError> {
        let key = PrivateKeyDer::from_pem_slice(self.bytes(path)?);
        key.map_err(|error| wrong(path, "private key", error))
    }

    fn all<T: PemObject>(&self, path: &Path, expected: &'static str) -> Result<Vec<T>, PemError> {
        let found: Result<Vec<T>, _> = T::pem_slice_iter(self.bytes(path)?).collect();
        let found = found.map_err(|error| wrong(path, expected, error))?;
        if found.is_empty() {
            return Err(PemError::Empty { path: path.to_owned(), expected });
        }
        Ok(found)
    }

    /// Files with a private key that every user can read.
    pub(super) fn exposed_keys(&self) -> impl Iterator<Item = &Path> {
        let holds_key = |bytes: &[u8]| bytes.windows(KEY.len()).any(|window| window == KEY);
        let is_open =
            |path: &Path| std::fs::metadata(path).is_ok_and(|file| file.mode() & READ_BY_OTHERS != 0);
        let keys = self.0.iter().filter(move |(_, bytes)| holds_key(bytes)).map(|(path, _)| path.as_path());
        keys.filter(move |path| is_open(path))
    }

    pub(super) fn digest(&self) -> u128 {
        digest(&self.0)
    }

    /// Equal for equal contents of these files.
    pub(super) fn digest_of(&self, paths: &[Option<&PathBuf>]) -> u128 {
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

/// Differ if the file at a path was replaced or written.
fn stamps(paths: &[PathBuf]) -> Vec<Option<Fingerprint>> {
    paths.iter().map(|path| Some(fingerprint(&std::fs::metadata(path).ok()?))).collect()
}

fn wrong(path: &Path, expected: &'static str, error: pem::Error) -> PemError {
    let path = path.to_owned();
    match error {
        pem::Error::NoItemsFound => PemError::Empty { path, expected },
        error => PemError::Broken { path, error },
    }
}

fn read(path: &Path) -> Result<Vec<u8>, PemError> {
    let unreadable = |error| PemError::Unreadable { path: path.to_owned(), error };
    let mut bytes = Vec::new();
    let mut file = File::open(path).map_err(unreadable)?.take(MAX_BYTES + 1);
    file.read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(PemError::TooLarge { path: path.to_owned() });
    }
    Ok(bytes)
}
