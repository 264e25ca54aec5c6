//! Copies the readable part of a damaged database into a new one.
//!
//! Reads a copy of the file page by page (`pages.rs`). First the pages that the schema's tables lead to, then, if
//! something is missing, all pages: a row of a message or a session is used wherever it lies if its seal matches. At
//! last placeholders and new sessions fill the gaps, so that all that was read is reached.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension, Statement, Transaction, params, params_from_iter};

use super::database::FAR;
use super::directory::{self, Layout};
use super::disk::Disk;
use super::error::{Result, StoreError};
use super::messages::UNREADABLE;
use super::pages::{FIRST, Page, Pages, Record};
use super::query;
use super::schema::{self, COLUMNS};
use super::scratch::Scratch;
use super::seal::{MESSAGE, SESSION, is_whole, seal_everything, seal_row};
use super::summary::{free_name, refresh_session, touch_session};
use crate::core::transcript::{Role, SessionId};

/// Attempts to copy a database that others write meanwhile; the last copy is used as it is.
const COPIES: u32 = 5;
const NOTHING_READ: &str = "and no message could be read from it";
const LOST_TEXT: &str = "[A message stood here that could not be read from the damaged database.]";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unread {
    /// Rows that are known to have existed.
    pub rows: u64,
    pub tables: Vec<&'static str>,
}

/// Writes everything readable into a new database in a private place.
pub(super) fn salvage(layout: &Layout, disk: &dyn Disk, detail: &str) -> Result<(Scratch, PathBuf, Unread)> {
    let unreadable =
        |why: &str| StoreError::NoDatabase { path: layout.database.clone(), detail: format!("{detail}, {why}") };
    let place = private_place()?;
    let (copy, fresh) = (place.path().join("damaged.db"), place.path().join("sala.db"));
    copy_database(layout, disk, &copy)?;
    let version = take_log_in(&copy).map_err(StoreError::io("read", &copy))?;
    if version > schema::VERSION {
        return Err(unreadable("and it is a newer sala-chat's, which may be able to read it"));
    }
    let pages = Pages::open(&copy).map_err(StoreError::io("read", &copy))?;
    directory::make_database(&fresh).map_err(StoreError::io("make", &fresh))?;
    let (mut new, _) = schema::open_writable(&fresh)?;
    // A referenced row may be lost.
    new.pragma_update(None, "foreign_keys", false)?;
    let tx = new.transaction()?;
    let lost = copy_rows(&pages, &tx, version)?;
    tx.commit()?;
    // One file, without a log.
    new.pragma_update(None, "journal_mode", "DELETE")?;
    new.close().map_err(|(_, e)| StoreError::from(e))?;
    if count(&fresh)?.1 == 0 {
        return Err(unreadable(NOTHING_READ));
    }
    Ok((place, fresh, lost))
}

pub(super) fn count(database: &Path) -> Result<(u64, u64)> {
    let db = schema::open_readable(database, database)?;
    let count = |sql: &str| db.query_row(sql, [], |r| r.get(0));
    Ok((
        count("SELECT count(*) FROM session")?,
        count(&format!("SELECT count(*) FROM message WHERE meta <> '{UNREADABLE}'"))?,
    ))
}

pub(super) fn private_place() -> Result<Scratch> {
    Scratch::new().map_err(StoreError::io("make a copy in", &std::env::temp_dir()))
}

/// Copies the database and its log, again if one of them changed meanwhile: pages that move from the log to the
/// database between the two copies would be in neither.
pub(super) fn copy_database(layout: &Layout, disk: &dyn Disk, target: &Path) -> Result<()> {
    let (log, log_copy) = (Layout::log_of(&layout.database), Layout::log_of(target));
    let now = || [disk.look(&layout.database).ok(), disk.look(&log).ok()];
    for _ in 0..COPIES {
        let before = now();
        copy_private(&layout.database, target).map_err(StoreError::io("read", &layout.database))?;
        match copy_private(&log, &log_copy) {
            // An earlier attempt may have left one.
            Err(e) if e.kind() == io::ErrorKind::NotFound => drop(std::fs::remove_file(&log_copy)),
            copied => copied.map_err(StoreError::io("read", &log))?,
        }
        if now() == before {
            break;
        }
    }
    Ok(())
}

fn copy_private(from: &Path, to: &Path) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut from = File::open(from)?;
    let mut copy = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(to)?;
    io::copy(&mut from, &mut copy).map(drop)
}

/// Moves the log into the pages of the copy, as far as that works, after writing the header fields that are the same in
/// every database of ours: SQLite reads no other. Returns the version.
fn take_log_in(copy: &Path) -> io::Result<i32> {
    let file = OpenOptions::new().read(true).write(true).open(copy)?;
    let mut version = [0; 4];
    let _ = file.read_exact_at(&mut version, 60);
    let with_log_of_any_size: [(usize, &[u8]); 2] = [(18, &[2, 2]), (28, &[0; 12])];
    for (at, bytes) in schema::HEADER.into_iter().chain(with_log_of_any_size) {
        file.write_all_at(bytes, at as u64)?;
    }
    let moved = || -> rusqlite::Result<()> {
        let db = Connection::open(copy)?;
        // With this SQLite opens a database with an unreadable schema.
        db.pragma_update(None, "writable_schema", true)?;
        db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
    };
    if let Err(e) = moved() {
        tracing::warn!("the log of the damaged database was not read: {e}");
    }
    let version = i32::from_be_bytes(version);
    Ok(if schema::VERSIONS.contains(&version) { version } else { schema::VERSION })
}

/// Copies all readable rows and closes the gaps between them. Returns the unreadable part.
fn copy_rows(pages: &Pages, tx: &Transaction<'_>, version: i32) -> Result<Unread> {
    let mut tables = Vec::new();
    walk(pages, FIRST, &mut |row| {
        tables.extend(row.values().as_deref().and_then(table_of_schema));
        Ok(true)
    })?;
    let mut lost = Unread::default();
    for (table, columns) in COLUMNS {
        match tables.iter().find(|(name, _)| *name == table) {
            Some((_, root)) if pages.numbers().contains(root) => {
                let mut insert = prepare_insert(tx, table, columns)?;
                lost.rows += walk(pages, *root, &mut |row| put(&mut insert, &row))?;
            }
            // Added to a version, and by the second one.
            None if table == "draft" || table == "property" && version < schema::VERSION => {}
            // The rows of these two are found on any page.
            _ if [MESSAGE.table, SESSION.table].contains(&table) => lost.rows += 1,
            _ => lost.tables.push(table),
        }
    }
    // Rows without a seal, of an earlier version, are known by their table alone.
    let names = if lost == Unread::default() { HashMap::new() } else { copy_loose_rows(pages, tx)? };
    if version < schema::VERSION {
        seal_everything(tx)?;
    }
    add_lost_sessions(tx, &names)?;
    fill_gaps(tx)?;
    remove_dangling(tx)?;
    Ok(lost)
}

/// The table that an entry of the schema is about, and the page at which it begins. Its name or its SQL may be damaged.
fn table_of_schema(entry: &[ValueRef<'_>]) -> Option<(&'static str, u32)> {
    let [_, ValueRef::Text(name), _, ValueRef::Integer(root), ValueRef::Text(sql)] = entry else { return None };
    let is_of = |table: &str| *name == table.as_bytes() || sql.starts_with(format!("CREATE TABLE {table}(").as_bytes());
    let (table, _) = COLUMNS.into_iter().find(|(table, _)| is_of(table))?;
    Some((table, u32::try_from(*root).unwrap_or_default()))
}

/// Hands over the rows of a tree. Returns how many cannot be read or `each` rejects; a page of another tree is one.
fn walk(pages: &Pages, root: u32, each: &mut dyn FnMut(Record) -> Result<bool>) -> Result<u64> {
    let (mut lost, mut todo, mut seen, mut kind) = (0, vec![root], HashSet::new(), None);
    while let Some(number) = todo.pop() {
        let page = if seen.insert(number) { read(pages, number, kind == Some(true))? } else { None };
        let Some(page) = page.filter(|page| *kind.get_or_insert(page.is_table) == page.is_table) else {
            lost += 1;
            continue;
        };
        lost += page.unreadable;
        for row in page.rows {
            lost += u64::from(!each(row)?);
        }
        todo.extend(page.children.into_iter().rev());
    }
    Ok(lost)
}

fn read(pages: &Pages, number: u32, in_table: bool) -> Result<Option<Page>> {
    pages.read(number, in_table).map_err(StoreError::io("read", Path::new("the copy of the damaged database")))
}

/// Adds the sealed rows of all pages that `tx` lacks. Returns names of sessions, which an index has as well.
fn copy_loose_rows(pages: &Pages, tx: &Transaction<'_>) -> Result<HashMap<i64, String>> {
    // Of other tables with such rows.
    const NO_NAMES: [&[u8]; 3] = [b"id", b"use", b"version"];
    let (mut names, mut tables) = (HashMap::new(), Vec::new());
    for of in [MESSAGE, SESSION] {
        let columns = COLUMNS.iter().find(|(table, _)| *table == of.table).map_or("", |(_, columns)| columns);
        let one = tx.prepare(&format!("SELECT {} FROM {} WHERE id = ?1", of.columns, of.table))?;
        tables.push((of, columns.split(',').count(), prepare_insert(tx, of.table, columns)?, one));
    }
    for number in pages.numbers() {
        for row in read(pages, number, true)?.into_iter().flat_map(|page| page.rows) {
            let Some(values) = row.values() else { continue };
            if row.rowid.is_none() {
                if let [ValueRef::Text(name), ValueRef::Integer(id)] = values.as_slice()
                    && !NO_NAMES.contains(name)
                {
                    names.entry(*id).or_insert_with(|| String::from_utf8_lossy(name).into_owned());
                }
                continue;
            }
            for (of, _, insert, one) in tables.iter_mut().filter(|(_, columns, ..)| *columns == values.len()) {
                tx.execute_batch("SAVEPOINT loose")?;
                let is_new = put(insert, &row)?;
                if is_new && !one.query_row([row.rowid], |r| Ok(is_whole(*of, r)))? {
                    tx.execute_batch("ROLLBACK TO loose")?;
                }
                tx.execute_batch("RELEASE loose")?;
            }
        }
    }
    Ok(names)
}

fn prepare_insert<'a>(tx: &'a Transaction<'_>, table: &str, columns: &str) -> Result<Statement<'a>> {
    // A new database has counters already.
    let instead = if table == "counter" { "REPLACE" } else { "IGNORE" };
    let places = vec!["?"; columns.split(',').count()].join(", ");
    Ok(tx.prepare(&format!("INSERT OR {instead} INTO {table}({columns}) VALUES ({places})"))?)
}

/// Inserts a row. False if its values are damaged or another row has its key.
fn put(insert: &mut Statement<'_>, row: &Record) -> Result<bool> {
    let columns = insert.parameter_count();
    let Some(mut values) = row.values().filter(|values| values.len() <= columns) else { return Ok(false) };
    if let (Some(rowid), Some(first)) = (row.rowid, values.first_mut()) {
        *first = ValueRef::Integer(rowid);
    }
    // A row from before a column was added ends without it.
    values.resize(columns, ValueRef::Null);
    match insert.execute(params_from_iter(values.into_iter().map(ToSqlOutput::Borrowed))) {
        Ok(put) => Ok(put > 0),
        Err(e) => {
            let e = StoreError::from(e);
            if e.damage().is_some() || e.lacks_another() { Ok(false) } else { Err(e) }
        }
    }
}

fn add_lost_sessions(tx: &Transaction<'_>, names: &HashMap<i64, String>) -> Result<()> {
    let sql = "SELECT DISTINCT session FROM message WHERE session NOT IN (SELECT id FROM session)";
    let without: Vec<i64> = query::rows(tx, sql, [], |r| r.get(0))?;
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

/// Puts a placeholder for each unreadable message that has children or is a head, below the nearest message above it in
/// its session, so that the messages before it stay on the path.
fn fill_gaps(tx: &Transaction<'_>) -> Result<()> {
    let missing = "SELECT c.parent, c.session, c.depth - 1 FROM message c
                     WHERE c.parent IS NOT NULL AND c.parent NOT IN (SELECT id FROM message)
                   UNION SELECT head, id, messages FROM session
                     WHERE head IS NOT NULL AND head NOT IN (SELECT id FROM message)";
    let above = "SELECT id FROM message WHERE session IN (?1, (SELECT forked_from FROM session WHERE id = ?1))
                   AND id < ?2 AND depth < ?3 ORDER BY depth DESC, id DESC LIMIT 1";
    let gaps: Vec<(i64, i64, i64)> = query::rows(tx, missing, [], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?)))?;
    for (id, session, depth) in gaps {
        let depth = depth.max(1);
        let parent: Option<i64> = tx.query_row(above, [session, id, depth], |r| r.get(0)).optional()?;
        tx.execute(
            "INSERT OR IGNORE INTO message(id, session, parent, depth, role, created_ms, meta, thinking, text)
             VALUES (?1, ?2, ?3, ?4, ?5, 0, ?6, '', ?7)",
            params![id, session, parent, depth, Role::User.name(), UNREADABLE, LOST_TEXT],
        )?;
        seal_row(tx, MESSAGE, id)?;
    }
    Ok(())
}

fn remove_dangling(tx: &Transaction<'_>) -> Result<()> {
    // The search index is rebuilt from the texts.
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
    let all: Vec<i64> = query::rows(tx, "SELECT id FROM session", [], |r| r.get(0))?;
    for id in all {
        refresh_session(tx, SessionId(id))?;
    }
    Ok(())
}
