//! The list of themes, and taking one.

use super::acts::{failed, note};
use super::lists::{Item, Kind, ListView};
use super::overlay::open_list;
use super::palette::{Palette, ThemeRow};
use super::{App, Effect};
use crate::runtime::protocol::{Display, Level};

pub(super) fn display(app: &mut App, display: &Display) {
    app.config.set_display(display);
    for (key, value) in display {
        match *key {
            "ui.theme" if *value != app.config.theme.name => app.effects.push(Effect::Theme(value.clone())),
            "ui.code_theme" if *value != app.config.ui.code_theme => app.effects.push(Effect::CodeTheme(value.clone())),
            _ => {}
        }
    }
    app.effects.push(Effect::Repaint);
}

pub(super) fn read(app: &mut App, read: Result<Palette, String>) {
    match read {
        Ok(palette) => (app.config.theme, app.attempt) = (palette, None),
        Err(why) => failed(app, &why),
    }
}

pub(super) fn open(app: &mut App, rows: Vec<ThemeRow>) {
    let built_in = crate::config::settings::Theme::WORDS;
    app.config.themes = rows.iter().map(|r| r.name.clone()).filter(|n| !built_in.contains(&n.as_str())).collect();
    let at = rows.iter().position(|r| r.name == app.config.theme.name).unwrap_or(0);
    let mut view = ListView::new(Kind::Themes, "Themes", rows.into_iter().map(Item::Theme));
    view.select(at);
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
        Err(why) => failed(app, &why),
    }
}
