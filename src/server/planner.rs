//! Plans: the longest kept prefix of a prompt, ready to be restored, and the steps of the prefill after it. Each is made
//! on a thread of its own: searching a long text, tokenizing it and opening files would block the worker for too long.
//!
//! A prefix is live, on its way to disk, or on disk from any request or run of the program. The search compares texts:
//! a prompt's with the recorded ones of the states. So the tokenization of an earlier answer does not matter. A prompt
//! of tokens is compared token by token as well.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crossbeam_channel::Sender;

use super::keep::{Fresh, FreshState};
use super::{Prompt, Refusal, Result, Shared};
use crate::core::grouped;
use crate::engine::protocol::{Cancel, CheckpointImage, RowSource, RowsFault};
use crate::runtime::path::Path;
use crate::runtime::segments::{self, Step};
use crate::store::{SegmentId, SegmentKind, Store, StoreError};
use crate::text::{Halt, TextError};

/// A prompt to plan, and the live and pending state at that time.
pub(super) struct Wanted {
    pub id: u64,
    pub prompt: Prompt,
    /// All of it is scored, on an empty state.
    pub scored: bool,
    pub cancel: Cancel,
    pub live: Vec<Path>,
    pub fresh: Fresh,
    /// The damage that ended the last plan.
    pub lost: Option<RowsFault>,
    /// Tokens that the context holds.
    pub limit: u64,
    pub fingerprint: String,
}

pub(super) struct Plan {
    pub base: Path,
    /// The state to restore; `None`: `base` is live.
    pub kept: Option<Kept>,
    /// The prefill after `base`; the answer follows the last step.
    pub steps: Vec<Step>,
}

/// The number of a [`Wanted`], and its plan.
pub(super) type Planned = (u64, Result<Plan>);

impl Wanted {
    /// Plans on a thread of its own, and sends the plan.
    pub(super) fn begin(self, shared: &Arc<Shared>, planned: Sender<Planned>) -> std::io::Result<()> {
        let shared = Arc::clone(shared);
        let work = move || {
            let made = catch_unwind(AssertUnwindSafe(|| plan(&shared, &self)));
            let made = made.unwrap_or_else(|_| Err(Refusal::internal("internal error while it was planned")));
            // The receiver is gone once the server has ended.
            let _ = planned.send((self.id, made));
        };
        std::thread::Builder::new().name("planner".into()).spawn(work).map(drop)
    }
}

/// `tokens`: the prompt's length, as text.
fn too_long(prompt: &Prompt, tokens: &str, limit: u64) -> Refusal {
    let field = prompt.field;
    let message = format!("{field}: the prompt has {tokens} tokens, the context holds {}", grouped(limit));
    Refusal { code: "context_length_exceeded", ..Refusal::field(field, message) }
}

fn plan(shared: &Shared, wanted: &Wanted) -> Result<Plan> {
    let Wanted { prompt, limit, .. } = wanted;
    let store = shared.usable_store();
    let library = shared.options.library.as_deref().filter(|_| prompt.of_library);
    if let Some(fault) = &wanted.lost {
        let segment = fault.segment.map(SegmentId);
        let knows = |store: &&Store| segment.is_some_and(|id| store.segment(&id).is_ok_and(|s| s.is_some()));
        let of = [store, library].into_iter().flatten().find(knows);
        let noted = of.map_or(Ok(false), |store| store.give_up_on(fault));
        let noted = noted.unwrap_or_else(|e| {
            shared.lookup_failed(&e);
            shared.is_damaged()
        });
        if !noted && store.is_some() {
            return Err(Refusal::internal(fault.to_string()));
        }
    }
    let (base, kept) = match wanted.scored {
        // Scoring covers the tokens of the whole prompt, so no kept state helps.
        true => (Path::default(), None),
        false => wanted.longest(store, library).unwrap_or_else(|e| {
            shared.lookup_failed(&e);
            (wanted.live(), None)
        }),
    };
    let steps = steps(shared, wanted, &base)?;
    let total = base.position() + steps.iter().map(|s| s.prompt.len() as u64).sum::<u64>();
    if total >= *limit {
        return Err(too_long(prompt, &grouped(total), *limit));
    }
    if steps.last().is_none_or(|s| s.prompt.is_empty()) {
        let field = prompt.field;
        return Err(Refusal::field(field, format!("{field}: there is nothing to answer to")));
    }
    Ok(Plan { base, kept, steps })
}

fn steps(shared: &Shared, wanted: &Wanted, base: &Path) -> Result<Vec<Step>> {
    let Wanted { prompt, cancel, limit, .. } = wanted;
    let rendered = &prompt.rendered;
    if let Some(tokens) = &prompt.tokens {
        let from = usize::try_from(base.position()).unwrap_or(usize::MAX);
        let prompt = tokens.get(from..).unwrap_or_default().to_vec();
        let (text_start, text_end) = (base.text_bytes(), rendered.text.len());
        return Ok(vec![Step { prompt, text_start, text_end, kind: SegmentKind::Turn, message: None }]);
    }
    let most = usize::try_from(*limit).unwrap_or(usize::MAX);
    let halt = Halt { stop: &|| cancel.is_cancelled(), most };
    segments::steps(&shared.renderer, shared.options.piece, rendered, base, &halt).map_err(|e| match e {
        TextError::TooLong { .. } => too_long(prompt, &format!("more than {}", grouped(*limit)), *limit),
        TextError::Stopped => Refusal::gone(),
        other => Refusal::internal(other.to_string()),
    })
}

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

/// A path that can be restored: its first segments are on disk, the others on their way there.
struct Found<'a> {
    path: Path,
    store: &'a Store,
    of_library: bool,
    stored: Option<SegmentId>,
    fresh: Vec<Arc<FreshState>>,
}

/// What the store holds of a segment, if it is there.
fn there<T>(read: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(StoreError::NoSegment { .. }) => Ok(None),
        Err(e) => Err(e),
    }
}

/// The stored path that ends in `tip`, as far as it can be restored.
fn stored(store: &Store, tip: &SegmentId) -> Result<Option<Path>, StoreError> {
    Ok(there(store.plan_restore(tip))?.map(|plan| Path::new(plan.path).prefix(plan.usable)))
}

impl Found<'_> {
    /// `None` if the state turns out damaged.
    fn open(&self) -> Result<Option<Kept>, StoreError> {
        let mut kept = Kept { of_library: self.of_library, ..Kept::default() };
        if let Some(tip) = &self.stored {
            let Some(opened) = there(self.store.open_what_can_be_read(tip, 0))? else { return Ok(None) };
            if opened.plan.usable + self.fresh.len() != self.path.segments().len() {
                return Ok(None);
            }
            kept.rows.extend(opened.rows.into_iter().map(|r| r as Arc<dyn RowSource>));
            kept.end = opened.end;
        }
        if let Some(last) = self.fresh.last() {
            kept.rows.extend(self.fresh.iter().map(|s| Arc::new(s.image.rows.clone()) as Arc<dyn RowSource>));
            kept.end.clone_from(&last.image.end);
        }
        Ok(Some(kept))
    }
}

impl Wanted {
    /// Whether a path begins a prompt of tokens; a prompt of text is compared elsewhere.
    fn same_tokens(&self, path: &Path) -> bool {
        self.prompt.tokens.as_ref().is_none_or(|wanted| {
            let tokens = path.tokens();
            tokens.len() < wanted.len() && wanted.starts_with(&tokens)
        })
    }

    /// The longest live path that begins the prompt and is shorter.
    fn live(&self) -> Path {
        let text = &self.prompt.rendered.text;
        let begins = |live: &&Path| {
            live.unchanged(text).segments().len() == live.segments().len()
                && live.text_bytes() < text.len()
                && self.same_tokens(live)
        };
        self.live.iter().filter(begins).max_by_key(|l| l.text_bytes()).cloned().unwrap_or_default()
    }

    /// The longest prefix on its way to disk, if longer than `least` bytes.
    fn among_fresh<'a>(&self, store: &'a Store, least: usize) -> Result<Option<Found<'a>>, StoreError> {
        for tip in self.fresh.under(&self.fingerprint, &self.prompt.rendered.text) {
            let (below, fresh) = self.fresh.path(tip);
            let found = below.as_ref().map_or(Ok(Some(Path::default())), |id| stored(store, id))?;
            // A stored part that cannot be restored makes it another path.
            let Some(mut path) = found.filter(|path| path.head() == below) else { continue };
            fresh.iter().for_each(|state| path.push(state.content.clone()));
            if path.text_bytes() <= least {
                break;
            }
            if self.same_tokens(&path) {
                return Ok(Some(Found { path, store, of_library: false, stored: below, fresh }));
            }
        }
        Ok(None)
    }

    /// The longest prefix on disk, if longer than `least` bytes.
    fn among_stored(&self, store: &Store, least: usize) -> Result<Option<Path>, StoreError> {
        for id in store.segments_under(&self.fingerprint, &self.prompt.rendered.text)? {
            // Do not stop at a path that is too short: a later segment has less text, but more of its path may be intact.
            let path = stored(store, &id)?.filter(|path| path.text_bytes() > least && self.same_tokens(path));
            if path.is_some() {
                return Ok(path);
            }
        }
        Ok(None)
    }

    /// The longest prefix that is live or can be restored, and its source; `None`: it is live, or empty. `store`: that
    /// of the requests; `library`: the terminal's, if the prompt contains a document of it.
    fn longest(&self, store: Option<&Store>, library: Option<&Store>) -> Result<(Path, Option<Kept>), StoreError> {
        let live = self.live();
        for _ in 0..ATTEMPTS {
            let mut found = match store {
                Some(store) => self.among_fresh(store, live.text_bytes())?,
                None => None,
            };
            for (store, of_library) in [(store, false), (library, true)] {
                let least = found.as_ref().map_or(&live, |f| &f.path).text_bytes();
                let Some(store) = store else { continue };
                if let Some(path) = self.among_stored(store, least)? {
                    found = Some(Found { stored: path.head(), path, store, of_library, fresh: Vec::new() });
                }
            }
            let Some(found) = found else { break };
            if let Some(kept) = found.open()? {
                return Ok((found.path, Some(kept)));
            }
        }
        Ok((live, None))
    }
}
