//! Earlier prompts: Up and Down step through them, Ctrl-R searches them.

const LIMIT: usize = 2_000;

#[derive(Clone, Debug, Default)]
pub struct History {
    prompts: Vec<String>,
    at: Option<usize>,
    draft: String,
}

impl History {
    pub fn prompts(&self) -> &[String] {
        &self.prompts
    }

    pub fn push(&mut self, prompt: &str) {
        self.at = None;
        if prompt.trim().is_empty() || self.prompts.last().is_some_and(|p| p == prompt) {
            return;
        }
        if self.prompts.len() == LIMIT {
            self.prompts.remove(0);
        }
        self.prompts.push(prompt.to_string());
    }

    pub fn earlier(&mut self, mut prompts: Vec<String>) {
        prompts.retain(|p| !self.prompts.contains(p));
        prompts.append(&mut self.prompts);
        prompts.drain(..prompts.len().saturating_sub(LIMIT));
        self.prompts = prompts;
        self.at = None;
    }

    pub fn up(&mut self, draft: &str) -> Option<&str> {
        let at = match self.at {
            None => {
                self.draft = draft.to_string();
                self.prompts.len().checked_sub(1)?
            }
            Some(at) => at.checked_sub(1)?,
        };
        self.at = Some(at);
        self.prompts.get(at).map(String::as_str)
    }

    pub fn down(&mut self) -> Option<&str> {
        let at = self.at? + 1;
        if at >= self.prompts.len() {
            self.at = None;
            return Some(&self.draft);
        }
        self.at = Some(at);
        self.prompts.get(at).map(String::as_str)
    }

    pub fn rest(&mut self) {
        self.at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walking_up_and_down_returns_to_the_draft() {
        let mut h = History::default();
        h.push("one");
        h.push("two");
        h.push("two");
        assert_eq!(h.up("dra"), Some("two"));
        assert_eq!(h.up(""), Some("one"));
        assert_eq!(h.up(""), None);
        assert_eq!(h.down(), Some("two"));
        assert_eq!(h.down(), Some("dra"));
        assert_eq!(h.down(), None);
        h.earlier(vec!["zero".into(), "two".into()]);
        assert_eq!(h.prompts(), ["zero", "one", "two"]);
    }
}
