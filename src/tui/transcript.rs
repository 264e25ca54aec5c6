//! The transcript as a virtual list.
//!
//! Only entries near the view are laid out, so the cost does not depend on the length of the conversation. The view
//! follows the end or stays at a place (entry, part, source offset) that survives new text and widths; following again
//! or sending returns it to the end. See `view`.

mod view;

use std::collections::{HashMap, HashSet};

use super::entry::{Anchor, Entry, Item, Look, Progress, note_rows};
use super::markdown::Colours;
use super::rows::Row;
use crate::core::transcript::{Message, MessageId, MessageMeta, Role};
use crate::runtime::protocol::Level;

pub use view::{Hit, finder, ranges};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scroll {
    #[default]
    Follow,
    At {
        entry: usize,
        anchor: Anchor,
    },
}

#[derive(Debug, Default)]
pub struct Transcript {
    pub(super) entries: Vec<Entry>,
    scroll: Scroll,
    /// Text has arrived since the view stopped following.
    news: bool,
    selected: Option<usize>,
    look: Look,
    height: usize,
    window: Vec<(usize, usize)>,
    colours: Colours,
    requested: HashSet<(String, String)>,
}

impl Transcript {
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Rows on screen as (entry, row), top first; made by [`Transcript::prepare`].
    pub fn window(&self) -> &[(usize, usize)] {
        &self.window
    }

    pub fn selected(&self) -> Option<usize> {
        self.selected
    }

    pub fn scroll(&self) -> Scroll {
        self.scroll
    }

    pub fn messages(&self) -> impl DoubleEndedIterator<Item = &Message> {
        self.entries.iter().filter_map(Entry::as_message)
    }

    pub fn numbered(&self, n: u64) -> Option<&Message> {
        self.entries.iter().find(|e| e.number == n && n > 0).and_then(Entry::as_message)
    }

    pub fn selected_message(&self) -> Option<(u64, &Message)> {
        let entry = self.entries.get(self.selected?)?;
        entry.as_message().map(|m| (entry.number, m))
    }

    /// Replaces the conversation. Unchanged entries keep their rows. Notes stay if the message before them does, or if
    /// they answer `request`.
    pub fn replace(&mut self, messages: Vec<Message>, request: u64) {
        let end = self.messages().next_back().map(|m| m.id);
        let grew = end.is_some_and(|id| messages.iter().any(|m| m.id == id));
        let standing = match self.scroll {
            Scroll::At { entry, anchor } if grew => self.id_at(entry).map(|id| (id, anchor)),
            Scroll::At { .. } | Scroll::Follow => None,
        };
        let selected = self.selected.filter(|_| grew).and_then(|i| self.id_at(i));
        let mut kept: HashMap<MessageId, (Entry, Vec<Entry>)> = HashMap::new();
        let mut recent = Vec::new();
        let mut last = None;
        for entry in self.entries.drain(..) {
            match &entry.item {
                Item::Message(m) => {
                    last = Some(m.id);
                    kept.insert(m.id, (entry, Vec::new()));
                }
                Item::Note { request: r, .. } if *r == request => recent.push(entry),
                Item::Note { .. } => {
                    if let Some((_, notes)) = last.and_then(|id| kept.get_mut(&id)) {
                        notes.push(entry);
                    }
                }
            }
        }
        for (i, message) in messages.into_iter().enumerate() {
            let number = i as u64 + 1;
            match kept.remove(&message.id) {
                Some((mut entry, mut notes)) => {
                    if entry.number != number || entry.choice > 0 || entry.as_message() != Some(&message) {
                        (entry.number, entry.choice) = (number, 0);
                        entry.complete(message);
                    }
                    self.entries.push(entry);
                    self.entries.append(&mut notes);
                }
                None => {
                    self.entries.push(Entry::message(message, number, Progress::Done));
                    self.news = true;
                }
            }
        }
        self.entries.append(&mut recent);
        self.selected = selected.and_then(|id| self.place_of(id));
        let standing = standing.and_then(|(id, anchor)| Some(Scroll::At { entry: self.place_of(id)?, anchor }));
        self.scroll = standing.unwrap_or(Scroll::Follow);
    }

    /// Leaves the screen; returns the notes that answer `request`.
    pub(super) fn put_away(&mut self, request: u64) -> Vec<Entry> {
        self.requested.clear();
        self.selected = None;
        self.take_notes(request)
    }

    pub(super) fn take_notes(&mut self, request: u64) -> Vec<Entry> {
        let of = |e: &Entry| matches!(&e.item, Item::Note { request: r, .. } if *r == request);
        let (notes, rest) = std::mem::take(&mut self.entries).into_iter().partition(of);
        self.entries = rest;
        notes
    }

    fn id_at(&self, entry: usize) -> Option<MessageId> {
        self.entries.get(..=entry)?.iter().rev().find_map(|e| e.as_message().map(|m| m.id))
    }

    pub fn add(&mut self, message: Message) {
        if let Some(entry) = self.find(message.id) {
            return entry.complete(message);
        }
        let open = message.role == Role::Assistant && message.meta.finish.is_none();
        let progress = match (open, message.text.is_empty()) {
            (true, true) => Progress::Thinking,
            (true, false) => Progress::Answering,
            (false, _) => Progress::Done,
        };
        let number = self.messages().count() as u64 + 1;
        self.news = true;
        self.entries.push(Entry::message(message, number, progress));
    }

    /// Adds answers to one question that are written in parallel.
    pub(super) fn add_answers(&mut self, answers: Vec<(MessageId, Option<u64>)>) {
        for (choice, (id, seed)) in (1..).zip(answers) {
            let (text, thinking) = (String::new(), String::new());
            let meta = MessageMeta { seed, ..MessageMeta::default() };
            self.add(Message { id, parent: None, role: Role::Assistant, text, thinking, created_ms: 0, meta });
            if let Some(entry) = self.find(id) {
                entry.choice = choice;
            }
        }
    }

    pub fn note(&mut self, level: Level, text: &str, request: u64) {
        self.news = true;
        self.entries.push(Entry::note(level, text, request));
    }

    pub(super) fn last_note(&self, request: u64, cells: usize) -> Vec<Row> {
        let notes = self.entries.iter().rev().filter_map(|entry| match &entry.item {
            Item::Note { level, text, request } => Some((*level, text, *request)),
            Item::Message(_) => None,
        });
        let last = notes.take(1).find(|(.., of)| *of == request);
        last.map_or_else(Vec::new, |(level, text, _)| note_rows(level, text, Look { cells, ..self.look }))
    }

    fn place_of(&self, id: MessageId) -> Option<usize> {
        self.entries.iter().rposition(|e| e.is(id))
    }

    /// Text was added to an entry.
    pub(super) fn grew(&mut self) {
        self.news = true;
    }

    pub(super) fn find(&mut self, id: MessageId) -> Option<&mut Entry> {
        let at = self.place_of(id)?;
        self.entries.get_mut(at)
    }

    pub fn close_open(&mut self) {
        for entry in self.entries.iter_mut().rev().filter(|e| e.progress != Progress::Done) {
            entry.progress = Progress::Done;
            entry.touch();
        }
    }

    pub fn set_doing(&mut self, before: &str, speed: &str) {
        if let Some(e) = self.in_progress()
            && (e.before != before || e.speed != speed)
        {
            (e.before, e.speed) = (before.to_string(), speed.to_string());
            e.touch();
        }
    }

    pub fn set_thought(&mut self, ms: f64, tokens: u64) {
        if let Some(e) = self.in_progress() {
            e.thought(ms, tokens);
        }
    }

    fn in_progress(&mut self) -> Option<&mut Entry> {
        // The activity is about all of several answers.
        self.entries.iter_mut().rev().find(|e| e.progress != Progress::Done && e.choice == 0)
    }

    pub fn open_selected(&mut self) {
        if !self.selected.and_then(|i| self.entries.get_mut(i)).is_some_and(Entry::toggle_fold) {
            self.toggle_thoughts();
        }
    }

    pub fn toggle_thoughts(&mut self) {
        let show = self.look.think;
        let has = |e: &Entry| e.as_message().is_some_and(|m| !m.thinking.is_empty());
        let mut targets: Vec<&mut Entry> = match self.selected {
            Some(i) => self.entries.get_mut(i).into_iter().collect(),
            None => self.entries.iter_mut().filter(|e| has(e)).collect(),
        };
        let open = targets.last().is_some_and(|e| e.thoughts_are_open(show));
        for e in &mut targets {
            e.thoughts_open = Some(!open);
            e.touch();
        }
    }

    pub fn coloured(&mut self, lang: String, code: String, lines: Vec<Vec<super::rows::Span>>) {
        for e in &mut self.entries {
            if e.code().iter().any(|b| b.lang == lang && b.text == code) {
                e.reset();
            }
        }
        self.colours.insert(lang, code, lines);
    }

    pub fn forget_colours(&mut self) {
        for e in self.entries.iter_mut().filter(|e| !e.code().is_empty()) {
            e.reset();
        }
        self.colours = Colours::default();
        self.requested.clear();
    }

    pub fn uncoloured(&mut self) -> Vec<(String, String)> {
        let mut wanted = Vec::new();
        let mut entries: Vec<usize> = self.window.iter().map(|w| w.0).collect();
        entries.dedup();
        for e in entries.into_iter().filter_map(|i| self.entries.get(i)) {
            for block in e.code().iter().filter(|b| !b.lang.is_empty() && b.text.len() < 100_000) {
                let key = (block.lang.clone(), block.text.clone());
                if self.colours.get(&block.lang, &block.text).is_none() && self.requested.insert(key.clone()) {
                    wanted.push(key);
                }
            }
        }
        wanted
    }

    pub fn select(&mut self, by: isize) {
        let messages: Vec<usize> = (0..self.entries.len())
            .filter(|i| self.entries.get(*i).is_some_and(|e| e.as_message().is_some()))
            .collect();
        let at = self.selected.and_then(|s| messages.iter().position(|m| *m == s));
        let last = messages.len().checked_sub(1);
        let next = match at {
            None => last.filter(|_| by < 0),
            // A step down from the last message leaves the selection.
            Some(_) if by == 1 && at == last => None,
            Some(at) => last.map(|last| at.saturating_add_signed(by).min(last)),
        };
        self.selected = next.and_then(|n| messages.get(n).copied());
        match self.selected {
            Some(entry) => self.reveal(entry),
            None => self.follow(),
        }
    }

    pub fn deselect(&mut self) {
        self.selected = None;
    }

    pub fn show(&mut self, id: MessageId) -> bool {
        let Some(entry) = self.place_of(id) else { return false };
        self.selected = Some(entry);
        self.reveal(entry);
        true
    }
}
