//! Undo, fork, resume and the library, against a conversation without any of them: the same answers and, where no
//! generated token was re-read, the same state, bit for bit. With the scripted engine, where answers name their state, and
//! with the built-in model on the CPU.

use crate::support;

mod park;

use std::collections::BTreeMap;
use std::path::Path;

use sala_chat::backend::{ROW_ARRAYS, layer_tensor};
use sala_chat::core::transcript::MessageId;
use sala_chat::engine;
use sala_chat::engine::protocol::{DeviceChoice, EngineOptions, RowSource};
use sala_chat::runtime::protocol::{BranchTarget, GotoTarget, Level, Notice, Request, Sibling};
use sala_chat::runtime::{EngineChannels, Opening, Settings};
use sala_chat::store::{SegmentId, SessionFilter, Store};
use support::{Chat, How, Setup, store, text_model, with_both_tokenizers};

const QUESTIONS: [&str; 3] = ["My name is Marta and I live in Oslo.", "What is 17 + 25?", "What is my name?"];

/// Which engine a test runs on.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Engine {
    Scripted,
    Demo,
}

fn greedy() -> Settings {
    let mut settings = Settings { max_tokens: 32, ..Settings::default() };
    settings.set("temperature", "0").unwrap();
    settings
}

fn open(engine: Engine, dir: &Path, opening: Opening) -> Chat {
    match engine {
        Engine::Scripted => Chat::new(dir, Setup { opening, settings: greedy(), ..Setup::default() }),
        Engine::Demo => {
            let options = EngineOptions { device: DeviceChoice::Cpu, ..EngineOptions::default() };
            let engine = engine::spawn(options).unwrap();
            let channels = EngineChannels { commands: engine.commands, events: engine.events };
            let text = text_model(None);
            Chat::with_engine(dir, channels, How { text, opening, settings: greedy(), ..How::default() })
        }
    }
}

/// Name of the path, and the bits of each tensor at its end.
type State = (String, BTreeMap<String, Vec<u8>>);

/// The bits of the state at the head of a session.
fn state_of(store: &Store, name: &str) -> State {
    let record = store.session_named(name).unwrap();
    let fingerprint = record.state_of.clone().unwrap();
    let (_, tip) = store.tip_segment(record.head.unwrap(), &fingerprint).unwrap().unwrap();
    let end = store.read_end(&tip).unwrap();
    (
        tip.hex(),
        end.tensors
            .iter()
            // How well drafts did is a statistic of the way taken, not model state.
            .filter(|t| !t.name.starts_with("draft."))
            .map(|t| (t.name.clone(), t.data.to_vec()))
            .collect(),
    )
}

fn last_state(dir: &Path) -> State {
    let store = store(&dir.join("data"));
    let name = store.sessions(SessionFilter::Live, 1).unwrap().pop().unwrap().name;
    state_of(&store, &name)
}

/// What a detour must lead to.
struct Straight {
    answers: Vec<String>,
    state: State,
}

fn straight(engine: Engine) -> Straight {
    let dir = tempfile::tempdir().unwrap();
    let mut t = open(engine, dir.path(), Opening::New);
    let answers = QUESTIONS.iter().map(|q| t.ask(q).text).collect();
    t.quit();
    Straight { answers, state: last_state(dir.path()) }
}

/// A way through a conversation that ends where the straight path ends.
type Detour = fn(&mut Chat, &Path) -> String;

/// All detours.
const DETOURS: [(&str, Detour); 13] = [
    ("undo", |t, _| {
        t.ask(QUESTIONS[0]);
        t.ask(QUESTIONS[1]);
        t.ask("Tell me a joke.");
        let note = t.note(Request::Undo(2));
        assert!(note.starts_with("Went back 2 exchanges to #2: ") && note.contains(", 0 read again"), "{note}");
        t.ask(QUESTIONS[1]);
        t.ask(QUESTIONS[2]).text
    }),
    ("undo and redo", |t, _| {
        t.ask(QUESTIONS[0]);
        t.ask(QUESTIONS[1]);
        t.note(Request::Undo(2));
        let note = t.note(Request::Redo(2));
        assert!(note.starts_with("Went forward to #4: ") && note.contains(", 0 read again"), "{note}");
        t.ask(QUESTIONS[2]).text
    }),
    ("undo and redo of a part", |t, _| {
        t.ask(QUESTIONS[0]);
        t.ask(QUESTIONS[1]);
        t.note(Request::Undo(1));
        let note = t.note(Request::Redo(1));
        assert!(note.starts_with("Went forward to #4: ") && note.contains(", 0 read again"), "{note}");
        t.ask(QUESTIONS[2]).text
    }),
    ("back to a mark and forward", |t, _| {
        t.ask(QUESTIONS[0]);
        t.note(Request::Mark("first".into()));
        t.ask(QUESTIONS[1]);
        t.note(Request::Mark("second".into()));
        t.note(Request::Goto(GotoTarget::Mark("first".into())));
        t.note(Request::Goto(GotoTarget::Mark("second".into())));
        t.ask(QUESTIONS[2]).text
    }),
    ("retry", |t, _| {
        t.ask(QUESTIONS[0]);
        t.ask(QUESTIONS[1]);
        t.send(Request::Regen { at: None, count: 1, temperature: Some(1.5), seed: Some(11) });
        t.finished();
        t.send(Request::Regen { at: None, count: 1, temperature: None, seed: None });
        t.finished();
        t.sync();
        assert_eq!(t.view().tree.branch, (3, 3));
        t.ask(QUESTIONS[2]).text
    }),
    ("several", |t, _| {
        t.ask(QUESTIONS[0]);
        t.ask(QUESTIONS[1]);
        t.send(Request::Regen { at: None, count: 3, temperature: None, seed: None });
        let question = t.wait("which answer goes on", |n| match n {
            Notice::Question { id, .. } => Some(*id),
            _ => None,
        });
        t.send(Request::Choose { question, key: '2' });
        t.sync();
        assert_eq!(t.view().tree.branch, (3, 4));
        t.ask(QUESTIONS[2]).text
    }),
    ("edit", |t, _| {
        t.ask(QUESTIONS[0]);
        t.ask("What is 17 + 26?");
        t.send(Request::EditOpen(Some(3)));
        let id = t.wait("the text to edit", |n| match n {
            Notice::Input { editing: Some(id), .. } => Some(*id),
            _ => None,
        });
        t.send(Request::EditDone { message: id, text: QUESTIONS[1].into() });
        t.finished();
        t.sync();
        assert_eq!(t.view().tree.branch, (2, 2));
        t.ask(QUESTIONS[2]).text
    }),
    ("fork", |t, _| {
        t.ask(QUESTIONS[0]);
        t.ask(QUESTIONS[1]);
        t.ask("Count to 9");
        let note = t.note(Request::Fork { at: Some(4), name: Some("other".into()) });
        assert!(note.starts_with("\"other\" forked at #4: ") && note.contains(", 0 read again"), "{note}");
        assert_eq!((t.name().as_str(), t.view().messages.len()), ("other", 4));
        t.ask(QUESTIONS[2]).text
    }),
    ("aside", |t, _| {
        t.ask(QUESTIONS[0]);
        t.ask(QUESTIONS[1]);
        t.send(Request::Aside("Tell me a joke.".into()));
        let text = t.wait("the aside", |n| match n {
            Notice::Aside { text, done: Some(_), .. } => Some(text.clone()),
            _ => None,
        });
        assert!(!text.is_empty());
        let answer = t.ask(QUESTIONS[2]).text;
        let note = t.note(Request::Mark("end".into()));
        assert!(note.starts_with("#6 is now called"), "an aside leaves no message: {note}");
        answer
    }),
    ("aside while an answer is written", |t, _| {
        t.ask(QUESTIONS[0]);
        t.send(Request::Ask(QUESTIONS[1].into()));
        t.send(Request::Aside("Tell me a joke.".into()));
        let text = t.wait("the aside", |n| match n {
            Notice::Aside { text, done: Some(_), .. } => Some(text.clone()),
            _ => None,
        });
        assert!(!text.is_empty());
        t.sync();
        t.ask(QUESTIONS[2]).text
    }),
    ("left while an answer is written", |t, _| {
        t.ask(QUESTIONS[0]);
        t.send(Request::Ask(QUESTIONS[1].into()));
        t.send(Request::New(None));
        t.wait("another session", |n| matches!(n, Notice::Session(view) if view.serial == 2).then_some(()));
        t.ask("Hello!");
        t.send(Request::Switch(1));
        t.wait("the session again", |n| matches!(n, Notice::Session(view) if view.serial == 1).then_some(()));
        t.sync();
        t.ask(QUESTIONS[2]).text
    }),
    ("resume", |t, dir| {
        t.ask(QUESTIONS[0]);
        t.ask(QUESTIONS[1]);
        let name = t.name();
        t.send(Request::New(None));
        t.ask("Hello!");
        t.on_disk();
        t.send(Request::Resume(name));
        let note = t.note_with("Resumed");
        let counts: Vec<&str> = note.split_whitespace().collect();
        assert_eq!(counts[1], counts[3], "{note}");
        assert!(dir.join("data").is_dir());
        t.ask(QUESTIONS[2]).text
    }),
    ("branches and marks", |t, _| {
        t.ask(QUESTIONS[0]);
        t.ask(QUESTIONS[1]);
        t.note(Request::Mark("here".into()));
        t.note(Request::Undo(1));
        t.ask("Spell garden");
        let note = t.note(Request::Branch(BranchTarget::Sibling(Sibling::Prev)));
        assert!(note.starts_with("Branch 1/2, at #4: ") && note.contains(", 0 read again"), "{note}");
        t.note(Request::Branch(BranchTarget::Sibling(Sibling::Next)));
        let note = t.note(Request::Goto(GotoTarget::Mark("here".into())));
        assert!(note.starts_with("At \"here\", #4: ") && note.contains(", 0 read again"), "{note}");
        t.ask(QUESTIONS[2]).text
    }),
];

fn matrix(engine: Engine) {
    let straight = straight(engine);
    for (name, detour) in DETOURS {
        let dir = tempfile::tempdir().unwrap();
        let mut t = open(engine, dir.path(), Opening::New);
        let answer = detour(&mut t, dir.path());
        assert_eq!(answer, straight.answers[2], "{name}");
        t.quit();
        let state = last_state(dir.path());
        assert_eq!(state.0, straight.state.0, "{name}: another path");
        for (tensor, bits) in &straight.state.1 {
            assert!(state.1.get(tensor) == Some(bits), "{name}: other bits in {tensor}");
        }
        assert_eq!(state.1.len(), straight.state.1.len(), "{name}");
    }
}

fn every_detour_ends_in_the_straight_state_with_the_scripted_engine() {
    matrix(Engine::Scripted);
}

fn every_detour_ends_in_the_straight_state_with_the_built_in_model() {
    matrix(Engine::Demo);
}

const NOTES: &str = "Minutes of the garden club, 14 March\n\nThe treasurer of the garden club is Olga Thorne. The next meeting is \
    on 2 May in the old mill.\nThe password of the tool shed is TR-5512-K. Petra Lang left the key with Samuel Hill.\n";

#[test]
fn a_document_from_the_library_answers_as_if_it_had_been_read() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("minutes.txt"), NOTES).unwrap();
    let question = "What is the password of the tool shed?";
    let mut t = open(Engine::Demo, dir.path(), Opening::New);
    assert!(t.load("minutes.txt").starts_with("Read minutes.txt: "));
    let read = t.ask(question);
    assert!(read.text.contains("TR-5512-K"), "{}", read.text);
    t.on_disk();
    let first = state_of(&store(&dir.path().join("data")), &t.name());
    t.send(Request::New(None));
    let note = t.load("minutes.txt");
    assert!(note.contains("from library"), "{note}");
    let again = t.ask(question);
    assert_eq!(again.text, read.text);
    assert!(again.meta.prefilled_tokens < 30, "{:?}", again.meta);
    assert_eq!(again.meta.reused_tokens, read.meta.reused_tokens);
    t.on_disk();
    assert!(state_of(&store(&dir.path().join("data")), &t.name()) == first);
    t.quit();
}

/// The answers of `/when`, the first with the line up to which it is given, the others with that from which on.
fn when(t: &mut Chat, question: &str) -> Vec<String> {
    t.send(Request::When(question.into()));
    let page = t.wait("the page", |n| match n {
        Notice::Page { text, .. } => Some(text.clone()),
        Notice::Note(Level::Error | Level::Warn, e) => panic!("{e}"),
        _ => None,
    });
    page.lines()
        .filter(|line| ["up to line", "from line"].iter().any(|at| line.contains(at)))
        .map(str::to_owned)
        .collect()
}

/// Damages the rows of all segments but the first of a path.
fn damage_rows(data: &Path) -> usize {
    let store = store(data);
    let mut damaged = 0;
    for entry in std::fs::read_dir(data.join("segments")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().strip_suffix(".rows").and_then(SegmentId::from_hex);
        let Some(segment) = name.and_then(|id| store.segment(&id).unwrap()) else { continue };
        if segment.content.start > 0 {
            let mut bytes = std::fs::read(&path).unwrap();
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            let rows = store.open_path(&segment.id, 0).unwrap().rows.pop().unwrap();
            let names = (0..8).flat_map(|layer| ROW_ARRAYS.map(|name| layer_tensor(name, layer)));
            assert!(names.filter(|name| rows.array(name).is_some()).any(|name| rows.load(&name).is_err()));
            damaged += 1;
        }
    }
    damaged
}

#[test]
fn when_has_the_rows_of_all_places_from_the_conversation_itself() {
    let story = |n: usize| match n {
        150 => "Then Petra Lang wrote it down: the password of the tool shed is TR-5512-K.\n".to_owned(),
        _ => format!("On day {n} of the voyage the ship was {} miles from the harbour.\n", n * 37 % 101),
    };
    let (question, again) = ("What is the password of the tool shed?", "Who wrote it down?");
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("story.txt"), (0..300).map(story).collect::<String>()).unwrap();
    let mut t = open(Engine::Demo, dir.path(), Opening::New);
    t.load("story.txt");
    t.on_disk();
    let lines = when(&mut t, question);
    assert!(lines.len() > 1 && !lines.iter().any(|line| line.contains('(')), "{lines:?}");
    // Only end images are read from disk: unread rows may be damaged.
    let data = dir.path().join("data");
    assert!(damage_rows(&data) >= 3);
    assert_eq!(when(&mut t, question), lines);
    // After a stop the conversation continues as if the question had never been sent.
    t.send(Request::When(question.into()));
    t.send(Request::Stop);
    t.sync();
    let answer = t.ask(again);
    t.quit();
    let other = tempfile::tempdir().unwrap();
    std::fs::copy(dir.path().join("story.txt"), other.path().join("story.txt")).unwrap();
    let mut t = open(Engine::Demo, other.path(), Opening::New);
    t.load("story.txt");
    assert_eq!(t.ask(again).text, answer.text);
    t.quit();
}

fn thinned_state_is_replayed_with_a_count_and_the_same_text() {
    let dir = tempfile::tempdir().unwrap();
    let mut t = open(Engine::Demo, dir.path(), Opening::New);
    let answers: Vec<String> = QUESTIONS.iter().map(|q| t.ask(q).text).collect();
    let name = t.name();
    t.quit();
    {
        let store = store(&dir.path().join("data"));
        store.drop_all_state(&[]).unwrap();
    }
    let mut t = open(Engine::Demo, dir.path(), Opening::Resume(name));
    let note = t.note_with("Resumed");
    assert!(note.starts_with("Resumed 0 of "), "{note}");
    t.send(Request::Undo(1));
    let note = t.note_with("Went back");
    assert!(note.contains(" 0 read again"), "reading again made restart points: {note}");
    assert_eq!(t.ask(QUESTIONS[2]).text, answers[2]);
    t.quit();
}

fn a_fork_shares_and_both_sides_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut t = open(Engine::Scripted, dir.path(), Opening::New);
    t.ask(QUESTIONS[0]);
    t.ask(QUESTIONS[1]);
    let parent = t.name();
    t.note(Request::Fork { at: Some(2), name: None });
    assert_eq!(t.name(), format!("{parent}-fork"));
    t.ask("Something else");
    t.send(Request::Resume(parent.clone()));
    t.note_with("Resumed");
    assert_eq!(t.view().messages.len(), 4, "the parent has not changed");
    let note = t.note(Request::Branch(BranchTarget::Name(format!("{parent}-fork"))));
    assert!(note.contains("0 read again"), "{note}");
    t.quit();
}

fn going_to_a_message_that_is_not_here_says_where_to_look() {
    let dir = tempfile::tempdir().unwrap();
    let mut t = open(Engine::Scripted, dir.path(), Opening::New);
    t.ask("One?");
    let note = t.note(Request::Goto(GotoTarget::Message(MessageId(1 << 40))));
    assert!(note.contains("another session"), "{note}");
    let note = t.note(Request::Goto(GotoTarget::Mark("nowhere".into())));
    assert_eq!(note, "No mark \"nowhere\". /mark NAME sets one. /timeline goes to any message.");
    t.note(Request::Mark("somewhere".into()));
    let note = t.note(Request::Goto(GotoTarget::Mark("somwhere".into())));
    assert_eq!(note, "No mark \"somwhere\". Did you mean somewhere? Marks: somewhere. /timeline goes to any message.");
    let note = t.note(Request::Undo(5));
    assert!(note.starts_with("Went back 1 exchange to the beginning: 0 tokens shared, 0 read again"), "{note}");
    assert_eq!(t.note(Request::Undo(1)), "Nothing to undo: the conversation is empty.");
    t.quit();
}

#[test]
fn branches_and_turns_are_reported_as_they_grow() {
    let dir = tempfile::tempdir().unwrap();
    let mut t = open(Engine::Scripted, dir.path(), Opening::New);
    let tree = |t: &mut Chat, wanted: &str| {
        t.wait("the tree", |n| match n {
            Notice::Tree(tree) if tree.timeline.iter().any(|r| r.title == wanted) => Some(tree.clone()),
            _ => None,
        })
    };
    t.ask("One?");
    t.send(Request::Ask("Two?".into()));
    let grown = tree(&mut t, "Two?");
    assert_eq!(grown.branch, (1, 1));
    assert_eq!(grown.timeline.len(), 2);
    t.finished();
    t.idle();
    t.note(Request::Undo(1));
    t.send(Request::Ask("Another two?".into()));
    let grown = tree(&mut t, "Another two?");
    assert_eq!(grown.branch, (2, 2), "the header says so while the answer is written");
    assert!(grown.timeline.iter().any(|r| r.title == "Two?" && !r.current));
}

// Replay reads generated tokens as prompt, so their last bits may differ: the text is the same only where the model is
// confident, as the built-in one is with its own tokenizer.
#[test]
fn thinned_state_of_a_confident_model_replays_to_the_same_text() {
    thinned_state_is_replayed_with_a_count_and_the_same_text();
}

with_both_tokenizers!(
    every_detour_ends_in_the_straight_state_with_the_scripted_engine,
    every_detour_ends_in_the_straight_state_with_the_built_in_model,
    a_fork_shares_and_both_sides_go_on,
    going_to_a_message_that_is_not_here_says_where_to_look,
);
