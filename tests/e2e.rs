//! What a person does on the first day and on the second: type, read a file, ask, quit, come back, ask again; then the
//! same conversation from a script. What was read once is never read again.

mod pty;

use std::path::Path;
use std::process::{Command, Stdio};

use pty::{PROGRAM, Terminal, document, environment};
use serde_json::Value;

const QUESTION: &str = "What is the password of the north gate?";
const FACT: &str = "KV-4471";
/// Tokens that a question and its template may take, and that may be read again before a checkpoint.
const QUESTION_TOKENS: u64 = 60;

/// One question from a script, in the last session.
fn ask_again(home: &Path) -> Value {
    let output = Command::new(PROGRAM)
        .args(["--device", "cpu", "-p", QUESTION, "-c", "--json"])
        .env_clear()
        .envs(environment(home))
        .current_dir(home)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_document_is_read_once_and_answered_from_on_the_next_day() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(
        home.path().join("notes.txt"),
        document(3000, &format!("The password of the north gate is {FACT}.")),
    )
    .unwrap();

    let mut first = Terminal::start(home.path(), 80, 24, &["--device", "cpu"]);
    first.wait_for("DEMO");
    first.line("What is sala-chat?");
    first.wait_for("chat program for the terminal");
    first.line("/load notes.txt");
    first.wait_for("Read notes.txt");
    first.line(QUESTION);
    first.wait_for(FACT);
    first.wait("the answer to be on disk", |text| text.contains("saved") && text.contains("idle"));
    first.line("/quit");
    assert!(first.exit().success());

    let mut second = Terminal::start(home.path(), 80, 24, &["--device", "cpu", "-c"]);
    second.wait("the count of what was resumed", |text| {
        let counts = text.split_once("Resumed ").and_then(|(_, rest)| rest.split_once(" tokens"));
        counts.is_some_and(|(counts, _)| {
            let (found, all) = counts.split_once(" of ").unwrap_or_default();
            !found.is_empty() && found == all
        })
    });
    second.line(QUESTION);
    // Quitting in the middle of an answer asks first.
    second.wait("both answers, ended", |text| text.matches(FACT).count() >= 2 && text.contains(" idle "));
    second.line("/quit");
    assert!(second.exit().success());

    let answer = ask_again(home.path());
    assert!(answer["text"].as_str().unwrap().contains(FACT), "{answer}");
    let tokens = |name: &str| answer["usage"][name].as_u64().unwrap();
    assert!(tokens("prefilled_tokens") <= QUESTION_TOKENS, "{answer}");
    assert!(tokens("reused_tokens") > 3000, "{answer}");
}
