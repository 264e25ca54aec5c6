//! The flow of weights through a block of a GEMM of 1..=16 rows, whatever their form: the ring of stages, the shared
//! memory per block, and the blocks of a launch.

pub(super) const SKINNY_TILE: u32 = 32;

pub(super) struct Ring {
    pub(super) warps: u32,
    pub(super) columns: u32,
    /// Bytes of weights in a stage, by the form's detail.
    pub(super) stage: fn(u32) -> u32,
    /// Minimum number of stages: where shared memory is too small for them, rows are processed in two halves.
    pub(super) least: u32,
    /// Maximum number of stages. Packed weights run best with few: the shared memory left over lets the small kernels
    /// that follow start early, and copies that run ahead delay activations.
    pub(super) most: u32,
}

/// Rows with parts that are kept at a time, as in `kernels/skinny.cuh`.
pub(super) const PART_ROWS: u32 = 8;

/// The warps' parts of a tile, `LD_PART` of `kernels/skinny.cuh` floats a row.
fn part_bytes(ring: &Ring, rows: u32) -> u32 {
    ring.warps * (SKINNY_TILE + 4) * rows.min(PART_ROWS) * 4
}

/// Bytes of the rows for one step of all warps.
fn place_bytes(ring: &Ring, rows: u32) -> u32 {
    ring.warps * ring.columns * 2 * rows
}

/// Bytes in use by a block, for `[stages, places, deep, rows]`.
pub(super) fn used_bytes(ring: &Ring, detail: u32, [stages, places, deep, rows]: [u32; 4]) -> u32 {
    stages * ring.warps * (ring.stage)(detail) + places * place_bytes(ring, rows) + deep * part_bytes(ring, rows)
}

/// Bytes allocated per block: more than half of a multiprocessor's, so that two blocks of a launch never share one
/// while another idles.
pub(super) fn shared_bytes(ring: &Ring, detail: u32, sizes: [u32; 4], limit: u32) -> u32 {
    used_bytes(ring, detail, sizes).max((limit / 2 + 2048).min(limit))
}

/// The number of blocks that gives each the same number of tiles, unless that leaves many multiprocessors idle.
pub(super) fn shares(out: u32, multiprocessors: u32) -> u32 {
    let processors = multiprocessors.max(1);
    let tiles = out.div_ceil(SKINNY_TILE);
    let even = tiles.div_ceil(tiles.div_ceil(processors));
    if even * 10 >= processors * 9 { even } else { tiles.min(processors) }
}
