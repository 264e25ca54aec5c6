//! The answers of several documents to one question, as a table and as lines.

use crate::core::sanitize::sanitize_line;
use crate::core::transcript::Finish;
use crate::runtime::protocol::{FanOut, FanOutRow};

/// `41,210-41,262`: the passage with the most attention, in the answer's own document.
pub fn lines(row: &FanOutRow) -> String {
    let own = row.passages.iter().find(|p| p.document.as_deref() == Some(row.document.as_str()));
    let place = own.map(|p| p.place());
    place.and_then(|place| place.get(row.document.len() + 1..).map(str::to_owned)).unwrap_or_default()
}

pub fn likely(row: &FanOutRow) -> String {
    row.likelihood().map_or(String::new(), |p| format!("{:.0}%", p * 100.0))
}

pub fn answer(row: &FanOutRow) -> String {
    match (&row.failed, row.finish) {
        (Some(why), _) => format!("({why})"),
        (None, Some(Finish::Stopped)) => format!("{} (stopped)", flat(&row.text)),
        (None, None) if row.text.is_empty() => String::new(),
        (None, _) => flat(&row.text),
    }
}

fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

pub fn sentences(fan_out: &FanOut) -> Vec<String> {
    let row = |r: &FanOutRow| {
        let mut notes = Vec::new();
        notes.extend(Some(lines(r)).filter(|l| !l.is_empty()).map(|l| format!("lines {l}")));
        notes.extend(Some(likely(r)).filter(|p| !p.is_empty()).map(|p| format!("each token {p} likely")));
        let notes = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join("; ")) };
        format!("{}: {}{notes}", sanitize_line(&r.document), sanitize_line(&answer(r)))
    };
    fan_out.rows.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::transcript::Passage;

    #[test]
    fn a_row_says_the_answer_its_lines_and_how_likely_it_is() {
        let passage = |document: &str| Passage {
            document: Some(document.into()),
            number: 1,
            first_line: 41_210,
            last_line: 41_262,
            ..Passage::default()
        };
        let answered = FanOutRow {
            document: "war.txt".into(),
            text: "Prince\nAndrei\u{1b}[2J".into(),
            finish: Some(Finish::Stop),
            passages: vec![passage("other.txt"), passage("war.txt")],
            log_probability: Some(-0.0726),
            ..FanOutRow::default()
        };
        let failed =
            FanOutRow { document: "b.txt".into(), failed: Some("no kept state".into()), ..FanOutRow::default() };
        let stopped = FanOutRow { finish: Some(Finish::Stopped), ..answered.clone() };
        assert_eq!([&answered, &failed, &stopped].map(FanOutRow::is_answered), [true, false, false]);
        let fan_out = FanOut { question: "Who?".into(), rows: vec![answered, failed], over: true };
        let lines = sentences(&fan_out);
        assert!(lines[0].starts_with("war.txt: Prince Andrei") && !lines[0].contains('\u{1b}'), "{lines:?}");
        assert!(lines[0].ends_with("(lines 41,210-41,262; each token 93% likely)"), "{lines:?}");
        assert_eq!(lines[1], "b.txt: (no kept state)");
    }
}
