//! Exports of conversations: Markdown and plain text (`text` and its helpers), and JSON, which `import.rs` reads.
//!
//! Files appear whole or not at all: temporary name, sync, rename. Nothing is overwritten unless the caller allows it. A
//! note in `locks/` names an unfinished file (`NAME.<process>.part`, at a place that the user chose) while it is written,
//! so that the next start can remove what a killed process left.

mod on_page;
mod text;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

pub(super) use self::on_page::{fence, fence_after};
use super::database::Store;
use super::directory::{Layout, unique};
use super::disk::{Disk, DiskFile, open_plain, write_whole};
use super::error::{Result, StoreError, Watch};
use crate::core::transcript::{Message, MessageId, SessionId};
use crate::runtime::protocol::ExportFormat;

pub(super) const JSON_FORMAT: &str = "sala-chat session";
pub(super) const JSON_VERSION: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Branch,
    Tree,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwrite {
    Yes,
    No,
}

/// A session in JSON. Ids are those of this data directory; an import assigns new ones.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SessionJson {
    pub format: String,
    pub version: u32,
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// An object, or a string if it does not parse as one.
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

impl SessionJson {
    pub fn new(name: String, head: Option<MessageId>, messages: Vec<Message>) -> SessionJson {
        SessionJson {
            format: JSON_FORMAT.into(),
            version: JSON_VERSION,
            name,
            title: None,
            settings: serde_json::Value::Null,
            created_ms: messages.first().map_or(0, |m| m.created_ms),
            head,
            messages,
            marks: Vec::new(),
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct MarkJson {
    pub name: String,
    pub message: MessageId,
}

const WRITTEN_AT_ONCE: usize = 1 << 20;
/// Of the names of notes about unfinished files.
const PREFIX: &str = "part-";

impl Store {
    pub fn export(&self, id: SessionId, format: ExportFormat, scope: Scope) -> Result<String> {
        rendered(&self.session_json(id, scope)?, format)
    }

    /// Writes messages that are not on disk, root first, to a file, and returns its size in bytes.
    pub fn export_messages(
        &self,
        name: &str,
        messages: Vec<Message>,
        format: ExportFormat,
        path: &Path,
        overwrite: Overwrite,
    ) -> Result<u64> {
        refuse_existing(path, overwrite)?;
        let session = SessionJson::new(name.to_owned(), messages.last().map(|m| m.id), messages);
        self.write_session(&session, format, path, &Watch::NONE)
    }

    /// Writes [`Store::export`] to a file and returns its size in bytes. Reports no progress.
    pub fn export_to(
        &self,
        id: SessionId,
        format: ExportFormat,
        scope: Scope,
        path: &Path,
        overwrite: Overwrite,
        watch: &Watch<'_>,
    ) -> Result<u64> {
        refuse_existing(path, overwrite)?;
        let session = self.session_json(id, scope)?;
        watch.go_on()?;
        self.write_session(&session, format, path, watch)
    }

    fn write_session(
        &self,
        session: &SessionJson,
        format: ExportFormat,
        path: &Path,
        watch: &Watch<'_>,
    ) -> Result<u64> {
        let text = rendered(session, format)?;
        let written = self.write_whole(path, |file| {
            for part in text.as_bytes().chunks(WRITTEN_AT_ONCE) {
                watch.go_on_io()?;
                file.write(part)?;
            }
            watch.go_on_io()
        });
        written.map(|()| text.len() as u64).map_err(|e| watch.or_stopped(e))
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
            title: self.own_title(id)?,
            settings: settings_json(session.settings),
            created_ms: session.created_ms,
            marks,
            ..SessionJson::new(session.name, session.head, messages)
        })
    }

    /// Creates `path` with the output of `fill`: all of it, durable, or nothing.
    pub(super) fn write_whole(
        &self,
        path: &Path,
        fill: impl FnOnce(&mut dyn DiskFile) -> std::io::Result<()>,
    ) -> Result<()> {
        // Links on the path are the user's own; the last name is replaced, whatever it is.
        let resolve = || -> std::io::Result<PathBuf> {
            let whole = std::path::absolute(path)?;
            match (whole.parent(), whole.file_name()) {
                (Some(dir), Some(name)) => Ok(dir.canonicalize()?.join(name)),
                _ => Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "not the name of a file")),
            }
        };
        let path = resolve().map_err(StoreError::io("write", path))?;
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let part = path.with_file_name(name);
        // Best effort: an export works without a note.
        let announced = self.announce(&part);
        let written = write_whole(&*self.disk, &part, &path, fill).map_err(StoreError::io("write", &path));
        if let Some((note, _held)) = announced {
            let _ = self.disk.remove(&note);
        }
        written
    }

    /// Writes the note about an unfinished file, which is locked while that is written.
    fn announce(&self, part: &Path) -> Option<(PathBuf, File)> {
        let note = self.layout.locks.join(format!("{PREFIX}{}", unique()));
        let mut held = open_plain(&note, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC).ok()?;
        // Locked while it is still empty: an empty note names nothing.
        held.try_lock().ok()?;
        held.write_all(part.as_os_str().as_bytes()).ok()?;
        Some((note, held))
    }
}

/// Removes the unfinished files of killed processes.
pub(super) fn remove_unfinished(layout: &Layout, disk: &dyn Disk) {
    for name in disk.list(&layout.locks).unwrap_or_default() {
        let process = name.to_str().and_then(|n| n.strip_prefix(PREFIX)?.split_once('-')).map(|(pid, _)| pid);
        let Some(process) = process.filter(|p| p.parse::<u32>().is_ok()) else { continue };
        let note = layout.locks.join(&name);
        let Ok(held) = open_plain(&note, OFlags::RDWR) else { continue };
        if held.try_lock().is_err() {
            continue;
        }
        let mut bytes = Vec::new();
        if (&held).take(8192).read_to_end(&mut bytes).is_ok() {
            let part = Path::new(OsStr::from_bytes(&bytes));
            let ours = bytes.ends_with(format!(".{process}.part").as_bytes()) && part.is_absolute();
            let me = rustix::process::geteuid().as_raw();
            if ours && disk.look(part).is_ok_and(|l| l.is_file && l.owner == me) {
                let _ = disk.remove(part);
            }
        }
        let _ = disk.remove(&note);
    }
}

/// Damaged settings are exported as raw text. Earlier versions kept 0.7 as 0.699999988079071, the digits of an `f32`.
fn settings_json(kept: String) -> serde_json::Value {
    match serde_json::from_str(&kept) {
        Ok(serde_json::Value::Object(mut settings)) => {
            let sampling = settings.get_mut("sampling").and_then(serde_json::Value::as_object_mut);
            for value in sampling.into_iter().flat_map(|s| s.values_mut()).filter(|v| v.is_f64()) {
                let short = value.as_f64().unwrap_or_default() as f32;
                let long = format!("{:?}", f64::from(short)).parse();
                if long.is_ok_and(|long: serde_json::Value| long == *value) {
                    *value = format!("{short:?}").parse().unwrap_or_default();
                }
            }
            settings.into()
        }
        Ok(_) | Err(_) => serde_json::Value::String(kept),
    }
}

fn rendered(session: &SessionJson, format: ExportFormat) -> Result<String> {
    match format {
        ExportFormat::Json => serde_json::to_string_pretty(session)
            .map(|text| text + "\n")
            .map_err(|e| StoreError::Broken { what: format!("session {:?}", session.name), why: e.to_string() }),
        ExportFormat::Markdown => Ok(text::markdown(session)),
        ExportFormat::Text => Ok(text::plain(session)),
    }
}

pub(super) fn refuse_existing(path: &Path, overwrite: Overwrite) -> Result<()> {
    // A link is replaced, wherever it leads; a device, a pipe or a folder is no old export.
    let there = path.symlink_metadata().map(|there| there.file_type());
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent.filter(|parent| matches!(parent.try_exists(), Ok(false))) {
        return Err(StoreError::NoParent { path: parent.to_owned() });
    }
    match overwrite {
        _ if there.as_ref().is_ok_and(std::fs::FileType::is_dir) => Err(StoreError::IsFolder { path: path.to_owned() }),
        _ if there.is_ok_and(|there| !there.is_file() && !there.is_symlink()) => {
            Err(StoreError::NotAFile { path: path.to_owned() })
        }
        Overwrite::No if path.exists() => Err(StoreError::Exists { path: path.to_owned() }),
        Overwrite::No | Overwrite::Yes => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_digits_of_an_f32_are_made_shorter() {
        let exported =
            |value: &str| settings_json(format!(r#"{{"sampling":{{"top_p":{value}}}}}"#))["sampling"]["top_p"].clone();
        for (long, short) in [("0.699999988079071", "0.7"), ("0.10000000149011612", "0.1"), ("1.0", "1.0")] {
            assert_eq!(exported(long).to_string(), short);
        }
        for same in ["0.5", "0.7", "0.12345678901", "1e-60", "1e300", "7", "null"] {
            assert_eq!(exported(same), same.parse::<serde_json::Value>().unwrap(), "{same}");
        }
    }
}
