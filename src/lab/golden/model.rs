//! Golden data of whole models: one prefill with a probe in every layer, decoding after it, and the alternative rules.
//!
//! Alternatives only differ on late rows, so they restart from a state saved in the middle of the main run, which also
//! tests saving and restoring.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use crate::backend::{Backend, GRID};
use crate::core::spec::{DenseRule, Mixer, ScoreNorm};
use crate::engine::protocol::{CheckpointImage, Token};
use crate::lab::layer::numbers;

use super::{Golden, Kind, Outcome, Precision, Report, Result};
use crate::model::Seen;
use crate::model::{Checkpoint, Live, Model};

/// (golden tensor, tensor of its rows, rule, norm). The token rule agrees with the dense rule up to `dense_len` and starts
/// there from the dense state, so it follows the dense rule in this table.
const ALTERNATIVES: [(&str, &str, DenseRule, ScoreNorm); 6] = [
    ("logits_always_rows", "rows", DenseRule::Always, ScoreNorm::Level2),
    ("logits_token_rows", "rows", DenseRule::Token, ScoreNorm::Level2),
    ("logits_never_rows", "rows", DenseRule::AsSparse, ScoreNorm::Level2),
    ("logits_always_dense_late_rows", "late_rows", DenseRule::Always, ScoreNorm::Level2),
    ("logits_token_late_rows", "late_rows", DenseRule::Token, ScoreNorm::Level2),
    ("logits_lse_k1_late_rows", "late_rows", DenseRule::Call, ScoreNorm::Level1),
];

/// Greatest error of each layer's three sums: plain, of magnitudes, of squares. A layer that only one side has counts
/// as a miss.
fn checksum_errors(found: &BTreeMap<usize, [f64; 3]>, golden: &[f32]) -> Vec<(usize, f64)> {
    let layers = golden.len().div_ceil(3).max(found.keys().next_back().map_or(0, |last| last + 1));
    let error = |layer: usize| {
        let (Some(found), Some(golden)) = (found.get(&layer), golden.get(3 * layer..3 * layer + 3)) else {
            return f64::INFINITY;
        };
        // Relative to the sum of magnitudes, or of squares: the plain sum nearly cancels.
        let scale = [golden[1], golden[1], golden[2]].map(f64::from);
        let errors = (0..3).map(|j| (found[j] - f64::from(golden[j])).abs() / scale[j]);
        errors.fold(0.0, |worst, e| if e > worst || e.is_nan() { e } else { worst })
    };
    (0..layers).map(|layer| (layer, error(layer))).collect()
}

struct Replay<'a, B: Backend> {
    b: &'a mut B,
    model: Model<B>,
    live: Live<B>,
    golden: Golden,
    name: &'a str,
}

pub(super) fn replay<B: Backend>(dir: &Path, name: &str, b: &mut B, report: &mut Report) -> Result<()> {
    let golden = Golden::open(&dir.join("golden.safetensors"))?;
    let mut checkpoint = Checkpoint::open_dir(dir)?;
    // The fixtures follow the released code's rule.
    checkpoint.spec_mut().sparse.dense_rule = DenseRule::Call;
    let model = Model::load(b, &checkpoint, |_| ())?;
    let ids: Vec<Token> = golden.indices("input_ids")?.into_iter().map(|t| t as Token).collect();
    let live = Live::new(b, &model, ids.len() + 64, &[])?;
    let mut run = Replay { b, model, live, golden, name };
    let middle = run.main(&ids, report)?;
    run.decode(ids.len(), report)?;
    run.alternatives(&ids, &middle, report)?;
    run.incremental(&ids, report)
}

/// The probe's values at chosen rows, `[row][values]`, by golden tensor.
type Collected = BTreeMap<String, Vec<f32>>;

impl<B: Backend> Replay<'_, B> {
    /// Reads `ids[from..]`; passes each row's logits to `logits` and each pass's tensors to `seen`.
    fn read(
        &mut self,
        ids: &[Token],
        from: usize,
        seen: &mut dyn FnMut(&mut B, usize, usize, Seen<'_, B>) -> crate::backend::Result<()>,
        wanted: &dyn Fn(usize) -> bool,
        logits: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        let mut each = |row: usize, values: &[f32]| {
            logits(from + row, values);
            Ok(())
        };
        let mut watch =
            |b: &mut B, rows: std::ops::Range<usize>, what: Seen<'_, B>| seen(b, from + rows.start, rows.len(), what);
        let wanted = |row: usize| wanted(from + row);
        self.live.score(self.b, &self.model, &ids[from..], &wanted, &mut each, Some(&mut watch))
    }

    /// One prefill, everything compared. Returns the state at the last grid point before rows begin to choose.
    fn main(&mut self, ids: &[Token], report: &mut Report) -> Result<CheckpointImage> {
        let spec = self.model.spec().clone();
        let rows = self.golden.indices("rows")?;
        let every_row = self.golden.has("logits");
        let positions = "selected_rows_positions";
        let samples = if self.golden.has(positions) { self.golden.indices(positions)? } else { Vec::new() };
        let checked = self.golden.has("checksums");
        self.live.sparse_spec_mut().dense_rule = spec.sparse.for_call(ids.len());

        let collected: RefCell<Collected> = RefCell::default();
        let chosen: RefCell<BTreeMap<usize, Vec<Vec<Vec<u32>>>>> = RefCell::default();
        let sums: RefCell<BTreeMap<usize, [f64; 3]>> = RefCell::default();
        let add_sums = |slot: usize, values: &[f32]| {
            let mut sums = sums.borrow_mut();
            let [sum, abs, square] = sums.entry(slot).or_default();
            for v in values.iter().map(|v| f64::from(*v)) {
                (*sum, *abs, *square) = (*sum + v, *abs + v.abs(), *square + v * v);
            }
        };
        let sparse_spec = spec.sparse.clone();
        let mut seen = |b: &mut B, at: usize, count: usize, what: Seen<'_, B>| {
            let collect = |key: String, values: Vec<f32>| {
                let width = values.len() / count;
                let mut collected = collected.borrow_mut();
                let dst = collected.entry(key).or_default();
                for r in rows.iter().filter(|r| (at..at + count).contains(*r)) {
                    dst.extend_from_slice(&values[(r - at) * width..][..width]);
                }
            };
            match what {
                Seen::Embedding(h) => {
                    let values = b.read(h, count)?;
                    add_sums(0, &values);
                    collect("hidden.0".into(), values);
                }
                Seen::Hidden { layer, hidden } => {
                    let values = b.read(hidden, count)?;
                    add_sums(layer + 1, &values);
                    collect(format!("hidden.{}", layer + 1), values);
                }
                Seen::Mixer { layer, output, .. } => {
                    collect(format!("layer{layer}.attn_core_rows"), b.read(output, count)?)
                }
                Seen::Selection { layer, selection } => {
                    let blocks = b.read_selection(selection, &sparse_spec, count)?;
                    chosen.borrow_mut().entry(layer).or_default().extend(blocks);
                }
                Seen::Between { .. } | Seen::Middle { .. } => {}
            }
            Ok(())
        };
        let mut all_logits = Vec::new();
        let cut = (spec.sparse.topk * spec.sparse.block / GRID * GRID).min(ids.len() / GRID * GRID);
        let mut take = |row: usize, values: &[f32]| {
            add_sums(spec.mixers.len() + 1, values);
            if every_row || rows.contains(&row) {
                all_logits.extend_from_slice(values);
            }
        };
        let wanted = |row: usize| every_row || checked || rows.contains(&row);
        self.read(&ids[..cut], 0, &mut seen, &wanted, &mut take)?;
        let middle = self.live.export_end(self.b)?;
        self.read(ids, cut, &mut seen, &wanted, &mut take)?;

        let (collected, chosen, name) = (collected.into_inner(), chosen.into_inner(), self.name);
        let logits_name = if every_row { "logits" } else { "logits_rows" };
        report.compare(name, logits_name, Kind::Rows, &all_logits, &self.golden.floats(logits_name)?);
        let found = |key: &str| collected.get(key).map(Vec::as_slice).unwrap_or_default();
        let hidden_golden = self.golden.floats("hidden_rows")?;
        let per_layer = rows.len() * spec.hidden;
        for (i, golden) in hidden_golden.chunks_exact(per_layer).enumerate() {
            report.compare(name, &format!("hidden_rows[{i}]"), Kind::Rows, found(&format!("hidden.{i}")), golden);
        }
        for (layer, mixer) in spec.mixers.iter().enumerate() {
            let key = format!("layer{layer}.attn_core_rows");
            let kind = if *mixer == Mixer::Lightning { Kind::State } else { Kind::Attention };
            report.compare(name, &key, kind, found(&key), &self.golden.floats(&key)?);
        }
        if checked && report.precision == Precision::Single {
            for (i, error) in checksum_errors(&sums.into_inner(), &self.golden.floats("checksums")?) {
                report.file(name, &format!("checksums[{i}]"), Outcome::Compared { error, budget: 1e-5 });
            }
        }
        for (layer, chosen) in &chosen {
            let pick =
                |rows: &[usize]| rows.iter().map(|r| chosen.get(*r).cloned().unwrap_or_default()).collect::<Vec<_>>();
            let everything: Vec<usize> = (0..ids.len()).collect();
            for (tensor, rows) in [("selected", &everything), ("selected_rows", &rows), ("selected_sample", &samples)] {
                let key = format!("layer{layer}.{tensor}");
                if self.golden.has(&key) {
                    report.selections(name, &key, &pick(rows), &self.golden.selected(&key)?, |_, _| None);
                }
            }
        }
        self.caches(ids.len(), report)?;
        Ok(middle)
    }

    fn caches(&mut self, length: usize, report: &mut Report) -> Result<()> {
        let name = self.name;
        for image in self.live.export_rows(self.b, 0..length)?.tensors {
            let Some((part, layer)) = image.name.split_once('.') else { continue };
            let key = format!("layer{layer}.cache_{part}_tail");
            if self.golden.has(&key) {
                let (found, golden) = (numbers(&image), self.golden.floats(&key)?);
                report.compare(name, &key, Kind::Rows, &found[found.len().saturating_sub(golden.len())..], &golden);
            }
        }
        self.states("state", report)
    }

    fn states(&mut self, suffix: &str, report: &mut Report) -> Result<()> {
        for image in self.live.export_end(self.b)?.tensors {
            let key = format!("layer{}.{suffix}", image.name.trim_start_matches("state."));
            if self.golden.has(&key) {
                report.compare(self.name, &key, Kind::State, &numbers(&image), &self.golden.floats(&key)?);
            }
        }
        Ok(())
    }

    fn decode(&mut self, length: usize, report: &mut Report) -> Result<()> {
        if !self.golden.has("decode_ids") {
            return Ok(());
        }
        debug_assert_eq!(self.live.position(), length);
        self.live.sparse_spec_mut().dense_rule = DenseRule::Token;
        let (mut logits, mut chosen) = (Vec::new(), Vec::new());
        for id in self.golden.indices("decode_ids")? {
            logits.extend(self.step(id as Token)?);
            if let Some(selection) = self.live.selection() {
                // All sparse layers share the buffer: it holds the last layer's choice.
                chosen.extend(self.b.read_selection(selection, self.live.sparse_spec(), 1)?);
            }
        }
        report.compare(self.name, "decode_logits", Kind::Rows, &logits, &self.golden.floats("decode_logits")?);
        if let Some(layer) = self.model.spec().mixers.iter().rposition(|m| *m == Mixer::Sparse) {
            let key = format!("layer{layer}.decode_selected");
            report.selections(self.name, &key, &chosen, &self.golden.selected(&key)?, |_, _| None);
        }
        Ok(())
    }

    fn step(&mut self, token: Token) -> Result<Vec<f32>> {
        self.live.verify(self.b, &self.model, &[token])?;
        let mut logits = self.live.logits(self.b, 1)?;
        logits.truncate(self.model.spec().vocab);
        self.live.advance(self.b, 1)?;
        Ok(logits)
    }

    fn alternatives(&mut self, ids: &[Token], middle: &CheckpointImage, report: &mut Report) -> Result<()> {
        let start = usize::try_from(middle.position).unwrap_or(0);
        // The last grid point up to which the token rule equals the dense one, and the dense state there.
        let fork = (self.live.sparse_spec().dense_len.saturating_sub(1) / GRID * GRID).clamp(start, ids.len());
        let mut dense: Option<(CheckpointImage, Vec<f32>)> = None;
        for (tensor, rows, rule, norm) in ALTERNATIVES {
            if !self.golden.has(tensor) {
                continue;
            }
            let rows = self.golden.indices(rows)?;
            let late: Vec<usize> = rows.iter().copied().filter(|r| *r >= start).collect();
            let (mut at, mut found) = match (rule, dense.take()) {
                (DenseRule::Token, Some((end, found))) => {
                    self.live.restore(self.b, fork, &[], Some(&end))?;
                    (fork, found)
                }
                (_, _) => {
                    self.live.restore(self.b, start, &[], Some(middle))?;
                    (start, Vec::new())
                }
            };
            self.live.sparse_spec_mut().dense_rule = rule;
            self.live.sparse_spec_mut().dense_rule = self.live.sparse_spec().for_call(ids.len());
            self.live.sparse_spec_mut().score_norm = norm;
            for end in [fork, ids.len()] {
                self.read(&ids[..end], at, &mut |_, _, _, _| Ok(()), &|r| late.contains(&r), &mut |_, l| {
                    found.extend_from_slice(l)
                })?;
                at = end;
                if end == fork && rule == DenseRule::Always {
                    dense = Some((self.live.export_end(self.b)?, found.clone()));
                }
            }
            self.live.sparse_spec_mut().score_norm = ScoreNorm::Level2;
            let golden = self.golden.floats(tensor)?;
            // Earlier rows choose every block under every rule: the main run has compared them.
            let vocab = self.model.spec().vocab;
            let skipped = (rows.len() - late.len()) * vocab;
            let golden = golden.get(skipped..).unwrap_or_default();
            report.compare(self.name, tensor, Kind::Rows, &found, golden);
        }
        Ok(())
    }

    fn incremental(&mut self, ids: &[Token], report: &mut Report) -> Result<()> {
        if !self.golden.has("logits_incremental") {
            return Ok(());
        }
        const PREFILL: usize = 100;
        let golden = self.golden.floats("logits_incremental")?;
        let length = golden.len() / self.model.spec().vocab;
        self.live.reset(self.b)?;
        self.live.sparse_spec_mut().dense_rule = DenseRule::Call;
        self.live.sparse_spec_mut().dense_rule = self.live.sparse_spec().for_call(PREFILL);
        let mut found = Vec::new();
        self.read(&ids[..PREFILL], 0, &mut |_, _, _, _| Ok(()), &|_| true, &mut |_, l| found.extend_from_slice(l))?;
        self.live.sparse_spec_mut().dense_rule = DenseRule::Token;
        for id in &ids[PREFILL..length] {
            let logits = self.step(*id)?;
            found.extend(logits);
        }
        report.compare(self.name, "logits_incremental", Kind::Rows, &found, &golden);
        self.states("state_incremental", report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_without_checksums_misses() {
        let golden = [1.0, 2.0, 4.0, 3.0, 5.0, 7.0];
        let both = [(0, [1.0, 2.0, 4.0]), (1, [3.0, 5.0, 7.0])];
        let errors =
            |found: &[(usize, [f64; 3])], golden: &[f32]| checksum_errors(&found.iter().copied().collect(), golden);
        assert_eq!(errors(&both, &golden), [(0, 0.0), (1, 0.0)]);
        assert_eq!(errors(&both[1..], &golden), [(0, f64::INFINITY), (1, 0.0)]);
        assert_eq!(errors(&both[..1], &golden), [(0, 0.0), (1, f64::INFINITY)]);
        assert_eq!(errors(&both, &golden[..3]), [(0, 0.0), (1, f64::INFINITY)], "one more than there should be");
        assert!(errors(&[(0, [f64::NAN, 2.0, 4.0])], &golden[..3])[0].1.is_nan());
    }
}
