//! Lines of system texts that change with every request, and so prevent the reuse of any prefix.
//!
//! Covers known lines only: the billing line of Claude Code is useless to a model and is left out; lines with the time
//! of day move after the last turn, so that the model still reads them. docs/serve.md lists them.

use super::turns::Turn;
use crate::text::ChatRole;

const BILLING: &str = "x-anthropic-billing-header:";
/// How lines with the time begin, in lower case, after a bullet or a bracket.
const CLOCKS: [&str; 11] = [
    "today's date",
    "today is",
    "current date",
    "the current date",
    "current time",
    "the current time",
    "current timestamp",
    "current_date",
    "current_time",
    "timestamp:",
    "now:",
];

pub(super) fn without_billing(text: &str) -> String {
    let is_billing = |line: &&str| line.get(..BILLING.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(BILLING));
    text.split_inclusive('\n').filter(|line| !is_billing(line)).collect()
}

/// Removes both kinds of lines from the system text, and puts those with the time after the last turn that is no
/// answer.
pub(super) fn settle(turns: &mut [Turn]) {
    let mut clocks = String::new();
    for turn in turns.iter_mut().filter(|turn| turn.role == ChatRole::System) {
        let text = without_billing(&turn.text);
        let (kept, moved): (Vec<&str>, Vec<&str>) = text.split_inclusive('\n').partition(|line| !is_clock(line));
        turn.text = kept.concat();
        clocks.extend(moved);
    }
    let last = turns.iter_mut().rfind(|turn| turn.role != ChatRole::Assistant);
    if let Some(last) = last.filter(|_| !clocks.is_empty()) {
        last.text = format!("{}\n\n{}", last.text, clocks.trim_end());
    }
}

/// Whether a line contains the time of day; a date alone changes once a day and stays.
fn is_clock(line: &str) -> bool {
    let line = line.trim_start_matches(|c: char| c.is_whitespace() || "-*<#".contains(c)).to_lowercase();
    let bytes = line.as_bytes();
    let time = |w: &[u8]| w[0].is_ascii_digit() && w[1] == b':' && w[2].is_ascii_digit() && w[3].is_ascii_digit();
    CLOCKS.iter().any(|clock| line.starts_with(clock)) && bytes.windows(4).any(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn billing_lines_go_times_move_and_dates_stay() {
        let system = "x-anthropic-billing-header: cc_version=2.1; cch=0a1b2;\nYou help.\nToday's date: 2026-11-28\n\
                      - Current time: 2026-11-28T09:15:00Z\nMeet at 12:30.\nToday is Saturday.";
        let mut turns = [
            Turn::new(ChatRole::System, system),
            Turn::new(ChatRole::User, "Hi"),
            Turn::new(ChatRole::Assistant, "So"),
        ];
        settle(&mut turns);
        assert_eq!(turns[0].text, "You help.\nToday's date: 2026-11-28\nMeet at 12:30.\nToday is Saturday.");
        assert_eq!(turns[1].text, "Hi\n\n- Current time: 2026-11-28T09:15:00Z");
        assert_eq!(turns[2].text, "So");
        for clock in ["Today's date: Sat Nov 28 2026 09:15:00 GMT", "<current_date>2026-11-28 9:15</current_date>"] {
            assert!(is_clock(clock), "{clock}");
        }
        for other in ["", "Now: soon", "12:30", "The current date format is DD/MM"] {
            assert!(!is_clock(other), "{other}");
        }
    }
}
