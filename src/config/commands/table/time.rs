//! Going back, branching, asking otherwise.

use super::super::Completes::Words;
use super::super::args::{Args, message_number};
use super::super::words::{BranchTarget, GotoTarget, Sibling};
use super::super::{Command, MOST_ANSWERS, Outcome, Request};
use super::{command, runtime};
use crate::config::settings::{Field, session};

pub(super) const ROWS: &[Command] = &[
    command("timeline", "", "tree of turns and checkpoints", |a| a.alone(Request::Timeline)),
    command("undo", "[N]", "take back N exchanges and restore the question", |a| runtime(Request::Undo(a.count()?)))
        .as_in("/undo 2"),
    command("redo", "[N]", "take back an undo", |a| runtime(Request::Redo(a.count()?))),
    command("regen", "[#N] [COUNT] [temp=T] [seed=S]", "answer again and keep the old answer", regen)
        .also(&["retry", "regenerate"])
        .options(&[
            ("#N", "the answer with this number instead of the last"),
            ("COUNT", "number of answers, 1 to 9"),
            ("temp=T", "with this temperature"),
            ("seed=S", "with this seed"),
        ])
        .as_in("/regen #8 3 temp=0.9"),
    command("edit", "[#N]", "edit a message; sending starts a new branch", |a| {
        runtime(Request::EditOpen(a.message()?))
    })
    .as_in("/edit #3"),
    command("continue", "[TEXT]", "continue a stopped answer", |a| runtime(Request::Continue(a.rest())))
        .options(&[("TEXT", "first words of the continuation")])
        .as_in("/continue Therefore"),
    command("fork", "[#N] [NAME]", "start a new session from here", fork)
        .options(&[("#N", "start after this exchange"), ("NAME", "of the new session")])
        .as_in("/fork #7 what-if"),
    command("branch", "[K|next|prev|NAME]", "switch to another branch, or list them", branch)
        .options(&[("K", "the branch with this number"), ("NAME", "a fork, or a mark")])
        .as_in("/branch next")
        .completes(Words(&["next", "prev"])),
    command("mark", "NAME", "name this point; its state is always kept", |a| runtime(Request::Mark(a.one("a name")?)))
        .as_in("/mark before-annex"),
    command("goto", "NAME", "go to a mark", |a| {
        runtime(Request::Goto(GotoTarget::Mark(a.one("the name of a mark; /timeline shows them")?)))
    })
    .as_in("/goto before-annex"),
    command("aside", "QUESTION", "ask without keeping question or answer", |a| {
        runtime(Request::Aside(a.text("a question")?))
    })
    .also(&["btw"])
    .as_in("/aside what was his name?"),
    command("when", "QUESTION", "from which line of the document on an answer holds", |a| {
        runtime(Request::When(a.text("a question")?))
    })
    .as_in("/when who did it?"),
    command("compact", "[--yes] [INSTRUCTION]", "new branch with a summary of this one; asks first", compact)
        .also(&["summarize"])
        .options(&[("--yes", "do not ask")])
        .as_in("/compact keep the dates"),
];

fn compact(a: &Args<'_>) -> Result<Outcome, String> {
    let yes = a.raw.split_whitespace().next() == Some("--yes");
    let instruction = a.raw.strip_prefix("--yes").filter(|_| yes).unwrap_or(a.raw).trim();
    runtime(Request::Compact { instruction: Some(instruction.to_owned()).filter(|text| !text.is_empty()), yes })
}

fn regen(a: &Args<'_>) -> Result<Outcome, String> {
    let (mut at, mut count, mut temperature, mut seed) = (None, 1, None, None);
    for word in a.words()? {
        if let Some(n) = message_number(word)? {
            at = Some(n);
        } else if let Some(t) = word.strip_prefix("temp=") {
            let (row, value) = session::parse("temperature", t)?;
            temperature = Some(f32::from_value(&value).ok_or_else(|| row.kind.range())?);
        } else if let Some(s) = word.strip_prefix("seed=") {
            seed = Some(s.parse().map_err(|_| format!("seed must be a whole number (got {s})"))?);
        } else {
            let number = word.parse().ok().filter(|n| (1..=MOST_ANSWERS).contains(n));
            count = number.ok_or(format!("COUNT must be 1 to {MOST_ANSWERS} (got {word})"))?;
        }
    }
    runtime(Request::Regen { at, count, temperature, seed })
}

fn fork(a: &Args<'_>) -> Result<Outcome, String> {
    let (mut at, mut name) = (None, None);
    for word in a.words()? {
        match message_number(word)? {
            Some(n) => at = Some(n),
            None if name.is_some() => return Err("takes one name; put quotes around spaces".into()),
            None => name = Some(word.to_owned()),
        }
    }
    runtime(Request::Fork { at, name })
}

fn branch(a: &Args<'_>) -> Result<Outcome, String> {
    let mut words = a.words()?.into_iter();
    let target = match (words.next(), words.next()) {
        (_, Some(_)) => return Err("takes one branch; put quotes around spaces".into()),
        (None, _) => return runtime(Request::Timeline),
        (Some("next"), _) => BranchTarget::Sibling(Sibling::Next),
        (Some("prev"), _) => BranchTarget::Sibling(Sibling::Prev),
        (Some(word), _) => match word.parse() {
            Ok(n) => BranchTarget::Sibling(Sibling::Number(n)),
            Err(_) => BranchTarget::Name(word.into()),
        },
    };
    runtime(Request::Branch(target))
}
