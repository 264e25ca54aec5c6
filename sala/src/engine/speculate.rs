//! Decoding by rounds: propose, verify, draw and match, accept (docs/speculative.md §9). Plain decoding is a round
//! without drafts; there is no second path.
//!
//! A round reads the pending token and k drafts in one pass, draws a token from every row with noise keyed by its
//! position, and accepts drafts as long as they equal the draw. So the text equals that of plain decoding, bit for
//! bit, whatever the drafts, and the state holds exactly the accepted rows.
//!
//! Invariants: `history` is every token of the state, plus at most one, the pending token: drawn and reported, not yet
//! read by the model. A token that ends the turn is neither reported nor in the state, and nothing after it is.
//! Between two rounds everything is synced: a job may be cancelled there without clean-up.

mod generation;
mod rounds;
#[cfg(test)]
mod tests;

use self::generation::{Generation, finite};
pub use self::rounds::{Proposal, Proposed, Round};
use super::look;
use crate::backend::draft::DraftOps;
use crate::backend::{MAX_VERIFY_ROWS, MassOf, TopLogits};
use crate::engine::ngram::{Lookup, NgramIndex};
use crate::engine::policy::Policy;
use crate::engine::protocol::{CheckpointImage, Dtype, Ended, Generate, ImageTensor, LookedAt, SpecStats, Token};
use crate::engine::sampler::Sampler;
use crate::model::draft::{DraftError, DraftHead, DraftWindow, Tables};
use crate::model::{Live, Model, ModelError};

const CALIBRATION: &str = "draft.calibration";

/// The live state is undefined after an error; reset or restore it.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Draft(#[from] DraftError),
    #[error(
        "the model's output at token {position} is not finite: kept state or weights are damaged. Ask again; \
         sala-chat prune drops kept state, sala-chat model verify checks the weights"
    )]
    NotFinite { position: usize },
    /// The grammar of the answer allows no next token.
    #[error("the grammar allows no further token: {0}; ask with a simpler schema")]
    Stuck(String),
    /// Like [`DecodeError::Stuck`], among the likeliest tokens only: other tokens may be allowed, but are known only
    /// after the last token is read again.
    #[error("what was read before keeps its likeliest tokens alone, and none of them may come next; ask again")]
    OnlyLikeliest,
    #[error("internal error ({0}); please report it. This conversation is saved; others continue")]
    Panic(String),
    /// An invalid call in this state: a bug in the caller.
    #[error("decode: {0}")]
    Order(&'static str),
}

pub type Result<T, E = DecodeError> = std::result::Result<T, E>;

/// Finds drafts from every token so far; the second argument limits their number.
pub type Finder = Box<dyn FnMut(&[Token], usize) -> Option<Lookup> + Send>;

/// A conversation's decoder state without its draft window.
#[derive(Default)]
pub struct Conversation {
    index: NgramIndex,
    policy: Policy,
    finder: Option<Finder>,
    generation: Option<Generation>,
    stats: SpecStats,
    emitted: u64,
    /// Top logits after the last token that was read, for a generation that begins without reading more.
    last_logits: Option<TopLogits>,
}

/// Decoder state of an inactive conversation ([`Decoder::swap`]).
pub struct Parked<B: DraftOps> {
    conversation: Conversation,
    window: Option<DraftWindow<B>>,
}

pub struct Decoder<B: DraftOps> {
    head: Option<DraftHead<B>>,
    now: Conversation,
}

impl<B: DraftOps> Decoder<B> {
    /// Give `head`'s layers to [`Live::new`].
    pub fn new(head: Option<DraftHead<B>>) -> Self {
        Decoder { head, now: Conversation::default() }
    }

    /// Decoder state of another, empty conversation, with the draft costs of this device.
    pub fn another(&self, b: &mut B) -> Result<Parked<B>> {
        let window = match &self.head {
            Some(head) => Some(head.another(b)?),
            None => None,
        };
        Ok(Parked { conversation: Conversation { policy: self.now.policy.clone(), ..Conversation::default() }, window })
    }

    /// Exchanges the active conversation with a parked one.
    pub fn swap(&mut self, other: &mut Parked<B>) -> Result<()> {
        match (&mut self.head, &mut other.window) {
            (Some(head), Some(window)) => head.swap(window),
            (None, None) => {}
            (Some(_), None) | (None, Some(_)) => {
                return Err(DecodeError::Order("a conversation of another draft head"));
            }
        }
        std::mem::swap(&mut self.now, &mut other.conversation);
        Ok(())
    }

    /// Copies the active conversation's decoder state for [`Decoder::copy_to`], while nothing is generated. Uses no
    /// device: a long history is copied while a device copies its rows.
    pub fn known(&mut self) -> Conversation {
        let Conversation { index, policy, last_logits, .. } = &self.now;
        let (index, policy, last_logits) = (index.clone(), policy.clone(), last_logits.clone());
        Conversation { index, policy, last_logits, ..Conversation::default() }
    }

    pub fn copy_to(&mut self, b: &mut B, model: &Model<B>, known: Conversation, to: &mut Parked<B>) -> Result<()> {
        let tensors = self.export(b, model)?;
        to.conversation = known;
        let position = self.now.index.tokens().len();
        if let (Some(head), Some(window)) = (&mut self.head, &mut to.window) {
            head.swap(window);
            let restored = head.restore(b, &tensors, position);
            head.swap(window);
            restored?;
        }
        Ok(())
    }

    pub fn head(&self) -> Option<&DraftHead<B>> {
        self.head.as_ref()
    }

    /// Replaces the n-gram lookup. Benchmarks and proofs use it to choose the drafts.
    pub fn set_finder(&mut self, finder: Finder) {
        self.now.finder = Some(finder);
    }

    pub fn history(&self) -> &[Token] {
        self.now.index.tokens()
    }

    /// Prepares the n-gram lookup for a state that is being restored: [`Decoder::restore`] with the same `history`
    /// follows.
    pub fn look_up_in(&mut self, history: &[Token]) {
        self.now.index.sync(history);
    }

    /// Makes `history` the conversation, all of it in the state; `end` is its saved state.
    pub fn restore(&mut self, b: &mut B, history: &[Token], end: Option<&CheckpointImage>) -> Result<()> {
        (self.now.generation, self.now.last_logits) = (None, None);
        self.now.index.sync(history);
        let tensors = end.map_or(&[][..], |e| e.tensors.as_slice());
        if let Some(head) = &mut self.head {
            head.restore(b, tensors, history.len())?;
        }
        let saved = tensors.iter().find(|t| t.name == CALIBRATION);
        if let Some(calibration) = saved.and_then(|t| serde_json::from_slice(&t.data).ok()) {
            self.now.policy.calibration = calibration;
        }
        Ok(())
    }

    /// Tensors for an end state: the draft window and the calibration. Waits for the device.
    pub fn export(&mut self, b: &mut B, model: &Model<B>) -> Result<Vec<ImageTensor>> {
        let mut tensors = match &mut self.head {
            Some(head) => head.export(b, &Tables::from(model), self.now.index.tokens())?,
            None => Vec::new(),
        };
        let json = serde_json::to_vec(&self.now.policy.calibration)
            .map_err(|_| DecodeError::Order("what drafts were worth is no JSON"))?;
        tensors.push(ImageTensor::new(CALIBRATION, Dtype::U8, vec![json.len()], json));
        Ok(tensors)
    }

    /// Adds the chunk that `live` has just prefilled; `following` prompt tokens remain after it. Drops a pending
    /// token: if it belongs to the text, the given tokens contain it.
    pub fn read(
        &mut self,
        b: &mut B,
        model: &Model<B>,
        live: &Live<B>,
        chunk: &[Token],
        following: usize,
    ) -> Result<()> {
        (self.now.generation, self.now.last_logits) = (None, None);
        let start = live.position().checked_sub(chunk.len()).filter(|s| *s <= self.now.index.tokens().len());
        let Some(start) = start else { return Err(DecodeError::Order("the chunk is not the end of the state")) };
        self.now.index.truncate(start);
        self.now.index.extend(chunk);
        if let (Some(head), Some(aux_hidden)) = (&mut self.head, live.aux_hidden()) {
            head.read(b, &Tables::from(model), aux_hidden, start, chunk.len(), self.now.index.tokens(), following)?;
        }
        Ok(())
    }

    /// Keeps the top logits after the last read row, for a generation that begins later, or in a fork. Waits.
    pub fn keep_last(&mut self, b: &mut B, model: &Model<B>, live: &mut Live<B>) -> Result<()> {
        self.now.last_logits = Some(live.prefill_logits(b, model)?);
        Ok(())
    }

    /// Starts to generate: draws the first token from the last prefilled row, or continues from a pending token, which
    /// is not reported again.
    pub fn begin(&mut self, b: &mut B, model: &Model<B>, live: &mut Live<B>, request: &Generate) -> Result<Round> {
        let sampler = Sampler::new(request.sampling, self.now.index.tokens());
        let generation = Generation {
            sampler,
            stop: request.stop.clone(),
            mode: request.spec,
            remaining: request.max_tokens,
            steer: request.steering.as_ref().map(|s| (s.0)()),
            constraint: request.constraint.as_ref().map(|c| (c.0)(self.now.index.tokens())),
            likely: request.likely,
            each_token: request.look.each_token,
            thoughts_until: request.look.thoughts_until,
            looked: [0, 0],
        };
        live.reset_mass(b)?;
        self.now.policy.begin();
        (self.now.stats, self.now.emitted) = (SpecStats::default(), 0);
        let (position, known) = (live.position(), self.now.index.tokens().len());
        if request.max_tokens == 0 {
            return Ok(Round { ended: Some(Ended::Length), ..Round::default() });
        }
        let generation = self.now.generation.insert(generation);
        if known == position + 1 {
            return Ok(Round::default());
        }
        if known != position || position == 0 {
            return Err(DecodeError::Order("nothing to generate from: the history is not the state's"));
        }
        let (row, mut kept) = match self.now.last_logits.take() {
            Some(row) => (row, true),
            None => (live.prefill_logits(b, model)?, false),
        };
        finite(&row, position)?;
        // The probe was rejected: the draw is read again in its own round.
        let mut path = generation.ahead(std::slice::from_ref(&row));
        while (1..=MAX_VERIFY_ROWS.min(live.limit().saturating_sub(position))).contains(&path.len()) {
            live.verify(b, model, &path)?;
            let rows = live.top_logits(b, path.len())?;
            live.advance(b, 0)?;
            rows.iter().try_for_each(|row| finite(row, position))?;
            (kept, path) = (true, generation.ahead(&rows));
        }
        let whole = || if kept { Err(DecodeError::OnlyLikeliest) } else { Ok(live.logits_of(b, model, 0)?) };
        let token = generation.draw(&row, position as u64, &[], whole)?;
        let Some(token) = token else { return Err(DecodeError::Order("the model made no top logits")) };
        let Some((token, last)) = generation.steered(token) else {
            return Ok(Round { ended: Some(Ended::Stop), ..Round::default() });
        };
        generation.thoughts_until = generation.thoughts_until.filter(|end| *end != token);
        let likely = generation.likely(&row, token).into_iter().collect();
        let complete = self.report(&[token]);
        let ended = if last { Some(Ended::Repeats) } else { complete };
        Ok(Round { tokens: vec![token], ended, looked: Vec::new(), likely })
    }

    /// The attention mass of this generation's rows so far. Waits for the device.
    pub fn looked_at(&self, b: &mut B, model: &Model<B>, live: &mut Live<B>) -> Result<LookedAt> {
        let [thoughts, answer] = self.now.generation.as_ref().map_or([0, 0], |g| g.looked);
        let spec = &model.spec().sparse;
        Ok(LookedAt {
            thoughts: look::shares(&live.mass(b, MassOf::Thoughts)?, thoughts, spec),
            answer: look::shares(&live.mass(b, MassOf::Answer)?, answer, spec),
        })
    }

    pub fn stats(&self) -> &SpecStats {
        &self.now.stats
    }
}
