//! `/branch`: from one branch of the conversation to another.
//!
//! A branch is counted beside the message that has others beside it: the nearest one to the head, where the header counts, or the
//! one whose number was typed. Who goes to another branch further up comes to where that was left, and it may branch again below:
//! then the header counts there, and the way back is the number of the outer place, which is said.

use super::conversation::Conversation;
use super::{DeskError, Done, State};
use crate::commands::{BranchTarget, Sibling};
use crate::protocol::desk::Level;
use crate::transcript::MessageId;

impl State {
    /// `/branch`.
    pub(super) fn branch(&mut self, target: BranchTarget) -> Done {
        match target {
            BranchTarget::List => {
                self.timeline()?;
                self.say_where_it_branches();
                Ok(())
            }
            BranchTarget::Name(name) => match self.talk.labelled(&name) {
                Some(id) => self.go_to(id, &format!("At \"{name}\",")),
                None => self.resume(&name),
            },
            BranchTarget::Beside(at, sibling) => self.go_beside(at, sibling),
        }
    }

    /// Where there is more than one place to choose at; the one place is in the header.
    fn say_where_it_branches(&self) {
        let c = &self.talk.conversation;
        let places = c.branchings();
        let (Some(nearest), true) = (places.last(), places.len() > 1) else { return };
        let all: Vec<String> = places
            .iter()
            .map(|id| {
                let (n, of) = c.position_beside(*id);
                format!("#{} ({n} of {of})", c.number_of(*id))
            })
            .collect();
        let (outer, nearest) = (c.number_of(places[0]), c.number_of(*nearest));
        let all = all.join(", ");
        let text = format!(
            "This branch has others beside {all}. /branch #{outer} next goes to one beside #{outer}; without a number #{nearest} is meant."
        );
        self.note(Level::Info, text);
    }

    fn go_beside(&mut self, at: Option<u64>, sibling: Sibling) -> Done {
        self.talk.may_write()?;
        let c = &self.talk.conversation;
        let from = match at {
            Some(number) => self.talk.numbered(number)?.id,
            None => c.branching().ok_or_else(|| nothing_beside(c, None))?,
        };
        let siblings = c.siblings(from);
        let of = siblings.len();
        if of < 2 {
            return Err(nothing_beside(c, at));
        }
        let here = siblings.iter().position(|s| *s == from).unwrap_or(0);
        let to = match sibling {
            Sibling::Next => Some((here + 1) % of),
            Sibling::Prev => Some((here + of - 1) % of),
            Sibling::Number(n) => usize::try_from(n).ok().and_then(|n| n.checked_sub(1)),
        };
        let Some((n, to)) = to.and_then(|i| Some((i + 1, *siblings.get(i)?))) else {
            let number = c.number_of(from);
            return Err(DeskError::Refused(format!(
                "There are branches 1 to {of} beside #{number}.{}",
                others(c, from)
            )));
        };
        let leaf = c.newest_leaf(to);
        self.move_head(Some(leaf))?;
        let c = &self.talk.conversation;
        // Further down it may branch once more, and the header counts there.
        let (place, back) = match c.branching() == Some(to) {
            true => (String::new(), String::new()),
            false => {
                let number = c.number_of(to);
                (format!(" of #{number}"), format!(" Back: /branch #{number} {}", here + 1))
            }
        };
        let what = format!("Branch {n}/{of}{place}, at");
        self.go_then(Some(leaf), move |desk, fed| {
            desk.say_shared_and(&what, &fed, &back);
            Ok(())
        })
    }
}

/// There is no other branch at a place, or at none.
fn nothing_beside(c: &Conversation, at: Option<u64>) -> DeskError {
    let places: Vec<String> = c.branchings().into_iter().map(|id| format!("#{}", c.number_of(id))).collect();
    DeskError::Refused(match (at, places.is_empty()) {
        (Some(number), false) => {
            format!("There is no other branch beside #{number}, but beside {}.", places.join(", "))
        }
        (Some(_) | None, _) => "There is one branch only. /edit, /regen and /fork make others.".into(),
    })
}

/// Other places of this branch, to be chosen by their number.
fn others(c: &Conversation, than: MessageId) -> String {
    let mut places = c.branchings().into_iter().filter(|id| *id != than).map(|id| c.number_of(id)).peekable();
    match places.peek() {
        None => String::new(),
        Some(first) => {
            let example = format!(": /branch #{first} next");
            let all: Vec<String> = places.map(|n| format!("#{n}")).collect();
            format!(" Others are beside {}{example}", all.join(", "))
        }
    }
}
