//! Removes the remains of deleted texts from the database file.
//!
//! SQLite overwrites deleted rows (`secure_delete`, see `schema.rs`). Two kinds of remains are left: the search index
//! keeps the words of deleted texts until its parts are merged, and rearranged pages may hold copies, also those of a
//! database that an earlier program wrote. So the index is merged into one part, and a small database is rewritten.
//!
//! The deletion records that a wipe is due, so that the next run finishes an interrupted one.

use rusqlite::Transaction;

use super::database::{Access, Store, lock};
use super::error::Result;

/// A database up to this size is rewritten.
const SMALL_BYTES: u64 = 64 << 20;
/// Pages of the search index that are merged in one transaction, for which other writers wait.
const MERGED_PAGES: i64 = 2_000;
const WANTED: &str = "wipe";

pub(super) fn ask_for(tx: &Transaction<'_>) -> Result<()> {
    tx.execute("INSERT OR REPLACE INTO property VALUES (?1, '')", [WANTED])?;
    Ok(())
}

impl Store {
    /// Wipes the remains of deleted texts. The next call repeats a failed step.
    pub(super) fn wipe(&self) {
        if *self.access() != Access::Writable || !self.is_wipe_wanted().unwrap_or(false) {
            return;
        }
        let done = self.merge_index().and_then(|()| self.write_anew()).and_then(|()| {
            self.transaction(|tx| {
                tx.execute("DELETE FROM property WHERE name = ?1", [WANTED])?;
                Ok(())
            })
        });
        // The log holds the old texts until it is moved into the database.
        self.checkpoint();
        if let Err(e) = done {
            tracing::warn!("remains of deleted texts are not wiped yet: {e}");
        }
    }

    fn is_wipe_wanted(&self) -> Result<bool> {
        let sql = "SELECT 1 FROM property WHERE name = ?1";
        self.read(|db| Ok(db.prepare_cached(sql)?.exists([WANTED])?))
    }

    fn merge_index(&self) -> Result<()> {
        loop {
            let written = self.transaction(|tx| {
                let before = tx.total_changes();
                tx.execute("INSERT INTO message_text(message_text, rank) VALUES ('merge', ?1)", [-MERGED_PAGES])?;
                Ok(tx.total_changes() - before)
            })?;
            // The command itself counts for one.
            if written < 2 {
                return Ok(());
            }
        }
    }

    fn write_anew(&self) -> Result<()> {
        let bytes = self.disk.look(&self.layout.database).map_or(u64::MAX, |l| l.bytes);
        if bytes <= SMALL_BYTES {
            lock(&self.writer).execute_batch("VACUUM")?;
        }
        Ok(())
    }
}
