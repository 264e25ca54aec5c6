//! Renders one Markdown block: walks the parser's events and keeps the prefixes of lists and quotes. `inline` renders
//! inline text, `table` tables.

mod inline;
mod table;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag};

use super::cells::{cluster_width, fit, width};
use super::options::Glyphs;
use super::rows::{Face, Role, Row, Span};
use super::wrap::{Prefix, wrap};
use crate::core::sanitize::{sanitize, sanitize_line};
use inline::{Inline, dollars, inline_event};

/// Coloured lines of code blocks by (language, code). Filled from outside, because colouring is slow.
#[derive(Clone, Debug, Default)]
pub struct Colours(HashMap<(String, String), Arc<Vec<Vec<Span>>>>);

impl Colours {
    pub fn get(&self, lang: &str, code: &str) -> Option<&Arc<Vec<Vec<Span>>>> {
        if lang.is_empty() { None } else { self.0.get(&(lang.to_string(), code.to_string())) }
    }

    /// The text of the spans must equal the code.
    pub fn insert(&mut self, lang: String, code: String, lines: Vec<Vec<Span>>) {
        // Bounds the memory of a long session.
        if self.0.len() >= 512 {
            self.0.clear();
        }
        self.0.insert((lang, code), Arc::new(lines));
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Style<'a> {
    pub cells: usize,
    pub glyphs: Glyphs,
    pub colours: &'a Colours,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeBlock {
    pub lang: String,
    pub text: String,
}

fn options() -> Options {
    Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS | Options::ENABLE_MATH
}

/// The first events of the blocks at the top level.
pub(super) fn top_level(text: &str) -> impl Iterator<Item = (Event<'_>, Range<usize>)> {
    let mut depth = 0usize;
    Parser::new_ext(text, options()).into_offset_iter().filter(move |(event, _)| {
        let begins = depth == 0 && !matches!(event, Event::End(_));
        match event {
            Event::Start(_) => depth += 1,
            Event::End(_) => depth = depth.saturating_sub(1),
            _ => {}
        }
        begins
    })
}

pub(super) struct Writer<'a> {
    style: Style<'a>,
    base: usize,
    code_before: usize,
    rest: Vec<(String, Face)>,
    /// Used once instead of `rest`: the marker of a list item.
    first: Option<Vec<(String, Face)>>,
    pub(super) rows: Vec<Row>,
    pub(super) code: Vec<CodeBlock>,
}

type Events<'t> = std::iter::Peekable<pulldown_cmark::OffsetIter<'t>>;

pub(super) fn render_block(writer: &mut Writer<'_>, source: &str) {
    let source = dollars(source);
    let mut events: Events<'_> = Parser::new_ext(&source, options()).into_offset_iter().peekable();
    writer.container(&mut events, None, false);
}

impl<'a> Writer<'a> {
    pub(super) fn new(style: Style<'a>, base: usize, code_before: usize) -> Self {
        Writer { style, base, code_before, rest: Vec::new(), first: None, rows: Vec::new(), code: Vec::new() }
    }

    fn cells(&self) -> usize {
        let used: usize = self.rest.iter().map(|(t, _)| width(t)).sum();
        self.style.cells.saturating_sub(used).max(4)
    }

    fn prefix(&mut self) -> Prefix {
        let rest = self.rest.clone();
        Prefix { first: self.first.take().unwrap_or_else(|| rest.clone()), rest }
    }

    fn paragraph(&mut self, inline: &mut Inline, at: usize) {
        if inline.pieces.is_empty() {
            return;
        }
        let prefix = self.prefix();
        let mut rows = wrap(&inline.pieces, &prefix, self.style.cells);
        for r in &mut rows {
            r.source = self.base + r.source.max(at);
        }
        self.rows.append(&mut rows);
        inline.pieces.clear();
    }

    fn line(&mut self, row: Vec<Span>, at: usize) {
        let prefix = self.prefix();
        let mut out = Row::at(self.base + at);
        for (text, face) in &prefix.first {
            out.push(text, *face);
        }
        for span in row {
            out.push(&span.text, span.face);
        }
        self.rows.push(out);
    }

    fn blank(&mut self, at: usize) {
        if !self.rows.is_empty() && self.first.is_none() {
            self.line(Vec::new(), at);
        }
    }

    /// Renders until the end of `until` (or of the events). Returns the number of blocks, without lists.
    fn container(&mut self, events: &mut Events<'_>, until: Option<&Tag<'_>>, quoted: bool) -> usize {
        let mut inline = Inline::within(quoted);
        let mut inline_at = 0;
        let (mut blocks, mut lists) = (0usize, 0);
        while let Some((event, range)) = next_inside(events, until) {
            let at = range.start;
            match event {
                Event::Start(tag) if is_block(&tag) => {
                    self.paragraph(&mut inline, inline_at);
                    // Nested lists directly follow their item's text.
                    if blocks > 0 && !matches!(tag, Tag::List(_) | Tag::Item) {
                        self.blank(at);
                    }
                    blocks += 1;
                    lists += usize::from(matches!(tag, Tag::List(_)));
                    self.block(events, tag, at, quoted);
                }
                Event::Rule => {
                    let rule = self.style.glyphs.pick("─", "-").repeat(self.cells());
                    self.line(vec![Span::new(rule, Role::Rule)], at);
                }
                // A tight item has no paragraph around its text.
                other => {
                    if inline.pieces.is_empty() {
                        inline_at = at;
                    }
                    blocks = blocks.max(1);
                    inline_event(&mut inline, other, at);
                }
            }
        }
        self.paragraph(&mut inline, inline_at);
        blocks - lists
    }

    fn block(&mut self, events: &mut Events<'_>, tag: Tag<'_>, at: usize, quoted: bool) {
        match &tag {
            Tag::Heading { level, .. } => {
                let mut inline = Inline::heading();
                inline.push(&format!("{} ", "#".repeat(*level as usize)), Role::Text, at);
                self.inline_until(events, &tag, &mut inline);
                self.paragraph(&mut inline, at);
            }
            Tag::CodeBlock(kind) => self.code_block(events, kind, &tag, at),
            Tag::BlockQuote(_) => {
                let bar = self.style.glyphs.pick("│ ", "| ");
                self.first = None;
                self.rest.push((bar.into(), Role::Quote.into()));
                self.container(events, Some(&tag), true);
                self.rest.pop();
            }
            Tag::List(start) => self.list(events, *start, &tag, quoted),
            Tag::Table(_) => self.table(events, &tag, at),
            _ => {
                let mut inline = Inline::within(quoted && tag != Tag::HtmlBlock);
                self.inline_until(events, &tag, &mut inline);
                self.paragraph(&mut inline, at);
            }
        }
    }

    fn inline_until(&mut self, events: &mut Events<'_>, tag: &Tag<'_>, inline: &mut Inline) {
        while let Some((event, range)) = next_inside(events, Some(tag)) {
            inline_event(inline, event, range.start);
        }
    }

    fn list(&mut self, events: &mut Events<'_>, start: Option<u64>, tag: &Tag<'_>, quoted: bool) {
        let mut number = start;
        let (mut items, mut airy) = (0, false);
        while let Some((event, range)) = next_inside(events, Some(tag)) {
            let Event::Start(item @ Tag::Item) = event else { continue };
            // The items of a loose list are paragraphs.
            airy |= matches!(events.peek(), Some((Event::Start(Tag::Paragraph), _)));
            if items > 0 && airy {
                self.blank(range.start);
            }
            items += 1;
            let marker = number.map_or("- ".to_string(), |n| format!("{n}. "));
            number = number.map(|n| n.saturating_add(1));
            let indent = " ".repeat(marker.len());
            let mut first = self.first.take().unwrap_or_else(|| self.rest.clone());
            first.push((marker, Role::Dim.into()));
            self.rest.push((indent, Face::default()));
            self.first = Some(first);
            let blocks = self.container(events, Some(&item), quoted);
            airy |= blocks > 1;
            if self.first.is_some() {
                self.line(Vec::new(), range.start);
            }
            self.rest.pop();
        }
    }

    fn code_block(&mut self, events: &mut Events<'_>, kind: &CodeBlockKind<'_>, tag: &Tag<'_>, at: usize) {
        let lang = match kind {
            CodeBlockKind::Fenced(info) => sanitize_line(info.split_whitespace().next().unwrap_or("")).into_owned(),
            CodeBlockKind::Indented => String::new(),
        };
        let mut text = String::new();
        let mut starts = Vec::new();
        while let Some((event, range)) = next_inside(events, Some(tag)) {
            if let Event::Text(t) = event {
                starts.push((text.len(), range.start));
                text.push_str(&sanitize(&t));
            }
        }
        let code = text.strip_suffix('\n').unwrap_or(&text);
        let fenced = matches!(kind, CodeBlockKind::Fenced(_));
        if fenced {
            self.code.push(CodeBlock { lang: lang.clone(), text: code.to_string() });
            let label = format!("[b{}]", self.code_before + self.code.len());
            let room = self.cells().saturating_sub(2 + label.len());
            let head = fit(&format!("```{lang}"), room);
            self.line(vec![Span::new(format!("  {head}"), Role::Dim), Span::new(label, Role::Key)], at);
        }
        let coloured = self.style.colours.get(&lang, code).cloned();
        // Prose in a block breaks between words.
        let words = coloured.is_none() && matches!(lang.as_str(), "" | "text" | "txt");
        let cells = self.cells().saturating_sub(2).max(2);
        let mut offset = 0;
        for (i, line) in code.split('\n').enumerate() {
            let source = starts.iter().rev().find(|(o, _)| *o <= offset).map_or(at, |(o, s)| s + (offset - o));
            let plain = [Span::new(line, Role::Code)];
            let spans = coloured.as_ref().and_then(|c| c.get(i)).map_or(&plain[..], |v| v.as_slice());
            let cut = cut(spans, cells, words);
            for (n, row) in cut.into_iter().enumerate() {
                // Marks a wrapped line of code.
                let mark = if n == 0 { "  " } else { self.style.glyphs.pick("↪ ", "\\ ") };
                let mut indented = vec![Span::new(mark, Role::Dim)];
                indented.extend(row);
                self.line(indented, source.max(at));
            }
            offset += line.len() + 1;
        }
        if fenced {
            self.line(vec![Span::new("  ```", Role::Dim)], at.max(starts.last().map_or(at, |s| s.1)));
        }
        // Offsets must not decrease from row to row.
        let mut high = 0;
        for r in &mut self.rows {
            high = high.max(r.source);
            r.source = high;
        }
    }
}

/// The next event before the end of `until`.
fn next_inside<'t>(events: &mut Events<'t>, until: Option<&Tag<'_>>) -> Option<(Event<'t>, Range<usize>)> {
    events.next().filter(|(event, _)| until.is_none_or(|tag| *event != Event::End(tag.to_end())))
}

fn is_block(tag: &Tag<'_>) -> bool {
    !matches!(tag, Tag::Emphasis | Tag::Strong | Tag::Strikethrough | Tag::Link { .. } | Tag::Image { .. })
}

/// Cuts spans into rows of `cells`: code keeps its columns, prose of one span breaks after a space.
fn cut(spans: &[Span], cells: usize, words: bool) -> Vec<Vec<Span>> {
    use unicode_segmentation::UnicodeSegmentation;
    let mut rows = vec![Row::default()];
    let mut used = 0;
    for span in spans {
        for cluster in span.text.graphemes(true) {
            // Tab stops at every fourth column of the code.
            let (text, w) = if cluster == "\t" { ("    ", 4 - used % 4) } else { (cluster, cluster_width(cluster)) };
            if used + w > cells && used > 0 {
                let next = rows.last_mut().filter(|_| words).map_or_else(Row::default, |row| split_word(row, cells));
                used = next.width();
                rows.push(next);
            }
            let text = if cluster == "\t" { &text[..w.min(4)] } else { text };
            if let Some(row) = rows.last_mut() {
                row.push(text, span.face);
            }
            used += w;
        }
    }
    rows.into_iter().map(|r| r.spans).collect()
}

/// Removes the unfinished word at the end of a row, unless that leaves less than a third of it.
fn split_word(row: &mut Row, cells: usize) -> Row {
    let mut rest = Row::default();
    if let Some(span) = row.spans.last_mut()
        && let Some(at) = span.text.rfind(' ').filter(|at| width(&span.text[..*at]) >= cells / 3)
    {
        rest.push(&span.text.split_off(at + 1), span.face);
    }
    rest
}
