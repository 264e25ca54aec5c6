//! The server for other programs, against a scripted engine with answers and refusals that depend on its state.

mod apis;
mod client;
mod clients_of_today;
mod clients_sent;
mod clients_words;
mod damaged_cache;
mod faults;
mod later_tools;
mod library;
mod logs;
mod official;
mod open_responses;
mod prefix;
mod schemas;
mod sent_files;
mod slow_disk;
use crate::support;

use client::{Running, Setup, answers};
use serde_json::{Value, json};

fn question(text: &str) -> Value {
    json!({ "model": "fake", "messages": [{ "role": "user", "content": text }], "temperature": 0 })
}

fn with(mut body: Value, name: &str, value: Value) -> Value {
    body[name] = value;
    body
}

const CHAT: &str = "/v1/chat/completions";

#[test]
fn a_question_is_answered_whole_or_streamed_with_the_same_words() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let whole = server.post(CHAT, &question("Hi"));
    assert_eq!(whole.status, 200, "{}", whole.body);
    let whole = whole.json();
    assert_eq!(whole["object"], "chat.completion");
    assert_eq!(whole["model"], "fake");
    assert_eq!(whole["choices"][0]["message"]["content"], "Hello there, friend.");
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    let usage = &whole["usage"];
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(usage["total_tokens"].as_u64().unwrap(), {
        usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap()
    });

    let body = with(with(question("Hi"), "stream", true.into()), "stream_options", json!({ "include_usage": true }));
    let streamed = server.post(CHAT, &body);
    assert!(streamed.head.contains("text/event-stream"), "{}", streamed.head);
    assert!(streamed.body.ends_with("data: [DONE]\n\n"));
    let events = streamed.events();
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let words: String = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(words, "Hello there, friend.");
    let last = events.last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], usage["completion_tokens"]);
    let reasons: Vec<&str> = events.iter().filter_map(|e| e["choices"][0]["finish_reason"].as_str()).collect();
    assert_eq!(reasons, ["stop"]);
    server.end();
}

#[test]
fn stop_texts_lengths_and_several_answers_are_honoured() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let stopped = server.post(CHAT, &with(question("Hi"), "stop", json!(["there, f", "zzz"]))).json();
    assert_eq!(stopped["choices"][0]["message"]["content"], "Hello ");
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let short = server.post(CHAT, &with(question("Hi"), "max_completion_tokens", 2.into())).json();
    assert_eq!(short["choices"][0]["finish_reason"], "length");
    assert_eq!(short["usage"]["completion_tokens"], 2);
    let three = server.post(CHAT, &with(with(question("Hi"), "n", 3.into()), "stop", json!("friend"))).json();
    let choices = three["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    for (i, choice) in choices.iter().enumerate() {
        assert_eq!(
            (choice["index"].as_u64(), &choice["message"]["content"]),
            (Some(i as u64), &json!("Hello there, "))
        );
    }
    server.end();
}

#[test]
fn thoughts_are_separate_from_the_answer() {
    let dir = tempfile::tempdir().unwrap();
    let text = support::text_model(None);
    let script = answers(text, "<think>\nHm.\n</think>\n\nYes.");
    let server = Running::start(dir.path(), Setup { script, ..Setup::default() });
    let whole = server.post(CHAT, &question("Is it?")).json();
    let message = &whole["choices"][0]["message"];
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("Hm."), &json!("Yes.")));
    assert!(whole["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 0);
    let streamed = server.post(CHAT, &with(question("Is it?"), "stream", true.into())).events();
    let thoughts: String =
        streamed.iter().filter_map(|e| e["choices"][0]["delta"]["reasoning_content"].as_str()).collect();
    assert_eq!(thoughts, "Hm.");
    server.end();
}

#[test]
fn quotes_of_a_model_with_a_quote_format_match_the_text() {
    let dir = tempfile::tempdir().unwrap();
    let file = br#"{"quote_opening": "It says: \""}"#;
    let says = sala_chat::text::Recommended::of_folder(Some(file), |_| Ok(Vec::new())).unwrap();
    let text = sala_chat::text::TextModel { recommended: says, ..support::text_model(None) };
    // A copy that went wrong.
    let script = || answers(support::text_model(None), "It says: \"The doors are red.\"");
    let server = Running::start(dir.path(), Setup { text, script: script(), ..Setup::default() });
    let prompt = "<document name=\"a.txt\">\nThe doors are green.\n</document>\n\nWhich colour?";
    let content = |body: &Value| server.post(CHAT, body).json()["choices"][0]["message"]["content"].clone();
    let quote = "It says: \"The doors are green.\"";
    let answer = content(&question(prompt));
    assert!(answer.as_str().unwrap().starts_with(quote), "{answer}");
    let system =
        json!([{ "role": "system", "content": "The doors are green." }, { "role": "user", "content": "Well?" }]);
    // Text outside of a document is not quoted.
    let answer = content(&with(question(""), "messages", system));
    assert!(!answer.as_str().unwrap().starts_with("It says: \""), "{answer}");
    let messages = json!({ "model": "fake", "max_tokens": 100, "messages": [{ "role": "user", "content": prompt }] });
    let answer = server.post("/v1/messages", &messages).json()["content"][0]["text"].clone();
    assert!(answer.as_str().unwrap().starts_with(quote), "{answer}");
    let answer = server.post("/v1/responses", &json!({ "model": "fake", "input": prompt }));
    assert!(answer.body.contains("doors are green.\\\""), "{}", answer.body);
    // The request's own constraint has priority, and arguments of functions are no quotes.
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": { "const": "no" } } });
    assert_eq!(content(&with(question(prompt), "response_format", format)), "\"no\"");
    let tools = json!([{ "type": "function", "function": { "name": "paint", "parameters": { "type": "object" } } }]);
    assert_eq!(content(&with(question(prompt), "tools", tools)), "It says: \"The doors are red.\"");
    // A raw text is not a chat.
    let raw = server.post("/v1/completions", &json!({ "prompt": "The doors are green.", "max_tokens": 100 })).json();
    assert!(raw["choices"][0]["text"].as_str().unwrap().ends_with("The doors are red.\""), "{raw}");
    server.end();
}

#[test]
fn models_health_counters_and_tokens_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let models = server.get("/v1/models").json();
    assert_eq!((&models["data"][0]["id"], &models["data"][0]["max_model_len"]), (&json!("fake"), &json!(100_000)));
    assert_eq!(server.get("/v1/models/fake").json()["id"], "fake");
    assert_eq!(server.get("/v1/models/other").error(), (404, "model_not_found".into(), "model".into()));
    assert_eq!(server.get("/health").json()["status"], "ok");
    let tokens = server.post("/tokenize", &json!({ "prompt": "Hello there" })).json();
    let back = server.post("/detokenize", &json!({ "tokens": tokens["tokens"] })).json();
    assert!(back["prompt"].as_str().unwrap().ends_with("Hello there"), "{back}");
    let rendered = server.post("/tokenize", &json!({ "messages": [{ "role": "user", "content": "Hi" }] })).json();
    let prompt = server.post(CHAT, &question("Hi")).json();
    assert_eq!(rendered["count"], prompt["usage"]["prompt_tokens"]);
    let ask = json!({ "messages": [{ "role": "user", "content": "Hi" }], "add_special_tokens": false });
    let bare = server.post("/tokenize", &ask).json();
    assert_eq!(bare["tokens"].as_array().unwrap()[..], rendered["tokens"].as_array().unwrap()[1..]);
    let metrics = server.get("/metrics").body;
    assert!(
        metrics.contains("sala_chat_requests_total{path=\"/v1/chat/completions\",status=\"200\"} 1\n"),
        "{metrics}"
    );
    assert!(metrics.contains("sala_chat_ready 1\n"));
    assert_eq!(server.metric("generated_tokens_total"), prompt["usage"]["completion_tokens"].as_u64().unwrap());
    server.end();
}
