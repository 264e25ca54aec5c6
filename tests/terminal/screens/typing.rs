//! Typed text is never lost and never acts unseen: with late pages, folded pastes and hidden messages.

use sala_chat::core::transcript::MessageId;
use sala_chat::runtime::protocol::{Activity, Level, Notice, Request};
use sala_chat::text::sample::QUESTIONS;
use sala_chat::tui::options::UiConfig;
use sala_chat::tui::transcript::Scroll;
use sala_chat::tui::{Effect, Event, Queued};

use super::stage::*;
use super::{loading, picture};

#[test]
fn a_text_from_the_editor_is_not_replaced_by_an_offer() {
    let mut s = open(80, 24);
    s.type_text("/doc").press("ctrl-g");
    assert!(s.app.popup.is_some());
    s.event(Event::Edited(Ok("What does the contract say?\n".into())));
    s.press("enter");
    assert_eq!(s.sent(), [Request::Ask("What does the contract say?".into())]);
}

#[test]
fn a_queued_question_is_not_replaced_by_what_was_offered_before() {
    let mut s = open(80, 24);
    busy(&mut s);
    s.type_text("a queued question").press("enter").type_text("/doc").press("ctrl-x enter");
    assert_eq!(s.queued(), ["/doc", "a queued question"]);
    assert_eq!(s.sent(), []);
}

#[test]
fn completions_go_with_the_caret() {
    for keys in ["left", "home", "ctrl-left"] {
        let mut s = open(80, 24);
        s.type_text("/doc").press(keys);
        assert_eq!(s.app.popup, None, "{keys}");
        s.press("enter");
        assert_eq!((s.sent(), s.app.open.composer.text()), (vec![], "/doc"), "{keys}");
    }
}

#[test]
fn a_cleared_folded_paste_returns_as_a_paste() {
    let mut s = open(80, 24);
    let long = format!("{}words.", "words ".repeat(199));
    s.event(Event::Paste(long.clone())).press("ctrl-c").type_text("/docs").press("enter");
    s.notify(Notice::Page { title: "Documents".into(), text: "none".into() });
    s.press("esc ctrl-y");
    assert_eq!(s.app.open.composer.text(), "[paste 1: 1 line, 1,200 characters]");
    s.press("enter");
    assert_eq!(s.sent(), [Request::Docs, Request::Ask(long)]);
}

#[test]
fn the_reply_to_a_command_is_visible_during_a_load() {
    let mut s = loading(80, 24);
    s.press("ctrl-u").type_text("/lod").press("enter");
    let screen = s.screen();
    assert!(screen.contains("Loading 3 of 5 files") && screen.contains("/lod"), "{screen}");
    assert!(screen.contains("!! "), "{screen}");
    s.press("ctrl-u").type_text("/set temperature 0.5").press("enter");
    let screen = s.screen();
    assert!(!screen.contains("!! "), "what was said to an earlier line is old: {screen}");
    s.notify(Notice::Note(Level::Info, "temperature is 0.5".into()));
    let screen = s.screen();
    assert!(screen.contains("Loading 3 of 5 files") && screen.contains("temperature is 0.5"), "{screen}");
}

#[test]
fn the_reply_to_a_command_is_visible_from_every_view() {
    let mut s = open(80, 24);
    s.type_text("/regen 2").press("enter");
    busy(&mut s);
    s.notify(Notice::Several(vec![(MessageId(11), None), (MessageId(12), None)]));
    s.type_text("/lod").press("enter");
    let screen = s.screen();
    assert!(screen.contains("sala  answer 2") && screen.contains("!! "), "{screen}");
    let mut s = open(80, 15);
    s.press("pgup").type_text("/lod").press("enter");
    let screen = s.screen();
    assert!(screen.contains("!! ") && !screen.contains("new line"), "{screen}");
}

fn why() -> Notice {
    Notice::Page { title: "Why #3".into(), text: "These words fell.".into() }
}

#[test]
fn a_page_that_arrives_during_typing_waits() {
    let mut s = open(80, 24);
    s.type_text("/why").press("enter").type_text("The next ");
    s.notify(why()).type_text("question: quick?");
    s.event(Event::Paste(" pasted".into()));
    assert_eq!(s.app.open.composer.text(), "The next question: quick? pasted");
    let screen = s.screen();
    assert!(screen.contains("Shift-Tab shows: Why #3") && !screen.contains("fell"), "{screen}");
    s.press("shift-tab");
    assert!(s.screen().contains("These words fell."));
    s.press("esc");
    let screen = s.screen();
    assert!(!screen.contains("shows:") && screen.contains("The next question"), "{screen}");
    // A page requested now opens now.
    s.press("ctrl-u").type_text("/why").press("enter").notify(why());
    assert!(s.screen().contains("These words fell."));
}

#[test]
fn a_page_closes_for_letters_and_pastes_it_does_not_use() {
    let mut s = open(80, 24);
    s.type_text("/why").press("enter").notify(why());
    s.type_text("The next question: quick?");
    assert_eq!(s.app.open.composer.text(), "The next question: quick?");
    s.press("shift-tab");
    assert!(s.screen().contains("These words fell."));
    s.event(Event::Paste(" pasted".into()));
    assert_eq!(s.app.open.composer.text(), "The next question: quick? pasted");
    assert!(s.screen().contains("Shift-Tab shows: Why #3"));
}

#[test]
fn typing_continues_while_an_aside_arrives() {
    let mut s = open(80, 24);
    s.type_text("/aside Who?").press("enter").type_text("Mean");
    let aside = |text: &str, done| Notice::Aside { question: "Who?".into(), text: text.into(), done };
    s.notify(aside("It", None)).type_text("while").notify(aside("It is Natasha.", None));
    assert_eq!(s.app.open.composer.text(), "Meanwhile");
    s.notify(aside("It is Natasha.", Some(sala_chat::core::transcript::Finish::Stop))).press("shift-tab");
    assert!(s.screen().contains("It is Natasha."));
}

#[test]
fn keys_do_nothing_to_messages_that_a_load_hides() {
    let mut s = open(80, 24);
    s.press("ctrl-p");
    let hidden = loading(80, 24).app.activity.clone();
    s.notify(Notice::Activity(hidden));
    assert_eq!(s.app.open.transcript.selected(), None);
    let scroll = s.app.open.transcript.scroll();
    s.press("ctrl-p pgup ctrl-home ctrl-t ctrl-f").event(Event::Wheel(-3));
    assert!(s.app.open.find.is_none() && s.app.open.transcript.selected().is_none());
    assert_eq!(s.app.open.transcript.scroll(), scroll);
    s.press("y");
    assert!(!s.effects.iter().any(|e| matches!(e, Effect::Copy(_))), "{:?}", s.effects);
    assert!(!s.screen().contains("e edit"));
}

#[test]
fn a_slash_inside_a_recalled_question_is_written() {
    let mut s = open(80, 24);
    s.notify(Notice::Input { text: "When or why?".into(), editing: None });
    s.press("home").type_text("and/or ");
    assert_eq!(s.app.open.composer.text(), "and/or When or why?");
    let mut s = open(80, 24);
    s.notify(Notice::Input { text: "When or why?".into(), editing: None });
    s.press("left left").type_text("/");
    assert_eq!(s.app.open.composer.text(), "When or wh/y?");
}

#[test]
fn a_greeting_number_expires_once_its_question_is_sent() {
    let mut s = Stage::new(80, 24).ready(demo());
    s.type_text("1").press("enter");
    s.notify(Notice::Activity(Activity::Idle));
    s.app.open.composer.set("");
    s.press("tab").type_text(" today");
    assert!(s.app.open.composer.text().ends_with(" today"), "{}", s.app.open.composer.text());
    assert!(s.app.open.composer.text().len() > 20, "{}", s.app.open.composer.text());
    // Nor does it stand for another one.
    let mut s = Stage::new(80, 24).ready(demo());
    s.type_text("2").press("ctrl-c tab").type_text(" today");
    assert_eq!(s.app.open.composer.text(), format!("{} today", QUESTIONS[0]));
}

#[test]
fn sending_from_the_queue_keeps_the_scroll_position() {
    let mut s = open(80, 24);
    busy(&mut s);
    s.type_text("asked next").press("enter");
    s.app.open.queue.lines.push_back(Queued { line: "sum up @more.txt".into(), edits: None });
    s.press("pgup");
    let scroll = s.app.open.transcript.scroll();
    assert_ne!(scroll, Scroll::Follow);
    s.notify(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [Request::Ask("asked next".into())]);
    assert_eq!(s.app.open.transcript.scroll(), scroll);
    // Nor do the files that it mentions lead to the end.
    busy(&mut s);
    s.notify(Notice::Activity(Activity::Idle)).event(Event::FoundPaths(vec!["more.txt".into()]));
    assert!(matches!(s.sent().as_slice(), [Request::Load { .. }]));
    assert_eq!(s.app.open.transcript.scroll(), scroll);
    s.type_text("sent now").press("enter");
    assert_eq!(s.app.open.transcript.scroll(), Scroll::Follow);
}

#[test]
fn a_database_notice_blocks_no_question() {
    let mut s = open(80, 24);
    s.type_text("Sum up @big.txt").press("esc").press("enter");
    s.event(Event::FoundPaths(vec!["big.txt".into()])).effects.clear();
    s.notify(Notice::Damage("sala.db is damaged in places".into())).notify(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [Request::Ask("Sum up big.txt".into())]);
    assert!(s.screen().contains("damaged in places"), "{}", s.screen());
}

#[test]
fn a_session_of_this_folder_is_continued_by_enter_and_left_alone_by_typing() {
    let offering = |w, h| {
        let offer = Some(super::pages::sessions().remove(0));
        Stage::with(UiConfig { offer, ..UiConfig::default() }, w, h).ready(demo())
    };
    for (w, h) in [(30, 8), (60, 15), (80, 24), (160, 50)] {
        let mut s = offering(w, h);
        picture(&format!("offer_{w}x{h}"), &mut s);
        s.press("enter");
        assert_eq!(s.sent(), [Request::Resume("war-and-peace".into())]);
        let mut s = offering(w, h);
        s.type_text("Hello");
        assert!(!s.screen().contains("Enter continues"), "{}", s.screen());
        s.press("enter");
        assert_eq!(s.sent(), [Request::Ask("Hello".into())]);
        // A command counts as a beginning, too: the next Enter opens nothing.
        let mut s = offering(w, h);
        s.type_text("/new").press("enter");
        s.notify(Notice::Activity(Activity::Idle)).press("enter");
        assert_eq!(s.sent(), [Request::New(None)]);
    }
}
