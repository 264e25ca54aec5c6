//! The program as a process of its own: with a home directory that is the test's, and nothing of this machine's settings.

use std::path::Path;
use std::process::{Command, Stdio};

/// The program that is tested.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_sala-chat");

/// The program with these arguments. Its data and configuration live under `home`, and nothing is typed.
pub fn command(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .args(arguments)
        .current_dir(home)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", home)
        .env("SALA_CHAT_DATA_DIR", home.join("data"))
        .stdin(Stdio::null());
    command
}
