//! The manual page in the language of `man`, from the command line's definition and the tables of commands and keys.

use clap::builder::StyledStr;
use clap::{Arg, Command};

use crate::config::commands::GROUPS;
use crate::tui::keys::ACTIONS;

fn plain(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    let line = |l: &str| if l.starts_with(['.', '\'']) { format!("\\&{l}") } else { l.to_owned() };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn styled(text: Option<&StyledStr>) -> String {
    text.map(|t| plain(&t.to_string())).unwrap_or_default()
}

fn entry(page: &mut String, term: &str, meaning: &str) {
    page.push_str(&format!(".TP\n\\fB{}\\fR\n{meaning}\n", plain(term)));
}

fn section(page: &mut String, title: &str) {
    page.push_str(&format!(".SH \"{}\"\n", title.to_uppercase()));
}

fn typed(arg: &Arg) -> String {
    let mut names: Vec<String> = arg.get_short().map(|c| format!("-{c}")).into_iter().collect();
    names.extend(arg.get_long().map(|l| format!("--{l}")));
    let takes = arg.get_action().takes_values();
    let value = arg.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let may_miss = arg.get_num_args().is_some_and(|n| n.min_values() == 0);
    match (names.is_empty(), takes && !value.is_empty()) {
        (true, _) => value,
        (false, true) if may_miss && arg.is_require_equals_set() => format!("{}[={value}]", names.join(", ")),
        (false, true) if may_miss => format!("{} [{value}]", names.join(", ")),
        (false, true) => format!("{} {value}", names.join(", ")),
        (false, false) => names.join(", "),
    }
}

/// Help of an option with its default and possible values.
fn meaning(arg: &Arg) -> String {
    let mut meaning = styled(arg.get_help());
    if !arg.get_action().takes_values() {
        return meaning;
    }
    let defaults = arg.get_default_values().iter().map(|v| v.to_string_lossy().into_owned());
    let defaults: Vec<String> = defaults.filter(|v| !v.is_empty() && !arg.is_hide_default_value_set()).collect();
    let values = arg.get_possible_values();
    let values = values.iter().filter(|v| !v.is_hide_set() && !arg.is_hide_possible_values_set());
    let values: Vec<&str> = values.map(|v| v.get_name()).collect();
    for (what, list) in [("default", defaults.join(" ")), ("possible values", values.join(", "))] {
        if !list.is_empty() {
            meaning.push_str(&plain(&format!(" [{what}: {list}]")));
        }
    }
    meaning
}

fn arguments(page: &mut String, command: &Command) {
    for arg in command.get_arguments().filter(|a| !a.is_hide_set()) {
        entry(page, &typed(arg), &meaning(arg));
    }
}

fn subcommands(page: &mut String, before: &str, command: &Command) {
    for sub in command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help") {
        let name = format!("{before}{}", sub.get_name());
        page.push_str(&format!(".SS \"{}\"\n{}\n", plain(&name), styled(sub.get_about())));
        arguments(page, sub);
        subcommands(page, &format!("{name} "), sub);
    }
}

pub(super) fn page(command: &Command) -> String {
    let name = command.get_name();
    let version = command.get_version().unwrap_or_default();
    let about = styled(command.get_about());
    let mut page = format!(".TH {} 1 \"\" \"{name} {version}\"\n", name.to_uppercase());
    section(&mut page, "Name");
    page.push_str(&format!("{} \\- {about}\n", plain(name)));
    section(&mut page, "Synopsis");
    page.push_str(&format!(".B {0}\n[OPTIONS] [PATH ...]\n.br\n.B {0}\nCOMMAND [ARGUMENTS]\n", plain(name)));
    section(&mut page, "Options");
    arguments(&mut page, command);
    section(&mut page, "Commands");
    subcommands(&mut page, "", command);
    section(&mut page, "In the chat");
    for (title, commands) in &GROUPS {
        page.push_str(&format!(".SS \"{title}\"\n"));
        for c in *commands {
            entry(&mut page, &c.form(), &plain(c.help));
        }
    }
    section(&mut page, "Keys");
    for (_, action, keys, help) in ACTIONS {
        entry(&mut page, &keys.join(", "), &format!("{} ({})", plain(help), plain(action)));
    }
    section(&mut page, "Exit status");
    page.push_str(&styled(command.get_after_help()));
    page.push('\n');
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_every_command_option_and_key_and_nothing_in_it_is_an_instruction() {
        let page = page(&super::super::args::command());
        for c in GROUPS.iter().flat_map(|(_, commands)| *commands) {
            assert!(page.contains(&plain(&format!("/{}", c.name))), "/{}", c.name);
        }
        for sub in super::super::args::command().get_subcommands() {
            assert!(page.contains(&format!(".SS \"{}\"", plain(sub.get_name()))), "{}", sub.get_name());
        }
        for name in ["\\-\\-device", "\\-p, \\-\\-prompt TEXT", "ctrl\\-r, ", "128+n signal"] {
            assert!(page.contains(name.trim_end_matches(", ")), "{name}");
        }
        for part in [
            "\\-\\-resume [NAME]\\fR",
            "\\-\\-raw\\fR\nPrint the exact text, including control characters\n",
            "\\-\\-calibrate[=DOCS]\\fR",
            "What to measure [default: model] [possible values: model, sessions, serve]\n",
            " [default: read] [possible values: read, random]\n",
            " [possible values: consistency, needles]\n",
            " [possible values: bash, elvish, fish, powershell, zsh]\n",
        ] {
            assert!(page.contains(part), "{part}");
        }
        let known = [".TH", ".SH", ".SS", ".TP", ".B", ".br"];
        let lines = page.lines().filter(|l| l.starts_with(['.', '\'']));
        let odd: Vec<&str> = lines.filter(|l| !l.split(' ').next().is_some_and(|w| known.contains(&w))).collect();
        assert_eq!(odd, Vec::<&str>::new());
    }
}
