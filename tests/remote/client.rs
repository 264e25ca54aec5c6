//! The remote engine against a server with faults: what arrives, what is asked again, what is said, and what is never shown.

use crate::chat_server;
use crate::command;
mod faults;
mod program;
use crate::pty;
mod several;
mod terminal;

use std::time::Duration;

use chat_server::{ChatServer, Reply, STREAM, answer, delta, end, events, refusal, reply, stream, usage};
use sala_chat::client::remote::{Engine, Key, Patience, RemoteOptions, spawn, text_model};
use sala_chat::engine::protocol::{
    Cancel, Command, Ended, EngineEvent, EngineFault, Generate, Job, JobStats, Look, MAIN, ModelInfo, Sampling,
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
    /// Said before the first question.
    notes: Vec<String>,
    next: u64,
}

/// What became of a question.
#[derive(Debug, Default)]
struct Told {
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
        // The answer to a command comes behind all that is said at the start.
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
    fn ask(&mut self, question: &str) -> Told {
        self.restore(Vec::new());
        let prompt = self.prompt(&[ChatMessage::new(ChatRole::User, question)]);
        let id = self.send(prompt, 64, &Cancel::default());
        self.told(id)
    }

    fn told(&mut self, job: u64) -> Told {
        let mut told = Told::default();
        let mut decoder = StreamDecoder::new(self.text.tokenizer.clone(), sala_chat::text::Begin::Answer);
        loop {
            match self.engine.events.recv_timeout(Duration::from_secs(20)).expect("an event in time") {
                EngineEvent::Tokens { id, tokens, .. } if id == job => {
                    told.tokens += tokens.len() as u64;
                    let delta = decoder.push_all(&tokens);
                    told.thinking += &delta.thinking;
                    told.text += &delta.answer;
                }
                EngineEvent::Done { id, done } if id == job => {
                    told.ended = Some(done.ended);
                    (told.stats, told.generated_in_state) = (done.stats, done.generated_in_state);
                    break;
                }
                EngineEvent::Failed { id, fault } if id == job => {
                    assert!(!matches!(fault, EngineFault::Fatal { .. }), "{fault}");
                    told.failed = Some(fault.to_string());
                    break;
                }
                EngineEvent::Note(note) => told.notes.push(note),
                EngineEvent::Waiting { what, .. } => told.waits.push(what),
                _ => {}
            }
        }
        let last = decoder.finish();
        told.thinking += &last.thinking;
        told.text += &last.answer;
        told
    }
}

#[test]
fn an_answer_comes_with_its_usage_and_its_state() {
    let server = ChatServer::start(vec![answer("It is four. Grün 🙂")]);
    let mut client = Client::of(&server);
    assert_eq!((client.info.name.as_str(), client.info.context_limit), ("tiny", 4096));
    let told = client.ask("What is two and two?");
    assert_eq!((told.text.as_str(), told.ended), ("It is four. Grün 🙂", Some(Ended::Stop)));
    let counted = told.stats.usage.unwrap();
    assert_eq!((counted.prompt_tokens, counted.cached_tokens, counted.completion_tokens), (100, 60, 5));
    assert_eq!(told.generated_in_state, told.tokens);
    let asked = server.asked();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0]["messages"], json!([{"role": "user", "content": "What is two and two?"}]));
    assert_eq!((&asked[0]["model"], &asked[0]["max_tokens"]), (&json!("tiny"), &json!(64)));
}

#[test]
fn the_next_question_goes_behind_the_answer() {
    let server = ChatServer::start(vec![answer("A."), answer("B.")]);
    let mut client = Client::of(&server);
    client.ask("a?");
    let next =
        client.text.tokenizer.encode_prompt("<|im_end|>\n<|im_start|>user\nb?<|im_end|>\n<|im_start|>assistant\n");
    let id = client.send(next.unwrap(), 64, &Cancel::default());
    assert_eq!(client.told(id).text, "B.");
    let turn = |role: &str, text: &str| json!({"role": role, "content": text});
    assert_eq!(server.asked()[1]["messages"], json!([turn("user", "a?"), turn("assistant", "A."), turn("user", "b?")]));
}

#[test]
fn thoughts_sent_apart_are_thoughts() {
    for field in ["reasoning_content", "reasoning"] {
        let said = [delta(field, "Hm, "), delta(field, "two.\n"), delta("content", "\n\nFour."), end("length")];
        let bytes = [STREAM.as_bytes(), &events(&said)].concat();
        let server = ChatServer::start(vec![Reply::Pieces(vec![bytes], Duration::ZERO)]);
        let told = Client::of(&server).ask("q");
        assert_eq!((told.thinking.as_str(), told.text.as_str()), ("Hm, two.", "Four."), "{field}");
        assert_eq!(told.ended, Some(Ended::Length));
        assert_eq!(told.stats.usage, None);
    }
}

#[test]
fn bytes_that_drip_are_an_answer_all_the_same() {
    let pieces = stream("Ein 🙂.").chunks(1).map(<[u8]>::to_vec).collect();
    let server = ChatServer::start(vec![Reply::Pieces(pieces, Duration::from_micros(200))]);
    let told = Client::of(&server).ask("q");
    assert_eq!((told.text.as_str(), told.ended), ("Ein 🙂.", Some(Ended::Stop)));
}

#[test]
fn an_answer_in_one_object_is_taken_too() {
    let body = json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": "All at once."},
        "finish_reason": "stop"}], "usage": {"prompt_tokens": 3, "completion_tokens": 4}});
    let server = ChatServer::start(vec![reply("200 OK", "content-type: application/json\r\n", &body.to_string())]);
    let told = Client::of(&server).ask("q");
    assert_eq!((told.text.as_str(), told.ended), ("All at once.", Some(Ended::Stop)));
    assert_eq!(told.stats.usage.unwrap().completion_tokens, 4);
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
    assert_eq!(server.asked()[0]["model"], json!("b"));
}

#[test]
fn a_context_that_is_full_is_told_from_an_answer_that_is_long_enough() {
    let of = |prompt: u64| {
        let said = [delta("content", "x"), end("length"), usage(prompt, 0, 96)];
        Reply::Pieces(vec![[STREAM.as_bytes(), &events(&said)].concat()], Duration::ZERO)
    };
    let server = ChatServer::start(vec![of(4000), of(400)]);
    let mut client = Client::of(&server);
    assert_eq!(client.ask("q").ended, Some(Ended::Context));
    assert_eq!(client.ask("q").ended, Some(Ended::Length));
}

#[test]
fn an_answer_that_is_complete_needs_no_last_word() {
    let said = events(&[delta("content", "Yes."), end("stop")]);
    let server = ChatServer::start(vec![Reply::Stall([STREAM.as_bytes(), &said].concat())]);
    let told = Client::of(&server).ask("q");
    assert_eq!((told.text.as_str(), told.ended), ("Yes.", Some(Ended::Stop)));
}

#[test]
fn an_answer_goes_on_where_the_server_can_do_that() {
    let cannot = refusal("422 Unprocessable", "Unexpected keys in the request: {'continue_final_message'}");
    let server = ChatServer::start(vec![answer("er."), cannot]);
    let mut client = Client::of(&server);
    let ask = [ChatMessage::new(ChatRole::User, "q")];
    let rendered = client.text.template.render(&ask, &RenderOptions::prompt(Default::default())).unwrap();
    let prompt = client.text.tokenizer.encode_prompt(&(rendered + "The answ")).unwrap();
    let id = client.send(prompt.clone(), 64, &Cancel::default());
    assert_eq!(client.told(id).text, "er.");
    let sent = &server.asked()[0];
    assert_eq!(sent["messages"][1], json!({"role": "assistant", "content": "The answ"}));
    assert_eq!((&sent["continue_final_message"], &sent["add_generation_prompt"]), (&json!(true), &json!(false)));
    client.restore(Vec::new());
    let id = client.send(prompt, 64, &Cancel::default());
    assert!(client.told(id).failed.unwrap().ends_with("cannot continue an answer. Ask again for another one."));
}

#[test]
fn an_answer_that_comes_at_once_tells_of_no_speed() {
    let body = json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": "one two three four"}, "finish_reason": "stop"}]});
    let server = ChatServer::start(vec![reply("200 OK", "content-type: application/json\r\n", &body.to_string())]);
    let told = Client::of(&server).ask("q");
    assert!(told.tokens > 2, "{}", told.text);
    assert_eq!(told.stats.decode_ms, 0.0);
}
