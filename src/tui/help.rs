//! Help as a list: a command or a key, and what it does. Typing filters; Enter inserts a command.

use super::App;
use super::keys::{ACTIONS, Action};
use super::lists::{HelpRow, Item, Kind, ListView, SettingRow};
use crate::config::commands::{COMMANDS, Command, GROUPS, escaped, help};
use crate::config::settings::table::ROWS;
use crate::config::settings::{Origin, Row};

pub(super) fn all(app: &App) -> ListView {
    let mut rows = vec![
        Item::Heading("Type a question and press Enter. /load reads a document to ask about.".into()),
        Item::Heading("Everything is saved as it happens, on this computer.".into()),
    ];
    if app.is_demo() {
        rows.push(Item::Heading("This is the small built-in demo model; sala-chat model download gets 9B.".into()));
    }
    for (title, commands) in &GROUPS {
        rows.push(Item::Heading((*title).into()));
        rows.extend(commands.iter().map(command));
    }
    rows.push(Item::Heading("Keys".into()));
    rows.extend(keys(app));
    ListView::new(Kind::Help, "Help", rows)
}

pub(super) fn commands() -> ListView {
    ListView::new(Kind::Help, "Commands", COMMANDS.iter().map(command))
}

pub(super) fn key_list(app: &App) -> ListView {
    ListView::new(Kind::Help, "Keys", keys(app))
}

/// What `/help WORD` finds among commands, keys and settings; `None` for nothing.
pub(super) fn about(app: &App, word: &str) -> Option<ListView> {
    let settings = setting_rows(app);
    let rows = COMMANDS.iter().map(command).chain(keys(app)).chain(settings);
    let mut view = ListView::new(Kind::Help, "Help", rows);
    view.filter(word.trim().to_owned());
    let found = view.shown().len() > 0;
    found.then_some(view)
}

fn command(command: &Command) -> Item {
    let space = if command.usage.is_empty() { "" } else { " " };
    Item::Help(HelpRow {
        what: command.form(),
        short: help::usage(command, HelpRow::CELLS),
        does: command.help.to_owned(),
        words: help::words(command),
        line: Some(format!("/{}{space}", command.name)),
    })
}

fn keys(app: &App) -> impl Iterator<Item = Item> {
    let row = |what: String, does: &str, name: &str| {
        let words = format!("{what} {does} {name}");
        Item::Help(HelpRow { short: what.clone(), what, does: does.to_owned(), words, line: None })
    };
    let bound = ACTIONS.iter().filter_map(|(action, name, _, does)| {
        let what = match (action, app.config.keys.keys(*action).as_slice()) {
            (_, []) => return None,
            (Action::Session, [first, .., last]) => format!("{first} to {last}"),
            (_, keys) => keys.join(", "),
        };
        Some((what, *does, *name))
    });
    let fixed = [
        ("Ctrl-C".to_owned(), "stop; clear the input; twice on empty input: quit", ""),
        ("//text".to_owned(), "send a message that begins with a slash", ""),
    ];
    let rebind = ("[keys]".to_owned(), "table of the settings file that changes keys: \"f2\" = \"panel\"", "");
    let all: Vec<_> = fixed.into_iter().chain(bound).chain([rebind]).collect();
    all.into_iter().map(move |(what, does, name)| row(what, does, name))
}

fn setting_rows(app: &App) -> impl Iterator<Item = Item> {
    let (loaded, display) = (&app.config.settings, app.config.display());
    let current = move |row: &Row| {
        let shown = display.iter().find(|(key, _)| *key == row.name);
        let set = || app.meters.settings.iter().find(|(key, _)| row.session.is_some_and(|way| way.name == *key));
        shown.or_else(set).map(|(_, value)| value.clone())
    };
    ROWS.iter().map(move |row| {
        let configured = row.kind.show(&(row.get)(&loaded.config));
        let value = current(row).unwrap_or_else(|| configured.clone());
        let built_in = matches!(loaded.origins.get(row.name), None | Some(Origin::BuiltIn | Origin::Model(_)));
        let line = match &row.session {
            Some(way) => format!("/set {} {}", way.name, escaped(&value)),
            None => format!("/set {} {} --save", row.name, escaped(&value)),
        };
        let changed = !built_in || value != configured;
        Item::Setting(SettingRow { name: row.name, value, help: row.help, changed, line })
    })
}

/// The list of `/settings`: Enter inserts the command that changes one.
pub(super) fn settings(app: &App, word: Option<&str>) -> ListView {
    let mut view = ListView::new(Kind::Settings, "Settings   * differs from the default", setting_rows(app));
    if let Some(word) = word {
        view.filter(word.to_owned());
    }
    view
}
