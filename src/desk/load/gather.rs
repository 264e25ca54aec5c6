//! Finding the documents of a load: files, folders and pasted text, cut as the options say.

use std::time::{Duration, Instant};

use super::super::run::Event;
use super::super::{DeskError, Done, State, render};
use crate::protocol::desk::{Activity, Level, LoadOptions};
use crate::text::Before;
use crate::text::sources::{self, Document, Gathered, SourceError};

impl State {
    /// Finds and reads files on another thread, so that stopping works meanwhile.
    pub(in crate::desk) fn gather(&mut self, paths: &[String], options: &LoadOptions) -> Done<Gathered> {
        self.activity(Activity::Busy { what: "opening files".into() });
        let mut how = self.sources.clone();
        (how.force, how.pages) = (options.force, options.pages);
        let (cancel, files) = (self.cancel.clone(), paths.iter().filter(|p| *p != "-").cloned().collect::<Vec<_>>());
        let mut gathered = Gathered::default();
        if !files.is_empty() {
            let work = std::thread::spawn(move || sources::gather(&files, &how, &cancel));
            while !work.is_finished() {
                match self.next(Some(Instant::now() + Duration::from_millis(10))) {
                    Event::Request(r) => self.on_busy_request(r),
                    Event::Engine(e) => self.on_idle_engine(e),
                    Event::Save(e) => self.on_save(e),
                    Event::Tick => {}
                }
            }
            gathered = match work.join() {
                Ok(Ok(gathered)) => gathered,
                Ok(Err(SourceError::Cancelled)) => return Err(DeskError::Stopped),
                Ok(Err(e @ SourceError::NotFound { .. })) => {
                    return Err(DeskError::Refused(self.or_session(paths, e.to_string())));
                }
                Ok(Err(e)) => return Err(DeskError::Refused(e.to_string())),
                Err(_) => {
                    return Err(DeskError::Refused(
                        "Reading the files failed unexpectedly. Nothing was loaded.".into(),
                    ));
                }
            };
        }
        if paths.iter().any(|p| p == "-") {
            let text = options.inline.as_deref().unwrap_or("");
            let name = options.name.as_deref().unwrap_or("pasted.txt");
            gathered.documents.push(Document::inline(name, text).map_err(|e| DeskError::Refused(e.to_string()))?);
        }
        Ok(gathered)
    }

    /// Somebody who types a session's name after `/load` is told.
    fn or_session(&self, paths: &[String], error: String) -> String {
        match paths.first().map(|name| self.store.session_named(name)) {
            Some(Ok(record)) => format!("{error} A session is called \"{}\": /resume {}", record.name, record.name),
            _ => error,
        }
    }

    /// `--as`, `--head`, `--tail`.
    pub(super) fn shaped(&self, mut documents: Vec<Document>, options: &LoadOptions) -> Done<Vec<Document>> {
        if let Some(name) = &options.name {
            match documents.as_mut_slice() {
                [one] => one.name = render::safe_name(name),
                more => {
                    return Err(DeskError::Refused(format!("--as names one document; {} were found.", more.len())));
                }
            }
        }
        let tokenizer = &self.renderer.model().tokenizer;
        for d in &mut documents {
            if let Some(note) = &d.note {
                self.note(Level::Info, format!("{}: {note}", d.name));
            }
            let (head, tail) = (options.head, options.tail);
            if head.is_none() && tail.is_none() {
                continue;
            }
            let tokens = tokenizer.encode_plain(&d.text)?;
            let cut = |n: u64| usize::try_from(n).unwrap_or(usize::MAX).min(tokens.len());
            let from = match (head, tail) {
                (None, Some(n)) => tokens.len() - cut(n),
                (Some(_), _) | (None, None) => 0,
            };
            let part = tokens.get(from..from + cut(head.or(tail).unwrap_or(u64::MAX))).unwrap_or(&tokens);
            let before = if from == 0 { Before::Edge } else { Before::Text };
            // A cut inside a character leaves half of it behind.
            d.text = tokenizer.spell(part, before).trim_matches('\u{FFFD}').to_owned();
        }
        Ok(documents)
    }
}
