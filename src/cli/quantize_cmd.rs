//! `sala-chat model quantize`: packs a folder's weights once, into a folder that loads like any other.

use std::path::Path;

use super::args::TuningArgs;
use super::devices::{self, Opened};
use super::signals::Ending;
use super::{Context, Exit, Failure, open};
use crate::backend::Backend;
use crate::core::sanitize::sanitize_line;
use crate::core::{bytes, grouped};
use crate::engine::protocol::{BUILT_IN, Cancel, Precision, Token, is_folder};
use crate::model::calibrate::{self, Statistics, collect};
use crate::model::draft::FOLDER;
use crate::model::quantize::{Calibration, Claim, Holds, Part, free_bytes, holds, is_finished, quantize};
use crate::model::{Checkpoint, DEMO_FILES, Recipe};
use crate::runtime::render::safe_name;
use crate::text::sources::Document;

const SPARE_BYTES: u64 = 256 << 20;
const OTHER_FILE_BYTES: u64 = 256 << 20;

fn cost(part: &Part) -> String {
    match part.errors.outputs {
        None => format!("squared error {:.4} %", part.errors.weights * 100.0),
        Some([plain, careful]) => {
            format!("squared error of its outputs {:.4} %, {:.4} % without calibration", careful * 100.0, plain * 100.0)
        }
    }
}

/// `calibrate`: `Some(None)` uses the built-in text, `Some(path)` these documents.
pub(super) fn run(
    context: &Context,
    folder: &Path,
    to: Recipe,
    calibrate: Option<Option<&Path>>,
    output: &Path,
) -> Result<Exit, Failure> {
    let name = folder.to_string_lossy();
    if name != BUILT_IN && !is_folder(&name) {
        let text = format!("{name}: random weights change at every start; there is nothing to pack");
        return Err(Failure::new(Exit::Usage, text).hint("Name a model folder"));
    }
    let mut source = Checkpoint::open(&name)?;
    source.recipe = to;
    let texts = calibrate.map(|docs| texts(context, &name, docs)).transpose()?;
    let id = texts.as_ref().map_or_else(|| source.fingerprint(), |texts| calibrate::identity(&source, texts));
    refuse_place(&source, output)?;
    // Held to the end, so that no other process changes the folder.
    let claim = Claim::take(output)?;
    refuse_content(&source, &id, output)?;
    if is_finished(output)? {
        let (name, form, out) = (source.name(), source.recipe.name(), output.display());
        return context.result(
            || serde_json::json!({ "path": output, "bytes": already(output), "weights": form, "parts": [] }),
            || format!("{name} is packed as {form} weights in {out} already. Check it: sala-chat model verify --model {out}"),
        );
    }
    let head_bytes = source.directory().map_or(0, |from| already(&from.join(FOLDER)));
    let needed = source.bytes(source.recipe) + head_bytes + SPARE_BYTES;
    if let Some(free) = free_bytes(output).filter(|free| free + already(output) < needed) {
        let text = format!("{} needs {}, {} are free there", output.display(), bytes(needed), bytes(free));
        return Err(Failure::new(Exit::Disk, text).hint("Free space, or choose a folder on a larger disk"));
    }
    let stop = Cancel::default();
    let stopper = stop.clone();
    let ending = Ending::watch(move || stopper.cancel())?;
    let statistics = texts.as_ref().map(|texts| statistics(context, &name, texts, &stop));
    let statistics = statistics.transpose().map_err(|e| ending.by_signal(e))?;
    let calibration = statistics.as_ref().map(|statistics| Calibration { id: &id, statistics });
    let mut parts: Vec<Part> = Vec::new();
    let mut progress = |part: &Part| {
        let (size, cost) = (bytes(part.bytes), cost(part));
        context.note(&format!("{} of {}: {}, {size}, {cost}", part.number, part.of, part.name));
        parts.push(part.clone());
    };
    let Some(index) = quantize(&source, calibration.as_ref(), &claim, &stop, &mut progress)? else {
        let text = format!("stopped after {} of its parts", parts.len());
        return Err(ending.by_signal(Failure::new(Exit::Stopped, text).hint("The same command begins again")));
    };
    match source.directory() {
        Some(from) => {
            copy_other_files(from, output, |name| !is_weights(name))?;
            let head = from.join(FOLDER);
            if head.is_dir() {
                std::fs::create_dir_all(output.join(FOLDER))?;
                copy_other_files(&head, &output.join(FOLDER), |_| true)?;
            }
        }
        None => {
            std::fs::create_dir_all(output.join(FOLDER))?;
            for (place, bytes) in DEMO_FILES {
                std::fs::write(output.join(place), bytes)?;
            }
        }
    }
    index.write()?;
    report(context, &source, output, index.bytes, &parts)
}

fn report(context: &Context, source: &Checkpoint, output: &Path, total: u64, parts: &[Part]) -> Result<Exit, Failure> {
    let worst = parts.iter().fold(0f64, |worst, part| worst.max(part.errors.weights));
    let outputs: Vec<[f64; 2]> = parts.iter().filter_map(|part| part.errors.outputs).collect();
    let mean = |i: usize| 100.0 * outputs.iter().filter_map(|o| o.get(i)).sum::<f64>() / outputs.len() as f64;
    context.result(
        || {
            let part = |p: &Part| {
                let [plain, careful] = p.errors.outputs.map_or([None, None], |o| o.map(Some));
                serde_json::json!({
                    "part": p.name, "bytes": p.bytes, "squared_error": p.errors.weights,
                    "output_error": careful, "output_error_uncalibrated": plain,
                })
            };
            let parts: serde_json::Value = parts.iter().map(part).collect();
            serde_json::json!({ "path": output, "bytes": total, "weights": source.recipe.name(), "parts": parts })
        },
        || {
            // The loss of an earlier packing is unknown.
            let of = source.published().map_or(String::new(), |form| format!(" (of weights packed before: {form})"));
            let lost = if outputs.is_empty() {
                format!("squared error of a part at most {:.4} %", worst * 100.0)
            } else {
                format!("squared error of outputs {:.4} %, {:.4} % without calibration", mean(1), mean(0))
            };
            let (name, form, out, total) = (source.name(), source.recipe.name(), output.display(), bytes(total));
            format!("{name} as {form} weights in {out}: {total}, {lost}{of}. Use it: sala-chat --model {out}")
        },
    )
}

fn refuse_place(source: &Checkpoint, output: &Path) -> Result<(), Failure> {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    if source.directory().and_then(real).is_some_and(|from| Some(from) == real(output)) {
        return Err(Failure::usage("-o is the folder itself; name another one".to_owned()));
    }
    if output.exists() && !output.is_dir() {
        let text = format!("{} is a file; the packed weights go to a folder", output.display());
        return Err(Failure::new(Exit::Usage, text).hint("Name a new one (-o FOLDER)"));
    }
    Ok(())
}

fn refuse_content(source: &Checkpoint, id: &str, output: &Path) -> Result<(), Failure> {
    let what = match holds(source, id, output) {
        Holds::Free => return Ok(()),
        Holds::OtherForm(format) => format!("this model as {} weights", sanitize_line(&format)),
        Holds::OtherCalibration { calibrated: true } => "this model packed with another calibration".to_owned(),
        Holds::OtherCalibration { calibrated: false } => "this model packed without calibration".to_owned(),
        Holds::Unsaid => "another model, or this one packed otherwise".to_owned(),
        Holds::Other => "another model".to_owned(),
        Holds::Files(name) => {
            let text = format!("{} holds other files ({})", output.display(), sanitize_line(&name));
            return Err(Failure::new(Exit::Usage, text).hint("Name a new or empty folder (-o FOLDER)"));
        }
    };
    let text = format!("{} holds {what}", output.display());
    Err(Failure::new(Exit::Usage, text).hint("Name a new folder (-o FOLDER), or remove that one first"))
}

fn already(output: &Path) -> u64 {
    let entries = std::fs::read_dir(output).into_iter().flatten().flatten();
    entries.filter_map(|e| e.metadata().ok()).filter(|m| m.is_file()).map(|m| m.len()).sum()
}

fn is_weights(name: &str) -> bool {
    name.contains(".safetensors") || name == "config.json" || name == "hf_quant_config.json"
}

/// Copies tokenizer, template and licence; of a draft head also the weights.
fn copy_other_files(from: &Path, to: &Path, wanted: impl Fn(&str) -> bool) -> Result<(), Failure> {
    for entry in std::fs::read_dir(from)?.flatten() {
        let name = entry.file_name();
        let text = name.to_string_lossy().into_owned();
        // Follows links: the hub's cache consists of them.
        let Ok(meta) = std::fs::metadata(entry.path()) else { continue };
        let small = meta.len() <= OTHER_FILE_BYTES || is_weights(&text);
        if meta.is_file() && wanted(&text) && small && !text.starts_with('.') {
            std::fs::copy(entry.path(), to.join(&name))?;
        }
    }
    Ok(())
}

/// Documents of several kinds, written for this; made by `assets/calibration/make.py`.
const OWN: &str = include_str!("../../assets/calibration/text.txt");
const QUESTION: &str = "Summarize this text.";
const PIECE_BYTES: usize = 8 << 10;
/// Of longer texts, pieces from all over them are read.
const MOST_PIECES: usize = 16;
const REPORT_EVERY: usize = 8_192;
const FEWEST_TOKENS: usize = 1_024;

/// Text for `--calibrate`: the user's documents or our own, put to the model the way a chat does.
fn texts(context: &Context, model: &str, docs: Option<&Path>) -> Result<Vec<Vec<Token>>, Failure> {
    let documents = match docs {
        None => vec![Document::inline("notes.txt", OWN)?],
        Some(docs) => open::documents(context, docs)?,
    };
    let (text, _) = open::text(model)?;
    let pieces: Vec<(String, &str)> =
        documents.iter().flat_map(|d| pieces(&d.text).into_iter().map(|piece| (safe_name(&d.name), piece))).collect();
    let mut all = Vec::new();
    for i in 0..pieces.len().min(MOST_PIECES) {
        let Some((name, piece)) = pieces.get(i * pieces.len() / pieces.len().min(MOST_PIECES)) else { continue };
        let prompt = text.question_about(name, &text.tokenizer.shield(piece), QUESTION)?;
        all.push(text.tokenizer.encode_prompt(&prompt)?);
    }
    let tokens: usize = all.iter().map(Vec::len).sum();
    if tokens < FEWEST_TOKENS {
        let what = docs.map_or("the text".to_owned(), |docs| docs.display().to_string());
        let text = format!(
            "{what} is too short for calibration: {} tokens, at least {} are needed",
            grouped(tokens as u64),
            grouped(FEWEST_TOKENS as u64)
        );
        return Err(Failure::new(Exit::Usage, text).hint("Name a folder with more text, or take ours: --calibrate"));
    }
    Ok(all)
}

/// Statistics of the matrices' inputs over these texts.
fn statistics(context: &Context, model: &str, texts: &[Vec<Token>], stop: &Cancel) -> Result<Statistics, Failure> {
    let mut checkpoint = open::checkpoint(context, model)?;
    // Statistics under one `id` must not depend on how this machine prefills.
    checkpoint.prefill = Precision::Bf16;
    match devices::open(&context.config().model, &TuningArgs::default(), false)? {
        Opened::Cpu(cpu, _) => read(context, *cpu, &checkpoint, texts, stop),
        #[cfg(feature = "cuda")]
        Opened::Cuda(cuda) => read(context, *cuda, &checkpoint, texts, stop),
    }
}

fn read<B: Backend>(
    context: &Context,
    mut b: B,
    checkpoint: &Checkpoint,
    texts: &[Vec<Token>],
    stop: &Cancel,
) -> Result<Statistics, Failure> {
    let all: usize = texts.iter().map(Vec::len).sum();
    let mut reported = 0;
    let mut progress = |tokens: usize| {
        if tokens >= reported + REPORT_EVERY || tokens == all {
            reported = tokens;
            context.note(&format!("calibrating: {} of {} tokens", grouped(tokens as u64), grouped(all as u64)));
        }
    };
    collect(&mut b, checkpoint, texts, stop, &mut progress)?.ok_or_else(|| {
        Failure::new(Exit::Stopped, "stopped while calibrating; nothing is packed yet")
            .hint("The same command begins again")
    })
}

/// Cuts a text into pieces, at line ends where possible.
fn pieces(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while rest.len() > PIECE_BYTES {
        let (most, least) = (rest.floor_char_boundary(PIECE_BYTES), rest.floor_char_boundary(PIECE_BYTES / 2));
        let at = rest.get(least..most).and_then(|end| end.rfind('\n')).map_or(most, |at| least + at + 1);
        let (piece, after) = rest.split_at(at);
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    pieces.retain(|piece| !piece.trim().is_empty());
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_after_lines_and_nothing_is_lost() {
        for text in [OWN.to_owned(), "word ".repeat(9_000), "灯塔".repeat(5_000), "short".to_owned()] {
            let pieces = pieces(&text);
            assert_eq!(pieces.concat(), text);
            assert!(pieces.iter().all(|piece| piece.len() <= PIECE_BYTES && !piece.is_empty()));
        }
        assert!(pieces(OWN).iter().rev().skip(1).all(|piece| piece.ends_with('\n')));
        assert!((12..=MOST_PIECES).contains(&pieces(OWN).len()), "our own text is read whole");
        assert_eq!(pieces(" \n "), Vec::<&str>::new());
    }
}
