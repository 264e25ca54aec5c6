//! Edits of earlier messages: what is one stays one, whatever is entered before or behind it, and nothing else becomes one.

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

/// A conversation whose question is #2, with nothing going on.
fn talk() -> Stage {
    let mut s = open(80, 24);
    s.tell(Notice::Session(conversation()));
    s
}

#[test]
fn what_waited_before_an_edit_was_opened_is_a_question_still() {
    let mut s = talk();
    busy(&mut s);
    s.type_text("a question").press("enter").tell(editing("the old text"));
    s.tell(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [Request::Ask("a question".into())]);
    assert_eq!((s.app.composer.text(), s.app.editing), ("the old text", Some(MessageId(2))), "the edit stays open");
}

#[test]
fn an_edit_that_waits_is_an_edit_when_it_is_sent_and_no_line_behind_it_is() {
    let mut s = talk();
    busy(&mut s);
    s.tell(editing("old")).type_text("er").press("enter");
    assert_eq!(s.app.editing, None, "what is typed now is not the edit");
    s.type_text("a question").press("enter");
    let screen = s.screen();
    assert!(screen.contains("queued edit: \"older\"") && screen.contains("queued: \"a question\""), "{screen}");
    s.tell(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [edit("older")]);
    s.tell(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [Request::Ask("a question".into())]);
}

#[test]
fn an_edit_that_is_taken_out_of_the_queue_is_one_again_and_so_is_what_takes_its_place() {
    let mut s = talk();
    busy(&mut s);
    s.tell(editing("older")).press("enter").type_text("a question").press("ctrl-x");
    assert_eq!((s.app.composer.text(), s.app.editing), ("older", Some(MessageId(2))));
    s.press("ctrl-x");
    assert_eq!((s.app.composer.text(), s.app.editing), ("a question", None));
    s.tell(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [edit("older")]);
}

#[test]
fn an_edit_that_waits_goes_to_its_own_session() {
    let mut s = talk();
    busy(&mut s);
    s.tell(editing("older")).press("enter").type_text("/new").press("enter");
    assert_eq!(s.sent(), [], "an engine with one conversation ends this one first");
    s.tell(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [edit("older")]);
    s.tell(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [Request::New(None)]);
}

#[test]
fn a_command_that_does_something_leaves_an_edit_and_a_page_does_not() {
    let mut s = talk();
    s.tell(editing("")).type_text("/help").press("enter esc");
    assert_eq!(s.app.editing, Some(MessageId(2)));
    s.type_text("/undo").press("enter");
    assert_eq!((s.app.editing, s.sent()), (None, vec![Request::Undo(1)]));
    s.type_text("a question").press("enter");
    assert_eq!(s.sent(), [Request::Ask("a question".into())]);
}

#[test]
fn a_document_named_in_an_edit_is_not_silently_text() {
    let mut s = talk();
    s.tell(Notice::Library(vec![LibraryName { name: "plan.md".into(), tokens: 12 }]));
    s.tell(editing("")).type_text("What says @plan.md?").press("enter");
    assert!(matches!(s.effects.pop(), Some(Effect::FindPaths(_))));
    s.event(Event::FoundPaths(Vec::new()));
    assert_eq!(s.sent(), []);
    assert_eq!((s.app.composer.text(), s.app.editing), ("What says @plan.md?", Some(MessageId(2))), "nothing is lost");
    let screen = s.screen();
    assert!(screen.contains("Not sent: an edit reads no document, and @plan.md is one."), "{screen}");

    // A document of the conversation is only spoken of, and a word that is none stays text.
    s.press("ctrl-c").tell(editing("")).type_text("What says @war.txt to @anna?").press("enter");
    s.event(Event::FoundPaths(Vec::new()));
    assert_eq!(s.sent(), [edit("What says war.txt to @anna?")]);
}
