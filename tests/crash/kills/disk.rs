//! A disk that refuses: full, not writable, or failing for a while.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use sala_chat::engine::protocol::RowSource;
use sala_chat::store::{Access, RealDisk, SaveEvent, Store, StoreError, Stored};

use crate::kills::store_support::fault::{Effect, FaultDisk};
use crate::kills::store_support::*;
use crate::kills::{check_no_orphans, saved};

#[test]
fn state_that_cannot_be_read_is_left_out_for_this_process_only() {
    let dir = tempfile::tempdir().unwrap();
    let chat = saved(dir.path());
    let disk = FaultDisk::new();
    let store = open(dir.path(), disk.clone());
    let tip = chat.tip.unwrap();
    disk.fail(Effect::Read, ErrorKind::PermissionDenied);
    let opened = store.open_path(&tip, 0).unwrap();
    assert_eq!((opened.plan.usable, opened.rows.len()), (0, 0));
    assert!(opened.plan.lost[0].why.starts_with("its file cannot be read"), "{:?}", opened.plan.lost);
    disk.heal();
    // Its text is being read again here; nothing was recorded.
    assert_eq!(store.plan_restore(&tip).unwrap().usable, 0);
    let next = open(dir.path(), disk.clone());
    let opened = next.open_path(&tip, 0).unwrap();
    assert_eq!(opened.plan.usable, 3);
    // Errors that show only while rows are read are distinguished as well.
    disk.fail(Effect::Read, ErrorKind::TimedOut);
    let fault = opened.rows[2].load("k.0").unwrap_err();
    disk.heal();
    assert!(next.note_fault(&fault).unwrap());
    assert_eq!(next.plan_restore(&tip).unwrap().usable, 2);
    assert!(matches!(next.note_fault(&fault), Err(StoreError::StateLost { .. })), "once");
    // It was not recorded either.
    let later = open(dir.path(), disk);
    assert_eq!(later.plan_restore(&tip).unwrap().usable, 3);
}

#[test]
fn a_read_only_folder_shows_texts_with_a_notice() {
    let dir = tempfile::tempdir().unwrap();
    let chat = saved(dir.path());
    let disk = FaultDisk::new();
    disk.make_read_only();
    let bench = Bench::new(open(dir.path(), disk));
    assert!(matches!(&bench.store.access, Access::ReadOnly { why } if why.contains("cannot be written")));
    assert_eq!(bench.store.path(chat.head.unwrap()).unwrap().len(), 6);
    assert_eq!(restore(&bench.store, &chat.tip.unwrap(), 0).unwrap().plan.usable, 3);
    assert_ne!(bench.store.new_message_id(None), bench.store.new_message_id(None));
    let mut chat = chat;
    let save = chat.turn(&bench.store, "q", "a");
    assert!(matches!(bench.save(save), SaveEvent::NotSaved { lasting: false, .. }));
}

#[test]
fn a_full_disk_takes_text_first_and_recovers_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultDisk::new();
    let bench = Bench::new(open(dir.path(), disk.clone()));
    let (mut chat, save) = Chat::begin(&bench.store, "full");
    assert!(is_saved(&bench.save(save)));
    // Room for a commit, not for state.
    disk.full_after(17 << 10);
    let save = chat.document(&bench.store, &"long ".repeat(500), 1);
    let event = bench.save(save);
    assert!(matches!(event, SaveEvent::TextOnly { .. }), "{event:?}");
    let why = bench.store.segment(&chat.tip.unwrap()).unwrap().unwrap().rows;
    assert!(matches!(&why, Stored::Missing { why } if why.contains("not written")), "{why:?}");
    // Not even for text: it stays queued.
    disk.full_after(0);
    let save = chat.turn(&bench.store, "lost?", "no");
    let stuck = bench.writer.save(save);
    let event = bench.outcome(stuck);
    assert!(
        matches!(&event, SaveEvent::NotSaved { reason, lasting: false, .. } if reason.contains("disk full on")),
        "{event:?}"
    );
    assert!(!bench.writer.flush(soon()));
    assert!(bench.store.message(chat.head.unwrap()).is_err());
    // Space returns; the next save takes the stuck one with it, in order.
    disk.heal();
    let save = chat.turn(&bench.store, "and now", "both");
    let next = bench.writer.save(save);
    assert!(matches!(bench.outcome(stuck), SaveEvent::TextOnly { .. }), "its parent's state is missing");
    assert!(matches!(bench.outcome(next), SaveEvent::TextOnly { .. }));
    assert_eq!(bench.store.path(chat.head.unwrap()).unwrap().len(), 5);
    // State saving is on again as well.
    let (mut other, save) = Chat::begin(&bench.store, "other");
    bench.save(save);
    let save = other.turn(&bench.store, "state?", "yes");
    assert!(is_saved(&bench.save(save)));
    assert!(bench.close());
    check_no_orphans(&open(dir.path(), RealDisk));
}

#[test]
fn a_save_that_waits_for_the_disk_is_reported_once() {
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultDisk::new();
    let bench = Bench::new(open(dir.path(), disk.clone()));
    let (mut chat, save) = Chat::begin(&bench.store, "patience");
    assert!(is_saved(&bench.save(save)));
    disk.full_after(0);
    let (mut handed, mut acknowledged) = (Vec::new(), Vec::new());
    for n in 0..5 {
        let save = chat.turn(&bench.store, &format!("question {n}"), "answer");
        handed.push(bench.writer.save(save));
        while acknowledged.last() != handed.last() {
            let event = bench.events.recv_timeout(Duration::from_secs(20)).unwrap();
            let SaveEvent::NotSaved { id, lasting: false, .. } = event else { panic!("{event:?}") };
            acknowledged.push(id);
        }
    }
    assert_eq!(acknowledged, handed);
    disk.heal();
    assert!(bench.close());
}

#[test]
fn too_little_space_above_the_reserve_is_reported_with_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultDisk::new();
    let mut limits = limits();
    limits.min_free_bytes = 5 << 30;
    let bench = Bench::new(Store::open(dir.path(), Arc::new(disk.clone()), limits).unwrap());
    let (mut chat, save) = Chat::begin(&bench.store, "room");
    bench.save(save);
    disk.pretend_free((5 << 30) + 100);
    let save = chat.turn(&bench.store, "q", "a");
    let event = bench.save(save);
    let SaveEvent::TextOnly { reason, .. } = event else { panic!("{event:?}") };
    assert!(reason.contains("100 B free above the 5.0 GiB reserve"), "{reason}");
}

#[test]
fn a_failed_sync_disables_state_until_the_disk_works() {
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultDisk::new();
    let bench = Bench::new(open(dir.path(), disk.clone()));
    let (mut chat, save) = Chat::begin(&bench.store, "eio");
    bench.save(save);
    disk.fail(Effect::Sync, ErrorKind::Other);
    for n in 0..2 {
        let (mut chat, begin) = Chat::begin(&bench.store, &format!("eio {n}"));
        bench.save(begin);
        let save = chat.turn(&bench.store, "q", "a");
        let event = bench.save(save);
        assert!(matches!(&event, SaveEvent::TextOnly { reason, .. } if n == 0 || reason.contains("off")), "{event:?}");
        assert_eq!(bench.store.path(chat.head.unwrap()).unwrap().len(), 2);
    }
    disk.heal();
    let save = chat.turn(&bench.store, "q", "a");
    assert!(is_saved(&bench.save(save)), "the probe saw the disk work");
}
