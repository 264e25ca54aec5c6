//! Words, headers and fields that clients act on.

use serde_json::{Value, json};

use crate::server::client::{Running, Setup};
use crate::server::{CHAT, question, with};

const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

#[test]
fn a_prompt_that_is_too_long_is_refused_in_words_that_make_clients_compact() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup { context_limit: 2_000, ..Setup::default() });
    for words in [3_000, 30_000] {
        let text = "word ".repeat(words);
        let messages = json!([{ "role": "user", "content": text }]);
        let count = server.post("/v1/messages/count_tokens", &json!({ "messages": messages })).json();
        let count = count["input_tokens"].as_u64().unwrap();
        let reply = server.post(MESSAGES, &json!({ "max_tokens": 9, "messages": messages }));
        let error = reply.json()["error"].clone();
        assert_eq!((reply.status, &error["type"]), (400, &json!("invalid_request_error")));
        assert_eq!(error["message"], format!("prompt is too long: {count} tokens > 2000 maximum"));
        let begins = "This model's maximum context length is 2000 tokens. However, your messages resulted in ";
        for (path, body) in [
            (CHAT, question(&text)),
            ("/v1/completions", json!({ "prompt": text })),
            (RESPONSES, json!({ "input": text })),
        ] {
            let reply = server.post(path, &body);
            assert_eq!(reply.error().1, "context_length_exceeded", "{path}");
            let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
            let rest = message.strip_prefix(begins).unwrap_or_else(|| panic!("{message}"));
            let (number, rest) = rest.split_once(' ').unwrap();
            assert!(number.parse::<usize>().unwrap() > words && rest.starts_with("tokens. Shorten"), "{message}");
        }
    }
    server.end();
}

#[test]
fn a_refusal_that_a_repeat_does_not_change_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    for (path, body) in [(CHAT, json!({})), ("/v1/nothing", json!({})), (MESSAGES, json!({ "max_tokens": 1 }))] {
        let reply = server.post(path, &body);
        assert!(reply.head.contains("x-should-retry: false"), "{}", reply.head);
    }
    assert!(!server.post(CHAT, &question("Hi")).head.contains("x-should-retry"));
    server.end();
}

#[test]
fn a_prompt_is_read_without_an_answer() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let body = json!({ "max_tokens": 0, "messages": [{ "role": "user", "content": "word ".repeat(300) }] });
    let reply = server.post(MESSAGES, &body).json();
    assert_eq!((&reply["content"], &reply["stop_reason"]), (&json!([]), &json!("max_tokens")), "{reply}");
    let usage = &reply["usage"];
    assert!(usage["input_tokens"].as_u64().unwrap() > 300 && usage["output_tokens"] == 0, "{reply}");
    let again = server.post(MESSAGES, &with(body.clone(), "max_tokens", json!(9))).json();
    assert!(again["usage"]["cache_read_input_tokens"].as_u64().unwrap() > 300, "{again}");
    let events = server.post(MESSAGES, &with(body, "stream", true.into())).events();
    let kinds: Vec<&str> = events.iter().filter_map(|e| e["type"].as_str()).collect();
    assert_eq!(kinds, ["message_start", "message_delta", "message_stop"]);
    server.end();
}

#[test]
fn fields_that_would_change_an_answer_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    for (field, value) in [
        ("stop_sequence", json!("x")),
        ("stop_words", json!(["x"])),
        ("stop_token", json!("x")),
        ("stopping_strings", json!(["x"])),
        ("stop_regex", json!("x")),
        ("max_length", json!(5)),
        ("min_length", json!(5)),
        ("t_max_predict_ms", json!(1000)),
        ("bad_words", json!(["x"])),
        ("allowed_token_ids", json!([1])),
        ("response_schema", json!({ "type": "object" })),
        ("json_mode", json!(true)),
        ("text.format", json!({ "format": { "type": "json_object" } })),
        ("random_seed", json!(1)),
        ("ignore_eos", json!(true)),
        ("options.num_predict", json!({ "num_predict": 3 })),
        ("options.stop", json!({ "stop": ["x"] })),
        ("options.seed", json!({ "seed": 1 })),
    ] {
        let body = with(question("Hi"), field.split('.').next().unwrap(), value);
        assert_eq!(server.post(CHAT, &body).error(), (400, "unsupported_parameter".into(), field.into()));
    }
    for (field, value) in
        [("ignore_eos", json!(false)), ("options", json!({})), ("text", json!({ "verbosity": "low" }))]
    {
        assert_eq!(server.post(CHAT, &with(question("Hi"), field, value)).status, 200, "{field}");
    }
    server.end();
}

#[test]
fn answers_have_the_fields_that_published_types_require() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let has = |object: &Value, names: &[&str]| {
        for name in names {
            assert!(object.get(*name).is_some(), "{name}: {object}");
        }
    };
    let message = ["container", "context_management", "diagnostics", "stop_details"];
    let usage = ["fallback_credit", "iterations", "speed", "inference_geo", "server_tool_use"];
    let user = json!([{ "role": "user", "content": "Hi" }]);
    let body = json!({ "max_tokens": 50, "messages": user });
    let whole = server.post(MESSAGES, &body).json();
    has(&whole, &message);
    has(&whole["usage"], &usage);
    has(&whole["content"][0], &["citations"]);
    let streamed = with(body, "stream", true.into());
    let events = server.post(MESSAGES, &streamed).events();
    let event = |name: &str| events.iter().find(|e| e["type"] == name).unwrap();
    has(&event("message_start")["message"], &message);
    has(&event("content_block_start")["content_block"], &["citations"]);
    has(&event("message_delta")["delta"], &["container", "stop_details"]);
    has(&event("message_delta")["usage"], &usage);
    has(event("message_delta"), &["context_management"]);
    let tools = json!([{ "name": "look", "input_schema": { "type": "object", "properties": {} } }]);
    let forced = with(with(streamed, "tools", tools), "tool_choice", json!({ "type": "any" }));
    let events = server.post(MESSAGES, &forced).events();
    let block = &events.iter().find(|e| e["type"] == "content_block_start").unwrap()["content_block"];
    assert_eq!(block["caller"], json!({ "type": "direct" }));
    let model = &server.get("/v1/models").json()["data"][0];
    has(model, &["allowed_fallback_models", "capabilities", "deprecated_at", "line", "max_tokens", "retires_at"]);

    let chat = server.post(CHAT, &question("Hi")).json();
    assert_eq!(chat["choices"][0]["message"].get("refusal"), Some(&Value::Null));
    // Anthropic's type of an error requires the field.
    let error = server.post(MESSAGES, &json!({ "max_tokens": 1 })).json();
    assert_eq!(error.get("request_id"), Some(&Value::Null), "{error}");
    server.end();
}

#[test]
fn a_forced_call_has_no_text_and_a_pdf_without_a_name_is_no_text_file() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let tools = json!([{ "type": "function", "function": { "name": "look" } }]);
    let forced = with(with(question("Hi"), "tools", tools), "tool_choice", json!("required"));
    let events = server.post(CHAT, &with(forced, "stream", true.into())).events();
    assert_eq!(events[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": null }));
    assert!(events.iter().all(|e| !e["choices"][0]["delta"]["content"].is_string()));
    let source = json!({ "type": "base64", "media_type": "application/pdf", "data": "JVBERi0=" });
    let content = json!([{ "type": "document", "source": source }]);
    let body = json!({ "max_tokens": 9, "messages": [{ "role": "user", "content": content }] });
    let reply = server.post(MESSAGES, &body);
    assert!(reply.status == 400 && reply.body.contains(": document cannot be read"), "{}", reply.body);
    server.end();
}
