//! `sala-chat -p`: one answer on standard output as text, one JSON object or JSON lines, from a runtime without an
//! interface. `facts` collects the answers, `printer` writes them.

mod facts;
mod printer;

use std::io::{IsTerminal, Read};
use std::path::Path;
use std::time::Instant;

use serde_json::json;

use super::args::{ChatArgs, Format};
use super::notices::{self, Attended};
use super::{Context, Exit, Failure, STDIN, jobs, open};
use crate::core::files::below_home;
use crate::core::transcript::{Finish, Role};
use crate::runtime::protocol::{Activity, Level, LoadOptions, Notice, Request, SaveState, SessionView};
use crate::runtime::{Attendance, Input};
use crate::text::{Decoded, decode};
use crate::tui::mention::{self, Meant};
use facts::Run;
pub(super) use facts::{looked_at, reason};
use printer::Printer;

const STDIN_NAME: &str = "stdin";

pub(super) fn means_stdin(path: &str) -> bool {
    [STDIN, "/dev/stdin"].contains(&path)
}

fn piped(context: &Context) -> Result<Option<String>, Failure> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Ok(None);
    }
    let bytes = read_piped(stdin.lock(), context.config().load.max_file_mib)?;
    let Decoded { text, guessed } = decode(bytes, false).map_err(|what| {
        Failure::new(Exit::Failure, format!("standard input: not text ({what})"))
            .hint("Convert it to text first, or put it into a file and load that (-f FILE)")
    })?;
    if let Some(encoding) = guessed {
        context.warn(&format!("standard input: encoding unclear; read as {encoding}"));
    }
    Ok((!text.trim().is_empty()).then_some(text))
}

fn read_piped(input: impl Read, most_mib: u64) -> Result<Vec<u8>, Failure> {
    let most = most_mib.saturating_mul(1 << 20);
    let mut bytes = Vec::new();
    let read = input.take(most.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|e| Failure::new(Exit::Failure, format!("standard input: {e}")))?;
    if bytes.len() as u64 > most {
        return Err(Failure::new(Exit::TooLong, format!("standard input: more than {most_mib} MiB"))
            .hint("Raise load.max_file_mib or split it"));
    }
    Ok(bytes)
}

pub fn run(context: &Context, ask: &ChatArgs, prompt: &str) -> Result<Exit, Failure> {
    if prompt.trim().is_empty() {
        return Err(Failure::new(Exit::Usage, "there is no question: -p needs a text")
            .hint("For example: sala-chat -p \"What is in it?\" -f FILE"));
    }
    let inline = piped(context)?;
    if inline.is_none() && ask.paths.iter().any(|p| means_stdin(p)) {
        return Err(Failure::usage("-f - reads standard input, which is empty"));
    }
    let home = std::env::home_dir();
    let Meant { text, paths: mentioned, library } = mentions(context, prompt, !ask.no_save, home.as_deref());
    let mut paths: Vec<String> = ask.paths.iter().filter(|p| !means_stdin(p)).cloned().collect();
    if inline.is_some() {
        paths.push(STDIN.into());
    }
    paths.extend(mentioned.iter().map(|path| below_home(path, home.as_deref()).to_string_lossy().into_owned()));
    let loads = (!(paths.is_empty() && library.is_empty())).then(|| {
        let alone = paths.len() == 1 && library.is_empty();
        let name = (inline.is_some() && alone).then(|| STDIN_NAME.to_owned());
        Request::Load { paths, options: LoadOptions { name, inline, library, ..LoadOptions::default() } }
    });
    let asks = match ask.answers {
        None | Some(0 | 1) => Request::Ask(text),
        Some(count) => Request::AskForSeveral { text, count },
    };
    let started = Instant::now();
    let opened = open::runtime(context, &ask.session(), !ask.no_save, Attendance::Absent, Input::Lines)?;
    let format = ask.format(context.json);
    let mut printer = Printer::new(context, format, ask.answers);
    let mut run = Run { discards: ask.no_save, ..Run::default() };
    let attended = notices::attend(opened, loads.into_iter().chain([asks]), |notice, requests| {
        let again = matches!(notice, Notice::Save(_)) && run.left_out.is_some();
        let remark = notices::remark(&notice).filter(|_| !again);
        let idle = matches!(notice, Notice::Activity(Activity::Idle));
        take(notice, &mut printer, &mut run, started)?;
        remark.iter().for_each(|(level, text)| printer.note(*level, text));
        // Not at the answer's end: the runtime may read it again without thoughts, for the next `-c`.
        if idle && !run.answers.is_empty() {
            let _ = requests.send(Request::Quit);
        }
        Ok(())
    })?;
    let Attended { signal, failed, unsaved } = attended;
    run.unsaved = unsaved;
    if run.answers.is_empty() || failed.is_some() {
        printer.print_held();
    }
    let answer = match (signal, failed, run.answers.first()) {
        // Of a stopped answer the part is printed; the exit code names the signal.
        (_, None, Some(answer)) => answer,
        (Some(signal), ..) => return Err(unanswered(Exit::Signal(signal), &run)),
        (None, Some(failure), _) => return Err(failure),
        (None, None, None) => {
            let unsaved = run.unsaved.as_ref().map(Failure::not_saved);
            return Err(unsaved.unwrap_or_else(|| unanswered(Exit::Stopped, &run)));
        }
    };
    if let Some(why) = run.all_equal() {
        printer.note(Level::Warn, &why);
    }
    printer.end(&run, answer)?;
    match (signal, &run.unsaved) {
        (Some(signal), _) => Ok(Exit::Signal(signal)),
        // The JSON object contains the error already.
        (None, Some(unsaved)) if format == Format::Json => Ok(unsaved.exit),
        (None, Some(unsaved)) => Err(Failure::not_saved(unsaved)),
        (None, None) if answer.meta.finish == Some(Finish::Stopped) => Ok(Exit::Stopped),
        (None, None) => Ok(Exit::Ok),
    }
}

/// The question with its mentions (`@NAME`). The runtime skips documents that its session has already.
fn mentions(context: &Context, prompt: &str, save: bool, home: Option<&Path>) -> Meant {
    let names = mention::names(prompt);
    let found = jobs::existing(names.clone(), home);
    // Opens the library only if a name may be a document's.
    let shelved = if save && found.len() < names.len() { open::library_names(context) } else { Vec::new() };
    let shelved: Vec<&str> = shelved.iter().map(String::as_str).collect();
    mention::meant(prompt, &found, &[], &shelved)
}

fn unanswered(exit: Exit, run: &Run) -> Failure {
    let failure = Failure::new(exit, "stopped before there was an answer");
    // Without saving there is no session.
    match run.session.is_some() && run.unsaved.is_none() && run.read > 0 {
        true => failure.hint("The state is kept; continue this session with: sala-chat -c"),
        false => failure,
    }
}

fn take(notice: Notice, printer: &mut Printer<'_>, run: &mut Run, started: Instant) -> Result<(), Failure> {
    match notice {
        Notice::Ready(info) => {
            run.load_ms = started.elapsed().as_secs_f64() * 1000.0;
            run.model = info;
            let Run { model, load_ms, .. } = &*run;
            printer.event("start", json!({ "model": model.name, "device": model.device, "load_ms": load_ms }))?;
        }
        Notice::Session(SessionView { name, .. }) | Notice::Named { name, .. } => {
            run.session = Some(name).filter(|n| !run.discards && !n.is_empty());
        }
        Notice::Activity(activity) => match &activity {
            // Counted before any text, since a token may be part of a character.
            Activity::Thinking { .. } | Activity::Answering { .. } => {
                run.first_token_ms.get_or_insert_with(|| printer.context.began.elapsed().as_secs_f64() * 1000.0);
            }
            // It would appear within the answer's last line.
            Activity::Busy { .. } if run.first_token_ms.is_some() => {}
            Activity::Reading(p) => {
                run.read = run.read.max(p.done);
                printer.activity(&activity)?;
            }
            _ => printer.activity(&activity)?,
        },
        Notice::Several(answers) => run.order = answers.iter().map(|(id, _)| *id).collect(),
        Notice::Delta { message, thinking, text } => {
            printer.delta(run.place(message), thinking, &text)?;
        }
        Notice::Finished(m) if m.role == Role::Document => {
            run.documents_read += m.meta.prefilled_tokens;
            run.documents_ms += m.meta.prefill_ms;
            let document = m.meta.document.as_ref();
            let (name, tokens) = (document.map(|d| &d.name), document.map(|d| d.tokens));
            let prefilled = m.meta.prefilled_tokens;
            printer.event("load", json!({ "name": name, "tokens": tokens, "prefilled_tokens": prefilled }))?;
        }
        Notice::Finished(m) => {
            let which = run.place(m.id);
            let printed = printer.finished(which, &m);
            run.take(m);
            printed?;
        }
        Notice::Meters(m) => run.meters = m,
        Notice::Save(SaveState::Saved(_)) => run.written = true,
        Notice::Save(SaveState::TextOnly(why)) => {
            run.written = true;
            run.left_out.get_or_insert(why);
        }
        Notice::Fatal { .. } | Notice::Bye { .. } => printer.clear_progress(),
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_state_is_mentioned_only_where_there_is_some() {
        let hint = |session: Option<&str>, read| {
            let run = Run { session: session.map(str::to_owned), read, ..Run::default() };
            unanswered(Exit::Stopped, &run).hint
        };
        assert!(hint(Some("notes"), 448).unwrap().starts_with("The state is kept"));
        assert_eq!([hint(Some("notes"), 0), hint(None, 448)], [None, None]);
    }

    #[test]
    fn standard_input_ends_at_the_limit() {
        assert_eq!(read_piped(&b"text"[..], 1).unwrap(), b"text");
        let endless = read_piped(std::io::repeat(b'a'), 1).unwrap_err();
        assert_eq!(endless.exit, Exit::TooLong);
        assert_eq!(endless.to_string(), "standard input: more than 1 MiB. Raise load.max_file_mib or split it");
    }
}
