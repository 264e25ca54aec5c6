//! Open connections and the progress of their requests: which may be evicted, and which must finish at shutdown or
//! after an early response.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use hyper::body::{Body as _, Frame, SizeHint};
use tokio::sync::Notify;

use super::owner::Owner;

#[derive(Default)]
pub(super) struct Guest {
    pub owner: Owner,
    /// It has sent a request.
    pub has_request: AtomicBool,
    /// Signals its eviction.
    pub leave: Notify,
    /// A request has arrived, as far as the server reads it, and its response is incomplete.
    pub answered: AtomicBool,
    /// A response began before the end of its request.
    pub cut_short: AtomicBool,
}

impl Guest {
    pub(super) fn asking(guest: &Arc<Guest>, body: Body) -> Body {
        let guest = Arc::clone(guest);
        Followed::body(body, move |whole| {
            guest.answered.store(true, Ordering::Relaxed);
            guest.cut_short.fetch_or(!whole, Ordering::Relaxed);
        })
    }

    pub(super) fn answering(guest: &Arc<Guest>, body: Body) -> Body {
        let guest = Arc::clone(guest);
        Followed::body(body, move |_| guest.answered.store(false, Ordering::Relaxed))
    }
}

/// A body that reports when its reader is done, and whether it was read to its end.
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

/// Open connections, oldest first.
#[derive(Default)]
pub(super) struct Guests(VecDeque<Weak<Guest>>);

impl Guests {
    pub(super) fn enter(&mut self, owner: Owner) -> Arc<Guest> {
        let guest = Arc::new(Guest { owner, ..Guest::default() });
        self.0.push_back(Arc::downgrade(&guest));
        guest
    }

    /// Whether there is room for another connection. If `most` are open, evicts the oldest one that has sent no
    /// request.
    pub(super) fn have_room(&mut self, most: usize) -> bool {
        self.0.retain(|g| g.strong_count() > 0);
        if self.0.len() < most {
            return true;
        }
        let silent = |g: &Weak<Guest>| g.upgrade().filter(|g| !g.has_request.load(Ordering::Relaxed));
        let Some((at, guest)) = self.0.iter().enumerate().find_map(|(at, g)| Some((at, silent(g)?))) else {
            return false;
        };
        self.0.remove(at);
        guest.leave.notify_one();
        true
    }
}
