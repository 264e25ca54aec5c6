//! An answer as it comes: bytes to events, events to tokens of the code, and the words for one that breaks off.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use reqwest::Response;

use super::chat::{self, Chunk, Event, Finished};
use super::client::{Answering, Client, Fault, cause, unless};
use super::codec::Codec;
use super::sse::Events;
use super::write::Writer;
use crate::core::grouped;
use crate::engine::protocol::{Cancel, Ended, EngineEvent, Steer, Steered, Steering, Token, Usage};

/// Over which the speed is told.
const WINDOW: Duration = Duration::from_secs(2);
/// Longest answer that comes as one object, in bytes.
const WHOLE: usize = 64 << 20;
/// Longest answer with its thoughts, in bytes: millions of tokens, where servers give at most some hundred thousand.
const ENDLESS: usize = 16 << 20;
/// Longest wait for what comes behind a complete answer.
const COUNTS: Duration = Duration::from_secs(2);

/// An answer that is being received.
pub(super) struct Received<'a> {
    id: u64,
    writer: Writer<'a>,
    steer: Option<Box<dyn Steer>>,
    pub(super) tokens: Vec<Token>,
    /// Pieces it came in: most servers send each of their tokens alone.
    pub(super) pieces: u64,
    pub(super) usage: Option<Usage>,
    ended: Option<Ended>,
    /// When it was complete.
    ended_at: Option<Instant>,
    /// Bytes of the answer and its thoughts.
    bytes: usize,
    pub(super) first: Option<Instant>,
    /// When tokens came last.
    last: Option<Instant>,
    /// A budget for thoughts was spent.
    pub(super) over_budget: bool,
    /// When the last pieces came.
    recent: VecDeque<Instant>,
}

/// A line that another sentence follows.
pub(super) fn sentence(line: &str) -> String {
    if line.ends_with(['.', '?', '!', '…']) { line.to_owned() } else { format!("{line}.") }
}

pub(super) fn line_of(fault: Fault) -> Option<String> {
    match fault {
        Fault::Stopped => None,
        Fault::Refused { line, .. } | Fault::Failed(line) => Some(line),
    }
}

/// Reads an answer to its end. The whole of it is in `received` whatever becomes of it.
pub(super) async fn receive(
    client: &Client,
    answering: Answering,
    cancel: &Cancel,
    received: &mut Received<'_>,
    tell: &dyn Fn(EngineEvent),
) -> Result<Ended, Fault> {
    let Answering { mut response, whole } = answering;
    let (mut events, mut bytes, mut data) = (Events::default(), Vec::new(), Vec::new());
    let mut told_done = false;
    while !told_done {
        let Some(piece) = piece(client, &mut response, cancel, received).await? else { break };
        if whole {
            bytes.extend_from_slice(&piece);
            if bytes.len() > WHOLE {
                return Err(Fault::Failed(format!("{} sends an answer without end.", client.shown)));
            }
            continue;
        }
        let pushed = events.push(&piece, &mut data);
        pushed.map_err(|_| Fault::Failed(format!("{} sends a line without end.", client.shown)))?;
        for event in data.drain(..).filter(|data| !data.trim().is_empty()) {
            told_done |= received.take(client, &event, tell)?;
            if received.ended == Some(Ended::Repeats) {
                return Ok(Ended::Repeats);
            }
        }
    }
    if whole {
        received.take(client, &String::from_utf8_lossy(&bytes), tell)?;
    } else if !told_done {
        // A line that never ended counts only if it says something: what was cut off in the middle does not.
        let _ = events.finish(&mut data);
        for event in data.drain(..) {
            let cut = matches!(chat::event(&event), Event::Strange);
            told_done |= !cut && received.take(client, &event, tell)?;
        }
    }
    match received.ended {
        Some(ended) => Ok(ended),
        None if told_done => Ok(Ended::Stop),
        None => Err(dropped(client, received, "")),
    }
}

/// The next bytes; `None` at the end.
async fn piece(
    client: &Client,
    response: &mut Response,
    cancel: &Cancel,
    received: &Received<'_>,
) -> Result<Option<Vec<u8>>, Fault> {
    // Until the first word the server may be reading, whatever it has sent.
    let patience = client.patience;
    let limit = match (received.ended_at, received.first) {
        // It is complete: only the counts may still come, and whatever comes instead gives them no more time.
        (Some(at), _) => patience.stall.min(COUNTS).saturating_sub(at.elapsed()),
        (None, Some(_)) => patience.stall,
        (None, None) => patience.first,
    };
    if limit.is_zero() {
        return Ok(None);
    }
    match unless(cancel, limit, response.chunk()).await? {
        Some(Ok(piece)) => Ok(piece.map(|p| p.to_vec())),
        Some(Err(e)) if received.ended.is_some() => {
            tracing::debug!("behind the end of an answer: {}", client.cleaned(&cause(&e)));
            Ok(None)
        }
        Some(Err(e)) => Err(dropped(client, received, &format!(": {}", client.cleaned(&cause(&e))))),
        None if received.ended.is_some() => Ok(None),
        None => {
            let what = format!("{} has sent nothing for {} s (engine.stall_s).", client.shown, limit.as_secs_f64());
            Err(Fault::Failed(format!("{what} {}", kept(received))))
        }
    }
}

fn dropped(client: &Client, received: &Received<'_>, why: &str) -> Fault {
    Fault::Failed(format!("{} ended the connection in the middle of the answer{why}. {}", client.shown, kept(received)))
}

fn kept(received: &Received<'_>) -> String {
    match received.tokens.len() as u64 {
        0 => "Nothing of the answer had come.".to_owned(),
        n => format!("What had come (about {} tokens) is kept; ask again for a whole one.", grouped(n)),
    }
}

impl<'c> Received<'c> {
    /// Of one job.
    pub(super) fn new(id: u64, codec: &'c Codec, in_thought: bool, steering: Option<&Steering>) -> Received<'c> {
        Received {
            id,
            writer: Writer::new(codec, in_thought),
            steer: steering.map(|s| (s.0)()),
            tokens: Vec::new(),
            pieces: 0,
            usage: None,
            ended: None,
            ended_at: None,
            bytes: 0,
            first: None,
            last: None,
            over_budget: false,
            recent: VecDeque::new(),
        }
    }

    /// Milliseconds from the first words to the last: 0 where all came at once, which says nothing of a speed.
    pub(super) fn decode_ms(&self) -> f64 {
        self.first.zip(self.last).map_or(0.0, |(first, last)| last.duration_since(first).as_secs_f64() * 1000.0)
    }

    /// Takes what one event says. True when it was the last.
    fn take(&mut self, client: &Client, data: &str, tell: &dyn Fn(EngineEvent)) -> Result<bool, Fault> {
        let chunk = match chat::event(data) {
            Event::Done => return Ok(true),
            Event::Chunk(chunk) => chunk,
            Event::Failed(said) => {
                let words = client.cleaned(&said);
                return Err(Fault::Failed(format!(
                    "{} failed while it answered: {} {}",
                    client.shown,
                    sentence(&words),
                    kept(self)
                )));
            }
            Event::Strange if self.ended.is_some() => {
                tracing::debug!("behind the end of an answer: {} sends no part of a chat", client.shown);
                return Ok(false);
            }
            Event::Strange => {
                let what = format!("{} sends something that is no part of a chat.", client.shown);
                return Err(Fault::Failed(format!("{what} {}", kept(self))));
            }
        };
        let Chunk { thinking, text, finished, usage } = chunk;
        self.usage = usage.or(self.usage);
        let tokens = self.writer.push(&thinking, &text).map_err(|e| Fault::Failed(e.to_string()))?;
        self.write(tokens, tell);
        self.bytes += thinking.len() + text.len();
        match finished {
            None => {}
            Some(Finished::Stop) => self.ended = self.ended.or(Some(Ended::Stop)),
            Some(Finished::Length) => self.ended = self.ended.or(Some(Ended::Length)),
            Some(Finished::Filtered) => {
                return Err(Fault::Failed(format!(
                    "{} does not let the answer go on (content filter). {}",
                    client.shown,
                    kept(self)
                )));
            }
        }
        if self.ended.is_some() {
            self.ended_at.get_or_insert_with(Instant::now);
        }
        if self.bytes > ENDLESS {
            // Whatever it was told, it does not end by itself.
            self.ended = self.ended.or(Some(Ended::Length));
            return Ok(true);
        }
        Ok(false)
    }

    fn write(&mut self, tokens: Vec<Token>, tell: &dyn Fn(EngineEvent)) {
        if tokens.is_empty() {
            return;
        }
        let now = Instant::now();
        self.first.get_or_insert(now);
        self.last = Some(now);
        let mut upto = tokens.len();
        if let Some(steer) = &mut self.steer {
            for (at, token) in tokens.iter().enumerate() {
                match steer.drawn(*token, false) {
                    Steered::Take => {}
                    // It is drawn elsewhere.
                    Steered::Instead(_) => self.over_budget = true,
                    Steered::Last => {
                        upto = at + 1;
                        self.ended = Some(Ended::Repeats);
                        break;
                    }
                }
            }
        }
        let mut tokens = tokens;
        tokens.truncate(upto);
        self.tokens.extend_from_slice(&tokens);
        // Tokens of the code here are others than the server's.
        self.pieces += 1;
        self.recent.push_back(now);
        while self.recent.front().is_some_and(|at| now.duration_since(*at) > WINDOW) {
            self.recent.pop_front();
        }
        let since = self.recent.front().map_or(0.0, |at| now.duration_since(*at).as_secs_f64());
        // The first of the window is where its time begins.
        let tokens_per_s = if since > 0.0 { (self.recent.len() - 1) as f64 / since } else { 0.0 };
        tell(EngineEvent::Tokens { id: self.id, tokens, tokens_per_s, looked: Vec::new(), likely: Vec::new() });
    }
}

#[cfg(test)]
mod tests {
    use super::super::codec::text_model;
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_piece_counts_as_one_token_however_many_it_is_written_down_in() {
        let codec = Codec::new(text_model().unwrap().tokenizer).unwrap();
        let mut received = Received::new(1, &codec, false, None);
        let speed = Cell::new(0.0);
        let tell = |event: EngineEvent| match event {
            EngineEvent::Tokens { tokens_per_s, .. } => speed.set(tokens_per_s),
            other => panic!("{other:?}"),
        };
        let apart = Duration::from_millis(50);
        for _ in 0..3 {
            received.write(vec![7; 6], &tell);
            std::thread::sleep(apart);
        }
        assert_eq!((received.pieces, received.tokens.len()), (3, 18));
        assert!(speed.get() > 0.0 && speed.get() <= 1.0 / apart.as_secs_f64(), "{}", speed.get());
    }
}
