//! Reading files, the library, and what answers looked at.

use super::super::Completes::{Documents, Paths, Words};
use super::super::args::{Args, next_word, tokens};
use super::super::words::{LibraryAction, LoadOptions};
use super::super::{Command, Local, Outcome, Request};
use super::{ROW, alone, bare, local, no_option, runtime};

pub(super) const ROWS: &[Command] = &[
    Command {
        name: "load",
        aliases: &["add", "read"],
        usage: "PATH... [--as NAME] [--head N|--tail N] [--pages A-B] [--once] [--force]",
        help: "read files or folders; asks before large ones",
        options: &[
            (
                "PATH",
                "a file, a folder (hidden files and those of .gitignore are left out), a glob; without it, a list to choose from",
            ),
            ("@NAME", "a document from the library; ./@NAME is a file"),
            ("--as NAME", "name of the document, for a single file"),
            ("--head N", "only its first N tokens: 4096, 64k"),
            ("--tail N", "only its last N tokens"),
            ("--pages A-B", "only these pages of a PDF, from 1"),
            ("--once", "do not add it to the library"),
            ("--force", "read a file that is not text as Latin-1"),
        ],
        example: "/load ~/notes.txt --as notes",
        completes: Paths,
        parse: load,
        ..ROW
    },
    Command {
        name: "follow",
        usage: "PATH...|off",
        help: "load files or folders and notice their changes",
        options: &[
            ("PATH", "a file, a folder or a glob, as for /load; without it, lists what is followed"),
            ("off", "follow nothing any more; ./off is a file"),
        ],
        example: "/follow src docs/plan.md",
        completes: Paths,
        parse: follow,
        ..ROW
    },
    bare("changes", &[], "what changed in the files that are followed", |a| {
        alone(a, Outcome::Runtime(Request::Changes))
    }),
    Command {
        name: "since",
        usage: "[QUESTION]",
        help: "ask about what changed since the last question",
        example: "/since Are there errors?",
        parse: |a| runtime(Request::Since(Some(a.raw.to_owned()).filter(|question| !question.is_empty()))),
        ..ROW
    },
    bare("refresh", &[], "read changed files anew, on a new branch", |a| alone(a, Outcome::Runtime(Request::Refresh))),
    Command {
        name: "watch",
        usage: "[QUESTION|off [N]]",
        help: "answer a question again after each change",
        options: &[
            ("QUESTION", "shows its answer when it differs; without it, lists what is watched"),
            ("off [N]", "ends one watch, or all"),
        ],
        example: "/watch Which tests fail?",
        parse: watch,
        ..ROW
    },
    bare("docs", &["documents", "files"], "documents of this conversation", |a| {
        alone(a, Outcome::Runtime(Request::Docs))
    }),
    Command {
        name: "unload",
        aliases: &["drop"],
        usage: "NAME",
        help: "remove a document, on a new branch",
        example: "/unload notes",
        completes: Documents,
        parse: |a| a.one("the name of a document; /docs lists them").and_then(|n| runtime(Request::Unload(n))),
        ..ROW
    },
    Command {
        name: "open",
        usage: "NAME[:LINE]",
        help: "show a document at a line",
        example: "/open notes:120",
        completes: Documents,
        parse: open,
        ..ROW
    },
    Command {
        name: "library",
        usage: "[list|add PATH|rm NAME|prune]",
        help: "documents already read, ready to reuse",
        options: &[
            ("list", "list the documents with their sizes (default)"),
            ("add PATH", "read a document now, for later sessions"),
            ("rm NAME", "remove a document"),
            ("prune", "remove documents that no session uses"),
        ],
        example: "/library add book.txt",
        completes: Words(&["list", "add", "rm", "prune"]),
        parse: library,
        ..ROW
    },
    Command {
        name: "ask-all",
        usage: "[--library GLOB] [--read] QUESTION",
        help: "ask every document of the library",
        options: &[
            ("--library GLOB", "only documents whose names match"),
            ("--read", "also read documents whose state is not kept"),
        ],
        example: "/ask-all --library *.txt Who is the tenant?",
        parse: ask_all,
        ..ROW
    },
    Command {
        name: "look",
        aliases: &["sources", "looked"],
        usage: "[#N] [K|sK]",
        help: "the passages behind an answer",
        options: &[
            ("#N", "the answer with this number instead of the last"),
            ("K", "open passage K"),
            ("sK", "the passages behind this sentence; /look lists them"),
        ],
        example: "/look #8 s2",
        parse: look,
        ..ROW
    },
    Command {
        name: "quotes",
        aliases: &["quote", "cite"],
        usage: "[#N]",
        help: "check the quotes of an answer",
        options: &[("#N", "the answer with this number instead of the last")],
        example: "/quotes #8",
        parse: |a| a.message().and_then(|at| runtime(Request::Quotes(at))),
        ..ROW
    },
    Command {
        name: "why",
        usage: "[#N] [K]",
        help: "test whether an answer depends on its passages",
        options: &[
            ("#N", "the answer with this number instead of the last"),
            ("K", "number of passages to test, one at a time (3)"),
        ],
        example: "/why #8 2",
        parse: |a| answer_and_number(a).and_then(|(at, count)| runtime(Request::Why { at, count })),
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
            name if name.starts_with('@') && name.len() > 1 => options.library.push(name[1..].to_owned()),
            path => paths.push(path.to_string()),
        }
    }
    if paths.is_empty() && options.library.is_empty() {
        let bare = options == LoadOptions::default();
        return if bare { local(Local::Files) } else { Err("needs a file, folder or glob".into()) };
    }
    if options.head.is_some() && options.tail.is_some() {
        return Err("takes --head or --tail, not both".into());
    }
    runtime(Request::Load { paths, options })
}

fn follow(a: &Args<'_>) -> Result<Outcome, String> {
    let paths = a.words()?.to_vec();
    match paths.iter().find(|path| path.starts_with("--")) {
        Some(flag) => Err(no_option("follow", flag)),
        None if paths == ["off"] => runtime(Request::FollowNothing),
        None => runtime(Request::Follow(paths)),
    }
}

fn watch(a: &Args<'_>) -> Result<Outcome, String> {
    match a.raw.split_whitespace().collect::<Vec<_>>().as_slice() {
        [] => runtime(Request::Watch(None)),
        ["off"] => runtime(Request::WatchNothing(None)),
        ["off", n] => match n.parse() {
            Ok(n) => runtime(Request::WatchNothing(Some(n))),
            Err(_) => Err(format!("off takes a number, not {n}")),
        },
        _ => runtime(Request::Watch(Some(a.raw.to_owned()))),
    }
}

fn library(a: &Args<'_>) -> Result<Outcome, String> {
    let words: Vec<&str> = a.words()?.iter().map(String::as_str).collect();
    runtime(Request::Library(match words.as_slice() {
        [] | ["list" | "ls"] => LibraryAction::List,
        ["add", path] => LibraryAction::Add((*path).into()),
        ["rm", name] => LibraryAction::Remove((*name).into()),
        ["prune"] => LibraryAction::Prune,
        _ => return Err("takes list, add PATH, rm NAME or prune".into()),
    }))
}

fn ask_all(a: &Args<'_>) -> Result<Outcome, String> {
    let (mut rest, mut library, mut read) = (a.raw, None, false);
    while let Some(option) = rest.split_whitespace().next().filter(|word| word.starts_with("--")) {
        rest = rest.get(option.len()..).unwrap_or("").trim_start();
        match option {
            "--read" => read = true,
            "--library" => {
                let (glob, after) = next_word(rest, None)?.ok_or("--library needs a pattern of names")?;
                library = Some(glob);
                rest = after.trim_start();
            }
            other => return Err(format!("unknown option {other}")),
        }
    }
    if rest.is_empty() {
        return Err("needs a question".into());
    }
    runtime(Request::AskAll { question: rest.to_owned(), library, read })
}

fn open(a: &Args<'_>) -> Result<Outcome, String> {
    let name = a.one("a document, for example notes:120")?;
    // `[1]` is written below an answer.
    let inner = name.strip_prefix('[').and_then(|n| n.strip_suffix(']'));
    match inner.and_then(|n| n.parse().ok()).filter(|n| *n > 0) {
        Some(passage) => runtime(Request::Look { at: None, passage: Some(passage) }),
        None => runtime(Request::Open(name)),
    }
}

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
        Some((at, sentence)) => runtime(Request::LookSentence { at, sentence }),
        None => answer_and_number(a).and_then(|(at, passage)| runtime(Request::Look { at, passage })),
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
