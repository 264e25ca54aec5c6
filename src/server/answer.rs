//! The answer that is being written: tokens to text, stop texts, counts.

use super::Shared;
use super::ask::{Ask, Said, Whole, Wish};
use super::prompt::Turn;
use super::stops::Stops;
use crate::protocol::engine::{Steering, Token};
use crate::text::steer::Watched;
use crate::text::{Begin, ChatRole, Delta, PlainDecoder, StreamDecoder, TextError};
use crate::transcript::Finish;

/// How tokens become text.
enum Decoder {
    /// Thoughts apart.
    Chat(StreamDecoder),
    /// As it is.
    Raw(PlainDecoder),
}

/// An answer that is being written.
pub(super) struct Answer {
    /// Every token the engine reported.
    pub generated: Vec<Token>,
    decoder: Decoder,
    begin: Begin,
    stops: Stops,
    stopped_by: Option<String>,
    /// Tokens up to the one that completed a stop text.
    counted: u64,
    index: usize,
    /// What was told.
    said: Delta,
}

impl Answer {
    pub(super) fn new(shared: &Shared, ask: &Ask) -> Answer {
        let tokenizer = shared.renderer.model().tokenizer.clone();
        let begin = if ask.wish.raw { Begin::Answer } else { Begin::after_prompt(&ask.prompt.rendered.text) };
        let decoder = match ask.wish.raw {
            true => Decoder::Raw(PlainDecoder::new(tokenizer)),
            false => Decoder::Chat(StreamDecoder::new(tokenizer, begin)),
        };
        let stops = Stops::new(&ask.wish.stop);
        Answer {
            generated: Vec::new(),
            decoder,
            begin,
            stops,
            stopped_by: None,
            counted: 0,
            index: ask.given,
            said: Delta::default(),
        }
    }

    /// What watches it while it is drawn.
    pub(super) fn steering(&self, shared: &Shared, wish: &Wish) -> Result<Option<Steering>, TextError> {
        let watched = Watched { thought_tokens: wish.thinking_budget, loops: wish.stop_loops };
        watched.steering(&shared.renderer.model().tokenizer, self.begin, 0)
    }

    /// Whether a stop text ended it.
    pub(super) fn stopped_by_text(&self) -> bool {
        self.stopped_by.is_some()
    }

    /// Tokens of a round. False when it is to end here.
    pub(super) fn take(&mut self, shared: &Shared, ask: &Ask, tokens: &[Token]) -> bool {
        if self.generated.is_empty() && !tokens.is_empty() {
            shared.metrics.first_token(ask.asked.elapsed());
        }
        self.generated.extend_from_slice(tokens);
        let mut delta = Delta::default();
        for &token in tokens {
            if self.stopped_by.is_some() {
                break;
            }
            self.counted += 1;
            let more = match &mut self.decoder {
                Decoder::Chat(decoder) => decoder.push(token),
                Decoder::Raw(decoder) => Delta { thinking: String::new(), answer: decoder.push(token) },
            };
            self.add(&mut delta, more);
        }
        self.tell(ask, delta) && self.stopped_by.is_none()
    }

    fn add(&mut self, delta: &mut Delta, more: Delta) {
        delta.thinking.push_str(&more.thinking);
        if !more.answer.is_empty() {
            let (certain, stop) = self.stops.push(&more.answer);
            delta.answer.push_str(&certain);
            self.stopped_by = stop;
        }
    }

    fn tell(&mut self, ask: &Ask, delta: Delta) -> bool {
        let Delta { thinking, answer } = delta;
        self.said.thinking.push_str(&thinking);
        self.said.answer.push_str(&answer);
        (thinking.is_empty() && answer.is_empty()) || ask.to.tell(Said::Text { index: self.index, thinking, answer })
    }

    /// Nothing more comes: tells what was held back.
    pub(super) fn close(&mut self, ask: &Ask) {
        if self.stopped_by.is_none() {
            let last = match &mut self.decoder {
                Decoder::Chat(decoder) => decoder.finish(),
                Decoder::Raw(decoder) => Delta { thinking: String::new(), answer: decoder.finish() },
            };
            let mut delta = Delta::default();
            self.add(&mut delta, last);
            if self.stopped_by.is_none() {
                delta.answer.push_str(&self.stops.finish());
            }
            self.tell(ask, delta);
        }
    }

    /// Tells that it is complete.
    pub(super) fn finish(&mut self, ask: &Ask, finish: Finish) {
        let thought_tokens = match &self.decoder {
            Decoder::Chat(decoder) => decoder.thought_tokens(),
            Decoder::Raw(_) => 0,
        };
        let finish = if self.stopped_by.is_some() { Finish::Stop } else { finish };
        let stopped_by = self.stopped_by.clone();
        let whole = Whole { finish, stopped_by, completion_tokens: self.counted, thought_tokens };
        ask.to.tell(Said::Ended { index: self.index, whole });
    }

    /// The answer as a turn of the conversation.
    pub(super) fn turn(&self) -> Turn {
        Turn { thinking: self.said.thinking.clone(), ..Turn::new(ChatRole::Assistant, &self.said.answer) }
    }

    /// Tokens that count as the answer's.
    pub(super) fn tokens(&self) -> u64 {
        self.counted
    }
}
