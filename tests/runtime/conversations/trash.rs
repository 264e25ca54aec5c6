//! Deleted sessions and how to restore them.

use super::*;

#[test]
fn a_deleted_session_with_a_reused_name_is_restored_by_number() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.ask("One?");
    assert_eq!(t.name(), "one");
    t.send(Request::Delete(None));
    let (id, _) = question(&mut t);
    t.send(Request::Choose { question: id, key: 'y' });
    t.note_with("in the trash");
    t.ask("One?");
    assert_eq!(t.name(), "one");
    t.send(Request::New(None));
    t.send(Request::Resume("one".into()));
    let note = t.note_with("Another \"one\" is in the trash: /resume ");
    let number = note.split_once("/resume ").unwrap().1.split(' ').next().unwrap().to_owned();
    t.send(Request::Resume(number));
    t.note_with("\"one-2\" is out of the trash.");
    t.sync();
    assert_eq!((t.name().as_str(), t.view().messages.len()), ("one-2", 2));
    t.quit();
}
