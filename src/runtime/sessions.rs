//! Opens, closes, names and finds sessions.

use std::sync::Arc;

use super::record::as_left;
use super::task::Doing;
use super::{Done, Notice, Rights, RuntimeError, Session, State, Tree, Verb, grouped, refused};
use crate::core::sanitize::command_word;
use crate::core::transcript::{Message, MessageId};
use crate::runtime::protocol::{SessionRow, SessionView, TreeView};
use crate::store::{Change, FOLDER, LAST, NewSession, ONCE, SessionFilter, SessionRecord, Sizes, Store, StoreError};

pub(super) const LISTED: usize = 10_000;
const HITS: usize = 200;
const PINNED: &str = "pinned";

pub fn session_rows(
    store: &Store,
    records: Vec<SessionRecord>,
    fingerprint: Option<&str>,
    sizes: Option<&Sizes>,
) -> Vec<SessionRow> {
    let of = |property| store.properties(property).unwrap_or_default();
    let (once, pinned, folders) = (of(ONCE), of(PINNED), of(FOLDER));
    let disk = |id| sizes.map(|s| s.sessions.get(&id).copied().unwrap_or_default());
    let row = |r: SessionRecord| SessionRow {
        // Without this column the list is still useful. With more messages on its path a session is not undone.
        undone: if r.messages < 2 { store.undone(r.id, r.head).unwrap_or(0) } else { 0 },
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
        // State that only this session needs, which a deletion frees.
        bytes: disk(r.id).map(|d| d.own),
        disk: disk(r.id),
        updated_ms: r.updated_ms,
        once: once.contains_key(&r.id),
        pinned: pinned.contains_key(&r.id),
        folder: folders.get(&r.id).cloned(),
        here: false,
    };
    records.into_iter().map(row).collect()
}

pub fn last_of_folder(store: &Store) -> Option<SessionRow> {
    let folder = std::env::current_dir().ok()?;
    let record = store.last_of_folder(folder.to_str()?).ok()??;
    session_rows(store, vec![record], None, None).pop()
}

impl State {
    pub fn show_session(&self) {
        self.report(Notice::Session(self.session_view()));
    }

    pub fn session_view(&self) -> SessionView {
        SessionView {
            name: self.here.name.clone(),
            title: self.here.title.clone(),
            messages: self.here.tree.path().into_iter().cloned().collect(),
            view_only: self.here.rights != Rights::Write,
            tree: self.tree_view(),
            serial: self.here.serial,
            opened: self.opened(),
        }
    }

    fn tree_view(&self) -> TreeView {
        TreeView {
            branch: self.here.tree.branch_position(),
            timeline: self.timeline_rows(),
            documents: self.document_rows(),
        }
    }

    pub fn show_tree(&self) {
        self.report(Notice::Tree(self.tree_view()));
    }

    /// Refuses a name that exists. A number refers to a session only while none has it as its name.
    fn refuse_taken(&self, name: &str) -> Done {
        if name == LAST {
            return Err(StoreError::MeansLast.into());
        }
        match self.disk.store.session_named(name) {
            Ok(record) if record.name == name => Err(StoreError::NameTaken { name: name.to_owned() }.into()),
            Ok(_) | Err(StoreError::NoSession { .. }) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    pub fn start_new(&mut self, name: Option<String>) -> Done {
        if let Some(name) = &name {
            self.refuse_taken(name)?;
        }
        self.open_empty(Session { name: name.unwrap_or_default(), ..self.empty_session() });
        Ok(())
    }

    pub fn new_session(&mut self, name: Option<String>) -> Done {
        self.leads_on_screen()?;
        let old = self.here.id.map(|_| self.here.name.clone());
        self.start_new(name)?;
        if let Some(old) = old {
            let kept = if self.disk.discard { "there until the program ends" } else { "saved" };
            self.info(format!("New session. The last one is {kept}: /resume {}", command_word(&old)));
        }
        Ok(())
    }

    /// After the model is loaded: finds the messages of the open session that have state for it.
    pub fn find_state(&mut self) {
        let Some(id) = self.here.id else { return };
        let fingerprint = self.engine.info.fingerprint.clone();
        match self.disk.store.tree(id, &fingerprint, 0) {
            Ok(nodes) => self.here.ends = nodes.iter().filter_map(|n| Some((n.message.id, n.segment?))).collect(),
            Err(e) => self.warn(e.to_string()),
        }
        self.show_session();
    }

    /// Creates a session that ends at `head` and opens it. A last message that another process may extend is copied.
    pub fn fork_session(&mut self, head: MessageId, name: Option<String>) -> Done {
        let id = self.disk.store.new_session_id();
        let name = match name {
            Some(name) => self.refuse_taken(&name).map(|()| name)?,
            None => self.disk.store.free_name(&format!("{}-fork", self.here.name))?,
        };
        self.read_texts_to(Some(head))?;
        let mut path: Vec<_> = self.here.tree.path_to(Some(head)).into_iter().cloned().collect();
        // An answer without an end, or a partly read document.
        let is_growing = |m: &Message| m.is_open() || m.meta.document.as_ref().is_some_and(|d| !d.complete);
        let growing = path.pop_if(|m| self.here.rights != Rights::Write && is_growing(m));
        let shared = path.last().map(|m| m.id);
        let copy = growing.filter(|m| !m.text.is_empty() || !m.thinking.is_empty()).map(|m| {
            let id = self.draft(m.role, m.parent, String::new()).id;
            as_left(Message { id, ..m })
        });
        let head = copy.as_ref().map(|m| m.id).or(shared);
        let mut changes = vec![Change::CreateSession(NewSession {
            id,
            name: name.clone(),
            settings: self.here.settings_json()?,
            head: shared,
            forked_from: self.here.id,
        })];
        changes.extend(self.started_here(id));
        if let Some(message) = copy {
            changes.push(Change::PutMessage { session: id, message: Box::new(message.clone()) });
            changes.push(Change::MoveHead { session: id, head });
            path.push(message);
        }
        self.disk.change(changes);
        self.disk.wait_for_texts();
        let fork = Session {
            id: Some(id),
            name,
            tree: Tree::new(path, head),
            ends: self.here.ends.clone(),
            cut: self.here.cut.clone(),
            ..Session::empty(self.here.settings.clone(), self.here.system.clone())
        };
        self.open_in_place(fork, None);
        self.lock_session(id);
        Ok(())
    }

    pub fn list_sessions(&mut self) -> Done {
        let records = self.disk.store.sessions(SessionFilter::Live, LISTED)?;
        let fingerprint = self.engine.model().map(|m| m.fingerprint.clone());
        // Without sizes the list is still useful.
        let sizes = self.disk.store.state_sizes().ok();
        let mut rows = session_rows(&self.disk.store, records, fingerprint.as_deref(), sizes.as_ref());
        for row in &mut rows {
            row.here = row.folder.is_some() && row.folder.as_deref() == self.folder();
            if row.pinned || row.once {
                row.title = format!("({}) {}", if row.pinned { PINNED } else { "-p" }, row.title);
            }
        }
        let pins = self.options.config.sessions.pinned_first;
        rows.sort_by_key(|row| (row.once, pins && !row.pinned));
        self.show(Notice::Sessions(rows))
    }

    pub fn pin(&mut self, name: Option<String>) -> Done {
        self.disk.wait_for_texts();
        let record = self.record_of(name.as_deref(), "There is no session to pin yet: this one is empty.")?;
        let pinned = self.disk.store.properties(PINNED)?.contains_key(&record.id);
        self.disk.store.set_property(record.id, PINNED, (!pinned).then_some(""))?;
        self.disk.store.set_property(record.id, ONCE, None)?;
        let again = format!("/pin {}", command_word(&record.name));
        self.say(match pinned {
            true => format!("\"{}\" is no longer pinned. {again} pins it again.", record.name),
            false => format!("\"{}\" is pinned in /sessions. {again} unpins it.", record.name),
        })
    }

    /// The session of this name, or the open one; `nothing` is the error if there is none yet.
    pub fn record_of(&self, name: Option<&str>, nothing: &str) -> Done<SessionRecord> {
        let record = match (name, self.here.id) {
            (Some(LAST), _) => self.disk.store.last_session()?,
            (Some(name), _) => Some(self.disk.store.session_named(name)?),
            (None, id) => id.map(|id| self.disk.store.session(id)).transpose()?,
        };
        record.ok_or_else(|| RuntimeError::Refused(nothing.into()))
    }

    pub fn rename(&mut self, name: String) -> Done {
        let name = name.trim();
        if name.is_empty() {
            return refused("/rename NAME needs a name.");
        }
        self.here.may_write()?;
        match self.here.id {
            Some(id) => {
                self.disk.wait_for_texts();
                self.disk.store.rename(id, name).map_err(|e| match (e, self.disk.unsaved(id)) {
                    (StoreError::NoSession { .. }, Some(why)) => RuntimeError::Refused(format!(
                        "\"{}\" is not renamed: it is not on disk yet ({why}). /rename {name} does it once it is.",
                        self.here.name
                    )),
                    (e, _) => e.into(),
                })?;
            }
            None => self.refuse_taken(name)?,
        }
        self.here.name = name.to_owned();
        self.show_session();
        Ok(())
    }

    pub fn rename_other(&mut self, session: String, name: String) -> Done {
        self.disk.wait_for_texts();
        let record = self.disk.store.session_named(&session)?;
        if self.here.id == Some(record.id) {
            return self.rename(name);
        }
        if self.opened.has(record.id) {
            return refused(format!("\"{}\" is open here. Go there and /rename it.", record.name));
        }
        let _lock = self.disk.store.lock_session(record.id, &record.name)?;
        self.disk.store.rename(record.id, name.trim())?;
        self.say(format!("\"{}\" is named \"{}\" now.", record.name, name.trim()))
    }
}

impl Verb {
    pub async fn search(&mut self, query: String) -> Done {
        let (store, words) = (Arc::clone(&self.disk.store), query.clone());
        let indexed = |n, of| format!("searching: {} of {} new messages indexed", grouped(n), grouped(of));
        let search = move |doing: &Doing| doing.watched(indexed, |watch| store.search(&words, HITS, watch));
        let rows = self.elsewhere("searching".into(), "The search failed unexpectedly.", search).await??;
        self.show(Notice::Found { query, rows })
    }

    pub async fn delete(&mut self, name: Option<String>) -> Done {
        self.disk.wait_for_texts();
        let nothing = match name {
            Some(_) => "There is no session yet: nothing to delete.",
            None => "This session is empty: there is nothing to delete.",
        };
        let record = self.record_of(name.as_deref(), nothing)?;
        let open = self.here.id == Some(record.id);
        if self.at_work(|session| session.id == Some(record.id)).is_some() {
            return refused(format!("\"{}\" is busy. Stop it there first.", record.name));
        }
        // Another process may hold a view-only session.
        let held = open && (self.here.lock.is_some() || self.here.may_write().is_ok());
        let lock = if held { None } else { Some(self.disk.store.lock_session(record.id, &record.name)?) };
        let own = self.disk.store.state_sizes()?.sessions.get(&record.id).map_or(0, |sizes| sizes.own);
        let stays = match self.disk.discard {
            true => "until the program ends".to_owned(),
            false => self.disk.store.limits.trash_time(),
        };
        let text = format!(
            "Delete \"{}\" ({}, {} of state of its own)? It stays in the trash {stays}.",
            record.name,
            self.disk.store.extent(record.id)?,
            crate::core::bytes(own)
        );
        if self.ask_user(text, &[('y', "delete"), ('n', "keep")]).await != 'y' {
            return Ok(());
        }
        self.disk.store.delete(record.id)?;
        drop(lock);
        if open {
            self.start_new(None)?;
        }
        // A session without a row cannot be in the list by its id.
        self.opened.forget(record.id);
        self.show_session();
        let back = command_word(&record.name);
        self.say(format!("\"{}\" is in the trash. Back with: /resume {back}", record.name))
    }
}
