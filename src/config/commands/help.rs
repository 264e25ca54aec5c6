//! Help written from the table: a row for each command, the page of one command, and a search by a word.

use super::{COMMANDS, Command, GROUPS, WhileBusy, find, instead_of, nearest, parse};
use crate::config::settings::Row;
use crate::config::settings::table::ROWS;

const NAMES: usize = 24;

/// The command with its arguments, shortened to less than `cells` characters at a word.
pub fn usage(command: &Command, cells: usize) -> String {
    let first = command.usage.split_once(' ').map_or(command.usage, |(first, _)| first);
    let more = if first.ends_with("...") { "" } else { " …" };
    let forms = [command.form(), format!("/{} {first}{more}", command.name), format!("/{} …", command.name)];
    // A bracket that is opened is closed.
    let fits = |s: &&String| s.chars().count() < cells && s.matches('[').count() == s.matches(']').count();
    forms.iter().find(fits).or(forms.last()).cloned().unwrap_or_default()
}

pub fn words(command: &Command) -> String {
    let options = command.options.iter().flat_map(|(option, meaning)| [*option, *meaning]);
    let all = [command.name, command.usage, command.help].into_iter().chain(command.aliases.iter().copied());
    all.chain(options).collect::<Vec<_>>().join(" ")
}

fn line(command: &Command) -> String {
    format!("  {:<NAMES$}{}\n", usage(command, NAMES), command.help)
}

pub fn page() -> String {
    let mut text = String::from(
        "Type a question and press Enter. /load FILE reads a document, then ask about it. Everything is saved as it happens, \
         on this computer.\n\n/help COMMAND explains one command, /help WORD searches help.\n",
    );
    for (title, commands) in &GROUPS {
        text.push_str(&format!("\n{title}\n"));
        commands.iter().for_each(|c| text.push_str(&line(c)));
    }
    text.push_str("\nA message that begins with a slash: type // or a space first.\n");
    text
}

pub fn of(command: &Command) -> String {
    let mut text = format!("`{}`\n\n{}.\n", command.form(), sentence(command.help));
    if !command.options.is_empty() {
        text.push('\n');
        for (option, meaning) in command.options {
            text.push_str(&format!("- `{option}`: {meaning}\n"));
        }
    }
    if command.name == "set" {
        text.push('\n');
        for (row, way) in crate::config::settings::table::session_rows() {
            text.push_str(&format!("- `{}`: {}; {}\n", way.name, row.help, row.kind.range()));
        }
    }
    if !command.aliases.is_empty() {
        let names: Vec<String> = command.aliases.iter().map(|a| format!("`/{a}`")).collect();
        text.push_str(&format!("\nAlso: {}\n", names.join(", ")));
    }
    let while_busy = match parse(&command.example(), None).map(|p| p.outcome.while_busy()) {
        Ok(WhileBusy::Waits) => "While reading or answering it waits in the queue.",
        Ok(WhileBusy::Leaves) => "Runs at once; the current work continues in the background.",
        Ok(WhileBusy::Apart) => "Runs at once, also while the model reads or answers.",
        Ok(WhileBusy::Runs) | Err(_) => "Runs at once, also while reading or answering.",
    };
    text.push_str(&format!("\nExample: `{}`\n\n{while_busy}\n", command.example()));
    text
}

pub fn sentence(help: &str) -> String {
    let mut chars = help.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}

pub fn named(word: &str) -> Option<&'static Command> {
    find(&word.trim().trim_start_matches('/').to_lowercase())
}

pub fn unknown(word: &str) -> String {
    if let Some(instead) = instead_of(word) {
        return format!("/help: no command is called {word}. {instead}");
    }
    let near = nearest(&word.to_lowercase()).map_or(String::new(), |n| format!(" Did you mean {n}?"));
    format!("/help: nothing is found for {word}.{near} /help lists all")
}

/// What `/help WORD` prints in line mode.
pub fn about(word: &str) -> Result<String, String> {
    if let Some(command) = named(word) {
        return Ok(of(command));
    }
    let wanted = word.trim().to_lowercase();
    let has = |text: &str| text.to_lowercase().contains(&wanted);
    let commands = COMMANDS.iter().filter(|c| has(&words(c))).map(line);
    let setting = |row: &Row| format!("  {}: {}\n", row.name, row.help);
    let settings = ROWS.iter().filter(|row| has(row.name) || has(row.help)).map(setting);
    let found: String = commands.chain(settings).collect();
    if found.is_empty() { Err(unknown(word)) } else { Ok(found) }
}
