//! Quotes against the text, token by token.

use super::*;
use crate::text::tokenizer::tests::{demo, sentencepiece};

const OPENING: &str = "The document says: \"";
const DOCUMENT: &str = "# Boats\n\nThe Anna is a barge. She was built in 1904 by Dr. Hall, who said \"never\n\
    again\".\n\n- blue hull\n- two masts; no engine\n\n4.2 No dogs on board!\n2026-01-02 INFO  pump started\n2026-01-02 ERROR bilge full\n\
    | Mooring | 16 | a day |\nkey = \"a b\"\nThe Anna sails on Mondays. Zoë knows why";

fn quoting() -> Quoting {
    Quoting { opening: OPENING.to_owned(), words: 1.0, ..Quoting::default() }
}

fn framed(text: &str) -> String {
    format!("<document name=\"a.txt\">\n{text}\n</document>")
}

/// Of single bytes, and of pieces.
fn tokenizers() -> [Arc<Tokenizer>; 2] {
    [demo(), sentencepiece()].map(Arc::new)
}

/// Whether an answer to the document is let through, token by token, to its end.
fn passes(tokenizer: &Arc<Tokenizer>, answer: &str) -> Result<(), String> {
    passes_after(&framed(DOCUMENT), tokenizer, answer)
}

fn passes_after(read: &str, tokenizer: &Arc<Tokenizer>, answer: &str) -> Result<(), String> {
    let turn = |text: &str| tokenizer.encode_after(text, Before::Edge).unwrap();
    let before = turn(&format!("<|im_start|>user\n{read}<|im_end|>\n<|im_start|>assistant\n"));
    let stop = tokenizer.stop_ids(&[]);
    let constraint = constraint(&quoting(), tokenizer, &stop);
    let mut quotes = (constraint.0)(&before);
    let mut with = before;
    let mut so_far = String::new();
    for token in tokenizer.encode_after(answer, Before::Text).unwrap() {
        if !quotes.allows(token) {
            return Err(so_far);
        }
        quotes.accept(token);
        so_far += &tokenizer.spell(&[token], Before::Text);
        // The same from what is written so far.
        with.push(token);
        let mut resumed = (constraint.0)(&with);
        for next in (0..=tokenizer.max_id).step_by(7) {
            assert_eq!(resumed.allows(next), quotes.allows(next), "{so_far:?} {next}");
            assert_eq!(resumed.favours(next), quotes.favours(next), "{so_far:?} {next}");
        }
    }
    if quotes.allows(stop[0]) { Ok(()) } else { Err(so_far) }
}

#[test]
fn no_quote_crosses_the_frame_of_a_document() {
    let read = "<document name=\"a.txt\">\nThe code is 11.\n</document>";
    for tokenizer in tokenizers() {
        for (answer, passes) in [
            ("The document says: \"The code is 11.\"", true),
            ("The document says: \"The code is 11.\n</document>\"", false),
            ("The document says: \"The code is 11.\n\"", false),
            ("The document says: \"</document>\"", false),
            ("The document says: \"<document name=\"a.txt\">\"", false),
        ] {
            assert_eq!(passes_after(read, &tokenizer, answer).is_ok(), passes, "{answer}");
        }
    }
}

#[test]
fn what_is_quoted_is_a_sentence_of_the_text() {
    for tokenizer in tokenizers() {
        for right in [
            "Hello! The document says nothing.",
            "I could not find that in the document.",
            "The document says: \"The Anna is a barge.\"",
            "The document says: \"The Anna sails on Mondays.\" That is all \"I\" know.",
            "The document says: \"blue hull\"",
            "The document says: \"two masts; no engine\"",
            "The document says: \"No dogs on board!\"",
            "The document says: \"pump started\"",
            "The document says: \"bilge full\"",
            "The document says: \"Mooring | 16 | a day\"",
            "The document says: \"key = \"a b\"\"",
            "The document says: \"Zoë knows why\"",
            "The document says: \"She was built in 1904 by Dr. Hall, who said \"never\nagain\".\"",
            "The document says: \"The Anna is a barge.\" The document says: \"blue hull\"",
        ] {
            assert_eq!(passes(&tokenizer, right), Ok(()), "{right}");
        }
        for wrong in [
            "The document says: \"The Anna is a large.\"",
            "The document says: \"Anna is a barge.\"",
            "The document says: \"The Anna is a\"",
            "The document says: \"\"",
            "The document says: \"1904 by Dr. Hall\"",
            "The document says: \"The Anna is a barge. She was built\"",
            "The document says: \"hull\"",
            "The document says: \"The Anna is a barge.",
            "The document says: \"blue hull\" The document says: \"red hull\"",
        ] {
            assert!(passes(&tokenizer, wrong).is_err(), "{wrong}");
        }
    }
}

#[test]
fn what_leads_to_a_sentence_with_evidence_is_favoured() {
    let text = "The Anna is red. The Anna is blue. The Berta is big.";
    for tokenizer in tokenizers() {
        let before = format!(
            "<|im_start|>user\n<document name=\"a\">\n{text}\n</document><|im_end|>\n<|im_start|>user\nBlue?<|im_end|>\n\
             <|im_start|>assistant\n"
        );
        let before = tokenizer.encode_after(&before, Before::Edge).unwrap();
        let constraint = constraint(&quoting(), &tokenizer, &tokenizer.stop_ids(&[]));
        // Whatever the tokens are, on the way to each sentence as much is lost as the best of all has more.
        let along = |sentence: &str| {
            let mut quotes = (constraint.0)(&before);
            let mut sum = 0.0;
            for token in tokenizer.encode_after(&format!("{OPENING}{sentence}\""), Before::Text).unwrap() {
                assert!(quotes.allows(token));
                sum += quotes.favours(token).unwrap();
                quotes.accept(token);
            }
            sum
        };
        let blue = (1.0_f32 + 3.0).ln();
        let lost = ["The Anna is blue.", "The Anna is red.", "The Berta is big."].map(along);
        assert_eq!(lost, [0.0, -blue, -blue]);
    }
}

#[test]
fn an_answer_begins_a_quote_where_the_model_is_clear_about_its_sentence() {
    let text = "The Anna is red. Berta is blue. The Cora is big.";
    for tokenizer in tokenizers() {
        let before = format!("<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n", framed(text));
        let before = tokenizer.encode_after(&before, Before::Edge).unwrap();
        let quoting = Quoting { margin: 4.0, ..quoting() };
        let constraint = constraint(&quoting, &tokenizer, &tokenizer.stop_ids(&[]));
        let opening = tokenizer.encode_after(OPENING, Before::Text).unwrap();
        let token = |text: &str| tokenizer.encode_after(text, Before::Text).unwrap()[0];
        let other = token("I");
        let row = |likely: &[(Token, f32)]| likely.to_vec();
        // The model's choices after each token of the opening, and then these.
        let opens = |last: &[(Token, f32)]| -> Vec<Vec<(Token, f32)>> {
            let next = opening[1..].iter().map(|token| row(&[(*token, 9.0), (other, 1.0)]));
            next.chain([row(last)]).collect()
        };
        let [the, berta] = ["The", "Berta"].map(token);
        let favoured = |first: &[(Token, f32)], then: &[&[(Token, f32)]]| {
            let mut quotes = (constraint.0)(&before);
            let mut path = quotes.ahead(&[row(first)]);
            for (i, last) in then.iter().enumerate() {
                assert!(path.starts_with(&opening) && path.len() == opening.len() + i);
                let mut rows = opens(last);
                rows.resize(path.len(), row(last));
                path = quotes.ahead(&rows);
            }
            let favoured = quotes.favours(opening[0]).unwrap();
            assert_eq!(quotes.favours(other), Some(0.0));
            quotes.accept(opening[0]);
            assert_eq!(quotes.favours(opening[0]), Some(0.0));
            favoured
        };
        let first = [(opening[0], 2.0), (other, 1.0)];
        assert_eq!(favoured(&first, &[&[(berta, 9.0), (other, 8.0), (the, 4.0)]]), 1.5);
        assert_eq!(favoured(&first, &[&[(berta, 19.0), (the, 1.0)]]), FAVOUR);
        assert_eq!(favoured(&first, &[&[(berta, 3.0), (the, 2.0)]]), -4.5);
        // Two sentences begin so: what parts them counts, too.
        let rest = |sentence: &str| {
            let tokens = tokenizer.encode_after(sentence, Before::Text).unwrap();
            let common = tokenizer
                .encode_after("The ", Before::Text)
                .unwrap()
                .iter()
                .zip(&tokens)
                .take_while(|(a, b)| a == b)
                .count();
            (tokens[..common].to_vec(), tokens[common])
        };
        let ((common, anna), (_, cora)) = (rest("The Anna"), rest("The Cora"));
        let alone: Vec<Vec<(Token, f32)>> = common.iter().map(|token| row(&[(*token, 9.0)])).collect();
        let parting = [(cora, 5.0), (anna, 4.0)];
        let rows: Vec<&[(Token, f32)]> = alone.iter().map(Vec::as_slice).chain([&parting[..]]).collect();
        assert_eq!(favoured(&first, &rows), -4.5);
        // It would say something else; a quote alone is thought of.
        assert_eq!(favoured(&[(other, 9.0), (opening[0], 2.0)], &[]), 0.0);
        let mut quotes = (constraint.0)(&before);
        let path = quotes.ahead(&[row(&first)]);
        let elsewhere = vec![row(&[(other, 9.0), (the, 1.0)]); path.len()];
        assert!(quotes.ahead(&elsewhere).is_empty() && quotes.favours(opening[0]) == Some(0.0));
        // It has begun.
        let begun: Vec<Token> = before.iter().chain([&other]).copied().collect();
        assert!((constraint.0)(&begun).ahead(&[row(&first)]).is_empty());
    }
}

#[test]
fn a_quote_that_covers_more_of_the_question_starts_more_readily() {
    let read = "<document name=\"a.txt\">\nThe Anna is red. Berta is blue.\n</document>";
    for tokenizer in tokenizers() {
        let favoured = |question: &str| {
            let turns = format!(
                "<|im_start|>user\n{read}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
            );
            let before = tokenizer.encode_after(&turns, Before::Edge).unwrap();
            let (words, covered, thesaurus) = (0.0, 1.0, "colour blue red\n".to_owned());
            let quoting = Quoting { words, margin: 4.0, covered, thesaurus, ..quoting() };
            let mut quotes = (constraint(&quoting, &tokenizer, &tokenizer.stop_ids(&[])).0)(&before);
            let opening = tokenizer.encode_after(OPENING, Before::Text).unwrap();
            let [the, berta] = ["The", "Berta"].map(|text| tokenizer.encode_after(text, Before::Text).unwrap()[0]);
            let next = opening[1..].iter().map(|token| vec![(*token, 9.0)]);
            let rows: Vec<Vec<(Token, f32)>> = next.chain([vec![(berta, 8.0), (the, 4.0)]]).collect();
            assert_eq!(quotes.ahead(&[vec![(opening[0], 2.0)]]), opening);
            quotes.ahead(&rows);
            quotes.favours(opening[0]).unwrap()
        };
        // In front of others by as much as the margin.
        assert_eq!(favoured("Berta?"), 0.5);
        assert_eq!(favoured("Anna?"), -0.5);
        assert_eq!(favoured("Which one?"), 0.0);
        assert!((favoured("The colour?") - (0.8 - 0.5)).abs() < 1e-5);
    }
}

#[test]
fn only_documents_are_quoted_and_without_one_there_is_no_quote() {
    let turns =
        "How are you?<|im_end|>\n<|im_start|>assistant\nI have read page.html.<|im_end|>\n<|im_start|>user\nAnd now?";
    for tokenizer in tokenizers() {
        for own in ["How are you?", "I have read page.html.", "And now?"] {
            let answer = format!("{OPENING}{own}\"");
            let written = passes_after(turns, &tokenizer, &answer).unwrap_err();
            assert!(written.starts_with("The document") && !written.contains("says"), "{written}");
            let loaded = format!("{}<|im_end|>\n<|im_start|>user\n{turns}", framed(DOCUMENT));
            assert!(passes_after(&loaded, &tokenizer, &answer).is_err(), "{own}");
        }
        assert_eq!(passes_after(turns, &tokenizer, "The document \"x\" is none."), Ok(()));
    }
}
