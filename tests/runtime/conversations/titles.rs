//! Titles by the model.

use super::*;

fn a_session_gets_a_title_outside_the_conversation_and_keeps_it() {
    let (dir, plain) = (dir(), dir());
    let text = text_model(None);
    let setup = || Setup { titles: true, script: titling(&text), ..Setup::default() };
    let mut without = Chat::new(plain.path(), Setup::default());
    let expected = ["How long is it?", "And how wide?"].map(|q| without.ask(q).text);
    without.quit();

    let mut t = Chat::new(dir.path(), setup());
    t.send(Request::Ask("How long is it?".into()));
    assert_eq!(t.finished().text, expected[0]);
    // What the interface shows while it is made: nothing.
    t.idle();
    let from = t.seen.len();
    assert_eq!(t.titled(), "The bridge at Arvel");
    t.on_disk();
    let shown = t.seen[from..].iter().filter(|n| matches!(n, Notice::Activity(a) if *a != Activity::Idle));
    assert_eq!(shown.count(), 0, "{:?}", &t.seen[from..]);
    let given = t.given();
    assert!(given.len() == 2 && given[1].contains("How long is it?") && given[1].contains(&expected[0]), "{given:?}");
    assert_eq!(titles(&mut t), ["The bridge at Arvel"]);
    // The conversation is where it was, and one title is enough.
    assert_eq!(t.ask("And how wide?").text, expected[1]);
    assert_eq!(t.given().len(), 1);
    // One that somebody gives stays.
    t.note(Request::Title("  Widths \u{1b}[31mand lengths ".into()));
    let name = t.name();
    t.quit();
    let mut t = Chat::new(dir.path(), Setup { opening: Opening::Resume(name.clone()), ..setup() });
    t.note_with("Resumed");
    assert!(t.view().title.starts_with("Widths ") && !t.view().title.contains('\u{1b}'), "{}", t.view().title);
    let title = t.view().title;
    t.ask("And how high?");
    assert_eq!(titles(&mut t), std::slice::from_ref(&title));
    assert_eq!(t.given().len(), 1);
    // Also a title set before the first message.
    t.send(Request::New(None));
    t.note(Request::Title("Piers".into()));
    t.ask("How many piers?");
    assert_eq!(titles(&mut t), ["Piers".to_owned(), title]);
    assert_eq!(t.given().len(), 1);
    t.quit();
}

fn a_question_precedes_a_title_in_progress() {
    let dir = dir();
    let text = text_model(None);
    // Few enough that what is left over makes no title.
    let (permits, gate) = crossbeam_channel::bounded(1);
    let setup = Setup { titles: true, script: titling(&text), gate: Some(gate), ..Setup::default() };
    let mut t = Chat::new(dir.path(), setup);
    t.send(Request::Ask("How long is it?".into()));
    // Permits until it has answered and is idle, and a few that are left for the title's first rows.
    let answered = |t: &mut Chat, permits: &crossbeam_channel::Sender<()>| {
        let from = t.seen.len();
        let idle = |n: &Notice| matches!(n, Notice::Activity(Activity::Idle));
        loop {
            let _ = permits.try_send(());
            t.seen.extend(t.runtime.notices.try_iter());
            let new = &t.seen[from..];
            let done = new.iter().position(|n| matches!(n, Notice::Finished(m) if m.role == Role::Assistant));
            if done.is_some_and(|at| new[at..].iter().any(idle)) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    };
    answered(&mut t, &permits);
    // It begins, and waits for a permit.
    std::thread::sleep(std::time::Duration::from_millis(50));
    let before = t.seen.len();
    t.send(Request::Ask("And how wide?".into()));
    answered(&mut t, &permits);
    let at = |t: &Chat, what: fn(&Notice) -> bool| t.seen[before..].iter().position(what).unwrap_or(usize::MAX);
    let titled = at(&t, |n| matches!(n, Notice::Titled(_)));
    let finished = at(&t, |n| matches!(n, Notice::Finished(m) if m.role == Role::Assistant));
    assert!(titled > finished, "the question waited for the title");
    // It is made after that answer.
    drop(permits);
    if titled == usize::MAX {
        assert_eq!(t.titled(), "The bridge at Arvel");
    }
    let given = t.given();
    assert!(given.len() >= 3 && given[given.len() - 1].contains("Write a title"), "{given:?}");
    t.quit();
}

fn titles_need_the_setting_a_second_slot_and_a_terminal() {
    let text = text_model(None);
    let setup = || Setup { titles: true, script: titling(&text), ..Setup::default() };
    for setup in
        [Setup { model: "demo", ..setup() }, Setup { titles: false, ..setup() }, Setup { sequences: 1, ..setup() }]
    {
        let dir = dir();
        let mut t = Chat::new(dir.path(), setup);
        t.send(Request::Ask("How long is it?".into()));
        t.finished();
        t.idle();
        assert_eq!(titles(&mut t), ["How long is it?"]);
        t.sync();
        assert_eq!(t.given().len(), 1);
        t.quit();
    }
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup { attendance: Attendance::Absent, ..setup() });
    t.send(Request::Ask("How long is it?".into()));
    t.finished();
    assert_eq!(t.given().len(), 1);
    t.quit();
}

with_both_tokenizers!(
    a_session_gets_a_title_outside_the_conversation_and_keeps_it,
    a_question_precedes_a_title_in_progress,
    titles_need_the_setting_a_second_slot_and_a_terminal,
);
