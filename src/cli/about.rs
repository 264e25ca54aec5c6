//! What a bug report needs: `--version`, and the first lines of `doctor`.

use std::fs;

use super::hub;
use crate::config::settings::ModelConfig;
use crate::core::files;
use crate::model::format::Format;
use crate::store::DATA_VERSION;

/// `sala-chat 0.2.0 (1a2b3c4d)`; the commit where the build set `SALA_CHAT_COMMIT`.
pub(super) fn program() -> String {
    let commit = option_env!("SALA_CHAT_COMMIT").map_or(String::new(), |commit| format!(" ({commit})"));
    format!("sala-chat {}{commit}", env!("CARGO_PKG_VERSION"))
}

pub(super) fn system() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{} {} {}", std::env::consts::OS, kernel.trim(), std::env::consts::ARCH)
}

/// `backends CPU, CUDA; data format 2`.
pub(super) fn build() -> String {
    let backends = if cfg!(feature = "cuda") { "CPU, CUDA" } else { "CPU" };
    format!("backends {backends}; data format {DATA_VERSION}")
}

/// The text of `--version`. Opens no GPU: the driver's files name it.
pub(super) fn version() -> String {
    format!("{}\nbuild: {}\nsystem: {}\ngpu: {}\nmodel: {}\n", program(), build(), system(), gpu(), model())
}

fn gpu() -> String {
    let folders = fs::read_dir("/proc/driver/nvidia/gpus").into_iter().flatten().flatten();
    let model = |text: String| text.lines().find_map(|l| Some(l.strip_prefix("Model:")?.trim().to_owned()));
    let names: Vec<String> =
        folders.filter_map(|f| model(fs::read_to_string(f.path().join("information")).ok()?)).collect();
    let driver = fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let number = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
    let driver = driver.split_whitespace().find(number).unwrap_or("unknown");
    if names.is_empty() { "none".to_owned() } else { format!("{}, driver {driver}", names.join(", ")) }
}

fn model() -> String {
    let config = ModelConfig::default();
    let Some(folder) = hub::installed(&config) else {
        return format!("built-in ({} is not installed)", config.repo);
    };
    let text = files::read_text(&folder.join("config.json"), files::MODEL_CONFIG_BYTES).unwrap_or_default();
    let form = serde_json::from_str(&text).ok().and_then(|config| Format::declared(&config, None));
    format!("{}, {}", config.repo, form.map_or_else(|| "bf16".to_owned(), |form| form.described()))
}

/// `~` for the home folder in every path: a report is read by others.
pub(super) fn without_home(text: &str) -> String {
    let home = std::env::home_dir().filter(|home| home.components().count() > 1);
    home.map_or_else(|| text.to_owned(), |home| shortened(text, &home.to_string_lossy()))
}

/// Replaces only whole paths and beginnings of paths.
fn shortened(text: &str, home: &str) -> String {
    let in_name = |c: char| c.is_alphanumeric() || "/~_-".contains(c);
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once(home) {
        out += before;
        let ends = after.starts_with('/') || !after.starts_with(in_name);
        out += if ends && !out.ends_with(in_name) { "~" } else { home };
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_home_folder_is_left_out_of_paths_and_of_nothing_else() {
        for (text, short) in [
            ("5 GB free at /home/ann.", "5 GB free at ~."),
            ("/home/ann/.local/x and (/home/ann)", "~/.local/x and (~)"),
            ("/home/anna, /home/ann-2, /srv/home/ann/x", "/home/anna, /home/ann-2, /srv/home/ann/x"),
            ("/home/ann/home/ann/x", "~/home/ann/x"),
        ] {
            assert_eq!(shortened(text, "/home/ann"), short);
        }
    }
}
