//! What clients send that were written for other servers: fields and tools that are not known here, and other names for what is.

use sala_chat::config::settings::{ServeConfig, UnknownFields};
use serde_json::{Value, json};

use crate::server::client::{Reply, Running, Setup, answers};
use crate::server::support::text_model;
use crate::server::{CHAT, question, with};

const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

fn header(reply: &Reply, name: &str) -> Option<String> {
    let line = reply.head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")))?;
    Some(line.to_owned())
}

fn content(reply: &Reply) -> String {
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned()
}

fn refusing() -> Setup {
    Setup { rules: ServeConfig { unknown_fields: UnknownFields::Refuse, ..ServeConfig::default() }, ..Setup::default() }
}

fn tool(name: &str) -> Value {
    json!({ "type": "function", "name": name, "parameters": { "type": "object", "properties": {} } })
}

#[test]
fn an_unknown_field_is_left_out_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let message = json!([{ "role": "user", "content": [{ "type": "text", "text": "Hi", "mood": "good" }] }]);
    for (path, body, names) in [
        (CHAT, with(with(question("Hi"), "temprature", json!(1)), "zeta", json!({})), "temprature, zeta"),
        (CHAT, with(question(""), "messages", message.clone()), "messages[].content[].mood"),
        (CHAT, with(with(question("Hi"), "stream", true.into()), "odd,\n", json!(1)), "odd??"),
        ("/v1/completions", json!({ "prompt": "a", "top_n_sigma": 1 }), "top_n_sigma"),
        (
            RESPONSES,
            json!({ "input": "Hi", "moderation": {}, "include": ["web_search_call.results"] }),
            "include.web_search_call.results, moderation",
        ),
        (
            MESSAGES,
            json!({ "max_tokens": 9, "messages": message, "speed": "fast" }),
            "messages[].content[].mood, speed",
        ),
    ] {
        let reply = server.post(path, &body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        assert_eq!(header(&reply, "x-sala-ignored").as_deref(), Some(names), "{path}");
        assert!(header(&reply, "request-id").is_some_and(|id| id.starts_with("req_")), "{}", reply.head);
        assert_eq!(header(&reply, "request-id"), header(&reply, "x-request-id"));
    }
    assert_eq!(header(&server.post(CHAT, &question("Hi")), "x-sala-ignored"), None);
    let metrics = server.get("/metrics").body;
    for line in ["{field=\"temprature\"} 1\n", "{field=\"messages[].content[].mood\"} 2\n"] {
        assert!(metrics.contains(&format!("sala_chat_ignored_fields_total{line}")), "{metrics}");
    }
    server.end();

    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), refusing());
    let reply = server.post(CHAT, &with(question("x"), "temprature", json!(1)));
    assert_eq!(reply.error(), (400, "unknown_parameter".into(), "temprature".into()));
    assert!(reply.body.contains("Did you mean temperature?"), "{}", reply.body);
    server.end();
}

#[test]
fn server_side_tools_are_dropped_and_namespaced_ones_work() {
    let dir = tempfile::tempdir().unwrap();
    let tools = json!([
        tool("f"),
        { "type": "namespace", "name": "agents", "description": "d", "tools": [tool("spawn")] },
        { "type": "web_search", "external_web_access": false },
        { "type": "local_shell" },
    ]);
    let server = Running::start(dir.path(), Setup::default());
    let reply = server.post(RESPONSES, &json!({ "input": "hi", "tools": tools }));
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(header(&reply, "x-sala-ignored").unwrap(), "tools[].local_shell, tools[].web_search");
    for name in ["spawn", "agents__spawn"] {
        let choice = json!({ "type": "function", "name": name });
        let ask = json!({ "input": "hi", "tools": tools, "tool_choice": choice });
        let call = &server.post(RESPONSES, &ask).json()["output"][0];
        assert_eq!((&call["name"], &call["namespace"]), (&json!("spawn"), &json!("agents")), "{call}");
        let events = server.post(RESPONSES, &with(ask.clone(), "stream", true.into())).events();
        let done = events.iter().find(|e| e["type"] == "response.output_item.done").unwrap();
        assert_eq!((&done["item"]["name"], &done["item"]["namespace"]), (&json!("spawn"), &json!("agents")));
        // The result is sent back with the call.
        let output = json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "done" });
        let next = json!({ "input": [{ "role": "user", "content": "hi" }, call, output], "tools": tools });
        assert_eq!(server.post(RESPONSES, &next).status, 200);
    }
    let of_anthropic = json!([{ "type": "web_search_20250305", "name": "web_search", "max_uses": 5 }]);
    let ask = json!({ "max_tokens": 9, "messages": [{ "role": "user", "content": "Hi" }], "tools": of_anthropic });
    let reply = server.post(MESSAGES, &ask);
    assert_eq!(header(&reply, "x-sala-ignored").unwrap(), "tools[].web_search_20250305", "{}", reply.body);
    // A tool that is left out cannot be forced.
    let choice = json!({ "type": "tool", "name": "web_search", "disable_parallel_tool_use": true });
    let reply = server.post(MESSAGES, &with(ask, "tool_choice", choice));
    assert!(reply.status == 400 && reply.body.contains("left out"), "{}", reply.body);
    let ask = json!({ "input": "hi", "tools": tools, "tool_choice": { "type": "web_search" } });
    assert_eq!(server.post(RESPONSES, &ask).error().2, "tool_choice");
    let search = json!({ "type": "function", "function": { "name": "web_search" } });
    let chat = with(with(question("hi"), "tools", json!([{ "type": "web_search" }])), "tool_choice", search);
    assert_eq!(server.post(CHAT, &chat).error().2, "tool_choice");
    for choice in [json!({ "type": "file_search" }), json!({ "type": "function", "name": "web" })] {
        let reply = server.post(RESPONSES, &with(ask.clone(), "tool_choice", choice));
        assert_eq!(reply.error().2, "tool_choice", "{}", reply.body);
    }
    // One among the allowed tools is left out too; the others may be called.
    let allowed = |mode: &str, names: Value| {
        let choice = json!({ "type": "allowed_tools", "mode": mode, "tools": names });
        server.post(RESPONSES, &with(ask.clone(), "tool_choice", choice))
    };
    let function = json!({ "type": "function", "name": "f" });
    let reply = allowed("required", json!([{ "type": "web_search" }, function]));
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(reply.json()["output"][0]["name"], "f", "{}", reply.body);
    assert!(header(&reply, "x-sala-ignored").unwrap().starts_with("tool_choice, tools[]"), "{}", reply.head);
    let reply = allowed("auto", json!([{ "type": "web_search" }]));
    assert_eq!((reply.status, &reply.json()["tool_choice"]), (200, &json!("none")), "{}", reply.body);
    assert_eq!(allowed("required", json!([{ "type": "web_search" }])).error().2, "tool_choice.tools");
    for names in [json!([]), json!([{ "type": "file_search" }]), json!([{ "type": "function", "name": "web" }])] {
        assert_eq!(allowed("auto", names).status, 400);
    }
    // What must be called has to be there.
    let must = json!({ "input": "hi", "tools": [{ "type": "web_search" }], "tool_choice": "required" });
    assert_eq!(server.post(RESPONSES, &must).error().2, "tool_choice");
    server.end();

    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), refusing());
    let unknown = with(question("Hi"), "tools", json!([{ "type": "web_search" }]));
    assert_eq!(server.post(CHAT, &unknown).error(), (400, "unsupported_parameter".into(), "tools[0].type".into()));
    server.end();
}

#[test]
fn a_chat_takes_texts_under_the_name_that_responses_have() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let part = |of: &str| json!({ "messages": [{ "role": "user", "content": [{ "type": of, "text": "Hi" }] }] });
    let (one, other) = (server.post(CHAT, &part("text")), server.post(CHAT, &part("input_text")));
    assert_eq!(content(&one), content(&other));
    server.end();
}

#[test]
fn a_custom_tool_is_called_with_its_text() {
    let dir = tempfile::tempdir().unwrap();
    let call =
        "<tool_call>{\"name\": \"apply_patch\", \"arguments\": {\"input\": \"*** \\\"Begin\\\"\\n\"}}</tool_call>";
    let server = Running::start(dir.path(), Setup { script: answers(text_model(None), call), ..Setup::default() });
    let text = "*** \"Begin\"\n";
    let format = json!({ "type": "grammar", "syntax": "lark", "definition": "start: /x/" });
    let tools = json!([{ "type": "custom", "name": "apply_patch", "description": "Edits.", "format": format }]);
    let ask = json!({ "input": "Edit", "tools": tools });
    let reply = server.post(RESPONSES, &ask);
    assert_eq!(header(&reply, "x-sala-ignored").unwrap(), "tools[].format");
    let item = reply.json()["output"][0].clone();
    assert_eq!(
        (&item["type"], &item["name"], &item["input"]),
        (&json!("custom_tool_call"), &json!("apply_patch"), &json!(text))
    );
    let events = server.post(RESPONSES, &with(ask.clone(), "stream", true.into())).events();
    let of = |name: &str| events.iter().filter(|e| e["type"] == name).collect::<Vec<_>>();
    assert_eq!(of("response.custom_tool_call_input.delta")[0]["delta"], text);
    assert_eq!(of("response.custom_tool_call_input.done")[0]["input"], text);
    assert_eq!(of("response.output_item.added")[0]["item"]["input"], "");
    assert_eq!(of("response.output_item.done")[0]["item"]["type"], "custom_tool_call");
    assert!(!events.iter().any(|e| e["type"].as_str().unwrap().contains("arguments")));
    let output = json!({ "type": "custom_tool_call_output", "call_id": item["call_id"], "output": "Done." });
    let user = json!({ "role": "user", "content": "Edit" });
    let next = server.post(RESPONSES, &json!({ "input": [user, item, output], "tools": tools }));
    assert_eq!(next.status, 200, "{}", next.body);
    // The same in a chat, whole and streamed.
    let chat = with(question("Edit"), "tools", json!([{ "type": "custom", "custom": { "name": "apply_patch" } }]));
    let message = server.post(CHAT, &chat).json()["choices"][0]["message"].clone();
    let call = &message["tool_calls"][0];
    assert_eq!((&call["type"], &call["custom"]["input"]), (&json!("custom"), &json!(text)));
    let streamed = server.post(CHAT, &with(chat.clone(), "stream", true.into())).events();
    let calls: Vec<&Value> = streamed.iter().filter_map(|e| e["choices"][0]["delta"].get("tool_calls")).collect();
    assert_eq!((calls.len(), &calls[0][0]["custom"]["input"]), (1, &json!(text)));
    let result = json!({ "role": "tool", "tool_call_id": call["id"], "content": "Done." });
    let turns = json!([{ "role": "user", "content": "Edit" }, message, result]);
    assert_eq!(server.post(CHAT, &with(chat, "messages", turns)).status, 200);
    server.end();
}

#[test]
fn items_are_named_by_their_ids_also_the_next_day() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let first = server.post(RESPONSES, &json!({ "input": "Hi" })).json();
    let item = json!({ "type": "item_reference", "id": first["output"][0]["id"] });
    let user = json!({ "role": "user", "content": "Hi" });
    let named = json!({ "input": [user, item, user] });
    let whole = json!({ "input": [user, first["output"][0], user] });
    let tokens = |server: &Running, body: &Value| {
        let reply = server.post("/v1/responses/input_tokens", body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.json()["input_tokens"].clone()
    };
    assert_eq!(tokens(&server, &named), tokens(&server, &whole));
    server.end();
    let server = Running::start(dir.path(), Setup::default());
    assert_eq!(tokens(&server, &named), tokens(&server, &whole));
    // What other servers' tools did is no turn.
    let search = json!({ "type": "web_search_call", "id": "ws_1", "status": "completed", "action": {} });
    let reply = server.post(RESPONSES, &json!({ "input": [search, user] }));
    assert_eq!(header(&reply, "x-sala-ignored").unwrap(), "input[].web_search_call");
    server.end();
}

#[test]
fn a_conversation_is_compacted_to_its_questions_and_a_summary() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let user = |text: &str| json!({ "role": "user", "content": text });
    let answer = json!({ "role": "assistant", "content": "An answer." });
    let reply = server.post("/v1/responses/compact", &json!({ "input": [user("One"), answer, user("Two")] }));
    assert_eq!(reply.status, 200, "{}", reply.body);
    let compacted = reply.json();
    assert_eq!(compacted["object"], "response.compaction");
    let kinds: Vec<&Value> = compacted["output"].as_array().unwrap().iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["message", "message", "compaction"]);
    let mut input = compacted["output"].as_array().unwrap().clone();
    assert!(input[2]["encrypted_content"].as_str().unwrap().contains("Hello there, friend."));
    input.push(user("Three"));
    let next = server.post(RESPONSES, &json!({ "input": input }));
    assert_eq!((next.status, header(&next, "x-sala-ignored")), (200, None), "{}", next.body);
    server.end();
}

#[test]
fn functions_of_the_first_form_are_called_in_that_form() {
    let dir = tempfile::tempdir().unwrap();
    let call = "<tool_call>{\"name\": \"look\", \"arguments\": {\"of\": \"Rome\"}}</tool_call>";
    let server = Running::start(dir.path(), Setup { script: answers(text_model(None), call), ..Setup::default() });
    let functions = json!([{ "name": "look", "parameters": { "type": "object", "properties": { "of": {} } } }]);
    let ask = with(question("Rain?"), "functions", functions);
    for choice in [json!("auto"), json!({ "name": "look" })] {
        let choice = server.post(CHAT, &with(ask.clone(), "function_call", choice)).json()["choices"][0].clone();
        assert_eq!(choice["finish_reason"], "function_call", "{choice}");
        assert_eq!(choice["message"]["function_call"]["name"], "look");
        assert!(choice["message"].get("tool_calls").is_none());
    }
    let events = server.post(CHAT, &with(ask.clone(), "stream", true.into())).events();
    let pieces = events.iter().filter_map(|e| e["choices"][0]["delta"]["function_call"]["arguments"].as_str());
    assert_eq!(pieces.collect::<String>(), "{\"of\": \"Rome\"}");
    let none = server.post(CHAT, &with(ask.clone(), "function_call", json!("none"))).json();
    assert!(none["choices"][0]["message"]["content"].as_str().unwrap().contains("tool_call"));
    let message = server.post(CHAT, &ask).json()["choices"][0]["message"].clone();
    let result = json!({ "role": "function", "name": "look", "content": "Dry." });
    let turns = json!([{ "role": "user", "content": "Rain?" }, message, result]);
    assert_eq!(server.post(CHAT, &with(ask, "messages", turns)).status, 200);
    server.end();
}

#[test]
fn fields_of_other_servers_are_done() {
    let dir = tempfile::tempdir().unwrap();
    let text = text_model(None);
    let server = Running::start(dir.path(), Setup::default());
    let ask = |field: &str, value: Value| {
        let reply = server.post(CHAT, &with(question("Hi"), field, value));
        assert_eq!(header(&reply, "x-sala-ignored"), None, "{field}");
        reply
    };
    let usual = content(&server.post(CHAT, &question("Hi")));
    for (field, value) in [
        ("max_tokens", json!(-1)),
        ("n_predict", json!(-1)),
        ("cache_prompt", json!(false)),
        ("repeat_penalty", json!(1.0)),
        ("thinking", json!({ "type": "enabled", "budget_tokens": 99 })),
        ("thinking", json!(true)),
        ("reasoning", json!({ "effort": "low", "exclude": false })),
        ("reasoning", json!({ "enabled": false })),
        ("enable_thinking", json!(false)),
        ("thinking_budget", json!(5)),
        ("min_tokens", json!(0)),
        ("logit_bias", json!({})),
    ] {
        assert_eq!(content(&ask(field, value.clone())), usual, "{field} {value}");
    }
    let short = ask("n_predict", json!(2)).json();
    assert_eq!(short["choices"][0]["finish_reason"], "length");
    // The scripted engine's second token.
    let tokens = text.tokenizer.encode_after(&usual, sala_chat::text::Before::Text).unwrap();
    let first = text.tokenizer.decode(&tokens[..1], sala_chat::text::Specials::Hide);
    let stopped = ask("stop_token_ids", json!([tokens[1]])).json();
    assert_eq!(
        (&stopped["choices"][0]["finish_reason"], stopped["choices"][0]["message"]["content"].as_str().unwrap().trim()),
        (&json!("stop"), first.trim())
    );
    let banned = content(&ask("logit_bias", json!({ tokens[0].to_string(): -100 })));
    assert!(!banned.starts_with(first.as_str()), "{banned}");
    for (field, value, wanted) in [
        ("structured_outputs", json!({ "choice": ["yes", "no \"x\""] }), &["yes", "no \"x\""][..]),
        ("structured_outputs", json!({ "regex": "a{3}" }), &["aaa"]),
        ("structured_outputs", json!({ "json": { "const": 5 } }), &["5"]),
        ("guided_choice", json!(["one"]), &["one"]),
        ("guided_regex", json!("[b]{2}"), &["bb"]),
        ("guided_json", json!("{\"const\": 6}"), &["6"]),
        ("json_schema", json!({ "const": 7 }), &["7"]),
        ("response_format", json!({ "type": "json_object", "schema": { "const": 8 } }), &["8"]),
        ("response_format", json!({ "type": "json_schema", "schema": { "const": 9 } }), &["9"]),
    ] {
        let answer = content(&ask(field, value.clone()));
        assert!(wanted.contains(&answer.as_str()), "{field} {value}: {answer}");
    }
    server.end();
}

#[test]
fn an_answer_is_gone_on_with_in_a_chat() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let messages = json!([{ "role": "user", "content": "hello" }, { "role": "assistant", "content": "Hello! I am" }]);
    let ask = with(with(question(""), "messages", messages), "continue_final_message", true.into());
    let open = server.post(CHAT, &ask).json();
    let both = server.post(CHAT, &with(ask.clone(), "add_generation_prompt", false.into())).json();
    assert_eq!(open["usage"]["prompt_tokens"], both["usage"]["prompt_tokens"]);
    let mut closed = ask.clone();
    closed["continue_final_message"] = false.into();
    let closed = server.post(CHAT, &closed).json();
    assert!(closed["usage"]["prompt_tokens"].as_u64() > open["usage"]["prompt_tokens"].as_u64());
    let wrong = server.post(CHAT, &with(ask, "add_generation_prompt", true.into()));
    assert_eq!(wrong.error().2, "add_generation_prompt");
    let wrong = server.post(CHAT, &with(question("Hi"), "continue_final_message", true.into()));
    assert_eq!(wrong.error().2, "continue_final_message");
    server.end();
}

#[test]
fn anthropic_clients_continue_and_send_texts_as_documents() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let user = json!([{ "role": "user", "content": "hello" }]);
    let ask = json!({ "model": "fake", "max_tokens": 20, "thread": { "type": "create" }, "messages": user });
    let refused = server.post(MESSAGES, &ask);
    assert_eq!(refused.status, 400);
    let details = &refused.json()["error"]["details"];
    assert_eq!(
        (&details["error_code"], &details["unsupported"]),
        (&json!("thread_unsupported_request"), &json!(["thread"]))
    );
    let tokens = |source: Value| {
        let content =
            json!([{ "type": "document", "source": source, "title": "cat.txt" }, { "type": "text", "text": "Who?" }]);
        let ask = json!({ "max_tokens": 20, "messages": [{ "role": "user", "content": content }] });
        let reply = server.post(MESSAGES, &ask);
        assert_eq!((reply.status, header(&reply, "x-sala-ignored")), (200, None), "{}", reply.body);
        reply.json()["usage"]["input_tokens"].as_u64().unwrap()
            + reply.json()["usage"]["cache_read_input_tokens"].as_u64().unwrap()
    };
    let text = json!({ "type": "text", "media_type": "text/plain", "data": "The cat is called Bob." });
    let parts = json!({ "type": "content", "content": [{ "type": "text", "text": "The cat is called Bob." }] });
    assert_eq!(tokens(text.clone()), tokens(parts));
    assert!(tokens(text) > tokens(json!({ "type": "text", "media_type": "text/plain", "data": "" })));
    let image = json!({ "type": "document", "source": { "type": "base64", "media_type": "image/png", "data": "" } });
    let refused =
        server.post(MESSAGES, &json!({ "max_tokens": 2, "messages": [{ "role": "user", "content": [image] }] }));
    assert!(
        refused.status == 400 && refused.body.contains("image/png: only text and PDF can be sent"),
        "{}",
        refused.body
    );
    server.end();
}

#[test]
fn the_model_is_described_for_every_client_and_has_other_names() {
    let dir = tempfile::tempdir().unwrap();
    let rules = ServeConfig { model_aliases: "gpt-4o-mini, claude-*".into(), ..ServeConfig::default() };
    let server = Running::start(dir.path(), Setup { rules, ..Setup::default() });
    let list = server.get("/v1/models").json();
    let model = &list["data"][0];
    assert_eq!(
        (&model["type"], &model["display_name"], &list["has_more"]),
        (&json!("model"), &json!("fake"), &json!(false))
    );
    assert!(model["created_at"].as_str().is_some_and(|at| at.ends_with('Z')), "{model}");
    assert_eq!(list["data"][1]["id"], "gpt-4o-mini");
    for name in ["gpt-4o-mini", "claude-haiku-4-5"] {
        assert_eq!(server.post(CHAT, &with(question("Hi"), "model", name.into())).json()["model"], name);
        assert_eq!(server.get(&format!("/v1/models/{name}")).json()["id"], name);
    }
    let other = server.post(CHAT, &with(question("Hi"), "model", "gpt-5".into()));
    assert_eq!(other.error(), (404, "model_not_found".into(), "model".into()));
    assert!(other.body.contains("serve.model_aliases"), "{}", other.body);
    // Each client reads errors in its own form, on paths that two APIs share.
    let head =
        "GET /v1/models/none HTTP/1.1\r\nhost: localhost\r\nanthropic-version: 2023-06-01\r\nconnection: close\r\n\r\n";
    let other = server.raw(head).json();
    assert_eq!((&other["type"], &other["error"]["type"]), (&json!("error"), &json!("not_found_error")));
    let info = server.get("/tokenizer_info").json();
    assert!(info["chat_template"].as_str().is_some_and(|t| t.contains("messages")), "{info}");
    assert!(info["eos_token"].is_string(), "{info}");
    server.end();
}

#[test]
fn pages_that_the_settings_name_may_use_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let rules = ServeConfig { allowed_origins: "http://localhost:3000".into(), ..ServeConfig::default() };
    let server = Running::start(dir.path(), Setup { rules, key: Some("0123456789abcdef"), ..Setup::default() });
    let body = question("Hi").to_string();
    let ask = |origin: &str| {
        let headers = format!("origin: {origin}\r\nauthorization: Bearer 0123456789abcdef\r\n");
        server.raw(&server.request(CHAT, &headers, &body))
    };
    let allowed = ask("http://localhost:3000");
    assert_eq!(allowed.status, 200, "{}", allowed.body);
    assert_eq!(header(&allowed, "access-control-allow-origin").as_deref(), Some("http://localhost:3000"));
    let other = ask("http://localhost:3001");
    assert_eq!((other.status, header(&other, "access-control-allow-origin")), (403, None));
    let preflight = server.raw(&format!(
        "OPTIONS {CHAT} HTTP/1.1\r\nhost: localhost\r\norigin: http://localhost:3000\r\naccess-control-request-method: \
         POST\r\naccess-control-request-headers: authorization, content-type\r\nconnection: close\r\n\r\n"
    ));
    assert_eq!(preflight.status, 204);
    assert_eq!(header(&preflight, "access-control-allow-headers").as_deref(), Some("authorization, content-type"));
    server.end();
}

#[test]
fn an_answer_has_the_times_that_llama_cpps_server_has() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let count = |timings: &Value, name: &str| timings[name].as_u64().unwrap_or_else(|| panic!("{name}: {timings}"));
    let whole = server.post(CHAT, &question("Hi")).json();
    let (timings, usage) = (&whole["timings"], &whole["usage"]);
    assert_eq!(timings["predicted_n"], usage["completion_tokens"]);
    let read = count(timings, "prompt_n") + count(timings, "cache_n");
    assert_eq!(read, count(usage, "prompt_tokens"));
    for time in ["prompt_ms", "predicted_ms"] {
        assert!(timings[time].as_f64().is_some_and(|ms| ms >= 0.0), "{timings}");
    }
    let ask = with(question("Hi"), "stream", true.into());
    let streamed = server.post(CHAT, &ask).events();
    assert_eq!(streamed.last().unwrap()["timings"]["predicted_n"], usage["completion_tokens"]);
    let raw = server.post("/v1/completions", &json!({ "prompt": "a", "max_tokens": 3 })).json();
    assert_eq!(raw["timings"]["predicted_n"], 3);
    server.end();
}
