//! Reading documents into the conversation: gathering, the plan, reading with progress, stopping in the middle.
//!
//! Gathering is in `gather`, whether the load is wanted in `choose`, documents of the library in `shelved`, those that are here already in `repeated`, the documents' places
//! in the plan in `items`, what is shown meanwhile in `progress`, stopping in `stop`.

mod choose;
mod gather;
mod items;
mod progress;
mod repeated;
mod shelved;
mod stop;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::execute::Fed;
use super::path::Path;
use super::plan::Plan;
use super::render::Rendered;
use super::segments::Step;
use super::work::Wanted;
use super::{Done, RuntimeError, State, Work, grouped};
use crate::core::transcript::{DocumentInfo, Message, MessageId, Role};
use crate::runtime::protocol::{Level, LoadOptions, Notice};
use crate::store::SegmentId;
use crate::text::TextError;
use crate::text::sources::{Document, Gathered};
use choose::{Chosen, Decision, keep_only};
use items::items;
use progress::Progressing;

/// How often the tree of the conversation is shown while documents are added: it is made of all of them.
const TREE_SHOWN: Duration = Duration::from_millis(500);

/// When `/load` shows a plan first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadLimits {
    /// Above so many tokens.
    pub confirm_tokens: u64,
    /// Above so many files.
    pub confirm_files: usize,
}

impl Default for LoadLimits {
    fn default() -> Self {
        LoadLimits { confirm_tokens: 50_000, confirm_files: 20 }
    }
}

/// A document of a load.
struct Item {
    name: String,
    tokens: u64,
    /// Position after it.
    end: u64,
    /// All of it is in kept state.
    kept: bool,
}

/// What a load is to be, before it is decided.
struct Wish {
    begun_at: Option<MessageId>,
    /// The system text, if the session begins with this load.
    opening: Vec<Message>,
    messages: Vec<Message>,
    chosen: Chosen,
    /// The documents go to the library.
    library: bool,
    /// Nothing was cut off.
    whole: bool,
}

/// A load that runs.
struct Load {
    begun_at: Option<MessageId>,
    rendered: Arc<Rendered>,
    messages: Vec<Message>,
    items: Vec<Item>,
    library: bool,
    started: Instant,
    progress: Progressing,
    /// The document being read, and how many of them are in the conversation.
    at: usize,
    added: usize,
    /// When the conversation's tree was shown with the documents that are in it.
    tree_shown: Option<Instant>,
    /// The path that is live as far as the load knows: the rest of the plan was cut for what follows it.
    base: Path,
    /// Of the present plan: what is left to read, and what need not be.
    steps: VecDeque<Step>,
    found: Vec<(MessageId, SegmentId)>,
    /// How long the plan's base took to be made live, seconds.
    restored: f64,
    /// It was begun once more, as the process that ran the model had ended.
    begun_again: bool,
    /// How far it had come wherever it was stopped: bytes of the text, and the position.
    upto: usize,
    reached: u64,
}

impl Load {
    /// The steps of one document, taken out of the plan's.
    fn take_steps(&mut self, message: MessageId) -> Vec<Step> {
        let mut mine = Vec::new();
        if self.found.iter().any(|(m, _)| *m == message) {
            return mine;
        }
        while let Some(step) = self.steps.pop_front() {
            let last = step.message == Some(message);
            mine.push(step);
            if last {
                break;
            }
        }
        mine
    }
}

impl State {
    /// `/load`.
    pub(super) fn load(&mut self, paths: &[String], options: &LoadOptions) -> Done {
        self.here.session.may_write()?;
        let options = options.clone();
        self.gather(paths, &options.clone(), move |runtime, mut gathered| {
            runtime.say_skipped(&gathered);
            gathered.documents.extend(runtime.library_documents(&options.library)?);
            let documents = runtime.shaped(gathered.documents, &options)?;
            runtime.with_engine(move |runtime| {
                runtime.here.session.may_write()?;
                let whole = options.head.is_none() && options.tail.is_none() && options.pages.is_none();
                runtime.without_repeated(documents, move |runtime, documents| {
                    let begun_at = runtime.here.session.tree.head();
                    let opening = runtime.opening_messages();
                    let messages = runtime.document_messages(documents, opening.last().map(|m| m.id).or(begun_at));
                    let (chosen, library) = (Chosen::Named, !options.once);
                    runtime.plan_load(Wish { begun_at, opening, messages, chosen, library, whole })
                })
            })
        })
    }

    pub(super) fn say_skipped(&self, gathered: &Gathered) {
        for skipped in gathered.skipped.iter().take(5) {
            self.note(Level::Warn, format!("Skipped {}: {}", skipped.name, skipped.reason));
        }
        if gathered.skipped.len() > 5 {
            self.note(Level::Warn, format!("Skipped {} more.", gathered.skipped.len() - 5));
        }
    }

    /// A message for each document, below each other.
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

    /// Plans a load and asks about it, until it is decided what is read.
    fn plan_load(&mut self, wish: Wish) -> Done {
        let path = self.here.session.tree.path();
        let path: Vec<&Message> = path.into_iter().chain(&wish.opening).chain(&wish.messages).collect();
        let rendered = match self.past_of(&path, self.here.session.settings.think) {
            Err(RuntimeError::Text(TextError::TooLong { .. })) => return self.offer_some(wish),
            rendered => rendered?,
        };
        self.when_planned(rendered, State::plan, move |runtime, rendered, plan| {
            let plan = match plan {
                Err(RuntimeError::Text(TextError::TooLong { .. })) => return runtime.offer_some(wish),
                plan => plan?,
            };
            let items = items(&wish.messages, &rendered, &plan)?;
            let offer = runtime.load_offer(&wish.messages, &items, &plan);
            runtime.confirm_load(offer, wish.chosen, move |runtime, decision| match decision {
                Decision::Load => runtime.begin_load(wish, rendered, items, plan),
                Decision::Only(files) => runtime.plan_some(wish, &files),
                Decision::Cancel => Ok(()),
            })
        })
    }

    /// Plans a load of some of its files.
    fn plan_some(&mut self, mut wish: Wish, files: &[usize]) -> Done {
        let parent = wish.opening.last().map(|m| m.id).or(wish.begun_at);
        keep_only(&mut wish.messages, parent, files);
        wish.chosen = Chosen::FromList;
        self.plan_load(wish)
    }

    /// A load with more tokens than the context holds: none of it was planned, its files are counted one by one, none further
    /// than that.
    fn offer_some(&mut self, wish: Wish) -> Done {
        let offer = self.offer_without_plan(&wish.messages)?;
        self.confirm_load(offer, wish.chosen, move |runtime, decision| match decision {
            Decision::Load => Err(RuntimeError::Failed("internal error: all of a load that does not fit".into())),
            Decision::Only(files) => runtime.plan_some(wish, &files),
            Decision::Cancel => Ok(()),
        })
    }

    fn begin_load(&mut self, wish: Wish, rendered: Arc<Rendered>, items: Vec<Item>, plan: Plan) -> Done {
        let Wish { begun_at, opening, mut messages, library, whole, .. } = wish;
        for (message, item) in messages.iter_mut().zip(&items) {
            if let Some(d) = &mut message.meta.document {
                (d.tokens, d.once) = (item.tokens, !library);
            }
        }
        // A part of a file differs from the file without any change.
        if whole {
            self.say_changed(&messages);
            self.say_in_part(&messages);
        }
        for message in opening {
            self.add_message(message)?;
        }
        let left_after = self.here.meters.context_limit.saturating_sub(plan.total());
        let load = Load {
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
            base: Path::default(),
            steps: VecDeque::new(),
            found: Vec::new(),
            restored: 0.0,
            begun_again: false,
            upto: 0,
            reached: 0,
        };
        self.read_load(Box::new(load), plan)
    }

    /// Makes the plan's base live and reads the documents behind it.
    fn read_load(&mut self, mut load: Box<Load>, plan: Plan) -> Done {
        let begun = Instant::now();
        self.activate(plan, Arc::clone(&load.rendered), State::plan, move |runtime, plan| {
            let plan = match plan {
                Ok(plan) => plan,
                Err(RuntimeError::Stopped) => return runtime.load_stopped(load),
                Err(lost) if lost.is_mended_by_reading(&mut load.begun_again) => {
                    return runtime.load_lost(load, lost);
                }
                Err(e) => return runtime.load_failed(&load, e),
            };
            load.restored = begun.elapsed().as_secs_f64();
            load.at = 0;
            (load.base, load.steps, load.found) = (plan.base, plan.steps.into(), plan.found);
            runtime.read_next(load)
        })
    }

    /// Reads the next document; its message is saved before.
    fn read_next(&mut self, mut load: Box<Load>) -> Done {
        let Some(message) = load.messages.get(load.at).cloned() else {
            return self.loaded(&load);
        };
        let steps = load.take_steps(message.id);
        let found = load.found.iter().filter(|(m, _)| *m == message.id).copied().collect();
        let saved = if load.at >= load.added {
            load.added = load.at + 1;
            let saved = self.add_one_of_many(message)?;
            if load.tree_shown.is_none_or(|at| at.elapsed() >= TREE_SHOWN) {
                self.show_tree();
                load.tree_shown = Some(Instant::now());
            }
            saved
        } else {
            Wanted::Texts(0)
        };
        self.when_saved(saved, move |runtime| {
            if !runtime.here.slot.is_at(&load.base) {
                // The process that ran the model has ended while this was saved.
                return runtime.load_again(load, |runtime, plan| runtime.say_reading_again(plan));
            }
            let plan = Plan { base: std::mem::take(&mut load.base), found, steps };
            let (to_read, began) = (plan.to_read(), Instant::now());
            load.progress.begin(load.at, &load.items, to_read);
            let rendered = Arc::clone(&load.rendered);
            runtime.execute(plan, rendered, None, load, move |runtime, mut load, fed| match fed {
                Ok(fed) if fed.read < to_read => runtime.load_stopped(load),
                Ok(fed) => runtime.document_read(load, &fed, began),
                Err(RuntimeError::Stopped) => runtime.load_stopped(load),
                Err(lost) if lost.is_mended_by_reading(&mut load.begun_again) => runtime.load_lost(load, lost),
                Err(e) => runtime.load_failed(&load, e),
            })
        })
    }

    /// A load that failed inside a document leaves it in the conversation, read in part: the next question brings what was not read of it.
    /// Where the reading began anew, that is the last one that was added, wherever the reading is.
    fn load_failed(&mut self, load: &Load, e: RuntimeError) -> Done {
        let last = load.added.checked_sub(1).and_then(|at| load.messages.get(at));
        if let Some(message) = last.filter(|m| m.is_half_read()) {
            self.here.session.broken_off.insert(message.id);
            self.tell(Notice::Finished(message.clone()));
        }
        self.show_tree();
        Err(e)
    }

    /// Goes on with a load whose state was lost.
    fn load_lost(&mut self, load: Box<Load>, lost: RuntimeError) -> Done {
        self.load_again(load, move |runtime, plan| runtime.read_lost_again(&lost, plan))
    }

    /// Plans the rest of a load once more and goes on; `said` is told of the plan before.
    fn load_again(&mut self, load: Box<Load>, said: impl FnOnce(&mut State, &Plan) + Send + 'static) -> Done {
        self.when_planned(Arc::clone(&load.rendered), State::plan, move |runtime, _, plan| {
            let plan = match plan {
                Err(RuntimeError::Stopped) => return runtime.load_stopped(load),
                Err(e) => return runtime.load_failed(&load, e),
                Ok(plan) => plan,
            };
            said(runtime, &plan);
            runtime.read_load(load, plan)
        })
    }

    /// A document is read: says so in the transcript and puts it into the library.
    fn document_read(&mut self, mut load: Box<Load>, fed: &Fed, began: Instant) -> Done {
        load.base = self.here.slot.live.clone();
        load.progress.end(load.at, fed, began.elapsed(), load.restored);
        let shown = load.progress.shown();
        self.working(shown);
        let library = load.library;
        let at = load.at;
        if let (Some(message), Some(item)) = (load.messages.get_mut(at), load.items.get(at))
            && let Some(info) = message.meta.document.as_mut().filter(|d| !d.complete)
        {
            info.complete = true;
            let info = info.clone();
            // A server reads it with the question, and counts it there.
            let here = self.engine.server().is_none();
            message.meta.prefilled_tokens = if here { fed.read } else { 0 };
            message.meta.reused_tokens = if here { item.tokens.saturating_sub(fed.read) } else { 0 };
            message.meta.prefill_ms = fed.prefill_ms;
            self.amend(message);
            self.tell(Notice::Finished(message.clone()));
            if library && let Some(segment) = self.here.session.ends.get(&message.id).copied() {
                self.add_to_library(&info, item.end.saturating_sub(item.tokens), segment);
            }
        }
        load.at += 1;
        // Many documents may need no reading at all.
        self.here.work = Work::Ready(Box::new(move |runtime, ()| runtime.read_next(load)));
        Ok(())
    }

    fn loaded(&mut self, load: &Load) -> Done {
        self.say_loaded(&load.items, load.started);
        self.show_session();
        self.report_meters();
        Ok(())
    }

    fn say_changed(&self, messages: &[Message]) {
        // Where the database cannot be asked, other lines say so.
        let known = self.disk.store.hashes_by_path().unwrap_or_default();
        for info in messages.iter().filter_map(|m| m.meta.document.as_ref()) {
            let read = info.path.as_ref().and_then(|path| known.get(path));
            if read.is_some_and(|hashes| !hashes.contains(&info.hash)) {
                self.note(Level::Info, format!("{} changed on disk since it was read. Reading again.", info.name));
            }
        }
    }

    fn say_loaded(&mut self, items: &[Item], started: Instant) {
        let total: u64 = items.iter().map(|i| i.tokens).sum();
        let kept: u64 = items.iter().filter(|i| i.kept).map(|i| i.tokens).sum();
        let seconds = started.elapsed().as_secs_f64();
        let what = match items {
            [one] => one.name.clone(),
            many => format!("{} files", many.len()),
        };
        let text = match kept {
            _ if self.engine.server().is_some() => {
                format!("{what}: about {} tokens, which the server reads with the next question.", grouped(total))
            }
            0 => format!("Read {what}: {} tokens in {seconds:.1} s.", grouped(total)),
            k if k == total => format!("{what}: {} tokens from library, {seconds:.1} s.", grouped(total)),
            k => format!(
                "Read {what}: {} tokens in {seconds:.1} s, {} of them from library.",
                grouped(total),
                grouped(k)
            ),
        };
        self.note(Level::Info, text);
    }
}
