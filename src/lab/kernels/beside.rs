//! Several sequences in one pass on a device: each must keep every bit that it has alone.

use super::checks::{Checks, Outcome, words};
use super::subject::{Subject, prompt, same};
use crate::backend::prelude::*;
use crate::backend::{MAX_VERIFY_ROWS, MassOf, TopLogits};
use crate::engine::protocol::{TensorData, Token};
use crate::model::{Live, Sequence};

const PASSES: usize = 6;

struct Path {
    given: Vec<Token>,
    drafts: Vec<Token>,
    rows: usize,
}

impl Path {
    fn rows(&self, pass: usize) -> (&[Token], usize) {
        let at = pass * self.rows;
        (self.drafts.get(at..at + self.rows).unwrap_or_default(), (pass + self.rows).div_ceil(2).clamp(1, self.rows))
    }
}

/// The results of a sequence: top logits of every pass, states and rows, attention mass.
struct Trace {
    found: Vec<TopLogits>,
    bytes: Vec<(String, TensorData)>,
    mass: Vec<crate::backend::BlockMass>,
}

fn settle<B: Backend>(s: &mut Subject<B>, live: &mut Live<B>, accepted: usize) -> Result<(), String> {
    live.add_mass(&mut s.b, 0..accepted, MassOf::Answer).map_err(words)?;
    live.advance(&mut s.b, accepted).map_err(words)
}

fn trace<B: Backend>(s: &mut Subject<B>, live: &mut Live<B>, found: Vec<TopLogits>) -> Result<Trace, String> {
    let mass = live.mass(&mut s.b, MassOf::Answer).map_err(words)?;
    let end = live.export_end(&mut s.b).map_err(words)?;
    let rows = live.export_rows(&mut s.b, 0..live.position()).map_err(words)?;
    let bytes = rows.tensors.into_iter().chain(end.tensors).map(|t| (t.name, t.data)).collect();
    Ok(Trace { found, bytes, mass })
}

fn alone<B: Backend>(s: &mut Subject<B>, path: &Path) -> Result<Trace, String> {
    let mut live = s.live()?;
    s.read(&mut live, &path.given, usize::MAX)?;
    live.reset_mass(&mut s.b).map_err(words)?;
    let mut found = Vec::new();
    for pass in 0..PASSES {
        let (rows, accepted) = path.rows(pass);
        live.verify(&mut s.b, &s.model, rows).map_err(words)?;
        found.extend(live.top_logits(&mut s.b, rows.len()).map_err(words)?);
        settle(s, &mut live, accepted)?;
    }
    trace(s, &mut live, found)
}

/// All paths at once, in shared passes that they enter and leave one after the other.
fn together<B: Backend>(s: &mut Subject<B>, paths: &[Path]) -> Result<Vec<Trace>, String> {
    let mut live = s.live()?;
    let mut others: Vec<Sequence<B>> = Vec::new();
    for (i, path) in paths.iter().enumerate() {
        if i > 0 {
            let mut other = live.another(&mut s.b, &s.model).map_err(words)?;
            // Swaps the sequence read before out of `live`, so that `live` holds the new one.
            live.swap(&mut s.b, &mut other).map_err(words)?;
            others.push(other);
        }
        s.read(&mut live, &path.given, usize::MAX)?;
        live.reset_mass(&mut s.b).map_err(words)?;
    }
    // `live` holds the last sequence; `others` holds the ones before it, in order.
    let last = paths.len() - 1;
    let mut found: Vec<Vec<TopLogits>> = paths.iter().map(|_| Vec::new()).collect();
    for turn in 0..PASSES + last {
        // Sequence i joins in turn i and leaves after its last pass; the last one joins in turn 0.
        let pass_of = |i: usize| turn.checked_sub(if i == last { 0 } else { i }).filter(|p| *p < PASSES);
        let beside: Vec<usize> = (0..last).filter(|i| pass_of(*i).is_some()).collect();
        let own = pass_of(last).and_then(|p| paths.get(last).map(|path| path.rows(p)));
        let Some((own, accepted)) = own else {
            for i in beside {
                let (Some(other), Some(path), Some(pass)) = (others.get_mut(i), paths.get(i), pass_of(i)) else {
                    continue;
                };
                live.swap(&mut s.b, other).map_err(words)?;
                let (rows, accepted) = path.rows(pass);
                live.verify(&mut s.b, &s.model, rows).map_err(words)?;
                let top = live.top_logits(&mut s.b, rows.len()).map_err(words)?;
                found.get_mut(i).ok_or("no such sequence")?.extend(top);
                settle(s, &mut live, accepted)?;
                live.swap(&mut s.b, other).map_err(words)?;
            }
            continue;
        };
        let mut rows: Vec<(&mut Sequence<B>, &[Token])> = Vec::new();
        for (i, other) in others.iter_mut().enumerate() {
            if let (Some(pass), Some(path)) = (pass_of(i), paths.get(i)) {
                rows.push((other, path.rows(pass).0));
            }
        }
        live.verify_alongside(&mut s.b, &s.model, own, &mut rows).map_err(words)?;
        let all = own.len() + rows.iter().map(|(_, rows)| rows.len()).sum::<usize>();
        let mut top = live.top_logits(&mut s.b, all).map_err(words)?.into_iter();
        found.get_mut(last).ok_or("no such sequence")?.extend(top.by_ref().take(own.len()));
        settle(s, &mut live, accepted)?;
        for i in beside {
            let (Some(other), Some(path), Some(pass)) = (others.get_mut(i), paths.get(i), pass_of(i)) else { continue };
            let (rows, accepted) = path.rows(pass);
            found.get_mut(i).ok_or("no such sequence")?.extend(top.by_ref().take(rows.len()));
            live.swap(&mut s.b, other).map_err(words)?;
            settle(s, &mut live, accepted)?;
            live.swap(&mut s.b, other).map_err(words)?;
        }
    }
    let mut traces = Vec::with_capacity(paths.len());
    let mut found = found.into_iter();
    for mut other in others {
        live.swap(&mut s.b, &mut other).map_err(words)?;
        traces.push(trace(s, &mut live, found.next().unwrap_or_default())?);
        live.swap(&mut s.b, &mut other).map_err(words)?;
        Live::release(&mut s.b, other);
    }
    traces.push(trace(s, &mut live, found.next().unwrap_or_default())?);
    Ok(traces)
}

/// Compares shared passes with each sequence alone; `sequences` has (tokens read, rows of a pass) of each.
pub fn beside<B: Backend>(checks: &mut Checks, s: &mut Subject<B>, sequences: &[(usize, usize)]) {
    let rows: usize = sequences.iter().map(|(_, rows)| rows).sum();
    checks.add(format!("{} sequences with {rows} rows in a pass equal each alone", sequences.len()), || {
        if rows > MAX_VERIFY_ROWS {
            return Err(format!("{rows} rows; a pass takes {MAX_VERIFY_ROWS}"));
        }
        let vocab = s.model.spec().vocab;
        let mut tokens = prompt(vocab, sequences.iter().map(|(read, rows)| read + rows * PASSES).sum());
        let mut paths = Vec::new();
        for (read, rows) in sequences {
            let drafts = tokens.split_off(tokens.len() - rows * PASSES);
            let given = tokens.split_off(tokens.len() - read);
            paths.push(Path { given, drafts, rows: *rows });
        }
        let traces = together(s, &paths)?;
        for (i, (path, found)) in paths.iter().zip(&traces).enumerate() {
            let expected = alone(s, path)?;
            same(&found.found, &expected.found, &format!("sequence {i}"))?;
            for (a, b) in expected.bytes.iter().zip(&found.bytes) {
                if a != b {
                    return Err(format!("sequence {i}: {} differs afterwards", a.0));
                }
            }
            if expected.mass != found.mass || expected.bytes.len() != found.bytes.len() {
                return Err(format!("sequence {i}: its attention mass differs"));
            }
        }
        Ok(Outcome::Holds)
    });
}
