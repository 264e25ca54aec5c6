//! `/load`: reads documents into the conversation: gathering, the plan, prefill with progress, a stop in the middle.
//!
//! `gather` finds the documents, `choose` locates them in the plan and asks about a large load, `progress` shows the
//! progress and handles a stop.

mod choose;
mod gather;
mod progress;

use std::time::Instant;

use super::{Done, Form, Notice, Plan, Rendered, RuntimeError, State, Verb};
use crate::core::transcript::{DocumentInfo, Message, Role};
use crate::runtime::protocol::{FileProgress, LoadOptions};
use crate::text::TextError;
use crate::text::sources::Document;
use choose::{items, keep_only};

struct Item {
    file: FileProgress,
    /// Position of its last token in the context, and the end of its text in the rendering.
    end: u64,
    text_end: usize,
    /// Kept state contains the whole document.
    kept: bool,
}

impl Item {
    fn start(&self) -> u64 {
        self.end - self.file.tokens
    }
}

/// Documents that are read by the executor. Each is on disk before its first token is read.
struct Load {
    messages: Vec<Message>,
    items: Vec<Item>,
    total: u64,
    left_after: u64,
    started: Instant,
    /// The number of documents in the conversation.
    added: usize,
    /// The document that is being read, since this time.
    at: usize,
    since: Instant,
    /// Tokens and milliseconds of the documents that were read since the plan was made.
    read: u64,
    ms: f64,
}

impl Verb {
    pub async fn load(&mut self, paths: Vec<String>, options: LoadOptions) -> Done {
        self.here.may_write()?;
        let mut documents = self.gather(&paths, &options).await?.documents;
        documents.extend(self.library_documents(&options.library)?);
        self.load_documents(documents, &options).await
    }

    pub async fn load_documents(&mut self, documents: Vec<Document>, options: &LoadOptions) -> Done {
        let documents = self.shaped(documents, options)?;
        self.ready_to_write().await?;

        let documents = self.without_repeated(documents);
        if documents.is_empty() {
            return Ok(());
        }
        let opening = self.opening_messages();
        let mut parent = opening.last().map(|m| m.id).or(self.here.tree.head());
        let message = |d: Document| {
            let info = DocumentInfo::new(&d.name, d.path.map(|p| p.display().to_string()), &d.text);
            let mut message = self.draft(Role::Document, parent, d.text);
            message.meta.document = Some(info);
            parent = Some(message.id);
            message
        };
        let mut messages: Vec<Message> = documents.into_iter().map(message).collect();
        let Some((rendered, items, plan)) = self.planned_load(&opening, &mut messages).await? else { return Ok(()) };
        for (message, item) in messages.iter_mut().zip(&items) {
            if let Some(d) = &mut message.meta.document {
                (d.tokens, d.once) = (item.file.tokens, options.once);
            }
        }
        for message in opening {
            self.add_message(message)?;
        }
        let mut load = Load {
            messages,
            total: items.iter().map(|i| i.file.tokens).sum(),
            items,
            left_after: self.engine.info.context_limit.saturating_sub(plan.total()),
            started: Instant::now(),
            added: 0,
            at: 0,
            since: Instant::now(),
            read: 0,
            ms: 0.0,
        };
        let done = self.read_load(&mut load, &rendered, plan).await;
        // A document that was read in part stays; the next question reads the rest.
        if done.is_err() {
            let half = self.here.tree.path().into_iter().rfind(|m| m.is_half_read()).cloned();
            half.into_iter().for_each(|message| self.report(Notice::Finished(message)));
            self.show_tree();
        }
        done
    }

    /// Plans a load until it fits and the user confirms it. Files that the user leaves out leave `messages`.
    async fn planned_load(
        &mut self,
        opening: &[Message],
        messages: &mut Vec<Message>,
    ) -> Done<Option<(Rendered, Vec<Item>, Plan)>> {
        let mut chosen = false;
        loop {
            let path = self.here.tree.path();
            let path: Vec<&Message> = path.into_iter().chain(opening).chain(messages.iter()).collect();
            let planned = match self.rendered(&path, Form::Past) {
                Err(e) => Err(e),
                Ok(rendered) => self.planned(&rendered, State::plan).await.map(|plan| (rendered, plan)),
            };
            let (offer, planned) = match planned {
                Err(RuntimeError::Text(TextError::TooLong { .. })) => (self.offer_without_plan(messages)?, None),
                Err(RuntimeError::Stopped) => return Err(self.nothing_loaded()),
                Err(e) => return Err(e),
                Ok((rendered, plan)) => {
                    let items = items(messages, &rendered, &plan)?;
                    (self.load_offer(&items, &plan), Some((rendered, items, plan)))
                }
            };
            let Some(files) = self.confirm_load(offer, messages, chosen).await? else { return Ok(None) };
            match planned {
                Some(planned) if files.len() == messages.len() => return Ok(Some(planned)),
                _ => keep_only(messages, &files),
            }
            chosen = true;
        }
    }

    /// Reads the documents of a plan. Plans the rest again after lost state, or when the user continues after a stop.
    async fn read_load(&mut self, load: &mut Load, rendered: &Rendered, plan: Plan) -> Done {
        let (mut plan, mut begun_again) = (Ok(plan), false);
        loop {
            let read = match plan {
                Ok(plan) => self.read_documents(load, rendered, plan).await,
                Err(e) => Err(e),
            };
            let stopped = matches!(read, Err(RuntimeError::Stopped));
            let lost = match read {
                Ok(true) => break,
                Ok(false) => None,
                Err(RuntimeError::Stopped) if self.load_stopped(load, rendered).await? => None,
                Err(RuntimeError::Stopped) => return Ok(()),
                Err(lost) if lost.is_mended_by_reading(&mut begun_again) => Some(lost),
                Err(e) => return Err(e),
            };
            plan = self.planned(rendered, State::plan).await;
            match (&plan, lost) {
                (Ok(plan), Some(lost)) => self.read_lost_again(&lost, plan),
                (Ok(plan), None) if !stopped => self.say_reading_again(plan),
                _ => {}
            }
        }
        self.say_loaded(load);
        self.show_session();
        self.report_meters();
        Ok(())
    }

    /// False: the model process ended while a text was saved.
    async fn read_documents(&mut self, load: &mut Load, rendered: &Rendered, plan: Plan) -> Done<bool> {
        let kept = load.items.iter().take_while(|item| item.text_end <= plan.base.text_bytes()).count();
        (load.at, load.since) = (kept, Instant::now());
        load.add(self, kept.max(1))?;
        self.texts_saved().await;
        (load.read, load.ms) = (0, 0.0);
        self.execute(plan, rendered, None, load).await?;
        self.shelve_what_is_read();
        let whole = self.here.slot.live.text_bytes() >= rendered.text.len();
        if !whole && self.here.slot.stopped() { Err(RuntimeError::Stopped) } else { Ok(whole) }
    }
}
