//! The program itself with the built-in model: `sala-chat serve`, and terminals of the same data directory.

mod park;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use super::command::command as program;

const QUESTION: &str = "Tell me a story about a ship.";

/// The program with the built-in model on the CPU; what it says is caught.
fn command(home: &Path, arguments: &[&str]) -> Command {
    let mut command = program(home, &["--device", "cpu", "--model", "demo"]);
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A server that is ready.
struct Serve {
    child: Child,
    address: String,
}

impl Serve {
    fn start(home: &Path) -> Serve {
        let mut child = command(home, &["serve", "--listen", "127.0.0.1:0"]).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.split_once("http://").unwrap().1.split_once("/v1").unwrap().0.to_owned();
        Serve { child, address }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    fn end(mut self) {
        self.signal(rustix::process::Signal::TERM);
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ask(home: &Path, more: &[&str]) -> Command {
    let question = ["-p", QUESTION, "--json", "--seed", "7", "--max-tokens", "24"];
    command(home, &[&question[..], more].concat())
}

/// As a terminal names it.
fn host_of(serve: &Serve) -> Value {
    format!("sala-chat serve at {} (process {})", serve.address, serve.child.id()).into()
}

fn object(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn two_terminals_on_one_server_write_the_text_of_a_local_engine() {
    let home = tempfile::tempdir().unwrap();
    let serve = Serve::start(home.path());
    for sampling in [&["--temp", "0"][..], &["--temp", "1.3"]] {
        let both: Vec<Child> = (0..2).map(|_| ask(home.path(), sampling).spawn().unwrap()).collect();
        let own = object(&ask(home.path(), &[sampling, &["--engine", "here"]].concat()).output().unwrap());
        for child in both {
            let theirs = object(&child.wait_with_output().unwrap());
            assert_eq!(theirs["text"], own["text"]);
            assert_eq!(theirs["usage"]["completion_tokens"], own["usage"]["completion_tokens"]);
            assert!(theirs["text"].as_str().unwrap().len() > 20, "{theirs}");
            assert_eq!((&theirs["host"], own.get("host")), (&host_of(&serve), None));
        }
    }
    let doctor = object(&command(home.path(), &["doctor", "--json"]).output().unwrap());
    let shared = doctor["checks"].as_array().unwrap().iter().find(|c| c["check"] == "shared").unwrap();
    assert!(shared["text"].as_str().unwrap().starts_with(host_of(&serve).as_str().unwrap()), "{shared}");
    let locks = home.path().join("data/locks");
    let mode = |name: &str| std::fs::metadata(locks.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("serve.json"), mode("serve.sock")), (0o600, 0o600));
    serve.end();
    assert!(!locks.join("serve.json").exists() && !locks.join("serve.sock").exists());
}

#[test]
fn a_document_is_shared_between_a_server_and_a_local_engine() {
    let home = tempfile::tempdir().unwrap();
    let text: String = (0..300).map(|i| format!("Line {i} of the notes about the harbour.\n")).collect();
    std::fs::write(home.path().join("notes.txt"), text).unwrap();
    let serve = Serve::start(home.path());
    let read = object(&ask(home.path(), &["--temp", "0", "-f", "notes.txt"]).output().unwrap());
    let tokens = |reply: &Value, name: &str| reply["usage"][name].as_u64().unwrap();
    assert!(tokens(&read, "prefilled_tokens") > 2_000, "{read}");
    let own = object(&ask(home.path(), &["--temp", "0", "-c", "--engine", "here"]).output().unwrap());
    let theirs = object(&ask(home.path(), &["--temp", "0", "-c"]).output().unwrap());
    for reply in [&own, &theirs] {
        assert!(tokens(reply, "prefilled_tokens") < 100 && tokens(reply, "reused_tokens") > 2_000, "{reply}");
    }
    serve.end();
}

#[test]
fn a_killed_server_is_ignored_and_replaced() {
    let home = tempfile::tempdir().unwrap();
    let mut serve = Serve::start(home.path());
    serve.child.kill().unwrap();
    serve.child.wait().unwrap();
    assert!(home.path().join("data/locks/serve.sock").exists());
    let doctor = object(&command(home.path(), &["doctor", "--json"]).output().unwrap());
    assert!(doctor["checks"].as_array().unwrap().iter().all(|c| c["check"] != "shared"), "{doctor}");
    let alone = object(&ask(home.path(), &["--temp", "0"]).output().unwrap());
    let next = Serve::start(home.path());
    let attached = object(&ask(home.path(), &["--temp", "0"]).output().unwrap());
    assert_eq!(alone["text"], attached["text"]);
    assert!(alone.get("host").is_none());
    assert_eq!(attached["host"], host_of(&next));
    next.end();
}

#[test]
fn a_server_terminated_inside_a_document_leaves_the_rest_to_the_terminal() {
    let home = tempfile::tempdir().unwrap();
    let text: String = (0..300).map(|i| format!("Line {i} of the notes about the harbour.\n")).collect();
    std::fs::write(home.path().join("notes.txt"), text).unwrap();
    let mut serve = Serve::start(home.path());
    let question = ["-p", QUESTION, "--jsonl", "--temp", "0", "--max-tokens", "8", "-f", "notes.txt"];
    let mut client = command(home.path(), &question).spawn().unwrap();
    let (mut reported, mut last) = (false, Value::Null);
    for line in BufReader::new(client.stdout.take().unwrap()).lines() {
        last = serde_json::from_str(&line.unwrap()).unwrap();
        if last["event"] == "prefill" && !std::mem::replace(&mut reported, true) {
            serve.signal(rustix::process::Signal::TERM);
        }
    }
    let client = client.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&client.stderr);
    assert!(client.status.success() && reported && last["event"] == "end", "{last} {stderr}");
    assert!(stderr.is_empty() || stderr.contains("loaded here"), "{stderr}");
    assert!(serve.child.wait().unwrap().success());
}
