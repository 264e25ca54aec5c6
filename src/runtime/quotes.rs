//! The quotes of an answer, checked in the documents of its conversation: text alone, so they work for every engine.

use std::collections::HashMap;
use std::sync::Arc;

use super::follow::{Version, versions};
use super::{Done, State, refused};
use crate::core::transcript::{Message, MessageId, Quote, Role, text_hash};
use crate::text::cited::{self, Index, Source};

const SHOWN_LINES: usize = 12;
const NOT_FOUND: [&str; 5] = ["could not find", "cannot find", "does not say", "not mentioned", "not in the document"];

#[derive(Debug, Default)]
pub(super) struct Indexes(HashMap<String, Arc<Index>>);

impl Indexes {
    /// The documents of a path with their indexes. Indexes of other documents are dropped.
    fn of<'a>(&mut self, path: &[&'a Message]) -> Vec<(Version<'a>, Arc<Index>)> {
        let hash = |v: &Version<'_>| v.hash.map_or_else(|| text_hash(&v.text), str::to_owned);
        let versions: Vec<_> = versions(path).into_iter().map(|v| (hash(&v), v)).collect();
        self.0.retain(|hash, _| versions.iter().any(|(known, _)| known == hash));
        let mut index =
            |hash: String, text: &str| Arc::clone(self.0.entry(hash).or_insert_with(|| Arc::new(Index::new(text))));
        let indexed = |(hash, version): (String, Version<'a>)| {
            let index = index(hash, &version.text);
            (version, index)
        };
        versions.into_iter().map(indexed).collect()
    }

    pub(super) fn check(&mut self, path: &[&Message], answer: &str) -> Vec<Quote> {
        cited::check(answer, &sources(&self.of(path)))
    }
}

fn sources<'a>(documents: &'a [(Version<'_>, Arc<Index>)]) -> Vec<Source<'a>> {
    documents.iter().map(|(v, index)| Source { name: v.name, text: &v.text, index }).collect()
}

impl State {
    pub(super) fn quotes(&mut self, parent: Option<MessageId>, answer: &str) -> Vec<Quote> {
        let path = self.here.session.tree.path_to(parent);
        let documents = self.indexes.of(&path);
        let quotes = cited::check(answer, &sources(&documents));
        let question = path.last().filter(|m| m.role == Role::User);
        if quotes.is_empty()
            && NOT_FOUND.iter().any(|words| answer.contains(words))
            && let Some((name, line)) = question.and_then(|m| cited::nearest(&m.text, &sources(&documents)))
        {
            self.info(format!("Nearest: {name}:{line}"));
        }
        quotes
    }

    pub(super) fn quotes_page(&mut self, at: Option<u64>) -> Done {
        let (number, answer) = self.answer(at)?;
        let (parent, text) = (answer.parent, answer.text.clone());
        let path = self.here.session.tree.path_to(parent);
        let documents = self.indexes.of(&path);
        let sources = sources(&documents);
        let quotes = cited::compared(&text, &sources);
        if quotes.is_empty() {
            let why =
                if documents.is_empty() { "no document is loaded" } else { "no quote in it has four words or more" };
            return refused(format!("#{number} has no quotes to check: {why}."));
        }
        let mut page = String::new();
        for (k, (quote, marked)) in (1..).zip(&quotes) {
            let nearest =
                || cited::nearest(&quote.text, &sources).map(|(name, line)| format!(". Nearest: {name}:{line}"));
            let hint = if quote.document.is_none() { nearest().unwrap_or_default() } else { String::new() };
            let version = documents.iter().map(|(v, _)| v).find(|v| quote.document.as_deref() == Some(v.name));
            let since = version.map_or("", |v| self.changed_since(v.last));
            page.push_str(&format!("    [{k}] {}{since}{hint}\n", quote.place()));
            marked.lines().for_each(|line| page.push_str(&format!("          “{line}”\n")));
            let source = sources.iter().find(|source| quote.document.as_deref() == Some(source.name));
            let lines =
                source.map_or(&[][..], |source| std::slice::from_ref(source)).iter().flat_map(|s| quote.lines(s.text));
            lines.take(SHOWN_LINES).for_each(|(n, line)| page.push_str(&format!("    {n:>7}  {line}\n")));
            page.push_str("    \n");
        }
        page.push_str(
            "\nexact: letter for letter. equal: except for white space, typographic marks, hyphenation and case. close: at \
                       least 85% of the words in one run; [-quote-]{+source+} marks what differs.\n",
        );
        self.page(&format!("Quotes of #{number}"), page)
    }
}
