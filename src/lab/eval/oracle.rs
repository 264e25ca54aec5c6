//! The device against the CPU, which computes in f32 with plain equations: the first layers of the model over the
//! first tokens of a text. A whole 9B model would take a CPU minutes and 20 GB. The later layers run the same
//! operations, so an error in an operation shows in the first layers that use it.

use super::consistency::{Agreement, worst};
use super::numbers::{Distance, Distances, distance};
use super::{CONSISTENCY, Subject};
use crate::backend::Backend;
use crate::cli::Failure;
use crate::core::spec::ModelSpec;
use crate::engine::protocol::Token;
use crate::model::Checkpoint;

/// Most parameters on the CPU, embedding and head included: 4 GB in bf16.
const PARAMETERS: u64 = 2_000_000_000;
/// Multiply-adds of its layers, in thousands of millions: half a minute on two cores.
const WORK: u64 = 400;
/// Fewest tokens: several blocks of the sparse layers and chunks of the lightning layers.
const TOKENS: usize = 192;
/// Mean divergence that bf16 on one side explains.
const DIVERGENCE: f64 = 0.01;

/// The first layers within [`PARAMETERS`]; at least one of each kind.
pub(super) fn first_layers(mut checkpoint: Checkpoint) -> Checkpoint {
    let spec = checkpoint.spec().clone();
    let cut = |layers: usize| {
        let mut cut = spec.clone();
        cut.mixers.truncate(layers);
        cut
    };
    let whole = spec.mixers.len();
    let kinds = |s: &ModelSpec| spec.mixers.iter().all(|m| s.mixers.contains(m));
    let fewest = (1..whole).find(|n| kinds(&cut(*n))).unwrap_or(whole);
    let layers = (fewest..=whole).take_while(|n| *n == fewest || cut(*n).parameters() <= PARAMETERS).last();
    *checkpoint.spec_mut() = cut(layers.unwrap_or(whole));
    checkpoint
}

pub(super) fn tokens(spec: &ModelSpec) -> usize {
    let most = WORK.saturating_mul(1_000_000_000) / spec.parameters().max(1);
    usize::try_from(most).unwrap_or(usize::MAX).clamp(TOKENS, CONSISTENCY)
}

pub(super) fn measure<A: Backend, B: Backend>(
    oracle: &mut Subject<A>,
    found: &mut Subject<B>,
    text: &[Token],
    slack: f64,
) -> Result<Vec<Agreement>, Failure> {
    // Rows at both ends and some between: logits of every row would take longer than the layers.
    let rows: Vec<usize> = (0..text.len()).filter(|r| r % 16 == 0 || r + 16 >= text.len()).collect();
    let (mut right, mut here) = (Vec::new(), Vec::new());
    oracle.read(text, &rows, &mut |_, logits| right.push(logits.to_vec()))?;
    found.read(text, &rows, &mut |_, logits| here.push(logits.to_vec()))?;
    let rows: Vec<Distance> = right.iter().zip(&here).map(|(right, here)| distance(right, here)).collect();
    let (layers, tokens) = (found.model.spec().mixers.len(), text.len());
    let what = |which: &str| format!("device and CPU, {layers} layers, {tokens} tokens: {which}").into();
    let mean = Distances::of(tokens, &rows).mean_kl;
    Ok(vec![
        Agreement { what: what("mean KLD"), greatest: mean, budget: DIVERGENCE },
        Agreement { what: what("log-probability"), greatest: worst(rows), budget: slack },
    ])
}
