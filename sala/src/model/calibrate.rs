//! Second moments of the inputs of a model's matrices over text: statistics for calibrated packing.
//!
//! The unpacked model reads text and a probe records the input of each matrix. Of the moments `Σ x xᵀ` only those of
//! columns in the same unit of [`UNIT_COLUMNS`] are kept: they give the cost of an error in a column, and the columns
//! of the unit that can compensate for it. All moments would be 54 GB and hundreds of teraflops on the 9B model; these
//! are 0.5 GB and 2.
//!
//! Invariant: sums do not depend on how the text is cut into chunks, bit for bit. A product is summed over [`GRID`]
//! rows first, and chunks but the last are multiples of it.

use rayon::prelude::*;

use super::forward::{Seen, Wanted};
use super::weights::FINGERPRINT_DIGITS;
use super::{Checkpoint, Live, Model, ModelError, Result};
use crate::backend::forms::UNIT_COLUMNS;
use crate::backend::{Backend, BackendError, GRID, internal};
use crate::core::spec::{Mixer, ModelSpec};
use crate::engine::protocol::{Cancel, Token};

/// Changes with the use of statistics in packing.
const FORMAT: u32 = 1;
const BLOCK: usize = UNIT_COLUMNS * UNIT_COLUMNS;

/// Second moments of one input `[rows, width]`: for each unit of columns `Σ x xᵀ`, of which the upper half is filled.
#[derive(Clone, Debug, PartialEq)]
pub struct Moments {
    /// `[width / 128, 128, 128]`; empty where the width is no multiple.
    pub(super) blocks: Vec<f32>,
}

/// Each input is shared by all matrices of a layer that multiply it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    Qkv,
    Out,
    GateUp,
    Down,
}

const INPUTS: [Input; 4] = [Input::Qkv, Input::Out, Input::GateUp, Input::Down];

#[derive(Clone, Debug, PartialEq)]
pub struct Statistics {
    /// By layer and [`Input`].
    pub(super) layers: Vec<[Moments; 4]>,
    pub(super) head: Moments,
    head_name: &'static str,
}

impl Moments {
    fn new(width: usize) -> Moments {
        let units = if width.is_multiple_of(UNIT_COLUMNS) { width / UNIT_COLUMNS } else { 0 };
        Moments { blocks: vec![0.0; units * BLOCK] }
    }

    fn add(&mut self, x: &[f32], width: usize) {
        self.blocks.par_chunks_mut(BLOCK).enumerate().for_each_init(
            || (vec![0f32; GRID * UNIT_COLUMNS], vec![0f32; BLOCK]),
            |(tile, sums), (unit, block)| {
                for rows in x.chunks(GRID * width) {
                    tile.clear();
                    for row in rows.chunks_exact(width) {
                        tile.extend_from_slice(
                            row.get(unit * UNIT_COLUMNS..(unit + 1) * UNIT_COLUMNS).unwrap_or_default(),
                        );
                    }
                    add_tile(tile, sums, block);
                }
            },
        );
    }
}

/// `block += tileᵀ tile`, the upper half. `sums` is scratch for the product.
fn add_tile(tile: &[f32], sums: &mut [f32], block: &mut [f32]) {
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            sums.fill(0.0);
            for row in tile.chunks_exact(UNIT_COLUMNS) {
                for (i, (a, sums)) in row.iter().zip(sums.chunks_exact_mut(UNIT_COLUMNS)).enumerate() {
                    // Starts at a multiple of 16 for whole vectors. No code reads below the diagonal.
                    let from = i / 16 * 16;
                    if let (Some(sums), Some(row)) = (sums.get_mut(from..), row.get(from..)) {
                        sums.iter_mut().zip(row).for_each(|(sum, b)| *sum += a * b);
                    }
                }
            }
            block.iter_mut().zip(sums.iter()).for_each(|(all, sum)| *all += sum);
        },
    );
}

impl Statistics {
    fn widths(spec: &ModelSpec) -> Vec<[usize; 4]> {
        let layer = |mixer: &Mixer| {
            let inner = match mixer {
                Mixer::Sparse => spec.sparse.heads * spec.sparse.head_dim,
                Mixer::Lightning => spec.lightning.heads * spec.lightning.head_dim,
            };
            INPUTS.map(|input| match input {
                Input::Qkv | Input::GateUp => spec.hidden,
                Input::Out => inner,
                Input::Down => spec.intermediate,
            })
        };
        spec.mixers.iter().map(layer).collect()
    }

    fn new(spec: &ModelSpec) -> Statistics {
        let layers = Statistics::widths(spec).into_iter().map(|widths| widths.map(Moments::new)).collect();
        let head_name = if spec.tie_embeddings { "model.embed_tokens" } else { "lm_head" };
        Statistics { layers, head: Moments::new(spec.hidden), head_name }
    }

    /// Moments of a matrix's input, by its name without `.weight`; `None` for a table that is only looked up.
    pub(super) fn of(&self, name: &str) -> Option<&Moments> {
        let Some(rest) = name.strip_prefix("model.layers.") else {
            return (name == self.head_name).then_some(&self.head);
        };
        let (layer, weight) = rest.split_once('.')?;
        let input = match weight {
            "self_attn.o_proj" => Input::Out,
            "mlp.gate_proj" | "mlp.up_proj" => Input::GateUp,
            "mlp.down_proj" => Input::Down,
            _ => Input::Qkv,
        };
        self.layers.get(layer.parse::<usize>().ok()?)?.get(input as usize)
    }

    fn named(&self) -> impl Iterator<Item = (String, &Moments)> {
        let layers = self.layers.iter().enumerate().flat_map(|(i, layer)| {
            INPUTS.iter().zip(layer).map(move |(input, moments)| (format!("layer.{i}.{input:?}"), moments))
        });
        layers.chain([("head".to_owned(), &self.head)])
    }
}

struct Norms {
    layers: Vec<LayerNorms>,
    last: Vec<f32>,
}

struct LayerNorms {
    input: Vec<f32>,
    post: Vec<f32>,
    output: Option<Vec<f32>>,
}

impl Norms {
    fn read(checkpoint: &Checkpoint) -> Result<Norms> {
        let spec = checkpoint.spec();
        let read = |name: &str, width: usize| -> Result<Vec<f32>> {
            let loaded = checkpoint.tensor(&format!("{name}.weight"), &[width])?;
            let view = loaded.view();
            let values = view.dtype.floats(view.data);
            Ok(values.ok_or_else(|| internal("calibrate", "a norm that holds no real numbers"))?)
        };
        let layer = |(i, mixer): (usize, &Mixer)| -> Result<LayerNorms> {
            let l = &spec.lightning;
            let name = |what: &str| format!("model.layers.{i}.{what}");
            let output = (*mixer == Mixer::Lightning && l.output_norm)
                .then(|| read(&name("self_attn.o_norm"), l.heads * l.head_dim))
                .transpose()?;
            let [input, post] =
                ["input_layernorm", "post_attention_layernorm"].map(|what| read(&name(what), spec.hidden));
            Ok(LayerNorms { input: input?, post: post?, output })
        };
        let layers = spec.mixers.iter().enumerate().map(layer).collect::<Result<_>>()?;
        Ok(Norms { layers, last: read("model.norm", spec.hidden)? })
    }
}

/// `x = rmsnorm(x, norm)` row by row.
fn normed(x: &mut [f32], norm: &[f32], eps: f32) {
    x.par_chunks_mut(norm.len().max(1)).for_each(|row| {
        let square: f32 = row.iter().map(|v| v * v).sum();
        let factor = (square / norm.len() as f32 + eps).sqrt().recip();
        row.iter_mut().zip(norm).for_each(|(v, w)| *v *= factor * w);
    });
}

/// `x = x ∘ sigmoid(gate)`; `projection` has the gate in these columns.
fn gated(x: &mut [f32], width: usize, projection: &[f32], columns: &std::ops::Range<usize>) {
    let rows = x.len() / width.max(1);
    let stride = projection.len() / rows.max(1);
    x.par_chunks_mut(width.max(1)).zip(projection.par_chunks(stride.max(1))).for_each(|(row, projection)| {
        let gate = projection.get(columns.clone()).unwrap_or_default();
        row.iter_mut().zip(gate).for_each(|(v, g)| *v /= 1.0 + (-g).exp());
    });
}

struct Watch<'a> {
    spec: &'a ModelSpec,
    norms: &'a Norms,
    sums: &'a mut Statistics,
}

impl Watch<'_> {
    fn see<B: Backend>(&mut self, b: &mut B, rows: usize, what: Seen<'_, B>) -> Result<(), BackendError> {
        let (spec, width) = (self.spec, self.spec.hidden);
        match what {
            Seen::Embedding(h) => self.add_normed(b.read(h, rows)?, 0),
            Seen::Hidden { layer, hidden } => self.add_normed(b.read(hidden, rows)?, layer + 1),
            Seen::Mixer { layer, output, projection } => {
                let mut x = b.read(output, rows)?;
                let width = x.len() / rows;
                let columns = match spec.mixers.get(layer) {
                    Some(Mixer::Sparse) => spec.sparse.gate_columns(),
                    Some(Mixer::Lightning) => spec.lightning.gate_columns(),
                    None => 0..0,
                };
                if let Some(norm) = self.norms.layers.get(layer).and_then(|norms| norms.output.as_ref()) {
                    normed(&mut x, norm, spec.eps);
                }
                if !columns.is_empty() {
                    gated(&mut x, width, &b.read(projection, rows)?, &columns);
                }
                self.add(layer, Input::Out, &x, width);
            }
            Seen::Between { layer, hidden } => {
                let mut x = b.read(hidden, rows)?;
                if let Some(norms) = self.norms.layers.get(layer) {
                    normed(&mut x, &norms.post, spec.eps);
                }
                self.add(layer, Input::GateUp, &x, width);
            }
            Seen::Middle { layer, mid } => self.add(layer, Input::Down, &b.read(mid, rows)?, spec.intermediate),
            Seen::Selection { .. } => {}
        }
        Ok(())
    }

    fn add_normed(&mut self, mut x: Vec<f32>, layer: usize) {
        match self.norms.layers.get(layer) {
            Some(norms) => {
                normed(&mut x, &norms.input, self.spec.eps);
                self.add(layer, Input::Qkv, &x, self.spec.hidden);
            }
            None => {
                normed(&mut x, &self.norms.last, self.spec.eps);
                self.sums.head.add(&x, self.spec.hidden);
            }
        }
    }

    fn add(&mut self, layer: usize, input: Input, x: &[f32], width: usize) {
        if let Some(moments) = self.sums.layers.get_mut(layer).and_then(|layer| layer.get_mut(input as usize)) {
            moments.add(x, width);
        }
    }
}

/// Reads `texts`, each from an empty state, and sums the moments. `progress` receives the tokens read so far. `None`
/// after a stop.
pub fn collect<B: Backend>(
    b: &mut B,
    checkpoint: &Checkpoint,
    texts: &[Vec<Token>],
    stop: &Cancel,
    progress: &mut dyn FnMut(usize),
) -> Result<Option<Statistics>> {
    let norms = Norms::read(checkpoint)?;
    let model = Model::load(b, checkpoint, |_| {})?;
    let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
    let mut live = Live::new(b, &model, longest.next_multiple_of(GRID), &[])?;
    let mut sums = Statistics::new(checkpoint.spec());
    let mut read = 0;
    for text in texts {
        live.reset(b)?;
        for chunk in text.chunks(b.prefill_rows()) {
            if stop.is_cancelled() {
                return Ok(None);
            }
            let mut watch = Watch { spec: checkpoint.spec(), norms: &norms, sums: &mut sums };
            let mut see = |b: &mut B, what: Seen<'_, B>| watch.see(b, chunk.len(), what);
            live.prefill_pass(b, &model, chunk, Wanted::Output, Some(&mut see))?;
            live.advance(b, chunk.len())?;
            read += chunk.len();
            progress(read);
        }
    }
    let bad = sums.named().find(|(_, moments)| !moments.blocks.iter().all(|v| v.is_finite())).map(|(name, _)| name);
    match bad {
        None => Ok(Some(sums)),
        Some(name) => Err(ModelError::Damaged {
            origin: checkpoint.name().to_owned(),
            cause: format!("it computes values that are not finite in front of {name}"),
        }),
    }
}

/// Names the result of packing a checkpoint with these texts: hash of its fingerprint and theirs, 32 hex digits.
pub fn identity(checkpoint: &Checkpoint, texts: &[Vec<Token>]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(format!("calibrated {FORMAT}\n{}\n", checkpoint.fingerprint()).as_bytes());
    for text in texts {
        hasher.update(format!("{}\n", text.len()).as_bytes());
        text.iter().for_each(|token| {
            hasher.update(&token.to_le_bytes());
        });
    }
    hasher.finalize().to_hex().chars().take(FINGERPRINT_DIGITS).collect()
}

#[cfg(test)]
mod tests;
