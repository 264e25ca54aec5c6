//! Names that a shell completes. The scripts of `completions` call this program with the words of the line.

use std::path::PathBuf;
use std::sync::Arc;

use super::args;
use super::dirs::Dirs;
use super::sessions_cmd::LISTED;
use crate::config::settings::preset::BUILT_IN;
use crate::config::settings::table::ROWS;
use crate::core::sanitize::sanitize_line;
use crate::runtime::presets;
use crate::store::{Limits, RealDisk, SessionFilter, Store};

/// A line for each name that the last word begins.
pub(super) fn lines(words: &[String]) -> Vec<u8> {
    let Some((begun, before)) = words.split_last() else { return Vec::new() };
    // A name that a terminal would obey cannot be typed.
    let fits = |name: &String| name.starts_with(begun) && sanitize_line(name) == *name;
    let names = names(before).unwrap_or_default().into_iter().filter(fits);
    names.flat_map(|name| (name + "\n").into_bytes()).collect()
}

fn names(before: &[String]) -> Option<Vec<String>> {
    let line = std::iter::once("sala-chat").chain(before.iter().map(String::as_str));
    let matches = args::command().ignore_errors(true).try_get_matches_from(line).ok()?;
    let (mut at, mut commands) = (&matches, Vec::new());
    while let Some((name, below)) = at.subcommand() {
        commands.push(name);
        at = below;
    }
    let given = |id| at.try_contains_id(id).is_ok_and(|there| there);
    let path = |id| matches.get_one::<PathBuf>(id).map(PathBuf::as_path);
    let dirs = Dirs::new(path("data_dir"), path("config")).ok()?;
    let store = || Store::open_to_read(&dirs.data, Arc::new(RealDisk), Limits::default()).ok();
    let sessions = || Some(store()?.sessions(SessionFilter::Live, LISTED).ok()?.into_iter().map(|r| r.name).collect());
    let documents = || Some(store()?.document_names().ok()?.into_iter().map(|(name, _)| name).collect());
    match (before.last().map(String::as_str), commands.as_slice()) {
        (Some("-r" | "--resume"), []) | (_, ["rm"]) => sessions(),
        (_, ["show" | "export"]) if !given("name") => sessions(),
        (Some("--library"), _) | (_, ["library", "rm"]) => documents(),
        (Some("--preset"), _) => {
            let built_in = BUILT_IN.iter().map(|preset| preset.name.to_owned());
            Some(built_in.chain(presets::names(&dirs.presets())).collect())
        }
        (_, ["config", "set"]) if !given("key") => Some(ROWS.iter().map(|row| row.name.to_owned()).collect()),
        _ => None,
    }
}
