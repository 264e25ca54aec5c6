//! A remote engine: the commands and events of [`crate::engine`], answered by an OpenAI-style chat endpoint. The server
//! keeps no state for us, so a state is its text, in tokens of our own code (`codec`); their number is an estimate.
//!
//! `sse` turns bytes into events and `chat` these into text, `client` is the connection with its failures, `asking` and
//! `receive` are a question and its answer, `worker` is the thread. Server data is checked, limited, and cleared of the
//! key before it is shown.

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

pub use client::{address, in_the_open};
pub use codec::text_model;
pub use key::Key;
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
