//! What is typed beside a question of the program, and what becomes of it once that is answered.

use sala_chat::engine::protocol::ModelInfo;
use sala_chat::runtime::protocol::{Activity, Choice, Notice, ReadingProgress, Request, SessionView};
use sala_chat::tui::Event;

use super::stage::*;

/// A question of the runtime.
fn question(id: u64, choices: &[(char, &str)]) -> Notice {
    let choices = choices.iter().map(|(key, label)| Choice { key: *key, label: (*label).into() }).collect();
    Notice::Question { id, text: "What now?".into(), choices }
}

/// Of a load that was stopped.
fn stopped(id: u64) -> Notice {
    question(id, &[('1', "continue"), ('2', "go back"), ('\x1b', "keep what is read")])
}

fn choose(question: u64, key: char) -> Request {
    Request::Choose { question, key }
}

/// A session in which this is asked, and a line that was entered beside it.
fn beside(asked: Notice, line: &str) -> Stage {
    let mut s = open(80, 24);
    s.tell(Notice::Ready(ModelInfo { max_sequences: 16, ..gpu() })).tell(Notice::Session(opened(1)));
    s.tell(asked).event(Event::Frame);
    s.type_text(line).press("enter");
    assert_eq!((s.sent(), s.queued()), (vec![], vec![line]));
    s
}

fn is_held(s: &mut Stage, line: &str) {
    s.tell(Notice::Activity(Activity::Idle));
    assert_eq!((s.sent(), s.queued(), s.app.queue.held), (vec![], vec![line], true));
    s.press("enter");
    assert_eq!(s.sent(), [Request::Ask(line.into())]);
}

#[test]
fn a_line_beside_a_question_is_not_asked_in_the_session_that_the_answer_leads_to() {
    let mut s = beside(question(1, &[('y', "delete"), ('n', "keep")]), "meant for it");
    s.press("y");
    assert_eq!((s.sent(), s.queued()), (vec![choose(1, 'y')], vec!["meant for it"]));
    // Nothing was at work.
    s.event(Event::Notice(Notice::Activity(Activity::Idle)));
    let mut new = opened(3);
    s.tell(Notice::Session(new.clone()));
    new.opened.retain(|o| o.serial != 1);
    s.tell(Notice::Session(new));
    is_held(&mut s, "meant for it");
}

#[test]
fn a_line_beside_a_stopped_load_waits_for_its_end_and_can_be_held() {
    let mut s = beside(stopped(1), "and who is it?");
    s.press("1");
    assert_eq!(s.sent(), [choose(1, '1')]);
    let reading = ReadingProgress { done: 1, total: 9, ..ReadingProgress::default() };
    s.tell(Notice::Activity(Activity::Reading(reading)));
    assert!(s.screen().contains("queued: \"and who is it?\""), "{}", s.screen());
    s.tell(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [Request::Ask("and who is it?".into())]);
    // Stopped once more, it is not asked about a part.
    let mut s = beside(stopped(1), "and who is it?");
    s.press("1").tell(Notice::Activity(Activity::Busy { what: "x".into() })).press("esc");
    assert_eq!((s.sent(), s.app.queue.held), (vec![choose(1, '1'), Request::Stop], true));
    s.event(Event::Notice(Notice::Activity(Activity::Idle))).tell(stopped(2)).wait(800).press("esc");
    assert_eq!(s.sent(), [choose(2, '\x1b')]);
    is_held(&mut s, "and who is it?");
    // Nor is it where the answer is to go no further, or back.
    let mut s = beside(stopped(1), "and who is it?");
    s.press("esc");
    assert_eq!(s.sent(), [choose(1, '\x1b')]);
    is_held(&mut s, "and who is it?");
    let mut s = beside(stopped(1), "and who is it?");
    s.press("2");
    assert_eq!(s.sent(), [choose(1, '2')]);
    let there = opened(1);
    let messages = there.messages.iter().take(1).cloned().collect();
    s.tell(Notice::Session(SessionView { messages, ..there }));
    is_held(&mut s, "and who is it?");
}

#[test]
fn what_is_queued_does_not_go_before_a_question_that_ends_what_went_on() {
    let mut s = open(80, 24);
    busy(&mut s);
    s.type_text("what does it say?").press("enter");
    s.event(Event::Notice(Notice::Activity(Activity::Idle))).tell(super::pages::plan(1_048_576));
    assert_eq!((s.sent(), s.queued()), (vec![], vec!["what does it say?"]));
    s.press("enter");
    assert_eq!(s.sent(), [choose(1, '\n')]);
    s.tell(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [Request::Ask("what does it say?".into())]);
}

#[test]
fn a_line_that_waits_for_a_decision_is_in_sight_and_can_be_taken_back() {
    for (width, height) in super::SIZES {
        let mut s = open(width, height);
        s.tell(question(1, &[('y', "delete"), ('n', "keep")])).event(Event::Frame);
        s.type_text("AAAA one").press("enter");
        let screen = s.screen();
        assert!(screen.contains("queued: \"AAAA one\"") && screen.contains("What now?"), "{screen}");
        assert!(screen.contains("y delete   n keep"), "{screen}");
        s.press("ctrl-x");
        assert_eq!((s.sent(), s.queued(), s.app.composer.text()), (vec![], vec![], "AAAA one"));
        // It is written on; the question is still there.
        s.press("y");
        assert_eq!((s.sent(), s.app.composer.text()), (vec![], "AAAA oney"));
        assert!(s.screen().contains("What now?"), "{}", s.screen());
    }
    // Where a page lies over what waits, there is nothing to be taken back in sight.
    let mut s = beside(question(1, &[('y', "delete"), ('n', "keep")]), "one");
    s.tell(Notice::Page { title: "Found".into(), text: "a page".into() }).press("ctrl-x");
    assert_eq!(s.queued(), ["one"]);
}

#[test]
fn no_and_esc_decline() {
    for key in ["n", "N", "esc"] {
        let mut s = open(80, 24);
        s.tell(question(1, &[('y', "delete"), ('n', "keep")])).press(key);
        assert_eq!(s.sent(), [choose(1, 'n')], "{key}");
    }
}

#[test]
fn ctrl_d_quits_at_a_question_as_it_does_elsewhere() {
    let mut s = open(80, 24);
    s.tell(stopped(1)).press("ctrl-d");
    assert_eq!(s.sent(), [Request::Quit]);
    // Where something would be lost that is asked, once, and who stays decides as before.
    let mut s = beside(stopped(1), "and who is it?");
    s.press("ctrl-d ctrl-d");
    assert!(s.screen().contains("1 message was not sent"), "{}", s.screen());
    s.press("n");
    let screen = s.screen();
    assert!(screen.contains("What now?") && !screen.contains("was not sent"), "{screen}");
    assert_eq!(s.sent(), []);
    s.press("esc");
    assert_eq!(s.sent(), [choose(1, '\x1b')]);
}
