//! Questions and answers: asking, going on, answering again, asides. Everything that makes the model speak.
//!
//! Answering again is in `again`, asides in `aside`, the answer that is being written in `answer`.

mod again;
mod answer;
mod aside;
mod sentences;
mod several;

use std::time::Instant;

use super::render::Rendered;
use super::verb::{Verb, Wanted};
use super::{Done, RuntimeError, State};
use crate::core::now_ms;
use crate::core::transcript::{Finish, Message, MessageId, MessageMeta, Role};
use crate::engine::protocol::{Generate, Look, Sampling, Token};
use crate::text::steer::Watched;
use crate::text::{Before, Begin, thoughts};
use again::{Again, known_count};
use answer::{Answer, finish_of};
pub(super) use aside::Shown;

/// What does not fit, in errors.
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

    pub(super) fn next_sampling(&self) -> Sampling {
        self.here.session.settings.for_answer(fresh_seed)
    }

    /// The system text before the first message, if there is one.
    pub(super) fn opening_messages(&self) -> Vec<Message> {
        let text = self.here.session.opening_text().map(str::to_owned);
        text.map(|text| self.draft(Role::System, None, text)).into_iter().collect()
    }

    /// The conversation up to the head and the place where the model answers.
    pub(super) fn prompt(&self, path: &[&Message], what: &str) -> Done<Rendered> {
        let think = self.here.session.settings.think;
        let rendered = self.rendering(path, |renderer, halt, known| renderer.prompt(path, think, halt, known));
        self.known_size(rendered, what)
    }
}

impl Verb {
    /// `Ask`.
    pub(super) async fn ask(&mut self, text: String) -> Done {
        let head = self.here.session.tree.head();
        self.ask_below(head, text, 1).await
    }

    /// `AskForSeveral`: answers with seeds that count on from the first one's.
    pub(super) async fn ask_for_several(&mut self, text: String, count: u64) -> Done {
        known_count(count)?;
        let head = self.here.session.tree.head();
        self.ask_below(head, text, count.max(1)).await
    }

    /// Adds a question below `parent` and answers it `count` times.
    pub(super) async fn ask_below(&mut self, parent: Option<MessageId>, text: String, count: u64) -> Done {
        if text.trim().is_empty() {
            return Err(RuntimeError::Refused("The question is empty. Nothing was asked.".into()));
        }
        let started = Instant::now();
        // Until it is saved it returns to the input if something fails.
        self.here.typed = Some(text.clone());
        self.here.session.may_write()?;
        self.engine_ready().await?;
        // Lost state may have made it a session to look at.
        self.here.session.may_write()?;

        // Saved before the template, which comes from the weights, sees it.
        self.remember_prompt(&text);
        let mut new = if parent.is_none() { self.opening_messages() } else { Vec::new() };
        let question = self.draft(Role::User, new.last().map(|m| m.id).or(parent), text);
        new.push(question);
        let path: Vec<&Message> = self.here.session.tree.path_to(parent).into_iter().chain(&new).collect();
        let rendered = self.prompt(&path, THIS_QUESTION)?;
        let plan = self.planned(&rendered, State::plan_answer).await;
        let plan = self.fitting(plan, THIS_QUESTION)?;

        if self.here.session.tree.head() != parent {
            self.move_head(parent)?;
            self.show_session();
        }
        let mut safe = Wanted::Texts(0);
        for message in new {
            safe = self.add_message(message)?;
        }
        self.here.typed = None;
        let sampling = self.next_sampling();
        if let Some(question) = self.here.session.tree.head().filter(|_| count > 1) {
            self.saved(safe).await;
            return self.answer_again(Again::first(question, count, sampling.seed)).await;
        }
        let answer = self.new_answer(&rendered, sampling, started)?;
        self.write_answer(answer, plan, &rendered).await?;
        self.sync_quietly().await
    }

    /// `/continue`: goes on with an answer that was stopped or cut off, after `more`. An answer that is shared stays as it is, and a
    /// sibling goes on with its text.
    pub(super) async fn go_on(&mut self, more: String) -> Done {
        let started = Instant::now();
        self.here.session.may_write()?;
        self.engine_ready().await?;
        self.here.session.may_write()?;

        let path = self.here.session.tree.path();
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
        let think = self.here.session.settings.think;
        let rendered =
            self.rendering(&path, |renderer, halt, known| renderer.open_answer(&path, &more, think, halt, known));
        let rendered = self.known_size(rendered, GOING_ON)?;
        let plan = self.planned(&rendered, State::plan_answer).await;
        let plan = self.fitting(plan, GOING_ON)?;

        let sampling = match message.meta.seed {
            Some(seed) => Sampling { seed, ..self.next_sampling() },
            None => self.next_sampling(),
        };
        message.meta.finish = None;
        message.meta.seed = message.meta.seed.or(sampling.seed_of_draws());
        let before = message.id;
        let shared = self.is_shared(before);
        if shared {
            message = Message { id: self.draft(message.role, None, String::new()).id, ..message };
        }
        // The decoder starts where the answer ends: inside a thought if it ended in one.
        let mut answer = Answer::new(self, message.clone(), &rendered, sampling, started)?;
        let safe = match shared {
            true => self.add_in_place_of(before, message)?,
            false => {
                // From now on a fork shows that it is being written.
                self.amend(&message);
                Wanted::Texts(0)
            }
        };
        answer.add_words(self, more);
        self.saved(safe).await;
        self.write_answer(answer, plan, &rendered).await?;
        self.sync_quietly().await
    }
}

impl State {
    /// Whether an answer is in another session too, or has messages below it.
    fn is_shared(&self, answer: MessageId) -> bool {
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
