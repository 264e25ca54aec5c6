//! Reading files, the library, and what answers looked at.

use super::super::Completes::{Documents, Paths, Words};
use super::super::args::{Args, next_word, tokens};
use super::super::words::{LibraryAction, LoadOptions};
use super::super::{Command, Local, Outcome, Request};
use super::{command, local, no_option, runtime};

pub(super) const ROWS: &[Command] = &[
    command(
        "load",
        "PATH... [--as NAME] [--head N|--tail N] [--pages A-B] [--once] [--force]",
        "read files or folders; asks before large ones",
        load,
    )
    .also(&["add", "read"])
    .options(&[
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
    ])
    .as_in("/load ~/notes.txt --as notes")
    .completes(Paths),
    command("follow", "PATH...|off", "load files or folders and notice their changes", follow)
        .options(&[
            ("PATH", "a file, a folder or a glob, as for /load; without it, lists what is followed"),
            ("off", "follow nothing any more; ./off is a file"),
        ])
        .as_in("/follow src docs/plan.md")
        .completes(Paths),
    command("changes", "", "what changed in the files that are followed", |a| a.alone(Request::Changes)),
    command("since", "[QUESTION]", "ask about what changed since the last question", |a| {
        runtime(Request::Since(a.rest()))
    })
    .as_in("/since Are there errors?"),
    command("refresh", "", "read changed files anew, on a new branch", |a| a.alone(Request::Refresh)),
    command("watch", "[QUESTION|off [N]]", "answer a question again after each change", watch)
        .options(&[
            ("QUESTION", "shows its answer when it differs; without it, lists what is watched"),
            ("off [N]", "ends one watch, or all"),
        ])
        .as_in("/watch Which tests fail?"),
    command("docs", "", "documents of this conversation", |a| a.alone(Request::Docs)).also(&["documents", "files"]),
    command("unload", "NAME", "remove a document, on a new branch", |a| {
        runtime(Request::Unload(a.one("the name of a document; /docs lists them")?))
    })
    .also(&["drop"])
    .as_in("/unload notes")
    .completes(Documents),
    command("open", "NAME[:LINE]", "show a document at a line", open).as_in("/open notes:120").completes(Documents),
    command("library", "[list|add PATH|rm NAME|prune]", "documents already read, ready to reuse", library)
        .options(&[
            ("list", "list the documents with their sizes (default)"),
            ("add PATH", "read a document now, for later sessions"),
            ("rm NAME", "remove a document"),
            ("prune", "remove documents that no session uses"),
        ])
        .as_in("/library add book.txt")
        .completes(Words(&["list", "add", "rm", "prune"])),
    command("ask-all", "[--library GLOB] [--read] QUESTION", "ask every document of the library", ask_all)
        .options(&[
            ("--library GLOB", "only documents whose names match"),
            ("--read", "also read documents whose state is not kept"),
        ])
        .as_in("/ask-all --library *.txt Who is the tenant?"),
    command("look", "[#N] [K|sK]", "the passages behind an answer", look)
        .also(&["sources", "looked"])
        .options(&[
            ("#N", "the answer with this number instead of the last"),
            ("K", "open passage K"),
            ("sK", "the passages behind this sentence; /look lists them"),
        ])
        .as_in("/look #8 s2"),
    command("quotes", "[#N]", "check the quotes of an answer", |a| runtime(Request::Quotes(a.message()?)))
        .also(&["quote", "cite"])
        .options(&[("#N", "the answer with this number instead of the last")])
        .as_in("/quotes #8"),
    command("why", "[#N] [K]", "test whether an answer depends on its passages", |a| {
        answer_and_number(a).and_then(|(at, count)| runtime(Request::Why { at, count }))
    })
    .options(&[
        ("#N", "the answer with this number instead of the last"),
        ("K", "number of passages to test, one at a time (3)"),
    ])
    .as_in("/why #8 2"),
];

fn load(a: &Args<'_>) -> Result<Outcome, String> {
    let mut options = LoadOptions::default();
    let mut paths = Vec::new();
    let mut words = a.words()?.into_iter();
    while let Some(word) = words.next() {
        let mut value = |what: &str| words.next().ok_or(format!("{word} needs {what}"));
        match word {
            "--as" => options.name = Some(value("a name")?.to_owned()),
            "--head" => options.head = Some(tokens(value("a number of tokens")?)?),
            "--tail" => options.tail = Some(tokens(value("a number of tokens")?)?),
            "--pages" => options.pages = Some(pages(value("pages, for example 3-9")?)?),
            "--once" => options.once = true,
            "--force" => options.force = true,
            flag if flag.starts_with("--") => return Err(no_option("load", flag)),
            name if name.starts_with('@') && name.len() > 1 => options.library.push(name[1..].to_owned()),
            path => paths.push(path.to_string()),
        }
    }
    if paths.is_empty() && options.library.is_empty() {
        let bare = options == LoadOptions::default();
        return if bare { local(Local::Complete("/load ".into())) } else { Err("needs a file, folder or glob".into()) };
    }
    if options.head.is_some() && options.tail.is_some() {
        return Err("takes --head or --tail, not both".into());
    }
    runtime(Request::Load { paths, options })
}

fn pages(range: &str) -> Result<(u32, u32), String> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let pages = first.parse().ok().zip(last.parse().ok()).filter(|(first, last)| (1..=*last).contains(first));
    pages.ok_or_else(|| format!("--pages takes a range such as 3-9, not {range}"))
}

fn follow(a: &Args<'_>) -> Result<Outcome, String> {
    let paths = a.words()?;
    match paths.iter().find(|path| path.starts_with("--")) {
        Some(flag) => Err(no_option("follow", flag)),
        None if paths == ["off"] => runtime(Request::FollowNothing),
        None => runtime(Request::Follow(paths.into_iter().map(str::to_owned).collect())),
    }
}

fn watch(a: &Args<'_>) -> Result<Outcome, String> {
    match a.raw.split_whitespace().collect::<Vec<_>>()[..] {
        [] => runtime(Request::Watch(None)),
        ["off"] => runtime(Request::WatchNothing(None)),
        ["off", n] => {
            runtime(Request::WatchNothing(Some(n.parse().map_err(|_| format!("off takes a number, not {n}"))?)))
        }
        _ => runtime(Request::Watch(Some(a.raw.to_owned()))),
    }
}

fn library(a: &Args<'_>) -> Result<Outcome, String> {
    runtime(Request::Library(match a.words()?[..] {
        [] | ["list" | "ls"] => LibraryAction::List,
        ["add", path] => LibraryAction::Add(path.into()),
        ["rm", name] => LibraryAction::Remove(name.into()),
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
    let named = match a.words()?[..] {
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
