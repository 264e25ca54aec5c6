//! Data directories of the version before checksums and of the present one: all text exists, kept state is usable, new turns work.

use crate::store_support;

use std::path::Path;

use sala_chat::core::transcript::Role;
use sala_chat::runtime::protocol::ExportFormat;
use sala_chat::store::{Access, Overwrite, RealDisk, Scope, SegmentId, SessionFilter, Store, Watch};
use store_support::*;

/// A data directory, the fingerprint of its state, and the answers that its model gave.
struct Version {
    name: &'static str,
    fingerprint: &'static str,
    /// To "Where is it?", "And then?" and "When was it lit?".
    answers: [&'static str; 3],
}

const VERSIONS: [Version; 2] = [
    Version {
        name: "version1",
        fingerprint: "81c012cff76f9488c7caaddfb407e318",
        answers: ["I cannot see a clock or a cal", "You are welcome!", "sala-chat runs on your own computer"],
    },
    Version {
        name: "version2",
        fingerprint: "48bd9465d6707b477eceb205fde155a0",
        answers: [
            "I am a small demo model and know",
            "I am a small demo model and know",
            "The document says: \"The ligh",
        ],
    },
];

fn copy(version: &Version) -> tempfile::TempDir {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(version.name);
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("segments")).unwrap();
    std::fs::copy(from.join("sala.db"), dir.path().join("sala.db")).unwrap();
    let _ = std::fs::copy(from.join("sala-chat.id"), dir.path().join("sala-chat.id"));
    for entry in std::fs::read_dir(from.join("segments")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), dir.path().join("segments").join(entry.file_name())).unwrap();
    }
    // Independent of the umask of the checkout.
    for (name, mode) in [("segments", 0o700), ("sala.db", 0o600)] {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(dir.path().join(name), permissions).unwrap();
    }
    dir
}

fn texts(store: &Store, name: &str) -> Vec<(Role, String)> {
    let session = store.session_named(name).unwrap();
    assert!(!session.damaged);
    store.path(session.head.unwrap()).unwrap().into_iter().map(|m| (m.role, m.text)).collect()
}

fn check_texts(store: &Store, version: &Version) {
    let [place, then, lit] = version.answers;
    let names: Vec<String> = store.sessions(SessionFilter::Live, 10).unwrap().into_iter().map(|s| s.name).collect();
    assert_eq!(names, ["lighthouse", "side", "what-is-a-lamp"]);
    let expected = |pairs: &[(&str, &str)]| -> Vec<(Role, String)> {
        let turn = |(q, a): &(&str, &str)| [(Role::User, (*q).to_owned()), (Role::Assistant, (*a).to_owned())];
        pairs.iter().flat_map(turn).collect()
    };
    let lamp = ("What is a lamp?", "A lamp is a thing that you can");
    let place = ("Where is it?", place);
    assert_eq!(texts(store, "what-is-a-lamp"), expected(&[lamp, place]));
    assert_eq!(texts(store, "side"), expected(&[lamp, place, ("And then?", then)]));
    let document = "The lighthouse on the cape was lit in 1871.\nIts keeper kept a log of ships and storms.\n\
                    The lamp burned whale oil, later kerosene.\n";
    let mut lighthouse = vec![(Role::Document, document.to_owned())];
    lighthouse.extend(expected(&[("When was it lit?", lit)]));
    assert_eq!(texts(store, "lighthouse"), lighthouse);

    // The branch that was undone, the mark, the fork, the trash, the library.
    let lamps = store.session_named("what-is-a-lamp").unwrap();
    let tree = store.tree(lamps.id, version.fingerprint, 100).unwrap();
    assert!(tree.iter().any(|n| n.message.text == "Who keeps it?"), "undone, not gone");
    let marks = store.marks(lamps.id).unwrap();
    assert_eq!((marks[0].name.as_str(), store.message(marks[0].message).unwrap().text.as_str()), ("lamp", lamp.1));
    assert_eq!(store.forks(lamps.id).unwrap()[0].0.name, "side");
    assert_eq!(store.sessions(SessionFilter::Trashed, 10).unwrap()[0].name, "to-be-deleted");
    let library = store.documents().unwrap();
    assert_eq!(
        (library.len(), library[0].document.name.as_str(), library[0].document.tokens),
        (1, "lighthouse.txt", 97)
    );
    assert!(!store.search("kerosene", 10, &Watch::NONE).unwrap().is_empty());
    assert!(store.prompts(10).unwrap().contains(&"What is a lamp?".to_owned()));
}

#[test]
fn old_directories_keep_texts_and_state_and_migrate_once() {
    for version in &VERSIONS {
        let dir = copy(version);
        for _ in 0..2 {
            let store = open(dir.path(), RealDisk);
            assert_eq!(store.access, Access::Writable);
            assert!(store.notes.is_empty(), "{:?}", store.notes);
            assert_eq!(store.damage(), None);
            check_texts(&store, version);
            let marked = store.session_named("what-is-a-lamp").unwrap();
            let mark = store.marks(marked.id).unwrap()[0].message;
            let (at, tip) = store.tip_segment(mark, version.fingerprint).unwrap().unwrap();
            let opened = store.open_path(&tip, 0).unwrap();
            assert_eq!((at, opened.plan.usable, opened.plan.replay_tokens()), (mark, 2, 0));
            assert_eq!(opened.end.unwrap().position, 25);
            for segment in &opened.plan.path {
                store.read_rows(&segment.id).unwrap();
            }
        }
        // An `f32` of an old session is exported as it was set.
        let lamp = open(dir.path(), RealDisk).session_named("what-is-a-lamp").unwrap().id;
        let exported = dir.path().join("lamp.json");
        let (json, all) = (ExportFormat::Json, Scope::Tree);
        open(dir.path(), RealDisk).export_to(lamp, json, all, &exported, Overwrite::No, &Watch::NONE).unwrap();
        let exported: serde_json::Value = serde_json::from_slice(&std::fs::read(&exported).unwrap()).unwrap();
        assert_eq!(exported["settings"]["sampling"]["top_p"].to_string(), "0.95");
        // State without a file is named, and nothing else is wrong.
        let store = open(dir.path(), RealDisk);
        let checked = store.check().unwrap();
        assert_eq!(checked.damaged, Vec::<String>::new());
        assert!(checked.repaired.iter().all(|line| line.contains("its file is missing")), "{:?}", checked.repaired);
        assert!(checked.messages == 13 && checked.states >= 3, "{checked:?}");
        // New turns work.
        let bench = Bench::new(store);
        let (mut chat, save) = Chat::begin(&bench.store, "lighthouse");
        assert!(is_saved(&bench.save(save)));
        assert!(is_saved(&bench.save(chat.turn(&bench.store, "q", "a"))));
        assert_eq!(bench.store.session(chat.session).unwrap().name, "lighthouse-2");
    }
}

#[test]
fn texts_are_shown_without_write_permission() {
    for version in &VERSIONS {
        let dir = copy(version);
        let disk = fault::FaultDisk::new();
        disk.make_read_only();
        let store = open(dir.path(), disk);
        assert!(matches!(&store.access, Access::ReadOnly { .. }));
        check_texts(&store, version);
        assert!(store.segment(&SegmentId([0; 32])).unwrap().is_none());
    }
}
