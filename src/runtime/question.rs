//! Questions to the user.

use super::work::Answer;
use super::{Attendance, Done, State, Work};
use crate::runtime::protocol::{Activity, Choice, Notice};

impl State {
    pub(super) fn answered(&mut self, question: u64, answer: Answer) {
        match std::mem::take(&mut self.here.work) {
            Work::Asking { question: asked, before, then, .. } if asked == question => {
                // A stop led to the question, and is over.
                if before != Activity::Stopping {
                    self.activity(before);
                }
                self.resumed(then, Some(answer));
            }
            // The question is gone.
            work => self.here.work = work,
        }
    }

    /// Puts a question to the user. The last choice is the one for "cancel", and loses nothing; with nobody there the first one
    /// is taken.
    pub(super) fn ask_user(
        &mut self,
        text: String,
        choices: Vec<Choice>,
        then: impl FnOnce(&mut State, char) -> Done + Send + 'static,
    ) -> Done {
        let cancel = choices.last().map_or('\x1b', |c| c.key);
        if self.attendance == Attendance::Absent {
            let first = choices.first().map_or(cancel, |c| c.key);
            return then(self, first);
        }
        let keys: Vec<char> = choices.iter().map(|c| c.key).collect();
        self.put(
            |id| Notice::Question { id, text, choices },
            move |runtime, answer| match answer {
                Some(Answer::Key(key)) if keys.contains(&key) => then(runtime, key),
                Some(Answer::Key(_) | Answer::Files(_)) | None => then(runtime, cancel),
            },
        )
    }

    /// Puts a question; `then` gets `None` when the user stops instead of answering.
    pub(super) fn put(
        &mut self,
        notice: impl FnOnce(u64) -> Notice,
        then: impl FnOnce(&mut State, Option<Answer>) -> Done + Send + 'static,
    ) -> Done {
        if self.quitting {
            return then(self, None);
        }
        self.next_question += 1;
        let question = self.next_question;
        let before = self.here.activity.clone();
        match self.off_screen {
            // There it is a question that is told, and no end.
            true => self.here.activity = Activity::Idle,
            false => self.activity(Activity::Idle),
        }
        let notice = Box::new(notice(question));
        self.tell((*notice).clone());
        self.here.work = Work::Asking { question, notice, before, then: Box::new(then) };
        Ok(())
    }

    /// A yes-or-no question: true for the first of two choices.
    pub(super) fn confirm(
        &mut self,
        text: String,
        yes: &str,
        then: impl FnOnce(&mut State, bool) -> Done + Send + 'static,
    ) -> Done {
        let choices =
            vec![Choice { key: '\n', label: yes.to_owned() }, Choice { key: '\x1b', label: "cancel".to_owned() }];
        self.ask_user(text, choices, |runtime, key| then(runtime, key == '\n'))
    }
}
