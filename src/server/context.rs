//! The context of one request, for code at any depth: the names of left-out fields, the owner of the connection, and
//! what its documents may take.
//!
//! It lives in a task-local, so that readers of nested fields need no parameter for it; [`blocking`] carries it to
//! other threads.

use super::{Owner, Refusal, Result, locked};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::http::HeaderValue;

use crate::engine::protocol::Cancel;

const MOST_HEADER_BYTES: usize = 1 << 10;

tokio::task_local! {
    pub(super) static REQUEST: Arc<Context>;
}

#[derive(Debug, Default)]
pub(super) struct Context {
    /// `serve.unknown_fields = "refuse"`.
    pub refuse_unknown: bool,
    pub owner: Owner,
    /// [`super::Options::program`].
    pub program: Vec<OsString>,
    pub left_out: Mutex<BTreeSet<String>>,
    /// When the reading of its PDFs must end, and the bytes of text that they may still have.
    pub pdfs: Mutex<Option<(Instant, u64)>>,
    /// Set once the request is answered, or its connection closed.
    pub ended: Cancel,
}

/// Cancels when it is dropped.
pub(super) struct Ends(pub Cancel);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

pub(super) fn current() -> Arc<Context> {
    REQUEST.try_with(Arc::clone).unwrap_or_default()
}

/// Leaves a part of the request out and remembers its name; false if the settings refuse unknown parts.
pub(super) fn leave_out(name: &str) -> bool {
    let leave = |context: &Arc<Context>| {
        if !context.refuse_unknown {
            locked(&context.left_out).insert(without_positions(name));
        }
        !context.refuse_unknown
    };
    REQUEST.try_with(leave).unwrap_or(false)
}

/// `messages[3].name` is `messages[].name`.
fn without_positions(name: &str) -> String {
    let mut bracket = false;
    let kept = name.chars().filter(|c| {
        bracket = *c == '[' || (bracket && c.is_ascii_digit());
        !(bracket && c.is_ascii_digit())
    });
    kept.take(200).collect()
}

pub(super) fn key_required() -> Refusal {
    let message = "the library and earlier responses need a key, because the system cannot tell which user this connection \
                   belongs to: set serve.key_file and send the key";
    Refusal::new(403, "key_required", message)
}

/// Refuses one user's data if the owner of the connection is unknown.
pub(super) fn own_data() -> Result<()> {
    match REQUEST.try_with(|context| context.owner) {
        Ok(Owner::Unknown) => Err(key_required()),
        Ok(Owner::Same | Owner::Other | Owner::HasKey) | Err(_) => Ok(()),
    }
}

/// The names as a header: printable ASCII, cut at the maximum length.
pub(super) fn header(names: &[String]) -> Option<HeaderValue> {
    let plain = |c: char| if c.is_ascii_graphic() && c != ',' { c } else { '?' };
    let mut text = names.iter().map(|name| name.chars().map(plain).collect::<String>()).collect::<Vec<_>>().join(", ");
    if text.len() > MOST_HEADER_BYTES {
        text.truncate(MOST_HEADER_BYTES);
        text.push_str("...");
    }
    HeaderValue::from_str(&text).ok().filter(|text| !text.is_empty())
}

/// Runs long work on a thread of its own.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let context = current();
    let done = tokio::task::spawn_blocking(move || REQUEST.sync_scope(context, work));
    done.await.map_err(|_| Refusal::internal("internal error while the request was read"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_their_positions_and_fit_a_header() {
        assert_eq!(without_positions("tools[12].a[3].b7[x1]"), "tools[].a[].b7[x1]");
        let header = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
            super::header(&names).map(|h| h.to_str().unwrap().to_owned())
        };
        assert_eq!(header(&[]), None);
        assert_eq!(header(&["a", "b\nc: d,é"]).unwrap(), "a, b?c:?d??");
        let long = "x".repeat(200);
        let all = header(&[long.as_str(); 9]).unwrap();
        assert!(all.len() < MOST_HEADER_BYTES + 20 && all.ends_with("..."), "{all}");
    }

    #[test]
    fn nothing_is_left_out_where_unknown_fields_are_refused() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for refuse_unknown in [true, false] {
            let context = Arc::new(Context { refuse_unknown, ..Context::default() });
            let left = runtime.block_on(REQUEST.scope(Arc::clone(&context), async {
                blocking(|| Ok(leave_out("messages[4].odd") && leave_out("messages[5].odd"))).await
            }));
            assert_eq!(left, Ok(!refuse_unknown));
            let names: &[&str] = if refuse_unknown { &[] } else { &["messages[].odd"] };
            assert_eq!(Vec::from_iter(locked(&context.left_out).iter().cloned()), names);
        }
    }
}
