//! The list of themes, and taking one.

use ratatui::layout::Rect;

use super::acts::{failed, note, open_list};
use super::cells::{ellipsis, fit, width};
use super::overlay::{Item, Kind, ListView};
use super::palette::{Palette, ROLES, ThemeRow};
use super::rows::{Role, Row, Span};
use super::wrap::wrap_text;
use super::{App, Effect, list};
use crate::core::sanitize::sanitize_line;
use crate::runtime::protocol::{Display, Level};

pub(super) fn display(app: &mut App, display: &Display, effects: &mut Vec<Effect>) {
    app.config.set_display(display);
    for (key, value) in display {
        match *key {
            "ui.theme" if *value != app.config.theme.name => effects.push(Effect::Theme(value.clone())),
            "ui.code_theme" if *value != app.config.ui.code_theme => effects.push(Effect::CodeTheme(value.clone())),
            _ => {}
        }
    }
    effects.push(Effect::Repaint);
}

pub(super) fn read(app: &mut App, read: Result<Palette, String>) {
    match read {
        Ok(palette) => (app.config.theme, app.attempt) = (palette, None),
        Err(why) => failed(app, &sanitize_line(&why)),
    }
}

pub(super) fn open(app: &mut App, mut rows: Vec<ThemeRow>) {
    for row in &mut rows {
        row.name = sanitize_line(&row.name).into_owned();
        row.origin = sanitize_line(&row.origin).into_owned();
        if let Err(why) = &mut row.palette {
            *why = sanitize_line(why).into_owned();
        }
    }
    let built_in = crate::config::settings::Theme::WORDS;
    app.config.themes = rows.iter().map(|r| r.name.clone()).filter(|n| !built_in.contains(&n.as_str())).collect();
    let at = rows.iter().position(|r| r.name == app.config.theme.name).unwrap_or(0);
    let mut view = ListView::new(Kind::Themes, "Themes", rows.into_iter().map(Item::Theme));
    view.list.select(at);
    open_list(app, |_| view);
}

pub(super) fn take(app: &mut App, row: ThemeRow) {
    if let Ok(palette) = row.palette {
        app.overlay = None;
        app.config.theme = palette;
        let name = row.name;
        note(app, Level::Info, &format!("Theme {name}. /set theme {name} --save keeps it for later starts."));
    }
}

pub(super) fn code(app: &mut App, read: Result<String, String>) {
    match read {
        Ok(name) => {
            (app.config.ui.code_theme, app.attempt) = (name, None);
            app.open.all().for_each(|session| session.transcript.forget_colours());
        }
        Err(why) => failed(app, &sanitize_line(&why)),
    }
}

pub(super) fn below(themes: &list::List<Item>, area: Rect) -> Vec<Row> {
    match themes.selected() {
        Some(Item::Theme(ThemeRow { palette: Err(why), .. })) => {
            wrap_text(why, Role::Error, usize::from(area.width).saturating_sub(4))
        }
        _ => sample(area),
    }
}

pub(super) fn row(row: &ThemeRow, cells: usize) -> Row {
    let (text, role) = match &row.palette {
        Ok(_) => (row.origin.as_str(), Role::Dim),
        Err(why) => (
            why.strip_prefix(&row.origin).map_or(why.as_str(), |rest| rest.trim_start_matches([',', ':', ' '])),
            Role::Error,
        ),
    };
    let name = fit(&row.name, 20.min(cells));
    let left = cells.saturating_sub(width(&name) + 2);
    Row::from(vec![Span::new(name, Role::Text), Span::new("  ", Role::Text), Span::new(ellipsis(text, left), role)])
}

fn sample(area: Rect) -> Vec<Row> {
    let mut sample = vec![Row::default()];
    let mut used = 0;
    for row in ROLES {
        let cells = width(row.name) + 2;
        if used + cells > usize::from(area.width).saturating_sub(4) {
            sample.push(Row::default());
            used = 0;
        }
        used += cells;
        if let Some(line) = sample.last_mut() {
            line.spans.extend([Span::new(row.name, row.role), Span::new("  ", Role::Text)]);
        }
    }
    sample
}
