//! The tree as rows, and a short title of a message.

use std::collections::{HashMap, HashSet};

use super::super::Tree;
use crate::core::sanitize::sanitize_line;
use crate::core::transcript::{Message, MessageId, Role};
use crate::runtime::protocol::TimelineRow;

impl Tree {
    /// One row per question, document, or answer that has siblings; parents before children, the older line first.
    pub fn timeline(
        &self,
        kept: impl Fn(MessageId) -> bool,
        label: impl Fn(MessageId) -> Option<String>,
    ) -> Vec<TimelineRow> {
        let current: HashSet<MessageId> = self.path().iter().map(|m| m.id).collect();
        let mut rows = Vec::new();
        let mut lanes = 0u16;
        // (message, number, lane). An explicit stack: a conversation can be deeper than the call stack allows.
        let mut stack: Vec<(MessageId, u64, u16)> = Vec::new();
        let push = |stack: &mut Vec<(MessageId, u64, u16)>, lanes: &mut u16, below: Option<MessageId>, number, lane| {
            let children = self.children(below);
            let first_lane = *lanes;
            *lanes = lanes.saturating_add(children.len().saturating_sub(1) as u16);
            for (i, child) in children.iter().enumerate().rev() {
                let lane = if i == 0 { lane } else { first_lane.saturating_add(i as u16) };
                stack.push((*child, number, lane));
            }
        };
        push(&mut stack, &mut lanes, None, 1, 0);
        while let Some((id, number, lane)) = stack.pop() {
            let Some(m) = self.messages.get(&id) else {
                continue;
            };
            let end = self.exchange_end(id);
            let shown = match m.role {
                Role::User | Role::Document => true,
                Role::Assistant => self.siblings(id).len() > 1,
                Role::System => false,
            };
            if shown {
                rows.push(TimelineRow {
                    message: id,
                    number,
                    line: 0,
                    lane,
                    title: title_of(m),
                    kept: kept(end),
                    current: current.contains(&id),
                    head: self.head.is_some_and(|h| h == id || h == end && self.siblings(end).len() == 1),
                    label: label(id).or_else(|| label(end)),
                    created_ms: m.created_ms,
                });
            }
            push(&mut stack, &mut lanes, Some(id), number + 1, lane);
        }
        let mut lines: HashMap<u64, (u64, u64)> = HashMap::new();
        rows.iter().for_each(|row: &TimelineRow| lines.entry(row.number).or_default().0 += 1);
        for row in &mut rows {
            let (all, line) = lines.entry(row.number).or_default();
            *line += 1;
            row.line = if row.current || *all == 1 { 0 } else { *line };
        }
        rows
    }
}

/// First words of a message, at most 60 characters, on one line.
pub fn title_of(message: &Message) -> String {
    if let Some(d) = &message.meta.document {
        return d.name.clone();
    }
    first_words(&message.text, 60)
}

/// The text on one line, cut at a word end to at most `width` characters, with control characters escaped.
pub fn first_words(text: &str, width: usize) -> String {
    let mut words = text.split_whitespace().map(sanitize_line);
    let mut out = words.next().unwrap_or_default().into_owned();
    for word in words {
        if out.chars().count() + 1 + word.chars().count() > width {
            break;
        }
        out = format!("{out} {word}");
    }
    out.chars().take(width).collect()
}

/// A text on one line, cut after `most` characters, with control characters escaped.
pub fn shortened(text: &str, most: usize) -> String {
    let mut words = text.split_whitespace().map(sanitize_line).collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = words.char_indices().nth(most) {
        words.truncate(end);
        words.push('…');
    }
    words
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    #[test]
    fn the_timeline_shows_every_line_once_with_its_own_lane() {
        let rows = tree().timeline(|id| id == MessageId(3), |id| (id == MessageId(8)).then(|| "end".into()));
        let seen: Vec<_> = rows.iter().map(|r| (r.message.0, r.number, r.lane, r.current, r.head)).collect();
        assert_eq!(
            seen,
            [
                (2, 2, 0, true, false),
                (4, 4, 0, true, false),
                (5, 5, 0, false, false),
                (6, 5, 2, true, true),
                (7, 4, 1, false, false)
            ]
        );
        assert!(rows[0].kept);
        assert_eq!(rows[4].label.as_deref(), Some("end"));
    }

    #[test]
    fn titles_end_at_a_word() {
        assert_eq!(first_words("who tells\nPierre that Andrei is dying", 16), "who tells Pierre");
        assert_eq!(first_words("abcdefgh", 3), "abc");
        assert_eq!(first_words("  \n", 3), "");
    }

    #[test]
    fn what_a_terminal_would_obey_is_spelled_out_in_titles() {
        assert_eq!(first_words("a \u{9b}31mb\u{1b}\u{202e} c", 40), "a \\x9b31mb\\x1bU+202E c");
    }
}
