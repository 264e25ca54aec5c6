//! The context as rows: the kind of text in each, and its share of the last answer's attention.

use super::entry::grouped;
use super::looked::named;
use crate::core::sanitize::sanitize_line;
use crate::core::transcript::Sources;
use crate::runtime::protocol::{ContextMap, Place, Request};

const LOOKED: f64 = 0.01;

fn block_tokens(map: &ContextMap) -> u64 {
    u64::from(map.block_tokens.max(64))
}

/// Tokens of each numbered passage.
fn passages(map: &ContextMap) -> Vec<std::ops::Range<u64>> {
    let block = block_tokens(map);
    let shown = Sources { passages: map.passages.clone(), ..Sources::default() };
    named(&shown).map(|p| u64::from(p.first_block) * block..(u64::from(p.last_block) + 1) * block).collect()
}

/// A stretch of the context, or a passage in it.
#[derive(Clone, Debug)]
pub struct MapRow {
    pub from: u64,
    to: u64,
    pub what: String,
    /// `31%`; empty if hardly anything was looked at.
    pub looked: String,
    /// Number of the message.
    pub number: u64,
    pub opens: Option<Request>,
}

pub fn rows(map: &ContextMap) -> Vec<MapRow> {
    let (block, passages) = (block_tokens(map), passages(map));
    let mut rows = Vec::new();
    for s in &map.stretches {
        let inside = |b: u32| (s.from..s.to).contains(&(u64::from(b) * block));
        let share: f64 = map.looked.iter().filter(|(b, _)| inside(*b)).map(|(_, share)| f64::from(*share) / 1e4).sum();
        let (kind, opens) = match s.place {
            Place::System => ("system", None),
            Place::Document => ("document", Some(Request::Open(format!("#{}", s.number)))),
            Place::Turn => ("turn", None),
        };
        let looked = if share >= LOOKED { format!("{:.0}%", share * 100.0) } else { String::new() };
        let what = format!("{kind} #{} {}", s.number, sanitize_line(&s.name));
        rows.push(MapRow { from: s.from, to: s.to, what, looked, number: s.number, opens });
        for (n, (passage, at)) in (1..).zip(map.passages.iter().zip(&passages)) {
            if (s.from..s.to).contains(&at.start.midpoint(at.end)) {
                let what = format!("  [{n}] {}", sanitize_line(&passage.place()));
                let opens = Some(Request::Look { at: map.answer, passage: Some(n) });
                rows.push(MapRow {
                    from: at.start,
                    to: at.end,
                    what,
                    looked: passage.percent(),
                    number: s.number,
                    opens,
                });
            }
        }
    }
    rows
}

pub fn sentences(map: &ContextMap) -> Vec<String> {
    let line = |r: MapRow| {
        let looked = if r.looked.is_empty() { r.looked } else { format!(", looked at {}", r.looked) };
        format!("tokens {} to {}: {}{looked}", grouped(r.from), grouped(r.to.saturating_sub(1)), r.what.trim_start())
    };
    let mut lines: Vec<String> = rows(map).into_iter().map(line).collect();
    if lines.is_empty() {
        lines.push("Nothing is in the context yet.".into());
    }
    if let Some(n) = map.answer {
        lines.push(format!("Shares are of #{n}, the last answer; /look names the lines."));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::transcript::Passage;
    use crate::runtime::protocol::Stretch;

    fn map() -> ContextMap {
        let stretch = |from, to, place, number, name: &str| Stretch { from, to, place, number, name: name.into() };
        ContextMap {
            stretches: vec![
                stretch(0, 100, Place::System, 1, "system text"),
                stretch(100, 6_000, Place::Document, 2, "war.txt"),
                stretch(6_000, 6_400, Place::Turn, 3, "Who?"),
            ],
            block_tokens: 64,
            looked: vec![(40, 6_000), (41, 300), (98, 500)],
            passages: vec![Passage { first_block: 40, last_block: 41, share: 0.63, number: 2, ..Passage::default() }],
            answer: Some(4),
        }
    }

    #[test]
    fn a_row_opens_what_it_names() {
        let rows = rows(&map());
        let opened: Vec<_> = rows.iter().map(|r| r.opens.clone()).collect();
        let look = Request::Look { at: Some(4), passage: Some(1) };
        assert_eq!(opened, [None, Some(Request::Open("#2".into())), Some(look), None]);
        let lines = sentences(&map());
        assert!(lines[1].contains("document #2 war.txt, looked at 63%"), "{lines:?}");
        assert!(lines[2].starts_with("tokens 2,560 to 2,687: [1] "), "{lines:?}");
        assert_eq!(sentences(&ContextMap::default()), ["Nothing is in the context yet."]);
    }
}
