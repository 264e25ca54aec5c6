//! The slices of a weight that a prefill pass multiplies one after the other.
//!
//! Unpacked weights, rows narrowed to e4m3 and the gate and up columns of a pass need the memory of one slice instead
//! of the widest weight. The slices depend on the weight's shape alone, so the bits do, too.

use std::ops::Range;

use super::driver::DeviceInfo;
use crate::backend::room;
use crate::engine::protocol::Precision;

/// Size of a slice in bf16, on a GPU and emulated: enough columns for all multiprocessors, within the memory that
/// mixers leave free during an MLP.
const SLICE_BYTES: [usize; 2] = [room::SLICE_BYTES, 64 << 10];
/// Slices begin at multiples of this: whole tiles of every kernel, whole pairs of a packed weight, gate and up rows
/// together.
pub(super) const SLICE_ROWS: usize = 128;

pub(super) struct Slice {
    pub(super) rows: Range<usize>,
    pub(super) precision: Precision,
}

/// Rows of each slice of a section of a weight `[_, inner]`, in order.
pub(super) fn slices(
    device: &DeviceInfo,
    section: Range<usize>,
    inner: usize,
) -> impl Iterator<Item = Range<usize>> + use<> {
    let out = section.len();
    let [gpu, emulated] = SLICE_BYTES;
    let bytes = if device.emulated { emulated } else { gpu };
    let most = (bytes / (2 * inner).max(1)).max(SLICE_ROWS);
    let each = out.div_ceil(out.div_ceil(most).max(1)).next_multiple_of(SLICE_ROWS);
    let end = section.end;
    section.step_by(each).map(move |first| first..(first + each).min(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_a_weight_in_order_and_none_is_too_large() {
        let gpu = DeviceInfo::default();
        let of = |out, inner| slices(&gpu, 0..out, inner).collect::<Vec<_>>();
        assert_eq!(of(4_096, 4_096), vec![Range { start: 0, end: 4_096 }]);
        assert_eq!(of(8_704, 4_096), [0..4_352, 4_352..8_704]);
        assert_eq!(of(32_768, 4_096), [0..8_192, 8_192..16_384, 16_384..24_576, 24_576..32_768]);
        assert_eq!(of(4_096, 16_384), [0..2_048, 2_048..4_096]);
        assert_eq!(slices(&gpu, 512..9_216, 4_096).collect::<Vec<_>>(), [512..4_864, 4_864..9_216]);
        let emulated = DeviceInfo { emulated: true, ..DeviceInfo::default() };
        for device in [gpu, emulated] {
            for (out, inner) in [(1, 64), (127, 4_096), (129, 1_000_000), (70_000, 4_096), (640, 256)] {
                let (mut next, mut bytes) = (0, 0);
                for slice in slices(&device, 0..out, inner) {
                    assert!(slice.start == next && slice.start.is_multiple_of(SLICE_ROWS) && !slice.is_empty());
                    (next, bytes) = (slice.end, slice.len().saturating_sub(SLICE_ROWS) * inner * 2);
                    assert!(bytes <= SLICE_BYTES[0]);
                }
                assert_eq!(next, out, "{bytes}");
            }
        }
    }
}
