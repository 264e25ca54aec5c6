//! Plain words: comments and identifiers of the sources use the field's terms. A banned word is a sign of a sentence with a vague
//! subject or of a private name for a common thing.

use crate::sources;

const BANNED: &[&str] = &[
    "said", "told", "tell", "tells", "whose", "whoever", "nobody", "beside", "behind", "come", "comes", "goes",
    "stands", "becomes", "asked", "desk", "seat", "seats", "errand", "fan_out", "talk", "keeper", "feeder", "wish",
];

/// Uses that each room and the tests still have, nearly all in identifiers. The numbers may only fall.
const LEFT: &[(&str, usize)] = &[
    ("src/backend", 2),
    ("src/cli", 9),
    ("src/client", 1),
    ("src/config", 2),
    ("src/core", 0),
    ("src/engine", 2),
    ("src/lab", 3),
    ("src/model", 2),
    ("src/runtime", 8),
    ("src/server", 0),
    ("src/store", 2),
    ("src/text", 4),
    ("src/tui", 5),
    ("kernels", 0),
    ("tests", 8),
];

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

/// A line of code without its string literals: texts for people are checked by reading `tests/outputs`.
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

#[test]
fn comments_and_identifiers_lose_the_banned_words() {
    for (folder, most) in LEFT {
        let mut found = Vec::new();
        for (inside, source) in sources::below(folder) {
            for (number, line) in source.lines().enumerate() {
                let banned = words(&without_texts(line)).into_iter().filter(|word| BANNED.contains(&word.as_str()));
                found.extend(banned.map(|word| format!("{folder}/{inside}:{}: {word}: {}", number + 1, line.trim())));
            }
        }
        let count = found.len();
        assert!(
            count <= *most,
            "{folder} has {count} banned words, {most} at most, for instance\n{}",
            found[..count.min(20)].join("\n")
        );
    }
}

#[test]
fn banned_words_are_found_in_identifiers_and_comments_only() {
    assert_eq!(words("fn is_said(x: WhoTold) // nobody's"), ["fn", "is", "said", "x", "who", "told", "nobody", "s"]);
    assert_eq!(without_texts(r#"note("it is \"said\" here", told)"#), "note(, told)");
}
