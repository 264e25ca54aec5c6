//! `sala-chat [PATH…]`: a desk behind the full screen.

use std::io::IsTerminal;

use super::cli::{Chat, SessionChoice};
use super::failure::{Exit, Failure};
use super::run::{self, DeskHandle};
use super::{Context, open, plain};
use crate::app::keys::KeyTable;
use crate::app::options::{Glyphs, UiConfig};
use crate::desk::Attendance;
use crate::protocol::desk::{LoadOptions, Request};
use crate::settings::{self, Config, Switch};
use crate::text::clock;

/// The interface's options from the settings and the environment.
///
/// # Errors
/// A key binding that means nothing.
fn ui_config(context: &Context) -> Result<UiConfig, Failure> {
    let config: &Config = context.config();
    let ui = &config.ui;
    let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
    let utf8 = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .find_map(|n| variable(n))
        .is_some_and(|v| v.to_string_lossy().to_lowercase().replace('-', "").contains("utf8"));
    let mut keys = KeyTable::default();
    for (key, action) in &config.keys {
        keys.bind(key, action).map_err(|e| Failure::usage(e.to_string()))?;
    }
    let offset = jiff::tz::TimeZone::system().to_offset(clock::now());
    Ok(UiConfig {
        theme: ui.theme,
        colour: variable("NO_COLOR").is_none() && variable("CLICOLOR").is_none_or(|v| v != "0"),
        glyphs: match ui.glyphs {
            settings::Glyphs::Unicode => Glyphs::Unicode,
            settings::Glyphs::Ascii => Glyphs::Ascii,
            settings::Glyphs::Auto if utf8 => Glyphs::Unicode,
            settings::Glyphs::Auto => Glyphs::Ascii,
        },
        probe_glyphs: ui.glyphs == settings::Glyphs::Auto,
        panel: ui.panel,
        max_width: ui.max_width,
        paste_fold_chars: ui.paste_fold_chars,
        paste_fold_lines: ui.paste_fold_lines,
        mouse: ui.mouse,
        alternate_screen: match ui.alternate_screen {
            Switch::Auto => variable("ZELLIJ").is_none(),
            Switch::On => true,
            Switch::Off => false,
        },
        think_show: config.thinking.show,
        clipboard: config.clipboard.method,
        keys,
        settings: context.loaded.clone(),
        home: std::env::home_dir(),
        state_dir: Some(context.dirs.state.clone()),
        utc_offset_min: offset.seconds() / 60,
        ..UiConfig::default()
    })
}

/// Runs the chat until it ends.
///
/// # Errors
/// No terminal, no model, no data directory.
pub fn run(context: &Context, chat: &Chat) -> Result<Exit, Failure> {
    let mut ui = ui_config(context)?;
    // A terminal that cannot place its cursor gets lines, like a pipe or a screen reader that asks for them.
    let lines = chat.plain
        || std::env::var_os("TERM").is_some_and(|t| t == "dumb")
        || !std::io::stdin().is_terminal()
        || !std::io::stdout().is_terminal();
    let opened = open::desk(context, &chat.session, chat.save, Attendance::Present)?;
    ui.settings = opened.loaded;
    let requests = opened.desk.requests.clone();
    if chat.session == SessionChoice::Pick {
        // A desk that is gone says so in its last notice.
        let _ = requests.send(Request::Sessions);
    }
    if !chat.paths.is_empty() {
        let _ = requests.send(Request::Load { paths: chat.paths.clone(), options: LoadOptions::default() });
    }
    drop(requests);
    let handle = DeskHandle { requests: opened.desk.requests, notices: opened.desk.notices };
    let code = if lines { plain::run(std::env::home_dir(), handle) } else { run::run(ui, handle) }
        .map_err(|e| Failure::new(Exit::Failure, format!("the terminal cannot be used: {e}")))?;
    // The desk has said goodbye, or the program was told to end at once; then there is no more waiting.
    if code == 0 {
        let _ = opened.desk.thread.join();
        let _ = opened.engine.join();
    }
    Ok(match u8::try_from(code) {
        Ok(n @ 129..=191) => Exit::Signal(n - 128),
        _ => Exit::from_code(code),
    })
}
