//! What is going on, and the program itself.

use super::super::Completes::{Commands, Words};
use super::super::args::Args;
use super::super::words::CopyWhat;
use super::super::{Command, Local, Outcome, Request};
use super::{ROW, alone, bare, local};

pub(super) const NUMBERS: &[Command] = &[
    bare("stats", &[], "speeds, acceptance, memory", |a| alone(a, Outcome::Runtime(Request::Stats))),
    bare("map", &[], "map of the context, shaded by attention", |a| alone(a, Outcome::Runtime(Request::Map))),
    bare("ctx", &["context", "tokens"], "tokens per message and document", |a| {
        alone(a, Outcome::Runtime(Request::Context))
    }),
    bare("doctor", &[], "check model, device, disk and terminal", |a| alone(a, Outcome::Runtime(Request::Doctor))),
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
    bare("park", &[], "free the GPU; the next question brings it back", |a| alone(a, Outcome::Runtime(Request::Park))),
    bare("unpark", &[], "load a parked model again", |a| alone(a, Outcome::Runtime(Request::Unpark))),
    bare("keys", &[], "what the keys do", |a| alone(a, Outcome::Local(Local::Keys))),
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
    bare("quit", &["exit", "bye", "q"], "leave; everything is saved", |a| alone(a, Outcome::Local(Local::Quit))),
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
