//! The begin of a run: initial notes, the first session. The end: writes what is left, reports what is not on disk.

use std::sync::Arc;
use std::time::Duration;

use super::super::{
    Activity, Attendance, Conversation, Done, Level, Notice, Opening, RuntimeError, SaveState, State, Verb,
};
use crate::config::commands::line_of;
use crate::core::Exit;
use crate::core::sanitize::shell_word;
use crate::runtime::protocol::Unsaved;
use crate::store::{Access, StoreError, not_looked_at};

const PROMPTS: usize = 2_000;

impl State {
    pub fn greet(&mut self) {
        let store = Arc::clone(&self.disk.store);
        for note in &store.notes {
            self.warn(note.clone());
        }
        // The database is checked on another thread, so that the model, the session and the first frame do not wait.
        let (checked, out) = (Arc::clone(&store), self.out.clone());
        let look = move || {
            if let Some(damage) = checked.damage() {
                out.report(Notice::Damage(damage));
            }
        };
        match std::thread::Builder::new().name("store-look".into()).spawn(look) {
            Ok(thread) => self.looking = Some(thread),
            Err(e) => self.report(Notice::Damage(not_looked_at(&e))),
        }
        // Shows `--no-save` from the start.
        self.disk.show(SaveState::Empty);
        if let Access::ReadOnly { why } = &store.access {
            self.disk.show(SaveState::NotSaved(why.clone()));
        }
        match store.prompts(PROMPTS) {
            Ok(prompts) => self.report(Notice::Prompts(prompts.iter().rev().map(|p| line_of(p)).collect())),
            Err(e) => self.warn(e.to_string()),
        }
        // For `-p` the command line has reported it.
        let switch = self.engine.renderer.model().template.switch;
        if let Some(why) = switch.refusal(self.here.settings.think).filter(|_| self.attendance == Attendance::Present) {
            self.warn(why.to_owned());
        }
        self.activity(Activity::Starting { what: "loading the model".into() });
    }

    pub fn finish(mut self: Box<State>) {
        self.engine.shutdown();
        for text in std::mem::take(&mut self.drafts.homeless).into_values() {
            self.remember_draft(&text);
        }
        self.activity(Activity::Busy { what: "saving".into() });
        let absent = self.attendance == Attendance::Absent;
        let Conversation { session, lock, .. } = std::mem::take(&mut *self.here);
        let State { disk, out, looking, .. } = *self;
        let (id, lasts) = (session.id, !disk.discard);
        let store = Arc::clone(&disk.store);
        let shown = matches!(disk.shown, SaveState::TextOnly(_));
        let closed = disk.close(Duration::from_secs(60));
        drop(lock);
        // Waits for the check: damage is reported, and the directory is free for the next process.
        if looking.is_some_and(|thread| thread.join().is_err()) {
            out.note(Level::Error, "internal error: the look for damage ended unexpectedly");
        }
        // One-shot runs show no farewell.
        if let Ok(Some(why)) = &closed
            && absent
            && lasts
            && !shown
        {
            out.report(Notice::Save(SaveState::TextOnly(why.clone())));
        }
        let (farewell, unsaved) = match closed {
            _ if !lasts => (None, None),
            Ok(lost) => {
                let why = lost.map(|why| why.trim_end_matches('.').to_owned());
                let kept = why.map(|why| format!("Text is saved, not all state is kept: {why}."));
                // Another terminal may have taken the name first.
                let name = id.map(|id| store.session(id).map_or(session.name, |record| record.name));
                let back = name.map(|name| {
                    let kept = kept.as_deref().unwrap_or("Saved.");
                    format!("{kept} Come back with: sala-chat -r {}", shell_word(&name))
                });
                (back.or(kept), None)
            }
            Err(e) => {
                let what =
                    id.map_or_else(|| "What was done".to_owned(), |_| format!("Not all of \"{}\"", session.name));
                let exit = if e.disk { Exit::Disk } else { Exit::Unreadable };
                (Some(format!("{what} could not be saved: {}", e.reason)), Some(Unsaved { reason: e.reason, exit }))
            }
        };
        out.report(Notice::Bye { farewell, unsaved });
    }
}

impl Verb {
    pub async fn first_session(&mut self) -> Done {
        let opening = self.options.opening.clone();
        if let Opening::Named(name) = opening {
            return self.start_new(Some(name));
        }
        // Stays open if the other session cannot be opened.
        self.start_new(None)?;
        match opening {
            Opening::New | Opening::Named(_) => {
                self.show_rowless_draft();
                Ok(())
            }
            Opening::Resume(name) => self.resume(name).await,
            Opening::ResumeOrEnd(name) => {
                self.must_open = true;
                let done = self.resume(name).await;
                self.must_open =
                    matches!(done, Err(RuntimeError::Store(StoreError::InUse { .. } | StoreError::NoSession { .. })));
                done
            }
        }
    }
}
