//! Whether a load fits and is wanted: the plan, and leaving files out of it.

use super::feed::Plan;
use super::load::Item;
use super::{Answer, Attendance, DeskError, Done, State, grouped};
use crate::protocol::desk::{Choice, LoadPlan, Notice, PlanFile};
use crate::transcript::{Message, MessageId};

/// How the files of a load came to be these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chosen {
    /// Named after `/load`: a large load is asked about.
    Named,
    /// Picked from the plan with its totals in view: not asked about again.
    FromList,
}

/// What is to become of a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Read all of it.
    Load,
    /// Read only these of its files.
    Only(Vec<usize>),
    /// Nothing.
    Cancel,
}

/// Leaves out the messages whose place is not in `files`; the rest stand below each other again.
pub(super) fn keep_only(messages: &mut Vec<Message>, parent: Option<MessageId>, files: &[usize]) {
    let mut parent = parent;
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

impl State {
    /// Asks about a load that is large or does not fit; a single file that does not fit is refused at once.
    pub(super) fn confirm_load(&mut self, items: &[Item], plan: &Plan, chosen: Chosen) -> Done<Decision> {
        let need: u64 = items.iter().map(|i| i.tokens).sum();
        let limit = self.meters.context_limit;
        let before = plan.total().saturating_sub(need);
        let offer = LoadPlan {
            files: items.iter().map(|i| PlanFile { name: i.name.clone(), tokens: i.tokens, kept: i.kept }).collect(),
            free: limit.saturating_sub(before),
            reserve: self.reserve(),
            tokens_per_s: self.meters.prefill_tokens_per_s,
        };
        if limit > 0 && plan.total() + offer.reserve > limit {
            let why = too_long(items, need, offer.free.saturating_sub(offer.reserve));
            if items.len() == 1 || self.attendance == Attendance::Absent {
                return Err(DeskError::TooLong(why));
            }
            let text = format!(
                "{} files need {} tokens; {} are left. Some have to stay out.",
                items.len(),
                grouped(need),
                grouped(offer.free.saturating_sub(offer.reserve))
            );
            return match self.ask_plan(text, offer, None) {
                Decision::Cancel => Err(DeskError::TooLong(why)),
                decision @ (Decision::Load | Decision::Only(_)) => Ok(decision),
            };
        }
        let read = plan.to_read();
        let small = read <= self.load_limits.confirm_tokens && items.len() <= self.load_limits.confirm_files;
        if small || chosen == Chosen::FromList {
            return Ok(Decision::Load);
        }
        let kept = match items.iter().filter(|i| i.kept).count() {
            0 => String::new(),
            n => format!(" ({n} from library)"),
        };
        let files = match items.len() {
            1 => "1 file".into(),
            n => format!("{n} files"),
        };
        let text = format!(
            "{files}, {} tokens{kept}{}, leaves {}.",
            grouped(need),
            self.about(read),
            grouped(limit.saturating_sub(plan.total()))
        );
        if items.len() > 1 && self.attendance == Attendance::Present {
            return Ok(self.ask_plan(text, offer, Some("load")));
        }
        Ok(match self.confirm(text, "load") {
            true => Decision::Load,
            false => Decision::Cancel,
        })
    }

    /// Shows the plan; `load` is the word for taking all of it, where that is possible.
    fn ask_plan(&mut self, text: String, plan: LoadPlan, load: Option<&str>) -> Decision {
        let choice = |key, label: &str| Choice { key, label: label.into() };
        let mut choices: Vec<Choice> = load.map(|l| choice('\n', l)).into_iter().collect();
        let (all, files) = (load.is_some(), plan.files.len());
        choices.push(choice('e', "choose files"));
        choices.push(choice('\x1b', "cancel"));
        let answer = self.answer_to(|id| Notice::Plan { id, text, choices, plan });
        match answer {
            Some(Answer::Key('\n')) if all => Decision::Load,
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

/// A load that does not fit: what would.
fn too_long(items: &[Item], need: u64, left: u64) -> String {
    let (what, verb, name) = match items {
        [one] => (one.name.clone(), "needs", one.name.as_str()),
        many => (format!("{} files", many.len()), "need", "PATH"),
    };
    let head = left / 1000 * 1000;
    format!(
        "{what} {verb} {} tokens; {} are left. Nothing was loaded. Options: /load {name} --head {head} ; /new then /load ; split it.",
        grouped(need),
        grouped(left)
    )
}
