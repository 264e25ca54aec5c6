//! Documents of the library, loaded by name. Their text is decoded from the kept tokens, so that the kept state
//! matches.

use super::super::library::not_in_library;
use super::super::segments::document_text;
use super::super::{Done, Path, Renderer, State, refused};
use crate::core::transcript::text_hash;
use crate::store::{DocumentRecord, Store, StoreError};
use crate::text::sources::Document;

/// Line ends before and after a file's text that the reader strips.
const BEFORE: [&str; 3] = ["", "\n", "\r\n"];
const AFTER: [&str; 6] = ["\n", "", "\r\n", "\n\n", "\r\n\r\n", "\n\n\n"];

impl State {
    pub(in crate::runtime) fn library_documents(&mut self, names: &[String]) -> Done<Vec<Document>> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        // The entry of a document that was just read may not be on disk yet.
        self.disk.wait_for_texts();
        let records = self.disk.documents()?;
        names.iter().map(|name| self.library_document(&records, name)).collect()
    }

    fn library_document(&self, records: &[DocumentRecord], name: &str) -> Done<Document> {
        let Some(last) = records.iter().find(|d| d.document.name == name) else {
            return Err(not_in_library(name, records));
        };
        let d = &last.document;
        for same in records.iter().filter(|r| r.document.name == name && r.document.hash == d.hash) {
            let store = self.disk.store_of(&same.document.segment);
            if let Some(text) = text_as_read(store, &self.engine.renderer, same)? {
                let path = d.path.clone().map(std::path::PathBuf::from);
                return Ok(Document { name: name.to_owned(), path, text, note: None, guessed: None });
            }
        }
        let again = match &d.path {
            Some(path) => format!("/load {path} reads it again."),
            None => "It came from no file.".to_owned(),
        };
        refused(format!("The text of {name} cannot be restored from what is kept. {again}"))
    }
}

/// The text of a library document, byte for byte: from a session that holds it, or decoded from the tokens.
///
/// # Errors
/// The store cannot be read.
pub fn text_as_read(store: &Store, renderer: &Renderer, record: &DocumentRecord) -> Result<Option<String>, StoreError> {
    let d = &record.document;
    let is_it = |text: &str| text_hash(text) == d.hash;
    if let Some(id) = store.message_ending(&d.segment)? {
        let message = store.message(id)?;
        if is_it(&message.text) {
            return Ok(Some(message.text));
        }
    }
    let path = match store.load_path(&d.segment) {
        Ok(segments) => Path::new(segments),
        Err(StoreError::NoSegment { .. }) => return Ok(None),
        Err(e) => return Err(e),
    };
    let spelled = document_text(renderer, &path, d.prefix, &d.name).unwrap_or_default();
    let mut edges = BEFORE.iter().flat_map(|before| AFTER.iter().map(move |after| (before, after)));
    Ok(edges.find_map(|(before, after)| Some(format!("{before}{spelled}{after}")).filter(|text| is_it(text))))
}
