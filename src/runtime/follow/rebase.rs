//! `/refresh`: the followed files read anew in their present versions, on a new branch, after the longest part that
//! has no change. When updates are a large share of what was read, the same in idle time in another slot; the
//! conversation goes on as it is until that is done.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use super::super::executor::Written;
use super::super::fan_out::{Branch, Fan, Grown};
use super::super::verb::Verb;
use super::super::{Attendance, Done, RuntimeError, State};
use super::versions::versions;
use crate::core::transcript::{DocumentInfo, Message, MessageId, Role};

/// The branch that is read in idle time.
struct Reading {
    branch: Option<Branch>,
    complete: bool,
}

impl Fan for Reading {
    fn count(&self) -> usize {
        1
    }

    fn prepare(&mut self, _state: &mut State, _which: usize) -> Done<Option<Branch>> {
        Ok(self.branch.take())
    }

    fn tokens(&mut self, _state: &mut State, _which: usize, _written: &Written<'_>) {}

    fn ended(&mut self, _state: &mut State, _which: usize, grown: Done<Grown>) {
        match grown {
            Ok(_) => self.complete = true,
            Err(e) => tracing::debug!(%e, "not read anew"),
        }
    }

    fn gives_way(&self) -> bool {
        true
    }
}

impl State {
    /// The messages of a path with each file in its last version and without updates: those that follow the longest
    /// unchanged part, and the message before them. Unchanged documents first, then changed ones, the least recently
    /// changed first, then the conversation.
    fn rebased(&self, path: &[&Message]) -> Option<(Option<MessageId>, Vec<Message>)> {
        let versions = versions(path);
        let of: HashMap<MessageId, _> = versions.iter().map(|v| (v.first.id, v)).collect();
        let is_same = |m: &&&Message| m.meta.document.is_none() || of.get(&m.id).is_some_and(|v| v.last.id == m.id);
        let from = path.iter().take_while(is_same).count();
        let changed_from = path.get(from)?;
        let (mut same, mut changed, mut rest) = (Vec::new(), Vec::new(), Vec::new());
        for message in path.iter().skip(from) {
            if message.role != Role::Document {
                rest.push((*message).clone());
                continue;
            }
            match of.get(&message.id) {
                // An update, or a file without text.
                None => {}
                Some(v) if v.text.trim().is_empty() => {}
                Some(v) if v.last.id == message.id => same.push((*message).clone()),
                Some(v) => {
                    let mut new = self.draft(Role::Document, None, v.text.clone().into_owned());
                    let tokens = self.count(&new.text).unwrap_or_default();
                    let info = DocumentInfo::new(v.name, Some(v.path.to_owned()), &new.text);
                    new.meta.document = Some(DocumentInfo { tokens, complete: true, once: true, ..info });
                    let modified = std::fs::metadata(v.path).and_then(|meta| meta.modified());
                    changed.push((modified.unwrap_or(SystemTime::UNIX_EPOCH), new));
                }
            }
        }
        changed.sort_by_key(|(modified, _)| *modified);
        let messages = same.into_iter().chain(changed.into_iter().map(|(_, m)| m)).chain(rest);
        Some((changed_from.parent, messages.collect()))
    }

    /// Whether updates are more than `follow.rebase_share` of what was read, and the engine is free to read it anew.
    pub(in crate::runtime) fn rebase_is_due(&self) -> bool {
        let Some(followed) = self.following() else { return false };
        let tokens = |updates: bool| {
            let path = self.here.session.tree.path();
            let documents = path.into_iter().filter_map(|m| m.meta.document.as_ref());
            documents.filter(|d| d.update.is_some() == updates).map(|d| d.tokens).sum::<u64>() as f64
        };
        followed.tried != self.here.session.tree.head()
            && self.attendance == Attendance::Present
            && self.engine.model().is_some_and(|m| m.server.is_none())
            && self.engine.free_slots() > 0
            && self.others.iter().all(|other| other.wait.is_idle())
            && self.here.session.may_write().is_ok()
            && tokens(true) > tokens(false) * self.config.follow.rebase_share
    }
}

impl Verb {
    /// `/refresh`.
    pub(in crate::runtime) async fn refresh(&mut self) -> Done {
        self.here.session.may_write()?;
        self.engine_ready().await?;
        let mut new = Vec::new();
        let head = self.here.session.tree.head();
        self.bring_up_to_date(head, &mut new, true).await?;
        let path: Vec<&Message> = self.here.session.tree.path().into_iter().chain(&new).collect();
        match self.rebased(&path) {
            Some((parent, messages)) => self.rebuild(parent, messages, "Read anew, now at").await,
            None if !new.is_empty() => self.rebuild(head, new, "Read, now at").await,
            None => {
                Err(RuntimeError::Refused("Every file was read in its present version: nothing to refresh.".into()))
            }
        }
    }

    /// The same in idle time. A request ends it; it goes on after the request with what was read by then.
    pub(in crate::runtime) async fn rebase(&mut self) -> Done {
        let (head, serial) = (self.here.session.tree.head(), self.here.session.serial);
        let tried = |state: &mut State, head: Option<MessageId>| {
            if let Some(followed) = state.follows.by_session.get_mut(&serial) {
                followed.tried = head;
            }
        };
        tried(self, head);
        let Some((parent, messages)) = self.rebased(&self.here.session.tree.path()) else { return Ok(()) };
        let path: Vec<&Message> = self.here.session.tree.path_to(parent).into_iter().chain(&messages).collect();
        let rendered = self.past_of(&path, self.here.session.settings.think)?;
        let mut plan = self.planned(&rendered, State::plan).await?;
        plan.steps.iter_mut().for_each(|step| step.message = None);
        let branch =
            Branch { base: plan.base, rendered: Arc::new(rendered), steps: plan.steps, last: None, message: None };
        let mut reading = Reading { branch: Some(branch), complete: false };
        let slots = self.fan_out(&mut reading).await?;
        self.release(slots)?;
        if !self.here.queue.is_empty() {
            tried(self, None);
            return Ok(());
        }
        if !reading.complete || self.here.slot.stopped() || self.here.session.tree.head() != head {
            return Ok(());
        }
        self.rebuild(parent, messages, "The files were read anew in idle time, now at").await?;
        let head = self.here.session.tree.head();
        tried(self, head);
        Ok(())
    }
}
