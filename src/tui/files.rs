//! The list of files of a bare `/load`: folders first; Enter opens a folder or loads a file.

use super::input::enter_line;
use super::overlay::{Item, Kind, ListView, Overlay};
use super::{App, Effect};
use crate::config::commands::escaped;

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRow {
    pub name: String,
    /// `None` for a folder.
    pub bytes: Option<u64>,
}

/// Opens a folder; its path is empty for the working folder, else it ends in a slash.
pub(super) fn open(folder: &str, effects: &mut Vec<Effect>) {
    effects.push(Effect::ListFolder(folder.to_owned()));
}

/// The result of [`Effect::ListFolder`].
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
    app.popup = None;
    let mut view = ListView::new(Kind::Files, format!("Load from {shown}"), rows);
    view.folder = folder.to_owned();
    view.list.select(if folder == "/" { 1 } else { 2 });
    app.overlay = Some(Overlay::List(view));
}

pub(super) fn take(app: &mut App, folder: &str, row: &FileRow, now: u64, effects: &mut Vec<Effect>) {
    match (row.name.as_str(), row.bytes) {
        ("../", _) => open(&parent(folder), effects),
        ("./", _) => load(app, if folder.is_empty() { "./" } else { folder }, now, effects),
        (name, None) => open(&format!("{folder}{name}"), effects),
        (name, Some(_)) => load(app, &format!("{folder}{name}"), now, effects),
    }
}

fn load(app: &mut App, path: &str, now: u64, effects: &mut Vec<Effect>) {
    enter_line(app, &format!("/load {}", escaped(path)), now, effects);
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
