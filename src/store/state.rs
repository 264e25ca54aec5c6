//! Loading model state: which files a path needs, reading them, and the reaction to a damaged one.
//!
//! A faulty file is declared missing in the database before the caller gets the error, so that it is never tried
//! twice. Never writes files; `save.rs` does.

use std::collections::BTreeSet;

use rusqlite::{Transaction, params};

use super::database::{Store, lock};
use super::error::{Result, StoreError, is_damage};
use super::format::{self, Fault, FileKind, OpenFile};
use super::query;
use super::recorded::{KEPT, SEGMENT, forget, segment_row};
use super::segment::{Segment, SegmentId, SegmentKind, Stored, TextBoundary, ending_in};
use super::summary::refresh_session;
use crate::core::transcript::SessionId;
use crate::engine::protocol::{CheckpointImage, RowsImage};

/// Segments found by their text.
const MOST: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    pub segment: SegmentId,
    /// `KV rows` or `state`.
    pub what: &'static str,
    pub why: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct RestorePlan {
    pub path: Vec<Segment>,
    /// Rows of the first `usable` segments and the end state of the last of them are kept; 0: start from nothing.
    pub usable: usize,
    pub lost: Vec<Lost>,
}

impl RestorePlan {
    pub fn kept_tokens(&self) -> u64 {
        self.path.iter().take(self.usable).map(Segment::tokens).sum()
    }

    pub fn replay_tokens(&self) -> u64 {
        self.path.iter().skip(self.usable).map(Segment::tokens).sum()
    }

    pub fn bytes(&self) -> u64 {
        let rows: u64 = self.path.iter().take(self.usable).map(|s| s.rows.bytes()).sum();
        rows + self.path.iter().take(self.usable).next_back().map_or(0, |s| s.end.bytes())
    }
}

pub(super) struct Roots {
    pub parent: Option<[u8; 32]>,
    pub start: u64,
    pub stop: u64,
    pub rows: Option<[u8; 32]>,
    pub end: Option<[u8; 32]>,
}

impl Roots {
    pub(super) fn of(&self, kind: FileKind) -> Option<[u8; 32]> {
        match kind {
            FileKind::Rows => self.rows,
            FileKind::End => self.end,
        }
    }
}

impl Store {
    /// A recorded segment. One with a damaged row counts as not recorded, so that its tokens are prefilled again.
    pub fn segment(&self, id: &SegmentId) -> Result<Option<Segment>> {
        let found = self.read(|db| {
            query::row(db, &format!("SELECT {SEGMENT} FROM segment s WHERE s.id = ?1"), [id.0], segment_row)
        });
        match found {
            Err(StoreError::Database(e)) if is_damage(&e) => {
                tracing::warn!("segment {}: {}", id.short(), super::error::one_line(&e));
                Ok(None)
            }
            other => other,
        }
    }

    /// Segments that end inside `text`, before its last byte, and were recorded with exactly the text up to there; the
    /// longest first. Their end state is kept; their earlier rows may be lost: see [`Store::plan_restore`]. Imported
    /// state is not found by text. `which` narrows them; the parameters begin with a fingerprint and the text's bytes.
    fn ends_within(&self, text: &str, which: &str, params: impl rusqlite::Params) -> Result<Vec<SegmentId>> {
        let sql = format!(
            "SELECT id, text_bytes, text_hash FROM segment WHERE fingerprint = ?1 AND text_bytes < ?2
             AND end_root IS NOT NULL AND origin IS NULL {which} ORDER BY text_bytes"
        );
        let ends: Vec<(TextBoundary, SegmentId)> = self.read(|db| {
            query::rows(db, &sql, params, |r| {
                Ok((TextBoundary { bytes: r.get(1)?, hash: r.get(2)? }, SegmentId(r.get(0)?)))
            })
        })?;
        Ok(ending_in(text, ends))
    }

    pub fn segments_under(&self, fingerprint: &str, text: &str) -> Result<Vec<SegmentId>> {
        let mut found = self.ends_within(text, "", params![fingerprint, text.len() as u64])?;
        found.truncate(MOST);
        Ok(found)
    }

    /// The longest kept part of a document below a segment (`None`: at position 0) that `rendered` begins with.
    pub fn part_below(&self, parent: Option<&SegmentId>, fingerprint: &str, rendered: &str) -> Result<Option<Segment>> {
        let (bytes, kind) = (rendered.len() as u64, SegmentKind::DocumentPart.code());
        let which = "AND parent IS ?3 AND kind = ?4 AND rows_root IS NOT NULL";
        let found = self.ends_within(rendered, which, params![fingerprint, bytes, parent.map(|id| id.0), kind])?;
        found.first().map_or(Ok(None), |id| self.segment(id))
    }

    /// Whether all state up to the end of a segment is kept, and the bytes of its own on disk; `None` for a segment
    /// that was never recorded. Does not read its tokens.
    pub fn kept_of(&self, id: &SegmentId) -> Result<Option<(bool, u64)>> {
        let sql = format!("SELECT {KEPT}, s.rows_bytes + s.end_bytes FROM segment s WHERE s.id = ?1");
        self.read(|db| query::row(db, &sql, [id.0], |r| Ok((r.get(0)?, r.get(1)?))))
    }

    pub fn load_path(&self, tip: &SegmentId) -> Result<Vec<Segment>> {
        let mut path: Vec<Segment> = Vec::new();
        let mut next = Some(*tip);
        while let Some(id) = next {
            let segment = self.segment(&id)?.ok_or(StoreError::NoSegment { id })?;
            // Positions are consecutive along a path.
            if path.last().is_some_and(|after| after.content.start != segment.end_position()) {
                return Err(StoreError::NoSegment { id });
            }
            next = segment.content.parent;
            path.push(segment);
        }
        path.reverse();
        Ok(path)
    }

    /// The kept part of the path that ends in `tip`. Checks the files' sizes, not their contents.
    pub fn plan_restore(&self, tip: &SegmentId) -> Result<RestorePlan> {
        let mut path = self.load_path(tip)?;
        let left_out = lock(&self.left_out).clone();
        let mut gone = Vec::new();
        for segment in &mut path {
            if let Some(why) = left_out.get(&segment.id) {
                segment.rows = Stored::Missing { why: why.clone() };
                segment.end = Stored::Missing { why: why.clone() };
                continue;
            }
            for (kind, stored) in [(FileKind::Rows, &mut segment.rows), (FileKind::End, &mut segment.end)] {
                let Stored::Kept { bytes } = *stored else { continue };
                let found = self.disk.look(&self.layout.file(&segment.id, kind));
                let why = match found.map(|look| if look.is_file { look.bytes } else { 0 }) {
                    Ok(n) if n == bytes => continue,
                    Ok(n) if n < bytes => "damaged: its file is shorter than it was".to_owned(),
                    Ok(_) => "damaged: its file is longer than it was".to_owned(),
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => "its file is missing".to_owned(),
                    // The later read reports the error.
                    Err(_) => continue,
                };
                gone.push((segment.id, kind, why.clone()));
                *stored = Stored::Missing { why };
            }
        }
        self.declare_missing(&gone);
        Ok(plan(path))
    }

    /// KV rows of one segment; checked.
    pub fn read_rows(&self, id: &SegmentId) -> Result<RowsImage> {
        self.with_file(id, FileKind::Rows, |file| file.read_rows())?.ok_or_else(|| self.not_kept(id, FileKind::Rows))
    }

    pub fn read_end(&self, id: &SegmentId) -> Result<CheckpointImage> {
        self.with_file(id, FileKind::End, |file| file.read_end())?.ok_or_else(|| self.not_kept(id, FileKind::End))
    }

    /// Reads from a file of a segment. `None`: it is missing, or has now been declared missing.
    pub(super) fn with_file<T>(
        &self,
        id: &SegmentId,
        kind: FileKind,
        read: impl FnOnce(OpenFile) -> Result<T, Fault>,
    ) -> Result<Option<T>> {
        let Some(root) = self.roots(id)?.of(kind) else { return Ok(None) };
        match self.open_file(id, kind, &root).and_then(read) {
            Ok(found) => Ok(Some(found)),
            Err(fault) if fault.lasting && self.declare_missing(&[(*id, kind, fault.why.clone())]) => Ok(None),
            Err(fault) => Err(StoreError::StateLost { id: *id, why: fault.why }),
        }
    }

    pub(super) fn open_file(&self, id: &SegmentId, kind: FileKind, root: &[u8; 32]) -> Result<OpenFile, Fault> {
        format::open(&self.disk, &self.layout.file(id, kind), None, kind, id, root)
    }

    fn not_kept(&self, id: &SegmentId, kind: FileKind) -> StoreError {
        let sql = format!("SELECT {}_why FROM segment WHERE id = ?1", kind.extension());
        let why = self.read(|db| query::row(db, &sql, [id.0], |r| r.get(0))).ok().flatten();
        StoreError::StateLost { id: *id, why: why.unwrap_or_else(|| "it is not kept".into()) }
    }

    pub(super) fn roots(&self, id: &SegmentId) -> Result<Roots> {
        self.read(|db| {
            let sql = "SELECT parent, start, stop, rows_root, end_root FROM segment WHERE id = ?1";
            let roots = query::row(db, sql, [id.0], |r| {
                Ok(Roots { parent: r.get(0)?, start: r.get(1)?, stop: r.get(2)?, rows: r.get(3)?, end: r.get(4)? })
            });
            roots?.ok_or(StoreError::NoSegment { id: *id })
        })
    }

    /// Marks files as missing. Returns whether that was recorded; if not (a read-only directory), the next use finds
    /// the same fault again, which is slower but not wrong.
    pub(super) fn declare_missing(&self, gone: &[(SegmentId, FileKind, String)]) -> bool {
        if gone.is_empty() {
            return true;
        }
        self.transaction(|tx| {
            for (id, kind, why) in gone {
                forget(tx, id, *kind, why)?;
            }
            refresh_after(tx, gone.iter().map(|(id, ..)| id))
        })
        .is_ok()
    }
}

/// Renews the list columns of sessions with a head in one of these segments or below.
pub(super) fn refresh_after<'a>(tx: &Transaction<'_>, ids: impl Iterator<Item = &'a SegmentId>) -> Result<()> {
    // One query, so that shared descendants are visited once.
    let names = serde_json::json!(ids.map(SegmentId::hex).collect::<Vec<_>>()).to_string();
    let sql = "WITH RECURSIVE down(id) AS (
           SELECT unhex(value) FROM json_each(?1)
           UNION SELECT s.id FROM down CROSS JOIN segment s ON s.parent = down.id),
         below(id) AS (
           SELECT l.message FROM down CROSS JOIN message_segment l ON l.segment = down.id
           UNION SELECT m.id FROM below CROSS JOIN message m ON m.parent = below.id)
         SELECT s.id FROM below CROSS JOIN session s ON s.head = below.id";
    let sessions: BTreeSet<SessionId> = query::rows(tx, sql, [names], |r| Ok(SessionId(r.get(0)?)))?;
    sessions.into_iter().try_for_each(|session| refresh_session(tx, session))
}

fn plan(path: Vec<Segment>) -> RestorePlan {
    let whole = path.iter().take_while(|s| s.rows.is_kept()).count();
    let usable = (1..=whole).rev().find(|n| path.get(n - 1).is_some_and(|s| s.end.is_kept())).unwrap_or(0);
    let mut lost = Vec::new();
    for segment in path.iter().skip(usable) {
        for (what, stored) in [("KV rows", &segment.rows), ("state", &segment.end)] {
            if let Stored::Missing { why } = stored {
                lost.push(Lost { segment: segment.id, what, why: why.clone() });
            }
        }
    }
    RestorePlan { path, usable, lost }
}
