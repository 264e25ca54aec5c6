//! What is going on, and the program itself.

use super::super::Completes::{Commands, Words};
use super::super::args::Args;
use super::super::words::CopyWhat;
use super::super::{Command, Local, Outcome, Request};
use super::{ROW, local, runtime};

pub(super) const NUMBERS: &[Command] = &[
    Command {
        name: "stats",
        help: "speeds, acceptance, memory",
        parse: |a| a.none().and_then(|()| runtime(Request::Stats)),
        ..ROW
    },
    Command {
        name: "map",
        help: "map of the context, shaded by attention",
        parse: |a| a.none().and_then(|()| runtime(Request::Map)),
        ..ROW
    },
    Command {
        name: "ctx",
        aliases: &["context", "tokens"],
        help: "tokens per message and document",
        parse: |a| a.none().and_then(|()| runtime(Request::Context)),
        ..ROW
    },
    Command {
        name: "doctor",
        help: "check model, device, disk and terminal",
        parse: |a| a.none().and_then(|()| runtime(Request::Doctor)),
        ..ROW
    },
];

pub(super) const ROWS: &[Command] = &[
    Command {
        name: "copy",
        usage: "[last|#N|bN|look N|all]",
        help: "copy an answer, code block or passage",
        options: &[
            ("last", "the last answer to the clipboard; the same as nothing"),
            ("#N", "message N"),
            ("bN", "code block N of the selected or the last answer"),
            ("look N", "passage N of the selected or the last answer"),
            ("all", "the whole branch"),
        ],
        example: "/copy b2",
        completes: Words(&["last", "look", "all"]),
        parse: copy,
        ..ROW
    },
    Command {
        name: "park",
        help: "free the GPU; the next question brings it back",
        parse: |a| a.none().and_then(|()| runtime(Request::Park)),
        ..ROW
    },
    Command {
        name: "unpark",
        help: "load a parked model again",
        parse: |a| a.none().and_then(|()| runtime(Request::Unpark)),
        ..ROW
    },
    Command { name: "keys", help: "what the keys do", parse: |a| a.none().and_then(|()| local(Local::Keys)), ..ROW },
    Command {
        name: "help",
        aliases: &["?", "commands"],
        usage: "[COMMAND|WORD]",
        help: "all commands, one of them, or by word",
        example: "/help load",
        completes: Commands,
        parse: |a| local(Local::Help(a.rest())),
        ..ROW
    },
    Command {
        name: "quit",
        aliases: &["exit", "bye", "q"],
        help: "leave; everything is saved",
        parse: |a| a.none().and_then(|()| local(Local::Quit)),
        ..ROW
    },
];

fn copy(a: &Args<'_>) -> Result<Outcome, String> {
    if let ["look", n] = a.words()?.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        let passage = n.trim_start_matches('[').trim_end_matches(']').parse().ok().filter(|n| *n > 0);
        let passage = passage.ok_or("look takes the number of a passage, for example look 1")?;
        return local(Local::Copy(CopyWhat::Look(passage)));
    }
    let word = a.at_most_one()?;
    let what = match word.as_deref() {
        None | Some("last") => CopyWhat::Last,
        Some("all") => CopyWhat::All,
        Some(w) => match (w.strip_prefix('#').map(str::parse), w.strip_prefix('b').map(str::parse)) {
            (Some(Ok(n)), _) => CopyWhat::Message(n),
            (_, Some(Ok(n))) if n > 0 => CopyWhat::Block(n),
            _ => return Err("takes last, #N (a message), bN (a code block), look N (a passage) or all".into()),
        },
    };
    local(Local::Copy(what))
}
