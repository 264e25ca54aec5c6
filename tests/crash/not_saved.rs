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

/// Asks, does `attack` once the answer has begun, and returns the exit code, the last event and what was said beside it.
fn attacked<T>(home: &Path, attack: impl FnOnce(&Path) -> T) -> (Option<i32>, Value, String) {
    let asked = command(home, &["--jsonl", "--max-tokens", "200", "-p", "Tell me about numbers"]);
    let mut asked = { asked }.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut attack = Some(attack);
    let mut held = None;
    let mut last = Value::Null;
    for line in BufReader::new(asked.stdout.take().unwrap()).lines() {
        last = serde_json::from_str(&line.unwrap()).unwrap();
        // The model is there, the session is about to be made.
        if last["event"] == "start"
            && let Some(attack) = attack.take()
        {
            held = Some(attack(&home.join("data")));
        }
    }
    let mut said = String::new();
    asked.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    let code = asked.wait().unwrap().code();
    drop(held);
    (code, last, said)
}

#[test]
fn an_answer_whose_database_is_gone_is_given_and_said_to_be_not_saved() {
    let attacks: [fn(&Path); 2] = [
        |data| std::fs::remove_file(data.join("sala.db")).unwrap(),
        |data| std::fs::rename(data, data.with_extension("moved")).unwrap(),
    ];
    for attack in attacks {
        let home = tempfile::tempdir().unwrap();
        let (code, last, said) = attacked(home.path(), attack);
        assert_eq!((code, last["event"].as_str()), (Some(74), Some("end")), "{said}");
        assert!(last["not_saved"].as_str().is_some_and(|why| why.contains("while in use")), "{last}");
        assert!(said.contains("not saved: ") && said.contains("sala.db"), "{said}");
    }
}

#[test]
fn an_answer_while_another_program_holds_the_database_is_not_saved_and_says_so() {
    let home = tempfile::tempdir().unwrap();
    let (code, last, said) = attacked(home.path(), |data| {
        let other = rusqlite::Connection::open(data.join("sala.db")).unwrap();
        other.busy_timeout(std::time::Duration::from_secs(5)).unwrap();
        other.execute_batch("BEGIN IMMEDIATE; UPDATE counter SET value = value").unwrap();
        other
    });
    assert_eq!((code, last["event"].as_str()), (Some(74), Some("end")), "{said}");
    assert!(said.contains("not saved: another program holds"), "{said}");
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
        let asked = command(home.path(), &["--no-save", format, "--max-tokens", "4", "-p", "Hello"]).output().unwrap();
        assert!(asked.status.success(), "{asked:?}");
        let text = String::from_utf8(asked.stdout).unwrap();
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
fn state_that_the_disk_has_no_room_for_is_said_to_be_left_out() {
    let home = tempfile::tempdir().unwrap();
    let full = |arguments: &[&str]| {
        command(home.path(), arguments).env("SALA_CHAT_SESSIONS_MIN_FREE_GIB", "1000000").output().unwrap()
    };
    for format in ["--json", "--jsonl"] {
        let asked = full(&[format, "--max-tokens", "4", "-p", "Hello"]);
        let said = String::from_utf8(asked.stderr).unwrap();
        assert_eq!(
            (asked.status.code(), said.matches("Text is saved, state is not: ").count()),
            (Some(0), 1),
            "{said}"
        );
        let text = String::from_utf8(asked.stdout).unwrap();
        let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert!(last["state_not_saved"].as_str().is_some_and(|why| why.contains("reserve")), "{last}");
        assert_eq!(last.get("not_saved"), Some(&Value::Null), "{last}");
    }
    // It stands in no line of the answer, where both are shown in one place.
    let both = std::fs::File::create(home.path().join("both")).unwrap();
    let mut asked = command(home.path(), &["--max-tokens", "4", "-p", "Hello"]);
    asked.env("SALA_CHAT_SESSIONS_MIN_FREE_GIB", "1000000").stdout(both.try_clone().unwrap()).stderr(both);
    assert!(asked.status().unwrap().success());
    let shown = std::fs::read_to_string(home.path().join("both")).unwrap();
    assert!(shown.lines().any(|line| line.starts_with("sala-chat: Text is saved, state is not: ")), "{shown}");
    std::fs::write(home.path().join("notes.txt"), "The lease ends in May.").unwrap();
    let added = full(&["library", "add", "notes.txt"]);
    let why = String::from_utf8(added.stderr).unwrap();
    assert!(added.status.code() == Some(74) && why.contains("state is not") && why.contains("library ls"), "{why}");
    let doctor = String::from_utf8(full(&["doctor"]).stdout).unwrap();
    assert!(doctor.contains("sessions.min_free_gib"), "{doctor}");
    let asked = command(home.path(), &["--json", "--max-tokens", "4", "-p", "Hello"]).output().unwrap();
    let object: Value = serde_json::from_slice(&asked.stdout).unwrap();
    assert!(asked.stderr.is_empty() && object.get("state_not_saved") == Some(&Value::Null), "{object}");
}

#[test]
fn an_answer_ends_as_its_form_says() {
    let home = tempfile::tempdir().unwrap();
    let said = |more: &[&str]| {
        let question = ["--no-save", "--max-tokens", "4", "-p", "Hello"];
        let asked = command(home.path(), &[&question[..], more].concat()).output().unwrap();
        assert!(asked.status.success(), "{asked:?}");
        String::from_utf8(asked.stdout).unwrap()
    };
    let object: Value = serde_json::from_str(&said(&["--json"])).unwrap();
    let written = object["text"].as_str().unwrap();
    assert!(!written.ends_with('\n'), "{written:?}");
    assert_eq!((said(&["--raw"]).as_str(), said(&[])), (written, format!("{written}\n")));
    let several = said(&["-n", "2"]);
    assert!(several.contains("\n\n[2]") && several.ends_with('\n') && !several.ends_with("\n\n"), "{several:?}");
}

#[test]
fn what_state_there_is_of_a_session_is_exported() {
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
fn a_check_finds_a_database_that_cannot_be_opened_and_looks_at_the_model_that_is_named() {
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
fn what_is_piped_in_is_read_as_a_file_would_be() {
    use std::io::Write;
    let home = tempfile::tempdir().unwrap();
    let piped = |bytes: &[u8]| {
        let asked = { command(home.path(), &["--json", "--max-tokens", "4", "-p", "What is it?"]) };
        let mut asked = { asked }.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        asked.stdin.take().unwrap().write_all(bytes).unwrap();
        let done = asked.wait_with_output().unwrap();
        (done.status.code(), String::from_utf8([done.stdout, done.stderr].concat()).unwrap())
    };
    let (code, said) = piped("Gr\u{f6}\u{df}e und L\u{e4}nge".chars().map(|c| c as u8).collect::<Vec<_>>().as_slice());
    assert!(code == Some(0) && said.contains("standard input: encoding unclear; read as windows-1252"), "{said}");
    let (code, said) = piped(b"abc\0def");
    assert!(code == Some(1) && said.contains("not text (NUL at byte 3)") && said.contains("-f FILE"), "{said}");
}
