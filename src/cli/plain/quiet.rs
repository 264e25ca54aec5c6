//! `--quiet`: prints only answers and questions on standard output, and trouble on standard error.

use super::super::notices::Weight;
use super::{Out, Plain};

impl Weight {
    /// Leaves out what is not wanted. What is to be done stays.
    pub(super) fn keep(self, out: &mut Vec<Out>) {
        match self {
            Weight::Answer => {}
            Weight::Note => out.retain(|o| !matches!(o, Out::Line(_) | Out::Part(_))),
            Weight::Trouble => {
                for o in out {
                    if let Out::Line(text) | Out::Part(text) = o {
                        *o = Out::Stderr(std::mem::take(text));
                    }
                }
            }
        }
    }
}

impl Plain {
    pub fn answers_only(self, only: bool) -> Plain {
        Plain { answers_only: only, ..self }
    }
}
