//! Lightning attention, and the angles its layers share.

use super::super::device::{Account, DeviceBuffer};
use super::super::driver::DevicePtr;
use super::super::launch;
use super::super::tables::Tables;
use super::super::tensors::{Buf, HEAD, Recurrent, Vector};
use super::super::{Cuda, shape};
use super::check_rows;
use crate::backend::{Lightning, MAX_VERIFY_ROWS, Pass, Result, internal};
use crate::core::spec::LightningSpec;

pub(in crate::backend::cuda) struct Rope {
    theta: f64,
    /// `[64]` f32.
    frequencies: DeviceBuffer,
    /// `[rows][64]` of (cos, sin).
    table: DeviceBuffer,
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

    fn lightning(
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
        let first = states.first().ok_or_else(|| internal("lightning", "a pass of no sequence"))?;
        let (table, [state, pend_k, pend_v, slopes]) = (first.table, first.entry());
        let v_col = (spec.heads + spec.kv_heads) * HEAD;
        let operands = launch::Lightning {
            o: to,
            ldo: o.width,
            x: x.ptr(),
            ldx: x.width,
            k_col: width,
            v_col,
            q_norm,
            k_norm,
            rope,
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            scale: spec.scale,
            eps,
            ..launch::Lightning::default()
        };
        match pass {
            Pass::Verify { rows } => {
                self.bind(table, states.iter().map(|state| state.entry()))?;
                self.tables.flush()?;
                let leave = self.leave_gated(o.ptr(), width, pass, x)?;
                let verify = launch::LightningVerify(launch::Lightning {
                    at: self.step.rows_ptr(),
                    of: self.tables.ptr(table),
                    next_norm: leave.next.norm,
                    next_x: leave.next.x,
                    next_sums: leave.next.sums,
                    gate: leave.way.gate,
                    all: rows,
                    // With several sequences, the block of each row checks whether a sequence begins there: the
                    // recording fits any of them.
                    sequences: if states.len() > 1 { rows } else { 1 },
                    ..operands
                });
                // SAFETY: extents are checked above; buffers outlive the queue's work and CUDA graphs.
                unsafe { verify.launch(self.device.driver()) }
            }
            Pass::Prefill { rows } => {
                self.ready.forget();
                let qk = self.input_room(v_col)?;
                let operands = launch::Lightning {
                    dst: qk,
                    ldd: v_col,
                    qk,
                    ldqk: v_col,
                    v: x.column(v_col),
                    ldv: operands.ldx,
                    state,
                    pend_k,
                    pend_v,
                    slopes,
                    step: self.step.ptr(),
                    rows,
                    ..operands
                };
                let d = self.device.driver();
                // SAFETY: extents are checked above; buffers outlive the queue's work and CUDA graphs.
                unsafe {
                    launch::LightningQk(operands).launch(d)?;
                    launch::LightningPrefill(operands).launch(d)
                }
            }
        }
    }

    fn fold(&mut self, state: &mut Recurrent, spec: &LightningSpec) -> Result<()> {
        if self.step.place.pending == 0 {
            return Ok(());
        }
        self.step.flush()?;
        let [state, pend_k, pend_v, slopes] = state.entry();
        let LightningSpec { heads, kv_heads, .. } = *spec;
        let step = self.step.ptr();
        let operands = launch::Lightning { state, pend_k, pend_v, slopes, step, heads, kv_heads, ..Default::default() };
        // SAFETY: the state was made with this spec; buffers outlive the queue's work and CUDA graphs.
        unsafe { launch::LightningFold(operands).launch(self.device.driver()) }
    }
}

impl Cuda {
    /// Makes the table of angles for models with this rotation; runs when their state is made.
    pub(in crate::backend::cuda) fn prepare_rope(&mut self, spec: &LightningSpec) -> Result<()> {
        let Some(theta) = spec.rope_theta else { return Ok(()) };
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

    pub(in crate::backend::cuda) fn forget_rope(&mut self) {
        if let Some(rope) = &mut self.rope {
            rope.fresh = false;
        }
    }

    /// The table of this pass, made by the first layer that needs it; null without rotation.
    pub(super) fn angles(&mut self, spec: &LightningSpec, pass: Pass) -> Result<DevicePtr> {
        let Some(theta) = spec.rope_theta else { return Ok(0) };
        let step = self.step.ptr();
        let at = match pass {
            Pass::Verify { .. } => self.step.rows_ptr(),
            Pass::Prefill { .. } => 0,
        };
        let rope = self.rope.as_mut().filter(|rope| rope.theta.to_bits() == theta.to_bits());
        let rope = rope.ok_or_else(|| shape("lightning", "the rotation its state was made for", theta))?;
        let (table, inv_freq, rows) = (rope.table.ptr(), rope.frequencies.ptr(), pass.rows());
        if !rope.fresh {
            // SAFETY: the table has room for the rows of every pass; it outlives the queue's work and CUDA graphs.
            unsafe { launch::RopeTable { table, inv_freq, step, at, rows }.launch(self.device.driver())? };
            rope.fresh = true;
        }
        Ok(table)
    }
}
