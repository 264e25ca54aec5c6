//! Conversations out of the program as Markdown, plain text and JSON, and our JSON back in.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{DeskError, Done, Settings, State, grouped};
use crate::protocol::desk::{ExportFormat, Level};
use crate::session::{Change, NewSession, SessionRecord, Store, StoreError};
use crate::transcript::{Message, MessageId, Role, SessionId};

/// First field of our JSON.
const FORMAT: &str = "sala-chat 1";

/// A conversation as JSON: text and what belongs to it, no state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exported {
    /// `sala-chat 1`.
    pub format: String,
    /// Name of the session.
    pub name: String,
    /// Where it stands.
    pub head: Option<MessageId>,
    /// How answers were made.
    #[serde(default)]
    pub settings: Settings,
    /// Parents before children.
    pub messages: Vec<Message>,
}

impl Exported {
    /// A stored session with these of its messages.
    pub fn new(session: &SessionRecord, messages: Vec<Message>) -> Exported {
        Exported {
            format: FORMAT.into(),
            name: session.name.clone(),
            head: session.head,
            settings: serde_json::from_str(&session.settings).unwrap_or_default(),
            messages,
        }
    }

    /// As text.
    ///
    /// # Errors
    /// Never in practice: all of it is plain data.
    pub fn to_json(&self) -> Result<String, StoreError> {
        let broken = |e: serde_json::Error| StoreError::Broken { what: "the conversation".into(), why: e.to_string() };
        serde_json::to_string_pretty(self).map_err(broken)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, is not our JSON, or its messages do not form a tree.
    pub fn read(path: &Path) -> Result<Exported, StoreError> {
        let bad = |why: String| StoreError::Import { path: path.to_owned(), why };
        let bytes = std::fs::read(path).map_err(|e| bad(e.to_string()))?;
        let read: Exported = serde_json::from_slice(&bytes)
            .map_err(|e| bad(format!("not a conversation that sala-chat exported as JSON ({e})")))?;
        if read.format != FORMAT {
            return Err(bad(format!("its format is \"{}\", this program reads \"{FORMAT}\"", read.format)));
        }
        let mut seen = std::collections::HashSet::new();
        for m in &read.messages {
            if m.parent.is_some_and(|p| !seen.contains(&p)) || !seen.insert(m.id) {
                return Err(bad(format!("message {} does not follow its parent", m.id.0)));
            }
        }
        if read.head.is_some_and(|h| !seen.contains(&h)) {
            return Err(bad("its head is not among its messages".into()));
        }
        Ok(read)
    }

    /// The changes that make it a session of `store`, under new ids.
    pub fn into_changes(self, store: &Store) -> (SessionId, Vec<Change>) {
        let session = store.new_session_id();
        let settings = serde_json::to_string(&self.settings).unwrap_or_else(|_| "{}".into());
        let new = NewSession { id: session, name: self.name, settings, head: None, forked_from: None };
        let mut changes = vec![Change::CreateSession(new)];
        let mut ids = std::collections::HashMap::new();
        for mut m in self.messages {
            let id = store.new_message_id();
            ids.insert(m.id, id);
            m.id = id;
            m.parent = m.parent.and_then(|p| ids.get(&p).copied());
            changes.push(Change::PutMessage { session, message: Box::new(m) });
        }
        let head = self.head.and_then(|h| ids.get(&h).copied());
        changes.push(Change::MoveHead { session, head });
        (session, changes)
    }
}

/// A path as typed: `~` is the home folder.
pub(super) fn typed_path(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), std::env::var_os("HOME")) {
        (Some(rest), Some(home)) => Path::new(&home).join(rest),
        _ => PathBuf::from(path),
    }
}

/// A conversation as Markdown: one heading per message.
pub fn markdown(name: &str, messages: &[&Message]) -> String {
    let mut out = format!("# {name}\n");
    for (i, m) in messages.iter().enumerate() {
        out.push_str(&format!("\n## #{} {}\n\n", i + 1, heading(m)));
        if !m.thinking.is_empty() {
            let quoted: Vec<String> = m.thinking.lines().map(|l| format!("> {l}")).collect();
            out.push_str(&quoted.join("\n"));
            out.push_str("\n\n");
        }
        match m.role {
            // The longest run of backticks inside decides the fence.
            Role::Document => {
                let inside = m.text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
                let fence = "`".repeat(inside.max(2) + 1);
                out.push_str(&format!("{fence}\n{}\n{fence}\n", m.text.trim_end()));
            }
            Role::System | Role::User | Role::Assistant => {
                out.push_str(m.text.trim_end());
                out.push('\n');
            }
        }
    }
    out
}

/// A conversation as plain text.
pub fn plain(messages: &[&Message]) -> String {
    let part = |m: &&Message| format!("{}:\n{}\n", heading(m), m.text.trim_end());
    messages.iter().map(part).collect::<Vec<_>>().join("\n")
}

fn heading(m: &Message) -> String {
    match (m.role, &m.meta.document, &m.meta.model) {
        (Role::Document, Some(d), _) => format!("document {}", d.name),
        (Role::Document, None, _) => "document".into(),
        (Role::System, ..) => "system".into(),
        (Role::User, ..) => "you".into(),
        (Role::Assistant, _, Some(model)) => format!("sala ({model})"),
        (Role::Assistant, _, None) => "sala".into(),
    }
}

/// The format a file name asks for.
pub fn by_extension(path: &Path) -> ExportFormat {
    match path.extension().and_then(|e| e.to_str()) {
        Some("json") => ExportFormat::Json,
        Some("txt") => ExportFormat::Text,
        Some(_) | None => ExportFormat::Markdown,
    }
}

/// Writes a file as a whole or not at all; an existing one only with `force`.
pub fn write_file(path: &Path, text: &str, force: bool) -> Result<(), StoreError> {
    if path.exists() && !force {
        return Err(StoreError::Exists { path: path.to_owned() });
    }
    let failed = |action: &'static str| {
        let path = path.to_owned();
        move |source| StoreError::Io { action, path, source }
    };
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed("write beside"))?;
    std::io::Write::write_all(&mut file, text.as_bytes()).map_err(failed("write"))?;
    file.persist(path).map_err(|e| failed("write")(e.error))?;
    Ok(())
}

impl State {
    /// `/export`.
    pub(super) fn export(&mut self, path: &str, format: Option<ExportFormat>, tree: bool, with_state: bool, force: bool) -> Done {
        let path = typed_path(path);
        if with_state {
            return Err(DeskError::Refused("Only text can be exported here. Copy the data folder to take state along.".into()));
        }
        let c = &self.open.conversation;
        if c.is_empty() {
            return Err(DeskError::Refused("Nothing to export: the conversation is empty.".into()));
        }
        let format = format.unwrap_or_else(|| by_extension(&path));
        let messages: Vec<&Message> = if tree { c.all().collect() } else { c.path() };
        let count = messages.len() as u64;
        let text = match format {
            ExportFormat::Markdown => markdown(&self.open.name, &messages),
            ExportFormat::Text => plain(&messages),
            ExportFormat::Json => Exported {
                format: FORMAT.into(),
                name: self.open.name.clone(),
                head: c.head(),
                settings: self.open.settings.clone(),
                messages: messages.into_iter().cloned().collect(),
            }
            .to_json()?,
        };
        write_file(&path, &text, force)?;
        self.note(Level::Info, format!("{} messages written to {}.", grouped(count), path.display()));
        Ok(())
    }

    /// `/import`.
    pub(super) fn import(&mut self, path: &str) -> Done {
        let read = Exported::read(&typed_path(path))?;
        let count = read.messages.len() as u64;
        let (session, changes) = read.into_changes(&self.store);
        self.save_changes(changes);
        let name = self.store.session(session)?.name;
        self.note(Level::Info, format!("{} messages imported as \"{name}\": text only, the model reads it when you ask.", grouped(count)));
        self.resume(&name)
    }
}
