//! Prefill GEMMs by cuBLASLt, where its library can be loaded.
//!
//! One algorithm per shape, chosen once for the largest row count, with reduction schemes that split the inner axis
//! excluded: so every row is summed in one fixed order. The first use of a shape checks on the device that a row's
//! bits depend neither on the number of rows nor on its place among them; a shape that fails is refused, and the
//! caller uses its own kernel.

mod call;
mod room;

use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::{size_of, zeroed};
use std::time::Instant;

use cudarc::cublaslt::{result, sys};

use super::super::driver::{DevicePtr, Driver, GEMM_ROWS, Gemm, GemmOut, Queue, Scales, failed};
use super::super::launch;
use super::Nvidia;
use crate::backend::Result;
use call::Call;
use room::ProofRoom;

/// Limit of the library's scratch; algorithms that need more are refused.
const WORKSPACE_BYTES: usize = 32 << 20;
const ALIGNED: usize = 256;
/// A word after two results: whether they differ.
const FLAG_BYTES: usize = 16;
const CANDIDATES: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shape {
    out: usize,
    inner: usize,
    to: GemmOut,
    fp8: bool,
}

impl Shape {
    fn of(gemm: &Gemm) -> Shape {
        Shape { out: gemm.out, inner: gemm.inner, to: gemm.to, fp8: gemm.scales.is_some() }
    }
}

/// `None` where the shape is refused.
type Plan = Option<sys::cublasLtMatmulAlgo_t>;

pub(super) struct CublasLt {
    handle: sys::cublasLtHandle_t,
    stream: sys::cudaStream_t,
    workspace: Option<DevicePtr>,
    plans: HashMap<Shape, Plan>,
    pub(super) name: String,
}

// SAFETY: handle and stream are identifiers that any thread may use once the context is current; the device's mutex
// admits one at a time.
unsafe impl Send for CublasLt {}

impl CublasLt {
    pub(super) fn open(stream: cudarc::driver::sys::CUstream) -> Option<Self> {
        // The library has half a gigabyte and is mapped once: a search followed by a second open would take three
        // times as long, and every new thread or symbol lookup waits meanwhile.
        // SAFETY: the library's initialisers are NVIDIA's.
        let found = cudarc::get_lib_name_candidates("cublasLt")
            .iter()
            .find_map(|name| unsafe { libloading::Library::new(name) }.ok())?;
        // SAFETY: it is there; the handle is destroyed in `drop`.
        let (handle, version) = unsafe { (result::create_handle().ok()?, sys::cublasLtGetVersion()) };
        // The process now holds the library until it ends.
        drop(found);
        let name = format!("cuBLASLt {}.{}", version / 10_000, version / 100 % 100);
        Some(CublasLt { handle, stream: stream.cast(), workspace: None, plans: HashMap::new(), name })
    }

    /// `Ok(false)` where the shape is refused.
    ///
    /// # Safety
    /// As for [`Driver::gemm`]; the context is current.
    pub(super) unsafe fn run(&mut self, device: &Nvidia, gemm: &Gemm) -> Result<bool> {
        let Some(algorithm) = self.planned(device, Shape::of(gemm))? else { return Ok(false) };
        let workspace = match self.workspace {
            Some(at) => at,
            None => *self.workspace.insert(device.alloc(WORKSPACE_BYTES)?),
        };
        // SAFETY: the caller's.
        unsafe { self.matmul(gemm, &algorithm, self.stream, workspace) }?;
        Ok(true)
    }

    /// Chooses the algorithm of a shape in advance; `false` where it is refused.
    pub(super) fn prove(&mut self, device: &Nvidia, [out, inner]: [usize; 2], to: GemmOut, fp8: bool) -> Result<bool> {
        Ok(self.planned(device, Shape { out, inner, to, fp8 })?.is_some())
    }

    fn planned(&mut self, device: &Nvidia, shape: Shape) -> Result<Plan> {
        if let Some(plan) = self.plans.get(&shape) {
            return Ok(*plan);
        }
        let begun = Instant::now();
        let plan = self.plan(device, shape)?;
        let (ms, refused) = (begun.elapsed().as_millis(), plan.is_none());
        let Shape { out, inner, fp8, .. } = shape;
        tracing::debug!(out, inner, fp8, ms, refused, "GEMM of the library");
        self.plans.insert(shape, plan);
        Ok(plan)
    }

    fn plan(&mut self, device: &Nvidia, shape: Shape) -> Result<Plan> {
        let Some(room) = ProofRoom::of(shape) else { return Ok(None) };
        let scratch = device.alloc(room.bytes)?;
        let chosen = self.choose(device, shape, &room, scratch);
        device.free(scratch);
        chosen
    }

    fn choose(&mut self, device: &Nvidia, shape: Shape, room: &ProofRoom, scratch: DevicePtr) -> Result<Plan> {
        let Shape { out, inner, to, fp8 } = shape;
        let at = |offset: usize| scratch + offset as u64;
        // Random weights suffice, and their first rows serve as activations: the order of an algorithm's sums does not
        // depend on the values.
        let random = launch::RandomBf16 { dst: scratch, n: (room.values * inner) as u64, std: 1.0, seed: 1 };
        // SAFETY: scratch begins with so many values.
        unsafe { random.as_launch(device.info(), "random_bf16", |launch| device.launch_on(Queue::Proof, launch))? };
        let (mut from, mut scales) = (scratch, None);
        if fp8 {
            let (dst, of) = (at(room.narrowed), at(room.scales));
            let narrow = launch::NarrowRows { dst, scales: of, src: scratch, n: inner, rows: room.values };
            // SAFETY: the values are followed by room for as many in e4m3 and their scales.
            unsafe { narrow.as_launch(device.info(), "narrow_rows", |launch| device.launch_on(Queue::Proof, launch))? };
            (from, scales) = (dst, Some(Scales { x: of, w: of }));
        }
        let (d, rows) = (at(room.results), room.rows);
        let probe = Gemm { x: from, w: from, scales, d, ldd: out, rows, out, inner, to, scale: 1.0 };
        let candidates = match self.candidates(&probe) {
            Err(error) if fp8 => {
                // A library without support for such operands reports an error of its own.
                tracing::debug!("GEMM library: {error}");
                return Ok(None);
            }
            found => found?,
        };
        for algorithm in candidates {
            // SAFETY: scratch holds a workspace, two results of so many rows and a flag after the operands.
            if unsafe { self.rows_keep_their_bits(device, &probe, &algorithm, at(room.workspace)) }? {
                return Ok(Some(algorithm));
            }
        }
        Ok(None)
    }

    /// Compares all rows at once with the same rows in differently placed parts, one result after the other at
    /// `probe.d`. The comparison runs on the device: copying both results takes longer than a text of some hundred
    /// tokens.
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
        let stream = device.stream(Queue::Proof).cast();
        // SAFETY: `d` has room for two results and the flag, `x` for all rows. Rows are a multiple of 64, so results end
        // with a whole word of 16 bytes.
        unsafe {
            device.fill(whole, 0, 2 * total + FLAG_BYTES, Queue::Proof)?;
            if self.matmul(probe, algorithm, stream, workspace).is_err() {
                return Ok(false);
            }
            // Cuts at and within tiles, on the grid of 64, like chunked prefill.
            let mut start = 0;
            for (index, rows) in [2 * GEMM_ROWS, GEMM_ROWS, 3 * GEMM_ROWS].iter().cycle().enumerate() {
                let rows = (*rows).min(probe.rows - start);
                if rows == 0 || index > 64 {
                    break;
                }
                let call = Gemm {
                    x: probe.x + (start * probe.inner * probe.operand_bytes()) as u64,
                    scales: probe.scales.map(|s| Scales { x: s.x + (start * 4) as u64, ..s }),
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
            compare.as_launch(device.info(), "differ", |launch| device.launch_on(Queue::Proof, launch))?;
            let mut differ = [0u8; 4];
            device.copy_out(differ.as_mut_ptr(), flag, differ.len(), Queue::Proof)?;
            device.synchronize(Queue::Proof)?;
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
            let (room, schemes) =
                (P::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, P::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
            let set = |which, value: *const c_void, size| {
                result::set_matmul_pref_attribute(preference, which, value, size).map_err(say)
            };
            set(room, (&raw const bytes).cast(), size_of::<usize>())?;
            set(schemes, (&raw const no_split).cast(), size_of::<u32>())?;
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

impl Drop for CublasLt {
    fn drop(&mut self) {
        // SAFETY: created in `open`. The scratch is freed with the context.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}
