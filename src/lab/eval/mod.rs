//! `sala-chat eval`: numbers that show whether this machine runs the model as published.
//!
//! | part | question | file |
//! |---|---|---|
//! | reference | does it give the logits of the released code (`FILE`), or of another form of its weights (`--against`)? | `reference` |
//! | consistency | do prefill, decode, verify, saved state and speculation agree? | `consistency` |
//! | needles | does it fetch facts from any depth of long documents? | `needles` |
//! | looked | do right answers look at the lines that support them (`--looked`, alone)? | `looked` |
//!
//! The report names every check that misses its budget, and the exit code is then 1. Budgets: on a device that computes
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

use super::checks::{Check, report};
use super::clients::failed;
use super::report::joined;
use super::subject::Subject;
use crate::backend::Backend;
use crate::backend::draft::DraftOps;
use crate::cli::args::{EVAL_ROOM, EvalArgs};
use crate::cli::devices::{self, Opened};
use crate::cli::{Context, Exit, Failure, open};
use crate::core::counted;
use crate::engine::protocol::{Dtype, Token};
use crate::model::Checkpoint;
use crate::text::TextModel;

/// Tokens of the consistency part: enough that rows choose among blocks.
const CONSISTENCY: usize = 4_608;
/// Greatest share of needles that may be missing.
const LOST: f64 = 0.2;

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

/// Checks, tables for people, and the figures of `--json`.
#[derive(Default)]
struct Part {
    checks: Vec<Check>,
    lines: Vec<String>,
    figures: Value,
}

pub(super) fn run(context: &Context, args: &EvalArgs) -> Result<Exit, Failure> {
    if args.script {
        context.print(reference::SCRIPT.trim_end())?;
        return Ok(Exit::Ok);
    }
    let (model, parts) = match args.looked {
        true => (open::model(context)?.name, vec![looked::measure(context, &args.lengths)?]),
        false => judge(context, args)?,
    };
    let (mut checks, mut lines, mut figures) = (Vec::new(), Vec::new(), json!({"model": model}));
    for part in parts {
        checks.extend(part.checks);
        lines.extend(part.lines);
        figures = joined(figures, part.figures);
    }
    report(context, model, &checks, figures, lines)
}

/// The model's name, and the parts that are not skipped.
fn judge(context: &Context, args: &EvalArgs) -> Result<(String, Vec<Part>), Failure> {
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
    Ok((checkpoint.name().to_owned(), parts))
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
            let checks = consistency::measure(&mut subject, &needles::prose(text, CONSISTENCY)?)?;
            parts.push(Part { checks, ..Part::default() });
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
    let mut checks = Vec::new();
    if against.is_none() {
        let (mean, other) = if single(subject.b) { (1e-5, 0.02) } else { (0.01, 0.05) };
        for r in &rows {
            let (length, count) = (r.length, r.rows as f64);
            checks.push(Check::compared(format!("reference, {length} tokens: mean KLD"), r.mean_kl, mean));
            let name = format!("reference, {length} tokens: rows with another likeliest token");
            checks.push(Check::compared(name, (count * (1.0 - r.same_top)).round(), count * other));
        }
    }
    let left_out = samples.len() - rows.len();
    if left_out > 0 {
        let name = format!("reference: {} longer than the context", counted(left_out as u64, "text"));
        checks.push(Check { name, ok: rows.is_empty().then_some(false), ..Check::default() });
    }
    let head = "      tokens  rows    mean KLD     99% KLD same top  max diff";
    let mut lines = vec![against.map_or_else(|| head.to_owned(), |against| format!("{head}   against {against}"))];
    for r in &rows {
        let (mean, p99, top, diff) = (r.mean_kl, r.p99_kl, 100.0 * r.same_top, r.max_diff);
        lines.push(format!("    {:>8} {:>5} {mean:>11.2e} {p99:>11.2e} {top:>7.1}% {diff:>9.4}", r.length, r.rows));
    }
    Ok(Part { checks, lines, figures: json!({"against": against, "reference": rows}) })
}

fn needles_part(cells: &[needles::Cell]) -> Part {
    let (questions, found) = cells.iter().fold((0, 0), |(a, f), c| (a + c.questions, f + c.found));
    let lost = (questions - found) as f64 / questions as f64;
    let check = Check::compared(format!("share of {questions} needles that is not found"), lost, LOST);
    Part { checks: vec![check], lines: needles::table(cells), figures: json!({"needles": cells}) }
}
