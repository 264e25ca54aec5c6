//! Work that continues by itself when the server is gone.

use std::path::Path;
use std::sync::atomic::Ordering;

use crossbeam_channel::{Sender, unbounded};
use sala_chat::config::settings::SaveStates;
use sala_chat::core::transcript::{Finish, Role};
use sala_chat::runtime::Opening;
use sala_chat::runtime::protocol::{Activity, Level, LoadOptions, Notice, Request};

use super::support::{Chat, How, text_model};
use super::{PATIENCE, Server, Terminal, local};

/// Loads `notes.txt`, which the gate lets a server read three chunks of, and stops there: the question what is to become of it.
fn stopped(chat: &mut Chat, permit: &Sender<()>) -> u64 {
    chat.send(Request::Load { paths: vec!["notes.txt".into()], options: LoadOptions::default() });
    (0..3).for_each(|_| permit.send(()).unwrap());
    chat.wait("a part of it", |n| {
        matches!(n, Notice::Activity(Activity::Reading(p)) if p.done >= 3 * 64).then_some(())
    });
    chat.send(Request::Stop);
    question(chat)
}

fn question(chat: &mut Chat) -> u64 {
    chat.wait("a question", |n| if let Notice::Question { id, .. } = n { Some(*id) } else { None })
}

#[test]
fn a_document_a_server_left_unfinished_is_read_locally() {
    let text = text_model(None);
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("notes.txt"), "A line of the document.\n".repeat(400)).unwrap();
    let (permit, gate) = unbounded();
    let server = Server::start(home.path(), &text, "fake-1", Some(gate));
    let Terminal { mut chat, loaded } = Terminal::attached(home.path(), &text, Opening::New, "fake-1");
    chat.send(Request::Load { paths: vec!["notes.txt".into()], options: LoadOptions::default() });
    chat.send(Request::Ask("One?".into()));
    permit.send(()).unwrap();
    chat.wait("a part of it", |n| matches!(n, Notice::Activity(Activity::Reading(_))).then_some(()));
    server.kill();
    let note = chat.note_with("has ended");
    assert!(note.contains("which ran the model, has ended") && note.contains("The text is kept"), "{note}");
    chat.note_with("is loaded here");
    let document = chat.wait("the document", |n| match n {
        Notice::Finished(message) if message.role == Role::Document => message.meta.document.clone(),
        _ => None,
    });
    assert!(document.complete, "{document:?}");
    let answer = chat.finished();
    assert_eq!(answer.meta.finish, Some(Finish::Stop));
    // The document was read before the question, not with it.
    assert!(answer.meta.reused_tokens > answer.meta.prefilled_tokens, "{answer:?}");
    assert_eq!(loaded.load(Ordering::Relaxed), 1);
    chat.quit();
}

#[test]
fn going_back_from_a_stopped_load_works_without_the_server() {
    let text = text_model(None);
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("notes.txt"), "A line of the document.\n".repeat(400)).unwrap();
    let (permit, gate) = unbounded();
    let server = Server::start(home.path(), &text, "fake-1", Some(gate));
    let Terminal { mut chat, .. } = Terminal::attached(home.path(), &text, Opening::New, "fake-1");
    let question_id = stopped(&mut chat, &permit);
    chat.send(Request::Choose { question: question_id, key: '\x1b' });
    chat.wait("what was read", |n| matches!(n, Notice::Session(_)).then_some(()));
    // The end of the part waits at the gate.
    server.kill();
    chat.note_with("has ended");
    chat.send(Request::Undo(1));
    chat.note_with("Went back 1 exchange to the beginning");
    chat.sync();
    assert!(chat.view().messages.is_empty(), "{:?}", chat.view().messages);
    chat.quit();
}

#[test]
fn the_part_read_is_kept_if_the_server_ends_at_the_question() {
    let text = text_model(None);
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("notes.txt"), "A line of the document.\n".repeat(400)).unwrap();
    let (permit, gate) = unbounded();
    let server = Server::start(home.path(), &text, "fake-1", Some(gate));
    let Terminal { mut chat, .. } = Terminal::attached(home.path(), &text, Opening::New, "fake-1");
    let question_id = stopped(&mut chat, &permit);
    server.kill();
    chat.note_with("has ended");
    chat.send(Request::Choose { question: question_id, key: '\x1b' });
    let note = chat.wait("what is kept", |n| match n {
        Notice::Note(_, text) if text.contains("was read") => Some(text.clone()),
        _ => None,
    });
    assert!(note.starts_with("Kept what was read: notes.txt ends at line "), "{note}");
    chat.quit();
}

/// The lines of the two files that [`stopped_again`] loads.
const FIRST: &str = "A line of the first file.\n";
const SECOND: &str = "A line of the second file.\n";

/// A load that is stopped in its second file, begun anew here as the server has ended and nothing is kept, and stopped in its first file:
/// the question what is to become of it, and the gate, which lets nothing more be read.
fn stopped_again(home: &Path) -> (Chat, u64, Sender<()>) {
    let text = text_model(None);
    std::fs::create_dir(home.join("docs")).unwrap();
    std::fs::write(home.join("docs/1.txt"), FIRST.repeat(40)).unwrap();
    std::fs::write(home.join("docs/2.txt"), SECOND.repeat(800)).unwrap();
    let ((permit, gate), (here, own_gate)) = (unbounded(), unbounded());
    let server = Server::start(home, &text, "fake-1", Some(gate));
    // Nothing is kept that could be gone on from.
    let how = How { text, opening: Opening::New, save_state: SaveStates::Never, ..How::default() };
    let Terminal { mut chat, .. } = Terminal::attached_how(home, "fake-1", Some(own_gate.clone()), how);
    chat.send(Request::Load { paths: vec!["docs".into()], options: LoadOptions::default() });
    (0..20).for_each(|_| permit.send(()).unwrap());
    chat.wait("a part of the second file", |n| match n {
        Notice::Activity(Activity::Reading(p)) => p.files.first().is_some_and(|f| p.done > f.tokens + 64).then_some(()),
        _ => None,
    });
    chat.send(Request::Stop);
    let stopped = |chat: &mut Chat| {
        chat.wait("a question", |n| match n {
            Notice::Question { id, text, .. } => Some((*id, text.clone())),
            _ => None,
        })
    };
    let (question_id, first_text) = stopped(&mut chat);
    assert!(first_text.contains("2.txt. "), "{first_text}");
    server.kill();
    chat.note_with("has ended");
    chat.send(Request::Choose { question: question_id, key: '1' });
    (0..2).for_each(|_| here.send(()).unwrap());
    chat.note_with("is loaded here");
    chat.wait("a part of the first file", |n| matches!(n, Notice::Activity(Activity::Reading(_))).then_some(()));
    chat.send(Request::Stop);
    let (question_id, second_text) = stopped(&mut chat);
    assert!(second_text.contains("inside ") && second_text.contains("1.txt. "), "{second_text}");
    while own_gate.try_recv().is_ok() {}
    (chat, question_id, here)
}

#[test]
fn a_restarted_and_stopped_load_keeps_what_it_reads_now() {
    let home = tempfile::tempdir().unwrap();
    let (mut chat, question_id, here) = stopped_again(home.path());
    chat.send(Request::Choose { question: question_id, key: '\x1b' });
    chat.note_with("2.txt; it is left out.");
    // It was stopped: what the state has not got is read with the next question.
    chat.note_with("Continuing from there reads ");
    chat.sync();
    let texts: Vec<String> = chat.view().messages.iter().map(|m| m.text.clone()).collect();
    let [whole] = texts.as_slice() else { panic!("{texts:?}") };
    assert_eq!(whole.trim_end(), FIRST.repeat(40).trim_end());
    (0..1_000).for_each(|_| here.send(()).unwrap());
    let answer = chat.ask("One?");
    assert!(answer.meta.prefilled_tokens > 64, "{answer:?}");
    chat.quit();
}

#[test]
fn a_restarted_load_reads_nothing_after_a_stop() {
    let home = tempfile::tempdir().unwrap();
    let (mut chat, question_id, _here) = stopped_again(home.path());
    chat.send(Request::Choose { question: question_id, key: '\x1b' });
    chat.note_with("Continuing from there reads ");
    chat.send(Request::Undo(9));
    chat.note_with("Went back 1 exchange to the beginning");
    chat.sync();
    assert!(chat.view().messages.is_empty(), "{:?}", chat.view().messages);
    chat.quit();
    let home = tempfile::tempdir().unwrap();
    let (chat, _, _here) = stopped_again(home.path());
    chat.quit();
}

#[test]
fn a_background_load_continues_when_the_server_ends() {
    let text = text_model(None);
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("notes.txt"), "A line of the document.\n".repeat(400)).unwrap();
    let (permit, gate) = unbounded();
    let server = Server::start(home.path(), &text, "fake-1", Some(gate));
    let Terminal { mut chat, loaded } = Terminal::attached(home.path(), &text, Opening::New, "fake-1");
    stopped(&mut chat, &permit);
    chat.send(Request::New(None));
    chat.wait("another session", |n| matches!(n, Notice::Session(view) if view.serial == 2).then_some(()));
    server.kill();
    chat.note_with("has ended");
    chat.send(Request::Switch(1));
    let question_id = question(&mut chat);
    chat.send(Request::Choose { question: question_id, key: '1' });
    let end = chat.wait("the end of the load", |n| match n {
        Notice::Note(Level::Error, text) => Some(text.clone()),
        Notice::Note(_, text) if text.starts_with("Read notes.txt") => Some(text.clone()),
        _ => None,
    });
    assert!(end.starts_with("Read notes.txt: "), "{end}");
    assert_eq!(loaded.load(Ordering::Relaxed), 1);
    chat.quit();
}

#[test]
fn a_load_continues_when_the_server_ends_between_files() {
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
    let Terminal { mut chat, loaded } = Terminal::attached(home.path(), &text, Opening::New, "fake-1");
    (0..1_000).for_each(|_| permit.send(()).unwrap());
    chat.ask("One?");
    chat.on_disk();
    while gate.try_recv().is_ok() {}
    chat.send(load());
    permit.send(()).unwrap();
    chat.wait("the first file", |n| matches!(n, Notice::Activity(Activity::Reading(p)) if p.done > 0).then_some(()));
    // From here on no text reaches the disk, and the next file waits for its own.
    let mut db = rusqlite::Connection::open(home.path().join("data/sala.db")).unwrap();
    db.busy_timeout(PATIENCE).unwrap();
    let held = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
    (0..1_000).for_each(|_| permit.send(()).unwrap());
    chat.wait("the second file", |n| {
        matches!(n, Notice::Added(m) if m.meta.document.as_ref().is_some_and(|d| d.name.ends_with("2.txt")))
            .then_some(())
    });
    server.kill();
    chat.note_with("has ended");
    held.rollback().unwrap();
    chat.note_with("Read 3 files");
    // The answer names all that the model has read.
    assert_eq!(chat.ask("Two?").text, own.ask("Two?").text);
    assert_eq!(loaded.load(Ordering::Relaxed), 1);
    chat.quit();
    own.quit();
}

#[test]
fn a_load_continues_when_a_restoring_server_is_killed() {
    let text = text_model(None);
    let home = tempfile::tempdir().unwrap();
    for name in ["notes", "other"] {
        std::fs::write(home.path().join(format!("{name}.txt")), format!("A line of {name}.\n").repeat(400)).unwrap();
    }
    let load = |name: &str| Request::Load { paths: vec![name.into()], options: LoadOptions::default() };
    let (permit, gate) = unbounded();
    let server = Server::start(home.path(), &text, "fake-1", Some(gate.clone()));
    let attached = || Terminal::attached(home.path(), &text, Opening::New, "fake-1");
    let mut first = attached().chat;
    (0..1_000).for_each(|_| permit.send(()).unwrap());
    first.load("notes.txt");
    first.on_disk();
    first.quit();
    while gate.try_recv().is_ok() {}
    // The engine is busy, and the restore waits for it.
    let mut busy = attached().chat;
    busy.send(load("other.txt"));
    permit.send(()).unwrap();
    busy.wait("a part of it", |n| matches!(n, Notice::Activity(Activity::Reading(p)) if p.done > 0).then_some(()));
    let Terminal { mut chat, loaded } = attached();
    chat.send(load("notes.txt"));
    chat.wait("the base", |n| matches!(n, Notice::Activity(Activity::Restoring { .. })).then_some(()));
    server.kill();
    chat.note_with("has ended");
    let note = chat.note_with("from library");
    assert!(note.starts_with("notes.txt: "), "{note}");
    assert_eq!(loaded.load(Ordering::Relaxed), 1);
    chat.quit();
    busy.quit();
}
