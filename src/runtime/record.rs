//! Changes of messages, head, names, settings and segments: each applies to the session and is sent to the writer.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use unicode_width::UnicodeWidthChar;

use super::persistence::{PATIENCE, STATE_PATIENCE};
use super::{Attendance, Done, Notice, Rights, State, Verb, Wait, Wanted};
use crate::core::sanitize::is_unseen;
use crate::core::transcript::{Finish, Message, MessageId, Role, SessionId};
use crate::runtime::protocol::TimelineRow;
use crate::store::{Access, Change, FOLDER, NewSession, ONCE, SegmentId, TitleBy};

/// A message of an earlier run. A killed run leaves an answer without an end: it counts as stopped.
pub(super) fn as_left(mut message: Message) -> Message {
    if message.is_open() {
        message.meta.finish = Some(Finish::Stopped);
    }
    message
}

/// A message read from the store. Those of a view-only session stay unchanged: another process may be writing them.
pub(super) fn restored(message: Message, rights: &Rights) -> Message {
    if *rights == Rights::Write { as_left(message) } else { message }
}

impl Verb {
    pub async fn texts_saved(&mut self) {
        self.saved(self.disk.texts(), PATIENCE).await;
    }

    pub async fn states_saved(&mut self) {
        self.saved(self.disk.states(), STATE_PATIENCE).await;
    }

    async fn saved(&mut self, wanted: Wanted, patience: Duration) {
        if !self.disk.has(wanted) {
            self.wait(Wait::Saved { wanted, until: Instant::now() + patience }).await;
        }
    }
}

impl State {
    /// Creates the session's row, with a name from its first message.
    fn create_row(&mut self, first: &Message, changes: &mut Vec<Change>) -> Done<SessionId> {
        let store = &self.disk.store;
        let id = store.new_session_id();
        if self.here.name.is_empty() {
            let wanted = session_name(first);
            self.here.name = store.free_name(&wanted).unwrap_or(wanted);
        }
        changes.push(Change::CreateSession(NewSession {
            id,
            name: self.here.name.clone(),
            settings: self.here.settings_json()?,
            head: None,
            forked_from: None,
        }));
        changes.extend(self.started_here(id));
        if !self.here.title.is_empty() {
            let (title, by) = (self.here.title.clone(), TitleBy::Person);
            changes.push(Change::Title { session: id, title, by });
        }
        let earlier = self.here.tree.path().into_iter().cloned();
        changes.extend(earlier.map(|m| Change::PutMessage { session: id, message: Box::new(m) }));
        self.here.id = Some(id);
        self.draft_gets_row(id, changes);
        self.lock_session(id);
        Ok(id)
    }

    pub fn started_here(&self, session: SessionId) -> Option<Change> {
        let value = Some(self.folder()?.to_owned());
        Some(Change::Property { session, property: FOLDER, value })
    }

    pub fn folder(&self) -> Option<&str> {
        self.options.sources.base.to_str().filter(|folder| !folder.is_empty())
    }

    pub fn lock_session(&mut self, id: SessionId) {
        match self.disk.store.lock_session(id, &self.here.name) {
            Ok(lock) => self.here.lock = Some(lock),
            // The banner shows that the directory is read-only.
            Err(_) if matches!(&self.disk.store.access, Access::ReadOnly { .. }) => {}
            // A new id is unique; a file system without locks must not prevent a chat.
            Err(e) => self.warn(e.to_string()),
        }
    }

    /// Adds a message at the head and shows it. [`Verb::texts_saved`] comes before the engine sees it.
    pub fn add_message(&mut self, message: Message) -> Done {
        self.add_one_of_many(message)?;
        self.show_tree();
        Ok(())
    }

    /// The same without sending the tree, which takes time by its size: [`State::show_tree`] sends it once.
    pub fn add_one_of_many(&mut self, message: Message) -> Done {
        let unnamed = self.here.name.is_empty();
        self.add_quietly(message.clone())?;
        self.report(Notice::Added(message));
        if unnamed && !self.here.name.is_empty() {
            self.show_session();
        }
        Ok(())
    }

    pub fn add_quietly(&mut self, message: Message) -> Done {
        let mut changes = Vec::new();
        let fresh = self.here.id.is_none();
        let session = match self.here.id {
            Some(session) => session,
            None if message.role == Role::System => {
                // The session is named after the first question, which follows.
                self.here.tree.add(message);
                return Ok(());
            }
            None => self.create_row(&message, &mut changes)?,
        };
        // A second question makes it a conversation.
        let asks_again = message.role == Role::User && self.here.tree.path().iter().any(|m| m.role == Role::User);
        if asks_again || (fresh && self.attendance == Attendance::Absent) {
            changes.push(Change::Property { session, property: ONCE, value: fresh.then(String::new) });
        }
        self.here.tree.add(message.clone());
        let head = Some(message.id);
        changes.push(Change::PutMessage { session, message: Box::new(message) });
        changes.push(Change::MoveHead { session, head });
        self.disk.change(changes);
        Ok(())
    }

    pub fn amend(&mut self, message: &Message) {
        self.here.tree.amend(message.clone());
        if let Some(session) = self.here.id {
            self.disk.change(vec![Change::PutMessage { session, message: Box::new(message.clone()) }]);
        }
    }

    /// Moves the head of the open session, and reads the texts of the new branch if needed. On failure the head stays.
    pub fn move_head(&mut self, head: Option<MessageId>) -> Done {
        if head == self.here.tree.head() {
            return Ok(());
        }
        self.read_texts_to(head)?;
        self.here.tree.go(head);
        if let Some(session) = self.here.id {
            self.disk.change(vec![Change::MoveHead { session, head }]);
        }
        Ok(())
    }

    pub fn read_texts_to(&mut self, head: Option<MessageId>) -> Done {
        // Messages of this run may be newer than the disk, but they are complete in memory.
        let cut = self.here.tree.path_to(head).iter().any(|m| self.here.cut.contains(&m.id));
        if let Some(id) = head.filter(|_| cut) {
            for m in self.disk.store.path(id)? {
                if self.here.cut.remove(&m.id) || self.here.tree.get(m.id).is_none() {
                    let session = &mut self.here.session;
                    session.tree.restore(restored(m, &session.rights));
                }
            }
        }
        Ok(())
    }

    pub fn point(&mut self, message: MessageId, segment: SegmentId) {
        if self.here.ends.insert(message, segment) != Some(segment) && self.here.apart.is_none() {
            self.disk.change(vec![Change::Link { message, segment }]);
        }
    }

    /// Saves the session's settings; those of a view-only session stay in memory.
    pub fn save_settings(&mut self) -> Done {
        if let (Some(session), Rights::Write) = (self.here.id, &self.here.rights) {
            let json = self.here.settings_json()?;
            self.disk.change(vec![Change::Settings { session, json }]);
        }
        Ok(())
    }

    pub fn timeline_rows(&self) -> Vec<TimelineRow> {
        let nodes = self.here.id.map(|id| self.disk.store.tree(id, &self.engine.info.fingerprint, 0));
        let nodes = nodes.and_then(Result::ok).unwrap_or_default();
        let kept: HashSet<MessageId> = nodes.into_iter().filter(|n| n.kept).map(|n| n.message.id).collect();
        let names = self.here.names();
        self.here.tree.timeline(|id| kept.contains(&id), |id| names.get(&id).cloned())
    }
}
/// A session name from the first question or document: a few words, easy to type.
fn session_name(first: &Message) -> String {
    let text = match &first.meta.document {
        // A document from a loaded folder has the folder in its name.
        Some(d) => match d.name.split_once('/') {
            Some((folder, _)) if !folder.is_empty() => folder,
            _ => d.name.rsplit_once('.').map_or(d.name.as_str(), |(stem, _)| stem),
        },
        None => first.text.as_str(),
    };
    let mut name = String::new();
    // Combining signs are part of a word; invisible characters neither end a word nor belong to it.
    let within = |c: char| c.is_alphanumeric() || !c.is_control() && (c.width() == Some(0) || is_unseen(c));
    let words = text.split(|c: char| !within(c)).filter(|w| w.chars().any(char::is_alphanumeric));
    for word in words.take(5) {
        if name.chars().count() + word.chars().count() > 32 && !name.is_empty() {
            break;
        }
        if !name.is_empty() {
            name.push('-');
        }
        name.extend(word.to_lowercase().chars().filter(|c| !is_unseen(*c)).take(32));
    }
    if name.is_empty() { "untitled".into() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::transcript::{DocumentInfo, MessageMeta};

    fn message(text: &str, document: Option<&str>) -> Message {
        let document =
            document.map(|name| DocumentInfo { name: name.into(), complete: true, ..DocumentInfo::default() });
        Message {
            id: MessageId(1),
            parent: None,
            role: Role::User,
            text: text.into(),
            thinking: String::new(),
            created_ms: 0,
            meta: MessageMeta { document, ..MessageMeta::default() },
        }
    }

    #[test]
    fn a_session_is_named_after_its_first_words() {
        assert_eq!(
            session_name(&message("Who tells Pierre that Prince Andrei is dying?", None)),
            "who-tells-pierre-that-prince"
        );
        assert_eq!(session_name(&message("x", Some("war.and peace.txt"))), "war-and-peace");
        assert_eq!(session_name(&message("x", Some("dossier 7/01-contract.pdf"))), "dossier-7");
        assert_eq!(session_name(&message("?!", None)), "untitled");
        assert_eq!(session_name(&message("नमस्ते दुनिया", None)), "नमस्ते-दुनिया");
        assert_eq!(session_name(&message("你好，世界", None)), "你好-世界");
        assert_eq!(session_name(&message("x", Some("bi\u{202e}di\u{200b}x.txt"))), "bidix");
    }
}
