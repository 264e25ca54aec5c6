//! [`Store`]: one data directory, opened. Owns the directory layout, the two connections (one reads, one writes, so
//! that reading never waits for a sync), ids, and the start-up sweep. Everything else is in the sibling modules.

use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::directory::{self, Layout};
use super::disk::Disk;
use super::error::{Result, StoreError};
use super::schema::{self, Found};
use crate::transcript::{MessageId, SessionId};

/// Ids handed out by one process before it has to ask the database again.
const ID_BLOCK: i64 = 1 << 20;
/// A database up to this size is checked whenever it is opened; a larger one by `doctor --check`.
const CHECKED_BYTES: u64 = 16 << 20;

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

/// What a store is opened for: decides what a full disk means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// To add or remove something: the reserve is given up for it.
    Write,
    /// To look: a copy will do.
    Read,
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
    /// Directory and database as they were when it was opened: device and number.
    identity: Option<[(u64, u64); 2]>,
    /// The database and the mark name the same directory: what no row names may be removed.
    pub(super) known: bool,
    /// Shared lock, held as long as the store is open: see [`Store::is_alone`].
    present: Option<File>,
    /// Private copy of a database that cannot be opened in place.
    _copy: Option<super::scratch::Scratch>,
}

impl Store {
    /// Opens a data directory, making it if needed, and removes what an earlier process left unfinished.
    ///
    /// A directory that cannot be written, or a database of a newer program, opens read-only: see [`Store::access`]. Where
    /// the disk is full the reserve is given up.
    ///
    /// # Errors
    /// No directory, one with other things in it, a foreign or damaged database.
    pub fn open(root: &Path, disk: Arc<dyn Disk>, limits: Limits) -> Result<Store> {
        Store::open_for(root, disk, limits, Purpose::Write)
    }

    /// As [`Store::open`], to look only: where the disk is full a copy elsewhere is read before the reserve is given up.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_to_read(root: &Path, disk: Arc<dyn Disk>, limits: Limits) -> Result<Store> {
        Store::open_for(root, disk, limits, Purpose::Read)
    }

    fn open_for(root: &Path, disk: Arc<dyn Disk>, limits: Limits, purpose: Purpose) -> Result<Store> {
        let root = std::path::absolute(root).map_err(no_folder(root))?;
        if root.exists() && !root.is_dir() {
            return Err(no_folder(&root)(std::io::ErrorKind::NotADirectory.into()));
        }
        // Links on the way to it are the user's; from here on none is followed.
        let resolved = |root: &Path| Layout::new(&root.canonicalize().unwrap_or(root.to_owned()));
        directory::survey(&resolved(&root), &*disk)?;
        // What keeps it from being made shows below.
        let _ = disk.make_dir(&root);
        let layout = resolved(&root);
        let open = |e: StoreError| -> Result<Store> {
            let shown = layout.root.display();
            let full = e.is_full();
            let copy = |why: String| Store::open_readable(layout.clone(), Arc::clone(&disk), limits.clone(), why);
            let retry = || Store::open_writable(layout.clone(), Arc::clone(&disk), limits.clone());
            let reserve =
                || disk.look(&layout.reserve).is_ok_and(|l| l.is_file) && disk.remove(&layout.reserve).is_ok();
            if !full {
                return Err(e);
            }
            if purpose == Purpose::Read
                && let Ok(store) = copy(format!("Disk full on {shown}: texts can be read, nothing is saved."))
            {
                return Ok(store);
            }
            if reserve() {
                let mut store = retry()?;
                store.notes.push(format!("Disk full on {shown}: the reserve was given up. Free some space."));
                return Ok(store);
            }
            copy(format!(
                "Disk full on {shown} and no reserve left: texts can be read, nothing is saved. Free some space."
            ))
        };
        match directory::make_ready(&layout, &*disk) {
            Ok(()) => Store::open_writable(layout.clone(), Arc::clone(&disk), limits.clone()).or_else(open),
            Err(e) if super::error::is_full(&e) => open(StoreError::Full { path: layout.root.clone() }),
            Err(e) if layout.database.is_file() => {
                let shown = layout.root.display();
                let why = format!("{shown} cannot be written ({e}): texts can be read, nothing is saved.");
                Store::open_readable(layout, disk, limits, why)
            }
            Err(source) => Err(no_folder(&layout.root)(source)),
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
            identity: None,
            known: false,
            present: None,
            _copy: None,
        };
        store.identity = store.identify().ok();
        store.present = store.layout.open_lock("store").ok().filter(|file| file.lock_shared().is_ok());
        store.recognise();
        super::parts::remove_left(&store.layout, &*store.disk);
        let removed = store.sweep(false);
        if removed > 0 {
            store.notes.push(format!("{removed} unfinished state file(s) of an earlier run were removed."));
        }
        store.notes.extend(directory::open_to_others(&store.layout, &*store.disk));
        store.look_for_damage();
        store.fill_reserve();
        Ok(store)
    }

    fn open_readable(layout: Layout, disk: Arc<dyn Disk>, limits: Limits, why: String) -> Result<Store> {
        // SQLite wants to write beside a WAL database even to read it: read a copy then.
        let copy = super::scratch::Scratch::new().map_err(StoreError::io("make a copy in", &std::env::temp_dir()))?;
        let target = copy.path().join("sala.db");
        let wal = layout.root.join("sala.db-wal");
        for (from, to) in [(&layout.database, &target), (&wal, &copy.path().join("sala.db-wal"))] {
            if from == &layout.database || from.is_file() {
                copy_private(from, to).map_err(StoreError::io("read", from))?;
            }
        }
        // Takes in the log, brings an older database up to date (a newer one stays as it is), and indexes what is not yet.
        if let Ok((db, Found::Current)) = schema::open_writable(&target) {
            let _ = db.execute_batch(
                "INSERT INTO message_text(rowid, text) SELECT id, text FROM message WHERE indexed = 0;
                 UPDATE message SET indexed = 1 WHERE indexed = 0;",
            );
        }
        let (reader, _) = schema::open_readable(&target, &layout.database)?;
        let (writer, _) = schema::open_readable(&target, &layout.database)?;
        let mut store = Store {
            layout,
            disk,
            limits,
            notes: vec![why.clone()],
            access: Access::ReadOnly { why },
            reader: Mutex::new(reader),
            writer: Mutex::new(writer),
            ids: Mutex::new(0..0),
            identity: None,
            known: false,
            present: None,
            _copy: Some(copy),
        };
        store.look_for_damage();
        Ok(store)
    }

    /// Compares the directory's mark with the database's, marking a directory of an earlier version or a new one.
    fn recognise(&mut self) {
        let wanted = self.directory_id();
        let found = directory::read_mark(&self.layout, &*self.disk);
        match (wanted, found) {
            (Ok(wanted), Some(found)) if wanted == found => self.known = true,
            (Ok(_), Some(_)) => self.notes.push(format!(
                "{} and its sala.db belong to different data directories: nothing is removed from it. \
                 If that is meant: sala-chat doctor --check",
                self.layout.root.display()
            )),
            (Ok(wanted), None) => {
                // Without a mark nothing is removed; that is all it costs.
                self.known = directory::write_mark(&self.layout, &*self.disk, &wanted).is_ok();
            }
            // Not recorded (a full disk): the next start will.
            (Err(_), _) => {}
        }
    }

    /// The id of the directory this database belongs to, made if there is none.
    pub(super) fn directory_id(&self) -> Result<String> {
        let sql = "SELECT value FROM property WHERE name = 'directory'";
        if let Ok(id) = self.read(|db| Ok(db.query_row(sql, [], |r| r.get::<_, String>(0))?)) {
            return Ok(id);
        }
        let new = directory::new_id().map_err(StoreError::io("read", Path::new("/dev/urandom")))?;
        self.transaction(|tx| {
            tx.execute("INSERT OR IGNORE INTO property VALUES ('directory', ?1)", [&new])?;
            Ok(tx.query_row(sql, [], |r| r.get(0))?)
        })
    }

    /// Notes damage in a database small enough to be looked at every time.
    fn look_for_damage(&mut self) {
        let bytes = self.disk.look(&self.layout.database).map_or(0, |l| l.bytes);
        if bytes > CHECKED_BYTES {
            return;
        }
        let first = match self.read(super::check::first_fault) {
            Ok(first) => first,
            // So damaged that it cannot even be looked at.
            Err(e) => Some(e.to_string()),
        };
        if let Some(first) = first {
            self.notes.push(format!(
                "{} is damaged in places ({first}): what can be read is shown. sala-chat doctor --check tells more and \
                 repairs what can be.",
                self.layout.database.display()
            ));
        }
    }

    fn identify(&self) -> std::io::Result<[(u64, u64); 2]> {
        Ok([self.disk.look(&self.layout.root)?.identity, self.disk.look(&self.layout.database)?.identity])
    }

    /// Whether what is open is still what the names lead to; SQLite writes on into a file that has lost its name.
    fn still_there(&self) -> Result<()> {
        let Some(identity) = self.identity else {
            return Ok(());
        };
        let gone = |what: &'static str| StoreError::Gone { path: self.layout.database.clone(), what };
        match self.identify() {
            Ok(now) if now != identity => return Err(gone("was replaced by another")),
            Ok(_) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Err(gone("was removed")),
            Err(e) => return Err(StoreError::io("read", &self.layout.database)(e)),
        }
        // Open files outlive their permissions: what the next start could not read is not saved.
        let me = rustix::process::geteuid().as_raw();
        for (path, bits) in [(&self.layout.root, 0o700), (&self.layout.database, 0o600)] {
            let look = self.disk.look(path).map_err(StoreError::io("read", path))?;
            if look.owner == me && look.mode & bits != bits {
                return Err(gone("cannot be read and written any more"));
            }
        }
        Ok(())
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

    /// Runs `f` in a transaction and commits it. What `f` did is durable when this returns `Ok`. On a full disk the reserve
    /// is given up for it, and `f` runs once more.
    pub(super) fn transaction<T>(&self, f: impl Fn(&Transaction<'_>) -> Result<T>) -> Result<T> {
        match self.commit(&f) {
            // The reserve was made for this moment.
            Err(e) if e.is_full() && self.free_reserve() => self.commit(&f),
            other => other,
        }
    }

    fn commit<T>(&self, f: impl Fn(&Transaction<'_>) -> Result<T>) -> Result<T> {
        if let Access::ReadOnly { why } = &self.access {
            return Err(StoreError::ReadOnly { why: why.clone() });
        }
        self.still_there()?;
        let mut db = lock(&self.writer);
        let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let out = f(&tx)?;
        self.disk.before_commit().map_err(StoreError::io("save in", &self.layout.database))?;
        tx.commit()?;
        Ok(out)
    }

    /// Moves the write-ahead log into the database, so that a damaged log has nothing to lose. What cannot be moved now (a
    /// full disk, another process that reads) is safe in the log and goes with the next one.
    pub(super) fn checkpoint(&self) {
        let db = lock(&self.writer);
        let moved = db
            .busy_timeout(schema::BUSY_CHECKPOINT)
            .and_then(|()| db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |r| r.get::<_, i64>(0)));
        let _ = db.busy_timeout(schema::BUSY);
        if !matches!(moved, Ok(0)) {
            tracing::debug!(?moved, "the log stays");
        }
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
        self.disk.look(&self.layout.reserve).is_ok_and(|l| l.is_file) && self.disk.remove(&self.layout.reserve).is_ok()
    }

    /// Makes the reserve file if it is missing and there is plenty of room.
    pub(super) fn fill_reserve(&self) {
        let path = &self.layout.reserve;
        match self.disk.look(path) {
            Ok(look) if !look.is_file || look.bytes == u64::from(self.limits.reserve_bytes) => return,
            _ => {}
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

    /// Removes files in `segments/` that no row names (old ones, or `all`), unless a process is writing some right now or the
    /// directory is not the one the database knows. Returns how many.
    pub(super) fn sweep(&self, all: bool) -> u64 {
        let lock = self.layout.open_lock("writing").ok().filter(|lock| self.known && lock.try_lock().is_ok());
        if lock.is_none() {
            return 0;
        }
        directory::sweep(&self.layout, &*self.disk, all, |id, kind| {
            let sql = format!("SELECT 1 FROM segment WHERE id = ?1 AND {}_root IS NOT NULL", kind.extension());
            // When in doubt the file stays.
            self.read(|db| Ok(db.prepare_cached(&sql)?.exists([id.0])?)).unwrap_or(true)
        })
    }
}

/// Copies a file for this user's eyes.
fn copy_private(from: &Path, to: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut copy = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    std::io::copy(&mut File::open(from)?, &mut copy).map(drop)
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
