//! Related words: a question often uses another word than the text. A file of a model folder, with one group of
//! related words a line. In `animal pet: dog cat`, the words before the colon are kinds of the others: dogs are
//! related to animals, but not to cats. Lines that begin with `#` are comments. Inflected forms match.

use std::collections::HashMap;

use super::stem::{put_stem, words};

/// Longest file or text.
pub const BYTES: u64 = 1 << 20;

/// The text of such a file, or which line is none, and why.
pub(super) fn checked(file: Vec<u8>) -> Result<String, String> {
    let text = String::from_utf8(file).map_err(|e| {
        let lines = e.as_bytes().iter().take(e.utf8_error().valid_up_to()).filter(|byte| **byte == b'\n').count();
        format!("line {} is not UTF-8 text", lines + 1)
    })?;
    for (at, line) in text.lines().enumerate() {
        let wrong = |what: &str| Err(format!("line {}: {what}", at + 1));
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let (kinds, things) = line.split_once(':').unwrap_or(("", line));
        if things.contains(':') {
            return wrong("one colon at most");
        }
        if line.contains(':') && (kinds.trim().is_empty() || things.trim().is_empty()) {
            return wrong("words on both sides of the colon");
        }
        let mut all = kinds.split_whitespace().chain(things.split_whitespace());
        if !all.clone().all(|word| words(word.as_bytes()).eq([(word.len(), word.as_bytes())])) {
            return wrong("words of letters and digits, with spaces between them");
        }
        if all.nth(1).is_none() {
            return wrong("a group has two words or more");
        }
    }
    Ok(text)
}

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
        let text = checked(b"# money\ncosts price fees\n\nanimal pet: dogs cat\nfee charge\n".to_vec()).unwrap();
        let related = related(&text, &stems);
        let mut found: Vec<_> = related.iter().map(|(stem, to)| (std::str::from_utf8(stem).unwrap(), *to)).collect();
        found.sort_unstable();
        assert_eq!(found, [("animal", 2), ("cat", 4), ("dog", 4), ("fee", 1), ("pet", 6), ("pric", 1)]);
    }

    #[test]
    fn a_file_that_is_none_is_refused_with_its_line() {
        for (text, wrong) in [
            (&b"a b\nword\n"[..], "line 2: a group has two words or more"),
            (b"a b\n\n# c\nwell-known famous", "line 4: words of letters and digits, with spaces between them"),
            (b"a, b", "line 1: words of letters and digits, with spaces between them"),
            (b"pet: dog: cat", "line 1: one colon at most"),
            (b"pet:", "line 1: words on both sides of the colon"),
            (b": dog cat", "line 1: words on both sides of the colon"),
            (b"a b\nc \xff", "line 2 is not UTF-8 text"),
        ] {
            assert_eq!(checked(text.to_vec()).unwrap_err(), wrong);
        }
        assert_eq!(checked("café bistro\r\n".into()).unwrap(), "café bistro\r\n");
        assert_eq!(checked(Vec::new()).unwrap(), "");
    }
}
