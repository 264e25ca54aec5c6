//! A page of text over the transcript: replies to commands, the passages of an answer, an aside.

use ratatui::layout::Rect;

use super::markdown::{Colours, Stream, Style, render};
use super::options::Glyphs;
use super::paint::Painter;
use super::rows::Role;
use crate::runtime::protocol::Request;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum About {
    #[default]
    Text,
    /// What an answer looked at; digits open the passages.
    Answer {
        number: u64,
        passages: usize,
        /// The shown sentence (0: all of the answer), and the number of sentences.
        sentence: (u64, u64),
    },
    /// A question and its answer, which are not saved.
    Aside { done: bool },
}

#[derive(Clone, Debug, Default)]
pub struct Page {
    pub title: String,
    pub text: String,
    pub about: About,
    body: Stream,
    top: usize,
    /// Of the body, without title and footer; 0 before the first layout.
    height: usize,
    width: usize,
}

impl Page {
    /// `set_size` computes the rows.
    pub fn new(title: impl Into<String>, text: impl Into<String>, about: About) -> Page {
        Page { title: title.into(), text: text.into(), about, ..Page::default() }
    }

    pub(super) fn is_written(&self) -> bool {
        self.about == About::Aside { done: false }
    }

    pub(super) fn set_text(&mut self, text: String) {
        (self.text, self.width) = (text, 0);
    }

    pub(super) fn set_size(&mut self, width: usize, height: usize, glyphs: Glyphs) {
        self.height = height.saturating_sub(2).max(1);
        if self.width != width {
            self.width = width;
            let cells = width.saturating_sub(4).clamp(8, 110);
            self.body = render(&self.text, Style { cells, glyphs, colours: &Colours::default() });
        }
        self.scroll(0);
    }

    pub(super) fn scroll(&mut self, by: isize) {
        let last = self.body.rows().len().saturating_sub(self.height);
        self.top = self.top.saturating_add_signed(by).min(last);
    }

    pub(super) fn passage(&self, digit: char) -> Option<Request> {
        let About::Answer { number, .. } = self.about else { return None };
        let passage = digit.to_digit(10).map(u64::from).filter(|n| *n > 0)?;
        Some(Request::Look { at: Some(number), passage: Some(passage) })
    }

    pub(super) fn other_sentence(&self, forward: bool) -> Option<Request> {
        let About::Answer { number, sentence: (shown, all), .. } = self.about else { return None };
        let at = Some(number);
        match (forward, shown) {
            (true, shown) if shown < all => Some(Request::LookSentence { at, sentence: shown + 1 }),
            (false, 1) => Some(Request::Look { at, passage: None }),
            (false, shown @ 2..) => Some(Request::LookSentence { at, sentence: shown - 1 }),
            _ => None,
        }
    }

    pub(super) fn footer(&self) -> String {
        let (passages, sentence) = match self.about {
            About::Aside { done: false } => return "answering; not kept   Esc stops and closes".into(),
            About::Aside { done: true } => return "not kept   Up/Down scroll   Esc closes".into(),
            About::Answer { sentence: (1.., _), .. } => {
                return "Left/Right other sentences   Up/Down scroll   Esc closes".into();
            }
            About::Text => (0, 0),
            About::Answer { passages, sentence: (_, all), .. } => (passages, all),
        };
        let scrolls = if passages == 0 && sentence == 0 { "Up/Down PgUp/PgDn scroll" } else { "Up/Down scroll" };
        let opens = ["", "1 opens the passage   ", "1-9 opens a passage   "][passages.min(2)];
        let steps = if sentence > 0 { "Right by sentence   " } else { "" };
        format!("{opens}{steps}{scrolls}   Esc closes")
    }

    pub(super) fn draw(&self, painter: &mut Painter<'_>, area: Rect) {
        painter.text(area, 0, &format!(" {}", self.title), Role::Heading);
        let rows = self.body.rows();
        painter.rows(area, 1, 2, rows.iter().skip(self.top).take(self.height));
        if rows.len() > self.height {
            let last = (self.top + self.height).min(rows.len());
            painter.right(area, 0, 1, &format!("{}-{last} of {}", self.top + 1, rows.len()), Role::Dim);
        }
    }
}
