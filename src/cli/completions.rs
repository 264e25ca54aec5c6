//! Completion of the command line: scripts for shells, and the names that those scripts ask this program for.

use std::path::PathBuf;
use std::sync::Arc;

use clap_complete::Shell;

use super::args;
use super::dirs::Dirs;
use super::open::LISTED;
use crate::config::settings::preset::BUILT_IN;
use crate::config::settings::table::ROWS;
use crate::core::sanitize::sanitize_line;
use crate::runtime::presets;
use crate::store::{Limits, RealDisk, SessionFilter, Store};

const NAME: &str = "sala-chat";
/// First argument when a script asks for names; the words of the line follow, the unfinished one last.
pub(super) const NAMES: &str = "__names";

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

pub(super) fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut args::definition(), NAME, &mut script);
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

pub(super) fn names(words: &[String]) -> Vec<u8> {
    let Some((begun, before)) = words.split_last() else { return Vec::new() };
    // A name that a terminal would obey cannot be typed.
    let fits = |name: &String| name.starts_with(begun) && sanitize_line(name) == *name;
    let names = known(before).unwrap_or_default().into_iter().filter(fits);
    names.flat_map(|name| (name + "\n").into_bytes()).collect()
}

fn known(before: &[String]) -> Option<Vec<String>> {
    let line = std::iter::once("sala-chat").chain(before.iter().map(String::as_str));
    let matches = args::command().ignore_errors(true).try_get_matches_from(line).ok()?;
    let (mut at, mut commands) = (&matches, Vec::new());
    while let Some((name, below)) = at.subcommand() {
        commands.push(name);
        at = below;
    }
    let given = |id| at.try_contains_id(id).is_ok_and(|there| there);
    let path = |id| matches.get_one::<PathBuf>(id).map(PathBuf::as_path);
    let dirs = Dirs::new(path("data_dir"), path("config")).ok()?;
    let store = || Store::open_to_read(&dirs.data, Arc::new(RealDisk), Limits::default()).ok();
    let sessions = || Some(store()?.sessions(SessionFilter::Live, LISTED).ok()?.into_iter().map(|r| r.name).collect());
    let documents = || Some(store()?.document_names().ok()?.into_iter().map(|(name, _)| name).collect());
    match (before.last().map(String::as_str), commands.as_slice()) {
        (Some("-r" | "--resume"), []) | (_, ["rm"]) => sessions(),
        (_, ["show" | "export"]) if !given("name") => sessions(),
        (Some("--library"), _) | (_, ["library", "rm"]) => documents(),
        (Some("--preset"), _) => {
            let built_in = BUILT_IN.iter().map(|preset| preset.name.to_owned());
            Some(built_in.chain(presets::names(&dirs.presets())).collect())
        }
        (_, ["config", "set"]) if !given("key") => Some(ROWS.iter().map(|row| row.name.to_owned()).collect()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_asks_for_names() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            assert!(script(shell).contains(&format!(" {NAMES} ")), "{shell}");
        }
        assert!(script(Shell::Bash).contains("COMPREPLY=()\n    if _sala_chat_names"));
        assert!(script(Shell::Zsh).contains("_sala-chat() {\n    local -a names\n"));
    }

    #[test]
    fn bash_completes_every_command() {
        let script = script(Shell::Bash);
        let commands: Vec<&str> =
            script.lines().filter_map(|line| line.trim().strip_prefix("cmd=\"")?.strip_suffix('"')).collect();
        assert!(commands.len() > 20, "{commands:?}");
        for command in commands.into_iter().filter(|command| !command.is_empty()) {
            assert!(script.lines().any(|line| line.trim() == format!("{command})")), "{command}");
        }
    }
}
