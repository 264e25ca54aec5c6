//! A panic restores the terminal, leaves a report and says how to go on. Worker threads of the chat report their panics
//! as events; for those only the report is written.

use std::path::PathBuf;
use std::thread::ThreadId;

use super::logging::keep_report;
use super::out;
use super::term::Guard;
use crate::core::caught::expected;
use crate::core::sanitize::Clean;

/// Installs the hook, which leaves its report in `state`. Of a chat on a screen, `owner` is the thread that has the
/// terminal.
pub fn install(guard: Guard, state: Option<PathBuf>, owner: Option<ThreadId>) {
    std::panic::set_hook(Box::new(move |info| {
        if expected() {
            return;
        }
        let owns_terminal = owner.is_none_or(|owner| std::thread::current().id() == owner);
        if owns_terminal {
            guard.leave();
        }
        let written = state.as_deref().and_then(|state| keep_report(state, info));
        if owns_terminal {
            let resume = if owner.is_some() { " What was saved is kept; continue it with: sala-chat -c." } else { "" };
            let report = written.map_or(String::new(), |p| format!(" Report: {}", p.display()));
            out::err_line(&Clean::line(&format!("sala-chat crashed.{resume}{report}")));
        }
    }));
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use portable_pty::{CommandBuilder, PtySize, native_pty_system};

    use super::super::term::Modes;
    use super::*;

    #[test]
    #[ignore = "a child of modes_are_reset_after_a_panic"]
    fn child_that_panics() {
        let guard = Guard::default();
        install(guard.clone(), None, Some(std::thread::current().id()));
        guard.enter(Modes { alternate_screen: true, mouse: true, kitty: true }).unwrap();
        panic!("{}", "text of the user");
    }

    #[test]
    #[ignore = "a child of a_panic_outside_a_chat_names_no_session"]
    fn child_without_a_session() {
        install(Guard::default(), None, None);
        panic!("a command fails");
    }

    #[test]
    fn a_panic_outside_a_chat_names_no_session() {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let child = "cli::panic::tests::child_without_a_session";
        let output = command.args(["--ignored", "--exact", child, "--nocapture"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("sala-chat crashed.\n"), "{text}");
    }

    #[test]
    fn modes_are_reset_after_a_panic() {
        let pty = native_pty_system().openpty(PtySize { rows: 24, cols: 80, ..PtySize::default() }).unwrap();
        let mut command = CommandBuilder::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "cli::panic::tests::child_that_panics", "--nocapture"]);
        let mut child = pty.slave.spawn_command(command).unwrap();
        drop(pty.slave);
        let mut bytes = Vec::new();
        // The reader ends with an error when the other side closes.
        let _ = pty.master.try_clone_reader().unwrap().read_to_end(&mut bytes);
        child.wait().unwrap();
        let (rows, columns) = (24.try_into().unwrap(), 80.try_into().unwrap());
        let mut screen = vt100::Parser::new(rows, columns, 0);
        screen.process(&bytes);
        let s = screen.screen();
        assert!(!s.alternate_screen() && !s.bracketed_paste() && !s.hide_cursor());
        assert_eq!(s.mouse_protocol_mode(), vt100::MouseProtocolMode::None);
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(text.matches("\x1b[?1049h").count(), 1, "{text}");
        assert_eq!(text.matches("\x1b[?1049l").count(), 1);
        assert_eq!(text.matches("\x1b[>1u").count(), text.matches("\x1b[<1u").count());
        assert!(text.contains("What was saved is kept; continue it with: sala-chat -c."), "{text}");
        assert!(!text.contains("text of the user"));
    }
}
