//! Several sessions of one run: work in background sessions and how it is shown.

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
fn alt_numbers_switch_sessions_and_keep_drafts_and_positions() {
    let mut s = open(80, 24);
    s.notify(Notice::Session(opened(1)));
    s.type_text("half a question").press("pgup");
    let (text, scroll) = (s.screen(), s.app.open.transcript.scroll());
    s.press("alt-2");
    assert_eq!(s.sent(), [Request::Switch(2)]);
    s.notify(Notice::Session(opened(2)));
    assert_eq!(s.app.open.composer.text(), "");
    assert!(s.screen().contains("Three months."));
    // Back by a command: later input arrives with it, after the draft that waits there.
    s.type_text("/resume war-and-peace").press("enter");
    s.type_text(" and more");
    s.notify(Notice::Session(opened(1)));
    assert_eq!(s.app.open.transcript.scroll(), scroll);
    s.press("backspace backspace backspace backspace backspace backspace backspace backspace backspace");
    assert_eq!(s.app.open.composer.text(), "half a question");
    assert_eq!(s.screen(), text);
    s.effects.clear();
    s.press("alt-1 alt-7");
    assert_eq!(s.sent(), [], "it is open already; there is no seventh");
    assert!(s.screen().contains("There is no session 7: 3 are open"));
}

#[test]
fn while_busy_alt_numbers_say_what_to_do_and_change_nothing() {
    let mut s = open(80, 24);
    s.notify(Notice::Session(opened(1)));
    busy(&mut s);
    s.type_text("draft").press("alt-2");
    assert_eq!(s.sent(), []);
    assert_eq!(s.app.open.composer.text(), "draft");
    assert!(s.screen().contains("Busy: stop first (Esc)"));
}

/// Of a session that is not on screen.
pub fn background(s: &mut Stage, serial: u64, notice: Notice) {
    s.notify(Notice::Background { serial, notice: Box::new(notice) });
}

/// The first session is left at work for the second.
pub fn left_at_work(width: u16, height: u16) -> Stage {
    let mut s = open(width, height);
    s.notify(Notice::Ready(ModelInfo { max_sequences: 16, ..gpu() }));
    s.notify(Notice::Session(opened(1)));
    busy(&mut s);
    s.press("alt-2").notify(Notice::Session(opened(2))).notify(Notice::Activity(Activity::Idle));
    s.effects.clear();
    s
}

#[test]
fn a_background_session_keeps_its_queue_and_shows_progress() {
    let mut s = open(80, 24);
    s.notify(Notice::Ready(ModelInfo { max_sequences: 16, ..gpu() }));
    s.notify(Notice::Session(opened(1)));
    busy(&mut s);
    s.type_text("asked next").press("enter").type_text("with @file").press("enter").type_text("draft");
    s.effects.clear();
    s.press("alt-2");
    assert_eq!(s.sent(), [Request::Switch(2)]);
    s.notify(Notice::Session(opened(2))).notify(Notice::Activity(Activity::Idle));
    assert!(s.screen().contains("2 queued messages left in \"war-and-peace\"; Alt-1 goes back."), "{}", s.screen());
    assert!(s.app.open.composer.text().is_empty() && s.app.open.queue.lines.is_empty());
    let title = |s: &mut Stage| s.screen().lines().next().unwrap_or("").to_string();
    assert!(title(&mut s).contains("[2/3]  1~"), "{}", title(&mut s));
    let reading = ReadingProgress { done: 41, total: 100, ..ReadingProgress::default() };
    background(&mut s, 1, Notice::Activity(Activity::Reading(reading)));
    assert!(title(&mut s).contains("[2/3]  1 41%"), "{}", title(&mut s));
    // Its text arrives nowhere here, and is there when it is gone back to.
    background(&mut s, 1, Notice::Finished(answer(21, "Said elsewhere.")));
    assert!(!s.screen().contains("Said elsewhere."));
    s.press("ctrl-d");
    assert!(s.screen().contains("Still working in \"war-and-peace\". Stop and quit?"), "{}", s.screen());
    s.press("n");
    s.effects.clear();
    s.event(Event::Focus(false)).wait(60_000);
    background(&mut s, 1, Notice::Activity(Activity::Idle));
    let notified = |e: &Effect| matches!(e, Effect::Notify(text) if text.starts_with("war-and-peace: ready after"));
    assert!(s.effects.iter().any(notified), "{:?}", s.effects);
    assert_eq!(s.sent(), [], "what is queued there is sent on screen");
    s.event(Event::Focus(true));
    assert!(title(&mut s).contains("[2/3]  1*"), "{}", title(&mut s));
    // Nothing is at work any more, but two lines wait there.
    s.press("ctrl-d");
    let screen = s.screen();
    assert!(screen.contains("2 messages not sent, found with Up at the next start. Quit?"), "{screen}");
    s.press("y");
    let all = s.all_sent();
    assert!(all.contains(&Request::Remember("with @file".into())) && all.ends_with(&[Request::Quit]), "{all:?}");
}

/// A load of this session was stopped; the question how to continue appears while a line is typed.
fn question_at_a_line(s: &mut Stage, sequences: u32) {
    s.notify(Notice::Ready(ModelInfo { max_sequences: sequences, ..gpu() })).notify(Notice::Session(opened(1)));
    let choices = [('1', "continue"), ('\x1b', "keep what is read")];
    let choices = choices.map(|(key, label)| Choice { key, label: label.into() }).to_vec();
    s.type_text("Who is").notify(Notice::Question { id: 7, text: "Stopped.".into(), choices, plan: None });
    s.type_text(" Ann?");
}

#[test]
fn a_line_typed_at_a_question_is_sent_in_its_own_session() {
    let mut s = open(80, 24);
    question_at_a_line(&mut s, 16);
    s.press("enter").type_text("draft").press("alt-2");
    assert_eq!(s.sent(), [Request::Switch(2)]);
    s.notify(Notice::Session(opened(2))).notify(Notice::Activity(Activity::Idle));
    s.event(Event::Frame);
    assert_eq!(s.sent(), [], "what stands there is decided first");
    let title = s.screen().lines().next().unwrap_or("").to_string();
    assert!(title.contains("[2/3]  1?"), "{title}");
    // An aside is answered separately, and stopping it stops nothing else.
    let mut s = open(80, 24);
    question_at_a_line(&mut s, 16);
    s.app.open.composer.take();
    s.type_text("/aside what is a fern").press("enter");
    assert_eq!(s.sent(), [Request::Aside("what is a fern".into())]);
    assert!(!s.app.busy(), "it keeps nothing waiting");
    // With one conversation at a time the order is shown.
    let mut s = open(80, 24);
    question_at_a_line(&mut s, 1);
    s.press("alt-2");
    assert_eq!(s.sent(), []);
    assert!(s.screen().contains("Answer the question first"), "{}", s.screen());
}

#[test]
fn keys_that_end_something_else_are_no_answer() {
    let mut s = open(80, 24);
    question_at_a_line(&mut s, 16);
    s.press("ctrl-f esc");
    assert_eq!((s.sent(), s.app.open.composer.text()), (vec![], "Who is Ann?"));
    s.press("ctrl-c");
    assert_eq!((s.sent(), s.app.open.composer.text()), (vec![], ""));
    s.press("ctrl-c");
    assert_eq!(s.sent(), [Request::Choose { question: 7, key: '\x1b' }], "nothing is written any more");
}

#[test]
fn the_end_of_work_in_the_split_session_counts_as_seen() {
    let mut s = left_at_work(160, 50);
    let ends = |s: &mut Stage| {
        background(s, 1, Notice::Activity(Activity::Answering { tokens_per_s: 9.0 }));
        background(s, 1, Notice::Added(message(20, Role::Assistant, "")));
        background(s, 1, Notice::Finished(answer(20, "Said beside.")));
        background(s, 1, Notice::Activity(Activity::Idle));
    };
    ends(&mut s);
    assert_eq!(s.app.open.news(), "1*");
    s.press("alt-s");
    assert!(s.screen().contains("Said beside."), "{}", s.screen());
    assert_eq!(s.app.open.news(), "");
    // An unfocused window is marked; focusing it counts as seen.
    s.event(Event::Focus(false));
    ends(&mut s);
    assert_eq!(s.app.open.news(), "1*");
    s.event(Event::Focus(true));
    assert_eq!(s.app.open.news(), "");
    // Alone on the screen again.
    s.press("alt-s");
    ends(&mut s);
    assert_eq!(s.app.open.news(), "1*");
}

#[test]
fn going_back_shows_what_is_written_and_what_was_typed() {
    let mut s = left_at_work(80, 24);
    background(&mut s, 1, Notice::Note(Level::Error, "the disk is full".into()));
    background(&mut s, 1, Notice::Page { title: "Found".into(), text: "a page of it".into() });
    assert!(s.screen().lines().next().unwrap_or("").contains("1!"));
    assert!(!s.screen().contains("a page of it"));
    s.press("alt-1");
    assert_eq!(s.sent(), [Request::Switch(1)]);
    s.notify(Notice::Session(opened(1)));
    s.notify(Notice::Added(Message { text: "So far".into(), ..message(9, Role::Assistant, "") }));
    s.notify(Notice::Activity(Activity::Answering { tokens_per_s: 90.0 }));
    assert!(s.screen().contains("a page of it"), "{}", s.screen());
    s.press("esc");
    s.notify(Notice::Delta { message: MessageId(9), thinking: false, text: ", and on.".into() });
    let screen = s.screen();
    assert!(screen.contains("So far, and on.") && screen.contains("the disk is full"), "{screen}");
    assert!(screen.contains("[1/3]") && !screen.contains("1!"), "{screen}");
    // Stopping stops what is on screen.
    s.press("esc");
    assert_eq!(s.sent(), [Request::Stop]);
}

#[test]
fn an_aside_during_an_answer_is_stopped_alone() {
    let mut s = open(80, 24);
    s.notify(Notice::Ready(ModelInfo { max_sequences: 16, ..gpu() }));
    busy(&mut s);
    assert!(s.screen().contains("/aside answers at once"), "{}", s.screen());
    s.type_text("/aside what is meant?").press("enter");
    assert_eq!(s.sent(), [Request::Aside("what is meant?".into())]);
    s.notify(Notice::Aside { question: "what is meant?".into(), text: "That".into(), done: None });
    s.press("esc");
    assert_eq!(s.sent(), [Request::StopAside]);
    s.press("esc");
    assert_eq!(s.sent(), [Request::Stop]);
}

#[test]
fn held_messages_wait_in_their_own_session() {
    let mut s = open(80, 24);
    s.notify(Notice::Session(opened(1)));
    busy(&mut s);
    s.type_text("asked here").press("enter esc");
    s.notify(Notice::Activity(Activity::Idle));
    s.effects.clear();
    s.type_text("/resume contract").press("enter");
    assert_eq!(s.sent(), [Request::Resume("contract".into())]);
    s.notify(Notice::Session(opened(2)));
    s.type_text("asked there").press("enter");
    assert_eq!(s.sent(), [Request::Ask("asked there".into())]);
    s.notify(Notice::Activity(Activity::Idle));
    s.press("alt-1").notify(Notice::Session(opened(1)));
    assert_eq!(s.sent(), [Request::Switch(1)]);
    s.notify(Notice::Activity(Activity::Idle)).press("enter");
    assert_eq!(s.sent(), [Request::Ask("asked here".into())]);
}

#[test]
fn a_preset_saves_and_restores_display_settings() {
    let mut s = open(80, 24);
    s.type_text("/think hide").press("enter");
    s.type_text("/preset save mine").press("enter");
    let display = [("thinking.show", "hide"), ("ui.look", "true"), ("ui.theme", "auto"), ("ui.code_theme", "auto")];
    let display = display.map(|(key, value)| (key, value.to_string())).to_vec();
    let save = PresetAction::Save { name: "mine".into(), display };
    assert_eq!(s.sent(), [Request::Preset(save)]);
    s.notify(Notice::Display(vec![("thinking.show", "open".into()), ("ui.theme", "light".into())]));
    assert_eq!(s.app.config.think_show, ThinkShow::Open);
    assert_eq!(s.effects, [Effect::Theme("light".into()), Effect::Repaint]);
    s.event(Event::Theme(Ok(Palette::built_in(ThemeName::Light, false))));
    assert_eq!(s.app.config.theme.name, "light");
}

#[test]
fn an_empty_session_is_not_shown_as_saved() {
    let mut s = left_at_work(80, 24);
    s.press("alt-3").notify(Notice::Session(opened(3))).notify(Notice::Activity(Activity::Idle));
    let header = |s: &mut Stage| s.screen().lines().next().unwrap_or("").to_string();
    for state in [SaveState::Empty, SaveState::Saving, SaveState::Saved(TIME)] {
        s.notify(Notice::Save(state));
        assert!(header(&mut s).ends_with("not saved yet"), "{}", header(&mut s));
    }
    s.notify(Notice::Added(message(31, Role::User, "Now something is."))).notify(Notice::Save(SaveState::Saved(TIME)));
    assert!(header(&mut s).ends_with("saved 14:01"), "{}", header(&mut s));
}

#[test]
fn quitting_with_unsaved_work_asks_first() {
    let mut s = Stage::new(80, 24).ready(gpu());
    s.sent();
    s.notify(Notice::Save(SaveState::NotSaved("disk full".into()))).press("ctrl-d");
    assert_eq!(s.sent(), [Request::Quit], "nothing was said yet");
    let mut s = open(80, 24);
    s.sent();
    s.notify(Notice::Save(SaveState::NotSaved("disk full".into()))).press("ctrl-d");
    let screen = s.screen();
    assert!(screen.contains("Part of this conversation is not saved") && screen.contains("/export FILE"), "{screen}");
    assert_eq!(s.sent(), []);
    s.notify(Notice::Save(SaveState::Saved(0)));
    assert!(!s.screen().contains("Part of this conversation"), "{}", s.screen());
    s.notify(Notice::Save(SaveState::NotSaved("disk full".into()))).press("ctrl-c");
    assert!(s.screen().contains("Ctrl-C again quits and loses it"), "{}", s.screen());
}

#[test]
fn the_quit_question_is_current_and_closes_when_idle() {
    let mut s = open(80, 24);
    busy(&mut s);
    s.type_text("asked next").press("enter ctrl-d");
    let screen = s.screen();
    assert!(screen.contains("Still working. Stop and quit?") && screen.contains("1 message not"), "{screen}");
    s.notify(Notice::Activity(Activity::Idle));
    let screen = s.screen();
    assert!(!screen.contains("Still working"), "{screen}");
    assert!(screen.contains("1 message not sent, found with Up at the next start. Quit?"), "{screen}");
    assert_eq!(s.sent(), []);
    s.press("n");
    assert_eq!(s.sent(), [Request::Ask("asked next".into())], "who stays goes on");
    // Nothing is left that quitting would stop.
    s.notify(Notice::Activity(Activity::Answering { tokens_per_s: 50.0 })).press("ctrl-d");
    assert!(s.screen().contains("Still working"));
    s.notify(Notice::Activity(Activity::Idle));
    let screen = s.screen();
    assert!(!screen.contains("Still working") && screen.contains("quitting stops nothing now"), "{screen}");
    s.press("y");
    assert_eq!((s.sent(), s.app.open.composer.text()), (vec![], "y"));
    // Work in a background session is mentioned for as long as it lasts.
    let mut s = left_at_work(80, 24);
    s.press("ctrl-d");
    assert!(s.screen().contains("Still working in \"war-and-peace\""), "{}", s.screen());
    background(&mut s, 1, Notice::Activity(Activity::Idle));
    assert!(!s.screen().contains("Still working"), "{}", s.screen());
}

#[test]
fn alone_there_is_no_other_session_to_go_to() {
    let mut s = open(80, 24);
    s.press("alt-2");
    assert!(s.screen().contains("No other session is open: /new or /resume NAME"), "{}", s.screen());
}

#[test]
fn the_window_title_shows_work_and_unseen_ends() {
    use sala_chat::tui::status::title;
    let mut s = open(80, 24);
    assert_eq!(title(&s.app), "war-and-peace");
    s.event(Event::Focus(false));
    s.notify(Notice::Activity(Activity::Reading(sala_chat::runtime::protocol::ReadingProgress {
        done: 34,
        total: 100,
        ..Default::default()
    })));
    assert_eq!(title(&s.app), "war-and-peace: reading 34%");
    s.wait(39_000).notify(Notice::Activity(Activity::Idle));
    assert_eq!(title(&s.app), "* war-and-peace");
    assert_eq!(s.effects.pop(), Some(Effect::Notify("war-and-peace: ready after 0:39".into())));
    s.event(Event::Focus(true));
    assert_eq!(title(&s.app), "war-and-peace");
    // A title that the session was given is what the window is called; another session has its own.
    s.notify(Notice::Titled("The death of Prince\u{1b}[31m Andrei".into()));
    assert_eq!(title(&s.app), "The death of Prince\\x1b[31m Andrei");
    s.notify(Notice::Session(SessionView { name: "contract".into(), ..SessionView::default() }));
    assert_eq!(title(&s.app), "contract");
}
