//! A conversation as Markdown and as plain text, with the sources of its answers.

use std::collections::{HashMap, HashSet};

use super::SessionJson;
use super::on_page::{fence, on_page, speaker};
use crate::core::transcript::{Message, MessageId, Passage, Role};
use crate::text::with_newlines;

const SHOWN_LINES: usize = 40;

struct Looked<'a> {
    /// (place and share, numbered lines).
    passages: Vec<(String, Vec<(u64, &'a str)>)>,
    sentences: Vec<(String, String)>,
    quotes: Vec<(String, String)>,
}

impl<'a> Looked<'a> {
    /// Of the last message of a path.
    fn of(path: &[&'a Message]) -> Option<Looked<'a>> {
        let m = path.last()?;
        let sources = m.meta.looked.clone().unwrap_or_default();
        let place = |p: &Passage| format!("{} ({})", one_line(&p.place()), p.percent());
        let passages = sources.passages.iter().map(|p| {
            let holder = usize::try_from(p.number).ok().and_then(|n| path.get(n.checked_sub(1)?));
            (place(p), holder.map_or(Vec::new(), |holder| p.lines(&holder.text).take(SHOWN_LINES).collect()))
        });
        let passages: Vec<_> = passages.collect();
        let sentences = sources.by_sentence(&m.text).into_iter().filter(|(_, seen)| !seen.is_empty());
        let sentences =
            sentences.map(|(words, seen)| (one_line(words), seen.iter().map(place).collect::<Vec<_>>().join(", ")));
        let quotes = m.meta.quotes.iter().map(|quote| (one_line(&quote.text), one_line(&quote.place()))).collect();
        let looked = Looked { passages, sentences: sentences.collect(), quotes };
        (!looked.passages.is_empty() || !looked.sentences.is_empty() || !looked.quotes.is_empty()).then_some(looked)
    }

    fn markdown(&self) -> String {
        let passage = |(k, (place, lines)): (usize, &(String, Vec<(u64, &str)>))| {
            if lines.is_empty() {
                return format!("{k}. {place}\n");
            }
            // Indented as far as the text after the number.
            let (indent, text) = (" ".repeat(format!("{k}. ").len()), numbered(lines));
            let fence = fence(&text);
            let lines: String = text.lines().map(|line| format!("{indent}{line}\n")).collect();
            format!("{k}. {place}\n\n{indent}{fence}text\n{lines}{indent}{fence}\n\n")
        };
        let passages = (1..).zip(&self.passages).map(passage).collect();
        let sentences = self.sentences.iter().map(|(words, places)| format!("- {words} *{places}*\n")).collect();
        let quotes = (1..).zip(&self.quotes).map(|(k, (words, place))| format!("{k}. {words} *{place}*\n")).collect();
        sections([passages, sentences, quotes], |title| format!("\n**{title}**\n\n"))
    }

    fn plain(&self) -> String {
        let passages = (1..).zip(&self.passages);
        let passages = passages.map(|(k, (place, lines))| format!("[{k}] {place}\n{}", numbered(lines))).collect();
        let sentences = self.sentences.iter().map(|(words, places)| format!("- {words}\n    {places}\n")).collect();
        let quotes =
            (1..).zip(&self.quotes).map(|(k, (words, place))| format!("[{k}] {place}\n    {words}\n")).collect();
        sections([passages, sentences, quotes], |title| format!("{title}:\n"))
    }
}

/// The texts under their titles; an empty one has none.
fn sections(texts: [String; 3], heading: impl Fn(&str) -> String) -> String {
    let titles = ["Looked at", "Looked at, by sentence", "Quotes"];
    let some = titles.into_iter().zip(texts).filter(|(_, text)| !text.is_empty());
    some.map(|(title, text)| heading(title) + &text).collect()
}

fn numbered(lines: &[(u64, &str)]) -> String {
    lines.iter().map(|(n, line)| format!("{n:>7}  {}\n", line.trim_end())).collect()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Messages by their parents. Parents precede their children; a message without a parent before it is a root.
struct Tree<'a> {
    messages: &'a [Message],
    head: Option<usize>,
    parents: Vec<Option<usize>>,
    /// From 1 at a root.
    numbers: Vec<usize>,
}

enum Part<'a> {
    /// What follows continues from this message.
    Branch(usize),
    Message(&'a Message, Option<Looked<'a>>),
}

impl<'a> Tree<'a> {
    fn of(session: &'a SessionJson) -> Tree<'a> {
        let mut places: HashMap<MessageId, usize> = HashMap::with_capacity(session.messages.len());
        let (mut parents, mut numbers) = (Vec::new(), Vec::new());
        for (at, m) in session.messages.iter().enumerate() {
            let parent = m.parent.and_then(|p| places.get(&p).copied());
            numbers.push(1 + parent.and_then(|p| numbers.get(p)).copied().unwrap_or(0));
            parents.push(parent);
            places.insert(m.id, at);
        }
        let head = session.head.and_then(|h| places.get(&h).copied());
        Tree { messages: &session.messages, head, parents, numbers }
    }

    fn number(&self, at: usize) -> usize {
        self.numbers.get(at).copied().unwrap_or_default()
    }

    /// Hands over every message by its index, with the path from its root to it.
    fn paths(&self, mut on: impl FnMut(usize, &[&'a Message])) {
        let mut children: Vec<Vec<usize>> = vec![Vec::new(); self.parents.len()];
        let mut todo = Vec::new();
        for (at, parent) in self.parents.iter().enumerate() {
            parent.and_then(|parent| children.get_mut(parent)).unwrap_or(&mut todo).push(at);
        }
        let mut path = Vec::new();
        while let Some(at) = todo.pop() {
            path.truncate(self.number(at) - 1);
            path.extend(self.messages.get(at));
            on(at, &path);
            todo.append(children.get_mut(at).unwrap_or(&mut Vec::new()));
        }
    }

    /// Hands over the messages in reading order.
    fn read(&self, mut on: impl FnMut(Part<'a>)) {
        let mut looked = HashMap::new();
        self.paths(|at, path| looked.extend(Looked::of(path).map(|looked| (at, looked))));
        for (from, part) in self.branches() {
            if let Some(from) = from {
                on(Part::Branch(self.number(from)));
            }
            for (at, m) in part.into_iter().filter_map(|at| Some((at, self.messages.get(at)?))) {
                on(Part::Message(m, looked.remove(&at)));
            }
        }
    }

    /// The messages in reading order: the branch of the head first, then every other branch from where it leaves a
    /// shown one. Each part begins with the message it continues from (`None`: the beginning).
    fn branches(&self) -> Vec<(Option<usize>, Vec<usize>)> {
        let parents: HashSet<usize> = self.parents.iter().copied().flatten().collect();
        let leaves = (0..self.parents.len()).filter(|at| !parents.contains(at));
        let mut shown = vec![false; self.parents.len()];
        let mut parts = Vec::new();
        for leaf in self.head.into_iter().chain(leaves) {
            let (mut part, mut next) = (Vec::new(), Some(leaf));
            while let Some(i) = next
                && let Some(seen) = shown.get_mut(i)
                && !*seen
            {
                *seen = true;
                part.push(i);
                next = self.parents.get(i).copied().flatten();
            }
            part.reverse();
            if !part.is_empty() {
                parts.push((next, part));
            }
        }
        parts
    }
}

pub(super) fn markdown(session: &SessionJson) -> String {
    let mut out = format!("# {}\n", one_line(&session.name));
    Tree::of(session).read(|part| match part {
        Part::Branch(number) => out.push_str(&format!("\n---\n\n# Branch after #{number}\n")),
        Part::Message(m, _) if m.role == Role::Document => {
            let (fence, text) = (fence(&m.text), m.text.trim_end());
            out.push_str(&format!("\n## Document: {}\n\n{fence}text\n{text}\n{fence}\n", title(m)));
        }
        Part::Message(m, looked) => {
            out.push_str(&format!("\n## {}\n", speaker(m.role)));
            for line in with_newlines(&m.thinking).lines() {
                out.push_str(&format!("\n> {line}"));
            }
            if !m.thinking.is_empty() {
                out.push('\n');
            }
            out.push_str(&format!("\n{}\n", on_page(&m.text)));
            if let Some(why) = m.cut_off() {
                out.push_str(&format!("\n*({why})*\n"));
            }
            out.push_str(&looked.map_or_else(String::new, |looked| looked.markdown()));
        }
    });
    out
}

pub(super) fn plain(session: &SessionJson) -> String {
    let mut out = String::new();
    Tree::of(session).read(|part| match part {
        Part::Branch(number) => out.push_str(&format!("----- branch after #{number} -----\n\n")),
        Part::Message(m, looked) => {
            match m.role {
                Role::Document => out.push_str(&format!("Document {}:\n", title(m))),
                role => out.push_str(&format!("{}:\n", speaker(role))),
            }
            for line in m.thinking.lines() {
                out.push_str(format!("> {line}").trim_end());
                out.push('\n');
            }
            if !m.thinking.is_empty() {
                out.push('\n');
            }
            out.push_str(&format!("{}\n", m.text.trim_end()));
            if let Some(why) = m.cut_off() {
                out.push_str(&format!("({why})\n"));
            }
            out.push_str(&looked.map_or_else(String::new, |looked| looked.plain()));
            out.push('\n');
        }
    });
    out
}

fn title(m: &Message) -> String {
    let Some(document) = &m.meta.document else { return "untitled".to_owned() };
    let part = if document.complete { "" } else { " (read in part)" };
    format!("{}{part}", one_line(&document.name))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pulldown_cmark::{Event, HeadingLevel, Parser, Tag};

    use super::*;
    use crate::core::transcript::{DocumentInfo, Finish, MessageMeta, Sources};
    use crate::text::cited::tests::spent_ms;

    /// Message `i` has the parent `parent(i)`, and the source of each is the first message of its branch.
    fn session(count: i64, parent: impl Fn(i64) -> Option<i64>) -> SessionJson {
        let passage = Passage { number: 1, first_line: 1, last_line: 1, share: 0.5, ..Passage::default() };
        let looked = Some(Sources { passages: vec![passage], ..Sources::default() });
        let message = |i: i64| Message {
            id: MessageId(i),
            parent: parent(i).map(MessageId),
            role: if i % 2 == 0 { Role::User } else { Role::Assistant },
            text: format!("m{i}"),
            thinking: String::new(),
            created_ms: 0,
            meta: MessageMeta { looked: looked.clone(), ..MessageMeta::default() },
        };
        SessionJson {
            format: String::new(),
            version: 1,
            name: "s".into(),
            title: None,
            settings: serde_json::Value::Null,
            created_ms: 0,
            head: Some(MessageId(count - 1)),
            messages: (0..count).map(message).collect(),
            marks: Vec::new(),
        }
    }

    #[test]
    fn an_answer_that_was_cut_off_says_so() {
        let mut session = session(8, |i| (i > 0).then(|| i - 1));
        let ends = [Some(Finish::Stop), Some(Finish::Stopped), None, Some(Finish::Length)];
        for (m, finish) in session.messages.iter_mut().filter(|m| m.role == Role::Assistant).zip(ends) {
            (m.meta.finish, m.meta.model, m.meta.looked) = (finish, Some("demo".into()), None);
        }
        let (lines, marks) = (plain(&session), markdown(&session));
        assert!(lines.contains("Assistant:\nm1\n\n") && marks.contains("\nm1\n\n## You"), "{lines}{marks}");
        for (text, why) in [("m3", "stopped"), ("m5", "not written to its end"), ("m7", "length limit reached")] {
            assert!(lines.contains(&format!("Assistant:\n{text}\n({why})\n\n")), "{lines}");
            assert!(marks.contains(&format!("\n{text}\n\n*({why})*\n")), "{marks}");
        }
        // An answer of another program has no known end.
        session.messages[5].meta.model = None;
        assert!(!plain(&session).contains("not written"));
    }

    #[test]
    fn a_message_opens_no_fence_and_writes_no_heading_of_the_page() {
        let mut session = session(3, |i| (i > 0).then(|| i - 1));
        let texts = ["Why?\n~~~~py\n## You", "So:\n```\n## Assistant\n```\n## Your turn", "Cut\n```rust\nlet a"];
        for (m, text) in session.messages.iter_mut().zip(texts) {
            (m.text, m.meta.looked) = (text.to_owned(), None);
        }
        (session.messages[2].role, session.messages[2].meta.finish) = (Role::Assistant, Some(Finish::Stopped));
        session.messages[2].meta.model = Some("demo".into());
        assert_eq!(
            markdown(&session),
            "# s\n\n## You\n\nWhy?\n~~~~py\n## You\n~~~~\n\n## Assistant\n\nSo:\n```\n## Assistant\n```\n## Your turn\n\n## Assistant\n\nCut\n```rust\nlet a\n```\n\n*(stopped)*\n"
        );
        // Plain text has no block to close.
        assert!(plain(&session).contains("Assistant:\nCut\n```rust\nlet a\n(stopped)\n"));
    }

    const PIECES: &[&str] = &[
        "## You",
        "You\n---",
        "# Branch after #2",
        "## Document: a",
        "## [You](x)",
        "## Y&#111;u",
        "<h2>You</h2>",
        "<!-- x",
        "-->",
        "<script>",
        "<pre>",
        "</pre>",
        "<?php",
        "<![CDATA[",
        "<textarea>",
        "<div>",
        "```",
        "~~~~",
        "    code",
        "- ",
        "1. ",
        "> ",
        "<",
        "",
        "===",
        "---",
        "[a]: <x",
        "word",
    ];

    fn text() -> impl Strategy<Value = String> {
        let piece = (prop::sample::select(PIECES), prop::sample::select(&["\n", "\n\n", "\r", "\r\n", " ", ""][..]));
        prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.iter().map(|(a, b)| format!("{a}{b}")).collect())
    }

    proptest! {
        #[test]
        fn a_reader_of_the_page_sees_the_messages_as_headings_and_nothing_else(
            texts in prop::collection::vec((text(), text()), 3),
        ) {
            let mut session = session(3, |i| (i > 0).then(|| i - 1));
            for (m, (text, thinking)) in session.messages.iter_mut().zip(&texts) {
                (m.text, m.thinking, m.meta.looked) = (text.clone(), thinking.clone(), None);
            }
            let (name, text) = &texts[2];
            (session.name, session.messages[2].role) = (name.clone(), Role::Document);
            session.messages[2].meta.document = Some(DocumentInfo::new(name, None, text));
            let page = markdown(&session);
            let (mut headings, mut depth, mut inside) = (Vec::<String>::new(), 0, false);
            for event in Parser::new(&page) {
                match event {
                    Event::Start(tag) => {
                        if depth == 0 {
                            inside = matches!(tag, Tag::Heading { level: HeadingLevel::H2, .. });
                            headings.extend(inside.then(String::new));
                        }
                        depth += 1;
                    }
                    Event::End(_) => depth -= 1,
                    Event::Text(words) | Event::Code(words) if inside => headings.last_mut().unwrap().push_str(&words),
                    _ => {}
                }
            }
            headings.retain(|title| ["You", "Assistant", "System"].contains(&title.as_str()) || title.starts_with("Document:"));
            prop_assert_eq!(headings.len(), 3, "{}", page);
            prop_assert_eq!(&headings[..2], ["You", "Assistant"]);
            prop_assert!(headings[2].starts_with("Document:"));
        }
    }

    #[test]
    fn thoughts_are_quoted_in_front_of_their_answer() {
        let mut session = session(2, |i| (i > 0).then(|| i - 1));
        session.messages.iter_mut().for_each(|m| m.meta.looked = None);
        session.messages[1].thinking = "First this.\n\nThen that.".into();
        assert_eq!(plain(&session), "You:\nm0\n\nAssistant:\n> First this.\n>\n> Then that.\n\nm1\n\n");
        assert!(markdown(&session).ends_with("\n> First this.\n> \n> Then that.\n\nm1\n"), "{}", markdown(&session));
    }

    #[test]
    fn a_document_that_was_read_in_part_says_so() {
        let mut session = session(2, |i| (i > 0).then(|| i - 1));
        for (m, complete) in session.messages.iter_mut().zip([true, false]) {
            let name = format!("{complete}.txt");
            (m.role, m.meta.looked) = (Role::Document, None);
            m.meta.document = Some(DocumentInfo { complete, ..DocumentInfo::new(&name, None, &m.text) });
        }
        let (lines, marks) = (plain(&session), markdown(&session));
        assert!(
            lines.contains("Document true.txt:\n") && lines.contains("Document false.txt (read in part):\n"),
            "{lines}"
        );
        assert!(
            marks.contains("Document: true.txt\n") && marks.contains("Document: false.txt (read in part)\n"),
            "{marks}"
        );
    }

    #[test]
    fn any_message_above_is_found_by_its_number() {
        // Branches of all lengths, and a message before its parent.
        let session =
            session(
                300,
                |i| if i == 150 { Some(151) } else { (i > 0).then(|| if i % 7 == 0 { i / 2 } else { i - 1 }) },
            );
        let tree = Tree::of(&session);
        let mut seen = 0;
        tree.paths(|at, found| {
            let mut path: Vec<i64> = std::iter::successors(Some(at), |i| tree.parents[*i]).map(|i| i as i64).collect();
            path.reverse();
            assert_eq!(found.iter().map(|m| m.id.0).collect::<Vec<_>>(), path, "the branch to {at}");
            seen += 1;
        });
        assert_eq!(seen, session.messages.len());
    }

    #[test]
    fn texts_take_as_long_as_they_have_messages_however_deep_the_branches() {
        // A trunk of half of them, and a branch of one from every place of it.
        let time = |count: i64| {
            let session = session(count, |i| if i < count / 2 { (i > 0).then(|| i - 1) } else { Some(i - count / 2) });
            let begun = spent_ms();
            assert!(plain(&session).contains("Looked at:\n[1] #1 (50%)\n      1  m0\n"));
            assert!(markdown(&session).len() > session.messages.len());
            (spent_ms() - begun) / 1e3
        };
        let (few, many) = (time(4_000), time(32_000));
        assert!(many < 24.0 * few + 1.0, "{few} s for 4,000 messages, {many} s for 32,000");
    }
}
