//! The trait's buffers in device memory.
//!
//! Layouts: a matrix is row-major `[out, inner]` bf16, or packed ([`crate::backend::forms`]); gate and up rows are
//! interleaved in eights (packed row `16b + r` is gate row `8b + r` for r < 8, up row `8b + r − 8` otherwise), so that
//! one block of the SwiGLU GEMM holds both halves. Norm weights are f32. No buffer ever moves.

use std::borrow::Cow;
use std::sync::Arc;

use half::bf16;

use super::device::{Account, Device, DeviceBuffer};
use super::driver::DevicePtr;
use super::shape;
use super::tables::{Entry, TableId};
use crate::backend::sections::Section;
use crate::backend::{BufKind, Form, MAX_VERIFY_ROWS, Result};
use crate::engine::protocol::{Dtype, ImageTensor, Precision};

/// The only head width that the kernels support.
pub(super) const HEAD: usize = 128;

const ALIGNED: usize = 256;

/// `[rows, width]`
pub struct Buf {
    memory: Arc<DeviceBuffer>,
    at: usize,
    /// Start of the free part of that memory while these rows are in use.
    spare: usize,
    pub(super) width: usize,
    pub(super) kind: BufKind,
    pub(super) rows: usize,
}

impl Buf {
    pub(super) fn with_rows(device: &Device, width: usize, kind: BufKind, rows: usize) -> Result<Self> {
        let spare = rows * width * size_of_kind(kind);
        let memory = Arc::new(device.zeroed("working buffers", spare, Account::Work)?);
        Ok(Buf { memory, at: 0, spare, width, kind, rows })
    }

    pub(super) fn alternating(
        device: &Device,
        groups: &[&[(usize, BufKind)]],
        prefill_rows: usize,
    ) -> Result<Vec<Vec<Self>>> {
        let bytes = |&(width, kind): &(usize, BufKind)| {
            (rows_of_kind(kind, prefill_rows) * width * size_of_kind(kind)).next_multiple_of(ALIGNED)
        };
        let sizes: Vec<usize> = groups.iter().map(|group| group.iter().map(bytes).sum()).collect();
        let most = sizes.iter().copied().max().unwrap_or_default();
        let memory = Arc::new(device.zeroed("working buffers", most, Account::Work)?);
        let group = |(group, spare): (&&[(usize, BufKind)], usize)| {
            let mut next = 0;
            let buf = |wanted: &(usize, BufKind)| {
                let at = next;
                next += bytes(wanted);
                let (width, kind) = *wanted;
                Buf { memory: Arc::clone(&memory), at, spare, width, kind, rows: rows_of_kind(kind, prefill_rows) }
            };
            group.iter().map(buf).collect()
        };
        Ok(groups.iter().zip(sizes).map(group).collect())
    }

    pub(super) fn bytes(&self) -> usize {
        self.rows * self.width * self.value_bytes()
    }

    pub(super) fn spare(&self, bytes: usize) -> Option<DevicePtr> {
        (self.spare + bytes <= self.memory.bytes()).then(|| self.memory.ptr() + self.spare as u64)
    }

    pub(super) fn whole(&self) -> (DevicePtr, usize) {
        let end = self.at + self.bytes();
        let until = if self.spare == end { self.memory.bytes() } else { end };
        (self.ptr(), until.saturating_sub(self.at))
    }

    pub(super) fn value_bytes(&self) -> usize {
        size_of_kind(self.kind)
    }

    pub(super) fn ptr(&self) -> DevicePtr {
        self.memory.ptr() + self.at as u64
    }

    pub(super) fn column(&self, column: usize) -> DevicePtr {
        self.ptr() + (column * self.value_bytes()) as u64
    }

    pub(super) fn row(&self, row: usize) -> DevicePtr {
        self.column(row * self.width)
    }

    pub(super) fn wide(&self, op: &'static str, width: usize) -> Result<DevicePtr> {
        match self.kind {
            BufKind::Residual | BufKind::Wide | BufKind::Logits if self.width >= width => Ok(self.ptr()),
            _ => Err(shape(op, format!("f32 [rows, {width}]"), format!("{:?} [rows, {}]", self.kind, self.width))),
        }
    }

    pub(super) fn narrow(&self, op: &'static str, width: usize) -> Result<DevicePtr> {
        match self.kind {
            BufKind::Activation if self.width >= width => Ok(self.ptr()),
            _ => Err(shape(op, format!("bf16 [rows, {width}]"), format!("{:?} [rows, {}]", self.kind, self.width))),
        }
    }
}

pub(super) fn rows_of_kind(kind: BufKind, prefill_rows: usize) -> usize {
    match kind {
        BufKind::Residual | BufKind::Activation | BufKind::Wide => prefill_rows.max(MAX_VERIFY_ROWS),
        BufKind::Logits => MAX_VERIFY_ROWS,
    }
}

fn size_of_kind(kind: BufKind) -> usize {
    match kind {
        BufKind::Activation => 2,
        BufKind::Residual | BufKind::Wide | BufKind::Logits => 4,
    }
}

/// `[out, inner]`: parts stacked along the out axis, each in its own form.
pub struct Matrix {
    pub(super) parts: Vec<Part>,
    pub(super) out: usize,
    pub(super) inner: usize,
    pub(super) sections: Vec<Section>,
    /// Key of this weight's spare e4m3 slices; 0 where there are none.
    pub(super) number: u64,
}

pub(super) struct Part {
    pub(super) memory: DeviceBuffer,
    pub(super) form: Form,
    pub(super) rows: usize,
}

impl Matrix {
    pub(super) fn of(parts: Vec<Part>, out: usize, inner: usize) -> Matrix {
        let sections = vec![Section { rows: out, precision: Precision::Bf16 }];
        Matrix { parts, out, inner, sections, number: 0 }
    }

    pub(super) fn whole(memory: DeviceBuffer, form: Form, out: usize, inner: usize) -> Matrix {
        Matrix::of(vec![Part { memory, form, rows: out }], out, inner)
    }

    pub(super) fn is_in_fp8(&self) -> bool {
        self.sections.iter().all(|section| section.precision == Precision::Fp8)
    }

    pub(super) fn plain(&self) -> Option<DevicePtr> {
        match self.parts.as_slice() {
            [part] if part.form == Form::Bf16 => Some(part.memory.ptr()),
            _ => None,
        }
    }
}

/// `[n]` f32.
pub struct Vector {
    pub(super) memory: DeviceBuffer,
    pub(super) n: usize,
}

/// `[heads, 128, 128]` f32 of one lightning layer, and the rows not yet absorbed.
pub struct Recurrent {
    pub(super) state: DeviceBuffer,
    /// `[2][16][kv_heads][128]` bf16; the step holds the current half.
    pub(super) pend_k: DeviceBuffer,
    pub(super) pend_v: DeviceBuffer,
    /// Decay rates `[heads]`.
    pub(super) slopes: DeviceBuffer,
    pub(super) table: TableId,
}

impl Recurrent {
    pub(super) fn shape(&self) -> [usize; 3] {
        [self.state.bytes() / (HEAD * HEAD * 4), HEAD, HEAD]
    }

    /// `RowState`
    pub(super) fn entry(&self) -> Entry {
        [self.state.ptr(), self.pend_k.ptr(), self.pend_v.ptr(), self.slopes.ptr()]
    }
}

pub(super) fn floats(dtype: Dtype, data: &[u8]) -> Result<Vec<f32>> {
    dtype.floats(data).ok_or_else(|| shape("values", "f32 or bf16", format!("{dtype:?}")))
}

/// In bf16.
pub(super) fn narrow(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect()
}

/// The values of an image in bf16.
pub(super) fn narrowed(image: &ImageTensor) -> Result<Cow<'_, [u8]>> {
    match image.dtype {
        Dtype::Bf16 => Ok(Cow::Borrowed(&image.data)),
        dtype => Ok(Cow::Owned(narrow(&floats(dtype, &image.data)?))),
    }
}
