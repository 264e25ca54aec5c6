//! `/branch`: moves between branches of the conversation.
//!
//! The branches are the continuations of the head if there are several, as after an undo to a fork, else the siblings
//! of the nearest message that has some, as in the header. A branch opens at its newest leaf.

use super::{Done, Verb, refused};
use crate::config::commands::{BranchTarget, Sibling};

impl Verb {
    pub async fn branch(&mut self, target: BranchTarget) -> Done {
        match target {
            BranchTarget::Name(name) => match self.here.labels.get(&name).copied() {
                Some(id) => self.go_to(id, &format!("At \"{name}\",")).await,
                None => self.resume(name).await,
            },
            BranchTarget::Sibling(sibling) => self.go_to_sibling(sibling).await,
        }
    }

    async fn go_to_sibling(&mut self, sibling: Sibling) -> Done {
        self.here.may_write()?;
        let c = &self.here.tree;
        let (siblings, here) = match (c.branches_below(), c.branching()) {
            (Some(below), _) => (below, None),
            (None, Some(at)) => (c.siblings(at), c.siblings(at).iter().position(|s| *s == at)),
            (None, None) => return refused("There is only one branch. /edit and /regen make others."),
        };
        let of = siblings.len();
        let to = match sibling {
            Sibling::Next => here.map_or(0, |here| (here + 1) % of),
            Sibling::Prev => (here.unwrap_or(0) + of - 1) % of,
            Sibling::Number(n) => usize::try_from(n).unwrap_or(of + 1).wrapping_sub(1),
        };
        let Some(branch) = siblings.get(to) else {
            return refused(format!("There are branches 1 to {of} here."));
        };
        let leaf = c.newest_leaf(*branch);
        self.move_head(Some(leaf))?;
        self.go(Some(leaf), &format!("Branch {}/{of}, at", to + 1), "").await
    }
}
