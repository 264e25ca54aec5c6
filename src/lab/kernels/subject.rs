//! A model on one backend, for checks of whole texts.

use super::checks::words;
use crate::backend::TopLogits;
use crate::backend::prelude::*;
use crate::engine::protocol::{Precision, Token};
use crate::model::{Checkpoint, Live, Model};

pub struct Subject<B: Backend> {
    pub b: B,
    pub model: Model<B>,
    prefill: Precision,
    limit: usize,
}

impl<B: Backend> Subject<B> {
    pub fn new(mut b: B, what: &str, prefill: Precision, limit: usize) -> Result<Self, String> {
        let mut checkpoint = Checkpoint::open(what).map_err(words)?;
        checkpoint.set_prefill(prefill);
        let model = Model::load(&mut b, &checkpoint, |_| {}).map_err(words)?;
        Ok(Subject { b, model, prefill, limit })
    }

    pub(super) fn said(&self) -> &'static str {
        match self.prefill {
            Precision::Bf16 => "",
            Precision::Fp8 => " in fp8",
        }
    }

    pub(super) fn live(&mut self) -> Result<Live<B>, String> {
        Live::new(&mut self.b, &self.model, self.limit, &[]).map_err(words)
    }

    pub(super) fn read(&mut self, live: &mut Live<B>, tokens: &[Token], chunk: usize) -> Result<TopLogits, String> {
        let mut parts = tokens.chunks(chunk.min(self.b.prefill_rows())).peekable();
        while let Some(part) = parts.next() {
            match parts.peek() {
                Some(_) => live.prefill_state(&mut self.b, &self.model, part).map_err(words)?,
                None => live.prefill(&mut self.b, &self.model, part).map_err(words)?,
            }
            live.advance(&mut self.b, part.len()).map_err(words)?;
        }
        live.prefill_logits(&mut self.b, &self.model).map_err(words)
    }

    pub(super) fn step(&mut self, live: &mut Live<B>, rows: &[Token], accept: usize) -> Result<Vec<TopLogits>, String> {
        live.verify(&mut self.b, &self.model, rows).map_err(words)?;
        let found = live.top_logits(&mut self.b, rows.len()).map_err(words)?;
        live.advance(&mut self.b, accept).map_err(words)?;
        Ok(found)
    }

    /// Greedy tokens, each with its lead over the second best logit.
    pub(super) fn greedy(&mut self, prompt: &[Token], n: usize) -> Result<Vec<(Token, f32)>, String> {
        let mut live = self.live()?;
        let mut best = self.read(&mut live, prompt, usize::MAX)?;
        let mut out = Vec::with_capacity(n);
        for _ in 0..n {
            let (token, lead) = lead(&best)?;
            out.push((token, lead));
            best = self.step(&mut live, &[token], 1)?.pop().unwrap_or_default();
        }
        Ok(out)
    }
}

fn lead(c: &TopLogits) -> Result<(Token, f32), String> {
    match (c.ids.as_slice(), c.logits.as_slice()) {
        ([id, ..], [a, b, ..]) if a.is_finite() => Ok((*id, a - b)),
        _ => Err("no finite top logits".to_owned()),
    }
}

pub(super) fn prompt(vocab: usize, n: usize) -> Vec<Token> {
    (0..n as u64).map(|i| (crate::backend::synthetic_value(77, i, 1.0).to_bits() >> 4) % vocab as u32).collect()
}

pub(super) fn same(a: &[TopLogits], b: &[TopLogits], what: &str) -> Result<(), String> {
    let bits = |c: &TopLogits| {
        (c.ids.clone(), c.logits.iter().map(|l| l.to_bits()).collect::<Vec<_>>(), c.log_sum_exp.to_bits())
    };
    match a.iter().zip(b).position(|(a, b)| bits(a) != bits(b)) {
        None if a.len() == b.len() => Ok(()),
        at => Err(format!("{what}: top logits differ at row {at:?}")),
    }
}
