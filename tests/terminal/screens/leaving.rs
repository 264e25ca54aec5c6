//! Leaving a session in which something is queued, drafted or shown, and coming back to it.

use sala_chat::core::transcript::{MessageId, Role};
use sala_chat::engine::protocol::ModelInfo;
use sala_chat::runtime::protocol::{
    Activity, Level, Notice, ReadingProgress, Request, SaveState, SearchRow, SessionRow,
};
use sala_chat::tui::lists::Kind;
use sala_chat::tui::overlay::Overlay;
use sala_chat::tui::{Effect, Event};

use super::several::background;
use super::stage::*;

fn ask(text: &str) -> Request {
    Request::Ask(text.into())
}

/// The first of several sessions, with an engine of so many conversations.
fn first(sequences: u32) -> Stage {
    let mut s = open(80, 24);
    s.notify(Notice::Ready(ModelInfo { max_sequences: sequences, ..gpu() })).notify(Notice::Session(opened(1)));
    s.sent();
    s
}

/// Something is read, and two questions wait for its end.
fn with_two_queued(sequences: u32) -> Stage {
    let mut s = first(sequences);
    s.notify(Notice::Activity(Activity::Reading(ReadingProgress { done: 1, total: 9, ..ReadingProgress::default() })));
    s.type_text("question one").press("enter").type_text("question two").press("enter");
    assert_eq!(s.sent(), []);
    s
}

/// The session of that number is on screen, idle.
fn arrives(s: &mut Stage, serial: u64) {
    s.notify(Notice::Session(opened(serial))).notify(Notice::Activity(Activity::Idle)).event(Event::Frame);
}

#[test]
fn queued_messages_stay_in_their_session_on_a_list_switch() {
    let row = |name: &str| SessionRow {
        name: name.into(),
        title: String::new(),
        messages: 2,
        undone: 0,
        tokens: 9,
        state: "yes".into(),
        bytes: None,
        updated_ms: TIME,
        ..SessionRow::default()
    };
    let hit = SearchRow {
        session: "contract".into(),
        message: MessageId(12),
        number: 2,
        snippet: "Three months.".into(),
        created_ms: TIME,
    };
    for list in [
        Notice::Sessions(vec![row("contract"), row("war-and-peace")]),
        Notice::Found { query: "months".into(), rows: vec![hit] },
    ] {
        let mut s = with_two_queued(16);
        s.notify(list).press("enter");
        assert_eq!(s.sent(), [Request::Resume("contract".into())]);
        arrives(&mut s, 2);
        assert_eq!((s.sent(), s.queued()), (vec![], vec![]));
        background(&mut s, 1, Notice::Activity(Activity::Idle));
        assert_eq!(s.sent(), []);
        s.press("alt-1");
        arrives(&mut s, 1);
        assert_eq!(s.sent(), [Request::Switch(1), ask("question one")]);
    }
}

#[test]
fn a_session_that_ended_before_a_switch_runs_its_queue_on_return() {
    let mut s = with_two_queued(16);
    // It ends while the switch is in progress: the other session must receive no question.
    s.press("alt-2").event(Event::Notice(Notice::Activity(Activity::Idle)));
    assert_eq!(s.sent(), [Request::Switch(2)]);
    arrives(&mut s, 2);
    background(&mut s, 1, Notice::Finished(answer(22, "Said there.")));
    background(&mut s, 1, Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), []);
    assert!(s.screen().lines().next().unwrap_or("").contains("1*"), "{}", s.screen());
    s.press("alt-1");
    arrives(&mut s, 1);
    assert_eq!(s.sent(), [Request::Switch(1), ask("question one")]);
    s.notify(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [ask("question two")]);
}

#[test]
fn queued_messages_of_other_sessions_are_counted_at_the_end() {
    let mut s = with_two_queued(16);
    s.press("alt-2");
    arrives(&mut s, 2);
    s.sent();
    s.press("ctrl-d");
    let screen = s.screen();
    assert!(screen.contains("Still working in") && screen.contains("2 messages not sent"), "{screen}");
    s.press("y");
    let remember = |text: &str| Request::Remember(text.into());
    assert_eq!(s.all_sent(), [remember("question one"), remember("question two"), Request::Quit]);
}

#[test]
fn queued_messages_are_visible_after_a_switch_back() {
    let mut s = with_two_queued(16);
    s.press("alt-2");
    arrives(&mut s, 2);
    s.press("alt-1").notify(Notice::Session(opened(1)));
    s.notify(Notice::Activity(Activity::Answering { tokens_per_s: 9.0 }));
    assert_eq!((s.queued(), s.app.open.queue.held), (vec!["question one", "question two"], false));
    s.press("ctrl-x");
    assert_eq!((s.queued(), s.app.open.composer.text()), (vec!["question two"], "question one"));
    s.sent();
    s.press("esc");
    assert_eq!((s.sent(), s.app.open.queue.held), (vec![Request::Stop], true));
}

#[test]
fn a_mistyped_name_takes_nothing_out_of_the_queue() {
    let mut s = with_two_queued(16);
    s.type_text("/resume nosuch").press("enter");
    assert_eq!(s.sent(), [Request::Resume("nosuch".into())]);
    s.notify(Notice::Note(Level::Warn, "No session is called \"nosuch\".".into()));
    assert_eq!(s.queued(), ["question one", "question two"]);
    // It is sent here in its turn, or held by a stop.
    let served = s.received;
    s.event(Event::Notice(Notice::Activity(Activity::Idle)));
    assert_eq!(s.sent(), []);
    s.event(Event::Notice(Notice::Acknowledged(served)));
    assert_eq!(s.sent(), [ask("question one")]);
    let mut s = with_two_queued(16);
    s.type_text("/resume nosuch").press("enter esc");
    s.notify(Notice::Activity(Activity::Idle)).event(Event::Frame);
    assert!(s.app.open.queue.held && s.queued().len() == 2);
}

#[test]
fn with_one_slot_a_switch_waits_for_the_queue() {
    let mut s = with_two_queued(1);
    s.type_text("/resume contract").press("enter");
    assert_eq!((s.sent(), s.queued().len()), (vec![], 3));
    s.notify(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [ask("question one")]);
    s.notify(Notice::Activity(Activity::Idle)).notify(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [ask("question two"), Request::Resume("contract".into())]);
    // A list switches at once; queued messages are not sent there.
    let mut s = with_two_queued(1);
    s.press("alt-2");
    assert_eq!(s.sent(), []);
}

#[test]
fn a_question_about_an_unread_file_waits_in_its_session() {
    let load = |s: &mut Stage| {
        s.type_text("@big.txt what is it").press("enter").event(Event::FoundPaths(vec!["big.txt".into()]));
        // Where the program is killed while it reads, the question is not lost.
        assert!(matches!(s.all_sent()[..], [Request::Remember(_), Request::Load { .. }]));
        s.notify(Notice::Activity(Activity::Reading(ReadingProgress {
            done: 1,
            total: 9,
            ..ReadingProgress::default()
        })));
        s.press("alt-2");
        assert_eq!(s.sent(), [Request::Switch(2)]);
        arrives(s, 2);
        // Another file that is not read here has nothing to do with it.
        s.notify(Notice::Note(Level::Warn, "Skipped x".into()));
    };
    let mut s = first(16);
    load(&mut s);
    s.press("alt-1").notify(Notice::Session(opened(1)));
    s.notify(Notice::Activity(Activity::Reading(ReadingProgress { done: 2, total: 9, ..ReadingProgress::default() })));
    s.press("esc");
    s.notify(Notice::Activity(Activity::Idle)).event(Event::Frame);
    assert!(!s.sent().contains(&ask("big.txt what is it")));
    assert_eq!((s.queued(), s.app.open.queue.held), (vec!["big.txt what is it"], true));
    // A question about a file read there is sent on return.
    let mut s = first(16);
    load(&mut s);
    background(&mut s, 1, Notice::Added(document(20, "big.txt", 900)));
    background(&mut s, 1, Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), []);
    s.press("alt-1");
    arrives(&mut s, 1);
    assert_eq!(s.sent(), [Request::Switch(1), ask("big.txt what is it")]);
    // What could not be read, and what ended without having been read, waits for a decision.
    for why in [Some("Cannot read big.txt."), None] {
        let mut s = first(16);
        load(&mut s);
        why.into_iter().for_each(|why| background(&mut s, 1, Notice::Note(Level::Warn, why.into())));
        background(&mut s, 1, Notice::Activity(Activity::Idle));
        assert_eq!(s.sent(), []);
        s.press("alt-1");
        arrives(&mut s, 1);
        assert_eq!((s.queued(), s.app.open.queue.held), (vec!["big.txt what is it"], true));
    }
}

#[test]
fn drafts_of_sessions_that_were_left_are_counted_at_the_end_if_they_are_not_kept() {
    let mut s = first(16);
    s.type_text("half a thought").press("alt-2");
    arrives(&mut s, 2);
    s.sent();
    s.notify(Notice::Save(SaveState::Off)).press("ctrl-d");
    let screen = s.screen();
    assert!(screen.contains("1 draft in other sessions not kept. Quit?"), "{screen}");
    assert_eq!(s.sent(), []);
    s.press("n").notify(Notice::Save(SaveState::Saved(0)));
    s.type_text("another").press("alt-3");
    arrives(&mut s, 3);
    // Those are kept since their sessions were left.
    let draft = |serial, text: &str| Request::Draft { serial, text: text.into() };
    assert!(s.all_sent().contains(&draft(2, "another")));
    s.type_text("and one here").press("ctrl-c ctrl-d");
    assert_eq!(s.all_sent(), [Request::Quit]);
}

#[test]
fn a_refused_question_returns_next_to_a_draft() {
    let mut s = first(16);
    busy(&mut s);
    s.type_text("a draft ").press("alt-2");
    arrives(&mut s, 2);
    s.type_text("cut here").press("ctrl-u");
    background(&mut s, 1, Notice::Input { text: "the refused question".into(), editing: None });
    s.press("alt-1");
    arrives(&mut s, 1);
    assert_eq!(s.app.open.composer.text(), "a draft ");
    assert!(s.screen().contains("A question was not asked here; Ctrl-Y brings it back"), "{}", s.screen());
    s.press("ctrl-y");
    assert_eq!(s.app.open.composer.text(), "a draft the refused question");
}

#[test]
fn no_news_is_shown_for_an_idle_background_session() {
    let mut s = first(16);
    s.notify(Notice::Note(Level::Info, "A line of the program.".into())).press("pgup");
    assert_eq!(s.app.open.transcript.news_below(), Some(false));
    s.press("alt-2");
    arrives(&mut s, 2);
    s.press("alt-1");
    arrives(&mut s, 1);
    assert_eq!(s.app.open.transcript.news_below(), Some(false), "{}", s.screen());
    s.notify(Notice::Added(message(30, Role::User, "Something new."))).event(Event::Frame);
    assert!(s.app.open.transcript.news_below() == Some(true));
}

#[test]
fn another_code_theme_colours_the_code_of_every_session_again() {
    let mut with_code = opened(1);
    with_code.messages.push(message(4, Role::Assistant, "```rust\nfn main() {}\n```"));
    let mut s = first(16);
    s.notify(Notice::Session(with_code.clone())).event(Event::Frame);
    let highlights = s.effects.clone().into_iter().filter_map(|e| match e {
        Effect::Highlight { lang, code } => Some((lang, code)),
        _ => None,
    });
    for (lang, code) in highlights {
        s.event(Event::Highlighted { lang, code, lines: vec![Vec::new()] });
    }
    let mut away_and_back = |theme: Option<&str>| {
        s.press("alt-2");
        arrives(&mut s, 2);
        if let Some(t) = theme {
            s.event(Event::CodeTheme(Ok(t.into())));
        }
        s.press("alt-1");
        s.effects.clear();
        s.notify(Notice::Session(with_code.clone())).event(Event::Frame);
        s.effects.iter().filter(|e| matches!(e, Effect::Highlight { .. })).count()
    };
    assert_eq!(away_and_back(None), 0);
    assert!(away_and_back(Some("nord")) > 0);
}

fn fork(name: Option<&str>) -> Request {
    Request::Fork { at: None, name: name.map(Into::into) }
}

#[test]
fn no_key_switches_before_the_queue_is_sent() {
    let mut s = with_two_queued(16);
    for keys in ["f", "up enter"] {
        s.notify(Notice::Timeline(timeline())).press(keys);
        assert_eq!(s.sent(), [], "{keys}");
        assert!(matches!(s.app.overlay, Some(Overlay::List(ref list)) if list.kind == Kind::Timeline), "{keys}");
        assert!(s.screen().contains("Busy: stop first (Esc)"), "{}", s.screen());
        s.press("esc");
    }
    let elsewhere = SearchRow {
        session: "war-and-peace".into(),
        message: MessageId(99),
        number: 2,
        snippet: "On another branch.".into(),
        created_ms: TIME,
    };
    s.notify(Notice::Found { query: "branch".into(), rows: vec![elsewhere] }).press("enter");
    assert_eq!(s.sent(), []);
    s.press("esc");
    assert_eq!(s.queued(), ["question one", "question two"]);
}

#[test]
fn no_command_sends_held_messages() {
    let mut s = with_two_queued(16);
    s.press("esc").notify(Notice::Activity(Activity::Idle));
    s.sent();
    for (line, request) in [("/undo", Some(Request::Undo(1))), ("/help", None), ("/nosuch", None)] {
        s.type_text(line).press("enter");
        assert_eq!(s.sent(), Vec::from_iter(request), "{line}");
        assert_eq!((s.queued().len(), s.app.open.queue.held), (2, true), "{line}");
        s.press(if line == "/help" { "esc" } else { "ctrl-u" });
    }
    s.type_text("/fork").press("enter");
    assert_eq!(s.sent(), [fork(None)]);
    arrives(&mut s, 2);
    assert_eq!((s.sent(), s.queued()), (vec![], vec![]), "they stay where they were typed");
    s.press("alt-1");
    arrives(&mut s, 1);
    assert_eq!((s.queued().len(), s.app.open.queue.held), (2, true));
    s.sent();
    s.press("enter");
    assert_eq!(s.sent(), [ask("question one")]);
}

#[test]
fn messages_after_a_failed_switch_are_held() {
    let queued = || {
        let mut s = first(16);
        busy(&mut s);
        s.type_text("/fork taken").press("enter").type_text("and now?").press("enter");
        s.notify(Notice::Activity(Activity::Idle));
        assert_eq!(s.sent(), [fork(Some("taken"))]);
        s
    };
    let mut s = queued();
    s.notify(Notice::Note(Level::Warn, "A session is called \"taken\" already.".into()));
    s.notify(Notice::Activity(Activity::Idle));
    assert_eq!((s.sent(), s.queued(), s.app.open.queue.held), (vec![], vec!["and now?"], true));
    // If the command does switch, the message is sent there, whatever notice follows.
    let mut s = queued();
    s.notify(Notice::Session(opened(2))).notify(Notice::Note(Level::Warn, "Something is said.".into()));
    s.notify(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [ask("and now?")]);
    // The same after a mistyped name that is looked up at once.
    let mut s = first(16);
    busy(&mut s);
    s.type_text("/resume nosuch").press("enter").type_text("and there?").press("enter");
    assert_eq!(s.sent(), [Request::Resume("nosuch".into())]);
    s.notify(Notice::Note(Level::Warn, "No session is called \"nosuch\".".into()))
        .notify(Notice::Activity(Activity::Idle));
    assert_eq!((s.sent(), s.app.open.queue.held), (vec![], true));
}

#[test]
fn commands_that_were_not_done_are_no_messages() {
    let mut s = first(16);
    busy(&mut s);
    s.type_text("a question").press("enter").type_text("/fork there").press("enter ctrl-d");
    let words = |s: &mut Stage| s.screen().split_whitespace().collect::<Vec<_>>().join(" ");
    let text = words(&mut s);
    assert!(text.contains("1 message not sent, found with Up at the next start. 1 command not run."), "{text}");
    s.press("n").type_text("/undo 2").press("enter ctrl-d");
    let text = words(&mut s);
    assert!(text.contains("1 message not sent, found with Up at the next start. 2 commands not run."), "{text}");
}

#[test]
fn nothing_is_kept_of_a_session_that_was_deleted() {
    let mut s = open(160, 50);
    s.notify(Notice::Session(opened(1))).type_text("a draft").press("alt-2");
    arrives(&mut s, 2);
    let mut view = opened(2);
    view.opened.retain(|open| open.serial != 1);
    s.notify(Notice::Session(view)).press("alt-s");
    assert!(s.screen().contains("No other session is open"), "{}", s.screen());
    s.sent();
    s.press("ctrl-d");
    assert_eq!(s.sent(), [Request::Quit], "{}", s.screen());
}

#[test]
fn the_split_shows_the_session_left_last() {
    let mut s = open(160, 50);
    s.notify(Notice::Session(opened(1)));
    for (key, serial) in [("alt-2", 2), ("alt-3", 3), ("alt-1", 1)] {
        s.press(key);
        arrives(&mut s, serial);
    }
    s.press("alt-s");
    assert_eq!(s.app.open.other(160).map(|(number, ..)| number), Some(3));
    // Once that one is closed, the one left before it.
    s.press("alt-s");
    let mut view = opened(1);
    view.opened.retain(|open| open.serial != 3);
    s.notify(Notice::Session(view)).press("alt-s");
    assert_eq!(s.app.open.other(160).map(|(number, ..)| number), Some(2));
}
