//! `-p` never ends as if all were saved when it is not: the program itself, its data directory attacked while it answers.

use crate::command;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

fn command(home: &Path, arguments: &[&str]) -> Command {
    let mut command = command::command(home, &["--device", "cpu", "--demo", "--temp", "0"]);
    command.args(arguments).env("LANG", "C.UTF-8");
    command
}

/// Asks, runs `attack` once the answer has begun, and returns the exit code, the last event and the rest of stderr.
fn attacked<T>(home: &Path, attack: impl FnOnce(&Path) -> T) -> (Option<i32>, Value, String) {
    let output = command(home, &["--jsonl", "--max-tokens", "200", "-p", "Tell me about numbers"]);
    let mut output = { output }.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut attack = Some(attack);
    let mut held = None;
    let mut last = Value::Null;
    for line in BufReader::new(output.stdout.take().unwrap()).lines() {
        last = serde_json::from_str(&line.unwrap()).unwrap();
        // The model is there, the session is about to be made.
        if last["event"] == "start"
            && let Some(attack) = attack.take()
        {
            held = Some(attack(&home.join("data")));
        }
    }
    let mut stderr = String::new();
    output.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    let code = output.wait().unwrap().code();
    drop(held);
    (code, last, stderr)
}

#[test]
fn an_answer_without_its_database_is_shown_as_not_saved() {
    let attacks: [fn(&Path); 2] = [
        |data| std::fs::remove_file(data.join("sala.db")).unwrap(),
        |data| std::fs::rename(data, data.with_extension("moved")).unwrap(),
    ];
    for attack in attacks {
        let home = tempfile::tempdir().unwrap();
        let (code, last, stderr) = attacked(home.path(), attack);
        assert_eq!((code, last["event"].as_str()), (Some(74), Some("end")), "{stderr}");
        assert!(last["not_saved"].as_str().is_some_and(|why| why.contains("while in use")), "{last}");
        assert!(stderr.contains("not saved: ") && stderr.contains("sala.db"), "{stderr}");
    }
}

#[test]
fn an_answer_with_a_locked_database_is_reported_as_unsaved() {
    let home = tempfile::tempdir().unwrap();
    let (code, last, stderr) = attacked(home.path(), |data| {
        let other = rusqlite::Connection::open(data.join("sala.db")).unwrap();
        other.busy_timeout(std::time::Duration::from_secs(5)).unwrap();
        other.execute_batch("BEGIN IMMEDIATE; UPDATE counter SET value = value").unwrap();
        other
    });
    assert_eq!((code, last["event"].as_str()), (Some(74), Some("end")), "{stderr}");
    assert!(stderr.contains("not saved: another program holds"), "{stderr}");
    // Nothing was lost without a word, and the next one is saved.
    let next = command(home.path(), &["--max-tokens", "4", "-p", "And now?"]).output().unwrap();
    assert!(next.status.success(), "{next:?}");
    let listed = command(home.path(), &["ls", "--json"]).output().unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    // The session of the first one may have been made just before the database was held; there is nothing in it.
    let saved = listed.as_array().unwrap().iter().filter(|session| session["bytes"].as_u64().is_some_and(|n| n > 0));
    assert_eq!(saved.count(), 1, "state has a size in the list: {listed}");
}

#[test]
fn an_answer_that_is_not_to_be_kept_names_no_session() {
    let home = tempfile::tempdir().unwrap();
    for format in ["--json", "--jsonl"] {
        let output = command(home.path(), &["--no-save", format, "--max-tokens", "4", "-p", "Hello"]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!((last.get("session"), last.get("not_saved")), (Some(&Value::Null), Some(&Value::Null)), "{last}");
    }
}

#[test]
fn the_view_commands_say_what_is_wrong_and_end_with_its_code() {
    let home = tempfile::tempdir().unwrap();
    let missing = command(home.path(), &["import", "/missing/file.json"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(66), "{missing:?}");
    assert!(command(home.path(), &["--max-tokens", "4", "-p", "Hello"]).output().unwrap().status.success());
    let check = command(home.path(), &["doctor", "--check", "--json"]).output().unwrap();
    let checked: Value = serde_json::from_slice(&check.stdout).unwrap();
    assert_eq!(
        (check.status.code(), checked["ok"].as_bool(), checked["messages"].as_u64()),
        (Some(0), Some(true), Some(2))
    );

    let db = home.path().join("data/sala.db");
    let tamper = rusqlite::Connection::open(&db).unwrap();
    tamper.execute("UPDATE message SET text = text || '!' WHERE role = 'user'", []).unwrap();
    drop(tamper);
    let check = command(home.path(), &["doctor", "--check"]).output().unwrap();
    let text = String::from_utf8(check.stdout).unwrap();
    assert_eq!(check.status.code(), Some(7), "{text}");
    assert!(text.contains("message #1 of \"hello\" is not what was saved"), "{text}");
    let show = command(home.path(), &["show", "hello"]).output().unwrap();
    assert!(String::from_utf8(show.stdout).unwrap().contains("[This message is damaged"));
    assert!(String::from_utf8(show.stderr).unwrap().contains("damaged in places"));

    // Somebody else's folder.
    let theirs = home.path().join("theirs");
    std::fs::create_dir(&theirs).unwrap();
    std::fs::write(theirs.join("thesis.tex"), "x").unwrap();
    let refused = command(home.path(), &["ls", "--data-dir", theirs.to_str().unwrap()]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(String::from_utf8(refused.stderr).unwrap().contains("is not a data folder"));
    assert_eq!(std::fs::read_dir(&theirs).unwrap().count(), 1, "not even a log");
}

#[test]
fn state_without_disk_space_is_reported_as_not_saved() {
    let home = tempfile::tempdir().unwrap();
    let full = |arguments: &[&str]| {
        command(home.path(), arguments).env("SALA_CHAT_SESSIONS_MIN_FREE_GIB", "1000000").output().unwrap()
    };
    for format in ["--json", "--jsonl"] {
        let output = full(&[format, "--max-tokens", "4", "-p", "Hello"]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), stderr.matches("Text is saved, state is not: ").count()),
            (Some(0), 1),
            "{stderr}"
        );
        let text = String::from_utf8(output.stdout).unwrap();
        let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert!(last["state_not_saved"].as_str().is_some_and(|why| why.contains("reserve")), "{last}");
        assert_eq!(last.get("not_saved"), Some(&Value::Null), "{last}");
    }
    // It is in no line of the answer where both streams share one file.
    let both = std::fs::File::create(home.path().join("both")).unwrap();
    let mut output = command(home.path(), &["--max-tokens", "4", "-p", "Hello"]);
    output.env("SALA_CHAT_SESSIONS_MIN_FREE_GIB", "1000000").stdout(both.try_clone().unwrap()).stderr(both);
    assert!(output.status().unwrap().success());
    let shown = std::fs::read_to_string(home.path().join("both")).unwrap();
    assert!(shown.lines().any(|line| line.starts_with("Note: Text is saved, state is not: ")), "{shown}");
    std::fs::write(home.path().join("notes.txt"), "The lease ends in May.").unwrap();
    let added = full(&["library", "add", "notes.txt"]);
    let why = String::from_utf8(added.stderr).unwrap();
    assert!(added.status.code() == Some(74) && why.contains("state is not") && why.contains("library ls"), "{why}");
    let doctor = String::from_utf8(full(&["doctor"]).stdout).unwrap();
    assert!(doctor.contains("sessions.min_free_gib"), "{doctor}");
    let output = command(home.path(), &["--json", "--max-tokens", "4", "-p", "Hello"]).output().unwrap();
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.stderr.is_empty() && object.get("state_not_saved") == Some(&Value::Null), "{object}");
}

#[test]
fn an_answer_ends_as_its_format_requires() {
    let home = tempfile::tempdir().unwrap();
    let output = |more: &[&str]| {
        let question = ["--no-save", "--max-tokens", "4", "-p", "Hello"];
        let ran = command(home.path(), &[&question[..], more].concat()).output().unwrap();
        assert!(ran.status.success(), "{ran:?}");
        String::from_utf8(ran.stdout).unwrap()
    };
    let object: Value = serde_json::from_str(&output(&["--json"])).unwrap();
    let written = object["text"].as_str().unwrap();
    assert!(!written.ends_with('\n'), "{written:?}");
    assert_eq!((output(&["--raw"]).as_str(), output(&[])), (written, format!("{written}\n")));
    let several = output(&["-n", "2"]);
    assert!(several.contains("\n\n[2]") && several.ends_with('\n') && !several.ends_with("\n\n"), "{several:?}");
}

#[test]
fn existing_state_of_a_session_is_exported() {
    let home = tempfile::tempdir().unwrap();
    let kept = command(home.path(), &["--max-tokens", "4", "-p", "Hello"]).output().unwrap();
    assert!(kept.status.success(), "{kept:?}");
    let full = command(home.path(), &["--max-tokens", "4", "-p", "And now?", "-c"])
        .env("SALA_CHAT_SESSIONS_MIN_FREE_GIB", "1000000")
        .output()
        .unwrap();
    assert!(full.status.success() && String::from_utf8_lossy(&full.stderr).contains("state is not"), "{full:?}");
    let export =
        || command(home.path(), &["export", "last", "out.bundle", "--with-state", "--force"]).output().unwrap();
    let done = export();
    assert!(done.status.success(), "{done:?}");
    assert!(String::from_utf8_lossy(&done.stdout).contains("with the state of"), "{done:?}");
    assert!(command(home.path(), &["prune", "--state", "--all"]).output().unwrap().status.success());
    let none = export();
    assert_eq!(none.status.code(), Some(7), "{none:?}");
    assert!(String::from_utf8_lossy(&none.stderr).contains("has no kept state"), "{none:?}");
}

#[test]
fn a_check_reports_an_unreadable_database_and_tests_the_model() {
    let home = tempfile::tempdir().unwrap();
    let doctor = |arguments: &[&str]| {
        let done = command(home.path(), &[&["doctor"], arguments].concat()).output().unwrap();
        (done.status.code(), String::from_utf8(done.stdout).unwrap())
    };
    let bare = |source: &str| {
        let done = command::command(home.path(), &["doctor"]).env("SALA_CHAT_MODEL_SOURCE", source).output().unwrap();
        (done.status.code(), String::from_utf8(done.stdout).unwrap())
    };
    let (code, text) = bare("/nowhere");
    assert!(code == Some(1) && text.contains("MISS weights   /nowhere: no such model folder"), "{text}");
    let (_, text) = bare(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo"));
    assert!(text.contains("assets/demo, every tensor as config.json asks"), "{text}");
    assert!(command(home.path(), &["--max-tokens", "4", "-p", "Hello"]).output().unwrap().status.success());
    assert_eq!(doctor(&[]).0, Some(0));
    std::fs::write(home.path().join("data/sala.db"), "garbage").unwrap();
    let (code, text) = doctor(&[]);
    assert!(code == Some(1) && text.contains("MISS sessions"), "{text}");
}

#[test]
fn piped_input_is_read_like_a_file() {
    use std::io::Write;
    let home = tempfile::tempdir().unwrap();
    let piped = |bytes: &[u8]| {
        let ran = { command(home.path(), &["--json", "--max-tokens", "4", "-p", "What is it?"]) };
        let mut ran = { ran }.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        ran.stdin.take().unwrap().write_all(bytes).unwrap();
        let done = ran.wait_with_output().unwrap();
        (done.status.code(), String::from_utf8([done.stdout, done.stderr].concat()).unwrap())
    };
    let (code, output) =
        piped("Gr\u{f6}\u{df}e und L\u{e4}nge".chars().map(|c| c as u8).collect::<Vec<_>>().as_slice());
    assert!(code == Some(0) && output.contains("standard input: encoding unclear; read as windows-1252"), "{output}");
    let (code, output) = piped(b"abc\0def");
    assert!(code == Some(1) && output.contains("not text (NUL at byte 3)") && output.contains("-f FILE"), "{output}");
}
