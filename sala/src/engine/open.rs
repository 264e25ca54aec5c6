//! From [`EngineOptions`] to a running worker: device, weights, draft head, length of the context.
//!
//! [`ModelInfo::notes`] names every choice that differs from the request.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::Sender;

use super::failure::Failure;
use super::park::{Left, Parking};
use super::speculate::Decoder;
use super::worker::Worker;
use super::{fit, keep};
use crate::backend::MAX_POSITIONS;
use crate::backend::cpu::Cpu;
use crate::backend::draft::DraftOps;
use crate::core::Exit;
use crate::engine::protocol::{
    DeviceChoice, DraftChoice, Dtype, EngineEvent, EngineOptions, MAX_SEQUENCES, ModelInfo, Precision,
};
use crate::model::draft::{DraftError, DraftHead, DraftOptions, FOLDER};
use crate::model::quantize::free_bytes;
use crate::model::{Checkpoint, Live, Model, Recipe, shown};

pub(super) fn run(options: &EngineOptions, parking: &mut Parking<'_>) -> Result<Left, Failure> {
    let (since, options) = (Instant::now(), &parking.options(options));
    let checkpoint = open(options)?;
    tracing::debug!(ms = since.elapsed().as_millis(), "checkpoint open");
    if !keep::likely(options) {
        checkpoint.expect();
    }
    let mut notes = options.notes.clone();
    // Opening a device takes time; the search for kept weights runs meanwhile.
    let (gpu, found) = std::thread::scope(|both| {
        let found = both.spawn(|| keep::look(&checkpoint, options));
        (open_gpu(options), found.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    match gpu {
        // The receiver may have ended meanwhile, for lack of a tokenizer.
        Ok(_) if !loading(parking.events, 0.0) => Ok(Left::Ended),
        Ok(backend) => {
            tracing::debug!(ms = since.elapsed().as_millis(), "device open");
            choose_and_load(backend, checkpoint, found, options, notes, parking)
        }
        Err(why) if options.device == DeviceChoice::Cuda => {
            Err(Failure { error: format!("{why}; use --device cpu, or --model demo"), exit: Exit::NoDevice })
        }
        Err(why) => {
            if options.device == DeviceChoice::Auto {
                too_large_for_cpu(&checkpoint, &why)?;
                notes.push(format!("{why}. Running on the CPU."));
            }
            choose_and_load(Cpu::new(), checkpoint, found, options, notes, parking)
        }
    }
}

pub(super) fn run_on<B: DraftOps>(
    backend: B,
    options: &EngineOptions,
    parking: &mut Parking<'_>,
) -> Result<Left, Failure> {
    let checkpoint = open(options)?;
    let found = keep::look(&checkpoint, options);
    choose_and_load(backend, checkpoint, found, options, options.notes.clone(), parking)
}

fn open(options: &EngineOptions) -> Result<Checkpoint, Failure> {
    let mut checkpoint = Checkpoint::open(&options.model)?;
    checkpoint.check()?;
    checkpoint.prefill = options.prefill;
    Ok(checkpoint)
}

/// Loads the weights in the form that fits the device: those of an earlier start, if it kept them.
fn choose_and_load<B: DraftOps>(
    backend: B,
    mut checkpoint: Checkpoint,
    found: keep::Found,
    options: &EngineOptions,
    mut notes: Vec<String>,
    parking: &mut Parking<'_>,
) -> Result<Left, Failure> {
    // Kept state depends on the form of the first load.
    let earlier = parking.loaded.as_ref().map(|(_, form)| *form);
    notes.extend(fit::choose(&backend, &mut checkpoint, options, earlier)?);
    let (checkpoint, note) = found.instead_of(checkpoint);
    notes.extend(note);
    load(backend, Arc::new(checkpoint), options, notes, parking)
}

/// Reports progress; `false` if the receiver has closed.
fn loading(events: &Sender<EngineEvent>, done: f64) -> bool {
    events.send(EngineEvent::Loading { what: "reading weights".into(), done }).is_ok()
}

/// Parameters of the largest model that runs on a CPU without a request: a larger one takes seconds per word, and more
/// memory than most machines have.
const CPU_PARAMETERS: u64 = 2_000_000_000;

fn too_large_for_cpu(checkpoint: &Checkpoint, why: &str) -> Result<(), Failure> {
    let parameters = checkpoint.spec().parameters();
    if parameters <= CPU_PARAMETERS {
        return Ok(());
    }
    Err(Failure {
        error: format!(
            "{why}; {} has {:.1}B parameters, too many for the CPU. --model demo runs the built-in model, --device cpu runs this one anyway",
            checkpoint.name(),
            parameters as f64 / 1e9
        ),
        exit: Exit::NoDevice,
    })
}

/// The error is the reason why there is none.
#[cfg(feature = "cuda")]
fn open_gpu(options: &EngineOptions) -> Result<crate::backend::cuda::Cuda, String> {
    use crate::backend::cuda::{Cuda, Options};
    if options.device == DeviceChoice::Cpu {
        return Err("not asked for".into());
    }
    let own = Options { most_bytes: options.gpu_memory, prefill: options.prefill, ..Options::default() };
    Cuda::open(options.gpu, own).map_err(|error| error.to_string())
}

#[cfg(not(feature = "cuda"))]
fn open_gpu(_: &EngineOptions) -> Result<Cpu, String> {
    Err("this program was built without GPU support".into())
}

fn load<B: DraftOps>(
    mut backend: B,
    checkpoint: Arc<Checkpoint>,
    options: &EngineOptions,
    mut notes: Vec<String>,
    parking: &mut Parking<'_>,
) -> Result<Left, Failure> {
    let events = parking.events;
    notes.extend(unused(&checkpoint.unknown_tensors()));
    notes.extend(checkpoint.kept()?.map(|kept| kept.to_string()));
    let since = Instant::now();
    let model = Model::load(&mut backend, &checkpoint, |done| {
        // The receiver closes when the program ends.
        loading(events, done);
    })?;
    checkpoint.all_read();
    tracing::debug!(ms = since.elapsed().as_millis(), "weights loaded");
    if let Some(dir) = &options.keep_weights {
        notes.extend(keep::for_next_time(&checkpoint, dir, free_bytes(dir)));
    }
    let head = match open_head(&mut backend, &model, &checkpoint, &options.draft) {
        Ok(head) => head,
        // A head only adds speed: without one the text is the same.
        Err(error) => {
            notes.push(format!("No draft head: {error}"));
            None
        }
    };
    let assumed = head.as_ref().and_then(|head| Some(format!("Draft head {}: {}.", head.name(), head.assumed()?)));
    notes.extend(assumed);
    let spec = model.spec();
    // Every device supports this length; the configuration may set another.
    let default = (2 * spec.max_position).min(MAX_POSITIONS);
    let limit = options.context.map_or(default, |wanted| usize::try_from(wanted).unwrap_or(usize::MAX));
    let aux_layers = head.as_ref().map_or(&[][..], |head| head.aux_layers());
    backend.plan_context(spec, limit, options.context.is_some())?;
    let live = Live::new(&mut backend, &model, limit, aux_layers)?;
    // After loading, the library that opened in the meantime is ready.
    notes.extend(backend.notes());
    let info = ModelInfo {
        name: checkpoint.name().into(),
        built_in: checkpoint.is_built_in(),
        device: backend.describe(),
        device_kind: backend.kind().into(),
        dtype: number_types(&checkpoint),
        parameters: spec.parameters(),
        context_limit: live.limit() as u64,
        max_sequences: MAX_SEQUENCES as u32,
        draft: head.as_ref().map(|head| head.name().to_string()),
        fingerprint: checkpoint.state_fingerprint(),
        memory: backend.memory(),
        notes,
        ..ModelInfo::default()
    };
    parking.loaded = Some((info.clone(), checkpoint.recipe));
    tracing::debug!(ms = since.elapsed().as_millis(), "ready");
    Ok(Worker::new(backend, model, live, Decoder::new(head), info, events).serve(parking, options.park_after))
}

/// The number type of the weights, and that of the products if it differs.
fn number_types(checkpoint: &Checkpoint) -> String {
    let kept = match (checkpoint.recipe, checkpoint.published(), checkpoint.dtype()) {
        (Recipe::Stored, Some(published), _) => published,
        (recipe, ..) if recipe.packs() => recipe.name().into(),
        (_, None, Dtype::F32) => "f32".into(),
        (_, _, Dtype::F32 | Dtype::Bf16 | Dtype::U32 | Dtype::U8) => "bf16".into(),
    };
    match checkpoint.prefill {
        Precision::Bf16 => kept,
        Precision::Fp8 => format!("{kept}, prefill in {}", Precision::Fp8.name()),
    }
}

/// One line about tensors that the model does not use: they may belong to another model.
fn unused(names: &[String]) -> Option<String> {
    const NAMED: usize = 3;
    let first = names.iter().take(NAMED).map(|name| shown(name)).collect::<Vec<_>>().join(", ");
    let more = if names.len() > NAMED { ", …" } else { "" };
    (!names.is_empty()).then(|| format!("{} tensor(s) of the folder are not used: {first}{more}", names.len()))
}

/// The draft head that `choice` names for this model; `None` if no head is available.
pub fn open_head<B: DraftOps>(
    backend: &mut B,
    model: &Model<B>,
    checkpoint: &Checkpoint,
    choice: &DraftChoice,
) -> Result<Option<DraftHead<B>>, DraftError> {
    let folder: Option<&Path> = match choice {
        DraftChoice::Off => return Ok(None),
        DraftChoice::Folder(folder) => Some(folder),
        DraftChoice::Auto => None,
    };
    let own = checkpoint.directory().map(|dir| dir.join(FOLDER)).filter(|dir| dir.is_dir());
    let options = DraftOptions { recipe: checkpoint.recipe, ..DraftOptions::default() };
    match folder.map(Path::to_path_buf).or(own) {
        Some(folder) => DraftHead::open(backend, &folder, model.spec(), &options).map(Some),
        None if checkpoint.is_built_in() => DraftHead::demo(backend, model.spec(), &options).map(Some),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_that_are_not_used_are_named_in_one_short_line_of_text() {
        assert_eq!(unused(&[]), None);
        let names = ["a\u{1b}[31mb\nc".to_owned(), "x".repeat(1 << 20), "d".to_owned(), "e".to_owned()];
        let line = unused(&names).unwrap();
        assert!(line.starts_with("4 tensor(s) of the folder are not used: a") && line.ends_with("x, d, …"), "{line}");
        assert!(line.len() < 300 && !line.contains(['\u{1b}', '\n']), "{line}");
        assert_eq!(unused(&names[2..]).unwrap(), "2 tensor(s) of the folder are not used: d, e");
    }
}
