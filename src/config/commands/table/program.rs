//! What is going on, and the program itself.

use super::super::Completes::{Commands, Words};
use super::super::args::Args;
use super::super::words::CopyWhat;
use super::super::{Command, Local, Outcome, Request};
use super::{command, local};

pub(super) const NUMBERS: &[Command] = &[
    command("stats", "", "speeds, acceptance, memory", |a| a.alone(Request::Stats)),
    command("map", "", "the context in stretches, with attention", |a| a.alone(Request::Map)),
    command("ctx", "", "tokens per message and document", |a| a.alone(Request::Context)).also(&["context", "tokens"]),
    command("doctor", "", "check model, device, disk and terminal", |a| a.alone(Request::Doctor)),
];

pub(super) const ROWS: &[Command] = &[
    command("copy", "[last|#N|bN|look N|all]", "copy an answer, code block or passage", copy)
        .options(&[
            ("last", "the last answer to the clipboard; the same as nothing"),
            ("#N", "message N"),
            ("bN", "code block N of the selected or the last answer"),
            ("look N", "passage N of the selected or the last answer"),
            ("all", "the whole branch"),
        ])
        .as_in("/copy b2")
        .completes(Words(&["last", "look", "all"])),
    command("park", "", "free the GPU; the next question brings it back", |a| a.alone(Request::Park)),
    command("unpark", "", "load a parked model again", |a| a.alone(Request::Unpark)),
    command("keys", "", "what the keys do", |a| a.alone(Local::Keys)),
    command("help", "[COMMAND|WORD]", "all commands, one of them, or by word", |a| local(Local::Help(a.rest())))
        .also(&["?", "commands"])
        .as_in("/help load")
        .completes(Commands),
    command("quit", "", "leave; everything is saved", |a| a.alone(Local::Quit)).also(&["exit", "bye", "q"]),
];

fn copy(a: &Args<'_>) -> Result<Outcome, String> {
    if let ["look", n] = a.words()?[..] {
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
