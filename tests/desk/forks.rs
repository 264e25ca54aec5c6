//! Forks: what they keep of the session they came from.

use super::*;

fn a_fork_keeps_all_up_to_where_it_was_forked() {
    let dir = dir();
    let mut t = Talk::new(dir.path(), Setup::default());
    t.ask("Hello there?");
    t.ask("Who keeps the lamp?");
    let whole = t.name();
    t.note(Request::Fork { at: None, name: Some("beside".into()) });
    t.note(Request::Undo(1));
    t.ask("What else?");
    t.note(Request::Fork { at: None, name: Some("deeper".into()) });
    t.note(Request::Undo(2));
    t.quit();

    let mut t = Talk::new(dir.path(), resume("beside"));
    t.note_with("Resumed");
    assert_eq!((t.view().branch, t.view().timeline.len()), ((2, 2), 3));
    let said = t.note(Request::Branch(BranchTarget::Beside(None, Sibling::Number(1))));
    assert!(said.starts_with("Branch 1/2, at #4: "), "{said}");
    assert_eq!(t.view().messages[2].text, "Who keeps the lamp?");
    t.note(Request::Branch(BranchTarget::Beside(None, Sibling::Number(2))));
    t.quit();
    let mut t = Talk::new(dir.path(), resume("deeper"));
    t.sync();
    assert_eq!((t.view().messages.len(), t.view().timeline.len()), (0, 2));
    let said = t.note(Request::Redo(2));
    assert!(said.starts_with("Went forward 2 exchanges to #4: "), "{said}");
    t.note(Request::Undo(2));
    t.quit();

    // What only the forks show outlives the session it was said in.
    let store = support::store(&dir.path().join("data"));
    let id = |name: &str| store.session_named(name).unwrap().id;
    let texts = |name: &str| -> Vec<String> {
        let tree = store.tree(id(name), "", 100).unwrap().into_iter();
        tree.filter(|n| n.message.role == Role::User).map(|n| n.message.text).collect()
    };
    let questions = ["Hello there?", "Who keeps the lamp?", "What else?"];
    assert_eq!(store.own_title(id("deeper")).unwrap(), None, "it is its first question");
    store.delete(id(&whole)).unwrap();
    let found = store.search("keeps the lamp", 10).unwrap();
    assert_eq!(found.iter().map(|hit| hit.name.as_str()).collect::<Vec<_>>(), ["beside"]);
    assert_eq!(store.empty_trash(Some(0)).unwrap().sessions, 1);
    assert_eq!(texts("beside"), questions);
    assert_eq!(texts("deeper"), [questions[0], questions[2]]);
    store.delete(id("beside")).unwrap();
    assert_eq!(store.empty_trash(Some(0)).unwrap().messages, 2, "nothing shows the lamp any more");
    assert_eq!(texts("deeper"), [questions[0], questions[2]]);
}

fn a_branch_is_counted_where_it_was_asked_for() {
    let dir = dir();
    let mut t = Talk::new(dir.path(), Setup::default());
    t.ask("One?");
    t.send(Request::Regen { at: None, count: 1, temperature: None, seed: None });
    t.finished();
    let first = t.view().messages[0].id;
    t.send(Request::EditDone { message: first, text: "Uno?".into() });
    t.finished();
    t.sync();
    assert_eq!(t.view().branch, (2, 2));
    // Below the first question there are two answers, where the header counts.
    let said = t.note(Request::Branch(BranchTarget::Beside(None, Sibling::Next)));
    assert!(said.starts_with("Branch 1/2 of #1, at #2: ") && said.ends_with(" Back: /branch #1 2"), "{said}");
    assert_eq!(t.view().branch, (2, 2));
    // The way back is the number of the outer place, which is told where one asks for branches.
    t.send(Request::Branch(BranchTarget::List));
    let said = t.note_with("This branch has others beside");
    assert!(said.contains("beside #1 (1 of 2), #2 (2 of 2). /branch #1 next goes"), "{said}");
    let beside = |at, sibling| Request::Branch(BranchTarget::Beside(Some(at), sibling));
    let said = t.note(beside(1, Sibling::Number(2)));
    assert!(said.starts_with("Branch 2/2, at #2: "), "{said}");
    assert_eq!(t.view().messages[0].text, "Uno?");
    assert_eq!(t.note(beside(2, Sibling::Next)), "There is no other branch beside #2, but beside #1.");
    assert_eq!(t.note(beside(1, Sibling::Number(3))), "There are branches 1 to 2 beside #1.");
    t.note(beside(1, Sibling::Prev));
    let said = t.note(Request::Branch(BranchTarget::Beside(None, Sibling::Number(3))));
    assert_eq!(said, "There are branches 1 to 2 beside #2. Others are beside #1: /branch #1 next");
    let said = t.note(Request::Branch(BranchTarget::Beside(None, Sibling::Number(1))));
    assert!(said.starts_with("Branch 1/2, at #2: "), "{said}");
}

#[test]
fn what_is_not_edited_of_a_message_stays_as_it_was() {
    let dir = dir();
    let mut t = Talk::new(dir.path(), Setup::default());
    // Out of an import: nobody can type this.
    let odd = "Is \x1b[31mred\x1b[0m \u{202e}more?";
    t.ask(odd);
    let said = t.note(Request::EditOpen(None));
    assert!(said.starts_with("Characters that a terminal would obey are spelled out"), "{said}");
    let message = t.view().messages[0].id;
    for (edit, expected) in [("", odd.to_owned()), ("not ", format!("Is not {}", &odd[3..]))] {
        let shown = sala_chat::text::sanitize::sanitize(odd).replacen("Is ", &format!("Is {edit}"), 1);
        t.send(Request::EditDone { message, text: shown });
        t.finished();
        t.sync();
        let said = t.seen.iter().rev().find_map(|n| match n {
            Notice::Added(m) if m.role == Role::User => Some(m.text.clone()),
            _ => None,
        });
        assert_eq!(said, Some(expected));
    }
}

#[test]
fn a_message_that_begins_with_a_slash_comes_back_as_one() {
    let dir = dir();
    let mut t = Talk::new(dir.path(), Setup::default());
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
    let mut t = Talk::new(dir.path(), Setup::default());
    let prompts = t.wait("earlier prompts", |n| match n {
        Notice::Prompts(prompts) => Some(prompts.clone()),
        _ => None,
    });
    assert_eq!(prompts, ["//quit now"]);
}

with_both_tokenizers!(a_fork_keeps_all_up_to_where_it_was_forked, a_branch_is_counted_where_it_was_asked_for);
