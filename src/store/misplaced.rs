//! Finds, from the database alone, state that was read without the messages before it.
//!
//! Each answer and each document ends a segment, so the path to a document has one end for each of them. A path with
//! fewer ends begins in the middle of the conversation. A server of an earlier version that was killed during a load
//! could leave one.

use rusqlite::{Connection, params};

use super::error::Result;
use super::format::FileKind;
use super::query;
use super::segment::{SegmentId, SegmentKind};

const WHY: &str = "it was read without what stands before it";

/// ?1: the kind of a segment that ends nothing; ?2: white space.
const MISPLACED: &str = "WITH RECURSIVE
  chain(segment, root, ends) AS (
    SELECT id, id, kind <> ?1 FROM segment WHERE parent IS NULL
    UNION ALL SELECT s.id, chain.root, chain.ends + (s.kind <> ?1)
      FROM chain CROSS JOIN segment s ON s.parent = chain.segment),
  branch(message, ends) AS (
    SELECT id, role = 'document' OR (role = 'assistant' AND trim(text, ?2) <> '') FROM message WHERE parent IS NULL
    UNION ALL SELECT m.id, branch.ends + (m.role = 'document' OR (m.role = 'assistant' AND trim(m.text, ?2) <> ''))
      FROM branch CROSS JOIN message m ON m.parent = branch.message),
  misplaced(root) AS (
    SELECT chain.root FROM message_segment held JOIN message m ON m.id = held.message AND m.role = 'document'
      JOIN branch ON branch.message = held.message JOIN chain ON chain.segment = held.segment
    WHERE chain.ends < branch.ends)
  SELECT s.id, s.rows_root IS NOT NULL, s.end_root IS NOT NULL FROM chain JOIN segment s ON s.id = chain.segment
  WHERE chain.root IN (SELECT root FROM misplaced)";

/// Kept files of such state and of all that builds on it, with the reason why they are unusable.
pub(super) fn misplaced(db: &Connection) -> Result<Vec<(SegmentId, FileKind, String)>> {
    let blank: String = ('\u{1}'..='\u{3000}').filter(|c| c.is_whitespace()).collect();
    let found: Vec<(SegmentId, bool, bool)> =
        query::rows(db, MISPLACED, params![SegmentKind::DocumentPart.code(), blank], |r| {
            Ok((SegmentId(r.get(0)?), r.get(1)?, r.get(2)?))
        })?;
    let mut lost = Vec::new();
    for (id, rows, end) in found {
        let kept = [rows.then_some(FileKind::Rows), end.then_some(FileKind::End)];
        lost.extend(kept.into_iter().flatten().map(|kind| (id, kind, WHY.to_owned())));
    }
    Ok(lost)
}
