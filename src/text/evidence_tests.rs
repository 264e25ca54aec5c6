//! What speaks for the sentences of documents.

use super::*;
use crate::text::sentences::beginnings;

const QUOTING: Quoting = Quoting {
    opening: String::new(),
    words: 1.0,
    length: 0.0,
    margin: 0.0,
    related: 0.0,
    covered: 0.0,
    thesaurus: String::new(),
};

/// A conversation as its tokens spell it: turns, and the tokens between them.
fn conversation(turns: &[(&str, &str)]) -> Vec<u8> {
    let mut text = Vec::new();
    for (role, written) in turns {
        text.extend([&[BETWEEN], role.as_bytes(), b"\n", written.as_bytes(), &[BETWEEN], b"\n"].concat());
    }
    text.push(BETWEEN);
    text
}

/// What the sentences of a document have that begin like these.
fn of(text: &[u8], quoting: &Quoting, sentences: &[&str]) -> Vec<f32> {
    let begin = beginnings(text);
    let evidence: Vec<f32> = weigh(text, &begin, quoting).iter().map(|evidence| evidence.favours).collect();
    let begins = |sentence: &str| begin.iter().position(|at| text[*at..].starts_with(sentence.as_bytes())).unwrap();
    sentences.iter().map(|sentence| evidence[begins(sentence)]).collect()
}

const BOATS: &str = "<document name=\"boats.txt\">\nThe Anna is a barge. The Berta is a barge; she was painted by Zoë.\nWhy not?\nThe \
    Cora is an old barge.\n</document>";
const SENTENCES: [&str; 4] = ["The Anna", "The Berta", "Why not", "The Cora"];

#[test]
fn shared_words_count_and_rare_ones_more() {
    let weigh = |question: &str| {
        let conversation = conversation(&[("user", BOATS), ("assistant", "I have read it."), ("user", question)]);
        of(&conversation, &QUOTING, &SENTENCES)
    };
    let rare = (1.0_f32 + 4.0).ln();
    assert_eq!(weigh("Who paints the Berta?"), [0.0, 2.0 * rare, 0.0, 0.0]);
    assert_eq!(weigh("what is ZOË?"), [0.0, rare, 0.0, 0.0]);
    let common = (1.0_f32 + 4.0 / 3.0).ln();
    assert_eq!(weigh("Barges?\nANNA?"), [rare + common, common, 0.0, common]);
    assert_eq!(weigh("Why is it not?"), [0.0; 4]);
    assert_eq!(weigh(""), [0.0; 4]);
}

#[test]
fn a_month_that_is_spelled_as_a_common_word_counts() {
    const CONTRACT: &str = "<document name=\"contract.txt\">\nCONTRACT\nThe rent of 450 euros is due in May.\nThe deposit is due in \
        June.\nThe tenant may sublet.\nThe keys are with Will.\n</document>";
    let weigh = |question: &str| {
        let conversation = conversation(&[("user", CONTRACT), ("user", question)]);
        of(&conversation, &QUOTING, &["The rent", "The deposit", "The tenant", "The keys"])
    };
    let [rent, deposit, tenant, keys] = weigh("What is due in May?")[..] else { panic!("four sentences") };
    assert!(rent > deposit && deposit > 0.0 && (tenant, keys) == (0.0, 0.0), "{rent} {deposit} {tenant} {keys}");
    assert!(weigh("And what has Will?")[3] > 0.0);
    // Where it is no name, or ambiguous.
    for question in ["What may I do?", "May I do it?", "It is so. May I do it?", "Will he do it?", "WHAT MAY HE DO?"] {
        assert_eq!(weigh(question), [0.0; 4], "{question}");
    }
    let stop = |name: &&str| STOP.split(' ').any(|stop| stop == name.to_ascii_lowercase());
    assert!(NAMES.iter().all(stop));
}

#[test]
fn a_name_in_capitals_counts_in_any_position() {
    const CONTRACT: &str = "<document name=\"contract.txt\">\nThe US firm is a tenant.\nIt pays the rent to us.\nAll IT is \
        rented.\n</document>";
    let weigh = |question: &str| {
        let conversation = conversation(&[("user", CONTRACT), ("user", question)]);
        of(&conversation, &QUOTING, &["The US", "It pays", "All IT"])
    };
    for question in ["US address?", "It is so. US address?", "Which address in the US?"] {
        let [firm, rent, it] = weigh(question)[..] else { panic!("three sentences") };
        assert!(firm > 0.0 && (rent, it) == (0.0, 0.0), "{question}: {firm} {rent} {it}");
    }
    let [firm, rent, it] = weigh("IT costs?")[..] else { panic!("three sentences") };
    assert!(it > 0.0 && (firm, rent) == (0.0, 0.0), "{firm} {rent} {it}");
    for question in ["It costs what?", "Is it for us?", "US ADDRESS?"] {
        assert_eq!(weigh(question), [0.0; 3], "{question}");
    }
}

/// With these related words.
fn knowing(thesaurus: &str) -> Quoting {
    Quoting { related: 1.0, covered: 4.0, thesaurus: thesaurus.to_owned(), ..QUOTING }
}

#[test]
fn a_related_word_counts_by_how_rare_any_of_them_is() {
    let weigh = |question: &str, thesaurus: &str| {
        let conversation = conversation(&[("user", BOATS), ("assistant", "I have read it."), ("user", question)]);
        of(&conversation, &knowing(thesaurus), &SENTENCES)
    };
    let (rare, common) = ((1.0_f32 + 4.0).ln(), (1.0_f32 + 4.0 / 3.0).ln());
    let group = "boat barge vessel\ncolour painted\n";
    assert_eq!(weigh("Which vessels?", group), [common, common, 0.0, common]);
    assert_eq!(weigh("Of what colour is the boat?", group), [common, rare + common, 0.0, common]);
    // The word itself counts once, and a word in no group as before.
    assert_eq!(weigh("A barge, or another boat?", group), [2.0 * common, 2.0 * common, 0.0, 2.0 * common]);
    assert_eq!(weigh("Which vessels?", ""), [0.0; 4]);
    // A kind of thing, and things of that kind, which are not one another.
    let kinds = "ship: barge old\n";
    assert_eq!(weigh("Which ship?", kinds), [common, common, 0.0, common]);
    assert_eq!(weigh("Is it old?", kinds), [0.0, 0.0, 0.0, rare]);
}

#[test]
fn a_sentence_that_covers_the_question_favours_a_quote() {
    let conversation = conversation(&[("user", BOATS), ("user", "Who painted the Berta in Oslo?")]);
    let begin = beginnings(&conversation);
    let covers = |quoting: &Quoting, sentence: &str| {
        let at = begin.iter().position(|at| conversation[*at..].starts_with(sentence.as_bytes())).unwrap();
        weigh(&conversation, &begin, quoting)[at].covers
    };
    let close = |a: f32, b: f32| (a - b).abs() < 1e-5;
    // Two of three, as rare as each other, and the sentence that does not mention the place.
    assert!(close(covers(&knowing(""), "The Berta"), 4.0 * (2.0 / 3.0 - 0.5)));
    assert!(close(covers(&knowing("oslo barge"), "The Anna"), 4.0 * (RELATED * 0.84730 / 4.06617 - 0.5)));
    assert!(close(covers(&knowing(""), "Why not"), -2.0));
    // No evidence outside documents or without a question.
    assert_eq!((covers(&QUOTING, "The Berta"), covers(&knowing(""), "Who painted")), (0.0, 0.0));
}

#[test]
fn many_shared_words_count_no_more_than_a_few() {
    let conversation = conversation(&[("user", BOATS), ("user", "Berta painted by Zoë?")]);
    let much = Quoting { words: 9.0, ..QUOTING };
    assert_eq!(of(&conversation, &much, &SENTENCES), [0.0, MOST, 0.0, 0.0]);
}

#[test]
fn of_documents_and_for_the_last_question_alone() {
    let conversation = conversation(&[
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
    let evidence = of(&conversation, &QUOTING, &["Where is the Cora", "The Berta", "The Cora", "And the"]);
    assert_eq!(evidence, [0.0, 0.0, (1.0_f32 + 4.0).ln(), 0.0]);
    // No document, no question, no text.
    for text in [&b""[..], b"\xff", b"The Anna.", BOATS.as_bytes()] {
        assert!(weigh(text, &beginnings(text), &QUOTING).iter().all(|evidence| *evidence == Evidence::default()));
    }
}

#[test]
fn the_length_of_a_sentence_counts_by_its_logarithm() {
    let conversation = conversation(&[("user", BOATS), ("user", "The Anna?")]);
    let length = Quoting { words: 0.0, length: 2.0, ..QUOTING };
    let bytes = ["The Anna is a barge.", "Why not?"].map(|sentence| 2.0 * (sentence.len() as f32).ln());
    assert_eq!(of(&conversation, &length, &["The Anna", "Why not"]), bytes);
}

#[test]
fn a_long_text_takes_no_time() {
    // One line, all of it beginnings; spaces alone; many sentences.
    for many in ["AB, CD ", "   ", "The Anna is here. ", "anna\n"] {
        let text = format!("<document name=\"a\">\n{}\n</document>", many.repeat((4 << 20) / many.len()));
        let conversation = conversation(&[("user", &text), ("user", "Where is Anna? AB")]);
        let begin = beginnings(&conversation);
        let thesaurus = "anna here\nanna ab cd\n".repeat(1 << 15);
        assert_eq!(weigh(&conversation, &begin, &knowing(&thesaurus)).len(), begin.len());
    }
}
