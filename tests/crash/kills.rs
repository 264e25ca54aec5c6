//! What survives a power cut, a failing disk or a damaged file. Text always; state exactly or declared missing.

mod damage;
mod disk;
mod killed;
mod others;
mod power;
use crate::store_support;

use std::path::Path;

use sala_chat::store::{RealDisk, SegmentId, Store};
use store_support::*;

/// A saved session of three turns, closed.
fn saved(root: &Path) -> Chat {
    let bench = Bench::new(open(root, RealDisk));
    let (mut chat, save) = Chat::begin(&bench.store, "talk");
    bench.save(save);
    for n in 0..3 {
        let save = chat.turn(&bench.store, &format!("question {n}"), "answer");
        assert!(is_saved(&bench.save(save)));
    }
    assert!(bench.close());
    chat
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
