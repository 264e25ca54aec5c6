//! The context as stretches of one kind, with what the last answer looked at: for `/map` and the panel.

use super::conversation::{first_words, title_of};
use super::{Done, State};
use crate::protocol::desk::{ContextMap, Notice, Place, Stretch};
use crate::transcript::{Message, Role};

impl State {
    /// `/map`.
    pub(super) fn map(&mut self) -> Done {
        if self.feeder.server().is_some() {
            return Err(self.not_there("what it has in its context, and where it looked", "/map and /look"));
        }
        self.tell(Notice::Map(self.context_map()));
        Ok(())
    }

    /// What is in the state now. Documents and answers end where their segments end; the system text's tokens are counted.
    pub(super) fn context_map(&self) -> ContextMap {
        let used = self.position();
        let path = self.talk.conversation.path();
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
                    let tokens = self.feeder.renderer.model().tokenizer.encode_plain(&m.text);
                    add(tokens.map_or(0, |t| t.len() as u64), Place::System, number, "system text".into(), 0);
                    begun = None;
                    continue;
                }
                Role::User => continue,
                Role::Document => (Place::Document, (number, m)),
                Role::Assistant => (Place::Turn, *first),
            };
            let end = self.talk.ends.get(&m.id).and_then(|id| self.feeder.live.segments().iter().find(|s| s.id == *id));
            if let Some(end) = end {
                let document = title.meta.document.as_ref();
                // The whole name: it is opened by it.
                let name = document.map_or_else(|| first_words(&title_of(title), 40), |d| d.name.clone());
                add(end.end_position(), place, number, name, document.map_or(0, |d| d.lines));
                begun = None;
            }
        }
        if let Some((number, m)) = begun.or(path.last().map(|m| (path.len() as u64, *m))) {
            add(used, Place::Turn, number, first_words(&title_of(m), 40), 0);
        }
        // On a branch that is a copy nobody knows which blocks it were.
        let answered = (1..)
            .zip(&path)
            .filter_map(|(n, m)| Some((n, m.meta.looked.as_ref().filter(|l| !l.blocks.is_empty())?)))
            .last();
        ContextMap {
            stretches,
            used,
            limit: self.meters.context_limit,
            block_tokens: answered.map_or(0, |(_, l)| l.block_tokens),
            looked: answered.map_or_else(Vec::new, |(_, l)| l.blocks.clone()),
            passages: answered.map_or_else(Vec::new, |(_, l)| l.passages.clone()),
            answer: answered.map(|(n, _)| n),
        }
    }
}
