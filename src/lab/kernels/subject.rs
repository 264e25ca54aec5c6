//! A model on one backend, for checks of whole texts.

use anyhow::{Result, bail, ensure};

use crate::backend::TopLogits;
use crate::backend::prelude::*;
use crate::engine::protocol::{CheckpointImage, ImageTensor, Precision, Token};
use crate::model::{Checkpoint, Live, Model};

const LIMIT: usize = 8192;

pub struct Subject<B: Backend> {
    pub b: B,
    pub model: Model<B>,
}

impl<B: Backend> Subject<B> {
    pub fn new(mut b: B, name: &str, prefill: Precision) -> Result<Self> {
        let mut checkpoint = Checkpoint::open(name)?;
        checkpoint.set_prefill(prefill);
        let model = Model::load(&mut b, &checkpoint, |_| {})?;
        Ok(Subject { b, model })
    }

    pub(super) fn live(&mut self) -> Result<Live<B>> {
        Ok(Live::new(&mut self.b, &self.model, LIMIT, &[])?)
    }

    /// A sequence that has read a text in passes of at most `chunk` tokens, and its last top logits.
    pub(super) fn after(&mut self, tokens: &[Token], chunk: usize) -> Result<(Live<B>, TopLogits)> {
        let mut live = self.live()?;
        let top = self.read(&mut live, tokens, chunk)?;
        Ok((live, top))
    }

    pub(super) fn read(&mut self, live: &mut Live<B>, tokens: &[Token], chunk: usize) -> Result<TopLogits> {
        let mut parts = tokens.chunks(chunk.min(self.b.prefill_rows())).peekable();
        while let Some(part) = parts.next() {
            match parts.peek() {
                Some(_) => live.prefill_state(&mut self.b, &self.model, part)?,
                None => live.prefill(&mut self.b, &self.model, part)?,
            }
            live.advance(&mut self.b, part.len())?;
        }
        Ok(live.prefill_logits(&mut self.b, &self.model)?)
    }

    pub(super) fn step(&mut self, live: &mut Live<B>, rows: &[Token], accept: usize) -> Result<Vec<TopLogits>> {
        live.verify(&mut self.b, &self.model, rows)?;
        let found = live.top_logits(&mut self.b, rows.len())?;
        live.advance(&mut self.b, accept)?;
        Ok(found)
    }

    pub(super) fn export(&mut self, live: &mut Live<B>) -> Result<Vec<ImageTensor>> {
        let CheckpointImage { tensors, .. } = live.export_end(&mut self.b)?;
        let rows = live.export_rows(&mut self.b, 0..live.position())?;
        Ok(rows.tensors.into_iter().chain(tensors).collect())
    }

    /// Greedy tokens, each with its lead over the second best logit.
    pub(super) fn greedy(&mut self, prompt: &[Token], n: usize) -> Result<Vec<(Token, f32)>> {
        let (mut live, mut top) = self.after(prompt, usize::MAX)?;
        let mut out = Vec::with_capacity(n);
        for _ in 0..n {
            let (token, lead) = match (top.ids.as_slice(), top.logits.as_slice()) {
                ([id, ..], [a, b, ..]) if a.is_finite() => (*id, a - b),
                _ => bail!("no finite top logits"),
            };
            out.push((token, lead));
            top = self.step(&mut live, &[token], 1)?.pop().unwrap_or_default();
        }
        Ok(out)
    }

    pub(super) fn prompt(&self, n: usize) -> Vec<Token> {
        let vocab = self.model.spec().vocab as u32;
        (0..n as u64).map(|i| (crate::backend::synthetic_value(77, i, 1.0).to_bits() >> 4) % vocab).collect()
    }
}

pub(super) fn same_logits(a: &[TopLogits], b: &[TopLogits], what: &str) -> Result<()> {
    let bits = |c: &TopLogits| {
        (c.ids.clone(), c.logits.iter().map(|l| l.to_bits()).collect::<Vec<_>>(), c.log_sum_exp.to_bits())
    };
    let at = a.iter().zip(b).position(|(a, b)| bits(a) != bits(b));
    ensure!(at.is_none() && a.len() == b.len(), "{what}: top logits differ at row {at:?}");
    Ok(())
}

pub(super) fn same_tensors(a: &[ImageTensor], b: &[ImageTensor], what: &str) -> Result<()> {
    ensure!(a.len() == b.len(), "{what}: {} tensors, {} expected", a.len(), b.len());
    let different = a.iter().zip(b).find(|(a, b)| a.name != b.name || a.data != b.data);
    different.map_or(Ok(()), |(a, _)| bail!("{what}: {} differs", a.name))
}
