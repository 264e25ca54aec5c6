//! Plans: the longest kept prefix of a prompt, ready to be restored, and the steps of the prefill after it. Planning
//! has threads of its own: searching a long text, tokenizing it and opening files would block the worker for too long.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::Shared;
use super::ask::Prompt;
use super::fresh::Fresh;
use super::prefix::{self, Kept, Places};
use super::refusal::Refusal;
use crate::core::grouped;
use crate::engine::protocol::{Cancel, RowsFault};
use crate::runtime::path::Path;
use crate::runtime::segments::{self, Step};
use crate::store::{SegmentId, SegmentKind, Store};
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

pub(super) struct Planner {
    to: Sender<Wanted>,
    /// Plans, each with the number of its [`Wanted`].
    pub plans: Receiver<(u64, Result<Plan, Refusal>)>,
}

impl Planner {
    /// Starts the threads, which end when the planner is dropped.
    ///
    /// # Errors
    /// The system cannot start another thread.
    pub(super) fn start(shared: &Arc<Shared>, threads: usize) -> std::io::Result<Planner> {
        let (to, wanted) = unbounded::<Wanted>();
        let (planned, plans) = unbounded();
        for _ in 0..threads {
            let shared = Arc::clone(shared);
            let (wanted, planned) = (wanted.clone(), planned.clone());
            std::thread::Builder::new().name("planner".into()).spawn(move || {
                for wanted in wanted {
                    let made = catch_unwind(AssertUnwindSafe(|| plan(&shared, &wanted)));
                    let made = made.unwrap_or_else(|_| Err(Refusal::internal("internal error while it was planned")));
                    // The receiver is gone once the server has ended.
                    let _ = planned.send((wanted.id, made));
                }
            })?;
        }
        Ok(Planner { to, plans })
    }

    pub(super) fn want(&self, wanted: Wanted) {
        // The threads live as long as the planner does.
        let _ = self.to.send(wanted);
    }
}

/// `tokens`: the prompt's length, as text.
fn too_long(prompt: &Prompt, tokens: &str, limit: u64) -> Refusal {
    let field = prompt.field;
    let message = format!("{field}: the prompt has {tokens} tokens, the context holds {}", grouped(limit));
    Refusal { code: "context_length_exceeded", ..Refusal::field(field, message) }
}

fn plan(shared: &Shared, wanted: &Wanted) -> Result<Plan, Refusal> {
    let Wanted { prompt, limit, .. } = wanted;
    let store = shared.cache.usable();
    let library = shared.library.as_deref().filter(|_| prompt.of_library);
    if let Some(fault) = &wanted.lost {
        let segment = fault.segment.map(SegmentId);
        let knows = |store: &&Store| segment.is_some_and(|id| store.segment(&id).is_ok_and(|s| s.is_some()));
        let of = [store, library].into_iter().flatten().find(knows);
        let noted = of.map_or(Ok(false), |store| store.give_up_on(fault));
        let noted = noted.unwrap_or_else(|e| {
            shared.cache.failed(&e);
            shared.cache.is_damaged()
        });
        if !noted && store.is_some() {
            return Err(Refusal::internal(fault.to_string()));
        }
    }
    let places = Places { live: &wanted.live, fresh: &wanted.fresh, store, library };
    let (base, kept) = match wanted.scored {
        // Scoring covers the tokens of the whole prompt, so no kept state helps.
        true => (Path::default(), None),
        false => prefix::longest(&places, &wanted.fingerprint, prompt).unwrap_or_else(|e| {
            shared.cache.failed(&e);
            (prefix::live(&places, prompt), None)
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

fn steps(shared: &Shared, wanted: &Wanted, base: &Path) -> Result<Vec<Step>, Refusal> {
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
    segments::steps(&shared.renderer, shared.piece, rendered, base, &halt).map_err(|e| match e {
        TextError::TooLong { .. } => too_long(prompt, &format!("more than {}", grouped(*limit)), *limit),
        TextError::Stopped => Refusal::gone(),
        other => Refusal::internal(other.to_string()),
    })
}
