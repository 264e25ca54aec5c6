//! The conversations of other programs' exports.

use serde::de::{MapAccess, SeqAccess};

use super::lenient::{Any, Key, Lenient, step_over, value};
use super::nodes::{Node, Nodes, Words, conversation, role};
use super::{Arrival, Said};
use crate::transcript::MessageId;

/// Text in parts: strings, or objects with a text; others, such as pictures, have none.
struct Parts(String);

impl Lenient for Parts {
    fn list<'de, A: SeqAccess<'de>>(mut items: A) -> Result<Option<Parts>, A::Error> {
        let mut all = String::new();
        while let Some(Any(part)) = items.next_element::<Any<Part>>()? {
            match part {
                Some(Part(text)) if all.is_empty() => all = text,
                Some(Part(text)) if !text.is_empty() => {
                    all.push_str("\n\n");
                    all.push_str(&text);
                }
                Some(_) | None => {}
            }
        }
        Ok(Some(Parts(all)))
    }
}

struct Part(String);

impl Lenient for Part {
    fn text(text: &str) -> Option<Part> {
        Some(Part(text.to_owned()))
    }

    fn object<'de, A: MapAccess<'de>>(mut fields: A) -> Result<Option<Part>, A::Error> {
        let mut text = None;
        while let Some(key) = fields.next_key()? {
            match key {
                Key::Text => text = value(&mut fields)?,
                _ => step_over(&mut fields)?,
            }
        }
        Ok(text.map(Part))
    }
}

/// A conversation of `conversations.json`: nodes with parents; empty, system and tool nodes are stepped over.
pub(super) struct ChatGpt(pub Arrival<Said>);

impl Lenient for ChatGpt {
    fn object<'de, A: MapAccess<'de>>(mut fields: A) -> Result<Option<ChatGpt>, A::Error> {
        let (mut title, mut head, mut nodes) = (None, None, None);
        while let Some(key) = fields.next_key()? {
            match key {
                Key::Title => title = value(&mut fields)?,
                Key::CurrentNode => head = value(&mut fields)?,
                Key::Mapping => nodes = value::<Nodes<ChatGptNode>, A>(&mut fields)?,
                _ => step_over(&mut fields)?,
            }
        }
        Ok(nodes.and_then(|nodes| nodes.conversation(title.unwrap_or_default(), head)).map(ChatGpt))
    }
}

struct ChatGptNode(Node);

impl From<ChatGptNode> for Node {
    fn from(node: ChatGptNode) -> Node {
        node.0
    }
}

impl Lenient for ChatGptNode {
    fn object<'de, A: MapAccess<'de>>(mut fields: A) -> Result<Option<ChatGptNode>, A::Error> {
        let mut node = Node::default();
        while let Some(key) = fields.next_key()? {
            match key {
                Key::Parent => node.parent = value(&mut fields)?,
                Key::Message => node.words = value::<ChatGptMessage, A>(&mut fields)?.and_then(|m| m.0),
                _ => step_over(&mut fields)?,
            }
        }
        Ok(Some(ChatGptNode(node)))
    }
}

struct ChatGptMessage(Option<Words>);

impl Lenient for ChatGptMessage {
    fn object<'de, A: MapAccess<'de>>(mut fields: A) -> Result<Option<ChatGptMessage>, A::Error> {
        let (mut author, mut content, mut created) = (None, None, None);
        while let Some(key) = fields.next_key()? {
            match key {
                Key::Author => author = value::<Author, A>(&mut fields)?,
                Key::Content => content = value::<Content, A>(&mut fields)?,
                Key::CreateTime => created = value(&mut fields)?,
                _ => step_over(&mut fields)?,
            }
        }
        let role = author.and_then(|author| role(author.0.as_deref()));
        let text = content.and_then(|content| content.0).map(|parts| parts.0).filter(|text| !text.is_empty());
        let words = role.zip(text).map(|(role, text)| Words { role, text, created_s: created.unwrap_or_default() });
        Ok(Some(ChatGptMessage(words)))
    }
}

struct Author(Option<String>);

impl Lenient for Author {
    fn object<'de, A: MapAccess<'de>>(mut fields: A) -> Result<Option<Author>, A::Error> {
        let mut role = None;
        while let Some(key) = fields.next_key()? {
            match key {
                Key::Role => role = value(&mut fields)?,
                _ => step_over(&mut fields)?,
            }
        }
        Ok(Some(Author(role)))
    }
}

struct Content(Option<Parts>);

impl Lenient for Content {
    fn object<'de, A: MapAccess<'de>>(mut fields: A) -> Result<Option<Content>, A::Error> {
        let mut parts = None;
        while let Some(key) = fields.next_key()? {
            match key {
                Key::Parts => parts = value(&mut fields)?,
                _ => step_over(&mut fields)?,
            }
        }
        Ok(Some(Content(parts)))
    }
}

/// An exported chat: a map of messages with parents, or (older) a plain list; system and tool messages are stepped over.
pub(super) struct OpenWebUi(pub Arrival<Said>);

impl Lenient for OpenWebUi {
    fn object<'de, A: MapAccess<'de>>(mut fields: A) -> Result<Option<OpenWebUi>, A::Error> {
        let (mut title, mut chat) = (None, None);
        while let Some(key) = fields.next_key()? {
            match key {
                Key::Title => title = value(&mut fields)?,
                Key::Chat => chat = value::<Chat, A>(&mut fields)?,
                _ => step_over(&mut fields)?,
            }
        }
        Ok(chat.and_then(|chat| chat.conversation(title)).map(OpenWebUi))
    }
}

#[derive(Default)]
struct Chat {
    title: Option<String>,
    history: History,
    list: Option<Listed>,
}

impl Chat {
    fn conversation(self, outer_title: Option<String>) -> Option<Arrival<Said>> {
        let title = self.title.or(outer_title).unwrap_or_default();
        if let Some(nodes) = self.history.nodes {
            return nodes.conversation(title, self.history.current);
        }
        let messages = self.list?.0.into_iter().zip(1..);
        let messages = messages.map(|(words, n)| words.said(MessageId(n), (n > 1).then_some(MessageId(n - 1))));
        conversation(title, None, messages.collect())
    }
}

impl Lenient for Chat {
    fn object<'de, A: MapAccess<'de>>(mut fields: A) -> Result<Option<Chat>, A::Error> {
        let mut chat = Chat::default();
        while let Some(key) = fields.next_key()? {
            match key {
                Key::Title => chat.title = value(&mut fields)?,
                Key::History => chat.history = value(&mut fields)?.unwrap_or_default(),
                // The open branch once more.
                Key::Messages if chat.history.nodes.is_some() => step_over(&mut fields)?,
                Key::Messages => chat.list = value(&mut fields)?,
                _ => step_over(&mut fields)?,
            }
        }
        Ok(Some(chat))
    }
}

#[derive(Default)]
struct History {
    current: Option<String>,
    nodes: Option<Nodes<OpenWebUiNode>>,
}

impl Lenient for History {
    fn object<'de, A: MapAccess<'de>>(mut fields: A) -> Result<Option<History>, A::Error> {
        let mut history = History::default();
        while let Some(key) = fields.next_key()? {
            match key {
                Key::CurrentId => history.current = value(&mut fields)?,
                Key::Messages => history.nodes = value(&mut fields)?,
                _ => step_over(&mut fields)?,
            }
        }
        Ok(Some(history))
    }
}

/// What is said in a plain list, one after the other.
struct Listed(Vec<Words>);

impl Lenient for Listed {
    fn list<'de, A: SeqAccess<'de>>(mut items: A) -> Result<Option<Listed>, A::Error> {
        let mut all = Vec::new();
        while let Some(Any(node)) = items.next_element::<Any<OpenWebUiNode>>()? {
            all.extend(node.and_then(|node| node.0.words));
        }
        Ok(Some(Listed(all)))
    }
}

struct OpenWebUiNode(Node);

impl From<OpenWebUiNode> for Node {
    fn from(node: OpenWebUiNode) -> Node {
        node.0
    }
}

impl Lenient for OpenWebUiNode {
    fn object<'de, A: MapAccess<'de>>(mut fields: A) -> Result<Option<OpenWebUiNode>, A::Error> {
        let (mut parent, mut by, mut text, mut created) = (None, None, None, None);
        while let Some(key) = fields.next_key()? {
            match key {
                Key::ParentId => parent = value(&mut fields)?,
                Key::Role => by = value::<String, A>(&mut fields)?,
                Key::Content => text = value::<TextOrParts, A>(&mut fields)?,
                Key::Timestamp => created = value(&mut fields)?,
                _ => step_over(&mut fields)?,
            }
        }
        let text = text.map(|text| text.0).unwrap_or_default();
        let words = role(by.as_deref()).map(|role| Words { role, text, created_s: created.unwrap_or_default() });
        Ok(Some(OpenWebUiNode(Node { parent, words })))
    }
}

/// A text, or one in parts.
struct TextOrParts(String);

impl Lenient for TextOrParts {
    fn text(text: &str) -> Option<TextOrParts> {
        Some(TextOrParts(text.to_owned()))
    }

    fn list<'de, A: SeqAccess<'de>>(items: A) -> Result<Option<TextOrParts>, A::Error> {
        Ok(Parts::list(items)?.map(|parts| TextOrParts(parts.0)))
    }
}
