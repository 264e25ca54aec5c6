//! Requests of the interface: the inbox, and the verb of each request, as its row in
//! [`crate::config::commands::request`] names it.
//!
//! Only the loop in [`super::run`] takes requests. Long text work may check for a stop; what it receives meanwhile
//! stays in the inbox, in order, for the loop.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, TryRecvError};

use super::verb::Answer;
use super::{Attendance, Done, Request, State, Verb};
use crate::config::commands::requests;
use crate::store::Change;

#[derive(Debug)]
pub(super) struct Inbox {
    pub(super) channel: Receiver<Request>,
    attendance: Attendance,
    /// Received during a check for a stop.
    waiting: Mutex<VecDeque<Request>>,
}

impl Inbox {
    pub(super) fn new(channel: Receiver<Request>, attendance: Attendance) -> Inbox {
        Inbox { channel, attendance, waiting: Mutex::default() }
    }

    pub(super) fn take_waiting(&self) -> Option<Request> {
        self.waiting().pop_front()
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting().is_empty()
    }

    /// Whether a stop arrived or the interface is gone. A stop applies to the conversation on screen.
    pub(super) fn wants_stop(&self, on_screen: bool) -> bool {
        let mut waiting = self.waiting();
        loop {
            match self.channel.try_recv() {
                Ok(request) => waiting.push_back(request),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return true,
            }
        }
        waiting.iter().any(|request| match request {
            Request::Stop => on_screen,
            // A one-shot run ends after all requests before it.
            Request::Quit => self.attendance == Attendance::Present,
            _ => false,
        })
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Request>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

macro_rules! dispatch {
    ($(
        $(#[$doc:meta])*
        $variant:ident
            $( ( $($place:ident: $place_type:ty),+ ) )?
            $( { $( $(#[$field_doc:meta])* $field:ident: $field_type:ty ),+ $(,)? } )?
            , $busy:expr => $verb:ident $(. $wait:tt)?;
    )+) => {
        impl Verb {
            pub(super) async fn carry_out(&mut self, request: Request) -> Done {
                match request {
                    $(
                        Request::$variant $( ( $($place),+ ) )? $( { $($field),+ } )? =>
                            self.$verb($( $($place),+ )? $( $($field),+ )?) $(. $wait)?,
                    )+
                }
            }
        }
    };
}

requests!(dispatch);

impl State {
    fn end(&mut self) -> Done {
        self.quitting = true;
        Ok(())
    }

    pub fn choose(&mut self, question: u64, key: char) -> Done {
        self.answered(question, Answer::Key(key))
    }

    pub fn choose_files(&mut self, question: u64, files: Vec<usize>) -> Done {
        self.answered(question, Answer::Files(files))
    }

    pub fn remember(&mut self, prompt: String) -> Done {
        self.disk.remember(Change::Prompt(prompt));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_for_a_stop_takes_nothing_away() {
        let (send, channel) = crossbeam_channel::unbounded();
        let inbox = Inbox::new(channel, Attendance::Present);
        send.send(Request::Docs).unwrap();
        assert!(!inbox.wants_stop(true) && inbox.has_waiting());
        send.send(Request::Stop).unwrap();
        assert!(inbox.wants_stop(true) && inbox.wants_stop(true) && !inbox.wants_stop(false));
        assert!(matches!(inbox.take_waiting(), Some(Request::Docs)));
        assert!(matches!(inbox.take_waiting(), Some(Request::Stop)));
        assert!(!inbox.has_waiting() && !inbox.wants_stop(true));
        send.send(Request::Quit).unwrap();
        assert!(inbox.wants_stop(false));
        drop(send);
        assert!(inbox.wants_stop(false));
    }

    #[test]
    fn without_a_user_the_end_is_no_stop_and_a_closed_channel_is() {
        let (send, channel) = crossbeam_channel::unbounded();
        let inbox = Inbox::new(channel, Attendance::Absent);
        send.send(Request::Quit).unwrap();
        assert!(!inbox.wants_stop(true));
        drop(send);
        assert!(inbox.wants_stop(true));
    }
}
