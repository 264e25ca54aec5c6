//! The nearest command to words that are none.

use clap::CommandFactory;

use super::Cli;
use crate::text::near::nearest;

/// `model quantize` for `quantize`, and for `modle quantise`.
pub fn suggested_command(words: &[String]) -> Option<String> {
    let root = Cli::command();
    let (first, rest) = words.split_first()?;
    let below = root.get_subcommands().flat_map(|of| of.get_subcommands().map(move |command| (Some(of), command)));
    // Of two that are as near, the one that is written without another.
    let all: Vec<_> = root.get_subcommands().map(|command| (None, command)).chain(below).collect();
    let name = nearest(first, all.iter().map(|(_, command)| command.get_name()))?;
    let (of, command) = all.iter().find(|(_, command)| command.get_name() == name)?;
    let mut meant: Vec<&str> = of.iter().map(|of| of.get_name()).chain([name]).collect();
    meant.extend(rest.first().and_then(|word| nearest(word, command.get_subcommands().map(|c| c.get_name()))));
    Some(meant.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_near_a_command_name_it_wherever_it_is() {
        let meant = |line: &str| suggested_command(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        for (line, command) in [
            ("serach", "search"),
            ("quantize", "model quantize"),
            ("quantise model", "model quantize"),
            ("modle quantize model", "model quantize"),
            ("modle notes.txt", "model"),
            ("show", "show"),
            ("check", "config check"),
        ] {
            assert_eq!(meant(line).as_deref(), Some(command), "{line}");
        }
        assert_eq!([meant("notes.txt"), meant("books/war.txt")], [None, None]);
    }
}
