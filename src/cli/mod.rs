//! The program around the chat: command line, folders, log, dispatch, exit codes. [`main`] is all that `main.rs` calls.
//! Handlers take a [`Context`] and return an exit code. Standard output carries answers only; progress and notes go to
//! standard error.

mod about;
mod announce;
pub mod args;
mod chat;
pub mod clipboard;
mod columns;
mod completions;
pub mod config_cmd;
pub mod devices;
pub mod dirs;
pub mod doctor;
mod engines;
pub mod failure;
mod follow_stdin;
pub mod hub;
mod input;
mod jobs;
mod library_cmd;
pub mod logging;
mod manual;
mod mcp;
pub mod model_cmd;
mod notices;
pub mod oneshot;
pub mod open;
mod out;
mod panic;
pub mod plain;
mod prune;
mod quantize_cmd;
pub mod run;
pub mod serve_cmd;
mod sessions_cmd;
pub mod signals;
pub mod term;
mod themes;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::CommandFactory;
use clap::error::ErrorKind;
use serde_json::Value;

use crate::config::settings::{self, Config, Loaded, Origin};
pub use crate::core::Exit;
use crate::core::places;
use crate::core::sanitize::Clean;
use crate::text::{extract, sample, schema, sources};
use args::{Cli, Command, ConfigCommand};
use dirs::Dirs;
pub use failure::Failure;
use term::Guard;

#[derive(Clone, Debug)]
pub struct Context {
    pub began: Instant,
    pub loaded: Loaded,
    pub config_file: PathBuf,
    pub dirs: Dirs,
    pub json: bool,
    pub quiet: bool,
}

impl Context {
    pub fn config(&self) -> &Config {
        &self.loaded.config
    }

    pub fn shows_progress(&self) -> bool {
        !self.quiet && std::io::stderr().is_terminal()
    }

    pub fn note(&self, text: &str) {
        if self.shows_progress() {
            out::err_line(&Clean::text(text));
        }
    }

    pub fn warn(&self, text: &str) {
        if !self.quiet {
            out::err_line(&Clean::line(&format!("sala-chat: {text}")));
        }
    }

    pub fn print(&self, text: &str) -> Result<(), Failure> {
        Ok(out::line(&Clean::text(text))?)
    }

    pub fn result(&self, json: impl FnOnce() -> Value, text: impl FnOnce() -> String) -> Result<Exit, Failure> {
        match self.json {
            true => out::line(&Clean::json(&json()))?,
            false => self.print(&text())?,
        }
        Ok(Exit::Ok)
    }
}

/// Commands of the laboratory, which lies above this module: `main` brings them along.
#[derive(Clone, Copy, Debug)]
pub struct Laboratory {
    pub check: fn(&Context, &args::DoctorArgs) -> Result<Exit, Failure>,
    pub bench: fn(&Context, &args::BenchArgs) -> Result<Exit, Failure>,
    pub eval: fn(&Context, &args::EvalArgs) -> Result<Exit, Failure>,
    pub draft: fn(&Context, &args::DraftCommand) -> Result<Exit, Failure>,
}

const WARNINGS: usize = 3;
const STDIN: &str = "-";

/// The work of a child process: reading a hostile file, checking a schema, or completing names for a shell.
fn confined(arguments: &[OsString]) -> Option<Box<dyn FnOnce() -> Result<Vec<u8>, String> + '_>> {
    match arguments {
        [_, child, path] if child == extract::CHILD => Some(Box::new(move || extract::child(Path::new(path)))),
        [_, call, words @ ..] if call == completions::NAMES => Some(Box::new(|| {
            let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
            Ok(completions::names(&words))
        })),
        [_, child] if child == schema::CHILD => Some(Box::new(schema::child)),
        _ => None,
    }
}

pub fn main(arguments: impl IntoIterator<Item = OsString>, laboratory: Laboratory) -> u8 {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    // The sandboxed child must run before any thread starts or settings are read.
    if let Some(work) = confined(&arguments) {
        std::panic::set_hook(Box::new(|_| {}));
        let written = work().and_then(|data| out::data(&data).map_err(|e| e.to_string()));
        let failed = written.inspect_err(|why| out::err_line(&Clean::line(why))).is_err();
        return if failed { Exit::Failure.code() } else { Exit::Ok.code() };
    }
    // A write beyond `ulimit -f` fails instead of ending the process. A handler: children inherit ignored signals.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    let json = arguments.iter().skip(1).take_while(|a| *a != "--").any(|a| a == "--json");
    match run(&arguments, laboratory) {
        Ok(exit) => exit.code(),
        Err(failure) => {
            report(&failure, json);
            failure.exit.code()
        }
    }
}

fn report(failure: &Failure, json: bool) {
    if failure.message.is_empty() {
        return;
    }
    match json.then(|| out::line(&Clean::json(&failure.to_json()))) {
        Some(Ok(())) => {}
        Some(Err(e)) if e.kind() == std::io::ErrorKind::BrokenPipe => {}
        // Standard output may be the very thing that failed.
        Some(Err(_)) | None => out::err_line(&Clean::line(&format!("sala-chat: {failure}"))),
    }
}

fn run(arguments: &[OsString], laboratory: Laboratory) -> Result<Exit, Failure> {
    let began = Instant::now();
    let mut cli = match Cli::read(arguments.iter().cloned()) {
        Ok(cli) => cli,
        Err(e) if !e.use_stderr() => {
            match e.kind() {
                ErrorKind::DisplayVersion => out::part(&Clean::text(&about::version()))?,
                _ => e.print()?,
            }
            return Ok(Exit::Ok);
        }
        Err(e) => return Err(command_line(&e, arguments)),
    };
    let dirs = Dirs::new(cli.global.data_dir.as_deref(), cli.global.config.as_deref())?;
    let config_file = cli.global.config.clone().unwrap_or_else(|| dirs.config.join(places::CONFIG_FILE));
    let sets = matches!(&cli.command, Some(Command::Config(ConfigCommand::Set { .. })));
    if cli.global.config.is_some() && !sets && !config_file.exists() {
        return Err(Failure::usage(format!("{}: no such settings file", config_file.display())));
    }
    let variables = settings_variables(std::env::vars_os())?;
    // `config` must work on a broken file.
    let (json, quiet, verbose) = (cli.global.json, cli.global.quiet, cli.global.verbose);
    let mut context = Context { began, loaded: Loaded::default(), config_file, dirs, json, quiet };
    if let Some(Command::Config(action)) = &cli.command {
        return config_cmd::run(&context, action, &variables, &cli.settings);
    }
    let text = match &cli.command {
        Some(Command::Completions { shell }) => Some(completions::script(*shell)),
        Some(Command::Manual) => Some(manual::page(&args::command())),
        _ => None,
    };
    if let Some(text) = text {
        return Ok(out::data(text.as_bytes()).map(|()| Exit::Ok)?);
    }
    context.loaded = settings::load(&context.config_file, &variables, &cli.settings)?;
    // The variable may name a folder that is still to be made.
    let variable = std::env::var_os("SALA_CHAT_DATA_DIR").map(PathBuf::from);
    let named = cli.global.data_dir != variable;
    cli.check(context.config().sessions.resume_last)?;
    if matches!(cli.command, None | Some(Command::Serve(_) | Command::Mcp | Command::AskAll(_))) {
        take_preset(&mut context.loaded, &context.dirs.presets())?;
    }
    let warnings = context.loaded.warnings.iter().map(ToString::to_string);
    let more = warnings.len().saturating_sub(WARNINGS);
    let more = (more > 0).then(|| format!("and {more} more: sala-chat config check lists them all"));
    warnings.take(WARNINGS).chain(more).for_each(|warning| context.warn(&warning));
    // A command that needs what is kept makes no folder that was named by mistake.
    let exists = context.dirs.data.exists();
    if named && cli.needs_kept() && !exists {
        let why = format!("{} does not exist: nothing is kept there", context.dirs.data.display());
        if !(json && cli.only_looks()) {
            return Err(Failure::new(Exit::Failure, why).hint("Name another folder: --data-dir DIR"));
        }
        context.warn(&why);
    }
    let _log = (exists || !cli.only_looks()).then(|| logging::start(&context.dirs, &context.config().log, verbose));
    panic::install(Guard::default(), Some(context.dirs.state.clone()), None);
    dispatch(&context, cli, laboratory)
}

fn take_preset(loaded: &mut Loaded, presets: &Path) -> Result<(), Failure> {
    let unknown = |e: String| match loaded.origins.get("sampling.preset") {
        None | Some(Origin::CommandLine) => Failure::of_chat(Exit::Usage, &e),
        Some(origin) => {
            Failure::new(Exit::Usage, format!("{origin}: sampling.preset: {}", Failure::of_chat(Exit::Usage, &e)))
        }
    };
    let preset = crate::runtime::presets::find(Some(presets), &loaded.config.sampling.preset).map_err(unknown)?;
    Ok(loaded.take_preset(&preset)?)
}

/// The failure for a wrong command line. An unknown option may belong to a misspelt command.
fn command_line(error: &clap::Error, arguments: &[OsString]) -> Failure {
    let words = arguments.iter().skip(1).map_while(|a| a.to_str()).take_while(|a| !a.starts_with('-'));
    let words: Vec<String> = words.map(str::to_owned).collect();
    let known = |first: &String| Path::new(first).exists() || Cli::command().find_subcommand(first).is_some();
    let misspelt = error.kind() == ErrorKind::UnknownArgument && !words.first().is_some_and(known);
    let meant = if misspelt { args::suggested_command(&words) } else { None };
    Failure::command_line(error).suggest("Did you mean", meant)
}

/// The variables with our prefix; others are ignored, valid UTF-8 or not.
fn settings_variables(all: impl Iterator<Item = (OsString, OsString)>) -> Result<Vec<(String, String)>, Failure> {
    let ours = all.filter(|(name, _)| name.to_string_lossy().starts_with(settings::layers::ENV_PREFIX));
    ours.map(|(name, value)| {
        let shown = name.to_string_lossy().into_owned();
        match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => Ok((name, value)),
            // A path may be any bytes.
            (Ok(name), Err(_)) if settings::layers::ENV_OTHER.contains(&name.as_str()) => Ok((name, String::new())),
            _ => Err(Failure::usage(format!("the variable {shown} is not UTF-8 text"))),
        }
    })
    .collect()
}

fn dispatch(context: &Context, cli: Cli, laboratory: Laboratory) -> Result<Exit, Failure> {
    let Some(command) = cli.command else {
        check_paths(context, &cli.chat.paths)?;
        check_paths(context, &cli.chat.follow)?;
        return match &cli.chat.prompt {
            Some(prompt) => oneshot::run(context, &cli.chat, prompt),
            None => chat::run(context, cli.chat),
        };
    };
    match command {
        Command::Ls(args) => sessions_cmd::ls(context, &args),
        Command::Show { name } => sessions_cmd::show(context, &name),
        Command::Rm { names, yes } => sessions_cmd::rm(context, &names, yes),
        Command::Search { text } => sessions_cmd::search(context, &text.join(" ")),
        Command::Export(args) => sessions_cmd::export(context, &args),
        Command::Import { file } => sessions_cmd::import(context, &file),
        Command::Prune(args) => prune::prune(context, &args),
        Command::Library(action) => library_cmd::library(context, &action),
        Command::Serve(args) => serve_cmd::run(context, &args),
        Command::Park => engines::park(context),
        Command::Mcp => mcp::run(context),
        Command::AskAll(args) => library_cmd::ask_all(context, &args),
        Command::Bench(args) => (laboratory.bench)(context, &args),
        Command::Eval(args) => (laboratory.eval)(context, &args),
        Command::Doctor(args) => examine(context, &args, laboratory)
            .map_err(|failure| Failure { message: about::without_home(&failure.message), ..failure }),
        Command::Draft(action) => (laboratory.draft)(context, &action),
        Command::Demo { plain } => chat::tour(context, plain),
        Command::Model(action) => model_cmd::run(context, &action),
        // Handled before the settings were read.
        Command::Config(_) | Command::Completions { .. } | Command::Manual => Ok(Exit::Ok),
    }
}

/// `doctor`: every requested check runs even if another fails; with `--json` each prints a line.
fn examine(context: &Context, args: &args::DoctorArgs, laboratory: Laboratory) -> Result<Exit, Failure> {
    let data = args.check.then(|| doctor::check_data(context)).transpose()?;
    let computes = args.fixtures.is_some() || args.kernels;
    let computed = computes.then(|| (laboratory.check)(context, args)).transpose()?;
    match (data, computed) {
        (None, None) => doctor::run(context),
        (Some(Exit::Ok) | None, Some(exit)) | (Some(exit), _) => Ok(exit),
    }
}

/// Says at once when a path on the command line means nothing, before a model is loaded.
fn check_paths(context: &Context, paths: &[String]) -> Result<(), Failure> {
    let options = sources::SourceOptions::new(&context.config().load);
    let files: Vec<String> = paths.iter().filter(|p| *p != STDIN && *p != sample::PATH).cloned().collect();
    sources::check(&files, &options).map_err(|e| {
        let meant = match &e {
            sources::SourceError::NotFound { path, similar } if paths.first() == Some(path) => {
                // A file with a similar name is more likely, unless the word is exactly a command.
                let likely = |meant: &String| similar.is_none() || meant.split(' ').any(|word| word == path);
                args::suggested_command(paths).filter(likely)
            }
            _ => None,
        };
        Failure::from(e).suggest("Or did you mean", meant)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn variables_that_are_no_text_are_an_error_only_where_they_are_settings() {
        let bad = || OsString::from_vec(vec![b'a', 0xff]);
        let all = |name: OsString, value: OsString| settings_variables([(name, value)].into_iter());
        assert_eq!(all("PATH".into(), bad()).unwrap(), []);
        assert_eq!(all(bad(), bad()).unwrap(), []);
        assert_eq!(all("SALA_CHAT_UI_THEME".into(), "dark".into()).unwrap().len(), 1);
        assert_eq!(all("SALA_CHAT_DATA_DIR".into(), bad()).unwrap().len(), 1);
        let wrong = all("SALA_CHAT_UI_THEME".into(), bad()).unwrap_err();
        assert_eq!(
            (wrong.exit, wrong.message.as_str()),
            (Exit::Usage, "the variable SALA_CHAT_UI_THEME is not UTF-8 text")
        );
    }
}
