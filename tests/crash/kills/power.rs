//! A power cut at each effect on the disk in turn.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use sala_chat::core::transcript::{MessageId, Role};
use sala_chat::store::{Access, Change, RealDisk, Save, SaveEvent, SegmentId, Store, Stored};

use crate::kills::check_no_orphans;
use crate::kills::store_support::fault::{FaultDisk, Loss};
use crate::kills::store_support::*;

/// What a run had acknowledged before the power failed.
#[derive(Default)]
struct Acknowledged {
    /// Messages and texts acknowledged.
    texts: BTreeMap<MessageId, String>,
    /// Segments with acknowledged state.
    states: Vec<sala_chat::store::NewSegment>,
    /// Every segment ever handed over.
    tried: Vec<sala_chat::store::NewSegment>,
    head: Option<MessageId>,
}

/// Turn, document in two parts, turn, growing answer, mark, thinning: every kind of save once.
fn run_until_power_cut(root: &Path, disk: &FaultDisk) -> Acknowledged {
    let mut acknowledged = Acknowledged::default();
    let mut limits = limits();
    limits.keep_turns = 1;
    let Ok(store) = Store::open(root, Arc::new(disk.clone()), limits) else {
        return acknowledged;
    };
    let bench = Bench::new(store);
    let store = Arc::clone(&bench.store);
    let (mut chat, begin) = Chat::begin(&store, "crash");
    let mut saves: Vec<Save> = vec![begin, chat.turn(&store, "first", "one"), chat.document(&store, "the document", 2)];
    let mut answer = message(&store, chat.head, Role::Assistant, "");
    for part in ["it", " grows", " on"] {
        answer.text.push_str(part);
        let put = Change::PutMessage { session: chat.session, message: Box::new(answer.clone()) };
        saves.push(Save { changes: vec![put], images: vec![] });
    }
    saves.push(chat.turn(&store, "second", "two"));
    saves.push(chat.turn(&store, "third", "three"));
    let mark = Change::Mark { session: chat.session, name: "here".into(), message: chat.head.unwrap() };
    saves.push(Save { changes: vec![mark], images: vec![] });
    acknowledged.tried = chat.segments.clone();
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
            acknowledged.texts.extend(texts);
            acknowledged.head = head.or(acknowledged.head);
        }
        if is_saved(&event) {
            acknowledged.states.extend(chat.segments.iter().filter(|s| ids.contains(&s.id())).cloned());
        }
    }
    let _ = store.thin(chat.session);
    bench.close();
    acknowledged
}

/// The promises, after the power is back.
fn check_promises(root: &Path, acknowledged: &Acknowledged) {
    let store = open(root, RealDisk);
    assert_eq!(store.access, Access::Writable);
    for (id, text) in &acknowledged.texts {
        let found = store.message(*id).unwrap().text;
        assert!(found.starts_with(text.as_str()), "{found:?} lost {text:?}");
    }
    if let Some(head) = acknowledged.head {
        assert!(store.path(head).unwrap().len() >= 2);
        let session = store.session_named("crash").unwrap();
        assert!(session.head.is_some());
    }
    // Whatever the database says is kept is there, bit for bit.
    for segment in &acknowledged.tried {
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
    for segment in &acknowledged.states {
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

    // The store stays writable.
    let bench = Bench::new(store);
    let (mut chat, save) = Chat::begin(&bench.store, "after");
    assert!(is_saved(&bench.save(save)));
    let save = chat.turn(&bench.store, "still", "alive");
    assert!(is_saved(&bench.save(save)));
    assert_eq!(restore(&bench.store, &chat.tip.unwrap(), 0).unwrap().plan.usable, 1);
    assert!(bench.close());
}

fn crash_everywhere(loss: Loss) {
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultDisk::new();
    let acknowledged = run_until_power_cut(&dir.path().join("whole"), &disk);
    assert_eq!((acknowledged.texts.len(), acknowledged.states.len()), (8, 5), "the run itself works");
    check_promises(&dir.path().join("whole"), &acknowledged);
    let effects = disk.effects();
    assert!(effects > 50, "{effects} effects");
    let mut cut = 0;
    for n in 0..effects {
        let root = dir.path().join(n.to_string());
        let disk = FaultDisk::new();
        disk.crash_at(n, loss);
        let acknowledged = run_until_power_cut(&root, &disk);
        cut += u64::from(disk.is_off());
        check_promises(&root, &acknowledged);
        std::fs::remove_dir_all(&root).unwrap();
    }
    println!("{effects} effects, power cut in {cut} runs");
    // Housekeeping between saves depends on timing, so the last few points may not be reached every time.
    assert!(cut * 10 >= effects * 9, "{cut} of {effects}");
}

#[test]
fn power_cut_with_lost_bytes_loses_nothing_acknowledged() {
    crash_everywhere(Loss::Drop);
}

#[test]
fn power_cut_with_torn_bytes_loses_nothing_acknowledged() {
    crash_everywhere(Loss::Torn);
}

#[test]
fn power_cut_with_all_bytes_kept_loses_nothing_acknowledged() {
    crash_everywhere(Loss::Keep);
}

#[test]
fn the_matrix_would_notice_a_sync_that_does_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultDisk::new();
    disk.lie_about_syncs();
    disk.crash_at(50, Loss::Drop);
    let acknowledged = run_until_power_cut(dir.path(), &disk);
    assert!(disk.is_off() && !acknowledged.states.is_empty());
    let store = open(dir.path(), RealDisk);
    let lost = |s: &sala_chat::store::NewSegment| store.read_rows(&s.id()).is_err();
    assert!(acknowledged.states.iter().any(lost), "acknowledged state is gone, as it must be on such a disk");
    assert!(acknowledged.texts.keys().all(|id| store.message(*id).is_ok()), "texts do not depend on it");
}
