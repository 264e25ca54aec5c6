//! View-only sessions and how they become writable.

use super::*;

fn may_not_write(t: &mut Chat) {
    t.send(Request::Ask("May I?".into()));
    let note = t.note_with("view only");
    let next = format!("/resume {} tries again, /fork makes a copy you can write in.", t.name());
    assert!(note.ends_with(&next), "{note}");
    assert!(t.view().view_only);
}

fn a_viewed_session_is_writable_once_it_is_free() {
    let dir = dir();
    let mut owner = Chat::new(dir.path(), Setup::default());
    owner.ask("One?");
    owner.on_disk();
    let name = owner.name();
    let mut viewer = viewing(dir.path(), &name);
    may_not_write(&mut viewer);
    // A place in the timeline is forked in one request: what cannot be gone to is not forked elsewhere.
    let first = viewer.view().messages[0].id;
    let mut forker = viewing(dir.path(), &name);
    may_not_write(&mut forker);
    forker.send(Request::ForkFrom(first));
    forker.note_with("forked at #2");
    forker.quit();
    // While it is open there the question repeats; new messages are shown.
    owner.ask("Two?");
    owner.on_disk();
    for key in ['\x1b', 'v'] {
        viewer.send(Request::Resume(name.clone()));
        let (id, text) = question(&mut viewer);
        assert!(text.contains("in use by PID"), "{text}");
        viewer.send(Request::Choose { question: id, key });
        viewer.note_with(if key == 'v' { "Resumed" } else { "Close it there first." });
        assert_eq!(viewer.view().messages.len(), if key == 'v' { 4 } else { 2 });
        assert!(viewer.view().view_only);
    }
    owner.ask("Three?");
    owner.quit();
    viewer.send(Request::Resume("last".into()));
    viewer.note_with("Resumed");
    assert_eq!((viewer.view().messages.len(), viewer.view().view_only), (6, false));
    assert_eq!(viewer.view().opened.len(), 1);
    viewer.ask("Four?");
    assert_eq!(viewer.note(Request::Resume(name.clone())), format!("\"{name}\" is open already."));
    // It is held.
    let mut third = Chat::new(dir.path(), resume(&name));
    assert!(question(&mut third).1.contains("in use by PID"));
    viewer.quit();
    assert_eq!(support::store(&dir.path().join("data")).session_named(&name).unwrap().messages, 8);
}

fn reading_again_that_was_declined_is_offered_again() {
    let dir = dir();
    let t = with_notes(dir.path(), "Well?");
    let name = t.name();
    t.quit();
    let mut t = Chat::new(dir.path(), Setup { fingerprint: "fake-2".into(), ..resume(&name) });
    let declined = question(&mut t);
    t.send(Request::Choose { question: declined.0, key: '\x1b' });
    may_not_write(&mut t);
    t.send(Request::Resume(name));
    let (id, text) = question(&mut t);
    assert_eq!(text, declined.1);
    t.send(Request::Choose { question: id, key: '\n' });
    t.note_with("Resumed");
    t.ask("And now?");
    assert!(!t.view().view_only);
}

/// Tokens in the context by the last notice.
fn used(t: &Chat) -> u64 {
    let meters = |n: &Notice| if let Notice::Meters(m) = n { Some(m.context_used) } else { None };
    t.seen.iter().rev().find_map(meters).unwrap()
}

fn what_was_too_long_to_be_read_is_counted_once_it_is_gone_back_in() {
    let dir = dir();
    let t = with_notes(dir.path(), &FACTS.repeat(10));
    let name = t.name();
    t.quit();
    let mut t = Chat::new(dir.path(), Setup { fingerprint: "fake-2".into(), ..resume(&name) });
    let (id, text) = question(&mut t);
    t.send(Request::Choose { question: id, key: '\x1b' });
    let (_, total) = text.split_once(" of ").unwrap();
    let total: u64 = total.split_once(" tokens").unwrap().0.replace(',', "").parse().unwrap();
    t.quit();
    // It fits, and leaves too little for an answer.
    let context_limit = total + 10;
    let mut t = Chat::new(dir.path(), Setup { fingerprint: "fake-2".into(), context_limit, ..resume(&name) });
    let (id, _) = question(&mut t);
    assert_eq!(used(&t), 0);
    t.send(Request::Choose { question: id, key: '\n' });
    t.note_with("holds beside an answer");
    t.send(Request::Undo(1));
    t.sync();
    assert!(used(&t) > 2_048, "{}", used(&t));
}

fn a_session_with_pruned_state_reports_it_and_counts_only_reads() {
    let dir = dir();
    let mut t = with_notes(dir.path(), "Well?");
    let name = t.name();
    t.on_disk();
    t.send(Request::New(None));
    t.ask("One?");
    t.on_disk();
    support::store(&dir.path().join("data")).drop_all_state(&[]).unwrap();
    t.send(Request::Resume(name.clone()));
    let (id, text) = question(&mut t);
    assert!(text.starts_with("State cannot be used: it was pruned. The model must read"), "{text}");
    assert_eq!(used(&t), 0);
    t.send(Request::Choose { question: id, key: '\x1b' });
    may_not_write(&mut t);
    assert_eq!(used(&t), 0);
    t.send(Request::Resume(name));
    let (id, _) = question(&mut t);
    t.send(Request::Choose { question: id, key: '\n' });
    t.note_with("Resumed");
    t.sync();
    assert!(used(&t) > 2_048, "{}", used(&t));
}

fn what_is_undone_to_its_beginning_says_what_is_kept() {
    for system in [None, Some("Be brief.".to_owned())] {
        undone_to_its_beginning(system);
    }
}

fn undone_to_its_beginning(system: Option<String>) {
    let dir = dir();
    let above = usize::from(system.is_some());
    let mut t = Chat::new(dir.path(), Setup { system, ..Setup::default() });
    t.ask("One?");
    t.ask("Two?");
    let name = t.name();
    t.send(Request::Undo(2));
    t.note_with("Went back 2 exchanges to ");
    t.quit();
    // A view-only session gets no advice to change it.
    let store = support::store(&dir.path().join("data"));
    let held = store.lock_session(store.session_named(&name).unwrap().id, &name).unwrap();
    let mut viewer = Chat::new(dir.path(), resume(&name));
    let (id, _) = question(&mut viewer);
    viewer.send(Request::Choose { question: id, key: 'v' });
    let note = viewer.note_with("All its messages are undone");
    assert!(note.ends_with(" /timeline shows what is kept (4 messages).") && !note.contains("/redo"), "{note}");
    viewer.quit();
    drop(held);
    let mut t = Chat::new(dir.path(), resume(&name));
    let note = t.note_with("All its messages are undone");
    assert!(note.contains("/redo restores what is kept (4 messages)"), "{note}");
    t.sync();
    assert_eq!((t.view().messages.len(), t.view().tree.timeline.len()), (above, 2), "{:?}", t.view());
    t.send(Request::Sessions);
    let counted = t.wait("the list", |n| match n {
        Notice::Sessions(rows) => Some(rows.iter().map(|r| r.counted()).collect::<Vec<_>>()),
        _ => None,
    });
    assert_eq!(counted, ["0 of 4"]);
    t.send(Request::Redo(2));
    t.note_with(&format!("Went forward to #{}", 4 + above));
    // An empty session has nothing to return to.
    t.send(Request::New(None));
    t.note_with("New session.");
    t.sync();
    assert_eq!(
        t.seen.iter().filter(|n| matches!(n, Notice::Note(_, t) if t.contains("All its messages are undone"))).count(),
        1
    );
}

with_both_tokenizers!(
    what_is_undone_to_its_beginning_says_what_is_kept,
    a_viewed_session_is_writable_once_it_is_free,
    reading_again_that_was_declined_is_offered_again,
    what_was_too_long_to_be_read_is_counted_once_it_is_gone_back_in,
    a_session_with_pruned_state_reports_it_and_counts_only_reads,
);
