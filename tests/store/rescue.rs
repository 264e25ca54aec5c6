//! Damaged databases: a start shows what is readable, a rescue copies that into a new one and keeps the old one.

use crate::store_support;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sala_chat::store::{Access, RealDisk, Rescued, SessionFilter, Store, Unread, Watch};
use store_support::fault::{FaultDisk, Loss};
use store_support::*;

const PAGE: usize = 4096;

/// No start can read the table of messages any more.
const UNREADABLE: &str = "UPDATE sqlite_schema SET sql = 'x' || sql WHERE type = 'table' AND name = 'message'";

fn one_chat(root: &Path) -> Chat {
    let bench = Bench::new(open(root, RealDisk));
    let (mut chat, save) = Chat::begin(&bench.store, "talk");
    bench.save(save);
    for n in 0..3 {
        assert!(is_saved(&bench.save(chat.turn(&bench.store, &format!("question {n}"), &format!("answer {n}")))));
    }
    assert!(bench.close());
    chat
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

fn rescue(root: &Path) -> Option<Rescued> {
    Store::rescue(root, &RealDisk).unwrap()
}

/// Why none is made.
fn not_rescued(root: &Path) -> String {
    Store::rescue(root, &RealDisk).unwrap_err().to_string()
}

fn rescued(root: &Path) -> Rescued {
    rescue(root).unwrap_or_else(|| panic!("{}: nothing is wrong", root.display()))
}

/// The damaged databases. If another process is reading one, its log is moved too.
fn set_aside(root: &Path) -> Vec<PathBuf> {
    let names = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let damaged = |path: &PathBuf| path.to_str().unwrap().contains("sala.db.damaged-");
    names.filter(|path| damaged(path) && !path.to_str().unwrap().ends_with("-wal")).collect()
}

#[test]
fn text_hidden_by_a_damaged_schema_is_in_the_new_database() {
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
        let chat = one_chat(&root);
        assert_eq!(rescue(&root), None, "{n}: nothing is wrong");
        tamper(&root, sql);
        let damaged = fs::read(root.join("sala.db")).unwrap();
        let store = open(&root, RealDisk);
        let Access::ReadOnly { why } = &store.access else { panic!("{n}: {:?}", store.access) };
        assert!(why.contains("is damaged (") && why.contains("sala-chat doctor --check"), "{n}: {why}");
        assert_eq!(store.path(chat.head.unwrap()).unwrap().len(), 6, "{n}: all of it can be read");
        assert_eq!(store.search("question 1", 10, &Watch::NONE).unwrap().len(), 1, "{n}: and found");
        drop(store);

        let rescued = rescued(&root);
        assert_eq!((rescued.sessions, rescued.messages), (1, 6), "{n}: {rescued:?}");
        assert!(rescued.summary().contains("6 messages of 1 session were read"), "{n}: {}", rescued.summary());
        assert_eq!((&rescued.lost, rescued.losses()), (&Unread::default(), vec![]), "{n}");
        assert_eq!(fs::read(&rescued.aside).unwrap(), damaged, "{n}: it is kept as it was");
        let store = open(&root, RealDisk);
        let session = store.session_named("talk").unwrap();
        assert_eq!((session.head, session.damaged), (chat.head, false), "{n}");
        let texts: Vec<String> = store.path(chat.head.unwrap()).unwrap().into_iter().map(|m| m.text).collect();
        assert_eq!(texts, ["question 0", "answer 0", "question 1", "answer 1", "question 2", "answer 2"], "{n}");
        // The state is usable as before, and later messages have new ids.
        assert_eq!(store.plan_restore(&chat.tip.unwrap()).unwrap().usable, 3, "{n}");
        assert!(store.new_message_id(None) > chat.head.unwrap(), "{n}");
        let checked = store.check().unwrap();
        assert_eq!((checked.repaired, checked.damaged), (vec![], vec![]), "{n}");
        assert_eq!(store.search("question 1", 10, &Watch::NONE).unwrap().len(), 1, "{n}");
        drop(store);
        assert_eq!(rescue(&root), None, "{n}: once");
        assert_eq!(set_aside(&root).len(), 1, "{n}");
    }
}

#[test]
fn messages_of_a_lost_session_are_in_a_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let chat = one_chat(dir.path());
    // Its head is in the log of heads; that table has a damaged schema entry, too.
    let gone = "DELETE FROM session; UPDATE sqlite_schema SET sql = 'x' || sql WHERE name = 'head_log'";
    tamper(dir.path(), &format!("PRAGMA foreign_keys = OFF; {gone}"));
    let rescued = rescued(dir.path());
    assert_eq!((rescued.sessions, rescued.messages), (1, 6), "{rescued:?}");
    let store = open(dir.path(), RealDisk);
    let sessions = store.sessions(SessionFilter::Live, 10).unwrap();
    assert_eq!(sessions.len(), 1);
    assert!(sessions[0].name.starts_with("rescued-") && sessions[0].head == chat.head, "{sessions:?}");
    assert_eq!(store.path(chat.head.unwrap()).unwrap().len(), 6);
    assert_eq!(store.check().unwrap().damaged, Vec::<String>::new());
}

#[test]
fn a_database_that_is_in_use_or_has_nothing_to_read_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (used, bare) = (dir.path().join("used"), dir.path().join("bare"));
    one_chat(&used);
    let store = open(&used, RealDisk);
    tamper(&used, UNREADABLE);
    let text = not_rescued(&used);
    assert!(text.contains("close that one first") && text.contains("sala-chat doctor --check"), "{text}");
    drop(store);
    rescued(&used);

    drop(open(&bare, RealDisk));
    tamper(&bare, UNREADABLE);
    let why = not_rescued(&bare);
    assert!(why.contains(", and no message could be read from it): bring back a copy"), "{why}");
    assert!(!why.contains("doctor --check") && set_aside(&bare).is_empty(), "{why}");
}

#[test]
fn a_damaged_header_costs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    let chat = one_chat(&whole);
    let bytes = fs::read(whole.join("sala.db")).unwrap();
    // One bit of each byte, and all of those that decide whether SQLite writes the file, and of the version.
    let bits = (0..100).flat_map(|at| (0..8).map(move |bit| (at, bit)));
    for (at, bit) in bits.filter(|(at, bit)| matches!(at, 18 | 19 | 60..=63) || *bit == at % 8) {
        let root = dir.path().join("damaged");
        let _ = fs::remove_dir_all(&root);
        fs::create_dir(&root).unwrap();
        fs::copy(whole.join("sala-chat.id"), root.join("sala-chat.id")).unwrap();
        let mut bytes = bytes.clone();
        bytes[at] ^= 1 << bit;
        let version = i32::from_be_bytes(bytes[60..64].try_into().unwrap());
        fs::write(root.join("sala.db"), bytes).unwrap();
        assert_eq!(open(&root, RealDisk).path(chat.head.unwrap()).unwrap().len(), 6, "byte {at}, bit {bit}");
        // A version a newer program may have written: it is named, and left to that.
        if (3..=1002).contains(&version) {
            let Access::ReadOnly { why } = open(&root, RealDisk).access.clone() else { panic!("byte {at}, bit {bit}") };
            assert!(why.contains("was written by a newer sala-chat"), "byte {at}, bit {bit}: {why}");
            assert_eq!(rescue(&root), None, "byte {at}, bit {bit}");
            continue;
        }
        rescue(&root);
        let store = open(&root, RealDisk);
        assert_eq!(
            (&store.access, store.path(chat.head.unwrap()).unwrap().len()),
            (&Access::Writable, 6),
            "byte {at}, bit {bit}"
        );
        let checked = store.check().unwrap();
        assert_eq!((checked.messages, checked.damaged), (6, vec![]), "byte {at}, bit {bit}");
        let bench = Bench::new(store);
        let (mut more, save) = Chat::begin(&bench.store, "goes on");
        assert!(is_saved(&bench.save(save)), "byte {at}, bit {bit}");
        assert!(is_saved(&bench.save(more.turn(&bench.store, "q", "a"))), "byte {at}, bit {bit}");
        assert!(bench.close(), "byte {at}, bit {bit}");
    }
}

/// Sessions with turns, a document and an undone branch, more than a page of each.
fn several_talks(root: &Path) -> Vec<String> {
    let bench = Bench::new(open(root, RealDisk));
    for name in ["harbour", "garden", "mill"] {
        let (mut chat, save) = Chat::begin(&bench.store, name);
        bench.save(save);
        let document = (0..90).map(|i| format!("{name}, line {i}: {} lamps.\n", (i * 37) % 91)).collect::<String>();
        assert!(is_saved(&bench.save(chat.document(&bench.store, &document, 1))));
        for n in 0..8 {
            let (q, a) = (format!("question {n} about the {name}"), format!("answer {n}: {}", name.repeat(60 + n)));
            assert!(is_saved(&bench.save(chat.turn(&bench.store, &q, &a))));
        }
    }
    bench.store.index_texts(&Watch::NONE).unwrap();
    let texts = texts_of(&bench.store);
    assert!(bench.close());
    texts
}

/// Texts of all messages on the paths of sessions.
fn texts_of(store: &Store) -> Vec<String> {
    let sessions = store.sessions(SessionFilter::Live, 100).unwrap();
    let heads = sessions.iter().filter_map(|session| session.head);
    heads.flat_map(|head| store.path(head).unwrap()).map(|message| message.text).collect()
}

#[test]
fn one_rescue_recovers_all_readable_text_for_any_damaged_page() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    let texts = several_talks(&whole);
    let bytes = fs::read(whole.join("sala.db")).unwrap();
    let pages = bytes.len() / PAGE;
    assert!(pages > 20, "{pages} pages");
    type Damage = fn(&mut [u8]);
    let damages: [(&str, Damage); 3] = [
        ("zeroed", |page| page.fill(0)),
        ("first byte", |page| page[0] ^= 4),
        ("last byte", |page| *page.last_mut().unwrap() ^= 4),
    ];
    let mut complete = 0;
    for (how, damage) in damages {
        for page in 1..=pages {
            let at = format!("page {page} of {pages}, {how}");
            let root = dir.path().join("damaged");
            let _ = fs::remove_dir_all(&root);
            fs::create_dir(&root).unwrap();
            fs::copy(whole.join("sala-chat.id"), root.join("sala-chat.id")).unwrap();
            let mut damaged = bytes.clone();
            damage(&mut damaged[(page - 1) * PAGE..page * PAGE]);
            fs::write(root.join("sala.db"), &damaged).unwrap();
            let store = open(&root, RealDisk);
            let before = texts_of(&store);
            let noted = matches!(&store.access, Access::ReadOnly { .. }) || store.damage().is_some();
            drop(store);
            let rescued = rescue(&root);
            let store = open(&root, RealDisk);
            assert_eq!(store.access, Access::Writable, "{at}");
            let after = texts_of(&store);
            let left = |found: &[String]| texts.iter().filter(|text| found.contains(text)).count();
            assert!(left(&before) >= left(&after), "{at}: a rescue reaches more than a start shows");
            if let Some(rescued) = &rescued {
                assert_eq!(left(&after) as u64, rescued.messages, "{at}: all that can be read is reached");
                assert_eq!(fs::read(&rescued.aside).unwrap(), damaged, "{at}: the old file is kept");
            }
            assert!(noted || after == texts, "{at}: {} of {} texts, and nothing is said", left(&after), texts.len());
            complete += usize::from(after == texts);
            assert!(how != "first byte" || after == texts, "{at}: the cells of the page are whole");
            if rescued.is_some() {
                assert_eq!(store.check().unwrap().damaged, Vec::<String>::new(), "{at}");
            }
            let bench = Bench::new(store);
            let (mut chat, save) = Chat::begin(&bench.store, "goes on");
            assert!(is_saved(&bench.save(save)), "{at}");
            assert!(is_saved(&bench.save(chat.turn(&bench.store, "q", "a"))), "{at}");
            assert!(bench.close(), "{at}");
        }
    }
    println!("{complete} of {} damaged databases give all texts", 3 * pages);
    assert!(complete > 5 * pages / 2, "{complete} of {} complete", 3 * pages);
}

#[test]
fn a_table_that_is_lost_whole_is_named() {
    let dir = tempfile::tempdir().unwrap();
    one_chat(dir.path());
    let gone = "DELETE FROM sqlite_schema WHERE tbl_name IN ('mark', 'draft', 'property')";
    tamper(dir.path(), &format!("{gone}; {UNREADABLE}"));
    let rescued = rescued(dir.path());
    // A database of this version may be one without drafts.
    assert_eq!((rescued.messages, &rescued.lost), (6, &Unread { rows: 0, tables: vec!["mark", "property"] }));
    let text = rescued.losses();
    assert!(text.len() == 2 && text[0].starts_with("The table \"mark\" was not found"), "{text:?}");
}

#[test]
fn drafts_of_which_an_entry_is_left_are_named_as_lost() {
    let dir = tempfile::tempdir().unwrap();
    one_chat(dir.path());
    let where_it_lies_is_lost = "UPDATE sqlite_schema SET sql = 'x' || sql, rootpage = 0 WHERE name = 'draft'";
    tamper(dir.path(), &format!("{where_it_lies_is_lost}; {UNREADABLE}"));
    assert_eq!(rescued(dir.path()).lost, Unread { rows: 0, tables: vec!["draft"] });
}

#[test]
fn of_two_rescues_at_once_one_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let chat = one_chat(dir.path());
    tamper(dir.path(), UNREADABLE);
    let both = std::thread::scope(|scope| {
        let both = [(); 2].map(|()| scope.spawn(|| rescue(dir.path())));
        both.map(|one| one.join().unwrap())
    });
    assert_eq!(both.iter().flatten().count(), 1, "{both:?}");
    assert_eq!(set_aside(dir.path()).len(), 1);
    assert_eq!(open(dir.path(), RealDisk).path(chat.head.unwrap()).unwrap().len(), 6);
}

#[test]
fn an_open_during_a_rescue_waits_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let chat = one_chat(dir.path());
    let (root, head) = (dir.path(), chat.head.unwrap());
    let (database, damaged) = (root.join("sala.db"), root.join("sala.db.damaged-20260102-030405"));
    let ready = root.join("sala.db.rescued-20260102-030405");
    fs::copy(&database, &ready).unwrap();
    fs::copy(&database, &damaged).unwrap();
    tamper(root, UNREADABLE);
    let alone = fs::File::open(root.join("locks/store.lock")).unwrap();
    alone.lock().unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| rescue(root));
        std::thread::sleep(Duration::from_millis(200));
        fs::remove_file(&database).unwrap();
        let opened = scope.spawn(|| Store::open(root, Arc::new(RealDisk), limits()).map(|store| store.path(head)));
        std::thread::sleep(Duration::from_millis(200));
        fs::rename(&ready, &database).unwrap();
        drop(alone);
        assert_eq!(other.join().unwrap(), None, "what is in its place by then is whole");
        assert_eq!(opened.join().unwrap().unwrap().unwrap().len(), 6);
    });
    assert_eq!(set_aside(root), [damaged]);
}

#[test]
fn an_interrupted_exchange_is_finished_and_touches_no_other_file() {
    let dir = tempfile::tempdir().unwrap();
    let of = |name: &str| dir.path().join(format!("sala.db.{name}"));
    let chat = one_chat(dir.path());
    let others = ["damaged-20250101-000000", "damaged-20260102-030405-shm", "damaged-kept", "rescued-notes"];
    for name in others {
        fs::write(of(name), name).unwrap();
    }
    // The new one has its name once it is complete; the damaged one may have left its place without its log.
    for moved in [false, true] {
        fs::copy(dir.path().join("sala.db"), of("rescued")).unwrap();
        tamper(dir.path(), UNREADABLE);
        let damaged = fs::read(dir.path().join("sala.db")).unwrap();
        if moved {
            fs::rename(dir.path().join("sala.db"), of("damaged-20260102-030405")).unwrap();
            fs::write(dir.path().join("sala.db-wal"), "its log").unwrap();
            assert!(refused(dir.path()).contains("sala-chat doctor --check"));
        } else {
            assert!(matches!(&open(dir.path(), RealDisk).access, Access::ReadOnly { .. }), "nothing is added to it");
        }
        let finished = rescued(dir.path());
        assert_eq!(finished.messages, 6, "{finished:?}");
        let log = PathBuf::from(format!("{}-wal", finished.aside.display()));
        match moved {
            true => assert_eq!(fs::read_to_string(log).unwrap(), "its log"),
            false => assert_eq!(fs::read(finished.aside).unwrap(), damaged),
        }
        assert_eq!(open(dir.path(), RealDisk).access, Access::Writable);
        assert_eq!(open(dir.path(), RealDisk).path(chat.head.unwrap()).unwrap().len(), 6);
        assert!(!of("rescued").exists() && rescue(dir.path()).is_none(), "once");
    }
    for name in others {
        assert_eq!(fs::read_to_string(of(name)).unwrap(), name);
    }
}

#[test]
fn a_table_that_cannot_be_gone_through_has_lost_something() {
    let dir = tempfile::tempdir().unwrap();
    one_chat(dir.path());
    let database = dir.path().join("sala.db");
    let db = rusqlite::Connection::open(&database).unwrap();
    let of_segments = "SELECT rootpage FROM sqlite_schema WHERE type = 'table' AND name = 'segment'";
    let root: usize = db.query_row(of_segments, [], |row| row.get::<_, u32>(0)).unwrap() as usize;
    let page: usize = db.query_row("PRAGMA page_size", [], |row| row.get::<_, u32>(0)).unwrap() as usize;
    drop(db);
    tamper(dir.path(), UNREADABLE);
    let mut bytes = fs::read(&database).unwrap();
    bytes[(root - 1) * page..root * page].fill(0xff);
    fs::write(&database, bytes).unwrap();
    let rescued = rescued(dir.path());
    assert_eq!((rescued.messages, &rescued.lost), (6, &Unread { rows: 1, tables: vec![] }));
    assert_eq!(rescued.losses(), ["1 row of the damaged database could not be read"]);
    let sessions = open(dir.path(), RealDisk).sessions(SessionFilter::Live, 10).unwrap();
    assert_eq!((sessions[0].tokens, sessions[0].state_of.as_deref()), (0, None), "what was kept is lost: {sessions:?}");
}

#[test]
fn a_database_of_a_newer_program_is_left_to_that() {
    let dir = tempfile::tempdir().unwrap();
    one_chat(dir.path());
    tamper(dir.path(), &format!("PRAGMA user_version = 99; {UNREADABLE}"));
    let why = not_rescued(dir.path());
    assert!(why.contains("it is a newer sala-chat's") && set_aside(dir.path()).is_empty(), "{why}");
}

#[test]
fn a_rescue_that_is_cut_anywhere_is_done_by_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    for loss in [Loss::Keep, Loss::Drop] {
        for n in 0.. {
            let root = dir.path().join(format!("{loss:?} {n}"));
            let chat = one_chat(&root);
            tamper(&root, UNREADABLE);
            let disk = FaultDisk::new();
            disk.crash_at(n, loss);
            let first = Store::rescue(&root, &disk);
            if !disk.is_off() {
                assert!(matches!(first, Ok(Some(_))) && n > 6, "{n}: {first:?}");
                break;
            }
            assert!(first.is_err(), "{n}: {first:?}");
            if !root.join("sala.db").exists() {
                let message = refused(&root);
                assert!(message.contains("sala-chat doctor --check"), "{n}: {message}");
            }
            // `None`: the new one was in its place.
            assert!(rescue(&root).is_none_or(|rescued| rescued.messages == 6), "{n}");
            assert_eq!(open(&root, RealDisk).path(chat.head.unwrap()).unwrap().len(), 6, "{n}");
            let mut names = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().file_name());
            let ready = names.find(|name| name.to_str().unwrap().starts_with("sala.db.rescued"));
            assert_eq!((set_aside(&root).len(), ready), (1, None), "{n}");
        }
    }
}
