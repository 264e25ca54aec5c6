//! Conversations leave the store: Markdown, plain text, JSON. What JSON holds can come back (`import.rs`).
//!
//! Files appear whole or not at all: temporary name, sync, rename. Never overwrites without being told to.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::{Result, StoreError};
use super::store::Store;
use crate::protocol::desk::ExportFormat;
use crate::transcript::{Message, MessageId, Role, SessionId};

/// Names the JSON form; a reader checks it first.
pub(super) const JSON_FORMAT: &str = "sala-chat session";
/// Version of the JSON form.
pub(super) const JSON_VERSION: u32 = 1;

/// Which messages to export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// From the root to the head.
    Branch,
    /// Every branch.
    Tree,
}

/// What to do when the target exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwrite {
    /// Replace it.
    Yes,
    /// Refuse with [`StoreError::Exists`].
    No,
}

/// A session in JSON. Ids are those of this data directory; an import gives new ones.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SessionJson {
    pub format: String,
    pub version: u32,
    pub name: String,
    #[serde(default)]
    pub settings: serde_json::Value,
    #[serde(default)]
    pub created_ms: i64,
    pub head: Option<MessageId>,
    /// Parents before children.
    pub messages: Vec<Message>,
    #[serde(default)]
    pub marks: Vec<MarkJson>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct MarkJson {
    pub name: String,
    pub message: MessageId,
}

impl Store {
    /// A session as text in one of the formats.
    ///
    /// # Errors
    /// [`StoreError::NoSession`]; the database cannot be read.
    pub fn export(&self, id: SessionId, format: ExportFormat, scope: Scope) -> Result<String> {
        rendered(&self.session_json(id, scope)?, format)
    }

    /// Writes messages that are not on disk, root first, to a file, and returns its size in bytes.
    ///
    /// # Errors
    /// [`StoreError::Exists`], I/O errors.
    pub fn export_messages(
        &self,
        name: &str,
        messages: Vec<Message>,
        format: ExportFormat,
        path: &Path,
        overwrite: Overwrite,
    ) -> Result<u64> {
        refuse_existing(path, overwrite)?;
        let session = SessionJson {
            format: JSON_FORMAT.into(),
            version: JSON_VERSION,
            name: name.to_owned(),
            settings: serde_json::Value::Null,
            created_ms: messages.first().map_or(0, |m| m.created_ms),
            head: messages.last().map(|m| m.id),
            messages,
            marks: Vec::new(),
        };
        let text = rendered(&session, format)?;
        self.write_whole(path, |file| file.write(text.as_bytes()))?;
        Ok(text.len() as u64)
    }

    /// Writes [`Store::export`] to a file and returns its size in bytes.
    ///
    /// # Errors
    /// [`StoreError::Exists`], I/O errors, as [`Store::export`].
    pub fn export_to(
        &self,
        id: SessionId,
        format: ExportFormat,
        scope: Scope,
        path: &Path,
        overwrite: Overwrite,
    ) -> Result<u64> {
        refuse_existing(path, overwrite)?;
        let text = self.export(id, format, scope)?;
        self.write_whole(path, |file| file.write(text.as_bytes()))?;
        Ok(text.len() as u64)
    }

    pub(super) fn session_json(&self, id: SessionId, scope: Scope) -> Result<SessionJson> {
        let session = self.session(id)?;
        let messages = match (scope, session.head) {
            (Scope::Branch, None) => Vec::new(),
            (Scope::Branch, Some(head)) => self.path(head)?,
            (Scope::Tree, _) => {
                let nodes = self.tree(id, "", 0)?;
                nodes.into_iter().map(|n| self.message(n.message.id)).collect::<Result<_>>()?
            }
        };
        let here: HashSet<MessageId> = messages.iter().map(|m| m.id).collect();
        let marks = self.marks(id)?.into_iter().filter(|m| here.contains(&m.message));
        let marks = marks.map(|m| MarkJson { name: m.name, message: m.message }).collect();
        Ok(SessionJson {
            format: JSON_FORMAT.into(),
            version: JSON_VERSION,
            name: session.name,
            settings: serde_json::from_str(&session.settings).unwrap_or_default(),
            created_ms: session.created_ms,
            head: session.head,
            messages,
            marks,
        })
    }

    /// Makes `path` with what `fill` writes: all of it, durable, or nothing.
    pub(super) fn write_whole(
        &self,
        path: &Path,
        fill: impl FnOnce(&mut dyn super::disk::DiskFile) -> std::io::Result<()>,
    ) -> Result<()> {
        // Links on the way to it are the user's own; the last name is replaced, whatever it is.
        let resolve = || -> std::io::Result<PathBuf> {
            let whole = std::path::absolute(path)?;
            match (whole.parent(), whole.file_name()) {
                (Some(dir), Some(name)) => Ok(dir.canonicalize()?.join(name)),
                _ => Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "not the name of a file")),
            }
        };
        let path = resolve().map_err(StoreError::io("write", path))?;
        let part = super::parts::unfinished(&path);
        let _announced = super::parts::announce(&self.layout, &*self.disk, &part);
        let write = || -> std::io::Result<()> {
            let mut file = self.disk.create(&part)?;
            fill(&mut *file)?;
            file.sync()?;
            self.disk.rename(&part, &path)?;
            path.parent().map_or(Ok(()), |dir| self.disk.sync_dir(dir))
        };
        write().map_err(|e| {
            let _ = self.disk.remove(&part);
            StoreError::io("write", &path)(e)
        })
    }
}

fn rendered(session: &SessionJson, format: ExportFormat) -> Result<String> {
    match format {
        ExportFormat::Json => serde_json::to_string_pretty(session)
            .map(|text| text + "\n")
            .map_err(|e| StoreError::Broken { what: format!("session {:?}", session.name), why: e.to_string() }),
        ExportFormat::Markdown => Ok(markdown(session)),
        ExportFormat::Text => Ok(plain(session)),
    }
}

pub(super) fn refuse_existing(path: &Path, overwrite: Overwrite) -> Result<()> {
    match overwrite {
        Overwrite::No if path.exists() => Err(StoreError::Exists { path: path.to_owned() }),
        Overwrite::No | Overwrite::Yes => Ok(()),
    }
}

/// The messages in reading order: the branch of the head first, then every other branch from where it leaves a shown
/// one. Each part begins with the message it continues from (`None`: the beginning).
fn branches(session: &SessionJson) -> Vec<(Option<usize>, Vec<usize>)> {
    let places: HashMap<MessageId, usize> = session.messages.iter().enumerate().map(|(i, m)| (m.id, i)).collect();
    let index = |id: MessageId| places.get(&id).copied();
    let parents: HashSet<MessageId> = session.messages.iter().filter_map(|m| m.parent).collect();
    let leaves = session.messages.iter().enumerate().filter(|(_, m)| !parents.contains(&m.id));
    let mut leaves: Vec<usize> = leaves.map(|(i, _)| i).collect();
    if let Some(head) = session.head.and_then(index) {
        leaves.insert(0, head);
    }
    let mut shown = vec![false; session.messages.len()];
    let mut parts = Vec::new();
    for leaf in leaves {
        let (mut part, mut next) = (Vec::new(), Some(leaf));
        while let Some(i) = next
            && let Some(seen) = shown.get_mut(i)
            && !*seen
        {
            *seen = true;
            part.push(i);
            next = session.messages.get(i).and_then(|m| m.parent).and_then(index);
        }
        part.reverse();
        if !part.is_empty() {
            parts.push((next, part));
        }
    }
    parts
}

/// Number of each message on its branch, from 1. Parents come before their children.
fn numbers(session: &SessionJson) -> Vec<usize> {
    let mut by_id: HashMap<MessageId, usize> = HashMap::new();
    let mut all = Vec::with_capacity(session.messages.len());
    for m in &session.messages {
        let n = m.parent.and_then(|p| by_id.get(&p).copied()).unwrap_or(0) + 1;
        by_id.insert(m.id, n);
        all.push(n);
    }
    all
}

fn markdown(session: &SessionJson) -> String {
    let mut out = format!("# {}\n", session.name);
    let numbers = numbers(session);
    for (from, part) in branches(session) {
        if let Some(from) = from {
            out.push_str(&format!("\n---\n\n# Branch after #{}\n", numbers.get(from).copied().unwrap_or_default()));
        }
        for m in part.iter().filter_map(|i| session.messages.get(*i)) {
            match m.role {
                Role::Document => {
                    let fence = fence(&m.text);
                    out.push_str(&format!(
                        "\n## Document: {}\n\n{fence}text\n{}\n{fence}\n",
                        title(m),
                        m.text.trim_end()
                    ));
                }
                Role::System | Role::User | Role::Assistant => {
                    out.push_str(&format!("\n## {}\n", speaker(m.role)));
                    for line in m.thinking.lines() {
                        out.push_str(&format!("\n> {line}"));
                    }
                    if !m.thinking.is_empty() {
                        out.push('\n');
                    }
                    out.push_str(&format!("\n{}\n", m.text.trim_end()));
                    if let Some(line) = looked_at(m) {
                        out.push_str(&format!("\n*{line}*\n"));
                    }
                }
            }
        }
    }
    out
}

fn plain(session: &SessionJson) -> String {
    let mut out = String::new();
    let numbers = numbers(session);
    for (from, part) in branches(session) {
        if let Some(from) = from {
            out.push_str(&format!("----- branch after #{} -----\n\n", numbers.get(from).copied().unwrap_or_default()));
        }
        for m in part.iter().filter_map(|i| session.messages.get(*i)) {
            let who = match m.role {
                Role::Document => format!("Document {}", title(m)),
                Role::System | Role::User | Role::Assistant => speaker(m.role).to_owned(),
            };
            out.push_str(&format!("{who}:\n{}\n", m.text.trim_end()));
            if let Some(line) = looked_at(m) {
                out.push_str(&format!("({line})\n"));
            }
            out.push('\n');
        }
    }
    out
}

/// `Looked at: war.txt 41,210-41,262 (31%), #4 (10%)`.
fn looked_at(m: &Message) -> Option<String> {
    let passages = &m.meta.looked.as_ref()?.passages;
    let places: Vec<String> = passages.iter().map(|p| format!("{} ({})", p.place(), p.percent())).collect();
    (!places.is_empty()).then(|| format!("Looked at: {}", places.join(", ")))
}

fn speaker(role: Role) -> &'static str {
    match role {
        Role::System => "System",
        Role::User => "You",
        Role::Assistant => "Assistant",
        Role::Document => "Document",
    }
}

fn title(m: &Message) -> &str {
    m.meta.document.as_ref().map_or("untitled", |d| &d.name)
}

/// A code fence longer than any in the text.
fn fence(text: &str) -> String {
    let mut longest = 0;
    let mut run = 0;
    for c in text.chars() {
        run = if c == '`' { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    "`".repeat(longest.max(2) + 1)
}
