//! The full screen in a real terminal of its own, with a scripted runtime: what is set is reset, keys arrive, and a
//! terminal that disappears ends the program. The test starts itself as the child.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::pty;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use portable_pty::CommandBuilder;
use pty::{PATIENCE, PROGRAM, Terminal, environment};
use rustix::process::{Pid, Signal, kill_process};
use sala_chat::cli::run::{RuntimeHandle, run};
use sala_chat::core::transcript::{Finish, Message, MessageId, MessageMeta, Role};
use sala_chat::engine::protocol::ModelInfo;
use sala_chat::runtime::protocol::{Activity, Notice, Request, SessionView, TreeView};
use sala_chat::store::{Limits, NO_ROW, RealDisk, Store};
use sala_chat::tui::options::UiConfig;

fn message(id: i64, role: Role, text: &str) -> Message {
    let finish = (role == Role::Assistant && !text.is_empty()).then_some(Finish::Stop);
    let meta = MessageMeta { finish, ..MessageMeta::default() };
    Message { id: MessageId(id), parent: None, role, text: text.into(), thinking: String::new(), created_ms: 0, meta }
}

/// Answers every question with its own words.
fn scripted_runtime() -> RuntimeHandle {
    let (requests, inbox) = crossbeam_channel::unbounded();
    let (out, notices) = crossbeam_channel::unbounded();
    std::thread::spawn(move || {
        let notify = |n: Notice| drop(out.send(n));
        notify(Notice::Ready(ModelInfo {
            name: "demo".into(),
            built_in: true,
            context_limit: 1_000,
            ..ModelInfo::default()
        }));
        let tree = TreeView { branch: (1, 1), ..TreeView::default() };
        notify(Notice::Session(SessionView { tree, ..SessionView::default() }));
        notify(Notice::Activity(Activity::Idle));
        let mut id = 1;
        for (request, received) in inbox.into_iter().zip(1..) {
            match request {
                Request::Ask(text) => {
                    notify(Notice::Added(message(id, Role::User, &text)));
                    notify(Notice::Added(message(id + 1, Role::Assistant, "")));
                    notify(Notice::Activity(Activity::Answering { tokens_per_s: 10.0 }));
                    let answer = format!("You said **{text}**.");
                    notify(Notice::Delta { message: MessageId(id + 1), thinking: false, text: answer.clone() });
                    notify(Notice::Finished(message(id + 1, Role::Assistant, &answer)));
                    notify(Notice::Activity(Activity::Idle));
                    id += 2;
                }
                Request::Quit => {
                    return notify(Notice::Bye { farewell: Some("Resume with: sala-chat -c".into()), unsaved: None });
                }
                _ => {}
            }
            notify(Notice::Acknowledged(received));
        }
    });
    RuntimeHandle { requests, notices }
}

#[test]
#[ignore = "a child of the other tests"]
fn child() {
    let exit = run(
        UiConfig {
            ui: sala_chat::config::settings::UiConfig { mouse: true, ..Default::default() },
            ..UiConfig::default()
        },
        scripted_runtime(),
        None,
    )
    .unwrap()
    .0;
    std::process::exit(exit.into());
}

fn start() -> Terminal {
    let terminal = Terminal::spawn(this("child"), 80, 24);
    terminal.wait_for("Type a question");
    terminal
}

fn this(child: &str) -> CommandBuilder {
    let mut command = CommandBuilder::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", &format!("program::{child}"), "--nocapture"]);
    command
}

/// Runs the child, and brings it back once it was suspended and a line was typed.
const UNDER_A_SHELL: &str = r#"set -m; "$0" "$@"; echo It waits.; read -r line; fg"#;

/// The child, started by a script of a shell, where it is `"$0" "$@"`.
fn script(script: &str) -> CommandBuilder {
    let mut command = CommandBuilder::new("sh");
    command.args(["-c", script]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "program::child", "--nocapture"]);
    command
}

fn is_as_it_was(t: &Terminal) {
    t.look(|s| {
        assert!(!s.alternate_screen() && !s.bracketed_paste() && !s.hide_cursor());
        assert_eq!(s.mouse_protocol_mode(), vt100::MouseProtocolMode::None);
    });
}

fn signal(terminal: &Terminal, signal: Signal) {
    let pid = i32::try_from(terminal.pid()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

#[test]
fn a_chat_leaves_the_terminal_as_it_was() {
    let mut t = start();
    assert!(t.look(|s| s.alternate_screen() && s.bracketed_paste()));
    t.send("hello 日本\r".as_bytes());
    t.wait_for("You said hello 日本.");
    t.send(b"\x1b[200~pasted\ntext\x1b[201~");
    t.wait_for("pasted");
    t.send(b"\x03");
    t.wait_for("Cleared");
    t.send(b"/quit\r");
    assert_eq!(t.exit().exit_code(), 0);
    is_as_it_was(&t);
    assert!(t.text().contains("Resume with: sala-chat -c"));
    let raw = t.raw();
    let text = String::from_utf8_lossy(&raw);
    assert_eq!(
        text.matches("\x1b[?2026h").count(),
        text.matches("\x1b[?2026l").count(),
        "synchronized updates are closed"
    );
}

#[test]
fn ctrl_c_twice_quits() {
    let mut t = start();
    t.send(b"\x03");
    t.wait_for("Press Ctrl-C again to quit");
    t.send(b"\x03");
    assert_eq!(t.exit().exit_code(), 0);
}

#[test]
fn lines_that_arrive_in_one_burst_are_a_paste_and_not_questions() {
    let mut t = start();
    let long = "a line of a text that is long enough to be folded in the input\r".repeat(10);
    t.send(format!("alpha one\rbeta two\r\n{long}omega").as_bytes());
    let text = t.wait_for("[paste 1: 13 lines");
    assert!(!text.contains("You said"), "{text}");
    t.send(b"\x03");
    t.wait_for("Cleared");
    t.send(b"one\rtwo\r");
    t.wait_for("> one");
    std::thread::sleep(Duration::from_millis(100));
    assert!(!t.text().contains("You said"), "{}", t.text());
    t.send(b"\x03");
    t.wait_for("Cleared");
    t.send(b"hello\r");
    t.wait_for("You said hello.");
    t.send(b"/quit\r");
    assert_eq!(t.exit().exit_code(), 0);
}

#[test]
fn a_paste_that_arrives_in_several_parts_is_one_paste() {
    let mut t = start();
    let line = |n: usize| format!("{n} {}\r", "a line of a text that is pasted ".repeat(8));
    let text: String = (0..16).map(line).collect();
    for length in [1024, 700, line(0).len()] {
        for part in text.as_bytes().chunks(length) {
            t.send(part);
            std::thread::sleep(Duration::from_millis(40));
        }
        t.wait_for("16 lines");
        std::thread::sleep(Duration::from_millis(300));
        assert!(!t.text().contains("You said"), "{length}: {}", t.text());
        t.send(b"\x03");
        t.wait_for("Cleared");
        t.wait("the key hints", |text| !text.contains("Cleared"));
    }
    t.send(b"hello\r");
    t.wait_for("You said hello.");
    t.send(b"/quit\r");
    assert_eq!(t.exit().exit_code(), 0);
}

#[test]
fn a_burst_longer_than_one_read_shows_to_its_end() {
    let mut t = start();
    t.send(format!("{}LASTWORD", "word ".repeat(600)).as_bytes());
    t.wait_for("LASTWORD");
    t.send(b"\x03");
    t.wait_for("Cleared");
    t.send(b"/quit\r");
    assert_eq!(t.exit().exit_code(), 0);
}

#[test]
fn keys_that_leave_the_screen_are_no_keys_within_a_paste() {
    let home = tempfile::tempdir().unwrap();
    let mut command = pty::program(home.path(), &["--device", "cpu"]);
    command.env("VISUAL", editor(home.path(), "echo > opened"));
    let mut t = Terminal::spawn(command, 80, 24);
    t.wait_for("DEMO");
    let long = "a line of a text that is pasted ".repeat(2);
    t.send(format!("{long}\x07and more").as_bytes());
    t.wait_for("and more");
    // Other keys act at their place.
    t.send(format!("\x15{long}\x15short").as_bytes());
    t.wait("the last word", |text| text.contains("> short") && !text.contains("pasted"));
    assert!(!home.path().join("opened").exists());
    t.send(b"\x15/quit\r");
    assert_eq!(t.exit().exit_code(), 0);
}

#[test]
fn a_removed_flag_emoji_leaves_nothing_on_the_screen() {
    let mut t = start();
    // After the placeholder of an empty input.
    t.send(format!("{}\u{1f1e9}\u{1f1ea}\u{1f1eb}\u{1f1f7}", "x".repeat(68)).as_bytes());
    t.wait_for("x\u{1f1e9}\u{1f1ea}\u{1f1eb}\u{1f1f7}");
    t.send(b"\x03");
    let text = t.wait_for("Cleared");
    assert!(!text.contains(['\u{1f1e9}', '\u{1f1ea}', '\u{1f1eb}', '\u{1f1f7}']), "{text}");
    t.send(b"/quit\r");
    assert_eq!(t.exit().exit_code(), 0);
}

/// A shell script, named as the editor; in the place of the shell that starts it.
fn editor(dir: &Path, script: &str) -> String {
    let path = dir.join("editor");
    std::fs::write(&path, script).unwrap();
    format!("exec sh {}", path.display())
}

#[test]
fn ctrl_c_in_an_editor_is_for_the_editor() {
    let home = tempfile::tempdir().unwrap();
    // Short sleeps: a shell that is just starting one acts on the signal only after it ends.
    let script = "trap 'printf \"kept all the same\" > \"$1\"; exit 0' INT; echo The editor is there.; while :; do sleep 0.1; done";
    // The program itself: its first thread, which takes the signal, is the one that waits for the editor.
    let mut command = pty::program(home.path(), &["--device", "cpu"]);
    command.env("VISUAL", editor(home.path(), script));
    let mut t = Terminal::spawn(command, 80, 24);
    t.wait_for("DEMO");
    t.send(b"\x07");
    t.wait_for("The editor is there.");
    t.send(b"\x03");
    t.wait_for("kept all the same");
    t.send(b"\x03");
    t.wait_for("Cleared");
    t.send(b"/quit\r");
    assert_eq!(t.exit().exit_code(), 0);
}

#[test]
fn a_stopped_editor_stops_the_program_and_resumes_with_it() {
    let home = tempfile::tempdir().unwrap();
    let mut command = script(UNDER_A_SHELL);
    command.env("VISUAL", editor(home.path(), "kill -STOP $$; printf 'gone on' > \"$1\""));
    let mut t = Terminal::spawn(command, 80, 24);
    t.wait_for("Type a question");
    t.send(b"\x07");
    t.wait_for("It waits.");
    t.send(b"\r");
    t.wait_for("gone on");
    t.send(b"\x03");
    t.wait_for("Cleared");
    t.send(b"/quit\r");
    assert_eq!(t.exit().exit_code(), 0);
    is_as_it_was(&t);
}

#[test]
fn ctrl_z_stops_the_script_that_waits_for_the_program_too() {
    // The shell sees its own job, which is the inner one, and resumes both.
    let script = script(r#"set -m; sh -c '"$0" "$@"; exit 7' "$0" "$@"; echo It waits.; read -r line; fg"#);
    let mut t = Terminal::spawn(script, 80, 24);
    t.wait_for("Type a question");
    t.send(b"\x1a");
    t.wait_for("It waits.");
    t.send(b"\r");
    t.wait_for("Type a question");
    t.send(b"hello\r");
    let text = t.wait_for("You said hello.");
    assert!(!text.contains("Not suspended"), "{text}");
    t.send(b"/quit\r");
    assert_eq!(t.exit().exit_code(), 7);
    is_as_it_was(&t);
}

#[test]
fn without_a_shell_above_a_suspend_is_refused() {
    // No shell above a script that owns the terminal.
    let mut t = Terminal::spawn(script(r#""$0" "$@"; exit 7"#), 80, 24);
    t.wait_for("Type a question");
    t.send(b"\x1a");
    t.wait_for("Not suspended: there is no shell");
    t.send(b"hello\r");
    t.wait_for("You said hello.");
    t.send(b"/quit\r");
    assert_eq!(t.exit().exit_code(), 7);
    is_as_it_was(&t);

    let home = tempfile::tempdir().unwrap();
    let mut t = Terminal::start(home.path(), 80, 24, &["--device", "cpu", "--plain"]);
    t.wait_for("you: ");
    t.send(b"\x1a");
    t.wait_for("Not suspended: there is no shell");
    t.line("/quit");
    assert_eq!(t.exit().exit_code(), 0);
}

#[test]
fn line_mode_shows_its_prompt_again_when_it_is_brought_back() {
    let home = tempfile::tempdir().unwrap();
    let mut command = CommandBuilder::new("/bin/sh");
    command.args(["-c", UNDER_A_SHELL, PROGRAM, "--device", "cpu", "--plain"]);
    command.env_clear();
    for (name, value) in environment(home.path()) {
        command.env(name, value);
    }
    command.cwd(home.path());
    let mut t = Terminal::spawn(command, 80, 24);
    t.wait_for("you: ");
    t.send(b"\x1a");
    t.wait_for("It waits.");
    t.send(b"\r");
    t.wait("the prompt again", |text| text.rsplit("It waits.").next().is_some_and(|after| after.contains("you: ")));
    t.line("/quit");
    assert_eq!(t.exit().exit_code(), 0);
}

#[test]
fn a_resize_during_a_suspend_is_drawn_at_the_new_size() {
    // The shell owns the terminal while the program is stopped: only it receives the new size.
    let mut t = Terminal::spawn(script(UNDER_A_SHELL), 80, 24);
    t.wait_for("Type a question");
    t.send(b"\x1a");
    t.wait_for("It waits.");
    t.resize(100, 30);
    t.send(b"\r");
    t.wait_for("Type a question");
    // Longer than a new size has to stay before it is acted on.
    std::thread::sleep(Duration::from_millis(300));
    t.send(b"as wide");
    let text = t.wait_for("as wide");
    assert_eq!(text.lines().position(|l| l.contains("> as wide")), Some(27), "{text}");
    t.send(b"\x03/quit\r");
    assert_eq!(t.exit().exit_code(), 0);
}

const SIGNALS: [(Signal, u32); 3] = [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130)];

#[test]
fn one_signal_ends_with_its_code_and_restores() {
    for (sent, code) in SIGNALS {
        let mut t = start();
        signal(&t, sent);
        assert_eq!(t.exit().exit_code(), code);
        is_as_it_was(&t);
    }
}

#[test]
fn a_signal_in_the_first_moments_restores_too() {
    for (sent, code) in SIGNALS {
        // It waits for missing answers, with its modes set and nothing drawn yet.
        let mut t = Terminal::spawn_mute(this("child"));
        t.wait_for_bytes(b"\x1b[?1049h");
        signal(&t, sent);
        assert_eq!(t.exit().exit_code(), code);
        is_as_it_was(&t);
    }
}

/// Shows one line and ignores every request.
#[test]
#[ignore = "a child of the other tests"]
fn child_with_a_hanging_runtime() {
    let (requests, _inbox) = crossbeam_channel::unbounded();
    let (out, notices) = crossbeam_channel::unbounded();
    out.send(Notice::Activity(Activity::Idle)).unwrap();
    let exit = run(UiConfig::default(), RuntimeHandle { requests, notices }, None).unwrap().0;
    std::process::exit(exit.into());
}

#[test]
fn a_signal_ends_a_program_with_a_hanging_runtime() {
    let mut t = Terminal::spawn(this("child_with_a_hanging_runtime"), 80, 24);
    t.wait_for_bytes(b"\x1b[?1049h");
    signal(&t, Signal::TERM);
    assert_eq!(t.exit().exit_code(), 143);
    is_as_it_was(&t);
}

#[test]
fn a_question_that_fails_leaves_nothing_before_its_error() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("nul.txt"), b"a\0b").unwrap();
    let mut t = Terminal::start(home.path(), 80, 24, &["--device", "cpu", "-p", "What?", "-f", "nul.txt"]);
    assert_ne!(t.exit().exit_code(), 0);
    let text = t.text();
    assert!(text.lines().any(|line| line.starts_with("sala-chat: nul.txt: not text")), "{text}");
}

#[test]
fn undo_has_a_control_key_in_a_legacy_terminal() {
    let mut t = start();
    t.send(b"some words");
    t.wait_for("some words");
    t.send(b"\x15");
    t.wait("an empty input", |text| !text.contains("some words"));
    t.send(b"\x1f");
    t.wait_for("some words");
    t.send(b"\x03");
    t.wait_for("Cleared");
    t.send(b"/quit\r");
    assert_eq!(t.exit().exit_code(), 0);
}

#[test]
fn typed_text_returns_to_the_input_after_a_kill() {
    let home = tempfile::tempdir().unwrap();
    let mut t = Terminal::start(home.path(), 80, 24, &["--device", "cpu"]);
    t.wait_for("DEMO");
    t.send(b"half a question");
    t.wait_for("half a question");
    let store = Store::open(&home.path().join("data"), Arc::new(RealDisk), Limits::default()).unwrap();
    let until = Instant::now() + PATIENCE;
    while store.draft(NO_ROW).unwrap().as_deref() != Some("half a question") {
        assert!(Instant::now() < until, "the draft is not on disk");
        std::thread::sleep(Duration::from_millis(10));
    }
    signal(&t, Signal::KILL);
    t.exit();
    // Line mode has no input: it is left to the screen.
    let mut lines = Command::new(PROGRAM)
        .args(["--device", "cpu"])
        .env_clear()
        .envs(environment(home.path()))
        .current_dir(home.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    lines.stdin.take().unwrap().write_all(b"What is sala-chat?\n").unwrap();
    assert!(lines.wait().unwrap().success());
    let t = Terminal::start(home.path(), 80, 24, &["--device", "cpu"]);
    t.wait_for("half a question");
}

#[test]
fn a_vanished_terminal_ends_the_program() {
    let mut t = start();
    t.hang_up();
    // The reader thread holds a copy of the master until the child is gone.
    signal(&t, Signal::HUP);
    assert_eq!(t.exit().exit_code(), 129);
}
