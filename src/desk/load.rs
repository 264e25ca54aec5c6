//! Reading documents into the conversation: gathering, the plan, reading with progress, stopping in the middle.

use std::time::{Duration, Instant};

use super::choose::{Chosen, Decision, keep_only};
use super::feed::{Fed, Plan, Step};
use super::jobs::Watch;
use super::render::Rendered;
use super::run::Event;
use super::{DeskError, Done, State, grouped};
use crate::protocol::desk::{
    Activity, Choice, FileProgress, FileState, Level, LoadOptions, Notice, ReadingProgress,
};
use crate::session::{Change, NewDocument, SegmentId};
use crate::text::sources::{self, Document, Gathered, SourceError};
use crate::text::{Specials, TextError};
use crate::transcript::{DocumentInfo, Message, MessageId, Role};

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
            self.note(
                Level::Warn,
                format!("Skipped {}: {}", skipped.name, skipped.reason),
            );
        }
        if gathered.skipped.len() > 5 {
            self.note(
                Level::Warn,
                format!(
                    "Skipped {} more files that hold no text.",
                    gathered.skipped.len() - 5
                ),
            );
        }
        let documents = self.shaped(gathered.documents, options)?;
        self.need_engine()?;
        self.may_write()?;
        let whole = options.head.is_none() && options.tail.is_none() && options.pages.is_none();
        self.read_documents(documents, !options.once, whole)
    }

    /// Finds and reads files on another thread, so that stopping works meanwhile.
    pub(super) fn gather(&mut self, paths: &[String], options: &LoadOptions) -> Done<Gathered> {
        self.activity(Activity::Busy {
            what: "opening files".into(),
        });
        let mut how = self.sources.clone();
        (how.force, how.pages) = (options.force, options.pages);
        let (cancel, files) = (
            self.cancel.clone(),
            paths
                .iter()
                .filter(|p| *p != "-")
                .cloned()
                .collect::<Vec<_>>(),
        );
        let mut gathered = Gathered::default();
        if !files.is_empty() {
            let work = std::thread::spawn(move || sources::gather(&files, &how, &cancel));
            while !work.is_finished() {
                match self.next(Some(Instant::now() + Duration::from_millis(10))) {
                    Event::Request(r) => self.on_busy_request(r),
                    Event::Engine(e) => self.on_idle_engine(e),
                    Event::Save(e) => self.on_save(e),
                    Event::Tick => {}
                }
            }
            gathered = match work.join() {
                Ok(Ok(gathered)) => gathered,
                Ok(Err(SourceError::Cancelled)) => return Err(DeskError::Stopped),
                Ok(Err(e @ SourceError::NotFound { .. })) => {
                    return Err(DeskError::Refused(self.or_session(paths, e.to_string())));
                }
                Ok(Err(e)) => return Err(DeskError::Refused(e.to_string())),
                Err(_) => {
                    return Err(DeskError::Refused(
                        "Reading the files failed unexpectedly. Nothing was loaded.".into(),
                    ));
                }
            };
        }
        if paths.iter().any(|p| p == "-") {
            let text = options.inline.as_deref().unwrap_or("");
            let name = options.name.as_deref().unwrap_or("pasted.txt");
            gathered
                .documents
                .push(Document::inline(name, text).map_err(|e| DeskError::Refused(e.to_string()))?);
        }
        Ok(gathered)
    }

    /// Somebody who types a session's name after `/load` is told.
    fn or_session(&self, paths: &[String], error: String) -> String {
        match paths.first().map(|name| self.store.session_named(name)) {
            Some(Ok(record)) => format!(
                "{error} A session is called \"{}\": /resume {}",
                record.name, record.name
            ),
            _ => error,
        }
    }

    /// `--as`, `--head`, `--tail`.
    fn shaped(&self, mut documents: Vec<Document>, options: &LoadOptions) -> Done<Vec<Document>> {
        if let Some(name) = &options.name {
            match documents.as_mut_slice() {
                [one] => one.name = super::render::safe_name(name),
                more => {
                    return Err(DeskError::Refused(format!(
                        "--as names one document; {} were found.",
                        more.len()
                    )));
                }
            }
        }
        let tokenizer = &self.renderer.model().tokenizer;
        for d in &mut documents {
            if let Some(note) = &d.note {
                self.note(Level::Info, format!("{}: {note}", d.name));
            }
            let (head, tail) = (options.head, options.tail);
            if head.is_none() && tail.is_none() {
                continue;
            }
            let tokens = tokenizer.encode_plain(&d.text)?;
            let cut = |n: u64| usize::try_from(n).unwrap_or(usize::MAX).min(tokens.len());
            let part = match (head, tail) {
                (Some(n), _) => tokens.get(..cut(n)),
                (None, Some(n)) => tokens.get(tokens.len() - cut(n)..),
                (None, None) => None,
            };
            // A cut inside a character leaves half of it behind.
            d.text = tokenizer
                .decode(part.unwrap_or(&tokens), Specials::Show)
                .trim_matches('\u{FFFD}')
                .to_owned();
        }
        Ok(documents)
    }

    /// What the transcript remembers of a document.
    pub(super) fn document_info(
        &self,
        name: &str,
        path: Option<String>,
        text: &str,
    ) -> DocumentInfo {
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
    fn document_messages(
        &self,
        documents: Vec<Document>,
        parent: Option<MessageId>,
    ) -> Vec<Message> {
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
            let path: Vec<&Message> = self
                .open
                .conversation
                .path()
                .into_iter()
                .chain(&opening)
                .chain(&messages)
                .collect();
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
        loop {
            let plan = self.plan(&rendered)?;
            match self.read_items(
                plan,
                &rendered,
                &mut messages,
                &items,
                &mut loading,
                &mut added,
                shelve,
            )? {
                Outcome::All => break,
                Outcome::Stopped(at) => match self.after_stop(&loading, &items, at) {
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
        let file = |i: &Item| FileProgress {
            name: i.name.clone(),
            tokens: i.tokens,
            state: FileState::Waiting,
        };
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
            let found = plan
                .found
                .iter()
                .filter(|(m, _)| *m == item.message)
                .copied()
                .collect();
            let began = Instant::now();
            let before = self.live.position();
            let fed = self.carry_out(
                Plan {
                    base: self.live.clone(),
                    found,
                    steps: mine,
                },
                rendered,
                None,
                loading,
            )?;
            if self.live.position() < before + to_read {
                return Ok(Outcome::Stopped(i));
            }
            let seconds = began.elapsed().as_secs_f64();
            if let Some(file) = loading.files.get_mut(i) {
                match (&file.state, fed.read) {
                    (FileState::Waiting, 0) => file.state = FileState::FromLibrary(restored),
                    (FileState::Waiting | FileState::Reading(_), _) => {
                        file.state = FileState::Done(seconds)
                    }
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
        let before = self
            .live
            .segments()
            .iter()
            .take_while(|s| s.end_position() <= starts_at)
            .last();
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
        let mut known = documents
            .iter()
            .filter(|d| d.document.path.as_ref() == Some(path))
            .peekable();
        if known.peek().is_some() && known.all(|d| d.document.hash != info.hash) {
            self.note(
                Level::Info,
                format!(
                    "{} changed on disk since it was read. Reading again.",
                    info.name
                ),
            );
        }
    }

    fn after_stop(&mut self, loading: &Loading, items: &[Item], at: usize) -> char {
        let begun: u64 = items.first().map_or(0, |i| i.end - i.tokens);
        let done = self.live.position().saturating_sub(begun);
        let name = items.get(at).map_or("", |i| i.name.as_str());
        let text = format!(
            "Stopped at {} of {} tokens, inside {name}. What is read stays read.",
            grouped(done.min(loading.total)),
            grouped(loading.total)
        );
        let choices = vec![
            Choice {
                key: '1',
                label: "continue".into(),
            },
            Choice {
                key: '2',
                label: "keep what is read".into(),
            },
            Choice {
                key: '3',
                label: "go back".into(),
            },
        ];
        if self.attendance == super::Attendance::Absent || self.quitting {
            return '2';
        }
        self.ask_user(text, choices)
    }

    /// Ends a load inside a document: what was read of it becomes the document.
    fn keep_part(&mut self, rendered: &Rendered, messages: &mut [Message], at: usize) -> Done {
        self.cancel = crate::protocol::engine::Cancel::default();
        let Some(message) = messages.get_mut(at) else {
            return Ok(());
        };
        let text = self
            .renderer
            .read_part(rendered, message, self.live.text_bytes())
            .unwrap_or_default();
        let name = message
            .meta
            .document
            .as_ref()
            .map_or(String::new(), |d| d.name.clone());
        if text.trim().is_empty() {
            self.move_head(message.parent);
            self.note(
                Level::Info,
                format!("Nothing of {name} was read; it is left out."),
            );
        } else {
            let lines = text.lines().count() as u64;
            if let Some(info) = &mut message.meta.document {
                info.lines = lines;
                info.tokens = self.renderer.model().tokenizer.encode_plain(&text)?.len() as u64;
            }
            message.text = text;
            self.amend(message);
            self.note(
                Level::Info,
                format!(
                    "Kept what was read: {name} ends at line {}.",
                    grouped(lines)
                ),
            );
        }
        self.show_session();
        self.settle()?;
        self.report_meters();
        Ok(())
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
            k if k == total => format!(
                "{what}: {} tokens from library, {seconds:.1} s.",
                grouped(total)
            ),
            k => format!(
                "Read {what}: {} tokens in {seconds:.1} s, {} of them from library.",
                grouped(total),
                grouped(k)
            ),
        };
        self.note(Level::Info, text);
    }
}

/// Tokens and ends of the documents of a load.
fn items(messages: &[Message], rendered: &Rendered, plan: &Plan) -> Done<Vec<Item>> {
    let mut ends: Vec<(MessageId, u64, bool)> = Vec::new();
    for (message, segment) in &plan.found {
        let end = plan
            .base
            .segments()
            .iter()
            .find(|s| s.id == *segment)
            .map(|s| s.end_position());
        ends.extend(end.map(|e| (*message, e, true)));
    }
    let mut position = plan.base.position();
    for step in &plan.steps {
        position += step.given.len() as u64;
        ends.extend(step.message.map(|m| (m, position, false)));
    }
    let first = messages.first().map(|m| m.id);
    let start_of_first = ends
        .iter()
        .take_while(|(m, ..)| Some(*m) != first)
        .last()
        .map_or(0, |(_, end, _)| *end);
    let mut start = start_of_first;
    let mut items = Vec::with_capacity(messages.len());
    for m in messages {
        let Some((_, end, kept)) = ends.iter().find(|(id, ..)| *id == m.id) else {
            let shown = rendered.cuts.len();
            return Err(TextError::Template(format!(
                "it shows {shown} ends of turns, and not that of a document"
            ))
            .into());
        };
        let name = m
            .meta
            .document
            .as_ref()
            .map_or(String::new(), |d| d.name.clone());
        items.push(Item {
            message: m.id,
            name,
            tokens: end - start,
            end: *end,
            kept: *kept,
        });
        start = *end;
    }
    Ok(items)
}
