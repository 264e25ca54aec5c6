//! Questions and answers: asking, going on, answering again, asides. Everything that makes the model speak.
//!
//! Answering again is in `again`, asides in `aside`, the answer that is being written in `answer`.

mod again;
mod answer;
mod aside;
mod sentences;
mod several;

use std::sync::Arc;
use std::time::Instant;

use super::render::Rendered;
use super::work::Wanted;
use super::{Done, RuntimeError, State};
use crate::core::now_ms;
use crate::core::transcript::{Finish, Message, MessageId, MessageMeta, Role};
use crate::engine::protocol::{Generate, Look, Sampling, Token};
use crate::text::steer::Watched;
use crate::text::{Before, Begin, thoughts};
use again::{Again, known_count};
use answer::{Answer, finish_of};
pub(super) use aside::Shown;

/// What is said to be too long.
const THIS_QUESTION: &str = "This question";
const GOING_ON: &str = "Going on";

impl State {
    /// A message that is not saved yet.
    pub(super) fn draft(&self, role: Role, parent: Option<MessageId>, text: String) -> Message {
        Message {
            id: self.disk.store.new_message_id(self.here.session.tree.newest()),
            parent,
            role,
            text,
            thinking: String::new(),
            created_ms: now_ms(),
            meta: MessageMeta::default(),
        }
    }

    /// What to generate for an answer that begins like this; `spent` tokens of its thought were written before.
    pub(super) fn generate(&self, sampling: Sampling, begin: Begin, spent: u64) -> Done<Generate> {
        let settings = &self.here.session.settings;
        let watched = Watched { thought_tokens: settings.thinking_budget, loops: settings.stop_loops };
        let text = self.engine.renderer.model();
        // A server draws its tokens itself.
        let quoting = text.recommended.quoting().filter(|_| self.engine.server().is_none());
        Ok(Generate {
            sampling,
            max_tokens: settings.max_tokens,
            stop: self.engine.stop_ids.clone(),
            spec: settings.spec,
            steering: watched.steering(&text.tokenizer, begin, spent)?,
            look: Look { thoughts_until: self.thoughts_until(begin)?, each_token: false },
            constraint: quoting.map(|quoting| quoting.clone().constraint(&text.tokenizer, &self.engine.stop_ids)),
            likely: None,
        })
    }

    /// The token that ends the thoughts of an answer that begins inside them; `None` where it is no single one.
    pub(super) fn thoughts_until(&self, begin: Begin) -> Done<Option<Token>> {
        match begin {
            Begin::Answer => Ok(None),
            Begin::Thought => {
                let tag = self.engine.renderer.model().tokenizer.encode_behind(thoughts::CLOSE, Before::Text)?;
                Ok(match tag.as_slice() {
                    [one] => Some(*one),
                    _ => None,
                })
            }
        }
    }

    fn next_sampling(&self) -> Sampling {
        self.here.session.settings.for_answer(fresh_seed)
    }

    /// What goes in front of the first message: the system text, if there is one.
    pub(super) fn opening_messages(&self) -> Vec<Message> {
        let text = self.here.session.opening_text().map(str::to_owned);
        text.map(|text| self.draft(Role::System, None, text)).into_iter().collect()
    }

    /// The conversation up to the head and the place where the model answers.
    pub(super) fn prompt(&self, path: &[&Message], what: &str) -> Done<Arc<Rendered>> {
        let think = self.here.session.settings.think;
        let rendered = self.rendering(path, |renderer, halt, known| renderer.prompt(path, think, halt, known));
        Ok(Arc::new(self.known_size(rendered, what)?))
    }

    /// `Ask`.
    pub(super) fn ask(&mut self, text: String) -> Done {
        self.ask_below(self.here.session.tree.head(), text)
    }

    /// `AskForSeveral`: answers with seeds that count on from the first one's.
    pub(super) fn ask_for_several(&mut self, text: String, count: u64) -> Done {
        known_count(count)?;
        match count {
            0 | 1 => self.ask(text),
            count => self.ask_with(self.here.session.tree.head(), text, count),
        }
    }

    /// Adds a question below `parent` and answers it.
    pub(super) fn ask_below(&mut self, parent: Option<MessageId>, text: String) -> Done {
        self.ask_with(parent, text, 1)
    }

    fn ask_with(&mut self, parent: Option<MessageId>, text: String, count: u64) -> Done {
        if text.trim().is_empty() {
            return Err(RuntimeError::Refused("The question is empty. Nothing was asked.".into()));
        }
        let started = Instant::now();
        // Until it is saved it goes back to where it was typed.
        self.here.typed = Some(text.clone());
        self.here.session.may_write()?;
        self.with_engine(move |runtime| {
            // What was lost may have made it a session to look at.
            runtime.here.session.may_write()?;
            let mut new = if parent.is_none() { runtime.opening_messages() } else { Vec::new() };
            let question = runtime.draft(Role::User, new.last().map(|m| m.id).or(parent), text);
            new.push(question);
            // Kept before the template, which comes with the weights, sees it.
            new.iter().filter(|m| m.role == Role::User).for_each(|m| runtime.remember_prompt(&m.text));
            let path: Vec<&Message> = runtime.here.session.tree.path_to(parent).into_iter().chain(&new).collect();
            let rendered = runtime.prompt(&path, THIS_QUESTION)?;
            runtime.when_planned(rendered, State::plan_answer, move |runtime, rendered, plan| {
                let plan = runtime.fitting(plan, THIS_QUESTION)?;
                if runtime.here.session.tree.head() != parent {
                    runtime.move_head(parent)?;
                    runtime.show_session();
                }
                let mut safe = Wanted::Texts(0);
                for message in new {
                    safe = runtime.add_message(message)?;
                }
                runtime.here.typed = None;
                let sampling = runtime.next_sampling();
                if let Some(question) = runtime.here.session.tree.head().filter(|_| count > 1) {
                    let several = Again::first(question, count, sampling.seed);
                    return runtime.when_saved(safe, |runtime| runtime.answer_again(several));
                }
                let answer = runtime.new_answer(&rendered, sampling, started)?;
                runtime.write_answer(answer, plan, rendered, |runtime, _| runtime.sync_quietly())
            })
        })
    }

    /// `/continue`: goes on with an answer that was stopped or cut off, after `more`. One that others have as it is stays, and a
    /// sibling goes on with its text.
    pub(super) fn go_on(&mut self, more: &str) -> Done {
        let started = Instant::now();
        self.here.session.may_write()?;
        let more = more.to_owned();
        self.with_engine(move |runtime| {
            runtime.here.session.may_write()?;
            let path = runtime.here.session.tree.path();
            let Some(last) = path.last().filter(|m| m.role == Role::Assistant) else {
                return Err(RuntimeError::Refused("There is no answer at the end to continue.".into()));
            };
            if last.meta.finish == Some(Finish::Stop) && more.is_empty() {
                return Err(RuntimeError::Refused(
                    "The last answer is complete. /continue TEXT goes on with words of yours.".into(),
                ));
            }
            let mut message = (*last).clone();
            let more = match more.as_str() {
                "" => String::new(),
                m if message.text.is_empty() || message.text.ends_with(char::is_whitespace) => m.to_owned(),
                m => format!(" {m}"),
            };
            let think = runtime.here.session.settings.think;
            let rendered = runtime
                .rendering(&path, |renderer, halt, known| renderer.open_answer(&path, &more, think, halt, known));
            let rendered = runtime.known_size(rendered, GOING_ON)?;
            runtime.when_planned(Arc::new(rendered), State::plan_answer, move |runtime, rendered, plan| {
                let plan = runtime.fitting(plan, GOING_ON)?;
                let sampling = match message.meta.seed {
                    Some(seed) => Sampling { seed, ..runtime.next_sampling() },
                    None => runtime.next_sampling(),
                };
                message.meta.finish = None;
                message.meta.seed = message.meta.seed.or(sampling.seed_of_draws());
                let before = message.id;
                let beside = runtime.is_had_by_others(before);
                if beside {
                    message = Message { id: runtime.draft(message.role, None, String::new()).id, ..message };
                }
                // The decoder starts where the answer stands: inside a thought if it ended in one.
                let answer = Answer::new(runtime, message.clone(), &rendered, sampling, started)?;
                let safe = match beside {
                    true => runtime.add_in_place_of(before, message)?,
                    false => {
                        // From now on whoever forks here sees that it is being written.
                        runtime.amend(&message);
                        Wanted::Texts(0)
                    }
                };
                let answer = answer.after(runtime, more);
                runtime.when_saved(safe, move |runtime| {
                    runtime.write_answer(answer, plan, rendered, |runtime, _| runtime.sync_quietly())
                })
            })
        })
    }

    /// Whether an answer stands in another session too, or something was said below it.
    fn is_had_by_others(&self, answer: MessageId) -> bool {
        let below = !self.here.session.tree.children(Some(answer)).is_empty();
        // In doubt it stays as it is.
        let shared = |session| self.disk.store.is_had_by_others(answer, session).unwrap_or(true);
        below || self.here.session.id.is_none_or(shared)
    }

    /// Puts a sibling of an answer, with the same text, in its place: it has the same state, and is shown as one that is being
    /// written.
    fn add_in_place_of(&mut self, before: MessageId, sibling: Message) -> Done<Wanted> {
        let id = sibling.id;
        self.move_head(sibling.parent)?;
        self.show_session();
        let safe = self.add_message(sibling)?;
        if let Some(segment) = self.here.session.ends.get(&before).copied() {
            self.point(id, segment);
        }
        Ok(safe)
    }
}

/// A seed for one answer. Below 2^53, so that it survives every JSON reader.
pub fn fresh_seed() -> u64 {
    let id = blake3::hash(format!("{:?}{:?}", std::time::SystemTime::now(), Instant::now()).as_bytes());
    id.as_bytes().first_chunk::<8>().map_or(0, |b| u64::from_le_bytes(*b)) >> 11
}
