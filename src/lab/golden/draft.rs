//! Golden data of a draft head (`tests/fixtures/eagle3`, see its README).
//!
//! Each case runs twice: row by row, which shows every stream, and as the program does it, keys and values only up to
//! the last row. Chains continue with the golden drafts, so that rounding in a close choice does not end the
//! comparison. The program has no trees, so they are not replayed.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Fixture, Kind, Report, Result, max_error};
use crate::backend::draft::DraftOps;
use crate::backend::{BufKind, Form, Pass, WeightView};
use crate::core::spec::{Mixer, ModelSpec};
use crate::engine::protocol::{Dtype, Token};
use crate::lab::layers::{Lightning, Mode, Part, lightning_spec, numbers};
use crate::model::draft::{DraftError, DraftHead, DraftOptions, Tables};
use crate::model::{Checkpoint, ModelError, Tensors};

/// Probabilities may differ by this much in f32, and in bf16. A probability moves by at most a quarter of its logit's
/// change. Logits of RMS 4 within the budget of [`Kind::Draft`] move by 0.12, by 2.5 times that in the worst of a
/// chain; measured on an H200: 0.048 to 0.056.
const PROBABILITY: [f64; 2] = [2e-4, 0.08];
/// In bf16 another draft is allowed where its golden logit is this close to the best one, in standard deviations of
/// the row.
const HALF_CHOICE: f64 = 0.1;

struct Case<'a, 'f> {
    f: &'a mut Fixture<'f>,
    meta: Value,
}

/// Replays all cases of the folder that holds `index.json`, except `accept`, which uses no device.
pub(super) fn replay<B: DraftOps>(dir: &Path, b: &mut B, report: &mut Report) -> Result<()> {
    let index = json(&dir.join("index.json"))?;
    for (name, files) in index.get("cases").and_then(Value::as_object).into_iter().flatten() {
        let file = |key: &str| files.get(key).and_then(Value::as_str).map(|f| dir.join(f));
        let (Some(io), Some(meta)) = (file("io"), file("meta")) else { continue };
        report.fixture(&format!("eagle3/{name}"), &io, |f| {
            let mut case = Case { f, meta: json(&meta)? };
            match file("head") {
                Some(weights) => case.head(b, name, &[weights, io.clone()]).map_err(model_error),
                None => case.lightning(b),
            }
        })?;
    }
    Ok(())
}

fn model_error(error: DraftError) -> ModelError {
    match error {
        DraftError::Model(error) => error,
        DraftError::Backend(error) => error.into(),
        DraftError::Refused(_) => ModelError::Damaged { origin: "eagle3".into(), cause: error.to_string() },
    }
}

fn json(path: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(path).map_err(|cause| ModelError::File { path: path.into(), cause })?;
    let damaged =
        |e: serde_json::Error| ModelError::Damaged { origin: path.display().to_string(), cause: e.to_string() };
    serde_json::from_str(&text).map_err(damaged)
}

fn target(config: &Value) -> Result<ModelSpec> {
    let size = |key: &str, other: &str| {
        config.get(key).or_else(|| config.get(other)).and_then(Value::as_u64).unwrap_or(0) as usize
    };
    let mut spec = Checkpoint::open("demo")?.spec().clone();
    (spec.hidden, spec.vocab) = (size("target_hidden_size", "hidden_size"), size("vocab_size", "vocab_size"));
    spec.mixers = vec![Mixer::Lightning; 32];
    Ok(spec)
}

#[derive(Default)]
struct Chain {
    tokens: Vec<f64>,
    probabilities: Vec<f32>,
    streams: Vec<f32>,
    logits: Vec<f32>,
}

/// The greedy choices of a chain that continues with the golden drafts `along`.
fn chain<B: DraftOps>(
    b: &mut B,
    head: &mut DraftHead<B>,
    tables: &Tables<'_, B>,
    history: &[Token],
    along: &[f64],
) -> Result<Chain, DraftError> {
    let mut out = Chain::default();
    let mut row = head.extend(b, tables, history)?;
    for (j, fed) in along.iter().enumerate() {
        out.streams.extend(b.read(head.stream(), 1)?);
        out.logits.extend(b.read(head.logits(), 1)?);
        let (Some(&token), Some(&logit)) = (row.ids.first(), row.logits.first()) else { break };
        out.tokens.push(f64::from(token));
        // Of the golden draft, which may be a close second.
        let fed = *fed as Token;
        let logit = row.ids.iter().zip(&row.logits).find(|(id, _)| **id == fed).map_or(logit, |(_, logit)| *logit);
        out.probabilities.push((logit - row.log_sum_exp).exp());
        if j + 1 < along.len() {
            row = head.step(b, tables, fed)?;
        }
    }
    Ok(out)
}

/// Greatest gap between the best golden logit and that of the row's greedy choice, in standard deviations of the row.
fn worst_choice(golden: &[f32], found: &[f32], rows: usize) -> f64 {
    let width = golden.len() / rows.max(1);
    let row = |(golden, found): (&[f32], &[f32])| {
        let best = golden.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let chosen = found.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).and_then(|(i, _)| golden.get(i));
        let mean = golden.iter().map(|v| f64::from(*v)).sum::<f64>() / width.max(1) as f64;
        let square = golden.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / width.max(1) as f64;
        chosen.map_or(f64::INFINITY, |c| f64::from(best - c) / square.sqrt().max(f64::MIN_POSITIVE))
    };
    golden.chunks_exact(width.max(1)).zip(found.chunks_exact(width.max(1))).map(row).fold(0.0, f64::max)
}

impl Case<'_, '_> {
    fn list(&self, key: &str) -> Vec<f64> {
        let list = self.meta.get(key).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_f64).collect()
    }

    fn compare(&mut self, how: &str, tensor: &str, found: &[f32]) -> Result<()> {
        let golden = self.f.floats(&format!("out.{tensor}"))?;
        self.f.judge(&format!("{how}{tensor}"), Kind::Draft, found, &golden);
        Ok(())
    }

    /// Compares with the golden tensor `out.TENSOR`, if the case has it.
    fn check(&mut self, how: &str, tensor: &str, found: &[f32]) -> Result<()> {
        if self.f.has(&format!("out.{tensor}")) { self.compare(how, tensor, found) } else { Ok(()) }
    }

    /// Compares as many of the values as the golden tensor has.
    fn check_start(&mut self, how: &str, tensor: &str, found: &[f32]) -> Result<()> {
        let values = self.golden(tensor)?.map_or(0, |golden| golden.len());
        self.check(how, tensor, found.get(..values).unwrap_or_default())
    }

    fn golden(&self, tensor: &str) -> Result<Option<Vec<f32>>> {
        let name = format!("out.{tensor}");
        self.f.has(&name).then(|| self.f.floats(&name)).transpose()
    }

    fn check_probabilities(&mut self, how: &str, list: &str, found: &[f32]) {
        let golden: Vec<f32> = self.list(list).iter().map(|p| *p as f32).collect();
        let error = if found.len() == golden.len() { max_error(found, &golden) } else { f64::INFINITY };
        let budget = PROBABILITY[usize::from(!self.f.single)];
        self.f.add(&format!("{how}{list}"), error, budget);
    }

    /// Compares the greedy drafts with `list`. In bf16 a close second is allowed if the file has the golden logits.
    fn check_choices(&mut self, how: &str, list: &str, logits: &str, drafted: &Chain) -> Result<()> {
        let (golden, logits) = (self.list(list), self.golden(logits)?);
        let exact = drafted.tokens == golden;
        let close = !self.f.single && drafted.tokens.len() == golden.len();
        let (error, budget) = match logits {
            Some(logits) if close && !exact => (worst_choice(&logits, &drafted.logits, golden.len()), HALF_CHOICE),
            // Without golden logits only the probabilities along the golden drafts are compared.
            None if close => (0.0, 0.0),
            _ => (if exact { 0.0 } else { f64::INFINITY }, 0.0),
        };
        self.f.add(&format!("{how}{list}"), error, budget);
        Ok(())
    }

    fn check_chain(&mut self, how: &str, drafted: &Chain) -> Result<()> {
        self.check_choices(how, "chain_tokens", "chain_logits", drafted)?;
        self.check_probabilities(how, "chain_top1_prob", &drafted.probabilities);
        self.check(how, "chain_stream", &drafted.streams)?;
        self.check(how, "chain_logits", &drafted.logits)?;
        self.check_start(how, "prefill_logits_last", &drafted.logits)
    }

    fn head<B: DraftOps>(&mut self, b: &mut B, name: &str, files: &[PathBuf; 2]) -> Result<(), DraftError> {
        let mut config = json(Path::new(&files[0].to_string_lossy().replace("head.safetensors", "config.json")))?;
        let mut window = DraftOptions::default().window;
        if let (Some(used), Value::Object(config)) = (self.meta.get("config"), &mut config) {
            window =
                used.get("sliding_window").and_then(Value::as_u64).filter(|w| *w > 0).map_or(window, |w| w as usize);
            let flags = ["norm_before_residual", "fc_norm"].into_iter();
            config.extend(flags.filter_map(|f| used.get(f).map(|v| (f.to_string(), v.clone()))));
            // Descriptions of older cases claim `norm_output` for heads without it. The value in config.json holds,
            // except for the variant that sets the flag on the head of another case.
            if name == "variant_norm_output" {
                config.insert("norm_output".into(), Value::Bool(true));
            }
        }
        let options = DraftOptions { window, ..DraftOptions::default() };
        let tensors = Tensors::open_files(files)?;
        let mut head = DraftHead::load(b, name, &config.to_string(), &tensors, &target(&config)?, &options)?;
        // The fixtures' heads have tables of their own; a borrowed one is never read.
        let view =
            WeightView { name: "none", shape: &[1, 1], dtype: Dtype::F32, data: &[0; 4], file: None, form: Form::Bf16 };
        let none = b.matrix(&[view])?;
        self.run(b, &mut head, &Tables { embed: &none, head: &none })
    }

    fn run<B: DraftOps>(
        &mut self,
        b: &mut B,
        head: &mut DraftHead<B>,
        tables: &Tables<'_, B>,
    ) -> Result<(), DraftError> {
        let (tokens, aux) = (self.f.indices::<Token>("in.tokens")?, self.f.floats("in.aux")?);
        let (width, rows) = (head.config().aux_width(), tokens.len().saturating_sub(1));
        let along = self.list("chain_tokens");
        let mut aux_hidden = b.draft_buf(rows.max(1), width, BufKind::Activation)?;

        // Row by row.
        head.reset(0);
        let mut streams = Vec::new();
        let mut row_aux = b.draft_buf(1, width, BufKind::Activation)?;
        for (p, aux) in aux.chunks_exact(width).enumerate() {
            b.write(&mut row_aux, aux)?;
            head.keep(b, tables, &row_aux, 0..1, p, &tokens)?;
            if p + 1 < rows {
                head.extend(b, tables, tokens.get(..p + 2).unwrap_or_default())?;
                streams.extend(b.read(head.stream(), 1)?);
            }
        }
        let drafted = chain(b, head, tables, &tokens, &along)?;
        streams.extend(drafted.streams.get(..head.config().shape.hidden).unwrap_or_default());
        self.check("", "prefill_stream", &streams)?;
        if self.f.has("out.cache_k") {
            let [k, v] = b.read_window(head.window(), 0..rows)?;
            self.check("", "cache_k", &numbers(&k))?;
            self.check("", "cache_v", &numbers(&v))?;
        }
        self.check_chain("", &drafted)?;

        // As the program does it: keys and values of all rows but the last.
        head.reset(0);
        b.write(&mut aux_hidden, &aux)?;
        head.read(b, tables, &aux_hidden, 0, rows, tokens.get(..rows).unwrap_or_default(), 0)?;
        let drafted = chain(b, head, tables, &tokens, &along)?;
        self.check_chain("kv_only ", &drafted)?;
        self.check_start("", "last_stream", &drafted.streams)?;

        // Two accepted drafts and a bonus token: accepted rows replace the drafted ones.
        if self.f.has("in.round2_next_tokens") {
            let (next, aux) = (self.f.indices::<Token>("in.round2_next_tokens")?, self.f.floats("in.round2_aux")?);
            b.write(&mut aux_hidden, &aux)?;
            head.keep(b, tables, &aux_hidden, 0..next.len(), rows, &tokens)?;
            let history: Vec<Token> = tokens.iter().chain(&next).copied().collect();
            let drafted = chain(b, head, tables, &history, &self.list("round2_chain_tokens"))?;
            self.check_choices("", "round2_chain_tokens", "round2_chain_logits", &drafted)?;
            self.check_probabilities("", "round2_chain_top1_prob", &drafted.probabilities);
            let values = self.f.floats("out.round2_stream")?.len();
            self.compare("", "round2_stream", drafted.streams.get(..values).unwrap_or_default())?;
        }
        Ok(())
    }

    /// Verifying rows leaves the recurrent state unchanged; accepting some of them folds exactly those.
    fn lightning<B: DraftOps>(&mut self, b: &mut B) -> Result<()> {
        let [rows, heads, head_dim] = self.f.dims("in.q")?;
        let width = heads * head_dim;
        let (q, k, v) = (self.f.floats("in.q")?, self.f.floats("in.k")?, self.f.floats("in.v")?);
        let parts = q.chunks_exact(width).zip(k.chunks_exact(width)).zip(v.chunks_exact(width));
        let mixed: Vec<f32> = parts.flat_map(|((q, k), v)| [q, k, v].concat()).collect();
        let start = self.f.floats("in.S0")?;
        let mut layer = Lightning::new(b, lightning_spec(heads, head_dim, None), None, Some(&start))?;
        let part = Part { pass: Pass::Verify { rows }, at: 0, accepted: self.list("chain4_rows").len() };
        layer.run(b, 0, &mixed, &[part], Mode::Eager)?;
        self.compare("", "chain_o", &b.read(&layer.o, rows)?)?;
        self.compare("", "committed_chain4", &layer.end(b)?)?;
        Ok(b.seek(0)?)
    }
}
