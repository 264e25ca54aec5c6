//! The scratch of a proof.

use super::super::super::driver::GEMM_ROWS;
use super::{ALIGNED, FLAG_BYTES, Shape, WORKSPACE_BYTES};

const MOST_PROVED: usize = 2048;

pub(super) struct ProofRoom {
    /// Rows of activations, and of random bf16 values at the start: as many as either operand has.
    pub(super) rows: usize,
    pub(super) values: usize,
    pub(super) narrowed: usize,
    pub(super) scales: usize,
    pub(super) workspace: usize,
    pub(super) results: usize,
    pub(super) bytes: usize,
}

impl ProofRoom {
    /// `None` for a weight too small to be proved in bf16.
    pub(super) fn of(shape: Shape) -> Option<ProofRoom> {
        let Shape { out, inner, to, fp8 } = shape;
        let rows = if fp8 { MOST_PROVED } else { (out / GEMM_ROWS * GEMM_ROWS).min(MOST_PROVED) };
        if rows < 4 * GEMM_ROWS {
            return None;
        }
        let values = out.max(rows);
        let after = |at: usize, bytes: usize| (at + bytes).next_multiple_of(ALIGNED);
        let narrowed = after(0, values * inner * 2);
        let scales = if fp8 { after(narrowed, values * inner) } else { narrowed };
        let workspace = if fp8 { after(scales, values * 4) } else { narrowed };
        let results = workspace + WORKSPACE_BYTES;
        let bytes = results + 2 * rows * out * to.value_bytes() as usize + FLAG_BYTES;
        Some(ProofRoom { rows, values, narrowed, scales, workspace, results, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cuda::driver::GemmOut;

    #[test]
    fn the_room_of_a_proof_has_aligned_parts_in_order() {
        for fp8 in [false, true] {
            let (out, inner) = (320, 192);
            let room = ProofRoom::of(Shape { out, inner, to: GemmOut::AddF32, fp8 }).unwrap();
            assert_eq!((room.rows, room.values), if fp8 { (2048, 2048) } else { (320, 320) });
            let parts = [0, room.narrowed, room.scales, room.workspace, room.results, room.bytes];
            let e4m3 = usize::from(fp8);
            let sizes = [
                room.values * inner * 2,
                room.values * inner * e4m3,
                room.values * 4 * e4m3,
                WORKSPACE_BYTES,
                2 * room.rows * out * 4 + FLAG_BYTES,
            ];
            for (part, size) in parts.windows(2).zip(sizes) {
                assert!(part[0] + size <= part[1] && part[0] % ALIGNED == 0, "{parts:?}, {sizes:?}");
            }
        }
        assert!(ProofRoom::of(Shape { out: 192, inner: 64, to: GemmOut::Bf16, fp8: false }).is_none());
        assert!(ProofRoom::of(Shape { out: 64, inner: 64, to: GemmOut::Bf16, fp8: true }).is_some());
    }
}
