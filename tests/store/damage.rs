//! Bits that turn on the disk: no message changes without a word, none disappears without a word, and a damaged one hides
//! no other. One byte of the database or of its log is flipped at a time, over a directory as it lies there after a kill.
//!
//! The default is 500 flips; `SALA_FLIPS=N` makes it N. Flips are spread evenly, so more of them are other ones.

use crate::store_support;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sala_chat::core::transcript::MessageId;
use sala_chat::store::{Access, Change, Disk, NewDocument, RealDisk, Save, SaveEvent, SessionFilter, Store, Watch};
use store_support::fault::FaultDisk;
use store_support::*;

/// Sessions with turns, a document, an undone branch, a mark and a fork; their messages. The folder is left as after a
/// kill: its log still exists.
fn sessions_of(root: &Path) -> BTreeMap<String, Vec<(MessageId, String)>> {
    let live = root.with_extension("live");
    let bench = Bench::new(open(&live, RealDisk));
    let store = &bench.store;
    for name in ["harbour", "garden"] {
        let (mut chat, save) = Chat::begin(store, name);
        assert!(is_saved(&bench.save(save)));
        let document = (0..40).map(|i| format!("{name}, line {i}: {} lamps.\n", (i * 37) % 91)).collect::<String>();
        assert!(is_saved(&bench.save(chat.document(store, &document, 1))));
        for n in 0..8 {
            let (q, a) = (format!("question {n} about the {name}"), format!("answer {n}: {}", "word ".repeat(40 + n)));
            assert!(is_saved(&bench.save(chat.turn(store, &q, &a))));
        }
        let mark = Change::Mark { session: chat.session, name: "here".into(), message: chat.head.unwrap() };
        let entry = NewDocument {
            hash: name.into(),
            name: format!("{name}.txt"),
            path: None,
            prefix: None,
            segment: chat.segments[0].id(),
            tokens: 1,
            lines: 40,
        };
        assert!(is_saved(&bench.save(Save { changes: vec![mark, Change::AddDocument(entry)], images: vec![] })));
    }
    store.index_texts(&Watch::NONE).unwrap();
    let mut texts = BTreeMap::new();
    for session in store.sessions(SessionFilter::Live, 10).unwrap() {
        let path = store.path(session.head.unwrap()).unwrap();
        texts.insert(session.name, path.into_iter().map(|m| (m.id, m.text)).collect());
    }
    // As after a kill, once the saving thread is idle.
    std::thread::sleep(Duration::from_millis(300));
    fs::create_dir_all(root).unwrap();
    for entry in fs::read_dir(&live).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() && entry.file_name() != "reserve" {
            fs::copy(entry.path(), root.join(entry.file_name())).unwrap();
        }
    }
    let _ = fs::remove_file(root.join("sala.db-shm"));
    texts
}

/// What a reader of a damaged directory meets.
#[derive(Debug, Default, PartialEq, Eq)]
struct Met {
    /// All there, as it was.
    whole: u32,
    /// Damage that was reported on access, or when the folder was opened.
    reported: u32,
    /// Changes that were not reported.
    silent: Vec<String>,
}

fn read_all(store: &Store, messages: &BTreeMap<String, Vec<(MessageId, String)>>) -> Result<Vec<String>, String> {
    let mut wrong = Vec::new();
    let sessions = store.sessions(SessionFilter::Live, 10).map_err(|e| e.to_string())?;
    for (name, texts) in messages {
        let Some(session) = sessions.iter().find(|s| s.name == *name) else {
            if sessions.iter().any(|s| s.damaged) {
                return Err("a session says that it is damaged".into());
            }
            wrong.push(format!("session {name} is gone"));
            continue;
        };
        if session.damaged {
            return Err("a session says that it is damaged".into());
        }
        let head = session.head.ok_or("no head")?;
        let path = store.path(head).map_err(|e| e.to_string())?;
        let marked = path.iter().filter(|m| m.text.starts_with("[This message is damaged")).count();
        if marked > 0 {
            // One broken message hides none of the others.
            let intact = texts.iter().filter(|(id, text)| path.iter().any(|m| m.id == *id && m.text == *text)).count();
            if intact + marked < texts.len() && !path.iter().any(|m| m.text.contains("came before")) {
                wrong.push(format!("{name}: {marked} damaged, {intact} of {} whole", texts.len()));
                continue;
            }
            return Err(format!("{marked} messages say that they are damaged"));
        }
        let found: Vec<(MessageId, String)> = path.into_iter().map(|m| (m.id, m.text)).collect();
        if found != *texts {
            wrong.push(format!("{name}: {} messages of {}, or other texts", found.len(), texts.len()));
        }
    }
    Ok(wrong)
}

fn meet(root: &Path, texts: &BTreeMap<String, Vec<(MessageId, String)>>, met: &mut Met, place: &str) {
    let store = match Store::open(root, Arc::new(RealDisk), limits()) {
        Ok(store) => store,
        Err(e) => {
            assert!(!e.to_string().contains('\n'), "{e}");
            met.reported += 1;
            return;
        }
    };
    let noted = matches!(&store.access, Access::ReadOnly { why } if why.contains("is damaged ("))
        || store.damage().is_some_and(|n| n.contains("is damaged in places"));
    match read_all(&store, texts) {
        Err(_) => met.reported += 1,
        Ok(wrong) if wrong.is_empty() && !noted => met.whole += 1,
        Ok(wrong) if wrong.is_empty() || noted => met.reported += 1,
        Ok(wrong) => met.silent.push(format!("{place}: {wrong:?}")),
    }
}

#[test]
fn no_flipped_byte_changes_or_hides_a_message_without_a_word() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    let texts = sessions_of(&whole);
    assert_eq!(texts.values().map(Vec::len).sum::<usize>(), 34);
    let flips: usize = std::env::var("SALA_FLIPS").map_or(500, |n| n.parse().unwrap());
    let mut met = Met::default();
    meet(&whole, &texts, &mut met, "untouched");
    assert_eq!(met, Met { whole: 1, ..Met::default() }, "nothing is wrong to begin with");
    // Opening has taken the log in: once more as a kill leaves it.
    fs::remove_dir_all(&whole).unwrap();
    let _ = fs::remove_dir_all(whole.with_extension("live"));
    let texts = sessions_of(&whole);
    let files = ["sala.db", "sala.db-wal"].map(|name| (name, fs::read(whole.join(name)).unwrap_or_default()));
    let all: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
    println!("database {} bytes, log {} bytes", files[0].1.len(), files[1].1.len());

    let mut met = Met::default();
    let root = dir.path().join("damaged");
    for n in 0..flips {
        let mut at = (n * all + all / 2) / flips;
        let _ = fs::remove_dir_all(&root);
        fs::create_dir(&root).unwrap();
        fs::copy(whole.join("sala-chat.id"), root.join("sala-chat.id")).unwrap();
        let mut place = String::new();
        for (name, bytes) in &files {
            let mut bytes = bytes.clone();
            if place.is_empty() && at < bytes.len() {
                bytes[at] ^= 1 << (n % 8);
                place = format!("flip {n}: byte {at} of {name}");
            } else if place.is_empty() {
                at -= bytes.len();
            }
            fs::write(root.join(name), bytes).unwrap();
        }
        meet(&root, &texts, &mut met, &place);
    }
    println!("{flips} flips: {} met nothing, {} reported, {} silent", met.whole, met.reported, met.silent.len());
    assert_eq!(met.silent, Vec::<String>::new());
    assert_eq!(met.whole + met.reported, flips as u32);
}

/// Writes straight into the database, past the store.
fn tamper(root: &Path, sql: &str) {
    rusqlite::Connection::open(root.join("sala.db")).unwrap().execute_batch(sql).unwrap();
}

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

#[test]
fn a_damaged_message_is_shown_as_such_and_hides_no_other() {
    let dir = tempfile::tempdir().unwrap();
    for (n, sql) in [
        "UPDATE message SET text = 'question 1?' WHERE text = 'question 1'",
        "UPDATE message SET text = CAST(x'ff80' AS TEXT) WHERE text = 'question 1'",
        "UPDATE message SET meta = '{\"seed\":5}' WHERE text = 'question 1'",
        "UPDATE message SET role = 'robot' WHERE text = 'question 1'",
        "UPDATE message SET thinking = 'never thought' WHERE text = 'question 1'",
        "UPDATE message SET seal = NULL WHERE text = 'question 1'",
        "UPDATE message SET created_ms = 7 WHERE text = 'question 1'",
        "PRAGMA foreign_keys = 0; DELETE FROM message WHERE text = 'question 1'",
    ]
    .into_iter()
    .enumerate()
    {
        let root = dir.path().join(n.to_string());
        let chat = one_chat(&root);
        tamper(&root, sql);
        let store = open(&root, RealDisk);
        assert!(store.damage().is_some_and(|note| note.contains("damaged in places")), "{n}");
        let path = store.path(chat.head.unwrap()).unwrap();
        let shown: Vec<&str> = path.iter().map(|m| m.text.as_str()).collect();
        let gone = sql.contains("DELETE");
        assert_eq!(shown.last(), Some(&"answer 2"), "{n}");
        assert_eq!(shown[shown.len() - 2], "question 2", "{n}");
        assert!(shown.iter().any(|t| t.starts_with("[This message is damaged")), "{n}: {shown:?}");
        if !gone {
            assert_eq!((shown.len(), shown[0], shown[1]), (6, "question 0", "answer 0"), "{n}");
        }
        let checked = store.check().unwrap();
        assert!(checked.damaged.iter().any(|d| d.contains("message") || d.contains("#")), "{n}: {checked:?}");
    }
}

#[test]
fn parents_that_form_a_ring_end_the_path_and_nothing_hangs() {
    let dir = tempfile::tempdir().unwrap();
    for (n, sql) in [
        "UPDATE message SET parent = id WHERE text = 'question 1'",
        "UPDATE message SET parent = (SELECT id FROM message WHERE text = 'answer 2') WHERE text = 'question 0'",
        "UPDATE session SET forked_from = id, forked_at = head",
        "UPDATE segment SET parent = id",
    ]
    .into_iter()
    .enumerate()
    {
        let root = dir.path().join(n.to_string());
        let chat = one_chat(&root);
        tamper(&root, sql);
        let store = open(&root, RealDisk);
        let path = store.path(chat.head.unwrap()).unwrap();
        assert!(path.len() <= 7 && path.iter().any(|m| m.text == "answer 2"), "{n}");
        assert_eq!(path.iter().any(|m| m.text.starts_with("[This message is damaged")), n < 2, "{n}");
        let _ = store.load_path(&chat.tip.unwrap());
        let _ = store.sizes(None).unwrap();
        let _ = store.thin(chat.session);
        let _ = store.collect();
        let _ = store.documents().unwrap();
        store
            .export(chat.session, sala_chat::runtime::protocol::ExportFormat::Markdown, sala_chat::store::Scope::Tree)
            .unwrap();
        // It can still be written.
        let bench = Bench::new(store);
        let (mut other, save) = Chat::begin(&bench.store, "other");
        assert!(is_saved(&bench.save(save)));
        assert!(is_saved(&bench.save(other.turn(&bench.store, "q", "a"))));
    }
}

#[test]
fn a_session_with_a_damaged_row_uses_its_head_log() {
    let dir = tempfile::tempdir().unwrap();
    let chat = one_chat(dir.path());
    tamper(dir.path(), "UPDATE session SET head = (SELECT id FROM message WHERE text = 'answer 0')");
    let store = open(dir.path(), RealDisk);
    let session = store.session_named("talk").unwrap();
    assert!(session.damaged && session.head == chat.head && session.title.starts_with("(damaged)"), "{session:?}");
    let checked = store.check().unwrap();
    assert!(checked.repaired.iter().any(|r| r.contains("\"talk\"")) && checked.damaged.is_empty(), "{checked:?}");
    let mended = store.session_named("talk").unwrap();
    assert!(!mended.damaged && mended.head == chat.head);
}

#[test]
fn derived_data_is_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let chat = one_chat(dir.path());
    // The search index says something else than the texts, a state file is not what was saved.
    tamper(
        dir.path(),
        "INSERT INTO message_text(message_text) VALUES ('delete-all'); \
         INSERT INTO message_text(rowid, text) VALUES (99, 'nobody said this');",
    );
    let last = chat.segments[2].id();
    let file = dir.path().join("segments").join(format!("{}.end", last.hex()));
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    let store = open(dir.path(), RealDisk);
    let checked = store.check().unwrap();
    assert_eq!(checked.damaged, Vec::<String>::new());
    assert!(checked.repaired.iter().any(|r| r.contains("search index")), "{checked:?}");
    assert!(checked.repaired.iter().any(|r| r.contains(&last.short()) && r.contains("read again")), "{checked:?}");
    assert_eq!(store.search("question 1", 10, &Watch::NONE).unwrap().len(), 1);
    assert_eq!(store.plan_restore(&chat.tip.unwrap()).unwrap().usable, 2);
    let again = store.check().unwrap();
    assert_eq!((again.repaired.len(), again.damaged.len()), (0, 0), "{again:?}");
}

#[test]
fn a_state_without_both_files_is_named_once() {
    let dir = tempfile::tempdir().unwrap();
    let chat = one_chat(dir.path());
    let last = chat.segments[2].id();
    for kind in ["rows", "end"] {
        fs::remove_file(dir.path().join("segments").join(format!("{}.{kind}", last.hex()))).unwrap();
    }
    let checked = open(dir.path(), RealDisk).check().unwrap();
    let named = checked.repaired.iter().filter(|line| line.contains(&last.short())).count();
    assert_eq!((named, checked.damaged.len()), (1, 0), "{checked:?}");
}

#[test]
fn saves_after_one_that_damage_prevented_name_the_damage() {
    let dir = tempfile::tempdir().unwrap();
    let mut chat = one_chat(dir.path());
    let bench = Bench::new(open(dir.path(), RealDisk));
    tamper(dir.path(), "UPDATE message SET role = CAST(x'ff80' AS TEXT) WHERE text = 'answer 2'");
    for question in ["one", "two"] {
        let event = bench.save(chat.turn(&bench.store, question, "answer"));
        let SaveEvent::NotSaved { reason, lasting: true, .. } = &event else { panic!("{question}: {event:?}") };
        assert!(reason.contains("sala.db is damaged (") && reason.contains("sala-chat doctor --check"), "{reason}");
    }
}

/// A disk on which another process puts a file back as soon as what is in its place was read.
#[derive(Debug)]
struct PutBack {
    path: PathBuf,
    whole: Mutex<Option<Vec<u8>>>,
}

impl Disk for PutBack {
    fn read_at(&self, path: &Path, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        let read = RealDisk.read_at(path, offset, len);
        if path == self.path
            && let Some(whole) = self.whole.lock().unwrap().take()
        {
            let other = path.with_extension("other");
            fs::write(&other, whole)?;
            fs::rename(&other, path)?;
        }
        read
    }
    as_the_real_disk!(create rename sync_dir remove look list make_dir free_bytes);
}

#[test]
fn a_state_that_is_saved_anew_while_it_is_checked_stays() {
    let dir = tempfile::tempdir().unwrap();
    let chat = one_chat(dir.path());
    let last = chat.segments[2].id();
    let store = open(dir.path(), RealDisk);
    let path = store.root().join("segments").join(format!("{}.rows", last.hex()));
    drop(store);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, [vec![0xff; 8], whole[8..].to_vec()].concat()).unwrap();
    let store = open(dir.path(), PutBack { path, whole: Mutex::new(Some(whole)) });
    let checked = store.check().unwrap();
    assert_eq!((checked.repaired.len(), checked.damaged.len()), (0, 0), "{checked:?}");
    assert_eq!(store.plan_restore(&chat.tip.unwrap()).unwrap().usable, 3);
}

#[test]
fn a_database_that_could_not_be_looked_at_is_not_called_damaged() {
    let dir = tempfile::tempdir().unwrap();
    one_chat(dir.path());
    let store = open(dir.path(), RealDisk);
    fs::rename(dir.path().join("sala.db"), dir.path().join("elsewhere.db")).unwrap();
    let damage = store.damage().unwrap();
    assert!(damage.contains("was not looked at (") && !damage.contains("damaged"), "{damage}");
}

/// No free page is available: nothing can be added, and all messages can be read.
#[test]
fn a_database_that_cannot_grow_is_shown_as_far_as_readable() {
    let dir = tempfile::tempdir().unwrap();
    let chat = one_chat(dir.path());
    // As a version left it that kept no drafts: their table is made at the first start.
    tamper(dir.path(), "DROP TRIGGER session_gone; DROP TABLE draft; PRAGMA wal_checkpoint(TRUNCATE);");
    let database = dir.path().join("sala.db");
    let mut bytes = fs::read(&database).unwrap();
    bytes[36..40].copy_from_slice(&i32::MAX.to_be_bytes());
    fs::write(&database, &bytes).unwrap();
    let store = open(dir.path(), RealDisk);
    let Access::ReadOnly { why } = &store.access else { panic!("{:?}", store.access) };
    assert!(why.contains("is damaged (") && why.contains("nothing is saved"), "{why}");
    assert_eq!(store.path(chat.head.unwrap()).unwrap().len(), 6);
    drop(store);
    assert_eq!(fs::read(&database).unwrap(), bytes, "it is left as it was");
    let rescued = Store::rescue(dir.path(), &RealDisk).unwrap().expect("it is damaged");
    assert_eq!((rescued.messages, fs::read(rescued.aside).unwrap() == bytes), (6, true));
    let store = open(dir.path(), RealDisk);
    assert_eq!((&store.access, store.path(chat.head.unwrap()).unwrap().len()), (&Access::Writable, 6));
}

#[test]
fn any_number_of_lost_states_is_one_database_write() {
    let effects_of_check = |turns: usize| {
        let dir = tempfile::tempdir().unwrap();
        let bench = Bench::new(open(dir.path(), RealDisk));
        let (mut chat, save) = Chat::begin(&bench.store, "talk");
        bench.save(save);
        for n in 0..turns {
            assert!(is_saved(&bench.save(chat.turn(&bench.store, &format!("question {n}"), &format!("answer {n}")))));
        }
        assert!(bench.close());
        for lost in chat.segments.iter().step_by(2) {
            for kind in ["rows", "end"] {
                fs::remove_file(dir.path().join("segments").join(format!("{}.{kind}", lost.id().hex()))).unwrap();
            }
        }
        let disk = FaultDisk::new();
        let store = open(dir.path(), disk.clone());
        store.index_texts(&Watch::NONE).unwrap();
        let before = disk.effects();
        let checked = store.check().unwrap();
        let effects = disk.effects() - before;
        assert_eq!((checked.repaired.len(), checked.damaged.len()), (turns / 2, 0), "{checked:?}");
        // State after a lost segment is lost, too.
        assert_eq!(store.session(chat.session).unwrap().state_of, None);
        let again = store.check().unwrap();
        assert_eq!((again.states, again.repaired.len(), again.damaged.len()), (turns as u64, 0, 0), "{again:?}");
        effects
    };
    assert_eq!(effects_of_check(4), effects_of_check(12));
}

#[test]
fn a_check_during_writes_and_removals_finds_nothing() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let dir = tempfile::tempdir().unwrap();
    one_chat(dir.path());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let bench = Bench::new(open(dir.path(), RealDisk));
            for n in 0..40 {
                let (mut chat, save) = Chat::begin(&bench.store, &format!("talk {n}"));
                bench.save(save);
                for _ in 0..4 {
                    assert!(is_saved(&bench.save(chat.turn(&bench.store, "question", &"answer ".repeat(200)))));
                }
                bench.store.delete(chat.session).unwrap();
                bench.store.empty_trash(Some(0)).unwrap();
                bench.store.drop_all_state(&[]).unwrap();
            }
            over.store(true, Ordering::Relaxed);
        });
        let store = open(dir.path(), RealDisk);
        while !over.load(Ordering::Relaxed) {
            let checked = store.check().unwrap();
            assert_eq!((checked.repaired, checked.damaged), (vec![], vec![]));
        }
    });
}
