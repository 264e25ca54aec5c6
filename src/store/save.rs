//! Saves model state. Files are written and synced under names of this process, then renamed to their places, then the
//! directory is synced. Finally a transaction names the checksums of those that are still in place.
//!
//! Several processes may save one segment at once, and their files differ: a file is placed or removed only while this
//! process may write the database, and never if a row names one. On a conflict the save is repeated once. Text never
//! waits for a file's bytes or a directory's sync.
//!
//! A segment file without a row is garbage. A file is created only under the shared writing lock, so that the
//! exclusive owner of that lock may remove such files.

use std::fs::File;
use std::path::PathBuf;

use rusqlite::{Transaction, params};

use super::database::Store;
use super::error::{Result, StoreError};
use super::format::{self, FileKind};
use super::recorded::is_named;
use super::segment::SegmentId;
use super::sessions::WRITTEN;
use super::state::refresh_after;
use crate::engine::protocol::{ImageTensor, StateImage};

/// Size of one write. Large enough for full speed, small enough for a prompt stop.
const WRITE_BYTES: usize = 8 << 20;
const OUT_AT_ONCE: usize = 64;

/// A file that is on disk, but not in its place and not named by the database.
pub(super) struct Written {
    id: SegmentId,
    kind: FileKind,
    root: [u8; 32],
    bytes: u64,
    unfinished: PathBuf,
    /// Device and inode, wherever it lies: [`super::Look::identity`].
    identity: (u64, u64),
}

impl Store {
    /// While held, other processes do not take files without a row for garbage. Waits for a sweep, which is short.
    pub(super) fn announce_writing(&self) -> Option<File> {
        // Without locks (some network file systems) no process sweeps either.
        self.layout.open_lock("writing").ok().filter(|lock| lock.lock_shared().is_ok())
    }

    /// Writes the state of recorded segments and names it in one transaction. On error none of it is kept.
    pub fn save_images(&self, images: &[(SegmentId, StateImage)]) -> Result<()> {
        let _writing = self.announce_writing();
        match self.write_and_name(images) {
            // Files that the other process has named since stay.
            Err(StoreError::PlaceTaken { .. }) => self.write_and_name(images),
            result => result,
        }
    }

    fn write_and_name(&self, images: &[(SegmentId, StateImage)]) -> Result<()> {
        let mut written = Vec::new();
        let result = self.write_images(images, &mut written).and_then(|()| self.name_files(&written));
        result.inspect_err(|_| self.forget_files(&written))
    }

    fn write_images(&self, images: &[(SegmentId, StateImage)], written: &mut Vec<Written>) -> Result<()> {
        self.require_room(bytes_of(images))?;
        for (i, (id, image)) in images.iter().enumerate() {
            let lost = |why: String| StoreError::StateLost { id: *id, why };
            image.arrived().map_err(|why| lost(format!("it did not come from the device: {why}")))?;
            let roots = self.roots(id)?;
            if let Some(parent) = roots.parent.map(SegmentId) {
                // Rows are useless without all rows before them.
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
                written.push(self.write_file(id, FileKind::Rows, image.rows.start, image.rows.rows, &tensors)?);
            }
            if let (None, Some(end)) = (roots.end, &image.end) {
                let tensors: Vec<&ImageTensor> = end.tensors.iter().collect();
                written.push(self.write_file(id, FileKind::End, end.position, 0, &tensors)?);
            }
        }
        Ok(())
    }

    pub(super) fn write_file(
        &self,
        id: &SegmentId,
        kind: FileKind,
        start: u64,
        rows: u64,
        tensors: &[&ImageTensor],
    ) -> Result<Written> {
        let head = format::head(kind, id, start, rows, tensors);
        let head = head.map_err(|why| StoreError::StateLost { id: *id, why })?;
        let unfinished = self.layout.unfinished(id, kind);
        let write = || -> std::io::Result<(u64, u64)> {
            let mut file = self.disk.create(&unfinished)?;
            file.write(&head.bytes)?;
            for tensor in tensors {
                for part in tensor.data.chunks(WRITE_BYTES) {
                    file.write(part)?;
                }
            }
            file.sync()?;
            Ok(self.disk.look(&unfinished)?.identity)
        };
        match write() {
            Ok(identity) => {
                Ok(Written { id: *id, kind, root: head.root, bytes: head.total_bytes, unfinished, identity })
            }
            Err(e) => {
                let _ = self.disk.remove(&unfinished);
                Err(StoreError::io("write", &unfinished)(e))
            }
        }
    }

    pub(super) fn forget_files(&self, written: &[Written]) {
        for file in written {
            // The next start removes the rest.
            let _ = self.disk.remove(&file.unfinished);
        }
        // Some may be in place already, and another process may place its own until this one can write.
        let placed = written.iter().filter(|file| self.is_in_place(file));
        let placed: Vec<_> = placed.map(|file| (file.id, file.kind, file)).collect();
        self.remove_unnamed(&placed, |file| self.is_in_place(file));
    }

    /// Removes segments' files, except those that rows name, if they are still `meant` while no other process can
    /// write. Returns the removed ones; a remaining file without a row is removed some days later.
    pub(super) fn remove_unnamed<T: Copy>(
        &self,
        files: &[(SegmentId, FileKind, T)],
        meant: impl Fn(T) -> bool,
    ) -> Vec<T> {
        let mut gone = Vec::new();
        for some in files.chunks(OUT_AT_ONCE) {
            let out = self.exclusively(|tx| {
                let mut out = Vec::new();
                for (id, kind, of) in some {
                    if is_named(tx, id, *kind)? != Some(true) && meant(*of) && self.put_out(id, *kind).is_ok() {
                        out.push((self.layout.leaving(id, *kind), *of));
                    }
                }
                Ok(out)
            });
            let Ok(out) = out else { break };
            // Removing a large file takes time; other processes can write their texts meanwhile.
            gone.extend(out.into_iter().filter(|(file, _)| self.disk.remove(file).is_ok()).map(|(_, of)| of));
        }
        gone
    }

    fn put_out(&self, id: &SegmentId, kind: FileKind) -> std::io::Result<()> {
        match self.disk.rename(&self.layout.file(id, kind), &self.layout.leaving(id, kind)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    fn is_in_place(&self, file: &Written) -> bool {
        let found = self.disk.look(&self.layout.file(&file.id, file.kind));
        found.is_ok_and(|look| look.identity == file.identity)
    }

    pub(super) fn file_root(&self, id: &SegmentId, kind: FileKind) -> Result<[u8; 32]> {
        let root = self.roots(id)?.of(kind);
        root.ok_or_else(|| StoreError::StateLost { id: *id, why: "it is not kept".into() })
    }

    /// Moves files to their places and names them. On error none of them is kept.
    pub(super) fn name_files(&self, written: &[Written]) -> Result<()> {
        if written.is_empty() {
            return Ok(());
        }
        self.exclusively(|tx| written.iter().try_for_each(|file| self.place(tx, file)))?;
        let dir = &self.layout.segments;
        self.disk.sync_dir(dir).map_err(StoreError::io("sync", dir))?;
        for late in self.transaction(|tx| self.name(tx, written))? {
            let _ = self.disk.remove(&late.unfinished);
        }
        Ok(())
    }

    fn place(&self, tx: &Transaction<'_>, file: &Written) -> Result<()> {
        match is_named(tx, &file.id, file.kind)? {
            None => Err(StoreError::NoSegment { id: file.id }),
            Some(true) => Ok(()),
            Some(false) => {
                let renamed = self.disk.rename(&file.unfinished, &self.layout.file(&file.id, file.kind));
                renamed.map_err(StoreError::io("rename", &file.unfinished))
            }
        }
    }

    /// Records the checksums, which makes the files the segments' state. Returns those that another process has named.
    fn name<'a>(&self, tx: &Transaction<'_>, written: &'a [Written]) -> Result<Vec<&'a Written>> {
        let mut late = Vec::new();
        for file in written {
            let Written { id, kind, root, bytes, .. } = file;
            match is_named(tx, id, *kind)? {
                None => return Err(StoreError::NoSegment { id: *id }),
                Some(true) => late.push(file),
                // The file there now belongs to another process and may disappear.
                Some(false) if !self.is_in_place(file) => return Err(StoreError::PlaceTaken { id: *id }),
                Some(false) => {
                    let k = kind.extension();
                    let sql = format!("UPDATE segment SET {k}_root = ?2, {k}_bytes = ?3, {k}_why = '' WHERE id = ?1");
                    tx.prepare_cached(&sql)?.execute(params![id.0, root, bytes])?;
                    count_written(tx, id, *bytes)?;
                }
            }
        }
        refresh_after(tx, written.iter().map(|file| &file.id))?;
        Ok(late)
    }

    pub(super) fn require_room(&self, need_bytes: u64) -> Result<()> {
        let root = &self.layout.root;
        let free = self.disk.free_bytes(root).map_err(StoreError::io("read the free space of", root))?;
        let reserve_bytes = self.limits.min_free_bytes;
        let free_bytes = free.saturating_sub(reserve_bytes);
        if need_bytes > free_bytes {
            return Err(StoreError::NoRoom { need_bytes, free_bytes, reserve_bytes });
        }
        Ok(())
    }

    /// Records why a segment has no state, for `plan_restore`. Best effort.
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

/// Adds to the bytes written for the session that a segment belongs to.
fn count_written(tx: &Transaction<'_>, id: &SegmentId, bytes: u64) -> Result<()> {
    tx.prepare_cached(
        "WITH RECURSIVE down(id) AS (
           SELECT ?1 UNION SELECT s.id FROM down CROSS JOIN segment s ON s.parent = down.id)
         INSERT INTO property
         SELECT ?2 || ' ' || m.session, ?3 FROM down
           CROSS JOIN message_segment l ON l.segment = down.id CROSS JOIN message m ON m.id = l.message LIMIT 1
         ON CONFLICT(name) DO UPDATE SET value = value + excluded.value",
    )?
    .execute(params![id.0, WRITTEN, bytes])?;
    Ok(())
}

/// Bytes of the files of this state, about.
pub(super) fn bytes_of(images: &[(SegmentId, StateImage)]) -> u64 {
    images.iter().map(|(_, image)| image.bytes() + 256 * image.tensors().count() as u64).sum()
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::commit::Change;
    use super::super::database::Limits;
    use super::super::disk::RealDisk;
    use super::super::segment::{NewSegment, SegmentKind, TextBoundary};
    use super::*;
    use crate::engine::protocol::{Dtype, RowsImage};

    fn rows(value: u8) -> RowsImage {
        let k = ImageTensor { name: "k.0".into(), dtype: Dtype::U8, shape: vec![2, 8], data: vec![value; 16].into() };
        RowsImage { start: 0, rows: 2, tensors: vec![k], segment: None }
    }

    fn open(root: &Path) -> Store {
        let limits = Limits { min_free_bytes: 0, reserve_bytes: 4096, ..Limits::default() };
        Store::open(root, Arc::new(RealDisk), limits).unwrap()
    }

    fn record(store: &Store) -> SegmentId {
        let segment = NewSegment {
            fingerprint: "m".into(),
            parent: None,
            start: 0,
            prompt: vec![1, 2],
            completion: Vec::new(),
            boundary: TextBoundary::of("one two"),
            kind: SegmentKind::Turn,
        };
        let id = segment.id();
        store.apply(&[Change::AddSegment(Box::new(segment))]).unwrap();
        id
    }

    /// Writes rows for it, neither in place nor named.
    fn write(store: &Store, id: &SegmentId, value: u8) -> Written {
        let rows = rows(value);
        store.write_file(id, FileKind::Rows, 0, 2, &format::in_file_order(&rows.tensors)).unwrap()
    }

    #[test]
    fn a_file_that_came_to_the_place_of_one_meanwhile_is_not_removed_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let (store, other) = (open(dir.path()), open(dir.path()));
        let id = record(&store);
        let ours = [write(&store, &id, 1)];
        store.exclusively(|tx| store.place(tx, &ours[0])).unwrap();
        let (place, theirs) = (store.layout.file(&id, FileKind::Rows), dir.path().join("theirs"));
        std::fs::write(&theirs, "another process's").unwrap();
        std::thread::scope(|scope| {
            let forgets = other.exclusively(|_| {
                let forgets = scope.spawn(|| store.forget_files(&ours));
                // The writer finds its own file in place and waits for the database.
                std::thread::sleep(Duration::from_millis(200));
                std::fs::rename(&theirs, &place).unwrap();
                Ok(forgets)
            });
            forgets.unwrap().join().unwrap();
        });
        assert_eq!(std::fs::read_to_string(&place).unwrap(), "another process's");
        // Its own file is removed.
        let ours = [write(&store, &id, 1)];
        store.exclusively(|tx| store.place(tx, &ours[0])).unwrap();
        store.forget_files(&ours);
        assert!(!place.exists());
    }

    #[test]
    fn two_writers_of_one_process_write_the_same_segment() {
        let dir = tempfile::tempdir().unwrap();
        let (store, other) = (open(dir.path()), open(dir.path()));
        let id = record(&store);
        let (first, second) = ([write(&store, &id, 1)], [write(&other, &id, 2)]);
        store.name_files(&first).unwrap();
        other.name_files(&second).unwrap();
        assert_eq!(other.read_rows(&id).unwrap().tensors[0].data, rows(1).tensors[0].data);
        assert_eq!(std::fs::read_dir(&store.layout.segments).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_a_row_names_is_neither_replaced_nor_removed() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let id = record(&store);
        // The late file of another process, which found no name when it began to write.
        let late = [write(&store, &id, 2)];
        let bytes = late[0].bytes;
        let aside = dir.path().join("aside");
        let unfinished = late[0].unfinished.clone();
        std::fs::rename(&unfinished, &aside).unwrap();

        store.save_images(&[(id, StateImage { rows: rows(1), end: None })]).unwrap();
        std::fs::rename(&aside, &unfinished).unwrap();
        store.name_files(&late).unwrap();
        store.forget_files(&late);
        let is_first = || store.read_rows(&id).unwrap().tensors[0].data == rows(1).tensors[0].data;
        assert!(is_first());
        // A file that lost its place before it was named is not named.
        assert!(store.declare_missing(&[(id, FileKind::Rows, "dropped".to_owned())]));
        let e = store.transaction(|tx| store.name(tx, &late).map(drop)).unwrap_err();
        assert!(e.to_string().contains("another process saved or removed it"), "{e}");
        store.save_images(&[(id, StateImage { rows: rows(1), end: None })]).unwrap();
        // The state was dropped and saved again before its file was removed.
        assert_eq!(store.remove_files(&[(id, FileKind::Rows, bytes)]).files, 0);
        assert!(is_first());
        assert_eq!(std::fs::read_dir(&store.layout.segments).unwrap().count(), 1);
        // A file without a row is removed.
        assert!(store.declare_missing(&[(id, FileKind::Rows, "dropped".to_owned())]));
        assert_eq!(store.remove_files(&[(id, FileKind::Rows, bytes)]).files, 1);
        assert_eq!(std::fs::read_dir(&store.layout.segments).unwrap().count(), 0);
    }
}
