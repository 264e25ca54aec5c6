//! What goes on by itself when the server is gone.

use std::path::Path;
use std::sync::atomic::Ordering;

use crossbeam_channel::{Sender, unbounded};
use sala_chat::config::settings::SaveStates;
use sala_chat::core::transcript::{Finish, Role};
use sala_chat::runtime::Opening;
use sala_chat::runtime::protocol::{Activity, Level, LoadOptions, Notice, Request};

use super::support::{How, Talk, text_model};
use super::{PATIENCE, Server, Terminal, local};

/// Loads `notes.txt`, which the gate lets a server read three chunks of, and stops there: the question what is to become of it.
fn stopped(talk: &mut Talk, permit: &Sender<()>) -> u64 {
    talk.send(Request::Load { paths: vec!["notes.txt".into()], options: LoadOptions::default() });
    (0..3).for_each(|_| permit.send(()).unwrap());
    talk.wait("a part of it", |n| {
        matches!(n, Notice::Activity(Activity::Reading(p)) if p.done >= 3 * 64).then_some(())
    });
    talk.send(Request::Stop);
    question(talk)
}

fn question(talk: &mut Talk) -> u64 {
    talk.wait("a question", |n| if let Notice::Question { id, .. } = n { Some(*id) } else { None })
}

#[test]
fn a_document_that_a_server_did_not_read_to_its_end_is_read_here_and_the_question_asked() {
    let text = text_model(None);
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("notes.txt"), "A line of the document.\n".repeat(400)).unwrap();
    let (permit, gate) = unbounded();
    let server = Server::start(home.path(), &text, "fake-1", Some(gate));
    let Terminal { mut talk, loaded } = Terminal::attached(home.path(), &text, Opening::New, "fake-1");
    talk.send(Request::Load { paths: vec!["notes.txt".into()], options: LoadOptions::default() });
    talk.send(Request::Ask("One?".into()));
    permit.send(()).unwrap();
    talk.wait("a part of it", |n| matches!(n, Notice::Activity(Activity::Reading(_))).then_some(()));
    server.kill();
    let note = talk.note_with("has ended");
    assert!(note.contains("which ran the model, has ended") && note.contains("The text is kept"), "{note}");
    talk.note_with("is loaded here");
    let document = talk.wait("the document", |n| match n {
        Notice::Finished(message) if message.role == Role::Document => message.meta.document.clone(),
        _ => None,
    });
    assert!(document.complete, "{document:?}");
    let answer = talk.finished();
    assert_eq!(answer.meta.finish, Some(Finish::Stop));
    // The document was read before the question, not with it.
    assert!(answer.meta.reused_tokens > answer.meta.prefilled_tokens, "{answer:?}");
    assert_eq!(loaded.load(Ordering::Relaxed), 1);
    talk.quit();
}

#[test]
fn whoever_goes_back_from_a_stopped_load_is_back_though_the_server_is_gone() {
    let text = text_model(None);
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("notes.txt"), "A line of the document.\n".repeat(400)).unwrap();
    let (permit, gate) = unbounded();
    let server = Server::start(home.path(), &text, "fake-1", Some(gate));
    let Terminal { mut talk, .. } = Terminal::attached(home.path(), &text, Opening::New, "fake-1");
    let asked = stopped(&mut talk, &permit);
    talk.send(Request::Choose { question: asked, key: '2' });
    talk.note_with("Kept what was read");
    // The end of the part waits at the gate.
    server.kill();
    talk.note_with("has ended");
    talk.sync();
    assert!(talk.view().messages.is_empty(), "{:?}", talk.view().messages);
    talk.quit();
}

#[test]
fn the_part_that_was_read_of_a_stopped_load_is_kept_though_the_server_ends_while_it_is_asked() {
    let text = text_model(None);
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("notes.txt"), "A line of the document.\n".repeat(400)).unwrap();
    let (permit, gate) = unbounded();
    let server = Server::start(home.path(), &text, "fake-1", Some(gate));
    let Terminal { mut talk, .. } = Terminal::attached(home.path(), &text, Opening::New, "fake-1");
    let asked = stopped(&mut talk, &permit);
    server.kill();
    talk.note_with("has ended");
    talk.send(Request::Choose { question: asked, key: '\x1b' });
    let note = talk.wait("what is kept", |n| match n {
        Notice::Note(_, text) if text.contains("was read") => Some(text.clone()),
        _ => None,
    });
    assert!(note.starts_with("Kept what was read: notes.txt ends at line "), "{note}");
    talk.quit();
}

/// The lines of the two files that [`stopped_again`] loads.
const FIRST: &str = "A line of the first file.\n";
const SECOND: &str = "A line of the second file.\n";

/// A load that is stopped in its second file, begun anew here as the server has ended and nothing is kept, and stopped in its first file:
/// the question what is to become of it, and the gate, which lets nothing more be read.
fn stopped_again(home: &Path) -> (Talk, u64, Sender<()>) {
    let text = text_model(None);
    std::fs::create_dir(home.join("docs")).unwrap();
    std::fs::write(home.join("docs/1.txt"), FIRST.repeat(40)).unwrap();
    std::fs::write(home.join("docs/2.txt"), SECOND.repeat(800)).unwrap();
    let ((permit, gate), (here, own_gate)) = (unbounded(), unbounded());
    let server = Server::start(home, &text, "fake-1", Some(gate));
    // Nothing is kept that could be gone on from.
    let how = How { text, opening: Opening::New, save_state: SaveStates::Never, ..How::default() };
    let Terminal { mut talk, .. } = Terminal::attached_how(home, "fake-1", Some(own_gate.clone()), how);
    talk.send(Request::Load { paths: vec!["docs".into()], options: LoadOptions::default() });
    (0..20).for_each(|_| permit.send(()).unwrap());
    talk.wait("a part of the second file", |n| match n {
        Notice::Activity(Activity::Reading(p)) => p.files.first().is_some_and(|f| p.done > f.tokens + 64).then_some(()),
        _ => None,
    });
    talk.send(Request::Stop);
    let stopped = |talk: &mut Talk| {
        talk.wait("a question", |n| match n {
            Notice::Question { id, text, .. } => Some((*id, text.clone())),
            _ => None,
        })
    };
    let (asked, first_said) = stopped(&mut talk);
    assert!(first_said.contains("2.txt. "), "{first_said}");
    server.kill();
    talk.note_with("has ended");
    talk.send(Request::Choose { question: asked, key: '1' });
    (0..2).for_each(|_| here.send(()).unwrap());
    talk.note_with("is loaded here");
    talk.wait("a part of the first file", |n| matches!(n, Notice::Activity(Activity::Reading(_))).then_some(()));
    talk.send(Request::Stop);
    let (asked, said) = stopped(&mut talk);
    assert_eq!(said, first_said, "the text that was read is not less");
    while own_gate.try_recv().is_ok() {}
    (talk, asked, here)
}

#[test]
fn what_a_load_has_read_before_stays_whole_where_it_is_read_anew_and_stopped_again() {
    let home = tempfile::tempdir().unwrap();
    let (mut talk, asked, here) = stopped_again(home.path());
    talk.send(Request::Choose { question: asked, key: '\x1b' });
    talk.note_with("2.txt ends at line ");
    // It was stopped: what the state has not got is read with the next question.
    talk.note_with("Continuing from there reads ");
    talk.sync();
    let texts: Vec<String> = talk.view().messages.iter().map(|m| m.text.clone()).collect();
    let [whole, part] = texts.as_slice() else { panic!("{texts:?}") };
    assert_eq!(whole.trim_end(), FIRST.repeat(40).trim_end());
    let second = SECOND.repeat(800);
    assert!(second.starts_with(part) && !part.is_empty() && part.len() < second.len() / 2, "{part}");
    (0..1_000).for_each(|_| here.send(()).unwrap());
    let answer = talk.ask("One?");
    assert!(answer.meta.prefilled_tokens > 2 * 64, "{answer:?}");
    talk.quit();
}

#[test]
fn nothing_is_read_against_a_stop_where_a_load_that_was_begun_anew_is_left() {
    let home = tempfile::tempdir().unwrap();
    let (mut talk, asked, _here) = stopped_again(home.path());
    talk.send(Request::Choose { question: asked, key: '2' });
    talk.note_with("Went back to the beginning");
    talk.sync();
    assert!(talk.view().messages.is_empty(), "{:?}", talk.view().messages);
    talk.quit();
    let home = tempfile::tempdir().unwrap();
    let (talk, _, _here) = stopped_again(home.path());
    talk.quit();
}

#[test]
fn a_load_that_was_left_goes_on_when_the_server_ends_beside_it() {
    let text = text_model(None);
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("notes.txt"), "A line of the document.\n".repeat(400)).unwrap();
    let (permit, gate) = unbounded();
    let server = Server::start(home.path(), &text, "fake-1", Some(gate));
    let Terminal { mut talk, loaded } = Terminal::attached(home.path(), &text, Opening::New, "fake-1");
    stopped(&mut talk, &permit);
    talk.send(Request::New(None));
    talk.wait("another session", |n| matches!(n, Notice::Session(view) if view.serial == 2).then_some(()));
    server.kill();
    talk.note_with("has ended");
    talk.send(Request::Switch(1));
    let asked = question(&mut talk);
    talk.send(Request::Choose { question: asked, key: '1' });
    let end = talk.wait("the end of the load", |n| match n {
        Notice::Note(Level::Error, text) => Some(text.clone()),
        Notice::Note(_, text) if text.starts_with("Read notes.txt") => Some(text.clone()),
        _ => None,
    });
    assert!(end.starts_with("Read notes.txt: "), "{end}");
    assert_eq!(loaded.load(Ordering::Relaxed), 1);
    talk.quit();
}

#[test]
fn a_load_goes_on_behind_the_same_text_when_the_server_ends_between_two_files() {
    let text = text_model(None);
    let (home, alone) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for home in [home.path(), alone.path()] {
        std::fs::create_dir(home.join("docs")).unwrap();
        for n in 1..=3 {
            std::fs::write(home.join(format!("docs/{n}.txt")), format!("A line of file {n}.\n").repeat(60)).unwrap();
        }
    }
    let load = || Request::Load { paths: vec!["docs".into()], options: LoadOptions::default() };
    let mut own = local(alone.path(), &text, Opening::New);
    own.ask("One?");
    own.send(load());
    own.note_with("Read 3 files");
    let (permit, gate) = unbounded();
    let server = Server::start(home.path(), &text, "fake-1", Some(gate.clone()));
    let Terminal { mut talk, loaded } = Terminal::attached(home.path(), &text, Opening::New, "fake-1");
    (0..1_000).for_each(|_| permit.send(()).unwrap());
    talk.ask("One?");
    talk.on_disk();
    while gate.try_recv().is_ok() {}
    talk.send(load());
    permit.send(()).unwrap();
    talk.wait("the first file", |n| matches!(n, Notice::Activity(Activity::Reading(p)) if p.done > 0).then_some(()));
    // From here on no text comes to the disk, and the next file waits for its own.
    let mut db = rusqlite::Connection::open(home.path().join("data/sala.db")).unwrap();
    db.busy_timeout(PATIENCE).unwrap();
    let held = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
    (0..1_000).for_each(|_| permit.send(()).unwrap());
    talk.wait("the second file", |n| {
        matches!(n, Notice::Added(m) if m.meta.document.as_ref().is_some_and(|d| d.name.ends_with("2.txt")))
            .then_some(())
    });
    server.kill();
    talk.note_with("has ended");
    held.rollback().unwrap();
    talk.note_with("Read 3 files");
    // The answer names all that the model has read.
    assert_eq!(talk.ask("Two?").text, own.ask("Two?").text);
    assert_eq!(loaded.load(Ordering::Relaxed), 1);
    talk.quit();
    own.quit();
}

#[test]
fn a_load_whose_base_was_being_restored_by_a_server_that_is_killed_goes_on_here() {
    let text = text_model(None);
    let home = tempfile::tempdir().unwrap();
    for name in ["notes", "other"] {
        std::fs::write(home.path().join(format!("{name}.txt")), format!("A line of {name}.\n").repeat(400)).unwrap();
    }
    let load = |name: &str| Request::Load { paths: vec![name.into()], options: LoadOptions::default() };
    let (permit, gate) = unbounded();
    let server = Server::start(home.path(), &text, "fake-1", Some(gate.clone()));
    let attached = || Terminal::attached(home.path(), &text, Opening::New, "fake-1");
    let mut first = attached().talk;
    (0..1_000).for_each(|_| permit.send(()).unwrap());
    first.load("notes.txt");
    first.on_disk();
    first.quit();
    while gate.try_recv().is_ok() {}
    // The engine has something to do, and what is to be restored waits behind it.
    let mut busy = attached().talk;
    busy.send(load("other.txt"));
    permit.send(()).unwrap();
    busy.wait("a part of it", |n| matches!(n, Notice::Activity(Activity::Reading(p)) if p.done > 0).then_some(()));
    let Terminal { mut talk, loaded } = attached();
    talk.send(load("notes.txt"));
    talk.wait("the base", |n| matches!(n, Notice::Activity(Activity::Restoring { .. })).then_some(()));
    server.kill();
    talk.note_with("has ended");
    let said = talk.note_with("from library");
    assert!(said.starts_with("notes.txt: "), "{said}");
    assert_eq!(loaded.load(Ordering::Relaxed), 1);
    talk.quit();
    busy.quit();
}
