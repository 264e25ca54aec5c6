//! Look-ups that need no model: the library's documents with their texts, quotes, sessions.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde_json::{Value, json};

use crate::cli::{Context, open};
use crate::core::transcript::{Match, Quote};
use crate::runtime::protocol::SearchRow;
use crate::runtime::render::Renderer;
use crate::runtime::text_as_read;
use crate::store::{DocumentRecord, Store, Watch};
use crate::text::cited::{self, Index, Source};
use crate::text::near::no_document;

const HITS: usize = 50;

pub(super) struct Library {
    context: Context,
    store: Mutex<Option<Arc<Store>>>,
    renderer: OnceLock<Result<Renderer, String>>,
}

impl Library {
    pub(super) fn new(context: Context) -> Library {
        Library { context, store: Mutex::default(), renderer: OnceLock::new() }
    }

    fn store(&self) -> Result<Option<Arc<Store>>, String> {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        if store.is_none() && self.context.dirs.data.exists() {
            *store = Some(open::store_to_read(&self.context).map_err(|e| e.to_string())?);
        }
        Ok(store.clone())
    }

    pub(super) fn documents(&self) -> Result<Vec<DocumentRecord>, String> {
        let Some(store) = self.store()? else { return Ok(Vec::new()) };
        let mut documents: Vec<DocumentRecord> = Vec::new();
        for record in store.documents().map_err(|e| e.to_string())? {
            match documents.iter_mut().find(|known| known.document.name == record.document.name) {
                None => documents.push(record),
                Some(known) => known.kept |= record.kept && record.document.hash == known.document.hash,
            }
        }
        Ok(documents)
    }

    pub(super) fn named(&self, names: &[String]) -> Result<Vec<DocumentRecord>, String> {
        let documents = self.documents()?;
        if documents.is_empty() {
            return Err("The library has no documents yet: add_document adds one.".to_owned());
        }
        let known = || documents.iter().map(|d| d.document.name.as_str());
        let find = |name: &String| {
            let found = documents.iter().find(|d| d.document.name == *name).cloned();
            found.ok_or_else(|| no_document(name, "the library", known(), "list_documents"))
        };
        names.iter().map(find).collect()
    }

    fn renderer(&self) -> Result<&Renderer, String> {
        let made = self.renderer.get_or_init(|| {
            let text = open::model(&self.context).and_then(|model| open::text(&model.name));
            text.map(|(text, _)| Renderer::new(text)).map_err(|e| e.to_string())
        });
        made.as_ref().map_err(Clone::clone)
    }

    pub(super) fn text(&self, name: &str) -> Result<String, String> {
        let missing = || format!("internal error: {name} was found and not read");
        let record = self.named(&[name.to_owned()])?.pop().ok_or_else(missing)?;
        let gone = || format!("The text of {name} cannot be restored from what is kept. add_document reads it again.");
        let store = self.store()?.ok_or_else(gone)?;
        text_as_read(&store, self.renderer()?, &record).map_err(|e| e.to_string())?.ok_or_else(gone)
    }

    /// Looks a passage up in a document: the quote, with the document's lines there, or the line that shares most with it.
    pub(super) fn find(&self, name: &str, wanted: &str) -> Result<Value, String> {
        let wanted = wanted.trim();
        if wanted.is_empty() {
            return Err("The text to find is empty.".to_owned());
        }
        let text = self.text(name)?;
        let (mut quote, mut differences, mut nearest) = (Quote::default(), None, None);
        if let Some(at) = text.find(wanted) {
            let line = |end: usize| text.get(..end).map_or(0, |before| before.matches('\n').count() as u64) + 1;
            (quote.matched, quote.first_line, quote.last_line) = (Match::Exact, line(at), line(at + wanted.len()));
        } else {
            let index = Index::new(&text);
            let source = [Source { name, text: &text, index: &index }];
            let written = wanted.lines().filter(|line| !line.trim().is_empty());
            let block: String = written.map(|line| format!("> {line}\n")).collect();
            match cited::compared(&block, &source).into_iter().find(|(quote, _)| quote.matched != Match::None) {
                Some((found, marked)) => (quote, differences) = (found, Some(marked)),
                None => nearest = cited::nearest(wanted, &source).map(|(_, line, _)| line),
            }
        }
        let found = quote.matched != Match::None;
        let lines: Vec<&str> = quote.lines(&text).map(|(_, line)| line).filter(|_| found).collect();
        Ok(json!({
            "match": quote.matched, "document": name, "first_line": quote.first_line, "last_line": quote.last_line,
            "page": quote.page, "lines": lines, "differences": differences, "nearest_line": nearest,
        }))
    }

    pub(super) fn search(&self, text: &str) -> Result<Vec<SearchRow>, String> {
        if text.trim().is_empty() {
            return Err("The text to search for is empty.".to_owned());
        }
        let Some(store) = self.store()? else { return Ok(Vec::new()) };
        store.search(text, HITS, &Watch::NONE).map_err(|e| e.to_string())
    }
}
