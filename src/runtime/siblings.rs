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
        let c = &self.here.tree;
        let places = c.branchings();
        if let Some(below) = c.branches_below() {
            let place = if places.is_empty() { String::new() } else { format!("#{} ", c.number_below()) };
            self.info(format!("{} branches continue from here. /branch {place}1 opens the first.", below.len()));
        }
        let [outer, .., nearest] = places.as_slice() else { return };
        let place = |id: &MessageId| {
            let (n, of) = c.position_among_siblings(*id);
            format!("#{} ({n} of {of})", c.number_of(*id))
        };
        let all: Vec<String> = places.iter().map(place).collect();
        let (all, outer, nearest) = (all.join(", "), c.number_of(*outer), c.number_of(*nearest));
        self.info(format!(
            "There are other branches at {all}. /branch #{outer} next opens one at #{outer}; without a number, #{nearest} is used."
        ));
    }

    /// The choices at a branching point: the open message, if any, and all alternatives.
    fn to_choose(&self, at: Option<u64>) -> Done<(Option<MessageId>, Vec<MessageId>)> {
        let c = &self.here.tree;
        let is_below = match at {
            Some(number) => number == c.number_below(),
            None => c.branching().is_none(),
        };
        if let Some(below) = c.branches_below().filter(|_| is_below) {
            return Ok((None, below.to_vec()));
        }
        let from = match at {
            Some(number) => self.here.numbered(number)?.id,
            None => c.branching().ok_or_else(|| no_siblings(c, None))?,
        };
        match c.siblings(from) {
            siblings if siblings.len() < 2 => Err(no_siblings(c, at)),
            siblings => Ok((Some(from), siblings.to_vec())),
        }
    }
}

impl Verb {
    pub async fn branch(&mut self, target: BranchTarget) -> Done {
        match target {
            BranchTarget::List => {
                self.timeline()?;
                self.say_where_it_branches();
                Ok(())
            }
            BranchTarget::Name(name) => match self.here.labels.get(&name).copied() {
                Some(id) => self.go_to(id, &format!("At \"{name}\",")).await,
                None => self.resume(name).await,
            },
            BranchTarget::Sibling(at, sibling) => self.go_to_sibling(at, sibling).await,
        }
    }

    async fn go_to_sibling(&mut self, at: Option<u64>, sibling: Sibling) -> Done {
        self.here.may_write()?;
        let (from, siblings) = self.to_choose(at)?;
        let c = &self.here.tree;
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
        let c = &self.here.tree;
        // If the new branch forks again further down, the header counts there.
        let number = Some(c.number_of(to)).filter(|_| c.branching() != Some(to));
        let place = number.map_or(String::new(), |number| format!(" of #{number}"));
        let back = number.zip(here).map(|(number, here)| format!(" Back: /branch #{number} {}", here + 1));
        self.go(Some(leaf), &format!("Branch {n}/{of}{place}, at"), &back.unwrap_or_default()).await
    }
}

fn no_siblings(c: &Tree, at: Option<u64>) -> RuntimeError {
    let below = c.branches_below().map(|_| c.number_below());
    let places = listed(c.branchings().into_iter().map(|id| c.number_of(id)).chain(below));
    RuntimeError::Refused(match at.filter(|_| !places.is_empty()) {
        Some(number) => format!("There is no other branch at #{number}, only at {places}."),
        None => "There is only one branch. /edit, /regen and /fork make others.".into(),
    })
}

fn others(c: &Tree, than: Option<MessageId>) -> String {
    let places = c.branchings().into_iter().filter(|id| Some(*id) != than);
    let places: Vec<u64> = places.map(|id| c.number_of(id)).collect();
    let example = |first: &u64| format!(" Others are at {}: /branch #{first} next", listed(places.iter().copied()));
    places.first().map_or(String::new(), example)
}

/// `#2, #5`.
fn listed(places: impl Iterator<Item = u64>) -> String {
    places.map(|number| format!("#{number}")).collect::<Vec<_>>().join(", ")
}
