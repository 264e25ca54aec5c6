//! Asides: asked and answered on a hidden fork, for the user or for the program; nothing of them is kept.

use std::time::Instant;

use super::super::execute::{Progress, ToAnswer, Watch};
use super::super::slot::Last;
use super::super::{Done, RuntimeError, State, grouped};
use super::{THIS_QUESTION, finish_of};
use crate::core::transcript::{Message, Role};
use crate::engine::protocol::{Ended, EngineFault, Looked, Token};
use crate::runtime::protocol::{Activity, Notice};
use crate::text::{Begin, StreamDecoder};

/// Most tokens that an aside beside something else reads: what is kept of a conversation is not read again for it.
const READ_BESIDE: u64 = 8_192;

/// Whether an aside is for the user or for the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::runtime) enum Shown {
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
    fn reading(&mut self, runtime: &mut State, progress: Progress) {
        runtime.show_reading(self.started, progress);
    }
    fn tokens(&mut self, runtime: &mut State, tokens: &[Token], _looked: &[Looked], tokens_per_s: f64) {
        self.text.push_str(&self.decoder.push_all(tokens).answer);
        runtime.working(Activity::Answering { tokens_per_s });
        if self.shown == Shown::Yes {
            runtime.tell(Notice::Aside { question: self.question.clone(), text: self.text.clone(), done: None });
        }
    }
}

impl State {
    /// `/aside`: asked and answered on a hidden fork; the state afterwards is the one before.
    pub(in crate::runtime) fn aside(&mut self, question: &str) -> Done {
        if question.trim().is_empty() {
            return Err(RuntimeError::Refused("/aside QUESTION asks without keeping question or answer.".into()));
        }
        self.answer_aside(question, Shown::Yes, |_, _| Ok(()))
    }

    /// Asks and answers on a hidden fork; `then` gets the answer, and how many tokens were in the context before.
    pub(in crate::runtime) fn answer_aside(
        &mut self,
        question: &str,
        shown: Shown,
        then: impl FnOnce(&mut State, String) -> Done + Send + 'static,
    ) -> Done {
        let question = question.to_owned();
        let started = Instant::now();
        self.with_engine(move |runtime| {
            let before = runtime.here.slot.live.clone();
            let mut new = runtime.opening_messages();
            let parent = new.last().map(|m| m.id).or(runtime.here.session.tree.head());
            new.push(runtime.draft(Role::User, parent, question.clone()));
            let path: Vec<&Message> = runtime.here.session.tree.path().into_iter().chain(&new).collect();
            let rendered = runtime.prompt(&path, THIS_QUESTION)?;
            runtime.when_planned(rendered, State::plan_answer, move |runtime, rendered, plan| {
                let plan = runtime.fitting(plan, THIS_QUESTION)?;
                if let Some(apart) = runtime.here.apart.as_mut().filter(|_| plan.to_read() > READ_BESIDE) {
                    apart.put_off = Some(format!("{} tokens before it have no kept state.", grouped(plan.to_read())));
                    return Ok(());
                }
                let begin = Begin::after_prompt(&rendered.text);
                let decoder = StreamDecoder::new(runtime.engine.renderer.model().tokenizer.clone(), begin);
                let watch = AsideAnswer { question, text: String::new(), decoder, started, shown };
                let answer = ToAnswer {
                    last: Last::Generate(runtime.generate(runtime.next_sampling(), begin, 0)?),
                    message: None,
                };
                runtime.execute(plan, rendered, Some(answer), watch, move |runtime, mut watch, fed| {
                    if let (
                        Some(apart),
                        Err(RuntimeError::Engine(
                            EngineFault::Device(why) | EngineFault::ReadAgain(why) | EngineFault::Gone(why),
                        )),
                    ) = (&mut runtime.here.apart, &fed)
                        && watch.text.is_empty()
                    {
                        apart.put_off = Some(why.clone());
                        return Ok(());
                    }
                    watch.text.push_str(&watch.decoder.finish().answer);
                    let (done, text) = (finish_of(&fed), watch.text);
                    if shown == Shown::Yes {
                        runtime.tell(Notice::Aside { question: watch.question, text: text.clone(), done: Some(done) });
                    }
                    let fed = fed?;
                    if shown == Shown::No && fed.end.is_none_or(|end| end.done.ended == Ended::Cancelled) {
                        // Half of what the program wanted is of no use to it.
                        return runtime.return_to(before, |_| Err(RuntimeError::Stopped));
                    }
                    if runtime.here.apart.is_some() {
                        // Its state is of no use to anybody.
                        return then(runtime, text);
                    }
                    runtime.return_to(before, move |runtime| {
                        runtime.report_meters();
                        then(runtime, text)
                    })
                })
            })
        })
    }
}
