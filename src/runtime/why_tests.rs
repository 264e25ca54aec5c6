use super::*;

/// Each character is a token.
fn pieces(text: &str) -> Vec<Range<usize>> {
    text.char_indices().map(|(i, c)| i..i + c.len_utf8()).collect()
}

#[test]
fn the_part_that_lost_is_named_whole_and_weighed_by_its_product() {
    let text = "The code is KX-2002, as said.";
    let words = words(&pieces(text), text, 0);
    let named: Vec<&str> = words.iter().map(|w| &text[w.bytes.clone()]).collect();
    // The first token has no score and is not part of a word.
    assert_eq!(named, ["he", " code", " is", " KX-2002,", " as", " said."]);
    let shown = vec![-0.1f32; text.len() - 1];
    let mut hidden = shown.clone();
    // Three of its characters became ten times less likely each, another word hardly.
    for i in [12, 15, 16] {
        hidden[i - 1] -= 10f32.ln();
    }
    hidden[5] -= 0.2;
    let why = weigh(&words, text, &shown, &hidden);
    assert_eq!(why.part.as_deref(), Some("KX-2002"));
    assert!((why.times - 1000.0).abs() < 1.0 && why.whole > 1000.0, "{why:?}");
    let why = weigh(&words, text, &shown, &shown);
    assert_eq!((why.part, why.times, why.whole), (None, 1.0, 1.0));
    // Thoughts at the start are scored and not shown.
    let after = super::words(&pieces(text), text, 12);
    assert_eq!(&text[after[0].bytes.clone()], "KX-2002,");
}

#[test]
fn ratios_are_factors() {
    let shown: Vec<String> = [1.04, 2.26, 903.0, 12_345.2].map(times).to_vec();
    assert_eq!(shown, ["1.0 times", "2.3 times", "903 times", "12,345 times"]);
    assert_eq!(
        [whole(0.1), whole(1.0), whole(5.0)],
        ["10 times more likely", "as likely as before", "5.0 times less likely"]
    );
}
