//! The program itself with `--engine`: one-shot answers, line mode, saves and messages.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::chat_server::{ChatServer, Reply, STREAM, answer, delta, end, events, refusal, reply};
use super::command::command;

fn run(home: &Path, arguments: &[&str]) -> Output {
    command(home, arguments).output().unwrap()
}

fn object(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The program fed line by line; standard output at the end. A line `@words` waits until these were printed.
fn lines(home: &Path, arguments: &[&str], lines: &[&str]) -> String {
    let mut child = command(home, arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (printed, all) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(n @ 1..) = stdout.read(&mut piece) {
            printed.send(piece[..n].to_vec()).unwrap();
        }
    });
    let mut shown = Vec::new();
    let has = |shown: &[u8], words: &str| String::from_utf8_lossy(shown).contains(words);
    for line in lines {
        match line.strip_prefix('@') {
            Some(words) => {
                while !has(&shown, words) {
                    shown.extend(all.recv_timeout(Duration::from_secs(60)).expect(words));
                }
            }
            None => writeln!(stdin, "{line}").unwrap(),
        }
    }
    drop(stdin);
    child.wait().unwrap();
    reader.join().unwrap();
    shown.extend(all.iter().flatten());
    String::from_utf8(shown).unwrap()
}

#[test]
fn one_question_is_answered_with_the_servers_counts() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("notes.txt"), "The gate is red.\n").unwrap();
    let server = ChatServer::start(vec![answer("Red \u{1b}[31m.")]);
    let output = run(home.path(), &["--engine", &server.url, "-p", "Which colour?", "-f", "notes.txt", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let reply = object(&output);
    assert_eq!((&reply["text"], &reply["finish_reason"]), (&json!("Red \u{1b}[31m."), &json!("stop")));
    assert_eq!((&reply["model"], &reply["device"]), (&json!("tiny"), &json!(server.url)));
    let usage = json!({"prompt_tokens": 100, "reused_tokens": 60, "prefilled_tokens": 40, "completion_tokens": 5});
    assert_eq!(reply["usage"], usage);
    let requests = server.requests();
    let messages = requests[0]["messages"].as_array().unwrap();
    let contents: Vec<&str> = messages.iter().map(|m| m["content"].as_str().unwrap()).collect();
    assert_eq!(contents[0], "<document name=\"notes.txt\">\nThe gate is red.\n</document>");
    assert_eq!(contents[2], "Which colour?");
    assert!(!output.stdout.contains(&0x1b));
}

#[test]
fn quotes_of_a_servers_answer_are_checked_here() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("notes.txt"), "The gate is red.\nThe key hangs behind the door.\n").unwrap();
    let server =
        ChatServer::start(vec![answer("“The key hangs\nbehind the door” (line 7), and “the gate is very blue”.")]);
    let output = run(home.path(), &["--engine", &server.url, "-p", "Which colour?", "-f", "notes.txt", "--json"]);
    let quotes = &object(&output)["quotes"];
    let place = |n: usize| ["match", "document", "first_line", "corrects"].map(|key| quotes[n][key].clone());
    assert_eq!(place(0), [json!("equal"), json!("notes.txt"), json!(2), json!("line 7")]);
    assert_eq!(place(1), [json!("none"), json!(null), json!(0), json!(null)]);
}

#[test]
fn mentioned_files_are_read_and_server_counts_are_kept() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("notes.txt"), "The gate is red.\n").unwrap();
    let server = ChatServer::start(vec![answer("Red.\n\n")]);
    let output = run(home.path(), &["--engine", &server.url, "-p", "Which colour, @notes.txt? Ask @anna.", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let usage = json!({"prompt_tokens": 100, "reused_tokens": 60, "prefilled_tokens": 40, "completion_tokens": 5});
    assert_eq!(object(&output)["usage"], usage);
    let requests = server.requests();
    let contents: Vec<&str> =
        requests[0]["messages"].as_array().unwrap().iter().map(|m| m["content"].as_str().unwrap()).collect();
    assert_eq!(contents[0], "<document name=\"notes.txt\">\nThe gate is red.\n</document>");
    assert_eq!(contents[2], "Which colour, notes.txt? Ask @anna.");
}

#[test]
fn a_server_without_counts_is_estimated_and_marked() {
    let home = tempfile::tempdir().unwrap();
    let bytes = [STREAM.as_bytes(), &events(&[delta("content", "Yes."), end("stop")])].concat();
    let server = ChatServer::start(vec![Reply::Pieces(vec![bytes], Duration::ZERO)]);
    let reply = object(&run(home.path(), &["--engine", &server.url, "-p", "q", "--json"]));
    assert_eq!((&reply["usage"]["estimated"], &reply["usage"]["reused_tokens"]), (&json!(true), &json!(0)));
    assert!(reply["usage"]["prompt_tokens"].as_u64().unwrap() > 0);
}

#[test]
fn a_failure_is_one_line_with_a_code_and_keeps_the_text() {
    let home = tempfile::tempdir().unwrap();
    let begun = [STREAM.as_bytes(), &events(&[delta("content", "Half an ")])].concat();
    let begun = Reply::Pieces(vec![begun], Duration::ZERO);
    let server = ChatServer::start(vec![begun, refusal("401 Unauthorized", "no \u{1b}]0;key"), answer("Whole.")]);
    let output = run(home.path(), &["--engine", &server.url, "-p", "q"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(std::str::from_utf8(&output.stdout).unwrap().trim(), "Half an");
    assert!(err(&output).contains("in the middle of the answer") && err(&output).contains("is kept"), "{output:?}");

    let output = run(home.path(), &["--engine", &server.url, "-p", "again", "-c", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let message = object(&output)["error"]["message"].as_str().map(str::to_owned);
    let message = message.unwrap_or_else(|| object(&output).to_string());
    assert!(message.contains("requires a key (401)") && message.contains("\\x1b]0;key"), "{message}");

    // The half answer is part of the conversation.
    let output = run(home.path(), &["--engine", &server.url, "-p", "and now?", "-c"]);
    assert!(output.status.success(), "{output:?}");
    let requests = server.requests();
    let contents: Vec<&str> = requests.last().unwrap()["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["content"].as_str().unwrap())
        .collect();
    assert_eq!(contents[..2], ["q", "Half an "]);
    assert_eq!(contents.last().unwrap(), &"and now?");
}

#[test]
fn the_key_of_a_variable_or_a_file_is_sent_and_printed_nowhere() {
    const SECRET: &str = "sk-verysecretkey";
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("key"), format!("{SECRET}\n")).unwrap();
    let says = || refusal("401 Unauthorized", &format!("Incorrect key {SECRET}"));
    let server = ChatServer::start(vec![says(), says(), answer("Yes.")]);
    let mut all = Vec::new();
    let ask = ["--engine", &server.url, "-p", "q", "--json", "-vv"];
    all.push(command(home.path(), &ask).env("OPENAI_API_KEY", SECRET).output().unwrap());
    all.push(command(home.path(), &ask).env("SALA_CHAT_ENGINE_KEY_FILE", "key").output().unwrap());
    let named = |c: &mut Command| c.env("SALA_CHAT_ENGINE_KEY_ENV", "MINE").env("MINE", SECRET).output().unwrap();
    all.push(named(&mut command(home.path(), &ask)));
    all.push(named(&mut command(home.path(), &["--engine", &server.url, "doctor", "--json"])));
    all.push(named(&mut command(home.path(), &["--engine", &server.url, "config", "show"])));
    let seen = server.seen.lock().unwrap();
    assert!(seen.iter().all(|s| s.headers.contains(&format!("Bearer {SECRET}"))), "{seen:?}");
    assert_eq!(seen.len(), 7);
    for output in &all {
        let printed = [&output.stdout[..], &output.stderr[..]].concat();
        assert!(!String::from_utf8_lossy(&printed).contains(SECRET), "{output:?}");
    }
    assert!(
        String::from_utf8_lossy(&all[3].stdout).contains("answers; its models: tiny. A key is sent."),
        "{:?}",
        all[3]
    );
    assert!(files_below(&home.path().join("data")).iter().all(|f| !holds(f, SECRET.as_bytes())), "nor written");
}

fn files_below(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(files_below(&entry.path())),
            false => found.push(entry.path()),
        }
    }
    found
}

fn holds(file: &Path, what: &[u8]) -> bool {
    std::fs::read(file).unwrap().windows(what.len()).any(|w| w == what)
}

#[test]
fn settings_that_are_none_are_usage_errors() {
    let home = tempfile::tempdir().unwrap();
    for (address, words) in [
        ("localhost:8000", "engine.url"),
        ("http://me:hunter2@127.0.0.1/v1", "engine.key_env"),
        ("http://127.0.0.1:1/v1?key=hunter2", "engine.url"),
    ] {
        let output = run(home.path(), &["--engine", address, "-p", "q"]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(err(&output).contains(words) && !err(&output).contains("hunter2"), "{}", err(&output));
    }
    let mut command = command(home.path(), &["--engine", "http://127.0.0.1:1/v1", "-p", "q"]);
    let output = command.env("SALA_CHAT_ENGINE_KEY_FILE", "nowhere").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("engine.key_file nowhere cannot be used"), "{}", err(&output));
}

#[test]
fn an_unreachable_server_is_reported_once() {
    let home = tempfile::tempdir().unwrap();
    let output = run(home.path(), &["--engine", "http://127.0.0.1:1/v1", "-p", "q"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(err(&output).matches("127.0.0.1:1").count(), 1, "{}", err(&output));
}

#[test]
fn a_message_that_begins_with_an_address_keeps_it() {
    let home = tempfile::tempdir().unwrap();
    let server = ChatServer::start(vec![refusal("401 Unauthorized", "no")]);
    let mut plain = command(home.path(), &["--engine", &server.url, "--plain"]);
    let mut child = plain.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"q\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let printed = String::from_utf8(output.stdout.clone()).unwrap() + &err(&output);
    assert!(printed.contains(&format!("Error: {} requires a key", server.url)), "{printed}");
}

#[test]
fn a_server_model_named_demo_is_not_the_built_in_one() {
    let home = tempfile::tempdir().unwrap();
    let server = ChatServer::with_models(json!({"data": [{"id": "demo"}]}), vec![answer("Yes.")]);
    let printed = lines(home.path(), &["--engine", &server.url, "--plain"], &["Is it?", "@Yes.", "/quit"]);
    assert!(printed.contains("demo on ") && !printed.contains("built-in"), "{printed}");
}

#[test]
fn undo_redo_and_continue_work_over_text_alone() {
    let home = tempfile::tempdir().unwrap();
    let server = ChatServer::start((1..=6).map(|n| answer(&format!("Answer {n}."))).collect());
    let typed = [
        "first",
        "@Answer 1.",
        "/stats",
        "@counted there",
        "second",
        "@Answer 2.",
        "/undo",
        "@Went back",
        "third",
        "@Answer 3.",
        "/undo",
        "/redo",
        "@Went forward",
        "/look",
        "/why",
        "/map",
        "@/map and /look",
        "/aside by the way",
        "@Answer 4.",
        "/quit",
    ];
    let printed = lines(home.path(), &["--engine", &server.url, "--plain"], &typed);
    for words in [
        "does not report where an answer looked",
        "does not report how likely a text is",
        "does not report what it has in its context",
        "A server does not report drafts",
        "100 tokens read, 60 of them cached there",
    ] {
        assert!(printed.contains(words), "{words}: {printed}");
    }
    assert!(!printed.contains("read again,"), "{printed}");
    let requests = server.requests();
    let contents = |n: usize| -> Vec<String> {
        let messages = requests[n]["messages"].as_array().unwrap();
        messages.iter().map(|m| m["content"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(contents(1), ["first", "Answer 1.", "second"]);
    assert_eq!(contents(2), ["first", "Answer 1.", "third"]);
    assert_eq!(contents(3), ["first", "Answer 1.", "third", "Answer 3.", "by the way"]);

    // Another day, the other way round, and another branch.
    let printed = lines(home.path(), &["--engine", &server.url, "--plain", "-c"], &["fourth", "@Answer 5.", "/quit"]);
    assert!(printed.contains("No kept state: the server reads a resumed conversation again"), "{printed}");
    let requests = server.requests();
    let last = requests.last().unwrap()["messages"].as_array().unwrap();
    assert_eq!(last.len(), 5, "{last:?}");
    assert_eq!(last[4]["content"], json!("fourth"));
    let found = run(home.path(), &["search", "third", "--json"]);
    assert!(String::from_utf8_lossy(&found.stdout).contains("third"), "{found:?}");
}

#[test]
fn a_prompt_too_long_for_the_server_has_its_own_code() {
    let home = tempfile::tempdir().unwrap();
    let words = "the request exceeds the available context size";
    let stream = format!("error: {{\"code\":400,\"message\":\"{words}\"}}\n\n");
    let streamed = Reply::Pieces(vec![[STREAM.as_bytes(), stream.as_bytes()].concat()], Duration::ZERO);
    let server = ChatServer::start(vec![
        refusal("400 Bad Request", words),
        refusal("413 Payload Too Large", "no"),
        refusal("500 Internal Server Error", words),
        streamed,
    ]);
    for words in [words, "a conversation of this length", words, words] {
        let output = run(home.path(), &["--engine", &server.url, "--no-save", "-p", "q"]);
        assert_eq!(output.status.code(), Some(5), "{output:?}");
        assert!(err(&output).contains(words), "{output:?}");
    }
}

/// The words of `sala-chat serve`.
const OWN: &str = "This model's maximum context length is 2000 tokens. However, your messages resulted in 3001 tokens. \
                   Shorten them, or start the server with a larger context (--ctx, model.max_context).";

#[test]
fn a_prompt_too_long_in_other_words_is_not_sent_again() {
    let home = tempfile::tempdir().unwrap();
    let bodies = [
        ("400 Bad Request", json!({"error": {"message": "too many", "code": "context_length_exceeded"}}), "too many"),
        ("500 Internal", json!({"error": "Trying to keep the first 5000 tokens when context overflows."}), "overflows"),
        ("422 Odd", json!({"error": "`inputs` must have less than 4095 `input` tokens", "error_type": "x"}), "4095"),
        ("503 Odd", json!({"error": {"message": "no", "type": "exceed_context_size_error"}}), "no (exceed"),
        ("200 OK", json!({"error": {"message": "no", "code": "context_length_exceeded"}}), "no (context"),
        ("400 Bad Request", json!({"error": {"message": OWN, "code": "context_length_exceeded"}}), "resulted in 3001"),
        ("400 Bad Request", json!({"error": {"message": "prompt is too long: 5 tokens > 4 maximum"}}), "5 tokens > 4"),
    ];
    let kind = "content-type: application/json\r\n";
    let replies = bodies.iter().map(|(status, body, _)| reply(status, kind, &body.to_string()));
    let server = ChatServer::start(replies.collect());
    for (_, body, words) in &bodies {
        let output = run(home.path(), &["--engine", &server.url, "--no-save", "-p", "q"]);
        assert_eq!(output.status.code(), Some(5), "{body}: {output:?}");
        assert!(err(&output).contains(words), "{output:?}");
    }
    assert_eq!(server.requests().len(), bodies.len());
}

#[test]
fn a_thought_alone_is_a_failure() {
    let home = tempfile::tempdir().unwrap();
    let server = ChatServer::start(vec![answer("<think>\nx\n</think>\n\n")]);
    let output = run(home.path(), &["--engine", &server.url, "--no-save", "-p", "q"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(err(&output).contains("after the thoughts"), "{output:?}");
}

#[test]
fn a_thought_without_an_opening_is_not_sent_again() {
    let home = tempfile::tempdir().unwrap();
    let pieces = ["The user asks. ", "I should say yes.\n</th", "ink>\n\nYes."].map(|text| delta("content", text));
    let bytes = [STREAM.as_bytes(), &events(&pieces), &events(&[end("stop")])].concat();
    let server = ChatServer::start(vec![Reply::Pieces(vec![bytes], Duration::ZERO), answer("Again.")]);
    let reply = object(&run(home.path(), &["--engine", &server.url, "-p", "q", "--json"]));
    assert_eq!(reply["text"], json!("Yes."));
    let output = run(home.path(), &["--engine", &server.url, "-p", "and now?", "-c"]);
    assert!(output.status.success(), "{output:?}");
    let requests = server.requests();
    assert_eq!(requests.last().unwrap()["messages"][1], json!({"role": "assistant", "content": "Yes."}));
}
