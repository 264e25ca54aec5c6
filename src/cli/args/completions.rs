//! Scripts that complete the command line in a shell.

use clap::CommandFactory;
use clap_complete::Shell;

use super::Cli;

const NAME: &str = "sala-chat";

/// The script for a shell.
pub fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), NAME, &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        // The generator escapes the `-` of a name in two different ways.
        Shell::Bash => script.replace(&NAME.replace('-', "__subcmd__"), &NAME.replace('-', "__")),
        _ => script,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bash_is_told_what_follows_every_command() {
        let script = completions(Shell::Bash);
        let commands: Vec<&str> =
            script.lines().filter_map(|line| line.trim().strip_prefix("cmd=\"")?.strip_suffix('"')).collect();
        assert!(commands.len() > 20, "{commands:?}");
        for command in commands.into_iter().filter(|command| !command.is_empty()) {
            assert!(script.lines().any(|line| line.trim() == format!("{command})")), "{command}");
        }
    }
}
