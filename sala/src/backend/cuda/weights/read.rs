//! Reads rows and bytes of weights, from their files if possible, into memory from which a device copies them.

use std::fs::File;
use std::io::IoSliceMut;

use half::bf16;

use crate::backend::cuda::failed;
use crate::backend::{Result, WeightView, internal};
use crate::engine::protocol::Dtype;

/// Rows `from(first..)` as bf16, as many as fit.
pub(super) fn fill_rows<'v>(
    first: usize,
    inner: usize,
    from: &(dyn Fn(usize) -> Option<(&'v WeightView<'v>, usize)> + Sync + '_),
    to: &mut [u8],
) -> Result<()> {
    let row_bytes = inner * 2;
    let mut reads: Vec<Read<'_, '_>> = Vec::new();
    for (i, to) in to.chunks_exact_mut(row_bytes.max(1)).enumerate() {
        let (view, row) = from(first + i).ok_or_else(|| internal("matrix", "a row of no weight"))?;
        match (view.dtype, view.file) {
            (Dtype::Bf16, Some((file, start))) => {
                Read::add(&mut reads, file, start + (row * row_bytes) as u64, to);
            }
            _ => row_of(view, row, inner, to)?,
        }
    }
    reads.into_iter().try_for_each(Read::run)
}

fn row_of(view: &WeightView<'_>, row: usize, inner: usize, to: &mut [u8]) -> Result<()> {
    let value = view.dtype.size();
    let data = view.data.get(row * inner * value..).and_then(|d| d.get(..inner * value));
    let data = data.ok_or_else(|| internal("matrix", "a weight shorter than its shape"))?;
    match view.dtype {
        Dtype::Bf16 => to.copy_from_slice(data),
        Dtype::F32 => {
            for (to, x) in to.chunks_exact_mut(2).zip(data.chunks_exact(4)) {
                let x = f32::from_le_bytes([x[0], x[1], x[2], x[3]]);
                to.copy_from_slice(&bf16::from_f32(x).to_le_bytes());
            }
        }
        Dtype::U32 | Dtype::U8 => return Err(internal("matrix", "a weight of whole numbers")),
    }
    Ok(())
}

/// Bytes of weights from an offset on; one read covers neighbours in a file.
pub(super) fn fill_parts<'v, 'b>(parts: impl Iterator<Item = (&'v WeightView<'v>, usize, &'b mut [u8])>) -> Result<()> {
    let mut reads: Vec<Read<'v, 'b>> = Vec::new();
    for (view, at, to) in parts {
        match (view.file, view.data.get(at..at + to.len())) {
            (_, None) => return Err(internal("matrix", "a weight shorter than its shape")),
            (Some((file, start)), Some(_)) => Read::add(&mut reads, file, start + at as u64, to),
            (None, Some(data)) => to.copy_from_slice(data),
        }
    }
    reads.into_iter().try_for_each(Read::run)
}

/// Neighbouring bytes of a file, and their destinations. A read avoids the page faults of a map, and its small reads
/// from the disk.
struct Read<'f, 'b> {
    file: &'f File,
    at: u64,
    end: u64,
    into: Vec<IoSliceMut<'b>>,
}

const MOST_PLACES: usize = 512;

impl<'f, 'b> Read<'f, 'b> {
    /// Adds bytes of `file` from `at` on with destination `to`: to the read that ends there, or as a new one.
    fn add(reads: &mut Vec<Read<'f, 'b>>, file: &'f File, at: u64, to: &'b mut [u8]) {
        let end = at + to.len() as u64;
        let before = reads.iter_mut().find(|r| r.end == at && std::ptr::eq(r.file, file) && r.into.len() < MOST_PLACES);
        match before {
            Some(read) => {
                read.end = end;
                read.into.push(IoSliceMut::new(to));
            }
            None => reads.push(Read { file, at, end, into: vec![IoSliceMut::new(to)] }),
        }
    }

    fn run(mut self) -> Result<()> {
        let say = |cause: &dyn std::fmt::Display| failed("reading weights", cause);
        let (mut into, mut at) = (self.into.as_mut_slice(), self.at);
        while !into.is_empty() {
            match rustix::io::preadv(self.file, into, at) {
                Ok(0) => return Err(say(&"a file is shorter than it was; download it again")),
                Ok(n) => {
                    at += n as u64;
                    IoSliceMut::advance_slices(&mut into, n);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(say(&e)),
            }
        }
        Ok(())
    }
}
