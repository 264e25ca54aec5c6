//! The needles' grid as a picture: characters for a terminal, SVG for a file.

use std::fmt::Write as _;

use super::needles::{Cell, DEPTHS};

fn lengths(cells: &[Cell]) -> Vec<usize> {
    let mut lengths: Vec<usize> = cells.iter().map(|c| c.length).collect();
    lengths.sort_unstable();
    lengths.dedup();
    lengths
}

fn at(cells: &[Cell], length: usize, depth: usize) -> Option<&Cell> {
    cells.iter().find(|c| c.length == length && c.depth == depth)
}

fn short(tokens: usize) -> String {
    match tokens {
        0..1_000 => tokens.to_string(),
        1_000..1_000_000 => format!("{}k", (tokens + 500) / 1_000),
        _ => format!("{:.1}M", tokens as f64 / 1e6),
    }
}

pub fn table(cells: &[Cell]) -> Vec<String> {
    let lengths = lengths(cells);
    let mut head = "    depth".to_owned();
    lengths.iter().for_each(|l| head.push_str(&format!("{:>8}", short(*l))));
    let mut rows = vec![head];
    for depth in DEPTHS {
        let mut row = format!("    {depth:>4}%");
        for length in &lengths {
            match at(cells, *length, depth) {
                Some(c) => row.push_str(&format!("{:>8}", format!("{} {}/{}", shade(c), c.found, c.questions))),
                None => row.push_str(&format!("{:>8}", "-")),
            }
        }
        rows.push(row);
    }
    rows
}

fn shade(cell: &Cell) -> char {
    const RAMP: [char; 4] = ['.', 'o', 'O', '#'];
    let step = cell.found * (RAMP.len() - 1) / cell.questions.max(1);
    RAMP.get(step).copied().unwrap_or('#')
}

pub fn svg(cells: &[Cell], title: &str) -> String {
    let (lengths, cell, left, top) = (lengths(cells), 48, 70, 50);
    let (width, height) = (left + cell * lengths.len() + 20, top + cell / 2 * DEPTHS.len() + 40);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n"
    );
    let title = title.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    // Writing to a string cannot fail.
    let _ =
        writeln!(out, "<rect width=\"100%\" height=\"100%\" fill=\"white\"/><text x=\"10\" y=\"20\">{title}</text>");
    for (x, length) in lengths.iter().enumerate() {
        let _ = writeln!(out, "<text x=\"{}\" y=\"{}\">{}</text>", left + x * cell + 8, top - 8, short(*length));
        for (y, depth) in DEPTHS.iter().enumerate() {
            let Some(c) = at(cells, *length, *depth) else { continue };
            let share = c.found as f64 / c.questions.max(1) as f64;
            let (red, green) = ((220.0 * (1.0 - share)) as u8 + 20, (160.0 * share) as u8 + 40);
            let (px, py) = (left + x * cell, top + y * cell / 2);
            let _ = writeln!(
                out,
                "<rect x=\"{px}\" y=\"{py}\" width=\"{}\" height=\"{}\" fill=\"rgb({red},{green},60)\"><title>{}/{}</title></rect>",
                cell - 2,
                cell / 2 - 2,
                c.found,
                c.questions
            );
        }
    }
    for (y, depth) in DEPTHS.iter().enumerate() {
        let _ = writeln!(out, "<text x=\"10\" y=\"{}\">{depth} %</text>", top + y * cell / 2 + 15);
    }
    out.push_str("</svg>\n");
    out
}
