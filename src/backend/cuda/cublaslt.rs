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

use cudarc::cublaslt::{result, sys};

use super::driver::{DevicePtr, Driver, GEMM_ROWS, Gemm, GemmOut, Queue, failed};
use super::launch;
use super::nvidia::Nvidia;
use crate::backend::Result;

/// Scratch the library may use; refused algorithms that want more.
const WORKSPACE_BYTES: usize = 32 << 20;
/// A word behind two results that says whether they differ.
const FLAG_BYTES: usize = 16;
/// Candidates asked for per shape.
const CANDIDATES: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
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

    /// Runs one GEMM; `Ok(false)` where the shape is refused.
    ///
    /// # Safety
    /// As for [`Driver::gemm`]; the context is current.
    pub(super) unsafe fn run(&mut self, device: &Nvidia, gemm: &Gemm) -> Result<bool> {
        let shape = Shape { out: gemm.out, inner: gemm.inner, to: gemm.to };
        let plan = match self.plans.get(&shape) {
            Some(plan) => *plan,
            None => {
                // SAFETY: the caller's; the check only reads `w`.
                let plan = unsafe { self.plan(device, gemm) }?;
                self.plans.insert(shape, plan);
                plan
            }
        };
        let Plan::Algorithm(algorithm) = plan else {
            return Ok(false);
        };
        // SAFETY: the caller's.
        unsafe { self.matmul(device, gemm, &algorithm) }?;
        Ok(true)
    }

    /// Picks the algorithm of a shape and proves it on the device.
    unsafe fn plan(&mut self, device: &Nvidia, gemm: &Gemm) -> Result<Plan> {
        // The weight's own rows serve as activations: real numbers, already there.
        let most = (gemm.out / GEMM_ROWS * GEMM_ROWS).min(2048);
        if most < 4 * GEMM_ROWS {
            return Ok(Plan::Refused);
        }
        let probe = Gemm { x: gemm.w, d: 0, rows: most, scale: 1.0, ..*gemm };
        let candidates = self.candidates(&probe)?;
        let size = gemm.to.value_bytes() as usize;
        let scratch = device.alloc(2 * most * gemm.out * size + FLAG_BYTES)?;
        let mut chosen = Plan::Refused;
        for algorithm in candidates {
            // SAFETY: scratch holds two results of `most` rows and a flag.
            if unsafe { self.rows_keep_their_bits(device, &probe, &algorithm, scratch, size) }? {
                chosen = Plan::Algorithm(algorithm);
                break;
            }
        }
        device.free(scratch);
        Ok(chosen)
    }

    /// All rows at once against the same rows in differently placed parts. Compared on the device: carrying both results to the
    /// host took longer than the first long text itself.
    unsafe fn rows_keep_their_bits(
        &mut self,
        device: &Nvidia,
        probe: &Gemm,
        algorithm: &sys::cublasLtMatmulAlgo_t,
        scratch: DevicePtr,
        size: usize,
    ) -> Result<bool> {
        let row = probe.out * size;
        let total = probe.rows * row;
        let (part, flag) = (scratch + total as u64, scratch + 2 * total as u64);
        let mut differ = [0u8; 4];
        // SAFETY: `scratch` has room for two results and the flag, `probe.x` for all rows; `differ` is read after the wait. Rows are a
        // multiple of 64, so results end with a whole word of 16 bytes.
        unsafe {
            device.fill(scratch, 0, 2 * total + FLAG_BYTES, Queue::Compute)?;
            if self.matmul(device, &Gemm { d: scratch, ..*probe }, algorithm).is_err() {
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
                if self.matmul(device, &call, algorithm).is_err() {
                    return Ok(false);
                }
                start += rows;
            }
            launch::Differ { found: flag, a: scratch, b: part, n16: (start * row / 16) as u64 }.launch(device)?;
            device.copy_out(differ.as_mut_ptr(), flag, differ.len(), Queue::Compute)?;
            device.synchronize(Queue::Compute)?;
            Ok(differ == [0; 4])
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

    unsafe fn matmul(&mut self, device: &Nvidia, gemm: &Gemm, algorithm: &sys::cublasLtMatmulAlgo_t) -> Result<()> {
        let workspace = match self.workspace {
            Some(at) => at,
            None => *self.workspace.insert(device.alloc(WORKSPACE_BYTES)?),
        };
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
                self.stream,
            )
        }
        .map_err(|e| failed(format!("cuBLASLt [{} x {}] x [{} x {}]", gemm.rows, gemm.inner, gemm.out, gemm.inner), e))
    }
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
