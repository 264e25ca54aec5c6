//! A server between a scripted engine and plain sockets.
#![allow(dead_code, reason = "each file of the test uses its own part")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use sala_chat::config::settings::ServeConfig;
use sala_chat::engine::protocol::Token;
use sala_chat::runtime::{EngineChannels, Settings};
use sala_chat::server::{Key, Options, ServeError, Server, Stop};
use sala_chat::store::Store;
use sala_chat::text::{Before, TextModel};
use serde_json::Value;

use crate::server::support::fake_engine::{self, Script};
use crate::server::support::{store, text_model};

/// Nothing a test waits for takes longer.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// How to build a server.
pub struct Setup {
    pub text: TextModel,
    pub script: Script,
    pub context_limit: u64,
    pub queue: usize,
    pub side_by_side: usize,
    pub key: Option<&'static str>,
    pub rules: ServeConfig,
    pub settings: Settings,
    pub gate: Option<Receiver<()>>,
    /// In place of one on the machine's own disk.
    pub store: Option<Arc<Store>>,
    /// The terminal's, with a library, and the system text of its conversations.
    pub library: Option<Arc<Store>>,
    pub system: Option<String>,
    /// Sequences of the engine.
    pub sequences: u32,
    /// Those it has memory for.
    pub room: u32,
}

impl Default for Setup {
    fn default() -> Self {
        let text = text_model(None);
        Setup {
            script: answers(text.clone(), "Hello there, friend."),
            text,
            context_limit: 100_000,
            queue: 4,
            side_by_side: 2,
            key: None,
            rules: ServeConfig::default(),
            settings: Settings::default(),
            gate: None,
            store: None,
            library: None,
            system: None,
            sequences: 16,
            room: 16,
        }
    }
}

/// The same answer each time.
pub fn answers(text: TextModel, answer: &str) -> Script {
    let tokens = text.tokenizer.encode_after(answer, Before::Text).unwrap();
    Box::new(move |_, _| tokens.clone())
}

/// A running server.
pub struct Running {
    pub address: SocketAddr,
    pub stop: Stop,
    pub log: Receiver<(Vec<Token>, Vec<Token>)>,
    thread: JoinHandle<Result<(), ServeError>>,
    engine: JoinHandle<()>,
}

impl Running {
    pub fn start(dir: &Path, setup: Setup) -> Running {
        let stop_ids = setup.text.tokenizer.stop_ids(&[]);
        let fake = fake_engine::spawn(fake_engine::Options {
            script: setup.script,
            context_limit: setup.context_limit,
            fingerprint: "fake-1".into(),
            gate: setup.gate,
            late: false,
            never: false,
            sequences: setup.sequences,
            room: setup.room,
            name: "fake",
            seeds: None,
            side_by_side: None,
        });
        let server = Server::start(Options {
            mcp: None,
            store: setup.store.unwrap_or_else(|| store(dir)),
            library: setup.library,
            system: setup.system,
            text: setup.text,
            stop: stop_ids,
            engine: EngineChannels { commands: fake.commands, events: fake.events },
            settings: setup.settings,
            piece: 1024,
            serve: ServeConfig { queue: setup.queue, side_by_side: setup.side_by_side, ..setup.rules },
            key: setup.key.map(Key::new),
            program: vec![env!("CARGO_BIN_EXE_sala-chat").into()],
        })
        .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stop = server.stop();
        let thread = std::thread::spawn(move || server.serve(listener));
        let running = Running { address, stop, log: fake.log, thread, engine: fake.thread };
        running.until("the model is loaded", || running.get("/health").status == 200);
        running
    }

    /// Ends it in good order.
    pub fn end(self) {
        self.stop.stop();
        self.thread.join().unwrap().unwrap();
        self.engine.join().unwrap();
    }

    pub fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !done() {
            assert!(begun.elapsed() < PATIENCE, "{what} did not happen");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn open(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends these bytes and reads until the server closes.
    pub fn raw(&self, request: &str) -> Reply {
        let mut stream = self.open();
        stream.write_all(request.as_bytes()).unwrap();
        Reply::read(stream)
    }

    pub fn get(&self, path: &str) -> Reply {
        self.raw(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"))
    }

    pub fn request(&self, path: &str, headers: &str, body: &str) -> String {
        let length = body.len();
        format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
        )
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.raw(&self.request(path, "", &body.to_string()))
    }

    /// A value of `/metrics`.
    pub fn metric(&self, name: &str) -> u64 {
        let text = self.get("/metrics").body;
        let line = text.lines().find_map(|l| l.strip_prefix(&format!("sala_chat_{name} "))).unwrap_or("0");
        line.parse::<f64>().unwrap() as u64
    }
}

/// A response.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Reply {
    pub fn read(mut stream: TcpStream) -> Reply {
        let mut bytes = Vec::new();
        // A connection reset after the answer is fine.
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {text:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let chunked = head.to_lowercase().contains("transfer-encoding: chunked");
        let body = if chunked { unchunk(body) } else { body.to_owned() };
        Reply { status, head: head.to_owned(), body }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    /// The code and the field of an error in OpenAI's form.
    pub fn error(&self) -> (u16, String, String) {
        let error = &self.json()["error"];
        let word = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
        assert!(!word("message").is_empty() && !word("type").is_empty(), "{error}");
        (self.status, word("code"), word("param"))
    }

    /// Data of the events of a stream, without comments and the last mark.
    pub fn events(&self) -> Vec<Value> {
        let data = self.body.split("\n\n").filter_map(|e| e.lines().find_map(|l| l.strip_prefix("data: ")));
        data.filter(|d| *d != "[DONE]").map(|d| serde_json::from_str(d).unwrap()).collect()
    }
}

fn unchunk(body: &str) -> String {
    let mut out = String::new();
    let mut rest = body;
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            break;
        }
        out.push_str(&after[..size]);
        rest = &after[size + 2..];
    }
    out
}

/// Lets so many chunks and tokens through.
pub fn permits(gate: &Sender<()>, count: usize) {
    for _ in 0..count {
        gate.send(()).unwrap();
    }
}
