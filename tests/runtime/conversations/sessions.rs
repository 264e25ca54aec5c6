//! Sessions of a run.

use super::*;

fn a_resumed_session_reads_nothing_again_and_answers_as_if_never_left() {
    let (a, b) = (dir(), dir());
    let mut straight = Chat::new(a.path(), Setup::default());
    straight.ask("One?");
    let expected = straight.ask("Two?").text;

    let mut t = Chat::new(b.path(), Setup::default());
    t.ask("One?");
    let name = t.name();
    t.quit();
    let mut t = Chat::new(b.path(), resume(&name));
    let note = t.note_with("Resumed");
    assert!(note.starts_with("Resumed ") && note.contains(" tokens in "), "{note}");
    let answer = t.ask("Two?");
    assert_eq!(answer.text, expected);
    let read = t.work().0;
    assert!(read < 20, "{read} tokens were read");
    assert_eq!(answer.meta.prefilled_tokens as usize, read);
    assert!(answer.meta.reused_tokens > 0);
}

fn state_of_another_model_is_unused_and_rereading_needs_consent() {
    let dir = dir();
    let t = with_notes(dir.path(), "Well?");
    let name = t.name();
    t.quit();
    let mut t = Chat::new(dir.path(), Setup { fingerprint: "fake-2".into(), ..resume(&name) });
    let (id, text) = t.wait("a question", |n| match n {
        Notice::Question { id, text, .. } => Some((*id, text.clone())),
        _ => None,
    });
    assert!(text.starts_with("State is from another model. The model must read"), "{text}");
    t.send(Request::Choose { question: id, key: '\x1b' });
    t.send(Request::Ask("Still there?".into()));
    t.note_with("view only");
    assert_eq!(t.view().messages.len(), 3);
    assert_eq!(t.work(), (0, 0));
    t.quit();
    // Lines of a pipe were written before anybody could know of the question.
    let opening = Opening::ResumeOrEnd(name.clone());
    let mut t = Chat::new(dir.path(), Setup { fingerprint: "fake-3".into(), opening, ..Setup::default() });
    let note = t.note_with("State is from another model. ");
    assert!(note.contains(" tokens again before you can continue"), "{note}");
    assert_eq!(t.ask("Still there?").meta.finish, Some(Finish::Stop));
    assert!(!t.seen.iter().any(|n| matches!(n, Notice::Question { .. })));
    t.quit();
    // What is stopped in the middle is done with the next question.
    let (permit, gate) = crossbeam_channel::unbounded();
    let mut t = Chat::new(dir.path(), Setup { fingerprint: "fake-2".into(), gate: Some(gate), ..resume(&name) });
    for _ in 0..10 {
        permit.send(()).unwrap();
    }
    let (id, _) = question(&mut t);
    t.send(Request::Choose { question: id, key: '\n' });
    t.wait("reading", |n| matches!(n, Notice::Activity(Activity::Reading(p)) if p.done >= 8 * 64).then_some(()));
    t.send(Request::Stop);
    drop(permit);
    let note = t.note_with("Stopped: ");
    assert!(
        note.ends_with(" tokens of this conversation are read, the rest will be read with the next question."),
        "{note}"
    );
}

fn state_of_the_beginning_only_is_not_called_none() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.ask("One?");
    t.ask(&FACTS.repeat(250));
    let name = t.name();
    t.quit();
    // As a program that is killed before the state of the second exchange is on disk.
    let forget = "
        DELETE FROM message_segment WHERE message IN (SELECT id FROM message WHERE depth > 2);
        UPDATE segment SET rows_root = NULL, end_root = NULL
        WHERE stop > (SELECT max(s.stop) FROM segment s JOIN message_segment l ON l.segment = s.id)";
    rusqlite::Connection::open(dir.path().join("data/sala.db")).unwrap().execute_batch(forget).unwrap();
    let mut t = Chat::new(dir.path(), resume(&name));
    let text = t.wait("a question", |n| match n {
        Notice::Question { text, .. } => Some(text.clone()),
        _ => None,
    });
    assert!(text.starts_with("State is kept for the beginning only. The model must read"), "{text}");
}

fn opened(t: &Chat) -> Vec<String> {
    let view = t.view();
    let name = |o: &OpenSession| match (o.serial == view.serial, o.name.as_str()) {
        (true, name) => format!("[{name}]"),
        (false, name) => name.to_owned(),
    };
    view.opened.iter().map(name).collect()
}

fn serial(t: &Chat, name: &str) -> u64 {
    let opened = t.view().opened;
    opened.iter().find(|o| o.name == name).unwrap().serial
}

fn a_number_is_a_name_that_no_session_has_by_being_counted() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.ask("One?");
    t.send(Request::Fork { at: None, name: Some("1".into()) });
    t.sync();
    assert_eq!(opened(&t), ["one", "[1]"]);
    t.send(Request::New(Some("1".into())));
    t.note_with("A session called \"1\" exists: choose another name.");
}

fn sessions_opened_in_a_run_are_listed_and_reopened() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.ask("One?");
    t.send(Request::New(Some("other".into())));
    t.ask("Two?");
    assert_eq!(opened(&t), ["one", "[other]"]);
    t.send(Request::Fork { at: None, name: Some("third".into()) });
    t.sync();
    assert_eq!(opened(&t), ["one", "other", "[third]"]);
    t.work();
    t.send(Request::Switch(serial(&t, "one")));
    t.sync();
    assert_eq!(opened(&t), ["[one]", "other", "third"]);
    assert_eq!(t.view().messages.len(), 2);
    let resumed = |n: &&Notice| matches!(n, Notice::Note(_, text) if text.contains("Resumed"));
    assert_eq!(t.seen.iter().find(resumed), None, "nothing to tell");
    t.ask("And now?");
    assert!(t.work().0 < 40, "nothing is read again");
    // Opened by name it keeps its place; a new name and a deletion are followed.
    t.send(Request::Resume("other".into()));
    t.note_with("Resumed");
    t.send(Request::Rename("renamed".into()));
    t.send(Request::Delete(Some("third".into())));
    let id = t.wait("a question", |n| match n {
        Notice::Question { id, .. } => Some(*id),
        _ => None,
    });
    t.send(Request::Choose { question: id, key: 'y' });
    t.note_with("in the trash");
    assert_eq!(opened(&t), ["one", "[renamed]"]);
    // No name is one that means a session, in whatever way it is given.
    let refused = "\"last\" means the session changed last: choose another name.";
    let last = || Some("last".to_owned());
    for request in [Request::Rename("last".into()), Request::Fork { at: None, name: last() }, Request::New(last())] {
        assert_eq!(t.note(request), refused);
    }
    t.sync();
    assert_eq!(opened(&t), ["one", "[renamed]"]);
    t.send(Request::New(None));
    t.note_with("New session.");
    assert_eq!(t.note(Request::Rename("last".into())), refused);
}

fn an_empty_session_stays_only_while_a_key_may_return_to_it() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.ask("One?");
    t.send(Request::New(None));
    t.send(Request::Set(Some(("temperature".into(), "0.3".into()))));
    t.send(Request::System(Some("Be brief.".into())));
    t.sync();
    assert_eq!(opened(&t), ["one", "[]"]);
    let empty = serial(&t, "");
    t.send(Request::Switch(serial(&t, "one")));
    t.sync();
    assert_eq!(opened(&t), ["[one]", ""]);
    t.send(Request::Switch(empty));
    t.sync();
    t.send(Request::Set(None));
    let table = t.wait("settings", |n| match n {
        Notice::Page { text, .. } => Some(text.clone()),
        _ => None,
    });
    assert!(table.contains("| temperature | 0.3 |"), "{table}");
    t.work();
    t.ask("Two?");
    assert!(t.given()[0].contains("Be brief."));
    // Left by a command, an empty one is gone: /new makes another.
    t.send(Request::New(None));
    t.send(Request::Resume("one".into()));
    t.note_with("Resumed");
    assert_eq!(opened(&t), ["[one]", "two"]);
}

fn a_session_that_was_left_is_free_for_others_and_held_again_on_return() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.ask("One?");
    t.send(Request::New(Some("other".into())));
    t.ask("Two?");
    let mut second = Chat::new(dir.path(), resume("one"));
    second.note_with("Resumed");
    second.ask("From elsewhere?");
    second.on_disk();
    // While it is in use there, coming back asks, and Esc stays.
    t.send(Request::Switch(serial(&t, "one")));
    let (id, text) = t.wait("a question", |n| match n {
        Notice::Question { id, text, .. } => Some((*id, text.clone())),
        _ => None,
    });
    assert!(text.contains("in use by PID"), "{text}");
    t.send(Request::Choose { question: id, key: '' });
    t.sync();
    assert_eq!(opened(&t), ["one", "[other]"]);
    second.quit();
    t.send(Request::Switch(serial(&t, "one")));
    t.sync();
    assert_eq!(t.view().messages.len(), 4, "what was said elsewhere is here");
    let mut third = Chat::new(dir.path(), resume("one"));
    third.wait("a refusal", |n| match n {
        Notice::Question { text, .. } if text.contains("in use by PID") => Some(()),
        _ => None,
    });
}

fn a_session_in_use_can_be_forked() {
    let dir = dir();
    let mut first = Chat::new(dir.path(), Setup::default());
    first.ask("Hello?");
    first.on_disk();
    let name = first.name();
    let mut second = Chat::new(dir.path(), resume(&name));
    let (id, text) = second.wait("a question", |n| match n {
        Notice::Question { id, text, .. } => Some((*id, text.clone())),
        _ => None,
    });
    assert!(text.contains("in use by PID"), "{text}");
    second.send(Request::Choose { question: id, key: 'f' });
    second.note_with("forked at #2");
    assert_eq!(second.name(), format!("{name}-fork"));
    second.ask("And you?");
    assert!(second.work().0 < 30);
    second.quit();
    // A shell has no such choice and gets advice instead; so does a pipe in line mode.
    let one_shot = Setup { attendance: Attendance::Absent, ..resume(&name) };
    let piped = Setup { opening: Opening::ResumeOrEnd(name.clone()), ..Setup::default() };
    for setup in [one_shot, piped] {
        let mut third = Chat::new(dir.path(), setup);
        let (error, exit) = third.wait("a refusal", |n| match n {
            Notice::Fatal { error, exit } => Some((error.clone(), *exit)),
            _ => None,
        });
        assert!(error.ends_with("Close it there first."), "{error}");
        assert_eq!(exit, Exit::InUse);
    }
    first.quit();
}

fn a_request_is_acknowledged_after_its_last_notice() {
    let (dir, text) = (dir(), text_model(None));
    let mut t = Chat::new(dir.path(), Setup { titles: true, script: titling(&text), ..Setup::default() });
    let asks = [
        Request::Ask("One?".into()),
        Request::Branch(BranchTarget::Name("nowhere".into())),
        Request::Undo(9),
        Request::Ask("  ".into()),
        Request::Docs,
    ];
    for (request, number) in asks.into_iter().zip(1..) {
        let before = t.seen.len();
        t.send(request);
        let served = t.wait("to be served", |n| if let Notice::Acknowledged(count) = n { Some(*count) } else { None });
        assert_eq!(served, number);
        let own = |n: &Notice| {
            matches!(n, Notice::Note(..) | Notice::Documents { .. } | Notice::Finished(_) | Notice::Session(_))
        };
        assert!(t.seen[before..].iter().any(own), "{:?}", &t.seen[before..]);
    }
    let quiet = t.seen.len();
    t.send(Request::Stop);
    t.wait("a stop of nothing", |n| matches!(n, Notice::Acknowledged(6)).then_some(()));
    assert!(!t.seen[quiet..].iter().any(|n| matches!(n, Notice::Note(..))));
}

fn two_terminals_that_start_alike_reopen_their_own_sessions() {
    let dir = dir();
    let mut both = [Setup::default(), Setup::default()].map(|setup| Chat::new(dir.path(), setup));
    // Both look for a free name before either is on disk.
    let other = rusqlite::Connection::open(dir.path().join("data/sala.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    for t in &mut both {
        t.send(Request::Ask("Hello there?".into()));
        t.wait("a name", |n| matches!(n, Notice::Session(view) if view.name == "hello-there").then_some(()));
    }
    other.execute_batch("ROLLBACK").unwrap();
    let farewell = |mut t: Chat| {
        t.finished();
        t.on_disk();
        // The notice during the run equals the one at the end.
        let (name, shown) = (t.name(), opened(&t));
        assert_eq!(shown, [format!("[{name}]")]);
        let farewell = t.quit().unwrap();
        assert!(farewell.ends_with(&format!(" -r {name}")), "{name}: {farewell}");
        farewell
    };
    let mut farewells: Vec<_> = both.into_iter().map(farewell).collect();
    farewells.sort();
    let back = |name: &str| format!("Saved. Come back with: sala-chat -r {name}");
    assert_eq!(farewells, [back("hello-there"), back("hello-there-2")]);
}

#[test]
fn a_new_session_has_nothing_of_the_one_before_in_its_context() {
    let dir = dir();
    std::fs::write(dir.path().join("notes.txt"), "The code of Arvel station is TR-5512-K.\n".repeat(9)).unwrap();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.ask("Who keeps it?");
    t.send(Request::New(None));
    t.sync();
    t.send(Request::Context);
    let page = t.wait("a page", |n| if let Notice::Page { text, .. } = n { Some(text.clone()) } else { None });
    assert!(page.starts_with("0 of "), "{page}");
    // Reports the meters once more.
    t.send(Request::Library(LibraryAction::Add("notes.txt".into())));
    t.note_with("is in the library");
    t.sync();
    let meters = t.seen.iter().rev().find_map(|n| if let Notice::Meters(m) = n { Some(m.clone()) } else { None });
    assert_eq!(meters.unwrap().context_used, 0);
}

fn what_another_process_wrote_is_gone_on_with_whole() {
    let dir = dir();
    let mut here = Chat::new(dir.path(), Setup::default());
    here.ask("One?");
    let mut there = Chat::new(dir.path(), Setup::default());
    there.ask("Two?");
    there.ask("Three?");
    let name = there.name();
    there.quit();
    // The ids that this process has left are lower than those there.
    here.send(Request::Resume(name.clone()));
    here.note_with("Resumed");
    here.work();
    here.ask("Four?");
    assert!(here.work().0 < 40, "nothing is read again");
    here.ask("Five?");
    here.quit();
    let mut again = Chat::new(dir.path(), resume(&name));
    again.note_with("Resumed");
    assert_eq!(again.view().messages.len(), 8);
}

fn what_is_open_to_view_only_is_neither_deleted_nor_changed() {
    let dir = dir();
    let mut owner = Chat::new(dir.path(), Setup::default());
    owner.ask("One?");
    let name = owner.name();
    let settings = || support::store(&dir.path().join("data")).session_named(&name).unwrap().settings;
    let before = settings();
    let mut viewer = Chat::new(dir.path(), resume(&name));
    let id = viewer.wait("a question", |n| match n {
        Notice::Question { id, .. } => Some(*id),
        _ => None,
    });
    viewer.send(Request::Choose { question: id, key: 'v' });
    viewer.send(Request::Set(Some(("temperature".into(), "0.3".into()))));
    viewer.send(Request::Delete(None));
    viewer.note_with("Close it there first.");
    assert_eq!(settings(), before);
    owner.ask("Two?");
    owner.quit();
    assert_eq!(support::store(&dir.path().join("data")).session_named(&name).unwrap().messages, 4);
}

fn a_deletion_lists_what_it_removes_and_how_to_restore_it() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.ask("One?");
    t.send(Request::Regen { at: None, count: 1, temperature: None, seed: Some(7) });
    t.finished();
    t.send(Request::Rename("two words".into()));
    t.send(Request::New(None));
    t.note_with("/resume \"two words\"");
    t.send(Request::Delete(Some("last".into())));
    let (id, text) = question(&mut t);
    assert!(text.starts_with("Delete \"two words\" (3 messages on 2 branches, "), "{text}");
    assert!(text.ends_with("It stays in the trash for 7 days."), "{text}");
    t.send(Request::Choose { question: id, key: 'y' });
    t.note_with("Back with: /resume \"two words\"");
    t.quit();
}

#[test]
fn sessions_that_end_with_the_program_are_not_called_saved() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup { discard: true, ..Setup::default() });
    t.ask("Hello?");
    let name = t.name();
    t.send(Request::New(None));
    t.note_with(&format!("New session. The last one is there until the program ends: /resume {name}"));
    t.send(Request::Delete(Some(name)));
    let (_, text) = question(&mut t);
    assert!(text.ends_with("It stays in the trash until the program ends."), "{text}");
    t.quit();
}

#[test]
fn a_one_shot_session_is_listed_last_until_pinned() {
    let dir = dir();
    for (name, attendance) in [("talk", Attendance::Present), ("once", Attendance::Absent)] {
        let mut t = Chat::new(dir.path(), Setup { attendance, ..Setup::default() });
        t.send(Request::New(Some(name.into())));
        t.send(Request::Ask("Hello?".into()));
        t.finished();
        t.quit();
    }
    let rows = |t: &mut Chat| {
        t.send(Request::Sessions);
        t.wait("the list", |n| match n {
            Notice::Sessions(rows) => Some(rows.iter().map(|r| (r.name.clone(), r.title.clone())).collect::<Vec<_>>()),
            _ => None,
        })
    };
    let mut t = Chat::new(dir.path(), Setup::default());
    let listed = rows(&mut t);
    assert!(listed[0].0 == "talk" && listed[1].0 == "once" && listed[1].1.starts_with("(-p) "), "{listed:?}");
    t.note(Request::Pin(Some("once".into())));
    let listed = rows(&mut t);
    assert!(listed[0].0 == "once" && listed[0].1.starts_with("(pinned) "), "{listed:?}");
    t.quit();
}

#[test]
fn a_pinned_session_is_listed_first() {
    let dir = dir();
    let rows = |t: &mut Chat| {
        t.send(Request::Sessions);
        t.wait("the list", |n| match n {
            Notice::Sessions(rows) => Some(rows.iter().map(|r| (r.name.clone(), r.title.clone())).collect::<Vec<_>>()),
            _ => None,
        })
    };
    let names = |t: &mut Chat| rows(t).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    let mut t = Chat::new(dir.path(), Setup::default());
    assert!(t.note(Request::Pin(None)).contains("no session to pin"));
    for name in ["one", "two", "three"] {
        t.send(Request::New(Some(name.into())));
        t.ask("Hello?");
    }
    assert_eq!(names(&mut t), ["three", "two", "one"]);
    assert!(t.note(Request::Pin(Some("one".into()))).contains("\"one\" is pinned"));
    assert_eq!(names(&mut t), ["one", "three", "two"]);
    t.quit();
    let mut t = Chat::new(dir.path(), resume("two"));
    t.note_with("Resumed");
    assert_eq!(names(&mut t), ["one", "three", "two"], "also after a restart");
    t.note(Request::Pin(None));
    assert_eq!(
        rows(&mut t).iter().map(|(_, title)| title.starts_with("(pinned) ")).collect::<Vec<_>>(),
        [true, true, false]
    );
    assert!(t.note(Request::Pin(Some("one".into()))).contains("no longer pinned"));
    assert_eq!(names(&mut t), ["two", "three", "one"]);
    t.quit();
}

with_both_tokenizers!(
    what_another_process_wrote_is_gone_on_with_whole,
    what_is_open_to_view_only_is_neither_deleted_nor_changed,
    a_deletion_lists_what_it_removes_and_how_to_restore_it,
    a_resumed_session_reads_nothing_again_and_answers_as_if_never_left,
    state_of_another_model_is_unused_and_rereading_needs_consent,
    state_of_the_beginning_only_is_not_called_none,
    a_number_is_a_name_that_no_session_has_by_being_counted,
    sessions_opened_in_a_run_are_listed_and_reopened,
    an_empty_session_stays_only_while_a_key_may_return_to_it,
    a_session_that_was_left_is_free_for_others_and_held_again_on_return,
    a_session_in_use_can_be_forked,
    two_terminals_that_start_alike_reopen_their_own_sessions,
    a_request_is_acknowledged_after_its_last_notice,
);
