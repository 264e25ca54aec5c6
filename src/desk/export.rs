//! `/export` and `/import`: the store does the work; here are paths as people type them and what is said.

use std::path::PathBuf;

use super::{DeskError, Done, State, grouped};
use crate::base::bytes;
use crate::protocol::desk::{ExportFormat, Level, SaveState};
use crate::session::{Imported, Overwrite, Scope};
use crate::text::sanitize::sanitize_line;

/// A path as typed: `~` is the home folder.
fn typed_path(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(path),
    }
}

/// Sessions of an import that are named.
const NAMED: usize = 10;

/// What an import brought, in one line.
pub fn imported_line(imported: &Imported) -> String {
    let named = imported.sessions.iter().take(NAMED).map(|(_, name)| format!("\"{}\"", sanitize_line(name)));
    let names: Vec<String> = named.collect();
    let more = match imported.sessions.len().saturating_sub(NAMED) {
        0 => String::new(),
        n => format!(" and {} more sessions", grouped(n as u64)),
    };
    let state = match (&imported.text_only, imported.state_tokens) {
        (Some(why), _) => format!(" {why}"),
        (None, n) => format!(" State of {} tokens came along.", grouped(n)),
    };
    let place = match imported.without_place {
        0 => "",
        _ => " The message that the file calls the current one is not in it: the last one is taken.",
    };
    format!("{} messages imported as {}{more}.{place}{state}", grouped(imported.messages), names.join(", "))
}

impl State {
    /// `/export`.
    pub(super) fn export(
        &mut self,
        path: &str,
        format: Option<ExportFormat>,
        tree: bool,
        with_state: bool,
        force: bool,
    ) -> Done {
        let path = typed_path(path);
        let Some(id) = self.talk.id else {
            return Err(DeskError::Refused("Nothing to export: the conversation is empty.".into()));
        };
        self.keeper.wait_for_texts();
        let overwrite = if force { Overwrite::Yes } else { Overwrite::No };
        let unsaved = self.keeper.unsaved(id).or_else(|| match self.keeper.shown() {
            SaveState::NotSaved(why) if self.keeper.is_lost(id) => Some(why.clone()),
            _ => None,
        });
        if let Some(why) = unsaved.as_ref().filter(|_| tree || with_state) {
            let what = if with_state { "--with-state" } else { "--tree" };
            return Err(DeskError::Refused(format!(
                "{what} exports what is on disk, and what was said last is not ({why}). /export without it writes the open branch."
            )));
        }
        if with_state {
            self.keeper.wait_for_states();
            let fingerprint = self.feeder.fingerprint().to_owned();
            let written = self.keeper.store.export_bundle(id, &fingerprint, &path, overwrite)?;
            let again = match written.replay_tokens {
                0 => String::new(),
                n => format!("; {} tokens will be read again", grouped(n)),
            };
            let (size, kept) = (bytes(written.bytes), grouped(written.state_tokens));
            let text = format!("{} written, {size}, with the state of {kept} tokens{again}.", path.display());
            self.note(Level::Info, text);
            return Ok(());
        }
        let format = format.map_or_else(|| ExportFormat::of_path(&path), Ok).map_err(DeskError::Refused)?;
        if unsaved.is_some() {
            // What the disk does not have is here.
            let messages = self.talk.conversation.path().into_iter().cloned().collect();
            let size = self.keeper.store.export_messages(&self.talk.name, messages, format, &path, overwrite)?;
            let what = "the open branch, from memory";
            self.note(Level::Info, format!("{} written, {}: {what}.", path.display(), bytes(size)));
            return Ok(());
        }
        let scope = if tree { Scope::Tree } else { Scope::Branch };
        let size = self.keeper.store.export_to(id, format, scope, &path, overwrite)?;
        self.note(Level::Info, format!("{} written, {}.", path.display(), bytes(size)));
        Ok(())
    }

    /// `/import`.
    pub(super) fn import(&mut self, path: &str) -> Done {
        let imported = self.keeper.store.import(&typed_path(path))?;
        self.note(Level::Info, imported_line(&imported));
        match imported.sessions.as_slice() {
            [(_, name)] => self.resume(name),
            _ => self.list_sessions(),
        }
    }
}
