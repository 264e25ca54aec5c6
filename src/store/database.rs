//! [`Store`]: one open data directory. Owns the directory layout, the two connections (one reads, one writes, so that
//! reading never waits for a sync), transactions, ids and other counters, and the reserve. Everything else is in the
//! sibling modules.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::directory::{self, Layout, SegmentName};
use super::disk::Disk;
use super::error::{Result, StoreError};
use super::recorded::is_named;
use super::schema;
use super::segment::SegmentId;
use crate::core::transcript::{MessageId, SessionId};
use crate::core::{counted, now_ms};

/// State files without a row stay this long: a database restored from a copy may name them.
const ORPHAN_AGE: Duration = Duration::from_secs(3 * 24 * 3600);
const ID_BLOCK: i64 = 1 << 20;
/// Ids from here on were taken without the database: a part of a block for each millisecond.
pub(super) const FAR: i64 = 1 << 61;

/// Defaults as in `config.example.toml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub keep_turns: u64,
    /// Kept state of all sessions, bytes. Beyond it the least recently used state is dropped, text never.
    pub max_state_bytes: u64,
    pub min_free_bytes: u64,
    pub trash_days: u32,
    /// Memory of state that waits to be written; more is skipped and reported.
    pub max_pending_bytes: u64,
    /// Size of the file that is released on a full disk, to make room for the last texts.
    pub reserve_bytes: u32,
}

impl Limits {
    /// `for 7 days`.
    pub fn trash_time(&self) -> String {
        match self.trash_days {
            0 => "until it is emptied (sala-chat prune)".to_owned(),
            days => format!("for {}", counted(u64::from(days), "day")),
        }
    }
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    Writable,
    /// Why is a whole sentence for the user.
    ReadOnly {
        why: String,
    },
}

/// An open data directory. Shared between threads; every call may wait for the disk.
#[derive(Debug)]
pub struct Store {
    pub(super) layout: Layout,
    pub(super) disk: Arc<dyn Disk>,
    pub limits: Limits,
    pub access: Access,
    pub(super) reader: Mutex<Connection>,
    pub(super) writer: Mutex<Connection>,
    pub(super) ids: Mutex<std::ops::Range<i64>>,
    pub notes: Vec<String>,
    /// Segments with state this process failed to read, and why; the next process tries again.
    pub(super) left_out: Mutex<HashMap<SegmentId, String>>,
    pub(super) unlinked: Mutex<HashMap<SegmentId, Option<SegmentId>>>,
    /// Paths of state that were used, in order, which the database does not have yet.
    pub(super) uses: Mutex<Vec<Vec<SegmentId>>>,
    /// (device, inode) of directory and database at opening.
    pub(super) identity: Option<[(u64, u64); 2]>,
    /// The database and the mark name the same directory, so files without a row may be removed.
    pub(super) known: bool,
    /// Shared lock, held as long as the store is open: see [`Store::is_alone`].
    pub(super) present: Option<File>,
    pub(super) copy: Option<super::scratch::Scratch>,
    /// It is read-only because of the folder itself: damage or permissions, not a full disk or a newer program.
    pub broken: bool,
}

impl Store {
    /// Checks that the names still lead to the open files; SQLite keeps writing into an unlinked file.
    fn still_there(&self) -> Result<()> {
        let Some(identity) = self.identity else { return Ok(()) };
        let gone = |what: &'static str| StoreError::Gone { path: self.layout.database.clone(), what };
        match self.identify() {
            Ok(now) if now != identity => return Err(gone("was replaced by another")),
            Ok(_) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Err(gone("was removed")),
            Err(e) => return Err(StoreError::io("read", &self.layout.database)(e)),
        }
        // Open files outlive their permissions. A text that the next start cannot read does not count as saved.
        let me = rustix::process::geteuid().as_raw();
        for (path, bits) in [(&self.layout.root, 0o700), (&self.layout.database, 0o600)] {
            let look = self.disk.look(path).map_err(StoreError::io("read", path))?;
            if look.owner == me && look.mode & bits != bits {
                return Err(gone("cannot be read and written any more"));
            }
        }
        Ok(())
    }

    pub fn root(&self) -> &Path {
        &self.layout.root
    }

    /// An id for a new message, unique over all processes and greater than `after`, the newest message of its session,
    /// because ids are the order of messages. Needs the disk only every millionth time and if `after` belongs to
    /// another process, so the caller can show a message before it is saved.
    pub fn new_message_id(&self, after: Option<MessageId>) -> MessageId {
        MessageId(self.new_id(after.map_or(0, |id| id.0)))
    }

    pub fn new_session_id(&self) -> SessionId {
        SessionId(self.new_id(0))
    }

    fn new_id(&self, after: i64) -> i64 {
        let mut ids = lock(&self.ids);
        // A damaged row may have any id.
        let after = if after < i64::MAX - 2 * ID_BLOCK { after } else { 0 };
        if ids.is_empty() || ids.start <= after {
            // Another process may own the rest of its millisecond.
            let least = if after < FAR { after + 1 } else { (after / ID_BLOCK + 1) * ID_BLOCK };
            let sql = "UPDATE counter SET value = max(value, ?2) + ?1 WHERE name = 'id' RETURNING value - ?1";
            let block =
                self.transaction(|tx| Ok(tx.prepare_cached(sql)?.query_row([ID_BLOCK, least], |r| r.get(0))?));
            *ids = match block {
                Ok(first) => first..first + ID_BLOCK,
                // A full or read-only disk must not stop a conversation: a few far ids, distinct by time and process.
                Err(_) => {
                    let first =
                        FAR + ((now_ms() & 0xff_ffff_ffff) << 20) + (i64::from(std::process::id() & 0x3ff) << 10);
                    let first = first.max(least);
                    first..first + (1 << 10)
                }
            };
        }
        let id = ids.start;
        ids.start += 1;
        id
    }

    pub(super) fn read<T>(&self, f: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        f(&lock(&self.reader))
    }

    /// Runs `f` in a transaction and commits it; its changes are durable when this returns `Ok`. On a full disk,
    /// releases the reserve and runs `f` once more.
    pub(super) fn transaction<T>(&self, f: impl Fn(&Transaction<'_>) -> Result<T>) -> Result<T> {
        match self.commit(&f) {
            // The reserve exists for this moment.
            Err(e) if e.is_full() && directory::free_reserve(&self.layout, &*self.disk) => self.commit(&f),
            other => other,
        }
    }

    pub(super) fn writable(&self) -> Result<()> {
        match &self.access {
            Access::ReadOnly { why } => Err(StoreError::ReadOnly { why: why.clone() }),
            Access::Writable => self.still_there(),
        }
    }

    fn commit<T>(&self, f: impl Fn(&Transaction<'_>) -> Result<T>) -> Result<T> {
        self.writable()?;
        let mut db = lock(&self.writer);
        let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let out = f(&tx)?;
        self.disk.before_commit().map_err(StoreError::io("save in", &self.layout.database))?;
        tx.commit()?;
        Ok(out)
    }

    /// Runs `f` while no other process can change the database, and changes nothing in it.
    pub(super) fn exclusively<T>(&self, f: impl FnOnce(&Transaction<'_>) -> Result<T>) -> Result<T> {
        self.writable()?;
        let mut db = lock(&self.writer);
        // Rolled back on drop.
        let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        f(&tx)
    }

    /// Moves the write-ahead log into the database, so that damage of the log loses nothing. Pages that cannot move
    /// now (a full disk, another reader) are safe in the log until the next time.
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

    pub(super) fn is_alone(&self) -> bool {
        let Some(present) = &self.present else { return false };
        // Making our shared lock exclusive fails while another process holds one. The shared lock may be lost for a
        // moment, which matters only to a process that calls this in the same moment.
        let alone = present.try_lock().is_ok();
        let _ = present.lock_shared();
        alone
    }

    pub(super) fn fill_reserve(&self) {
        let path = &self.layout.reserve;
        match self.disk.look(path) {
            Ok(look) if look.bytes == u64::from(self.limits.reserve_bytes) => return,
            Ok(_) if !directory::is_our_reserve(&self.layout, &*self.disk) => return,
            _ => {}
        }
        let room = self.disk.free_bytes(&self.layout.root).unwrap_or(0);
        if room < 4 * u64::from(self.limits.reserve_bytes) {
            return;
        }
        // Best effort: without a reserve a full disk is noticed a little earlier.
        let noise: Vec<u8> = (0..self.limits.reserve_bytes).map(directory::reserve_byte).collect();
        let written = self.disk.create(path).and_then(|mut f| {
            f.write(&noise)?;
            f.sync()
        });
        if written.is_err() {
            let _ = self.disk.remove(path);
        }
    }

    /// Removes leftovers in `segments/` and returns their number: unfinished files, and files that no row names if they
    /// are old or `all` is set; never a name of another form. Removes none while a process is writing some, or if the
    /// directory is not the one the database knows.
    pub(super) fn sweep(&self, all: bool) -> u64 {
        let lock = self.layout.open_lock("writing").ok().filter(|lock| self.known && lock.try_lock().is_ok());
        if lock.is_none() {
            return 0;
        }
        // When in doubt the file stays.
        let is_unnamed = |id: &SegmentId, kind| self.read(|db| is_named(db, id, kind)).is_ok_and(|it| it != Some(true));
        let now = SystemTime::now();
        let is_left = |name: &Path| {
            let Ok(look) = self.disk.look(&self.layout.segments.join(name)) else { return false };
            // A time in the future means a wrong clock, so the age is unknown.
            let is_old = now.duration_since(look.modified).is_ok_and(|age| age > ORPHAN_AGE);
            look.is_file
                && match SegmentName::of(name) {
                    Some(SegmentName::Unfinished) => true,
                    Some(SegmentName::State(id, kind)) => (all || is_old) && is_unnamed(&id, kind),
                    None => false,
                }
        };
        let mut names = self.disk.list(&self.layout.segments).unwrap_or_default();
        names.retain(|name| is_left(name) && self.disk.remove(&self.layout.segments.join(name)).is_ok());
        names.len() as u64
    }
}

/// The next value of the use counter: an order that does not depend on the clock.
pub(super) fn next_use(tx: &Transaction<'_>) -> Result<i64> {
    Ok(tx
        .prepare_cached("UPDATE counter SET value = value + 1 WHERE name = 'use' RETURNING value")?
        .query_row([], |r| r.get(0))?)
}

/// A panic while holding a connection rolls its transaction back, so continuing is safe.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::Limits;

    #[test]
    fn days_are_counted() {
        let kept = |trash_days| Limits { trash_days, ..Limits::default() }.trash_time();
        assert_eq!([kept(1), kept(7)], ["for 1 day", "for 7 days"]);
        assert!(kept(0).starts_with("until it is emptied"));
    }
}
