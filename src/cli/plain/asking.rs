//! A question in line mode: its mentions (`@NAME`) are read first, as on the screen.

use super::super::notices;
use super::{Out, Plain};
use crate::config::commands;
use crate::core::transcript::MessageId;
use crate::runtime::protocol::Request;
use crate::tui::mention;

impl Plain {
    pub(super) fn ask(&mut self, line: &str) -> Vec<Out> {
        self.reading_for_question = false;
        let (text, edits) = (commands::message_text(line), self.editing.take());
        let names = mention::names(&text);
        if names.is_empty() {
            return vec![self.send_question(text, edits)];
        }
        self.looking = Some((text, edits));
        vec![Out::Find(names)]
    }

    fn send_question(&mut self, text: String, edits: Option<MessageId>) -> Out {
        self.send(match edits {
            Some(message) => Request::EditDone { message, text },
            None => Request::Ask(text),
        })
    }

    /// `found` are the existing paths. Reads the mentioned documents, then sends the question.
    pub fn found(&mut self, found: &[String]) -> Vec<Out> {
        let Some((typed, edits)) = self.looking.take() else { return Vec::new() };
        let [read, library] =
            [&self.documents, &self.library].map(|names| names.iter().map(String::as_str).collect::<Vec<_>>());
        let meant = mention::meant(&typed, found, &read, &library);
        if meant.is_ready() {
            return vec![self.send_question(meant.text, edits)];
        }
        if edits.is_some() {
            let mut out = vec![Out::Line(meant.not_for_an_edit())];
            match self.prompts {
                true => self.editing = edits,
                // The next line of a pipe was not written to take its place.
                false => out.extend(self.go_on()),
            }
            return out;
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
