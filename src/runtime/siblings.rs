//! `/branch`: moves between branches of the conversation.
//!
//! A branch number counts the siblings of the nearest message to the head that has some, as in the header, or of the
//! message with the given number. A branch further up opens at its newest leaf and may branch again below: then the
//! header counts there, and a note gives the number of the outer place for the way back. After an undo to a fork, a
//! branch is selected by the number it would have.

use super::{Done, RuntimeError, State, Tree, Verb, refused};
use crate::config::commands::{BranchTarget, Sibling};
use crate::core::transcript::MessageId;

impl State {
    /// Lists the branching points if there are several; the header shows a single one.
    fn say_where_it_branches(&self) {
        let c = &self.here.session.tree;
        let places = c.branchings();
        if let Some(below) = c.branches_below() {
            let place = if places.is_empty() { String::new() } else { format!("#{} ", c.number_below()) };
            let text = format!("{} branches continue from here. /branch {place}1 opens the first.", below.len());
            self.info(text);
        }
        let (Some(nearest), true) = (places.last(), places.len() > 1) else { return };
        let all: Vec<String> = places
            .iter()
            .map(|id| {
                let (n, of) = c.position_among_siblings(*id);
                format!("#{} ({n} of {of})", c.number_of(*id))
            })
            .collect();
        let (outer, nearest) = (c.number_of(places[0]), c.number_of(*nearest));
        let all = all.join(", ");
        let text = format!(
            "There are other branches at {all}. /branch #{outer} next opens one at #{outer}; without a number, #{nearest} is used."
        );
        self.info(text);
    }

    /// The choices at a branching point: the open message, if any, and all alternatives.
    fn to_choose(&self, at: Option<u64>) -> Done<(Option<MessageId>, Vec<MessageId>)> {
        let c = &self.here.session.tree;
        let is_below = match at {
            Some(number) => number == c.number_below(),
            None => c.branching().is_none(),
        };
        if let Some(below) = c.branches_below().filter(|_| is_below) {
            return Ok((None, below.to_vec()));
        }
        let from = match at {
            Some(number) => self.here.session.numbered(number)?.id,
            None => c.branching().ok_or_else(|| no_siblings(c, None))?,
        };
        match c.siblings(from) {
            siblings if siblings.len() < 2 => Err(no_siblings(c, at)),
            siblings => Ok((Some(from), siblings.to_vec())),
        }
    }
}

impl Verb {
    pub(super) async fn branch(&mut self, target: BranchTarget) -> Done {
        match target {
            BranchTarget::List => {
                self.timeline()?;
                self.say_where_it_branches();
                Ok(())
            }
            BranchTarget::Name(name) => match self.here.session.labels.get(&name).copied() {
                Some(id) => self.go_to(id, &format!("At \"{name}\",")).await,
                None => self.resume(name).await,
            },
            BranchTarget::Sibling(at, sibling) => self.go_to_sibling(at, sibling).await,
        }
    }

    async fn go_to_sibling(&mut self, at: Option<u64>, sibling: Sibling) -> Done {
        self.here.session.may_write()?;
        let (from, siblings) = self.to_choose(at)?;
        let c = &self.here.session.tree;
        let of = siblings.len();
        let here = from.and_then(|from| siblings.iter().position(|s| *s == from));
        let to = match sibling {
            Sibling::Next => Some(here.map_or(0, |here| (here + 1) % of)),
            Sibling::Prev => Some((here.unwrap_or(0) + of - 1) % of),
            Sibling::Number(n) => usize::try_from(n).ok().and_then(|n| n.checked_sub(1)),
        };
        let Some((n, to)) = to.and_then(|i| Some((i + 1, *siblings.get(i)?))) else {
            let place = match from {
                Some(from) => format!("beside #{}", c.number_of(from)),
                None => "to go on to from here".to_owned(),
            };
            return refused(format!("There are branches 1 to {of} {place}.{}", others(c, from)));
        };
        let leaf = c.newest_leaf(to);
        self.move_head(Some(leaf))?;
        let c = &self.here.session.tree;
        // If the new branch forks again further down, the header counts there.
        let (place, back) = match c.branching() == Some(to) {
            true => (String::new(), String::new()),
            false => {
                let number = c.number_of(to);
                let back = here.map(|here| format!(" Back: /branch #{number} {}", here + 1));
                (format!(" of #{number}"), back.unwrap_or_default())
            }
        };
        let what = format!("Branch {n}/{of}{place}, at");
        let stats = self.go_silently(Some(leaf)).await?;
        self.say_shared(&what, &stats, &back);
        Ok(())
    }
}

fn no_siblings(c: &Tree, at: Option<u64>) -> RuntimeError {
    let below = c.branches_below().map(|_| c.number_below());
    let places = c.branchings().into_iter().map(|id| c.number_of(id)).chain(below);
    let places: Vec<String> = places.map(|number| format!("#{number}")).collect();
    RuntimeError::Refused(match (at, places.is_empty()) {
        (Some(number), false) => {
            format!("There is no other branch at #{number}, only at {}.", places.join(", "))
        }
        (Some(_) | None, _) => "There is only one branch. /edit, /regen and /fork make others.".into(),
    })
}

fn others(c: &Tree, than: Option<MessageId>) -> String {
    let mut places = c.branchings().into_iter().filter(|id| Some(*id) != than).map(|id| c.number_of(id)).peekable();
    match places.peek() {
        None => String::new(),
        Some(first) => {
            let example = format!(": /branch #{first} next");
            let all: Vec<String> = places.map(|n| format!("#{n}")).collect();
            format!(" Others are at {}{example}", all.join(", "))
        }
    }
}
