//! Lists, questions and files: what is picked from them, and what is read before a question.

use sala_chat::core::transcript::{MessageId, Role};
use sala_chat::runtime::protocol::{Activity, Choice, GotoTarget, Notice, Request, SessionView};
use sala_chat::tui::keys::Key;
use sala_chat::tui::palette::Palette;
use sala_chat::tui::{Effect, Event};

use super::picture;
use super::stage::*;

#[test]
fn files_of_a_plan_are_picked_without_losing_what_is_queued() {
    let mut s = open(80, 24);
    busy(&mut s);
    s.type_text("asked early").press("enter");
    s.notify(super::pages::plan(400_000));
    s.notify(Notice::Activity(Activity::Idle));
    s.press("e");
    // All of it is too much, none of it too little: neither is sent.
    s.type_text("a").press("enter").type_text("a").press("enter");
    assert_eq!(s.sent(), []);
    s.type_text(" ").press("down").type_text(" ");
    s.press("esc").press("e enter");
    let files = vec![0, 2];
    assert_eq!(s.sent(), [Request::ChooseFiles { question: 1, files }]);
    s.notify(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [Request::Ask("asked early".into())]);
}

#[test]
fn question_keys_answer_the_runtime_and_esc_takes_the_last() {
    let mut s = open(80, 24);
    let ask = |id| Notice::Question {
        id,
        text: "Read?".into(),
        choices: vec![Choice { key: '\n', label: "read".into() }, Choice { key: 'v', label: "view".into() }],
        plan: None,
    };
    s.notify(ask(1)).notify(ask(2)).notify(ask(3));
    s.press("tab enter V esc");
    let choose = |question, key| Request::Choose { question, key };
    assert_eq!(s.sent(), [choose(1, '\n'), choose(2, 'v'), choose(3, 'v')]);
}

#[test]
fn a_letter_that_is_no_choice_starts_a_line() {
    let ask = |id, choices: &[(char, &str)]| Notice::Question {
        id,
        text: "What now?".into(),
        choices: choices.iter().map(|(key, label)| Choice { key: *key, label: (*label).into() }).collect(),
        plan: None,
    };
    // Each letter at a screen with the question.
    let write = |s: &mut Stage, text: &str| {
        for c in text.chars() {
            s.event(Event::Frame).type_text(c.encode_utf8(&mut [0; 4]));
        }
    };
    let choose = |question, key| Request::Choose { question, key };
    for (choices, text) in [
        (&[('1', "continue"), ('2', "go back"), ('\x1b', "keep what is read")][..], "what happened in 3 years"),
        (&[('y', "delete"), ('\x1b', "keep")], "why not"),
        (&[('\n', "read"), ('\x1b', "view only")], "What is line 20"),
        (&[('\n', "read"), ('\x1b', "view only")], "? or /"),
    ] {
        let mut s = open(80, 24);
        s.press("ctrl-p").notify(ask(1, choices));
        write(&mut s, text);
        assert_eq!((s.sent(), s.app.open.composer.text()), (vec![], text));
        s.press("enter");
        assert!(s.sent().is_empty() && s.queued() == [text], "{:?}", s.queued());
        // Nothing is written any more: a first key that is a choice is the answer.
        let first = choices[0].0;
        s.press(&if first == '\n' { "enter".to_string() } else { first.to_string() });
        assert_eq!(s.sent(), [choose(1, first)]);
        s.notify(Notice::Activity(Activity::Idle));
        assert_eq!(s.sent(), [Request::Ask(text.into())]);
    }
    // So does a paste.
    let mut s = open(80, 24);
    s.notify(ask(1, &[('y', "delete"), ('\x1b', "keep")])).event(Event::Frame);
    s.event(Event::Paste("a text".into())).press("y");
    assert_eq!((s.sent(), s.app.open.composer.text()), (vec![], "a texty"));
    s.press("shift-tab y");
    assert_eq!(s.sent(), [choose(1, 'y')]);
    // On a page there is no place to write.
    s.app.open.composer.take();
    s.notify(Notice::Page { title: "Found".into(), text: "a page".into() });
    s.notify(ask(2, &[('1', "the first"), ('\x1b', "neither")])).event(Event::Frame);
    s.event(Event::Paste("a text".into())).press("w 1");
    assert_eq!((s.sent(), s.app.open.composer.text()), (vec![choose(2, '1')], ""));
}

#[test]
fn keys_typed_before_a_question_was_seen_are_no_answer() {
    let ask = |id| Notice::Question {
        id,
        text: "Stopped at 384 of 6,400 tokens, inside long.txt. What is read stays read.".into(),
        choices: vec![
            Choice { key: '1', label: "continue".into() },
            Choice { key: '2', label: "go back".into() },
            Choice { key: '\x1b', label: "keep what is read".into() },
        ],
        plan: None,
    };
    let choose = |question, key| Request::Choose { question, key };

    // Typed at a screen without it: a second Esc, and the beginning of a number.
    let mut s = open(80, 24);
    s.notify(Notice::Activity(Activity::Busy { what: "x".into() })).press("esc");
    assert_eq!(s.sent(), [Request::Stop]);
    s.notify(ask(1))
        .notify(Notice::Activity(Activity::Idle))
        .event(Event::Key(Key::parse("esc").unwrap()))
        .type_text("1");
    assert_eq!(s.sent(), []);
    assert_eq!(s.app.open.composer.text(), "1");
    // It is visible during typing, and work continues.
    picture("question_and_draft_80x24", &mut s);
    s.type_text("2 apples");
    assert_eq!((s.sent(), s.app.open.composer.text()), (vec![], "12 apples"));
    // It can be chosen at the same time.
    s.press("shift-tab 2");
    assert_eq!((s.sent(), s.app.open.composer.text()), (vec![choose(1, '2')], "12 apples"));

    // The next one waits until the line is sent, which itself waits for the work in progress.
    s.notify(ask(2)).press("3 enter");
    assert!(s.sent().is_empty() && s.app.open.composer.is_empty(), "what is said waits for the decision");
    assert_eq!(s.queued(), ["12 apples3"]);
    s.type_text("1");
    assert_eq!(s.app.open.composer.text(), "1", "there was no time to see that it asks");
    s.press("backspace 1");
    assert_eq!(s.sent(), [choose(2, '1')]);
    s.notify(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [Request::Ask("12 apples3".into())]);

    // What is searched for is written as well.
    s.notify(ask(3)).event(Event::Frame);
    s.press("2");
    assert_eq!(s.sent(), [choose(3, '2')]);
    s.press("ctrl-f").type_text("a");
    s.notify(ask(4)).press("1");
    assert_eq!(s.sent(), []);
    s.press("shift-tab 1");
    assert_eq!(s.sent(), [choose(4, '1')]);
}

#[test]
fn a_second_stop_does_not_answer_how_to_go_on() {
    for (key, wait) in [("esc", 800), ("ctrl-c", 500)] {
        let mut s = open(80, 24);
        s.notify(Notice::Activity(Activity::Busy { what: "x".into() })).press(key);
        s.notify(Notice::Question {
            id: 1,
            text: "Stopped.".into(),
            choices: vec![Choice { key: '1', label: "go on".into() }, Choice { key: '\x1b', label: "keep".into() }],
            plan: None,
        });
        s.press(key);
        assert_eq!(s.sent(), [Request::Stop]);
        s.wait(wait).press(key);
        assert_eq!(s.sent(), [Request::Choose { question: 1, key: '\x1b' }]);
    }
}

#[test]
fn the_timeline_jumps_and_forks() {
    let mut s = open(80, 24);
    s.notify(Notice::Timeline(timeline()));
    s.press("up enter");
    assert_eq!(s.sent(), [Request::Goto(GotoTarget::Message(MessageId(2)))]);
    s.notify(Notice::Timeline(timeline()));
    s.press("f");
    assert_eq!(s.sent(), [Request::ForkFrom(MessageId(3))]);
    // One request: what is refused to go there does not fork another place.
    s.notify(Notice::Timeline(timeline()));
    s.press("end f");
    assert_eq!(s.sent(), [Request::ForkFrom(MessageId(7))]);
}

#[test]
fn search_result_opens_its_session_at_the_message() {
    let mut s = open(80, 24);
    let row = sala_chat::runtime::protocol::SearchRow {
        session: "war-and-peace".into(),
        message: MessageId(2),
        number: 2,
        snippet: "dying".into(),
        created_ms: 0,
    };
    s.notify(Notice::Session(SessionView { name: "mail".into(), ..SessionView::default() }));
    s.notify(Notice::Found { query: "dying".into(), rows: vec![row.clone()] }).press("enter");
    assert_eq!(s.sent(), [Request::Resume("war-and-peace".into())]);
    s.notify(Notice::Session(conversation()));
    assert_eq!(s.app.open.transcript.selected_message().map(|m| m.0), Some(2));
    // In the session that is open it is shown at once.
    s.press("esc").notify(Notice::Found { query: "dying".into(), rows: vec![row] }).press("enter");
    assert_eq!(s.sent(), []);
    assert_eq!(s.app.open.transcript.selected_message().map(|m| m.0), Some(2));
}

#[test]
fn a_search_result_is_shown_only_in_its_own_session() {
    let row = sala_chat::runtime::protocol::SearchRow {
        session: "mail".into(),
        message: MessageId(77),
        number: 2,
        snippet: "dying".into(),
        created_ms: 0,
    };
    let found = || Notice::Found { query: "dying".into(), rows: vec![row.clone()] };
    let mut s = open(80, 24);
    s.notify(found()).press("enter");
    assert_eq!(s.sent(), [Request::Resume("mail".into())]);
    let choices = vec![Choice { key: 'v', label: "view".into() }, Choice { key: '\x1b', label: "cancel".into() }];
    s.notify(Notice::Question { id: 1, text: "mail is in use.".into(), choices, plan: None }).press("esc");
    assert_eq!(s.sent(), [Request::Choose { question: 1, key: '\x1b' }]);
    // What is shown of the open session later, as after an undo, has nothing to do with it.
    s.notify(Notice::Activity(Activity::Idle)).notify(Notice::Session(conversation()));
    assert_eq!(s.sent(), []);
    // Nor has that session, opened for something else.
    s.type_text("/resume mail").press("enter");
    assert_eq!(s.sent(), [Request::Resume("mail".into())]);
    s.notify(Notice::Session(SessionView { name: "mail".into(), ..SessionView::default() }));
    assert_eq!(s.sent(), []);
    // It is on another branch of the session that it was opened for.
    s.notify(Notice::Session(conversation())).notify(found()).press("enter");
    s.notify(Notice::Session(conversation())).sent();
    s.notify(Notice::Session(SessionView { name: "mail".into(), ..SessionView::default() }));
    assert_eq!(s.sent(), [Request::Goto(GotoTarget::Message(MessageId(77)))]);
}

#[test]
fn search_follows_typing_and_wraps_around() {
    let mut s = open(80, 24);
    s.notify(Notice::Session(SessionView {
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
    assert_eq!(s.app.open.transcript.window().first().map(|w| w.0), Some(0), "the view went along");
    s.type_text("N");
    assert!(s.screen().contains("30 of 30"));
    s.type_text("N");
    assert!(s.screen().contains("29 of 30"));
    s.press("esc");
    assert!(s.app.open.find.is_none());
    assert_eq!(s.app.open.composer.text(), "a draft", "the input was left alone");
    s.press("ctrl-f").type_text("Pierre!").press("enter");
    let screen = s.screen();
    assert!(screen.contains("Not found") && screen.contains("find: Pierre!"), "{screen}");
    // A search of all branches is shown, draft or not.
    s.press("esc ctrl-f").type_text("pierre").press("enter a");
    assert_eq!(s.sent(), [Request::Search("pierre".into())]);
    s.notify(Notice::Found { query: "pierre".into(), rows: Vec::new() });
    assert!(s.screen().contains("Found for \"pierre\""), "{}", s.screen());
    assert_eq!(s.app.open.composer.text(), "a draft");
}

#[test]
fn a_hit_in_folded_thoughts_is_visible_at_any_typing_speed() {
    let mut thinks = answer(2, "Done.");
    thinks.thinking = (1..=60).map(|i| format!("{i:03} a hit\n\n")).collect();
    for (query, at) in [("hit", "60 of 60"), ("017 a hit", "1 of 1")] {
        let mut s = open(80, 24);
        let messages = vec![message(1, Role::User, "Think."), thinks.clone()];
        s.notify(Notice::Session(SessionView { messages, ..conversation() })).screen();
        s.press("ctrl-f").type_text(query);
        let (screen, hit) = (s.screen(), s.app.open.find.as_ref().and_then(|f| f.here()).unwrap());
        assert!(screen.contains(at), "{screen}");
        let row = s.app.open.transcript.row_of_hit(hit).unwrap();
        assert!(s.app.open.transcript.window().contains(&(hit.entry, row)), "{query} is not in sight: {screen}");
        assert!(screen.contains(if query == "hit" { "060 a hit" } else { query }), "{screen}");
    }
}

#[test]
fn search_in_all_branches_leaves_other_sessions_out() {
    let mut s = open(80, 24);
    s.press("ctrl-f").type_text("natasha").press("enter").type_text("a");
    assert_eq!(s.sent(), [Request::Search("natasha".into())]);
    let row = |session: &str, id| sala_chat::runtime::protocol::SearchRow {
        session: session.into(),
        message: MessageId(id),
        number: 2,
        snippet: format!("of {session}"),
        created_ms: 0,
    };
    s.notify(Notice::Found { query: "natasha".into(), rows: vec![row("war-and-peace", 77), row("mail", 4)] });
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
fn mentioned_files_are_read_before_the_question_is_sent() {
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
    s.notify(Notice::Added(document(4, "my notes.txt", 300))).notify(Notice::Activity(Activity::Idle));
    // The remaining name matches no file.
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
    // A file of the same name precedes the library; a document already read is only referred to.
    s.event(Event::FoundPaths(vec!["plan.md".into()]));
    let sent = s.sent();
    let [Request::Load { paths, options }] = sent.as_slice() else { panic!("{sent:?}") };
    assert_eq!((paths.as_slice(), options.library.as_slice()), (&["plan.md".into()][..], &["my notes.txt".into()][..]));
    busy(&mut s);
    s.notify(Notice::Added(document(4, "my notes.txt", 300))).notify(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [Request::Ask("Does my notes.txt agree with plan.md and war.txt?".into())]);
    // One that another program took out in the meantime: the question waits.
    busy(&mut s);
    s.notify(Notice::Activity(Activity::Idle));
    s.type_text("And @atlas.pdf?").press("esc enter");
    s.event(Event::FoundPaths(Vec::new())).effects.clear();
    s.notify(Notice::Note(sala_chat::runtime::protocol::Level::Warn, "No document atlas.pdf in the library.".into()));
    s.notify(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), []);
}

#[test]
fn a_question_with_an_unread_file_waits() {
    let mut s = open(80, 24);
    s.type_text("Sum up @big.txt").press("esc").press("enter");
    s.event(Event::FoundPaths(vec!["big.txt".into()]));
    s.effects.clear();
    let refused = "big.txt needs 1,204,331 tokens; 436,372 are left. Nothing was loaded.";
    s.notify(Notice::Note(sala_chat::runtime::protocol::Level::Error, refused.into()));
    s.notify(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), []);
    let expected = "Not asked: not all was read; Enter asks it anyway; Ctrl-X edits it";
    assert!(s.screen().contains(expected), "{}", s.screen());
    s.wait(1_100).press("ctrl-x");
    assert_eq!(s.app.open.composer.text(), "Sum up big.txt");
    assert!(!s.screen().contains("Not asked"), "{}", s.screen());
    // The note is absent for a question that was sent after all.
    s.type_text(" @more.txt").press("esc enter").event(Event::FoundPaths(vec!["more.txt".into()]));
    s.notify(Notice::Note(sala_chat::runtime::protocol::Level::Error, refused.into()));
    s.notify(Notice::Activity(Activity::Idle)).sent();
    assert!(s.screen().contains(expected), "{}", s.screen());
    s.wait(1_100).press("enter");
    assert_eq!(s.sent(), [Request::Ask("Sum up big.txt more.txt".into())]);
    assert!(!s.screen().contains("Not asked"), "{}", s.screen());
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
    s.notify(Notice::Activity(Activity::Idle));
    // As text, when that is wanted, and when there is no such file.
    s.event(Event::Paste("/tmp/x".into())).event(Event::FoundPaths(vec!["/tmp/x".into()])).press("t");
    s.event(Event::Paste(" /no/such".into())).event(Event::FoundPaths(Vec::new()));
    assert_eq!(s.app.open.composer.text(), "/tmp/x /no/such");
    // A terminal sends the ends of pasted lines as carriage returns.
    for pasted in ["/tmp/x\r/tmp/my notes.txt", "/tmp/x\n/tmp/my notes.txt\n", "'/tmp/x'\r\n/tmp/my\\ notes.txt\r\n"] {
        let (mut s, paths) = (open(80, 24), ["/tmp/x", "/tmp/my notes.txt"].map(String::from));
        s.event(Event::Paste(pasted.into()));
        assert_eq!(s.effects.pop(), Some(Effect::FindPaths(paths.to_vec())), "{pasted:?}");
        s.event(Event::FoundPaths(paths.to_vec()));
        assert!(s.screen().contains("Load 2 files?"), "{}", s.screen());
        s.press("enter");
        assert!(matches!(s.sent().as_slice(), [Request::Load { paths: sent, .. }] if *sent == paths));
    }
    // Typing on before the files are known stays typing.
    let mut s = open(80, 24);
    s.event(Event::Paste("/tmp/x".into())).type_text("to").event(Event::FoundPaths(vec!["/tmp/x".into()]));
    s.type_text("day");
    assert_eq!(s.app.open.composer.text(), "today");
    s.effects.clear();
    s.press("shift-tab enter");
    assert!(matches!(s.sent().as_slice(), [Request::Load { paths, .. }] if *paths == ["/tmp/x"]));
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
fn a_bare_theme_completes_a_name() {
    use ratatui::style::Color;
    for (width, height) in [(30, 8), (80, 24), (160, 50)] {
        for command in ["/theme", "/set theme"] {
            let mut s = open(width, height);
            s.app.config.themes = vec!["sea".into()];
            s.type_text(command).press("enter");
            let screen = s.screen();
            let shown: &[&str] = if height < 15 { &["auto", "plain"] } else { &["auto", "plain", "sea"] };
            assert!(shown.iter().all(|name| screen.contains(name)), "{screen}");
            s.press("esc").type_text("se").press("tab enter");
            assert_eq!(s.effects.pop(), Some(Effect::Repaint));
            assert_eq!(s.effects.pop(), Some(Effect::Theme("sea".into())));
            let sea = Palette::read("sea", "sea.toml", "[colours]\nquote = \"#2aa198\"\n").unwrap();
            s.event(Event::Theme(Ok(sea)));
            assert_eq!(s.app.config.theme.name, "sea");
            if height >= 15 {
                assert_eq!(foreground(&mut s, " sala "), Color::Cyan, "what it does not name is as in its base");
            }
        }
    }
    let mut s = open(80, 24);
    s.type_text("/theme nothing").press("enter");
    s.event(Event::Theme(Err("no theme nothing: there are auto".into())));
    assert_eq!(s.app.config.theme.name, "auto");
    assert!(s.screen().contains("no theme nothing"), "{}", s.screen());
    s.press("ctrl-u").type_text("/set code_theme").press("enter");
    assert!(s.screen().contains("base16-ocean-dark"), "{}", s.screen());
}
