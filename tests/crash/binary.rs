//! kill -9 of the real program at random moments while it starts, reads, answers and saves; then it is opened again.
//!
//! After every kill: the messages that the program had shown as saved exist, word for word; kept state passes its checksums and
//! the rest is declared missing; no file without a row, no lock that blocks. From time to time the program itself lists, shows
//! and continues, and its greedy answer from kept state equals the one after reading everything again.
//!
//! The default is 28 kills, `SALA_PROOF=full` makes it 200; about one round in four ends by itself before it is killed.
//! `SALA_SEED=N` repeats a run's moments.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sala_chat::core::SplitMix64;
use sala_chat::core::transcript::{Message, Role};
use sala_chat::store::{Access, Limits, RealDisk, SegmentId, SessionFilter, SessionRecord, Store, StoreError, Stored};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_sala-chat");
const QUESTIONS: [&str; 4] =
    ["What is sala-chat?", "What was counted last?", "Which keys can I press here?", "Where was the first one?"];
/// Rounds in one session: long enough for a tree of segments, short enough to read all of it again for comparison.
const SESSION_ROUNDS: u64 = 9;
/// The program lists and shows what it has after this many rounds.
const LOOK_EVERY: u64 = 6;

/// When the program is killed: after a while from a moment that it shows.
#[derive(Clone, Copy, Debug)]
enum Moment {
    Never,
    AfterStart(Duration),
    AfterFirstToken(Duration),
}

/// What the program had shown when it ended.
#[derive(Debug, Default)]
struct Shown {
    /// A document was read.
    loaded: bool,
    /// The answer had begun: the question is on disk by then.
    answering: bool,
    /// Ended by itself, with success: the whole answer is on disk, and its state.
    answer: Option<String>,
    /// From the start to the first token, and from there to the end.
    spans: (Duration, Duration),
}

/// What must be in the session from now on, in this order.
#[derive(Debug, Default)]
struct Acknowledged(Vec<(Role, String)>);

struct Home(tempfile::TempDir);

impl Home {
    fn data(&self) -> std::path::PathBuf {
        self.0.path().join("data")
    }

    fn command(&self, data: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .args(["--device", "cpu", "--temp", "0", "--max-tokens", "40"])
            .args(arguments)
            .env_clear()
            .env("HOME", self.0.path())
            .env("PATH", "/usr/bin:/bin")
            .env("LANG", "C.UTF-8")
            .env("SALA_CHAT_DATA_DIR", data)
            .current_dir(self.0.path())
            .stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let output = self.command(&self.data(), arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        output
    }

    /// One question from a script, killed at `moment`.
    fn ask(&self, arguments: &[&str], moment: Moment) -> Shown {
        let mut all = vec!["--jsonl"];
        all.extend(arguments);
        let begun = Instant::now();
        let mut child = self.command(&self.data(), &all).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (events, seen) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            // The kill may cut the last line.
            for line in lines.map_while(Result::ok) {
                if let Ok(event) = serde_json::from_str::<Value>(&line) {
                    let _ = events.send((Instant::now(), event));
                }
            }
        });
        let mut all_events = Vec::new();
        match moment {
            Moment::Never => {}
            Moment::AfterStart(after) => kill_at(&mut child, begun + after),
            Moment::AfterFirstToken(after) => {
                for (at, event) in &seen {
                    let first = event["event"] == "token";
                    all_events.push((at, event));
                    if first {
                        kill_at(&mut child, at + after);
                        break;
                    }
                }
            }
        }
        let status = child.wait().unwrap();
        reader.join().unwrap();
        all_events.extend(seen.try_iter());
        let ended = begun.elapsed();

        let mut shown = Shown::default();
        let mut text = String::new();
        for (at, event) in &all_events {
            match event["event"].as_str() {
                Some("load") => shown.loaded = true,
                Some("token") => {
                    if !shown.answering {
                        let first = at.duration_since(begun);
                        shown.spans = (first, ended.saturating_sub(first));
                    }
                    shown.answering = true;
                    text.push_str(event["text"].as_str().unwrap());
                }
                _ => {}
            }
        }
        if status.success() {
            shown.answer = Some(text);
        } else {
            let mut words = String::new();
            let mut err = child.stderr.take().unwrap();
            std::io::Read::read_to_string(&mut err, &mut words).unwrap();
            // Nothing but the kill may end it.
            assert_eq!(status.code(), None, "{words}");
        }
        shown
    }

    /// Opens what is there as the next run would.
    fn store(&self) -> Store {
        let limits = Limits { min_free_bytes: 0, ..Limits::default() };
        let store = Store::open(&self.data(), Arc::new(RealDisk), limits).unwrap();
        assert_eq!(store.access, Access::Writable);
        store
    }
}

fn kill_at(child: &mut Child, at: Instant) {
    std::thread::sleep(at.saturating_duration_since(Instant::now()));
    // It may have ended by itself; that is a round as well.
    let _ = child.kill();
}

/// A text with unique lines.
fn document(n: u64) -> String {
    (0..60).map(|i| format!("In ledger {n}, line {i}: {} lamps.\n", (i * 37 + n) % 91)).collect()
}

/// What was acknowledged is in the session, in order; an answer that was cut may be longer than what is there.
fn check_texts(path: &[Message], acknowledged: &Acknowledged) {
    let mut left = path.iter();
    for (role, text) in &acknowledged.0 {
        assert!(
            left.any(|m| m.role == *role && m.text == *text),
            "{role:?} {text:?} is lost; there are {:#?}",
            path.iter().map(|m| (m.role, &m.text)).collect::<Vec<_>>()
        );
    }
}

/// Every file has a row that names it, and every kept state can be read and passes its checksums.
fn check_state(store: &Store, session: &SessionRecord) {
    // Those without a row are kept for some days otherwise.
    store.remove_orphans();
    for entry in std::fs::read_dir(store.root().join("segments")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let (stem, extension) = name.split_once('.').unwrap();
        let id = SegmentId::from_hex(stem).unwrap_or_else(|| panic!("{name} was left behind"));
        let segment = store.segment(&id).unwrap().expect("a row for every file");
        match extension {
            "rows" => assert!(segment.rows.is_kept(), "{name}"),
            "end" => assert!(segment.end.is_kept(), "{name}"),
            other => panic!("unfinished file left behind: {other}"),
        }
    }
    let Some((head, of)) = session.head.zip(session.state_of.as_deref()) else {
        return;
    };
    let Some((_, tip)) = store.tip_segment(head, of).unwrap() else {
        return;
    };
    let planned = store.plan_restore(&tip).unwrap();
    let restored = store.open_path(&tip, 0).unwrap();
    for segment in restored.plan.path.iter().take(restored.plan.usable) {
        store.read_rows(&segment.id).unwrap();
    }
    // Reading found nothing that looking at the rows had not.
    assert_eq!(restored.plan.usable, planned.usable, "{:?}", restored.plan.lost);
    for segment in &restored.plan.path {
        for stored in [&segment.rows, &segment.end] {
            if let Stored::Missing { why } = stored {
                assert!(why == "not written yet" || why == "thinned", "{why}");
            }
        }
    }
}

/// A process that is gone holds nothing.
fn check_locks(store: &Store, session: &SessionRecord) {
    match store.lock_session(session.id, &session.name) {
        Ok(lock) => drop(lock),
        Err(e @ StoreError::InUse { .. }) => panic!("a lock was left behind: {e}"),
        Err(e) => panic!("{e}"),
    }
}

/// The program's own view: listed, shown, whole.
fn look(home: &Home, session: &SessionRecord, acknowledged: &Acknowledged) {
    let listed: Value = serde_json::from_slice(&home.run(&["ls", "--json"]).stdout).unwrap();
    assert!(listed.as_array().unwrap().iter().any(|s| s["name"] == session.name.as_str()), "{listed}");
    let shown = home.run(&["show", &session.name, "--json"]).stdout;
    let shown: Value = serde_json::from_slice(&shown).unwrap();
    let messages: Vec<Message> = serde_json::from_value(shown["messages"].clone()).unwrap();
    check_texts(&messages, acknowledged);
}

/// The greedy answer from what is kept equals the answer when all of it is read again.
fn compare_with_straight_path(home: &Home, session: &SessionRecord) {
    let question = ["-r", &session.name, "-p", "And what else?", "--json"];
    let copy = home.0.path().join("copy");
    let _ = std::fs::remove_dir_all(&copy);
    for folder in ["", "segments", "locks"] {
        std::fs::create_dir_all(copy.join(folder)).unwrap();
    }
    for file in ["sala.db", "sala.db-wal"] {
        let from = home.data().join(file);
        if from.exists() {
            std::fs::copy(from, copy.join(file)).unwrap();
        }
    }
    let answer = |data: &Path| -> Value {
        let output = home.command(data, &question).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let (kept, again) = (answer(&home.data()), answer(&copy));
    assert_eq!(kept["text"], again["text"]);
    assert_eq!(again["usage"]["reused_tokens"], 0);
    // An answer stays the tokens it was drawn as; its text, read again, may be cut into a few fewer (`."` into one). A turn is more.
    let past = [&kept, &again].map(|a| a["usage"]["prompt_tokens"].as_u64().unwrap());
    assert!(past[0].abs_diff(past[1]) < SESSION_ROUNDS, "the same past: {past:?}");
}

#[test]
fn kill_nine_of_the_program_loses_nothing_acknowledged() {
    let full = std::env::var("SALA_PROOF").is_ok_and(|v| v == "full");
    let kills = if full { 200 } else { 28 };
    let seed = std::env::var("SALA_SEED").map_or(5, |v| v.parse().unwrap());
    let mut random = SplitMix64::new(seed);
    let home = Home(tempfile::tempdir().unwrap());
    // How long things take here: nothing is killed in the first round.
    home.run(&["-p", QUESTIONS[0], "--no-save", "--json"]);
    let mut spans = (Duration::ZERO, Duration::ZERO);
    let mut acknowledged = Acknowledged::default();
    let (mut killed, mut reading, mut answering, mut whole) = (0, 0, 0, 0);
    let mut open: Option<SessionRecord> = None;

    for round in 0.. {
        if killed == kills {
            break;
        }
        assert!(round < 4 * u64::from(kills), "too few rounds are killed");
        let number = round % SESSION_ROUNDS;
        if number == 0 {
            if let Some(session) = open.take() {
                compare_with_straight_path(&home, &session);
            }
            acknowledged = Acknowledged::default();
            std::fs::write(home.0.path().join("ledger.txt"), document(round)).unwrap();
        }
        let share = random.share();
        let moment = match (round, random.bits() % 4) {
            (0, _) => Moment::Never,
            (_, 0) => Moment::AfterStart(spans.0.mul_f64(share)),
            // A little beyond the end as well: some rounds end by themselves.
            (_, _) => Moment::AfterFirstToken(spans.1.mul_f64(1.1 * share)),
        };
        let question = format!("{} ({round})", QUESTIONS[random.bits() as usize % 4]);
        let mut arguments = vec!["-p", &question];
        match &open {
            Some(session) => arguments.extend(["-r", &session.name]),
            None => arguments.extend(["-f", "ledger.txt"]),
        }
        let shown = home.ask(&arguments, moment);
        let here = format!("seed {seed}, round {round}, {moment:?}, {shown:?}");
        assert!(round > 0 || shown.answer.is_some(), "{here}");
        // What else runs on the machine changes from minute to minute.
        if shown.answering {
            spans.0 = shown.spans.0;
        }
        if shown.answer.is_some() {
            spans.1 = shown.spans.1;
        }
        println!("{here}");
        match (&shown.answer, shown.answering) {
            (Some(_), _) => whole += 1,
            (None, true) => answering += 1,
            (None, false) => reading += 1,
        }
        killed += u32::from(shown.answer.is_none());
        if open.is_none() && shown.loaded {
            acknowledged.0.push((Role::Document, document(round / SESSION_ROUNDS * SESSION_ROUNDS)));
        }
        if shown.answering {
            acknowledged.0.push((Role::User, question.clone()));
        }
        if let Some(answer) = &shown.answer {
            acknowledged.0.push((Role::Assistant, answer.clone()));
        }

        let checked = std::panic::catch_unwind(|| {
            let store = home.store();
            let known = match &open {
                Some(session) => Some(store.session(session.id).unwrap()),
                // Made in this round, if at all: an older one has nothing of it.
                None if shown.loaded || shown.answering => store.last_session().unwrap(),
                None => None,
            };
            let Some(session) = known else {
                assert!(acknowledged.0.is_empty());
                return None;
            };
            let path = session.head.map(|head| store.path(head).unwrap());
            check_texts(&path.unwrap_or_default(), &acknowledged);
            check_state(&store, &session);
            check_locks(&store, &session);
            if shown.answer.is_some() {
                let (message, tip) = session
                    .head
                    .zip(session.state_of.as_deref())
                    .and_then(|(head, of)| store.tip_segment(head, of).unwrap())
                    .expect("an answer that was waited for has state");
                assert_eq!(Some(message), session.head);
                let plan = store.plan_restore(&tip).unwrap();
                assert_eq!(plan.replay_tokens(), 0, "{:?}", plan.lost);
            }
            drop(store);
            if round % LOOK_EVERY == 0 {
                look(&home, &session, &acknowledged);
            }
            Some(session)
        });
        match checked {
            Ok(session) => open = session,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    // One `prune` removes unreachable data (pieces of documents with a killed read), and nothing else.
    let count = |store: &Store| store.sessions(SessionFilter::Live, 1000).unwrap().len();
    let before = count(&home.store());
    home.run(&["prune"]);
    let store = home.store();
    assert_eq!(count(&store), before);
    assert_eq!(store.collect().unwrap().segments, 0);
    println!(
        "seed {seed}: {killed} kills ({reading} before the first token, {answering} while answering or saving), \
         {whole} runs to the end, {} sessions, no message lost",
        before
    );
}

/// Sessions and their messages.
fn everything(store: &Store) -> Vec<(String, Vec<String>)> {
    let mut all: Vec<(String, Vec<String>)> = store
        .sessions(SessionFilter::Live, 10_000)
        .unwrap()
        .into_iter()
        .map(|s| {
            assert!(!s.damaged, "{}", s.name);
            let path = s.head.map(|head| store.path(head).unwrap()).unwrap_or_default();
            (s.name, path.into_iter().map(|m| m.text).collect())
        })
        .collect();
    all.sort();
    all
}

#[test]
fn kill_nine_during_imports_exports_and_prunes_loses_nothing() {
    let full = std::env::var("SALA_PROOF").is_ok_and(|v| v == "full");
    let seed = std::env::var("SALA_SEED").map_or(7, |v| v.parse().unwrap());
    let mut random = SplitMix64::new(seed);
    let home = Home(tempfile::tempdir().unwrap());
    std::fs::write(home.0.path().join("ledger.txt"), document(1)).unwrap();
    std::fs::write(home.0.path().join("other.txt"), document(2)).unwrap();
    home.run(&["-f", "ledger.txt", "-p", QUESTIONS[1]]);
    home.run(&["export", "last", "talk.json"]);
    home.run(&["export", "last", "talk.sala", "--with-state"]);
    let sessions = everything(&home.store());
    let (name, texts) = sessions[0].clone();
    home.run(&["export", "last", "out.md", "--force"]);
    let exported = std::fs::read(home.0.path().join("out.md")).unwrap();
    let commands: [&[&str]; 6] = [
        &["import", "talk.sala"],
        &["import", "talk.json"],
        &["export", &name, "out.md", "--force"],
        &["export", &name, "out.sala", "--with-state", "--force"],
        &["prune"],
        &["library", "add", "other.txt"],
    ];
    let spans: Vec<Duration> = commands
        .iter()
        .map(|arguments| {
            let begun = Instant::now();
            // How it ends is another test's business; here it is only how long it takes.
            let _ = home.command(&home.data(), arguments).output().unwrap();
            begun.elapsed()
        })
        .collect();
    let (mut killed, mut ended) = (0, 0);
    for round in 0..if full { 120 } else { 24 } {
        let which = round % commands.len();
        let moment = spans[which].mul_f64(1.05 * random.share());
        let begun = Instant::now();
        let mut command = home.command(&home.data(), commands[which]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        kill_at(&mut child, begun + moment);
        match child.wait().unwrap().code() {
            None => killed += 1,
            Some(_) => ended += 1,
        }
        let here = format!("seed {seed}, round {round}, {:?} after {moment:?}", commands[which]);
        let store = home.store();
        let now = everything(&store);
        assert!(now.contains(&(name.clone(), texts.clone())), "{here}: {now:?}");
        // What came in is whole or is not there.
        for (other, found) in &now {
            let fits = found == &texts || other.contains("other") || other.contains("ledger");
            assert!(fits, "{here}: {other} has {found:?}");
        }
        let checked = store.check().unwrap();
        assert_eq!(checked.damaged, Vec::<String>::new(), "{here}");
        assert_eq!(std::fs::read(home.0.path().join("out.md")).unwrap(), exported, "{here}");
        let names = std::fs::read_dir(home.0.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        assert!(!names.into_iter().any(|n| n.ends_with(".part")), "{here}: an unfinished file was left");
        for file in ["talk.json", "talk.sala", "ledger.txt", "other.txt"] {
            assert!(home.0.path().join(file).exists(), "{here}");
        }
        // Imported copies go again, so that the rounds stay alike.
        for session in store.sessions(SessionFilter::Live, 10_000).unwrap().into_iter().filter(|s| s.name != name) {
            store.delete(session.id).unwrap();
        }
    }
    println!("seed {seed}: {killed} kills, {ended} ended by themselves, no message lost");
    assert!(killed > 0);
}
