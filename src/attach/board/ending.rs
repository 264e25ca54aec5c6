//! Who leaves the board, and who is told to when the server ends.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::{Table, User};
use crate::protocol::engine::{Cancel, Command, SequenceId};

/// A server that ends keeps a terminal so long after its last command: between what was read and the question about it nothing is
/// asked of the engine.
const NEXT: Duration = Duration::from_secs(3);

impl Table {
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
        let waits = !self.hurried && self.commands.is_some();
        let (mut idle, mut next) = (Vec::new(), None::<Instant>);
        for (user, seats) in self.users.iter().filter(|(user, _)| !busy.contains(*user)) {
            match seats.answered.map(|answered| answered + NEXT).filter(|until| waits && *until > Instant::now()) {
                Some(until) => next = Some(next.map_or(until, |next| next.min(until))),
                None => idle.push(*user),
            }
        }
        idle.into_iter().for_each(|user| self.leave(user));
        next
    }
}
