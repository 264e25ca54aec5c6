//! "Did you mean": the nearest of some names.

/// The candidate nearest to `word`, if it is near enough for a typing error.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    candidates
        .into_iter()
        .map(|c| (strsim::damerau_levenshtein(&word, &c.to_lowercase()), c))
        .filter(|(distance, c)| {
            let shorter = word.chars().count().min(c.chars().count());
            *distance <= 1 + shorter / 4 && *distance < c.chars().count()
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, c)| c)
}

/// ` Did you mean X?` for the nearest candidate, or nothing.
pub fn meant<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, candidates).map_or(String::new(), |near| format!(" Did you mean {near}?"))
}

/// The sentence for a document that is not among `names`: those of `place`, which `lists` shows.
pub fn no_document<'a>(name: &str, place: &str, names: impl IntoIterator<Item = &'a str>, lists: &str) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    let near = match names.iter().find(|candidate| !name.is_empty() && candidate.starts_with(name)) {
        Some(near) => format!(" Did you mean {near}?"),
        None => meant(name, names),
    };
    format!("No document {name} in {place}.{near} {lists} lists them.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_recognised_and_another_word_is_not() {
        assert_eq!(nearest("tehme", ["theme", "mouse"]), Some("theme"));
        assert_eq!(nearest("lod", ["load", "look", "library"]), Some("load"));
        assert_eq!(nearest("xyz", ["load", "look"]), None);
        assert_eq!(nearest("m", ["?"]), None);
        assert_eq!(meant("tehme", ["theme", "mouse"]), " Did you mean theme?");
        assert_eq!(meant("xyz", ["load", "look"]), "");
        let sentence = no_document("plan", "the library", ["plan.md", "notes.txt"], "/library");
        assert_eq!(sentence, "No document plan in the library. Did you mean plan.md? /library lists them.");
    }
}
