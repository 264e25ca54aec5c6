//! `/why`: does an answer depend on the passages it attended to? The answer is scored again with passages hidden from
//! the sparse layers, one at a time; the page shows the words that lost likelihood. Then the state is restored.
//!
//! The numbers are lower bounds: the recurrent state retains part of a hidden passage.

use std::ops::Range;

use super::segments::{self, boundary};
use super::{Activity, Done, Form, Last, Notice, Path, RuntimeError, State, ToAnswer, Verb, grouped, refused};
use crate::core::transcript::{Message, Passage};
use crate::engine::protocol::{Scoring, Token};
use crate::runtime::protocol::Why;
use crate::text::tokenizer::Tokenizer;
use crate::text::{Before, Walk};

/// Passages that are hidden by default, one at a time.
const PASSAGES: usize = 3;
/// Least factor of lost likelihood that counts as a dependence.
const NOTICEABLE: f64 = 2.0;

impl Verb {
    pub async fn why(&mut self, at: Option<u64>, count: Option<u64>) -> Done {
        if self.engine.server().is_some() {
            return Err(self.not_there("how likely a text is", "/look and /why"));
        }
        self.looked(at)?;
        self.engine_ready().await?;
        let (number, message, sources) = self.looked(at)?;
        let most = count.map_or(PASSAGES, |n| usize::try_from(n).unwrap_or(usize::MAX));
        let passages: Vec<Passage> = sources.passages.iter().take(most).cloned().collect();
        if passages.is_empty() {
            return self.say(format!("No passage stood out while #{number} was written."));
        }
        let path = self.here.tree.path_to(message.parent);
        let rendered = self.rendered(&path, Form::Prompt)?;
        let all: Vec<&Message> = path.iter().copied().chain([message]).collect();
        let open = self.rendered(&all, Form::Open(""))?;
        let text = open.text.get(rendered.text.len()..).unwrap_or("").trim_end().to_owned();
        // Thoughts at its start are scored and not shown.
        let thoughts = text.len().saturating_sub(self.engine.renderer.safe(message.text.trim()).len());
        let plan = self.fitted(&rendered, State::plan_answer, "Scoring this answer").await?;
        let tokenizer = self.engine.tokenizer();
        let last = plan.steps.last().map_or(&[][..], |step| &step.prompt);
        let before = tokenizer.before_next(last, Before::Edge);
        let tokens = tokenizer.encode_after(&text, before)?;
        if tokens.len() < 2 {
            return refused(format!("#{number} is too short to be scored."));
        }

        // The blocks of each passage in the state that the prompt produces. If that differs from the state at the time
        // of the answer (after a new read or an import), they are found by the passage's lines.
        let mut after: Path = plan.base.clone();
        for step in &plan.steps {
            let boundary = boundary(&rendered, step.text_end);
            let fingerprint = &self.engine.info.fingerprint;
            after.push(segments::content(fingerprint, &after, &step.prompt, &[], boundary, step.kind));
        }
        let (_, message, sources) = self.looked(Some(number))?;
        let path = self.here.tree.path_to(message.parent);
        let map = self.engine.renderer.map(&rendered, &path, &after, sources.block_tokens as usize);
        let hidden = passages.iter().map(|p| vec![map.blocks_of(&rendered.text, p)]);
        let hidden = std::iter::once(Vec::new()).chain(hidden).collect();
        let scoring = Scoring { tokens: tokens.clone(), likely: None, hidden };
        let live = self.here.slot.live.clone();
        let last = ToAnswer { last: Last::Score(scoring), message: None };
        self.activity(Activity::Busy { what: "scoring the answer again".into() });
        let stats = self.execute(plan, &rendered, Some(last), &mut ()).await;
        let scored = stats.map(|stats| stats.end.map(|end| end.scored).unwrap_or_default());
        self.return_to(live).await?;
        self.report_meters();
        let scored = scored?;
        let Some((shown, hidden)) = scored.split_first().filter(|(_, hidden)| hidden.len() == passages.len()) else {
            return Err(RuntimeError::Stopped);
        };
        let words = words(&pieces(self.engine.tokenizer(), &text, &tokens, before), &text, thoughts);
        let rows: Vec<Why> = hidden.iter().map(|scores| weigh(&words, &text, shown, scores)).collect();
        let mut page = String::new();
        for (k, (row, passage)) in (1..).zip(rows.iter().zip(&passages)) {
            page.push_str(&format!("    without [{k}] {} ({}):\n", passage.place(), passage.percent()));
            page.push_str(&match &row.part {
                Some(part) => format!("        \"{part}\" is {} less likely\n", times(row.times)),
                None => "        no part becomes less likely\n".to_owned(),
            });
            page.push_str(&format!("        the whole answer: {}\n    \n", whole(row.whole)));
        }
        page.push_str(
            "\nThe answer was scored again with each passage hidden from the sparse layers; the beginning of the context \
             is never hidden. This is a lower bound: the linear layers have read the passage and remember some of it.\n",
        );
        self.show(Notice::Why { number, title: format!("What #{number} rests on"), text: page, rows })
    }
}

/// Bytes of the text that each token spells.
fn pieces(tokenizer: &Tokenizer, text: &str, tokens: &[Token], before: Before) -> Vec<Range<usize>> {
    let mut walk = Walk::new(tokenizer, text, before);
    let mut at = 0;
    let piece = |token: &Token| {
        let from = at;
        if walk.step(*token) {
            at = walk.place().unwrap_or(at);
        }
        from..at
    };
    tokens.iter().map(piece).collect()
}

/// `903 times`, `2.3 times`, `more than a billion times`.
fn times(ratio: f64) -> String {
    match ratio {
        r if r >= 1e9 => "more than a billion times".to_owned(),
        r if r >= 10.0 => format!("{} times", grouped(r.round() as u64)),
        r => format!("{r:.1} times"),
    }
}

fn whole(ratio: f64) -> String {
    match ratio {
        r if r >= NOTICEABLE => format!("{} less likely", times(r)),
        r if r <= 1.0 / NOTICEABLE => format!("{} more likely", times(1.0 / r)),
        _ => "as likely as before".into(),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Word {
    bytes: Range<usize>,
    /// Indices of the scored tokens.
    tokens: Range<usize>,
}

/// The words of the answer with the white space before each, without thoughts and the first token, which has no score.
fn words(pieces: &[Range<usize>], text: &str, thoughts: usize) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    for (i, piece) in pieces.iter().enumerate().skip(1).filter(|(_, p)| p.start >= thoughts) {
        let spaced = text.get(piece.clone()).is_some_and(|t| t.starts_with(char::is_whitespace))
            || text.get(..piece.start).is_some_and(|t| t.ends_with(char::is_whitespace));
        let is_blank = |w: &Word| text.get(w.bytes.clone()).is_some_and(|t| t.trim().is_empty());
        match words.last_mut().filter(|w| !spaced || is_blank(w)) {
            Some(word) => (word.bytes.end, word.tokens.end) = (piece.end, i + 1),
            None => words.push(Word { bytes: piece.clone(), tokens: i..i + 1 }),
        }
    }
    words
}

/// The part that lost most likelihood: the word with the largest loss, with adjacent words of noticeable loss. Scores
/// are natural logarithms of token probabilities, without the first token's.
fn weigh(words: &[Word], text: &str, shown: &[f32], hidden: &[f32]) -> Why {
    let lost = |word: &Word| -> f64 {
        let scores = word.tokens.clone().filter_map(|t| t.checked_sub(1)).map(|i| (shown.get(i), hidden.get(i)));
        scores.map(|pair| if let (Some(a), Some(b)) = pair { f64::from(*a) - f64::from(*b) } else { 0.0 }).sum()
    };
    let lost: Vec<f64> = words.iter().map(lost).collect();
    let whole = lost.iter().sum::<f64>().exp();
    let noticeable = |i: &usize| lost[*i].exp() >= NOTICEABLE;
    let best = (0..lost.len()).max_by(|a, b| lost[*a].total_cmp(&lost[*b]).then(b.cmp(a)));
    let Some(best) = best.filter(noticeable) else {
        return Why { part: None, times: 1.0, whole };
    };
    let from = best - (0..best).rev().take_while(noticeable).count();
    let to = best + (best..lost.len()).take_while(noticeable).count();
    let bytes = words[from].bytes.start..words[to - 1].bytes.end;
    let part = text.get(bytes).unwrap_or("").trim_matches(|c: char| c.is_whitespace() || matches!(c, '"' | ',' | ';'));
    Why {
        part: Some(part.trim_end_matches(['.', '"']).to_owned()),
        times: lost[from..to].iter().sum::<f64>().exp(),
        whole,
    }
}

#[cfg(test)]
#[path = "why_tests.rs"]
mod tests;
