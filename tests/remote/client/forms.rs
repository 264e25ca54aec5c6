//! Answers and failures in the forms of other servers: thoughts alone, bytes that are no text, events that are not
//! separated, errors in fields of their own.

use std::time::Duration;

use sala_chat::engine::protocol::Ended;
use serde_json::json;

use super::Client;
use super::chat_server::{ChatServer, Reply, STREAM, answer, delta, end, events, reply};

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

#[test]
fn a_failure_in_a_form_of_its_own_fails_in_the_servers_words() {
    let half = events(&[delta("content", "Half")]);
    let forms = [
        (r#"{"errors":[{"message":"out of luck"}],"success":false}"#, "data: "),
        (r#"{"error_code":336002,"error_msg":"out of luck"}"#, "data: "),
        (r#"{"base_resp":{"status_code":1004,"status_msg":"out of luck"}}"#, "data: "),
        (r#"{"title":"out of luck","status":500}"#, "data: "),
        (r#"{"detail":"out of luck"}"#, "data: "),
        ("[ERROR] out of luck", "data: "),
        ("error: out of luck", "data: "),
        ("Error: out of luck", ""),
        ("out of luck", ""),
        ("<html>\r\n<head><title>out of luck</title></head>\r\n</html>", ""),
    ];
    let mut client = None;
    for (form, field) in forms {
        let failure = format!("{field}{form}\n\n");
        let object = |status| reply(status, "content-type: application/json\r\n", form);
        let mut replies = vec![streamed(&[&half, failure.as_bytes(), DONE]), streamed(&[&half, failure.as_bytes()])];
        if form.starts_with('{') {
            replies.extend([object("200 OK"), object("400 Bad Request")]);
        }
        let whole = replies.len() > 2;
        let server = ChatServer::start(replies);
        let client = client.insert(Client::of(&server));
        for _ in 0..2 {
            let received = client.ask("q");
            let line = received.failed.unwrap_or_else(|| panic!("{failure}"));
            assert!(line.contains("failed while it answered: ") && line.contains("out of luck. The part"), "{line}");
            assert_eq!(received.text, "Half");
        }
        for words in ["failed while it answered: out of luck.", "refuses the request (400). It says: out of luck"] {
            assert!(!whole || client.ask("q").failed.unwrap().contains(words), "{form}");
        }
    }
}

#[test]
fn lines_and_events_that_mean_nothing_are_passed_over() {
    let (one, two, stop) =
        (events(&[delta("content", "one ")]), events(&[delta("content", "two")]), events(&[end("stop")]));
    let odd: [&[u8]; 7] = [
        b"{\"progress\": 50%}\n\n",
        b"{loading}\n",
        b"{\"type\":\"ping\"} // still here\n\n",
        b"data: ping\n\n",
        b"data: {\"status\":\"queued\",\"message\":\"waiting in a queue\"}\n\n",
        b"data: {\"error\":\"\",\"errors\":[],\"error_code\":0}\n\n",
        b"loading\n",
    ];
    let replies =
        odd.iter().flat_map(|odd| [streamed(&[odd, &one, odd, &two, &stop, DONE]), streamed(&[&one, odd, &two, DONE])]);
    let server = ChatServer::start(replies.collect());
    let mut client = Client::of(&server);
    for odd in odd.iter().flat_map(|odd| [odd, odd]) {
        let received = client.ask("q");
        let odd = String::from_utf8_lossy(odd);
        assert_eq!((received.text.as_str(), received.ended), ("one two", Some(Ended::Stop)), "{odd} {received:?}");
    }
}

#[test]
fn the_reason_for_an_end_is_read_in_the_words_of_many_servers() {
    let stop = [json!("STOP"), json!("eos_token")];
    let length = [json!("model_length"), json!("MAX_TOKENS"), json!({"type": "length"})];
    let broken = [json!("abort"), json!("cancelled"), json!("SAFETY"), json!("time_limit")];
    let of = |reason: &serde_json::Value| {
        let event = json!({"choices": [{"delta": {"content": "x"}, "finish_reason": reason}]});
        streamed(&[&events(&[event]), DONE])
    };
    let server = ChatServer::start(stop.iter().chain(&length).chain(&broken).map(of).collect());
    let mut client = Client::of(&server);
    for (reasons, ended) in [(&stop[..], Ended::Stop), (&length, Ended::Length)] {
        for reason in reasons {
            let received = client.ask("q");
            assert_eq!((received.text.as_str(), received.ended), ("x", Some(ended)), "{reason}");
        }
    }
    for reason in broken {
        let received = client.ask("q");
        let word = reason.as_str().unwrap().replace('_', " ");
        let line = format!("stopped the answer ({word}). The part that arrived (about 1 token) is kept");
        assert!(received.failed.unwrap().contains(&line), "{line}");
    }
}

#[test]
fn a_whole_message_after_its_pieces_is_not_repeated() {
    let whole =
        |text: &str| json!({"choices": [{"message": {"reasoning": "Hm.", "content": text}, "finish_reason": "stop"}]});
    let pieces = [delta("reasoning", "Hm."), delta("content", "Yes, "), delta("content", "two.")];
    let begun = events(&pieces);
    let server = ChatServer::start(vec![
        streamed(&[&begun, &events(&[whole("Yes, two.")]), DONE]),
        streamed(&[&begun, &events(&[whole("Yes, two. And more.")]), DONE]),
        streamed(&[&events(&[whole("Yes, two.")]), DONE]),
    ]);
    let mut client = Client::of(&server);
    for text in ["Yes, two.", "Yes, two. And more.", "Yes, two."] {
        let received = client.ask("q");
        assert_eq!((received.thinking.as_str(), received.text.as_str()), ("Hm.", text));
    }
}

#[test]
fn bytes_of_a_character_are_joined_over_events() {
    let event = |text: &[u8]| [b"data: {\"choices\":[{\"delta\":{\"content\":\"", text, b"\"}}]}\n\n"].concat();
    let text = "é😀漢".as_bytes();
    let pieces: Vec<u8> = text.chunks(1).flat_map(event).collect();
    let server = ChatServer::start(vec![streamed(&[&pieces, &events(&[end("stop")]), DONE])]);
    assert_eq!(Client::of(&server).ask("q").text, "é😀漢");
}

#[test]
fn an_empty_error_with_an_answer_is_none() {
    let of = |error| json!({"error": error, "choices": [{"error": error, "delta": {"content": "Yes."}, "finish_reason": "stop"}]});
    let answers = [json!(false), json!(""), json!({}), json!(null)].map(of);
    let server = ChatServer::start(
        answers.iter().map(|answer| streamed(&[&events(std::slice::from_ref(answer)), DONE])).collect(),
    );
    let mut client = Client::of(&server);
    for answer in answers {
        assert_eq!(client.ask("q").text, "Yes.", "{answer}");
    }
}

#[test]
fn a_stream_under_the_name_of_plain_text_is_an_answer() {
    let body = events(&[delta("content", "Yes."), end("stop")]);
    let body = String::from_utf8(body).unwrap();
    let server = ChatServer::start(vec![reply("200 OK", "content-type: text/plain\r\n", &body)]);
    assert_eq!(Client::of(&server).ask("q").text, "Yes.");
}
