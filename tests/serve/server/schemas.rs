//! Schemas that are small and take a compiler everything: each has its status, and the next question is answered.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use sala_chat::runtime::Settings;
use sala_chat::text::grammar::Grammar;
use sala_chat::text::schema::{Checker, Unusable};
use serde_json::{Map, Value, json};

use crate::server::client::{Running, Setup, answers};
use crate::server::support::text_model;
use crate::server::{CHAT, question, with};

fn ask(server: &Running, schema: &Value) -> crate::server::client::Reply {
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
    server.post(CHAT, &with(question("Hi"), "response_format", format))
}

fn properties(count: usize, each: &Value) -> Value {
    let all: Map<String, Value> = (0..count).map(|i| (format!("p{i}"), each.clone())).collect();
    json!({ "type": "object", "properties": all, "additionalProperties": false })
}

/// Definitions of which each is made by `of` from the next one's reference.
fn chain(length: usize, of: impl Fn(Value) -> Value) -> Value {
    let next = |i: usize| json!({ "$ref": format!("#/$defs/n{}", i + 1) });
    let mut all: Map<String, Value> = (0..length).map(|i| (format!("n{i}"), of(next(i)))).collect();
    all.insert(format!("n{length}"), json!({ "type": "string", "pattern": "a" }));
    json!({ "$defs": all, "$ref": "#/$defs/n0" })
}

#[test]
fn no_schema_ends_the_server_or_holds_it_up() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let text = json!({ "type": "string" });
    let holds = |digit: usize| json!({ "type": "string", "pattern": format!(".*{digit}.*") });
    let all_of: Vec<Value> = (0..40).map(holds).collect();
    let multiples: Vec<Value> =
        [3, 7, 11, 13, 17, 19, 23].iter().map(|n| json!({ "type": "integer", "multipleOf": n })).collect();
    let cases = [
        // Each of these ended the process: its stack was too short. They have about as many objects as a body may.
        ("properties", properties(90_000, &text)),
        ("references", chain(45_000, |next| next)),
        ("nested", chain(30_000, |next| json!({ "type": "object", "properties": { "a": next }, "required": ["a"] }))),
        // These took gigabytes and never ended.
        ("patterns", json!({ "allOf": all_of })),
        ("doubled", chain(30, |next| json!({ "allOf": [next.clone(), next] }))),
        ("multiples", json!({ "allOf": multiples })),
        // This one was an answer that broke off.
        ("many that may be left out", properties(1_500, &text)),
    ];
    for (name, schema) in cases {
        let begun = Instant::now();
        let reply = ask(&server, &schema);
        assert_eq!(reply.error(), (400, "invalid_value".into(), "response_format".into()), "{name}: {}", reply.body);
        assert!(begun.elapsed() < Duration::from_secs(25), "{name}: {:?}", begun.elapsed());
        assert_eq!(server.post(CHAT, &question("Hi")).status, 200, "after {name}");
    }
    server.end();
}

#[test]
fn a_question_without_a_schema_waits_for_no_compilation() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let hard: Vec<Value> = (0..40).map(|i| json!({ "type": "string", "pattern": format!(".*{i}.*") })).collect();
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": { "allOf": hard } } });
    let body = with(question("Hi"), "response_format", format).to_string();
    let held: Vec<_> = (0..6)
        .map(|_| {
            let mut stream = server.open();
            std::io::Write::write_all(&mut stream, server.request(CHAT, "", &body).as_bytes()).unwrap();
            stream
        })
        .collect();
    // All of them are there by the time this one is answered.
    for _ in 0..3 {
        let begun = Instant::now();
        assert_eq!(server.post(CHAT, &question("Hi")).status, 200);
        assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    }
    drop(held);
    server.end();
}

#[test]
fn a_deep_schema_that_passes_the_trial_compiles() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    // Twice the depth at which a thread's usual stack was too short.
    let reply = ask(&server, &chain(10_000, |next| next));
    assert_eq!(reply.status, 200, "{}", reply.body);
    server.end();
}

#[test]
fn a_passed_schema_is_cached_and_a_failed_trial_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let count = dir.path().join("count");
    let tried = || std::fs::read_to_string(&count).unwrap_or_default().len();
    let says = |script: &str| {
        let script = format!("printf x >> {}; {script}", count.display());
        Checker::new(["sh", "-c", script.as_str()].map(OsString::from).into())
    };
    let grammar = |text: &str| Grammar::Json(json!({ "const": text }));
    let passes = says("cat > /dev/null; echo null");
    for text in ["one", "one", "two", "one"] {
        assert_eq!(passes.check(&grammar(text)), Ok(()));
    }
    assert_eq!(tried(), 2);
    let refuses = says("echo '\"too odd\"'");
    for _ in 0..2 {
        assert_eq!(refuses.check(&grammar("one")), Err(Unusable::Refused("too odd".into())));
    }
    assert_eq!(tried(), 4);
    let killed = says("kill -9 $$").check(&grammar("one"));
    assert!(matches!(&killed, Err(Unusable::Refused(why)) if why.contains("memory")), "{killed:?}");
    for broken in [says("echo nothing"), says("echo why not >&2; exit 3"), Checker::new(vec!["/no/such".into()])] {
        let untried = broken.check(&grammar("one"));
        assert!(matches!(&untried, Err(Unusable::Untried(why)) if why.contains("cannot be tried")), "{untried:?}");
    }
}

#[test]
fn an_object_without_an_end_ends_at_the_default_length() {
    let dir = tempfile::tempdir().unwrap();
    let script = answers(text_model(None), &format!("{{\"a{}", " b".repeat(9_000)));
    let server = Running::start(dir.path(), Setup { script, ..Setup::default() });
    let reply = server.post(CHAT, &with(question("Hi"), "response_format", json!({ "type": "json_object" }))).json();
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    assert_eq!(reply["usage"]["completion_tokens"], Settings::default().max_tokens);
    server.end();
}
