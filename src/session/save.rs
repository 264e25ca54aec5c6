//! Saving model state: files first (write, sync, rename, sync directory), then the transaction that names their
//! checksums. A segment file without a name in the database is garbage, and is made only under the writing lock, so that
//! whoever holds that lock alone may remove such files.

use std::fs::File;

use rusqlite::{Transaction, params};

use super::disk::DiskFile;
use super::error::{Result, StoreError};
use super::format::{self, FileKind, Head};
use super::segment::SegmentId;
use super::state::sessions_behind;
use super::store::Store;
use super::summary::refresh_session;
use crate::protocol::engine::{ImageTensor, StateImage};

/// Size of one write. Large enough for full speed, small enough that a stop is noticed.
const WRITE_BYTES: usize = 8 << 20;

/// A file that is in place but not yet named by the database.
pub(super) struct Written {
    pub id: SegmentId,
    pub kind: FileKind,
    pub root: [u8; 32],
    pub bytes: u64,
}

/// Says to other processes that unnamed files may be somebody's work in progress.
#[derive(Debug)]
pub(super) struct Writing(Option<File>);

impl Drop for Writing {
    fn drop(&mut self) {
        if let Some(file) = &self.0 {
            let _ = File::unlock(file);
        }
    }
}

impl Store {
    /// Announces that files are about to be made. Waits for a sweep in progress, which is short.
    pub(super) fn announce_writing(&self) -> Writing {
        // Without locks (some network file systems) nobody sweeps either.
        let file = self.layout.open_lock("writing").ok();
        Writing(file.filter(|f| f.lock_shared().is_ok()))
    }

    /// Writes the state of recorded segments and names it in one transaction. Nothing is kept of any of them on error.
    ///
    /// # Errors
    /// [`StoreError::NoRoom`], [`StoreError::StateLost`] when the segment cannot have state, I/O errors.
    pub fn save_images(&self, images: &[(SegmentId, StateImage)]) -> Result<()> {
        let _writing = self.announce_writing();
        let mut written = Vec::new();
        let result = self.write_images(images, &mut written).and_then(|()| self.name_files(&written));
        if result.is_err() {
            self.forget_files(&written);
        }
        result
    }

    fn write_images(&self, images: &[(SegmentId, StateImage)], written: &mut Vec<Written>) -> Result<()> {
        let need: u64 = images.iter().map(|(_, image)| image_bytes(image)).sum();
        self.require_room(need)?;
        for (i, (id, image)) in images.iter().enumerate() {
            let lost = |why: String| StoreError::StateLost { id: *id, why };
            image.arrived().map_err(|why| lost(format!("it did not come from the device: {why}")))?;
            let roots = self.roots(id)?;
            if let Some(parent) = roots.parent.map(SegmentId) {
                // Rows without all rows before them are of no use.
                let in_this_save = images.iter().take(i).any(|(other, _)| *other == parent);
                if !in_this_save && self.roots(&parent)?.rows.is_none() {
                    let why =
                        "earlier state of this conversation is not kept; the next start reads it again, and keeps it";
                    return Err(lost(why.into()));
                }
            }
            if (image.rows.start, image.rows.start + image.rows.rows) != (roots.start, roots.stop)
                || image.end.as_ref().is_some_and(|e| e.position != roots.stop)
            {
                return Err(lost(format!(
                    "its image covers {}+{} tokens, the segment {}..{}",
                    image.rows.start, image.rows.rows, roots.start, roots.stop
                )));
            }
            if roots.rows.is_none() {
                let tensors = format::in_file_order(&image.rows.tensors);
                let (start, rows) = (image.rows.start, image.rows.rows);
                let head = format::head(FileKind::Rows, id, start, rows, &tensors).map_err(lost)?;
                written.push(self.write_file(id, FileKind::Rows, &head, &tensors)?);
            }
            if let (None, Some(end)) = (roots.end, &image.end) {
                let tensors: Vec<&ImageTensor> = end.tensors.iter().collect();
                let head = format::head(FileKind::End, id, end.position, 0, &tensors).map_err(lost)?;
                written.push(self.write_file(id, FileKind::End, &head, &tensors)?);
            }
        }
        if !written.is_empty() {
            let dir = &self.layout.segments;
            self.disk.sync_dir(dir).map_err(StoreError::io("sync", dir))?;
        }
        Ok(())
    }

    pub(super) fn write_file(
        &self,
        id: &SegmentId,
        kind: FileKind,
        head: &Head,
        tensors: &[&ImageTensor],
    ) -> Result<Written> {
        self.place_file(id, kind, |file| {
            file.write(&head.bytes)?;
            for tensor in tensors {
                for part in tensor.data.chunks(WRITE_BYTES) {
                    file.write(part)?;
                }
            }
            Ok(())
        })?;
        Ok(Written { id: *id, kind, root: head.root, bytes: head.total_bytes })
    }

    /// Makes a segment's file with what `fill` writes, synced, under its name. The directory is not synced yet.
    fn place_file(
        &self,
        id: &SegmentId,
        kind: FileKind,
        fill: impl FnOnce(&mut dyn DiskFile) -> std::io::Result<()>,
    ) -> Result<()> {
        let unfinished = self.layout.unfinished(id, kind);
        let write = || -> std::io::Result<()> {
            let mut file = self.disk.create(&unfinished)?;
            fill(&mut *file)?;
            file.sync()
        };
        let done = write().map_err(StoreError::io("write", &unfinished)).and_then(|()| {
            let path = self.layout.file(id, kind);
            self.disk.rename(&unfinished, &path).map_err(StoreError::io("rename", &unfinished))
        });
        if done.is_err() {
            let _ = self.disk.remove(&unfinished);
        }
        done
    }

    /// Removes files that were written but could not be named.
    pub(super) fn forget_files(&self, written: &[Written]) {
        for file in written {
            // Another process may have named the same file meanwhile. What cannot be removed now goes at the next start.
            if let Err(StoreError::StateLost { .. } | StoreError::NoSegment { .. }) =
                self.file_root(&file.id, file.kind)
            {
                let _ = self.disk.remove(&self.layout.file(&file.id, file.kind));
            }
        }
    }

    /// The checksum under which a kept file is known.
    pub(super) fn file_root(&self, id: &SegmentId, kind: FileKind) -> Result<[u8; 32]> {
        let root = self.roots(id)?.of(kind);
        root.ok_or_else(|| StoreError::StateLost { id: *id, why: "it is not kept".into() })
    }

    fn name_files(&self, written: &[Written]) -> Result<()> {
        if written.is_empty() {
            return Ok(());
        }
        self.transaction(|tx| name_in(tx, written))
    }

    pub(super) fn require_room(&self, need_bytes: u64) -> Result<()> {
        let root = &self.layout.root;
        let free = self.disk.free_bytes(root).map_err(StoreError::io("ask for free space of", root))?;
        let reserve_bytes = self.limits.min_free_bytes;
        let free_bytes = free.saturating_sub(reserve_bytes);
        if need_bytes > free_bytes {
            return Err(StoreError::NoRoom { need_bytes, free_bytes, reserve_bytes });
        }
        Ok(())
    }

    /// Records why a segment has no state, for `plan_restore` to tell. Best effort.
    pub(super) fn note_why(&self, images: &[(SegmentId, StateImage)], why: &str) {
        let _ = self.transaction(|tx| {
            for (id, _) in images {
                tx.execute("UPDATE segment SET rows_why = ?2 WHERE id = ?1 AND rows_root IS NULL", params![id.0, why])?;
                tx.execute("UPDATE segment SET end_why = ?2 WHERE id = ?1 AND end_root IS NULL", params![id.0, why])?;
            }
            Ok(())
        });
    }
}

/// Names files that are in place: from this commit on they are the segments' state.
pub(super) fn name_in(tx: &Transaction<'_>, written: &[Written]) -> Result<()> {
    for file in written {
        let k = file.kind.extension();
        tx.prepare_cached(&format!("UPDATE segment SET {k}_root = ?2, {k}_bytes = ?3, {k}_why = '' WHERE id = ?1"))?
            .execute(params![file.id.0, file.root, file.bytes])?;
    }
    let ids: Vec<SegmentId> = written.iter().map(|file| file.id).collect();
    for session in sessions_behind(tx, &ids)? {
        refresh_session(tx, session)?;
    }
    Ok(())
}

/// Bytes an image takes on disk, about.
pub(super) fn image_bytes(image: &StateImage) -> u64 {
    image.bytes() + 256 * image.tensors().count() as u64
}
