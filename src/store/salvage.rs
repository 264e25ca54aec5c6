//! Reads what can be read of a damaged database into a new one, row by row.
//!
//! A copy is read, with SQLite set to accept a schema that it cannot parse; its header and the entries of tables there are first made
//! right where enough is left of them.

use std::collections::{BTreeSet, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};

use rusqlite::types::ToSqlOutput;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, Statement, Transaction, params, params_from_iter};

use super::database::FAR;
use super::directory::{self, Layout};
use super::disk::Disk;
use super::error::{Result, StoreError, is_damage};
use super::loose_rows::copy_loose_rows;
use super::messages::UNREADABLE;
use super::schema::{self, COLUMNS};
use super::scratch::Scratch;
use super::seal::{self, Sealed};
use super::summary::{free_name, refresh_session, touch_session};
use crate::core::transcript::{Role, SessionId};

/// Attempts to copy a database that others write meanwhile; the last copy is taken as it is.
const COPIES: u32 = 5;
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unread {
    /// Rows of which it is known that they were there.
    pub rows: u64,
    /// Tables of which nothing was found.
    pub tables: Vec<&'static str>,
}

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
    // One file, without a log.
    new.pragma_update(None, "journal_mode", "DELETE")?;
    new.close().map_err(|(_, e)| StoreError::from(e))?;
    if count(&fresh)?.1 == 0 {
        return Err(unreadable(NOTHING_READ));
    }
    Ok((place, fresh, lost))
}

/// Sessions, and messages that could be read.
pub(super) fn count(database: &Path) -> Result<(u64, u64)> {
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

/// Copies the database and its log, again if one of them changed meanwhile: pages that move from the log to the
/// database between the two copies would be in neither.
pub(super) fn copy_database(layout: &Layout, disk: &dyn Disk, target: &Path) -> Result<()> {
    let (wal, wal_copy) = (Layout::log_of(&layout.database), Layout::log_of(target));
    let files = [(&layout.database, target), (&wal, &*wal_copy)];
    for left in (0..COPIES).rev() {
        let mut before = Vec::new();
        let mut copied = Ok(());
        for (from, to) in files {
            before.push(disk.look(from).ok());
            copied = copied.and_then(|()| match from == &layout.database || from.is_file() {
                true => copy_private(from, to).map_err(StoreError::io("read", from)),
                // An earlier attempt may have left one.
                false => remove_left(to).map_err(StoreError::io("remove", to)),
            });
        }
        let unchanged = files.iter().zip(&before).all(|((from, _), before)| disk.look(from).ok() == *before);
        if unchanged || left == 0 {
            return copied;
        }
    }
    Ok(())
}

pub(super) fn private_place() -> Result<Scratch> {
    Scratch::new().map_err(StoreError::io("make a copy in", &std::env::temp_dir()))
}

fn copy_private(from: &Path, to: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut copy = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(to)?;
    std::io::copy(&mut File::open(from)?, &mut copy).map(drop)
}

fn remove_left(copy: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(copy) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Copies the rows of all tables; returns what could not be read. `None` for a database of a newer program.
fn read_out(copy: &Path, new: &mut Connection) -> Result<Option<Unread>> {
    let mut old = open_as_it_is(copy)?;
    let version: i32 = old.pragma_query_value(None, "user_version", |r| r.get(0))?;
    if version > schema::VERSION {
        return Ok(None);
    }
    mend_schema(&old, new)?;
    old = open_as_it_is(copy)?;
    // What a row names may be lost.
    new.pragma_update(None, "foreign_keys", false)?;
    let tx = new.transaction()?;
    let mut lost = Unread::default();
    for (table, _) in COLUMNS {
        match copy_table(&old, &tx, table)? {
            Some(rows) => lost.rows += rows,
            None if schema::may_lack(table, version) && !has_entry(&old, table)? => {}
            None => lost.tables.push(table),
        }
    }
    let unread = Remembered::of(&old);
    drop(old);
    if lost != Unread::default()
        && let Err(e) = copy_loose_rows(copy, &tx)
    {
        tracing::warn!("rows that no table leads to were not looked for: {e}");
    }
    if version < schema::VERSION {
        seal::seal_everything(&tx)?;
    }
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

/// Restores the schema entries of missing tables, found by name, by their SQL, or by the name in it.
fn mend_schema(old: &Connection, new: &Connection) -> Result<()> {
    for (table, columns) in COLUMNS {
        if old.prepare(&format!("SELECT {columns} FROM {table}")).is_ok() {
            continue;
        }
        let made = "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ?1";
        let made: String = new.query_row(made, [table], |r| r.get(0))?;
        let entry = "UPDATE sqlite_schema SET type = 'table', name = ?2, tbl_name = ?2, sql = ?1 WHERE rowid = (
             SELECT rowid FROM sqlite_schema WHERE rootpage > 0 AND type IS NOT 'index'
               AND (name = ?2 OR sql = ?1 OR tbl_name = ?2 AND sql LIKE 'CREATE T%') LIMIT 1)";
        match old.execute(entry, params![made, table]) {
            Ok(_) => {}
            Err(e) if is_damage(&e) => {}
            Err(e) => return Err(e.into()),
        }
    }
    // Without its condition the index alone answers for the names.
    let index =
        "UPDATE sqlite_schema SET sql = 'CREATE INDEX session_name ON session(name)' WHERE name = 'session_name'";
    let _ = old.execute(index, []);
    Ok(())
}

/// Whether anything is left of a table's schema entry.
fn has_entry(old: &Connection, table: &str) -> Result<bool> {
    let sql = "SELECT 1 FROM sqlite_schema WHERE name = ?1 OR tbl_name = ?1 OR instr(sql, ?1 || '(')";
    match old.prepare(sql).and_then(|mut query| query.exists([table])) {
        // What cannot be read may be one.
        Err(e) if is_damage(&e) => Ok(true),
        found => Ok(found?),
    }
}

fn columns(db: &Connection, table: &str) -> Vec<String> {
    let names = || -> rusqlite::Result<Vec<String>> {
        let mut query = db.prepare("SELECT name FROM pragma_table_info(?1)")?;
        let names = query.query_map([table], |r| r.get(0))?;
        names.collect()
    };
    names().unwrap_or_default()
}

/// Copies the readable rows of a table; returns the number of unreadable ones. `None`: the table is not there.
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
                // The rest is below a damaged page; its size is unknown.
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
    // The size of the gap between the two ends is unknown.
    Ok(Some(lost + u64::from(!whole)))
}

/// The rows of a table as far as it can be read from either end, and whether those are all; `None` for a table without
/// row ids.
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

/// Copies a row. False if its values are damaged or another row has its key.
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

/// Facts in indexes about rows on a damaged page.
struct Remembered {
    parents: HashMap<i64, i64>,
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
        each("SELECT id, name FROM session INDEXED BY session_name", &mut |row| {
            found.names.extend(seal::number_at(row, 0).map(|id| (id, seal::text_at(row, 1))));
        });
        found
    }
}

/// Makes new rows for sessions that have messages and no row.
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

const LOST_TEXT: &str = "[A message stood here that could not be read from the damaged database.]";

/// Puts a message in the place of each unreadable one that has children or is a head, so that the messages before it
/// stay on the path.
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
