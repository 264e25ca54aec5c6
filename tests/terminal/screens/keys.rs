//! What keys and typed commands do.

use sala_chat::core::Exit;
use sala_chat::core::transcript::Role;
use sala_chat::runtime::protocol::{Activity, Level, Notice, Request};
use sala_chat::tui::options::{ThemeName, UiConfig};
use sala_chat::tui::overlay::Overlay;
use sala_chat::tui::palette::Palette;
use sala_chat::tui::{Effect, Event};

use super::stage::*;

#[test]
fn enter_sends_when_idle_and_queues_when_busy() {
    let mut s = open(80, 24);
    s.type_text("one").press("enter");
    assert_eq!(s.sent(), [Request::Ask("one".into())]);
    // The runtime has not answered yet: the next one waits.
    s.type_text("two").press("enter");
    s.type_text("/undo").press("enter enter");
    s.type_text("/docs").press("enter");
    assert_eq!(s.sent(), [Request::Docs], "reading commands run at once");
    busy(&mut s);
    s.notify(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [Request::Ask("two".into())]);
    busy(&mut s);
    s.notify(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [Request::Undo(1)]);
}

#[test]
fn escape_stops_and_swallows_the_second_press() {
    let mut s = open(80, 24);
    busy(&mut s);
    s.press("esc");
    assert_eq!(s.sent(), [Request::Stop]);
    s.press("esc");
    s.notify(Notice::Activity(Activity::Idle));
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
    assert_eq!(s.app.open.composer.text(), "");
    s.press("ctrl-y");
    assert_eq!(s.app.open.composer.text(), "a long thought");
}

#[test]
fn ctrl_c_that_stopped_work_never_arms_exit() {
    let mut s = open(80, 24);
    busy(&mut s);
    s.press("ctrl-c");
    assert_eq!(s.sent(), [Request::Stop]);
    s.notify(Notice::Activity(Activity::Idle));
    s.wait(100).press("ctrl-c").wait(100).press("ctrl-c");
    assert_eq!(s.sent(), []);
    s.wait(600).press("ctrl-c");
    assert_eq!(s.sent(), []);
    s.wait(100).press("ctrl-c");
    assert_eq!(s.sent(), [Request::Quit]);
    s.press("ctrl-c");
    assert_eq!(s.effects, [Effect::Exit { exit: Exit::Stopped, farewell: None }], "a third press does not wait");
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
fn stop_holds_the_queue_until_the_next_enter() {
    let mut s = open(80, 24);
    busy(&mut s);
    s.type_text("next").press("enter esc");
    s.notify(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [Request::Stop]);
    s.press("enter");
    assert_eq!(s.sent(), [Request::Ask("next".into())]);
}

#[test]
fn queued_messages_are_sent_one_by_one_and_can_be_held() {
    let mut s = open(80, 24);
    let notify = |s: &mut Stage, notice| {
        s.event(Event::Notice(notice));
    };
    let served = |s: &mut Stage, count| notify(s, Notice::Acknowledged(count));
    s.type_text("one").press("enter");
    s.notify(Notice::Activity(Activity::Answering { tokens_per_s: 50.0 }));
    s.type_text("two").press("enter").type_text("/mark here").press("enter").type_text("three").press("enter");
    s.effects.clear();
    notify(&mut s, Notice::Activity(Activity::Idle));
    // What the history is to keep is served as well.
    served(&mut s, 3);
    assert_eq!(s.sent(), [Request::Ask("two".into())], "the first one is served, the second was not begun");
    // The notices between this and its answer do not end it.
    notify(&mut s, Notice::Note(Level::Info, "Reading 12 tokens again.".into()));
    notify(&mut s, Notice::Added(message(7, Role::User, "two")));
    notify(&mut s, Notice::Added(message(8, Role::Assistant, "")));
    served(&mut s, 3);
    assert_eq!((s.sent(), s.queued()), (vec![], vec!["/mark here", "three"]));
    notify(&mut s, Notice::Activity(Activity::Answering { tokens_per_s: 50.0 }));
    notify(&mut s, Notice::Activity(Activity::Idle));
    served(&mut s, 4);
    assert_eq!(s.sent(), [Request::Mark("here".into())]);
    notify(&mut s, Notice::Note(Level::Info, "#8 is now called \"here\".".into()));
    assert_eq!(s.queued(), ["three"], "a command is waited for, too");
    s.press("esc");
    assert_eq!((s.sent(), s.app.open.queue.held), (vec![Request::Stop], true));
}

#[test]
fn held_messages_are_sent_before_later_ones() {
    let ask = |text: &str| Request::Ask(text.into());
    let held = || {
        let mut s = open(80, 24);
        busy(&mut s);
        s.type_text("one").press("enter").type_text("two").press("enter esc").notify(Notice::Activity(Activity::Idle));
        assert_eq!((s.sent(), s.app.open.queue.held), (vec![Request::Stop], true));
        s
    };
    let mut s = held();
    s.type_text("three").press("enter").notify(Notice::Activity(Activity::Idle));
    assert_eq!((s.sent(), s.queued()), (vec![ask("one")], vec!["two", "three"]));
    for next in ["two", "three"] {
        s.notify(Notice::Activity(Activity::Idle));
        assert_eq!(s.sent(), [ask(next)]);
    }
    // The first of them is the first, though it was changed.
    let mut s = held();
    s.press("ctrl-x").type_text("!").press("enter");
    assert_eq!((s.sent(), s.queued()), (vec![ask("one!")], vec!["two"]));
    // What was typed in its place is not.
    let mut s = held();
    s.press("ctrl-x ctrl-u").type_text("three").press("enter").notify(Notice::Activity(Activity::Idle));
    assert_eq!((s.sent(), s.queued()), (vec![ask("two")], vec!["three"]));
}

#[test]
fn requests_sent_before_the_interface_began_are_not_its_own() {
    let mut s = Stage::with(UiConfig { sent_before: 2, ..UiConfig::default() }, 80, 24).ready(demo());
    s.type_text("one").press("enter").type_text("two").press("enter").effects.clear();
    s.event(Event::Notice(Notice::Acknowledged(2)));
    assert_eq!(s.queued(), ["two"]);
    s.event(Event::Notice(Notice::Acknowledged(4)));
    assert_eq!(s.sent(), [Request::Ask("two".into())]);
}

#[test]
fn ctrl_x_takes_the_first_queued_message_and_keeps_the_draft() {
    let mut s = open(80, 24);
    busy(&mut s);
    s.type_text("first").press("enter");
    s.type_text("draft").press("ctrl-x");
    assert_eq!(s.app.open.composer.text(), "first");
    assert_eq!(s.queued(), ["draft"]);
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
    assert_eq!(s.app.open.composer.text(), "a\nb\nc\nd\n");
    assert_eq!(s.sent(), []);
}

#[test]
fn up_walks_through_prompts_and_back_to_the_draft() {
    let mut s = open(80, 24);
    s.type_text("one").press("enter");
    s.notify(Notice::Activity(Activity::Idle));
    s.type_text("draft").press("up");
    assert_eq!(s.app.open.composer.text(), "one");
    s.press("down");
    assert_eq!(s.app.open.composer.text(), "draft");
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
    assert_eq!(s.app.open.composer.text(), "/undo two");
    assert_eq!(s.sent(), []);
}

#[test]
fn tab_completes_commands_and_paths() {
    let mut s = open(80, 24);
    s.type_text("/loa").press("tab");
    assert_eq!(s.app.open.composer.text(), "/load ");
    s.type_text("~/my\\ b").press("tab");
    assert_eq!(s.effects.pop(), Some(Effect::ListPaths("~/my b".into())));
    s.event(Event::Paths { prefix: "~/my b".into(), found: vec!["~/my book.txt".into(), "~/my books/".into()] });
    assert_eq!(s.app.open.composer.text(), "/load ~/my\\ book");
    s.press("down tab");
    assert_eq!(s.app.open.composer.text(), "/load ~/my\\ books/");
    s.event(Event::Paths { prefix: "old".into(), found: vec!["older".into()] });
    assert_eq!(s.app.open.composer.text(), "/load ~/my\\ books/", "a late answer changes nothing");
}

#[test]
fn a_command_after_undo_is_a_command_and_the_question_is_kept() {
    let undone = |text: &str| Notice::Input { text: text.into(), editing: None };
    let mut s = open(80, 24);
    s.notify(undone("Who tells Pierre?"));
    assert_eq!(s.app.open.composer.text(), "Who tells Pierre?", "ready to be sent again or changed");
    s.type_text("/docs").press("enter");
    assert_eq!(s.sent(), [Request::Docs]);
    s.press("ctrl-y");
    assert_eq!(s.app.open.composer.text(), "Who tells Pierre?");
    let mut s = open(80, 24);
    s.notify(undone("Who?")).type_text(" And why, and/or when?").press("enter");
    assert_eq!(s.sent(), [Request::Ask("Who? And why, and/or when?".into())], "a slash in a question is text");
}

#[test]
fn an_undone_question_does_not_overwrite_a_draft() {
    let mut s = open(80, 24);
    s.type_text("half a new one").notify(Notice::Input { text: "the old one".into(), editing: None });
    assert_eq!(s.app.open.composer.text(), "half a new one");
    assert!(s.screen().contains("Ctrl-Y"));
    s.press("ctrl-u ctrl-y");
    assert_eq!(s.app.open.composer.text(), "half a new one", "the last cut comes first");
}

#[test]
fn cutting_to_the_start_again_and_again_reaches_the_first_line() {
    let mut s = open(80, 24);
    s.type_text("one\ntwo\nthree").press("ctrl-u");
    assert_eq!(s.app.open.composer.text(), "one\ntwo\n");
    s.press("ctrl-u ctrl-u");
    assert_eq!(s.app.open.composer.text(), "one\n");
    s.press("ctrl-u ctrl-u ctrl-u");
    assert_eq!(s.app.open.composer.text(), "");
}

#[test]
fn enter_runs_the_highlighted_command_or_completes_one_that_needs_more() {
    let mut s = Stage::new(80, 24).ready(demo());
    s.type_text("/sea").press("enter");
    assert!(s.sent().is_empty(), "/search needs words");
    assert_eq!(s.app.open.composer.text(), "/search ");
    s.press("ctrl-u").type_text("/ses").press("enter");
    assert_eq!(s.sent(), [Request::Sessions]);
    s.type_text("/un").press("down enter");
    assert_eq!(s.sent(), [Request::Undo(1)]);
    // A slash alone lists the commands.
    s.notify(Notice::Activity(Activity::Idle)).press("ctrl-u").type_text("/").press("enter");
    assert!(s.app.open.composer.text() == "/" && s.app.popup.is_some() && s.effects.is_empty(), "{:?}", s.effects);
}

#[test]
fn an_unknown_theme_is_a_refusal() {
    let mut s = open(80, 24);
    s.type_text("/theme mauve").press("enter");
    assert!(s.effects.contains(&Effect::Theme("mauve".into())), "{:?}", s.effects);
    s.event(Event::Theme(Err("no theme mauve".into())));
    assert_eq!((s.app.open.composer.text(), s.app.refusal.as_deref()), ("/theme mauve", Some("no theme mauve.")));
    assert!(
        s.app.open.transcript.window().is_empty()
            || !format!("{:?}", s.app.open.transcript.entries()).contains("mauve")
    );
}

#[test]
fn a_name_that_only_resembles_a_command_is_answered_and_stays() {
    let mut s = Stage::new(80, 24).ready(demo());
    s.type_text("/reset").press("enter");
    assert!(s.sent().is_empty() && s.app.open.composer.text() == "/reset", "{}", s.app.open.composer.text());
    assert!(s.screen().contains("/new starts a new session"), "{}", s.screen());
    s.press("ctrl-u").type_text("/clear").press("enter");
    assert_eq!(s.sent(), [Request::New(None)]);
}

#[test]
fn screen_settings_apply_at_once_and_are_listed() {
    let mut s = Stage::new(80, 24).ready(demo());
    s.type_text("/set theme light").press("enter");
    assert_eq!(s.effects, [Effect::Theme("light".into()), Effect::Repaint]);
    s.event(Event::Theme(Ok(Palette::built_in(ThemeName::Light, false))));
    // What a session is set to is what the page says.
    let mut meters = s.app.meters.clone();
    meters.settings = vec![("temperature", "0.25".into())];
    s.notify(Notice::Meters(meters));
    s.type_text("/settings temperature").press("enter");
    let page = s.screen();
    let row = page.lines().find(|l| l.contains("sampling.temperature")).unwrap();
    assert!(row.contains("* sampling.temperature") && row.contains("0.25"), "{page}");
    s.press("esc");
    s.type_text("/settings ui.theme").press("enter");
    let row = s.screen().lines().find(|l| l.contains("* ui.theme ")).map(str::to_owned);
    assert!(row.is_some_and(|row| row.contains("light")), "{}", s.screen());
    // Enter puts the command that changes the setting into the input.
    s.press("enter");
    assert_eq!(s.app.open.composer.text(), "/set theme light");
    s.press("ctrl-u").type_text("/settings sampling.temperature").press("enter enter");
    assert_eq!(s.app.open.composer.text(), "/set temperature 0.25");
    s.press("ctrl-u").type_text("/settings ui.max_width").press("enter enter");
    assert!(s.app.open.composer.text().starts_with("/set ui.max_width 110"), "{}", s.app.open.composer.text());
    s.press("ctrl-u").type_text("/help clipboard").press("enter");
    assert!(s.screen().contains("/copy") && s.screen().contains("clipboard.method"), "{}", s.screen());
    assert!(s.sent().is_empty());
}

#[test]
fn tab_takes_an_offered_question() {
    use sala_chat::text::sample::{PATH, QUESTIONS};
    let mut s = Stage::new(80, 24).ready(demo());
    s.press("tab enter");
    let loads = |request: &Request| matches!(request, Request::Load { paths, .. } if *paths == [PATH]);
    let sent = s.sent();
    assert!(sent.iter().any(loads) && sent.len() == 1, "{sent:?}");
    s.notify(Notice::Activity(Activity::Busy { what: "opening files".into() }));
    s.notify(Notice::Added(message(1, Role::Document, "")));
    s.notify(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [Request::Ask(QUESTIONS[0].into())]);
    // Where they are not drawn they are not there.
    let mut low = Stage::new(60, 15).ready(demo());
    let screen = low.screen();
    assert!(QUESTIONS.iter().all(|question| screen.contains(question)), "{screen}");
    low.notify(Notice::Note(Level::Warn, "A note.".into())).notify(Notice::Note(Level::Warn, "Another one.".into()));
    let screen = low.screen();
    assert!(screen.contains("/help lists commands.") && !screen.contains(QUESTIONS[0]), "{screen}");
    low.press("tab");
    assert_eq!(low.app.open.composer.text(), "");
    // A real model gets no such offers.
    let mut real = Stage::new(80, 24).ready(gpu());
    real.type_text("2");
    assert_eq!(real.app.open.composer.text(), "2");
}

#[test]
fn the_tour_waits_for_each_answer_and_escape_leaves_it() {
    use sala_chat::tui::tour::Tour;
    let mut s = Stage::new(80, 24);
    s.app.tour = Some(Tour::default());
    let mut s = s.ready(demo());
    assert_eq!(s.app.open.composer.text(), "/load sample:lighthouse.md");
    s.press("enter");
    assert!(matches!(s.sent().as_slice(), [Request::Load { .. }]));
    assert_eq!(s.app.open.composer.text(), "", "the next step waits until this one is done");
    busy(&mut s);
    s.notify(Notice::Activity(Activity::Idle));
    assert_eq!(s.app.open.composer.text(), "Who built the lighthouse?");
    s.press("f1");
    assert!(s.app.overlay.is_some());
    s.press("enter");
    assert!(s.app.overlay.is_none() && s.sent().is_empty(), "a page does not hold whoever goes on");
    s.press("ctrl-c").wait(2_500).press("enter");
    assert_eq!(s.app.open.composer.text(), "Who built the lighthouse?", "a cleared step comes back with Enter");
    s.press("esc");
    assert_eq!((s.app.tour.is_none(), s.app.open.composer.text()), (true, ""));
    assert!(s.screen().contains("You left the tour"));
}

#[test]
fn a_mistyped_command_on_the_tour_stays_in_the_input_below_its_step() {
    use sala_chat::tui::tour::Tour;
    let mut s = Stage::new(80, 24);
    s.app.tour = Some(Tour::default());
    let mut s = s.ready(demo());
    s.press("enter");
    busy(&mut s);
    s.notify(Notice::Activity(Activity::Idle));
    let step = s.app.tour.as_ref().and_then(Tour::text);
    s.press("ctrl-u").type_text("/lok").press("enter");
    assert_eq!(s.app.open.composer.text(), "/lok");
    assert_eq!(s.app.tour.as_ref().and_then(Tour::text), step);
    s.notify(Notice::Activity(Activity::Idle));
    assert_eq!(s.app.open.composer.text(), "/lok", "the step is not offered over it");
}

#[test]
fn letters_move_where_vim_keys_are_wanted_and_type_elsewhere() {
    let config = UiConfig {
        ui: sala_chat::config::settings::UiConfig { vim_keys: true, ..Default::default() },
        ..UiConfig::default()
    };
    let mut s = conversing(Stage::with(config.clone(), 80, 24));
    let number = |s: &Stage| s.app.open.transcript.selected_message().map(|(n, _)| n);
    s.press("ctrl-p");
    let last = number(&s).unwrap();
    s.type_text("k");
    assert!(number(&s).unwrap() < last);
    s.type_text("g");
    assert_eq!(number(&s), Some(1));
    s.type_text("G");
    assert_eq!(number(&s), Some(last));
    // In the lists where letters do something else, too.
    s.press("esc").notify(Notice::Timeline(timeline()));
    let at = |s: &Stage| match &s.app.overlay {
        Some(Overlay::List(view)) => Some(view.selected_index()),
        _ => None,
    };
    s.type_text("k");
    assert!(at(&s) < Some(timeline().len() - 1));
    s.type_text("G");
    assert_eq!(at(&s), Some(timeline().len() - 1));
    let mut s = conversing(Stage::with(config, 80, 24));
    s.notify(super::pages::plan(1_048_576)).press("e").type_text("G g ").press("enter");
    let files = vec![1, 2, 3];
    assert_eq!(s.sent(), [Request::ChooseFiles { question: 1, files }]);
    let mut plain = open(80, 24);
    plain.press("ctrl-p").type_text("k");
    assert_eq!(plain.app.open.composer.text(), "k", "without the option a letter is typed");
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
    let mut s = open(80, 24);
    s.type_text("/set --save temperature 5").press("enter");
    assert!(s.screen().contains("temperature must be 0 to 2 (got 5)."), "{}", s.screen());
}
