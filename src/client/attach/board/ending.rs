//! Who leaves the board, and who is told to when the server ends.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::{Table, User};
use crate::engine::protocol::{Cancel, Command, SequenceId};

/// A server that ends keeps a terminal so long after its last command: between what was read and the question about it nothing is
/// asked of the engine.
const NEXT: Duration = Duration::from_secs(3);
/// And nothing is begun any more so long after what ran when the server was told to end: each answer may be followed by a question.
const GRACE: Duration = Duration::from_secs(60);

/// That the server ends.
pub(super) struct Ending {
    /// Number of the last command before.
    pub(super) last: u64,
    /// Until when terminals may ask what comes next; `None` while something runs that ran before.
    pub(super) until: Option<Instant>,
}

impl Table {
    /// Whether nothing is begun any more. What is asked then is not answered: it ends with the connection, once what runs for that
    /// terminal has ended, and the terminal asks it elsewhere.
    pub(super) fn begins_nothing(&self) -> bool {
        let over = |ending: &Ending| self.hurried || ending.until.is_some_and(|until| until <= Instant::now());
        self.ending.as_ref().is_some_and(over)
    }

    pub(super) fn give_back(&mut self, sequences: impl IntoIterator<Item = SequenceId>) {
        for sequence in sequences {
            // What is asked of it from here on comes behind this.
            self.send(Command::Release { sequence });
            self.free.insert(sequence.0);
        }
    }

    pub(super) fn leave(&mut self, user: User) {
        self.open.values().filter(|o| o.user == user).filter_map(|o| o.cancel.as_ref()).for_each(Cancel::cancel);
        if let Some(seats) = self.users.remove(&user) {
            self.give_back(seats.sequences.into_values());
        }
    }

    /// While the server ends: whoever waits for nothing, and did not a moment ago, is told that it is over. When to look again.
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
        let (mut idle, mut next) = (Vec::new(), None::<Instant>);
        for (user, seats) in self.users.iter().filter(|(user, _)| !busy.contains(*user)) {
            let may_ask =
                seats.answered.map(|answered| until.map_or(answered + NEXT, |most| most.min(answered + NEXT)));
            match may_ask.filter(|until| waits && *until > Instant::now()) {
                Some(until) => next = Some(next.map_or(until, |next| next.min(until))),
                None => idle.push(*user),
            }
        }
        idle.into_iter().for_each(|user| self.leave(user));
        next
    }
}
