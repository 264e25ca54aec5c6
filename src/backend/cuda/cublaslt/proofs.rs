//! Which shapes are proved, where, and when: a model's, while its weights are loaded.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::super::device::Device;
use super::super::driver::{DeviceInfo, GEMM_ROWS, GemmOut};
use super::super::slices::slices;
use super::{ALIGNED, FLAG_BYTES, Shape, WORKSPACE_BYTES};
use crate::backend::sections::of_projection;
use crate::protocol::engine::Precision;
use crate::spec::{Mixer, ModelSpec};

/// Rows of a proof.
const MOST_PROVED: usize = 2048;

/// Where things lie in the scratch of a proof, in bytes.
pub(super) struct ProofRoom {
    /// Rows of activations, and of random values in bf16 at the start: as many as either operand has.
    pub(super) rows: usize,
    pub(super) values: usize,
    /// The same in e4m3, and their scales.
    pub(super) narrowed: usize,
    pub(super) scales: usize,
    pub(super) workspace: usize,
    /// Two of them and a flag.
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
        let behind = |at: usize, bytes: usize| (at + bytes).next_multiple_of(ALIGNED);
        let narrowed = behind(0, values * inner * 2);
        let scales = if fp8 { behind(narrowed, values * inner) } else { narrowed };
        let workspace = if fp8 { behind(scales, values * 4) } else { narrowed };
        let results = workspace + WORKSPACE_BYTES;
        let bytes = results + 2 * rows * out * to.value_bytes() as usize + FLAG_BYTES;
        Some(ProofRoom { rows, values, narrowed, scales, workspace, results, bytes })
    }
}

/// Proofs of a model's shapes while its weights are loaded; given up with it.
pub(in crate::backend::cuda) struct Proofs {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Proofs {
    /// Begins. Without a thread the first long text waits for them.
    pub(in crate::backend::cuda) fn start(device: &Device, spec: &ModelSpec) -> Proofs {
        let stop = Arc::new(AtomicBool::new(false));
        let (shapes, asked) = (shapes(device.driver().info(), spec, Precision::Bf16), Arc::clone(&stop));
        let device = device.clone();
        let work = move || {
            for (out, inner, to) in shapes {
                if asked.load(Ordering::Relaxed) {
                    return;
                }
                device.driver().prepare_gemm(out, inner, to);
            }
        };
        Proofs { stop, thread: std::thread::Builder::new().name("gemm-proofs".into()).spawn(work).ok() }
    }
}

impl Drop for Proofs {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // What it could not do is done when it is needed, or never.
            let _ = thread.join();
        }
    }
}

/// Shapes of a model's GEMMs over many rows in `precision`, each once: rows and columns of a slice of a weight, and what becomes of the
/// result.
pub(in crate::backend::cuda) fn shapes(
    device: &DeviceInfo,
    spec: &ModelSpec,
    precision: Precision,
) -> Vec<(usize, usize, GemmOut)> {
    let mut all = Vec::new();
    let mut add = |out: usize, inner: usize, to: GemmOut| {
        for slice in slices(device, 0..out, inner) {
            let shape = (slice.len(), inner, to);
            if !all.contains(&shape) {
                all.push(shape);
            }
        }
    };
    for mixer in &spec.mixers {
        let heads = match mixer {
            Mixer::Sparse => spec.sparse.heads * spec.sparse.head_dim,
            Mixer::Lightning => spec.lightning.heads * spec.lightning.head_dim,
        };
        for section in of_projection(spec, *mixer, precision).iter().filter(|s| s.precision == precision) {
            add(section.rows, spec.hidden, GemmOut::Bf16);
        }
        add(spec.hidden, heads, GemmOut::AddF32);
        add(2 * spec.intermediate, spec.hidden, GemmOut::Bf16);
        add(spec.hidden, spec.intermediate, GemmOut::AddF32);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_proof_needs_lies_beside_each_other_where_the_library_wants_it() {
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

    #[test]
    fn every_shape_of_the_released_model_is_proved_once() {
        let spec = ModelSpec::from_json(include_str!("../../../model/config_9b.json")).unwrap();
        let of = |out, inner, to| (out, inner, to);
        let gpu = DeviceInfo { capability: 90, ..DeviceInfo::default() };
        let found = |precision| {
            let mut found = shapes(&gpu, &spec, precision);
            found.sort_by_key(|(out, inner, to)| (*out, *inner, *to == GemmOut::AddF32));
            found
        };
        let expected = [
            of(512, 4_096, GemmOut::Bf16),
            of(2_048, 16_384, GemmOut::AddF32),
            of(4_096, 4_096, GemmOut::Bf16),
            of(4_096, 4_096, GemmOut::AddF32),
            of(8_192, 4_096, GemmOut::Bf16),
        ];
        assert_eq!(found(Precision::Bf16), expected);
        // Keys and values stay in bf16.
        assert_eq!(found(Precision::Fp8), expected[1..]);
    }
}
