//! Signals that the program was started to ignore: `nohup`, `trap '' INT`.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::command::started_with;
use super::{Home, err};

/// Started with both ignored; what it writes is caught.
fn deaf(home: &Home, arguments: &[&str]) -> Command {
    let mut command = home.command(&[&["--demo", "--device", "cpu"][..], arguments].concat());
    started_with(&mut command, &[libc::SIGHUP, libc::SIGINT], libc::SIG_IGN);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn send(child: &Child, signals: &[Signal]) {
    signals.iter().for_each(|signal| kill_process(Pid::from_child(child), *signal).unwrap());
}

#[test]
fn a_question_that_was_started_deaf_to_hang_ups_is_answered() {
    let home = Home::new();
    let lines = (0..1_000).map(|day| format!("Bria left the kettle in the harbour on day {day}.\n"));
    home.write("long.txt", lines.collect::<String>());
    let mut child = deaf(&home, &["-p", "What is sala-chat?", "-f", "long.txt", "--jsonl"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("\"event\":\"prefill\"")));
    send(&child, &[Signal::HUP, Signal::INT]);
    let last = lines.last().unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && last.contains("\"event\":\"end\""), "{last} {}", err(&output));
}

#[test]
fn a_server_that_ignores_hang_ups_runs_until_terminated() {
    let home = Home::new();
    let mut child = deaf(&home, &["serve", "--listen", "127.0.0.1:0"]).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(
        line.starts_with("sala-chat serves ") && line.ends_with("/v1. No key is needed. Ctrl-C stops it.\n"),
        "{line}"
    );
    let address = line.split_once("http://").unwrap().1.split_once("/v1").unwrap().0;
    // Three of them would end it at once.
    send(&child, &[Signal::HUP, Signal::INT, Signal::HUP, Signal::INT]);
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(child.try_wait().unwrap().is_none() && std::net::TcpStream::connect(address).is_ok());
    send(&child, &[Signal::TERM]);
    assert!(child.wait().unwrap().success());
}
