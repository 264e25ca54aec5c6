//! KV rows on their way from a segment file to a device: read by several threads in pieces, each checked before use.
//!
//! The head of the file is checked when it is opened. A later fault names its segment, so that the store can declare
//! it missing once the restore has failed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

use super::database::{Store, lock};
use super::disk::Disk;
use super::error::{Result, StoreError};
use super::format::{self, CHUNK_BYTES, Fault, FileKind, OpenFile};
use super::segment::{Segment, SegmentId};
use super::state::RestorePlan;
use crate::engine::protocol::{
    CheckpointImage, Dtype, ImageTensor, PIECE_BYTES, RowSource, RowsFault, RowsPlace, SOURCE_BYTES, StatePart,
};

// A reader's piece has one checksum.
const _: () = assert!(CHUNK_BYTES == SOURCE_BYTES as u64);

#[derive(Debug)]
pub struct StoredRows {
    file: OpenFile,
    read: AtomicUsize,
}

impl StoredRows {
    /// Opens rows in a file that another process names. Checks its head, as in [`Store::open_path`].
    pub fn open(place: &RowsPlace, disk: Arc<dyn Disk>) -> Result<StoredRows, RowsFault> {
        let id = SegmentId(place.segment);
        let opened = format::open(&disk, &place.file, None, FileKind::Rows, &id, &place.checksum);
        opened.map(StoredRows::of).map_err(|fault| rows_fault(&id, fault))
    }

    fn of(file: OpenFile) -> StoredRows {
        StoredRows { file, read: AtomicUsize::new(0) }
    }

    pub fn bytes(&self) -> usize {
        let bytes = self.file.tensors.iter().map(|t| t.bytes).sum::<u64>();
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    fn fault(&self, why: String) -> RowsFault {
        rows_fault(&self.file.id, Fault { why, lasting: true })
    }

    /// Number of bytes read and checked so far, for progress. Some may be read twice.
    pub fn read_bytes(&self) -> usize {
        self.read.load(Ordering::Relaxed).min(self.bytes())
    }
}

fn rows_fault(id: &SegmentId, Fault { why, lasting }: Fault) -> RowsFault {
    RowsFault { segment: Some(id.0), part: StatePart::Rows, why, lasting }
}

impl RowSource for StoredRows {
    fn start(&self) -> u64 {
        self.file.start
    }

    fn rows(&self) -> u64 {
        self.file.rows
    }

    fn array(&self, name: &str) -> Option<(Dtype, Vec<usize>)> {
        let place = self.file.place(name)?;
        Some((place.dtype, place.shape.clone()))
    }

    fn fill(&self, name: &str, at: usize, into: &mut [u8]) -> Result<(), RowsFault> {
        // An opened file without this array lacks it permanently.
        let place = self.file.place(name).ok_or_else(|| self.fault(format!("there is no {name}")))?;
        self.file.read_into(place, at as u64, into).map_err(|fault| rows_fault(&self.file.id, fault))?;
        self.read.fetch_add(into.len(), Ordering::Relaxed);
        Ok(())
    }

    fn load(&self, name: &str) -> Result<ImageTensor, RowsFault> {
        let place = self.file.place(name).ok_or_else(|| self.fault(format!("there is no {name}")))?;
        // The file is as long as its header says, so this is bounded by the file's size.
        let bytes = usize::try_from(place.bytes).map_err(|e| self.fault(e.to_string()))?;
        let mut data = vec![0; bytes];
        data.par_chunks_mut(PIECE_BYTES)
            .enumerate()
            .try_for_each(|(i, piece)| self.fill(name, i * PIECE_BYTES, piece))?;
        Ok(place.image(data))
    }

    fn hand_over(&self) -> Option<RowsPlace> {
        self.pass_over();
        Some(RowsPlace { file: self.file.path.clone(), segment: self.file.id.0, checksum: self.file.root })
    }

    fn segment(&self) -> Option<[u8; 32]> {
        Some(self.file.id.0)
    }

    fn pass_over(&self) {
        self.read.store(self.bytes(), Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub struct Opened {
    pub plan: RestorePlan,
    /// Rows of the segments from number `have` up to `plan.usable`, consecutive.
    pub rows: Vec<Arc<StoredRows>>,
    /// State at the end of `plan.path[plan.usable - 1]`; `None` when nothing is usable.
    pub end: Option<CheckpointImage>,
}

impl Store {
    /// Opens the path that ends in `tip` as far as it is kept: the state at its end, and the rows of its segments from
    /// number `have` on (the caller has the others), left in their files. The reader of the rows checks their bytes
    /// and reports a fault with [`Store::note_fault`]. A damaged file is declared missing, one that cannot be read now
    /// counts as lost for this process, and the next earlier state is used; an empty result (`plan.usable == 0`) is no
    /// error.
    pub fn open_path(&self, tip: &SegmentId, have: usize) -> Result<Opened> {
        loop {
            let plan = self.plan_restore(tip)?;
            match self.open_files(plan.path.get(..plan.usable).unwrap_or_default(), have) {
                Ok(Some((rows, end))) => {
                    self.note_use(&plan.path);
                    return Ok(Opened { plan, rows, end });
                }
                // What turns out damaged or lost is missing from the next plan.
                Ok(None) => {}
                Err(StoreError::StateLost { id, why }) if self.leave_out(id, &why) => {}
                Err(e) => return Err(e),
            }
        }
    }

    fn open_files(
        &self,
        usable: &[Segment],
        have: usize,
    ) -> Result<Option<(Vec<Arc<StoredRows>>, Option<CheckpointImage>)>> {
        let Some(last) = usable.last() else { return Ok(Some((Vec::new(), None))) };
        // The small file first: if it is bad, the large ones of the later segments are not needed.
        let end = self.with_file(&last.id, FileKind::End, |file| file.read_end())?;
        if end.is_none() {
            return Ok(None);
        }
        let open =
            |segment: &Segment| self.with_file(&segment.id, FileKind::Rows, |file| Ok(Arc::new(StoredRows::of(file))));
        let rows: Option<Vec<_>> = usable.iter().skip(have).map(open).collect::<Result<_>>()?;
        Ok(rows.map(|rows| (rows, end)))
    }

    fn leave_out(&self, id: SegmentId, why: &str) -> bool {
        lock(&self.left_out).insert(id, why.to_owned()).is_none()
    }

    /// Declares the file of a failed restore missing; state with a fault that may pass, or that cannot be recorded,
    /// counts as lost for this process. Returns whether there was a file: then the path can be planned anew. An error
    /// if the state counted as lost before.
    pub fn note_fault(&self, fault: &RowsFault) -> Result<bool> {
        let Some(id) = fault.segment.map(SegmentId) else { return Ok(false) };
        let kind = match fault.part {
            StatePart::Rows => FileKind::Rows,
            StatePart::End => FileKind::End,
        };
        let recorded = fault.lasting && self.declare_missing(&[(id, kind, fault.why.clone())]);
        if recorded || self.leave_out(id, &fault.why) {
            Ok(true)
        } else {
            Err(StoreError::StateLost { id, why: fault.why.clone() })
        }
    }
}
