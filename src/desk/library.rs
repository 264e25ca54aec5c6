//! Documents of the conversation and of the shelf.

use super::feed::Plan;
use super::pages::bytes;
use super::{DeskError, Done, State, grouped};
use crate::protocol::desk::{DocumentRow, Level, LibraryAction, LoadOptions, Notice};
use crate::text::near::nearest;
use crate::transcript::{DocumentInfo, Message, Role};

/// Lines shown by `/open`.
const PAGE_LINES: usize = 400;
/// Lines shown before the one that was asked for.
const LINES_BEFORE: usize = 10;

fn short(hash: &str) -> String {
    hash.chars().take(8).collect()
}

impl State {
    /// Documents of the open branch.
    pub(super) fn document_rows(&self) -> Vec<DocumentRow> {
        let row = |m: &&Message| {
            let d = m.meta.document.as_ref()?;
            let segment = self.open.ends.get(&m.id);
            let live = segment.and_then(|id| self.live.segments().iter().find(|s| s.id == *id));
            let stored = segment.and_then(|id| self.store.segment(id).ok().flatten());
            Some(DocumentRow {
                name: d.name.clone(),
                tokens: d.tokens,
                position: live.map(|s| s.end_position().saturating_sub(d.tokens)),
                lines: d.lines,
                hash: short(&d.hash),
                kept: stored.as_ref().is_some_and(|s| s.end.is_kept() && s.rows.is_kept()),
                bytes: stored.map_or(0, |s| s.end.bytes() + s.rows.bytes()),
                used_ms: m.created_ms,
            })
        };
        self.open.conversation.path().iter().filter_map(row).collect()
    }

    /// `/docs`.
    pub(super) fn docs(&mut self) -> Done {
        let rows = self.document_rows();
        self.tell(Notice::Documents { title: "This conversation".into(), rows });
        Ok(())
    }

    /// Place in the path of the document called so: by its whole name, the last one of it, or by the end of its path
    /// where one document only ends so.
    pub(super) fn document_called(&self, name: &str) -> Done<Option<usize>> {
        let path = self.open.conversation.path();
        let named = |m: &&Message| m.meta.document.as_ref().is_some_and(|d| d.name == name);
        if let Some(at) = path.iter().rposition(named) {
            return Ok(Some(at));
        }
        let ends_so = |d: &DocumentInfo| {
            let before = d.name.strip_suffix(name);
            before.is_some_and(|b| b.ends_with('/') && !name.is_empty())
        };
        let mut at: Option<usize> = None;
        for (i, m) in path.iter().enumerate() {
            let Some(d) = m.meta.document.as_ref().filter(|d| ends_so(d)) else {
                continue;
            };
            let before = at.and_then(|at| path.get(at)?.meta.document.as_ref());
            if let Some(other) = before.filter(|other| other.name != d.name) {
                return Err(DeskError::Refused(format!(
                    "{name} can be {} or {}: write the whole name.",
                    other.name, d.name
                )));
            }
            at = Some(i);
        }
        Ok(at)
    }

    /// No document is called so: what there is.
    pub(super) fn no_document(&self, name: &str) -> String {
        let path = self.open.conversation.path();
        let names: Vec<&str> = path.iter().filter_map(|m| m.meta.document.as_ref()).map(|d| d.name.as_str()).collect();
        if names.is_empty() {
            return format!("No document {name}: none was loaded here yet. /load PATH reads one.");
        }
        match nearest(name, names.iter().copied()) {
            Some(near) => format!("No document {name} in this conversation. Did you mean {near}? /docs lists them."),
            None => format!("No document {name} in this conversation. /docs lists them."),
        }
    }

    /// `/open NAME[:LINE]`.
    pub(super) fn open_document(&mut self, name: &str) -> Done {
        let (name, line) = match name.rsplit_once(':').and_then(|(n, l)| Some((n, l.parse::<usize>().ok()?))) {
            Some((name, line)) => (name, Some(line.max(1))),
            None => (name, None),
        };
        let (asked, line) = (line, line.unwrap_or(1));
        let path = self.open.conversation.path();
        let message = match self.document_called(name)?.and_then(|at| path.get(at)) {
            Some(message) => *message,
            None => return Err(DeskError::Refused(self.no_document(name))),
        };
        let name = message.meta.document.as_ref().map_or(name, |d| &d.name);
        let first = line.saturating_sub(LINES_BEFORE).max(1);
        let shown: Vec<String> = message
            .text
            .lines()
            .enumerate()
            .skip(first - 1)
            .take(PAGE_LINES)
            .map(|(i, l)| format!("    {}{:>6}  {l}", if asked == Some(i + 1) { '>' } else { ' ' }, i + 1))
            .collect();
        if shown.is_empty() {
            let lines = message.text.lines().count();
            return Err(DeskError::Refused(format!("{name} has {lines} lines.")));
        }
        self.tell(Notice::Page { title: format!("{name}:{line}"), text: shown.join("\n") });
        Ok(())
    }

    /// `/library`.
    pub(super) fn library(&mut self, action: LibraryAction) -> Done {
        match action {
            LibraryAction::List => {
                let rows = self
                    .store
                    .documents()?
                    .into_iter()
                    .map(|d| DocumentRow {
                        name: d.document.name,
                        tokens: d.document.tokens,
                        position: None,
                        lines: d.document.lines,
                        hash: short(&d.document.hash),
                        kept: d.kept,
                        bytes: d.bytes,
                        used_ms: d.used_ms,
                    })
                    .collect();
                self.tell(Notice::Documents { title: "Library".into(), rows });
                Ok(())
            }
            LibraryAction::Add(path) => self.shelve_file(&path),
            LibraryAction::Remove(name) => {
                let removed = self.store.remove_document(&name)?;
                if removed == 0 {
                    return Err(DeskError::Refused(format!("No document {name} in the library. /library lists them.")));
                }
                let freed = self.store.collect()?;
                self.note(
                    Level::Info,
                    format!("{name} is off the shelf, {} freed. Sessions keep what they use.", bytes(freed.bytes)),
                );
                Ok(())
            }
            LibraryAction::Prune => {
                let removed = self.store.prune_documents()?;
                let freed = self.store.collect()?;
                self.note(
                    Level::Info,
                    format!("{removed} documents that no session uses taken off, {} freed.", bytes(freed.bytes)),
                );
                Ok(())
            }
        }
    }

    /// Reads a file behind the system text of new sessions and keeps the state, without touching the conversation.
    fn shelve_file(&mut self, path: &str) -> Done {
        let gathered = self.gather(&[path.to_owned()], &LoadOptions::default())?;
        self.need_engine()?;
        let before = self.live.clone();
        for document in gathered.documents {
            let mut info =
                self.document_info(&document.name, document.path.map(|p| p.display().to_string()), &document.text);
            let system = self.default_system.clone().filter(|s| !s.trim().is_empty());
            let mut messages: Vec<Message> = system.map(|s| self.draft(Role::System, None, s)).into_iter().collect();
            let mut message = self.draft(Role::Document, messages.last().map(|m| m.id), document.text);
            message.meta.document = Some(info.clone());
            messages.push(message);
            let rendered = self.renderer.past(&messages.iter().collect::<Vec<_>>(), self.defaults.think)?;
            let mut plan = self.plan(&rendered)?;
            self.check_room(&plan, &info.name)?;
            // These messages are in no conversation: nothing may point at them.
            plan.steps.iter_mut().for_each(|s| s.message = None);
            let plan = Plan { found: Vec::new(), ..plan };
            let started = std::time::Instant::now();
            let fed = self.carry_out(plan, &rendered, None, &mut super::feed::PromptReading::new(started))?;
            if self.cancel.is_cancelled() {
                break;
            }
            if let Some(tip) = self.live.head() {
                info.tokens = self.live.position();
                self.shelve(&info, 0, tip);
            }
            let (read, all) = (grouped(fed.read), grouped(info.tokens));
            self.note(Level::Info, format!("{} is in the library: {all} tokens, {read} read.", info.name));
        }
        self.return_to(before)
    }
}
