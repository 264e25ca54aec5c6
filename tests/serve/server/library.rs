//! Documents of the terminal's library, named by their ids.

use std::path::Path;

use serde_json::{Value, json};

use crate::server::client::{Running, Setup};
use crate::server::support::{self, Chat, digest_answers, store, text_model};
use crate::server::{CHAT, with};

/// A terminal reads a document; then a server begins that can see its library.
fn server_with_library(home: &Path, system: Option<&str>) -> Running {
    let data = home.join("data");
    let file = home.join("notes.txt");
    std::fs::write(&file, "The tower was built in 1911 by nobody.\n".repeat(60)).unwrap();
    let system = system.map(str::to_owned);
    let mut chat = Chat::new(home, support::Setup { system: system.clone(), ..support::Setup::default() });
    chat.load(file.to_str().unwrap());
    chat.on_disk();
    chat.quit();
    let script = digest_answers(text_model(None));
    let setup = Setup { script, library: Some(store(&data)), system, ..Setup::default() };
    Running::start(&home.join("requests"), setup)
}

/// Tokens of the prompt, and those that were not read.
fn counts(reply: &Value) -> (u64, u64) {
    let usage = &reply["usage"];
    (usage["prompt_tokens"].as_u64().unwrap(), usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap())
}

fn about(id: &Value, question: &str) -> Value {
    let file = json!({ "type": "file", "file": { "file_id": id } });
    json!({ "messages": [{ "role": "user", "content": [file, { "type": "text", "text": question }] }], "temperature": 0 })
}

#[test]
fn a_document_is_named_by_its_id_and_not_read_again() {
    for system in [None, Some("You are the keeper of a tower.")] {
        let home = tempfile::tempdir().unwrap();
        let server = server_with_library(home.path(), system);
        let listed = server.get("/v1/files").json();
        let file = &listed["data"][0];
        assert_eq!((&file["filename"], &file["kept"]), (&json!("notes.txt"), &json!(true)), "{listed}");
        // What OpenAI's fields mean, as far as it is known: 60 lines of 39 bytes with the words around them.
        let number = |field: &str| file[field].as_u64().unwrap_or_else(|| panic!("{field}: {file}"));
        assert!((2_340..2_340 + 400).contains(&number("bytes")), "{file}");
        assert!(
            number("state_bytes") > 0 && number("used_at") > 1_700_000_000 && file["created_at"] == file["used_at"],
            "{file}"
        );
        let id = &file["id"];
        let path = format!("/v1/files/{}", id.as_str().unwrap());
        assert_eq!(server.get(&path).json(), *file);
        // Anthropic's form has a date, and other names.
        let get = |path: &str| {
            let head = "host: localhost\r\nanthropic-version: 2023-06-01\r\nconnection: close";
            server.raw(&format!("GET {path} HTTP/1.1\r\n{head}\r\n\r\n")).json()
        };
        let of_anthropic = get(&path);
        assert!(of_anthropic["created_at"].as_str().is_some_and(|at| at.ends_with('Z')), "{of_anthropic}");
        let names = ["type", "mime_type", "size_bytes"].map(|name| of_anthropic[name].clone());
        assert_eq!(names, [json!("file"), json!("text/plain"), file["bytes"].clone()]);
        let listed = get("/v1/files");
        assert_eq!(listed["data"][0], of_anthropic);
        let first = server.post(CHAT, &about(id, "When?")).json();
        let (prompt, cached) = counts(&first);
        assert!(cached > 500 && prompt - cached < 60, "{cached} of {prompt}, system text {system:?}");
        // Whatever was answered meanwhile, and side by side.
        let (prompt, cached) = counts(&server.post(CHAT, &about(id, "By whom?")).json());
        assert!(cached > 500 && prompt - cached < 60, "{cached} of {prompt}");
        // The same text whichever way its state came.
        let answer = |reply: &Value| reply["choices"][0]["message"]["content"].clone();
        assert_eq!(answer(&server.post(CHAT, &about(id, "When?")).json()), answer(&first));
        server.end();
    }
}

#[test]
fn every_api_accepts_documents_and_continues_their_answers() {
    let home = tempfile::tempdir().unwrap();
    let server = server_with_library(home.path(), None);
    let id = server.get("/v1/files").json()["data"][0]["id"].clone();
    let input = json!([{ "role": "user", "content": [
        { "type": "input_file", "file_id": id }, { "type": "input_text", "text": "When?" },
    ] }]);
    let first = server.post("/v1/responses", &json!({ "input": input, "temperature": 0 })).json();
    assert!(first["usage"]["input_tokens_details"]["cached_tokens"].as_u64().unwrap() > 500, "{first}");
    let more = json!({ "input": "And then?", "previous_response_id": first["id"], "temperature": 0 });
    let second = server.post("/v1/responses", &more).json();
    let cached = &second["usage"]["input_tokens_details"]["cached_tokens"];
    assert!(cached.as_u64() > first["usage"]["input_tokens"].as_u64(), "{second}");
    let message = json!({ "max_tokens": 50, "temperature": 0, "messages": [{ "role": "user", "content": [
        { "type": "document", "source": { "type": "file", "file_id": id } }, { "type": "text", "text": "When?" },
    ] }] });
    let third = server.post("/v1/messages", &message).json();
    assert!(third["usage"]["cache_read_input_tokens"].as_u64().unwrap() > 500, "{third}");

    let missing = server.post(CHAT, &about(&json!("file-nothing"), "When?"));
    assert_eq!(missing.error(), (404, "file_not_found".into(), "messages".into()));
    let nothing = with(about(&Value::Null, "When?"), "n", 1.into());
    assert_eq!(server.post(CHAT, &nothing).error().2, "messages[0].content[0].file.file_id");
    assert_eq!(server.get("/v1/files/file-nothing").error().0, 404);
    server.end();
    // What it keeps of its own holds: it begins without what was built on the library.
    let server = Running::start(&home.path().join("requests"), Setup::default());
    let again = server.get(&format!("/v1/responses/{}", second["id"].as_str().unwrap()));
    assert_eq!(again.json(), second);
    server.end();
}
