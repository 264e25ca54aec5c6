//! The other APIs: raw completions, responses that can be named, Anthropic's messages.

use serde_json::{Value, json};

use crate::client::{Reply, Running, Setup, answers};
use crate::support::{digest_answers, text_model};

const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

fn thoughtful() -> Setup {
    Setup { script: answers(text_model(None), "<think>\nHm.\n</think>\n\nYes."), ..Setup::default() }
}

/// Names of the events of a stream, in order.
fn names(reply: &Reply) -> Vec<String> {
    reply.body.lines().filter_map(|l| l.strip_prefix("event: ")).map(str::to_owned).collect()
}

#[test]
fn a_raw_completion_goes_on_with_text_and_with_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), thoughtful());
    let path = "/v1/completions";
    let whole = server.post(path, &json!({ "prompt": "Once upon", "echo": true, "max_tokens": 50 }));
    assert_eq!(whole.status, 200, "{}", whole.body);
    let whole = whole.json();
    assert_eq!(whole["object"], "text_completion");
    // Thoughts are part of a raw text.
    let text = whole["choices"][0]["text"].as_str().unwrap();
    assert!(text.starts_with("Once upon") && text.contains("Hm.") && text.ends_with("Yes."), "{text:?}");
    let tokens = server.post("/tokenize", &json!({ "prompt": "Once upon" })).json()["tokens"].clone();
    let raw = server.post(path, &json!({ "prompt": tokens, "echo": true, "max_tokens": 50 })).json();
    assert_eq!(raw["choices"][0]["text"], text);
    assert_eq!(raw["usage"]["prompt_tokens"], tokens.as_array().unwrap().len());
    let several = server.post(path, &json!({ "prompt": ["a", "b"], "n": 2, "max_tokens": 1 })).json();
    let indices: Vec<u64> =
        several["choices"].as_array().unwrap().iter().map(|c| c["index"].as_u64().unwrap()).collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    assert_eq!(several["choices"][3]["finish_reason"], "length");
    let streamed = server.post(path, &json!({ "prompt": "Once upon", "stream": true, "max_tokens": 50 }));
    let words: String = streamed.events().iter().filter_map(|e| e["choices"][0]["text"].as_str()).collect();
    assert_eq!(format!("Once upon{words}"), text);
    assert_eq!(server.post(path, &json!({ "prompt": [1, -5] })).error().2, "prompt");
    assert_eq!(server.post(path, &json!({ "prompt": "a", "suffix": "b" })).error().1, "unsupported_parameter");
    server.end();
}

fn respond(server: &Running, body: &Value) -> Value {
    let reply = server.post(RESPONSES, body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()
}

fn text_of(response: &Value) -> String {
    let items = response["output"].as_array().unwrap();
    let message = items.iter().find(|i| i["type"] == "message").unwrap();
    message["content"][0]["text"].as_str().unwrap().to_owned()
}

#[test]
fn an_id_names_a_state_and_an_old_one_is_a_fork() {
    let dir = tempfile::tempdir().unwrap();
    let digests = || Setup { script: digest_answers(text_model(None)), ..Setup::default() };
    let server = Running::start(dir.path(), digests());
    let long = "many words of it ".repeat(60);
    let first = respond(&server, &json!({ "input": long, "temperature": 0 }));
    assert_eq!((&first["object"], &first["status"]), (&json!("response"), &json!("completed")));
    let id = first["id"].as_str().unwrap();
    let next = |server: &Running, id: &str, text: &str| {
        respond(server, &json!({ "input": text, "previous_response_id": id, "temperature": 0 }))
    };
    let second = next(&server, id, "And then?");
    assert_eq!(second["previous_response_id"], id);
    let cached = |r: &Value| r["usage"]["input_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let read = |r: &Value| r["usage"]["input_tokens"].as_u64().unwrap() - cached(r);
    assert!(cached(&second) > 200 && read(&second) < 30, "{}", second["usage"]);
    let third = next(&server, second["id"].as_str().unwrap(), "And then?");
    // The first one again: nothing of it is read, and the answer is that of the first time.
    let fork = next(&server, id, "And then?");
    assert_eq!((text_of(&fork), read(&fork)), (text_of(&second), read(&second)));
    assert_ne!(text_of(&third), text_of(&second));
    server.end();
    // The next day.
    let server = Running::start(dir.path(), digests());
    let again = next(&server, id, "And then?");
    assert_eq!((text_of(&again), read(&again)), (text_of(&second), read(&second)));
    assert!(cached(&next(&server, third["id"].as_str().unwrap(), "More")) > cached(&third));
    for unknown in ["resp_0fffffffffffffff", "resp_x", "7"] {
        let error = server.post(RESPONSES, &json!({ "input": "a", "previous_response_id": unknown })).error();
        assert_eq!(error, (404, "not_found".into(), "previous_response_id".into()));
    }
    // What was not to be stored cannot be named.
    let unstored = respond(&server, &json!({ "input": "a", "store": false }));
    let error = server.post(RESPONSES, &json!({ "input": "a", "previous_response_id": unstored["id"] })).error();
    assert_eq!(error.0, 404);
    server.end();
}

#[test]
fn a_response_is_streamed_event_by_event() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), thoughtful());
    let items = json!([
        { "role": "developer", "content": "Be brief." },
        { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "Is it?" }] },
    ]);
    let streamed = server.post(RESPONSES, &json!({ "input": items, "instructions": "Be kind.", "stream": true }));
    let mut seen = names(&streamed);
    seen.dedup();
    assert_eq!(
        seen,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.reasoning_text.delta",
            "response.reasoning_text.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    let events = streamed.events();
    let numbers: Vec<u64> = events.iter().map(|e| e["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    let last = &events.last().unwrap()["response"];
    assert_eq!(text_of(last), "Yes.");
    assert_eq!(last["output"][0]["content"][0]["text"], "Hm.");
    let short = respond(&server, &json!({ "input": "a", "max_output_tokens": 1 }));
    assert_eq!(short["incomplete_details"]["reason"], "max_output_tokens");
    let wrong = server.post(RESPONSES, &json!({ "input": [{ "type": "item_reference", "id": "x" }] })).error();
    assert_eq!(wrong.2, "input[0].type");
    server.end();
}

#[test]
fn messages_have_anthropics_form_whole_and_streamed() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), thoughtful());
    let body = json!({
        "model": "fake",
        "max_tokens": 100,
        "system": [{ "type": "text", "text": "Be brief.", "cache_control": { "type": "ephemeral" } }],
        "messages": [{ "role": "user", "content": [{ "type": "text", "text": "Is it?" }] }],
    });
    let whole = server.post(MESSAGES, &body);
    assert_eq!(whole.status, 200, "{}", whole.body);
    let whole = whole.json();
    assert_eq!((&whole["type"], &whole["stop_reason"]), (&json!("message"), &json!("end_turn")));
    assert_eq!(whole["content"][0]["thinking"], "Hm.");
    assert_eq!(whole["content"][1], json!({ "type": "text", "text": "Yes." }));
    let counted =
        server.post("/v1/messages/count_tokens", &json!({ "messages": body["messages"], "system": body["system"] }));
    assert_eq!(counted.json()["input_tokens"], whole["usage"]["input_tokens"]);

    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    streamed["stop_sequences"] = json!(["es"]);
    let reply = server.post(MESSAGES, &streamed);
    let mut seen = names(&reply);
    seen.dedup();
    assert_eq!(
        seen,
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
    );
    let events = reply.events();
    let text: String = events.iter().filter_map(|e| e["delta"]["text"].as_str()).collect();
    assert_eq!(text, "Y");
    let delta = events.iter().find(|e| e["type"] == "message_delta").unwrap();
    assert_eq!(delta["delta"], json!({ "stop_reason": "stop_sequence", "stop_sequence": "es" }));
    let error = server.post(MESSAGES, &json!({ "messages": [{ "role": "user", "content": "x" }] }));
    assert_eq!((error.status, error.json()["type"].as_str()), (400, Some("error")));
    assert_eq!(error.json()["error"]["type"], "invalid_request_error");
    server.end();
}
