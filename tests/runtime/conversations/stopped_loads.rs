//! Stopped loads: the question, the part that was read, and how they continue.

use super::*;

fn a_stopped_load_asks_what_to_do_and_keeps_the_part_that_was_read() {
    let dir = dir();
    std::fs::write(dir.path().join("long.txt"), "This is a line of the long file.\n".repeat(200)).unwrap();
    let (permit, gate) = crossbeam_channel::unbounded();
    let mut t = Chat::new(dir.path(), Setup { gate: Some(gate), ..Setup::default() });
    for _ in 0..6 {
        permit.send(()).unwrap();
    }
    t.send(Request::Load { paths: vec!["long.txt".into()], options: Default::default() });
    t.wait("reading", |n| match n {
        Notice::Activity(Activity::Reading(p)) if p.done >= 6 * 64 => Some(()),
        _ => None,
    });
    t.send(Request::Stop);
    let (id, text) = t.wait("a question", |n| match n {
        Notice::Question { id, text, .. } => Some((*id, text.clone())),
        _ => None,
    });
    assert!(text.starts_with("Stopped at 384 of "), "{text}");
    drop(permit);
    t.send(Request::Choose { question: id, key: '\x1b' });
    let note = t.note_with("Kept what was read");
    assert!(note.contains("long.txt ends at line"), "{note}");
    t.sync();
    let view = t.view();
    let document = view.messages[0].meta.document.clone().unwrap();
    assert!(!document.complete);
    assert!(document.tokens < 400, "{document:?}");
    let before: usize = t.work().0;
    t.ask("What is it about?");
    assert!(before < 384 + 40, "what was read is not read again: {before}");
    // The file is what it was, however much of it was kept.
    assert!(t.load("long.txt").starts_with("Read long.txt"));
    t.sync();
    // All of it now follows the part.
    assert_eq!(t.view().tree.documents.len(), 2);
}

/// Loads `long.txt` until so many chunks of it are read, before the first piece of it is kept, and stops there.
fn stopped_after(t: &mut Chat, chunks: u64) -> u64 {
    t.send(Request::Load { paths: vec!["long.txt".into()], options: Default::default() });
    t.wait("reading", |n| match n {
        Notice::Activity(Activity::Reading(p)) if p.done >= chunks * 64 => Some(()),
        _ => None,
    });
    t.send(Request::Stop);
    question(t).0
}

/// A load of `long.txt`, 200 lines, that was stopped in the middle, and the question what is to become of it.
fn stopped_load(dir: &std::path::Path) -> (Chat, u64) {
    std::fs::write(dir.join("long.txt"), "This is a line of the long file.\n".repeat(200)).unwrap();
    let (permit, gate) = crossbeam_channel::unbounded();
    let mut t = Chat::new(dir, Setup { gate: Some(gate), ..Setup::default() });
    for _ in 0..3 {
        permit.send(()).unwrap();
    }
    let question = stopped_after(&mut t, 3);
    (t, question)
}

fn a_stop_while_the_rest_of_a_load_is_planned_is_a_stop_of_the_load() {
    let dir = dir();
    std::fs::write(dir.path().join("long.txt"), "This is a line of the long file.\n".repeat(40_000)).unwrap();
    let (permit, gate) = crossbeam_channel::unbounded();
    let mut t = Chat::new(dir.path(), Setup { gate: Some(gate), context_limit: 1 << 40, ..Setup::default() });
    for _ in 0..3 {
        permit.send(()).unwrap();
    }
    let paths = vec!["long.txt".into()];
    t.send(Request::Load { paths, options: LoadOptions { once: true, ..LoadOptions::default() } });
    let (large, ..) = question(&mut t);
    t.send(Request::Choose { question: large, key: '\n' });
    t.wait("reading", |n| match n {
        Notice::Activity(Activity::Reading(p)) if p.done >= 3 * 64 => Some(()),
        _ => None,
    });
    t.send(Request::Stop);
    let (first, text) = question(&mut t);
    assert!(text.starts_with("Stopped at 192 of "), "{text}");
    t.send(Request::Choose { question: first, key: '1' });
    t.wait("tokenizing", |n| match n {
        Notice::Activity(Activity::Busy { what }) if what == "tokenizing" => Some(()),
        _ => None,
    });
    t.send(Request::Stop);
    drop(permit);
    let mut questions = 0;
    t.wait("the end", |n| match n {
        Notice::Question { .. } => {
            questions += 1;
            None
        }
        Notice::Note(_, text) => text.starts_with("Kept what was read").then_some(()),
        _ => None,
    });
    assert_eq!(questions, 0, "the stop is the answer");
    t.sync();
}

fn a_load_that_fails_after_it_was_stopped_leaves_no_document_open() {
    let dir = dir();
    let (mut t, question) = stopped_load(dir.path());
    let tamper = rusqlite::Connection::open(dir.path().join("data/sala.db")).unwrap();
    tamper.execute_batch("ALTER TABLE segment RENAME TO elsewhere").unwrap();
    t.send(Request::Choose { question, key: '1' });
    let document = t.wait("the document", |n| match n {
        Notice::Finished(m) => m.meta.document.clone(),
        _ => None,
    });
    // It is what it is until the next question reads the rest.
    assert!(!document.complete);
    t.note_with("no such table");
}

fn what_a_stopped_load_has_read_is_not_read_again_after_a_restart() {
    let quit = |t: Chat, _| t.quit();
    let keep = |mut t: Chat, id| {
        t.send(Request::Choose { question: id, key: '\x1b' });
        t.note_with("Kept what was read");
        t.sync();
        t.quit()
    };
    // A stop during the question does not lose it.
    let stop = |mut t: Chat, _| {
        t.send(Request::Stop);
        t.note_with("Kept what was read");
        t.sync();
        t.quit()
    };
    for leave in [quit, keep, stop] {
        let dir = dir();
        let (t, question) = stopped_load(dir.path());
        leave(t, question);

        let mut t = Chat::new(dir.path(), resume("long"));
        let note = t.note_with("Resumed ");
        assert!(t.work().0 == 0, "{note}");
        assert!(t.view().messages[0].text.len() < 200 * 33);
        t.ask("What is it about?");
        assert!(t.work().0 < 40);
    }
}

/// The data folder as a kill leaves it now.
fn killed_now(from: &std::path::Path, to: &std::path::Path) {
    let (from, to) = (from.join("data"), to.join("data"));
    std::fs::create_dir_all(to.join("segments")).unwrap();
    let db = rusqlite::Connection::open(from.join("sala.db")).unwrap();
    db.execute("VACUUM INTO ?1", [to.join("sala.db").to_str().unwrap()]).unwrap();
    std::fs::copy(from.join("sala-chat.id"), to.join("sala-chat.id")).unwrap();
    for file in std::fs::read_dir(from.join("segments")).unwrap() {
        let path = file.unwrap().path();
        std::fs::copy(&path, to.join("segments").join(path.file_name().unwrap())).unwrap();
    }
}

fn a_part_left_unread_by_a_kill_is_marked_until_it_is_read() {
    let (dir, after) = (dir(), dir());
    std::fs::write(dir.path().join("long.txt"), "This is a line of the long file.\n".repeat(1_000)).unwrap();
    let (permit, gate) = crossbeam_channel::unbounded();
    let mut t = Chat::new(dir.path(), Setup { gate: Some(gate), ..Setup::default() });
    for _ in 0..3 {
        permit.send(()).unwrap();
    }
    stopped_after(&mut t, 3);
    t.on_disk();
    killed_now(dir.path(), after.path());

    let mut t = Chat::new(after.path(), resume("long"));
    let (id, text) = question(&mut t);
    assert!(text.starts_with("long.txt was read in part. That part is kept; "), "{text}");
    assert!(text.contains("The model must read") && !text.contains("again"), "{text}");
    let shown = |t: &Chat| {
        let view = t.view();
        (view.messages[0].meta.document.as_ref().unwrap().complete, view.tree.documents[0].complete)
    };
    assert_eq!(shown(&t), (false, false));
    t.send(Request::Choose { question: id, key: '\n' });
    t.note_with("Resumed 192 of ");
    t.sync();
    assert_eq!(shown(&t), (true, true));
    assert!(t.work().0 as u64 + 192 <= t.view().tree.documents[0].tokens + 40);
    t.quit();
    let mut t = Chat::new(after.path(), resume("long"));
    t.note_with("Resumed ");
    assert_eq!((t.work().0, shown(&t)), (0, (true, true)));
    t.quit();
}

fn going_back_from_a_stopped_load_keeps_what_was_read() {
    let dir = dir();
    let (mut t, question) = stopped_load(dir.path());
    t.send(Request::Choose { question, key: '\x1b' });
    let note = t.note_with("Kept what was read");
    assert!(note.ends_with(" /undo takes it back."), "{note}");
    t.send(Request::Undo(1));
    let note = t.note_with("Went back 1 exchange to the beginning");
    assert!(note.contains(": 0 tokens shared, 0 read again"), "{note}");
    assert!(note.ends_with(" /redo takes it back."), "{note}");
    t.sync();
    assert!(t.view().messages.is_empty());
    // What is read stays read: on a branch of its own, and for the next load of it.
    t.work();
    t.send(Request::Redo(1));
    t.note_with("Went forward to #1");
    t.sync();
    let part = t.view().messages[0].clone();
    assert!(!part.text.is_empty() && part.text.len() < 200 * 33, "{}", part.text.len());
    t.send(Request::Undo(1));
    t.note_with("Went back 1 exchange");
    t.sync();
    assert_eq!(t.work().0, 0);
    t.on_disk();
    assert!(t.load("long.txt").starts_with("Read long.txt"));
    t.sync();
    let (read, whole) = (t.work().0 as u64, t.view().tree.documents[0].tokens);
    assert!(read + 150 < whole, "{read} of {whole}");
    // Another session that loads it finds all of it, the part and the rest.
    t.quit();
    let mut t = Chat::new(dir.path(), Setup::default());
    let note = t.load("long.txt");
    assert!(note.contains("from library"), "{note}");
    assert_eq!(t.work().0, 0);
}

/// Text that neither tokenizer finds easy: characters outside its vocabulary, spaces at odd places.
fn awkward(lines: usize) -> String {
    (0..lines)
        .map(|i| format!("  {i}. naïve 你好 \u{1F642}\u{1F468}\u{200D}\u{1F469} \u{2581}x <|im_end|> end \n"))
        .collect()
}

fn a_stopped_load_that_is_continued_reads_on_from_there_and_the_text_stays_whole() {
    let text = awkward(300);
    let load = || Request::Load { paths: vec!["long.txt".into()], options: Default::default() };
    let straight = dir();
    std::fs::write(straight.path().join("long.txt"), &text).unwrap();
    let mut t = Chat::new(straight.path(), Setup::default());
    assert!(t.load("long.txt").starts_with("Read long.txt"));
    let jobs: Vec<Vec<u32>> = t.log.as_ref().unwrap().try_iter().map(|j| j.0).collect();
    assert!(jobs.len() > 5, "{} pieces", jobs.len());
    assert!(jobs.iter().all(|j| j.len() < support::PIECE + 8), "every piece is kept by itself");
    let whole = t.text.tokenizer.spell(&jobs.concat(), Before::Edge);
    // Where a piece encodes a space, the character itself is indistinguishable from one.
    let spelled = if t.text.tokenizer.id("▁").is_some() { text.replace('\u{2581}', " ") } else { text.clone() };
    assert!(whole.contains(&spelled));

    let dir = dir();
    std::fs::write(dir.path().join("long.txt"), &text).unwrap();
    let (permit, gate) = crossbeam_channel::unbounded();
    let mut t = Chat::new(dir.path(), Setup { gate: Some(gate), ..Setup::default() });
    for _ in 0..40 {
        permit.send(()).unwrap();
    }
    t.send(load());
    t.wait("reading", |n| match n {
        // The end of each piece takes a permit of its own.
        Notice::Activity(Activity::Reading(p)) if p.done >= 38 * 64 => Some(()),
        _ => None,
    });
    t.send(Request::Stop);
    let id = t.wait("a question", |n| if let Notice::Question { id, .. } = n { Some(*id) } else { None });
    drop(permit);
    let before: Vec<u32> = t.log.as_ref().unwrap().try_iter().flat_map(|j| j.0).collect();
    t.send(Request::Choose { question: id, key: '1' });
    t.note_with("Read long.txt");
    let after: Vec<u32> = t.log.as_ref().unwrap().try_iter().flat_map(|j| j.0).collect();
    assert!(
        before.len() + after.len() < jobs.concat().len() + support::PIECE,
        "at most the piece it stopped in is read again"
    );
    let begin = t.text.tokenizer.before_next(&before, Before::Edge);
    assert!(
        whole.ends_with(&t.text.tokenizer.spell(&after, begin)),
        "no space of the tokenizer's where it was stopped"
    );
}

#[test]
fn a_continued_load_shows_progress_and_can_be_stopped_again() {
    let dir = dir();
    std::fs::write(dir.path().join("long.txt"), "This is a line of the long file.\n".repeat(200)).unwrap();
    let (permit, gate) = crossbeam_channel::unbounded();
    let mut t = Chat::new(dir.path(), Setup { gate: Some(gate), ..Setup::default() });
    t.send(Request::Load { paths: vec!["long.txt".into()], options: Default::default() });
    let mut seen = 0;
    for stopped_at in [3 * 64, 6 * 64] {
        for _ in 0..3 {
            permit.send(()).unwrap();
        }
        let from = t.seen.len();
        t.wait("reading", |n| match n {
            Notice::Activity(Activity::Reading(p)) if p.done >= stopped_at => Some(()),
            _ => None,
        });
        let notices: Vec<&Notice> = t.seen[from..].iter().collect();
        assert!(!notices.iter().any(|n| matches!(n, Notice::Activity(Activity::Stopping))), "{notices:#?}");
        // The meter follows the reading and stays where it stopped.
        let meter = |n: &Notice| if let Notice::Meters(m) = n { Some(m.context_used) } else { None };
        let now = t.seen.iter().rev().find_map(meter).unwrap();
        assert!(now > seen && now <= stopped_at, "{now}");
        seen = now;
        t.send(Request::Stop);
        let (id, text) = question(&mut t);
        assert!(text.starts_with(&format!("Stopped at {stopped_at} of ")), "{text}");
        assert_eq!(t.seen.iter().rev().find_map(meter), Some(stopped_at));
        t.send(Request::Choose { question: id, key: '1' });
    }
    drop(permit);
    t.note_with("Read long.txt: ");
    t.sync();
    assert!(t.view().messages[0].meta.document.as_ref().unwrap().complete);
    t.ask("What is it about?");
    assert!(t.view().messages[0].meta.prefill_ms > 0.0);
}

with_both_tokenizers!(
    a_load_that_fails_after_it_was_stopped_leaves_no_document_open,
    a_stopped_load_asks_what_to_do_and_keeps_the_part_that_was_read,
    what_a_stopped_load_has_read_is_not_read_again_after_a_restart,
    a_stop_while_the_rest_of_a_load_is_planned_is_a_stop_of_the_load,
    a_part_left_unread_by_a_kill_is_marked_until_it_is_read,
    going_back_from_a_stopped_load_keeps_what_was_read,
    a_stopped_load_that_is_continued_reads_on_from_there_and_the_text_stays_whole,
);
