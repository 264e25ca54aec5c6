//! Logits of texts, as the released code computes them, against those of another implementation or of another form of the
//! same weights.
//!
//! File format (safetensors; `reference.py` writes it): for each length L `tokens.L` [L] and `rows.L` [n], integers,
//! and `logits.L` [n, vocab], f32, f16 or bf16: the logits after `tokens[rows[i]]`, all of one call over L tokens.

use std::path::Path;

use super::super::clients::failed;
use super::super::golden::{floats, integers};
use super::super::subject::Subject;
use super::numbers::{Distance, Distances, distance};
use super::scored;
use crate::backend::Backend;
use crate::cli::{Exit, Failure};
use crate::core::spec::DenseRule;
use crate::engine::protocol::Token;
use crate::model::{ModelError, Tensors};

pub const SCRIPT: &str = include_str!("../../../assets/eval/reference.py");

pub struct Sample {
    pub tokens: Vec<Token>,
    /// Rows with known logits, ascending.
    pub rows: Vec<usize>,
    /// `[rows, vocab]`
    pub logits: Vec<f32>,
}

fn unusable(path: &Path, what: impl std::fmt::Display) -> Failure {
    let hint = "sala-chat eval --script prints the script that makes such a file";
    Failure::new(Exit::Failure, format!("{}: {what}", path.display())).hint(hint)
}

/// Samples of a file for a model of `vocab` tokens, in ascending length.
pub fn read(path: &Path, vocab: usize) -> Result<Vec<Sample>, Failure> {
    let tensors = Tensors::open_files(&[path.to_owned()]).map_err(|e| match e {
        ModelError::File { cause, .. } => Failure::input(path, &cause),
        ModelError::Damaged { cause, .. } => unusable(path, format!("not a file of reference logits ({cause})")),
        e => unusable(path, e),
    })?;
    let mut lengths = Vec::new();
    for name in tensors.names().filter_map(|n| n.strip_prefix("tokens.")) {
        lengths.push(name.parse::<usize>().map_err(|_| unusable(path, format!("`tokens.{name}` names no length")))?);
    }
    lengths.sort_unstable();
    if lengths.is_empty() {
        return Err(unusable(path, "there is no tensor `tokens.LENGTH`"));
    }
    let sample = |length: usize| {
        let bad = |what: String| unusable(path, format!("length {length}: {what}"));
        let integers = |name: &str| integers(&tensors, &format!("{name}.{length}")).map_err(bad);
        let (tokens, rows) = (integers("tokens")?, integers("rows")?);
        if tokens.len() != length {
            return Err(bad(format!("{} tokens", tokens.len())));
        }
        if let Some(token) = tokens.iter().find(|t| !(0..vocab as i64).contains(*t)) {
            return Err(bad(format!("token {token} is outside the vocabulary of {vocab}: it is of another model")));
        }
        if rows.is_empty() || rows.iter().any(|r| !(0..length as i64).contains(r)) || !rows.is_sorted() {
            return Err(bad("`rows` must be positions of the text, ascending".into()));
        }
        let name = format!("logits.{length}");
        let logits = floats(&tensors, &name).map_err(bad)?;
        let shape = tensors.raw(&name).map(|(_, shape, _)| shape.to_vec()).unwrap_or_default();
        if shape != [rows.len(), vocab] {
            return Err(bad(format!("`{name}` has shape {shape:?}, expected [{}, {vocab}]", rows.len())));
        }
        if let Some(at) = logits.iter().position(|v| !v.is_finite()) {
            return Err(bad(format!("`{name}` holds {} at {at}", logits[at])));
        }
        let tokens = tokens.into_iter().map(|t| t as Token).collect();
        Ok(Sample { tokens, rows: rows.into_iter().map(|r| r as usize).collect(), logits })
    };
    lengths.into_iter().map(sample).collect()
}

/// The compared rows of a text of `length` tokens: the last ones, with the longest context, and some spread over the
/// text.
fn chosen_rows(length: usize) -> Vec<usize> {
    const EACH: usize = 32;
    let mut rows: Vec<usize> = (0..EACH).map(|i| length * (i + 1) / (EACH + 1)).collect();
    rows.extend(length.saturating_sub(EACH)..length);
    rows.retain(|r| *r < length);
    rows.sort_unstable();
    rows.dedup();
    rows
}

/// Reads a text as one call of the released code does: the rule for dense rows depends on the text's length.
fn as_released<B: Backend>(
    subject: &mut Subject<B>,
    tokens: &[Token],
    rows: &[usize],
    each: &mut dyn FnMut(usize, &[f32]),
) -> Result<(), Failure> {
    let own = subject.model.spec().sparse.dense_rule;
    subject.set_dense_rule(DenseRule::Call, tokens.len());
    let done = scored(subject, tokens, rows, each);
    subject.live.sparse_spec_mut().dense_rule = own;
    done
}

/// Logits of this model at the chosen rows of every text: a reference for another form of its weights.
pub fn of<B: Backend>(subject: &mut Subject<B>, texts: &[Vec<Token>]) -> Result<Vec<Sample>, Failure> {
    let mut samples = Vec::new();
    for tokens in texts {
        let rows = chosen_rows(tokens.len());
        let mut logits = Vec::new();
        as_released(subject, tokens, &rows, &mut |_, row| logits.extend_from_slice(row))?;
        samples.push(Sample { tokens: tokens.clone(), rows, logits });
    }
    Ok(samples)
}

/// One result for each text that fits into the context; longer texts are skipped.
pub fn compare<B: Backend>(subject: &mut Subject<B>, samples: &[Sample]) -> Result<Vec<Distances>, Failure> {
    let (vocab, limit) = (subject.model.spec().vocab, subject.live.limit());
    let mut out = Vec::new();
    for sample in samples.iter().filter(|s| s.tokens.len() <= limit) {
        let mut rows: Vec<Distance> = Vec::new();
        as_released(subject, &sample.tokens, &sample.rows, &mut |_, found| {
            let at = rows.len() * vocab;
            rows.push(distance(sample.logits.get(at..at + vocab).unwrap_or_default(), found));
        })?;
        if rows.len() != sample.rows.len() {
            return Err(failed(format!("{} of {} rows were scored", rows.len(), sample.rows.len())));
        }
        out.push(Distances::of(sample.tokens.len(), &rows));
    }
    Ok(out)
}
