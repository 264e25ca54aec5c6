//! Requests of the interface.
//!
//! Only the loop in [`super::run`] takes them. Long text work may check for a stop request; the requests that it
//! receives meanwhile stay here, in order, for the loop.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, TryRecvError, never};

use super::{Attendance, Request};

#[derive(Debug)]
pub(super) struct Inbox {
    channel: Receiver<Request>,
    attendance: Attendance,
    /// Received during a check for a stop.
    waiting: Mutex<VecDeque<Request>>,
}

impl Inbox {
    pub(super) fn new(channel: Receiver<Request>, attendance: Attendance) -> Inbox {
        Inbox { channel, attendance, waiting: Mutex::default() }
    }

    pub(super) fn channel(&self) -> &Receiver<Request> {
        &self.channel
    }

    pub(super) fn close(&mut self) {
        self.channel = never();
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
