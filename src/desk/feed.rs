//! From a rendered conversation to a live state: what is there already, what is on disk, what has to be read.
//!
//! The one mechanism behind asking, loading, resuming, going back, forking and reading again. A rendered text with its
//! cuts goes in; the deepest usable segment path under it is made live; the rest is tokenised, cut into segments and
//! read, each one saved as it ends.

use std::collections::HashSet;
use std::time::Instant;

use super::ask::show_reading;
use super::jobs::Watch;
use super::link::JobEnd;
use super::path::Path;
use super::render::Rendered;
use super::{DeskError, Done, State, grouped};
use crate::protocol::desk::{Activity, Level};
use crate::protocol::engine::{Cancel, Ended, Generate, StateImage, Token};
use crate::session::{NewSegment, Segment, SegmentId, SegmentKind, TextBoundary};
use crate::settings::SaveStates;
use crate::text::Before;
use crate::transcript::MessageId;

/// Text at the end of an answer that is left for the next question to bring, in bytes: a token that was drawn last.
const SMALL_REST: usize = 256;

/// One segment to be read.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) given: Vec<Token>,
    /// Bytes of the rendered text at its end.
    pub(super) text_end: usize,
    pub(super) kind: SegmentKind,
    /// The message that is complete with it.
    pub(super) message: Option<MessageId>,
}

/// How a rendered text will become the live state.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// Segments that need not be read.
    pub(super) base: Path,
    /// Where those that end a message end.
    pub(super) found: Vec<(MessageId, SegmentId)>,
    /// What has to be.
    pub(super) steps: Vec<Step>,
}

impl Plan {
    /// Tokens to read.
    pub(super) fn to_read(&self) -> u64 {
        self.steps.iter().map(|s| s.given.len() as u64).sum()
    }

    /// Tokens in the context when all is read.
    pub(super) fn total(&self) -> u64 {
        self.base.position() + self.to_read()
    }
}

/// What making a state live took.
#[derive(Debug, Default)]
pub(super) struct Fed {
    /// Tokens that did not have to be read.
    pub(super) reused: u64,
    /// Tokens read.
    pub(super) read: u64,
    /// Whole time, milliseconds.
    pub(super) ms: f64,
    /// The last job, if one was run.
    pub(super) end: Option<JobEnd>,
}

/// Passes progress of one step on as progress of all.
struct Shifted<'a> {
    watch: &'a mut dyn Watch,
    before: u64,
    total: u64,
}

impl Watch for Shifted<'_> {
    fn reading(&mut self, desk: &mut State, done: u64, _total: u64, tokens_per_s: f64) {
        self.watch.reading(desk, self.before + done, self.total, tokens_per_s);
    }
    fn tokens(&mut self, desk: &mut State, tokens: &[Token], tokens_per_s: f64) {
        self.watch.tokens(desk, tokens, tokens_per_s);
    }
    fn tick(&mut self, desk: &mut State) {
        self.watch.tick(desk);
    }
}

impl State {
    /// Plans without doing anything but look at the store.
    pub(super) fn plan(&mut self, rendered: &Rendered) -> Done<Plan> {
        let mut chain = self.live.unchanged(&rendered.text);
        if chain.position() < self.live.position() || self.live.segments().is_empty() {
            // What was just handed to the writer may be what is wanted back.
            self.wait_for_states();
            let stored = self.stored_under(&rendered.text)?;
            if stored.text_bytes() > chain.text_bytes() {
                chain = stored;
            }
        }
        self.plan_from(rendered, chain)
    }

    /// Plans on top of a path whose text is unchanged: adds what is known behind it, leaves out what is not usable.
    pub(super) fn plan_from(&self, rendered: &Rendered, chain: Path) -> Done<Plan> {
        let mut chain = chain;
        let mut steps = self.steps(rendered, &chain)?;
        let known = chain.segments().len();
        // Read-only steps only: what the model answers to is asked each time.
        for step in steps.iter().filter(|s| s.text_end < rendered.text.len() || s.message.is_some()) {
            let boundary = self.boundary(rendered, step.text_end);
            let content = self.content(&chain, &step.given, &[], boundary, step.kind);
            let Some(segment) = self.stored_segment(&content.id())? else {
                break;
            };
            chain.append(segment);
        }
        let base = self.usable(&chain)?;
        match base.segments().len().checked_sub(known) {
            Some(done) => drop(steps.drain(..done)),
            None => steps = self.steps(rendered, &base)?,
        }
        let ending = |s: &Segment| {
            let end = usize::try_from(s.content.boundary.bytes).ok()?;
            rendered.cuts.iter().find(|c| c.end == end).map(|c| (c.message, s.id))
        };
        let found = base.segments().iter().filter_map(ending).collect();
        Ok(Plan { base, found, steps })
    }

    /// The deepest stored path of the open branch under a rendering.
    fn stored_under(&self, text: &str) -> Done<Path> {
        let mut tried: HashSet<SegmentId> = HashSet::new();
        for message in self.open.conversation.path().iter().rev() {
            let Some(id) = self.open.ends.get(&message.id).filter(|id| !tried.contains(*id)) else {
                continue;
            };
            let path = self.stored_path(id)?;
            let unchanged = path.unchanged(text);
            if !unchanged.segments().is_empty() {
                return Ok(unchanged);
            }
            // What begins like this path differs at the same place.
            tried.extend(path.segments().iter().map(|s| s.id));
        }
        Ok(Path::default())
    }

    /// The longest prefix that can be made live: it is live already, or its end state and all rows are on disk.
    fn usable(&self, path: &Path) -> Done<Path> {
        let live = self.live.segments().len();
        let from_live = if self.live.common(path) == live { live } else { 0 };
        for n in (from_live + 1..=path.segments().len()).rev() {
            let Some(tip) = path.prefix(n).head() else {
                break;
            };
            // Unknown to the store: never saved. What comes before it may be.
            if let Some(plan) = self.restorable(&tip)? {
                return Ok(path.prefix(plan.usable.max(from_live)));
            }
        }
        Ok(path.prefix(from_live))
    }

    /// Cuts the text behind a path into segments to be read. The last one is what the model answers to, unless a message
    /// ends with it.
    fn steps(&self, rendered: &Rendered, path: &Path) -> Done<Vec<Step>> {
        let tokenizer = &self.renderer.model().tokenizer;
        let from = path.text_bytes();
        let mut steps = Vec::new();
        let mut at = from;
        let mut before = tokenizer.before_next(path.last_tokens(), Before::Edge);
        let ends = rendered.cuts.iter().filter(|c| c.end > from).map(|c| (c.end, c.kind, Some(c.message)));
        let last = (rendered.text.len(), SegmentKind::Turn, None);
        for (end, kind, message) in ends.chain([last]) {
            let Some(slice) = rendered.text.get(at..end).filter(|s| !s.is_empty()) else {
                continue;
            };
            let tokens = match path.position() {
                0 if at == 0 => tokenizer.encode_prompt(slice)?,
                _ => tokenizer.encode_behind(slice, before)?,
            };
            self.cut(slice, at, &tokens, before, &mut steps);
            if let Some(step) = steps.last_mut() {
                (step.kind, step.message) = (kind, message);
            }
            before = tokenizer.before_next(&tokens, before);
            at = end;
        }
        Ok(steps)
    }

    /// Cuts one slice into pieces a stopped `/load` can lose, where the text allows it.
    fn cut(&self, slice: &str, at: usize, tokens: &[Token], before: Before, steps: &mut Vec<Step>) {
        let mut start = 0;
        for (end, bytes) in self.renderer.piece_ends(slice, tokens, before, self.piece) {
            let given = tokens.get(start..end).unwrap_or(&[]).to_vec();
            steps.push(Step { given, text_end: at + bytes, kind: SegmentKind::DocumentPart, message: None });
            start = end;
        }
        let rest = tokens.get(start..).unwrap_or(&[]).to_vec();
        steps.push(Step { given: rest, text_end: at + slice.len(), kind: SegmentKind::Turn, message: None });
    }

    /// Refuses a plan that does not fit, before anything was read. `what` is what would be read.
    pub(super) fn check_room(&self, plan: &Plan, what: &str) -> Done {
        let limit = self.meters.context_limit;
        let reserve = self.reserve();
        let need = plan.total() + reserve;
        if limit == 0 || need <= limit {
            return Ok(());
        }
        let left = limit.saturating_sub(plan.base.position() + reserve);
        Err(DeskError::TooLong(format!(
            "{what} needs {} tokens; {} are left of {} ({} are kept free for the answer). Nothing was read. Options: /undo, /new, \
             /compact, or a shorter text (/load --head N).",
            grouped(plan.to_read()),
            grouped(left),
            grouped(limit),
            grouped(reserve)
        )))
    }

    /// Tokens kept free for an answer: as configured, at most a quarter of a small context.
    pub(super) fn reserve(&self) -> u64 {
        self.reserve_answer.min(self.meters.context_limit / 4)
    }

    /// Carries a plan out. Fails with [`DeskError::RowsLost`] where kept state turns out damaged on its way: the caller may plan
    /// anew. With `generate`, the last step is answered: `answer` is the message the answer ends, and
    /// `keep` false leaves no trace of that last step in the store (an aside).
    pub(super) fn carry_out(
        &mut self,
        plan: Plan,
        rendered: &Rendered,
        generate: Option<(Generate, Option<MessageId>)>,
        watch: &mut dyn Watch,
    ) -> Done<Fed> {
        let started = Instant::now();
        let plan = self.go_live(plan, rendered)?;
        let mut fed = Fed { reused: plan.base.position(), ..Fed::default() };
        for (message, segment) in &plan.found {
            self.point(*message, *segment);
        }
        let total = plan.to_read();
        let last = plan.steps.len().saturating_sub(1);
        for (i, step) in plan.steps.into_iter().enumerate() {
            let answer = generate.as_ref().filter(|_| i == last);
            let save = answer.is_none_or(|(_, message)| message.is_some());
            let export = save && self.save_state != SaveStates::Never;
            let given = step.given.clone();
            let mut shifted = Shifted { watch: &mut *watch, before: fed.read, total };
            let ran = self.run_job(given, answer.map(|(g, _)| g.clone()), export, &mut shifted);
            let mut end = match ran {
                Ok(end) => end,
                Err(e) => {
                    let e = self.set_aside(e)?;
                    // Whoever does not plan anew is asked whether to read it again.
                    self.resume_pending |= matches!(e, DeskError::RowsLost(_));
                    return Err(e);
                }
            };
            fed.read += end.given_in_state as u64;
            let image = end.image.take();
            let message = if answer.is_some() { answer.and_then(|(_, m)| *m) } else { step.message };
            let stopped = end.ended == Ended::Cancelled;
            self.absorb(rendered, &step, &end, message, if save { Keep::Saved(image) } else { Keep::Unsaved });
            fed.end = Some(end);
            if stopped {
                break;
            }
        }
        fed.ms = started.elapsed().as_secs_f64() * 1000.0;
        Ok(fed)
    }

    /// Makes the plan's base live. State that turns out to be unusable is left out and planned around.
    pub(super) fn go_live(&mut self, plan: Plan, rendered: &Rendered) -> Done<Plan> {
        let mut plan = plan;
        loop {
            let common = self.live.common(&plan.base);
            if common == self.live.segments().len() && common == plan.base.segments().len() {
                return Ok(plan);
            }
            self.activity(Activity::Restoring { share: None, tokens: plan.base.position() });
            let base = plan.base.clone();
            if self.put_back(&base, common)? {
                return Ok(plan);
            }
            plan = self.plan(rendered)?;
        }
    }

    /// Records what a job did in the live path and hands it to the writer.
    fn absorb(&mut self, rendered: &Rendered, step: &Step, end: &JobEnd, message: Option<MessageId>, keep: Keep) {
        let given = step.given.get(..end.given_in_state).unwrap_or(&step.given);
        let generated = end.generated.get(..end.generated_in_state).unwrap_or(&end.generated);
        if given.is_empty() && generated.is_empty() {
            return;
        }
        let tokenizer = &self.renderer.model().tokenizer;
        let before = tokenizer.before_next(self.live.last_tokens(), Before::Edge);
        let boundary = if given.len() < step.given.len() {
            self.renderer.boundary_after(rendered, self.live.text_bytes(), given, before)
        } else if generated.is_empty() {
            self.boundary(rendered, step.text_end)
        } else {
            self.renderer.boundary_with(rendered, step.text_end, generated, tokenizer.before_next(given, before))
        };
        let kind = if given.len() < step.given.len() { SegmentKind::DocumentPart } else { step.kind };
        let content = self.content(&self.live, given, generated, boundary, kind);
        self.live.push(content.clone());
        self.meters.context_used = self.live.position();
        if let Keep::Saved(image) = keep {
            let complete = given.len() == step.given.len();
            self.save_segment(content, image, message.filter(|_| complete));
        }
    }

    fn content(
        &self,
        path: &Path,
        given: &[Token],
        generated: &[Token],
        boundary: TextBoundary,
        kind: SegmentKind,
    ) -> NewSegment {
        NewSegment {
            fingerprint: self.meters.model.fingerprint.clone(),
            parent: path.head(),
            start: path.position(),
            prompt: given.to_vec(),
            completion: generated.to_vec(),
            boundary,
            kind,
        }
    }

    fn boundary(&self, rendered: &Rendered, end: usize) -> TextBoundary {
        TextBoundary::of(rendered.text.get(..end).unwrap_or(&rendered.text))
    }

    /// Makes the state at the head live, as the next question will find it; reads what is missing.
    pub(super) fn settle(&mut self) -> Done<Fed> {
        self.need_engine()?;
        let rendered = self.past()?;
        let started = Instant::now();
        if self.is_settled(&rendered) {
            return Ok(Fed { reused: self.live.position(), ..Fed::default() });
        }
        let plan = self.plan_past(&rendered)?;
        self.check_room(&plan, "This conversation")?;
        if plan.to_read() > 0 {
            self.say_reading_again(&plan);
        }
        self.carry_out(plan, &rendered, None, &mut PromptReading::new(started))
    }

    fn say_reading_again(&mut self, plan: &Plan) {
        let (read, total) = (grouped(plan.to_read()), grouped(plan.total()));
        let about = self.about(plan.to_read());
        self.note(Level::Info, format!("Reading {read} of {total} tokens again{about}."));
    }

    /// Says what was lost, and what reading it again with the work at hand takes.
    pub(super) fn read_lost_again(&mut self, lost: &DeskError, plan: &Plan) {
        self.resume_pending = false;
        self.note(Level::Warn, lost.to_string());
        self.say_reading_again(plan);
    }

    /// After an answer: where the template drops thoughts, the answer is read again without them, so that the next
    /// question finds it done.
    pub(super) fn settle_quietly(&mut self) -> Done {
        let rendered = self.past()?;
        if self.is_settled(&rendered) {
            return Ok(());
        }
        self.cancel = Cancel::default();
        let plan = self.plan(&rendered)?;
        if plan.total() > self.meters.context_limit {
            return Ok(());
        }
        if !self.said_thoughts_leave {
            self.said_thoughts_leave = true;
            let text =
                "This model's template drops earlier thoughts: answers are read again without them, behind the scenes.";
            self.note(Level::Info, text);
        }
        let started = Instant::now();
        self.carry_out(plan, &rendered, None, &mut PromptReading::new(started))?;
        self.report_meters();
        Ok(())
    }

    fn past(&self) -> Done<Rendered> {
        Ok(self.renderer.past(&self.open.conversation.path(), self.open.settings.think)?)
    }

    /// The live state is under the rendering, and all but its last few words are in it.
    fn is_settled(&self, rendered: &Rendered) -> bool {
        let whole = self.live.unchanged(&rendered.text).segments().len() == self.live.segments().len();
        let missing = rendered.text.len().saturating_sub(self.live.text_bytes());
        whole && missing <= SMALL_REST
    }

    /// As [`State::plan`], leaving the last few words for the next question to bring.
    pub(super) fn plan_past(&mut self, rendered: &Rendered) -> Done<Plan> {
        let mut plan = self.plan(rendered)?;
        if rendered.text.len().saturating_sub(plan.base.text_bytes()) <= SMALL_REST && !plan.base.segments().is_empty()
        {
            plan.steps.clear();
        }
        Ok(plan)
    }

    /// Goes back to a path that was live a moment ago.
    pub(super) fn return_to(&mut self, path: Path) -> Done {
        let common = self.live.common(&path);
        if common == self.live.segments().len() && common == path.segments().len() {
            return Ok(());
        }
        self.wait_for_states();
        self.cancel = Cancel::default();
        if self.put_back(&path, common)? {
            return Ok(());
        }
        self.settle().map(|_| ())
    }

    /// `, about 0:35`, when the reading speed is known.
    pub(super) fn about(&self, tokens: u64) -> String {
        let speed = self.meters.prefill_tokens_per_s;
        if speed <= 0.0 {
            return String::new();
        }
        let seconds = (tokens as f64 / speed).ceil() as u64;
        format!(", about {}:{:02}", seconds / 60, seconds % 60)
    }
}

/// Shows the progress of reading text that is no `/load`.
pub(super) struct PromptReading {
    started: Instant,
}

impl PromptReading {
    pub(super) fn new(started: Instant) -> PromptReading {
        PromptReading { started }
    }
}

impl Watch for PromptReading {
    fn reading(&mut self, desk: &mut State, done: u64, total: u64, tokens_per_s: f64) {
        show_reading(desk, self.started, done, total, tokens_per_s);
    }
}

/// Whether a segment goes to disk.
enum Keep {
    /// With its state, if the engine exported one.
    Saved(Option<StateImage>),
    /// No.
    Unsaved,
}
