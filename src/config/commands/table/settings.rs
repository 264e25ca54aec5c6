//! How it answers and looks.

use super::super::Completes::{After, Themes, Words};
use super::super::args::Args;
use super::super::words::PresetAction;
use super::super::{Command, Local, Outcome, Request};
use super::{ROW, local, runtime};
use crate::config::settings::meant::no_setting;
use crate::config::settings::preset::BUILT_IN;
use crate::config::settings::row::Owner;
use crate::config::settings::{Field, Kind, ThinkMode, session, table as settings};
use crate::core::sanitize::command_word;
use crate::engine::protocol::SpecMode;

pub(super) const ROWS: &[Command] = &[
    Command {
        name: "set",
        usage: "[KEY VALUE] [--save]",
        help: "change a setting of this session",
        options: &[("--save", "also write it to the settings file")],
        example: "/set temperature 0.3",
        example_of: set_example,
        completes: After(set_words),
        parse: set,
        ..ROW
    },
    Command {
        name: "settings",
        aliases: &["config"],
        usage: "[WORD]",
        help: "all settings, or those about a word",
        example: "/settings theme",
        parse: |a| local(Local::Settings(a.rest())),
        ..ROW
    },
    Command {
        name: "preset",
        usage: "[NAME|save NAME|list]",
        help: "apply, save or list named settings",
        options: &[
            ("NAME", "take this preset"),
            ("save NAME", "save the current settings under this name"),
            ("list", "all of them; the same as nothing"),
        ],
        example: "/preset save dossier",
        completes: After(preset_words),
        parse: preset,
        ..ROW
    },
    Command {
        name: "system",
        usage: "[show|edit|TEXT]",
        help: "show, change or set the system text",
        example: "/system Answer in one sentence.",
        completes: Words(&["show", "edit"]),
        parse: |a| match a.raw {
            "edit" => runtime(Request::SystemEdit),
            _ => runtime(Request::System(a.rest().filter(|t| t != "show"))),
        },
        ..ROW
    },
    Command {
        name: "think",
        usage: "on|off|auto|show|fold|hide",
        help: "whether the model thinks; how thoughts are shown",
        options: &[
            ("on, off, auto", "let the model think before it answers; auto: the model's default"),
            ("show, fold, hide", "thoughts always open, folded once the answer starts, or never shown"),
        ],
        example: "/think fold",
        completes: Words(&["on", "off", "auto", "show", "fold", "hide"]),
        parse: think,
        ..ROW
    },
    Command {
        name: "spec",
        usage: "[on|off|auto|N]",
        help: "speculative decoding",
        options: &[("auto", "drafts where it pays"), ("N", "always drafts N tokens, 1 to 15")],
        example: "/spec 5",
        completes: Words(&["on", "off", "auto"]),
        parse: |a| match a.at_most_one()? {
            None => runtime(Request::Spec(None)),
            Some(word) => {
                let (row, value) = session::parse("spec", &word)?;
                runtime(Request::Spec(Some(SpecMode::from_value(&value).ok_or_else(|| row.kind.range())?)))
            }
        },
        ..ROW
    },
    Command {
        name: "theme",
        usage: "[NAME|FILE]",
        help: "choose the colours",
        options: &[
            ("auto, dark, light, plain", "built in; auto asks the terminal, plain has no colour"),
            ("NAME", "NAME.toml in the themes folder"),
            ("FILE", "a theme file elsewhere"),
        ],
        example: "/theme light",
        completes: Themes,
        parse: |a| match a.at_most_one()? {
            None => local(Local::Themes),
            Some(name) => change("theme", &name),
        },
        ..ROW
    },
];

/// `/set KEY VALUE`, checked here so that an error appears at once.
fn set(a: &Args<'_>) -> Result<Outcome, String> {
    let words: Vec<&str> = a.words()?.iter().map(String::as_str).collect();
    let save = words.contains(&"--save");
    let words: Vec<&str> = words.into_iter().filter(|w| *w != "--save").collect();
    match words.as_slice() {
        [key, value] if save => {
            let row = settings::find_short(key).ok_or_else(|| no_setting(key))?;
            let shown = row
                .kind
                .parse(value)
                .map(|v| row.kind.show(&v))
                .map_err(|range| format!("{key} must be {range} (got {value})"))?;
            local(Local::Save { key: row.name, value: shown, now: change(key, value).ok().map(Box::new) })
        }
        _ if save => Err("--save needs a key and a value".into()),
        [] => runtime(Request::Set(None)),
        [key, value] => change(key, value),
        [key] => Err(match settings::session_row(key) {
            Some(row) if row.name == "ui.theme" => return local(Local::Themes),
            Some(row) if matches!(row.kind, Kind::Named(..)) => return local(Local::Names(row)),
            Some(row) => format!("{key} needs a value: {}", row.kind.range()),
            None => session::parse(key, "").err().unwrap_or_default(),
        }),
        _ => Err("takes a key and a value".into()),
    }
}

/// An example of the setting that was named: with the value that was typed, if it takes that, else with its built-in one.
fn set_example(a: &Args<'_>) -> Option<String> {
    let mut words = a.words().ok()?.iter().filter(|w| *w != "--save");
    let row = settings::find_short(words.next()?)?;
    let typed = words.next().and_then(|value| row.kind.parse(value).ok());
    let value = row.kind.show(&typed.unwrap_or_else(|| row.kind.default()));
    let value = Some(value).filter(|value| !value.is_empty()).map(|value| command_word(&value))?;
    Some(match &row.session {
        Some(way) => format!("/set {} {value}", way.name),
        None => format!("/set {} {value} --save", row.name),
    })
}

/// Changes one setting, in the session or on the screen.
fn change(key: &str, value: &str) -> Result<Outcome, String> {
    let (row, value) = session::parse(key, value)?;
    let shown = row.kind.show(&value);
    match row.session.map(|way| (way.name, way.owner)) {
        Some((name, Owner::Session(..))) => runtime(Request::Set(Some((name.to_owned(), shown)))),
        Some((_, Owner::Screen)) | None => local(Local::Show(vec![(row.name, shown)])),
    }
}

fn set_words(before: &[&str]) -> Vec<&'static str> {
    match before {
        [] => settings::session_rows().map(|(_, way)| way.name).collect(),
        [key] => settings::session_row(key).map(|row| row.kind.words()).unwrap_or_default(),
        _ => Vec::new(),
    }
}

fn preset(a: &Args<'_>) -> Result<Outcome, String> {
    let words: Vec<&str> = a.words()?.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] | ["list"] => runtime(Request::Preset(PresetAction::List)),
        ["save"] => Err("needs a name to save under".into()),
        // How things are shown is known to the interface, which adds it.
        ["save", name] => runtime(Request::Preset(PresetAction::Save { name: (*name).into(), display: Vec::new() })),
        [name] => runtime(Request::Preset(PresetAction::Take((*name).into()))),
        _ => Err("takes NAME, save NAME or list".into()),
    }
}

fn preset_words(before: &[&str]) -> Vec<&'static str> {
    match before {
        [] => ["list", "save"].into_iter().chain(BUILT_IN.iter().map(|p| p.name)).collect(),
        _ => Vec::new(),
    }
}

fn think(a: &Args<'_>) -> Result<Outcome, String> {
    match a.at_most_one()?.as_deref() {
        Some("on") => runtime(Request::Think(ThinkMode::On)),
        Some("off") => runtime(Request::Think(ThinkMode::Off)),
        Some("auto") => runtime(Request::Think(ThinkMode::Auto)),
        Some("show") => change("thoughts", "open"),
        Some(word @ ("fold" | "hide")) => change("thoughts", word),
        _ => Err("takes on, off, auto (the model) or show, fold, hide (the screen)".into()),
    }
}
