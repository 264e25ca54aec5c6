//! `sala-chat mcp` over standard input and output, with raw messages and the built-in model.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::command::command;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

struct Client {
    child: Child,
    to: Option<ChildStdin>,
    from: Receiver<Value>,
    sent: u64,
}

impl Client {
    fn start(home: &Path, arguments: &[&str]) -> Client {
        let arguments = [&["--demo", "--device", "cpu", "mcp"], arguments].concat();
        let mut command = command(home, &arguments);
        command.current_dir(home.join("work")).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (lines, from) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            // A line that is no message fails the test: nothing but the protocol is on standard output.
            stdout.lines().for_each(|line| drop(lines.send(serde_json::from_str(&line.unwrap()).expect("a message"))));
        });
        let to = child.stdin.take();
        let mut client = Client { child, to, from, sent: 0 };
        let info =
            json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let id = client.send("initialize", info);
        let info = client.reply(id)["result"].take();
        assert_eq!(info["serverInfo"]["name"], "sala-chat", "{info}");
        assert!(info["capabilities"]["tools"].is_object() && info["capabilities"]["resources"].is_object(), "{info}");
        client.notify("notifications/initialized", json!({}));
        client
    }

    fn line(&mut self, message: &str) {
        writeln!(self.to.as_mut().unwrap(), "{message}").unwrap();
    }

    fn notify(&mut self, method: &str, params: Value) {
        self.line(&json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string());
    }

    fn send(&mut self, method: &str, params: Value) -> u64 {
        self.sent += 1;
        let id = self.sent;
        self.line(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string());
        id
    }

    fn next(&mut self) -> Value {
        self.from.recv_timeout(PATIENCE).expect("a message in time")
    }

    fn reply(&mut self, id: u64) -> Value {
        loop {
            let message = self.next();
            if message["id"] == id {
                return message;
            }
        }
    }

    fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params);
        self.reply(id)
    }

    fn call(&mut self, name: &str, arguments: Value) -> Value {
        self.request("tools/call", json!({"name": name, "arguments": arguments}))["result"].take()
    }

    fn object(&mut self, name: &str, arguments: Value) -> Value {
        let result = self.call(name, arguments);
        assert_ne!(result["isError"], true, "{name}: {result}");
        assert!(result["content"][0]["text"].is_string(), "{result}");
        result["structuredContent"].clone()
    }

    /// The one line of a tool's error.
    fn refused(&mut self, name: &str, arguments: Value) -> String {
        let result = self.call(name, arguments);
        assert_eq!(result["isError"], true, "{name}: {result}");
        let text = result["content"][0]["text"].as_str().unwrap().to_owned();
        assert!(!text.contains('\n'), "{text}");
        text
    }

    fn end(mut self) {
        drop(self.to.take());
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const LEASE: &str = "The lease begins on 1 May 2024.\nThe rent is 900 euros a month, paid in advance.\n\
    Pets are not allowed in the building.\nThe deposit is three months of rent.\n";

fn home() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("work")).unwrap();
    std::fs::write(home.path().join("work/lease.txt"), LEASE).unwrap();
    std::fs::write(home.path().join("work/pets.txt"), "The cat is called Miro.\nThe dog is called Bella.\n").unwrap();
    std::fs::write(home.path().join("secret.txt"), "The code is 7421.\n").unwrap();
    home
}

#[test]
fn a_second_question_reads_the_question_alone() {
    let home = home();
    let mut client = Client::start(home.path(), &[]);
    let tools = client.request("tools/list", json!({}))["result"]["tools"].take();
    let names: Vec<&str> = tools.as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap()).collect();
    for name in ["list_documents", "add_document", "ask", "ask_all", "find_quote", "when", "search_sessions"] {
        let tool = names.iter().position(|n| *n == name).unwrap_or_else(|| panic!("{name}: {names:?}"));
        let tool = &tools[tool];
        assert_eq!(tool["annotations"]["readOnlyHint"], name != "add_document", "{tool}");
        assert!(tool["inputSchema"]["type"] == "object" && tool["description"].as_str().unwrap().len() > 40, "{tool}");
    }
    assert_eq!(client.object("list_documents", json!({}))["documents"], json!([]));
    let added = client.object("add_document", json!({"path": "lease.txt"}));
    assert_eq!((&added["documents"][0]["name"], &added["documents"][0]["lines"]), (&json!("lease.txt"), &json!(4)));
    let tokens = added["documents"][0]["tokens"].as_u64().unwrap();
    let question = json!({"documents": ["lease.txt"], "question": "How high is the rent?"});
    let answer = client.object("ask", question.clone());
    let usage = &answer["usage"];
    assert!(usage["read"].as_u64().unwrap() < tokens.min(40) && usage["reused"].as_u64() >= Some(tokens), "{answer}");
    assert!(answer["answer"].as_str().unwrap().contains("900"), "{answer}");
    assert_eq!((&answer["quotes"][0]["match"], &answer["quotes"][0]["first_line"]), (&json!("exact"), &json!(2)));
    assert!(answer["looked_at"].is_array(), "{answer}");
    assert!(usage["generated"].as_u64() > Some(0), "{answer}");
    // Two documents: read once in this order, then found again, whatever order the client names.
    client.object("add_document", json!({"path": "pets.txt"}));
    let both = |names: [&str; 2]| json!({"documents": names, "question": "What is the cat called?"});
    let first = client.object("ask", both(["pets.txt", "lease.txt"]));
    let second = client.object("ask", both(["lease.txt", "pets.txt"]));
    let read = |answer: &Value| answer["usage"]["read"].as_u64().unwrap();
    assert!(read(&first) > read(&second) && read(&second) < 40, "{first} {second}");
    assert!(second["answer"].as_str().unwrap().contains("Miro"), "{second}");
    client.end();
    // Another process finds the state; questions of agents are no sessions.
    let mut client = Client::start(home.path(), &[]);
    let again = client.object("ask", both(["lease.txt", "pets.txt"]));
    assert!(read(&again) < 40, "{again}");
    assert_eq!(again["answer"], second["answer"]);
    client.end();
    let listed = command(home.path(), &["--json", "ls"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&listed.stdout).trim(), "[]");
}

#[test]
fn documents_are_searched_quoted_and_read_as_resources() {
    let home = home();
    let mut client = Client::start(home.path(), &[]);
    client.object("add_document", json!({"path": home.path().join("work")}));
    let find = |text: &str| json!({"document": "work/lease.txt", "text": text});
    let names = client.object("list_documents", json!({}))["documents"].clone();
    assert_eq!(names.as_array().unwrap().len(), 2, "{names}");
    let exact = client.object("find_quote", find("900 euros a month"));
    assert_eq!((&exact["match"], &exact["first_line"]), (&json!("exact"), &json!(2)));
    assert_eq!(client.object("find_quote", find("the rent is 900  euros a month"))["match"], "equal");
    let close = client.object("find_quote", find("The deposit is three months of wages"));
    assert_eq!((&close["match"], &close["first_line"]), (&json!("close"), &json!(4)), "{close}");
    assert!(close["differences"].as_str().unwrap().contains("[-wages-]{+rent+}"), "{close}");
    let none = client.object("find_quote", find("Cats and the deposit cost 100 dollars"));
    assert_eq!((&none["match"], &none["nearest_line"]), (&json!("none"), &json!(4)), "{none}");
    let all = client.object("ask_all", json!({"question": "What is the cat called?"}));
    let answers = all["answers"].as_array().unwrap();
    assert!(answers.iter().any(|a| a["text"].as_str().is_some_and(|t| t.contains("Miro"))), "{all}");
    let when = client.object("when", json!({"document": "work/lease.txt", "question": "How high is the rent?"}));
    assert!(when["text"].as_str().unwrap().contains("900"), "{when}");
    let listed = client.request("resources/list", json!({}))["result"]["resources"].take();
    let lease = listed.as_array().unwrap().iter().find(|r| r["name"] == "work/lease.txt").unwrap();
    let read = client.request("resources/read", json!({"uri": lease["uri"]}));
    assert_eq!(read["result"]["contents"][0]["text"], LEASE, "{read}");
    let error = client.request("resources/read", json!({"uri": "sala://document/none"}));
    assert!(error["error"]["message"].as_str().unwrap().contains("No document none"), "{error}");
    client.end();
    let output = command(home.path(), &["--demo", "--device", "cpu", "-p", "Is the zeppelin red?"]).output().unwrap();
    assert!(output.status.success());
    let mut client = Client::start(home.path(), &[]);
    let hits = client.object("search_sessions", json!({"text": "zeppelin"}));
    assert!(hits["hits"][0]["snippet"].as_str().unwrap().contains("zeppelin"), "{hits}");
    client.end();
}

#[test]
fn input_without_a_handshake_is_one_line_and_a_failure() {
    let home = home();
    let run = |input: &str| {
        let mut command = command(home.path(), &["--demo", "--device", "cpu", "mcp"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let out = child.wait_with_output().unwrap();
        (out.status.code(), String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    for input in ["What is the rent?\n", "{}\n", "no line end"] {
        let (code, out, errors) = run(input);
        assert_eq!(code, Some(1), "{input}: {errors}");
        assert!(input == "{}\n" || out.is_empty(), "{out}");
        assert_eq!(errors.lines().filter(|l| l.contains("without an initialize request")).count(), 1, "{errors}");
    }
    // A client that leaves at once is no error.
    assert_eq!(run("").0, Some(0));
}

#[test]
fn nonsense_is_refused_in_one_line_and_paths_stay_below_the_roots() {
    let home = home();
    std::os::unix::fs::symlink(home.path().join("secret.txt"), home.path().join("work/link.txt")).unwrap();
    let mut client = Client::start(home.path(), &[]);
    for path in ["../secret.txt", "link.txt", "/etc/hostname"] {
        assert!(client.refused("add_document", json!({"path": path})).contains("mcp.roots"), "{path}");
    }
    assert!(client.refused("add_document", json!({"path": "none.txt"})).contains("no file none.txt"));
    assert!(client.refused("add_document", json!({"path": 7})).contains("expected a string"));
    assert!(client.refused("ask", json!({"documents": ["lease.txt"]})).contains("question"));
    let ask = |name: &str| json!({"documents": [name], "question": "How high is the rent?"});
    assert!(client.refused("ask", ask("lease.txt")).contains("no documents yet"));
    assert!(client.refused("ask_all", json!({"question": "What?"})).contains("no document"));
    client.object("add_document", json!({"path": "lease.txt"}));
    assert!(client.refused("ask", ask("leese.txt")).contains("Did you mean lease.txt?"));
    assert!(client.refused("ask", ask("x")).contains("No document x in the library. list_documents lists them."));
    assert!(client.refused("ask", json!({"documents": [], "question": "q"})).contains("documents is empty"));
    assert!(client.refused("ask", json!({"documents": ["lease.txt"], "question": " "})).contains("question is empty"));
    // A binary file is an error of the call alone.
    std::fs::write(home.path().join("work/b.bin"), [0u8, 1, 2, 3]).unwrap();
    assert!(client.refused("add_document", json!({"path": "b.bin"})).contains("b.bin"));
    let unknown = client.request("tools/call", json!({"name": "launch", "arguments": {}}));
    assert!(unknown["error"]["message"].is_string() || unknown["result"]["isError"] == true, "{unknown}");
    assert!(client.request("no/method", json!({}))["error"]["code"].is_number());
    client.line("this is no JSON");
    client.line("[1, 2");
    assert_ne!(client.call("ask", ask("lease.txt"))["isError"], true);
    client.end();
    let named = format!("SALA_CHAT_MCP_ROOTS={}", home.path().display());
    let (name, value) = named.split_once('=').unwrap();
    let refused = command(home.path(), &["--demo", "mcp"]).env(name, "/none/here").output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let allowed = command(home.path(), &["--demo", "mcp"]).env(name, value).output().unwrap();
    assert!(allowed.status.success(), "standard input without a client ends it");
}

/// A text that the built-in model reads for long enough to be stopped.
fn long() -> String {
    (0..4_000).map(|n| format!("Line {n} says that number {} is odd.\n", n * 7 + 1)).collect()
}

#[test]
fn reading_reports_progress_and_a_cancelled_call_stops() {
    let home = home();
    std::fs::write(home.path().join("work/long.txt"), long()).unwrap();
    let mut client = Client::start(home.path(), &[]);
    let add = json!({"name": "add_document", "arguments": {"path": "long.txt"}, "_meta": {"progressToken": "p"}});
    let id = client.send("tools/call", add.clone());
    let mut before = 0.0;
    while before == 0.0 {
        let message = client.next();
        assert_eq!(message["method"], "notifications/progress", "{message}");
        assert_eq!(message["params"]["progressToken"], "p");
        before = message["params"]["progress"].as_f64().unwrap();
    }
    client.notify("notifications/cancelled", json!({"requestId": id, "reason": "changed my mind"}));
    // The next call is served although the first would take long: no reply to the cancelled one precedes it.
    let documents = client.object("add_document", json!({"path": "lease.txt"}));
    assert_eq!(documents["documents"][0]["name"], "lease.txt");
    let names = client.object("list_documents", json!({}))["documents"].clone();
    assert_eq!(names.as_array().unwrap().len(), 1, "{names}");
    // A client that vanishes in the middle ends the program, and the library is intact.
    let id = client.send("tools/call", add);
    while client.next()["method"] != "notifications/progress" {}
    assert!(id > 0);
    client.end();
    let listed = command(home.path(), &["--json", "library", "ls"]).output().unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!((listed[0]["name"].as_str(), listed[0]["kept"].as_bool()), (Some("lease.txt"), Some(true)), "{listed}");
}
