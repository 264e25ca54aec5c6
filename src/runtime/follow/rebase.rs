//! `/refresh`: the followed files read anew in their present versions, on a new branch, after the longest part that
//! has no change. When updates are a large share of what was read, the same in idle time in another slot; the
//! conversation goes on as it is until that is done. The most stable files are first, so that a new reading keeps most.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::super::task::Doing;
use super::super::{Attendance, Branch, Done, Form, Plan, State, Verb, refused};
use super::LOOKING;
use super::versions::versions;
use crate::core::transcript::{Message, MessageId, Role};
use crate::engine::protocol::Cancel;
use crate::text::child::{self, Limits};

impl State {
    /// The messages of a path with each file in its last version and without updates: those that follow the longest
    /// unchanged part, and the message before them. Unchanged documents first, then changed ones by their age, then the
    /// conversation.
    fn rebased(
        &self,
        path: &[&Message],
        ages: &HashMap<PathBuf, SystemTime>,
    ) -> Option<(Option<MessageId>, Vec<Message>)> {
        let versions = versions(path);
        let of: HashMap<MessageId, _> = versions.iter().map(|v| (v.first.id, v)).collect();
        let is_same = |m: &&&Message| m.meta.document.is_none() || of.get(&m.id).is_some_and(|v| v.last.id == m.id);
        let from = path.iter().take_while(is_same).count();
        let changed_from = path.get(from)?;
        let (mut same, mut changed, mut rest) = (Vec::new(), Vec::new(), Vec::new());
        for message in path.iter().skip(from) {
            match of.get(&message.id) {
                None if message.role != Role::Document => rest.push((*message).clone()),
                // An update, or a file without text.
                None => {}
                Some(v) if v.text.trim().is_empty() => {}
                Some(v) if v.last.id == message.id => same.push((*message).clone()),
                Some(v) => {
                    let new = self.read_document(None, v.name, Some(v.path), v.text.clone().into_owned(), None);
                    changed.push((ages.get(Path::new(v.path)), new));
                }
            }
        }
        changed.sort_by_key(|(age, _)| *age);
        let messages = same.into_iter().chain(changed.into_iter().map(|(_, m)| m)).chain(rest);
        Some((changed_from.parent, messages.collect()))
    }

    /// Whether updates are more than `follow.rebase_share` of what was read, and the engine is free to read it anew.
    pub fn rebase_is_due(&self) -> bool {
        let Some(followed) = self.following() else { return false };
        let tokens = |updates: bool| {
            let path = self.here.tree.path();
            let documents = path.into_iter().filter_map(|m| m.meta.document.as_ref());
            documents.filter(|d| d.update.is_some() == updates).map(|d| d.tokens).sum::<u64>() as f64
        };
        followed.tried != self.here.tree.head()
            && self.attendance == Attendance::Present
            && self.engine.model().is_some_and(|m| m.server.is_none())
            && self.engine_is_free()
            && self.here.may_write().is_ok()
            && tokens(true) > tokens(false) * self.options.config.follow.rebase_share
    }
}

impl Verb {
    pub async fn refresh(&mut self) -> Done {
        self.here.may_write()?;
        self.engine_ready().await?;
        let head = self.here.tree.head();
        let new = self.updates(head, head, true).await?;
        let ages = self.ages_of_read().await?;
        let path: Vec<&Message> = self.here.tree.path().into_iter().chain(&new).collect();
        match self.rebased(&path, &ages) {
            Some((parent, messages)) => self.rebuild(parent, messages, "Read anew, now at").await,
            None if !new.is_empty() => self.rebuild(head, new, "Read, now at").await,
            None => {
                self.followed()?;
                refused("Every file was read in its present version: nothing to refresh.")
            }
        }
    }

    fn tried(&mut self, head: Option<MessageId>) {
        if let Ok(followed) = self.followed() {
            followed.tried = head;
        }
    }

    async fn ages_of_read(&mut self) -> Done<HashMap<PathBuf, SystemTime>> {
        let files = self.paths_read().into_iter().map(PathBuf::from).filter(|file| file.is_absolute());
        self.ages(files.collect()).await
    }

    /// The same in idle time. A request ends it; after the request it continues with what was read by then.
    pub async fn rebase(&mut self) -> Done {
        let head = self.here.tree.head();
        self.tried(head);
        let ages = self.ages_of_read().await?;
        let Some((parent, messages)) = self.rebased(&self.here.tree.path(), &ages) else { return Ok(()) };
        let path: Vec<&Message> = self.here.tree.path_to(parent).into_iter().chain(&messages).collect();
        let rendered = Arc::new(self.rendered(&path, Form::Past)?);
        let Plan { base, mut steps, .. } = self.planned(&rendered, State::plan).await?;
        steps.iter_mut().for_each(|step| step.message = None);
        let grown = self.in_idle_time(Branch { base, rendered, steps, last: None, message: None }).await?;
        if !self.here.queue.is_empty() {
            self.tried(None);
            return Ok(());
        }
        if grown.is_none() || self.here.slot.stopped() || self.here.tree.head() != head {
            return Ok(());
        }
        self.rebuild(parent, messages, "The files were read anew in idle time, now at").await?;
        let head = self.here.tree.head();
        self.tried(head);
        Ok(())
    }

    /// When each file was last committed; without git or a commit, when it changed.
    pub async fn ages(&mut self, files: Vec<PathBuf>) -> Done<HashMap<PathBuf, SystemTime>> {
        if files.is_empty() {
            return Ok(HashMap::new());
        }
        let ages = move |doing: &Doing| {
            let mut folder = files.first().and_then(|file| file.parent()).map(Path::to_owned).unwrap_or_default();
            while !files.iter().all(|file| file.starts_with(&folder)) && folder.pop() {}
            let committed = committed(&folder, &doing.cancel).unwrap_or_default();
            let age = |file: PathBuf| {
                let modified = || file.metadata().and_then(|meta| meta.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
                (committed.get(&file).copied().unwrap_or_else(modified), file)
            };
            files.into_iter().map(age).map(|(age, file)| (file, age)).collect()
        };
        self.elsewhere(LOOKING.into(), "The files were not put in order.", ages).await
    }
}

/// For the times of commits.
const GIT: Limits = Limits { time: Duration::from_secs(2), output_bytes: 256 << 20 };

/// The last commit of each file below a folder; `None` without a repository, or when git takes too long.
fn committed(folder: &Path, cancel: &Cancel) -> Option<HashMap<PathBuf, SystemTime>> {
    // The repository may be anybody's: it starts no program and no connection.
    let safe = ["--no-pager", "-c", "protocol.allow=never", "log", "--no-show-signature", "--no-renames"];
    let what = ["--relative", "--name-only", "-z", "--format=%x01%ct", "--", "."];
    let mut git = Command::new("git");
    git.arg("-C").arg(folder).args(safe).args(what);
    let log = String::from_utf8(child::run(git, &[], GIT, cancel).ok()?).ok()?;
    let (mut times, mut time) = (HashMap::new(), SystemTime::UNIX_EPOCH);
    for word in log.split('\0') {
        match word.strip_prefix('\u{1}') {
            Some(seconds) => time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.parse().ok()?),
            None => drop(times.entry(folder.join(word.trim_start_matches('\n'))).or_insert(time)),
        }
    }
    Some(times)
}
