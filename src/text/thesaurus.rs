//! Related words: a question often uses another word than the text. A file of a model folder, with one group of
//! related words a line. In `animal pet: dog cat`, the words before the colon are kinds of the others: dogs are
//! related to animals, but not to cats. Lines that begin with `#` are comments. Inflected forms match.

use std::collections::HashMap;

use super::stem::{put_stem, words};

/// Longest file or text.
pub const BYTES: u64 = 1 << 20;

/// For each stem related to the question's: a bit for each related word of the question.
pub(super) fn related(thesaurus: &str, question: &HashMap<Vec<u8>, u32>) -> HashMap<Vec<u8>, u64> {
    let bit = |stem: &[u8]| question.get(stem).map_or(0, |number| 1_u64 << number);
    let mut related: HashMap<Vec<u8>, u64> = HashMap::new();
    let mut stems: Vec<Vec<u8>> = Vec::new();
    for line in thesaurus.lines().filter(|line| !line.starts_with('#')) {
        let (kinds, things) = line.split_once(':').unwrap_or((line, ""));
        stems.clear();
        for (_, word) in words(kinds.as_bytes()).chain(words(things.as_bytes())) {
            let mut stem = Vec::with_capacity(word.len() + 1);
            put_stem(word, &mut stem);
            stems.push(stem);
        }
        let all = stems.iter().fold(0, |all, stem| all | bit(stem));
        if all == 0 {
            continue;
        }
        let kinds = words(kinds.as_bytes()).count();
        let of_kinds = stems.iter().take(kinds).fold(0, |some, stem| some | bit(stem));
        for (i, stem) in stems.drain(..).enumerate() {
            let to = if i < kinds { all } else { of_kinds } & !bit(&stem);
            if to != 0 {
                *related.entry(stem).or_default() |= to;
            }
        }
    }
    related
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_relates_its_words_and_a_kind_its_things() {
        let stems: HashMap<Vec<u8>, u32> = [("cost", 0), ("dog", 1), ("animal", 2)].map(|(s, n)| (s.into(), n)).into();
        let related = related("# money\ncosts price fees\n\nanimal pet: dogs cat\nfee charge\n", &stems);
        let mut found: Vec<_> = related.iter().map(|(stem, to)| (std::str::from_utf8(stem).unwrap(), *to)).collect();
        found.sort_unstable();
        assert_eq!(found, [("animal", 2), ("cat", 4), ("dog", 4), ("fee", 1), ("pet", 6), ("pric", 1)]);
    }
}
