//! What turns out damaged: kept rows, and messages.

use super::*;

/// Flips a bit in every file of rows.
fn damage(dir: &std::path::Path) {
    for file in std::fs::read_dir(dir.join("data/segments")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|e| e == "rows") {
            let mut bytes = std::fs::read(&path).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
    }
}

/// A session that is resumed by an engine which only finds out later that its rows are damaged.
fn resumed_damaged(dir: &std::path::Path) -> Talk {
    let mut t = Talk::new(dir, Setup::default());
    t.ask("One?");
    let name = t.name();
    t.quit();
    damage(dir);
    let mut t = Talk::new(dir, Setup { late: true, ..resume(&name) });
    t.note_with("Resumed");
    t
}

fn rows_found_damaged_by_a_question_are_read_again_and_it_is_answered() {
    let dir = dir();
    let mut t = resumed_damaged(dir.path());
    t.send(Request::Ask("Two?".into()));
    t.note_with("damaged: part of k.0 does not match its checksum. It was set aside.");
    t.note_with("Reading ");
    assert_eq!(t.finished().meta.finish, Some(Finish::Stop));
    t.sync();
    let given = t.given().concat();
    assert_eq!(given.matches("One?").count(), 1, "{given}");
    assert_eq!(given.matches("Two?").count(), 1, "{given}");
    let name = t.name();
    t.quit();
    // What was read again was kept.
    let mut t = Talk::new(dir.path(), resume(&name));
    t.ask("Three?");
    assert!(t.work().0 < 40);
}

fn a_question_that_waits_for_rows_can_be_stopped_and_asked_again() {
    let dir = dir();
    let mut t = Talk::new(dir.path(), Setup::default());
    t.ask("One?");
    let name = t.name();
    t.quit();
    let mut t = Talk::new(dir.path(), Setup { late: true, never: true, ..resume(&name) });
    t.note_with("Resumed");
    t.send(Request::Ask("Two?".into()));
    t.wait("the question's wait", |n| match n {
        Notice::Activity(Activity::Restoring { share, .. }) => share.map(|_| ()),
        _ => None,
    });
    t.send(Request::Stop);
    let stopped = t.finished();
    assert_eq!(stopped.meta.finish, Some(Finish::Stopped));
    t.sync();
    t.given();
    // Nothing but the questions is read, whatever became of the state.
    t.ask("Three?");
    let given = t.given().concat();
    assert!(!given.contains("One?") && given.contains("Three?"), "{given}");
}

fn rows_found_damaged_by_a_load_are_read_again_and_no_document_twice() {
    let dir = dir();
    let load = three_files(dir.path());
    let mut t = resumed_damaged(dir.path());
    t.send(load);
    t.note_with("It was set aside.");
    t.note_with("Read 3 files: ");
    t.sync();
    let given = t.given().concat();
    for (name, lines) in [("a.txt", 30), ("b.txt", 60), ("c.txt", 90)] {
        let line = format!("A line of {name}.");
        assert_eq!(given.matches(&line).count(), lines, "{name}");
    }
    let view = t.view();
    assert_eq!(view.documents.len(), 3);
    assert!(view.messages.iter().all(|m| { m.meta.document.as_ref().is_none_or(|d| d.complete) }));
    let name = t.name();
    t.quit();
    let mut t = Talk::new(dir.path(), resume(&name));
    t.ask("Well?");
    assert!(t.work().0 < 40);
}

with_both_tokenizers!(
    rows_found_damaged_by_a_question_are_read_again_and_it_is_answered,
    a_question_that_waits_for_rows_can_be_stopped_and_asked_again,
    rows_found_damaged_by_a_load_are_read_again_and_no_document_twice,
);
