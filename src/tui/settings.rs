//! The list of `/settings`: every setting with its value. Enter inserts the command that changes it.

use super::App;
use super::overlay::{Item, Kind, ListView, SettingRow};
use crate::config::commands::escaped;
use crate::config::settings::table::ROWS;
use crate::config::settings::{Origin, Row};

pub(super) fn rows(app: &App) -> impl Iterator<Item = Item> {
    let (loaded, display) = (&app.config.settings, app.config.display());
    let current = move |row: &Row| {
        let shown = display.iter().find(|(key, _)| *key == row.name);
        let set = || app.meters.settings.iter().find(|(key, _)| row.session.is_some_and(|way| way.name == *key));
        shown.or_else(set).map(|(_, value)| value.clone())
    };
    ROWS.iter().map(move |row| {
        let configured = row.kind.show(&(row.get)(&loaded.config));
        let value = current(row).unwrap_or_else(|| configured.clone());
        let built_in = matches!(loaded.origins.get(row.name), None | Some(Origin::BuiltIn));
        let line = match &row.session {
            Some(way) => format!("/set {} {}", way.name, escaped(&value)),
            None => format!("/set {} {} --save", row.name, escaped(&value)),
        };
        let changed = !built_in || value != configured;
        Item::Setting(SettingRow { name: row.name, value, help: row.help, changed, line })
    })
}

pub(super) fn list(app: &App, word: Option<&str>) -> ListView {
    let mut view = ListView::new(Kind::Settings, "Settings   * differs from the default", rows(app));
    if let Some(word) = word {
        view.list.set_query(word.to_owned());
    }
    view
}
