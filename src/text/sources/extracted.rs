//! Runs child processes that read documents, and this program as one: the text that it extracts from a document.

use std::process::Command;

use super::super::child::{self, Failed, Limits};
use super::super::extract::{CHILD, Kind, MEMORY_BYTES, Page};
use super::{Cause, Found, Problem, Remark, SourceOptions};
use crate::core::plain_words;
use crate::engine::protocol::Cancel;

const READER: &str = "the reader";

/// An extension in the form that selects a converter.
pub(super) fn extension(written: &str) -> String {
    written.trim_start_matches('.').to_lowercase()
}

pub(super) fn run(
    command: Result<Command, Failed>,
    program: &str,
    options: &SourceOptions,
    cancel: &Cancel,
    failed: impl Fn(String, Cause) -> Problem,
) -> Result<Vec<u8>, Problem> {
    let limits = Limits { time: options.convert_time, output_bytes: options.max_file_bytes };
    let output = command.and_then(|command| child::run(command, &[], limits, cancel));
    output.map_err(|e| match e {
        Failed::Start(e) => failed(format!("{program} did not start ({})", plain_words(&e)), Cause::Start),
        Failed::TimedOut => failed(format!("reading took over {} s", limits.time.as_secs()), Cause::Content),
        Failed::TooLong => failed("its text is larger than load.max_file_mib".to_owned(), Cause::Size),
        Failed::Cancelled => Problem::Cancelled,
        Failed::Killed(_) if program == READER => {
            let most = MEMORY_BYTES >> 30;
            let why = "of memory, or breaks the reader: it is damaged or hostile";
            failed(format!("reading it needs more than {most} GiB {why}"), Cause::Content)
        }
        Failed::Killed(why) | Failed::Refused(why) => failed(why, Cause::Content),
    })
}

/// The text, pages separated by form feeds, and how it was read or what is missing.
pub(super) fn read(
    found: &Found,
    kind: Kind,
    options: &SourceOptions,
    cancel: &Cancel,
) -> Result<(String, Option<Remark>), Problem> {
    let failed = |reason: String, cause: Cause| {
        let extension = extension(&found.path.extension().unwrap_or_default().to_string_lossy());
        Problem::Document { reason, extension, cause }
    };
    let command = child::confined(&options.reader, &[CHILD.as_ref(), found.path.as_ref()]);
    let output = run(command, READER, options, cancel, failed)?;
    let pages: Vec<Page> = serde_json::from_slice(&output).map_err(|e| failed(e.to_string(), Cause::Content))?;
    if kind != Kind::Pdf {
        let guessed = pages.iter().find_map(|page| page.guessed.clone());
        let text: String = pages.into_iter().map(|page| page.text).collect();
        if text.trim().is_empty() {
            return Err(failed("there is no text in it".to_owned(), Cause::Content));
        }
        let way = kind.name().map(|name| Remark::Way(format!("read as {name}, without its markup")));
        let unclear = guessed.map(|name| Remark::Missing(format!("encoding unclear; read as {name}")));
        return Ok((text, unclear.or(way)));
    }
    let count = pages.len();
    let (first, last) = options.pages.map_or((1, count), |(first, last)| (first as usize, last as usize));
    let chosen =
        first.checked_sub(1).and_then(|from| pages.get(from..count.min(last))).filter(|pages| !pages.is_empty());
    let Some(chosen) = chosen else {
        let (first, last) = options.pages.unwrap_or_default();
        return Err(Problem::NoSuchPages { first, last, pages: count });
    };
    if chosen.iter().all(|page| page.failed) {
        return Err(failed("it is damaged: no page could be read".to_owned(), Cause::Content));
    }
    if chosen.iter().all(|page| page.text.trim().is_empty()) {
        if chosen.iter().any(|page| page.partial) {
            return Err(failed("its fonts cannot be read".to_owned(), Cause::Content));
        }
        return Err(Problem::NoTextLayer { pages: count });
    }
    let texts: Vec<&str> = chosen.iter().map(|page| page.text.trim_end()).collect();
    Ok((texts.join("\n\u{0C}\n"), missing(chosen, first).map(Remark::Missing)))
}

/// What is missing, by the numbers of the pages.
fn missing(pages: &[Page], first: usize) -> Option<String> {
    let numbered = |is: &dyn Fn(&Page) -> bool| {
        let numbers: Vec<usize> = pages.iter().zip(first..).filter(|(page, _)| is(page)).map(|(_, n)| n).collect();
        page_numbers(&numbers)
    };
    let failed = numbered(&|page| page.failed).map(|pages| format!("{pages} could not be read"));
    let empty = numbered(&|page| !page.failed && !page.partial && page.text.trim().is_empty());
    let empty = empty.map(|pages| format!("no text on {pages} (perhaps a scan)"));
    let cut = numbered(&|page| page.cut).map(|pages| format!("only part of {pages} could be read"));
    let partial = numbered(&|page| page.partial && !page.cut);
    let partial = partial.map(|pages| format!("some characters of {pages} could not be read"));
    let all: Vec<String> = [failed, empty, cut, partial].into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// `page 2`, `pages 2-4 and 9`.
fn page_numbers(numbers: &[usize]) -> Option<String> {
    let runs: Vec<String> = numbers
        .chunk_by(|a, b| a + 1 == *b)
        .filter_map(|run| Some((run.first()?, run.last()?)))
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") })
        .collect();
    let word = if numbers.len() == 1 { "page" } else { "pages" };
    match runs.split_last()? {
        (last, []) => Some(format!("{word} {last}")),
        (last, before) => Some(format!("{word} {} and {last}", before.join(", "))),
    }
}
