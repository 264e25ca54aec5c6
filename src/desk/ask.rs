//! Questions and answers: asking, going on, answering again, asides. Everything that makes the model speak.
//!
//! Answering again is in `again`, asides in `aside`.

mod again;
mod aside;

use std::time::Instant;

use super::feed::{Fed, Plan};
use super::jobs::Watch;
use super::render::Rendered;
use super::{DeskError, Done, State, grouped, now_ms};
use crate::protocol::desk::{Activity, Level, Notice, ReadingProgress};
use crate::protocol::engine::{Ended, Generate, Sampling, Token};
use crate::text::steer::Watched;
use crate::text::{Begin, Delta, StreamDecoder};
use crate::transcript::{Finish, Message, MessageId, MessageMeta, Role};
pub(super) use aside::Shown;

/// Shortest text worth a progress display, in tokens.
const SHOWN_READING: u64 = 512;

/// How an answer ended, in the transcript's words.
fn finish_of(fed: &Done<Fed>) -> Finish {
    let ended = match fed {
        Ok(Fed { end: Some(end), .. }) => end.ended,
        Err(DeskError::Stopped) => Ended::Cancelled,
        Ok(Fed { end: None, .. }) | Err(_) => return Finish::Failed,
    };
    match ended {
        Ended::Stop | Ended::Read => Finish::Stop,
        Ended::Length => Finish::Length,
        Ended::Context => Finish::Context,
        Ended::Repeats => Finish::Repeats,
        Ended::Cancelled => Finish::Stopped,
    }
}

/// Progress of reading a prompt.
pub(super) fn show_reading(desk: &mut State, started: Instant, done: u64, total: u64, tokens_per_s: f64) {
    if total < SHOWN_READING {
        return;
    }
    let used = desk.live.position() + total;
    desk.activity(Activity::Reading(ReadingProgress {
        files: Vec::new(),
        done,
        total,
        tokens_per_s,
        elapsed_ms: started.elapsed().as_secs_f64() * 1000.0,
        left_after: desk.meters.context_limit.saturating_sub(used),
    }));
}

/// An answer that is being written.
struct Answer {
    message: Message,
    decoder: StreamDecoder,
    /// Enter was pressed.
    started: Instant,
    first_token: Option<Instant>,
    thought: Option<(Instant, f64)>,
    saved: Instant,
    dirty: bool,
}

impl Answer {
    fn take(&mut self, desk: &mut State, delta: Delta) {
        for (thinking, text) in [(true, delta.thinking), (false, delta.answer)] {
            if text.is_empty() {
                continue;
            }
            self.dirty = true;
            let whole = if thinking { &mut self.message.thinking } else { &mut self.message.text };
            whole.push_str(&text);
            desk.tell(Notice::Delta { message: self.message.id, thinking, text });
        }
    }
}

impl Watch for Answer {
    fn reading(&mut self, desk: &mut State, done: u64, total: u64, tokens_per_s: f64) {
        show_reading(desk, self.started, done, total, tokens_per_s);
    }

    fn tokens(&mut self, desk: &mut State, tokens: &[Token], tokens_per_s: f64) {
        self.first_token.get_or_insert_with(Instant::now);
        self.message.meta.completion_tokens += tokens.len() as u64;
        let delta = self.decoder.push_all(tokens);
        if self.decoder.in_thought() {
            let (since, ms) = self.thought.get_or_insert((Instant::now(), 0.0));
            *ms = since.elapsed().as_secs_f64() * 1000.0;
            let ms = *ms;
            desk.working(Activity::Thinking { tokens_per_s, ms });
        } else {
            desk.working(Activity::Answering { tokens_per_s });
        }
        self.take(desk, delta);
    }

    fn tick(&mut self, desk: &mut State) {
        if self.dirty && self.saved.elapsed().as_secs() >= 2 {
            self.saved = Instant::now();
            self.dirty = false;
            desk.amend(&self.message);
        }
    }
}

impl State {
    /// Activity of a running job; a stop that was asked for stays on screen.
    pub(super) fn working(&mut self, activity: Activity) {
        if !self.cancel.is_cancelled() {
            self.activity(activity);
        }
    }

    /// A message that is not saved yet.
    pub(super) fn draft(&self, role: Role, parent: Option<MessageId>, text: String) -> Message {
        Message {
            id: self.store.new_message_id(),
            parent,
            role,
            text,
            thinking: String::new(),
            created_ms: now_ms(),
            meta: MessageMeta::default(),
        }
    }

    /// What to generate for an answer that begins like this; `spent` tokens of its thought were written before.
    fn generate(&self, sampling: Sampling, begin: Begin, spent: u64) -> Done<Generate> {
        let watched = Watched { thought_tokens: 0, loops: true };
        Ok(Generate {
            sampling,
            max_tokens: self.open.settings.max_tokens,
            stop: self.stop.clone(),
            spec: self.open.settings.spec,
            steering: watched.steering(&self.renderer.model().tokenizer, begin, spent)?,
        })
    }

    fn next_sampling(&self) -> Sampling {
        self.open.settings.for_answer(fresh_seed)
    }

    /// What goes in front of the first message: the system text, if there is one.
    pub(super) fn opening_messages(&self) -> Vec<Message> {
        match (&self.system, self.open.conversation.head()) {
            (Some(text), None) if !text.trim().is_empty() => {
                vec![self.draft(Role::System, None, text.clone())]
            }
            _ => Vec::new(),
        }
    }

    /// `Ask`.
    pub(super) fn ask(&mut self, text: String) -> Done {
        if text.trim().is_empty() {
            return Ok(());
        }
        let parent = self.open.conversation.head();
        self.ask_below(parent, text)
    }

    /// Adds a question below `parent` and answers it.
    pub(super) fn ask_below(&mut self, parent: Option<MessageId>, text: String) -> Done {
        let typed = text.clone();
        let before = self.open.conversation.all().count();
        let done = self.ask_now(parent, text);
        if done.is_err() && self.open.conversation.all().count() == before {
            // Nothing of it was saved: it goes back to where it was typed.
            self.tell(Notice::Input { text: typed, editing: None });
        }
        done
    }

    fn ask_now(&mut self, parent: Option<MessageId>, text: String) -> Done {
        let started = Instant::now();
        self.may_write()?;
        self.need_engine()?;
        self.may_write()?;
        let mut new = if parent.is_none() { self.opening_messages() } else { Vec::new() };
        let question = self.draft(Role::User, new.last().map(|m| m.id).or(parent), text);
        new.push(question);
        // Kept before the template, which comes with the weights, sees it.
        new.iter().filter(|m| m.role == Role::User).for_each(|m| self.remember_prompt(&m.text));
        let path: Vec<&Message> = self.open.conversation.path_to(parent).into_iter().chain(&new).collect();
        let rendered = self.renderer.prompt(&path, self.open.settings.think)?;
        let plan = self.plan(&rendered)?;
        self.check_room(&plan, "This question")?;
        let branched = self.open.conversation.head() != parent;
        if branched {
            self.move_head(parent);
            self.show_session();
        }
        for message in new {
            self.add_message(message)?;
        }
        let sampling = self.next_sampling();
        let answered = self.answer(plan, &rendered, sampling, started);
        if branched {
            self.show_session();
        }
        answered?;
        self.settle_quietly()
    }

    /// Answers the question at the head.
    fn answer(&mut self, plan: Plan, rendered: &Rendered, sampling: Sampling, started: Instant) -> Done<MessageId> {
        let mut message = self.draft(Role::Assistant, self.open.conversation.head(), String::new());
        message.meta.model = self.model().map(|m| m.name.clone());
        message.meta.seed = Some(sampling.seed);
        self.write_answer(message, plan, rendered, sampling, started, "")
    }

    /// Runs the engine and writes what it says into `message`, which is added to the conversation if it is new.
    fn write_answer(
        &mut self,
        message: Message,
        plan: Plan,
        rendered: &Rendered,
        sampling: Sampling,
        started: Instant,
        more: &str,
    ) -> Done<MessageId> {
        let id = message.id;
        if self.open.conversation.get(id).is_none() {
            self.add_message(message.clone())?;
        }
        // Going on with an answer may begin inside a thought.
        let begin = match message.text.is_empty() && !message.thinking.is_empty() {
            true => Begin::Thought,
            false => Begin::after_prompt(&rendered.text),
        };
        let message_thought = message.thinking.clone();
        let decoder = StreamDecoder::new(self.renderer.model().tokenizer.clone(), begin);
        let mut answer =
            Answer { message, decoder, started, first_token: None, thought: None, saved: Instant::now(), dirty: false };
        answer.take(self, Delta { thinking: String::new(), answer: more.to_owned() });
        let spent = match begin {
            Begin::Thought => self.renderer.model().tokenizer.encode_plain(&message_thought)?.len() as u64,
            Begin::Answer => 0,
        };
        let generate = Some((self.generate(sampling, begin, spent)?, Some(id)));
        let mut fed = self.carry_out(plan, rendered, generate.clone(), &mut answer);
        while let Err(lost @ DeskError::RowsLost(_)) = &fed
            && answer.first_token.is_none()
        {
            let plan = self.plan_answer(rendered)?;
            self.read_lost_again(lost, &plan);
            fed = self.carry_out(plan, rendered, generate.clone(), &mut answer);
        }
        let last = answer.decoder.finish();
        answer.take(self, last);
        let mut message = answer.message;
        if let Some(first) = answer.first_token {
            message.meta.ttft_ms = first.duration_since(started).as_secs_f64() * 1000.0;
            self.meters.ttft_ms = message.meta.ttft_ms;
        }
        message.meta.thought_ms = answer.thought.map_or(0.0, |t| t.1);
        message.meta.finish = Some(finish_of(&fed));
        let result = match &fed {
            Ok(Fed { end: Some(end), reused, read, .. }) => {
                message.meta.reused_tokens = *reused;
                message.meta.prefilled_tokens = *read;
                if end.stats.decode_ms > 0.0 {
                    message.meta.tokens_per_s = end.stats.generated_tokens as f64 * 1000.0 / end.stats.decode_ms;
                    self.meters.tokens_per_s = message.meta.tokens_per_s;
                }
                Ok(id)
            }
            Ok(Fed { end: None, .. }) => Err(DeskError::Failed("There was nothing to answer to.".into())),
            Err(_) => fed.map(|_| id),
        };
        self.amend(&message);
        self.tell(Notice::Finished(message));
        self.report_meters();
        self.show_tree();
        self.warn_of_full_context();
        result
    }

    /// A plan with something to answer to.
    fn plan_answer(&mut self, rendered: &Rendered) -> Done<Plan> {
        let plan = self.plan(rendered)?;
        if plan.steps.is_empty() {
            // All of it is in the state, and nothing is left to give: the last segment is read once more.
            let shorter = plan.base.segments().len().saturating_sub(1);
            return self.plan_from(rendered, plan.base.prefix(shorter));
        }
        Ok(plan)
    }

    /// `/continue`: goes on with an answer that was stopped or cut off, after `more`.
    pub(super) fn go_on(&mut self, more: &str) -> Done {
        let started = Instant::now();
        self.may_write()?;
        self.need_engine()?;
        let path = self.open.conversation.path();
        let Some(last) = path.last().filter(|m| m.role == Role::Assistant) else {
            return Err(DeskError::Refused("There is no answer at the end to continue.".into()));
        };
        if last.meta.finish == Some(Finish::Stop) && more.is_empty() {
            return Err(DeskError::Refused(
                "The last answer is complete. /continue TEXT goes on with words of yours.".into(),
            ));
        }
        let mut message = (*last).clone();
        let more = match more {
            "" => String::new(),
            m if message.text.is_empty() || message.text.ends_with(char::is_whitespace) => m.to_owned(),
            m => format!(" {m}"),
        };
        let rendered = self.renderer.open_answer(&path, &more, self.open.settings.think)?;
        let plan = self.plan_answer(&rendered)?;
        self.check_room(&plan, "Going on")?;
        let sampling = match message.meta.seed {
            Some(seed) => Sampling { seed, ..self.next_sampling() },
            None => self.next_sampling(),
        };
        message.meta.finish = None;
        // The decoder starts where the answer stands: inside a thought if it ended in one.
        self.write_answer(message, plan, &rendered, sampling, started, &more)?;
        self.settle_quietly()
    }

    /// A sentence, once, when the context is nearly full.
    fn warn_of_full_context(&mut self) {
        let (used, limit) = (self.live.position(), self.meters.context_limit);
        if limit == 0 {
            return;
        }
        let share = u8::try_from(used.saturating_mul(100) / limit).unwrap_or(100);
        let level = [95, 80].into_iter().find(|l| share >= *l).unwrap_or(0);
        if level > self.warned {
            let left = grouped(limit.saturating_sub(used));
            self.note(Level::Warn, format!("About {left} tokens left. /new, /fork #3 or /compact."));
        }
        self.warned = level;
    }
}

/// A seed for one answer. Below 2^53, so that it survives every JSON reader.
fn fresh_seed() -> u64 {
    let id = blake3::hash(format!("{:?}{:?}", std::time::SystemTime::now(), Instant::now()).as_bytes());
    id.as_bytes().first_chunk::<8>().map_or(0, |b| u64::from_le_bytes(*b)) >> 11
}
