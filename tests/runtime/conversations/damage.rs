//! What turns out damaged: kept rows, messages, and settings.

use std::io::ErrorKind;
use std::sync::Arc;

use super::fault::{Effect, FaultDisk};
use super::*;
use sala_chat::store::{Change, Save, Writer};

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
fn resumed_damaged(dir: &std::path::Path) -> Chat {
    let mut t = Chat::new(dir, Setup::default());
    t.ask("One?");
    let name = t.name();
    t.quit();
    damage(dir);
    let mut t = Chat::new(dir, Setup { late: true, ..resume(&name) });
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
    let mut t = Chat::new(dir.path(), resume(&name));
    t.ask("Three?");
    assert!(t.work().0 < 40);
}

fn state_that_cannot_be_read_now_is_read_again_from_the_text() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    let first = t.ask("One?").text;
    let name = t.name();
    t.quit();
    let disk = FaultDisk::new();
    let mut t = Chat::new(dir.path(), Setup { disk: Arc::new(disk.clone()), ..Setup::default() });
    disk.fail(Effect::Read, ErrorKind::PermissionDenied);
    t.send(Request::Resume(name.clone()));
    t.note_with("its file cannot be read");
    t.note_with("Resumed 0 of");
    let second = t.ask("Two?").text;
    t.quit();
    // The answer is that of the state that was kept, and that is still there.
    disk.heal();
    let mut t = Chat::new(dir.path(), resume(&name));
    t.send(Request::Undo(1));
    t.sync();
    assert_eq!(t.view().messages[1].text, first);
    assert_eq!(t.ask("Two?").text, second);
    assert!(t.work().0 < 40);
    t.quit();
}

fn lost_state_is_reported_without_a_terminal() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.ask("One?");
    let name = t.name();
    t.quit();
    damage(dir.path());
    let mut t = Chat::new(dir.path(), Setup { attendance: Attendance::Absent, ..resume(&name) });
    t.send(Request::Ask("Two?".into()));
    t.send(Request::Quit);
    t.finished();
    let warning = |n: &Notice| matches!(n, Notice::Note(Level::Warn, text) if text.contains("damaged"));
    assert_eq!(t.seen.iter().filter(|n| warning(n)).count(), 1, "{:?}", t.seen);
    t.wait("goodbye", |n| matches!(n, Notice::Bye { .. }).then_some(()));
}

fn a_question_waiting_for_rows_can_be_stopped_and_repeated() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.ask("One?");
    let name = t.name();
    t.quit();
    let mut t = Chat::new(dir.path(), Setup { late: true, never: true, ..resume(&name) });
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
    assert_eq!(view.tree.documents.len(), 3);
    assert!(view.messages.iter().all(|m| { m.meta.document.as_ref().is_none_or(|d| d.complete) }));
    let name = t.name();
    t.quit();
    let mut t = Chat::new(dir.path(), resume(&name));
    t.ask("Well?");
    assert!(t.work().0 < 40);
}

fn what_is_not_on_disk_yet_is_neither_opened_nor_exported_from_there() {
    let dir = dir();
    let disk = FaultDisk::new();
    let mut t = Chat::new(dir.path(), Setup { disk: Arc::new(disk.clone()), ..Setup::default() });
    t.ask("One?");
    t.on_disk();
    let name = t.name();
    disk.fail(Effect::Commit, ErrorKind::Other);
    t.ask("Two?");
    let file = dir.path().join("out.json");
    let export = |tree, with_state| {
        let path = file.display().to_string();
        Request::Export { path, format: None, tree, with_state, force: false }
    };
    t.send(export(true, false));
    t.note_with("--tree exports what is on disk, and the latest messages are not");
    t.send(export(false, true));
    t.note_with("--with-state exports what is on disk");
    t.send(export(false, false));
    t.note_with("from memory");
    assert!(std::fs::read_to_string(&file).unwrap().contains("Two?"));
    // Back in this session it is unchanged; a question below it would reach an older conversation.
    t.send(Request::New(None));
    t.send(Request::Resume(name.clone()));
    t.note_with("is not opened: its latest messages are not on disk yet");
    let serial = t.view().opened.iter().find(|o| o.name == name).map(|o| o.serial).unwrap();
    t.send(Request::Switch(serial));
    t.note_with("is not opened");
    // One that has not even its row.
    t.ask("Three?");
    let third = t.name();
    t.send(Request::Rename("fourth".into()));
    let note = t.note_with("is not renamed");
    assert!(note.starts_with(&format!("\"{third}\" is not renamed: it is not on disk yet (")), "{note}");
    assert_eq!(t.name(), third);
    t.send(Request::New(None));
    t.send(Request::Resume(third.clone()));
    t.note_with(&format!("\"{third}\" is not opened"));
    disk.heal();
    t.ask("Four?");
    t.on_disk();
    for (name, messages) in [(name, 4), (third, 2)] {
        t.send(Request::Resume(name.clone()));
        t.sync();
        assert_eq!((t.name(), t.view().messages.len()), (name, messages));
    }
    t.quit();
}

/// A session of two questions; `sql` changes its database meanwhile.
fn tampered(dir: &std::path::Path, sql: &str) -> String {
    let mut t = Chat::new(dir, Setup::default());
    t.ask("One?");
    t.ask("Two?");
    let name = t.name();
    t.quit();
    rusqlite::Connection::open(dir.join("data/sala.db")).unwrap().execute_batch(sql).unwrap();
    name
}

fn no_question_follows_a_damaged_message() {
    for (sql, number, back) in [
        ("UPDATE message SET text = 'Obey?' WHERE text = 'One?'", 1, 2),
        ("UPDATE message SET text = 'Obeyed.' WHERE id = (SELECT min(id) FROM message WHERE role = 'assistant')", 2, 2),
        ("UPDATE message SET text = 'Obey?' WHERE text = 'Two?'", 3, 1),
        ("UPDATE message SET text = 'Obeyed.' WHERE id = (SELECT max(id) FROM message WHERE role = 'assistant')", 4, 1),
    ] {
        let dir = dir();
        let name = tampered(dir.path(), sql);
        let what = format!("Message #{number} is damaged: the conversation cannot continue after it. /undo {back} ");
        let mut t = Chat::new(dir.path(), resume(&name));
        t.note_with(&what);
        assert_eq!(t.view().messages.len(), 4, "all of it is shown");
        t.send(Request::Ask("Three?".into()));
        t.note_with(&what);
        assert_eq!(t.view().messages.len(), 4);
        // What may stand there is what somebody wrote, and only to be looked at again.
        t.send(Request::EditOpen(Some(number)));
        let known = t.wait("the input", |n| match n {
            Notice::Input { text, editing: Some(_) } => Some(text.clone()),
            _ => None,
        });
        assert!(known.starts_with("Obey") && !known.contains("damaged"), "{known}");
        let from = t.seen.len();
        t.note(Request::Undo(back));
        let put = t.seen[from..].iter().find_map(|n| match n {
            Notice::Input { text, .. } => Some(text.as_str()),
            _ => None,
        });
        assert!(put.is_none_or(|text| text == "One?" || text == "Two?"), "{put:?}");
        t.ask("Again?");
        let given = t.given().concat();
        assert!(given.contains("Again?") && !given.contains("damaged") && !given.contains("Obey"), "{sql}: {given}");
        t.quit();
    }
}

fn what_a_killed_run_left_open_is_whole_or_stopped() {
    let dir = dir();
    for name in ["notes.txt", "part.txt"] {
        std::fs::write(dir.path().join(name), format!("A line of {name}.\n").repeat(40)).unwrap();
    }
    let mut t = Chat::new(dir.path(), Setup::default());
    t.load("notes.txt");
    t.load("part.txt");
    t.ask("One?");
    let name = t.name();
    t.quit();
    {
        // The data on disk while a document is read and an answer is written.
        let store = support::store(&dir.path().join("data"));
        let record = store.session_named(&name).unwrap();
        let mut save = Save::default();
        for mut m in store.path(record.head.unwrap()).unwrap() {
            m.meta.finish = None;
            if let Some(info) = &mut m.meta.document {
                info.complete = false;
                if info.name == "part.txt" {
                    // What was kept of a load that somebody stopped.
                    m.text.truncate(100);
                }
            }
            save.changes.push(Change::PutMessage { session: record.id, message: Box::new(m) });
        }
        let (events, _) = crossbeam_channel::unbounded();
        let writer = Writer::start(store, events).unwrap();
        writer.save(save);
        writer.close(std::time::Instant::now() + std::time::Duration::from_secs(20)).unwrap();
    }
    let mut t = Chat::new(dir.path(), resume(&name));
    t.note_with("Resumed");
    t.sync();
    let shown = t.view().messages;
    let whole: Vec<bool> = shown.iter().filter_map(|m| Some(m.meta.document.as_ref()?.complete)).collect();
    assert_eq!(whole, [true, false]);
    assert_eq!(shown.last().unwrap().meta.finish, Some(Finish::Stopped));
    assert_eq!(shown[2].meta.finish, None, "a question has no end");
}

fn a_complete_document_enters_the_library_after_a_kill_and_read() {
    for once in [false, true] {
        let dir = dir();
        std::fs::write(dir.path().join("notes.txt"), "A line of notes.\n".repeat(40)).unwrap();
        let mut t = Chat::new(dir.path(), Setup::default());
        let options = LoadOptions { once, ..LoadOptions::default() };
        t.send(Request::Load { paths: vec!["notes.txt".into()], options });
        t.note_with("Read notes.txt");
        t.sync();
        let name = t.name();
        t.quit();
        // The data on disk while the document is read: its text without any state.
        let data = dir.path().join("data");
        let store = support::store(&data);
        let record = store.session_named(&name).unwrap();
        let mut message = store.path(record.head.unwrap()).unwrap().pop().unwrap();
        message.meta.document.as_mut().unwrap().complete = false;
        let save = Save {
            changes: vec![Change::PutMessage { session: record.id, message: Box::new(message) }],
            ..Save::default()
        };
        let (events, _) = crossbeam_channel::unbounded();
        let writer = Writer::start(store, events).unwrap();
        writer.save(save);
        writer.close(std::time::Instant::now() + std::time::Duration::from_secs(20)).unwrap();
        let sql = "DELETE FROM document; DELETE FROM message_segment; DELETE FROM segment";
        rusqlite::Connection::open(data.join("sala.db")).unwrap().execute_batch(sql).unwrap();

        let mut t = Chat::new(dir.path(), resume(&name));
        t.note_with("Resumed");
        t.ask("One?");
        t.quit();
        let store = support::store(&data);
        let documents = store.documents().unwrap();
        let names: Vec<&str> = documents.iter().map(|d| d.document.name.as_str()).collect();
        assert_eq!(names, if once { &[][..] } else { &["notes.txt"][..] });
        let record = store.session_named(&name).unwrap();
        let document = store.path(record.head.unwrap()).unwrap()[0].meta.document.clone().unwrap();
        assert!(document.complete, "that it is read is kept");
    }
}

#[test]
fn the_banner_keeps_damage_that_prevents_a_save() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.ask("One?");
    t.on_disk();
    let sql = "UPDATE message SET role = CAST(x'ff80' AS TEXT) WHERE role = 'assistant'";
    rusqlite::Connection::open(dir.path().join("data/sala.db")).unwrap().execute_batch(sql).unwrap();
    t.send(Request::Ask("Two?".into()));
    t.note_with("Something could not be saved");
    t.sync();
    let SaveState::NotSaved(why) = t.saved() else { panic!("{:?}", t.saved()) };
    assert!(why.contains("is damaged (") && why.contains("sala-chat doctor --check"), "{why}");
    let other = |n: &Notice| matches!(n, Notice::Note(_, text) if text.contains("not in the database"));
    assert!(!t.seen.iter().any(other), "{:?}", t.seen);
}

#[test]
fn database_damage_is_reported_at_every_start() {
    let dir = dir();
    tampered(dir.path(), "UPDATE message SET text = 'Obey?' WHERE text = 'One?'");
    for attendance in [Attendance::Present, Attendance::Absent] {
        let mut t = Chat::new(dir.path(), Setup { attendance, ..Setup::default() });
        t.send(Request::Quit);
        t.wait("goodbye", |n| matches!(n, Notice::Bye { .. }).then_some(()));
        let reported = |n: &&Notice| matches!(n, Notice::Damage(text) if text.contains("damaged in places"));
        assert_eq!(t.seen.iter().filter(reported).count(), 1, "{:?}", t.seen);
    }
}

#[test]
fn an_unreadable_setting_falls_back_to_the_configuration() {
    let dir = dir();
    let name = tampered(dir.path(), r#"UPDATE session SET settings = '{"sampling":{"temperature":"hot"}}'"#);
    let mut settings = sala_chat::runtime::Settings::default();
    settings.set_for_run("temperature", "0.1").unwrap();
    let mut t = Chat::new(dir.path(), Setup { settings, ..resume(&name) });
    let note = t.note_with("cannot be read");
    assert!(note.contains("temperature (\"hot\"), 0.7 is used."), "{note}");
    t.quit();
}

#[test]
fn settings_that_cannot_be_read_are_named_once() {
    let dir = dir();
    let sql = r#"UPDATE session SET settings = '{"sampling":{"temperature":"hot","top_k":3}}'"#;
    let name = tampered(dir.path(), sql);
    let mut t = Chat::new(dir.path(), resume(&name));
    let note = t.note_with("cannot be read");
    let expected = format!("\"{name}\" has settings that cannot be read: temperature (\"hot\"), 0.7 is used.");
    assert_eq!(note, expected);
    t.note(Request::Set(Some(("max_tokens".into(), "12".into()))));
    t.sync();
    t.quit();
    let db = rusqlite::Connection::open(dir.path().join("data/sala.db")).unwrap();
    let kept: String = db.query_row("SELECT settings FROM session", [], |row| row.get(0)).unwrap();
    let kept: serde_json::Value = serde_json::from_str(&kept).unwrap();
    assert_eq!((&kept["max_tokens"], &kept["sampling"]["top_k"]), (&12.into(), &3.into()), "{kept}");
    drop(db);
    // Once it is saved with valid settings there is no further notice.
    let mut t = Chat::new(dir.path(), resume(&name));
    t.note_with("Resumed");
    let texts = t.seen.iter().filter_map(|n| if let Notice::Note(_, text) = n { Some(text) } else { None });
    assert_eq!(texts.filter(|text| text.contains("cannot be read")).count(), 0);
}

with_both_tokenizers!(
    what_is_not_on_disk_yet_is_neither_opened_nor_exported_from_there,
    state_that_cannot_be_read_now_is_read_again_from_the_text,
    lost_state_is_reported_without_a_terminal,
    no_question_follows_a_damaged_message,
    rows_found_damaged_by_a_question_are_read_again_and_it_is_answered,
    a_question_waiting_for_rows_can_be_stopped_and_repeated,
    rows_found_damaged_by_a_load_are_read_again_and_no_document_twice,
    what_a_killed_run_left_open_is_whole_or_stopped,
    a_complete_document_enters_the_library_after_a_kill_and_read,
);

/// A disk on which the thread that saves texts fails once the flag is set.
#[derive(Debug, Default)]
struct FailsInside(std::sync::atomic::AtomicBool);

impl sala_chat::store::Disk for FailsInside {
    fn before_commit(&self) -> std::io::Result<()> {
        let writes = std::thread::current().name() == Some("store-writer");
        assert!(!writes || !self.0.load(std::sync::atomic::Ordering::Relaxed), "for this test");
        Ok(())
    }
    as_the_real_disk!(create rename sync_dir remove read_at look list make_dir free_bytes);
}

#[test]
fn nothing_waits_for_a_writer_that_has_failed() {
    let dir = dir();
    let disk = Arc::new(FailsInside::default());
    let mut t = Chat::new(dir.path(), Setup { disk: Arc::clone(&disk) as Arc<_>, ..Setup::default() });
    t.ask("One?");
    t.on_disk();
    disk.0.store(true, std::sync::atomic::Ordering::Relaxed);
    t.send(Request::Ask("Two?".into()));
    t.wait("the end of saving", |n| {
        matches!(n, Notice::Save(SaveState::NotSaved(why)) if why.contains("internal error")).then_some(())
    });
    t.finished();
    let begun = std::time::Instant::now();
    for pinned in ["is pinned in", "is no longer pinned"] {
        t.send(Request::Pin(None));
        t.note_with(pinned);
    }
    t.ask("Three?");
    assert!(begun.elapsed().as_secs_f64() < 1.5, "{:?}", begun.elapsed());
    t.quit();
}
