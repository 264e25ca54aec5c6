//! Asides: asked and answered on a hidden fork, for the user or for the program; nothing of them is kept.

use std::time::Instant;

use super::super::jobs::Watch;
use super::super::{DeskError, Done, State};
use super::{finish_of, show_reading};
use crate::protocol::desk::{Activity, Notice};
use crate::protocol::engine::Token;
use crate::text::{Begin, StreamDecoder};
use crate::transcript::{Message, Role};

/// Whether an aside is for the user or for the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::desk) enum Shown {
    /// In the overlay.
    Yes,
    /// Nowhere.
    No,
}

/// An answer that is not kept.
struct AsideAnswer {
    question: String,
    text: String,
    decoder: StreamDecoder,
    started: Instant,
    shown: Shown,
}

impl Watch for AsideAnswer {
    fn reading(&mut self, desk: &mut State, done: u64, total: u64, tokens_per_s: f64) {
        show_reading(desk, self.started, done, total, tokens_per_s);
    }
    fn tokens(&mut self, desk: &mut State, tokens: &[Token], tokens_per_s: f64) {
        self.text.push_str(&self.decoder.push_all(tokens).answer);
        desk.working(Activity::Answering { tokens_per_s });
        if self.shown == Shown::Yes {
            desk.tell(Notice::Aside { question: self.question.clone(), text: self.text.clone(), done: None });
        }
    }
}

impl State {
    /// `/aside`: asked and answered on a hidden fork; the state afterwards is the one before.
    pub(in crate::desk) fn aside(&mut self, question: &str) -> Done {
        if question.trim().is_empty() {
            return Err(DeskError::Refused("/aside QUESTION asks without keeping question or answer.".into()));
        }
        self.answer_aside(question, Shown::Yes).map(|_| ())
    }

    /// Asks and answers on a hidden fork. Returns the answer.
    pub(in crate::desk) fn answer_aside(&mut self, question: &str, shown: Shown) -> Done<String> {
        self.need_engine()?;
        let started = Instant::now();
        let before = self.live.clone();
        let mut new = self.opening_messages();
        let parent = new.last().map(|m| m.id).or(self.open.conversation.head());
        new.push(self.draft(Role::User, parent, question.to_owned()));
        let path: Vec<&Message> = self.open.conversation.path().into_iter().chain(&new).collect();
        let rendered = self.renderer.prompt(&path, self.open.settings.think)?;
        let plan = self.plan(&rendered)?;
        self.check_room(&plan, "This question")?;
        let begin = Begin::after_prompt(&rendered.text);
        let decoder = StreamDecoder::new(self.renderer.model().tokenizer.clone(), begin);
        let mut watch = AsideAnswer { question: question.to_owned(), text: String::new(), decoder, started, shown };
        let generate = self.generate(self.next_sampling(), begin, 0)?;
        let fed = self.carry_out(plan, &rendered, Some((generate, None)), &mut watch);
        watch.text.push_str(&watch.decoder.finish().answer);
        let done = finish_of(&fed);
        let text = watch.text;
        if shown == Shown::Yes {
            self.tell(Notice::Aside { question: watch.question, text: text.clone(), done: Some(done) });
        }
        fed?;
        self.return_to(before)?;
        self.report_meters();
        Ok(text)
    }
}
