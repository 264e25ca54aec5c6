//! The answer in decode: tokens to text, stop texts, counts.

use super::Shared;
use super::ask::{Ask, Params};
use super::calls::{Calls, Part};
use super::collected::Choice;
use super::notice::{LikelyToken, Notice, Usage, Whole};
use super::stops::Stops;
use crate::core::transcript::Finish;
use crate::engine::protocol::{Likely, Steering, Token};
use crate::text::steer::steering;
use crate::text::{Begin, Delta, PlainDecoder, StreamDecoder, TextError};

enum Decoder {
    /// Separates thoughts.
    Chat(StreamDecoder),
    /// Unchanged text.
    Raw(PlainDecoder),
}

pub(super) struct Answer {
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
    likely: Vec<LikelyToken>,
    /// Tokens that open the answer, or a thought in front of it.
    undecided: Vec<LikelyToken>,
    /// The sent part of the answer.
    sent: Choice,
    /// The client is connected.
    heard: bool,
}

impl Answer {
    pub(super) fn new(shared: &Shared, ask: &Ask) -> Answer {
        let tokenizer = shared.renderer.model().tokenizer.clone();
        let begin = if ask.params.raw { Begin::Answer } else { Begin::after_prompt(&ask.prompt.rendered.text) };
        let decoder = match ask.params.raw {
            true => Decoder::Raw(PlainDecoder::new(tokenizer)),
            false => Decoder::Chat(StreamDecoder::new(tokenizer, begin)),
        };
        let stops = Stops::new(&ask.params.stop);
        Answer {
            decoder,
            begin,
            stops,
            stopped_by: None,
            counted: 0,
            index: ask.index,
            calls: ask.params.calls.clone(),
            one_call: ask.params.one_call,
            called: false,
            delta: Delta::default(),
            likely: Vec::new(),
            undecided: Vec::new(),
            sent: Choice::default(),
            heard: true,
        }
    }

    pub(super) fn steering(&self, shared: &Shared, params: &Params) -> Result<Option<Steering>, TextError> {
        steering(params.watched(), &shared.renderer.model().tokenizer, self.begin, 0)
    }

    /// Whether a stop text ended it, or its only allowed call.
    pub(super) fn ended_itself(&self) -> bool {
        self.stopped_by.is_some() || self.is_enough()
    }

    /// Takes the tokens of a round; false if the answer ends here.
    pub(super) fn take(&mut self, shared: &Shared, ask: &Ask, tokens: &[Token], likely: &[Likely]) -> bool {
        if self.counted == 0 && !tokens.is_empty() {
            shared.metrics.first_token(ask.since.elapsed());
        }
        let mut likely = likely.iter().cloned();
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
                self.undecided.push(LikelyToken { token, likely, thought: false });
                let answer = match &self.decoder {
                    Decoder::Chat(decoder) => decoder.in_answer(),
                    Decoder::Raw(_) => Some(true),
                };
                self.decide(answer);
            }
        }
        self.report(ask);
        self.heard && !self.ended_itself()
    }

    /// Assigns the undecided tokens to the answer or to a thought.
    fn decide(&mut self, answer: Option<bool>) {
        if let Some(answer) = answer {
            self.likely.extend(self.undecided.drain(..).map(|token| LikelyToken { thought: !answer, ..token }));
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
                    self.report(ask);
                    self.notify(ask, Notice::Calling { index: self.index, id, name });
                }
                Part::Arguments(more) => self.notify(ask, Notice::Arguments { index: self.index, more }),
                Part::Call(call) => {
                    self.called = true;
                    self.notify(ask, Notice::Call { index: self.index, call });
                }
            }
            if self.is_enough() {
                return;
            }
        }
    }

    /// Sends the certain text.
    fn report(&mut self, ask: &Ask) {
        let (Delta { thinking, answer }, tokens) = (std::mem::take(&mut self.delta), std::mem::take(&mut self.likely));
        if !(thinking.is_empty() && answer.is_empty() && tokens.is_empty()) {
            self.sent.add(&thinking, &answer);
            self.heard &= ask.to.report(Notice::Text { index: self.index, thinking, answer, tokens });
        }
    }

    fn notify(&mut self, ask: &Ask, notice: Notice) {
        self.sent.take(&notice);
        self.heard &= ask.to.report(notice);
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
        self.report(ask);
    }

    pub(super) fn finish(&mut self, ask: &Ask, finish: Finish, usage: Usage) {
        let finish = if self.ended_itself() { Finish::Stop } else { finish };
        let stopped_by = self.stopped_by.clone();
        let calls = self.sent.calls().filter(|call| !call.is_cut()).count();
        let whole = Whole { finish, stopped_by, usage, calls };
        ask.to.report(Notice::Ended { index: self.index, whole });
    }

    pub(super) fn sent(&self) -> &Choice {
        &self.sent
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
