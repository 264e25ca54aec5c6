//! Pages, lists, the completion popup and questions, over the transcript.

use ratatui::layout::{Position, Rect};

use super::list::{Filter, NOTHING, list};
use super::paint::Painter;
use crate::core::bytes;
use crate::runtime::protocol::{DocumentRow, FanOutRow, SearchRow, SessionRow, TimelineRow};
use crate::tui::cells::{ellipsis, fit, width};
use crate::tui::complete::Popup;
use crate::tui::entry::{clock, grouped};
use crate::tui::overlay::{Overlay, Page};
use crate::tui::rows::{Face, Role, Row, Span};
use crate::tui::shelf::{self, FanOutView};
use crate::tui::wrap::wrap_text;
use crate::tui::{App, Question};

/// From here on the list of sessions has room for all its columns.
const ALL_COLUMNS: u16 = 76;

/// Heading of the list of documents that belong to no conversation.
const LIBRARY: &str = "Library";

/// Draws the open overlay over the whole body.
pub(super) fn draw(app: &App, overlay: &Overlay, painter: &mut Painter<'_>, area: Rect) {
    painter.clear(area);
    match overlay {
        Overlay::Page(page) | Overlay::Aside { page, .. } => draw_page(page, painter, area),
        Overlay::Map(view) => super::map::draw(view, painter, area),
        Overlay::FanOut(shelf) => draw_shelf(shelf, painter, area),
        Overlay::Sessions(l) => {
            let right = if area.width < ALL_COLUMNS {
                "tokens  changed     "
            } else {
                "messages   tokens  state       size  changed     "
            };
            list(painter, area, ("Sessions", Filter::Typed), l, &["   name", right], NOTHING, |r, cells| {
                session(app, r, cells)
            });
            if let Some(chosen) = l.selected().filter(|_| area.width < WITH_TITLES) {
                let room = usize::from(area.width.saturating_sub(TITLE_AT + 12));
                painter.spans(area, 0, TITLE_AT, &[Span::new(ellipsis(&chosen.title, room), Role::Text)]);
            }
        }
        Overlay::Found { query, list: l } => list(
            painter,
            area,
            (&format!("Found for \"{query}\""), Filter::Without),
            l,
            &[],
            "   No message of any session holds these words.",
            found,
        ),
        Overlay::Timeline(l) => {
            list(painter, area, ("Timeline", Filter::Without), l, &[], NOTHING, |r, cells| timeline(app, r, cells))
        }
        Overlay::Documents { title, list: l } => {
            let right =
                if area.width < ALL_COLUMNS { "tokens  state    " } else { "tokens     lines      size  state    " };
            list(painter, area, (title, Filter::Typed), l, &["   name", right], NOTHING, |r, cells| {
                document(r, title == LIBRARY, cells)
            });
        }
        Overlay::Themes(l) => super::themes::draw(l, painter, area),
        Overlay::Prompts(l) => list(painter, area, ("Earlier prompts", Filter::Typed), l, &[], NOTHING, |p, cells| {
            Row::of(fit(&p.replace('\n', " "), cells), Role::Text)
        }),
    }
    painter.text(area, area.height.saturating_sub(1), &format!(" {}", overlay.footer()), Role::Dim);
}

/// Where the caret is in an overlay with a filter.
pub(super) fn caret(app: &App, area: Rect) -> Option<Position> {
    let query = app.overlay.as_ref()?.query()?;
    let x = area.x + 3 + u16::try_from(width(query)).ok()?;
    (x < area.right()).then_some(Position { x, y: area.y + 1 })
}

fn draw_page(page: &Page, painter: &mut Painter<'_>, area: Rect) {
    painter.text(area, 0, &format!(" {}", page.title), Role::Heading);
    let body = page.body_height();
    for (i, row) in page.rows.iter().skip(page.top).take(body).enumerate() {
        if let Ok(i) = u16::try_from(i) {
            painter.row(area, i + 1, 2, row);
        }
    }
    if page.rows.len() > body {
        let last = (page.top + body).min(page.rows.len());
        painter.right(area, 0, 1, &format!("{}-{last} of {}", page.top + 1, page.rows.len()), Role::Dim);
    }
}

/// Columns from which the list of sessions has room for titles in its rows; below it the heading has that of the chosen one.
const WITH_TITLES: u16 = 100;
/// Where it stands there.
const TITLE_AT: u16 = 12;

/// Rows below the table that show the chosen answer.
const ANSWER_ROWS: u16 = 6;

fn draw_shelf(view: &FanOutView, painter: &mut Painter<'_>, area: Rect) {
    let below = if area.height > 3 * ANSWER_ROWS { ANSWER_ROWS } else { area.height / 3 };
    let top = Rect { height: area.height.saturating_sub(below), ..area };
    let columns = ["   document", "lines looked at  likely "];
    list(painter, top, (&view.question, Filter::Typed), &view.list, &columns, NOTHING, |(_, r), cells| {
        answered(r, cells)
    });
    let Some((_, row)) = view.list.selected() else { return };
    let answer = Rect { y: top.bottom(), height: below.saturating_sub(1), ..area };
    painter.clear(Rect { height: below, ..answer });
    painter.rule(Rect { height: 1, ..answer });
    let text = if row.failed.is_some() { shelf::said(row) } else { row.text.clone() };
    let rows = wrap_text(&text, Role::Text, usize::from(area.width).saturating_sub(4));
    for (i, row) in rows.iter().take(usize::from(answer.height).saturating_sub(1)).enumerate() {
        if let Ok(i) = u16::try_from(i) {
            painter.row(answer, i + 1, 2, row);
        }
    }
}

fn answered(r: &FanOutRow, cells: usize) -> Row {
    let tail = format!("{:>15} {:>6}", shelf::lines(r), shelf::likely(r));
    let room = cells.saturating_sub(width(&tail) + 2);
    let name = room.min(24).min(room / 2);
    Row {
        spans: vec![
            Span::new(fit(&r.document, name), Role::Document),
            Span::new(
                format!("  {}", fit(&shelf::said(r), room - name)),
                if r.failed.is_some() { Role::Dim } else { Role::Text },
            ),
            Span::new(tail, Role::Dim),
        ],
        ..Row::default()
    }
}

/// A date for a list, empty if it is not known.
fn when(app: &App, ms: i64) -> String {
    if ms <= 0 { String::new() } else { date(ms, app.config.utc_offset_min) }
}

/// `12 Nov 14:01`, from days since the epoch (civil calendar).
fn date(ms: i64, utc_offset_min: i32) -> String {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let seconds = ms.div_euclid(1000) + i64::from(utc_offset_min) * 60;
    let local = jiff::Timestamp::from_second(seconds).map(|t| t.to_zoned(jiff::tz::TimeZone::UTC));
    match local {
        Ok(t) => {
            let month =
                usize::try_from(t.month()).ok().and_then(|m| MONTHS.get(m.saturating_sub(1))).copied().unwrap_or("");
            format!("{:>2} {month} {}", t.day(), clock(ms, utc_offset_min))
        }
        Err(_) => String::new(),
    }
}

fn session(app: &App, r: &SessionRow, cells: usize) -> Row {
    let size = r.bytes.map_or(String::new(), bytes);
    let (tokens, when) = (grouped(r.tokens), when(app, r.updated_ms));
    let tail = if cells + 4 < usize::from(ALL_COLUMNS) {
        format!("{tokens:>9}  {when:<12}")
    } else {
        format!("{:>8} {tokens:>9}  {:<5} {size:>10}  {when:<12}", r.counted(), r.state)
    };
    let room = cells.saturating_sub(width(&tail) + 1);
    let name = fit(&r.name, room.min(24));
    let title = if room > 26 { fit(&r.title, room - 25) } else { String::new() };
    let gap = if room > 26 { " " } else { "" };
    Row {
        spans: vec![
            Span::new(name, Face::from(Role::Text).bold()),
            Span::new(format!("{gap}{title} "), Role::Dim),
            Span::new(tail, Role::Text),
        ],
        ..Row::default()
    }
}

fn found(r: &SearchRow, cells: usize) -> Row {
    let head = format!("{} #{}  ", fit(&r.session, 20), r.number);
    let room = cells.saturating_sub(width(&head));
    Row { spans: vec![Span::new(head, Role::Key), Span::new(fit(&r.snippet, room), Role::Text)], ..Row::default() }
}

fn timeline(app: &App, r: &TimelineRow, cells: usize) -> Row {
    let lane = "| ".repeat(usize::from(r.lane).min(12));
    let mark = if r.kept { "ckpt" } else { "    " };
    let head = if r.head { "<-" } else { "  " };
    let label = r.label.as_deref().map(|l| format!("[{l}] ")).unwrap_or_default();
    let tail = format!(" {mark} {head} {}", clock(r.created_ms, app.config.utc_offset_min));
    let front = format!("{:>5}  {lane}o- ", format!("#{}", r.number));
    let room = cells.saturating_sub(width(&front) + width(&tail));
    let tone = if r.current { Role::Text } else { Role::Dim };
    Row {
        spans: vec![
            Span::new(front, Role::Dim),
            Span::new(fit(&format!("{label}{}", r.title), room), tone),
            Span::new(tail, Role::Dim),
        ],
        ..Row::default()
    }
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
    let room = cells.saturating_sub(width(&tail) + 1);
    let name = fit(&r.name, room.saturating_sub(width(&place) + 2));
    Row {
        spans: vec![
            Span::new(name, Role::Document),
            Span::new(format!("  {place} "), Role::Dim),
            Span::new(tail, Role::Text),
        ],
        ..Row::default()
    }
}

/// Completions, above the input, over the whole width: what lies below them must not be read as part of them.
pub(super) fn popup(popup: &Popup, painter: &mut Painter<'_>, body: Rect) {
    let height = popup.candidates.len().min(8).min(usize::from(body.height.saturating_sub(1)));
    let name_cells = popup.candidates.iter().map(|c| width(&c.text)).max().unwrap_or(0).min(40);
    let cells = usize::from(body.width).saturating_sub(1);
    let Ok(rows) = u16::try_from(height) else {
        return;
    };
    let frame = Rect { y: body.bottom().saturating_sub(rows + 1), height: rows + 1, ..body };
    painter.clear(frame);
    painter.rule(Rect { height: 1, ..frame });
    let hidden = popup.candidates.len() - height;
    if hidden > 0 {
        painter.right(frame, 0, 2, &format!(" {} of {} ", popup.selected + 1, popup.candidates.len()), Role::Dim);
    }
    let area = Rect { y: frame.y + 1, height: rows, ..frame };
    let first = (popup.selected + 1).saturating_sub(height);
    for (i, c) in popup.candidates.iter().enumerate().skip(first).take(height) {
        let Ok(line) = u16::try_from(i - first) else {
            break;
        };
        let text = format!(" {}  {}", fit(&c.text, name_cells), c.help);
        painter.text(area, line, &fit(&text, cells), Role::Dim);
        painter.spans(area, line, 1, &[Span::new(fit(&c.text, name_cells), Role::Key)]);
        if i == popup.selected {
            painter.mark(area, line, Role::Selected);
        }
    }
}

/// The keys of a question, in the input's place where there is room for them.
pub(super) fn question_keys(question: &Question, painter: &mut Painter<'_>, composer: Rect) {
    match question.is_in_the_input(usize::from(composer.width)) {
        true => keys(painter, composer, question.keys()),
        false => keys(painter, composer, std::iter::empty()),
    }
}

/// The rows of a question at the bottom of the text, below a rule. The rows `below` stay in sight where there is room for both.
pub(super) fn question_text(rows: &[Row], painter: &mut Painter<'_>, body: Rect, below: u16) {
    let height = u16::try_from(rows.len() + 1).unwrap_or(body.height).min(body.height);
    let bottom = body.bottom() - below.min(body.height - height);
    let area = Rect { y: bottom - height, height, ..body };
    painter.clear(area);
    painter.rule(Rect { height: 1, ..area });
    for (i, row) in rows.iter().enumerate() {
        if let Ok(i) = u16::try_from(i) {
            painter.row(area, i + 1, 2, row);
        }
    }
}

/// Keys and what they do, in the input's place.
pub(super) fn keys<'a>(painter: &mut Painter<'_>, composer: Rect, keys: impl Iterator<Item = (String, &'a str)>) {
    painter.clear(composer);
    let mut spans = Vec::new();
    for (key, label) in keys {
        spans.push(Span::new(key, Face::from(Role::Key).bold()));
        spans.push(Span::new(format!(" {label}   "), Role::Text));
    }
    painter.spans(composer, 0, 2, &spans);
}
