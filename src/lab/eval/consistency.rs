//! The model against itself: paths to the same logits that must agree.

use std::borrow::Cow;

use super::super::engine_client::{failed, greedy};
use super::Subject;
use super::numbers::{Distance, distance};
use crate::backend::draft::DraftOps;
use crate::cli::Failure;
use crate::engine::protocol::{SpecMode, Token};
use crate::engine::speculate::{DecodeError, Decoder};

/// Tokens decoded one by one and compared with the prefill.
const STEPS: usize = 64;
const ROWS: usize = 8;
const WRITTEN: u64 = 96;

#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Agreement {
    pub what: Cow<'static, str>,
    /// Greatest difference of a log-probability that counts; of texts, the number of different tokens.
    pub greatest: f64,
    pub budget: f64,
}

impl Agreement {
    pub fn ok(&self) -> bool {
        self.greatest <= self.budget
    }
}

/// Compares, on the first tokens of a text: prefill against decode, decode against verify, saved against fresh state,
/// and the text written with drafts against that without. `slack` is the difference that arithmetic may make between
/// prefill and decode.
pub fn measure<B: DraftOps>(subject: &mut Subject<B>, text: &[Token], slack: f64) -> Result<Vec<Agreement>, Failure> {
    let tokens = text.len();
    let Some(prompt) = tokens.checked_sub(STEPS).filter(|n| *n > 0) else {
        return Err(failed(format!("consistency needs a text of more than {STEPS} tokens, this one has {tokens}")));
    };
    let (head, tail) = text.split_at(prompt);
    let rows: Vec<usize> = (prompt..text.len()).collect();
    let mut prefilled = Vec::new();
    subject.read(text, &rows, &mut |_, logits| prefilled.push(logits.to_vec()))?;

    subject.read(head, &[], &mut |_, _| ())?;
    let fresh_end = subject.live.export_end(&mut subject.b)?;
    let fresh_rows = subject.live.export_rows(&mut subject.b, 0..prompt)?;
    let decoded = decode(subject, tail, 1)?;

    let restore = |subject: &mut Subject<B>| -> Result<(), Failure> {
        let rows = std::slice::from_ref(&fresh_rows);
        Ok(subject.live.restore(&mut subject.b, 0, rows, Some(&fresh_end))?)
    };
    restore(subject)?;
    let saved = decode(subject, tail, 1)?;
    restore(subject)?;
    let verified = decode(subject, tail, ROWS)?;

    restore(subject)?;
    let off = write(subject, text, prompt, SpecMode::Off)?;
    restore(subject)?;
    let on = write(subject, text, prompt, SpecMode::Depth(4))?;
    let same = off.iter().zip(&on).take_while(|(a, b)| a == b).count();
    let different = (off.len().max(on.len()) - same) as f64;
    let far = |a: &[Vec<f32>], b: &[Vec<f32>]| worst(a.iter().zip(b).map(|(a, b)| distance(a, b)));
    let bits = |a: &[Vec<f32>], b: &[Vec<f32>]| {
        let row = |a: &Vec<f32>, b: &Vec<f32>| a.iter().zip(b).any(|(a, b)| a.to_bits() != b.to_bits());
        a.iter().zip(b).filter(|(a, b)| row(a, b)).count() as f64
    };
    let (verified, saved) = (bits(&decoded, &verified), bits(&decoded, &saved));
    let all = [
        ("prefill and decode", far(&prefilled, &decoded), slack),
        ("decode and verify of 8 rows, rows that differ in a bit", verified, 0.0),
        ("saved and fresh state, rows that differ in a bit", saved, 0.0),
        ("speculation on and off, tokens that differ", different, 0.0),
    ];
    Ok(all.map(|(what, greatest, budget)| Agreement { what: what.into(), greatest, budget }).into())
}

pub(super) fn worst(rows: impl IntoIterator<Item = Distance>) -> f64 {
    // A NaN must win: `f64::max` would drop it.
    rows.into_iter().fold(0.0, |most: f64, d| {
        if d.divergence.is_nan() {
            f64::NAN
        } else if most.is_nan() {
            most
        } else {
            most.max(d.greatest)
        }
    })
}

fn decode<B: DraftOps>(subject: &mut Subject<B>, tokens: &[Token], rows: usize) -> Result<Vec<Vec<f32>>, Failure> {
    let vocab = subject.model.spec().vocab;
    let mut out = Vec::new();
    for chunk in tokens.chunks(rows) {
        subject.live.verify(&mut subject.b, &subject.model, chunk)?;
        let logits = subject.live.logits(&mut subject.b, chunk.len())?;
        out.extend(logits.chunks_exact(vocab).take(chunk.len()).map(<[f32]>::to_vec));
        subject.live.advance(&mut subject.b, chunk.len())?;
    }
    Ok(out)
}

fn write<B: DraftOps>(
    subject: &mut Subject<B>,
    text: &[Token],
    prompt: usize,
    spec: SpecMode,
) -> Result<Vec<Token>, Failure> {
    let mut decoder: Decoder<B> = Decoder::new(None);
    let broken = |e: DecodeError| failed(e);
    // The last token is read again as prompt: its logits begin the answer.
    let (b, model, live) = (&mut subject.b, &subject.model, &mut subject.live);
    let (last, known) = (text.get(prompt..=prompt).unwrap_or_default(), text.get(..=prompt).unwrap_or_default());
    live.prefill(b, model, last)?;
    live.advance(b, last.len())?;
    decoder.restore(b, known, None).map_err(broken)?;
    let mut round = decoder.begin(b, model, live, &greedy(WRITTEN, spec)).map_err(broken)?;
    let mut tokens = round.tokens;
    while round.ended.is_none() {
        round = decoder.round(b, model, live).map_err(broken)?;
        tokens.extend(&round.tokens);
    }
    Ok(tokens)
}
