//! Bodies and events of the chat protocol.

use super::*;
use crate::text::{ChatMessage, ChatRole};

fn conversation(think: ThinkMode, open: bool) -> Conversation {
    let messages = vec![ChatMessage::new(ChatRole::System, "s"), ChatMessage::new(ChatRole::User, "q")];
    Conversation { messages, think, open, in_thought: false }
}

const DRAW: Draw = Draw {
    sampling: Sampling {
        temperature: 0.7,
        top_k: 0,
        top_p: 0.95,
        min_p: 0.0,
        repeat_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        seed: 7,
    },
    max_tokens: Some(99),
};

#[test]
fn a_plain_request_holds_what_every_server_knows_and_no_more() {
    let sent = body("m", &conversation(ThinkMode::Auto, false), DRAW, &BTreeSet::new());
    let messages = json!([{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]);
    let wanted = json!({"model": "m", "messages": messages, "stream": true, "stream_options": {"include_usage": true},
        "max_tokens": 99, "temperature": 0.7, "top_p": 0.95, "seed": 7});
    assert_eq!(sent, wanted);
}

#[test]
fn what_is_set_is_sent_and_what_was_refused_is_not() {
    let mut draw = DRAW;
    (draw.sampling.top_k, draw.sampling.min_p, draw.sampling.repeat_penalty) = (40, 0.05, 1.1);
    let sent = body("m", &conversation(ThinkMode::Off, true), draw, &BTreeSet::new());
    assert_eq!((&sent["top_k"], &sent["min_p"], &sent["repetition_penalty"]), (&json!(40), &json!(0.05), &json!(1.1)));
    assert_eq!(sent["chat_template_kwargs"], json!({"enable_thinking": false}));
    assert_eq!(sent["continue_final_message"], json!(true));
    let left_out = BTreeSet::from(["top_k", "max_tokens"].map(str::to_owned));
    let sent = body("m", &conversation(ThinkMode::On, false), draw, &left_out);
    assert!(sent.get("top_k").is_none() && sent.get("max_tokens").is_none());
    assert_eq!(sent["max_completion_tokens"], json!(99));
}

#[test]
fn a_refusal_names_whole_fields_that_were_sent() {
    let sent = json!({"max_tokens": 1, "top_p": 1, "seed": 1});
    let fields = |message| refused(&sent, message);
    assert_eq!(fields("Unsupported parameter: 'max_tokens'"), Refused::Fields(vec!["max_tokens"]));
    assert_eq!(fields("body.top_p, seed: extra fields not permitted"), Refused::Fields(vec!["top_p", "seed"]));
    assert_eq!(fields("max_tokens_total is 5, seeds, top_k"), Refused::All);
    // A refusal of the value, not of the field.
    let sent = json!({"max_tokens": 8192, "seed": 7});
    let too_large =
        "'max_tokens' or 'max_completion_tokens' is too large: 8192. The maximum context length is 32768 tokens";
    assert_eq!(refused(&sent, too_large), Refused::Length(8192));
    let unknown = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens'; 81920 is not it";
    assert_eq!(refused(&sent, unknown), Refused::Fields(vec!["max_tokens"]));
    let going_on = json!({"seed": 1, "continue_final_message": true});
    assert_eq!(refused(&going_on, "Unexpected keys: {'seed', 'continue_final_message'}"), Refused::GoingOn);
}

#[test]
fn events_of_several_servers_are_understood() {
    let chunk = |data: &str| match event(data) {
        Event::Chunk(c) => c,
        other => panic!("{data}: {other:?}"),
    };
    let text = chunk(
        r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":"a"},"finish_reason":null}],"usage":null}"#,
    );
    assert_eq!((text.text.as_str(), text.finished), ("a", None));
    let both = chunk(r#"{"choices":[{"delta":{"reasoning_content":"r","reasoning":"r","content":null}}]}"#);
    assert_eq!((both.thinking.as_str(), both.text.as_str()), ("r", ""));
    let other = chunk(r#"{"choices":[{"delta":{"reasoning":"o"}},{"index":1,"delta":{"content":"not asked for"}}]}"#);
    assert_eq!((other.thinking.as_str(), other.text.as_str()), ("o", ""));
    assert_eq!(chunk(r#"{"choices":[{"delta":{},"finish_reason":"length"}]}"#).finished, Some(Finished::Length));
    assert_eq!(chunk(r#"{"choices":[{"delta":{},"finish_reason":"eos"}]}"#).finished, Some(Finished::Stop));
    let whole =
        chunk(r#"{"object":"chat.completion","choices":[{"message":{"content":"all"},"finish_reason":"stop"}]}"#);
    assert_eq!((whole.text.as_str(), whole.finished), ("all", Some(Finished::Stop)));
    let usage = chunk(
        r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":20},
        "completion_tokens_details":{"reasoning_tokens":2}}}"#,
    );
    let wanted = Usage { prompt_tokens: 9, cached_tokens: 9, completion_tokens: 3, thought_tokens: 2 };
    assert_eq!(usage.usage, Some(wanted));
    for (one, other) in [("reasoning", "reasoning_content"), ("reasoning_content", "reasoning")] {
        for empty in ["\"\"", "null", "[]"] {
            let data = format!(r#"{{"choices":[{{"delta":{{"{one}":"I think.","{other}":{empty}}}}}]}}"#);
            assert_eq!(chunk(&data).thinking, "I think.", "{data}");
        }
    }
    let call =
        chunk(r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"find","arguments":""}}]}}]}"#);
    assert_eq!((call.tools, call.in_call), (vec!["find".to_owned()], true));
    assert!(chunk(r#"{"choices":[{"delta":{"function_call":{"arguments":"{"}}}]}"#).in_call);
    for error in [
        r#"{"choices":[{"error":{"message":"no"}}]}"#,
        r#"{"choices":[{"finish_reason":"error"}],"error":"no"}"#,
        r#"{"object":"error","message":"no","code":500}"#,
    ] {
        assert_eq!(event(error), Event::Failed("no".into()));
    }
    assert_eq!(event(" [DONE] "), Event::Done);
    assert_eq!(event(r#"{"error":{"message":"out of memory","code":500}}"#), Event::Failed("out of memory".into()));
    // Other forms, and odd values.
    let parts = r#"{"choices":[{"index":null,"delta":{"content":[{"type":"text","text":"a"},"b",{"type":"image"}]}}]}"#;
    assert_eq!(chunk(parts).text, "ab");
    for thoughts in [
        r#""content":[{"type":"thinking","thinking":[{"type":"text","text":"I "},{"type":"text","text":"think."}]}]"#,
        r#""content":[{"type":"thinking","thinking":"I think."},{"type":"text","text":""}]"#,
        r#""thinking":"I think.","content":"""#,
        r#""reasoning_details":[{"type":"reasoning.text","text":"I think."},{"type":"reasoning.encrypted","data":"x"}]"#,
        r#""reasoning":"I think.","reasoning_details":[{"type":"reasoning.summary","summary":"I think."}]"#,
    ] {
        let both = chunk(&format!(r#"{{"choices":[{{"delta":{{{thoughts}}}}}]}}"#));
        assert_eq!((both.thinking.as_str(), both.text.as_str()), ("I think.", ""), "{thoughts}");
    }
    let odd = |usage: &str| chunk(&format!(r#"{{"choices":[],"usage":{usage}}}"#)).usage;
    let wanted = Usage { prompt_tokens: 3, completion_tokens: 4, ..Usage::default() };
    assert_eq!(odd(r#"{"prompt_tokens":3.0,"completion_tokens":"4","prompt_tokens_details":null}"#), Some(wanted));
    let wanted = Usage { completion_tokens: 4, ..Usage::default() };
    assert_eq!(odd(r#"{"prompt_tokens":-1,"completion_tokens":4,"completion_tokens_details":[]}"#), Some(wanted));
    assert_eq!(odd(r#"{"prompt_tokens":-1}"#), None);
    for alive in ["[]", "7", "null", "{}", r#"{"type":"ping"}"#, r#"{"object":"chat.completion.keepalive"}"#] {
        assert_eq!(event(alive), Event::Other(String::new()), "{alive}");
    }
    // A failure, or the state of a queue: what follows shows which.
    for other in [r#"{"status":"queued","message":"busy"}"#, "busy", r#"{"detail":"busy"}"#] {
        assert_eq!(event(other), Event::Other("busy".into()));
    }
    for strange in ["", "{", r#"{"choices":7}"#, r#"{"choices":[{"delta":{"content":{"a":1}}}]}"#] {
        assert_eq!(event(strange), Event::Strange, "{strange}");
    }
}

#[test]
fn a_list_with_an_error_fails_the_answer() {
    let list = |entry: &str| event(&format!("[{entry}]"));
    assert_eq!(list(r#"{"error":{"code":429,"message":"out of quota"}}"#), Event::Failed("out of quota".into()));
    assert_eq!([list("{}"), list("1")], [Event::Other(String::new()), Event::Other(String::new())]);
}

#[test]
fn the_servers_words_are_found_where_servers_put_them() {
    let words = |v: Value| words_of(&v);
    assert_eq!(words(json!({"error": {"message": "no", "type": "x"}})).unwrap(), "no");
    assert_eq!(words(json!({"object": "error", "message": "too long"})).unwrap(), "too long");
    assert_eq!(words(json!({"detail": [{"loc": ["body", "seed"], "msg": "extra"}]})).unwrap(), "seed: extra");
    assert_eq!(words(json!({"error": "plain"})).unwrap(), "plain");
    assert_eq!(words(json!({"errors": [{"message": "a"}, {"message": "b"}]})).unwrap(), "a; b");
    assert_eq!(words(json!({"title": "Unauthorized", "detail": "no token"})).unwrap(), "no token");
    assert_eq!(words(json!({"code": 7})), None);
    // A code that says more than the words.
    let coded = |code: &str| words(json!({"error": {"message": "too many", "type": "invalid", "code": code}})).unwrap();
    assert_eq!(coded("context_length_exceeded"), "too many (context_length_exceeded)");
    assert_eq!(coded("invalid_value"), "too many");
}

#[test]
fn a_prompt_that_is_too_long_is_known_by_the_words_for_it() {
    for message in [
        "the request exceeds the available context size. try increasing the context size or enable context shift",
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
        "context_length_exceeded",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "The prompt (9000 tokens) does not fit into the context window of 8192 tokens",
        "Trying to keep the first 5000 tokens when context overflows.",
        "Input validation error: `inputs` must have less than 4095 `input` tokens. Given: 5000",
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
        "exceed_context_size_error",
        "model_max_prompt_tokens_exceeded",
        "tokens_limit_reached",
        "litellm.ContextWindowExceededError",
    ] {
        assert!(is_too_long(message), "{message}");
    }
    for message in [
        "failed to decode the batch",
        "max_tokens must be at least 1",
        "no such context",
        "temperature must be less than 2",
        "rate_limit_exceeded",
        "invalid_request_error",
        "string_too_long",
    ] {
        assert!(!is_too_long(message), "{message}");
    }
}

#[test]
fn models_and_their_contexts_are_read_off_the_list() {
    let list = json!({"data": [{"id": "a", "max_model_len": 5}, {"id": "b", "meta": {"n_ctx": 6, "n_ctx_train": 7}},
        {"id": "c", "context_length": 8}, {"id": "d"}, {"name": "no id"}]});
    let all = models(&list).unwrap();
    let seen: Vec<(&str, Option<u64>)> = all.iter().map(|m| (m.name.as_str(), m.context)).collect();
    assert_eq!(seen, [("a", Some(5)), ("b", Some(6)), ("c", Some(8)), ("d", None)]);
    assert_eq!(models(&json!({"models": []})), None);
}
