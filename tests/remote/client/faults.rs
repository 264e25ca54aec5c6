//! Servers that refuse, fail, stall, hang up or send no chat: what is retried, kept and reported.

use std::time::{Duration, Instant};

use sala_chat::client::remote::{Patience, RemoteOptions};
use sala_chat::engine::protocol::{Cancel, Ended};
use sala_chat::text::{ChatMessage, ChatRole};
use serde_json::json;

use super::chat_server::{ChatServer, Reply, STREAM, answer, delta, end, events, refusal, reply, stream};
use super::{Client, QUICK, options};

#[test]
fn a_stream_cut_at_any_byte_keeps_the_text_so_far() {
    let text = "Eins 🙂 zwei.";
    let whole = stream(text);
    let complete = whole.windows(9).position(|w| w == b"\"stop\"}]}").unwrap() + 9;
    let replies: Vec<Reply> =
        (STREAM.len()..whole.len()).map(|n| Reply::Pieces(vec![whole[..n].to_vec()], Duration::ZERO)).collect();
    let server = ChatServer::start(replies);
    let mut client = Client::of(&server);
    let mut longest = 0;
    for cut in STREAM.len()..whole.len() {
        let received = client.ask("q");
        assert!(text.starts_with(&received.text), "cut at {cut}: {}", received.text);
        assert!(received.text.len() >= longest, "cut at {cut}: less than with a byte less");
        longest = received.text.len();
        // The end of the event that says so is what makes it the end.
        match &received.failed {
            Some(line) => {
                assert!(cut < complete && line.contains("in the middle of the answer"), "cut at {cut}: {line}")
            }
            None => {
                assert_eq!(
                    (cut >= complete, received.ended, &*received.text),
                    (true, Some(Ended::Stop), text),
                    "cut at {cut}"
                )
            }
        }
    }
    assert_eq!(longest, text.len());
    assert_eq!(server.requests().len(), whole.len() - STREAM.len(), "nothing is asked again once an answer began");
}

#[test]
fn every_status_has_a_message_and_only_some_are_retried() {
    let says = "say \u{1b}[31mno\u{1b}[0m\nand\u{202e} more";
    for (status, count, words) in [
        ("301 Moved", 1, "redirects to http://elsewhere/v1"),
        ("400 Bad Request", 1, "refuses the request (400)"),
        ("401 Unauthorized", 1, "requires a key (401)"),
        ("403 Forbidden", 1, "does not allow it (403)"),
        ("404 Not Found", 1, "has no chat/completions, or not this model (404)"),
        ("413 Payload Too Large", 1, "a conversation of this length (413)"),
        ("418 Teapot", 1, "status 418"),
        ("422 Unprocessable", 1, "refuses the request (422)"),
        ("429 Too Many Requests", 3, "is busy (429), asked 3 times"),
        ("500 Internal", 3, "failed (500), asked 3 times"),
        ("503 Unavailable", 3, "failed (503), asked 3 times"),
    ] {
        let body = json!({"error": {"message": says}}).to_string();
        let headers = "content-type: application/json\r\nlocation: http://elsewhere/v1\r\n";
        let server = ChatServer::start(vec![reply(status, headers, &body); 5]);
        let received = Client::of(&server).ask("q");
        let line = received.failed.unwrap();
        assert!(line.contains(words) && line.contains(&server.url), "{line}");
        assert!(line.contains("It says: say \\x1b[31mno\\x1b[0m andU+202E more"), "{line}");
        assert!(!line.contains(|c: char| c.is_control()), "{line:?}");
        assert_eq!(server.requests().len(), count, "{status}");
    }
}

#[test]
fn a_recovering_server_is_retried_until_it_answers() {
    let busy = reply("429 Too Many Requests", "retry-after: 0.2\r\n", "{}");
    let server = ChatServer::start(vec![busy, Reply::HangUp, answer("Yes.")]);
    let mut client = Client::of(&server);
    let received = client.ask("q");
    assert_eq!(received.text, "Yes.");
    let seen = server.seen.lock().unwrap();
    let times: Vec<Instant> = seen.iter().filter(|s| s.line.starts_with("POST")).map(|s| s.at).collect();
    assert_eq!(times.len(), 3);
    assert!(times[1] - times[0] >= Duration::from_millis(200), "the server's own wait is kept");
    assert!(received.waits.iter().any(|w| w.contains("(429)") && w.contains("Trying again")), "{:?}", received.waits);
}

#[test]
fn a_wait_of_hours_is_not_waited_for() {
    let server = ChatServer::start(vec![reply("429 Too Many Requests", "retry-after: 86400\r\n", "{}"), answer("no")]);
    let began = Instant::now();
    let received = Client::of(&server).ask("q");
    assert!(received.failed.unwrap().contains("(429), asked once"));
    assert!(began.elapsed() < Duration::from_secs(5));
}

/// Stops a question a moment after it was sent: the time until the end is reported, and until the connection closes.
fn stopped(reply: Reply, expected: &str, leaves: bool) -> (Duration, Duration) {
    let server = ChatServer::start(vec![reply]);
    let patience = Patience { stall: Duration::from_secs(30), first: Duration::from_secs(30), ..QUICK };
    let mut client = Client::new(RemoteOptions { patience, ..options(&server.url) });
    let cancel = Cancel::default();
    let prompt = client.prompt(&[ChatMessage::new(ChatRole::User, "q")]);
    let id = client.send(prompt, 64, &cancel);
    let flag = cancel.clone();
    let stopper = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        flag.cancel();
        Instant::now()
    });
    let received = client.receive(id);
    let ended = Instant::now();
    let stopped = stopper.join().unwrap();
    assert_eq!((received.ended, received.text.as_str()), (Some(Ended::Cancelled), expected));
    assert_eq!(received.generated_in_state, received.tokens);
    let deadline = Instant::now() + Duration::from_secs(10);
    while leaves && server.left.lock().unwrap().is_empty() {
        assert!(Instant::now() < deadline, "the connection is not closed");
        std::thread::yield_now();
    }
    let left =
        server.left.lock().unwrap().first().map_or(Duration::ZERO, |left| left.saturating_duration_since(stopped));
    (ended.saturating_duration_since(stopped), left)
}

#[test]
fn a_stop_leaves_the_server_at_once() {
    let begun = [STREAM.as_bytes(), &events(&[delta("content", "Eins ")])].concat();
    // While it waits for an answer, during one, and while it waits for a retry.
    let busy = reply("503 Unavailable", "retry-after: 30\r\n", "{}");
    for (reply, expected, leaves) in
        [(Reply::Stall(Vec::new()), "", true), (Reply::Stall(begun), "Eins ", true), (busy, "", false)]
    {
        // The best of some: a machine that builds something else meanwhile is slow.
        let took: Vec<_> = (0..5).map(|_| stopped(reply.clone(), expected, leaves)).collect();
        let quick = |t: &(Duration, Duration)| t.0.max(t.1) < Duration::from_millis(100);
        assert!(took.iter().any(quick), "{took:?}");
    }
}

#[test]
fn a_stream_that_stalls_is_given_up_and_kept() {
    let begun = [STREAM.as_bytes(), &events(&[delta("content", "Eins")])].concat();
    let server = ChatServer::start(vec![Reply::Stall(begun), answer("Zwei.")]);
    let mut client = Client::of(&server);
    let received = client.ask("q");
    let line = received.failed.unwrap();
    assert!(line.contains("sent nothing for 0.3 s (engine.stall_s)") && line.contains("is kept"), "{line}");
    assert_eq!(received.text, "Eins");
    assert_eq!(client.ask("q").text, "Zwei.", "the engine goes on");
}

#[test]
fn bytes_after_a_complete_answer_are_ignored() {
    let text = [STREAM.as_bytes(), b"data:\n\n", &events(&[delta("content", "Eins."), end("stop")])].concat();
    let odd: [&[u8]; 4] =
        [b"data: {\"usage\":{\"prompt_tokens\":-1}}\n\n", b"data:\n\n", b"data: {\"x\n\n", b"data: {\"hello\":1}\n\n"];
    let comments = std::iter::repeat_n(b": keep alive\n\n".to_vec(), 100);
    let pieces = [text.clone(), odd.concat()].into_iter().chain(comments).collect();
    let server = ChatServer::start(vec![Reply::Pieces(pieces, Duration::from_millis(50))]);
    let begun = Instant::now();
    let received = Client::of(&server).ask("q");
    assert_eq!((received.text.as_str(), received.ended), ("Eins.", Some(Ended::Stop)), "{:?}", received.failed);
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}

#[test]
fn an_answer_without_end_is_left_and_kept() {
    // White space before a thought is no part of it, so that nothing of all this is made tokens.
    let blank = events(&[delta("reasoning_content", &" ".repeat(1 << 20))]);
    let begun = [STREAM.as_bytes(), &events(&[delta("content", "Eins.")]), &blank.repeat(17)].concat();
    let server = ChatServer::start(vec![Reply::Stall(begun), answer("Zwei.")]);
    let patience = Patience { stall: Duration::from_secs(30), first: Duration::from_secs(30), ..QUICK };
    let mut client = Client::new(RemoteOptions { patience, ..options(&server.url) });
    let received = client.ask("q");
    assert_eq!((received.text.as_str(), received.ended), ("Eins.", Some(Ended::Length)), "{:?}", received.failed);
    assert_eq!(received.generated_in_state, received.tokens);
    let deadline = Instant::now() + Duration::from_secs(20);
    while server.left.lock().unwrap().is_empty() {
        assert!(Instant::now() < deadline, "the connection is not closed");
        std::thread::yield_now();
    }
    assert_eq!(client.ask("q").text, "Zwei.", "the engine goes on");
}

#[test]
fn a_reply_that_is_no_chat_is_named() {
    let html = reply("200 OK", "content-type: text/html\r\n", "<html><script>");
    let strange = Reply::Pieces(vec![[STREAM.as_bytes(), b"data: {\"hello\":1}\n\n"].concat()], Duration::ZERO);
    let broken = Reply::Pieces(vec![[STREAM.as_bytes(), b"data: {\"choices\n\n"].concat()], Duration::ZERO);
    let failed = [events(&[delta("content", "Eins ")]), events(&[json!({"error": {"message": "out of \u{7}memory"}})])];
    let failed = Reply::Pieces(vec![[STREAM.as_bytes(), &failed.concat()].concat()], Duration::ZERO);
    let mut long = [STREAM.as_bytes(), b"data: "].concat();
    long.resize(9 << 20, b'x');
    let long = Reply::Pieces(vec![long], Duration::ZERO);
    let filter = [STREAM.as_bytes(), &events(&[delta("content", "E"), end("content_filter")])].concat();
    let filter = Reply::Pieces(vec![filter], Duration::ZERO);
    let server = ChatServer::start(vec![html, strange, broken, failed, long, filter]);
    let mut client = Client::of(&server);
    for words in [
        "answers with a page, not with a chat",
        "sends something that is not part of a chat",
        "sends something that is not part of a chat",
        "failed while it answered: out of \\x07memory. The part that arrived (about",
        "sends a line without end",
        "stopped the answer (content filter)",
    ] {
        let line = client.ask("q").failed.unwrap();
        assert!(line.contains(words), "{line}");
    }
}

#[test]
fn bytes_that_are_no_text_are_marked() {
    let event = br#"data: {"choices":[{"delta":{"content":"a"#;
    let bytes = [STREAM.as_bytes(), event, b"\xff\xf0\x9f", b"b\"},\"finish_reason\":\"stop\"}]}\n\n"].concat();
    let server = ChatServer::start(vec![Reply::Pieces(vec![bytes], Duration::ZERO)]);
    assert_eq!(Client::of(&server).ask("q").text, "a\u{FFFD}\u{FFFD}b");
}

#[test]
fn a_field_a_server_rejects_is_reported_once_and_dropped() {
    let odd = refusal("422 Unprocessable", "Unsupported fields in the request: {'stream_options', 'seed'}");
    let server = ChatServer::start(vec![odd, answer("Yes."), answer("Again.")]);
    let mut client = Client::of(&server);
    let received = client.ask("q");
    assert_eq!(received.text, "Yes.");
    assert_eq!(received.notes, [format!("{} does not accept stream_options, seed: left out from now on.", server.url)]);
    assert!(client.ask("q").notes.is_empty());
    let requests = server.requests();
    assert_eq!(requests.len(), 3);
    assert!(requests[0].get("seed").is_some());
    assert!(requests[1..].iter().all(|b| b.get("seed").is_none() && b.get("stream_options").is_none()));
}

#[test]
fn each_question_retries_an_unreachable_server() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut client = Client::new(options(&format!("http://127.0.0.1:{port}/v1")));
    assert!(client.notes[0].starts_with("Nothing answers at http://127.0.0.1"), "{:?}", client.notes);
    assert_eq!(client.info.name, "unknown");
    assert!(client.ask("q").failed.unwrap().contains("Is the server running?"));
}

/// One reply that streams these bytes.
fn streamed(pieces: &[&[u8]]) -> Reply {
    Reply::Pieces(vec![[&[STREAM.as_bytes()], pieces].concat().concat()], Duration::ZERO)
}

#[test]
fn an_answer_without_text_fails_and_names_the_tool() {
    let call =
        json!({"choices": [{"delta": {"tool_calls": [{"function": {"name": "find\u{7}", "arguments": "{}"}}]}}]});
    let server = ChatServer::start(vec![
        streamed(&[&events(&[end("tool_calls")])]),
        streamed(&[&events(&[call.clone(), end("tool_calls")])]),
        streamed(&[&events(&[delta("reasoning", "Hm."), end("stop")])]),
        streamed(&[b"data: [DONE]\n\n"]),
        streamed(&[&events(&[delta("content", "Yes."), call, end("tool_calls")])]),
        answer("A."),
    ]);
    let mut client = Client::of(&server);
    for words in ["ended its answer without a word", "calls a tool (find\\x07)", "after the thoughts", "without a word"]
    {
        let silent = client.ask("q");
        assert_eq!(silent.ended, None);
        let line = silent.failed.unwrap();
        assert!(line.contains(words), "{line}");
    }
    let both = client.ask("q");
    assert_eq!((both.text.as_str(), both.ended), ("Yes.", Some(Ended::Stop)));
    assert!(both.notes.iter().any(|note| note.contains("calls a tool")), "{:?}", both.notes);
    assert!(client.ask("q").notes.is_empty());
}

#[test]
fn an_error_outside_of_data_fails_with_the_servers_message() {
    let half = events(&[delta("content", "The first half of ")]);
    let bare = r#"{"error":{"code":500,"message":"failed to decode"}}"#;
    let plain = |kind: &str| reply("200 OK", &format!("content-type: {kind}\r\n"), bare);
    let server = ChatServer::start(vec![
        streamed(&[&half, b"error: {\"code\":500,\"message\":\"failed to decode\"}\n\ndata: [DONE]\n\n"]),
        streamed(&[&half, b"event: error\ndata: failed to decode\n\ndata: [DONE]\n\n"]),
        streamed(&[&half, bare.as_bytes()]),
        streamed(&[bare.as_bytes()]),
        plain("application/json"),
        plain("text/plain"),
    ]);
    let mut client = Client::of(&server);
    for text in ["The first half of ", "The first half of ", "The first half of ", "", "", ""] {
        let failed = client.ask("q");
        let line = failed.failed.unwrap();
        assert!(line.contains("failed while it answered: failed to decode."), "{line}");
        assert_eq!((failed.text.as_str(), line.contains("is kept")), (text, !text.is_empty()));
    }
}

#[test]
fn signs_of_life_neither_fail_an_answer_nor_hold_it() {
    let alive = b": still here\n\ndata: {}\n\ndata: {\"type\":\"ping\"}\n\nevent: ping\ndata: now\n\n".to_vec();
    let begun = [STREAM.as_bytes(), &alive, &events(&[delta("content", "Eins")])].concat();
    let empty = events(&[delta("content", "")]);
    let drip: Vec<Vec<u8>> = events(&[delta("content", "never whole")]).chunks(1).map(<[u8]>::to_vec).collect();
    for more in [vec![alive.clone(); 60], vec![empty; 60], drip] {
        let pieces = [vec![begun.clone()], more].concat();
        let server = ChatServer::start(vec![Reply::Pieces(pieces, Duration::from_millis(50))]);
        let begun = Instant::now();
        let received = Client::of(&server).ask("q");
        assert_eq!(received.text, "Eins");
        assert!(received.failed.unwrap().contains("sent nothing for 0.3 s (engine.stall_s)"));
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    }
    let before = [vec![STREAM.as_bytes().to_vec()], vec![alive; 60]].concat();
    let server = ChatServer::start(vec![Reply::Pieces(before, Duration::from_millis(50))]);
    let patience = Patience { first: Duration::from_millis(300), ..QUICK };
    let received = Client::new(RemoteOptions { patience, ..options(&server.url) }).ask("q");
    assert!(received.failed.unwrap().contains("not begun to answer within 0.3 s (engine.wait_s)"));
}

#[test]
fn an_answer_has_an_end() {
    let words = std::iter::repeat_n(events(&[delta("content", "word ")]), 100);
    let pieces = std::iter::once(STREAM.as_bytes().to_vec()).chain(words).collect();
    let server = ChatServer::start(vec![Reply::Pieces(pieces, Duration::from_millis(50))]);
    let patience = Patience { answer: Duration::from_millis(500), ..QUICK };
    let received = Client::new(RemoteOptions { patience, ..options(&server.url) }).ask("q");
    let line = received.failed.unwrap();
    assert!(line.contains("not ended its answer after 0.5 s (engine.answer_s)") && line.contains("is kept"), "{line}");
    assert!(received.text.starts_with("word word "), "{}", received.text);
}

#[test]
fn halves_of_characters_are_joined_over_events() {
    let events = |pieces: &[&str]| -> Vec<u8> {
        let event = |piece: &&str| format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{piece}\"}}}}]}}\n\n");
        pieces.iter().map(event).collect::<String>().into_bytes()
    };
    let stop = super::events(&[end("stop")]);
    let server = ChatServer::start(vec![
        streamed(&[&events(&["smile \\ud83d", "\\ude00 end"]), &stop]),
        streamed(&[&events(&["two \\ud83d", " three"]), &stop]),
        streamed(&[&events(&["last \\ud83d"]), &stop]),
    ]);
    let mut client = Client::of(&server);
    for text in ["smile 😀 end", "two \u{FFFD} three", "last \u{FFFD}"] {
        let received = client.ask("q");
        assert_eq!((received.text.as_str(), received.ended), (text, Some(Ended::Stop)));
    }
}
