//! `/changes`, `/since`, and the documents that bring the followed files up to date before a question. `/watch`: a
//! question that is answered again after each change. The updates enter the conversation, question and answer do not; a
//! page shows an answer that differs from the one before.

use super::super::ask::Shown;
use super::super::task::Doing;
use super::super::{Attendance, Done, Notice, State, Verb, grouped, refused};
use super::{LOOKING, Pending, What};
use crate::config::settings::NewFiles;
use crate::core::counted;
use crate::core::sanitize::in_markdown;
use crate::core::transcript::{DocumentInfo, Message, MessageId, Role, Update};
use crate::text::sources::follow::Follower;

const NAMED: usize = 3;
const LISTED: usize = 200;

impl Verb {
    /// `/since [QUESTION]`: asks about what changed since the last question.
    pub async fn since(&mut self, question: Option<String>) -> Done {
        let pending = self.pending_now().await?;
        let mut names = self.read_since_the_question();
        names.extend(pending.iter().filter_map(|p| Some(p.document()?.0)));
        if names.is_empty() {
            return refused("Nothing changed since the last question.");
        }
        let more = names.len().saturating_sub(NAMED);
        names.truncate(NAMED);
        names.extend((more > 0).then(|| format!("{more} more")));
        let question = question.unwrap_or_else(|| "What is new since my last question?".into());
        self.ask(format!("Only from {}: {question}", names.join(", "))).await
    }

    pub async fn changes(&mut self) -> Done {
        let pending = self.pending_now().await?;
        let mut text = String::new();
        for p in pending.iter().take(LISTED) {
            let word = match &p.what {
                What::New(_) => "new",
                What::Changed { new, .. } if new.trim().is_empty() => "emptied",
                What::Changed { .. } => "changed",
                What::Gone { .. } => "deleted",
                What::Moved { .. } => "moved",
                What::Unreadable(_) => "unreadable",
            };
            let size = match (&p.what, p.document()) {
                (What::Unreadable(why), _) => why.clone(),
                (_, Some((_, text, _))) => counted(self.count(&text)?, "token"),
                (_, None) => String::new(),
            };
            text.push_str(&format!("    {word:<10}  {}  {size}\n", p.name));
        }
        let more = pending.len().saturating_sub(LISTED);
        if more > 0 {
            text.push_str(&format!("    and {more} more\n"));
        }
        let read = self.read_since_the_question();
        read.iter().for_each(|name| text.push_str(&format!("    {:<10}  {name}\n", "read")));
        let new = match self.options.config.follow.new {
            NewFiles::Ask => "asks about new files",
            NewFiles::Take => "reads new files",
            NewFiles::Ignore => "ignores other new files",
        };
        text.push_str(&match pending.iter().all(|p| matches!(p.what, What::Unreadable(_))) {
            true if !read.is_empty() => String::new(),
            true => "No text changed since it was read.\n".to_owned(),
            false => format!("\nThe next question reads these changes and {new} (follow.new).\n"),
        });
        self.page("Changes", text)
    }

    async fn pending_now(&mut self) -> Done<Vec<Pending>> {
        self.followed()?;
        self.look_again().await?;
        Ok(self.pending(&self.here.tree.path()))
    }

    /// Looks at the followed files now: the system's events may arrive later than the user's question.
    async fn look_again(&mut self) -> Done {
        let looks: Vec<_> = self.following().into_iter().flat_map(|f| f.followers.iter().map(Follower::look)).collect();
        for look in looks {
            let look = move |doing: &Doing| look(&doing.cancel);
            self.elsewhere(LOOKING.into(), "The question was not asked.", look).await?;
        }
        while let Ok((serial, look)) = self.follows.looks.try_recv() {
            self.on_look(serial, look);
        }
        self.unstopped()
    }

    /// Documents that bring the files followed on the branch of `parent` up to date, to follow the message `after`.
    /// Without `asks`, new files wait.
    pub async fn updates(
        &mut self,
        parent: Option<MessageId>,
        mut after: Option<MessageId>,
        asks: bool,
    ) -> Done<Vec<Message>> {
        if self.following().is_none() {
            return Ok(Vec::new());
        }
        self.look_again().await?;
        let mut pending = self.pending(&self.here.tree.path_to(parent));
        if !self.wants_new(&pending, asks).await? {
            pending.retain(|p| !matches!(p.what, What::New(_)));
        }
        let document = |p: Pending| {
            let (name, text, update) = p.document()?;
            let message = self.read_document(after, &name, Some(&p.path), text, update);
            after = Some(message.id);
            Some(message)
        };
        Ok(pending.into_iter().filter_map(document).collect())
    }

    async fn wants_new(&mut self, pending: &[Pending], asks: bool) -> Done<bool> {
        let new: Vec<&Pending> = pending.iter().filter(|p| matches!(p.what, What::New(_))).collect();
        if new.is_empty() || self.options.config.follow.new != NewFiles::Ask {
            return Ok(true);
        }
        if !asks {
            return Ok(false);
        }
        let texts = new.iter().filter_map(|p| if let What::New(text) = &p.what { Some(text) } else { None });
        let tokens: u64 = texts.map(|text| self.count(text)).sum::<Done<_>>()?;
        let mut names: Vec<&str> = new.iter().take(NAMED).map(|p| p.name.as_str()).collect();
        names.extend((new.len() > NAMED).then_some("..."));
        let text =
            format!("{}: {} ({} tokens).", counted(new.len() as u64, "new file"), names.join(", "), grouped(tokens));
        if self.attendance == Attendance::Present
            && self.ask_user(text, &[('y', "read"), ('n', "leave out")]).await == 'y'
        {
            return Ok(true);
        }
        if let Ok(followed) = self.followed() {
            followed.left_out.extend(new.iter().map(|p| p.path.clone()));
        }
        self.show_changed();
        Ok(false)
    }

    pub async fn watch(&mut self, question: Option<String>) -> Done {
        let Some(question) = question else {
            let rows = (1..).zip(&self.followed()?.watches).map(|(n, watch)| format!("{n} {}", watch.question));
            let rows: Vec<String> = rows.collect();
            return self.say(match rows.is_empty() {
                true => "No question is watched. /watch QUESTION answers one after each change.".to_owned(),
                false => format!("Watched: {} (/watch off N ends one)", rows.join("; ")),
            });
        };
        self.here.may_write()?;
        self.followed()?.watches.push(Watch { question, answer: None });
        self.watch_again().await
    }

    /// Brings the files up to date and answers the watched questions; shows the answers that differ.
    pub async fn watch_again(&mut self) -> Done {
        self.followed()?.is_fresh = false;
        self.engine_ready().await?;
        let head = self.here.tree.head();
        for message in self.updates(head, head, false).await? {
            self.add_message(message)?;
        }
        // Each answer begins with the state after the updates.
        self.sync().await?;
        let mut at = 0;
        while let Some(question) = self.followed()?.watches.get(at).map(|watch| watch.question.clone()) {
            let answer = self.answer_aside(&question, Shown::Greedily).await?;
            // The user may have ended it meanwhile.
            if let Some(watch) = self.followed()?.watches.get_mut(at).filter(|watch| watch.question == question) {
                let text = lines(&answer);
                let differs = watch.answer.as_ref().is_none_or(|before| before.text != answer.text);
                let before = watch.answer.replace(answer);
                if differs {
                    let before = before.map_or(String::new(), |before| format!("\nBefore:\n\n{}", lines(&before)));
                    let shown = in_markdown(&question).replace('\n', "\\\n");
                    let page = format!("{shown}\n\n{text}{before}\n/watch off ends it.\n");
                    self.report(Notice::Page { title: "Watched".into(), text: page });
                }
            }
            at += 1;
        }
        Ok(())
    }
}

impl State {
    /// Names of the updates that a watch read after the last question.
    fn read_since_the_question(&self) -> Vec<String> {
        let path = self.here.tree.path();
        let since = path.into_iter().rev().take_while(|m| m.role == Role::Document);
        let updates = since.filter_map(|m| m.meta.document.as_ref().filter(|d| d.once && d.path.is_some()));
        let mut names: Vec<String> = updates.map(|d| d.name.clone()).collect();
        names.reverse();
        names
    }

    /// A document that the next prompt contains completely.
    pub fn read_document(
        &self,
        parent: Option<MessageId>,
        name: &str,
        path: Option<&str>,
        text: String,
        update: Option<Update>,
    ) -> Message {
        let info = DocumentInfo::new(name, path.map(str::to_owned), &text);
        let tokens = self.count(&text).unwrap_or_default();
        let mut message = self.draft(Role::Document, parent, text);
        message.meta.document = Some(DocumentInfo { tokens, complete: true, once: true, update, ..info });
        message
    }

    pub fn watch_is_due(&self) -> bool {
        self.following().is_some_and(|f| f.is_fresh && !f.watches.is_empty())
            && self.engine.model().is_some()
            && self.here.may_write().is_ok()
    }

    pub fn watch_nothing(&mut self, number: Option<usize>) -> Done {
        let watches = &mut self.followed()?.watches;
        let ended = match number.map(|n| n.checked_sub(1).filter(|at| *at < watches.len())) {
            None => watches.drain(..).count(),
            Some(Some(at)) => watches.drain(at..=at).count(),
            Some(None) => return refused("No watch has this number. /watch lists them."),
        };
        self.say(match ended {
            0 => "No question was watched.".to_owned(),
            _ => format!("{} not watched any more.", counted(ended as u64, "question")),
        })
    }
}

pub(super) struct Watch {
    question: String,
    answer: Option<Message>,
}

fn lines(answer: &Message) -> String {
    let mut text: String = answer.text.trim().lines().map(|line| format!("    {line}\n")).collect();
    let places: Vec<String> = answer.meta.quotes.iter().map(|quote| quote.place()).collect();
    if !places.is_empty() {
        text.push_str(&format!("    ({})\n", places.join("; ")));
    }
    text
}
