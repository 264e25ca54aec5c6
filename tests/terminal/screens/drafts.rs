//! Unsent input: kept once typing rests, forgotten once sent or cleared, restored later.

use sala_chat::core::transcript::LONGEST_PROMPT;
use sala_chat::runtime::protocol::{Notice, Request};
use sala_chat::tui::Event;

use super::stage::*;

fn draft(serial: u64, text: &str) -> Request {
    Request::Draft { serial, text: text.into() }
}

/// The first of several sessions.
fn first() -> Stage {
    let mut s = open(80, 24);
    s.notify(Notice::Session(opened(1)));
    s.all_sent();
    s
}

#[test]
fn a_draft_is_saved_once_typing_rests() {
    let mut s = first();
    assert_eq!(s.app.deadline(), None);
    s.type_text("half").wait(600).type_text(" a question").wait(600);
    assert_eq!(s.all_sent(), []);
    s.wait(400);
    assert_eq!((s.all_sent(), s.app.deadline()), (vec![draft(1, "half a question")], None));
    s.press("left right");
    assert_eq!(s.app.deadline(), None);
    // What is taken away and brought back within the time is the same.
    s.type_text("s").press("backspace").wait(1_000);
    assert_eq!((s.all_sent(), s.app.deadline()), (vec![], None));
}

#[test]
fn a_draft_that_is_cleared_or_sent_is_forgotten_at_once() {
    let mut s = first();
    s.type_text("half a question").wait(1_000).press("ctrl-c");
    assert_eq!(s.all_sent(), [draft(1, "half a question"), draft(1, "")]);
    s.press("ctrl-y").wait(1_000).press("enter");
    assert_eq!(s.all_sent(), [draft(1, "half a question"), Request::Ask("half a question".into()), draft(1, "")]);
    busy(&mut s);
    s.type_text("the next one").wait(1_000).press("enter");
    let queued = Request::Remember("the next one".into());
    assert_eq!(s.all_sent(), [draft(1, "the next one"), queued, draft(1, "")]);
    // One that was never kept needs no word.
    s.type_text("quick").press("enter");
    assert_eq!(s.all_sent(), [Request::Remember("quick".into())]);
}

#[test]
fn a_folded_paste_is_kept_whole_unless_too_long() {
    let mut s = first();
    let long = format!("{}words.", "words ".repeat(299));
    s.type_text("see ").event(Event::Paste(long.clone())).wait(1_000);
    assert_eq!(s.all_sent(), [draft(1, &format!("see {long}"))]);
    s.event(Event::Paste("x".repeat(LONGEST_PROMPT))).wait(1_000);
    assert_eq!((s.all_sent(), s.app.deadline()), (vec![], None));
    s.press("ctrl-c");
    assert_eq!(s.all_sent(), [draft(1, "")]);
}

#[test]
fn each_session_has_its_own_draft() {
    let mut s = first();
    s.type_text("half a thought").press("alt-2").notify(Notice::Session(opened(2)));
    assert_eq!(s.all_sent(), [Request::Switch(2), draft(1, "half a thought")]);
    s.type_text("another").wait(1_000).press("alt-1").notify(Notice::Session(opened(1))).wait(5_000);
    assert_eq!(s.app.open.composer.text(), "half a thought");
    assert_eq!(s.all_sent(), [draft(2, "another"), Request::Switch(1)]);
    // When it moves to another session it belongs to that one.
    s.notify(Notice::Session(opened(3)));
    assert_eq!(s.all_sent(), [draft(1, "")]);
    s.wait(1_000);
    assert_eq!((s.all_sent(), s.app.deadline()), (vec![draft(3, "half a thought")], None));
}

#[test]
fn a_draft_of_an_earlier_run_returns_to_the_input() {
    let mut s = first();
    s.notify(Notice::Draft("half a\nquestion".into()));
    assert_eq!((s.app.open.composer.text(), s.app.open.composer.cursor()), ("half a\nquestion", 15));
    s.wait(5_000);
    assert_eq!((s.all_sent(), s.app.deadline()), (vec![], None), "it is kept already");
    s.press("ctrl-c");
    assert_eq!(s.all_sent(), [draft(1, "")]);
    let mut s = first();
    s.notify(Notice::Draft("half \u{1b}]0;x\u{7}done".into()));
    assert!(!s.app.open.composer.text().contains(['\u{1b}', '\u{7}']), "{}", s.app.open.composer.text());
    // Newer input precedes it.
    let mut s = first();
    s.type_text("typed").notify(Notice::Draft("earlier".into()));
    assert_eq!(s.app.open.composer.text(), "typed");
    assert!(s.screen().contains("Ctrl-Y brings it back"), "{}", s.screen());
    s.press("ctrl-y");
    assert_eq!(s.app.open.composer.text(), "typedearlier");
}

#[test]
fn the_end_of_the_program_keeps_the_draft() {
    let mut s = first();
    s.type_text("at the end").event(Event::Terminate);
    assert_eq!((s.all_sent(), s.app.deadline()), (vec![draft(1, "at the end"), Request::Quit], None));
    // Before a session is open there is nowhere but the history.
    let mut s = Stage::new(80, 24);
    s.type_text("early").wait(1_000).event(Event::Terminate);
    assert_eq!(s.all_sent(), [Request::Remember("early".into()), Request::Quit]);
}

#[test]
fn a_draft_of_another_terminal_replaces_the_local_one() {
    let back = |typed: &str, restored: &str| {
        let mut s = first();
        s.type_text("mine").press("alt-2").notify(Notice::Session(opened(2)));
        s.press("alt-1").notify(Notice::Session(opened(1))).type_text(typed).notify(Notice::Draft(restored.into()));
        s.all_sent();
        s
    };
    let mut s = back("", "theirs");
    assert_eq!(s.app.open.composer.text(), "theirs");
    assert!(s.screen().contains("Ctrl-Y brings it back"), "{}", s.screen());
    s.wait(9_000);
    assert_eq!((s.all_sent(), s.app.deadline()), (vec![], None), "it is kept already");
    // It was sent there.
    assert_eq!(back("", "").app.open.composer.text(), "");
    // What is typed by now stays, and is kept.
    let mut s = back(" and more", "theirs");
    assert_eq!(s.app.open.composer.text(), "mine and more");
    s.wait(1_000);
    assert_eq!(s.all_sent(), [draft(1, "mine and more")]);
    // Its own says nothing.
    let mut s = back("", "mine");
    assert_eq!(s.app.open.composer.text(), "mine");
    assert!(!s.screen().contains("Ctrl-Y"), "{}", s.screen());
}
