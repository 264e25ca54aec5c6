//! Plans of loads: what fits, what is left out, what is here already.

use sala_chat::config::commands::{Outcome, parse};

use super::*;

#[test]
fn a_new_session_is_offered_where_it_helps() {
    let dir = dir();
    let write = |name: &str, words: usize| std::fs::write(dir.path().join(name), "word ".repeat(words)).unwrap();
    for (name, words) in [("small.txt", 450), ("half.txt", 600), ("big.txt", 5_000)] {
        write(name, words);
    }
    let mut t = Chat::new(dir.path(), Setup { context_limit: 1000, ..Setup::default() });
    t.load("small.txt");
    let note = t.load("half.txt");
    assert!(note.starts_with("half.txt needs ") && note.contains(" of 1,000 are left beside an answer"), "{note}");
    assert!(!note.contains("more than") && note.contains("; /undo, /new, /compact; "), "{note}");
    let note = t.load("big.txt");
    assert!(note.contains("the whole context of 1,000") && !note.contains("/new"), "{note}");
    t.quit();
}

fn what_does_not_fit_is_refused_before_anything_is_read() {
    let dir = dir();
    std::fs::write(dir.path().join("big.txt"), "word ".repeat(5000)).unwrap();
    let mut t = Chat::new(dir.path(), Setup { context_limit: 1000, ..Setup::default() });
    let note = t.load("big.txt");
    let file = dir.path().join("big.txt").display().to_string();
    let all = format!(
        "big.txt is longer than the whole context of 1,000 tokens. Nothing was read. \
         Options: /load {file} --head 936; a larger --ctx or another model, where memory allows."
    );
    assert_eq!(note, all);
    t.send(Request::Ask("word ".repeat(5000)));
    let back = t.wait("the question back", |n| match n {
        Notice::Input { text, .. } => Some(text.clone()),
        _ => None,
    });
    assert!(back.starts_with("word word"));
    t.sync();
    assert_eq!(t.work(), (0, 0));
    assert_eq!(t.saved(), SaveState::Empty);
}

fn what_would_fit_of_a_file_is_a_command_that_loads_it() {
    let dir = dir();
    std::fs::create_dir(dir.path().join("a folder")).unwrap();
    std::fs::write(dir.path().join("a folder/big one.txt"), "word ".repeat(5000)).unwrap();
    let mut t = Chat::new(dir.path(), Setup { context_limit: 3000, ..Setup::default() });
    let note = t.load("a folder/big one.txt");
    let (_, options) = note.split_once("Options: ").unwrap();
    let (line, _) = options.split_once("; ").unwrap();
    assert!(line.ends_with(" --head 2000"), "{note}");
    let Outcome::Runtime(load) = parse(line, None).unwrap().outcome else { panic!("{line}") };
    t.send(load);
    t.note_with("Read big one.txt: ");
}

fn the_time_of_a_load_is_known_from_an_earlier_run_with_this_model() {
    let dir = dir();
    std::fs::write(dir.path().join("a.txt"), "word ".repeat(3000)).unwrap();
    std::fs::write(dir.path().join("b.txt"), "more ".repeat(3000)).unwrap();
    std::fs::write(dir.path().join("c.txt"), "other ".repeat(3000)).unwrap();
    let setup =
        |model| Setup { load: LoadConfig { confirm_tokens: 10, ..LoadConfig::default() }, model, ..Setup::default() };
    let load = |t: &mut Chat, name: &str| {
        t.send(Request::Load { paths: vec![name.into()], options: Default::default() });
        let (id, text) = question(t);
        t.send(Request::Choose { question: id, key: '\n' });
        t.note_with("tokens in");
        text
    };
    let mut t = Chat::new(dir.path(), setup("fake"));
    let first = load(&mut t, "a.txt");
    assert!(first.contains(" tokens, leaves "), "no speed is known at first: {first}");
    t.quit();
    let mut t = Chat::new(dir.path(), setup("fake"));
    let again = load(&mut t, "b.txt");
    assert!(again.contains(" tokens, about 0:"), "{again}");
    t.quit();
    let mut t = Chat::new(dir.path(), setup("another"));
    let other = load(&mut t, "c.txt");
    assert!(other.contains(" tokens, leaves "), "another model has its own speed: {other}");
    t.quit();
}

fn files_left_out_of_a_plan_are_not_read() {
    let dir = dir();
    let load = three_files(dir.path());
    let mut t = Chat::new(
        dir.path(),
        Setup {
            load: LoadConfig { confirm_tokens: 10, confirm_files: 20, ..LoadConfig::default() },
            ..Setup::default()
        },
    );
    t.send(load.clone());
    let (question, text, offer) = plan(&mut t);
    assert!(text.starts_with("3 files, "), "{text}");
    let names: Vec<&str> = offer.files.iter().map(|f| f.name.as_str()).collect();
    assert_eq!(names, ["a.txt", "b.txt", "c.txt"]);
    let files = vec![0, 2];
    t.send(Request::ChooseFiles { question, files });
    let note = t.note_with("tokens in");
    let tokens = offer.files[0].tokens + offer.files[2].tokens;
    assert!(note.starts_with("Read 2 files: "), "{note}");
    t.sync();
    assert_eq!(t.work().0 as u64, tokens);
    let view = t.view();
    let loaded: Vec<&str> = view.tree.documents.iter().map(|d| d.name.as_str()).collect();
    assert_eq!(loaded, ["a.txt", "c.txt"]);
    assert_eq!(view.messages[1].parent, Some(view.messages[0].id));
    // What was chosen is what the next question continues from.
    t.ask("Well?");
    assert!(t.work().0 < 40);
    // Kept state is named in the next plan, and Esc loads nothing.
    t.send(Request::New(None));
    t.send(load);
    let (question, _, offer) = plan(&mut t);
    let kept: Vec<bool> = offer.files.iter().map(|f| f.kept).collect();
    assert_eq!(kept, [true, false, false]);
    t.send(Request::Choose { question, key: '\x1b' });
    t.sync();
    assert_eq!((t.view().messages.len(), t.work().0), (0, 0));
}

fn a_load_that_does_not_fit_offers_to_leave_files_out() {
    let dir = dir();
    let load = three_files(dir.path());
    let mut t = Chat::new(dir.path(), Setup { context_limit: 1_000, ..Setup::default() });
    t.send(load.clone());
    let (question, text, offer) = plan(&mut t);
    assert!(text.contains("Leave some out"), "{text}");
    assert_eq!((offer.free, offer.reserve), (1_000, 64));
    // Enter is no choice here: nothing is loaded, and the note names the alternatives.
    t.send(Request::Choose { question, key: '\n' });
    let note = t.note_with("Nothing was read");
    assert!(note.starts_with("A load of 3 files is longer than the whole context"), "{note}");
    t.send(load);
    let (question, ..) = plan(&mut t);
    let files = vec![1];
    t.send(Request::ChooseFiles { question, files });
    t.note_with("Read b.txt: ");
    t.sync();
    assert_eq!(t.view().tree.documents.len(), 1);
}

#[test]
fn a_known_file_is_not_loaded_again() {
    let dir = dir();
    std::fs::write(dir.path().join("notes.txt"), "The code of Arvel station is TR-5512-K.\n".repeat(40)).unwrap();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.load("notes.txt");
    // The same file by another spelling of its path, also through a link.
    std::os::unix::fs::symlink(dir.path(), dir.path().join("here")).unwrap();
    let folder = dir.path().file_name().unwrap().to_str().unwrap();
    for spelled in ["notes.txt", "./notes.txt", &format!("../{folder}/notes.txt"), "here/notes.txt"] {
        let note = t.note(Request::Load { paths: vec![spelled.into()], options: Default::default() });
        let known = "notes.txt is in this conversation already, unchanged: not loaded again.";
        assert_eq!(note, known, "{spelled}");
        t.sync();
        assert_eq!(t.view().tree.documents.len(), 1);
    }
    // Another file is another document, whatever is in it.
    std::fs::copy(dir.path().join("notes.txt"), dir.path().join("copy.txt")).unwrap();
    t.send(Request::Load { paths: vec!["copy.txt".into()], options: Default::default() });
    t.note_with("copy.txt: ");
    t.sync();
    assert_eq!(t.view().tree.documents.len(), 2);
}

#[test]
fn a_load_with_a_known_file_skips_it() {
    let dir = dir();
    let load = three_files(dir.path());
    let mut t = Chat::new(dir.path(), Setup::default());
    t.load("a.txt");
    assert!(t.note(load).starts_with("a.txt is in this conversation already"));
    t.note_with("Read 2 files: ");
    t.sync();
    assert_eq!(
        t.view().tree.documents.iter().map(|d| d.name.as_str()).collect::<Vec<_>>(),
        ["a.txt", "b.txt", "c.txt"]
    );
}

#[test]
fn looking_and_quitting_work_while_a_question_waits() {
    let dir = dir();
    let load = three_files(dir.path());
    let mut t = Chat::new(
        dir.path(),
        Setup {
            load: LoadConfig { confirm_tokens: 10, confirm_files: 20, ..LoadConfig::default() },
            ..Setup::default()
        },
    );
    t.send(load);
    plan(&mut t);
    t.send(Request::Docs);
    t.wait("the documents", |n| matches!(n, Notice::Documents { .. }).then_some(()));
    // An answer to an outdated question is ignored.
    t.send(Request::Choose { question: 999, key: '\n' });
    t.quit();
}

with_both_tokenizers!(
    what_does_not_fit_is_refused_before_anything_is_read,
    what_would_fit_of_a_file_is_a_command_that_loads_it,
    the_time_of_a_load_is_known_from_an_earlier_run_with_this_model,
    files_left_out_of_a_plan_are_not_read,
    a_load_that_does_not_fit_offers_to_leave_files_out,
);
