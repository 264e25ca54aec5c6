//! How it answers and looks.

use super::super::Completes::{After, Themes, Words};
use super::super::args::Args;
use super::super::words::PresetAction;
use super::super::{Command, Local, Outcome, Request};
use super::{command, local, runtime};
use crate::config::settings::preset::BUILT_IN;
use crate::config::settings::row::Owner;
use crate::config::settings::{Kind, no_setting, session, table as settings};
use crate::core::sanitize::command_word;

pub(super) const ROWS: &[Command] = &[
    Command {
        example_of: set_example,
        ..command("set", "[KEY VALUE] [--save]", "change a setting of this session", set)
    }
    .options(&[("--save", "also write it to the settings file")])
    .as_in("/set temperature 0.3")
    .completes(After(set_words)),
    command("settings", "[WORD]", "all settings, or those about a word", |a| local(Local::Settings(a.rest())))
        .also(&["config"])
        .as_in("/settings theme"),
    command("preset", "[NAME|save NAME|list]", "apply, save or list named settings", preset)
        .options(&[
            ("NAME", "take this preset"),
            ("save NAME", "save the current settings under this name"),
            ("list", "all of them; the same as nothing"),
        ])
        .as_in("/preset save dossier")
        .completes(After(preset_words)),
    command("system", "[show|edit|off|TEXT]", "show, change, set or remove the system text", |a| match a.raw {
        "edit" => runtime(Request::SystemEdit),
        "off" => runtime(Request::System(Some(String::new()))),
        _ => runtime(Request::System(a.rest().filter(|t| t != "show"))),
    })
    .as_in("/system Answer in one sentence.")
    .completes(Words(&["show", "edit", "off"])),
    command("think", "on|off|auto|show|fold|hide", "whether the model thinks; how thoughts are shown", think)
        .options(&[
            ("on, off, auto", "let the model think before it answers; auto: the model's default"),
            ("show, fold, hide", "thoughts always open, folded once the answer starts, or never shown"),
        ])
        .as_in("/think fold")
        .completes(Words(&["on", "off", "auto", "show", "fold", "hide"])),
    command("spec", "[on|off|auto|N]", "speculative decoding", spec)
        .options(&[("auto", "drafts where it pays"), ("N", "always drafts N tokens, 1 to 15")])
        .as_in("/spec 5")
        .completes(Words(&["on", "off", "auto"])),
    command("theme", "[NAME|FILE]", "choose the colours", |a| match a.at_most_one()? {
        None => local(Local::Complete("/theme ".into())),
        Some(name) => change("theme", &name),
    })
    .options(&[
        ("auto, dark, light, plain", "built in; auto asks the terminal, plain has no colour"),
        ("NAME", "NAME.toml in the themes folder"),
        ("FILE", "a theme file elsewhere"),
    ])
    .as_in("/theme light")
    .completes(Themes),
];

/// `/set KEY VALUE`, checked here so that an error appears at once.
fn set(a: &Args<'_>) -> Result<Outcome, String> {
    let mut words = a.words()?;
    let given = words.len();
    words.retain(|word| *word != "--save");
    let save = words.len() < given;
    match words[..] {
        [key, value] if save => {
            let row = settings::find_short(key).ok_or_else(|| no_setting(key))?;
            let shown = row.kind.parse(value).map(|v| row.kind.show(&v));
            let value = shown.map_err(|range| format!("{key} must be {range} (got {value})"))?;
            let now = change(key, &value).ok().map(Box::new);
            local(Local::Save { key: row.name, value, now })
        }
        _ if save => Err("--save needs a key and a value".into()),
        [] => runtime(Request::Set(None)),
        [key, value] => change(key, value),
        [key] => match settings::session_row(key) {
            Some(row) if row.name == "ui.theme" => local(Local::Complete("/theme ".into())),
            Some(row) if matches!(row.kind, Kind::Named(..)) => local(Local::Complete(format!("/set {key} "))),
            Some(row) => Err(format!("{key} needs a value: {}", row.kind.range())),
            None => Err(session::parse(key, "").err().unwrap_or_default()),
        },
        _ => Err("takes a key and a value".into()),
    }
}

/// An example of the setting that was named: with the value that was typed, if it takes that, else with its built-in one.
fn set_example(a: &Args<'_>) -> Option<String> {
    let mut words = a.words().ok()?.into_iter().filter(|w| *w != "--save");
    let row = settings::find_short(words.next()?)?;
    let typed = words.next().and_then(|value| row.kind.parse(value).ok());
    let value = row.kind.show(&typed.unwrap_or_else(|| row.kind.default()));
    let value = Some(value).filter(|value| !value.is_empty()).map(|value| command_word(&value))?;
    Some(match &row.session {
        Some(way) => format!("/set {} {value}", way.name),
        None => format!("/set {} {value} --save", row.name),
    })
}

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
    runtime(Request::Preset(match a.words()?[..] {
        [] | ["list"] => PresetAction::List,
        ["save"] => return Err("needs a name to save under".into()),
        // How things are shown is known to the interface, which adds it.
        ["save", name] => PresetAction::Save { name: name.into(), display: Vec::new() },
        [name] => PresetAction::Take(name.into()),
        _ => return Err("takes NAME, save NAME or list".into()),
    }))
}

fn preset_words(before: &[&str]) -> Vec<&'static str> {
    let names = ["list", "save"].into_iter().chain(BUILT_IN.iter().map(|p| p.name));
    if before.is_empty() { names.collect() } else { Vec::new() }
}

fn think(a: &Args<'_>) -> Result<Outcome, String> {
    match a.at_most_one()?.as_deref() {
        Some(word @ ("on" | "off" | "auto")) => change("think", word),
        Some("show") => change("thoughts", "open"),
        Some(word @ ("fold" | "hide")) => change("thoughts", word),
        _ => Err("takes on, off, auto (the model) or show, fold, hide (the screen)".into()),
    }
}

fn spec(a: &Args<'_>) -> Result<Outcome, String> {
    match a.at_most_one()? {
        Some(word) => change("spec", &word),
        None => local(Local::Settings(Some("spec".to_owned()))),
    }
}
