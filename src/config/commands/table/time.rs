//! Going back, branching, asking otherwise.

use super::super::Completes::Words;
use super::super::args::Args;
use super::super::words::{BranchTarget, GotoTarget, Sibling};
use super::super::{Command, MOST_ANSWERS, Outcome, Request};
use super::{ROW, alone, bare, runtime};
use crate::config::settings::{Field, session};

pub(super) const ROWS: &[Command] = &[
    bare("timeline", &[], "tree of turns and checkpoints", |a| alone(a, Outcome::Runtime(Request::Timeline))),
    Command {
        name: "undo",
        usage: "[N]",
        help: "take back N exchanges and restore the question",
        example: "/undo 2",
        parse: |a| a.count(1).and_then(|n| runtime(Request::Undo(n))),
        ..ROW
    },
    Command {
        name: "redo",
        usage: "[N]",
        help: "take back an undo",
        parse: |a| a.count(1).and_then(|n| runtime(Request::Redo(n))),
        ..ROW
    },
    Command {
        name: "regen",
        aliases: &["retry", "regenerate"],
        usage: "[#N] [COUNT] [temp=T] [seed=S]",
        help: "answer again and keep the old answer",
        options: &[
            ("#N", "the answer with this number instead of the last"),
            ("COUNT", "number of answers, 1 to 9"),
            ("temp=T", "with this temperature"),
            ("seed=S", "with this seed"),
        ],
        example: "/regen #8 3 temp=0.9",
        parse: regen,
        ..ROW
    },
    Command {
        name: "edit",
        usage: "[#N]",
        help: "edit a message; sending starts a new branch",
        example: "/edit #3",
        parse: |a| a.message().and_then(|at| runtime(Request::EditOpen(at))),
        ..ROW
    },
    Command {
        name: "continue",
        usage: "[TEXT]",
        help: "continue a stopped answer",
        options: &[("TEXT", "first words of the continuation")],
        example: "/continue Therefore",
        parse: |a| runtime(Request::Continue(a.rest())),
        ..ROW
    },
    Command {
        name: "fork",
        usage: "[#N] [NAME]",
        help: "start a new session from here",
        options: &[("#N", "start after this exchange"), ("NAME", "of the new session")],
        example: "/fork #7 what-if",
        parse: fork,
        ..ROW
    },
    Command {
        name: "branch",
        usage: "[#N] [K|next|prev|NAME]",
        help: "switch to another branch, or list them",
        options: &[
            ("#N", "a branch at this message instead of the nearest one"),
            ("K", "the branch with this number"),
            ("NAME", "a fork, or a mark"),
        ],
        example: "/branch #3 next",
        completes: Words(&["next", "prev"]),
        parse: branch,
        ..ROW
    },
    Command {
        name: "mark",
        usage: "NAME",
        help: "name this point; its state is always kept",
        example: "/mark before-annex",
        parse: |a| a.one("a name").and_then(|n| runtime(Request::Mark(n))),
        ..ROW
    },
    Command {
        name: "goto",
        usage: "NAME",
        help: "go to a mark",
        example: "/goto before-annex",
        parse: |a| {
            let mark = a.one("the name of a mark; /timeline shows them")?;
            runtime(Request::Goto(GotoTarget::Mark(mark)))
        },
        ..ROW
    },
    Command {
        name: "aside",
        aliases: &["btw"],
        usage: "QUESTION",
        help: "ask without keeping question or answer",
        example: "/aside what was his name?",
        parse: |a| a.text("a question").and_then(|t| runtime(Request::Aside(t))),
        ..ROW
    },
    Command {
        name: "when",
        usage: "QUESTION",
        help: "from which line of the document on an answer holds",
        example: "/when who did it?",
        parse: |a| a.text("a question").and_then(|t| runtime(Request::When(t))),
        ..ROW
    },
    Command {
        name: "compact",
        aliases: &["summarize"],
        usage: "[--yes] [INSTRUCTION]",
        help: "new branch with a summary of this one; asks first",
        options: &[("--yes", "do not ask")],
        example: "/compact keep the dates",
        parse: compact,
        ..ROW
    },
];

fn compact(a: &Args<'_>) -> Result<Outcome, String> {
    let rest = a.rest().unwrap_or_default();
    let yes = rest.split_whitespace().next() == Some("--yes");
    let instruction = rest.strip_prefix("--yes").filter(|_| yes).unwrap_or(&rest).trim();
    runtime(Request::Compact { instruction: Some(instruction.to_owned()).filter(|text| !text.is_empty()), yes })
}

fn regen(a: &Args<'_>) -> Result<Outcome, String> {
    let (mut at, mut count, mut temperature, mut seed) = (None, 1, None, None);
    for word in a.words()? {
        if let Some(n) = word.strip_prefix('#') {
            at = Some(n.parse().map_err(|_| format!("{word} is not a message number"))?);
        } else if let Some(t) = word.strip_prefix("temp=") {
            let (row, value) = session::parse("temperature", t)?;
            temperature = Some(f32::from_value(&value).ok_or_else(|| row.kind.range())?);
        } else if let Some(s) = word.strip_prefix("seed=") {
            seed = Some(s.parse().map_err(|_| format!("seed must be a whole number (got {s})"))?);
        } else {
            count = word
                .parse()
                .ok()
                .filter(|n| (1..=MOST_ANSWERS).contains(n))
                .ok_or(format!("COUNT must be 1 to {MOST_ANSWERS} (got {word})"))?;
        }
    }
    runtime(Request::Regen { at, count, temperature, seed })
}

fn fork(a: &Args<'_>) -> Result<Outcome, String> {
    let (mut at, mut name) = (None, None);
    for word in a.words()? {
        match word.strip_prefix('#') {
            Some(n) => at = Some(n.parse().map_err(|_| format!("{word} is not a message number"))?),
            None if name.is_some() => return Err("takes one name; put quotes around spaces".into()),
            None => name = Some(word.clone()),
        }
    }
    runtime(Request::Fork { at, name })
}

fn branch(a: &Args<'_>) -> Result<Outcome, String> {
    let (mut at, mut which) = (None, None);
    for word in a.words()? {
        match word.strip_prefix('#') {
            Some(n) if at.is_none() => at = Some(n.parse().map_err(|_| format!("{word} is not a message number"))?),
            _ if which.is_some() => return Err("takes one branch; put quotes around spaces".into()),
            _ => which = Some(word.as_str()),
        }
    }
    let sibling = |word: &str| match word {
        "next" => Some(Sibling::Next),
        "prev" => Some(Sibling::Prev),
        n => n.parse().ok().map(Sibling::Number),
    };
    runtime(Request::Branch(match (at, which) {
        (None, None) => BranchTarget::List,
        // Most places have two.
        (Some(_), None) => BranchTarget::Sibling(at, Sibling::Next),
        (at, Some(word)) => match (sibling(word), at) {
            (Some(sibling), at) => BranchTarget::Sibling(at, sibling),
            (None, None) => BranchTarget::Name(word.into()),
            (None, Some(_)) => return Err(format!("{word} is not a branch here; write a number, next or prev")),
        },
    }))
}
