//! One error type for all of the store, and the stop of long work. Messages are one line: what, where, what to do next.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode as C;

use super::segment::SegmentId;
use crate::core::Exit;
use crate::core::plain_words;

pub type Result<T, E = StoreError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    #[error("cannot {action} {}: {}", path.display(), plain_words(source))]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("session database: {}", one_line(.0))]
    Database(#[from] rusqlite::Error),
    #[error("disk full on {}: free some space, saving goes on by itself", path.display())]
    Full { path: PathBuf },
    #[error("{} is damaged ({detail}): sala-chat doctor --check makes a new one of what can be read; if nothing can, bring back a copy, or move the folder away to start afresh. Nothing was removed", path.display())]
    Damaged { path: PathBuf, detail: String },
    #[error("{} is damaged ({detail}) and another sala-chat has it open: close that one first, then sala-chat doctor --check writes a new database of everything that can be read and keeps the old file", path.display())]
    DamagedInUse { path: PathBuf, detail: String },
    #[error("{} is damaged ({detail}): bring back a copy, or move the folder away to start afresh. Nothing was removed", path.display())]
    NoDatabase { path: PathBuf, detail: String },
    #[error("{} is damaged ({fault}), so nothing is removed from it: sala-chat doctor --check repairs what it can", path.display())]
    Doubtful { path: PathBuf, fault: String },
    #[error("{} is not a sala-chat database: choose another folder with --data-dir", path.display())]
    Foreign { path: PathBuf },
    #[error("{} is a link; links are not followed: name the folder that the database is in with --data-dir", path.display())]
    Linked { path: PathBuf },
    #[error("{} {what} while in use: put it back and saving goes on, or export the text to a file elsewhere", path.display())]
    Gone { path: PathBuf, what: &'static str },
    #[error("{} is not a data folder of sala-chat ({what:?} is in it): choose an empty one with --data-dir", path.display())]
    NotOurs { path: PathBuf, what: String },
    #[error("{why}")]
    ReadOnly { why: String },
    #[error("data folder {}: {}; choose another with --data-dir", path.display(), plain_words(source))]
    NoFolder { path: PathBuf, source: io::Error },
    #[error("no session called \"{name}\": `sala-chat ls` lists them")]
    NoSession { name: String },
    #[error("a session called \"{name}\" exists: choose another name")]
    NameTaken { name: String },
    #[error("\"{}\" means the session changed last: choose another name", super::LAST)]
    MeansLast,
    #[error("message {id} is not in the database")]
    NoMessage { id: i64 },
    #[error("state {} is not in the database: the text is, read it again", id.short())]
    NoSegment { id: SegmentId },
    /// Text is not affected.
    #[error("state {} cannot be used: {why}", id.short())]
    StateLost { id: SegmentId, why: String },
    #[error("state {} cannot be used: another process saved or removed it at the same time", id.short())]
    PlaceTaken { id: SegmentId },
    #[error("\"{name}\" has no state of this model to export: export it as text, or open it and ask something first")]
    NoState { name: String },
    #[error("state needs {need_bytes} bytes, {free_bytes} are free above the reserve of {reserve_bytes}")]
    NoRoom { need_bytes: u64, free_bytes: u64, reserve_bytes: u64 },
    #[error("\"{name}\" is in use by PID {pid}{} since {since}",
        tty.as_ref().map(|t| format!(" on {t}")).unwrap_or_default())]
    InUse { name: String, pid: u32, tty: Option<String>, since: String },
    #[error("{} exists. --force overwrites.", path.display())]
    Exists { path: PathBuf },
    #[error("{} is not a regular file: it is not overwritten. Name another one.", path.display())]
    NotAFile { path: PathBuf },
    #[error("{} is a folder. Name a file in it.", path.display())]
    IsFolder { path: PathBuf },
    #[error("the folder {} does not exist. Make it first, or name another one.", path.display())]
    NoParent { path: PathBuf },
    #[error("{}: {}", path.display(), plain_words(source))]
    NoInput { path: PathBuf, source: io::Error },
    #[error("{}: {why}", path.display())]
    Import { path: PathBuf, why: String },
    #[error("stopped")]
    Stopped,
    #[error("session database: {what} is unreadable: {why}")]
    Broken { what: String, why: String },
}

impl StoreError {
    /// `None` for a segment or a message that is not in the database.
    pub fn if_known<T>(found: Result<T>) -> Result<Option<T>> {
        match found {
            Err(StoreError::NoSegment { .. } | StoreError::NoMessage { .. } | StoreError::NoSession { .. }) => Ok(None),
            found => found.map(Some),
        }
    }

    pub fn exit(&self) -> Exit {
        match self {
            StoreError::InUse { .. } => Exit::InUse,
            StoreError::NoSession { .. }
            | StoreError::NameTaken { .. }
            | StoreError::MeansLast
            | StoreError::Exists { .. }
            | StoreError::NotAFile { .. }
            | StoreError::IsFolder { .. }
            | StoreError::NoParent { .. }
            | StoreError::Import { .. } => Exit::Failure,
            StoreError::NoInput { .. } => Exit::NoInput,
            StoreError::Stopped => Exit::Stopped,
            StoreError::NotOurs { .. } => Exit::Usage,
            e if e.is_disk() => Exit::Disk,
            _ => Exit::Unreadable,
        }
    }

    fn code(&self) -> Option<C> {
        match self {
            StoreError::Database(e) => e.sqlite_error_code(),
            _ => None,
        }
    }

    pub fn is_disk(&self) -> bool {
        use StoreError as E;
        match self {
            E::Io { .. } | E::Full { .. } | E::NoRoom { .. } | E::ReadOnly { .. } | E::NoFolder { .. } => true,
            E::Gone { .. } => true,
            e => matches!(
                e.code(),
                Some(
                    C::SystemIoFailure
                        | C::DiskFull
                        | C::CannotOpen
                        | C::ReadOnly
                        | C::DatabaseBusy
                        | C::DatabaseLocked
                        | C::PermissionDenied
                        | C::OutOfMemory
                )
            ),
        }
    }

    pub fn is_full(&self) -> bool {
        match self {
            StoreError::Full { .. } | StoreError::NoRoom { .. } => true,
            StoreError::Io { source, .. } => is_full(source),
            StoreError::Database(rusqlite::Error::SqliteFailure(e, _)) => {
                e.code == C::DiskFull || FULL_SHM.contains(&e.extended_code)
            }
            _ => false,
        }
    }

    /// Whether SQLite cannot create its files, as on a disk without a free inode.
    pub(super) fn cannot_make_files(&self) -> bool {
        self.code() == Some(C::CannotOpen)
    }

    pub fn damage(&self) -> Option<String> {
        match self {
            StoreError::Damaged { detail, .. } => Some(detail.clone()),
            StoreError::Database(e) => Some(one_line(e)).filter(|_| is_damage(e)),
            _ => None,
        }
    }

    /// Whether a row that this one builds on is missing: a change fails so if it follows a text that was not saved.
    pub(super) fn lacks_another(&self) -> bool {
        matches!(self, StoreError::NoMessage { .. }) || self.code() == Some(C::ConstraintViolation)
    }

    pub fn is_busy(&self) -> bool {
        matches!(self.code(), Some(C::DatabaseBusy | C::DatabaseLocked))
    }

    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
        let path = path.to_path_buf();
        move |source| StoreError::Io { action, path, source }
    }
}

/// SQLite quotes the part it could not read, which may contain any bytes of the file.
pub(super) fn one_line(e: &impl std::fmt::Display) -> String {
    e.to_string().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// `SQLITE_IOERR_SHMSIZE` and `SQLITE_IOERR_SHMOPEN`: no room for the file that shares the log's index.
const FULL_SHM: [i32; 2] = [rusqlite::ffi::SQLITE_IOERR_SHMSIZE, rusqlite::ffi::SQLITE_IOERR_SHMOPEN];

pub(super) fn is_full(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Whether the error means that the data read differs from the data written.
pub(super) fn is_damage(e: &rusqlite::Error) -> bool {
    use rusqlite::Error as E;
    match e {
        E::SqliteFailure(f, _) => matches!(f.code, C::DatabaseCorrupt | C::NotADatabase),
        E::FromSqlConversionFailure(..) | E::IntegralValueOutOfRange(..) | E::InvalidColumnType(..) => true,
        E::Utf8Error(..) => true,
        _ => false,
    }
}

/// Progress and stop of long work.
#[derive(Clone, Copy)]
pub struct Watch<'a> {
    /// Whether to stop; called often.
    pub stop: &'a dyn Fn() -> bool,
    /// Progress: done, of all. The unit depends on the work.
    pub progress: &'a dyn Fn(u64, u64),
}

impl Watch<'_> {
    pub const NONE: Watch<'static> = Watch { stop: &|| false, progress: &|_, _| {} };

    /// [`Watch::go_on`] as an I/O error, which [`Watch::or_stopped`] converts back.
    pub(super) fn go_on_io(&self) -> io::Result<()> {
        if (self.stop)() { Err(io::Error::other("stopped")) } else { Ok(()) }
    }

    pub(super) fn or_stopped(&self, e: StoreError) -> StoreError {
        if (self.stop)() { StoreError::Stopped } else { e }
    }

    pub(super) fn go_on(&self) -> Result<()> {
        if (self.stop)() { Err(StoreError::Stopped) } else { Ok(()) }
    }
}

impl std::fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}
