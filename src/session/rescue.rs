//! A database that no start can open any more: what can be read of it goes into a new one, row by row, and the damaged one stays
//! beside it under another name.
//!
//! It is a copy that is read, with SQLite told to live with a schema that it cannot parse; a table's entry there is mended from
//! that of a new database by whatever of it is left. Nothing of the directory changes before the new database is complete and on disk.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rusqlite::types::ToSqlOutput;
use rusqlite::{Connection, OpenFlags, Row, Statement, Transaction, params, params_from_iter};

use super::check::TABLES;
use super::directory::{self, Layout};
use super::disk::Disk;
use super::error::{Result, StoreError, is_damage};
use super::opening::{copy_database, private_place};
use super::schema;
use super::seal;
use super::store::{FAR, Store};
use super::summary::touch_session;
use crate::base::counted;
use crate::text::clock;
use crate::transcript::SessionId;

/// Size of one write.
const WRITE_BYTES: u64 = 8 << 20;

/// What became of a database that could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rescued {
    /// What was wrong with it, a phrase.
    pub detail: String,
    /// Sessions in the new one.
    pub sessions: u64,
    /// Messages in the new one.
    pub messages: u64,
    /// Rows of any kind that were found and could not be read.
    pub lost: u64,
    /// Where the damaged one is.
    pub aside: PathBuf,
}

impl Rescued {
    /// A sentence: what was done.
    pub fn said(&self) -> String {
        format!(
            "sala.db could not be opened ({}): {} of {} were read out of it into a new one. The damaged one is {}; \
             remove it once nothing is missed",
            self.detail,
            counted(self.messages, "message"),
            counted(self.sessions, "session"),
            self.aside.display()
        )
    }

    /// A sentence: what could not be read, if anything.
    pub fn said_lost(&self) -> Option<String> {
        let rows = counted(self.lost, "row");
        (self.lost > 0).then(|| format!("{rows} of the database that could not be opened could not be read"))
    }
}

impl Store {
    /// Puts a new database in the place of one that cannot be opened for writing because it is damaged, with all that can be read of
    /// it. `None` where that is not so, where nothing can be read, or where another process has the directory open.
    ///
    /// # Errors
    /// A file cannot be read or written. The damaged database is where it was then, or beside it under its new name.
    pub fn rescue(root: &Path, disk: &dyn Disk) -> Result<Option<Rescued>> {
        let root = std::path::absolute(root).map_err(StoreError::io("look at", root))?;
        let layout = Layout::new(&root.canonicalize().unwrap_or(root));
        if directory::survey(&layout, disk).is_err() || !layout.database.is_file() {
            return Ok(None);
        }
        let Err(StoreError::Damaged { detail, .. }) = schema::open_writable(&layout.database) else { return Ok(None) };
        // Whoever has it open goes on writing into the damaged one.
        let alone = layout.open_lock("store").ok().filter(|lock| lock.try_lock().is_ok());
        if alone.is_none() {
            return Ok(None);
        }
        let place = private_place()?;
        let (copy, fresh) = (place.path().join("sala.db"), place.path().join("fresh.db"));
        copy_database(&layout, disk, &copy)?;
        directory::make_database(&fresh).map_err(StoreError::io("make", &fresh))?;
        let (mut new, _) = schema::open_writable(&fresh)?;
        let lost = read_out(&copy, &mut new)?;
        let count = |table: &str| -> Result<u64> {
            Ok(new.query_row(&format!("SELECT count(*) FROM {table}"), [], |r| r.get(0))?)
        };
        let (sessions, messages) = (count("session")?, count("message")?);
        if messages == 0 {
            return Ok(None);
        }
        // One file, without a log beside it.
        new.pragma_update(None, "journal_mode", "DELETE")?;
        new.close().map_err(|(_, e)| StoreError::from(e))?;
        let aside = put_in_place(&layout, disk, &fresh)?;
        Ok(Some(Rescued { detail, sessions, messages, lost, aside }))
    }
}

/// Copies the rows of all tables; returns how many were found and could not be read.
fn read_out(copy: &Path, new: &mut Connection) -> Result<u64> {
    let mut old = open_as_it_is(copy)?;
    if mend_schema(&old, new)? {
        old = open_as_it_is(copy)?;
    }
    // What a row names may be lost.
    new.pragma_update(None, "foreign_keys", false)?;
    let tx = new.transaction()?;
    let mut lost = 0;
    for table in TABLES {
        lost += copy_table(&old, &tx, table)?;
    }
    if !columns(&old, "message").iter().any(|column| column == "seal") {
        seal::seal_everything(&tx)?;
    }
    leave_out_what_leads_nowhere(&tx)?;
    tx.commit()?;
    Ok(lost)
}

/// Opens a database with as much of its schema as can be understood.
fn open_as_it_is(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let db = Connection::open_with_flags(path, flags)?;
    db.pragma_update(None, "writable_schema", true)?;
    Ok(db)
}

/// Gives tables that are not found their entries back, by name, by the text that makes them, or by the name in both. Whether any was.
fn mend_schema(old: &Connection, new: &Connection) -> Result<bool> {
    let mut mended = 0;
    for table in TABLES {
        if old.prepare(&format!("SELECT 1 FROM {table} LIMIT 1")).is_ok() {
            continue;
        }
        let made = "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ?1";
        let made: String = new.query_row(made, [table], |r| r.get(0))?;
        let entry = "UPDATE sqlite_schema SET type = 'table', name = ?2, tbl_name = ?2, sql = ?1 WHERE rowid = (
             SELECT rowid FROM sqlite_schema WHERE rootpage > 0 AND type IS NOT 'index'
               AND (name = ?2 OR sql = ?1 OR tbl_name = ?2 AND sql LIKE 'CREATE T%') LIMIT 1)";
        match old.execute(entry, params![made, table]) {
            Ok(changed) => mended += changed,
            Err(e) if is_damage(&e) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(mended > 0)
}

/// The columns of a table; none where it cannot be had.
fn columns(db: &Connection, table: &str) -> Vec<String> {
    let names = || -> rusqlite::Result<Vec<String>> {
        let mut query = db.prepare("SELECT name FROM pragma_table_info(?1)")?;
        let names = query.query_map([table], |r| r.get(0))?;
        names.collect()
    };
    names().unwrap_or_default()
}

/// Copies what can be read of a table; returns how many rows were found and could not be.
fn copy_table(old: &Connection, tx: &Transaction<'_>, table: &str) -> Result<u64> {
    let there = columns(old, table);
    let mut names = columns(tx, table);
    names.retain(|name| there.contains(name));
    if names.is_empty() {
        return Ok(0);
    }
    let (count, names) = (names.len(), names.join(", "));
    // A new database has counters already.
    let instead = if table == "counter" { "REPLACE" } else { "IGNORE" };
    let places = vec!["?"; count].join(", ");
    let mut insert = tx.prepare(&format!("INSERT OR {instead} INTO {table}({names}) VALUES ({places})"))?;
    let mut lost = 0;
    let Some(ids) = row_ids(old, table)? else {
        let mut query = old.prepare(&format!("SELECT {names} FROM {table}"))?;
        let mut rows = query.query([])?;
        loop {
            match rows.next() {
                Ok(Some(row)) => lost += u64::from(!put(&mut insert, row, count)?),
                Ok(None) => return Ok(lost),
                // The rest hangs on a damaged page, and how much that is nobody knows.
                Err(e) if is_damage(&e) => return Ok(lost + 1),
                Err(e) => return Err(e.into()),
            }
        }
    };
    let mut one = old.prepare(&format!("SELECT {names} FROM {table} NOT INDEXED WHERE rowid = ?1"))?;
    for id in ids {
        let mut rows = one.query([id])?;
        let copied = match rows.next() {
            Ok(Some(row)) => put(&mut insert, row, count)?,
            Ok(None) => false,
            Err(e) if is_damage(&e) => false,
            Err(e) => return Err(e.into()),
        };
        lost += u64::from(!copied);
    }
    Ok(lost)
}

/// The rows of a table as far as it can be gone through from either end; `None` for one whose rows have no ids.
fn row_ids(old: &Connection, table: &str) -> Result<Option<BTreeSet<i64>>> {
    let mut ids = BTreeSet::new();
    for order in ["ASC", "DESC"] {
        let sql = format!("SELECT rowid FROM {table} NOT INDEXED ORDER BY rowid {order}");
        let Ok(mut query) = old.prepare(&sql) else { return Ok(None) };
        let mut rows = query.query([])?;
        loop {
            match rows.next() {
                Ok(Some(row)) => ids.extend(seal::number_at(row, 0)),
                Ok(None) => return Ok(Some(ids)),
                Err(e) if is_damage(&e) => break,
                Err(e) => return Err(e.into()),
            }
        }
    }
    Ok(Some(ids))
}

/// Puts a row into the new database, as it is. False where it cannot be there: its values are damaged, or another row has its name.
fn put(insert: &mut Statement<'_>, row: &Row<'_>, columns: usize) -> Result<bool> {
    let values = (0..columns).map(|i| row.get_ref(i).map(ToSqlOutput::Borrowed));
    let values: rusqlite::Result<Vec<ToSqlOutput<'_>>> = values.collect();
    match values.and_then(|values| insert.execute(params_from_iter(values))) {
        Ok(put) => Ok(put > 0),
        Err(e) => {
            let e = StoreError::from(e);
            if e.damage().is_some() || e.lacks_another() { Ok(false) } else { Err(e) }
        }
    }
}

/// Sessions of messages that have none any more are made anew; what names a row that is lost goes, but for messages and sessions.
fn leave_out_what_leads_nowhere(tx: &Transaction<'_>) -> Result<()> {
    // The search index is made from the texts.
    tx.execute("UPDATE message SET indexed = 0", [])?;
    // State builds on state.
    let without_base = "DELETE FROM segment WHERE parent IS NOT NULL AND parent NOT IN (SELECT id FROM segment)";
    while tx.execute(without_base, [])? > 0 {}
    let ids = "SELECT id FROM message UNION ALL SELECT id FROM session";
    let used = "SELECT used FROM session UNION ALL SELECT used FROM segment UNION ALL SELECT used FROM document";
    tx.execute_batch(&format!(
        "UPDATE counter SET value = max(value, (SELECT coalesce(max(id), 0) + 1 FROM ({ids}) WHERE id < {FAR}))
           WHERE name = 'id';
         UPDATE counter SET value = max(value, (SELECT coalesce(max(used), 0) FROM ({used}))) WHERE name = 'use';
         DELETE FROM message_segment WHERE message NOT IN (SELECT id FROM message)
           OR segment NOT IN (SELECT id FROM segment);
         DELETE FROM document WHERE segment NOT IN (SELECT id FROM segment);"
    ))?;
    let mut query = tx.prepare("SELECT DISTINCT session FROM message WHERE session NOT IN (SELECT id FROM session)")?;
    let without: Vec<i64> = query.query_map([], |r| r.get(0))?.collect::<rusqlite::Result<_>>()?;
    for id in without {
        tx.execute(
            "INSERT OR IGNORE INTO session(id, name, head, settings, created_ms, updated_ms, used)
             SELECT ?1, 'rescued-' || ?1, coalesce(
                 (SELECT head FROM head_log WHERE session = ?1 AND head IN (SELECT id FROM message) ORDER BY key DESC),
                 max(id)), '{}', min(created_ms), max(created_ms), 0
             FROM message WHERE session = ?1",
            [id],
        )?;
        touch_session(tx, SessionId(id))?;
    }
    tx.execute_batch(
        "DELETE FROM mark WHERE session NOT IN (SELECT id FROM session) OR message NOT IN (SELECT id FROM message);
         DELETE FROM head_log WHERE session NOT IN (SELECT id FROM session);",
    )?;
    Ok(())
}

/// Moves the damaged database aside, with its log, and the new one into its place. Returns where the damaged one is.
fn put_in_place(layout: &Layout, disk: &dyn Disk, fresh: &Path) -> Result<PathBuf> {
    let ready = layout.root.join("sala.db.rescued");
    let bytes = disk.look(fresh).map_err(StoreError::io("read", fresh))?.bytes;
    let mut file = disk.create(&ready).map_err(StoreError::io("make", &ready))?;
    let mut at = 0;
    while at < bytes {
        let part = disk.read_at(fresh, at, WRITE_BYTES.min(bytes - at)).map_err(StoreError::io("read", fresh))?;
        file.write(&part).map_err(StoreError::io("write", &ready))?;
        at += part.len() as u64;
    }
    file.sync().map_err(StoreError::io("sync", &ready))?;
    drop(file);
    let aside = layout.root.join(format!("sala.db.damaged-{}", clock::local().strftime("%Y%m%d-%H%M%S")));
    let beside = |path: &Path, end: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        PathBuf::from(name)
    };
    let (log, shared) = (beside(&layout.database, "-wal"), beside(&layout.database, "-shm"));
    let rename = |from: &Path, to: &Path| disk.rename(from, to).map_err(StoreError::io("rename", from));
    rename(&layout.database, &aside)?;
    // A log that stays would be taken for one of the new database.
    if disk.look(&log).is_ok() {
        rename(&log, &beside(&aside, "-wal"))?;
    }
    disk.remove(&shared).map_err(StoreError::io("remove", &shared))?;
    rename(&ready, &layout.database)?;
    disk.sync_dir(&layout.root).map_err(StoreError::io("sync", &layout.root))?;
    Ok(aside)
}
