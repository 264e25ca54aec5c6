//! What keys and notices do, and what must hold for every text, size and order of events.

use proptest::prelude::*;
use sala_chat::app::options::{ThemeName, ThinkShow, UiConfig};
use sala_chat::app::palette::Palette;
use sala_chat::app::{App, Effect, Event, update};
use sala_chat::protocol::desk::{
    Activity, Choice, GotoTarget, Level, Notice, PresetAction, ReadingProgress, Request, SessionView,
};
use sala_chat::protocol::engine::ModelInfo;
use sala_chat::transcript::{Message, MessageId, Role};

use super::stage::*;

fn busy(s: &mut Stage) {
    s.tell(Notice::Activity(Activity::Answering { tokens_per_s: 50.0 }));
    s.effects.clear();
}

#[test]
fn enter_sends_when_idle_and_queues_when_busy() {
    let mut s = open(80, 24);
    s.type_text("one").press("enter");
    assert_eq!(s.sent(), [Request::Ask("one".into())]);
    // The desk has not answered yet: the next one waits.
    s.type_text("two").press("enter");
    s.type_text("/undo").press("enter enter");
    s.type_text("/docs").press("enter");
    assert_eq!(s.sent(), [Request::Docs], "reading commands run at once");
    busy(&mut s);
    s.tell(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [Request::Ask("two".into())]);
    busy(&mut s);
    s.tell(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [Request::Undo(1)]);
}

#[test]
fn escape_stops_and_swallows_the_second_press() {
    let mut s = open(80, 24);
    busy(&mut s);
    s.press("esc");
    assert_eq!(s.sent(), [Request::Stop]);
    s.press("esc");
    s.tell(Notice::Activity(Activity::Idle));
    s.wait(300).press("esc");
    assert_eq!(s.sent(), [], "a second Esc right after a stop opens nothing");
    s.wait(900).press("esc").wait(300).press("esc");
    assert_eq!(s.sent(), [Request::Timeline]);
    s.wait(1000).press("esc").wait(900).press("esc");
    assert_eq!(s.sent(), [], "two slow presses are two first presses");
}

#[test]
fn escape_twice_clears_the_input_and_ctrl_y_brings_it_back() {
    let mut s = open(80, 24);
    s.type_text("a long thought").press("esc esc");
    assert_eq!(s.app.composer.text(), "");
    s.press("ctrl-y");
    assert_eq!(s.app.composer.text(), "a long thought");
}

#[test]
fn ctrl_c_that_stopped_work_never_arms_exit() {
    let mut s = open(80, 24);
    busy(&mut s);
    s.press("ctrl-c");
    assert_eq!(s.sent(), [Request::Stop]);
    s.tell(Notice::Activity(Activity::Idle));
    s.wait(100).press("ctrl-c").wait(100).press("ctrl-c");
    assert_eq!(s.sent(), []);
    s.wait(600).press("ctrl-c");
    assert_eq!(s.sent(), []);
    s.wait(100).press("ctrl-c");
    assert_eq!(s.sent(), [Request::Quit]);
    s.press("ctrl-c");
    assert_eq!(s.effects, [Effect::Exit { code: 130, farewell: None }], "a third press does not wait");
}

#[test]
fn ctrl_c_arms_exit_for_two_seconds_only() {
    let mut s = open(80, 24);
    s.press("ctrl-c").wait(2_100).press("ctrl-c");
    assert_eq!(s.sent(), []);
    s.type_text("x").press("ctrl-c").press("ctrl-c");
    assert_eq!(s.sent(), [], "clearing text and arming are two presses");
}

#[test]
fn files_of_a_plan_are_picked_without_losing_what_is_queued() {
    let mut s = open(80, 24);
    busy(&mut s);
    s.type_text("asked early").press("enter");
    s.tell(super::plan(400_000));
    s.tell(Notice::Activity(Activity::Idle));
    s.press("e");
    // All of it is too much, none of it too little: neither is sent.
    s.type_text("a").press("enter").type_text("a").press("enter");
    assert_eq!(s.sent(), []);
    s.type_text(" ").press("down").type_text(" ");
    s.press("esc").press("e enter");
    let files = vec![0, 2];
    assert_eq!(s.sent(), [Request::ChooseFiles { question: 1, files }, Request::Ask("asked early".into())]);
}

#[test]
fn stop_holds_the_queue_until_the_next_enter() {
    let mut s = open(80, 24);
    busy(&mut s);
    s.type_text("next").press("enter esc");
    s.tell(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [Request::Stop]);
    s.press("enter");
    assert_eq!(s.sent(), [Request::Ask("next".into())]);
}

#[test]
fn ctrl_x_takes_the_first_queued_message_and_keeps_the_draft() {
    let mut s = open(80, 24);
    busy(&mut s);
    s.type_text("first").press("enter");
    s.type_text("draft").press("ctrl-x");
    assert_eq!(s.app.composer.text(), "first");
    assert_eq!(s.app.queue.lines, ["draft"]);
}

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

/// Of a session that is not on screen.
fn beside(s: &mut Stage, serial: u64, notice: Notice) {
    s.tell(Notice::Beside { serial, notice: Box::new(notice) });
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
    assert_eq!(s.sent(), [Request::Ask("asked next".into()), Request::Switch(2)]);
    s.tell(Notice::Session(opened(2))).tell(Notice::Activity(Activity::Idle));
    assert!(s.app.composer.text().is_empty() && s.app.queue.lines.is_empty());
    let title = |s: &mut Stage| s.screen().lines().next().unwrap_or("").to_string();
    assert!(title(&mut s).contains("[2/3]  1~"), "{}", title(&mut s));
    let reading = ReadingProgress { done: 41, total: 100, ..ReadingProgress::default() };
    beside(&mut s, 1, Notice::Activity(Activity::Reading(reading)));
    assert!(title(&mut s).contains("[2/3]  1 41%"), "{}", title(&mut s));
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
    s.event(Event::Focus(true));
    assert!(title(&mut s).contains("[2/3]  1*"), "{}", title(&mut s));
    s.press("ctrl-d");
    assert_eq!(s.sent(), [Request::Quit], "nothing is at work any more");
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
    s.press("enter");
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
fn newline_keys_and_backslash() {
    let mut s = open(80, 24);
    s.type_text("a")
        .press("alt-enter")
        .type_text("b")
        .press("ctrl-j")
        .type_text("c")
        .press("shift-enter")
        .type_text("d\\")
        .press("enter");
    assert_eq!(s.app.composer.text(), "a\nb\nc\nd\n");
    assert_eq!(s.sent(), []);
}

#[test]
fn up_walks_through_prompts_and_back_to_the_draft() {
    let mut s = open(80, 24);
    s.type_text("one").press("enter");
    s.tell(Notice::Activity(Activity::Idle));
    s.type_text("draft").press("up");
    assert_eq!(s.app.composer.text(), "one");
    s.press("down");
    assert_eq!(s.app.composer.text(), "draft");
}

#[test]
fn messages_that_begin_with_a_slash_can_be_sent() {
    let mut s = open(80, 24);
    s.type_text("//etc is a folder").press("enter");
    assert_eq!(s.sent(), [Request::Ask("/etc is a folder".into())]);
}

#[test]
fn refused_command_stays_in_the_input() {
    let mut s = open(80, 24);
    s.type_text("/undo two").press("enter");
    assert_eq!(s.app.composer.text(), "/undo two");
    assert_eq!(s.sent(), []);
}

#[test]
fn tab_completes_commands_and_paths() {
    let mut s = open(80, 24);
    s.type_text("/loa").press("tab");
    assert_eq!(s.app.composer.text(), "/load ");
    s.type_text("~/my\\ b").press("tab");
    assert_eq!(s.effects.pop(), Some(Effect::ListPaths("~/my b".into())));
    s.event(Event::Paths { prefix: "~/my b".into(), found: vec!["~/my book.txt".into(), "~/my books/".into()] });
    assert_eq!(s.app.composer.text(), "/load ~/my\\ book");
    s.press("down tab");
    assert_eq!(s.app.composer.text(), "/load ~/my\\ books/");
    s.event(Event::Paths { prefix: "old".into(), found: vec!["older".into()] });
    assert_eq!(s.app.composer.text(), "/load ~/my\\ books/", "a late answer changes nothing");
}

#[test]
fn question_keys_answer_the_desk_and_esc_takes_the_last() {
    let mut s = open(80, 24);
    let ask = |id| Notice::Question {
        id,
        text: "Read?".into(),
        choices: vec![Choice { key: '\n', label: "read".into() }, Choice { key: 'v', label: "view".into() }],
    };
    s.tell(ask(1)).tell(ask(2)).tell(ask(3));
    s.press("x enter V esc");
    let choose = |question, key| Request::Choose { question, key };
    assert_eq!(s.sent(), [choose(1, '\n'), choose(2, 'v'), choose(3, 'v')]);
}

#[test]
fn timeline_goes_and_forks() {
    let mut s = open(80, 24);
    s.tell(Notice::Timeline(timeline()));
    s.press("up enter");
    assert_eq!(s.sent(), [Request::Goto(GotoTarget::Message(MessageId(2)))]);
    s.tell(Notice::Timeline(timeline()));
    s.press("f");
    assert_eq!(s.sent(), [Request::Fork { at: Some(3), name: None }]);
    s.tell(Notice::Timeline(timeline()));
    s.press("end f");
    assert_eq!(s.sent(), [Request::Goto(GotoTarget::Message(MessageId(7))), Request::Fork { at: None, name: None }]);
}

#[test]
fn search_result_opens_its_session_at_the_message() {
    let mut s = open(80, 24);
    let row = sala_chat::protocol::desk::SearchRow {
        session: "war-and-peace".into(),
        message: MessageId(2),
        number: 2,
        snippet: "dying".into(),
        created_ms: 0,
    };
    s.tell(Notice::Session(SessionView { name: "mail".into(), ..SessionView::default() }));
    s.tell(Notice::Found { query: "dying".into(), rows: vec![row.clone()] }).press("enter");
    assert_eq!(s.sent(), [Request::Resume("war-and-peace".into())]);
    s.tell(Notice::Session(conversation()));
    assert_eq!(s.app.transcript.selected_message().map(|m| m.0), Some(2));
    // In the session that is open it is shown at once.
    s.press("esc").tell(Notice::Found { query: "dying".into(), rows: vec![row] }).press("enter");
    assert_eq!(s.sent(), []);
    assert_eq!(s.app.transcript.selected_message().map(|m| m.0), Some(2));
}

#[test]
fn selected_message_keys() {
    let mut s = open(80, 24);
    s.press("ctrl-p y");
    assert!(matches!(s.effects.last(), Some(Effect::Copy(text)) if text.starts_with("It is **Natasha**")));
    s.press("up e");
    assert_eq!(s.sent(), [Request::EditOpen(Some(2))]);
    s.tell(Notice::Input { text: "old text".into(), editing: Some(MessageId(2)) });
    s.type_text("!").press("enter");
    assert_eq!(s.sent(), [Request::EditDone { message: MessageId(2), text: "old text!".into() }]);
    s.tell(Notice::Activity(Activity::Idle));
    s.press("ctrl-p f");
    assert_eq!(s.sent(), [Request::Fork { at: Some(3), name: None }]);
    s.press("ctrl-p").type_text("question");
    assert_eq!(s.app.composer.text(), "question", "other keys are typed");
}

#[test]
fn copies_of_blocks_and_messages() {
    let mut s = open(80, 24);
    s.type_text("/copy b1").press("enter");
    assert_eq!(s.effects.pop(), Some(Effect::Copy("Book XV, ch. 16  \"the door opened, and a thin face ...\"".into())));
    s.type_text("/copy b2").press("enter");
    assert!(s.screen().contains("there is no block b2; the answer has 1"));
}

#[test]
fn closed_aside_stays_closed_and_stops_the_model() {
    let mut s = open(80, 24);
    let part = |text: &str, done| Notice::Aside { question: "q".into(), text: text.into(), done };
    s.type_text("/aside q").press("enter");
    busy(&mut s);
    s.tell(part("a", None));
    s.press("esc");
    assert_eq!(s.sent(), [Request::Stop]);
    s.tell(part("a b", None)).tell(part("a b c", Some(sala_chat::transcript::Finish::Stopped)));
    assert!(s.app.overlay.is_none());
}

#[test]
fn idle_interface_asks_for_no_time() {
    let mut s = open(80, 24);
    assert_eq!(s.app.deadline(), None);
    s.press("ctrl-c");
    assert!(s.app.deadline().is_some());
    s.wait(2_100);
    assert_eq!(s.app.deadline(), None);
}

#[test]
fn notes_of_the_last_command_survive_a_new_view() {
    let mut s = open(80, 24);
    s.tell(Notice::Note(sala_chat::protocol::desk::Level::Info, "old note".into()));
    s.type_text("/undo").press("enter");
    s.tell(Notice::Note(sala_chat::protocol::desk::Level::Info, "Went back 1 exchange".into()));
    let mut view = conversation();
    view.messages.truncate(1);
    s.tell(Notice::Session(view));
    let screen = s.screen();
    assert!(screen.contains("Went back 1 exchange") && !screen.contains("old note"), "{screen}");
}

#[test]
fn a_view_that_only_grew_keeps_the_place() {
    let mut s = open(80, 24);
    s.press("pgup");
    s.event(Event::Frame);
    let before = s.app.transcript.window().first().copied();
    let mut view = conversation();
    view.messages.push(message(4, Role::User, "And then?"));
    s.tell(Notice::Session(view.clone())).event(Event::Frame);
    assert_eq!(s.app.transcript.window().first().copied(), before);
    assert_eq!(s.app.transcript.new_rows(), Some(3));
    view.messages.truncate(1);
    s.tell(Notice::Session(view));
    assert_eq!(s.app.transcript.new_rows(), None, "after an undo the end is shown");
}

#[test]
fn typing_and_scrolling_work_while_the_window_changes() {
    let mut s = open(80, 24);
    for (w, h) in [(200, 60), (1, 1), (60, 15), (59, 15), (120, 40), (80, 24)] {
        s.event(Event::Resize { width: w, height: h });
        s.press("pgup pgdn ctrl-p ctrl-n f1 esc").type_text("/l").press("esc ctrl-u");
        s.screen();
    }
}

#[test]
fn a_command_after_undo_is_a_command_and_the_question_is_kept() {
    let undone = |text: &str| Notice::Input { text: text.into(), editing: None };
    let mut s = open(80, 24);
    s.tell(undone("Who tells Pierre?"));
    assert_eq!(s.app.composer.text(), "Who tells Pierre?", "ready to be sent again or changed");
    s.type_text("/docs").press("enter");
    assert_eq!(s.sent(), [Request::Docs]);
    s.press("ctrl-y");
    assert_eq!(s.app.composer.text(), "Who tells Pierre?");
    // Twice, and on a line of its own.
    let mut s = open(80, 24);
    s.tell(undone("Who?")).type_text("\n/docs").press("enter");
    assert_eq!(s.sent(), [Request::Docs]);
    assert_eq!(s.app.composer.text(), "Who?");
    s.type_text(" And why, and/or when?").press("enter");
    assert_eq!(s.sent(), [Request::Ask("Who? And why, and/or when?".into())], "a slash in a question is text");
}

#[test]
fn an_undone_question_does_not_overwrite_a_draft() {
    let mut s = open(80, 24);
    s.type_text("half a new one").tell(Notice::Input { text: "the old one".into(), editing: None });
    assert_eq!(s.app.composer.text(), "half a new one");
    assert!(s.screen().contains("Ctrl-Y"));
    s.press("ctrl-u ctrl-y");
    assert_eq!(s.app.composer.text(), "half a new one", "the last cut comes first");
}

#[test]
fn a_copied_message_says_so_where_it_stands() {
    let mut s = open(80, 24);
    s.press("ctrl-p ctrl-p").press("pgup").press("y");
    s.event(Event::Copied(Ok("Copied 66 characters; also in /home/x/copy.txt".into())));
    let screen = s.screen();
    let head = screen.lines().find(|l| l.contains("#2")).unwrap_or_default();
    assert!(head.contains("Copied 66 characters") && !head.contains("copy.txt"), "{screen}");
    s.wait(4_100);
    assert!(!s.screen().contains("Copied"));
}

#[test]
fn the_marker_of_a_frozen_view_has_a_row_of_its_own() {
    let mut s = open(80, 24);
    s.press("pgup");
    let screen = s.screen();
    let lines: Vec<&str> = screen.lines().collect();
    let marker = lines.iter().position(|l| l.contains("goes to the end")).unwrap();
    let (entry, row) = *s.app.transcript.window().last().unwrap();
    let last = s.app.transcript.entries()[entry].line(row).map_or(String::new(), |l| l.row.text());
    assert!(lines[marker - 1].ends_with(last.trim_end()), "{screen}");
}

#[test]
fn a_pasted_question_is_folded_until_it_is_opened() {
    let mut s = open(80, 24);
    let pasted: String = (1..=41).map(|i| format!("- line {i}\n")).collect();
    s.tell(Notice::Added(message(4, Role::User, &format!("Compare this:\n\n{pasted}\nwith the book."))));
    let screen = s.screen();
    assert!(screen.contains("Compare this") && screen.contains("with the book.") && screen.contains("more rows"));
    assert!(!screen.contains("line 20"), "{screen}");
    s.press("ctrl-p enter").screen();
    assert!(s.app.transcript.entries().iter().map(|e| e.len()).sum::<usize>() > 50);
    s.press("enter");
    assert!(s.screen().contains("more rows"), "and folded again");
}

#[test]
fn a_long_prompt_that_is_read_is_not_called_answering() {
    let mut s = open(80, 24);
    s.tell(Notice::Added(message(4, Role::User, "And?"))).tell(Notice::Added(message(5, Role::Assistant, "")));
    s.tell(Notice::Activity(Activity::Reading(sala_chat::protocol::desk::ReadingProgress {
        done: 8_000,
        total: 32_088,
        ..Default::default()
    })));
    let screen = s.screen();
    assert!(screen.contains("reading 32,088 tokens  24%") && !screen.contains("answering"), "{screen}");
}

#[test]
fn the_panel_and_the_header_follow_the_tree() {
    use sala_chat::protocol::desk::TreeView;
    let mut s = open(160, 50);
    let mut rows = timeline();
    rows[0].title = "a new turn".into();
    s.tell(Notice::Tree(TreeView { branch: (4, 4), timeline: rows, documents: Vec::new(), ..TreeView::default() }));
    let screen = s.screen();
    assert!(screen.contains("branch 4/4") && screen.contains("a new turn"), "{screen}");
}

#[test]
fn search_goes_along_while_typing_and_steps_around() {
    let mut s = open(80, 24);
    s.tell(Notice::Session(SessionView {
        messages: (1..=30).map(|i| answer(i, &format!("Answer {i}\n\nof *Pierre* and others"))).collect(),
        ..conversation()
    }));
    // A hint from before must not hide the count.
    s.event(Event::Copied(Ok("Copied 9 characters".into())));
    s.type_text("a draft").press("ctrl-f").type_text("pierre");
    let screen = s.screen();
    assert!(screen.contains("find: pierre") && screen.contains("30 of 30"), "{screen}");
    s.press("enter n");
    assert!(s.screen().contains("1 of 30"), "around the end");
    assert_eq!(s.app.transcript.window().first().map(|w| w.0), Some(0), "the view went along");
    s.type_text("N");
    assert!(s.screen().contains("30 of 30"));
    s.type_text("N");
    assert!(s.screen().contains("29 of 30"));
    s.press("esc");
    assert!(s.app.find.is_none());
    assert_eq!(s.app.composer.text(), "a draft", "the input was left alone");
    s.press("ctrl-f").type_text("Pierre!").press("enter");
    let screen = s.screen();
    assert!(screen.contains("Not found") && screen.contains("find: Pierre!"), "{screen}");
}

#[test]
fn search_in_all_branches_leaves_other_sessions_out() {
    let mut s = open(80, 24);
    s.press("ctrl-f").type_text("natasha").press("enter").type_text("a");
    assert_eq!(s.sent(), [Request::Search("natasha".into())]);
    let row = |session: &str, id| sala_chat::protocol::desk::SearchRow {
        session: session.into(),
        message: MessageId(id),
        number: 2,
        snippet: format!("of {session}"),
        created_ms: 0,
    };
    s.tell(Notice::Found { query: "natasha".into(), rows: vec![row("war-and-peace", 77), row("mail", 4)] });
    let screen = s.screen();
    assert!(screen.contains("of war-and-peace") && !screen.contains("of mail"), "{screen}");
    s.press("enter");
    assert_eq!(
        s.sent(),
        [Request::Goto(GotoTarget::Message(MessageId(77)))],
        "it is on another branch of this session"
    );
}

#[test]
fn a_mouse_selection_is_copied_without_bars_and_broken_lines() {
    let mut s = Stage::with(UiConfig { mouse: true, ..UiConfig::default() }, 60, 24).ready(demo());
    let long = "word ".repeat(30);
    s.tell(Notice::Session(SessionView {
        messages: vec![answer(1, &format!("{long}\n\n- one\n- two\n\n```rust\nlet x = 1;\n```"))],
        ..SessionView::default()
    }));
    let screen = s.screen();
    let line = |text: &str| u16::try_from(screen.lines().position(|l| l.contains(text)).unwrap()).unwrap();
    s.event(Event::Click { x: 3, y: line("word") })
        .event(Event::Drag { x: 59, y: line("let x") })
        .event(Event::Release);
    let Some(Effect::Copy(text)) = s.effects.last() else { panic!("{:?}", s.effects) };
    assert_eq!(*text, format!("{}\n\n- one\n- two\n\nlet x = 1;", long.trim_end()));
    // A click alone selects the message, as before.
    s.effects.clear();
    s.event(Event::Click { x: 5, y: line("word") }).event(Event::Release);
    assert!(s.effects.is_empty());
    assert_eq!(s.app.transcript.selected_message().map(|m| m.0), Some(1));
}

#[test]
fn mentioned_files_are_read_before_the_question_is_asked() {
    let mut s = open(80, 24);
    s.type_text("What does @my");
    assert_eq!(s.effects.pop(), Some(Effect::ListFiles("my".into())));
    s.event(Event::Files { query: "my".into(), found: vec!["docs/my notes.txt".into()] });
    assert!(s.screen().contains("@docs/my\\ notes.txt"));
    s.press("enter").type_text("say, @anna?").press("enter");
    s.effects.retain(|e| !matches!(e, Effect::ListFiles(_)));
    let names: Vec<String> = ["docs/my notes.txt", "anna?", "anna"].map(String::from).into();
    assert_eq!(
        s.effects.pop(),
        Some(Effect::FindPaths(vec!["docs/my notes.txt".into(), names[1].clone(), names[2].clone()]))
    );
    s.event(Event::FoundPaths(vec!["docs/my notes.txt".into()]));
    let load = |r: &Request| matches!(r, Request::Load { paths, .. } if *paths == ["docs/my notes.txt"]);
    assert!(matches!(s.sent().as_slice(), [r] if load(r)));
    busy(&mut s);
    s.tell(Notice::Added(document(4, "my notes.txt", 300))).tell(Notice::Activity(Activity::Idle));
    // The name that is left names nobody.
    assert_eq!(s.effects.pop(), Some(Effect::FindPaths(vec!["anna?".into(), "anna".into()])));
    s.event(Event::FoundPaths(Vec::new()));
    assert_eq!(s.sent(), [Request::Ask("What does docs/my notes.txt say, @anna?".into())]);
}

#[test]
fn mentioned_documents_of_the_library_are_loaded_by_name() {
    let mut s = shelved(80, 24);
    s.type_text("Does @my\\ n");
    s.event(Event::Files { query: "my n".into(), found: Vec::new() });
    assert!(s.screen().contains("@my\\ notes.txt"), "{}", s.screen());
    s.press("enter").type_text("agree with @plan.md and @war.txt?").press("esc enter");
    // A file by the same words goes before the library; what was read already is only spoken of.
    s.event(Event::FoundPaths(vec!["plan.md".into()]));
    let sent = s.sent();
    let [Request::Load { paths, options }] = sent.as_slice() else { panic!("{sent:?}") };
    assert_eq!((paths.as_slice(), options.library.as_slice()), (&["plan.md".into()][..], &["my notes.txt".into()][..]));
    busy(&mut s);
    s.tell(Notice::Added(document(4, "my notes.txt", 300))).tell(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [Request::Ask("Does my notes.txt agree with plan.md and war.txt?".into())]);
    // One that another program took out in the meantime: the question waits.
    busy(&mut s);
    s.tell(Notice::Activity(Activity::Idle));
    s.type_text("And @atlas.pdf?").press("esc enter");
    s.event(Event::FoundPaths(Vec::new())).effects.clear();
    s.tell(Notice::Note(sala_chat::protocol::desk::Level::Warn, "No document atlas.pdf in the library.".into()));
    s.tell(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), []);
}

#[test]
fn a_question_whose_file_was_not_read_waits() {
    let mut s = open(80, 24);
    s.type_text("Sum up @big.txt").press("esc").press("enter");
    s.event(Event::FoundPaths(vec!["big.txt".into()]));
    s.effects.clear();
    let refused = "big.txt needs 1,204,331 tokens; 436,372 are left. Nothing was loaded.";
    s.tell(Notice::Note(sala_chat::protocol::desk::Level::Error, refused.into()));
    s.tell(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), []);
    assert!(s.screen().contains("Not asked, because not all was read"));
    s.press("ctrl-x");
    assert_eq!(s.app.composer.text(), "Sum up big.txt");
}

#[test]
fn dropped_paths_are_offered_for_loading() {
    let mut s = open(80, 24);
    s.event(Event::Paste("'/home/x/a b.txt' ".into()));
    assert_eq!(s.effects.pop(), Some(Effect::FindPaths(vec!["/home/x/a b.txt".into()])));
    s.event(Event::FoundPaths(vec!["/home/x/a b.txt".into()]));
    assert!(s.screen().contains("Load /home/x/a b.txt?"));
    s.press("enter");
    assert!(matches!(s.sent().as_slice(), [Request::Load { paths, .. }] if *paths == ["/home/x/a b.txt"]));
    s.tell(Notice::Activity(Activity::Idle));
    // As text, when that is wanted, and when there is no such file.
    s.event(Event::Paste("/tmp/x".into())).event(Event::FoundPaths(vec!["/tmp/x".into()])).press("t");
    s.event(Event::Paste(" /no/such".into())).event(Event::FoundPaths(Vec::new()));
    assert_eq!(s.app.composer.text(), "/tmp/x /no/such");
}

#[test]
fn the_title_says_what_goes_on_and_that_it_ended_unseen() {
    use sala_chat::app::status::{Progress, progress, title};
    let mut s = open(80, 24);
    assert_eq!((title(&s.app).as_str(), progress(&s.app)), ("war-and-peace", None));
    s.event(Event::Focus(false));
    s.tell(Notice::Activity(Activity::Reading(sala_chat::protocol::desk::ReadingProgress {
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

/// Old layout on a new buffer: between a resize and the moment it is acted on.
#[test]
fn frame_of_another_size_is_clipped() {
    let mut s = open(160, 50);
    s.event(Event::Frame);
    let mut terminal = ratatui::Terminal::new(ratatui::backend::TestBackend::new(70, 20)).unwrap();
    terminal.draw(|f| sala_chat::ui::draw(&s.app, f)).unwrap();
}

const PIECES: [&str; 18] = [
    "word ",
    "\n",
    "\n\n",
    "- item\n",
    "```\n",
    "```rust\n",
    "code x\n",
    "**b** ",
    "日本",
    "👩‍👩‍👧",
    "e\u{301}",
    "\x1b[31m",
    "| a | b |\n",
    "|---|---|\n",
    "\u{202e}",
    "# h\n",
    "> q\n",
    "\t",
];

fn text_of(picks: &[usize]) -> String {
    picks.iter().map(|i| PIECES[i % PIECES.len()]).collect()
}

fn lines_of(app: &mut App) -> Vec<String> {
    update(app, Event::Frame, 0);
    app.transcript
        .entries()
        .iter()
        .flat_map(|e| (0..e.len()).map(|i| e.line(i).map(|l| l.row.text()).unwrap_or_default()))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_split_into_deltas_gives_the_same_lines(picks in proptest::collection::vec(0usize..100, 0..30), cuts in proptest::collection::vec(1usize..9, 1..40), frames in any::<u64>()) {
        let text = text_of(&picks);
        let mut whole = App::new(UiConfig::default(), 80, 24);
        let mut parts = App::new(UiConfig::default(), 80, 24);
        for app in [&mut whole, &mut parts] {
            update(app, Event::Notice(Notice::Added(message(1, Role::Assistant, ""))), 0);
        }
        let delta = |text: String| Event::Notice(Notice::Delta { message: MessageId(1), thinking: false, text });
        update(&mut whole, delta(text.clone()), 0);
        let chars: Vec<char> = text.chars().collect();
        let (mut at, mut n) = (0, 0);
        while at < chars.len() {
            let len = cuts[n % cuts.len()].min(chars.len() - at);
            update(&mut parts, delta(chars[at..at + len].iter().collect()), 0);
            if frames >> (n % 64) & 1 == 1 {
                update(&mut parts, Event::Frame, 0);
            }
            at += len;
            n += 1;
        }
        prop_assert_eq!(lines_of(&mut whole), lines_of(&mut parts));
        let mut done = answer(1, &text);
        done.meta.tokens_per_s = 0.0;
        for app in [&mut whole, &mut parts] {
            update(app, Event::Notice(Notice::Finished(done.clone())), 0);
        }
        let mut fresh = App::new(UiConfig::default(), 80, 24);
        update(&mut fresh, Event::Notice(Notice::Session(SessionView { messages: vec![done], ..SessionView::default() })), 0);
        let fresh = lines_of(&mut fresh);
        prop_assert_eq!(&lines_of(&mut whole), &fresh);
        prop_assert_eq!(&lines_of(&mut parts), &fresh);
        for line in fresh {
            prop_assert!(!line.chars().any(char::is_control), "{:?}", line);
            prop_assert!(sala_chat::app::wrap::width(&line) <= 77 || line.starts_with(' '), "{:?}", line);
        }
    }

    #[test]
    fn screens_never_panic_and_the_caret_is_at_the_text(picks in proptest::collection::vec(0usize..100, 0..40), typed in "[a-z 日👍/\n]{0,80}", width in 20u16..180, height in 5u16..60, scroll in -30isize..30) {
        let mut s = Stage::new(width, height).ready(demo());
        s.tell(Notice::Session(SessionView { messages: vec![message(1, Role::User, "q"), answer(2, &text_of(&picks))], ..SessionView::default() }));
        s.event(Event::Paste(typed.clone()));
        s.event(Event::Wheel(scroll));
        let mut terminal = s.terminal();
        if width >= 60 && height >= 15 {
            let at = terminal.get_cursor_position().unwrap();
            let area = sala_chat::app::layout::regions(&s.app).composer;
            prop_assert!(at.y >= area.y && at.y < area.y + area.height && at.x >= 2);
            // The cell before the caret holds the end of the text's last row.
            let cells = usize::from(width) - 2;
            let (_, column) = s.app.composer.caret(cells);
            prop_assert_eq!(usize::from(at.x), column + 2);
        }
    }

    #[test]
    fn a_new_width_and_back_keeps_the_first_line(picks in proptest::collection::vec(0usize..100, 20..80), up in 1isize..40, other in 60u16..200) {
        let mut s = Stage::new(80, 24).ready(demo());
        let messages = (0..6).map(|i| answer(i + 1, &format!("{} {}", i, text_of(&picks)))).collect();
        s.tell(Notice::Session(SessionView { messages, ..SessionView::default() }));
        s.event(Event::Wheel(-up));
        s.event(Event::Frame);
        let before = s.app.transcript.window().first().copied();
        s.event(Event::Resize { width: other, height: 24 });
        s.event(Event::Frame);
        let between = s.app.transcript.window().first().map(|w| w.0);
        prop_assert_eq!(between, before.map(|w| w.0), "the same message stays on top");
        s.event(Event::Resize { width: 80, height: 24 });
        s.event(Event::Frame);
        prop_assert_eq!(s.app.transcript.window().first().copied(), before);
    }
}

#[test]
fn enter_runs_the_highlighted_command_or_completes_one_that_needs_more() {
    let mut s = Stage::new(80, 24).ready(demo());
    s.type_text("/sea").press("enter");
    assert!(s.sent().is_empty(), "/search needs words");
    assert_eq!(s.app.composer.text(), "/search ");
    s.press("ctrl-u").type_text("/ses").press("enter");
    assert_eq!(s.sent(), [Request::Sessions]);
    s.type_text("/un").press("down enter");
    assert_eq!(s.sent(), [Request::Undo(1)]);
}

#[test]
fn a_name_that_only_resembles_a_command_is_answered_and_stays() {
    let mut s = Stage::new(80, 24).ready(demo());
    s.type_text("/reset").press("enter");
    assert!(s.sent().is_empty() && s.app.composer.text() == "/reset", "{}", s.app.composer.text());
    assert!(s.screen().contains("/new starts a new session"), "{}", s.screen());
    s.press("ctrl-u").type_text("/clear").press("enter");
    assert_eq!(s.sent(), [Request::New(None)]);
}

#[test]
fn what_the_screen_keeps_is_set_there_and_settings_are_a_page() {
    let mut s = Stage::new(80, 24).ready(demo());
    s.type_text("/set theme light").press("enter");
    assert_eq!(s.effects, [Effect::Theme("light".into()), Effect::Repaint]);
    s.event(Event::Theme(Ok(Palette::built_in(ThemeName::Light, false))));
    s.type_text("/settings theme").press("enter");
    assert!(s.screen().contains("ui.theme light: colours"), "{}", s.screen());
    s.press("esc").type_text("/help clipboard").press("enter");
    assert!(s.screen().contains("/load") && s.screen().contains("clipboard.method"), "{}", s.screen());
    assert!(s.sent().is_empty());
}

#[test]
fn a_number_or_tab_puts_an_offered_question_into_the_input_and_enter_reads_the_sample_first() {
    use sala_chat::text::sample::{PATH, QUESTIONS};
    let mut s = Stage::new(80, 24).ready(demo());
    s.type_text("2");
    assert_eq!(s.app.composer.text(), QUESTIONS[1]);
    s.press("ctrl-c").type_text("2 apples");
    assert_eq!(s.app.composer.text(), "2 apples", "a number that goes on is no choice");
    s.press("ctrl-c tab enter");
    let loads = |request: &Request| matches!(request, Request::Load { paths, .. } if *paths == [PATH]);
    let sent = s.sent();
    assert!(sent.iter().any(loads) && sent.len() == 1, "{sent:?}");
    s.tell(Notice::Activity(Activity::Busy { what: "opening files".into() }));
    s.tell(Notice::Added(message(1, Role::Document, "")));
    s.tell(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [Request::Ask(QUESTIONS[0].into())]);
    // A real model gets no such offers.
    let mut real = Stage::new(80, 24).ready(gpu());
    real.type_text("2");
    assert_eq!(real.app.composer.text(), "2");
}

#[test]
fn the_tour_waits_for_each_answer_and_escape_leaves_it() {
    use sala_chat::app::tour::Tour;
    let mut s = Stage::new(80, 24);
    s.app.tour = Some(Tour::default());
    let mut s = s.ready(demo());
    assert_eq!(s.app.composer.text(), "/load sample:lighthouse.md");
    s.press("enter");
    assert!(matches!(s.sent().as_slice(), [Request::Load { .. }]));
    assert_eq!(s.app.composer.text(), "", "the next step waits until this one is done");
    busy(&mut s);
    s.tell(Notice::Activity(Activity::Idle));
    assert_eq!(s.app.composer.text(), "Who built the lighthouse?");
    s.press("f1");
    assert!(s.app.overlay.is_some());
    s.press("enter");
    assert!(s.app.overlay.is_none() && s.sent().is_empty(), "a page does not hold whoever goes on");
    s.press("ctrl-c").wait(2_500).press("enter");
    assert_eq!(s.app.composer.text(), "Who built the lighthouse?", "a cleared step comes back with Enter");
    s.press("esc");
    assert_eq!((s.app.tour.is_none(), s.app.composer.text()), (true, ""));
    assert!(s.screen().contains("The tour is left"));
}

#[test]
fn letters_move_where_vim_keys_are_wanted_and_type_elsewhere() {
    let config = UiConfig { vim_keys: true, ..UiConfig::default() };
    let mut s = conversing(Stage::with(config, 80, 24));
    let number = |s: &Stage| s.app.transcript.selected_message().map(|(n, _)| n);
    s.press("ctrl-p");
    let last = number(&s).unwrap();
    s.type_text("k");
    assert!(number(&s).unwrap() < last);
    s.type_text("g");
    assert_eq!(number(&s), Some(1));
    s.type_text("G");
    assert_eq!(number(&s), Some(last));
    let mut plain = open(80, 24);
    plain.press("ctrl-p").type_text("k");
    assert_eq!(plain.app.composer.text(), "k", "without the option a letter is typed");
}

#[test]
fn set_with_save_changes_now_and_in_the_file() {
    let mut s = open(80, 24);
    s.type_text("/set temperature 0.3 --save").press("enter");
    let keep = Effect::Keep { key: "sampling.temperature", value: "0.3".into() };
    assert!(s.effects.contains(&keep), "{:?}", s.effects);
    assert_eq!(s.sent(), [Request::Set(Some(("temperature".into(), "0.3".into())))]);
    // What only a start reads is written, and nothing is sent.
    s.type_text("/set ui.max_width 90 --save").press("enter");
    assert!(s.effects.iter().any(|e| matches!(e, Effect::Keep { key: "ui.max_width", .. })), "{:?}", s.effects);
    assert_eq!(s.sent(), []);
    s.event(Event::Kept(Ok("ui.max_width = 90 is in the settings file now.".into())));
    assert!(s.screen().contains("ui.max_width = 90"));
    s.type_text("/set ui.max_width 9 --save").press("enter");
    assert!(s.screen().contains("must be"), "{}", s.screen());
}

/// The foreground of the first cell that holds this text.
fn foreground(s: &mut Stage, text: &str) -> ratatui::style::Color {
    let terminal = s.terminal();
    let buffer = terminal.backend().buffer();
    for y in 0..buffer.area.height {
        let line: String = (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect();
        if let Some(at) = line.find(text) {
            let x = u16::try_from(line[..at].chars().count()).unwrap();
            return buffer[(x, y)].fg;
        }
    }
    panic!("{text} is not on the screen");
}

#[test]
fn moving_in_the_list_of_themes_shows_them_and_only_enter_takes_one() {
    use ratatui::style::Color;
    let mut s = themes(80, 24);
    assert_eq!(s.app.palette().name, "auto");
    // auto, dark, light, plain, sea
    s.press("down down down down");
    assert_eq!(foreground(&mut s, "quote"), Color::Rgb(0x2a, 0xa1, 0x98));
    s.press("esc");
    assert_eq!((s.app.palette().name.as_str(), s.app.config.theme.name.as_str()), ("auto", "auto"));
    s.type_text("/theme").press("enter");
    assert_eq!(s.effects.last(), Some(&Effect::ListThemes));
    s.event(Event::Themes(theme_rows())).type_text("tor").press("enter");
    assert!(matches!(s.app.overlay, Some(sala_chat::app::overlay::Overlay::Themes(_))), "a broken one is not taken");
    s.press("backspace backspace backspace").type_text("sea").press("enter");
    assert_eq!(s.app.config.theme.name, "sea");
    assert!(s.screen().contains("Theme sea."), "{}", s.screen());
    assert_eq!(foreground(&mut s, " sala "), Color::Cyan, "what it does not name is as in its base");
    s.type_text("/theme s").press("tab");
    assert_eq!(s.app.composer.text().trim_end(), "/theme sea");
    s.press("ctrl-u").type_text("/theme nothing").press("enter");
    s.event(Event::Theme(Err("no theme nothing: there are auto".into())));
    assert_eq!(s.app.config.theme.name, "sea");
    assert!(s.screen().contains("no theme nothing"), "{}", s.screen());
}

#[test]
fn another_code_theme_colours_what_is_on_screen_again() {
    let mut s = open(80, 24);
    s.tell(Notice::Added(message(3, Role::Assistant, "```rust\nfn main() {}\n```")));
    s.screen();
    let asked = |s: &mut Stage| s.effects.drain(..).filter(|e| matches!(e, Effect::Highlight { .. })).count();
    assert_eq!(asked(&mut s), 1);
    s.screen();
    assert_eq!(asked(&mut s), 0);
    s.type_text("/set code_theme nord").press("enter");
    assert!(s.effects.contains(&Effect::CodeTheme("nord".into())));
    s.event(Event::CodeTheme(Ok("nord".into()))).screen();
    assert_eq!(asked(&mut s), 1);
    s.event(Event::CodeTheme(Err("no code theme nrod: did you mean nord?".into())));
    assert!(s.screen().contains("did you mean nord?") && s.app.config.code_theme == "nord");
    s.type_text("/set code_theme").press("enter");
    assert!(s.screen().contains("base16-ocean-dark"), "{}", s.screen());
}
