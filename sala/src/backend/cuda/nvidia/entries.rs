//! The methods of [`Driver`].

use super::*;

/// A copy of rows between host and device: `of` says where the device's begin, the host's are contiguous.
fn rows_of(host: *mut u8, of: &Pitched, inward: bool) -> sys::CUDA_MEMCPY2D {
    let kinds = [sys::CUmemorytype::CU_MEMORYTYPE_HOST, sys::CUmemorytype::CU_MEMORYTYPE_DEVICE];
    let (pitches, [from, to]) = ([of.bytes, of.pitch], if inward { [0, 1] } else { [1, 0] });
    sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: kinds[from],
        srcHost: host.cast(),
        srcDevice: of.at,
        srcArray: null_mut(),
        srcPitch: pitches[from],
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: kinds[to],
        dstHost: host.cast(),
        dstDevice: of.at,
        dstArray: null_mut(),
        dstPitch: pitches[to],
        WidthInBytes: of.bytes,
        Height: of.rows,
    }
}

const VALUE: u64 = 2;

impl Driver for Nvidia {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn free_bytes(&self) -> Result<u64> {
        let (free, _) = self.call(format_args!("memory info"), result::mem_get_info)?;
        Ok(u64::try_from(free).unwrap_or(u64::MAX))
    }

    fn alloc(&self, bytes: usize) -> Result<DevicePtr> {
        // SAFETY: freed by `free`.
        self.call(format_args!("allocating {bytes} bytes"), || unsafe { result::malloc_sync(bytes.max(1)) })
    }

    fn free(&self, ptr: DevicePtr) {
        if self.bind("free").is_ok() {
            // SAFETY: from `alloc`. An error here belongs to earlier work, which has reported it.
            let _ = unsafe { result::free_sync(ptr) };
        }
    }

    fn tensor_map(&self, of: &TileMap) -> Result<TensorMap> {
        if !self.info.brings_tiles {
            return Ok(TensorMap::default());
        }
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        let size = [of.width, of.rows, of.tiles, 2].map(|n| n as u64);
        let strides = [of.width as u64 * VALUE, of.tile as u64 * VALUE, of.second];
        // SAFETY: the arrays have as many values as the rank asks for; memory is not looked at.
        self.call(format_args!("a tensor map of {of:?}"), || unsafe {
            sys::cuTensorMapEncodeTiled(
                &raw mut map,
                sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                4,
                of.at as *mut c_void,
                size.as_ptr(),
                strides.as_ptr(),
                [BOX[0], BOX[1], 1, 1].as_ptr(),
                [1; 4].as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
            .result()
        })?;
        Ok(TensorMap(map.opaque))
    }

    fn granularity(&self, home: Home) -> Option<usize> {
        match home {
            Home::Device => Some(self.granularity),
            Home::Host => self.reads_host.then_some(HOST_GRANULARITY),
        }
    }

    fn reserve(&self, home: Home, bytes: usize) -> Result<DevicePtr> {
        if home == Home::Host {
            return HostPages::reserve(bytes);
        }
        let mut at = 0;
        // SAFETY: writes one address.
        self.call(format_args!("reserving {bytes} bytes of address space"), || unsafe {
            sys::cuMemAddressReserve(&raw mut at, bytes, 0, 0, 0).result()
        })?;
        Ok(at)
    }

    fn map(&self, home: Home, at: DevicePtr, bytes: usize) -> Result<Mapping> {
        self.bind("map")?;
        if home == Home::Host {
            // SAFETY: `at` lies in a reserved range.
            return self.register(at, bytes, unsafe { self.pages.map(at, bytes)? });
        }
        let kind = allocation_kind(self.device);
        let mut handle = 0;
        // SAFETY: sizes are multiples of the granularity, `at` lies in a reserved range.
        unsafe {
            sys::cuMemCreate(&raw mut handle, bytes, &raw const kind, 0)
                .result()
                .map_err(|e| failed(format!("mapping {bytes} bytes"), e))?;
            self.put(at, bytes, handle)
        }
    }

    fn map_again(&self, at: DevicePtr, of: &Mapping) -> Result<Mapping> {
        self.bind("map")?;
        if of.home == Home::Host {
            // SAFETY: `of` is mapped with this size, `at` lies in a reserved range.
            unsafe { self.pages.map_again(at, of.bytes, of.handle)? };
            return self.register(at, of.bytes, of.handle);
        }
        let mut handle = 0;
        // SAFETY: `of` is mapped, `at` lies in a reserved range; a reference of its own, released with the mapping.
        unsafe {
            sys::cuMemRetainAllocationHandle(&raw mut handle, of.at as *mut std::ffi::c_void)
                .result()
                .map_err(|e| failed(format!("sharing {} bytes", of.bytes), e))?;
            self.put(at, of.bytes, handle)
        }
    }

    fn unmap(&self, mapping: Mapping) {
        let bound = self.bind("unmap").is_ok();
        // SAFETY: from `map`; the caller has waited for the device.
        unsafe {
            match mapping.home {
                Home::Device if bound => {
                    let _ = sys::cuMemUnmap(mapping.at, mapping.bytes);
                    let _ = sys::cuMemRelease(mapping.handle);
                }
                Home::Device => {}
                Home::Host => {
                    if bound {
                        let _ = sys::cuMemHostUnregister(mapping.at as *mut c_void);
                    }
                    self.pages.unmap(mapping.at, mapping.bytes, mapping.handle);
                }
            }
        }
    }

    fn release(&self, home: Home, at: DevicePtr, bytes: usize) {
        if home == Home::Host {
            // SAFETY: from `reserve`, nothing mapped any more.
            unsafe { HostPages::release(at, bytes) };
        } else if self.bind("release").is_ok() {
            // SAFETY: from `reserve`, nothing mapped any more.
            let _ = unsafe { sys::cuMemAddressFree(at, bytes) };
        }
    }

    fn host_alloc(&self, bytes: usize) -> Result<*mut u8> {
        let what = format_args!("allocating {bytes} bytes of page-locked memory");
        // SAFETY: freed by `host_free`.
        self.call(what, || unsafe { result::malloc_host(bytes.max(1), 0) }).map(|ptr| ptr.cast())
    }

    fn host_free(&self, ptr: *mut u8) {
        if self.bind("host free").is_ok() {
            // SAFETY: from `host_alloc`.
            let _ = unsafe { result::free_host(ptr.cast()) };
        }
    }

    unsafe fn copy_in(&self, dst: DevicePtr, src: *const u8, bytes: usize, queue: Queue) -> Result<()> {
        // SAFETY: the caller's.
        self.call(format_args!("copying {bytes} bytes to the device"), || unsafe {
            sys::cuMemcpyHtoDAsync_v2(dst, src.cast(), bytes, self.stream(queue)).result()
        })
    }

    unsafe fn copy_out(&self, dst: *mut u8, src: DevicePtr, bytes: usize, queue: Queue) -> Result<()> {
        // SAFETY: the caller's.
        self.call(format_args!("copying {bytes} bytes from the device"), || unsafe {
            sys::cuMemcpyDtoHAsync_v2(dst.cast(), src, bytes, self.stream(queue)).result()
        })
    }

    unsafe fn copy_in_rows(&self, dst: &Pitched, src: *const u8, queue: Queue) -> Result<()> {
        let copy = rows_of(src.cast_mut(), dst, true);
        // SAFETY: the caller's.
        self.call(format_args!("copying {} rows of {} bytes to the device", dst.rows, dst.bytes), || unsafe {
            sys::cuMemcpy2DAsync_v2(&raw const copy, self.stream(queue)).result()
        })
    }

    unsafe fn copy_out_rows(&self, dst: *mut u8, src: &Pitched, queue: Queue) -> Result<()> {
        let copy = rows_of(dst, src, false);
        // SAFETY: the caller's.
        self.call(format_args!("copying {} rows of {} bytes from the device", src.rows, src.bytes), || unsafe {
            sys::cuMemcpy2DAsync_v2(&raw const copy, self.stream(queue)).result()
        })
    }

    unsafe fn copy(&self, dst: DevicePtr, src: DevicePtr, bytes: usize, queue: Queue) -> Result<()> {
        // SAFETY: the caller's.
        self.call(format_args!("copying {bytes} bytes on the device"), || unsafe {
            sys::cuMemcpyDtoDAsync_v2(dst, src, bytes, self.stream(queue)).result()
        })
    }

    unsafe fn fill(&self, dst: DevicePtr, byte: u8, bytes: usize, queue: Queue) -> Result<()> {
        // SAFETY: the caller's.
        self.call(format_args!("filling {bytes} bytes"), || unsafe {
            sys::cuMemsetD8Async(dst, byte, bytes, self.stream(queue)).result()
        })
    }

    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        // SAFETY: the caller's.
        unsafe { self.launch_on(Queue::Compute, launch) }
    }

    fn gemm_library(&self) -> Option<&str> {
        self.library().map(|(name, _)| name.as_str())
    }

    unsafe fn gemm(&self, gemm: &Gemm) -> Result<bool> {
        let Some((_, cublaslt)) = self.library() else { return Ok(false) };
        self.bind("gemm")?;
        // SAFETY: the caller's.
        unsafe { lock(cublaslt).run(self, gemm) }
    }

    fn prepare_gemm(&self, out: usize, inner: usize, to: GemmOut) {
        // A proof must not take memory where it is short.
        let room = self.free_bytes().is_ok_and(|free| free >= ROOM_FOR_PROOFS);
        if let (Some((_, cublaslt)), true) = (self.library(), room)
            && let Err(error) = lock(cublaslt).prove(self, [out, inner], to, false)
        {
            // The first use reports it again.
            tracing::debug!("GEMM library: {error}");
        }
    }

    fn prove_fp8(&self, out: usize, inner: usize, to: GemmOut) -> Result<()> {
        limits::fp8(&self.info)?;
        let Some((library, cublaslt)) = self.library() else {
            return Err(limits::no_fp8("needs cuBLASLt 12.9 or newer, which was not found"));
        };
        self.bind("prove GEMM")?;
        if lock(cublaslt).prove(self, [out, inner], to, true)? {
            return Ok(());
        }
        let what = format!("needs cuBLASLt 12.9 or newer: {library} has no product for {out} x {inner}");
        Err(limits::no_fp8(what))
    }

    fn event(&self) -> Result<Event> {
        let made = || result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT);
        Ok(Event(self.call(format_args!("event"), made)? as u64))
    }

    fn record(&self, event: &Event, queue: Queue) -> Result<()> {
        // SAFETY: from `event`.
        self.call(format_args!("record event"), || unsafe {
            result::event::record(event_of(event), self.stream(queue))
        })
    }

    fn wait(&self, queue: Queue, event: &Event) -> Result<()> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: from `event`.
        self.call(format_args!("wait for event"), || unsafe {
            result::stream::wait_event(self.stream(queue), event_of(event), flags)
        })
    }

    fn wait_host(&self, event: &Event) -> Result<()> {
        // SAFETY: from `event`.
        self.call(format_args!("device work"), || unsafe { result::event::synchronize(event_of(event)) })
    }

    fn elapsed_ms(&self, from: &Event, to: &Event) -> Result<f32> {
        // SAFETY: from `event`.
        self.call(format_args!("elapsed time"), || unsafe { result::event::elapsed(event_of(from), event_of(to)) })
    }

    fn drop_event(&self, event: Event) {
        if self.bind("drop event").is_ok() {
            // SAFETY: from `event`, used nowhere else: the handle is not Clone.
            let _ = unsafe { result::event::destroy(event_of(&event)) };
        }
    }

    fn synchronize(&self, queue: Queue) -> Result<()> {
        // SAFETY: created in `open`.
        self.call(format_args!("device work"), || unsafe { result::stream::synchronize(self.stream(queue)) })
    }

    fn begin_capture(&self) -> Result<()> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: created in `open`.
        self.call(format_args!("begin capture"), || unsafe { result::stream::begin_capture(self.compute, mode) })
    }

    fn end_capture(&self) -> Result<Graph> {
        // SAFETY: a capture is open on this stream; the graph is destroyed once its executable form exists.
        self.call(format_args!("end capture"), || unsafe {
            let graph = result::stream::end_capture(self.compute)?;
            let mut ready = null_mut();
            let instantiated = sys::cuGraphInstantiateWithFlags(&raw mut ready, graph, 0).result();
            let _ = result::graph::destroy(graph);
            instantiated?;
            let _ = result::graph::upload(ready, self.compute);
            Ok(Graph(ready as u64))
        })
    }

    fn replay(&self, graph: &Graph) -> Result<()> {
        // SAFETY: from `end_capture`; buffers it names outlive it (graphs are dropped first).
        self.call(format_args!("replay"), || unsafe {
            result::graph::launch(graph.0 as sys::CUgraphExec, self.compute)
        })
    }

    fn drop_graph(&self, graph: Graph) {
        if self.bind("drop graph").is_ok() {
            // SAFETY: from `end_capture`, used nowhere else: the handle is not Clone.
            let _ = unsafe { result::graph::exec_destroy(graph.0 as sys::CUgraphExec) };
        }
    }
}
