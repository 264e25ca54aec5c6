//! A conversation of another program: nodes that name their parents. Nodes without text are skipped.

use std::collections::{HashMap, HashSet};

use crate::core::transcript::{Message, MessageId, MessageMeta, Role};
use crate::store::arrival::LeftOut;
use crate::store::export::SessionJson;

/// Bytes of thoughts that are copied to further answers of one conversation. Beyond it one more answer at most
/// receives a thought: many short answers below long thoughts would make a small file larger than any disk.
const COPIED_BYTES: usize = 16 << 20;
const STEP_BYTES: usize = 64;

pub(super) struct Words {
    pub role: Role,
    pub text: String,
    pub thinking: String,
    pub created_ms: i64,
}

impl Words {
    /// The message of a node, below that of another one.
    pub fn message(self, at: usize, above: Option<usize>) -> Message {
        let Words { role, text, thinking, created_ms } = self;
        let meta = MessageMeta::default();
        Message { id: id(at), parent: above.map(id), role, text, thinking, created_ms, meta }
    }
}

fn id(at: usize) -> MessageId {
    MessageId(at as i64 + 1)
}

#[derive(Default)]
pub(super) enum Content {
    #[default]
    Nothing,
    /// A thought alone, of the answers below it.
    Thought(String),
    Words(Box<Words>),
}

#[derive(Default)]
struct Node {
    parent: Option<String>,
    content: Content,
}

#[derive(Default)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    by_name: HashMap<String, usize>,
    pub left_out: LeftOut,
}

/// The nearest node with words above a node, and the nearest thought between the two.
#[derive(Clone, Copy, Default)]
struct Above {
    words: Option<usize>,
    thought: Option<usize>,
}

impl Tree {
    /// Adds a node; a second one of the same name replaces the first, which is counted unless it is empty.
    pub fn put(&mut self, name: String, parent: Option<String>, content: Content) {
        let node = Node { parent, content };
        let at = *self.by_name.entry(name).or_insert(self.nodes.len());
        match self.nodes.get_mut(at) {
            Some(there) => {
                self.left_out.other += u64::from(!matches!(there.content, Content::Nothing));
                *there = node;
            }
            None => self.nodes.push(node),
        }
    }

    /// The messages; `head` names the session's head, by default the last message.
    pub fn conversation(mut self, name: &str, head: Option<String>) -> (SessionJson, LeftOut) {
        let above = self.above();
        let head = head.and_then(|head| self.by_name.get(&head).copied());
        let is_words = |at: &usize| self.nodes.get(*at).is_some_and(|node| matches!(node.content, Content::Words(_)));
        let head = head.filter(is_words).or_else(|| above.get(head?)?.words);
        let (mut messages, mut answered, mut copied) = (Vec::new(), HashSet::new(), 0);
        for (at, Above { words: above_it, thought }) in above.iter().copied().enumerate() {
            let Some(Node { content: content @ Content::Words(_), .. }) = self.nodes.get_mut(at) else { continue };
            let Content::Words(mut words) = std::mem::take(content) else { continue };
            let (mut thoughts, mut next) = (Vec::new(), thought.filter(|_| words.role == Role::Assistant));
            while let Some(thought) = next
                && let Some(Node { content: Content::Thought(text), .. }) = self.nodes.get(thought)
            {
                if !answered.insert(thought) {
                    if copied > COPIED_BYTES {
                        break;
                    }
                    copied += STEP_BYTES + text.len();
                }
                thoughts.push(text.clone());
                next = above.get(thought).and_then(|above| above.thought);
            }
            thoughts.reverse();
            thoughts.extend(Some(std::mem::take(&mut words.thinking)).filter(|text| !text.is_empty()));
            words.thinking = thoughts.join("\n\n");
            messages.push(words.message(at, above_it));
        }
        let thoughts = self.nodes.iter().filter(|node| matches!(node.content, Content::Thought(_))).count();
        self.left_out.thoughts += (thoughts - answered.len()) as u64;
        let head = head.map(id).or(messages.last().map(|m| m.id));
        (SessionJson::new(name.to_owned(), head, messages), self.left_out)
    }

    /// For each node. Each is passed once, however they follow each other; a ring without words is cut.
    fn above(&self) -> Vec<Above> {
        let parent = |at: usize| self.by_name.get(self.nodes.get(at)?.parent.as_ref()?).copied();
        let mut found: HashMap<usize, Above> = HashMap::with_capacity(self.nodes.len());
        let mut seen = HashSet::with_capacity(self.nodes.len());
        for at in 0..self.nodes.len() {
            let up = std::iter::successors(Some(at), |at| parent(*at));
            let passed: Vec<usize> = up.take_while(|at| seen.insert(*at)).collect();
            for at in passed.into_iter().rev() {
                let above = parent(at).map_or(Some(Above::default()), |parent| {
                    let further = found.get(&parent).copied();
                    match self.nodes.get(parent)?.content {
                        Content::Words(_) => Some(Above { words: Some(parent), thought: None }),
                        Content::Thought(_) => further.map(|above| Above { thought: Some(parent), ..above }),
                        Content::Nothing => further,
                    }
                });
                found.extend(above.map(|above| (at, above)));
            }
        }
        (0..self.nodes.len()).map(|at| found.get(&at).copied().unwrap_or_default()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(role: Role, text: &str) -> Content {
        Content::Words(Box::new(Words { role, text: text.into(), thinking: String::new(), created_ms: 0 }))
    }

    #[test]
    fn a_long_thought_above_many_answers_is_copied_so_often_and_no_more() {
        let (mut tree, thought) = (Tree::default(), "long ".repeat(1 << 18));
        tree.put("u".into(), Some("".into()), words(Role::User, "question"));
        tree.put("t".into(), Some("u".into()), Content::Thought(thought.clone()));
        let names: Vec<String> = (0..100).map(|n| format!("a{n}")).collect();
        for name in &names {
            tree.put(name.clone(), Some("t".into()), words(Role::Assistant, "answer"));
        }
        let (session, left_out) = tree.conversation("n", None);
        assert_eq!((session.messages.len(), left_out), (101, LeftOut::default()));
        assert!(session.messages.iter().skip(1).all(|m| m.parent == Some(session.messages[0].id)));
        let with = session.messages.iter().filter(|m| m.thinking == thought).count();
        // The first answer, those within the limit, and the one that passes it.
        assert_eq!(with, 1 + COPIED_BYTES / (thought.len() + STEP_BYTES) + 1);
    }

    #[test]
    fn rings_of_silent_nodes_are_left_soon() {
        let names: Vec<[String; 3]> = (0..200_000).map(|n| ["a", "b", "m"].map(|of| format!("{of}{n}"))).collect();
        let mut tree = Tree::default();
        for [a, b, m] in &names {
            tree.put(a.clone(), Some(b.clone()), Content::Nothing);
            tree.put(b.clone(), Some(a.clone()), Content::Nothing);
            tree.put(m.clone(), Some(a.clone()), words(Role::User, "word"));
        }
        let (session, _) = tree.conversation("n", None);
        assert!(session.messages.len() == 200_000 && session.messages.iter().all(|m| m.parent.is_none()));
    }
}
