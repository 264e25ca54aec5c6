//! Segments as the database has them: whole, or without their tokens as the tree that they form. The row alone decides
//! what state is kept; this file reads no state files.

use std::collections::{HashMap, HashSet};

use rusqlite::{Connection, Row, Transaction, params};

use super::error::Result;
use super::format::FileKind;
use super::query::{self, REACHED_BY_SESSION};
use super::segment::{NewSegment, Segment, SegmentId, SegmentKind, Stored, TextBoundary, tokens_from_bytes};
use crate::core::transcript::SessionId;

pub(super) const SEGMENT: &str = "s.id, s.fingerprint, s.parent, s.start, s.kind, s.text_bytes, s.text_hash,
  s.rows_root IS NOT NULL, s.rows_bytes, s.rows_why, s.end_root IS NOT NULL, s.end_bytes, s.end_why, s.used_ms,
  s.given, s.generated, s.origin";

/// Whether all state that ends in segment `s` is kept (`plan` in `state.rs`): at its end, and the rows up to there.
pub(super) const KEPT: &str = "(s.end_root IS NOT NULL AND NOT EXISTS (
  WITH RECURSIVE up(id, parent, lost) AS (
    SELECT s.id, s.parent, s.rows_root IS NULL
    UNION SELECT p.id, p.parent, p.rows_root IS NULL FROM up CROSS JOIN segment p ON p.id = up.parent)
  SELECT 1 FROM up WHERE lost))";

/// Reads a segment. A changed row is an error: a segment's name is a hash of its tokens.
pub(super) fn segment_row(r: &Row<'_>) -> rusqlite::Result<Segment> {
    let stored = |kept: usize| -> rusqlite::Result<Stored> {
        Ok(match r.get::<_, bool>(kept)? {
            true => Stored::Kept { bytes: r.get(kept + 1)? },
            false => Stored::Missing { why: r.get(kept + 2)? },
        })
    };
    let tokens = |column: usize| -> rusqlite::Result<Vec<u32>> {
        tokens_from_bytes(r.get_ref(column)?.as_blob()?).ok_or(rusqlite::Error::IntegralValueOutOfRange(column, -1))
    };
    let segment = Segment {
        id: SegmentId(r.get(0)?),
        content: NewSegment {
            fingerprint: r.get(1)?,
            parent: r.get::<_, Option<[u8; 32]>>(2)?.map(SegmentId),
            start: r.get(3)?,
            kind: kind_at(r, 4)?,
            boundary: TextBoundary { bytes: r.get(5)?, hash: r.get(6)? },
            prompt: tokens(14)?,
            completion: tokens(15)?,
        },
        rows: stored(7)?,
        end: stored(10)?,
        used_ms: r.get(13)?,
    };
    let own = segment.content.id();
    // In an imported path only the first segment has another name: the rest build on it.
    let named = match r.get::<_, Option<[u8; 32]>>(16)? {
        Some(origin) if segment.content.parent.is_none() => SegmentId::imported(&own, &origin),
        Some(_) | None => own,
    };
    if named == segment.id { Ok(segment) } else { Err(rusqlite::Error::IntegralValueOutOfRange(0, -1)) }
}

/// A segment without its tokens.
pub(super) struct Light {
    pub id: SegmentId,
    pub parent: Option<SegmentId>,
    pub kind: SegmentKind,
    pub start: u64,
    /// Of the kept files; 0 for one that is missing.
    pub rows_bytes: u64,
    pub end_bytes: u64,
    pub used: i64,
    pub used_ms: i64,
}

const LIGHT: &str = "id, parent, kind, start, rows_bytes, end_bytes, used, used_ms FROM segment";

fn light_of(r: &Row<'_>) -> rusqlite::Result<Light> {
    Ok(Light {
        id: SegmentId(r.get(0)?),
        parent: r.get::<_, Option<[u8; 32]>>(1)?.map(SegmentId),
        kind: kind_at(r, 2)?,
        start: r.get(3)?,
        rows_bytes: r.get(4)?,
        end_bytes: r.get(5)?,
        used: r.get(6)?,
        used_ms: r.get(7)?,
    })
}

pub(super) fn light(tx: &Connection) -> Result<HashMap<SegmentId, Light>> {
    query::rows(tx, &format!("SELECT {LIGHT}"), [], |r| light_of(r).map(|l| (l.id, l)))
}

/// An unknown code is damage, not a default: the kind decides whether state may be removed.
fn kind_at(r: &Row<'_>, column: usize) -> rusqlite::Result<SegmentKind> {
    let code = r.get(column)?;
    SegmentKind::from_code(code).ok_or(rusqlite::Error::IntegralValueOutOfRange(column, code))
}

/// The segments that the messages of a session reach.
pub(super) fn light_of_session(tx: &Transaction<'_>, session: SessionId) -> Result<HashMap<SegmentId, Light>> {
    let sql = format!(
        "{REACHED_BY_SESSION}, above(segment) AS (
           SELECT l.segment FROM reached CROSS JOIN message_segment l ON l.message = reached.id
           UNION SELECT s.parent FROM above CROSS JOIN segment s ON s.id = above.segment WHERE s.parent IS NOT NULL)
         SELECT {LIGHT} WHERE id IN above"
    );
    query::rows(tx, &sql, [session.0], |r| light_of(r).map(|l| (l.id, l)))
}

pub(super) fn ids(db: &Connection, sql: &str) -> Result<Vec<SegmentId>> {
    query::rows(db, sql, [], |r| Ok(SegmentId(r.get(0)?)))
}

pub(super) fn with_ancestors(
    tree: &HashMap<SegmentId, Light>,
    from: impl IntoIterator<Item = SegmentId>,
) -> HashSet<SegmentId> {
    let mut reached = HashSet::new();
    for id in from {
        let up = std::iter::successors(Some(id), |id| tree.get(id)?.parent);
        up.take_while(|id| reached.insert(*id)).for_each(drop);
    }
    reached
}

/// Whether a row names such a file of a segment; `None` without a row.
pub(super) fn is_named(db: &Connection, id: &SegmentId, kind: FileKind) -> Result<Option<bool>> {
    let sql = format!("SELECT {}_root IS NOT NULL FROM segment WHERE id = ?1", kind.extension());
    query::row(db, &sql, [id.0], |r| r.get(0))
}

pub(super) fn forget(tx: &Transaction<'_>, id: &SegmentId, kind: FileKind, why: &str) -> Result<()> {
    let k = kind.extension();
    tx.prepare_cached(&format!("UPDATE segment SET {k}_root = NULL, {k}_bytes = 0, {k}_why = ?2 WHERE id = ?1"))?
        .execute(params![id.0, why])?;
    Ok(())
}
