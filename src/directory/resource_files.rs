//! Last content of each file, and all of them merged into one [`Scan`]. Reads files; knows nothing of events.
//!
//! Invariants:
//! - Only regular files are read, up to [`MAX_FILE_BYTES`].
//! - A file that cannot be read or parsed keeps its resources.
//! - A file is read again only when its fingerprint changes.
//!
//! A thread of its own reads and parses, so that a slow disk or large file never blocks the runtime. The channel
//! keeps only the newest state: a slow reader misses steps, never the outcome.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::watch;

use super::file_decoder::decode;
use super::{FileFailure, Scan, key};
use crate::descriptors::text_formats::Format;
use crate::file_watch::{FileFollower, Fingerprint, fingerprint};
use crate::resource::Resource;

pub(super) const MAX_FILE_BYTES: u64 = 64 << 20;

/// Resource files by name. Each has a fingerprint, or a fault.
type Listed = BTreeMap<OsString, (Format, Result<Fingerprint, String>)>;

#[derive(Debug, Default)]
pub(super) struct Files {
    /// By name, which is also the precedence.
    files: BTreeMap<OsString, FileState>,
    directory_failure: Option<FileFailure>,
    /// As of [`Scan`]. A file that is added later, and cannot be read, is not in force.
    is_whole: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct FileState {
    /// Fingerprint before the last reading; `None` if that failed.
    fingerprint: Option<Fingerprint>,
    resources: Vec<Arc<Resource>>,
    /// Whether `resources` come from some content of the file.
    is_known: bool,
    /// Why the file cannot be read or parsed.
    failure: Option<String>,
}

impl Files {
    /// Updates the state from the directory. Returns whether a [`Scan`] changes.
    fn refresh(&mut self, directory: &Path, listing: &Result<Listed, String>) -> bool {
        let listed = match listing {
            Ok(listed) => listed,
            Err(error) => {
                // No file is known to be gone, so all resources stay.
                let failure = FileFailure {
                    file: directory.display().to_string(),
                    message: format!("cannot list the directory: {error}; what its files held is kept"),
                };
                return self.directory_failure.replace(failure.clone()) != Some(failure);
            }
        };
        let before = self.files.len();
        self.files.retain(|name, _| listed.contains_key(name));
        let mut changed = self.directory_failure.take().is_some() || self.files.len() < before;
        for (name, (format, seen)) in listed {
            changed |= !self.files.contains_key(name);
            let state = self.files.entry(name.clone()).or_default();
            changed |= state.refresh(&directory.join(name), *format, seen);
        }
        self.is_whole |= self.files.values().all(|state| state.is_known);
        changed
    }

    /// Merges all files. The file that sorts first has precedence.
    fn merge(&self) -> Scan {
        let mut scan = Scan { is_whole: self.is_whole, ..Scan::default() };
        scan.failures.extend(self.directory_failure.clone());
        let files = self.files.iter();
        let of_files = files.flat_map(|(file, state)| state.resources.iter().map(move |of| (of, file)));
        let mut all: Vec<(&Arc<Resource>, &OsString)> = of_files.collect();
        all.sort_by(|(one, _), (other, _)| key(one).cmp(&key(other)));
        let mut duplicates: BTreeMap<&OsString, Vec<(&Arc<Resource>, &OsString)>> = BTreeMap::new();
        for same in all.chunk_by(|(one, _), (other, _)| key(one) == key(other)) {
            let (resource, owner) = same[0];
            scan.resources.push(resource.clone());
            same[1..]
                .iter()
                .for_each(|(_, file)| duplicates.entry(file).or_default().push((resource, owner)));
        }
        scan.resources.shrink_to_fit();
        for (file, state) in &self.files {
            let mut messages: Vec<String> =
                state.failure.iter().map(|message| state.keeping(message)).collect();
            if let Some([(resource, owner), others @ ..]) = duplicates.get(file).map(Vec::as_slice) {
                let more =
                    if others.is_empty() { String::new() } else { format!(" (and {} more)", others.len()) };
                messages.push(format!(
                    "{} {:?}{more} is also in {}, which sorts first and counts: remove one of the two",
                    resource.type_url(),
                    resource.name(),
                    owner.display()
                ));
            }
            if !messages.is_empty() {
                scan.failures
                    .push(FileFailure { file: file.display().to_string(), message: messages.join("; ") });
            }
        }
        scan
    }
}

impl FileState {
    /// Returns whether the visible state changed.
    fn refresh(&mut self, path: &Path, format: Format, seen: &Result<Fingerprint, String>) -> bool {
        let fingerprint = seen.as_ref().ok().copied();
        if fingerprint.is_some() && fingerprint == self.fingerprint {
            return false;
        }
        let bytes = seen.clone().and_then(|_| read(path).map_err(|error| format!("cannot read it: {error}")));
        self.fingerprint = fingerprint.filter(|_| bytes.is_ok());
        let (failure, has_changed) = match bytes.and_then(|bytes| parse(format, &bytes)) {
            Ok(resources) => (None, self.replace(resources)),
            Err(error) => (Some(error), false),
        };
        let before = std::mem::replace(&mut self.failure, failure);
        has_changed || before != self.failure
    }

    fn replace(&mut self, mut resources: Vec<Arc<Resource>>) -> bool {
        self.is_known = true;
        if self.resources == resources {
            return false;
        }
        // The cache holds these too. A copy of each would double their memory.
        let held: HashMap<_, _> = self.resources.iter().map(|held| (key(held), held)).collect();
        for resource in &mut resources {
            let known = held.get(&key(resource)).filter(|held| **held == resource).copied();
            *resource = Arc::clone(known.unwrap_or(resource));
        }
        resources.shrink_to_fit();
        self.resources = resources;
        true
    }

    fn keeping(&self, message: &str) -> String {
        match self.resources.len() {
            0 => message.to_owned(),
            1 => format!("{message} (the resource it held before is kept)"),
            kept => format!("{message} (the {kept} resources it held before are kept)"),
        }
    }
}

fn parse(format: Format, bytes: &[u8]) -> Result<Vec<Arc<Resource>>, String> {
    // A panic in a foreign parser is a fault of the file, not the end of the subscription.
    match std::panic::catch_unwind(|| decode(format, bytes)) {
        Ok(decoded) => decoded.map_err(|error| error.to_string()),
        Err(_) => Err("reading it failed inside the parser: please report this".to_owned()),
    }
}

/// Lists the resource files. Kubernetes keeps the versions of its volumes in hidden directories.
fn list(directory: &Path) -> Result<Listed, String> {
    let mut listed = Listed::new();
    for entry in fs::read_dir(directory).map_err(|error| error.to_string())? {
        let name = entry.map_err(|error| error.to_string())?.file_name();
        let path = directory.join(&name);
        let Some(format) = Format::of(&path).filter(|_| !name.as_bytes().starts_with(b".")) else { continue };
        let seen = match fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => continue,
            Ok(metadata) if !metadata.is_file() => {
                Err("cannot read it: not a regular file (or a link to one)".to_owned())
            }
            Ok(metadata) if metadata.len() > MAX_FILE_BYTES => {
                Err(format!("cannot read it: {}", too_large()))
            }
            Ok(metadata) => Ok(fingerprint(&metadata)),
            // It is gone since the listing, or a dangling link, whose target may come back.
            Err(error) if error.kind() == ErrorKind::NotFound => match fs::symlink_metadata(&path) {
                Ok(_) => Err("a link to nothing".to_owned()),
                Err(_) => continue,
            },
            Err(error) => Err(format!("cannot read it: {error}")),
        };
        listed.insert(name, (format, seen));
    }
    Ok(listed)
}

/// Content of a listed file.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    // A fifo that took the file's place would block without this.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    // A file may have grown since. The rest of it would be taken for removed.
    if bytes.len() as u64 > MAX_FILE_BYTES { Err(io::Error::other(too_large())) } else { Ok(bytes) }
}

fn too_large() -> String {
    format!("larger than {} MiB: split it", MAX_FILE_BYTES >> 20)
}

/// Watched directory. Dropping it ends the watch.
#[derive(Debug)]
pub struct Directory {
    scans: watch::Receiver<Option<Arc<Scan>>>,
    _follower: FileFollower,
}

impl Directory {
    /// Watches an existing directory.
    ///
    /// # Errors
    ///
    /// The directory does not exist or cannot be read, or the system allows no further thread.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let directory = existing(path.as_ref())?;
        let (publish, scans) = watch::channel(None);
        let (mut files, listed) = (Files::default(), directory.clone());
        let read = move |listing: &Result<Listed, String>| {
            let changed = files.refresh(&directory, listing);
            if changed || publish.borrow().is_none() {
                publish.send_replace(Some(Arc::new(files.merge())));
            }
        };
        let _follower = FileFollower::start("directory", move || list(&listed), read)?;
        Ok(Self { scans, _follower })
    }

    /// Returns the first state when it has been read, then the newest at each change. Cancel-safe: a state is
    /// consumed only by returning it.
    pub async fn next(&mut self) -> Arc<Scan> {
        loop {
            if self.scans.changed().await.is_err() {
                // Only a defect ends the thread early. The last state stays in force.
                tracing::error!(
                    "the thread that watches the resource directory has ended: changes go unseen"
                );
                std::future::pending::<()>().await;
            }
            if let Some(scan) = &*self.scans.borrow_and_update() {
                return Arc::clone(scan);
            }
        }
    }
}

/// Reads a directory once.
///
/// # Errors
///
/// The directory does not exist or cannot be listed.
pub fn scan(path: &Path) -> io::Result<Scan> {
    let (directory, mut files) = (existing(path)?, Files::default());
    files.refresh(&directory, &list(&directory));
    Ok(files.merge())
}

/// Returns the absolute path of a directory, in case the working directory changes. Links are kept, so that
/// a moved link is followed.
fn existing(path: &Path) -> io::Result<PathBuf> {
    let directory = std::path::absolute(path)?;
    fs::read_dir(&directory)?;
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_grew_since_the_listing_is_not_read_in_part() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        for (bytes, is_read) in [(MAX_FILE_BYTES, true), (MAX_FILE_BYTES + 1, false)] {
            file.as_file().set_len(bytes).expect("room for a sparse file");
            assert_eq!(read(file.path()).is_ok(), is_read, "{bytes}");
        }
    }
}
