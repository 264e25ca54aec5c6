//! Conversations as a whole.

use super::super::Completes::{Paths, Sessions};
use super::super::args::Args;
use super::super::words::ExportFormat;
use super::super::{Command, Local, Outcome, Request};
use super::{ROW, alone, bare, no_option, runtime};

pub(super) const ROWS: &[Command] = &[
    Command {
        name: "new",
        aliases: &["clear"],
        usage: "[NAME]",
        help: "start a new session; this one is saved",
        example: "/new thesis",
        parse: |a| a.at_most_one().and_then(|n| runtime(Request::New(n))),
        ..ROW
    },
    Command {
        name: "resume",
        usage: "[NAME|last]",
        help: "open a session",
        example: "/resume last",
        completes: Sessions,
        parse: |a| a.at_most_one().and_then(|n| runtime(n.map_or(Request::Sessions, Request::Resume))),
        ..ROW
    },
    bare("split", &["vsplit"], "show two sessions, from 160 columns", |a| alone(a, Outcome::Local(Local::Split))),
    bare("sessions", &["ls", "list"], "list of sessions", |a| alone(a, Outcome::Runtime(Request::Sessions))),
    Command {
        name: "rename",
        usage: "[SESSION] NAME",
        help: "name this session, or another one",
        example: "/rename thesis",
        completes: Sessions,
        parse: |a| match a.words()? {
            [session, name] => runtime(Request::RenameOther { session: session.clone(), name: name.clone() }),
            _ => a.one("a name").and_then(|n| runtime(Request::Rename(n))),
        },
        ..ROW
    },
    Command {
        name: "title",
        usage: "TEXT",
        help: "give this session a title for the list",
        example: "/title The notice period in annex C",
        parse: |a| a.text("a title").and_then(|t| runtime(Request::Title(t))),
        ..ROW
    },
    Command {
        name: "pin",
        usage: "[NAME]",
        help: "pin or unpin a session in the list",
        example: "/pin thesis",
        completes: Sessions,
        parse: |a| a.at_most_one().and_then(|n| runtime(Request::Pin(n))),
        ..ROW
    },
    Command {
        name: "delete",
        usage: "[NAME]",
        help: "move a session to the trash; asks first",
        example: "/delete old",
        completes: Sessions,
        parse: |a| a.at_most_one().and_then(|n| runtime(Request::Delete(n))),
        ..ROW
    },
    Command {
        name: "search",
        aliases: &["find"],
        usage: "TEXT",
        help: "search all sessions",
        example: "/search notice period",
        parse: |a| a.text("the words to look for").and_then(|t| runtime(Request::Search(t))),
        ..ROW
    },
    Command {
        name: "export",
        usage: "FILE [--md|--json|--txt] [--tree] [--with-state] [--force]",
        help: "write the conversation to a file",
        options: &[
            ("FILE", "format by ending: .md, .json, .txt"),
            ("--md", "Markdown"),
            ("--json", "JSON, which /import reads"),
            ("--txt", "plain text"),
            ("--tree", "all branches"),
            ("--with-state", "include model state: another computer with the same model need not read again"),
            ("--force", "overwrite an existing file"),
        ],
        example: "/export talk.md --tree",
        completes: Paths,
        parse: export,
        ..ROW
    },
    Command {
        name: "import",
        usage: "FILE",
        help: "import a conversation from JSON",
        example: "/import talk.json",
        completes: Paths,
        parse: |a| a.one("a file").and_then(|p| runtime(Request::Import(p))),
        ..ROW
    },
    bare("save", &[], "show the save status", |a| alone(a, Outcome::Runtime(Request::Save))),
];

fn export(a: &Args<'_>) -> Result<Outcome, String> {
    let (mut path, mut format, mut tree, mut with_state, mut force) = (None, None, false, false, false);
    for word in a.words()? {
        match word.as_str() {
            "--md" => format = Some(ExportFormat::Markdown),
            "--json" => format = Some(ExportFormat::Json),
            "--txt" => format = Some(ExportFormat::Text),
            "--tree" => tree = true,
            "--with-state" => with_state = true,
            "--force" => force = true,
            flag if flag.starts_with("--") => return Err(no_option("export", flag)),
            _ if path.is_some() => return Err("takes one file; put quotes around spaces".into()),
            "-" => return Err("- is not a file; to print a session: sala-chat export NAME -".into()),
            file => path = Some(file.to_string()),
        }
    }
    let path = path.ok_or("needs a file name")?;
    if with_state && (tree || format.is_some()) {
        return Err("--with-state has its own format: leave out --tree, --md, --json and --txt".into());
    }
    if format.is_none() && !with_state {
        ExportFormat::of_path(std::path::Path::new(&path))
            .map_err(|why| format!("{why}, or add --md, --json or --txt"))?;
    }
    runtime(Request::Export { path, format, tree, with_state, force })
}
