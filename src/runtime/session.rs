//! The open session: a tree of messages with settings, names and rights. Pure: no store, engine or channels;
//! [`super::record`] saves its changes.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Done, RuntimeError, Settings, Tree, refused};
use crate::core::counted;
use crate::core::sanitize::command_word;
use crate::core::transcript::{DocumentInfo, Message, MessageId, Role, SessionId};
use crate::store::SegmentId;
use crate::text::near::no_document;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Rights {
    #[default]
    Write,
    /// Another process writes, or the state is unusable and the user chose to view only: the reason.
    View(String),
}

#[derive(Debug, Default)]
pub(super) struct Session {
    pub(super) serial: u64,
    /// Its row; `None` until the first message.
    pub(super) id: Option<SessionId>,
    pub(super) name: String,
    /// The given title; if empty, the interface shows the first question.
    pub(super) title: String,
    /// The model writes a title when it has no other work.
    pub(super) wants_title: bool,
    pub(super) tree: Tree,
    pub(super) settings: Settings,
    /// System text of the next root.
    pub(super) system: Option<String>,
    pub(super) rights: Rights,
    /// Its state is not read and must not be: the live state belongs to another conversation.
    pub(super) is_unread: bool,
    /// Segment that ends a message, for the loaded model.
    pub(super) ends: HashMap<MessageId, SegmentId>,
    /// Names from `/mark` and `/fork`; a message may have several.
    pub(super) labels: BTreeMap<String, MessageId>,
    /// Messages off the open branch with incomplete texts in memory.
    pub(super) cut: HashSet<MessageId>,
}

impl Session {
    pub(super) fn empty(settings: Settings, system: Option<String>) -> Session {
        Session { settings, system, ..Session::default() }
    }

    pub(super) fn has_answers(&self) -> bool {
        self.tree.path().iter().any(|m| m.role == Role::Assistant)
    }

    pub(super) fn may_write(&self) -> Done {
        match &self.rights {
            Rights::Write => Ok(()),
            Rights::View(why) => refused(format!(
                "This session is view only: {why} /resume {} tries again, /fork makes a copy you can write in.",
                command_word(&self.name)
            )),
        }
    }

    pub(super) fn settings_json(&self) -> Done<String> {
        self.settings.to_json().map_err(|e| RuntimeError::Failed(format!("The settings cannot be saved: {e}.")))
    }

    /// A document of a stopped load, without those that were read to their end since.
    pub(super) fn half_read(&self) -> Option<&Message> {
        self.tree.path().into_iter().find(|m| m.is_half_read() && !self.ends.contains_key(&m.id))
    }

    /// ` again`, unless part of the text was never read.
    pub(super) fn again(&self) -> &'static str {
        if self.half_read().is_some() { "" } else { " again" }
    }

    pub(super) fn numbered(&self, number: u64) -> Done<&Message> {
        self.tree.at_number(number).ok_or_else(|| {
            let there = counted(self.tree.path().len() as u64, "message");
            RuntimeError::Refused(format!("No message #{number}: this branch has {there}. /timeline shows all."))
        })
    }

    pub(super) fn names(&self) -> HashMap<MessageId, String> {
        let mut names: HashMap<MessageId, String> = HashMap::new();
        for (name, message) in &self.labels {
            let all = names.entry(*message).and_modify(|all| all.push_str(", ")).or_default();
            all.push_str(name);
        }
        names
    }

    /// Index in the path of a document, by its full name (the last match) or a unique end of its path.
    pub(super) fn document_called(&self, name: &str) -> Done<Option<usize>> {
        let path = self.tree.path();
        let named = |m: &&Message| m.meta.document.as_ref().is_some_and(|d| d.name == name);
        if let Some(at) = path.iter().rposition(named) {
            return Ok(Some(at));
        }
        let ends_so =
            |d: &&DocumentInfo| !name.is_empty() && d.name.strip_suffix(name).is_some_and(|b| b.ends_with('/'));
        let mut found: Option<(usize, &DocumentInfo)> = None;
        for (at, m) in path.iter().enumerate() {
            let Some(d) = m.meta.document.as_ref().filter(ends_so) else { continue };
            if let Some((_, other)) = found.filter(|(_, other)| other.name != d.name) {
                return refused(format!("{name} can be {} or {}: write the whole name.", other.name, d.name));
            }
            found = Some((at, d));
        }
        Ok(found.map(|(at, _)| at))
    }

    pub(super) fn no_document(&self, name: &str) -> String {
        let path = self.tree.path();
        let names: Vec<&str> = path.iter().filter_map(|m| m.meta.document.as_ref()).map(|d| d.name.as_str()).collect();
        if names.is_empty() {
            return format!("No document {name}: none is loaded here. /load PATH reads one.");
        }
        no_document(name, "this conversation", names, "/docs")
    }
}
