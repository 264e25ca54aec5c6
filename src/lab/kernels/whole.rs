//! The whole model on a device: against the CPU's text, and against itself where the design promises equal bits.

use anyhow::{Result, anyhow, bail, ensure};

use super::same_bits;
use crate::backend::cpu::Cpu;
use crate::backend::cuda::Cuda;
use crate::backend::prelude::*;
use crate::backend::{BlockMass, GRID, MAX_VERIFY_ROWS, MassOf, TopLogits, synthetic_value};
use crate::engine::protocol::{ImageTensor, Precision, StateImage, Token};
use crate::lab::checks::Checks;
use crate::lab::subject::Subject;
use crate::model::{Checkpoint, Live, Sequence};

const LIMIT: usize = 8192;
/// A greedy token may differ where the oracle's two best logits are closer than this: the sum of bf16 roundings up to
/// the logits.
const MARGIN: f32 = 0.15;

pub struct Plan {
    pub model: &'static str,
    pub read: usize,
    /// The same for prefill in fp8: longer than the first rows of a segment, which are in bf16.
    pub read_in_fp8: usize,
    /// Prompt lengths of the greedy texts; `steps` is the length of the texts.
    pub texts: &'static [usize],
    pub steps: usize,
    pub row_counts: &'static [usize],
    /// Groups of sequences in shared passes: (tokens read, rows) of each.
    pub groups: &'static [&'static [(usize, usize)]],
}

impl Plan {
    pub const DEVICE: Plan = Plan {
        model: "demo",
        read: 1000,
        read_in_fp8: 3000,
        texts: &[100, 3000],
        steps: 64,
        row_counts: &[2, 5, 8, 16],
        groups: &[&[(1000, 1), (1000, 1)], &[(70, 2), (5, 1), (5000, 5), (640, 3), (1, 4)], &SIXTEEN],
    };
}

/// One row each, after 100 to 6,850 tokens.
const SIXTEEN: [(usize, usize); 16] = {
    let (mut all, mut n) = ([(0, 1); 16], 0);
    while n < all.len() {
        all[n].0 = 100 + 450 * n;
        n += 1;
    }
    all
};

/// Runs all checks; `open` gives a fresh device each time.
pub fn run(checks: &mut Checks, mut open: impl FnMut() -> Result<Cuda, String>, plan: &Plan) {
    for (prefill, about) in [(Precision::Bf16, ""), (Precision::Fp8, " in fp8")] {
        let device = open().map_err(|e| anyhow!(e));
        if let Err(e) = device.and_then(|device| with(checks, plan, device, prefill)) {
            checks.add(format!("{} loads{about}", plan.model), || Err(e));
        }
    }
}

fn with(checks: &mut Checks, plan: &Plan, mut device: Cuda, prefill: Precision) -> Result<()> {
    let mut checkpoint = Checkpoint::open(plan.model)?;
    checkpoint.prefill = prefill;
    if prefill == Precision::Fp8 {
        // The text in fp8 is not compared with the CPU's: where the two differ by a rounding in bf16, some operands
        // differ by a step of e4m3.
        if device.has_fp8() {
            let mut device = Subject::open(&mut device, &checkpoint, LIMIT)?;
            however_it_is_cut(checks, &mut device, plan.read_in_fp8, " in fp8");
        }
        return Ok(());
    }
    let mut cpu = Cpu::new();
    let mut oracle = Subject::open(&mut cpu, &checkpoint, LIMIT)?;
    let mut device = Subject::open(&mut device, &checkpoint, LIMIT)?;
    for read in plan.texts {
        against_oracle(checks, &mut oracle, &mut device, *read, plan.steps);
    }
    steps_and_rows(checks, &mut device, plan.read, plan.row_counts);
    however_it_is_cut(checks, &mut device, plan.read, "");
    restored(checks, &mut device, plan.read);
    plan.groups.iter().for_each(|group| sequences(checks, &mut device, group));
    Ok(())
}

fn prompt<B: Backend>(s: &Subject<B>, n: usize) -> Vec<Token> {
    let vocab = s.model.spec().vocab as u32;
    (0..n as u64).map(|i| (synthetic_value(77, i, 1.0).to_bits() >> 4) % vocab).collect()
}

/// Reads a text from an empty state; its last top logits.
fn read<B: Backend>(s: &mut Subject<B>, tokens: &[Token], chunk: usize) -> Result<TopLogits> {
    s.reset()?;
    s.read(tokens, chunk)?;
    Ok(s.live.prefill_logits(s.b, &s.model)?)
}

fn same_logits(a: &[TopLogits], b: &[TopLogits], what: &str) -> Result<()> {
    let flat = |c: &TopLogits| [c.ids.iter().map(|id| *id as f32).collect(), c.logits.clone(), vec![c.log_sum_exp]];
    let flat = |all: &[TopLogits]| all.iter().flat_map(flat).flatten().collect::<Vec<f32>>();
    same_bits(&flat(a), &flat(b), format!("{what}: top logits"))
}

fn same_tensors(a: &[ImageTensor], b: &[ImageTensor], what: &str) -> Result<()> {
    ensure!(a.len() == b.len(), "{what}: {} tensors, {} expected", a.len(), b.len());
    let different = a.iter().zip(b).find(|(a, b)| a.name != b.name || a.data != b.data);
    different.map_or(Ok(()), |(a, _)| bail!("{what}: {} differs", a.name))
}

fn tensors(state: StateImage) -> Vec<ImageTensor> {
    state.rows.tensors.into_iter().chain(state.end.into_iter().flat_map(|end| end.tensors)).collect()
}

/// Greedy tokens, each with its lead over the second best logit.
fn greedy<B: Backend>(s: &mut Subject<B>, prompt: &[Token], n: usize) -> Result<Vec<(Token, f32)>> {
    let mut top = read(s, prompt, usize::MAX)?;
    let mut out = Vec::with_capacity(n);
    for _ in 0..n {
        let (token, lead) = match (top.ids.as_slice(), top.logits.as_slice()) {
            ([id, ..], [a, b, ..]) if a.is_finite() => (*id, a - b),
            _ => bail!("no finite top logits"),
        };
        out.push((token, lead));
        top = s.step(&[token], 1)?.pop().unwrap_or_default();
    }
    Ok(out)
}

fn against_oracle(checks: &mut Checks, oracle: &mut Subject<Cpu>, device: &mut Subject<Cuda>, read: usize, n: usize) {
    checks.add(format!("greedy text after {read} tokens equals the CPU's"), || {
        let prompt = prompt(device, read);
        let (expected, found) = (greedy(oracle, &prompt, n)?, greedy(device, &prompt, n)?);
        if let Some(at) = expected.iter().zip(&found).position(|(e, f)| e.0 != f.0) {
            let (lead, most) = (expected[at].1, MARGIN);
            ensure!(
                lead <= most,
                "token {at} of {n} differs, where the best leads by {lead:.3} (at most {most} may flip)"
            );
        }
        Ok(())
    });
}

fn steps_and_rows<B: Backend>(checks: &mut Checks, s: &mut Subject<B>, length: usize, row_counts: &[usize]) {
    checks.add(format!("verify of n rows equals n steps after {length} tokens"), || {
        let (text, drafts) = (prompt(s, length), prompt(s, 40).split_off(24));
        read(s, &text, usize::MAX)?;
        let mut single = Vec::new();
        for token in &drafts {
            single.extend(s.step(&[*token], 1)?);
        }
        let end = s.end()?;
        for rows in row_counts.iter().copied() {
            read(s, &text, usize::MAX)?;
            // Each twice, to cover eager, captured and replayed passes. Refused rows must leave no trace.
            let mut at = 0;
            while at < drafts.len() {
                let take = rows.min(drafts.len() - at);
                let accept = take.div_ceil(2);
                let found = s.step(&drafts[at..at + take], accept)?;
                same_logits(&found, &single[at..at + take], &format!("{rows} rows at {at}"))?;
                at += accept;
            }
            same_tensors(&s.end()?.tensors, &end.tensors, &format!("{rows} rows, state afterwards"))?;
        }
        Ok(())
    });
}

fn restored<B: Backend>(checks: &mut Checks, s: &mut Subject<B>, length: usize) {
    checks.add(format!("a state of {length} tokens restores its bits"), || {
        let (text, drafts) = (prompt(s, length), prompt(s, 8));
        read(s, &text, usize::MAX)?;
        s.step(&drafts[..4], 3)?;
        let state = s.export()?;
        let expected = s.step(&drafts[4..], 1)?;
        s.reset()?;
        s.restore(&state)?;
        same_logits(&s.step(&drafts[4..], 1)?, &expected, "after restore")?;
        Ok(())
    });
}

/// Checks that state and logits of a text keep their bits however it is cut into passes.
fn however_it_is_cut<B: Backend>(checks: &mut Checks, s: &mut Subject<B>, length: usize, about: &str) {
    checks.add(format!("prefill of {length} tokens{about} does not depend on the chunks"), || {
        let text = prompt(s, length);
        let whole = read(s, &text, usize::MAX)?;
        let expected = tensors(s.export()?);
        for chunk in [GRID, 3 * GRID] {
            let (cut, what) = (read(s, &text, chunk)?, format!("chunks of {chunk}"));
            same_logits(&[cut], std::slice::from_ref(&whole), &what)?;
            same_tensors(&tensors(s.export()?), &expected, &what)?;
        }
        Ok(())
    });
}

const PASSES: usize = 6;
/// Sequences enter in as many passes one after the other, and leave so.
const STAGGERED: usize = 3;

struct Path {
    prompt: Vec<Token>,
    drafts: Vec<Token>,
    rows: usize,
}

impl Path {
    /// The rows of a pass, and how many are accepted.
    fn rows(&self, pass: usize) -> (&[Token], usize) {
        let at = pass * self.rows;
        (self.drafts.get(at..at + self.rows).unwrap_or_default(), (pass + self.rows).div_ceil(2).clamp(1, self.rows))
    }
}

/// The results of a sequence: top logits of every pass, rows and state, attention mass.
struct Trace(Vec<TopLogits>, Vec<ImageTensor>, Vec<BlockMass>);

/// Runs `work` while `sequence` is the current one.
fn within<B: Backend, T>(
    s: &mut Subject<B>,
    sequence: &mut Sequence<B>,
    work: impl FnOnce(&mut Subject<B>) -> Result<T>,
) -> Result<T> {
    s.live.swap(s.b, sequence)?;
    let done = work(s);
    s.live.swap(s.b, sequence)?;
    done
}

/// The paths in shared passes. A path without others has passes of its own.
fn together<B: Backend>(s: &mut Subject<B>, paths: &[Path]) -> Result<Vec<Trace>> {
    let mut sequences: Vec<Sequence<B>> = Vec::new();
    for path in paths {
        let mut sequence = s.live.another(s.b, &s.model)?;
        within(s, &mut sequence, |s| {
            read(s, &path.prompt, usize::MAX)?;
            Ok(s.live.reset_mass(s.b)?)
        })?;
        sequences.push(sequence);
    }
    let mut top: Vec<Vec<TopLogits>> = paths.iter().map(|_| Vec::new()).collect();
    for turn in 0..PASSES + STAGGERED - 1 {
        let pass = |i: usize| turn.checked_sub(i % STAGGERED).filter(|pass| *pass < PASSES);
        let rows: Vec<Option<(&[Token], usize)>> =
            paths.iter().enumerate().map(|(i, path)| pass(i).map(|pass| path.rows(pass))).collect();
        let mut active = sequences.iter_mut().zip(&rows).filter_map(|(s, rows)| rows.map(|(rows, _)| (s, rows)));
        let Some((first, own)) = active.next() else { continue };
        let all = rows.iter().flatten().map(|(rows, _)| rows.len()).sum();
        let found = within(s, first, |s| {
            s.live.verify_alongside(s.b, &s.model, own, &mut active.collect::<Vec<_>>())?;
            Ok(s.live.top_logits(s.b, all)?)
        })?;
        let mut found = found.into_iter();
        for ((sequence, top), rows) in sequences.iter_mut().zip(&mut top).zip(rows) {
            let Some((rows, accepted)) = rows else { continue };
            top.extend(found.by_ref().take(rows.len()));
            within(s, sequence, |s| {
                s.live.add_mass(s.b, 0..accepted, MassOf::Answer)?;
                Ok(s.live.advance(s.b, accepted)?)
            })?;
        }
    }
    let mut traces = Vec::with_capacity(paths.len());
    for (mut sequence, top) in sequences.into_iter().zip(top) {
        let mass = |s: &mut Subject<B>| Ok((s.live.mass(s.b, MassOf::Answer)?, tensors(s.export()?)));
        let (mass, tensors) = within(s, &mut sequence, mass)?;
        traces.push(Trace(top, tensors, mass));
        Live::release(s.b, sequence);
    }
    Ok(traces)
}

/// Compares shared passes with each sequence alone; `sequences` has (tokens read, rows of a pass) of each.
fn sequences<B: Backend>(checks: &mut Checks, s: &mut Subject<B>, sequences: &[(usize, usize)]) {
    let rows: usize = sequences.iter().map(|(_, rows)| rows).sum();
    checks.add(format!("{} sequences with {rows} rows in a pass equal each alone", sequences.len()), || {
        ensure!(rows <= MAX_VERIFY_ROWS, "{rows} rows; a pass takes {MAX_VERIFY_ROWS}");
        let mut tokens = prompt(s, sequences.iter().map(|(read, rows)| read + rows * PASSES).sum());
        let path = |(read, rows): &(usize, usize)| {
            let drafts = tokens.split_off(tokens.len() - rows * PASSES);
            Path { prompt: tokens.split_off(tokens.len() - read), drafts, rows: *rows }
        };
        let paths: Vec<Path> = sequences.iter().map(path).collect();
        let found = together(s, &paths)?;
        for (i, (path, found)) in paths.chunks(1).zip(found).enumerate() {
            for expected in together(s, path)? {
                let what = format!("sequence {i}");
                same_logits(&found.0, &expected.0, &what)?;
                same_tensors(&found.1, &expected.1, &what)?;
                ensure!(expected.2 == found.2, "{what}: its attention mass differs");
            }
        }
        Ok(())
    });
}
