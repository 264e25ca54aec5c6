//! The power goes at each effect on the disk in turn.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use sala_chat::core::transcript::{MessageId, Role};
use sala_chat::store::{Access, Change, RealDisk, Save, SaveEvent, SegmentId, Store, Stored};

use crate::kills::check_no_orphans;
use crate::kills::store_support::fault::{FaultDisk, Loss};
use crate::kills::store_support::*;

/// What a run was told before the power went.
#[derive(Default)]
struct Told {
    /// Messages and texts acknowledged.
    texts: BTreeMap<MessageId, String>,
    /// Segments whose state was acknowledged, with what it was.
    states: Vec<sala_chat::store::NewSegment>,
    /// Every segment ever handed over.
    tried: Vec<sala_chat::store::NewSegment>,
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
    let lost = |s: &sala_chat::store::NewSegment| store.read_rows(&s.id()).is_err();
    assert!(told.states.iter().any(lost), "acknowledged state is gone, as it must be on such a disk");
    assert!(told.texts.keys().all(|id| store.message(*id).is_ok()), "texts do not depend on it");
}
