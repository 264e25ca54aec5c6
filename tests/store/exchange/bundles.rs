//! Bundles: a conversation with its state, from an untrusted source.

use std::path::Path;

use sala_chat::store::{Overwrite, SegmentId, StoreError, Watch};

use super::store_support::*;
use super::{bench, branched};

#[test]
fn a_bundle_resumes_elsewhere_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let from = bench(&dir.path().join("from"));
    let chat = branched(&from);
    let file = dir.path().join("tree.sala");
    let bundled = from.store.export_bundle(chat.session, MODEL, &file, Overwrite::No, &Watch::NONE).unwrap();
    assert_eq!((bundled.state_tokens, bundled.replay_tokens), (chat.position, 0));
    assert_eq!(bundled.bytes, std::fs::metadata(&file).unwrap().len());
    assert!(matches!(
        from.store.export_bundle(chat.session, "another model", &dir.path().join("x"), Overwrite::No, &Watch::NONE),
        Err(StoreError::NoState { .. })
    ));

    let to = bench(&dir.path().join("to"));
    let imported = to.store.import(&file, &Watch::NONE).unwrap();
    assert_eq!((imported.state_tokens, imported.text_only), (chat.position, None));
    let session = to.store.session_named("tree").unwrap();
    assert_eq!((session.messages, session.tokens, session.state_of.as_deref()), (5, chat.position, Some(MODEL)));
    let tip = to.store.tip_segment(session.head.unwrap(), MODEL).unwrap().unwrap().1;
    assert_ne!(Some(tip), chat.tip, "reading the same tokens here finds nothing of it");
    assert!(to.store.segment(&chat.tip.unwrap()).unwrap().is_none());
    let (here, there) = (restore(&to.store, &tip, 0).unwrap(), restore(&from.store, &chat.tip.unwrap(), 0).unwrap());
    assert_eq!(here.plan.usable, 4);
    assert!(here.rows.iter().zip(&there.rows).all(|(a, b)| same_rows(a, b)));
    assert!(same_end(&here.end.unwrap(), &there.end.unwrap()));
    // A second time the files are there already.
    assert_eq!(to.store.import(&file, &Watch::NONE).unwrap().state_tokens, chat.position);
}

#[test]
fn a_damaged_bundle_gives_its_text_or_is_refused_whole() {
    let dir = tempfile::tempdir().unwrap();
    let from = bench(&dir.path().join("from"));
    let chat = branched(&from);
    let file = dir.path().join("tree.sala");
    from.store.export_bundle(chat.session, MODEL, &file, Overwrite::No, &Watch::NONE).unwrap();
    let whole = std::fs::read(&file).unwrap();
    let to = bench(&dir.path().join("to"));
    // Damage in the state: the text is imported, the state is not, no files remain.
    let mut bytes = whole.clone();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let imported = to.store.import(&file, &Watch::NONE).unwrap();
    assert!(imported.text_only.unwrap().contains("damaged"), "said so");
    assert_eq!((imported.messages, imported.state_tokens), (5, 0));
    assert_eq!(std::fs::read_dir(dir.path().join("to/segments")).unwrap().count(), 0);
    // Without its last byte.
    std::fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    let why = to.store.import(&file, &Watch::NONE).unwrap().text_only.unwrap();
    assert!(why.contains("it ends before the state does"), "{why}");
    // In the manifest, or cut short.
    for damaged in [
        &{
            let mut b = whole.clone();
            b[100] ^= 1;
            b
        }[..],
        &whole[..80],
        &whole[..30],
    ] {
        std::fs::write(&file, damaged).unwrap();
        assert!(to.store.import(&file, &Watch::NONE).is_err());
    }
    assert_eq!(to.store.sessions(sala_chat::store::SessionFilter::Live, 10).unwrap().len(), 2);
    assert!(to.store.segment(&SegmentId([0; 32])).unwrap().is_none());
}

/// A bundle of one turn with state made by `spoil`: an attacker can compute valid checksums for anything.
fn hostile(
    dir: &Path,
    name: &str,
    spoil: impl Fn(&mut sala_chat::engine::protocol::StateImage),
) -> (std::path::PathBuf, Chat) {
    let theirs = bench(&dir.join(format!("theirs {name}")));
    let (mut chat, save) = Chat::begin(&theirs.store, "gift");
    theirs.save(save);
    let mut save = chat.document(&theirs.store, "a document everybody reads", 1);
    spoil(&mut save.images[0].1);
    assert!(is_saved(&theirs.save(save)));
    let file = dir.join(format!("{name}.sala"));
    theirs.store.export_bundle(chat.session, MODEL, &file, Overwrite::No, &Watch::NONE).unwrap();
    (file, chat)
}

#[test]
fn imported_state_serves_only_its_own_sessions() {
    let dir = tempfile::tempdir().unwrap();
    let zero = |image: &mut sala_chat::engine::protocol::StateImage| {
        let end = image.end.as_mut().unwrap();
        for t in image.rows.tensors.iter_mut().chain(&mut end.tensors) {
            t.data = vec![0; t.data.len()].into();
        }
    };
    let (file, gift) = hostile(dir.path(), "zeros", zero);
    let ours = bench(&dir.path().join("ours"));
    let imported = ours.store.import(&file, &Watch::NONE).unwrap();
    assert_eq!((imported.state_tokens, &imported.text_only), (gift.position, &None));
    let theirs = ours.store.session(imported.sessions[0].0).unwrap();
    let given = ours.store.tip_segment(theirs.head.unwrap(), MODEL).unwrap().unwrap().1;
    assert_eq!(restore(&ours.store, &given, 0).unwrap().plan.usable, 1, "for the session it came with it is there");

    // The same document read here has another name, before and after ours is saved, and keeps its own state.
    assert_ne!(Some(given), gift.tip);
    assert!(ours.store.segment(&gift.tip.unwrap()).unwrap().is_none());
    let (mut honest, save) = Chat::begin(&ours.store, "honest");
    ours.save(save);
    assert!(is_saved(&ours.save(honest.document(&ours.store, "a document everybody reads", 1))));
    assert_eq!(honest.tip, gift.tip);
    let here = restore(&ours.store, &honest.tip.unwrap(), 0).unwrap();
    assert!(same_rows(&here.rows[0], &image(&honest.segments[0]).rows));
    // Going on from it stays apart as well: the next segment builds on its name.
    let next = sala_chat::store::SegmentId::compute(MODEL, Some(&given), &[1], &[2]);
    assert_ne!(next, sala_chat::store::SegmentId::compute(MODEL, gift.tip.as_ref(), &[1], &[2]));
    // What we export and take back is ours no more, but works for what came with it.
    let again = dir.path().join("again.sala");
    ours.store.export_bundle(theirs.id, MODEL, &again, Overwrite::No, &Watch::NONE).unwrap();
    assert_eq!(ours.store.import(&again, &Watch::NONE).unwrap().state_tokens, gift.position);

    // It is dropped with its sessions.
    for session in ours.store.sessions(sala_chat::store::SessionFilter::Live, 10).unwrap() {
        if session.name.starts_with("gift") {
            ours.store.delete(session.id).unwrap();
        }
    }
    ours.store.empty_trash(Some(0)).unwrap();
    assert!(ours.store.segment(&given).unwrap().is_none());
    assert_eq!(restore(&ours.store, &honest.tip.unwrap(), 0).unwrap().plan.usable, 1);
    let left = std::fs::read_dir(dir.path().join("ours/segments")).unwrap().count();
    assert_eq!(left, 2, "rows and state of the honest session");
}

#[test]
fn invalid_state_in_a_bundle_costs_only_the_state() {
    use sala_chat::engine::protocol::{StateImage, TensorData};
    let dir = tempfile::tempdir().unwrap();
    let ours = bench(&dir.path().join("ours"));
    let (mut own, save) = Chat::begin(&ours.store, "own");
    ours.save(save);
    assert!(is_saved(&ours.save(own.turn(&ours.store, "q", "a"))));
    fn put(data: &mut TensorData, at: usize, bytes: &[u8]) {
        let mut copy = data.to_vec();
        copy[at..at + bytes.len()].copy_from_slice(bytes);
        *data = copy.into();
    }
    type Spoil = fn(&mut StateImage);
    let cases: [(&str, &str, Spoil); 2] = [
        ("nan", "is no number", |i| put(&mut i.end.as_mut().unwrap().tensors[0].data, 8, &f32::NAN.to_le_bytes())),
        ("inf", "is no number", |i| put(&mut i.rows.tensors[1].data, 4, &[0x80, 0x7f])),
    ];
    for (name, why, spoil) in cases {
        let (file, _) = hostile(dir.path(), name, spoil);
        let imported = ours.store.import(&file, &Watch::NONE).unwrap();
        let text = imported.text_only.unwrap_or_default();
        assert!(text.contains(why), "{name}: {text:?}");
        assert_eq!((imported.messages, imported.state_tokens), (1, 0), "{name}");
        let session = ours.store.session(imported.sessions[0].0).unwrap();
        assert_eq!(ours.store.tip_segment(session.head.unwrap(), MODEL).unwrap(), None, "{name}");
    }
    assert_eq!(std::fs::read_dir(dir.path().join("ours/segments")).unwrap().count(), 2, "nothing is left of them");
}
