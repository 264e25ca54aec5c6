//! Inline text: emphasis, links, code and equations as pieces with faces.

use std::borrow::Cow;
use std::ops::Range;

use pulldown_cmark::{Event, Parser, Tag};

use super::super::math;
use super::super::rows::{Face, Role};
use super::super::wrap::Piece;
use super::options;
use crate::core::sanitize::{sanitize, sanitize_line};

#[derive(Default)]
pub(super) struct Inline {
    pub(super) pieces: Vec<Piece>,
    strong: usize,
    emphasis: usize,
    struck: usize,
    links: Vec<(String, usize)>,
    heading: bool,
    quoted: bool,
    /// A displayed equation ended the line.
    line_done: bool,
}

impl Inline {
    pub(super) fn heading() -> Inline {
        Inline { heading: true, ..Inline::default() }
    }

    pub(super) fn within(quoted: bool) -> Inline {
        Inline { quoted, ..Inline::default() }
    }

    fn face(&self, role: Role) -> Face {
        let role = match role {
            Role::Text if !self.links.is_empty() => Role::Link,
            Role::Text if self.heading => Role::Heading,
            Role::Text if self.quoted => Role::Quote,
            other => other,
        };
        Face { role, strong: self.strong > 0 || self.heading, emphasis: self.emphasis > 0, struck: self.struck > 0 }
    }

    pub(super) fn push(&mut self, text: &str, role: Role, source: usize) {
        // After parsing, as entities can decode to control characters.
        let mut text = sanitize(text).replace('\t', "    ");
        if self.line_done {
            text = format!("\n{}", text.trim_start());
            if text.len() == 1 {
                return;
            }
            self.line_done = false;
        }
        let face = self.face(role);
        self.pieces.push(Piece { text, face, source });
    }

    pub(super) fn text(&self) -> String {
        self.pieces.iter().map(|p| p.text.as_str()).collect()
    }
}

/// Rewrites `\(x\)` and `\[x\]` to the parser's dollars, at the same offsets. Code stays unchanged.
pub(super) fn dollars(source: &str) -> Cow<'_, str> {
    if !source.contains("\\(") && !source.contains("\\[") {
        return Cow::Borrowed(source);
    }
    let code: Vec<Range<usize>> = Parser::new_ext(source, options())
        .into_offset_iter()
        .filter(|(event, _)| matches!(event, Event::Code(_) | Event::Start(Tag::CodeBlock(_))))
        .map(|(_, range)| range)
        .collect();
    let outside = |at: usize| !code.iter().any(|range| range.contains(&at));
    let mut out = source.to_string();
    // Braces keep the length, and allow a space after the dollar.
    for (open, close, marks) in [("\\(", "\\)", ["${", "}$"]), ("\\[", "\\]", ["$$", "$$"])] {
        let mut at = 0;
        while let Some(from) = source.get(at..).and_then(|rest| rest.find(open)).map(|n| at + n) {
            at = from + 2;
            let Some(to) = source[at..].find(close).map(|n| at + n) else { break };
            if outside(from) && outside(to) && !source[at..to].trim().is_empty() && !source[at..to].contains("\n\n") {
                out.replace_range(from..from + 2, marks[0]);
                out.replace_range(to..to + 2, marks[1]);
                at = to + 2;
            }
        }
    }
    Cow::Owned(out)
}

pub(super) fn inline_event(inline: &mut Inline, event: Event<'_>, at: usize) {
    match event {
        Event::Text(t) => inline.push(&t, Role::Text, at),
        Event::Code(t) => inline.push(&t, Role::Code, at),
        Event::InlineMath(t) => match math::unicode(&t).filter(|_| math::is_equation(&t)) {
            Some(equation) => inline.push(&equation, Role::Math, at),
            None => match t.strip_prefix('{').and_then(|t| t.strip_suffix('}')) {
                Some(t) => inline.push(&format!("\\({t}\\)"), Role::Text, at),
                None => inline.push(&format!("${t}$"), Role::Text, at),
            },
        },
        Event::DisplayMath(t) => {
            if !inline.pieces.is_empty() {
                inline.push("\n", Role::Text, at);
            }
            let shown = math::unicode(&t).unwrap_or_else(|| format!("$${t}$$"));
            inline.push(&format!("  {shown}"), Role::Math, at);
            inline.line_done = true;
        }
        Event::Html(t) | Event::InlineHtml(t) => inline.push(t.trim_end_matches('\n'), Role::Dim, at),
        Event::SoftBreak => inline.push(" ", Role::Text, at),
        Event::HardBreak => inline.push("\n", Role::Text, at),
        Event::TaskListMarker(done) => inline.push(if done { "[x] " } else { "[ ] " }, Role::Text, at),
        Event::Start(Tag::Strong) => inline.strong += 1,
        Event::Start(Tag::Emphasis) => inline.emphasis += 1,
        Event::Start(Tag::Strikethrough) => inline.struck += 1,
        Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
            inline.links.push((sanitize_line(&dest_url).into_owned(), inline.pieces.len()));
        }
        Event::End(end) => match end {
            pulldown_cmark::TagEnd::Strong => inline.strong = inline.strong.saturating_sub(1),
            pulldown_cmark::TagEnd::Emphasis => inline.emphasis = inline.emphasis.saturating_sub(1),
            pulldown_cmark::TagEnd::Strikethrough => inline.struck = inline.struck.saturating_sub(1),
            pulldown_cmark::TagEnd::Link | pulldown_cmark::TagEnd::Image => {
                if let Some((target, from)) = inline.links.pop() {
                    let shown: String = inline.pieces[from..].iter().map(|p| p.text.as_str()).collect();
                    if shown != target {
                        inline.push(&format!(" ({target})"), Role::Dim, at);
                    }
                }
            }
            _ => {}
        },
        _ => {}
    }
}
