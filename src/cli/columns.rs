//! Lists in columns: names are whole where a program reads them, and on a terminal as far as a line has room.

use super::out;
use crate::core::sanitize::Clean;
use crate::tui::cells::width;

const LEAST: usize = 24;

/// Cells of a line that somebody sees. `None`: a file or a program has it, and nothing is cut.
pub(super) fn line_cells() -> Option<usize> {
    out::is_terminal().then(|| crossterm::terminal::size().map_or(80, |(columns, _)| usize::from(columns)))
}

/// Cells of a column of names, as wide as the longest, on a terminal at most half of the line; and the names to show there.
pub(super) fn name_column<'a>(names: impl Iterator<Item = &'a str>, line: Option<usize>) -> (usize, Vec<String>) {
    let names: Vec<String> = names.map(|name| Clean::line(name).to_string()).collect();
    let longest = names.iter().map(|name| width(name)).max().unwrap_or(0).max(LEAST);
    (line.map_or(longest, |line| longest.min((line / 2).max(LEAST))), names)
}

pub(super) fn when(ms: i64) -> String {
    let at = jiff::Timestamp::from_millisecond(ms).map(|at| at.to_zoned(jiff::tz::TimeZone::system()));
    at.map_or(String::new(), |at| at.strftime("%Y-%m-%d %H:%M").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_is_as_wide_as_its_longest_name_and_on_a_terminal_at_most_half_of_the_line() {
        let long = "n".repeat(70);
        let names = ["short", long.as_str()];
        let of = |names: &[&str], line| name_column(names.iter().copied(), line).0;
        assert_eq!([of(&names, None), of(&names, Some(160)), of(&names, Some(80))], [70, 70, 40]);
        assert_eq!([of(&["short"], None), of(&[], Some(20))], [LEAST, LEAST]);
    }
}
