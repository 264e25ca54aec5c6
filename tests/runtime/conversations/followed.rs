//! Files that are followed: what is noticed, what the next question reads, and what it does not.

use super::*;
use std::path::Path;
use std::time::{Duration, Instant};

use sala_chat::config::settings::NewFiles;
use sala_chat::core::transcript::Update;

const LINES: usize = 60;

fn line(file: usize, n: usize) -> String {
    format!("Line {n} of file {file}: the code of station {} is TR-{}-K.\n", n * 7 + file, n * 31 + file)
}

/// A folder of so many files, followed and read.
fn followed(dir: &Path, files: usize, setup: Setup) -> Chat {
    std::fs::create_dir(dir.join("docs")).unwrap();
    for file in 0..files {
        let text: String = (0..LINES).map(|n| line(file, n)).collect();
        std::fs::write(dir.join(format!("docs/{file:02}.txt")), text).unwrap();
    }
    let mut t = Chat::new(dir, Setup { context_limit: 1_000_000, load: any_load(), ..setup });
    follow(&mut t);
    t
}

fn any_load() -> LoadConfig {
    LoadConfig { confirm_tokens: 1 << 40, confirm_files: 1 << 40, ..LoadConfig::default() }
}

fn follow(t: &mut Chat) -> String {
    t.send(Request::Follow(vec!["docs".into()]));
    t.note_with("followed")
}

fn edit(dir: &Path, file: &str, from: &str, to: &str) {
    let path = dir.join("docs").join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from));
    std::fs::write(path, text.replace(from, to)).unwrap();
}

fn changed(t: &mut Chat, count: u64) {
    t.wait("a number of changes", |n| matches!(n, Notice::Meters(m) if m.changed == count).then_some(()));
}

/// Names of the documents that were added since the last call.
fn documents(t: &mut Chat, seen: &mut usize) -> Vec<String> {
    let new = t.seen[*seen..].iter().filter_map(|n| match n {
        Notice::Added(m) => Some(m.meta.document.as_ref()?.name.clone()),
        _ => None,
    });
    let names = new.collect();
    *seen = t.seen.len();
    names
}

#[test]
fn an_edit_reads_its_difference_and_not_the_folder() {
    let dir = dir();
    let mut t = followed(dir.path(), 40, Setup::default());
    t.ask("What is the code of station 7?");
    let (before, _) = t.work();
    assert!(before > 20_000, "{before}");
    let text = std::fs::read_to_string(dir.path().join("docs/03.txt")).unwrap();
    let new: String = (0..LINES).map(|n| if (20..40).contains(&n) { line(90, n) } else { line(3, n) }).collect();
    std::fs::write(dir.path().join("docs/03.txt"), &new).unwrap();
    changed(&mut t, 1);
    let mut seen = t.seen.len();
    t.ask("And now?");
    let diff = sala_chat::text::diff::unified("docs/03.txt", &text, &new);
    let tokens = t.text.tokenizer.encode_plain(&diff).unwrap().len();
    let (read, _) = t.work();
    assert!(read as f64 <= 1.5 * tokens as f64, "{read} tokens read for a difference of {tokens}");
    assert_eq!(documents(&mut t, &mut seen), ["docs/03.txt (changed)"]);
    assert!(t.given().is_empty());
    t.ask("And again?");
    assert!(t.work().0 < 40);
    assert_eq!(documents(&mut t, &mut seen), [""; 0]);
    // An earlier branch knows the earlier version.
    t.send(Request::Undo(3));
    changed(&mut t, 1);
    t.ask("And here?");
    assert_eq!(documents(&mut t, &mut seen), ["docs/03.txt (changed)"]);
    t.quit();
}

#[test]
fn files_are_deleted_moved_emptied_and_grow() {
    let dir = dir();
    let mut t = followed(dir.path(), 6, Setup::default());
    t.ask("What is the code?");
    let file = |name: &str| dir.path().join("docs").join(name);
    std::fs::remove_file(file("00.txt")).unwrap();
    std::fs::rename(file("01.txt"), file("moved.txt")).unwrap();
    std::fs::write(file("02.txt"), "").unwrap();
    let grown: String = (0..LINES + 2).map(|n| line(3, n)).collect();
    std::fs::write(file("03.txt"), grown).unwrap();
    std::fs::write(file("04.txt"), "short\n").unwrap();
    std::fs::write(file("05.txt"), b"no\0text").unwrap();
    t.send(Request::Changes);
    let page = t.wait("the page", |n| if let Notice::Page { text, .. } = n { Some(text.clone()) } else { None });
    let words: Vec<&str> = page.lines().filter_map(|l| l.split_whitespace().next()).take(6).collect();
    assert_eq!(words, ["deleted", "emptied", "changed", "changed", "unreadable", "moved"], "{page}");
    t.work();
    let mut seen = t.seen.len();
    t.ask("What changed?");
    let names = [
        "docs/00.txt (deleted)",
        "docs/02.txt (no text)",
        "docs/03.txt (lines 61-62)",
        "docs/04.txt (new version)",
        "docs/moved.txt (moved)",
    ];
    assert_eq!(documents(&mut t, &mut seen), names);
    assert!(t.work().0 < 600);
    let last = |t: &Chat, n: usize| t.seen.iter().rev().filter_map(added).nth(n).unwrap();
    fn added(n: &Notice) -> Option<Option<Update>> {
        let Notice::Added(m) = n else { return None };
        m.meta.document.as_ref().map(|d| d.update.clone())
    }
    assert!(matches!(last(&t, 0), Some(Update::Moved { from }) if from.ends_with("docs/01.txt")));
    // The file that moved is known under its new path.
    edit(dir.path(), "moved.txt", "Line 5 ", "Line five ");
    t.ask("And now?");
    assert_eq!(documents(&mut t, &mut seen), ["docs/moved.txt (changed)"]);
    for name in ["docs/moved.txt", "docs/01.txt"] {
        t.send(Request::Open(name.into()));
        let opened =
            |n: &Notice| if let Notice::Page { title, text } = n { Some((title.clone(), text.clone())) } else { None };
        let (title, page) = t.wait("the page", opened);
        assert!(title == "docs/moved.txt:1" && page.contains("Line five of file 1"), "{title}: {page}");
    }
    t.send(Request::Refresh);
    t.note_with("Read anew, now at");
    t.sync();
    let names: Vec<String> =
        t.view().messages.iter().filter_map(|m| Some(m.meta.document.as_ref()?.name.clone())).collect();
    assert_eq!(names, ["docs/05.txt", "docs/03.txt", "docs/04.txt", "docs/moved.txt"]);
    t.quit();
}

#[test]
fn new_files_wait_for_a_yes() {
    let dir = dir();
    let mut t = followed(dir.path(), 2, Setup::default());
    let mut seen = t.seen.len();
    let new = |name: &str| std::fs::write(dir.path().join("docs").join(name), "A new text of a few words.\n").unwrap();
    for (name, key) in [("no.txt", 'n'), ("yes.txt", 'y')] {
        new(name);
        changed(&mut t, 1);
        t.send(Request::Ask("What is new?".into()));
        let (question, text) = question(&mut t);
        assert!(text.starts_with(&format!("1 new file: docs/{name} (")), "{text}");
        t.send(Request::Choose { question, key });
        t.finished();
        t.sync();
    }
    assert_eq!(documents(&mut t, &mut seen), ["docs/yes.txt"]);
    t.quit();

    let (taken, ignored) = (self::dir(), self::dir());
    for (dir, new_files, expected) in
        [(&taken, NewFiles::Take, ["docs/x.txt"].as_slice()), (&ignored, NewFiles::Ignore, &[])]
    {
        let mut t = followed(dir.path(), 1, Setup { new_files, ..Setup::default() });
        let mut seen = t.seen.len();
        std::fs::write(dir.path().join("docs/x.txt"), "A new text of a few words.\n").unwrap();
        t.ask("What is new?");
        assert_eq!(documents(&mut t, &mut seen), expected);
        t.quit();
    }
}

#[test]
fn a_session_that_is_followed_again_reads_what_changed_meanwhile() {
    let dir = dir();
    let mut t = followed(dir.path(), 5, Setup::default());
    t.ask("What is the code?");
    let name = t.name();
    t.quit();
    edit(dir.path(), "02.txt", "Line 9 ", "Line nine ");
    let mut t = Chat::new(dir.path(), resume(&name));
    t.idle();
    follow(&mut t);
    changed(&mut t, 1);
    t.work();
    let mut seen = t.seen.len();
    t.ask("And now?");
    assert_eq!(documents(&mut t, &mut seen), ["docs/02.txt (changed)"]);
    assert!(t.work().0 < 500);
    // Nothing is noticed any more.
    t.send(Request::FollowNothing);
    t.note_with("no longer followed");
    edit(dir.path(), "02.txt", "Line 11 ", "Line eleven ");
    t.ask("And now?");
    assert_eq!(documents(&mut t, &mut seen), [""; 0]);
    t.quit();
}

#[test]
fn what_cannot_be_followed_is_refused() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.idle();
    for (request, why) in [
        (Request::Follow(vec!["none".into()]), "No such file: none."),
        (Request::Follow(Vec::new()), "Nothing is followed here. /follow PATH"),
        (Request::Changes, "Nothing is followed here. /follow PATH"),
        (Request::Refresh, "Nothing is followed here. /follow PATH"),
        (Request::FollowNothing, "Nothing is followed here."),
    ] {
        let text = t.note(request);
        assert!(text.starts_with(why), "{text}");
    }
    t.quit();
}

#[test]
fn what_is_shown_is_the_version_that_was_read() {
    let dir = dir();
    let text = text_model(None);
    let script = always(text.clone(), "It says \"Line five of file 0: the code of station\".");
    let mut t = followed(dir.path(), 2, Setup { text, script, ..Setup::default() });
    let open = |t: &mut Chat, name: &str| {
        t.send(Request::Open(name.into()));
        t.wait("the page", |n| match n {
            Notice::Page { title, text } => Some((title.clone(), text.clone())),
            _ => None,
        })
    };
    assert_eq!(t.ask("What does it say?").meta.quotes[0].document, None);
    edit(dir.path(), "00.txt", "Line 5 of", "Line five of");
    changed(&mut t, 1);
    let (title, page) = open(&mut t, "docs/00.txt:6");
    assert!(title == "docs/00.txt:6, changed since" && page.contains("Line 5 of file 0"), "{title}: {page}");
    let quote = t.ask("And now?").meta.quotes[0].clone();
    assert_eq!(quote.place(), "docs/00.txt 6 exact");
    let (title, page) = open(&mut t, "docs/00.txt:6");
    assert!(title == "docs/00.txt:6" && page.contains("Line five of file 0"), "{title}: {page}");
    let (_, page) = open(&mut t, "docs/00.txt (changed)");
    assert!(page.contains("-Line 5 of file 0") && page.contains("+Line five of file 0"), "{page}");
    t.quit();
}

#[test]
fn a_refresh_reads_what_follows_the_first_changed_file() {
    let dir = dir();
    let mut t = followed(dir.path(), 10, Setup::default());
    t.ask("What is the code?");
    let (all, _) = t.work();
    for n in [3, 4] {
        edit(dir.path(), "07.txt", &format!("Line {n} of"), &format!("Line {n}{n} of"));
        t.ask("And now?");
    }
    t.work();
    t.send(Request::Refresh);
    t.note_with("Read anew, now at");
    t.sync();
    let (read, _) = t.work();
    assert!(read > all / 10 && read < all * 4 / 10, "{read} of {all}");
    let names: Vec<String> =
        t.view().messages.iter().filter_map(|m| Some(m.meta.document.as_ref()?.name.clone())).collect();
    let order = [0, 1, 2, 3, 4, 5, 6, 8, 9, 7].map(|n| format!("docs/{n:02}.txt"));
    assert_eq!(names, order);
    let text = &t.view().messages[9].text;
    assert!(text.contains("Line 33 of") && text.contains("Line 44 of"), "{text}");
    t.ask("And now?");
    assert!(t.work().0 < 60);
    assert!(t.note(Request::Refresh).starts_with("Every file was read in its present version"));
    t.quit();
}

#[test]
fn files_are_read_in_the_order_of_their_commits() {
    let dir = dir();
    let git = |args: &[&str], at: u64| {
        let mut git = std::process::Command::new("git");
        git.arg("-C").arg(dir.path()).args(["-c", "user.name=a", "-c", "user.email=a@b.c"]).args(args);
        let date = format!("@{at} +0000");
        let done = git.env("GIT_COMMITTER_DATE", &date).env("GIT_AUTHOR_DATE", date).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    };
    std::fs::create_dir(dir.path().join("docs")).unwrap();
    git(&["init", "-q"], 0);
    for (at, file) in (1_700_000_000..).zip([2, 0, 1]) {
        let name = format!("docs/{file:02}.txt");
        std::fs::write(dir.path().join(&name), line(file, 1)).unwrap();
        git(&["add", &name], at);
        git(&["commit", "-q", "-m", "one"], at);
    }
    // Without a commit the time of its change counts.
    std::fs::write(dir.path().join("docs/a new one.txt"), line(9, 1)).unwrap();
    let mut t = Chat::new(dir.path(), Setup { load: any_load(), ..Setup::default() });
    follow(&mut t);
    t.sync();
    let names: Vec<String> =
        t.view().messages.iter().filter_map(|m| Some(m.meta.document.as_ref()?.name.clone())).collect();
    assert_eq!(names, ["docs/02.txt", "docs/00.txt", "docs/01.txt", "docs/a new one.txt"]);
    t.quit();
}

#[test]
fn many_updates_are_read_anew_in_idle_time() {
    let dir = dir();
    let mut t = followed(dir.path(), 3, Setup::default());
    t.ask("What is the code?");
    let text: String = (0..LINES).map(|n| line(77, n)).collect();
    std::fs::write(dir.path().join("docs/01.txt"), text).unwrap();
    t.send(Request::Ask("And now?".into()));
    t.finished();
    t.note_with("read anew in idle time");
    t.sync();
    let names: Vec<String> =
        t.view().messages.iter().filter_map(|m| Some(m.meta.document.as_ref()?.name.clone())).collect();
    assert_eq!(names, ["docs/00.txt", "docs/02.txt", "docs/01.txt"]);
    // The session list knows the state of the new branch.
    t.on_disk();
    let db = rusqlite::Connection::open(dir.path().join("data/sala.db")).unwrap();
    let row = |r: &rusqlite::Row<'_>| Ok((r.get::<_, u64>(0)?, r.get::<_, String>(1)?));
    let sql = "SELECT coalesce(max(tokens), 0), coalesce(max(state_of), '') FROM session WHERE messages = ?1";
    let listed = || db.query_row(sql, [t.view().messages.len() as i64], row).unwrap();
    let read: u64 = t.view().tree.documents.iter().map(|d| d.tokens).sum();
    let (begun, is_listed) =
        (Instant::now(), |(tokens, state_of): (u64, String)| tokens > read && !state_of.is_empty());
    while !is_listed(listed()) {
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?} of {read}", listed());
        std::thread::sleep(Duration::from_millis(20));
    }
    t.work();
    t.ask("And now?");
    assert!(t.work().0 < 60);
    // The branch that was left has the updates.
    t.send(Request::Branch(BranchTarget::Sibling(Sibling::Prev)));
    t.note_with("Branch 1/2");
    t.quit();
}

#[test]
fn a_watched_question_is_answered_again_and_shown_when_its_answer_differs() {
    let dir = dir();
    let mut t = followed(dir.path(), 3, Setup::default());
    let page = |t: &mut Chat| {
        t.wait("the page", |n| match n {
            Notice::Page { title, text } if title == "Watched" => Some(text.clone()),
            _ => None,
        })
    };
    t.send(Request::Watch(Some("What is the code?".into())));
    let first = page(&mut t);
    assert!(first.starts_with("What is the code?\n\n    ") && !first.contains("Before:"), "{first}");
    edit(dir.path(), "01.txt", "Line 3 of", "Line three of");
    let second = page(&mut t);
    let answer = first.lines().nth(2).unwrap();
    assert!(second.contains(&format!("Before:\n\n{answer}")), "{second}");
    t.send(Request::Watch(None));
    assert_eq!(t.note_with("Watched: "), "Watched: 1 What is the code? (/watch off N ends one)");
    // Neither question nor answer is in the conversation.
    assert!(t.seen.iter().all(|n| !matches!(n, Notice::Added(m) if m.role != Role::Document)));
    t.send(Request::WatchNothing(None));
    t.note_with("1 question not watched any more");
    assert_eq!(t.note(Request::WatchNothing(None)), "No question was watched.");
    // The page is Markdown, and the question is not.
    t.send(Request::Watch(Some("1. Is *this*\n# the code?".into())));
    let third = page(&mut t);
    assert!(third.starts_with("1\\. Is \\*this\\*\\\n\\# the code?\n\n    "), "{third}");
    t.quit();
}

#[test]
fn named_files_that_cannot_be_read_are_all_named_and_read_once_they_can() {
    let dir = dir();
    let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
    std::fs::create_dir(dir.path().join("d")).unwrap();
    for n in 0..7 {
        write(&format!("named{n}.bin"), b"no\0text");
        write(&format!("d/found{n}.bin"), b"no\0text");
    }
    write("d/text.txt", b"A text of a few words.\n");
    write("a.txt", b"Another text of a few words.\n");
    let mut t = Chat::new(dir.path(), Setup { load: any_load(), new_files: NewFiles::Ignore, ..Setup::default() });
    let named = (0..7).map(|n| format!("named{n}.bin"));
    t.send(Request::Follow(["d".to_owned()].into_iter().chain(named).chain(["a.txt".to_owned()]).collect()));
    let note = t.note_with("followed");
    assert!(note.contains("a.txt are followed") && !note.contains("named"), "{note}");
    let unread = t.note_with("are not read: there is nothing to read yet.");
    assert!((0..7).all(|n| unread.contains(&format!("named{n}.bin"))) && !unread.contains("a.txt"), "{unread}");
    let skipped = t.seen.iter().filter_map(|n| match n {
        Notice::Note(Level::Warn, text) if text.starts_with("Skipped ") => Some(text.as_str()),
        _ => None,
    });
    let skipped: Vec<&str> = skipped.collect();
    assert!((0..7).all(|n| skipped[n].contains(&format!("named{n}.bin: not text"))), "{skipped:?}");
    assert_eq!((skipped.len(), skipped[12]), (13, "Skipped 2 more."), "{skipped:?}");
    t.send(Request::Changes);
    let page = t.wait("the page", |n| if let Notice::Page { text, .. } = n { Some(text.clone()) } else { None });
    assert_eq!(page, "No text changed since it was read.\n");
    let mut seen = t.seen.len();
    write("named3.bin", b"Readable by now.\n");
    changed(&mut t, 1);
    t.ask("And now?");
    assert_eq!(documents(&mut t, &mut seen), ["named3.bin"]);
    t.quit();
}
