//! Opening, leaving, naming and finding sessions.

use std::collections::{HashMap, HashSet};

use super::conversation::Conversation;
use super::{DeskError, Done, Open, Rights, Settings, State, grouped};
use crate::protocol::desk::{Choice, Level, Notice, SaveState, SearchRow, SessionRow, SessionView, TreeView};
use crate::session::{Change, NewSession, SessionFilter, SessionRecord, Sizes, StoreError};
use crate::transcript::{MessageId, Role, SessionId};

/// Sessions shown by `/sessions`.
const LISTED: usize = 10_000;
/// Characters of messages off the open branch: enough for the timeline.
const FIRST_WORDS: usize = 200;
/// Hits shown by `/search`.
const HITS: usize = 200;
/// Tokens that may be read again without asking when a session is opened.
const UNASKED: u64 = 2_048;

/// Sessions as the picker shows them.
pub fn session_rows(records: Vec<SessionRecord>, fingerprint: Option<&str>, sizes: Option<&Sizes>) -> Vec<SessionRow> {
    let row = |r: SessionRecord| SessionRow {
        state: match (&r.state_of, fingerprint) {
            (None, _) => "none",
            (Some(have), Some(want)) if have != want => "stale",
            (Some(_), _) => "yes",
        }
        .into(),
        name: r.name,
        title: r.title,
        messages: r.messages,
        tokens: r.tokens,
        // What would be freed without it: state it shares with another belongs to neither.
        bytes: sizes.map(|s| s.sessions.get(&r.id).map_or(0, |(_, own)| *own)),
        updated_ms: r.updated_ms,
    };
    records.into_iter().map(row).collect()
}

impl State {
    /// Sends the open session whole.
    pub(super) fn show_session(&self) {
        let view = SessionView {
            name: self.open.name.clone(),
            branch: self.open.conversation.branch_position(),
            messages: self.open.conversation.path().into_iter().cloned().collect(),
            view_only: self.open.rights != Rights::Write,
            timeline: self.timeline_rows(),
            documents: self.document_rows(),
            serial: self.open.serial,
            opened: self.opened(),
        };
        self.tell(Notice::Session(view));
    }

    /// Sends what surrounds the messages, which are told one by one while it grows.
    pub(super) fn show_tree(&self) {
        self.tell(Notice::Tree(TreeView {
            branch: self.open.conversation.branch_position(),
            timeline: self.timeline_rows(),
            documents: self.document_rows(),
        }));
    }

    /// An empty session, not saved until something is said.
    pub(super) fn start_new(&mut self, name: Option<String>) -> Done {
        if let Some(name) = &name {
            match self.store.session_named(name) {
                Ok(_) => return Err(StoreError::NameTaken { name: name.clone() }.into()),
                Err(StoreError::NoSession { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
        self.become_open(Open { name: name.unwrap_or_default(), ..Open::empty(self.defaults.clone()) });
        self.system = self.default_system.clone();
        self.show_empty();
        Ok(())
    }

    /// `/new`.
    pub(super) fn new_session(&mut self, name: Option<String>) -> Done {
        let old = self.open.id.map(|_| self.open.name.clone());
        self.start_new(name)?;
        if let Some(old) = old {
            self.note(Level::Info, format!("New session. The last one is saved: /resume {old}"));
        }
        Ok(())
    }

    /// `/resume`.
    pub(super) fn resume(&mut self, name: &str) -> Done {
        self.wait_for_texts();
        let trashed = || match self.store.session_named(name) {
            // What was deleted by mistake comes back by its name.
            Err(StoreError::NoSession { .. }) => self.store.undelete(name).ok(),
            Ok(_) | Err(_) => None,
        };
        let back = if name == "last" { None } else { trashed() };
        if let Some(back) = &back {
            self.note(Level::Info, format!("\"{back}\" is out of the trash."));
        }
        let record = if name == "last" {
            let none = || DeskError::Refused("There is no session to come back to yet.".into());
            self.store.last_session()?.ok_or_else(none)?
        } else {
            self.store.session_named(back.as_deref().unwrap_or(name))?
        };
        if self.open.id == Some(record.id) {
            self.note(Level::Info, format!("\"{}\" is open already.", record.name));
            return Ok(());
        }
        self.open_record(record)
    }

    pub(super) fn open_record(&mut self, record: SessionRecord) -> Done {
        let (lock, rights) = match self.store.lock_session(record.id, &record.name) {
            Ok(lock) => {
                if let Some(owner) = &lock.stale {
                    let pid = owner.pid;
                    self.note(
                        Level::Warn,
                        format!("The last run (PID {pid}) ended without closing this session; what it saved is here."),
                    );
                }
                (Some(lock), Rights::Write)
            }
            Err(e @ StoreError::InUse { .. }) => match self.in_use(&e) {
                'v' => (None, Rights::View(format!("{e}."))),
                'f' => {
                    let passing = !self.opened.has(record.id);
                    self.load_record(&record, None, Rights::View(String::new()))?;
                    self.fork(None, None)?;
                    if passing {
                        self.opened.forget(record.id);
                        self.show_session();
                    }
                    return Ok(());
                }
                _ => return Err(e.into()),
            },
            Err(e) => {
                self.note(Level::Warn, format!("{e}. Do not open this session twice at the same time."));
                (None, Rights::Write)
            }
        };
        self.load_record(&record, lock, rights)?;
        self.resume_pending = true;
        Ok(())
    }

    fn in_use(&mut self, e: &StoreError) -> char {
        if self.attendance == super::Attendance::Absent {
            return '\x1b';
        }
        let choices = vec![
            Choice { key: 'v', label: "view".into() },
            Choice { key: 'f', label: "fork a copy".into() },
            Choice { key: '\x1b', label: "cancel".into() },
        ];
        self.ask_user(format!("{e}."), choices)
    }

    fn load_record(
        &mut self,
        record: &SessionRecord,
        lock: Option<crate::session::SessionLock>,
        rights: Rights,
    ) -> Done {
        let fingerprint = self.meters.model.fingerprint.clone();
        let nodes = self.store.tree(record.id, &fingerprint, FIRST_WORDS)?;
        let ends = nodes.iter().filter_map(|n| Some((n.message.id, n.segment?))).collect();
        let mut cut: HashSet<MessageId> = nodes.iter().map(|n| n.message.id).collect();
        let mut conversation = Conversation::new(nodes.into_iter().map(|n| n.message).collect(), record.head);
        if let Some(head) = conversation.head() {
            for message in self.store.path(head)? {
                cut.remove(&message.id);
                conversation.amend(message);
            }
        }
        let mut labels: HashMap<MessageId, String> = HashMap::new();
        for (fork, at) in self.store.forks(record.id)? {
            labels.extend(at.map(|at| (at, fork.name)));
        }
        labels.extend(self.store.marks(record.id)?.into_iter().map(|m| (m.message, m.name)));
        let mut settings: Settings = serde_json::from_str(&record.settings).unwrap_or_else(|_| self.defaults.clone());
        for (key, value) in &self.overrides {
            settings.set(key, value).map_err(DeskError::Refused)?;
        }
        let first = conversation.path().first().filter(|m| m.role == Role::System).map(|m| m.text.clone());
        self.become_open(Open {
            serial: 0,
            id: Some(record.id),
            name: record.name.clone(),
            conversation,
            settings,
            rights,
            ends,
            labels,
            cut,
            lock,
        });
        self.system = first.or_else(|| self.default_system.clone());
        self.warned = 0;
        self.saving(SaveState::Saved(record.updated_ms));
        self.show_session();
        Ok(())
    }

    /// The model is loaded: which messages of the open session have state for it.
    pub(super) fn model_is_known(&mut self) {
        let Some(id) = self.open.id else { return };
        let fingerprint = self.meters.model.fingerprint.clone();
        match self.store.tree(id, &fingerprint, 0) {
            Ok(nodes) => self.open.ends = nodes.iter().filter_map(|n| Some((n.message.id, n.segment?))).collect(),
            Err(e) => self.note(Level::Warn, e.to_string()),
        }
        self.show_session();
    }

    /// Puts the state of a session that was just opened back, or asks whether to read it again.
    pub(super) fn finish_resume(&mut self) -> Done {
        self.resume_pending = false;
        let begun = std::time::Instant::now();
        let path = self.open.conversation.path();
        let rendered = self.renderer.past(&path, self.open.settings.think)?;
        if rendered.text.is_empty() {
            return Ok(());
        }
        let plan = self.plan_past(&rendered)?;
        tracing::debug!(plan_ms = begun.elapsed().as_secs_f64() * 1e3, "resume planned");
        let (read, total) = (plan.to_read(), plan.total());
        if read > UNASKED && self.open.rights == Rights::Write {
            let why = self.why_no_state();
            let about = self.about(read);
            let text = format!(
                "{why} Text is open. {} of {} tokens have to be read again{about}.",
                grouped(read),
                grouped(total)
            );
            if !self.confirm_or_view(text) {
                self.open.rights = Rights::View("its state was not read.".into());
                self.show_session();
                return Ok(());
            }
        }
        self.check_room(&plan, "This conversation")?;
        let started = std::time::Instant::now();
        let fed = self.carry_out(plan, &rendered, None, &mut super::feed::PromptReading::new(started))?;
        let (kept, all) = (grouped(fed.reused), grouped(fed.reused + fed.read));
        if !(self.opened.take_quiet() && fed.read == 0) {
            self.note(Level::Info, format!("Resumed {kept} of {all} tokens in {:.1} s", fed.ms / 1000.0));
        }
        self.report_meters();
        Ok(())
    }

    fn confirm_or_view(&mut self, text: String) -> bool {
        let choices =
            vec![Choice { key: '\n', label: "read".into() }, Choice { key: '\x1b', label: "view only".into() }];
        self.ask_user(text, choices) == '\n'
    }

    /// A sentence: why the open branch has no usable state.
    fn why_no_state(&self) -> String {
        let mine = self.meters.model.fingerprint.as_str();
        let record = self.open.id.and_then(|id| self.store.session(id).ok());
        if record.and_then(|r| r.state_of).is_some_and(|of| of != mine) {
            return "State is from another model.".into();
        }
        let tip = self.open.conversation.path().iter().rev().find_map(|m| self.open.ends.get(&m.id).copied());
        let lost = tip.and_then(|t| self.restorable(&t).ok().flatten()).and_then(|p| p.lost.into_iter().next());
        match lost {
            Some(l) => format!("Kept state cannot be used: {} of {} is {}.", l.what, l.segment.short(), l.why),
            None => "No state is kept for this model.".into(),
        }
    }

    /// Takes the lock of a session that has just got its row.
    pub(super) fn lock_session(&mut self, id: SessionId) -> Done {
        match self.store.lock_session(id, &self.open.name) {
            Ok(lock) => self.open.lock = Some(lock),
            // A new id is nobody else's; a file system without locks must not stop a chat.
            Err(e) => self.note(Level::Warn, e.to_string()),
        }
        Ok(())
    }

    /// Makes a new session that stands at `head`, and opens it.
    pub(super) fn fork_session(&mut self, head: MessageId, name: Option<String>) -> Done {
        let id = self.store.new_session_id();
        let name = match name {
            Some(name) => {
                match self.store.session_named(&name) {
                    Ok(_) => return Err(StoreError::NameTaken { name }.into()),
                    Err(StoreError::NoSession { .. }) => {}
                    Err(e) => return Err(e.into()),
                }
                name
            }
            None => self.store.free_name(&format!("{}-fork", self.open.name))?,
        };
        self.save_changes(vec![Change::CreateSession(NewSession {
            id,
            name: name.clone(),
            settings: self.settings_json(),
            head: Some(head),
            forked_from: self.open.id,
        })]);
        let shared: Vec<_> = self.open.conversation.path_to(Some(head)).into_iter().cloned().collect();
        let fork = Open {
            id: Some(id),
            name,
            conversation: Conversation::new(shared, Some(head)),
            ends: self.open.ends.clone(),
            cut: self.open.cut.clone(),
            ..Open::empty(self.open.settings.clone())
        };
        self.become_open(fork);
        self.lock_session(id)
    }

    /// `/sessions`.
    pub(super) fn list_sessions(&mut self) -> Done {
        let records = self.store.sessions(SessionFilter::Live, LISTED)?;
        let fingerprint = self.model().map(|m| m.fingerprint.clone());
        // The list matters more than its sizes.
        let sizes = self.store.sizes().ok();
        self.tell(Notice::Sessions(session_rows(records, fingerprint.as_deref(), sizes.as_ref())));
        Ok(())
    }

    /// No session is called so: which one may be meant.
    pub(super) fn no_session(&self, name: &str) -> String {
        let records = self.store.sessions(SessionFilter::Live, LISTED);
        let records = records.unwrap_or_default();
        let near = crate::text::near::nearest(name, records.iter().map(|r| r.name.as_str()));
        let near = near.map_or(String::new(), |n| format!(" Did you mean {n}?"));
        format!("No session is called \"{name}\".{near} /sessions lists them.")
    }

    /// `/rename`.
    pub(super) fn rename(&mut self, name: &str) -> Done {
        let name = name.trim();
        if name.is_empty() {
            return Err(DeskError::Refused("/rename NAME needs a name.".into()));
        }
        self.may_write()?;
        if let Some(id) = self.open.id {
            self.wait_for_texts();
            self.store.rename(id, name)?;
        }
        self.open.name = name.to_owned();
        self.show_session();
        Ok(())
    }

    /// `/delete`.
    pub(super) fn delete(&mut self, name: Option<&str>) -> Done {
        self.wait_for_texts();
        let record = match (name, self.open.id) {
            (Some(name), _) => self.store.session_named(name)?,
            (None, Some(id)) => self.store.session(id)?,
            (None, None) => {
                return Err(DeskError::Refused("This session is empty: there is nothing to delete.".into()));
            }
        };
        let open = self.open.id == Some(record.id);
        let other = if open { None } else { Some(self.store.lock_session(record.id, &record.name)?) };
        let (_, own) = self.store.sizes()?.sessions.get(&record.id).copied().unwrap_or_default();
        let days = self.store.limits().trash_days;
        let text = format!(
            "Delete \"{}\"? {} messages, {} of state only it needs. It stays in the trash for {days} days.",
            record.name,
            record.messages,
            super::pages::bytes(own)
        );
        let choices = vec![Choice { key: 'y', label: "delete".into() }, Choice { key: '\x1b', label: "keep".into() }];
        if self.ask_user(text, choices) != 'y' {
            return Ok(());
        }
        self.store.delete(record.id)?;
        drop(other);
        if open {
            self.start_new(None)?;
        }
        // Only a session that was left is on the list by its id.
        self.opened.forget(record.id);
        self.show_session();
        self.note(Level::Info, format!("\"{}\" is in the trash. Back with: /resume {}", record.name, record.name));
        Ok(())
    }

    /// `/search`.
    pub(super) fn search(&mut self, query: &str) -> Done {
        let hits = self.store.search(query, HITS)?;
        let rows = hits
            .into_iter()
            .map(|h| SearchRow {
                session: h.name,
                message: h.message,
                number: h.number,
                snippet: h.snippet,
                created_ms: h.created_ms,
            })
            .collect();
        self.tell(Notice::Found { query: query.to_owned(), rows });
        Ok(())
    }
}
