//! A person's first and second day: type, read a file, ask, quit, return, ask again; then the same conversation from a
//! script. A text is read only once.

use crate::command;
use crate::pty;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

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

#[test]
fn standard_input_is_followed_while_the_terminal_asks() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("first"), "The code of Arvel station is TR-5512-K.\n".repeat(20)).unwrap();
    let script =
        r#"(cat first; until [ -e more ]; do sleep 0.1; done; cat more) | "$0" --device cpu --demo --follow -"#;
    let mut command = portable_pty::CommandBuilder::new("sh");
    command.args(["-c", script, PROGRAM]);
    command.env_clear();
    environment(home.path()).into_iter().for_each(|(name, value)| command.env(name, value));
    command.cwd(home.path());
    let mut terminal = Terminal::spawn(command, 80, 24);
    terminal.wait_for("followed: /changes");
    std::fs::write(home.path().join("new"), format!("The password of the north gate is {FACT}.\n")).unwrap();
    std::fs::rename(home.path().join("new"), home.path().join("more")).unwrap();
    terminal.wait_for("1 changed");
    terminal.line(&format!("/since {QUESTION}"));
    terminal.wait_for("stdin (line 21)");
    terminal.wait_for(FACT);
    terminal.wait("the end of the answer", |text| text.contains(" idle "));
    terminal.line("/quit");
    assert!(terminal.exit().success());
}

/// The program without a terminal.
fn program(home: &Path, arguments: &[&str]) -> Command {
    let mut command = command::command(home, arguments);
    command.env_clear().envs(environment(home)).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn a_document_is_added_to_the_library_without_a_terminal() {
    let home = tempfile::tempdir().unwrap();
    for name in ["one.txt", "two.txt"] {
        std::fs::write(home.path().join(name), document(600, name)).unwrap();
    }
    let output = program(home.path(), &["--device", "cpu", "library", "add", "one.txt", "two.txt"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let listed = program(home.path(), &["library", "ls", "--json"]).output().unwrap();
    let rows: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let kept = |name: &str| rows.as_array().unwrap().iter().any(|r| r["name"] == name && r["kept"] == true);
    assert!(kept("one.txt") && kept("two.txt"), "{rows}");
    // State of sessions is not the library's, and no text is deleted with either.
    let rows_after = |arguments: &[&str]| {
        let pruned = program(home.path(), arguments).output().unwrap();
        assert!(pruned.status.success(), "{pruned:?}");
        let listed = program(home.path(), &["library", "ls", "--json"]).output().unwrap();
        let rows: Vec<Value> = serde_json::from_slice(&listed.stdout).unwrap();
        (String::from_utf8(pruned.stdout).unwrap(), rows.iter().map(|r| r["kept"] == true).collect::<Vec<bool>>())
    };
    assert_eq!(rows_after(&["prune", "--state"]).1, [true, true]);
    let (printed, rows) = rows_after(&["prune", "--state", "--all", "--dry-run"]);
    assert!(printed.contains("state of  one.txt, a document of the library") && rows == [true, true], "{printed}");
    assert_eq!(rows_after(&["prune", "--state", "--all"]).1, [false, false]);
    let missing = program(home.path(), &["--device", "cpu", "library", "add", "none.txt"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(66));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("no such file: none.txt"), "{missing:?}");
}

fn answered(home: &Path, arguments: &[&str]) -> Value {
    let output = program(home, &[&["--device", "cpu", "--json"], arguments].concat()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Sessions outlive the weights they were written with: all text is there, and it is read again once, unasked where it is short.
#[test]
fn a_session_of_earlier_weights_is_read_again_once() {
    let home = tempfile::tempdir().unwrap();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/version1");
    std::fs::create_dir_all(home.path().join("data/segments")).unwrap();
    for folder in ["", "segments"] {
        for entry in std::fs::read_dir(from.join(folder)).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_file() {
                std::fs::copy(entry.path(), home.path().join("data").join(folder).join(entry.file_name())).unwrap();
            }
        }
    }
    let ask = |question| answered(home.path(), &["--max-tokens", "60", "-r", "lighthouse", "-p", question]);
    let first = ask("When was it lit?");
    assert!(first["text"].as_str().unwrap().contains("1871"), "{first}");
    let second = ask("What did the lamp burn?");
    assert!(second["text"].as_str().unwrap().contains("whale oil"), "{second}");
    assert!(second["usage"]["reused_tokens"].as_u64() > Some(120), "{second}");
    let shown = program(home.path(), &["show", "lighthouse"]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    for phrase in ["later kerosene.", "sala-chat runs on your own computer", "1871.", "whale oil"] {
        assert!(shown.contains(phrase), "{phrase}: {shown}");
    }
}

#[test]
fn several_answers_from_a_script_are_those_of_their_seeds() {
    let home = tempfile::tempdir().unwrap();
    let question = ["--no-save", "--temp", "1.5", "--max-tokens", "24", "-p", "Tell me a story about a ship."];
    let several = answered(home.path(), &[&question[..], &["-n", "3", "--seed", "5"]].concat());
    let answers = several["answers"].as_array().unwrap();
    assert_eq!(answers.iter().map(|a| a["seed"].as_u64().unwrap()).collect::<Vec<_>>(), [5, 6, 7]);
    assert_eq!(several["text"], answers[0]["text"]);
    let texts: std::collections::HashSet<&str> = answers.iter().map(|a| a["text"].as_str().unwrap()).collect();
    assert!(texts.len() > 1, "{several}");
    for answer in answers {
        let seed = answer["seed"].to_string();
        let alone = answered(home.path(), &[&question[..], &["--seed", &seed]].concat());
        assert!(
            alone["text"] == answer["text"] && alone["finish_reason"] == answer["finish_reason"],
            "{alone} {answer}"
        );
        assert!(alone["answers"].is_null());
    }
}

#[test]
fn a_script_asks_every_document_of_the_library() {
    let home = tempfile::tempdir().unwrap();
    for (name, word) in [("one.txt", "KV-4471"), ("two.txt", "BX-9003")] {
        let text = document(900, &format!("The password of the north gate is {word}."));
        std::fs::write(home.path().join(name), text).unwrap();
    }
    let output = program(home.path(), &["--device", "cpu", "library", "add", "one.txt", "two.txt"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let all = answered(home.path(), &["ask-all", QUESTION]);
    let answer_has = |n: usize, word: &str| all["answers"][n]["text"].as_str().unwrap().contains(word);
    assert!(answer_has(0, "KV-4471") && answer_has(1, "BX-9003"), "{all}");
    for answer in all["answers"].as_array().unwrap() {
        let p = answer["mean_log_probability"].as_f64().unwrap();
        assert!((-1.0..=0.0).contains(&p) && answer["finish_reason"] == "stop", "{all}");
    }
    let table = program(home.path(), &["--device", "cpu", "ask-all", QUESTION, "--library", "two*"]).output().unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.starts_with("two.txt: ") && table.contains("BX-9003") && table.lines().count() == 1, "{table}");
}

/// Each signal at each phase of a question; the last event names the phase.
#[test]
fn one_signal_ends_a_question_in_every_phase() {
    use rustix::process::{Pid, Signal, kill_process};
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("long.txt"), document(20_000, FACT)).unwrap();
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130)] {
        for phase in ["start", "prefill", "token"] {
            let file: &[&str] = if phase == "token" { &[] } else { &["-f", "long.txt"] };
            let mut command = program(home.path(), &["--device", "cpu", "-p", "What is sala-chat?", "--jsonl"]);
            let mut child = command.args(file).spawn().unwrap();
            let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
            let mut seen = String::new();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            while !seen.contains(&format!("\"event\":\"{phase}\"")) {
                seen = lines.next().unwrap_or_else(|| panic!("no event {phase}")).unwrap();
            }
            kill_process(pid, signal).unwrap();
            lines.for_each(drop);
            let output = child.wait_with_output().unwrap();
            assert_eq!(output.status.code(), Some(code), "{phase}: {output:?}");
        }
    }
    // The question is saved with the part of the answer that arrived.
    let listed = program(home.path(), &["ls", "--json"]).output().unwrap();
    let rows: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert!(rows.as_array().unwrap().len() >= 3, "{rows}");
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let home = tempfile::tempdir().unwrap();
    let full = || Stdio::from(std::fs::File::options().write(true).open("/dev/full").unwrap());
    let gone = || Stdio::from(std::io::pipe().unwrap().1);
    for (arguments, code) in [
        (&["-p", "What is sala-chat?", "--jsonl"][..], 74),
        (&["-p", "What?"], 74),
        // The failure itself would be an object on standard output.
        (&["-p", "What?", "--json"], 74),
        (&["--plain"], 74),
    ] {
        let run = |to: Stdio| program(home.path(), arguments).stdin(Stdio::null()).stdout(to).output().unwrap();
        let (full, gone) = (run(full()), run(gone()));
        let stderr = String::from_utf8_lossy(&full.stderr);
        assert!(stderr.starts_with("sala-chat: standard output: No space left"), "{arguments:?}: {stderr}");
        assert_eq!(full.status.code(), Some(code), "{arguments:?}");
        // The reader is gone: no output, no failure.
        assert_eq!((gone.status.code(), &*gone.stderr), (Some(0), &b""[..]), "{arguments:?}: {gone:?}");
    }
}

#[test]
fn repeated_signals_lose_no_reading() {
    use rustix::process::{Pid, Signal, kill_process};
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("long.txt"), document(20_000, FACT)).unwrap();
    let mut command =
        program(home.path(), &["--device", "cpu", "-p", "What is sala-chat?", "--jsonl", "-f", "long.txt"]);
    let mut child = command.spawn().unwrap();
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    while !lines.next().unwrap().unwrap().contains("\"event\":\"prefill\"") {}
    // As `timeout` sends it, to the process and to its group.
    while child.try_wait().unwrap().is_none() {
        kill_process(pid, Signal::TERM).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143), "{output:?}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("The state is kept; continue this session with: sala-chat -c"), "{stderr}");
    let listed = program(home.path(), &["ls", "--json"]).output().unwrap();
    let rows: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert!(rows[0]["tokens"].as_u64().unwrap() > 0, "{rows}");
}

#[test]
fn a_missing_gpu_is_reported_once_and_never_to_a_script() {
    let home = tempfile::tempdir().unwrap();
    let ask = ["-p", "What is sala-chat?", "--demo", "--max-tokens", "3"];
    let hidden = ("CUDA_VISIBLE_DEVICES", "-1");
    for _ in 0..2 {
        let script = program(home.path(), &ask).env(hidden.0, hidden.1).output().unwrap();
        let stderr = String::from_utf8_lossy(&script.stderr);
        assert!(script.status.success() && !stderr.contains("CPU"), "{script:?}");
        // The only message is why the answer ends.
        assert!(stderr.lines().count() == 1 && stderr.contains("The answer was cut off at 3 tokens"), "{stderr}");
    }
    let watched = || {
        let mut command = pty::program(home.path(), &ask);
        command.env(hidden.0, hidden.1);
        let mut terminal = Terminal::spawn(command, 200, 24);
        assert!(terminal.exit().success());
        String::from_utf8_lossy(&terminal.raw()).contains("Running on the CPU")
    };
    assert_eq!((watched(), watched()), (true, false));
}

/// The built-in model as a folder.
fn folder_of_the_model(home: &Path) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = home.join("model");
    std::fs::create_dir(&folder).unwrap();
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json"] {
        std::fs::copy(from.join("assets/demo").join(file), folder.join(file)).unwrap();
    }
    for shard in ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"] {
        std::os::unix::fs::symlink(from.join("assets/demo").join(shard), folder.join(shard)).unwrap();
    }
    folder
}

/// The same with a template that drops earlier thoughts and has no switch for them.
fn folder_that_drops_thoughts(home: &Path) -> String {
    let folder = folder_of_the_model(home);
    let template = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/templates/released.jinja");
    std::fs::copy(template, folder.join("chat_template.jinja")).unwrap();
    folder.display().to_string()
}

#[test]
fn a_model_that_doctor_accepts_answers() {
    let home = tempfile::tempdir().unwrap();
    let folder = folder_of_the_model(home.path());
    let model = folder.display().to_string();
    let doctor = || {
        let done = program(home.path(), &["doctor", "--model", &model]).output().unwrap();
        (done.status.code(), String::from_utf8(done.stdout).unwrap())
    };
    let refused = |file: &str| {
        let (code, text) = doctor();
        assert!(code == Some(1) && text.contains("MISS weights") && text.contains(file), "{text}");
        let output = program(home.path(), &["--device", "cpu", "--model", &model, "-p", "hi"]).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(3) && stderr.contains(file), "{stderr}");
    };
    assert_eq!(doctor().0, Some(0));
    // A link that leads nowhere was meant to be a file.
    std::os::unix::fs::symlink("/nowhere", folder.join("generation_config.json")).unwrap();
    refused("generation_config.json");
    std::fs::remove_file(folder.join("generation_config.json")).unwrap();
    std::fs::rename(folder.join("tokenizer.json"), folder.join("away")).unwrap();
    refused("tokenizer.json");
    std::fs::rename(folder.join("away"), folder.join("tokenizer.json")).unwrap();
    std::fs::write(folder.join("tokenizer_config.json"), "5").unwrap();
    refused("tokenizer_config.json");
}

#[test]
fn a_paraphrased_question_is_answered_by_a_thesaurus_folder() {
    let home = tempfile::tempdir().unwrap();
    let folder = folder_of_the_model(home.path());
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/demo/generation_config.json");
    std::fs::copy(config, folder.join("generation_config.json")).unwrap();
    let club = "Every Sunday the boats are washed and put away.\nIda Ford coaches the juniors on Wednesdays.\nA life jacket must be worn on \
        the water.\nThe minibus may be borrowed by members over twenty-five.\nIn the cellar there is a workshop for repairs.\n";
    std::fs::write(home.path().join("club.txt"), club).unwrap();
    let model = folder.display().to_string();
    let question = ["-p", "Who is allowed to take the car?", "-f", "club.txt", "--no-save"];
    let ask =
        || program(home.path(), &[&["--device", "cpu", "--model", &model], &question[..]].concat()).output().unwrap();
    let refused = ask();
    let stderr = String::from_utf8(refused.stderr).unwrap();
    assert_eq!((refused.status.code(), stderr.lines().count()), (Some(3), 1), "{stderr}");
    assert!(stderr.contains("thesaurus.txt: not found"), "{stderr}");
    let answered = |thesaurus: &str| {
        std::fs::write(folder.join("thesaurus.txt"), thesaurus).unwrap();
        String::from_utf8(ask().stdout).unwrap()
    };
    assert_eq!(answered("# none\n"), "I could not find that in the document.\n");
    let found = "The document says: \"The minibus may be borrowed by members over twenty-five.\"\n";
    assert_eq!(answered("vehicle car: minibus bus\nallowed permitted may\n"), found);
}

#[test]
fn quotes_are_of_documents_alone_and_are_checked_there() {
    use std::io::Write;
    let home = tempfile::tempdir().unwrap();
    let lease = "The lease begins on 1 May 2024.\nThe rent is 900 euros a month.\nThe notice period is three months.\n";
    std::fs::write(home.path().join("lease.txt"), lease).unwrap();
    std::fs::write(home.path().join("page.html"), "<p>The bakery opens at six in the morning.</p>").unwrap();
    let ask = |question: &[&str]| -> Value {
        let question = [&["--device", "cpu", "--demo", "--json", "--no-save", "-p"], question].concat();
        let output = program(home.path(), &question).stdin(Stdio::null()).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
    };
    let quotes = ask(&["What is the notice period?", "-f", "lease.txt"])["quotes"].clone();
    let line = serde_json::json!([{
        "text": "The notice period is three months.", "match": "exact", "document": "lease.txt", "first_line": 3, "last_line": 3,
        "page": null, "corrects": null
    }]);
    assert_eq!(quotes, line);
    // Never the question, nor the program's own words about a document.
    let odd = ask(&["hi 你好 مرحبا Zażółć averyveryveryveryveryveryveryveryveryveryveryveryverylongword"]);
    assert!(
        !odd["text"].as_str().unwrap().contains("The document says") && odd["quotes"] == serde_json::json!([]),
        "{odd}"
    );
    let page = ask(&["What is this about?", "-f", "page.html"]);
    assert!(!page["text"].as_str().unwrap().contains("I have read"), "{page}");
    let mut child = program(home.path(), &["--device", "cpu", "--demo", "--plain", "--no-save", "lease.txt"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    writeln!(
        child.stdin.take().unwrap(),
        "What is the rent?\n/quotes\n/export all.md\nWhich shoes weigh three kilos?\n/quotes"
    )
    .unwrap();
    let text = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    assert!(text.contains("Quotes: [1] lease.txt 2 exact."), "{text}");
    assert!(text.contains("      2  The rent is 900 euros a month."), "{text}");
    // An answer that found nothing shows the nearest line.
    let nearest = "Nearest: lease.txt:3: The notice period is three months.\n";
    assert_eq!(text.matches(nearest).count(), 2, "{text}");
    assert!(text.contains(&format!(" found nothing. {nearest}")), "/quotes shows it again: {text}");
    let exported = std::fs::read_to_string(home.path().join("all.md")).unwrap();
    assert!(exported.contains("**Quotes**\n\n1. The rent is 900 euros a month. *lease.txt 2 exact*"), "{exported}");
}

#[test]
fn a_script_reuses_state_with_thoughts_in_the_history() {
    let home = tempfile::tempdir().unwrap();
    let model = folder_that_drops_thoughts(home.path());
    let ask = |question: &str, more: &[&str]| -> Value {
        let output = Command::new(PROGRAM)
            .args([
                "--device",
                "cpu",
                "--model",
                &model,
                "--json",
                "--temp",
                "0",
                "--max-tokens",
                "200",
                "-p",
                question,
            ])
            .args(more)
            .env_clear()
            .envs(environment(home.path()))
            .current_dir(home.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let tokens = |answer: &Value, name: &str| answer["usage"][name].as_u64().unwrap();
    ask("What is 17 + 25?", &[]);
    ask("My name is Marta.", &["-c"]);
    ask("What is 3 + 4?", &["-c"]);
    let last = ask("What is my name?", &["-c"]);
    // Nothing but the question, and the end of the answer before it.
    assert!(tokens(&last, "reused_tokens") > 40, "{last}");
    assert!(tokens(&last, "prefilled_tokens") < QUESTION_TOKENS, "{last}");
}

/// The whole tour, without anybody there: every step in the real program, and nothing of it stays.
#[test]
fn the_tour_plays_without_a_terminal_and_leaves_no_files() {
    let home = tempfile::tempdir().unwrap();
    let output = program(home.path(), &["--device", "cpu", "demo"]).output().unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut rest = text.as_str();
    // In this order: both offered questions, the fork, and an answer after the program was started again.
    for part in
        ["engineer Ada Brandt", "14 euros", "second-thoughts", "Tomas Lindgren", "started again", "10:30", "two whales"]
    {
        let (_, after) = rest.split_once(part).unwrap_or_else(|| panic!("no {part} in:\n{text}"));
        rest = after;
    }
    assert!(!text.contains("Come back with"), "{text}");
    let listed = program(home.path(), &["ls", "--json"]).output().unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&listed.stdout).unwrap(), Value::Array(Vec::new()));
}

#[test]
fn the_tour_begins_on_the_screen_and_can_be_left() {
    let home = tempfile::tempdir().unwrap();
    for (columns, rows) in [(80, 24), (160, 50)] {
        let mut terminal = Terminal::start(home.path(), columns, rows, &["--device", "cpu", "demo"]);
        terminal.wait_for("TOUR 1/");
        terminal.wait_for("> /load sample:lighthouse.md");
        terminal.send(b"\r");
        terminal.wait_for("Who built the lighthouse?");
        terminal.send(b"\r");
        terminal.wait_for("Ada Brandt");
        terminal.wait_for("TOUR 3/");
        terminal.send(b"\x1b");
        terminal.wait_for("You left the tour");
        terminal.line("/quit");
        assert!(terminal.exit().success());
    }
}

#[test]
fn a_session_of_this_folder_is_offered_at_the_next_start() {
    let home = tempfile::tempdir().unwrap();
    let model = ["--device", "cpu", "--demo"];
    let begin = |more: &[&str]| Terminal::start(home.path(), 80, 24, &[&model[..], more].concat());
    let end = |mut t: Terminal| {
        t.line("/quit");
        assert!(t.exit().success());
    };
    let t = begin(&["--plain"]);
    t.wait_for("you: ");
    t.line("Hello");
    t.wait_for("sala: ");
    t.wait("a second prompt", |text| text.matches("you: ").count() == 2);
    end(t);
    let t = begin(&["--plain"]);
    t.wait_for("/resume hello continues \"Hello\" (");
    end(t);
    let t = begin(&["--new"]);
    let text = t.wait_for("Type a question");
    assert!(!text.contains("Enter continues"), "{text}");
    end(t);
    let t = begin(&[]);
    t.wait_for("Enter continues \"hello\" (");
    t.send(b"\r");
    t.wait_for("Resumed ");
    end(t);
}

#[test]
fn a_declined_removal_says_so_and_fails() {
    let home = tempfile::tempdir().unwrap();
    answered(home.path(), &["--demo", "--max-tokens", "1", "-p", "Hello"]);
    let mut t = Terminal::start(home.path(), 80, 24, &["rm", "hello"]);
    t.wait_for("y/N");
    t.line("n");
    t.wait_for("nothing was moved to the trash");
    assert_eq!(t.exit().exit_code(), 1);
}

/// The built-in model's answers to questions that have nothing to do with each other.
fn answers(questions: &[String]) -> Vec<String> {
    use std::io::Write;
    let home = tempfile::tempdir().unwrap();
    let mut child = program(home.path(), &["--device", "cpu", "--demo", "--plain", "--no-save"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    for question in questions {
        writeln!(input, "{question}\n/new").unwrap();
    }
    drop(input);
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let answers: Vec<String> = text.lines().filter_map(|l| l.strip_prefix("sala: ").map(str::to_string)).collect();
    assert_eq!(answers.len(), questions.len(), "{text}");
    answers
}

/// Whatever the built-in model says about a command is about that command, and names only what exists.
#[test]
fn the_model_speaks_the_truth_about_every_command() {
    use sala_chat::config::commands::{COMMANDS, is_command, parse};
    // Commands that came after the model was trained.
    let unknown = ["pin", "quotes", "follow", "changes", "since", "refresh", "watch", "park", "unpark"];
    let names = || COMMANDS.iter().map(|c| c.name).filter(|name| !unknown.contains(name));
    let questions: Vec<String> = names().map(|name| format!("What does /{name} do?")).collect();
    for (name, answer) in names().zip(answers(&questions)) {
        assert!(answer.contains(&format!("/{name}")), "/{name}: {answer}");
        for word in answer.split_whitespace().filter(|w| is_command(w)) {
            let word = word.trim_end_matches(['.', ',', ';']);
            let known = COMMANDS.iter().any(|c| Some(c.name) == word.strip_prefix('/'));
            assert!(known, "/{name}: {answer}");
        }
        // What it gives as an example can be entered.
        if let Some((_, example)) = answer.split_once("for example /") {
            let line = example.split([',', ';']).next().unwrap().split(". ").next().unwrap().trim_end_matches('.');
            parse(&format!("/{line}"), None).unwrap_or_else(|why| panic!("{answer}: {why}"));
        }
    }
}

/// Whatever the built-in model says about a key is about that key, and names only keys that are bound.
#[test]
fn the_model_speaks_the_truth_about_every_key() {
    use sala_chat::tui::keys::{ACTIONS, Key, KeyTable};
    // Keys that came after the model was trained.
    let unknown = ["split", "other_side", "palette"];
    let taught = || ACTIONS.iter().filter(|a| !unknown.contains(&a.1));
    let keys: Vec<(Key, &str)> = taught().flat_map(|a| a.2.iter().map(|k| (Key::parse(k).unwrap(), a.1))).collect();
    let questions: Vec<String> = keys.iter().map(|(key, _)| format!("What does {key} do?")).collect();
    // What it was trained on is the table as it is: assets/training/make_keys.py writes it.
    let trained: String = taught().map(|a| format!("{}\t{}\t{}\n", a.1, a.2.join(" "), a.3)).collect();
    assert_eq!(std::fs::read_to_string("assets/training/keys.txt").unwrap(), trained);
    let bound = KeyTable::default();
    for ((key, action), answer) in keys.iter().zip(answers(&questions)) {
        // The nine keys of the sessions have one answer.
        let name = if *action == "session" { "Alt-1 to Alt-9".to_string() } else { key.to_string() };
        assert!(answer.contains(&name), "{key}: {answer}");
        let words = answer.split(|c: char| c.is_whitespace() || ",;.".contains(c));
        for word in words.filter(|w| w.contains('-') && !w.starts_with('-')) {
            let Some(named) = Key::parse(word) else { continue };
            let fixed = named == Key::ctrl('c');
            assert!(fixed || bound.action(named).is_some(), "{key}: {answer}");
        }
    }
}
