//! The answer in decode: tokens to text, stop texts, counts.

use super::Shared;
use super::ask::{Ask, Wish};
use super::calls::{Calls, Part};
use super::collected::Choice;
use super::said::{Said, Told, Usage, Whole};
use super::stops::Stops;
use crate::core::transcript::Finish;
use crate::engine::protocol::{Likely, Steering, Token};
use crate::text::{Begin, Delta, PlainDecoder, StreamDecoder, TextError};

enum Decoder {
    /// Separates thoughts.
    Chat(StreamDecoder),
    /// Unchanged text.
    Raw(PlainDecoder),
}

pub(super) struct Answer {
    pub generated: Vec<Token>,
    decoder: Decoder,
    begin: Begin,
    stops: Stops,
    stopped_by: Option<String>,
    /// Tokens up to the one that completed a stop text.
    counted: u64,
    index: usize,
    calls: Option<Calls>,
    one_call: bool,
    /// A call has ended, other than one that broke off with the answer.
    called: bool,
    /// Certain text that is not sent yet.
    delta: Delta,
    told: Vec<Told>,
    /// Tokens that open the answer, or a thought in front of it.
    undecided: Vec<Told>,
    /// The sent part of the answer.
    said: Choice,
    /// The client is connected.
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

    pub(super) fn steering(&self, shared: &Shared, wish: &Wish) -> Result<Option<Steering>, TextError> {
        wish.watched().steering(&shared.renderer.model().tokenizer, self.begin, 0)
    }

    /// Whether a stop text ended it, or its only allowed call.
    pub(super) fn ended_itself(&self) -> bool {
        self.stopped_by.is_some() || self.is_enough()
    }

    /// Takes the tokens of a round; false if the answer ends here.
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

    /// Assigns the undecided tokens to the answer or to a thought.
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

    /// Sends the certain text.
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

    /// The only allowed call is complete: later text does not count.
    fn is_enough(&self) -> bool {
        self.one_call && self.called
    }

    /// Ends the text, and sends the held part.
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
            // The end of the answer ended this call, so the call did not end the answer.
            self.called = false;
        }
        self.decide(Some(true));
        self.tell(ask);
    }

    pub(super) fn finish(&mut self, ask: &Ask, finish: Finish, usage: Usage) {
        let finish = if self.ended_itself() { Finish::Stop } else { finish };
        let stopped_by = self.stopped_by.clone();
        let calls = self.said.calls().filter(|call| !call.is_cut()).count();
        let whole = Whole { finish, stopped_by, usage, calls };
        ask.to.tell(Said::Ended { index: self.index, whole });
    }

    pub(super) fn said(&self) -> &Choice {
        &self.said
    }

    pub(super) fn thought_tokens(&self) -> u64 {
        match &self.decoder {
            Decoder::Chat(decoder) => decoder.thought_tokens(),
            Decoder::Raw(_) => 0,
        }
    }

    pub(super) fn tokens(&self) -> u64 {
        self.counted
    }
}
