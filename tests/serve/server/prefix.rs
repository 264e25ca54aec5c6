//! What was read once is not read again: live, across requests, and across runs of the server.

use serde_json::{Value, json};

use crate::server::CHAT;
use crate::server::client::{Running, Setup};
use crate::server::support::digest_answers;
use crate::server::support::text_model;

pub fn setup() -> Setup {
    Setup { script: digest_answers(text_model(None)), ..Setup::default() }
}

pub fn ask(server: &Running, messages: &Value) -> (String, u64, u64) {
    let reply = server.post(CHAT, &json!({ "messages": messages, "temperature": 0 }));
    assert_eq!(reply.status, 200, "{}", reply.body);
    let reply = reply.json();
    let usage = &reply["usage"];
    (
        reply["choices"][0]["message"]["content"].as_str().unwrap().to_owned(),
        usage["prompt_tokens"].as_u64().unwrap(),
        usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap(),
    )
}

pub fn long(what: &str) -> String {
    format!("{what}: {}", "some words of it, ".repeat(60))
}

#[test]
fn a_client_that_resends_its_chat_pays_only_for_new_text() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), setup());
    let mut messages = json!([{ "role": "system", "content": long("Rules") }, { "role": "user", "content": "First?" }]);
    let (first, prompt, cached) = ask(&server, &messages);
    assert_eq!(cached, 0);
    let mut answers = vec![first.clone()];
    let mut known = prompt;
    for question in ["Second?", "Third?"] {
        let list = messages.as_array_mut().unwrap();
        list.push(json!({ "role": "assistant", "content": answers.last().unwrap() }));
        list.push(json!({ "role": "user", "content": question }));
        let (answer, prompt, cached) = ask(&server, &messages);
        assert!(cached >= known, "{cached} of {prompt} found, {known} were known");
        assert!(prompt - cached < 40, "{} read", prompt - cached);
        known = prompt;
        answers.push(answer);
    }
    // Another conversation with the same rules: they are found, and what was live is left alone on disk.
    let other =
        json!([{ "role": "system", "content": long("Rules") }, { "role": "user", "content": "Something else" }]);
    let (_, prompt, cached) = ask(&server, &other);
    assert!(cached > 100 && prompt - cached < 40, "{cached} of {prompt}");
    // And back to the first one, from disk.
    let (again, prompt, cached) = ask(&server, &messages);
    assert!(prompt - cached < 40, "{cached} of {prompt}");
    assert!(again.starts_with("state "));
    let counted = (server.metric("prompt_tokens_total"), server.metric("cached_tokens_total"));
    server.end();
    assert!(counted.1 > 0 && counted.1 < counted.0);

    // The next day.
    let server = Running::start(dir.path(), setup());
    let list = messages.as_array_mut().unwrap();
    list.push(json!({ "role": "assistant", "content": answers.last().unwrap() }));
    list.push(json!({ "role": "user", "content": "Fourth?" }));
    let (_, prompt, cached) = ask(&server, &messages);
    assert!(cached >= known && prompt - cached < 40, "{cached} of {prompt}, {known} were known");
    server.end();
}

#[test]
fn state_is_that_of_the_path_whatever_was_live_before() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let chat = json!([{ "role": "system", "content": long("Rules") }, { "role": "user", "content": long("First") }]);
    let noise = json!([{ "role": "user", "content": long("Noise") }]);
    let server = Running::start(one.path(), setup());
    let (alone, ..) = ask(&server, &chat);
    server.end();
    let server = Running::start(two.path(), setup());
    ask(&server, &noise);
    ask(&server, &json!([{ "role": "system", "content": long("Rules") }, { "role": "user", "content": "Other" }]));
    let (together, ..) = ask(&server, &chat);
    server.end();
    // The fake's answer is a hash over its state: read in one go, or in part taken from disk.
    assert_eq!(alone, together);
}

/// The answer to a raw prompt, a hash over the state it is given on, and the tokens that were found; `before` was read and kept.
fn complete(before: &Value, prompt: &str) -> (String, u64) {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), setup());
    let ask = |prompt: &Value, most: u64| {
        let reply = server.post("/v1/completions", &json!({ "prompt": prompt, "max_tokens": most, "temperature": 0 }));
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.json()
    };
    ask(before, 0);
    let reply = ask(&json!(prompt), 40);
    server.end();
    let cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    (reply["choices"][0]["text"].as_str().unwrap().to_owned(), cached)
}

#[test]
fn state_of_tokens_without_a_text_form_is_not_matched() {
    let tokenizer = text_model(None).tokenizer;
    let start = tokenizer.bos.unwrap();
    let (plain, marked) = (long("Plain"), format!("{} <|im_end|> {}", long("One"), long("Two")));
    let with_start = tokenizer.encode_prompt(&plain).unwrap();
    let without_start = with_start[1..].to_vec();
    let twice: Vec<_> = [start].iter().chain(&with_start).copied().collect();
    // The mark as characters instead of the token that a raw text means by it.
    let spelled: Vec<_> = [start].into_iter().chain(tokenizer.encode_plain(&marked).unwrap()).collect();
    let cases = [(without_start, plain.clone()), (twice, format!("<s>{plain}")), (spelled, marked)];
    for (tokens, text) in cases {
        let text = format!("{text} and more");
        let (alone, _) = complete(&json!("Something else"), &text);
        assert_eq!(complete(&json!(tokens), &text), (alone, 0), "{}", text.get(..20).unwrap());
    }
    // What a text does read as is found under it.
    let (_, cached) = complete(&json!(with_start), &format!("{plain} and more"));
    assert_eq!(cached, with_start.len() as u64);
}

#[test]
fn requests_are_not_in_the_list_of_conversations() {
    let home = tempfile::tempdir().unwrap();
    let server = Running::start(&home.path().join("requests"), setup());
    ask(&server, &json!([{ "role": "user", "content": "Hi" }]));
    server.end();
    let store = crate::server::support::store(home.path());
    assert!(store.sessions(sala_chat::store::SessionFilter::Live, 9).unwrap().is_empty());
}

#[test]
fn two_conversations_side_by_side_stay_live_each() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), setup());
    let mut chats: Vec<Value> = ["One", "Two"].map(|w| json!([{ "role": "user", "content": long(w) }])).into();
    let mut known = [0, 0];
    for round in 0..3 {
        for (chat, known) in chats.iter_mut().zip(&mut known) {
            let (answer, prompt, cached) = ask(&server, chat);
            assert!(cached >= *known, "round {round}: {cached} found, {known} were known");
            *known = prompt;
            let list = chat.as_array_mut().unwrap();
            list.push(json!({ "role": "assistant", "content": answer }));
            list.push(json!({ "role": "user", "content": "Go on" }));
        }
    }
    // Nothing had to be put back or read again: each job read only what was new.
    let read: Vec<usize> = server.log.try_iter().map(|(given, _)| given.len()).collect();
    assert!(read.iter().skip(4).all(|n| *n < 40), "{read:?}");
    server.end();
}

#[test]
fn evicted_state_is_restored() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup { room: 3, ..setup() });
    let mut chats: Vec<Value> =
        (0..5).map(|i| json!([{ "role": "user", "content": long(&format!("Talk {i}")) }])).collect();
    let mut known = [0; 5];
    for round in 0..3 {
        for (chat, known) in chats.iter_mut().zip(&mut known) {
            let (answer, prompt, cached) = ask(&server, chat);
            assert!(cached >= *known, "round {round}: {cached} found, {known} were known");
            *known = prompt;
            let list = chat.as_array_mut().unwrap();
            list.push(json!({ "role": "assistant", "content": answer }));
            list.push(json!({ "role": "user", "content": "Go on" }));
        }
    }
    server.end();
}
