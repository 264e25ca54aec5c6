//! `/mcp` of the real server: the same tools over HTTP, with the server's own rules.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::command::command;

struct Serve {
    child: Child,
    address: String,
}

impl Serve {
    fn start(home: &Path, more: &[&str]) -> Serve {
        let arguments = [&["--demo", "--device", "cpu", "serve", "--listen", "127.0.0.1:0"], more].concat();
        let mut command = command(home, &arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let (_, after) = line.split_once(" at http://").unwrap_or_else(|| panic!("no address: {line}"));
        let address = after.split("/v1").next().unwrap().to_owned();
        Serve { child, address }
    }

    /// Status line, the session's id, and the last message of the stream.
    fn post(&self, headers: &str, session: &str, message: &Value) -> (String, String, Value) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let body = message.to_string();
        let session = if session.is_empty() { String::new() } else { format!("mcp-session-id: {session}\r\n") };
        write!(
            stream,
            "POST /mcp HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: application/json\r\n\
             accept: application/json, text/event-stream\r\n{session}{headers}content-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        )
        .unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let status = reply.lines().next().unwrap_or_default().to_owned();
        let id = reply.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).unwrap_or_default().to_owned();
        let data = reply.lines().rev().find_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok());
        (status, id, data.unwrap_or_default())
    }

    /// A session of the protocol.
    fn initialize(&self, headers: &str) -> String {
        let info =
            json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let message = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": info});
        let (status, session, reply) = self.post(headers, "", &message);
        assert!(status.contains("200") && reply["result"]["serverInfo"]["name"] == "sala-chat", "{status} {reply}");
        let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert!(self.post(headers, &session, &initialized).0.contains("202"));
        session
    }

    fn call(&self, headers: &str, session: &str, name: &str, arguments: Value) -> Value {
        let params = json!({"name": name, "arguments": arguments});
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        let (status, _, mut reply) = self.post(headers, session, &message);
        assert!(status.contains("200"), "{status} {reply}");
        reply["result"].take()
    }

    /// A client may hold a stream of the server's own messages open.
    fn end(mut self, session: &str, headers: &str) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let host = &self.address;
        write!(
            stream,
            "GET /mcp HTTP/1.1\r\nhost: {host}\r\naccept: text/event-stream\r\nmcp-session-id: {session}\r\n{headers}\r\n"
        )
        .unwrap();
        let mut first = [0];
        stream.read_exact(&mut first).unwrap();
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
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

fn home() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("pets.txt"), "The cat is called Miro.\nThe dog is called Bella.\n").unwrap();
    home
}

#[test]
fn agents_use_the_servers_model_over_http() {
    let home = home();
    let serve = Serve::start(home.path(), &[]);
    let session = serve.initialize("");
    let call = |name, arguments| serve.call("", &session, name, arguments);
    let added = call("add_document", json!({"path": "pets.txt"}));
    assert_eq!(added["structuredContent"]["documents"][0]["name"], "pets.txt", "{added}");
    let question = json!({"documents": ["pets.txt"], "question": "What is the cat called?"});
    let answer = call("ask", question);
    assert!(answer["structuredContent"]["answer"].as_str().is_some_and(|text| text.contains("Miro")), "{answer}");
    assert!(answer["structuredContent"]["usage"]["read"].as_u64().unwrap() < 40, "{answer}");
    assert_eq!(call("ask", json!({"documents": ["dogs"], "question": "?"}))["isError"], true);
    // Hosts and pages are refused as for every other path.
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    assert!(serve.post("origin: http://evil.example\r\n", &session, &message).0.contains("403"));
    serve.end(&session, "");
}

#[test]
fn a_key_is_needed_and_then_folders_are_named() {
    let home = home();
    std::fs::write(home.path().join("key"), "a-key-of-sixteen-characters\n").unwrap();
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(home.path().join("key"), private).unwrap();
    let serve = Serve::start(home.path(), &["--key-file", "key"]);
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    assert!(serve.post("", "", &message).0.contains("401"));
    assert!(serve.post("authorization: Bearer wrong\r\n", "", &message).0.contains("401"));
    let key = "authorization: Bearer a-key-of-sixteen-characters\r\n";
    let session = serve.initialize(key);
    let refused = serve.call(key, &session, "add_document", json!({"path": "pets.txt"}));
    assert!(refused["content"][0]["text"].as_str().unwrap().contains("mcp.roots"), "{refused}");
    serve.end(&session, key);
    let serve = Serve::start(home.path(), &["--no-save"]);
    assert!(serve.post("", "", &message).0.contains("404"), "nothing is kept, so agents have no library");
}
