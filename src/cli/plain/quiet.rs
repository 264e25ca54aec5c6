//! `--quiet`: of what the runtime says answers are printed, and what has to be answered. What went wrong is on standard error.

use super::{Out, Plain};
use crate::core::transcript::Role;
use crate::runtime::protocol::{Level, Notice};

/// What a notice is where nothing but answers is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    /// An answer of the model or to a command, or a question.
    Answer,
    /// Progress, or a note.
    Note,
    /// Something is wrong.
    Trouble,
}

/// What a notice is.
pub(super) fn weight(notice: &Notice) -> Weight {
    match notice {
        // A warning says that something that was asked for did not happen, or not wholly.
        Notice::Note(Level::Error | Level::Warn, _)
        | Notice::Damage(_)
        | Notice::Save(_)
        | Notice::Fatal { .. }
        | Notice::Bye { unsaved: Some(_), .. } => Weight::Trouble,
        Notice::Note(Level::Info, _)
        | Notice::Ready(_)
        | Notice::Session(_)
        | Notice::Named { .. }
        | Notice::Several(_)
        | Notice::Delta { thinking: true, .. }
        | Notice::Background { .. }
        | Notice::Activity(_)
        | Notice::Bye { unsaved: None, .. } => Weight::Note,
        Notice::Added(m) if m.role == Role::Document => Weight::Note,
        Notice::Added(_)
        | Notice::Delta { thinking: false, .. }
        | Notice::Finished(_)
        | Notice::Acknowledged(_)
        | Notice::Meters(_)
        | Notice::Prompts(_)
        | Notice::Draft(_)
        | Notice::Library(_)
        | Notice::Titled(_)
        | Notice::Display(_)
        | Notice::Tree(_)
        | Notice::Page { .. }
        | Notice::Looked { .. }
        | Notice::Why { .. }
        | Notice::Map(_)
        | Notice::FanOut(_)
        | Notice::Aside { .. }
        | Notice::Question { .. }
        | Notice::Plan { .. }
        | Notice::Input { .. }
        | Notice::Sessions(_)
        | Notice::Found { .. }
        | Notice::Timeline(_)
        | Notice::Documents { .. } => Weight::Answer,
    }
}

impl Weight {
    /// Leaves out what is not wanted. What is to be done stays.
    pub(super) fn keep(self, out: &mut Vec<Out>) {
        match self {
            Weight::Answer => {}
            Weight::Note => out.retain(|o| !matches!(o, Out::Line(_) | Out::Part(_))),
            Weight::Trouble => {
                for o in out {
                    if let Out::Line(text) | Out::Part(text) = o {
                        *o = Out::Tell(std::mem::take(text));
                    }
                }
            }
        }
    }
}

impl Plain {
    /// Whether nothing but answers is printed.
    pub fn answers_only(self, only: bool) -> Plain {
        Plain { answers_only: only, ..self }
    }
}
