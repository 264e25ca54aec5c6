//! What Open Responses asks of a server: its schemas of 2026-04 in our own words, and the requests of its compliance cases. Images
//! are refused: the model reads text. Streamed thoughts have OpenAI's names, which its clients know.

use serde_json::{Value, json};

use crate::server::client::{Running, Setup, answers};
use crate::server::support::text_model;

const PATH: &str = "/v1/responses";

/// Asserts that a field holds one of these kinds of JSON.
fn holds(value: &Value, field: &str, kinds: &[&str]) {
    let found = match &value[field] {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_u64() || n.is_i64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let is_number = found == "integer" && kinds.contains(&"number");
    assert!(value.get(field).is_some(), "{field} is missing in {value}");
    assert!(is_number || kinds.contains(&found), "{field} is {found}, not {kinds:?}: {value}");
}

/// Asserts that a value is one of a few words.
fn is_one_of(value: &Value, words: &[&str]) {
    assert!(value.as_str().is_some_and(|word| words.contains(&word)), "{value} is none of {words:?}");
}

const STATES: [&str; 3] = ["in_progress", "completed", "incomplete"];

fn check_part(part: &Value) {
    is_one_of(&part["type"], &["output_text", "reasoning_text"]);
    holds(part, "text", &["string"]);
    if part["type"] == "output_text" {
        holds(part, "annotations", &["array"]);
    }
}

fn check_item(item: &Value) {
    holds(item, "id", &["string"]);
    is_one_of(&item["status"], &STATES);
    match item["type"].as_str().unwrap() {
        "message" => {
            assert_eq!(item["role"], "assistant");
            item["content"].as_array().unwrap().iter().for_each(check_part);
        }
        "reasoning" => {
            holds(item, "summary", &["array"]);
            item["content"].as_array().unwrap().iter().for_each(check_part);
        }
        "function_call" => {
            ["call_id", "name", "arguments"].iter().for_each(|field| holds(item, field, &["string"]));
        }
        other => panic!("an item of type {other}"),
    }
}

fn check_text(text: &Value) {
    let format = &text["format"];
    is_one_of(&format["type"], &["text", "json_object", "json_schema"]);
    if format["type"] == "json_schema" {
        holds(format, "name", &["string"]);
        holds(format, "description", &["string", "null"]);
        holds(format, "strict", &["boolean"]);
        holds(format, "schema", &["object"]);
    }
}

/// Asserts that an object is a response with all that it must have.
fn check(response: &Value) {
    for (field, kinds) in [
        ("id", &["string"][..]),
        ("created_at", &["integer"]),
        ("completed_at", &["integer", "null"]),
        ("incomplete_details", &["object", "null"]),
        ("model", &["string"]),
        ("previous_response_id", &["string", "null"]),
        ("instructions", &["string", "null"]),
        ("output", &["array"]),
        ("error", &["object", "null"]),
        ("tools", &["array"]),
        ("tool_choice", &["string", "object"]),
        ("parallel_tool_calls", &["boolean"]),
        ("text", &["object"]),
        ("top_p", &["number"]),
        ("presence_penalty", &["number"]),
        ("frequency_penalty", &["number"]),
        ("top_logprobs", &["integer"]),
        ("temperature", &["number"]),
        ("reasoning", &["object", "null"]),
        ("user", &["string", "null"]),
        ("usage", &["object", "null"]),
        ("max_output_tokens", &["integer", "null"]),
        ("max_tool_calls", &["integer", "null"]),
        ("store", &["boolean"]),
        ("background", &["boolean"]),
        ("service_tier", &["string"]),
        ("metadata", &["object"]),
        ("safety_identifier", &["string", "null"]),
        ("prompt_cache_key", &["string", "null"]),
    ] {
        holds(response, field, kinds);
    }
    assert_eq!(response["object"], "response");
    is_one_of(&response["status"], &["in_progress", "completed", "incomplete", "failed"]);
    is_one_of(&response["truncation"], &["auto", "disabled"]);
    assert_eq!(response["completed_at"].is_null(), response["status"] != "completed");
    check_text(&response["text"]);
    holds(&response["reasoning"], "effort", &["string", "null"]);
    holds(&response["reasoning"], "summary", &["string", "null"]);
    if let Value::String(word) = &response["tool_choice"] {
        assert!(["auto", "none", "required"].contains(&word.as_str()), "{word}");
    }
    for tool in response["tools"].as_array().unwrap() {
        assert_eq!(tool["type"], "function");
        holds(tool, "name", &["string"]);
        holds(tool, "description", &["string", "null"]);
        holds(tool, "parameters", &["object", "null"]);
        holds(tool, "strict", &["boolean", "null"]);
    }
    if !response["usage"].is_null() {
        let usage = &response["usage"];
        ["input_tokens", "output_tokens", "total_tokens"].iter().for_each(|field| holds(usage, field, &["integer"]));
        holds(&usage["input_tokens_details"], "cached_tokens", &["integer"]);
        holds(&usage["output_tokens_details"], "reasoning_tokens", &["integer"]);
    }
    let items = response["output"].as_array().unwrap();
    items.iter().for_each(check_item);
    if let Some((last, before)) = items.split_last() {
        assert!(before.iter().all(|item| item["status"] == "completed"), "{items:?}");
        assert!(last["status"] != "incomplete" || response["status"] != "completed", "{last}");
    }
}

/// Asserts that a stream is in order, and that its pieces are what the last object says; that object.
fn check_stream(body: &str) -> Value {
    let mut events = Vec::new();
    for block in body.split("\n\n").filter(|b| !b.is_empty() && !b.starts_with(':')) {
        let (mut name, mut data) = ("", "");
        for line in block.lines() {
            (name, data) = match line.split_once(": ") {
                Some(("event", word)) => (word, data),
                Some(("data", text)) => (name, text),
                other => panic!("{other:?}"),
            };
        }
        if data == "[DONE]" {
            assert!(body.ends_with("data: [DONE]\n\n"));
            continue;
        }
        let event: Value = serde_json::from_str(data).unwrap();
        assert_eq!(
            (event["type"].as_str(), event["sequence_number"].as_u64()),
            (Some(name), Some(events.len() as u64))
        );
        events.push(event);
    }
    assert!(body.ends_with("data: [DONE]\n\n"), "no end: {body}");
    assert_eq!((&events[0]["type"], &events[1]["type"]), (&json!("response.created"), &json!("response.in_progress")));
    check(&events[0]["response"]);
    // Items and their parts as announced, and which of both is open.
    let (mut items, mut item_open, mut part_open) = (Vec::new(), false, false);
    let (last, between) = events[2..].split_last().unwrap();
    for event in between {
        let kind = event["type"].as_str().unwrap();
        let index = event["output_index"].as_u64().unwrap() as usize;
        if kind == "response.output_item.added" {
            assert!(!item_open && index == items.len(), "{event}");
            check_item(&event["item"]);
            assert_eq!(event["item"]["status"], "in_progress");
            items.push(event["item"].clone());
            item_open = true;
            continue;
        }
        assert!(item_open && index + 1 == items.len(), "{event}");
        let item = &mut items[index];
        if kind != "response.output_item.done" {
            assert_eq!(event["item_id"], item["id"], "{event}");
        }
        if event.get("content_index").is_some() {
            assert_eq!(event["content_index"], 0);
        }
        match kind {
            "response.content_part.added" => {
                check_part(&event["part"]);
                item["content"].as_array_mut().unwrap().push(event["part"].clone());
                part_open = true;
            }
            "response.output_text.delta" | "response.reasoning_text.delta" => {
                assert!(part_open, "{event}");
                let text = item["content"][0]["text"].as_str().unwrap().to_owned() + event["delta"].as_str().unwrap();
                item["content"][0]["text"] = text.into();
            }
            "response.output_text.done" | "response.reasoning_text.done" => {
                assert_eq!(event["text"], item["content"][0]["text"]);
            }
            "response.content_part.done" => {
                assert_eq!(event["part"], item["content"][0]);
                part_open = false;
            }
            "response.function_call_arguments.delta" => {
                let text = item["arguments"].as_str().unwrap().to_owned() + event["delta"].as_str().unwrap();
                item["arguments"] = text.into();
            }
            "response.function_call_arguments.done" => assert_eq!(event["arguments"], item["arguments"]),
            "response.output_item.done" => {
                item["status"] = event["item"]["status"].clone();
                assert_eq!((&*item, part_open), (&event["item"], false));
                item_open = false;
            }
            other => panic!("an event {other}"),
        }
    }
    assert!(!item_open && !part_open);
    let response = &last["response"];
    check(response);
    assert_eq!(last["type"], format!("response.{}", response["status"].as_str().unwrap()));
    assert_eq!(response["output"], json!(items));
    response.clone()
}

/// What a request is answered with, whole; streamed it must be the same but for ids and times.
fn respond(server: &Running, body: &Value) -> Value {
    let whole = server.post(PATH, body);
    assert_eq!(whole.status, 200, "{}", whole.body);
    let whole = whole.json();
    check(&whole);
    let streamed = server.post(PATH, &crate::server::with(body.clone(), "stream", true.into()));
    assert!(streamed.head.contains("text/event-stream"), "{}", streamed.head);
    let streamed = check_stream(&streamed.body);
    let bare = |response: &Value| -> Vec<Value> {
        let items = response["output"].as_array().unwrap().iter().cloned();
        items
            .map(|mut item| {
                item["id"] = Value::Null;
                if item["type"] == "function_call" {
                    item["call_id"] = Value::Null;
                }
                item
            })
            .collect()
    };
    assert_eq!(bare(&whole), bare(&streamed));
    assert_eq!(server.get(&format!("{PATH}/{}", streamed["id"].as_str().unwrap())).json(), streamed);
    whole
}

fn says(answer: &str) -> Setup {
    Setup { script: answers(text_model(None), answer), ..Setup::default() }
}

fn message(role: &str, text: &str) -> Value {
    json!({ "type": "message", "role": role, "content": text })
}

#[test]
fn texts_and_conversations_are_answered_as_its_cases_ask() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), says("<think>\nHm.\n</think>\n\nHello to you."));
    for input in [
        json!([message("user", "Greet me with three words.")]),
        json!([message("system", "Speak like a sailor."), message("user", "Greet me.")]),
        json!([message("user", "I am Ann."), message("assistant", "Hello Ann!"), message("user", "Who am I?")]),
        json!("Count to five."),
    ] {
        let response = respond(&server, &json!({ "model": "fake", "input": input }));
        assert_eq!(response["status"], "completed");
        let kinds: Vec<&Value> = response["output"].as_array().unwrap().iter().map(|item| &item["type"]).collect();
        assert_eq!(kinds, [&json!("reasoning"), &json!("message")]);
    }
    let first = respond(&server, &json!({ "input": "Keep in mind: papaya." }));
    let second = respond(&server, &json!({ "input": "Which word?", "previous_response_id": first["id"] }));
    assert_eq!((&second["status"], &second["previous_response_id"]), (&json!("completed"), &first["id"]));
    let short = respond(&server, &json!({ "input": "Hi", "max_output_tokens": 2 }));
    assert_eq!(
        (&short["status"], &short["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    server.end();
}

#[test]
fn every_response_object_echoes_the_request() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), says("Hello."));
    let parameters = json!({ "type": "object", "properties": { "of": { "type": "string" } } });
    let schema = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let request = json!({
        "input": "Hi", "instructions": "Be brief.", "temperature": 0.7, "top_p": 0.9, "presence_penalty": 0.5,
        "frequency_penalty": -0.25, "max_output_tokens": 40, "max_tool_calls": 3, "metadata": { "of": "test" },
        "parallel_tool_calls": false, "truncation": "auto", "store": true, "safety_identifier": "s", "user": "u",
        "prompt_cache_key": "k", "reasoning": { "effort": "none", "summary": "auto" }, "service_tier": "flex",
        "tools": [{ "type": "function", "name": "look", "parameters": parameters, "strict": true }],
        "tool_choice": { "type": "allowed_tools", "mode": "auto", "tools": [{ "type": "function", "name": "look" }] },
        "text": { "format": { "type": "json_schema", "name": "empty", "schema": schema }, "verbosity": "low" },
    });
    let response = respond(&server, &request);
    for field in [
        "instructions",
        "temperature",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
        "max_output_tokens",
        "max_tool_calls",
        "metadata",
        "parallel_tool_calls",
        "truncation",
        "store",
        "safety_identifier",
        "user",
        "prompt_cache_key",
        "tool_choice",
    ] {
        assert_eq!(response[field], request[field], "{field}");
    }
    assert_eq!(response["reasoning"], json!({ "effort": "none", "summary": null }));
    assert_eq!(response["service_tier"], "default");
    let tool =
        json!({ "type": "function", "name": "look", "description": null, "parameters": parameters, "strict": true });
    assert_eq!(response["tools"], json!([tool]));
    let format =
        json!({ "type": "json_schema", "name": "empty", "description": null, "schema": schema, "strict": false });
    assert_eq!(response["text"], json!({ "format": format, "verbosity": "low" }));
    let nothing = respond(&server, &json!({ "input": "Hi" }));
    assert_eq!((&nothing["metadata"], &nothing["text"]), (&json!({}), &json!({ "format": { "type": "text" } })));
    for (field, wrong) in [
        ("metadata", json!(7)),
        ("metadata", json!({ "a": 1 })),
        ("truncation", json!("some")),
        ("max_tool_calls", json!(0)),
        ("background", json!(true)),
        ("user", json!(5)),
    ] {
        let reply = server.post(PATH, &crate::server::with(json!({ "input": "Hi" }), field, wrong.clone()));
        assert_eq!((reply.status, reply.error().2.as_str()), (400, field), "{wrong}");
    }
    server.end();
}

#[test]
fn function_calls_and_results_follow_the_published_cases() {
    let dir = tempfile::tempdir().unwrap();
    let call =
        "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"location\": \"San Francisco, CA\"}}</tool_call>";
    let server = Running::start(dir.path(), says(&format!("I look. {call} There.")));
    let parameters =
        json!({ "type": "object", "properties": { "location": { "type": "string" } }, "required": ["location"] });
    let tools =
        json!([{ "type": "function", "name": "get_weather", "description": "Weather", "parameters": parameters }]);
    let ask = json!({ "input": [message("user", "Weather in San Francisco?")], "tools": tools });
    let response = respond(&server, &ask);
    let items = response["output"].as_array().unwrap();
    let kinds: Vec<&str> = items.iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["message", "function_call", "message"]);
    assert_eq!(items[1]["arguments"], "{\"location\": \"San Francisco, CA\"}");
    let streamed = server.post(PATH, &crate::server::with(ask.clone(), "stream", true.into()));
    let deltas = streamed.events().iter().filter(|e| e["type"] == "response.function_call_arguments.delta").count();
    assert!(deltas > 1, "{deltas}");
    // Forced: the call alone.
    let choice = json!({ "type": "function", "name": "get_weather" });
    let forced = respond(&server, &crate::server::with(ask, "tool_choice", choice.clone()));
    assert_eq!((forced["output"].as_array().unwrap().len(), &forced["tool_choice"]), (1, &choice));
    let call = &forced["output"][0];
    let output = json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "64 degrees" });
    let again = json!([message("user", "Weather?"), call, output]);
    assert_eq!(respond(&server, &json!({ "input": again, "tools": tools }))["status"], "completed");
    // An image is refused with the field that holds it.
    let parts =
        json!([{ "type": "input_text", "text": "What is it?" }, { "type": "input_image", "image_url": "data:," }]);
    let image = server.post(PATH, &json!({ "input": [{ "type": "message", "role": "user", "content": parts }] }));
    assert_eq!(image.error(), (400, "invalid_value".into(), "input[0].content[1].type".into()));
    server.end();
}
