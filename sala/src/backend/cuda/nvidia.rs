//! The real device: the CUDA driver, loaded at run time.
//!
//! Owns one primary context, two created streams (never the default one), the loaded kernel images and, where
//! available, cuBLASLt. Needs nothing of a toolkit. Every entry makes the context current first, because the backend
//! may be built on one thread and used on another.

mod cublaslt;
mod entries;
mod found;

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use cudarc::driver::{result, sys};

use super::cards::Card;
use super::driver::{
    BOX, DeviceInfo, DevicePtr, Driver, Event, Gemm, GemmOut, Graph, Home, Launch, Mapping, Pitched, Queue, TensorMap,
    TileMap, failed,
};
use super::host_pages::HostPages;
use super::{images, limits};
use crate::backend::Result;
use crate::core::caught::caught;
use cublaslt::CublasLt;
use found::{allocation_kind, attribute, find, words};
pub use found::{list, usable};

/// Mapping step of host memory: the size of a large page.
const HOST_GRANULARITY: usize = 2 << 20;
/// Free memory required to prove the GEMM library before its first use.
const ROOM_FOR_PROOFS: u64 = 4 << 30;

const HOPPER: u32 = 90;

#[derive(Clone, Copy)]
struct Kernel {
    function: sys::CUfunction,
    shared_bytes: u32,
}

pub struct Nvidia {
    device: sys::CUdevice,
    context: sys::CUcontext,
    compute: sys::CUstream,
    copy: sys::CUstream,
    proof: sys::CUstream,
    modules: Vec<sys::CUmodule>,
    kernels: Mutex<HashMap<&'static str, Kernel>>,
    /// cuBLASLt and its name; the first user opens it: usually a thread that runs while weights load.
    library: OnceLock<Option<(String, Mutex<CublasLt>)>>,
    granularity: usize,
    /// Kernels access page-locked host memory at the host's address.
    reads_host: bool,
    pages: HostPages,
    info: DeviceInfo,
}

// SAFETY: the handles are plain identifiers of the driver, which may be used from any thread once the context is
// current there; `bind` makes it so in every entry. Mutexes guard mutable tables.
unsafe impl Send for Nvidia {}
// SAFETY: as above.
unsafe impl Sync for Nvidia {}

impl Nvidia {
    /// Maps device memory, and releases the handle after an error.
    ///
    /// # Safety
    /// `handle` holds `bytes`, a multiple of the granularity; nothing is mapped at `at` yet.
    unsafe fn put(&self, at: DevicePtr, bytes: usize, handle: u64) -> Result<Mapping> {
        let access = sys::CUmemAccessDesc {
            location: allocation_kind(self.device).location,
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the caller's.
        let mapped = self.call(format_args!("mapping {bytes} bytes"), || unsafe {
            sys::cuMemMap(at, bytes, 0, handle, 0).result()?;
            sys::cuMemSetAccess(at, bytes, &raw const access, 1).result().inspect_err(|_| {
                let _ = sys::cuMemUnmap(at, bytes);
            })
        });
        if mapped.is_err() {
            // SAFETY: as above; nothing is mapped from it.
            let _ = unsafe { sys::cuMemRelease(handle) };
        }
        mapped.map(|()| Mapping { home: Home::Device, at, bytes, handle })
    }

    fn register(&self, at: DevicePtr, bytes: usize, handle: u64) -> Result<Mapping> {
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: mapped with this size. With `reads_host`, page-locked memory has the same address on the device.
        match unsafe { sys::cuMemHostRegister_v2(at as *mut c_void, bytes, flags) }.result() {
            Ok(()) => Ok(Mapping { home: Home::Host, at, bytes, handle }),
            Err(error) => {
                // SAFETY: nothing uses it yet.
                unsafe { self.pages.unmap(at, bytes, handle) };
                Err(failed(format!("page-locking {bytes} bytes of memory"), error))
            }
        }
    }

    /// Opens context, streams and kernel images of GPU `ordinal`. The GEMM library opens on first use.
    ///
    /// # Errors
    /// A sentence without the words "No usable NVIDIA GPU": which step failed and why.
    pub fn open(ordinal: usize, limits: Option<Card>) -> Result<Self, String> {
        let found = find(ordinal)?;
        let (device, capability) = (found.device, found.capability);
        let say = |what: &str| {
            let what = what.to_owned();
            move |e: result::DriverError| format!("{what}: {}", words(e))
        };
        let attribute = |which: sys::CUdevice_attribute| attribute(device, which);
        use sys::CUdevice_attribute as A;
        let mut driver_version = 0;
        // SAFETY: writes one integer.
        unsafe { sys::cuDriverGetVersion(&raw mut driver_version) }.result().map_err(say("cuDriverGetVersion"))?;
        // SAFETY: `device` came from the driver; the context is released in `drop`.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(say("cuDevicePrimaryCtxRetain"))?;
        // SAFETY: just retained.
        unsafe { result::ctx::set_current(context) }.map_err(say("cuCtxSetCurrent"))?;
        let compute = result::stream::create(result::stream::StreamKind::NonBlocking).map_err(say("cuStreamCreate"))?;
        let copy = result::stream::create(result::stream::StreamKind::NonBlocking).map_err(say("cuStreamCreate"))?;
        let proof = result::stream::create(result::stream::StreamKind::NonBlocking).map_err(say("cuStreamCreate"))?;
        let mut modules = Vec::new();
        for image in images::IMAGES {
            // SAFETY: embedded by the build, a fat binary with its own length inside.
            let module = unsafe { result::module::load_data(image.data.0.as_ptr().cast()) }
                .map_err(|e| format!("kernel image {} does not load on this driver: {e}", image.name))?;
            modules.push(module);
        }
        // SAFETY: `device` came from the driver.
        let total = unsafe { result::device::total_mem(device) }.map_err(say("cuDeviceTotalMem"))?;
        let reads_host = attribute(A::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING)? == 1
            && attribute(A::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM)? == 1;
        let (mut granularity, kind) = (0usize, allocation_kind(device));
        let least = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: reads one structure and writes one size.
        unsafe { sys::cuMemGetAllocationGranularity(&raw mut granularity, &raw const kind, least) }
            .result()
            .map_err(|e| format!("{} cannot map memory piece by piece, as caches need it: {e}", found.name))?;
        let mut info = DeviceInfo {
            name: found.name,
            emulated: false,
            capability,
            multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize,
            total_bytes: u64::try_from(total).unwrap_or(u64::MAX),
            driver_version: u32::try_from(driver_version).unwrap_or(0),
            shared_limit: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize,
            cache_bytes: u64::from(attribute(A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
            overlap: capability >= HOPPER,
            brings_tiles: capability >= HOPPER,
        };
        if let Some(card) = limits {
            card.limit(&mut info);
        }
        OPEN.fetch_add(1, Ordering::AcqRel);
        Ok(Nvidia {
            device,
            context,
            compute,
            copy,
            proof,
            modules,
            kernels: Mutex::default(),
            library: OnceLock::new(),
            granularity,
            reads_host,
            pages: HostPages::default(),
            info,
        })
    }

    fn bind(&self, op: &str) -> Result<()> {
        self.call(format_args!("{op}"), || Ok(()))
    }

    /// Makes the context current and calls the driver; `what` names a call that fails.
    fn call<T>(
        &self,
        what: std::fmt::Arguments<'_>,
        work: impl FnOnce() -> Result<T, result::DriverError>,
    ) -> Result<T> {
        // SAFETY: retained in `open`, released in `drop`.
        let current = unsafe { result::ctx::set_current(self.context) };
        current.and_then(|()| work()).map_err(|e| failed(what.to_string(), e))
    }

    fn library(&self) -> Option<&(String, Mutex<CublasLt>)> {
        self.bind("GEMM library").ok()?;
        let opened = self.library.get_or_init(|| {
            // A library without a required symbol counts as absent.
            let library = caught(|| CublasLt::open(self.compute))??;
            Some((library.name.clone(), Mutex::new(library)))
        });
        opened.as_ref()
    }

    fn stream(&self, queue: Queue) -> sys::CUstream {
        match queue {
            Queue::Compute => self.compute,
            Queue::Copy => self.copy,
            Queue::Proof => self.proof,
        }
    }

    fn kernel(&self, launch: &Launch<'_>) -> Result<sys::CUfunction> {
        let mut kernels = lock(&self.kernels);
        let mut kernel = match kernels.get(launch.kernel) {
            Some(kernel) => *kernel,
            None => {
                let function = self.find(launch.kernel)?;
                // One split between level 1 and shared memory for all kernels: a multiprocessor drains before it
                // changes the split, and then launches could not overlap. Only a preference, so a refusal does not
                // matter.
                let carveout = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
                // SAFETY: the function belongs to a loaded module.
                let _ = unsafe { result::function::set_function_attribute(function, carveout, 100) };
                // The default limit is 48 KiB, a kernel's static arrays included.
                Kernel { function, shared_bytes: 40 * 1024 }
            }
        };
        if launch.shared_bytes > kernel.shared_bytes {
            let bytes = i32::try_from(launch.shared_bytes).unwrap_or(i32::MAX);
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function belongs to a loaded module.
            unsafe { result::function::set_function_attribute(kernel.function, attribute, bytes) }
                .map_err(|e| failed(format!("{} with {bytes} bytes of shared memory", launch.kernel), e))?;
            kernel.shared_bytes = launch.shared_bytes;
        }
        kernels.insert(launch.kernel, kernel);
        Ok(kernel.function)
    }

    /// # Safety
    /// As for [`Driver::launch`].
    unsafe fn launch_on(&self, queue: Queue, launch: &Launch<'_>) -> Result<()> {
        self.bind(launch.kernel)?;
        let function = self.kernel(launch)?;
        let mut params: [*mut c_void; 32] = [null_mut(); 32];
        if launch.args.len() > params.len() {
            return Err(failed(launch.kernel, "too many arguments"));
        }
        for (param, arg) in params.iter_mut().zip(launch.args) {
            *param = arg.as_ptr();
        }
        // SAFETY: an all-zero attribute is valid; the union member written is the one the id names.
        let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
        attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attribute.value.programmaticStreamSerializationAllowed = 1;
        let overlap = self.info.overlap;
        let config = sys::CUlaunchConfig {
            gridDimX: launch.grid[0],
            gridDimY: launch.grid[1],
            gridDimZ: launch.grid[2],
            blockDimX: launch.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared_bytes,
            hStream: self.stream(queue),
            attrs: if overlap { &raw mut attribute } else { null_mut() },
            numAttrs: u32::from(overlap),
        };
        // SAFETY: argument types are the caller's; the driver copies them before it returns.
        unsafe { sys::cuLaunchKernelEx(&raw const config, function, params.as_mut_ptr(), null_mut()) }.result().map_err(
            |e| {
                let Launch { kernel, grid, threads, shared_bytes, .. } = launch;
                let launch = format!("grid {grid:?}, {threads} threads, {shared_bytes} bytes of shared memory");
                failed(*kernel, format!("{e} ({launch})"))
            },
        )
    }

    fn find(&self, name: &str) -> Result<sys::CUfunction> {
        let symbol = CString::new(name).map_err(|e| failed(name, e))?;
        for module in &self.modules {
            // SAFETY: modules stay loaded until `drop`.
            if let Ok(function) = unsafe { result::module::get_function(*module, symbol.clone()) } {
                return Ok(function);
            }
        }
        Err(failed(name, "no such kernel in the embedded images; rebuild them with kernels/build.sh"))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn event_of(event: &Event) -> sys::CUevent {
    event.0 as sys::CUevent
}

/// Devices that this process has open.
static OPEN: AtomicUsize = AtomicUsize::new(0);

impl Drop for Nvidia {
    fn drop(&mut self) {
        if self.bind("close").is_err() {
            return;
        }
        let _ = self.synchronize(Queue::Compute);
        let _ = self.synchronize(Queue::Copy);
        drop(self.library.take());
        // SAFETY: all of these were created in `open`, and nothing else holds them any more.
        unsafe {
            for module in self.modules.drain(..) {
                let _ = result::module::unload(module);
            }
            let _ = result::stream::destroy(self.compute);
            let _ = result::stream::destroy(self.copy);
            let _ = result::stream::destroy(self.proof);
            let _ = result::primary_ctx::release(self.device);
            // cuBLASLt keeps the context alive, and half a gigabyte with it. Only a reset frees that; what else this process
            // has open lives in the same context.
            if OPEN.fetch_sub(1, Ordering::AcqRel) == 1 {
                let _ = sys::cuDevicePrimaryCtxReset_v2(self.device).result();
            }
        }
    }
}
