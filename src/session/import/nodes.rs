//! Conversations of other programs: nodes that name their parents, of which those without words are stepped over.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::marker::PhantomData;
use std::num::NonZeroU32;

use serde::de::MapAccess;

use super::lenient::{Lenient, value};
use super::{Arrival, Said, Theirs};
use crate::session::arrival::LeftOut;
use crate::transcript::{MessageId, Role};

/// Who says something, what, what was thought before, and when in seconds.
pub(super) struct Words {
    pub role: Role,
    pub text: String,
    pub thinking: Option<Box<str>>,
    pub created_s: f64,
    /// It is a thought alone, of the answer below it.
    pub is_thought: bool,
}

impl Words {
    pub(super) fn said(self, id: MessageId, parent: Option<MessageId>) -> Said {
        let Words { role, text, thinking, created_s, .. } = self;
        Said { id, parent, role, text, thinking, created_ms: (created_s * 1000.0) as i64 }
    }
}

/// System and tool messages are nobody's.
pub(super) fn role(name: Option<&str>) -> Option<Role> {
    match name {
        Some("user") => Some(Role::User),
        Some("assistant") => Some(Role::Assistant),
        _ => None,
    }
}

/// A message that is nobody's is left out, as what it is.
pub(super) fn unheard(role: Option<&str>, says_something: bool) -> LeftOut {
    let one = u64::from(says_something);
    match role {
        Some("tool" | "function") => LeftOut { tools: 1, ..LeftOut::default() },
        Some("system") => LeftOut { system: one, ..LeftOut::default() },
        Some(_) | None => LeftOut { other: one, ..LeftOut::default() },
    }
}

/// A node of a conversation as it stands in a file.
#[derive(Default)]
pub(super) struct Node {
    pub parent: Option<String>,
    pub words: Option<Words>,
    pub left_out: LeftOut,
}

/// Number of a node's name in its conversation.
#[derive(Clone, Copy)]
struct NodeId(NonZeroU32);

impl NodeId {
    fn index(self) -> usize {
        self.0.get() as usize - 1
    }

    fn message(self) -> MessageId {
        MessageId(i64::from(self.0.get()))
    }
}

/// Nodes that name their parents, as small as can be: there may be millions, of which most say nothing.
pub(super) struct Nodes<N> {
    ids: HashMap<Box<str>, NodeId>,
    /// By their number; also those that are only named as a parent.
    links: Vec<Link>,
    /// In the order of the file.
    order: Vec<NodeId>,
    left_out: LeftOut,
    read_as: PhantomData<N>,
}

#[derive(Default)]
struct Link {
    parent: Option<NodeId>,
    in_file: bool,
    words: Option<Box<Words>>,
}

impl<N> Nodes<N> {
    /// The number of a name; `None` where there are more of them than are counted.
    fn id(&mut self, name: String) -> Option<NodeId> {
        let next = u32::try_from(self.links.len() + 1).ok().and_then(NonZeroU32::new).map(NodeId)?;
        match self.ids.entry(name.into_boxed_str()) {
            Entry::Occupied(there) => Some(*there.get()),
            Entry::Vacant(free) => {
                self.links.push(Link::default());
                Some(*free.insert(next))
            }
        }
    }

    fn put(&mut self, name: String, node: Node) {
        self.left_out.add(node.left_out);
        // Without words and a parent it leads nowhere, like one that is not there.
        let leads_nowhere = node.parent.is_none() && node.words.is_none();
        if leads_nowhere && !self.ids.contains_key(name.as_str()) {
            return;
        }
        let Some(id) = self.id(name) else { return };
        let parent = node.parent.and_then(|parent| self.id(parent));
        let Some(link) = self.links.get_mut(id.index()) else { return };
        let before = std::mem::replace(link, Link { parent, in_file: true, words: node.words.map(Box::new) });
        if !before.in_file {
            self.order.push(id);
        }
    }

    /// The nearest node from here upwards that says something, and what was only thought below it. The silent ones on the way hang
    /// on it from now on, so that a long row of them is gone through once.
    fn spoken(&mut self, from: Option<NodeId>) -> (Option<NodeId>, Vec<Box<str>>) {
        let (mut silent, mut next) = (Vec::new(), from);
        let found = loop {
            let Some((id, link)) = next.and_then(|id| Some((id, self.links.get(id.index())?))) else { break None };
            if link.words.as_ref().is_some_and(|words| !words.is_thought) {
                break Some(id);
            }
            // They go round.
            if silent.len() > self.links.len() {
                break None;
            }
            silent.push(id);
            next = link.parent;
        };
        let mut thoughts = Vec::new();
        for id in silent.into_iter().rev() {
            if let Some(link) = self.links.get_mut(id.index()) {
                link.parent = found;
                thoughts.extend(link.words.take().and_then(|words| words.thinking));
            }
        }
        (found, thoughts)
    }

    /// The conversation of those that say something. `head`: where it is read on; otherwise at its last message.
    pub(super) fn conversation(mut self, name: String, head: Option<String>) -> Option<Theirs> {
        let head = head.and_then(|head| self.ids.get(head.as_str()).copied());
        self.ids = HashMap::new();
        let order = std::mem::take(&mut self.order);
        let mut speaking = 0;
        for id in &order {
            let Some(Link { parent, words: Some(words), .. }) = self.links.get(id.index()) else { continue };
            if words.is_thought {
                continue;
            }
            let (above, thoughts) = self.spoken(*parent);
            if let Some(Link { parent, words: Some(words), .. }) = self.links.get_mut(id.index()) {
                *parent = above;
                match words.role {
                    Role::Assistant if !thoughts.is_empty() => {
                        let all: Vec<Box<str>> = thoughts.into_iter().chain(words.thinking.take()).collect();
                        words.thinking = Some(all.join("\n\n").into_boxed_str());
                    }
                    Role::Assistant | Role::User | Role::System | Role::Document => {
                        self.left_out.thoughts += thoughts.len() as u64;
                    }
                }
            }
            speaking += 1;
        }
        let (head, thoughts) = self.spoken(head);
        self.left_out.thoughts += thoughts.len() as u64;
        let mut messages = Vec::with_capacity(speaking);
        for id in order {
            if let Some(link) = self.links.get_mut(id.index())
                && let Some(words) = link.words.take()
            {
                match words.is_thought {
                    true => self.left_out.thoughts += 1,
                    false => messages.push(words.said(id.message(), link.parent.map(NodeId::message))),
                }
            }
        }
        conversation(name, head.map(NodeId::message), messages, self.left_out)
    }
}

impl<N: Lenient + Into<Node>> Lenient for Nodes<N> {
    fn object<'de, A: MapAccess<'de>>(mut fields: A) -> Result<Option<Self>, A::Error> {
        let (ids, links, order, left_out) = (HashMap::new(), Vec::new(), Vec::new(), LeftOut::default());
        let mut nodes = Nodes { ids, links, order, left_out, read_as: PhantomData };
        while let Some(name) = fields.next_key::<String>()? {
            let node = value::<N, A>(&mut fields)?;
            nodes.put(name, node.map(N::into).unwrap_or_default());
        }
        Ok(Some(nodes))
    }
}

pub(super) fn conversation(
    name: String,
    head: Option<MessageId>,
    messages: Vec<Said>,
    left_out: LeftOut,
) -> Option<Theirs> {
    let head = head.or(messages.last().map(|m| m.id));
    (!messages.is_empty()).then(|| Theirs {
        session: Arrival { name, title: None, settings: serde_json::Value::Null, head, messages, marks: Vec::new() },
        left_out,
    })
}
