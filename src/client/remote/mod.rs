//! A remote engine: the same commands and events as [`crate::engine`], answered by an OpenAI-style chat endpoint.
//!
//! The server keeps no state for us, so the live state of a remote engine is the text alone, and a path can always be
//! restored from the history of [`crate::engine::protocol::Command::Restore`]. Tokens are a code for text here
//! (`codec`), which the server never sees; their number is an estimate until the server reports its own.
//!
//! `sse` turns bytes into events and `chat` these into text (both pure), `client` is the connection with its failures
//! and their words, `asking` and `receive` are a question and its answer, and `worker` is the thread that serves the
//! runtime. All server data is checked before it is shown, limited before it is kept, and cleared of the key before
//! either.

mod asking;
mod chat;
mod client;
mod codec;
mod halves;
mod key;
mod receive;
mod sse;
mod worker;

use std::time::Duration;

pub use client::{address, http, in_the_open};
pub use codec::text_model;
pub use key::Key;
pub use sse::{Events, TooLong};
pub use worker::{probe, spawn};

#[derive(Clone, Debug)]
pub struct RemoteOptions {
    pub url: String,
    pub model: Option<String>,
    pub key: Option<Key>,
    /// Context length in tokens, for a server that does not report it.
    pub context: Option<u64>,
    pub patience: Patience,
    /// A question follows at once, so its own failure reports a server that does not answer.
    pub one_question: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    pub connect: Duration,
    /// Until the first text of an answer: the server prefills the conversation first.
    pub first: Duration,
    /// Between two pieces of text. Comments and empty deltas do not count.
    pub stall: Duration,
    /// From the first text of an answer to its end.
    pub answer: Duration,
    /// The wait before the first retry; each further one takes twice as long.
    pub retry: Duration,
    pub tries: u32,
}

impl Default for Patience {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        let (first, stall, answer) = (seconds(900), seconds(60), seconds(7200));
        Patience { connect: seconds(10), first, stall, answer, retry: seconds(1), tries: 4 }
    }
}
