//! [`Store`]: one data directory, opened. Owns the directory layout, the two connections (one reads, one writes, so
//! that reading never waits for a sync), ids, and the start-up sweep. Everything else is in the sibling modules.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::disk::{Disk, private_file};
use super::error::{Result, StoreError};
use super::format::FileKind;
use super::schema::{self, Found};
use super::segment::SegmentId;
use crate::transcript::{MessageId, SessionId};

/// Ids handed out by one process before it has to ask the database again.
const ID_BLOCK: i64 = 1 << 20;
/// Names of unfinished files end in this.
const UNFINISHED: &str = "tmp";

/// What may be kept, and for how long. Defaults as in `config.example.toml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// States of this many newest turns are never thinned.
    pub keep_turns: u64,
    /// Kept state of all sessions, bytes. Beyond it the state unused for longest goes, text never.
    pub max_state_bytes: u64,
    /// State is not written when less than this would stay free.
    pub min_free_bytes: u64,
    /// Deleted sessions stay in the trash this long.
    pub trash_days: u32,
    /// State waiting to be written may hold this much memory; more is skipped (and said).
    pub max_pending_bytes: u64,
    /// Size of the file that is given up when the disk is full, so that the last lines still get in.
    pub reserve_bytes: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            keep_turns: 16,
            max_state_bytes: 40 << 30,
            min_free_bytes: 5 << 30,
            trash_days: 7,
            max_pending_bytes: 2 << 30,
            reserve_bytes: 4 << 20,
        }
    }
}

/// Whether the store may be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Yes.
    Writable,
    /// Texts can be read, nothing saved.
    ReadOnly {
        /// A whole sentence for the user.
        why: String,
    },
}

/// Where things lie in a data directory.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub root: PathBuf,
    pub database: PathBuf,
    pub segments: PathBuf,
    pub locks: PathBuf,
    reserve: PathBuf,
}

impl Layout {
    fn new(root: &Path) -> Layout {
        Layout {
            root: root.to_path_buf(),
            database: root.join("sala.db"),
            segments: root.join("segments"),
            locks: root.join("locks"),
            reserve: root.join("reserve"),
        }
    }

    pub fn file(&self, id: &SegmentId, kind: FileKind) -> PathBuf {
        self.segments.join(format!("{}.{}", id.hex(), kind.extension()))
    }

    /// The file behind an advisory lock, mode 0600.
    pub fn open_lock(&self, name: &str) -> std::io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        private_file(&mut options);
        options.open(self.locks.join(format!("{name}.lock")))
    }

    pub fn unfinished(&self, id: &SegmentId, kind: FileKind) -> PathBuf {
        // With the process in the name: two may be at work on the same document.
        self.segments.join(format!("{}.{}.{}.{UNFINISHED}", id.hex(), kind.extension(), std::process::id()))
    }
}

/// An open data directory. Shared between threads; every call may wait for the disk.
#[derive(Debug)]
pub struct Store {
    pub(super) layout: Layout,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) limits: Limits,
    access: Access,
    reader: Mutex<Connection>,
    writer: Mutex<Connection>,
    ids: Mutex<std::ops::Range<i64>>,
    notes: Vec<String>,
    /// Shared lock, held as long as the store is open: see [`Store::is_alone`].
    present: Option<File>,
    /// Private copy of a database that cannot be opened in place.
    _copy: Option<tempfile::TempDir>,
}

impl Store {
    /// Opens a data directory, making it if needed, and removes what an earlier process left unfinished.
    ///
    /// A directory that cannot be written, or a database of a newer program, opens read-only: see [`Store::access`].
    ///
    /// # Errors
    /// No directory, a foreign or damaged database.
    pub fn open(root: &Path, disk: Arc<dyn Disk>, limits: Limits) -> Result<Store> {
        let root = std::path::absolute(root).map_err(no_folder(root))?;
        let layout = Layout::new(&root);
        if root.exists() && !root.is_dir() {
            return Err(no_folder(&root)(std::io::ErrorKind::NotADirectory.into()));
        }
        match make_ready(&layout, &*disk) {
            Ok(()) => Store::open_writable(layout, disk, limits),
            Err(e) if layout.database.is_file() => {
                let why = format!("{} cannot be written ({e}): texts can be read, nothing is saved.", root.display());
                Store::open_readable(layout, disk, limits, why)
            }
            Err(source) => Err(no_folder(&root)(source)),
        }
    }

    fn open_writable(layout: Layout, disk: Arc<dyn Disk>, limits: Limits) -> Result<Store> {
        let (writer, found) = schema::open_writable(&layout.database)?;
        if let Found::Newer(version) = found {
            drop(writer);
            let why = format!(
                "{} was written by a newer sala-chat (format {version}, this one knows {}): texts can be read, \
                 nothing is saved. Update sala-chat.",
                layout.database.display(),
                schema::VERSION
            );
            return Store::open_readable(layout, disk, limits, why);
        }
        let (reader, _) = schema::open_readable(&layout.database, &layout.database)?;
        let mut store = Store {
            layout,
            disk,
            limits,
            access: Access::Writable,
            reader: Mutex::new(reader),
            writer: Mutex::new(writer),
            ids: Mutex::new(0..0),
            notes: Vec::new(),
            present: None,
            _copy: None,
        };
        store.present = store.layout.open_lock("store").ok().filter(|file| file.lock_shared().is_ok());
        let removed = store.sweep();
        if removed > 0 {
            store.notes.push(format!("{removed} unfinished state file(s) of an earlier run were removed."));
        }
        store.fill_reserve();
        Ok(store)
    }

    fn open_readable(layout: Layout, disk: Arc<dyn Disk>, limits: Limits, why: String) -> Result<Store> {
        // SQLite wants to write beside a WAL database even to read it: read a copy then.
        let copy = tempfile::tempdir().map_err(StoreError::io("make a copy in", &std::env::temp_dir()))?;
        let target = copy.path().join("sala.db");
        std::fs::copy(&layout.database, &target).map_err(StoreError::io("read", &layout.database))?;
        let wal = layout.root.join("sala.db-wal");
        if wal.is_file() {
            std::fs::copy(&wal, copy.path().join("sala.db-wal")).map_err(StoreError::io("read", &wal))?;
        }
        drop(
            Connection::open(&target).and_then(|db| db.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))),
        );
        let (reader, _) = schema::open_readable(&target, &layout.database)?;
        let (writer, _) = schema::open_readable(&target, &layout.database)?;
        Ok(Store {
            layout,
            disk,
            limits,
            notes: vec![why.clone()],
            access: Access::ReadOnly { why },
            reader: Mutex::new(reader),
            writer: Mutex::new(writer),
            ids: Mutex::new(0..0),
            present: None,
            _copy: Some(copy),
        })
    }

    /// Whether anything can be saved.
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// Sentences to show once: what the start had to do or could not do.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The data directory.
    pub fn root(&self) -> &Path {
        &self.layout.root
    }

    /// The limits it was opened with.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// An id for a new message, unique in this data directory over all processes. Needs no disk but every millionth
    /// time, so a message can be shown before it is saved.
    pub fn new_message_id(&self) -> MessageId {
        MessageId(self.new_id())
    }

    /// An id for a new session.
    pub fn new_session_id(&self) -> SessionId {
        SessionId(self.new_id())
    }

    fn new_id(&self) -> i64 {
        let mut ids = lock(&self.ids);
        if ids.is_empty() {
            let block = self.transaction(|tx| {
                Ok(tx.query_row(
                    "UPDATE counter SET value = value + ?1 WHERE name = 'id' RETURNING value - ?1",
                    [ID_BLOCK],
                    |r| r.get::<_, i64>(0),
                )?)
            });
            // A full or read-only disk must not stop a conversation: ids from far away, told apart by process and time.
            let first = block.unwrap_or_else(|_| (1 << 61) + ((now_ms() & 0xff_ffff_ffff) << 20));
            *ids = first..first + ID_BLOCK;
        }
        let id = ids.start;
        ids.start += 1;
        id
    }

    /// Runs `f` on the reading connection.
    pub(super) fn read<T>(&self, f: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        f(&lock(&self.reader))
    }

    /// Runs `f` in a transaction and commits it. What `f` did is durable when this returns `Ok`.
    pub(super) fn transaction<T>(&self, f: impl FnOnce(&Transaction<'_>) -> Result<T>) -> Result<T> {
        if let Access::ReadOnly { why } = &self.access {
            return Err(StoreError::ReadOnly { why: why.clone() });
        }
        let mut db = lock(&self.writer);
        let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let out = f(&tx)?;
        self.disk.before_commit().map_err(StoreError::io("save in", &self.layout.database))?;
        tx.commit()?;
        Ok(out)
    }

    /// Whether no other process has the directory open right now.
    pub(super) fn is_alone(&self) -> bool {
        let Some(present) = &self.present else {
            return false;
        };
        // Making our shared lock exclusive fails while another process holds one. Ours may be lost for a moment, which
        // matters only to another process asking the same in that moment.
        let alone = present.try_lock().is_ok();
        let _ = present.lock_shared();
        alone
    }

    /// Gives the reserve file's space back to the file system. Returns whether there was one.
    pub(super) fn free_reserve(&self) -> bool {
        self.layout.reserve.is_file() && self.disk.remove(&self.layout.reserve).is_ok()
    }

    /// Makes the reserve file if it is missing and there is plenty of room.
    pub(super) fn fill_reserve(&self) {
        let path = &self.layout.reserve;
        if self.disk.len(path).is_ok_and(|n| n == u64::from(self.limits.reserve_bytes)) {
            return;
        }
        let room = self.disk.free_bytes(&self.layout.root).unwrap_or(0);
        if room < 4 * u64::from(self.limits.reserve_bytes) {
            return;
        }
        // Best effort: without it a full disk is met a little earlier. Not zeros: some file systems store those in no space.
        let noise: Vec<u8> =
            (0..self.limits.reserve_bytes).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
        let written = self.disk.create(path).and_then(|mut f| {
            f.write(&noise)?;
            f.sync()
        });
        if written.is_err() {
            let _ = self.disk.remove(path);
        }
    }

    /// Removes files in `segments/` that no row names, unless a process is writing some right now. Returns how many.
    fn sweep(&self) -> u64 {
        let Ok(lock) = self.layout.open_lock("writing") else {
            return 0;
        };
        if lock.try_lock().is_err() {
            return 0;
        }
        let dir = &self.layout.segments;
        let mut removed = 0;
        for name in self.disk.list(dir).unwrap_or_default() {
            let named = name.to_str().and_then(|n| n.split_once('.')).is_some_and(|(stem, extension)| {
                let column = match extension {
                    "rows" => "rows_root",
                    "end" => "end_root",
                    _ => return false,
                };
                let Some(id) = SegmentId::from_hex(stem) else {
                    return false;
                };
                let sql = format!("SELECT 1 FROM segment WHERE id = ?1 AND {column} IS NOT NULL");
                // When in doubt the file stays.
                self.read(|db| Ok(db.prepare_cached(&sql)?.exists([id.0])?)).unwrap_or(true)
            });
            if !named && self.disk.remove(&dir.join(&name)).is_ok() {
                removed += 1;
            }
        }
        removed
    }
}

fn make_ready(layout: &Layout, disk: &dyn Disk) -> std::io::Result<()> {
    for dir in [&layout.root, &layout.segments, &layout.locks] {
        disk.make_dir(dir)?;
    }
    // The one honest way to learn whether files can be made here: permissions, read-only mounts, quotas.
    let probe = layout.segments.join(format!("probe-{}.{UNFINISHED}", std::process::id()));
    let made = disk.create(&probe).map(drop);
    disk.remove(&probe)?;
    match made {
        // Full is not read-only: the database's free pages and the reserve may still take text.
        Err(e) if !super::error::is_full(&e) => return Err(e),
        _ => {}
    }
    if !layout.database.exists() {
        // Made by us first, so that it and the files SQLite puts beside it are private.
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        private_file(&mut options);
        options.open(&layout.database)?;
    }
    OpenOptions::new().write(true).open(&layout.database).map(drop)
}

fn no_folder(path: &Path) -> impl Fn(std::io::Error) -> StoreError {
    let path = path.to_path_buf();
    move |source| StoreError::NoFolder { path: path.clone(), source }
}

/// A panic while holding a connection leaves no half-done transaction behind (it is rolled back), so going on is safe.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Milliseconds since the Unix epoch. For display only.
pub(super) fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
}
