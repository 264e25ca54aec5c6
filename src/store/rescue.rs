//! A database that no start can open any more: what can be read of it goes into a new one, row by row, and the damaged one stays
//! beside it under another name.
//!
//! It is a copy that is read, with SQLite told to live with a schema that it cannot parse; a table's entry there is mended from
//! that of a new database by whatever of it is left. Nothing of the directory changes before the new database is complete
//! (`exchange.rs`).

use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::types::ToSqlOutput;
use rusqlite::{Connection, OpenFlags, Row, Statement, Transaction, params, params_from_iter};

use super::check::TABLES;
use super::database::{FAR, Store};
use super::directory::{self, Layout};
use super::disk::Disk;
use super::error::{Result, StoreError, is_damage};
use super::exchange::{put_in_place, take_back};
use super::opening::{copy_database, private_place};
use super::schema;
use super::seal;
use super::summary::{refresh_session, touch_session};
use crate::core::counted;
use crate::core::transcript::SessionId;

/// What came of a look at a database that may be one that cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rescue {
    /// It can be opened, or nothing can be made of it.
    Nothing,
    /// It cannot be opened, and another process has the directory open: that goes on writing into the damaged one.
    InUse {
        /// The database.
        path: PathBuf,
        /// What is wrong with it, a phrase.
        detail: String,
    },
    /// There is a new one in its place.
    Done(Rescued),
}

impl Rescue {
    /// A sentence: what to do so that it can be done.
    pub fn said_in_use(&self) -> Option<String> {
        let Rescue::InUse { path, detail } = self else { return None };
        Some(format!(
            "{} cannot be opened ({detail}), and another sala-chat has it open: close that one first, then a new one is made of \
             what can be read: sala-chat doctor --check",
            path.display()
        ))
    }
}

/// What was made of a database that could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rescued {
    /// What was wrong with it, a phrase.
    pub detail: String,
    /// Sessions in the new one.
    pub sessions: u64,
    /// Messages in the new one.
    pub messages: u64,
    /// What could not be read.
    pub lost: Unread,
    /// Where the damaged one is.
    pub aside: PathBuf,
}

/// What of a database could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unread {
    /// Rows of any kind that were found.
    pub rows: u64,
    /// Tables that were not found, or not even in part.
    pub tables: Vec<&'static str>,
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

    /// Sentences: what could not be read.
    pub fn said_lost(&self) -> Vec<String> {
        let Unread { rows, tables } = &self.lost;
        let rows = (*rows > 0)
            .then(|| format!("{} of the database that could not be opened could not be read", counted(*rows, "row")));
        let tables = tables.iter().map(|table| {
            format!("The table \"{table}\" was not found in the database that could not be opened: what it held is not in the new one")
        });
        rows.into_iter().chain(tables).collect()
    }
}

impl Store {
    /// Puts a new database in the place of one that cannot be opened for writing because it is damaged, with all that can be read of
    /// it; one of a newer program is left to that. What an earlier attempt left half done is taken back first.
    ///
    /// # Errors
    /// Nothing can be read of it; a file cannot be read or written. The damaged database is where it was then, or beside it under its
    /// new name.
    pub fn rescue(root: &Path, disk: &dyn Disk) -> Result<Rescue> {
        let root = std::path::absolute(root).map_err(StoreError::io("look at", root))?;
        let layout = Layout::new(&root.canonicalize().unwrap_or(root));
        // Nothing is made in a directory that is not ours.
        if !matches!(directory::survey(&layout, disk), Ok(true) | Err(StoreError::Damaged { .. })) {
            return Ok(Rescue::Nothing);
        }
        let held = hold(&layout);
        let alone = matches!(held, Ok((_, true)));
        if alone {
            take_back(&layout, disk)?;
        }
        // Only what is seen from here on counts: another one may have been at it before.
        let opened = directory::survey(&layout, disk).and_then(|there| match there {
            true => schema::open_writable(&layout.database).map(drop),
            false => Ok(()),
        });
        let Err(StoreError::Damaged { detail, .. }) = opened else { return Ok(Rescue::Nothing) };
        let _held = held.map_err(StoreError::io("lock", &layout.locks))?;
        if !alone {
            // Whoever has it open goes on writing into the damaged one.
            return Ok(Rescue::InUse { path: layout.database, detail });
        }
        if !layout.database.is_file() {
            // Which of several attempts is to be taken back nobody knows.
            return Ok(Rescue::Nothing);
        }
        let place = private_place()?;
        let (copy, fresh) = (place.path().join("sala.db"), place.path().join("fresh.db"));
        copy_database(&layout, disk, &copy)?;
        directory::make_database(&fresh).map_err(StoreError::io("make", &fresh))?;
        let (mut new, _) = schema::open_writable(&fresh)?;
        let unreadable =
            |why: &str| StoreError::NoDatabase { path: layout.database.clone(), detail: format!("{detail}, {why}") };
        let lost = match read_out(&copy, &mut new) {
            Ok(Some(lost)) => lost,
            Ok(None) => return Err(unreadable("and it is a newer sala-chat's, which may be able to read it")),
            Err(e) if e.damage().is_some() => return Err(unreadable(NOTHING_READ)),
            Err(e) => return Err(e),
        };
        let count = |table: &str| -> Result<u64> {
            Ok(new.query_row(&format!("SELECT count(*) FROM {table}"), [], |r| r.get(0))?)
        };
        let (sessions, messages) = (count("session")?, count("message")?);
        if messages == 0 {
            return Err(unreadable(NOTHING_READ));
        }
        // One file, without a log beside it.
        new.pragma_update(None, "journal_mode", "DELETE")?;
        new.close().map_err(|(_, e)| StoreError::from(e))?;
        let aside = put_in_place(&layout, disk, &fresh)?;
        Ok(Rescue::Done(Rescued { detail, sessions, messages, lost, aside }))
    }
}

/// Why no new database is made.
const NOTHING_READ: &str = "and no message could be read out of it";

/// The lock of a directory, and whether nobody else has that open. Waits while another process makes a database anew.
fn hold(layout: &Layout) -> io::Result<(File, bool)> {
    let lock = layout.open_present()?;
    match lock.try_lock() {
        Ok(()) => Ok((lock, true)),
        Err(TryLockError::WouldBlock) => {
            lock.lock_shared()?;
            Ok((lock, false))
        }
        Err(TryLockError::Error(e)) => Err(e),
    }
}

/// Copies the rows of all tables; returns what could not be read. `None` for a database of a newer program.
fn read_out(copy: &Path, new: &mut Connection) -> Result<Option<Unread>> {
    let mut old = open_as_it_is(copy)?;
    let version: i32 = old.pragma_query_value(None, "user_version", |r| r.get(0))?;
    if version > schema::VERSION {
        return Ok(None);
    }
    if mend_schema(&old, new)? {
        old = open_as_it_is(copy)?;
    }
    // What a row names may be lost.
    new.pragma_update(None, "foreign_keys", false)?;
    let tx = new.transaction()?;
    let mut lost = Unread::default();
    for table in TABLES {
        match copy_table(&old, &tx, table)? {
            Some(rows) => lost.rows += rows,
            None if schema::may_lack(table, version) && !has_entry(&old, table)? => {}
            None => lost.tables.push(table),
        }
    }
    if !columns(&old, "message").iter().any(|column| column == "seal") {
        seal::seal_everything(&tx)?;
    }
    leave_out_what_leads_nowhere(&tx)?;
    tx.commit()?;
    Ok(Some(lost))
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

/// Whether anything is left of a table's entry, which could not be mended.
fn has_entry(old: &Connection, table: &str) -> Result<bool> {
    let sql = "SELECT 1 FROM sqlite_schema WHERE name = ?1 OR tbl_name = ?1 OR instr(sql, ?1 || '(')";
    match old.prepare(sql).and_then(|mut query| query.exists([table])) {
        // What cannot be read may be one.
        Err(e) if is_damage(&e) => Ok(true),
        found => Ok(found?),
    }
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

/// Copies what can be read of a table; returns how many rows were found and could not be. `None`: the table is not there.
fn copy_table(old: &Connection, tx: &Transaction<'_>, table: &str) -> Result<Option<u64>> {
    let there = columns(old, table);
    let mut names = columns(tx, table);
    names.retain(|name| there.contains(name));
    if names.is_empty() {
        return Ok(None);
    }
    let (count, names) = (names.len(), names.join(", "));
    // A new database has counters already.
    let instead = if table == "counter" { "REPLACE" } else { "IGNORE" };
    let places = vec!["?"; count].join(", ");
    let mut insert = tx.prepare(&format!("INSERT OR {instead} INTO {table}({names}) VALUES ({places})"))?;
    let mut lost = 0;
    let Some((ids, whole)) = row_ids(old, table)? else {
        let mut query = old.prepare(&format!("SELECT {names} FROM {table}"))?;
        let mut rows = query.query([])?;
        loop {
            match rows.next() {
                Ok(Some(row)) => lost += u64::from(!put(&mut insert, row, count)?),
                Ok(None) => return Ok(Some(lost)),
                // The rest hangs on a damaged page, and how much that is nobody knows.
                Err(e) if is_damage(&e) => return Ok(Some(lost + 1)),
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
    // What lies between the two ends nobody knows.
    Ok(Some(lost + u64::from(!whole)))
}

/// The rows of a table as far as it can be gone through from either end, and whether those are all; `None` for one whose rows
/// have no ids.
fn row_ids(old: &Connection, table: &str) -> Result<Option<(BTreeSet<i64>, bool)>> {
    let mut ids = BTreeSet::new();
    for order in ["ASC", "DESC"] {
        let sql = format!("SELECT rowid FROM {table} NOT INDEXED ORDER BY rowid {order}");
        let Ok(mut query) = old.prepare(&sql) else { return Ok(None) };
        let mut rows = query.query([])?;
        loop {
            match rows.next() {
                Ok(Some(row)) => ids.extend(seal::number_at(row, 0)),
                Ok(None) => return Ok(Some((ids, true))),
                Err(e) if is_damage(&e) => break,
                Err(e) => return Err(e.into()),
            }
        }
    }
    Ok(Some((ids, false)))
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
    // What lists show of a session: some of it may rest on what is lost.
    let mut query = tx.prepare("SELECT id FROM session")?;
    let all: Vec<i64> = query.query_map([], |r| r.get(0))?.collect::<rusqlite::Result<_>>()?;
    for id in all {
        refresh_session(tx, SessionId(id))?;
    }
    tx.execute_batch(
        "DELETE FROM mark WHERE session NOT IN (SELECT id FROM session) OR message NOT IN (SELECT id FROM message);
         DELETE FROM head_log WHERE session NOT IN (SELECT id FROM session);",
    )?;
    Ok(())
}
