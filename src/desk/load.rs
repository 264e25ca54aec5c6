//! Reading documents into the conversation: gathering, the plan, reading with progress, stopping in the middle.
//!
//! Gathering is in `gather`, the documents' places in the plan in `items`, stopping in `stop`.

mod gather;
mod items;
mod stop;

use std::time::Instant;

use super::choose::{Chosen, Decision, keep_only};
use super::feed::{Fed, Plan, Step};
use super::jobs::Watch;
use super::render::Rendered;
use super::{DeskError, Done, State, grouped};
use crate::protocol::desk::{Activity, FileProgress, FileState, Level, LoadOptions, Notice, ReadingProgress};
use crate::session::{Change, NewDocument, SegmentId};
use crate::text::sources::Document;
use crate::transcript::{DocumentInfo, Message, MessageId, Role};
use items::items;

/// A document of a load.
pub(super) struct Item {
    message: MessageId,
    pub(super) name: String,
    pub(super) tokens: u64,
    /// Position after it.
    end: u64,
    /// All of it is in kept state.
    pub(super) kept: bool,
}

/// A load that runs.
struct Loading {
    files: Vec<FileProgress>,
    /// The one being read.
    at: usize,
    /// Tokens of it that were there when its job began.
    before: u64,
    done: u64,
    total: u64,
    left_after: u64,
    started: Instant,
}

impl Loading {
    fn show(&self, desk: &mut State, more: u64, tokens_per_s: f64) {
        desk.working(Activity::Reading(ReadingProgress {
            files: self.files.clone(),
            done: self.done + more,
            total: self.total,
            tokens_per_s,
            elapsed_ms: self.started.elapsed().as_secs_f64() * 1000.0,
            left_after: self.left_after,
        }));
    }
}

impl Watch for Loading {
    fn reading(&mut self, desk: &mut State, done: u64, _total: u64, tokens_per_s: f64) {
        if let Some(file) = self.files.get_mut(self.at) {
            file.state = FileState::Reading(self.before + done);
        }
        self.show(desk, done, tokens_per_s);
    }
}

/// What became of reading.
enum Outcome {
    All,
    /// Stopped inside this one.
    Stopped(usize),
}

impl State {
    /// `/load`.
    pub(super) fn load(&mut self, paths: &[String], options: &LoadOptions) -> Done {
        self.may_write()?;
        let gathered = self.gather(paths, options)?;
        for skipped in gathered.skipped.iter().take(5) {
            self.note(Level::Warn, format!("Skipped {}: {}", skipped.name, skipped.reason));
        }
        if gathered.skipped.len() > 5 {
            self.note(Level::Warn, format!("Skipped {} more files that hold no text.", gathered.skipped.len() - 5));
        }
        let documents = self.shaped(gathered.documents, options)?;
        self.need_engine()?;
        self.may_write()?;
        let whole = options.head.is_none() && options.tail.is_none() && options.pages.is_none();
        self.read_documents(documents, !options.once, whole)
    }

    /// What the transcript remembers of a document.
    pub(super) fn document_info(&self, name: &str, path: Option<String>, text: &str) -> DocumentInfo {
        DocumentInfo {
            name: name.to_owned(),
            path,
            hash: blake3::hash(text.as_bytes()).to_hex().to_string(),
            tokens: 0,
            lines: text.lines().count() as u64,
            complete: false,
        }
    }

    /// A message for each document, below each other.
    fn document_messages(&self, documents: Vec<Document>, parent: Option<MessageId>) -> Vec<Message> {
        let mut parent = parent;
        let message = |d: Document| {
            let path = d.path.map(|p| p.display().to_string());
            let info = self.document_info(&d.name, path, &d.text);
            let mut m = self.draft(Role::Document, parent, d.text);
            m.meta.document = Some(info);
            parent = Some(m.id);
            m
        };
        documents.into_iter().map(message).collect()
    }

    /// Reads documents behind the head.
    fn read_documents(&mut self, documents: Vec<Document>, shelve: bool, whole: bool) -> Done {
        let begun_at = self.open.conversation.head();
        let opening = self.opening_messages();
        let parent = opening.last().map(|m| m.id).or(begun_at);
        let mut messages = self.document_messages(documents, parent);
        let mut chosen = Chosen::Named;
        let (rendered, plan, items) = loop {
            let path: Vec<&Message> =
                self.open.conversation.path().into_iter().chain(&opening).chain(&messages).collect();
            let rendered = self.renderer.past(&path, self.open.settings.think)?;
            let plan = self.plan(&rendered)?;
            let items = items(&messages, &rendered, &plan)?;
            match self.confirm_load(&items, &plan, chosen)? {
                Decision::Load => break (rendered, plan, items),
                Decision::Only(files) => {
                    keep_only(&mut messages, parent, &files);
                    chosen = Chosen::FromList;
                }
                Decision::Cancel => return Ok(()),
            }
        };
        for (message, item) in messages.iter_mut().zip(&items) {
            if let Some(d) = &mut message.meta.document {
                d.tokens = item.tokens;
                // A part of a file differs from the file without any change.
                if whole {
                    self.say_if_changed(d);
                }
            }
        }
        for message in opening {
            self.add_message(message)?;
        }
        let started = Instant::now();
        let mut loading = self.loading(&items, &plan, started);
        let mut added = 0;
        let mut lost = None;
        loop {
            let plan = self.plan(&rendered)?;
            if let Some(lost) = lost.take() {
                self.read_lost_again(&lost, &plan);
            }
            let read = self.read_items(plan, &rendered, &mut messages, &items, &mut loading, &mut added, shelve);
            match read {
                Err(e @ DeskError::RowsLost(_)) => lost = Some(e),
                Err(e) => return Err(e),
                Ok(Outcome::All) => break,
                Ok(Outcome::Stopped(at)) => match self.after_stop(&loading, &items, at) {
                    '1' => {
                        self.cancel = crate::protocol::engine::Cancel::default();
                    }
                    '2' => return self.keep_part(&rendered, &mut messages, at),
                    _ => {
                        self.move_head(begun_at);
                        self.show_session();
                        self.cancel = crate::protocol::engine::Cancel::default();
                        let fed = self.settle()?;
                        self.say_shared("Went back to", &fed);
                        return Ok(());
                    }
                },
            }
        }
        self.say_loaded(&items, started);
        self.show_session();
        self.report_meters();
        Ok(())
    }

    fn loading(&self, items: &[Item], plan: &Plan, started: Instant) -> Loading {
        let file = |i: &Item| FileProgress { name: i.name.clone(), tokens: i.tokens, state: FileState::Waiting };
        Loading {
            files: items.iter().map(file).collect(),
            at: 0,
            before: 0,
            done: 0,
            total: items.iter().map(|i| i.tokens).sum(),
            left_after: self.meters.context_limit.saturating_sub(plan.total()),
            started,
        }
    }

    /// Carries a plan out document by document; each one's message is saved before it is read.
    #[allow(clippy::too_many_arguments)]
    fn read_items(
        &mut self,
        plan: Plan,
        rendered: &Rendered,
        messages: &mut [Message],
        items: &[Item],
        loading: &mut Loading,
        added: &mut usize,
        shelve: bool,
    ) -> Done<Outcome> {
        let begun = Instant::now();
        // A base that proves unusable is planned around.
        let plan = self.go_live(plan, rendered)?;
        let restored = begun.elapsed().as_secs_f64();
        let mut steps = plan.steps.into_iter().peekable();
        for (i, (message, item)) in messages.iter_mut().zip(items).enumerate() {
            let mine: Vec<Step> = match plan.found.iter().any(|(m, _)| *m == item.message) {
                true => Vec::new(),
                false => {
                    let mut mine = Vec::new();
                    for step in steps.by_ref() {
                        let last = step.message == Some(item.message);
                        mine.push(step);
                        if last {
                            break;
                        }
                    }
                    mine
                }
            };
            if i >= *added {
                self.add_message(message.clone())?;
                *added = i + 1;
            }
            let to_read: u64 = mine.iter().map(|s| s.given.len() as u64).sum();
            loading.at = i;
            loading.before = item.tokens.saturating_sub(to_read);
            loading.done = items.iter().take(i).map(|x| x.tokens).sum::<u64>() + loading.before;
            let found = plan.found.iter().filter(|(m, _)| *m == item.message).copied().collect();
            let began = Instant::now();
            let before = self.live.position();
            let fed = self.carry_out(Plan { base: self.live.clone(), found, steps: mine }, rendered, None, loading)?;
            if self.live.position() < before + to_read {
                return Ok(Outcome::Stopped(i));
            }
            let seconds = began.elapsed().as_secs_f64();
            if let Some(file) = loading.files.get_mut(i) {
                match (&file.state, fed.read) {
                    (FileState::Waiting, 0) => file.state = FileState::FromLibrary(restored),
                    (FileState::Waiting | FileState::Reading(_), _) => file.state = FileState::Done(seconds),
                    (FileState::Done(_) | FileState::FromLibrary(_), _) => {}
                }
            }
            loading.done += to_read;
            loading.show(self, 0, 0.0);
            self.complete(message, item, &fed, shelve);
        }
        Ok(Outcome::All)
    }

    /// A document is read: says so in the transcript and puts it on the shelf.
    fn complete(&mut self, message: &mut Message, item: &Item, fed: &Fed, shelve: bool) {
        let Some(info) = &mut message.meta.document else {
            return;
        };
        if info.complete {
            return;
        }
        info.complete = true;
        message.meta.prefilled_tokens = fed.read;
        message.meta.reused_tokens = item.tokens.saturating_sub(fed.read);
        let info = info.clone();
        self.amend(message);
        self.tell(Notice::Finished(message.clone()));
        if shelve && let Some(segment) = self.open.ends.get(&message.id).copied() {
            self.shelve(&info, item.end.saturating_sub(item.tokens), segment);
        }
    }

    /// Puts a document that ends in `segment` of the live path on the shelf.
    pub(super) fn shelve(&mut self, info: &DocumentInfo, starts_at: u64, segment: SegmentId) {
        let before = self.live.segments().iter().take_while(|s| s.end_position() <= starts_at).last();
        let document = NewDocument {
            hash: info.hash.clone(),
            name: info.name.clone(),
            path: info.path.clone(),
            prefix: before.map(|s| s.id),
            segment,
            tokens: info.tokens,
            lines: info.lines,
        };
        self.save_changes(vec![Change::AddDocument(document)]);
    }

    fn say_if_changed(&self, info: &DocumentInfo) {
        let (Some(path), Ok(documents)) = (&info.path, self.store.documents()) else {
            return;
        };
        let mut known = documents.iter().filter(|d| d.document.path.as_ref() == Some(path)).peekable();
        if known.peek().is_some() && known.all(|d| d.document.hash != info.hash) {
            self.note(Level::Info, format!("{} changed on disk since it was read. Reading again.", info.name));
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
