//! Slash commands: one table that feeds the parser, the popup, `/help`, the documentation and the tests.
//!
//! A line is a command when it starts with a single `/`. Words are split as a shell does: quotes and `\ ` keep spaces,
//! `~` is the home directory. Parsing never touches the disk; every error says what would have been right.

use super::command_args::{Args, number_arg, parse_set, parse_spec, split_words};
use super::options::{ThemeName, ThinkShow};
use crate::protocol::desk::{
    BranchTarget, ExportFormat, GotoTarget, LibraryAction, LoadOptions, PresetAction, Request,
    ThinkMode,
};

/// What a command does.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Ask the desk.
    Desk(Request),
    /// Done by the interface.
    Local(Local),
}

/// Commands the interface does itself.
#[derive(Clone, Debug, PartialEq)]
pub enum Local {
    /// `/copy`.
    Copy(CopyWhat),
    /// `/theme NAME`.
    Theme(ThemeName),
    /// `/keys`.
    Keys,
    /// `/help [CMD]`.
    Help(Option<String>),
    /// `/think show|fold|hide`.
    ThinkShow(ThinkShow),
    /// `/quit`.
    Quit,
}

/// What `/copy` copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyWhat {
    /// The last answer.
    Last,
    /// Message `#n`.
    Message(u64),
    /// Code block n of the selected or last answer.
    Block(usize),
    /// The whole branch.
    All,
}

/// What Tab completes after the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completes {
    /// Nothing.
    Nothing,
    /// Paths.
    Paths,
    /// Names of sessions.
    Sessions,
    /// Names of documents of this conversation.
    Documents,
    /// Names of commands.
    Commands,
    /// Fixed words.
    Words(&'static [&'static str]),
}

/// Whether a command can run while the model reads or answers; others wait in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhileBusy {
    /// Runs at once.
    Runs,
    /// Is queued.
    Waits,
}

/// A row of the table.
pub struct Command {
    /// Without the slash.
    pub name: &'static str,
    /// Other names.
    pub aliases: &'static [&'static str],
    /// Arguments as shown in help.
    pub usage: &'static str,
    /// One line.
    pub help: &'static str,
    /// A line that parses.
    pub example: &'static str,
    /// A line that is refused; empty when everything is accepted.
    pub wrong: &'static str,
    /// While reading or answering.
    pub busy: WhileBusy,
    /// For Tab.
    pub completes: Completes,
    parse: fn(&Args<'_>) -> Result<Outcome, String>,
}

use Completes::{Commands, Documents, Nothing, Paths, Sessions, Words};
use WhileBusy::{Runs, Waits};

macro_rules! command {
    ($name:literal $([$($alias:literal),*])?, $usage:literal, $help:literal, $example:literal, $wrong:literal, $busy:expr, $completes:expr, $parse:expr) => {
        Command { name: $name, aliases: &[$($($alias),*)?], usage: $usage, help: $help, example: $example, wrong: $wrong, busy: $busy, completes: $completes, parse: $parse }
    };
}

fn desk(request: Request) -> Result<Outcome, String> {
    Ok(Outcome::Desk(request))
}

fn local(what: Local) -> Result<Outcome, String> {
    Ok(Outcome::Local(what))
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
    command!(
        "docs",
        "",
        "documents of this conversation",
        "/docs",
        "/docs now",
        Runs,
        Nothing,
        |a| a.none().and_then(|()| desk(Request::Docs))
    ),
    command!(
        "unload",
        "NAME",
        "go back to before a document, on a new branch",
        "/unload notes",
        "/unload",
        Waits,
        Documents,
        |a| a
            .one("the name of a document; /docs lists them")
            .and_then(|n| desk(Request::Unload(n)))
    ),
    command!(
        "open",
        "NAME[:LINE]",
        "show a document at a line",
        "/open notes:120",
        "/open",
        Runs,
        Documents,
        |a| a
            .one("a document, for example notes:120")
            .and_then(|n| desk(Request::Open(n)))
    ),
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
    command!(
        "resume",
        "[NAME|last]",
        "open a session",
        "/resume last",
        "/resume a b",
        Waits,
        Sessions,
        |a| a
            .at_most_one()
            .and_then(|n| desk(n.map_or(Request::Sessions, Request::Resume)))
    ),
    command!(
        "sessions",
        "",
        "list of sessions",
        "/sessions",
        "/sessions x",
        Runs,
        Nothing,
        |a| a.none().and_then(|()| desk(Request::Sessions))
    ),
    command!(
        "rename",
        "NAME",
        "name this session",
        "/rename thesis",
        "/rename",
        Runs,
        Nothing,
        |a| a.one("a name").and_then(|n| desk(Request::Rename(n)))
    ),
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
    command!(
        "search",
        "TEXT",
        "search all sessions",
        "/search notice period",
        "/search",
        Runs,
        Nothing,
        |a| a
            .text("the words to look for")
            .and_then(|t| desk(Request::Search(t)))
    ),
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
    command!(
        "timeline",
        "",
        "tree of turns and checkpoints",
        "/timeline",
        "/timeline x",
        Runs,
        Nothing,
        |a| a.none().and_then(|()| desk(Request::Timeline))
    ),
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
    command!(
        "redo",
        "[N]",
        "take back an undo",
        "/redo",
        "/redo two",
        Waits,
        Nothing,
        |a| number_arg(a, 1).and_then(|n| desk(Request::Redo(n)))
    ),
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
    command!(
        "goto",
        "NAME",
        "go to a mark",
        "/goto before-annex",
        "/goto",
        Waits,
        Nothing,
        |a| a
            .one("the name of a mark; /timeline shows them")
            .and_then(|n| desk(Request::Goto(GotoTarget::Mark(n))))
    ),
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
    command!(
        "stats",
        "",
        "speeds, acceptance, memory",
        "/stats",
        "/stats x",
        Runs,
        Nothing,
        |a| a.none().and_then(|()| desk(Request::Stats))
    ),
    command!(
        "ctx",
        "",
        "tokens by message and document",
        "/ctx",
        "/ctx x",
        Runs,
        Nothing,
        |a| a.none().and_then(|()| desk(Request::Context))
    ),
    command!(
        "set",
        "[KEY VALUE]",
        "sampling and limits of this session",
        "/set temperature 0.3",
        "/set temperature 7",
        Runs,
        Words(&[
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "repeat_penalty",
            "seed",
            "max_tokens",
            "spec"
        ]),
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
    command!(
        "keys",
        "",
        "what the keys do",
        "/keys",
        "/keys x",
        Runs,
        Nothing,
        |a| a.none().and_then(|()| local(Local::Keys))
    ),
    command!(
        "help",
        "[COMMAND]",
        "this list, or one command",
        "/help load",
        "/help a b",
        Runs,
        Commands,
        |a| a.at_most_one().and_then(|n| local(Local::Help(n)))
    ),
    command!(
        "doctor",
        "",
        "check model, device, disk and terminal",
        "/doctor",
        "/doctor x",
        Runs,
        Nothing,
        |a| a.none().and_then(|()| desk(Request::Doctor))
    ),
    command!(
        "quit"["exit"],
        "",
        "end; everything is saved",
        "/quit",
        "/quit now",
        Runs,
        Nothing,
        |a| a.none().and_then(|()| local(Local::Quit))
    ),
];

/// A line that was understood.
pub struct Parsed {
    /// Its row.
    pub command: &'static Command,
    /// What to do.
    pub outcome: Outcome,
}

/// Whether a line is a command. A space in front or `//` makes it a message.
pub fn is_command(line: &str) -> bool {
    line.starts_with('/') && !line.starts_with("//") && line.len() > 1
}

/// The message a line that is no command stands for: `//x` is `/x`.
pub fn message_text(line: &str) -> String {
    match line.strip_prefix("//") {
        Some(rest) => format!("/{rest}"),
        None => line.to_string(),
    }
}

/// A command by name or alias.
pub fn find(name: &str) -> Option<&'static Command> {
    COMMANDS
        .iter()
        .find(|c| c.name == name || c.aliases.contains(&name))
}

/// Parses a command line (with its slash).
///
/// # Errors
/// One line for the user: unknown command with the nearest name, or what the arguments should have been.
pub fn parse(line: &str, home: Option<&std::path::Path>) -> Result<Parsed, String> {
    let body = line.trim_start_matches('/').trim();
    let (name, rest) = body.split_once(char::is_whitespace).unwrap_or((body, ""));
    let lower = name.to_lowercase();
    let Some(command) = find(&lower) else {
        let near = nearest(&lower).map_or(String::new(), |n| format!("Did you mean /{n}? "));
        return Err(format!("No command /{name}. {near}(/help lists all)"));
    };
    let outcome = (command.parse)(&Args {
        raw: rest.trim(),
        split: split_words(rest, home),
    })
    .map_err(|e| format!("/{}: {e}. Example: {}", command.name, command.example))?;
    Ok(Parsed { command, outcome })
}

/// The command name nearest to a typo, if near enough to be meant.
pub fn nearest(name: &str) -> Option<&'static str> {
    COMMANDS
        .iter()
        .flat_map(|c| std::iter::once(&c.name).chain(c.aliases))
        .map(|n| (distance(name, n), *n))
        .filter(|(d, n)| *d <= 1 + n.len() / 4)
        .min()
        .map(|(_, n)| n)
}

/// Edits (insert, delete, replace, swap of neighbours) between two words.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut table = vec![vec![0usize; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            table[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let same = usize::from(a[i - 1] != b[j - 1]);
                let mut best = (table[i - 1][j] + 1)
                    .min(table[i][j - 1] + 1)
                    .min(table[i - 1][j - 1] + same);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    best = best.min(table[i - 2][j - 2] + 1);
                }
                best
            };
        }
    }
    table[a.len()][b.len()]
}

fn load(a: &Args<'_>) -> Result<Outcome, String> {
    let mut options = LoadOptions::default();
    let mut paths = Vec::new();
    let mut words = a.words()?.iter();
    while let Some(word) = words.next() {
        let mut value = |what: &str| words.next().cloned().ok_or(format!("{word} needs {what}"));
        match word.as_str() {
            "--as" => options.name = Some(value("a name")?),
            "--head" => {
                options.head = Some(super::command_args::tokens(&value("a number of tokens")?)?)
            }
            "--tail" => {
                options.tail = Some(super::command_args::tokens(&value("a number of tokens")?)?)
            }
            "--pages" => {
                let range = value("pages, for example 3-9")?;
                let (first, last) = range.split_once('-').unwrap_or((&range, &range));
                let page = |t: &str| t.parse::<u32>().ok().filter(|n| *n > 0);
                match (page(first), page(last)) {
                    (Some(first), Some(last)) if first <= last => {
                        options.pages = Some((first, last))
                    }
                    _ => {
                        return Err(format!(
                            "--pages {range} are no pages; write for example 3-9"
                        ));
                    }
                }
            }
            "--once" => options.once = true,
            "--force" => options.force = true,
            flag if flag.starts_with("--") => return Err(format!("there is no option {flag}")),
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
    let (mut path, mut format, mut tree, mut with_state, mut force) =
        (None, None, false, false, false);
    for word in a.words()? {
        match word.as_str() {
            "--md" => format = Some(ExportFormat::Markdown),
            "--json" => format = Some(ExportFormat::Json),
            "--txt" => format = Some(ExportFormat::Text),
            "--tree" => tree = true,
            "--with-state" => with_state = true,
            "--force" => force = true,
            flag if flag.starts_with("--") => return Err(format!("there is no option {flag}")),
            _ if path.is_some() => return Err("takes one file".into()),
            file => path = Some(file.to_string()),
        }
    }
    let path = path.ok_or("needs a file name")?;
    desk(Request::Export {
        path,
        format,
        tree,
        with_state,
        force,
    })
}

fn regen(a: &Args<'_>) -> Result<Outcome, String> {
    let (mut at, mut count, mut temperature, mut seed) = (None, 1, None, None);
    for word in a.words()? {
        if let Some(n) = word.strip_prefix('#') {
            at = Some(
                n.parse()
                    .map_err(|_| format!("{word} is no message number"))?,
            );
        } else if let Some(t) = word.strip_prefix("temp=") {
            let t: f32 = t
                .parse()
                .ok()
                .filter(|t| (0.0..=2.0).contains(t))
                .ok_or(format!("temp must be 0 to 2 (got {t})"))?;
            temperature = Some(t);
        } else if let Some(s) = word.strip_prefix("seed=") {
            seed = Some(
                s.parse()
                    .map_err(|_| format!("seed must be a whole number (got {s})"))?,
            );
        } else {
            count = word
                .parse()
                .ok()
                .filter(|n| (1..=16).contains(n))
                .ok_or(format!("COUNT must be 1 to 16 (got {word})"))?;
        }
    }
    desk(Request::Regen {
        at,
        count,
        temperature,
        seed,
    })
}

fn fork(a: &Args<'_>) -> Result<Outcome, String> {
    let (mut at, mut name) = (None, None);
    for word in a.words()? {
        match word.strip_prefix('#') {
            Some(n) => {
                at = Some(
                    n.parse()
                        .map_err(|_| format!("{word} is no message number"))?,
                )
            }
            None if name.is_some() => return Err("takes one name".into()),
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
        Some(w) => w
            .parse()
            .map_or_else(|_| BranchTarget::Name(w.into()), BranchTarget::Number),
    }))
}

fn preset(a: &Args<'_>) -> Result<Outcome, String> {
    let words: Vec<&str> = a.words()?.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] | ["list"] => desk(Request::Preset(PresetAction::List)),
        ["save"] => Err("needs a name to save under".into()),
        // How things are shown is known to the interface, which adds it.
        ["save", name] => desk(Request::Preset(PresetAction::Save {
            name: (*name).into(),
            display: Vec::new(),
        })),
        [name] => desk(Request::Preset(PresetAction::Take((*name).into()))),
        _ => Err("takes NAME, save NAME or list".into()),
    }
}

fn think(a: &Args<'_>) -> Result<Outcome, String> {
    let word = a.at_most_one()?;
    match word.as_deref() {
        Some("on") => desk(Request::Think(ThinkMode::On)),
        Some("off") => desk(Request::Think(ThinkMode::Off)),
        Some("auto") => desk(Request::Think(ThinkMode::Auto)),
        Some("show") => local(Local::ThinkShow(ThinkShow::Open)),
        Some("fold") => local(Local::ThinkShow(ThinkShow::Fold)),
        Some("hide") => local(Local::ThinkShow(ThinkShow::Hide)),
        _ => Err("takes on, off, auto (the model) or show, fold, hide (the screen)".into()),
    }
}

fn copy(a: &Args<'_>) -> Result<Outcome, String> {
    let word = a.at_most_one()?;
    let what = match word.as_deref() {
        None | Some("last") => CopyWhat::Last,
        Some("all") => CopyWhat::All,
        Some(w) => match (
            w.strip_prefix('#').map(str::parse),
            w.strip_prefix('b').map(str::parse),
        ) {
            (Some(Ok(n)), _) => CopyWhat::Message(n),
            (_, Some(Ok(n))) if n > 0 => CopyWhat::Block(n),
            _ => return Err("takes last, #N (a message), bN (a code block) or all".into()),
        },
    };
    local(Local::Copy(what))
}

fn theme(a: &Args<'_>) -> Result<Outcome, String> {
    let name = a.one("auto, dark, light or plain")?;
    let theme = ThemeName::parse(&name).ok_or(format!(
        "there is no theme {name}; auto, dark, light and plain exist"
    ))?;
    local(Local::Theme(theme))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_working_example_and_a_refused_one() {
        for c in COMMANDS {
            assert!(
                parse(c.example, None).is_ok_and(|p| p.command.name == c.name),
                "{}",
                c.example
            );
            assert!(!c.help.is_empty() && c.help.len() < 80, "{}", c.name);
            if c.wrong.is_empty() {
                assert!(
                    c.usage.contains('['),
                    "{}: only free text may have no error example",
                    c.name
                );
            } else {
                let error = parse(c.wrong, None)
                    .err()
                    .unwrap_or_else(|| panic!("{} was accepted", c.wrong));
                assert!(
                    error.starts_with(&format!("/{}: ", c.name)) && error.contains("Example: "),
                    "{error}"
                );
            }
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = COMMANDS
            .iter()
            .flat_map(|c| std::iter::once(c.name).chain(c.aliases.iter().copied()))
            .collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn unknown_command_names_the_nearest() {
        assert_eq!(
            parse("/lod", None).err().unwrap(),
            "No command /lod. Did you mean /load? (/help lists all)"
        );
        assert_eq!(
            parse("/zzzzzz", None).err().unwrap(),
            "No command /zzzzzz. (/help lists all)"
        );
        assert_eq!(nearest("resmue"), Some("resume"));
    }

    #[test]
    fn slash_messages_can_be_sent() {
        assert!(
            !is_command(" /etc") && !is_command("//etc") && !is_command("/") && is_command("/quit")
        );
        assert_eq!(message_text("//etc is a folder"), "/etc is a folder");
    }

    #[test]
    fn load_takes_paths_and_options() {
        let home = std::path::Path::new("/home/u");
        let p = parse(
            r#"/load "my file.txt" ~/b\ c.md --head 4k --pages 2-9 --once"#,
            Some(home),
        )
        .unwrap();
        let options = LoadOptions {
            head: Some(4000),
            pages: Some((2, 9)),
            once: true,
            ..LoadOptions::default()
        };
        assert_eq!(
            p.outcome,
            Outcome::Desk(Request::Load {
                paths: vec!["my file.txt".into(), "/home/u/b c.md".into()],
                options
            })
        );
        assert!(parse("/load 'open", None).err().unwrap().contains("quote"));
        assert!(parse("/load a --head x", None).is_err());
    }
}
