//! Documents of the library for `/ask-all`: the kept state of each, and files to read again.

use super::super::library::Unread;
use super::super::{Done, RuntimeError, State, Verb, refused};
use super::no_document;
use crate::config::settings::SaveStates;
use crate::core::transcript::Role;
use crate::runtime::protocol::LoadOptions;
use crate::store::{DocumentRecord, SegmentId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// State is kept, and only a system text precedes the document.
    Alone,
    /// State is kept, but after other documents or a conversation, which would influence the answers.
    AfterOthers,
    NotKept,
}

pub(super) fn is_file(path: &str) -> bool {
    std::path::Path::new(path).is_file()
}

impl State {
    /// Why a document cannot be asked; `None` if it can.
    pub(super) fn why_not(
        &self,
        tried: bool,
        record: &DocumentRecord,
        standing: Standing,
        unread: &[Unread],
    ) -> Option<String> {
        let path = record.document.path.as_deref();
        let what = match standing {
            Standing::Alone => return None,
            Standing::AfterOthers => "it was read after other text",
            Standing::NotKept => "no kept state of this model",
        };
        if let Some((_, why)) = unread.iter().find(|(file, _)| Some(file.as_str()) == path) {
            return Some(why.to_string());
        }
        if self.disk.policy == SaveStates::Never {
            return Some("no kept state of this model: sessions.save_state = \"never\" keeps none".to_owned());
        }
        Some(match path {
            Some(path) if is_file(path) && tried => format!("{what}; it was not read"),
            Some(path) if is_file(path) => format!("{what}; add --read to read it alone"),
            Some(path) => format!("{what}, and its file is gone: {path}"),
            None => format!("{what}, and no file to read it from"),
        })
    }

    fn standing(&self, record: &DocumentRecord) -> Done<Standing> {
        if record.fingerprint != self.engine.fingerprint || !self.is_kept(&record.document.segment)? {
            return Ok(Standing::NotKept);
        }
        let Some(prefix) = record.document.prefix else { return Ok(Standing::Alone) };
        let alone = match self.disk.store.message_ending(&prefix)? {
            Some(id) => self.disk.store.path(id)?.iter().all(|m| m.role == Role::System),
            // No session holds the text that was read before it.
            None => self.question_to(record, "?").is_ok(),
        };
        Ok(if alone { Standing::Alone } else { Standing::AfterOthers })
    }

    fn is_kept(&self, segment: &SegmentId) -> Done<bool> {
        let path = self.disk.stored_path(segment)?;
        let plan = self.disk.restorable(segment)?;
        Ok(path.head() == Some(*segment) && plan.is_some_and(|plan| plan.usable == path.segments().len()))
    }
}

impl Verb {
    /// The matching documents, those with state of their own first. Of several entries with one text, the one with the
    /// least text before it is used.
    pub(super) async fn shelved(&mut self, library: Option<&str>) -> Done<Vec<(DocumentRecord, Standing)>> {
        // Entry and state of a document that was just read may not be on disk yet.
        self.disk.wait_for_texts();
        self.states_saved().await;
        let names = library.unwrap_or("*");
        let pattern = glob::Pattern::new(names)
            .map_err(|e| RuntimeError::Refused(format!("{names} is not a pattern of names: {e}")))?;
        let mut records = self.disk.documents()?;
        records.retain(|d| pattern.matches(&d.document.name));
        // A stable sort: the records are ordered by last use.
        records.sort_by_key(|d| d.document.prefix.is_some());
        let mut shelved: Vec<(DocumentRecord, Standing)> = Vec::new();
        for record in records {
            let (name, hash) = (&record.document.name, &record.document.hash);
            let same = shelved.iter_mut().find(|(d, _)| d.document.name == *name && d.document.hash == *hash);
            if same.as_ref().is_some_and(|(_, standing)| *standing == Standing::Alone) {
                continue;
            }
            let standing = self.standing(&record)?;
            match same {
                None => shelved.push((record, standing)),
                Some(same) if standing == Standing::Alone => *same = (record, standing),
                Some(_) => {}
            }
        }
        if shelved.is_empty() {
            return refused(no_document(library, self.attendance));
        }
        shelved.sort_by(|(a, _), (b, _)| a.document.name.cmp(&b.document.name));
        shelved.sort_by_key(|(_, standing)| *standing != Standing::Alone);
        Ok(shelved)
    }

    /// Reads documents again from their files. A file that cannot be opened does not affect the others.
    pub(super) async fn read_shelved(&mut self, files: Vec<String>) -> Done<Vec<Unread>> {
        let (mut documents, mut unread) = (Vec::new(), Vec::new());
        for path in files {
            self.unstopped()?;
            let found = self.gather(std::slice::from_ref(&path), &LoadOptions::default()).await;
            match found.and_then(|found| self.shaped(found, &LoadOptions::default())) {
                Ok(found) => documents.extend(found),
                Err(RuntimeError::Stopped) => return Err(RuntimeError::Stopped),
                Err(why) => unread.push((path, why)),
            }
        }
        unread.extend(self.library_read(documents).await?);
        self.unstopped().map(|()| unread)
    }
}
