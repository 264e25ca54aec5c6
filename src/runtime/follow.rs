//! `/follow`: files whose changes are appended to the conversation before its next question.
//!
//! A follower reads what changes on its own thread and reports here; nothing enters the conversation until a question
//! is asked. What was read of a file is a function of the branch ([`versions`]), so undo and branches need nothing else.

mod rebase;
mod update;
mod versions;
mod watch;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::task::{Order, Place, SHORT};
use super::verb::Verb;
use super::{Done, RuntimeError, State};
use crate::config::settings::NewFiles;
use crate::core::transcript::{Message, MessageId, Update};
use crate::runtime::protocol::{Level, LoadOptions, Notice};
use crate::text::sanitize::sanitize_line;
use crate::text::sources::Document;
use crate::text::sources::follow::{Follower, Look, Looker, OnDisk, Watching, whole_paths};
pub(super) use versions::{Version, versions};

/// What each session of this run follows, by its serial.
pub(super) struct Follows {
    by_session: HashMap<u64, Followed>,
    to: Sender<(u64, Look)>,
    pub(super) looks: Receiver<(u64, Look)>,
}

impl Default for Follows {
    fn default() -> Follows {
        let (to, looks) = unbounded();
        Follows { by_session: HashMap::new(), to, looks }
    }
}

#[derive(Default)]
struct Followed {
    paths: Vec<String>,
    followers: Vec<Follower>,
    /// The files that changed since they are followed: name and contents now, by path.
    on_disk: BTreeMap<String, (String, OnDisk)>,
    /// New files that the user does not want.
    left_out: BTreeSet<String>,
    note: Option<String>,
    /// The head of the branch that was read anew, or could not be.
    tried: Option<MessageId>,
    watches: Vec<watch::Watch>,
    /// Something changed since the watched questions were answered.
    is_fresh: bool,
}

/// A file that differs from the version that was read.
struct Pending {
    path: String,
    name: String,
    what: What,
}

enum What {
    New(String),
    Changed { old: String, new: String },
    Moved { from: String, name: String },
    Unreadable(String),
}

impl What {
    fn word(&self) -> &'static str {
        match self {
            What::New(_) => "new",
            What::Changed { new, .. } if new.trim().is_empty() => "deleted",
            What::Changed { .. } => "changed",
            What::Moved { .. } => "moved",
            What::Unreadable(_) => "unreadable",
        }
    }
}

impl Pending {
    /// Name, text and kind of the document that brings the conversation up to date.
    fn document(&self) -> Option<(String, String, Option<Update>)> {
        match &self.what {
            What::New(text) => Some((self.name.clone(), text.clone(), None)),
            What::Changed { old, new } => {
                let (name, text, update) = versions::update(&self.name, old, new);
                Some((name, text, Some(update)))
            }
            What::Moved { from, name } => {
                let text = format!("{name} is now {}; its text is the same.", self.name);
                Some((format!("{name} (moved)"), text, Some(Update::Moved { from: from.clone() })))
            }
            What::Unreadable(_) => None,
        }
    }
}

impl State {
    fn following(&self) -> Option<&Followed> {
        self.follows.by_session.get(&self.here.session.serial)
    }

    fn followed(&mut self) -> Done<&mut Followed> {
        let serial = self.here.session.serial;
        let none = || RuntimeError::Refused("Nothing is followed here. /follow PATH begins it.".into());
        self.follows.by_session.get_mut(&serial).ok_or_else(none)
    }

    /// The followed files that differ from what was read on this path.
    fn pending(&self, path: &[&Message]) -> Vec<Pending> {
        let Some(followed) = self.following() else { return Vec::new() };
        let versions = versions(path);
        let known: HashMap<&str, &versions::Version<'_>> = versions.iter().map(|v| (v.path, v)).collect();
        let ignored = self.config.follow.new == NewFiles::Ignore;
        let mut pending = Vec::new();
        for (path, (name, now)) in &followed.on_disk {
            let (text, version) = match (now, known.get(path.as_str())) {
                (OnDisk::Text(text), version) => (text.as_str(), version),
                (OnDisk::Gone, version) => ("", version),
                (OnDisk::Unreadable(why), Some(version)) => {
                    let what = What::Unreadable(why.clone());
                    pending.push(Pending { path: path.clone(), name: version.name.to_owned(), what });
                    continue;
                }
                (OnDisk::Unreadable(_), None) => continue,
            };
            let (name, what) = match version {
                Some(version) if version.text == text => continue,
                Some(v) => (v.name, What::Changed { old: v.text.clone().into_owned(), new: text.to_owned() }),
                None if ignored || text.trim().is_empty() || followed.left_out.contains(path) => continue,
                None => (name.as_str(), What::New(text.to_owned())),
            };
            pending.push(Pending { path: path.clone(), name: name.to_owned(), what });
        }
        with_moves(pending)
    }

    /// `, changed since` for a document whose file has another text by now, read or not.
    pub(super) fn changed_since(&self, document: &Message) -> &'static str {
        let path = self.here.session.tree.path();
        let Some(file) = document.meta.document.as_ref().and_then(|d| d.path.as_deref()) else { return "" };
        let later = path.iter().skip_while(|m| m.id != document.id).skip(1).filter_map(|m| m.meta.document.as_ref());
        let mut updates = later.filter(|d| d.update.is_some() && d.path.as_deref() == Some(file));
        let changed = updates.next().is_some() || self.pending(&path).iter().any(|p| p.path == file);
        if changed { ", changed since" } else { "" }
    }

    pub(super) fn changed(&self) -> u64 {
        self.following().map_or(0, |_| self.pending(&self.here.session.tree.path()).len() as u64)
    }

    fn show_changed(&mut self) {
        let changed = self.changed();
        if changed != self.here.meters.changed {
            self.here.meters.changed = changed;
            self.report(Notice::Meters(self.here.meters.clone()));
        }
    }

    pub(super) fn on_look(&mut self, serial: u64, look: Look) {
        let Some(followed) = self.follows.by_session.get_mut(&serial) else { return };
        followed.is_fresh |= !look.changes.is_empty();
        for change in look.changes {
            followed.on_disk.insert(change.path.display().to_string(), (change.name, change.now));
        }
        let note = look.note.filter(|note| followed.note.as_ref() != Some(note));
        followed.note = note.clone().or(followed.note.take());
        let show = |state: &mut State| {
            note.into_iter().for_each(|note| state.note(Level::Warn, note));
            state.show_changed();
        };
        match self.at_work(|session| session.serial == serial) {
            Some(at) => self.on_other(at, show),
            None if self.here.session.serial == serial => show(self),
            // The session is closed; when it is opened again, its changes are counted.
            None => {}
        }
    }

    pub(super) fn follow_nothing(&mut self) -> Done {
        let text = match self.follows.by_session.remove(&self.here.session.serial) {
            Some(followed) => format!("{} no longer followed.", followed.list()),
            None => "Nothing is followed here.".to_owned(),
        };
        self.note(Level::Info, text);
        self.show_changed();
        Ok(())
    }

    fn follow_start(&mut self, looker: Looker, paths: Vec<String>, left_out: BTreeSet<String>) -> Done {
        let (serial, to) = (self.here.session.serial, self.follows.to.clone());
        let report = move |look| drop(to.send((serial, look)));
        let follower = Follower::start(looker, Watching::default(), report)
            .map_err(|e| RuntimeError::Failed(format!("Nothing can be followed: {e}.")))?;
        let followed = self.follows.by_session.entry(serial).or_default();
        followed.followers.push(follower);
        followed.paths.extend(paths);
        followed.left_out.extend(left_out);
        let text = format!("{} followed: /changes lists what changed, the next question reads it.", followed.list());
        self.note(Level::Info, text);
        self.show_changed();
        Ok(())
    }
}

impl Followed {
    /// `src and plan.md are`.
    fn list(&self) -> String {
        let verb = if self.paths.len() == 1 { "is" } else { "are" };
        format!("{} {verb}", sanitize_line(&self.paths.join(", ")))
    }
}

/// Joins a file that is gone with a new one of the same text.
fn with_moves(mut pending: Vec<Pending>) -> Vec<Pending> {
    let mut at = 0;
    while let Some(gone) = pending.get(at) {
        let moved = match &gone.what {
            What::Changed { old, new } if new.is_empty() => {
                pending.iter().position(|p| matches!(&p.what, What::New(text) if text == old))
            }
            _ => None,
        };
        let Some(to) = moved else {
            at += 1;
            continue;
        };
        let gone = pending.remove(at);
        if let Some(new) = pending.get_mut(to - usize::from(to > at)) {
            new.what = What::Moved { from: gone.path, name: gone.name };
        }
    }
    pending
}

impl Verb {
    pub(super) async fn follow(&mut self, paths: Vec<String>) -> Done {
        if paths.is_empty() {
            let text = self.following().map_or_else(
                || "Nothing is followed here. /follow PATH loads files and notices their changes.".to_owned(),
                |followed| format!("{} followed. /follow off ends it.", followed.list()),
            );
            self.note(Level::Info, text);
            return Ok(());
        }
        self.here.session.may_write()?;
        let mut paths = whole_paths(&paths, &self.sources);
        if let Some(followed) = self.following() {
            paths.retain(|path| !followed.paths.contains(path));
            if paths.is_empty() {
                return Err(RuntimeError::Refused(format!("{} followed already.", followed.list())));
            }
        }
        let (of, how) = (paths.clone(), self.sources.clone());
        let looker =
            self.elsewhere(looking("Nothing is followed."), move |doing| Looker::new(of, how, &doing.cancel)).await?;
        let looker = self.gathered(&paths, looker)?;
        let gathered = self.gather(&paths, &LoadOptions::default()).await?;
        self.say_skipped(&gathered);

        let (known, new) = self.known_before(gathered.documents);
        let wanted: Vec<String> = new.iter().filter_map(|d| Some(d.path.as_ref()?.display().to_string())).collect();
        self.load_documents(new, &LoadOptions::default()).await?;
        let path = self.here.session.tree.path();
        let read: BTreeSet<&str> = versions(&path).iter().map(|v| v.path).collect();
        let left_out: BTreeSet<String> = wanted.iter().filter(|path| !read.contains(path.as_str())).cloned().collect();
        if !wanted.is_empty() && left_out.len() == wanted.len() {
            // The user cancelled the load.
            return Ok(());
        }
        self.follow_start(looker, paths, left_out)?;
        self.followed()?.on_disk.extend(known);
        self.show_changed();
        Ok(())
    }
}

impl State {
    /// Documents that this branch holds in another version, as files that changed, and documents that it does not
    /// hold, least recently changed first.
    fn known_before(&self, documents: Vec<Document>) -> (BTreeMap<String, (String, OnDisk)>, Vec<Document>) {
        let path = self.here.session.tree.path();
        let versions: HashMap<&str, versions::Version<'_>> = versions(&path).into_iter().map(|v| (v.path, v)).collect();
        let (mut known, mut new) = (BTreeMap::new(), Vec::new());
        for document in documents {
            let file = document.path.as_ref().map(|p| p.display().to_string());
            match file.filter(|file| versions.contains_key(file.as_str())) {
                Some(file) => drop(known.insert(file, (document.name, OnDisk::Text(document.text)))),
                None => new.push(document),
            }
        }
        new.sort_by_cached_key(|d| d.path.as_ref().and_then(|p| p.metadata().ok()?.modified().ok()));
        (known, new)
    }
}

fn looking(failed: &'static str) -> Order {
    Order { what: "looking at the files".into(), failed, place: Place::InTurn, patience: SHORT }
}
