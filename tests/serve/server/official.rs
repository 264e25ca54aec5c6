//! What the official clients send of their own accord: what they were sent, with every field of their version, and words of
//! their APIs that other servers take.

use sala_chat::config::settings::{ServeConfig, UnknownFields};
use serde_json::{Value, json};

use crate::server::client::{Running, Setup, answers};
use crate::server::support::text_model;
use crate::server::{CHAT, question, with};

const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

/// Adds fields to an object as a client does that knows them and was not sent them.
fn with_nulls(mut object: Value, names: &[&str]) -> Value {
    names.iter().for_each(|name| object[*name] = Value::Null);
    object
}

#[test]
fn sent_blocks_with_null_fields_are_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let call = "Well.<tool_call>{\"name\": \"look\", \"arguments\": {\"of\": \"Rome\"}}</tool_call>";
    let server = Running::start(dir.path(), Setup { script: answers(text_model(None), call), ..Setup::default() });
    let parameters = json!({ "type": "object", "properties": { "of": { "type": "string" } } });
    let tools = json!([{ "name": "look", "input_schema": parameters }]);
    let user = json!({ "role": "user", "content": "Rain in Rome?" });
    let ask = json!({ "max_tokens": 200, "tools": tools, "messages": [user] });
    let mut blocks = server.post(MESSAGES, &ask).json()["content"].clone();
    blocks[0] = with_nulls(blocks[0].clone(), &["citations", "parsed_output"]);
    blocks[1] = with_nulls(blocks[1].clone(), &["caller", "cache_control"]);
    let result = json!([{ "type": "tool_result", "tool_use_id": blocks[1]["id"], "content": "Dry." }]);
    let chat = json!([user, { "role": "assistant", "content": blocks }, { "role": "user", "content": result }]);
    let next = server.post(MESSAGES, &with(ask, "messages", chat));
    assert_eq!(next.status, 200, "{}", next.body);

    let tools = json!([{ "type": "function", "function": { "name": "look", "parameters": parameters } }]);
    let ask = json!({ "messages": [user], "tools": tools, "functions": null, "function_call": null });
    let mut message = server.post(CHAT, &ask).json()["choices"][0]["message"].clone();
    message = with_nulls(message, &["refusal", "annotations", "audio", "function_call", "parsed"]);
    let call = with_nulls(message["tool_calls"][0].clone(), &["parsed_arguments", "index", "caller"]);
    let id = call["id"].clone();
    message["tool_calls"] = json!([call]);
    let chat = json!([user, message, { "role": "tool", "tool_call_id": id, "content": "Dry." }]);
    let next = server.post(CHAT, &with(ask, "messages", chat));
    assert_eq!(next.status, 200, "{}", next.body);

    let tools = json!([{ "type": "function", "name": "look", "parameters": parameters, "defer_loading": null }]);
    let ask = json!({ "input": "Rain in Rome?", "tools": tools, "conversation": null, "prompt": null });
    let output = server.post(RESPONSES, &ask).json()["output"].clone();
    let mut input = vec![user];
    input.extend(output.as_array().unwrap().iter().map(|item| with_nulls(item.clone(), &["namespace", "phase"])));
    let next = server.post(RESPONSES, &with(ask, "input", input.into()));
    assert_eq!(next.status, 200, "{}", next.body);
    // What is not null and unknown is refused as ever.
    server.end();
}

#[test]
fn anthropics_word_for_a_function_is_custom() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let tool = json!({ "type": "custom", "name": "look", "input_schema": { "type": "object" } });
    let ask = json!({ "max_tokens": 9, "messages": [{ "role": "user", "content": "Hi" }], "tools": [tool] });
    assert_eq!(server.post(MESSAGES, &ask).status, 200);
    server.end();
}

#[test]
fn what_another_server_keeps_is_refused_and_not_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    for (name, value) in [("conversation", json!("conv_1")), ("prompt", json!({ "id": "pmpt_1" }))] {
        let refused = server.post(RESPONSES, &with(json!({ "input": "And then?" }), name, value));
        assert_eq!(refused.error(), (400, "unsupported_parameter".into(), name.into()));
    }
    let part = json!({ "type": "input_file", "file_url": "http://127.0.0.1/a.pdf" });
    let refused = server.post(RESPONSES, &json!({ "input": [{ "role": "user", "content": [part] }] }));
    assert_eq!(refused.error(), (400, "unsupported_parameter".into(), "input[0].content[0].file_url".into()));
    server.end();
}

#[test]
fn unsupported_options_of_responses_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let rules = ServeConfig { unknown_fields: UnknownFields::Refuse, ..ServeConfig::default() };
    let server = Running::start(dir.path(), Setup { rules, ..Setup::default() });
    let ask = |include: Value| server.post(RESPONSES, &json!({ "input": "Hi", "include": include }));
    let refused = ask(json!(["reasoning.encrypted_content", "message.output_text.logprobs"]));
    assert_eq!(refused.error(), (400, "unsupported_parameter".into(), "include".into()));
    assert!(refused.body.contains("message.output_text.logprobs"), "{}", refused.body);
    let kept = ask(json!(["reasoning.encrypted_content"])).json();
    // A client that waits for events would take a whole object for a stream without any.
    let path = format!("{RESPONSES}/{}", kept["id"].as_str().unwrap());
    let streamed = server.get(&format!("{path}?stream=true"));
    assert_eq!(streamed.error(), (400, "unsupported_parameter".into(), "stream".into()));
    assert_eq!(server.get(&format!("{path}?stream=false")).json(), kept);
    server.end();
}

#[test]
fn agents_send_what_changes_nothing_here() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let call = json!({ "type": "tool_use", "id": "t1", "name": "look", "input": {}, "caller": { "type": "direct" } });
    let result = json!({ "type": "tool_result", "tool_use_id": "t1", "content": "Dry." });
    let tool = json!({ "name": "look", "input_schema": { "type": "object" }, "allowed_callers": ["direct"] });
    let ask = json!({
        "max_tokens": 9,
        "context_management": { "edits": [{ "type": "clear_thinking_20251015", "keep": "all" }] },
        "tools": [tool],
        "messages": [
            { "role": "user", "content": "Rain?" },
            { "role": "assistant", "content": [call] },
            { "role": "user", "content": [result] },
        ],
    });
    let reply = server.post(MESSAGES, &ask);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let mut counted = ask.clone();
    counted.as_object_mut().unwrap().remove("max_tokens");
    assert_eq!(server.post("/v1/messages/count_tokens", &counted).status, 200);
    let mut programs = ask;
    programs["tools"][0]["allowed_callers"] = json!(["code_execution_20250825"]);
    let reply = server.post(MESSAGES, &programs);
    // No program can call it here, so the tool is left out and named.
    assert!(reply.status == 200 && reply.head.contains("tools[].allowed_callers"), "{} {}", reply.head, reply.body);
    server.end();
}

#[test]
fn words_that_other_servers_take_are_taken() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    for (field, value) in [("top_k", json!(-1)), ("reasoning_effort", json!("max"))] {
        let reply = server.post(CHAT, &with(question("Hi"), field, value));
        assert_eq!(reply.status, 200, "{field}: {}", reply.body);
    }
    assert_eq!(server.post(CHAT, &with(question("Hi"), "top_k", json!(-2))).error().2, "top_k");
    // An earlier answer that was a refusal is its text.
    let tokens = |part: Value, path: &str, field: &str, usage: &str| {
        let user = json!({ "role": "user", "content": "Hi" });
        let conversation = json!([user, { "role": "assistant", "content": [part] }, user]);
        let mut ask = json!({ "temperature": 0 });
        ask[field] = conversation;
        let reply = server.post(path, &ask);
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.json()["usage"][usage].clone()
    };
    let refusal = json!({ "type": "refusal", "refusal": "I will not." });
    let chat = |part: Value| tokens(part, CHAT, "messages", "prompt_tokens");
    assert_eq!(chat(refusal.clone()), chat(json!({ "type": "text", "text": "I will not." })));
    let response_tokens = server.post(RESPONSES, &json!({ "input": "Hi" })).json()["usage"]["input_tokens"].clone();
    let response = |part: Value| tokens(part, RESPONSES, "input", "input_tokens");
    assert_eq!(response(refusal), response(json!({ "type": "output_text", "text": "I will not." })));
    // A path is no id of a response.
    let reply = server.post("/v1/responses/input_tokens", &json!({ "input": "Hi" })).json();
    assert_eq!((&reply["object"], &reply["input_tokens"]), (&json!("response.input_tokens"), &response_tokens));
    server.end();
}

#[test]
fn a_chat_is_tokenized_with_functions_and_an_answer_prefix() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let tools = json!([{ "type": "function", "function": { "name": "look", "parameters": { "type": "object" } } }]);
    let ask = json!({ "messages": [{ "role": "user", "content": "Hi" }], "tools": tools });
    let counted = |ask: &Value| {
        let reply = server.post("/tokenize", ask);
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.json()["tokens"].as_array().unwrap().clone()
    };
    let whole = counted(&with(ask.clone(), "add_generation_prompt", true.into()));
    let chat = server.post(CHAT, &ask).json();
    assert_eq!(chat["usage"]["prompt_tokens"], whole.len());
    let without = counted(&with(ask, "add_generation_prompt", false.into()));
    assert!(without.len() < whole.len() && whole.starts_with(&without), "{without:?} of {whole:?}");
    server.end();
}
