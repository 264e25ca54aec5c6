//! Who is connected, and how far their requests are: who may be told to go, who is waited for at the end, and who has to be heard out.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use hyper::body::{Body as _, Frame, SizeHint};
use tokio::sync::Notify;

use super::owner::Owner;

/// A connection, as others see it.
#[derive(Default)]
pub(super) struct Guest {
    pub owner: Owner,
    /// It has sent a request.
    pub asked: AtomicBool,
    /// Told to go.
    pub leave: Notify,
    /// A request is there, as much of it as is wanted, and its response has not been written to its end.
    pub answered: AtomicBool,
    /// A request was answered although it has not come to its end.
    pub cut_short: AtomicBool,
}

impl Guest {
    /// Follows the body of a request.
    pub(super) fn asking(guest: &Arc<Guest>, body: Body) -> Body {
        let guest = Arc::clone(guest);
        Followed::body(body, move |whole| {
            guest.answered.store(true, Ordering::Relaxed);
            guest.cut_short.fetch_or(!whole, Ordering::Relaxed);
        })
    }

    /// Follows the body of its response.
    pub(super) fn answering(guest: &Arc<Guest>, body: Body) -> Body {
        let guest = Arc::clone(guest);
        Followed::body(body, move |_| guest.answered.store(false, Ordering::Relaxed))
    }
}

/// A body that says when nobody wants more of it, and whether that was all of it.
struct Followed<F: FnMut(bool)> {
    body: Body,
    ended: bool,
    gone: F,
}

impl<F: FnMut(bool) + Send + Unpin + 'static> Followed<F> {
    fn body(body: Body, gone: F) -> Body {
        Body::new(Followed { body, ended: false, gone })
    }
}

impl<F: FnMut(bool) + Unpin> hyper::body::Body for Followed<F> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        self.ended |= matches!(polled, Poll::Ready(None));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<F: FnMut(bool)> Drop for Followed<F> {
    fn drop(&mut self) {
        (self.gone)(self.ended || self.body.is_end_stream());
    }
}

/// Who is there, in the order they came.
#[derive(Default)]
pub(super) struct Guests(VecDeque<Weak<Guest>>);

impl Guests {
    pub(super) fn come(&mut self, owner: Owner) -> Arc<Guest> {
        let guest = Arc::new(Guest { owner, ..Guest::default() });
        self.0.retain(|g| g.strong_count() > 0);
        self.0.push_back(Arc::downgrade(&guest));
        guest
    }

    /// Tells the oldest that never asked anything to go; whether there was one.
    pub(super) fn make_place(&mut self) -> bool {
        let silent = |g: &Weak<Guest>| g.upgrade().filter(|g| !g.asked.load(Ordering::Relaxed));
        let Some((at, guest)) = self.0.iter().enumerate().find_map(|(at, g)| Some((at, silent(g)?))) else {
            return false;
        };
        self.0.remove(at);
        guest.leave.notify_one();
        true
    }
}
