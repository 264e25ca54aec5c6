//! Documents of the conversation and of the library. Those of the library are loaded by name: their text is decoded
//! from the kept tokens, so that the kept state matches.

use super::follow::versions;
use super::{
    Done, Form, Level, Notice, Path, PrefillStats, Renderer, Rights, RuntimeError, State, Verb, grouped, refused,
    segments,
};
use crate::config::settings::SaveStates;
use crate::core::transcript::{DocumentInfo, Message, MessageId, Role, text_hash};
use crate::core::{bytes, counted};
use crate::runtime::protocol::{DocumentRow, LibraryAction, LibraryName, LoadOptions};
use crate::store::{Change, DocumentRecord, NewDocument, SegmentId, Store, StoreError};
use crate::text::near::no_document;
use crate::text::sources::Document;

const PAGE_LINES: usize = 400;
const LINES_BEFORE: usize = 10;
/// The line between two pages of a document.
const PAGE_BREAK: &str = "\x0c";

pub(super) fn not_in_library(name: &str, there: &[DocumentRecord]) -> RuntimeError {
    let names = there.iter().map(|d| d.document.name.as_str());
    RuntimeError::Refused(no_document(name, "the library", names, "/library"))
}

/// Reports what left the library. `used`: sessions still use state of it.
pub fn removed(what: &str, used: bool, freed: u64) -> String {
    let kept = if used { " Sessions keep what they use." } else { "" };
    format!("Removed {what} ({}).{kept}", bytes(freed))
}

/// The file of a document that was not read, and why.
pub(super) type Unread = (String, RuntimeError);

impl State {
    pub fn document_rows(&self) -> Vec<DocumentRow> {
        let row = |(number, m): (u64, &Message)| {
            let d = m.meta.document.as_ref()?;
            let segment = self.here.ends.get(&m.id);
            let live = self.live_end(m.id);
            let stored = segment.and_then(|id| self.disk.store.kept_of(id).ok().flatten());
            let (kept, bytes) = stored.unwrap_or_default();
            Some(DocumentRow {
                name: d.name.clone(),
                number: Some(number),
                tokens: d.tokens,
                position: live.map(|s| s.end_position().saturating_sub(d.tokens)),
                lines: d.lines,
                complete: d.complete,
                kept,
                bytes,
            })
        };
        (1..).zip(self.here.tree.path()).filter_map(row).collect()
    }

    pub fn add_to_library(&mut self, info: &DocumentInfo, starts_at: u64, segment: SegmentId) {
        let live = &self.here.slot.live;
        let before = live.segments().iter().take_while(|s| s.end_position() <= starts_at).last();
        let document = NewDocument {
            hash: info.hash.clone(),
            name: info.name.clone(),
            path: info.path.clone(),
            prefix: before.map(|s| s.id),
            segment,
            tokens: info.tokens,
            lines: info.lines,
        };
        self.disk.change(vec![Change::AddDocument(document)]);
    }

    /// Records the documents that are read to their end as complete, and in the library.
    pub fn shelve_what_is_read(&mut self) {
        let half = self.here.tree.path().into_iter().filter(|m| m.is_half_read() && self.live_end(m.id).is_some());
        let read: Vec<MessageId> = half.map(|m| m.id).collect();
        read.iter().for_each(|id| self.document_read(*id, None));
        if !read.is_empty() {
            self.show_session();
        }
    }

    /// The same for one document. `cost`: the tokens that were read of it now, and the milliseconds.
    pub fn document_read(&mut self, id: MessageId, cost: Option<(u64, f64)>) {
        let (Some(message), Some(end)) = (self.here.tree.get(id), self.live_end(id)) else { return };
        let (mut message, segment, end) = (message.clone(), end.id, end.end_position());
        let Some(info) = message.meta.document.as_mut().filter(|d| !d.complete) else { return };
        if self.here.rights != Rights::Write {
            return;
        }
        info.complete = true;
        let info = info.clone();
        if let Some((read, ms)) = cost {
            message.meta.prefill_ms = ms;
            // A server reads the document with the question and counts it then.
            if self.engine.server().is_none() {
                (message.meta.prefilled_tokens, message.meta.reused_tokens) = (read, info.tokens.saturating_sub(read));
            }
        }
        self.amend(&message);
        self.report(Notice::Finished(message));
        if !info.once {
            self.add_to_library(&info, end.saturating_sub(info.tokens), segment);
        }
    }

    pub fn docs(&mut self) -> Done {
        let rows = self.document_rows();
        self.show(Notice::Documents { title: "This conversation".into(), rows })
    }

    /// `place`: a name or, where several documents have it, the `#number` of one; `:` and a line may follow.
    pub fn open_document(&mut self, place: String) -> Done {
        let (given, line) = match place.rsplit_once(':').and_then(|(n, l)| Some((n, l.parse::<usize>().ok()?))) {
            Some((given, line)) => (given, Some(line.max(1))),
            None => (place.as_str(), None),
        };
        let (marked, line) = (line, line.unwrap_or(1));
        let path = self.here.tree.path();
        let versions = versions(&path);
        // The new name of a file that moved is that of no document.
        let numbered = given.strip_prefix('#').and_then(|number| number.parse().ok());
        let message = match (numbered, versions.iter().rfind(|v| v.name == given)) {
            (Some(number), _) => self.here.numbered(number)?,
            (None, Some(version)) => version.first,
            (None, None) => match self.here.document_called(given)?.and_then(|at| path.get(at)) {
                Some(message) => *message,
                None => return refused(self.here.no_document(given)),
            },
        };
        let version = versions.iter().rfind(|v| v.first.id == message.id);
        let name = version.map(|v| v.name).or(message.meta.document.as_ref().map(|d| d.name.as_str())).unwrap_or(given);
        let text = version.map_or(message.text.as_str(), |v| &v.text);
        let since = self.changed_since(version.map_or(message, |v| v.last));
        let first = line.saturating_sub(LINES_BEFORE).max(1);
        let mut page = 1 + text.lines().take(first - 1).filter(|l| *l == PAGE_BREAK).count();
        let row = |(at, l): (usize, &str)| {
            let mark = if marked == Some(at) { '>' } else { ' ' };
            if l == PAGE_BREAK {
                page += 1;
                return format!("    {mark}        page {page}");
            }
            format!("    {mark}{at:>6}  {l}")
        };
        let mut shown: Vec<String> = (1..).zip(text.lines()).skip(first - 1).take(PAGE_LINES).map(row).collect();
        let (last, all) = (first + shown.len() - 1, text.lines().count());
        if shown.is_empty() {
            return refused(format!("{name} has {}.", counted(all as u64, "line")));
        }
        let more =
            |lines: usize, at: usize| format!("    … {}: /open {given}:{at}", counted(lines as u64, "more line"));
        if first > 1 {
            shown.insert(0, more(first - 1, first.saturating_sub(PAGE_LINES).max(1)));
        }
        if last < all {
            shown.push(more(all - last, last + 1 + LINES_BEFORE));
        }
        self.page(&format!("{name}:{line}{since}"), shown.join("\n"))
    }

    pub fn list_library(&mut self) -> Done {
        let row = |d: DocumentRecord| DocumentRow {
            name: d.document.name,
            number: None,
            tokens: d.document.tokens,
            position: None,
            lines: d.document.lines,
            complete: true,
            kept: d.kept,
            bytes: d.bytes,
        };
        let rows = self.disk.store.documents()?.into_iter().map(row).collect();
        self.show(Notice::Documents { title: "Library".into(), rows })
    }

    /// Names of the library for completion. Sent whenever they may have changed.
    pub fn report_library(&self) {
        match self.disk.store.document_names() {
            Ok(names) => {
                let names = names.into_iter().map(|(name, tokens)| LibraryName { name, tokens });
                self.out.report(Notice::Library(names.collect()));
            }
            // A verb that needs the names reports the failure.
            Err(e) => tracing::debug!(%e, "no names of the library"),
        }
    }

    fn library_has(&self, document: Option<Message>, stats: &PrefillStats) {
        let Some(info) = document.and_then(|m| m.meta.document) else { return };
        let (read, all) = (grouped(stats.read), counted(info.tokens, "token"));
        let what = match self.engine.server() {
            Some(_) => format!("about {all}, as text alone: a server keeps no state"),
            None if self.disk.policy == SaveStates::Never => {
                format!("{all}, {read} read, and no state of them is kept: sessions.save_state is \"never\"")
            }
            None => format!("{all}, {read} read"),
        };
        self.info(format!("{} is in the library: {what}.", info.name));
    }

    pub fn library_documents(&mut self, names: &[String]) -> Done<Vec<Document>> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        // The entry of a document that was just read may not be on disk yet.
        self.disk.wait_for_texts();
        let records = self.disk.documents()?;
        names.iter().map(|name| self.library_document(&records, name)).collect()
    }

    fn library_document(&self, records: &[DocumentRecord], name: &str) -> Done<Document> {
        let Some(last) = records.iter().find(|d| d.document.name == name) else {
            return Err(not_in_library(name, records));
        };
        let d = &last.document;
        for same in records.iter().filter(|r| r.document.name == name && r.document.hash == d.hash) {
            let store = self.disk.store_of(&same.document.segment);
            if let Some(text) = text_as_read(store, &self.engine.renderer, same)? {
                let path = d.path.clone().map(std::path::PathBuf::from);
                return Ok(Document { name: name.to_owned(), path, text, note: None, guessed: None });
            }
        }
        let again = match &d.path {
            Some(path) => format!("/load {path} reads it again."),
            None => "It came from no file.".to_owned(),
        };
        refused(format!("The text of {name} cannot be restored from what is kept. {again}"))
    }
}

impl Verb {
    pub async fn library(&mut self, action: LibraryAction) -> Done {
        match action {
            LibraryAction::List => self.list_library(),
            LibraryAction::Add(path) => self.library_add(&path).await,
            LibraryAction::Remove(name) => {
                let is_used = self.disk.documents()?.iter().any(|d| d.document.name == name && d.in_use);
                if self.disk.store.remove_document(&name)? == 0 {
                    return Err(not_in_library(&name, &self.disk.documents()?));
                }
                self.say_removed(&format!("{name} from the library"), is_used)
            }
            LibraryAction::Prune => {
                let removed = counted(self.disk.store.prune_documents()?, "unused document");
                self.say_removed(&removed, false)
            }
        }
    }

    fn say_removed(&self, what: &str, is_used: bool) -> Done {
        let freed = self.disk.store.collect()?;
        self.report_library();
        self.say(removed(what, is_used, freed.bytes))
    }

    /// Reads files after the system text of new sessions and keeps the state. The conversation does not change.
    async fn library_add(&mut self, path: &str) -> Done {
        let found = self.gather(&[path.to_owned()], &LoadOptions::default()).await?;
        let documents = self.shaped(found.documents, &LoadOptions::default())?;
        self.engine_ready().await?;
        let mut unread = self.library_read(documents).await?;
        // The command ends with the last failure.
        let last = unread.pop().map_or(Ok(()), |(_, why)| Err(why));
        unread.into_iter().for_each(|(_, why)| self.note(Level::Error, why.to_string()));
        last
    }

    /// Reads documents into the library, then restores the previous state. Returns the documents that do not fit.
    pub async fn library_read(&mut self, documents: Vec<Document>) -> Done<Vec<Unread>> {
        let before = self.here.slot.live.clone();
        let mut unread = Vec::new();
        for document in documents {
            if self.here.slot.stopped() {
                break;
            }
            let file = document.path.as_ref().map_or_else(|| document.name.clone(), |p| p.display().to_string());
            let mut read = Vec::new();
            match self.read_into_library(&mut read, document).await {
                Err(why @ RuntimeError::TooLong(_)) => unread.push((file, why)),
                stats => self.library_has(read.pop(), &stats?),
            }
        }
        self.return_to(before).await?;
        self.report_meters();
        Ok(unread)
    }

    /// Reads one document after these messages, or the system text of new sessions, and adds it to both.
    pub async fn read_into_library(&mut self, messages: &mut Vec<Message>, document: Document) -> Done<PrefillStats> {
        let path = document.path.map(|p| p.display().to_string());
        let info = DocumentInfo::new(&document.name, path, &document.text);
        let first = messages.is_empty();
        if first {
            messages.extend(self.default_system_message());
        }
        let mut message = self.draft(Role::Document, messages.last().map(|m| m.id), document.text);
        message.meta.document = Some(info.clone());
        messages.push(message);
        let path: Vec<&Message> = messages.iter().collect();
        let rendered = self.known_size(self.rendering(&path, Form::Past, self.options.settings.think), &info.name)?;
        let starts_at = if first { 0 } else { self.here.slot.live.position() };
        let mut plan = self.fitted(&rendered, State::plan, &info.name).await?;
        // These messages are in no conversation, so no segment may refer to them.
        plan.steps.iter_mut().for_each(|s| s.message = None);
        plan.found.clear();
        let is_unread = self.here.is_unread;
        let stats = self.execute(plan, &rendered, None, &mut ()).await;
        self.here.is_unread = is_unread;
        let stats = stats?;
        self.unstopped()?;
        if let Some(tip) = self.here.slot.live.head() {
            let info = DocumentInfo { tokens: self.here.slot.live.position() - starts_at, ..info };
            self.add_to_library(&info, starts_at, tip);
            if let Some(message) = messages.last_mut() {
                message.meta.document = Some(info);
            }
        }
        Ok(stats)
    }
}

/// Line ends before and after a file's text that the reader strips.
const BEFORE: [&str; 3] = ["", "\n", "\r\n"];
const AFTER: [&str; 6] = ["\n", "", "\r\n", "\n\n", "\r\n\r\n", "\n\n\n"];

/// The text of a library document, byte for byte: from a session that holds it, or decoded from the tokens.
///
/// # Errors
/// The store cannot be read.
pub fn text_as_read(store: &Store, renderer: &Renderer, record: &DocumentRecord) -> Result<Option<String>, StoreError> {
    if let Some(text) = text_of_a_session(store, record)? {
        return Ok(Some(text));
    }
    let spelled = text_decoded(store, renderer, record)?.unwrap_or_default();
    let is_it = |text: &String| text_hash(text) == record.document.hash;
    let mut edges = BEFORE.iter().flat_map(|before| AFTER.iter().map(move |after| (before, after)));
    Ok(edges.find_map(|(before, after)| Some(format!("{before}{spelled}{after}")).filter(is_it)))
}

pub fn text_of_a_session(store: &Store, record: &DocumentRecord) -> Result<Option<String>, StoreError> {
    let d = &record.document;
    let Some(id) = store.message_ending(&d.segment)? else { return Ok(None) };
    Ok(Some(store.message(id)?.text).filter(|text| text_hash(text) == d.hash))
}

/// The text as it can be decoded from the tokens: without the line ends around it.
pub fn text_decoded(store: &Store, renderer: &Renderer, record: &DocumentRecord) -> Result<Option<String>, StoreError> {
    let d = &record.document;
    let Some(segments) = StoreError::if_known(store.load_path(&d.segment))? else { return Ok(None) };
    Ok(segments::document_text(renderer, &Path::new(segments), d.prefix, &d.name))
}
