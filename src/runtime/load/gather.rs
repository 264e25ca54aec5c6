//! Finds the documents of a load (files, folders, standard input), cuts them as the options demand, and finds those
//! that the conversation holds already.

use super::super::task::Doing;
use super::super::{Attendance, Done, RuntimeError, State, Verb, refused, render};
use crate::core::sanitize::{command_word, shell_word};
use crate::core::transcript::DocumentInfo;
use crate::runtime::protocol::LoadOptions;
use crate::store::SessionRecord;
use crate::text::Part;
use crate::text::sources::{self, Document, Gathered, Remark, Skipped, SourceError};

const SKIPPED: usize = 5;

impl Verb {
    /// The documents of paths; notes which files were skipped, every one that is named in `paths`.
    pub async fn gather(&mut self, paths: &[String], options: &LoadOptions) -> Done<Gathered> {
        let inline = paths.iter().any(|p| p == "-").then(|| inline(options)).transpose()?;
        let paths: Vec<String> = paths.iter().filter(|p| *p != "-").cloned().collect();
        let mut gathered = Gathered::default();
        if !paths.is_empty() {
            let mut how = self.options.sources.clone();
            (how.force, how.pages) = (options.force, options.pages);
            if self.attendance == Attendance::Present {
                how.not_text = "/load --force loads it as Latin-1.";
                how.partly = paths.len() > 1;
            }
            let files = paths.clone();
            let failed = "Reading the files failed unexpectedly. Nothing was loaded.";
            let read = move |doing: &Doing| sources::gather(&files, &how, &doing.cancel);
            let found = self.elsewhere("opening files".into(), failed, read).await?;
            gathered = self.gathered(&paths, found)?;
        }
        let (named, others): (Vec<&Skipped>, Vec<&Skipped>) =
            gathered.skipped.iter().partition(|skipped| paths.contains(&skipped.name));
        for Skipped { name, reason } in named.into_iter().chain(others.iter().copied().take(SKIPPED)) {
            self.warn(format!("Skipped {name}: {reason}"));
        }
        if others.len() > SKIPPED {
            self.warn(format!("Skipped {} more.", others.len() - SKIPPED));
        }
        gathered.documents.extend(inline);
        Ok(gathered)
    }
}

impl State {
    pub fn gathered<T>(&self, paths: &[String], files: Result<T, SourceError>) -> Done<T> {
        files.map_err(|e| match e {
            SourceError::Cancelled => self.nothing_loaded(),
            e @ SourceError::NotFound { .. } => RuntimeError::NotThere(self.or_session(paths, e.to_string())),
            e @ (SourceError::NoMatch(_) | SourceError::WebAddress) => RuntimeError::NotThere(e.to_string()),
            e => RuntimeError::Refused(e.to_string()),
        })
    }

    pub(super) fn nothing_loaded(&self) -> RuntimeError {
        self.info("Stopped: nothing was loaded.");
        RuntimeError::Stopped
    }

    fn or_session(&self, paths: &[String], error: String) -> String {
        let named = paths.first().map(|name| self.disk.store.session_named(name));
        let Some(Ok(SessionRecord { name, .. })) = named else { return error };
        let how = match self.attendance {
            Attendance::Present => format!("/resume {}", command_word(&name)),
            Attendance::Absent => format!("-r {} asks in it", shell_word(&name)),
        };
        format!("{error} A session is called \"{name}\": {how}")
    }

    /// The documents that the conversation does not hold already, unchanged.
    pub fn without_repeated(&self, documents: Vec<Document>) -> Vec<Document> {
        let held = self.here.tree.path();
        let repeated = |d: &Document| {
            let path = d.path.as_ref().map(|p| p.display().to_string());
            let info = DocumentInfo::new(&d.name, path, &d.text);
            let documents = held.iter().filter_map(|m| Some((m, m.meta.document.as_ref()?)));
            // Those that contain all of this text.
            let mut whole = documents.filter(|(m, old)| old.hash == info.hash && (old.complete || m.is_half_read()));
            whole.any(|(_, old)| is_same(old, &info))
        };
        let (again, others): (Vec<Document>, Vec<Document>) = documents.into_iter().partition(repeated);
        let what = match again.as_slice() {
            [] => return others,
            [one] => format!("{} is", one.name),
            many => format!("{} of these files are", many.len()),
        };
        self.warn(format!("{what} in this conversation already, unchanged: not loaded again."));
        others
    }

    pub fn shaped(&self, mut documents: Vec<Document>, options: &LoadOptions) -> Done<Vec<Document>> {
        if let Some(name) = &options.name {
            match documents.as_mut_slice() {
                [one] => one.name = render::safe_name(name),
                more => return refused(format!("--as names one document; {} were found.", more.len())),
            }
        }
        let tokenizer = self.engine.tokenizer();
        for d in &mut documents {
            if let Some(encoding) = d.guessed {
                self.warn(format!("{}: encoding unclear; read as {encoding}", d.name));
            }
            match &d.note {
                Some(Remark::Way(note)) => self.info(format!("{}: {note}", d.name)),
                Some(Remark::Missing(note)) => self.warn(format!("{}: {note}", d.name)),
                None => {}
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
        return refused(
            "- is not a file here. Paste the text into a message, or load a file; ./- is a file with that name.",
        );
    };
    let name = options.name.as_deref().unwrap_or("pasted.txt");
    Document::inline(name, text).map_err(|e| RuntimeError::Refused(e.to_string()))
}

/// Whether two documents of one text are the same file, by whatever path, or have the same name and no file.
fn is_same(old: &DocumentInfo, new: &DocumentInfo) -> bool {
    let file = |path: &str| std::fs::canonicalize(path).unwrap_or_else(|_| path.into());
    match (&old.path, &new.path) {
        (Some(old), Some(new)) => old == new || file(old) == file(new),
        (None, None) => old.name == new.name,
        (Some(_), None) | (None, Some(_)) => false,
    }
}
