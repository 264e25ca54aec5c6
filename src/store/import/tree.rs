//! A conversation of another program: nodes that name their parents. Nodes without text are skipped.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

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

#[derive(Default)]
pub(super) enum Content {
    #[default]
    Nothing,
    /// A thought alone, of the answers below it.
    Thought {
        text: String,
        answered: bool,
    },
    Words(Box<Words>),
}

#[derive(Default)]
struct Node {
    parent: Option<usize>,
    content: Content,
    climb: u32,
}

#[derive(Default)]
pub(super) struct Tree<'a> {
    nodes: Vec<(Node, Option<&'a str>)>,
    by_name: HashMap<&'a str, usize>,
    pub left_out: LeftOut,
    climbs: u32,
    copied: usize,
}

impl<'a> Tree<'a> {
    /// Adds a node; a second one of the same name replaces the first.
    pub fn put(&mut self, name: &'a str, parent: Option<&'a str>, content: Content) {
        let leads_nowhere = parent.is_none() && matches!(content, Content::Nothing);
        let node = (Node { content, ..Node::default() }, parent);
        match self.by_name.entry(name) {
            Entry::Occupied(at) => {
                if let Some(there) = self.nodes.get_mut(*at.get()) {
                    *there = node;
                }
            }
            Entry::Vacant(_) if leads_nowhere => {}
            Entry::Vacant(at) => {
                at.insert(self.nodes.len());
                self.nodes.push(node);
            }
        }
    }

    pub fn follow(&mut self, words: Words) {
        let parent = self.nodes.len().checked_sub(1);
        self.nodes.push((Node { parent, content: Content::Words(Box::new(words)), climb: 0 }, None));
    }

    /// The messages; `head` names the session's head, by default the last message.
    pub fn conversation(mut self, name: &str, head: Option<&str>) -> (SessionJson, LeftOut) {
        let head = head.and_then(|head| self.by_name.get(head).copied());
        for (node, parent) in &mut self.nodes {
            if let Some(parent) = parent.take() {
                node.parent = self.by_name.get(parent).copied();
            }
        }
        self.by_name = HashMap::new();
        for at in 0..self.nodes.len() {
            let Some((Node { parent, content: Content::Words(words), .. }, _)) = self.nodes.get(at) else { continue };
            let is_answer = words.role == Role::Assistant;
            let (above, mut thoughts) = self.climb(*parent, is_answer);
            let Some((Node { parent, content: Content::Words(words), .. }, _)) = self.nodes.get_mut(at) else {
                continue;
            };
            *parent = above;
            if !thoughts.is_empty() {
                thoughts.extend(Some(std::mem::take(&mut words.thinking)).filter(|text| !text.is_empty()));
                words.thinking = thoughts.join("\n\n");
            }
        }
        let (head, _) = self.climb(head, false);
        let id = |at: usize| MessageId(at as i64 + 1);
        let mut messages = Vec::new();
        for (at, (node, _)) in self.nodes.into_iter().enumerate() {
            match node.content {
                Content::Nothing => {}
                Content::Thought { answered, .. } => self.left_out.thoughts += u64::from(!answered),
                Content::Words(words) => {
                    let Words { role, text, thinking, created_ms } = *words;
                    let parent = node.parent.map(id);
                    let meta = MessageMeta::default();
                    messages.push(Message { id: id(at), parent, role, text, thinking, created_ms, meta });
                }
            }
        }
        let head = head.map(id).or(messages.last().map(|m| m.id));
        (SessionJson::new(name.to_owned(), head, messages), self.left_out)
    }

    /// The nearest node from here upwards that has text, and the thoughts on the way, uppermost first. Passed nodes
    /// then point there directly, so that a long row of empty nodes is climbed once; a ring of them is cut.
    fn climb(&mut self, from: Option<usize>, by_answer: bool) -> (Option<usize>, Vec<String>) {
        self.climbs += 1;
        let (mut passed, mut next) = (Vec::new(), from);
        let found = loop {
            let Some((at, (node, _))) = next.and_then(|at| Some((at, self.nodes.get_mut(at)?))) else { break None };
            if matches!(node.content, Content::Words(_)) {
                break Some(at);
            }
            if std::mem::replace(&mut node.climb, self.climbs) == self.climbs {
                break None;
            }
            passed.push(at);
            next = node.parent;
        };
        let (mut above, mut thoughts) = (found, Vec::new());
        for at in passed.into_iter().rev() {
            let Some((node, _)) = self.nodes.get_mut(at) else { continue };
            node.parent = above;
            let Content::Thought { text, answered } = &mut node.content else { continue };
            if *answered || !by_answer {
                self.copied += STEP_BYTES + text.len();
            }
            if by_answer {
                *answered = true;
                thoughts.push(text.clone());
            }
            if self.copied <= COPIED_BYTES {
                above = Some(at);
            } else {
                self.left_out.thoughts += u64::from(!*answered);
                node.content = Content::Nothing;
            }
        }
        (found, thoughts)
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
        tree.put("u", Some(""), words(Role::User, "question"));
        tree.put("t", Some("u"), Content::Thought { text: thought.clone(), answered: false });
        let names: Vec<String> = (0..100).map(|n| format!("a{n}")).collect();
        for name in &names {
            tree.put(name, Some("t"), words(Role::Assistant, "answer"));
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
            tree.put(a, Some(b), Content::Nothing);
            tree.put(b, Some(a), Content::Nothing);
            tree.put(m, Some(a), words(Role::User, "word"));
        }
        let (session, _) = tree.conversation("n", None);
        assert!(session.messages.len() == 200_000 && session.messages.iter().all(|m| m.parent.is_none()));
    }
}
