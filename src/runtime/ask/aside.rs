//! Asides: questions answered on a temporary fork, for the user or for the program. Nothing of them is kept.

use super::super::executor::{Sink, ToAnswer, Written};
use super::super::slot::Last;
use super::super::verb::Verb;
use super::super::{Done, RuntimeError, State, grouped};
use super::{THIS_QUESTION, finish_of};
use crate::core::transcript::{Message, Role};
use crate::engine::protocol::Ended;
use crate::runtime::protocol::{Activity, Notice};
use crate::text::{Begin, StreamDecoder};

/// Most tokens that an aside prefills while another verb runs; one that needs more is queued.
const READ_ALONGSIDE: u64 = 8_192;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::runtime) enum Shown {
    /// In the overlay.
    Yes,
    /// Nowhere: the program uses the answer.
    No,
}

struct AsideAnswer {
    question: String,
    text: String,
    decoder: StreamDecoder,
    shown: Shown,
}

impl Sink<Verb> for AsideAnswer {
    fn tokens(&mut self, state: &mut Verb, &Written { tokens, tokens_per_s, .. }: &Written<'_>) {
        self.text.push_str(&self.decoder.push_all(tokens).answer);
        state.working(Activity::Answering { tokens_per_s });
        if self.shown == Shown::Yes {
            state.report(Notice::Aside { question: self.question.clone(), text: self.text.clone(), done: None });
        }
    }
}

impl Verb {
    pub(in crate::runtime) async fn aside(&mut self, question: String) -> Done {
        if question.trim().is_empty() {
            return Err(RuntimeError::Refused("/aside QUESTION asks without keeping question or answer.".into()));
        }
        self.answer_aside(&question, Shown::Yes).await.map(|_| ())
    }

    pub(in crate::runtime) async fn answer_aside(&mut self, question: &str, shown: Shown) -> Done<String> {
        let question = question.to_owned();
        self.engine_ready().await?;
        let before = self.here.slot.live.clone();
        let mut new = self.opening_messages();
        let parent = new.last().map(|m| m.id).or(self.here.session.tree.head());
        new.push(self.draft(Role::User, parent, question.clone()));
        let path: Vec<&Message> = self.here.session.tree.path().into_iter().chain(&new).collect();
        let rendered = self.prompt(&path, THIS_QUESTION)?;
        let plan = self.fitted(&rendered, State::plan_answer, THIS_QUESTION).await?;
        let to_read = plan.to_read();
        if let Some(apart) = self.here.apart.as_mut().filter(|_| to_read > READ_ALONGSIDE) {
            apart.put_off = Some(format!("{} tokens before it have no kept state.", grouped(to_read)));
            return Ok(String::new());
        }
        let begin = Begin::after_prompt(&rendered.text);
        let decoder = StreamDecoder::new(self.engine.renderer.model().tokenizer.clone(), begin);
        let mut answer = AsideAnswer { question, text: String::new(), decoder, shown };
        let last = Last::Generate(self.generate(self.next_sampling(), begin, 0)?);
        let to_answer = ToAnswer { last, message: None };
        let stats = self.execute(plan, &rendered, Some(to_answer), &mut answer).await;

        if let (Some(apart), Err(e)) = (&mut self.here.apart, &stats)
            && e.is_of_the_slot()
            && answer.text.is_empty()
        {
            apart.put_off = Some(e.to_string());
            return Ok(String::new());
        }
        answer.text.push_str(&answer.decoder.finish().answer);
        if let Some((_, rest)) = self.engine.unopened_thought(&answer.text) {
            answer.text = rest.to_owned();
        }
        let AsideAnswer { question, text, .. } = answer;
        if shown == Shown::Yes {
            self.report(Notice::Aside { question, text: text.clone(), done: Some(finish_of(&stats)) });
        }
        let whole = stats?.end.is_some_and(|end| end.ended != Ended::Cancelled);
        // An aside in its own slot drops that slot afterwards, so its state needs no restore.
        if self.here.apart.is_none() {
            self.return_to(before).await?;
        }
        if shown == Shown::No && !whole {
            // The program cannot use a partial answer.
            return Err(RuntimeError::Stopped);
        }
        if self.here.apart.is_none() {
            self.report_meters();
        }
        Ok(text)
    }
}
