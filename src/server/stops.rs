//! Stop texts: found across tokens, and never shown in part.

#[derive(Clone, Debug, Default)]
pub(super) struct Stops {
    texts: Vec<String>,
    /// The end of the answer that may begin a stop text.
    held: String,
}

impl Stops {
    pub(super) fn new(texts: &[String]) -> Stops {
        Stops { texts: texts.iter().filter(|t| !t.is_empty()).cloned().collect(), held: String::new() }
    }

    /// Takes more of the answer; returns the certain text, and the stop text that ends it there.
    pub(super) fn push(&mut self, text: &str) -> (String, Option<String>) {
        if self.texts.is_empty() {
            return (text.to_owned(), None);
        }
        self.held.push_str(text);
        let first = self.texts.iter().filter_map(|t| Some((self.held.find(t.as_str())?, t))).min_by_key(|f| f.0);
        if let Some((at, stop)) = first {
            let stop = stop.clone();
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), Some(stop));
        }
        let longest = self.texts.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest.saturating_sub(1));
        let may_begin = |at: &usize| {
            self.held.get(*at..).is_some_and(|end| !end.is_empty() && self.texts.iter().any(|t| t.starts_with(end)))
        };
        let certain = (from..self.held.len()).find(may_begin).unwrap_or(self.held.len());
        let rest = self.held.split_off(certain);
        (std::mem::replace(&mut self.held, rest), None)
    }

    /// The answer is complete: the held text is part of it.
    pub(super) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_is_found_across_pieces_and_never_shown() {
        let mut stops = Stops::new(&["STOP".into(), "\n\n".into()]);
        assert_eq!(stops.push("one S"), ("one ".into(), None));
        assert_eq!(stops.push("TO"), (String::new(), None));
        assert_eq!(stops.push("ne\n"), ("STOne".into(), None));
        assert_eq!(stops.push("two STOP three"), ("\ntwo ".into(), Some("STOP".into())));
        let mut stops = Stops::new(&["END".into()]);
        assert_eq!(stops.push("das Ende EN"), ("das Ende ".into(), None));
        assert_eq!(stops.finish(), "EN");
        assert_eq!(Stops::new(&[]).push("x"), ("x".into(), None));
        // The earliest stop text in the answer counts, in any order of the list.
        assert_eq!(Stops::new(&["b".into(), "a".into()]).push("xab"), ("x".into(), Some("a".into())));
    }
}
