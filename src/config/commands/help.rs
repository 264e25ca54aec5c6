//! The pages of `/help`, written from the table: the list by purpose, one command, and what has to do with a word.

use super::{COMMANDS, Command, Group, WhileBusy, find, nearest, parse};
use crate::config::settings::Row;
use crate::config::settings::table::ROWS;

const NAMES: usize = 24;

/// A command in the list: name and, where they fit, arguments, in a column; then what it does.
fn line(command: &Command) -> String {
    let whole = format!("/{} {}", command.name, command.usage);
    let first = command.usage.split_once(' ').map_or(command.usage, |(first, _)| first);
    let more = if first.ends_with("...") { "" } else { " …" };
    let short = format!("/{} {first}{more}", command.name);
    let shown = [whole.trim_end().to_owned(), short, format!("/{} …", command.name)];
    // A bracket that is opened is closed.
    let whole = |s: &&String| s.chars().count() < NAMES && s.matches('[').count() == s.matches(']').count();
    let fits = shown.iter().find(whole).or(shown.last()).map_or("", String::as_str);
    format!("- `{fits:<NAMES$}`{}\n", command.help)
}

/// The list of all commands by purpose. `keys` is the list of keys.
pub fn page(demo: bool, keys: &str) -> String {
    let mut text = String::from(
        "Type a question and press Enter. `/load FILE` reads a document, then ask about it. Everything is saved as it \
         happens, on this computer.\n\n",
    );
    if demo {
        text.push_str("This is the small built-in demo model. Get the 9B model with: `sala-chat model download`\n\n");
    }
    text.push_str("`/help COMMAND` explains one command, `/help WORD` searches help.\n");
    for group in Group::ALL {
        text.push_str(&format!("\n**{}**\n\n", group.title()));
        COMMANDS.iter().filter(|c| c.group == group).for_each(|c| text.push_str(&line(c)));
    }
    text.push_str("\nA message that begins with a slash: type `//` or a space first.\n");
    // Line mode has none.
    if !keys.is_empty() {
        text.push_str(&format!("\n**Keys**\n\n{keys}"));
    }
    text
}

/// One command: usage, meaning, options, other names, an example.
pub fn of(command: &Command) -> String {
    let usage = format!("/{} {}", command.name, command.usage);
    let mut text = format!("`{}`\n\n{}.\n", usage.trim_end(), sentence(command.help));
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
    let while_busy = match parse(command.example, None).map(|p| p.outcome.while_busy()) {
        Ok(WhileBusy::Waits) => "While reading or answering it waits in the queue.",
        Ok(WhileBusy::Leaves) => "Runs at once; the current work continues in the background.",
        Ok(WhileBusy::Apart) => "Runs at once, also while the model reads or answers.",
        Ok(WhileBusy::Runs) | Err(_) => "Runs at once, also while reading or answering.",
    };
    text.push_str(&format!("\nExample: `{}`\n\n{while_busy}\n", command.example));
    text
}

fn sentence(help: &str) -> String {
    let mut chars = help.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}

/// What `/help WORD` shows: a page with its title.
pub fn about(word: &str, keys: &str) -> Result<(String, String), String> {
    let name = word.trim().trim_start_matches('/').to_lowercase();
    if let Some(command) = find(&name) {
        return Ok((format!("/{}", command.name), of(command)));
    }
    let has = |text: &str| text.to_lowercase().contains(&name);
    let commands: Vec<&Command> = COMMANDS
        .iter()
        .filter(|c| {
            let options = c.options.iter().any(|(option, meaning)| has(option) || has(meaning));
            has(c.name) || c.aliases.iter().any(|a| has(a)) || has(c.usage) || has(c.help) || options
        })
        .collect();
    let settings: Vec<&Row> = ROWS.iter().filter(|row| has(row.name) || has(row.help)).collect();
    let keys: Vec<&str> = keys.lines().filter(|l| l.starts_with("- ") && has(l)).collect();
    if commands.is_empty() && settings.is_empty() && keys.is_empty() {
        let near = nearest(&name).map_or(String::new(), |n| format!(" Did you mean {n}?"));
        return Err(format!("/help: nothing here has to do with {word}.{near} /help lists all"));
    }
    let mut text = String::new();
    let mut part = |title: &str, lines: Vec<String>| {
        if !lines.is_empty() {
            text.push_str(&format!("**{title}**\n\n{}\n", lines.concat()));
        }
    };
    part("Commands", commands.into_iter().map(line).collect());
    part("Settings", settings.into_iter().map(|row| format!("- `{}`: {}\n", row.name, row.help)).collect());
    part("Keys", keys.into_iter().map(|l| format!("{l}\n")).collect());
    Ok((format!("Help: {word}"), text))
}
