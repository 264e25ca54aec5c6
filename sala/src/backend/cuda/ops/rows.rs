//! Operations on rows, from the embedding to the top logits and their transfer to the host.

use std::ops::Range;

use super::super::device::{Account, DeviceBuffer, Pinned};
use super::super::driver::{DevicePtr, GemmOut, Queue};
use super::super::launch::{self, HopperOut, NextRows, SkinnyRows, SkinnyTo};
use super::super::tensors::{Buf, Matrix, Vector};
use super::super::{Cuda, check_shape, shape};
use super::check_rows;
use super::gemm::Output;
use super::ready::{Kind, Way};
use crate::backend::{HeadRows, MAX_VERIFY_ROWS, Mlp, NextOp, Pass, Result, Rows, TOP_LOGITS, TopLogits, internal};

pub(in crate::backend::cuda) struct TopLogitsBuffers {
    vocab: usize,
    tops: DeviceBuffer,
    sums: DeviceBuffer,
    /// `[16][FOUND_WORDS]` in host memory, which the kernel itself writes: a separate copy would take as long as all
    /// the rest.
    found: Pinned,
}

const FOUND_BYTES: usize = launch::FOUND_WORDS * 4;

pub(super) fn normed_by(norm: &Vector) -> Way {
    Way { norm: norm.memory.ptr(), gate: 0, ldg: 0 }
}

impl Rows for Cuda {
    fn hint_next_op(&mut self, op: NextOp<'_, Vector>) {
        self.ready.hint(op);
    }

    fn embed(&mut self, h: &mut Buf, table: &Matrix, scale: f32, pass: Pass) -> Result<()> {
        self.step.flush()?;
        check_rows("embed", h, pass.rows())?;
        h.wide("embed", table.inner)?;
        let (rows_at, tokens, height) = self.looked_up(table, self.step.tokens_ptr(), pass.rows())?;
        let next = self.leave_normed(h.ptr(), table.inner, pass)?;
        let embed = launch::EmbedRows {
            h: h.ptr(),
            table: rows_at,
            tokens,
            hidden: table.inner,
            vocab: height,
            scale,
            next_norm: next.norm,
            next_x: next.x,
            next_sums: next.sums,
            rows: pass.rows(),
        };
        // SAFETY: extents are checked above; buffers outlive the queue's work and CUDA graphs.
        unsafe { embed.launch(self.device.driver()) }
    }

    fn norm_linear(
        &mut self,
        dst: &mut Buf,
        h: &Buf,
        norm: &Vector,
        eps: f32,
        w: &Matrix,
        only: Option<Range<usize>>,
        pass: Pass,
    ) -> Result<()> {
        let to = dst.narrow("norm_linear", w.out)?;
        check_inner("norm_linear", norm.n, w)?;
        h.wide("norm_linear", w.inner)?;
        check_rows("norm_linear", dst, pass.rows())?;
        match pass {
            Pass::Verify { rows } => {
                let input = self.ready_rows(Kind::Normed, h, normed_by(norm), w.inner, [0, rows], [eps, 1.0])?;
                self.skinny(SkinnyTo::Store, to, dst.width, w, input, NextRows::default(), 1.0, rows)
            }
            Pass::Prefill { rows } => {
                let input = self.gated_input(h, normed_by(norm), eps, w, only.as_ref(), rows)?;
                let output = Output { d: to, ldd: dst.width, to: GemmOut::Bf16, scale: 1.0 };
                self.gemm(input, w, only.as_ref(), output)
            }
        }
    }

    fn norm_gate_up(&mut self, dst: &mut Buf, h: &Buf, norm: &Vector, eps: f32, w: &Matrix, pass: Pass) -> Result<()> {
        let inter = w.out / 2;
        let to = dst.narrow("norm_gate_up", inter)?;
        check_inner("norm_gate_up", norm.n, w)?;
        h.wide("norm_gate_up", w.inner)?;
        check_rows("norm_gate_up", dst, pass.rows())?;
        match pass {
            Pass::Verify { rows } => {
                let input = self.ready_rows(Kind::Normed, h, normed_by(norm), w.inner, [0, rows], [eps, 1.0])?;
                self.skinny(SkinnyTo::Swiglu, to, dst.width, w, input, NextRows::default(), 1.0, rows)
            }
            Pass::Prefill { rows } => {
                let fits = dst.width == inter;
                let found = format_args!("[rows, {}]", dst.width);
                check_shape(fits, "norm_gate_up", format_args!("[rows, {inter}]"), found)?;
                let input = self.gated_input(h, normed_by(norm), eps, w, None, rows)?;
                let output = Output { d: to, ldd: inter, to: GemmOut::Bf16, scale: 1.0 };
                let input = self.own_rows_first(input, w, 0..w.out, HopperOut::Swiglu, output)?;
                let made = input.made;
                if made == rows {
                    return Ok(());
                }
                let slices = self.slices(w, None)?;
                let widest = slices.iter().map(|slice| slice.rows.len()).max().unwrap_or_default();
                let bytes = self.prefill_rows.max(MAX_VERIFY_ROWS) * widest * 2;
                let wide = match dst.spare(bytes) {
                    Some(wide) => wide,
                    None => self.room(|scratch| &mut scratch.wide, bytes)?,
                };
                for slice in slices {
                    // Gate and up rows are interleaved: a slice makes half as many columns.
                    let (first, columns) = (slice.rows.start / 2, slice.rows.len() / 2);
                    let output = Output { d: wide, ldd: slice.rows.len(), to: GemmOut::Bf16, scale: 1.0 };
                    self.gemm_slice(input, w, slice, output)?;
                    let dst = to + ((made * inter + first) * 2) as u64;
                    let gu = wide + (made * 2 * columns * 2) as u64;
                    let swiglu = launch::SwigluRows { dst, ldd: inter, gu, inter: columns, rows: rows - made };
                    // SAFETY: extents are checked above; buffers outlive the queue's work and CUDA graphs.
                    unsafe { swiglu.launch(self.device.driver())? };
                }
                Ok(())
            }
        }
    }

    fn linear_add(&mut self, h: &mut Buf, x: &Buf, w: &Matrix, scale: f32, pass: Pass) -> Result<()> {
        let from = x.narrow("linear_add", w.inner)?;
        let to = h.wide("linear_add", w.out)?;
        check_rows("linear_add", h, pass.rows())?;
        match pass {
            Pass::Verify { rows } => {
                let next = self.leave_added(h.ptr(), w, pass)?;
                let input = SkinnyRows::plain(from, x.width);
                self.skinny(SkinnyTo::Add, to, h.width, w, input, next, scale, rows)
            }
            Pass::Prefill { rows } => {
                self.ready.forget();
                let fits = x.width == w.inner;
                let found = format_args!("[rows, {}]", x.width);
                check_shape(fits, "linear_add", format_args!("[rows, {}]", w.inner), found)?;
                let input = self.plain_input(from, w, rows)?;
                self.gemm(input, w, None, Output { d: to, ldd: h.width, to: GemmOut::AddF32, scale })
            }
        }
    }

    fn mlp(&mut self, h: &mut Buf, mid: &mut Buf, mlp: &Mlp<'_, Matrix, Vector>, pass: Pass) -> Result<()> {
        if let Pass::Prefill { rows } = pass
            && let Some(abreast) = self.rows_abreast(mid, mlp, rows)?
        {
            check_inner("mlp", mlp.norm.n, mlp.gate_up)?;
            h.wide("mlp", mlp.gate_up.inner.max(mlp.down.out))?;
            check_rows("mlp", h, rows)?;
            check_rows("mlp", mid, rows)?;
            self.ready.forget();
            return self.mlp_in_fp8(h, mid, mlp, rows, abreast);
        }
        self.norm_gate_up(mid, h, mlp.norm, mlp.eps, mlp.gate_up, pass)?;
        self.linear_add(h, mid, mlp.down, mlp.scale, pass)
    }

    fn gate_output(
        &mut self,
        h: &mut Buf,
        o: &Buf,
        norm: Option<&Vector>,
        eps: f32,
        x: &Buf,
        gate: Range<usize>,
        w: &Matrix,
        scale: f32,
        pass: Pass,
    ) -> Result<()> {
        o.wide("gate_output", w.inner)?;
        let to = h.wide("gate_output", w.out)?;
        check_rows("gate_output", h, pass.rows())?;
        if let Some(norm) = norm {
            check_inner("gate_output", norm.n, w)?;
        }
        let gate = if gate.is_empty() {
            0
        } else if gate.len() == w.inner {
            x.narrow("gate_output", gate.end)?;
            x.column(gate.start)
        } else {
            return Err(shape("gate_output", format!("{} gate columns", w.inner), gate.len()));
        };
        let norm = norm.map_or(0, |norm| norm.memory.ptr());
        let way = Way { norm, gate, ldg: if gate == 0 { 0 } else { x.width } };
        match pass {
            Pass::Verify { rows } => {
                let input = self.ready_rows(Kind::Gated, o, way, w.inner, [0, rows], [eps, 1.0])?;
                let next = self.leave_added(h.ptr(), w, pass)?;
                self.skinny(SkinnyTo::Add, to, h.width, w, input, next, scale, rows)
            }
            Pass::Prefill { rows } => {
                self.ready.forget();
                let input = self.gated_input(o, way, eps, w, None, rows)?;
                self.gemm(input, w, None, Output { d: to, ldd: h.width, to: GemmOut::AddF32, scale })
            }
        }
    }

    fn keep_aux_hidden(&mut self, aux_hidden: &mut Buf, slot: usize, h: &Buf, pass: Pass) -> Result<()> {
        let hidden = h.width;
        let fits = (slot + 1) * hidden <= aux_hidden.width;
        let found = format_args!("[rows, {}]", aux_hidden.width);
        check_shape(fits, "keep_aux_hidden", format_args!("[rows, {}] or wider", (slot + 1) * hidden), found)?;
        check_rows("keep_aux_hidden", aux_hidden, pass.rows())?;
        let (aux, lda, h) = (aux_hidden.column(slot * hidden), aux_hidden.width, h.ptr());
        let (d, rows) = (self.device.driver(), pass.rows());
        // SAFETY: extents are checked above; buffers outlive the queue's work and CUDA graphs.
        unsafe {
            match aux_hidden.value_bytes() {
                2 => launch::AuxRowsBf16 { aux, lda, h, hidden, rows }.launch(d),
                _ => launch::AuxRows { aux, lda, h, hidden, rows }.launch(d),
            }
        }
    }

    fn head(
        &mut self,
        logits: &mut Buf,
        h: &Buf,
        norm: &Vector,
        eps: f32,
        divisor: f32,
        w: &Matrix,
        rows: HeadRows,
        pass: Pass,
    ) -> Result<()> {
        let to = logits.wide("head", w.out)?;
        check_inner("head", norm.n, w)?;
        h.wide("head", w.inner)?;
        let range = rows.range(pass);
        let fits = range.end <= pass.rows();
        check_shape(fits, "head", format_args!("rows below {}", pass.rows()), format_args!("{range:?}"))?;
        let (first, count) = (range.start, range.len());
        check_rows("head", logits, count)?;
        let input = self.ready_rows(Kind::Normed, h, normed_by(norm), w.inner, [first, count], [eps, 1.0 / divisor])?;
        self.skinny(SkinnyTo::Logits, to, logits.width, w, input, NextRows::default(), 1.0, count)
    }

    fn top_logits(&mut self, logits: &Buf, vocab: usize, rows: HeadRows, pass: Pass) -> Result<()> {
        let rows = rows.range(pass).len();
        let from = logits.wide("top_logits", vocab)?;
        check_rows("top_logits", logits, rows)?;
        if self.top_logits.as_ref().is_none_or(|c| c.vocab < vocab) {
            if self.top_logits.take().is_some() {
                self.touch();
            }
            let work = |bytes| self.device.zeroed("top_logits", bytes, Account::Work);
            let splits = vocab.div_ceil(launch::SPLIT_LOGITS);
            self.top_logits = Some(TopLogitsBuffers {
                vocab,
                // A smaller vocabulary, even with smaller groups, never needs more.
                tops: work(MAX_VERIFY_ROWS * vocab.div_ceil(8) * 4)?,
                sums: work(MAX_VERIFY_ROWS * splits * 8)?,
                found: self.device.pinned(MAX_VERIFY_ROWS * FOUND_BYTES)?,
            });
        }
        let Some(c) = &self.top_logits else {
            return Err(internal("top_logits", "its buffers were just made and are not there"));
        };
        let d = self.device.driver();
        // Page-locked memory has one address for both sides.
        let found = c.found.as_ptr() as DevicePtr;
        let (tops, lse) = (c.tops.ptr(), c.sums.ptr());
        let (ld, group, splits) = (logits.width, launch::top_logits_group(vocab), vocab.div_ceil(launch::SPLIT_LOGITS));
        // SAFETY: extents are checked above; buffers outlive the queue's work and CUDA graphs.
        unsafe {
            launch::TopLogitsGroups { tops, lse, logits: from, ld, vocab, group, rows, splits }.launch(d)?;
            launch::TopLogitsPick { found, tops, lse, logits: from, ld, vocab, group, rows, splits }.launch(d)
        }
    }

    fn read_top_logits(&mut self, rows: usize) -> Result<Vec<TopLogits>> {
        check_shape(rows <= MAX_VERIFY_ROWS, "top_logits", format_args!("at most {MAX_VERIFY_ROWS} rows"), rows)?;
        let Some(c) = &self.top_logits else { return Err(shape("top_logits", "top_logits before", "none")) };
        self.device.driver().synchronize(Queue::Compute)?;
        let words: &[u32] = bytemuck::try_cast_slice(c.found.as_slice())
            .map_err(|_| internal("top_logits", "page-locked memory that holds no whole words"))?;
        Ok(words
            .chunks_exact(launch::FOUND_WORDS)
            .take(rows)
            .map(|row| {
                let (values, rest) = row.split_at(TOP_LOGITS);
                let (ids, sum) = rest.split_at(TOP_LOGITS);
                // Places beyond the vocabulary hold this id.
                let n = ids.iter().position(|id| *id == u32::MAX);
                let n = n.unwrap_or(TOP_LOGITS);
                TopLogits {
                    ids: ids.iter().take(n).copied().collect(),
                    logits: values.iter().take(n).map(|v| f32::from_bits(*v)).collect(),
                    log_sum_exp: sum.first().map_or(f32::NAN, |s| f32::from_bits(*s)),
                }
            })
            .collect())
    }
}

fn check_inner(op: &'static str, n: usize, w: &Matrix) -> Result<()> {
    check_shape(n == w.inner, op, format_args!("norm of {}", w.inner), n)
}
