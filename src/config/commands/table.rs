//! The table of slash commands, a file for each group. A new request to the runtime is also a row in [`super::request`].

mod documents;
mod program;
mod sessions;
mod settings;
mod time;

use std::sync::LazyLock;

use super::args::Args;
use super::{Command, Completes, Local, Outcome, Request};

/// A row: name, arguments, help, and what a line means. More of it follows as methods.
const fn command(
    name: &'static str,
    usage: &'static str,
    help: &'static str,
    parse: fn(&Args<'_>) -> Result<Outcome, String>,
) -> Command {
    let completes = Completes::Nothing;
    Command { name, aliases: &[], usage, help, options: &[], example: "", example_of: |_| None, completes, parse }
}

impl Command {
    const fn also(mut self, names: &'static [&'static str]) -> Command {
        self.aliases = names;
        self
    }

    const fn options(mut self, options: &'static [(&'static str, &'static str)]) -> Command {
        self.options = options;
        self
    }

    const fn as_in(mut self, example: &'static str) -> Command {
        self.example = example;
        self
    }

    const fn completes(mut self, what: Completes) -> Command {
        self.completes = what;
        self
    }
}

/// The sections of `/help` with their commands.
pub static GROUPS: [(&str, &[Command]); 6] = [
    ("Documents", documents::ROWS),
    ("Sessions", sessions::ROWS),
    ("History and branches", time::ROWS),
    ("How it answers and looks", settings::ROWS),
    ("Numbers", program::NUMBERS),
    ("Program", program::ROWS),
];

pub static COMMANDS: LazyLock<Vec<Command>> =
    LazyLock::new(|| GROUPS.iter().flat_map(|(_, rows)| rows.iter().copied()).collect());

fn runtime(request: Request) -> Result<Outcome, String> {
    Ok(Outcome::Runtime(request))
}

fn local(what: Local) -> Result<Outcome, String> {
    Ok(Outcome::Local(what))
}

fn no_option(command: &str, flag: &str) -> String {
    let all = super::find(command).map_or(&[][..], |c| c.options);
    let names: Vec<&str> = all.iter().filter_map(|(o, _)| o.split(' ').next()).filter(|o| o.starts_with('-')).collect();
    format!("unknown option {flag}; known: {}", names.join(", "))
}

/// Words of other programs that have no single counterpart here, and what to type instead.
pub const HABITS: &[(&[&str], &str)] = &[
    (&["model", "models"], "The model is chosen at the start: sala-chat --model NAME. /stats says which one runs."),
    (&["history"], "/timeline shows the turns of this session, /sessions the others; Ctrl-R searches what was typed."),
    (&["reset", "restart"], "/new starts a new session and keeps this one; /undo takes back an exchange."),
    (&["stop", "cancel", "abort"], "Esc stops reading and answering."),
    (&["close"], "No session needs closing: /new or Alt-1..9 leave it, /delete deletes it, /quit ends the program."),
    (&["edit-last", "rewind"], "/undo takes back the last exchange, /edit #N opens a message."),
    (&["show", "info"], "/stats, /ctx and /settings show numbers, tokens and settings."),
    (&["temperature", "temp", "seed"], "/set temperature 0.3 or /set seed 7 changes it; /set lists what there is."),
    (&["pull", "download"], "sala-chat model download gets the model, outside the chat."),
    (&["run", "sh", "shell", "git", "commit", "web"], "This program runs nothing and fetches nothing for the model."),
];
