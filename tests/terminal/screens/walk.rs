//! What a new user meets in the first minutes: refusals, small windows, held messages, long words.

use sala_chat::config::settings::Loaded;
use sala_chat::core::transcript::{MessageId, Role};
use sala_chat::runtime::protocol::{Activity, Choice, Level, Notice, Request};
use sala_chat::tui::options::UiConfig;
use sala_chat::tui::{Effect, Event};

use super::stage::*;
use super::{SIZES, picture};

#[test]
fn a_small_window_has_the_transcript_and_the_input() {
    for (width, height) in [(58, 14), (40, 12), (30, 8)] {
        let mut s = open(width, height);
        s.type_text("And then?");
        picture(&format!("small_{width}x{height}"), &mut s);
        s.press("enter");
        assert_eq!(s.sent(), [Request::Ask("And then?".into())]);
        // Pages, lists and questions fit in, too.
        s.notify(Notice::Timeline(timeline()));
        assert!(s.screen().contains("Timeline"), "{}", s.screen());
        s.press("esc ctrl-d");
        assert!(s.screen().contains("quit"), "{}", s.screen());
    }
}

#[test]
fn a_page_that_typing_closed_leaves_no_note_for_good() {
    let mut s = open(80, 24);
    s.press("esc esc").notify(Notice::Timeline(timeline())).type_text("zebra");
    assert_eq!(s.app.open.composer.text(), "zebra");
    assert!(s.screen().contains("Shift-Tab shows: Timeline"));
    s.wait(9_000);
    let screen = s.screen();
    assert!(!screen.contains("shows:") && screen.contains("F1 help"), "{screen}");
    s.press("shift-tab");
    assert!(s.screen().contains("Timeline"));
}

#[test]
fn a_refused_command_stays_and_its_reason_clears_on_a_key() {
    for (width, height) in SIZES {
        let mut s = open(width, height);
        let entries = s.app.open.transcript.entries().len();
        for (line, level) in [("/load nothing.txt", Level::Warn), ("/goto nowhere", Level::Error)] {
            s.press("end ctrl-u").type_text(line).press("enter");
            assert_eq!(s.sent().len(), 1);
            let received = s.received;
            s.notify(Notice::Note(level, "This session is open to view only.".into()));
            s.event(Event::Notice(Notice::Acknowledged(received)));
            assert_eq!(s.app.open.composer.text(), line);
            assert!(s.screen().contains("!! This session is open to view only."), "{}", s.screen());
            s.press("left");
            assert!(!s.screen().contains("view only"), "{}", s.screen());
        }
        assert_eq!(s.app.open.transcript.entries().len(), entries, "the transcript is for the conversation");
    }
}

#[test]
fn a_warning_about_an_executed_command_stays_visible() {
    let mut s = open(80, 24);
    s.type_text("/load a.txt").press("enter");
    let received = s.received;
    s.notify(Notice::Note(Level::Warn, "a.txt: read as windows-1252".into()));
    s.notify(Notice::Added(document(9, "a.txt", 900))).event(Event::Notice(Notice::Acknowledged(received)));
    assert_eq!(s.app.open.composer.text(), "");
    s.press("left");
    assert!(s.screen().contains("read as windows-1252"));
}

#[test]
fn a_local_command_that_fails_stays_in_the_input() {
    let mut s = Stage::new(80, 24).ready(gpu());
    for line in ["/copy", "/copy #9", "/help xyzzy", "/split", "/lod"] {
        s.press("end ctrl-u").type_text(line).press("enter");
        assert_eq!(s.app.open.composer.text(), line);
        assert!(s.screen().contains("!! "), "{line}: {}", s.screen());
    }
}

#[test]
fn held_messages_left_unsent_are_named() {
    let mut s = Stage::new(80, 24).ready(gpu());
    s.notify(Notice::Session(opened(1))).effects.clear();
    busy(&mut s);
    s.type_text("a held question").press("enter esc");
    s.notify(Notice::Activity(Activity::Idle));
    assert_eq!(s.queued(), ["a held question"]);
    s.type_text("/new").press("enter").notify(Notice::Session(opened(3)));
    let screen = s.screen();
    assert!(screen.contains("1 held message left in \"war-and-peace\"; Alt-1 goes back."), "{screen}");
}

#[test]
fn a_message_of_another_branch_has_its_own_timeline_number() {
    let mut s = open(80, 24);
    let mut rows = timeline();
    (rows[3].number, rows[3].line, rows[3].message) = (3, 2, MessageId(7));
    s.notify(Notice::Timeline(rows));
    let screen = s.screen();
    assert!(screen.matches("#3 ").count() == 1 && screen.contains("#3.2 "), "{screen}");
}

#[test]
fn in_a_small_window_lines_are_cut_between_words_and_marked() {
    for (width, height) in [(30, 8), (40, 12)] {
        let mut s = open(width, height);
        s.type_text("/settings").press("enter");
        let screen = s.screen();
        assert!(screen.contains("Esc closes") && screen.contains("... "), "{screen}");
        s.press("esc end ctrl-u").type_text(&format!("/help {}", "xyzzyqqq ".repeat(40))).press("enter");
        let screen = s.screen();
        assert!(screen.contains("!! ") && screen.contains("..."), "{screen}");
        s.press("end ctrl-u").type_text("And then?");
        let screen = s.screen();
        assert!(screen.contains("newline") && !screen.contains("command"), "{screen}");
    }
}

#[test]
fn a_mistake_in_the_settings_file_is_a_note_at_the_start() {
    let mut settings = Loaded::default();
    settings.warnings.push("c.toml: unknown key ui.tehme".into());
    let mut s = Stage::with(UiConfig { settings, ..UiConfig::default() }, 80, 24).ready(demo());
    assert!(s.screen().contains("!  c.toml: unknown key ui.tehme"), "{}", s.screen());
}

#[test]
fn help_is_two_columns_with_a_filter() {
    for (width, height) in SIZES {
        let mut s = open(width, height);
        s.press("f1").type_text("/clip");
        let screen = s.screen();
        assert!(screen.contains("> clip") && screen.contains("/copy"), "{screen}");
        assert!(!screen.contains("/undo") && !screen.contains("Documents"), "{screen}");
        s.press("enter");
        assert_eq!(s.app.open.composer.text(), "/copy ");
        s.press("ctrl-u").type_text("/help word").press("enter");
        let screen = s.screen();
        let does = |line: &&str| line.contains("word left") || line.contains("cut the word");
        let columns: Vec<Option<usize>> =
            screen.lines().filter(does).map(|l| l.find("word left").or(l.find("cut the word"))).collect();
        assert!(columns.len() == 2 && columns[0] == columns[1], "{screen}");
        assert!(screen.contains("Alt-B"), "keys are found, too: {screen}");
        s.press("esc").type_text("/keys").press("enter").type_text("panel");
        let screen = s.screen();
        assert!(screen.contains("Ctrl-O") && screen.contains("Enter or Esc closes"), "{screen}");
    }
}

#[test]
fn a_bare_load_completes_a_path() {
    for (width, height) in SIZES.into_iter().chain([(30, 8)]) {
        let mut s = open(width, height);
        s.type_text("/load").press("enter");
        assert_eq!(s.effects.pop(), Some(Effect::ListPaths(String::new())));
        let found = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect::<Vec<String>>();
        s.event(Event::Paths { prefix: String::new(), found: found(&["books/", "my notes.txt"]) });
        let screen = s.screen();
        assert!(screen.contains("books/") && screen.contains("my\\ notes.txt"), "{screen}");
        // A folder shows what it contains.
        s.press("enter");
        assert_eq!(s.effects.pop(), Some(Effect::ListPaths("books/".into())));
        s.event(Event::Paths { prefix: "books/".into(), found: found(&["books/my notes.txt", "books/war.txt"]) });
        s.press("down enter enter");
        let load = Request::Load { paths: vec!["books/war.txt".into()], options: Default::default() };
        assert_eq!((s.sent(), s.app.popup.is_none()), (vec![load], true));
        // A folder without files says so.
        s.notify(Notice::Activity(Activity::Idle)).type_text("/load").press("enter");
        s.event(Event::Paths { prefix: String::new(), found: Vec::new() });
        assert!(s.screen().contains("Nothing to complete"), "{}", s.screen());
    }
}

#[test]
fn sessions_are_renamed_pinned_deleted_sorted_and_filtered_in_their_list() {
    for (width, height) in SIZES.into_iter().chain([(30, 8)]) {
        let mut s = open(width, height);
        let mut rows = super::pages::sessions();
        (rows[0].updated_ms, rows[0].tokens) = (rows[0].updated_ms + 1, rows[0].tokens + 1);
        s.notify(Notice::Sessions(rows));
        let first = |s: &mut Stage| s.screen().lines().find(|l| l.contains(" > ")).map(str::to_owned).unwrap();
        let by_date = first(&mut s);
        assert!(s.screen().contains("Sessions by date"), "{}", s.screen());
        s.type_text("nothing").press("ctrl-u");
        assert_eq!(first(&mut s), by_date);
        s.press("ctrl-s");
        assert!(s.screen().contains("Sessions by name"), "{}", s.screen());
        s.press("ctrl-s");
        assert!(s.screen().contains("Sessions by tokens") && first(&mut s).contains("war-and-peace"));
        s.press("ctrl-s");
        assert_eq!(first(&mut s), by_date);
        // The list is sent again after a pin, and the same row stays selected.
        s.press("ctrl-s f3");
        assert_eq!(s.sent(), [Request::Pin(Some("war-and-peace".into())), Request::Sessions]);
        let mut rows = super::pages::sessions();
        (rows[0].pinned, rows[0].title) = (true, "(pinned) Who?".into());
        rows[2].here = true;
        s.notify(Notice::Activity(Activity::Idle)).notify(Notice::Sessions(rows));
        assert!(s.screen().contains("Sessions by name") && first(&mut s).contains("war-and-peace"), "{}", s.screen());
        s.press("ctrl-f");
        assert!(s.screen().contains("This folder by name") && first(&mut s).contains("日本語の本"));
        s.press("ctrl-s ctrl-s ctrl-f");
        let keys = s.screen();
        let named = if width < 80 { ["F2", "Esc"].as_slice() } else { &["F2", "F3 pin", "Del", "^S", "^F", "Esc"] };
        assert!(named.iter().all(|key| keys.contains(key)), "{keys}");
        // The list stays open at the same row while a session is deleted or renamed, and is sent again afterwards.
        s.type_text("war").press("delete");
        assert_eq!(s.sent(), [Request::Delete(Some("war-and-peace".into()))]);
        let choices = [('y', "delete"), ('n', "keep")].map(|(key, label)| Choice { key, label: label.into() });
        s.notify(Notice::Question { id: 1, text: "Delete it?".into(), choices: choices.to_vec(), plan: None })
            .press("y");
        assert_eq!(s.sent(), [Request::Choose { question: 1, key: 'y' }]);
        s.notify(Notice::Note(Level::Info, "It is in the trash.".into())).notify(Notice::Activity(Activity::Idle));
        assert_eq!(s.sent(), [Request::Sessions]);
        let mut rows = super::pages::sessions();
        rows.remove(0);
        s.notify(Notice::Sessions(rows.clone())).press("ctrl-u");
        assert!(s.screen().contains("It is in the trash.") && first(&mut s).contains("contract"), "{}", s.screen());
        // The name belongs to the session that F2 was pressed on, whatever the wheel does.
        s.press("end f2").event(Event::Wheel(-1)).event(Event::Paste("a boox\nmore".into()));
        s.press("backspace").type_text("k");
        // A name that is taken stays in place to be changed.
        s.press("ctrl-u").type_text("contract").press("enter");
        let rename = |name: &str| Request::RenameOther { session: "日本語の本".into(), name: name.into() };
        assert_eq!(s.sent(), [rename("contract")]);
        let refusal = "A session called \"contract\" exists: choose another name.";
        s.notify(Notice::Note(Level::Error, refusal.into())).notify(Notice::Activity(Activity::Idle));
        let screen = s.screen();
        assert!(screen.contains("A session called \"contract") && screen.contains(" new name: contract"), "{screen}");
        assert_eq!(s.sent(), [], "nothing changed");
        s.press("ctrl-u").type_text("a book");
        assert!(s.screen().contains(" new name: a book"), "{}", s.screen());
        s.press("enter");
        assert_eq!(s.sent(), [rename("a book")]);
        s.notify(Notice::Activity(Activity::Idle));
        assert_eq!(s.sent(), [Request::Sessions]);
        rows[1].name = "a book".into();
        s.notify(Notice::Sessions(rows)).press("ctrl-s");
        assert!(s.screen().contains("Sessions by name") && first(&mut s).contains("a book"), "{}", s.screen());
        s.press("f2 esc esc");
        assert!(s.app.overlay.is_none() && s.sent().is_empty() && s.app.open.composer.is_empty());
    }
}

#[test]
fn a_slash_in_the_list_of_sessions_is_a_search_in_texts_and_says_so() {
    for (width, height) in SIZES {
        let mut s = open(width, height);
        s.notify(Notice::Sessions(super::pages::sessions())).type_text("/herring");
        let screen = s.screen();
        for words in ["search all texts: /herring", "Enter searches the messages of all sessions", "Enter searches   "]
        {
            assert!(screen.contains(words), "{screen}");
        }
        assert!(!screen.contains("contract"), "{screen}");
        s.press("enter");
        assert_eq!(s.sent(), [Request::Search("herring".into())]);
    }
    let mut s = open(80, 24);
    s.notify(Notice::Sessions(super::pages::sessions())).type_text("/new").press("ctrl-u");
    assert!(s.screen().contains("contract") && s.sent().is_empty(), "{}", s.screen());
}

#[test]
fn a_note_ends_with_the_next_key_and_with_its_session() {
    let mut s = open(80, 24);
    s.press("alt-2");
    assert!(s.screen().contains("No other session is open"), "{}", s.screen());
    s.type_text("x");
    assert!(!s.screen().contains("No other session is open"), "{}", s.screen());
    // A note about text that waits may arrive during typing: it is not gone before it can be read.
    s.notify(Notice::Page { title: "/stats".into(), text: "numbers".into() }).type_text("y");
    assert!(s.screen().contains("Shift-Tab shows: /stats"), "{}", s.screen());
    s.wait(1_000).type_text("z");
    assert!(!s.screen().contains("shows:") && s.screen().contains("Shift-Tab opens the page"), "{}", s.screen());
    let mut s = Stage::new(80, 24).ready(gpu());
    s.notify(Notice::Session(opened(1))).press("ctrl-x");
    assert!(s.screen().contains("Nothing is queued"), "{}", s.screen());
    s.notify(Notice::Session(opened(2)));
    assert!(!s.screen().contains("Nothing is queued"), "{}", s.screen());
}

#[test]
fn a_question_that_is_left_without_an_answer_is_named() {
    let mut s = Stage::new(80, 24).ready(gpu());
    s.notify(Notice::Session(opened(1))).effects.clear();
    s.type_text("/resume mail").press("enter");
    let choices = vec![Choice { key: 'v', label: "view".into() }, Choice { key: '\x1b', label: "cancel".into() }];
    s.notify(Notice::Question { id: 1, text: "\"mail\" is in use.".into(), choices, plan: None });
    s.press("alt-2");
    assert!(s.screen().contains("Answer the question first"), "{}", s.screen());
    s.type_text("hello").press("esc esc ctrl-u").type_text("/new").press("enter");
    s.notify(Notice::Session(opened(3)));
    let screen = s.screen();
    assert!(screen.contains("still asks: \"mail\" is in use. Alt-1 goes back."), "{screen}");
}

#[test]
fn the_idle_status_line_has_model_context_and_saved() {
    let mut s = open(80, 24);
    s.notify(Notice::Activity(Activity::Idle));
    let screen = s.screen();
    let status = screen.lines().rev().nth(2).unwrap();
    assert!(status.contains("MiniCPM-SALA on NVIDIA H200") && status.ends_with("57%   saved 14:01"), "{status}");
    for word in ["accept", "ttft", "VRAM"] {
        assert!(!status.contains(word), "{status}");
    }
}

#[test]
fn pages_break_text_between_words_and_show_no_fences() {
    let mut s = open(60, 15);
    let line = "    41,210  Natasha looked at him with wide open eyes and could not say a single word about it";
    s.notify(Notice::Page { title: "war.txt".into(), text: line.into() });
    let screen = s.screen();
    let words: Vec<&str> = line.split_whitespace().collect();
    for word in words {
        assert!(screen.split_whitespace().any(|w| w == word), "{word} is broken: {screen}");
    }
    s.press("esc").type_text("/keys").press("enter end");
    let screen = s.screen();
    assert!(screen.contains("[keys]") && !screen.contains("```"), "{screen}");
}

#[test]
fn a_question_shows_a_path_whole() {
    let mut s = open(60, 15);
    s.notify(Notice::Added(message(
        9,
        Role::User,
        "Please compare the two long texts in /srv/docs/war-and-peace-part-two",
    )));
    assert!(s.screen().contains("/srv/docs/war-and-peace-part-two"), "{}", s.screen());
}

#[test]
fn a_palette_lists_all_commands_and_puts_one_into_the_input() {
    for (width, height) in SIZES {
        let mut s = open(width, height);
        s.press("alt-p");
        assert!(s.screen().contains("Commands") && s.screen().contains("/load PATH"), "{}", s.screen());
        s.type_text("fork").press("enter");
        assert_eq!((s.app.open.composer.text(), s.app.overlay.is_none()), ("/fork ", true));
        s.press("ctrl-u alt-p").type_text("/stats").press("enter");
        assert_eq!(s.app.open.composer.text(), "/stats");
    }
}
