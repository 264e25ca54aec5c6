//! A conversation that is parked between its questions is the same as one that never was.

use std::time::Duration;

use sala_chat::config::settings::SaveStates;
use sala_chat::runtime::protocol::Activity;

use super::*;

/// The built-in model; the conversation is parked by requests, or by itself when it is idle.
fn demo(dir: &Path, opening: Opening, park_after: Option<Duration>, save_state: SaveStates) -> Chat {
    let options = EngineOptions { device: DeviceChoice::Cpu, park_after, ..EngineOptions::default() };
    let engine = engine::spawn(options).unwrap();
    let channels = EngineChannels { commands: engine.commands, events: engine.events };
    let how = How { text: text_model(None), opening, settings: greedy(), save_state, ..How::default() };
    Chat::with_engine(dir, channels, how)
}

fn parked(t: &mut Chat, parked: bool) {
    t.wait("the model", |n| matches!(n, Notice::Meters(m) if m.model.parked == parked).then_some(()));
}

fn park(t: &mut Chat) {
    t.send(Request::Park);
    parked(t, true);
    t.note_with("Parked: the memory of the model is free.");
    t.idle();
}

#[test]
fn a_conversation_that_is_parked_between_questions_is_the_straight_one() {
    let straight = straight(Engine::Demo);
    for save_state in [SaveStates::Turn, SaveStates::Exit] {
        let dir = tempfile::tempdir().unwrap();
        let mut t = demo(dir.path(), Opening::New, None, save_state);
        let mut answers = Vec::new();
        for question in QUESTIONS {
            answers.push(t.ask(question).text);
            t.sync();
            park(&mut t);
        }
        // Twice, and a requested return.
        assert!(t.note(Request::Park).starts_with("Parked: "));
        t.sync();
        assert!(t.note(Request::Unpark).starts_with("The model is in memory."));
        assert!(t.note(Request::Unpark).starts_with("The model is in memory."));
        let read_again = t.seen.iter().any(|n| matches!(n, Notice::Note(_, text) if text.contains("again")));
        assert!(!read_again, "{:?}", t.seen);
        t.quit();
        assert_eq!(answers, straight.answers, "{save_state:?}");
        assert_eq!(last_state(dir.path()), straight.state, "{save_state:?}");
    }
}

#[test]
fn a_question_waits_for_the_model_and_parking_for_the_answer() {
    let straight = straight(Engine::Demo);
    let dir = tempfile::tempdir().unwrap();
    let mut t = demo(dir.path(), Opening::New, None, SaveStates::Turn);
    let mut answers = Vec::new();
    for question in QUESTIONS {
        t.send(Request::Ask(question.into()));
        t.send(Request::Park);
        answers.push(t.finished().text);
        parked(&mut t, true);
    }
    t.quit();
    assert_eq!(answers, straight.answers);
    assert_eq!(last_state(dir.path()), straight.state);
}

#[test]
fn an_idle_conversation_parks_by_itself_and_resumes_elsewhere() {
    let straight = straight(Engine::Demo);
    let dir = tempfile::tempdir().unwrap();
    let mut t = demo(dir.path(), Opening::New, Some(Duration::from_millis(300)), SaveStates::Turn);
    let mut answers = vec![t.ask(QUESTIONS[0]).text];
    parked(&mut t, true);
    answers.push(t.ask(QUESTIONS[1]).text);
    parked(&mut t, true);
    t.quit();
    let mut t = demo(dir.path(), Opening::Resume("last".into()), Some(Duration::from_millis(300)), SaveStates::Turn);
    parked(&mut t, true);
    answers.push(t.ask(QUESTIONS[2]).text);
    t.quit();
    assert_eq!(answers, straight.answers);
    assert_eq!(last_state(dir.path()), straight.state);
}

#[test]
fn a_stop_ends_the_wait_for_a_parking() {
    let dir = tempfile::tempdir().unwrap();
    let mut t = demo(dir.path(), Opening::New, None, SaveStates::Turn);
    t.ask(QUESTIONS[0]);
    t.sync();
    t.send(Request::Park);
    t.wait("parking", |n| matches!(n, Notice::Activity(Activity::Busy { what }) if what == "parking").then_some(()));
    t.send(Request::Stop);
    t.sync();
    assert!(t.ask(QUESTIONS[1]).text.contains("42"));
    t.quit();
}

#[test]
fn a_system_text_costs_the_same_before_and_after_parking() {
    let dir = tempfile::tempdir().unwrap();
    let mut t = demo(dir.path(), Opening::New, None, SaveStates::Turn);
    t.ask(QUESTIONS[0]);
    let mut costs = Vec::new();
    for _ in 0..2 {
        t.send(Request::System(Some("Be brief.".into())));
        let (question, text) = t.wait("the cost", |n| match n {
            Notice::Question { id, text, .. } => Some((*id, text.clone())),
            _ => None,
        });
        t.send(Request::Choose { question, key: '\x1b' });
        t.sync();
        costs.push(text.split(" tokens").next().unwrap().to_owned());
        park(&mut t);
        t.note(Request::Unpark);
    }
    assert_eq!(costs[0], costs[1]);
    t.quit();
}
