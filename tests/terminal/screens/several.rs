//! Several sessions of one run: what goes on in those that were left, and how they stand.

use sala_chat::core::transcript::{Message, MessageId, Role};
use sala_chat::engine::protocol::ModelInfo;
use sala_chat::runtime::protocol::{
    Activity, Choice, Level, Notice, PresetAction, ReadingProgress, Request, SaveState, SessionView,
};
use sala_chat::tui::options::{ThemeName, ThinkShow};
use sala_chat::tui::palette::Palette;
use sala_chat::tui::{Effect, Event};

use super::stage::*;

#[test]
fn alt_numbers_go_to_open_sessions_and_drafts_and_places_stay_with_them() {
    let mut s = open(80, 24);
    s.tell(Notice::Session(opened(1)));
    s.type_text("half a question").press("pgup");
    let (text, scroll) = (s.screen(), s.app.transcript.scroll());
    s.press("alt-2");
    assert_eq!(s.sent(), [Request::Switch(2)]);
    s.tell(Notice::Session(opened(2)));
    assert_eq!(s.app.composer.text(), "");
    assert!(s.screen().contains("Three months."));
    // Back by a command: what is typed behind it arrives with it, after the draft that waits there.
    s.type_text("/resume war-and-peace").press("enter");
    s.type_text(" and more");
    s.tell(Notice::Session(opened(1)));
    assert_eq!(s.app.transcript.scroll(), scroll);
    s.press("backspace backspace backspace backspace backspace backspace backspace backspace backspace");
    assert_eq!(s.app.composer.text(), "half a question");
    assert_eq!(s.screen(), text);
    s.effects.clear();
    s.press("alt-1 alt-7");
    assert_eq!(s.sent(), [], "it is open already; there is no seventh");
    assert!(s.screen().contains("There is no session 7: 3 are open"));
}

#[test]
fn while_busy_alt_numbers_say_what_to_do_and_change_nothing() {
    let mut s = open(80, 24);
    s.tell(Notice::Session(opened(1)));
    busy(&mut s);
    s.type_text("draft").press("alt-2");
    assert_eq!(s.sent(), []);
    assert_eq!(s.app.composer.text(), "draft");
    assert!(s.screen().contains("Busy: stop first (Esc)"));
}

/// What the first session is given next, which was left.
pub fn there(request: Option<Request>) -> Request {
    Request::There { serial: 1, request: request.map(Box::new) }
}

/// Of a session that is not on screen.
pub fn beside(s: &mut Stage, serial: u64, notice: Notice) {
    s.tell(Notice::Background { serial, notice: Box::new(notice) });
}

/// The first session is left at work for the second.
pub fn left_at_work(width: u16, height: u16) -> Stage {
    let mut s = open(width, height);
    s.tell(Notice::Ready(ModelInfo { max_sequences: 16, ..gpu() }));
    s.tell(Notice::Session(opened(1)));
    busy(&mut s);
    s.press("alt-2").tell(Notice::Session(opened(2))).tell(Notice::Activity(Activity::Idle));
    s.effects.clear();
    s
}

#[test]
fn what_is_left_at_work_goes_on_with_its_queue_and_shows_how_it_stands() {
    let mut s = open(80, 24);
    s.tell(Notice::Ready(ModelInfo { max_sequences: 16, ..gpu() }));
    s.tell(Notice::Session(opened(1)));
    busy(&mut s);
    s.type_text("asked next").press("enter").type_text("with @file").press("enter").type_text("draft");
    s.effects.clear();
    s.press("alt-2");
    assert_eq!(s.sent(), [Request::LeaveQueued(Box::new(Request::Switch(2)))]);
    s.tell(Notice::Session(opened(2))).tell(Notice::Activity(Activity::Idle));
    assert!(s.app.composer.text().is_empty() && s.app.queue.lines.is_empty());
    let title = |s: &mut Stage| s.screen().lines().next().unwrap_or("").to_string();
    assert!(title(&mut s).contains("[2/3]  1~"), "{}", title(&mut s));
    let reading = ReadingProgress { done: 41, total: 100, ..ReadingProgress::default() };
    beside(&mut s, 1, Notice::Activity(Activity::Reading(reading)));
    assert!(title(&mut s).contains("[2/3]  1 41%"), "{}", title(&mut s));
    // What is queued there is asked when that is done.
    beside(&mut s, 1, Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [there(Some(Request::Ask("asked next".into())))]);
    assert!(title(&mut s).contains("[2/3]  1~"), "{}", title(&mut s));
    // Its text arrives nowhere here, and is there when it is gone back to.
    beside(&mut s, 1, Notice::Added(message(20, Role::User, "asked next")));
    beside(&mut s, 1, Notice::Finished(answer(21, "Said elsewhere.")));
    assert!(!s.screen().contains("Said elsewhere."));
    s.press("ctrl-d");
    assert!(s.screen().contains("Still working in \"war-and-peace\". Stop and quit?"), "{}", s.screen());
    s.press("n");
    s.effects.clear();
    s.event(Event::Focus(false)).wait(60_000);
    beside(&mut s, 1, Notice::Activity(Activity::Idle));
    let notified = |e: &Effect| matches!(e, Effect::Notify(text) if text.starts_with("war-and-peace: ready after"));
    assert!(s.effects.iter().any(notified), "{:?}", s.effects);
    assert_eq!(s.sent(), [there(None)], "files are looked up on screen");
    s.event(Event::Focus(true));
    assert!(title(&mut s).contains("[2/3]  1*"), "{}", title(&mut s));
    // Nothing is at work any more, but a line waits there.
    s.press("ctrl-d");
    let screen = s.screen();
    assert!(screen.contains("1 message was not sent: Up finds it at the next start. A draft is in"), "{screen}");
    s.press("y");
    let all = s.all_sent();
    assert!(all.contains(&Request::Remember("with @file".into())) && all.ends_with(&[Request::Quit]), "{all:?}");
}

/// A load of this session was stopped, and how it goes on is asked while a line is written.
fn asked_beside_a_line(s: &mut Stage, sequences: u32) {
    s.tell(Notice::Ready(ModelInfo { max_sequences: sequences, ..gpu() })).tell(Notice::Session(opened(1)));
    let choices = [('1', "continue"), ('\x1b', "keep what is read")];
    let choices = choices.map(|(key, label)| Choice { key, label: label.into() }).to_vec();
    s.type_text("Who is").tell(Notice::Question { id: 7, text: "Stopped.".into(), choices });
    s.type_text(" Ann?");
}

#[test]
fn what_was_asked_beside_a_question_is_asked_in_the_session_it_was_meant_for() {
    let mut s = open(80, 24);
    asked_beside_a_line(&mut s, 16);
    s.press("enter").type_text("draft").press("alt-2");
    assert_eq!(s.sent(), [Request::LeaveQueued(Box::new(Request::Switch(2)))]);
    s.tell(Notice::Session(opened(2))).tell(Notice::Activity(Activity::Idle));
    s.event(Event::Frame);
    assert_eq!(s.sent(), [], "what stands there is decided first");
    let title = s.screen().lines().next().unwrap_or("").to_string();
    assert!(title.contains("[2/3]  1?"), "{title}");
    // An aside is answered apart from what stands there, and stopping it stops nothing else.
    let mut s = open(80, 24);
    asked_beside_a_line(&mut s, 16);
    s.app.composer.take();
    s.type_text("/aside what is a fern").press("enter");
    assert_eq!(s.sent(), [Request::Aside("what is a fern".into())]);
    assert!(!s.app.busy(), "it keeps nothing waiting");
    // With one conversation at a time it is said what comes first.
    let mut s = open(80, 24);
    asked_beside_a_line(&mut s, 1);
    s.press("alt-2");
    assert_eq!(s.sent(), []);
    assert!(s.screen().contains("Answer the question first"), "{}", s.screen());
}

#[test]
fn keys_that_end_something_else_are_no_answer() {
    let mut s = open(80, 24);
    asked_beside_a_line(&mut s, 16);
    s.press("ctrl-f esc");
    assert_eq!((s.sent(), s.app.composer.text()), (vec![], "Who is Ann?"));
    s.press("ctrl-c");
    assert_eq!((s.sent(), s.app.composer.text()), (vec![], ""));
    s.press("ctrl-c");
    assert_eq!(s.sent(), [Request::Choose { question: 7, key: '\x1b' }], "nothing is written any more");
}

#[test]
fn what_has_ended_in_the_session_beside_is_seen_there() {
    let mut s = left_at_work(160, 50);
    let ends = |s: &mut Stage| {
        beside(s, 1, Notice::Activity(Activity::Answering { tokens_per_s: 9.0 }));
        beside(s, 1, Notice::Added(message(20, Role::Assistant, "")));
        beside(s, 1, Notice::Finished(answer(20, "Said beside.")));
        beside(s, 1, Notice::Activity(Activity::Idle));
    };
    ends(&mut s);
    assert_eq!(s.app.tabs.news(), "1*");
    s.press("alt-s");
    assert!(s.screen().contains("Said beside."), "{}", s.screen());
    assert_eq!(s.app.tabs.news(), "");
    // Somebody who looks away is told, and has seen it when the window is looked at again.
    s.event(Event::Focus(false));
    ends(&mut s);
    assert_eq!(s.app.tabs.news(), "1*");
    s.event(Event::Focus(true));
    assert_eq!(s.app.tabs.news(), "");
    // Alone on the screen again.
    s.press("alt-s");
    ends(&mut s);
    assert_eq!(s.app.tabs.news(), "1*");
}

#[test]
fn going_back_shows_what_is_written_and_what_was_typed() {
    let mut s = left_at_work(80, 24);
    beside(&mut s, 1, Notice::Note(Level::Error, "the disk is full".into()));
    beside(&mut s, 1, Notice::Page { title: "Found".into(), text: "a page of it".into() });
    assert!(s.screen().lines().next().unwrap_or("").contains("1!"));
    assert!(!s.screen().contains("a page of it"));
    s.press("alt-1");
    assert_eq!(s.sent(), [Request::Switch(1)]);
    s.tell(Notice::Session(opened(1)));
    s.tell(Notice::Added(Message { text: "So far".into(), ..message(9, Role::Assistant, "") }));
    s.tell(Notice::Activity(Activity::Answering { tokens_per_s: 90.0 }));
    assert!(s.screen().contains("a page of it"), "{}", s.screen());
    s.press("esc");
    s.tell(Notice::Delta { message: MessageId(9), thinking: false, text: ", and on.".into() });
    let screen = s.screen();
    assert!(screen.contains("So far, and on.") && screen.contains("the disk is full"), "{screen}");
    assert!(screen.contains("[1/3]") && !screen.contains("1!"), "{screen}");
    // Stopping stops what is on screen.
    s.press("esc");
    assert_eq!(s.sent(), [Request::Stop]);
}

#[test]
fn an_aside_beside_an_answer_is_stopped_alone() {
    let mut s = open(80, 24);
    s.tell(Notice::Ready(ModelInfo { max_sequences: 16, ..gpu() }));
    busy(&mut s);
    assert!(s.screen().contains("/aside answers at once"), "{}", s.screen());
    s.type_text("/aside what is meant?").press("enter");
    assert_eq!(s.sent(), [Request::Aside("what is meant?".into())]);
    s.tell(Notice::Aside { question: "what is meant?".into(), text: "That".into(), done: None });
    s.press("esc");
    assert_eq!(s.sent(), [Request::StopAside]);
    s.press("esc");
    assert_eq!(s.sent(), [Request::Stop]);
}

#[test]
fn what_a_stop_held_waits_in_its_own_session() {
    let mut s = open(80, 24);
    s.tell(Notice::Session(opened(1)));
    busy(&mut s);
    s.type_text("asked here").press("enter esc");
    s.tell(Notice::Activity(Activity::Idle));
    s.effects.clear();
    s.type_text("/resume contract").press("enter");
    assert_eq!(s.sent(), [Request::Resume("contract".into())]);
    s.tell(Notice::Session(opened(2)));
    s.type_text("asked there").press("enter");
    assert_eq!(s.sent(), [Request::Ask("asked there".into())]);
    s.tell(Notice::Activity(Activity::Idle));
    s.press("alt-1").tell(Notice::Session(opened(1)));
    assert_eq!(s.sent(), [Request::Switch(1)]);
    s.tell(Notice::Activity(Activity::Idle)).press("enter");
    assert_eq!(s.sent(), [Request::Ask("asked here".into())]);
}

#[test]
fn a_preset_is_saved_with_how_things_are_shown_and_brings_it_back() {
    let mut s = open(80, 24);
    s.type_text("/think hide").press("enter");
    s.type_text("/preset save mine").press("enter");
    let display = [("thinking.show", "hide"), ("ui.look", "true"), ("ui.theme", "auto"), ("ui.code_theme", "auto")];
    let display = display.map(|(key, value)| (key, value.to_string())).to_vec();
    let save = PresetAction::Save { name: "mine".into(), display };
    assert_eq!(s.sent(), [Request::Preset(save)]);
    s.tell(Notice::Display(vec![("thinking.show", "open".into()), ("ui.theme", "light".into())]));
    assert_eq!(s.app.config.think_show, ThinkShow::Open);
    assert_eq!(s.effects, [Effect::Theme("light".into()), Effect::Repaint]);
    s.event(Event::Theme(Ok(Palette::built_in(ThemeName::Light, false))));
    assert_eq!(s.app.config.theme.name, "light");
}

#[test]
fn a_session_in_which_nothing_was_said_is_not_called_saved_because_another_one_is() {
    let mut s = left_at_work(80, 24);
    s.press("alt-3").tell(Notice::Session(opened(3))).tell(Notice::Activity(Activity::Idle));
    let header = |s: &mut Stage| s.screen().lines().next().unwrap_or("").to_string();
    for state in [SaveState::Empty, SaveState::Saving, SaveState::Saved(TIME)] {
        s.tell(Notice::Save(state));
        assert!(header(&mut s).ends_with("not saved yet"), "{}", header(&mut s));
    }
    s.tell(Notice::Added(message(31, Role::User, "Now something is."))).tell(Notice::Save(SaveState::Saved(TIME)));
    assert!(header(&mut s).ends_with("saved 14:01"), "{}", header(&mut s));
}

#[test]
fn whoever_quits_is_asked_first_where_not_all_is_saved() {
    let mut s = Stage::new(80, 24).ready(gpu());
    s.sent();
    s.tell(Notice::Save(SaveState::NotSaved("disk full".into()))).press("ctrl-d");
    assert_eq!(s.sent(), [Request::Quit], "nothing was said yet");
    let mut s = open(80, 24);
    s.sent();
    s.tell(Notice::Save(SaveState::NotSaved("disk full".into()))).press("ctrl-d");
    let screen = s.screen();
    assert!(screen.contains("Part of this conversation is not saved") && screen.contains("/export FILE"), "{screen}");
    assert_eq!(s.sent(), []);
    s.tell(Notice::Save(SaveState::Saved(0)));
    assert!(!s.screen().contains("Part of this conversation"), "{}", s.screen());
    s.tell(Notice::Save(SaveState::NotSaved("disk full".into()))).press("ctrl-c");
    assert!(s.screen().contains("Ctrl-C again quits and loses it"), "{}", s.screen());
}

#[test]
fn the_question_whether_to_quit_says_what_is_true_and_goes_when_nothing_is_left_to_stop() {
    let mut s = open(80, 24);
    busy(&mut s);
    s.type_text("asked next").press("enter ctrl-d");
    let screen = s.screen();
    assert!(screen.contains("Still working. Stop and quit?") && screen.contains("1 message was"), "{screen}");
    s.tell(Notice::Activity(Activity::Idle));
    let screen = s.screen();
    assert!(!screen.contains("Still working"), "{screen}");
    assert!(screen.contains("1 message was not sent: Up finds it at the next start. Quit?"), "{screen}");
    assert_eq!(s.sent(), []);
    s.press("n");
    assert_eq!(s.sent(), [Request::Ask("asked next".into())], "who stays goes on");
    // Nothing is left that quitting would stop.
    s.tell(Notice::Activity(Activity::Answering { tokens_per_s: 50.0 })).press("ctrl-d");
    assert!(s.screen().contains("Still working"));
    s.tell(Notice::Activity(Activity::Idle));
    let screen = s.screen();
    assert!(!screen.contains("Still working") && screen.contains("quitting stops nothing now"), "{screen}");
    s.press("y");
    assert_eq!((s.sent(), s.app.composer.text()), (vec![], "y"));
    // What goes on in a session that was left is spoken of as long as it does.
    let mut s = left_at_work(80, 24);
    s.press("ctrl-d");
    assert!(s.screen().contains("Still working in \"war-and-peace\""), "{}", s.screen());
    beside(&mut s, 1, Notice::Activity(Activity::Idle));
    assert!(!s.screen().contains("Still working"), "{}", s.screen());
}

#[test]
fn alone_there_is_no_other_session_to_go_to() {
    let mut s = open(80, 24);
    s.press("alt-2");
    assert!(s.screen().contains("No other session is open: /new or /resume NAME"), "{}", s.screen());
}

#[test]
fn the_title_says_what_goes_on_and_that_it_ended_unseen() {
    use sala_chat::tui::status::{Progress, progress, title};
    let mut s = open(80, 24);
    assert_eq!((title(&s.app).as_str(), progress(&s.app)), ("war-and-peace", None));
    s.event(Event::Focus(false));
    s.tell(Notice::Activity(Activity::Reading(sala_chat::runtime::protocol::ReadingProgress {
        done: 34,
        total: 100,
        ..Default::default()
    })));
    assert_eq!((title(&s.app).as_str(), progress(&s.app)), ("war-and-peace: reading 34%", Some(Progress::Share(34))));
    s.wait(39_000).tell(Notice::Activity(Activity::Idle));
    assert_eq!(title(&s.app), "* war-and-peace");
    assert_eq!(s.effects.pop(), Some(Effect::Notify("war-and-peace: ready after 0:39".into())));
    s.event(Event::Focus(true));
    assert_eq!(title(&s.app), "war-and-peace");
    // A title that the session was given is what the window is called; another session has its own.
    s.tell(Notice::Titled("The death of Prince\u{1b}[31m Andrei".into()));
    assert_eq!(title(&s.app), "The death of Prince\\x1b[31m Andrei");
    s.tell(Notice::Session(SessionView { name: "contract".into(), ..SessionView::default() }));
    assert_eq!(title(&s.app), "contract");
}
