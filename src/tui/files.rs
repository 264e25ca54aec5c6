//! The list of files of a bare `/load`: folders first; Enter opens a folder or loads a file.

use super::lists::{Item, Kind, ListView};
use super::{App, Effect, FileRow};
use crate::config::commands::escaped;

/// Opens a folder; its path is empty for the working folder, else it ends in a slash.
pub(super) fn open(app: &mut App, folder: &str) {
    app.effects.push(Effect::ListFolder(folder.to_owned()));
}

pub(super) fn listed(app: &mut App, folder: &str, found: Result<Vec<FileRow>, String>) {
    let rows = match found {
        Ok(rows) => rows,
        Err(why) => return super::acts::refuse(app, why),
    };
    let up = FileRow { name: "../".into(), bytes: None };
    let whole = FileRow { name: "./".into(), bytes: None };
    let up = (folder != "/").then_some(up);
    let rows = up.into_iter().chain([whole]).chain(rows).map(Item::File);
    let shown = if folder.is_empty() { "./" } else { folder };
    let mut view = ListView::new(Kind::Files, format!("Load from {shown}"), rows);
    view.folder = folder.to_owned();
    view.select(if folder == "/" { 1 } else { 2 });
    super::overlay::open_list(app, |_| view);
}

/// Opens the chosen folder, or returns the line that loads the choice.
pub(super) fn take(app: &mut App, folder: &str, row: &FileRow) -> Option<String> {
    let load = |path: &str| Some(format!("/load {}", escaped(path)));
    match (row.name.as_str(), row.bytes) {
        ("./", _) => return load(if folder.is_empty() { "./" } else { folder }),
        (name, Some(_)) => return load(&format!("{folder}{name}")),
        ("../", None) => open(app, &parent(folder)),
        (name, None) => open(app, &format!("{folder}{name}")),
    }
    None
}

pub(super) fn parent(folder: &str) -> String {
    let inner = folder.trim_end_matches('/');
    match inner.rsplit_once('/') {
        _ if folder == "/" => "/".into(),
        _ if inner.is_empty() || inner == ".." || inner.ends_with("/..") => format!("{folder}../"),
        Some((before, _)) => format!("{before}/"),
        None => String::new(),
    }
}
