//! Decoding by rounds: propose, verify, draw and match, accept (docs/speculative.md §10). Plain decoding is a round without
//! drafts; there is no second path.
//!
//! A round reads the pending token and k drafts in one pass, draws a token from every row with noise keyed by its
//! position, and accepts drafts as long as they equal the draw. So the text is what plain decoding would have drawn, bit for
//! bit, whatever was drafted, and the state holds exactly the accepted rows.
//!
//! Invariants: `history` is every token of the state, plus at most one, the pending token: drawn and reported, not yet
//! read by the model. A token that ends the turn is neither reported nor in the state, and nothing behind it is. Between
//! two rounds everything is synced: a job may be cancelled there without any clean-up.

use std::sync::Arc;
use std::time::Instant;

use super::look;
use crate::backend::draft::DraftOps;
use crate::backend::{MAX_VERIFY_ROWS, MassOf, TopLogits};
use crate::engine::ngram::{Lookup, NgramIndex};
use crate::engine::policy::{MAX_DEPTH, Offer, Outcome, Plan, Policy, Source};
use crate::engine::sampler::Sampler;
use crate::model::draft::{DraftError, DraftHead, DraftWindow, Tables};
use crate::model::{Live, Model, ModelError};
use crate::protocol::engine::{
    CheckpointImage, Constrain, Dtype, Ended, Generate, ImageTensor, Likely, Looked, LookedAt, SpecMode, SpecStats,
    Steer, Steered, Token,
};

/// Name of the tensor that keeps what drafts were worth, as JSON.
const CALIBRATION: &str = "draft.calibration";

/// What can go wrong in a round. The live state is undefined afterwards; reset or restore it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The model or its device.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The draft head.
    #[error(transparent)]
    Draft(#[from] DraftError),
    /// The device computed something that is no number.
    #[error(
        "the model's output at token {position} is not finite: kept state or weights are damaged. /regen tries again; \
         sala-chat prune drops kept state, sala-chat model verify checks the weights"
    )]
    NotFinite {
        /// Of the token that was to be drawn.
        position: usize,
    },
    /// A call that makes no sense now; a bug in the caller.
    #[error("decode: {0}")]
    Order(&'static str),
}

/// Shorthand.
pub type Result<T, E = DecodeError> = std::result::Result<T, E>;

/// What a round brought.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// New tokens of the text, in order. The last one is pending unless `ended` is [`Ended::Stop`].
    pub tokens: Vec<Token>,
    /// Set when this was the last round.
    pub ended: Option<Ended>,
    /// Where each of its rows looked, if it was asked for.
    pub looked: Vec<Looked>,
    /// How likely each token was, if it was asked for.
    pub likely: Vec<Likely>,
}

/// Looks for drafts: every token so far and the most that are useful.
pub type Finder = Box<dyn FnMut(&[Token], usize) -> Option<Lookup> + Send>;

/// A generation under way.
struct Generation {
    sampler: Sampler,
    stop: Vec<Token>,
    mode: SpecMode,
    /// Tokens that may still be reported.
    remaining: u64,
    steer: Option<Box<dyn Steer>>,
    constraint: Option<Box<dyn Constrain>>,
    /// The likeliest tokens that are told with each one.
    likely: Option<u8>,
    /// Where rows looked is told one by one.
    each_token: bool,
    /// The token that ends the thoughts, while they are written.
    thoughts_until: Option<Token>,
    /// Rows that wrote thoughts, and the answer.
    looked: [u64; 2],
}

impl Generation {
    /// Draws a token from a row, of those that may come next. Where none of the row's may, one that does: a row holds only the
    /// likeliest.
    fn draw(&mut self, row: &TopLogits, position: u64, path: &[Token]) -> Option<Token> {
        let Some(constraint) = &mut self.constraint else {
            return self.sampler.draw(row, position, path);
        };
        let known = row.ids.iter().copied().zip(row.logits.iter().copied());
        let (ids, logits) = known.filter(|(token, _)| constraint.allows(*token)).unzip();
        let allowed = TopLogits { ids, logits, log_sum_exp: row.log_sum_exp };
        self.sampler.draw(&allowed, position, path).or_else(|| constraint.any())
    }

    /// What becomes of a token that was drawn; `None` ends the turn.
    fn steered(&mut self, token: Token) -> Option<(Token, bool)> {
        let ends = self.stop.contains(&token);
        let (token, last) = match self.steer.as_mut().map_or(Steered::Take, |s| s.drawn(token, ends)) {
            Steered::Take if ends => return None,
            Steered::Take => (token, false),
            Steered::Instead(other) => (other, false),
            Steered::Last => (token, true),
        };
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token);
        }
        Some((token, last))
    }

    /// How likely a token of a row was, if that is told.
    fn likely(&self, row: &TopLogits, token: Token) -> Option<Likely> {
        let most = usize::from(self.likely?);
        let log_prob = |logit: f32| (f64::from(logit) - f64::from(row.log_sum_exp)) as f32;
        let known = row.ids.iter().zip(&row.logits);
        let own = known.clone().find(|(id, _)| **id == token).map(|(_, logit)| *logit);
        let least = row.logits.last().copied().unwrap_or(f32::NEG_INFINITY);
        Some(Likely {
            log_prob: log_prob(own.unwrap_or(least)),
            best: known.take(most).map(|(id, logit)| (*id, log_prob(*logit))).collect(),
        })
    }

    /// Counts where the accepted rows of the last pass looked: row i wrote `tokens[i]`. Before they are advanced.
    fn look<B: DraftOps>(
        &mut self,
        b: &mut B,
        model: &Model<B>,
        live: &mut Live<B>,
        tokens: &[Token],
        rows: usize,
    ) -> Result<Vec<Looked>> {
        let thoughts = match self.thoughts_until {
            None => 0,
            Some(end) => match tokens.iter().position(|t| *t == end) {
                None => rows,
                // The row that wrote the end of the thoughts is theirs.
                Some(at) => {
                    self.thoughts_until = None;
                    (at + 1).min(rows)
                }
            },
        };
        live.add_mass(b, 0..thoughts, MassOf::Thoughts)?;
        live.add_mass(b, thoughts..rows, MassOf::Answer)?;
        self.looked[0] += thoughts as u64;
        self.looked[1] += (rows - thoughts) as u64;
        if !self.each_token {
            return Ok(Vec::new());
        }
        let (position, spec) = (live.position(), &model.spec().sparse);
        let rows = live.row_mass(b, tokens.len().min(rows))?;
        Ok(rows.iter().enumerate().map(|(i, mass)| look::row(mass, position + i, spec)).collect())
    }
}

/// Drafts of a round and what making them took.
#[derive(Default)]
struct Drafts {
    tokens: Vec<Token>,
    confidence: Vec<f64>,
    extend_s: f64,
    steps_s: f64,
    steps: usize,
}

/// A round between its pass over the weights and its draw.
pub struct Proposal {
    /// The pending token and its drafts: the rows to verify.
    rows: Vec<Token>,
    drafts: Drafts,
    plan: Plan,
    lookup: Option<Lookup>,
    position: usize,
    began: Instant,
}

impl Proposal {
    /// The rows to verify, at the position of the state.
    pub fn rows(&self) -> &[Token] {
        &self.rows
    }
}

/// Whose time a round took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Its own: what it took says what drafts cost.
    Alone,
    /// That of other sequences too: only what drafts were worth is learned.
    Shared,
}

/// What a round does next.
pub enum Proposed {
    /// These rows are to be verified.
    Rows(Box<Proposal>),
    /// Nothing: it is over.
    Over(Round),
}

/// What a decoder knows of one conversation.
#[derive(Default)]
struct Talk {
    index: NgramIndex,
    policy: Policy,
    finder: Option<Finder>,
    generation: Option<Generation>,
    stats: SpecStats,
    emitted: u64,
    /// Top logits behind the last token that was read, for a generation that begins without reading more.
    behind: Option<TopLogits>,
}

/// What is known of a conversation that is not in hand ([`Decoder::swap`]).
pub struct Parked<B: DraftOps> {
    talk: Talk,
    window: Option<DraftWindow<B>>,
}

/// Draws a conversation's tokens, with whatever drafts pay.
pub struct Decoder<B: DraftOps> {
    head: Option<DraftHead<B>>,
    now: Talk,
}

impl<B: DraftOps> Decoder<B> {
    /// A decoder of an empty conversation. Give `head`'s layers to [`Live::new`].
    pub fn new(head: Option<DraftHead<B>>) -> Self {
        Decoder { head, now: Talk::default() }
    }

    /// What is to be known of another conversation: nothing yet, but what drafts cost on this device.
    ///
    /// # Errors
    /// The device.
    pub fn another(&self, b: &mut B) -> Result<Parked<B>> {
        let window = match &self.head {
            Some(head) => Some(head.another(b)?),
            None => None,
        };
        Ok(Parked { talk: Talk { policy: self.now.policy.clone(), ..Talk::default() }, window })
    }

    /// Takes another conversation in hand, and leaves the one that was in its place.
    ///
    /// # Errors
    /// `other` was made by a decoder with a head where this one has none, or the other way round.
    pub fn swap(&mut self, other: &mut Parked<B>) -> Result<()> {
        match (&mut self.head, &mut other.window) {
            (Some(head), Some(window)) => head.swap(window),
            (None, None) => {}
            (Some(_), None) | (None, Some(_)) => {
                return Err(DecodeError::Order("a conversation of another draft head"));
            }
        }
        std::mem::swap(&mut self.now, &mut other.talk);
        Ok(())
    }

    /// Makes `to` know what is known of the conversation in hand, which nothing generates now.
    ///
    /// # Errors
    /// The device.
    pub fn copy_to(&mut self, b: &mut B, model: &Model<B>, to: &mut Parked<B>) -> Result<()> {
        let tensors = self.export(b, model)?;
        to.talk = Talk {
            index: self.now.index.clone(),
            policy: self.now.policy.clone(),
            behind: self.now.behind.clone(),
            ..Talk::default()
        };
        let position = self.now.index.tokens().len();
        if let (Some(head), Some(window)) = (&mut self.head, &mut to.window) {
            head.swap(window);
            let restored = head.restore(b, &tensors, position);
            head.swap(window);
            restored?;
        }
        Ok(())
    }

    /// The draft head in use.
    pub fn head(&self) -> Option<&DraftHead<B>> {
        self.head.as_ref()
    }

    /// The draft head, for another decoder.
    pub fn into_head(self) -> Option<DraftHead<B>> {
        self.head
    }

    /// Replaces the n-gram lookup. Benchmarks and proofs use it to choose which drafts are made.
    pub fn set_finder(&mut self, finder: Finder) {
        self.now.finder = Some(finder);
    }

    /// Every token of the state, and the pending one.
    pub fn history(&self) -> &[Token] {
        self.now.index.tokens()
    }

    /// What drafts were worth and what they cost so far.
    pub fn policy(&self) -> &Policy {
        &self.now.policy
    }

    /// Readies the n-gram lookup for a state that is being restored: [`Decoder::restore`] with the same `history` follows.
    pub fn look_up_in(&mut self, history: &[Token]) {
        self.now.index.sync(history);
    }

    /// The conversation is now `history`, all of it in the state; `end` is the saved state it was restored from.
    ///
    /// # Errors
    /// The device.
    pub fn restore(&mut self, b: &mut B, history: &[Token], end: Option<&CheckpointImage>) -> Result<()> {
        (self.now.generation, self.now.behind) = (None, None);
        self.now.index.sync(history);
        let tensors = end.map_or(&[][..], |e| e.tensors.as_slice());
        if let Some(head) = &mut self.head {
            head.restore(b, tensors, history.len())?;
        }
        let saved = tensors.iter().find(|t| t.name == CALIBRATION);
        if let Some(calibration) = saved.and_then(|t| serde_json::from_slice(&t.data).ok()) {
            self.now.policy.set_calibration(calibration);
        }
        Ok(())
    }

    /// Tensors to be kept with an end state: the draft window and what drafts were worth. Waits for the device.
    ///
    /// # Errors
    /// The device.
    pub fn export(&mut self, b: &mut B, model: &Model<B>) -> Result<Vec<ImageTensor>> {
        let mut tensors = match &mut self.head {
            Some(head) => head.export(b, &Tables::from(model), self.now.index.tokens())?,
            None => Vec::new(),
        };
        let json = serde_json::to_vec(self.now.policy.calibration()).unwrap_or_default();
        tensors.push(ImageTensor {
            name: CALIBRATION.into(),
            dtype: Dtype::U8,
            shape: vec![json.len()],
            data: Arc::new(json),
        });
        Ok(tensors)
    }

    /// Takes in the chunk that `live` has just prefilled and advanced; `following` given tokens come after it. A token that
    /// was still pending before is forgotten: if it belongs to the text it is among the given ones.
    ///
    /// # Errors
    /// The device, or a chunk that `live` has not read.
    pub fn read(
        &mut self,
        b: &mut B,
        model: &Model<B>,
        live: &Live<B>,
        chunk: &[Token],
        following: usize,
    ) -> Result<()> {
        (self.now.generation, self.now.behind) = (None, None);
        let start = live.position().checked_sub(chunk.len()).filter(|s| *s <= self.now.index.tokens().len());
        let Some(start) = start else {
            return Err(DecodeError::Order("the chunk is not the end of the state"));
        };
        self.now.index.truncate(start);
        self.now.index.extend(chunk);
        if let (Some(head), Some(aux_hidden)) = (&mut self.head, live.aux_hidden()) {
            head.read(b, &Tables::from(model), aux_hidden, start, chunk.len(), self.now.index.tokens(), following)?;
        }
        Ok(())
    }

    /// Keeps the top logits behind what was just read, for a generation that begins later, or in a fork. Waits.
    ///
    /// # Errors
    /// The device, or the last pass of `live` read nothing.
    pub fn keep_last(&mut self, b: &mut B, model: &Model<B>, live: &mut Live<B>) -> Result<()> {
        self.now.behind = Some(live.prefill_logits(b, model)?);
        Ok(())
    }

    /// Starts to generate: draws the first token from the last prefilled row, or goes on from a pending token, which is not
    /// reported again.
    ///
    /// # Errors
    /// The device, or neither a prefill nor a pending token to go on from.
    pub fn begin(&mut self, b: &mut B, model: &Model<B>, live: &mut Live<B>, wish: &Generate) -> Result<Round> {
        let sampler = Sampler::new(wish.sampling, self.now.index.tokens());
        let generation = Generation {
            sampler,
            stop: wish.stop.clone(),
            mode: wish.spec,
            remaining: wish.max_tokens,
            steer: wish.steering.as_ref().map(|s| (s.0)()),
            constraint: wish.constraint.as_ref().map(|c| (c.0)()),
            likely: wish.likely,
            each_token: wish.look.each_token,
            thoughts_until: wish.look.thoughts_until,
            looked: [0, 0],
        };
        live.reset_mass(b)?;
        self.now.policy.begin();
        (self.now.stats, self.now.emitted) = (SpecStats::default(), 0);
        let (position, known) = (live.position(), self.now.index.tokens().len());
        if wish.max_tokens == 0 {
            return Ok(Round { ended: Some(Ended::Length), ..Round::default() });
        }
        let generation = self.now.generation.insert(generation);
        if known == position + 1 {
            return Ok(Round::default());
        }
        if known != position || position == 0 {
            return Err(DecodeError::Order("nothing to generate from: the history is not the state's"));
        }
        let row = match self.now.behind.take() {
            Some(row) => row,
            None => live.prefill_logits(b, model)?,
        };
        finite(&row, position)?;
        let token = generation.draw(&row, position as u64, &[]);
        let Some(token) = token else {
            return Err(DecodeError::Order("the model made no top logits"));
        };
        let Some((token, last)) = generation.steered(token) else {
            return Ok(Round { ended: Some(Ended::Stop), ..Round::default() });
        };
        generation.thoughts_until = generation.thoughts_until.filter(|end| *end != token);
        let likely = generation.likely(&row, token).into_iter().collect();
        let complete = self.report(&[token]);
        let ended = if last { Some(Ended::Repeats) } else { complete };
        Ok(Round { tokens: vec![token], ended, looked: Vec::new(), likely })
    }

    /// Adds tokens to the text; says whether the generation is complete.
    fn report(&mut self, tokens: &[Token]) -> Option<Ended> {
        self.now.index.extend(tokens);
        let generation = self.now.generation.as_mut()?;
        tokens.iter().for_each(|&t| generation.sampler.accept(t));
        generation.remaining = generation.remaining.saturating_sub(tokens.len() as u64);
        (generation.remaining == 0).then_some(Ended::Length)
    }

    /// One pass over the weights: at least one token further.
    ///
    /// # Errors
    /// The device, or no generation under way.
    pub fn round(&mut self, b: &mut B, model: &Model<B>, live: &mut Live<B>) -> Result<Round> {
        let proposal = match self.propose(b, model, live, MAX_VERIFY_ROWS, Pace::Alone)? {
            Proposed::Over(round) => return Ok(round),
            Proposed::Rows(proposal) => proposal,
        };
        live.verify(b, model, proposal.rows())?;
        let top_logits = live.top_logits(b, proposal.rows().len())?;
        self.settle(b, model, live, *proposal, &top_logits, Pace::Alone)
    }

    /// The first half of a round: the rows that it wants verified, at most `most`.
    ///
    /// # Errors
    /// The device, or no generation under way.
    pub fn propose(
        &mut self,
        b: &mut B,
        model: &Model<B>,
        live: &Live<B>,
        most: usize,
        pace: Pace,
    ) -> Result<Proposed> {
        let began = Instant::now();
        let position = live.position();
        let Some(generation) = &self.now.generation else {
            return Err(DecodeError::Order("no generation is under way"));
        };
        let Some(&pending) = self.now.index.tokens().get(position) else {
            return Err(DecodeError::Order("no token is pending"));
        };
        let Some(room) = live.limit().checked_sub(position + 1) else {
            return Ok(Proposed::Over(Round { ended: Some(Ended::Context), ..Round::default() }));
        };
        let wanted = usize::try_from(generation.remaining.saturating_sub(1)).unwrap_or(usize::MAX);
        let room = room.min(wanted).min(MAX_DEPTH).min(most.saturating_sub(1));

        let lookup = match (generation.mode, &mut self.now.finder) {
            (SpecMode::Off, _) => None,
            (_, Some(finder)) => finder(self.now.index.tokens(), room),
            (_, None) => self.now.index.lookup(room, 0),
        };
        // The head drafts for one after the other, while a row of the pass costs next to nothing: beside others only who insists
        // on drafts has them from it.
        let heads = pace == Pace::Alone || generation.mode != SpecMode::Auto;
        let plan = self.now.policy.plan(Offer {
            mode: generation.mode,
            context: position,
            head: heads && self.head.as_ref().is_some_and(|h| h.ready(position)),
            ngram: lookup.as_ref(),
            room,
        });
        let drafts = match plan.source {
            Source::Plain => Drafts::default(),
            Source::Ngram => {
                let found = lookup.iter().flat_map(|l| &l.tokens).take(plan.depth);
                let tokens = found.take_while(|t| !generation.stop.contains(t)).copied().collect();
                Drafts { tokens, ..Drafts::default() }
            }
            Source::Head => self.draft(b, model, &plan, position)?,
        };
        let mut rows = vec![pending];
        rows.extend(&drafts.tokens);
        Ok(Proposed::Rows(Box::new(Proposal { rows, drafts, plan, lookup, position, began })))
    }

    /// The second half: draws from the verified rows, and advances `live` by what is accepted.
    ///
    /// # Errors
    /// The device, or no generation under way.
    pub fn settle(
        &mut self,
        b: &mut B,
        model: &Model<B>,
        live: &mut Live<B>,
        proposal: Proposal,
        top_logits: &[TopLogits],
        pace: Pace,
    ) -> Result<Round> {
        let Proposal { drafts, plan, lookup, position, began, .. } = proposal;
        let Some(generation) = &mut self.now.generation else {
            return Err(DecodeError::Order("no generation is under way"));
        };
        let Matched { tokens, accepted, ended: matched, likely } =
            draw_and_match(generation, top_logits, &drafts.tokens, position + 1)?;
        if tokens.is_empty() && matched.is_none() {
            return Err(DecodeError::Order("the model made no top logits"));
        }
        let looked = generation.look(b, model, live, &tokens, accepted + 1)?;
        let first = live.first_row();
        live.advance(b, accepted + 1)?;
        if let (Some(head), Some(aux_hidden)) = (&mut self.head, live.aux_hidden()) {
            let rows = first..first + accepted + 1;
            head.keep(b, &Tables::from(model), aux_hidden, rows, position, self.now.index.tokens())?;
        }
        let complete = self.report(&tokens);
        let ended = matched.or(complete);

        let outcome = Outcome {
            context: position,
            confidence: &drafts.confidence,
            drafted: drafts.tokens.len(),
            accepted,
            extend_s: drafts.extend_s,
            steps_s: drafts.steps_s,
            steps: drafts.steps,
            verify_s: began.elapsed().as_secs_f64() - drafts.extend_s - drafts.steps_s,
        };
        match pace {
            Pace::Alone if !b.rows_in_flight() => {
                self.now.policy.observe(plan.source, &outcome, lookup.as_ref(), &tokens);
            }
            Pace::Alone => {}
            Pace::Shared => self.now.policy.learn(plan.source, &outcome, lookup.as_ref(), &tokens),
        }
        self.count(plan.source, outcome.drafted, accepted, tokens.len());
        Ok(Round { tokens, ended, looked, likely })
    }

    /// Where the rows of this generation looked so far. Waits for the device.
    ///
    /// # Errors
    /// The device.
    pub fn looked_at(&self, b: &mut B, model: &Model<B>, live: &mut Live<B>) -> Result<LookedAt> {
        let [thoughts, answer] = self.now.generation.as_ref().map_or([0, 0], |g| g.looked);
        let spec = &model.spec().sparse;
        Ok(LookedAt {
            thoughts: look::shares(&live.mass(b, MassOf::Thoughts)?, thoughts, spec),
            answer: look::shares(&live.mass(b, MassOf::Answer)?, answer, spec),
        })
    }

    /// A chain of drafts from the head, as long as the policy expects the next one to pay.
    fn draft(&mut self, b: &mut B, model: &Model<B>, plan: &Plan, position: usize) -> Result<Drafts> {
        let (Some(head), Some(generation)) = (&mut self.head, &self.now.generation) else {
            return Ok(Drafts::default());
        };
        let tables = Tables::from(model);
        let mut drafts = Drafts::default();
        let mut at = Instant::now();
        let mut row = head.extend(b, &tables, self.now.index.tokens())?;
        drafts.extend_s = lap(&mut at);
        let mut survival = 1.0;
        loop {
            let proposed =
                generation.sampler.propose(&row, (position + 1 + drafts.tokens.len()) as u64, &drafts.tokens);
            // The row behind a draft that ends the turn would be verified for nothing.
            let Some(draft) = proposed.filter(|d| !generation.stop.contains(&d.token)) else {
                break;
            };
            let depth = drafts.tokens.len() + 1;
            drafts.confidence.push(draft.confidence);
            survival = self.now.policy.survival(depth, survival, draft.confidence);
            if !self.now.policy.keeps(plan, depth, survival, position) {
                break;
            }
            drafts.tokens.push(draft.token);
            if !self.now.policy.goes_on(plan, depth, survival, position) {
                break;
            }
            row = head.step(b, &tables, draft.token)?;
            drafts.steps += 1;
            drafts.steps_s += lap(&mut at);
        }
        Ok(drafts)
    }

    fn count(&mut self, source: Source, drafted: usize, accepted: usize, tokens: usize) {
        let s = &mut self.now.stats;
        s.rounds += 1;
        s.drafted += drafted as u64;
        s.accepted += accepted as u64;
        match (drafted, source) {
            (0, _) | (_, Source::Plain) => s.plain_rounds += 1,
            (_, Source::Head) => s.eagle_rounds += 1,
            (_, Source::Ngram) => s.ngram_rounds += 1,
        }
        if s.per_position.len() < drafted {
            s.per_position.resize(drafted, (0, 0));
        }
        for (j, (tried, right)) in s.per_position.iter_mut().take(drafted).enumerate() {
            *tried += 1;
            *right += u64::from(j < accepted);
        }
        self.now.emitted += tokens as u64;
        s.mean_accept_length = self.now.emitted as f64 / s.rounds as f64;
        s.time_vs_plain = self.now.policy.time_vs_plain();
    }

    /// Counters since [`Decoder::begin`].
    pub fn stats(&self) -> &SpecStats {
        &self.now.stats
    }
}

/// What verified rows say about drafts.
#[derive(Clone, Debug, Default, PartialEq)]
struct Matched {
    /// Drawn tokens, in order: the accepted drafts and one more, unless it ends the turn.
    tokens: Vec<Token>,
    /// Drafts that equal the draw.
    accepted: usize,
    /// [`Ended::Stop`]: a token that ends the turn was drawn behind `tokens`. [`Ended::Repeats`]: the last one is the last.
    ended: Option<Ended>,
    /// How likely each of them was, if that is told.
    likely: Vec<Likely>,
}

/// Whether a row's best logits and their sum are numbers. `position` is that of the token to be drawn.
fn finite(row: &TopLogits, position: usize) -> Result<()> {
    // The sum runs over the whole vocabulary: one value that is no number shows in it.
    let whole = row.log_sum_exp.is_finite() && row.logits.first().is_none_or(|z| z.is_finite());
    if whole { Ok(()) } else { Err(DecodeError::NotFinite { position }) }
}

/// Draws a token from every row in turn for as long as the draws equal the drafts (docs/speculative.md §6.2). Row i is
/// behind the first i drafts and draws output position `position + i`. What is drawn never depends on a draft.
fn draw_and_match(
    generation: &mut Generation,
    rows: &[TopLogits],
    drafts: &[Token],
    position: usize,
) -> Result<Matched> {
    let mut matched = Matched::default();
    for (i, row) in rows.iter().enumerate() {
        finite(row, position + i)?;
        let path = drafts.get(..i).unwrap_or_default();
        let Some(token) = generation.draw(row, (position + i) as u64, path) else {
            break;
        };
        // In order: what would follow a stop must not enter text or state.
        let Some((token, last)) = generation.steered(token) else {
            matched.ended = Some(Ended::Stop);
            break;
        };
        matched.likely.extend(generation.likely(row, token));
        matched.tokens.push(token);
        if last {
            matched.ended = Some(Ended::Repeats);
            break;
        }
        if drafts.get(i) != Some(&token) {
            break;
        }
        matched.accepted += 1;
    }
    Ok(matched)
}

/// Seconds since `at`, which moves to now.
fn lap(at: &mut Instant) -> f64 {
    let now = Instant::now();
    now.duration_since(std::mem::replace(at, now)).as_secs_f64()
}

#[cfg(test)]
mod tests;
