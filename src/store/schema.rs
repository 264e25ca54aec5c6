//! Tables of `sala.db`, their version, and opening the file. No queries of daily use.
//!
//! Queries that climb the message tree use `CROSS JOIN`: it fixes the order (the climbing table first). Otherwise
//! SQLite would guess the order without knowing how short a path is.
//!
//! Rules for later versions: raise [`VERSION`], add a migration step, keep the columns of `session` and `message` that
//! version 1 has, so that an older program can still show the text of a newer file.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::error::{Result, StoreError, is_damage, one_line};

pub(super) const APPLICATION_ID: i32 = 0x5341_4c41;
/// Version of the database.
pub const VERSION: i32 = 2;

pub(super) const BUSY: Duration = Duration::from_secs(10);
/// How long to wait for readers when the log is moved into the database: it can be moved another time.
pub(super) const BUSY_CHECKPOINT: Duration = Duration::from_millis(200);

const TABLES: &str = "
CREATE TABLE counter(name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO counter VALUES ('id', 1), ('use', 1);

CREATE TABLE session(
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  head INTEGER REFERENCES message(id) DEFERRABLE INITIALLY DEFERRED,
  settings TEXT NOT NULL,
  title TEXT NOT NULL DEFAULT '',
  messages INTEGER NOT NULL DEFAULT 0,    -- on the path to the head
  tokens INTEGER NOT NULL DEFAULT 0,      -- of that path, as far as known
  state_of TEXT,                          -- fingerprint of the model of the state at the head
  forked_from INTEGER,
  forked_at INTEGER,
  created_ms INTEGER NOT NULL,
  updated_ms INTEGER NOT NULL,
  used INTEGER NOT NULL,                  -- order of last change; never the clock
  trashed_ms INTEGER
) STRICT;
CREATE UNIQUE INDEX session_name ON session(name) WHERE trashed_ms IS NULL;
CREATE INDEX session_used ON session(used);
CREATE INDEX session_head ON session(head);

CREATE TABLE message(
  id INTEGER PRIMARY KEY,
  session INTEGER NOT NULL,               -- where it was written; forks share it
  parent INTEGER REFERENCES message(id) DEFERRABLE INITIALLY DEFERRED,
  depth INTEGER NOT NULL,                 -- 1 at a root
  role TEXT NOT NULL,
  created_ms INTEGER NOT NULL,
  indexed INTEGER NOT NULL DEFAULT 0,     -- 1: its text is in message_text
  meta TEXT NOT NULL,
  thinking TEXT NOT NULL,
  text TEXT NOT NULL
) STRICT;
CREATE INDEX message_parent ON message(parent);
CREATE INDEX message_session ON message(session);
CREATE INDEX message_unindexed ON message(id) WHERE indexed = 0;

CREATE VIRTUAL TABLE message_text USING fts5(text, content='message', content_rowid='id', tokenize='trigram');
CREATE TRIGGER message_reword BEFORE UPDATE OF text ON message WHEN old.indexed = 1 AND new.text <> old.text BEGIN
  INSERT INTO message_text(message_text, rowid, text) VALUES ('delete', old.id, old.text);
END;
CREATE TRIGGER message_reworded AFTER UPDATE OF text ON message WHEN old.indexed = 1 AND new.text <> old.text BEGIN
  UPDATE message SET indexed = 0 WHERE id = new.id;
END;
CREATE TRIGGER message_gone BEFORE DELETE ON message WHEN old.indexed = 1 BEGIN
  INSERT INTO message_text(message_text, rowid, text) VALUES ('delete', old.id, old.text);
END;

CREATE TABLE segment(
  key INTEGER PRIMARY KEY,
  id BLOB NOT NULL UNIQUE,
  fingerprint TEXT NOT NULL,
  parent BLOB REFERENCES segment(id) DEFERRABLE INITIALLY DEFERRED,
  start INTEGER NOT NULL,
  stop INTEGER NOT NULL,                  -- position after its last token
  kind INTEGER NOT NULL,
  text_bytes INTEGER NOT NULL,
  text_hash BLOB NOT NULL,
  rows_root BLOB,                         -- NULL: the rows are declared missing, rows_why says why
  rows_bytes INTEGER NOT NULL DEFAULT 0,
  rows_why TEXT NOT NULL DEFAULT 'not written yet',
  end_root BLOB,
  end_bytes INTEGER NOT NULL DEFAULT 0,
  end_why TEXT NOT NULL DEFAULT 'not written yet',
  used INTEGER NOT NULL,
  used_ms INTEGER NOT NULL,
  given BLOB NOT NULL,                    -- token ids, u32 little-endian
  generated BLOB NOT NULL
) STRICT;
CREATE INDEX segment_parent ON segment(parent);
CREATE INDEX segment_bytes ON segment(rows_bytes, end_bytes);

CREATE TABLE message_segment(
  message INTEGER NOT NULL REFERENCES message(id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
  fingerprint TEXT NOT NULL,
  segment BLOB NOT NULL REFERENCES segment(id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
  PRIMARY KEY(message, fingerprint)
) STRICT, WITHOUT ROWID;
CREATE INDEX message_segment_of ON message_segment(segment);

CREATE TABLE mark(
  session INTEGER NOT NULL REFERENCES session(id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
  name TEXT NOT NULL,
  message INTEGER NOT NULL REFERENCES message(id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
  created_ms INTEGER NOT NULL,
  PRIMARY KEY(session, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX mark_message ON mark(message);

CREATE TABLE head_log(
  key INTEGER PRIMARY KEY,
  session INTEGER NOT NULL REFERENCES session(id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
  head INTEGER
) STRICT;
CREATE INDEX head_log_session ON head_log(session, key);

CREATE TABLE document(
  key INTEGER PRIMARY KEY,
  hash TEXT NOT NULL,
  name TEXT NOT NULL,
  path TEXT,
  prefix BLOB,                            -- segment it was read after; NULL: at the very start
  segment BLOB NOT NULL UNIQUE REFERENCES segment(id) DEFERRABLE INITIALLY DEFERRED,
  tokens INTEGER NOT NULL,
  lines INTEGER NOT NULL,
  used INTEGER NOT NULL,
  used_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE prompt(key INTEGER PRIMARY KEY, text TEXT NOT NULL, created_ms INTEGER NOT NULL) STRICT;
";

/// Version 2 adds checksums of messages and sessions (`seal.rs`), the database's directory, origins of imported state.
const SECOND: &str = "
ALTER TABLE message ADD COLUMN seal BLOB;
ALTER TABLE session ADD COLUMN seal BLOB;
ALTER TABLE segment ADD COLUMN origin BLOB;
CREATE TABLE property(name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
";

/// Additions that a program of the same version can do without, so the version stays. The trigger also deletes a draft
/// together with its session when such a program deletes the session.
const LATER: &str = "
CREATE TABLE IF NOT EXISTS draft(
  session INTEGER PRIMARY KEY,            -- 0 and below: of ones that have no row yet
  text TEXT NOT NULL
) STRICT;
CREATE TRIGGER IF NOT EXISTS session_gone AFTER DELETE ON session BEGIN
  DELETE FROM draft WHERE session = old.id;
END;
";

/// All tables but the search index, with their columns in the order of a row. A damaged database may lack some.
pub(super) const COLUMNS: [(&str, &str); 11] = [
    ("counter", "name, value"),
    (
        "session",
        "id, name, head, settings, title, messages, tokens, state_of, forked_from, forked_at, created_ms, updated_ms, used, \
         trashed_ms, seal",
    ),
    ("message", "id, session, parent, depth, role, created_ms, indexed, meta, thinking, text, seal"),
    (
        "segment",
        "key, id, fingerprint, parent, start, stop, kind, text_bytes, text_hash, rows_root, rows_bytes, rows_why, end_root, \
         end_bytes, end_why, used, used_ms, given, generated, origin",
    ),
    ("message_segment", "message, fingerprint, segment"),
    ("mark", "session, name, message, created_ms"),
    ("head_log", "key, session, head"),
    ("document", "key, hash, name, path, prefix, segment, tokens, lines, used, used_ms"),
    ("prompt", "key, text, created_ms"),
    ("property", "name, value"),
    ("draft", "session, text"),
];

/// Header bytes of every database of ours: 4096-byte pages, payload fractions, schema format, no auto-vacuum, UTF-8.
pub(super) const HEADER: [(usize, &[u8]); 8] = [
    (0, b"SQLite format 3\0"),
    (16, &[0x10, 0]),
    (20, &[0, 64, 32, 32]),
    (44, &[0, 0, 0, 4]),
    (52, &[0, 0, 0, 0]),
    (56, &[0, 0, 0, 1]),
    (64, &[0, 0, 0, 0]),
    (68, &APPLICATION_ID.to_be_bytes()),
];
/// Versions that a newer program may have written; others are damage.
pub(super) const VERSIONS: std::ops::RangeInclusive<i32> = 1..=VERSION + 1000;

/// Judges the first 100 bytes of a database of this size; `marked`: it is in a directory of ours. One of ours with a
/// wrong value is damaged, because SQLite might open it and then not write it.
pub(super) fn check_header(path: &Path, head: &[u8], bytes: u64, marked: bool) -> Result<()> {
    let number = |at: usize| head.get(at..at + 4).and_then(|b| Some(i32::from_be_bytes(b.try_into().ok()?)));
    let has = |(at, value): &(usize, &[u8])| head.get(*at..).is_some_and(|rest| rest.starts_with(value));
    let is_sqlite = HEADER.first().is_some_and(has) && head.len() >= 100;
    let page = match head.get(16..18) {
        Some([0, 1]) => 65_536,
        Some([a, b]) => u64::from(u16::from_be_bytes([*a, *b])),
        _ => 0,
    };
    // Versions of the file format to write and to read: with or without a log.
    let formats = matches!(head.get(18..20), Some([1, 1] | [2, 2]));
    let path = path.to_owned();
    match (number(68), number(60)) {
        (_, Some(version)) if is_sqlite && formats && HEADER.iter().all(has) && VERSIONS.contains(&version) => Ok(()),
        // Blank: tables have pages of their own.
        (Some(0), Some(0)) if is_sqlite && bytes <= page => Ok(()),
        (id, _) if marked || id == Some(APPLICATION_ID) => {
            Err(StoreError::Damaged { path, detail: "its header is not ours".into() })
        }
        _ if is_sqlite => Err(StoreError::Foreign { path }),
        _ => Err(StoreError::NoDatabase { path, detail: "it is no database".into() }),
    }
}

/// Opens and migrates a database. Returns its version if that is a newer one; then nothing is changed.
pub(super) fn open_writable(path: &Path) -> Result<(Connection, Option<i32>)> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let open = || -> Result<(Connection, Option<i32>), rusqlite::Error> {
        let mut db = Connection::open_with_flags(path, flags)?;
        let newer = prepare(&mut db)?;
        Ok((db, newer))
    };
    open().map_err(|e| named(path, e))
}

fn prepare(db: &mut Connection) -> Result<Option<i32>, rusqlite::Error> {
    db.busy_timeout(BUSY)?;
    db.pragma_update(None, "journal_mode", "WAL")?;
    db.pragma_update(None, "synchronous", "FULL")?;
    db.pragma_update(None, "foreign_keys", true)?;
    // Deleted texts must not remain in the file; `collect.rs` removes the rest.
    db.pragma_update(None, "secure_delete", true)?;
    // Temporary copies hold texts, too.
    db.pragma_update(None, "temp_store", "MEMORY")?;
    db.set_prepared_statement_cache_capacity(64);
    // The usual case takes no lock: a program that reads does not wait for one that writes.
    let later = "SELECT count(*) = 2 FROM sqlite_schema WHERE name IN ('draft', 'session_gone')";
    if identity(db)? == (APPLICATION_ID, VERSION) && db.query_row(later, [], |r| r.get(0))? {
        return Ok(None);
    }
    let tx = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let tables: i64 = tx.query_row("SELECT count(*) FROM sqlite_schema", [], |r| r.get(0))?;
    let (application, version) = identity(&tx)?;
    match (application, version, tables) {
        (0, 0, 0) => tx.execute_batch(TABLES)?,
        (APPLICATION_ID, 1 | VERSION, _) => {}
        (APPLICATION_ID, newer, _) if newer > VERSION => return Ok(Some(newer)),
        _ => return Err(foreign()),
    }
    if version < VERSION {
        tx.execute_batch(SECOND)?;
        super::seal::seal_everything(&tx)?;
    }
    tx.execute_batch(LATER)?;
    tx.pragma_update(None, "application_id", APPLICATION_ID)?;
    tx.pragma_update(None, "user_version", VERSION)?;
    tx.commit()?;
    Ok(None)
}

/// The program of the database, and its version.
fn identity(db: &Connection) -> Result<(i32, i32), rusqlite::Error> {
    let number = |name| db.pragma_query_value(None, name, |r| r.get(0));
    Ok((number("application_id")?, number("user_version")?))
}

/// A database up to this size is checked on every start; a larger one by `doctor --check`.
pub(super) const CHECKED_BYTES: u64 = 16 << 20;

/// An error if a table cannot be read or written as this program does. Compiles statements and runs none.
pub(super) fn check_usable(db: &Connection, path: &Path) -> Result<()> {
    let compile = || -> Result<(), rusqlite::Error> {
        for (table, columns) in COLUMNS {
            // Deleting compiles the triggers.
            db.prepare(&format!("INSERT INTO {table}({columns}) SELECT {columns} FROM {table}"))?;
            db.prepare(&format!("DELETE FROM {table}"))?;
        }
        db.prepare("UPDATE message SET text = ''")?;
        db.prepare("INSERT INTO message_text(rowid, text) VALUES (1, '')").map(drop)
    };
    let damaged = |detail: String| StoreError::Damaged { path: path.to_owned(), detail };
    compile().map_err(|e| match &e {
        rusqlite::Error::SqlInputError { .. } => damaged(one_line(&e)),
        rusqlite::Error::SqliteFailure(f, _) if f.code == ErrorCode::Unknown => damaged(one_line(&e)),
        _ => named(path, e),
    })?;
    let counters = "SELECT count(*) FROM counter WHERE name IN ('id', 'use') AND value > 0";
    match db.query_row(counters, [], |r| r.get(0)).map_err(|e| named(path, e))? {
        2 => Ok(()),
        _ => Err(damaged("a counter is missing".into())),
    }
}

/// An error for structural damage: in one of the trees of pages or the list of free ones.
pub(super) fn check_structure(db: &Connection, path: &Path) -> Result<()> {
    check_usable(db, path)?;
    let fault: String = db.query_row("PRAGMA quick_check(1)", [], |r| r.get(0)).map_err(|e| named(path, e))?;
    match fault.as_str() {
        "ok" => Ok(()),
        fault => Err(StoreError::Damaged { path: path.to_owned(), detail: one_line(&fault) }),
    }
}

pub(super) fn structure_fault(db: &Connection) -> Result<Option<String>> {
    let fault = |table: &str| -> rusqlite::Result<Option<String>> {
        if !db.prepare_cached("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1")?.exists([table])? {
            return Ok(Some(format!("{table} is missing")));
        }
        let line: String = db.query_row(&format!("PRAGMA integrity_check('{table}')"), [], |r| r.get(0))?;
        Ok((line != "ok").then(|| one_line(&format!("{table}: {line}"))))
    };
    for (table, _) in COLUMNS {
        match fault(table) {
            Ok(None) => {}
            Ok(found) => return Ok(found),
            Err(e) if is_damage(&e) => return Ok(Some(one_line(&e))),
            Err(e) => return Err(e.into()),
        }
    }
    Ok(None)
}

/// Opens without ever writing. `path` may be a private copy.
pub(super) fn open_readable(path: &Path, shown: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let run = || -> Result<Connection, rusqlite::Error> {
        let db = Connection::open_with_flags(path, flags)?;
        db.busy_timeout(BUSY)?;
        db.set_prepared_statement_cache_capacity(64);
        match identity(&db)? {
            (APPLICATION_ID, version) if version >= VERSION => Ok(db),
            _ => Err(foreign()),
        }
    };
    run().map_err(|e| named(shown, e))
}

/// Marks a file as not ours inside SQLite's error type; [`named`] turns it into the right one.
fn foreign() -> rusqlite::Error {
    rusqlite::Error::InvalidQuery
}

pub(super) fn named(path: &Path, e: rusqlite::Error) -> StoreError {
    let path = path.to_path_buf();
    match &e {
        rusqlite::Error::InvalidQuery => StoreError::Foreign { path },
        rusqlite::Error::SqliteFailure(f, text) => match f.code {
            ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt => {
                StoreError::Damaged { path, detail: one_line(&text.as_deref().unwrap_or("malformed")) }
            }
            ErrorCode::DiskFull => StoreError::Full { path },
            _ => StoreError::Database(e),
        },
        _ => StoreError::Database(e),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_table_is_checked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new.db");
        std::fs::File::create(&path).unwrap();
        let (db, _) = open_writable(&path).unwrap();
        // The search has tables of its own, and its own check.
        let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'
                   AND name NOT LIKE 'message_text%'";
        let names: rusqlite::Result<BTreeSet<String>> =
            db.prepare(sql).unwrap().query_map([], |r| r.get(0)).unwrap().collect();
        assert_eq!(names.unwrap(), COLUMNS.map(|(table, _)| table.to_owned()).into());
        for (table, columns) in COLUMNS {
            let all = db.prepare(&format!("SELECT * FROM {table}")).unwrap();
            let named: Vec<_> = columns.split(", ").collect();
            assert_eq!(all.column_names().collect::<Vec<_>>(), named, "{table}");
        }
    }
}
