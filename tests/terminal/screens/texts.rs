//! The contents of the screen, and what holds for every text, size and order of events.

use proptest::prelude::*;
use sala_chat::core::transcript::{MessageId, Role};
use sala_chat::runtime::protocol::{Activity, Notice, Request, SessionView};
use sala_chat::tui::options::UiConfig;
use sala_chat::tui::{App, Effect, Event, update};

use super::stage::*;

#[test]
fn selected_message_keys() {
    let mut s = open(80, 24);
    s.press("ctrl-p y");
    assert!(matches!(s.effects.last(), Some(Effect::Copy(text)) if text.starts_with("It is **Natasha**")));
    s.press("up e");
    assert_eq!(s.sent(), [Request::EditOpen(Some(2))]);
    s.notify(Notice::Input { text: "old text".into(), editing: Some(MessageId(2)) });
    s.type_text("!").press("enter");
    assert_eq!(s.sent(), [Request::EditDone { message: MessageId(2), text: "old text!".into() }]);
    s.notify(Notice::Activity(Activity::Idle));
    s.press("ctrl-p f");
    assert_eq!(s.sent(), [Request::Fork { at: Some(3), name: None }]);
    s.press("ctrl-p").type_text("question");
    assert_eq!(s.app.open.composer.text(), "question", "other keys are typed");
}

#[test]
fn copies_of_blocks_and_messages() {
    let mut s = open(80, 24);
    s.type_text("/copy b1").press("enter");
    assert_eq!(s.effects.pop(), Some(Effect::Copy("Book XV, ch. 16  \"the door opened, and a thin face ...\"".into())));
    s.type_text("/copy b2").press("enter");
    assert!(s.screen().contains("the answer has no code block b2"));
}

#[test]
fn closed_aside_stays_closed_and_stops_the_model() {
    let mut s = open(80, 24);
    let part = |text: &str, done| Notice::Aside { question: "q".into(), text: text.into(), done };
    s.type_text("/aside q").press("enter");
    busy(&mut s);
    s.notify(part("a", None));
    s.press("esc");
    assert_eq!(s.sent(), [Request::Stop]);
    s.notify(part("a b", None)).notify(part("a b c", Some(sala_chat::core::transcript::Finish::Stopped)));
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
    s.notify(Notice::Note(sala_chat::runtime::protocol::Level::Info, "old note".into()));
    s.type_text("/undo").press("enter");
    s.notify(Notice::Note(sala_chat::runtime::protocol::Level::Info, "Went back 1 exchange".into()));
    let mut view = conversation();
    view.messages.truncate(1);
    s.notify(Notice::Session(view));
    let screen = s.screen();
    assert!(screen.contains("Went back 1 exchange") && !screen.contains("old note"), "{screen}");
}

#[test]
fn a_view_that_only_grew_keeps_the_place() {
    let mut s = open(80, 24);
    s.press("pgup");
    s.event(Event::Frame);
    let before = s.app.open.transcript.window().first().copied();
    let mut view = conversation();
    view.messages.push(message(4, Role::User, "And then?"));
    s.notify(Notice::Session(view.clone())).event(Event::Frame);
    assert_eq!(s.app.open.transcript.window().first().copied(), before);
    assert_eq!(s.app.open.transcript.news_below(), Some(true));
    view.messages.truncate(1);
    s.notify(Notice::Session(view));
    assert_eq!(s.app.open.transcript.news_below(), None, "after an undo the end is shown");
}

/// An answer that is being written, as it grows; nothing follows it.
fn written(s: &mut Stage, text: &str) -> Option<bool> {
    s.notify(Notice::Delta { message: MessageId(4), thinking: false, text: text.into() }).event(Event::Frame);
    s.app.open.transcript.news_below()
}

fn resized(s: &mut Stage, width: u16, height: u16) -> Option<bool> {
    s.event(Event::Resize { width, height }).event(Event::Frame);
    s.app.open.transcript.news_below()
}

#[test]
fn only_new_text_is_new_below_at_any_width() {
    let mut s = open(160, 50);
    s.notify(Notice::Finished(answer(4, &"many words in a row ".repeat(300)))).event(Event::Frame);
    s.press("pgup");
    assert_eq!(resized(&mut s, 160, 50), Some(false));
    assert_eq!(resized(&mut s, 60, 15), Some(false), "{}", s.screen());

    // In the middle of a line, which takes more rows where there is less room.
    let mut s = open(160, 15);
    s.notify(Notice::Added(message(4, Role::Assistant, "")));
    assert_eq!(written(&mut s, &"as far as it was written ".repeat(5)), None);
    s.press("pgup");
    assert_eq!(resized(&mut s, 60, 15), Some(false), "{}", s.screen());
    assert_eq!(written(&mut s, "\n\nand\n\non"), Some(true), "{}", s.screen());
}

#[test]
fn new_text_in_view_is_not_below() {
    let mut s = open(60, 15);
    s.notify(Notice::Added(message(4, Role::Assistant, "")));
    written(&mut s, "It begins.");
    s.press("pgup");
    assert!(written(&mut s, "\n\nIt goes on.\n\nAnd on.") == Some(true), "{}", s.screen());
    assert_eq!(resized(&mut s, 160, 50), Some(false), "{}", s.screen());
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
fn what_was_copied_is_a_hint_until_the_next_key() {
    let mut s = open(80, 24);
    s.press("ctrl-p ctrl-p").press("pgup").press("y");
    s.event(Event::Copied(Ok("Copied 66 characters; also in /home/x/copy.txt".into())));
    let screen = s.screen();
    assert!(screen.contains("Copied 66 characters") && !screen.contains("copy.txt"), "{screen}");
    s.wait(4_100);
    assert!(!s.screen().contains("Copied"));
    s.event(Event::Copied(Ok("Copied 66 characters".into())));
    assert!(s.screen().contains("Copied"));
    s.press("ctrl-p");
    assert!(!s.screen().contains("Copied"));
}

#[test]
fn the_marker_of_a_frozen_view_has_a_row_of_its_own() {
    let mut s = open(80, 24);
    s.press("pgup");
    let screen = s.screen();
    let lines: Vec<&str> = screen.lines().collect();
    let marker = lines.iter().position(|l| l.contains("goes to the end")).unwrap();
    let (entry, row) = *s.app.open.transcript.window().last().unwrap();
    let last = s.app.open.transcript.entries()[entry].line(row).map_or(String::new(), |l| l.row.text());
    assert!(lines[marker - 1].ends_with(last.trim_end()), "{screen}");
}

#[test]
fn a_question_is_shown_as_it_was_written() {
    let mut s = open(80, 24);
    let text = "2*3*4, __name__ == \"__main__\", &amp;?\nsecond line\n    far in\n```rust\nlet a = b*c*d;\n```";
    s.notify(Notice::Added(message(4, Role::User, text)));
    let screen = s.screen();
    for line in
        ["│ 2*3*4, __name__ == \"__main__\", &amp;?\n", "│ second line\n", "│     far in\n", "  let a = b*c*d;\n"]
    {
        assert!(screen.contains(line), "{line}{screen}");
    }
    // What is looked for is found in its row.
    s.press("ctrl-f").type_text("far in");
    let hit = s.app.open.find.as_ref().and_then(|f| f.here()).unwrap();
    let row = s.app.open.transcript.row_of_hit(hit).unwrap();
    let shown = s.app.open.transcript.entries()[hit.entry].line(row).map_or(String::new(), |l| l.row.text());
    assert_eq!(shown, "    far in");
}

#[test]
fn a_pasted_question_is_folded_until_it_is_opened() {
    let mut s = open(80, 24);
    let pasted: String = (1..=41).map(|i| format!("- line {i}\n")).collect();
    s.notify(Notice::Added(message(4, Role::User, &format!("Compare this:\n\n{pasted}\nwith the book."))));
    let screen = s.screen();
    assert!(screen.contains("Compare this") && screen.contains("with the book.") && screen.contains("more rows"));
    assert!(!screen.contains("line 20"), "{screen}");
    s.press("ctrl-p enter").screen();
    assert!(s.app.open.transcript.entries().iter().map(|e| e.height()).sum::<usize>() > 50);
    s.press("enter");
    assert!(s.screen().contains("more rows"), "and folded again");
}

#[test]
fn a_long_prompt_that_is_read_is_not_called_answering() {
    let mut s = open(80, 24);
    s.notify(Notice::Added(message(4, Role::User, "And?"))).notify(Notice::Added(message(5, Role::Assistant, "")));
    s.notify(Notice::Activity(Activity::Reading(sala_chat::runtime::protocol::ReadingProgress {
        done: 8_000,
        total: 32_088,
        ..Default::default()
    })));
    let screen = s.screen();
    assert!(screen.contains("reading 32,088 tokens  24%") && !screen.contains("answering"), "{screen}");
}

#[test]
fn the_panel_and_the_header_follow_the_tree() {
    use sala_chat::runtime::protocol::TreeView;
    let mut s = open(160, 50);
    let mut rows = timeline();
    rows[0].title = "a new turn".into();
    s.notify(Notice::Tree(TreeView { branch: (4, 4), timeline: rows, documents: Vec::new() }));
    let screen = s.screen();
    assert!(screen.contains("branch 4/4") && screen.contains("a new turn"), "{screen}");
}

/// Old layout on a new buffer: between a resize and the moment it is acted on.
#[test]
fn frame_of_another_size_is_clipped() {
    let mut s = open(160, 50);
    s.event(Event::Frame);
    let mut terminal = ratatui::Terminal::new(ratatui::backend::TestBackend::new(70, 20)).unwrap();
    terminal.draw(|f| sala_chat::tui::view::draw(&s.app, f)).unwrap();
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
    app.open
        .transcript
        .entries()
        .iter()
        .flat_map(|e| (0..e.height()).map(|i| e.line(i).map(|l| l.row.text()).unwrap_or_default()))
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
            prop_assert!(sala_chat::tui::cells::width(&line) <= 77 || line.starts_with(' '), "{:?}", line);
        }
    }

    #[test]
    fn screens_never_panic_and_the_caret_is_at_the_text(picks in proptest::collection::vec(0usize..100, 0..40), typed in "[a-z 日👍/\n]{0,80}", width in 20u16..180, height in 5u16..60, scroll in -30isize..30) {
        let mut s = Stage::new(width, height).ready(demo());
        s.notify(Notice::Session(SessionView { messages: vec![message(1, Role::User, "q"), answer(2, &text_of(&picks))], ..SessionView::default() }));
        s.event(Event::Paste(typed.clone()));
        s.event(Event::Wheel(scroll));
        let mut terminal = s.terminal();
        if width >= 60 && height >= 15 {
            let at = terminal.get_cursor_position().unwrap();
            let area = sala_chat::tui::layout::regions(&s.app).composer;
            prop_assert!(at.y >= area.y && at.y < area.y + area.height && at.x >= 2);
            // The cell before the caret holds the end of the text's last row.
            let cells = usize::from(width) - 2;
            let (_, column) = s.app.open.composer.caret(cells);
            prop_assert_eq!(usize::from(at.x), column + 2);
        }
    }

    #[test]
    fn a_new_width_and_back_keeps_the_first_line(picks in proptest::collection::vec(0usize..100, 20..80), up in 1isize..40, other in 60u16..200) {
        let mut s = Stage::new(80, 24).ready(demo());
        let messages = (0..6).map(|i| answer(i + 1, &format!("{} {}", i, text_of(&picks)))).collect();
        s.notify(Notice::Session(SessionView { messages, ..SessionView::default() }));
        s.event(Event::Wheel(-up));
        s.event(Event::Frame);
        let before = s.app.open.transcript.window().first().copied();
        s.event(Event::Resize { width: other, height: 24 });
        s.event(Event::Frame);
        let between = s.app.open.transcript.window().first().map(|w| w.0);
        prop_assert_eq!(between, before.map(|w| w.0), "the same message stays on top");
        s.event(Event::Resize { width: 80, height: 24 });
        s.event(Event::Frame);
        prop_assert_eq!(s.app.open.transcript.window().first().copied(), before);
    }
}

#[test]
fn another_code_theme_colours_what_is_on_screen_again() {
    let mut s = open(80, 24);
    s.notify(Notice::Added(message(3, Role::Assistant, "```rust\nfn main() {}\n```")));
    s.screen();
    let highlights = |s: &mut Stage| s.effects.drain(..).filter(|e| matches!(e, Effect::Highlight { .. })).count();
    assert_eq!(highlights(&mut s), 1);
    s.screen();
    assert_eq!(highlights(&mut s), 0);
    s.type_text("/set code_theme nord").press("enter");
    assert!(s.effects.contains(&Effect::CodeTheme("nord".into())));
    s.event(Event::CodeTheme(Ok("nord".into()))).screen();
    assert_eq!(highlights(&mut s), 1);
    s.event(Event::CodeTheme(Err("no code theme nrod: did you mean nord?".into())));
    assert!(s.screen().contains("did you mean nord?") && s.app.config.ui.code_theme == "nord");
    s.type_text("/set code_theme").press("enter");
    assert!(s.screen().contains("base16-ocean-dark"), "{}", s.screen());
}
