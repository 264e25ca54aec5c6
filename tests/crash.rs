//! What survives when the power goes, the disk fails, or somebody damages a file. Text always; state exactly or
//! declared missing.

mod store_support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sala_chat::protocol::engine::{RowSource, RowsFault};
use sala_chat::session::{
    Access, Change, RealDisk, Save, SaveEvent, SegmentId, SessionFilter, Store, StoreError, Stored,
};
use sala_chat::transcript::{MessageId, Role};
use store_support::fault::{Effect, FaultDisk, Loss};
use store_support::*;

/// What a run was told before the power went.
#[derive(Default)]
struct Told {
    /// Messages and texts acknowledged.
    texts: BTreeMap<MessageId, String>,
    /// Segments whose state was acknowledged, with what it was.
    states: Vec<sala_chat::session::NewSegment>,
    /// Every segment ever handed over.
    tried: Vec<sala_chat::session::NewSegment>,
    head: Option<MessageId>,
}

/// Turn, document in two parts, turn, growing answer, mark, thinning: every kind of save once.
fn run_until_power_goes(root: &Path, disk: &FaultDisk) -> Told {
    let mut told = Told::default();
    let mut limits = limits();
    limits.keep_turns = 1;
    let Ok(store) = Store::open(root, Arc::new(disk.clone()), limits) else {
        return told;
    };
    let bench = Bench::new(store);
    let store = Arc::clone(&bench.store);
    let (mut talk, begin) = Talk::begin(&store, "crash");
    let mut saves: Vec<Save> = vec![begin, talk.turn(&store, "first", "one"), talk.document(&store, "the document", 2)];
    let mut answer = message(&store, talk.head, Role::Assistant, "");
    for part in ["it", " grows", " on"] {
        answer.text.push_str(part);
        let put = Change::PutMessage { session: talk.session, message: Box::new(answer.clone()) };
        saves.push(Save { changes: vec![put], images: vec![] });
    }
    saves.push(talk.turn(&store, "second", "two"));
    saves.push(talk.turn(&store, "third", "three"));
    let mark = Change::Mark { session: talk.session, name: "here".into(), message: talk.head.unwrap() };
    saves.push(Save { changes: vec![mark], images: vec![] });
    told.tried = talk.segments.clone();
    for save in saves {
        let (mut texts, mut head) = (Vec::new(), None);
        for change in &save.changes {
            match change {
                Change::PutMessage { message, .. } => texts.push((message.id, message.text.clone())),
                Change::MoveHead { head: moved, .. } => head = *moved,
                _ => {}
            }
        }
        let ids: Vec<SegmentId> = save.images.iter().map(|(id, _)| *id).collect();
        let event = bench.save(save);
        if matches!(event, SaveEvent::Saved { .. } | SaveEvent::TextOnly { .. }) {
            told.texts.extend(texts);
            told.head = head.or(told.head);
        }
        if is_saved(&event) {
            told.states.extend(talk.segments.iter().filter(|s| ids.contains(&s.id())).cloned());
        }
    }
    let _ = store.thin(talk.session);
    bench.close();
    told
}

/// The promises, after the power is back.
fn check_promises(root: &Path, told: &Told) {
    let store = open(root, RealDisk);
    assert_eq!(*store.access(), Access::Writable);
    for (id, text) in &told.texts {
        let found = store.message(*id).unwrap().text;
        assert!(found.starts_with(text.as_str()), "{found:?} lost {text:?}");
    }
    if let Some(head) = told.head {
        assert!(store.path(head).unwrap().len() >= 2);
        let session = store.session_named("crash").unwrap();
        assert!(session.head.is_some());
    }
    // Whatever the database says is kept is there, bit for bit.
    for segment in &told.tried {
        let id = segment.id();
        let Some(found) = store.segment(&id).unwrap() else {
            continue;
        };
        assert_eq!(found.content, *segment);
        let wanted = image(segment);
        if found.rows.is_kept() {
            assert!(same_rows(&store.read_rows(&id).unwrap(), &wanted.rows));
        }
        if found.end.is_kept() {
            assert!(same_end(&store.read_end(&id).unwrap(), &wanted.end.unwrap()));
        }
    }
    for segment in &told.states {
        let found = store.segment(&segment.id()).unwrap().expect("an acknowledged segment");
        assert!(found.rows.is_kept(), "acknowledged rows are kept");
        let thinned = found.end == Stored::Missing { why: "thinned".into() };
        assert!(
            found.end.is_kept() || thinned,
            "acknowledged state is kept unless the rule thinned it: {:?}",
            found.end
        );
    }
    check_no_orphans(&store);

    // And life goes on.
    let bench = Bench::new(store);
    let (mut talk, save) = Talk::begin(&bench.store, "after");
    assert!(is_saved(&bench.save(save)));
    let save = talk.turn(&bench.store, "still", "alive");
    assert!(is_saved(&bench.save(save)));
    assert_eq!(restore(&bench.store, &talk.tip.unwrap(), 0).unwrap().plan.usable, 1);
    assert!(bench.close());
}

/// Every file has a row, once those that are kept for some days are taken away.
fn check_no_orphans(store: &Store) {
    store.remove_orphans();
    for entry in std::fs::read_dir(store.root().join("segments")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let (stem, extension) = name.split_once('.').unwrap();
        let segment = store.segment(&SegmentId::from_hex(stem).unwrap()).unwrap().expect("a row for every file");
        match extension {
            "rows" => assert!(segment.rows.is_kept(), "{name}"),
            "end" => assert!(segment.end.is_kept(), "{name}"),
            other => panic!("unfinished file left behind: {other}"),
        }
    }
}

fn crash_everywhere(loss: Loss) {
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultDisk::new();
    let told = run_until_power_goes(&dir.path().join("whole"), &disk);
    assert_eq!((told.texts.len(), told.states.len()), (8, 5), "the run itself works");
    check_promises(&dir.path().join("whole"), &told);
    let effects = disk.effects();
    assert!(effects > 50, "{effects} effects");
    let mut cut = 0;
    for n in 0..effects {
        let root = dir.path().join(n.to_string());
        let disk = FaultDisk::new();
        disk.crash_at(n, loss);
        let told = run_until_power_goes(&root, &disk);
        cut += u64::from(disk.is_off());
        check_promises(&root, &told);
        std::fs::remove_dir_all(&root).unwrap();
    }
    println!("{effects} effects, power cut in {cut} runs");
    // Housekeeping between saves depends on timing, so the last few points may not be reached every time.
    assert!(cut * 10 >= effects * 9, "{cut} of {effects}");
}

#[test]
fn power_cut_at_any_effect_loses_nothing_acknowledged_when_unsynced_bytes_are_lost() {
    crash_everywhere(Loss::Drop);
}

#[test]
fn power_cut_at_any_effect_loses_nothing_acknowledged_when_unsynced_bytes_are_torn() {
    crash_everywhere(Loss::Torn);
}

#[test]
fn power_cut_at_any_effect_loses_nothing_acknowledged_when_all_bytes_made_it() {
    crash_everywhere(Loss::Keep);
}

#[test]
fn the_matrix_would_notice_a_sync_that_does_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultDisk::new();
    disk.lie_about_syncs();
    disk.crash_at(50, Loss::Drop);
    let told = run_until_power_goes(dir.path(), &disk);
    assert!(disk.is_off() && !told.states.is_empty());
    let store = open(dir.path(), RealDisk);
    let lost = |s: &sala_chat::session::NewSegment| store.read_rows(&s.id()).is_err();
    assert!(told.states.iter().any(lost), "acknowledged state is gone, as it must be on such a disk");
    assert!(told.texts.keys().all(|id| store.message(*id).is_ok()), "texts do not depend on it");
}

/// A saved session of three turns, closed.
fn saved(root: &Path) -> Talk {
    let bench = Bench::new(open(root, RealDisk));
    let (mut talk, save) = Talk::begin(&bench.store, "talk");
    bench.save(save);
    for n in 0..3 {
        let save = talk.turn(&bench.store, &format!("question {n}"), "answer");
        assert!(is_saved(&bench.save(save)));
    }
    assert!(bench.close());
    talk
}

#[test]
fn a_damaged_file_costs_its_state_only_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let talk = saved(dir.path());
    let tip = talk.tip.unwrap();
    let last = talk.segments[2].id();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let store = &bench.store;
    let file = |id: &SegmentId, extension: &str| dir.path().join("segments").join(format!("{}.{extension}", id.hex()));
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 5] = [
        ("damaged: ", |p| flip(p, 20)),
        ("damaged: ", |p| flip(p, std::fs::metadata(p).unwrap().len() - 1)),
        ("its file is missing", |p| std::fs::remove_file(p).unwrap()),
        ("shorter", |p| {
            let f = std::fs::OpenOptions::new().write(true).open(p).unwrap();
            f.set_len(f.metadata().unwrap().len() - 3).unwrap();
        }),
        ("longer", |p| {
            use std::io::Write;
            std::fs::OpenOptions::new().append(true).open(p).unwrap().write_all(b"x").unwrap();
        }),
    ];
    for (extension, what) in [("end", "state"), ("rows", "KV rows")] {
        for (why, damage) in damages {
            damage(&file(&last, extension));
            let restored = restore(store, &tip, 0).unwrap();
            assert_eq!(restored.plan.usable, 2, "{why}");
            assert!(same_end(&restored.end.unwrap(), &image(&talk.segments[1]).end.unwrap()));
            assert_eq!(restored.plan.replay()[0].content, talk.segments[2], "the tokens to read again are known");
            let lost = &restored.plan.lost[0];
            assert!(lost.what == what && lost.why.contains(why), "{lost:?}");
            assert_eq!(store.session(talk.session).unwrap().state_of, None, "the list says so");
            assert_eq!(store.path(talk.head.unwrap()).unwrap().len(), 6);
            // Reading it again brings it back.
            let images = vec![(last, image(&talk.segments[2]))];
            assert!(is_saved(&bench.save(Save { changes: vec![], images })));
            assert_eq!(restore(store, &tip, 0).unwrap().plan.usable, 3);
        }
    }
    // Damage at the root leaves nothing to build on, and that is no error.
    flip(&file(&talk.segments[0].id(), "rows"), 300);
    let restored = restore(store, &tip, 0).unwrap();
    assert_eq!((restored.plan.usable, restored.plan.replay().len(), restored.end.is_none()), (0, 3, true));
}

fn flip(path: &Path, at: u64) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[usize::try_from(at).unwrap()] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn rows_left_in_their_files_are_checked_when_they_are_taken() {
    let dir = tempfile::tempdir().unwrap();
    let talk = saved(dir.path());
    let tip = talk.tip.unwrap();
    let disk = FaultDisk::new();
    let store = open(dir.path(), disk.clone());
    let opened = store.open_path(&tip, 0).unwrap();
    assert_eq!((opened.plan.usable, opened.rows.len()), (3, 3));
    for (rows, segment) in opened.rows.iter().zip(&talk.segments) {
        for wanted in image(segment).rows.tensors {
            let found = rows.load(&wanted.name).unwrap();
            assert_eq!((found.shape, &found.data), (wanted.shape, &wanted.data));
            // Any cut of it as well.
            let from = wanted.data.len() / 3;
            let mut part = vec![0; wanted.data.len() / 2];
            rows.fill(&wanted.name, from, &mut part).unwrap();
            assert_eq!(part, wanted.data[from..from + part.len()]);
            let beyond = wanted.data.len() + 1;
            assert!(rows.fill(&wanted.name, 0, &mut vec![0; beyond]).is_err());
        }
    }
    // An error that may pass is told and changes nothing.
    let opened = store.open_path(&tip, 0).unwrap();
    disk.fail(Effect::Read, ErrorKind::TimedOut);
    let passing = opened.rows[2].load("k.0").unwrap_err();
    disk.heal();
    assert!(matches!(store.note_fault(&passing), Err(StoreError::StateLost { .. })));
    assert!(!store.note_fault(&RowsFault::new("of no file")).unwrap());
    // A flipped bit costs the segment its rows: what comes before it is used.
    let opened = store.open_path(&tip, 0).unwrap();
    assert_eq!(opened.rows.len(), 3);
    let id = talk.segments[2].id();
    let file = dir.path().join("segments").join(format!("{}.rows", id.hex()));
    flip(&file, std::fs::metadata(&file).unwrap().len() - 1);
    let fault = opened.rows[2].load("v.0").unwrap_err();
    assert!(fault.why.starts_with("damaged: part of v.0"), "{fault}");
    assert_eq!(fault.segment, Some(id.0));
    assert!(store.note_fault(&fault).unwrap());
    let opened = store.open_path(&tip, 0).unwrap();
    assert_eq!((opened.plan.usable, opened.rows.len()), (2, 2));
}

#[test]
fn an_error_that_may_pass_does_not_cost_the_state() {
    let dir = tempfile::tempdir().unwrap();
    let talk = saved(dir.path());
    let disk = FaultDisk::new();
    let store = open(dir.path(), disk.clone());
    disk.fail(Effect::Read, ErrorKind::TimedOut);
    assert!(matches!(restore(&store, &talk.tip.unwrap(), 0), Err(StoreError::StateLost { .. })));
    disk.heal();
    assert_eq!(restore(&store, &talk.tip.unwrap(), 0).unwrap().plan.usable, 3);
}

#[test]
fn another_model_keeps_the_text_and_the_old_state() {
    let dir = tempfile::tempdir().unwrap();
    let mut talk = saved(dir.path());
    let bench = Bench::new(open(dir.path(), RealDisk));
    assert_eq!(bench.store.tip_segment(talk.head.unwrap(), "model-b").unwrap(), None);
    // Read again by the other model: both states are kept side by side.
    let mut again = talk.segments.remove(0);
    again.fingerprint = "model-b".into();
    let id = again.id();
    let first = bench.store.path(talk.head.unwrap()).unwrap()[1].id;
    let images = vec![(id, image(&again))];
    let changes = vec![Change::AddSegment(Box::new(again)), Change::Link { message: first, segment: id }];
    assert!(is_saved(&bench.save(Save { changes, images })));
    assert_eq!(bench.store.tip_segment(talk.head.unwrap(), "model-b").unwrap(), Some((first, id)));
    assert_eq!(restore(&bench.store, &talk.tip.unwrap(), 0).unwrap().plan.usable, 3);
}

#[test]
fn a_database_of_a_newer_program_opens_for_reading() {
    let dir = tempfile::tempdir().unwrap();
    let talk = saved(dir.path());
    let db = rusqlite::Connection::open(dir.path().join("sala.db")).unwrap();
    db.execute_batch("PRAGMA user_version = 99; ALTER TABLE session ADD COLUMN colour TEXT").unwrap();
    drop(db);
    let bench = Bench::new(open(dir.path(), RealDisk));
    let Access::ReadOnly { why } = bench.store.access() else { panic!("must not be written") };
    assert!(why.contains("newer sala-chat (format 99"), "{why}");
    assert_eq!(bench.store.path(talk.head.unwrap()).unwrap().len(), 6);
    assert_eq!(bench.store.sessions(SessionFilter::Live, 10).unwrap().len(), 1);
    assert!(!bench.store.search("question", 10).unwrap().is_empty());
    let event = bench.save(Save { changes: vec![Change::Prompt("x".into())], images: vec![] });
    assert!(matches!(&event, SaveEvent::NotSaved { reason, .. } if reason.contains("newer")), "{event:?}");
}

#[test]
fn what_is_not_ours_is_refused_in_one_line() {
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
    assert!(matches!(e, StoreError::Damaged { .. }) && e.to_string().contains("sala.db"), "{e}");
    assert_eq!(std::fs::read(garbage.join("sala.db")).unwrap(), vec![0x42; 8192], "it is left as it was");
}

#[test]
fn a_read_only_folder_shows_texts_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let talk = saved(dir.path());
    let disk = FaultDisk::new();
    disk.make_read_only();
    let bench = Bench::new(open(dir.path(), disk));
    assert!(matches!(bench.store.access(), Access::ReadOnly { why } if why.contains("cannot be written")));
    assert_eq!(bench.store.path(talk.head.unwrap()).unwrap().len(), 6);
    assert_eq!(restore(&bench.store, &talk.tip.unwrap(), 0).unwrap().plan.usable, 3);
    assert_ne!(bench.store.new_message_id(), bench.store.new_message_id());
    let mut talk = talk;
    let save = talk.turn(&bench.store, "q", "a");
    assert!(matches!(bench.save(save), SaveEvent::NotSaved { lasting: false, .. }));
}

#[test]
fn a_full_disk_takes_text_first_and_recovers_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultDisk::new();
    let bench = Bench::new(open(dir.path(), disk.clone()));
    let (mut talk, save) = Talk::begin(&bench.store, "full");
    assert!(is_saved(&bench.save(save)));
    // Room for a commit, not for state.
    disk.full_after(17 << 10);
    let save = talk.document(&bench.store, &"long ".repeat(500), 1);
    let event = bench.save(save);
    assert!(matches!(event, SaveEvent::TextOnly { .. }), "{event:?}");
    let why = bench.store.segment(&talk.tip.unwrap()).unwrap().unwrap().rows;
    assert!(matches!(&why, Stored::Missing { why } if why.contains("not written")), "{why:?}");
    // Not even for text: it stays queued.
    disk.full_after(0);
    let save = talk.turn(&bench.store, "lost?", "no");
    let stuck = bench.writer.save(save);
    let event = bench.outcome(stuck);
    assert!(
        matches!(&event, SaveEvent::NotSaved { reason, lasting: false, .. } if reason.contains("disk full on")),
        "{event:?}"
    );
    assert!(!bench.writer.flush(soon()));
    assert!(bench.store.message(talk.head.unwrap()).is_err());
    // Space returns; the next save takes the stuck one with it, in order.
    disk.heal();
    let save = talk.turn(&bench.store, "and now", "both");
    let next = bench.writer.save(save);
    assert!(matches!(bench.outcome(stuck), SaveEvent::TextOnly { .. }), "its parent's state is missing");
    assert!(matches!(bench.outcome(next), SaveEvent::TextOnly { .. }));
    assert_eq!(bench.store.path(talk.head.unwrap()).unwrap().len(), 5);
    // State saving is on again as well.
    let (mut other, save) = Talk::begin(&bench.store, "other");
    bench.save(save);
    let save = other.turn(&bench.store, "state?", "yes");
    assert!(is_saved(&bench.save(save)));
    assert!(bench.close());
    check_no_orphans(&open(dir.path(), RealDisk));
}

#[test]
fn too_little_space_beside_the_reserve_is_said_with_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultDisk::new();
    let mut limits = limits();
    limits.min_free_bytes = 5 << 30;
    let bench = Bench::new(Store::open(dir.path(), Arc::new(disk.clone()), limits).unwrap());
    let (mut talk, save) = Talk::begin(&bench.store, "room");
    bench.save(save);
    disk.pretend_free((5 << 30) + 100);
    let save = talk.turn(&bench.store, "q", "a");
    let event = bench.save(save);
    let SaveEvent::TextOnly { reason, .. } = event else { panic!("{event:?}") };
    assert!(reason.contains("100 B free above the 5.0 GiB reserve"), "{reason}");
}

#[test]
fn a_failed_sync_switches_state_off_until_the_disk_is_seen_to_work() {
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultDisk::new();
    let bench = Bench::new(open(dir.path(), disk.clone()));
    let (mut talk, save) = Talk::begin(&bench.store, "eio");
    bench.save(save);
    disk.fail(Effect::Sync, ErrorKind::Other);
    for n in 0..2 {
        let (mut talk, begin) = Talk::begin(&bench.store, &format!("eio {n}"));
        bench.save(begin);
        let save = talk.turn(&bench.store, "q", "a");
        let event = bench.save(save);
        assert!(matches!(&event, SaveEvent::TextOnly { reason, .. } if n == 0 || reason.contains("off")), "{event:?}");
        assert_eq!(bench.store.path(talk.head.unwrap()).unwrap().len(), 2);
    }
    disk.heal();
    let save = talk.turn(&bench.store, "q", "a");
    assert!(is_saved(&bench.save(save)), "the probe saw the disk work");
}

#[test]
fn two_at_a_time_do_not_disturb_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let talk = saved(dir.path());
    let (a, b) = (Bench::new(open(dir.path(), RealDisk)), Bench::new(open(dir.path(), RealDisk)));
    // The second is told who has the session.
    let held = a.store.lock_session(talk.session, "talk").unwrap();
    assert_eq!(held.stale, None);
    let e = b.store.lock_session(talk.session, "talk").unwrap_err();
    let StoreError::InUse { pid, .. } = &e else { panic!("{e}") };
    assert_eq!(*pid, std::process::id());
    assert!(e.to_string().contains("in use by PID"), "{e}");
    drop(held);
    assert_eq!(b.store.lock_session(talk.session, "talk").unwrap().stale, None);

    // Both write, ids never meet, nobody's unfinished file is swept.
    let unfinished = dir.path().join("segments").join(format!("{}.rows.1.tmp", talk.tip.unwrap().hex()));
    std::fs::write(&unfinished, "being written").unwrap();
    let writing = std::fs::File::open(dir.path().join("locks/writing.lock")).unwrap();
    writing.lock_shared().unwrap();
    let c = open(dir.path(), RealDisk);
    assert!(unfinished.exists(), "somebody is at it");
    writing.unlock().unwrap();
    let d = open(dir.path(), RealDisk);
    assert!(!unfinished.exists(), "nobody is");
    assert_eq!(d.notes().len(), 1);
    drop(d);
    let mut ids = std::collections::HashSet::new();
    for _ in 0..100 {
        assert!(ids.insert(a.store.new_message_id()) && ids.insert(b.store.new_message_id()));
    }
    for (bench, name) in [(&a, "from a"), (&b, "from b")] {
        let (mut talk, save) = Talk::begin(&bench.store, name);
        assert!(is_saved(&bench.save(save)));
        let save = talk.turn(&bench.store, "q", "a");
        assert!(is_saved(&bench.save(save)));
    }
    assert_eq!(c.sessions(SessionFilter::Live, 10).unwrap().len(), 3);
    assert!(a.close() && b.close());
    drop(c);
    check_no_orphans(&open(dir.path(), RealDisk));
}

#[test]
fn a_damaged_log_of_the_database_has_nothing_of_a_saved_turn_to_lose() {
    let dir = tempfile::tempdir().unwrap();
    let live = dir.path().join("live");
    let bench = Bench::new(open(&live, RealDisk));
    let (mut talk, save) = Talk::begin(&bench.store, "wal");
    bench.save(save);
    for n in 0..6 {
        let save = talk.turn(&bench.store, &format!("question {n}"), "answer");
        bench.save(save);
    }
    // The log is moved into the database right after a save, by the thread that saved.
    let until = soon();
    let (db, wal) = loop {
        let read = || ["sala.db", "sala.db-wal"].map(|name| std::fs::read(live.join(name)).unwrap());
        let found = read();
        std::thread::sleep(Duration::from_millis(20));
        if read() != found {
            // Both of one moment, or they do not belong together.
            continue;
        }
        let alone = dir.path().join("alone");
        let _ = std::fs::remove_dir_all(&alone);
        std::fs::create_dir(&alone).unwrap();
        std::fs::write(alone.join("sala.db"), &found[0]).unwrap();
        let whole = Store::open(&alone, Arc::new(RealDisk), limits())
            .is_ok_and(|store| store.path(talk.head.unwrap()).is_ok_and(|path| path.len() == 12));
        if whole {
            break found.into();
        }
        assert!(Instant::now() < until, "the log still has what was saved");
        std::thread::sleep(Duration::from_millis(20));
    };
    for n in 0..24usize {
        let root = dir.path().join(n.to_string());
        std::fs::create_dir(&root).unwrap();
        let cut = n * 1777 % (wal.len() + 1);
        let mut torn = wal[..wal.len() - cut].to_vec();
        if n % 3 == 2 {
            // A last write of which only noise arrived.
            let from = torn.len().saturating_sub(3000);
            torn[from..].iter_mut().enumerate().for_each(|(i, b)| *b ^= (i * 37) as u8);
        }
        std::fs::write(root.join("sala.db"), &db).unwrap();
        std::fs::write(root.join("sala.db-wal"), &torn).unwrap();
        let store = open(&root, RealDisk);
        let session = store.session_named("wal").unwrap();
        let path = store.path(session.head.unwrap()).unwrap();
        assert_eq!((path.len(), session.messages), (12, 12));
        assert!(path.iter().all(|m| m.text == "answer" || m.text.starts_with("question ")));
        let tip = store.tip_segment(session.head.unwrap(), MODEL).unwrap().unwrap().1;
        assert_eq!(restore(&store, &tip, 0).unwrap().plan.usable, 0, "no files here: declared missing");
        let bench = Bench::new(store);
        let (_, save) = Talk::begin(&bench.store, "goes on");
        assert!(is_saved(&bench.save(save)));
    }
}

const CHILD: &str = "SALA_CHAT_TEST_STORE";

/// The process that [`kill_nine_at_random_moments_loses_nothing_acknowledged`] kills: saves turns, says what it was told.
#[test]
#[ignore = "run by another test"]
fn child_saves_until_killed() {
    let Ok(root) = std::env::var(CHILD) else {
        return;
    };
    let bench = Bench::new(open(Path::new(&root), RealDisk));
    let (mut talk, save) = Talk::begin(&bench.store, "killed");
    bench.save(save);
    for n in 0.. {
        let save = talk.turn(&bench.store, &format!("question {n}"), &format!("answer {n}"));
        let event = bench.save(save);
        println!("ACK {} {} {}", talk.head.unwrap().0, talk.tip.unwrap().hex(), is_saved(&event));
    }
}

#[test]
fn kill_nine_at_random_moments_loses_nothing_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = 0;
    for round in 0..12u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_saves_until_killed", "--ignored", "--nocapture"])
            .env(CHILD, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut told = Vec::new();
        // Let it get going, then kill at a moment that differs from round to round, inside or between saves.
        while told.len() < 3 {
            let line = lines.next().expect("the child works").unwrap();
            told.extend(line.find("ACK ").map(|at| line[at..].to_owned()));
        }
        let until = Instant::now() + Duration::from_micros(round * 1_913 % 17_000);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        for line in lines.map_while(Result::ok) {
            told.extend(line.find("ACK ").map(|at| line[at..].to_owned()));
        }
        let store = open(dir.path(), RealDisk);
        check_no_orphans(&store);
        let (mut messages, mut depth) = (0, 0);
        for line in &told {
            let words: Vec<&str> = line.split(' ').collect();
            // The kill may cut the last line.
            let [_, head, tip, saved] = words[..] else {
                continue;
            };
            if saved != "true" {
                continue;
            }
            depth += 1;
            let path = store.path(MessageId(head.parse().unwrap())).unwrap();
            messages = path.len();
            let restored = restore(&store, &SegmentId::from_hex(tip).unwrap(), 0).unwrap();
            assert_eq!((restored.plan.usable, restored.plan.replay_tokens()), (depth, 0));
        }
        assert_eq!(messages, 2 * depth);
        acknowledged += depth;
        // The killed process left its lock behind; it does not block.
        let session = store.last_session().unwrap().unwrap();
        assert!(store.lock_session(session.id, &session.name).is_ok());
    }
    println!("{acknowledged} acknowledged saves in 12 rounds");
}
