//! Scripts that complete the command line in a shell.

use clap::CommandFactory;
use clap_complete::Shell;

use super::Cli;

const NAME: &str = "sala-chat";
/// First argument of the call for names of sessions and the like; the words of the line follow, the unfinished one last.
pub const NAMES: &str = "__names";

const BASH: &str = r#"_sala_chat_names() {
    local IFS=$'\n'
    COMPREPLY=($("$1" __names "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | while IFS= read -r name; do printf '%q\n' "$name"; done))
    [[ ${#COMPREPLY[@]} -gt 0 ]]
}

"#;
const ZSH: &str = r#"    local -a names
    names=("${(@f)$(${(Q)words[1]} __names "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "$names" ]]; then compadd -a names; return; fi
"#;
const FISH: &str = r"
function __sala_chat_names
    set -l words (commandline -opc) (commandline -ct)
    $words[1] __names $words[2..] 2>/dev/null
end
complete -c sala-chat -a '(__sala_chat_names)'
complete -c sala-chat -s r -l resume -x -a '(__sala_chat_names)'
complete -c sala-chat -l preset -x -a '(__sala_chat_names)'
complete -c sala-chat -l library -x -a '(__sala_chat_names)'
";

/// The script for a shell.
pub fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), NAME, &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        // The generator escapes the `-` of a name in two different ways.
        Shell::Bash => {
            let script = script.replace(&NAME.replace('-', "__subcmd__"), &NAME.replace('-', "__"));
            let first = "    if _sala_chat_names \"$1\"; then return 0; fi\n";
            BASH.to_owned() + &script.replacen("    COMPREPLY=()\n", &format!("    COMPREPLY=()\n{first}"), 1)
        }
        Shell::Zsh => script.replacen("_sala-chat() {\n", &format!("_sala-chat() {{\n{ZSH}"), 1),
        Shell::Fish => script + FISH,
        _ => script,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_asks_for_names() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            assert!(completions(shell).contains(&format!(" {NAMES} ")), "{shell}");
        }
        assert!(completions(Shell::Bash).contains("COMPREPLY=()\n    if _sala_chat_names"));
        assert!(completions(Shell::Zsh).contains("_sala-chat() {\n    local -a names\n"));
    }

    #[test]
    fn bash_completes_every_command() {
        let script = completions(Shell::Bash);
        let commands: Vec<&str> =
            script.lines().filter_map(|line| line.trim().strip_prefix("cmd=\"")?.strip_suffix('"')).collect();
        assert!(commands.len() > 20, "{commands:?}");
        for command in commands.into_iter().filter(|command| !command.is_empty()) {
            assert!(script.lines().any(|line| line.trim() == format!("{command})")), "{command}");
        }
    }
}
