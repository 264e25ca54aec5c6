//! A load that was stopped inside a document: what the user wants then, and keeping the part that was read.

use super::super::render::Rendered;
use super::super::{Attendance, Done, State, grouped};
use super::{Item, Loading};
use crate::protocol::desk::{Choice, Level};
use crate::transcript::Message;

impl State {
    pub(super) fn after_stop(&mut self, loading: &Loading, items: &[Item], at: usize) -> char {
        let begun: u64 = items.first().map_or(0, |i| i.end - i.tokens);
        let done = self.live.position().saturating_sub(begun);
        let name = items.get(at).map_or("", |i| i.name.as_str());
        let text = format!(
            "Stopped at {} of {} tokens, inside {name}. What is read stays read.",
            grouped(done.min(loading.total)),
            grouped(loading.total)
        );
        let choices = vec![
            Choice { key: '1', label: "continue".into() },
            Choice { key: '2', label: "keep what is read".into() },
            Choice { key: '3', label: "go back".into() },
        ];
        if self.attendance == Attendance::Absent || self.quitting {
            return '2';
        }
        self.ask_user(text, choices)
    }

    /// Ends a load inside a document: what was read of it becomes the document.
    pub(super) fn keep_part(&mut self, rendered: &Rendered, messages: &mut [Message], at: usize) -> Done {
        self.cancel = crate::protocol::engine::Cancel::default();
        let Some(message) = messages.get_mut(at) else {
            return Ok(());
        };
        let text = self.renderer.read_part(rendered, message, self.live.text_bytes()).unwrap_or_default();
        let name = message.meta.document.as_ref().map_or(String::new(), |d| d.name.clone());
        if text.trim().is_empty() {
            self.move_head(message.parent);
            self.note(Level::Info, format!("Nothing of {name} was read; it is left out."));
        } else {
            let lines = text.lines().count() as u64;
            if let Some(info) = &mut message.meta.document {
                info.lines = lines;
                info.tokens = self.renderer.model().tokenizer.encode_plain(&text)?.len() as u64;
            }
            message.text = text;
            self.amend(message);
            self.note(Level::Info, format!("Kept what was read: {name} ends at line {}.", grouped(lines)));
        }
        self.show_session();
        self.settle()?;
        self.report_meters();
        Ok(())
    }
}
