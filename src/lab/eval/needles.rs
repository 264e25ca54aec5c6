//! Needles: facts hidden at many depths of documents of many lengths, one question each.
//!
//! The model reads a document once per length; every question continues from its end. The answer is forced up to the
//! value, and a needle counts as found when each token of the value is the likeliest. So the score does not depend on
//! whether a model thinks first or words its answers differently, only on fetching the value from a long distance.
//! Values are made-up digits and names; a wrong choice of blocks, a wrong decay or a wrong position shows as holes in
//! the grid.

use super::super::clients::failed;
use super::super::subject::Subject;
use super::numbers::{likeliest, log_prob};
use crate::backend::Backend;
use crate::cli::Failure;
use crate::core::SplitMix64;
use crate::engine::protocol::Token;
use crate::text::TextModel;

/// Depths of the grid, in percent of the document.
pub const DEPTHS: [usize; 10] = [3, 13, 23, 33, 43, 53, 63, 73, 83, 93];
const ADJECTIVES: &str =
    "quiet narrow copper early hollow bright distant patient broken green heavy second northern painted slow wooden";
const NOUNS: &str = "bridge harbour letter orchard engine lantern river council garden market tower workshop window mountain carriage winter library kitchen meadow signal";
const VERBS: &str =
    "follows meets surrounds remembers passes replaces watches carries divides answers borders outlasts mirrors keeps";
const FIRST: &str = "Ilse Bram Tova Emil Rosa Anton Mirel Jonas Petra Oskar Livia Dario";
const LAST: &str = "Hartog Velde Sorin Malik Brandt Okoro Lindqvist Ferro Novak Ames Castell Yilmaz";
const STEMS: &str = "Kar Vel Tor Min Sel Dra Lom Pra Hul Ner Bas Gil";
const ENDS: &str = "stad mere wick holm dorf fell quay ton vik moor";

fn pick<'a>(dice: &mut SplitMix64, words: &'a str) -> &'a str {
    let words: Vec<&str> = words.split(' ').collect();
    words.get(dice.below(words.len())).copied().unwrap_or_default()
}

pub fn filler(dice: &mut SplitMix64) -> String {
    let (a, n, v) = (pick(dice, ADJECTIVES), pick(dice, NOUNS), pick(dice, VERBS));
    format!("The {a} {n} {v} the {} {}.", pick(dice, ADJECTIVES), pick(dice, NOUNS))
}

pub struct Fact {
    depth: usize,
    /// `The access code of Karmere is`
    pub opening: String,
    /// ` 481726`
    pub value: String,
    /// `What is the access code of Karmere?`
    pub question: String,
}

pub fn planted(tokens: usize, dice: &mut SplitMix64) -> (String, Vec<Fact>) {
    let list = needles(dice);
    // [`SENTENCE_TOKENS`] holds for the built-in tokenizer; other tokenizers make shorter documents.
    let document = document((tokens / SENTENCE_TOKENS).max(20), &list, dice);
    (document, list)
}

/// Of the built-in tokenizer.
pub const SENTENCE_TOKENS: usize = 13;

fn needles(dice: &mut SplitMix64) -> Vec<Fact> {
    let mut list: Vec<Fact> = Vec::new();
    let mut used = Vec::new();
    for depth in DEPTHS {
        for digits in [true, false] {
            let mut place = format!("{}{}", pick(dice, STEMS), pick(dice, ENDS));
            while used.contains(&place) {
                place = format!("{}{}", pick(dice, STEMS), pick(dice, ENDS));
            }
            let (what, value) = if digits {
                ("access code", format!(" {:06}", dice.below(1_000_000)))
            } else {
                ("keeper", format!(" {} {}", pick(dice, FIRST), pick(dice, LAST)))
            };
            list.push(Fact {
                depth,
                opening: format!("The {what} of {place} is"),
                value,
                question: format!("What is the {what} of {place}?"),
            });
            used.push(place);
        }
    }
    list
}

fn document(sentences: usize, needles: &[Fact], dice: &mut SplitMix64) -> String {
    let mut out = String::new();
    for i in 0..sentences {
        for n in needles.iter().filter(|n| sentences * n.depth / 100 == i) {
            out.push_str(&format!("{}{}.\n", n.opening, n.value));
        }
        out.push_str(&filler(dice));
        out.push(if i % 6 == 5 { '\n' } else { ' ' });
    }
    out
}

#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Cell {
    pub length: usize,
    pub depth: usize,
    #[serde(rename = "asked")]
    pub questions: usize,
    pub found: usize,
    pub mean_log_prob: f64,
}

struct Prompt {
    tokens: Vec<Token>,
    value: usize,
}

fn prompt_of(text: &TextModel, document: &str, needle: &Fact) -> Result<Prompt, Failure> {
    let mut prompt = text.question_about("notes.txt", document.trim_end(), &needle.question)?;
    prompt.push_str(&format!("The document says: \"{}", needle.opening));
    let before = text.tokenizer.encode_prompt(&prompt)?;
    let tokens = text.tokenizer.encode_prompt(&format!("{prompt}{}", needle.value))?;
    let value = before.iter().zip(&tokens).take_while(|(a, b)| a == b).count();
    if value == 0 || value == tokens.len() {
        let text = format!("{}{}", needle.opening, needle.value);
        return Err(failed(format!("the tokenizer swallows the value of a needle: {text}")));
    }
    Ok(Prompt { tokens, value })
}

/// A question for every needle of a document of about `length` tokens, each at most `limit` tokens long with the
/// document.
fn prompts(text: &TextModel, length: usize, limit: usize) -> Result<Vec<Prompt>, Failure> {
    let mut dice = SplitMix64::new(length as u64);
    let list = needles(&mut dice);
    let sample: Vec<String> = (0..64).map(|_| filler(&mut dice)).collect();
    let each = text.tokenizer.encode_prompt(&sample.join(" "))?.len().div_ceil(sample.len());
    let known: usize = list.len() * 3 * each;
    let mut of = |sentences: usize| {
        let document = document(sentences, &list, &mut dice);
        let all = list.iter().map(|n| prompt_of(text, &document, n)).collect::<Result<Vec<_>, _>>()?;
        let most = all.iter().map(|prompt| prompt.tokens.len()).max().unwrap_or(0);
        Ok::<_, Failure>((all, most))
    };
    let sentences = (length.saturating_sub(known) / each.max(1)).max(20);
    let (mut all, mut most) = of(sentences)?;
    if most > limit {
        // The sentences were longer than the estimate: the second try uses the measured length.
        (all, most) = of((sentences * limit / most * 99 / 100).max(20))?;
    }
    if most > limit {
        return Err(failed(format!("{most} tokens do not fit into the context of {limit}")));
    }
    Ok(all)
}

pub fn measure<B: Backend>(subject: &mut Subject<B>, text: &TextModel, length: usize) -> Result<Vec<Cell>, Failure> {
    let prompts = prompts(text, length, subject.live.limit())?;
    let first = &prompts[0].tokens;
    let alike = |a: &Prompt| a.tokens.iter().zip(first).take_while(|(a, b)| a == b).count();
    let shared = prompts.iter().skip(1).map(alike).min().unwrap_or(0);
    subject.reset()?;
    subject.read(first.get(..shared).unwrap_or_default(), usize::MAX)?;
    let end = subject.end()?;
    let mut cells = Vec::new();
    for (depth, prompts) in DEPTHS.into_iter().zip(prompts.chunks(prompts.len() / DEPTHS.len())) {
        let mut cell = Cell { length: shared, depth, questions: prompts.len(), found: 0, mean_log_prob: 0.0 };
        for prompt in prompts {
            subject.back(&end)?;
            let rest = prompt.tokens.get(shared..).unwrap_or_default();
            let begin = prompt.value - shared;
            let (mut right, mut sum) = (true, 0.0);
            let mut each = |row: usize, logits: &[f32]| {
                let token = rest.get(row + 1).copied().unwrap_or_default();
                right &= likeliest(logits) == token;
                sum += log_prob(logits, token);
            };
            subject.score(rest, &|row| row + 1 >= begin && row + 1 < rest.len(), &mut each, None)?;
            cell.found += usize::from(right);
            cell.mean_log_prob += sum / (rest.len() - begin) as f64 / prompts.len() as f64;
        }
        cells.push(cell);
    }
    Ok(cells)
}

pub fn prose(text: &TextModel, length: usize) -> Result<Vec<Token>, Failure> {
    let mut dice = SplitMix64::new(7);
    let list = needles(&mut dice);
    let document = document(length / 4 + 20, &list, &mut dice);
    let mut tokens: Vec<Token> = text.tokenizer.bos.into_iter().collect();
    tokens.extend(text.tokenizer.encode_plain(&document)?);
    if tokens.len() < length {
        return Err(failed(format!("{} tokens of text were made, {length} are needed", tokens.len())));
    }
    tokens.truncate(length);
    Ok(tokens)
}

/// A line for each depth, a column for each length. [`measure`] gives the cells of a column together.
pub fn table(cells: &[Cell]) -> Vec<String> {
    let columns = || cells.chunks(DEPTHS.len());
    let head = cells.iter().step_by(DEPTHS.len()).map(|cell| format!("{:>8}", cell.length));
    let mut rows = vec![format!("    depth{}", head.collect::<String>())];
    rows.extend(DEPTHS.iter().enumerate().map(|(row, depth)| {
        let text = |cell: &Cell| format!("{:>8}", format!("{}/{}", cell.found, cell.questions));
        let cells = columns().filter_map(|column| column.get(row)).map(text);
        format!("    {depth:>4}%{}", cells.collect::<String>())
    }));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{DEMO_TOKENIZER, DEMO_TOKENIZER_CONFIG};

    #[test]
    fn a_long_document_fits_though_its_sentences_are_longer_than_those_counted() {
        let text = TextModel::from_bytes(DEMO_TOKENIZER.as_bytes(), DEMO_TOKENIZER_CONFIG.as_bytes(), None, None);
        let (text, length) = (text.unwrap(), 100_000);
        let longest = |limit: usize| {
            let all = prompts(&text, length, limit).unwrap();
            all.iter().map(|prompt| prompt.tokens.len()).max().unwrap()
        };
        assert!(longest(2 * length) > length);
        assert!((length * 95 / 100..=length).contains(&longest(length)));
    }
}
