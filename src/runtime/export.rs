//! `/export` and `/import`: expands typed paths and reports results; the store does the work.

use std::path::Path;
use std::sync::Arc;

use super::task::Doing;
use super::{Done, RuntimeError, SaveState, Verb, grouped, refused};
use crate::core::files::below_home;
use crate::core::sanitize::sanitize_line;
use crate::core::{bytes, counted};
use crate::runtime::protocol::ExportFormat;
use crate::store::{Imported, Overwrite, Scope, StoreError, Watch};

const NAMED: usize = 10;

pub fn imported_line(imported: &Imported) -> String {
    let named = imported.sessions.iter().take(NAMED).map(|(_, name)| format!("\"{}\"", sanitize_line(name)));
    let names: Vec<String> = named.collect();
    let more = match imported.sessions.len().saturating_sub(NAMED) {
        0 => String::new(),
        n => format!(" and {}", counted(n as u64, "more session")),
    };
    let state = match (&imported.text_only, imported.state_tokens) {
        (Some(why), _) => format!(" {why}"),
        (None, n) => format!(" The state of {} was imported.", counted(n, "token")),
    };
    let place = match imported.without_place {
        0 => "",
        _ => " The file's current message is missing from it; the last one is used.",
    };
    let left_out = match imported.left_out.in_words().as_slice() {
        [] => String::new(),
        kinds => format!(" Left out: {}.", kinds.join(", ")),
    };
    let skipped = match imported.skipped_in_words() {
        None => String::new(),
        Some(words) => format!(" Not imported: {}.", sanitize_line(&words)),
    };
    let messages = counted(imported.messages, "message");
    format!("{messages} imported as {}{more}.{place}{skipped}{left_out}{state}", names.join(", "))
}

impl Verb {
    pub async fn export(
        &mut self,
        path: String,
        format: Option<ExportFormat>,
        tree: bool,
        with_state: bool,
        force: bool,
    ) -> Done {
        let path = below_home(&path, std::env::home_dir().as_deref());
        let Some(id) = self.here.id else {
            return refused("Nothing to export: the conversation is empty.");
        };
        self.disk.wait_for_texts();
        let overwrite = if force { Overwrite::Yes } else { Overwrite::No };
        let unsaved = self.disk.unsaved(id).or_else(|| match &self.disk.shown {
            SaveState::NotSaved(why) if self.disk.is_lost(id) => Some(why.clone()),
            _ => None,
        });
        if let Some(why) = unsaved.as_ref().filter(|_| tree || with_state) {
            let what = if with_state { "--with-state" } else { "--tree" };
            return refused(format!(
                "{what} exports what is on disk, and the latest messages are not there yet ({why}). /export without it writes the open branch."
            ));
        }
        let (store, file) = (Arc::clone(&self.disk.store), path.clone());
        let (what, failed) = (format!("exporting {}", name_of(&path)), "The export failed unexpectedly.");
        if with_state {
            self.disk.wait_for_states();
            let (fingerprint, part) = (self.engine.info.fingerprint.clone(), part_of(&what));
            let export = move |watch: &Watch<'_>| store.export_bundle(id, &fingerprint, &file, overwrite, watch);
            let written = self.elsewhere(what, failed, move |doing: &Doing| doing.watched(part, export)).await??;
            let again = match written.replay_tokens {
                0 => String::new(),
                n => format!("; {} tokens will be read again", grouped(n)),
            };
            let (size, kept) = (bytes(written.bytes), grouped(written.state_tokens));
            return self.say(written_line(&path, &format!("{size}, with the state of {kept} tokens{again}")));
        }
        let format = format.map_or_else(|| ExportFormat::of_path(&path), Ok).map_err(RuntimeError::Refused)?;
        if unsaved.is_some() {
            // The tree holds messages that are not on disk yet.
            let messages = self.here.tree.path().into_iter().cloned().collect();
            let size = store.export_messages(&self.here.name, messages, format, &path, overwrite)?;
            return self.say(written_line(&path, &format!("{}: the open branch, from memory", bytes(size))));
        }
        let scope = if tree { Scope::Tree } else { Scope::Branch };
        let export = move |watch: &Watch<'_>| store.export_to(id, format, scope, &file, overwrite, watch);
        let shown = what.clone();
        let write = move |doing: &Doing| doing.watched(|_, _| shown.clone(), export);
        let size = self.elsewhere(what, failed, write).await??;
        self.say(written_line(&path, &bytes(size)))
    }

    pub async fn import(&mut self, path: String) -> Done {
        let (store, path) = (Arc::clone(&self.disk.store), below_home(&path, std::env::home_dir().as_deref()));
        // Ids are reserved before the import locks the database: messages written meanwhile need some.
        store.new_message_id(None);
        let what = format!("importing {}", name_of(&path));
        let line = part_of(&what);
        let failed = "The import failed unexpectedly. Nothing was imported.";
        let read = move |doing: &Doing| doing.watched(line, |watch| store.import(&path, watch));
        let imported = match self.elsewhere(what, failed, read).await? {
            Err(StoreError::Stopped) => {
                self.info("Stopped: nothing was imported.");
                return Err(RuntimeError::Stopped);
            }
            imported => imported?,
        };
        self.info(imported_line(&imported));
        match imported.sessions.as_slice() {
            [(_, name)] => self.resume(name.clone()).await,
            _ => self.list_sessions(),
        }
    }
}

fn written_line(path: &Path, what: &str) -> String {
    format!("{} written, {what}.", path.display())
}

fn part_of(what: &str) -> impl Fn(u64, u64) -> String + use<> {
    let what = what.to_owned();
    move |done, of| format!("{what}: {} of {}", bytes(done), bytes(of))
}

fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}
