//! Proves the GEMM library for the shapes of a model while its weights are loaded.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::device::Device;
use super::driver::{DeviceInfo, GemmOut};
use super::slices::slices;
use crate::backend::sections::of_projection;
use crate::core::spec::{Mixer, ModelSpec};
use crate::engine::protocol::Precision;

pub(super) struct Proofs {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Proofs {
    /// Without a thread the first long text waits for the proofs.
    pub(super) fn start(device: &Device, spec: &ModelSpec) -> Proofs {
        let stop = Arc::new(AtomicBool::new(false));
        let (shapes, stopped) = (shapes(device.driver().info(), spec, Precision::Bf16), Arc::clone(&stop));
        let device = device.clone();
        let work = move || {
            for (out, inner, to) in shapes {
                if stopped.load(Ordering::Relaxed) {
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
            // Missing proofs are made on demand, or never.
            let _ = thread.join();
        }
    }
}

/// Shapes of a model's GEMMs over many rows in `precision`, without duplicates: rows and columns of a weight's slice,
/// and the type of the result.
pub(super) fn shapes(device: &DeviceInfo, spec: &ModelSpec, precision: Precision) -> Vec<(usize, usize, GemmOut)> {
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
    fn every_shape_of_the_released_model_is_proved_once() {
        let spec = ModelSpec::from_json(include_str!("../../model/config_9b.json")).unwrap();
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
