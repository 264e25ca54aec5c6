//! Finds kept state by its text.

use rusqlite::params;

use super::database::Store;
use super::error::Result;
use super::query;
use super::segment::SegmentId;

const MOST: usize = 64;

impl Store {
    /// Segments that end inside `text`, before its last byte, and were recorded with exactly the text up to there.
    /// Only those with a kept end state, the deepest first. Their earlier rows may be lost: see
    /// [`Store::plan_restore`].
    pub fn segments_under(&self, fingerprint: &str, text: &str) -> Result<Vec<SegmentId>> {
        let ends: Vec<(SegmentId, usize, [u8; 32])> = self.read(|db| {
            let sql = "SELECT id, text_bytes, text_hash FROM segment
               WHERE fingerprint = ?1 AND text_bytes < ?2 AND end_root IS NOT NULL AND origin IS NULL ORDER BY text_bytes";
            let bytes = text.len() as u64;
            query::rows(db, sql, params![fingerprint, bytes], |r| Ok((SegmentId(r.get(0)?), r.get(1)?, r.get(2)?)))
        })?;
        let mut hash = blake3::Hasher::new();
        let (mut done, mut now) = (0, hash.finalize());
        let mut found = Vec::new();
        for (id, end, wanted) in ends {
            if end > done {
                hash.update(text.as_bytes().get(done..end).unwrap_or_default());
                (done, now) = (end, hash.finalize());
            }
            if *now.as_bytes() == wanted {
                found.push(id);
            }
        }
        found.reverse();
        found.truncate(MOST);
        Ok(found)
    }
}
