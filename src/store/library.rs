//! The library: documents that were read, each behind the prefix it was read with.
//!
//! Only prefixes compose: an entry is "this text behind these segments", found again by its segment's id. Entries keep
//! their segments alive without any session. Never holds document text; sessions do.

use std::collections::{HashMap, HashSet};

use rusqlite::Row;

use super::commit::NewDocument;
use super::database::Store;
use super::error::Result;
use super::recorded::KEPT;
use super::segment::SegmentId;

/// A document on the shelf.
#[derive(Clone, Debug, PartialEq)]
pub struct DocumentRecord {
    /// What was put there.
    pub document: NewDocument,
    /// Fingerprint of the model that read it.
    pub fingerprint: String,
    /// Its end state is on disk.
    pub kept: bool,
    /// Bytes on disk of its own segments.
    pub bytes: u64,
    /// Last use, ms since the epoch.
    pub used_ms: i64,
    /// A session reaches it, too.
    pub in_use: bool,
    /// Bytes of its text as the model reads it.
    pub text_bytes: u64,
}

/// Columns of [`record`], and [`KEPT`]. The bytes are those of the segments from the document's end back to its prefix.
const COLUMNS: &str = "d.hash, d.name, d.path, d.prefix, d.segment, d.tokens, d.lines, d.used_ms, s.fingerprint,
  (WITH RECURSIVE up(id, parent, bytes) AS (
     SELECT s.id, s.parent, s.rows_bytes + s.end_bytes
     UNION SELECT p.id, p.parent, p.rows_bytes + p.end_bytes FROM up CROSS JOIN segment p ON p.id = up.parent
       WHERE d.prefix IS NULL OR p.id <> d.prefix)
   SELECT sum(bytes) FROM up),
  EXISTS (SELECT 1 FROM message_segment l WHERE l.segment = s.id),
  max(0, s.text_bytes - coalesce((SELECT p.text_bytes FROM segment p WHERE p.id = d.prefix), 0))";

fn record(r: &Row<'_>) -> rusqlite::Result<DocumentRecord> {
    Ok(DocumentRecord {
        document: NewDocument {
            hash: r.get(0)?,
            name: r.get(1)?,
            path: r.get(2)?,
            prefix: r.get::<_, Option<[u8; 32]>>(3)?.map(SegmentId),
            segment: SegmentId(r.get(4)?),
            tokens: r.get(5)?,
            lines: r.get(6)?,
        },
        used_ms: r.get(7)?,
        fingerprint: r.get(8)?,
        bytes: r.get(9)?,
        in_use: r.get(10)?,
        text_bytes: r.get(11)?,
        kept: r.get(12)?,
    })
}

impl Store {
    /// All documents, the last used first.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn documents(&self) -> Result<Vec<DocumentRecord>> {
        self.read(|db| {
            let sql = format!(
                "SELECT {COLUMNS}, {KEPT} FROM document d JOIN segment s ON s.id = d.segment ORDER BY d.used DESC"
            );
            let mut query = db.prepare_cached(&sql)?;
            let rows = query.query_map([], record)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Hashes of what was read of each file, by its path.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn hashes_by_path(&self) -> Result<HashMap<String, HashSet<String>>> {
        self.read(|db| {
            let mut query = db.prepare_cached("SELECT path, hash FROM document WHERE path IS NOT NULL")?;
            let rows = query.query_map([], |r| Ok((r.get(0)?, r.get(1)?)))?;
            let mut known: HashMap<String, HashSet<String>> = HashMap::new();
            for row in rows {
                let (path, hash): (String, String) = row?;
                known.entry(path).or_default().insert(hash);
            }
            Ok(known)
        })
    }

    /// Names of documents, each once, with the tokens of the one that was used last; that one decides their order.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn document_names(&self) -> Result<Vec<(String, u64)>> {
        self.read(|db| {
            // The columns without a function are those of the row with the maximum.
            let sql = "SELECT name, tokens, max(used) AS last FROM document GROUP BY name ORDER BY last DESC";
            let mut query = db.prepare_cached(sql)?;
            let rows = query.query_map([], |r| Ok((r.get(0)?, r.get(1)?)))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Takes all entries of this name off the shelf and returns how many. Their bytes go with the next
    /// [`Store::collect`] unless a session needs them.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn remove_document(&self, name: &str) -> Result<u64> {
        self.transaction(|tx| Ok(tx.execute("DELETE FROM document WHERE name = ?1", [name])? as u64))
    }

    /// Takes every entry off the shelf that no session uses, and returns how many.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn prune_documents(&self) -> Result<u64> {
        self.transaction(|tx| {
            let gone = tx.execute(
                "DELETE FROM document WHERE NOT EXISTS (SELECT 1 FROM message_segment l WHERE l.segment = document.segment)",
                [],
            )?;
            Ok(gone as u64)
        })
    }
}
