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
    let said = t.note(Request::Branch(BranchTarget::Number(1)));
    assert!(said.starts_with("Branch 1/2, at #4: "), "{said}");
    assert_eq!(t.view().messages[2].text, "Who keeps the lamp?");
    t.note(Request::Branch(BranchTarget::Number(2)));
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

with_both_tokenizers!(a_fork_keeps_all_up_to_where_it_was_forked);
