//! Background conversations: left with a key or a command, and asides during other work.

use crate::support;

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, unbounded};
use sala_chat::config::settings::SaveStates;
use sala_chat::core::transcript::{Finish, Message, Role};
use sala_chat::runtime::Opening;
use sala_chat::runtime::protocol::{
    Activity, BranchTarget, Level, LibraryAction, LoadOptions, Notice, Request, SessionView,
};
use sala_chat::store::{Limits, RealDisk, Store};
use support::{Chat, Setup, with_both_tokenizers};

fn dir() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Where sequences wait; dropped, it is open.
struct Gate {
    open: Sender<()>,
    kept: Receiver<()>,
}

impl Gate {
    /// Lets so many steps pass.
    fn pass(&self, steps: usize) {
        (0..steps).for_each(|_| self.open.send(()).unwrap());
    }

    /// What was let pass and not taken is taken back.
    fn close(&self) {
        while self.kept.try_recv().is_ok() {}
    }
}

/// A runtime with an engine that works on sequences side by side; these wait at the gate.
fn gated_in(dir: &std::path::Path, sequences: &'static [u32], setup: Setup) -> (Chat, Gate) {
    let (open, kept) = unbounded();
    let mut t = Chat::new(dir, Setup { gate: Some(kept.clone()), side_by_side: Some(sequences), ..setup });
    t.sync();
    (t, Gate { open, kept })
}

/// The same where the first conversation waits.
fn gated(dir: &std::path::Path, setup: Setup) -> (Chat, Gate) {
    gated_in(dir, &[0], setup)
}

/// Asks, and waits until some of the answer is there.
fn ask_until_text(t: &mut Chat, gate: &Gate, question: &str) {
    t.send(Request::Ask(question.into()));
    gate.pass(6);
    t.wait("some of the answer", |n| matches!(n, Notice::Delta { .. }).then_some(()));
}

fn session(t: &mut Chat) -> SessionView {
    t.wait("a session", |n| if let Notice::Session(view) = n { Some(view.clone()) } else { None })
}

/// The next notice about a session that is not on screen.
fn background<T>(t: &mut Chat, what: &str, serial: u64, mut pick: impl FnMut(&Notice) -> Option<T>) -> T {
    t.wait(what, |n| match n {
        Notice::Background { serial: of, notice } if *of == serial => pick(notice),
        _ => None,
    })
}

fn answer_of(n: &Notice) -> Option<Message> {
    if let Notice::Finished(m) = n { (m.role == Role::Assistant).then(|| m.clone()) } else { None }
}

/// The answers to two questions without other work.
fn alone(questions: &[&str]) -> Vec<String> {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    questions.iter().map(|q| t.ask(q).text).collect()
}

fn an_answer_continues_after_a_switch() {
    let dir = dir();
    let (mut t, gate) = gated(dir.path(), Setup::default());
    ask_until_text(&mut t, &gate, "One?");
    t.send(Request::New(None));
    let view = session(&mut t);
    assert!(view.messages.is_empty() && view.serial == 2 && view.opened.len() == 2, "{view:?}");
    assert_eq!(view.opened[0].name, "one");
    let other = t.ask("Another?");
    assert_eq!(other.text, alone(&["Another?"])[0]);
    drop(gate);
    let answer = background(&mut t, "the answer", 1, answer_of);
    background(&mut t, "its end", 1, |n| matches!(n, Notice::Activity(Activity::Idle)).then_some(()));
    assert_eq!(answer.meta.finish, Some(Finish::Stop));
    t.send(Request::Switch(1));
    let view = session(&mut t);
    assert_eq!(view.messages.last().map(|m| (m.id, &m.text)), Some((answer.id, &answer.text)));
    let two = t.ask("Two?");
    assert_eq!([answer.text, two.text], alone(&["One?", "Two?"])[..]);
    // Nothing of it was read again for the way back.
    assert!(two.meta.reused_tokens > 0 && two.meta.prefilled_tokens < 20, "{:?}", two.meta);
    t.quit();
}

fn meters_of_a_new_session_start_at_zero_during_other_work() {
    let dir = dir();
    let (mut t, gate) = gated(dir.path(), Setup::default());
    ask_until_text(&mut t, &gate, "One?");
    t.send(Request::New(None));
    session(&mut t);
    t.sync();
    let context_used =
        t.seen.iter().rev().find_map(|n| if let Notice::Meters(m) = n { Some(m.context_used) } else { None });
    assert_eq!(context_used, Some(0));
}

fn switching_back_shows_the_current_state_and_live_updates() {
    let dir = dir();
    let (mut t, gate) = gated(dir.path(), Setup::default());
    ask_until_text(&mut t, &gate, "One?");
    t.send(Request::New(None));
    session(&mut t);
    gate.pass(2);
    background(&mut t, "more of it", 1, |n| matches!(n, Notice::Delta { .. }).then_some(()));
    t.send(Request::Switch(1));
    let view = session(&mut t);
    assert_eq!(view.messages.last().map(|m| m.role), Some(Role::User));
    let open = t.wait("what is written", |n| if let Notice::Added(m) = n { Some(m.clone()) } else { None });
    assert!(open.meta.finish.is_none() && open.text.starts_with("state "), "{open:?}");
    t.wait("what goes on", |n| matches!(n, Notice::Activity(Activity::Answering { .. })).then_some(()));
    let from = t.seen.len();
    drop(gate);
    let answer = t.finished();
    let text = |n: &Notice| if let Notice::Delta { text, .. } = n { text.clone() } else { String::new() };
    let rest: String = t.seen[from..].iter().map(text).collect();
    assert_eq!(open.text + &rest, answer.text);
    assert_eq!(answer.text, alone(&["One?"])[0]);
    t.quit();
}

fn a_document_is_read_on_in_a_session_that_was_left() {
    let dir = dir();
    std::fs::write(dir.path().join("notes.txt"), "The code of Arvel station is TR-5512-K.\n".repeat(60)).unwrap();
    let (mut t, gate) = gated(dir.path(), Setup::default());
    t.send(Request::Load { paths: vec!["notes.txt".into()], options: LoadOptions::default() });
    gate.pass(3);
    t.wait("reading", |n| matches!(n, Notice::Activity(Activity::Reading(_))).then_some(()));
    // Requests for the background session run there.
    t.send(Request::Ask("What is the code?".into()));
    t.send(Request::New(None));
    session(&mut t);
    t.ask("Another?");
    gate.pass(2);
    background(&mut t, "how far it is", 1, |n| matches!(n, Notice::Activity(Activity::Reading(_))).then_some(()));
    drop(gate);
    let end = |n: &Notice| if let Notice::Note(_, text) = n { Some(text.clone()) } else { None };
    assert!(background(&mut t, "its end", 1, end).starts_with("Read notes.txt"));
    let answer = background(&mut t, "its answer", 1, answer_of);
    t.send(Request::Switch(1));
    let view = session(&mut t);
    assert!(view.messages[0].meta.document.as_ref().unwrap().complete);
    assert_eq!(view.messages.last().map(|m| (m.id, &m.text)), Some((answer.id, &answer.text)));
    assert_eq!(view.tree.documents.len(), 1);
    t.quit();
}

fn queued_questions_run_in_order_after_a_switch() {
    let dir = dir();
    let (mut t, gate) = gated(dir.path(), Setup::default());
    ask_until_text(&mut t, &gate, "One?");
    // What was sent before the switch runs there.
    t.send(Request::Ask("Two?".into()));
    t.send(Request::New(None));
    assert_eq!(session(&mut t).serial, 2);
    drop(gate);
    background(&mut t, "the first answer", 1, answer_of);
    let two = background(&mut t, "the second answer", 1, answer_of);
    assert_eq!(two.text, alone(&["One?", "Two?"])[1]);
    let idle = |n: &Notice| matches!(n, Notice::Activity(Activity::Idle)).then_some(());
    background(&mut t, "its end", 1, idle);
    t.send(Request::Switch(1));
    assert_eq!(session(&mut t).messages.len(), 4);
    t.send(Request::Remember("Never asked?".into()));
    t.quit();
    let mut t = Chat::new(dir.path(), Setup::default());
    let kept = |n: &Notice| matches!(n, Notice::Prompts(all) if all.iter().any(|p| p == "Never asked?"));
    t.sync();
    assert!(t.seen.iter().any(kept));
    t.quit();
}

fn a_stop_is_for_what_is_on_screen_and_the_end_for_all() {
    let dir = dir();
    let (mut t, gate) = gated(dir.path(), Setup::default());
    ask_until_text(&mut t, &gate, "One?");
    t.send(Request::New(None));
    session(&mut t);
    t.send(Request::Stop);
    t.sync();
    gate.pass(1);
    background(&mut t, "more of it", 1, |n| matches!(n, Notice::Delta { .. }).then_some(()));
    t.quit();
    let mut t = Chat::new(dir.path(), Setup { opening: Opening::Resume("one".into()), ..Setup::default() });
    t.sync();
    let view = t.view();
    let kept = view.messages.last().unwrap();
    assert!(kept.meta.finish == Some(Finish::Stopped) && kept.text.starts_with("state"), "{kept:?}");
    t.quit();
}

fn a_request_that_leads_nowhere_changes_nothing() {
    let dir = dir();
    let (mut t, gate) = gated(dir.path(), Setup::default());
    ask_until_text(&mut t, &gate, "One?");
    t.send(Request::Resume("nothing-of-this-name".into()));
    t.note_with("No session is called");
    t.wait("what goes on", |n| matches!(n, Notice::Activity(Activity::Answering { .. })).then_some(()));
    // One that is at work is gone to, not opened once more.
    t.send(Request::Resume("one".into()));
    assert_eq!(session(&mut t).serial, 1);
    drop(gate);
    assert_eq!(t.finished().text, alone(&["One?"])[0]);
    t.sync();
    assert_eq!(t.view().opened.len(), 1);
    t.quit();
}

fn what_would_open_another_session_is_not_done_in_one_that_was_left() {
    let dir = dir();
    let (mut t, gate) = gated(dir.path(), Setup::default());
    ask_until_text(&mut t, &gate, "One?");
    t.send(Request::New(None));
    session(&mut t);
    t.ask("Another?");
    t.send(Request::Switch(1));
    assert_eq!(session(&mut t).serial, 1);
    // After the answer; then the switch is immediate.
    t.send(Request::Branch(BranchTarget::Name("another".into())));
    t.send(Request::Switch(2));
    assert_eq!(session(&mut t).serial, 2);
    drop(gate);
    let left_out =
        |n: &Notice| if let Notice::Note(_, text) = n { text.contains("you had left").then_some(()) } else { None };
    background(&mut t, "that it was not done", 1, left_out);
    let here = t.ask("Still here?");
    t.send(Request::Switch(2));
    let view = session(&mut t);
    assert_eq!((view.serial, view.messages.last().map(|m| m.id)), (2, Some(here.id)));
    t.send(Request::Switch(1));
    assert_eq!(session(&mut t).messages.len(), 2);
    t.quit();
}

fn an_engine_of_one_conversation_waits_and_says_so() {
    let dir = dir();
    let (mut t, gate) = gated(dir.path(), Setup { sequences: 1, ..Setup::default() });
    ask_until_text(&mut t, &gate, "One?");
    t.send(Request::New(None));
    t.note_with("This engine holds one conversation at a time; this runs after the current work.");
    drop(gate);
    t.finished();
    assert!(session(&mut t).messages.len() <= 2);
    t.sync();
    assert!(t.view().messages.is_empty());
    t.quit();
}

fn a_runtime_question_waits_in_its_session() {
    let dir = dir();
    std::fs::write(dir.path().join("notes.txt"), "The code of Arvel station is TR-5512-K.\n".repeat(60)).unwrap();
    let load = sala_chat::config::settings::LoadConfig { confirm_tokens: 10, confirm_files: 20, ..Default::default() };
    let mut t = Chat::new(dir.path(), Setup { load, side_by_side: Some(&[]), ..Setup::default() });
    t.sync();
    t.send(Request::Load { paths: vec!["notes.txt".into()], options: LoadOptions::default() });
    let plan = |n: &Notice| match n {
        Notice::Question { id, .. } => Some(*id),
        _ => None,
    };
    let id = t.wait("a plan", plan);
    t.send(Request::New(None));
    session(&mut t);
    t.ask("Another?");
    t.send(Request::Switch(1));
    session(&mut t);
    assert_eq!(t.wait("the plan again", plan), id);
    t.send(Request::Choose { question: id, key: '\n' });
    t.note_with("Read notes.txt");
    t.quit();
}

fn an_aside_is_answered_and_changes_nothing() {
    let dir = dir();
    let (mut t, gate) = gated(dir.path(), Setup::default());
    gate.pass(40);
    let first = t.ask("One?").text;
    t.on_disk();
    gate.close();
    ask_until_text(&mut t, &gate, "Two?");
    t.send(Request::Aside("What is meant?".into()));
    let aside = |n: &Notice| match n {
        Notice::Aside { text, done: Some(finish), .. } => Some((text.clone(), *finish)),
        _ => None,
    };
    let (text, finish) = t.wait("the aside", aside);
    assert!(text.starts_with("state ") && finish == Finish::Stop, "{text}");
    // It ends before the answer, which continues only now.
    assert!(t.seen.iter().all(|n| answer_of(n).is_none_or(|m| m.text == first)));
    drop(gate);
    let second = t.finished().text;
    t.sync();
    let third = t.ask("Three?").text;
    assert_eq!([first, second, third], alone(&["One?", "Two?", "Three?"])[..]);
    t.send(Request::Switch(1));
    assert_eq!(session(&mut t).messages.len(), 6);
    t.quit();
}

fn an_aside_asks_about_what_stood_before_a_document_that_is_read() {
    let dir = dir();
    std::fs::write(dir.path().join("notes.txt"), "The code of Arvel station is TR-5512-K.\n".repeat(60)).unwrap();
    let (mut t, gate) = gated(dir.path(), Setup::default());
    gate.pass(40);
    t.ask("One?");
    t.on_disk();
    t.work();
    gate.close();
    gate.pass(2);
    t.send(Request::Load { paths: vec!["notes.txt".into()], options: LoadOptions::default() });
    t.wait("reading", |n| matches!(n, Notice::Activity(Activity::Reading(_))).then_some(()));
    t.send(Request::Aside("What is meant?".into()));
    let text = t.wait("the aside", |n| match n {
        Notice::Aside { text, done: Some(_), .. } => Some(text.clone()),
        _ => None,
    });
    assert!(text.starts_with("state "), "{text}");
    drop(gate);
    t.note_with("Read notes.txt");
    t.quit();
}

fn an_aside_knows_a_document_that_was_kept_in_part() {
    let dir = dir();
    std::fs::write(dir.path().join("long.txt"), "This is a line of the long file.\n".repeat(200)).unwrap();
    let (mut t, gate) = gated(dir.path(), Setup::default());
    gate.pass(3);
    t.send(Request::Load { paths: vec!["long.txt".into()], options: LoadOptions::default() });
    t.wait("reading", |n| matches!(n, Notice::Activity(Activity::Reading(p)) if p.done >= 3 * 64).then_some(()));
    t.send(Request::Stop);
    let question = t.wait("a question", |n| if let Notice::Question { id, .. } = n { Some(*id) } else { None });
    gate.pass(40);
    t.send(Request::Choose { question, key: '\x1b' });
    t.note_with("Kept what was read");
    t.sync();
    t.on_disk();
    gate.close();
    ask_until_text(&mut t, &gate, "One?");
    t.work();
    t.send(Request::Aside("What is meant?".into()));
    t.wait("the aside", |n| matches!(n, Notice::Aside { done: Some(_), .. }).then_some(()));
    // It follows the question and the part of the answer written so far.
    let given = t.given();
    assert!(given.iter().any(|g| g.contains("One?")), "{given:?}");
    drop(gate);
    t.finished();
    t.quit();
}

fn an_aside_without_memory_for_it_waits_and_says_so() {
    let dir = dir();
    let (mut t, gate) = gated(dir.path(), Setup { room: 1, ..Setup::default() });
    ask_until_text(&mut t, &gate, "One?");
    t.send(Request::Aside("What is meant?".into()));
    let note = t.note_with("The aside waits for the current work");
    assert!(note.contains("no memory for another conversation"), "{note}");
    drop(gate);
    t.finished();
    let (of, finish) = t.wait("the aside", |n| match n {
        Notice::Aside { question, done: Some(finish), .. } => Some((question.clone(), *finish)),
        _ => None,
    });
    assert_eq!((of.as_str(), finish), ("What is meant?", Finish::Stop));
    t.sync();
    assert!(!t.seen.iter().any(|n| matches!(n, Notice::Note(Level::Error, _))));
    t.quit();
}

fn stopping_an_aside_stops_nothing_else() {
    let dir = dir();
    let (mut t, gate) = gated_in(dir.path(), &[0, 1], Setup::default());
    ask_until_text(&mut t, &gate, "One?");
    gate.close();
    t.send(Request::Aside("What is meant?".into()));
    t.send(Request::StopAside);
    let finish = t.wait("the aside", |n| if let Notice::Aside { done, .. } = n { *done } else { None });
    assert_eq!(finish, Finish::Stopped);
    drop(gate);
    assert_eq!(t.finished().text, alone(&["One?"])[0]);
    t.quit();
}

fn states_that_wait_for_the_end_are_those_of_all_sessions() {
    let dir = dir();
    let setup = || Setup { save_state: SaveStates::Exit, ..Setup::default() };
    let mut t = Chat::new(dir.path(), setup());
    t.ask("One?");
    t.send(Request::New(None));
    session(&mut t);
    t.ask("Another?");
    t.ask("And more?");
    t.quit();
    for name in ["one", "another"] {
        let mut t = Chat::new(dir.path(), Setup { opening: Opening::Resume(name.into()), ..setup() });
        t.note_with("Resumed");
        let answer = t.ask("Two?");
        assert!(answer.meta.reused_tokens > 0, "{name}: {:?}", answer.meta);
        t.quit();
    }
}

fn a_book_taken_out_again_takes_no_other_state_with_it() {
    let dir = dir();
    let setup = || Setup { save_state: SaveStates::Exit, ..Setup::default() };
    std::fs::write(dir.path().join("book.txt"), "The code of Arvel station is TR-5512-K.\n".repeat(9)).unwrap();
    let mut t = Chat::new(dir.path(), setup());
    t.ask("One?");
    t.on_disk();
    t.send(Request::Library(LibraryAction::Add("book.txt".into())));
    t.note_with("is in the library");
    t.sync();
    t.on_disk();
    t.send(Request::Library(LibraryAction::Remove("book.txt".into())));
    t.note_with("Removed book.txt from the library");
    assert_eq!(t.quit().as_deref(), Some("Saved. Come back with: sala-chat -r one"));
    let one = || Setup { opening: Opening::Resume("one".into()), ..setup() };
    let mut t = Chat::new(dir.path(), one());
    t.note_with("Resumed");
    let answer = t.ask("Two?");
    assert!(answer.meta.reused_tokens > 0, "{:?}", answer.meta);

    // The state it builds on is removed meanwhile, which is reported.
    let data = dir.path().join("data");
    Store::open(&data, Arc::new(RealDisk), Limits::default()).unwrap().drop_all_state(&[]).unwrap();
    let lost = "Text is saved, not all state is kept: earlier state of this conversation is not kept; the next start reads \
                it again, and keeps it. Come back with: sala-chat -r one";
    assert_eq!(t.quit().as_deref(), Some(lost));
}

with_both_tokenizers!(
    an_answer_continues_after_a_switch,
    switching_back_shows_the_current_state_and_live_updates,
    meters_of_a_new_session_start_at_zero_during_other_work,
    a_document_is_read_on_in_a_session_that_was_left,
    queued_questions_run_in_order_after_a_switch,
    a_stop_is_for_what_is_on_screen_and_the_end_for_all,
    a_request_that_leads_nowhere_changes_nothing,
    an_engine_of_one_conversation_waits_and_says_so,
    what_would_open_another_session_is_not_done_in_one_that_was_left,
    a_runtime_question_waits_in_its_session,
    an_aside_is_answered_and_changes_nothing,
    an_aside_asks_about_what_stood_before_a_document_that_is_read,
    an_aside_knows_a_document_that_was_kept_in_part,
    an_aside_without_memory_for_it_waits_and_says_so,
    stopping_an_aside_stops_nothing_else,
    states_that_wait_for_the_end_are_those_of_all_sessions,
    a_book_taken_out_again_takes_no_other_state_with_it,
);
