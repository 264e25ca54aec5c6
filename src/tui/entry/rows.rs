//! Rows around the text of an entry: head, note, end mark, passages.

use super::super::cells::{ellipsis, width};
use super::super::options::ThinkShow;
use super::super::rows::{Face, Role as Tone, Row, Span};
use super::super::wrap::wrap_text;
use super::{BAR_CELLS, Entry, Look, Progress, clock, grouped};
use crate::core::sanitize::sanitize_line;
use crate::core::transcript::{Finish, Message, Role};
use crate::core::{about, counted};
use crate::runtime::protocol::Level;

pub(in crate::tui) fn note_rows(level: Level, text: &str, look: Look) -> Vec<Row> {
    let (mark, tone) = match level {
        Level::Info => ("  ", Tone::Info),
        Level::Warn => ("! ", Tone::Warn),
        Level::Error => ("!!", Tone::Error),
    };
    let mut rows = wrap_text(text, tone, look.cells.saturating_sub(4).max(8));
    for (i, row) in rows.iter_mut().enumerate() {
        row.spans.insert(0, Span::new(if i == 0 { format!(" {mark} ") } else { "    ".into() }, tone));
    }
    rows
}

pub(super) fn head_rows(entry: &Entry, m: &Message, look: Look, open: bool) -> Vec<Row> {
    let name = m.role.speaker();
    let tone = match m.role {
        Role::System => Tone::Dim,
        Role::User => Tone::You,
        Role::Assistant => Tone::Sala,
        Role::Document => Tone::Document,
    };
    let mut right = vec![format!("#{}", entry.number)];
    if let Some(remark) = &entry.remark {
        right.push(remark.clone());
    } else {
        right.extend(head_words(entry, m, look));
    }
    let right = ellipsis(&right.join("  "), look.cells.saturating_sub(8));
    let gap = look.cells.saturating_sub(1 + width(name) + width(&right)).max(1);
    let mut rows = vec![Row::from(vec![
        Span::new(format!(" {name}"), Face::from(tone).bold()),
        Span::new(" ".repeat(gap), Tone::Text),
        Span::new(right, Tone::Dim),
    ])];
    if let Some(d) = &m.meta.document {
        let state = if d.complete { "" } else { ", read in part" };
        let (tokens, lines) = (counted(d.tokens, "token"), counted(d.lines, "line"));
        let line = format!("{}  {tokens}, {lines}{state}", sanitize_line(&d.name));
        rows.append(&mut wrap_text(&line, Tone::Document, look.cells.saturating_sub(BAR_CELLS)));
    }
    if !m.thinking.is_empty() && look.think != ThinkShow::Hide {
        let (mark, does) = if open { ("v", "fold") } else { (">", "open") };
        let how = look.fold_key.map(|key| format!(", {key} to {does}")).unwrap_or_default();
        let text = format!("{mark} thoughts ({}{how})", thought_size(m));
        rows.push(Row::of(ellipsis(&text, look.cells.saturating_sub(BAR_CELLS)), Tone::Dim));
    }
    rows
}

fn thought_size(m: &Message) -> String {
    let mut words = vec![counted(m.thinking.lines().count() as u64, "line")];
    if m.meta.thought_tokens > 0 {
        words.push(format!("{} tokens", grouped(m.meta.thought_tokens)));
    }
    if m.meta.thought_ms > 0.0 && m.meta.finish.is_none() {
        words.push(format!("{:.0} s", m.meta.thought_ms / 1e3));
    }
    words.join(", ")
}

fn head_words(entry: &Entry, m: &Message, look: Look) -> Vec<String> {
    let mut right = Vec::new();
    if entry.progress == Progress::Done {
        right.extend((m.created_ms > 0).then(|| clock(m.created_ms, look.utc_offset_min)));
        right.extend((m.meta.thought_ms > 0.0).then(|| format!("thought {:.1} s", m.meta.thought_ms / 1e3)));
        let speed = || format!("{}{:.1} t/s", about(m.meta.estimated), m.meta.tokens_per_s);
        right.extend((m.meta.tokens_per_s > 0.0).then(speed));
    } else {
        right.push(match entry.progress {
            _ if !entry.before.is_empty() => entry.before.clone(),
            Progress::Thinking if !m.thinking.is_empty() => "thinking".into(),
            _ => "answering".into(),
        });
        right.extend(Some(entry.speed.clone()).filter(|speed| !speed.is_empty()));
    }
    if let Some(seed) = m.meta.seed.filter(|_| look.cells >= 90) {
        right.push(format!("seed {seed}"));
    }
    right
}

pub(crate) fn repeated(m: &Message) -> String {
    let tokens = grouped(m.meta.completion_tokens);
    format!("The answer began to repeat itself; stopped after {tokens} tokens. /continue goes on")
}

pub(super) fn tail_rows(m: &Message, look: Look) -> Vec<Row> {
    let mut rows = ended_rows(m, look);
    if let Some(sources) = m.meta.looked.as_ref().filter(|_| look.looked) {
        rows.extend(super::super::looked::rows(sources, look.cells.saturating_sub(BAR_CELLS)));
    }
    rows.extend(super::super::looked::quote_rows(&m.meta.quotes, look.cells.saturating_sub(BAR_CELLS)));
    rows
}

fn ended_rows(m: &Message, look: Look) -> Vec<Row> {
    let Some((finish, why)) = m.meta.finish.and_then(|finish| Some((finish, finish.cut_off()?))) else {
        return Vec::new();
    };
    let text = match finish {
        Finish::Repeats => format!("-- {}", repeated(m)),
        Finish::Stopped => format!("-- {why}; /continue goes on, /regen answers again"),
        Finish::Length => format!("-- {why}; /continue goes on"),
        Finish::Context => format!("-- {why}; /new, /fork or /compact"),
        Finish::Failed => format!("-- {why}; /regen answers again"),
        Finish::Stop => return Vec::new(),
    };
    let rows = wrap_text(&text, Tone::Dim, look.cells.saturating_sub(BAR_CELLS));
    rows.into_iter().map(|row| Row { source: usize::MAX, ..row }).collect()
}
