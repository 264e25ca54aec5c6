//! Questions and answers: `/ask`, `/continue`, several answers, asides. Every verb that makes the model generate.
//!
//! Several answers are in `again`, asides in `aside`, the growing answer in `answer`.

mod again;
mod answer;
mod aside;
mod sentences;

use std::time::Instant;

use super::{Done, Form, Rendered, State, Verb, refused};
use crate::core::now_ms;
use crate::core::transcript::{Finish, Message, MessageId, MessageMeta, Role};
use crate::engine::protocol::{Generate, Look, Sampling, Token};
use crate::text::steer::{Watched, steering};
use crate::text::{Before, Begin, Delta, quotes, thoughts};
use again::{Again, known_count};
use answer::{Answer, finish_of};
pub(super) use aside::Shown;

/// What errors about the context limit call the text that does not fit.
pub(super) const THIS_QUESTION: &str = "This question";
const GOING_ON: &str = "Going on";

impl State {
    pub fn draft(&self, role: Role, parent: Option<MessageId>, text: String) -> Message {
        Message {
            id: self.disk.store.new_message_id(self.here.tree.newest()),
            parent,
            role,
            text,
            thinking: String::new(),
            created_ms: now_ms(),
            meta: MessageMeta::default(),
        }
    }

    /// Generation parameters of an answer that begins as `begin` says; `spent` tokens of its thoughts exist already.
    pub fn generate(&self, sampling: Sampling, begin: Begin, spent: u64) -> Done<Generate> {
        let settings = &self.here.settings;
        let watched = Watched { thought_tokens: settings.thinking_budget, loops: settings.stop_loops };
        let text = self.engine.renderer.model();
        // A remote server samples by itself.
        let quoting = text.recommended.quoting.as_ref().filter(|_| self.engine.server().is_none());
        Ok(Generate {
            sampling,
            max_tokens: settings.max_tokens,
            stop: self.engine.stop_ids.clone(),
            spec: settings.spec,
            steering: steering(watched, &text.tokenizer, begin, spent)?,
            look: Look { thoughts_until: self.thoughts_until(begin)?, each_token: false },
            constraint: quoting.map(|quoting| quotes::constraint(quoting, &text.tokenizer, &self.engine.stop_ids)),
            likely: None,
        })
    }

    /// The token that ends the thoughts of an answer that begins inside them; `None` if several tokens spell the end.
    pub fn thoughts_until(&self, begin: Begin) -> Done<Option<Token>> {
        if begin == Begin::Answer {
            return Ok(None);
        }
        let tag = self.engine.tokenizer().encode_after(thoughts::CLOSE, Before::Text)?;
        Ok(if let [one] = tag.as_slice() { Some(*one) } else { None })
    }

    pub fn next_sampling(&self) -> Sampling {
        self.here.settings.for_answer(fresh_seed)
    }

    pub fn opening_messages(&self) -> Vec<Message> {
        let session = &self.here.session;
        let text = session.system.clone().filter(|text| session.tree.head().is_none() && !text.trim().is_empty());
        text.map(|text| self.draft(Role::System, None, text)).into_iter().collect()
    }

    /// A conversation that ends with a question.
    pub fn prompt(&self, path: &[&Message]) -> Done<Rendered> {
        self.known_size(self.rendered(path, Form::Prompt), THIS_QUESTION)
    }
}

impl Verb {
    pub async fn ask(&mut self, text: String) -> Done {
        let head = self.here.tree.head();
        self.ask_below(head, text, 1).await
    }

    /// Answers a question `count` times; each seed is one more than the seed before.
    pub async fn ask_for_several(&mut self, text: String, count: u64) -> Done {
        known_count(count)?;
        let head = self.here.tree.head();
        self.ask_below(head, text, count.max(1)).await
    }

    pub async fn ask_below(&mut self, parent: Option<MessageId>, text: String, count: u64) -> Done {
        if text.trim().is_empty() {
            return refused("The question is empty. Nothing was asked.");
        }
        let started = Instant::now();
        // If the verb fails before the question is saved, the text returns to the input.
        self.here.typed = Some(text.clone());
        self.here.may_write()?;
        self.model_known().await?;
        // Lost state may have made the session read-only.
        self.here.may_write()?;

        // Saved before the template runs: the template is part of the weights folder and may fail.
        self.remember(text.clone())?;
        let mut new = if parent.is_none() { self.opening_messages() } else { Vec::new() };
        let last = |new: &[Message]| new.last().map(|m| m.id).or(parent);
        new.extend(self.updates(parent, last(&new), true).await?);
        new.push(self.draft(Role::User, last(&new), text));
        let path: Vec<&Message> = self.here.tree.path_to(parent).into_iter().chain(&new).collect();
        let rendered = self.prompt(&path)?;
        let plan = self.fitted(&rendered, State::plan_answer, THIS_QUESTION).await?;

        if self.here.tree.head() != parent {
            self.move_head(parent)?;
            self.show_session();
        }
        for message in new {
            self.add_message(message)?;
        }
        self.here.typed = None;
        self.unparked().await?;
        let sampling = self.next_sampling();
        if let Some(question) = self.here.tree.head().filter(|_| count > 1) {
            self.texts_saved().await;
            let seed = Some(sampling.seed);
            return self.answer_again(Again { question, count, answered: false, temperature: None, seed }).await;
        }
        let answer = self.new_answer(&rendered, sampling, started)?;
        self.write_answer(answer, plan, &rendered).await?;
        self.sync_quietly().await
    }

    /// `/continue`. A shared answer stays unchanged; its extension is a sibling that begins with its text.
    pub async fn go_on(&mut self, more: Option<String>) -> Done {
        let more = more.unwrap_or_default();
        let started = Instant::now();
        self.ready_to_write().await?;
        let path = self.here.tree.path();
        let Some(last) = path.last().filter(|m| m.role == Role::Assistant) else {
            return refused("There is no unfinished answer to continue.");
        };
        if last.meta.finish == Some(Finish::Stop) && more.is_empty() {
            return refused("The last answer is complete. /continue TEXT continues it with your words.");
        }
        let mut message = (*last).clone();
        let more = match more.as_str() {
            "" => String::new(),
            m if message.text.is_empty() || message.text.ends_with(char::is_whitespace) => m.to_owned(),
            m => format!(" {m}"),
        };
        let rendered = self.known_size(self.rendered(&path, Form::Open(&more)), GOING_ON)?;
        let plan = self.fitted(&rendered, State::plan_answer, GOING_ON).await?;

        let sampling = match message.meta.seed {
            Some(seed) => Sampling { seed, ..self.next_sampling() },
            None => self.next_sampling(),
        };
        message.meta.finish = None;
        message.meta.seed = message.meta.seed.or(sampling.seed_of_draws());
        let before = message.id;
        // If the look-up fails, the answer counts as shared and is not changed.
        let had_by_others = |session| self.disk.store.is_had_by_others(before, session).unwrap_or(true);
        let shared = !self.here.tree.children(Some(before)).is_empty() || self.here.id.is_none_or(had_by_others);
        if shared {
            message.id = self.draft(message.role, None, String::new()).id;
        }
        // The decoder continues in the state in which the answer ended, possibly inside a thought.
        let mut answer = Answer::new(self, message.clone(), &rendered, sampling, started)?;
        if shared {
            let sibling = message.id;
            self.move_head(message.parent)?;
            self.show_session();
            self.add_message(message)?;
            if let Some(segment) = self.here.ends.get(&before).copied() {
                self.point(sibling, segment);
            }
            self.texts_saved().await;
        } else {
            // A fork made from now on sees that the answer is unfinished.
            self.amend(&message);
        }
        answer.take(self, Delta { thinking: String::new(), answer: more });
        self.write_answer(answer, plan, &rendered).await?;
        self.sync_quietly().await
    }
}

/// A seed for one answer. Below 2^53, so that every JSON reader keeps it exactly.
pub fn fresh_seed() -> u64 {
    let id = blake3::hash(format!("{:?}{:?}", std::time::SystemTime::now(), Instant::now()).as_bytes());
    id.as_bytes().first_chunk::<8>().map_or(0, |b| u64::from_le_bytes(*b)) >> 11
}
