//! `sala-chat [PATH…]`: a runtime with the full screen.

use std::ffi::OsString;
use std::io::{ErrorKind, IsTerminal};

use super::args::{ChatArgs, SessionChoice};
use super::dirs::Dirs;
use super::follow_stdin::Spool;
use super::run::{self, RuntimeHandle};
use super::themes::Themes;
use super::{Context, Exit, Failure, open, plain};
use crate::config::settings::{self, Config, Switch};
use crate::runtime::protocol::{LoadOptions, Request};
use crate::runtime::{Attendance, Input};
use crate::store::Scratch;
use crate::text::clock;
use crate::tui::keys::KeyTable;
use crate::tui::options::{Depth, Glyphs, UiConfig};
use crate::tui::tour::Tour;

fn ui_config(context: &Context) -> Result<UiConfig, Failure> {
    let config: &Config = context.config();
    let ui = &config.ui;
    let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(|n| variable(n)).unwrap_or_default();
    let utf8 = locale.to_string_lossy().to_lowercase().replace('-', "").contains("utf8");
    let mut keys = KeyTable::default();
    for (key, action) in &config.keys {
        keys.bind(key, action).map_err(|e| Failure::usage(e.to_string()))?;
    }
    let offset = jiff::tz::TimeZone::system().to_offset(clock::now());
    Ok(UiConfig {
        themes_dir: Some(context.dirs.themes()),
        presets_dir: Some(context.dirs.presets()),
        themes: Themes { folder: Some(context.dirs.themes()), ..Themes::default() }.names(),
        depth: match variable("NO_COLOR").is_none() && variable("CLICOLOR").is_none_or(|v| v != "0") {
            true => depth(variable("COLORTERM"), variable("TERM")),
            false => Depth::None,
        },
        glyphs: match ui.glyphs {
            settings::Glyphs::Unicode => Glyphs::Unicode,
            settings::Glyphs::Ascii => Glyphs::Ascii,
            settings::Glyphs::Auto if utf8 => Glyphs::Unicode,
            settings::Glyphs::Auto => Glyphs::Ascii,
        },
        fixed_glyphs: ui.glyphs != settings::Glyphs::Auto,
        ui: ui.clone(),
        inline: match ui.alternate_screen {
            Switch::Auto => variable("ZELLIJ").is_some(),
            Switch::On => false,
            Switch::Off => true,
        },
        think_show: config.thinking.show,
        clipboard: config.clipboard.method,
        keys,
        settings: context.loaded.clone(),
        settings_file: Some(context.config_file.clone()),
        home: std::env::home_dir(),
        state_dir: Some(context.dirs.state.clone()),
        utc_offset_min: offset.seconds() / 60,
        ..UiConfig::default()
    })
}

fn depth(colorterm: Option<OsString>, term: Option<OsString>) -> Depth {
    let has = |value: &Option<OsString>, words: &[&str]| {
        value.as_ref().is_some_and(|v| words.iter().any(|w| v.to_string_lossy().to_lowercase().contains(w)))
    };
    if has(&colorterm, &["truecolor", "24bit"]) || has(&term, &["direct", "kitty", "alacritty"]) {
        return Depth::Rgb;
    }
    if has(&term, &["256"]) { Depth::Fixed } else { Depth::Sixteen }
}

/// Line mode is for screen readers, pipes, and terminals that cannot place their cursor.
fn by_lines(requested: bool) -> bool {
    requested
        || std::env::var_os("TERM").is_some_and(|t| t == "dumb")
        || !std::io::stdin().is_terminal()
        || !std::io::stdout().is_terminal()
}

pub fn run(context: &Context, mut chat: ChatArgs) -> Result<Exit, Failure> {
    let most = context.config().load.max_file_mib.saturating_mul(1 << 20);
    let input = chat.follow.iter().any(|path| path == "-");
    // Holds the file until the end.
    let spool = input.then(|| Spool::start(most)).transpose()?;
    for path in chat.follow.iter_mut().filter(|path| *path == "-") {
        *path = spool.iter().map(|spool| spool.file.display().to_string()).collect();
    }
    let lines = by_lines(chat.plain).then(plain::start_lines).transpose().map_err(no_terminal)?;
    Ok(part(context, &chat, lines.as_ref(), None)?.0)
}

/// `sala-chat demo`: the tour, in a temporary data directory.
pub fn tour(context: &Context, plain: bool) -> Result<Exit, Failure> {
    let no_room = |e: std::io::Error| Failure::new(Exit::Disk, format!("no room for the tour: {e}"));
    let own = Scratch::new().map_err(no_room)?;
    // Themes and presets stay the user's own.
    let dirs = Dirs { config: context.dirs.config.clone(), ..Dirs::new(Some(&own.path().join("tour")), None)? };
    let context = Context { dirs, ..context.clone() };
    let lines = by_lines(plain).then(plain::start_lines).transpose().map_err(no_terminal)?;
    let tour = Tour::new(own.path().join("logbook.md")).map_err(no_room)?;
    let (mut chat, mut at) = (ChatArgs { start_new: true, ..ChatArgs::default() }, tour);
    loop {
        match part(&context, &chat, lines.as_ref(), Some(at))? {
            (Exit::Ok, Some(tour)) if tour.restarts() => at = tour.restarted(),
            (exit, _) => return Ok(exit),
        }
        chat.continue_last = true;
    }
}

fn no_terminal(e: std::io::Error) -> Failure {
    match e.kind() {
        // Line mode writes to pipes and files as well.
        ErrorKind::BrokenPipe | ErrorKind::StorageFull => e.into(),
        _ => Failure::new(Exit::Failure, format!("the terminal cannot be used: {e}")),
    }
}

/// Runs one interface until it ends; returns the state of the tour.
fn part(
    context: &Context,
    chat: &ChatArgs,
    lines: Option<&plain::Lines>,
    tour: Option<Tour>,
) -> Result<(Exit, Option<Tour>), Failure> {
    let mut ui = ui_config(context)?;
    let input = if lines.is_some() { Input::Lines } else { Input::Screen };
    let session = chat.session();
    let opened = open::runtime(context, &session, !chat.no_save, Attendance::Present, input)?;
    ui.settings = opened.loaded;
    ui.offer = opened.offer.filter(|_| chat.offers());
    let mut first = Vec::new();
    first.extend((session == SessionChoice::Pick).then_some(Request::Sessions));
    if !chat.paths.is_empty() {
        first.push(Request::Load { paths: chat.paths.clone(), options: LoadOptions::default() });
    }
    first.extend((!chat.follow.is_empty()).then(|| Request::Follow(chat.follow.clone())));
    ui.sent_before += first.len() as u64;
    for request in first {
        // A runtime that is gone says so in its last notice.
        let _ = opened.runtime.requests.send(request);
    }
    let handle = RuntimeHandle { requests: opened.runtime.requests, notices: opened.runtime.notices };
    let (exit, tour) = match lines {
        Some(lines) => plain::run(&ui, handle, lines, tour),
        None => run::run(ui, handle, tour),
    }
    .map_err(no_terminal)?;
    // The runtime has ended or must end at once: no more waiting.
    if matches!(exit, Exit::Ok | Exit::InUse) {
        let _ = opened.runtime.thread.join();
        let _ = opened.engine.join();
    }
    Ok((exit, tour))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_terminal_says_how_many_colours_it_has() {
        let says = |colorterm: &str, term: &str| {
            let set = |v: &str| Some(OsString::from(v)).filter(|v| !v.is_empty());
            depth(set(colorterm), set(term))
        };
        assert_eq!(says("truecolor", "xterm-256color"), Depth::Rgb);
        assert_eq!(says("", "xterm-256color"), Depth::Fixed);
        assert_eq!(says("", "linux"), Depth::Sixteen);
        assert_eq!(says("", ""), Depth::Sixteen);
    }
}
