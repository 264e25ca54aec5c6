//! The context as stretches of one kind with the attention of the last answer, for `/map` and the panel.

use super::tree::title_of;
use super::{Activity, Done, Notice, State, first_words};
use crate::core::transcript::{Message, Role};
use crate::runtime::protocol::{ContextMap, Place, Stretch};

/// A document keeps its full name, which opens it.
fn named(message: &Message) -> (String, u64) {
    match &message.meta.document {
        Some(document) => (document.name.clone(), document.lines),
        None => (first_words(&title_of(message), 40), 0),
    }
}

impl State {
    pub(super) fn map(&mut self) -> Done {
        if self.engine.server().is_some() {
            return Err(self.not_there("what it has in its context, and where it looked", "/map and /look"));
        }
        self.report(Notice::Map(self.context_map()));
        Ok(())
    }

    /// The tokens in the state, including the read part of a current reading. Documents and answers end with their
    /// segments; the system text's tokens are counted.
    pub(super) fn context_map(&self) -> ContextMap {
        let used = match self.here.activity {
            // The same number as in the header.
            Activity::Reading(_) | Activity::Thinking { .. } | Activity::Answering { .. } => {
                self.here.meters.context_used
            }
            Activity::Idle
            | Activity::Starting { .. }
            | Activity::Restoring { .. }
            | Activity::Stopping
            | Activity::Background { .. }
            | Activity::Busy { .. } => self.position(),
        };
        let path = self.here.session.tree.path();
        let mut stretches: Vec<Stretch> = Vec::new();
        let mut at = 0;
        let mut begun: Option<(u64, &Message)> = None;
        let mut add = |to: u64, place: Place, number: u64, name: String, lines: u64| {
            let to = to.min(used);
            if to > at {
                stretches.push(Stretch { from: at, to, place, number, name, lines });
                at = to;
            }
        };
        for (number, m) in (1..).zip(path.iter().copied()) {
            let first = begun.get_or_insert((number, m));
            let (place, (number, title)) = match m.role {
                Role::System => {
                    let tokens = self.engine.renderer.model().tokenizer.encode_plain(&m.text);
                    add(tokens.map_or(0, |t| t.len() as u64), Place::System, number, "system text".into(), 0);
                    begun = None;
                    continue;
                }
                Role::User => continue,
                Role::Document => (Place::Document, (number, m)),
                Role::Assistant => (Place::Turn, *first),
            };
            let end = self
                .here
                .session
                .ends
                .get(&m.id)
                .and_then(|id| self.here.slot.live.segments().iter().find(|s| s.id == *id));
            if let Some(end) = end {
                let (name, lines) = named(title);
                add(end.end_position(), place, number, name, lines);
                begun = None;
            }
        }
        let count = path.len() as u64;
        // A document at the end may be read in part.
        let in_part = begun.is_some_and(|(number, m)| number == count && m.role == Role::Document);
        if let Some((number, m)) = begun.or(path.last().map(|m| (count, *m))) {
            let (name, lines) = named(m);
            add(used, if in_part { Place::Document } else { Place::Turn }, number, name, lines);
        }
        // A copied branch has no blocks recorded.
        let answered = (1..)
            .zip(&path)
            .filter_map(|(n, m)| Some((n, m.meta.looked.as_ref().filter(|l| !l.blocks.is_empty())?)))
            .last();
        ContextMap {
            stretches,
            used,
            limit: self.here.meters.context_limit,
            block_tokens: answered.map_or(0, |(_, l)| l.block_tokens),
            looked: answered.map_or_else(Vec::new, |(_, l)| l.blocks.clone()),
            passages: answered.map_or_else(Vec::new, |(_, l)| l.passages.clone()),
            answer: answered.map(|(n, _)| n),
        }
    }
}
