//! From settings to a running runtime: data directory (`stores`), model, engine thread. Shared by the chat, `-p` and `library add`.

mod stores;

use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

use super::args::SessionChoice;
use super::devices::{self, Chosen};
use super::{Context, Exit, Failure, engines, hub, signals};
use crate::client::remote::{self, RemoteOptions};
use crate::config::settings::table::session_rows;
use crate::config::settings::{self, Device, Loaded, ModelSource, Origin, SaveStates};
use crate::core::files;
use crate::core::spec::ModelSpec;
use crate::engine::Engine;
use crate::engine::protocol::{BUILT_IN, Cancel, DraftChoice, EngineOptions, Token, is_folder};
use crate::model::{
    Checkpoint, DEMO_CONFIG, DEMO_GENERATION_CONFIG, DEMO_THESAURUS, DEMO_TOKENIZER, DEMO_TOKENIZER_CONFIG, ModelError,
    Recipe,
};
use crate::runtime::protocol::{Notice, Request, SessionRow};
use crate::runtime::{self, Attendance, DeviceNotes, EngineChannels, EngineSetup, Input, Opening, Runtime, Settings};
use crate::store::{LAST, Scratch};
use crate::text::sources::{self, Document, SourceOptions};
use crate::text::{Recommended, TextModel};
pub(super) use stores::{LISTED, check_name, folder_of_requests, library_names, limits, no_session};
pub use stores::{scratch, store, store_of_requests, store_of_requests_or_new, store_to_change, store_to_read};

const GIVEN_UP: Duration = Duration::from_secs(3);

pub struct Opened {
    pub runtime: Runtime,
    pub engine: std::thread::JoinHandle<()>,
    pub loaded: Loaded,
    pub offer: Option<SessionRow>,
    pub scratch: Option<Scratch>,
}

impl Opened {
    /// Waits for both threads. False if the runtime panicked; the engine's last event reports a panic.
    pub fn ended(self) -> bool {
        let whole = self.runtime.thread.join().is_ok();
        let _ = self.engine.join();
        whole
    }

    /// Ends the runtime, which saves; an error reports text that could not be saved.
    pub fn close(self) -> Result<(), Failure> {
        // A runtime that is gone closes its notices.
        let _ = self.runtime.requests.send(Request::Quit);
        let unsaved = self.runtime.notices.iter().find_map(|notice| match notice {
            Notice::Bye { unsaved, .. } => Some(unsaved),
            _ => None,
        });
        match (self.ended(), unsaved.flatten()) {
            (false, _) => Err(Failure::new(Exit::Failure, "the runtime ended unexpectedly")),
            (true, Some(unsaved)) => Err(Failure::not_saved(&unsaved)),
            (true, None) => Ok(()),
        }
    }
}

pub fn model(context: &Context) -> Result<Chosen, Failure> {
    match context.config().model_source() {
        ModelSource::Auto => Ok(devices::automatic(&context.config().model)),
        ModelSource::Demo => Ok(Chosen::new(BUILT_IN)),
        ModelSource::Synthetic(shape) => Ok(Chosen::new(format!("synthetic:{shape}"))),
        ModelSource::Path(path) if Path::new(&path).is_dir() => Ok(Chosen::new(path)),
        ModelSource::Path(path) if Path::new(&path).is_file() => {
            let what = match Path::new(&path).extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")) {
                true => "a GGUF file, which is not read",
                false => "a file, and a model is a folder",
            };
            Err(Failure::new(Exit::NoModel, format!("{path} is {what}"))
                .hint("Give the folder with the model's safetensors"))
        }
        ModelSource::Path(path) => Err(Failure::new(Exit::NoModel, format!("{path}: no such model folder"))
            .hint("--model demo runs the built-in model, sala-chat model download gets the 9B model")),
    }
}

/// Tokenizer and template of a model, and the ids that end a turn.
pub fn text(model: &str) -> Result<(TextModel, Vec<Token>), Failure> {
    let unusable = |what: String| Failure::new(Exit::NoModel, what);
    let (text, config) = if is_folder(model) {
        let file = Path::new(model).join("config.json");
        if file.symlink_metadata().is_err() {
            return Err(unusable(format!("{model} is not a checkpoint: config.json is not in it"))
                .hint("--model demo runs the built-in model, sala-chat model download gets the 9B model"));
        }
        let config = files::read_text(&file, files::MODEL_CONFIG_BYTES)
            .map_err(|e| unusable(format!("{}: {e}", file.display())))?;
        (TextModel::load(Path::new(model))?, config)
    } else {
        let (tokenizer, config) = (DEMO_TOKENIZER.as_bytes(), DEMO_TOKENIZER_CONFIG.as_bytes());
        let generation = (model == BUILT_IN).then_some(DEMO_GENERATION_CONFIG.as_bytes());
        let mut text = TextModel::from_bytes(tokenizer, config, generation, None)?;
        if generation.is_some() {
            text.recommended = Recommended::of_folder(generation, |_| Ok(DEMO_THESAURUS.into()))?;
        }
        (text, DEMO_CONFIG.to_owned())
    };
    let spec = ModelSpec::from_json(&config).map_err(|cause| ModelError::FolderSpec { dir: model.into(), cause })?;
    text.tokenizer.check_vocabulary(spec.vocab)?;
    let stop = text.tokenizer.stop_ids(&spec.eos);
    Ok((text, stop))
}

/// The documents of a path. Those that cannot be read are noted and left out.
pub fn documents(context: &Context, path: &Path) -> Result<Vec<Document>, Failure> {
    let options = SourceOptions::new(&context.config().load);
    let found = sources::gather(&[path.display().to_string()], &options, &Cancel::default())?;
    for skipped in &found.skipped {
        context.note(&format!("Skipped {}: {}", skipped.name, skipped.reason));
    }
    Ok(found.documents)
}

pub fn engine_options(context: &Context) -> Result<EngineOptions, Failure> {
    let config = context.config();
    let Chosen { name, note } = model(context)?;
    Ok(EngineOptions {
        model: name,
        device: match config.model.device {
            // The note reports the missing GPU.
            Device::Auto if note.is_some() => Device::Cpu,
            device => device,
        },
        gpu: config.model.gpu as usize,
        context: (config.model.max_context > 0).then_some(config.model.max_context),
        gpu_memory: config.model.max_gpu_memory.0,
        weights: config.model.weights,
        prefill: config.model.prefill,
        draft: draft(context)?,
        notes: note.into_iter().collect(),
        keep_weights: Some(context.dirs.kept_weights()),
        park_after: config.engine.park_after.0,
    })
}

/// The draft head that the settings name: a folder, or a hub id that was downloaded.
pub fn draft(context: &Context) -> Result<DraftChoice, Failure> {
    match context.config().speculation.draft.as_str() {
        "" | "auto" => Ok(DraftChoice::Auto),
        "off" => Ok(DraftChoice::Off),
        name => hub::draft_folder(name).map(DraftChoice::Folder),
    }
}

/// The model and its checkpoint for a measurement; a note says why it is another one than expected.
pub fn measured(context: &Context) -> Result<(String, Checkpoint), Failure> {
    let Chosen { name, note } = model(context)?;
    note.iter().for_each(|note| context.note(note));
    let checkpoint = checkpoint(context, &name)?;
    Ok((name, checkpoint))
}

/// Opens a checkpoint for a measurement, with its stored weights unless the settings name a form.
pub fn checkpoint(context: &Context, name: &str) -> Result<Checkpoint, ModelError> {
    let mut checkpoint = Checkpoint::open(name)?;
    checkpoint.recipe = Recipe::asked_for(context.config().model.weights).unwrap_or_default();
    checkpoint.prefill = context.config().model.prefill;
    Ok(checkpoint)
}

/// Answer settings of the command line: they hold for this run, over those that a session keeps.
fn overrides(context: &Context) -> Vec<(String, String)> {
    let settings = Settings::of(context.config());
    let given = |name: &str| context.loaded.origins.get(name) == Some(&Origin::CommandLine);
    let rows = session_rows().filter(|(row, _)| given(row.name));
    rows.filter_map(|(row, way)| Some((way.name.to_owned(), settings.value(row)?))).collect()
}

pub fn piece(context: &Context) -> usize {
    usize::try_from(context.config().sessions.checkpoint_every).unwrap_or(usize::MAX).max(1024)
}

/// An engine that opens its device. Dropping it waits, so that the process does not end while a GPU is being opened.
struct Starting(Option<Engine>);

impl Drop for Starting {
    fn drop(&mut self) {
        let Some(Engine { commands, events, thread }) = self.0.take() else { return };
        // Without listeners it ends as soon as its device is open.
        drop((commands, events));
        let given_up = Instant::now() + GIVEN_UP;
        while !thread.is_finished() && Instant::now() < given_up {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

pub(super) fn no_thread(e: std::io::Error) -> Failure {
    Failure::new(Exit::Failure, format!("no thread to run on: {e}"))
}

/// The engine that the settings name, a server's or one of this machine, with its text model and stop tokens.
fn begin(context: &Context, attendance: Attendance) -> Result<(Starting, TextModel, Vec<Token>), Failure> {
    if let Some(options) = engines::remote(context)? {
        let options = RemoteOptions { one_question: attendance == Attendance::Absent, ..options };
        let text = remote::text_model().map_err(|e| Failure::new(Exit::Failure, e.to_string()))?;
        let engine = remote::spawn(options, &text).map_err(no_thread)?;
        let stop = text.tokenizer.stop_ids(&[]);
        return Ok((Starting(Some(engine)), text, stop));
    }
    let options = engine_options(context)?;
    let name = options.model.clone();
    // Started first: opening the GPU and the weights takes longest.
    let engine = Starting(Some(engines::begin(context, options).map_err(no_thread)?));
    let (text, stop) = text(&name)?;
    Ok((engine, text, stop))
}

/// Starts engine and runtime. `Input::Calls` are requests of a program: one after the other, each for itself.
pub fn runtime(
    context: &Context,
    session: &SessionChoice,
    save: bool,
    attendance: Attendance,
    input: Input,
) -> Result<Opened, Failure> {
    let config = context.config();
    if !save && matches!(session, SessionChoice::Last | SessionChoice::Named(_)) {
        let message = "--no-save starts without a session: it cannot continue one (-c, -r)";
        return Err(Failure::new(Exit::Usage, message).hint("Leave --no-save out; in the chat, /aside leaves no trace"));
    }
    let (mut starting, text, stop) = begin(context, attendance)?;
    let (save_state, piece) = match settings::server(&config.engine.url) {
        // A remote engine's state is its text.
        Some(_) => (SaveStates::Never, usize::MAX),
        None => (config.sessions.save_state, piece(context)),
    };
    let mut loaded = context.loaded.clone();
    loaded.recommend(&text.recommended);
    if let Some(why) = text.template.switch.refusal(config.thinking.mode).filter(|_| attendance == Attendance::Absent) {
        context.note(why);
    }
    let (store, scratch, kept) = match save {
        true => (store(context)?, None, None),
        // Without a readable store there is nothing to reuse.
        false => scratch(context).map(|(store, dir)| (store, Some(dir), store_to_read(context).ok()))?,
    };
    if let SessionChoice::Named(name) = session {
        check_name(&store, name)?;
    }
    let Some(engine) = starting.0.take() else {
        return Err(Failure::new(Exit::Failure, "internal error: an engine that was given away"));
    };
    signals::park_at_signal(engine.commands.clone()).map_err(no_thread)?;
    // Without a terminal the question about a session that is open elsewhere has no answer.
    let resume = if std::io::stdin().is_terminal() { Opening::Resume } else { Opening::ResumeOrEnd };
    let overrides = overrides(context);
    let mut settings = Settings::of(loaded.kept());
    for (key, value) in &overrides {
        let internal =
            |why: String| Failure::new(Exit::Failure, format!("internal error: {key} was accepted once: {why}"));
        settings.set_for_run(key, value).map_err(internal)?;
    }
    let offer = match (input, attendance, config.sessions.offer_last) {
        (Input::Screen | Input::Lines, Attendance::Present, true) => runtime::last_of_folder(&store),
        _ => None,
    };
    let channels = EngineChannels { commands: engine.commands, events: engine.events };
    let options = runtime::Options {
        store,
        discard: !save,
        kept,
        settings,
        system: context.loaded.system.clone(),
        opening: match session {
            SessionChoice::New | SessionChoice::Pick => Opening::New,
            SessionChoice::Last => resume(LAST.into()),
            SessionChoice::Named(name) => resume(name.clone()),
        },
        attendance,
        input,
        config: config.clone(),
        sources: SourceOptions::new(&config.load),
        save_state,
        presets: Some(context.dirs.presets()),
        overrides,
        device_notes: match attendance == Attendance::Present || context.shows_progress() {
            true => DeviceNotes::New,
            false => DeviceNotes::None,
        },
    };
    let runtime = runtime::spawn(EngineSetup { channels, text, stop, piece }, options).map_err(no_thread)?;
    Ok(Opened { runtime, engine: engine.thread, loaded, offer, scratch })
}
