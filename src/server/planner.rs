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
use crate::engine::protocol::{Cancel, CheckpointImage, ModelInfo, RowSource, RowsFault};
use crate::runtime::path::Path;
use crate::runtime::segments::{self, Step};
use crate::store::{SegmentId, SegmentKind, Store, StoreError};
use crate::text::{Halt, TextError};

/// A prompt to plan, and the live and pending state at that time.
pub(super) struct Wanted {
    pub id: u64,
    pub model: ModelInfo,
    pub prompt: Prompt,
    /// All of it is scored, on an empty state.
    pub scored: bool,
    pub cancel: Cancel,
    pub live: Vec<Path>,
    pub fresh: Fresh,
    /// The damage that ended the last plan.
    pub lost: Option<RowsFault>,
}

pub(super) struct Plan {
    pub base: Path,
    /// The state to restore; `None`: `base` is live.
    pub kept: Option<Kept>,
    /// The prefill after `base`; the answer follows the last step.
    pub steps: Vec<Step>,
}

/// Tokens up to which a prompt that is too long is counted, for clients that read the number.
const MOST_COUNTED: u64 = 1 << 20;

/// In the words at which clients shorten the conversation. `least`: "at least " if the count ended early.
fn too_long(prompt: &Prompt, least: &str, tokens: u64, limit: u64) -> Refusal {
    let message = format!(
        "This model's maximum context length is {limit} tokens. However, your messages resulted in {least}{tokens} tokens. \
         Shorten them, or start the server with a larger context (--ctx, model.max_context)."
    );
    let anthropic = Some(format!("prompt is too long: {tokens} tokens > {limit} maximum"));
    Refusal { code: "context_length_exceeded", anthropic, ..Refusal::field(prompt.field, message) }
}

fn plan(shared: &Shared, wanted: &Wanted) -> Result<Plan> {
    let (prompt, limit) = (&wanted.prompt, wanted.model.context_limit);
    let store = Some(&*shared.options.store).filter(|_| !shared.is_damaged());
    let library = shared.options.library.as_deref().filter(|_| prompt.of_library);
    if let Some(fault) = &wanted.lost {
        let segment = fault.segment.map(SegmentId);
        let knows = |store: &&Store| segment.is_some_and(|id| store.segment(&id).is_ok_and(|s| s.is_some()));
        let of = [store, library].into_iter().flatten().find(knows);
        let noted = of.map_or(Ok(false), |store| store.note_fault(fault));
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
    if total >= limit {
        return Err(too_long(prompt, "", total, limit));
    }
    if steps.last().is_none_or(|s| s.prompt.is_empty()) {
        let field = prompt.field;
        return Err(Refusal::field(field, format!("{field}: there is nothing to answer to")));
    }
    Ok(Plan { base, kept, steps })
}

fn steps(shared: &Shared, wanted: &Wanted, base: &Path) -> Result<Vec<Step>> {
    let (prompt, limit) = (&wanted.prompt, wanted.model.context_limit);
    let rendered = &prompt.rendered;
    if let Some(tokens) = &prompt.tokens {
        let from = usize::try_from(base.position()).unwrap_or(usize::MAX);
        let prompt = tokens.get(from..).unwrap_or_default().to_vec();
        let (text_start, text_end) = (base.text_bytes(), rendered.text.len());
        return Ok(vec![Step { prompt, text_start, text_end, kind: SegmentKind::Turn, message: None }]);
    }
    let most = limit.max(MOST_COUNTED);
    let halt = Halt { stop: &|| wanted.cancel.is_cancelled(), most: usize::try_from(most).unwrap_or(usize::MAX) };
    segments::steps(&shared.renderer, shared.options.piece, rendered, base, &halt).map_err(|e| match e {
        TextError::TooLong { .. } => too_long(prompt, "at least ", most + 1, limit),
        TextError::Stopped => Refusal::gone(),
        other => Refusal::internal(other.to_string()),
    })
}

/// Kept state of a path, ready to be restored: rows of each of its segments, and the recurrent state at its end.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub rows: Vec<Arc<dyn RowSource>>,
    pub end: Option<CheckpointImage>,
    /// It belongs to the terminal's library: state on top of it cannot be kept among the requests.
    pub of_library: bool,
}

impl Wanted {
    /// Plans on a thread of its own, and sends the plan.
    pub(super) fn begin(self, shared: &Arc<Shared>, to: Sender<(u64, Result<Plan>)>) -> std::io::Result<()> {
        let shared = Arc::clone(shared);
        let work = move || {
            let made = catch_unwind(AssertUnwindSafe(|| plan(&shared, &self)));
            let made = made.unwrap_or_else(|_| Err(Refusal::internal("internal error while it was planned")));
            // The receiver is gone once the server has ended.
            let _ = to.send((self.id, made));
        };
        std::thread::Builder::new().name("planner".into()).spawn(work).map(drop)
    }

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

    /// A path and its state, if it begins the prompt with more than `least` bytes: what the store can restore up to
    /// `tip`, followed by `fresh` states in memory.
    fn open(
        &self,
        store: &Store,
        tip: Option<SegmentId>,
        fresh: &[Arc<FreshState>],
        least: usize,
    ) -> Result<Option<(Path, Kept)>, StoreError> {
        // Without a look at the store.
        if fresh.last().is_some_and(|last| last.content.boundary.bytes <= least as u64) {
            return Ok(None);
        }
        let mut path = match &tip {
            None => Path::default(),
            Some(tip) => {
                let Some(plan) = StoreError::if_known(store.plan_restore(tip))? else { return Ok(None) };
                Path::new(plan.path).prefix(plan.usable)
            }
        };
        let (stored, mut kept) = (path.head(), Kept::default());
        fresh.iter().for_each(|state| path.push(state.content.clone()));
        // A stored part that cannot be restored as a whole is another path.
        if (!fresh.is_empty() && stored != tip) || path.text_bytes() <= least || !self.same_tokens(&path) {
            return Ok(None);
        }
        if let Some(stored) = stored {
            let opened = StoreError::if_known(store.open_path(&stored, 0))?;
            // Otherwise some of it turned out damaged.
            let whole = opened.filter(|opened| opened.plan.usable + fresh.len() == path.segments().len());
            let Some(opened) = whole else { return Ok(None) };
            kept.rows.extend(opened.rows.into_iter().map(|rows| rows as Arc<dyn RowSource>));
            kept.end = opened.end;
        }
        if let Some(last) = fresh.last() {
            kept.rows.extend(fresh.iter().map(|state| Arc::new(state.image.rows.clone()) as Arc<dyn RowSource>));
            kept.end.clone_from(&last.image.end);
        }
        Ok(Some((path, kept)))
    }

    /// The longest prefix that is live or can be restored, and its source; `None`: it is live, or empty. `store`: that
    /// of the requests; `library`: the terminal's, if the prompt contains a document of it.
    fn longest(&self, store: Option<&Store>, library: Option<&Store>) -> Result<(Path, Option<Kept>), StoreError> {
        let (text, fingerprint) = (&self.prompt.rendered.text, &self.model.fingerprint);
        let mut longest = (self.live(), None);
        for (store, of_library) in [(store, false), (library, true)] {
            let Some(store) = store else { continue };
            let fresh = if of_library { Vec::new() } else { self.fresh.under(fingerprint, text) };
            let fresh = fresh.into_iter().map(|tip| self.fresh.path(tip)).collect();
            let stored = store.segments_under(fingerprint, text)?;
            // Deepest first. A later one has less text, but more of its path may be intact.
            for paths in [fresh, stored.into_iter().map(|tip| (Some(tip), Vec::new())).collect::<Vec<_>>()] {
                let least = longest.0.text_bytes();
                let mut opened = paths.iter().map(|(tip, fresh)| self.open(store, *tip, fresh, least));
                if let Some((path, kept)) = opened.find_map(Result::transpose).transpose()? {
                    longest = (path, Some(Kept { of_library, ..kept }));
                }
            }
        }
        Ok(longest)
    }
}
