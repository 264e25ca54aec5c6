//! The GPU backend: launches kernels, owns device memory, records decode steps.
//!
//! `driver` is the border to a device; everything above it runs the same on a GPU (`nvidia`) and on the emulated
//! device (`emulated`), which is how it is tested without one. Unsafe code is confined to this folder.
//!
//! | file | owns |
//! |---|---|
//! | `driver` | the trait of a device |
//! | `nvidia`, `products`, `images` | the CUDA driver, cuBLASLt, embedded kernels |
//! | `emulated` | the same kernels on the CPU |
//! | `device`, `growable`, `staging` | memory: owned, growing, on its way |
//! | `step`, `graph` | what changes between steps; recordings |
//! | `launch` | one typed wrapper per kernel |
//! | `tensors`, `weights` | the trait's buffers; weights on their way into them |
//! | `ops` | the trait's operations as launches |
//! | `state` | images out and in |
//! | `arrivals` | rows of a resumed session that follow while it is in use |
//! | `draft` | the draft head's operations |
//! | `measure` | what the device itself can do: the ceilings |
//!
//! Number types: weights, inputs of products and KV rows bf16; residual stream, mixer outputs, logits and recurrent
//! state f32. Prefill products of a whole chunk go through cuBLASLt or `gemm_*`; everything of 1..16 rows goes through
//! the `skinny_*` kernels, whose result for a row does not depend on the rows beside it.
#![allow(unsafe_code)]

mod arrivals;
mod device;
mod draft;
mod driver;
mod emulated;
mod graph;
mod growable;
mod images;
mod launch;
mod measure;
mod nvidia;
mod ops;
mod products;
mod staging;
mod state;
mod step;
mod tensors;
mod weights;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

pub use draft::Window;
pub use driver::DeviceInfo;
use driver::{Queue, failed};
pub use nvidia::{list, usable};
pub use tensors::{Buf, Cache, Matrix, Recurrent, Selection, Vector};

use super::{Backend, BackendError, BufKind, Candidates, GRID, HeadRows, Pass, Result, StepKey, WeightView};
use crate::protocol::engine::{Cancel, Dtype, ImageTensor, MemoryInfo, RowsFeed, Token};
use crate::spec::{LightningSpec, SparseSpec};
use arrivals::Arrivals;
use device::Device;
pub use device::Guards;
use graph::{Graphs, Stage};
pub use measure::Ceilings;
use ops::{CandidateBuffers, Rope, Scratch};
use staging::Staging;
use step::{Posted, Step};
use tensors::CacheLedger;

/// Rows of a prefill pass on a GPU with room for the buffers, on a smaller one, and emulated.
const PREFILL_ROWS: [usize; 3] = [4096, 2048, 256];
/// Memory from which a GPU gets the large passes.
const LARGE_BYTES: u64 = 40 << 30;

/// What may be chosen when a device is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Rows of a prefill pass; 0 chooses by memory.
    pub prefill_rows: usize,
    /// Never use a products library, even if there is one.
    pub own_products: bool,
    /// Run every step eagerly.
    pub no_recording: bool,
    /// Guard words behind every buffer.
    pub guards: Guards,
}

/// One device, ready for a model.
pub struct Cuda {
    // Recordings name the addresses of everything below, so they go first.
    graphs: Graphs,
    step: Step,
    draft: Option<Posted>,
    staging: Staging,
    /// Rows of the last restore, until all are here.
    arrivals: Option<Arc<Arrivals>>,
    scratch: Scratch,
    candidates: Option<CandidateBuffers>,
    rope: Option<Rope>,
    ledger: Arc<CacheLedger>,
    device: Device,
    options: Options,
    prefill_rows: usize,
    /// Moves on whenever a buffer that a recording may name is made.
    epoch: u64,
    notes: Vec<String>,
}

impl Cuda {
    /// Opens GPU number `gpu`.
    ///
    /// # Errors
    /// One sentence for the user: why there is no usable GPU.
    pub fn open(gpu: usize, options: Options) -> Result<Self> {
        let device = nvidia::Nvidia::open(gpu).map_err(|cause| failed("No usable NVIDIA GPU", cause))?;
        Self::on(Device::new(Arc::new(device), options.guards), options)
    }

    /// Opens the emulated device; `library` is made by `kernels/emulator/build.sh`.
    ///
    /// # Errors
    /// The loader's words.
    pub fn emulated(library: &Path, options: Options) -> Result<Self> {
        let device = emulated::Emulated::open(library).map_err(|cause| failed("emulated device", cause))?;
        Self::on(Device::new(Arc::new(device), options.guards), options)
    }

    fn on(device: Device, options: Options) -> Result<Self> {
        let info = device.driver().info();
        let [large, small, emulated] = PREFILL_ROWS;
        let prefill_rows = match (options.prefill_rows, info.capability) {
            (0, 0) => emulated,
            (0, _) if info.total_bytes >= LARGE_BYTES => large,
            (0, _) => small,
            (rows, _) => rows.next_multiple_of(GRID),
        };
        let mut notes = Vec::new();
        if device.driver().products().is_none() {
            notes.push(
                "cuBLASLt was not found: prefill products use the program's own kernel, which is slower".to_owned(),
            );
        }
        Ok(Cuda {
            graphs: Graphs::new(&device),
            step: Step::new(&device, prefill_rows)?,
            draft: None,
            staging: Staging::new(&device)?,
            scratch: Scratch::default(),
            candidates: None,
            rope: None,
            ledger: Arc::default(),
            options,
            prefill_rows,
            arrivals: None,
            epoch: 1,
            notes,
            device,
        })
    }

    /// What the device is.
    pub fn info(&self) -> &DeviceInfo {
        self.device.driver().info()
    }

    /// Name of the products library in use, if any.
    pub fn products(&self) -> Option<&str> {
        if self.options.own_products { None } else { self.device.driver().products() }
    }

    /// Fallbacks taken, to be shown once.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Recordings made since the start.
    pub fn recordings(&self) -> usize {
        self.graphs.made()
    }

    /// Milliseconds the device spends on what `work` gives it, by the device's own clock.
    ///
    /// # Errors
    /// Those of `work` and of the device.
    pub fn timed(&mut self, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<f32> {
        let (from, to) = (self.device.driver().event()?, self.device.driver().event()?);
        let timed = (|| {
            self.device.driver().record(&from, Queue::Compute)?;
            work(self)?;
            self.device.driver().record(&to, Queue::Compute)?;
            self.device.driver().wait_host(&to)?;
            self.device.driver().elapsed_ms(&from, &to)
        })();
        self.device.driver().drop_event(from);
        self.device.driver().drop_event(to);
        timed
    }

    /// Fails if something was written behind a buffer; needs [`Options::guards`]. Waits.
    ///
    /// # Errors
    /// Which buffer, by size.
    pub fn check_guards(&self) -> Result<()> {
        self.device.check_guards()
    }

    /// Forgets recorded steps: the next one under any key may do something else.
    pub fn forget_steps(&mut self) {
        self.touch();
    }

    /// A buffer that recordings may name was made or is about to go.
    fn touch(&mut self) {
        self.epoch += 1;
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        self.graphs.clear();
        // Buffers are freed next; errors of earlier work were reported where it was given.
        let _ = self.device.driver().synchronize(Queue::Compute);
    }
}

impl Backend for Cuda {
    type Buf = Buf;
    type Matrix = Matrix;
    type Vector = Vector;
    type Cache = Cache;
    type Recurrent = Recurrent;
    type Selection = Selection;

    fn kind(&self) -> &'static str {
        "cuda"
    }

    fn describe(&self) -> String {
        self.info().name.clone()
    }

    fn cache_dtype(&self) -> Dtype {
        Dtype::Bf16
    }

    fn prefill_rows(&self) -> usize {
        self.prefill_rows
    }

    fn matrix(&mut self, parts: &[WeightView<'_>]) -> Result<Matrix> {
        self.stack(parts)
    }

    fn gate_up_matrix(&mut self, gate: WeightView<'_>, up: WeightView<'_>) -> Result<Matrix> {
        self.interleave(gate, up)
    }

    fn vector(&mut self, view: WeightView<'_>) -> Result<Vector> {
        self.norm_weight(view)
    }

    fn random_matrix(&mut self, out: usize, inner: usize, std: f32, seed: u64) -> Result<Matrix> {
        self.random(out, inner, std, seed)
    }

    fn random_gate_up(&mut self, out: usize, inner: usize, std: f32, seed: u64) -> Result<Matrix> {
        self.random_interleaved(out, inner, std, seed)
    }

    fn ones(&mut self, n: usize) -> Result<Vector> {
        self.constant(n, 1.0)
    }

    fn buf(&mut self, width: usize, kind: BufKind) -> Result<Buf> {
        self.touch();
        Buf::new(&self.device, width, kind, self.prefill_rows)
    }

    fn cache(&mut self, spec: &SparseSpec, limit: usize) -> Result<Cache> {
        self.touch();
        Cache::new(&self.device, &self.ledger, spec, limit)
    }

    fn recurrent(&mut self, spec: &LightningSpec) -> Result<Recurrent> {
        self.touch();
        self.prepare_rope(spec)?;
        self.new_recurrent(spec)
    }

    fn selection(&mut self, spec: &SparseSpec, limit: usize) -> Result<Selection> {
        self.touch();
        Selection::new(&self.device, spec, limit, self.prefill_rows)
    }

    fn memory(&self) -> MemoryInfo {
        self.device.memory()
    }

    fn position(&self) -> usize {
        self.step.position()
    }

    fn seek(&mut self, position: usize) -> Result<()> {
        self.forget_rope();
        self.step.seek(position)
    }

    fn reserve(&mut self, cache: &mut Cache, limit: usize) -> Result<()> {
        cache.reserve(&self.device, &self.ledger, limit)
    }

    fn set_tokens(&mut self, tokens: &[Token]) -> Result<()> {
        self.forget_rope();
        self.step.set_tokens(tokens)
    }

    fn step(&mut self, key: StepKey, body: &mut dyn FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.forget_rope();
        self.step.flush()?;
        if self.arrivals.as_ref().is_some_and(|a| a.settled()) {
            self.arrivals = None;
        }
        let stage = if self.options.no_recording || self.arrivals.is_some() {
            Stage::RunEagerly
        } else {
            self.graphs.stage(key, self.epoch)
        };
        match stage {
            Stage::RunEagerly => {
                body(self)?;
                self.graphs.warmed(key);
            }
            Stage::Record => {
                let recorded = self.device.driver().begin_recording().and_then(|()| {
                    let run = body(self);
                    let recording = self.device.driver().end_recording();
                    run.and(recording)
                });
                self.forget_rope();
                match recorded {
                    Ok(recording) => {
                        self.graphs.keep(key, recording);
                        self.graphs.replay(key)?;
                    }
                    Err(cause) => {
                        self.notes.push(format!(
                            "steps are not recorded ({cause}): every kernel is launched singly, which is slower"
                        ));
                        self.graphs.refuse(key);
                        body(self)?;
                    }
                }
            }
            Stage::Replay => self.graphs.replay(key)?,
        }
        self.forget_rope();
        Ok(())
    }

    fn advance(&mut self, pass: Pass, rows: usize) -> Result<()> {
        self.forget_rope();
        self.step.advance(pass, rows)
    }

    fn fold(&mut self, state: &mut Recurrent, spec: &LightningSpec) -> Result<()> {
        self.fold_pending(state, spec)
    }

    fn folded(&mut self) {
        self.step.folded();
    }

    fn synchronize(&mut self) -> Result<()> {
        self.device.driver().synchronize(Queue::Copy)?;
        self.device.driver().synchronize(Queue::Compute)
    }

    fn embed(&mut self, h: &mut Buf, table: &Matrix, scale: f32, pass: Pass) -> Result<()> {
        self.op_embed(h, table, scale, pass)
    }

    fn norm_linear(&mut self, dst: &mut Buf, h: &Buf, norm: &Vector, eps: f32, w: &Matrix, pass: Pass) -> Result<()> {
        self.op_norm_linear(dst, h, norm, eps, w, pass)
    }

    fn norm_gate_up(&mut self, dst: &mut Buf, h: &Buf, norm: &Vector, eps: f32, w: &Matrix, pass: Pass) -> Result<()> {
        self.op_norm_gate_up(dst, h, norm, eps, w, pass)
    }

    fn linear_add(&mut self, h: &mut Buf, x: &Buf, w: &Matrix, scale: f32, pass: Pass) -> Result<()> {
        self.op_linear_add(h, x, w, scale, pass)
    }

    fn append_kv(&mut self, cache: &mut Cache, x: &Buf, spec: &SparseSpec, pass: Pass) -> Result<()> {
        self.op_append_kv(cache, x, spec, pass)
    }

    fn select_blocks(
        &mut self,
        sel: &mut Selection,
        x: &Buf,
        cache: &Cache,
        spec: &SparseSpec,
        pass: Pass,
    ) -> Result<()> {
        self.op_select_blocks(sel, x, cache, spec, pass)
    }

    fn attend(
        &mut self,
        o: &mut Buf,
        x: &Buf,
        sel: &Selection,
        cache: &Cache,
        spec: &SparseSpec,
        pass: Pass,
    ) -> Result<()> {
        self.op_attend(o, x, sel, cache, spec, pass)
    }

    fn lightning(
        &mut self,
        o: &mut Buf,
        x: &Buf,
        q_norm: Option<&Vector>,
        k_norm: Option<&Vector>,
        state: &mut Recurrent,
        spec: &LightningSpec,
        eps: f32,
        pass: Pass,
    ) -> Result<()> {
        self.op_lightning(o, x, [q_norm, k_norm], state, spec, eps, pass)
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
        self.op_gate_output(h, o, norm, eps, x, gate, w, scale, pass)
    }

    fn tap(&mut self, taps: &mut Buf, slot: usize, h: &Buf, pass: Pass) -> Result<()> {
        self.op_tap(taps, slot, h, pass)
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
        self.op_head(logits, h, norm, eps, divisor, w, rows, pass)
    }

    fn top_candidates(&mut self, logits: &Buf, vocab: usize, rows: HeadRows, pass: Pass) -> Result<()> {
        self.op_top_candidates(logits, vocab, rows.count(pass))
    }

    fn candidates(&mut self, rows: usize) -> Result<Vec<Candidates>> {
        self.fetch_candidates(rows)
    }

    fn read(&mut self, buf: &Buf, rows: usize) -> Result<Vec<f32>> {
        self.read_buf(buf, rows)
    }

    fn write(&mut self, buf: &mut Buf, values: &[f32]) -> Result<()> {
        self.write_buf(buf, values)
    }

    fn read_selection(&mut self, sel: &Selection, spec: &SparseSpec, rows: usize) -> Result<Vec<Vec<Vec<u32>>>> {
        self.fetch_selection(sel, spec, rows)
    }

    fn read_rows(&mut self, cache: &Cache, spec: &SparseSpec, positions: Range<usize>) -> Result<Vec<ImageTensor>> {
        self.rows_out(cache, spec, positions)
    }

    fn write_rows(
        &mut self,
        cache: &mut Cache,
        spec: &SparseSpec,
        start: usize,
        tensors: &[&ImageTensor],
    ) -> Result<()> {
        self.rows_in(cache, spec, start, tensors)
    }

    fn restore_rows(
        &mut self,
        caches: &mut [(usize, &mut Cache)],
        spec: &SparseSpec,
        feeds: &[Arc<dyn RowsFeed>],
    ) -> Result<()> {
        self.bring_rows(caches, spec, feeds)
    }

    fn settle_rows(&mut self, keep: usize) -> Result<()> {
        self.arrivals.take().map_or(Ok(()), |a| a.settle(keep))
    }

    fn stop_on(&mut self, cancel: &Cancel) {
        if let Some(arrivals) = &self.arrivals {
            arrivals.stop_on(cancel);
        }
    }

    fn rows_coming(&self) -> bool {
        self.arrivals.as_ref().is_some_and(|a| !a.settled())
    }

    fn read_state(&mut self, state: &Recurrent, spec: &LightningSpec) -> Result<ImageTensor> {
        self.state_out(state, spec)
    }

    fn write_state(&mut self, state: &mut Recurrent, spec: &LightningSpec, image: Option<&ImageTensor>) -> Result<()> {
        self.state_in(state, spec, image)
    }
}

/// A shape that the caller got wrong.
fn shape(op: &'static str, expected: impl std::fmt::Display, found: impl std::fmt::Display) -> BackendError {
    BackendError::Shape { op, expected: expected.to_string(), found: found.to_string() }
}

/// Sizes and strides as kernels take them.
fn u32_of(value: usize) -> Result<u32> {
    u32::try_from(value)
        .map_err(|_| BackendError::Unsupported(format!("{value} is too large for a kernel's 32-bit size")))
}
