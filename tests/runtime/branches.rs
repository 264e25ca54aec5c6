//! Work outside the conversation: several answers to one question, one question to many documents.

use crate::support;

use sala_chat::config::commands::LibraryAction;
use sala_chat::core::transcript::{Finish, Message, Role};
use sala_chat::runtime::protocol::{Activity, Choice, FanOut, Level, Notice, Request};
use sala_chat::runtime::{Opening, Settings};
use sala_chat::text::Before;
use support::{Chat, Setup};

fn seeded() -> Setup {
    Setup { seeds: true, ..Setup::default() }
}

/// Waits for the choice between answers: the answers in order of their keys, and the question.
fn several(t: &mut Chat) -> (Vec<Message>, u64, Vec<Choice>) {
    let ids = t.wait("several answers", |n| if let Notice::Several(ids) = n { Some(ids.clone()) } else { None });
    let from = t.seen.len();
    let (question, choices) = t.wait("which one goes on", |n| match n {
        Notice::Question { id, choices, .. } => Some((*id, choices.clone())),
        Notice::Note(Level::Error, e) => panic!("{e}"),
        _ => None,
    });
    let finished = |id| {
        t.seen[from..].iter().find_map(|n| match n {
            Notice::Finished(m) if m.id == id => Some(m.clone()),
            _ => None,
        })
    };
    let made: Vec<Message> = ids.iter().filter_map(|(id, _)| finished(*id)).collect();
    let deltas: String = t.seen[from..]
        .iter()
        .filter_map(|n| match n {
            Notice::Delta { message, text, .. } if *message == ids[0].0 => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(made.first().map(|m| m.text.as_str()), Some(deltas.as_str()));
    (made, question, choices)
}

fn regen(count: u64, seed: u64) -> Request {
    Request::Regen { at: None, count, temperature: None, seed: Some(seed) }
}

#[test]
fn each_of_several_answers_equals_its_seed_alone() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut t = Chat::new(one.path(), seeded());
    t.ask("first");
    t.work();
    t.send(regen(3, 41));
    let (made, question, choices) = several(&mut t);
    assert_eq!(made.iter().map(|m| m.meta.seed.unwrap()).collect::<Vec<_>>(), [41, 42, 43]);
    assert!(made.iter().all(|m| m.meta.finish == Some(Finish::Stop) && m.parent == made[0].parent));
    assert!(made[1].text.starts_with("seed 42 state "), "{:?}", made[1].text);
    assert_eq!(choices.iter().map(|c| c.key).collect::<String>(), "123\u{1b}");
    t.send(Request::Choose { question, key: '2' });
    t.sync();
    assert_eq!((t.view().tree.branch, t.view().messages.last().unwrap().id), ((3, 4), made[1].id));
    t.work();
    let after = t.ask("and then?");
    // The chosen state is there: nothing of it is read again.
    let given = t.given();
    assert!(given.len() == 1 && !given[0].contains("seed 42"), "{given:?}");

    let mut alone = Chat::new(other.path(), seeded());
    alone.ask("first");
    for (i, m) in made.iter().enumerate() {
        alone.send(regen(1, 41 + i as u64));
        assert_eq!(alone.finished().text, m.text);
    }
    alone.send(regen(1, 42));
    alone.finished();
    // The state is that of a path on which only this answer was written.
    let then = |text: &str| text.split_once("state ").unwrap().1.to_owned();
    assert_eq!(then(&alone.ask("and then?").text), then(&after.text));
    alone.quit();
    t.quit();
    // They are siblings on disk, and the chosen one is open.
    let mut t = Chat::new(one.path(), Setup { opening: Opening::Resume("last".into()), ..seeded() });
    t.sync();
    assert_eq!(t.view().messages.iter().filter(|m| m.role == Role::Assistant).count(), 2);
    assert_eq!(t.view().messages[1].id, made[1].id);
    t.quit();
}

#[test]
fn greedy_answers_have_no_seed() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = Settings { seed: Some(7), ..Settings::default() };
    let mut t = Chat::new(dir.path(), Setup { settings: settings.clone(), ..seeded() });
    assert_eq!(t.ask("first").meta.seed, Some(7));
    t.quit();
    settings.sampling.temperature = 0.0;
    let mut t = Chat::new(dir.path(), Setup { settings, ..seeded() });
    assert_eq!(t.ask("second").meta.seed, None);
    t.send(Request::AskForSeveral { text: "third".into(), count: 2 });
    let seeds = t.wait("several answers", |n| if let Notice::Several(seeds) = n { Some(seeds.clone()) } else { None });
    assert!(seeds.len() == 2 && seeds.iter().all(|(_, seed)| seed.is_none()), "{seeds:?}");
}

#[test]
fn answers_there_is_no_room_for_wait_for_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let mut t = Chat::new(dir.path(), Setup { room: 3, ..seeded() });
    t.send(Request::AskForSeveral { text: "first".into(), count: 5 });
    let (made, question, _) = several(&mut t);
    assert_eq!(made.len(), 5);
    let first = made[0].meta.seed.unwrap();
    assert!(made.iter().zip(first..).all(|(m, seed)| m.text.starts_with(&format!("seed {seed} state "))), "{made:?}");
    // No sequence holds the first any more, so it is restored from disk.
    t.send(Request::Choose { question, key: '1' });
    t.sync();
    t.work();
    t.ask("and then?");
    let given = t.given();
    assert!(given.len() == 1 && !given[0].contains(&format!("seed {first}")), "{given:?}");
    t.quit();
}

#[test]
fn an_engine_with_one_conversation_answers_one_after_another() {
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings { seed: Some(7), ..Settings::default() };
    let mut t = Chat::new(dir.path(), Setup { sequences: 1, settings, ..seeded() });
    t.send(Request::AskForSeveral { text: "first".into(), count: 3 });
    let mut made = Vec::new();
    let question = t.wait("which one goes on", |n| match n {
        Notice::Finished(m) => {
            made.push(m.clone());
            None
        }
        Notice::Question { id, .. } => Some(*id),
        _ => None,
    });
    assert_eq!(made.iter().map(|m| m.text[..7].to_owned()).collect::<Vec<_>>(), ["seed 7 ", "seed 8 ", "seed 9 "]);
    t.send(Request::Choose { question, key: '3' });
    t.sync();
    assert_eq!(t.view().tree.branch, (3, 3));
    t.quit();
}

#[test]
fn a_stop_keeps_what_there_is_of_each() {
    let dir = tempfile::tempdir().unwrap();
    let (permits, gate) = crossbeam_channel::unbounded();
    let mut t = Chat::new(dir.path(), Setup { gate: Some(gate), ..seeded() });
    t.send(Request::AskForSeveral { text: "first".into(), count: 2 });
    // No token exists while the question is read, and no notice claims one.
    t.wait("the reading", |n| match n {
        Notice::Activity(Activity::Answering { .. }) => panic!("{n:?}"),
        Notice::Activity(Activity::Busy { what }) => (what == "reading the question").then_some(()),
        _ => None,
    });
    // The question, and six tokens of the first answer.
    (0..9).for_each(|_| permits.send(()).unwrap());
    t.wait("a word", |n| matches!(n, Notice::Delta { .. }).then_some(()));
    t.send(Request::Stop);
    let question = t.wait("which one goes on", |n| if let Notice::Question { id, .. } = n { Some(*id) } else { None });
    t.send(Request::Choose { question, key: '1' });
    drop(permits);
    t.sync();
    let view = t.view();
    // However much of it came before the stop was heard.
    let kept = &view.messages.last().unwrap().text;
    assert!(!kept.is_empty() && (kept.starts_with("seed") || "seed".starts_with(kept)), "{:?}", view.messages);
    assert_eq!(view.messages.last().unwrap().meta.finish, Some(Finish::Stopped));
    t.send(Request::Continue(None));
    t.finished();
    t.quit();
}

/// Puts documents into the library, each with lines of its own.
fn library(t: &mut Chat, dir: &std::path::Path, names: &[&str]) {
    for name in names {
        let line = |n: usize| format!("{name} has a line {n} that nobody else has.\n");
        std::fs::write(dir.join(name), (0..40).map(line).collect::<String>()).unwrap();
        let path = dir.join(name).display().to_string();
        t.send(Request::Library(LibraryAction::Add(path)));
        t.note_with("is in the library");
    }
    t.sync();
    t.on_disk();
    t.work();
}

fn fan_out(t: &mut Chat, question: &str, library: Option<&str>, read: bool) -> FanOut {
    t.send(Request::AskAll { question: question.into(), library: library.map(str::to_owned), read });
    t.wait("all answers", |n| match n {
        Notice::FanOut(fan_out) if fan_out.over => Some(fan_out.clone()),
        Notice::Note(Level::Error | Level::Warn, e) => panic!("{e}"),
        _ => None,
    })
}

#[test]
fn every_document_answers_as_if_alone_without_a_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut t = Chat::new(dir.path(), Setup { room: 3, ..Setup::default() });
    t.ask("A talk of its own");
    let names = ["a.txt", "b.txt", "c.md", "d.txt"];
    library(&mut t, dir.path(), &names);
    let all = fan_out(&mut t, "Who has line 7?", None, false);
    assert_eq!(all.rows.iter().map(|r| r.document.as_str()).collect::<Vec<_>>(), names);
    let given = t.given();
    assert!(given.len() == 4 && given.iter().all(|g| !g.contains("nobody else")), "{given:?}");
    for row in &all.rows {
        assert_eq!((row.finish, &row.failed), (Some(Finish::Stop), &None), "{row:?}");
        // The script is as sure of each token as of any other.
        assert!(row.log_probability.is_some_and(|p| (p + 0.5).abs() < 1e-6), "{row:?}");
    }
    let some = fan_out(&mut t, "Who has line 7?", Some("*.txt"), false);
    assert_eq!(some.rows.len(), 3);
    assert_eq!(some.rows[1], all.rows[1]);
    // The conversation is where it was: only the question is read.
    t.work();
    t.ask("and then?");
    assert!(!t.given()[0].contains("talk of its own"));

    t.send(Request::AskAll { question: "Who has line 7?".into(), library: Some("*.txt".into()), read: false });
    t.send(Request::OpenAnswer(1));
    t.note_with("New session with b.txt");
    t.sync();
    let roles: Vec<Role> = t.view().messages.iter().map(|m| m.role).collect();
    assert_eq!(roles, [Role::Document, Role::User, Role::Assistant]);
    assert_eq!(t.view().messages[2].text, some.rows[1].text);
    // What it looked at came with it.
    let looked = t.view().messages[2].meta.looked.clone().unwrap();
    assert!(looked.tokens > 0 && looked.passages == some.rows[1].passages, "{looked:?}");
    t.send(Request::Look { at: None, passage: None });
    t.wait("what it looked at", |n| matches!(n, Notice::Looked { .. }).then_some(()));
    t.ask("and then?");
    assert!(t.given().iter().all(|g| !g.contains("nobody else")));
    t.quit();

    let alone = tempfile::tempdir().unwrap();
    let mut t = Chat::new(alone.path(), Setup::default());
    std::fs::copy(dir.path().join("c.md"), alone.path().join("c.md")).unwrap();
    t.load("c.md");
    assert_eq!(t.ask("Who has line 7?").text, all.rows[2].text);
    t.quit();
}

#[test]
fn a_document_without_kept_state_is_read_only_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let mut t = Chat::new(dir.path(), Setup::default());
    library(&mut t, dir.path(), &["a.txt", "b.txt"]);
    t.quit();
    std::fs::remove_file(dir.path().join("b.txt")).unwrap();
    let mut t = Chat::new(dir.path(), Setup { fingerprint: "fake-2".into(), ..Setup::default() });
    let none = fan_out(&mut t, "Who?", None, false);
    let why = |n: usize| none.rows[n].failed.clone().unwrap();
    assert!(why(0).ends_with("; add --read to read it alone") && why(1).contains("its file is gone"), "{none:?}");
    assert_eq!(t.work(), (0, 0));
    let read = fan_out(&mut t, "Who?", None, true);
    assert_eq!(read.rows[0].finish, Some(Finish::Stop), "{read:?}");
    // Its file is gone.
    assert!(read.rows[1].failed.is_some());
    assert!(t.given()[0].contains("a.txt has a line 7"));
    t.send(Request::AskAll { question: "Who?".into(), library: Some("z*".into()), read: false });
    t.note_with("There is no document called z* in the library");
    t.quit();
}

#[test]
fn a_document_kept_after_another_is_questioned_alone() {
    let dir = tempfile::tempdir().unwrap();
    let setup = || Setup { system: Some("Be brief.".into()), ..Setup::default() };
    let mut t = Chat::new(dir.path(), setup());
    for name in ["b.txt", "a.txt"] {
        let line = |n: usize| format!("{name} has a line {n} that nobody else has.\n");
        let path = dir.path().join(name);
        std::fs::write(&path, (0..40).map(line).collect::<String>()).unwrap();
        t.load(path.to_str().unwrap());
    }
    t.sync();
    t.on_disk();
    t.work();
    let all = fan_out(&mut t, "Who has line 7?", None, false);
    // It follows only the system text.
    assert_eq!((all.rows[0].document.as_str(), all.rows[0].finish), ("b.txt", Some(Finish::Stop)));
    let why = "it was read after other text; add --read to read it alone";
    assert_eq!((all.rows[1].failed.as_deref(), all.rows[1].finish), (Some(why), None));
    t.note_with("1 of 2 documents answered");
    assert!(t.given().iter().all(|g| !g.contains("nobody else")));
    let read = fan_out(&mut t, "Who has line 7?", None, true);
    let given = t.given();
    assert!(
        given.iter().any(|g| g.contains("a.txt has")) && !given.iter().any(|g| g.contains("b.txt has")),
        "{given:?}"
    );
    t.send(Request::OpenAnswer(0));
    t.note_with("New session with a.txt");
    t.sync();
    let roles: Vec<Role> = t.view().messages.iter().map(|m| m.role).collect();
    assert_eq!(roles, [Role::System, Role::Document, Role::User, Role::Assistant]);
    t.quit();

    let alone = tempfile::tempdir().unwrap();
    let mut t = Chat::new(alone.path(), setup());
    std::fs::copy(dir.path().join("a.txt"), alone.path().join("a.txt")).unwrap();
    t.load("a.txt");
    assert_eq!(t.ask("Who has line 7?").text, read.rows[0].text);
    t.quit();
}

#[test]
fn documents_of_a_folder_are_read_alone_under_their_names() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("docs")).unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join("docs").join(name), text.repeat(40)).unwrap();
    for name in ["a.md", "b.svg", "c.md"] {
        write(name, &format!("<p>A line of {name} that nobody else has.\n"));
    }
    let mut t = Chat::new(dir.path(), Setup::default());
    t.load("docs");
    t.sync();
    t.on_disk();
    write("c.md", "Another text.\n");
    let read = fan_out(&mut t, "Who has a line?", None, true);
    let rows: Vec<(&str, bool)> = read.rows.iter().map(|r| (r.document.as_str(), r.finish.is_some())).collect();
    assert_eq!(
        rows,
        [("docs/a.md", true), ("docs/b.svg", true), ("docs/c.md", true), ("docs/c.md", false)],
        "{read:?}"
    );
    let why = "it was read after other text, and reading its file did not change that";
    assert_eq!(read.rows[3].failed.as_deref(), Some(why));
    t.quit();
}

#[test]
fn an_unreadable_file_is_reported_in_its_row_of_ask_all() {
    let dir = tempfile::tempdir().unwrap();
    let mut t = Chat::new(dir.path(), Setup::default());
    library(&mut t, dir.path(), &["a.txt", "b.txt", "c.txt"]);
    t.quit();
    std::fs::write(dir.path().join("b.txt"), [0; 64]).unwrap();
    std::fs::remove_file(dir.path().join("c.txt")).unwrap();
    let mut t = Chat::new(dir.path(), Setup { fingerprint: "fake-2".into(), ..Setup::default() });
    let read = fan_out(&mut t, "Who?", None, true);
    assert_eq!(read.rows[0].finish, Some(Finish::Stop), "{read:?}");
    let why = |n: usize| read.rows[n].failed.clone().unwrap();
    assert!(why(1).contains("b.txt: not text"), "{}", why(1));
    assert!(why(2).contains("and its file is gone: ") && why(2).ends_with("c.txt"), "{}", why(2));
    t.quit();
}

#[test]
fn a_file_too_long_is_reported_in_its_row_of_ask_all() {
    let dir = tempfile::tempdir().unwrap();
    let mut t = Chat::new(dir.path(), Setup::default());
    library(&mut t, dir.path(), &["a.txt", "b.txt"]);
    t.quit();
    std::fs::write(dir.path().join("a.txt"), "It has grown a lot since.\n".repeat(4000)).unwrap();
    let small = Setup { fingerprint: "fake-2".into(), context_limit: 8_192, ..Setup::default() };
    let mut t = Chat::new(dir.path(), small);
    let read = fan_out(&mut t, "Who?", None, true);
    let row = |name: &str| read.rows.iter().find(|r| r.document == name).unwrap();
    let why = row("a.txt").failed.as_deref().unwrap_or_default();
    assert!(why.contains("a.txt is longer than the whole context of 8,192 tokens"), "{read:?}");
    assert_eq!((row("b.txt").finish, &row("b.txt").failed), (Some(Finish::Stop), &None), "{read:?}");
    // The same for a folder added to the library: what fits is stored, the first file that does not fit ends the load.
    let folder = dir.path().join("papers");
    std::fs::create_dir(&folder).unwrap();
    for name in ["x.txt", "z.txt"] {
        std::fs::write(folder.join(name), format!("{name} is short.\n")).unwrap();
    }
    std::fs::write(folder.join("y.txt"), "Long.\n".repeat(9000)).unwrap();
    t.send(Request::Library(LibraryAction::Add(folder.display().to_string())));
    t.note_with("x.txt is in the library");
    t.note_with("z.txt is in the library");
    t.note_with("y.txt is longer than");
    t.quit();
}

#[test]
fn without_kept_state_the_reason_and_its_setting_are_shown() {
    let dir = tempfile::tempdir().unwrap();
    let never = Setup { save_state: sala_chat::config::settings::SaveStates::Never, ..Setup::default() };
    let mut t = Chat::new(dir.path(), never);
    let path = dir.path().join("a.txt");
    std::fs::write(&path, "A line of text.\n".repeat(20)).unwrap();
    t.send(Request::Library(LibraryAction::Add(path.display().to_string())));
    let note = t.note_with("is in the library");
    assert!(note.ends_with("no state of them is kept: sessions.save_state is \"never\"."), "{note}");
    t.work();
    let all = fan_out(&mut t, "Who?", None, true);
    assert!(all.rows[0].failed.as_ref().is_some_and(|why| why.contains("sessions.save_state = \"never\"")), "{all:?}");
    assert_eq!(t.work(), (0, 0), "nothing is read that is not kept");
    t.quit();
}

#[test]
fn a_stop_leaves_the_answers_there_are() {
    let dir = tempfile::tempdir().unwrap();
    let (permits, gate) = crossbeam_channel::unbounded();
    let mut t = Chat::new(dir.path(), Setup { gate: Some(gate), ..Setup::default() });
    (0..2_000).for_each(|_| permits.send(()).unwrap());
    library(&mut t, dir.path(), &["a.txt", "b.txt"]);
    assert!(!permits.is_empty());
    t.send(Request::AskAll { question: "Who?".into(), library: None, read: false });
    t.send(Request::Stop);
    let over = t.wait("the end", |n| match n {
        Notice::FanOut(fan_out) if fan_out.over => Some(fan_out.clone()),
        _ => None,
    });
    assert!(over.rows.len() == 2 && over.rows.iter().all(|r| r.failed.is_none()), "{over:?}");
    // What was stopped is no answer.
    let answered = over.rows.iter().filter(|r| r.finish == Some(Finish::Stop)).count();
    t.note_with(&format!("{answered} of 2 documents answered in "));
    t.sync();
    t.quit();
}

#[test]
fn when_finds_the_line_that_changes_the_answer() {
    let dir = tempfile::tempdir().unwrap();
    let text = support::text_model(None);
    let spell = text.clone();
    let script: support::fake_engine::Script = Box::new(move |_, tokens| {
        let read = spell.tokenizer.spell(tokens, Before::Edge);
        let answer = if read.contains("It was the butler.") { "the butler" } else { "nobody knows" };
        spell.tokenizer.encode_after(answer, Before::Text).unwrap()
    });
    let mut t = Chat::new(dir.path(), Setup { text, script, ..Setup::default() });
    let line = |n: usize| if n == 300 { "It was the butler.\n".into() } else { format!("Line {n} of a long story.\n") };
    std::fs::write(dir.path().join("story.txt"), (1..=600).map(line).collect::<String>()).unwrap();
    t.load("story.txt");
    t.ask("Is it long?");
    t.sync();
    t.work();
    t.send(Request::When("Who did it?".into()));
    let (title, page) = t.wait("the page", |n| match n {
        Notice::Page { title, text } => Some((title.clone(), text.clone())),
        Notice::Note(Level::Error | Level::Warn, e) => panic!("{e}"),
        _ => None,
    });
    assert_eq!(title, "When: Who did it?");
    let lines: Vec<&str> = page.lines().filter(|l| l.contains(" line ") && l.contains(": \"")).collect();
    let number = |line: &str, before: &str| -> u64 {
        let number = line.trim().strip_prefix(before).unwrap().split_once(':').unwrap().0;
        number.replace(',', "").parse().unwrap()
    };
    assert_eq!(lines.len(), 2, "{page}");
    assert!(lines[0].ends_with(": \"nobody knows\"") && lines[1].ends_with(": \"the butler\""), "{page}");
    // The first kept state after the line in the message: at most one piece further.
    let (upto, from) = (number(lines[0], "up to line "), number(lines[1], "from line "));
    assert!((300..420).contains(&from) && upto < 300, "{page}");
    let given = t.given();
    assert!(given.len() > 3 && given.iter().all(|g| !g.contains("long story")), "{given:?}");
    // Where one state is kept there is no change to name.
    t.send(Request::New(None));
    std::fs::write(dir.path().join("note.txt"), "A short note.\nNothing more.\n").unwrap();
    t.load("note.txt");
    t.send(Request::When("Who did it?".into()));
    let page = t.wait("the page", |n| if let Notice::Page { text, .. } = n { Some(text.clone()) } else { None });
    assert!(page.contains("up to line ") && !page.contains("from line"), "{page}");
    assert!(page.contains("no other to compare with. sessions.checkpoint_every says"), "{page}");
    t.quit();
}
