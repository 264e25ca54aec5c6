//! The table of requests and slash commands. A new command is a row of [`COMMANDS`] here; if it asks the desk for something
//! new, also a row of the requests, whose verb the desk has in `desk/dispatch.rs`.

use super::Completes::{After, Commands, Documents, Nothing, Paths, Sessions, Themes, Words};
use super::args::{Args, tokens};
use super::request::{WhileBusy, requests};
use super::words::{BranchTarget, CopyWhat, ExportFormat, GotoTarget, LibraryAction, LoadOptions, PresetAction};
use super::{Command, Group, Local, MOST_ANSWERS, Outcome};
use crate::protocol::engine::SpecMode;
use crate::settings::preset::BUILT_IN;
use crate::settings::row::Keeper;
use crate::settings::{Field, Kind, ThinkMode, session, table as settings};
use crate::transcript::MessageId;

requests! {
    /// Ask the model. Queued by the interface while busy.
    Ask(text: String), Waits => ask;
    /// Ask the model for several answers, each with a seed of its own.
    AskForSeveral {
        /// The question.
        text: String,
        /// How many answers.
        count: u64,
    }, Waits => ask_for_several;
    /// Stop reading or answering at the next token.
    Stop, Waits => stop;
    /// Answer to a question of the desk: the key of the chosen option.
    Choose {
        /// Of the question.
        question: u64,
        /// Key of the option.
        key: char,
    }, Waits => choose;
    /// Answer to the plan of a load: indices of the files to load, in order.
    ChooseFiles {
        /// Of the plan.
        question: u64,
        /// Indices into the plan's files, in loading order.
        files: Vec<usize>,
    }, Waits => choose_files;
    /// Alt-1..9: a session opened in this run, by its serial.
    Switch(serial: u64), Leaves => switch;
    /// The edited text comes back; makes a sibling.
    EditDone {
        /// Which message.
        message: MessageId,
        /// Its new text.
        text: String,
    }, Waits => edit_done;
    /// Stop, save what is left, end.
    Quit, Waits => quit;

    /// `/load`.
    Load {
        /// Files, folders, globs; `-` is the clipboard text in `inline`.
        paths: Vec<String>,
        /// Options.
        options: LoadOptions,
    }, Waits => load;
    /// `/docs`.
    Docs, Runs => docs;
    /// `/unload NAME`.
    Unload(name: String), Waits => unload;
    /// `/open NAME[:LINE]`.
    Open(name: String), Runs => open;
    /// `/library`.
    Library(action: LibraryAction), if *action == LibraryAction::List { Runs } else { Waits } => library;
    /// `/new [NAME]`.
    New(name: Option<String>), Leaves => new_session;
    /// `/resume NAME`; `last` is the most recent.
    Resume(name: String), Leaves => resume;
    /// `/sessions`, and `/resume` without a name.
    Sessions, Runs => sessions;
    /// `/rename NAME`.
    Rename(name: String), Waits => rename;
    /// `/delete [NAME]`.
    Delete(name: Option<String>), Waits => delete;
    /// `/search TEXT`.
    Search(text: String), Runs => search;
    /// `/export FILE`.
    Export {
        /// File to write; its extension chooses the format.
        path: String,
        /// By extension if `None`.
        format: Option<ExportFormat>,
        /// All branches.
        tree: bool,
        /// With model state, resumable elsewhere.
        with_state: bool,
        /// Overwrite.
        force: bool,
    }, Runs => export;
    /// `/import FILE`.
    Import(path: String), Waits => import;
    /// `/save`: says how things stand; everything is saved as it happens.
    Save, Runs => save;
    /// `/timeline`.
    Timeline, Runs => timeline;
    /// `/undo [N]`.
    Undo(count: u64), Waits => undo;
    /// `/redo [N]`.
    Redo(count: u64), Waits => redo;
    /// `/regen [#N] [COUNT] [temp=..] [seed=..]`, `/retry`.
    Regen {
        /// Which answer; the last if `None`.
        at: Option<u64>,
        /// How many siblings.
        count: u64,
        /// Temperature for these.
        temperature: Option<f32>,
        /// Seed for the first of these.
        seed: Option<u64>,
    }, Waits => regen;
    /// `/edit [#N]`: ask for the text of a message in order to edit it.
    EditOpen(at: Option<u64>), Waits => edit_open;
    /// `/continue [TEXT]`.
    Continue(text: Option<String>), Waits => go_on;
    /// `/fork [#N] [NAME]`.
    Fork {
        /// Where; the head if `None`.
        at: Option<u64>,
        /// Name of the new session.
        name: Option<String>,
    }, Waits => fork;
    /// `/branch`.
    Branch(target: BranchTarget), Waits => branch;
    /// `/mark NAME`.
    Mark(name: String), Waits => mark;
    /// `/goto NAME`, or a message from the timeline.
    Goto(target: GotoTarget), Waits => goto;
    /// `/aside QUESTION`.
    Aside(question: String), Apart => aside;
    /// Stop the aside that is written.
    StopAside, Waits => stop_aside;
    /// `/ask-all [--library GLOB] [--read] QUESTION`.
    AskAll {
        /// The question.
        question: String,
        /// Names of the documents that are meant; all if `None`.
        library: Option<String>,
        /// Documents without kept state are read first.
        read: bool,
    }, Waits => ask_all;
    /// `/when QUESTION`.
    When(question: String), Waits => when;
    /// Enter in the table of answers: a new session that ends with the answer of this row.
    OpenAsked(row: usize), Waits => open_asked;
    /// `/compact [instruction]`.
    Compact(instruction: Option<String>), Waits => compact;
    /// `/look [#N] [K]`: what an answer looked at; with `K` the passage of that number.
    Look {
        /// Which answer; the last if `None`.
        at: Option<u64>,
        /// Which passage, from 1; all if `None`.
        passage: Option<u64>,
    }, Runs => look;
    /// `/look [#N] sK`: what one sentence of an answer looked at.
    LookSentence {
        /// Which answer; the last if `None`.
        at: Option<u64>,
        /// Which of its sentences, from 1.
        sentence: u64,
    }, Runs => look_sentence;
    /// `/map`.
    Map, Runs => map;
    /// `/why [#N] [K]`: what an answer becomes less likely without.
    Why {
        /// Which answer; the last if `None`.
        at: Option<u64>,
        /// How many passages are hidden, one at a time.
        count: Option<u64>,
    }, Waits => why;
    /// `/stats`.
    Stats, Runs => stats;
    /// `/ctx`.
    Context, Runs => context;
    /// `/doctor`.
    Doctor, Runs => doctor;
    /// `/set KEY VALUE`; `None` lists.
    Set(change: Option<(String, String)>), Runs => set;
    /// `/preset`.
    Preset(action: PresetAction), Runs => preset;
    /// `/system [TEXT]`; `None` shows it.
    System(text: Option<String>), Waits => system;
    /// `/system edit`: ask for the system text in order to change it.
    SystemEdit, Waits => system_edit;
    /// `/think on|off|auto`: behaviour of the model.
    Think(mode: ThinkMode), Runs => think;
    /// `/spec`.
    Spec(mode: Option<SpecMode>), Runs => spec;
}

/// What rows leave out.
const ROW: Command = Command {
    name: "",
    aliases: &[],
    group: Group::Program,
    usage: "",
    help: "",
    options: &[],
    example: "",
    wrong: "",
    completes: Nothing,
    parse: |_| Err("means nothing".into()),
};

fn desk(request: Request) -> Result<Outcome, String> {
    Ok(Outcome::Desk(request))
}

fn local(what: Local) -> Result<Outcome, String> {
    Ok(Outcome::Local(what))
}

/// Words of other programs that have no single counterpart here, and what to type instead.
pub const HABITS: &[(&[&str], &str)] = &[
    (&["model", "models"], "The model is chosen at the start: sala-chat --model NAME. /stats says which one runs."),
    (&["history"], "/timeline shows the turns of this session, /sessions the others; Ctrl-R searches what was typed."),
    (&["reset", "restart"], "/new starts a new session and keeps this one; /undo takes back an exchange."),
    (&["stop", "cancel", "abort"], "Esc stops reading and answering."),
    (&["edit-last", "rewind"], "/undo takes back the last exchange, /edit #N opens a message."),
    (&["show", "info"], "/stats, /ctx and /settings show numbers, tokens and settings."),
    (&["temperature", "temp", "seed"], "/set temperature 0.3 or /set seed 7 changes it; /set lists what there is."),
    (&["pull", "download"], "sala-chat model download gets the model, outside the chat."),
    (&["run", "sh", "shell", "git", "commit", "web"], "This program runs nothing and fetches nothing for the model."),
];

/// All commands, in the order of `/help`.
pub const COMMANDS: &[Command] = &[
    Command {
        name: "load",
        aliases: &["add", "read"],
        group: Group::Documents,
        usage: "PATH... [--as NAME] [--head N|--tail N] [--pages A-B] [--once] [--force]",
        help: "read files or folders; asks before large ones",
        options: &[
            (
                "PATH",
                "a file, a folder (hidden files and those of .gitignore are left out), a glob; - is the clipboard",
            ),
            ("--as NAME", "the name by which you and the model speak of it; for one file"),
            ("--head N", "only its first N tokens: 4096, 64k"),
            ("--tail N", "only its last N tokens"),
            ("--pages A-B", "only these pages of a PDF, from 1"),
            ("--once", "do not keep it in the library: another session would read it again"),
            ("--force", "read bytes that are no text as Latin-1"),
        ],
        example: "/load ~/notes.txt --as notes",
        wrong: "/load",
        completes: Paths,
        parse: load,
    },
    Command {
        name: "docs",
        aliases: &["documents", "files"],
        group: Group::Documents,
        help: "documents of this conversation",
        example: "/docs",
        wrong: "/docs now",
        parse: |a| a.none().and_then(|()| desk(Request::Docs)),
        ..ROW
    },
    Command {
        name: "unload",
        aliases: &["drop"],
        group: Group::Documents,
        usage: "NAME",
        help: "go back to before a document, on a new branch",
        example: "/unload notes",
        wrong: "/unload",
        completes: Documents,
        parse: |a| a.one("the name of a document; /docs lists them").and_then(|n| desk(Request::Unload(n))),
        ..ROW
    },
    Command {
        name: "open",
        group: Group::Documents,
        usage: "NAME[:LINE]",
        help: "show a document at a line",
        example: "/open notes:120",
        wrong: "/open",
        completes: Documents,
        parse: open,
        ..ROW
    },
    Command {
        name: "library",
        group: Group::Documents,
        usage: "[list|add PATH|rm NAME|prune]",
        help: "the shelf of documents that need no second reading",
        options: &[
            ("list", "what is there, with sizes; the same as nothing"),
            ("add PATH", "read a document now, for later sessions"),
            ("rm NAME", "take one out"),
            ("prune", "drop those that no session uses"),
        ],
        example: "/library add book.txt",
        wrong: "/library burn",
        completes: Words(&["list", "add", "rm", "prune"]),
        parse: library,
        ..ROW
    },
    Command {
        name: "new",
        aliases: &["clear"],
        group: Group::Sessions,
        usage: "[NAME]",
        help: "start a new session; this one is saved",
        example: "/new thesis",
        wrong: "/new a b",
        parse: |a| a.at_most_one().and_then(|n| desk(Request::New(n))),
        ..ROW
    },
    Command {
        name: "resume",
        group: Group::Sessions,
        usage: "[NAME|last]",
        help: "open a session",
        example: "/resume last",
        wrong: "/resume a b",
        completes: Sessions,
        parse: |a| a.at_most_one().and_then(|n| desk(n.map_or(Request::Sessions, Request::Resume))),
        ..ROW
    },
    Command {
        name: "sessions",
        aliases: &["ls", "list"],
        group: Group::Sessions,
        help: "list of sessions",
        example: "/sessions",
        wrong: "/sessions x",
        parse: |a| a.none().and_then(|()| desk(Request::Sessions)),
        ..ROW
    },
    Command {
        name: "rename",
        group: Group::Sessions,
        usage: "NAME",
        help: "name this session",
        example: "/rename thesis",
        wrong: "/rename",
        parse: |a| a.one("a name").and_then(|n| desk(Request::Rename(n))),
        ..ROW
    },
    Command {
        name: "delete",
        group: Group::Sessions,
        usage: "[NAME]",
        help: "move a session to the trash; asks first",
        example: "/delete old",
        wrong: "/delete a b",
        completes: Sessions,
        parse: |a| a.at_most_one().and_then(|n| desk(Request::Delete(n))),
        ..ROW
    },
    Command {
        name: "search",
        aliases: &["find"],
        group: Group::Sessions,
        usage: "TEXT",
        help: "search all sessions",
        example: "/search notice period",
        wrong: "/search",
        parse: |a| a.text("the words to look for").and_then(|t| desk(Request::Search(t))),
        ..ROW
    },
    Command {
        name: "export",
        group: Group::Sessions,
        usage: "FILE [--md|--json|--txt] [--tree] [--with-state] [--force]",
        help: "write the conversation to a file",
        options: &[
            ("FILE", "its ending says the format: .md, .json, .txt"),
            ("--md", "Markdown, whatever the ending"),
            ("--json", "JSON, which /import reads"),
            ("--txt", "plain text"),
            ("--tree", "all branches, not this one alone"),
            ("--with-state", "with the model's state: another computer with the same model goes on without reading"),
            ("--force", "overwrite a file that is there"),
        ],
        example: "/export talk.md --tree",
        wrong: "/export talk.pdf",
        completes: Paths,
        parse: export,
        ..ROW
    },
    Command {
        name: "import",
        group: Group::Sessions,
        usage: "FILE",
        help: "read a conversation exported as JSON",
        example: "/import talk.json",
        wrong: "/import",
        completes: Paths,
        parse: |a| a.one("a file").and_then(|p| desk(Request::Import(p))),
        ..ROW
    },
    Command {
        name: "save",
        group: Group::Sessions,
        help: "how saving stands; all is saved as it happens",
        example: "/save",
        wrong: "/save x",
        parse: |a| a.none().and_then(|()| desk(Request::Save)),
        ..ROW
    },
    Command {
        name: "timeline",
        group: Group::Time,
        help: "tree of turns and checkpoints",
        example: "/timeline",
        wrong: "/timeline x",
        parse: |a| a.none().and_then(|()| desk(Request::Timeline)),
        ..ROW
    },
    Command {
        name: "undo",
        group: Group::Time,
        usage: "[N]",
        help: "take back N exchanges; the question comes back",
        example: "/undo 2",
        wrong: "/undo two",
        parse: |a| a.count(1).and_then(|n| desk(Request::Undo(n))),
        ..ROW
    },
    Command {
        name: "redo",
        group: Group::Time,
        usage: "[N]",
        help: "take back an undo",
        example: "/redo",
        wrong: "/redo two",
        parse: |a| a.count(1).and_then(|n| desk(Request::Redo(n))),
        ..ROW
    },
    Command {
        name: "regen",
        aliases: &["retry", "regenerate"],
        group: Group::Time,
        usage: "[#N] [COUNT] [temp=T] [seed=S]",
        help: "answer again, beside the old answer",
        options: &[
            ("#N", "the answer with this number, not the last"),
            ("COUNT", "how many answers, side by side, 1 to 9"),
            ("temp=T", "with this temperature"),
            ("seed=S", "with this seed"),
        ],
        example: "/regen #8 3 temp=0.9",
        wrong: "/regen temp=hot",
        parse: regen,
        ..ROW
    },
    Command {
        name: "edit",
        group: Group::Time,
        usage: "[#N]",
        help: "edit a message; sending makes a sibling",
        example: "/edit #3",
        wrong: "/edit three",
        parse: |a| a.message().and_then(|at| desk(Request::EditOpen(at))),
        ..ROW
    },
    Command {
        name: "continue",
        group: Group::Time,
        usage: "[TEXT]",
        help: "go on after a stopped answer",
        options: &[("TEXT", "what the rest of the answer begins with")],
        example: "/continue Therefore",
        parse: |a| desk(Request::Continue(a.rest())),
        ..ROW
    },
    Command {
        name: "fork",
        group: Group::Time,
        usage: "[#N] [NAME]",
        help: "new session that shares everything up to here",
        options: &[("#N", "up to this message"), ("NAME", "of the new session")],
        example: "/fork #7 what-if",
        wrong: "/fork #x",
        parse: fork,
        ..ROW
    },
    Command {
        name: "branch",
        group: Group::Time,
        usage: "[N|next|prev|NAME]",
        help: "go to another branch",
        example: "/branch next",
        wrong: "/branch a b",
        completes: Words(&["next", "prev"]),
        parse: branch,
        ..ROW
    },
    Command {
        name: "mark",
        group: Group::Time,
        usage: "NAME",
        help: "name this point; its state is always kept",
        example: "/mark before-annex",
        wrong: "/mark",
        parse: |a| a.one("a name").and_then(|n| desk(Request::Mark(n))),
        ..ROW
    },
    Command {
        name: "goto",
        group: Group::Time,
        usage: "NAME",
        help: "go to a mark",
        example: "/goto before-annex",
        wrong: "/goto",
        parse: |a| {
            let mark = a.one("the name of a mark; /timeline shows them")?;
            desk(Request::Goto(GotoTarget::Mark(mark)))
        },
        ..ROW
    },
    Command {
        name: "aside",
        aliases: &["btw"],
        group: Group::Time,
        usage: "QUESTION",
        help: "ask without keeping question or answer",
        example: "/aside what was his name?",
        wrong: "/aside",
        parse: |a| a.text("a question").and_then(|t| desk(Request::Aside(t))),
        ..ROW
    },
    Command {
        name: "ask-all",
        group: Group::Documents,
        usage: "[--library GLOB] [--read] QUESTION",
        help: "ask every document of the library, side by side",
        options: &[
            ("--library GLOB", "only documents whose names match"),
            ("--read", "read those whose state is not kept"),
        ],
        example: "/ask-all --library *.txt Who is the tenant?",
        wrong: "/ask-all",
        parse: ask_all,
        ..ROW
    },
    Command {
        name: "when",
        group: Group::Time,
        usage: "QUESTION",
        help: "from which line of the document on an answer holds",
        example: "/when who did it?",
        wrong: "/when",
        parse: |a| a.text("a question").and_then(|t| desk(Request::When(t))),
        ..ROW
    },
    Command {
        name: "compact",
        aliases: &["summarize"],
        group: Group::Time,
        usage: "[INSTRUCTION]",
        help: "branch with a summary; the original stays",
        example: "/compact keep the dates",
        parse: |a| desk(Request::Compact(a.rest())),
        ..ROW
    },
    Command {
        name: "set",
        group: Group::Settings,
        usage: "[KEY VALUE] [--save]",
        help: "sampling and limits of this session",
        options: &[("--save", "also in the settings file: any setting, for later starts too")],
        example: "/set temperature 0.3",
        wrong: "/set temperature 7",
        completes: After(set_words),
        parse: set,
        ..ROW
    },
    Command {
        name: "settings",
        aliases: &["config"],
        group: Group::Settings,
        usage: "[WORD]",
        help: "all settings, or those about a word",
        example: "/settings theme",
        parse: |a| local(Local::Settings(a.rest())),
        ..ROW
    },
    Command {
        name: "preset",
        group: Group::Settings,
        usage: "[NAME|save NAME|list]",
        help: "named sets of settings: take, save, list",
        options: &[
            ("NAME", "take this preset"),
            ("save NAME", "keep what is set now under this name"),
            ("list", "all of them; the same as nothing"),
        ],
        example: "/preset save dossier",
        wrong: "/preset save",
        completes: After(preset_words),
        parse: preset,
        ..ROW
    },
    Command {
        name: "system",
        group: Group::Settings,
        usage: "[show|edit|TEXT]",
        help: "show, change or set the system text",
        example: "/system Answer in one sentence.",
        completes: Words(&["show", "edit"]),
        parse: |a| match a.raw {
            "edit" => desk(Request::SystemEdit),
            _ => desk(Request::System(a.rest().filter(|t| t != "show"))),
        },
        ..ROW
    },
    Command {
        name: "think",
        group: Group::Settings,
        usage: "on|off|auto|show|fold|hide",
        help: "whether the model thinks; how thoughts are shown",
        options: &[
            ("on, off, auto", "whether the model thinks before it answers; auto is its own habit"),
            ("show, fold, hide", "thoughts always open, folded once the answer starts, or never shown"),
        ],
        example: "/think fold",
        wrong: "/think hard",
        completes: Words(&["on", "off", "auto", "show", "fold", "hide"]),
        parse: think,
        ..ROW
    },
    Command {
        name: "spec",
        group: Group::Settings,
        usage: "[on|off|auto|N]",
        help: "speculative decoding",
        options: &[("auto", "drafts where it pays"), ("N", "always drafts N tokens, 1 to 15")],
        example: "/spec 5",
        wrong: "/spec 40",
        completes: Words(&["on", "off", "auto"]),
        parse: |a| match a.at_most_one()? {
            None => desk(Request::Spec(None)),
            Some(word) => {
                let (row, value) = session::parse("spec", &word)?;
                desk(Request::Spec(Some(SpecMode::from_value(&value).ok_or_else(|| row.kind.range())?)))
            }
        },
        ..ROW
    },
    Command {
        name: "theme",
        group: Group::Settings,
        usage: "[NAME|FILE]",
        help: "colours: choose from a list that shows them",
        options: &[
            ("auto, dark, light, plain", "built in; auto asks the terminal, plain has no colour"),
            ("NAME", "NAME.toml of the folder themes beside the settings file"),
            ("FILE", "a theme file elsewhere"),
        ],
        example: "/theme light",
        wrong: "/theme a b",
        completes: Themes,
        parse: |a| match a.at_most_one()? {
            None => local(Local::Themes),
            Some(name) => change("theme", &name),
        },
        ..ROW
    },
    Command {
        name: "stats",
        group: Group::Numbers,
        help: "speeds, acceptance, memory",
        example: "/stats",
        wrong: "/stats x",
        parse: |a| a.none().and_then(|()| desk(Request::Stats)),
        ..ROW
    },
    Command {
        name: "look",
        aliases: &["sources", "looked"],
        group: Group::Documents,
        usage: "[#N] [K|sK]",
        help: "which lines an answer looked at",
        options: &[
            ("#N", "the answer with this number, not the last"),
            ("K", "open the passage of this number, as `[K]` below the answer"),
            ("sK", "what its sentence of this number looked at; /look lists them"),
        ],
        example: "/look #8 s2",
        wrong: "/look two",
        parse: look,
        ..ROW
    },
    Command {
        name: "why",
        group: Group::Documents,
        usage: "[#N] [K]",
        help: "does an answer rest on what it looked at?",
        options: &[
            ("#N", "the answer with this number, not the last"),
            ("K", "hide the first K passages, one at a time (3)"),
        ],
        example: "/why #8 2",
        wrong: "/why not",
        parse: |a| answer_and_number(a).and_then(|(at, count)| desk(Request::Why { at, count })),
        ..ROW
    },
    Command {
        name: "map",
        group: Group::Numbers,
        help: "the context as a map, shaded by what was looked at",
        example: "/map",
        wrong: "/map x",
        parse: |a| a.none().and_then(|()| desk(Request::Map)),
        ..ROW
    },
    Command {
        name: "ctx",
        aliases: &["context", "tokens"],
        group: Group::Numbers,
        help: "tokens by message and document",
        example: "/ctx",
        wrong: "/ctx x",
        parse: |a| a.none().and_then(|()| desk(Request::Context)),
        ..ROW
    },
    Command {
        name: "doctor",
        group: Group::Numbers,
        help: "check model, device, disk and terminal",
        example: "/doctor",
        wrong: "/doctor x",
        parse: |a| a.none().and_then(|()| desk(Request::Doctor)),
        ..ROW
    },
    Command {
        name: "copy",
        group: Group::Program,
        usage: "[last|#N|bN|look N|all]",
        help: "copy an answer, code block or passage",
        options: &[
            ("last", "the last answer; the same as nothing"),
            ("#N", "message N"),
            ("bN", "code block N of the selected or the last answer"),
            ("look N", "passage N that the selected or the last answer looked at"),
            ("all", "the whole branch"),
        ],
        example: "/copy b2",
        wrong: "/copy it",
        completes: Words(&["last", "look", "all"]),
        parse: copy,
        ..ROW
    },
    Command {
        name: "keys",
        group: Group::Program,
        help: "what the keys do",
        example: "/keys",
        wrong: "/keys x",
        parse: |a| a.none().and_then(|()| local(Local::Keys)),
        ..ROW
    },
    Command {
        name: "help",
        aliases: &["?", "commands"],
        group: Group::Program,
        usage: "[COMMAND|WORD]",
        help: "all commands, one of them, or those about a word",
        example: "/help load",
        completes: Commands,
        parse: |a| local(Local::Help(a.rest())),
        ..ROW
    },
    Command {
        name: "quit",
        aliases: &["exit", "bye", "q"],
        group: Group::Program,
        help: "end; everything is saved",
        example: "/quit",
        wrong: "/quit now",
        parse: |a| a.none().and_then(|()| local(Local::Quit)),
        ..ROW
    },
];

fn load(a: &Args<'_>) -> Result<Outcome, String> {
    let mut options = LoadOptions::default();
    let mut paths = Vec::new();
    let mut words = a.words()?.iter();
    while let Some(word) = words.next() {
        let mut value = |what: &str| words.next().cloned().ok_or(format!("{word} needs {what}"));
        match word.as_str() {
            "--as" => options.name = Some(value("a name")?),
            "--head" => options.head = Some(tokens(&value("a number of tokens")?)?),
            "--tail" => options.tail = Some(tokens(&value("a number of tokens")?)?),
            "--pages" => {
                let range = value("pages, for example 3-9")?;
                let (first, last) = range.split_once('-').unwrap_or((&range, &range));
                let page = |t: &str| t.parse::<u32>().ok().filter(|n| *n > 0);
                match (page(first), page(last)) {
                    (Some(first), Some(last)) if first <= last => options.pages = Some((first, last)),
                    _ => {
                        return Err(format!("--pages {range} are no pages; write for example 3-9"));
                    }
                }
            }
            "--once" => options.once = true,
            "--force" => options.force = true,
            flag if flag.starts_with("--") => return Err(no_option("load", flag)),
            path => paths.push(path.to_string()),
        }
    }
    if paths.is_empty() {
        return Err("needs a file, folder or glob".into());
    }
    if options.head.is_some() && options.tail.is_some() {
        return Err("takes --head or --tail, not both".into());
    }
    desk(Request::Load { paths, options })
}

/// What is said to an option that a command does not have.
fn no_option(command: &str, flag: &str) -> String {
    let all = super::find(command).map_or(&[][..], |c| c.options);
    let names: Vec<&str> = all.iter().filter_map(|(o, _)| o.split(' ').next()).filter(|o| o.starts_with('-')).collect();
    format!("there is no option {flag}; {} exist", names.join(", "))
}

fn library(a: &Args<'_>) -> Result<Outcome, String> {
    let words: Vec<&str> = a.words()?.iter().map(String::as_str).collect();
    desk(Request::Library(match words.as_slice() {
        [] | ["list"] => LibraryAction::List,
        ["add", path] => LibraryAction::Add((*path).into()),
        ["rm", name] => LibraryAction::Remove((*name).into()),
        ["prune"] => LibraryAction::Prune,
        _ => return Err("takes list, add PATH, rm NAME or prune".into()),
    }))
}

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
            file => path = Some(file.to_string()),
        }
    }
    let path = path.ok_or("needs a file name")?;
    if format.is_none() && !with_state {
        ExportFormat::of_path(std::path::Path::new(&path))
            .map_err(|why| format!("{why}, and --md, --json, --txt say it for any name"))?;
    }
    desk(Request::Export { path, format, tree, with_state, force })
}

fn regen(a: &Args<'_>) -> Result<Outcome, String> {
    let (mut at, mut count, mut temperature, mut seed) = (None, 1, None, None);
    for word in a.words()? {
        if let Some(n) = word.strip_prefix('#') {
            at = Some(n.parse().map_err(|_| format!("{word} is no message number"))?);
        } else if let Some(t) = word.strip_prefix("temp=") {
            let (row, value) = session::parse("temperature", t)?;
            temperature = Some(f32::from_value(&value).ok_or_else(|| row.kind.range())?);
        } else if let Some(s) = word.strip_prefix("seed=") {
            seed = Some(s.parse().map_err(|_| format!("seed must be a whole number (got {s})"))?);
        } else {
            count = word
                .parse()
                .ok()
                .filter(|n| (1..=MOST_ANSWERS).contains(n))
                .ok_or(format!("COUNT must be 1 to {MOST_ANSWERS} (got {word})"))?;
        }
    }
    desk(Request::Regen { at, count, temperature, seed })
}

fn ask_all(a: &Args<'_>) -> Result<Outcome, String> {
    let (mut rest, mut library, mut read) = (a.raw, None, false);
    while let Some(option) = rest.split_whitespace().next().filter(|word| word.starts_with("--")) {
        rest = rest.get(option.len()..).unwrap_or("").trim_start();
        match option {
            "--read" => read = true,
            "--library" => {
                let glob = rest.split_whitespace().next().ok_or("--library needs a pattern of names")?;
                library = Some(glob.to_owned());
                rest = rest.get(glob.len()..).unwrap_or("").trim_start();
            }
            other => return Err(format!("there is no option {other}")),
        }
    }
    if rest.is_empty() {
        return Err("needs a question".into());
    }
    desk(Request::AskAll { question: rest.to_owned(), library, read })
}

fn fork(a: &Args<'_>) -> Result<Outcome, String> {
    let (mut at, mut name) = (None, None);
    for word in a.words()? {
        match word.strip_prefix('#') {
            Some(n) => at = Some(n.parse().map_err(|_| format!("{word} is no message number"))?),
            None if name.is_some() => return Err("takes one name; put quotes around spaces".into()),
            None => name = Some(word.clone()),
        }
    }
    desk(Request::Fork { at, name })
}

fn branch(a: &Args<'_>) -> Result<Outcome, String> {
    let word = a.at_most_one()?;
    desk(Request::Branch(match word.as_deref() {
        None => BranchTarget::List,
        Some("next") => BranchTarget::Next,
        Some("prev") => BranchTarget::Prev,
        Some(w) => w.parse().map_or_else(|_| BranchTarget::Name(w.into()), BranchTarget::Number),
    }))
}

/// `/set KEY VALUE`, checked here so that the answer comes at once.
fn set(a: &Args<'_>) -> Result<Outcome, String> {
    let words: Vec<&str> = a.words()?.iter().map(String::as_str).collect();
    let save = words.contains(&"--save");
    let words: Vec<&str> = words.into_iter().filter(|w| *w != "--save").collect();
    match words.as_slice() {
        [key, value] if save => {
            let row =
                settings::find_short(key).ok_or_else(|| format!("no setting is called {key}; /settings lists them"))?;
            let shown = row
                .kind
                .parse(value)
                .map(|v| row.kind.show(&v))
                .map_err(|_| format!("{key} must be {}", row.kind.range()))?;
            local(Local::Save { key: row.name, value: shown, now: change(key, value).ok().map(Box::new) })
        }
        _ if save => Err("--save needs a key and a value".into()),
        [] => desk(Request::Set(None)),
        [key, value] => change(key, value),
        [key] => Err(match settings::session_row(key) {
            Some(row) if row.name == "ui.theme" => return local(Local::Themes),
            Some(row) if matches!(row.kind, Kind::Named(..)) => return local(Local::Names(row)),
            Some(row) => format!("{key} needs a value: {}", row.kind.range()),
            None => session::parse(key, "").err().unwrap_or_default(),
        }),
        _ => Err("takes a key and a value".into()),
    }
}

/// One setting changed, by whoever keeps it.
fn change(key: &str, value: &str) -> Result<Outcome, String> {
    let (row, value) = session::parse(key, value)?;
    let shown = row.kind.show(&value);
    match row.session.map(|way| (way.name, way.keeper)) {
        Some((name, Keeper::Session(..))) => desk(Request::Set(Some((name.to_owned(), shown)))),
        Some((_, Keeper::Screen)) | None => local(Local::Show(vec![(row.name, shown)])),
    }
}

fn set_words(before: &[&str]) -> Vec<&'static str> {
    match before {
        [] => settings::session_rows().map(|(_, way)| way.name).collect(),
        [key] => settings::session_row(key).map(|row| row.kind.words()).unwrap_or_default(),
        _ => Vec::new(),
    }
}

fn preset(a: &Args<'_>) -> Result<Outcome, String> {
    let words: Vec<&str> = a.words()?.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] | ["list"] => desk(Request::Preset(PresetAction::List)),
        ["save"] => Err("needs a name to save under".into()),
        // How things are shown is known to the interface, which adds it.
        ["save", name] => desk(Request::Preset(PresetAction::Save { name: (*name).into(), display: Vec::new() })),
        [name] => desk(Request::Preset(PresetAction::Take((*name).into()))),
        _ => Err("takes NAME, save NAME or list".into()),
    }
}

fn preset_words(before: &[&str]) -> Vec<&'static str> {
    match before {
        [] => ["list", "save"].into_iter().chain(BUILT_IN.iter().map(|p| p.name)).collect(),
        _ => Vec::new(),
    }
}

fn think(a: &Args<'_>) -> Result<Outcome, String> {
    match a.at_most_one()?.as_deref() {
        Some("on") => desk(Request::Think(ThinkMode::On)),
        Some("off") => desk(Request::Think(ThinkMode::Off)),
        Some("auto") => desk(Request::Think(ThinkMode::Auto)),
        Some("show") => change("thoughts", "open"),
        Some(word @ ("fold" | "hide")) => change("thoughts", word),
        _ => Err("takes on, off, auto (the model) or show, fold, hide (the screen)".into()),
    }
}

fn open(a: &Args<'_>) -> Result<Outcome, String> {
    let name = a.one("a document, for example notes:120")?;
    // `[1]` is written below an answer.
    let inner = name.strip_prefix('[').and_then(|n| n.strip_suffix(']'));
    match inner.and_then(|n| n.parse().ok()).filter(|n| *n > 0) {
        Some(passage) => desk(Request::Look { at: None, passage: Some(passage) }),
        None => desk(Request::Open(name)),
    }
}

/// `/look [#N] [K|sK]`.
fn look(a: &Args<'_>) -> Result<Outcome, String> {
    let number = |word: &str, mark: char| word.strip_prefix(mark)?.parse::<u64>().ok().filter(|n| *n > 0);
    let (sentence, answer) = (|word: &str| number(word, 's'), |word: &str| number(word, '#'));
    let words: Vec<&str> = a.words()?.iter().map(String::as_str).collect();
    let named = match words.as_slice() {
        [word] => sentence(word).map(|sentence| (None, sentence)),
        [at, word] => answer(at).zip(sentence(word)).map(|(at, sentence)| (Some(at), sentence)),
        _ => None,
    };
    match named {
        Some((at, sentence)) => desk(Request::LookSentence { at, sentence }),
        None => answer_and_number(a).and_then(|(at, passage)| desk(Request::Look { at, passage })),
    }
}

/// `#N` and `K`, each if it is there.
fn answer_and_number(a: &Args<'_>) -> Result<(Option<u64>, Option<u64>), String> {
    let (mut at, mut passage) = (None, None);
    for word in a.words()? {
        let plain = word.trim_start_matches('[').trim_end_matches(']');
        match (word.strip_prefix('#').map(str::parse), plain.parse()) {
            (Some(Ok(n)), _) if n > 0 && at.is_none() => at = Some(n),
            (None, Ok(n)) if n > 0 && passage.is_none() => passage = Some(n),
            _ => return Err("takes an answer as #N and a number of passages, for example #8 2".into()),
        }
    }
    Ok((at, passage))
}

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
