//! The talk: the open session as a tree of messages with its settings, names and rights. Pure: no store, no engine, no
//! channels; what changes here is recorded through [`super::record`].

use std::collections::{BTreeMap, HashMap, HashSet};

use super::tree::Tree;
use super::{Done, RuntimeError, Settings};
use crate::core::transcript::{DocumentInfo, Message, MessageId, Role, SessionId};
use crate::store::SegmentId;
use crate::text::near::nearest;
use crate::text::sanitize::command_word;

/// Who may write to the open session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rights {
    /// We.
    Write,
    /// Somebody else, or its state is unusable and the user chose to look only: why.
    View(String),
}

/// The open session.
#[derive(Debug)]
pub(super) struct Session {
    /// Its place among those opened in this run.
    pub(super) serial: u64,
    /// Its row; `None` until the first message.
    pub(super) id: Option<SessionId>,
    /// Its name; empty until the first message.
    pub(super) name: String,
    /// The title that it was given; empty while the first words of its first question stand for it.
    pub(super) title: String,
    /// The model is to make one when there is nothing else to do.
    pub(super) wants_title: bool,
    pub(super) tree: Tree,
    pub(super) settings: Settings,
    /// The settings as they were kept, if something in them could not be read.
    pub(super) unread: Option<String>,
    /// System text of the next root.
    pub(super) system: Option<String>,
    pub(super) rights: Rights,
    /// Its state is not read, and may not be: what is live is of another conversation.
    pub(super) is_unread: bool,
    /// Segment that ends a message, for the present model.
    pub(super) ends: HashMap<MessageId, SegmentId>,
    /// Names given to messages by `/mark` and `/fork`; a message may have several.
    pub(super) labels: BTreeMap<String, MessageId>,
    /// Messages whose texts are not here in full: they are off the open branch.
    pub(super) cut: HashSet<MessageId>,
    /// Documents whose load broke off, until it is recorded that they are read to their ends after all.
    pub(super) broken_off: HashSet<MessageId>,
}

impl Session {
    /// An empty session.
    pub(super) fn empty(settings: Settings, system: Option<String>) -> Session {
        Session {
            serial: 0,
            id: None,
            name: String::new(),
            title: String::new(),
            wants_title: false,
            tree: Tree::default(),
            settings,
            unread: None,
            system,
            rights: Rights::Write,
            is_unread: false,
            ends: HashMap::new(),
            labels: BTreeMap::new(),
            cut: HashSet::new(),
            broken_off: HashSet::new(),
        }
    }

    /// The same talk with these messages alone, of no session.
    pub(super) fn copy_at(&self, path: Vec<Message>, rights: Rights) -> Session {
        let head = path.last().map(|m| m.id);
        Session {
            serial: self.serial,
            name: self.name.clone(),
            tree: Tree::new(path, head),
            rights,
            ends: self.ends.clone(),
            ..Session::empty(self.settings.clone(), self.system.clone())
        }
    }

    /// Whether it may grow.
    pub(super) fn may_write(&self) -> Done {
        match &self.rights {
            Rights::Write => Ok(()),
            Rights::View(why) => Err(RuntimeError::Refused(format!(
                "This session is open to view only: {why} /resume {} tries again, /fork makes a copy to go on with.",
                command_word(&self.name)
            ))),
        }
    }

    /// System text for a new root, if there is any.
    pub(super) fn opening_text(&self) -> Option<&str> {
        let fresh = self.tree.head().is_none();
        self.system.as_deref().filter(|text| fresh && !text.trim().is_empty())
    }

    /// As kept with the session.
    pub(super) fn settings_json(&self) -> Done<String> {
        self.settings
            .to_json(self.unread.as_deref())
            .map_err(|e| RuntimeError::Failed(format!("The settings cannot be written down: {e}.")))
    }

    /// Marks documents whose load broke off as complete once they are read to their end. True if there are any.
    pub(super) fn complete_what_is_read(&mut self) -> bool {
        let read = self.broken_off.iter().filter(|id| self.ends.contains_key(*id));
        let open = |m: &&Message| m.meta.document.as_ref().is_some_and(|d| !d.complete);
        let read: Vec<Message> = read.filter_map(|id| self.tree.get(*id)).filter(open).cloned().collect();
        let any = !read.is_empty();
        for mut message in read {
            if let Some(info) = &mut message.meta.document {
                info.complete = true;
            }
            self.tree.amend(message);
        }
        any
    }

    /// The first document of the open branch whose load broke off and that is not read to its end.
    pub(super) fn half_read(&self) -> Option<&Message> {
        self.tree.path().into_iter().find(|m| self.broken_off.contains(&m.id) && m.is_half_read())
    }

    /// ` again`, unless some of what has to be read of the open branch was never read to its end.
    pub(super) fn again(&self) -> &'static str {
        if self.half_read().is_some() { "" } else { " again" }
    }

    /// Message `#number` of the open branch.
    pub(super) fn numbered(&self, number: u64) -> Done<&Message> {
        self.tree.at_number(number).ok_or_else(|| {
            let there = match self.tree.path().len() {
                0 => "nothing was said yet".to_owned(),
                1 => "this branch has #1 only".to_owned(),
                last => format!("this branch has #1 to #{last}"),
            };
            RuntimeError::Refused(format!("No message #{number}: {there}. /timeline shows all."))
        })
    }

    /// The message that was given a name.
    pub(super) fn labelled(&self, name: &str) -> Option<MessageId> {
        self.labels.get(name).copied()
    }

    /// Gives a message a name, which no other has from now on.
    pub(super) fn label(&mut self, name: &str, message: MessageId) {
        self.labels.insert(name.to_owned(), message);
    }

    /// What each message is called, with all its names.
    pub(super) fn names(&self) -> HashMap<MessageId, String> {
        let mut names: HashMap<MessageId, String> = HashMap::new();
        for (name, message) in &self.labels {
            let all = names.entry(*message).or_default();
            if !all.is_empty() {
                all.push_str(", ");
            }
            all.push_str(name);
        }
        names
    }

    /// Place in the path of the document called so: by its whole name, the last one of it, or by the end of its path
    /// where one document only ends so.
    pub(super) fn document_called(&self, name: &str) -> Done<Option<usize>> {
        let path = self.tree.path();
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
                return Err(RuntimeError::Refused(format!(
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
        let path = self.tree.path();
        let names: Vec<&str> = path.iter().filter_map(|m| m.meta.document.as_ref()).map(|d| d.name.as_str()).collect();
        if names.is_empty() {
            return format!("No document {name}: none was loaded here yet. /load PATH reads one.");
        }
        match nearest(name, names.iter().copied()) {
            Some(near) => format!("No document {name} in this conversation. Did you mean {near}? /docs lists them."),
            None => format!("No document {name} in this conversation. /docs lists them."),
        }
    }

    /// The documents of the open branch that have all of this text, if it was loaded already.
    pub(super) fn documents_with(&self, hash: &str) -> impl Iterator<Item = &DocumentInfo> {
        let documents = self.tree.path().into_iter().filter(|m| m.role == Role::Document);
        let documents = documents.filter_map(|m| Some((m, m.meta.document.as_ref()?)));
        let whole = move |(m, d): &(&Message, &DocumentInfo)| d.hash == hash && (d.complete || m.is_half_read());
        documents.filter(whole).map(|(_, d)| d)
    }

    /// The documents of the open branch that end where their load was stopped.
    pub(super) fn documents_in_part(&self) -> impl Iterator<Item = &DocumentInfo> {
        let cut = |m: &&Message| m.role == Role::Document && !m.is_half_read();
        let documents = self.tree.path().into_iter().filter(cut);
        documents.filter_map(|m| m.meta.document.as_ref()).filter(|d| !d.complete)
    }
}
