//! Edits of earlier messages: an edit stays one, whatever is entered before or after it, and no other line turns into one.

use sala_chat::core::transcript::MessageId;
use sala_chat::runtime::protocol::{Activity, LibraryName, Notice, Request};
use sala_chat::tui::{Effect, Event};

use super::stage::{Stage, conversation};
use super::{busy, open};

fn editing(text: &str) -> Notice {
    Notice::Input { text: text.into(), editing: Some(MessageId(2)) }
}

fn edit(text: &str) -> Request {
    Request::EditDone { message: MessageId(2), text: text.into() }
}

/// An idle conversation with question #2.
fn chat() -> Stage {
    let mut s = open(80, 24);
    s.notify(Notice::Session(conversation()));
    s
}

#[test]
fn a_line_queued_before_an_edit_stays_a_question() {
    let mut s = chat();
    busy(&mut s);
    s.type_text("a question").press("enter").notify(editing("the old text"));
    s.notify(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [Request::Ask("a question".into())]);
    assert_eq!(
        (s.app.open.composer.text(), s.app.open.editing),
        ("the old text", Some(MessageId(2))),
        "the edit stays open"
    );
}

#[test]
fn a_queued_edit_stays_an_edit_and_later_lines_do_not() {
    let mut s = chat();
    busy(&mut s);
    s.notify(editing("old")).type_text("er").press("enter");
    assert_eq!(s.app.open.editing, None, "what is typed now is not the edit");
    s.type_text("a question").press("enter");
    let screen = s.screen();
    assert!(screen.contains("queued edit: \"older\"") && screen.contains("queued: \"a question\""), "{screen}");
    s.notify(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [edit("older")]);
    s.notify(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [Request::Ask("a question".into())]);
}

#[test]
fn an_edit_taken_from_the_queue_stays_an_edit() {
    let mut s = chat();
    busy(&mut s);
    s.notify(editing("older")).press("enter").type_text("a question").press("ctrl-x");
    assert_eq!((s.app.open.composer.text(), s.app.open.editing), ("older", Some(MessageId(2))));
    s.press("ctrl-x");
    assert_eq!((s.app.open.composer.text(), s.app.open.editing), ("a question", None));
    s.notify(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [edit("older")]);
}

#[test]
fn a_queued_edit_reaches_its_own_session() {
    let mut s = chat();
    busy(&mut s);
    s.notify(editing("older")).press("enter").type_text("/new").press("enter");
    assert_eq!(s.sent(), [], "an engine with one conversation ends this one first");
    s.notify(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [edit("older")]);
    s.notify(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [Request::New(None)]);
}

#[test]
fn a_command_that_does_something_leaves_an_edit_and_a_page_does_not() {
    let mut s = chat();
    s.notify(editing("")).type_text("/help").press("enter esc");
    assert_eq!(s.app.open.editing, Some(MessageId(2)));
    s.type_text("/undo").press("enter");
    assert_eq!((s.app.open.editing, s.sent()), (None, vec![Request::Undo(1)]));
    s.type_text("a question").press("enter");
    assert_eq!(s.sent(), [Request::Ask("a question".into())]);
}

#[test]
fn a_document_named_in_an_edit_is_not_silently_text() {
    let mut s = chat();
    s.notify(Notice::Library(vec![LibraryName { name: "plan.md".into(), tokens: 12 }]));
    s.notify(editing("")).type_text("What says @plan.md?").press("enter");
    assert!(matches!(s.effects.pop(), Some(Effect::FindPaths(_))));
    s.event(Event::FoundPaths(Vec::new()));
    assert_eq!(s.sent(), []);
    assert_eq!(
        (s.app.open.composer.text(), s.app.open.editing),
        ("What says @plan.md?", Some(MessageId(2))),
        "nothing is lost"
    );
    let screen = s.screen();
    assert!(screen.contains("Not sent: an edit reads no document, and @plan.md is one."), "{screen}");

    // A document of the conversation is only spoken of, and a word that is none stays text.
    s.press("ctrl-c").notify(editing("")).type_text("What says @war.txt to @anna?").press("enter");
    s.event(Event::FoundPaths(Vec::new()));
    assert_eq!(s.sent(), [edit("What says war.txt to @anna?")]);
}
