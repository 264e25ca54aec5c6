//! `/load`: reads documents into the conversation: gathering, the plan, prefill with progress, a stop in the middle.
//!
//! `gather` finds the documents, `choose` locates them in the plan and asks about a large load, `progress` shows the
//! progress and handles a stop.

mod choose;
mod gather;
mod progress;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::{Done, Form, Notice, Plan, PrefillStats, Rendered, RuntimeError, State, Step, Verb, Wait};
use crate::core::transcript::{DocumentInfo, Message, Role};
use crate::runtime::protocol::{FileProgress, FileState, LoadOptions};
use crate::text::TextError;
use crate::text::sources::Document;
use choose::{Decision, items, keep_only};

struct Item {
    file: FileProgress,
    /// Position of its last token in the context.
    end: u64,
    /// Kept state contains the whole document.
    kept: bool,
}

impl Item {
    fn start(&self) -> u64 {
        self.end - self.file.tokens
    }
}

#[derive(Default)]
struct Load {
    messages: Vec<Message>,
    items: Vec<Item>,
    total: u64,
    left_after: u64,
    library: bool,
    started: Option<Instant>,
    /// The document being read, and the number of documents in the conversation.
    at: usize,
    added: usize,
    /// Tokens read by earlier jobs, and the time they took.
    read: u64,
    reading: Duration,
    /// Time to make the plan's base live, seconds.
    restored: f64,
    /// The load was restarted once after a crash of the model process.
    begun_again: bool,
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
            library: !options.once,
            started: Some(Instant::now()),
            ..Load::default()
        };
        let done = self.read_load(&mut load, &rendered, plan).await;
        // A document that was read in part stays; the next question reads the rest. After a restart from the beginning,
        // that is the last document that was added, wherever the reading was.
        if done.is_err() {
            if let Some(message) = load.messages.iter().take(load.added).next_back().filter(|m| m.is_half_read()) {
                self.report(Notice::Finished(message.clone()));
            }
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
            match (self.confirm_load(offer, messages, chosen).await?, planned) {
                (Decision::Cancel, _) => return Ok(None),
                (Decision::Load, Some(planned)) => return Ok(Some(planned)),
                (Decision::Load, None) => {
                    return Err(RuntimeError::Failed("internal error: all of a load that does not fit".into()));
                }
                (Decision::Only(files), _) => {
                    keep_only(messages, &files);
                    chosen = true;
                }
            }
        }
    }

    /// Reads the documents of a plan. Plans the rest again after lost state, or when the user continues after a stop.
    async fn read_load(&mut self, load: &mut Load, rendered: &Rendered, plan: Plan) -> Done {
        let mut plan = Ok(plan);
        loop {
            let read = match plan {
                Ok(plan) => self.read_documents(load, rendered, plan).await,
                Err(e) => Err(e),
            };
            let stopped = matches!(read, Err(RuntimeError::Stopped));
            let lost = match read {
                Ok(true) => {
                    self.say_loaded(load);
                    self.show_session();
                    self.report_meters();
                    return Ok(());
                }
                Ok(false) => None,
                Err(RuntimeError::Stopped) => {
                    if !self.load_stopped(load, rendered).await? {
                        return Ok(());
                    }
                    None
                }
                Err(lost) if lost.is_mended_by_reading(&mut load.begun_again) => Some(lost),
                Err(e) => return Err(e),
            };
            plan = self.planned(rendered, State::plan).await;
            match (&plan, lost) {
                (Ok(plan), Some(lost)) => self.read_lost_again(&lost, plan),
                (Ok(plan), None) if !stopped => self.say_reading_again(plan),
                _ => {}
            }
        }
    }

    /// Makes the plan's base live and reads the documents after it; each message is saved before its document is read.
    /// False: the model process ended while a text was saved.
    async fn read_documents(&mut self, load: &mut Load, rendered: &Rendered, plan: Plan) -> Done<bool> {
        let begun = Instant::now();
        let plan = self.activate(plan, rendered, State::plan).await?;
        load.restored = begun.elapsed().as_secs_f64();
        let (mut base, found) = (plan.base, plan.found);
        let mut steps: VecDeque<Step> = plan.steps.into();
        load.at = 0;
        while let Some(message) = load.messages.get(load.at).cloned() {
            let found: Vec<_> = found.iter().filter(|(m, _)| *m == message.id).copied().collect();
            let end = match steps.iter().position(|step| step.message == Some(message.id)) {
                _ if !found.is_empty() => 0,
                at => at.map_or(steps.len(), |at| at + 1),
            };
            let steps = steps.drain(..end).collect();
            if load.at >= load.added {
                load.added = load.at + 1;
                self.add_one_of_many(message)?;
                self.texts_saved().await;
            }
            if !self.here.slot.is_at(&base) {
                return Ok(false);
            }
            let plan = Plan { base, found, steps };
            let (to_read, began) = (plan.to_read(), Instant::now());
            let stats = self.execute(plan, rendered, None, load).await?;
            if stats.read < to_read {
                return Err(RuntimeError::Stopped);
            }
            base = self.here.slot.live.clone();
            self.document_read(load, &stats, began.elapsed());
            load.at += 1;
            // Documents with kept state cause no other wait, and the loop must still handle requests.
            self.wait(Wait::Turn).await;
        }
        Ok(true)
    }
}

impl State {
    fn document_read(&mut self, load: &mut Load, stats: &PrefillStats, took: Duration) {
        load.read += stats.read;
        load.reading += took;
        let Some(item) = load.items.get_mut(load.at) else { return };
        item.file.state = match (item.file.state, stats.read) {
            (FileState::Waiting, 0) => FileState::FromLibrary(load.restored),
            (FileState::Waiting | FileState::Reading(_), _) => FileState::Done(took.as_secs_f64()),
            (before @ (FileState::Done(_) | FileState::FromLibrary(_)), _) => before,
        };
        let (tokens, starts_at) = (item.file.tokens, item.start());
        self.working(load.shown(self.here.slot.live.position()));
        let Some(message) = load.messages.get_mut(load.at) else { return };
        let Some(info) = message.meta.document.as_mut().filter(|d| !d.complete) else { return };
        info.complete = true;
        let info = info.clone();
        if self.engine.server().is_none() {
            // A server reads the document with the question and counts it then.
            message.meta.prefilled_tokens = stats.read;
            message.meta.reused_tokens = tokens.saturating_sub(stats.read);
        }
        message.meta.prefill_ms = stats.prefill_ms;
        self.amend(message);
        self.report(Notice::Finished(message.clone()));
        if let Some(segment) = self.here.ends.get(&message.id).copied().filter(|_| load.library) {
            self.add_to_library(&info, starts_at, segment);
        }
    }
}
