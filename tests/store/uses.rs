//! Use of state: it decides what is dropped first, in any process.

use crate::store_support;

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sala_chat::store::{Disk, Limits, RealDisk, SegmentId, Store};
use store_support::fault::{Effect, FaultDisk};
use store_support::*;

/// Two conversations; the state of the older one is used again: their ends, and the bytes of the first.
fn two(dir: &Path) -> (SegmentId, SegmentId, u64) {
    let bench = Bench::new(open(dir, RealDisk));
    let tips = ["used", "unused"].map(|name| {
        let (mut chat, save) = Chat::begin(&bench.store, name);
        bench.save(save);
        for turn in 0..3 {
            bench.save(chat.turn(&bench.store, &format!("{name} question {turn}"), "answer"));
        }
        chat.tip.unwrap()
    });
    let bytes = bench.store.state_bytes_of(&tips[..1]).unwrap();
    assert!(bench.close());
    (tips[0], tips[1], bytes)
}

/// The directory with room for one of them.
fn small(dir: &Path, disk: impl Disk + 'static, bytes: u64) -> Store {
    Store::open(dir, Arc::new(disk), Limits { max_state_bytes: bytes, ..limits() }).unwrap()
}

/// The budget leaves the state of the first one and drops some of the second.
fn drops_the_unused(store: &Store, used: &SegmentId, unused: &SegmentId) {
    store.keep_budget(&[]).unwrap();
    assert_eq!(store.plan_restore(used).unwrap().usable, 3);
    assert!(store.plan_restore(unused).unwrap().usable < 3);
}

/// When a segment was used, as all processes see it.
fn used(dir: &Path, id: &SegmentId) -> i64 {
    let db = rusqlite::Connection::open(dir.join("sala.db")).unwrap();
    db.query_row("SELECT used FROM segment WHERE id = ?1", [id.0.as_slice()], |r| r.get(0)).unwrap()
}

#[test]
fn state_resumed_in_a_terminal_is_spared_by_other_processes() {
    let dir = tempfile::tempdir().unwrap();
    let (tip, unused, bytes) = two(dir.path());
    let bench = Bench::new(open(dir.path(), RealDisk));
    assert_eq!(restore(&bench.store, &tip, 0).unwrap().plan.usable, 3);
    let until = soon();
    while used(dir.path(), &tip) <= used(dir.path(), &unused) {
        assert!(std::time::Instant::now() < until, "the use is not written");
        std::thread::sleep(Duration::from_millis(5));
    }
    drops_the_unused(&small(dir.path(), RealDisk, bytes), &tip, &unused);
    assert!(bench.close());
}

#[test]
fn a_collection_shows_other_processes_what_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let (tip, unused, bytes) = two(dir.path());
    let store = open(dir.path(), RealDisk);
    assert_eq!(restore(&store, &tip, 0).unwrap().plan.usable, 3);
    store.collect().unwrap();
    drops_the_unused(&small(dir.path(), RealDisk, bytes), &tip, &unused);
}

#[test]
fn a_use_that_could_not_be_written_is_written_later() {
    let dir = tempfile::tempdir().unwrap();
    let (tip, unused, bytes) = two(dir.path());
    let disk = FaultDisk::new();
    let store = small(dir.path(), disk.clone(), bytes);
    assert_eq!(restore(&store, &tip, 0).unwrap().plan.usable, 3);
    disk.fail(Effect::Commit, ErrorKind::Other);
    assert!(store.collect().is_err());
    disk.heal();
    drops_the_unused(&store, &tip, &unused);
}
