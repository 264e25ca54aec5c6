//! Exit codes, each once: every fault names the code with which it ends a run. The same table is in docs/terminal.md
//! §2; a test compares them.

use serde::{Deserialize, Serialize};

/// Serialized as its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "i32", into = "i32")]
pub enum Exit {
    Ok,
    Failure,
    Usage,
    NoModel,
    NoDevice,
    TooLong,
    InUse,
    Unreadable,
    NoInput,
    Disk,
    Stopped,
    Signal(u8),
}

const SIGNAL: u8 = 128;

impl Exit {
    pub const ALL: [Exit; 11] = [
        Exit::Ok,
        Exit::Failure,
        Exit::Usage,
        Exit::NoModel,
        Exit::NoDevice,
        Exit::TooLong,
        Exit::InUse,
        Exit::Unreadable,
        Exit::NoInput,
        Exit::Disk,
        Exit::Stopped,
    ];
    /// The terminal is gone.
    pub const HANGUP: Exit = Exit::Signal(1);

    pub fn by_signal(signal: i32) -> Exit {
        Exit::from(i32::from(SIGNAL).saturating_add(signal))
    }

    /// Number, word for scripts, meaning.
    fn row(self) -> (u8, &'static str, &'static str) {
        const BY_SIGNAL: &str = "ended by signal n: 129 hang-up, 130 interrupt, 143 terminate";
        match self {
            Exit::Ok => (0, "ok", "done"),
            Exit::Failure => (1, "failure", "failure"),
            Exit::Usage => (2, "usage", "usage: the command line or a setting is wrong"),
            Exit::NoModel => {
                (3, "no_model", "model not installed, or its folder is damaged, incomplete or not supported")
            }
            Exit::NoDevice => (4, "no_device", "no usable GPU, or not enough memory"),
            Exit::TooLong => (5, "too_long", "context too long"),
            Exit::InUse => (6, "in_use", "session or packing folder in use by another process"),
            Exit::Unreadable => (7, "unreadable", "state or session unreadable, or an answer that could not be saved"),
            Exit::NoInput => (66, "no_input", "an input file is missing"),
            Exit::Disk => (74, "disk", "the disk failed or is full"),
            Exit::Stopped => (130, "stopped", BY_SIGNAL),
            Exit::Signal(n) => (SIGNAL.saturating_add(n), "signal", BY_SIGNAL),
        }
    }

    pub fn code(self) -> u8 {
        self.row().0
    }

    pub fn word(self) -> &'static str {
        self.row().1
    }

    pub fn meaning(self) -> &'static str {
        self.row().2
    }
}

/// The exit code of another process; an unknown one is a failure.
impl From<i32> for Exit {
    fn from(code: i32) -> Exit {
        let known = Exit::ALL.into_iter().find(|e| i32::from(e.code()) == code);
        let signal = || u8::try_from(code).ok()?.checked_sub(SIGNAL).filter(|n| *n > 0).map(Exit::Signal);
        known.or_else(signal).unwrap_or(Exit::Failure)
    }
}

impl From<Exit> for i32 {
    fn from(exit: Exit) -> i32 {
        i32::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_survive_a_wire_and_unknown_ones_are_failures() {
        for exit in Exit::ALL.into_iter().chain([Exit::HANGUP, Exit::Signal(15)]) {
            let json = serde_json::to_string(&exit).unwrap();
            assert_eq!(json, exit.code().to_string());
            assert_eq!(serde_json::from_str::<Exit>(&json).unwrap(), exit);
        }
        assert_eq!([1, 2, 15].map(Exit::by_signal), [Exit::HANGUP, Exit::Stopped, Exit::Signal(15)]);
        assert_eq!([Exit::HANGUP, Exit::Stopped, Exit::Signal(15)].map(Exit::code), [129, 130, 143]);
        for unknown in ["99", "-1", "128", "256", "2147483647"] {
            assert_eq!(serde_json::from_str::<Exit>(unknown).unwrap(), Exit::Failure, "{unknown}");
        }
    }

    #[test]
    fn the_documentation_has_the_table_of_exit_codes() {
        let documented = include_str!("../../../docs/terminal.md");
        let table = documented.split_once("\n| code | meaning |\n|---|---|\n").unwrap().1;
        let rows: Vec<&str> = table.lines().take_while(|line| line.starts_with('|')).collect();
        let row = |exit: Exit| match exit.code() {
            code if code < SIGNAL => format!("| {code} | {} |", exit.meaning()),
            _ => format!("| {SIGNAL} + n | {} |", exit.meaning()),
        };
        assert_eq!(rows, Exit::ALL.map(row));
    }
}
