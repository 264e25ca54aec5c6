//! A chat endpoint on this machine that does what servers do on bad days. Written for the tests: raw sockets, so that every
//! byte and every pause is theirs to choose.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// What one request is answered with.
#[derive(Clone, Debug)]
pub enum Reply {
    /// These bytes, pause by pause, then the end of the connection.
    Pieces(Vec<Vec<u8>>, Duration),
    /// These bytes, then nothing until the client disconnects.
    Stall(Vec<u8>),
    /// The connection ends without a word.
    HangUp,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Seen {
    pub line: String,
    pub headers: String,
    pub body: Value,
    pub at: Instant,
}

/// See the file.
pub struct ChatServer {
    pub url: String,
    pub replies: Arc<Mutex<VecDeque<Reply>>>,
    pub seen: Arc<Mutex<Vec<Seen>>>,
    /// When the client left an answer that had stalled.
    pub left: Arc<Mutex<Vec<Instant>>>,
}

/// The bytes of an answer with a body of known length.
pub fn reply(status: &str, headers: &str, body: &str) -> Reply {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}");
    Reply::Pieces(vec![head.into_bytes()], Duration::ZERO)
}

/// A refusal as most servers write it.
pub fn refusal(status: &str, message: &str) -> Reply {
    let body = json!({"error": {"message": message, "type": "test"}}).to_string();
    reply(status, "content-type: application/json\r\n", &body)
}

/// The head of a stream that ends with the connection.
pub const STREAM: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nconnection: close\r\n\r\n";

/// Some events of a stream.
pub fn events(events: &[Value]) -> Vec<u8> {
    events.iter().flat_map(|e| format!("data: {e}\n\n").into_bytes()).collect()
}

/// One piece of an answer.
pub fn delta(field: &str, text: &str) -> Value {
    json!({"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {field: text}, "finish_reason": null}]})
}

/// The end of an answer, and its usage.
pub fn end(reason: &str) -> Value {
    json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
}

/// Usage as servers send it after the last piece.
pub fn usage(prompt: u64, cached: u64, completion: u64) -> Value {
    json!({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion,
        "total_tokens": prompt + completion, "prompt_tokens_details": {"cached_tokens": cached}}})
}

/// A whole stream of an answer.
pub fn stream(text: &str) -> Vec<u8> {
    let mut bytes = STREAM.as_bytes().to_vec();
    let words = text.split_inclusive(' ').map(|w| delta("content", w));
    bytes.extend(events(&words.chain([end("stop"), usage(100, 60, 5)]).collect::<Vec<_>>()));
    bytes.extend_from_slice(b"data: [DONE]\n\n");
    bytes
}

/// The same as a reply.
pub fn answer(text: &str) -> Reply {
    Reply::Pieces(vec![stream(text)], Duration::ZERO)
}

impl ChatServer {
    /// Starts it with a list of one model, `tiny`.
    pub fn start(replies: Vec<Reply>) -> ChatServer {
        ChatServer::with_models(json!({"object": "list", "data": [{"id": "tiny", "max_model_len": 4096}]}), replies)
    }

    /// Starts it with another answer to `/v1/models`.
    pub fn with_models(models: Value, replies: Vec<Reply>) -> ChatServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let server = ChatServer {
            url,
            replies: Arc::new(Mutex::new(replies.into())),
            seen: Arc::default(),
            left: Arc::default(),
        };
        let (replies, seen, left) = (server.replies.clone(), server.seen.clone(), server.left.clone());
        let models = Arc::new(reply("200 OK", "content-type: application/json\r\n", &models.to_string()));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (replies, seen, left, models) = (replies.clone(), seen.clone(), left.clone(), models.clone());
                std::thread::spawn(move || drop(serve(stream, &replies, &seen, &left, &models)));
            }
        });
        server
    }

    /// Bodies of the questions so far.
    pub fn requests(&self) -> Vec<Value> {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|s| s.line.starts_with("POST")).map(|s| s.body.clone()).collect()
    }
}

fn serve(
    mut stream: TcpStream,
    replies: &Mutex<VecDeque<Reply>>,
    seen: &Mutex<Vec<Seen>>,
    left: &Mutex<Vec<Instant>>,
    models: &Reply,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut line, mut headers) = (String::new(), String::new());
    reader.read_line(&mut line)?;
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? == 0 || header.trim().is_empty() {
            break;
        }
        headers.push_str(&header);
    }
    let length = headers.lines().find_map(|h| h.to_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body)?;
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let asks = line.starts_with("POST");
    seen.lock().unwrap().push(Seen { line, headers, body, at: Instant::now() });
    let next = || replies.lock().unwrap().pop_front().unwrap_or_else(|| refusal("500 Odd", "no reply is left"));
    match if asks { next() } else { models.clone() } {
        Reply::HangUp => Ok(()),
        Reply::Pieces(pieces, pause) => {
            for piece in pieces {
                stream.write_all(&piece)?;
                stream.flush()?;
                std::thread::sleep(pause);
            }
            Ok(())
        }
        Reply::Stall(bytes) => {
            stream.write_all(&bytes)?;
            stream.flush()?;
            // The client going away reads as an end or an error.
            let _ = stream.read(&mut [0; 1]);
            left.lock().unwrap().push(Instant::now());
            Ok(())
        }
    }
}
