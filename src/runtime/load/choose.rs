//! Whether a load fits and the user confirms it; removal of files from the plan.

use super::super::verb::Answer;
use super::super::{Attendance, Choice, Done, Notice, Plan, Rendered, RuntimeError, State, Verb, grouped};
use super::Item;
use crate::core::counted;
use crate::core::sanitize::command_word;
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

pub(super) struct Offer {
    plan: LoadPlan,
    need: u64,
    /// Tokens to read, and tokens in the context after the load.
    to_read: u64,
    total: u64,
    too_long: String,
}

impl State {
    pub(super) fn load_offer(&self, messages: &[Message], items: &[Item], read: &Plan) -> Offer {
        let need: u64 = items.iter().map(|i| i.file.tokens).sum();
        let before = read.total().saturating_sub(need);
        let (free, reserve) = (self.here.meters.context_limit.saturating_sub(before), self.reserve());
        // A server keeps no state of documents.
        let here = self.engine.server().is_none();
        let file = |Item { file, kept, .. }: &Item| PlanFile {
            name: file.name.clone(),
            tokens: file.tokens,
            kept: *kept && here,
        };
        let files = items.iter().map(file).collect();
        let plan = LoadPlan { files, free, reserve, tokens_per_s: self.reading_speed };
        let (to_read, total) = (read.to_read(), read.total());
        let too_long = self.too_long(&plan, &grouped(need), messages);
        Offer { plan, need, to_read, total, too_long }
    }

    /// An offer of documents that are known not to fit and have no plan.
    pub(super) fn offer_without_plan(&self, messages: &[Message]) -> Done<Offer> {
        let limit = self.here.meters.context_limit;
        let (free, reserve) = (limit.saturating_sub(self.position()), self.reserve());
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
            // A single file leaves no choice.
            [m] => vec![PlanFile { name: name_of(m), tokens: limit + 1, kept: false }],
            many => many.iter().map(file).collect::<Done<_>>()?,
        };
        let plan = LoadPlan { files, free, reserve, tokens_per_s: self.reading_speed };
        let counted: u64 = plan.files.iter().map(|f| f.tokens).sum();
        // The template's own tokens alone may exceed the limit.
        let need = counted.max(limit + 1);
        let too_long = self.too_long(&plan, &format!("more than {}", grouped(need - 1)), messages);
        Ok(Offer { plan, need, to_read: need, total: need, too_long })
    }

    /// The error for a load that does not fit. One-shot runs show options of the command line.
    fn too_long(&self, plan: &LoadPlan, need: &str, messages: &[Message]) -> String {
        let (what, verb) = match plan.files.as_slice() {
            [one] => (one.name.clone(), "needs"),
            many => (counted(many.len() as u64, "file"), "need"),
        };
        let left = plan.free.saturating_sub(plan.reserve);
        let fresh = self.here.session.tree.is_empty();
        let mut options: Vec<String> = Vec::new();
        // Separates commands from the text around them.
        let between = match self.attendance {
            Attendance::Present => {
                let head = if left >= 1000 { left / 1000 * 1000 } else { left };
                let file = match messages {
                    [m] => m.meta.document.as_ref().and_then(|d| d.path.as_deref()),
                    _ => None,
                };
                let file = file.map_or_else(|| "PATH".to_owned(), command_word);
                options.push(format!("/load {file} --head {head}"));
                options.extend((!fresh).then(|| "/new then /load".to_owned()));
                " ; "
            }
            Attendance::Absent => {
                options.extend((!fresh).then(|| "a new session, without -r and -c".to_owned()));
                options.push("a larger --ctx, where memory allows".to_owned());
                "; "
            }
        };
        options.push("split it".to_owned());
        format!(
            "{what} {verb} {need} tokens; {} are left of {}. Nothing was loaded. Options: {}.",
            grouped(left),
            grouped(self.here.meters.context_limit),
            options.join(between)
        )
    }
}

impl Verb {
    /// Asks about a load that is large or does not fit, unless its files were chosen with the totals in view. A single
    /// file that does not fit is refused at once.
    pub(super) async fn confirm_load(&mut self, offer: Offer, chosen: bool) -> Done<Decision> {
        let Offer { plan: offer, need, to_read, total, too_long } = offer;
        let files = offer.files.len();
        if !self.fits(total + offer.reserve) {
            if files == 1 || self.attendance == Attendance::Absent {
                return Err(RuntimeError::TooLong(too_long));
            }
            let left = grouped(offer.free.saturating_sub(offer.reserve));
            let text = format!("{files} files need {} tokens; {left} are left. Leave some out.", grouped(need));
            return match self.ask_plan(text, offer, None).await {
                Decision::Cancel => Err(RuntimeError::TooLong(too_long)),
                decision @ (Decision::Load | Decision::Only(_)) => Ok(decision),
            };
        }
        let limits = &self.config.load;
        let small = to_read <= limits.confirm_tokens && files as u64 <= limits.confirm_files;
        if small || chosen {
            return Ok(Decision::Load);
        }
        let kept = match offer.files.iter().filter(|f| f.kept).count() {
            0 => String::new(),
            n => format!(" ({n} from library)"),
        };
        let text = format!(
            "{}, {} tokens{kept}{}, leaves {}.",
            counted(files as u64, "file"),
            grouped(need),
            self.about(to_read),
            grouped(self.here.meters.context_limit.saturating_sub(total))
        );
        if files > 1 && self.attendance == Attendance::Present {
            return Ok(self.ask_plan(text, offer, Some("load")).await);
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
                match picked.is_empty() {
                    true => Decision::Cancel,
                    false => Decision::Only(picked),
                }
            }
            Some(Answer::Key(_)) | None => Decision::Cancel,
        }
    }
}
