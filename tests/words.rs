//! Plain words: comments and identifiers of the sources use the field's terms. A word of the list below is a sign of a sentence
//! with a vague subject ("what is said there") or of a private name for something that has a common one.

#[path = "support/sources.rs"]
mod sources;

const BANNED: &[&str] = &[
    "said", "told", "tell", "tells", "whose", "whoever", "nobody", "beside", "behind", "come", "comes", "goes",
    "stands", "becomes", "asked", "desk", "seat", "seats", "errand", "shelf", "talk", "keeper", "feeder", "wish",
];

/// Where a banned word is the right one: file (or folder) below `src`, word, reason.
const ALLOWED: &[(&str, &str, &str)] = &[];

/// Lower-case words of an identifier or of prose: split at underscores, at changes of case and at everything that is no letter.
fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut previous = ' ';
    for c in text.chars() {
        if !c.is_alphabetic() || (c.is_uppercase() && previous.is_lowercase()) {
            words.push(String::new());
        }
        if c.is_alphabetic() {
            words.last_mut().unwrap().extend(c.to_lowercase());
        }
        previous = c;
    }
    words.retain(|word| !word.is_empty());
    words
}

/// A line of Rust without what stands in quotes: texts for people are checked by reading `tests/outputs`.
fn without_texts(line: &str) -> String {
    let mut out = String::new();
    let mut quoted = false;
    let mut escaped = false;
    for c in line.chars() {
        match c {
            '"' if !escaped => quoted = !quoted,
            _ if !quoted => out.push(c),
            _ => {}
        }
        escaped = c == '\\' && !escaped;
    }
    out
}

fn allowed(inside: &str, word: &str) -> bool {
    ALLOWED.iter().any(|(place, allowed, _)| inside.starts_with(place) && *allowed == word)
}

#[test]
fn comments_and_identifiers_use_plain_words() {
    let mut found = Vec::new();
    for (inside, source) in sources::below("src") {
        for (number, line) in source.lines().enumerate() {
            for word in words(&without_texts(line)) {
                if BANNED.contains(&word.as_str()) && !allowed(&inside, &word) {
                    found.push(format!("src/{inside}:{}: {word}: {}", number + 1, line.trim()));
                }
            }
        }
    }
    assert!(
        found.is_empty(),
        "{} banned words, for instance\n{}",
        found.len(),
        found[..found.len().min(40)].join("\n")
    );
}

#[test]
fn banned_words_are_found_in_identifiers_and_comments_only() {
    assert_eq!(words("fn is_said(x: WhoTold) // nobody's"), ["fn", "is", "said", "x", "who", "told", "nobody", "s"]);
    assert_eq!(without_texts(r#"note("it is \"said\" here", told)"#), "note(, told)");
}
