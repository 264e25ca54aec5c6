//! The remote engine against a faulty server: what arrives, what is retried, what is reported, and what is never shown.

use crate::chat_server;
use crate::command;
mod faults;
mod forms;
mod program;
use crate::pty;
mod several;
mod terminal;

use std::time::Duration;

use chat_server::{ChatServer, Reply, STREAM, answer, delta, end, events, refusal, reply, stream, usage};
use sala_chat::client::remote::{Key, Patience, RemoteOptions, spawn, text_model};
use sala_chat::engine::protocol::{
    Cancel, Command, Ended, Engine, EngineEvent, EngineFault, Generate, Job, JobStats, Look, MAIN, ModelInfo, Sampling,
    SequenceId, SpecMode, Token,
};
use sala_chat::text::{ChatMessage, ChatRole, RenderOptions, StreamDecoder, TextModel};
use serde_json::json;

const QUICK: Patience = Patience {
    connect: Duration::from_secs(5),
    first: Duration::from_secs(5),
    stall: Duration::from_millis(300),
    answer: Duration::from_secs(60),
    retry: Duration::from_millis(20),
    tries: 3,
};

struct Client {
    engine: Engine,
    text: TextModel,
    info: ModelInfo,
    /// Notes before the first question.
    notes: Vec<String>,
    next: u64,
}

/// What became of a question.
#[derive(Debug, Default)]
struct Received {
    thinking: String,
    text: String,
    ended: Option<Ended>,
    failed: Option<String>,
    stats: JobStats,
    generated_in_state: u64,
    tokens: u64,
    notes: Vec<String>,
    waits: Vec<String>,
}

fn options(url: &str) -> RemoteOptions {
    RemoteOptions { url: url.to_owned(), model: None, key: None, context: None, patience: QUICK, one_question: false }
}

impl Client {
    fn new(options: RemoteOptions) -> Client {
        let text = text_model().unwrap();
        let engine = spawn(options, &text).unwrap();
        let mut client = Client { engine, text, info: ModelInfo::default(), notes: Vec::new(), next: 10 };
        // The reply to a command follows all notes of the start.
        client.restore(Vec::new());
        loop {
            match client.engine.events.recv_timeout(Duration::from_secs(20)).unwrap() {
                EngineEvent::Loading { .. } => {}
                EngineEvent::Ready(info) => client.info = info,
                EngineEvent::Note(note) => client.notes.push(note),
                EngineEvent::Restored { .. } => return client,
                other => panic!("{other:?}"),
            }
        }
    }

    fn restore(&self, history: Vec<Token>) {
        let history = std::sync::Arc::new(history);
        let restore = Command::Restore { id: 1, sequence: MAIN, keep: 0, rows: Vec::new(), end: None, history };
        self.engine.commands.send(restore).unwrap();
    }

    fn of(server: &ChatServer) -> Client {
        Client::new(options(&server.url))
    }

    fn prompt(&self, messages: &[ChatMessage]) -> Vec<Token> {
        let rendered = self.text.template.render(messages, &RenderOptions::prompt(Default::default())).unwrap();
        self.text.tokenizer.encode_prompt(&rendered).unwrap()
    }

    fn send(&mut self, prompt: Vec<Token>, max_tokens: u64, cancel: &Cancel) -> u64 {
        self.send_to(MAIN, prompt, max_tokens, cancel)
    }

    fn send_to(&mut self, sequence: SequenceId, prompt: Vec<Token>, max_tokens: u64, cancel: &Cancel) -> u64 {
        self.next += 1;
        let id = self.next;
        let generate = Generate {
            sampling: Sampling::default(),
            max_tokens,
            stop: Vec::new(),
            spec: SpecMode::Auto,
            steering: None,
            constraint: None,
            likely: None,
            look: Look::default(),
        };
        let (generate, score, export, cancel) = (Some(generate), None, false, cancel.clone());
        self.engine.commands.send(Command::Run(Job { id, sequence, prompt, generate, score, export, cancel })).unwrap();
        id
    }

    /// Asks one question of a conversation of its own.
    fn ask(&mut self, question: &str) -> Received {
        self.restore(Vec::new());
        let prompt = self.prompt(&[ChatMessage::new(ChatRole::User, question)]);
        let id = self.send(prompt, 64, &Cancel::default());
        self.receive(id)
    }

    fn receive(&mut self, job: u64) -> Received {
        let mut received = Received::default();
        let mut decoder = StreamDecoder::new(self.text.tokenizer.clone(), sala_chat::text::Begin::Answer);
        loop {
            match self.engine.events.recv_timeout(Duration::from_secs(20)).expect("an event in time") {
                EngineEvent::Tokens { id, tokens, .. } if id == job => {
                    received.tokens += tokens.len() as u64;
                    let delta = decoder.push_all(&tokens);
                    received.thinking += &delta.thinking;
                    received.text += &delta.answer;
                }
                EngineEvent::Done { id, done } if id == job => {
                    received.ended = Some(done.ended);
                    (received.stats, received.generated_in_state) = (done.stats, done.generated_in_state);
                    break;
                }
                EngineEvent::Failed { id, fault } if id == job => {
                    assert!(!matches!(fault, EngineFault::Fatal { .. }), "{fault}");
                    received.failed = Some(fault.to_string());
                    break;
                }
                EngineEvent::Note(note) => received.notes.push(note),
                EngineEvent::Waiting { what, .. } => received.waits.push(what),
                _ => {}
            }
        }
        let last = decoder.finish();
        received.thinking += &last.thinking;
        received.text += &last.answer;
        received
    }
}

#[test]
fn an_answer_has_its_usage_and_state() {
    let server = ChatServer::start(vec![answer("It is four. Grün 🙂")]);
    let mut client = Client::of(&server);
    assert_eq!((client.info.name.as_str(), client.info.context_limit), ("tiny", 4096));
    let received = client.ask("What is two and two?");
    assert_eq!((received.text.as_str(), received.ended), ("It is four. Grün 🙂", Some(Ended::Stop)));
    let counted = received.stats.usage.unwrap();
    assert_eq!((counted.prompt_tokens, counted.cached_tokens, counted.completion_tokens), (100, 60, 5));
    assert_eq!(received.generated_in_state, received.tokens);
    let requests = server.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0]["messages"], json!([{"role": "user", "content": "What is two and two?"}]));
    assert_eq!((&requests[0]["model"], &requests[0]["max_tokens"]), (&json!("tiny"), &json!(64)));
}

#[test]
fn the_next_question_follows_the_answer() {
    let server = ChatServer::start(vec![answer("A."), answer("B.")]);
    let mut client = Client::of(&server);
    client.ask("a?");
    let next =
        client.text.tokenizer.encode_prompt("<|im_end|>\n<|im_start|>user\nb?<|im_end|>\n<|im_start|>assistant\n");
    let id = client.send(next.unwrap(), 64, &Cancel::default());
    assert_eq!(client.receive(id).text, "B.");
    let turn = |role: &str, text: &str| json!({"role": role, "content": text});
    assert_eq!(
        server.requests()[1]["messages"],
        json!([turn("user", "a?"), turn("assistant", "A."), turn("user", "b?")])
    );
}

#[test]
fn thoughts_sent_apart_are_thoughts() {
    for field in ["reasoning_content", "reasoning"] {
        let pieces = [delta(field, "Hm, "), delta(field, "two.\n"), delta("content", "\n\nFour."), end("length")];
        let bytes = [STREAM.as_bytes(), &events(&pieces)].concat();
        let server = ChatServer::start(vec![Reply::Pieces(vec![bytes], Duration::ZERO)]);
        let received = Client::of(&server).ask("q");
        assert_eq!((received.thinking.as_str(), received.text.as_str()), ("Hm, two.", "Four."), "{field}");
        assert_eq!(received.ended, Some(Ended::Length));
        assert_eq!(received.stats.usage, None);
    }
}

#[test]
fn bytes_that_drip_are_an_answer_all_the_same() {
    let pieces = stream("Ein 🙂.").chunks(1).map(<[u8]>::to_vec).collect();
    let server = ChatServer::start(vec![Reply::Pieces(pieces, Duration::from_micros(200))]);
    // On a busy machine hundreds of pauses take longer than a quick stall.
    let patience = Patience { stall: Duration::from_secs(60), ..QUICK };
    let received = Client::new(RemoteOptions { patience, ..options(&server.url) }).ask("q");
    assert_eq!((received.text.as_str(), received.ended), ("Ein 🙂.", Some(Ended::Stop)));
}

#[test]
fn an_answer_in_one_object_is_taken_too() {
    let body = json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": "All at once."},
        "finish_reason": "stop"}], "usage": {"prompt_tokens": 3, "completion_tokens": 4}});
    let server = ChatServer::start(vec![reply("200 OK", "content-type: application/json\r\n", &body.to_string())]);
    let received = Client::of(&server).ask("q");
    assert_eq!((received.text.as_str(), received.ended), ("All at once.", Some(Ended::Stop)));
    assert_eq!(received.stats.usage.unwrap().completion_tokens, 4);
}

#[test]
fn the_key_is_sent_and_shown_nowhere() {
    const SECRET: &str = "sk-verysecretkey";
    let server =
        ChatServer::start(vec![refusal("401 Unauthorized", &format!("Incorrect API key provided: {SECRET}."))]);
    let options = RemoteOptions { key: Some(Key::new(SECRET).unwrap()), ..options(&server.url) };
    assert!(!format!("{options:?}").contains("secret"));
    let mut client = Client::new(options);
    let line = client.ask("q").failed.unwrap();
    assert!(line.contains("rejects the key (401)") && line.contains("provided: (key)."), "{line}");
    let seen = server.seen.lock().unwrap();
    assert!(seen.iter().all(|s| s.headers.contains(&format!("Bearer {SECRET}"))), "{seen:?}");
    assert_eq!(seen.len(), 2);
}

#[test]
fn a_model_is_chosen_by_name_where_there_are_several() {
    let models = json!({"data": [{"id": "a\u{1b}[2J"}, {"id": "b", "meta": {"n_ctx": 77}}]});
    let server = ChatServer::with_models(models, vec![answer("Yes.")]);
    let client = Client::of(&server);
    assert!(
        client.notes[0].contains("has 2 models (a\\x1b[2J, b). Choose one with engine.model."),
        "{:?}",
        client.notes
    );
    let mut client = Client::new(RemoteOptions { model: Some("b".into()), ..options(&server.url) });
    assert_eq!((client.info.name.as_str(), client.info.context_limit), ("b", 77));
    assert_eq!(client.ask("q").text, "Yes.");
    assert_eq!(server.requests()[0]["model"], json!("b"));
}

#[test]
fn a_full_context_differs_from_a_length_limit() {
    let of = |prompt: u64| {
        let pieces = [delta("content", "x"), end("length"), usage(prompt, 0, 96)];
        Reply::Pieces(vec![[STREAM.as_bytes(), &events(&pieces)].concat()], Duration::ZERO)
    };
    let server = ChatServer::start(vec![of(4000), of(400)]);
    let mut client = Client::of(&server);
    assert_eq!(client.ask("q").ended, Some(Ended::Context));
    assert_eq!(client.ask("q").ended, Some(Ended::Length));
}

#[test]
fn an_answer_that_is_complete_needs_no_last_word() {
    let pieces = events(&[delta("content", "Yes."), end("stop")]);
    let server = ChatServer::start(vec![Reply::Stall([STREAM.as_bytes(), &pieces].concat())]);
    let received = Client::of(&server).ask("q");
    assert_eq!((received.text.as_str(), received.ended), ("Yes.", Some(Ended::Stop)));
}

#[test]
fn an_answer_continues_if_the_server_supports_it() {
    let cannot = refusal("422 Unprocessable", "Unexpected keys in the request: {'continue_final_message'}");
    let server = ChatServer::start(vec![answer("er."), cannot]);
    let mut client = Client::of(&server);
    let ask = [ChatMessage::new(ChatRole::User, "q")];
    let rendered = client.text.template.render(&ask, &RenderOptions::prompt(Default::default())).unwrap();
    let prompt = client.text.tokenizer.encode_prompt(&(rendered + "The answ")).unwrap();
    let id = client.send(prompt.clone(), 64, &Cancel::default());
    assert_eq!(client.receive(id).text, "er.");
    let sent = &server.requests()[0];
    assert_eq!(sent["messages"][1], json!({"role": "assistant", "content": "The answ"}));
    assert_eq!((&sent["continue_final_message"], &sent["add_generation_prompt"]), (&json!(true), &json!(false)));
    client.restore(Vec::new());
    let id = client.send(prompt, 64, &Cancel::default());
    assert!(client.receive(id).failed.unwrap().ends_with("cannot continue an answer. Ask again for another one."));
}

#[test]
fn an_answer_in_one_piece_reports_no_speed() {
    let body = json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": "one two three four"}, "finish_reason": "stop"}]});
    let server = ChatServer::start(vec![reply("200 OK", "content-type: application/json\r\n", &body.to_string())]);
    let received = Client::of(&server).ask("q");
    assert!(received.tokens > 2, "{}", received.text);
    assert_eq!(received.stats.decode_ms, 0.0);
}
