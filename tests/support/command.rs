//! The program as a process of its own: with a home directory that is the test's, and nothing of this machine's settings.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The program that is tested.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_sala-chat");

/// What these signals do where the program starts: `SIG_DFL` or `SIG_IGN`.
pub fn started_with(command: &mut Command, signals: &'static [i32], handler: libc::sighandler_t) {
    let set = move || {
        for signal in signals {
            // SAFETY: no function of this program is made a handler.
            if unsafe { libc::signal(*signal, handler) } == libc::SIG_ERR {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec it calls nothing but `signal`, which may be called there.
    unsafe { command.pre_exec(set) };
}

/// The program with these arguments. Its data and configuration live under `home`, and nothing is typed. Signals that end it do so,
/// also where the tests themselves were started by `nohup` or in the background of a script.
pub fn command(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .args(arguments)
        .current_dir(home)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", home)
        .env("SALA_CHAT_DATA_DIR", home.join("data"))
        // On the CPU on every machine.
        .env("CUDA_VISIBLE_DEVICES", "-1")
        .stdin(Stdio::null());
    started_with(&mut command, &[libc::SIGHUP, libc::SIGINT], libc::SIG_DFL);
    command
}
