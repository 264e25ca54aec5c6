//! The checks of a plain `doctor`: terminal, folders, GPU, weights, disk, and the built-in model at work. Each gives a
//! sentence that says what is so and what to do next; only what keeps the program from working is a miss.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde_json::json;

use super::{Context, Exit, Failure, about, dirs, engines, hub, open};
use crate::backend::cpu::Cpu;
use crate::backend::prelude::*;
use crate::client::attach;
use crate::client::remote;
use crate::config::settings::{ModelConfig, ModelSource};
use crate::core::sanitize::sanitize_line;
use crate::core::{bytes, counted, plain_words};
use crate::model::quantize::kept_folders;
use crate::model::{Checkpoint, Live, Model};
use crate::store::{Access, Checked, RealDisk, Rescued, Store, StoreError};

const MISS: &str = "MISS";

#[derive(Serialize)]
struct Finding {
    check: &'static str,
    verdict: &'static str,
    text: String,
}

fn finding(check: &'static str, verdict: &'static str, text: impl Display) -> Finding {
    Finding { check, verdict, text: about::without_home(&plain_words(&text)) }
}

fn fine(check: &'static str, text: impl Display) -> Finding {
    finding(check, "ok", text)
}

fn note(check: &'static str, text: impl Display) -> Finding {
    finding(check, "note", text)
}

fn miss(check: &'static str, text: impl Display) -> Finding {
    finding(check, MISS, text)
}

pub(super) fn run(context: &Context) -> Result<Exit, Failure> {
    let program = format!("{}, {}; {}.", about::program(), about::system(), about::build());
    let dirs = &context.dirs;
    let mut findings = vec![fine("program", program), terminal()];
    findings.extend([folder("data", &dirs.data), folder("state", &dirs.state)]);
    findings.extend(database(context));
    findings.push(gpu(&context.config().model));
    findings.push(weights(context));
    findings.extend(server(context));
    findings.extend(shared(context));
    findings.push(disk(&dirs.data, open::limits(context).min_free_bytes));
    findings.extend(kept_weights(&dirs.kept_weights()));
    findings.push(model());
    findings.push(fine(
        "privacy",
        "No telemetry, no update check; the network is used only for a download that you ask for, and for a server that you name. State files contain your conversations; this wipes them: sala-chat prune --state --all",
    ));
    let ok = findings.iter().all(|f| f.verdict != MISS);
    let line = |f: &Finding| format!("{:>4} {:<9} {}", f.verdict, f.check, f.text);
    let text = || findings.iter().map(line).collect::<Vec<_>>().join("\n");
    context.result(|| json!({ "ok": ok, "checks": findings }), text)?;
    Ok(if ok { Exit::Ok } else { Exit::Failure })
}

fn terminal() -> Finding {
    if !std::io::stdout().is_terminal() {
        return note("terminal", "Output is not a terminal: the chat needs one, -p does not.");
    }
    let term = std::env::var("TERM").unwrap_or_default();
    match crossterm::terminal::size() {
        Ok((w, h)) if w < 40 || h < 10 => {
            note("terminal", format!("{term}, {w}x{h}: enlarge it to at least 40x10, or use --plain."))
        }
        Ok((w, h)) => fine("terminal", format!("{term}, {w}x{h}.")),
        Err(e) => note("terminal", format!("{term}, size unknown ({e}): --plain works everywhere.")),
    }
}

fn folder(what: &'static str, dir: &Path) -> Finding {
    let tried = dirs::make_private(dir)
        .and_then(|()| tempfile::Builder::new().prefix(".doctor").tempfile_in(dir))
        // A full disk still takes names, but no bytes.
        .and_then(|mut file| file.write_all(&[0; 4096]));
    let dir = dir.display();
    match tried {
        Ok(()) => fine(what, format!("{dir} can be written.")),
        Err(e) => miss(what, format!("{dir} cannot be written ({e}). Choose another with --data-dir.")),
    }
}

fn database(context: &Context) -> Option<Finding> {
    match context.dirs.data.exists().then(|| open::store_to_read(context))? {
        Ok(store) => match &store.access {
            Access::Writable => None,
            Access::ReadOnly { why } => Some(note("sessions", why.clone())),
        },
        Err(failure) => {
            let hint = failure.hint.map(|hint| format!(" {hint}.")).unwrap_or_default();
            Some(miss("sessions", format!("{}{hint}", failure.message)))
        }
    }
}

fn server(context: &Context) -> Option<Finding> {
    let options = match engines::remote(context) {
        Ok(options) => options?,
        Err(failure) => return Some(miss("server", failure.message)),
    };
    let key = if options.key.is_some() { "A key is sent." } else { "No key is sent." };
    Some(match remote::probe(&options) {
        Ok(answer) => fine("server", format!("{answer} {key}")),
        Err(line) => note("server", format!("{line} {key}")),
    })
}

fn shared(context: &Context) -> Option<Finding> {
    Some(match attach::look(&engines::place(context)).transpose()? {
        Ok(host) => fine("shared", format!("{host} runs; terminals use its model.")),
        Err(why) => note("shared", format!("{why}: terminals load their own model. Stop it and start it again.")),
    })
}

#[cfg(not(feature = "cuda"))]
fn gpu(_config: &ModelConfig) -> Finding {
    note("gpu", "This program was built without GPU support.")
}

#[cfg(feature = "cuda")]
fn gpu(config: &ModelConfig) -> Finding {
    use crate::backend::cuda::{Cuda, Options};

    let options = Options { most_bytes: config.max_gpu_memory.0, ..Options::default() };
    let device = match Cuda::open(config.gpu as usize, options) {
        Ok(device) => device,
        Err(e) => {
            let without = "You can read, search and export sessions, and use the built-in model: --demo";
            return note("gpu", format!("{e}. The full model cannot run here. {without}"));
        }
    };
    let (info, memory) = (device.info(), device.memory());
    let (version, free) = (info.driver_version, memory.total.saturating_sub(memory.used));
    let [total_gib, free_gib] = [memory.total, free].map(|bytes| bytes as f64 / f64::from(1u32 << 30));
    let mut text = format!(
        "{}, compute capability {}.{}, {total_gib:.1} GiB, {free_gib:.1} free, CUDA {}.{}; GEMMs of long prompts by {}, of short ones by {}.",
        info.name,
        info.capability / 10,
        info.capability % 10,
        version / 1000,
        version % 1000 / 10,
        device.gemm_library().unwrap_or("the program's own kernel"),
        device.own_gemm_kernel()
    );
    let source = hub::installed(config).map_or("synthetic:9b".to_owned(), |dir| dir.to_string_lossy().into_owned());
    if let Ok(model) = Checkpoint::open(&source) {
        let holds = crate::engine::fit::holds(&model, free, device.prefill_rows());
        text.push_str(&format!(" Of the 9B model, {holds}."));
    }
    text.extend(device.notes().iter().map(|note| format!(" Note: {note}.")));
    fine("gpu", text)
}

fn weights(context: &Context) -> Finding {
    let config = context.config();
    // The model that the settings or --model name, whatever else is on this computer.
    let (folder, otherwise) = match config.model_source() {
        ModelSource::Path(named) => {
            let otherwise = "Name another folder: model.source or --model";
            if let Err(e) = open::model(context) {
                return miss("weights", format!("{}. {otherwise}", e.message));
            }
            (PathBuf::from(named), otherwise)
        }
        _ => match hub::installed(&config.model) {
            Some(folder) => (folder, "Get it again: sala-chat model download"),
            None => {
                let get = "Get it: sala-chat model download. The built-in model works without.";
                return note("weights", format!("{} is not on this computer. {get}", config.model.repo));
            }
        },
    };
    let looked_at = || -> Result<String, Failure> {
        let c = Checkpoint::open_dir(&folder)?;
        c.check()?;
        let kept = c.kept()?.map_or_else(String::new, |kept| format!(" {kept}"));
        // A model without a tokenizer is no use either.
        open::text(&folder.to_string_lossy())?;
        Ok(format!("{} in {}, every tensor as config.json asks.{kept}", c.name(), folder.display()))
    };
    match looked_at() {
        Ok(text) => fine("weights", text),
        Err(e) => miss("weights", format!("{}. {otherwise}", e.message)),
    }
}

fn kept_weights(dir: &Path) -> Option<Finding> {
    let kept = kept_folders(dir);
    let all = bytes(kept.iter().map(|kept| kept.bytes).sum());
    let text = format!("{all} of packed weights in {} (faster starts). sala-chat prune removes them.", dir.display());
    (!kept.is_empty()).then(|| fine("kept", text))
}

fn disk(dir: &Path, reserve: u64) -> Finding {
    // The folder may not exist yet: its nearest parent is on the same disk.
    let at = dir.ancestors().find(|d| d.exists()).unwrap_or(Path::new("/"));
    let at_place = at.display();
    let free = match fs4::available_space(at) {
        Ok(free) => free,
        Err(e) => return note("disk", format!("free space at {at_place} is unknown ({e}).")),
    };
    let (free_bytes, kept) = (bytes(free), bytes(reserve));
    if free >= reserve.max(1 << 30) {
        return fine("disk", format!("{free_bytes} free at {at_place}."));
    }
    let why = format!("state is saved only above {kept} (sessions.min_free_gib), text always");
    note("disk", format!("{free_bytes} free at {at_place}; {why}. sala-chat prune frees space."))
}

/// The built-in model reads a few tokens and predicts: proof that this program computes here.
fn model() -> Finding {
    let start = std::time::Instant::now();
    let tried = (|| {
        let mut cpu = Cpu::new();
        let checkpoint = Checkpoint::open("demo")?;
        let model = Model::load(&mut cpu, &checkpoint, |_| {})?;
        let mut live = Live::new(&mut cpu, &model, 256, &[])?;
        let text: Vec<u32> = (5..69).collect();
        live.prefill(&mut cpu, &model, &text)?;
        live.advance(&mut cpu, text.len())?;
        let found = live.prefill_logits(&mut cpu, &model)?;
        Ok::<_, crate::model::ModelError>((found.log_sum_exp.is_finite() && !found.ids.is_empty(), cpu.describe()))
    })();
    match tried {
        Ok((true, device)) => {
            fine("model", format!("The built-in model computes on {device}, in {} ms.", start.elapsed().as_millis()))
        }
        Ok((false, device)) => {
            miss("model", format!("The built-in model gives no finite numbers on {device}. Please report this."))
        }
        Err(e) => miss("model", format!("The built-in model does not run: {e}")),
    }
}

#[derive(Serialize)]
struct Report {
    ok: bool,
    #[serde(skip)]
    root: String,
    #[serde(flatten)]
    checked: Checked,
    notes: Vec<String>,
}

/// `doctor --check`: checks the data directory, and repairs what it can. Exit code 7 when something stays damaged.
pub(super) fn check_data(context: &Context) -> Result<Exit, Failure> {
    let report = look(&context.dirs.data, || open::store(context))?;
    // The server's requests have a store of their own; its damage does not keep the conversations from being checked.
    let requests = open::folder_of_requests(context).map(|folder| {
        look(&folder, || open::store_of_requests(context)).unwrap_or_else(|e| {
            let checked = Checked { damaged: vec![e.to_string()], ..Checked::default() };
            Report::new(&folder, checked, &[])
        })
    });
    let whole = report.ok && requests.as_ref().is_none_or(|requests| requests.ok);
    let json = || {
        let mut all = json!(report);
        all["ok"] = whole.into();
        all["requests"] = json!(requests);
        all
    };
    let text = || [&report].into_iter().chain(&requests).flat_map(Report::lines).collect::<Vec<_>>().join("\n");
    context.result(json, text)?;
    Ok(if whole { Exit::Ok } else { Exit::Unreadable })
}

/// Makes a new database first where the old one cannot be opened.
fn look(root: &Path, open: impl FnOnce() -> Result<Arc<Store>, Failure>) -> Result<Report, Failure> {
    let (rescued, in_use) = match Store::rescue(root, &RealDisk) {
        Err(e @ StoreError::DamagedInUse { .. }) => (None, Some(e.to_string())),
        rescued => (rescued?, None),
    };
    let store = open().map_err(|e| in_use.clone().map_or(e, |message| Failure::new(Exit::InUse, message)))?;
    let mut checked = store.check()?;
    checked.repaired.splice(0..0, rescued.iter().map(Rescued::summary));
    checked.damaged.extend(rescued.iter().flat_map(Rescued::losses));
    checked.damaged.extend(in_use);
    Ok(Report::new(store.root(), checked, &store.notes))
}

impl Report {
    fn new(root: &Path, checked: Checked, notes: &[String]) -> Report {
        let short = |lines: &[String]| lines.iter().map(|line| about::without_home(line)).collect();
        let (repaired, damaged) = (short(&checked.repaired), short(&checked.damaged));
        let checked = Checked { repaired, damaged, ..checked };
        Report {
            ok: checked.damaged.is_empty(),
            root: about::without_home(&root.to_string_lossy()),
            checked,
            notes: short(notes),
        }
    }

    fn lines(&self) -> Vec<String> {
        let checked = &self.checked;
        let mut lines = vec![format!(
            "{}: {}, {} and {} looked at.",
            self.root,
            counted(checked.sessions, "session"),
            counted(checked.messages, "message"),
            counted(checked.states, "state file")
        )];
        lines.extend(checked.repaired.iter().map(|line| format!("repaired  {}", sanitize_line(line))));
        lines.extend(checked.damaged.iter().map(|line| format!("damaged   {}", sanitize_line(line))));
        if checked.repaired.is_empty() && checked.damaged.is_empty() {
            lines.push("Everything is as it was saved.".into());
        }
        lines
    }
}
