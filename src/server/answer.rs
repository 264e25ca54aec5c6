//! The answer in decode: tokens to text, stop texts, counts.

use super::calls::certain;
use super::{Ask, Calls, Choice, Event, LikelyToken, Notice, Refusal, Shared, Usage, Whole};
use crate::core::transcript::Finish;
use crate::engine::protocol::{Likely, Token};
use crate::text::{Begin, Delta, StreamDecoder};

pub(super) struct Answer {
    pub decoder: StreamDecoder,
    pub begin: Begin,
    stops: Stops,
    stopped_by: Option<String>,
    /// Tokens up to the one that completed a stop text.
    pub tokens: u64,
    calls: Option<Calls>,
    one_call: bool,
    /// A call has ended, other than one that broke off with the answer.
    called: bool,
    /// Certain text that is not sent yet.
    delta: Delta,
    likely: Vec<LikelyToken>,
    /// Tokens that open the answer, or a thought in front of it.
    undecided: Vec<LikelyToken>,
    pub sent: Choice,
    heard: bool,
}

impl Answer {
    pub(super) fn new(shared: &Shared, ask: &Ask) -> Answer {
        let tokenizer = shared.renderer.model().tokenizer.clone();
        let begin = if ask.params.raw { Begin::Answer } else { Begin::after_prompt(&ask.prompt.rendered.text) };
        let decoder = match ask.params.raw {
            true => StreamDecoder::raw(tokenizer),
            false => StreamDecoder::new(tokenizer, begin),
        };
        let stops = Stops::new(&ask.params.stop);
        Answer {
            decoder,
            begin,
            stops,
            stopped_by: None,
            tokens: 0,
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

    /// Whether a stop text ended it, or its only allowed call.
    pub(super) fn ended_itself(&self) -> bool {
        self.stopped_by.is_some() || self.is_enough()
    }

    /// Takes the tokens of a round; false if the answer ends here.
    pub(super) fn take(&mut self, shared: &Shared, ask: &Ask, tokens: &[Token], likely: &[Likely]) -> bool {
        if self.tokens == 0 && !tokens.is_empty() {
            shared.metrics.first_token(ask.since.elapsed());
        }
        let mut likely = likely.iter().cloned();
        for &token in tokens {
            if self.ended_itself() {
                break;
            }
            self.tokens += 1;
            let more = self.decoder.push(token);
            self.add(ask, more);
            if let Some(likely) = likely.next() {
                self.undecided.push(LikelyToken { token, likely, thought: false });
                self.decide(self.decoder.in_answer());
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
        match &mut self.calls {
            None => self.delta.answer.push_str(text),
            Some(calls) => {
                let events = calls.push(text);
                self.events(ask, events);
            }
        }
    }

    fn events(&mut self, ask: &Ask, events: Vec<Event>) {
        for event in events {
            if let Event::Text(text, _) = event {
                self.delta.answer.push_str(&text);
                continue;
            }
            self.report(ask);
            self.called |= matches!(event, Event::Call(_));
            self.notify(ask, event);
            if self.is_enough() {
                return;
            }
        }
    }

    fn report(&mut self, ask: &Ask) {
        let (Delta { thinking, answer }, tokens) = (std::mem::take(&mut self.delta), std::mem::take(&mut self.likely));
        if !thinking.is_empty() {
            self.notify(ask, Event::Thoughts(thinking));
        }
        if !(answer.is_empty() && tokens.is_empty()) {
            self.notify(ask, Event::Text(answer, tokens));
        }
    }

    fn notify(&mut self, ask: &Ask, event: Event) {
        self.sent.take(&event);
        // Only the client needs them.
        self.sent.tokens.clear();
        self.heard &= ask.to.report(Notice::Answer(ask.index, event));
    }

    /// The only allowed call is complete: later text does not count.
    fn is_enough(&self) -> bool {
        self.one_call && self.called
    }

    pub(super) fn close(&mut self, ask: &Ask) {
        if !self.ended_itself() {
            let last = self.decoder.finish();
            self.add(ask, last);
        }
        if !self.ended_itself() {
            let held = std::mem::take(&mut self.stops.held);
            self.text(ask, &held);
        }
        if !self.is_enough() {
            let held = self.calls.as_mut().map(Calls::finish).unwrap_or_default();
            self.events(ask, held);
            // The end of the answer ended this call, so the call did not end the answer.
            self.called = false;
        }
        self.decide(Some(true));
        self.report(ask);
    }

    /// Reports the end. Only a client that is gone or a server that ends stops an answer.
    pub(super) fn finish(&mut self, ask: &Ask, finish: Finish, usage: Usage) {
        let calls = self.sent.calls().filter(|call| !call.is_cut()).count();
        let whole = Whole { finish, stopped_by: self.stopped_by.clone(), usage, calls };
        let ended = Notice::Answer(ask.index, Event::Ended(whole));
        ask.to.report(if finish == Finish::Stopped { Notice::Failed(Refusal::broke_off()) } else { ended });
    }
}

/// Looks for stop texts across tokens. None is shown in part.
#[derive(Clone, Debug, Default)]
struct Stops {
    texts: Vec<String>,
    /// The end of the answer that may begin a stop text.
    held: String,
}

impl Stops {
    fn new(texts: &[String]) -> Stops {
        Stops { texts: texts.iter().filter(|t| !t.is_empty()).cloned().collect(), held: String::new() }
    }

    /// Takes more of the answer; returns the certain text, and the stop text that ends it there.
    fn push(&mut self, text: &str) -> (String, Option<String>) {
        self.held.push_str(text);
        let first = self.texts.iter().filter_map(|t| Some((self.held.find(t.as_str())?, t))).min_by_key(|f| f.0);
        if let Some((at, stop)) = first {
            let stop = stop.clone();
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), Some(stop));
        }
        let rest = self.held.split_off(certain(&self.held, &self.texts));
        (std::mem::replace(&mut self.held, rest), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_is_found_across_pieces_and_never_shown() {
        let mut stops = Stops::new(&["STOP".into(), "\n\n".into()]);
        assert_eq!(stops.push("one S"), ("one ".into(), None));
        assert_eq!(stops.push("TO"), (String::new(), None));
        assert_eq!(stops.push("ne\n"), ("STOne".into(), None));
        assert_eq!(stops.push("two STOP three"), ("\ntwo ".into(), Some("STOP".into())));
        let mut stops = Stops::new(&["END".into()]);
        assert_eq!(stops.push("das Ende EN"), ("das Ende ".into(), None));
        assert_eq!(stops.held, "EN");
        assert_eq!(Stops::new(&[]).push("x"), ("x".into(), None));
        // The earliest stop text in the answer counts, in any order of the list.
        assert_eq!(Stops::new(&["b".into(), "a".into()]).push("xab"), ("x".into(), Some("a".into())));
    }
}
