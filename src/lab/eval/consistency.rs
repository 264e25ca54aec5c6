//! Paths to the same logits that must agree: the model against itself.

use super::super::checks::Check;
use super::super::clients::{failed, greedy};
use super::super::subject::Subject;
use super::numbers::{Distance, Distances, distance};
use super::{scored, single};
use crate::backend::Backend;
use crate::backend::draft::DraftOps;
use crate::cli::Failure;
use crate::engine::protocol::{Precision, SpecMode, Token};
use crate::engine::speculate::Decoder;

/// Tokens decoded one by one and compared with the prefill.
const STEPS: usize = 64;
const ROWS: usize = 8;
const WRITTEN: u64 = 96;

/// Compares, on the first tokens of a text: prefill against decode, decode against verify, saved against fresh state,
/// and the text written with drafts against that without. An error is the greatest difference of a log-probability that
/// counts, or a number of tokens.
pub fn measure<B: DraftOps>(subject: &mut Subject<B>, text: &[Token]) -> Result<Vec<Check>, Failure> {
    let tokens = text.len();
    let Some(prompt) = tokens.checked_sub(STEPS).filter(|n| *n > 0) else {
        return Err(failed(format!("consistency needs a text of more than {STEPS} tokens, this one has {tokens}")));
    };
    let (head, tail) = text.split_at(prompt);
    let rows: Vec<usize> = (prompt..text.len()).collect();
    let prefilled = logits(subject, text, &rows)?;
    subject.reset()?;
    subject.read(head, usize::MAX)?;
    let fresh = subject.export()?;
    let decoded = decode(subject, tail, 1)?;
    subject.restore(&fresh)?;
    let saved = decode(subject, tail, 1)?;
    subject.restore(&fresh)?;
    let verified = decode(subject, tail, ROWS)?;
    subject.restore(&fresh)?;
    let off = write(subject, text, prompt, SpecMode::Off)?;
    subject.restore(&fresh)?;
    let on = write(subject, text, prompt, SpecMode::Depth(4))?;
    let same = off.iter().zip(&on).take_while(|(a, b)| a == b).count();
    let different = (off.len().max(on.len()) - same) as f64;
    let distances: Vec<Distance> = prefilled.iter().zip(&decoded).map(|(a, b)| distance(a, b)).collect();
    let bits = |a: &[Vec<f32>], b: &[Vec<f32>]| {
        let row = |a: &Vec<f32>, b: &Vec<f32>| a.iter().zip(b).any(|(a, b)| a.to_bits() != b.to_bits());
        a.iter().zip(b).filter(|(a, b)| row(a, b)).count() as f64
    };
    let (verified, saved) = (bits(&decoded, &verified), bits(&decoded, &saved));
    let all = [
        ("prefill and decode", Distances::of(STEPS, &distances).max_diff, slack(subject)),
        ("decode and verify of 8 rows, rows that differ in a bit", verified, 0.0),
        ("saved and fresh state, rows that differ in a bit", saved, 0.0),
        ("speculation on and off, tokens that differ", different, 0.0),
    ];
    Ok(all.map(|(name, greatest, budget)| Check::compared(name, greatest, budget)).into())
}

/// The difference that arithmetic alone may make to a log-probability that counts. Decoding never uses fp8.
fn slack<B: Backend>(subject: &Subject<B>) -> f64 {
    match subject.prefill {
        Precision::Fp8 => 4.0,
        Precision::Bf16 if single(subject.b) => 1e-2,
        Precision::Bf16 => 0.5,
    }
}

fn logits<B: Backend>(subject: &mut Subject<B>, text: &[Token], rows: &[usize]) -> Result<Vec<Vec<f32>>, Failure> {
    let mut found = Vec::new();
    scored(subject, text, rows, &mut |_, logits| found.push(logits.to_vec()))?;
    Ok(found)
}

fn decode<B: DraftOps>(subject: &mut Subject<B>, tokens: &[Token], rows: usize) -> Result<Vec<Vec<f32>>, Failure> {
    let mut out = Vec::new();
    for chunk in tokens.chunks(rows) {
        out.extend(subject.logits(chunk)?.chunks_exact(subject.model.spec().vocab).map(<[f32]>::to_vec));
    }
    Ok(out)
}

fn write<B: DraftOps>(
    subject: &mut Subject<B>,
    text: &[Token],
    prompt: usize,
    spec: SpecMode,
) -> Result<Vec<Token>, Failure> {
    // The last token is read again as prompt: its logits begin the answer.
    let (last, known) = (text.get(prompt..=prompt).unwrap_or_default(), text.get(..=prompt).unwrap_or_default());
    subject.read(last, 1)?;
    let mut decoder: Decoder<B> = Decoder::new(None);
    decoder.restore(subject.b, known, None).map_err(failed)?;
    let (b, model, live) = (&mut *subject.b, &subject.model, &mut subject.live);
    let mut round = decoder.begin(b, model, live, &greedy(WRITTEN, spec)).map_err(failed)?;
    let mut written = Vec::new();
    loop {
        written.extend(round.tokens);
        if round.ended.is_some() {
            return Ok(written);
        }
        round = decoder.round(b, model, live).map_err(failed)?;
    }
}
