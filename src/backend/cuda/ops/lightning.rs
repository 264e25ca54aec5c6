//! Lightning attention, and the angles its layers share.

use super::super::device::{Account, DeviceBuffer};
use super::super::driver::DevicePtr;
use super::super::launch;
use super::super::tables::Tables;
use super::super::tensors::{Buf, HEAD, Recurrent, Vector};
use super::super::{Cuda, shape, u32_of};
use super::check_rows;
use crate::backend::{Lightning, MAX_VERIFY_ROWS, Pass, Result, internal};
use crate::core::spec::LightningSpec;

/// Angles of the rows of a pass, the same for every lightning layer.
pub(in crate::backend::cuda) struct Rope {
    theta: f64,
    /// `[64]` f32.
    frequencies: DeviceBuffer,
    /// `[rows][64]` of (cos, sin).
    table: DeviceBuffer,
    /// The table is that of the present pass.
    fresh: bool,
}

/// `theta^(−2i/128)` as f32, rounded where the reference rounds: after the power and after its reciprocal.
fn frequencies(theta: f64) -> Vec<f32> {
    (0..HEAD / 2).map(|i| 1.0 / (theta.powf((2 * i) as f64 / HEAD as f64) as f32)).collect()
}

impl Lightning for Cuda {
    fn bind_states(&mut self, layer: usize, states: &mut [&mut Recurrent]) -> Result<()> {
        let table = Tables::of_layer(layer)?;
        for state in states.iter_mut() {
            state.table = table;
        }
        self.bind(table, states.iter().map(|state| state.entry()))
    }

    fn lightning_rows(
        &mut self,
        o: &mut Buf,
        x: &Buf,
        q_norm: Option<&Vector>,
        k_norm: Option<&Vector>,
        states: &mut [&mut Recurrent],
        spec: &LightningSpec,
        eps: f32,
        pass: Pass,
    ) -> Result<()> {
        self.step.flush()?;
        let width = spec.heads * HEAD;
        x.narrow("lightning", (spec.heads + 2 * spec.kv_heads) * HEAD)?;
        let to = o.wide("lightning", width)?;
        check_rows("lightning", o, pass.rows())?;
        self.step.groups(pass, states.len())?;
        let rope = self.angles(spec, pass)?;
        let [q_norm, k_norm] = [q_norm, k_norm].map(|norm| norm.map_or(0, |norm| norm.memory.ptr()));
        let (heads, kv, ldo, ldx) = (u32_of(spec.heads)?, u32_of(spec.kv_heads)?, u32_of(o.width)?, u32_of(x.width)?);
        let (k_col, v_col) = (u32_of(width)?, u32_of((spec.heads + spec.kv_heads) * HEAD)?);
        let first = states.first().ok_or_else(|| internal("lightning", "a pass of no sequence"))?;
        let (table, [s, pend_k, pend_v, slopes]) = (first.table, first.entry());
        match pass {
            Pass::Verify { rows } => {
                self.bind(table, states.iter().map(|state| state.entry()))?;
                self.tables.flush()?;
                // With several, a block for each row looks whether a sequence begins there: the recording fits any of them.
                let sequences = u32_of(if states.len() > 1 { rows } else { 1 })?;
                let leave = self.leave_gated(o.ptr(), width, pass, x)?;
                // SAFETY: extents are checked above; buffers outlive the queue's work and CUDA graphs.
                unsafe {
                    launch::LightningVerify {
                        o: to,
                        ldo,
                        x: x.ptr(),
                        ldx,
                        q_col: 0,
                        k_col,
                        v_col,
                        q_norm,
                        k_norm,
                        rope,
                        at: self.step.rows_ptr(),
                        of: self.tables.ptr(table),
                        next_norm: leave.next.norm,
                        next_x: leave.next.x,
                        next_sums: leave.next.sums,
                        gate: leave.way.gate,
                        heads,
                        kv_heads: kv,
                        scale: spec.scale,
                        eps,
                        all: u32_of(rows)?,
                        sequences,
                    }
                    .launch(self.device.driver())
                }
            }
            Pass::Prefill { rows } => {
                self.ready.forget();
                let qk_width = (spec.heads + spec.kv_heads) * HEAD;
                let qk = self.input_room(qk_width)?;
                let (ldqk, rows) = (u32_of(qk_width)?, u32_of(rows)?);
                let d = self.device.driver();
                // SAFETY: extents are checked above; buffers outlive the queue's work and CUDA graphs.
                unsafe {
                    launch::LightningQk {
                        dst: qk,
                        ldd: ldqk,
                        x: x.ptr(),
                        ldx,
                        q_col: 0,
                        k_col,
                        q_norm,
                        k_norm,
                        rope,
                        heads,
                        kv_heads: kv,
                        eps,
                        rows,
                    }
                    .launch(d)?
                };
                // SAFETY: extents are checked above; buffers outlive the queue's work and CUDA graphs.
                unsafe {
                    launch::LightningPrefill {
                        o: to,
                        ldo,
                        qk,
                        ldqk,
                        v: x.column((spec.heads + spec.kv_heads) * HEAD),
                        ldv: ldx,
                        state: s,
                        pend_k,
                        pend_v,
                        slopes,
                        step: self.step.ptr(),
                        heads,
                        kv_heads: kv,
                        scale: spec.scale,
                        rows,
                    }
                    .launch(d)
                }
            }
        }
    }

    fn fold(&mut self, state: &mut Recurrent, spec: &LightningSpec) -> Result<()> {
        if self.step.pending() == 0 {
            return Ok(());
        }
        self.step.flush()?;
        // SAFETY: extents are checked above; buffers outlive the queue's work and CUDA graphs.
        unsafe {
            launch::LightningFold {
                state: state.state.ptr(),
                pend_k: state.pend_k.ptr(),
                pend_v: state.pend_v.ptr(),
                slopes: state.slopes.ptr(),
                step: self.step.ptr(),
                heads: u32_of(spec.heads)?,
                kv_heads: u32_of(spec.kv_heads)?,
            }
            .launch(self.device.driver())
        }
    }
}

impl Cuda {
    /// Makes the table of angles for models with this rotation; called when their state is made.
    pub(in crate::backend::cuda) fn prepare_rope(&mut self, spec: &LightningSpec) -> Result<()> {
        let Some(theta) = spec.rope_theta else {
            return Ok(());
        };
        if self.rope.as_ref().is_some_and(|rope| rope.theta.to_bits() == theta.to_bits()) {
            return Ok(());
        }
        let frequencies = self.upload_floats(&frequencies(theta), Account::Work)?;
        let rows = self.prefill_rows.max(MAX_VERIFY_ROWS);
        let table = self.device.alloc("angles", rows * (HEAD / 2) * 8, Account::Work)?;
        self.rope = Some(Rope { theta, frequencies, table, fresh: false });
        self.touch();
        Ok(())
    }

    /// The next lightning layer belongs to another pass.
    pub(in crate::backend::cuda) fn forget_rope(&mut self) {
        if let Some(rope) = &mut self.rope {
            rope.fresh = false;
        }
    }

    /// The table of this pass, made by the first layer that needs it; null where nothing is rotated.
    pub(super) fn angles(&mut self, spec: &LightningSpec, pass: Pass) -> Result<DevicePtr> {
        let Some(theta) = spec.rope_theta else {
            return Ok(0);
        };
        let step = self.step.ptr();
        let at = match pass {
            Pass::Verify { .. } => self.step.rows_ptr(),
            Pass::Prefill { .. } => 0,
        };
        match &mut self.rope {
            Some(rope) if rope.theta.to_bits() == theta.to_bits() => {
                if !rope.fresh {
                    // SAFETY: extents are checked above; buffers outlive the queue's work and CUDA graphs.
                    unsafe {
                        launch::RopeTable {
                            table: rope.table.ptr(),
                            inv_freq: rope.frequencies.ptr(),
                            step,
                            at,
                            rows: u32_of(pass.rows())?,
                        }
                        .launch(self.device.driver())?
                    };
                    rope.fresh = true;
                }
                Ok(rope.table.ptr())
            }
            _ => Err(shape("lightning", "the rotation its state was made for", theta)),
        }
    }
}
