//! Pages and lists over the transcript. At most one is open; Esc closes it.

use super::event::FileRow;
use super::list::List;
use super::map::MapView;
use super::markdown::{Colours, Style, render};
use super::options::Glyphs;
use super::palette::ThemeRow;
use super::rows::Row;
use crate::core::transcript::Finish;
use crate::runtime::protocol::{DocumentRow, FanOutRow, Request, SearchRow, SessionRow, TimelineRow};

#[derive(Clone, Debug, Default)]
pub struct Page {
    pub title: String,
    pub text: String,
    pub rows: Vec<Row>,
    pub top: usize,
    /// The answer that the passages belong to; digits open them.
    pub looked: Option<u64>,
    pub passages: usize,
    /// Shown sentence of that answer (0: all of it), and the number of sentences.
    pub sentence: (u64, u64),
    pub(super) height: usize,
    pub(super) width: usize,
}

impl Page {
    /// [`Overlay::set_size`] computes the rows.
    pub fn new(title: impl Into<String>, text: impl Into<String>) -> Page {
        Page { title: title.into(), text: text.into(), ..Page::default() }
    }

    pub fn set_text(&mut self, text: String, glyphs: Glyphs) {
        if self.text != text {
            self.text = text;
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

    /// Title and footer take two rows.
    pub fn body_height(&self) -> usize {
        self.height.saturating_sub(2).max(1)
    }

    pub fn scroll(&mut self, by: isize) {
        self.top = self.top.saturating_add_signed(by).min(self.last_top());
    }
}

#[derive(Clone, Debug)]
pub enum Overlay {
    Page(Page),
    // A question and its answer, which are not saved; `done` is set when the answer is complete.
    Aside { page: Page, done: Option<Finish> },
    Map(MapView),
    List(ListView),
}

/// The kind of a list determines its columns, its keys and whether letters filter it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Sessions,
    Found,
    Timeline,
    Documents,
    Prompts,
    Themes,
    Answers,
    Settings,
    Help,
    Files,
}

impl Kind {
    /// In the other lists letters are commands.
    pub fn has_filter(self) -> bool {
        !matches!(self, Kind::Found | Kind::Timeline)
    }

    /// The list's name in hints, and its keys.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Kind::Sessions => ("the list of sessions", SESSION_KEYS[0]),
            Kind::Found => ("search results", "Enter opens at the message   Esc closes"),
            Kind::Timeline => ("the timeline", "Enter goes there   f forks there   Esc closes"),
            Kind::Documents => ("the documents", "type to filter   Enter shows the text   Esc closes"),
            Kind::Prompts => ("earlier prompts", "type to search   Ctrl-R next   Enter inserts   Esc closes"),
            Kind::Themes => ("the list of themes", "Up/Down show   type to filter   Enter applies   Esc cancels"),
            Kind::Answers => {
                ("the answers of the library", "type to filter   Enter opens the answer in a session   Esc closes")
            }
            Kind::Settings => ("the settings", "type to filter   Enter changes   Esc closes"),
            Kind::Help => ("help", "type to filter   Enter inserts the command   Esc closes"),
            Kind::Files => {
                ("the list of files", "type to filter   Enter opens or loads   Left folder above   Esc closes")
            }
        }
    }
}

#[derive(Clone, Debug)]
pub enum Item {
    Session(SessionRow),
    Hit(SearchRow),
    Turn(TimelineRow),
    Document(DocumentRow),
    Prompt(String),
    Theme(ThemeRow),
    /// An answer of a fan-out, with its index in the runtime's table.
    Answer(usize, FanOutRow),
    Setting(SettingRow),
    Help(HelpRow),
    Heading(String),
    File(FileRow),
}

impl Item {
    fn text(&self) -> String {
        match self {
            Item::Session(r) => format!("{} {}", r.name, r.title),
            Item::Hit(r) => r.snippet.clone(),
            Item::Turn(r) => r.title.clone(),
            Item::Document(r) => r.name.clone(),
            Item::Prompt(text) => text.clone(),
            Item::Theme(r) => r.name.clone(),
            Item::Answer(_, r) => format!("{} {}", r.document, r.text),
            Item::Setting(r) => format!("{} {}", r.name, r.help),
            Item::Help(r) => format!("{} {}", r.what, r.words),
            Item::Heading(_) => String::new(),
            Item::File(r) => r.name.clone(),
        }
    }
}

#[derive(Clone, Debug)]
pub struct SettingRow {
    pub name: &'static str,
    pub value: String,
    pub help: &'static str,
    /// The value differs from the default.
    pub changed: bool,
    /// The command that sets the present value.
    pub line: String,
}

#[derive(Clone, Debug)]
pub struct HelpRow {
    /// A command with its arguments, or keys.
    pub what: String,
    /// The same for a narrow window.
    pub short: String,
    pub does: String,
    pub words: String,
    pub line: Option<String>,
}

impl HelpRow {
    pub const CELLS: usize = 26;
}

#[derive(Clone, Debug)]
pub struct ListView {
    pub kind: Kind,
    pub title: String,
    pub list: List<Item>,
    pub open: bool,
    pub folder: String,
    pub(super) picked: Picked,
}

/// Keys of the list of sessions, in the longest form that fits.
const SESSION_KEYS: [&str; 3] = [
    "F2 rename  F3 pin  Del delete  Ctrl-S sort  Ctrl-F folder  / texts  Esc closes",
    "F2 name F3 pin Del delete ^S sort ^F folder / texts Esc",
    "F2 name F3 pin Del ^S ^F Esc",
];

/// Which sessions the list shows, and in which order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Picked {
    pub order: Order,
    pub this_folder: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    /// As the runtime sends them: pinned first, then by date.
    #[default]
    Date,
    Name,
    Tokens,
}

impl ListView {
    pub fn new(kind: Kind, title: impl Into<String>, items: impl IntoIterator<Item = Item>) -> ListView {
        let list = List::new(items.into_iter().collect(), Item::text, matches!(kind, Kind::Help | Kind::Settings));
        ListView { kind, title: title.into(), list, open: false, folder: String::new(), picked: Picked::default() }
    }

    fn footer(&self, cells: usize) -> &'static str {
        match self.kind {
            Kind::Found | Kind::Documents if self.list.items().is_empty() => "Esc closes",
            Kind::Sessions => SESSION_KEYS.into_iter().find(|keys| keys.len() < cells).unwrap_or(SESSION_KEYS[2]),
            Kind::Answers if self.open => "asking   Esc stops",
            Kind::Help if matches!(self.list.selected(), Some(Item::Help(HelpRow { line: None, .. }))) => {
                "type to filter   Enter or Esc closes"
            }
            kind => kind.words().1,
        }
    }
}

impl Overlay {
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
            // Margins on both sides; heading, blank row, description and keys take five rows.
            Overlay::Map(view) => view.set_size(width.saturating_sub(4), height.saturating_sub(5)),
            Overlay::List(_) => {}
        }
    }

    pub fn name(&self) -> &str {
        match self {
            Overlay::Page(page) => &page.title,
            Overlay::Aside { done: None, .. } => "the aside, which is being written",
            Overlay::Aside { done: Some(_), .. } => "the aside",
            Overlay::Map(_) => "the map",
            Overlay::List(view) if view.kind == Kind::Documents => &view.title,
            Overlay::List(view) => view.kind.words().0,
        }
    }

    /// Whether it shows work of the session on screen, and closes with that session.
    pub(super) fn belongs_to_session(&self) -> bool {
        match self {
            Overlay::Aside { done, .. } => done.is_none(),
            Overlay::List(view) => view.kind == Kind::Answers,
            Overlay::Page(_) | Overlay::Map(_) => false,
        }
    }

    pub fn looked(&self) -> Option<u64> {
        if let Overlay::Page(page) = self { page.looked } else { None }
    }

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

    pub fn step(&mut self, by: isize) {
        match self {
            Overlay::Page(page) | Overlay::Aside { page, .. } => page.scroll(by),
            Overlay::List(view) => view.list.step(by),
            Overlay::Map(view) => view.scroll(by),
        }
    }

    /// `None` if the list has no filter.
    pub fn query(&self) -> Option<&str> {
        match self {
            Overlay::List(view) if view.kind.has_filter() => Some(view.list.query()),
            _ => None,
        }
    }

    pub fn set_query(&mut self, query: String) {
        match self {
            // A slash searches message texts, so it does not filter names.
            Overlay::List(view) if view.kind == Kind::Sessions && query.starts_with('/') => {
                view.list.set_query(String::new());
                view.list.set_query_text(query);
            }
            // A slash begins a search, as in a pager.
            Overlay::List(view) if view.kind == Kind::Help => {
                view.list.set_query(query.trim_start_matches('/').to_owned());
            }
            Overlay::List(view) if view.kind.has_filter() => view.list.set_query(query),
            _ => {}
        }
    }

    /// The keys of the open page or list, for a line of so many cells.
    pub fn footer(&self, cells: usize) -> &'static str {
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
            Overlay::Map(_) => "arrows move   Enter opens   Esc closes",
            Overlay::List(view) => view.footer(cells),
        }
    }
}
