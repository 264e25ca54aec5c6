//! Pages and lists that lie over the transcript. At most one is open; Esc closes it.

use super::list::List;
use super::map::MapView;
use super::markdown::{Colours, Style, render};
use super::options::Glyphs;
use super::palette::ThemeRow;
use super::rows::Row;
use super::shelf::FanOutView;
use crate::core::transcript::Finish;
use crate::runtime::protocol::{DocumentRow, Request, SearchRow, SessionRow, TimelineRow};

/// A text to read, with a scroll position.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Heading above the text.
    pub title: String,
    /// Markdown, cleaned.
    pub text: String,
    /// Its rows at the current width.
    pub rows: Vec<Row>,
    /// First row shown.
    pub top: usize,
    /// Number of the answer whose passages it shows: digits open them.
    pub looked: Option<u64>,
    /// How many passages that answer has.
    pub passages: usize,
    /// Which sentence of that answer it shows, 0 for all of it, and how many there are.
    pub sentence: (u64, u64),
    height: usize,
    width: usize,
}

impl Page {
    /// A page; rows are made by [`Overlay::set_size`].
    pub fn new(title: impl Into<String>, text: impl Into<String>) -> Page {
        Page { title: title.into(), text: text.into(), ..Page::default() }
    }

    /// Replaces the text (an aside grows), keeping the place.
    pub fn set_text(&mut self, text: String, glyphs: Glyphs) {
        if self.text != text {
            self.text = text;
            // One that waits has no place on the screen yet.
            if self.width > 0 {
                self.layout(glyphs);
            }
        }
    }

    fn layout(&mut self, glyphs: Glyphs) {
        let colours = Colours::default();
        let cells = self.width.saturating_sub(4).clamp(8, 110);
        self.rows = render(&self.text, Style { cells, glyphs, colours: &colours }).rows().to_vec();
        self.top = self.top.min(self.last_top());
    }

    fn last_top(&self) -> usize {
        self.rows.len().saturating_sub(self.body_height())
    }

    /// Rows of text on screen: title and footer take two.
    pub fn body_height(&self) -> usize {
        self.height.saturating_sub(2).max(1)
    }

    /// Scrolls.
    pub fn scroll(&mut self, by: isize) {
        self.top = self.top.saturating_add_signed(by).min(self.last_top());
    }
}

/// What lies over the transcript.
#[derive(Clone, Debug)]
pub enum Overlay {
    /// Something to read.
    Page(Page),
    /// An aside: its answer arrives here and is not kept.
    Aside {
        /// Question and answer.
        page: Page,
        /// Set when it is complete.
        done: Option<Finish>,
    },
    /// Sessions to open.
    Sessions(List<SessionRow>),
    /// Search hits.
    Found {
        /// What was searched.
        query: String,
        /// Messages that hold the words, best first.
        list: List<SearchRow>,
    },
    /// The tree of turns.
    Timeline(List<TimelineRow>),
    /// Documents of the conversation or the library.
    Documents {
        /// Whose documents they are, as a heading.
        title: String,
        /// Documents, which a filter narrows.
        list: List<DocumentRow>,
    },
    /// Earlier prompts (Ctrl-R).
    Prompts(List<String>),
    /// The context as cells.
    Map(MapView),
    /// Themes: the selected one is drawn with.
    Themes(List<ThemeRow>),
    /// What the documents of the library say to a question.
    FanOut(FanOutView),
}

impl Overlay {
    /// Lays the page out for its place on the screen.
    pub fn set_size(&mut self, width: usize, height: usize, glyphs: Glyphs) {
        match self {
            Overlay::Page(page) | Overlay::Aside { page, .. } => {
                page.height = height;
                if page.width != width || page.rows.is_empty() {
                    page.width = width;
                    page.layout(glyphs);
                }
                page.top = page.top.min(page.last_top());
            }
            // A margin on both sides; heading, a blank row, what is under the cursor, keys.
            Overlay::Map(view) => view.set_size(width.saturating_sub(4), height.saturating_sub(5)),
            Overlay::Sessions(_)
            | Overlay::Found { .. }
            | Overlay::Timeline(_)
            | Overlay::Documents { .. }
            | Overlay::Themes(_)
            | Overlay::FanOut(_)
            | Overlay::Prompts(_) => {}
        }
    }

    /// What it is called where it is not open.
    pub fn name(&self) -> &str {
        match self {
            Overlay::Page(page) => &page.title,
            Overlay::Aside { done: None, .. } => "the aside, which is being written",
            Overlay::Aside { done: Some(_), .. } => "the aside",
            Overlay::Sessions(_) => "the list of sessions",
            Overlay::Found { .. } => "what was found",
            Overlay::Timeline(_) => "the timeline",
            Overlay::Documents { title, .. } => title,
            Overlay::Prompts(_) => "earlier prompts",
            Overlay::Map(_) => "the map",
            Overlay::Themes(_) => "the list of themes",
            Overlay::FanOut(_) => "the answers of the library",
        }
    }

    /// The answer whose passages it shows.
    pub fn looked(&self) -> Option<u64> {
        match self {
            Overlay::Page(page) => page.looked,
            Overlay::Aside { .. }
            | Overlay::Sessions(_)
            | Overlay::Found { .. }
            | Overlay::Timeline(_)
            | Overlay::Documents { .. }
            | Overlay::Prompts(_)
            | Overlay::Themes(_)
            | Overlay::FanOut(_)
            | Overlay::Map(_) => None,
        }
    }

    /// What asks for the next sentence of the answer that it is about, or the one before.
    pub fn other_sentence(&self, forward: bool) -> Option<Request> {
        let Overlay::Page(page) = self else { return None };
        let ((shown, all), at) = (page.sentence, page.looked);
        match (forward, shown) {
            (true, shown) if shown < all => Some(Request::LookSentence { at, sentence: shown + 1 }),
            (false, 1) => Some(Request::Look { at, passage: None }),
            (false, shown @ 2..) => Some(Request::LookSentence { at, sentence: shown - 1 }),
            _ => None,
        }
    }

    /// Moves by rows: scrolls a page, steps through a list.
    pub fn step(&mut self, by: isize) {
        match self {
            Overlay::Page(page) | Overlay::Aside { page, .. } => page.scroll(by),
            Overlay::Sessions(list) => list.step(by),
            Overlay::Found { list, .. } => list.step(by),
            Overlay::Timeline(list) => list.step(by),
            Overlay::Documents { list, .. } => list.step(by),
            Overlay::Prompts(list) => list.step(by),
            Overlay::Themes(list) => list.step(by),
            Overlay::FanOut(shelf) => shelf.list.step(by),
            Overlay::Map(view) => view.step(by.saturating_mul(isize::try_from(view.row()).unwrap_or(1))),
        }
    }

    /// What is typed into its filter; `None` if it has none.
    pub fn query(&self) -> Option<&str> {
        match self {
            Overlay::Sessions(list) => Some(list.query()),
            Overlay::Documents { list, .. } => Some(list.query()),
            Overlay::Prompts(list) => Some(list.query()),
            Overlay::Themes(list) => Some(list.query()),
            Overlay::FanOut(shelf) => Some(shelf.list.query()),
            Overlay::Page(_)
            | Overlay::Aside { .. }
            | Overlay::Found { .. }
            | Overlay::Timeline(_)
            | Overlay::Map(_) => None,
        }
    }

    /// Changes its filter.
    pub fn set_query(&mut self, query: String) {
        match self {
            // A slash asks for a search inside the texts: the names are not filtered by it.
            Overlay::Sessions(list) if query.starts_with('/') => {
                list.set_query(String::new());
                list.set_query_text(query);
            }
            Overlay::Sessions(list) => list.set_query(query),
            Overlay::Documents { list, .. } => list.set_query(query),
            Overlay::Prompts(list) => list.set_query(query),
            Overlay::Themes(list) => list.set_query(query),
            Overlay::FanOut(shelf) => shelf.list.set_query(query),
            Overlay::Page(_)
            | Overlay::Aside { .. }
            | Overlay::Found { .. }
            | Overlay::Timeline(_)
            | Overlay::Map(_) => {}
        }
    }

    /// Keys shown at its foot.
    pub fn footer(&self) -> &'static str {
        match self {
            Overlay::Page(page) if page.sentence.0 > 0 => "Left/Right other sentences   Up/Down scroll   Esc closes",
            Overlay::Page(page) => match (page.passages, page.sentence.1) {
                (0, 0) => "Up/Down PgUp/PgDn scroll   Esc closes",
                (0, _) => "Right by sentence   Up/Down scroll   Esc closes",
                (1, 0) => "1 opens the passage   Up/Down scroll   Esc closes",
                (1, _) => "1 opens the passage   Right by sentence   Up/Down scroll   Esc closes",
                (_, 0) => "1-9 opens a passage   Up/Down scroll   Esc closes",
                (_, _) => "1-9 opens a passage   Right by sentence   Up/Down scroll   Esc closes",
            },
            Overlay::Aside { done: None, .. } => "answering; not kept   Esc stops and closes",
            Overlay::Aside { done: Some(_), .. } => "not kept   Up/Down scroll   Esc closes",
            Overlay::Sessions(_) => "type to filter   /words in texts   Enter opens   Esc closes",
            Overlay::Found { list, .. } if list.items().is_empty() => "Esc closes",
            Overlay::Found { .. } => "Enter opens at the message   Esc closes",
            Overlay::Timeline(_) => "Enter goes there   f forks there   Esc closes",
            Overlay::Documents { list, .. } if list.items().is_empty() => "Esc closes",
            Overlay::Documents { .. } => "type to filter   Enter shows the text   Esc closes",
            Overlay::Map(_) => "arrows move   Enter opens   Esc closes",
            Overlay::Themes(_) => "Up/Down show   type to filter   Enter takes   Esc keeps what was",
            Overlay::FanOut(shelf) if shelf.over => "type to filter   Enter opens the answer in a session   Esc closes",
            Overlay::FanOut(_) => "asking   Esc stops",
            Overlay::Prompts(_) => "type to search   Ctrl-R next   Enter takes   Esc closes",
        }
    }
}
