//! Quotes of an answer, looked up in the documents of its conversation.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Match {
    #[default]
    None,
    /// At least 85 % of the quote's words stand there in one run.
    Close,
    /// Equal except for white space, typographic marks, hyphenation and case.
    Equal,
    Exact,
}

impl Match {
    pub fn words(self) -> &'static str {
        match self {
            Match::None => "not in any document",
            Match::Close => "close",
            Match::Equal => "equal",
            Match::Exact => "exact",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Quote {
    /// As the answer has it, without its marks.
    pub text: String,
    #[serde(rename = "match")]
    pub matched: Match,
    pub document: Option<String>,
    /// Lines of the document's own text, from 1.
    pub first_line: u64,
    pub last_line: u64,
    /// Of a document with pages, from 1.
    pub page: Option<u64>,
    /// A line or page that the answer names for the quote and that is wrong: `line 12`.
    pub corrects: Option<String>,
}

impl Quote {
    /// `lease.txt 6 exact`, `not in any document`. The name is raw: it must be cleaned before it is shown.
    pub fn place(&self) -> String {
        let words = self.matched.words();
        let Some(name) = &self.document else { return words.to_owned() };
        let grouped = crate::core::grouped;
        let last =
            if self.last_line > self.first_line { format!("-{}", grouped(self.last_line)) } else { String::new() };
        let page = self.page.map_or(String::new(), |page| format!(", page {page},"));
        let not = self.corrects.as_ref().map_or(String::new(), |claim| format!(", not {claim}"));
        format!("{name} {}{last}{page} {words}{not}", grouped(self.first_line))
    }

    pub fn lines<'t>(&self, text: &'t str) -> impl Iterator<Item = (u64, &'t str)> {
        super::looked::lines(text, self.first_line, self.last_line)
    }
}
