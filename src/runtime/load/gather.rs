//! Finds the documents of a load (files, folders, standard input) and cuts them as the options demand.

use std::time::Duration;

use super::super::task::{Order, Place};
use super::super::verb::Verb;
use super::super::{Attendance, Done, RuntimeError, State, render};
use crate::runtime::protocol::{Level, LoadOptions};
use crate::text::Part;
use crate::text::sanitize::{command_word, shell_word};
use crate::text::sources::{self, Document, Gathered, SourceError};

impl Verb {
    pub(in crate::runtime) async fn gather(&mut self, paths: &[String], options: &LoadOptions) -> Done<Gathered> {
        let inline = paths.iter().any(|p| p == "-").then(|| inline(options)).transpose()?;
        let paths: Vec<String> = paths.iter().filter(|p| *p != "-").cloned().collect();
        let mut gathered = Gathered::default();
        if !paths.is_empty() {
            let mut how = self.sources.clone();
            (how.force, how.pages) = (options.force, options.pages);
            if self.attendance == Attendance::Present {
                how.not_text = "/load --force loads it as Latin-1.";
            }
            let files = paths.clone();
            let order = Order {
                what: "opening files".into(),
                failed: "Reading the files failed unexpectedly. Nothing was loaded.",
                place: Place::InTurn,
                patience: Duration::ZERO,
            };
            let found = self.elsewhere(order, move |doing| sources::gather(&files, &how, &doing.cancel)).await?;
            gathered = self.gathered(&paths, found)?;
        }
        gathered.documents.extend(inline);
        Ok(gathered)
    }
}

impl State {
    pub(in crate::runtime) fn gathered<T>(&self, paths: &[String], files: Result<T, SourceError>) -> Done<T> {
        files.map_err(|e| match e {
            SourceError::Cancelled => RuntimeError::Stopped,
            e @ SourceError::NotFound { .. } => RuntimeError::NotThere(self.or_session(paths, e.to_string())),
            e @ SourceError::NoMatch(_) => RuntimeError::NotThere(e.to_string()),
            e => RuntimeError::Refused(e.to_string()),
        })
    }

    fn or_session(&self, paths: &[String], error: String) -> String {
        match paths.first().map(|name| self.disk.store.session_named(name)) {
            Some(Ok(record)) if self.attendance == Attendance::Absent => {
                format!("{error} A session is called \"{}\": -r {} asks in it", record.name, shell_word(&record.name))
            }
            Some(Ok(record)) => {
                format!("{error} A session is called \"{}\": /resume {}", record.name, command_word(&record.name))
            }
            _ => error,
        }
    }

    pub(in crate::runtime) fn shaped(
        &self,
        mut documents: Vec<Document>,
        options: &LoadOptions,
    ) -> Done<Vec<Document>> {
        if let Some(name) = &options.name {
            match documents.as_mut_slice() {
                [one] => one.name = render::safe_name(name),
                more => {
                    return Err(RuntimeError::Refused(format!("--as names one document; {} were found.", more.len())));
                }
            }
        }
        let tokenizer = &self.engine.renderer.model().tokenizer;
        for d in &mut documents {
            if let Some(encoding) = d.guessed {
                self.note(Level::Warn, format!("{}: encoding unclear; read as {encoding}", d.name));
            }
            if let Some(note) = &d.note {
                let is_loss = !["read as ", "converted by "].iter().any(|how| note.starts_with(how));
                self.note(if is_loss { Level::Warn } else { Level::Info }, format!("{}: {note}", d.name));
            }
            let part = match (options.head, options.tail) {
                (Some(n), _) => Part::First(n),
                (None, Some(n)) => Part::Last(n),
                (None, None) => continue,
            };
            d.text = self.bounded(|halt| tokenizer.part(&d.text, part, halt.stop))?;
        }
        Ok(documents)
    }
}

/// The text of standard input as a document. A clipboard is refused: over SSH only the terminal has access to it.
fn inline(options: &LoadOptions) -> Done<Document> {
    let Some(text) = &options.inline else {
        return Err(RuntimeError::Refused(
            "- is not a file here. Paste the text into a message, or load a file; ./- is a file with that name.".into(),
        ));
    };
    let name = options.name.as_deref().unwrap_or("pasted.txt");
    Document::inline(name, text).map_err(|e| RuntimeError::Refused(e.to_string()))
}
