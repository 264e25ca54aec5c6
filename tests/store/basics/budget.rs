//! What state stays: thinning, and the budget of the disk.

use std::collections::HashSet;

use sala_chat::engine::protocol::{RowsFault, StatePart};
use sala_chat::store::{
    Change, Limits, NOT_WRITTEN, NewSession, PRUNED, RealDisk, Save, SaveEvent, SegmentId, Store, Stored,
};

use super::store_support::*;
use super::{chat_of, folder};

/// Turns (counted from 1) of `chat` with kept state.
fn kept_turns(store: &Store, chat: &Chat) -> Vec<usize> {
    let kept = |s: &&sala_chat::store::NewSegment| store.segment(&s.id()).unwrap().unwrap().end.is_kept();
    let all: HashSet<SegmentId> = chat.segments.iter().filter(kept).map(|s| s.id()).collect();
    (1..=chat.segments.len()).filter(|n| all.contains(&chat.segments[n - 1].id())).collect()
}

#[test]
fn thinning_keeps_the_newest_marks_documents_and_powers_of_two() {
    let dir = folder();
    let mut limits = limits();
    limits.keep_turns = 4;
    let store = Store::open(dir.path(), std::sync::Arc::new(RealDisk), limits).unwrap();
    let bench = Bench::new(store);
    let mut chat = chat_of(&bench, "thin", 1);
    let save = chat.document(&bench.store, "a long document", 6);
    bench.save(save);
    for n in 0..20 {
        let save = chat.turn(&bench.store, &format!("more {n}"), "yes");
        bench.save(save);
        if n == 2 {
            let mark = Change::Mark { session: chat.session, name: "m".into(), message: chat.head.unwrap() };
            bench.save(Save { changes: vec![mark], images: vec![] });
        }
    }
    let store = &bench.store;
    // The writer thins between saves; the result is the same however often and when it got to it.
    store.thin(chat.session).unwrap();
    // 27 segments: turn 1; document 2..=7; turns 2..=21 as segments 8..=27. Newest four turns: 24..=27. Older turns
    // by number: 2nd (age 4..7: numbers 14..17), 4th (8..15: 6..13), 8th (16..: 1..5). Marked: turn 4 = segment 10.
    assert_eq!(kept_turns(store, &chat), [2, 3, 4, 5, 6, 7, 10, 14, 18, 20, 22, 24, 25, 26, 27]);
    assert_eq!(store.thin(chat.session).unwrap().files, 0, "thinning twice changes nothing");

    // A thinned turn: rows are kept, the nearest earlier state is found, the rest is replay.
    let plan = store.plan_restore(&chat.segments[20 - 2].id()).unwrap();
    assert_eq!((plan.usable, plan.replay_tokens()), (18, plan.path[18].tokens()));
    assert_eq!(plan.lost[0].why, "thinned");
    assert_eq!(store.plan_restore(&chat.tip.unwrap()).unwrap().usable, 27);
}

#[test]
fn the_writer_thins_saved_state() {
    let dir = folder();
    let limits = Limits { keep_turns: 2, ..limits() };
    let bench = Bench::new(Store::open(dir.path(), std::sync::Arc::new(RealDisk), limits).unwrap());
    let (mut chat, save) = Chat::begin(&bench.store, "thin");
    bench.save(save);
    for n in 0..9 {
        let Save { changes, images } = chat.turn(&bench.store, &format!("more {n}"), "yes");
        // Text is saved as it arrives; the segment follows without it, and names no session.
        let (texts, state) =
            changes.into_iter().partition(|change| !matches!(change, Change::AddSegment(_) | Change::Link { .. }));
        bench.save(Save { changes: texts, images: vec![] });
        bench.save(Save { changes: state, images });
    }
    let store = std::sync::Arc::clone(&bench.store);
    assert!(bench.close());
    // Newest two; of ages 2 and 3 every 2nd, of 4 to 7 every 4th, from 8 on every 8th.
    assert_eq!(kept_turns(&store, &chat), [4, 6, 8, 9]);
}

#[test]
fn the_budget_counts_a_child_without_rows_as_none() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let mut chat = chat_of(&bench, "branches", 1);
    let (head, tip, position, rendered) = (chat.head, chat.tip, chat.position, chat.rendered.clone());
    let save = chat.turn(&bench.store, "one way", "yes");
    bench.save(save);
    let lost = chat.tip.unwrap();
    // A fork has its head there, which pins its end.
    let (id, from) = (bench.store.new_session_id(), Some(chat.session));
    let new = NewSession { id, name: "fork".into(), settings: "{}".into(), head: chat.head, forked_from: from };
    bench.save(Save { changes: vec![Change::CreateSession(new)], images: vec![] });
    (chat.head, chat.tip, chat.position, chat.rendered) = (head, tip, position, rendered);
    let save = chat.turn(&bench.store, "another way", "no");
    bench.save(save);
    let store = &bench.store;
    let fault = RowsFault { segment: Some(lost.0), part: StatePart::Rows, why: "damaged".into(), lasting: true };
    assert!(store.note_fault(&fault).unwrap());
    // Room for the rows of two: the pinned state is dropped, then whole segments from the tips.
    let rows = |id: &SegmentId| store.segment(id).unwrap().unwrap().rows;
    let both: u64 = [tip.unwrap(), chat.tip.unwrap()].iter().map(|id| rows(id).bytes()).sum();
    let limits = Limits { max_state_bytes: both, ..limits() };
    let small = Store::open(dir.path(), std::sync::Arc::new(RealDisk), limits).unwrap();
    small.keep_budget(&[]).unwrap();
    assert!(rows(&tip.unwrap()).is_kept() || !rows(&chat.tip.unwrap()).is_kept(), "rows without those before them");
}

#[test]
fn the_budget_leaves_a_mark_its_state_until_it_is_in_the_trash() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let mut marked = chat_of(&bench, "marked", 2);
    let (message, tip) = (marked.head.unwrap(), marked.tip.unwrap());
    let mark = Change::Mark { session: marked.session, name: "here".into(), message };
    assert!(is_saved(&bench.save(Save { changes: vec![mark], images: vec![] })));
    let save = marked.turn(&bench.store, "more", "yes");
    assert!(is_saved(&bench.save(save)));
    let newer = chat_of(&bench, "newer", 3);
    let bytes = bench.store.state_bytes_of_marks().unwrap();
    assert!(bytes > 0 && bytes < bench.store.state_bytes().unwrap(), "{bytes}");
    assert!(bench.close());
    let opened = |max_state_bytes| {
        Store::open(dir.path(), std::sync::Arc::new(RealDisk), Limits { max_state_bytes, ..limits() }).unwrap()
    };
    let small = opened(1);
    small.keep_budget(&[]).unwrap();
    assert_eq!(small.plan_restore(&tip).unwrap().usable, 2);
    assert_eq!(small.plan_restore(&newer.tip.unwrap()).unwrap().usable, 0);
    assert_eq!(small.state_bytes().unwrap(), bytes);
    drop(small);
    // A mark in the trash pins nothing.
    let small = opened(1);
    small.delete(marked.session).unwrap();
    small.keep_budget(&[]).unwrap();
    assert_eq!((small.state_bytes().unwrap(), small.state_bytes_of_marks().unwrap()), (0, 0));
}

#[test]
fn state_kept_for_marks_counts_with_the_ends_below_them() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let (mut marked, save) = Chat::begin(&bench.store, "marked");
    assert!(is_saved(&bench.save(save)));
    let save = marked.document(&bench.store, "a document below the mark", 2);
    assert!(is_saved(&bench.save(save)));
    let save = marked.turn(&bench.store, "where another session stands", "yes");
    assert!(is_saved(&bench.save(save)));
    let (id, head) = (bench.store.new_session_id(), marked.head);
    let new = NewSession { id, name: "fork".into(), settings: "{}".into(), head, forked_from: Some(marked.session) };
    assert!(is_saved(&bench.save(Save { changes: vec![Change::CreateSession(new)], images: vec![] })));
    // The next turn is no head and pins nothing.
    for question in ["more", "and more"] {
        let save = marked.turn(&bench.store, question, "yes");
        assert!(is_saved(&bench.save(save)));
    }
    let mark = Change::Mark { session: marked.session, name: "here".into(), message: marked.head.unwrap() };
    assert!(is_saved(&bench.save(Save { changes: vec![mark], images: vec![] })));
    assert!(bench.close());
    let limits = Limits { max_state_bytes: 1, ..limits() };
    let small = Store::open(dir.path(), std::sync::Arc::new(RealDisk), limits).unwrap();
    let bytes = small.state_bytes_of_marks().unwrap();
    assert!(bytes < small.state_bytes().unwrap());
    small.keep_budget(&[]).unwrap();
    assert_eq!(small.state_bytes().unwrap(), bytes);
}

#[test]
fn state_without_room_is_known_to_be_unwritten() {
    let dir = folder();
    let limits = Limits { min_free_bytes: u64::MAX, ..limits() };
    let bench = Bench::new(Store::open(dir.path(), std::sync::Arc::new(RealDisk), limits).unwrap());
    let (mut chat, save) = Chat::begin(&bench.store, "full");
    assert!(is_saved(&bench.save(save)));
    let save = chat.turn(&bench.store, "one", "1");
    let event = bench.save(save);
    assert!(matches!(&event, SaveEvent::TextOnly { reason, .. } if reason.starts_with("State needs")), "{event:?}");
    let plan = bench.store.plan_restore(&chat.tip.unwrap()).unwrap();
    assert!(plan.usable == 0 && plan.lost[0].why.starts_with(NOT_WRITTEN), "{:?}", plan.lost);
}

#[test]
fn the_budget_drops_old_state_but_never_text_or_the_open_path() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let old = chat_of(&bench, "old", 3);
    let new = chat_of(&bench, "new", 3);
    let store = &bench.store;
    let spare: Vec<SegmentId> = new.segments.iter().map(|s| s.id()).collect();
    let ends = [*spare.last().unwrap()];
    let (of_new, all) = (store.state_bytes_of(&ends).unwrap(), store.state_bytes().unwrap());
    assert!(of_new > 0 && of_new < all, "{of_new} of {all}");
    store.drop_all_state(&spare).unwrap();
    assert_eq!(store.state_bytes().unwrap(), of_new);
    assert_eq!(store.plan_restore(&old.tip.unwrap()).unwrap().usable, 0);
    assert_eq!(store.plan_restore(&new.tip.unwrap()).unwrap().usable, 3);
    assert_eq!(store.session(old.session).unwrap().state_of, None);
    assert_eq!(store.path(old.head.unwrap()).unwrap().len(), 6);
    let segment = store.segment(&old.tip.unwrap()).unwrap().unwrap();
    assert_eq!(segment.rows, Stored::Missing { why: PRUNED.into() });
    // Read again, the same work has the same name and is kept again.
    let images = old.segments.iter().map(|s| (s.id(), image(s))).collect();
    assert!(is_saved(&bench.save(Save { changes: vec![], images })));
    assert_eq!(restore(store, &old.tip.unwrap(), 0).unwrap().plan.usable, 3);
    let sizes = store.sizes(None).unwrap();
    assert_eq!(sizes.state_bytes, store.state_bytes().unwrap());
    assert_eq!(sizes.sessions[&old.session].state + sizes.sessions[&new.session].own, sizes.state_bytes);
}
