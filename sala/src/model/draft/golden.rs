//! Replays the golden data of a draft head (`fixtures/eagle3`, see its README) on a backend.
//!
//! Each case runs twice: row by row, which shows every stream, and as the program does it, keys and values only up to
//! the last row. Chains continue with the golden drafts, so that rounding in a close choice does not end the
//! comparison. The program has no trees, so they are not replayed.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::backend::draft::DraftOps;
use crate::backend::{BackendError, BufKind, Form, Pass, WeightView};
use crate::core::spec::{LightningSpec, Mixer, ModelSpec};
use crate::engine::protocol::{Dtype, ImageTensor, Token};
use crate::model::verdict::{Check, Outcome, Precision, max_error, rms_ratio};
use crate::model::{Checkpoint, ModelError, Tensors};

use super::{DraftError, DraftHead, DraftOptions, Result, Tables};

/// Streams, logits, cache rows and probabilities may differ by this much in f32.
const BUDGET: f64 = 2e-4;
/// Streams, logits and cache rows in bf16: RMS of the difference over RMS of the golden values.
const HALF_RMS: f64 = 0.03;
/// Probabilities in bf16. A probability moves by at most a quarter of its logit's change. Logits of RMS 4 within
/// [`HALF_RMS`] move by 0.12, by 2.5 times that in the worst of a chain; measured on an H200: 0.048 to 0.056.
const HALF_PROBABILITY: f64 = 0.08;
/// In bf16 another draft is allowed where its golden logit is this close to the best one, in standard deviations of
/// the row.
const HALF_CHOICE: f64 = 0.1;

struct Case<'a> {
    name: &'a str,
    io: Tensors,
    meta: Value,
    precision: Precision,
    checks: Vec<Check>,
}

fn damaged(path: &Path, cause: impl ToString) -> DraftError {
    ModelError::Damaged { origin: path.display().to_string(), cause: cause.to_string() }.into()
}

fn json(path: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(path).map_err(|cause| ModelError::File { path: path.into(), cause })?;
    serde_json::from_str(&text).map_err(|e| damaged(path, e))
}

impl Case<'_> {
    fn floats(&self, name: &str) -> Result<Vec<f32>> {
        let (_, _, bytes) = self.io.raw(name)?;
        Ok(bytes.chunks_exact(4).filter_map(|b| b.try_into().ok().map(f32::from_le_bytes)).collect())
    }

    fn tokens(&self, name: &str) -> Result<Vec<Token>> {
        let (_, _, bytes) = self.io.raw(name)?;
        let ids = bytes.chunks_exact(8).filter_map(|b| b.try_into().ok().map(i64::from_le_bytes));
        Ok(ids.filter_map(|i| Token::try_from(i).ok()).collect())
    }

    fn check(&mut self, tensor: &str, got: &[f32], want: &[f32]) {
        let (error, budget) = match self.precision {
            _ if got.len() != want.len() => (f64::INFINITY, 0.0),
            Precision::Single => (max_error(got, want), BUDGET),
            Precision::Half => (rms_ratio(got, want), HALF_RMS),
        };
        self.file(tensor, Outcome::Compared { error, budget });
    }

    fn check_probabilities(&mut self, how: &str, list: &str, got: &[f32]) {
        let want: Vec<f32> = self.list(list).iter().map(|p| *p as f32).collect();
        let error = if got.len() == want.len() { max_error(got, &want) } else { f64::INFINITY };
        let budget = if self.precision == Precision::Single { BUDGET } else { HALF_PROBABILITY };
        self.file(&format!("{how}{list}"), Outcome::Compared { error, budget });
    }

    /// Compares the greedy drafts with `list`. In bf16 a close second is allowed if the file has the golden logits.
    fn check_choices(&mut self, how: &str, list: &str, logits: &str, drafted: &Chain) {
        let want = self.list(list);
        let exact = drafted.tokens == want;
        let (error, budget) = match (self.precision, self.floats(logits)) {
            (Precision::Half, Ok(golden)) if drafted.tokens.len() == want.len() && !exact => {
                (worst_choice(&golden, &drafted.logits, want.len()), HALF_CHOICE)
            }
            // Without golden logits only the probabilities along the golden drafts are compared.
            (Precision::Half, Err(_)) if drafted.tokens.len() == want.len() => (0.0, 0.0),
            _ => (if exact { 0.0 } else { f64::INFINITY }, 0.0),
        };
        self.file(&format!("{how}{list}"), Outcome::Compared { error, budget });
    }

    fn file(&mut self, tensor: &str, outcome: Outcome) {
        self.checks.push(Check { fixture: format!("eagle3/{}", self.name), tensor: tensor.into(), outcome });
    }

    fn list(&self, key: &str) -> Vec<f64> {
        self.meta
            .get(key)
            .and_then(Value::as_array)
            .map(|a| a.iter().filter_map(Value::as_f64).collect())
            .unwrap_or_default()
    }
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
) -> Result<Chain> {
    let mut out = Chain::default();
    let mut row = head.extend(b, tables, history)?;
    for (j, fed) in along.iter().enumerate() {
        out.streams.extend(b.read(&head.bufs.stream, 1)?);
        out.logits.extend(b.read(&head.bufs.logits, 1)?);
        let (Some(&token), Some(&logit)) = (row.ids.first(), row.logits.first()) else {
            break;
        };
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

fn target(config: &Value) -> Result<ModelSpec> {
    let size = |key: &str, other: &str| {
        config.get(key).or_else(|| config.get(other)).and_then(Value::as_u64).unwrap_or(0) as usize
    };
    let mut spec = Checkpoint::open("demo")?.spec().clone();
    (spec.hidden, spec.vocab) = (size("target_hidden_size", "hidden_size"), size("vocab_size", "vocab_size"));
    spec.mixers = vec![Mixer::Lightning; 32];
    Ok(spec)
}

fn values(image: &ImageTensor) -> Vec<f32> {
    let narrow = |b: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16);
    match image.dtype {
        Dtype::Bf16 => image.data.chunks_exact(2).map(narrow).collect(),
        Dtype::F32 | Dtype::U32 | Dtype::U8 => {
            image.data.chunks_exact(4).filter_map(|b| b.try_into().ok().map(f32::from_le_bytes)).collect()
        }
    }
}

/// Replays all cases of the folder that holds `index.json`, except `accept`, which uses no device.
///
/// # Errors
/// Unreadable files, a head that is refused, or a device that fails for another reason than not supporting a shape.
pub fn replay<B: DraftOps>(b: &mut B, dir: &Path) -> Result<Vec<Check>> {
    let index = json(&dir.join("index.json"))?;
    let mut checks = Vec::new();
    for (name, files) in index.get("cases").and_then(Value::as_object).into_iter().flatten() {
        let file = |key: &str| files.get(key).and_then(Value::as_str).map(|f| dir.join(f));
        let (Some(io), Some(meta)) = (file("io"), file("meta")) else {
            continue;
        };
        let mut case = Case {
            name,
            io: Tensors::open_files(std::slice::from_ref(&io))?,
            meta: json(&meta)?,
            precision: Precision::of(b),
            checks: Vec::new(),
        };
        let done = match file("head") {
            Some(weights) => replay_head(b, &mut case, &[weights, io]),
            None => replay_lightning(b, &mut case),
        };
        match done {
            Err(DraftError::Backend(BackendError::Unsupported(reason))) => case.file("*", Outcome::NotRun(reason)),
            other => other?,
        }
        checks.append(&mut case.checks);
    }
    Ok(checks)
}

fn replay_head<B: DraftOps>(b: &mut B, case: &mut Case<'_>, files: &[PathBuf; 2]) -> Result<()> {
    let mut config = json(Path::new(&files[0].to_string_lossy().replace("head.safetensors", "config.json")))?;
    let mut window = DraftOptions::default().window;
    if let (Some(used), Value::Object(config)) = (case.meta.get("config"), &mut config) {
        window = used.get("sliding_window").and_then(Value::as_u64).filter(|w| *w > 0).map_or(window, |w| w as usize);
        let flags = ["norm_before_residual", "fc_norm"].into_iter();
        config.extend(flags.filter_map(|f| used.get(f).map(|v| (f.to_string(), v.clone()))));
        // Descriptions of older cases claim `norm_output` for heads without it. The value in config.json holds, except
        // for the variant that sets the flag on the head of another case.
        if case.name == "variant_norm_output" {
            config.insert("norm_output".into(), Value::Bool(true));
        }
    }
    let options = DraftOptions { window, ..DraftOptions::default() };
    let mut head =
        DraftHead::load(b, case.name, &config.to_string(), &Tensors::open_files(files)?, &target(&config)?, &options)?;
    // The fixtures' heads have tables of their own; a borrowed one is never read.
    let none = b.matrix(&[WeightView {
        name: "none",
        shape: &[1, 1],
        dtype: Dtype::F32,
        data: &[0; 4],
        file: None,
        form: Form::Bf16,
    }])?;
    run(b, &mut head, &Tables { embed: &none, head: &none }, case)
}

/// Verifying rows leaves the recurrent state unchanged; accepting some of them folds exactly those.
fn replay_lightning<B: DraftOps>(b: &mut B, case: &mut Case<'_>) -> Result<()> {
    let number = |key: &str| case.meta.get(key).and_then(Value::as_f64).unwrap_or_default();
    let (heads, head_dim, rows) = (number("heads") as usize, number("dim") as usize, number("rows") as usize);
    let scale = number("scale") as f32;
    let spec = LightningSpec {
        heads,
        kv_heads: heads,
        head_dim,
        scale,
        rope_theta: None,
        qk_norm: false,
        output_norm: false,
        output_gate: false,
    };
    let (width, pass) = (heads * head_dim, Pass::Verify { rows });
    let (q, k, v) = (case.floats("in.q")?, case.floats("in.k")?, case.floats("in.v")?);
    let mut mixed = Vec::with_capacity(3 * q.len());
    for ((q, k), v) in q.chunks_exact(width).zip(k.chunks_exact(width)).zip(v.chunks_exact(width)) {
        mixed.extend([q, k, v].concat());
    }
    let start: Vec<u8> = case.floats("in.S0")?.iter().flat_map(|x| x.to_le_bytes()).collect();
    let start = ImageTensor {
        name: "state".into(),
        dtype: Dtype::F32,
        shape: vec![heads, head_dim, head_dim],
        data: start.into(),
    };
    let mut state = b.recurrent(&spec)?;
    b.seek(0)?;
    b.write_state(&mut state, Some(&start))?;
    let mut x = b.buf(3 * width, BufKind::Activation)?;
    let mut o = b.buf(width, BufKind::Wide)?;
    b.write(&mut x, &mixed)?;
    b.set_tokens(&vec![0; rows])?;
    b.lightning(&mut o, &x, None, None, &mut [&mut state], &spec, 1e-6, pass)?;
    let got = b.read(&o, rows)?;
    case.check("chain_o", &got, &case.floats("out.chain_o")?);
    b.advance(pass, case.list("chain4_rows").len())?;
    b.fold(&mut state, &spec)?;
    b.folded();
    let got = values(&b.read_state(&state)?);
    case.check("committed_chain4", &got, &case.floats("out.committed_chain4")?);
    b.seek(0)?;
    Ok(())
}

fn run<B: DraftOps>(b: &mut B, head: &mut DraftHead<B>, tables: &Tables<'_, B>, case: &mut Case<'_>) -> Result<()> {
    let (tokens, aux) = (case.tokens("in.tokens")?, case.floats("in.aux")?);
    let (width, rows) = (head.aux_width(), tokens.len().saturating_sub(1));
    let along = case.list("chain_tokens");
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
            streams.extend(b.read(&head.bufs.stream, 1)?);
        }
    }
    let drafted = chain(b, head, tables, &tokens, &along)?;
    if let Ok(want) = case.floats("out.prefill_stream") {
        streams.extend(drafted.streams.get(..head.config.shape.hidden).unwrap_or_default());
        case.check("prefill_stream", &streams, &want);
    }
    if let (Ok(k), Ok(v)) = (case.floats("out.cache_k"), case.floats("out.cache_v")) {
        let [got_k, got_v] = b.read_window(&head.window, 0..rows)?;
        case.check("cache_k", &values(&got_k), &k);
        case.check("cache_v", &values(&got_v), &v);
    }
    check_chain(case, "", &drafted)?;

    // As the program does it: keys and values of all rows but the last.
    head.reset(0);
    b.write(&mut aux_hidden, &aux)?;
    head.read(b, tables, &aux_hidden, 0, rows, tokens.get(..rows).unwrap_or_default(), 0)?;
    let drafted = chain(b, head, tables, &tokens, &along)?;
    check_chain(case, "kv_only ", &drafted)?;
    if let Ok(want) = case.floats("out.last_stream") {
        case.check("last_stream", drafted.streams.get(..want.len()).unwrap_or_default(), &want);
    }

    // Two accepted drafts and a bonus token: accepted rows replace the drafted ones.
    if let (Ok(next), Ok(aux)) = (case.tokens("in.round2_next_tokens"), case.floats("in.round2_aux")) {
        b.write(&mut aux_hidden, &aux)?;
        head.keep(b, tables, &aux_hidden, 0..next.len(), rows, &tokens)?;
        let history: Vec<Token> = tokens.iter().chain(&next).copied().collect();
        let drafted = chain(b, head, tables, &history, &case.list("round2_chain_tokens"))?;
        case.check_choices("", "round2_chain_tokens", "out.round2_chain_logits", &drafted);
        case.check_probabilities("", "round2_chain_top1_prob", &drafted.probabilities);
        let stream = case.floats("out.round2_stream")?;
        case.check("round2_stream", drafted.streams.get(..stream.len()).unwrap_or_default(), &stream);
    }
    Ok(())
}

fn check_chain(case: &mut Case<'_>, how: &str, drafted: &Chain) -> Result<()> {
    case.check_choices(how, "chain_tokens", "out.chain_logits", drafted);
    case.check_probabilities(how, "chain_top1_prob", &drafted.probabilities);
    for (tensor, got) in [("chain_stream", &drafted.streams), ("chain_logits", &drafted.logits)] {
        if let Ok(want) = case.floats(&format!("out.{tensor}")) {
            case.check(&format!("{how}{tensor}"), got, &want);
        }
    }
    if let Ok(want) = case.floats("out.prefill_logits_last") {
        case.check(&format!("{how}prefill_logits_last"), drafted.logits.get(..want.len()).unwrap_or_default(), &want);
    }
    Ok(())
}
