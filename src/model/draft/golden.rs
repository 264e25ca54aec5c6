//! Replays the golden data of a draft head (`fixtures/eagle3`, see its README) on a backend.
//!
//! Each case runs twice: row by row, which shows every stream, and the way the program does it, keys and values only
//! up to the last row. Trees are not part of the program and not replayed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::backend::draft::DraftOps;
use crate::backend::{BackendError, BufKind, Pass, WeightView};
use crate::model::golden::{Check, Outcome};
use crate::model::{Checkpoint, ModelError, Tensors};
use crate::protocol::engine::{Dtype, ImageTensor, Token};
use crate::spec::{LightningSpec, Mixer, ModelSpec};

use super::{DraftError, DraftHead, DraftOptions, Result, Tables};

/// Streams, logits and cache rows may differ by this much in f32.
const BUDGET: f64 = 2e-4;

/// A case's files, opened.
struct Case<'a> {
    name: &'a str,
    io: Tensors,
    meta: Value,
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
        let worst = got
            .iter()
            .zip(want)
            .map(|(a, b)| f64::from((a - b).abs()))
            .fold(0.0, |m, e| if e > m || e.is_nan() { e } else { m });
        let error = if got.len() == want.len() && !worst.is_nan() { worst } else { f64::INFINITY };
        self.file(tensor, Outcome::Compared { error, budget: BUDGET });
    }

    fn check_list<T: PartialEq>(&mut self, list: &str, got: &[T], want: &[T]) {
        let error = if got == want { 0.0 } else { f64::INFINITY };
        self.file(list, Outcome::Compared { error, budget: 0.0 });
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

/// What a greedy chain of drafts showed.
#[derive(Default)]
struct Chain {
    tokens: Vec<f64>,
    probabilities: Vec<f32>,
    streams: Vec<f32>,
    logits: Vec<f32>,
}

fn chain<B: DraftOps>(
    b: &mut B,
    head: &mut DraftHead<B>,
    tables: &Tables<'_, B>,
    history: &[Token],
    depth: usize,
) -> Result<Chain> {
    let mut out = Chain::default();
    let mut row = head.extend(b, tables, history)?;
    for j in 0..depth {
        out.streams.extend(b.read(&head.bufs.stream, 1)?);
        out.logits.extend(b.read(&head.bufs.logits, 1)?);
        let (Some(&token), Some(&logit)) = (row.ids.first(), row.logits.first()) else {
            break;
        };
        out.tokens.push(f64::from(token));
        out.probabilities.push((logit - row.log_sum_exp).exp());
        if j + 1 < depth {
            row = head.step(b, tables, token)?;
        }
    }
    Ok(out)
}

/// A model's shape that a fixture's head fits.
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

/// Replays all cases of the folder that holds `index.json`, except `accept`, which concerns no device.
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
        let mut case =
            Case { name, io: Tensors::open_files(std::slice::from_ref(&io))?, meta: json(&meta)?, checks: Vec::new() };
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
    }
    let options = DraftOptions { window, ..DraftOptions::default() };
    let mut head =
        DraftHead::load(b, case.name, &config.to_string(), &Tensors::open_files(files)?, &target(&config)?, &options)?;
    // The fixtures' heads have tables of their own; a borrowed one is never read.
    let none = b.matrix(&[WeightView { name: "none", shape: &[1, 1], dtype: Dtype::F32, data: &[0; 4] }])?;
    run(b, &mut head, &Tables { embed: &none, head: &none }, case)
}

/// Verifying rows leaves the recurrent state alone; accepting some of them folds exactly those.
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
        data: Arc::new(start),
    };
    let mut state = b.recurrent(&spec)?;
    b.seek(0)?;
    b.write_state(&mut state, &spec, Some(&start))?;
    let mut x = b.buf(3 * width, BufKind::Activation)?;
    let mut o = b.buf(width, BufKind::Wide)?;
    b.write(&mut x, &mixed)?;
    b.set_tokens(&vec![0; rows])?;
    b.lightning(&mut o, &x, None, None, &mut state, &spec, 1e-6, pass)?;
    let got = b.read(&o, rows)?;
    case.check("chain_o", &got, &case.floats("out.chain_o")?);
    b.advance(pass, case.list("chain4_rows").len())?;
    b.fold(&mut state, &spec)?;
    b.folded();
    let got = values(&b.read_state(&state, &spec)?);
    case.check("committed_chain4", &got, &case.floats("out.committed_chain4")?);
    b.seek(0)?;
    Ok(())
}

fn run<B: DraftOps>(b: &mut B, head: &mut DraftHead<B>, tables: &Tables<'_, B>, case: &mut Case<'_>) -> Result<()> {
    let (tokens, aux) = (case.tokens("in.tokens")?, case.floats("in.aux")?);
    let (width, rows) = (head.tap_width(), tokens.len().saturating_sub(1));
    let depth = case.list("chain_tokens").len();
    let mut taps = b.draft_buf(rows.max(1), width, BufKind::Activation)?;

    // Row by row.
    head.reset(0);
    let mut streams = Vec::new();
    let mut row_tap = b.draft_buf(1, width, BufKind::Activation)?;
    for (p, tap) in aux.chunks_exact(width).enumerate() {
        b.write(&mut row_tap, tap)?;
        head.keep(b, tables, &row_tap, p, 1, &tokens)?;
        if p + 1 < rows {
            head.extend(b, tables, tokens.get(..p + 2).unwrap_or_default())?;
            streams.extend(b.read(&head.bufs.stream, 1)?);
        }
    }
    let drafted = chain(b, head, tables, &tokens, depth)?;
    if let Ok(want) = case.floats("out.prefill_stream") {
        streams.extend(drafted.streams.get(..head.config.shape.hidden).unwrap_or_default());
        case.check("prefill_stream", &streams, &want);
    }
    if let (Ok(k), Ok(v)) = (case.floats("out.cache_k"), case.floats("out.cache_v")) {
        let [got_k, got_v] = b.read_window(&head.window, &head.config.shape, 0..rows)?;
        case.check("cache_k", &values(&got_k), &k);
        case.check("cache_v", &values(&got_v), &v);
    }
    check_chain(case, "", &drafted)?;

    // As the program does it: keys and values of all rows but the last.
    head.reset(0);
    b.write(&mut taps, &aux)?;
    head.read(b, tables, &taps, 0, rows, tokens.get(..rows).unwrap_or_default(), 0)?;
    let drafted = chain(b, head, tables, &tokens, depth)?;
    check_chain(case, "kv_only ", &drafted)?;
    if let Ok(want) = case.floats("out.last_stream") {
        case.check("last_stream", drafted.streams.get(..want.len()).unwrap_or_default(), &want);
    }

    // Two drafts accepted and a bonus token: drafted rows are replaced.
    if let (Ok(next), Ok(aux)) = (case.tokens("in.round2_next_tokens"), case.floats("in.round2_aux")) {
        b.write(&mut taps, &aux)?;
        head.keep(b, tables, &taps, rows, next.len(), &tokens)?;
        let history: Vec<Token> = tokens.iter().chain(&next).copied().collect();
        let want = case.list("round2_chain_tokens");
        let drafted = chain(b, head, tables, &history, want.len())?;
        case.check_list("round2_chain_tokens", &drafted.tokens, &want);
        let probabilities: Vec<f32> = case.list("round2_chain_top1_prob").iter().map(|p| *p as f32).collect();
        case.check("round2_chain_top1_prob", &drafted.probabilities, &probabilities);
        let stream = case.floats("out.round2_stream")?;
        case.check("round2_stream", drafted.streams.get(..stream.len()).unwrap_or_default(), &stream);
    }
    Ok(())
}

fn check_chain(case: &mut Case<'_>, how: &str, drafted: &Chain) -> Result<()> {
    let want = case.list("chain_tokens");
    case.check_list(&format!("{how}chain_tokens"), &drafted.tokens, &want);
    let probabilities: Vec<f32> = case.list("chain_top1_prob").iter().map(|p| *p as f32).collect();
    case.check(&format!("{how}chain_top1_prob"), &drafted.probabilities, &probabilities);
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
