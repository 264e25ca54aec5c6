//! The rows of lists by kind, and the text below the list about the selected one.

use ratatui::layout::Rect;

use super::super::cells::{ellipsis, fit, width};
use super::super::entry::{clock, date, grouped};
use super::super::rows::{Face, Role, Row, Span};
use super::super::wrap::wrap_text;
use super::super::{App, fan_out};
use super::{HelpRow, Item, Kind, ListView, SettingRow};
use crate::core::bytes;
use crate::runtime::protocol::{DocumentRow, FanOutRow, SearchRow, SessionRow, TimelineRow};

pub(super) const ALL_COLUMNS: u16 = 76;
/// Least width of a list of sessions with dates.
pub(super) const DATES: u16 = 46;
/// Least width for titles in the rows; below it the selected one is shown under the list.
const WITH_TITLES: u16 = 100;
/// From this width on, lists of help show the whole usage.
const WIDE: usize = 100;
const ANSWER_ROWS: u16 = 6;
const LIBRARY: &str = "Library";

/// What the filter looks at.
pub(super) fn text(item: &Item) -> String {
    match item {
        Item::Session(r) => format!("{} {}", r.name, r.title),
        Item::Hit(r) => r.snippet.clone(),
        Item::Turn(r) => r.title.clone(),
        Item::Document(r) => r.name.clone(),
        Item::Place(r) => r.what.clone(),
        Item::Prompt(text) => text.clone(),
        Item::Answer(_, r) => format!("{} {}", r.document, r.text),
        Item::Setting(r) => format!("{} {}", r.name, r.help),
        Item::Help(r) => format!("{} {}", r.what, r.words),
        Item::Heading(_) => String::new(),
    }
}

pub(super) fn row(app: &App, view: &ListView, item: &Item, cells: usize) -> Row {
    match item {
        Item::Session(r) => session(app, r, cells),
        Item::Hit(r) => found(r, cells),
        Item::Turn(r) => timeline(app, r, cells),
        Item::Document(r) => document(r, view.title == LIBRARY, cells),
        Item::Place(r) => {
            let left = vec![Span::new(format!("{:>10}  ", grouped(r.from)), Role::Dim)];
            filled(cells, left, &r.what, Role::Text, vec![Span::new(format!("{:>5}", r.looked), Role::Key)])
        }
        Item::Prompt(text) => Row::of(fit(&text.replace('\n', " "), cells), Role::Text),
        Item::Answer(_, r) => answered(r, cells),
        Item::Setting(r) => setting(r, cells),
        Item::Help(r) => {
            let (text, column) =
                if cells < WIDE { (&r.short, HelpRow::CELLS.min(cells / 2)) } else { (&r.what, WIDE / 2) };
            filled(cells, vec![Span::new(fit(text, column) + "  ", Role::Key)], &r.does, Role::Text, Vec::new())
        }
        Item::Heading(text) => Row::of(ellipsis(text, cells), Role::Heading),
    }
}

pub(super) fn below(view: &ListView, area: Rect) -> Vec<Row> {
    let cells = usize::from(area.width).saturating_sub(4);
    let about = |text: String| {
        let mut rows = wrap_text(&text, Role::Dim, cells);
        rows.resize(if area.height < 12 { 0 } else { 2 }, Row::default());
        rows
    };
    match (view.kind, view.selected()) {
        (_, Some(Item::Session(r))) if area.width < WITH_TITLES && area.height >= 8 => {
            vec![Row::of(ellipsis(&r.title, cells), Role::Dim)]
        }
        (_, Some(Item::Answer(_, row))) => {
            let height = if area.height > 3 * ANSWER_ROWS { ANSWER_ROWS } else { area.height / 3 };
            let text = if row.failed.is_some() { fan_out::answer(row) } else { row.text.clone() };
            let mut rows = wrap_text(&text, Role::Text, cells);
            rows.resize(usize::from(height.saturating_sub(1)), Row::default());
            rows
        }
        (_, Some(Item::Help(r))) => about(format!("{}  {}", r.what, r.does)),
        (_, Some(Item::Setting(r))) => about(format!("{} = {}  {}", r.name, r.value, r.help)),
        (Kind::Help | Kind::Settings, _) => about(String::new()),
        _ => Vec::new(),
    }
}

/// A row of `cells` cells: `text` fills what is left between the spans around it.
fn filled(cells: usize, mut left: Vec<Span>, text: &str, face: impl Into<Face>, right: Vec<Span>) -> Row {
    let used: usize = left.iter().chain(&right).map(|s| width(&s.text)).sum();
    left.push(Span::new(fit(text, cells.saturating_sub(used)), face));
    left.extend(right);
    Row::from(left)
}

fn session(app: &App, r: &SessionRow, cells: usize) -> Row {
    let size = r.bytes.map_or(String::new(), bytes);
    let tokens = r.read();
    let when = if r.updated_ms > 0 { date(r.updated_ms, app.config.utc_offset_min) } else { String::new() };
    let tail = if cells + 4 < usize::from(DATES) {
        tokens
    } else if cells + 4 < usize::from(ALL_COLUMNS) {
        format!("{tokens:>9}  {when:<12}")
    } else {
        format!("{:>8} {tokens:>9}  {:<5} {size:>10}  {when:<12}", r.counted(), r.state)
    };
    let room = cells.saturating_sub(width(&tail) + 1);
    let name = fit(&r.name, room.min(24));
    let title = if room > 26 { format!(" {}", fit(&r.title, room - 25)) } else { String::new() };
    Row::from(vec![
        Span::new(name, Face::from(Role::Text).bold()),
        Span::new(format!("{title} "), Role::Dim),
        Span::new(tail, Role::Text),
    ])
}

fn found(r: &SearchRow, cells: usize) -> Row {
    let head = format!("{} #{}  ", fit(&r.session, 20), r.number);
    filled(cells, vec![Span::new(head, Role::Key)], &r.snippet, Role::Text, Vec::new())
}

/// The lanes left of a turn.
pub(in super::super) fn lanes(r: &TimelineRow, most: usize) -> String {
    "| ".repeat(usize::from(r.lane).min(most))
}

fn timeline(app: &App, r: &TimelineRow, cells: usize) -> Row {
    let lane = lanes(r, 12);
    let mark = if r.kept { "kept" } else { "    " };
    let head = if r.head { "<-" } else { "  " };
    let label = r.label.as_deref().map(|l| format!("[{l}] ")).unwrap_or_default();
    let tail = format!(" {mark} {head} {}", clock(r.created_ms, app.config.utc_offset_min));
    let front = vec![Span::new(format!("{:>5}  {lane}o- ", r.place()), Role::Dim)];
    let tone = if r.current { Role::Text } else { Role::Dim };
    filled(cells, front, &format!("{label}{}", r.title), tone, vec![Span::new(tail, Role::Dim)])
}

fn document(r: &DocumentRow, library: bool, cells: usize) -> Row {
    let place = match r.position {
        Some(p) => format!("at {}", grouped(p)),
        None if library => "in library".to_string(),
        None => "not read yet".to_string(),
    };
    let kept = match (r.complete, r.kept) {
        (false, _) => "in part",
        (true, true) => "kept",
        (true, false) => "text only",
    };
    let size = if r.bytes == 0 { String::new() } else { bytes(r.bytes) };
    let (tokens, lines) = (grouped(r.tokens), grouped(r.lines));
    let tail = if cells + 4 < usize::from(ALL_COLUMNS) {
        format!("{tokens:>10}  {kept:<9}")
    } else {
        format!("{tokens:>10} {lines:>9} {size:>9}  {kept:<9}")
    };
    let right = vec![Span::new(format!("  {place} "), Role::Dim), Span::new(tail, Role::Text)];
    filled(cells, Vec::new(), &r.name, Role::Document, right)
}

fn answered(r: &FanOutRow, cells: usize) -> Row {
    let tail = format!("{:>15} {:>6}", fan_out::lines(r), fan_out::likely(r));
    let room = cells.saturating_sub(width(&tail) + 2);
    let name = vec![Span::new(fit(&r.document, room.min(24).min(room / 2)) + "  ", Role::Document)];
    let role = if r.failed.is_some() { Role::Dim } else { Role::Text };
    filled(cells, name, &fan_out::answer(r), role, vec![Span::new(tail, Role::Dim)])
}

fn setting(r: &SettingRow, cells: usize) -> Row {
    let left = vec![
        Span::new(if r.changed { "* " } else { "  " }, Role::Key),
        Span::new(fit(r.name, 28.min(cells / 2)) + " ", Role::Text),
        Span::new(fit(&r.value, 14.min(cells / 4)) + " ", Face::from(Role::Text).bold()),
    ];
    filled(cells, left, r.help, Role::Dim, Vec::new())
}
