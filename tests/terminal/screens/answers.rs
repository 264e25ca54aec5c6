//! Pictures of the conversation: answers, thoughts, texts of every kind.

use sala_chat::core::transcript::{Finish, MessageId, Role};
use sala_chat::engine::protocol::ModelInfo;
use sala_chat::runtime::protocol::{Activity, Level, Meters, Notice, Request, SaveState, SessionView};
use sala_chat::tui::{Effect, Event};

use super::stage::*;
use super::{picture, pictures};

#[test]
fn conversation_with_thoughts_code_and_table() {
    pictures("conversation", open);
    picture("conversation_ascii_80x24", &mut conversing(Stage::ascii(80, 24)));
}

#[test]
fn the_continue_hint_of_a_repeating_answer_is_never_cut() {
    for width in [60, 80] {
        let mut s = open(width, 24);
        let mut m = answer(4, "On and on.");
        (m.meta.finish, m.meta.completion_tokens) = (Some(Finish::Repeats), 2_347);
        s.notify(Notice::Added(m));
        let words = s.screen().replace('│', " ").split_whitespace().collect::<Vec<_>>().join(" ");
        let note = "-- The answer began to repeat itself; stopped after 2,347 tokens. /continue goes on";
        assert!(words.contains(note), "{words}");
    }
}

#[test]
fn the_reason_for_unsaved_state_is_shown_once() {
    let mut s = open(80, 24);
    let left_out = || Notice::Save(SaveState::TextOnly("earlier state is not kept; the next start reads it.".into()));
    for (state, count) in [(SaveState::Saved(TIME), 1), (SaveState::Saving, 1), (SaveState::Saved(TIME), 2)] {
        s.notify(Notice::Save(state)).notify(left_out());
        let screen = s.screen();
        let reason = "Text is saved, its state is not: earlier";
        assert_eq!(screen.matches(reason).count(), count, "{screen}");
        assert!(screen.contains("state not saved"), "{screen}");
    }
}

#[test]
fn answer_arriving_with_a_queued_question() {
    pictures("answering", |w, h| {
        let mut s = open(w, h);
        s.type_text("Where is it told?").press("enter");
        s.notify(Notice::Added(message(4, Role::User, "Where is it told?")));
        s.notify(Notice::Added(message(5, Role::Assistant, "")));
        s.notify(Notice::Activity(Activity::Answering { tokens_per_s: 96.4 }));
        s.notify(Notice::Delta {
            message: MessageId(5),
            thinking: false,
            text: "In the **last** part. Two passages refer back to it: the ev".into(),
        });
        s.type_text("and compare this with the film").press("enter");
        s.type_text("half a question");
        s
    });
}

#[test]
fn documents_being_read() {
    pictures("loading", super::loading);
}

#[test]
fn stopped_answer_shows_how_to_continue() {
    let mut s = open(80, 24);
    let mut stopped = answer(4, "The film keeps the reunion but moves it ahead of");
    stopped.meta.finish = Some(Finish::Stopped);
    s.notify(Notice::Finished(stopped));
    picture("stopped_80x24", &mut s);
}

#[test]
fn thoughts_are_open_while_they_run() {
    let mut s = open(80, 24);
    s.notify(Notice::Added(message(4, Role::User, "And then?")));
    s.notify(Notice::Added(message(5, Role::Assistant, "")));
    s.notify(Notice::Activity(Activity::Thinking { tokens_per_s: 90.0, ms: 12_000.0, tokens: 1_080 }));
    s.notify(Notice::Delta {
        message: MessageId(5),
        thinking: true,
        text: "The user wants the next event.\nLook after the fire".into(),
    });
    picture("thinking_80x24", &mut s);
    s.notify(Notice::Delta { message: MessageId(5), thinking: false, text: "He returns".into() });
    picture("thinking_folds_80x24", &mut s);
    s.press("ctrl-t");
    picture("thinking_reopened_80x24", &mut s);
}

#[test]
fn folded_thoughts_say_how_long_they_are_as_they_grow() {
    for (cells, rows) in [(80, 24), (160, 50)] {
        let mut s = open(cells, rows);
        s.notify(Notice::Added(message(4, Role::User, "And then?")));
        s.notify(Notice::Added(message(5, Role::Assistant, "")));
        let mut think = |ms: f64, tokens: u64, text: &str| {
            s.notify(Notice::Activity(Activity::Thinking { tokens_per_s: 90.0, ms, tokens }));
            s.notify(Notice::Delta { message: MessageId(5), thinking: true, text: text.into() });
        };
        think(12_000.0, 1_080, "The user wants the next event.\n");
        think(62_400.0, 5_616, "Look after the fire.\nThen at the road");
        s.press("ctrl-t");
        picture(&format!("thinking_folded_{cells}x{rows}"), &mut s);
    }
}

#[test]
fn damage_and_refusals_are_notes() {
    let mut s = open(80, 24);
    s.notify(Notice::Note(Level::Warn, "1 unfinished entry was set aside".into()));
    s.notify(Notice::Note(
        Level::Error,
        "big.txt needs 1,204,331 tokens; 436,372 are left. Nothing was loaded. Options: /load big.txt --head 430000 ; /new then /load".into(),
    ));
    s.notify(Notice::Note(
        Level::Info,
        "No usable NVIDIA GPU: driver not found (libcuda.so.1). The demo runs on the CPU.".into(),
    ));
    picture("notes_80x24", &mut s);
}

#[test]
fn aside_lies_over_the_conversation() {
    let mut s = open(80, 24);
    s.notify(Notice::Aside {
        question: "What was his name?".into(),
        text: "Andrei *Bolkonski*, the".into(),
        done: None,
    });
    picture("aside_80x24", &mut s);
    s.notify(Notice::Aside {
        question: "What was his name?".into(),
        text: "Andrei *Bolkonski*, the prince.".into(),
        done: Some(Finish::Stop),
    });
    picture("aside_done_80x24", &mut s);
}

#[test]
fn selected_message_shows_its_keys() {
    let mut s = open(80, 24);
    s.press("ctrl-p ctrl-p");
    picture("selected_80x24", &mut s);
    s.notify(Notice::Input { text: "Who tells Pierre?".into(), editing: Some(MessageId(2)) });
    picture("editing_80x24", &mut s);
}

#[test]
fn scrolling_up_freezes_the_view() {
    let mut s = open(80, 24);
    s.press("pgup");
    picture("frozen_80x24", &mut s);
    s.notify(Notice::Finished(answer(4, "one\n\ntwo\n\nthree")));
    picture("frozen_new_80x24", &mut s);
}

#[test]
fn wide_right_to_left_and_hostile_text() {
    let mut s = open(80, 24);
    s.notify(Notice::Session(SessionView {
        name: "mixed".into(),
        tree: branch(1, 1),
        messages: vec![
            message(1, Role::User, "日本語で答えてください。長い文は折り返されますか、それとも画面の外へ出てしまいますか。"),
            answer(2, "はい、折り返します。👩‍👩‍👧 und ❤️ bleiben ganz.\n\nשלום עולם, مرحبا بالعالم\n\nhidden \u{202e}txt.exe and \u{1b}[2J\u{9b}31m"),
        ],
        ..SessionView::default()
    }));
    s.type_text("日本語を打つ");
    picture("wide_text_80x24", &mut s);
}

#[test]
fn wide_tables_and_long_code_lines() {
    let mut s = open(60, 15);
    let long = format!("```rust\nfn main() {{ println!(\"{}\"); }}\n```", "x".repeat(70));
    s.notify(Notice::Session(SessionView {
        name: "wide".into(),
        tree: branch(1, 1),
        messages: vec![answer(
            1,
            &format!("| passage | who speaks | what is said in full |\n|---|---|---|\n| [1] | nobody at all | Pierre recognises her |\n\n{long}"),
        )],
        ..SessionView::default()
    }));
    picture("wide_table_60x15", &mut s);
}

#[test]
fn large_paste_is_folded_and_long_input_wraps() {
    let mut s = open(80, 24);
    s.type_text("Compare ");
    s.event(sala_chat::tui::Event::Paste("line of a log\n".repeat(41)));
    s.type_text(" with the book, line by line, and tell me which of the two is the older text.\nThen stop.");
    picture("folded_paste_80x24", &mut s);
}

#[test]
fn view_only_session_is_marked() {
    let mut s = open(80, 24);
    s.notify(Notice::Session(SessionView { view_only: true, ..conversation() }));
    picture("view_only_80x24", &mut s);
}

#[test]
fn every_greeting_line_is_whole_with_notes() {
    let mut s = Stage::new(80, 24).ready(demo());
    let mut short = 0;
    for n in 0..8 {
        s.notify(Notice::Note(Level::Warn, format!("Note {n}.")));
        let screen = s.screen();
        if screen.contains("Type a question, or /load FILE") {
            assert!(screen.contains("/help lists commands."), "{screen}");
            short += 1;
        }
    }
    assert!(short > 0, "the short form was never shown");
}

#[test]
fn two_sessions_are_shown_side_by_side_and_live() {
    let mut s = super::several::left_at_work(160, 50);
    let background = |notice| Notice::Background { serial: 1, notice: Box::new(notice) };
    s.type_text("/split").press("enter");
    s.notify(background(Notice::Activity(Activity::Answering { tokens_per_s: 90.0 })));
    s.notify(background(Notice::Added(message(20, Role::User, "Asked in the one that was left?"))));
    s.notify(background(Notice::Added(message(21, Role::Assistant, ""))));
    s.notify(background(Notice::Delta {
        message: MessageId(21),
        thinking: false,
        text: "It is written beside".into(),
    }));
    picture("split_160x50", &mut s);
    s.notify(background(Notice::Delta { message: MessageId(21), thinking: false, text: " the other.".into() }));
    assert!(s.screen().contains("It is written beside the other."));
    // The focus moves, the sides stay.
    s.press("alt-o");
    assert_eq!(s.sent(), [Request::Switch(1)]);
    s.notify(Notice::Session(opened(1)));
    let screen = s.screen();
    let heading = screen.lines().nth(2).unwrap_or("").to_string();
    assert!(heading.trim_start().starts_with("[1] war-and-peace") && heading.contains("2 contract"), "{heading}");
    assert!(screen.contains("Three months."), "{screen}");
    // Narrower there is no room, and the panel is back when there is one session again.
    s.event(sala_chat::tui::Event::Resize { width: 159, height: 50 });
    assert!(!s.screen().contains("Three months."));
    s.event(sala_chat::tui::Event::Resize { width: 160, height: 50 });
    s.press("alt-s");
    let screen = s.screen();
    assert!(!screen.contains("Three months.") && screen.contains("documents"), "{screen}");
    s.event(sala_chat::tui::Event::Resize { width: 120, height: 40 });
    s.press("alt-s");
    assert!(s.screen().contains("need 160 columns"), "{}", s.screen());
}

#[test]
fn the_speed_of_a_server_is_marked_until_it_has_counted() {
    let server = ModelInfo { server: Some("http://box:8000/v1".into()), ..gpu() };
    let mut s = open(140, 40);
    s.notify(Notice::Ready(server));
    s.notify(Notice::Added(message(4, Role::Assistant, "")));
    s.notify(Notice::Activity(Activity::Answering { tokens_per_s: 31.5 }));
    let screen = s.screen();
    assert!(screen.contains("gen ~31.5 t/s") && screen.contains("answering  ~31.5 t/s"), "{screen}");
    for estimated in [true, false] {
        let mut done = answer(4, "As far as it came");
        (done.meta.tokens_per_s, done.meta.estimated) = (32.5, estimated);
        s.notify(Notice::Finished(done)).notify(Notice::Activity(Activity::Idle));
        s.notify(Notice::Meters(Meters { tokens_per_s: 33.5, speed_estimated: estimated, ..meters(gpu()) }));
        let screen = s.screen();
        assert_eq!([screen.contains(" ~32.5 t/s"), screen.contains(" ~33.5 t/s")], [estimated; 2], "{screen}");
        assert!(screen.contains("32.5 t/s") && screen.contains("33.5 t/s"), "{screen}");
    }
}

#[test]
fn an_answer_continues_whether_or_not_the_program_suspends() {
    let mut s = open(80, 24);
    busy(&mut s);
    s.type_text("asked next").press("enter");
    s.press("ctrl-z");
    assert!(s.effects.contains(&Effect::Suspend), "{:?}", s.effects);
    s.event(Event::NotSuspended("Not suspended: there is no shell to continue it".into()));
    let screen = s.screen();
    assert!(screen.contains("Not suspended: there is no shell") && s.app.busy(), "{screen}");
    assert_eq!(s.sent(), []);
    s.event(Event::Resumed).notify(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [Request::Ask("asked next".into())], "what was queued is not held");
}
