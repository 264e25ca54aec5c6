//! The manual page in the language of `man`: the help of every command as it is printed, and the tables of the chat's
//! commands and keys.

use clap::Command;

use crate::config::commands::GROUPS;
use crate::tui::keys::ACTIONS;

/// Columns of text beside the margin of a manual page on a terminal of 80.
const WIDTH: usize = 72;

fn plain(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    let line = |l: &str| if l.starts_with(['.', '\'']) { format!("\\&{l}") } else { l.to_owned() };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn entry(page: &mut String, term: &str, meaning: &str) {
    page.push_str(&format!(".TP\n\\fB{}\\fR\n{meaning}\n", plain(term)));
}

/// The help of a command, and of those below it in sections of their own.
fn help(page: &mut String, command: &Command) {
    let text = command.clone().render_long_help().to_string();
    page.push_str(&format!(".nf\n{}\n.fi\n", plain(text.trim_end())));
    for sub in command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help") {
        page.push_str(&format!(".SS \"{}\"\n", plain(sub.get_bin_name().unwrap_or(sub.get_name()))));
        help(page, sub);
    }
}

pub(super) fn page(command: &Command) -> String {
    let mut command = command.clone().term_width(WIDTH);
    command.build();
    let name = command.get_name();
    let version = command.get_version().unwrap_or_default();
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let mut page = format!(".TH {} 1 \"\" \"{name} {version}\"\n", name.to_uppercase());
    page.push_str(&format!(".SH NAME\n{} \\- {}\n.SH COMMANDS\n", plain(name), plain(&about)));
    help(&mut page, &command);
    page.push_str(".SH IN THE CHAT\n");
    for (title, commands) in &GROUPS {
        page.push_str(&format!(".SS \"{title}\"\n"));
        for c in *commands {
            entry(&mut page, &c.form(), &plain(c.help));
        }
    }
    page.push_str(".SH KEYS\n");
    for (_, action, keys, help) in ACTIONS {
        entry(&mut page, &keys.join(", "), &format!("{} ({})", plain(help), plain(action)));
    }
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
            assert!(page.contains(&format!(".SS \"sala\\-chat {}\"", plain(sub.get_name()))), "{}", sub.get_name());
        }
        for part in [
            "\\-\\-device <DEVICE>",
            "\\-p, \\-\\-prompt <TEXT>",
            "ctrl\\-r, ",
            "128+n signal",
            "\\-\\-resume [<NAME>]",
            "\\-\\-calibrate[=<DOCS>]",
            "Print the exact text, including control characters",
            "model:    Prefill and decode at several context lengths",
            "[possible values: bash, elvish, fish, powershell, zsh]",
        ] {
            assert!(page.contains(part.trim_end_matches(", ")), "{part}");
        }
        let known = [".TH", ".SH", ".SS", ".TP", ".nf", ".fi"];
        let lines = page.lines().filter(|l| l.starts_with(['.', '\'']));
        let odd: Vec<&str> = lines.filter(|l| !l.split(' ').next().is_some_and(|w| known.contains(&w))).collect();
        assert_eq!(odd, Vec::<&str>::new());
    }
}
