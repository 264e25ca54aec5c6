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
//! `assets/demo/training/captured.py` computes.

use std::collections::HashMap;
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorView;

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
    ///
    /// # Errors
    /// A layer outside the model, or not enough memory.
    pub fn new(b: &mut B, model: &Model<B>, limit: usize, layers: &[usize]) -> Result<Self> {
        if layers.is_empty() {
            return Err(ModelError::Order { op: "Recorder::new", reason: "no layer's hidden states are kept".into() });
        }
        let live = Live::new(b, model, limit, layers)?;
        let layers = layers.to_vec();
        Ok(Recorder { live, layers })
    }

    /// Reads `prompt` and answers greedily with at most `most` tokens, up to and including one of `stop`.
    ///
    /// # Errors
    /// An empty prompt, one that does not fit, or the device.
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
            let Some(token) = best.ids.first().copied() else {
                break;
            };
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
        let (rows, aux_hidden) = (sample.tokens.len(), self.layers.len());
        let ids = whole(sample.tokens.iter().map(|t| i64::from(*t)));
        let mask = whole(sample.written.iter().map(|w| i64::from(*w)));
        let (hidden, aux) = (halves(&sample.hidden), halves(&sample.aux_hidden));
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
        let broken = |cause: String| ModelError::Write { path: path.into(), cause: std::io::Error::other(cause) };
        let view = |dtype: Dtype, shape: &[usize], bytes| {
            TensorView::new(dtype, shape.to_vec(), bytes).map_err(|e| broken(e.to_string()))
        };
        let tensors = [
            ("aux_hidden_state", view(Dtype::BF16, &[1, rows, aux_hidden * spec.hidden], &aux)?),
            ("hidden_state", view(Dtype::BF16, &[1, rows, spec.hidden], &hidden)?),
            ("input_ids", view(Dtype::I64, &[rows], &ids)?),
            ("loss_mask", view(Dtype::I64, &[rows], &mask)?),
        ];
        let bytes = safetensors::serialize(tensors, Some(metadata)).map_err(|e| broken(e.to_string()))?;
        // A trainer that reads the folder meanwhile must not find half a sample.
        let unfinished = path.with_extension("tmp");
        let written = std::fs::write(&unfinished, bytes).and_then(|()| std::fs::rename(&unfinished, path));
        written.map_err(|cause| {
            // A file that remains has a name that no trainer reads.
            let _ = std::fs::remove_file(&unfinished);
            ModelError::Write { path: path.into(), cause }
        })
    }
}

fn whole(values: impl Iterator<Item = i64>) -> Vec<u8> {
    values.flat_map(i64::to_le_bytes).collect()
}

fn halves(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::BufKind;
    use crate::backend::cpu::Cpu;
    use crate::backend::draft::DraftOps;
    use crate::backend::prelude::*;
    use crate::model::draft::{DraftHead, DraftOptions, Tables};
    use crate::model::{Checkpoint, DEMO_TOKENIZER, DEMO_TOKENIZER_CONFIG};
    use crate::text::{ChatMessage, ChatRole, RenderOptions, TextModel};

    const DOCUMENT: &str = "Project Harbour started on 3 May. Anna Berg leads it from Oslo. The budget is 420 euros. \
        Marta keeps the keys. The meeting is on Friday at 10:30 in room 7.";
    const QUESTIONS: [&str; 3] =
        ["Who leads Project Harbour?", "When is the meeting?", "What is the capital of France?"];

    struct Captured {
        b: Cpu,
        model: Model<Cpu>,
        head: DraftHead<Cpu>,
        recorder: Recorder<Cpu>,
        samples: Vec<Sample>,
        stop: Vec<Token>,
    }

    fn captured() -> Captured {
        let mut b = Cpu::new();
        let model = Model::load(&mut b, &Checkpoint::open("demo").unwrap(), |_| {}).unwrap();
        let head = DraftHead::demo(&mut b, model.spec(), &DraftOptions::default()).unwrap();
        let text =
            TextModel::from_bytes(DEMO_TOKENIZER.as_bytes(), DEMO_TOKENIZER_CONFIG.as_bytes(), None, None).unwrap();
        let stop = text.tokenizer.stop_ids(&[2, 4]);
        let mut recorder = Recorder::new(&mut b, &model, 1024, head.aux_layers()).unwrap();
        let samples = QUESTIONS.map(|question| {
            let mut turns = ChatMessage::document("harbour.txt", DOCUMENT).to_vec();
            turns.push(ChatMessage::new(ChatRole::User, question));
            let prompt = text
                .template
                .render(&turns, &RenderOptions { add_generation_prompt: true, ..RenderOptions::default() });
            let prompt = text.tokenizer.encode_prompt(&prompt.unwrap()).unwrap();
            recorder.sample(&mut b, &model, &prompt, 96, &stop).unwrap()
        });
        Captured { b, model, head, recorder, samples: samples.to_vec(), stop }
    }

    #[test]
    fn rows_are_those_of_a_plain_forward_pass() {
        let Captured { mut b, model, head, samples, stop, .. } = captured();
        let hidden = model.spec().hidden;
        for sample in &samples {
            let (n, answer) = (sample.tokens.len(), sample.completion_tokens());
            assert!(answer > 2 && stop.contains(sample.tokens.last().unwrap()), "{answer} tokens");
            assert_eq!((sample.written.len(), sample.hidden.len()), (n, n * hidden));
            assert_eq!(sample.aux_hidden.len(), n * hidden * head.aux_layers().len());
            assert!(sample.written.iter().skip(n - answer).all(|w| *w));

            let mut live = Live::new(&mut b, &model, 1024, head.aux_layers()).unwrap();
            live.prefill(&mut b, &model, &sample.tokens[..n - answer]).unwrap();
            let aux_hidden = b.read(live.aux_hidden().unwrap(), n - answer).unwrap();
            let last = b.read(live.hidden(), n - answer).unwrap();
            live.advance(&mut b, n - answer).unwrap();
            assert!(sample.aux_hidden.starts_with(&aux_hidden) && sample.hidden.starts_with(&last));
            // Several rows at once equal single steps, bit for bit.
            for (i, chunk) in sample.tokens[n - answer..].chunks(7).enumerate() {
                live.verify(&mut b, &model, chunk).unwrap();
                let aux_hidden = b.read(live.aux_hidden().unwrap(), chunk.len()).unwrap();
                let at = (n - answer + 7 * i) * hidden * head.aux_layers().len();
                assert_eq!(sample.aux_hidden[at..at + aux_hidden.len()], aux_hidden);
                live.advance(&mut b, chunk.len()).unwrap();
            }
        }
    }

    #[test]
    fn the_models_own_head_drafts_its_answers_from_captured_states() {
        let Captured { mut b, model, mut head, samples, .. } = captured();
        let tables = Tables::from(&model);
        let width = model.spec().hidden * head.aux_layers().len();
        let (mut right, mut all) = (0, 0);
        for sample in &samples {
            let (n, given) = (sample.tokens.len(), sample.tokens.len() - sample.completion_tokens());
            let mut buf = b.draft_buf(given, width, BufKind::Activation).unwrap();
            b.write(&mut buf, &sample.aux_hidden[..given * width]).unwrap();
            head.reset(0);
            head.read(&mut b, &tables, &buf, 0, given, &sample.tokens[..given], 0).unwrap();
            for at in given..n - 1 {
                // Token `at` is pending: the head has the rows before it and predicts the next token.
                let drafted = head.extend(&mut b, &tables, &sample.tokens[..at + 1]).unwrap().ids[0];
                right += usize::from(drafted == sample.tokens[at + 1]);
                all += 1;
                b.write(&mut buf, &sample.aux_hidden[at * width..(at + 1) * width]).unwrap();
                head.keep(&mut b, &tables, &buf, 0..1, at, &sample.tokens[..at + 1]).unwrap();
            }
        }
        assert!(all > 10 && right * 10 >= all * 7, "{right} of {all}");
    }

    #[test]
    fn a_sample_on_disk_is_what_a_trainer_looks_for() {
        let Captured { model, recorder, samples, .. } = captured();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sample-000001.safetensors");
        let about = [("name", "harbour.txt".to_owned())];
        recorder.write(&model, &samples[0], &about, &path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let (_, head) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        let metadata = head.metadata().clone().unwrap();
        assert_eq!(
            (metadata["format"].as_str(), metadata["layers"].as_str(), metadata["name"].as_str()),
            (FORMAT, "1,4,6", "harbour.txt")
        );
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let (n, hidden) = (samples[0].tokens.len(), model.spec().hidden);
        for (name, dtype, shape) in [
            ("input_ids", Dtype::I64, vec![n]),
            ("loss_mask", Dtype::I64, vec![n]),
            ("hidden_state", Dtype::BF16, vec![1, n, hidden]),
            ("aux_hidden_state", Dtype::BF16, vec![1, n, 3 * hidden]),
        ] {
            let tensor = file.tensor(name).unwrap();
            assert_eq!((tensor.dtype(), tensor.shape()), (dtype, shape.as_slice()), "{name}");
        }
        let ids: Vec<i64> = file
            .tensor("input_ids")
            .unwrap()
            .data()
            .chunks_exact(8)
            .map(|b| i64::from_le_bytes(b.try_into().unwrap()))
            .collect();
        assert!(ids.iter().zip(&samples[0].tokens).all(|(a, b)| *a == i64::from(*b)));
        let mask: i64 = file
            .tensor("loss_mask")
            .unwrap()
            .data()
            .chunks_exact(8)
            .map(|b| i64::from_le_bytes(b.try_into().unwrap()))
            .sum();
        assert_eq!(mask as usize, samples[0].completion_tokens());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing unfinished is left");

        let nowhere = dir.path().join("no/folder.safetensors");
        let error = recorder.write(&model, &samples[0], &[], &nowhere).unwrap_err().to_string();
        assert!(error.contains("folder.safetensors") && !error.contains('\n'), "{error}");
    }
}
