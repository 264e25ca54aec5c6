//! Width of text in cells, by grapheme clusters and by the same rule as drawing, and cuts that never divide a cluster.
//! Text that is cut to a width is sanitized before, because a spelled-out control character is wider.

use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

use crate::core::sanitize::sanitize_line;

/// Halfwidth sound marks count as in terminals (and ratatui).
pub fn cluster_width(cluster: &str) -> usize {
    if cluster.len() == 1 {
        return 1;
    }
    cluster.width() + cluster.chars().filter(|c| matches!(c, '\u{ff9e}' | '\u{ff9f}')).count()
}

pub fn width(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { text.graphemes(true).map(cluster_width).sum() }
}

pub fn clip(text: &str, cells: usize) -> &str {
    let mut used = 0;
    for (at, cluster) in text.grapheme_indices(true) {
        used += cluster_width(cluster);
        if used > cells {
            return &text[..at];
        }
    }
    text
}

pub fn ellipsis(text: &str, cells: usize) -> String {
    let text = sanitize_line(text);
    if width(&text) <= cells {
        return text.into_owned();
    }
    if cells <= 3 {
        return clip(&text, cells).to_string();
    }
    format!("{}...", clip(&text, cells - 3))
}

pub fn fit(text: &str, cells: usize) -> String {
    let mut out = ellipsis(text, cells);
    let used = width(&out);
    out.extend(std::iter::repeat_n(' ', cells.saturating_sub(used)));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_text_is_counted_and_cut_as_it_is_drawn() {
        assert_eq!(width("👩‍👩‍👧❤️"), 4);
        assert_eq!(ellipsis("日本語の文章", 8), "日本...");
        assert_eq!(width(&fit("日本語", 5)), 5);
    }
}
