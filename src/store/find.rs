//! Finds kept state by its text.

use rusqlite::params;

use super::database::Store;
use super::error::Result;
use super::query;
use super::segment::{SegmentId, TextBoundary, ending_in};

const MOST: usize = 64;

impl Store {
    /// Segments that end inside `text`, before its last byte, and were recorded with exactly the text up to there.
    /// Only those with a kept end state, the deepest first. Their earlier rows may be lost: see
    /// [`Store::plan_restore`].
    pub fn segments_under(&self, fingerprint: &str, text: &str) -> Result<Vec<SegmentId>> {
        let ends: Vec<(TextBoundary, SegmentId)> = self.read(|db| {
            let sql = "SELECT id, text_bytes, text_hash FROM segment
               WHERE fingerprint = ?1 AND text_bytes < ?2 AND end_root IS NOT NULL AND origin IS NULL ORDER BY text_bytes";
            query::rows(db, sql, params![fingerprint, text.len() as u64], |r| {
                Ok((TextBoundary { bytes: r.get(1)?, hash: r.get(2)? }, SegmentId(r.get(0)?)))
            })
        })?;
        let mut found = ending_in(text, ends);
        found.truncate(MOST);
        Ok(found)
    }
}
