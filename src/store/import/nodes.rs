//! Conversations of other programs: nodes that name their parents, of which those without words are stepped over.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::rc::Rc;

use serde::de::MapAccess;

use super::lenient::{Lenient, value};
use super::{Arrival, Said, Theirs};
use crate::core::transcript::{MessageId, Role};
use crate::store::arrival::LeftOut;

/// Thoughts that are gone through once more than for one answer, in bytes, in one conversation. Past it a thought goes to one more
/// answer at most: of many short answers below long thoughts a file could make more than any disk holds.
const AGAIN_BYTES: usize = 16 << 20;
/// What a thought counts for besides its length.
const STEP_BYTES: usize = 64;

/// Who says something, what, what was thought before, and when in seconds.
pub(super) struct Words {
    pub role: Role,
    pub text: String,
    pub thinking: Option<Rc<str>>,
    pub created_s: f64,
    /// It is a thought alone, of the answers below it.
    pub is_thought: bool,
    /// Such a thought, and there is an answer below it.
    pub is_answered: bool,
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
#[derive(Clone, Copy, PartialEq, Eq)]
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
    /// Counted against [`AGAIN_BYTES`].
    again: usize,
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
    /// on what is above them from now on, so that a long row of them is gone through once. `by_answer`: an answer takes the thoughts.
    fn spoken(&mut self, from: Option<NodeId>, by_answer: bool) -> (Option<NodeId>, Vec<Rc<str>>) {
        let (mut passed, mut next) = (Vec::new(), from);
        // One passed before, where they go round: the newest of 1, 2, 4 … passed.
        let (mut before, mut until) = (None, 1);
        let mut go_round = false;
        let found = loop {
            let Some((id, link)) = next.and_then(|id| Some((id, self.links.get(id.index())?))) else { break None };
            if link.words.as_ref().is_some_and(|words| !words.is_thought) {
                break Some(id);
            }
            if before == Some(id) {
                go_round = true;
                break None;
            }
            passed.push(id);
            if passed.len() == until {
                (before, until) = (Some(id), 2 * until);
            }
            next = link.parent;
        };
        let stay = !go_round && self.again <= AGAIN_BYTES;
        let (mut above, mut thoughts) = (found, Vec::new());
        for id in passed.into_iter().rev() {
            let Some(link) = self.links.get_mut(id.index()) else { continue };
            link.parent = above;
            let Some(thought) = &mut link.words else { continue };
            if thought.is_answered || !by_answer {
                self.again += STEP_BYTES + thought.thinking.as_ref().map_or(0, |text| text.len());
            }
            thought.is_answered |= by_answer;
            thoughts.extend(thought.thinking.clone());
            if stay {
                above = Some(id);
            } else {
                self.left_out.thoughts += u64::from(!thought.is_answered);
                link.words = None;
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
            let is_answer = words.role == Role::Assistant;
            let (above, thoughts) = self.spoken(*parent, is_answer);
            if let Some(Link { parent, words: Some(words), .. }) = self.links.get_mut(id.index()) {
                *parent = above;
                if is_answer {
                    let all: Vec<Rc<str>> = thoughts.into_iter().chain(words.thinking.take()).collect();
                    words.thinking = match all.as_slice() {
                        [] => None,
                        [one] => Some(Rc::clone(one)),
                        all => Some(all.join("\n\n").into()),
                    };
                }
            }
            speaking += 1;
        }
        let (head, _) = self.spoken(head, false);
        let mut messages = Vec::with_capacity(speaking);
        for id in order {
            if let Some(link) = self.links.get_mut(id.index())
                && let Some(words) = link.words.take()
            {
                match words.is_thought {
                    true => self.left_out.thoughts += u64::from(!words.is_answered),
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
        let mut nodes = Nodes { ids, links, order, left_out, again: 0, read_as: PhantomData };
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

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes() -> Nodes<Node> {
        let (ids, links, order, left_out) = (HashMap::new(), Vec::new(), Vec::new(), LeftOut::default());
        Nodes { ids, links, order, left_out, again: 0, read_as: PhantomData }
    }

    fn node(parent: &str, role: Role, text: &str, thought: Option<&str>) -> Node {
        let (text, thinking, is_thought) = (text.to_owned(), thought.map(Rc::from), thought.is_some());
        let words = Words { role, text, thinking, created_s: 0.0, is_thought, is_answered: false };
        Node { parent: Some(parent.to_owned()), words: Some(words), left_out: LeftOut::default() }
    }

    #[test]
    fn a_long_thought_above_many_answers_is_copied_so_often_and_no_more() {
        let (mut nodes, thought) = (nodes(), "long ".repeat(1 << 18));
        nodes.put("u".into(), node("", Role::User, "question", None));
        nodes.put("t".into(), node("u", Role::Assistant, "", Some(&thought)));
        for n in 0..100 {
            nodes.put(format!("a{n}"), node("t", Role::Assistant, "answer", None));
        }
        let Theirs { session, left_out } = nodes.conversation("n".into(), None).unwrap();
        assert_eq!((session.messages.len(), left_out), (101, LeftOut::default()));
        assert!(session.messages.iter().skip(1).all(|m| m.parent == Some(session.messages[0].id)));
        let with = session.messages.iter().filter(|m| m.thinking.as_deref() == Some(thought.as_str())).count();
        // The first, those that are counted, the one that is past it, and the last that takes it away.
        assert_eq!(with, 1 + AGAIN_BYTES / (thought.len() + STEP_BYTES) + 2);
    }

    #[test]
    fn silent_ones_that_go_round_are_left_soon() {
        let mut nodes = nodes();
        let silent = |parent: String| Node { parent: Some(parent), ..Node::default() };
        for n in 0..200_000 {
            nodes.put(format!("a{n}"), silent(format!("b{n}")));
            nodes.put(format!("b{n}"), silent(format!("a{n}")));
            nodes.put(format!("m{n}"), node(&format!("a{n}"), Role::User, "word", None));
        }
        // One look at each of them for each ring took hours.
        let Theirs { session, .. } = nodes.conversation("n".into(), None).unwrap();
        assert!(session.messages.len() == 200_000 && session.messages.iter().all(|m| m.parent.is_none()));
    }
}
