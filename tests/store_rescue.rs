//! Databases that no start can open: what can be read of them is in a new one, and the old one is kept beside it.

mod store_support;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sala_chat::session::{RealDisk, SessionFilter, Store, Watch};
use store_support::*;

fn one_talk(root: &Path) -> Talk {
    let bench = Bench::new(open(root, RealDisk));
    let (mut talk, save) = Talk::begin(&bench.store, "talk");
    bench.save(save);
    for n in 0..3 {
        assert!(is_saved(&bench.save(talk.turn(&bench.store, &format!("question {n}"), &format!("answer {n}")))));
    }
    assert!(bench.close());
    talk
}

/// Writes straight into the schema.
fn tamper(root: &Path, sql: &str) {
    let db = rusqlite::Connection::open(root.join("sala.db")).unwrap();
    db.execute_batch(&format!("PRAGMA writable_schema = ON; {sql}; PRAGMA wal_checkpoint(TRUNCATE);")).unwrap();
}

/// The error of a start.
fn refused(root: &Path) -> String {
    Store::open(root, Arc::new(RealDisk), limits()).map(|_| ()).unwrap_err().to_string()
}

fn set_aside(root: &Path) -> Vec<PathBuf> {
    let names = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    names.filter(|path| path.to_str().unwrap().contains("sala.db.damaged-")).collect()
}

#[test]
fn what_a_damaged_schema_hides_is_in_a_new_database() {
    let dir = tempfile::tempdir().unwrap();
    for (n, sql) in [
        "UPDATE sqlite_schema SET sql = 'CREATE TABLF message' || substr(sql, 21) WHERE type = 'table' AND name = 'message'",
        "UPDATE sqlite_schema SET sql = 'x' || sql WHERE type = 'table' AND name IN ('session', 'segment', 'counter')",
        "UPDATE sqlite_schema SET sql = 'x' || sql WHERE type = 'index' AND name = 'message_parent'",
        "UPDATE sqlite_schema SET sql = 'x' || sql WHERE name = 'session_gone'",
    ]
    .into_iter()
    .enumerate()
    {
        let root = dir.path().join(n.to_string());
        let talk = one_talk(&root);
        assert_eq!(Store::rescue(&root, &RealDisk).unwrap(), None, "{n}: nothing is wrong");
        tamper(&root, sql);
        let damaged = fs::read(root.join("sala.db")).unwrap();
        let said = refused(&root);
        assert!(said.contains("is damaged (") && said.contains("sala-chat doctor --check"), "{n}: {said}");

        let rescued = Store::rescue(&root, &RealDisk).unwrap().expect("it is rescued");
        assert_eq!((rescued.sessions, rescued.messages, rescued.lost), (1, 6, 0), "{n}: {rescued:?}");
        assert!(rescued.said().contains("6 messages of 1 session were read"), "{n}: {}", rescued.said());
        assert_eq!(rescued.said_lost(), None, "{n}");
        assert_eq!(fs::read(&rescued.aside).unwrap(), damaged, "{n}: it is kept as it was");
        let store = open(&root, RealDisk);
        let session = store.session_named("talk").unwrap();
        assert_eq!((session.head, session.damaged), (talk.head, false), "{n}");
        let texts: Vec<String> = store.path(talk.head.unwrap()).unwrap().into_iter().map(|m| m.text).collect();
        assert_eq!(texts, ["question 0", "answer 0", "question 1", "answer 1", "question 2", "answer 2"], "{n}");
        // The state is of use as before, and what comes next has ids of its own.
        assert_eq!(store.plan_restore(&talk.tip.unwrap()).unwrap().usable, 3, "{n}");
        assert!(store.new_message_id(None) > talk.head.unwrap(), "{n}");
        let checked = store.check().unwrap();
        assert_eq!((checked.repaired, checked.damaged), (vec![], vec![]), "{n}");
        assert_eq!(store.search("question 1", 10, &Watch::NOBODY).unwrap().len(), 1, "{n}");
        drop(store);
        assert_eq!(Store::rescue(&root, &RealDisk).unwrap(), None, "{n}: once");
        assert_eq!(set_aside(&root).len(), 1, "{n}");
    }
}

#[test]
fn messages_of_a_session_that_is_lost_are_in_one_of_another_name() {
    let dir = tempfile::tempdir().unwrap();
    let talk = one_talk(dir.path());
    // Where it stood is in the log of heads, whose entry in the schema is damaged, too.
    let gone = "DELETE FROM session; UPDATE sqlite_schema SET sql = 'x' || sql WHERE name = 'head_log'";
    tamper(dir.path(), &format!("PRAGMA foreign_keys = OFF; {gone}"));
    let rescued = Store::rescue(dir.path(), &RealDisk).unwrap().expect("it is rescued");
    assert_eq!((rescued.sessions, rescued.messages), (1, 6), "{rescued:?}");
    let store = open(dir.path(), RealDisk);
    let sessions = store.sessions(SessionFilter::Live, 10).unwrap();
    assert_eq!(sessions.len(), 1);
    assert!(sessions[0].name.starts_with("rescued-") && sessions[0].head == talk.head, "{sessions:?}");
    assert_eq!(store.path(talk.head.unwrap()).unwrap().len(), 6);
    assert_eq!(store.check().unwrap().damaged, Vec::<String>::new());
}

#[test]
fn a_database_that_is_in_use_or_has_nothing_to_read_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (used, bare) = (dir.path().join("used"), dir.path().join("bare"));
    one_talk(&used);
    let store = open(&used, RealDisk);
    tamper(&used, "UPDATE sqlite_schema SET sql = 'x' || sql WHERE type = 'table' AND name = 'message'");
    assert_eq!(Store::rescue(&used, &RealDisk).unwrap(), None);
    drop(store);
    assert!(Store::rescue(&used, &RealDisk).unwrap().is_some());

    drop(open(&bare, RealDisk));
    tamper(&bare, "UPDATE sqlite_schema SET sql = 'x' || sql WHERE type = 'table' AND name = 'message'");
    assert_eq!(Store::rescue(&bare, &RealDisk).unwrap(), None);
    assert!(set_aside(&bare).is_empty());
}
