//! Line breaking by grapheme clusters.
//!
//! Text breaks after spaces and around wide characters (CJK has no spaces); a word longer than the line breaks between
//! clusters. No cluster is cut, and no row is wider than `cells`.

use unicode_segmentation::UnicodeSegmentation;

use super::cells::{cluster_width, width};
use super::rows::{Face, Row};
use crate::core::sanitize::sanitize;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Printable text; `\n` forces a new row.
    pub text: String,
    pub face: Face,
    pub source: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefix {
    pub first: Vec<(String, Face)>,
    pub rest: Vec<(String, Face)>,
}

impl Prefix {
    fn width(parts: &[(String, Face)]) -> usize {
        parts.iter().map(|(t, _)| width(t)).sum()
    }
}

struct Cluster<'a> {
    text: &'a str,
    cells: usize,
    face: Face,
    source: usize,
}

/// Breaks pieces into rows of at most `cells` cells, including the prefix. Always at least one row.
pub fn wrap(pieces: &[Piece], prefix: &Prefix, cells: usize) -> Vec<Row> {
    let first = cells.saturating_sub(Prefix::width(&prefix.first)).max(2);
    let rest = cells.saturating_sub(Prefix::width(&prefix.rest)).max(2);
    let clusters: Vec<Cluster<'_>> = pieces
        .iter()
        .flat_map(|p| {
            p.text.grapheme_indices(true).map(|(at, text)| Cluster {
                text,
                cells: if text == "\n" { 0 } else { cluster_width(text) },
                face: p.face,
                source: p.source + at,
            })
        })
        .collect();
    let mut rows = Vec::new();
    let mut source = pieces.first().map_or(0, |p| p.source);
    let mut start = 0;
    loop {
        let limit = if rows.is_empty() { first } else { rest };
        let (end, next) = break_at(&clusters, start, limit);
        let mut row = Row::at(clusters.get(start).map_or(source, |c| c.source.max(source)));
        for (text, face) in if rows.is_empty() { &prefix.first } else { &prefix.rest } {
            row.push(text, *face);
        }
        for c in &clusters[start..end] {
            row.push(c.text, c.face);
        }
        source = row.source;
        let ended_by_newline = next > end && clusters.get(next - 1).is_some_and(|c| c.text == "\n");
        rows.push(row);
        start = next;
        // A final line end adds an empty row.
        if start >= clusters.len() && !ended_by_newline {
            return rows;
        }
    }
}

/// The end of the row (exclusive) and the start of the next one; spaces at the break are dropped.
fn break_at(clusters: &[Cluster<'_>], start: usize, limit: usize) -> (usize, usize) {
    let mut used = 0;
    let mut candidate = None;
    let mut at = start;
    let mut whole = is_name(clusters, start);
    while let Some(c) = clusters.get(at) {
        if c.text == "\n" {
            return (at, at + 1);
        }
        let is_space = c.text == " ";
        if at > start && clusters[at - 1].text == " " {
            whole = is_name(clusters, at);
        }
        if used + c.cells > limit && !is_space {
            // If not even one cluster fits, the painter clips it.
            let end = at.max(start + 1);
            return candidate.unwrap_or((end, end));
        }
        if used + c.cells > limit {
            let next = at + clusters[at..].iter().take_while(|c| c.text == " ").count();
            let newline = clusters.get(next).is_some_and(|c| c.text == "\n");
            return (at, next + usize::from(newline));
        }
        used += c.cells;
        at += 1;
        if is_space {
            // A break after indentation alone would leave a blank row.
            let end = trim_end(clusters, start, at);
            candidate = (end > start).then_some((end, at)).or(candidate);
        } else if c.cells >= 2
            || clusters.get(at).is_some_and(|n| n.cells >= 2)
            || c.text == "-" && !whole && at > start + 1
        {
            candidate = Some((at, at));
        }
    }
    (at, at)
}

/// Whether the word at `at` is a path, an option, a number or another name: it does not break at its hyphens.
fn is_name(clusters: &[Cluster<'_>], at: usize) -> bool {
    let rest = clusters.get(at..).unwrap_or(&[]);
    let word: String = rest.iter().take(256).take_while(|c| !matches!(c.text, " " | "\n")).map(|c| c.text).collect();
    let bare = word.trim_matches(|c: char| !c.is_alphanumeric() && c != '-' && c != '/');
    bare.starts_with('-')
        || bare.contains("--")
        || bare.contains(['/', '\\', '_', '.', '@', '=', ':', '#', '['])
        || bare.contains(|c: char| c.is_numeric())
}

fn trim_end(clusters: &[Cluster<'_>], start: usize, end: usize) -> usize {
    let solid = clusters[start..end].iter().rposition(|c| c.text != " ");
    solid.map_or(start, |at| start + at + 1)
}

pub fn wrap_text(text: &str, face: impl Into<Face>, cells: usize) -> Vec<Row> {
    wrap(
        &[Piece { text: sanitize(text).replace('\t', "    "), face: face.into(), source: 0 }],
        &Prefix::default(),
        cells,
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn indentation_stays_before_a_word_that_does_not_fit() {
        let rows = |text: &str| -> Vec<String> {
            super::wrap_text(text, super::super::rows::Role::Text, 10).iter().map(super::Row::text).collect()
        };
        assert_eq!(rows("    abcdefghijkl m"), ["    abcdef", "ghijkl m"]);
        assert_eq!(rows(" abcdefghijkl"), [" abcdefghi", "jkl"]);
    }

    use super::super::rows::Role;
    use super::*;
    use proptest::prelude::*;

    fn lines(text: &str, cells: usize) -> Vec<String> {
        wrap_text(text, Role::Text, cells).iter().map(Row::text).collect()
    }

    #[test]
    fn words_wrap_and_spaces_at_the_edge_vanish() {
        assert_eq!(lines("the quick brown fox", 10), ["the quick", "brown fox"]);
        assert_eq!(lines("abcdefghij klm", 10), ["abcdefghij", "klm"]);
        assert_eq!(lines("abcdefghijkl", 5), ["abcde", "fghij", "kl"]);
        assert_eq!(lines("a\n\nb", 5), ["a", "", "b"]);
    }

    #[test]
    fn names_of_options_stay_whole() {
        assert_eq!(lines("take [--with-state] or --as-is", 14), ["take", "[--with-state]", "or --as-is"]);
        assert_eq!(lines("well-known", 6), ["well-", "known"]);
        for name in
            ["/home/well-known", "./a-b", "notes-2024", "read-me.txt", "(war-and-peace.txt)", "1998-2004,", "a_b-c"]
        {
            assert_eq!(lines(&format!("see it: {name}"), name.len() + 7), ["see it:", name], "{name}");
        }
    }

    #[test]
    fn wide_text_breaks_between_characters() {
        assert_eq!(lines("日本語の文章です", 6), ["日本語", "の文章", "です"]);
    }

    proptest! {
        #[test]
        fn no_row_is_wider_and_no_visible_character_is_lost(text in "[a-c 日é👍-]{0,80}", cells in 2usize..30) {
            let rows = wrap_text(&text, Role::Text, cells);
            for r in &rows {
                prop_assert!(r.width() <= cells, "{:?}", r);
            }
            let shown: String = rows.iter().map(Row::text).collect::<String>().replace(' ', "");
            prop_assert_eq!(shown, text.replace(' ', ""));
            prop_assert!(rows.windows(2).all(|w| w[0].source <= w[1].source));
        }
    }
}
