use super::*;
use crate::core::transcript::MessageId;
use crate::engine::protocol::{CheckpointImage, Dtype, ImageTensor};
use crate::server::records::Records;
use crate::server::response::Sent;
use crate::store::SegmentKind;

fn record(message: MessageId, parent: Option<MessageId>) -> Record {
    let sent = Sent {
        id: Records::id(message),
        created: 7,
        completed: Arc::default(),
        model: "m".into(),
        repeated: serde_json::json!({}),
        unique: "1".into(),
        tools: Arc::default(),
    };
    Record::new(message, parent, Vec::new(), sent)
}

#[test]
fn a_disk_that_takes_nothing_has_so_much_to_wait_for_it_and_the_rest_is_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (root, away) = (dir.path().join("data"), dir.path().join("away"));
    let limits = Limits { min_free_bytes: 0, reserve_bytes: 4096, ..Limits::default() };
    let open = || Arc::new(Store::open(&root, Arc::new(RealDisk), limits.clone()).unwrap());
    let store = open();
    let ids: Vec<MessageId> = (0..6).map(|_| store.new_message_id(None)).collect();
    let mut keep = Keep::new(Arc::clone(&store)).unwrap();
    keep.most_waiting.0 = 3;
    std::fs::rename(&root, &away).unwrap();
    for id in &ids[..5] {
        keep.hold(None, Some(&record(*id, None)));
    }
    assert_eq!((keep.waiting.len(), keep.left_out.len(), keep.warned_left_out), (3, 2, true));

    // The disk is back: it takes the waiting saves and new ones, except those that build on a dropped one.
    std::fs::rename(&away, &root).unwrap();
    keep.writer.save(Save::default());
    while !keep.waiting.is_empty() {
        let event = keep.events.recv_timeout(Duration::from_secs(20)).unwrap();
        keep.on_event(event);
    }
    // The next failure is reported again.
    assert_eq!((keep.waiting_bytes(), keep.warned_left_out), (0, false));
    keep.hold(None, Some(&record(ids[5], Some(ids[4]))));
    assert!(keep.left_out.contains(&ids[5]));
    keep.hold(None, None);
    keep.close().unwrap();
    drop(store);
    let store = open();
    let kept: Vec<bool> = ids.iter().map(|id| store.message(*id).is_ok()).collect();
    assert_eq!(kept, [true, true, true, false, false, false]);
    assert_eq!(store.sessions(SessionFilter::Live, usize::MAX).unwrap().len(), 4);
}

#[test]
fn what_waits_is_bounded_in_bytes_as_well_and_what_was_left_out_is_known_for_a_while() {
    let dir = tempfile::tempdir().unwrap();
    let (root, away) = (dir.path().join("data"), dir.path().join("away"));
    let limits = Limits { min_free_bytes: 0, reserve_bytes: 4096, ..Limits::default() };
    let store = Arc::new(Store::open(&root, Arc::new(RealDisk), limits).unwrap());
    let mut keep = Keep::new(Arc::clone(&store)).unwrap();
    let answer = |keep: &mut Keep| keep.hold(None, Some(&record(store.new_message_id(None), None)));
    keep.most_waiting.1 = 1;
    // Numbers need a database, so take them before it fails.
    store.new_message_id(None);
    std::fs::rename(&root, &away).unwrap();
    answer(&mut keep);
    assert!(keep.waiting_bytes() > 1 && keep.left_out.is_empty());
    for _ in 0..MOST_LEFT_OUT + 9 {
        answer(&mut keep);
    }
    assert_eq!((keep.waiting.len(), keep.left_out.len()), (1, MOST_LEFT_OUT));
    std::fs::rename(&away, &root).unwrap();
}

fn state(parent: Option<SegmentId>, start: u64, text: &str, ends: bool) -> FreshState {
    let tensor = ImageTensor { name: "k".into(), dtype: Dtype::U8, shape: vec![10], data: vec![0; 10].into() };
    let mut image = StateImage::default();
    image.rows.tensors.push(tensor);
    image.end = ends.then(CheckpointImage::default);
    let content = NewSegment {
        fingerprint: "f".into(),
        parent,
        start,
        prompt: vec![u32::try_from(text.len()).unwrap()],
        completion: Vec::new(),
        boundary: TextBoundary::of(text),
        kind: SegmentKind::Turn,
    };
    FreshState { content, image }
}

#[test]
fn what_is_being_written_is_found_by_its_text_the_deepest_first() {
    let mut fresh = Fresh::default();
    let on_disk = SegmentId([7; 32]);
    let first = state(Some(on_disk), 5, "one ", true);
    let first_id = first.content.id();
    let second = state(Some(first_id), 6, "one two ", false);
    let second_id = second.content.id();
    let third = state(Some(second_id), 7, "one two three ", true);
    let third_id = third.content.id();
    for s in [first, second, third, state(None, 0, "other ", true)] {
        fresh.add(s, 1_000);
    }
    // The second has no state at its end, but its child has.
    assert_eq!(fresh.under("f", "one two three four"), [third_id, first_id]);
    assert_eq!(fresh.under("f", "one two three "), [first_id]);
    assert_eq!(fresh.under("g", "one two three four"), []);
    let (stored, path) = fresh.path(third_id);
    assert_eq!(stored, Some(on_disk));
    assert_eq!(path.iter().map(|s| s.content.start).collect::<Vec<_>>(), [5, 6, 7]);
    let before = fresh.clone();
    fresh.remove(&third_id);
    assert_eq!(fresh.under("f", "one two three four"), [first_id]);
    assert_eq!(before.under("f", "one two three four").len(), 2);
}

#[test]
fn no_more_is_held_than_allowed_and_the_same_state_counts_once() {
    let mut fresh = Fresh::default();
    fresh.add(state(None, 0, "a", true), 25);
    fresh.add(state(None, 0, "a", true), 25);
    fresh.add(state(None, 0, "ab", true), 25);
    assert_eq!((fresh.bytes(), fresh.states.len()), (20, 2));
    fresh.add(state(None, 0, "abc", true), 25);
    assert_eq!((fresh.bytes(), fresh.states.len()), (20, 2));
    let ids: Vec<SegmentId> = fresh.states.keys().copied().collect();
    ids.iter().for_each(|id| fresh.remove(id));
    assert_eq!((fresh.bytes(), fresh.states.len()), (0, 0));
}
