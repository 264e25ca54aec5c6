//! Asides: questions answered on a temporary fork, for the user or for the program. Nothing of them is kept.

use std::sync::Arc;

use super::super::{Activity, Done, Last, Notice, RuntimeError, Sink, State, ToAnswer, Verb, Written, grouped};
use super::{THIS_QUESTION, finish_of};
use crate::core::transcript::{Message, Role};
use crate::engine::protocol::Ended;
use crate::text::{Begin, StreamDecoder};

/// Most tokens that an aside prefills while another verb runs; one that needs more is queued.
const READ_ALONGSIDE: u64 = 8_192;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::runtime) enum Shown {
    Yes,
    /// Nowhere: the program uses the answer.
    No,
    /// Nowhere, and each time the likeliest answer, to compare it with another.
    Greedily,
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
    pub async fn aside(&mut self, question: String) -> Done {
        self.answer_aside(&question, Shown::Yes).await.map(|_| ())
    }

    pub async fn answer_aside(&mut self, question: &str, shown: Shown) -> Done<Message> {
        self.engine_ready().await?;
        let new = self.opening_messages();
        let past = self.here.tree.path().into_iter().chain(&new).cloned().collect();
        self.answer_after(past, question, shown).await
    }

    /// One question about documents of the library, read in this order. Their state is kept, the question is not.
    pub async fn ask_library(&mut self, documents: Vec<String>, question: String) -> Done {
        let documents = self.library_documents(&documents)?;
        self.engine_ready().await?;
        let (mut past, mut read, mut ms) = (Vec::new(), 0, 0.0);
        for document in documents {
            let stats = self.read_into_library(&mut past, document).await?;
            // A server reads the documents with the question and counts them then.
            let here = self.engine.server().is_none();
            (read, ms) = (read + if here { stats.read } else { 0 }, ms + stats.prefill_ms);
        }
        let mut answer = self.answer_after(past, &question, Shown::No).await?;
        let meta = &mut answer.meta;
        (meta.prefilled_tokens, meta.prefill_ms) = (meta.prefilled_tokens + read, meta.prefill_ms + ms);
        meta.reused_tokens = meta.reused_tokens.saturating_sub(read);
        self.show(Notice::Finished(answer))
    }

    /// Answers a question after these messages; the state returns to what it was.
    async fn answer_after(&mut self, past: Vec<Message>, question: &str, shown: Shown) -> Done<Message> {
        let question = question.to_owned();
        let before = self.here.slot.live.clone();
        let new = self.draft(Role::User, past.last().map(|m| m.id), question.clone());
        let path: Vec<&Message> = past.iter().chain([&new]).collect();
        let rendered = self.prompt(&path)?;
        let plan = self.fitted(&rendered, State::plan_answer, THIS_QUESTION).await?;
        let to_read = plan.to_read();
        if let Some(apart) = self.here.apart.as_mut().filter(|_| to_read > READ_ALONGSIDE) {
            apart.put_off = Some(format!("{} tokens before it have no kept state.", grouped(to_read)));
            return Ok(new);
        }
        let begin = Begin::after_prompt(&rendered.text);
        let decoder = StreamDecoder::new(Arc::clone(self.engine.tokenizer()), begin);
        let mut answer = AsideAnswer { question, text: String::new(), decoder, shown };
        let mut sampling = self.next_sampling();
        if shown == Shown::Greedily {
            sampling.temperature = 0.0;
        }
        let last = Last::Generate(self.generate(sampling, begin, 0)?);
        let to_answer = ToAnswer { last, message: None };
        let stats = self.execute(plan, &rendered, Some(to_answer), &mut answer).await;

        if let (Some(apart), Err(e)) = (&mut self.here.apart, &stats)
            && e.is_of_the_slot()
            && answer.text.is_empty()
        {
            apart.put_off = Some(e.to_string());
            return Ok(new);
        }
        answer.text.push_str(&answer.decoder.finish().answer);
        if let Some((_, rest)) = self.engine.unopened_thought(&answer.text) {
            answer.text = rest.to_owned();
        }
        let AsideAnswer { question, text, .. } = answer;
        if shown == Shown::Yes {
            self.report(Notice::Aside { question, text: text.clone(), done: Some(finish_of(&stats)) });
        }
        let mut message = self.draft(Role::Assistant, Some(new.id), text);
        message.meta.finish = Some(finish_of(&stats));
        let stats = stats?;
        let whole = stats.end.as_ref().is_some_and(|end| end.ended != Ended::Cancelled);
        if let Some(end) = stats.end.as_ref().filter(|_| shown != Shown::Yes) {
            let live = &self.here.slot.live;
            message.meta.looked = self.sources_after(&path, &rendered, (&end.looked_at, &[]), live);
            message.meta.completion_tokens = stats.generated.len() as u64;
            let position = live.position();
            self.count_tokens(&mut message.meta, &stats, end, position);
            message.meta.quotes = self.indexes.check(&path, &message.text);
        }
        // An aside in its own slot drops that slot afterwards, so its state needs no restore.
        if self.here.apart.is_none() {
            self.return_to(before).await?;
            self.report_meters();
        }
        // The program cannot use a partial answer.
        if shown == Shown::Yes || whole { Ok(message) } else { Err(RuntimeError::Stopped) }
    }
}
