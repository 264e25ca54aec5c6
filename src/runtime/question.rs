//! Questions to the user.

use super::verb::Answer;
use super::{Activity, Attendance, Choice, Notice, State, Verb, Wait, Wake};

impl State {
    pub(super) fn answered(&mut self, question: u64, answer: Answer) {
        match &self.here.wait {
            Wait::Question { id, before, .. } if *id == question => {
                // The stop that led to the question is over.
                let before = Some(before.clone()).filter(|before| *before != Activity::Stopping);
                if let Some(before) = before {
                    self.activity(before);
                }
                self.wake(Wake::Answer(answer));
            }
            // The question is no longer open.
            _ => {}
        }
    }
}

impl Verb {
    /// Asks the user and returns the key of the choice. The last choice means "cancel" and loses nothing. Without a
    /// user the first one is taken.
    pub(super) async fn ask_user(&mut self, text: String, choices: &[(char, &str)]) -> char {
        let cancel = choices.last().map_or('\x1b', |(key, _)| *key);
        if self.attendance == Attendance::Absent {
            return choices.first().map_or(cancel, |(key, _)| *key);
        }
        match self.put(|id| Notice::Question { id, text, choices: Choice::all(choices) }).await {
            Some(Answer::Key(key)) if choices.iter().any(|(known, _)| *known == key) => key,
            Some(Answer::Key(_) | Answer::Files(_)) | None => cancel,
        }
    }

    /// Shows a question; `None` if the user stops instead of answering.
    pub(super) async fn put(&mut self, notice: impl FnOnce(u64) -> Notice) -> Option<Answer> {
        if self.quitting {
            return None;
        }
        self.next_question += 1;
        let id = self.next_question;
        let before = self.here.activity.clone();
        match self.off_screen {
            // Off screen only the question is reported, not an end of work.
            true => self.here.activity = Activity::Idle,
            false => self.activity(Activity::Idle),
        }
        let notice = Box::new(notice(id));
        self.report((*notice).clone());
        match self.wait(Wait::Question { id, notice, before }).await {
            Wake::Answer(answer) => Some(answer),
            _ => None,
        }
    }

    /// True for the first of two choices.
    pub(super) async fn confirm(&mut self, text: String, yes: &str) -> bool {
        self.ask_user(text, &[('\n', yes), ('\x1b', "cancel")]).await == '\n'
    }
}
