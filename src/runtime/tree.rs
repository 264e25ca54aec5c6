//! The open conversation as a tree of messages with a head. Pure: no store, engine or clock.
//!
//! The model reads the path from the root to the head. Nothing here removes a message: undo moves the head, edits and
//! regeneration add siblings. Children are ordered by message id, which is the order of creation.

mod timeline;

use std::collections::{BTreeMap, HashSet};
use std::iter::successors;

use crate::core::transcript::{Message, MessageId, Role};
pub use timeline::{first_words, shortened, title_of};

#[derive(Clone, Debug, Default)]
pub struct Tree {
    messages: BTreeMap<MessageId, Message>,
    children: BTreeMap<Option<MessageId>, Vec<MessageId>>,
    head: Option<MessageId>,
    /// Heads before each undo, newest last; `/redo` returns to them.
    left: Vec<MessageId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undo {
    pub head: Option<MessageId>,
    /// Number of undone exchanges: fewer than requested if the conversation is shorter.
    pub exchanges: u64,
    /// Text of the oldest undone question, for the input. `None` for a document or a damaged message.
    pub text: Option<String>,
}

impl Tree {
    /// A head that is not among the messages is ignored.
    pub fn new(messages: Vec<Message>, head: Option<MessageId>) -> Tree {
        let mut c = Tree::default();
        for m in messages {
            c.insert(m);
        }
        c.head = head.filter(|h| c.messages.contains_key(h));
        c
    }

    fn insert(&mut self, message: Message) {
        let siblings = self.children.entry(message.parent).or_default();
        if let Err(at) = siblings.binary_search(&message.id) {
            siblings.insert(at, message.id);
        }
        self.messages.insert(message.id, message);
    }

    pub fn add(&mut self, message: Message) {
        self.head = Some(message.id);
        self.left.clear();
        self.insert(message);
    }

    /// Replaces an existing message; ignores any other.
    pub fn amend(&mut self, message: Message) {
        if self.messages.contains_key(&message.id) {
            self.restore(message);
        }
    }

    /// Appends new words to a message in progress; `of` holds its current numbers.
    pub fn grow(&mut self, of: &Message, thinking: &str, text: &str) {
        if let Some(message) = self.messages.get_mut(&of.id) {
            message.thinking.push_str(thinking);
            message.text.push_str(text);
            let (to, from) = (&mut message.meta, &of.meta);
            to.completion_tokens = from.completion_tokens;
            (to.thought_ms, to.thought_tokens) = (from.thought_ms, from.thought_tokens);
        }
    }

    /// Adds a message from the store, or replaces its partial copy.
    pub fn restore(&mut self, message: Message) {
        if let Some(before) = self.messages.get(&message.id).filter(|before| before.parent != message.parent)
            && let Some(siblings) = self.children.get_mut(&before.parent)
        {
            siblings.retain(|id| *id != message.id);
        }
        self.insert(message);
    }

    pub fn head(&self) -> Option<MessageId> {
        self.head
    }

    pub fn get(&self, id: MessageId) -> Option<&Message> {
        self.messages.get(&id)
    }

    pub fn newest(&self) -> Option<MessageId> {
        self.messages.keys().next_back().copied()
    }

    pub fn all(&self) -> impl Iterator<Item = &Message> {
        self.messages.values()
    }

    /// Whether no branch holds a message other than a system text.
    pub fn is_empty(&self) -> bool {
        self.messages.values().all(|m| m.role == Role::System)
    }

    pub fn path_to(&self, to: Option<MessageId>) -> Vec<&Message> {
        let up = successors(to.and_then(|to| self.messages.get(&to)), |m| self.messages.get(&m.parent?));
        let mut path: Vec<&Message> = up.take(self.messages.len() + 1).collect();
        // The path is longer than the tree: damaged rows form a cycle, and each message counts once.
        if path.len() > self.messages.len() {
            let mut seen = HashSet::new();
            path.retain(|m| seen.insert(m.id));
        }
        path.reverse();
        path
    }

    pub fn path(&self) -> Vec<&Message> {
        self.path_to(self.head)
    }

    pub fn at_number(&self, number: u64) -> Option<&Message> {
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        self.path().get(index).copied()
    }

    /// The number of a message on its own branch, from 1.
    pub fn number_of(&self, id: MessageId) -> u64 {
        self.path_to(Some(id)).len() as u64
    }

    /// Messages with the same parent as `id`, including itself.
    pub fn siblings(&self, id: MessageId) -> &[MessageId] {
        self.messages.get(&id).and_then(|m| self.children.get(&m.parent)).map_or(&[], Vec::as_slice)
    }

    /// Messages directly below `id`; for `None`, the roots.
    pub fn children(&self, id: Option<MessageId>) -> &[MessageId] {
        self.children.get(&id).map_or(&[], Vec::as_slice)
    }

    /// The last message of the open branch that has siblings.
    pub fn branching(&self) -> Option<MessageId> {
        self.path().iter().map(|m| m.id).rfind(|id| self.siblings(*id).len() > 1)
    }

    /// The children of the head if there are several, as after an undo to a fork.
    pub fn branches_below(&self) -> Option<&[MessageId]> {
        Some(self.children(self.head)).filter(|below| below.len() > 1)
    }

    /// `(2, 3)`: second of three branches at the nearest branching point; `(1, 1)` without any.
    pub fn branch_position(&self) -> (u64, u64) {
        let Some(at) = self.branching() else { return (1, 1) };
        let siblings = self.siblings(at);
        let index = siblings.iter().position(|s| *s == at).unwrap_or(0);
        (index as u64 + 1, siblings.len() as u64)
    }

    /// The leaf reached from `id` along the newest children.
    pub fn newest_leaf(&self, id: MessageId) -> MessageId {
        let down = successors(Some(id), |at| self.children(Some(*at)).last().copied());
        // The bound ends the walk if damaged rows form a cycle.
        down.take(self.messages.len() + 1).last().unwrap_or(id)
    }

    /// The end of the exchange that `id` begins: for a question its newest answer, otherwise itself.
    pub fn exchange_end(&self, id: MessageId) -> MessageId {
        let is_a = |id: MessageId, role| self.messages.get(&id).is_some_and(|m| m.role == role);
        let mut below = self.children(Some(id)).iter().rev().copied().filter(|_| is_a(id, Role::User));
        below.find(|child| is_a(*child, Role::Assistant)).unwrap_or(id)
    }

    /// Restores the heads of an earlier run, newest last, for [`Tree::redo`].
    pub fn stood_at(&mut self, heads: Vec<MessageId>) {
        self.left = heads;
    }

    /// Moves the head. Records the old one for [`Tree::redo`].
    pub fn go(&mut self, head: Option<MessageId>) {
        if head == self.head || head.is_some_and(|h| !self.messages.contains_key(&h)) {
            return;
        }
        if let Some(old) = self.head {
            self.left.push(old);
        }
        self.head = head;
    }

    /// The result of undoing `count` exchanges; `None` if there is nothing to undo. A system text stays.
    pub fn undo(&self, count: u64) -> Option<Undo> {
        let path = self.path();
        let begun = path.iter().rev().filter(|m| m.begins_exchange());
        let (exchanges, oldest) = (1..=count).zip(begun).last()?;
        let text = (oldest.role == Role::User && !oldest.meta.damaged).then(|| oldest.text.clone());
        Some(Undo { head: oldest.parent, exchanges, text })
    }

    /// The target of taking back the last `count` undos, each whatever its length: the recorded heads below the head.
    /// Without one, an exchange along the newest line counts as an undo.
    pub fn redo(&self, count: u64) -> Option<MessageId> {
        let mut to = self.head;
        let mut left = self.left.iter().rev();
        for _ in 0..count {
            let undone = left.find_map(|l| self.line_below(to, *l));
            let newest = || {
                let line = self.line_below(to, self.newest_leaf(*self.children(to).last()?))?;
                let second = line.iter().enumerate().filter(|(_, m)| m.begins_exchange()).nth(1);
                let end = second.map_or(line.len(), |(at, _)| at);
                Some(line.into_iter().take(end).collect())
            };
            let Some(line) = undone.or_else(newest) else { break };
            to = line.last().map(|m| m.id);
        }
        to.filter(|_| to != self.head)
    }

    /// The messages after `from` up to `to`; `None` if `to` is not below `from`.
    fn line_below(&self, from: Option<MessageId>, to: MessageId) -> Option<Vec<&Message>> {
        let mut line = self.path_to(Some(to));
        let start = from.map_or(Some(0), |from| line.iter().position(|m| m.id == from).map(|at| at + 1))?;
        line.drain(..start);
        Some(line).filter(|line| !line.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::transcript::MessageMeta;

    fn message(id: i64, parent: Option<i64>, role: Role, text: &str) -> Message {
        Message {
            id: MessageId(id),
            parent: parent.map(MessageId),
            role,
            text: text.into(),
            thinking: String::new(),
            created_ms: id,
            meta: MessageMeta::default(),
        }
    }

    /// System, then two exchanges; the second question has two answers, and the first a second line below it.
    pub(super) fn tree() -> Tree {
        let m = vec![
            message(1, None, Role::System, "Be brief."),
            message(2, Some(1), Role::User, "one"),
            message(3, Some(2), Role::Assistant, "1"),
            message(4, Some(3), Role::User, "two"),
            message(5, Some(4), Role::Assistant, "2"),
            message(6, Some(4), Role::Assistant, "zwei"),
            message(7, Some(3), Role::User, "edited"),
            message(8, Some(7), Role::Assistant, "e"),
        ];
        Tree::new(m, Some(MessageId(6)))
    }

    #[test]
    fn undo_steps_over_whole_exchanges_and_keeps_the_system_text() {
        let c = tree();
        let one = c.undo(1).unwrap();
        assert_eq!((one.head, one.exchanges, one.text.as_deref()), (Some(MessageId(3)), 1, Some("two")));
        let all = c.undo(9).unwrap();
        assert_eq!((all.head, all.exchanges, all.text.as_deref()), (Some(MessageId(1)), 2, Some("one")));
        assert!(Tree::default().undo(1).is_none());
    }

    #[test]
    fn redo_returns_to_the_line_that_was_left_not_to_the_newest() {
        let mut c = tree();
        c.go(Some(MessageId(1)));
        assert_eq!(c.redo(1), Some(MessageId(6)), "one redo takes back one undo");
        // Two undos, the second of several exchanges.
        let mut steps = tree();
        steps.go(Some(MessageId(3)));
        steps.go(Some(MessageId(1)));
        assert_eq!((steps.redo(1), steps.redo(2)), (Some(MessageId(3)), Some(MessageId(6))));
        // After a restart, redo follows the recorded heads, otherwise the newest line.
        let mut fresh = Tree::new(c.all().cloned().collect(), Some(MessageId(1)));
        assert_eq!(fresh.redo(5), Some(MessageId(8)));
        // The last one is the present head; message 99 does not exist.
        fresh.stood_at([8, 99, 6, 1].map(MessageId).into());
        assert_eq!(fresh.redo(5), Some(MessageId(6)));
        assert_eq!(tree().redo(1), None);
    }

    #[test]
    fn the_nearest_branching_point_gives_the_branch_number() {
        let mut c = tree();
        assert_eq!(c.branch_position(), (2, 2));
        c.go(Some(MessageId(8)));
        assert_eq!(c.branching(), Some(MessageId(7)));
        assert_eq!(c.branch_position(), (2, 2));
        c.go(Some(MessageId(3)));
        assert_eq!(c.branch_position(), (1, 1));
    }

    #[test]
    fn adding_forgets_what_could_be_redone() {
        let mut c = tree();
        c.go(Some(MessageId(3)));
        c.add(message(9, Some(3), Role::User, "other"));
        assert_eq!(c.redo(1), None);
        assert_eq!(c.at_number(3).unwrap().text, "1");
        assert_eq!(c.number_of(MessageId(9)), 4);
    }

    #[test]
    fn a_loop_in_damaged_rows_ends() {
        let c = Tree::new(
            vec![message(1, Some(2), Role::User, "a"), message(2, Some(1), Role::User, "b")],
            Some(MessageId(2)),
        );
        assert_eq!(c.path().len(), 2);
        assert!([1, 2].map(MessageId).contains(&c.newest_leaf(MessageId(1))));
        // A message above a cycle: each message of the cycle appears once.
        let ring = [(1, 3), (2, 1), (3, 2), (4, 3)].map(|(id, parent)| message(id, Some(parent), Role::User, "a"));
        let c = Tree::new(ring.into(), Some(MessageId(4)));
        let path: Vec<i64> = c.path().iter().map(|m| m.id.0).collect();
        assert_eq!(path, [1, 2, 3, 4]);
    }

    #[test]
    fn a_message_below_one_with_a_greater_id_has_all_messages_before_it() {
        // Another process may have reserved its ids later and saved more messages before this one.
        let rows = [(900, None, Role::User), (901, Some(900), Role::Assistant), (5, Some(901), Role::User)];
        let mut c = Tree::new(rows.map(|(id, parent, role)| message(id, parent, role, "a")).into(), Some(MessageId(5)));
        let path = |c: &Tree| c.path().iter().map(|m| m.id.0).collect::<Vec<_>>();
        assert_eq!(path(&c), [900, 901, 5]);
        assert_eq!((c.number_of(MessageId(5)), c.newest()), (3, Some(MessageId(901))));
        // The complete message may have another parent than its partial copy.
        c.restore(message(5, Some(900), Role::User, "b"));
        assert_eq!((path(&c), c.children(Some(MessageId(901))).len()), (vec![900, 5], 0));
    }
}
