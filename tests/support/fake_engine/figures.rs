//! What the scripted engine reports with its answers: where it looked, how likely it found tokens.

use sala_chat::engine::protocol::{BlockLook, Likely, Looked, LookedAt, Scoring, Token};

/// Tokens of a block.
const BLOCK: usize = 64;

/// Where it "looked": four fifths rest on the first block, the others go to the blocks that say what was answered, by how many
/// runs of four of the answer's tokens end in each; a run that is everywhere says little.
pub(super) fn look(context: &[Token], answer: &[Token]) -> LookedAt {
    let mut hits = vec![0f32; context.len().div_ceil(BLOCK)];
    for run in answer.windows(4) {
        let places: Vec<usize> =
            (0..context.len().saturating_sub(3)).filter(|at| &context[*at..at + 4] == run).collect();
        for at in &places {
            hits[(at + 3) / BLOCK] += 1.0 / places.len() as f32;
        }
    }
    let all: f32 = hits.iter().sum();
    let share = |block: usize, hits: f32| {
        let rest = if block == 0 { 0.8 } else { 0.0 };
        let part = if all == 0.0 { 0.0 } else { hits / all };
        BlockLook { block: block as u32, share: rest + 0.2 * part, forced: rest }
    };
    let blocks = hits.iter().enumerate().map(|(b, n)| share(b, *n)).filter(|b| b.share > 0.0).collect();
    let answer = Looked { tokens: answer.len() as u64, block_tokens: BLOCK as u32, blocks };
    LookedAt { answer, ..LookedAt::default() }
}

/// What it "gives" the tokens of a text but the first: those that end a run of four found in a block that is not hidden are sure,
/// the others hardly likely.
pub(super) fn score(context: &[Token], text: &[Token], hidden: &[std::ops::Range<u32>]) -> Vec<f32> {
    let found = |run: &[Token]| {
        let mut places = context.windows(4).enumerate().filter(|(_, w)| *w == run);
        places.any(|(at, _)| !hidden.iter().any(|h| h.contains(&(((at + 3) / BLOCK) as u32))))
    };
    let sure = |end: usize| end >= 3 && found(&text[end - 3..=end]);
    (1..text.len()).map(|end| if sure(end) { -0.1 } else { -7.0 }).collect()
}

/// How likely it "finds" a token: certain, with the following ones far below.
pub(super) fn likely(token: Token, most: u8) -> Likely {
    let best = (0..u32::from(most)).map(|i| (token + i, -0.5 - i as f32)).collect();
    Likely { log_prob: -0.5, best }
}

pub(super) fn scored_likely(score: &Scoring) -> Vec<Likely> {
    let rest = score.tokens.iter().skip(1);
    score.likely.map(|most| rest.map(|t| likely(*t, most)).collect()).unwrap_or_default()
}
