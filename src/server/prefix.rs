//! The longest kept prefix of a prompt: live, on its way to disk, or on disk from any request or run of the program.
//!
//! The search compares texts: a prompt's with the recorded ones of the states. So the tokenization of an earlier
//! answer does not matter. A prompt of tokens is compared token by token as well.

use std::sync::Arc;

use super::ask::Prompt;
use super::fresh::{Fresh, FreshState};
use crate::engine::protocol::{CheckpointImage, RowSource};
use crate::runtime::path::Path;
use crate::store::{SegmentId, Store, StoreError};

/// How often the search repeats because state turned out damaged when it was opened.
const ATTEMPTS: usize = 8;

/// Kept state of a path, ready to be restored: rows of each of its segments, and the recurrent state at its end.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub rows: Vec<Arc<dyn RowSource>>,
    pub end: Option<CheckpointImage>,
    /// It belongs to the terminal's library: state on top of it cannot be kept among the requests.
    pub of_library: bool,
}

pub(super) struct Places<'a> {
    pub live: &'a [Path],
    pub fresh: &'a Fresh,
    /// The store of the requests; `None` if it is damaged.
    pub store: Option<&'a Store>,
    /// The terminal's store, if the prompt contains a document of its library.
    pub library: Option<&'a Store>,
}

/// A path that can be restored: its first segments are on disk, the others on their way there.
struct Found<'a> {
    path: Path,
    stored: Option<(&'a Store, SegmentId)>,
    fresh: Vec<Arc<FreshState>>,
    of_library: bool,
}

/// Whether a path begins a prompt of tokens; a prompt of text is compared elsewhere.
fn same_tokens(path: &Path, prompt: &Prompt) -> bool {
    prompt.tokens.as_ref().is_none_or(|wanted| {
        let tokens = path.tokens();
        tokens.len() < wanted.len() && wanted.starts_with(&tokens)
    })
}

/// Whether a prompt begins with a whole live path, and is longer.
fn begins_with(prompt: &Prompt, live: &Path) -> bool {
    let text = &prompt.rendered.text;
    live.unchanged(text).segments().len() == live.segments().len()
        && live.text_bytes() < text.len()
        && same_tokens(live, prompt)
}

/// The stored path that ends in `tip`, if all of it can be restored.
fn stored(store: &Store, tip: &SegmentId) -> Result<Option<Path>, StoreError> {
    match store.plan_restore(tip) {
        Ok(plan) => Ok(Some(Path::new(plan.path).prefix(plan.usable))),
        Err(StoreError::NoSegment { .. }) => Ok(None),
        Err(e) => Err(e),
    }
}

/// The longest prefix on its way to disk, if longer than `least` bytes.
fn among_fresh<'a>(
    places: &Places<'a>,
    fingerprint: &str,
    prompt: &Prompt,
    least: usize,
) -> Result<Option<Found<'a>>, StoreError> {
    let (Some(store), fresh) = (places.store, places.fresh) else { return Ok(None) };
    for tip in fresh.under(fingerprint, &prompt.rendered.text) {
        let (below, states) = fresh.path(tip);
        let mut path = match &below {
            None => Path::default(),
            Some(id) => match stored(store, id)? {
                Some(path) => path,
                None => continue,
            },
        };
        // A stored part that cannot be restored makes it another path.
        if path.head() != below {
            continue;
        }
        for state in &states {
            path.push(state.content.clone());
        }
        if path.text_bytes() <= least {
            break;
        }
        if same_tokens(&path, prompt) {
            let stored = below.map(|id| (store, id));
            return Ok(Some(Found { path, stored, fresh: states, of_library: false }));
        }
    }
    Ok(None)
}

/// The longest prefix on disk, if longer than `least` bytes.
fn among_stored<'a>(
    store: &'a Store,
    fingerprint: &str,
    prompt: &Prompt,
    least: usize,
) -> Result<Option<Found<'a>>, StoreError> {
    for id in store.segments_under(fingerprint, &prompt.rendered.text)? {
        // Do not stop at a path that is too short: a later segment has less text, but more of its path may be intact.
        if let Some(path) = stored(store, &id)?.filter(|p| p.text_bytes() > least)
            && same_tokens(&path, prompt)
        {
            let stored = path.head().map(|id| (store, id));
            return Ok(Some(Found { stored, path, fresh: Vec::new(), of_library: false }));
        }
    }
    Ok(None)
}

/// `None` if the state turns out damaged.
fn open(found: &Found<'_>) -> Result<Option<Kept>, StoreError> {
    let (mut rows, mut end): (Vec<Arc<dyn RowSource>>, _) = (Vec::new(), None);
    if let Some((store, tip)) = &found.stored {
        let opened = match store.open_what_can_be_read(tip, 0) {
            Ok(opened) => opened,
            Err(StoreError::NoSegment { .. }) => return Ok(None),
            Err(e) => return Err(e),
        };
        if opened.plan.usable + found.fresh.len() != found.path.segments().len() {
            return Ok(None);
        }
        rows.extend(opened.rows.into_iter().map(|r| r as Arc<dyn RowSource>));
        end = opened.end;
    }
    if let Some(last) = found.fresh.last() {
        rows.extend(found.fresh.iter().map(|s| Arc::new(s.image.rows.clone()) as Arc<dyn RowSource>));
        end = last.image.end.clone();
    }
    Ok(Some(Kept { rows, end, of_library: found.of_library }))
}

pub(super) fn live(places: &Places<'_>, prompt: &Prompt) -> Path {
    let live = places.live.iter().filter(|l| begins_with(prompt, l)).max_by_key(|l| l.text_bytes());
    live.cloned().unwrap_or_default()
}

/// The longest prefix of a prompt that is live or can be restored, and its source; `None`: it is live, or empty.
///
/// # Errors
/// The store cannot be read.
pub(super) fn longest(
    places: &Places<'_>,
    fingerprint: &str,
    prompt: &Prompt,
) -> Result<(Path, Option<Kept>), StoreError> {
    let live = live(places, prompt);
    for _ in 0..ATTEMPTS {
        let mut found = among_fresh(places, fingerprint, prompt, live.text_bytes())?;
        for (store, of_library) in [(places.store, false), (places.library, true)] {
            let Some(store) = store else { continue };
            let least = found.as_ref().map_or(live.text_bytes(), |f| f.path.text_bytes());
            if let Some(longer) = among_stored(store, fingerprint, prompt, least)? {
                found = Some(Found { of_library, ..longer });
            }
        }
        let Some(found) = found else { break };
        if let Some(kept) = open(&found)? {
            return Ok((found.path, Some(kept)));
        }
    }
    Ok((live, None))
}
