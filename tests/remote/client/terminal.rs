//! The full screen with a remote server: a stop, thoughts, estimates and counts, a server that is away.

use std::time::{Duration, Instant};

use super::chat_server::{ChatServer, Reply, STREAM, answer, delta, end, events, reply, usage};
use super::pty::{PATIENCE, Terminal};

fn pieces(sent: &[serde_json::Value]) -> Vec<u8> {
    [STREAM.as_bytes(), &events(sent)].concat()
}

#[test]
fn a_stopped_answer_is_kept_and_the_server_is_left() {
    let home = tempfile::tempdir().unwrap();
    let server = ChatServer::start(vec![Reply::Stall(pieces(&[delta("content", "Once upon a ")])), answer("Well.")]);
    let mut terminal = Terminal::start(home.path(), 80, 24, &["--engine", &server.url]);
    terminal.wait_for("tiny");
    terminal.line("Tell a story");
    terminal.wait_for("Once upon a");
    terminal.send(b"\x1b");
    terminal.wait("the stop", |text| text.contains("stopped") && text.contains("idle"));
    // The server sees it at its next write.
    let until = Instant::now() + PATIENCE;
    while server.left.lock().unwrap().is_empty() {
        assert!(Instant::now() < until, "the client holds its connection");
        std::thread::sleep(Duration::from_millis(10));
    }
    terminal.line("Go on");
    terminal.wait_for("Well.");
    terminal.line("/quit");
    assert!(terminal.exit().success());
    let requests = server.requests();
    assert_eq!(requests[1]["messages"][1]["content"], serde_json::json!("Once upon a "));
}

#[test]
fn thoughts_fold_and_the_meter_turns_from_estimates_to_counts() {
    let home = tempfile::tempdir().unwrap();
    let sent =
        [delta("reasoning_content", "Let me see."), delta("content", "Forty-two."), end("stop"), usage(2000, 0, 48)];
    let busy = reply("503 Unavailable", "retry-after: 1\r\n", "{}");
    let server = ChatServer::start(vec![busy, Reply::Pieces(vec![pieces(&sent)], Duration::ZERO)]);
    let mut terminal = Terminal::start(home.path(), 160, 50, &["--engine", &server.url]);
    terminal.wait_for("a server, no kept state");
    terminal.line("What is the answer?");
    terminal.wait_for("failed (503)");
    let text = terminal.wait("the answer", |text| text.contains("Forty-two.") && text.contains("idle"));
    assert!(!text.contains("Let me see."), "folded: {text}");
    terminal.wait_for("2,048 of 4,096");
    terminal.line("/undo");
    terminal.wait("an estimate", |text| text.contains("context  ~0 of") || text.contains("context  0 of"));
    terminal.send(b"\x15");
    terminal.line("/quit");
    assert!(terminal.exit().success());
}

#[test]
fn without_server_counts_the_speed_is_estimated_and_marked() {
    let home = tempfile::tempdir().unwrap();
    // Six pieces of some tokens of the code each, with pauses between them.
    let mut sent = vec![pieces(&[])];
    sent.extend((0..6).map(|n| events(&[delta("content", &format!("Qx{n}zj "))])));
    sent.push(events(&[end("stop")]));
    let server = ChatServer::start(vec![Reply::Pieces(sent, Duration::from_millis(300))]);
    let mut terminal = Terminal::start(home.path(), 80, 24, &["--engine", &server.url]);
    terminal.wait_for("tiny");
    terminal.line("Say something");
    let text = terminal.wait("the answer", |text| text.contains("Qx5zj") && text.contains("idle"));
    let speed = |line: &str| line.split_once('~')?.1.split_once(" t/s")?.0.parse::<f64>().ok();
    let speed = text.lines().filter(|line| line.contains("#2")).find_map(speed);
    // Five pieces after the first, in a second and a half.
    assert!(speed.is_some_and(|speed| speed < 8.0), "{speed:?}: {text}");
    terminal.line("/quit");
    assert!(terminal.exit().success());
}

#[test]
fn a_server_that_is_away_is_named_and_the_sessions_are_there() {
    let home = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}/v1");
    let mut terminal = Terminal::start(home.path(), 80, 24, &["--engine", &url]);
    terminal.wait_for("Nothing answers at");
    terminal.line("/sessions");
    terminal.wait_for("Nothing here yet");
    terminal.send(b"\x1b");
    terminal.wait("the list to close", |text| !text.contains("Nothing here yet"));
    terminal.line("/quit");
    assert!(terminal.exit().success());
}
