//! Lists in columns. A program that reads them gets every cell whole; on a terminal a row is one line.

use super::out;
use crate::tui::cells::{ellipsis, fit, width};

/// Cells that the last column needs at least.
const LEAST: usize = 12;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

/// Cells of a line that somebody sees. `None`: a file or a program has it, and nothing is cut.
pub(super) fn line_cells() -> Option<usize> {
    out::is_terminal().then(|| crossterm::terminal::size().map_or(80, |(columns, _)| usize::from(columns)))
}

/// A line of headings and one for each row. In a line of limited cells the first column takes at most half, the last one
/// what is left, and columns without room are left out.
pub(super) fn table<const N: usize>(
    columns: [(&str, Side); N],
    rows: impl IntoIterator<Item = [String; N]>,
    line: Option<usize>,
) -> Vec<String> {
    let headings = columns.map(|(heading, _)| heading.to_owned());
    let rows: Vec<[String; N]> = std::iter::once(headings).chain(rows).collect();
    let mut used = 0;
    let mut widths = Vec::new();
    for i in 0..N {
        let widest = rows.iter().map(|row| width(&ellipsis(&row[i], usize::MAX))).max().unwrap_or(0);
        let room = line.map_or(usize::MAX, |line| if i == 0 { line / 2 } else { line.saturating_sub(used) });
        let is_cut = i == 0 || (i + 1 == N && room >= LEAST);
        if widest > room && !is_cut {
            break;
        }
        widths.push(widest.min(room));
        used += widest.min(room) + 2;
    }
    let cell = |((text, (_, side)), width): ((&String, (&str, Side)), &usize)| match side {
        Side::Left => fit(text, *width),
        Side::Right => format!("{text:>width$}"),
    };
    let line = |row: &[String; N]| {
        let cells: Vec<String> = row.iter().zip(columns).zip(&widths).map(cell).collect();
        cells.join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

pub(super) fn when(ms: i64) -> String {
    let at = jiff::Timestamp::from_millisecond(ms).map(|at| at.to_zoned(jiff::tz::TimeZone::system()));
    at.map_or(String::new(), |at| at.strftime("%Y-%m-%d %H:%M").to_string())
}

#[cfg(test)]
mod tests {
    use super::Side::{Left, Right};
    use super::*;

    #[test]
    fn a_table_is_whole_for_a_program_and_fits_into_a_line() {
        let row = |name: &str, size: &str, title: &str| [name, size, title].map(str::to_owned);
        let long = "n".repeat(30);
        let rows = [row(&long, "2.4 GiB", "a title of some length"), row("b\x1b", "7 B", "")];
        let lines = |line| table([("name", Left), ("size", Right), ("title", Left)], rows.clone(), line);
        let whole = format!("{long}  2.4 GiB  a title of some length");
        assert_eq!(lines(None)[1], whole);
        let name = "name".to_owned() + &" ".repeat(26);
        assert_eq!(lines(None)[0], format!("{name}     size  title"));
        assert_eq!(lines(None)[2], format!("b\\x1b{}      7 B", " ".repeat(25)));
        assert_eq!(lines(Some(60))[1], format!("{long}  2.4 GiB  a title of some ..."));
        assert_eq!(lines(Some(40))[1], format!("{}...  2.4 GiB", "n".repeat(17)), "no room for a title");
        assert_eq!(lines(Some(14))[1], "nnnn...", "nor for a size");
    }
}
