//! Messages and sessions on pages that no table reaches any more. Each leaf page is read as if it were a whole table,
//! and a row is used if its seal matches. Needs nothing of the damaged schema.

use std::fs::OpenOptions;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use rusqlite::{Connection, Statement, Transaction, params_from_iter, types::ToSqlOutput};

use super::error::{Result, StoreError};
use super::schema::COLUMNS;
use super::seal::{self, SealedTable};

const PAGE: usize = 4096;
/// First byte of a leaf page of a table.
const LEAF: u8 = 0x0d;

/// Adds rows to `tx` that it lacks, from all pages of `copy`, which is destroyed on the way.
pub(super) fn copy_loose_rows(copy: &Path, tx: &Transaction<'_>) -> Result<()> {
    // Moves the log into its pages, as far as that works.
    if let Ok(db) = Connection::open(copy) {
        let _ = db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    }
    let leaves = give_schema(copy).map_err(StoreError::io("write", copy))?;
    for table in seal::TABLES {
        let columns = COLUMNS.iter().find(|(name, _)| *name == table.name).map_or("", |(_, columns)| columns);
        let places = vec!["?"; columns.split(',').count()].join(", ");
        let mut insert = tx.prepare(&format!("INSERT OR IGNORE INTO {}({columns}) VALUES ({places})", table.name))?;
        for page in &leaves {
            // Most pages belong to other tables, or are damaged themselves.
            let _ = copy_page(copy, *page, &table, columns, &mut insert);
        }
    }
    Ok(())
}

fn copy_page(
    copy: &Path,
    page: u32,
    table: &SealedTable,
    columns: &str,
    insert: &mut Statement<'_>,
) -> rusqlite::Result<()> {
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
            let values = (first..count).map(|i| row.get_ref(i).map(ToSqlOutput::Borrowed));
            insert.execute(params_from_iter(values.collect::<rusqlite::Result<Vec<_>>>()?))?;
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
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&first)?;
    // SQLite would apply an old log over the new page.
    let _ = std::fs::remove_file(super::directory::Layout::log_of(copy));
    Ok(leaves)
}
