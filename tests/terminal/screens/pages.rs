//! Pictures of pages, lists and questions.

use sala_chat::core::transcript::MessageId;
use sala_chat::runtime::protocol::{
    Activity, Choice, DocumentRow, LoadPlan, Notice, PlanFile, Request, SearchRow, SessionRow, TreeView,
};

use super::stage::*;
use super::{picture, pictures};

/// The short answer below a document, with what it looked at.
fn looked_at(w: u16, h: u16) -> Stage {
    let mut s = open(w, h);
    let mut short = answer(4, "It is Natasha who breaks it to him: Pierre reads it in her face.");
    short.meta.looked = Some(looked());
    s.notify(Notice::Finished(short));
    s
}

#[test]
fn an_answer_names_the_lines_it_looked_at() {
    pictures("looked", looked_at);
    let mut s = looked_at(80, 24);
    s.type_text("/set look off").press("enter");
    assert!(!s.screen().contains("looked at"));
    // Its line is not copied with the answer, and the passage is by its number.
    let mut s = looked_at(80, 24);
    s.press("ctrl-p").sent();
    s.press("i");
    assert_eq!(s.sent(), [Request::Look { at: Some(4), passage: None }]);
    s.press("2");
    assert_eq!(s.sent(), [Request::Look { at: Some(4), passage: Some(2) }]);
    let text = "    [1] war.txt 41,210-41,262  31%\n      41210  The door opened,\n      41211  and a thin face\n    \n\nMeasured.\n";
    s.notify(Notice::Looked {
        number: 4,
        passages: 3,
        sentence: (0, 0),
        title: "What #4 looked at".into(),
        text: text.into(),
    });
    picture("looked_page_80x24", &mut s);
    s.press("1");
    assert_eq!(s.sent(), [Request::Look { at: Some(4), passage: Some(1) }]);
    // Right steps through its sentences, Left returns to all of it.
    let page = |sentence| {
        let (title, text) = ("What #4 looked at".into(), "x".into());
        Notice::Looked { number: 4, passages: 3, sentence, title, text }
    };
    s.press("right").notify(page((0, 2))).press("right").notify(page((1, 2))).press("right").notify(page((2, 2)));
    let of = |sentence| Request::LookSentence { at: Some(4), sentence };
    assert_eq!(s.press("right").sent(), [of(1), of(2)]);
    assert!(s.screen().contains("Left/Right other sentences"), "{}", s.screen());
    s.press("left").notify(page((1, 2))).press("left");
    assert_eq!(s.sent(), [of(1), Request::Look { at: Some(4), passage: None }]);
    s.press("esc esc").type_text("/copy look 4").press("enter");
    assert!(s.screen().contains("no passage [4]; the answer looked at 3"), "{}", s.screen());
    // No key is named that opens nothing.
    for (passages, sentence, says) in [
        (0, (0, 0), "Up/Down PgUp/PgDn scroll   Esc closes"),
        (0, (0, 2), "Right by sentence   Up/Down"),
        (1, (0, 2), "1 opens the passage   Right"),
    ] {
        let (title, text) = ("What #4 looked at".into(), "x".into());
        s.notify(Notice::Looked { number: 4, passages, sentence, title, text });
        assert!(s.screen().contains(says) && !s.screen().contains("1-9"), "{}", s.screen());
    }
}

#[test]
fn the_context_is_a_map_that_opens_what_was_looked_at() {
    let shown = |w, h| {
        let mut s = looked_at(w, h);
        s.notify(Notice::Tree(TreeView { branch: (1, 1), ..TreeView::default() }));
        s
    };
    pictures("map", |w, h| {
        let mut s = shown(w, h);
        s.type_text("/map").press("enter");
        assert_eq!(s.sent(), [Request::Map]);
        s.notify(Notice::Map(context_map()));
        s
    });
    let mut s = shown(80, 24);
    for (keys, opened) in
        [("enter", Request::Look { at: Some(5), passage: Some(1) }), ("home down enter", Request::Open("#2".into()))]
    {
        s.notify(Notice::Map(context_map()));
        s.press(keys);
        assert_eq!(s.sent(), [opened]);
    }
}

#[test]
fn commands_pop_up_while_they_are_typed() {
    let mut s = open(80, 24);
    s.type_text("/re");
    picture("popup_80x24", &mut s);
    let mut s = open(60, 15);
    s.type_text("/");
    picture("popup_60x15", &mut s);
}

#[test]
fn a_mention_offers_the_conversation_the_library_and_files() {
    for (width, height) in [(80, 24), (160, 50)] {
        let mut s = shelved(width, height);
        s.type_text("Compare @");
        let found = ["src/", "plan.md", "todo.txt"].map(String::from).into();
        s.event(sala_chat::tui::Event::Files { query: String::new(), found });
        picture(&format!("mention_{width}x{height}"), &mut s);
    }
}

#[test]
fn unknown_command_names_the_nearest_one() {
    let mut s = open(80, 24);
    s.type_text("/lod war.txt").press("enter");
    s.type_text("").press("ctrl-u");
    s.type_text("/set temperature 7").press("enter");
    picture("command_errors_80x24", &mut s);
}

#[test]
fn timeline_is_a_tree_with_checkpoints() {
    pictures("timeline", |w, h| {
        let mut s = open(w, h);
        s.notify(Notice::Timeline(timeline()));
        s
    });
}

pub fn sessions() -> Vec<SessionRow> {
    let row = |name: &str, title: &str, state: &str| SessionRow {
        name: name.into(),
        title: title.into(),
        messages: 41,
        undone: 0,
        tokens: 612_204,
        state: state.into(),
        bytes: Some(2_400 << 20),
        updated_ms: TIME,
        ..SessionRow::default()
    };
    vec![
        row("war-and-peace", "Who tells Pierre that Prince Andrei is dying?", "yes"),
        row("contract", "What does annex C say about the notice period?", "stale"),
        row("日本語の本", "この本は誰が書きましたか", "none"),
    ]
}

#[test]
fn sessions_are_picked_and_filtered() {
    pictures("sessions", |w, h| {
        let mut s = open(w, h);
        s.notify(Notice::Sessions(sessions()));
        s
    });
    let mut s = open(30, 8);
    s.notify(Notice::Sessions(sessions()));
    picture("sessions_30x8", &mut s);
    let mut s = open(80, 24);
    s.notify(Notice::Sessions(sessions()));
    s.type_text("contr");
    picture("sessions_filtered_80x24", &mut s);
}

#[test]
fn an_imported_session_shows_that_no_model_has_read_it() {
    let mut s = open(80, 24);
    let row = SessionRow { tokens: 0, ..sessions().remove(2) };
    s.notify(Notice::Sessions(vec![row]));
    assert!(s.screen().contains(" 41         -  none "), "{}", s.screen());
}

#[test]
fn search_results_and_documents() {
    let mut s = open(80, 24);
    let rows = vec![
        SearchRow {
            session: "contract".into(),
            message: MessageId(9),
            number: 9,
            snippet: "the [notice] period is three months".into(),
            created_ms: TIME,
        },
        SearchRow {
            session: "mail".into(),
            message: MessageId(4),
            number: 2,
            snippet: "short [notice], sorry".into(),
            created_ms: TIME,
        },
    ];
    s.notify(Notice::Found { query: "notice".into(), rows });
    picture("found_80x24", &mut s);
    // No key is named for what is not there.
    s.notify(Notice::Found { query: "zebra".into(), rows: Vec::new() });
    assert!(s.screen().contains(" Esc closes") && !s.screen().contains("Enter opens"), "{}", s.screen());
    s.notify(Notice::Documents { title: "This conversation".into(), rows: documents() });
    picture("documents_80x24", &mut s);
    let rows = documents().into_iter().map(|row| DocumentRow { complete: false, ..row }).collect();
    s.notify(Notice::Documents { title: "This conversation".into(), rows });
    let screen = s.screen();
    assert_eq!(screen.matches("in part").count(), 2, "{screen}");
}

#[test]
fn a_narrow_list_of_documents_keeps_their_names() {
    let mut s = open(60, 15);
    let mut rows = documents();
    if let Some(last) = rows.last_mut() {
        (last.position, last.bytes) = (None, 0);
    }
    s.notify(Notice::Documents { title: "This conversation".into(), rows });
    picture("documents_60x15", &mut s);
}

#[test]
fn help_is_a_page() {
    let mut s = Stage::new(80, 24).ready(demo());
    s.press("f1");
    picture("help_80x24", &mut s);
    s.press("pgdn");
    picture("help_scrolled_80x24", &mut s);
    s.press("esc").type_text("/help load").press("enter enter");
    picture("help_command_80x24", &mut s);
}

/// The plan of a load, with `free` tokens left for it.
pub fn plan(free: u64) -> Notice {
    let choice = |key, label: &str| Choice { key, label: label.into() };
    let file = |name: &str, tokens, kept| PlanFile { name: name.into(), tokens, kept };
    Notice::Question {
        id: 1,
        text: "5 files, 512,881 tokens, about 0:55, leaves 535,695.".into(),
        choices: vec![choice('\n', "load"), choice('e', "choose files"), choice('\x1b', "cancel")],
        plan: Some(LoadPlan {
            files: vec![
                file("dossier/01-contract.pdf", 38_112, true),
                file("dossier/02-annexes.pdf", 51_904, false),
                file("dossier/a folder with a long name, and below it/03-mail.mbox", 210_377, false),
                file("dossier/04-notes.md", 4_120, false),
                file("dossier/05-invoices.csv", 208_368, false),
            ],
            free,
            reserve: 4_096,
            tokens_per_s: 8_630.0,
        }),
    }
}

#[test]
fn files_of_a_plan_are_chosen_from_a_list() {
    let mut s = open(80, 24);
    s.notify(plan(1_048_576)).press("e down").type_text(" ");
    picture("plan_files_80x24", &mut s);
    // A load that is too large begins with what fits.
    let mut s = open(60, 15);
    s.notify(plan(400_000)).press("e").type_text("a");
    s.press("enter");
    picture("plan_too_large_60x15", &mut s);
}

#[test]
fn questions_take_the_keys() {
    pictures("question", |w, h| {
        let mut s = open(w, h);
        s.notify(plan(1_048_576));
        s
    });
}

#[test]
fn choices_that_do_not_fit_into_a_line_get_a_row_each() {
    let choice = |key, label: &str| Choice { key, label: label.into() };
    let mut s = open(80, 24);
    s.notify(Notice::Question {
        id: 1,
        text: "Which answer continues the conversation?".into(),
        choices: vec![
            choice('1', "It is Natasha who breaks it to him, but not in words: Pierre"),
            choice('2', "Natasha does, at Princess Marya's, without saying it"),
            choice('\x1b', "keep the last; /branch shows the others"),
        ],
        plan: None,
    });
    picture("question_rows_80x24", &mut s);
}

#[test]
fn quitting_while_busy_asks_once() {
    let mut s = open(80, 24);
    s.notify(Notice::Activity(Activity::Answering { tokens_per_s: 96.4 }));
    s.press("ctrl-d");
    picture("quit_question_80x24", &mut s);
    s.press("y");
    picture("quitting_80x24", &mut s);
}

#[test]
fn quitting_reports_unsent_messages() {
    let mut s = open(80, 24);
    s.notify(Notice::Activity(Activity::Answering { tokens_per_s: 96.4 }));
    s.type_text("And what of the second?").press("enter ctrl-d");
    let shown = s.screen().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(shown.contains("Still working.") && shown.contains("1 message not sent"), "{shown}");
    // A stop holds it back; nothing is at work then.
    s.press("n esc").notify(Notice::Activity(Activity::Idle));
    assert!(s.app.open.queue.held, "{}", s.screen());
    s.sent();
    s.press("ctrl-d");
    assert!(s.screen().contains("1 message not sent, found with Up at the next start. Quit?"), "{}", s.screen());
    assert_eq!(s.sent(), []);
    s.press("y");
    let remembered = Request::Remember("And what of the second?".into());
    assert_eq!(s.all_sent(), [remembered, Request::Quit], "the history of the next start has it");
}

#[test]
fn sessions_of_this_run_are_in_the_title() {
    for (width, height) in [(80, 24), (160, 50)] {
        let mut s = open(width, height);
        s.notify(Notice::Session(opened(2)));
        picture(&format!("opened_{width}x{height}"), &mut s);
    }
    // At 120 columns there may be room for the open one only.
    let mut s = open(120, 40);
    s.notify(Notice::Session(opened(1)));
    let title = s.screen().lines().next().unwrap_or("").to_string();
    assert!(title.contains("[1") && title.ends_with("saved 14:01"), "{title}");
}

#[test]
fn history_search_is_fuzzy() {
    let mut s = open(80, 24);
    s.notify(Notice::Prompts(vec![
        "what is the notice period".into(),
        "summarise annex C".into(),
        "who wrote this".into(),
    ]));
    s.press("ctrl-r").type_text("ann");
    picture("history_search_80x24", &mut s);
}
