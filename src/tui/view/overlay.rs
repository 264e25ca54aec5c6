//! Pages, lists, the completion popup and questions, over the transcript.

use ratatui::layout::{Position, Rect};

use crate::core::bytes;
use crate::runtime::protocol::{DocumentRow, FanOutRow, SearchRow, SessionRow, TimelineRow};
use crate::tui::cells::{ellipsis, fit, width};
use crate::tui::entry::{clock, date, grouped};
use crate::tui::fan_out;
use crate::tui::list::first_row;
use crate::tui::overlay::{HelpRow, Item, Kind, ListView, Overlay, Page, SettingRow};
use crate::tui::paint::Painter;
use crate::tui::rows::{Face, Role, Row, Span};
use crate::tui::wrap::wrap_text;
use crate::tui::{App, themes};

const ALL_COLUMNS: u16 = 76;
/// Least width of a list of sessions with dates.
const DATES: u16 = 46;
const LIBRARY: &str = "Library";

pub(super) fn draw(app: &App, overlay: &Overlay, painter: &mut Painter<'_>, area: Rect) {
    painter.clear(area);
    match overlay {
        Overlay::Page(page) | Overlay::Aside { page, .. } => draw_page(page, painter, area),
        Overlay::Map(view) => view.draw(painter, area),
        Overlay::List(view) => draw_list(app, view, painter, area),
    }
    painter.text(
        area,
        area.height.saturating_sub(1),
        &format!(
            " {}",
            whole_parts(overlay.footer(usize::from(area.width)), usize::from(area.width).saturating_sub(1))
        ),
        Role::Dim,
    );
}

/// The parts of a footer that fit whole; the last one, which closes, stays longest.
fn whole_parts(footer: &str, cells: usize) -> String {
    let mut parts: Vec<&str> = footer.split("   ").collect();
    while parts.len() > 1 && width(&parts.join("   ")) > cells {
        parts.remove(parts.len() - 2);
    }
    parts.join("   ")
}

pub(super) fn caret(app: &App, area: Rect) -> Option<Position> {
    let query = app.overlay.as_ref()?.query()?;
    let x = area.x + 3 + u16::try_from(width(query)).ok()?;
    (x < area.right()).then_some(Position { x, y: area.y + 1 })
}

fn draw_page(page: &Page, painter: &mut Painter<'_>, area: Rect) {
    painter.text(area, 0, &format!(" {}", page.title), Role::Heading);
    let body = page.body_height();
    painter.rows(area, 1, 2, page.rows.iter().skip(page.top).take(body));
    if page.rows.len() > body {
        let last = (page.top + body).min(page.rows.len());
        painter.right(area, 0, 1, &format!("{}-{last} of {}", page.top + 1, page.rows.len()), Role::Dim);
    }
}

/// Least width for titles in the rows; below it the selected one is shown under the list.
const WITH_TITLES: u16 = 100;
const ANSWER_ROWS: u16 = 6;
/// From this width on, lists of help show the whole usage.
const WIDE: usize = 100;

fn draw_list(app: &App, view: &ListView, painter: &mut Painter<'_>, area: Rect) {
    let narrow = area.width < ALL_COLUMNS;
    let (columns, below) = match (view.kind, narrow) {
        (Kind::Sessions, true) if area.width < DATES => (["   name", "tokens"], title(view, area)),
        (Kind::Sessions, true) => (["   name", "tokens  changed     "], title(view, area)),
        (Kind::Sessions, false) => {
            (["   name", "messages   tokens  state       size  changed     "], title(view, area))
        }
        (Kind::Documents, true) => (["   name", "tokens  state    "], Vec::new()),
        (Kind::Documents, false) => (["   name", "tokens     lines      size  state    "], Vec::new()),
        (Kind::Answers, _) => (["   document", "lines looked at  likely "], answer_below(view, area)),
        (Kind::Themes, _) => (["", ""], themes::below(&view.list, area)),
        (Kind::Files, _) => (["   name", "size "], Vec::new()),
        (Kind::Help | Kind::Settings, _) => (["", ""], about(view, area)),
        (Kind::Found | Kind::Timeline | Kind::Prompts, _) => (["", ""], Vec::new()),
    };
    let height = u16::try_from(below.len() + usize::from(!below.is_empty())).unwrap_or(area.height).min(area.height);
    let top = Rect { height: area.height - height, ..area };
    list(app, view, columns, painter, top);
    if view.kind == Kind::Answers && height > 0 {
        let rest = Rect { y: top.bottom(), height, ..area };
        painter.clear(rest);
        painter.rule(Rect { height: 1, ..rest });
    }
    let last = Rect { height: area.height.saturating_sub(1), ..area };
    painter.rows(last, top.height + u16::from(view.kind == Kind::Answers), 2, &below);
}

/// Title, filter, columns, and rows with the selected one marked.
fn list(app: &App, view: &ListView, columns: [&str; 2], painter: &mut Painter<'_>, area: Rect) {
    let list = &view.list;
    let (count, total) = (list.shown().len(), list.items().len());
    let word = match view.kind {
        // `/help WORD` searches settings, too.
        Kind::Help if !list.query().is_empty() => format!("{count} found"),
        _ if count == total => format!("{total}"),
        _ => format!("{count} of {total}"),
    };
    let room = usize::from(area.width).saturating_sub(width(&word) + 4);
    painter.text(area, 0, &format!(" {}", ellipsis(&view.title, room)), Role::Heading);
    painter.right(area, 0, 1, &word, Role::Dim);
    let mut top = 1;
    if view.kind.has_filter() {
        painter.spans(area, top, 1, &[Span::new("> ", Role::Key), Span::new(list.query(), Role::Text)]);
        top += 1;
    }
    let [left, right] = columns;
    if !left.is_empty() {
        painter.text(area, top, left, Role::Dim);
        painter.right(area, top, 1, right, Role::Dim);
        top += 1;
    }
    if count == 0 {
        let text = match (total, view.kind) {
            (0, Kind::Found) => "   No message of any session contains these words.",
            (0, _) => "   Nothing here yet.",
            _ => "   Nothing matches. Backspace widens the filter.",
        };
        painter.text(area, top, text, Role::Dim);
    }
    let height = usize::from(area.height).saturating_sub(usize::from(top) + 1).max(1);
    let first = first_row(list.selected_index(), count, height);
    let cells = usize::from(area.width).saturating_sub(4);
    for (line, (i, item)) in (top..).zip(list.shown().enumerate().skip(first).take(height)) {
        let chosen = i == list.selected_index();
        painter.text(area, line, if chosen { " > " } else { "   " }, Face::from(Role::Key).bold());
        painter.row(area, line, 3, &row(app, view, item, cells));
        if chosen {
            painter.mark(area, line, Role::Selected);
        }
    }
}

fn row(app: &App, view: &ListView, item: &Item, cells: usize) -> Row {
    match item {
        Item::Session(r) => session(app, r, cells),
        Item::Hit(r) => found(r, cells),
        Item::Turn(r) => timeline(app, r, cells),
        Item::Document(r) => document(r, view.title == LIBRARY, cells),
        Item::Prompt(text) => Row::of(fit(&text.replace('\n', " "), cells), Role::Text),
        Item::Theme(r) => themes::row(r, cells),
        Item::Answer(_, r) => answered(r, cells),
        Item::Setting(r) => setting(r, cells),
        Item::Help(r) => {
            let (text, column) =
                if cells < WIDE { (&r.short, HelpRow::CELLS.min(cells / 2)) } else { (&r.what, WIDE / 2) };
            filled(cells, vec![Span::new(fit(text, column) + "  ", Role::Key)], &r.does, Role::Text, Vec::new())
        }
        Item::Heading(text) => Row::of(ellipsis(text, cells), Role::Heading),
        Item::File(r) => {
            let size = format!("{:>12}", r.bytes.map_or(String::new(), bytes));
            let whole = if r.name == "./" { "  all of this folder" } else { "" };
            let role = if r.bytes.is_none() { Role::Key } else { Role::Text };
            filled(cells, Vec::new(), &format!("{}{whole}", r.name), role, vec![Span::new(size, Role::Dim)])
        }
    }
}

/// The title of the selected session, where the rows have no room for it.
fn title(view: &ListView, area: Rect) -> Vec<Row> {
    match view.list.selected() {
        Some(Item::Session(r)) if area.width < WITH_TITLES && area.height >= 8 => {
            vec![Row::of(ellipsis(&r.title, usize::from(area.width).saturating_sub(4)), Role::Dim)]
        }
        _ => Vec::new(),
    }
}

fn about(view: &ListView, area: Rect) -> Vec<Row> {
    let text = match view.list.selected() {
        Some(Item::Help(r)) => format!("{}  {}", r.what, r.does),
        Some(Item::Setting(r)) => format!("{} = {}  {}", r.name, r.value, r.help),
        _ => String::new(),
    };
    let mut rows = wrap_text(&text, Role::Dim, usize::from(area.width).saturating_sub(4));
    rows.resize(if area.height < 12 { 0 } else { 2 }, Row::default());
    rows
}

fn answer_below(view: &ListView, area: Rect) -> Vec<Row> {
    let Some(Item::Answer(_, row)) = view.list.selected() else { return Vec::new() };
    let height = if area.height > 3 * ANSWER_ROWS { ANSWER_ROWS } else { area.height / 3 };
    let text = if row.failed.is_some() { fan_out::answer(row) } else { row.text.clone() };
    let mut rows = wrap_text(&text, Role::Text, usize::from(area.width).saturating_sub(4));
    rows.resize(usize::from(height.saturating_sub(1)), Row::default());
    rows
}

fn answered(r: &FanOutRow, cells: usize) -> Row {
    let tail = format!("{:>15} {:>6}", fan_out::lines(r), fan_out::likely(r));
    let room = cells.saturating_sub(width(&tail) + 2);
    let name = vec![Span::new(fit(&r.document, room.min(24).min(room / 2)) + "  ", Role::Document)];
    let role = if r.failed.is_some() { Role::Dim } else { Role::Text };
    filled(cells, name, &fan_out::answer(r), role, vec![Span::new(tail, Role::Dim)])
}

/// A row of `cells` cells: `text` fills what is left between the spans around it.
fn filled(cells: usize, mut left: Vec<Span>, text: &str, face: impl Into<Face>, right: Vec<Span>) -> Row {
    let used: usize = left.iter().chain(&right).map(|s| width(&s.text)).sum();
    left.push(Span::new(fit(text, cells.saturating_sub(used)), face));
    left.extend(right);
    Row::from(left)
}

fn when(app: &App, ms: i64) -> String {
    if ms <= 0 { String::new() } else { date(ms, app.config.utc_offset_min) }
}

fn session(app: &App, r: &SessionRow, cells: usize) -> Row {
    let size = r.bytes.map_or(String::new(), bytes);
    let (tokens, when) = (grouped(r.tokens), when(app, r.updated_ms));
    let tail = if cells + 4 < usize::from(DATES) {
        tokens
    } else if cells + 4 < usize::from(ALL_COLUMNS) {
        format!("{tokens:>9}  {when:<12}")
    } else {
        format!("{:>8} {tokens:>9}  {:<5} {size:>10}  {when:<12}", r.counted(), r.state)
    };
    let room = cells.saturating_sub(width(&tail) + 1);
    let name = fit(&r.name, room.min(24));
    let title = if room > 26 { fit(&r.title, room - 25) } else { String::new() };
    let gap = if room > 26 { " " } else { "" };
    Row::from(vec![
        Span::new(name, Face::from(Role::Text).bold()),
        Span::new(format!("{gap}{title} "), Role::Dim),
        Span::new(tail, Role::Text),
    ])
}

fn setting(r: &SettingRow, cells: usize) -> Row {
    let left = vec![
        Span::new(if r.changed { "* " } else { "  " }, Role::Key),
        Span::new(fit(r.name, 28.min(cells / 2)) + " ", Role::Text),
        Span::new(fit(&r.value, 14.min(cells / 4)) + " ", Face::from(Role::Text).bold()),
    ];
    filled(cells, left, r.help, Role::Dim, Vec::new())
}

fn found(r: &SearchRow, cells: usize) -> Row {
    let head = format!("{} #{}  ", fit(&r.session, 20), r.number);
    filled(cells, vec![Span::new(head, Role::Key)], &r.snippet, Role::Text, Vec::new())
}

/// The lanes left of a turn.
pub(super) fn lanes(r: &TimelineRow, most: usize) -> String {
    "| ".repeat(usize::from(r.lane).min(most))
}

fn timeline(app: &App, r: &TimelineRow, cells: usize) -> Row {
    let lane = lanes(r, 12);
    let mark = if r.kept { "ckpt" } else { "    " };
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
    let size = match r.bytes {
        0 => String::new(),
        n => bytes(n),
    };
    let (tokens, lines) = (grouped(r.tokens), grouped(r.lines));
    let tail = if cells + 4 < usize::from(ALL_COLUMNS) {
        format!("{tokens:>10}  {kept:<9}")
    } else {
        format!("{tokens:>10} {lines:>9} {size:>9}  {kept:<9}")
    };
    let right = vec![Span::new(format!("  {place} "), Role::Dim), Span::new(tail, Role::Text)];
    filled(cells, Vec::new(), &r.name, Role::Document, right)
}

/// The rows `below` stay visible if there is room for both.
pub(super) fn question_text(rows: &[Row], painter: &mut Painter<'_>, body: Rect, below: u16) {
    let height = u16::try_from(rows.len() + 1).unwrap_or(body.height).min(body.height);
    let bottom = body.bottom() - below.min(body.height - height);
    let area = Rect { y: bottom - height, height, ..body };
    painter.clear(area);
    painter.rule(Rect { height: 1, ..area });
    painter.rows(area, 1, 2, rows);
}
