//! State: saved, on its way, restored in parts, lost.

use std::time::{Duration, Instant};

use sala_chat::core::transcript::Role;
use sala_chat::engine::protocol::{Arriving, RowSource as _, RowsFault, StatePart, TensorData};
use sala_chat::store::{
    Access, Change, Limits, RealDisk, Save, SaveEvent, SegmentId, Store, TextBoundary, Unsaved, unchanged_prefix,
};

use super::store_support::fault::FaultDisk;
use super::store_support::*;
use super::{chat_of, folder};

#[test]
fn saved_data_is_unchanged_after_reopening() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let mut chat = chat_of(&bench, "first", 2);
    let save = chat.document(&bench.store, "a document", 3);
    assert!(is_saved(&bench.save(save)));
    assert!(bench.close());

    let store = open(dir.path(), RealDisk);
    assert_eq!(store.access, Access::Writable);
    assert!(store.notes.is_empty(), "{:?}", store.notes);
    assert_eq!(store.damage(), None);
    let session = store.session_named("first").unwrap();
    assert_eq!((session.head, session.messages, session.tokens), (chat.head, 5, chat.position));
    assert_eq!(session.title, "question 0 of first");
    assert_eq!(session.state_of.as_deref(), Some(MODEL));
    let texts: Vec<String> = store.path(chat.head.unwrap()).unwrap().into_iter().map(|m| m.text).collect();
    assert_eq!(texts, ["question 0 of first", "answer 0", "question 1 of first", "answer 1", "a document"]);

    let saved = restore(&store, &chat.tip.unwrap(), 0).unwrap();
    assert_eq!((saved.plan.usable, saved.plan.replay_tokens()), (5, 0));
    for (rows, segment) in saved.rows.iter().zip(&chat.segments) {
        assert!(same_rows(rows, &image(segment).rows));
    }
    assert!(same_end(&saved.end.unwrap(), &image(chat.segments.last().unwrap()).end.unwrap()));
    // What the caller still has is not read again.
    assert_eq!(restore(&store, &chat.tip.unwrap(), 3).unwrap().rows.len(), 2);
}

#[test]
fn state_in_flight_from_a_device_is_saved_on_arrival() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let mut chat = chat_of(&bench, "late", 1);
    let late = |save: &mut Save| -> (Arriving, Vec<u8>) {
        let (data, arriving) = TensorData::later();
        let there = std::mem::replace(&mut save.images[0].1.rows.tensors[0].data, data);
        (arriving, there.to_vec())
    };
    let mut save = chat.turn(&bench.store, "a question", "an answer");
    let (arriving, bytes) = late(&mut save);
    let device = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        arriving.set(Ok(bytes));
    });
    assert!(is_saved(&bench.save(save)));
    device.join().unwrap();
    let saved = restore(&bench.store, &chat.tip.unwrap(), 0).unwrap();
    assert!(same_rows(saved.rows.last().unwrap(), &image(chat.segments.last().unwrap()).rows));

    let mut save = chat.turn(&bench.store, "another question", "another answer");
    drop(late(&mut save).0);
    let event = bench.save(save);
    assert!(matches!(&event, SaveEvent::TextOnly { reason, .. } if reason.contains("did not come")), "{event:?}");
    assert_eq!(bench.store.path(chat.head.unwrap()).unwrap().last().unwrap().text, "another answer");
    assert_eq!(restore(&bench.store, &chat.tip.unwrap(), 0).unwrap().plan.usable, 2);
    assert!(bench.close());
}

#[test]
fn text_does_not_wait_for_state_that_was_handed_over_before_it() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let mut chat = chat_of(&bench, "slow", 1);
    let mut late = Vec::new();
    let mut handed = Vec::new();
    // A disk that is slower than the reading of a document: of all that was read nothing is written yet.
    for part in 0..3 {
        let mut save = chat.document(&bench.store, &format!("document {part}"), 1);
        let (data, arriving) = TensorData::later();
        let there = std::mem::replace(&mut save.images[0].1.rows.tensors[0].data, data);
        late.push((arriving, there.to_vec()));
        handed.push(bench.writer.save(save));
    }
    let answer = message(&bench.store, chat.head, Role::Assistant, "the end of the answer");
    let head = answer.id;
    let put = Change::PutMessage { session: chat.session, message: Box::new(answer) };
    let to = Change::MoveHead { session: chat.session, head: Some(head) };
    assert!(is_saved(&bench.save(Save { changes: vec![put, to], images: vec![] })));
    assert!(!bench.writer.flush(Instant::now()), "state is still to come");
    assert_eq!(bench.store.session(chat.session).unwrap().head, Some(head));
    // Until then what is before it is restored.
    assert_eq!(restore(&bench.store, &chat.tip.unwrap(), 0).unwrap().plan.usable, 1);
    for ((arriving, bytes), id) in late.into_iter().zip(handed) {
        arriving.set(Ok(bytes));
        assert!(is_saved(&bench.outcome(id)));
    }
    assert_eq!(restore(&bench.store, &chat.tip.unwrap(), 0).unwrap().plan.usable, 4);
    assert!(bench.close());
}

#[test]
fn state_that_is_late_at_the_end_takes_no_text_with_it() {
    let dir = folder();
    let disk = FaultDisk::new();
    let bench = Bench::new(open(dir.path(), disk.clone()));
    let mut chat = chat_of(&bench, "late", 1);
    let mut save = chat.turn(&bench.store, "a question", "an answer");
    let (data, arriving) = TensorData::later();
    save.images[0].1.rows.tensors[0].data = data;
    let images = save.images.clone();
    let id = bench.writer.save(save);
    while bench.events.recv_timeout(Duration::from_secs(20)).unwrap() != (SaveEvent::Text { id }) {}
    // State alone, as it is handed over at the end where it is written then.
    bench.writer.save(Save { changes: vec![], images });
    let too_long = "the disk takes too long".to_owned();
    assert_eq!(bench.writer.close(Instant::now()), Ok(Some(too_long.clone())));
    drop(arriving);

    let bench = Bench::new(open(dir.path(), disk.clone()));
    let held = disk.hold("store-writer");
    bench.writer.save(chat.turn(&bench.store, "another question", "another answer"));
    assert_eq!(bench.writer.close(Instant::now()), Err(Unsaved { reason: too_long, disk: true }));
    drop(held);
}

#[test]
fn a_state_that_ends_inside_a_character_is_saved() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let mut chat = chat_of(&bench, "cut", 1);
    let mut save = chat.turn(&bench.store, "a question", "half a sig");
    for change in &mut save.changes {
        if let Change::AddSegment(new) = change {
            new.boundary = TextBoundary::NOWHERE;
        }
    }
    assert!(is_saved(&bench.save(save)));
}

#[test]
fn parts_of_rows_are_read_and_checked_on_their_own() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let mut chat = chat_of(&bench, "parts", 1);
    // Longer than one checksum chunk per tensor: 90,000 rows of 16 bytes.
    let save = chat.document(&bench.store, &"x".repeat(90_000), 1);
    assert!(is_saved(&bench.save(save)));
    let segment = chat.segments.last().unwrap();
    let whole = image(segment).rows;
    let id = segment.id();

    let opened = bench.store.open_path(&id, 0).unwrap();
    let feed = opened.rows.last().unwrap();
    // A block of 64 positions, at the edge of a checksum and across one.
    for position in [65_536, 65_600] {
        let at = usize::try_from(position - whole.start).unwrap() * 16;
        for name in ["k.0", "v.0"] {
            let mut part = vec![0; 64 * 16];
            feed.fill(name, at, &mut part).unwrap();
            let all = whole.tensors.iter().find(|t| t.name == name).unwrap();
            assert_eq!(part, all.data[at..at + 64 * 16]);
        }
    }
    assert!(feed.fill("k.0", 90_000 * 16, &mut [0; 16]).is_err());
    assert!(feed.load("k.7").is_err());
    assert_eq!(feed.load("k1.0").unwrap().name, "k1.0");
    assert!(same_rows(&bench.store.read_rows(&id).unwrap(), &whole));

    // Any safetensors reader can open the file.
    let file = std::fs::read(dir.path().join("segments").join(format!("{}.rows", id.hex()))).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    assert_eq!(tensors.tensor("k.0").unwrap().shape(), [90_000, 1, 8]);
}

#[test]
fn state_after_lost_rows_is_unkept_until_they_return() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let chat = chat_of(&bench, "holes", 3);
    let store = &bench.store;
    let tip = chat.tip.unwrap();
    let shown = || {
        let kept = |n: &sala_chat::store::MessageNode| n.segment.is_some() && n.kept;
        let turns = store.tree(chat.session, MODEL, 0).unwrap().iter().filter(|n| kept(n)).count();
        (store.session(chat.session).unwrap().state_of.is_some(), turns, store.kept_of(&tip).unwrap().unwrap().0)
    };
    assert_eq!(shown(), (true, 3, true));
    let (second, image) = (chat.segments[1].id(), image(&chat.segments[1]));
    let fault = |part| RowsFault { segment: Some(second.0), part, why: "damaged".into(), lasting: true };
    // The state at the end of one in the middle is its own affair.
    assert!(store.note_fault(&fault(StatePart::End)).unwrap());
    assert_eq!(shown(), (true, 2, true));
    assert!(store.note_fault(&fault(StatePart::Rows)).unwrap());
    assert_eq!(shown(), (false, 1, false));
    assert_eq!(store.plan_restore(&tip).unwrap().usable, 1);
    assert!(is_saved(&bench.save(Save { changes: vec![], images: vec![(second, image)] })));
    assert_eq!(shown(), (true, 3, true));
}

#[test]
fn a_restore_waits_for_no_transaction_and_is_dropped_last() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let used = chat_of(&bench, "used", 3);
    let unused = chat_of(&bench, "unused", 3);
    let tip = used.tip.unwrap();
    assert!(bench.writer.flush(soon()));
    let busy = rusqlite::Connection::open(dir.path().join("sala.db")).unwrap();
    busy.execute_batch("BEGIN IMMEDIATE").unwrap();
    let begun = Instant::now();
    assert_eq!(restore(&bench.store, &tip, 0).unwrap().plan.usable, 3);
    assert!(begun.elapsed().as_secs() < 5, "it waited for a transaction: {:?}", begun.elapsed());
    busy.execute_batch("ROLLBACK").unwrap();
    drop(busy);
    let bytes = bench.store.state_bytes_of(&[tip]).unwrap();
    assert!(bench.close());
    let limits = Limits { max_state_bytes: bytes, ..limits() };
    let store = Store::open(dir.path(), std::sync::Arc::new(RealDisk), limits).unwrap();
    store.keep_budget(&[]).unwrap();
    assert_eq!(store.plan_restore(&tip).unwrap().usable, 3);
    assert!(store.plan_restore(&unused.tip.unwrap()).unwrap().usable < 3);
}

#[test]
fn segments_that_build_on_nothing_lose_state_not_text() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let mut chat = chat_of(&bench, "hole", 1);
    // The state of this turn is never handed over, so the next one's would be of no use.
    let mut save = chat.turn(&bench.store, "two", "2");
    save.images.clear();
    assert!(is_saved(&bench.save(save)));
    let save = chat.turn(&bench.store, "three", "3");
    let event = bench.save(save);
    assert!(matches!(&event, SaveEvent::TextOnly { reason, .. } if reason.contains("earlier state")), "{event:?}");
    let plan = bench.store.plan_restore(&chat.tip.unwrap()).unwrap();
    assert_eq!((plan.usable, plan.path.len()), (1, 3));
    assert_eq!(plan.path[2].content, chat.segments[2]);

    // Neither is one without a recorded parent: the text is saved anyway.
    chat.tip = Some(SegmentId([7; 32]));
    let save = chat.turn(&bench.store, "four", "4");
    assert!(matches!(bench.save(save), SaveEvent::TextOnly { .. }));
    assert_eq!(bench.store.path(chat.head.unwrap()).unwrap().len(), 8);
}

#[test]
fn the_unchanged_past_is_found_by_text() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let chat = chat_of(&bench, "past", 3);
    let path = bench.store.load_path(&chat.tip.unwrap()).unwrap();
    assert_eq!(unchanged_prefix(&path, &format!("{} and more", chat.rendered)), 3);
    assert_eq!(unchanged_prefix(&path, &chat.rendered.replace("question 2", "Question 2")), 2);
    assert_eq!(unchanged_prefix(&path, &chat.rendered[..chat.rendered.len() - 1]), 2);
    assert_eq!(unchanged_prefix(&path, "something else"), 0);
    let tip = bench.store.tip_segment(chat.head.unwrap(), MODEL).unwrap();
    assert_eq!(tip, Some((chat.head.unwrap(), chat.tip.unwrap())));
    assert_eq!(bench.store.tip_segment(chat.head.unwrap(), "another model").unwrap(), None);
}
