//! `/load`: reads documents into the conversation: gathering, the plan, prefill with progress, a stop in the middle.
//!
//! `gather` finds the documents, `choose` asks about a large load, `from_library` supplies documents of the library,
//! `repeated` finds documents that the conversation holds already, `items` locates documents in the plan, `progress`
//! shows the progress, `stop` handles a stop.

mod choose;
mod from_library;
mod gather;
mod items;
mod progress;
mod repeated;
mod stop;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::executor::PrefillStats;
use super::plan::Plan;
use super::render::Rendered;
use super::segments::Step;
use super::verb::Verb;
use super::{Done, RuntimeError, State};
use crate::core::transcript::{DocumentInfo, Message, MessageId, Role};
use crate::runtime::protocol::{Level, LoadOptions, Notice};
use crate::text::TextError;
use crate::text::sources::{Document, Gathered};
use choose::{Chosen, Decision, keep_only};
pub use from_library::text_as_read;
use items::items;
use progress::{LoadReading, Progressing};
use stop::AfterStop;

/// How often the interface receives the tree while documents are added: building it takes time proportional to its
/// size.
const TREE_SHOWN: Duration = Duration::from_millis(500);

struct Item {
    name: String,
    tokens: u64,
    end: u64,
    /// Kept state contains the whole document.
    kept: bool,
}

struct Draft {
    begun_at: Option<MessageId>,
    /// The system text, if the session begins with this load.
    opening: Vec<Message>,
    messages: Vec<Message>,
    chosen: Chosen,
    library: bool,
    whole: bool,
}

struct Load {
    begun_at: Option<MessageId>,
    rendered: Rendered,
    messages: Vec<Message>,
    items: Vec<Item>,
    library: bool,
    started: Instant,
    progress: Progressing,
    /// The document being read, and the number of documents in the conversation.
    at: usize,
    added: usize,
    tree_shown: Option<Instant>,
    /// Time to make the plan's base live, seconds.
    restored: f64,
    /// The load was restarted once after a crash of the model process.
    begun_again: bool,
    /// Where a stop ended the reading: bytes of the text, and the position.
    upto: usize,
    reached: u64,
}

impl Load {
    fn reached_by(&mut self, e: RuntimeError) -> Done<Reached> {
        match e {
            RuntimeError::Stopped => Ok(Reached::Stopped),
            lost if lost.is_mended_by_reading(&mut self.begun_again) => Ok(Reached::Lost(lost)),
            e => Err(e),
        }
    }
}

fn steps_to(steps: &mut VecDeque<Step>, message: MessageId) -> Vec<Step> {
    let end = steps.iter().position(|step| step.message == Some(message)).map_or(steps.len(), |at| at + 1);
    steps.drain(..end).collect()
}

enum Reached {
    All,
    Stopped,
    /// Kept state was lost; the rest is planned again.
    Lost(RuntimeError),
}

impl Verb {
    pub(super) async fn load(&mut self, paths: Vec<String>, options: LoadOptions) -> Done {
        self.here.session.may_write()?;
        let mut gathered = self.gather(&paths, &options).await?;
        self.say_skipped(&gathered);
        gathered.documents.extend(self.library_documents(&options.library)?);
        self.load_documents(gathered.documents, &options).await
    }

    pub(super) async fn load_documents(&mut self, documents: Vec<Document>, options: &LoadOptions) -> Done {
        let documents = self.shaped(documents, options)?;
        self.engine_ready().await?;
        self.here.session.may_write()?;

        let documents = self.without_repeated(documents).await;
        if documents.is_empty() {
            return Ok(());
        }
        let begun_at = self.here.session.tree.head();
        let opening = self.opening_messages();
        let messages = self.document_messages(documents, opening.last().map(|m| m.id).or(begun_at));
        let whole = options.head.is_none() && options.tail.is_none() && options.pages.is_none();
        let draft = Draft { begun_at, opening, messages, chosen: Chosen::Named, library: !options.once, whole };
        let Some((draft, rendered, items, plan)) = self.planned_load(draft).await? else { return Ok(()) };
        let mut load = self.begin_load(draft, rendered, items, &plan)?;
        self.read_load(&mut load, plan).await
    }

    async fn planned_load(&mut self, mut draft: Draft) -> Done<Option<(Draft, Rendered, Vec<Item>, Plan)>> {
        loop {
            let path = self.here.session.tree.path();
            let path: Vec<&Message> = path.into_iter().chain(&draft.opening).chain(&draft.messages).collect();
            let planned = match self.past_of(&path, self.here.session.settings.think) {
                Err(e) => Err(e),
                Ok(rendered) => self.planned(&rendered, State::plan).await.map(|plan| (rendered, plan)),
            };
            let (offer, planned) = match planned {
                // The load does not fit the context: files are counted one by one, each up to the context's limit.
                Err(RuntimeError::Text(TextError::TooLong { .. })) => (self.offer_without_plan(&draft.messages)?, None),
                Err(e) => return Err(e),
                Ok((rendered, plan)) => {
                    let items = items(&draft.messages, &rendered, &plan)?;
                    let offer = self.load_offer(&draft.messages, &items, &plan);
                    (offer, Some((rendered, items, plan)))
                }
            };
            match self.confirm_load(offer, draft.chosen).await? {
                Decision::Cancel => return Ok(None),
                Decision::Load => match planned {
                    Some((rendered, items, plan)) => return Ok(Some((draft, rendered, items, plan))),
                    None => {
                        return Err(RuntimeError::Failed("internal error: all of a load that does not fit".into()));
                    }
                },
                Decision::Only(files) => {
                    let parent = draft.opening.last().map(|m| m.id).or(draft.begun_at);
                    keep_only(&mut draft.messages, parent, &files);
                    draft.chosen = Chosen::FromList;
                }
            }
        }
    }

    /// Reads the documents of a plan. Plans the rest again after lost state, or when the user continues after a stop.
    async fn read_load(&mut self, load: &mut Load, plan: Plan) -> Done {
        let mut plan = Ok(plan);
        loop {
            let reached = match plan {
                Ok(plan) => self.read_documents(load, plan).await,
                Err(RuntimeError::Stopped) => Ok(Reached::Stopped),
                Err(e) => Err(e),
            };
            let lost = match reached {
                Ok(Reached::All) => {
                    self.say_loaded(&load.items, load.started);
                    self.show_session();
                    self.report_meters();
                    return Ok(());
                }
                Ok(Reached::Stopped) => match self.load_stopped(load).await {
                    AfterStop::GoOn => None,
                    AfterStop::GoBack => {
                        let begun_at = load.begun_at;
                        return match self.keep_part(load).await {
                            Ok(_) => self.go(begun_at, "Went back to").await,
                            Err(e) => {
                                self.move_head(begun_at)?;
                                self.show_session();
                                Err(e)
                            }
                        };
                    }
                    AfterStop::Keep => {
                        self.keep_part(load).await?;
                        self.report_meters();
                        return Ok(());
                    }
                },
                Ok(Reached::Lost(lost)) => Some(lost),
                Err(e) => return Err(self.load_failed(load, e)),
            };
            plan = self.planned(&load.rendered, State::plan).await;
            if let (Ok(plan), Some(lost)) = (&plan, &lost) {
                match lost {
                    // The model process ended while a text was saved.
                    RuntimeError::Stopped => self.say_reading_again(plan),
                    lost => self.read_lost_again(lost, plan),
                }
            }
        }
    }

    /// Makes the plan's base live and reads the documents after it; each message is saved before its document is read.
    async fn read_documents(&mut self, load: &mut Load, plan: Plan) -> Done<Reached> {
        let begun = Instant::now();
        let plan = match self.activate(plan, &load.rendered, State::plan).await {
            Ok(plan) => plan,
            Err(e) => return load.reached_by(e),
        };
        load.restored = begun.elapsed().as_secs_f64();
        let (mut base, found) = (plan.base, plan.found);
        let mut steps: VecDeque<Step> = plan.steps.into();
        load.at = 0;
        while let Some(message) = load.messages.get(load.at).cloned() {
            let found: Vec<_> = found.iter().filter(|(m, _)| *m == message.id).copied().collect();
            let steps = if found.is_empty() { steps_to(&mut steps, message.id) } else { Vec::new() };
            if load.at >= load.added {
                load.added = load.at + 1;
                let safe = self.add_one_of_many(message)?;
                if load.tree_shown.is_none_or(|at| at.elapsed() >= TREE_SHOWN) {
                    self.show_tree();
                    load.tree_shown = Some(Instant::now());
                }
                self.saved(safe).await;
            }
            if !self.here.slot.is_at(&base) {
                return Ok(Reached::Lost(RuntimeError::Stopped));
            }
            let plan = Plan { base, found, steps };
            let (to_read, began) = (plan.to_read(), Instant::now());
            load.progress.begin(load.at, &load.items, to_read);
            let (rendered, mut shown) = (&load.rendered, LoadReading { progress: &mut load.progress, at: load.at });
            let stats = match self.execute(plan, rendered, None, &mut shown).await {
                Ok(stats) if stats.read < to_read => return Ok(Reached::Stopped),
                Ok(stats) => stats,
                Err(e) => return load.reached_by(e),
            };
            base = self.here.slot.live.clone();
            self.document_read(load, &stats, began);
            load.at += 1;
            // Documents with kept state cause no other wait, and the loop must still handle requests.
            self.let_others_go_first().await;
        }
        Ok(Reached::All)
    }
}

impl State {
    pub(super) fn say_skipped(&self, gathered: &Gathered) {
        for skipped in gathered.skipped.iter().take(5) {
            self.note(Level::Warn, format!("Skipped {}: {}", skipped.name, skipped.reason));
        }
        if gathered.skipped.len() > 5 {
            self.note(Level::Warn, format!("Skipped {} more.", gathered.skipped.len() - 5));
        }
    }

    /// A chain of messages, one for each document.
    fn document_messages(&self, documents: Vec<Document>, parent: Option<MessageId>) -> Vec<Message> {
        let mut parent = parent;
        let message = |d: Document| {
            let path = d.path.map(|p| p.display().to_string());
            let info = DocumentInfo::new(&d.name, path, &d.text);
            let mut m = self.draft(Role::Document, parent, d.text);
            m.meta.document = Some(info);
            parent = Some(m.id);
            m
        };
        documents.into_iter().map(message).collect()
    }

    fn begin_load(&mut self, draft: Draft, rendered: Rendered, items: Vec<Item>, plan: &Plan) -> Done<Load> {
        let Draft { begun_at, opening, mut messages, library, whole, .. } = draft;
        for (message, item) in messages.iter_mut().zip(&items) {
            if let Some(d) = &mut message.meta.document {
                (d.tokens, d.once) = (item.tokens, !library);
            }
        }
        // A truncated document always differs from the recorded file.
        if whole {
            self.say_changed(&messages);
            self.say_in_part(&messages);
        }
        for message in opening {
            self.add_message(message)?;
        }
        let left_after = self.here.meters.context_limit.saturating_sub(plan.total());
        Ok(Load {
            begun_at,
            rendered,
            messages,
            library,
            started: Instant::now(),
            progress: Progressing::new(&items, left_after),
            items,
            at: 0,
            added: 0,
            tree_shown: None,
            restored: 0.0,
            begun_again: false,
            upto: 0,
            reached: 0,
        })
    }

    /// A load that fails inside a document keeps the document as partly read; the next question reads the rest. After
    /// a restart from the beginning, that is the last document that was added, wherever the reading was.
    fn load_failed(&mut self, load: &Load, e: RuntimeError) -> RuntimeError {
        let last = load.added.checked_sub(1).and_then(|at| load.messages.get(at));
        if let Some(message) = last.filter(|m| m.is_half_read()) {
            self.here.session.broken_off.insert(message.id);
            self.report(Notice::Finished(message.clone()));
        }
        self.show_tree();
        e
    }

    fn document_read(&mut self, load: &mut Load, stats: &PrefillStats, began: Instant) {
        load.progress.end(load.at, stats, began.elapsed(), load.restored);
        let shown = load.progress.shown();
        self.working(shown);
        let library = load.library;
        let at = load.at;
        if let (Some(message), Some(item)) = (load.messages.get_mut(at), load.items.get(at))
            && let Some(info) = message.meta.document.as_mut().filter(|d| !d.complete)
        {
            info.complete = true;
            let info = info.clone();
            // A server reads the document with the question and counts it then.
            let here = self.engine.server().is_none();
            message.meta.prefilled_tokens = if here { stats.read } else { 0 };
            message.meta.reused_tokens = if here { item.tokens.saturating_sub(stats.read) } else { 0 };
            message.meta.prefill_ms = stats.prefill_ms;
            self.amend(message);
            self.report(Notice::Finished(message.clone()));
            if library && let Some(segment) = self.here.session.ends.get(&message.id).copied() {
                self.add_to_library(&info, item.end.saturating_sub(item.tokens), segment);
            }
        }
    }
}
