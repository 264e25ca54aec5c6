//! Lines typed while the program has a question, and what happens to them after its answer.

use sala_chat::engine::protocol::ModelInfo;
use sala_chat::runtime::protocol::{Activity, Choice, Notice, ReadingProgress, Request, SessionView};
use sala_chat::tui::Event;

use super::stage::*;

/// A question of the runtime.
fn question(id: u64, choices: &[(char, &str)]) -> Notice {
    let choices = choices.iter().map(|(key, label)| Choice { key: *key, label: (*label).into() }).collect();
    Notice::Question { id, text: "What now?".into(), choices, plan: None }
}

/// Of a load that was stopped.
fn stopped(id: u64) -> Notice {
    question(id, &[('1', "continue"), ('2', "go back"), ('\x1b', "keep what is read")])
}

fn choose(question: u64, key: char) -> Request {
    Request::Choose { question, key }
}

/// A session with this question and a line entered at the same time.
fn with_line(notice: Notice, line: &str) -> Stage {
    let mut s = open(80, 24);
    s.notify(Notice::Ready(ModelInfo { max_sequences: 16, ..gpu() })).notify(Notice::Session(opened(1)));
    s.notify(notice).event(Event::Frame);
    s.type_text(line).press("enter");
    assert_eq!((s.sent(), s.queued()), (vec![], vec![line]));
    s
}

fn is_held(s: &mut Stage, line: &str) {
    s.notify(Notice::Activity(Activity::Idle));
    assert_eq!((s.sent(), s.queued(), s.app.open.queue.held), (vec![], vec![line], true));
    s.press("enter");
    assert_eq!(s.sent(), [Request::Ask(line.into())]);
}

#[test]
fn a_line_typed_at_a_question_stays_in_its_session() {
    let mut s = with_line(question(1, &[('y', "delete"), ('n', "keep")]), "meant for it");
    s.press("y");
    assert_eq!((s.sent(), s.queued()), (vec![choose(1, 'y')], vec!["meant for it"]));
    // Nothing was at work.
    s.event(Event::Notice(Notice::Activity(Activity::Idle)));
    let mut new = opened(3);
    s.notify(Notice::Session(new.clone()));
    new.opened.retain(|o| o.serial != 1);
    s.notify(Notice::Session(new));
    is_held(&mut s, "meant for it");
}

#[test]
fn a_line_typed_during_a_stopped_load_waits_and_can_be_held() {
    let mut s = with_line(stopped(1), "and who is it?");
    s.press("1");
    assert_eq!(s.sent(), [choose(1, '1')]);
    let reading = ReadingProgress { done: 1, total: 9, ..ReadingProgress::default() };
    s.notify(Notice::Activity(Activity::Reading(reading)));
    assert!(s.screen().contains("queued: \"and who is it?\""), "{}", s.screen());
    s.notify(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [Request::Ask("and who is it?".into())]);
    // After a second stop there is no question about a part.
    let mut s = with_line(stopped(1), "and who is it?");
    s.press("1").notify(Notice::Activity(Activity::Busy { what: "x".into() })).press("esc");
    assert_eq!((s.sent(), s.app.open.queue.held), (vec![choose(1, '1'), Request::Stop], true));
    s.event(Event::Notice(Notice::Activity(Activity::Idle))).notify(stopped(2)).wait(800).press("esc");
    assert_eq!(s.sent(), [choose(2, '\x1b')]);
    is_held(&mut s, "and who is it?");
    // Nor is it where the answer is to go no further, or back.
    let mut s = with_line(stopped(1), "and who is it?");
    s.press("esc");
    assert_eq!(s.sent(), [choose(1, '\x1b')]);
    is_held(&mut s, "and who is it?");
    let mut s = with_line(stopped(1), "and who is it?");
    s.press("2");
    assert_eq!(s.sent(), [choose(1, '2')]);
    let there = opened(1);
    let messages = there.messages.iter().take(1).cloned().collect();
    s.notify(Notice::Session(SessionView { messages, ..there }));
    is_held(&mut s, "and who is it?");
}

#[test]
fn queued_messages_wait_for_a_question_that_ends_the_work() {
    let mut s = open(80, 24);
    busy(&mut s);
    s.type_text("what does it say?").press("enter");
    s.event(Event::Notice(Notice::Activity(Activity::Idle))).notify(super::pages::plan(1_048_576));
    assert_eq!((s.sent(), s.queued()), (vec![], vec!["what does it say?"]));
    s.press("enter");
    assert_eq!(s.sent(), [choose(1, '\n')]);
    s.notify(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [Request::Ask("what does it say?".into())]);
}

#[test]
fn a_line_waiting_for_a_decision_is_visible_and_recallable() {
    for (width, height) in super::SIZES {
        let mut s = open(width, height);
        s.notify(question(1, &[('y', "delete"), ('n', "keep")])).event(Event::Frame);
        s.type_text("AAAA one").press("enter");
        let screen = s.screen();
        assert!(screen.contains("queued: \"AAAA one\"") && screen.contains("What now?"), "{screen}");
        assert!(screen.contains("y delete   n keep"), "{screen}");
        s.press("ctrl-x");
        assert_eq!((s.sent(), s.queued(), s.app.open.composer.text()), (vec![], vec![], "AAAA one"));
        // It is written on; the question is still there.
        s.press("y");
        assert_eq!((s.sent(), s.app.open.composer.text()), (vec![], "AAAA oney"));
        assert!(s.screen().contains("What now?"), "{}", s.screen());
    }
    // Where a page lies over what waits, there is nothing to be taken back in sight.
    let mut s = with_line(question(1, &[('y', "delete"), ('n', "keep")]), "one");
    s.notify(Notice::Page { title: "Found".into(), text: "a page".into() }).press("ctrl-x");
    assert_eq!(s.queued(), ["one"]);
}

#[test]
fn no_and_esc_decline() {
    for key in ["n", "N", "esc"] {
        let mut s = open(80, 24);
        s.notify(question(1, &[('y', "delete"), ('n', "keep")])).press(key);
        assert_eq!(s.sent(), [choose(1, 'n')], "{key}");
    }
}

#[test]
fn ctrl_d_quits_at_a_question_as_it_does_elsewhere() {
    let mut s = open(80, 24);
    s.notify(stopped(1)).press("ctrl-d");
    assert_eq!(s.sent(), [Request::Quit]);
    // A possible loss raises one question, and staying decides as before.
    let mut s = with_line(stopped(1), "and who is it?");
    s.press("ctrl-d ctrl-d");
    assert!(s.screen().contains("1 message not sent"), "{}", s.screen());
    s.press("n");
    let screen = s.screen();
    assert!(screen.contains("What now?") && !screen.contains("not sent"), "{screen}");
    assert_eq!(s.sent(), []);
    s.press("esc");
    assert_eq!(s.sent(), [choose(1, '\x1b')]);
}
