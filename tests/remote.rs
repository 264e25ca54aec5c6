//! The remote engine against a server with faults: what arrives, what is asked again, what is said, and what is never shown.

#[path = "support/chat_server.rs"]
mod chat_server;
#[path = "support/command.rs"]
mod command;
#[path = "remote/program.rs"]
mod program;
mod pty;
#[path = "remote/terminal.rs"]
mod terminal;

use std::time::{Duration, Instant};

use chat_server::{ChatServer, Reply, STREAM, answer, delta, end, events, refusal, reply, stream, usage};
use sala_chat::protocol::engine::{
    Cancel, Command, Ended, EngineEvent, EngineFault, Generate, Job, JobStats, Look, MAIN, ModelInfo, Sampling,
    SequenceId, SpecMode, Token,
};
use sala_chat::remote::{Engine, Key, Patience, RemoteOptions, spawn, text_model};
use sala_chat::text::{ChatMessage, ChatRole, RenderOptions, StreamDecoder, TextModel};
use serde_json::json;

const QUICK: Patience = Patience {
    connect: Duration::from_secs(5),
    first: Duration::from_secs(5),
    stall: Duration::from_millis(300),
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
fn a_stream_cut_at_every_byte_keeps_what_came() {
    let said = "Eins 🙂 zwei.";
    let whole = stream(said);
    let complete = whole.windows(9).position(|w| w == b"\"stop\"}]}").unwrap() + 9;
    let replies: Vec<Reply> =
        (STREAM.len()..whole.len()).map(|n| Reply::Pieces(vec![whole[..n].to_vec()], Duration::ZERO)).collect();
    let server = ChatServer::start(replies);
    let mut client = Client::of(&server);
    let mut longest = 0;
    for cut in STREAM.len()..whole.len() {
        let told = client.ask("q");
        assert!(said.starts_with(&told.text), "cut at {cut}: {}", told.text);
        assert!(told.text.len() >= longest, "cut at {cut}: less than with a byte less");
        longest = told.text.len();
        // The end of the event that says so is what makes it the end.
        match &told.failed {
            Some(line) => {
                assert!(cut < complete && line.contains("in the middle of the answer"), "cut at {cut}: {line}")
            }
            None => {
                assert_eq!((cut >= complete, told.ended, &*told.text), (true, Some(Ended::Stop), said), "cut at {cut}")
            }
        }
    }
    assert_eq!(longest, said.len());
    assert_eq!(server.asked().len(), whole.len() - STREAM.len(), "nothing is asked again once an answer began");
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
fn every_status_has_its_words_and_only_some_are_asked_again() {
    let says = "say \u{1b}[31mno\u{1b}[0m\nand\u{202e} more";
    for (status, asked, words) in [
        ("301 Moved", 1, "sends on to http://elsewhere/v1"),
        ("400 Bad Request", 1, "refuses the request (400)"),
        ("401 Unauthorized", 1, "wants a key (401)"),
        ("403 Forbidden", 1, "does not allow it (403)"),
        ("404 Not Found", 1, "has no chat/completions, or not this model (404)"),
        ("413 Payload Too Large", 1, "so long a conversation (413)"),
        ("418 Teapot", 1, "status 418"),
        ("422 Unprocessable", 1, "refuses the request (422)"),
        ("429 Too Many Requests", 3, "is busy (429), asked 3 times"),
        ("500 Internal", 3, "failed (500), asked 3 times"),
        ("503 Unavailable", 3, "failed (503), asked 3 times"),
    ] {
        let body = json!({"error": {"message": says}}).to_string();
        let headers = "content-type: application/json\r\nlocation: http://elsewhere/v1\r\n";
        let server = ChatServer::start(vec![reply(status, headers, &body); 5]);
        let told = Client::of(&server).ask("q");
        let line = told.failed.unwrap();
        assert!(line.contains(words) && line.contains(&server.url), "{line}");
        assert!(line.contains("It says: say \\x1b[31mno\\x1b[0m andU+202E more"), "{line}");
        assert!(!line.contains(|c: char| c.is_control()), "{line:?}");
        assert_eq!(server.asked().len(), asked, "{status}");
    }
}

#[test]
fn a_server_that_recovers_is_asked_until_it_answers() {
    let busy = reply("429 Too Many Requests", "retry-after: 0.2\r\n", "{}");
    let server = ChatServer::start(vec![busy, Reply::HangUp, answer("Yes.")]);
    let mut client = Client::of(&server);
    let told = client.ask("q");
    assert_eq!(told.text, "Yes.");
    let seen = server.seen.lock().unwrap();
    let times: Vec<Instant> = seen.iter().filter(|s| s.line.starts_with("POST")).map(|s| s.at).collect();
    assert_eq!(times.len(), 3);
    assert!(times[1] - times[0] >= Duration::from_millis(200), "the server's own wait is kept");
    assert!(told.waits.iter().any(|w| w.contains("(429)") && w.contains("Trying again")), "{:?}", told.waits);
}

#[test]
fn a_wait_of_hours_is_not_waited_for() {
    let server = ChatServer::start(vec![reply("429 Too Many Requests", "retry-after: 86400\r\n", "{}"), answer("no")]);
    let began = Instant::now();
    let told = Client::of(&server).ask("q");
    assert!(told.failed.unwrap().contains("(429), asked once"));
    assert!(began.elapsed() < Duration::from_secs(5));
}

/// Stops a question a moment after it was asked: how long it took to be told so, and the server to be left.
fn stopped(reply: Reply, said: &str, leaves: bool) -> (Duration, Duration) {
    let server = ChatServer::start(vec![reply]);
    let patience = Patience { stall: Duration::from_secs(30), first: Duration::from_secs(30), ..QUICK };
    let mut client = Client::new(RemoteOptions { patience, ..options(&server.url) });
    let cancel = Cancel::default();
    let prompt = client.prompt(&[ChatMessage::new(ChatRole::User, "q")]);
    let id = client.send(prompt, 64, &cancel);
    let flag = cancel.clone();
    let stopper = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        flag.cancel();
        Instant::now()
    });
    let told = client.told(id);
    let ended = Instant::now();
    let stopped = stopper.join().unwrap();
    assert_eq!((told.ended, told.text.as_str()), (Some(Ended::Cancelled), said));
    assert_eq!(told.generated_in_state, told.tokens);
    let deadline = Instant::now() + Duration::from_secs(10);
    while leaves && server.left.lock().unwrap().is_empty() {
        assert!(Instant::now() < deadline, "the connection is not closed");
        std::thread::yield_now();
    }
    let left =
        server.left.lock().unwrap().first().map_or(Duration::ZERO, |left| left.saturating_duration_since(stopped));
    (ended.saturating_duration_since(stopped), left)
}

#[test]
fn a_stop_leaves_the_server_at_once() {
    let begun = [STREAM.as_bytes(), &events(&[delta("content", "Eins ")])].concat();
    // While it waits for an answer, while one comes, and while it waits to try again.
    let busy = reply("503 Unavailable", "retry-after: 30\r\n", "{}");
    for (reply, said, leaves) in
        [(Reply::Stall(Vec::new()), "", true), (Reply::Stall(begun), "Eins ", true), (busy, "", false)]
    {
        // The best of some: a machine that builds something else meanwhile is slow.
        let took: Vec<_> = (0..5).map(|_| stopped(reply.clone(), said, leaves)).collect();
        let quick = |t: &(Duration, Duration)| t.0.max(t.1) < Duration::from_millis(100);
        assert!(took.iter().any(quick), "{took:?}");
    }
}

#[test]
fn a_stream_that_stalls_is_given_up_and_kept() {
    let begun = [STREAM.as_bytes(), &events(&[delta("content", "Eins")])].concat();
    let server = ChatServer::start(vec![Reply::Stall(begun), answer("Zwei.")]);
    let mut client = Client::of(&server);
    let told = client.ask("q");
    let line = told.failed.unwrap();
    assert!(line.contains("sent nothing for 0.3 s (engine.stall_s)") && line.contains("is kept"), "{line}");
    assert_eq!(told.text, "Eins");
    assert_eq!(client.ask("q").text, "Zwei.", "the engine goes on");
}

#[test]
fn what_is_no_chat_is_named() {
    let html = reply("200 OK", "content-type: text/html\r\n", "<html><script>");
    let strange = Reply::Pieces(vec![[STREAM.as_bytes(), b"data: {\"hello\":1}\n\n"].concat()], Duration::ZERO);
    let broken = Reply::Pieces(vec![[STREAM.as_bytes(), b"data: {\"choices\n\n"].concat()], Duration::ZERO);
    let failed = [events(&[delta("content", "Eins ")]), events(&[json!({"error": {"message": "out of \u{7}memory"}})])];
    let failed = Reply::Pieces(vec![[STREAM.as_bytes(), &failed.concat()].concat()], Duration::ZERO);
    let mut long = [STREAM.as_bytes(), b"data: "].concat();
    long.resize(9 << 20, b'x');
    let long = Reply::Pieces(vec![long], Duration::ZERO);
    let filter = [STREAM.as_bytes(), &events(&[delta("content", "E"), end("content_filter")])].concat();
    let filter = Reply::Pieces(vec![filter], Duration::ZERO);
    let server = ChatServer::start(vec![html, strange, broken, failed, long, filter]);
    let mut client = Client::of(&server);
    for words in [
        "answers with text/html, not with a chat",
        "sends something that is no part of a chat",
        "sends something that is no part of a chat",
        "failed while it answered: out of \\x07memory. What had come (about",
        "sends a line without end",
        "does not let the answer go on (content filter)",
    ] {
        let line = client.ask("q").failed.unwrap();
        assert!(line.contains(words), "{line}");
    }
}

#[test]
fn bytes_that_are_no_text_are_marked() {
    let event = br#"data: {"choices":[{"delta":{"content":"a"#;
    let bytes = [STREAM.as_bytes(), event, b"\xff\xf0\x9f", b"b\"},\"finish_reason\":\"stop\"}]}\n\n"].concat();
    let server = ChatServer::start(vec![Reply::Pieces(vec![bytes], Duration::ZERO)]);
    assert_eq!(Client::of(&server).ask("q").text, "a\u{FFFD}\u{FFFD}b");
}

#[test]
fn a_field_that_a_server_does_not_take_is_said_once_and_not_sent_again() {
    let odd = refusal("422 Unprocessable", "Unsupported fields in the request: {'stream_options', 'seed'}");
    let server = ChatServer::start(vec![odd, answer("Yes."), answer("Again.")]);
    let mut client = Client::of(&server);
    let told = client.ask("q");
    assert_eq!(told.text, "Yes.");
    assert_eq!(told.notes, [format!("{} does not take stream_options, seed: left out from now on.", server.url)]);
    assert!(client.ask("q").notes.is_empty());
    let asked = server.asked();
    assert_eq!(asked.len(), 3);
    assert!(asked[0].get("seed").is_some());
    assert!(asked[1..].iter().all(|b| b.get("seed").is_none() && b.get("stream_options").is_none()));
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
    assert!(line.contains("does not take the key (401)") && line.contains("provided: (key)."), "{line}");
    let seen = server.seen.lock().unwrap();
    assert!(seen.iter().all(|s| s.headers.contains(&format!("Bearer {SECRET}"))), "{seen:?}");
    assert_eq!(seen.len(), 2);
}

#[test]
fn a_server_that_is_away_is_asked_again_by_each_question() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut client = Client::new(options(&format!("http://127.0.0.1:{port}/v1")));
    assert!(client.notes[0].starts_with("Nothing answers at http://127.0.0.1"), "{:?}", client.notes);
    assert_eq!(client.info.name, "unknown");
    assert!(client.ask("q").failed.unwrap().contains("Is the server running?"));
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
fn sequences_are_answered_side_by_side_and_forks_share_their_past() {
    let begun = [STREAM.as_bytes(), &events(&[delta("content", "Eins")])].concat();
    let server = ChatServer::start(vec![Reply::Stall(begun), answer("Zwei."), answer("Drei.")]);
    let patience = Patience { stall: Duration::from_secs(60), ..QUICK };
    let mut client = Client::new(RemoteOptions { patience, ..options(&server.url) });
    let (one, two, cancel) = (SequenceId(1), SequenceId(2), Cancel::default());
    let prompt = client.prompt(&[ChatMessage::new(ChatRole::User, "slow?")]);
    let slow = client.send_to(one, prompt, 64, &cancel);
    // Only once the slow one has its answer is the next reply the other's.
    let deadline = Instant::now() + Duration::from_secs(20);
    while server.asked().is_empty() {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    let prompt = client.prompt(&[ChatMessage::new(ChatRole::User, "quick?")]);
    let quick = client.send_to(two, prompt, 64, &Cancel::default());
    assert_eq!(client.told(quick).text, "Zwei.");
    // A fork waits for neither of the others.
    client.engine.commands.send(Command::Fork { id: 5, from: two, to: SequenceId(3) }).unwrap();
    let more = "<|im_end|>\n<|im_start|>user\nmore?<|im_end|>\n<|im_start|>assistant\n";
    let more = client.text.tokenizer.encode_prompt(more).unwrap();
    let fork = client.send_to(SequenceId(3), more, 64, &Cancel::default());
    assert_eq!(client.told(fork).text, "Drei.");
    assert_eq!(server.asked()[2]["messages"].as_array().unwrap().len(), 3);
    cancel.cancel();
    assert_eq!(client.told(slow).ended, Some(Ended::Cancelled));
}

#[test]
fn what_waits_behind_a_failure_fails_with_it_up_to_the_next_restore() {
    let slow = Reply::Pieces(
        vec![Vec::new(), b"HTTP/1.1 403 No\r\ncontent-length: 0\r\n\r\n".to_vec()],
        Duration::from_millis(300),
    );
    let server = ChatServer::start(vec![slow, answer("Yes.")]);
    let mut client = Client::of(&server);
    let prompt = client.prompt(&[ChatMessage::new(ChatRole::User, "q")]);
    let ids = [0, 1].map(|_| client.send(prompt.clone(), 64, &Cancel::default()));
    client.restore(Vec::new());
    let last = client.send(prompt, 64, &Cancel::default());
    for id in ids {
        assert!(client.told(id).failed.unwrap().contains("(403)"));
    }
    assert_eq!(client.told(last).text, "Yes.");
    assert_eq!(server.asked().len(), 2);
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
    assert!(client.told(id).failed.unwrap().ends_with("does not go on with an answer. /regen asks again."));
}

#[test]
fn an_answer_that_comes_at_once_tells_of_no_speed() {
    let body = json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": "one two three four"}, "finish_reason": "stop"}]});
    let server = ChatServer::start(vec![reply("200 OK", "content-type: application/json\r\n", &body.to_string())]);
    let told = Client::of(&server).ask("q");
    assert!(told.tokens > 2, "{}", told.text);
    assert_eq!(told.stats.decode_ms, 0.0);
}

#[test]
fn an_answer_without_a_word_is_said() {
    let bytes = [STREAM.as_bytes(), &events(&[end("tool_calls")])].concat();
    let server = ChatServer::start(vec![Reply::Pieces(vec![bytes], Duration::ZERO), answer("A.")]);
    let mut client = Client::of(&server);
    let silent = client.ask("q");
    assert_eq!(silent.ended, Some(Ended::Stop));
    assert!(silent.notes.iter().any(|n| n.ends_with("ended its answer without a word.")), "{:?}", silent.notes);
    assert!(client.ask("q").notes.is_empty());
}

#[test]
fn a_fork_of_a_conversation_that_was_lost_fails_with_it() {
    let server = ChatServer::start(vec![Reply::Pieces(vec![STREAM.as_bytes().to_vec()], Duration::from_millis(300))]);
    let mut client = Client::of(&server);
    let prompt = client.prompt(&[ChatMessage::new(ChatRole::User, "q")]);
    let first = client.send(prompt, 64, &Cancel::default());
    let fork = u64::MAX;
    client.engine.commands.send(Command::Fork { id: fork, from: MAIN, to: SequenceId(1) }).unwrap();
    // The answer breaks off while the fork waits for it.
    assert!(client.told(first).failed.is_some());
    assert!(client.told(fork).failed.is_some());
}
