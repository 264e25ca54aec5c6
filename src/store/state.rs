//! Loading model state: which files a path needs, reading them, and the reaction to a damaged one.
//!
//! A faulty file is declared missing in the database before the caller gets the error, so that it is never tried
//! twice. Never writes files; `save.rs` does.

use std::collections::BTreeSet;

use rusqlite::params;

use super::database::{Store, lock};
use super::error::{Result, StoreError, is_damage};
use super::format::{self, Fault, FileKind};
use super::query;
use super::recorded::{KEPT, SEGMENT, forget, segment_row};
use super::segment::{Segment, SegmentId, SegmentKind, Stored, TextBoundary};
use super::summary::refresh_session;
use crate::core::transcript::SessionId;
use crate::engine::protocol::{CheckpointImage, RowsImage};

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

    pub fn replay(&self) -> &[Segment] {
        self.path.get(self.usable..).unwrap_or_default()
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

    /// The longest kept part of a document below a segment (`None`: at position 0) that `rendered` begins with:
    /// prefill stopped there. Imported state is not found by text.
    pub fn part_below(&self, parent: Option<&SegmentId>, fingerprint: &str, rendered: &str) -> Result<Option<Segment>> {
        let kind = SegmentKind::DocumentPart.code();
        let parts: Vec<(SegmentId, TextBoundary)> = self.read(|db| {
            let sql =
                "SELECT id, text_bytes, text_hash FROM segment WHERE parent IS ?1 AND fingerprint = ?2 AND kind = ?3
                 AND text_bytes < ?4 AND rows_root IS NOT NULL AND end_root IS NOT NULL AND origin IS NULL
                 ORDER BY text_bytes DESC";
            let (parent, bytes) = (parent.map(|id| id.0), rendered.len() as u64);
            query::rows(db, sql, params![parent, fingerprint, kind, bytes], |r| {
                Ok((SegmentId(r.get(0)?), TextBoundary { bytes: r.get(1)?, hash: r.get(2)? }))
            })
        })?;
        let is_next = |boundary: TextBoundary| {
            let text = usize::try_from(boundary.bytes).ok().and_then(|end| rendered.get(..end));
            text.is_some_and(|text| TextBoundary::of(text) == boundary)
        };
        let next = parts.into_iter().find(|(_, boundary)| is_next(*boundary));
        next.map_or(Ok(None), |(id, _)| self.segment(&id))
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
            for kind in [FileKind::Rows, FileKind::End] {
                let stored = match kind {
                    FileKind::Rows => &mut segment.rows,
                    FileKind::End => &mut segment.end,
                };
                let Stored::Kept { bytes } = *stored else {
                    continue;
                };
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
        self.declare_all_missing(&gone);
        Ok(plan(path))
    }

    /// The path that ends in `tip` as far as it is kept: the state at its end, and the results of `take` for the rows
    /// files of its segments from `have` on. A file that `take` finds damaged is declared missing and the path planned
    /// anew.
    pub(super) fn along_path<T>(
        &self,
        tip: &SegmentId,
        have: usize,
        take: impl Fn(&SegmentId, &[u8; 32], &std::path::Path) -> Result<T, Fault>,
    ) -> Result<(RestorePlan, Vec<T>, Option<CheckpointImage>)> {
        loop {
            let plan = self.plan_restore(tip)?;
            match self.take_plan(&plan, have, &take) {
                Ok((rows, end)) => {
                    self.note_use(&plan.path);
                    return Ok((plan, rows, end));
                }
                Err(Attempt::Again) => {}
                Err(Attempt::Failed(e)) => return Err(e),
            }
        }
    }

    fn take_plan<T>(
        &self,
        plan: &RestorePlan,
        have: usize,
        take: impl Fn(&SegmentId, &[u8; 32], &std::path::Path) -> Result<T, Fault>,
    ) -> Result<(Vec<T>, Option<CheckpointImage>), Attempt> {
        let usable = plan.path.get(..plan.usable).unwrap_or_default();
        let Some(last) = usable.last() else {
            return Ok((Vec::new(), None));
        };
        // The small file first: if it is bad, the large ones of the later segments are not needed.
        let end =
            self.attempt(&last.id, FileKind::End, |root, path| format::read_end(&*self.disk, path, &last.id, root))?;
        let rows = usable
            .iter()
            .skip(have)
            .map(|segment| self.attempt(&segment.id, FileKind::Rows, |root, path| take(&segment.id, root, path)));
        Ok((rows.collect::<Result<_, _>>()?, Some(end)))
    }

    /// KV rows of one segment; checked.
    ///
    /// # Errors
    /// [`StoreError::StateLost`], after declaring them missing if the fault is permanent.
    pub fn read_rows(&self, id: &SegmentId) -> Result<RowsImage> {
        self.attempt(id, FileKind::Rows, |root, path| format::read_rows(&*self.disk, path, id, root))
            .map_err(|a| a.into_error(self, id, FileKind::Rows))
    }

    pub fn read_end(&self, id: &SegmentId) -> Result<CheckpointImage> {
        self.attempt(id, FileKind::End, |root, path| format::read_end(&*self.disk, path, id, root))
            .map_err(|a| a.into_error(self, id, FileKind::End))
    }

    pub(super) fn attempt<T>(
        &self,
        id: &SegmentId,
        kind: FileKind,
        read: impl FnOnce(&[u8; 32], &std::path::Path) -> Result<T, Fault>,
    ) -> Result<T, Attempt> {
        let Some(root) = self.roots(id).map_err(Attempt::Failed)?.of(kind) else {
            return Err(Attempt::Again);
        };
        read(&root, &self.layout.file(id, kind)).map_err(|fault| {
            if fault.lasting && self.declare_missing(id, kind, &fault.why) {
                Attempt::Again
            } else {
                Attempt::Failed(StoreError::StateLost { id: *id, why: fault.why })
            }
        })
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

    /// Marks a file as missing. Returns whether that was recorded; if not (a read-only directory), the next use finds
    /// the same fault again, which is slower but not wrong.
    pub(super) fn declare_missing(&self, id: &SegmentId, kind: FileKind, why: &str) -> bool {
        self.declare_all_missing(&[(*id, kind, why.to_owned())])
    }

    pub(super) fn declare_all_missing(&self, gone: &[(SegmentId, FileKind, String)]) -> bool {
        if gone.is_empty() {
            return true;
        }
        self.transaction(|tx| {
            for (id, kind, why) in gone {
                forget(tx, id, *kind, why)?;
            }
            let ids: Vec<SegmentId> = gone.iter().map(|(id, ..)| *id).collect();
            for session in sessions_after(tx, &ids)? {
                refresh_session(tx, session)?;
            }
            Ok(())
        })
        .is_ok()
    }
}

pub(super) enum Attempt {
    /// The segment has been declared missing: plan anew.
    Again,
    Failed(StoreError),
}

impl Attempt {
    fn into_error(self, store: &Store, id: &SegmentId, kind: FileKind) -> StoreError {
        match self {
            Attempt::Failed(e) => e,
            Attempt::Again => {
                let stored = store.segment(id).ok().flatten().map(|s| match kind {
                    FileKind::Rows => s.rows,
                    FileKind::End => s.end,
                });
                let why = match stored {
                    Some(Stored::Missing { why }) => why,
                    Some(Stored::Kept { .. }) | None => "it is not kept".into(),
                };
                StoreError::StateLost { id: *id, why }
            }
        }
    }
}

/// Sessions with a head in one of these segments or below: their `state` column depends on it.
pub(super) fn sessions_after(tx: &rusqlite::Transaction<'_>, ids: &[SegmentId]) -> Result<BTreeSet<SessionId>> {
    // One query, so that shared descendants are visited once.
    let names = serde_json::json!(ids.iter().map(SegmentId::hex).collect::<Vec<_>>()).to_string();
    let sql = "WITH RECURSIVE down(id) AS (
           SELECT unhex(value) FROM json_each(?1)
           UNION SELECT s.id FROM down CROSS JOIN segment s ON s.parent = down.id),
         below(id) AS (
           SELECT l.message FROM down CROSS JOIN message_segment l ON l.segment = down.id
           UNION SELECT m.id FROM below CROSS JOIN message m ON m.parent = below.id)
         SELECT s.id FROM below CROSS JOIN session s ON s.head = below.id";
    query::rows(tx, sql, [names], |r| Ok(SessionId(r.get(0)?)))
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
