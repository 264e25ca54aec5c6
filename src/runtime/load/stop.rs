//! A stop inside a document of a load: the user decides how to continue, and the part that was read is kept.

use super::super::executor::PrefillStats;
use super::super::verb::Verb;
use super::super::{Attendance, Done, grouped};
use super::Load;
use crate::runtime::protocol::{Choice, Level};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterStop {
    GoOn,
    GoBack,
    Keep,
}

impl Verb {
    pub(super) async fn load_stopped(&mut self, load: &mut Load) -> AfterStop {
        // After the load began again, the state may hold less than was read before.
        load.upto = load.upto.max(self.here.slot.live.text_bytes());
        load.reached = load.reached.max(self.here.slot.live.position());
        let begun: u64 = load.items.first().map_or(0, |i| i.end - i.tokens);
        let done = load.reached.saturating_sub(begun);
        let last = load.at.max(load.added.saturating_sub(1));
        let name = load.items.get(last).map_or("", |i| i.name.as_str());
        let text = format!(
            "Stopped at {} of {} tokens, inside {name}. What is read stays read.",
            grouped(done.min(load.progress.total)),
            grouped(load.progress.total)
        );
        let choices = vec![
            Choice { key: '1', label: "continue".into() },
            Choice { key: '2', label: "go back".into() },
            Choice { key: '\x1b', label: "keep what is read".into() },
        ];
        self.show_tree();
        self.report_meters();
        if self.attendance == Attendance::Absent || self.quitting {
            return AfterStop::Keep;
        }
        let key = self.ask_user(text, choices).await;
        // The following work can be stopped again.
        self.here.slot.begin();
        match key {
            '1' => {
                let shown = load.progress.shown();
                self.activity(shown);
                AfterStop::GoOn
            }
            '2' => AfterStop::GoBack,
            _ => AfterStop::Keep,
        }
    }

    /// Ends a load inside a document: the document is cut to the part that was read, and its state is kept.
    pub(super) async fn keep_part(&mut self, load: &mut Load) -> Done<PrefillStats> {
        self.here.slot.begin();
        // After the load began again, the state may hold less than was read before. A stop must not start a new reading.
        let short = self.here.slot.live.text_bytes() < load.upto;
        // In that case the document is the last one that was added, wherever the reading is; the documents before it
        // are complete.
        if let Some(message) = load.messages.iter_mut().take(load.added).rfind(|m| m.is_half_read()) {
            let text = self.engine.renderer.read_part(&load.rendered, message, load.upto).unwrap_or_default();
            let name = message.meta.document.as_ref().map_or(String::new(), |d| d.name.clone());
            if !text.trim().is_empty() {
                let lines = text.lines().count() as u64;
                if let Some(info) = &mut message.meta.document {
                    info.lines = lines;
                    // A stop after the last words leaves a complete document.
                    info.complete = info.is_whole(&text);
                    info.tokens = self.engine.renderer.model().tokenizer.encode_plain(&text)?.len() as u64;
                }
                message.text = text;
                self.amend(message);
                self.note(Level::Info, format!("Kept what was read: {name} ends at line {}.", grouped(lines)));
                self.show_session();
                // Reads the few words up to its end: after a restart, state is found by a document that ends in it.
                return self.sync_to_the_end(short).await;
            }
            self.move_head(message.parent)?;
            self.note(Level::Info, format!("Nothing of {name} was read; it is left out."));
        }
        self.show_session();
        match short {
            true => self.sync_to_the_end(true).await,
            false => self.sync().await,
        }
    }
}
