//! Linear functions that share one state with the loop that polls them.
//!
//! Such a function is an `async fn` with a `Held` state. While it runs it owns the state; at each wait it returns the
//! state to the loop, which polls it again when the wait is over. All of it runs on one thread, so nothing interrupts
//! a function between two waits.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Passes a state between the loop and its functions; exactly one of them holds it.
pub(crate) type Baton<S> = Rc<Cell<Option<Box<S>>>>;

pub(crate) struct Running<T>(Pin<Box<dyn Future<Output = T>>>);

impl<T> Running<T> {
    pub(crate) fn new(body: impl Future<Output = T> + 'static) -> Running<T> {
        Running(Box::pin(body))
    }

    /// Runs it up to its next wait or its end.
    pub(crate) fn poll<S>(&mut self, baton: &Baton<S>, state: Box<S>) -> (Box<S>, Poll<T>) {
        baton.set(Some(state));
        let polled = self.0.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let Some(state) = baton.take() else { unreachable!("a function keeps the state while it waits") };
        (state, polled)
    }
}

pub(crate) struct Held<S, L> {
    /// `None` during a wait.
    state: Option<Box<S>>,
    pub(crate) baton: Baton<S>,
    pub(crate) own: L,
}

impl<S, L> Held<S, L> {
    /// For a function that begins, at its first poll.
    pub(crate) fn new(baton: Baton<S>, own: L) -> Held<S, L> {
        Held { state: baton.take(), baton, own }
    }

    pub(crate) fn split(&mut self) -> (&mut S, &mut L) {
        match &mut self.state {
            Some(state) => (state, &mut self.own),
            None => unreachable!("a function runs while it waits"),
        }
    }

    /// Runs another function of the same state up to its next wait or its end.
    pub(crate) fn poll<T>(&mut self, running: &mut Running<T>) -> Poll<T> {
        let Some(state) = self.state.take() else { unreachable!("a function runs while it waits") };
        let (state, polled) = running.poll(&self.baton, state);
        self.state = Some(state);
        polled
    }

    /// Returns the state to the loop at the first poll, and takes it back at the next.
    pub(crate) async fn hand_back(&mut self) {
        std::future::poll_fn(|_| match self.state.take() {
            Some(state) => {
                self.baton.set(Some(state));
                Poll::Pending
            }
            None => {
                self.state = self.baton.take();
                Poll::Ready(())
            }
        })
        .await;
    }
}

impl<S, L> Deref for Held<S, L> {
    type Target = S;

    fn deref(&self) -> &S {
        match &self.state {
            Some(state) => state,
            None => unreachable!("a function runs while it waits"),
        }
    }
}

impl<S, L> DerefMut for Held<S, L> {
    fn deref_mut(&mut self) -> &mut S {
        self.split().0
    }
}

impl<S, L> Drop for Held<S, L> {
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            self.baton.set(Some(state));
        }
    }
}
