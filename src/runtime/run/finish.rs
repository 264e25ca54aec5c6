//! The end: writes the remaining data and reports whether all of it is on disk.

use std::sync::Arc;
use std::time::Duration;

use super::super::{Activity, Attendance, Conversation, Level, Notice, SaveState, State};
use crate::core::Exit;
use crate::runtime::protocol::Unsaved;
use crate::text::sanitize::shell_word;

fn lost(session: Option<&str>, why: &str) -> String {
    match session {
        Some(name) => format!("Not all of \"{name}\" could be saved: {why}"),
        None => format!("What was done could not be saved: {why}"),
    }
}

fn not_kept(why: &str) -> String {
    format!("Text is saved, not all state is kept: {}.", why.trim_end_matches('.'))
}

impl State {
    pub(super) fn finish(mut self: Box<State>) {
        self.engine.shutdown();
        self.remember_homeless();
        self.activity(Activity::Busy { what: "saving".into() });
        let absent = self.attendance == Attendance::Absent;
        let State { here, disk, out, looking, .. } = *self;
        let Conversation { session, lock, .. } = here;
        let (id, name, lasts) = (session.id, session.id.map(|_| session.name), disk.lasts());
        let store = Arc::clone(&disk.store);
        let shown = matches!(disk.shown(), SaveState::TextOnly(_));
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
        let (farewell, unsaved) = match (name, closed) {
            _ if !lasts => (None, None),
            (None, Ok(lost)) => (lost.map(|why| not_kept(&why)), None),
            (Some(name), Ok(lost)) => {
                // Another terminal may have taken the name first.
                let name = id.and_then(|id| store.session(id).ok()).map_or(name, |record| record.name);
                let saved = lost.map_or_else(|| "Saved.".to_owned(), |why| not_kept(&why));
                (Some(format!("{saved} Come back with: sala-chat -r {}", shell_word(&name))), None)
            }
            (name, Err(e)) => {
                let unsaved =
                    Unsaved { reason: e.reason.clone(), exit: if e.disk { Exit::Disk } else { Exit::Unreadable } };
                (Some(lost(name.as_deref(), &e.reason)), Some(unsaved))
            }
        };
        out.report(Notice::Bye { farewell, unsaved });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_names_what_is_not_on_disk() {
        assert_eq!(lost(Some("notes"), "disk full"), "Not all of \"notes\" could be saved: disk full");
        assert_eq!(lost(None, "disk full"), "What was done could not be saved: disk full");
    }
}
