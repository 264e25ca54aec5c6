//! `/follow`: changes of files and folders are appended to the conversation before its next question.
//!
//! A follower reads what changes on its own thread and reports here; nothing enters the conversation until a question
//! is asked. What was read of a file is a function of the branch ([`versions`]), so undo and branches need nothing
//! else.

mod rebase;
mod update;
mod versions;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::task::Doing;
use super::{Done, RuntimeError, State, Verb, refused};
use crate::config::settings::NewFiles;
use crate::core::sanitize::sanitize_line;
use crate::core::transcript::{Message, MessageId, Update};
use crate::runtime::protocol::LoadOptions;
use crate::text::pipe::is_spool;
use crate::text::sources::Gathered;
use crate::text::sources::follow::{Follower, Look, Looker, OnDisk, whole_paths};
pub(super) use versions::{Version, versions};

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
    left_out: BTreeSet<String>,
    note: Option<String>,
    /// The head of the branch that was read anew, or could not be.
    tried: Option<MessageId>,
    watches: Vec<update::Watch>,
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
    Gone { old: String },
    Moved { from: String, name: String },
    Unreadable(String),
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
            What::Gone { .. } => {
                Some((format!("{} (deleted)", self.name), format!("{} was deleted.", self.name), Some(Update::Gone)))
            }
            What::Moved { from, name } => {
                let text = format!("{name} is now {}; its text is the same.", self.name);
                Some((format!("{}{}", self.name, versions::MOVED), text, Some(Update::Moved { from: from.clone() })))
            }
            What::Unreadable(_) => None,
        }
    }
}

const LOOKING: &str = "looking at the files";
const NOTHING: &str = "Nothing is followed here. /follow PATH loads files and notices their changes.";

impl State {
    fn following(&self) -> Option<&Followed> {
        self.follows.by_session.get(&self.here.serial)
    }

    fn followed(&mut self) -> Done<&mut Followed> {
        let serial = self.here.serial;
        let none = || RuntimeError::Refused(NOTHING.into());
        self.follows.by_session.get_mut(&serial).ok_or_else(none)
    }

    fn paths_read(&self) -> BTreeSet<String> {
        versions(&self.here.tree.path()).iter().map(|v| v.path.to_owned()).collect()
    }

    /// The followed files that differ from what was read on this path.
    fn pending(&self, path: &[&Message]) -> Vec<Pending> {
        let Some(followed) = self.following() else { return Vec::new() };
        let known: HashMap<&str, Version<'_>> = versions(path).into_iter().map(|v| (v.path, v)).collect();
        // A named file is never ignored: it may be readable only now.
        let ignores =
            |path: &String| self.options.config.follow.new == NewFiles::Ignore && !followed.paths.contains(path);
        let ignored = |path: &String| ignores(path) || followed.left_out.contains(path);
        let differs = |(path, (name, now)): (&String, &(String, OnDisk))| {
            let text = match now {
                OnDisk::Text(text) => text.as_str(),
                OnDisk::Gone => "",
                OnDisk::Unreadable(why) => {
                    let name = known.get(path.as_str())?.name.to_owned();
                    return Some(Pending { path: path.clone(), name, what: What::Unreadable(why.clone()) });
                }
            };
            let (name, what) = match known.get(path.as_str()) {
                Some(version) if version.text == text => return None,
                Some(v) if *now == OnDisk::Gone => (v.name, What::Gone { old: v.text.clone().into_owned() }),
                Some(v) => (v.name, What::Changed { old: v.text.clone().into_owned(), new: text.to_owned() }),
                None if ignored(path) || text.trim().is_empty() => return None,
                None => (name.as_str(), What::New(text.to_owned())),
            };
            Some(Pending { path: path.clone(), name: name.to_owned(), what })
        };
        with_moves(followed.on_disk.iter().filter_map(differs).collect())
    }

    /// `, changed since` for a document if its file has another text by now, read or not.
    pub fn changed_since(&self, document: &Message) -> &'static str {
        let path = self.here.tree.path();
        let Some(file) = document.meta.document.as_ref().and_then(|d| d.path.as_deref()) else { return "" };
        let later = path.iter().skip_while(|m| m.id != document.id).skip(1).filter_map(|m| m.meta.document.as_ref());
        let mut updates = later.filter(|d| d.update.is_some() && d.path.as_deref() == Some(file));
        let changed = updates.next().is_some() || self.pending(&path).iter().any(|p| p.path == file);
        if changed { ", changed since" } else { "" }
    }

    pub fn changed(&self) -> u64 {
        let changes = |p: &&Pending| !matches!(p.what, What::Unreadable(_));
        self.following().map_or(0, |_| self.pending(&self.here.tree.path()).iter().filter(changes).count() as u64)
    }

    fn show_changed(&mut self) {
        let changed = self.changed();
        if changed != self.here.meters.changed {
            self.here.meters.changed = changed;
            self.show_meters();
        }
    }

    pub fn on_look(&mut self, serial: u64, look: Look) {
        let Some(followed) = self.follows.by_session.get_mut(&serial) else { return };
        followed.is_fresh |= !look.changes.is_empty();
        for change in look.changes {
            followed.on_disk.insert(change.path.display().to_string(), (change.name, change.now));
        }
        let note = look.note.filter(|note| followed.note.as_ref() != Some(note));
        followed.note = note.clone().or(followed.note.take());
        let show = |state: &mut State| {
            note.into_iter().for_each(|note| state.warn(note));
            state.show_changed();
        };
        // When a closed session is opened again, its changes are counted.
        self.in_session(|session| session.serial == serial, show);
    }

    pub fn follow_nothing(&mut self) -> Done {
        let followed = self.follows.by_session.remove(&self.here.serial);
        let ended = followed.map(|followed| format!("{} no longer followed.", list(&followed.paths)));
        self.info(ended.as_deref().unwrap_or(NOTHING));
        self.show_changed();
        Ok(())
    }
}

/// `src, plan.md are`.
fn list(paths: &[String]) -> String {
    let verb = if paths.len() == 1 { "is" } else { "are" };
    let shown = |path: &String| if is_spool(path) { "standard input".to_owned() } else { path.clone() };
    let paths: Vec<String> = paths.iter().map(shown).collect();
    format!("{} {verb}", sanitize_line(&paths.join(", ")))
}

fn with_moves(pending: Vec<Pending>) -> Vec<Pending> {
    let (gone, mut all): (Vec<_>, Vec<_>) = pending.into_iter().partition(|p| matches!(p.what, What::Gone { .. }));
    for gone in gone {
        let What::Gone { old } = &gone.what else { continue };
        match all.iter_mut().find(|p| matches!(&p.what, What::New(text) if text == old)) {
            Some(new) => new.what = What::Moved { from: gone.path, name: gone.name },
            None => all.push(gone),
        }
    }
    all.sort_by(|a, b| a.path.cmp(&b.path));
    all
}

impl Verb {
    pub async fn follow(&mut self, paths: Vec<String>) -> Done {
        if paths.is_empty() {
            let followed =
                self.following().map(|followed| format!("{} followed. /follow off ends it.", list(&followed.paths)));
            return self.say(followed.as_deref().unwrap_or(NOTHING));
        }
        self.here.may_write()?;
        let mut paths = whole_paths(&paths, &self.options.sources);
        if let Some(followed) = self.following() {
            paths.retain(|path| !followed.paths.contains(path));
            if paths.is_empty() {
                return refused(format!("{} followed already.", list(&followed.paths)));
            }
        }
        let (of, how) = (paths.clone(), self.options.sources.clone());
        let look = move |doing: &Doing| Looker::new(of, how, &doing.cancel);
        let looker = self.elsewhere(LOOKING.into(), "Nothing is followed.", look).await?;
        let looker = self.gathered(&paths, looker)?;
        let Gathered { documents, skipped } = self.gather(&paths, &LoadOptions::default()).await?;

        // Documents that this branch holds already count as files that changed.
        let held = self.paths_read();
        let (mut known, mut new) = (BTreeMap::new(), Vec::new());
        for document in documents {
            match document.path.as_ref().map(|p| p.display().to_string()).filter(|file| held.contains(file)) {
                Some(file) => drop(known.insert(file, (document.name, OnDisk::Text(document.text)))),
                None => new.push(document),
            }
        }
        let files: Vec<PathBuf> = new.iter().filter_map(|d| d.path.clone()).collect();
        let wanted: BTreeSet<String> = files.iter().map(|path| path.display().to_string()).collect();
        let ages = self.ages(files).await?;
        new.sort_by_cached_key(|d| d.path.as_ref().and_then(|path| ages.get(path)));
        self.load_documents(new, &LoadOptions::default()).await?;
        let left_out: BTreeSet<String> = wanted.difference(&self.paths_read()).cloned().collect();
        if !wanted.is_empty() && left_out.len() == wanted.len() {
            // The user cancelled the load.
            return Ok(());
        }
        let (serial, to) = (self.here.serial, self.follows.to.clone());
        let follower = Follower::start(looker, move |look| drop(to.send((serial, look))))
            .map_err(|e| RuntimeError::Failed(format!("Nothing can be followed: {e}.")))?;
        let followed = self.follows.by_session.entry(serial).or_default();
        followed.followers.push(follower);
        followed.paths.extend(paths);
        followed.left_out.extend(left_out);
        followed.on_disk.extend(known);
        let (unread, read): (Vec<String>, Vec<String>) =
            followed.paths.iter().cloned().partition(|path| skipped.iter().any(|skipped| skipped.name == *path));
        self.info(format!("{} followed: /changes lists what changed, the next question reads it.", list(&read)));
        if !unread.is_empty() {
            self.warn(format!("{} not read: there is nothing to read yet.", list(&unread)));
        }
        self.show_changed();
        Ok(())
    }
}
