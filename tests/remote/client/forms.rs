//! Answers in the forms of other servers: thoughts alone, bytes that are no text, events that are not separated.

use std::time::Duration;

use sala_chat::engine::protocol::Ended;
use serde_json::json;

use super::Client;
use super::chat_server::{ChatServer, Reply, STREAM, answer, delta, end, events};

const DONE: &[u8] = b"data: [DONE]\n\n";

fn streamed(pieces: &[&[u8]]) -> Reply {
    Reply::Pieces(vec![[STREAM.as_bytes(), &pieces.concat()].concat()], Duration::ZERO)
}

#[test]
fn a_thought_in_tags_is_no_answer() {
    let texts = ["<think>\nx\n</think>\n\n", "<think>\nI think so.", "I think so.\n</think>\n", "\n\n"];
    let replies = texts.map(|text| streamed(&[&events(&[delta("content", text), end("stop")]), DONE]));
    let whole = answer("<think>\nI think so.\n</think>\n\nYes.");
    let server = ChatServer::start(replies.into_iter().chain([whole]).collect());
    let mut client = Client::of(&server);
    for text in texts {
        let received = client.ask("q");
        assert_eq!(received.ended, None, "{text:?}");
        let line = received.failed.unwrap();
        assert!(line.contains("without a word. Ask again"), "{text:?}: {line}");
        assert_eq!(line.contains("after the thoughts"), !text.trim().is_empty(), "{text:?}: {line}");
    }
    let received = client.ask("q");
    assert_eq!((received.thinking.as_str(), received.text.as_str()), ("I think so.", "Yes."));
}

#[test]
fn bytes_that_are_not_utf8_are_replaced() {
    let event = |text: &[u8]| [b"data: {\"choices\":[{\"delta\":{\"content\":\"", text, b"\"}}]}\n\n"].concat();
    let stop = events(&[end("stop")]);
    let failed = b"data: {\"error\":{\"message\":\"no caf\xe9\"}}\n\n";
    let server =
        ChatServer::start(vec![streamed(&[&event(b"a \xc3"), &event(b" b \xff"), &stop, DONE]), streamed(&[failed])]);
    let mut client = Client::of(&server);
    let received = client.ask("q");
    assert_eq!((received.text.as_str(), received.ended), ("a \u{FFFD} b \u{FFFD}", Some(Ended::Stop)));
    let line = client.ask("q").failed.unwrap();
    assert!(line.contains("no caf\u{FFFD}."), "{line}");
}

#[test]
fn an_answer_ends_with_its_last_event() {
    let (yes, stop) = (events(&[delta("content", "Yes.")]), events(&[end("stop")]));
    let lines = [yes.as_slice(), &stop, DONE].concat();
    let single = String::from_utf8(lines).unwrap().replace("\n\n", "\n").into_bytes();
    let server = ChatServer::start(vec![streamed(&[&yes, &stop, DONE, &yes]), streamed(&[&single])]);
    let mut client = Client::of(&server);
    for _ in 0..2 {
        let received = client.ask("q");
        assert_eq!((received.text.as_str(), received.ended), ("Yes.", Some(Ended::Stop)), "{:?}", received.failed);
    }
}

#[test]
fn thoughts_are_found_where_servers_put_them() {
    let part = |field: &str, value: serde_json::Value| json!({"choices": [{"index": 0, "delta": {field: value}}]});
    let thinking = json!([{"type": "thinking", "thinking": [{"type": "text", "text": "I think."}]}]);
    let details = json!([{"type": "reasoning.text", "text": "I think."}]);
    let forms = [part("content", thinking), part("thinking", json!("I think.")), part("reasoning_details", details)];
    let replies = forms.map(|form| streamed(&[&events(&[form, delta("content", "Yes."), end("stop")]), DONE]));
    let server = ChatServer::start(replies.to_vec());
    let mut client = Client::of(&server);
    for _ in 0..replies.len() {
        let received = client.ask("q");
        assert_eq!((received.thinking.as_str(), received.text.as_str()), ("I think.", "Yes."));
    }
}
