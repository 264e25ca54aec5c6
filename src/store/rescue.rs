//! What can be read of a damaged database, in a new one: the only mechanism for damage of the file, whatever is wrong with it. A start shows
//! such a copy for reading; `doctor --check` puts one into the place of the damaged database, which stays beside it under another name.
//!
//! A copy is read, with SQLite set to accept a schema that it cannot parse; its header and the entries of tables there are first made
//! right where enough is left of them. Nothing in the directory changes before the new database is complete (`exchange.rs`).

use std::collections::{BTreeSet, HashMap};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use rusqlite::types::ToSqlOutput;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, Statement, Transaction, params, params_from_iter};

use super::check::{TABLES, structure_fault};
use super::database::{FAR, Store};
use super::directory::{self, Layout};
use super::disk::Disk;
use super::error::{Result, StoreError, is_damage};
use super::exchange::{put_in_place, take_back};
use super::opening::{copy_database, private_place};
use super::schema;
use super::scratch::Scratch;
use super::seal::{self, Sealed};
use super::summary::{free_name, refresh_session, touch_session};
use crate::core::counted;
use crate::core::transcript::{Role, SessionId};

/// The result of [`Store::rescue`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rescue {
    /// The database is whole, is not there, or belongs to another program.
    Nothing,
    /// It is damaged, and another process has the directory open, which goes on writing into it.
    InUse {
        path: PathBuf,
        /// A phrase.
        detail: String,
    },
    /// A new one is in its place.
    Done(Rescued),
}

impl Rescue {
    /// A sentence: what to do so that it can be done.
    pub fn said_in_use(&self) -> Option<String> {
        let Rescue::InUse { path, detail } = self else { return None };
        Some(format!(
            "{} is damaged ({detail}) and another sala-chat has it open: close that one first, then sala-chat doctor --check \
             writes a new database of everything that can be read and keeps the old file",
            path.display()
        ))
    }
}

/// The new database and what it lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rescued {
    /// What was wrong with the old one, a phrase.
    pub detail: String,
    pub sessions: u64,
    /// Without those that stand for unreadable ones.
    pub messages: u64,
    pub lost: Unread,
    /// The damaged database.
    pub aside: PathBuf,
}

/// What could not be read of a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unread {
    /// Rows of which it is known that they were there.
    pub rows: u64,
    /// Tables of which nothing was found.
    pub tables: Vec<&'static str>,
}

impl Rescued {
    /// A sentence: what was done.
    pub fn said(&self) -> String {
        format!(
            "sala.db was damaged ({}): {} of {} were read from it into a new one. The damaged file is {}; \
             remove it when you miss nothing",
            self.detail,
            counted(self.messages, "message"),
            counted(self.sessions, "session"),
            self.aside.display()
        )
    }

    /// Sentences: what could not be read.
    pub fn said_lost(&self) -> Vec<String> {
        let Unread { rows, tables } = &self.lost;
        let rows = (*rows > 0).then(|| format!("{} of the damaged database could not be read", counted(*rows, "row")));
        let tables = tables.iter().map(|table| {
            format!("The table \"{table}\" was not found in the damaged database: the new one lacks its content")
        });
        rows.into_iter().chain(tables).collect()
    }
}

impl Store {
    /// Puts a new database with everything that can be read into the place of a damaged one; one of a newer program is left to that.
    /// What an interrupted attempt left is taken back first.
    ///
    /// # Errors
    /// Nothing can be read of it; a file cannot be read or written. The damaged database is then where it was, or beside it under its
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
        // Another process may have exchanged it until the lock was taken.
        let opened =
            directory::survey(&layout, disk).and_then(|there| if there { check_whole(&layout) } else { Ok(()) });
        let Err(StoreError::Damaged { detail, .. }) = opened else { return Ok(Rescue::Nothing) };
        let _held = held.map_err(StoreError::io("lock", &layout.locks))?;
        if !alone {
            return Ok(Rescue::InUse { path: layout.database, detail });
        }
        if !layout.database.is_file() {
            // Several attempts were interrupted: which one to take back is unknown.
            return Ok(Rescue::Nothing);
        }
        let (place, fresh, lost) = salvage(&layout, disk, &detail)?;
        let (sessions, messages) = count(&fresh)?;
        let aside = put_in_place(&layout, disk, &fresh)?;
        drop(place);
        Ok(Rescue::Done(Rescued { detail, sessions, messages, lost, aside }))
    }
}

/// An error for a database that cannot be opened for writing, or whose structure or indexes are damaged.
fn check_whole(layout: &Layout) -> Result<()> {
    let path = &layout.database;
    let (db, found) = schema::open_writable(path)?;
    if let schema::Found::Newer(_) = found {
        return Ok(());
    }
    schema::check_structure(&db, path)?;
    match structure_fault(&db)? {
        Some(detail) => Err(StoreError::Damaged { path: path.clone(), detail }),
        None => Ok(()),
    }
}

/// Why no new database is made.
const NOTHING_READ: &str = "and no message could be read from it";

/// A new database with everything that can be read of the one in a directory, in a private place.
pub(super) fn salvage(layout: &Layout, disk: &dyn Disk, detail: &str) -> Result<(Scratch, PathBuf, Unread)> {
    let unreadable =
        |why: &str| StoreError::NoDatabase { path: layout.database.clone(), detail: format!("{detail}, {why}") };
    let place = private_place()?;
    let (copy, fresh) = (place.path().join("damaged.db"), place.path().join("sala.db"));
    copy_database(layout, disk, &copy)?;
    match mend_header(&copy) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Err(unreadable(NOTHING_READ)),
        mended => mended.map_err(StoreError::io("write", &copy))?,
    }
    directory::make_database(&fresh).map_err(StoreError::io("make", &fresh))?;
    let (mut new, _) = schema::open_writable(&fresh)?;
    let lost = match read_out(&copy, &mut new) {
        Ok(Some(lost)) => lost,
        Ok(None) => return Err(unreadable("and it is a newer sala-chat's, which may be able to read it")),
        Err(e) if e.damage().is_some() => return Err(unreadable(NOTHING_READ)),
        Err(e) => return Err(e),
    };
    // One file, without a log beside it.
    new.pragma_update(None, "journal_mode", "DELETE")?;
    new.close().map_err(|(_, e)| StoreError::from(e))?;
    if count(&fresh)?.1 == 0 {
        return Err(unreadable(NOTHING_READ));
    }
    Ok((place, fresh, lost))
}

/// Sessions, and messages that could be read.
fn count(database: &Path) -> Result<(u64, u64)> {
    let (db, _) = schema::open_readable(database, database)?;
    let count = |sql: &str| db.query_row(sql, [], |r| r.get(0));
    Ok((
        count("SELECT count(*) FROM session")?,
        count(&format!("SELECT count(*) FROM message WHERE meta <> '{UNREADABLE}'"))?,
    ))
}

/// Makes those fields of a header right that are the same in every database of ours, and those that only a writer needs.
fn mend_header(copy: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).write(true).open(copy)?;
    let mut head = [0; 100];
    file.read_exact(&mut head)?;
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(place) = head.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    };
    put(0, b"SQLite format 3\0");
    // Pages of 4096 bytes, format WAL, nothing reserved, payload fractions.
    put(16, &[0x10, 0, 2, 2, 0, 64, 32, 32]);
    // No size and no list of free pages: both only matter for writing.
    put(28, &[0; 12]);
    // Schema format, UTF-8, no automatic vacuum.
    put(44, &4u32.to_be_bytes());
    put(52, &0u32.to_be_bytes());
    put(56, &1u32.to_be_bytes());
    put(64, &0u32.to_be_bytes());
    put(68, &schema::APPLICATION_ID.to_be_bytes());
    file.rewind()?;
    file.write_all(&head)
}

/// The lock of a directory, and whether no other process has that open. Waits while another one exchanges the database.
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
    let unread = Remembered::of(&old);
    add_lost_sessions(&tx, &unread.names)?;
    fill_gaps(&tx, &unread.parents)?;
    remove_dangling(&tx)?;
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

/// What indexes know of rows whose own page is damaged.
struct Remembered {
    /// Parents of messages.
    parents: HashMap<i64, i64>,
    /// Names of sessions.
    names: HashMap<i64, String>,
}

impl Remembered {
    fn of(old: &Connection) -> Remembered {
        let mut found = Remembered { parents: HashMap::new(), names: HashMap::new() };
        let each = |sql: &str, put: &mut dyn FnMut(&Row<'_>)| {
            let Ok(mut query) = old.prepare(sql) else { return };
            let Ok(mut rows) = query.query([]) else { return };
            while let Ok(Some(row)) = rows.next() {
                put(row);
            }
        };
        each("SELECT id, parent FROM message INDEXED BY message_parent WHERE parent IS NOT NULL", &mut |row| {
            found.parents.extend(seal::number_at(row, 0).zip(seal::number_at(row, 1)));
        });
        each("SELECT id, name FROM session INDEXED BY session_name WHERE trashed_ms IS NULL", &mut |row| {
            found.names.extend(seal::number_at(row, 0).map(|id| (id, seal::text_at(row, 1))));
        });
        found
    }
}

/// Makes sessions anew whose messages are there and whose row is not.
fn add_lost_sessions(tx: &Transaction<'_>, names: &HashMap<i64, String>) -> Result<()> {
    let mut query = tx.prepare("SELECT DISTINCT session FROM message WHERE session NOT IN (SELECT id FROM session)")?;
    let without: Vec<i64> = query.query_map([], |r| r.get(0))?.collect::<rusqlite::Result<_>>()?;
    for id in without {
        let name = names.get(&id).cloned().unwrap_or_else(|| format!("rescued-{id}"));
        let name = free_name(tx, &name)?;
        tx.execute(
            "INSERT OR IGNORE INTO session(id, name, head, settings, created_ms, updated_ms, used)
             SELECT ?1, ?2, coalesce(
                 (SELECT head FROM head_log WHERE session = ?1 AND head IN (SELECT id FROM message) ORDER BY key DESC),
                 max(id)), '{}', min(created_ms), max(created_ms), 0
             FROM message WHERE session = ?1",
            params![id, name],
        )?;
        touch_session(tx, SessionId(id))?;
    }
    Ok(())
}

/// The facts of a message that stands for an unreadable one.
pub(super) const UNREADABLE: &str = r#"{"damaged":true}"#;
const LOST_TEXT: &str = "[A message stood here that could not be read from the damaged database.]";

/// Puts a message in the place of each unreadable one that another message follows or a session stands at, so that the messages before
/// it are still on the path.
fn fill_gaps(tx: &Transaction<'_>, parents: &HashMap<i64, i64>) -> Result<()> {
    let missing = "SELECT c.parent, c.session, c.depth - 1 FROM message c
                     WHERE c.parent IS NOT NULL AND c.parent NOT IN (SELECT id FROM message)
                   UNION SELECT head, id, messages FROM session
                     WHERE head IS NOT NULL AND head NOT IN (SELECT id FROM message)";
    let above =
        "SELECT id FROM message WHERE session = ?1 AND id < ?2 AND depth < ?3 ORDER BY depth DESC, id DESC LIMIT 1";
    loop {
        let mut query = tx.prepare_cached(missing)?;
        let gaps = query.query_map([], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?)))?;
        let gaps: Vec<(i64, i64, i64)> = gaps.collect::<rusqlite::Result<_>>()?;
        let mut filled = 0;
        for (id, session, depth) in gaps {
            let depth = depth.max(1);
            let known = parents.get(&id).copied().filter(|parent| *parent < id && depth > 1);
            let parent: Option<i64> = match known {
                Some(parent) => Some(parent),
                // Without the index: the nearest one above it in its session.
                None => tx.prepare_cached(above)?.query_row([session, id, depth], |r| r.get(0)).optional()?,
            };
            let text = LOST_TEXT.as_bytes();
            let (role, meta) = (Role::User.name(), UNREADABLE.as_bytes());
            let role_bytes = role.as_bytes();
            let sealed = Sealed { id, parent, depth, role: role_bytes, created_ms: 0, meta, thinking: b"", text };
            filled += tx
                .prepare_cached(
                    "INSERT OR IGNORE INTO message(id, session, parent, depth, role, created_ms, meta, thinking, text, seal)
                     VALUES (?1, ?2, ?3, ?4, ?5, 0, ?6, '', ?7, ?8)",
                )?
                .execute(params![id, session, parent, depth, role, UNREADABLE, LOST_TEXT, sealed.seal()])?;
        }
        if filled == 0 {
            return Ok(());
        }
    }
}

/// Removes what names a row that is lost, and brings counters and lists up to date.
fn remove_dangling(tx: &Transaction<'_>) -> Result<()> {
    // The search index is made from the texts.
    tx.execute("UPDATE message SET indexed = 0", [])?;
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
         DELETE FROM document WHERE segment NOT IN (SELECT id FROM segment);
         DELETE FROM mark WHERE session NOT IN (SELECT id FROM session) OR message NOT IN (SELECT id FROM message);
         DELETE FROM head_log WHERE session NOT IN (SELECT id FROM session);"
    ))?;
    let mut query = tx.prepare("SELECT id FROM session")?;
    let all: Vec<i64> = query.query_map([], |r| r.get(0))?.collect::<rusqlite::Result<_>>()?;
    for id in all {
        refresh_session(tx, SessionId(id))?;
    }
    Ok(())
}
