//! Drafts: the input of a session returns at its next start, even if another terminal has the session.

use std::sync::Arc;
use std::time::Instant;

use sala_chat::core::transcript::SessionId;
use sala_chat::store::{NO_ROW, Store, draft_places};

use super::fault::FaultDisk;
use super::*;

fn draft(serial: u64, text: &str) -> Request {
    Request::Draft { serial, text: text.into() }
}

/// The drafts the runtime restored.
fn drafts(t: &Chat) -> Vec<String> {
    let text = |n: &Notice| if let Notice::Draft(text) = n { Some(text.clone()) } else { None };
    t.seen.iter().filter_map(text).collect()
}

/// The prompts that Up finds.
fn prompts(t: &Chat) -> Vec<String> {
    let all = |n: &Notice| if let Notice::Prompts(all) = n { Some(all.clone()) } else { None };
    t.seen.iter().find_map(all).unwrap()
}

/// Waits until this is on disk.
fn kept(store: &Store, session: SessionId, text: &str) {
    let until = Instant::now() + support::PATIENCE;
    while store.draft(session).unwrap().as_deref() != Some(text) {
        assert!(Instant::now() < until, "the draft is not on disk");
        std::thread::yield_now();
    }
}

/// A session that was saved, and then this in its input: who has it, its name and its serial.
fn with_draft(dir: &std::path::Path, setup: Setup, text: &str) -> (Chat, String, u64) {
    let mut t = Chat::new(dir, setup);
    t.ask("One?");
    t.on_disk();
    let (name, serial) = (t.name(), t.view().serial);
    t.send(draft(serial, text));
    let store = support::store(&dir.join("data"));
    kept(&store, store.session_named(&name).unwrap().id, text);
    (t, name, serial)
}

/// The session again, as the next run has it.
fn again(dir: &std::path::Path, name: &str) -> Chat {
    let mut t = Chat::new(dir, resume(name));
    t.note_with("Resumed");
    t
}

#[test]
fn a_draft_is_on_disk_before_the_end_and_back_at_the_next_start() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.ask("One?");
    let (name, serial) = (t.name(), t.view().serial);
    t.send(draft(serial, "half"));
    t.send(draft(serial, "half a question"));
    let store = support::store(&dir.path().join("data"));
    // Whatever ends the program now.
    kept(&store, store.session_named(&name).unwrap().id, "half a question");
    t.quit();
    let t = again(dir.path(), &name);
    assert_eq!((drafts(&t), prompts(&t)), (vec!["half a question".into()], vec!["One?".into()]));
    let serial = t.view().serial;
    t.send(draft(serial, ""));
    t.quit();
    let t = again(dir.path(), &name);
    assert_eq!((drafts(&t), prompts(&t)), (vec![], vec!["One?".into()]));
    t.quit();
}

#[test]
fn a_draft_of_a_session_that_was_left_is_kept_with_it() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.ask("One?");
    let (name, serial) = (t.name(), t.view().serial);
    t.send(Request::New(None));
    t.sync();
    t.send(draft(serial, "left there"));
    t.quit();
    let t = again(dir.path(), &name);
    assert_eq!(drafts(&t), ["left there"]);
    t.quit();
}

#[test]
fn a_draft_without_a_session_moves_to_the_next_new_one() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.sync();
    t.send(draft(t.view().serial, "never asked"));
    t.sync();
    // Another terminal neither has it nor takes its place: its own has another one.
    let mut other = Chat::new(dir.path(), Setup::default());
    other.sync();
    assert_eq!(drafts(&other), Vec::<String>::new());
    other.send(draft(other.view().serial, "elsewhere"));
    other.quit();
    t.quit();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.sync();
    assert_eq!((drafts(&t), prompts(&t)), (vec!["never asked".into()], vec![]));
    t.ask("Something else?");
    let name = t.name();
    t.quit();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.sync();
    assert_eq!(drafts(&t), ["elsewhere"]);
    t.send(draft(t.view().serial, ""));
    t.quit();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.sync();
    assert_eq!(drafts(&t), Vec::<String>::new());
    t.quit();
    let t = again(dir.path(), &name);
    assert_eq!(drafts(&t), ["never asked"]);
    t.quit();
}

#[test]
fn a_run_in_another_session_keeps_an_earlier_draft() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.ask("One?");
    let name = t.name();
    t.send(Request::New(None));
    t.sync();
    t.send(draft(t.view().serial, "never asked"));
    t.quit();
    let mut t = again(dir.path(), &name);
    t.send(Request::New(None));
    t.sync();
    t.send(draft(t.view().serial, "another"));
    t.quit();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.sync();
    assert_eq!(drafts(&t), ["never asked"]);
    let mut other = Chat::new(dir.path(), Setup::default());
    other.sync();
    assert_eq!(drafts(&other), ["another"]);
    other.quit();
    t.quit();
}

#[test]
fn a_draft_for_which_there_is_no_place_is_found_with_up() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.sync();
    let places = draft_places().count();
    for n in 0..=places {
        t.send(draft(t.view().serial, &format!("draft {n}")));
        t.send(Request::New(None));
        t.sync();
    }
    t.quit();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.sync();
    assert_eq!((drafts(&t), prompts(&t)), (vec!["draft 0".into()], vec![format!("draft {places}")]));
    t.quit();
}

#[test]
fn a_session_that_is_open_elsewhere_keeps_its_draft() {
    let dir = dir();
    let (t, name, _) = with_draft(dir.path(), Setup::default(), "mine");
    let second = viewing(dir.path(), &name);
    assert_eq!(drafts(&second), Vec::<String>::new());
    second.send(draft(second.view().serial, "theirs"));
    second.quit();
    t.quit();
    let t = again(dir.path(), &name);
    assert_eq!(drafts(&t), ["mine"]);
    assert!(prompts(&t).contains(&"theirs".to_owned()));
    t.quit();
}

#[test]
fn a_draft_typed_in_a_viewed_session_is_kept_afterwards() {
    for left in ["", "mine"] {
        let dir = dir();
        let mut t = Chat::new(dir.path(), Setup::default());
        t.ask("One?");
        t.on_disk();
        let name = t.name();
        t.send(draft(t.view().serial, left));
        let mut second = viewing(dir.path(), &name);
        second.send(draft(second.view().serial, "theirs"));
        second.send(Request::Ask("May I?".into()));
        second.note_with("view only");
        t.quit();
        second.send(Request::Resume(name.clone()));
        second.note_with("Resumed");
        assert_eq!(drafts(&second), Vec::<String>::new(), "it stands there");
        second.quit();
        let t = again(dir.path(), &name);
        assert_eq!(drafts(&t), ["theirs"]);
        assert_eq!(prompts(&t).contains(&"mine".to_owned()), left == "mine");
        t.quit();
    }
}

#[test]
fn a_draft_that_cannot_be_saved_is_not_taken_for_the_one_before() {
    let dir = dir();
    let (mut t, _, serial) = with_draft(dir.path(), Setup::default(), "before");
    let refuse = "CREATE TRIGGER refuse BEFORE INSERT ON draft BEGIN SELECT RAISE(ABORT, 'refused'); END";
    rusqlite::Connection::open(dir.path().join("data/sala.db")).unwrap().execute_batch(refuse).unwrap();
    t.send(draft(serial, "now"));
    t.note_with("Something could not be saved");
    t.send(Request::New(None));
    t.sync();
    t.send(Request::Switch(serial));
    t.sync();
    assert_eq!(drafts(&t), Vec::<String>::new());
}

#[test]
fn without_saving_no_draft_is_written() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup { discard: true, ..Setup::default() });
    t.ask("One?");
    let (name, serial) = (t.name(), t.view().serial);
    t.send(draft(serial, "half a question"));
    t.send(Request::New(None));
    t.sync();
    t.send(draft(t.view().serial, "never asked"));
    t.quit();
    let store = support::store(&dir.path().join("data"));
    let session = store.session_named(&name).unwrap().id;
    assert_eq!((store.draft(session).unwrap(), store.draft(NO_ROW).unwrap()), (None, None));
    assert_eq!(store.prompts(10).unwrap(), ["One?"]);
}

#[test]
fn without_an_input_no_draft_is_restored() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.sync();
    t.send(draft(t.view().serial, "never asked"));
    t.quit();
    let mut lines = Chat::new(dir.path(), Setup { input: Input::Lines, ..Setup::default() });
    lines.ask("One?");
    assert_eq!(drafts(&lines), Vec::<String>::new());
    lines.quit();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.sync();
    assert_eq!(drafts(&t), ["never asked"]);
    t.quit();
}

#[test]
fn a_draft_changed_in_another_terminal_is_shown_on_return() {
    let dir = dir();
    let (mut t, name, serial) = with_draft(dir.path(), Setup::default(), "mine");
    t.send(Request::New(None));
    t.sync();
    for text in ["theirs", ""] {
        let other = again(dir.path(), &name);
        other.send(draft(other.view().serial, text));
        other.quit();
        t.send(Request::Switch(serial));
        t.sync();
        assert_eq!(drafts(&t).last().map(String::as_str), Some(text));
        t.send(Request::New(None));
        t.sync();
    }
    t.quit();
}

#[test]
fn a_draft_being_saved_is_not_confused_with_the_previous_one() {
    let dir = dir();
    let disk = FaultDisk::new();
    let setup = Setup { disk: Arc::new(disk.clone()), ..Setup::default() };
    let (mut t, name, serial) = with_draft(dir.path(), setup, "before");
    let held = disk.hold("store-writer");
    t.send(draft(serial, "now"));
    t.send(Request::New(None));
    t.sync();
    t.send(Request::Switch(serial));
    t.sync();
    assert_eq!(drafts(&t), Vec::<String>::new());
    drop(held);
    t.quit();
    let t = again(dir.path(), &name);
    assert_eq!(drafts(&t), ["now"]);
    t.quit();
}
