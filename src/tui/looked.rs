//! The passages that an answer attended to, as lines below it.

use super::cells::{ellipsis, width};
use super::rows::{Role, Row};
use crate::core::sanitize::sanitize_line;
use crate::core::transcript::{Passage, Quote, Sources};

const NAMED: usize = 3;
const LEAST: f32 = 0.02;
/// Quotes named below an answer; `/quotes` lists all.
const QUOTES_NAMED: usize = 6;

pub fn named(sources: &Sources) -> impl Iterator<Item = &Passage> {
    let worth = |(n, p): &(usize, &Passage)| *n == 0 || p.share >= LEAST;
    sources.passages.iter().take(NAMED).enumerate().filter(worth).map(|(_, p)| p)
}

/// `war.txt 41,210-41,262 (31%)`; without the name if the previous passage is of the same document.
fn text(passage: &Passage, before: Option<&Passage>) -> String {
    let place = passage.place();
    let same = before.is_some_and(|b| b.document.is_some() && b.document == passage.document);
    let place = match &passage.document {
        Some(name) if same => place.get(name.len() + 1..).unwrap_or(&place),
        Some(_) | None => &place,
    };
    format!("{} ({})", sanitize_line(place), passage.percent())
}

fn places(sources: &Sources) -> impl Iterator<Item = String> {
    let mut before = None;
    named(sources).map(move |passage| text(passage, before.replace(passage)))
}

/// For line mode: `Looked at: [1] war.txt 41,210-41,262 (31%), [2] 38,004-38,051 (22%).`
pub fn sentence(sources: &Sources) -> Option<String> {
    let places: Vec<String> = (1..).zip(places(sources)).map(|(n, place)| format!("[{n}] {place}")).collect();
    (!places.is_empty()).then(|| format!("Looked at: {}.", places.join(", ")))
}

/// For line mode: `Quotes: [1] lease.txt 6 exact, [2] not in any document.`
pub fn quoted(quotes: &[Quote]) -> Option<String> {
    let place = |(n, quote): (usize, &Quote)| format!("[{}] {}", n + 1, sanitize_line(&quote.place()));
    let places: Vec<String> = quotes.iter().enumerate().map(place).collect();
    (!places.is_empty()).then(|| format!("Quotes: {}.", places.join(", ")))
}

pub(super) fn rows(sources: &Sources, cells: usize) -> Vec<Row> {
    listed("looked at  ", places(sources), "/look shows them", cells)
}

pub(super) fn quote_rows(quotes: &[Quote], cells: usize) -> Vec<Row> {
    let more = quotes.len().checked_sub(QUOTES_NAMED).filter(|more| *more > 0);
    let hint = more.map_or("/quotes shows them".to_owned(), |more| format!("{more} more: /quotes"));
    let places = quotes.iter().take(QUOTES_NAMED).map(|quote| sanitize_line(&quote.place()).into_owned());
    listed("quotes  ", places, &hint, cells)
}

/// Numbered places below an answer, as many a line as fit, and a hint if there is room.
fn listed(opening: &str, places: impl Iterator<Item = String>, hint: &str, cells: usize) -> Vec<Row> {
    let indent = width(opening);
    let room = cells.saturating_sub(indent).max(8);
    let mut rows: Vec<Row> = Vec::new();
    for (n, place) in (1..).zip(places) {
        let mark = format!("[{n}] ");
        let place = ellipsis(&place, room.saturating_sub(mark.len()));
        let fits = |row: &Row| row.width() + 2 + mark.len() + width(&place) <= cells;
        let mut row = match rows.pop() {
            Some(mut row) if fits(&row) => {
                row.push("  ", Role::Dim.into());
                row
            }
            full => {
                let opening = if full.is_some() { " ".repeat(indent) } else { opening.to_owned() };
                rows.extend(full);
                Row { source: usize::MAX, ..Row::of(opening, Role::Dim) }
            }
        };
        row.push(&mark, Role::Key.into());
        row.push(&place, Role::Dim.into());
        rows.push(row);
    }
    if let Some(row) = rows.last_mut().filter(|row| row.width() + 4 + hint.len() <= cells) {
        row.push(&format!("    {hint}"), Role::Dim.into());
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passage(document: &str, first_line: u64, last_line: u64, share: f32) -> Passage {
        Passage { document: Some(document.into()), number: 1, first_line, last_line, share, ..Passage::default() }
    }

    #[test]
    fn passages_are_named_within_the_width() {
        let passages = vec![
            passage("war.txt", 41_210, 41_262, 0.31),
            passage("war.txt", 38_004, 38_051, 0.22),
            Passage { number: 7, share: 0.04, ..Passage::default() },
            passage("war.txt", 1, 2, 0.03),
        ];
        let sources = Sources { passages, ..Sources::default() };
        let text = |cells| rows(&sources, cells).iter().map(Row::text).collect::<Vec<_>>();
        assert_eq!(
            text(107),
            ["looked at  [1] war.txt 41,210-41,262 (31%)  [2] 38,004-38,051 (22%)  [3] #7 (4%)    /look shows them"]
        );
        assert_eq!(
            text(77),
            [
                "looked at  [1] war.txt 41,210-41,262 (31%)  [2] 38,004-38,051 (22%)",
                "           [3] #7 (4%)    /look shows them"
            ]
        );
        assert!(rows(&sources, 57).iter().all(|r| r.width() <= 57));
        assert_eq!(
            sentence(&sources).unwrap(),
            "Looked at: [1] war.txt 41,210-41,262 (31%), [2] 38,004-38,051 (22%), [3] #7 (4%)."
        );
    }

    #[test]
    fn what_says_little_is_left_out_and_names_are_cleaned() {
        let few = Sources {
            passages: vec![passage("a\u{1b}[2J", 1, 9, 0.01), passage("b", 1, 1, 0.01)],
            ..Sources::default()
        };
        let text = rows(&few, 77).iter().map(Row::text).collect::<String>();
        assert!(!text.contains('\u{1b}') && text.contains("1-9 (1%)") && !text.contains("[2]"), "{text:?}");
        assert_eq!(rows(&Sources::default(), 77), []);
        let long = Sources { passages: vec![passage(&"n".repeat(300), 1, 9, 0.9)], ..Sources::default() };
        assert!(rows(&long, 57).iter().all(|r| r.width() <= 57));
    }
}
