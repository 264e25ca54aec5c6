//! Training samples for draft heads: a model's hidden states over texts it read and answers it gave.
//!
//! Owns a live state of its own and the layout of a sample on disk. Works on tokens, not text, and returns a
//! [`Sample`].
//!
//! Invariant: every row is the one that a head sees when it drafts: rows of the prompt are from prefill, rows of the
//! answer from single decode steps. An answer is greedy, because a chain of drafts is compared with greedy text.
//!
//! # A sample on disk
//!
//! One safetensors file, with the tensors that SpecForge's offline EAGLE-3 training looks for, under its names:
//!
//! | tensor | type | shape | |
//! |---|---|---|---|
//! | `input_ids` | i64 | `[tokens]` | prompt and answer, the token that ended it included |
//! | `loss_mask` | i64 | `[tokens]` | 1 where the model wrote the token, else 0 |
//! | `hidden_state` | bf16 | `[1, tokens, hidden]` | after the last layer, *before* the final norm |
//! | `aux_hidden_state` | bf16 | `[1, tokens, aux·hidden]` | outputs of the layers of the auxiliary hidden states, low to high |
//!
//! The metadata has the layers of the auxiliary hidden states and the parameters of the final norm (`eps`,
//! `logit_divisor`): a trainer without a norm of its own needs `rmsnorm(hidden_state) / logit_divisor`, which
//! `assets/training/captured.py` computes.

use std::collections::HashMap;
use std::path::Path;

use safetensors::Dtype;

use super::quantize::{Made, write_tensors};
use super::{Live, Model, ModelError, Result};
use crate::backend::Backend;
use crate::engine::protocol::Token;

/// Changes with the layout above.
const FORMAT: &str = "sala-chat capture 1";

/// One conversation. Row i belongs to token i.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    pub tokens: Vec<Token>,
    pub written: Vec<bool>,
    /// The residual stream after the last layer, before the final norm. `[tokens, hidden]`, row-major
    pub hidden: Vec<f32>,
    /// Outputs of the layers of the auxiliary hidden states, concatenated. `[tokens, aux·hidden]`, row-major
    pub aux_hidden: Vec<f32>,
}

impl Sample {
    /// Tokens that count in training.
    pub fn completion_tokens(&self) -> usize {
        self.written.iter().filter(|w| **w).count()
    }
}

pub struct Recorder<B: Backend> {
    live: Live<B>,
    layers: Vec<usize>,
}

impl<B: Backend> Recorder<B> {
    /// For samples of at most `limit` tokens, with the outputs of `layers` (at least one) as auxiliary hidden states.
    pub fn new(b: &mut B, model: &Model<B>, limit: usize, layers: &[usize]) -> Result<Self> {
        if layers.is_empty() {
            return Err(ModelError::Order { op: "Recorder::new", reason: "no layer's hidden states are kept".into() });
        }
        let live = Live::new(b, model, limit, layers)?;
        let layers = layers.to_vec();
        Ok(Recorder { live, layers })
    }

    /// Reads `prompt` and answers greedily with at most `most` tokens, up to and including one of `stop`.
    pub fn sample(
        &mut self,
        b: &mut B,
        model: &Model<B>,
        prompt: &[Token],
        most: usize,
        stop: &[Token],
    ) -> Result<Sample> {
        self.live.reset(b)?;
        let mut sample = Sample::default();
        for chunk in prompt.chunks(b.prefill_rows()) {
            self.live.prefill(b, model, chunk)?;
            self.keep(b, chunk, false, &mut sample)?;
        }
        let mut best = self.live.prefill_logits(b, model)?;
        let most = most.min(self.live.limit().saturating_sub(prompt.len()));
        for _ in 0..most {
            let Some(token) = best.ids.first().copied() else { break };
            self.live.verify(b, model, &[token])?;
            best = self.live.top_logits(b, 1)?.into_iter().next().unwrap_or_default();
            self.keep(b, &[token], true, &mut sample)?;
            if stop.contains(&token) {
                break;
            }
        }
        Ok(sample)
    }

    /// Appends the rows of the last pass to the sample and accepts them.
    fn keep(&mut self, b: &mut B, tokens: &[Token], written: bool, sample: &mut Sample) -> Result<()> {
        let rows = tokens.len();
        if let Some(aux_hidden) = self.live.aux_hidden() {
            sample.aux_hidden.extend(b.read(aux_hidden, rows)?);
        }
        sample.hidden.extend(b.read(self.live.hidden(), rows)?);
        sample.tokens.extend(tokens);
        sample.written.extend(std::iter::repeat_n(written, rows));
        self.live.advance(b, rows)
    }

    /// Writes a sample; a failure leaves no file at `path`. `about` is added to the file's metadata.
    pub fn write(&self, model: &Model<B>, sample: &Sample, about: &[(&str, String)], path: &Path) -> Result<()> {
        let spec = model.spec();
        let rows = sample.tokens.len();
        let ids = whole(sample.tokens.iter().map(|t| i64::from(*t)));
        let mask = whole(sample.written.iter().map(|w| i64::from(*w)));
        let layers: Vec<String> = self.layers.iter().map(ToString::to_string).collect();
        let mut metadata: HashMap<String, String> = about.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
        for (key, value) in [
            ("format", FORMAT.to_owned()),
            ("layers", layers.join(",")),
            ("eps", spec.eps.to_string()),
            ("logit_divisor", spec.logit_divisor.to_string()),
        ] {
            metadata.insert(key.to_owned(), value);
        }
        let made = |name: &str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>| Made {
            name: name.to_owned(),
            dtype,
            shape: shape.to_vec(),
            bytes: bytes.into(),
        };
        let tensors = [
            made(
                "aux_hidden_state",
                Dtype::BF16,
                &[1, rows, self.layers.len() * spec.hidden],
                halves(&sample.aux_hidden),
            ),
            made("hidden_state", Dtype::BF16, &[1, rows, spec.hidden], halves(&sample.hidden)),
            made("input_ids", Dtype::I64, &[rows], ids),
            made("loss_mask", Dtype::I64, &[rows], mask),
        ];
        // A trainer that reads the folder meanwhile does not find half a sample.
        write_tensors(path, &tensors, metadata).map(drop)
    }
}

fn whole(values: impl Iterator<Item = i64>) -> Vec<u8> {
    values.flat_map(i64::to_le_bytes).collect()
}

fn halves(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect()
}
