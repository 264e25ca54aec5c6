//! Only our own files are written or removed, and nothing is called saved that is not: the attack on the data directory.

use crate::store_support;

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use sala_chat::runtime::protocol::ExportFormat;
use sala_chat::store::{Access, Disk, DiskFile, Look, Overwrite, RealDisk, SaveEvent, Store, StoreError};
use store_support::*;

fn saved(root: &Path) -> Chat {
    let bench = Bench::new(open(root, RealDisk));
    let (mut chat, save) = Chat::begin(&bench.store, "talk");
    bench.save(save);
    for n in 0..2 {
        assert!(is_saved(&bench.save(chat.turn(&bench.store, &format!("question {n}"), "answer"))));
    }
    assert!(bench.close());
    chat
}

/// Every file below a folder with its bytes; a link with where it leads.
fn contents(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    let mut todo = vec![root.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let kind = fs::symlink_metadata(&path).unwrap().file_type();
            if kind.is_symlink() {
                all.push((path.clone(), fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()));
            } else if kind.is_dir() {
                todo.push(path);
            } else {
                all.push((path.clone(), fs::read(&path).unwrap()));
            }
        }
    }
    all.sort();
    all
}

fn refused(root: &Path) -> StoreError {
    Store::open(root, Arc::new(RealDisk), limits()).expect_err("refused")
}

#[test]
fn a_folder_with_foreign_files_is_refused_and_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    fs::create_dir_all(home.join("segments")).unwrap();
    fs::write(home.join("thesis.tex"), "years of work").unwrap();
    fs::write(home.join("segments/notes.tmp"), "mine").unwrap();
    let before = contents(dir.path());
    let e = refused(&home);
    assert!(matches!(&e, StoreError::NotOurs { what, .. } if what == "thesis.tex"), "{e}");
    assert!(e.to_string().contains("--data-dir") && !e.to_string().contains('\n'), "{e}");
    assert_eq!(contents(dir.path()), before);
    assert!(!home.join("locks").exists());
    // An empty one, and one in which only our own log lies, is taken.
    for name in ["empty", "logged"] {
        let root = dir.path().join(name);
        for ours in ["state", "presets", "themes"] {
            fs::create_dir_all(root.join(ours)).unwrap();
        }
        assert_eq!(open(&root, RealDisk).access, Access::Writable);
        assert!(fs::read_to_string(root.join("sala-chat.id")).unwrap().starts_with("sala-chat data directory 1\n"));
    }
}

#[test]
fn a_foreign_file_with_one_of_our_names_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["reserve", "locks", "segments", "state", "weights", "requests"] {
        let root = dir.path().join(name);
        fs::create_dir(&root).unwrap();
        fs::write(root.join(name), "years of work").unwrap();
        let before = contents(&root);
        let e = refused(&root);
        assert!(matches!(&e, StoreError::NotOurs { what, .. } if what == name), "{name}: {e}");
        assert_eq!(contents(&root), before, "{name}");
    }
    // Nor is one overwritten or removed next to a database of ours.
    let root = dir.path().join("data");
    saved(&root);
    fs::write(root.join("reserve"), "years of work").unwrap();
    drop(open(&root, RealDisk));
    assert_eq!(fs::read(root.join("reserve")).unwrap(), b"years of work");
    fs::write(root.join("reserve"), []).unwrap();
    drop(open(&root, RealDisk));
    assert_eq!(
        fs::metadata(root.join("reserve")).unwrap().len(),
        u64::from(limits().reserve_bytes),
        "its own is completed"
    );
}

#[test]
fn names_that_are_not_ours_stay_whatever_happens() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("data");
    let chat = saved(&root);
    let hex = chat.tip.unwrap().hex();
    let old = SystemTime::now() - Duration::from_secs(30 * 24 * 3600);
    let put = |name: &str| {
        let path = root.join("segments").join(name);
        fs::write(&path, "foreign").unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_modified(old).unwrap();
        path
    };
    let names =
        ["holiday.jpg", "notes.tmp", "x.rows", &format!("{hex}.rows.bak"), &format!("{}.rows", hex.to_uppercase())];
    let foreign: Vec<PathBuf> = names.into_iter().map(put).collect();
    fs::write(root.join("locks/shopping list"), "milk").unwrap();
    fs::write(root.join("part-1-1"), "milk").unwrap();
    let ours = [put(&format!("{}.rows", "a".repeat(64))), put(&format!("{hex}.rows.1.tmp"))];
    let store = open(&root, RealDisk);
    store.remove_orphans();
    store.drop_all_state(&[]).unwrap();
    store.collect().unwrap();
    assert!(foreign.iter().all(|path| fs::read(path).unwrap() == b"foreign"));
    assert!(ours.iter().all(|path| !path.exists()));
    assert_eq!(fs::read(root.join("locks/shopping list")).unwrap(), b"milk");
    assert!(root.join("part-1-1").exists());
}

#[test]
fn files_without_a_row_stay_for_days_in_the_known_folder() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("data");
    saved(&root);
    let orphan = root.join("segments").join(format!("{}.end", "b".repeat(64)));
    fs::write(&orphan, "state of a database that may come back").unwrap();
    drop(open(&root, RealDisk));
    assert!(orphan.exists(), "young");
    let old = SystemTime::now() - Duration::from_secs(4 * 24 * 3600);
    fs::File::options().write(true).open(&orphan).unwrap().set_modified(old).unwrap();
    // The database of another folder in this one.
    let other = dir.path().join("other");
    saved(&other);
    let mark = fs::read(root.join("sala-chat.id")).unwrap();
    fs::copy(other.join("sala-chat.id"), root.join("sala-chat.id")).unwrap();
    let store = open(&root, RealDisk);
    assert!(store.notes.iter().any(|n| n.contains("different data directories")), "{:?}", store.notes);
    assert_eq!(store.remove_orphans(), 0);
    drop(store);
    assert!(orphan.exists(), "not known to be ours");
    // The check recognises on request that they belong together.
    let checked = open(&root, RealDisk).check().unwrap();
    assert!(checked.repaired.iter().any(|r| r.contains("marked")), "{checked:?}");
    assert_ne!(fs::read(other.join("sala-chat.id")).unwrap(), fs::read(root.join("sala-chat.id")).unwrap());
    assert_eq!(fs::read(root.join("sala-chat.id")).unwrap(), mark);
    drop(open(&root, RealDisk));
    assert!(!orphan.exists(), "ours, and old");
}

#[test]
fn a_command_to_be_typed_names_a_folder_with_spaces_as_one_word() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("my data");
    saved(&root);
    fs::set_permissions(&root, fs::Permissions::from_mode(0o777)).unwrap();
    let store = open(&root, RealDisk);
    let command = format!("chmod -R go-w '{}'", root.canonicalize().unwrap().display());
    assert!(store.notes.iter().any(|note| note.ends_with(&command)), "{:?}", store.notes);
}

#[test]
fn links_are_never_followed() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("data");
    let chat = saved(&root);
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let victim = |name: &str| {
        let path = outside.join(name);
        fs::write(&path, format!("precious {name}")).unwrap();
        path
    };
    // Where the program writes: reserve, locks, unfinished files, probes, and where it removes.
    let hex = chat.tip.unwrap().hex();
    let pid = std::process::id();
    let links = [
        ("reserve".to_owned(), victim("reserve")),
        (format!("locks/session-{}.lock", chat.session.0), victim("lock")),
        (format!("segments/{hex}.rows.{pid}.tmp"), victim("unfinished")),
        (format!("segments/{hex}.rows.{pid}.gone"), victim("leaving")),
        (format!("segments/probe-{pid}.tmp"), victim("probe")),
        (format!("segments/{}.rows", "c".repeat(64)), victim("orphan")),
    ];
    for (name, to) in &links {
        let _ = fs::remove_file(root.join(name));
        symlink(to, root.join(name)).unwrap();
    }
    let before = contents(&outside);
    let store = open(&root, RealDisk);
    assert!(store.lock_session(chat.session, "talk").is_err(), "its lock leads elsewhere");
    store.remove_orphans();
    let bench = Bench::new(store);
    bench.store.drop_all_state(&[]).unwrap();
    let images = chat.segments.iter().map(|s| (s.id(), image(s))).collect();
    bench.save(sala_chat::store::Save { changes: vec![], images });
    assert!(bench.close());
    assert_eq!(contents(&outside), before);

    // A second name of a lock is a file elsewhere, too.
    let lock = root.join(format!("locks/session-{}.lock", chat.session.0));
    fs::remove_file(&lock).unwrap();
    fs::hard_link(outside.join("lock"), &lock).unwrap();
    assert!(open(&root, RealDisk).lock_session(chat.session, "talk").is_err());
    assert_eq!(contents(&outside), before);

    // The folder itself: nothing in it is touched, texts are shown.
    let moved = outside.join("photos");
    fs::rename(root.join("segments"), &moved).unwrap();
    fs::write(moved.join(format!("{}.end", "d".repeat(64))), "a photo").unwrap();
    symlink(&moved, root.join("segments")).unwrap();
    let before = contents(&outside);
    let store = open(&root, RealDisk);
    assert!(matches!(&store.access, Access::ReadOnly { why } if why.contains("is a link")), "{:?}", store.access);
    assert_eq!(store.path(chat.head.unwrap()).unwrap().len(), 4);
    drop(store);
    assert_eq!(contents(&outside), before);

    // And the database: not the one that was meant.
    let lured = dir.path().join("lured");
    fs::create_dir(&lured).unwrap();
    symlink(root.join("sala.db"), lured.join("sala.db")).unwrap();
    let e = refused(&lured);
    assert!(matches!(e, StoreError::Linked { .. }) && e.to_string().contains("sala.db is a link; "), "{e}");
}

/// A folder that cannot be written; its owner moves the log into the database during the copy.
#[derive(Debug)]
struct Busy {
    owner: Mutex<rusqlite::Connection>,
    moved: AtomicUsize,
}

impl Disk for Busy {
    fn create(&self, _: &Path) -> io::Result<Box<dyn DiskFile>> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
    fn remove(&self, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
    fn look(&self, path: &Path) -> io::Result<Look> {
        // The log is first read when the database is copied.
        if path.ends_with("sala.db-wal") && self.moved.fetch_add(1, Ordering::SeqCst) == 0 {
            let owner = self.owner.lock().unwrap();
            let busy = owner.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |r| r.get::<_, i64>(0));
            assert_eq!(busy.unwrap(), 0);
        }
        RealDisk.look(path)
    }
    fn make_dir(&self, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
    as_the_real_disk!(read_at list free_bytes);
}

#[test]
fn an_inspected_copy_has_writes_made_during_the_copy() {
    let dir = tempfile::tempdir().unwrap();
    let chat = saved(dir.path());
    let owner = rusqlite::Connection::open(dir.path().join("sala.db")).unwrap();
    owner.execute_batch("INSERT INTO prompt(text, created_ms) VALUES ('still in the log', 1)").unwrap();
    let disk = Arc::new(Busy { owner: Mutex::new(owner), moved: AtomicUsize::new(0) });
    let store = Store::open(dir.path(), Arc::clone(&disk) as Arc<dyn Disk>, limits()).unwrap();
    assert!(matches!(&store.access, Access::ReadOnly { .. }));
    assert!(disk.moved.load(Ordering::SeqCst) > 0);
    assert_eq!(store.prompts(10).unwrap(), ["still in the log"]);
    assert_eq!(store.path(chat.head.unwrap()).unwrap().len(), 4);
    assert_eq!(store.notes.len(), 1, "{:?}", store.notes);
}

#[test]
fn a_database_that_lost_its_beginning_is_damaged_not_new() {
    let dir = tempfile::tempdir().unwrap();
    for (n, damage) in [
        |db: &Path| fs::write(db, b"").unwrap(),
        |db: &Path| fs::write(db, b"S").unwrap(),
        |db: &Path| fs::remove_file(db).unwrap(),
        |db: &Path| fs::write(db, vec![0; 8192]).unwrap(),
    ]
    .into_iter()
    .enumerate()
    {
        for marked in [true, false] {
            let root = dir.path().join(format!("{n} {marked}"));
            saved(&root);
            if !marked {
                fs::remove_file(root.join("sala-chat.id")).unwrap();
            }
            damage(&root.join("sala.db"));
            let before = contents(&root);
            let e = refused(&root);
            assert!(matches!(e, StoreError::NoDatabase { .. }), "{n}: {e}");
            // Nothing can be read out of it.
            assert!(e.to_string().contains(": bring back a copy") && !e.to_string().contains("doctor"), "{e}");
            assert_eq!(contents(&root), before, "nothing is swept");
        }
    }
}

#[test]
fn the_next_write_notices_a_removed_or_replaced_database() {
    let dir = tempfile::tempdir().unwrap();
    type Attack = fn(&Path);
    let attacks: [(&str, Attack); 6] = [
        ("was removed", |root| fs::remove_file(root.join("sala.db")).unwrap()),
        // The thread that tidies up may be putting something there.
        ("was removed", |root| while fs::remove_dir_all(root).is_err() {}),
        ("was removed", |root| fs::rename(root, root.with_extension("moved")).unwrap()),
        ("was replaced", |root| {
            fs::copy(root.join("sala.db"), root.join("copy")).unwrap();
            fs::rename(root.join("copy"), root.join("sala.db")).unwrap();
        }),
        ("cannot be read", |root| {
            fs::set_permissions(root.join("sala.db"), fs::Permissions::from_mode(0o000)).unwrap()
        }),
        ("cannot be read", |root| fs::set_permissions(root, fs::Permissions::from_mode(0o500)).unwrap()),
    ];
    for (n, (what, attack)) in attacks.into_iter().enumerate() {
        let root = dir.path().join(n.to_string());
        let bench = Bench::new(open(&root, RealDisk));
        let (mut chat, save) = Chat::begin(&bench.store, "gone");
        assert!(is_saved(&bench.save(save)));
        assert!(is_saved(&bench.save(chat.turn(&bench.store, "before", "kept"))));
        attack(&root);
        let event = bench.save(chat.turn(&bench.store, "after", "lost?"));
        let SaveEvent::NotSaved { reason, lasting: false, .. } = &event else { panic!("{n}: {event:?}") };
        assert!(reason.contains(what) && reason.contains("export the text"), "{n}: {reason}");
        // The text is still here, and can be taken elsewhere.
        let file = dir.path().join(format!("{n}.md"));
        let m = message(&bench.store, None, sala_chat::core::transcript::Role::User, "after");
        bench.store.export_messages("gone", vec![m], ExportFormat::Markdown, &file, Overwrite::No).unwrap();
        assert!(fs::read_to_string(&file).unwrap().contains("after"));
        let unsaved = bench.writer.close(soon()).expect_err("not everything is saved");
        assert!(unsaved.disk && unsaved.reason.contains(what), "{unsaved:?}");
        if root.exists() {
            fs::set_permissions(&root, fs::Permissions::from_mode(0o700)).unwrap();
        }
    }
}

#[test]
fn a_database_put_back_in_time_takes_everything() {
    let dir = tempfile::tempdir().unwrap();
    let (root, away) = (dir.path().join("data"), dir.path().join("away"));
    let bench = Bench::new(open(&root, RealDisk));
    let (mut chat, save) = Chat::begin(&bench.store, "back");
    assert!(is_saved(&bench.save(save)));
    fs::rename(&root, &away).unwrap();
    assert!(matches!(bench.save(chat.turn(&bench.store, "one", "1")), SaveEvent::NotSaved { .. }));
    fs::rename(&away, &root).unwrap();
    assert!(is_saved(&bench.save(chat.turn(&bench.store, "two", "2"))));
    assert!(bench.close());
    assert_eq!(open(&root, RealDisk).path(chat.head.unwrap()).unwrap().len(), 4);
}

#[test]
fn a_save_that_can_never_succeed_is_not_reported_as_saved() {
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let (chat, save) = Chat::begin(&bench.store, "contradiction");
    assert!(is_saved(&bench.save(save)));
    let unknown = sala_chat::core::transcript::MessageId(1 << 50);
    let m = message(&bench.store, Some(unknown), sala_chat::core::transcript::Role::User, "on nothing");
    let put = sala_chat::store::Change::PutMessage { session: chat.session, message: Box::new(m) };
    let event = bench.save(sala_chat::store::Save { changes: vec![put], images: vec![] });
    assert!(matches!(event, SaveEvent::NotSaved { lasting: true, .. }), "{event:?}");
    let settings = sala_chat::store::Change::Settings { session: chat.session, json: "{}".into() };
    assert!(is_saved(&bench.save(sala_chat::store::Save { changes: vec![settings], images: vec![] })));
    let unsaved = bench.writer.close(soon()).unwrap_err();
    assert!(!unsaved.disk && unsaved.reason.contains("not in the database"), "{unsaved:?}");
}

#[test]
fn a_folder_others_can_write_is_warned_about() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("data");
    saved(&root);
    assert!(open(&root, RealDisk).notes.is_empty());
    for place in ["", "segments", "locks", "sala.db"] {
        let path = root.join(place);
        let before = fs::metadata(&path).unwrap().permissions();
        fs::set_permissions(&path, fs::Permissions::from_mode(before.mode() | 0o020)).unwrap();
        let notes = open(&root, RealDisk).notes.to_vec();
        assert!(notes.iter().any(|n| n.contains("can be written by others")), "{place}: {notes:?}");
        fs::set_permissions(&path, before).unwrap();
    }
}

#[test]
fn unfinished_exports_of_a_killed_process_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("data");
    saved(&root);
    let (left, named, foreign) =
        (dir.path().join("talk.md.77.part"), dir.path().join("talk.md"), dir.path().join("other.77.part"));
    for path in [&left, &named, &foreign] {
        fs::write(path, "text of a conversation").unwrap();
    }
    fs::write(root.join("locks/part-77-0"), left.as_os_str().as_encoded_bytes()).unwrap();
    // A note that names something else than an unfinished file of its process is not followed.
    fs::write(root.join("locks/part-78-0"), named.as_os_str().as_encoded_bytes()).unwrap();
    drop(open(&root, RealDisk));
    assert!(!left.exists() && named.exists() && foreign.exists());
    assert!(!root.join("locks/part-77-0").exists() && !root.join("locks/part-78-0").exists());
}
