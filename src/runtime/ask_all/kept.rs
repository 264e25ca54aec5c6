//! Documents of the library for `/ask-all`: the kept state of each, and files to read again.

use super::super::library::Unread;
use super::super::{Done, RuntimeError, State, Verb};
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

/// Documents with usable state that holds nothing else, and the others.
pub(super) type Shelved = (Vec<DocumentRecord>, Vec<(DocumentRecord, Standing)>);

pub(super) fn is_file(path: &str) -> bool {
    std::path::Path::new(path).is_file()
}

impl State {
    /// The matching documents. Of several entries with one text, the one with the least text before it is used.
    pub(super) fn shelved(&self, library: Option<&str>) -> Done<Shelved> {
        let pattern = library.map(glob::Pattern::new).transpose();
        let pattern = pattern
            .map_err(|e| RuntimeError::Refused(format!("{} is not a pattern of names: {e}", library.unwrap_or(""))))?;
        let mut kept: Vec<DocumentRecord> = Vec::new();
        let mut others: Vec<(DocumentRecord, Standing)> = Vec::new();
        let mut records = self.disk.documents()?;
        records.retain(|d| pattern.as_ref().is_none_or(|p| p.matches(&d.document.name)));
        // A stable sort: the records are ordered by last use.
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
            // No session holds the text that was read before it.
            None => self.question_to(record, "?").is_ok(),
        };
        Ok(if alone { Standing::Alone } else { Standing::AfterOthers })
    }

    pub(super) fn why_not(
        &self,
        tried: bool,
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
            Standing::AfterOthers => "it was read after other text",
        };
        match path {
            Some(path) if is_file(path) && tried => format!("{what}; it was not read"),
            Some(path) if is_file(path) => format!("{what}; add --read to read it alone"),
            Some(path) => format!("{what}, and its file is gone: {path}"),
            None => format!("{what}, and no file to read it from"),
        }
    }

    fn is_kept(&self, segment: &SegmentId) -> Done<bool> {
        let path = self.disk.stored_path(segment)?;
        let plan = self.disk.restorable(segment)?;
        Ok(path.head() == Some(*segment) && plan.is_some_and(|plan| plan.usable == path.segments().len()))
    }
}

impl Verb {
    /// Reads documents again from their files. A file that cannot be opened does not affect the others.
    pub(super) async fn read_shelved(&mut self, files: Vec<String>) -> Done<Vec<Unread>> {
        let (mut documents, mut unread) = (Vec::new(), Vec::new());
        for path in files {
            self.unstopped()?;
            let found = self.gather(std::slice::from_ref(&path), &LoadOptions::default()).await;
            match found.and_then(|found| self.shaped(found, &LoadOptions::default())) {
                Ok(found) => documents.extend(found),
                Err(RuntimeError::Stopped) => return Err(RuntimeError::Stopped),
                Err(why) => unread.push(Unread { path, why }),
            }
        }
        unread.extend(self.library_read(documents).await?);
        self.unstopped().map(|()| unread)
    }
}
