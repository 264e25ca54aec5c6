//! Contexts larger than the device: keys and values are in host memory, and a pool of their blocks on the device.
//!
//! Rows of k and v of a paged cache (`kernels/pool.cu`) are page-locked host memory, which kernels reach at the host's
//! addresses; compressed keys stay on the device. A verify pass looks its chosen blocks up in the pool of the layer,
//! which all sequences share, and fetches the missing ones, all on the device, so that steps stay CUDA graphs. A
//! prefill pass does not use the pool: its rows choose most blocks together, so the copy engine moves all rows so far
//! through a ring of staging memory while other work runs.
//!
//! Host memory is authoritative; slots of the pool hold copies. Writers of rows other than verify passes first remove
//! the blocks from the pool ([`Paged::forget`]).

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::device::{Account, Device, DeviceBuffer};
use super::driver::{DevicePtr, Event, Queue};
use super::joined::{Columns, Joined};
use super::launch;
use super::tables::Entry;
use super::tensors::HEAD;
use crate::backend::{MAX_POSITIONS, Result, internal};
use crate::core::spec::SparseSpec;

const RING: usize = 4;
const TIMED_BYTES: usize = 8 << 20;
pub(super) const SEEN: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSize {
    /// For each sparse layer and KV head.
    pub blocks: usize,
    /// Rows of one layer that prefill passes have on the device at a time; rounded up to whole blocks.
    pub staged_rows: usize,
}

pub(super) const SLOT_BYTES: usize = super::limits::BLOCK * HEAD * 2;

pub(super) struct LayerPool {
    pub(super) slots: usize,
    pub(super) kv_heads: usize,
    /// `[kv_heads][slots][64][128]` bf16.
    pub(super) k: DeviceBuffer,
    pub(super) v: DeviceBuffer,
    /// `[kv_heads][slots]`: u64 address of the table entry that names a slot, u32 pass in which it was chosen last.
    pub(super) owner: DeviceBuffer,
    pub(super) stamp: DeviceBuffer,
    /// `[kv_heads]` u32: passes so far.
    pub(super) clock: DeviceBuffer,
}

impl LayerPool {
    fn new(device: &Device, spec: &SparseSpec, slots: usize) -> Result<Self> {
        let (kv_heads, slots) = (spec.kv_heads, slots.clamp(1, launch::MOST_SLOTS));
        let state = |bytes: usize| device.zeroed("blocks of keys and values", kv_heads * bytes, Account::Pool);
        Ok(LayerPool {
            slots,
            kv_heads,
            k: state(slots * SLOT_BYTES)?,
            v: state(slots * SLOT_BYTES)?,
            owner: state(slots * 8)?,
            stamp: state(slots * 4)?,
            clock: state(4)?,
        })
    }
}

pub(super) struct Paged {
    device: Device,
    /// `[kv_heads][blocks]` i32: slot in the pool, -1 for none.
    table: DeviceBuffer,
    pub(super) blocks: usize,
    pub(super) pool: Option<Arc<LayerPool>>,
}

impl Paged {
    pub(super) fn new(device: &Device, spec: &SparseSpec, limit: usize) -> Result<Self> {
        let blocks = limit.div_ceil(spec.block).max(1);
        let table = device.alloc("tables of blocks", spec.kv_heads * blocks * 4, Account::State)?;
        // SAFETY: the buffer was just made with this size.
        unsafe { device.driver().fill(table.ptr(), 0xff, table.bytes(), Queue::Compute)? };
        Ok(Paged { device: device.clone(), table, blocks, pool: None })
    }

    /// `RowBlocks`
    pub(super) fn entry(&self) -> Entry {
        [self.table.ptr(), 0, 0, 0]
    }

    fn settle(&mut self, pool: Arc<LayerPool>) -> Result<()> {
        if self.pool.as_ref().is_some_and(|own| Arc::ptr_eq(own, &pool)) {
            return Ok(());
        }
        self.forget(0)?;
        self.pool = Some(pool);
        Ok(())
    }

    pub(super) fn forget(&self, position: usize) -> Result<()> {
        let from = position / super::limits::BLOCK;
        let Some(pool) = self.pool.as_ref().filter(|_| from < self.blocks) else { return Ok(()) };
        let launch = launch::PoolForget {
            table: self.table.ptr(),
            owner: pool.owner.ptr(),
            stamp: pool.stamp.ptr(),
            slots: pool.slots,
            blocks: self.blocks,
            from,
            kv_heads: pool.kv_heads,
        };
        // SAFETY: the table has this many blocks, the pool as many slots, a KV head each; both outlive the queue's work.
        unsafe { launch.launch(self.device.driver()) }
    }
}

impl Drop for Paged {
    fn drop(&mut self) {
        // The pool must not name a freed table; memory is freed only after the queue has passed this.
        let _ = self.forget(0);
    }
}

pub(super) struct Lookup {
    kv_heads: usize,
    /// `[kv_heads][slots]` `struct Fetch`.
    pub(super) fetch: DeviceBuffer,
    /// `[kv_heads]` u32.
    pub(super) fetched: DeviceBuffer,
    /// `[kv_heads][4]` u64.
    pub(super) seen: DeviceBuffer,
}

pub(super) struct Ring {
    device: Device,
    memory: DeviceBuffer,
    pub(super) rows: usize,
    row_bytes: usize,
    heads: usize,
    /// One event per place after it was filled, and one after it was read.
    filled: Vec<Event>,
    read: Vec<Event>,
    next: usize,
    appended: Event,
    /// `[rows][heads][4]` float2: partial sums of a row's attention between parts.
    pub(super) parts: DeviceBuffer,
}

/// A filled place of the ring: attention may read it after [`Ring::fill`], and ends with [`Ring::done`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Filled {
    place: usize,
    /// Address that row 0 would have.
    pub(super) k: DevicePtr,
    pub(super) v: DevicePtr,
}

impl Ring {
    fn new(device: &Device, spec: &SparseSpec, staged_rows: usize, pass_rows: usize) -> Result<Self> {
        let rows = (staged_rows / RING).next_multiple_of(spec.block).max(spec.block);
        let row_bytes = spec.kv_heads * HEAD * 2;
        let events = || (0..RING).map(|_| device.driver().event()).collect::<Result<Vec<_>>>();
        Ok(Ring {
            memory: device.zeroed("staged keys and values", RING * 2 * rows * row_bytes, Account::Pool)?,
            rows,
            row_bytes,
            heads: spec.heads,
            filled: events()?,
            read: events()?,
            next: 0,
            appended: device.driver().event()?,
            parts: device.zeroed("attention in parts", pass_rows * spec.heads * 4 * 8, Account::Work)?,
            device: device.clone(),
        })
    }

    /// Measures the copy time per byte from page-locked memory. Waits.
    fn seconds_per_byte(&self) -> Result<f64> {
        let driver = self.device.driver();
        let bytes = self.memory.bytes().min(TIMED_BYTES);
        let host = self.device.pinned(bytes)?;
        let (from, to) = (&self.filled[0], &self.read[0]);
        let mut best = f64::INFINITY;
        for _ in 0..3 {
            driver.record(from, Queue::Copy)?;
            // SAFETY: nothing uses the ring yet, which has so many bytes; the host's outlive the wait.
            unsafe { driver.copy_in(self.memory.ptr(), host.as_ptr(), bytes, Queue::Copy)? };
            driver.record(to, Queue::Copy)?;
            driver.synchronize(Queue::Copy)?;
            best = best.min(f64::from(driver.elapsed_ms(from, to)?) / 1e3);
        }
        Ok(best / bytes as f64)
    }

    pub(super) fn appended(&self) -> Result<()> {
        self.device.driver().record(&self.appended, Queue::Compute)
    }

    /// Copies rows `from..until` of k and v into the next place on the copy queue; the compute queue then waits for
    /// them. `fresh`: this pass wrote some of them.
    pub(super) fn fill(
        &mut self,
        joined: &Joined,
        [k, v, ..]: &Columns,
        from: usize,
        until: usize,
        fresh: bool,
    ) -> Result<Filled> {
        let (place, driver) = (self.next, self.device.driver());
        let (filled, read) = (&self.filled[place], &self.read[place]);
        if until.saturating_sub(from) > self.rows {
            return Err(internal("prefill", "more rows than a place of the ring has"));
        }
        driver.wait(Queue::Copy, read)?;
        if fresh {
            driver.wait(Queue::Copy, &self.appended)?;
        }
        let array = (self.rows * self.row_bytes) as u64;
        let at = self.memory.ptr() + 2 * place as u64 * array;
        for (column, at) in [(k, at), (v, at + array)] {
            let mut to = at;
            for (piece, bytes) in joined.array(column).pieces(from * self.row_bytes..until * self.row_bytes) {
                // SAFETY: host memory of the cache, which is not unmapped before both queues have passed; a place holds this many rows.
                unsafe { driver.copy_in(to, piece as *const u8, bytes, Queue::Copy)? };
                to += bytes as u64;
            }
        }
        driver.record(filled, Queue::Copy)?;
        driver.wait(Queue::Compute, filled)?;
        self.next = (place + 1) % RING;
        let before = (from * self.row_bytes) as u64;
        Ok(Filled { place, k: at.wrapping_sub(before), v: (at + array).wrapping_sub(before) })
    }

    /// Marks the end of all reads of the place, which have been launched.
    pub(super) fn done(&self, filled: Filled) -> Result<()> {
        self.device.driver().record(&self.read[filled.place], Queue::Compute)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // Copies into its memory may be in flight; errors of earlier work were reported by their own waits.
        let _ = self.device.driver().synchronize(Queue::Copy);
        for event in self.filled.drain(..).chain(self.read.drain(..)) {
            self.device.driver().drop_event(event);
        }
        self.device.driver().drop_event(std::mem::replace(&mut self.appended, Event(0)));
    }
}

#[derive(Default)]
pub(super) struct Pools {
    pub(super) size: Option<PoolSize>,
    /// Indexed by place among the sparse layers, the same for all sequences; a pool lives as long as a cache uses it.
    layers: HashMap<usize, Weak<LayerPool>>,
    ready: Vec<Arc<LayerPool>>,
    pub(super) lookup: Option<Lookup>,
    ring: Option<Ring>,
    /// Bus time for a position's keys and values of all layers.
    pub(super) seconds_per_row: f64,
    /// Verify passes may still be writing rows that the copy queue will read.
    pub(super) written: bool,
}

impl Pools {
    pub(super) fn new(size: Option<PoolSize>) -> Self {
        Pools { size, ..Pools::default() }
    }

    /// Switches paging of new caches on or off. Allocates the memory for `layers` layers and passes of `rows` rows at
    /// once.
    pub(super) fn prepare(
        &mut self,
        device: &Device,
        spec: &SparseSpec,
        size: Option<PoolSize>,
        layers: usize,
        rows: usize,
    ) -> Result<()> {
        *self = Pools::new(size);
        if let Some(size) = size {
            for _ in 0..layers {
                self.ready.push(Arc::new(LayerPool::new(device, spec, size.blocks)?));
            }
            self.ready_lookup(device, spec)?;
            let ring = self.ring(device, spec, rows)?;
            let per_byte = ring.seconds_per_byte()?;
            self.seconds_per_row = per_byte * (2 * layers * ring.row_bytes) as f64;
        }
        Ok(())
    }

    /// Connects the cache of the sparse layer `place` with its pool; returns whether a new pool was made.
    pub(super) fn settle(
        &mut self,
        device: &Device,
        spec: &SparseSpec,
        place: usize,
        paged: &mut Paged,
    ) -> Result<bool> {
        let known = self.layers.get(&place).and_then(Weak::upgrade);
        let known = known.filter(|pool| pool.kv_heads == spec.kv_heads);
        if let Some(pool) = known {
            paged.settle(pool)?;
            return Ok(false);
        }
        let pool = match self.ready.pop() {
            Some(pool) => pool,
            None => {
                let size = self.size.ok_or_else(|| internal("cache", "a paged cache where no pool was planned"))?;
                Arc::new(LayerPool::new(device, spec, size.blocks)?)
            }
        };
        self.layers.insert(place, Arc::downgrade(&pool));
        paged.settle(pool)?;
        Ok(true)
    }

    pub(super) fn ready_lookup(&mut self, device: &Device, spec: &SparseSpec) -> Result<bool> {
        if self.lookup.as_ref().is_some_and(|lookup| lookup.kv_heads >= spec.kv_heads) {
            return Ok(false);
        }
        let slots = self.size.map_or(1, |size| size.blocks.clamp(1, launch::MOST_SLOTS));
        let work = |bytes: usize| device.zeroed("looking blocks up", spec.kv_heads * bytes, Account::Work);
        self.lookup = Some(Lookup {
            kv_heads: spec.kv_heads,
            fetch: work(slots * launch::FETCH_BYTES)?,
            fetched: work(4)?,
            seen: work(SEEN * 8)?,
        });
        Ok(true)
    }

    pub(super) fn lookup(&self) -> Result<&Lookup> {
        self.lookup.as_ref().ok_or_else(|| internal("attend", "no memory to look blocks up"))
    }

    pub(super) fn ring(&mut self, device: &Device, spec: &SparseSpec, rows: usize) -> Result<&mut Ring> {
        let fits = |ring: &Ring| ring.row_bytes == spec.kv_heads * HEAD * 2 && ring.heads >= spec.heads;
        if !self.ring.as_ref().is_some_and(fits) {
            let staged = self.size.map_or(0, |size| size.staged_rows);
            self.ring = Some(Ring::new(device, spec, staged.min(MAX_POSITIONS), rows)?);
        }
        self.ring.as_mut().ok_or_else(|| internal("prefill", "no memory to stage rows"))
    }

    /// Before the copy queue reads rows, it waits for writes of verify passes.
    pub(super) fn before_copies(&mut self, device: &Device) -> Result<()> {
        if std::mem::take(&mut self.written) { device.order(Queue::Compute, Queue::Copy) } else { Ok(()) }
    }
}
