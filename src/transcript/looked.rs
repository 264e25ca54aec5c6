//! Where an answer looked: passages of documents and of earlier messages, by the attention that they got while it was written.
//!
//! Shares are of the attention that did not rest on the first block of the context: models leave most of it there when they look
//! nowhere in particular, so it says nothing about passages.

use serde::{Deserialize, Serialize};

/// What a message remembers of where its writing looked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sources {
    /// What was looked at while the answer was written, most first.
    pub passages: Vec<Passage>,
    /// What was looked at while the thoughts before it were written.
    pub thoughts: Vec<Passage>,
    /// Share of all attention that rested on the first block.
    pub first: f32,
    /// Of the rest, the share of the question and of the answer itself.
    pub own: f32,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Blocks with the greatest shares, ascending, with ten-thousandths: for maps.
    pub blocks: Vec<(u32, u16)>,
}

/// Neighbouring blocks of one document or message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Passage {
    /// Name of the document; `None` for what was said.
    pub document: Option<String>,
    /// Number of the message that holds it, on its branch.
    pub number: u64,
    /// First line of the message's own text, from 1.
    pub first_line: u64,
    /// Last line.
    pub last_line: u64,
    /// Share, 0 to 1.
    pub share: f32,
    /// The part of it that came from rows which had to look there: it lay in the window before them.
    pub forced: f32,
    /// First block.
    pub first_block: u32,
    /// Last block.
    pub last_block: u32,
}

impl Passage {
    /// `war.txt 41,210-41,262`, `#3`. The name as it is: it has to be cleaned before it is shown.
    pub fn place(&self) -> String {
        let grouped = crate::base::grouped;
        match &self.document {
            None => format!("#{}", self.number),
            Some(name) if self.first_line == self.last_line => format!("{name} {}", grouped(self.first_line)),
            Some(name) => format!("{name} {}-{}", grouped(self.first_line), grouped(self.last_line)),
        }
    }

    /// `31%`.
    pub fn percent(&self) -> String {
        format!("{:.0}%", f64::from(self.share.clamp(0.0, 1.0)) * 100.0)
    }

    /// Its lines in the text of the message that holds it, with their numbers.
    pub fn lines<'t>(&self, text: &'t str) -> impl Iterator<Item = (u64, &'t str)> {
        let (first, last) = (self.first_line.max(1), self.last_line);
        let skipped = usize::try_from(first - 1).unwrap_or(usize::MAX);
        (1..).zip(text.lines()).skip(skipped).take_while(move |(n, _)| *n <= last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_lines_are_those_of_the_text() {
        let mut p =
            Passage { document: Some("war.txt".into()), first_line: 41_210, last_line: 41_262, ..Passage::default() };
        p.share = 0.314;
        assert_eq!((p.place(), p.percent()), ("war.txt 41,210-41,262".into(), "31%".into()));
        let p = Passage { first_line: 2, last_line: 3, ..p };
        assert_eq!(p.lines("a\nb\nc\nd").collect::<Vec<_>>(), [(2, "b"), (3, "c")]);
        assert_eq!(Passage { first_line: 2, last_line: 2, ..p.clone() }.place(), "war.txt 2");
        // Imported data can say anything.
        assert_eq!(
            Passage { first_line: 0, last_line: u64::MAX, ..p.clone() }.lines("a").collect::<Vec<_>>(),
            [(1, "a")]
        );
        assert_eq!(Passage { first_line: u64::MAX, last_line: 0, ..p }.lines("a").count(), 0);
        assert_eq!(Passage { number: 3, ..Passage::default() }.place(), "#3");
    }
}
