//! `sala-chat config show|path|check|set`. Works on a broken settings file, so it reads the layers itself.

use std::path::Path;

use serde_json::{Value, json};

use super::args::ConfigCommand;
use super::dirs::make_private;
use super::themes::Themes;
use super::{Context, Exit, Failure, serve_cmd, take_preset};
use crate::client::remote::address;
use crate::config::settings::{self, Origin, page, table};
use crate::core::files;
use crate::runtime::presets;
use crate::text::sources;
use crate::tui::keys::KeyTable;
use crate::tui::options::UiConfig;

pub(super) fn run(
    context: &Context,
    action: &ConfigCommand,
    variables: &[(String, String)],
    options: &[(&str, settings::Value)],
) -> Result<Exit, Failure> {
    let (file, presets) = (&context.config_file, context.dirs.presets());
    let themes = Themes { folder: Some(context.dirs.themes()), home: std::env::home_dir(), light: false };
    let shown = file.display();
    match action {
        ConfigCommand::Path => context.result(|| json!({ "file": file }), || shown.to_string()),
        ConfigCommand::Check => {
            let (config, wrong) = settings::examine(file, variables);
            let mut problems: Vec<String> = wrong.iter().map(ToString::to_string).collect();
            let meant = MEANT.iter().filter_map(|(name, unfit)| Some((table::find(name)?, unfit)));
            problems.extend(
                meant.filter_map(|(row, unfit)| unfit(&row.kind.show(&(row.get)(&config)), &themes, Some(&presets))),
            );
            let open = config.keys.iter().map(|(key, action)| ("keys", key, action));
            let converters = config.load.converters.iter().map(|(of, line)| ("load.converters", of, line));
            let bad = open.chain(converters).filter_map(|(table, key, value)| unusable(table, key, value));
            problems.extend(bad.map(|e| format!("{shown}: {e}")));
            let text = || {
                let state = if file.exists() { "no mistakes" } else { "does not exist, built-in values are used" };
                let fine = problems.is_empty().then(|| format!("{shown}: {state}"));
                problems.iter().cloned().chain(fine).collect::<Vec<_>>().join("\n")
            };
            context.result(|| json!({ "file": file, "problems": problems }), text)?;
            Ok(if problems.is_empty() { Exit::Ok } else { Exit::Usage })
        }
        ConfigCommand::Show { origin } => {
            let mut loaded = settings::load(file, variables, options)?;
            take_preset(&mut loaded, &presets)?;
            let rows = page::values(&loaded.config);
            let from = |key: &str| loaded.origins.get(key).unwrap_or(&Origin::BuiltIn).to_string();
            let object = |(key, value): &(String, _)| match *origin {
                true => (key.clone(), json!({ "value": value, "origin": from(key) })),
                false => (key.clone(), json!(value)),
            };
            let line = |(key, value): &(String, _)| match *origin {
                true => format!("{:<50} # {}", format!("{key} = {value}"), from(key)),
                false => format!("{key} = {value}"),
            };
            let text = || rows.iter().map(line).collect::<Vec<_>>().join("\n");
            context.result(|| Value::Object(rows.iter().map(object).collect()), text)
        }
        ConfigCommand::Set { key, value } => {
            let key = set(file, key, value, &themes, Some(&presets))?;
            let object = || json!({ "file": file, "key": key, "value": value });
            context.result(object, || format!("{key} set in {shown}"))
        }
    }
}

/// Checks a value that its row accepts but that may name nothing.
type Unfit = fn(&str, &Themes, Option<&Path>) -> Option<String>;

const MEANT: [(&str, Unfit); 5] = [
    ("ui.theme", |value, themes, _| themes.theme(value).err().map(|e| format!("ui.theme: {e}"))),
    ("ui.code_theme", |value, themes, _| themes.code(value).err().map(|e| format!("ui.code_theme: {e}"))),
    ("sampling.preset", |value, _, presets| {
        presets::find(presets, value).err().map(|e| format!("sampling.preset: {}", Failure::of_chat(Exit::Usage, &e)))
    }),
    ("serve.listen", |value, _, _| serve_cmd::malformed(value).map(|why| format!("serve.listen {value}: {why}"))),
    ("engine.url", |value, _, _| settings::server(value).and_then(|url| address(url).err())),
];

fn unusable(table: &str, key: &str, value: &str) -> Option<String> {
    match table {
        "keys" => KeyTable::default().bind(key, value).err().map(|e| e.to_string()),
        _ => sources::converter(value).err().map(|why| format!("{table}.{key}: {why}")),
    }
}

/// `/set --save`; returns the message for the user.
pub(super) fn keep(ui: &UiConfig, key: &str, value: &str) -> Result<String, String> {
    let Some(file) = &ui.settings_file else { return Err("There is no settings file to write.".into()) };
    let set = set(file, key, value, &Themes::of(ui), ui.presets_dir.as_deref());
    set.map(|_| format!("{key} = {value} is in {} now.", file.display())).map_err(|e| e.to_string())
}

/// Sets one key in the settings file. Returns its full name.
fn set(file: &Path, key: &str, value: &str, themes: &Themes, presets: Option<&Path>) -> Result<String, Failure> {
    let text = match files::read_text(file, files::SETTINGS_BYTES) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(e) => return Err(Failure::new(Exit::Failure, format!("{}: {e}", file.display()))),
    };
    let unusable = || table::find_open(key).and_then(|(open, key)| unusable(open.name, key, value));
    // `edit` reports values that the row does not accept.
    let accepted = table::find_short(key).and_then(|row| Some((row, row.kind.parse(value).ok()?)));
    let unfit = accepted.and_then(|(row, value)| {
        let (_, unfit) = MEANT.iter().find(|(name, _)| *name == row.name)?;
        unfit(&row.kind.show(&value), themes, presets)
    });
    if let Some(why) = unfit.or_else(unusable) {
        return Err(Failure::new(Exit::Usage, why).hint("Nothing was changed"));
    }
    let edited = settings::edit(file, &text, key, value).map_err(|e| Failure::from(e).hint("Nothing was changed"))?;
    let written = make_private(files::folder_of(file)).and_then(|()| files::replace(file, edited.as_bytes()));
    written.map_err(|e| Failure::new(Exit::Disk, format!("{}: {e}", file.display())).hint("Nothing was changed"))?;
    Ok(table::find_short(key).map_or(key, |row| row.name).to_owned())
}
