//! Last content of each file, and all of them merged into one [`Scan`]. Reads files; knows nothing of events.
//!
//! Invariants:
//! - Only regular files are read, up to [`MAX_FILE_BYTES`].
//! - A file that cannot be read or parsed keeps its resources.
//! - A file is read again only when its fingerprint changes.
//!
//! A thread of its own reads and parses, so that a slow disk or large file never blocks the runtime. The channel
//! keeps only the newest state: a slow reader misses steps, never the outcome. Events only trigger a look at the directory. A
//! lost event, or none at all (network filesystems), costs time until the next poll, never correctness.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use super::file_decoder::decode;
use super::{DirectoryError, FileFailure, Scan, key};
use crate::descriptors::text_formats::Format;
use crate::file_watch::{Debounce, FileFollower, FileWatcher, Fingerprint, WatchedPaths, fingerprint};
use crate::resource::Resource;

pub(super) const MAX_FILE_BYTES: u64 = 64 << 20;

/// Age below which a fingerprint proves nothing: the file may change again within one tick of the
/// filesystem's clock.
const SETTLED: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Files {
    /// By name, which is also the precedence.
    files: BTreeMap<OsString, FileState>,
    directory_failure: Option<FileFailure>,
    /// Whether the directory was ever listed.
    is_listed: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct FileState {
    /// Fingerprint at the last reading, if reliable.
    fingerprint: Option<Fingerprint>,
    resources: Vec<Arc<Resource>>,
    /// Whether `resources` come from some content of the file.
    is_known: bool,
    parse_failure: Option<String>,
    read_failure: Option<String>,
}

impl Files {
    /// Updates the state from the directory. Returns whether a [`Scan`] changes.
    fn refresh(&mut self, directory: &Path) -> bool {
        let names = match list(directory) {
            Ok(names) => names,
            Err(error) => {
                // No file is known to be gone, so all resources stay.
                let failure = FileFailure {
                    file: directory.display().to_string(),
                    message: format!("cannot list the directory: {error}; what its files held is kept"),
                };
                return self.directory_failure.replace(failure.clone()) != Some(failure);
            }
        };
        let mut changed = self.directory_failure.take().is_some();
        self.is_listed = true;
        let mut before = std::mem::take(&mut self.files);
        for name in names {
            let Some(format) = Format::of(Path::new(&name)) else { continue };
            let known = before.remove(&name);
            let is_new = known.is_none();
            let mut state = known.unwrap_or_default();
            match state.refresh(&directory.join(&name), format) {
                Some(differs) => {
                    changed |= differs || is_new;
                    self.files.insert(name, state);
                }
                None => changed |= !is_new,
            }
        }
        changed | !before.is_empty()
    }

    /// Merges all files. The file that sorts first has precedence.
    fn merge(&self) -> Scan {
        let is_incomplete = !self.is_listed || self.files.values().any(|state| !state.is_known);
        let mut scan = Scan { is_incomplete, ..Scan::default() };
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
                state.failure().map(|message| state.keeping(message)).into_iter().collect();
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
    /// Returns whether the visible state changed; `None` without such a file.
    fn refresh(&mut self, path: &Path, format: Format) -> Option<bool> {
        let failure = self.failure().map(str::to_owned);
        let metadata = match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => return None,
            Ok(metadata) => metadata,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // It is gone since the listing, or a dangling link, whose target may come back.
                fs::symlink_metadata(path).ok()?;
                self.read_failure = Some("a link to nothing".to_owned());
                return Some(self.failure() != failure.as_deref());
            }
            Err(error) => {
                self.read_failure = Some(format!("cannot read it: {error}"));
                return Some(self.failure() != failure.as_deref());
            }
        };
        if self.read_failure.is_none() && self.fingerprint == Some(fingerprint(&metadata)) {
            return Some(false);
        }
        let mut resources_changed = false;
        match read(path, &metadata) {
            Ok((bytes, metadata)) => {
                self.read_failure = None;
                self.fingerprint = fingerprint_if_settled(&metadata);
                resources_changed = self.parse(format, &bytes);
            }
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            Err(error) => self.read_failure = Some(format!("cannot read it: {error}")),
        }
        Some(resources_changed || self.failure() != failure.as_deref())
    }

    fn parse(&mut self, format: Format, bytes: &[u8]) -> bool {
        // A panic in a foreign parser is a fault of the file, not the end of the subscription.
        let decoded = std::panic::catch_unwind(|| decode(format, bytes));
        match decoded {
            Ok(Ok(mut resources)) => {
                self.parse_failure = None;
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
                return true;
            }
            Ok(Err(error)) => self.parse_failure = Some(error.to_string()),
            Err(_) => {
                self.parse_failure =
                    Some("reading it failed inside the parser: please report this".to_owned())
            }
        }
        false
    }

    fn failure(&self) -> Option<&str> {
        self.read_failure.as_deref().or(self.parse_failure.as_deref())
    }

    fn keeping(&self, message: &str) -> String {
        match self.resources.len() {
            0 => message.to_owned(),
            1 => format!("{message} (the resource it held before is kept)"),
            kept => format!("{message} (the {kept} resources it held before are kept)"),
        }
    }
}

fn fingerprint_if_settled(metadata: &Metadata) -> Option<Fingerprint> {
    let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(metadata.ctime().try_into().ok()?);
    let age = SystemTime::now().duration_since(changed).ok()?;
    (age > SETTLED).then(|| fingerprint(metadata))
}

/// Whether this name may be a resource file.
fn is_resource_file(name: &OsStr) -> bool {
    !is_hidden(name) && Format::of(Path::new(name)).is_some()
}

/// Kubernetes keeps its volumes' versions in hidden directories.
fn is_hidden(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b".")
}

/// Names of all visible entries.
fn list(directory: &Path) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        if !is_hidden(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

/// Content of a regular file, and its metadata from before the reading.
fn read(path: &Path, metadata: &Metadata) -> io::Result<(Vec<u8>, Metadata)> {
    check_readable(metadata)?;
    // A fifo in the file's place would block without this.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    check_readable(&metadata)?;
    let mut bytes = Vec::with_capacity(metadata.len().min(MAX_FILE_BYTES).try_into().unwrap_or_default());
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(too_large());
    }
    Ok((bytes, metadata))
}

fn check_readable(metadata: &Metadata) -> io::Result<()> {
    if !metadata.is_file() {
        return Err(io::Error::other("not a regular file (or a link to one)"));
    }
    if metadata.len() > MAX_FILE_BYTES { Err(too_large()) } else { Ok(()) }
}

fn too_large() -> io::Error {
    io::Error::other(format!("larger than {} MiB: split it", MAX_FILE_BYTES >> 20))
}

/// Interval of looks without an event.
const POLL: Duration = Duration::from_secs(10);

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
    /// [`DirectoryError`] if the directory does not exist or cannot be watched.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DirectoryError> {
        Self::open_with(path.as_ref(), POLL)
    }

    pub(super) fn open_with(path: &Path, poll: Duration) -> Result<Self, DirectoryError> {
        let directory = existing(path)?;
        let (publish, scans) = watch::channel(None);
        let mut files = Files::default();
        let look = move |watcher: &mut FileWatcher| {
            watcher.renew(|| paths(&directory));
            let changed = files.refresh(&directory);
            if changed || publish.borrow().is_none() {
                publish.send_replace(Some(Arc::new(files.merge())));
            }
        };
        let names = ("directory", "the resource directory");
        let follower = FileFollower::start(names, (Debounce::DEFAULT, poll), look)
            .map_err(|source| DirectoryError::NoThread { path: path.to_owned(), source })?;
        Ok(Self { scans, _follower: follower })
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
/// [`DirectoryError`] if the directory does not exist or cannot be listed.
pub fn scan(path: &Path) -> Result<Scan, DirectoryError> {
    let (directory, mut files) = (existing(path)?, Files::default());
    files.refresh(&directory);
    Ok(files.merge())
}

/// Returns the absolute path of a directory, in case the working directory changes. Links are kept, so that
/// a moved link is followed.
fn existing(path: &Path) -> Result<PathBuf, DirectoryError> {
    let unreadable = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::NotFound => DirectoryError::Missing(path.to_owned()),
        std::io::ErrorKind::NotADirectory => DirectoryError::NotADirectory(path.to_owned()),
        _ => DirectoryError::Unreadable { path: path.to_owned(), source },
    };
    let directory = std::path::absolute(path).map_err(unreadable)?;
    std::fs::read_dir(&directory).map_err(unreadable)?;
    Ok(directory)
}

fn paths(directory: &Path) -> WatchedPaths {
    let mut paths = WatchedPaths::default();
    paths.add_entries(directory, is_resource_file);
    paths
}
