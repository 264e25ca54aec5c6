//! The draft head's operations: one small layer over a ring of keys and values (see [`crate::backend::draft`]).
//!
//! Passes of 1..16 rows use the skinny kernels; longer ones, which only fill the window, use the GEMMs of a prefill.

use std::ops::Range;

use super::device::{Account, DeviceBuffer};
use super::driver::{DevicePtr, GEMM_ROWS, GemmOut, Queue};
use super::launch::{self, NextRows, SkinnyRows, SkinnyTo};
use super::ops::Output;
use super::step_words::{STRUCT_WORDS, StepParameters};
use super::tensors::{Buf, HEAD, Matrix, Vector, narrowed};
use super::{Cuda, check_shape, limits, shape, u32_of};
use crate::backend::draft::{DraftOps, DraftResidual, DraftShape, PENDING_ROWS};
use crate::backend::{BufKind, MAX_VERIFY_ROWS, Pass, Result, internal};
use crate::engine::protocol::{Dtype, ImageTensor, Token};

pub struct Window {
    shape: DraftShape,
    /// `[capacity, kv_heads, 128]` bf16.
    k: DeviceBuffer,
    v: DeviceBuffer,
    /// `[64]` f64.
    inv_freq: DeviceBuffer,
    part_o: DeviceBuffer,
    part_ml: DeviceBuffer,
    splits: usize,
}

impl Window {
    fn operands(&self, step: DevicePtr) -> launch::Draft {
        launch::Draft {
            wk: self.k.ptr(),
            wv: self.v.ptr(),
            inv_freq: self.inv_freq.ptr(),
            step,
            part_o: self.part_o.ptr(),
            part_ml: self.part_ml.ptr(),
            capacity: self.shape.capacity(),
            window: self.shape.window,
            heads: self.shape.heads,
            kv_heads: self.shape.kv_heads,
            splits: self.splits,
            scale: 1.0 / (HEAD as f32).sqrt(),
            ..launch::Draft::default()
        }
    }
}

impl Cuda {
    /// `struct DraftStep { u32 position, first, reserved[2]; }` and the tokens of the next draft pass.
    fn draft_step(&mut self) -> Result<&mut StepParameters> {
        if self.draft.is_none() {
            let rows = self.prefill_rows.max(PENDING_ROWS);
            self.draft = Some(StepParameters::new(&self.device, STRUCT_WORDS, rows)?);
        }
        self.draft.as_mut().ok_or_else(|| shape("draft", "a draft step", "none"))
    }

    fn draft_step_ptr(&self) -> Result<DevicePtr> {
        self.draft.as_ref().map(StepParameters::ptr).ok_or_else(|| shape("draft", "draft_seek before", "none"))
    }

    /// `dst = scale · x wᵀ` for any number of rows; `x` bf16.
    fn draft_gemm(&mut self, dst: &Buf, x: DevicePtr, ldx: usize, w: &Matrix, scale: f32, pass: Pass) -> Result<()> {
        let narrow = dst.value_bytes() == 2;
        let rows = pass.rows();
        if rows <= MAX_VERIFY_ROWS {
            let form = if narrow { SkinnyTo::Store } else { SkinnyTo::Logits };
            let (from, next) = (SkinnyRows::plain(x, ldx), NextRows::default());
            return self.skinny(form, dst.ptr(), dst.width, w, from, next, scale, rows);
        }
        let fits = scale.to_bits() == 1f32.to_bits() && ldx == w.inner;
        let found = format_args!("scale {scale}, stride {ldx}");
        check_shape(fits, "draft_project", "dense rows and scale 1 beyond 16 rows", found)?;
        let to = if narrow { GemmOut::Bf16 } else { GemmOut::F32 };
        match pass {
            Pass::Prefill { rows } => {
                let input = self.plain_input(x, w, rows)?;
                self.gemm(input, w, None, Output { d: dst.ptr(), ldd: dst.width, to, scale: 1.0 })
            }
            // This pass may be recorded, and CUDA graphs contain no library calls.
            Pass::Verify { rows } => self.own_gemm(x, w, dst.ptr(), dst.width, rows, to, 1.0),
        }
    }
}

impl DraftOps for Cuda {
    type Window = Window;

    fn draft_buf(&mut self, rows: usize, width: usize, kind: BufKind) -> Result<Buf> {
        self.touch_own();
        Buf::with_rows(&self.device, width, kind, rows.next_multiple_of(GEMM_ROWS))
    }

    fn draft_window(&mut self, shape: &DraftShape) -> Result<Window> {
        limits::draft(shape)?;
        self.touch_own();
        self.draft_step()?;
        let bytes = shape.capacity() * shape.kv_heads * HEAD * 2;
        let splits = shape.capacity().div_ceil(launch::DRAFT_SLOTS);
        let frequencies: &[u8] = bytemuck::cast_slice(&shape.inv_freq);
        let inv_freq = self.device.alloc("draft window", frequencies.len(), Account::Work)?;
        self.staging.send_bytes(inv_freq.ptr(), frequencies)?;
        Ok(Window {
            shape: shape.clone(),
            k: self.device.zeroed("draft window", bytes, Account::State)?,
            v: self.device.zeroed("draft window", bytes, Account::State)?,
            inv_freq,
            part_o: self.device.zeroed("draft window", splits * shape.heads * HEAD * 4, Account::Work)?,
            part_ml: self.device.zeroed("draft window", splits * shape.heads * 8, Account::Work)?,
            splits,
        })
    }

    fn draft_seek(&mut self, tokens: &[Token], position: usize, first: usize) -> Result<()> {
        let words = [u32_of(position)?, u32_of(first)?, 0, 0];
        let step = self.draft_step()?;
        step.send_all(&words, tokens)
    }

    fn draft_copy(&mut self, dst: &mut Buf, dst_row: usize, src: &Buf, rows: Range<usize>) -> Result<()> {
        let fits =
            dst.width == src.width && dst.kind == src.kind && rows.end <= src.rows && dst_row + rows.len() <= dst.rows;
        let found = format_args!("rows of {} columns", dst.width);
        check_shape(fits, "draft_copy", format_args!("rows of {} columns", src.width), found)?;
        let bytes = rows.len() * src.width * src.value_bytes();
        // SAFETY: both ranges were checked; the two are different buffers.
        unsafe { self.device.driver().copy(dst.row(dst_row), src.row(rows.start), bytes, Queue::Compute) }
    }

    fn draft_fuse(
        &mut self,
        g: &mut Buf,
        aux_hidden: &Buf,
        norms: &[Vector],
        eps: f32,
        w: &Matrix,
        pass: Pass,
    ) -> Result<()> {
        let from = aux_hidden.narrow("draft_fuse", w.inner)?;
        g.wide("draft_fuse", w.out)?;
        if norms.is_empty() {
            return self.draft_gemm(g, from, aux_hidden.width, w, 1.0, pass);
        }
        let (rows, width) = (pass.rows(), w.inner / norms.len());
        let x = self.input_rows(rows, w.inner)?;
        for (slot, norm) in norms.iter().enumerate() {
            let (at, norm) = ((slot * width * 2) as u64, norm.memory.ptr());
            let (dst, ldd, src, lds) = (x + at, w.inner, from + at, aux_hidden.width);
            let normed = launch::NormRowsBf16 { dst, ldd, src, lds, norm, n: width, eps, rows };
            // SAFETY: slots lie inside both rows; the scratch has room for every pass.
            unsafe { normed.launch(self.device.driver())? };
        }
        self.draft_gemm(g, x, w.inner, w, 1.0, pass)
    }

    fn draft_input(
        &mut self,
        x: &mut Buf,
        g: &mut Buf,
        table: &Matrix,
        scale: f32,
        input_norm: &Vector,
        hidden_norm: &Vector,
        eps: f32,
        residual: DraftResidual,
        pass: Pass,
    ) -> Result<()> {
        let hidden = table.inner;
        let to = x.narrow("draft_input", 2 * hidden)?;
        let stream = g.wide("draft_input", hidden)?;
        let fits = x.width == 2 * hidden
            && [g.width, input_norm.n, hidden_norm.n] == [hidden; 3]
            && pass.rows() <= x.rows.min(g.rows);
        let found = format_args!("[{}, {}] from [{}, {}]", x.rows, x.width, g.rows, g.width);
        check_shape(fits, "draft_input", format_args!("[rows, {}] from [rows, {hidden}]", 2 * hidden), found)?;
        let tokens = self.draft.as_ref().map_or(0, StepParameters::tokens_ptr);
        let (rows_at, tokens, height) = self.looked_up(table, tokens, pass.rows())?;
        let input = launch::DraftInput {
            x: to,
            g: stream,
            table: rows_at,
            tokens,
            input_norm: input_norm.memory.ptr(),
            hidden_norm: hidden_norm.memory.ptr(),
            scale,
            eps,
            normed: usize::from(residual == DraftResidual::Normed),
            hidden,
            vocab: height,
            rows: pass.rows(),
        };
        // SAFETY: shapes were checked; `draft_window` has made the tokens' memory.
        unsafe { input.launch(self.device.driver()) }
    }

    fn draft_project(&mut self, dst: &mut Buf, x: &Buf, w: &Matrix, scale: f32, pass: Pass) -> Result<()> {
        let fits = dst.width >= w.out && x.width >= w.inner && pass.rows() <= dst.rows.min(x.rows);
        let found = format_args!("[{}, {}] from [{}, {}]", dst.rows, dst.width, x.rows, x.width);
        check_shape(fits, "draft_project", format_args!("[rows, {}] from [rows, {}]", w.out, w.inner), found)?;
        if x.value_bytes() == 2 {
            return self.draft_gemm(dst, x.ptr(), x.width, w, scale, pass);
        }
        let (dst_rows, n, rows) = (self.input_room(w.inner)?, w.inner, pass.rows());
        let (src, lds) = (x.ptr(), x.width);
        let rounded =
            launch::NormRows { dst: dst_rows, ldd: n, sums: 0, src, lds, norm: 0, n, eps: 0.0, mul: 1.0, rows };
        // SAFETY: shapes were checked; the scratch has room for every pass.
        unsafe { rounded.launch(self.device.driver())? };
        self.draft_gemm(dst, dst_rows, n, w, scale, pass)
    }

    fn draft_append(&mut self, window: &mut Window, kvq: &Buf, pass: Pass) -> Result<()> {
        let kv = kvq.narrow("draft_append", window.shape.kvq_width())?;
        let operands = window.operands(self.draft_step_ptr()?);
        let append = launch::DraftAppend(launch::Draft { kv, ldkv: kvq.width, rows: pass.rows(), ..operands });
        // SAFETY: the window was made with this shape.
        unsafe { append.launch(self.device.driver()) }
    }

    fn draft_attend(&mut self, o: &mut Buf, kvq: &Buf, window: &Window, pass: Pass) -> Result<()> {
        let shape = &window.shape;
        kvq.narrow("draft_attend", shape.kvq_width())?;
        let row = pass.rows() - 1;
        check_shape(row < kvq.rows, "draft_attend", pass.rows(), kvq.rows)?;
        let q = kvq.row(row) + (2 * shape.kv_heads * HEAD * 2) as u64;
        let o = o.narrow("draft_attend", shape.heads * HEAD)?;
        let operands = launch::Draft { q, o, row, ..window.operands(self.draft_step_ptr()?) };
        let d = self.device.driver();
        // SAFETY: the window was made with this shape; `kvq` and `o` were checked.
        unsafe {
            launch::DraftAttend(operands).launch(d)?;
            launch::DraftCombine(operands).launch(d)
        }
    }

    fn read_window(&mut self, window: &Window, positions: Range<usize>) -> Result<[ImageTensor; 2]> {
        let shape = &window.shape;
        let mut read = |name: &str, ring: &DeviceBuffer| -> Result<ImageTensor> {
            let mut data = Vec::new();
            for (slot, rows) in ring_parts(shape, &positions)? {
                let row = shape.kv_heads * HEAD * 2;
                data.extend(self.staging.fetch(ring.ptr() + (slot * row) as u64, rows * row)?);
            }
            let shape = vec![positions.len(), shape.kv_heads, HEAD];
            Ok(ImageTensor::new(name, Dtype::Bf16, shape, data))
        };
        Ok([read("k", &window.k)?, read("v", &window.v)?])
    }

    fn write_window(&mut self, window: &mut Window, start: usize, k: &ImageTensor, v: &ImageTensor) -> Result<()> {
        let shape = &window.shape;
        for (ring, image) in [(&window.k, k), (&window.v, v)] {
            let rows = image.shape.first().copied().unwrap_or(0);
            let expected = [rows, shape.kv_heads, HEAD];
            let fits = image.is_whole(&expected);
            check_shape(fits, "write_window", format_args!("{expected:?}"), format_args!("{image:?}"))?;
            let bytes = narrowed(image)?;
            let row = shape.kv_heads * HEAD * 2;
            let mut rest = &*bytes;
            for (slot, rows) in ring_parts(shape, &(start..start + rows))? {
                let (part, tail) = rest
                    .split_at_checked(rows * row)
                    .ok_or_else(|| internal("write_window", "an image shorter than its shape"))?;
                self.staging.send_bytes(ring.ptr() + (slot * row) as u64, part)?;
                rest = tail;
            }
        }
        Ok(())
    }
}

fn ring_parts(shape: &DraftShape, positions: &Range<usize>) -> Result<Vec<(usize, usize)>> {
    let capacity = shape.capacity();
    check_shape(positions.len() <= capacity, "draft window", format_args!("at most {capacity} rows"), positions.len())?;
    let slot = positions.start % capacity;
    let first = positions.len().min(capacity - slot);
    Ok([(slot, first), (0, positions.len() - first)].into_iter().filter(|(_, rows)| *rows > 0).collect())
}
