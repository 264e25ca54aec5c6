//! The table of slash commands, in the order of `/help`: a new command is a row here and, if its arguments are more than a
//! word, a function in `parsers`.

use super::Completes::{Commands, Documents, Nothing, Paths, Sessions, Words};
use super::WhileBusy::{Runs, Waits};
use super::args::{number_arg, parse_set, parse_spec};
use super::parsers::{branch, copy, desk, export, fork, library, load, local, preset, regen, theme, think};
use super::{Command, Local};
use crate::protocol::desk::{GotoTarget, Request};

macro_rules! command {
    ($name:literal $([$($alias:literal),*])?, $usage:literal, $help:literal, $example:literal, $wrong:literal, $busy:expr, $completes:expr, $parse:expr) => {
        Command { name: $name, aliases: &[$($($alias),*)?], usage: $usage, help: $help, example: $example, wrong: $wrong, busy: $busy, completes: $completes, parse: $parse }
    };
}

/// All commands, in the order of `/help`.
pub const COMMANDS: &[Command] = &[
    command!(
        "load",
        "PATH... [--as NAME] [--head N|--tail N] [--pages A-B] [--once] [--force]",
        "read files or folders; asks before large ones",
        "/load ~/notes.txt --as notes",
        "/load",
        Waits,
        Paths,
        load
    ),
    command!("docs", "", "documents of this conversation", "/docs", "/docs now", Runs, Nothing, |a| a
        .none()
        .and_then(|()| desk(Request::Docs))),
    command!(
        "unload",
        "NAME",
        "go back to before a document, on a new branch",
        "/unload notes",
        "/unload",
        Waits,
        Documents,
        |a| a.one("the name of a document; /docs lists them").and_then(|n| desk(Request::Unload(n)))
    ),
    command!("open", "NAME[:LINE]", "show a document at a line", "/open notes:120", "/open", Runs, Documents, |a| a
        .one("a document, for example notes:120")
        .and_then(|n| desk(Request::Open(n)))),
    command!(
        "library",
        "[list|add PATH|rm NAME|prune]",
        "the shelf of documents that need no second reading",
        "/library add book.txt",
        "/library burn",
        Runs,
        Words(&["list", "add", "rm", "prune"]),
        library
    ),
    command!(
        "new",
        "[NAME]",
        "start a new session; this one is saved",
        "/new thesis",
        "/new a b",
        Waits,
        Nothing,
        |a| a.at_most_one().and_then(|n| desk(Request::New(n)))
    ),
    command!("resume", "[NAME|last]", "open a session", "/resume last", "/resume a b", Waits, Sessions, |a| a
        .at_most_one()
        .and_then(|n| desk(n.map_or(Request::Sessions, Request::Resume)))),
    command!("sessions", "", "list of sessions", "/sessions", "/sessions x", Runs, Nothing, |a| a
        .none()
        .and_then(|()| desk(Request::Sessions))),
    command!("rename", "NAME", "name this session", "/rename thesis", "/rename", Runs, Nothing, |a| a
        .one("a name")
        .and_then(|n| desk(Request::Rename(n)))),
    command!(
        "delete",
        "[NAME]",
        "move a session to the trash; asks first",
        "/delete old",
        "/delete a b",
        Waits,
        Sessions,
        |a| a.at_most_one().and_then(|n| desk(Request::Delete(n)))
    ),
    command!("search", "TEXT", "search all sessions", "/search notice period", "/search", Runs, Nothing, |a| a
        .text("the words to look for")
        .and_then(|t| desk(Request::Search(t)))),
    command!(
        "export",
        "FILE [--md|--json|--txt] [--tree] [--with-state] [--force]",
        "write the conversation to a file",
        "/export talk.md --tree",
        "/export",
        Waits,
        Paths,
        export
    ),
    command!(
        "import",
        "FILE",
        "read a conversation exported as JSON",
        "/import talk.json",
        "/import",
        Waits,
        Paths,
        |a| a.one("a file").and_then(|p| desk(Request::Import(p)))
    ),
    command!("timeline", "", "tree of turns and checkpoints", "/timeline", "/timeline x", Runs, Nothing, |a| a
        .none()
        .and_then(|()| desk(Request::Timeline))),
    command!(
        "undo",
        "[N]",
        "take back N exchanges; the question returns to the input",
        "/undo 2",
        "/undo two",
        Waits,
        Nothing,
        |a| number_arg(a, 1).and_then(|n| desk(Request::Undo(n)))
    ),
    command!("redo", "[N]", "take back an undo", "/redo", "/redo two", Waits, Nothing, |a| number_arg(a, 1)
        .and_then(|n| desk(Request::Redo(n)))),
    command!(
        "regen"["retry"],
        "[#N] [COUNT] [temp=T] [seed=S]",
        "answer again, beside the old answer",
        "/regen #8 3 temp=0.9",
        "/regen temp=hot",
        Waits,
        Nothing,
        regen
    ),
    command!(
        "edit",
        "[#N]",
        "edit a message; sending makes a sibling",
        "/edit #3",
        "/edit three",
        Waits,
        Nothing,
        |a| a.message().and_then(|at| desk(Request::EditOpen(at)))
    ),
    command!(
        "continue",
        "[TEXT]",
        "go on after a stopped answer",
        "/continue Therefore",
        "",
        Waits,
        Nothing,
        |a| desk(Request::Continue(a.rest()))
    ),
    command!(
        "fork",
        "[#N] [NAME]",
        "new session that shares everything up to here",
        "/fork #7 what-if",
        "/fork #x",
        Waits,
        Nothing,
        fork
    ),
    command!(
        "branch",
        "[N|next|prev|NAME]",
        "go to another branch",
        "/branch next",
        "/branch a b",
        Waits,
        Words(&["next", "prev"]),
        branch
    ),
    command!(
        "mark",
        "NAME",
        "name this point; its state is always kept",
        "/mark before-annex",
        "/mark",
        Waits,
        Nothing,
        |a| a.one("a name").and_then(|n| desk(Request::Mark(n)))
    ),
    command!("goto", "NAME", "go to a mark", "/goto before-annex", "/goto", Waits, Nothing, |a| a
        .one("the name of a mark; /timeline shows them")
        .and_then(|n| desk(Request::Goto(GotoTarget::Mark(n))))),
    command!(
        "aside",
        "QUESTION",
        "ask without keeping question or answer",
        "/aside what was his name?",
        "/aside",
        Waits,
        Nothing,
        |a| a.text("a question").and_then(|t| desk(Request::Aside(t)))
    ),
    command!(
        "compact",
        "[INSTRUCTION]",
        "branch with a summary; the original stays",
        "/compact keep the dates",
        "",
        Waits,
        Nothing,
        |a| desk(Request::Compact(a.rest()))
    ),
    command!("stats", "", "speeds, acceptance, memory", "/stats", "/stats x", Runs, Nothing, |a| a
        .none()
        .and_then(|()| desk(Request::Stats))),
    command!("ctx", "", "tokens by message and document", "/ctx", "/ctx x", Runs, Nothing, |a| a
        .none()
        .and_then(|()| desk(Request::Context))),
    command!(
        "set",
        "[KEY VALUE]",
        "sampling and limits of this session",
        "/set temperature 0.3",
        "/set temperature 7",
        Runs,
        Words(&["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "seed", "max_tokens", "spec"]),
        |a| parse_set(a).and_then(|s| desk(Request::Set(s)))
    ),
    command!(
        "preset",
        "[NAME|save NAME|list]",
        "named settings: sampling, thinking, display, system text",
        "/preset save dossier",
        "/preset save",
        Runs,
        Words(&["list", "save", "default", "careful", "creative", "greedy"]),
        preset
    ),
    command!(
        "system",
        "[show|TEXT]",
        "show or set the system text",
        "/system Answer in one sentence.",
        "",
        Waits,
        Words(&["show"]),
        |a| desk(Request::System(a.rest().filter(|t| t != "show")))
    ),
    command!(
        "think",
        "on|off|auto|show|fold|hide",
        "whether the model thinks, and how thoughts are shown",
        "/think fold",
        "/think hard",
        Runs,
        Words(&["on", "off", "auto", "show", "fold", "hide"]),
        think
    ),
    command!(
        "spec",
        "[on|off|auto|N]",
        "speculative decoding",
        "/spec 5",
        "/spec 40",
        Runs,
        Words(&["on", "off", "auto"]),
        |a| parse_spec(a).and_then(|s| desk(Request::Spec(s)))
    ),
    command!(
        "save",
        "",
        "say how things stand; everything is saved as it happens",
        "/save",
        "/save x",
        Runs,
        Nothing,
        |a| a.none().and_then(|()| desk(Request::Save))
    ),
    command!(
        "copy",
        "[last|#N|bN|all]",
        "copy an answer or code block",
        "/copy b2",
        "/copy it",
        Runs,
        Words(&["last", "all"]),
        copy
    ),
    command!(
        "theme",
        "auto|dark|light|plain",
        "colours",
        "/theme light",
        "/theme pink",
        Runs,
        Words(&["auto", "dark", "light", "plain"]),
        theme
    ),
    command!("keys", "", "what the keys do", "/keys", "/keys x", Runs, Nothing, |a| a
        .none()
        .and_then(|()| local(Local::Keys))),
    command!("help", "[COMMAND]", "this list, or one command", "/help load", "/help a b", Runs, Commands, |a| a
        .at_most_one()
        .and_then(|n| local(Local::Help(n)))),
    command!("doctor", "", "check model, device, disk and terminal", "/doctor", "/doctor x", Runs, Nothing, |a| a
        .none()
        .and_then(|()| desk(Request::Doctor))),
    command!("quit"["exit"], "", "end; everything is saved", "/quit", "/quit now", Runs, Nothing, |a| a
        .none()
        .and_then(|()| local(Local::Quit))),
];

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    #[test]
    fn every_command_has_a_working_example_and_a_refused_one() {
        for c in COMMANDS {
            assert!(parse(c.example, None).is_ok_and(|p| p.command.name == c.name), "{}", c.example);
            assert!(!c.help.is_empty() && c.help.len() < 80, "{}", c.name);
            if c.wrong.is_empty() {
                assert!(c.usage.contains('['), "{}: only free text may have no error example", c.name);
            } else {
                let error = parse(c.wrong, None).err().unwrap_or_else(|| panic!("{} was accepted", c.wrong));
                assert!(error.starts_with(&format!("/{}: ", c.name)) && error.contains("Example: "), "{error}");
            }
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> =
            COMMANDS.iter().flat_map(|c| std::iter::once(c.name).chain(c.aliases.iter().copied())).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
