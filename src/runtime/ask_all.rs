//! `/ask-all`: one question to every document of the library in parallel, each on top of its own kept state. Nothing
//! is saved; a fork can be opened at any answer.

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use super::library::Unread;
use super::verb::Work;
use super::{
    Activity, Attendance, Branch, Done, Fan, Grown, Last, Notice, Path, Rendered, RuntimeError, State, Verb, Written,
    refused, segments,
};
use crate::config::settings::SaveStates;
use crate::core::transcript::{DocumentInfo, Message, MessageMeta, Role, Sources};
use crate::core::{counted, now_ms};
use crate::engine::protocol::{Ended, Sampling};
use crate::runtime::protocol::{FanOut, FanOutRow, LoadOptions};
use crate::store::{DocumentRecord, SegmentId};
use crate::text::{Begin, Delta, StreamDecoder};

const NOT_KEPT: &str = "no kept state of this model";

/// A document of the library, and why it cannot be asked, if so.
type Shelved = (Option<&'static str>, DocumentRecord);

fn is_file(path: &str) -> bool {
    std::path::Path::new(path).is_file()
}

pub(super) struct Ready {
    /// The messages before the document, the document, and the question.
    pub(super) messages: Vec<Message>,
    pub(super) rendered: Arc<Rendered>,
    pub(super) path: Path,
}

struct Entry {
    record: DocumentRecord,
    row: FanOutRow,
    thinking: String,
    looked: Option<Sources>,
    running: Option<(Ready, StreamDecoder)>,
    /// Natural logarithm of the probability of each generated token.
    likely: Vec<f32>,
}

pub(super) struct AskAll {
    question: String,
    sampling: Sampling,
    answers: Vec<Entry>,
}

pub fn no_document(library: Option<&str>, attendance: Attendance) -> String {
    let which = library.map_or(String::new(), |glob| format!(" called {glob}"));
    let put = match attendance {
        Attendance::Present => "/load and /library add put them there.",
        Attendance::Absent => "sala-chat library add FILE puts one there.",
    };
    format!("There is no document{which} in the library. {put}")
}

impl Verb {
    pub async fn ask_all(&mut self, question: String, library: Option<String>, read: bool) -> Done {
        if question.trim().is_empty() {
            return refused("/ask-all QUESTION asks every document of the library.");
        }
        self.engine_ready().await?;
        self.keeps_state("ask-all")?;
        let mut shelved = self.shelved(library.as_deref()).await?;
        let others = shelved.iter().filter(|(why, _)| why.is_some());
        let file = |(_, d): &Shelved| Some((d.document.path.clone()?, d.document.name.clone()));
        let files: Vec<(String, String)> = others.filter_map(file).filter(|(path, _)| is_file(path)).collect();
        // With `save_state` "never", reading would keep nothing.
        let reads = read && self.disk.policy != SaveStates::Never;
        let mut unread = Vec::new();
        if reads && !files.is_empty() {
            unread = self.read_shelved(files).await?;
            shelved = self.shelved(library.as_deref()).await?;
        }
        let entry = |(why, record): Shelved| {
            let failed = why.map(|why| self.why_not(reads, &record, why, &unread));
            let (document, tokens) = (record.document.name.clone(), record.document.tokens);
            let row = FanOutRow { document, tokens, failed, ..FanOutRow::default() };
            Entry { record, row, thinking: String::new(), looked: None, running: None, likely: Vec::new() }
        };
        let answers: Vec<Entry> = shelved.into_iter().map(entry).collect();
        let count = counted(answers.iter().filter(|a| a.row.failed.is_none()).count() as u64, "document");
        self.activity(Activity::Busy { what: format!("asking {count}") });
        let mut fan = AskAll { question, sampling: self.greedy(), answers };
        let started = Instant::now();
        fan.report(self, false);
        let done = self.fan_out(&mut fan, Work::Branches).await;
        fan.report(self, true);
        self.report_meters();
        let (answered, seconds) = (fan.answered(), started.elapsed().as_secs_f64());
        let of = counted(fan.answers.len() as u64, "document");
        let stopped = if self.here.slot.stopped() { "Stopped: " } else { "" };
        self.info(format!("{stopped}{answered} of {of} answered in {seconds:.1} s."));
        let serial = self.here.serial;
        self.tables.insert(serial, Rc::new(fan));
        done
    }

    /// Enter in the table: opens a new session that ends with this answer.
    pub async fn open_row(&mut self, at: usize) -> Done {
        let table = self.tables.get(&self.here.serial).cloned();
        let Some((table, answered)) = table.as_ref().and_then(|table| Some((table, table.answers.get(at)?))) else {
            return refused("That answer is gone. /ask-all asks again.");
        };
        if answered.row.finish.is_none() {
            return refused(format!("{} was not answered.", answered.row.document));
        }
        let Ready { messages, .. } = self.question_to(&answered.record, &table.question)?;
        self.start_new(None)?;
        let mut parent = None;
        for mut message in messages {
            // The document gets a new id: another session may hold the original.
            message.id = self.disk.store.new_message_id(parent);
            (message.parent, message.created_ms) = (parent, now_ms());
            parent = Some(message.id);
            let document = message.meta.document.as_ref().is_some_and(|d| d.hash == answered.record.document.hash);
            let id = message.id;
            self.add_quietly(message)?;
            if document {
                self.point(id, answered.record.document.segment);
            }
        }
        let mut answer = self.draft(Role::Assistant, parent, answered.row.text.clone());
        answer.thinking = answered.thinking.clone();
        answer.meta = MessageMeta {
            finish: answered.row.finish,
            seed: table.sampling.seed_of_draws(),
            model: self.engine.model().map(|m| m.name.clone()),
            completion_tokens: answered.row.answer_tokens,
            looked: answered.looked.clone(),
            ..MessageMeta::default()
        };
        self.add_quietly(answer)?;
        self.show_session();
        self.info(format!("New session with {}. Its state is kept; ask on from this answer.", answered.row.document));
        self.sync_quietly().await
    }

    /// The matching documents, each with the reason why its state does not answer alone, if so; those without a reason
    /// first. Of several entries with one text, the one with the least text before it is used.
    async fn shelved(&mut self, library: Option<&str>) -> Done<Vec<Shelved>> {
        // Entry and state of a document that was just read may not be on disk yet.
        self.disk.wait_for_texts();
        self.states_saved().await;
        let names = library.unwrap_or("*");
        let pattern = glob::Pattern::new(names)
            .map_err(|e| RuntimeError::Refused(format!("{names} is not a pattern of names: {e}")))?;
        let mut records = self.disk.documents()?;
        records.retain(|d| pattern.matches(&d.document.name));
        if records.is_empty() {
            return refused(no_document(library, self.attendance));
        }
        let with_reason = |record: DocumentRecord| Ok((self.why_not_alone(&record)?, record));
        let mut shelved = records.into_iter().map(with_reason).collect::<Done<Vec<_>>>()?;
        // Stable sorts: the records are ordered by last use.
        shelved.sort_by_key(|(why, record)| (why.is_some(), record.document.prefix.is_some()));
        let mut seen = HashSet::new();
        shelved.retain(|(_, record)| seen.insert((record.document.name.clone(), record.document.hash.clone())));
        shelved.sort_by(|(a, x), (b, y)| (a.is_some(), &x.document.name).cmp(&(b.is_some(), &y.document.name)));
        Ok(shelved)
    }

    /// Reads documents again from their files, under their names: that of a document of a folder begins with the folder.
    /// A file that cannot be opened does not affect the others.
    async fn read_shelved(&mut self, files: Vec<(String, String)>) -> Done<Vec<Unread>> {
        let (mut documents, mut unread) = (Vec::new(), Vec::new());
        for (path, name) in files {
            self.unstopped()?;
            let found = self.gather(std::slice::from_ref(&path), &LoadOptions::default()).await;
            let options = LoadOptions { name: Some(name), ..LoadOptions::default() };
            match found.and_then(|found| self.shaped(found.documents, &options)) {
                Ok(found) => documents.extend(found),
                Err(RuntimeError::Stopped) => return Err(RuntimeError::Stopped),
                Err(why) => unread.push((path, why)),
            }
        }
        unread.extend(self.library_read(documents).await?);
        self.unstopped().map(|()| unread)
    }
}

impl State {
    pub fn keeps_state(&self, what: &str) -> Done {
        match self.engine.server() {
            None => Ok(()),
            Some(_) => refused(format!("{what} needs kept state, and a server keeps none.")),
        }
    }

    /// Messages up to a kept document and a question; their rendering matches the kept state exactly.
    pub fn question_to(&self, record: &DocumentRecord, question: &str) -> Done<Ready> {
        let segment = record.document.segment;
        let path = self.disk.stored_path(&segment)?;
        if path.head() != Some(segment) {
            return refused("its kept state is gone");
        }
        let mut candidates = Vec::new();
        if let Some(id) = self.disk.store.message_ending(&segment)? {
            // The text of a damaged message is not the text that was read.
            let whole = |path: &Vec<Message>| path.iter().all(|m| !m.meta.damaged);
            // A user turn without an answer has no boundary of its own in the state.
            let alone = |path: &Vec<Message>| path.iter().rev().skip(1).all(|m| m.role == Role::System);
            candidates.extend(Some(self.disk.store.path(id)?).filter(|path| whole(path) && alone(path)));
        }
        let d = &record.document;
        if let Some(text) = segments::document_text(&self.engine.renderer, &path, d.prefix, &d.name) {
            let mut document = self.draft(Role::Document, None, text);
            let info = DocumentInfo::new(&d.name, d.path.clone(), &document.text);
            document.meta.document =
                Some(DocumentInfo { hash: d.hash.clone(), tokens: d.tokens, lines: d.lines, complete: true, ..info });
            let system = self.default_system_message();
            candidates.extend(system.map(|s| vec![s, document.clone()]));
            candidates.push(vec![document]);
        }
        for mut messages in candidates {
            messages.push(self.draft(Role::User, None, question.to_owned()));
            let refs: Vec<&Message> = messages.iter().collect();
            let rendered = self.prompt(&refs)?;
            if path.unchanged(&rendered.text).segments().len() == path.segments().len() {
                return Ok(Ready { messages, rendered: Arc::new(rendered), path });
            }
        }
        refused("its text cannot be restored from what is kept")
    }

    pub fn default_system_message(&self) -> Option<Message> {
        let text = self.options.system.clone().filter(|text| !text.trim().is_empty());
        text.map(|text| self.draft(Role::System, None, text))
    }

    /// Why a document is left out. `reads`: files were read.
    fn why_not(&self, reads: bool, record: &DocumentRecord, why: &str, unread: &[Unread]) -> String {
        let path = record.document.path.as_deref();
        if let Some((_, why)) = unread.iter().find(|(file, _)| Some(file.as_str()) == path) {
            return why.to_string();
        }
        if self.disk.policy == SaveStates::Never {
            return format!("{NOT_KEPT}: sessions.save_state = \"never\" keeps none");
        }
        match path {
            Some(path) if is_file(path) && reads => format!("{why}, and reading its file did not change that"),
            Some(path) if is_file(path) => format!("{why}; add --read to read it alone"),
            Some(path) => format!("{why}, and its file is gone: {path}"),
            None => format!("{why}, and no file to read it from"),
        }
    }

    /// Why the state of a document is not kept, or not behind a system text alone: other text would influence answers.
    fn why_not_alone(&self, record: &DocumentRecord) -> Done<Option<&'static str>> {
        if record.fingerprint != self.engine.info.fingerprint || !self.is_kept(&record.document.segment)? {
            return Ok(Some(NOT_KEPT));
        }
        let Some(prefix) = record.document.prefix else { return Ok(None) };
        let alone = match self.disk.store.message_ending(&prefix)? {
            Some(id) => self.disk.store.path(id)?.iter().all(|m| m.role == Role::System),
            // No session holds the text that was read before it.
            None => self.question_to(record, "?").is_ok(),
        };
        Ok((!alone).then_some("it was read after other text"))
    }

    fn is_kept(&self, segment: &SegmentId) -> Done<bool> {
        let path = self.disk.stored_path(segment)?;
        let plan = self.disk.restorable(segment)?;
        Ok(path.head() == Some(*segment) && plan.is_some_and(|plan| plan.usable == path.segments().len()))
    }
}

impl AskAll {
    fn report(&self, runtime: &State, over: bool) {
        let rows = self.answers.iter().map(|a| a.row.clone()).collect();
        runtime.report(Notice::FanOut(FanOut { question: self.question.clone(), rows, over }));
    }

    fn answered(&self) -> usize {
        self.answers.iter().filter(|a| a.row.is_answered()).count()
    }

    fn answer(entry: &mut Entry, ready: &Ready, runtime: &State, Grown { path, stats }: Grown) {
        let Some(end) = stats.end else { return };
        let begin = Begin::after_prompt(&ready.rendered.text);
        let Delta { thinking, answer } = runtime.engine.decoded(begin, &stats.generated);
        (entry.thinking, entry.row.text) = (thinking, answer);
        entry.row.finish = Some(end.ended.finish());
        entry.row.answer_tokens = stats.generated.len() as u64;
        let messages: Vec<&Message> = ready.messages.iter().collect();
        entry.looked = runtime.sources_after(&messages, &ready.rendered, (&end.looked_at, &[]), &path);
        entry.row.passages = entry.looked.as_ref().map(|l| l.passages.clone()).unwrap_or_default();
        if end.ended == Ended::Cancelled || entry.likely.len() != stats.generated.len() {
            return;
        }
        // Thoughts do not count.
        let until = runtime.thoughts_until(begin).ok().flatten();
        let from = until.and_then(|t| stats.generated.iter().position(|g| *g == t)).map_or(0, |at| at + 1);
        if let Some(scores) = entry.likely.get(from..).filter(|scores| !scores.is_empty()) {
            let sum: f64 = scores.iter().map(|score| f64::from(*score)).sum();
            entry.row.log_probability = Some(sum / scores.len() as f64);
        }
    }
}

impl Fan for AskAll {
    fn shown_again(&mut self, runtime: &mut State) {
        self.report(runtime, false);
    }

    fn prepare(&mut self, runtime: &mut State, which: usize) -> Done<Option<Branch>> {
        let Some(entry) = self.answers.get_mut(which).filter(|a| a.row.failed.is_none()) else { return Ok(None) };
        let ready = runtime.question_to(&entry.record, &self.question)?;
        let mut branch = runtime.question_after(&ready.path, &ready.rendered, self.sampling)?;
        if let Some(Last::Generate(request)) = &mut branch.last {
            // Requests the log-probability of each token itself, without alternatives.
            request.likely = Some(0);
        }
        let tokenizer = runtime.engine.tokenizer().clone();
        let decoder = StreamDecoder::new(tokenizer, Begin::after_prompt(&ready.rendered.text));
        entry.running = Some((ready, decoder));
        Ok(Some(branch))
    }

    fn tokens(&mut self, _state: &mut State, which: usize, written: &Written<'_>) {
        let Some(entry) = self.answers.get_mut(which) else { return };
        entry.likely.extend(written.likely.iter().map(|likely| likely.log_prob));
        if let Some((_, decoder)) = &mut entry.running {
            entry.row.text.push_str(&decoder.push_all(written.tokens).answer);
        }
    }

    fn tick(&mut self, runtime: &mut State) {
        self.report(runtime, false);
    }

    fn ended(&mut self, runtime: &mut State, which: usize, grown: Done<Grown>) {
        let Some(entry) = self.answers.get_mut(which) else { return };
        match (grown, entry.running.take()) {
            (Ok(grown), Some((ready, _))) => Self::answer(entry, &ready, runtime, grown),
            (Ok(_), None) | (Err(RuntimeError::Stopped), _) => {}
            (Err(e), _) => entry.row.failed = Some(e.to_string()),
        }
        let of = counted(self.answers.iter().filter(|a| a.row.failed.is_none()).count() as u64, "document");
        runtime.working(Activity::Busy { what: format!("{} of {of} answered", self.answered()) });
    }
}
