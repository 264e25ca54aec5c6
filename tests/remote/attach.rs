//! Terminals that use the model of a running server: desks and a scripted engine with a socket between them, and the program
//! itself with the built-in model.

use crate::command;
mod lost;
mod program;
use crate::support;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use sala_chat::client::attach::{self, Host, Link, Loads, Multiplexer, Place, Share, Way};
use sala_chat::core::transcript::{Finish, Message};
use sala_chat::engine::protocol::{Command, Engine, EngineOptions, RowSource, RowsFault, RowsPlace, Token};
use sala_chat::runtime::protocol::{Level, Notice, Request};
use sala_chat::runtime::{EngineChannels, Opening};
use sala_chat::store::{RealDisk, StoredRows};
use sala_chat::text::TextModel;
use support::fake_engine::{self, Fake, Options};
use support::{Chat, How, Setup, digest_answers, text_model};

/// Nothing a test waits for takes longer.
const PATIENCE: Duration = Duration::from_secs(180);

fn rows(place: &RowsPlace) -> Result<Arc<dyn RowSource>, RowsFault> {
    StoredRows::open(place, Arc::new(RealDisk)).map(|rows| Arc::new(rows) as Arc<dyn RowSource>)
}

fn loads(model: &str) -> Loads {
    Loads::from(&EngineOptions { model: model.into(), ..EngineOptions::default() })
}

fn fake(text: &TextModel, fingerprint: &str, gate: Option<Receiver<()>>) -> Fake {
    fake_engine::spawn(Options {
        script: digest_answers(text.clone()),
        context_limit: 100_000,
        fingerprint: fingerprint.into(),
        gate,
        late: false,
        never: false,
        sequences: 16,
        room: 16,
        name: "fake",
        seeds: None,
        side_by_side: None,
    })
}

/// A server of a folder, without its HTTP side.
struct Server {
    share: Share,
    host: Option<Host>,
    multiplexer: Multiplexer,
    log: Receiver<(Vec<Token>, Vec<Token>)>,
    engine: std::thread::JoinHandle<()>,
}

impl Server {
    fn start(home: &Path, text: &TextModel, fingerprint: &str, gate: Option<Receiver<()>>) -> Server {
        let Fake { commands, events, log, thread } = fake(text, fingerprint, gate);
        let (multiplexer, share) = Multiplexer::start(commands, events, 4).unwrap();
        let place = Place::of(&home.join("data"));
        let host =
            attach::open_host(&place, "127.0.0.1:9", loads("demo"), multiplexer.clone(), text.tokenizer.clone(), rows);
        Server { share, host: Some(host.unwrap().expect("a place")), multiplexer, log, engine: thread }
    }

    /// Ends as the program does.
    fn end(mut self) {
        self.share.commands.send(Command::Shutdown).unwrap();
        self.engine.join().unwrap();
        self.host.take().unwrap().close();
        drop(self.multiplexer);
    }

    /// Ends as if killed: the connections break and the socket is dead.
    fn kill(mut self) {
        self.host.take().unwrap().close();
        self.multiplexer.hurry();
        self.share.commands.send(Command::Shutdown).unwrap();
    }
}

/// A terminal of a folder; how often it loaded the model itself.
struct Terminal {
    chat: Chat,
    loaded: Arc<AtomicUsize>,
}

impl Terminal {
    fn attached(home: &Path, text: &TextModel, opening: Opening, own: &'static str) -> Terminal {
        Terminal::attached_how(home, own, None, How { text: text.clone(), opening, ..How::default() })
    }

    /// With a gate of the model that it loads itself.
    fn attached_how(home: &Path, own: &'static str, gate: Option<Receiver<()>>, how: How) -> Terminal {
        let place = Place::of(&home.join("data"));
        let Ok(Some(link)) = attach::find(&place, &loads("demo")) else { panic!("no server") };
        let loaded = Arc::new(AtomicUsize::new(0));
        let (count, model) = (Arc::clone(&loaded), how.text.clone());
        let load = move || {
            count.fetch_add(1, Ordering::Relaxed);
            let Fake { commands, events, log: _, thread } = fake(&model, own, gate.clone());
            Ok(Engine { commands, events, thread })
        };
        let find = move || attach::find(&place, &loads("demo"));
        let engine = attach::spawn(link, Way { find: Box::new(find), load: Box::new(load) }).unwrap();
        let channels = EngineChannels { commands: engine.commands, events: engine.events };
        Terminal { chat: Chat::with_engine(home, channels, how), loaded }
    }

    fn loaded(&self) -> usize {
        self.loaded.load(Ordering::Relaxed)
    }
}

fn local(home: &Path, text: &TextModel, opening: Opening) -> Chat {
    Chat::new(home, Setup { text: text.clone(), opening, ..Setup::default() })
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A document, two questions, another start, a third question: the answers, which name their state.
fn days(home: &Path, mut first: Chat, second: impl FnOnce() -> Chat) -> Vec<Message> {
    std::fs::write(home.join("notes.txt"), "A line of the document.\n".repeat(400)).unwrap();
    first.load("notes.txt");
    let mut answers = vec![first.ask("One?"), first.ask("Two, and a little longer than the one before?")];
    first.on_disk();
    first.quit();
    let mut second = second();
    answers.push(second.ask("Three?"));
    second.send(Request::Regen { at: None, count: 1, temperature: None, seed: Some(5) });
    answers.push(second.finished());
    second.quit();
    answers
}

#[test]
fn an_attached_terminal_answers_like_one_with_its_own_engine() {
    let text = text_model(None);
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let own = days(here.path(), local(here.path(), &text, Opening::New), || {
        local(here.path(), &text, Opening::Resume("last".into()))
    });
    let server = Server::start(there.path(), &text, "fake-1", None);
    let attached = |opening| Terminal::attached(there.path(), &text, opening, "fake-1").chat;
    let theirs = days(there.path(), attached(Opening::New), || {
        // What the first terminal had read lies in its files, and the engine has nothing of it any more.
        let read: usize = server.log.try_iter().map(|job| job.0.len()).sum();
        assert!(read > 1_000, "{read}");
        attached(Opening::Resume("last".into()))
    });
    let texts = |messages: &[Message]| messages.iter().map(|m| m.text.clone()).collect::<Vec<_>>();
    assert_eq!(texts(&own), texts(&theirs));
    for (own, theirs) in own.iter().zip(&theirs) {
        assert_eq!(own.meta.prefilled_tokens, theirs.meta.prefilled_tokens);
        assert_eq!(own.meta.reused_tokens, theirs.meta.reused_tokens);
        assert_eq!(own.meta.looked, theirs.meta.looked);
    }
    let again: usize = server.log.try_iter().map(|job| job.0.len()).sum();
    assert!(again < 100, "{again} tokens were read on the second day");
    server.end();
}

#[test]
fn two_terminals_answer_side_by_side() {
    let text = text_model(None);
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path(), &text, "fake-1", None);
    let mut one = Terminal::attached(home.path(), &text, Opening::Named("one".into()), "fake-1").chat;
    let mut two = Terminal::attached(home.path(), &text, Opening::Named("two".into()), "fake-1").chat;
    for chat in [&mut one, &mut two] {
        let who = chat.note_with("this terminal uses it");
        assert!(who.starts_with("The model runs in sala-chat serve at 127.0.0.1:9 (process "), "{who}");
    }
    let alone = tempfile::tempdir().unwrap();
    let mut apart = local(alone.path(), &text, Opening::New);
    for question in ["First?", "Second?"] {
        one.send(Request::Ask(question.into()));
        two.send(Request::Ask(question.into()));
        let expected = apart.ask(question).text;
        for chat in [&mut one, &mut two] {
            assert_eq!(chat.finished().text, expected);
            chat.sync();
        }
    }
    one.quit();
    two.quit();
    apart.quit();
    server.end();
}

/// An answer that is being written: five tokens of it, and no more until there are permits.
fn begun(chat: &mut Chat, permit: &Sender<()>, question: &str) -> String {
    chat.send(Request::Ask(question.into()));
    // One step reads the question, the others write.
    (0..6).for_each(|_| permit.send(()).unwrap());
    let mut written = String::new();
    chat.wait("words of the answer", |n| match n {
        Notice::Delta { text, .. } => {
            written.push_str(text);
            (written.len() >= 5).then_some(())
        }
        _ => None,
    });
    written
}

/// The next error and the answer that it ended, in either order.
fn broken(chat: &mut Chat) -> (String, Message) {
    let (mut error, mut answer) = (None, None);
    chat.wait("an answer that broke off", |n| {
        match n {
            Notice::Note(Level::Error, text) => error = Some(text.clone()),
            Notice::Finished(message) => answer = Some(message.clone()),
            _ => {}
        }
        error.clone().zip(answer.clone())
    })
}

#[test]
fn a_server_that_ends_mid_answer_leaves_its_text() {
    let text = text_model(None);
    let (home, alone) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (permit, gate) = unbounded();
    let server = Server::start(home.path(), &text, "fake-1", Some(gate));
    let mut terminal = Terminal::attached(home.path(), &text, Opening::New, "fake-1");
    let written = begun(&mut terminal.chat, &permit, "One?");
    server.kill();
    let (error, answer) = broken(&mut terminal.chat);
    assert!(error.contains("which ran the model, has ended") && error.contains("The text is kept"), "{error}");
    assert_eq!(answer.meta.finish, Some(Finish::Failed));
    assert!(answer.text.starts_with(written.trim_end()), "{answer:?}");
    assert_eq!(terminal.loaded(), 0);
    terminal.chat.send(Request::Regen { at: None, count: 1, temperature: None, seed: Some(5) });
    let note = terminal.chat.note_with("is loaded here");
    assert_eq!(note, "No server runs any more: the model is loaded here.");
    let again = terminal.chat.finished();
    let mut own = local(alone.path(), &text, Opening::New);
    assert_eq!(own.ask("One?").text, again.text);
    terminal.chat.sync();
    assert_eq!(own.ask("Two?").text, terminal.chat.ask("Two?").text);
    assert_eq!(terminal.loaded(), 1);
    own.quit();
    terminal.chat.quit();
}

#[test]
fn an_idle_server_that_ends_is_reported_and_replaced() {
    let text = text_model(None);
    let (home, alone) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = Server::start(home.path(), &text, "fake-1", None);
    let mut terminal = Terminal::attached(home.path(), &text, Opening::New, "fake-1");
    let mut own = local(alone.path(), &text, Opening::New);
    assert_eq!(own.ask("One?").text, terminal.chat.ask("One?").text);
    terminal.chat.on_disk();
    server.end();
    terminal.chat.note_with("has ended");
    let next = Server::start(home.path(), &text, "fake-1", None);
    let answer = terminal.chat.ask("Two?");
    assert_eq!(own.ask("Two?").text, answer.text);
    let reported = |n: &&Notice| matches!(n, Notice::Note(Level::Info, text) if text.contains("this terminal uses it"));
    // Server and terminal are one process in the test: only another process is reported again.
    assert_eq!(terminal.chat.seen.iter().filter(reported).count(), 1);
    // What was kept was put back from the terminal's files.
    assert!(answer.meta.reused_tokens > 0, "{answer:?}");
    assert_eq!(terminal.loaded(), 0);
    terminal.chat.quit();
    own.quit();
    next.end();
}

#[test]
fn state_of_another_form_of_the_model_is_not_put_into_this_one() {
    let text = text_model(None);
    let (home, alone) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = Server::start(home.path(), &text, "fake-1", None);
    let mut terminal = Terminal::attached(home.path(), &text, Opening::New, "fake-2");
    let mut own = local(alone.path(), &text, Opening::New);
    assert_eq!(own.ask("One?").text, terminal.chat.ask("One?").text);
    terminal.chat.on_disk();
    server.end();
    terminal.chat.note_with("has ended");
    terminal.chat.send(Request::Ask("Two?".into()));
    let (error, _) = broken(&mut terminal.chat);
    assert!(error.contains("in another form now"), "{error}");
    terminal.chat.send(Request::Regen { at: None, count: 1, temperature: None, seed: Some(5) });
    let answer = terminal.chat.finished();
    assert_eq!((answer.meta.reused_tokens, terminal.loaded()), (0, 1));
    terminal.chat.quit();
    own.quit();
}

#[test]
fn a_closed_terminal_ends_its_answer_and_a_stop_only_one() {
    let text = text_model(None);
    let home = tempfile::tempdir().unwrap();
    let (permit, gate) = unbounded();
    let server = Server::start(home.path(), &text, "fake-1", Some(gate));
    let mut one = Terminal::attached(home.path(), &text, Opening::Named("one".into()), "fake-1").chat;
    begun(&mut one, &permit, "One?");
    one.send(Request::Stop);
    assert_eq!(one.finished().meta.finish, Some(Finish::Stopped));
    server.log.recv_timeout(PATIENCE).unwrap();
    // The connection breaks in the middle of an answer: the engine is free for the other one.
    let mut two = Terminal::attached(home.path(), &text, Opening::Named("two".into()), "fake-1").chat;
    begun(&mut two, &permit, "Two?");
    two.send(Request::Quit);
    drop(two);
    server.log.recv_timeout(PATIENCE).unwrap();
    one.sync();
    (0..200).for_each(|_| permit.send(()).unwrap());
    assert_eq!(one.ask("Three?").meta.finish, Some(Finish::Stop));
    one.quit();
    server.end();
}

#[test]
fn rows_that_are_damaged_are_found_by_the_server_and_read_again() {
    let text = text_model(None);
    let (home, alone) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = Server::start(home.path(), &text, "fake-1", None);
    let mut first = Terminal::attached(home.path(), &text, Opening::New, "fake-1").chat;
    let mut own = local(alone.path(), &text, Opening::New);
    for chat in [&mut first, &mut own] {
        chat.ask("One?");
        chat.on_disk();
    }
    first.quit();
    own.quit();
    for home in [home.path(), alone.path()] {
        let files = std::fs::read_dir(home.join("data/segments")).unwrap().flatten();
        let rows: Vec<PathBuf> =
            files.map(|f| f.path()).filter(|p| p.extension().is_some_and(|e| e == "rows")).collect();
        assert!(!rows.is_empty());
        for file in rows {
            let mut bytes = std::fs::read(&file).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            std::fs::write(&file, bytes).unwrap();
        }
    }
    let resumed = Opening::Resume("last".into());
    let mut second = Terminal::attached(home.path(), &text, resumed.clone(), "fake-1").chat;
    let mut own = local(alone.path(), &text, resumed);
    let results = |chat: &mut Chat| {
        chat.send(Request::Ask("Two?".into()));
        let answer = chat.wait("the end", |n| match n {
            Notice::Finished(m) if m.meta.finish.is_some() => Some(m.clone()),
            _ => None,
        });
        let notes = chat.seen.iter().filter_map(|n| match n {
            Notice::Note(_, text) if !text.contains("this terminal uses it") => Some(text.clone()),
            _ => None,
        });
        // Without the time it took.
        let notes = notes.map(|text| text.split(" in ").next().unwrap_or_default().to_owned());
        (answer.text, answer.meta.prefilled_tokens, notes.collect::<Vec<_>>())
    };
    let (theirs, expected) = (results(&mut second), results(&mut own));
    assert!(expected.2.iter().any(|note| note.starts_with("Resumed 0 of ")), "{expected:?}");
    assert_eq!(theirs, expected);
    second.quit();
    own.quit();
    server.end();
}

#[test]
fn a_socket_without_a_server_of_this_version_is_unused() {
    use std::io::Write;
    let dir = tempfile::tempdir().unwrap();
    let place = Place::of(dir.path());
    std::fs::create_dir(dir.path().join("locks")).unwrap();
    let listener = std::os::unix::net::UnixListener::bind(dir.path().join("locks/serve.sock")).unwrap();
    let replies = [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], &[2, 0, 0, 0, 0, 0, 0, 0, b'{', b'}'], b""];
    let server = std::thread::spawn(move || {
        for words in replies {
            listener.accept().unwrap().0.write_all(words).unwrap();
        }
    });
    let found = || match attach::find(&place, &loads("demo")) {
        Err(why) => why,
        Ok(None) => "nobody".to_owned(),
        Ok(Some(_)) => panic!("a server"),
    };
    assert!(found().contains("does not answer"));
    assert!(found().contains("is of another version"));
    // One that closes at once is ending.
    assert_eq!(found(), "nobody");
    server.join().unwrap();
}

#[test]
fn another_model_another_version_and_no_server_are_distinct() {
    let text = text_model(None);
    let home = tempfile::tempdir().unwrap();
    let place = Place::of(&home.path().join("data"));
    assert!(matches!(attach::find(&place, &loads("demo")), Ok(None)));
    assert_eq!(attach::look(&place), Ok(None));
    let server = Server::start(home.path(), &text, "fake-1", None);
    let unfit = |found: Result<Option<Link>, String>| found.err().expect("not unfit");
    let why = unfit(attach::find(&place, &loads("synthetic:tiny")));
    assert!(why.ends_with("runs with model demo, not synthetic:tiny"), "{why}");
    assert!(attach::look(&place).unwrap().unwrap().contains("127.0.0.1:9"));
    // All places but those of the server are taken.
    let links: Vec<_> = std::iter::repeat_with(|| attach::find(&place, &loads("demo"))).take(6).collect();
    assert!(links.iter().all(|found| matches!(found, Ok(Some(_)))));
    let why = unfit(attach::find(&place, &loads("demo")));
    assert!(why.ends_with("it has no slot for another terminal"), "{why}");
    drop(links);
    until("a place is free again", || matches!(attach::find(&place, &loads("demo")), Ok(Some(_))));
    server.end();
    assert!(matches!(attach::find(&place, &loads("demo")), Ok(None)));
}
