//! The store as a desk uses it: save, reopen, restore, fork, search, list, thin, collect.

mod store_support;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use sala_chat::protocol::engine::{Arriving, RowSource as _, RowsFault, StatePart, TensorData};
use sala_chat::session::{
    Access, Change, Limits, NewDocument, NewSession, PRUNED, RealDisk, Save, SaveEvent, SegmentId, SegmentKind,
    SessionFilter, Store, StoreError, Stored, TextBoundary, Watch, unchanged_prefix,
};
use sala_chat::transcript::Role;
use store_support::*;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// A session with `turns` turns, everything saved.
fn talk_of(bench: &Bench, name: &str, turns: usize) -> Talk {
    let (mut talk, save) = Talk::begin(&bench.store, name);
    assert!(is_saved(&bench.save(save)));
    for n in 0..turns {
        let save = talk.turn(&bench.store, &format!("question {n} of {name}"), &format!("answer {n}"));
        assert!(is_saved(&bench.save(save)));
    }
    talk
}

#[test]
fn what_was_saved_is_there_after_reopening_bit_for_bit() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let mut talk = talk_of(&bench, "first", 2);
    let save = talk.document(&bench.store, "a document", 3);
    assert!(is_saved(&bench.save(save)));
    assert!(bench.close());

    let store = open(dir.path(), RealDisk);
    assert_eq!(*store.access(), Access::Writable);
    assert!(store.notes().is_empty(), "{:?}", store.notes());
    assert_eq!(store.damage(), None);
    let session = store.session_named("first").unwrap();
    assert_eq!((session.head, session.messages, session.tokens), (talk.head, 5, talk.position));
    assert_eq!(session.title, "question 0 of first");
    assert_eq!(session.state_of.as_deref(), Some(MODEL));
    let texts: Vec<String> = store.path(talk.head.unwrap()).unwrap().into_iter().map(|m| m.text).collect();
    assert_eq!(texts, ["question 0 of first", "answer 0", "question 1 of first", "answer 1", "a document"]);

    let saved = restore(&store, &talk.tip.unwrap(), 0).unwrap();
    assert_eq!((saved.plan.usable, saved.plan.replay_tokens()), (5, 0));
    for (rows, segment) in saved.rows.iter().zip(&talk.segments) {
        assert!(same_rows(rows, &image(segment).rows));
    }
    assert!(same_end(&saved.end.unwrap(), &image(talk.segments.last().unwrap()).end.unwrap()));
    // What the caller still has is not read again.
    assert_eq!(restore(&store, &talk.tip.unwrap(), 3).unwrap().rows.len(), 2);
}

#[test]
fn state_on_its_way_from_a_device_is_saved_once_it_has_come() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let mut talk = talk_of(&bench, "late", 1);
    let late = |save: &mut Save| -> (Arriving, Vec<u8>) {
        let (data, arriving) = TensorData::later();
        let there = std::mem::replace(&mut save.images[0].1.rows.tensors[0].data, data);
        (arriving, there.to_vec())
    };
    let mut save = talk.turn(&bench.store, "a question", "an answer");
    let (arriving, bytes) = late(&mut save);
    let device = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        arriving.set(Ok(bytes));
    });
    assert!(is_saved(&bench.save(save)));
    device.join().unwrap();
    let saved = restore(&bench.store, &talk.tip.unwrap(), 0).unwrap();
    assert!(same_rows(saved.rows.last().unwrap(), &image(talk.segments.last().unwrap()).rows));

    let mut save = talk.turn(&bench.store, "another question", "another answer");
    drop(late(&mut save).0);
    let event = bench.save(save);
    assert!(matches!(&event, SaveEvent::TextOnly { reason, .. } if reason.contains("did not come")), "{event:?}");
    assert_eq!(bench.store.path(talk.head.unwrap()).unwrap().last().unwrap().text, "another answer");
    assert_eq!(restore(&bench.store, &talk.tip.unwrap(), 0).unwrap().plan.usable, 2);
    assert!(bench.close());
}

#[test]
fn text_does_not_wait_for_state_that_was_handed_over_before_it() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let mut talk = talk_of(&bench, "slow", 1);
    let mut late = Vec::new();
    let mut handed = Vec::new();
    // A disk that is slower than the reading of a document: of all that was read nothing is written yet.
    for part in 0..3 {
        let mut save = talk.document(&bench.store, &format!("document {part}"), 1);
        let (data, arriving) = TensorData::later();
        let there = std::mem::replace(&mut save.images[0].1.rows.tensors[0].data, data);
        late.push((arriving, there.to_vec()));
        handed.push(bench.writer.save(save));
    }
    let answer = message(&bench.store, talk.head, Role::Assistant, "the end of the answer");
    let head = answer.id;
    let put = Change::PutMessage { session: talk.session, message: Box::new(answer) };
    let to = Change::MoveHead { session: talk.session, head: Some(head) };
    assert!(is_saved(&bench.save(Save { changes: vec![put, to], images: vec![] })));
    assert!(!bench.writer.flush(Instant::now()), "state is still to come");
    assert_eq!(bench.store.session(talk.session).unwrap().head, Some(head));
    // Until then what is before it is restored.
    assert_eq!(restore(&bench.store, &talk.tip.unwrap(), 0).unwrap().plan.usable, 1);
    for ((arriving, bytes), id) in late.into_iter().zip(handed) {
        arriving.set(Ok(bytes));
        assert!(is_saved(&bench.outcome(id)));
    }
    assert_eq!(restore(&bench.store, &talk.tip.unwrap(), 0).unwrap().plan.usable, 4);
    assert!(bench.close());
}

#[test]
fn a_state_that_ends_inside_a_character_is_saved() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let mut talk = talk_of(&bench, "cut", 1);
    let mut save = talk.turn(&bench.store, "a question", "half a sig");
    for change in &mut save.changes {
        if let Change::AddSegment(new) = change {
            new.boundary = TextBoundary::NOWHERE;
        }
    }
    assert!(is_saved(&bench.save(save)));
}

#[test]
fn parts_of_rows_are_read_and_checked_on_their_own() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let mut talk = talk_of(&bench, "parts", 1);
    // Longer than one checksum chunk per tensor: 90,000 rows of 16 bytes.
    let save = talk.document(&bench.store, &"x".repeat(90_000), 1);
    assert!(is_saved(&bench.save(save)));
    let segment = talk.segments.last().unwrap();
    let whole = image(segment).rows;
    let id = segment.id();

    let opened = bench.store.open_path(&id, 0).unwrap();
    let feed = opened.rows.last().unwrap();
    // A block of 64 positions, at the edge of a checksum and across one.
    for position in [65_536, 65_600] {
        let at = usize::try_from(position - whole.start).unwrap() * 16;
        for name in ["k.0", "v.0"] {
            let mut part = vec![0; 64 * 16];
            feed.fill(name, at, &mut part).unwrap();
            let all = whole.tensors.iter().find(|t| t.name == name).unwrap();
            assert_eq!(part, all.data[at..at + 64 * 16]);
        }
    }
    assert!(feed.fill("k.0", 90_000 * 16, &mut [0; 16]).is_err());
    assert!(feed.load("k.7").is_err());
    assert_eq!(feed.load("k1.0").unwrap().name, "k1.0");
    assert!(same_rows(&bench.store.read_rows(&id).unwrap(), &whole));

    // Any safetensors reader can open the file.
    let file = std::fs::read(dir.path().join("segments").join(format!("{}.rows", id.hex()))).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    assert_eq!(tensors.tensor("k.0").unwrap().shape(), [90_000, 1, 8]);
}

#[test]
fn an_answer_that_grows_is_one_message() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let (talk, save) = Talk::begin(&bench.store, "grow");
    bench.save(save);
    let mut answer = message(&bench.store, None, Role::Assistant, "");
    let mut last = 0;
    for n in 0..200 {
        answer.text.push_str(&format!("word{n} "));
        let put = Change::PutMessage { session: talk.session, message: Box::new(answer.clone()) };
        last = bench.writer.save(Save { changes: vec![put], images: vec![] });
    }
    assert!(is_saved(&bench.outcome(last)));
    assert_eq!(bench.store.message(answer.id).unwrap().text, answer.text);
    assert_eq!(bench.store.search("word199", 10, &Watch::NOBODY).unwrap().len(), 1);
    assert_eq!(bench.store.search("word0", 10, &Watch::NOBODY).unwrap().len(), 1);
}

#[test]
fn undone_branches_stay_and_forks_share() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let mut talk = talk_of(&bench, "tree", 3);
    let store = &bench.store;
    let old_head = talk.head;
    let path = store.path(talk.head.unwrap()).unwrap();

    // Undo one exchange, ask something else.
    talk.head = Some(path[3].id);
    talk.segments.pop();
    talk.tip = Some(talk.segments[1].id());
    talk.position = talk.segments[2 - 1].start + 27;
    let undo = Change::MoveHead { session: talk.session, head: talk.head };
    assert!(is_saved(&bench.save(Save { changes: vec![undo], images: vec![] })));
    assert_eq!(store.session(talk.session).unwrap().messages, 4);
    let position = store.segment(&talk.tip.unwrap()).unwrap().unwrap().end_position();
    talk.position = position;
    let save = talk.turn(store, "another question", "another answer");
    assert!(is_saved(&bench.save(save)));

    let tree = store.tree(talk.session, MODEL, 5).unwrap();
    assert_eq!(tree.len(), 8);
    assert!(tree.iter().any(|n| Some(n.message.id) == old_head && n.kept));
    assert!(tree.iter().all(|n| n.message.text.chars().count() <= 5));
    assert_eq!(tree.iter().filter(|n| n.message.parent == Some(path[3].id)).count(), 2);
    // Without a model the same messages, and no segments.
    let bare = store.tree(talk.session, "", 5).unwrap();
    assert!(bare.iter().map(|n| &n.message).eq(tree.iter().map(|n| &n.message)));
    assert!(bare.iter().all(|n| n.segment.is_none() && !n.kept));

    // A fork is one row; purging the original leaves the shared part to the fork.
    let fork = NewSession {
        id: store.new_session_id(),
        name: "tree".into(),
        settings: "{}".into(),
        head: Some(path[1].id),
        forked_from: Some(talk.session),
    };
    let fork_id = fork.id;
    assert!(is_saved(&bench.save(Save { changes: vec![Change::CreateSession(fork)], images: vec![] })));
    let fork = store.session(fork_id).unwrap();
    assert_eq!((fork.name.as_str(), fork.messages, fork.state_of.as_deref()), ("tree-2", 2, Some(MODEL)));
    assert_eq!(store.forks(talk.session).unwrap()[0].1, Some(path[1].id));
    store.delete(talk.session).unwrap();
    assert!(matches!(store.session_named("tree"), Err(StoreError::NoSession { .. })));
    assert_eq!(store.empty_trash(None).unwrap().sessions, 0, "not old enough");
    let freed = store.empty_trash(Some(0)).unwrap();
    assert_eq!((freed.sessions, freed.messages, freed.segments), (1, 6, 3));
    assert_eq!(store.path(path[1].id).unwrap().len(), 2);
    assert_eq!(restore(store, &talk.segments[0].id(), 0).unwrap().plan.usable, 1);
    assert_eq!(store.tree(fork_id, MODEL, 100).unwrap().len(), 2);
}

#[test]
fn trash_gives_back_and_names_stay_unique() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let talk = talk_of(&bench, "contract", 1);
    let store = &bench.store;
    store.delete(talk.session).unwrap();
    assert_eq!(store.sessions(SessionFilter::Trashed, 10).unwrap().len(), 1);
    let other = talk_of(&bench, "contract", 1);
    assert_eq!(store.undelete("contract").unwrap(), "contract-2");
    assert!(matches!(store.rename(other.session, "contract-2"), Err(StoreError::NameTaken { .. })));
    store.rename(other.session, "lease").unwrap();
    assert_eq!(store.session_named("lease").unwrap().id, other.session);
    assert_eq!(store.last_session().unwrap().unwrap().id, other.session);
    assert_eq!(store.free_name("contract-2").unwrap(), "contract-2-2");
    // That word means a session, whatever it is called.
    let last = talk_of(&bench, "last", 1);
    assert_eq!(store.session(last.session).unwrap().name, "last-2");
    assert!(matches!(store.rename(last.session, " last "), Err(StoreError::MeansLast)));
    assert_eq!(store.free_name("last").unwrap(), "last-3");
}

#[test]
fn marks_prompts_and_settings_are_kept() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let talk = talk_of(&bench, "marks", 2);
    let store = &bench.store;
    let changes = vec![
        Change::Mark { session: talk.session, name: "good".into(), message: talk.head.unwrap() },
        Change::Settings { session: talk.session, json: "{\"seed\":7}".into() },
        Change::Prompt("one".into()),
        Change::Prompt("two".into()),
        Change::Prompt("two".into()),
        Change::Prompt("three".into()),
        // Queued, and asked behind another one: it has one place, the last.
        Change::Prompt("two".into()),
        Change::Prompt(" ".into()),
        Change::Prompt("a pasted book ".repeat(2_000)),
    ];
    assert!(is_saved(&bench.save(Save { changes, images: vec![] })));
    let marks = store.marks(talk.session).unwrap();
    assert_eq!((marks.len(), marks[0].name.as_str(), marks[0].message), (1, "good", talk.head.unwrap()));
    assert_eq!(store.session(talk.session).unwrap().settings, "{\"seed\":7}");
    assert_eq!(store.prompts(10).unwrap(), ["two", "three", "one"]);
}

#[test]
fn search_finds_words_parts_and_languages_without_spaces() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let (mut talk, save) = Talk::begin(&bench.store, "search");
    bench.save(save);
    for (question, answer) in [
        ("Where does the lighthouse keeper live?", "In the Grünwald tower, says the old map."),
        ("合同的付款期限是什么？", "付款期限为三十天，自发票日期起计算。"),
        ("東京タワーの高さは？", "333メートルです。"),
    ] {
        let save = talk.turn(&bench.store, question, answer);
        bench.save(save);
    }
    let find = |query: &str| -> Vec<u64> {
        let mut numbers: Vec<u64> =
            bench.store.search(query, 10, &Watch::NOBODY).unwrap().iter().map(|h| h.number).collect();
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
    let hit = &bench.store.search("发票", 1, &Watch::NOBODY).unwrap()[0];
    assert_eq!((hit.snippet.as_str(), hit.name.as_str()), ("付款期限为三十天，自[发票]日期起计算。", "search"));
    bench.store.delete(talk.session).unwrap();
    assert!(find("lighthouse").is_empty(), "the trash is not searched");
}

#[test]
fn the_library_finds_documents_and_keeps_them_alive() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let mut talk = talk_of(&bench, "doc", 0);
    let save = talk.document(&bench.store, "war and peace", 3);
    bench.save(save);
    let store = &bench.store;
    let end = talk.tip.unwrap();
    let entry = NewDocument {
        hash: "abc".into(),
        name: "war.txt".into(),
        path: Some("/books/war.txt".into()),
        prefix: None,
        segment: end,
        tokens: talk.position,
        lines: 1,
    };
    bench.save(Save { changes: vec![Change::AddDocument(entry.clone())], images: vec![] });
    let shelf = store.documents().unwrap();
    assert_eq!((&shelf[0].document, shelf[0].kept, shelf[0].in_use), (&entry, true, true));
    assert_eq!(shelf[0].bytes, store.state_bytes().unwrap());

    // Found by the id it must have, with no session left.
    let s = &talk.segments;
    let again = SegmentId::compute(MODEL, Some(&s[1].id()), &s[2].prompt, &[]);
    assert_eq!(store.segment(&again).unwrap().unwrap().content, s[2]);
    store.delete(talk.session).unwrap();
    store.empty_trash(Some(0)).unwrap();
    assert_eq!(restore(store, &end, 0).unwrap().plan.usable, 3);
    assert!(!store.documents().unwrap()[0].in_use);

    assert_eq!(store.prune_documents().unwrap(), 1);
    assert_eq!(store.collect().unwrap().segments, 3);
    assert_eq!(store.state_bytes().unwrap(), 0);
    assert_eq!(std::fs::read_dir(dir.path().join("segments")).unwrap().count(), 0);
}

#[test]
fn what_is_being_read_stays_while_others_are_forgotten() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let store = &bench.store;
    let forget = |name: &str| {
        let old = talk_of(&bench, name, 1);
        store.delete(old.session).unwrap();
        assert_eq!(store.empty_trash(Some(0)).unwrap().segments, 1, "{name}");
    };
    // A long prompt: its steps are recorded one by one, what holds them comes with the last.
    let (mut talk, save) = Talk::begin(store, "long");
    bench.save(save);
    let mut whole = talk.document(store, "a long prompt", 3);
    let steps: Vec<Change> = whole.changes.extract_if(.., |c| matches!(c, Change::AddSegment(_))).collect();
    for (n, (step, image)) in steps.into_iter().zip(std::mem::take(&mut whole.images)).enumerate() {
        assert!(is_saved(&bench.save(Save { changes: vec![step], images: vec![image] })), "step {n}");
        forget(&format!("old {n}"));
    }
    assert!(is_saved(&bench.save(whole)));
    forget("another");
    assert_eq!(restore(store, &talk.tip.unwrap(), 0).unwrap().plan.usable, 3);
    // From then on what holds them decides.
    store.delete(talk.session).unwrap();
    assert_eq!(store.empty_trash(Some(0)).unwrap().segments, 3);
}

/// Turns (counted from 1) of `talk` whose state is kept.
fn kept_turns(store: &Store, talk: &Talk) -> Vec<usize> {
    let kept = |s: &&sala_chat::session::NewSegment| store.segment(&s.id()).unwrap().unwrap().end.is_kept();
    let all: HashSet<SegmentId> = talk.segments.iter().filter(kept).map(|s| s.id()).collect();
    (1..=talk.segments.len()).filter(|n| all.contains(&talk.segments[n - 1].id())).collect()
}

#[test]
fn thinning_keeps_the_newest_marks_documents_and_powers_of_two() {
    let dir = folder();
    let mut limits = limits();
    limits.keep_turns = 4;
    let store = Store::open(dir.path(), std::sync::Arc::new(RealDisk), limits).unwrap();
    let bench = Bench::new(store);
    let mut talk = talk_of(&bench, "thin", 1);
    let save = talk.document(&bench.store, "a long document", 6);
    bench.save(save);
    for n in 0..20 {
        let save = talk.turn(&bench.store, &format!("more {n}"), "yes");
        bench.save(save);
        if n == 2 {
            let mark = Change::Mark { session: talk.session, name: "m".into(), message: talk.head.unwrap() };
            bench.save(Save { changes: vec![mark], images: vec![] });
        }
    }
    let store = &bench.store;
    // The writer thins between saves; the result is the same however often and when it got to it.
    store.thin(talk.session).unwrap();
    // 27 segments: turn 1; document 2..=7; turns 2..=21 as segments 8..=27. Newest four turns: 24..=27. Older turns
    // by number: 2nd (age 4..7: numbers 14..17), 4th (8..15: 6..13), 8th (16..: 1..5). Marked: turn 4 = segment 10.
    assert_eq!(kept_turns(store, &talk), [2, 3, 4, 5, 6, 7, 10, 14, 18, 20, 22, 24, 25, 26, 27]);
    assert_eq!(store.thin(talk.session).unwrap().files, 0, "thinning twice changes nothing");

    // A thinned turn: rows are kept, the nearest earlier state is found, the rest is replay.
    let plan = store.plan_restore(&talk.segments[20 - 2].id()).unwrap();
    assert_eq!((plan.usable, plan.replay_tokens()), (18, plan.path[18].tokens()));
    assert_eq!(plan.lost[0].why, "thinned");
    assert_eq!(store.plan_restore(&talk.tip.unwrap()).unwrap().usable, 27);
}

#[test]
fn the_writer_thins_what_the_desk_saves() {
    let dir = folder();
    let limits = Limits { keep_turns: 2, ..limits() };
    let bench = Bench::new(Store::open(dir.path(), std::sync::Arc::new(RealDisk), limits).unwrap());
    let (mut talk, save) = Talk::begin(&bench.store, "thin");
    bench.save(save);
    for n in 0..9 {
        let Save { changes, images } = talk.turn(&bench.store, &format!("more {n}"), "yes");
        // What is said is saved as it is said; the segment follows without it, and names no session.
        let (texts, state) =
            changes.into_iter().partition(|change| !matches!(change, Change::AddSegment(_) | Change::Link { .. }));
        bench.save(Save { changes: texts, images: vec![] });
        bench.save(Save { changes: state, images });
    }
    let store = std::sync::Arc::clone(&bench.store);
    assert!(bench.close());
    // Newest two; of ages 2 and 3 every 2nd, of 4 to 7 every 4th, from 8 on every 8th.
    assert_eq!(kept_turns(&store, &talk), [4, 6, 8, 9]);
}

#[test]
fn state_behind_lost_rows_is_not_called_kept_until_they_are_back() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let talk = talk_of(&bench, "holes", 3);
    let store = &bench.store;
    let tip = talk.tip.unwrap();
    let shown = || {
        let kept = |n: &sala_chat::session::MessageNode| n.segment.is_some() && n.kept;
        let turns = store.tree(talk.session, MODEL, 0).unwrap().iter().filter(|n| kept(n)).count();
        (store.session(talk.session).unwrap().state_of.is_some(), turns, store.kept_of(&tip).unwrap().unwrap().0)
    };
    assert_eq!(shown(), (true, 3, true));
    let (second, image) = (talk.segments[1].id(), image(&talk.segments[1]));
    let fault = |part| RowsFault { segment: Some(second.0), part, why: "damaged".into(), lasting: true };
    // The state at the end of one in the middle is its own affair.
    assert!(store.note_fault(&fault(StatePart::End)).unwrap());
    assert_eq!(shown(), (true, 2, true));
    assert!(store.note_fault(&fault(StatePart::Rows)).unwrap());
    assert_eq!(shown(), (false, 1, false));
    assert_eq!(store.plan_restore(&tip).unwrap().usable, 1);
    assert!(is_saved(&bench.save(Save { changes: vec![], images: vec![(second, image)] })));
    assert_eq!(shown(), (true, 3, true));
}

#[test]
fn the_budget_counts_a_child_without_rows_as_none() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let mut talk = talk_of(&bench, "branches", 1);
    let (head, tip, position, rendered) = (talk.head, talk.tip, talk.position, talk.rendered.clone());
    let save = talk.turn(&bench.store, "one way", "yes");
    bench.save(save);
    let lost = talk.tip.unwrap();
    // A fork stands there, which pins its end.
    let (id, from) = (bench.store.new_session_id(), Some(talk.session));
    let new = NewSession { id, name: "fork".into(), settings: "{}".into(), head: talk.head, forked_from: from };
    bench.save(Save { changes: vec![Change::CreateSession(new)], images: vec![] });
    (talk.head, talk.tip, talk.position, talk.rendered) = (head, tip, position, rendered);
    let save = talk.turn(&bench.store, "another way", "no");
    bench.save(save);
    let store = &bench.store;
    let fault = RowsFault { segment: Some(lost.0), part: StatePart::Rows, why: "damaged".into(), lasting: true };
    assert!(store.note_fault(&fault).unwrap());
    // Room for the rows of two: the pinned state goes, then whole segments from the tips.
    let rows = |id: &SegmentId| store.segment(id).unwrap().unwrap().rows;
    let both: u64 = [tip.unwrap(), talk.tip.unwrap()].iter().map(|id| rows(id).bytes()).sum();
    let limits = Limits { max_state_bytes: both, ..limits() };
    let small = Store::open(dir.path(), std::sync::Arc::new(RealDisk), limits).unwrap();
    small.keep_budget(&[]).unwrap();
    assert!(rows(&tip.unwrap()).is_kept() || !rows(&talk.tip.unwrap()).is_kept(), "rows without those before them");
}

#[test]
fn the_budget_leaves_a_mark_its_state_until_it_is_in_the_trash() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let mut marked = talk_of(&bench, "marked", 2);
    let (message, tip) = (marked.head.unwrap(), marked.tip.unwrap());
    let mark = Change::Mark { session: marked.session, name: "here".into(), message };
    assert!(is_saved(&bench.save(Save { changes: vec![mark], images: vec![] })));
    let save = marked.turn(&bench.store, "more", "yes");
    assert!(is_saved(&bench.save(save)));
    let newer = talk_of(&bench, "newer", 3);
    let bytes = bench.store.state_bytes_of_marks().unwrap();
    assert!(bytes > 0 && bytes < bench.store.state_bytes().unwrap(), "{bytes}");
    assert!(bench.close());
    let opened = |max_state_bytes| {
        Store::open(dir.path(), std::sync::Arc::new(RealDisk), Limits { max_state_bytes, ..limits() }).unwrap()
    };
    let small = opened(1);
    small.keep_budget(&[]).unwrap();
    assert_eq!(small.plan_restore(&tip).unwrap().usable, 2);
    assert_eq!(small.plan_restore(&newer.tip.unwrap()).unwrap().usable, 0);
    assert_eq!(small.state_bytes().unwrap(), bytes);
    drop(small);
    // A mark in the trash pins nothing.
    let small = opened(1);
    small.delete(marked.session).unwrap();
    small.keep_budget(&[]).unwrap();
    assert_eq!((small.state_bytes().unwrap(), small.state_bytes_of_marks().unwrap()), (0, 0));
}

#[test]
fn what_the_budget_leaves_to_marks_is_counted_with_the_ends_below_them_that_stay() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let (mut marked, save) = Talk::begin(&bench.store, "marked");
    assert!(is_saved(&bench.save(save)));
    let save = marked.document(&bench.store, "a document below the mark", 2);
    assert!(is_saved(&bench.save(save)));
    let save = marked.turn(&bench.store, "where another session stands", "yes");
    assert!(is_saved(&bench.save(save)));
    let (id, head) = (bench.store.new_session_id(), marked.head);
    let new = NewSession { id, name: "fork".into(), settings: "{}".into(), head, forked_from: Some(marked.session) };
    assert!(is_saved(&bench.save(Save { changes: vec![Change::CreateSession(new)], images: vec![] })));
    // Nobody stands on the next one.
    for question in ["more", "and more"] {
        let save = marked.turn(&bench.store, question, "yes");
        assert!(is_saved(&bench.save(save)));
    }
    let mark = Change::Mark { session: marked.session, name: "here".into(), message: marked.head.unwrap() };
    assert!(is_saved(&bench.save(Save { changes: vec![mark], images: vec![] })));
    assert!(bench.close());
    let limits = Limits { max_state_bytes: 1, ..limits() };
    let small = Store::open(dir.path(), std::sync::Arc::new(RealDisk), limits).unwrap();
    let bytes = small.state_bytes_of_marks().unwrap();
    assert!(bytes < small.state_bytes().unwrap());
    small.keep_budget(&[]).unwrap();
    assert_eq!(small.state_bytes().unwrap(), bytes);
}

#[test]
fn the_budget_drops_old_state_but_spares_the_open_path_and_never_text() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let old = talk_of(&bench, "old", 3);
    let new = talk_of(&bench, "new", 3);
    let store = &bench.store;
    let spare: Vec<SegmentId> = new.segments.iter().map(|s| s.id()).collect();
    let ends = [*spare.last().unwrap()];
    let (of_new, all) = (store.state_bytes_of(&ends).unwrap(), store.state_bytes().unwrap());
    assert!(of_new > 0 && of_new < all, "{of_new} of {all}");
    store.drop_all_state(&spare).unwrap();
    assert_eq!(store.state_bytes().unwrap(), of_new);
    assert_eq!(store.plan_restore(&old.tip.unwrap()).unwrap().usable, 0);
    assert_eq!(store.plan_restore(&new.tip.unwrap()).unwrap().usable, 3);
    assert_eq!(store.session(old.session).unwrap().state_of, None);
    assert_eq!(store.path(old.head.unwrap()).unwrap().len(), 6);
    let segment = store.segment(&old.tip.unwrap()).unwrap().unwrap();
    assert_eq!(segment.rows, Stored::Missing { why: PRUNED.into() });
    // Read again, the same work has the same name and is kept again.
    let images = old.segments.iter().map(|s| (s.id(), image(s))).collect();
    assert!(is_saved(&bench.save(Save { changes: vec![], images })));
    assert_eq!(restore(store, &old.tip.unwrap(), 0).unwrap().plan.usable, 3);
    let sizes = store.sizes().unwrap();
    assert_eq!(sizes.state_bytes, store.state_bytes().unwrap());
    assert_eq!(sizes.sessions[&old.session].0 + sizes.sessions[&new.session].1, sizes.state_bytes);
}

#[test]
fn whoever_restores_state_waits_for_no_transaction_and_what_was_used_is_dropped_last() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let used = talk_of(&bench, "used", 3);
    let unused = talk_of(&bench, "unused", 3);
    let tip = used.tip.unwrap();
    assert!(bench.writer.flush(soon()));
    let busy = rusqlite::Connection::open(dir.path().join("sala.db")).unwrap();
    busy.execute_batch("BEGIN IMMEDIATE").unwrap();
    let begun = Instant::now();
    assert_eq!(restore(&bench.store, &tip, 0).unwrap().plan.usable, 3);
    assert!(begun.elapsed().as_secs() < 5, "it waited for a transaction: {:?}", begun.elapsed());
    busy.execute_batch("ROLLBACK").unwrap();
    drop(busy);
    let bytes = bench.store.state_bytes_of(&[tip]).unwrap();
    assert!(bench.close());
    let limits = Limits { max_state_bytes: bytes, ..limits() };
    let store = Store::open(dir.path(), std::sync::Arc::new(RealDisk), limits).unwrap();
    store.keep_budget(&[]).unwrap();
    assert_eq!(store.plan_restore(&tip).unwrap().usable, 3);
    assert!(store.plan_restore(&unused.tip.unwrap()).unwrap().usable < 3);
}

#[test]
fn segments_that_build_on_nothing_lose_state_not_text() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let mut talk = talk_of(&bench, "hole", 1);
    // The state of this turn is never handed over, so the next one's would be of no use.
    let mut save = talk.turn(&bench.store, "two", "2");
    save.images.clear();
    assert!(is_saved(&bench.save(save)));
    let save = talk.turn(&bench.store, "three", "3");
    let event = bench.save(save);
    assert!(matches!(&event, SaveEvent::TextOnly { reason, .. } if reason.contains("earlier state")), "{event:?}");
    let plan = bench.store.plan_restore(&talk.tip.unwrap()).unwrap();
    assert_eq!((plan.usable, plan.replay().len()), (1, 2));
    assert_eq!(plan.replay()[1].content, talk.segments[2]);

    // Neither is one whose parent was never recorded: the text is saved all the same.
    talk.tip = Some(SegmentId([7; 32]));
    let save = talk.turn(&bench.store, "four", "4");
    assert!(matches!(bench.save(save), SaveEvent::TextOnly { .. }));
    assert_eq!(bench.store.path(talk.head.unwrap()).unwrap().len(), 8);
}

#[test]
fn the_unchanged_past_is_found_by_text() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let talk = talk_of(&bench, "past", 3);
    let path = bench.store.load_path(&talk.tip.unwrap()).unwrap();
    assert_eq!(unchanged_prefix(&path, &format!("{} and more", talk.rendered)), 3);
    assert_eq!(unchanged_prefix(&path, &talk.rendered.replace("question 2", "Question 2")), 2);
    assert_eq!(unchanged_prefix(&path, &talk.rendered[..talk.rendered.len() - 1]), 2);
    assert_eq!(unchanged_prefix(&path, "something else"), 0);
    let tip = bench.store.tip_segment(talk.head.unwrap(), MODEL).unwrap();
    assert_eq!(tip, Some((talk.head.unwrap(), talk.tip.unwrap())));
    assert_eq!(bench.store.tip_segment(talk.head.unwrap(), "another model").unwrap(), None);
}

#[test]
fn ten_thousand_sessions_are_listed_and_searched() {
    let dir = folder();
    let bench = Bench::new(open(dir.path(), RealDisk));
    let mut save = Save::default();
    for n in 0..10_000 {
        let (mut talk, begin) = Talk::begin(&bench.store, &format!("session {n}"));
        save.changes.extend(begin.changes);
        save.changes.extend(talk.turn(&bench.store, &format!("question {n}"), "answer").changes);
    }
    assert!(is_saved(&bench.save(save)));
    assert!(bench.close());
    let store = open(dir.path(), RealDisk);
    let begun = Instant::now();
    let all = store.sessions(SessionFilter::Live, usize::MAX).unwrap();
    println!("10,000 sessions listed in {:.1} ms", begun.elapsed().as_secs_f64() * 1e3);
    assert_eq!((all.len(), all[0].title.as_str(), all[0].messages), (10_000, "question 9999", 2));
    let begun = Instant::now();
    let found = store.search("question 4711", 10, &Watch::NOBODY).unwrap();
    println!("searched in {:.1} ms (first search indexes)", begun.elapsed().as_secs_f64() * 1e3);
    assert_eq!(found[0].name, "session 4711");
}

#[cfg(unix)]
#[test]
fn nobody_else_can_read_the_files() {
    use std::os::unix::fs::PermissionsExt;
    let dir = folder();
    let root = dir.path().join("made");
    let bench = Bench::new(open(&root, RealDisk));
    talk_of(&bench, "private", 1);
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
    let talk = talk_of(&bench, "kind", 1);
    let mut again = talk.segments[0].clone();
    for kind in [SegmentKind::DocumentEnd, SegmentKind::Turn] {
        again.kind = kind;
        bench.save(Save { changes: vec![Change::AddSegment(Box::new(again.clone()))], images: vec![] });
        let found = bench.store.segment(&again.id()).unwrap().unwrap();
        assert_eq!(found.content.kind, SegmentKind::DocumentEnd);
    }
}
