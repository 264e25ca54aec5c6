//! The trait's operations as launches.
//!
//! Passes of 1..16 rows (verify) use the skinny kernels, which fuse the norm or gate before a product; passes of a whole
//! chunk (prefill) make the product's input first and hand it to a library or to `gemm_*`. Nothing here waits, and
//! nothing of a verify pass allocates or takes a host value that changes from step to step: position, pending rows and
//! tokens are read from [`super::step::Step`], grids follow from the number of rows and the largest context.

use std::ops::Range;

use super::device::{Account, DeviceBuffer, Pinned};
use super::driver::{DevicePtr, PRODUCT_ROWS, Product, ProductOut};
use super::launch::{self, GemmTo, SkinnyFrom, SkinnyTo};
use super::tensors::{Buf, Cache, HEAD, Matrix, Recurrent, Selection, Vector, dense_until};
use super::{Cuda, shape, u32_of};
use crate::backend::{
    BackendError, CANDIDATES, Candidates, HeadRows, MAX_VERIFY_ROWS, Pass, Result,
};
use crate::spec::{DenseRule, LightningSpec, ScoreNorm, SparseSpec};

/// Scratch of prefill passes, made when first needed and kept.
#[derive(Default)]
pub(super) struct Scratch {
    /// Inputs of products, bf16.
    input: Option<DeviceBuffer>,
    /// Gate and up columns before SwiGLU, bf16.
    wide: Option<DeviceBuffer>,
}

/// Angles of the rows of a pass, the same for every lightning layer.
pub(super) struct Rope {
    theta: f64,
    /// `[64]` f32.
    frequencies: DeviceBuffer,
    /// `[rows][64]` of (cos, sin).
    table: DeviceBuffer,
    /// The table is that of the present pass.
    fresh: bool,
}

/// Where the best candidates are found and put.
pub(super) struct CandidateBuffers {
    vocab: usize,
    tops: DeviceBuffer,
    sums: DeviceBuffer,
    /// `[16][FOUND_WORDS]`
    found: DeviceBuffer,
    host: Pinned,
}

/// Of a row.
const FOUND_BYTES: usize = launch::FOUND_WORDS * 4;

impl Cuda {
    // -- products --------------------------------------------------------------------------------------------------

    /// One product of a prefill pass; `x` is bf16 `[rows, inner]`, dense.
    pub(super) fn product(
        &mut self,
        x: DevicePtr,
        w: &Matrix,
        d: DevicePtr,
        ldd: usize,
        rows: usize,
        to: ProductOut,
        scale: f32,
    ) -> Result<()> {
        if !self.options.own_products && ldd == w.out {
            // Rows beyond the pass are in the buffers and mean nothing; rounding keeps to row counts that were proved.
            let rounded = rows.next_multiple_of(PRODUCT_ROWS);
            let product = Product {
                x,
                w: w.memory.ptr(),
                d,
                rows: rounded,
                out: w.out,
                inner: w.inner,
                to,
                scale,
            };
            // SAFETY: buffers of a pass have room for `prefill_rows`, a multiple of the rounding; sizes are checked by the callers.
            if unsafe { self.device.driver().product(&product)? } {
                return Ok(());
            }
        }
        self.own_product(x, w, d, ldd, rows, to, scale)
    }

    /// The same by the program's own kernel, which may be recorded.
    pub(super) fn own_product(
        &mut self,
        x: DevicePtr,
        w: &Matrix,
        d: DevicePtr,
        ldd: usize,
        rows: usize,
        to: ProductOut,
        scale: f32,
    ) -> Result<()> {
        let form = match to {
            ProductOut::Bf16 => GemmTo::Store,
            ProductOut::F32 => GemmTo::F32,
            ProductOut::AddF32 => GemmTo::Add,
        };
        let (ldd, rows, out, inner) = (
            u32_of(ldd)?,
            u32_of(rows)?,
            u32_of(w.out)?,
            u32_of(w.inner)?,
        );
        // SAFETY: the callers have checked sizes; the buffers live as long as the backend's work.
        unsafe {
            launch::gemm(
                self.device.driver(),
                form,
                d,
                ldd,
                x,
                inner,
                w.memory.ptr(),
                rows,
                out,
                inner,
                scale,
            )
        }
    }

    /// `norm_rows` of `h` into the input scratch.
    fn normed(&mut self, h: &Buf, norm: &Vector, eps: f32, rows: usize) -> Result<DevicePtr> {
        let n = norm.n;
        let input = self.input_room(n)?;
        let (ld, rows) = (u32_of(n)?, u32_of(rows)?);
        // SAFETY: extents are checked above; buffers outlive the queue's work and recordings.
        unsafe {
            launch::norm_rows(
                self.device.driver(),
                input,
                ld,
                h.ptr(),
                u32_of(h.width)?,
                norm.memory.ptr(),
                ld,
                eps,
                1.0,
                rows,
            )?
        };
        Ok(input)
    }

    /// A product of 1..=16 rows. Inputs that the kernel has no room to make on the way are made before it; the bits
    /// are the same.
    pub(super) fn skinny(
        &mut self,
        form: SkinnyTo,
        dst: DevicePtr,
        ldd: usize,
        w: &Matrix,
        from: SkinnyFrom,
        scale: f32,
        rows: usize,
    ) -> Result<()> {
        let (ldd, out, inner, rows) = (
            u32_of(ldd)?,
            u32_of(w.out)?,
            u32_of(w.inner)?,
            u32_of(rows)?,
        );
        let staged = launch::stages_rows(self.device.driver(), rows, inner);
        let from = match from {
            SkinnyFrom::Norm {
                h,
                ld,
                norm,
                eps,
                mul,
            } if !staged => {
                let x = self.input_room(w.inner)?;
                // SAFETY: the callers have checked sizes; the scratch has room for every pass.
                unsafe {
                    launch::norm_rows(
                        self.device.driver(),
                        x,
                        inner,
                        h,
                        ld,
                        norm,
                        inner,
                        eps,
                        mul,
                        rows,
                    )?
                };
                SkinnyFrom::Ready { x, ld: inner }
            }
            SkinnyFrom::Gate {
                o,
                ld,
                norm,
                eps,
                gate,
                ldg,
            } if !staged => {
                let x = self.input_room(w.inner)?;
                // SAFETY: as above.
                unsafe {
                    launch::gate_rows(
                        self.device.driver(),
                        x,
                        inner,
                        o,
                        ld,
                        norm,
                        eps,
                        gate,
                        ldg,
                        inner,
                        rows,
                    )?
                };
                SkinnyFrom::Ready { x, ld: inner }
            }
            from => from,
        };
        // SAFETY: the callers have checked sizes.
        unsafe {
            launch::skinny(
                self.device.driver(),
                form,
                dst,
                ldd,
                w.memory.ptr(),
                out,
                inner,
                from,
                scale,
                rows,
            )
        }
    }

    /// Scratch for the input of a product, `[rows of any pass, n]` bf16.
    pub(super) fn input_room(&mut self, n: usize) -> Result<DevicePtr> {
        let bytes = self.prefill_rows.max(MAX_VERIFY_ROWS) * n * 2;
        self.room(|scratch| &mut scratch.input, bytes)
    }

    /// At least `bytes` of scratch. A smaller buffer is replaced, which waits for the device and drops recordings that
    /// name it; the first, eager run of a step leaves nothing to replace.
    fn room(
        &mut self,
        slot: impl Fn(&mut Scratch) -> &mut Option<DeviceBuffer>,
        bytes: usize,
    ) -> Result<DevicePtr> {
        match slot(&mut self.scratch) {
            Some(buffer) if buffer.bytes() >= bytes => return Ok(buffer.ptr()),
            old => drop(old.take()),
        }
        self.touch();
        let made = self.device.alloc("working buffers", bytes, Account::Work)?;
        Ok(slot(&mut self.scratch).insert(made).ptr())
    }

    // -- operations ------------------------------------------------------------------------------------------------

    pub(super) fn op_embed(
        &mut self,
        h: &mut Buf,
        table: &Matrix,
        scale: f32,
        pass: Pass,
    ) -> Result<()> {
        check_rows("embed", h, pass.rows())?;
        h.wide("embed", table.inner)?;
        let (hidden, vocab, rows) = (
            u32_of(table.inner)?,
            u32_of(table.out)?,
            u32_of(pass.rows())?,
        );
        // SAFETY: extents are checked above; buffers outlive the queue's work and recordings.
        unsafe {
            launch::embed_rows(
                self.device.driver(),
                h.ptr(),
                table.memory.ptr(),
                self.step.tokens_ptr(),
                hidden,
                vocab,
                scale,
                rows,
            )
        }
    }

    pub(super) fn op_norm_linear(
        &mut self,
        dst: &mut Buf,
        h: &Buf,
        norm: &Vector,
        eps: f32,
        w: &Matrix,
        pass: Pass,
    ) -> Result<()> {
        let to = dst.narrow("norm_linear", w.out)?;
        check_inner("norm_linear", norm.n, w)?;
        h.wide("norm_linear", w.inner)?;
        check_rows("norm_linear", dst, pass.rows())?;
        match pass {
            Pass::Verify { rows } => {
                let input = SkinnyFrom::Norm {
                    h: h.ptr(),
                    ld: u32_of(h.width)?,
                    norm: norm.memory.ptr(),
                    eps,
                    mul: 1.0,
                };
                self.skinny(SkinnyTo::Store, to, dst.width, w, input, 1.0, rows)
            }
            Pass::Prefill { rows } => {
                let x = self.normed(h, norm, eps, rows)?;
                self.product(x, w, to, dst.width, rows, ProductOut::Bf16, 1.0)
            }
        }
    }

    pub(super) fn op_norm_gate_up(
        &mut self,
        dst: &mut Buf,
        h: &Buf,
        norm: &Vector,
        eps: f32,
        w: &Matrix,
        pass: Pass,
    ) -> Result<()> {
        let inter = w.out / 2;
        let to = dst.narrow("norm_gate_up", inter)?;
        check_inner("norm_gate_up", norm.n, w)?;
        h.wide("norm_gate_up", w.inner)?;
        check_rows("norm_gate_up", dst, pass.rows())?;
        match pass {
            Pass::Verify { rows } => {
                let input = SkinnyFrom::Norm {
                    h: h.ptr(),
                    ld: u32_of(h.width)?,
                    norm: norm.memory.ptr(),
                    eps,
                    mul: 1.0,
                };
                self.skinny(SkinnyTo::Swiglu, to, dst.width, w, input, 1.0, rows)
            }
            Pass::Prefill { rows } => {
                if dst.width != inter {
                    return Err(shape(
                        "norm_gate_up",
                        format!("[rows, {inter}]"),
                        format!("[rows, {}]", dst.width),
                    ));
                }
                let x = self.normed(h, norm, eps, rows)?;
                let bytes = self.prefill_rows.max(MAX_VERIFY_ROWS) * w.out * 2;
                let wide = self.room(|scratch| &mut scratch.wide, bytes)?;
                self.product(x, w, wide, w.out, rows, ProductOut::Bf16, 1.0)?;
                // SAFETY: extents are checked above; buffers outlive the queue's work and recordings.
                unsafe {
                    launch::swiglu_rows(
                        self.device.driver(),
                        to,
                        wide,
                        u32_of(inter)?,
                        u32_of(rows)?,
                    )
                }
            }
        }
    }

    pub(super) fn op_linear_add(
        &mut self,
        h: &mut Buf,
        x: &Buf,
        w: &Matrix,
        scale: f32,
        pass: Pass,
    ) -> Result<()> {
        let from = x.narrow("linear_add", w.inner)?;
        let to = h.wide("linear_add", w.out)?;
        check_rows("linear_add", h, pass.rows())?;
        match pass {
            Pass::Verify { rows } => {
                let input = SkinnyFrom::Ready {
                    x: from,
                    ld: u32_of(x.width)?,
                };
                self.skinny(SkinnyTo::Add, to, h.width, w, input, scale, rows)
            }
            Pass::Prefill { rows } => {
                if x.width != w.inner {
                    return Err(shape(
                        "linear_add",
                        format!("[rows, {}]", w.inner),
                        format!("[rows, {}]", x.width),
                    ));
                }
                self.product(from, w, to, h.width, rows, ProductOut::AddF32, scale)
            }
        }
    }

    pub(super) fn op_append_kv(
        &mut self,
        cache: &mut Cache,
        x: &Buf,
        spec: &SparseSpec,
        pass: Pass,
    ) -> Result<()> {
        self.step.flush()?;
        x.narrow("append_kv", (spec.heads + 2 * spec.kv_heads) * HEAD)?;
        let (xk, xv) = (
            x.column(spec.heads * HEAD),
            x.column((spec.heads + spec.kv_heads) * HEAD),
        );
        // SAFETY: extents are checked above; buffers outlive the queue's work and recordings.
        unsafe {
            launch::append_kv(
                self.device.driver(),
                cache.k.ptr(),
                cache.v.ptr(),
                cache.k1.ptr(),
                cache.k2.ptr(),
                xk,
                xv,
                u32_of(x.width)?,
                self.step.ptr(),
                u32_of(spec.kv_heads)?,
                u32_of(pass.rows())?,
            )
        }
    }

    pub(super) fn op_select_blocks(
        &mut self,
        sel: &mut Selection,
        x: &Buf,
        cache: &Cache,
        spec: &SparseSpec,
        pass: Pass,
    ) -> Result<()> {
        self.step.flush()?;
        let q = x.narrow("select_blocks", spec.heads * HEAD)?;
        let plan = sel.plan;
        let keys = match spec.score_norm {
            ScoreNorm::Coarse => cache.k2.ptr(),
            ScoreNorm::Fine => cache.k1.ptr(),
        };
        let (ldq, heads, kv) = (
            u32_of(x.width)?,
            u32_of(spec.heads)?,
            u32_of(spec.kv_heads)?,
        );
        let (lse_window, lse_stride) = (plan.keys.window, plan.keys.stride);
        let dense = dense_until(spec)?;
        // A dense row lists every block behind it.
        let listed = match spec.dense_rule {
            DenseRule::AsSparse => 0,
            DenseRule::Token | DenseRule::Call => spec.dense_len.div_ceil(spec.block),
            DenseRule::Always => (self.step.position() + pass.rows()).div_ceil(spec.block),
        };
        if listed > plan.cap {
            return Err(BackendError::Unsupported(format!(
                "{listed} dense blocks, room was made for {}",
                plan.cap
            )));
        }
        let scale = softmax_scale();
        let (d, step) = (self.device.driver(), self.step.ptr());
        let top = |score_blocks: u32, row0: u32, rows: u32| {
            // SAFETY: extents are checked above; buffers outlive the queue's work and recordings.
            unsafe {
                launch::select_top(
                    d,
                    sel.list.ptr(),
                    sel.count.ptr(),
                    sel.scores.ptr(),
                    step,
                    kv,
                    score_blocks,
                    u32_of(plan.cap)?,
                    u32_of(spec.init_blocks)?,
                    u32_of(spec.local_blocks)?,
                    u32_of(spec.topk)?,
                    dense,
                    row0,
                    rows,
                )
            }
        };
        match pass {
            Pass::Verify { rows } => {
                // Rows with at most this many blocks take them all, whatever their scores.
                let all_below = u32_of(spec.topk)?;
                let (rows, splits, blocks) = (
                    u32_of(rows)?,
                    u32_of(plan.lse_splits)?,
                    u32_of(plan.score_blocks)?,
                );
                // SAFETY: extents are checked above; buffers outlive the queue's work and recordings.
                unsafe {
                    launch::select_lse(
                        d,
                        sel.lse.ptr(),
                        q,
                        ldq,
                        keys,
                        lse_window,
                        lse_stride,
                        step,
                        heads,
                        kv,
                        scale,
                        rows,
                        splits,
                        all_below,
                    )?
                };
                // SAFETY: extents are checked above; buffers outlive the queue's work and recordings.
                unsafe {
                    launch::select_scores(
                        d,
                        sel.scores.ptr(),
                        sel.lse.ptr(),
                        q,
                        ldq,
                        cache.k1.ptr(),
                        lse_window,
                        lse_stride,
                        step,
                        heads,
                        kv,
                        scale,
                        rows,
                        splits,
                        blocks,
                        all_below,
                    )?
                };
                top(blocks, 0, rows)
            }
            Pass::Prefill { rows } => {
                let blocks = (self.step.position() + rows)
                    .div_ceil(spec.block)
                    .next_multiple_of(64)
                    .min(plan.score_blocks);
                let part = sel.score_rows(spec.kv_heads, blocks);
                let score_blocks = u32_of(blocks)?;
                for row0 in (0..rows).step_by(part) {
                    let (row0, n) = (u32_of(row0)?, u32_of(part.min(rows - row0))?);
                    // SAFETY: extents are checked above; buffers outlive the queue's work and recordings.
                    unsafe {
                        launch::prefill_lse(
                            d,
                            sel.lse.ptr(),
                            q,
                            ldq,
                            keys,
                            lse_window,
                            lse_stride,
                            step,
                            heads,
                            kv,
                            scale,
                            row0,
                            n,
                        )?
                    };
                    // SAFETY: extents are checked above; buffers outlive the queue's work and recordings.
                    unsafe {
                        launch::prefill_scores(
                            d,
                            sel.scores.ptr(),
                            sel.lse.ptr(),
                            q,
                            ldq,
                            cache.k1.ptr(),
                            lse_window,
                            lse_stride,
                            step,
                            heads,
                            kv,
                            scale,
                            row0,
                            n,
                            score_blocks,
                        )?
                    };
                    top(score_blocks, row0, n)?;
                }
                Ok(())
            }
        }
    }

    pub(super) fn op_attend(
        &mut self,
        o: &mut Buf,
        x: &Buf,
        sel: &Selection,
        cache: &Cache,
        spec: &SparseSpec,
        pass: Pass,
    ) -> Result<()> {
        self.step.flush()?;
        let q = x.narrow("attend", spec.heads * HEAD)?;
        let to = o.wide("attend", spec.heads * HEAD)?;
        check_rows("attend", o, pass.rows())?;
        let (ldo, ldq, heads, kv) = (
            u32_of(o.width)?,
            u32_of(x.width)?,
            u32_of(spec.heads)?,
            u32_of(spec.kv_heads)?,
        );
        let (cap, splits) = (u32_of(sel.plan.cap)?, u32_of(sel.plan.attend_splits)?);
        let (list, count) = (sel.list.ptr(), sel.count.ptr());
        let (k, v, scale, d, step) = (
            cache.k.ptr(),
            cache.v.ptr(),
            softmax_scale(),
            self.device.driver(),
            self.step.ptr(),
        );
        match pass {
            Pass::Verify { rows } => {
                let rows = u32_of(rows)?;
                let (part_o, part_ml) = (sel.part_o.ptr(), sel.part_ml.ptr());
                // SAFETY: extents are checked above; buffers outlive the queue's work and recordings.
                unsafe {
                    launch::attend_verify(
                        d, part_o, part_ml, q, ldq, k, v, list, count, cap, step, heads, kv, scale,
                        rows, splits,
                    )?
                };
                // SAFETY: extents are checked above; buffers outlive the queue's work and recordings.
                unsafe {
                    launch::attend_combine(
                        d, to, ldo, part_o, part_ml, count, heads, kv, rows, splits,
                    )
                }
            }
            Pass::Prefill { rows } => {
                // SAFETY: extents are checked above; buffers outlive the queue's work and recordings.
                unsafe {
                    launch::attend_prefill(
                        d,
                        to,
                        ldo,
                        q,
                        ldq,
                        k,
                        v,
                        list,
                        count,
                        cap,
                        step,
                        heads,
                        kv,
                        scale,
                        u32_of(rows)?,
                    )
                }
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn op_lightning(
        &mut self,
        o: &mut Buf,
        x: &Buf,
        qk_norm: [Option<&Vector>; 2],
        state: &mut Recurrent,
        spec: &LightningSpec,
        eps: f32,
        pass: Pass,
    ) -> Result<()> {
        self.step.flush()?;
        let width = spec.heads * HEAD;
        x.narrow("lightning", (spec.heads + 2 * spec.kv_heads) * HEAD)?;
        let to = o.wide("lightning", width)?;
        check_rows("lightning", o, pass.rows())?;
        let rope = self.angles(spec, pass.rows())?;
        let [q_norm, k_norm] = qk_norm.map(|norm| norm.map_or(0, |norm| norm.memory.ptr()));
        let (heads, kv, ldo, ldx) = (
            u32_of(spec.heads)?,
            u32_of(spec.kv_heads)?,
            u32_of(o.width)?,
            u32_of(x.width)?,
        );
        let (k_col, v_col) = (u32_of(width)?, u32_of((spec.heads + spec.kv_heads) * HEAD)?);
        let (s, pend_k, pend_v, slopes) = (
            state.state.ptr(),
            state.pend_k.ptr(),
            state.pend_v.ptr(),
            state.slopes.ptr(),
        );
        match pass {
            // SAFETY: extents are checked above; buffers outlive the queue's work and recordings.
            Pass::Verify { rows } => unsafe {
                launch::lightning_verify(
                    self.device.driver(),
                    to,
                    ldo,
                    x.ptr(),
                    ldx,
                    0,
                    k_col,
                    v_col,
                    q_norm,
                    k_norm,
                    rope,
                    s,
                    pend_k,
                    pend_v,
                    slopes,
                    self.step.ptr(),
                    heads,
                    kv,
                    spec.scale,
                    eps,
                    u32_of(rows)?,
                )
            },
            Pass::Prefill { rows } => {
                let qk_width = (spec.heads + spec.kv_heads) * HEAD;
                let qk = self.input_room(qk_width)?;
                let (ldqk, rows) = (u32_of(qk_width)?, u32_of(rows)?);
                let d = self.device.driver();
                // SAFETY: extents are checked above; buffers outlive the queue's work and recordings.
                unsafe {
                    launch::lightning_qk(
                        d,
                        qk,
                        ldqk,
                        x.ptr(),
                        ldx,
                        0,
                        k_col,
                        q_norm,
                        k_norm,
                        rope,
                        heads,
                        kv,
                        eps,
                        rows,
                    )?
                };
                // SAFETY: extents are checked above; buffers outlive the queue's work and recordings.
                unsafe {
                    launch::lightning_prefill(
                        d,
                        to,
                        ldo,
                        qk,
                        ldqk,
                        x.column((spec.heads + spec.kv_heads) * HEAD),
                        ldx,
                        s,
                        pend_k,
                        pend_v,
                        slopes,
                        self.step.ptr(),
                        heads,
                        kv,
                        spec.scale,
                        rows,
                    )
                }
            }
        }
    }

    pub(super) fn fold_pending(
        &mut self,
        state: &mut Recurrent,
        spec: &LightningSpec,
    ) -> Result<()> {
        if self.step.pending() == 0 {
            return Ok(());
        }
        self.step.flush()?;
        // SAFETY: extents are checked above; buffers outlive the queue's work and recordings.
        unsafe {
            launch::lightning_fold(
                self.device.driver(),
                state.state.ptr(),
                state.pend_k.ptr(),
                state.pend_v.ptr(),
                state.slopes.ptr(),
                self.step.ptr(),
                u32_of(spec.heads)?,
                u32_of(spec.kv_heads)?,
            )
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn op_gate_output(
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
        let from = o.wide("gate_output", w.inner)?;
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
            return Err(shape(
                "gate_output",
                format!("{} gate columns", w.inner),
                gate.len(),
            ));
        };
        let norm = norm.map_or(0, |norm| norm.memory.ptr());
        let (lds, ldg) = (u32_of(o.width)?, u32_of(x.width)?);
        match pass {
            Pass::Verify { rows } => {
                let input = SkinnyFrom::Gate {
                    o: from,
                    ld: lds,
                    norm,
                    eps,
                    gate,
                    ldg,
                };
                self.skinny(SkinnyTo::Add, to, h.width, w, input, scale, rows)
            }
            Pass::Prefill { rows } => {
                let n = w.inner;
                let input = self.input_room(n)?;
                // SAFETY: extents are checked above; buffers outlive the queue's work and recordings.
                unsafe {
                    launch::gate_rows(
                        self.device.driver(),
                        input,
                        u32_of(n)?,
                        from,
                        lds,
                        norm,
                        eps,
                        gate,
                        ldg,
                        u32_of(n)?,
                        u32_of(rows)?,
                    )?
                };
                self.product(input, w, to, h.width, rows, ProductOut::AddF32, scale)
            }
        }
    }

    pub(super) fn op_tap(
        &mut self,
        taps: &mut Buf,
        slot: usize,
        h: &Buf,
        pass: Pass,
    ) -> Result<()> {
        let hidden = h.width;
        if (slot + 1) * hidden > taps.width {
            return Err(shape(
                "tap",
                format!("[rows, {}] or wider", (slot + 1) * hidden),
                format!("[rows, {}]", taps.width),
            ));
        }
        check_rows("tap", taps, pass.rows())?;
        let (to, ld, hidden, rows) = (
            taps.column(slot * hidden),
            u32_of(taps.width)?,
            u32_of(hidden)?,
            u32_of(pass.rows())?,
        );
        if taps.value_bytes() == 2 {
            // SAFETY: extents are checked above; buffers outlive the queue's work and recordings.
            unsafe { launch::tap_rows_bf16(self.device.driver(), to, ld, h.ptr(), hidden, rows) }
        } else {
            // SAFETY: extents are checked above; buffers outlive the queue's work and recordings.
            unsafe { launch::tap_rows(self.device.driver(), to, ld, h.ptr(), hidden, rows) }
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn op_head(
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
        let count = rows.count(pass);
        check_rows("head", logits, count)?;
        let first = match rows {
            HeadRows::Last => pass.rows().saturating_sub(1),
            HeadRows::All => 0,
            HeadRows::At(row) => row,
        };
        let input = SkinnyFrom::Norm {
            h: h.row(first),
            ld: u32_of(h.width)?,
            norm: norm.memory.ptr(),
            eps,
            mul: 1.0 / divisor,
        };
        self.skinny(SkinnyTo::Logits, to, logits.width, w, input, 1.0, count)
    }

    pub(super) fn op_top_candidates(
        &mut self,
        logits: &Buf,
        vocab: usize,
        rows: usize,
    ) -> Result<()> {
        let from = logits.wide("top_candidates", vocab)?;
        check_rows("top_candidates", logits, rows)?;
        let (ld, words, rows) = (u32_of(logits.width)?, u32_of(vocab)?, u32_of(rows)?);
        if self.candidates.as_ref().is_none_or(|c| c.vocab < vocab) {
            if self.candidates.take().is_some() {
                self.touch();
            }
            let work = |bytes| self.device.zeroed("candidates", bytes, Account::Work);
            let splits = vocab.div_ceil(launch::CANDIDATE_LOGITS as usize);
            self.candidates = Some(CandidateBuffers {
                vocab,
                // Never fewer than for any smaller vocabulary, whose groups may be smaller.
                tops: work(MAX_VERIFY_ROWS * vocab.div_ceil(8) * 4)?,
                sums: work(MAX_VERIFY_ROWS * splits * 8)?,
                found: work(MAX_VERIFY_ROWS * FOUND_BYTES)?,
                host: self.device.pinned(MAX_VERIFY_ROWS * FOUND_BYTES)?,
            });
        }
        let Some(c) = &self.candidates else {
            return Ok(());
        };
        let d = self.device.driver();
        let (found, tops, sums) = (c.found.ptr(), c.tops.ptr(), c.sums.ptr());
        // SAFETY: extents are checked above; buffers outlive the queue's work and recordings.
        unsafe {
            launch::candidates_tops(d, tops, sums, from, ld, words, rows)?;
            launch::candidates_pick(d, found, tops, sums, from, ld, words, rows)
        }
    }

    pub(super) fn fetch_candidates(&mut self, rows: usize) -> Result<Vec<Candidates>> {
        if rows > MAX_VERIFY_ROWS {
            return Err(shape(
                "candidates",
                format!("at most {MAX_VERIFY_ROWS} rows"),
                rows,
            ));
        }
        let Some(c) = &mut self.candidates else {
            return Err(shape("candidates", "top_candidates before", "none"));
        };
        let driver = self.device.driver();
        // SAFETY: both pieces have room for 16 rows; the host reads only after the wait.
        unsafe {
            driver.copy_out(
                c.host.as_mut_ptr(),
                c.found.ptr(),
                rows * FOUND_BYTES,
                super::driver::Queue::Compute,
            )?
        };
        driver.synchronize(super::driver::Queue::Compute)?;
        let words: &[u32] = bytemuck::try_cast_slice(c.host.as_slice()).unwrap_or_default();
        Ok(words
            .chunks_exact(launch::FOUND_WORDS)
            .take(rows)
            .map(|row| {
                let (values, rest) = row.split_at(CANDIDATES);
                let (ids, sum) = rest.split_at(CANDIDATES);
                // Places beyond the vocabulary hold this id.
                let n = ids.iter().position(|id| *id == u32::MAX);
                let n = n.unwrap_or(CANDIDATES);
                Candidates {
                    ids: ids.iter().take(n).copied().collect(),
                    logits: values.iter().take(n).map(|v| f32::from_bits(*v)).collect(),
                    log_sum_exp: sum.first().map_or(f32::NAN, |s| f32::from_bits(*s)),
                }
            })
            .collect())
    }

    // -- angles ------------------------------------------------------------------------------------------------------

    /// Makes the table of angles for models with this rotation; called when their state is made.
    pub(super) fn prepare_rope(&mut self, spec: &LightningSpec) -> Result<()> {
        let Some(theta) = spec.rope_theta else {
            return Ok(());
        };
        if self
            .rope
            .as_ref()
            .is_some_and(|rope| rope.theta.to_bits() == theta.to_bits())
        {
            return Ok(());
        }
        let frequencies = self.upload_floats(&frequencies(theta), Account::Work)?;
        let rows = self.prefill_rows.max(MAX_VERIFY_ROWS);
        let table = self
            .device
            .alloc("angles", rows * (HEAD / 2) * 8, Account::Work)?;
        self.rope = Some(Rope {
            theta,
            frequencies,
            table,
            fresh: false,
        });
        self.touch();
        Ok(())
    }

    /// The next lightning layer belongs to another pass.
    pub(super) fn forget_rope(&mut self) {
        if let Some(rope) = &mut self.rope {
            rope.fresh = false;
        }
    }

    /// The table of this pass, made by the first layer that needs it; null where nothing is rotated.
    fn angles(&mut self, spec: &LightningSpec, rows: usize) -> Result<DevicePtr> {
        let Some(theta) = spec.rope_theta else {
            return Ok(0);
        };
        let step = self.step.ptr();
        match &mut self.rope {
            Some(rope) if rope.theta.to_bits() == theta.to_bits() => {
                if !rope.fresh {
                    // SAFETY: extents are checked above; buffers outlive the queue's work and recordings.
                    unsafe {
                        launch::rope_table(
                            self.device.driver(),
                            rope.table.ptr(),
                            rope.frequencies.ptr(),
                            step,
                            u32_of(rows)?,
                        )?
                    };
                    rope.fresh = true;
                }
                Ok(rope.table.ptr())
            }
            _ => Err(shape(
                "lightning",
                "the rotation its state was made for",
                theta,
            )),
        }
    }
}

/// `theta^(−2i/128)` as f32, rounded where the reference rounds: after the power and after its reciprocal.
fn frequencies(theta: f64) -> Vec<f32> {
    (0..HEAD / 2)
        .map(|i| 1.0 / (theta.powf((2 * i) as f64 / HEAD as f64) as f32))
        .collect()
}

/// Both stages scale by 1/√128.
fn softmax_scale() -> f32 {
    1.0 / (HEAD as f32).sqrt()
}

fn check_rows(op: &'static str, buf: &Buf, rows: usize) -> Result<()> {
    if rows <= buf.rows {
        Ok(())
    } else {
        Err(shape(op, format!("at most {} rows", buf.rows), rows))
    }
}

fn check_inner(op: &'static str, n: usize, w: &Matrix) -> Result<()> {
    if n == w.inner {
        Ok(())
    } else {
        Err(shape(op, format!("norm of {}", w.inner), n))
    }
}
