//! What an answer rests on. `/look`: the passages that it attended to. `/map`: the context as stretches of one kind
//! with the attention of the last answer, also for the panel. Its quotes are checked in the documents of its
//! conversation: text alone, so they work for every engine.

use std::collections::HashMap;
use std::sync::Arc;

use super::follow::{Version, versions};
use super::tree::{shortened, title_of};
use super::{Activity, Done, Notice, RuntimeError, State, refused};
use crate::core::counted;
use crate::core::transcript::{Message, MessageId, Passage, Quote, Role, Sources, text_hash};
use crate::runtime::protocol::{ContextMap, Place, Stretch};
use crate::text::cited::{self, Index, Source};

const SHOWN_LINES: usize = 6;
const SHOWN_CHARACTERS: usize = 60;
const NEAREST_CHARACTERS: usize = 160;
const LINES_AROUND: u64 = 10;
const MOST_LINES: u64 = 400;
const QUOTED_LINES: usize = 12;
const NOT_FOUND: [&str; 5] = ["could not find", "cannot find", "does not say", "not mentioned", "not in the document"];

impl State {
    /// The message with this number, or the last answer.
    pub fn answer(&self, at: Option<u64>) -> Done<(u64, &Message)> {
        let Some(number) = at else {
            let path = self.here.tree.path();
            let last = (1..).zip(path).filter(|(_, m)| m.role == Role::Assistant).last();
            return last.ok_or_else(|| RuntimeError::Refused("There is no answer yet.".into()));
        };
        Ok((number, self.here.numbered(number)?))
    }

    pub fn looked(&self, at: Option<u64>) -> Done<(u64, &Message, &Sources)> {
        let (number, message) = self.answer(at)?;
        match &message.meta.looked {
            Some(sources) => Ok((number, message, sources)),
            None if message.role != Role::Assistant => {
                refused(format!("#{number} is not an answer. /look shows what an answer looked at."))
            }
            None if self.engine.server().is_some() => Err(self.not_there("where an answer looked", "/look and /why")),
            None => refused(format!(
                "What #{number} looked at is not recorded: it is too short, or an older version wrote it. /regen answers again."
            )),
        }
    }

    pub fn not_there(&self, what: &str, commands: &str) -> RuntimeError {
        let server = self.engine.server().unwrap_or("The server");
        RuntimeError::Refused(format!(
            "{server} does not report {what}: {commands} need a model on this machine (--engine here)."
        ))
    }

    pub fn look(&mut self, at: Option<u64>, passage: Option<u64>) -> Done {
        let (number, message, sources) = self.looked(at)?;
        let (title, text) = match passage {
            None => (format!("What #{number} looked at"), self.looked_page(message, sources)),
            Some(k) => {
                let Some(passage) = usize::try_from(k - 1).ok().and_then(|i| sources.passages.get(i)) else {
                    let there = counted(sources.passages.len() as u64, "passage");
                    return refused(format!("#{number} has no passage [{k}]: it has {there}."));
                };
                let since = self.holder(passage).map_or("", |m| self.changed_since(m));
                (format!("[{k}] {} ({}){since}", passage.place(), passage.percent()), self.passage_page(passage)?)
            }
        };
        let sentence = (0, sources.by_sentence(&message.text).len() as u64);
        self.show(Notice::Looked { number, passages: sources.passages.len(), sentence, title, text })
    }

    /// `/look [#N] sK`: the passages of one sentence of an answer.
    pub fn look_at_sentence(&mut self, at: Option<u64>, sentence: u64) -> Done {
        let (number, message, sources) = self.looked(at)?;
        let sentences = sources.by_sentence(&message.text);
        let found = usize::try_from(sentence).ok().and_then(|n| sentences.get(n.checked_sub(1)?));
        let Some((words, passages)) = found else {
            let there = counted(sentences.len() as u64, "recorded sentence");
            return refused(format!("#{number} has no sentence s{sentence}: it has {there}."));
        };
        let lines: String = passages.iter().map(|passage| self.with_lines("", passage)).collect();
        let text = format!("{words}\n\n{}", if lines.is_empty() { "No passage stood out.\n" } else { &lines });
        let title = format!("What sentence s{sentence} of #{number} looked at");
        let sentence = (sentence, sentences.len() as u64);
        self.show(Notice::Looked { number, passages: sources.passages.len(), sentence, title, text })
    }

    fn holder(&self, passage: &Passage) -> Option<&Message> {
        self.here.tree.at_number(passage.number)
    }

    fn with_lines(&self, mark: &str, passage: &Passage) -> String {
        let since = self.holder(passage).map_or("", |m| self.changed_since(m));
        let mut text = format!("    {mark}{}  {}{since}\n", passage.place(), passage.percent());
        for (n, line) in self.holder(passage).into_iter().flat_map(|m| passage.lines(&m.text)).take(SHOWN_LINES) {
            text.push_str(&format!("    {n:>7}  {line}\n"));
        }
        text + "    \n"
    }

    fn looked_page(&self, message: &Message, sources: &Sources) -> String {
        let mut text = String::new();
        for (heading, passages) in [("", &sources.passages), ("While it thought:", &sources.thoughts)] {
            if passages.is_empty() {
                continue;
            }
            text.push_str(&format!("{heading}\n\n"));
            for (k, passage) in (1..).zip(passages) {
                // Passages of the thoughts have no number, as only numbered ones can be opened.
                let mark = if heading.is_empty() { format!("[{k}] ") } else { String::new() };
                text.push_str(&self.with_lines(&mark, passage));
            }
        }
        if sources.passages.is_empty() && sources.thoughts.is_empty() {
            text.push_str("No passage stood out.\n");
        }
        text.push_str(&by_sentence(message, sources));
        let percent = |share: f32| format!("{:.0}%", f64::from(share) * 100.0);
        let (first, own, block) = (percent(sources.first), percent(sources.own), sources.block_tokens);
        text.push_str(&format!(
            "\nThis is where attention of the sparse layers went while the answer was written, measured, not claimed by the model. {first} of \
             all of it rested on the first {block} tokens of the context, where a model leaves it when it looks nowhere; shares are of the \
             rest, of which the question and the answer itself had {own}.\n",
        ));
        text
    }

    fn passage_page(&self, passage: &Passage) -> Done<String> {
        let Some(message) = self.holder(passage) else {
            return refused(format!("Message #{} is not on this branch.", passage.number));
        };
        let most = passage.first_line.saturating_add(MOST_LINES);
        let around = Passage {
            first_line: passage.first_line.saturating_sub(LINES_AROUND).max(1),
            last_line: passage.last_line.saturating_add(LINES_AROUND).min(most),
            ..passage.clone()
        };
        let inside = passage.first_line..=passage.last_line;
        let line = |(n, line): (u64, &str)| {
            let mark = if inside.contains(&n) { '>' } else { ' ' };
            format!("    {mark}{n:>7}  {line}")
        };
        Ok(around.lines(&message.text).map(line).collect::<Vec<_>>().join("\n"))
    }

    pub fn map(&mut self) -> Done {
        if self.engine.server().is_some() {
            return Err(self.not_there("what it has in its context, and where it looked", "/map and /look"));
        }
        self.show(Notice::Map(self.context_map()))
    }

    /// The tokens in the state by kind, including the read part of a current reading.
    pub fn context_map(&self) -> ContextMap {
        // The same number as in the header.
        let used = match self.here.activity {
            Activity::Reading(_) | Activity::Thinking { .. } | Activity::Answering { .. } => {
                self.here.meters.context_used
            }
            _ => self.position(),
        };
        let path = self.here.tree.path();
        let mut stretches: Vec<Stretch> = Vec::new();
        let mut at = 0;
        let mut begun: Option<(u64, &Message)> = None;
        let mut add = |to: u64, place: Place, number: u64, name: String| {
            let to = to.min(used);
            if to > at {
                stretches.push(Stretch { from: at, to, place, number, name });
                at = to;
            }
        };
        for (number, m) in (1..).zip(path.iter().copied()) {
            let first = begun.get_or_insert((number, m));
            let (place, (number, title)) = match m.role {
                Role::System => {
                    let tokens = self.engine.tokenizer().encode_plain(&m.text);
                    add(tokens.map_or(0, |t| t.len() as u64), Place::System, number, "system text".into());
                    begun = None;
                    continue;
                }
                Role::User => continue,
                Role::Document => (Place::Document, (number, m)),
                Role::Assistant => (Place::Turn, *first),
            };
            if let Some(end) = self.live_end(m.id) {
                add(end.end_position(), place, number, named(title));
                begun = None;
            }
        }
        let count = path.len() as u64;
        // A document at the end may be read in part.
        let in_part = begun.is_some_and(|(number, m)| number == count && m.role == Role::Document);
        if let Some((number, m)) = begun.or(path.last().map(|m| (count, *m))) {
            add(used, if in_part { Place::Document } else { Place::Turn }, number, named(m));
        }
        // A copied branch has no blocks recorded.
        let answers = (1..).zip(&path).filter_map(|(n, m)| Some((n, m.meta.looked.as_ref()?)));
        let (answer, looked) = answers.filter(|(_, l)| !l.blocks.is_empty()).last().unzip();
        ContextMap {
            stretches,
            block_tokens: looked.map_or(0, |l| l.block_tokens),
            looked: looked.map(|l| l.blocks.clone()).unwrap_or_default(),
            passages: looked.map(|l| l.passages.clone()).unwrap_or_default(),
            answer,
        }
    }

    /// The quotes of an answer. For one that found nothing, a note with the line nearest to the question.
    pub fn quotes(&mut self, parent: Option<MessageId>, answer: &str) -> (Vec<Quote>, Option<String>) {
        let path = self.here.tree.path_to(parent);
        let documents = self.indexes.of(&path);
        let quotes = cited::check(answer, &sources(&documents));
        let found_nothing = quotes.is_empty() && NOT_FOUND.iter().any(|words| answer.contains(words));
        let question = path.last().filter(|m| m.role == Role::User && found_nothing);
        let nearest = question.and_then(|m| cited::nearest(&m.text, &sources(&documents)));
        let note = |(name, line, text)| format!("Nearest: {name}:{line}: {}", shortened(text, NEAREST_CHARACTERS));
        (quotes, nearest.map(note))
    }

    pub fn quotes_page(&mut self, at: Option<u64>) -> Done {
        let (number, answer) = self.answer(at)?;
        let (parent, text) = (answer.parent, answer.text.clone());
        let path = self.here.tree.path_to(parent);
        let documents = self.indexes.of(&path);
        let sources = sources(&documents);
        let quotes = cited::compared(&text, &sources);
        if quotes.is_empty() {
            let why =
                if documents.is_empty() { "no document is loaded" } else { "no quote in it has four words or more" };
            return match self.quotes(parent, &text) {
                (_, Some(nearest)) => self.say(format!("#{number} found nothing. {nearest}")),
                (_, None) => refused(format!("#{number} has no quotes to check: {why}.")),
            };
        }
        let mut page = String::new();
        for (k, (quote, marked)) in (1..).zip(&quotes) {
            let nearest =
                || cited::nearest(&quote.text, &sources).map(|(name, line, _)| format!(". Nearest: {name}:{line}"));
            let hint = if quote.document.is_none() { nearest().unwrap_or_default() } else { String::new() };
            let version = documents.iter().map(|(v, _)| v).find(|v| quote.document.as_deref() == Some(v.name));
            let since = version.map_or("", |v| self.changed_since(v.last));
            page.push_str(&format!("    [{k}] {}{since}{hint}\n", quote.place()));
            marked.lines().for_each(|line| page.push_str(&format!("          “{line}”\n")));
            let lines = version.into_iter().flat_map(|version| quote.lines(&version.text));
            lines.take(QUOTED_LINES).for_each(|(n, line)| page.push_str(&format!("    {n:>7}  {line}\n")));
            page.push_str("    \n");
        }
        page.push_str(
            "\nexact: letter for letter. equal: except for white space, typographic marks, hyphenation and case. close: at \
                       least 85% of the words in one run; [-quote-]{+source+} marks what differs.\n",
        );
        self.page(&format!("Quotes of #{number}"), page)
    }
}

fn by_sentence(message: &Message, sources: &Sources) -> String {
    let sentences = sources.by_sentence(&message.text);
    if sentences.is_empty() {
        return "\nWhat each sentence looked at is not recorded. /regen answers again.\n".into();
    }
    let mut text = "\nSentence by sentence, /look sN shows the lines:\n\n".to_owned();
    for (n, (words, passages)) in (1..).zip(&sentences) {
        let words = shortened(words, SHOWN_CHARACTERS);
        let places: Vec<String> = passages.iter().map(|p| format!("{} {}", p.place(), p.percent())).collect();
        let places = if places.is_empty() { "nothing stood out".into() } else { places.join(", ") };
        text.push_str(&format!("    s{n} {words}\n        {places}\n"));
    }
    text
}

/// A document keeps its full name, which opens it.
fn named(message: &Message) -> String {
    let document = message.meta.document.as_ref().map(|document| document.name.clone());
    document.unwrap_or_else(|| shortened(&title_of(message), 40))
}

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
