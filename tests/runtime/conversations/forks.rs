//! Forks: what they keep of the session they came from.

use super::*;
use sala_chat::store::Watch;

fn a_fork_keeps_all_up_to_where_it_was_forked() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.ask("Hello there?");
    t.ask("Who keeps the lamp?");
    let whole = t.name();
    t.note(Request::Fork { at: None, name: Some("beside".into()) });
    t.note(Request::Undo(1));
    t.ask("What else?");
    t.note(Request::Fork { at: None, name: Some("deeper".into()) });
    t.note(Request::Undo(2));
    t.quit();

    let mut t = Chat::new(dir.path(), resume("beside"));
    t.note_with("Resumed");
    assert_eq!((t.view().tree.branch, t.view().tree.timeline.len()), ((2, 2), 3));
    let note = t.note(Request::Branch(BranchTarget::Sibling(Sibling::Number(1))));
    assert!(note.starts_with("Branch 1/2, at #4: "), "{note}");
    assert_eq!(t.view().messages[2].text, "Who keeps the lamp?");
    t.note(Request::Branch(BranchTarget::Sibling(Sibling::Number(2))));
    t.quit();
    let mut t = Chat::new(dir.path(), resume("deeper"));
    t.sync();
    assert_eq!((t.view().messages.len(), t.view().tree.timeline.len()), (0, 2));
    t.send(Request::Redo(2));
    t.note_with("Went forward to #4: ");
    t.note(Request::Undo(2));
    t.quit();

    // Messages that only forks show outlive their session.
    let store = support::store(&dir.path().join("data"));
    let id = |name: &str| store.session_named(name).unwrap().id;
    let texts = |name: &str| -> Vec<String> {
        let tree = store.tree(id(name), "", 100).unwrap().into_iter();
        tree.filter(|n| n.message.role == Role::User).map(|n| n.message.text).collect()
    };
    let questions = ["Hello there?", "Who keeps the lamp?", "What else?"];
    assert_eq!(store.own_title(id("deeper")).unwrap(), None, "it is its first question");
    store.delete(id(&whole)).unwrap();
    let found = store.search("keeps the lamp", 10, &Watch::NONE).unwrap();
    assert_eq!(found.iter().map(|hit| hit.session.as_str()).collect::<Vec<_>>(), ["beside"]);
    assert_eq!(store.empty_trash(Some(0)).unwrap().sessions, 1);
    assert_eq!(texts("beside"), questions);
    assert_eq!(texts("deeper"), [questions[0], questions[2]]);
    store.delete(id("beside")).unwrap();
    assert_eq!(store.empty_trash(Some(0)).unwrap().messages, 2, "nothing shows the lamp any more");
    assert_eq!(texts("deeper"), [questions[0], questions[2]]);
}

/// The messages on screen.
fn shown(t: &Chat) -> Vec<MessageId> {
    let mut ids = Vec::new();
    for notice in &t.seen {
        match notice {
            Notice::Session(view) => ids = view.messages.iter().map(|m| m.id).collect(),
            Notice::Added(m) => ids.push(m.id),
            _ => {}
        }
    }
    ids
}

fn going_on_with_an_answer_leaves_it_to_those_who_have_it() {
    let dir = dir();
    let text = text_model(None);
    let script = always(text.clone(), "one two three four five six seven eight nine ten eleven twelve");
    let mut t = Chat::new(dir.path(), Setup { text, script, ..Setup::default() });
    t.note(Request::Set(Some(("max_tokens".into(), "4".into()))));
    let first = t.ask("Count");
    assert_eq!(first.meta.finish, Some(Finish::Length));
    let name = t.name();
    // No other session shares it, so it grows.
    t.send(Request::Continue(None));
    let first = {
        let whole = t.finished();
        assert_eq!(whole.id, first.id);
        whole
    };
    t.sync();
    t.note(Request::Fork { at: None, name: Some("beside".into()) });
    t.send(Request::Continue(Some("and then".into())));
    let more = t.finished();
    t.sync();
    assert_ne!(more.id, first.id);
    assert!(more.text.starts_with(&first.text) && more.text.contains("and then"), "{}", more.text);
    let question = t.view().messages[0].id;
    assert_eq!((shown(&t), t.view().tree.branch), (vec![question, more.id], (2, 2)));
    // What it went on from is shown before the first word that is new.
    let begun = t.seen.iter().rev().find_map(|n| if let Notice::Added(m) = n { Some(m.clone()) } else { None });
    assert_eq!(begun.map(|m| (m.id, m.text, m.meta.finish)), Some((more.id, first.text.clone(), None)));
    t.send(Request::Resume(name.clone()));
    t.note_with("Resumed");
    assert_eq!(t.view().messages[1].text, first.text);
    // The fork depends on it, so it stays unchanged here, too.
    t.send(Request::Continue(None));
    assert_ne!(t.finished().id, first.id);
    t.sync();
    t.quit();
    let store = support::store(&dir.path().join("data"));
    assert_eq!(store.path(first.id).unwrap()[1].text, first.text);
    let of = |name: &str| store.path(store.session_named(name).unwrap().head.unwrap()).unwrap().pop().unwrap();
    assert_eq!((of("beside").text, of("beside").id), (more.text, more.id));
}

fn continuing_an_answer_keeps_the_messages_below_it() {
    let dir = dir();
    let text = text_model(None);
    let script = always(text.clone(), "one two three four five six seven eight nine ten eleven twelve");
    let mut t = Chat::new(dir.path(), Setup { text, script, ..Setup::default() });
    t.note(Request::Set(Some(("max_tokens".into(), "4".into()))));
    let first = t.ask("Count");
    t.note(Request::Mark("here".into()));
    t.ask("Again");
    t.note(Request::Undo(1));
    t.send(Request::Continue(None));
    let more = t.finished();
    t.sync();
    assert!(more.id != first.id && more.text.len() > first.text.len(), "{more:?}");
    let question = t.view().messages[0].id;
    assert_eq!(shown(&t), [question, more.id]);
    let note = t.note(Request::Branch(BranchTarget::Sibling(Sibling::Number(1))));
    assert!(note.starts_with("Branch 1/2"), "{note}");
    let view = t.view();
    assert_eq!((view.messages.len(), view.messages[1].text.as_str()), (4, first.text.as_str()));
    // The name stays with what it was given to.
    t.note(Request::Goto(GotoTarget::Mark("here".into())));
    assert_eq!(t.view().messages.last().map(|m| m.id), Some(first.id));
}

fn a_fork_during_an_answer_has_the_text_so_far() {
    let dir = dir();
    let (permit, gate) = crossbeam_channel::unbounded();
    let text = text_model(None);
    let script = always(text.clone(), "one two three four five six seven eight");
    let mut owner = Chat::new(dir.path(), Setup { text, script, gate: Some(gate), ..Setup::default() });
    for _ in 0..5 {
        permit.send(()).unwrap();
    }
    owner.send(Request::Ask("Count".into()));
    owner.wait("some words", |n| matches!(n, Notice::Delta { .. }).then_some(()));
    let name = owner.name();
    let store = support::store(&dir.path().join("data"));
    let last_of = |name: &str| store.path(store.session_named(name).unwrap().head.unwrap()).unwrap().pop().unwrap();
    let until = std::time::Instant::now() + support::PATIENCE;
    let open = loop {
        let last = last_of(&name);
        if last.is_open() && !last.text.is_empty() {
            break last;
        }
        assert!(std::time::Instant::now() < until, "what is written is not saved");
        std::thread::yield_now();
    };
    let mut second = Chat::new(dir.path(), resume(&name));
    let id = question(&mut second).0;
    second.send(Request::Choose { question: id, key: 'f' });
    second.note_with("forked at #2");
    let copy = second.view().messages[1].clone();
    assert!(copy.id != open.id && copy.text.starts_with(&open.text), "{copy:?}");
    assert_eq!(copy.meta.finish, Some(Finish::Stopped));
    let fork = second.name();
    second.on_disk();
    drop(permit);
    let whole = owner.finished();
    owner.sync();
    owner.on_disk();
    assert!(whole.text.len() > copy.text.len(), "{whole:?}");
    assert_eq!((last_of(&fork).id, last_of(&fork).text), (copy.id, copy.text));
    assert_eq!((last_of(&name).id, last_of(&name).text), (open.id, whole.text));
    second.quit();
    owner.quit();
}

fn a_message_has_all_the_names_it_was_given() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.ask("Hello there?");
    let name = t.name();
    for mark in ["a", "b"] {
        let note = t.note(Request::Mark(mark.into()));
        assert!(note.ends_with("returns to it; its state is kept."), "{note}");
    }
    t.ask("Who keeps the lamp?");
    let both = |t: &mut Chat| {
        for mark in ["a", "b"] {
            let note = t.note(Request::Goto(GotoTarget::Mark(mark.into())));
            assert!(note.starts_with(&format!("At \"{mark}\", #2: ")), "{note}");
            t.note(Request::Redo(1));
        }
        assert_eq!(t.view().tree.timeline[0].label.as_deref(), Some("a, b"));
    };
    both(&mut t);
    t.quit();
    let never = Setup { save_state: sala_chat::config::settings::SaveStates::Never, ..resume(&name) };
    let mut t = Chat::new(dir.path(), never);
    t.note_with("Resumed");
    both(&mut t);
    t.ask("And who cleans it?");
    let note = t.note(Request::Mark("c".into()));
    assert!(note.ends_with("/goto c returns to it."), "{note}");
}

fn branches_are_counted_at_the_head_or_at_the_nearest_fork() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.ask("One?");
    t.send(Request::Regen { at: None, count: 1, temperature: None, seed: None });
    t.finished();
    let first = t.view().messages[0].id;
    t.send(Request::EditDone { message: first, text: "Uno?".into() });
    t.finished();
    t.sync();
    assert_eq!(t.view().tree.branch, (2, 2));
    let nearest = |sibling| Request::Branch(BranchTarget::Sibling(sibling));
    // Below the first question there are two answers, where the header counts.
    let note = t.note(nearest(Sibling::Next));
    assert!(note.starts_with("Branch 1/2, at #2: "), "{note}");
    assert_eq!(t.view().tree.branch, (2, 2));
    assert_eq!(t.note(nearest(Sibling::Number(3))), "There are branches 1 to 2 here.");
    assert_eq!(t.note(nearest(Sibling::Number(0))), "There are branches 1 to 2 here.");
    let note = t.note(nearest(Sibling::Number(1)));
    assert!(note.starts_with("Branch 1/2, at #2: "), "{note}");
    // Gone back to before the first question, both go on from there.
    t.note(Request::Undo(1));
    let note = t.note(nearest(Sibling::Number(2)));
    assert!(note.starts_with("Branch 2/2, at #2: "), "{note}");
    assert_eq!(t.view().messages[0].text, "Uno?");
    t.note(Request::Undo(1));
    let note = t.note(nearest(Sibling::Next));
    assert!(note.starts_with("Branch 1/2, at #2: "), "{note}");
}

#[test]
fn redo_restores_undone_turns_in_a_reopened_session() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.ask("One?");
    let name = t.name();
    t.note(Request::Undo(1));
    t.ask("Another?");
    let note = t.note(Request::Branch(BranchTarget::Sibling(Sibling::Number(1))));
    assert!(note.starts_with("Branch 1/2"), "{note}");
    t.note(Request::Undo(1));
    t.quit();
    let mut t = Chat::new(dir.path(), resume(&name));
    t.note_with("All its messages are undone.");
    t.send(Request::Redo(1));
    t.note_with("Went forward to #2");
    assert_eq!(t.view().messages[0].text, "One?", "the other one is newer");
}

#[test]
fn the_unedited_part_of_a_message_is_unchanged() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    // From an import: it cannot be typed.
    let odd = "Is \x1b[31mred\x1b[0m \u{202e}more?";
    t.ask(odd);
    let note = t.note(Request::EditOpen(None));
    assert!(note.starts_with("Characters that a terminal would obey are spelled out"), "{note}");
    let message = t.view().messages[0].id;
    for (edit, expected) in [("", odd.to_owned()), ("not ", format!("Is not {}", &odd[3..]))] {
        let shown = sala_chat::core::sanitize::sanitize(odd).replacen("Is ", &format!("Is {edit}"), 1);
        t.send(Request::EditDone { message, text: shown });
        t.finished();
        t.sync();
        let note = t.seen.iter().rev().find_map(|n| match n {
            Notice::Added(m) if m.role == Role::User => Some(m.text.clone()),
            _ => None,
        });
        assert_eq!(note, Some(expected));
    }
}

#[test]
fn one_redo_takes_back_one_undo_whatever_its_count() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    for question in ["One?", "Two?", "Three?"] {
        t.ask(question);
    }
    let after = |t: &mut Chat, request: Request| {
        t.note(request);
        t.view().messages.len()
    };
    assert_eq!((after(&mut t, Request::Undo(99)), after(&mut t, Request::Redo(1))), (0, 6));
    let steps = [Request::Undo(1), Request::Undo(2), Request::Redo(1), Request::Redo(1)];
    assert_eq!(steps.map(|request| after(&mut t, request)), [4, 0, 4, 6]);
    let several = [Request::Undo(1), Request::Undo(1), Request::Undo(1), Request::Redo(3)];
    assert_eq!(several.map(|request| after(&mut t, request)), [4, 2, 0, 6]);
    after(&mut t, Request::Undo(99));
    t.quit();
    let mut t = Chat::new(dir.path(), resume("last"));
    t.sync();
    assert_eq!(after(&mut t, Request::Redo(1)), 6, "also after a restart");
    t.quit();
}

#[test]
fn a_message_that_begins_with_a_slash_returns_as_a_message() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.ask("/quit now");
    for request in [Request::EditOpen(None), Request::Undo(1)] {
        t.send(request);
        let line = t.wait("the input", |n| match n {
            Notice::Input { text, .. } => Some(text.clone()),
            _ => None,
        });
        assert_eq!(line, "//quit now");
    }
    t.quit();
    let mut t = Chat::new(dir.path(), Setup::default());
    let prompts = t.wait("earlier prompts", |n| match n {
        Notice::Prompts(prompts) => Some(prompts.clone()),
        _ => None,
    });
    assert_eq!(prompts, ["//quit now"]);
}

with_both_tokenizers!(
    a_fork_keeps_all_up_to_where_it_was_forked,
    going_on_with_an_answer_leaves_it_to_those_who_have_it,
    continuing_an_answer_keeps_the_messages_below_it,
    a_fork_during_an_answer_has_the_text_so_far,
    a_message_has_all_the_names_it_was_given,
    branches_are_counted_at_the_head_or_at_the_nearest_fork,
);
