//! A question in line mode: its mentions (`@NAME`) are read first, as on the screen.

use super::super::{jobs, notices};
use super::{Out, Plain};
use crate::config::commands;
use crate::runtime::protocol::Request;
use crate::tui::mention;

impl Plain {
    pub(super) fn ask(&mut self, line: &str) -> Vec<Out> {
        self.reading_for_question = false;
        let (typed, edits) = (commands::message_text(line), self.editing.take());
        let found = jobs::existing(mention::names(&typed), self.home.as_deref());
        let [read, library] =
            [&self.documents, &self.library].map(|names| names.iter().map(String::as_str).collect::<Vec<_>>());
        let meant = mention::meant(&typed, &found, &read, &library);
        if meant.is_ready() {
            let text = meant.text;
            return vec![self.send(match edits {
                Some(message) => Request::EditDone { message, text },
                None => Request::Ask(text),
            })];
        }
        if edits.is_some() {
            // The next line of a pipe is no replacement.
            self.editing = edits.filter(|_| self.prompts);
            return vec![Out::Line(meant.not_for_an_edit())];
        }
        self.queue.push_front(commands::line_of(&meant.text));
        self.reading_for_question = true;
        vec![self.send(mention::load_request(meant.paths, meant.library, self.home.as_deref()))]
    }

    /// Drops a question after one of its documents could not be read.
    pub(super) fn not_read(&mut self, out: &mut Vec<Out>) {
        if std::mem::take(&mut self.reading_for_question)
            && let Some(line) = self.queue.pop_front()
        {
            out.push(Out::Line(format!(
                "Not sent, because a document could not be read: {}",
                notices::beginning(&line)
            )));
        }
    }
}
