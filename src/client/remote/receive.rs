//! Receives an answer: bytes to events, events to tokens of the code, and the fault of an interrupted one.

use std::time::{Duration, Instant};

use reqwest::Response;
use reqwest::header::CONTENT_TYPE;

use super::chat::{self, Chunk, Event, Finished, is_too_long};
use super::client::{Client, Fault, cause, line_in, sentence, unless};
use super::codec::Writer;
use super::halves::Halves;
use super::sse::Events;
use crate::core::counted;
use crate::engine::protocol::{Cancel, Ended, EngineEvent, Steer, Steered, Steering, Token, Usage};

const LEAST_SPAN: Duration = Duration::from_millis(50);
/// Longest answer with its thoughts, in bytes: millions of tokens, while servers give at most some hundred thousand.
const MOST_BYTES: usize = 16 << 20;
const STRANGE: &str = "sends something that is not part of a chat.";
const DROPPED: &str = "ended the connection in the middle of the answer";
/// Longest wait for usage counts after a complete answer.
const COUNTS: Duration = Duration::from_secs(2);

pub(super) struct Received<'a> {
    id: u64,
    client: &'a Client,
    report: &'a dyn Fn(EngineEvent),
    writer: Writer<'a>,
    steer: Option<Box<dyn Steer>>,
    halves: (Halves, Halves),
    pub(super) tokens: Vec<Token>,
    /// Pieces of text: most servers send one token in each.
    pub(super) pieces: u64,
    pub(super) tools: Vec<String>,
    pub(super) called: bool,
    pub(super) usage: Option<Usage>,
    ended: Option<(Ended, Instant)>,
    answer_bytes: usize,
    begun: Instant,
    /// Times of the first and the last tokens.
    span: Option<(Instant, Instant)>,
    /// Time of the last part of the answer: text, thoughts or a part of a tool call.
    progress: Option<Instant>,
    /// The answer so far, if it came in pieces.
    in_pieces: Option<String>,
    /// An event since the last part of the answer that is none, in its words.
    other: Option<String>,
    pub(super) over_budget: bool,
}

impl<'c> Received<'c> {
    pub(super) fn new(
        id: u64,
        client: &'c Client,
        writer: Writer<'c>,
        steering: Option<&Steering>,
        report: &'c dyn Fn(EngineEvent),
    ) -> Received<'c> {
        Received {
            id,
            client,
            report,
            writer,
            steer: steering.map(|s| (s.0)()),
            halves: Default::default(),
            tokens: Vec::new(),
            pieces: 0,
            tools: Vec::new(),
            called: false,
            usage: None,
            ended: None,
            answer_bytes: 0,
            begun: Instant::now(),
            span: None,
            progress: None,
            in_pieces: None,
            other: None,
            over_budget: false,
        }
    }

    /// Reads an answer to its end; all of it is here, also after a fault.
    pub(super) async fn receive(&mut self, response: Response, cancel: &Cancel) -> Result<Ended, Fault> {
        let ended = self.receive_all(response, cancel).await;
        let half = self.halves.1.finish();
        self.push("", &half)?;
        ended
    }

    async fn receive_all(&mut self, mut response: Response, cancel: &Cancel) -> Result<Ended, Fault> {
        let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let whole = kind.to_ascii_lowercase().starts_with("application/json");
        let (mut events, mut data, mut is_done) = (Events::default(), Vec::new(), false);
        self.begun = Instant::now();
        while !is_done {
            let Some(piece) = self.piece(&mut response, cancel, whole).await? else { break };
            let pushed = events.push(&piece, &mut data);
            pushed.map_err(|_| Fault::Failed(format!("{} sends a line without end.", self.client.shown)))?;
            for event in data.drain(..).filter(|data| !data.trim().is_empty()) {
                is_done = self.take(&event)? || matches!(self.ended, Some((Ended::Repeats, _)));
                if is_done {
                    break;
                }
            }
        }
        if !is_done {
            // A last line without its end counts unless it is cut JSON.
            let _ = events.finish(&mut data);
            for event in data.drain(..) {
                let is_cut = matches!(chat::event(&event), Event::Strange);
                is_done = is_done || (!is_cut && self.take(&event)?);
            }
        }
        match self.ended {
            Some((ended, _)) => Ok(ended),
            None if is_done && self.other.as_ref().is_none_or(|other| other.trim().is_empty()) => Ok(Ended::Stop),
            None if is_done || (self.other.is_some() && self.progress.is_none()) => Err(self.unfinished(STRANGE)),
            None => Err(self.unfinished(&format!("{DROPPED}."))),
        }
    }

    async fn piece(&self, response: &mut Response, cancel: &Cancel, whole: bool) -> Result<Option<Vec<u8>>, Fault> {
        let Some((left, late)) = self.time_left(whole) else { return Ok(None) };
        match unless(cancel, left, response.chunk()).await? {
            Some(Ok(piece)) => Ok(piece.map(|p| p.to_vec())),
            Some(Err(e)) if self.ended.is_some() => {
                tracing::debug!("after the end of an answer: {}", self.client.cleaned(&cause(&e)));
                Ok(None)
            }
            Some(Err(e)) => Err(self.unfinished(&format!("{DROPPED}: {}.", self.client.cleaned(&cause(&e))))),
            None if self.ended.is_some() => Ok(None),
            None => Err(self.failed(&late)),
        }
    }

    fn failed(&self, what: &str) -> Fault {
        Fault::Failed(format!("{} {what} {}", self.client.shown, self.kept()))
    }

    /// The fault for an answer without an end, in the server's words if it sent some.
    fn unfinished(&self, what: &str) -> Fault {
        let other = self.other.as_deref().unwrap_or_default();
        if self.progress.is_none() && other.trim_start().starts_with('<') {
            return self.failed("answers with a page, not with a chat. Is the address right? It ends in /v1.");
        }
        match line_in(other) {
            "" => self.failed(what),
            words => self.refused(words),
        }
    }

    fn refused(&self, message: &str) -> Fault {
        let mut halves = Halves::default();
        let message = halves.join(message) + &halves.finish();
        let line =
            format!("{} failed while it answered: ", self.client.shown) + &sentence(&self.client.cleaned(&message));
        match self.progress {
            Some(_) => Fault::Failed(format!("{line} {}", self.kept())),
            None if is_too_long(&message) => Fault::TooLong(line),
            None => Fault::Failed(line),
        }
    }

    fn kept(&self) -> String {
        match self.tokens.len() as u64 {
            0 => "None of the answer had arrived.".to_owned(),
            n => format!("The part that arrived (about {}) is kept; ask again for all of it.", counted(n, "token")),
        }
    }

    /// The timeout of the next bytes and its fault text; `None` once a complete answer has had its time for counts.
    fn time_left(&self, whole: bool) -> Option<(Duration, String)> {
        let patience = self.client.patience;
        if let Some((_, at)) = self.ended {
            let left = patience.stall.min(COUNTS).saturating_sub(at.elapsed());
            return (!left.is_zero()).then(|| (left, String::new()));
        }
        let whole_answer = (
            self.span.map_or(self.begun, |(first, _)| first),
            patience.answer,
            "has not ended its answer after",
            "answer_s",
        );
        let (from, limit, what, setting) = match self.progress {
            _ if whole => whole_answer,
            None => (self.begun, patience.first, "has not begun to answer within", "wait_s"),
            Some(at) if at + patience.stall <= whole_answer.0 + patience.answer => {
                (at, patience.stall, "has sent nothing for", "stall_s")
            }
            Some(_) => whole_answer,
        };
        let late = format!("{what} {} s (engine.{setting}).", limit.as_secs_f64());
        Some((limit.saturating_sub(from.elapsed()), late))
    }

    /// Milliseconds from the first tokens to the last; 0 if the span is too short to compute a speed from.
    pub(super) fn decode_ms(&self) -> f64 {
        let span = self.span.map_or(Duration::ZERO, |(first, last)| last.duration_since(first));
        if span < LEAST_SPAN { 0.0 } else { span.as_secs_f64() * 1000.0 }
    }

    /// Handles one event. True after the last.
    fn take(&mut self, data: &str) -> Result<bool, Fault> {
        let chunk = match chat::event(data) {
            Event::Done => return Ok(true),
            Event::Chunk(chunk) => chunk,
            Event::Failed(message) => return Err(self.refused(&message)),
            Event::Other(words) => {
                self.other = self.other.take().filter(|other| !line_in(other).is_empty()).or(Some(words));
                return Ok(false);
            }
            Event::Strange if self.ended.is_some() => {
                tracing::debug!("after its answer {} {STRANGE}", self.client.shown);
                return Ok(false);
            }
            Event::Strange => return Err(self.unfinished(STRANGE)),
        };
        let Chunk { mut thinking, mut text, whole, tools, in_call, finished, usage } = chunk;
        self.usage = usage.or(self.usage);
        if let Some(before) = self.in_pieces.as_ref().filter(|_| whole) {
            thinking.clear();
            text = text.strip_prefix(before).unwrap_or_default().to_owned();
        }
        if in_call || !thinking.is_empty() || !text.is_empty() {
            self.progress = Some(Instant::now());
            self.other = None;
        }
        self.called |= in_call;
        self.tools.extend(tools);
        let (thinking, text) = (self.halves.0.join(&thinking), self.halves.1.join(&text));
        self.push(&thinking, &text)?;
        if !whole && self.progress.is_some() {
            self.in_pieces.get_or_insert_default().push_str(&text);
        }
        match finished {
            None => {}
            Some(Finished::Stop) => self.end(Ended::Stop),
            Some(Finished::Length) => self.end(Ended::Length),
            Some(Finished::Broken(reason)) => {
                let reason = self.client.cleaned(&reason);
                return Err(self.failed(&format!("stopped the answer ({reason}).")));
            }
        }
        if self.answer_bytes > MOST_BYTES {
            self.end(Ended::Length);
            return Ok(true);
        }
        Ok(false)
    }

    fn end(&mut self, ended: Ended) {
        self.ended.get_or_insert((ended, Instant::now()));
    }

    fn push(&mut self, thinking: &str, text: &str) -> Result<(), Fault> {
        self.answer_bytes += thinking.len() + text.len();
        let tokens = self.writer.push(thinking, text).map_err(|e| Fault::Failed(e.to_string()))?;
        self.write(tokens);
        Ok(())
    }

    fn write(&mut self, mut tokens: Vec<Token>) {
        if tokens.is_empty() {
            return;
        }
        let now = Instant::now();
        self.span.get_or_insert((now, now)).1 = now;
        if let Some(steer) = &mut self.steer {
            for (at, token) in tokens.iter().enumerate() {
                match steer.drawn(*token, false) {
                    Steered::Take => {}
                    // The server samples, so its tokens cannot be replaced.
                    Steered::Instead(_) => self.over_budget = true,
                    Steered::Last => {
                        tokens.truncate(at + 1);
                        self.ended = Some((Ended::Repeats, now));
                        break;
                    }
                }
            }
        }
        self.tokens.extend_from_slice(&tokens);
        // The server's tokens are not those of the code, so pieces are counted; the first only marks the start.
        let seconds = self.decode_ms() / 1_000.0;
        let tokens_per_s = if seconds > 0.0 { self.pieces as f64 / seconds } else { 0.0 };
        self.pieces += 1;
        (self.report)(EngineEvent::Tokens {
            id: self.id,
            tokens,
            tokens_per_s,
            looked: Vec::new(),
            likely: Vec::new(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::codec::{Codec, text_model};
    use super::super::{Patience, RemoteOptions};
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_piece_counts_as_one_token_however_many_it_is_written_down_in() {
        let codec = Codec::new(text_model().unwrap().tokenizer).unwrap();
        let speed = Cell::new(0.0);
        let report = |event: EngineEvent| match event {
            EngineEvent::Tokens { tokens_per_s, .. } => speed.set(tokens_per_s),
            other => panic!("{other:?}"),
        };
        let options = RemoteOptions {
            url: "http://127.0.0.1:1/v1".into(),
            model: None,
            key: None,
            context: None,
            patience: Patience::default(),
            one_question: false,
        };
        let client = Client::new(&options).unwrap();
        let mut received = Received::new(1, &client, Writer::new(&codec, false), None, &report);
        let apart = Duration::from_millis(50);
        for _ in 0..3 {
            received.write(vec![7; 6]);
            std::thread::sleep(apart);
        }
        assert_eq!((received.pieces, received.tokens.len()), (3, 18));
        assert!(speed.get() > 0.0 && speed.get() <= 1.0 / apart.as_secs_f64(), "{}", speed.get());
    }
}
