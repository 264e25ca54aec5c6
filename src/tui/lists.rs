//! Lists: rows of one kind with a selected one, a filter, and a line of keys.

mod rows;
pub(super) mod sessions;

use std::cmp::Reverse;

use nucleo_matcher::pattern::{CaseMatching, Normalization, Pattern};
use nucleo_matcher::{Config, Matcher, Utf32Str};
use ratatui::layout::{Position, Rect};

use super::App;
use super::cells::{ellipsis, width};
use super::map::MapRow;
use super::paint::Painter;
use super::rows::{Role, Span};
use crate::runtime::protocol::{DocumentRow, FanOut, FanOutRow, SearchRow, SessionRow, TimelineRow};
pub(super) use rows::lanes;
use sessions::Picked;

/// The kind of a list determines its columns, its keys and whether letters filter it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Sessions,
    Found,
    Timeline,
    Documents,
    Map,
    Prompts,
    Answers,
    Settings,
    Help,
}

impl Kind {
    fn keys(self) -> &'static str {
        match self {
            Kind::Sessions => "F2 rename   F3 pin   Del delete   / texts   ^S sort   ^F folder   Esc closes",
            Kind::Found => "Enter opens at the message   Esc closes",
            Kind::Timeline => "Enter goes there   f forks there   Esc closes",
            Kind::Documents => "type to filter   Enter shows the text   Esc closes",
            Kind::Map => "type to filter   Enter opens   Esc closes",
            Kind::Prompts => "type to search   Ctrl-R next   Enter inserts   Esc closes",
            Kind::Answers => "type to filter   Enter opens the answer in a session   Esc closes",
            Kind::Settings => "type to filter   Enter changes   Esc closes",
            Kind::Help => "type to filter   Enter inserts the command   Esc closes",
        }
    }

    /// Headings of the columns, left and right.
    fn columns(self, cells: u16) -> [&'static str; 2] {
        match self {
            Kind::Sessions if cells < rows::DATES => ["   name", "tokens"],
            Kind::Sessions if cells < rows::ALL_COLUMNS => ["   name", "tokens  changed     "],
            Kind::Sessions => ["   name", "messages   tokens  state       size  changed     "],
            Kind::Documents if cells < rows::ALL_COLUMNS => ["   name", "tokens  state    "],
            Kind::Documents => ["   name", "tokens     lines      size  state    "],
            Kind::Answers => ["   document", "lines looked at  likely "],
            Kind::Map => ["   from token", "looked at "],
            Kind::Found | Kind::Timeline | Kind::Prompts | Kind::Settings | Kind::Help => ["", ""],
        }
    }
}

#[derive(Clone, Debug)]
pub enum Item {
    Session(SessionRow),
    Hit(SearchRow),
    Turn(TimelineRow),
    Document(DocumentRow),
    Place(MapRow),
    Prompt(String),
    /// An answer of a fan-out, with its index in the runtime's table.
    Answer(usize, FanOutRow),
    Setting(SettingRow),
    Help(HelpRow),
    Heading(String),
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
    items: Vec<Item>,
    /// What the filter looks at, by item.
    texts: Vec<String>,
    /// Indices of the items that match the filter.
    shown: Vec<usize>,
    selected: usize,
    query: String,
    /// More answers follow.
    pub open: bool,
    picked: Picked,
}

/// Indices of matching `texts`, best first; all of them for an empty query.
pub fn fuzzy<S: AsRef<str>>(query: &str, texts: &[S]) -> Vec<usize> {
    if query.trim().is_empty() {
        return (0..texts.len()).collect();
    }
    let pattern = Pattern::parse(query, CaseMatching::Smart, Normalization::Smart);
    let (mut matcher, mut buffer) = (Matcher::new(Config::DEFAULT), Vec::new());
    let mut score = |text: &S| pattern.score(Utf32Str::new(text.as_ref(), &mut buffer), &mut matcher);
    let mut scored: Vec<(u32, usize)> = texts.iter().zip(0..).filter_map(|(t, i)| Some((score(t)?, i))).collect();
    scored.sort_by_key(|(score, i)| (Reverse(*score), *i));
    scored.into_iter().map(|(_, i)| i).collect()
}

/// The first of `count` rows on screen, so that `selected` is near the middle.
pub(super) fn first_row(selected: usize, count: usize, height: usize) -> usize {
    selected.saturating_sub(height / 2).min(count.saturating_sub(height))
}

impl ListView {
    pub fn new(kind: Kind, title: impl Into<String>, items: impl IntoIterator<Item = Item>) -> ListView {
        let items: Vec<Item> = items.into_iter().collect();
        ListView {
            kind,
            title: title.into(),
            texts: items.iter().map(rows::text).collect(),
            shown: (0..items.len()).collect(),
            items,
            selected: 0,
            query: String::new(),
            open: false,
            picked: Picked::default(),
        }
    }

    pub(super) fn shown(&self) -> impl ExactSizeIterator<Item = &Item> {
        self.shown.iter().map(|i| &self.items[*i])
    }

    pub fn selected_index(&self) -> usize {
        self.selected
    }

    pub(super) fn selected(&self) -> Option<&Item> {
        self.shown.get(self.selected).and_then(|i| self.items.get(*i))
    }

    pub(super) fn select(&mut self, index: usize) {
        self.selected = index.min(self.shown.len().saturating_sub(1));
    }

    /// While a session is renamed, the selection stays.
    pub(super) fn step(&mut self, by: isize) {
        if self.picked.rename.is_none() {
            self.select(self.selected.saturating_add_signed(by));
        }
    }

    /// The new name of a session while one is typed, else the filter. In lists without one, letters are commands.
    pub(super) fn query(&self) -> Option<&str> {
        match self.kind {
            Kind::Found | Kind::Timeline => None,
            _ => Some(self.picked.rename.as_ref().map_or(&self.query, |(_, name)| name)),
        }
    }

    /// The words after a slash in the list of sessions: Enter searches the messages of all sessions for them.
    pub(super) fn searched(&self) -> Option<&str> {
        self.query.strip_prefix('/').filter(|_| self.kind == Kind::Sessions).map(str::trim)
    }

    pub(super) fn is_changing(&self) -> bool {
        self.picked.changing.is_some()
    }

    pub(super) fn is_unfiltered(&self) -> bool {
        self.query.is_empty()
    }

    pub(super) fn filter(&mut self, query: String) {
        let literal = matches!(self.kind, Kind::Help | Kind::Settings) && !query.trim().is_empty();
        self.query = query;
        self.selected = 0;
        self.shown = match self.searched() {
            Some(_) => Vec::new(),
            None if literal => self.literal(),
            None => fuzzy(&self.query, &self.texts),
        };
    }

    /// The items that contain the words of the query, those that begin with it first.
    fn literal(&self) -> Vec<usize> {
        let query = self.query.to_lowercase();
        let has = |i: &usize| query.split_whitespace().all(|word| self.texts[*i].to_lowercase().contains(word));
        let mut found: Vec<usize> = (0..self.texts.len()).filter(has).collect();
        found.sort_by_key(|i| !self.texts[*i].trim_start_matches('/').starts_with(&query));
        found
    }

    pub(super) fn edit_query(&mut self, change: impl FnOnce(&mut String)) {
        if let Some((_, name)) = &mut self.picked.rename {
            return change(name);
        }
        let mut query = self.query.clone();
        change(&mut query);
        match self.kind {
            Kind::Found | Kind::Timeline => {}
            // A slash begins a search, as in a pager.
            Kind::Help => self.filter(query.trim_start_matches('/').to_owned()),
            _ => self.filter(query),
        }
    }

    pub(super) fn footer(&self) -> &'static str {
        match (self.kind, self.selected()) {
            (Kind::Found | Kind::Documents, _) if self.items.is_empty() => "Esc closes",
            (Kind::Sessions, _) if self.searched().is_some() => {
                "Enter searches   Ctrl-U back to the names   Esc closes"
            }
            (Kind::Sessions, _) if self.picked.rename.is_some() => "Enter renames   Esc keeps the name",
            (Kind::Answers, _) if self.open => "asking   Esc stops",
            (Kind::Help, None | Some(Item::Heading(_))) => "type to filter   Esc closes",
            (_, Some(Item::Help(HelpRow { line: None, .. }))) => "type to filter   Enter or Esc closes",
            (kind, _) => kind.keys(),
        }
    }

    fn label(&self) -> &'static str {
        match self.searched() {
            _ if self.picked.rename.is_some() => "new name: ",
            Some(_) => "search all texts: ",
            None => "> ",
        }
    }

    pub(super) fn caret(&self, area: Rect) -> Option<Position> {
        let label = self.label();
        let x = area.x + 1 + u16::try_from(width(label) + width(self.query()?)).ok()?;
        (x < area.right()).then_some(Position { x, y: area.y + 1 })
    }

    pub(super) fn draw(&self, app: &App, painter: &mut Painter<'_>, area: Rect) {
        let below = rows::below(self, area);
        // With the footer.
        let height = u16::try_from(below.len() + usize::from(!below.is_empty())).unwrap_or(area.height);
        let top = Rect { height: area.height.saturating_sub(height), ..area };
        self.draw_rows(app, painter, top);
        if height > 0 && self.kind == Kind::Answers {
            // The list leaves its last row free.
            painter.rule(Rect { y: top.bottom().saturating_sub(1), height: 1, ..area });
        }
        let last = Rect { height: area.height.saturating_sub(1), ..area };
        painter.rows(last, top.height, 2, &below);
    }

    /// Title, filter, columns, and rows with the selected one marked.
    fn draw_rows(&self, app: &App, painter: &mut Painter<'_>, area: Rect) {
        let (count, total) = (self.shown.len(), self.items.len());
        let word = match self.kind {
            // `/help WORD` searches settings, too.
            Kind::Help if !self.is_unfiltered() => format!("{count} found"),
            _ if count == total => format!("{total}"),
            _ => format!("{count} of {total}"),
        };
        let room = usize::from(area.width).saturating_sub(width(&word) + 4);
        painter.text(area, 0, &format!(" {}", ellipsis(&self.title, room)), Role::Heading);
        painter.right(area, 0, 1, &word, Role::Dim);
        let mut top = 1;
        if let Some(query) = self.query() {
            let label = Span::new(self.label(), Role::Key);
            painter.spans(area, top, 1, &[label, Span::new(query, Role::Text)]);
            top += 1;
        }
        let [left, right] = self.kind.columns(area.width);
        if !left.is_empty() {
            painter.text(area, top, left, Role::Dim);
            painter.right(area, top, 1, right, Role::Dim);
            top += 1;
        }
        if count == 0 {
            let text = match (total, self.kind) {
                _ if self.searched().is_some() => "   Enter searches the messages of all sessions for these words.",
                (0, Kind::Found) => "   No message of any session contains these words.",
                (0, _) => "   Nothing here yet.",
                _ => "   Nothing matches. Backspace widens the filter.",
            };
            painter.text(area, top, text, Role::Dim);
        }
        let height = usize::from(area.height).saturating_sub(usize::from(top) + 1).max(1);
        let first = first_row(self.selected, count, height);
        let cells = usize::from(area.width).saturating_sub(4);
        for (line, (i, item)) in (top..).zip(self.shown().enumerate().skip(first).take(height)) {
            let chosen = i == self.selected;
            painter.choice(area, line, &rows::row(app, self, item, cells), chosen);
        }
    }
}

/// The table as a list; `before`, the previous one on screen, supplies filter and selection.
pub(super) fn answers(fan_out: FanOut, before: Option<&ListView>) -> ListView {
    let rows = fan_out.rows.into_iter().enumerate().map(|(i, row)| Item::Answer(i, row));
    let mut view = ListView::new(Kind::Answers, fan_out.question, rows);
    view.open = !fan_out.over;
    if let Some(before) = before {
        view.filter(before.query.clone());
        view.select(before.selected);
    }
    view
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_shows_what_matches_and_steps_stop_at_the_ends() {
        let prompts = ["war-and-peace", "contract", "peace treaty"].map(|p| Item::Prompt(p.into()));
        let mut list = ListView::new(Kind::Prompts, "", prompts);
        list.filter("peac".into());
        assert_eq!(list.shown().count(), 2);
        list.step(5);
        assert_eq!(list.selected, 1);
        list.step(-9);
        assert_eq!(list.selected, 0);
        list.filter("zzz".into());
        assert!(list.selected().is_none());
    }

    #[test]
    fn a_new_table_of_answers_keeps_filter_and_selection() {
        let row = |document: &str| FanOutRow { document: document.into(), ..FanOutRow::default() };
        let fan_out = FanOut { question: "Who?".into(), rows: vec![row("war.txt"), row("b.txt")], over: true };
        let mut before = answers(fan_out.clone(), None);
        before.filter("b.txt".into());
        let again = answers(fan_out, Some(&before));
        assert!(matches!(again.selected(), Some(Item::Answer(1, _))));
    }
}
