//! What current clients were seen to send, and forms of it that differ in place or type. Bodies are cut to what matters.

use serde_json::{Value, json};

use crate::server::client::{Reply, Running, Setup, answers};
use crate::server::support::text_model;
use crate::server::{CHAT, question, with};

const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

fn ignored(reply: &Reply) -> String {
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.head.lines().find_map(|line| line.strip_prefix("x-sala-ignored: ")).unwrap_or_default().to_owned()
}

fn message(content: Value) -> Value {
    json!({ "max_tokens": 9, "messages": [{ "role": "user", "content": content }] })
}

/// Claude Code 2.1.197 with the beta `mid-conversation-system-2026-04-07`.
#[test]
fn claude_code_sends_system_messages_between_the_turns() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let reminder = "Available agent types for the Agent tool. ".repeat(40);
    let mut ask = json!({
        "max_tokens": 9,
        "stream": false,
        "thinking": { "type": "adaptive" },
        "output_config": { "effort": "high" },
        "context_management": { "edits": [{ "type": "clear_thinking_20251015", "keep": "all" }] },
        "metadata": { "user_id": "u" },
        "system": [
            { "type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.84c; cch=1a;" },
            { "type": "text", "text": "You help.", "cache_control": { "type": "ephemeral" } },
        ],
        "messages": [
            { "role": "user", "content": [{ "type": "text", "text": "<system-reminder>date</system-reminder>" }] },
            { "role": "system", "content": reminder },
        ],
    });
    let first = server.post(MESSAGES, &ask);
    assert_eq!(ignored(&first), "");
    let mut messages = ask["messages"].as_array().unwrap().clone();
    messages.push(json!({ "role": "assistant", "content": first.json()["content"] }));
    messages.push(json!({ "role": "user", "content": "And?" }));
    messages.push(json!({ "role": "system", "content": [{ "type": "text", "text": "Be brief." }] }));
    ask["messages"] = messages.into();
    ask["system"][0]["text"] = "x-anthropic-billing-header: cc_version=2.1.197.84c; cch=2b;".into();
    let usage = server.post(MESSAGES, &ask).json()["usage"].take();
    let (read, kept) = (usage["input_tokens"].as_u64().unwrap(), usage["cache_read_input_tokens"].as_u64().unwrap());
    assert!(kept > 4 * read, "{usage}");
    server.end();
}

#[test]
fn results_and_questions_hold_documents_and_search_results() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let text = json!({ "type": "text", "media_type": "text/plain", "data": "The cat is called Bob." });
    let document = json!({ "type": "document", "source": text, "title": "cat.txt" });
    let parts = json!([{ "type": "text", "text": "The cat is called Bob." }]);
    let found = json!({
        "type": "search_result", "source": "https://x", "title": "cat.txt", "content": parts,
        "citations": { "enabled": true },
    });
    let count = |content: Value| {
        let reply = server.post("/v1/messages/count_tokens", &message(content));
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.json()["input_tokens"].as_u64().unwrap()
    };
    assert_eq!(count(json!([document])), count(json!([found])));
    let result = |blocks: Value| count(json!([{ "type": "tool_result", "tool_use_id": "t", "content": blocks }]));
    assert_eq!(result(json!([document])), result(json!([found])));
    assert!(result(json!([document, { "type": "tool_reference", "tool_name": "f" }])) > result(json!([document])));
    let image = json!([{ "type": "tool_result", "tool_use_id": "t", "content": [{ "type": "image" }] }]);
    let refused = server.post(MESSAGES, &message(image));
    assert!(refused.status == 400 && refused.body.contains("content[0].content[0].type is image"), "{}", refused.body);
    server.end();
}

#[test]
fn a_field_that_shapes_an_answer_is_honoured_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let input = json!({ "input": "Hi" });
    let seven = json!({ "type": "json_schema", "schema": { "const": 7 } });
    for limit in ["max_output_tokens", "max_completion_tokens", "max_tokens"] {
        let short = server.post(RESPONSES, &with(input.clone(), limit, json!(2))).json();
        assert_eq!(short["status"], "incomplete", "{limit}");
    }
    let unlimited = server.post(RESPONSES, &with(input.clone(), "max_output_tokens", json!(-1)));
    assert_eq!(unlimited.json()["status"], "completed", "{}", unlimited.body);
    let seventh = server.post(MESSAGES, &with(message("Hi".into()), "output_format", seven.clone())).json();
    assert_eq!(seventh["content"][0]["text"], "7");
    let regex = server.post(CHAT, &with(question("Hi"), "regex", "c{3}".into())).json();
    assert_eq!(regex["choices"][0]["message"]["content"], "ccc");
    for (path, body, field, value) in [
        (CHAT, question("Hi"), "stop_sequences", json!(["x"])),
        (CHAT, question("Hi"), "max_new_tokens", json!(5)),
        (CHAT, question("Hi"), "num_predict", json!(5)),
        (CHAT, question("Hi"), "format", json!("json")),
        (CHAT, question("Hi"), "ebnf", json!("root ::= \"a\"")),
        (RESPONSES, input.clone(), "response_format", seven.clone()),
        (RESPONSES, input.clone(), "guided_json", json!({ "type": "object" })),
        (MESSAGES, message("Hi".into()), "stop", json!("x")),
        ("/v1/completions", json!({ "prompt": "a" }), "max_completion_tokens", json!(3)),
    ] {
        let refused = server.post(path, &with(body.clone(), field, value));
        assert!(refused.status == 400 && refused.body.contains(field), "{path} {field}: {}", refused.body);
        if field != "ebnf" {
            assert_eq!(ignored(&server.post(path, &with(body, field, json!([])))), field);
        }
    }
    server.end();
}

#[test]
fn a_choice_of_functions_has_many_forms() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let function =
        |name: &str| json!({ "type": "function", "name": name, "parameters": { "type": "object", "properties": {} } });
    let ask = |choice: Value| {
        with(with(question("Hi"), "tools", json!([function("f"), function("g")])), "tool_choice", choice)
    };
    for choice in [json!("any"), json!({ "type": "required" }), json!({ "type": "any" })] {
        let called = server.post(CHAT, &ask(choice.clone())).json();
        assert!(called["choices"][0]["message"]["tool_calls"][0]["function"]["name"].is_string(), "{choice}: {called}");
    }
    let named = server.post(CHAT, &ask(json!({ "function": { "name": "g" } }))).json();
    assert_eq!(named["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "g");
    // The same name in two namespaces.
    let space = |name: &str| json!({ "type": "namespace", "name": name, "tools": [function("f")] });
    let choice = json!({ "type": "function", "name": "f", "namespace": "b" });
    let request = json!({ "input": "Hi", "tools": [function("f"), space("a"), space("b")], "tool_choice": choice });
    let reply = server.post(RESPONSES, &request);
    assert_eq!(ignored(&reply), "");
    let call = reply.json()["output"][0].take();
    assert_eq!((&call["name"], &call["namespace"]), (&json!("f"), &json!("b")), "{call}");
    // A function that programs may call, too, and one that only they may call.
    let schema = json!({ "type": "object" });
    let tools = json!([
        { "name": "f", "input_schema": schema, "allowed_callers": ["direct", "code_execution_20250825"] },
        { "name": "g", "input_schema": schema, "allowed_callers": ["code_execution_20250825"] },
    ]);
    let reply = server.post(MESSAGES, &with(message("Hi".into()), "tools", tools));
    assert_eq!(ignored(&reply), "tools[].allowed_callers");
    server.end();
}

#[test]
fn earlier_turns_are_accepted_in_the_forms_of_other_clients() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let call = |arguments: Value| json!({ "id": "c", "function": { "name": "f", "arguments": arguments } });
    let tokens = |arguments: Value| {
        let messages = json!([
            { "role": "user", "content": "Hi" },
            { "role": "assistant", "tool_calls": [call(arguments)] },
            { "role": "tool", "tool_call_id": "c", "content": "ok" },
        ]);
        let reply = server.post(CHAT, &with(question(""), "messages", messages));
        assert_eq!(ignored(&reply), "");
        reply.json()["usage"]["prompt_tokens"].take()
    };
    assert_eq!(tokens(json!({ "a": 1 })), tokens(json!("{\"a\":1}")));
    let first = server.post(RESPONSES, &json!({ "input": "Hi" })).json();
    let id = first["output"][0]["id"].clone();
    let user = json!({ "role": "user", "content": "And?" });
    for reference in [json!({ "id": id }), json!({ "type": "item_reference", "id": id })] {
        let reply = server.post(RESPONSES, &json!({ "input": [user, reference, user] }));
        assert_eq!(ignored(&reply), "");
    }
    let nothing = json!({ "type": "function_call_output", "call_id": "c", "output": null });
    assert_eq!(ignored(&server.post(RESPONSES, &json!({ "input": [user, nothing] }))), "");
    assert_eq!(server.post(CHAT, &with(question("Hi"), "model", "".into())).status, 200);
    server.end();
}

#[test]
fn a_zero_is_a_whole_number() {
    let dir = tempfile::tempdir().unwrap();
    let call = "<tool_call>{\"name\": \"f\", \"arguments\": {\"day\": -0, \"more\": [-0.0, -1]}}</tool_call>";
    let server = Running::start(dir.path(), Setup { script: answers(text_model(None), call), ..Setup::default() });
    let tools = json!([{ "name": "f", "input_schema": { "type": "object" } }]);
    let reply = server.post(MESSAGES, &with(with(message("Hi".into()), "tools", tools), "max_tokens", json!(999)));
    assert!(reply.body.contains("\"day\":0,\"more\":[0,-1]"), "{}", reply.body);
    server.end();
}
