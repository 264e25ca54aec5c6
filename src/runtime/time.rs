//! Undo, redo, edit, fork, marks, and a changed beginning. Nothing here deletes a message; each command reports the
//! shared tokens and the tokens it reads again.

use std::collections::HashMap;

use super::ask::Shown;
use super::execute::THIS_CONVERSATION;
use super::{Attendance, Done, Form, Notice, RuntimeError, State, Verb, grouped, refused};
use crate::config::commands::line_of;
use crate::core::counted;
use crate::core::sanitize::{edited, sanitize};
use crate::core::transcript::{Finish, Message, MessageId, Role};
use crate::runtime::protocol::GotoTarget;
use crate::store::Change;
use crate::text::near::meant;

const NO_SYSTEM: &str = "There is no system text. /system TEXT sets one.";

impl Verb {
    /// Moves the head, makes its state live, and notes the cost: `Went back to #7: 30,112 tokens shared, 0 read again.`
    /// `what` begins this sentence, and `next` follows it.
    pub async fn go(&mut self, head: Option<MessageId>, what: &str, next: &str) -> Done {
        self.move_head(head)?;
        self.show_session();
        let stats = self.sync().await?;
        let time = match stats.ms {
            ms if ms < 1000.0 => format!("{ms:.0} ms"),
            ms => format!("{:.1} s", ms / 1000.0),
        };
        let (reused, read) = (grouped(stats.reused), grouped(stats.read));
        let place = match self.here.tree.path().len() {
            0 => "the beginning".to_owned(),
            n => format!("#{n}"),
        };
        self.info(match self.engine.server() {
            // A server does not report what it reads again.
            Some(_) => format!("{what} {place}.{next}"),
            None => format!("{what} {place}: {reused} tokens shared, {read} read again, {time}.{next}"),
        });
        self.report_meters();
        Ok(())
    }

    pub async fn undo(&mut self, count: u64) -> Done {
        self.here.may_write()?;
        let Some(undo) = self.here.tree.undo(count.max(1)) else {
            return self.say("Nothing to undo: the conversation is empty.");
        };
        if let Some(text) = undo.text {
            self.report(Notice::Input { text: line_of(&text), editing: None });
        }
        let what = format!("Went back {} to", counted(undo.exchanges, "exchange"));
        self.go(undo.head, &what, " /redo takes it back.").await
    }

    pub async fn redo(&mut self, count: u64) -> Done {
        self.here.may_write()?;
        let Some(head) = self.here.tree.redo(count.max(1)) else { return self.say("Nothing to redo.") };
        self.go(Some(head), "Went forward to", "").await
    }

    pub async fn edit_done(&mut self, message: MessageId, text: String) -> Done {
        self.here.may_write()?;
        let Some(old) = self.here.tree.get(message).cloned() else {
            return refused("The edited message is not in this session.");
        };
        let text = edited(old.known_text(), &text);
        match old.role {
            Role::User => self.ask_below(old.parent, text, 1).await,
            Role::System => self.system_text(Some(text)).await,
            Role::Document => refused("A document cannot be edited here."),
            Role::Assistant => {
                self.move_head(old.parent)?;
                let mut new = self.draft(Role::Assistant, old.parent, text);
                new.meta.finish = Some(Finish::Stop);
                new.meta.model = Some("edited".into());
                self.add_message(new)?;
                let head = self.here.tree.head();
                self.texts_saved().await;
                self.go(head, "Edited", "").await
            }
        }
    }

    pub async fn fork(&mut self, at: Option<u64>, name: Option<String>) -> Done {
        let head = match at {
            Some(n) => Some(self.here.tree.exchange_end(self.here.numbered(n)?.id)),
            None => self.here.tree.head(),
        };
        let head = head.ok_or_else(nothing_to_fork)?;
        self.fork_session(head, name)?;
        self.go_to_fork().await
    }

    /// `f` in the timeline: the message may be on another branch or in a view-only session.
    pub async fn fork_from(&mut self, message: MessageId) -> Done {
        self.in_this_session(message)?;
        let head = self.here.tree.exchange_end(message);
        self.fork_session(head, None)?;
        self.go_to_fork().await
    }

    pub async fn go_to_fork(&mut self) -> Done {
        let what = format!("\"{}\" forked at", self.here.name);
        self.go(self.here.tree.head(), &what, "").await
    }

    pub async fn goto(&mut self, target: GotoTarget) -> Done {
        match target {
            GotoTarget::Mark(name) => {
                let Some(id) = self.here.labels.get(&name).copied() else {
                    let names: Vec<&str> = self.here.labels.keys().map(String::as_str).collect();
                    let there = match names.is_empty() {
                        true => "/mark NAME sets one".to_owned(),
                        false => format!("Marks: {}", names.join(", ")),
                    };
                    let near = meant(&name, names);
                    return refused(format!("No mark \"{name}\".{near} {there}. /timeline goes to any message."));
                };
                self.go_to(id, &format!("At \"{name}\",")).await
            }
            GotoTarget::Message(id) => {
                self.in_this_session(id)?;
                self.go_to(id, "At").await
            }
        }
    }

    pub async fn go_to(&mut self, id: MessageId, what: &str) -> Done {
        self.here.may_write()?;
        let end = self.here.tree.exchange_end(id);
        self.go(Some(end), what, "").await
    }

    /// An empty text removes it.
    pub async fn system_text(&mut self, text: Option<String>) -> Done {
        let present = self.present_system_text().unwrap_or_default();
        let Some(text) = text else {
            return self.page("System text", if present.is_empty() { NO_SYSTEM.into() } else { present });
        };
        self.here.may_write()?;
        // The text may be an edit from `/system edit`.
        let text = Some(edited(&present, &text)).filter(|text| !text.is_empty());
        if text.is_none() && present.is_empty() {
            return self.say(NO_SYSTEM);
        }
        if self.here.tree.is_empty() {
            self.move_head(None)?;
            let done = match text {
                Some(_) => "The system text is set; it is read with the first question.",
                None => "The system text is removed.",
            };
            self.here.system = text;
            self.show_session();
            return self.say(done);
        }
        self.engine_ready().await?;
        let rendered = self.known_size(self.past(), THIS_CONVERSATION)?;
        let tokens = self.planned(&rendered, State::plan).await?.total();
        let question = format!(
            "The system text is the first thing the model read. Changing it means reading {} tokens again{} on a new branch.",
            grouped(tokens),
            self.about(tokens)
        );
        if !self.confirm(question, "do it").await {
            return Ok(());
        }
        let path = self.here.tree.path();
        let rest: Vec<Message> = path.into_iter().filter(|m| m.role != Role::System).cloned().collect();
        self.here.system.clone_from(&text);
        let root = text.map(|text| self.draft(Role::System, None, text));
        let copy = root.into_iter().chain(rest).collect();
        self.rebuild(None, copy, "System text changed, now at").await
    }

    /// `/unload`: the conversation without one document, on a new branch.
    pub async fn unload(&mut self, name: String) -> Done {
        self.here.may_write()?;
        let path = self.here.tree.path();
        let Some(at) = self.here.document_called(&name)? else {
            return refused(self.here.no_document(&name));
        };
        let name = path.get(at).and_then(|m| m.meta.document.as_ref()).map_or(name, |d| d.name.clone());
        let parent = path.get(at).and_then(|m| m.parent);
        let later: Vec<Message> = path.iter().skip(at + 1).map(|m| (*m).clone()).collect();
        let before = match parent {
            Some(p) => format!("to before it was loaded (#{})", self.here.tree.number_of(p)),
            None => "to the beginning".to_owned(),
        };
        let again = counted(later.len() as u64, "later message");
        let text = format!("Unloading {name} means going back {before} and reading {again} again on a new branch.");
        match self.confirm(text, "do it").await {
            true => self.rebuild(parent, later, &format!("{name} unloaded, now at")).await,
            false => Ok(()),
        }
    }

    /// Copies messages below `parent` as a new branch and makes that live.
    pub async fn rebuild(&mut self, parent: Option<MessageId>, messages: Vec<Message>, what: &str) -> Done {
        let tree = &self.here.tree;
        let kept = parent.map_or(0, |p| tree.number_of(p));
        let new_places = (kept + 1..).zip(&messages).filter(|(_, m)| tree.get(m.id).is_some());
        let moved: HashMap<u64, u64> = new_places.map(|(new, m)| (tree.number_of(m.id), new)).collect();
        self.move_head(parent)?;
        let mut parent = parent;
        for old in messages {
            let mut new = self.draft(old.role, parent, old.text);
            (new.thinking, new.meta) = (old.thinking, old.meta);
            // On the new branch the attended messages have other numbers or are missing.
            let number = |old: u64| if old <= kept { Some(old) } else { moved.get(&old).copied() };
            new.meta.looked = new.meta.looked.map(|looked| looked.renumbered(number));
            parent = Some(new.id);
            self.add_quietly(new)?;
        }
        self.go(self.here.tree.head(), what, "").await
    }

    /// `/compact`: a branch that begins with the model's own summary, which the user sees first.
    pub async fn compact(&mut self, instruction: Option<String>, yes: bool) -> Done {
        self.here.may_write()?;
        if self.here.tree.is_empty() {
            return refused("Nothing to compact: the conversation is empty.");
        }
        if self.attendance == Attendance::Absent && !yes {
            return refused(
                "/compact replaces the context with a summary. Nothing was changed; /compact --yes skips the question.",
            );
        }
        self.engine_ready().await?;
        if self.engine.model().is_some_and(|m| m.built_in) {
            return refused("The built-in model cannot summarize a conversation. /undo, /unload and /new make room.");
        }
        let instruction = instruction.map_or(String::new(), |i| format!(" {i}"));
        let question = format!(
            "Write a summary of our conversation so far, complete enough to go on from it: facts, names, numbers, decisions, open \
             questions.{instruction}"
        );
        // The summary and its reported size refer to the state at the head.
        self.sync().await?;
        let before = self.here.slot.live.position();
        let summary = self.answer_aside(&question, Shown::No).await?.text;
        if summary.trim().is_empty() {
            return Err(RuntimeError::Failed("The model wrote no summary. Nothing was changed.".into()));
        }
        let root = self.here.tree.path().first().filter(|m| m.role == Role::System).map(|m| m.id);
        let title = "The summary that would replace the context".to_owned();
        self.report(Notice::Page { title, text: summary.clone() });
        let message = self.read_document(root, "summary of the conversation", None, summary, None);
        let path: Vec<&Message> = self.here.tree.path_to(root).into_iter().chain([&message]).collect();
        let rendered = self.rendered(&path, Form::Past)?;
        let after = self.planned(&rendered, State::plan).await?.total();
        // Token counts of a server are estimates.
        let about = if self.engine.server().is_some() { "about " } else { "" };
        let sizes = format!("{about}{} tokens now, {about}{} with the summary", grouped(before), grouped(after));
        if after >= before {
            return refused(format!("The summary would not make the context shorter: {sizes}. Nothing was changed."));
        }
        let question = format!("Continue from this summary? {sizes}. The full conversation stays on its branch.");
        if !yes && self.ask_user(question, &[('y', "compact"), ('n', "change nothing")]).await != 'y' {
            return Ok(());
        }
        self.rebuild(root, vec![message], "Compacted, now at").await?;
        let (before, after) = (grouped(before), grouped(self.here.slot.live.position()));
        let sizes = format!("{about}{before} tokens before, {about}{after} now");
        self.say(format!("{sizes}. The full conversation stays: /branch prev."))
    }
}

impl State {
    fn in_this_session(&self, message: MessageId) -> Done {
        match self.here.tree.get(message) {
            Some(_) => Ok(()),
            None => refused("That message is in another session: open that one first (/resume NAME)."),
        }
    }

    pub fn edit_open(&mut self, at: Option<u64>) -> Done {
        self.here.may_write()?;
        let message = match at {
            Some(n) => self.here.numbered(n)?,
            None => {
                let last = self.here.tree.path().into_iter().rev().find(|m| m.role == Role::User);
                last.ok_or_else(|| RuntimeError::Refused("There is no question to edit yet.".into()))?
            }
        };
        if message.role == Role::Document {
            return refused("A document cannot be edited here. Change the file, /undo, and /load it again.");
        }
        let input = Notice::Input { text: line_of(message.known_text()), editing: Some(message.id) };
        self.say_if_spelled(message.known_text());
        self.show(input)
    }

    fn say_if_spelled(&self, text: &str) {
        if sanitize(text) != text {
            self.info("Characters that a terminal would obey are spelled out, as \\x1b. Before and behind what you change they stay what they are.");
        }
    }

    pub fn mark(&mut self, name: String) -> Done {
        self.here.may_write()?;
        let name = name.trim();
        if name.is_empty() {
            return refused("/mark NAME names this point; /goto NAME returns to it.");
        }
        let Some(head) = self.here.tree.head() else {
            return refused("Nothing to mark: the conversation is empty.");
        };
        self.here.labels.insert(name.to_owned(), head);
        if let Some(session) = self.here.id {
            self.disk.change(vec![Change::Mark { session, name: name.to_owned(), message: head }]);
        }
        self.show_tree();
        let number = self.here.tree.number_of(head);
        let kept = self.here.ends.get(&head).is_some_and(|end| self.disk.keeps(end));
        let state = if kept { "; its state is kept" } else { "" };
        self.say(format!("#{number} is now called \"{name}\". /goto {name} returns to it{state}."))
    }

    pub fn timeline(&mut self) -> Done {
        self.show(Notice::Timeline(self.timeline_rows()))
    }

    fn present_system_text(&self) -> Option<String> {
        let path = self.here.tree.path();
        let first = path.first().filter(|m| m.role == Role::System).map(|m| m.known_text().to_owned());
        // A conversation that began without one has none.
        first.or_else(|| self.here.system.clone().filter(|_| path.is_empty())).filter(|t| !t.is_empty())
    }

    /// `/system edit`: sends the command that would set the present text, for the user to change.
    pub fn system_edit(&mut self) -> Done {
        self.here.may_write()?;
        let text = self.present_system_text().unwrap_or_default();
        self.say_if_spelled(&text);
        self.show(Notice::Input { text: format!("/system {text}"), editing: None })
    }
}

pub(super) fn nothing_to_fork() -> RuntimeError {
    RuntimeError::Refused("Nothing to fork: the conversation is empty.".into())
}
