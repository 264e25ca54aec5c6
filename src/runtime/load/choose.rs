//! Whether a load fits and the user confirms it; removal of files from the plan.

use super::super::verb::Answer;
use super::super::{Attendance, Choice, Done, Notice, Plan, Rendered, RuntimeError, State, Verb, grouped};
use super::Item;
use crate::core::counted;
use crate::core::transcript::{Message, MessageId};
use crate::runtime::protocol::{FileProgress, FileState, LoadPlan, PlanFile};
use crate::text::TextError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Load,
    Only(Vec<usize>),
    Cancel,
}

/// Places of a load's documents in a plan: tokens, ends, and which of them are in kept state.
pub(super) fn items(messages: &[Message], rendered: &Rendered, plan: &Plan) -> Done<Vec<Item>> {
    let mut ends: Vec<(MessageId, u64, bool)> = Vec::new();
    for (message, segment) in &plan.found {
        let end = plan.base.segments().iter().find(|s| s.id == *segment).map(|s| s.end_position());
        ends.extend(end.map(|e| (*message, e, true)));
    }
    let mut position = plan.base.position();
    for step in &plan.steps {
        position += step.prompt.len() as u64;
        ends.extend(step.message.map(|m| (m, position, false)));
    }
    let first = messages.first().map(|m| m.id);
    let mut start = ends.iter().take_while(|(m, ..)| Some(*m) != first).last().map_or(0, |(_, end, _)| *end);
    let mut items = Vec::with_capacity(messages.len());
    for m in messages {
        let Some((_, end, kept)) = ends.iter().find(|(id, ..)| *id == m.id) else {
            let shown = rendered.cuts.len();
            return Err(
                TextError::Template(format!("it shows {shown} ends of turns, and not that of a document")).into()
            );
        };
        let file = FileProgress { name: name_of(m), tokens: end - start, state: FileState::Waiting };
        items.push(Item { file, end: *end, kept: *kept });
        start = *end;
    }
    Ok(items)
}

/// Keeps the messages at the places `files` and links each to the one before.
pub(super) fn keep_only(messages: &mut Vec<Message>, files: &[usize]) {
    let mut parent = messages.first().and_then(|m| m.parent);
    let mut place = 0..;
    messages.retain_mut(|m| {
        let kept = place.next().is_some_and(|i| files.contains(&i));
        if kept {
            m.parent = parent;
            parent = Some(m.id);
        }
        kept
    });
}

fn name_of(document: &Message) -> String {
    document.meta.document.as_ref().map_or(String::new(), |d| d.name.clone())
}

/// A load that the user may have to confirm.
pub(super) struct Offer {
    plan: LoadPlan,
    need: u64,
    /// Tokens to read, and tokens in the context after the load; `None` if the load is known not to fit.
    cost: Option<(u64, u64)>,
}

impl State {
    pub(super) fn load_offer(&self, items: &[Item], read: &Plan) -> Offer {
        let need: u64 = items.iter().map(|i| i.file.tokens).sum();
        let before = read.total().saturating_sub(need);
        // A server keeps no state of documents.
        let here = self.engine.server().is_none();
        let file = |i: &Item| PlanFile { name: i.file.name.clone(), tokens: i.file.tokens, kept: i.kept && here };
        let plan = self.load_plan(items.iter().map(file).collect(), before);
        Offer { plan, need, cost: Some((read.to_read(), read.total())) }
    }

    /// An offer of documents that do not fit and have no plan: files are counted one by one, each up to the limit.
    pub(super) fn offer_without_plan(&self, messages: &[Message]) -> Done<Offer> {
        let limit = self.engine.info.context_limit;
        let tokenizer = self.engine.tokenizer();
        let file = |m: &Message| {
            let tokens = match self.bounded(|halt| tokenizer.encode_plain_until(&m.text, halt)) {
                Ok(tokens) => tokens.len() as u64,
                Err(TextError::TooLong { most }) => most as u64 + 1,
                Err(e) => return Err(e.into()),
            };
            Ok(PlanFile { name: name_of(m), tokens, kept: false })
        };
        let files: Vec<PlanFile> = match messages {
            // A single file that exceeds the empty context leaves no choice.
            [m] if self.here.tree.is_empty() => vec![PlanFile { name: name_of(m), tokens: limit + 1, kept: false }],
            many => many.iter().map(file).collect::<Done<_>>()?,
        };
        let counted: u64 = files.iter().map(|f| f.tokens).sum();
        // In an empty context, the template's own tokens alone may exceed the limit.
        let need = if self.here.tree.is_empty() { counted.max(limit + 1) } else { counted };
        Ok(Offer { plan: self.load_plan(files, self.position()), need, cost: None })
    }

    fn load_plan(&self, files: Vec<PlanFile>, before: u64) -> LoadPlan {
        let free = self.engine.info.context_limit.saturating_sub(before);
        LoadPlan { files, free, reserve: self.reserve(), tokens_per_s: self.reading_speed }
    }

    fn load_too_long(&self, Offer { plan, need, cost }: &Offer, messages: &[Message]) -> RuntimeError {
        let what = match plan.files.as_slice() {
            [one] => one.name.clone(),
            many => format!("A load of {} files", many.len()),
        };
        let file = match messages {
            [m] => m.meta.document.as_ref().and_then(|d| d.path.as_deref()),
            _ => None,
        };
        let limit = self.engine.info.context_limit;
        // Without a plan, the count ended at the limit.
        let known = cost.is_some() || *need <= limit;
        self.too_long(&what, known.then_some(*need), limit.saturating_sub(plan.free), file.or(Some("PATH")))
    }
}

impl Verb {
    /// Asks about a load that is large or does not fit, unless its files were chosen with the totals in view. A single
    /// file that does not fit is refused at once.
    pub(super) async fn confirm_load(&mut self, offer: Offer, messages: &[Message], chosen: bool) -> Done<Decision> {
        let (files, free, reserve) = (offer.plan.files.len(), offer.plan.free, offer.plan.reserve);
        let fits = offer.cost.filter(|(_, total)| self.fits(total + reserve));
        let Some((to_read, total)) = fits else {
            let too_long = self.load_too_long(&offer, messages);
            if files == 1 || self.attendance == Attendance::Absent {
                return Err(too_long);
            }
            let (need, left) = (grouped(offer.need), grouped(free.saturating_sub(reserve)));
            let text = format!("{files} files need {need} tokens; {left} are left. Leave some out.");
            return match self.ask_plan(text, offer.plan, None).await {
                Decision::Cancel => Err(too_long),
                decision @ (Decision::Load | Decision::Only(_)) => Ok(decision),
            };
        };
        let limits = &self.options.config.load;
        if chosen || to_read <= limits.confirm_tokens && files as u64 <= limits.confirm_files {
            return Ok(Decision::Load);
        }
        let kept = match offer.plan.files.iter().filter(|f| f.kept).count() {
            0 => String::new(),
            n => format!(" ({n} from library)"),
        };
        let text = format!(
            "{}, {} tokens{kept}{}, leaves {}.",
            counted(files as u64, "file"),
            grouped(offer.need),
            self.about(to_read),
            grouped(self.engine.info.context_limit.saturating_sub(total))
        );
        if files > 1 && self.attendance == Attendance::Present {
            return Ok(self.ask_plan(text, offer.plan, Some("load")).await);
        }
        Ok(if self.confirm(text, "load").await { Decision::Load } else { Decision::Cancel })
    }

    /// Shows the plan. `load` is the label for a load of all files, if that is possible.
    async fn ask_plan(&mut self, text: String, plan: LoadPlan, load: Option<&str>) -> Decision {
        let files = plan.files.len();
        let choices = load.map(|label| ('\n', label)).into_iter().chain([('e', "choose files"), ('\x1b', "cancel")]);
        let choices = Choice::all(&choices.collect::<Vec<_>>());
        match self.put(|id| Notice::Plan { id, text, choices, plan }).await {
            Some(Answer::Key('\n')) if load.is_some() => Decision::Load,
            Some(Answer::Files(picked)) => {
                let picked: Vec<usize> = (0..files).filter(|i| picked.contains(i)).collect();
                if picked.is_empty() { Decision::Cancel } else { Decision::Only(picked) }
            }
            Some(Answer::Key(_)) | None => Decision::Cancel,
        }
    }
}
