//! The library: documents with the prefix they were read after.
//!
//! An entry is a text after certain segments, identified by its segment's id. Entries keep their segments without any
//! session. Sessions hold the text of documents, entries do not.

use rusqlite::Row;

use super::commit::NewDocument;
use super::database::Store;
use super::error::Result;
use super::query;
use super::recorded::KEPT;
use super::segment::SegmentId;

#[derive(Clone, Debug, PartialEq)]
pub struct DocumentRecord {
    pub document: NewDocument,
    pub fingerprint: String,
    pub kept: bool,
    pub bytes: u64,
    pub used_ms: i64,
    pub in_use: bool,
    pub text_bytes: u64,
}

/// Columns of [`record`] before [`KEPT`]. The bytes are those from the document's end back to its prefix.
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
    pub fn documents(&self) -> Result<Vec<DocumentRecord>> {
        self.read(|db| {
            let sql = format!(
                "SELECT {COLUMNS}, {KEPT} FROM document d JOIN segment s ON s.id = d.segment ORDER BY d.used DESC"
            );
            query::rows(db, &sql, [], record)
        })
    }

    /// Names of documents, each once, with the tokens of the most recently used one, which also decides their order.
    pub fn document_names(&self) -> Result<Vec<(String, u64)>> {
        // SQLite takes the columns without a function from the row with the maximum.
        let sql = "SELECT name, tokens, max(used) AS last FROM document GROUP BY name ORDER BY last DESC";
        self.read(|db| query::rows(db, sql, [], |r| Ok((r.get(0)?, r.get(1)?))))
    }

    /// Removes all documents of this name. [`Store::collect`] frees their bytes unless a session needs them.
    pub fn remove_document(&self, name: &str) -> Result<u64> {
        self.transaction(|tx| Ok(tx.execute("DELETE FROM document WHERE name = ?1", [name])? as u64))
    }

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
