//! Others at the same files: another model, a newer program, a second process, or somebody else's data.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{bounded, unbounded};
use sala_chat::store::{
    Access, Change, Disk, DiskFile, RealDisk, Save, SaveEvent, SessionFilter, Store, StoreError, Watch,
};

use crate::kills::store_support::*;
use crate::kills::{check_no_orphans, saved};

#[test]
fn another_model_keeps_the_text_and_the_old_state() {
    let dir = tempfile::tempdir().unwrap();
    let mut chat = saved(dir.path());
    let bench = Bench::new(open(dir.path(), RealDisk));
    assert_eq!(bench.store.tip_segment(chat.head.unwrap(), "model-b").unwrap(), None);
    // Read again by the other model: both states are kept side by side.
    let mut again = chat.segments.remove(0);
    again.fingerprint = "model-b".into();
    let id = again.id();
    let first = bench.store.path(chat.head.unwrap()).unwrap()[1].id;
    let images = vec![(id, image(&again))];
    let changes = vec![Change::AddSegment(Box::new(again)), Change::Link { message: first, segment: id }];
    assert!(is_saved(&bench.save(Save { changes, images })));
    assert_eq!(bench.store.tip_segment(chat.head.unwrap(), "model-b").unwrap(), Some((first, id)));
    assert_eq!(restore(&bench.store, &chat.tip.unwrap(), 0).unwrap().plan.usable, 3);
}

#[test]
fn a_database_of_a_newer_program_opens_for_reading() {
    let dir = tempfile::tempdir().unwrap();
    let chat = saved(dir.path());
    let db = rusqlite::Connection::open(dir.path().join("sala.db")).unwrap();
    db.execute_batch("PRAGMA user_version = 99; ALTER TABLE session ADD COLUMN colour TEXT").unwrap();
    drop(db);
    let bench = Bench::new(open(dir.path(), RealDisk));
    let Access::ReadOnly { why } = &bench.store.access else { panic!("must not be written") };
    assert!(why.contains("newer sala-chat (format 99"), "{why}");
    assert_eq!(bench.store.path(chat.head.unwrap()).unwrap().len(), 6);
    assert_eq!(bench.store.sessions(SessionFilter::Live, 10).unwrap().len(), 1);
    assert!(!bench.store.search("question", 10, &Watch::NONE).unwrap().is_empty());
    let event = bench.save(Save { changes: vec![Change::Prompt("x".into())], images: vec![] });
    assert!(matches!(&event, SaveEvent::NotSaved { reason, .. } if reason.contains("newer")), "{event:?}");
}

#[test]
fn foreign_files_are_refused_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |root: &Path| Store::open(root, Arc::new(RealDisk), limits()).unwrap_err();
    // A file where the folder should be.
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    assert!(matches!(refused(&file), StoreError::NoFolder { .. }));
    // Another program's database.
    let other = dir.path().join("other");
    std::fs::create_dir(&other).unwrap();
    rusqlite::Connection::open(other.join("sala.db")).unwrap().execute_batch("CREATE TABLE theirs(x)").unwrap();
    let e = refused(&other);
    assert!(matches!(e, StoreError::Foreign { .. }) && !e.to_string().contains('\n'), "{e}");
    // No database at all.
    let garbage = dir.path().join("garbage");
    std::fs::create_dir(&garbage).unwrap();
    std::fs::write(garbage.join("sala.db"), vec![0x42; 8192]).unwrap();
    let e = refused(&garbage);
    assert!(matches!(e, StoreError::NoDatabase { .. }) && e.to_string().contains("sala.db"), "{e}");
    assert_eq!(std::fs::read(garbage.join("sala.db")).unwrap(), vec![0x42; 8192], "it is left as it was");
}

#[test]
fn two_at_a_time_do_not_disturb_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let chat = saved(dir.path());
    let (a, b) = (Bench::new(open(dir.path(), RealDisk)), Bench::new(open(dir.path(), RealDisk)));
    // The second learns which process has the session.
    let held = a.store.lock_session(chat.session, "talk").unwrap();
    assert_eq!(held.stale, None);
    let e = b.store.lock_session(chat.session, "talk").unwrap_err();
    let StoreError::InUse { pid, .. } = &e else { panic!("{e}") };
    assert_eq!(*pid, std::process::id());
    assert!(e.to_string().contains("in use by PID"), "{e}");
    drop(held);
    assert_eq!(b.store.lock_session(chat.session, "talk").unwrap().stale, None);

    // Both write, ids never collide, no unfinished file of the other is swept.
    let unfinished = dir.path().join("segments").join(format!("{}.rows.1.tmp", chat.tip.unwrap().hex()));
    std::fs::write(&unfinished, "being written").unwrap();
    let writing = std::fs::File::open(dir.path().join("locks/writing.lock")).unwrap();
    writing.lock_shared().unwrap();
    let c = open(dir.path(), RealDisk);
    assert!(unfinished.exists(), "somebody is at it");
    writing.unlock().unwrap();
    let d = open(dir.path(), RealDisk);
    assert!(!unfinished.exists(), "nobody is");
    assert_eq!(d.notes.len(), 1);
    drop(d);
    let mut ids = std::collections::HashSet::new();
    for _ in 0..100 {
        assert!(ids.insert(a.store.new_message_id(None)) && ids.insert(b.store.new_message_id(None)));
    }
    // An id after another writer's is higher, also after a far one, and damage changes nothing.
    let of_b = b.store.new_message_id(None);
    assert!(a.store.new_message_id(Some(of_b)) > of_b);
    let far = sala_chat::core::transcript::MessageId((1 << 61) + 7);
    // The process that took that id reserves more after it.
    assert!(b.store.new_message_id(Some(far)).0 >= far.0 + (1 << 10));
    assert!(a.store.new_message_id(Some(sala_chat::core::transcript::MessageId(i64::MAX))) > of_b);
    assert!(ids.insert(a.store.new_message_id(None)) && ids.insert(b.store.new_message_id(None)));
    for (bench, name) in [(&a, "from a"), (&b, "from b")] {
        let (mut chat, save) = Chat::begin(&bench.store, name);
        assert!(is_saved(&bench.save(save)));
        let save = chat.turn(&bench.store, "q", "a");
        assert!(is_saved(&bench.save(save)));
    }
    assert_eq!(c.sessions(SessionFilter::Live, 10).unwrap().len(), 3);
    assert!(a.close() && b.close());
    drop(c);
    check_no_orphans(&open(dir.path(), RealDisk));
}

/// What a disk is about to do in the folder of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Create,
    /// Make its names durable.
    Sync,
    Remove,
}

/// A disk that calls a hook before each step in the folder of state.
struct Hooked<F>(F);

impl<F> std::fmt::Debug for Hooked<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hooked")
    }
}

impl<F: Fn(Step) + Send + Sync> Disk for Hooked<F> {
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        if dir.ends_with("segments") {
            (self.0)(Step::Sync);
        }
        RealDisk.sync_dir(dir)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        if path.parent().is_some_and(|dir| dir.ends_with("segments")) {
            (self.0)(Step::Remove);
        }
        RealDisk.remove(path)
    }
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        if path.parent().is_some_and(|dir| dir.ends_with("segments")) {
            (self.0)(Step::Create);
        }
        RealDisk.create(path)
    }
    as_the_real_disk!(rename read_at look list make_dir free_bytes);
}

#[test]
fn two_that_save_one_state_at_once_leave_it_whole() {
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let (mut chat, save) = Chat::begin(&bench.store, "both");
    assert!(is_saved(&bench.save(save)));
    let mut save = chat.turn(&bench.store, "question", "answer");
    let first = std::mem::take(&mut save.images);
    assert!(is_saved(&bench.save(save)));
    // The same tokens, with data that differs by process.
    let mut second = first.clone();
    let drafts = &mut second[0].1.end.as_mut().unwrap().tensors[1];
    drafts.data = vec![0; drafts.data.len()].into();

    let (reached, at) = bounded(1);
    let (release, go_on) = bounded::<()>(0);
    let slow = open(
        dir.path(),
        Hooked(move |step: Step| {
            if step == Step::Sync {
                let _ = reached.send(());
                // No message is ever sent: it returns when the other end is dropped.
                let _ = go_on.recv();
            }
        }),
    );
    let slow = std::thread::spawn(move || slow.save_images(&first));
    at.recv_timeout(Duration::from_secs(20)).unwrap();
    // No other save waits for the first: neither text nor state.
    let (_, save) = Chat::begin(&bench.store, "meanwhile");
    assert!(is_saved(&bench.save(save)));
    bench.store.save_images(&second).unwrap();
    drop(release);
    slow.join().unwrap().unwrap();

    let checked = bench.store.check().unwrap();
    assert_eq!((checked.states, checked.repaired, checked.damaged), (2, vec![], vec![]));
    assert_eq!(restore(&bench.store, &chat.tip.unwrap(), 0).unwrap().plan.usable, 1);
    assert_eq!(std::fs::read_dir(dir.path().join("segments")).unwrap().count(), 2, "nothing else is left");
}

#[test]
fn a_place_that_another_took_meanwhile_costs_no_state() {
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let (mut chat, save) = Chat::begin(&bench.store, "talk");
    assert!(is_saved(&bench.save(save)));
    let mut save = chat.turn(&bench.store, "question", "answer");
    let images = std::mem::take(&mut save.images);
    assert!(is_saved(&bench.save(save)));

    let place = dir.path().join("segments").join(format!("{}.rows", chat.tip.unwrap().hex()));
    let theirs = dir.path().join("theirs");
    std::fs::write(&theirs, "of another process").unwrap();
    // Before the first is named, and never again.
    let slow = open(
        dir.path(),
        Hooked(move |step: Step| {
            if step == Step::Sync {
                let _ = std::fs::rename(&theirs, &place);
            }
        }),
    );
    slow.save_images(&images).unwrap();
    assert!(!dir.path().join("theirs").exists(), "it was there");
    let checked = bench.store.check().unwrap();
    assert_eq!((checked.states, checked.repaired, checked.damaged), (2, vec![], vec![]));
    assert_eq!(restore(&bench.store, &chat.tip.unwrap(), 0).unwrap().plan.usable, 1);
    assert_eq!(std::fs::read_dir(dir.path().join("segments")).unwrap().count(), 2, "nothing else is left");
}

#[test]
fn a_database_moved_away_during_its_opening_is_not_recreated() {
    let dir = tempfile::tempdir().unwrap();
    let chat = saved(dir.path());
    let (database, aside) = (dir.path().join("sala.db"), dir.path().join("sala.db.aside"));
    let (from, to) = (database.clone(), aside.clone());
    // The start tries the disk once it has looked at the database.
    let disk = Hooked(move |step: Step| {
        if step == Step::Create {
            let _ = std::fs::rename(&from, &to);
        }
    });
    let e = Store::open(dir.path(), Arc::new(disk), limits()).unwrap_err();
    assert!(e.to_string().ends_with("moved away just now: try again"), "{e}");
    assert!(!database.exists());
    std::fs::rename(&aside, &database).unwrap();
    assert_eq!(open(dir.path(), RealDisk).path(chat.head.unwrap()).unwrap().len(), 6);
}

#[test]
fn while_state_is_removed_others_can_write() {
    let dir = tempfile::tempdir().unwrap();
    saved(dir.path());
    let database = dir.path().join("sala.db");
    let (report, attempts) = unbounded();
    let store = open(
        dir.path(),
        Hooked(move |step: Step| {
            if step == Step::Remove {
                let other = rusqlite::Connection::open(&database).unwrap();
                other.busy_timeout(Duration::ZERO).unwrap();
                let _ = report.send(other.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_ok());
            }
        }),
    );
    // Of the start, which tries the disk.
    let _ = attempts.try_iter().count();
    assert_eq!(store.drop_all_state(&[]).unwrap().files, 6);
    assert_eq!(attempts.try_iter().collect::<Vec<_>>(), [true; 6]);
    assert_eq!(std::fs::read_dir(dir.path().join("segments")).unwrap().count(), 0);
}
