//! Renders a conversation and plans how to make it the live state: which part is live, which is on disk, which has to
//! be read. Reads the live path and the store, and changes nothing.

use std::collections::HashSet;

use super::render::SMALL_REST;
use super::segments::{self, boundary};
use super::{Attendance, Done, Form, Path, Rendered, RuntimeError, State, Step, grouped};
use crate::core::sanitize::{command_word, shell_word};
use crate::core::transcript::{Message, MessageId, Role};
use crate::runtime::protocol::ThinkMode;
use crate::store::{Segment, SegmentId};
use crate::text::{Halt, TextError};

#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// Segments that need no reading.
    pub(super) base: Path,
    pub(super) found: Vec<(MessageId, SegmentId)>,
    pub(super) steps: Vec<Step>,
}

impl Plan {
    pub(super) fn to_read(&self) -> u64 {
        self.steps.iter().map(|s| s.prompt.len() as u64).sum()
    }

    pub(super) fn total(&self) -> u64 {
        self.base.position() + self.to_read()
    }
}

impl State {
    pub fn rendered(&self, path: &[&Message], form: Form<'_>) -> Done<Rendered> {
        self.rendering(path, form, self.here.settings.think)
    }

    pub fn rendering(&self, path: &[&Message], form: Form<'_>, think: ThinkMode) -> Done<Rendered> {
        if let Some(at) = path.iter().position(|m| m.meta.damaged) {
            return Err(RuntimeError::Damaged(self.what_is_damaged(at)));
        }
        Ok(self.bounded(|halt| self.engine.renderer.render(path, form, think, halt))?)
    }

    fn what_is_damaged(&self, at: usize) -> String {
        let path = self.here.tree.path();
        let after = path.get(at..).unwrap_or(&[]);
        let way = match after.first().map(|m| m.role) {
            Some(Role::System) => "/system TEXT sets the system text again".to_owned(),
            role => {
                let own = usize::from(role == Some(Role::Assistant));
                let count = after.iter().filter(|m| m.begins_exchange()).count() + own;
                format!("/undo {count} goes back to before it")
            }
        };
        let open = match self.attendance {
            Attendance::Present => String::new(),
            Attendance::Absent => format!("sala-chat -r {}, then ", shell_word(&self.here.name)),
        };
        format!("Message #{} is damaged: the conversation cannot continue after it. {open}{way}.", at + 1)
    }

    /// Whether the disk may hold more state for the text than the live path.
    pub fn may_be_deeper_on_disk(&self, unchanged: &Path) -> bool {
        unchanged.position() < self.here.slot.live.position()
            || self.here.slot.live.segments().is_empty()
            || self.is_short_of()
    }

    pub fn live_end(&self, message: MessageId) -> Option<&Segment> {
        let id = self.here.ends.get(&message)?;
        self.here.slot.live.segments().iter().find(|s| s.id == *id)
    }

    /// Whether the open branch has recorded segments beyond the live state, as after an undo.
    fn is_short_of(&self) -> bool {
        let path = self.here.tree.path();
        let newest = path.iter().rev().find(|m| self.here.ends.contains_key(&m.id));
        newest.is_some_and(|m| self.live_end(m.id).is_none())
    }

    /// Plans on top of a path with unchanged text: adds known segments, removes unusable ones.
    fn plan_from(&self, rendered: &Rendered, chain: Path, halt: &Halt<'_>) -> Done<Plan> {
        let mut chain = chain;
        let mut steps = self.steps(rendered, &chain, halt)?;
        // Segments before `steps`.
        let mut known = chain.segments().len();
        loop {
            // Without the last step if the model answers it: the answer is generated anew.
            for step in steps.iter().filter(|s| s.text_end < rendered.text.len() || s.message.is_some()) {
                let boundary = boundary(rendered, step.text_end);
                let fingerprint = &self.engine.info.fingerprint;
                let content = segments::content(fingerprint, &chain, &step.prompt, &[], boundary, step.kind);
                // The id covers tokens only; the next step begins where the stored text ends.
                let id = content.id();
                let stored = self.disk.store_of(&id).segment(&id)?;
                let Some(segment) = stored.filter(|s| s.content.boundary == content.boundary) else {
                    break;
                };
                chain.append(segment);
            }
            // An earlier read may have stopped inside the next step, or used other piece lengths. All such pieces are
            // taken before the rest is tokenised again.
            let before = chain.segments().len();
            while let Some(part) = self.disk.stopped_part(&chain, &self.engine.info.fingerprint, &rendered.text)?
                && part.content.start == chain.position()
            {
                chain.append(part);
            }
            if chain.segments().len() == before {
                break;
            }
            steps = self.steps(rendered, &chain, halt)?;
            known = chain.segments().len();
        }
        let base = self.usable(&chain)?;
        match base.segments().len().checked_sub(known) {
            Some(done) => drop(steps.drain(..done)),
            None => steps = self.steps(rendered, &base, halt)?,
        }
        let ending = |s: &Segment| {
            let end = usize::try_from(s.content.boundary.bytes).ok()?;
            rendered.cuts.iter().find(|c| c.end == end).map(|c| (c.message, s.id))
        };
        let found = base.segments().iter().filter_map(ending).collect();
        Ok(Plan { base, found, steps })
    }

    /// The deepest stored path of the open branch under a rendering; empty if none is deeper than `known`.
    fn stored_under(&self, text: &str, known: &Path) -> Done<Path> {
        let mut tried: HashSet<SegmentId> = HashSet::new();
        for message in self.here.tree.path().iter().rev() {
            let Some(id) = self.here.ends.get(&message.id).filter(|id| !tried.contains(*id)) else {
                continue;
            };
            if known.segments().iter().any(|s| s.id == *id) {
                // An id identifies a whole path, and earlier messages end earlier on it.
                break;
            }
            let path = self.disk.stored_path(id)?;
            let unchanged = path.unchanged(text);
            if !unchanged.segments().is_empty() {
                return Ok(unchanged);
            }
            // Paths that share this beginning differ at the same place.
            tried.extend(path.segments().iter().map(|s| s.id));
        }
        Ok(Path::default())
    }

    /// The longest prefix that can be made live: it is live already, or its checkpoint and all rows are on disk.
    fn usable(&self, path: &Path) -> Done<Path> {
        if self.engine.server().is_some() {
            // A server needs only the text.
            return Ok(path.clone());
        }
        let live = self.here.slot.live.segments().len();
        let from_live = if self.here.slot.live.common(path) == live { live } else { 0 };
        for n in (from_live + 1..=path.segments().len()).rev() {
            let Some(tip) = path.segments().get(n - 1) else {
                break;
            };
            // An unsaved segment is unknown to the store; an earlier one may be known.
            if let Some(plan) = self.disk.restorable(&tip.id)? {
                return Ok(path.prefix(plan.usable.max(from_live)));
            }
        }
        Ok(path.prefix(from_live))
    }

    /// Cuts the text after a path into segments to read. The model answers the last one, unless it ends a message.
    pub fn steps(&self, rendered: &Rendered, path: &Path, halt: &Halt<'_>) -> Done<Vec<Step>> {
        Ok(segments::steps(&self.engine.renderer, self.engine.piece, rendered, path, halt)?)
    }

    /// Whether the live state matches the rendering of the open branch up to the last few words.
    pub fn is_synced(&self, rendered: &Rendered) -> bool {
        let live = &self.here.slot.live;
        if rendered.text.is_empty() || live.segments().is_empty() {
            return rendered.text.is_empty() && live.segments().is_empty();
        }
        let whole = live.unchanged(&rendered.text).segments().len() == live.segments().len();
        let missing = rendered.text.len().saturating_sub(live.text_bytes());
        whole && missing <= SMALL_REST && !self.is_short_of()
    }

    /// The deepest usable path under a text, and the steps after it.
    pub fn plan(&self, rendered: &Rendered) -> Done<Plan> {
        let mut chain = self.here.slot.live.unchanged(&rendered.text);
        if self.may_be_deeper_on_disk(&chain) {
            let stored = self.stored_under(&rendered.text, &chain)?;
            if stored.text_bytes() > chain.text_bytes() {
                chain = stored;
            }
        }
        self.bounded(|halt| self.plan_from(rendered, chain, halt))
    }

    pub fn plan_answer(&self, rendered: &Rendered) -> Done<Plan> {
        let mut plan = self.plan(rendered)?;
        // The state may hold all of the text, as after an answer of one token; then its last part is read again.
        while plan.steps.is_empty() {
            let Some(shorter) = plan.base.segments().len().checked_sub(1) else {
                return Err(RuntimeError::Failed("internal error: there is nothing to answer to".into()));
            };
            let base = plan.base.prefix(shorter);
            plan = self.bounded(|halt| self.plan_from(rendered, base, halt))?;
        }
        Ok(plan)
    }

    /// Like [`State::plan`], but leaves the last few words to the next question.
    pub fn plan_past(&self, rendered: &Rendered) -> Done<Plan> {
        let mut plan = self.plan(rendered)?;
        if rendered.text.len().saturating_sub(plan.base.text_bytes()) <= SMALL_REST && !plan.base.segments().is_empty()
        {
            plan.steps.clear();
        }
        Ok(plan)
    }

    /// Runs `work` on a text of any length; it ends early at a stop or when the text exceeds the context.
    pub fn bounded<T>(&self, work: impl FnOnce(&Halt<'_>) -> T) -> T {
        let (inbox, on_screen) = (&self.inbox, self.here.is_in_front());
        let most = match self.firm_limit() {
            0 => usize::MAX,
            limit => usize::try_from(limit).unwrap_or(usize::MAX),
        };
        work(&Halt { stop: &|| inbox.wants_stop(on_screen), most })
    }

    pub fn count(&self, text: &str) -> Done<u64> {
        let tokenizer = self.engine.tokenizer();
        let counted = self.bounded(|halt| tokenizer.encode_plain_until(text, &Halt { most: usize::MAX, ..*halt }));
        Ok(counted?.len() as u64)
    }

    /// Tokens above which a text is refused; 0 if there is no limit. A server enforces its own.
    pub fn firm_limit(&self) -> u64 {
        if self.engine.server().is_some() { 0 } else { self.engine.info.context_limit }
    }

    pub fn fits(&self, tokens: u64) -> bool {
        let limit = self.firm_limit();
        limit == 0 || tokens <= limit
    }

    /// Refuses a plan that does not fit, before anything is read. `what` names the text in the error.
    pub fn fitting(&self, plan: Done<Plan>, what: &str) -> Done<Plan> {
        let plan = self.known_size(plan, what)?;
        if self.fits(plan.total() + self.reserve()) {
            return Ok(plan);
        }
        Err(self.too_long(what, Some(plan.to_read()), plan.base.position(), None))
    }

    /// The same for a text that exceeded the limit during tokenizing.
    pub fn known_size<T>(&self, done: Done<T>, what: &str) -> Done<T> {
        match done {
            Err(RuntimeError::Text(TextError::TooLong { .. })) => Err(self.too_long(what, None, 0, None)),
            done => done,
        }
    }

    /// The error for a text of `needed` tokens (`None`: more than the context holds) after `before` tokens. Of a file,
    /// its beginning can be loaded.
    pub fn too_long(&self, what: &str, needed: Option<u64>, before: u64, file: Option<&str>) -> RuntimeError {
        let (limit, reserve) = (self.engine.info.context_limit, self.reserve());
        let left = limit.saturating_sub(before + reserve);
        let fits_alone = needed.is_some_and(|needed| needed + reserve <= limit);
        let needed = needed.map_or_else(|| format!("more than {}", grouped(limit)), grouped);
        let (of, free) = (grouped(limit), format!("{} are kept free for the answer", grouped(reserve)));
        let room = match fits_alone {
            true => format!("; {} are left of {of} ({free})", grouped(left)),
            false => format!(" and is larger than the whole context ({of}, of which {free})"),
        };
        let head = if left >= 1000 { left / 1000 * 1000 } else { left };
        // `between` separates commands from the text around them.
        let (shorter, anew, between) = match self.attendance {
            Attendance::Present => {
                let part = file.filter(|_| left > 0).map(|file| format!("/load {} --head {head}", command_word(file)));
                (part, Some("/undo, /new, /compact").filter(|_| !self.here.tree.is_empty()), " ; ")
            }
            Attendance::Absent => {
                (None, Some("a new session (without -r and -c)").filter(|_| self.here.has_answers()), "; ")
            }
        };
        let shorter = shorter.unwrap_or_else(|| "a shorter text".to_owned());
        let anew = anew.filter(|_| fits_alone || file.is_none()).map(str::to_owned);
        let larger = "a larger --ctx or another model, where memory allows".to_owned();
        let options: Vec<String> = [Some(shorter), anew, Some(larger)].into_iter().flatten().collect();
        let options = options.join(between);
        RuntimeError::TooLong(format!("{what} needs {needed} tokens{room}. Nothing was read. Options: {options}."))
    }

    /// Tokens reserved for an answer: the configured number, at most a quarter of a small context.
    pub fn reserve(&self) -> u64 {
        self.options.config.model.reserve_answer.min(self.engine.info.context_limit / 4)
    }

    /// `, about 0:35`; empty if the reading speed is unknown.
    pub fn about(&self, tokens: u64) -> String {
        let speed = self.reading_speed;
        if speed <= 0.0 {
            return String::new();
        }
        let seconds = (tokens as f64 / speed).ceil() as u64;
        format!(", about {}:{:02}", seconds / 60, seconds % 60)
    }
}
