//! Opens a session of the store: lock, texts, state.

use std::collections::HashSet;

use super::execute::{THIS_CONVERSATION, cannot_be_used};
use super::record::restored;
use super::time::nothing_to_fork;
use super::{
    Attendance, Done, Opening, Plan, Rendered, Rights, RuntimeError, SaveState, Session, Settings, State, Tree, Verb,
    first_words, grouped, refused,
};
use crate::config::settings::session::Kept;
use crate::core::counted;
use crate::core::sanitize::{command_word, sanitize_line};
use crate::core::transcript::{MessageId, Role, SessionId};
use crate::store::{Access, LAST, SessionLock, SessionRecord, StoreError};

const FIRST_WORDS: usize = 200;
/// Most tokens that are read again without a question when a session opens.
const UNASKED: u64 = 2_048;
const SHOWN_SETTING: usize = 40;

impl State {
    /// Refuses to open a session that is newer in memory than on disk: a question would extend an older conversation.
    pub fn refuse_unsaved(&self, id: SessionId, name: &str) -> Done {
        match self.disk.unsaved(id) {
            None => Ok(()),
            Some(why) => refused(format!(
                "\"{name}\" is not opened: its latest messages are not on disk yet ({why}). /resume {} opens it once they are.",
                command_word(name)
            )),
        }
    }

    fn open_with(&mut self, record: &SessionRecord, lock: Option<SessionLock>, rights: Rights) -> Done {
        self.load_record(record, lock, rights)?;
        // Without the count the session still opens.
        let kept = self.disk.store.undone(record.id, record.head).unwrap_or(0);
        if kept > 0 && self.attendance == Attendance::Present {
            let kept = counted(kept, "message");
            let next = match self.here.rights {
                Rights::Write => format!("/redo restores what is kept ({kept}); /timeline shows all."),
                Rights::View(_) => format!("/timeline shows what is kept ({kept})."),
            };
            self.info(format!("All its messages are undone. {next}"));
        }
        self.here.resume_pending = true;
        Ok(())
    }

    fn load_record(&mut self, record: &SessionRecord, lock: Option<SessionLock>, rights: Rights) -> Done {
        let fingerprint = self.engine.info.fingerprint.clone();
        let nodes = self.disk.store.tree(record.id, &fingerprint, FIRST_WORDS)?;
        let ends = nodes.iter().filter_map(|n| Some((n.message.id, n.segment?))).collect();
        let mut cut: HashSet<MessageId> = nodes.iter().map(|n| n.message.id).collect();
        let mut conversation = Tree::new(nodes.into_iter().map(|n| n.message).collect(), record.head);
        // A damaged log must not prevent opening; the newest line serves instead.
        conversation.stood_at(self.disk.store.heads_left(record.id).unwrap_or_default());
        if let Some(head) = conversation.head() {
            for message in self.disk.store.path(head)? {
                cut.remove(&message.id);
                conversation.restore(restored(message, &rights));
            }
        }
        let forks = self.disk.store.forks(record.id)?.into_iter().filter_map(|(fork, at)| Some((fork.name, at?)));
        let marks = self.disk.store.marks(record.id)?.into_iter().map(|mark| (mark.name, mark.message));
        let Kept { mut settings, wrong } = Settings::from_json(&record.settings, &self.options.settings.own());
        self.say_unread(&record.name, &settings, &wrong);
        for (key, value) in &self.options.overrides {
            settings.set_for_run(key, value).map_err(RuntimeError::Refused)?;
        }
        let first =
            conversation.path().first().filter(|m| m.role == Role::System && !m.meta.damaged).map(|m| m.text.clone());
        let system = first.or_else(|| self.options.system.clone());
        let session = Session {
            id: Some(record.id),
            name: record.name.clone(),
            title: self.disk.store.own_title(record.id)?.unwrap_or_default(),
            tree: conversation,
            rights,
            is_unread: true,
            ends,
            labels: forks.chain(marks).collect(),
            cut,
            ..Session::empty(settings, system)
        };
        let known = self.opened.has(record.id);
        self.open_in_place(session, lock);
        self.disk.show_anew(SaveState::Saved(record.updated_ms));
        self.show_session();
        if self.here.rights == Rights::Write {
            self.show_draft(record.id, known);
        }
        self.begin_meters(record.tokens);
        Ok(())
    }

    fn say_unread(&self, session: &str, settings: &Settings, wrong: &[(String, String)]) {
        if wrong.is_empty() {
            return;
        }
        let used = |(name, kept): &(String, String)| {
            let used = match settings.get(name).as_str() {
                "" => String::new(),
                value => format!(", {value} is used"),
            };
            let name = if name.is_empty() { "all" } else { name };
            format!("{} ({}){used}", sanitize_line(name), first_words(kept, SHOWN_SETTING))
        };
        let what = wrong.iter().map(used).collect::<Vec<_>>().join("; ");
        self.warn(format!("\"{session}\" has settings that cannot be read: {what}."));
    }

    fn why_broken_off(&self, plan: &Plan, rendered: &Rendered) -> Option<String> {
        let document = self.here.half_read()?;
        let at = rendered.cuts.iter().position(|c| c.message == document.id)?;
        let begin = at.checked_sub(1).and_then(|i| rendered.cuts.get(i)).map_or(0, |c| c.end);
        let name = &document.meta.document.as_ref()?.name;
        let why = format!("{name} was read in part. That part is kept; the rest is not read yet.");
        Some(why).filter(|_| plan.base.text_bytes() > begin)
    }

    fn why_no_state(&self, kept: u64) -> String {
        let mine = &self.engine.info.fingerprint;
        let record = self.here.id.and_then(|id| self.disk.store.session(id).ok());
        if record.and_then(|r| r.state_of).is_some_and(|of| of != *mine) {
            return "State is from another model.".into();
        }
        self.lost_state().unwrap_or_else(|| match kept {
            0 => "No state is kept for this model.".into(),
            _ => "State is kept for the beginning only.".into(),
        })
    }

    pub fn lost_state(&self) -> Option<String> {
        let tip = self.here.tree.path().iter().rev().find_map(|m| self.here.ends.get(&m.id).copied());
        let lost = tip.and_then(|t| self.disk.restorable(&t).ok().flatten()).and_then(|p| p.lost.into_iter().next());
        lost.map(|lost| cannot_be_used(&lost))
    }
}

impl Verb {
    pub async fn resume(&mut self, name: String) -> Done {
        let name = name.as_str();
        self.leads_on_screen()?;
        self.disk.wait_for_texts();
        // A closed session may have no row yet.
        let left = self.opened.left_as(name).filter(|id| self.here.id != Some(*id));
        if let Some(id) = left.filter(|id| self.at_work(|session| session.id == Some(*id)).is_none()) {
            self.refuse_unsaved(id, name)?;
        }
        // The name of a deleted session restores it.
        let unknown = name != LAST && matches!(self.disk.store.session_named(name), Err(StoreError::NoSession { .. }));
        let back = if unknown { self.disk.store.undelete(name).ok() } else { None };
        if let Some(back) = &back {
            self.info(format!("\"{back}\" is out of the trash."));
        }
        let record = self.record_of(Some(back.as_deref().unwrap_or(name)), "There is no session to resume yet.")?;
        if name == record.name
            && self.attendance == Attendance::Present
            && let Some(trashed) = self.disk.store.trashed_session(name)?.filter(|trashed| trashed.name == name)
        {
            self.info(format!("Another \"{name}\" is in the trash: /resume {} brings it back.", trashed.id.0));
        }
        // A view-only session is opened again: the other process may have closed it, and its state can be read.
        if self.here.id == Some(record.id) && self.here.rights == Rights::Write {
            return self.say(format!("\"{}\" is open already.", record.name));
        }
        self.open_record(record).await
    }

    pub async fn open_record(&mut self, record: SessionRecord) -> Done {
        if let Some(at) = self.at_work(|session| session.id == Some(record.id)) {
            self.take_up(at);
            return Ok(());
        }
        self.refuse_unsaved(record.id, &record.name)?;
        // The lock may be held already if the state was not read; it is kept so that no other process takes it.
        let held = (self.here.id == Some(record.id)).then(|| self.here.lock.take()).flatten();
        if held.is_some() {
            return self.open_with(&record, held, Rights::Write);
        }
        let (lock, rights) = match self.disk.store.lock_session(record.id, &record.name) {
            Ok(lock) => {
                if let Some(pid) = lock.stale.as_ref().map(|owner| owner.pid) {
                    self.warn(format!(
                        "The last run (PID {pid}) ended without closing this session; what it saved is here."
                    ));
                }
                (Some(lock), Rights::Write)
            }
            Err(e @ StoreError::InUse { .. }) => return self.open_in_use(record, e).await,
            // The banner shows that the directory is read-only.
            Err(_) if matches!(&self.disk.store.access, Access::ReadOnly { .. }) => (None, Rights::Write),
            Err(e) => {
                self.warn(format!("{e}. Do not open this session twice at the same time."));
                (None, Rights::Write)
            }
        };
        self.open_with(&record, lock, rights)
    }

    async fn open_in_use(&mut self, record: SessionRecord, e: StoreError) -> Done {
        if self.attendance == Attendance::Absent || self.must_open {
            return Err(e.into());
        }
        let choices = [('v', "view"), ('f', "fork a copy"), ('\x1b', "cancel")];
        match self.ask_user(format!("{e}."), &choices).await {
            'v' => self.open_with(&record, None, Rights::View(format!("{e}."))),
            'f' => {
                let stays = self.opened.has(record.id);
                self.load_record(&record, None, Rights::View(String::new()))?;
                let head = self.here.tree.head().ok_or_else(nothing_to_fork)?;
                self.fork_session(head, None)?;
                if !stays {
                    self.opened.forget(record.id);
                }
                self.go_to_fork().await
            }
            _ => Err(e.into()),
        }
    }

    /// Restores the state of a session that was just opened, or asks whether to read it again.
    pub async fn finish_resume(&mut self) -> Done {
        self.here.resume_pending = false;
        let rendered = match self.known_size(self.past(), THIS_CONVERSATION) {
            // The session can be viewed, and undo works.
            Err(e @ RuntimeError::Damaged(_)) => {
                self.warn(e.to_string());
                return Ok(());
            }
            rendered => rendered?,
        };
        if rendered.text.is_empty() {
            return Ok(());
        }
        let plan = self.planned(&rendered, State::plan_past).await;
        let plan = self.known_size(plan, THIS_CONVERSATION)?;
        let (read, total) = (plan.to_read(), plan.total());
        if read <= UNASKED || self.engine.server().is_some() {
            return self.resume_with(plan, &rendered).await;
        }
        if self.here.rights != Rights::Write {
            // The text can be viewed without the model.
            self.report_meters();
            return Ok(());
        }
        let about = self.about(read);
        let why = self.why_broken_off(&plan, &rendered).unwrap_or_else(|| self.why_no_state(plan.base.position()));
        let (read, total, again) = (grouped(read), grouped(total), self.here.again());
        let is_pipe = matches!(self.options.opening, Opening::ResumeOrEnd(_));
        let text = format!("{why} The model must read {read} of {total} tokens{again} before you can continue{about}.");
        if is_pipe && self.attendance == Attendance::Present {
            self.warn(text);
            return self.resume_with(plan, &rendered).await;
        }
        // The meters show the state without the tokens still to read.
        self.report_meters();
        if self.ask_user(text, &[('\n', "read"), ('\x1b', "view only")]).await == '\n' {
            return self.resume_with(plan, &rendered).await;
        }
        self.here.rights = Rights::View("its state was not read.".into());
        self.show_session();
        Ok(())
    }

    async fn resume_with(&mut self, plan: Plan, rendered: &Rendered) -> Done {
        let plan = self.fitting(Ok(plan), THIS_CONVERSATION)?;
        let stats = self.execute(plan, rendered, None, &mut ()).await?;
        let (kept, all) = (grouped(stats.reused), grouped(stats.reused + stats.read));
        let (server, stopped) = (self.engine.server().is_some(), self.here.slot.stopped());
        let quiet = std::mem::take(&mut self.opened.quiet) && (stats.read == 0 || server);
        if server && !quiet {
            self.info(format!("No kept state: the server reads a resumed conversation again (about {all} tokens)."));
        } else if stopped {
            self.info(format!(
                "Stopped: {all} tokens of this conversation are read, the rest will be read with the next question."
            ));
        } else if !quiet {
            self.info(format!("Resumed {kept} of {all} tokens in {:.1} s", stats.ms / 1000.0));
        }
        self.report_meters();
        Ok(())
    }
}
