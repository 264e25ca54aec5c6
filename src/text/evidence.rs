//! Evidence for a sentence of a document: what it has in common with the question, beside what the model thinks of it.
//!
//! A small model chooses a sentence by its first words and overlooks words that the sentence shares with the question; the rarer they
//! are in what was read, the more they say. Of documents alone: what was said before has most in common with the question.
//! A text is gone through once, however long its lines are.

use std::collections::HashMap;
use std::ops::Range;

use super::quotes::{BETWEEN, ends as ends_at};
use super::template::ChatMessage;
use crate::protocol::engine::Quoting;

/// More of a sentence does not count: it may be as long as its text.
const SENTENCE_BYTES: usize = 512;
/// What shared words count at most, in logits: a heading has all of a question's words and no answer.
const MOST: f32 = 4.0;
/// More words of a question do not count.
const QUESTION_WORDS: usize = 64;

/// Words of a question that do not say what it is about.
const STOP: &str = " a about all also am an and any are as at be been being by can could did do document does doing don done each every file \
    for from had has have having he her here him his how i if in into is it its just ll many may me mention mentioned might much must my no \
    nor not of on one only or other our please re said say says shall she should so some such tell text than that the their them then there \
    these they this those to too us ve very was we were what when where which who whom whose why will with would you your ";

/// What the evidence counts for the sentences that begin at these places of a text.
pub(super) fn weigh(text: &[u8], begin: &[usize], quoting: &Quoting) -> Vec<f32> {
    let mut evidence = vec![0.0; begin.len()];
    let (documents, question) = parts(text);
    let asked = asked(text.get(question).unwrap_or_default());
    if asked.is_empty() {
        return evidence;
    }
    let read = Read::of(text, &documents, &asked);
    let documents = documents.iter().map(|document| {
        let place = |at: usize| begin.partition_point(|begin| *begin < at);
        place(document.start)..place(document.end)
    });
    for i in documents.flatten() {
        if let (Some(evidence), Some(begin)) = (evidence.get_mut(i), begin.get(i)) {
            *evidence = read.evidence(*begin, quoting);
        }
    }
    evidence
}

/// The documents of a text, and the last question: turns of the same speaker.
fn parts(text: &[u8]) -> (Vec<Range<usize>>, Range<usize>) {
    let [opens, closes] = ChatMessage::DOCUMENT.map(str::as_bytes);
    let (mut documents, mut question, mut speaker) = (Vec::new(), 0..0, None);
    let mut start = 0;
    for part in text.split(|byte| *byte == BETWEEN) {
        let end = start + part.len();
        // In front of it stands at most who speaks, on a line of its own.
        let role = part.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let role = if part.starts_with(opens) { 0 } else { role };
        let said = part.get(role..).unwrap_or_default();
        if said.starts_with(opens) {
            let to = said.windows(closes.len()).rposition(|last| last == closes).unwrap_or(said.len());
            let from = said.iter().position(|byte| *byte == b'\n').map_or(to, |at| (at + 1).min(to));
            documents.push(start + role + from..start + role + to);
            speaker = part.get(..role);
            question = 0..0;
        } else if speaker.is_some_and(|speaker| part.starts_with(speaker)) && !said.trim_ascii().is_empty() {
            question = start + speaker.map_or(0, <[u8]>::len)..end;
        }
        start = end + 1;
    }
    (documents, question)
}

/// The text with nothing in the places of the lines that a template puts around documents: they are nobody's words.
pub(super) fn without_frames(text: &[u8]) -> Vec<u8> {
    let mut own = text.to_vec();
    let closes = ChatMessage::DOCUMENT[1].as_bytes();
    for document in parts(text).0 {
        let (front, behind) = (text.get(..document.start), text.get(document.end..));
        let line = front.and_then(|front| front.strip_suffix(b"\n")).unwrap_or_default();
        let opens = line.iter().rposition(|byte| matches!(*byte, b'\n' | BETWEEN)).map_or(0, |at| at + 1);
        if let Some(frame) = own.get_mut(opens..line.len()) {
            frame.fill(BETWEEN);
        }
        let closed = behind.is_some_and(|behind| behind.starts_with(closes));
        // The end of the line in front of it is the template's as well.
        let last = text.get(document.clone()).is_some_and(|own| own.ends_with(b"\n"));
        let from = document.end - usize::from(last);
        if let Some(frame) = own.get_mut(from..document.end + closes.len()).filter(|_| closed) {
            frame.fill(BETWEEN);
        }
    }
    own
}

/// Words of a text, each with the place behind it.
fn words(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let letter = |byte: &u8| byte.is_ascii_alphanumeric() || (0x80..BETWEEN).contains(byte);
        let rest = text.get(at..)?;
        let begin = at + rest.iter().position(letter)?;
        let word = text.get(begin..)?;
        let word = word.get(..word.iter().position(|byte| !letter(byte)).unwrap_or(word.len()))?;
        at = begin + word.len();
        Some((at, word))
    })
}

/// A crude common form of a word in `stem`: "deposits", "deposited" and "deposit" have the same.
fn put_stem(word: &[u8], stem: &mut Vec<u8>) {
    const ENDINGS: [(&str, &str); 9] = [
        ("ies", "y"),
        ("ied", "y"),
        ("ings", ""),
        ("ing", ""),
        ("ed", ""),
        ("es", ""),
        ("s", ""),
        ("ly", ""),
        ("e", ""),
    ];
    stem.clear();
    match std::str::from_utf8(word) {
        Ok(word) if !word.is_ascii() => stem.extend_from_slice(word.to_lowercase().as_bytes()),
        _ => stem.extend(word.iter().map(u8::to_ascii_lowercase)),
    }
    if stem.len() <= 3 {
        return;
    }
    let left = |ending: &str| stem.strip_suffix(ending.as_bytes()).map_or(0, <[u8]>::len);
    let ending = ENDINGS.iter().find(|(ending, _)| left(ending) >= 3 && !(*ending == "s" && stem.ends_with(b"ss")));
    if let Some((ending, other)) = ending {
        stem.truncate(left(ending));
        stem.extend_from_slice(other.as_bytes());
    }
    // "planned" and "plan".
    if let [.., a, b] = stem.as_slice()
        && a == b
        && stem.len() > 3
        && !matches!(b, b's' | b'l')
    {
        stem.pop();
    }
}

/// What a question is about: the number of each stem.
fn asked(question: &[u8]) -> HashMap<Vec<u8>, u32> {
    let mut asked = HashMap::new();
    let mut own = Vec::new();
    for (_, word) in words(question) {
        let lower = word.to_ascii_lowercase();
        let says = lower.len() > 1 || lower.first().is_some_and(u8::is_ascii_digit);
        if says && !STOP.split(' ').any(|stop| stop.as_bytes() == lower) && asked.len() < QUESTION_WORDS {
            put_stem(word, &mut own);
            let next = asked.len() as u32;
            asked.entry(own.clone()).or_insert(next);
        }
    }
    asked
}

/// What documents have in common with a question.
struct Read<'a> {
    text: &'a [u8],
    /// Places where sentences end.
    ends: Vec<usize>,
    /// The place behind each word that the question shares, and the number of its stem.
    shared: Vec<(usize, u32)>,
    /// What each stem says: more, the fewer sentences have it.
    says: Vec<f32>,
}

impl<'a> Read<'a> {
    fn of(text: &'a [u8], documents: &[Range<usize>], asked: &HashMap<Vec<u8>, u32>) -> Read<'a> {
        let (mut ends, mut shared, mut stem) = (Vec::new(), Vec::new(), Vec::new());
        for document in documents {
            // Not behind a space: each run of them is looked over once.
            let last = |place: &usize| {
                place.checked_sub(1).and_then(|at| text.get(at)).is_some_and(|b| !b.is_ascii_whitespace())
            };
            let places = document.start + 1..document.end + 1;
            ends.extend(places.filter(|place| last(place) && ends_at(text, *place)));
            for (at, word) in words(text.get(document.clone()).unwrap_or_default()) {
                put_stem(word, &mut stem);
                shared.extend(asked.get(stem.as_slice()).map(|number| (document.start + at, *number)));
            }
        }
        let mut within: Vec<(u32, usize)> = Vec::with_capacity(shared.len());
        let mut place = 0;
        for (behind, number) in &shared {
            while ends.get(place).is_some_and(|end| end < behind) {
                place += 1;
            }
            within.push((*number, place));
        }
        within.sort_unstable();
        within.dedup();
        let mut says = vec![0.0; asked.len()];
        for have in within.chunk_by(|a, b| a.0 == b.0) {
            let number = have.first().map_or(0, |(number, _)| *number);
            if let Some(says) = says.get_mut(number as usize) {
                *says = (1.0 + ends.len() as f32 / have.len() as f32).ln();
            }
        }
        Read { text, ends, shared, says }
    }

    /// For the sentence that begins here.
    fn evidence(&self, begin: usize, quoting: &Quoting) -> f32 {
        let end = self.ends.get(self.ends.partition_point(|end| *end <= begin)).copied().unwrap_or(self.text.len());
        let end = end.min(begin + SENTENCE_BYTES);
        let first = self.shared.partition_point(|(behind, _)| *behind <= begin);
        let mut seen = 0_u64;
        let shared = self.shared.iter().skip(first).take_while(|(behind, _)| *behind <= end);
        shared.for_each(|(_, number)| seen |= 1 << number);
        let words: f32 = self.says.iter().enumerate().filter(|(i, _)| seen >> i & 1 == 1).map(|(_, says)| says).sum();
        (quoting.words * words).clamp(-MOST, MOST) + quoting.length * ((end - begin) as f32).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::quotes::beginnings;

    const QUOTING: Quoting = Quoting { opening: String::new(), words: 1.0, length: 0.0, margin: 0.0 };

    /// A conversation as its tokens spell it: turns, and what stands between them.
    fn talk(turns: &[(&str, &str)]) -> Vec<u8> {
        let mut text = Vec::new();
        for (role, said) in turns {
            text.extend([&[BETWEEN], role.as_bytes(), b"\n", said.as_bytes(), &[BETWEEN], b"\n"].concat());
        }
        text.push(BETWEEN);
        text
    }

    /// What the sentences of a document have that begin like these.
    fn of(text: &[u8], quoting: &Quoting, sentences: &[&str]) -> Vec<f32> {
        let begin = beginnings(text);
        let evidence = weigh(text, &begin, quoting);
        let begins = |sentence: &str| begin.iter().position(|at| text[*at..].starts_with(sentence.as_bytes())).unwrap();
        sentences.iter().map(|sentence| evidence[begins(sentence)]).collect()
    }

    const BOATS: &str = "<document name=\"boats.txt\">\nThe Anna is a barge. The Berta is a barge; she was painted by Zoë.\nWhy not?\nThe \
        Cora is an old barge.\n</document>";
    const SENTENCES: [&str; 4] = ["The Anna", "The Berta", "Why not", "The Cora"];

    #[test]
    fn shared_words_count_and_rare_ones_more() {
        let asked = |question: &str| {
            let talk = talk(&[("user", BOATS), ("assistant", "I have read it."), ("user", question)]);
            of(&talk, &QUOTING, &SENTENCES)
        };
        let rare = (1.0_f32 + 4.0).ln();
        assert_eq!(asked("Who paints the Berta?"), [0.0, 2.0 * rare, 0.0, 0.0]);
        assert_eq!(asked("what is ZOË?"), [0.0, rare, 0.0, 0.0]);
        let common = (1.0_f32 + 4.0 / 3.0).ln();
        assert_eq!(asked("Barges?\nANNA?"), [rare + common, common, 0.0, common]);
        assert_eq!(asked("Why is it not?"), [0.0; 4]);
        assert_eq!(asked(""), [0.0; 4]);
    }

    #[test]
    fn many_shared_words_count_no_more_than_a_few() {
        let talk = talk(&[("user", BOATS), ("user", "Berta painted by Zoë?")]);
        let much = Quoting { words: 3.0, ..QUOTING };
        assert_eq!(of(&talk, &much, &SENTENCES), [0.0, MOST, 0.0, 0.0]);
    }

    #[test]
    fn of_documents_and_for_the_last_question_alone() {
        let talk = talk(&[
            ("user", "Where is the Cora?"),
            ("assistant", "I do not know the Cora."),
            ("user", BOATS),
            ("assistant", "I have read it."),
            ("user", "Where is the Berta?"),
            ("assistant", "The Anna is here."),
            ("user", "And the Cora?"),
            ("assistant", "<think>"),
            ("assistant", "The Anna?"),
        ]);
        let evidence = of(&talk, &QUOTING, &["Where is the Cora", "The Berta", "The Cora", "And the"]);
        assert_eq!(evidence, [0.0, 0.0, (1.0_f32 + 4.0).ln(), 0.0]);
        // Nothing was loaded, nothing asked, nothing said.
        for text in [&b""[..], b"\xff", b"The Anna.", BOATS.as_bytes()] {
            assert!(weigh(text, &beginnings(text), &QUOTING).iter().all(|evidence| *evidence == 0.0));
        }
    }

    #[test]
    fn the_length_of_a_sentence_counts_by_its_logarithm() {
        let talk = talk(&[("user", BOATS), ("user", "The Anna?")]);
        let length = Quoting { words: 0.0, length: 2.0, ..QUOTING };
        let bytes = ["The Anna is a barge.", "Why not?"].map(|sentence| 2.0 * (sentence.len() as f32).ln());
        assert_eq!(of(&talk, &length, &["The Anna", "Why not"]), bytes);
    }

    #[test]
    fn a_long_text_takes_no_time() {
        // One line, all of it beginnings; spaces alone; many sentences.
        for many in ["AB, CD ", "   ", "The Anna is here. ", "anna\n"] {
            let text = format!("<document name=\"a\">\n{}\n</document>", many.repeat((4 << 20) / many.len()));
            let talk = talk(&[("user", &text), ("user", "Where is Anna? AB")]);
            let begin = beginnings(&talk);
            assert_eq!(weigh(&talk, &begin, &QUOTING).len(), begin.len());
        }
    }

    #[test]
    fn forms_of_a_word_have_one_stem() {
        let stem = |word: &str| {
            let mut stem = Vec::new();
            put_stem(word.as_bytes(), &mut stem);
            String::from_utf8(stem).unwrap()
        };
        for forms in [
            ["deposit", "deposits", "deposited"],
            ["plan", "planned", "planning"],
            ["city", "cities", "City"],
            ["close", "closes", "closing"],
        ] {
            assert!(forms.iter().all(|form| stem(form) == stem(forms[0])), "{forms:?} {:?}", forms.map(stem));
        }
        for other in ["gas", "pass", "as", "é", "ÉTÉ"] {
            assert_eq!(stem(other), other.to_lowercase());
        }
    }
}
