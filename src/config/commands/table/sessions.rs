//! Conversations as a whole.

use super::super::Completes::{Paths, Sessions};
use super::super::args::Args;
use super::super::words::ExportFormat;
use super::super::{Command, Local, Outcome, Request};
use super::{command, no_option, runtime};

pub(super) const ROWS: &[Command] = &[
    command("new", "[NAME]", "start a new session; this one is saved", |a| runtime(Request::New(a.at_most_one()?)))
        .also(&["clear"])
        .as_in("/new thesis"),
    command("resume", "[NAME|last]", "open a session", |a| {
        runtime(a.at_most_one()?.map_or(Request::Sessions, Request::Resume))
    })
    .as_in("/resume last")
    .completes(Sessions),
    command("split", "", "show two sessions, from 160 columns", |a| a.alone(Local::Split)).also(&["vsplit"]),
    command("sessions", "", "list of sessions", |a| a.alone(Request::Sessions)).also(&["ls", "list"]),
    command("rename", "[SESSION] NAME", "name this session, or another one", |a| match a.words()?[..] {
        [session, name] => runtime(Request::RenameOther { session: session.into(), name: name.into() }),
        _ => runtime(Request::Rename(a.one("a name")?)),
    })
    .as_in("/rename thesis")
    .completes(Sessions),
    command("title", "TEXT", "give this session a title for the list", |a| runtime(Request::Title(a.text("a title")?)))
        .as_in("/title The notice period in annex C"),
    command("pin", "[NAME]", "pin or unpin a session in the list", |a| runtime(Request::Pin(a.at_most_one()?)))
        .as_in("/pin thesis")
        .completes(Sessions),
    command("delete", "[NAME]", "move a session to the trash; asks first", |a| {
        runtime(Request::Delete(a.at_most_one()?))
    })
    .as_in("/delete old")
    .completes(Sessions),
    command("search", "TEXT", "search all sessions", |a| runtime(Request::Search(a.text("the words to look for")?)))
        .also(&["find"])
        .as_in("/search notice period"),
    command(
        "export",
        "FILE [--md|--json|--txt] [--tree] [--with-state] [--force]",
        "write the conversation to a file",
        export,
    )
    .options(&[
        ("FILE", "format by ending: .md, .json, .txt"),
        ("--md", "Markdown"),
        ("--json", "JSON, which /import reads"),
        ("--txt", "plain text"),
        ("--tree", "all branches"),
        ("--with-state", "include model state: another computer with the same model need not read again"),
        ("--force", "overwrite an existing file"),
    ])
    .as_in("/export talk.md --tree")
    .completes(Paths),
    command("import", "FILE", "import a conversation from JSON", |a| runtime(Request::Import(a.one("a file")?)))
        .as_in("/import talk.json")
        .completes(Paths),
    command("save", "", "show the save status", |a| a.alone(Request::Save)),
];

fn export(a: &Args<'_>) -> Result<Outcome, String> {
    let (mut path, mut format, mut tree, mut with_state, mut force) = (None, None, false, false, false);
    for word in a.words()? {
        match word {
            "--md" => format = Some(ExportFormat::Markdown),
            "--json" => format = Some(ExportFormat::Json),
            "--txt" => format = Some(ExportFormat::Text),
            "--tree" => tree = true,
            "--with-state" => with_state = true,
            "--force" => force = true,
            flag if flag.starts_with("--") => return Err(no_option("export", flag)),
            _ if path.is_some() => return Err("takes one file; put quotes around spaces".into()),
            "-" => return Err("- is not a file; to print a session: sala-chat export NAME -".into()),
            file => path = Some(file.to_owned()),
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
