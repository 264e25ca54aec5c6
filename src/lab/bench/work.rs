//! Least bytes and operations of a pass: the denominators of bandwidth and throughput.

use crate::core::spec::{Mixer, ModelSpec};

/// Bytes of a cached value on a GPU (bf16).
const CACHE_BYTES: f64 = 2.0;

/// Bytes a decode step must move at `context` tokens; `weights` is the part of the weights.
pub(super) fn step_bytes(spec: &ModelSpec, context: usize, weights: f64) -> f64 {
    let (s, l) = (&spec.sparse, &spec.lightning);
    let row = (s.kv_heads * s.head_dim) as f64 * CACHE_BYTES;
    let chosen = context.min(s.topk * s.block) as f64 * 2.0 * row;
    let keys = (s.level1_rows(context) + s.level2_rows(context)) as f64 * row;
    let state = (2 * 4 * l.heads * l.head_dim * l.head_dim) as f64;
    let count = |mixer: Mixer| spec.mixers.iter().filter(|m| **m == mixer).count() as f64;
    weights + count(Mixer::Sparse) * (chosen + keys) + count(Mixer::Lightning) * state
}

pub(super) fn prefill_flops(spec: &ModelSpec, context: usize) -> f64 {
    let (s, l) = (&spec.sparse, &spec.lightning);
    let tables = (spec.vocab * spec.hidden) as f64 * if spec.tie_embeddings { 1.0 } else { 2.0 };
    let n = context as f64;
    let gemms = 2.0 * (spec.parameters() as f64 - tables) * n;
    let reach = (s.topk * s.block) as f64;
    // Mean of min(p, reach) over positions.
    let attended = if n <= reach { n / 2.0 } else { (reach * reach / 2.0 + (n - reach) * reach) / n };
    let scored = n / 2.0 * (1.0 / s.stride as f64 + 0.25 / s.stride as f64);
    let width = (s.heads * s.head_dim) as f64;
    let sparse = n * width * (4.0 * attended + 2.0 * scored);
    // A chunk of 64: q kᵀ and its product with v inside the chunk, q S and kᵀ v with the state.
    let lightning = n * l.heads as f64 * (4.0 * 64.0 * l.head_dim as f64 + 4.0 * (l.head_dim * l.head_dim) as f64);
    let count = |mixer: Mixer| spec.mixers.iter().filter(|m| **m == mixer).count() as f64;
    gemms + count(Mixer::Sparse) * sparse + count(Mixer::Lightning) * lightning
}
