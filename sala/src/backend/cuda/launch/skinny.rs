//! GEMMs of 1..=16 rows: the ring of stages through which weights of any form flow, the shared memory per block, and the
//! blocks of a launch.

use super::*;
use crate::backend::{Form, internal};

const SKINNY_TILE: usize = 32;

struct Ring {
    warps: usize,
    columns: usize,
    /// Bytes of weights in a stage, by the form's detail.
    stage: fn(usize) -> usize,
    /// Minimum number of stages: where shared memory is too small for them, rows are processed in two halves.
    least: usize,
    /// Maximum number of stages. Packed weights run best with few: the shared memory left over lets the small kernels
    /// that follow start early, and copies that run ahead delay activations.
    most: usize,
}

/// Rows with parts that are kept at a time, as in `kernels/skinny.cuh`.
const PART_ROWS: usize = 8;

/// The warps' parts of a tile, `LD_PART` of `kernels/skinny.cuh` floats a row.
fn part_bytes(ring: &Ring, rows: usize) -> usize {
    ring.warps * (SKINNY_TILE + 4) * rows.min(PART_ROWS) * 4
}

/// Bytes of the rows for one step of all warps.
fn place_bytes(ring: &Ring, rows: usize) -> usize {
    ring.warps * ring.columns * 2 * rows
}

/// Bytes in use by a block, for `[stages, places, deep, rows]`.
fn used_bytes(ring: &Ring, detail: usize, [stages, places, deep, rows]: [usize; 4]) -> usize {
    stages * ring.warps * (ring.stage)(detail) + places * place_bytes(ring, rows) + deep * part_bytes(ring, rows)
}

/// Bytes allocated per block: more than half of a multiprocessor's, so that two blocks of a launch never share one
/// while another idles.
fn shared_bytes(ring: &Ring, detail: usize, sizes: [usize; 4], limit: usize) -> usize {
    used_bytes(ring, detail, sizes).max((limit / 2 + 2048).min(limit))
}

/// The number of blocks that gives each the same number of tiles, unless that leaves many multiprocessors idle.
pub(super) fn shares(out: usize, multiprocessors: usize) -> usize {
    let processors = multiprocessors.max(1);
    let tiles = out.div_ceil(SKINNY_TILE);
    let even = tiles.div_ceil(tiles.div_ceil(processors));
    if even * 10 >= processors * 9 { even } else { tiles.min(processors) }
}

/// Turns with parts kept before the warps of a block synchronise to add them up; more turns mean fewer waits. In a
/// turn each team of warps (`teams` of `kernels/skinny.cuh`) works on its own tile and leaves as many parts fewer, and
/// teams share rows that stay: the memory per turn and row is the same for any number of teams.
const MOST_DEEP: usize = 8;

/// Shared memory left to the small kernels around a GEMM, which overlap with it.
const LEFT_FREE: usize = 44 << 10;

/// Left for the kernels' own arrays, which count towards a block's limit, too: a factor of each row, and alignment of
/// the rest.
const OWN_BYTES: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkinnyTo {
    /// bf16 `scale · y`.
    Store,
    /// bf16 `silu(gate) · up` of an interleaved weight.
    Swiglu,
    /// f32 `dst += scale · y`.
    Add,
    /// f32 `scale · y`.
    Logits,
}

/// bf16 rows, and the factor of the results, `mul`, divided by the norms of the rows if there are `sums`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SkinnyRows {
    pub x: DevicePtr,
    pub ld: usize,
    /// f32 `[rows][inner / 32]`, sums of squares; or 0.
    pub sums: DevicePtr,
    pub eps: f32,
    pub mul: f32,
}

impl SkinnyRows {
    pub fn plain(x: DevicePtr, ld: usize) -> Self {
        SkinnyRows { x, ld, sums: 0, eps: 0.0, mul: 1.0 }
    }

    /// Rows from `first` on, of `inner` values each.
    pub fn rows_from(self, first: usize, inner: usize) -> Self {
        let sums = if self.sums == 0 { 0 } else { self.sums + (4 * first * (inner / SUMMED)) as u64 };
        SkinnyRows { x: self.x + (2 * first * self.ld) as u64, sums, ..self }
    }
}

/// The destination of rows for the GEMM after the next norm or gate: bf16 `[rows, n]`, and `sums` as in [`SkinnyRows`]
/// where there is a norm. All 0 without a hint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NextRows {
    pub norm: DevicePtr,
    pub x: DevicePtr,
    pub sums: DevicePtr,
    pub n: usize,
}

impl NextRows {
    /// From this row and column on, a multiple of 32.
    pub fn rest(self, row: usize, column: usize) -> Self {
        let at_value = row * self.n + column;
        let moved = |at: DevicePtr, by: usize| if at == 0 { 0 } else { at + by as u64 };
        NextRows {
            norm: moved(self.norm, 4 * column),
            x: moved(self.x, 2 * at_value),
            sums: moved(self.sums, 4 * at_value / SUMMED),
            n: self.n,
        }
    }
}

/// Columns that become one of a row's sums of squares: `SUMMED` of `kernels/common.cuh`.
pub const SUMMED: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SkinnyWeight {
    pub w: DevicePtr,
    pub form: Form,
    pub out: usize,
    /// A multiple of 64, of 128 for packed forms.
    pub inner: usize,
    /// If rows of another form follow: the number of rows in `form`, and the address of the others.
    pub second: Option<(usize, DevicePtr)>,
}

/// Joins two weights for one kernel: rows of 4, 5 or 6 bits, then int8. The decision depends on the device and on the
/// weights alone, never on the rows of a pass: another kernel adds in another order.
pub fn joined(d: &dyn Driver, to: SkinnyTo, first: SkinnyWeight, second: SkinnyWeight) -> Option<SkinnyWeight> {
    let forms = matches!((first.form, second.form), (Form::Int4 | Form::Int5 | Form::Int6, Form::Int8));
    let fits = used_bytes(&MIXED.ring, 0, [1, 1, 1, 8]) <= room(d);
    (to == SkinnyTo::Store && forms && first.out.is_multiple_of(SKINNY_TILE) && fits).then_some(SkinnyWeight {
        out: first.out + second.out,
        second: Some((first.out, second.w)),
        ..first
    })
}

impl SkinnyTo {
    pub fn value_bytes(self) -> u64 {
        match self {
            SkinnyTo::Store | SkinnyTo::Swiglu => 2,
            SkinnyTo::Add | SkinnyTo::Logits => 4,
        }
    }
}

fn kernels_of(weight: &SkinnyWeight) -> &'static Kernels {
    match weight.form {
        _ if weight.second.is_some() => &MIXED,
        Form::Bf16 => &BF16,
        Form::Int8 => &INT8,
        Form::Int4 => &INT4,
        Form::Int5 => &INT5,
        Form::Int6 => &INT6,
        Form::Group4(_) => &GROUP4,
        Form::Nvfp4 => &NVFP4,
    }
}

fn room(d: &dyn Driver) -> usize {
    d.info().shared_limit.saturating_sub(OWN_BYTES)
}

/// Stages of the ring, places of rows, and tiles with kept parts. One tile's parts have precedence over the ring, up
/// to the form's maximum; rows that several tiles need stay, if there is room for them.
fn divide(ring: &Ring, detail: usize, to: SkinnyTo, [rows, inner]: [usize; 2], limit: usize) -> [usize; 3] {
    let used = |stages, places, deep| used_bytes(ring, detail, [stages, places, deep, rows]);
    let stages = (1..=ring.most).rev().find(|n| used(*n, *n, 1) <= limit).unwrap_or(1);
    if to == SkinnyTo::Add {
        // One or two tiles per block; the addends of the results are loaded one tile at a time.
        return [stages, stages, 1];
    }
    let most_deep = if rows > PART_ROWS { 1 } else { MOST_DEEP };
    let steps = (inner / ring.columns).div_ceil(ring.warps);
    // More than 8 rows copied anew for each tile take longer than a ring without its last stage.
    let stay = (ring.most - 1..=ring.most).rev().find(|n| used(*n, steps, 1) <= limit);
    let stages = if rows > PART_ROWS { stay.unwrap_or(stages) } else { stages };
    let places = if used(stages, steps, 1) <= limit { steps } else { stages };
    // An MLP's second product follows its first and overlaps with nothing; fewer synchronisations help kernels that
    // are bound by time, not bytes.
    let left_free = if to == SkinnyTo::Swiglu && ring.warps > 8 { 0 } else { LEFT_FREE };
    let deep = (1..=most_deep).rev().find(|n| used(stages, places, *n) + left_free <= limit).unwrap_or(1);
    [stages, places, deep]
}

operands! {
    /// Of the GEMMs of 1..=16 rows in every form.
    Skinny:
    Ptr dst w w2 x sums next_norm next_x next_sums;
    u32 ldd out inner detail ldx next_n rows stages places deep;
    f32 eps mul scale;
}

/// Kernels of one form, and the flow of its weights through a block: a unit of a packed form is a warp's stage.
struct Kernels {
    ring: Ring,
    symbols: &'static [&'static str],
    launch: unsafe fn(Skinny, &dyn Driver, &'static str) -> Result<()>,
}

macro_rules! forms {
    ($($form:ident: $source:literal $what:literal
        $params:ident [$($symbol:ident)+] threads $threads:literal, ring $ring:expr;)+) => {
        kernels! { device; $($source:
            #[doc = $what]
            $params of Skinny [$($symbol)+] (
                dst: Ptr("void*"), ldd: u32, w: Ptr("const unsigned char*"), out: u32, inner: u32, detail: u32,
                w2: Ptr("const unsigned char*"), x: Ptr("const bf16*"), ldx: u32, sums: Ptr("const float*"), eps: f32,
                mul: f32, scale: f32, next_norm: Ptr("const float*"), next_x: Ptr("bf16*"), next_sums: Ptr("float*"),
                next_n: u32, rows: u32, stages: u32, places: u32, deep: u32,
            )
            grid [shares(out, device.multiprocessors), 1, 1],
            threads $threads,
            shared shared_bytes(&$form.ring, detail, [stages, places, deep, rows], device.shared_limit);
        )+ }

        $(
            const _: () = assert!($form.ring.warps * 32 == $threads);
            const $form: Kernels = Kernels {
                ring: $ring,
                symbols: $params::SYMBOLS,
                // SAFETY: the caller's.
                launch: |operands, d, symbol| unsafe { $params(operands).launch_as(d, symbol) },
            };
        )+
    };
}

forms! {
    BF16: "skinny.cu" "GEMM of 1..8 or 9..16 rows, `inner` a multiple of 64. store: bf16; swiglu: bf16, `out = 2·inter`; add: `h += scale·y` f32; logits: f32. Results of a row are multiplied by `mul`, and by the reciprocal of its norm where there are `sums` [rows][inner/32]. add with `next_x` leaves rows of `next_n` values for the GEMM after the next norm. `w` is bf16; `detail` and `w2` are for other forms"
    SkinnyBf16 [
        skinny_store_8 skinny_store_16 skinny_swiglu_8 skinny_swiglu_16
        skinny_add_8 skinny_add_16 skinny_logits_8 skinny_logits_16
    ] threads 256, ring Ring { warps: 8, columns: 64, stage: |_| SKINNY_TILE * 128, least: 2, most: 6 };
    INT8: "skinny_int8.cu" "As `skinny_*`, with a weight in the form int8, `inner` a multiple of 128"
    SkinnyInt8 [
        int8_store_8 int8_store_16 int8_swiglu_8 int8_swiglu_16
        int8_add_8 int8_add_16 int8_logits_8 int8_logits_16
    ] threads 256, ring Ring { warps: 8, columns: 128, stage: |_| 4096 + 64, least: 2, most: 3 };
    INT4: "skinny_int4.cu" "As `skinny_*`, with a weight in the form int4, `inner` a multiple of 128"
    SkinnyInt4 [
        int4_store_8 int4_store_16 int4_swiglu_8 int4_swiglu_16
        int4_add_8 int4_add_16 int4_logits_8 int4_logits_16
    ] threads 512, ring Ring { warps: 16, columns: 128, stage: |_| 2048 + 256, least: 1, most: 2 };
    INT5: "skinny_int5.cu" "As `skinny_*`, with a weight in the form int5, `inner` a multiple of 128"
    SkinnyInt5 [
        int5_store_8 int5_store_16 int5_swiglu_8 int5_swiglu_16
        int5_add_8 int5_add_16 int5_logits_8 int5_logits_16
    ] threads 512, ring Ring { warps: 16, columns: 128, stage: |_| 2560 + 256, least: 1, most: 2 };
    INT6: "skinny_int6.cu" "As `skinny_*`, with a weight in the form int6, `inner` a multiple of 128"
    SkinnyInt6 [
        int6_store_8 int6_store_16 int6_swiglu_8 int6_swiglu_16
        int6_add_8 int6_add_16 int6_logits_8 int6_logits_16
    ] threads 512, ring Ring { warps: 16, columns: 128, stage: |_| 3072 + 256, least: 1, most: 2 };
    GROUP4: "skinny_group4.cu" "As `skinny_*`, with a weight in the form group4, `inner` a multiple of 128"
    SkinnyGroup4 [
        group4_store_8 group4_store_16 group4_swiglu_8 group4_swiglu_16
        group4_add_8 group4_add_16 group4_logits_8 group4_logits_16
    ] threads 512, ring Ring { warps: 16, columns: 128, stage: |detail| 2048 + (512 >> detail), least: 1, most: 2 };
    NVFP4: "skinny_nvfp4.cu" "As `skinny_*`, with a weight in the form nvfp4, `inner` a multiple of 128"
    SkinnyNvfp4 [
        nvfp4_store_8 nvfp4_store_16 nvfp4_swiglu_8 nvfp4_swiglu_16
        nvfp4_add_8 nvfp4_add_16 nvfp4_logits_8 nvfp4_logits_16
    ] threads 512, ring Ring { warps: 16, columns: 128, stage: |_| 2048 + 256, least: 1, most: 2 };
    // Units of either form are stages; that of int8 is larger.
    MIXED: "skinny_mixed.cu" "As `skinny_store_*`, with `detail` rows, a multiple of 32, in the form int4 (5, 6) and the others, from `w2` on, in int8"
    SkinnyMixed [
        mixed4_store_8 mixed4_store_16 mixed5_store_8
        mixed5_store_16 mixed6_store_8 mixed6_store_16
    ] threads 512, ring Ring { warps: 16, columns: 128, stage: |_| 4096 + 64, least: 1, most: 2 };
}

/// GEMM of 1..=16 rows with a weight `[out, inner]`.
///
/// # Safety
/// See the module.
pub unsafe fn skinny(
    d: &dyn Driver,
    to: SkinnyTo,
    dst: DevicePtr,
    ldd: usize,
    weight: SkinnyWeight,
    from: SkinnyRows,
    next: NextRows,
    scale: f32,
    rows: usize,
) -> Result<()> {
    let (kernels, detail, limit) = (kernels_of(&weight), super::packed::detail(weight.form), room(d));
    let ring = &kernels.ring;
    if rows > 8 && used_bytes(ring, detail, [ring.least, ring.least, 1, rows]) > limit {
        // Where shared memory is small the rows are processed in two halves: the weights are read twice, the bits are
        // the same.
        let second_half = dst + 8 * to.value_bytes() * ldd as u64;
        // SAFETY: the caller's; both halves lie inside.
        return unsafe {
            skinny(d, to, dst, ldd, weight, from, next, scale, 8)?;
            let (from, next) = (from.rows_from(8, weight.inner), next.rest(8, 0));
            skinny(d, to, second_half, ldd, weight, from, next, scale, rows - 8)
        };
    }
    let SkinnyWeight { w, form, out, inner, second } = weight;
    let [stages, places, deep] = divide(ring, detail, to, [rows, inner], limit);
    let (detail, w2) = second.unwrap_or((detail, 0));
    let SkinnyRows { x, ld: ldx, sums, eps, mul } = from;
    let NextRows { norm: next_norm, x: next_x, sums: next_sums, n: next_n } = next;
    let operands = Skinny {
        dst,
        ldd,
        w,
        out,
        inner,
        detail,
        w2,
        x,
        ldx,
        sums,
        eps,
        mul,
        scale,
        next_norm,
        next_x,
        next_sums,
        next_n,
        rows,
        stages,
        places,
        deep,
    };
    // Symbols are in the order of `SkinnyTo`, each for 8 rows and for 16; mixed ones only store, by their first form.
    let first = match (form, second) {
        (_, None) => to as usize,
        (Form::Int4, _) => 0,
        (Form::Int5, _) => 1,
        (Form::Int6, _) => 2,
        _ => return Err(internal("skinny", "a weight in two forms that no kernel takes")),
    };
    let symbol = kernels.symbols.get(2 * first + usize::from(rows > 8));
    let symbol = symbol.ok_or_else(|| internal("skinny", "a product that no kernel makes"))?;
    // SAFETY: the caller's.
    unsafe { (kernels.launch)(operands, d, symbol) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_room_for_the_kernels_own_arrays_on_every_card() {
        let kernels = [
            (&BF16, 0),
            (&INT8, 0),
            (&INT4, 0),
            (&INT5, 0),
            (&INT6, 0),
            (&MIXED, 0),
            (&GROUP4, 0),
            (&GROUP4, 2),
            (&NVFP4, 0),
        ];
        let rings = kernels.map(|(kernels, detail)| (&kernels.ring, detail));
        let tos = [SkinnyTo::Store, SkinnyTo::Swiglu, SkinnyTo::Add, SkinnyTo::Logits];
        for limit in [99 << 10, 163 << 10, 227 << 10] {
            let room = limit - OWN_BYTES;
            for ((ring, detail), rows) in rings.iter().flat_map(|ring| (1..=16).map(move |rows| (ring, rows))) {
                for (to, inner) in tos.iter().flat_map(|to| [256, 1024, 4096, 16_384].map(|inner| (*to, inner))) {
                    let [stages, places, deep] = divide(ring, *detail, to, [rows, inner], room);
                    let bytes = shared_bytes(ring, *detail, [stages, places, deep, rows], limit);
                    let least = used_bytes(ring, *detail, [1, 1, 1, rows]);
                    assert!(
                        bytes + OWN_BYTES <= limit || least > room,
                        "{to:?} of {rows} rows, {inner}: {bytes} of {limit}"
                    );
                }
            }
        }
    }
}
