//! `sala-chat eval`: numbers that show whether this machine runs the model as published.
//!
//! | part | question | file |
//! |---|---|---|
//! | reference | does it give the logits of the released code (`FILE`), or of another form of its weights (`--against`)? | `reference` |
//! | consistency | do prefill, decode, verify, saved state and speculation agree? | `consistency` |
//! | needles | does it fetch facts from any depth of long documents? | `needles` |
//! | looked | do right answers look at the lines that support them (`--looked`, alone)? | `looked` |
//!
//! The report names every part that misses its budget, and the exit code is then 1. Budgets: on a device that computes
//! in f32 mean divergence from a reference in f32 stays below 1e-5; bf16 against bf16 of another implementation below
//! 0.01 with at least 95 % of rows agreeing on the likeliest token (rounding alone, no error: kernels sum in another
//! order).

mod consistency;
mod looked;
pub(super) mod needles;
mod numbers;
mod reference;
#[cfg(test)]
mod tests;

use serde_json::{Value, json};

use super::checks::{Check, word};
use super::clients::failed;
use super::subject::Subject;
use crate::backend::Backend;
use crate::backend::draft::DraftOps;
use crate::cli::args::{EVAL_ROOM, EvalArgs};
use crate::cli::devices::{self, Opened};
use crate::cli::{Context, Exit, Failure, open};
use crate::core::counted;
use crate::engine::protocol::{Dtype, Precision, Token};
use crate::model::Checkpoint;
use crate::text::TextModel;

use numbers::Distances;

/// Tokens of the consistency part: enough that rows choose among blocks.
const CONSISTENCY: usize = 4_608;
/// Share of needles below which the part misses.
const FOUND: f64 = 0.8;

/// Reads a text from an empty state and passes the logits of `rows` (ascending) to `each`.
fn scored<B: Backend>(
    subject: &mut Subject<B>,
    tokens: &[Token],
    rows: &[usize],
    each: &mut dyn FnMut(usize, &[f32]),
) -> Result<(), Failure> {
    subject.reset()?;
    Ok(subject.score(tokens, &|row| rows.binary_search(&row).is_ok(), each, None)?)
}

fn single<B: Backend>(b: &B) -> bool {
    b.cache_dtype() == Dtype::F32
}

struct Part {
    name: &'static str,
    ok: Option<bool>,
    rows: Vec<String>,
    data: Value,
}

pub(super) fn run(context: &Context, args: &EvalArgs) -> Result<Exit, Failure> {
    if args.script {
        context.print(reference::SCRIPT.trim_end())?;
        return Ok(Exit::Ok);
    }
    if args.looked {
        return report(context, &open::model(context)?.name, &[looked::measure(context, &args.lengths)?]);
    }
    let (name, checkpoint) = open::measured(context)?;
    let (text, _) = open::text(&name)?;
    let more = args.reference.is_some() || args.against.is_some();
    if skips(args, "consistency") && skips(args, "needles") && !more {
        let line = "nothing is left to judge: name --against or reference logits, or skip less";
        return Err(Failure::usage(line));
    }
    let eval = Eval { context, args, checkpoint: &checkpoint, text: &text };
    let parts = match devices::open(&context.config().model, &args.tuning, false)? {
        Opened::Cpu(mut cpu, _) => eval.judge(&mut *cpu, &[1_024, 4_096])?,
        #[cfg(feature = "cuda")]
        Opened::Cuda(mut cuda) => eval.judge(&mut *cuda, &[4_096, 16_384, 65_536, 131_072])?,
    };
    report(context, checkpoint.name(), &parts)
}

/// Prints the parts; exit code 1 if one misses its budget.
fn report(context: &Context, model: &str, parts: &[Part]) -> Result<Exit, Failure> {
    let missed: Vec<&str> = parts.iter().filter(|p| p.ok == Some(false)).map(|p| p.name).collect();
    let as_json = || {
        let part = |p: &Part| json!({"part": p.name, "verdict": word(p.ok), "results": p.data});
        let parts: Value = parts.iter().map(part).collect();
        json!({"model": model, "ok": missed.is_empty(), "missed": missed, "parts": parts})
    };
    let as_text = || {
        let mut out = model.to_owned();
        for p in parts {
            out.push_str(&format!("\n{:>4} {}", word(p.ok), p.name));
            p.rows.iter().for_each(|row| out.push_str(&format!("\n{row}")));
        }
        out
    };
    context.result(as_json, as_text)?;
    Ok(if missed.is_empty() { Exit::Ok } else { Exit::Failure })
}

fn skips(args: &EvalArgs, part: &str) -> bool {
    args.skip.iter().any(|skipped| skipped == part)
}

struct Eval<'a> {
    context: &'a Context,
    args: &'a EvalArgs,
    checkpoint: &'a Checkpoint,
    text: &'a TextModel,
}

impl Eval<'_> {
    fn judge<B: DraftOps>(&self, b: &mut B, lengths: &[usize]) -> Result<Vec<Part>, Failure> {
        let Eval { context, args, checkpoint, text } = self;
        let lengths = if args.lengths.is_empty() { lengths } else { &args.lengths };
        let longest = lengths.iter().copied().max().unwrap_or(0).max(CONSISTENCY);
        let samples = match (&args.reference, &args.against) {
            (Some(path), _) => Some(reference::read(path, checkpoint.spec().vocab)?),
            (None, Some(other)) => Some(self.read_with(b, other, lengths, longest)?),
            (None, None) => None,
        };
        let needed = samples.iter().flatten().map(|s| s.tokens.len()).max().unwrap_or(0).max(longest);
        let mut subject = Subject::open(b, checkpoint, needed + EVAL_ROOM)?;
        let mut parts = Vec::new();
        if let Some(samples) = &samples {
            context.note("reference logits");
            parts.push(reference_part(&mut subject, samples, args.against.as_deref())?);
        }
        if !skips(args, "consistency") {
            context.note("consistency");
            parts.push(consistency_part(&mut subject, &needles::prose(text, CONSISTENCY)?)?);
        }
        if !skips(args, "needles") {
            let mut cells = Vec::new();
            for length in lengths {
                context.note(&format!("needles in {length} tokens"));
                cells.extend(needles::measure(&mut subject, text, *length)?);
            }
            parts.push(needles_part(&cells));
        }
        Ok(parts)
    }

    /// Logits of another form of the weights, without a budget.
    fn read_with<B: DraftOps>(
        &self,
        b: &mut B,
        other: &str,
        lengths: &[usize],
        longest: usize,
    ) -> Result<Vec<reference::Sample>, Failure> {
        self.context.note(&format!("reading with {other}"));
        let texts = lengths.iter().map(|l| needles::prose(self.text, *l)).collect::<Result<Vec<_>, _>>()?;
        let reference = Checkpoint::open(other)?;
        let (theirs, vocab) = (reference.spec().vocab, self.checkpoint.spec().vocab);
        if theirs != vocab {
            let line = format!("it has {theirs} tokens, this model {vocab}; they are different models");
            return Err(failed(format!("--against {other}: {line}")));
        }
        reference::of(&mut Subject::open(b, &reference, longest + EVAL_ROOM)?, &texts)
    }
}

fn reference_part<B: Backend>(
    subject: &mut Subject<B>,
    samples: &[reference::Sample],
    against: Option<&str>,
) -> Result<Part, Failure> {
    let rows = reference::compare(subject, samples)?;
    let ok = against.is_none().then(|| within_budget(&rows, single(subject.b)));
    let head = "      tokens  rows    mean KLD     99% KLD same top  max diff";
    let mut lines = vec![against.map_or_else(|| head.to_owned(), |against| format!("{head}   against {against}"))];
    for r in &rows {
        let (mean, p99, top, diff) = (r.mean_kl, r.p99_kl, 100.0 * r.same_top, r.max_diff);
        lines.push(format!("    {:>8} {:>5} {mean:>11.2e} {p99:>11.2e} {top:>7.1}% {diff:>9.4}", r.length, r.rows));
    }
    let left_out = samples.len() - rows.len();
    if left_out > 0 {
        lines.push(format!("    left out, longer than the context: {}", counted(left_out as u64, "text")));
    }
    Ok(Part { name: "reference", ok, rows: lines, data: json!({"against": against, "lengths": rows}) })
}

fn within_budget(rows: &[Distances], single: bool) -> bool {
    let (mean, top) = if single { (1e-5, 0.98) } else { (0.01, 0.95) };
    // Written so that a NaN misses.
    !rows.is_empty() && rows.iter().all(|r| r.mean_kl <= mean && r.same_top >= top)
}

/// The difference that arithmetic alone may make to a log-probability that counts. Decoding never uses fp8.
fn slack<B: Backend>(subject: &Subject<B>) -> f64 {
    match subject.prefill {
        Precision::Fp8 => 4.0,
        Precision::Bf16 if single(subject.b) => 1e-2,
        Precision::Bf16 => 0.5,
    }
}

fn consistency_part<B: DraftOps>(subject: &mut Subject<B>, text: &[Token]) -> Result<Part, Failure> {
    let slack = slack(subject);
    let list = consistency::measure(subject, text, slack)?;
    let rows = list.iter().map(|check| format!("    {}", check.line())).collect();
    let ok = !list.iter().any(Check::missed);
    Ok(Part { name: "consistency", ok: Some(ok), rows, data: json!(list) })
}

fn needles_part(cells: &[needles::Cell]) -> Part {
    let (questions, found) = cells.iter().fold((0, 0), |(a, f), c| (a + c.questions, f + c.found));
    let ok = found as f64 >= FOUND * questions as f64;
    let mut rows = vec![format!("    {found} of {questions} found")];
    rows.extend(needles::table(cells));
    let data = json!({"asked": questions, "found": found, "cells": cells});
    Part { name: "needles", ok: Some(ok), rows, data }
}
