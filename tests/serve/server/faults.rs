//! Bad input, bad clients and bad moments: each has its status, and the next request is answered.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use sala_chat::text::Before;
use serde_json::{Value, json};

use crate::server::client::{Reply, Running, Setup, permits};
use crate::server::support::fake_engine::STUCK;
use crate::server::support::text_model;
use crate::server::{CHAT, question, with};

#[test]
fn wrong_requests_name_the_field_and_have_a_status() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup { context_limit: 2_000, ..Setup::default() });
    let cases: Vec<(Value, u16, &str, &str)> = vec![
        (json!([1]), 400, "invalid_json", ""),
        (json!({}), 400, "missing_required_parameter", "messages"),
        (json!({ "messages": [] }), 400, "invalid_value", "messages"),
        (json!({ "messages": "hi" }), 400, "invalid_value", "messages"),
        (json!({ "messages": [7] }), 400, "invalid_value", "messages[0]"),
        (json!({ "messages": [{ "role": "king", "content": "x" }] }), 400, "invalid_value", "messages[0].role"),
        (json!({ "messages": [{ "content": "x" }] }), 400, "invalid_value", "messages[0].role"),
        (json!({ "messages": [{ "role": "user" }] }), 400, "missing_required_parameter", "messages[0].content"),
        (json!({ "messages": [{ "role": "user", "content": 5 }] }), 400, "invalid_value", "messages[0].content"),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }] }),
            400,
            "invalid_value",
            "messages[0].content[0].type",
        ),
        (with(question("x"), "temperature", json!(2.5)), 400, "invalid_value", "temperature"),
        (with(question("x"), "temperature", json!("hot")), 400, "invalid_value", "temperature"),
        (with(question("x"), "max_tokens", json!(0)), 400, "invalid_value", "max_tokens"),
        (with(question("x"), "n", json!(99)), 400, "invalid_value", "n"),
        (with(question("x"), "stop", json!([1])), 400, "invalid_value", "stop"),
        (with(question("x"), "seed", json!("a")), 400, "invalid_value", "seed"),
        (with(question("x"), "logit_bias", json!({ "5": "a lot" })), 400, "invalid_value", "logit_bias"),
        (with(question("x"), "logit_bias", json!({ "99999999": 1 })), 400, "invalid_value", "logit_bias"),
        (with(question("x"), "stop_token_ids", json!([-1])), 400, "invalid_value", "stop_token_ids"),
        (with(question("x"), "min_tokens", json!(1.5)), 400, "invalid_value", "min_tokens"),
        (with(question("x"), "max_tokens", json!(-2)), 400, "invalid_value", "max_tokens"),
        (with(question("x"), "enable_thinking", json!("yes")), 400, "invalid_value", "enable_thinking"),
        (with(question("x"), "grammar", json!("root ::= x")), 400, "unsupported_parameter", "grammar"),
        (with(question("x"), "guided_choice", json!("a")), 400, "invalid_value", "guided_choice"),
        (with(question("x"), "model", json!("gpt-9")), 404, "model_not_found", "model"),
        (question(&"word ".repeat(3_000)), 400, "context_length_exceeded", "messages"),
    ];
    for (body, status, code, param) in cases {
        let shown: String = body.to_string().chars().take(200).collect();
        assert_eq!(server.post(CHAT, &body).error(), (status, code.into(), param.into()), "{shown}");
    }
    // What changes nothing may be sent.
    let polite = with(with(question("x"), "user", json!("me")), "temperature", Value::Null);
    assert_eq!(server.post(CHAT, &polite).status, 200);
    server.end();
}

#[test]
fn a_field_that_would_be_ignored_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let user = json!({ "role": "user", "content": "Rain in Rome?" });
    let empty = json!([{ "role": "user", "content": [{ "type": "text" }] }]);
    let called = json!({ "role": "assistant", "content": null, "function_call": { "name": "f", "arguments": 5 } });
    let function = json!({ "type": "function", "function": { "name": "weather" } });
    for (body, param) in [
        (json!({ "messages": empty }), "messages[0].content[0].text"),
        (json!({ "messages": [user, called, user] }), "messages[1].function_call.arguments"),
        (json!({ "messages": [user], "tools": [function, function] }), "tools"),
        (json!({ "messages": [user], "response_format": { "type": "json_schema" } }), "response_format.json_schema"),
    ] {
        let (status, _, named) = server.post(CHAT, &body).error();
        assert_eq!((status, named.as_str()), (400, param));
    }
    let message = server.post("/v1/messages", &json!({ "max_tokens": 9, "messages": empty }));
    assert_eq!(message.status, 400);
    assert_eq!(message.json()["error"]["message"], "messages[0].content[0].text is missing");
    server.end();
}

#[test]
fn wrong_paths_methods_types_and_bodies_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    assert_eq!(server.get("/v2/nothing").error(), (404, "unknown_url".into(), String::new()));
    let wrong_method = server.get(CHAT);
    assert_eq!(wrong_method.error(), (405, "method_not_allowed".into(), String::new()));
    assert!(wrong_method.head.to_lowercase().contains("allow: post"), "{}", wrong_method.head);
    let post = |kind: &str, body: &str| {
        let length = body.len();
        server.raw(&format!(
            "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\n{kind}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
        ))
    };
    assert_eq!(post("", "{}").error().0, 415);
    let form = post("content-type: application/x-www-form-urlencoded\r\n", "{}").json()["error"]["message"].to_string();
    assert!(form.contains("x-www-form-urlencoded: set the header content-type"), "{form}");
    assert_eq!(post("content-type: text/plain\r\n", "{}").error().0, 415);
    let json = "content-type: application/json; charset=utf-8\r\n";
    assert_eq!(post(json, "{\"a\":").error().1, "invalid_json");
    assert_eq!(post(json, "").error().1, "invalid_json");
    // A character that a program cut in half.
    let cut = post(json, r#"{"messages": [{"role": "user", "content": "\ud83d half"}], "max_tokens": 1}"#);
    assert!(cut.json()["choices"].is_array(), "{}", cut.json());
    assert_eq!(post(json, &"[".repeat(100_000)).error().1, "invalid_json");
    let huge = server.raw(&format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 999999999999\r\nconnection: close\r\n\r\n{{"
    ));
    assert_eq!(huge.error(), (413, "request_too_large".into(), String::new()));
    // Ids that are no text, and names as long as a body.
    for path in ["/v1/models/%ff", "/v1/files/%ff", "/v1/responses/%ff"] {
        assert_eq!(server.get(path).error(), (400, "invalid_url".into(), String::new()), "{path}");
    }
    let long = server.post(CHAT, &with(question("x"), "model", "m".repeat(100_000).into()));
    assert!(long.error().1 == "model_not_found" && long.body.len() < 5_000, "{}", long.body.len());
    let nameless = server.raw("GET /v1/models HTTP/1.1\r\nconnection: close\r\n\r\n");
    assert_eq!(nameless.error(), (400, "invalid_host".into(), String::new()));
    // Not HTTP at all, and heads beyond all measure: the connection ends with a word, the server does not.
    for garbage in ["GARBAGE\r\n\r\n", "GET /health HTTP/9.9\r\n\r\n", "GET /health HTTP/1.1\r\nno header\r\n\r\n"] {
        assert_eq!(server.raw(garbage).status, 400, "{garbage}");
    }
    let many: String = (0..500).map(|i| format!("x-{i}: y\r\n")).collect();
    for headers in [many, format!("x: {}\r\n", "y".repeat(1 << 20))] {
        let reply = server.raw(&format!("GET /health HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n"));
        assert!(reply.status == 431 && reply.head.contains("connection: close"), "{}", reply.head);
    }
    let headers = format!("connection: close\r\nx: {}\r\n", "y".repeat(100_000));
    let reply = server.raw(&format!("GET /health HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n"));
    assert_eq!(reply.error(), (431, "headers_too_large".into(), String::new()));
    // Of a path that is too long, whichever limit it meets first.
    let long = server.get(&format!("/{}", "a".repeat(200_000)));
    assert!([414, 431].contains(&long.status), "{}", long.head);
    assert_eq!(server.get("/health").status, 200);
    server.end();
}

#[test]
fn a_web_page_and_a_client_without_the_key_stay_outside() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup { key: Some("a-long-enough-key"), ..Setup::default() });
    let models = |headers: &str| {
        server.raw(&format!("GET /v1/models HTTP/1.1\r\nhost: localhost\r\n{headers}connection: close\r\n\r\n"))
    };
    assert_eq!(models("").error(), (401, "missing_api_key".into(), String::new()));
    assert_eq!(models("authorization: Bearer wrong\r\n").error().0, 401);
    assert_eq!(models("authorization: Bearer a-long-enough-key\r\n").status, 200);
    assert_eq!(models("x-api-key: a-long-enough-key\r\n").status, 200);
    assert_eq!(models("authorization: Bearer a-long-enough-key\r\norigin: http://localhost\r\n").error().0, 403);
    // Whether it is alive is no secret.
    assert_eq!(server.get("/health").status, 200);
    server.end();
    let server = Running::start(dir.path(), Setup::default());
    let rebound = server.raw("GET /v1/models HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n");
    assert_eq!(rebound.error(), (403, "host_not_allowed".into(), String::new()));
    server.end();
}

#[test]
fn a_full_queue_is_reported_and_a_disconnect_frees_the_engine() {
    let dir = tempfile::tempdir().unwrap();
    let (gate, permit) = crossbeam_channel::unbounded();
    let server =
        Running::start(dir.path(), Setup { gate: Some(permit), queue: 1, side_by_side: 1, ..Setup::default() });
    let body = with(question("Hi"), "stream", true.into());
    let mut first = server.open();
    first.write_all(server.request(CHAT, "", &body.to_string()).as_bytes()).unwrap();
    // Its stream has begun: it has the engine, which waits at the gate.
    let mut head = [0u8; 12];
    first.read_exact(&mut head).unwrap();
    let mut second = server.open();
    second.write_all(server.request(CHAT, "", &body.to_string()).as_bytes()).unwrap();
    server.until("the second waits", || server.metric("requests_waiting") == 1);
    let third = server.post(CHAT, &question("Hi"));
    assert_eq!(third.error(), (429, "queue_full".into(), String::new()));
    assert!(third.head.to_lowercase().contains("retry-after"));
    // The first disconnects before a single token: the second runs without any permit for the first.
    drop(first);
    permits(&gate, 40);
    let second = Reply::read(second);
    assert!(second.body.ends_with("[DONE]\n\n"), "{}", second.body);
    server.end();
}

#[test]
fn a_request_of_several_prompts_does_not_block_itself() {
    let dir = tempfile::tempdir().unwrap();
    // The engine answers one at a time, and one may wait.
    let server = Running::start(dir.path(), Setup { queue: 1, side_by_side: 4, sequences: 1, ..Setup::default() });
    let several = serde_json::json!({ "prompt": ["One", "Two", "Three", "Four", "Five"], "max_tokens": 4 });
    let reply = server.post("/v1/completions", &several);
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(reply.json()["choices"].as_array().unwrap().len(), 5);
    server.end();
}

#[test]
fn ending_lets_a_running_answer_end_and_refuses_new_ones() {
    let dir = tempfile::tempdir().unwrap();
    let (gate, permit) = crossbeam_channel::unbounded();
    let server = Running::start(dir.path(), Setup { gate: Some(permit), ..Setup::default() });
    let mut running = server.open();
    let body = with(question("Hi"), "stream", true.into());
    running.write_all(server.request(CHAT, "", &body.to_string()).as_bytes()).unwrap();
    let mut first = [0u8; 1];
    running.read_exact(&mut first).unwrap();
    server.stop.stop();
    server.until("nobody is let in", || std::net::TcpStream::connect(server.address).is_err());
    permits(&gate, 40);
    let mut rest = String::new();
    running.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("[DONE]") && rest.contains("friend"), "{rest}");
    server.end();
}

#[test]
fn a_second_stop_ends_answers_at_once_and_reports_it() {
    let dir = tempfile::tempdir().unwrap();
    let (_gate, permit) = crossbeam_channel::unbounded();
    let server = Running::start(dir.path(), Setup { gate: Some(permit), side_by_side: 1, ..Setup::default() });
    let mut streamed = server.open();
    let body = with(question("Hi"), "stream", true.into());
    streamed.write_all(server.request(CHAT, "", &body.to_string()).as_bytes()).unwrap();
    let mut first = [0u8; 1];
    streamed.read_exact(&mut first).unwrap();
    let mut waits = server.open();
    waits.write_all(server.request(CHAT, "", &question("Hi").to_string()).as_bytes()).unwrap();
    server.until("the second waits", || server.metric("requests_waiting") == 1);
    (0..2).for_each(|_| server.stop.stop());
    let mut rest = String::new();
    streamed.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("shutting_down") && !rest.contains("[DONE]"), "{rest}");
    assert_eq!(Reply::read(waits).error(), (503, "shutting_down".into(), String::new()));
    server.end();
}

#[test]
fn an_answer_that_allows_no_token_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let text = text_model(None);
    let mut tokens = text.tokenizer.encode_after("{\"a\": 1", Before::Text).unwrap();
    tokens.push(STUCK);
    let server = Running::start(dir.path(), Setup { script: Box::new(move |_, _| tokens.clone()), ..Setup::default() });
    // No empty answer, and none that is tried again.
    let whole = server.post(CHAT, &question("Hi"));
    assert_eq!(whole.error(), (422, "grammar_stuck".into(), String::new()));
    // A stream keeps what was written.
    let events = server.post(CHAT, &with(question("Hi"), "stream", true.into())).events();
    let words: String = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(words, "{\"a\": 1");
    assert_eq!(events.last().unwrap()["error"]["code"], "grammar_stuck");
    assert!(events.iter().all(|e| e["choices"][0]["finish_reason"].is_null()), "{events:?}");
    server.end();
}

#[test]
fn a_client_that_sends_much_reads_why_it_was_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let long = " ".repeat(8 << 20);
    let too_long = 40usize << 20;
    for (path, kind, length, status) in [
        ("/v2/nothing", "application/json", long.len(), 404),
        (CHAT, "text/plain", long.len(), 415),
        (CHAT, "application/json", too_long, 413),
    ] {
        let mut stream = server.open();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut left = length;
        while left > 0 {
            let part = left.min(long.len());
            stream.write_all(&long.as_bytes()[..part]).unwrap_or_else(|e| panic!("{status}, {left} bytes left: {e}"));
            left -= part;
        }
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap_or_else(|e| panic!("{status}: {e}"));
        assert!(answer.starts_with(format!("HTTP/1.1 {status} ").as_bytes()), "{}", String::from_utf8_lossy(&answer));
    }
    server.end();
}

#[test]
fn an_unsent_request_does_not_delay_the_shutdown() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let mut open = Vec::new();
    for begun in [
        "GET /hea".to_owned(),
        format!(
            "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{{"
        ),
        // After an answer.
        "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\nGET /hea".to_owned(),
    ] {
        let mut stream = server.open();
        stream.write_all(begun.as_bytes()).unwrap();
        open.push(stream);
    }
    open[2].read_exact(&mut [0; 12]).unwrap();
    server.until("all are there", || server.metric("connections") >= 4);
    let begun = Instant::now();
    server.end();
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
}

#[test]
fn a_connection_beyond_the_limit_waits_until_another_ends() {
    const LIMIT: usize = 512;
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let health = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let answered = |stream: &mut std::net::TcpStream| {
        let mut status = [0u8; 12];
        stream.read_exact(&mut status).map(|()| assert_eq!(&status, b"HTTP/1.1 200"))
    };
    let mut first = server.open();
    first.write_all(health).unwrap();
    answered(&mut first).unwrap();
    // Silent, or with half a head.
    let mut idle: Vec<_> = (1..LIMIT)
        .map(|i| {
            let mut stream = server.open();
            stream
                .write_all(if i % 2 == 0 { b"" } else { b"POST /v1/chat/completions HTTP/1.1\r\nhost: loc" })
                .unwrap();
            stream
        })
        .collect();
    let mut late = server.open();
    late.write_all(health).unwrap();
    let patience = late.read_timeout().unwrap();
    late.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let waits = answered(&mut late).unwrap_err().kind();
    assert!(matches!(waits, std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut), "{waits:?}");
    late.set_read_timeout(patience).unwrap();
    drop(idle.pop());
    answered(&mut late).unwrap();
    drop((idle, first, late));
    server.until("they are gone", || server.metric("connections") <= 2);
    assert_eq!(server.post(CHAT, &question("Hi")).status, 200);
    server.end();
}

#[test]
fn a_request_that_can_be_read_in_two_ways_is_not_answered() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let hosts = "GET /v1/models HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\nconnection: close\r\n\r\n";
    assert_eq!(server.raw(hosts).error(), (400, "invalid_host".into(), String::new()));
    let body = question("Hi").to_string();
    let packed = server.raw(&server.request(CHAT, "content-encoding: gzip\r\n", &body));
    assert_eq!(packed.error(), (415, "unsupported_media_type".into(), String::new()));
    assert_eq!(server.raw(&server.request(CHAT, "content-encoding: identity\r\n", &body)).status, 200);
    let lengths =
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}x";
    assert_eq!(server.raw(lengths).status, 400);
    // A field that is given twice is the last one, as JSON is read everywhere.
    for (fields, status) in [("\"temperature\":7,\"temperature\":0", 200), ("\"temperature\":0,\"temperature\":7", 400)]
    {
        let twice = body.replace("\"temperature\":0", fields);
        assert_eq!(server.raw(&server.request(CHAT, "", &twice)).status, status, "{twice}");
    }
    server.end();
}
