//! Several sequences in one pass on a device: each must keep every bit that it has alone.

use anyhow::{Result, ensure};

use super::checks::{Checks, Outcome};
use super::subject::{Subject, same_logits, same_tensors};
use crate::backend::prelude::*;
use crate::backend::{BlockMass, MAX_VERIFY_ROWS, MassOf, TopLogits};
use crate::engine::protocol::{ImageTensor, Token};
use crate::model::{Live, Sequence};

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
struct Trace {
    top: Vec<TopLogits>,
    tensors: Vec<ImageTensor>,
    mass: Vec<BlockMass>,
}

fn accept<B: Backend>(s: &mut Subject<B>, live: &mut Live<B>, rows: usize) -> Result<()> {
    live.add_mass(&mut s.b, 0..rows, MassOf::Answer)?;
    Ok(live.advance(&mut s.b, rows)?)
}

fn begin<B: Backend>(s: &mut Subject<B>, live: &mut Live<B>, path: &Path) -> Result<()> {
    s.read(live, &path.prompt, usize::MAX)?;
    Ok(live.reset_mass(&mut s.b)?)
}

fn trace<B: Backend>(s: &mut Subject<B>, live: &mut Live<B>, top: Vec<TopLogits>) -> Result<Trace> {
    let mass = live.mass(&mut s.b, MassOf::Answer)?;
    Ok(Trace { top, tensors: s.export(live)?, mass })
}

fn alone<B: Backend>(s: &mut Subject<B>, path: &Path) -> Result<Trace> {
    let mut live = s.live()?;
    begin(s, &mut live, path)?;
    let mut top = Vec::new();
    for pass in 0..PASSES {
        let (rows, accepted) = path.rows(pass);
        live.verify(&mut s.b, &s.model, rows)?;
        top.extend(live.top_logits(&mut s.b, rows.len())?);
        accept(s, &mut live, accepted)?;
    }
    trace(s, &mut live, top)
}

fn together<B: Backend>(s: &mut Subject<B>, paths: &[Path]) -> Result<Vec<Trace>> {
    let mut live = s.live()?;
    let mut sequences: Vec<Sequence<B>> = Vec::new();
    for path in paths {
        let mut sequence = live.another(&mut s.b, &s.model)?;
        live.swap(&mut s.b, &mut sequence)?;
        begin(s, &mut live, path)?;
        live.swap(&mut s.b, &mut sequence)?;
        sequences.push(sequence);
    }
    let mut top: Vec<Vec<TopLogits>> = paths.iter().map(|_| Vec::new()).collect();
    for turn in 0..PASSES + STAGGERED - 1 {
        let pass = |i: usize| turn.checked_sub(i % STAGGERED).filter(|pass| *pass < PASSES);
        let all = paths.iter().enumerate();
        let active: Vec<(usize, (&[Token], usize))> =
            all.filter_map(|(i, path)| pass(i).map(|pass| (i, path.rows(pass)))).collect();
        let Some((first, (own, _))) = active.first().copied() else { continue };
        live.swap(&mut s.b, &mut sequences[first])?;
        let others = sequences.iter_mut().enumerate().filter(|(i, _)| *i != first);
        let mut others: Vec<(&mut Sequence<B>, &[Token])> = others
            .filter_map(|(i, sequence)| active.iter().find(|a| a.0 == i).map(|(_, (rows, _))| (sequence, *rows)))
            .collect();
        live.verify_alongside(&mut s.b, &s.model, own, &mut others)?;
        let all = active.iter().map(|(_, (rows, _))| rows.len()).sum();
        let mut found = live.top_logits(&mut s.b, all)?.into_iter();
        for (i, (rows, accepted)) in active {
            top[i].extend(found.by_ref().take(rows.len()));
            if i != first {
                live.swap(&mut s.b, &mut sequences[i])?;
            }
            accept(s, &mut live, accepted)?;
            live.swap(&mut s.b, &mut sequences[i])?;
        }
    }
    let mut traces = Vec::with_capacity(paths.len());
    for (mut sequence, top) in sequences.into_iter().zip(top) {
        live.swap(&mut s.b, &mut sequence)?;
        traces.push(trace(s, &mut live, top)?);
        live.swap(&mut s.b, &mut sequence)?;
        Live::release(&mut s.b, sequence);
    }
    Ok(traces)
}

/// Compares shared passes with each sequence alone; `sequences` has (tokens read, rows of a pass) of each.
pub(super) fn check<B: Backend>(checks: &mut Checks, s: &mut Subject<B>, sequences: &[(usize, usize)]) {
    let rows: usize = sequences.iter().map(|(_, rows)| rows).sum();
    checks.add(format!("{} sequences with {rows} rows in a pass equal each alone", sequences.len()), || {
        ensure!(rows <= MAX_VERIFY_ROWS, "{rows} rows; a pass takes {MAX_VERIFY_ROWS}");
        let mut tokens = s.prompt(sequences.iter().map(|(read, rows)| read + rows * PASSES).sum());
        let path = |(read, rows): &(usize, usize)| {
            let drafts = tokens.split_off(tokens.len() - rows * PASSES);
            Path { prompt: tokens.split_off(tokens.len() - read), drafts, rows: *rows }
        };
        let paths: Vec<Path> = sequences.iter().map(path).collect();
        for (i, (path, found)) in paths.iter().zip(together(s, &paths)?).enumerate() {
            let (expected, what) = (alone(s, path)?, format!("sequence {i}"));
            same_logits(&found.top, &expected.top, &what)?;
            same_tensors(&found.tensors, &expected.tensors, &what)?;
            ensure!(expected.mass == found.mass, "{what}: its attention mass differs");
        }
        Ok(Outcome::Holds)
    });
}
