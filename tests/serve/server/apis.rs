//! The other APIs: raw completions, responses that can be named, Anthropic's messages.

use serde_json::{Value, json};

use crate::server::client::{Reply, Running, Setup, answers};
use crate::server::support::{digest_answers, text_model};

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
fn a_raw_completion_continues_text_and_tokens() {
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
fn a_response_is_had_again_and_deleted_also_the_next_day() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), thoughtful());
    let first = respond(&server, &json!({ "input": "Is it?", "metadata": { "of": "test" } }));
    let id = first["id"].as_str().unwrap().to_owned();
    let path = format!("{RESPONSES}/{id}");
    assert_eq!(server.get(&path).json(), first);
    let second = respond(&server, &json!({ "input": "And now?", "previous_response_id": id }));
    let second_path = format!("{RESPONSES}/{}", second["id"].as_str().unwrap());
    let delete =
        |path: &str| server.raw(&format!("DELETE {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"));
    assert_eq!(delete(&path).json(), json!({ "id": id, "object": "response", "deleted": true }));
    let missing = (404, "not_found".to_owned(), "response_id".to_owned());
    assert_eq!((server.get(&path).error(), delete(&path).error()), (missing.clone(), missing.clone()));
    let named = server.post(RESPONSES, &json!({ "input": "x", "previous_response_id": id }));
    assert_eq!(named.error(), (404, "not_found".into(), "previous_response_id".into()));
    assert_eq!(server.get(&format!("{RESPONSES}/resp_nonsense")).error(), missing);
    server.end();

    let server = Running::start(dir.path(), thoughtful());
    assert_eq!(server.get(&path).error(), missing);
    assert_eq!(server.get(&second_path).json(), second);
    // What it builds on is still there.
    let third = respond(&server, &json!({ "input": "Go on", "previous_response_id": second["id"] }));
    assert!(
        third["usage"]["input_tokens_details"]["cached_tokens"].as_u64() > second["usage"]["input_tokens"].as_u64()
    );
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
            "response.content_part.added",
            "response.reasoning_text.delta",
            "response.reasoning_text.done",
            "response.content_part.done",
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
    assert_eq!((wrong.0, wrong.2.as_str()), (404, "input[0].id"));
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
    assert_eq!(whole["content"][1], json!({ "type": "text", "text": "Yes.", "citations": null }));
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
    assert_eq!(
        (&delta["delta"]["stop_reason"], &delta["delta"]["stop_sequence"]),
        (&json!("stop_sequence"), &json!("es"))
    );
    let error = server.post(MESSAGES, &json!({ "messages": [{ "role": "user", "content": "x" }] }));
    assert_eq!((error.status, error.json()["type"].as_str()), (400, Some("error")));
    assert_eq!(error.json()["error"]["type"], "invalid_request_error");
    server.end();
}

fn person() -> Value {
    json!({
        "type": "object",
        "properties": { "name": { "type": "string" }, "age": { "type": "integer" } },
        "required": ["name", "age"],
        "additionalProperties": false,
    })
}

#[test]
fn an_answer_keeps_to_a_schema_in_every_api() {
    let dir = tempfile::tempdir().unwrap();
    // The engine wants to say something else entirely.
    let server = Running::start(dir.path(), Setup::default());
    let check = |text: &str| {
        let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert!(value["name"].is_string() && value["age"].is_i64(), "{value}");
    };
    let messages = json!([{ "role": "user", "content": "Who?" }]);
    let format =
        json!({ "type": "json_schema", "json_schema": { "name": "person", "strict": true, "schema": person() } });
    let chat = json!({ "messages": messages, "response_format": format });
    let whole = server.post(crate::server::CHAT, &chat);
    assert_eq!(whole.status, 200, "{}", whole.body);
    assert_eq!(whole.json()["choices"][0]["finish_reason"], "stop");
    check(whole.json()["choices"][0]["message"]["content"].as_str().unwrap());
    let text = json!({ "format": { "type": "json_schema", "name": "person", "schema": person() } });
    check(&text_of(&respond(&server, &json!({ "input": "Who?", "text": text }))));
    let output = json!({ "format": { "type": "json_schema", "schema": person() } });
    let message =
        server.post(MESSAGES, &json!({ "max_tokens": 99, "messages": messages, "output_config": output })).json();
    check(message["content"][0]["text"].as_str().unwrap());
    let object = json!({ "messages": messages, "response_format": { "type": "json_object" } });
    let object = server.post(crate::server::CHAT, &object).json();
    let text = object["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(serde_json::from_str::<Value>(text).unwrap().is_object(), "{text}");
    for schema in [json!({ "type": "no such type" }), json!({ "type": "string", "minLength": 9, "maxLength": 1 })] {
        let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
        let error =
            server.post(crate::server::CHAT, &json!({ "messages": messages, "response_format": format })).error();
        assert_eq!((error.0, error.2.as_str()), (400, "response_format"), "{schema}");
    }
    server.end();
}

#[test]
fn token_likelihoods_match_the_evaluation_format() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    // As lm-eval's local-completions asks for the likelihood of a continuation: tokens, echoed, one more drawn.
    let tokens = server.post("/tokenize", &json!({ "prompt": "Once upon a time" })).json()["tokens"].clone();
    let count = tokens.as_array().unwrap().len();
    let ask = json!({
        "model": "fake", "prompt": [tokens], "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": true, "temperature": 0,
    });
    let reply = server.post("/v1/completions", &ask);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let logprobs = &reply.json()["choices"][0]["logprobs"];
    let values = logprobs["token_logprobs"].as_array().unwrap();
    assert_eq!(values.len(), count + 1);
    assert!(values[0].is_null() && values[1..].iter().all(|v| v == -0.5), "{values:?}");
    assert!(logprobs["top_logprobs"][0].is_null());
    for (value, best) in values.iter().zip(logprobs["top_logprobs"].as_array().unwrap()).skip(1) {
        let most = best.as_object().unwrap().values().map(|v| v.as_f64().unwrap()).fold(f64::NEG_INFINITY, f64::max);
        assert_eq!(value.as_f64(), Some(most));
    }
    let offsets = logprobs["text_offset"].as_array().unwrap();
    assert_eq!(offsets.len(), count + 1);
    // With nothing to be drawn the prompt is scored, and not read a second time.
    let jobs = server.log.try_iter().count();
    assert_eq!(jobs, 2);
    let nothing = server.post("/v1/completions", &crate::server::with(ask.clone(), "max_tokens", 0.into())).json();
    assert_eq!(nothing["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap().len(), count);
    assert_eq!(
        (&nothing["choices"][0]["finish_reason"], &nothing["usage"]["prompt_tokens"]),
        (&json!("length"), &json!(count))
    );
    assert_eq!(server.log.try_iter().count(), 1);
    // Offsets are places in the text, which the start token is not in.
    let echoed = json!({ "prompt": "Once upon a time", "max_tokens": 0, "logprobs": 1, "echo": true });
    let echoed = server.post("/v1/completions", &echoed).json()["choices"][0].clone();
    let (text, logprobs) = (echoed["text"].as_str().unwrap(), &echoed["logprobs"]);
    assert_eq!((&logprobs["tokens"][0], text), (&json!("<s>"), "Once upon a time"));
    for (token, at) in
        logprobs["tokens"].as_array().unwrap().iter().zip(logprobs["text_offset"].as_array().unwrap()).skip(1)
    {
        let at = usize::try_from(at.as_u64().unwrap()).unwrap();
        assert!(text[at..].starts_with(token.as_str().unwrap()), "{logprobs}");
    }
    // Without an echo those of the answer alone; and the same in a chat.
    let own = json!({ "prompt": "Once", "max_tokens": 3, "logprobs": 2 });
    let own = server.post("/v1/completions", &own).json();
    assert_eq!(own["choices"][0]["logprobs"]["token_logprobs"], json!([-0.5, -0.5, -0.5]));
    let chat = json!({
        "messages": [{ "role": "user", "content": "Hi" }], "logprobs": true, "top_logprobs": 2, "max_tokens": 3,
    });
    let whole = server.post(crate::server::CHAT, &chat).json();
    let content = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!((content.len(), content[0]["top_logprobs"].as_array().unwrap().len()), (3, 2));
    let words: String = content.iter().map(|c| c["token"].as_str().unwrap()).collect();
    assert_eq!(whole["choices"][0]["message"]["content"], words);
    let mut streamed = chat.clone();
    streamed["stream"] = true.into();
    let events = server.post(crate::server::CHAT, &streamed).events();
    let logprobs = events.iter().filter_map(|e| e["choices"][0]["logprobs"]["content"].as_array()).flatten().count();
    assert_eq!(logprobs, 3);
    let wrong = json!({ "messages": [{ "role": "user", "content": "Hi" }], "top_logprobs": 2 });
    assert_eq!(server.post(crate::server::CHAT, &wrong).error().2, "top_logprobs");
    server.end();
}

#[test]
fn likely_tokens_of_an_answer_exclude_thoughts_and_their_tags() {
    for answer in ["<think>\nHm.\n</think>\n\nYes, 7.", " Yes, 7."] {
        let dir = tempfile::tempdir().unwrap();
        let script = answers(text_model(None), answer);
        let server = Running::start(dir.path(), Setup { script, ..Setup::default() });
        let chat = json!({ "messages": [{ "role": "user", "content": "Hi" }], "logprobs": true });
        let whole = server.post(crate::server::CHAT, &chat).json()["choices"][0].clone();
        let content = whole["logprobs"]["content"].as_array().unwrap();
        let words: String = content.iter().map(|c| c["token"].as_str().unwrap()).collect();
        assert_eq!(whole["message"]["content"], words, "{whole}");
        server.end();
    }
}

fn functions() -> Value {
    let parameters =
        json!({ "type": "object", "properties": { "place": { "type": "string" } }, "required": ["place"] });
    json!([{ "type": "function", "function": { "name": "weather", "description": "Weather.", "parameters": parameters } }])
}

/// An engine that calls a function of its own accord.
fn caller() -> Setup {
    let call = "Let me see.<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"place\": \"Rome\"}}\n</tool_call>";
    Setup { script: answers(text_model(None), call), ..Setup::default() }
}

#[test]
fn function_calls_have_the_form_of_each_api() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), caller());
    let messages = json!([{ "role": "user", "content": "Rain in Rome?" }]);
    let ask = json!({ "messages": messages, "tools": functions() });
    let whole = server.post(crate::server::CHAT, &ask);
    assert_eq!(whole.status, 200, "{}", whole.body);
    let whole = whole.json();
    let choice = &whole["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("tool_calls"), &json!("Let me see."))
    );
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["function"], json!({ "name": "weather", "arguments": "{\"place\": \"Rome\"}" }));
    // The result is sent and the conversation continues.
    let mut more = messages.clone();
    more.as_array_mut().unwrap().push(choice["message"].clone());
    more.as_array_mut().unwrap().push(json!({ "role": "tool", "tool_call_id": call["id"], "content": "Dry." }));
    let next = server.post(crate::server::CHAT, &json!({ "messages": more, "tools": functions() }));
    assert_eq!(next.status, 200, "{}", next.body);
    assert!(next.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() > 0);
    let mut streamed = ask.clone();
    streamed["stream"] = true.into();
    let events = server.post(crate::server::CHAT, &streamed).events();
    let calls: Vec<&Value> =
        events.iter().map(|e| &e["choices"][0]["delta"]["tool_calls"][0]).filter(|c| !c.is_null()).collect();
    assert_eq!((&calls[0]["index"], &calls[0]["function"]["name"]), (&json!(0), &json!("weather")));
    assert!(calls.len() > 2 && calls[1..].iter().all(|c| c.get("id").is_none()), "{calls:?}");
    let pieces: String = calls.iter().filter_map(|c| c["function"]["arguments"].as_str()).collect();
    assert_eq!(call["function"]["arguments"], pieces);

    let tools = json!([{ "type": "function", "name": "weather", "parameters": { "type": "object" } }]);
    let response = respond(&server, &json!({ "input": "Rain in Rome?", "tools": tools }));
    let item = &response["output"][1];
    assert_eq!((&item["type"], &item["arguments"]), (&json!("function_call"), &json!("{\"place\": \"Rome\"}")));
    let output = json!([{ "type": "function_call_output", "call_id": item["call_id"], "output": "Dry." }]);
    respond(&server, &json!({ "input": output, "previous_response_id": response["id"], "tools": tools }));
    let events = server.post(RESPONSES, &json!({ "input": "Rain?", "tools": tools, "stream": true }));
    assert!(names(&events).contains(&"response.function_call_arguments.done".to_owned()));

    let tools = json!([{ "name": "weather", "description": "Weather.", "input_schema": { "type": "object" } }]);
    let ask = json!({ "max_tokens": 200, "messages": messages, "tools": tools });
    let message = server.post(MESSAGES, &ask).json();
    assert_eq!(message["stop_reason"], "tool_use", "{message}");
    let block = &message["content"][1];
    assert_eq!((&block["type"], &block["input"]), (&json!("tool_use"), &json!({ "place": "Rome" })));
    let mut more = messages.clone();
    more.as_array_mut().unwrap().push(json!({ "role": "assistant", "content": message["content"] }));
    let result = json!([{ "type": "tool_result", "tool_use_id": block["id"], "content": "Dry." }]);
    more.as_array_mut().unwrap().push(json!({ "role": "user", "content": result }));
    let next = server.post(MESSAGES, &json!({ "max_tokens": 200, "messages": more, "tools": tools }));
    assert_eq!(next.status, 200, "{}", next.body);
    let mut streamed = ask.clone();
    streamed["stream"] = true.into();
    let events = server.post(MESSAGES, &streamed).events();
    let pieces: Vec<&str> = events.iter().filter_map(|e| e["delta"]["partial_json"].as_str()).collect();
    assert!(pieces.len() > 1, "{pieces:?}");
    assert_eq!(serde_json::from_str::<Value>(&pieces.concat()).unwrap(), json!({ "place": "Rome" }));
    // Cut in the middle of its arguments it is a call with invalid JSON, and no finish reason asks to run it.
    let mut cut = json!({ "messages": messages, "tools": functions(), "max_tokens": 25 });
    let choice = loop {
        let choice = server.post(crate::server::CHAT, &cut).json()["choices"][0].clone();
        match choice["message"]["tool_calls"][0]["function"]["arguments"].as_str() {
            None => cut["max_tokens"] = (cut["max_tokens"].as_u64().unwrap() + 1).into(),
            Some(arguments) => {
                assert!(serde_json::from_str::<Value>(arguments).is_err(), "{arguments}");
                break choice;
            }
        }
    };
    assert_eq!(choice["finish_reason"], "length");
    // Also where one call ends the answer: this one did not.
    let one = server.post(crate::server::CHAT, &crate::server::with(cut, "parallel_tool_calls", false.into())).json();
    assert_eq!(one["choices"][0]["finish_reason"], "length", "{one}");
    server.end();
}

#[test]
fn without_parallel_calls_the_answer_ends_after_one() {
    let dir = tempfile::tempdir().unwrap();
    let call = "<tool_call>{\"name\": \"weather\", \"arguments\": {\"place\": \"Rome\"}}</tool_call>";
    let script = answers(text_model(None), &format!("Well. {call}{call} Done."));
    let server = Running::start(dir.path(), Setup { script, ..Setup::default() });
    let messages = json!([{ "role": "user", "content": "Rain in Rome?" }]);
    let ask = json!({ "messages": messages, "tools": functions() });
    let both = server.post(crate::server::CHAT, &ask).json();
    assert_eq!(both["choices"][0]["message"]["tool_calls"].as_array().unwrap().len(), 2);
    assert_eq!(both["choices"][0]["message"]["content"], "Well. Done.");
    let one = server.post(crate::server::CHAT, &crate::server::with(ask, "parallel_tool_calls", false.into())).json();
    assert_eq!(one["choices"][0]["message"]["tool_calls"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&one["choices"][0]["message"]["content"], &one["choices"][0]["finish_reason"]),
        (&json!("Well. "), &json!("tool_calls"))
    );
    let tools = json!([{ "name": "weather", "input_schema": { "type": "object" } }]);
    let choice = json!({ "type": "auto", "disable_parallel_tool_use": true });
    let ask = json!({ "max_tokens": 200, "messages": messages, "tools": tools, "tool_choice": choice });
    let message = server.post(MESSAGES, &ask).json();
    assert_eq!((message["content"].as_array().unwrap().len(), &message["stop_reason"]), (2, &json!("tool_use")));
    server.end();
}

#[test]
fn a_call_can_be_required_and_forbidden() {
    let dir = tempfile::tempdir().unwrap();
    // This engine would rather chat.
    let server = Running::start(dir.path(), Setup::default());
    let messages = json!([{ "role": "user", "content": "Rain in Rome?" }]);
    let ask = |choice: Value| {
        server.post(crate::server::CHAT, &json!({ "messages": messages, "tools": functions(), "tool_choice": choice }))
    };
    for choice in [json!("required"), json!({ "type": "function", "function": { "name": "weather" } })] {
        let reply = ask(choice).json();
        let call = &reply["choices"][0]["message"]["tool_calls"][0];
        assert_eq!(call["function"]["name"], "weather", "{reply}");
        let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
        assert!(arguments["place"].is_string());
    }
    assert_eq!(ask(json!("none")).json()["choices"][0]["message"]["content"], "Hello there, friend.");
    assert_eq!(ask(json!("auto")).json()["choices"][0]["finish_reason"], "stop");
    assert_eq!(ask(json!({ "type": "function", "function": { "name": "other" } })).error().2, "tool_choice");
    server.end();
}
