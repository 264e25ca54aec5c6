//! The store as a runtime uses it: save, reopen, restore, fork, search, list, thin, collect.

mod budget;
mod states;
use crate::store_support;

use std::time::Instant;

use sala_chat::core::transcript::Role;
use sala_chat::store::{
    Change, NewDocument, NewSession, RealDisk, Save, SegmentId, SegmentKind, SessionFilter, StoreError, Watch,
};
use store_support::*;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// A session with `turns` turns, everything saved.
fn chat_of(bench: &Bench, name: &str, turns: usize) -> Chat {
    let (mut chat, save) = Chat::begin(&bench.store, name);
    assert!(is_saved(&bench.save(save)));
    for n in 0..turns {
        let save = chat.turn(&bench.store, &format!("question {n} of {name}"), &format!("answer {n}"));
        assert!(is_saved(&bench.save(save)));
    }
    chat
}

#[test]
fn an_answer_that_grows_is_one_message() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let (chat, save) = Chat::begin(&bench.store, "grow");
    bench.save(save);
    let mut answer = message(&bench.store, None, Role::Assistant, "");
    let mut last = 0;
    for n in 0..200 {
        answer.text.push_str(&format!("word{n} "));
        let put = Change::PutMessage { session: chat.session, message: Box::new(answer.clone()) };
        last = bench.writer.save(Save { changes: vec![put], images: vec![] });
    }
    assert!(is_saved(&bench.outcome(last)));
    assert_eq!(bench.store.message(answer.id).unwrap().text, answer.text);
    assert_eq!(bench.store.search("word199", 10, &Watch::NONE).unwrap().len(), 1);
    assert_eq!(bench.store.search("word0", 10, &Watch::NONE).unwrap().len(), 1);
}

#[test]
fn undone_branches_stay_and_forks_share() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let mut chat = chat_of(&bench, "tree", 3);
    let store = &bench.store;
    let old_head = chat.head;
    let path = store.path(chat.head.unwrap()).unwrap();

    // Undo one exchange, ask something else.
    chat.head = Some(path[3].id);
    chat.segments.pop();
    chat.tip = Some(chat.segments[1].id());
    chat.position = chat.segments[2 - 1].start + 27;
    let undo = Change::MoveHead { session: chat.session, head: chat.head };
    assert!(is_saved(&bench.save(Save { changes: vec![undo], images: vec![] })));
    assert_eq!(store.session(chat.session).unwrap().messages, 4);
    let position = store.segment(&chat.tip.unwrap()).unwrap().unwrap().end_position();
    chat.position = position;
    let save = chat.turn(store, "another question", "another answer");
    assert!(is_saved(&bench.save(save)));

    let tree = store.tree(chat.session, MODEL, 5).unwrap();
    assert_eq!(tree.len(), 8);
    assert!(tree.iter().any(|n| Some(n.message.id) == old_head && n.kept));
    assert!(tree.iter().all(|n| n.message.text.chars().count() <= 5));
    assert_eq!(tree.iter().filter(|n| n.message.parent == Some(path[3].id)).count(), 2);
    // Without a model the same messages, and no segments.
    let bare = store.tree(chat.session, "", 5).unwrap();
    assert!(bare.iter().map(|n| &n.message).eq(tree.iter().map(|n| &n.message)));
    assert!(bare.iter().all(|n| n.segment.is_none() && !n.kept));

    // A fork is one row; purging the original leaves the shared part to the fork.
    let fork = NewSession {
        id: store.new_session_id(),
        name: "tree".into(),
        settings: "{}".into(),
        head: Some(path[1].id),
        forked_from: Some(chat.session),
    };
    let fork_id = fork.id;
    assert!(is_saved(&bench.save(Save { changes: vec![Change::CreateSession(fork)], images: vec![] })));
    let fork = store.session(fork_id).unwrap();
    assert_eq!((fork.name.as_str(), fork.messages, fork.state_of.as_deref()), ("tree-2", 2, Some(MODEL)));
    assert_eq!(store.forks(chat.session).unwrap()[0].1, Some(path[1].id));
    store.delete(chat.session).unwrap();
    assert!(matches!(store.session_named("tree"), Err(StoreError::NoSession { .. })));
    assert_eq!(store.empty_trash(None).unwrap().sessions, 0, "not old enough");
    let freed = store.empty_trash(Some(0)).unwrap();
    assert_eq!((freed.sessions, freed.messages, freed.segments), (1, 6, 3));
    assert_eq!(store.path(path[1].id).unwrap().len(), 2);
    assert_eq!(restore(store, &chat.segments[0].id(), 0).unwrap().plan.usable, 1);
    assert_eq!(store.tree(fork_id, MODEL, 100).unwrap().len(), 2);
}

#[test]
fn trash_gives_back_and_names_stay_unique() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let chat = chat_of(&bench, "contract", 1);
    let store = &bench.store;
    store.delete(chat.session).unwrap();
    assert_eq!(store.sessions(SessionFilter::Trashed, 10).unwrap().len(), 1);
    let other = chat_of(&bench, "contract", 1);
    assert_eq!(store.undelete("contract").unwrap(), "contract-2");
    assert!(matches!(store.rename(other.session, "contract-2"), Err(StoreError::NameTaken { .. })));
    store.rename(other.session, "lease").unwrap();
    assert_eq!(store.session_named("lease").unwrap().id, other.session);
    assert_eq!(store.last_session().unwrap().unwrap().id, other.session);
    assert_eq!(store.free_name("contract-2").unwrap(), "contract-2-2");
    // That word means a session, whatever it is called.
    let last = chat_of(&bench, "last", 1);
    assert_eq!(store.session(last.session).unwrap().name, "last-2");
    assert!(matches!(store.rename(last.session, " last "), Err(StoreError::MeansLast)));
    assert_eq!(store.free_name("last").unwrap(), "last-3");
}

#[test]
fn marks_prompts_and_settings_are_kept() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let chat = chat_of(&bench, "marks", 2);
    let store = &bench.store;
    let changes = vec![
        Change::Mark { session: chat.session, name: "good".into(), message: chat.head.unwrap() },
        Change::Settings { session: chat.session, json: "{\"seed\":7}".into() },
        Change::Prompt("one".into()),
        Change::Prompt("two".into()),
        Change::Prompt("two".into()),
        Change::Prompt("three".into()),
        // Queued, and sent after another one: it appears once, last.
        Change::Prompt("two".into()),
        Change::Prompt(" ".into()),
        Change::Prompt("a pasted book ".repeat(2_000)),
    ];
    assert!(is_saved(&bench.save(Save { changes, images: vec![] })));
    let marks = store.marks(chat.session).unwrap();
    assert_eq!((marks.len(), marks[0].name.as_str(), marks[0].message), (1, "good", chat.head.unwrap()));
    assert_eq!(store.session(chat.session).unwrap().settings, "{\"seed\":7}");
    assert_eq!(store.prompts(10).unwrap(), ["two", "three", "one"]);
}

#[test]
fn search_finds_words_parts_and_languages_without_spaces() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let (mut chat, save) = Chat::begin(&bench.store, "search");
    bench.save(save);
    for (question, answer) in [
        ("Where does the lighthouse keeper live?", "In the Grünwald tower, says the old map."),
        ("合同的付款期限是什么？", "付款期限为三十天，自发票日期起计算。"),
        ("東京タワーの高さは？", "333メートルです。"),
    ] {
        let save = chat.turn(&bench.store, question, answer);
        bench.save(save);
    }
    let find = |query: &str| -> Vec<u64> {
        let mut numbers: Vec<u64> =
            bench.store.search(query, 10, &Watch::NONE).unwrap().iter().map(|h| h.number).collect();
        numbers.sort();
        numbers
    };
    assert_eq!(find("LIGHTHOUSE"), [1]);
    assert_eq!(find("house live"), [1]);
    assert_eq!(find("\"old map\""), [2]);
    assert_eq!(find("付款期限"), [3, 4]);
    assert_eq!(find("付款"), [3, 4], "two characters have no trigram");
    assert_eq!(find("高"), [5]);
    assert_eq!(find("付款 发票"), [4]);
    assert!(find("absent").is_empty() && find("  ").is_empty() && find("\"").is_empty());
    // Operators of the query language are text here.
    assert!(find("NOT OR (").is_empty());
    let hit = &bench.store.search("发票", 1, &Watch::NONE).unwrap()[0];
    assert_eq!((hit.snippet.as_str(), hit.session.as_str()), ("付款期限为三十天，自[发票]日期起计算。", "search"));
    bench.store.delete(chat.session).unwrap();
    assert!(find("lighthouse").is_empty(), "the trash is not searched");
}

#[test]
fn the_library_finds_documents_and_keeps_them_alive() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let mut chat = chat_of(&bench, "doc", 0);
    let save = chat.document(&bench.store, "war and peace", 3);
    bench.save(save);
    let store = &bench.store;
    let end = chat.tip.unwrap();
    let entry = NewDocument {
        hash: "abc".into(),
        name: "war.txt".into(),
        path: Some("/books/war.txt".into()),
        prefix: None,
        segment: end,
        tokens: chat.position,
        lines: 1,
    };
    bench.save(Save { changes: vec![Change::AddDocument(entry.clone())], images: vec![] });
    let documents = store.documents().unwrap();
    assert_eq!((&documents[0].document, documents[0].kept, documents[0].in_use), (&entry, true, true));
    assert_eq!(documents[0].bytes, store.state_bytes().unwrap());

    // Found by the id it must have, with no session left.
    let s = &chat.segments;
    let again = SegmentId::compute(MODEL, Some(&s[1].id()), &s[2].prompt, &[]);
    assert_eq!(store.segment(&again).unwrap().unwrap().content, s[2]);
    store.delete(chat.session).unwrap();
    store.empty_trash(Some(0)).unwrap();
    assert_eq!(restore(store, &end, 0).unwrap().plan.usable, 3);
    assert!(!store.documents().unwrap()[0].in_use);

    assert_eq!(store.prune_documents().unwrap(), 1);
    assert_eq!(store.collect().unwrap().segments, 3);
    assert_eq!(store.state_bytes().unwrap(), 0);
    assert_eq!(std::fs::read_dir(dir.path().join("segments")).unwrap().count(), 0);
}

#[test]
fn a_document_being_read_survives_the_removal_of_others() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let store = &bench.store;
    let forget = |name: &str| {
        let old = chat_of(&bench, name, 1);
        store.delete(old.session).unwrap();
        assert_eq!(store.empty_trash(Some(0)).unwrap().segments, 1, "{name}");
    };
    // A long prompt: its steps are recorded one by one, the list of them is written with the last.
    let (mut chat, save) = Chat::begin(store, "long");
    bench.save(save);
    let mut whole = chat.document(store, "a long prompt", 3);
    let steps: Vec<Change> = whole.changes.extract_if(.., |c| matches!(c, Change::AddSegment(_))).collect();
    for (n, (step, image)) in steps.into_iter().zip(std::mem::take(&mut whole.images)).enumerate() {
        assert!(is_saved(&bench.save(Save { changes: vec![step], images: vec![image] })), "step {n}");
        forget(&format!("old {n}"));
    }
    assert!(is_saved(&bench.save(whole)));
    forget("another");
    assert_eq!(restore(store, &chat.tip.unwrap(), 0).unwrap().plan.usable, 3);
    // From then on what holds them decides.
    store.delete(chat.session).unwrap();
    assert_eq!(store.empty_trash(Some(0)).unwrap().segments, 3);
}

#[test]
fn ten_thousand_sessions_are_listed_and_searched() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let mut save = Save::default();
    for n in 0..10_000 {
        let (mut chat, begin) = Chat::begin(&bench.store, &format!("session {n}"));
        save.changes.extend(begin.changes);
        save.changes.extend(chat.turn(&bench.store, &format!("question {n}"), "answer").changes);
    }
    assert!(is_saved(&bench.save(save)));
    assert!(bench.close());
    let store = open(dir.path(), RealDisk);
    let begun = Instant::now();
    let all = store.sessions(SessionFilter::Live, usize::MAX).unwrap();
    println!("10,000 sessions listed in {:.1} ms", begun.elapsed().as_secs_f64() * 1e3);
    assert_eq!((all.len(), all[0].title.as_str(), all[0].messages), (10_000, "question 9999", 2));
    let begun = Instant::now();
    let found = store.search("question 4711", 10, &Watch::NONE).unwrap();
    println!("searched in {:.1} ms (first search indexes)", begun.elapsed().as_secs_f64() * 1e3);
    assert_eq!(found[0].session, "session 4711");
}

#[cfg(unix)]
#[test]
fn files_are_private_to_their_owner() {
    use std::os::unix::fs::PermissionsExt;
    let dir = folder();
    let root = dir.path().join("made");
    let bench = Bench::new(open(&root, RealDisk));
    chat_of(&bench, "private", 1);
    let mut todo = vec![root];
    let mut files = 0;
    while let Some(path) = todo.pop() {
        let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        if path.is_dir() {
            assert_eq!(mode, 0o700, "{path:?}");
            todo.extend(std::fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
        } else {
            assert_eq!(mode, 0o600, "{path:?}");
            files += 1;
        }
    }
    assert!(files >= 6, "mark, database, wal, reserve, lock, rows, end");
}

#[test]
fn kinds_of_a_shared_segment_only_grow_stronger() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let chat = chat_of(&bench, "kind", 1);
    let mut again = chat.segments[0].clone();
    for kind in [SegmentKind::DocumentEnd, SegmentKind::Turn] {
        again.kind = kind;
        bench.save(Save { changes: vec![Change::AddSegment(Box::new(again.clone()))], images: vec![] });
        let found = bench.store.segment(&again.id()).unwrap().unwrap();
        assert_eq!(found.content.kind, SegmentKind::DocumentEnd);
    }
}
