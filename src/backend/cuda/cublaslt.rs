//! Prefill GEMMs by cuBLASLt, where its library can be loaded.
//!
//! One algorithm per shape, chosen once for the largest row count, with reduction schemes that split the inner axis
//! excluded: so every row is summed in one fixed order. That a row's bits depend neither on the number of rows nor on
//! its place among them is checked on the device when a shape is first used; a shape that fails is refused, and the
//! caller uses its own kernel.

use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::{size_of, zeroed};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use cudarc::cublaslt::{result, sys};

use super::device::Device;
use super::driver::{DevicePtr, Driver, GEMM_ROWS, Gemm, GemmOut, failed};
use super::launch;
use super::nvidia::Nvidia;
use crate::backend::Result;
use crate::spec::{Mixer, ModelSpec};

/// Scratch the library may use; refused algorithms that want more.
const WORKSPACE_BYTES: usize = 32 << 20;
/// What the library wants of the address of its workspace.
const ALIGNED: usize = 256;
/// A word behind two results that says whether they differ.
const FLAG_BYTES: usize = 16;
/// Candidates asked for per shape.
const CANDIDATES: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shape {
    out: usize,
    inner: usize,
    to: GemmOut,
}

#[derive(Clone, Copy)]
enum Plan {
    Algorithm(sys::cublasLtMatmulAlgo_t),
    /// No algorithm of the library keeps a row's bits for this shape.
    Refused,
}

/// The library, its scratch and the algorithm of each shape seen so far.
pub(super) struct CublasLt {
    handle: sys::cublasLtHandle_t,
    stream: sys::cudaStream_t,
    workspace: Option<DevicePtr>,
    plans: HashMap<Shape, Plan>,
    name: String,
}

// SAFETY: handle and stream are identifiers that any thread may use once the context is current; one at a time does, behind
// the device's mutex.
unsafe impl Send for CublasLt {}

/// Descriptors of one call; destroyed with it.
struct Call {
    desc: sys::cublasLtMatmulDesc_t,
    w: sys::cublasLtMatrixLayout_t,
    x: sys::cublasLtMatrixLayout_t,
    d: sys::cublasLtMatrixLayout_t,
}

impl CublasLt {
    /// `None` where the library is missing or does not start.
    pub(super) fn open(stream: cudarc::driver::sys::CUstream) -> Option<Self> {
        // SAFETY: looks for the library; the handle is destroyed in `drop`.
        let (handle, version) = unsafe {
            if !sys::is_culib_present() {
                return None;
            }
            (result::create_handle().ok()?, sys::cublasLtGetVersion())
        };
        let name = format!("cuBLASLt {}.{}", version / 10_000, version / 100 % 100);
        Some(CublasLt { handle, stream: stream.cast(), workspace: None, plans: HashMap::new(), name })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Runs one GEMM on the compute queue; `Ok(false)` where the shape is refused.
    ///
    /// # Safety
    /// As for [`Driver::gemm`]; the context is current.
    pub(super) unsafe fn run(&mut self, device: &Nvidia, gemm: &Gemm) -> Result<bool> {
        let shape = Shape { out: gemm.out, inner: gemm.inner, to: gemm.to };
        let Plan::Algorithm(algorithm) = self.planned(device, shape)? else {
            return Ok(false);
        };
        let workspace = match self.workspace {
            Some(at) => at,
            None => *self.workspace.insert(device.alloc(WORKSPACE_BYTES)?),
        };
        // SAFETY: the caller's.
        unsafe { self.matmul(gemm, &algorithm, self.stream, workspace) }?;
        Ok(true)
    }

    /// Chooses the algorithm of a shape before it is needed. What goes wrong is met again when it is.
    pub(super) fn prepare(&mut self, device: &Nvidia, out: usize, inner: usize, to: GemmOut) {
        if let Err(error) = self.planned(device, Shape { out, inner, to }) {
            tracing::debug!("GEMM library: {error}");
        }
    }

    fn planned(&mut self, device: &Nvidia, shape: Shape) -> Result<Plan> {
        if let Some(plan) = self.plans.get(&shape) {
            return Ok(*plan);
        }
        let begun = Instant::now();
        let plan = self.plan(device, shape)?;
        let (ms, refused) = (begun.elapsed().as_millis(), matches!(plan, Plan::Refused));
        tracing::debug!(out = shape.out, inner = shape.inner, ms, refused, "GEMM of the library");
        self.plans.insert(shape, plan);
        Ok(plan)
    }

    /// Picks the algorithm of a shape and proves it on the device.
    fn plan(&mut self, device: &Nvidia, shape: Shape) -> Result<Plan> {
        let most = (shape.out / GEMM_ROWS * GEMM_ROWS).min(2048);
        if most < 4 * GEMM_ROWS {
            return Ok(Plan::Refused);
        }
        let size = shape.to.value_bytes() as usize;
        let (weight, result) = (shape.out * shape.inner * 2, most * shape.out * size);
        let scratch = device.alloc(weight.next_multiple_of(ALIGNED) + WORKSPACE_BYTES + 2 * result + FLAG_BYTES)?;
        let chosen = self.prove(device, shape, most, scratch);
        device.free(scratch);
        chosen
    }

    fn prove(&mut self, device: &Nvidia, shape: Shape, most: usize, scratch: DevicePtr) -> Result<Plan> {
        let Shape { out, inner, to } = shape;
        let workspace = scratch + (out * inner * 2).next_multiple_of(ALIGNED) as u64;
        let results = workspace + WORKSPACE_BYTES as u64;
        // Any weight will do, and its first rows as activations: how an algorithm adds up does not depend on what it adds up.
        let random = launch::RandomBf16 { dst: scratch, n: (out * inner) as u64, std: 1.0, seed: 1 };
        // SAFETY: scratch begins with a weight.
        unsafe { random.as_launch(device.info(), "random_bf16", |launch| device.launch_beside(launch))? };
        let probe = Gemm { x: scratch, w: scratch, d: results, rows: most, out, inner, to, scale: 1.0 };
        for algorithm in self.candidates(&probe)? {
            // SAFETY: scratch holds a workspace, two results of `most` rows and a flag behind the weight.
            if unsafe { self.rows_keep_their_bits(device, &probe, &algorithm, workspace) }? {
                return Ok(Plan::Algorithm(algorithm));
            }
        }
        Ok(Plan::Refused)
    }

    /// All rows at once against the same rows in differently placed parts, behind each other at `probe.d`. Compared on the device:
    /// carrying both to the host takes longer than a text of some hundred tokens.
    unsafe fn rows_keep_their_bits(
        &mut self,
        device: &Nvidia,
        probe: &Gemm,
        algorithm: &sys::cublasLtMatmulAlgo_t,
        workspace: DevicePtr,
    ) -> Result<bool> {
        let row = probe.out * probe.to.value_bytes() as usize;
        let total = probe.rows * row;
        let (whole, part) = (probe.d, probe.d + total as u64);
        let flag = part + total as u64;
        let stream = device.side_stream().cast();
        // SAFETY: `d` has room for two results and the flag, `x` for all rows. Rows are a multiple of 64, so results end
        // with a whole word of 16 bytes.
        unsafe {
            device.zero_beside(whole, 2 * total + FLAG_BYTES)?;
            if self.matmul(probe, algorithm, stream, workspace).is_err() {
                return Ok(false);
            }
            // Cuts at and within tiles, on the grid of 64: what chunked prefill does.
            let mut start = 0;
            for (index, rows) in [2 * GEMM_ROWS, GEMM_ROWS, 3 * GEMM_ROWS].iter().cycle().enumerate() {
                let rows = (*rows).min(probe.rows - start);
                if rows == 0 || index > 64 {
                    break;
                }
                let call = Gemm {
                    x: probe.x + (start * probe.inner * 2) as u64,
                    d: part + (start * row) as u64,
                    rows,
                    ..*probe
                };
                if self.matmul(&call, algorithm, stream, workspace).is_err() {
                    return Ok(false);
                }
                start += rows;
            }
            let compare = launch::Differ { found: flag, a: whole, b: part, n16: (start * row / 16) as u64 };
            compare.as_launch(device.info(), "differ", |launch| device.launch_beside(launch))?;
            Ok(device.word_beside(flag)? == 0)
        }
    }

    fn candidates(&mut self, gemm: &Gemm) -> Result<Vec<sys::cublasLtMatmulAlgo_t>> {
        let say = |e: result::CublasError| failed("cuBLASLt", e);
        let call = Call::new(gemm)?;
        let preference = result::create_matmul_pref().map_err(say)?;
        let no_split = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_NONE as u32;
        // SAFETY: all descriptors are alive; results are plain numbers, zero being valid.
        unsafe {
            use sys::cublasLtMatmulPreferenceAttributes_t as P;
            let bytes = WORKSPACE_BYTES;
            result::set_matmul_pref_attribute(
                preference,
                P::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                (&raw const bytes).cast(),
                size_of::<usize>(),
            )
            .and_then(|()| {
                result::set_matmul_pref_attribute(
                    preference,
                    P::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                    (&raw const no_split).cast(),
                    4,
                )
            })
            .map_err(say)?;
            let mut found: [sys::cublasLtMatmulHeuristicResult_t; CANDIDATES] = zeroed();
            let mut count = 0;
            let status = sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                call.desc,
                call.w,
                call.x,
                call.d,
                call.d,
                preference,
                CANDIDATES as i32,
                found.as_mut_ptr(),
                &raw mut count,
            );
            let _ = result::destroy_matmul_pref(preference);
            status.result().map_err(say)?;
            Ok(found
                .iter()
                .take(usize::try_from(count).unwrap_or(0))
                .filter(|f| f.state.result().is_ok())
                .map(|f| f.algo)
                .collect())
        }
    }

    unsafe fn matmul(
        &self,
        gemm: &Gemm,
        algorithm: &sys::cublasLtMatmulAlgo_t,
        stream: sys::cudaStream_t,
        workspace: DevicePtr,
    ) -> Result<()> {
        let call = Call::new(gemm)?;
        let (alpha, beta) = match gemm.to {
            GemmOut::Bf16 | GemmOut::F32 => (1.0f32, 0.0f32),
            GemmOut::AddF32 => (gemm.scale, 1.0f32),
        };
        // SAFETY: pointers and sizes are the caller's; C and D are the same matrix, which the library allows.
        unsafe {
            result::matmul(
                self.handle,
                call.desc,
                (&raw const alpha).cast(),
                (&raw const beta).cast(),
                gemm.w as *const c_void,
                call.w,
                gemm.x as *const c_void,
                call.x,
                gemm.d as *const c_void,
                call.d,
                gemm.d as *mut c_void,
                call.d,
                algorithm,
                workspace as *mut c_void,
                WORKSPACE_BYTES,
                stream,
            )
        }
        .map_err(|e| failed(format!("cuBLASLt [{} x {}] x [{} x {}]", gemm.rows, gemm.inner, gemm.out, gemm.inner), e))
    }
}

/// Proofs of a model's shapes while its weights are loaded; given up with it.
pub(super) struct Proofs {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Proofs {
    /// Begins. Without a thread the first long text waits for them.
    pub(super) fn start(device: &Device, spec: &ModelSpec) -> Proofs {
        let stop = Arc::new(AtomicBool::new(false));
        let (device, shapes, asked) = (device.clone(), shapes(spec), Arc::clone(&stop));
        let work = move || {
            for Shape { out, inner, to } in shapes {
                if asked.load(Ordering::Relaxed) {
                    return;
                }
                device.driver().prepare_gemm(out, inner, to);
            }
        };
        Proofs { stop, thread: std::thread::Builder::new().name("gemm-proofs".into()).spawn(work).ok() }
    }
}

impl Drop for Proofs {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // What it could not do is done when it is needed, or never.
            let _ = thread.join();
        }
    }
}

/// Shapes of a model's GEMMs over many rows, each once.
fn shapes(spec: &ModelSpec) -> Vec<Shape> {
    let mut all = Vec::new();
    let mut add = |out: usize, inner: usize, to: GemmOut| {
        let shape = Shape { out, inner, to };
        if !all.contains(&shape) {
            all.push(shape);
        }
    };
    for mixer in &spec.mixers {
        let (projections, heads) = match mixer {
            Mixer::Sparse => (spec.sparse.projection_width(), spec.sparse.heads * spec.sparse.head_dim),
            Mixer::Lightning => (spec.lightning.projection_width(), spec.lightning.heads * spec.lightning.head_dim),
        };
        add(projections, spec.hidden, GemmOut::Bf16);
        add(spec.hidden, heads, GemmOut::AddF32);
        add(2 * spec.intermediate, spec.hidden, GemmOut::Bf16);
        add(spec.hidden, spec.intermediate, GemmOut::AddF32);
    }
    all
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // SAFETY: created in `open`. The scratch goes with the context.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

impl Call {
    /// The library counts in columns: `dᵀ [out, rows] = wᵀ-of-its-column-form · xᵀ`.
    fn new(gemm: &Gemm) -> Result<Self> {
        let say = |e: result::CublasError| failed("cuBLASLt", e);
        let (out, inner, rows) = (gemm.out as u64, gemm.inner as u64, gemm.rows as u64);
        let d_type = match gemm.to {
            GemmOut::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
            GemmOut::F32 | GemmOut::AddF32 => sys::cudaDataType_t::CUDA_R_32F,
        };
        let mut call = Call { desc: null_mut(), w: null_mut(), x: null_mut(), d: null_mut() };
        call.desc =
            result::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, sys::cudaDataType_t::CUDA_R_32F)
                .map_err(say)?;
        // CUBLAS_OP_T
        let transpose = 1i32;
        // SAFETY: the descriptor was just made; the attribute is a 32-bit integer.
        unsafe {
            result::set_matmul_desc_attribute(
                call.desc,
                sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA,
                (&raw const transpose).cast(),
                size_of::<i32>(),
            )
        }
        .map_err(say)?;
        call.w =
            result::create_matrix_layout(sys::cudaDataType_t::CUDA_R_16BF, inner, out, inner as i64).map_err(say)?;
        call.x =
            result::create_matrix_layout(sys::cudaDataType_t::CUDA_R_16BF, inner, rows, inner as i64).map_err(say)?;
        call.d = result::create_matrix_layout(d_type, out, rows, out as i64).map_err(say)?;
        Ok(call)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // SAFETY: null or made in `new`, used nowhere else.
        unsafe {
            for layout in [self.w, self.x, self.d] {
                if !layout.is_null() {
                    let _ = result::destroy_matrix_layout(layout);
                }
            }
            if !self.desc.is_null() {
                let _ = result::destroy_matmul_desc(self.desc);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_of_the_released_model_is_proved_once() {
        let spec = ModelSpec::from_json(include_str!("../../model/config_9b.json")).unwrap();
        let of = |out, inner, to| Shape { out, inner, to };
        let mut found = shapes(&spec);
        found.sort_by_key(|s| (s.out, s.inner));
        let expected = [
            of(4_096, 4_096, GemmOut::AddF32),
            of(4_096, 16_384, GemmOut::AddF32),
            of(8_704, 4_096, GemmOut::Bf16),
            of(16_384, 4_096, GemmOut::Bf16),
            of(32_768, 4_096, GemmOut::Bf16),
        ];
        assert_eq!(found, expected);
    }
}
