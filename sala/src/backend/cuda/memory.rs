//! Allocations of the device.

use super::cache::Cache;
use super::device::{Account, DeviceBuffer};
use super::driver::{Home, Queue};
use super::ledger::{PAGED_SPARE_BYTES, SPARE_BYTES};
use super::pool::PoolSize;
use super::proofs::{Proofs, shapes};
use super::selection::{Selection, Sums};
use super::tensors::{Buf, HEAD, Matrix, Recurrent, Vector, floats, rows_of_kind};
use super::{Cuda, PAGED_ROWS, check_shape, launch, limits, selection};
use crate::backend::sections::{self, Section};
use crate::backend::{BackendError, BufKind, Form, MAX_VERIFY_ROWS, Memory, Result, Wanted, WeightView, host, room};
use crate::core::spec::{LightningSpec, Mixer, ModelSpec, SparseSpec};
use crate::engine::protocol::{Dtype, MemoryInfo, Precision};

impl Memory for Cuda {
    type Buf = Buf;
    type Matrix = Matrix;
    type Vector = Vector;
    type Cache = Cache;
    type Recurrent = Recurrent;
    type Selection = Selection;
    type Sums = Sums;

    fn kind(&self) -> &'static str {
        "cuda"
    }

    fn describe(&self) -> String {
        self.info().name.clone()
    }

    fn notes(&self) -> Vec<String> {
        let missing = "cuBLASLt was not found: prefill GEMMs use the program's own kernel, which is slower";
        let without = self.gemm_library().is_none();
        without.then(|| missing.to_owned()).into_iter().chain(self.notes.iter().cloned()).collect()
    }

    fn cache_dtype(&self) -> Dtype {
        Dtype::Bf16
    }

    fn prefill_rows(&self) -> usize {
        self.prefill_rows
    }

    fn check(&mut self, spec: &ModelSpec, prefill: Precision) -> Result<()> {
        limits::model(spec, self.info().shared_limit)?;
        if prefill == Precision::Fp8 {
            self.ready_for_fp8(spec)?;
        }
        self.proofs = Some(Proofs::start(&self.device, spec));
        Ok(())
    }

    fn matrices(&mut self, wanted: &[Wanted<'_>]) -> Result<Vec<Matrix>> {
        self.weights(wanted)
    }

    fn read_in(&mut self, matrix: &mut Matrix, sections: &[Section]) -> Result<()> {
        sections::check(sections, matrix.out)?;
        self.numbered += 1;
        (matrix.sections, matrix.number) = (sections.to_vec(), self.numbered);
        Ok(())
    }

    fn vector(&mut self, view: WeightView<'_>) -> Result<Vector> {
        let n = view.shape.iter().product();
        let values = floats(view.dtype, view.data)?;
        check_shape(values.len() == n, "vector", format_args!("{n} values for {}", view.name), values.len())?;
        Ok(Vector { memory: self.upload_floats(&values, Account::Weights)?, n })
    }

    fn random_matrix(&mut self, parts: &[(usize, Form)], inner: usize, std: f32, seed: u64) -> Result<Matrix> {
        self.random(parts, inner, std, seed)
    }

    fn random_gate_up(&mut self, out: usize, inner: usize, std: f32, seed: u64, form: Form) -> Result<Matrix> {
        self.random_interleaved(out, inner, std, seed, form)
    }

    fn parts(&self, matrix: &Matrix) -> Vec<(usize, Form, usize)> {
        matrix.parts.iter().map(|p| (p.rows, p.form, p.memory.bytes())).collect()
    }

    fn ones(&mut self, n: usize) -> Result<Vector> {
        let memory = self.device.alloc("norm weights", n * 4, Account::Weights)?;
        // SAFETY: the memory was just made with this size.
        unsafe { launch::FillF32 { dst: memory.ptr(), n: n as u64, value: 1.0 }.launch(self.device.driver())? };
        Ok(Vector { memory, n })
    }

    fn plan_context(&mut self, spec: &ModelSpec, limit: usize, requested: bool) -> Result<()> {
        self.touch();
        if self.options.pool.is_some() {
            return Ok(());
        }
        let free = self.device.free_bytes()?;
        let fits = room::resident_tokens(spec, free);
        let (tokens, limited) = (limit as u64, self.options.most_bytes.is_some());
        let layers = spec.layers(Mixer::Sparse);
        let can = layers > 0 && self.device.driver().granularity(Home::Host).is_some();
        if fits >= tokens || !can || !(requested || limited || fits < room::USUAL_CONTEXT) {
            return Ok(());
        }
        let few = self.prefill_rows;
        // Room for rows in e4m3 is for the passes that were planned when the model was loaded.
        let inner = if self.scratch.reads_fp8() { spec.intermediate.max(spec.hidden) } else { 0 };
        let planned = |rows: usize| {
            let more = (rows.saturating_sub(few) * inner) as u64;
            room::paged(spec, free.saturating_sub(more), rows, tokens).map(|plan| (rows, plan))
        };
        let useful = |(_, plan): &(usize, room::PagedPlan)| plan.is_useful(spec, tokens);
        let long = if self.long_passes() { planned(PAGED_ROWS).ok().filter(useful) } else { None };
        let planned = long.map_or_else(|| planned(few), Ok);
        match planned {
            Ok((rows, plan)) => {
                self.prefill_rows = rows;
                let size = PoolSize { blocks: plan.blocks, staged_rows: plan.staged_rows };
                self.pools.prepare(&self.device, &spec.sparse, Some(size), layers, rows)?;
                if self.scratch.reads_fp8() {
                    self.ready_for_fp8(spec)?;
                }
                self.notes.push(plan.line(tokens));
                self.notes.extend(host::free_bytes().and_then(|free| plan.short_of_host(tokens, free)));
                Ok(())
            }
            Err(needed) if requested || limited => {
                let most = self.options.most_bytes.map(|most| most + needed.saturating_sub(free));
                Err(BackendError::Memory {
                    what: format!("a context of {tokens} tokens with keys and values in memory"),
                    needed,
                    free,
                    advice: match most {
                        Some(most) => {
                            let mib = most.div_ceil(1 << 20);
                            format!("--gpu-memory {mib}MiB would do, or a smaller --ctx")
                        }
                        None => "ask for a smaller --ctx, or for --weights 4bit".to_owned(),
                    },
                })
            }
            // The context grows as far as memory allows.
            Err(_) => Ok(()),
        }
    }

    fn page_out(
        &mut self,
        spec: &ModelSpec,
        limit: usize,
        sequences: &mut [Vec<&mut Cache>],
    ) -> Result<Option<String>> {
        self.leave_device(spec, limit, sequences)
    }

    fn buf(&mut self, width: usize, kind: BufKind) -> Result<Buf> {
        self.touch();
        Buf::with_rows(&self.device, width, kind, rows_of_kind(kind, self.prefill_rows))
    }

    fn alternating_bufs(&mut self, groups: &[&[(usize, BufKind)]]) -> Result<Vec<Vec<Buf>>> {
        self.touch();
        Buf::alternating(&self.device, groups, self.prefill_rows)
    }

    fn caches(&mut self, spec: &SparseSpec, limit: usize, layers: usize) -> Result<Vec<Cache>> {
        self.touch_own();
        let tables: Vec<_> = (0..layers).map(|_| self.tables.other()).collect();
        let home = if self.pools.size.is_some() { Home::Host } else { Home::Device };
        Cache::all(&self.device, &self.ledgers.newest, spec, limit, &tables, home)
    }

    fn recurrent(&mut self, spec: &LightningSpec) -> Result<Recurrent> {
        limits::lightning(spec)?;
        self.touch_own();
        self.prepare_rope(spec)?;
        let pending = 2 * MAX_VERIFY_ROWS * spec.kv_heads * HEAD * 2;
        Ok(Recurrent {
            state: self.device.zeroed("recurrent state", spec.heads * HEAD * HEAD * 4, Account::State)?,
            pend_k: self.device.zeroed("pending rows", pending, Account::State)?,
            pend_v: self.device.zeroed("pending rows", pending, Account::State)?,
            slopes: self.upload_floats(&spec.slopes(), Account::State)?,
            table: self.tables.other(),
        })
    }

    fn selection(&mut self, spec: &SparseSpec, limit: usize) -> Result<Selection> {
        self.touch();
        Selection::new(&self.device, spec, limit, self.prefill_rows)
    }

    fn sums(&mut self, sel: &Selection) -> Result<Sums> {
        selection::sums(&self.device, sel.plan.score_blocks)
    }

    fn reserve(&mut self, cache: &mut Cache, limit: usize) -> Result<()> {
        cache.joined().reserve(limit)
    }

    fn wants_anew(&self, cache: &Cache, keep: usize, limit: usize) -> u64 {
        cache.wants_anew(keep, limit)
    }

    fn room(&self) -> Result<Option<u64>> {
        let spare = if self.pools.size.is_some() { PAGED_SPARE_BYTES } else { SPARE_BYTES };
        let room = self.device.free_bytes()?.saturating_sub(spare);
        Ok(Some(room.min(self.ledgers.room_by_host())))
    }

    fn row_seconds(&self, positions: usize) -> f64 {
        positions as f64 * self.pools.seconds_per_row
    }

    fn memory(&self) -> MemoryInfo {
        self.device.memory()
    }
}

impl Cuda {
    /// Finds everything that may be missing for prefill in fp8 before an answer waits for it: products and room for
    /// operands.
    fn ready_for_fp8(&mut self, spec: &ModelSpec) -> Result<()> {
        let shapes = shapes(self.info(), spec, Precision::Fp8);
        for (out, inner, to) in shapes.iter().copied() {
            self.device.driver().prove_fp8(out, inner, to)?;
        }
        for (out, inner, _) in shapes {
            self.narrow_room(|scratch| &mut scratch.narrow_weight, out, inner)?;
            self.narrow_room(|scratch| &mut scratch.narrow_input, self.prefill_rows, inner)?;
        }
        Ok(())
    }

    pub(super) fn upload_floats(&mut self, values: &[f32], account: Account) -> Result<DeviceBuffer> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let memory = self.device.alloc("norm weights", bytes.len(), account)?;
        // SAFETY: both have this length until the wait is over. A separate small copy: bulk copies on the other queue
        // continue meanwhile.
        unsafe { self.device.driver().copy_in(memory.ptr(), bytes.as_ptr(), bytes.len(), Queue::Compute)? };
        self.device.driver().synchronize(Queue::Compute)?;
        Ok(memory)
    }
}
