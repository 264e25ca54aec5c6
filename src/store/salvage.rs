//! Copies the readable part of a damaged database into a new one, row by row.
//!
//! Reads a copy, with SQLite set to accept a schema that it cannot parse. First repairs the copy's header and its
//! schema entries of tables if enough of them is left. At last it looks for messages and sessions on pages that no table
//! reaches any more: each leaf page is read as if it were a whole table, and a row is used if its seal matches. That
//! needs nothing of the damaged schema.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use rusqlite::types::ToSqlOutput;
use rusqlite::{Connection, OpenFlags, Row, Statement, Transaction, params, params_from_iter};

use super::directory::{self, Layout};
use super::disk::Disk;
use super::error::{Result, StoreError, is_damage};
use super::gaps::{Remembered, add_lost_sessions, fill_gaps, remove_dangling};
use super::messages::UNREADABLE;
use super::schema::{self, COLUMNS};
use super::scratch::Scratch;
use super::seal::{self, SealedTable};

/// Attempts to copy a database that others write meanwhile; the last copy is used as it is.
const COPIES: u32 = 5;
/// The size of a page of our databases.
const PAGE: usize = 4096;
/// First byte of a leaf page of a table.
const LEAF: u8 = 0x0d;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unread {
    /// Rows that are known to have existed.
    pub rows: u64,
    pub tables: Vec<&'static str>,
}

const NOTHING_READ: &str = "and no message could be read from it";

/// Writes everything readable into a new database in a private place.
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

pub(super) fn count(database: &Path) -> Result<(u64, u64)> {
    let (db, _) = schema::open_readable(database, database)?;
    let count = |sql: &str| db.query_row(sql, [], |r| r.get(0));
    Ok((
        count("SELECT count(*) FROM session")?,
        count(&format!("SELECT count(*) FROM message WHERE meta <> '{UNREADABLE}'"))?,
    ))
}

/// Restores those header fields that are the same in every database of ours, and clears those that only a writer
/// needs.
fn mend_header(copy: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).write(true).open(copy)?;
    let mut head = [0; 100];
    file.read_exact(&mut head)?;
    let version = head.get(60..64).and_then(|v| v.try_into().ok()).map_or(0, i32::from_be_bytes);
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(place) = head.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    };
    for (at, bytes) in schema::HEADER {
        put(at, bytes);
    }
    // With a log.
    put(18, &[2, 2]);
    // No size and no list of free pages: both only matter for writing.
    put(28, &[0; 12]);
    if !schema::VERSIONS.contains(&version) {
        put(60, &schema::VERSION.to_be_bytes());
    }
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

/// Copies the rows of all tables; returns the unreadable part. `None` for a database of a newer program.
fn read_out(copy: &Path, new: &mut Connection) -> Result<Option<Unread>> {
    let mut old = open_as_it_is(copy)?;
    let version: i32 = old.pragma_query_value(None, "user_version", |r| r.get(0))?;
    if version > schema::VERSION {
        return Ok(None);
    }
    mend_schema(&old, new)?;
    old = open_as_it_is(copy)?;
    // A referenced row may be lost.
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
    // Without its condition the index is a source of all names, also those of unreadable rows.
    let index =
        "UPDATE sqlite_schema SET sql = 'CREATE INDEX session_name ON session(name)' WHERE name = 'session_name'";
    let _ = old.execute(index, []);
    Ok(())
}

fn has_entry(old: &Connection, table: &str) -> Result<bool> {
    let sql = "SELECT 1 FROM sqlite_schema WHERE name = ?1 OR tbl_name = ?1 OR instr(sql, ?1 || '(')";
    match old.prepare(sql).and_then(|mut query| query.exists([table])) {
        // An unreadable entry may be the table's.
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

/// Copies the readable rows of a table; returns the number of unreadable ones. `None`: the table does not exist.
fn copy_table(old: &Connection, tx: &Transaction<'_>, table: &str) -> Result<Option<u64>> {
    let there = columns(old, table);
    let mut names = columns(tx, table);
    names.retain(|name| there.contains(name));
    if names.is_empty() {
        return Ok(None);
    }
    let (count, names) = (names.len(), names.join(", "));
    let mut insert = prepare_insert(tx, table, &names)?;
    let mut lost = 0;
    let Some((ids, whole)) = row_ids(old, table)? else {
        let mut query = old.prepare(&format!("SELECT {names} FROM {table}"))?;
        let mut rows = query.query([])?;
        loop {
            match rows.next() {
                Ok(Some(row)) => lost += u64::from(!put(&mut insert, row, 0..count)?),
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
            Ok(Some(row)) => put(&mut insert, row, 0..count)?,
            Ok(None) => false,
            Err(e) if is_damage(&e) => false,
            Err(e) => return Err(e.into()),
        };
        lost += u64::from(!copied);
    }
    // The size of the gap between the two ends is unknown.
    Ok(Some(lost + u64::from(!whole)))
}

/// Row ids of a table as far as it can be read from either end, and whether they are complete; `None` for a table
/// without row ids.
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

fn prepare_insert<'a>(tx: &'a Transaction<'_>, table: &str, columns: &str) -> Result<Statement<'a>> {
    // A new database has counters already.
    let instead = if table == "counter" { "REPLACE" } else { "IGNORE" };
    let places = vec!["?"; columns.split(',').count()].join(", ");
    Ok(tx.prepare(&format!("INSERT OR {instead} INTO {table}({columns}) VALUES ({places})"))?)
}

/// Copies a row. False if its values are damaged or another row has its key.
fn put(insert: &mut Statement<'_>, row: &Row<'_>, columns: Range<usize>) -> Result<bool> {
    let values = columns.map(|i| row.get_ref(i).map(ToSqlOutput::Borrowed));
    let values: rusqlite::Result<Vec<ToSqlOutput<'_>>> = values.collect();
    match values.and_then(|values| insert.execute(params_from_iter(values))) {
        Ok(put) => Ok(put > 0),
        Err(e) => {
            let e = StoreError::from(e);
            if e.damage().is_some() || e.lacks_another() { Ok(false) } else { Err(e) }
        }
    }
}

/// Adds rows to `tx` that it lacks, from all pages of `copy`, which is destroyed on the way.
fn copy_loose_rows(copy: &Path, tx: &Transaction<'_>) -> Result<()> {
    // Moves the log into its pages, as far as that works.
    if let Ok(db) = Connection::open(copy) {
        let _ = db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    }
    let leaves = give_schema(copy).map_err(StoreError::io("write", copy))?;
    for table in seal::TABLES {
        let columns = COLUMNS.iter().find(|(name, _)| *name == table.name).map_or("", |(_, columns)| columns);
        let mut insert = prepare_insert(tx, table.name, columns)?;
        for page in &leaves {
            // Most pages belong to other tables, or are damaged themselves.
            let _ = copy_page(copy, *page, &table, columns, &mut insert);
        }
    }
    Ok(())
}

fn copy_page(copy: &Path, page: u32, table: &SealedTable, columns: &str, insert: &mut Statement<'_>) -> Result<()> {
    let db = Connection::open(copy)?;
    db.pragma_update(None, "writable_schema", true)?;
    db.execute("UPDATE sqlite_schema SET rootpage = ?1 WHERE name = ?2", (page, table.name))?;
    drop(db);
    let db = Connection::open(copy)?;
    let mut query = db.prepare(&format!("SELECT {}, {columns} FROM {} m", table.columns, table.name))?;
    let (first, count) = (table.columns.split(',').count(), query.column_count());
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        if (table.is_whole)(row) {
            put(insert, row, first..count)?;
        }
    }
    Ok(())
}

/// Replaces the first page by one with only these two tables in its schema. Returns the leaf pages of tables.
fn give_schema(copy: &Path) -> io::Result<Vec<u32>> {
    let path = copy.with_extension("schema");
    let make = || -> rusqlite::Result<()> {
        let db = Connection::open(&path)?;
        for (table, columns) in COLUMNS.iter().filter(|(table, _)| matches!(*table, "message" | "session")) {
            db.execute_batch(&format!(
                "CREATE TABLE {table}({})",
                columns.replacen("id", "id INTEGER PRIMARY KEY", 1)
            ))?;
        }
        Ok(())
    };
    make().map_err(io::Error::other)?;
    let mut first = std::fs::read(&path)?;
    first.truncate(PAGE);
    // No size and no list of free pages.
    if let Some(sizes) = first.get_mut(28..40) {
        sizes.fill(0);
    }
    let mut file = OpenOptions::new().read(true).write(true).open(copy)?;
    let (mut leaves, mut page) = (Vec::new(), vec![0; PAGE]);
    for number in 1.. {
        if file.read_exact(&mut page).is_err() {
            break;
        }
        leaves.extend((number > 1 && page.first() == Some(&LEAF)).then_some(number));
    }
    file.rewind()?;
    file.write_all(&first)?;
    // SQLite would apply an old log over the new page.
    let _ = std::fs::remove_file(Layout::log_of(copy));
    Ok(leaves)
}
