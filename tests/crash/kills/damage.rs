//! Somebody damages a file, or the disk does.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sala_chat::engine::protocol::{RowSource, RowsFault};
use sala_chat::store::{RealDisk, Save, SegmentId, Store};

use crate::kills::saved;
use crate::kills::store_support::*;

#[test]
fn a_damaged_file_costs_only_its_state_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let chat = saved(dir.path());
    let tip = chat.tip.unwrap();
    let last = chat.segments[2].id();
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
            assert!(same_end(&restored.end.unwrap(), &image(&chat.segments[1]).end.unwrap()));
            assert_eq!(
                restored.plan.path[restored.plan.usable].content, chat.segments[2],
                "the tokens to read again are known"
            );
            let lost = &restored.plan.lost[0];
            assert!(lost.what == what && lost.why.contains(why), "{lost:?}");
            assert_eq!(store.session(chat.session).unwrap().state_of, None, "the list says so");
            assert_eq!(store.path(chat.head.unwrap()).unwrap().len(), 6);
            // Reading it again brings it back.
            let images = vec![(last, image(&chat.segments[2]))];
            assert!(is_saved(&bench.save(Save { changes: vec![], images })));
            assert_eq!(restore(store, &tip, 0).unwrap().plan.usable, 3);
        }
    }
    // Damage at the root leaves nothing to build on, and that is no error.
    flip(&file(&chat.segments[0].id(), "rows"), 300);
    let restored = restore(store, &tip, 0).unwrap();
    assert_eq!((restored.plan.usable, restored.plan.path.len(), restored.end.is_none()), (0, 3, true));
}

#[test]
fn rows_left_in_their_files_are_checked_when_they_are_taken() {
    let dir = tempfile::tempdir().unwrap();
    let chat = saved(dir.path());
    let tip = chat.tip.unwrap();
    let store = open(dir.path(), RealDisk);
    let opened = store.open_path(&tip, 0).unwrap();
    assert_eq!((opened.plan.usable, opened.rows.len()), (3, 3));
    for (rows, segment) in opened.rows.iter().zip(&chat.segments) {
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
    assert!(!store.note_fault(&RowsFault::new("of no file")).unwrap());
    // A flipped bit costs the segment its rows: earlier segments are used.
    let opened = store.open_path(&tip, 0).unwrap();
    assert_eq!(opened.rows.len(), 3);
    let id = chat.segments[2].id();
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
fn a_damaged_database_log_loses_no_saved_turn() {
    let dir = tempfile::tempdir().unwrap();
    let live = dir.path().join("live");
    let bench = Bench::new(open(&live, RealDisk));
    let (mut chat, save) = Chat::begin(&bench.store, "wal");
    bench.save(save);
    for n in 0..6 {
        let save = chat.turn(&bench.store, &format!("question {n}"), "answer");
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
            .is_ok_and(|store| store.path(chat.head.unwrap()).is_ok_and(|path| path.len() == 12));
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
        let (_, save) = Chat::begin(&bench.store, "goes on");
        assert!(is_saved(&bench.save(save)));
    }
}

fn flip(path: &Path, at: u64) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[usize::try_from(at).unwrap()] ^= 1;
    std::fs::write(path, bytes).unwrap();
}
