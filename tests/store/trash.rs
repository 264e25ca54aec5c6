//! Deletion: no text remains in the files, other sessions are intact; when the trash expires; what search finds in it.

use crate::store_support;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sala_chat::core::transcript::{LONGEST_PROMPT, MessageId, Role, SessionId};
use sala_chat::runtime::protocol::ExportFormat;
use sala_chat::store::{
    Access, Change, FOLDER, Limits, NO_ROW, NewSession, RealDisk, Save, Scope, SessionFilter, Store, StoreError, Watch,
};
use store_support::*;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn open_with(root: &Path, limits: Limits) -> Store {
    Store::open(root, Arc::new(RealDisk), limits).unwrap()
}

/// A session with one turn, everything saved.
fn chat_of(bench: &Bench, name: &str, question: &str) -> Chat {
    let (mut chat, save) = Chat::begin(&bench.store, name);
    assert!(is_saved(&bench.save(save)));
    let save = chat.turn(&bench.store, question, "answer");
    assert!(is_saved(&bench.save(save)));
    chat
}

/// A session forked from another.
fn fork_at(bench: &Bench, from: SessionId, head: Option<MessageId>, name: &str) -> SessionId {
    let id = bench.store.new_session_id();
    let new = NewSession { id, name: name.into(), settings: "{}".into(), head, forked_from: Some(from) };
    assert!(is_saved(&bench.save(Save { changes: vec![Change::CreateSession(new)], images: vec![] })));
    id
}

/// Puts a session into the trash as of so many days ago.
fn trashed_days_ago(store: &Store, session: SessionId, days: i64) {
    store.delete(session).unwrap();
    let db = rusqlite::Connection::open(store.root().join("sala.db")).unwrap();
    let sql = "UPDATE session SET trashed_ms = trashed_ms - ?2 WHERE id = ?1";
    db.execute(sql, [session.0, days * 24 * 3600 * 1000]).unwrap();
    drop(db);
    // The row says so and is whole.
    store.check().unwrap();
    assert!(!store.session(session).unwrap().damaged);
}

fn trashed(store: &Store) -> Vec<String> {
    let mut names: Vec<String> =
        store.sessions(SessionFilter::Trashed, 100).unwrap().into_iter().map(|s| s.name).collect();
    names.sort();
    names
}

fn put_draft(bench: &Bench, session: SessionId, text: &str) {
    let change = Change::Draft { session, text: text.into() };
    assert!(is_saved(&bench.save(Save { changes: vec![change], images: vec![] })));
}

#[test]
fn a_draft_replaces_the_previous_one_and_dies_with_its_session() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let one = chat_of(&bench, "one", "question").session;
    chat_of(&bench, "two", "question");
    let draft = |session| bench.store.draft(session).unwrap();
    put_draft(&bench, one, "the first");
    put_draft(&bench, one, "the second");
    assert_eq!(draft(one).as_deref(), Some("the second"));
    put_draft(&bench, one, &"x".repeat(LONGEST_PROMPT + 1));
    assert_eq!(draft(one).as_deref(), Some("the second"));
    assert_eq!(bench.store.last_session().unwrap().unwrap().name, "two", "nothing was said in it");
    let exported = bench.store.export(one, ExportFormat::Json, Scope::Tree).unwrap();
    assert!(exported.contains("question") && !exported.contains("the second"), "{exported}");
    // It stays in the trash with its session and is removed with it.
    bench.store.delete(one).unwrap();
    assert_eq!(draft(one).as_deref(), Some("the second"));
    assert_eq!(bench.store.empty_trash(Some(0)).unwrap().sessions, 1);
    assert_eq!(draft(one), None);
    put_draft(&bench, one, "too late");
    assert_eq!(draft(one), None);
    put_draft(&bench, NO_ROW, "of none");
    assert_eq!(draft(NO_ROW).as_deref(), Some("of none"));
    put_draft(&bench, NO_ROW, " ");
    assert_eq!(draft(NO_ROW), None);
}

#[test]
fn a_session_keeps_its_folder_and_what_was_written_until_it_is_deleted_for_good() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let store = &bench.store;
    let (one, two) = (chat_of(&bench, "one", "question").session, chat_of(&bench, "two", "a longer question").session);
    let here = || store.last_of_folder("/here").unwrap().map(|r| r.name);
    assert_eq!(here(), None, "sessions of earlier versions have no folder");
    for session in [one, two] {
        let property = Change::Property { session, property: FOLDER, value: Some("/here".into()) };
        assert!(is_saved(&bench.save(Save { changes: vec![property], images: vec![] })));
    }
    assert_eq!((here().as_deref(), store.last_of_folder("/her").unwrap()), (Some("two"), None));
    let lock = store.lock_session(two, "two").unwrap();
    assert_eq!(here().as_deref(), Some("one"), "a session in use is not offered");
    drop(lock);
    let before = store.sizes(None).unwrap();
    let sizes = before.sessions[&two];
    assert!(sizes.written > 0 && sizes.written == sizes.state && sizes.own == sizes.state, "{sizes:?}");
    assert_eq!(sizes.text, "a longer questionanswer".len() as u64);
    // State that is removed stays counted.
    store.drop_all_state(&[]).unwrap();
    let pruned = store.sizes(None).unwrap().sessions[&two];
    assert_eq!((pruned.state, pruned.written), (0, sizes.written));
    store.delete(two).unwrap();
    assert_eq!(here().as_deref(), Some("one"));
    store.empty_trash(Some(0)).unwrap();
    assert_eq!(store.properties(FOLDER).unwrap().into_keys().collect::<Vec<_>>(), [one]);
    assert!(!store.sizes(None).unwrap().sessions.contains_key(&two));
}

#[test]
fn a_database_that_knows_no_drafts_is_given_a_place_for_them() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let one = chat_of(&bench, "one", "question").session;
    assert!(bench.close());
    let db = rusqlite::Connection::open(dir.path().join("sala.db")).unwrap();
    db.execute_batch("DROP TRIGGER session_gone; DROP TABLE draft;").unwrap();
    drop(db);
    let bench = Bench::new(open(dir.path(), RealDisk));
    assert_eq!((&bench.store.access, bench.store.notes.as_slice()), (&Access::Writable, &[][..]));
    put_draft(&bench, one, "half");
    assert_eq!(bench.store.draft(one).unwrap().as_deref(), Some("half"));
}

#[test]
fn permanently_deleted_text_is_gone_from_the_database_file() {
    // Letters of no case that nothing else has; two of three stand in the search index as they are.
    let (word, part) = ("ʘǂʗ", "ǂʗ".as_bytes());
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let gone = chat_of(&bench, word, &format!("What is {word}?"));
    chat_of(&bench, "other", "Asked twice");
    let mut again = chat_of(&bench, "again", "Asked twice");
    let save = again.turn(&bench.store, &format!("{word} too?"), word);
    bench.save(save);
    let prompts = [format!("What is {word}?"), "Asked twice".into(), "/never asked".into(), format!("{word} too?")];
    bench.save(Save { changes: prompts.map(Change::Prompt).into(), images: vec![] });
    put_draft(&bench, gone.session, &format!("{word} half"));
    bench.store.index_texts(&Watch::NONE).unwrap();
    let holds = || {
        let files = ["sala.db", "sala.db-wal"].map(|name| std::fs::read(dir.path().join(name)).unwrap_or_default());
        files.iter().any(|bytes| bytes.windows(part.len()).any(|w| w == part))
    };
    assert!(holds());
    for chat in [&gone, &again] {
        bench.store.delete(chat.session).unwrap();
    }
    assert_eq!(bench.store.empty_trash(Some(0)).unwrap().sessions, 2);
    assert!(!holds(), "after the deletion");
    assert_eq!(bench.store.prompts(10).unwrap(), ["/never asked", "Asked twice"]);
    assert_eq!(bench.store.search("Asked twice", 10, &Watch::NONE).unwrap().len(), 1);
    assert!(bench.store.check().unwrap().damaged.is_empty());
    assert!(bench.close());
    assert!(!holds(), "after the end");
}

#[test]
fn a_run_empties_the_trash_except_young_or_open_sessions() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let [old, held, young] = ["old", "held", "young"].map(|name| chat_of(&bench, name, "question").session);
    for (session, days) in [(old, 8), (held, 8), (young, 6)] {
        trashed_days_ago(&bench.store, session, days);
    }
    assert!(bench.close());
    let elsewhere = open(dir.path(), RealDisk);
    let lock = elsewhere.lock_session(held, "held").unwrap();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let until = soon();
    while trashed(&elsewhere).contains(&"old".to_owned()) {
        assert!(Instant::now() < until, "the trash stays as it is");
        std::thread::yield_now();
    }
    assert_eq!(trashed(&elsewhere), ["held", "young"]);
    assert_eq!(elsewhere.empty_trash(Some(0)).unwrap().sessions, 1, "not the one that is held");
    drop(lock);
    assert_eq!(elsewhere.empty_trash(None).unwrap().sessions, 1);
    assert!(bench.close());
}

#[test]
fn a_clock_set_back_keeps_nothing_in_the_trash() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let [soon, far] = ["soon", "far"].map(|name| chat_of(&bench, name, "question").session);
    trashed_days_ago(&bench.store, soon, -1);
    trashed_days_ago(&bench.store, far, -30);
    assert_eq!(bench.store.old_in_trash(None).unwrap(), [far], "a day may be a clock that was put right");
    assert_eq!(bench.store.old_in_trash(Some(0)).unwrap().len(), 2);
    assert_eq!(bench.store.empty_trash(Some(0)).unwrap().sessions, 2);
}

#[test]
fn a_session_in_the_trash_by_damage_alone_is_not_emptied() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let chat = chat_of(&bench, "live", "question");
    let db = rusqlite::Connection::open(dir.path().join("sala.db")).unwrap();
    db.execute("UPDATE session SET trashed_ms = 1 WHERE id = ?1", [chat.session.0]).unwrap();
    drop(db);
    assert_eq!(bench.store.old_in_trash(None).unwrap(), []);
    assert_eq!(bench.store.empty_trash(None).unwrap().sessions, 0);
}

#[test]
fn runs_of_one_answer_keep_the_disk_budget() {
    let dir = folder();
    let mut limits = limits();
    for n in 0..8 {
        let bench = Bench::new(open_with(dir.path(), limits.clone()));
        chat_of(&bench, &format!("run {n}"), &format!("question {n}"));
        let store = Arc::clone(&bench.store);
        assert!(bench.close());
        if n == 0 {
            limits.max_state_bytes = 3 * store.state_bytes().unwrap();
        }
        assert!(store.state_bytes().unwrap() <= limits.max_state_bytes, "run {n}");
    }
    let store = open_with(dir.path(), limits);
    assert_eq!(store.sessions(SessionFilter::Live, 100).unwrap().len(), 8, "texts stay");
    assert!(store.state_bytes().unwrap() > 0);
}

#[test]
fn a_long_session_in_the_trash_is_no_matter_to_a_search() {
    const TURNS: usize = 10_000;
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let (chat, mut save) = Chat::begin(&bench.store, "long");
    let mut path = Vec::new();
    for n in 0..TURNS {
        for (role, text) in [(Role::User, format!("question {n}")), (Role::Assistant, "a usual answer".into())] {
            let m = message(&bench.store, path.last().copied(), role, &text);
            path.push(m.id);
            save.changes.push(Change::PutMessage { session: chat.session, message: Box::new(m) });
        }
    }
    save.changes.push(Change::MoveHead { session: chat.session, head: path.last().copied() });
    assert!(is_saved(&bench.save(save)));
    fork_at(&bench, chat.session, Some(path[3]), "first");
    fork_at(&bench, chat.session, Some(path[5]), "second");
    let store = &bench.store;
    store.index_texts(&Watch::NONE).unwrap();
    store.delete(chat.session).unwrap();
    let begun = Instant::now();
    let hits = store.search("usual answer", 100, &Watch::NONE).unwrap();
    let shown: Vec<(u64, &str)> = hits.iter().map(|h| (h.number, h.session.as_str())).collect();
    assert_eq!(shown.len(), 3, "{shown:?}");
    for place in [(2, "first"), (4, "first"), (6, "second")] {
        assert!(shown.contains(&place), "{shown:?}");
    }
    assert!(store.search(&format!("question {}", TURNS - 1), 10, &Watch::NONE).unwrap().is_empty());
    assert_eq!(store.search("us", 100, &Watch::NONE).unwrap().len(), 3, "by looking at texts");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn short_words_are_found_in_any_case_and_any_number() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    chat_of(&bench, "words", "Über den Äckern, ЕЁ дом");
    let found = |query: &str| bench.store.search(query, 10, &Watch::NONE).unwrap().len();
    for query in ["üb", "ÜB", "äc", "её", "üb \"DEN ä\" её", "üb ÜB Üb"] {
        assert_eq!(found(query), 1, "{query}");
    }
    assert_eq!(found("üb oe"), 0);
    assert_eq!(found(&"üb äc ".repeat(2_000)), 1);
    // More than any index wants to look up, all of them different.
    let many: Vec<String> = (0..3_000).map(|n| format!("word{n}")).collect();
    assert_eq!(found(&many.join(" ")), 0);
    let mut chat = chat_of(&bench, "many", &many.join(" "));
    assert_eq!(found(&many.join(" ")), 1);
    bench.save(chat.turn(&bench.store, &many[..2_999].join(" "), "all but one"));
    assert_eq!(found(&many.join(" ")), 1);
}

#[test]
fn other_sessions_with_a_message_are_known() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let store = &bench.store;
    let mut chat = chat_of(&bench, "talk", "question");
    let answer = chat.head.unwrap();
    let had = |message, session| store.is_had_by_others(message, session).unwrap();
    assert!(!had(answer, chat.session));
    assert!(had(store.new_message_id(None), chat.session), "not on disk");
    let mark = Change::Mark { session: chat.session, name: "here".into(), message: answer };
    bench.save(Save { changes: vec![mark], images: vec![] });
    assert!(!had(answer, chat.session), "a mark of its own");
    let fork = fork_at(&bench, chat.session, Some(answer), "fork");
    assert!(had(answer, chat.session) && had(answer, fork));
    bench.save(chat.turn(store, "another", "answer"));
    assert!(!had(chat.head.unwrap(), chat.session));
    let first = store.path(answer).unwrap()[0].id;
    assert!(had(first, chat.session), "something was said below");
}

#[test]
fn a_session_not_on_disk_is_not_renamed() {
    let dir = folder();
    let store = open(dir.path(), RealDisk);
    assert!(matches!(store.rename(store.new_session_id(), "other"), Err(StoreError::NoSession { .. })));
}
