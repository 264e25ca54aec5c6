//! Reads an opened file: whole tensors and ranges of them, each chunk checked.

use std::ops::Range;
use std::path::Path;

use rayon::prelude::*;

use super::{Fault, FileKind, Kind, OpenFile, TensorPlace, open};
use crate::engine::protocol::{CheckpointImage, ImageTensor, RowsImage};
use crate::store::disk::Disk;
use crate::store::segment::SegmentId;

impl OpenFile {
    pub(in crate::store) fn kinds(&self) -> Vec<Kind> {
        let rows = |shape: &[usize]| shape.get(1..).unwrap_or_default().to_vec();
        let shape = |p: &TensorPlace| if self.rows > 0 { rows(&p.shape) } else { p.shape.clone() };
        let kind = |p: &TensorPlace| Kind { name: p.name.clone(), dtype: p.dtype, shape: shape(p) };
        let mut kinds: Vec<Kind> = self.tensors.iter().map(kind).collect();
        kinds.sort_by(|a, b| a.name.cmp(&b.name));
        kinds
    }

    pub(in crate::store) fn place(&self, name: &str) -> Option<&TensorPlace> {
        self.tensors.iter().find(|t| t.name == name)
    }

    /// Reads checked bytes of a tensor from `at` on. Whole chunks are read directly into place; partial ones use a
    /// copy.
    pub(in crate::store) fn read_into(
        &self,
        disk: &dyn Disk,
        path: &Path,
        place: &TensorPlace,
        at: u64,
        into: &mut [u8],
    ) -> Result<(), Fault> {
        let end = at.saturating_add(into.len() as u64);
        if end > place.bytes {
            return Err(Fault::damaged("its file is shorter than it was"));
        }
        if at.is_multiple_of(self.chunk) && (end.is_multiple_of(self.chunk) || end == place.bytes) {
            disk.read_into(path, place.offset + at, into).map_err(|e| Fault::io(&e))?;
            self.check(place, at / self.chunk, into)
        } else {
            into.copy_from_slice(&self.read_range(disk, path, place, at..end)?);
            Ok(())
        }
    }

    fn check(&self, place: &TensorPlace, first: u64, data: &[u8]) -> Result<(), Fault> {
        for (i, chunk) in data.chunks(self.chunk as usize).enumerate() {
            let index = place.first_chunk + first as usize + i;
            if self.hashes.get(index).map(|h| h.as_slice()) != Some(blake3::hash(chunk).as_bytes().as_slice()) {
                return Err(Fault::damaged(&format!("part of {} does not match its checksum", place.name)));
            }
        }
        Ok(())
    }

    pub(in crate::store) fn read(&self, disk: &dyn Disk, path: &Path) -> Result<Vec<ImageTensor>, Fault> {
        self.tensors
            .par_iter()
            .map(|place| {
                let data = self.read_range(disk, path, place, 0..place.bytes)?;
                Ok(ImageTensor {
                    name: place.name.clone(),
                    dtype: place.dtype,
                    shape: place.shape.clone(),
                    data: data.into(),
                })
            })
            .collect()
    }

    fn read_range(
        &self,
        disk: &dyn Disk,
        path: &Path,
        place: &TensorPlace,
        range: Range<u64>,
    ) -> Result<Vec<u8>, Fault> {
        let first = range.start / self.chunk;
        let last = range.end.min(place.bytes).div_ceil(self.chunk).max(first);
        let from = first * self.chunk;
        let to = (last * self.chunk).min(place.bytes);
        let mut data = disk.read_at(path, place.offset + from, to.saturating_sub(from)).map_err(|e| Fault::io(&e))?;
        self.check(place, first, &data)?;
        if from != range.start || to != range.end {
            data.truncate((range.end - from) as usize);
            data.drain(..(range.start - from) as usize);
        }
        Ok(data)
    }
}

pub(in crate::store) fn read_rows(
    disk: &dyn Disk,
    path: &Path,
    id: &SegmentId,
    root: &[u8; 32],
) -> Result<RowsImage, Fault> {
    let file = open(disk, path, FileKind::Rows, id, root)?;
    let tensors = file.read(disk, path)?;
    Ok(RowsImage { start: file.start, rows: file.rows, tensors, segment: Some(id.0) })
}

pub(in crate::store) fn read_end(
    disk: &dyn Disk,
    path: &Path,
    id: &SegmentId,
    root: &[u8; 32],
) -> Result<CheckpointImage, Fault> {
    let file = open(disk, path, FileKind::End, id, root)?;
    Ok(CheckpointImage { position: file.start, tensors: file.read(disk, path)? })
}
