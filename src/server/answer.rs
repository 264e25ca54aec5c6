//! The answer that is being written: tokens to text, stop texts, counts.

use super::Shared;
use super::ask::{Ask, Wish};
use super::calls::{Calls, Part};
use super::collected::Choice;
use super::said::{Said, Told, Usage, Whole};
use super::stops::Stops;
use crate::core::transcript::Finish;
use crate::engine::protocol::{Likely, Steering, Token};
use crate::text::{Begin, Delta, PlainDecoder, StreamDecoder, TextError};

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
    calls: Option<Calls>,
    /// It ends behind its first call.
    one_call: bool,
    /// A call in it has ended: not one that broke off with the answer.
    called: bool,
    /// What is certain and was not told yet.
    delta: Delta,
    told: Vec<Told>,
    /// Tokens that open the answer, or a thought in front of it.
    undecided: Vec<Told>,
    /// What was told.
    said: Choice,
    /// Somebody listens.
    heard: bool,
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
            index: ask.index,
            calls: ask.wish.calls.clone(),
            one_call: ask.wish.one_call,
            called: false,
            delta: Delta::default(),
            told: Vec::new(),
            undecided: Vec::new(),
            said: Choice::default(),
            heard: true,
        }
    }

    /// What watches it while it is drawn.
    pub(super) fn steering(&self, shared: &Shared, wish: &Wish) -> Result<Option<Steering>, TextError> {
        wish.watched().steering(&shared.renderer.model().tokenizer, self.begin, 0)
    }

    /// Whether a stop text ended it, or the one call that it may hold.
    pub(super) fn ended_itself(&self) -> bool {
        self.stopped_by.is_some() || self.is_enough()
    }

    /// Tokens of a round. False when it is to end here.
    pub(super) fn take(&mut self, shared: &Shared, ask: &Ask, tokens: &[Token], likely: Vec<Likely>) -> bool {
        if self.generated.is_empty() && !tokens.is_empty() {
            shared.metrics.first_token(ask.asked.elapsed());
        }
        self.generated.extend_from_slice(tokens);
        let mut likely = likely.into_iter();
        for &token in tokens {
            if self.ended_itself() {
                break;
            }
            self.counted += 1;
            let more = match &mut self.decoder {
                Decoder::Chat(decoder) => decoder.push(token),
                Decoder::Raw(decoder) => Delta { thinking: String::new(), answer: decoder.push(token) },
            };
            self.add(ask, more);
            if let Some(likely) = likely.next() {
                self.undecided.push(Told { token, likely, thought: false });
                let answer = match &self.decoder {
                    Decoder::Chat(decoder) => decoder.in_answer(),
                    Decoder::Raw(_) => Some(true),
                };
                self.decide(answer);
            }
        }
        self.tell(ask);
        self.heard && !self.ended_itself()
    }

    /// Tokens that were undecided are the answer's, or not, once that is known.
    fn decide(&mut self, answer: Option<bool>) {
        if let Some(answer) = answer {
            self.told.extend(self.undecided.drain(..).map(|told| Told { thought: !answer, ..told }));
        }
    }

    fn add(&mut self, ask: &Ask, more: Delta) {
        self.delta.thinking.push_str(&more.thinking);
        if !more.answer.is_empty() {
            let (certain, stop) = self.stops.push(&more.answer);
            self.stopped_by = stop;
            self.text(ask, &certain);
        }
    }

    /// More of the answer's text, in which there may be calls.
    fn text(&mut self, ask: &Ask, text: &str) {
        let parts = match &mut self.calls {
            None => return self.delta.answer.push_str(text),
            Some(calls) => calls.push(text),
        };
        self.parts(ask, parts);
    }

    fn parts(&mut self, ask: &Ask, parts: Vec<Part>) {
        for part in parts {
            match part {
                Part::Text(text) => self.delta.answer.push_str(&text),
                Part::Begun(id, name) => {
                    self.tell(ask);
                    self.say(ask, Said::Calling { index: self.index, id, name });
                }
                Part::Arguments(more) => self.say(ask, Said::Arguments { index: self.index, more }),
                Part::Call(call) => {
                    self.called = true;
                    self.say(ask, Said::Call { index: self.index, call });
                }
            }
            if self.is_enough() {
                return;
            }
        }
    }

    /// Tells what is certain and was not told yet.
    fn tell(&mut self, ask: &Ask) {
        let (Delta { thinking, answer }, tokens) = (std::mem::take(&mut self.delta), std::mem::take(&mut self.told));
        if !(thinking.is_empty() && answer.is_empty() && tokens.is_empty()) {
            self.said.add(&thinking, &answer);
            self.heard &= ask.to.tell(Said::Text { index: self.index, thinking, answer, tokens });
        }
    }

    fn say(&mut self, ask: &Ask, said: Said) {
        self.said.take(&said);
        self.heard &= ask.to.tell(said);
    }

    /// The one call that there may be is made: nothing after it counts.
    fn is_enough(&self) -> bool {
        self.one_call && self.called
    }

    /// Nothing more comes: tells what was held back.
    pub(super) fn close(&mut self, ask: &Ask) {
        if !self.ended_itself() {
            let last = match &mut self.decoder {
                Decoder::Chat(decoder) => decoder.finish(),
                Decoder::Raw(decoder) => Delta { thinking: String::new(), answer: decoder.finish() },
            };
            self.add(ask, last);
        }
        if !self.ended_itself() {
            let held = self.stops.finish();
            self.text(ask, &held);
        }
        if !self.is_enough() {
            let held = self.calls.as_mut().map(Calls::finish).unwrap_or_default();
            self.parts(ask, held);
            // A call that the end of the answer ended did not end the answer.
            self.called = false;
        }
        self.decide(Some(true));
        self.tell(ask);
    }

    /// Tells that it is complete.
    pub(super) fn finish(&mut self, ask: &Ask, finish: Finish, usage: Usage) {
        let finish = if self.ended_itself() { Finish::Stop } else { finish };
        let stopped_by = self.stopped_by.clone();
        let calls = self.said.calls().filter(|call| !call.is_cut()).count();
        let whole = Whole { finish, stopped_by, usage, calls };
        ask.to.tell(Said::Ended { index: self.index, whole });
    }

    /// What was told of it.
    pub(super) fn said(&self) -> &Choice {
        &self.said
    }

    /// Tokens of thoughts among them.
    pub(super) fn thought_tokens(&self) -> u64 {
        match &self.decoder {
            Decoder::Chat(decoder) => decoder.thought_tokens(),
            Decoder::Raw(_) => 0,
        }
    }

    /// Tokens that count as the answer's.
    pub(super) fn tokens(&self) -> u64 {
        self.counted
    }
}
