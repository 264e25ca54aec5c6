//! The requirements of the CUDA backend on a device, as one small trait.
//!
//! Everything above this trait (launch arguments, layouts, growth, CUDA graphs, images) runs unchanged on two
//! implementations: [`super::nvidia::Nvidia`] is the CUDA driver, [`super::emulated::Emulated`] runs the same kernels
//! compiled for the CPU, so that tests compare the whole backend with the oracle on machines without a GPU.
//!
//! Invariants of every implementation:
//! - work on one [`Queue`] runs in the order it was queued; only events order two queues;
//! - while a graph is captured, launches, copies and fills on [`Queue::Compute`] are recorded with a *copy* of their
//!   arguments and do not run; nothing may be allocated, freed or waited for;
//! - addresses stay valid until they are freed; a CUDA graph does not keep them alive.

use crate::backend::{BackendError, Result};

pub type DevicePtr = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arg {
    Scalar(u64),
    Map(TensorMap),
}

impl Arg {
    pub(super) fn as_ptr(&self) -> *mut std::ffi::c_void {
        match self {
            Arg::Scalar(value) => std::ptr::from_ref(value).cast_mut().cast(),
            Arg::Map(map) => std::ptr::from_ref(map).cast_mut().cast(),
        }
    }
}

impl From<u64> for Arg {
    fn from(value: u64) -> Self {
        Arg::Scalar(value)
    }
}

impl From<u32> for Arg {
    fn from(value: u32) -> Self {
        Arg::from(u64::from(value))
    }
}

impl From<f32> for Arg {
    fn from(value: f32) -> Self {
        Arg::from(value.to_bits())
    }
}

impl From<TensorMap> for Arg {
    fn from(value: TensorMap) -> Self {
        Arg::Map(value)
    }
}

/// Two arrays of bf16 rows, in tiles; the copy engine loads boxes of [`BOX`] into shared memory (`kernels/bulk.cuh`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileMap {
    pub at: DevicePtr,
    pub second: u64,
    pub width: usize,
    pub rows: usize,
    pub tile: usize,
    pub tiles: usize,
}

/// Columns and rows of a box. A row of it fills the 128 bytes within which the engine permutes.
pub const BOX: [u32; 2] = [64, 32];

/// A [`TileMap`] in the driver's own encoding, for kernels. Zeros where the device has no such engine, or the kernel
/// must not use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct TensorMap(pub(crate) [u64; 16]);

#[derive(Clone, Debug)]
pub struct Launch<'a> {
    pub kernel: &'static str,
    pub grid: [u32; 3],
    pub threads: u32,
    pub shared_bytes: u32,
    pub args: &'a [Arg],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    Compute,
    Copy,
    Proof,
}

#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Graph(pub(crate) u64);

#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Event(pub(crate) u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Home {
    Device,
    /// Page-locked; kernels and the host use the same address.
    Host,
}

#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Mapping {
    pub(crate) home: Home,
    pub(crate) at: DevicePtr,
    pub(crate) bytes: usize,
    pub(crate) handle: u64,
}

/// Rows of `bytes` bytes in device memory that begin `pitch` bytes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pitched {
    pub at: DevicePtr,
    pub bytes: usize,
    pub rows: usize,
    pub pitch: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Example: `NVIDIA H200`.
    pub name: String,
    pub emulated: bool,
    /// Major × 10 + minor: 80, 86, 89, 90, 120.
    pub capability: u32,
    pub multiprocessors: usize,
    pub total_bytes: u64,
    /// CUDA version, major × 1000 + minor × 10.
    pub driver_version: u32,
    /// Dynamic shared memory per block, in bytes.
    pub shared_limit: usize,
    pub cache_bytes: u64,
    /// A kernel may start while the previous one drains (programmatic dependent launch, capability 9.0 and newer); it
    /// waits itself before it reads that one's output.
    pub overlap: bool,
    /// A copy engine loads tiles into shared memory (capability 9.0 and newer).
    pub brings_tiles: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GemmOut {
    /// `d = x wᵀ`.
    Bf16,
    /// `d = x wᵀ`.
    F32,
    /// `d += scale · x wᵀ`, f32.
    AddF32,
}

impl GemmOut {
    pub fn value_bytes(self) -> u64 {
        match self {
            GemmOut::Bf16 => 2,
            GemmOut::F32 | GemmOut::AddF32 => 4,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Scales {
    pub x: DevicePtr,
    pub w: DevicePtr,
}

/// `[rows, inner] × [out, inner]ᵀ`, both bf16 or both e4m3 with scales, accumulated in f32.
#[derive(Clone, Copy, Debug)]
pub struct Gemm {
    /// `[rows, inner]`.
    pub x: DevicePtr,
    /// `[out, inner]`.
    pub w: DevicePtr,
    /// `Some` for e4m3 operands, `None` for bf16.
    pub scales: Option<Scales>,
    /// `[rows, out]`, rows `ldd` values apart.
    pub d: DevicePtr,
    pub ldd: usize,
    pub rows: usize,
    pub out: usize,
    pub inner: usize,
    pub to: GemmOut,
    pub scale: f32,
}

impl Gemm {
    pub fn operand_bytes(&self) -> usize {
        if self.scales.is_some() { 1 } else { 2 }
    }
}

/// Methods that take a queue return at once; the others may wait.
pub trait Driver: Send + Sync {
    fn info(&self) -> &DeviceInfo;
    fn free_bytes(&self) -> Result<u64>;

    /// Aligned to at least 16 bytes; contents unspecified.
    fn alloc(&self, bytes: usize) -> Result<DevicePtr>;
    /// Waits for the device.
    fn free(&self, ptr: DevicePtr);
    /// Mapping step; `None` where reserved ranges of such memory are not supported.
    fn granularity(&self, home: Home) -> Option<usize>;
    fn reserve(&self, home: Home, bytes: usize) -> Result<DevicePtr>;
    /// Maps memory into part of a reserved range; both are multiples of the granularity. Host memory is zero, device
    /// memory arbitrary.
    fn map(&self, home: Home, at: DevicePtr, bytes: usize) -> Result<Mapping>;
    /// Maps the same memory into another reserved range of its home; it lives until both are unmapped.
    fn map_again(&self, at: DevicePtr, of: &Mapping) -> Result<Mapping>;
    fn unmap(&self, mapping: Mapping);
    fn release(&self, home: Home, at: DevicePtr, bytes: usize);
    fn host_alloc(&self, bytes: usize) -> Result<*mut u8>;
    fn host_free(&self, ptr: *mut u8);

    /// Host to device.
    ///
    /// # Safety
    /// `src` must be valid for `bytes`, within one allocation or mapping, and unchanged until the queue has passed this point;
    /// `dst` must be device memory.
    unsafe fn copy_in(&self, dst: DevicePtr, src: *const u8, bytes: usize, queue: Queue) -> Result<()>;
    /// Device to host.
    ///
    /// # Safety
    /// `dst` must be valid for `bytes` and unread until the queue has passed this point; `src` must be device memory.
    unsafe fn copy_out(&self, dst: *mut u8, src: DevicePtr, bytes: usize, queue: Queue) -> Result<()>;
    /// Host to device; rows are contiguous on the host.
    ///
    /// # Safety
    /// As for [`Driver::copy_in`], of every row.
    unsafe fn copy_in_rows(&self, dst: &Pitched, src: *const u8, queue: Queue) -> Result<()>;
    /// Device to host, where the rows will be contiguous.
    ///
    /// # Safety
    /// As for [`Driver::copy_out`], of every row.
    unsafe fn copy_out_rows(&self, dst: *mut u8, src: &Pitched, queue: Queue) -> Result<()>;
    /// Device to device.
    ///
    /// # Safety
    /// Both must be device memory, not overlapping.
    unsafe fn copy(&self, dst: DevicePtr, src: DevicePtr, bytes: usize, queue: Queue) -> Result<()>;
    /// Sets every byte.
    ///
    /// # Safety
    /// `dst` must be device memory.
    unsafe fn fill(&self, dst: DevicePtr, byte: u8, bytes: usize, queue: Queue) -> Result<()>;
    /// Encodes the shape of tiles for kernels; no memory is read.
    fn tensor_map(&self, _of: &TileMap) -> Result<TensorMap> {
        Ok(TensorMap::default())
    }
    /// Runs a kernel on [`Queue::Compute`].
    ///
    /// # Safety
    /// Arguments must be the kernel's, in type, order and extent of what they point to.
    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<()>;

    /// Name of the library for GEMMs on [`Queue::Compute`]; `None` if none could be loaded. A row's bits do not depend
    /// on the number of rows, or the implementation refuses the shape.
    fn gemm_library(&self) -> Option<&str>;
    /// `Ok(false)`: this shape is refused, use a kernel.
    ///
    /// # Safety
    /// As for [`Driver::launch`]; `x` and `d` must be valid up to `rows` rounded up to [`GEMM_ROWS`].
    unsafe fn gemm(&self, gemm: &Gemm) -> Result<bool>;

    /// Prepares library GEMMs `[rows, inner] × [out, inner]ᵀ`, so that the first one need not wait. The first GEMM
    /// reports an error of the preparation. May run concurrently with everything else.
    fn prepare_gemm(&self, _out: usize, _inner: usize, _to: GemmOut) {}

    /// Prepares library GEMMs of e4m3 operands `[rows, inner] × [out, inner]ᵀ`, and proves that a row's bits do not
    /// depend on the number of rows.
    ///
    /// # Errors
    /// The reason why they are unavailable: the device, the library, or the shape.
    fn prove_fp8(&self, out: usize, inner: usize, to: GemmOut) -> Result<()>;

    fn event(&self) -> Result<Event>;
    fn record(&self, event: &Event, queue: Queue) -> Result<()>;
    fn wait(&self, queue: Queue, event: &Event) -> Result<()>;
    fn wait_host(&self, event: &Event) -> Result<()>;
    fn elapsed_ms(&self, from: &Event, to: &Event) -> Result<f32>;
    fn drop_event(&self, event: Event);
    /// Waits until a queue is empty; returns errors of its work.
    fn synchronize(&self, queue: Queue) -> Result<()>;

    fn begin_capture(&self) -> Result<()>;
    fn end_capture(&self) -> Result<Graph>;
    fn replay(&self, graph: &Graph) -> Result<()>;
    fn drop_graph(&self, graph: Graph);
}

/// Row counts of library GEMMs are multiples of this; buffers of GEMMs have room for the rounding.
pub const GEMM_ROWS: usize = 64;

pub(crate) fn failed(op: impl Into<String>, cause: impl std::fmt::Display) -> BackendError {
    BackendError::Device { op: op.into(), cause: cause.to_string() }
}
