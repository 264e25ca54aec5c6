//! Unified diffs of lines: made, and applied to the text they start from.

use std::time::Duration;

use similar::TextDiff;

/// Unchanged lines around a change.
const CONTEXT: usize = 3;
/// Time for the smallest diff of two long texts; after it the diff is correct, but longer.
const PATIENCE: Duration = Duration::from_millis(500);
/// Follows a line without a line end, as in other programs.
const NO_LINE_END: &str = "\\ No newline at end of file";

fn lines(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').collect()
}

/// A unified diff with the file's name above it; empty if the texts are equal.
pub fn unified(name: &str, old: &str, new: &str) -> String {
    let (old, new) = (lines(old), lines(new));
    let diff = TextDiff::configure().timeout(PATIENCE).diff_slices(&old, &new);
    let mut text = String::new();
    for hunk in diff.unified_diff().context_radius(CONTEXT).iter_hunks() {
        if text.is_empty() {
            text = format!("--- {name}\n+++ {name}\n");
        }
        text.push_str(&format!("{}\n", hunk.header()));
        for change in hunk.iter_changes() {
            text.push_str(&format!("{}{}", change.tag(), change.value()));
            if !change.value().ends_with('\n') {
                text.push_str(&format!("\n{NO_LINE_END}\n"));
            }
        }
    }
    text
}

/// The text that a diff of [`unified`] leads to; `None` if the diff does not start from this text.
pub fn apply(old: &str, diff: &str) -> Option<String> {
    let old = lines(old);
    let (mut new, mut at, mut inside) = (String::new(), 0, false);
    let mut rest = diff.split_inclusive('\n').peekable();
    while let Some(line) = rest.next() {
        if let Some(place) = line.strip_prefix("@@ -") {
            let place = place.split_once(' ')?.0;
            let (start, count) = place.split_once(',').unwrap_or((place, "1"));
            let start = start.parse::<usize>().ok()?.checked_sub(usize::from(count != "0"))?;
            new.extend(old.get(at..start)?.iter().copied());
            (at, inside) = (start, true);
            continue;
        }
        if !inside {
            continue;
        }
        let (mark, text) = line.split_at_checked(1)?;
        let unended = rest.next_if(|next| next.starts_with('\\')).is_some();
        let text = if unended { text.strip_suffix('\n')? } else { text };
        if mark != "+" {
            if old.get(at) != Some(&text) {
                return None;
            }
            at += 1;
        }
        if mark != "-" {
            new.push_str(text);
        }
    }
    new.extend(old.get(at..)?.iter().copied());
    Some(new)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_diff_shows_the_change_with_three_lines_around_it() {
        let old: String = (1..=20).map(|n| format!("line {n}\n")).collect();
        let new = old.replace("line 10\n", "line ten\nand more\n");
        let diff = "--- a.txt\n+++ a.txt\n@@ -7,7 +7,8 @@\n line 7\n line 8\n line 9\n-line 10\n+line ten\n+and more\n line 11\n \
                    line 12\n line 13\n";
        assert_eq!(unified("a.txt", &old, &new), diff);
        assert_eq!(apply(&old, diff), Some(new));
        assert_eq!(apply(&old.replace("line 8\n", "line eight\n"), diff), None);
        assert_eq!(unified("a.txt", &old, &old), "");
    }

    #[test]
    fn a_huge_rewrite_takes_no_longer_than_its_time() {
        let text = |word: &str| (0..60_000).map(|n| format!("{word} {}\n", n * 7919 % 60_000)).collect::<String>();
        let (old, new) = (text("old"), text("new").replace("new 7", "old 7"));
        let begun = Instant::now();
        let diff = unified("a", &old, &new);
        assert!(begun.elapsed() < 20 * PATIENCE, "{:?}", begun.elapsed());
        assert_eq!(apply(&old, &diff), Some(new));
    }

    proptest! {
        #[test]
        fn a_diff_leads_from_one_text_to_the_other(old in "[ab@+\\-\\\\\r\n]{0,60}", new in "[ab@+\\-\\\\\r\n]{0,60}") {
            prop_assert_eq!(apply(&old, &unified("x", &old, &new)), Some(new));
        }
    }
}
