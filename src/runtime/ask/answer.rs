//! The answer in progress.

use std::time::Instant;

use super::super::{
    Activity, Attendance, Done, Last, Notice, Path, Plan, PrefillStats, Rendered, RuntimeError, Sink, State, ToAnswer,
    Verb, Written, grouped,
};
use super::sentences::Sentences;
use crate::core::transcript::{Finish, Message, MessageId, MessageMeta, Role, Sources};
use crate::engine::protocol::{JobDone, JobStats, Looked, LookedAt, Sampling, Token};
use crate::text::{Begin, Delta, StreamDecoder};

pub struct Answer {
    pub(super) message: Message,
    sampling: Sampling,
    /// How the answer begins, and the number of its thought tokens from an earlier run.
    begin: Begin,
    spent: u64,
    decoder: StreamDecoder,
    sentences: Sentences,
    written: u64,
    started: Instant,
    first_token: Option<Instant>,
    /// When its thoughts began.
    thought: Option<Instant>,
    /// Milliseconds and tokens of thoughts from an earlier run.
    before: (f64, u64),
    saved: Instant,
    dirty: bool,
}

pub(super) fn finish_of(stats: &Done<PrefillStats>) -> Finish {
    match stats {
        Ok(PrefillStats { end: Some(end), .. }) => end.ended.finish(),
        Err(RuntimeError::Stopped) => Finish::Stopped,
        Ok(PrefillStats { end: None, .. }) | Err(_) => Finish::Failed,
    }
}

/// Tokens per second; 0 if unknown. The time leaves out the first token, which the prefill produces.
fn decode_speed(stats: &JobStats) -> f64 {
    let timed = stats.generated_tokens.saturating_sub(1);
    if stats.decode_ms > 0.0 { timed as f64 * 1000.0 / stats.decode_ms } else { 0.0 }
}

impl Answer {
    pub(super) fn new(
        state: &State,
        message: Message,
        rendered: &Rendered,
        sampling: Sampling,
        started: Instant,
    ) -> Done<Answer> {
        let tokenizer = state.engine.tokenizer();
        // `/continue` may resume inside a thought.
        let begin = match message.text.is_empty() && !message.thinking.is_empty() {
            true => Begin::Thought,
            false => Begin::after_prompt(&rendered.text),
        };
        let spent = match begin {
            Begin::Thought => state.bounded(|halt| tokenizer.encode_plain_until(&message.thinking, halt))?.len() as u64,
            Begin::Answer => 0,
        };
        Ok(Answer {
            before: (message.meta.thought_ms, message.meta.thought_tokens.max(spent)),
            sentences: Sentences::after(message.text.len()),
            written: message.meta.completion_tokens,
            message,
            sampling,
            begin,
            spent,
            decoder: StreamDecoder::new(tokenizer.clone(), begin),
            started,
            first_token: None,
            thought: None,
            saved: Instant::now(),
            dirty: false,
        })
    }

    /// Takes the tokens of a round. Returns milliseconds and tokens of the thoughts while the model thinks.
    pub(super) fn write(&mut self, state: &mut State, tokens: &[Token], looked: &[Looked]) -> Option<(f64, u64)> {
        self.first_token.get_or_insert_with(Instant::now);
        self.message.meta.completion_tokens += tokens.len() as u64;
        let mut delta = Delta::default();
        for (n, token) in tokens.iter().enumerate() {
            let (thought, old) = (self.decoder.in_thought(), self.message.text.len());
            let piece = self.decoder.push(*token);
            self.keep(&piece);
            if !thought {
                self.sentences.token(&self.message.text, old, looked.get(n));
            }
            delta.thinking.push_str(&piece.thinking);
            delta.answer.push_str(&piece.answer);
        }
        let thinks = self.decoder.in_thought().then(|| {
            let ms = self.thought.get_or_insert_with(Instant::now).elapsed().as_secs_f64() * 1000.0;
            (self.before.0 + ms, self.before.1 + self.decoder.thought_tokens())
        });
        if let Some(thought) = thinks {
            (self.message.meta.thought_ms, self.message.meta.thought_tokens) = thought;
        }
        self.show(state, delta);
        thinks
    }

    pub(super) fn save(&mut self, state: &mut State) {
        if self.saved.elapsed().as_secs() >= 2 && std::mem::take(&mut self.dirty) {
            self.saved = Instant::now();
            state.amend(&self.message);
        }
    }

    pub(super) fn take(&mut self, state: &mut State, delta: Delta) {
        self.keep(&delta);
        self.show(state, delta);
    }

    fn keep(&mut self, delta: &Delta) {
        self.message.thinking.push_str(&delta.thinking);
        self.message.text.push_str(&delta.answer);
        self.dirty |= !delta.thinking.is_empty() || !delta.answer.is_empty();
    }

    /// Also updates the message in the tree: pages, asides and other conversations read it there.
    fn show(&self, state: &mut State, delta: Delta) {
        state.here.tree.grow(&self.message, &delta.thinking, &delta.answer);
        state.report_text(self.message.id, delta.thinking, delta.answer);
    }
}

impl Sink<Verb> for Answer {
    fn tokens(&mut self, state: &mut Verb, &Written { tokens, looked, tokens_per_s, .. }: &Written<'_>) {
        match self.write(state, tokens, looked) {
            Some((ms, tokens)) => state.working(Activity::Thinking { tokens_per_s, ms, tokens }),
            None => state.working(Activity::Answering { tokens_per_s }),
        }
    }

    fn tick(&mut self, state: &mut Verb) {
        self.save(state);
    }
}

impl State {
    pub(super) fn new_answer(&self, rendered: &Rendered, sampling: Sampling, started: Instant) -> Done<Answer> {
        let mut message = self.draft(Role::Assistant, self.here.tree.head(), String::new());
        message.meta.model = self.engine.model().map(|m| m.name.clone());
        message.meta.seed = sampling.seed_of_draws();
        Answer::new(self, message, rendered, sampling, started)
    }

    pub fn report_text(&self, message: MessageId, thinking: String, answer: String) {
        for (thinking, text) in [(true, thinking), (false, answer)] {
            if !text.is_empty() {
                self.report(Notice::Delta { message, thinking, text });
            }
        }
    }

    pub(super) fn last_of(&self, answer: &Answer) -> Done<Last> {
        let mut generate = self.generate(answer.sampling, answer.begin, answer.spent)?;
        generate.look.each_token = true;
        Ok(Last::Generate(generate))
    }

    /// Documents and lines that an answer to the last of `path` attended to. `live` is the state after the answer.
    pub fn sources_after(
        &self,
        path: &[&Message],
        rendered: &Rendered,
        (looked, sentences): (&LookedAt, &[(usize, Looked)]),
        live: &Path,
    ) -> Option<Sources> {
        let block = looked.answer.block_tokens.max(looked.thoughts.block_tokens) as usize;
        let map = self.engine.renderer.map(rendered, path, live, block);
        map.sources(&rendered.text, looked, sentences)
    }

    pub fn end_answer(&mut self, mut answer: Answer, rendered: &Rendered, stats: &Done<PrefillStats>, live: &Path) {
        let last = answer.decoder.finish();
        answer.take(self, last);
        let mut message = answer.message;
        if message.thinking.is_empty()
            && let Some((thinking, text)) = self.engine.unopened_thought(&message.text)
        {
            (message.thinking, message.text) = (thinking.to_owned(), text.to_owned());
        }
        let sentences = answer.sentences.finish(&message.text);
        message.meta.finish = Some(finish_of(stats));
        if let Some(first) = answer.first_token {
            message.meta.ttft_ms = first.duration_since(answer.started).as_secs_f64() * 1000.0;
            self.here.meters.ttft_ms = message.meta.ttft_ms;
        }
        if let Ok(stats @ PrefillStats { end: Some(end), .. }) = stats {
            self.count_tokens(&mut message.meta, stats, end, live.position());
            let path = self.here.tree.path_to(message.parent);
            let new = self.sources_after(&path, rendered, (&end.looked_at, &sentences), live);
            message.meta.looked = match (message.meta.looked.take(), new) {
                // A continued answer merges the attention of all its parts.
                (Some(before), Some(new)) => Some(before.then(new, answer.written)),
                (before, new) => new.or(before),
            };
            let meta = &message.meta;
            (self.here.meters.tokens_per_s, self.here.meters.speed_estimated) = (meta.tokens_per_s, meta.estimated);
        }
        let (quotes, nearest) = self.quotes(message.parent, &message.text);
        message.meta.quotes = quotes;
        self.amend(&message);
        self.report(Notice::Finished(message));
        nearest.into_iter().for_each(|note| self.info(note));
    }

    pub fn count_tokens(&mut self, meta: &mut MessageMeta, stats: &PrefillStats, end: &JobDone, position: u64) {
        let PrefillStats { reused, read, prefill_ms, .. } = stats;
        meta.reused_tokens = *reused;
        meta.prefilled_tokens = *read;
        meta.prefill_ms = *prefill_ms;
        meta.tokens_per_s = decode_speed(&end.stats);
        meta.estimated = end.stats.usage.is_none() && self.engine.server().is_some();
        match end.stats.usage {
            // A server's own token counts replace the estimates.
            Some(usage) => {
                meta.reused_tokens = usage.cached_tokens;
                meta.prefilled_tokens = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
                meta.completion_tokens = usage.completion_tokens;
                if usage.thought_tokens > 0 {
                    meta.thought_tokens = usage.thought_tokens;
                }
                self.here.slot.counted = Some((position, usage.prompt_tokens + usage.completion_tokens));
            }
            // A server may have cached part of the prompt; it does not report how much.
            None if self.engine.server().is_some() => {
                meta.reused_tokens = 0;
                meta.prefilled_tokens = reused + read;
            }
            None => {}
        }
    }

    pub fn warn_of_full_context(&mut self) {
        let (used, limit) = (self.here.meters.context_used, self.engine.info.context_limit);
        let Some(share) = used.saturating_mul(100).checked_div(limit) else { return };
        let level = [95, 80].into_iter().find(|l| share >= *l).unwrap_or(0);
        if level > self.here.warned {
            let left = grouped(limit.saturating_sub(used));
            let next = match self.attendance {
                Attendance::Present => "/new, /fork #3 or /compact.",
                Attendance::Absent => "The next question may need a new session (without -r and -c).",
            };
            self.warn(format!("About {left} tokens left. {next}"));
        }
        self.here.warned = level;
    }
}

impl Verb {
    /// Adds the answer's message if it is new and generates it. Lost state is read again before the first token.
    pub(super) async fn write_answer(
        &mut self,
        mut answer: Answer,
        plan: Plan,
        rendered: &Rendered,
    ) -> Done<MessageId> {
        if self.here.tree.get(answer.message.id).is_none() {
            self.add_message(answer.message.clone())?;
            self.texts_saved().await;
        }
        let to_answer = ToAnswer { last: self.last_of(&answer)?, message: Some(answer.message.id) };
        let mut begun_again = false;
        let mut stats = self.execute(plan, rendered, Some(to_answer.clone()), &mut answer).await;
        while let Err(lost) = &stats
            && answer.first_token.is_none()
            && lost.is_mended_by_reading(&mut begun_again)
        {
            stats = match self.plan_answer(rendered) {
                Err(e) => Err(e),
                Ok(plan) => {
                    self.read_lost_again(lost, &plan);
                    self.execute(plan, rendered, Some(to_answer.clone()), &mut answer).await
                }
            };
        }
        let (id, live) = (answer.message.id, std::mem::take(&mut self.here.slot.live));
        self.end_answer(answer, rendered, &stats, &live);
        self.here.slot.live = live;
        self.show_tree();
        self.report_meters();
        self.warn_of_full_context();
        self.wants_title(id);
        match stats?.end {
            Some(_) => Ok(id),
            None => Err(RuntimeError::Failed("internal error: there was nothing to answer to".into())),
        }
    }
}
