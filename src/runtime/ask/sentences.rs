//! Attention of each sentence of an answer: the engine reports attention per token, sentences are found in the text.

use std::collections::BTreeMap;

use crate::engine::protocol::{BlockLook, Looked};

/// A shorter sentence (a list number, for example) belongs to the next one. White space does not count.
const LEAST_CHARACTERS: usize = 4;

const MARKS: [char; 7] = ['.', '!', '?', '…', '。', '！', '？'];
const WIDE_MARKS: [char; 3] = ['。', '！', '？'];
const CLOSING: [char; 10] = ['"', '\'', ')', ']', '*', '_', '”', '’', '»', '`'];

/// The end of a sentence is looked for in this many bytes: a scan of a whole long sentence per token would be quadratic.
const LOOKED_BACK: usize = 64;

/// Whether a sentence that ends with `text` is over before `next`.
fn is_over(text: &str, next: &str) -> bool {
    let words = text.trim_end();
    let marked = words.trim_end_matches(CLOSING).ends_with(MARKS);
    let space = words.len() < text.len() || next.starts_with(char::is_whitespace);
    // Scripts without spaces have no white space after the mark.
    let wide = words.ends_with(WIDE_MARKS) && !next.is_empty();
    text.ends_with('\n') || (marked && (space || wide))
}

#[derive(Debug)]
pub(super) struct Sentences {
    /// Byte offset of the open sentence, and its characters.
    from: usize,
    characters: usize,
    /// Share and forced share by block, summed over the `tokens` tokens of the open sentence.
    sums: BTreeMap<u32, (f64, f64)>,
    tokens: u64,
    block_tokens: u32,
    /// End of each sentence in bytes of the text, and its attention.
    done: Vec<(usize, Looked)>,
}

impl Sentences {
    pub(super) fn after(bytes: usize) -> Sentences {
        Sentences { from: bytes, characters: 0, sums: BTreeMap::new(), tokens: 0, block_tokens: 0, done: Vec::new() }
    }

    /// A token extended the text by `text[old..]`; `looked` is its attention.
    pub(super) fn token(&mut self, text: &str, old: usize, looked: Option<&Looked>) {
        let begin = self.from.max(text.floor_char_boundary(old.saturating_sub(LOOKED_BACK)));
        if self.characters >= LEAST_CHARACTERS && is_over(&text[begin..old], &text[old..]) {
            self.close(old);
        }
        self.characters += text[old..].chars().filter(|c| !c.is_whitespace()).count();
        let Some(looked) = looked else { return };
        self.tokens += looked.tokens;
        self.block_tokens = looked.block_tokens;
        for block in &looked.blocks {
            let sum = self.sums.entry(block.block).or_default();
            let tokens = looked.tokens as f64;
            *sum = (sum.0 + tokens * f64::from(block.share), sum.1 + tokens * f64::from(block.forced));
        }
    }

    fn close(&mut self, end: usize) {
        let tokens = std::mem::take(&mut self.tokens);
        let mean = |sum: f64| (sum / tokens.max(1) as f64) as f32;
        let blocks = std::mem::take(&mut self.sums).into_iter();
        let blocks =
            blocks.map(|(block, (share, forced))| BlockLook { block, share: mean(share), forced: mean(forced) });
        let looked = Looked { tokens, block_tokens: self.block_tokens, blocks: blocks.collect() };
        self.done.push((end, looked));
        (self.from, self.characters) = (end, 0);
    }

    pub(super) fn finish(mut self, text: &str) -> Vec<(usize, Looked)> {
        if text.get(self.from..).is_some_and(|rest| !rest.trim().is_empty()) {
            self.close(text.len());
        }
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::cited::tests::spent_ms;

    fn ends(pieces: &[&str]) -> Vec<String> {
        let (mut text, mut sentences) = (String::new(), Sentences::after(0));
        for (n, piece) in (0..).zip(pieces) {
            let old = text.len();
            text.push_str(piece);
            let block = BlockLook { block: n, share: 1.0, forced: 0.0 };
            sentences.token(&text, old, Some(&Looked { tokens: 1, block_tokens: 64, blocks: vec![block] }));
        }
        let done = sentences.finish(&text);
        let blocks: usize = done.iter().map(|(_, l)| l.blocks.len()).sum();
        assert_eq!(blocks, pieces.len(), "no token is lost and none counts twice");
        for (_, looked) in &done {
            let all: f32 = looked.blocks.iter().map(|b| b.share).sum();
            assert!((all - 1.0).abs() < 1e-5 && looked.tokens as usize == looked.blocks.len());
        }
        let mut from = 0;
        done.into_iter().map(|(end, _)| text[std::mem::replace(&mut from, end)..end].to_owned()).collect()
    }

    #[test]
    fn sentences_end_where_white_space_follows_their_mark() {
        assert_eq!(ends(&["It is", " red", ".", " So", " is", " that", "!"]), ["It is red.", " So is that!"]);
        assert_eq!(ends(&["Rate", " 3", ".", "5", " is", " low", "."]), ["Rate 3.5 is low."]);
        assert_eq!(ends(&["1", ".", " First", " point", "\n", "2", ".", " Second"]), ["1. First point\n", "2. Second"]);
        assert_eq!(ends(&["He said \"no", ".\"", " Then", " left"]), ["He said \"no.\"", " Then left"]);
        assert_eq!(ends(&["桥是红色的", "。", "它很长", "。"]), ["桥是红色的。", "它很长。"]);
        assert_eq!(ends(&["One two.\n\n", "Three"]), ["One two.\n\n", "Three"]);
        let row = format!("| a |{}|\n", " ".repeat(80));
        assert_eq!(ends(&[&row, "| b |"]), [&row, "| b |"]);
        assert!(ends(&[]).is_empty());
    }

    fn read(pieces: impl Iterator<Item = &'static str>) -> usize {
        let (mut text, mut sentences) = (String::new(), Sentences::after(0));
        for piece in pieces {
            let old = text.len();
            text.push_str(piece);
            sentences.token(&text, old, None);
        }
        sentences.finish(&text).len()
    }

    #[test]
    fn a_long_answer_without_a_sentences_end_is_read_once() {
        const TOKENS: usize = 200_000;
        let begun = spent_ms();
        for piece in [" word", "\n", "*", ".\"", "字"] {
            let sentences = read(std::iter::once("a").chain(std::iter::repeat_n(piece, TOKENS)));
            assert_eq!(sentences, 1, "{piece:?}");
        }
        // A rescan per token would take minutes.
        let took = (spent_ms() - begun) / 1e3;
        assert!(took < 20.0, "{took} s");
    }
}
