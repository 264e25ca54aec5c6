//! Requests in the form in which coding agents send them, written by hand after their documentation: a turn with a call of a
//! function and its result in responses, and edits by text in chat completions.

use serde_json::{Value, json};

use crate::server::client::{Running, Setup, answers};
use crate::server::support::text_model;

fn text(role: &str, kind: &str, text: &str) -> Value {
    json!({ "type": "message", "role": role, "content": [{ "type": kind, "text": text }] })
}

/// The body of an agent that keeps the conversation itself and sends all of it each time.
fn agent(input: &[Value]) -> Value {
    let command = json!({
        "type": "object",
        "properties": {
            "command": { "type": "array", "items": { "type": "string" }, "description": "The command" },
            "workdir": { "type": "string" },
            "timeout_ms": { "type": "number" },
        },
        "required": ["command"],
        "additionalProperties": false,
    });
    json!({
        "model": "fake",
        "instructions": "You are a coding agent in a terminal. ".repeat(40),
        "input": input,
        "tools": [
            { "type": "function", "name": "shell", "description": "Runs a command", "strict": false, "parameters": command },
            { "type": "function", "name": "update_plan", "description": "Plan", "strict": false,
              "parameters": { "type": "object", "properties": { "plan": { "type": "string" } }, "required": ["plan"] } },
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": false,
        "reasoning": { "effort": "medium", "summary": "auto" },
        "store": false,
        "stream": true,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199-a",
        "text": { "verbosity": "medium" },
        "client_metadata": { "of": "agent" },
    })
}

#[test]
fn an_agent_over_responses_calls_and_receives_the_result() {
    let dir = tempfile::tempdir().unwrap();
    let call = "<think>\nLook first.\n</think>\n\nI look.<tool_call>{\"name\": \"shell\", \"arguments\": \
                {\"command\": [\"ls\", \"-a\"], \"workdir\": \"/tmp\"}}</tool_call> and more";
    let server = Running::start(dir.path(), Setup { script: answers(text_model(None), call), ..Setup::default() });
    let mut input = vec![
        text("developer", "input_text", "<permissions>read only</permissions>"),
        text("user", "input_text", "<environment_context>\n  <cwd>/tmp</cwd>\n</environment_context>"),
        text("user", "input_text", "What is here?"),
    ];
    let reply = server.post("/v1/responses", &agent(&input));
    assert_eq!(reply.status, 200, "{}", reply.body);
    let events = reply.events();
    // Such an agent takes items as they are done.
    let done: Vec<Value> =
        events.iter().filter(|e| e["type"] == "response.output_item.done").map(|e| e["item"].clone()).collect();
    let kinds: Vec<&str> = done.iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call"]);
    let call = &done[2];
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert_eq!((&call["name"], &arguments["command"]), (&json!("shell"), &json!(["ls", "-a"])));
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    // The next request holds what came, as it came, and the result.
    input.push(json!({ "type": "reasoning", "summary": [], "content": done[0]["content"], "encrypted_content": null }));
    input.push(text("assistant", "output_text", "I look."));
    input.push(
        json!({ "type": "function_call", "name": "shell", "arguments": call["arguments"], "call_id": call["call_id"] }),
    );
    let output = json!({ "output": "a.txt", "metadata": { "exit_code": 0, "duration_seconds": 0.1 } }).to_string();
    input.push(json!({ "type": "function_call_output", "call_id": call["call_id"], "output": output }));
    let next = server.post("/v1/responses", &agent(&input));
    assert_eq!(next.status, 200, "{}", next.body);
    let usage = next.events().last().unwrap()["response"]["usage"].clone();
    let cached = usage["input_tokens_details"]["cached_tokens"].as_u64().unwrap();
    // Its long instructions are not read again.
    assert!(cached > 200, "{usage}");
    server.end();
}

#[test]
fn an_editor_that_resends_its_chat_reads_only_new_text() {
    let dir = tempfile::tempdir().unwrap();
    let edit = "a.py\n```python\n<<<<<<< SEARCH\nx = 1\n=======\nx = 2\n>>>>>>> REPLACE\n```\n";
    let server = Running::start(dir.path(), Setup { script: answers(text_model(None), edit), ..Setup::default() });
    let rules = "Answer with blocks that say what to search and what to put there. ".repeat(30);
    let mut messages = vec![
        json!({ "role": "system", "content": rules }),
        json!({ "role": "user", "content": "Change greeting()" }),
        json!({ "role": "assistant", "content": "greet.py\n```\n…\n```" }),
        json!({ "role": "user", "content": "I added these files:\n\na.py\n```\nx = 1\n```\n" }),
        json!({ "role": "assistant", "content": "Ok." }),
        json!({ "role": "user", "content": "Make x 2" }),
    ];
    let ask = |messages: &[Value]| {
        let body = json!({ "model": "fake", "messages": messages, "temperature": 0, "stream": true,
                           "stream_options": { "include_usage": true } });
        let reply = server.post(crate::server::CHAT, &body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        let events = reply.events();
        let words: String = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!(words, edit);
        events.last().unwrap()["usage"].clone()
    };
    let first = ask(&messages);
    messages.push(json!({ "role": "assistant", "content": edit }));
    messages.push(json!({ "role": "user", "content": "And back" }));
    let second = ask(&messages);
    let cached = second["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached >= first["prompt_tokens"].as_u64().unwrap() / 2, "{second} after {first}");
    server.end();
}
