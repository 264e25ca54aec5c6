//! The program lends its memory: a server by HTTP, by `sala-chat park` and by a signal, a chat by a signal.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::ChildStdin;
use std::time::Instant;

use super::super::PATIENCE;
use super::*;

impl Serve {
    fn http(&self, head: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        let host = &self.address;
        let kind = "content-type: application/json";
        write!(
            stream,
            "{head} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{kind}\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let status = reply.split(' ').nth(1).unwrap().parse().unwrap();
        (status, reply.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    fn parked(&self) -> bool {
        let parked = self.health_parked();
        let metrics = self.http("GET /metrics", "").1;
        let agree = metrics.contains(&format!("\nsala_chat_parked {}\n", u8::from(parked)));
        // It may have parked or returned between the two.
        assert!(agree || self.health_parked() != parked, "{metrics}");
        parked
    }

    fn health_parked(&self) -> bool {
        let (status, body) = self.http("GET /health", "");
        assert_eq!(status, 200, "{body}");
        let health: Value = serde_json::from_str(&body).unwrap();
        health["parked"].as_bool().unwrap()
    }

    fn post(&self, path: &str) -> Value {
        let (status, body) = self.http(&format!("POST {path}"), "");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    fn until_ready(&self) {
        until("the model", || self.http("GET /health", "").0 == 200);
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn a_server_is_parked_in_every_way_and_answers_as_before() {
    let home = tempfile::tempdir().unwrap();
    let serve = Serve::start(home.path());
    serve.until_ready();
    let own = object(&ask(home.path(), &["--temp", "0", "--engine", "here"]).output().unwrap());
    assert!(!serve.parked());
    assert_eq!(serve.post("/unpark")["parked"], false);
    for _ in 0..2 {
        assert_eq!(serve.post("/park")["parked"], true);
        assert!(serve.parked());
    }
    assert_eq!(serve.post("/unpark")["parked"], false);
    // A request brings the model back, and so does a terminal that attaches.
    let body = format!(r#"{{"messages":[{{"role":"user","content":"{QUESTION}"}}],"temperature":0,"max_tokens":24}}"#);
    let answered = serve.http("POST /v1/chat/completions", &body);
    assert_eq!(serve.post("/park")["parked"], true);
    let again = serve.http("POST /v1/chat/completions", &body);
    let text = |(status, body): &(u16, String)| {
        assert_eq!(*status, 200, "{body}");
        serde_json::from_str::<Value>(body).unwrap()["choices"][0]["message"]["content"].clone()
    };
    assert_eq!(text(&answered), text(&again));
    assert!(!serve.parked());
    let park = command(home.path(), &["park"]).output().unwrap();
    assert!(park.status.success(), "{park:?}");
    let line = format!("{} is parked: the memory of its model is free.\n", host_of(&serve).as_str().unwrap());
    assert_eq!(String::from_utf8_lossy(&park.stdout), line);
    assert!(serve.parked());
    let attached = object(&ask(home.path(), &["--temp", "0"]).output().unwrap());
    assert_eq!((&attached["text"], &attached["host"]), (&own["text"], &host_of(&serve)));
    assert!(!serve.parked());
    serve.signal(rustix::process::Signal::USR1);
    until("the signal parks", || serve.parked());
    serve.end();
    let park = command(home.path(), &["park"]).output().unwrap();
    let error = String::from_utf8_lossy(&park.stderr).into_owned();
    assert_eq!(park.status.code(), Some(1));
    assert!(error.starts_with("sala-chat: no sala-chat serve runs on this data directory"), "{error}");
}

/// Types lines into line mode, and reads what it prints.
struct Plain {
    child: Child,
    input: ChildStdin,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Plain {
    fn start(home: &Path, more: &[&str]) -> Plain {
        let options = ["--plain", "--temp", "0", "--max-tokens", "24"];
        let mut child = command(home, &[&options[..], more].concat()).stdin(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (send, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || BufReader::new(output).lines().map_while(Result::ok).all(|l| send.send(l).is_ok()));
        Plain { child, input, lines }
    }

    fn line(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// The lines up to one that contains this.
    fn until(&self, needle: &str) -> Vec<String> {
        let mut seen = Vec::new();
        loop {
            let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|e| panic!("{needle}: {e}: {seen:#?}"));
            seen.push(line);
            if seen.last().is_some_and(|line| line.contains(needle)) {
                return seen;
            }
        }
    }
}

#[test]
fn a_chat_killed_while_parked_resumes_from_its_kept_state() {
    let home = tempfile::tempdir().unwrap();
    let text: String = (0..150).map(|i| format!("Line {i} of the notes about the harbour.\n")).collect();
    std::fs::write(home.path().join("notes.txt"), text).unwrap();
    let mut chat = Plain::start(home.path(), &["notes.txt"]);
    chat.line("What is 17 + 25?");
    let answered = chat.until("= 42");
    rustix::process::kill_process(rustix::process::Pid::from_child(&chat.child), rustix::process::Signal::USR1)
        .unwrap();
    chat.until("Parked: the memory of the model is free.");
    chat.line("/stats");
    chat.until(", parked");
    // A second signal changes nothing; the next question brings the model back.
    rustix::process::kill_process(rustix::process::Pid::from_child(&chat.child), rustix::process::Signal::USR1)
        .unwrap();
    chat.line("What is 17 + 25?");
    let again = chat.until("= 42");
    assert_eq!(answered.last(), again.last());
    chat.line("/park");
    chat.until("Parked: the memory of the model is free.");
    chat.child.kill().unwrap();
    chat.child.wait().unwrap();
    let next = object(&ask(home.path(), &["--temp", "0", "-c"]).output().unwrap());
    assert!(next["usage"]["reused_tokens"].as_u64().unwrap() > 1_000, "{next}");
    assert!(next["usage"]["prefilled_tokens"].as_u64().unwrap() < 100, "{next}");
}
