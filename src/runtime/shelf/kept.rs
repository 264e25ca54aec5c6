//! Which documents of the library can be asked: what is kept of each, and files that are read again.

use std::collections::VecDeque;

use super::super::library::Unread;
use super::super::{Done, RuntimeError, State, Then};
use super::Wish;
use crate::config::settings::SaveStates;
use crate::core::transcript::Role;
use crate::runtime::protocol::LoadOptions;
use crate::store::{DocumentRecord, SegmentId};
use crate::text::sources::Document;

/// What there is of a document's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is kept, with nothing but a system text before the document.
    Alone,
    /// It is kept, but behind other documents or a conversation: its answers would be about those, too.
    BehindOthers,
    /// It is not kept, or of another model.
    NotKept,
}

pub(super) fn is_file(path: &str) -> bool {
    std::path::Path::new(path).is_file()
}

impl State {
    /// The documents of the library that are meant: those whose state of this model is kept with nothing else in it, and the
    /// others. Of one text the entry with the least before it.
    pub(super) fn shelved(
        &self,
        library: Option<&str>,
    ) -> Done<(Vec<DocumentRecord>, Vec<(DocumentRecord, Standing)>)> {
        let pattern = library.map(glob::Pattern::new).transpose();
        let pattern = pattern
            .map_err(|e| RuntimeError::Refused(format!("{} is no pattern of names: {e}", library.unwrap_or(""))))?;
        let mut kept: Vec<DocumentRecord> = Vec::new();
        let mut others: Vec<(DocumentRecord, Standing)> = Vec::new();
        let mut records = self.disk.store.documents()?;
        records.retain(|d| pattern.as_ref().is_none_or(|p| p.matches(&d.document.name)));
        // The last used come first.
        records.sort_by_key(|d| d.document.prefix.is_some());
        for record in records {
            let same =
                |d: &DocumentRecord| d.document.hash == record.document.hash && d.document.name == record.document.name;
            if kept.iter().any(same) {
                continue;
            }
            match self.standing(&record)? {
                Standing::Alone => {
                    others.retain(|(d, _)| !same(d));
                    kept.push(record);
                }
                _ if others.iter().any(|(d, _)| same(d)) => {}
                standing => others.push((record, standing)),
            }
        }
        kept.sort_by(|a, b| a.document.name.cmp(&b.document.name));
        others.sort_by(|(a, _), (b, _)| a.document.name.cmp(&b.document.name));
        Ok((kept, others))
    }

    fn standing(&self, record: &DocumentRecord) -> Done<Standing> {
        if record.fingerprint != self.engine.fingerprint() || !self.is_kept(&record.document.segment)? {
            return Ok(Standing::NotKept);
        }
        let Some(prefix) = record.document.prefix else { return Ok(Standing::Alone) };
        let alone = match self.disk.store.message_ending(&prefix)? {
            Some(id) => self.disk.store.path(id)?.iter().all(|m| m.role == Role::System),
            // No session holds what was read before it.
            None => self.behind(record, "?").is_ok(),
        };
        Ok(if alone { Standing::Alone } else { Standing::BehindOthers })
    }

    /// Why a document is not asked, and what would help.
    pub(super) fn why_not(
        &self,
        wish: &Wish,
        record: &DocumentRecord,
        standing: Standing,
        unread: &[Unread],
    ) -> String {
        let path = record.document.path.as_deref();
        if let Some(unread) = unread.iter().find(|u| Some(u.path.as_str()) == path) {
            return unread.why.to_string();
        }
        let what = match standing {
            _ if self.disk.policy == SaveStates::Never => {
                return "no kept state of this model: sessions.save_state = \"never\" keeps none".to_owned();
            }
            Standing::Alone | Standing::NotKept => "no kept state of this model",
            Standing::BehindOthers => "its state is kept behind other texts only",
        };
        match path {
            Some(path) if is_file(path) && wish.tried => format!("{what}; it was not read"),
            Some(path) if is_file(path) => format!("{what}; --read reads it"),
            Some(path) => format!("{what}, and its file is gone: {path}"),
            None => format!("{what}, and no file to read it from"),
        }
    }

    /// Whether all of the state that ends in this segment can be had.
    fn is_kept(&self, segment: &SegmentId) -> Done<bool> {
        let path = self.disk.stored_path(segment)?;
        let plan = self.disk.restorable(segment)?;
        Ok(path.head() == Some(*segment) && plan.is_some_and(|plan| plan.usable == path.segments().len()))
    }

    /// Reads documents again from their files, then asks.
    pub(super) fn read_shelved(&mut self, files: VecDeque<String>, wish: Wish) -> Done {
        self.gather_each(files, Vec::new(), Vec::new(), move |runtime, documents, unread| {
            let before = runtime.here.slot.live.clone();
            let wish = Wish { read: false, ..wish };
            let then: Then<Vec<Unread>> = Box::new(move |runtime, unread| match runtime.here.slot.stopped() {
                true => Err(RuntimeError::Stopped),
                false => {
                    runtime.disk.wait_for_texts();
                    runtime.when_saved(runtime.disk.states(), move |runtime| runtime.ask_shelf(wish, &unread))
                }
            });
            runtime.library_read(documents.into(), before, unread, then)
        })
    }

    /// Opens files one by one: one that cannot be read keeps none of the others from being asked.
    fn gather_each(
        &mut self,
        mut files: VecDeque<String>,
        mut documents: Vec<Document>,
        mut unread: Vec<Unread>,
        then: impl FnOnce(&mut State, Vec<Document>, Vec<Unread>) -> Done + Send + 'static,
    ) -> Done {
        if self.here.slot.stopped() {
            return Err(RuntimeError::Stopped);
        }
        let Some(path) = files.pop_front() else { return then(self, documents, unread) };
        let file = [path.clone()];
        self.try_gather(&file, &LoadOptions::default(), move |runtime, gathered| {
            let gathered = gathered.and_then(|gathered| {
                runtime.say_skipped(&gathered);
                runtime.shaped(gathered.documents, &LoadOptions::default())
            });
            match gathered {
                Ok(found) => documents.extend(found),
                Err(RuntimeError::Stopped) => return Err(RuntimeError::Stopped),
                Err(why) => unread.push(Unread { path, why }),
            }
            runtime.gather_each(files, documents, unread, then)
        })
    }
}
