//! Sessions: brought in, given out, removed.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use sala_chat::store::{Limits, RealDisk, SessionFilter, Store};

use super::{Home, err, out};

/// A conversation as `export` writes it.
fn exported(name: &str, title: &str) -> String {
    let message = |id: i64, parent: Option<i64>, role: &str, text: &str| {
        serde_json::json!({
            "id": id, "parent": parent, "role": role, "text": text, "thinking": "", "created_ms": 1, "meta": {}
        })
    };
    let messages = [message(1, None, "user", title), message(2, Some(1), "assistant", "An answer.")];
    serde_json::json!({
        "format": "sala-chat session", "version": 1, "name": name, "messages": messages, "head": 2, "marks": [], "settings": {}
    })
    .to_string()
}

#[test]
fn an_import_reports_missing_files_and_numbers_taken_names() {
    let home = Home::new();
    let missing = home.run(&["import", "/missing"]);
    assert_eq!(missing.status.code(), Some(66));
    assert!(err(&missing).starts_with("sala-chat: /missing: not found"), "{}", err(&missing));
    let folder = home.run(&["import", "."]);
    assert!(matches!(folder.status.code(), Some(1 | 7 | 74)), "{}", err(&folder));
    for name in ["hello", "hello-18446744073709551615", "hello", "hello"] {
        let file = home.write("in.json", exported(name, "hi"));
        let output = home.run(&["import", file.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{name}: {}", err(&output));
    }
    let listed: serde_json::Value = serde_json::from_str(out(&home.run(&["ls", "--json"]))).unwrap();
    let sessions = listed.as_array().or(listed["sessions"].as_array()).unwrap();
    let mut names: Vec<&str> = sessions.iter().filter_map(|s| s["name"].as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["hello", "hello-18446744073709551615", "hello-2", "hello-3"]);
}

#[test]
fn an_import_that_is_interrupted_ends_with_130_and_leaves_nothing() {
    use rustix::process::{Pid, Signal, kill_process};
    let home = Home::new();
    let one = r#"{"chat":{"title":"New Chat","messages":[{"role":"user","content":"Hi"}]}}"#;
    let file = home.write("in.json", format!("[{}]", vec![one; 100_000].join(",")));
    let mut child = home.command(&["import", file.to_str().unwrap()]).stderr(Stdio::piped()).spawn().unwrap();
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    // Some of it is in the log already, and nothing is committed.
    let log = home.path("data/sala.db-wal");
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while std::fs::metadata(&log).map_or(0, |log| log.len()) < 1 << 20 {
        assert!(child.try_wait().unwrap().is_none() && std::time::Instant::now() < until);
        std::thread::sleep(Duration::from_millis(2));
    }
    kill_process(pid, Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(err(&output).contains("stopped: nothing was imported"), "{}", err(&output));
    assert_eq!(out(&home.run(&["ls", "--json"])).trim(), "[]");
}

#[test]
fn an_import_takes_what_is_piped_into_it() {
    let home = Home::new();
    let piped = |name: &str, text: &str| {
        let mut command = home.command(&["import", name]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    // More than a pipe holds.
    let long = exported("talk", &"hi ".repeat(50_000));
    for (name, called) in [("-", "talk"), ("/dev/stdin", "talk-2")] {
        let output = piped(name, &long);
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        assert!(out(&output).starts_with(&format!("2 messages imported as \"{called}\"")), "{}", out(&output));
    }
    // So is a named pipe, such as that of a shell's `<(COMMAND)`, with a slow writer.
    let (from, mut to) = std::io::pipe().unwrap();
    let name = format!("/proc/{}/fd/{}", std::process::id(), from.as_raw_fd());
    let text = long.clone();
    let writer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        to.write_all(text.as_bytes()).unwrap();
    });
    let output = home.run(&["import", &name]);
    assert!(out(&output).starts_with("2 messages imported as \"talk-3\""), "{output:?}");
    writer.join().unwrap();
    let none = piped("-", "hi");
    assert_eq!(none.status.code(), Some(1));
    assert!(err(&none).starts_with("sala-chat: standard input: not JSON ("), "{}", err(&none));
    // A file in its place is read as a file.
    let file = std::fs::File::open(home.write("in.json", &long)).unwrap();
    assert_eq!(home.command(&["import", "-"]).stdin(file).output().unwrap().status.code(), Some(0));
}

#[test]
fn a_single_question_is_listed_only_with_all_until_continued() {
    let home = Home::new();
    let ask = |more: &[&str]| {
        let output = home.run(&[&["-p", "Hello?", "--demo", "--max-tokens", "2"][..], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    };
    let listed = |arguments: &[&str]| out(&home.run(arguments)).to_owned();
    let once = || {
        let rows: serde_json::Value = serde_json::from_str(&listed(&["ls", "--json"])).unwrap();
        rows.as_array().unwrap().iter().map(|row| row["once"].as_bool().unwrap()).collect::<Vec<_>>()
    };
    ask(&[]);
    ask(&[]);
    assert_eq!(listed(&["ls"]), "2 sessions of a single -p question not shown: sala-chat ls --all\n");
    let all = listed(&["ls", "--all"]);
    assert!(all.lines().count() == 3 && all.contains("hello-2 "), "{all}");
    assert_eq!(once(), [true, true]);
    ask(&["-c"]);
    let shown = listed(&["ls"]);
    assert!(shown.contains("hello-2 ") && shown.contains("\n1 session of a single -p question"), "{shown}");
    assert_eq!(once(), [false, true]);
}

#[test]
fn bash_completes_names_of_sessions_presets_and_settings() {
    let home = Home::new();
    for name in ["lease talk", "lease", "hello"] {
        let file = home.write("in.json", exported(name, "hi"));
        assert_eq!(home.run(&["import", file.to_str().unwrap()]).status.code(), Some(0));
    }
    home.write("script", home.run(&["completions", "bash"]).stdout);
    let complete = |words: &[&str]| {
        let line = "source ./script; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
            _sala__chat \"$1\" \"${!#}\" \"${COMP_WORDS[COMP_CWORD-1]}\"; printf '%s|' \"${COMPREPLY[@]}\"";
        let mut shell = std::process::Command::new("bash");
        shell.args(["-c", line, "bash", crate::command::PROGRAM]).args(words).current_dir(home.path(""));
        shell.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", home.path(""));
        out(&shell.output().unwrap()).to_owned()
    };
    let data = ["--data-dir", "data"];
    let with = |words: &[&str]| complete(&[&data[..], words].concat());
    assert_eq!(with(&["show", "le"]), "lease|lease\\ talk|");
    assert_eq!(with(&["rm", "hello", "h"]), "hello|");
    assert_eq!(with(&["--resume", "hel"]), "hello|");
    assert_eq!(with(&["config", "set", "sampling.temp"]), "sampling.temperature|");
    assert!(complete(&["--preset", ""]).contains("default|"));
    assert!(complete(&["sh"]).contains("show|"), "the words of the command line are still completed");
}

#[test]
fn a_name_that_is_nearly_one_is_suggested() {
    let home = Home::new();
    let file = home.write("in.json", exported("lease", "hi"));
    assert_eq!(home.run(&["import", file.to_str().unwrap()]).status.code(), Some(0));
    for command in [&["show", "leese"][..], &["export", "leese", "-"], &["rm", "-y", "leese"]] {
        let output = home.run(command);
        assert!(err(&output).ends_with("Did you mean lease? sala-chat ls lists them\n"), "{}", err(&output));
    }
    let unlike = home.run(&["show", "quite-another"]);
    assert!(
        err(&unlike).ends_with("no session called \"quite-another\". sala-chat ls lists them\n"),
        "{}",
        err(&unlike)
    );
    let set = home.run(&["config", "set", "sampling.temprature", "1"]);
    assert!(err(&set).contains("did you mean sampling.temperature?"), "{}", err(&set));
}

#[test]
fn a_session_undone_to_its_system_text_is_counted() {
    let home = Home::new();
    let message = |id: i64, parent: Option<i64>, role: &str| {
        serde_json::json!({
            "id": id, "parent": parent, "role": role, "text": role, "thinking": "", "created_ms": 1, "meta": {}
        })
    };
    let messages = [message(1, None, "system"), message(2, Some(1), "user"), message(3, Some(2), "assistant")];
    for (name, head) in [("undone", 1), ("whole", 3)] {
        let session = serde_json::json!({
            "format": "sala-chat session", "version": 1, "name": name, "messages": messages, "head": head, "marks": [],
            "settings": {}
        });
        let file = home.write("in.json", session.to_string());
        assert_eq!(home.run(&["import", file.to_str().unwrap()]).status.code(), Some(0));
    }
    let listed: serde_json::Value = serde_json::from_str(out(&home.run(&["ls", "--json"]))).unwrap();
    let undone = |name: &str| {
        let rows = listed.as_array().unwrap();
        rows.iter().find(|s| s["name"].as_str() == Some(name)).and_then(|s| s["undone"].as_u64())
    };
    assert_eq!((undone("undone"), undone("whole")), (Some(2), Some(0)));
    assert!(out(&home.run(&["ls"])).contains(" 0 of 2 "));
    let shown: serde_json::Value = serde_json::from_str(out(&home.run(&["show", "undone", "--json"]))).unwrap();
    assert_eq!((shown["undone"].as_u64(), shown["messages"].as_array().unwrap().len()), (Some(2), 1));
}

#[test]
fn an_export_to_standard_output_honours_json() {
    let home = Home::new();
    let file = home.write("in.json", exported("talk", "hi"));
    assert_eq!(home.run(&["import", file.to_str().unwrap()]).status.code(), Some(0));
    let json: serde_json::Value = serde_json::from_str(out(&home.run(&["export", "talk", "-", "--json"]))).unwrap();
    assert_eq!(json["messages"][0]["text"], "hi");
    let text = home.run(&["export", "talk", "-", "--json", "--format", "md"]);
    assert!(out(&text).starts_with("# "), "{}", out(&text));
}

#[test]
fn a_session_open_elsewhere_is_kept_with_advice() {
    let home = Home::new();
    let file = home.write("in.json", exported("held", "hi"));
    assert_eq!(home.run(&["import", file.to_str().unwrap()]).status.code(), Some(0));
    let store = Store::open(&home.path("data"), Arc::new(RealDisk), Limits::default()).unwrap();
    let record = store.sessions(SessionFilter::Live, 9).unwrap().remove(0);
    let _held = store.lock_session(record.id, &record.name).unwrap();
    let output = home.run(&["rm", "held", "--yes"]);
    assert_eq!(output.status.code(), Some(6), "{}", err(&output));
    assert!(err(&output).starts_with("sala-chat: \"held\" is in use by PID "), "{}", err(&output));
    assert!(err(&output).trim_end().ends_with(". Close it there first"), "{}", err(&output));
    // There is no terminal to choose an alternative, neither in line mode nor with -p.
    let ran = home.run(&["--demo", "--device", "cpu", "-p", "hi", "-r", "held"]);
    let lines = home.run(&["--demo", "--device", "cpu", "--plain", "-r", "held"]);
    assert_eq!((ran.status.code(), lines.status.code()), (Some(6), Some(6)), "{}", out(&lines));
    let why = err(&ran).trim().strip_prefix("sala-chat: ").unwrap();
    assert_eq!(out(&lines).lines().last().map(|line| line.trim_end_matches('.')), Some(why));
}

#[test]
fn one_of_a_thing_is_not_called_several() {
    let home = Home::new();
    let file = home.write("in.json", exported("one", "hi"));
    assert_eq!(home.run(&["import", file.to_str().unwrap()]).status.code(), Some(0));
    let checked = home.run(&["doctor", "--check"]);
    assert!(out(&checked).contains(": 1 session, 2 messages and 0 state files looked at."), "{}", out(&checked));
    // Without a terminal there is no question, and nothing is removed.
    let unasked = home.run(&["rm", "one", "--json"]);
    assert_eq!(unasked.status.code(), Some(2), "{unasked:?}");
    assert_eq!(home.run(&["rm", "one", "--yes", "--json"]).status.code(), Some(0));
    let unasked = home.run(&["prune", "--all"]);
    assert_eq!(unasked.status.code(), Some(2));
    assert_eq!(err(&unasked).trim(), "sala-chat: not a terminal; add --yes to confirm");
    let pruned = home.run(&["prune", "--all", "--yes"]);
    assert_eq!(out(&pruned).trim(), "1 session in the trash deleted for good.");
    assert_eq!(out(&home.run(&["prune"])).trim(), "Nothing to remove.");
}

#[test]
fn what_does_not_exist_is_refused_before_a_chat_begins() {
    let home = Home::new();
    let file = home.write("in.json", exported("lighthouse", "hi"));
    assert_eq!(home.run(&["import", file.to_str().unwrap()]).status.code(), Some(0));
    for more in [&["--plain"][..], &["-p", "hi"]] {
        let refused = home.run(&[&["--demo", "-r", "lighthose"][..], more].concat());
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        let expected = "sala-chat: no session called \"lighthose\". Did you mean lighthouse? sala-chat ls lists them";
        assert_eq!(err(&refused).trim(), expected);
    }
    let refused = home.run(&["--demo", "--plain", "--follow", "nodir"]);
    assert_eq!(refused.status.code(), Some(66), "{refused:?}");
    let refused = home.run(&["--demo", "-f", "https://example.org/a.html", "-p", "hi"]);
    assert!(err(&refused).contains("web addresses are not fetched; save the page"), "{refused:?}");
    let refused = home.run(&["export", "lighthouse", "no/such/x.md"]);
    assert!(err(&refused).contains("the folder no/such does not exist."), "{refused:?}");
    // `-y` is accepted as in the other commands that remove.
    assert!(err(&home.run(&["library", "rm", "-y", "none"])).contains("no document none in the library"));
}

#[test]
fn a_search_without_a_hit_is_code_1_with_empty_output() {
    let home = Home::new();
    let file = home.write("in.json", exported("one", "hi"));
    assert_eq!(home.run(&["import", file.to_str().unwrap()]).status.code(), Some(0));
    assert_eq!(home.run(&["search", "answer"]).status.code(), Some(0));
    let none = home.run(&["search", "zebra"]);
    assert_eq!((none.status.code(), out(&none)), (Some(1), ""));
    assert!(err(&none).contains("nothing found for zebra"), "{}", err(&none));
    let json = home.run(&["search", "zebra", "--json"]);
    assert_eq!((json.status.code(), out(&json)), (Some(1), "[]\n"));
}

#[test]
fn the_library_takes_the_words_of_its_slash_command() {
    let home = Home::new();
    let file = home.write("in.json", exported("one", "hi"));
    assert_eq!(home.run(&["import", file.to_str().unwrap()]).status.code(), Some(0));
    assert_eq!(out(&home.run(&["library", "list"])), out(&home.run(&["library", "ls"])));
    let pruned = home.run(&["library", "prune"]);
    assert!(out(&pruned).starts_with("Removed 0 unused documents ("), "{pruned:?}");
}

#[test]
fn the_request_database_is_rebuilt_or_named() {
    let home = Home::new();
    let requests = home.path("data/requests");
    let file = home.write("in.json", exported("one", "hi"));
    let places: [&[&str]; 2] = [&[], &["--data-dir", requests.to_str().unwrap()]];
    for place in places {
        let output = home.run(&[&["import", file.to_str().unwrap()][..], place].concat());
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    }
    let database = requests.join("sala.db");
    let tamper = || {
        let unreadable = "UPDATE sqlite_schema SET sql = 'x' || sql WHERE type = 'table' AND name = 'message'";
        let db = rusqlite::Connection::open(&database).unwrap();
        db.execute_batch(&format!("PRAGMA writable_schema = ON; {unreadable}; PRAGMA wal_checkpoint(TRUNCATE)"))
            .unwrap();
    };
    let held = Store::open(&requests, Arc::new(RealDisk), Limits::default()).unwrap();
    tamper();
    let seen = "data: 1 session, 2 messages and 0 state files looked at.";
    let used = home.run(&["doctor", "--check"]);
    assert_eq!(used.status.code(), Some(7), "{used:?}");
    assert!(out(&used).contains(seen) && out(&used).contains("close that one first"), "{}", out(&used));
    drop(held);
    let made = home.run(&["doctor", "--check"]);
    assert_eq!(made.status.code(), Some(0), "{made:?}");
    assert!(out(&made).contains("2 messages of 1 session were read from it into a new one"), "{}", out(&made));
    // Nothing can be read of it.
    std::fs::write(&database, vec![0x42; 8192]).unwrap();
    let lost = home.run(&["doctor", "--check"]);
    assert_eq!(lost.status.code(), Some(7), "{lost:?}");
    let text = out(&lost);
    assert!(
        text.contains(seen) && text.contains(", and no message could be read from it): bring back a copy"),
        "{text}"
    );
    let json: serde_json::Value = serde_json::from_str(out(&home.run(&["doctor", "--check", "--json"]))).unwrap();
    assert_eq!((json["ok"].as_bool(), json["messages"].as_u64()), (Some(false), Some(2)), "{json}");
    assert_eq!(json["requests"]["damaged"].as_array().map(Vec::len), Some(1), "{json}");
}

#[test]
fn a_dry_run_names_what_would_go() {
    let home = Home::new();
    for name in ["stays", "goes"] {
        let file = home.write("in.json", exported(name, "hi"));
        assert_eq!(home.run(&["import", file.to_str().unwrap()]).status.code(), Some(0));
    }
    assert_eq!(home.run(&["rm", "goes", "--yes"]).status.code(), Some(0));
    let young = home.run(&["prune", "--dry-run"]);
    assert!(out(&young).starts_with("Nothing would go.\n"), "{}", out(&young));
    // Text is promised to stay with that exception only.
    let help = home.run(&["prune", "--help"]);
    let (about, all) =
        (out(&help).lines().next().unwrap(), out(&help).split_whitespace().collect::<Vec<_>>().join(" "));
    assert!(about.ends_with("text stays, except in the trash"), "{about}");
    assert!(all.contains("delete everything in the trash now"), "{all}");
    let all = home.run(&["prune", "--dry-run", "--all"]);
    assert!(out(&all).starts_with("This would go:\nsession   goes, 2 messages, in the trash since "), "{}", out(&all));
    let json: serde_json::Value =
        serde_json::from_str(out(&home.run(&["prune", "--dry-run", "--all", "--json"]))).unwrap();
    assert_eq!((&json["sessions"], &json["trashed_sessions"]), (&serde_json::json!(["goes"]), &serde_json::json!(1)));
    assert_eq!(home.run(&["prune", "--all", "--yes"]).status.code(), Some(0));
    let after = home.run(&["prune", "--dry-run", "--all"]);
    assert!(out(&after).starts_with("Nothing would go.\n"), "{}", out(&after));
}

#[test]
fn an_export_with_state_groups_the_digits_of_its_tokens() {
    let home = Home::new();
    home.write("long.txt", "The quick brown fox jumps over the lazy dog.\n".repeat(120));
    let answer = home.run(&["--demo", "--device", "cpu", "--max-tokens", "4", "-f", "long.txt", "-p", "hi"]);
    assert_eq!(answer.status.code(), Some(0), "{}", err(&answer));
    let exported = home.run(&["export", "last", "long.sala", "--with-state"]);
    let (_, tokens) = out(&exported).split_once("with the state of ").unwrap();
    let (thousands, rest) = tokens.split_once(" tokens").unwrap().0.split_once(',').expect("more than 999");
    assert!(!thousands.is_empty() && rest.len() == 3, "{tokens}");
}
