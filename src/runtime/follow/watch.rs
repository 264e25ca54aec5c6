//! `/watch QUESTION`: a question that is answered again after each change of the followed files. Neither question nor
//! answer enters the conversation; a page shows an answer that differs from the one before.

use super::super::ask::Shown;
use super::super::{Done, Notice, State, Verb, refused};
use crate::core::transcript::Message;

pub(super) struct Watch {
    question: String,
    answer: String,
}

fn lines(answer: &Message) -> String {
    let mut text: String = answer.text.trim().lines().map(|line| format!("    {line}\n")).collect();
    let places: Vec<String> = answer.meta.quotes.iter().map(|quote| quote.place()).collect();
    if !places.is_empty() {
        text.push_str(&format!("    ({})\n", places.join("; ")));
    }
    text
}

impl State {
    pub(in crate::runtime) fn watch_is_due(&self) -> bool {
        self.following().is_some_and(|f| f.is_fresh && !f.watches.is_empty())
            && self.engine.model().is_some()
            && self.here.session.may_write().is_ok()
    }

    fn list_watches(&mut self) -> Done {
        let rows = (1..).zip(&self.followed()?.watches).map(|(n, watch)| format!("{n} {}", watch.question));
        let rows: Vec<String> = rows.collect();
        self.info(match rows.is_empty() {
            true => "No question is watched. /watch QUESTION answers one after each change.".to_owned(),
            false => format!("Watched: {}. /watch off N ends one.", rows.join("; ")),
        });
        Ok(())
    }

    pub(in crate::runtime) fn watch_nothing(&mut self, number: Option<usize>) -> Done {
        let watches = &mut self.followed()?.watches;
        let ended = match number.map(|n| n.checked_sub(1).filter(|at| *at < watches.len())) {
            None => watches.drain(..).count(),
            Some(Some(at)) => watches.drain(at..=at).count(),
            Some(None) => return refused("No watch has this number. /watch lists them."),
        };
        self.info(format!("{} not watched any more.", crate::core::counted(ended as u64, "question")));
        Ok(())
    }
}

impl Verb {
    pub(in crate::runtime) async fn watch(&mut self, question: Option<String>) -> Done {
        let Some(question) = question else { return self.list_watches() };
        self.here.session.may_write()?;
        self.followed()?.watches.push(Watch { question, answer: String::new() });
        self.watch_again().await
    }

    /// Brings the files up to date and answers the watched questions; shows the answers that differ.
    pub(in crate::runtime) async fn watch_again(&mut self) -> Done {
        self.followed()?.is_fresh = false;
        self.engine_ready().await?;
        let mut new = Vec::new();
        self.bring_up_to_date(self.here.session.tree.head(), &mut new, false).await?;
        for message in new {
            self.add_message(message)?;
        }
        // Each answer begins with the state after the updates.
        self.sync_to_the_end(false).await?;
        let mut at = 0;
        while let Some(question) = self.followed()?.watches.get(at).map(|watch| watch.question.clone()) {
            let answer = self.answer_aside(&question, Shown::Greedily).await?;
            let text = lines(&answer);
            // The user may have ended it meanwhile.
            if let Some(watch) = self.followed()?.watches.get_mut(at).filter(|watch| watch.question == question) {
                let before = std::mem::replace(&mut watch.answer, text.clone());
                if before != text {
                    let before = if before.is_empty() { before } else { format!("\nBefore:\n\n{before}") };
                    let page = format!("{question}\n\n{text}{before}\n/watch off ends it.\n");
                    self.report(Notice::Page { title: "Watched".into(), text: page });
                }
            }
            at += 1;
        }
        Ok(())
    }
}
