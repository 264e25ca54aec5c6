//! The conversations of other programs' exports.

use std::rc::Rc;

use serde::de::{MapAccess, SeqAccess};

use super::Theirs;
use super::answer::{Split, split_answer};
use super::contents::{Attached, Parts, Thoughts, code_block};
use super::lenient::{Any, Key, Lenient, step_over, value};
use super::nodes::{Node, Nodes, Words, conversation, role, unheard};
use crate::core::transcript::{MessageId, Role};
use crate::store::arrival::LeftOut;

/// A conversation of `conversations.json`: nodes with parents; empty, system and tool nodes are stepped over.
pub(super) struct ChatGpt(pub Theirs);

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
                Key::Message => {
                    let message = value::<ChatGptMessage, A>(&mut fields)?;
                    (node.words, node.left_out) = message.map_or_else(Default::default, |m| (m.0, m.1));
                }
                _ => step_over(&mut fields)?,
            }
        }
        Ok(Some(ChatGptNode(node)))
    }
}

struct ChatGptMessage(Option<Words>, LeftOut);

impl Lenient for ChatGptMessage {
    fn object<'de, A: MapAccess<'de>>(mut fields: A) -> Result<Option<ChatGptMessage>, A::Error> {
        let (mut author, mut content, mut created, mut metadata) = (None, None, None, None);
        while let Some(key) = fields.next_key()? {
            match key {
                Key::Author => author = value::<Author, A>(&mut fields)?,
                Key::Content => content = value::<Content, A>(&mut fields)?,
                Key::CreateTime => created = value(&mut fields)?,
                Key::Metadata => metadata = value::<Metadata, A>(&mut fields)?,
                _ => step_over(&mut fields)?,
            }
        }
        let by = author.and_then(|author| author.0);
        let (words, mut left_out) = content.unwrap_or_default().words(by.as_deref(), created.unwrap_or_default());
        left_out.files += metadata.map_or(0, |metadata| metadata.files);
        Ok(Some(ChatGptMessage(words, left_out)))
    }
}

/// What a message carries. Its pictures are among its parts.
struct Metadata {
    files: u64,
}

impl Lenient for Metadata {
    fn object<'de, A: MapAccess<'de>>(mut fields: A) -> Result<Option<Metadata>, A::Error> {
        let mut files = 0;
        while let Some(key) = fields.next_key()? {
            match key {
                Key::Attachments => files = value::<Attached, A>(&mut fields)?.map_or(0, |attached| attached.files),
                _ => step_over(&mut fields)?,
            }
        }
        Ok(Some(Metadata { files }))
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

#[derive(Default)]
struct Content {
    kind: Option<String>,
    parts: Option<Parts>,
    text: Option<String>,
    language: Option<String>,
    thoughts: Option<Thoughts>,
}

impl Content {
    /// What is said by somebody, and what of it is left out.
    fn words(self, by: Option<&str>, created_s: f64) -> (Option<Words>, LeftOut) {
        let Content { kind, parts, text, language, thoughts } = self;
        let (Parts { text: said, mut left_out }, text) = (parts.unwrap_or_default(), text.unwrap_or_default());
        let Some(role) = role(by) else { return (None, unheard(by, !said.is_empty() || !text.is_empty())) };
        let words =
            Words { role, text: String::new(), thinking: None, created_s, is_thought: false, is_answered: false };
        let words = match kind.as_deref() {
            Some("code") => Words { text: code_block(&text, language.as_deref()), ..words },
            Some("thoughts") => {
                let thoughts = thoughts.map(|thoughts| thoughts.0).filter(|thoughts| !thoughts.is_empty());
                Words { is_thought: thoughts.is_some(), thinking: thoughts.map(Rc::from), ..words }
            }
            None | Some("text" | "multimodal_text") => Words { text: said, ..words },
            Some(_) if !said.is_empty() => Words { text: said, ..words },
            Some(_) => {
                left_out.other += 1;
                words
            }
        };
        let is_something = words.is_thought || !words.text.is_empty();
        (is_something.then_some(words), left_out)
    }
}

impl Lenient for Content {
    fn object<'de, A: MapAccess<'de>>(mut fields: A) -> Result<Option<Content>, A::Error> {
        let mut content = Content::default();
        while let Some(key) = fields.next_key()? {
            match key {
                Key::ContentType => content.kind = value(&mut fields)?,
                Key::Parts => content.parts = value::<PartsOnly, A>(&mut fields)?.map(|parts| parts.0),
                Key::Text => content.text = value(&mut fields)?,
                Key::Language => content.language = value(&mut fields)?,
                Key::Thoughts => content.thoughts = value(&mut fields)?,
                _ => step_over(&mut fields)?,
            }
        }
        Ok(Some(content))
    }
}

/// Parts as a list: a text in their place is none.
struct PartsOnly(Parts);

impl Lenient for PartsOnly {
    fn list<'de, A: SeqAccess<'de>>(items: A) -> Result<Option<PartsOnly>, A::Error> {
        Ok(Parts::list(items)?.map(PartsOnly))
    }
}

/// An exported chat: a map of messages with parents, or (older) a plain list; system and tool messages are stepped over.
pub(super) struct OpenWebUi(pub Theirs);

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
    fn conversation(self, outer_title: Option<String>) -> Option<Theirs> {
        let title = self.title.or(outer_title).unwrap_or_default();
        if let Some(nodes) = self.history.nodes {
            return nodes.conversation(title, self.history.current);
        }
        let Listed(all, left_out) = self.list?;
        let messages = all.into_iter().zip(1..);
        let messages = messages.map(|(words, n)| words.said(MessageId(n), (n > 1).then_some(MessageId(n - 1))));
        conversation(title, None, messages.collect(), left_out)
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
struct Listed(Vec<Words>, LeftOut);

impl Lenient for Listed {
    fn list<'de, A: SeqAccess<'de>>(mut items: A) -> Result<Option<Listed>, A::Error> {
        let (mut all, mut left_out) = (Vec::new(), LeftOut::default());
        while let Some(Any(node)) = items.next_element::<Any<OpenWebUiNode>>()? {
            let Some(OpenWebUiNode(node)) = node else { continue };
            all.extend(node.words);
            left_out.add(node.left_out);
        }
        Ok(Some(Listed(all, left_out)))
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
        let (mut parent, mut by, mut text, mut created) = (None, None::<String>, None::<Parts>, None);
        let mut files = Attached::default();
        while let Some(key) = fields.next_key()? {
            match key {
                Key::ParentId => parent = value(&mut fields)?,
                Key::Role => by = value(&mut fields)?,
                Key::Content => text = value(&mut fields)?,
                Key::Files => files = value(&mut fields)?.unwrap_or_default(),
                Key::Timestamp => created = value(&mut fields)?,
                _ => step_over(&mut fields)?,
            }
        }
        let Parts { text, mut left_out } = text.unwrap_or_default();
        let Some(role) = role(by.as_deref()) else {
            let left_out = unheard(by.as_deref(), !text.is_empty());
            return Ok(Some(OpenWebUiNode(Node { parent, words: None, left_out })));
        };
        left_out.files += files.files;
        left_out.pictures += files.pictures;
        let split = match role {
            Role::Assistant => split_answer(text),
            Role::User | Role::System | Role::Document => Split { text, ..Split::default() },
        };
        left_out.add(split.left_out);
        let thinking = (!split.thinking.is_empty()).then(|| split.thinking.into());
        let (text, created_s) = (split.text, created.unwrap_or_default());
        let words = Some(Words { role, text, thinking, created_s, is_thought: false, is_answered: false });
        Ok(Some(OpenWebUiNode(Node { parent, words, left_out })))
    }
}
