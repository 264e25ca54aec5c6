//! Whether a load fits and the user confirms it; removal of files from the plan.

use super::super::verb::Answer;
use super::super::{Attendance, Done, Plan, Rendered, RuntimeError, State, Verb, grouped};
use super::Item;
use crate::core::counted;
use crate::core::transcript::{Message, MessageId};
use crate::runtime::protocol::{FileProgress, FileState, LoadPlan, PlanFile};
use crate::text::TextError;

/// Places of a load's documents in a plan: tokens, ends, and which of them are in kept state.
pub(super) fn items(messages: &[Message], rendered: &Rendered, plan: &Plan) -> Done<Vec<Item>> {
    // End of each message of the plan, and whether kept state has it.
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
        let cut = rendered.cuts.iter().find(|cut| cut.message == m.id);
        let Some(((_, end, kept), cut)) = ends.iter().find(|(id, ..)| *id == m.id).zip(cut) else {
            let shown = rendered.cuts.len();
            return Err(
                TextError::Template(format!("it shows {shown} ends of turns, and not that of a document")).into()
            );
        };
        let state = if *kept { FileState::FromLibrary } else { FileState::Waiting };
        let file = FileProgress { name: name_of(m), tokens: end - start, state };
        items.push(Item { file, end: *end, text_end: cut.end, kept: *kept });
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
    /// Tokens to read, and tokens in the context after the load; `None` if the load is known not to fit.
    cost: Option<(u64, u64)>,
}

impl Offer {
    fn need(&self) -> u64 {
        self.plan.files.iter().map(|f| f.tokens).sum()
    }
}

impl State {
    pub(super) fn load_offer(&self, items: &[Item], read: &Plan) -> Offer {
        let need: u64 = items.iter().map(|i| i.file.tokens).sum();
        // A server keeps no state of documents.
        let here = self.engine.server().is_none();
        let file = |i: &Item| PlanFile { name: i.file.name.clone(), tokens: i.file.tokens, kept: i.kept && here };
        let plan = self.load_plan(items.iter().map(file).collect(), read.total().saturating_sub(need));
        Offer { plan, cost: Some((read.to_read(), read.total())) }
    }

    /// An offer of documents that do not fit and have no plan: files are counted one by one, each up to the limit.
    pub(super) fn offer_without_plan(&self, messages: &[Message]) -> Done<Offer> {
        let tokenizer = self.engine.tokenizer();
        let file = |m: &Message| {
            let tokens = match self.bounded(|halt| tokenizer.encode_plain_until(&m.text, halt)) {
                Ok(tokens) => tokens.len() as u64,
                Err(TextError::TooLong { most }) => most as u64 + 1,
                Err(e) => return Err(e.into()),
            };
            Ok(PlanFile { name: name_of(m), tokens, kept: false })
        };
        let files = match messages {
            // A single file that exceeds the empty context leaves no choice.
            [m] if self.here.tree.is_empty() => {
                let tokens = self.engine.info.context_limit + 1;
                vec![PlanFile { name: name_of(m), tokens, kept: false }]
            }
            many => many.iter().map(file).collect::<Done<_>>()?,
        };
        Ok(Offer { plan: self.load_plan(files, self.position()), cost: None })
    }

    fn load_plan(&self, files: Vec<PlanFile>, before: u64) -> LoadPlan {
        let free = self.engine.info.context_limit.saturating_sub(before);
        LoadPlan { files, free, reserve: self.reserve(), tokens_per_s: self.reading_speed }
    }

    fn load_too_long(&self, offer: &Offer, messages: &[Message]) -> RuntimeError {
        let (what, file) = match messages {
            [m] => (name_of(m), m.meta.document.as_ref().and_then(|d| d.path.as_deref())),
            many => (format!("A load of {} files", many.len()), None),
        };
        let (limit, need) = (self.engine.info.context_limit, offer.need());
        // Without a plan, the count ended at the limit.
        let known = offer.cost.is_some() || need <= limit;
        self.too_long(&what, known.then_some(need), limit.saturating_sub(offer.plan.free), file.or(Some("PATH")))
    }
}

impl Verb {
    /// The files to load, all or some; `None`: the user cancels. Asks about a load that is large or does not fit, unless
    /// its files were chosen with the totals in view. A single file that does not fit is refused at once.
    pub(super) async fn confirm_load(
        &mut self,
        offer: Offer,
        messages: &[Message],
        chosen: bool,
    ) -> Done<Option<Vec<usize>>> {
        let (files, free, reserve) = (offer.plan.files.len(), offer.plan.free, offer.plan.reserve);
        let fits = offer.cost.filter(|(_, total)| self.fits(total + reserve));
        let need = grouped(offer.need());
        let Some((to_read, total)) = fits else {
            let too_long = self.load_too_long(&offer, messages);
            if files == 1 || self.attendance == Attendance::Absent {
                return Err(too_long);
            }
            let left = grouped(free.saturating_sub(reserve));
            let text = format!("{files} files need {need} tokens; {left} are left. Leave some out.");
            return self.ask_plan(text, offer.plan, None).await.map(Some).ok_or(too_long);
        };
        let limits = &self.options.config.load;
        if chosen || to_read <= limits.confirm_tokens && files as u64 <= limits.confirm_files {
            return Ok(Some((0..files).collect()));
        }
        let kept = match offer.plan.files.iter().filter(|f| f.kept).count() {
            0 => String::new(),
            n => format!(" ({n} from library)"),
        };
        let text = format!(
            "{}, {need} tokens{kept}{}, leaves {}.",
            counted(files as u64, "file"),
            self.about(to_read),
            grouped(self.engine.info.context_limit.saturating_sub(total))
        );
        if files > 1 && self.attendance == Attendance::Present {
            return Ok(self.ask_plan(text, offer.plan, Some("load")).await);
        }
        Ok(self.confirm(text, "load").await.then(|| (0..files).collect()))
    }

    /// Shows the plan. `load` is the label for a load of all files, if that is possible.
    async fn ask_plan(&mut self, text: String, plan: LoadPlan, load: Option<&str>) -> Option<Vec<usize>> {
        let files = 0..plan.files.len();
        let choices = load.map(|label| ('\n', label)).into_iter().chain([('e', "choose files"), ('\x1b', "cancel")]);
        match self.put(text, &choices.collect::<Vec<_>>(), Some(plan)).await? {
            Answer::Key('\n') if load.is_some() => Some(files.collect()),
            Answer::Files(picked) => {
                Some(files.filter(|i| picked.contains(i)).collect()).filter(|f: &Vec<_>| !f.is_empty())
            }
            Answer::Key(_) => None,
        }
    }
}
