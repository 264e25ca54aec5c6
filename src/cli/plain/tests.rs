//! Line mode, line by line.
use super::*;
use crate::core::transcript::{Finish, Message, MessageId, MessageMeta, Role};
use crate::runtime::protocol::Notice;

mod questions;

fn answer(text: &str, finish: Option<Finish>) -> Message {
    Message {
        id: MessageId(2),
        parent: None,
        role: Role::Assistant,
        text: text.into(),
        thinking: String::new(),
        created_ms: 0,
        meta: MessageMeta { finish, ..MessageMeta::default() },
    }
}

fn printed(out: &[Out]) -> String {
    out.iter()
        .map(|o| match o {
            Out::Line(t) => format!("{t}\n"),
            Out::Part(t) => t.clone(),
            Out::Send(_) | Out::Keep(..) | Out::Exit(_) => String::new(),
        })
        .collect()
}

#[test]
fn answers_are_appended_by_sentence_and_never_twice() {
    let mut p = Plain::new(None, true);
    p.notice(Notice::Activity(Activity::Idle));
    assert_eq!(printed(&p.quiet()), "you: ");
    assert_eq!(p.line("hello"), [Out::Send(Request::Ask("hello".into()))]);
    p.notice(Notice::Added(answer("", None)));
    let text = "First one. Second \x1b[2J one. Third";
    let mut shown = String::new();
    for c in text.chars() {
        let out = p.notice(Notice::Delta { message: MessageId(2), thinking: false, text: c.into() });
        shown.push_str(&printed(&out));
    }
    assert_eq!(shown, "sala: First one. Second \\x1b[2J one. ");
    shown.push_str(&printed(&p.notice(Notice::Finished(answer(text, Some(Finish::Stopped))))));
    assert_eq!(shown, "sala: First one. Second \\x1b[2J one. Third\n(stopped; /continue goes on)\n");
}

#[test]
fn a_session_whose_files_were_read_anew_is_not_printed_again() {
    use crate::runtime::protocol::{Level, SessionView};
    let view = |name: &str, messages| SessionView { serial: 1, name: name.into(), messages, ..SessionView::default() };
    let mut p = Plain::new(None, true);
    p.notice(Notice::Session(view("", Vec::new())));
    p.notice(Notice::Activity(Activity::Idle));
    p.line("hello");
    p.notice(Notice::Added(answer("", None)));
    p.notice(Notice::Named { name: "r1".into(), opened: Vec::new() });
    p.notice(Notice::Finished(answer("A mouse.", Some(Finish::Stop))));
    let mut anew = answer("A mouse.", Some(Finish::Stop));
    anew.id = MessageId(7);
    assert_eq!(printed(&p.notice(Notice::Session(view("r1", vec![anew])))), "");
    assert_eq!(printed(&p.notice(Notice::Note(Level::Info, "Read anew.".into()))), "Read anew.\n");
    let other = vec![answer("A cat.", Some(Finish::Stop))];
    assert_eq!(printed(&p.notice(Notice::Session(view("r1", other)))), "Session r1, 1 message.\nsala: A cat.\n");
}

#[test]
fn an_answer_that_is_gone_on_with_is_printed_from_where_it_stood() {
    use crate::runtime::protocol::SessionView;
    let continues = |p: &mut Plain, more: &str, all: &str| {
        let delta = Notice::Delta { message: MessageId(2), thinking: false, text: more.into() };
        let mut shown = printed(&p.notice(delta));
        shown.push_str(&printed(&p.notice(Notice::Finished(answer(all, Some(Finish::Stop))))));
        shown
    };
    let messages = vec![answer("A mouse went", Some(Finish::Length))];
    let view = SessionView { serial: 1, name: "one".into(), messages, ..SessionView::default() };
    let mut p = Plain::new(None, true);
    assert_eq!(printed(&p.notice(Notice::Session(view))), "Session one, 1 message.\nsala: A mouse went\n");
    assert_eq!(continues(&mut p, " home. And", "A mouse went home. And"), "sala:  home. And\n");
    assert_eq!(continues(&mut p, " slept", "A mouse went home. And slept well"), "sala:  slept well\n");
    assert_eq!(continues(&mut p, "", "A mouse went home. And slept well!"), "sala: !\n");
}

#[test]
fn help_keeps_the_asterisks_of_examples() {
    let mut p = Plain::new(None, true);
    let help = printed(&p.line("/help ask-all"));
    assert!(help.contains("/ask-all --library *.txt Who is the tenant?"), "{help}");
    let list = printed(&p.line("/help"));
    assert!(list.contains("\nDocuments\n") && !list.contains(['`', '*']), "{list}");
}

#[test]
fn what_an_answer_looked_at_is_a_sentence() {
    use crate::core::transcript::{Passage, Sources};
    let passage = Passage {
        document: Some("war\x1b[2J.txt".into()),
        number: 1,
        first_line: 41_210,
        last_line: 41_262,
        share: 0.31,
        ..Passage::default()
    };
    let mut m = answer("By 14 June.", Some(Finish::Stop));
    m.meta.looked = Some(Sources { passages: vec![passage], ..Sources::default() });
    let printout = |p: &mut Plain| printed(&p.notice(Notice::Finished(m.clone())));
    assert_eq!(
        printout(&mut Plain::new(None, true)),
        "sala: By 14 June.\nLooked at: [1] war\\x1b[2J.txt 41,210-41,262 (31%).\n"
    );
    assert_eq!(printout(&mut Plain { looks_hidden: true, ..Plain::new(None, true) }), "sala: By 14 June.\n");
    let mut p = Plain::new(None, true);
    assert!(printed(&p.line("/set look off")).contains("are not shown"));
    assert_eq!(printout(&mut p), "sala: By 14 June.\n");
}

#[test]
fn what_line_mode_shows_is_kept_and_changed_at_once() {
    let mut p = Plain::new(None, true);
    let out = p.line("/set look off --save");
    assert_eq!(out.first(), Some(&Out::Keep("ui.look", "false".into())));
    assert!(printed(&out).contains("The passages behind answers are not shown."), "{out:?}");
    assert!(!printed(&p.line("/help")).contains("Keys"), "there are none here");
}

#[test]
fn what_a_question_mentions_is_read_before_it_is_sent() {
    use crate::runtime::protocol::{Level, LibraryName, LoadOptions};
    let mut p = Plain::new(None, true);
    p.notice(Notice::Library(vec![LibraryName { name: "war.txt".into(), tokens: 9 }]));
    p.notice(Notice::Activity(Activity::Idle));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.txt").display().to_string();
    std::fs::write(&file, "x").unwrap();
    let ask = |p: &mut Plain| {
        let options = LoadOptions { library: vec!["war.txt".into()], ..LoadOptions::default() };
        let loads = Request::Load { paths: vec![file.clone()], options };
        assert_eq!(p.line(&format!("Is @{file} like @war.txt? Ask @anna")), [Out::Send(loads)]);
    };
    ask(&mut p);
    p.notice(Notice::Added(Message { role: Role::Document, ..answer("x", None) }));
    // What is not known stays text.
    let question = Request::Ask(format!("Is {file} like war.txt? Ask @anna"));
    assert_eq!(p.notice(Notice::Acknowledged(1)), [Out::Send(question)]);
    // A question about an unread document is not sent.
    p.notice(Notice::Acknowledged(2));
    ask(&mut p);
    let printout = printed(&p.notice(Notice::Note(Level::Error, "a.txt: not text".into())));
    let unsent = format!("Not sent, because a document could not be read: Is {file} like war.txt?");
    assert!(printout.contains(&unsent), "{printout}");
    assert_eq!(p.notice(Notice::Acknowledged(3)), []);
    // In the place of an earlier question no document is read.
    p.notice(Notice::Input { text: "Old?".into(), editing: Some(MessageId(7)) });
    let printout = printed(&p.line(&format!("See @{file}")));
    assert!(printout.starts_with(&format!("Not sent: an edit reads no document, and @{file} is one.")), "{printout}");
    let edit = Request::EditDone { message: MessageId(7), text: "New?".into() };
    assert_eq!(p.line("New?"), [Out::Send(edit)]);
}

#[test]
fn lines_wait_while_busy_and_questions_take_the_next_line() {
    let mut p = Plain::new(None, true);
    assert_eq!(printed(&p.line("early")), "Queued.\n");
    let out = p.notice(Notice::Activity(Activity::Idle));
    assert_eq!(out, [Out::Send(Request::Ask("early".into()))]);
    let choices = vec![Choice { key: '\n', label: "load".into() }, Choice { key: '\x1b', label: "cancel".into() }];
    p.notice(Notice::Question { id: 4, text: "11 files".into(), choices, plan: None });
    assert_eq!(p.line(""), [Out::Send(Request::Choose { question: 4, key: '\n' })]);
    p.notice(Notice::Acknowledged(2));
    assert_eq!(p.line("/quit"), [Out::Send(Request::Quit)]);
    assert!(printed(&p.line("/lod")).contains("Did you mean /load?"));
}

#[test]
fn events_of_another_session_are_announced_when_complete() {
    use crate::runtime::protocol::{OpenSession, SessionView};
    let open = |serial: u64| {
        let names = ["one", "two\x1b[2J"].iter().zip(1..);
        let opened = names.map(|(name, serial)| OpenSession { serial, name: (*name).into() }).collect();
        Notice::Session(SessionView { serial, opened, name: "two".into(), ..SessionView::default() })
    };
    let mut p = Plain::new(None, true);
    p.notice(open(2));
    p.notice(Notice::Activity(Activity::Idle));
    p.line("a question");
    p.notice(Notice::Activity(Activity::Answering { tokens_per_s: 9.0 }));
    assert_eq!(p.line("/undo"), [Out::Line("Queued.".into())]);
    assert_eq!(p.line("/resume one"), [Out::Line("Queued.".into())], "in its turn behind what waits");
    p.queue.clear();
    assert_eq!(p.line("/resume one"), [Out::Send(Request::Resume("one".into()))]);
    p.notice(open(1));
    p.notice(Notice::Activity(Activity::Idle));
    p.notice(Notice::Acknowledged(2));
    assert_eq!(p.line("hello"), [Out::Send(Request::Ask("hello".into()))], "it is free for another question");
    p.notice(Notice::Finished(answer("Done.", Some(Finish::Stop))));
    p.notice(Notice::Activity(Activity::Idle));
    p.notice(Notice::Acknowledged(3));
    let elsewhere = |notice| Notice::Background { serial: 2, notice: Box::new(notice) };
    let delta = Notice::Delta { message: MessageId(2), thinking: false, text: "Far away. ".into() };
    assert_eq!(p.notice(elsewhere(delta)), []);
    let printout = printed(&p.notice(elsewhere(Notice::Finished(answer("Far away.", Some(Finish::Stop))))));
    assert_eq!(printout, "In two\\x1b[2J: the answer is complete. /resume two\\x1b[2J opens it.\n");
    // On return before its end, the text so far is printed once.
    p.notice(open(2));
    let mut shown = printed(&p.notice(Notice::Added(answer("So far. And", None))));
    let more = Notice::Delta { message: MessageId(2), thinking: false, text: " on.".into() };
    shown.push_str(&printed(&p.notice(more)));
    shown.push_str(&printed(&p.notice(Notice::Finished(answer("So far. And on.", Some(Finish::Stop))))));
    assert_eq!(shown, "sala: So far. And on.\n");
}

#[test]
fn progress_is_a_sentence_each_tenth() {
    let mut p = Plain::new(None, true);
    let reading = |done| {
        Notice::Activity(Activity::Reading(crate::runtime::protocol::ReadingProgress {
            done,
            total: 10_000,
            tokens_per_s: 1_000.0,
            ..Default::default()
        }))
    };
    assert_eq!(printed(&p.notice(reading(500))), "");
    assert_eq!(printed(&p.notice(reading(1_200))), "Read 10 percent of 10,000 tokens, 0:09 left.\n");
    assert_eq!(printed(&p.notice(reading(1_900))), "");
    assert_eq!(printed(&p.notice(reading(5_000))), "Read 50 percent of 10,000 tokens, 0:05 left.\n");
}

#[test]
fn the_prompt_returns_after_a_command_and_after_other_output() {
    use crate::runtime::protocol::Level;
    let mut p = Plain::new(None, true);
    p.notice(Notice::Activity(Activity::Idle));
    assert_eq!(printed(&p.quiet()), "you: ");
    assert_eq!(printed(&p.quiet()), "", "once");
    assert_eq!(p.line("/save"), [Out::Send(Request::Save)]);
    let note = |text: &str| Notice::Note(Level::Info, text.into());
    assert_eq!(printed(&p.notice(note("All is saved."))), "All is saved.\n");
    assert_eq!(printed(&p.quiet()), "", "it may have more to say");
    p.notice(Notice::Acknowledged(1));
    assert_eq!(printed(&p.quiet()), "you: ");
    assert_eq!(printed(&p.notice(note("Disk is nearly full."))), "\nDisk is nearly full.\n");
    assert_eq!(printed(&p.quiet()), "you: ");
    p.line("/nonsense");
    assert_eq!(printed(&p.quiet()), "you: ", "also after what was refused");
}

#[test]
fn lines_from_a_pipe_are_answered_before_it_ends() {
    let mut p = Plain::new(None, false);
    assert_eq!(p.line("one"), []);
    assert_eq!(p.line("/stats"), [], "in the order of the lines");
    assert_eq!(p.end_of_input(), []);
    assert_eq!(p.notice(Notice::Activity(Activity::Idle)), [Out::Send(Request::Ask("one".into()))]);
    assert_eq!(printed(&p.quiet()), "", "nobody is there to be prompted");
    p.notice(Notice::Activity(Activity::Answering { tokens_per_s: 9.0 }));
    let choices = Choice::all(&[('y', "yes"), ('n', "no")]);
    let out = p.notice(Notice::Question { id: 3, text: "Sure?".into(), choices, plan: None });
    assert_eq!(out.last(), Some(&Out::Send(Request::Choose { question: 3, key: 'n' })));
    assert!(printed(&out).ends_with("No answer came, so: no.\n"), "{out:?}");
    assert_eq!(p.notice(Notice::Activity(Activity::Idle)), []);
    assert_eq!(p.notice(Notice::Acknowledged(2)), [Out::Send(Request::Stats)]);
    let out = p.notice(Notice::Page { title: "Numbers".into(), text: "12".into() });
    assert!(!out.iter().any(|o| matches!(o, Out::Send(_))), "{out:?}");
    assert_eq!(p.notice(Notice::Acknowledged(3)), [Out::Send(Request::Quit)]);
    assert_eq!(p.notice(Notice::Activity(Activity::Idle)), [], "once");
}

#[test]
fn pages_are_sentences() {
    let mut p = Plain::new(None, true);
    let page = Notice::Page { title: "Numbers".into(), text: "| | |\n|---|---|\n| model | demo |\n".into() };
    assert_eq!(printed(&p.notice(page)), "Numbers:\nmodel: demo\n");
}

#[test]
fn what_an_earlier_command_says_does_not_answer_the_next_question() {
    let mut p = Plain::new(None, false);
    p.notice(Notice::Activity(Activity::Idle));
    p.line("/new");
    for line in ["one?", "two?"] {
        assert_eq!(p.line(line), [], "it waits for its turn");
    }
    let sends = |out: &[Out]| out.iter().any(|o| matches!(o, Out::Send(_)));
    let warning = Notice::Note(crate::runtime::protocol::Level::Warn, "A new session, and something about it.".into());
    for notice in [Notice::Session(Default::default()), Notice::Activity(Activity::Idle), warning.clone()] {
        assert!(!sends(&p.notice(notice)), "it may have more to say");
    }
    assert_eq!(p.notice(Notice::Acknowledged(1)), [Out::Send(Request::Ask("one?".into()))]);
    // An unsolicited notice is no answer either.
    assert!(!sends(&p.notice(warning.clone())));
    p.notice(Notice::Added(answer("", None)));
    assert!(!sends(&p.notice(Notice::Finished(answer("Yes.", Some(Finish::Stop))))));
    assert_eq!(p.notice(Notice::Acknowledged(2)), [Out::Send(Request::Ask("two?".into()))]);
    // A question that is refused is over, too.
    p.end_of_input();
    assert!(!sends(&p.notice(warning)));
    assert_eq!(p.notice(Notice::Acknowledged(3)), [Out::Send(Request::Quit)]);
}

#[test]
fn a_question_sent_after_a_fork_is_answered_in_the_fork() {
    use crate::runtime::protocol::{Level, SessionView};
    let session = |serial| Notice::Session(SessionView { serial, ..SessionView::default() });
    let note = |text: &str| Notice::Note(Level::Info, text.into());
    let mut p = Plain::new(None, false);
    p.notice(session(1));
    p.notice(Notice::Activity(Activity::Idle));
    p.line("/fork two");
    p.line("Who?");
    p.end_of_input();
    for notice in [note("What came by itself."), session(2), note("Forked."), Notice::Activity(Activity::Idle)] {
        let out = p.notice(notice);
        assert!(!out.iter().any(|o| matches!(o, Out::Send(_))), "{out:?}");
    }
    assert_eq!(p.notice(Notice::Acknowledged(1)), [Out::Send(Request::Ask("Who?".into()))]);
    p.notice(Notice::Added(answer("", None)));
    p.notice(Notice::Finished(answer("Ada Brandt.", Some(Finish::Stop))));
    assert_eq!(p.notice(Notice::Acknowledged(2)), [Out::Send(Request::Quit)]);
}

#[test]
fn the_tour_advances_with_enter_alone_and_by_itself_from_a_pipe() {
    let mut p = Plain { tour: Some(Tour::default()), ..Plain::new(None, true) };
    p.notice(Notice::Activity(Activity::Idle));
    let shown = printed(&p.quiet());
    assert!(shown.starts_with("Tour: ") && shown.contains("/load sample:lighthouse.md"), "{shown}");
    let load = p.line("");
    assert!(matches!(load.as_slice(), [Out::Send(Request::Load { .. })]), "{load:?}");
    assert_eq!(p.line("skip").len(), 1);
    p.notice(Notice::Acknowledged(1));
    assert_eq!(printed(&p.quiet()), "you: ", "it was left");

    let mut piped = Plain { tour: Some(Tour::default()), ..Plain::new(None, false) };
    piped.end_of_input();
    let out = piped.notice(Notice::Activity(Activity::Idle));
    assert!(matches!(out.last(), Some(Out::Send(Request::Load { .. }))), "{out:?}");
}

#[test]
fn settings_are_listed_with_the_values_of_the_session() {
    let mut p = Plain::new(None, true);
    let settings = vec![("temperature", "0.25".to_owned())];
    p.notice(Notice::Meters(crate::runtime::protocol::Meters { settings, ..Default::default() }));
    let listed = printed(&p.line("/settings temp"));
    assert!(listed.contains("- sampling.temperature 0.25: ") && !listed.contains("ui.theme"), "{listed}");
}

#[test]
fn an_error_in_a_line_of_a_pipe_is_reported_in_order() {
    let mut p = Plain::new(None, false);
    for line in ["/undo 0", "/theme", "/keys", "/docs"] {
        assert_eq!(p.line(line), [], "the model is being loaded");
    }
    let out = p.notice(Notice::Activity(Activity::Idle));
    let lines: Vec<&str> =
        out.iter().filter_map(|o| if let Out::Line(l) = o { Some(l.as_str()) } else { None }).collect();
    let [wrong, bare, screen] = lines[lines.len() - 3..] else { panic!("{out:?}") };
    assert!(wrong.starts_with("/undo: needs a number of 1 or more"), "{wrong}");
    assert_eq!(bare, "/theme: needs a value. Example: /theme light");
    assert_eq!(screen, "/keys needs the full screen; start without --plain.");
    assert_eq!(out.last(), Some(&Out::Send(Request::Docs)));
    // At a keyboard it is reported at once.
    let mut typed = Plain::new(None, true);
    assert!(printed(&typed.line("/undo 0")).starts_with("/undo: needs a number of 1 or more"));
}

#[test]
fn a_session_announced_twice_is_printed_once() {
    use crate::runtime::protocol::SessionView;
    let view = || {
        let messages = vec![answer("Yes.", Some(Finish::Stop))];
        Notice::Session(SessionView { serial: 1, name: "one".into(), messages, ..SessionView::default() })
    };
    let mut p = Plain::new(None, true);
    assert_eq!(printed(&p.notice(view())), "Session one, 1 message.\nsala: Yes.\n");
    assert_eq!(printed(&p.notice(view())), "");
    p.notice(Notice::Added(answer("", None)));
    assert_eq!(printed(&p.notice(view())), "Session one, 1 message.\nsala: Yes.\n", "gone back to");
}

#[test]
fn the_line_after_an_edit_replaces_the_message_and_no_later_one_does() {
    let edit = |text: &str| Request::EditDone { message: MessageId(2), text: text.into() };
    let ask = |text: &str| Request::Ask(text.into());
    let opened = |p: &mut Plain| {
        p.notice(Notice::Activity(Activity::Idle));
        p.notice(Notice::Acknowledged(p.sent));
        printed(&p.notice(Notice::Input { text: "//old".into(), editing: Some(MessageId(2)) }))
    };
    let mut p = Plain::new(None, true);
    let printout = "The text was: //old\nThe next line replaces it; an empty line keeps it.\n";
    assert_eq!(opened(&mut p), printout);
    assert_eq!(p.line("new"), [Out::Send(edit("new"))]);
    opened(&mut p);
    assert_eq!(printed(&p.line("")), "The edit is cancelled; the message stays as it was.\n");
    assert_eq!(p.line("a question"), [Out::Send(ask("a question"))]);
    // A command that does something else first leaves it.
    for command in ["/undo", "/new"] {
        opened(&mut p);
        p.line(command);
        p.notice(Notice::Acknowledged(p.sent));
        assert_eq!(p.line("another"), [Out::Send(ask("another"))]);
    }
    // A page does not.
    opened(&mut p);
    p.line("/help edit");
    assert_eq!(p.line("new"), [Out::Send(edit("new"))]);
}

#[test]
fn the_beginning_of_a_huge_refused_text_is_shown() {
    let mut p = Plain::new(None, true);
    let refused = |text: String| Notice::Input { text, editing: None };
    assert_eq!(printed(&p.notice(refused("é".repeat(2_000)))), format!("The text was: {}\n", "é".repeat(2_000)));
    let printout = printed(&p.notice(refused("é".repeat(4_810_000))));
    assert_eq!(printout, format!("The text was: {} ... (4,810,000 characters)\n", "é".repeat(2_000)));
}

#[test]
fn the_prompt_is_shown_again_when_the_program_is_brought_back() {
    let mut p = Plain::new(None, true);
    p.notice(Notice::Activity(Activity::Idle));
    assert_eq!((printed(&p.quiet()), printed(&p.quiet())), ("you: ".into(), String::new()));
    p.resumed();
    assert!(p.wants_prompt());
    assert_eq!(printed(&p.quiet()), "you: ");
}
