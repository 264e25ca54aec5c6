//! Initial notes and the first session.

use std::sync::Arc;

use super::super::{Activity, Attendance, Done, Notice, Opening, RuntimeError, SaveState, State, Verb};
use crate::config::commands::line_of;
use crate::store::{Access, StoreError, not_looked_at};

const PROMPTS: usize = 2_000;

impl State {
    pub(super) fn greet(&mut self) {
        let store = Arc::clone(&self.disk.store);
        for note in store.notes() {
            self.warn(note.clone());
        }
        self.look_for_damage();
        // Shows `--no-save` from the start.
        self.disk.show(SaveState::Empty);
        if let Access::ReadOnly { why } = store.access() {
            self.disk.show(SaveState::NotSaved(why.clone()));
        }
        match store.prompts(PROMPTS) {
            Ok(prompts) => self.report(Notice::Prompts(prompts.iter().rev().map(|p| line_of(p)).collect())),
            Err(e) => self.warn(e.to_string()),
        }
        // For `-p` the command line has reported it.
        let switch = self.engine.renderer.model().template.thinking_switch();
        if let Some(why) =
            switch.refusal(self.here.session.settings.think).filter(|_| self.attendance == Attendance::Present)
        {
            self.warn(why.to_owned());
        }
        self.activity(Activity::Starting { what: "loading the model".into() });
    }

    /// Checks the database on another thread, so that the model, the session and the first frame do not wait.
    fn look_for_damage(&mut self) {
        let (store, out) = (Arc::clone(&self.disk.store), self.out.clone());
        let look = move || {
            if let Some(damage) = store.damage() {
                out.report(Notice::Damage(damage));
            }
        };
        match std::thread::Builder::new().name("store-look".into()).spawn(look) {
            Ok(thread) => self.looking = Some(thread),
            Err(e) => self.report(Notice::Damage(not_looked_at(&e))),
        }
    }
}

impl Verb {
    pub(super) async fn first_session(&mut self) -> Done {
        match std::mem::take(&mut self.opening) {
            Opening::New => {
                self.start_new(None)?;
                self.show_rowless_draft();
                Ok(())
            }
            Opening::Named(name) => self.start_new(Some(name)),
            Opening::Resume(name) => {
                // Stays open if the other session cannot be opened.
                self.start_new(None)?;
                self.resume(name).await
            }
            Opening::ResumeOrEnd(name) => {
                self.start_new(None)?;
                self.must_open = true;
                let done = self.resume(name).await;
                self.must_open =
                    matches!(done, Err(RuntimeError::Store(StoreError::InUse { .. } | StoreError::NoSession { .. })));
                done
            }
        }
    }
}
