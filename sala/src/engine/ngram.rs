//! Model-free drafts: the continuation of an earlier occurrence of the last tokens (docs/speculative.md §8.1).
//!
//! Hash chains for three orders over every token of the conversation, documents included: a chain maps the hash of the
//! last m tokens to the latest position that ends such an m-gram, and every position to the previous one. Appending is
//! one swap per order, and removing positions last in, first out restores the heads exactly, so `/undo` or a switch of
//! branches costs only the difference. Only accepted tokens are ever appended; rounds need no rollback.
//!
//! 16 bytes per token and 12 bytes per head (at most 2^20 heads per order). Hits are verified against the tokens, so a
//! collision of hashes costs time, never a wrong match.

use crate::engine::protocol::Token;

const ORDERS: [usize; 3] = [12, 6, 3];
pub const MIN_MATCH: usize = 3;
pub const MAX_MATCH: usize = 64;
const CANDIDATES: usize = 16;
const NONE: u32 = u32::MAX;
const FIRST_BITS: u32 = 12;
const MAX_BITS: u32 = 20;

#[derive(Clone, Debug, PartialEq)]
pub struct Lookup {
    pub tokens: Vec<Token>,
    /// Number of equal tokens before it and before the end, at most [`MAX_MATCH`].
    pub matched: usize,
    /// Share of the checked occurrences that continue with the same first token, in (0, 1].
    pub agreement: f32,
}

/// Factor of the polynomial hash: odd, so that no token is ever shifted out of it.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// Spreads a hash: the top bits of the product depend on every bit of it.
const SPREAD: u64 = 0xd6e8_feb8_6659_fd93;

/// `t1 FACTOR^(m-1) + ... + tm`, modulo 2^64: rolls in one step from one m-gram to the next.
fn hash(gram: &[Token]) -> u64 {
    gram.iter().fold(0, |h, &t| roll(h, t))
}

fn roll(hash: u64, token: Token) -> u64 {
    hash.wrapping_mul(FACTOR).wrapping_add(u64::from(token))
}

/// Spare capacity of a copy, in tokens: without it the first token of a fork would copy everything once more.
const SPARE: usize = 4_096;

fn copied(from: &[u32]) -> Vec<u32> {
    let mut copy = Vec::with_capacity(from.len() + SPARE);
    copy.extend_from_slice(from);
    copy
}

#[derive(Debug, Default, PartialEq)]
struct Chain {
    /// By the hash of an m-gram: the latest position that ends one.
    heads: Vec<u32>,
    /// By position: the previous one with the same hash.
    prev: Vec<u32>,
}

impl Clone for Chain {
    fn clone(&self) -> Self {
        let (heads, prev) = rayon::join(|| self.heads.clone(), || copied(&self.prev));
        Chain { heads, prev }
    }
}

impl Chain {
    fn with_heads(bits: u32) -> Chain {
        Chain { heads: vec![NONE; 1 << bits], prev: Vec::new() }
    }

    /// The number of heads is a power of two.
    fn slot(&self, hash: u64) -> usize {
        (hash.wrapping_mul(SPREAD) >> (64 - self.heads.len().trailing_zeros())) as usize
    }

    /// Adds the new positions of `tokens`. One chain at a time over all of them: the lookups in its table then depend
    /// on nothing but the tokens, and the processor has many of them in flight.
    fn extend(&mut self, order: usize, tokens: &[Token]) {
        let from = self.prev.len();
        self.prev.reserve(tokens.len() - from);
        // The first positions end no m-gram.
        let first = (order - 1).clamp(from, tokens.len());
        self.prev.resize(first, NONE);
        let leaving = (1..order).fold(1u64, |power, _| power.wrapping_mul(FACTOR));
        let Some(start) = (first + 1).checked_sub(order) else { return };
        let mut rolling = hash(&tokens[start..first]);
        for ((end, &token), &oldest) in (first..).zip(&tokens[first..]).zip(&tokens[start..]) {
            rolling = roll(rolling, token);
            let slot = self.slot(rolling);
            // Positions are 32 bits wide; contexts are far shorter.
            let before = self.heads.get_mut(slot).map_or(NONE, |head| std::mem::replace(head, end as u32));
            self.prev.push(before);
            rolling = rolling.wrapping_sub(leaving.wrapping_mul(u64::from(oldest)));
        }
    }

    fn pop(&mut self, order: usize, tokens: &[Token]) {
        let before = self.prev.pop().unwrap_or(NONE);
        if let Some(start) = tokens.len().checked_sub(order) {
            let slot = self.slot(hash(&tokens[start..]));
            if let Some(head) = self.heads.get_mut(slot) {
                *head = before;
            }
        }
    }
}

/// Every token so far, and the positions of each 3-, 6- and 12-gram. Several threads make a clone: about 28 MB per
/// million tokens.
#[derive(Debug)]
pub struct NgramIndex {
    tokens: Vec<Token>,
    chains: [Chain; ORDERS.len()],
    bits: u32,
}

impl Clone for NgramIndex {
    fn clone(&self) -> Self {
        let [long, middle, short] = &self.chains;
        let ((long, middle), (short, tokens)) = rayon::join(
            || rayon::join(|| long.clone(), || middle.clone()),
            || rayon::join(|| short.clone(), || copied(&self.tokens)),
        );
        NgramIndex { tokens, chains: [long, middle, short], bits: self.bits }
    }
}

impl Default for NgramIndex {
    fn default() -> Self {
        NgramIndex {
            tokens: Vec::new(),
            chains: std::array::from_fn(|_| Chain::with_heads(FIRST_BITS)),
            bits: FIRST_BITS,
        }
    }
}

impl NgramIndex {
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    pub fn extend(&mut self, tokens: &[Token]) {
        self.tokens.extend_from_slice(tokens);
        if self.tokens.len() > 1 << self.bits && self.bits < MAX_BITS {
            while self.tokens.len() > 1 << self.bits && self.bits < MAX_BITS {
                self.bits += 2;
            }
            self.chains = std::array::from_fn(|_| Chain::with_heads(self.bits));
        }
        for (chain, order) in self.chains.iter_mut().zip(ORDERS) {
            chain.extend(order, &self.tokens);
        }
    }

    pub fn push(&mut self, token: Token) {
        self.extend(&[token]);
    }

    pub fn truncate(&mut self, len: usize) {
        while self.tokens.len() > len {
            for (chain, order) in self.chains.iter_mut().zip(ORDERS) {
                chain.pop(order, &self.tokens);
            }
            self.tokens.pop();
        }
    }

    /// Makes the index hold exactly `history`, keeping the common prefix.
    pub fn sync(&mut self, history: &[Token]) {
        let common = self.tokens.iter().zip(history).take_while(|(a, b)| a == b).count();
        if common == 0 {
            *self = NgramIndex::default();
        }
        self.truncate(common);
        self.extend(&history[common..]);
    }

    /// Number of tokens up to and including `end` that equal the last ones.
    fn matched(&self, end: usize) -> usize {
        let now = self.tokens.iter().rev().take(MAX_MATCH);
        now.zip(self.tokens[..=end].iter().rev()).take_while(|(a, b)| a == b).count()
    }

    /// The best continuation of at most `max` tokens after a match of at least `min_match` (never below
    /// [`MIN_MATCH`]). A match that ends at the last token continues periodically.
    pub fn lookup(&self, max: usize, min_match: usize) -> Option<Lookup> {
        let last = self.tokens.len().checked_sub(1)?;
        let min_match = min_match.max(MIN_MATCH);
        for (order, Chain { prev, .. }) in ORDERS.iter().zip(&self.chains) {
            // (matched, end), most recent first.
            let mut found: Vec<(usize, usize)> = Vec::with_capacity(CANDIDATES);
            let mut at = prev.get(last).copied().unwrap_or(NONE);
            for _ in 0..CANDIDATES {
                if at == NONE {
                    break;
                }
                let matched = self.matched(at as usize);
                if matched >= min_match.max(*order) {
                    found.push((matched, at as usize));
                }
                at = prev.get(at as usize).copied().unwrap_or(NONE);
            }
            let next = |end: usize| self.tokens.get(end + 1);
            let votes = |end: usize| found.iter().filter(|f| next(f.1) == next(end)).count();
            if let Some(&(matched, end)) = found.iter().max_by_key(|f| (f.0, votes(f.1), f.1)) {
                let mut tokens: Vec<Token> = Vec::with_capacity(max);
                for i in end + 1..end + 1 + max {
                    let token = self.tokens.get(i).or_else(|| tokens.get(i - self.tokens.len()));
                    tokens.extend(token.copied());
                }
                let agreement = votes(end) as f32 / found.len() as f32;
                return (!tokens.is_empty()).then_some(Lookup { tokens, matched, agreement });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn index(tokens: &[Token]) -> NgramIndex {
        let mut index = NgramIndex::default();
        index.extend(tokens);
        index
    }

    #[test]
    fn the_longest_match_wins_over_the_most_recent() {
        let mut text: Vec<Token> = (100..120).collect();
        text.push(7); // 100..120, then 7
        text.extend([118, 119, 8, 117, 118, 119, 9]); // shorter matches, later
        text.extend(105..120);
        let found = index(&text).lookup(2, 3).unwrap();
        assert_eq!((found.tokens, found.matched), (vec![7, 118], 15));
    }

    #[test]
    fn equal_matches_are_decided_by_vote_then_recency() {
        let text = [1, 2, 3, 50, 9, 1, 2, 3, 60, 9, 1, 2, 3, 50, 8, 1, 2, 3];
        let found = index(&text).lookup(1, 3).unwrap();
        // 9 1 2 3 does not precede the last ones, so all three match with length 3 and two continue with 50.
        assert_eq!(found.tokens, [50]);
        assert!((found.agreement - 2.0 / 3.0).abs() < 1e-6);
        let text = [1, 2, 3, 50, 9, 1, 2, 3, 60, 8, 1, 2, 3];
        assert_eq!(index(&text).lookup(1, 3).unwrap().tokens, [60]);
    }

    #[test]
    fn repetition_continues_periodically() {
        let found = index(&[5, 6, 7, 5, 6, 7, 5, 6, 7]).lookup(7, 3).unwrap();
        assert_eq!(found.tokens, [5, 6, 7, 5, 6, 7, 5]);
    }

    #[test]
    fn short_matches_are_refused() {
        assert_eq!(index(&[1, 2, 9, 1, 2]).lookup(4, 3), None);
        assert_eq!(index(&[1, 2, 3, 9, 1, 2, 3]).lookup(4, 4), None);
        assert_eq!(index(&[]).lookup(4, 3), None);
        assert!(index(&[1, 2, 3, 9, 1, 2, 3]).lookup(4, 3).is_some());
    }

    /// The reference for the index, by brute force: the longest earlier match of at least three.
    fn longest(tokens: &[Token]) -> usize {
        let n = tokens.len();
        let length =
            |end: usize| (0..=end.min(MAX_MATCH - 1)).take_while(|&i| tokens[end - i] == tokens[n - 1 - i]).count();
        (0..n.saturating_sub(1)).map(length).max().filter(|&l| l >= 3).unwrap_or(0)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn lookup_finds_the_longest_match(tokens in prop::collection::vec(0u32..4, 0..40)) {
            let found = index(&tokens).lookup(4, 3).map_or(0, |f| f.matched);
            // The lookup checks only 16 occurrences; in 40 tokens of 4 symbols that is nearly always all of them.
            let want = longest(&tokens);
            prop_assert!(found == want || (want > 3 && found >= 3), "{found} {want}");
        }

        #[test]
        fn truncation_and_sync_leave_what_a_fresh_index_holds(a in prop::collection::vec(0u32..6, 0..6000), b in prop::collection::vec(0u32..6, 0..200), keep in 0usize..6000) {
            let keep = keep.min(a.len());
            let mut moved = index(&a);
            moved.truncate(keep);
            let mut want = a[..keep].to_vec();
            want.extend(&b);
            moved.sync(&want);
            let fresh = index(&want);
            prop_assert_eq!(&moved.tokens, &fresh.tokens);
            if moved.bits == fresh.bits {
                prop_assert_eq!(&moved.chains, &fresh.chains);
                prop_assert_eq!(moved.lookup(8, 3), fresh.lookup(8, 3));
            }
        }
    }
}
