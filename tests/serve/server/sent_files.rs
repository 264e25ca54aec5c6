//! Files that are part of a request: PDFs in every API's form, and what cannot be read of them.

use std::io::Write;
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sala_chat::text::Specials;
use serde_json::{Value, json};

use crate::server::CHAT;
use crate::server::client::{Reply, Running, Setup};
use crate::server::support::text_model;

const READABLE: &str = "BT /F1 12 Tf 72 720 Td (The rent is 500 euros.) Tj ET";
const DAMAGED: &str = "BT /F1 12 Tf 72 720 Td (not (closed) Tj ET";

/// A PDF with one page for each content, in base64.
fn pdf(pages: &[&str]) -> String {
    let kids: Vec<String> = (0..pages.len()).map(|i| format!("{} 0 R", 4 + 2 * i)).collect();
    let mut objects = vec![
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        format!("<< /Type /Pages /Kids [{}] /Count {} >>", kids.join(" "), pages.len()),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>".to_owned(),
    ];
    for (i, content) in pages.iter().enumerate() {
        let resources = "/Resources << /Font << /F1 3 0 R >> >>";
        let contents = 5 + 2 * i;
        objects.push(format!(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {contents} 0 R {resources} >>"
        ));
        objects.push(format!("<< /Length {} >>\nstream\n{content}\nendstream", content.len()));
    }
    let mut file = "%PDF-1.4\n".to_owned();
    let mut table = format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1);
    for (i, object) in objects.iter().enumerate() {
        table.push_str(&format!("{:010} 00000 n \n", file.len()));
        file.push_str(&format!("{} 0 obj\n{object}\nendobj\n", i + 1));
    }
    let start = file.len();
    let trailer = format!("trailer << /Size {} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n", objects.len() + 1);
    STANDARD.encode(file + &table + &trailer)
}

/// A question about a file with this data, in the form of each API, and the field of the data.
fn questions(name: &str, data: &str) -> [(&'static str, Value, &'static str); 3] {
    let url = format!("data:application/pdf;name={name};base64,{data}");
    let user = |content: Value| json!([{ "role": "user", "content": content }]);
    let chat = json!([{ "type": "file", "file": { "filename": name, "file_data": url } },
                      { "type": "text", "text": "What is the rent?" }]);
    let input = json!([{ "type": "input_file", "filename": name, "file_data": url },
                       { "type": "input_text", "text": "What is the rent?" }]);
    let source = json!({ "type": "base64", "media_type": "application/pdf", "data": data });
    let message = json!([{ "type": "document", "title": name, "source": source },
                         { "type": "text", "text": "What is the rent?" }]);
    [
        (CHAT, json!({ "messages": user(chat) }), "messages[0].content[0].file.file_data"),
        ("/v1/responses", json!({ "input": user(input) }), "input[0].content[0].file_data"),
        ("/v1/messages", json!({ "messages": user(message), "max_tokens": 20 }), "messages[0].content[0].source.data"),
    ]
}

fn refused(reply: &Reply, field: &str, why: &str) {
    assert_eq!(reply.status, 400, "{}", reply.body);
    let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains(field) && message.contains(why), "{field}, {why}: {message}");
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_pdf_is_read_as_text_and_its_unreadable_pages_are_logged() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let tokenizer = text_model(None).tokenizer;
    for (i, (path, body, _)) in questions("lease.pdf", &pdf(&[READABLE, DAMAGED])).into_iter().enumerate() {
        let reply = server.post(path, &body);
        assert_eq!(reply.status, 200, "{path}: {}", reply.body);
        assert!(!reply.head.contains("x-sala-ignored"), "{path}: {}", reply.head);
        let (read, _) = server.log.recv().unwrap();
        let text = tokenizer.decode(&read, Specials::Show);
        // The later ones have the same prompt: its state is kept.
        assert!(i > 0 || text.contains("lease.pdf") && text.contains("The rent is 500 euros."), "{path}: {text}");
    }
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert_eq!(log.matches("\"lease.pdf\", sent as a PDF: page 2 could not be read").count(), 3, "{log}");
    server.end();
}

#[test]
fn a_pdf_without_text_is_refused_with_its_field() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    for (data, why) in [
        (pdf(&["", ""]), "scan.pdf has 2 pages, and no text on them"),
        (pdf(&[DAMAGED]), "scan.pdf cannot be read: it is damaged"),
        (STANDARD.encode("%PDF-1.4 nothing"), "scan.pdf cannot be read: it is damaged"),
        ("%".to_owned(), "scan.pdf is not base64"),
        (STANDARD.encode("\u{89}PNG\r\n\0\0"), "scan.pdf cannot be read: it is no PDF"),
        (STANDARD.encode("hello"), "scan.pdf cannot be read: it is no PDF"),
    ] {
        for (path, body, field) in questions("scan.pdf", &data) {
            refused(&server.post(path, &body), field, why);
        }
    }
    let part = json!({ "type": "file", "file": { "filename": "a.pdf", "file_data": pdf(&[READABLE]) } });
    let body = json!({ "messages": [{ "role": "user", "content": [part] }] });
    refused(&server.post(CHAT, &body), "messages[0].content[0].file.file_data", "must be a data URL");
    server.end();
}

#[test]
fn a_line_of_a_document_is_never_taken_for_a_billing_line() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let line = |of: &str| json!([{ "type": "text", "text": format!("x-anthropic-billing-header: {of}") }]);
    let source = json!({ "type": "content", "content": line("a document") });
    let parts = json!([
        { "type": "document", "source": source },
        { "type": "search_result", "source": "s", "title": "t", "content": line("a result") },
    ]);
    let message = json!([{ "role": "user", "content": parts }]);
    let body = json!({ "system": line("the system"), "messages": message, "max_tokens": 20 });
    let reply = server.post("/v1/messages", &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let text = text_model(None).tokenizer.decode(&server.log.recv().unwrap().0, Specials::Show);
    assert!(text.contains("header: a document") && text.contains("header: a result"), "{text}");
    assert!(!text.contains("the system"), "{text}");
    server.end();
}
