//! Snapshot file: its place, its owner, and opening it.
//!
//! Owns the folder, its permissions, and the kinds of faults, each with its remedy. Of the content it knows
//! only this program's mark.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use redb::backends::{FileBackend, InMemoryBackend};
use redb::{Builder, Database, ReadableDatabase as _, StorageBackend, TableHandle as _};

use super::snapshot_encoding::{GROUPS, META, RECORDS, STORES};

/// Name of the file in its folder.
pub(super) const FILE: &str = "cache.redb";
/// First bytes of a redb file.
const MAGIC: [u8; 9] = [b'r', b'e', b'd', b'b', 0x1a, 0x0a, 0xa9, 0x0d, 0x0a];
/// Bytes of the file's pages kept in memory.
const PAGES: usize = 8 << 20;
/// Bytes copied at once.
const COPIED: usize = 1 << 20;

const FORMAT_KEY: &str = "format";
/// Version of the layout of tables and rows.
const FORMAT: u32 = 2;

/// Reason for which the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    /// The system refuses.
    #[error("{0}")]
    Io(io::Error),
    /// Open in another process.
    #[error("another process has it open")]
    Locked,
    /// Not a file of this program.
    #[error("it is no snapshot of deltafan")]
    Foreign,
    /// Written by a later version.
    #[error("a later version of deltafan wrote it ({0})")]
    Newer(String),
    /// Moved away or replaced.
    #[error("it was moved away or replaced while the relay ran")]
    Replaced,
    /// Torn, or altered since it was written.
    #[error("it is corrupt: {0}")]
    Corrupt(String),
}

impl FileError {
    pub(super) fn is_full_disk(&self) -> bool {
        let kinds = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        matches!(self, Self::Io(error) if kinds.contains(&error.kind()))
    }

    pub(super) fn remedy(&self) -> &'static str {
        match self {
            full if full.is_full_disk() => "free space on its disk, or raise the quota",
            Self::Io(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                "mount its folder writable, or change snapshot.path"
            }
            Self::Io(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                "let the user of deltafan write in its folder"
            }
            Self::Io(_) => "check the disk and snapshot.path",
            Self::Locked => "give each relay a snapshot.path of its own",
            Self::Foreign => "move the file away, or change snapshot.path",
            Self::Newer(_) => "move the file away, or run the later version",
            Self::Replaced => "a new one is written; restart the relay to read another one",
            Self::Corrupt(_) => "it is moved aside and a new one is written",
        }
    }
}

impl<E: Into<redb::Error>> From<E> for FileError {
    fn from(error: E) -> Self {
        use redb::Error as Fault;
        match error.into() {
            Fault::DatabaseAlreadyOpen => Self::Locked,
            Fault::UpgradeRequired(version) => Self::Newer(format!("file format {version}")),
            Fault::Io(error)
                if !matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
            {
                Self::Io(error)
            }
            error @ (Fault::PreviousIo
            | Fault::DatabaseClosed
            | Fault::LockPoisoned(_)
            | Fault::ValueTooLarge(_)) => Self::Io(io::Error::other(error.to_string())),
            Fault::Corrupted(what) => Self::Corrupt(what),
            other => Self::Corrupt(other.to_string()),
        }
    }
}

/// Runs library code. A panic there means a corrupt file, not the end of the relay.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, FileError>) -> Result<T, FileError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<&str>().copied().map(str::to_owned);
        let said = said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(FileError::Corrupt(format!("the library panicked: {said}")))
    })
}

/// Path of the file: `path` itself if it is a file, else in that folder.
pub(super) fn file_in(path: &Path) -> PathBuf {
    if path.is_file() { path.to_owned() } else { path.join(FILE) }
}

/// Opens the file in a folder, and creates both if missing, accessible only to their owner.
pub(super) fn open(folder: &Path) -> Result<Database, FileError> {
    if !folder.is_dir() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let path = folder.join(FILE);
    match existing(&path)? {
        Some(file) => guarded(|| {
            file.set_permissions(Permissions::from_mode(0o600))?;
            check(builder().create_with_backend(FileBackend::new(file)?)?)
        }),
        None => create(folder, &path),
    }
}

/// Existing file that begins like redb, opened for writing.
fn existing(path: &Path) -> Result<Option<File>, FileError> {
    // A pipe would block the start until its other end opens.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut file = match OpenOptions::new().read(true).write(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if !file.metadata()?.is_file() {
        return Err(FileError::Foreign);
    }
    check_start(&mut file)?;
    Ok(Some(file))
}

fn check_start(file: &mut File) -> Result<(), FileError> {
    let mut start = Vec::new();
    file.by_ref().take(MAGIC.len() as u64).read_to_end(&mut start)?;
    match &start[..] {
        start if start == MAGIC => Ok(()),
        start if is_lost(start) => Err(FileError::Corrupt("its beginning was not written".to_owned())),
        _ => Err(FileError::Foreign),
    }
}

/// Whether a file looks like the result of a power loss: cut short, or zeros. It is nobody else's.
fn is_lost(start: &[u8]) -> bool {
    MAGIC.starts_with(start) || start.iter().all(|byte| *byte == 0)
}

/// Creates the file under another name first, so that a full disk leaves no doubtful file.
fn create(folder: &Path, path: &Path) -> Result<Database, FileError> {
    let new = folder.join(format!("{FILE}.new"));
    let make = || {
        if let Err(error) = fs::remove_file(&new)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error.into());
        }
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&new)?;
        let database = guarded(|| mark(builder().create_with_backend(FileBackend::new(file)?)?))?;
        fs::rename(&new, path)?;
        File::open(folder)?.sync_all()?;
        Ok(database)
    };
    make().inspect_err(|_| drop(fs::remove_file(&new)))
}

/// Moves a corrupt file aside, over an earlier one.
pub(super) fn set_aside(folder: &Path) -> io::Result<PathBuf> {
    let aside = folder.join(format!("{FILE}.corrupt"));
    fs::rename(folder.join(FILE), &aside)?;
    Ok(aside)
}

fn builder() -> Builder {
    let mut builder = Database::builder();
    // Finds an altered page before the library trusts it.
    builder.set_cache_size(PAGES).set_check_integrity_on_open(true);
    builder
}

/// Opens a file for reading: nothing of it changes, and no process writes it meanwhile.
pub(super) fn look(path: &Path) -> Result<Database, FileError> {
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(FileError::Foreign);
    }
    match file.try_lock_shared() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(FileError::Locked),
        Err(TryLockError::Error(error)) => return Err(error.into()),
    }
    check_start(&mut file)?;
    // The library repairs a file while it reads, as after a kill: it gets a copy in memory.
    let (copy, len) = (InMemoryBackend::new(), file.metadata()?.len());
    copy.set_len(len)?;
    for offset in (0..len).step_by(COPIED) {
        let mut part = vec![0; COPIED.min((len - offset) as usize)];
        file.read_exact_at(&mut part, offset)?;
        copy.write(offset, &part)?;
    }
    guarded(|| check(builder().create_with_backend(copy)?))
}

/// Frees the space at the file's end that a failed transaction took.
pub(super) fn compacted(mut database: Database) -> Result<Database, FileError> {
    guarded(move || {
        database.compact()?;
        Ok(database)
    })
}

fn mark(database: Database) -> Result<Database, FileError> {
    let mut transaction = database.begin_write()?;
    transaction.set_two_phase_commit(true);
    transaction.open_table(META)?.insert(FORMAT_KEY, FORMAT)?;
    transaction.open_table(GROUPS)?;
    transaction.open_table(STORES)?;
    transaction.open_table(RECORDS)?;
    transaction.commit()?;
    Ok(database)
}

/// Whether the database belongs to this program and version.
fn check(database: Database) -> Result<Database, FileError> {
    let transaction = database.begin_read()?;
    if !transaction.list_tables()?.any(|table| table.name() == META.name()) {
        return Err(FileError::Foreign);
    }
    let format = transaction.open_table(META)?.get(FORMAT_KEY)?.map(|format| format.value());
    match format {
        Some(FORMAT) => Ok(database),
        Some(format) if format > FORMAT => Err(FileError::Newer(format!("format {format}"))),
        Some(_) | None => Err(FileError::Corrupt("its format cannot be read".to_owned())),
    }
}
