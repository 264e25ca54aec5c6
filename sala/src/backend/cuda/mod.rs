//! The GPU backend: launches kernels, owns device memory, records decode steps.
//!
//! Everything above the trait `driver` runs the same on a GPU (`nvidia`) and on the emulated device of the tests.
//! Unsafe code is confined to this folder.
//!
//! | file | owns |
//! |---|---|
//! | `driver` | the trait of a device |
//! | `nvidia`, `images` | the CUDA driver and cuBLASLt, embedded kernels |
//! | `proofs` | which shapes cuBLASLt is proved for while weights are loaded |
//! | `cards` | limits of other cards, to run their code paths here |
//! | `emulated` | the same kernels on the CPU, for tests; its sources are in the folder of the tests |
//! | `device`, `growable`, `staging`, `stretch` | memory: owned, growing, bulk copies; arrays in pieces |
//! | `joined` | the rows of all sparse layers of a sequence in common arrays |
//! | `pool`, `host_pages`, `page_out` | contexts larger than the device: keys and values in host memory, a pool of their blocks on the device; paging out |
//! | `steps`, `step_words`, `tables`, `graph` | values that change between steps; the sequences of a pass; CUDA graphs |
//! | `launch`, `limits` | the table of kernels; limits of all kernels |
//! | `tensors`, `cache`, `selection` | buffers of all layers, of a sparse layer, and its chosen blocks |
//! | `memory`, `ledger` | allocations of the device; memory available to caches |
//! | `weights`, `packed`, `slices` | loading weights; packing and unpacking; the slices that a prefill pass multiplies with |
//! | `ops` | operations on rows, of sparse and of lightning layers, as launches |
//! | `state`, `readback` | images out and in; copies of states that are read back while work continues |
//! | `lazy_restore` | rows of a resumed session that are loaded while it is in use |
//! | `draft` | the draft head's operations |
//! | `measure` | the device's own ceilings |
//!
//! Number types: weights bf16 or packed ([`crate::backend::forms`]), inputs of GEMMs and KV rows bf16; residual
//! stream, mixer outputs, logits and recurrent state f32. Prefill GEMMs use `gemm_*` for the first rows of a segment
//! and cuBLASLt, where there is one, for the rest, in bf16 or with rows in e4m3 ([`super::fp8`]); 1..16 rows use the
//! `skinny_*` kernels. Their result for a row does not depend on the other rows.
#![allow(unsafe_code)]

mod cache;
mod cards;
mod device;
mod draft;
mod driver;
#[cfg(feature = "emulated")]
#[path = "../../../../tests/emulated/mod.rs"]
mod emulated;
mod graph;
mod growable;
mod host_pages;
mod images;
mod joined;
mod launch;
mod lazy_restore;
mod ledger;
mod limits;
mod measure;
mod memory;
mod nvidia;
mod ops;
mod packed;
mod page_out;
mod pool;
mod proofs;
mod readback;
mod selection;
mod slices;
mod staging;
mod state;
mod step_words;
mod steps;
mod stretch;
mod tables;
mod tensors;
mod weights;

use std::collections::HashMap;
use std::sync::Arc;

pub use cache::Cache;
pub use draft::Window;
pub use driver::DeviceInfo;
use driver::{Queue, failed};
pub use nvidia::{list, usable};
pub use pool::PoolSize;
pub use selection::{Selection, Sums};
pub use tensors::{Buf, Matrix, Recurrent, Vector};

use super::{BackendError, GRID, Result, check_shape, shape};
use crate::engine::protocol::Precision;
pub use cards::Card;
use device::Device;
pub use device::Guards;
use graph::Graphs;
use lazy_restore::LazyRestore;
use ledger::Ledgers;
pub use measure::Ceilings;
use ops::{Ready, Rope, Scratch, TopLogitsBuffers};
use pool::Pools;
use proofs::Proofs;
use readback::Readback;
use staging::Staging;
use step_words::StepParameters;
use steps::Step;
use tables::Tables;

/// On a GPU with room for the buffers, on a smaller one, and emulated.
const PREFILL_ROWS: [usize; 3] = [4096, 2048, 256];
/// For keys and values in host memory, all of which cross the bus for each pass.
const PAGED_ROWS: usize = 5120;
/// For prefill in fp8, on a GPU with room: products take half the time, so the fixed cost of a pass weighs twice.
const FP8_ROWS: usize = 6144;
const FP8_TRIED: usize = 1024;
const LARGE_BYTES: u64 = 40 << 30;
/// On GPUs of up to this size, passes are shorter if memory is tight.
const TIGHT_BYTES: u64 = 15 << 29;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub prefill_rows: usize,
    pub prefill: Precision,
    pub guards: Guards,
    pub limits: Option<Card>,
    pub most_bytes: Option<u64>,
    /// Forces keys and values into host memory, for tests and measurements.
    pub pool: Option<PoolSize>,
}

impl Options {
    fn rows(&self, info: &DeviceInfo) -> usize {
        let [large, small, emulated] = PREFILL_ROWS;
        let most = self.most_bytes.unwrap_or(u64::MAX).min(info.total_bytes);
        match self.prefill_rows {
            0 if info.emulated => emulated,
            0 if most >= LARGE_BYTES => match self.prefill {
                Precision::Bf16 => large,
                Precision::Fp8 => FP8_ROWS,
            },
            0 if self.most_bytes.is_some() && most <= TIGHT_BYTES => small / 2,
            0 => small,
            rows => rows.next_multiple_of(GRID),
        }
    }
}

pub struct Cuda {
    // Graphs hold addresses of everything below, so they are dropped first.
    graphs: Graphs,
    step: Step,
    tables: Tables,
    draft: Option<StepParameters>,
    staging: Staging,
    readback: Option<Readback>,
    lazy_restores: HashMap<u64, Arc<LazyRestore>>,
    scratch: Scratch,
    ready: Ready,
    proofs: Option<Proofs>,
    top_logits: Option<TopLogitsBuffers>,
    rope: Option<Rope>,
    ledgers: Ledgers,
    pools: Pools,
    device: Device,
    options: Options,
    prefill_rows: usize,
    segment_read: usize,
    /// Rows of verify passes before this position take all blocks, according to the last selection.
    all_within: usize,
    places: u64,
    numbered: u64,
    notes: Vec<String>,
}

impl Cuda {
    /// # Errors
    /// One sentence for the user: why there is no usable GPU.
    pub fn open(gpu: usize, options: Options) -> Result<Self> {
        let device =
            nvidia::Nvidia::open(gpu, options.limits).map_err(|cause| failed("No usable NVIDIA GPU", cause))?;
        Self::on(Device::new(Arc::new(device), options.guards, options.most_bytes), options)
    }

    /// Opens the emulated device of the tests (feature `emulated`); `kernels/emulator/build.sh` builds `library`.
    #[cfg(feature = "emulated")]
    pub fn emulated(library: &std::path::Path, options: Options) -> Result<Self> {
        let device =
            emulated::Emulated::open(library, options.limits).map_err(|cause| failed("emulated device", cause))?;
        Self::on(Device::new(Arc::new(device), options.guards, options.most_bytes), options)
    }

    /// Whether the device is closed, to be called after this value is dropped.
    #[cfg(feature = "emulated")]
    pub fn closes(&self) -> impl Fn() -> bool + Send + use<> {
        self.device.closes()
    }

    fn on(device: Device, options: Options) -> Result<Self> {
        // Start the threads before the GEMM library opens: both need the loader of shared libraries.
        rayon::current_num_threads();
        let info = device.driver().info();
        let prefill_rows = options.rows(info);
        let mut cuda = Cuda {
            graphs: Graphs::new(&device),
            step: Step::new(&device, prefill_rows.max(PAGED_ROWS))?,
            tables: Tables::new(&device)?,
            draft: None,
            staging: Staging::new(&device)?,
            readback: None,
            scratch: Scratch::default(),
            ready: Ready::default(),
            proofs: None,
            top_logits: None,
            rope: None,
            ledgers: Ledgers::default(),
            pools: Pools::new(options.pool),
            options,
            prefill_rows,
            segment_read: 0,
            all_within: 0,
            lazy_restores: HashMap::new(),
            places: 0,
            numbered: 0,
            notes: Vec::new(),
            device,
        };
        cuda.rehearse()?;
        Ok(cuda)
    }

    /// Whether passes over keys and values in host memory may be longer than others: no length was set, and memory is
    /// not tight.
    fn long_passes(&self) -> bool {
        let [_, small, _] = PREFILL_ROWS;
        self.options.prefill_rows == 0 && (small..PAGED_ROWS).contains(&self.prefill_rows)
    }

    pub fn info(&self) -> &DeviceInfo {
        self.device.driver().info()
    }

    pub fn gemm_library(&self) -> Option<&str> {
        self.device.driver().gemm_library()
    }

    /// The program's own kernels for prefill GEMMs on this device, for people.
    pub fn own_gemm_kernel(&self) -> &'static str {
        if launch::is_hopper(self.info()) { "its kernel for Hopper" } else { "its kernel for any GPU" }
    }

    /// For measurements: [`Memory::check`](super::Memory::check) gives the reason for `false`.
    pub fn has_fp8(&self) -> bool {
        let n = FP8_TRIED;
        self.device.driver().prove_fp8(n, n, driver::GemmOut::Bf16).is_ok()
    }

    pub fn graphs(&self) -> usize {
        self.graphs.made
    }

    /// Milliseconds that `work` takes on the device, by the device's own clock.
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

    /// Fails if a kernel wrote past the end of a buffer; needs [`Options::guards`]. Waits.
    pub fn check_guards(&self) -> Result<()> {
        self.device.check_guards()
    }

    /// Marks that a buffer that CUDA graphs of any sequence may name was made or will be dropped.
    fn touch(&mut self) {
        self.graphs.clear();
    }

    fn touch_own(&mut self) {
        let own = self.step.place.id;
        self.graphs.forget_of(own);
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        self.graphs.clear();
        self.proofs = None;
        // The spare buffers hold the device that holds them.
        self.device.spare().give_up();
        // Buffers are freed next; earlier errors were reported by their own calls.
        let _ = self.device.driver().synchronize(Queue::Compute);
    }
}

fn u32_of(value: usize) -> Result<u32> {
    u32::try_from(value)
        .map_err(|_| BackendError::Unsupported(format!("{value} is too large for a kernel's 32-bit size")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_are_as_long_as_memory_and_precision_allow() {
        let rows = |gib: u64, most: Option<u64>, prefill| {
            let info = DeviceInfo { total_bytes: gib << 30, ..DeviceInfo::default() };
            Options { most_bytes: most.map(|gib| gib << 30), prefill, ..Options::default() }.rows(&info)
        };
        assert_eq!(rows(80, None, Precision::Bf16), 4096);
        assert_eq!(rows(80, None, Precision::Fp8), FP8_ROWS);
        // Where memory is short, longer passes would take it from the context.
        for prefill in [Precision::Bf16, Precision::Fp8] {
            assert_eq!(rows(24, None, prefill), 2048);
            assert_eq!(rows(80, Some(24), prefill), 2048);
            assert_eq!(rows(80, Some(7), prefill), 1024);
        }
        let requested = Options { prefill_rows: 1000, prefill: Precision::Fp8, ..Options::default() };
        assert_eq!(requested.rows(&DeviceInfo::default()), 1024, "a number asked for is taken in whole chunks");
    }
}
