//! Functions that a conversation offers later than its system text, or no longer.

use serde_json::{Value, json};

use crate::server::client::{Reply, Running, Setup};
use crate::server::{question, with};

const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

fn definition(name: &str) -> Value {
    let schema = json!({ "type": "object", "properties": { "b": { "type": "boolean" } }, "required": ["b"] });
    json!({ "name": name, "description": "It rains or not.", "input_schema": schema })
}

fn deferred(name: &str) -> Value {
    with(definition(name), "defer_loading", true.into())
}

/// A system message that changes the functions.
fn change(of: &str, tool: Value) -> Value {
    json!({ "role": "system", "content": [{ "type": of, "tool": tool }] })
}

fn addition(name: &str) -> Value {
    change("tool_addition", json!({ "type": "tool_definition", "definition": definition(name) }))
}

fn by_name(of: &str, name: &str) -> Value {
    change(of, json!({ "type": "tool_reference", "name": name }))
}

fn ask(messages: &[Value], tools: &[Value]) -> Value {
    let system = "You know the weather of each town. ".repeat(40);
    json!({ "max_tokens": 60, "system": system, "messages": messages, "tools": tools })
}

fn forced(body: Value, name: &str) -> Value {
    with(body, "tool_choice", json!({ "type": "tool", "name": name }))
}

/// Tokens that were prefilled, and the functions that were called.
fn answered(reply: &Reply) -> (u64, Vec<String>) {
    assert_eq!(reply.status, 200, "{}", reply.body);
    let reply = reply.json();
    let blocks = reply["content"].as_array().unwrap();
    let names = blocks.iter().filter_map(|block| block["name"].as_str()).map(str::to_owned).collect();
    (reply["usage"]["input_tokens"].as_u64().unwrap(), names)
}

#[test]
fn a_function_added_by_a_later_message_may_be_called_and_the_text_before_it_is_reused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let answer = json!({ "role": "assistant", "content": "Hello there, friend." });
    let (tools, all) = ([definition("look")], |more: &[Value]| [&[user("Hi"), answer.clone()], more].concat());
    assert!(answered(&server.post(MESSAGES, &ask(&[user("Hi")], &tools))).0 > 300);
    let added = ask(&all(&[addition("rain"), user("Rain?")]), &tools);
    let (prefilled, _) = answered(&server.post(MESSAGES, &added));
    assert!((20..200).contains(&prefilled), "{prefilled}");
    let must = server.post(MESSAGES, &forced(added, "rain"));
    assert_eq!(answered(&must).1, ["rain"]);

    // Withdrawn ones cannot be forced, whichever way they came.
    for (gone, tools) in [
        (vec![by_name("tool_removal", "look")], vec![definition("look")]),
        (vec![addition("look"), by_name("tool_removal", "look")], vec![]),
    ] {
        let body = ask(&all(&[gone.as_slice(), &[user("Rain?")]].concat()), &tools);
        assert_eq!(server.post(MESSAGES, &body).status, 200);
        for choice in [json!({ "type": "any" }), json!({ "type": "tool", "name": "look" })] {
            let reply = server.post(MESSAGES, &with(body.clone(), "tool_choice", choice));
            assert!(reply.status == 400 && reply.body.contains("tool_choice"), "{}", reply.body);
        }
        // And offered again.
        let again = [gone.as_slice(), &[by_name("tool_addition", "look"), user("Rain?")]].concat();
        assert_eq!(answered(&server.post(MESSAGES, &forced(ask(&all(&again), &tools), "look"))).1, ["look"]);
    }
    server.end();
}

#[test]
fn a_deferred_function_is_read_where_a_result_refers_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let call = json!({ "role": "assistant", "content": [
        { "type": "tool_use", "id": "t1", "name": "ToolSearch", "input": {} }] });
    let found = |name: &str| {
        let content = json!([{ "type": "tool_reference", "tool_name": name }]);
        json!({ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t1", "content": content }] })
    };
    let (search, all) = (definition("ToolSearch"), [definition("ToolSearch"), deferred("rain"), deferred("snow")]);
    let count = |body: &Value| server.post("/v1/messages/count_tokens", body).json()["input_tokens"].clone();
    assert_eq!(count(&ask(&[user("Hi")], &all)), count(&ask(&[user("Hi")], std::slice::from_ref(&search))));
    answered(&server.post(MESSAGES, &ask(&[user("Hi")], std::slice::from_ref(&search))));
    let messages = [user("Hi"), call, found("rain")];
    let (prefilled, _) = answered(&server.post(MESSAGES, &ask(&messages, &all)));
    assert!((20..300).contains(&prefilled), "{prefilled}");
    assert_eq!(answered(&server.post(MESSAGES, &forced(ask(&messages, &all), "rain"))).1, ["rain"]);
    let unknown = server.post(MESSAGES, &forced(ask(&messages, &all), "snow"));
    assert!(unknown.status == 400 && unknown.body.contains("deferred until named"), "{}", unknown.body);
    // The server cannot search for them, so all are offered.
    let of_server = json!({ "type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25" });
    let all = [all.as_slice(), &[of_server]].concat();
    assert_eq!(answered(&server.post(MESSAGES, &forced(ask(&[user("Hi")], &all), "snow"))).1, ["snow"]);
    server.end();
}

#[test]
fn items_of_a_response_offer_functions_and_have_the_results_of_a_clients_tools() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let late = json!({ "type": "function", "name": "late", "parameters": { "type": "object", "properties": {} } });
    for item in [
        json!({ "type": "additional_tools", "role": "developer", "tools": [late] }),
        json!({ "type": "tool_search_output", "call_id": "t", "execution": "client", "tools": [late] }),
    ] {
        let body = json!({ "input": [user("Hi"), item, user("Go")], "tool_choice": "required" });
        let first = server.post(RESPONSES, &body).json();
        assert_eq!(first["output"][0]["name"], "late", "{first}");
        // Also in a later response.
        let call = &first["output"][0]["call_id"];
        let done = json!({ "type": "function_call_output", "call_id": call, "output": "done" });
        let next = json!({ "input": [done], "previous_response_id": first["id"], "tool_choice": "required" });
        assert_eq!(server.post(RESPONSES, &next).json()["output"][0]["name"], "late");
    }
    let tokens = |items: &[Value]| {
        let reply = server.post("/v1/responses/input_tokens", &json!({ "input": items }));
        assert!(reply.status == 200 && !reply.head.contains("x-sala-ignored"), "{}\n{}", reply.head, reply.body);
        reply.json()["input_tokens"].as_u64().unwrap()
    };
    let alone = tokens(&[user("Hi"), user("Go")]);
    for (call, mut output) in [
        (json!({ "type": "shell_call", "action": { "commands": ["ls"] } }), json!([{ "stdout": "word ".repeat(50) }])),
        (json!({ "type": "local_shell_call", "action": { "command": ["ls"] } }), json!("word ".repeat(50))),
        (json!({ "type": "apply_patch_call", "operation": { "type": "delete_file" } }), json!("word ".repeat(50))),
    ] {
        let of = format!("{}_output", call["type"].as_str().unwrap());
        output = json!({ "type": of, "call_id": "s", "status": "completed", "output": output });
        assert!(tokens(&[user("Hi"), with(call, "call_id", "s".into()), output, user("Go")]) > alone + 50, "{of}");
    }
    let reply = server.post(RESPONSES, &json!({ "input": [user("Hi"), { "type": "compaction_trigger" }] }));
    assert!(reply.status == 400 && reply.body.contains("/v1/responses/compact"), "{}", reply.body);
    server.end();
}

#[test]
fn a_block_that_is_not_known_is_refused_in_the_words_that_clients_fall_back_on() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let message = |content: Value| with(ask(&[], &[]), "messages", json!([user("Hi"), content]));
    let refused = |content: Value| {
        let reply = server.post(MESSAGES, &message(content));
        assert_eq!(reply.status, 400);
        reply.json()["error"]["message"].as_str().unwrap().to_owned()
    };
    let odd = json!([{ "type": "text", "text": "x" }, { "type": "brand_new" }]);
    let words = refused(json!({ "role": "user", "content": odd }));
    let begins =
        "messages.1.content.1: Input tag 'brand_new' found using 'type' does not match any of the expected tags: '";
    assert!(words.starts_with(begins), "{words}");
    assert!(refused(json!({ "role": "user", "content": [{ "type": "image" }] })).contains("reads text only"));
    let odd = json!([{ "role": "user", "content": [{ "type": "brand_new" }] }]);
    let reply = server.post("/v1/chat/completions", &with(question(""), "messages", odd));
    assert_eq!(reply.error(), (400, "invalid_value".into(), "messages[0].content[0].type".into()));
    // A message may change the effort alone.
    for effort in ["low", "max"] {
        let config = json!({ "role": "system", "output_config": { "effort": effort } });
        assert_eq!(server.post(MESSAGES, &message(config)).status, 200);
    }
    assert_eq!(server.post(MESSAGES, &message(json!({ "role": "system" }))).status, 400);
    server.end();
}
