//! `sala-chat model quantize`: packs a folder's weights once, into a folder that loads like any other.

use std::path::{Path, PathBuf};

use super::cli::PackTo;
use super::signals::Ending;
use super::{Context, Exit, Failure, dirs};
use crate::model::draft::BESIDE;
use crate::model::quantize::{Part, free_bytes, quantize};
use crate::model::{Checkpoint, DEMO_TOKENIZER, DEMO_TOKENIZER_CONFIG, Recipe};
use crate::protocol::engine::Cancel;

/// Room that is left on the disk beside the weights.
const SPARE_BYTES: u64 = 256 << 20;
/// Files beside the weights (tokenizer, template) that are taken along, up to this size.
const BESIDE_BYTES: u64 = 256 << 20;

fn gb(bytes: u64) -> String {
    format!("{:.2} GB", bytes as f64 / 1e9)
}

/// Runs it.
pub(super) fn run(context: &Context, folder: &Path, to: PackTo, output: &Path) -> Result<Exit, Failure> {
    let name = folder.to_string_lossy();
    let mut source = Checkpoint::open(&name).map_err(|e| Failure::new(Exit::NoModel, e.to_string()))?;
    source.set_recipe(match to {
        PackTo::Bits8 => Recipe::Bits8,
        PackTo::Bits4 => Recipe::Bits4,
    });
    refuse_folder(&source, output)?;
    let head_bytes = source.directory().map_or(0, |from| already(&from.join(BESIDE)));
    let needed = source.bytes(source.recipe()) + head_bytes + SPARE_BYTES;
    if let Some(free) = free_bytes(output).filter(|free| free + already(output) < needed) {
        let text = format!("{} needs {}, {} are free there", output.display(), gb(needed), gb(free));
        return Err(Failure::new(Exit::Disk, text).hint("Free space, or choose a folder on a larger disk"));
    }
    let stop = Cancel::default();
    let asked = stop.clone();
    let _ending = Ending::watch(move || asked.cancel())?;
    let mut parts: Vec<Part> = Vec::new();
    let mut progress = |part: &Part| {
        let made =
            if part.earlier { "was there".to_owned() } else { format!("squared error {:.4} %", part.error * 100.0) };
        context.note(&format!("{} of {}: {}, {}, {made}", part.number, part.of, part.name, gb(part.bytes)));
        parts.push(part.clone());
    };
    let done =
        quantize(&source, output, &stop, &mut progress).map_err(|e| Failure::new(Exit::Failure, e.to_string()))?;
    let Some(total) = done else {
        let text = format!("stopped after {} of its parts", parts.len());
        return Err(Failure::new(Exit::Stopped, text).hint("The same command goes on where it was"));
    };
    match source.directory() {
        Some(from) => {
            copy_beside(from, output, |name| !is_weights(name))?;
            let head = from.join(BESIDE);
            if head.is_dir() {
                std::fs::create_dir_all(output.join(BESIDE))?;
                copy_beside(&head, &output.join(BESIDE), |_| true)?;
            }
        }
        None => {
            std::fs::write(output.join("tokenizer.json"), DEMO_TOKENIZER)?;
            std::fs::write(output.join("tokenizer_config.json"), DEMO_TOKENIZER_CONFIG)?;
        }
    }
    let worst = parts.iter().fold(0f64, |worst, part| worst.max(part.error));
    context.result(
        || {
            let part = |p: &Part| serde_json::json!({ "part": p.name, "bytes": p.bytes, "squared_error": p.error });
            let parts: Vec<_> = parts.iter().map(part).collect();
            serde_json::json!({ "path": output, "bytes": total, "weights": source.recipe().name(), "parts": parts })
        },
        || {
            format!(
                "{} as {} weights in {}: {}, squared error of a part at most {:.4} %. Use it: sala-chat --model {}",
                source.name(),
                source.recipe().name(),
                output.display(),
                gb(total),
                worst * 100.0,
                output.display()
            )
        },
    )?;
    Ok(Exit::Ok)
}

/// Neither the folder itself nor one with another model in it.
fn refuse_folder(source: &Checkpoint, output: &Path) -> Result<(), Failure> {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    if source.directory().and_then(real).is_some_and(|from| Some(from) == real(output)) {
        return Err(Failure::usage("-o is the folder itself; name another one".to_owned()));
    }
    let config = output.join("config.json");
    if config.exists() && !std::fs::read_to_string(&config).is_ok_and(|text| text.contains(&source.fingerprint())) {
        let text = format!("{} holds another model", output.display());
        return Err(Failure::new(Exit::Usage, text).hint("Name a new folder: -o FOLDER"));
    }
    Ok(())
}

/// Bytes of the files of a folder: of parts that an earlier run wrote, or of a draft head.
fn already(output: &Path) -> u64 {
    let entries = std::fs::read_dir(output).into_iter().flatten().flatten();
    entries.filter_map(|e| e.metadata().ok()).filter(|m| m.is_file()).map(|m| m.len()).sum()
}

/// Packed anew, or said anew.
fn is_weights(name: &str) -> bool {
    name.contains(".safetensors") || name == "config.json" || name == "hf_quant_config.json"
}

/// Tokenizer, template and licence, as they are; of a draft head everything, its weights too.
fn copy_beside(from: &Path, to: &Path, wanted: impl Fn(&str) -> bool) -> Result<(), Failure> {
    for entry in std::fs::read_dir(from)?.flatten() {
        let name = entry.file_name();
        let text = name.to_string_lossy().into_owned();
        // Through links: folders of the hub's cache consist of them.
        let Ok(meta) = std::fs::metadata(entry.path()) else { continue };
        let small = meta.len() <= BESIDE_BYTES || is_weights(&text);
        if meta.is_file() && wanted(&text) && small && !text.starts_with('.') {
            std::fs::copy(entry.path(), to.join(&name))?;
        }
    }
    Ok(())
}

/// Where packed weights of earlier starts are kept.
pub(super) fn kept_dir(dirs: &dirs::Dirs) -> PathBuf {
    dirs.data.join("weights")
}
