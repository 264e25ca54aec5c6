//! A device that is the CPU: the very kernels of `kernels/`, compiled by the emulator there, as a [`Driver`].
//!
//! It exists so that the whole backend runs in tests without a GPU, and it is stricter than a GPU where that finds
//! mistakes: memory starts as NaN, every allocation has guard words before it and ends at a page that faults, reserved
//! address space without memory under it faults too, and a CUDA graph keeps copies of its arguments, so that a host value
//! which changes between steps gives a wrong result here too. Both queues run at once, in the order of calls: it sees
//! neither races within a launch nor a launch that starts too early.
//!
//! The library is made by `kernels/emulator/build.sh` and exports
//! `int sala_emulator_launch(const char *kernel, const unsigned grid[3], const unsigned block[3], unsigned shared_bytes, void **args)`
//! (0: done; anything else: see `const char *sala_emulator_error(void)`).

mod counts;
mod library;
mod memory;

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Instant;

use super::cards::Card;
use super::driver::{
    Arg, DeviceInfo, DevicePtr, Driver, Event, Gemm, GemmOut, Graph, Home, Launch, Mapping, Pitched, Queue, Scales,
    failed,
};
use super::host_pages::HostPages;
use crate::backend::{Result, fp8};
use library::Library;
use memory::POISON;

/// Reserved ranges are mapped in these steps: small, so that tests cross it often.
const GRANULARITY: usize = 64 << 10;
/// What the device claims to have.
const TOTAL_BYTES: u64 = 8 << 30;

/// One remembered operation.
enum Op {
    Launch {
        kernel: &'static str,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        args: Vec<Arg>,
    },
    /// Addresses are those of the caller; host memory is read when replayed, as on a GPU.
    Copy {
        dst: u64,
        src: u64,
        bytes: usize,
    },
    Fill {
        dst: u64,
        byte: u8,
        bytes: usize,
    },
}

#[derive(Default)]
struct State {
    /// Start as seen by the user → size.
    allocations: HashMap<u64, usize>,
    /// Bytes under reserved ranges.
    mapped: u64,
    /// `Some` during a capture, with the capturing thread: others may allocate and wait, as on a GPU.
    open: Option<(ThreadId, Vec<Op>)>,
    graphs: HashMap<u64, Vec<Op>>,
    events: HashMap<u64, Instant>,
    next: u64,
}

/// The emulated device.
pub struct Emulated {
    library: Arc<Library>,
    state: Mutex<State>,
    pages: HostPages,
    info: DeviceInfo,
}

impl Emulated {
    /// Loads the emulator's library.
    ///
    /// # Errors
    /// The loader's words, or the missing symbol.
    pub fn open(library: &Path, limits: Option<Card>) -> Result<Self, String> {
        let library = Library::of(library)?;
        let mut info = DeviceInfo {
            name: "emulated device (CPU)".to_owned(),
            emulated: true,
            capability: 80,
            multiprocessors: 8,
            total_bytes: TOTAL_BYTES,
            driver_version: 0,
            shared_limit: 227 << 10,
            cache_bytes: 1 << 20,
            overlap: false,
            brings_tiles: false,
        };
        if let Some(card) = limits {
            card.limit(&mut info);
        }
        Ok(Emulated { library, state: Mutex::default(), pages: HostPages::default(), info })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one operation now.
    ///
    /// # Safety
    /// As for the [`Driver`] method it came from.
    unsafe fn run(&self, op: &Op) -> Result<()> {
        match op {
            Op::Launch { kernel, grid, block, shared_bytes, args } => {
                let name = CString::new(*kernel).map_err(|e| failed(*kernel, e))?;
                let mut params: Vec<*mut c_void> = args.iter().map(Arg::as_ptr).collect();
                // SAFETY: the caller's; the library reads as many arguments as the kernel has.
                let launched = unsafe { self.library.launch(&name, *grid, *block, *shared_bytes, &mut params) };
                launched.map_err(|words| failed(*kernel, format!("{words} (grid {grid:?}, block {block:?})")))?;
            }
            // SAFETY: the caller's.
            Op::Copy { dst, src, bytes } => unsafe {
                std::ptr::copy_nonoverlapping(*src as *const u8, *dst as *mut u8, *bytes)
            },
            // SAFETY: the caller's.
            Op::Fill { dst, byte, bytes } => unsafe { std::ptr::write_bytes(*dst as *mut u8, *byte, *bytes) },
        }
        Ok(())
    }

    /// Remembers the operation if a graph is captured, else runs it.
    ///
    /// # Safety
    /// As for [`Emulated::run`].
    unsafe fn give(&self, op: Op, queue: Queue) -> Result<()> {
        if queue == Queue::Compute
            && let Some((_, open)) = &mut self.state().open
        {
            open.push(op);
            return Ok(());
        }
        // SAFETY: the caller's.
        unsafe { self.run(&op) }
    }

    fn not_capturing(&self, op: &str) -> Result<()> {
        match &self.state().open {
            Some((by, _)) if *by == thread::current().id() => Err(failed(op, "not allowed while a step is captured")),
            _ => Ok(()),
        }
    }

    /// Guard words that something has written over: `(start of the allocation, its size)`.
    fn broken_guard(&self) -> Option<(u64, usize)> {
        self.state()
            .allocations
            .iter()
            .find(|(at, bytes)| !memory::holds(**at, **bytes))
            .map(|(at, bytes)| (*at, *bytes))
    }
}

/// Plain equations, every sum in the order of the columns.
///
/// # Safety
/// As for [`Driver::gemm`].
unsafe fn multiply_fp8(gemm: &Gemm, scales: Scales) {
    let Gemm { rows, out, inner, to, ldd, .. } = *gemm;
    // SAFETY: the caller's, of every operand.
    let (x, w, x_scales, w_scales) = unsafe {
        let bytes = |at: DevicePtr, n: usize| std::slice::from_raw_parts(at as *const u8, n);
        let floats = |at: DevicePtr, n: usize| std::slice::from_raw_parts(at as *const f32, n);
        (bytes(gemm.x, rows * inner), bytes(gemm.w, out * inner), floats(scales.x, rows), floats(scales.w, out))
    };
    let wide = |row: &[u8]| row.iter().map(|b| fp8::value(*b)).collect::<Vec<f32>>();
    let weights: Vec<Vec<f32>> = w.chunks_exact(inner).map(wide).collect();
    for (r, (x, x_scale)) in x.chunks_exact(inner).map(wide).zip(x_scales).enumerate() {
        for (c, (w, w_scale)) in weights.iter().zip(w_scales).enumerate() {
            let y = x.iter().zip(w).map(|(x, w)| x * w).sum::<f32>() * x_scale * w_scale;
            let at = gemm.d + (r * ldd + c) as u64 * to.value_bytes();
            // SAFETY: the caller's, of the result.
            unsafe {
                match to {
                    GemmOut::Bf16 => *(at as *mut half::bf16) = half::bf16::from_f32(y),
                    GemmOut::F32 => *(at as *mut f32) = y,
                    GemmOut::AddF32 => *(at as *mut f32) += gemm.scale * y,
                }
            }
        }
    }
}

impl Driver for Emulated {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn free_bytes(&self) -> Result<u64> {
        let state = self.state();
        let used: usize = state.allocations.values().sum();
        Ok(TOTAL_BYTES.saturating_sub(used as u64 + state.mapped))
    }

    fn alloc(&self, bytes: usize) -> Result<DevicePtr> {
        self.not_capturing("alloc")?;
        let at = memory::alloc(bytes)?;
        self.state().allocations.insert(at, bytes);
        Ok(at)
    }

    fn free(&self, ptr: DevicePtr) {
        let Some(bytes) = self.state().allocations.remove(&ptr) else {
            return;
        };
        debug_assert!(memory::holds(ptr, bytes), "something wrote outside of an allocation of {bytes} bytes");
        // SAFETY: from `alloc`, of this size.
        unsafe { memory::free(ptr, bytes) };
    }

    fn granularity(&self, _home: Home) -> Option<usize> {
        Some(GRANULARITY)
    }

    fn reserve(&self, _home: Home, bytes: usize) -> Result<DevicePtr> {
        HostPages::reserve(bytes)
    }

    fn map(&self, home: Home, at: DevicePtr, bytes: usize) -> Result<Mapping> {
        self.not_capturing("map")?;
        // SAFETY: `at` is inside a range from `reserve`.
        let handle = unsafe { self.pages.map(at, bytes)? };
        if home == Home::Device {
            // SAFETY: just mapped with this size.
            unsafe { std::ptr::write_bytes(at as *mut u8, POISON, bytes) };
            self.state().mapped += bytes as u64;
        }
        Ok(Mapping { home, at, bytes, handle })
    }

    fn map_again(&self, at: DevicePtr, of: &Mapping) -> Result<Mapping> {
        self.not_capturing("map")?;
        // SAFETY: a mapping of this size; `at` is inside a range from `reserve`.
        unsafe { self.pages.map_again(at, of.bytes, of.handle)? };
        Ok(Mapping { home: of.home, at, bytes: of.bytes, handle: of.handle })
    }

    fn unmap(&self, mapping: Mapping) {
        // SAFETY: from `map`; the caller has waited.
        unsafe { self.pages.unmap(mapping.at, mapping.bytes, mapping.handle) };
    }

    fn release(&self, _home: Home, at: DevicePtr, bytes: usize) {
        // SAFETY: from `reserve`.
        unsafe { HostPages::release(at, bytes) };
    }

    fn host_alloc(&self, bytes: usize) -> Result<*mut u8> {
        self.alloc(bytes).map(|at| at as *mut u8)
    }

    fn host_free(&self, ptr: *mut u8) {
        self.free(ptr as u64);
    }

    unsafe fn copy_in(&self, dst: DevicePtr, src: *const u8, bytes: usize, queue: Queue) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { self.give(Op::Copy { dst, src: src as u64, bytes }, queue) }
    }

    unsafe fn copy_out(&self, dst: *mut u8, src: DevicePtr, bytes: usize, queue: Queue) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { self.give(Op::Copy { dst: dst as u64, src, bytes }, queue) }
    }

    unsafe fn copy_in_rows(&self, dst: &Pitched, src: *const u8, queue: Queue) -> Result<()> {
        (0..dst.rows).try_for_each(|row| {
            // SAFETY: the caller's.
            unsafe { self.copy_in(dst.at + (row * dst.pitch) as u64, src.add(row * dst.bytes), dst.bytes, queue) }
        })
    }

    unsafe fn copy_out_rows(&self, dst: *mut u8, src: &Pitched, queue: Queue) -> Result<()> {
        (0..src.rows).try_for_each(|row| {
            // SAFETY: the caller's.
            unsafe { self.copy_out(dst.add(row * src.bytes), src.at + (row * src.pitch) as u64, src.bytes, queue) }
        })
    }

    unsafe fn copy(&self, dst: DevicePtr, src: DevicePtr, bytes: usize, queue: Queue) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { self.give(Op::Copy { dst, src, bytes }, queue) }
    }

    unsafe fn fill(&self, dst: DevicePtr, byte: u8, bytes: usize, queue: Queue) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { self.give(Op::Fill { dst, byte, bytes }, queue) }
    }

    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        let op = Op::Launch {
            kernel: launch.kernel,
            grid: launch.grid,
            block: [launch.threads, 1, 1],
            shared_bytes: launch.shared_bytes,
            args: launch.args.to_vec(),
        };
        // SAFETY: the caller's.
        unsafe { self.give(op, Queue::Compute) }
    }

    fn gemm_library(&self) -> Option<&str> {
        None
    }

    /// Of e4m3 operands alone: those of bf16 are the program's own kernel's.
    unsafe fn gemm(&self, gemm: &Gemm) -> Result<bool> {
        let Some(scales) = gemm.scales else { return Ok(false) };
        // SAFETY: the caller's.
        unsafe { multiply_fp8(gemm, scales) };
        Ok(true)
    }

    fn prove_fp8(&self, _out: usize, _inner: usize, _to: GemmOut) -> Result<()> {
        Ok(())
    }

    fn event(&self) -> Result<Event> {
        let mut state = self.state();
        state.next += 1;
        Ok(Event(state.next))
    }

    fn record(&self, event: &Event, _queue: Queue) -> Result<()> {
        self.state().events.insert(event.0, Instant::now());
        Ok(())
    }

    fn wait(&self, _queue: Queue, _event: &Event) -> Result<()> {
        Ok(())
    }

    fn wait_host(&self, _event: &Event) -> Result<()> {
        self.not_capturing("wait")
    }

    fn elapsed_ms(&self, from: &Event, to: &Event) -> Result<f32> {
        let state = self.state();
        match (state.events.get(&from.0), state.events.get(&to.0)) {
            (Some(from), Some(to)) => Ok(to.duration_since(*from).as_secs_f32() * 1e3),
            _ => Err(failed("elapsed time", "an event was never recorded")),
        }
    }

    fn drop_event(&self, event: Event) {
        self.state().events.remove(&event.0);
    }

    fn synchronize(&self, _queue: Queue) -> Result<()> {
        self.not_capturing("synchronize")?;
        match self.broken_guard() {
            Some((at, bytes)) => {
                Err(failed("device work", format!("guard words around {bytes} bytes at {at:#x} were overwritten")))
            }
            None => Ok(()),
        }
    }

    fn begin_capture(&self) -> Result<()> {
        self.not_capturing("begin capture")?;
        self.state().open = Some((thread::current().id(), Vec::new()));
        Ok(())
    }

    fn end_capture(&self) -> Result<Graph> {
        let mut state = self.state();
        let (_, ops) = state.open.take().ok_or_else(|| failed("end capture", "none is open"))?;
        state.next += 1;
        let id = state.next;
        state.graphs.insert(id, ops);
        Ok(Graph(id))
    }

    fn replay(&self, graph: &Graph) -> Result<()> {
        // Taken out for the run, so that the table is not held across it.
        let ops = self.state().graphs.remove(&graph.0).ok_or_else(|| failed("replay", "no such graph"))?;
        // SAFETY: given under the contracts of the methods that remembered them; buffers outlive CUDA graphs.
        let done = ops.iter().try_for_each(|op| unsafe { self.run(op) });
        self.state().graphs.insert(graph.0, ops);
        done
    }

    fn drop_graph(&self, graph: Graph) {
        self.state().graphs.remove(&graph.0);
    }
}
