//! Whether answers look at the lines that support them: facts planted in long documents, with questions through the
//! runtime.
//!
//! Counts, among the right answers, how often the passage with the fact ranks first in attention, how often among the
//! first three, and how often `/why` finds that the answer rests on it. The documents are those of the needles with
//! other seeds: no setting is tuned on them.

use serde_json::json;

use super::super::checks::Check;
use super::super::clients::RuntimeClient;
use super::{Part, needles};
use crate::cli::{Context, Exit, Failure};
use crate::core::SplitMix64;
use crate::core::transcript::{Passage, Role};
use crate::runtime::protocol::{LoadOptions, Notice, Request};

const DOCUMENTS: u64 = 3;
const LENGTH: usize = 16_000;
/// A passage of this rank or better counts as found; `/why` hides this many.
const AMONG: usize = 3;

#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
struct Counts {
    length: usize,
    #[serde(rename = "asked")]
    questions: usize,
    right: usize,
    /// Right answers with the passage first, among the first three, and supporting by `/why`.
    first: usize,
    among_three: usize,
    rests_on_it: usize,
}

impl Counts {
    /// Shares of the right answers, with their budgets. Without right answers all miss.
    fn checks(&self) -> [Check; 3] {
        let lacks = [
            ("passage not first", self.first, 0.40),
            ("passage not among three", self.among_three, 0.15),
            ("passage not found by /why", self.rests_on_it, 0.15),
        ];
        lacks.map(|(what, found, budget)| {
            let share = (self.right - found) as f64 / self.right as f64;
            let name = format!("{} tokens, {} of {} right: {what}", self.length, self.right, self.questions);
            Check::compared(name, share, budget)
        })
    }
}

pub(super) fn measure(context: &Context, lengths: &[usize]) -> Result<Part, Failure> {
    let (client, _) = RuntimeClient::start(context, false)?;
    let lengths = if lengths.is_empty() { &[LENGTH][..] } else { lengths };
    let no_room = |e: std::io::Error| Failure::new(Exit::Disk, format!("a temporary folder: {e}"));
    let folder = tempfile::tempdir().map_err(no_room)?;
    let mut all = Vec::new();
    for &length in lengths {
        let mut counts = Counts { length, ..Counts::default() };
        for n in 0..DOCUMENTS {
            context.note(&format!("document {} of {DOCUMENTS} with {length} tokens", n + 1));
            let mut dice = SplitMix64::new(0x100_0ced ^ (length as u64) << 8 ^ n);
            let (document, facts) = needles::planted(length, &mut dice);
            let path = folder.path().join(format!("notes-{length}-{n}.txt"));
            std::fs::write(&path, &document).map_err(no_room)?;
            questions(&client, &path.display().to_string(), &document, &facts, &mut counts)?;
        }
        all.push(counts);
    }
    client.quit()?;
    let checks = all.iter().flat_map(Counts::checks).collect();
    Ok(Part { checks, figures: json!({"looked": all}), ..Part::default() })
}

fn questions(
    client: &RuntimeClient,
    path: &str,
    document: &str,
    facts: &[needles::Fact],
    counts: &mut Counts,
) -> Result<(), Failure> {
    let finished = |role: Role| {
        client.wait(|notice| match notice {
            Notice::Finished(message) if message.role == role => Some(message),
            _ => None,
        })
    };
    client.send(Request::New(None))?;
    client.send(Request::Set(Some(("temperature".into(), "0".into()))))?;
    client.send(Request::Load { paths: vec![path.to_owned()], options: LoadOptions::default() })?;
    finished(Role::Document)?;
    for fact in facts {
        client.send(Request::Ask(fact.question.clone()))?;
        let answer = finished(Role::Assistant)?;
        counts.questions += 1;
        if answer.text.contains(fact.value.trim()) {
            counts.right += 1;
            let line = line_of(document, fact);
            let holds = |p: &Passage| p.document.is_some() && (p.first_line..=p.last_line).contains(&line);
            let passages = answer.meta.looked.map(|l| l.passages).unwrap_or_default();
            let rank = passages.iter().position(holds);
            counts.first += usize::from(rank == Some(0));
            counts.among_three += usize::from(rank.is_some_and(|r| r < AMONG));
            if !passages.is_empty() {
                client.send(Request::Why { at: None, count: Some(AMONG as u64) })?;
                let rows = client.wait(|notice| match notice {
                    Notice::Why { rows, .. } => Some(rows),
                    _ => None,
                })?;
                let most = (0..rows.len()).max_by(|a, b| rows[*a].whole.total_cmp(&rows[*b].whole).then(b.cmp(a)));
                counts.rests_on_it += usize::from(most.is_some() && most == rank);
            }
        }
        // Each question follows the document directly.
        client.send(Request::Undo(1))?;
        client.wait(|notice| matches!(notice, Notice::Input { .. }).then_some(()))?;
    }
    Ok(())
}

fn line_of(document: &str, fact: &needles::Fact) -> u64 {
    let sentence = format!("{}{}", fact.opening, fact.value);
    (1..).zip(document.lines()).find(|(_, line)| line.contains(&sentence)).map_or(0, |(n, _)| n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_found_by_their_line_and_budgets_count_right_answers() {
        let (document, facts) = needles::planted(4_000, &mut SplitMix64::new(3));
        assert_eq!(facts.len(), 20);
        for fact in &facts {
            let line = document.lines().nth(line_of(&document, fact) as usize - 1).unwrap();
            assert!(line.contains(fact.value.trim()), "{line}");
        }
        let c = Counts { questions: 20, right: 10, first: 6, among_three: 9, rests_on_it: 9, ..Counts::default() };
        let missed = |counts: &Counts| counts.checks().iter().filter(|check| check.missed()).count();
        assert_eq!(missed(&c), 0);
        assert_eq!((missed(&Counts { among_three: 8, ..c.clone() }), missed(&Counts::default())), (1, 3));
    }
}
