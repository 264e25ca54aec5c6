//! What a bug report needs: `--version`, and the first lines of `doctor`.

use crate::store::DATA_VERSION;

/// `sala-chat 0.2.0 (1a2b3c4d)`; the commit where the build set `SALA_CHAT_COMMIT`.
pub(super) fn program() -> String {
    let commit = option_env!("SALA_CHAT_COMMIT").map_or(String::new(), |commit| format!(" ({commit})"));
    format!("sala-chat {}{commit}", env!("CARGO_PKG_VERSION"))
}

pub(super) fn system() -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{} {} {}", std::env::consts::OS, kernel.trim(), std::env::consts::ARCH)
}

/// `backends CPU, CUDA; data format 2`.
pub(super) fn build() -> String {
    let backends = if cfg!(feature = "cuda") { "CPU, CUDA" } else { "CPU" };
    format!("backends {backends}; data format {DATA_VERSION}")
}

/// The text of `--version`; `doctor` names GPU and model too.
pub(super) fn version() -> String {
    format!("{}\nbuild: {}\nsystem: {}\n", program(), build(), system())
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
