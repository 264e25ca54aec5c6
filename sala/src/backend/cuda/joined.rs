//! The memory of a sequence's caches: rows of all its sparse layers in tiles of two growable arrays.
//!
//! A tile of keys and values is a block of each layer, keys and then values; a tile of compressed keys is [`KEY_TILE`]
//! positions of each layer, those of level 1 and then those of level 2 (`kernels/attention.cuh`). So a page holds rows
//! of all layers, and a fork, which copies the rows after the last whole page, has one or two pages of its own instead
//! of as many for each array of each layer.
//!
//! Keys and values in host memory are one array per layer and kind: contiguous rows suit copies.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::check_shape;
use super::device::Device;
use super::driver::{DevicePtr, Home, Queue};
use super::growable::Growable;
use super::ledger::{CacheLedger, HOST_SPARE_BYTES, PAGED_SPARE_BYTES, SPARE_BYTES};
use super::stretch::Stretch;
use super::tensors::HEAD;
use crate::backend::{BackendError, Result, host, internal, invariant};
use crate::core::grouped;
use crate::core::spec::SparseSpec;

/// Positions of a tile of compressed keys: `KEY_TILE` of `kernels/attention.cuh`.
pub(super) const KEY_TILE: usize = 4096;

struct Tiles {
    array: Growable,
    positions: usize,
    bytes: usize,
    /// Number of positions after a tile that still complete rows in it.
    late: usize,
}

impl Tiles {
    fn new(device: &Device, home: Home, limit: usize, [positions, bytes, late]: [usize; 3]) -> Result<Self> {
        let array = Growable::new(device, home, limit.div_ceil(positions).max(1) * bytes)?;
        Ok(Tiles { array, positions, bytes, late })
    }

    fn holding(&self, positions: usize) -> usize {
        positions.div_ceil(self.positions) * self.bytes
    }

    /// Bytes of the tiles that later positions never write.
    fn complete(&self, positions: usize) -> usize {
        positions.saturating_sub(self.late) / self.positions * self.bytes
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) home: Home,
    array: usize,
    pub(super) at: DevicePtr,
    /// Bytes of its rows in a tile; also the distance between tiles.
    chunk: usize,
    pitch: usize,
    row_bytes: usize,
}

impl Column {
    pub(super) fn tile(&self) -> usize {
        self.pitch / 2
    }

    fn rows(&self, rows: &Range<usize>) -> Stretch {
        let all = Stretch::in_pieces(self.at, self.chunk, self.pitch, rows.end * self.row_bytes);
        all.part(rows.start * self.row_bytes, rows.len() * self.row_bytes)
    }
}

pub(super) type Columns = [Column; 4];

pub(super) struct OnHost(Vec<Tiles>);

fn level_bytes(spec: &SparseSpec) -> [usize; 2] {
    [spec.stride, 4 * spec.stride].map(|stride| KEY_TILE / stride * spec.kv_heads * HEAD * 2)
}

fn token_bytes(spec: &SparseSpec, home: Home, layers: usize) -> [u64; 2] {
    let [rows, compressed] = spec.token_bytes();
    let bytes = match home {
        Home::Device => [rows + compressed, 0],
        Home::Host => [compressed, rows],
    };
    bytes.map(|bytes| (layers * bytes) as u64)
}

fn rows_of(device: &Device, spec: &SparseSpec, limit: usize, home: Home, layers: usize) -> Result<Vec<Tiles>> {
    let block = spec.block * spec.kv_heads * HEAD * 2;
    let tiles = |all: usize| Tiles::new(device, home, limit, [spec.block, all * block, 0]);
    match home {
        Home::Device => Ok(vec![tiles(2 * layers)?]),
        Home::Host => (0..2 * layers).map(|_| tiles(1)).collect(),
    }
}

fn columns(arrays: &[Tiles], spec: &SparseSpec, layers: usize) -> Vec<Columns> {
    let row_bytes = spec.kv_heads * HEAD * 2;
    let block = spec.block * row_bytes;
    let [level1, level2] = level_bytes(spec);
    let column = |array: usize, before: usize, chunk: usize| {
        let tiles = &arrays[array];
        let (home, at) = (tiles.array.home, tiles.array.at + before as u64);
        Column { home, array, at, chunk, pitch: tiles.bytes, row_bytes }
    };
    let keys = arrays.len() - 1;
    let of_layer = |layer: usize| {
        let [k, v] = [2 * layer, 2 * layer + 1].map(|n| match arrays[0].array.home {
            Home::Host => column(n, 0, block),
            Home::Device => column(0, n * block, block),
        });
        let before = layer * (level1 + level2);
        [k, v, column(keys, before, level1), column(keys, before + level1, level2)]
    };
    (0..layers).map(of_layer).collect()
}

pub(super) struct Joined {
    device: Device,
    arrays: Vec<Tiles>,
    pub(super) layers: usize,
    pub(super) limit: usize,
    ledger: Arc<CacheLedger>,
    bytes_per_token: [u64; 2],
}

impl Joined {
    pub(super) fn new(
        device: &Device,
        ledger: &Arc<CacheLedger>,
        spec: &SparseSpec,
        limit: usize,
        home: Home,
        layers: usize,
    ) -> Result<(Self, Vec<Columns>)> {
        let [level1, level2] = level_bytes(spec);
        // A window ends this far after its stride.
        let late = 4 * (spec.kernel - spec.stride);
        let mut arrays = rows_of(device, spec, limit, home, layers)?;
        let keys = [KEY_TILE, layers * (level1 + level2), late];
        arrays.push(Tiles::new(device, Home::Device, limit, keys)?);
        let columns = columns(&arrays, spec, layers);
        let bytes_per_token = token_bytes(spec, home, layers);
        ledger.host_bytes_per_token.fetch_add(bytes_per_token[1], Ordering::Relaxed);
        if ledger.bytes_per_token.fetch_add(bytes_per_token[0], Ordering::Relaxed) == 0 {
            ledger.approved.store(0, Ordering::Relaxed);
        }
        let ledger = Arc::clone(ledger);
        Ok((Joined { device: device.clone(), arrays, layers, limit, ledger, bytes_per_token }, columns))
    }

    /// Bytes of keys and values on the device: those that would be freed if all sequences dropped theirs, and all.
    pub(super) fn resident(&self) -> [u64; 2] {
        let rows = self.arrays.iter().take(self.arrays.len().saturating_sub(1));
        let here = rows.filter(|tiles| tiles.array.home == Home::Device);
        let sums = here.map(|tiles| [tiles.array.share_of_memory(), tiles.array.mapped]);
        sums.fold([0, 0], |[a, b], [share, backed]| [a + share as u64, b + backed as u64])
    }

    /// Copies keys and values to host memory for [`Joined::leave_device`]. The copies run on the compute queue; the
    /// caller waits for it.
    pub(super) fn on_host(&self, spec: &SparseSpec) -> Result<OnHost> {
        let tiles = self.arrays.first().filter(|tiles| tiles.array.home == Home::Device);
        let tiles = tiles.ok_or_else(|| internal("cache", "keys and values that are not on the device"))?;
        let positions = tiles.array.mapped / tiles.bytes * tiles.positions;
        let mut arrays = rows_of(&self.device, spec, self.limit, Home::Host, self.layers)?;
        let from = columns(&self.arrays, spec, self.layers);
        let from = from.iter().flat_map(|[k, v, ..]| [k, v]);
        for (to, from) in arrays.iter_mut().zip(from) {
            to.array.grow(to.holding(positions))?;
            let (from, mut done) = (from.rows(&(0..positions)), 0);
            for (piece, bytes) in to.array.pieces(0..from.bytes) {
                // SAFETY: both have memory under these positions; nothing uses the host's yet, and nothing later on
                // the queue writes the device's.
                unsafe {
                    from.part(done, bytes).copy_out(self.device.driver(), piece as *mut u8, Queue::Compute)?;
                };
                done += bytes;
            }
        }
        Ok(OnHost(arrays))
    }

    /// Switches to the host arrays of [`Joined::on_host`]. Returns the location of each layer's rows.
    pub(super) fn leave_device(&mut self, spec: &SparseSpec, OnHost(mut arrays): OnHost) -> Vec<Columns> {
        arrays.extend(self.arrays.pop());
        self.arrays = arrays;
        let bytes = token_bytes(spec, Home::Host, self.layers);
        let before = std::mem::replace(&mut self.bytes_per_token, bytes);
        let ledger = &self.ledger;
        for (all, (before, now)) in
            [&ledger.bytes_per_token, &ledger.host_bytes_per_token].into_iter().zip(before.into_iter().zip(bytes))
        {
            all.fetch_sub(before, Ordering::Relaxed);
            all.fetch_add(now, Ordering::Relaxed);
        }
        ledger.approved.store(0, Ordering::Relaxed);
        columns(&self.arrays, spec, self.layers)
    }

    pub(super) fn array(&self, column: &Column) -> &Growable {
        &self.arrays[column.array].array
    }

    pub(super) fn rows(&self, column: &Column, rows: &Range<usize>) -> Result<Stretch> {
        let backed = self.array(column).mapped / column.pitch * (column.chunk / column.row_bytes);
        check_shape(rows.end <= backed, "cache rows", format_args!("below {backed}"), rows.end)?;
        Ok(column.rows(rows))
    }

    /// Device bytes that [`Joined::reserve`] of `limit` would allocate after [`Joined::own`] of `keep`.
    pub(super) fn wants_anew(&self, keep: usize, limit: usize) -> u64 {
        let (keep, limit) = (keep.min(self.limit), limit.min(self.limit));
        let here = self.arrays.iter().filter(|tiles| tiles.array.home == Home::Device);
        let anew = |tiles: &Tiles| {
            tiles.array.wants_anew(tiles.complete(keep), tiles.holding(keep), tiles.holding(limit)) as u64
        };
        here.map(anew).sum()
    }

    pub(super) fn reserve(&mut self, limit: usize) -> Result<()> {
        check_shape(limit <= self.limit, "reserve", format_args!("at most {} positions", self.limit), limit)?;
        if self.arrays.iter().all(|tiles| tiles.array.wants(tiles.holding(limit)) == 0) {
            return Ok(());
        }
        if limit > self.ledger.approved.load(Ordering::Relaxed) {
            self.check(limit)?;
            self.ledger.approved.store(limit, Ordering::Relaxed);
        }
        for tiles in &mut self.arrays {
            tiles.array.grow(tiles.holding(limit))?;
        }
        Ok(())
    }

    fn check(&self, limit: usize) -> Result<()> {
        let ledger = &self.ledger;
        let have = self.arrays.first().map_or(0, |tiles| tiles.array.mapped / tiles.bytes * tiles.positions) as u64;
        let more = (limit as u64).saturating_sub(have);
        let paged = self.bytes_per_token[1] > 0;
        let fits = |per_token: u64, free: u64, place: &str| {
            let (needed, most) = (more * per_token, (have + free / per_token.max(1)) / 1024 * 1024);
            match needed > free {
                true => Err(BackendError::Memory {
                    what: format!("a context of {limit} tokens{place}"),
                    needed,
                    free,
                    advice: format!("Fits with at most {} tokens", grouped(most)),
                }),
                false => Ok(()),
            }
        };
        let spare = if paged { PAGED_SPARE_BYTES } else { SPARE_BYTES };
        let free = self.device.free_bytes()?.saturating_sub(spare);
        fits(ledger.bytes_per_token.load(Ordering::Relaxed).max(1), free, "")?;
        let free = host::free_bytes().unwrap_or(u64::MAX).saturating_sub(HOST_SPARE_BYTES);
        let per_token = ledger.host_bytes_per_token.load(Ordering::Relaxed);
        fits(per_token, free, " with keys and values in this machine's memory")
    }

    /// Copies the first `positions` positions of `from` and shares whole pages of complete tiles. Host writes to
    /// `from` have finished up to the end of the last block.
    pub(super) fn copy_from(&mut self, from: &mut Joined, positions: usize) -> Result<()> {
        let holds = self.arrays.len() == from.arrays.len() && self.layers == from.layers;
        invariant(holds, "copy_rows", "caches of two shapes")?;
        let mut common = Vec::with_capacity(self.arrays.len());
        for (to, from) in self.arrays.iter_mut().zip(&mut from.arrays) {
            let complete = from.complete(positions);
            common.push(to.array.share(&mut from.array, complete)?);
        }
        self.forget_what_was_approved();
        self.reserve(positions)?;
        if self.arrays.iter().any(|tiles| tiles.array.home == Home::Host) {
            // The device may still write or read there.
            self.device.driver().synchronize(Queue::Copy)?;
            self.device.driver().synchronize(Queue::Compute)?;
        }
        for ((to, from), common) in self.arrays.iter().zip(&from.arrays).zip(common) {
            let rest = common..to.holding(positions).max(common);
            let holds = from.bytes == to.bytes && from.array.home == to.array.home && rest.end <= from.array.mapped;
            invariant(holds, "copy_rows", "caches of two shapes")?;
            match to.array.home {
                // SAFETY: both have memory under these tiles, each its own, and the device is done with them.
                Home::Host => unsafe { to.array.host(rest.clone())?.copy_from_slice(from.array.host(rest)?) },
                Home::Device if rest.is_empty() => {}
                Home::Device => {
                    let [to, from] = [to, from].map(|tiles| tiles.array.at + rest.start as u64);
                    // SAFETY: both have memory under these tiles, each its own.
                    unsafe { self.device.driver().copy(to, from, rest.len(), Queue::Compute)? };
                }
            }
        }
        Ok(())
    }

    pub(super) fn own(&mut self, keep: usize) -> Result<()> {
        for tiles in &mut self.arrays {
            let (from, keep) = (tiles.complete(keep), tiles.holding(keep));
            tiles.array.own(from, keep)?;
        }
        self.forget_what_was_approved();
        Ok(())
    }

    /// Memory may have been unmapped: growth beyond the mapped part is checked again.
    fn forget_what_was_approved(&self) {
        let backed = self.arrays.iter().map(|tiles| tiles.array.mapped / tiles.bytes * tiles.positions).min();
        self.ledger.approved.fetch_min(backed.unwrap_or_default(), Ordering::Relaxed);
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.ledger.bytes_per_token.fetch_sub(self.bytes_per_token[0], Ordering::Relaxed);
        self.ledger.host_bytes_per_token.fetch_sub(self.bytes_per_token[1], Ordering::Relaxed);
    }
}
