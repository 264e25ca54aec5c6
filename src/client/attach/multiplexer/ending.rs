//! Users that leave the multiplexer, and terminals that it dismisses when the server ends.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::{Slots, Table, User};
use crate::engine::protocol::{Cancel, Command, SequenceId};

/// An ending server keeps a terminal for this long after its last command: between reading a document and the question
/// about it the engine has nothing to do.
const NEXT: Duration = Duration::from_secs(3);
/// Longest time for follow-up commands once the jobs that ran at the stop request are over.
const GRACE: Duration = Duration::from_secs(60);

pub(super) struct Ending {
    pub(super) last: u64,
    /// Deadline for follow-up commands; `None` while a job from before the stop request runs.
    pub(super) until: Option<Instant>,
}

impl Table {
    /// Whether new commands are dropped. They stay unanswered until the terminal's running jobs and its connection
    /// end; then the terminal sends them elsewhere.
    pub(super) fn begins_nothing(&self) -> bool {
        let over = |ending: &Ending| self.hurried || ending.until.is_some_and(|until| until <= Instant::now());
        self.ending.as_ref().is_some_and(over)
    }

    pub(super) fn give_back(&mut self, sequences: impl IntoIterator<Item = SequenceId>) {
        for sequence in sequences {
            // Later commands to the sequence follow this one.
            self.send(Command::Release { sequence });
            self.free.insert(sequence.0);
        }
    }

    pub(super) fn leave(&mut self, user: User) {
        self.open.values().filter(|o| o.user == user).filter_map(|o| o.cancel.as_ref()).for_each(Cancel::cancel);
        if let Some(slots) = self.users.remove(&user) {
            self.give_back(slots.sequences.into_values());
        }
    }

    /// While the server ends: dismisses users without open or recent commands. Returns when to look again.
    pub(super) fn dismiss_idle(&mut self) -> Option<Instant> {
        let busy: BTreeSet<User> = self.open.values().map(|o| o.user).collect();
        if let Some(ending) = &mut self.ending
            && ending.until.is_none()
            && self.open.keys().all(|number| *number > ending.last)
        {
            ending.until = Some(Instant::now() + GRACE);
        }
        let until = self.ending.as_ref().and_then(|ending| ending.until);
        let waits = self.commands.is_some() && !self.begins_nothing();
        let may_ask = |slots: &Slots| {
            let next = slots.answered? + NEXT;
            Some(until.map_or(next, |until| until.min(next))).filter(|until| waits && *until > Instant::now())
        };
        let users = self.users.iter().filter(|(user, _)| !busy.contains(*user));
        let users: Vec<_> = users.map(|(user, slots)| (*user, may_ask(slots))).collect();
        users.iter().filter(|(_, until)| until.is_none()).for_each(|(user, _)| self.leave(*user));
        users.into_iter().filter_map(|(_, until)| until).min()
    }
}
