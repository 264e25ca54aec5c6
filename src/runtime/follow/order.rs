//! The order in which followed files are read: what changes least comes first, so that a new reading keeps most.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use super::super::{Done, Verb};

const PATIENCE: Duration = Duration::from_secs(2);

impl Verb {
    /// When each file was last committed; without git or a commit, when it changed.
    pub(super) async fn ages(&mut self, files: Vec<PathBuf>) -> Done<HashMap<PathBuf, SystemTime>> {
        if files.is_empty() {
            return Ok(HashMap::new());
        }
        let ages = move || {
            let mut folder = files.first().and_then(|file| file.parent()).map(Path::to_owned).unwrap_or_default();
            while !files.iter().all(|file| file.starts_with(&folder)) && folder.pop() {}
            let committed = committed(&folder).unwrap_or_default();
            let age = |file: PathBuf| {
                let modified = || file.metadata().and_then(|meta| meta.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
                (committed.get(&file).copied().unwrap_or_else(modified), file)
            };
            files.into_iter().map(age).map(|(age, file)| (file, age)).collect()
        };
        self.look_elsewhere("The files were not put in order.", |_| ages()).await
    }
}

/// The last commit of each file below a folder; `None` without a repository, or when git takes too long.
fn committed(folder: &Path) -> Option<HashMap<PathBuf, SystemTime>> {
    // The repository may be anybody's: it starts no program and no connection.
    let safe = ["--no-pager", "-c", "protocol.allow=never", "log", "--no-show-signature", "--no-renames"];
    let what = ["--relative", "--name-only", "-z", "--format=%x01%ct", "--", "."];
    let mut git = Command::new("git");
    git.arg("-C").arg(folder).args(safe).args(what).stdin(Stdio::null()).stderr(Stdio::null());
    let mut child = git.stdout(Stdio::piped()).spawn().ok()?;
    let mut out = child.stdout.take()?;
    let (done, ended) = crossbeam_channel::bounded(1);
    std::thread::spawn(move || {
        let mut log = Vec::new();
        let read = std::io::Read::read_to_end(&mut out, &mut log);
        done.send(read.map(|_| log))
    });
    let log = ended.recv_timeout(PATIENCE);
    // It has ended, or takes too long.
    let _ = child.kill();
    let ended = child.wait().ok()?;
    let log = String::from_utf8(log.ok()?.ok()?).ok().filter(|_| ended.success())?;
    let (mut times, mut time) = (HashMap::new(), SystemTime::UNIX_EPOCH);
    for word in log.split('\0') {
        match word.strip_prefix('\u{1}') {
            Some(seconds) => time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.parse().ok()?),
            None => drop(times.entry(folder.join(word.trim_start_matches('\n'))).or_insert(time)),
        }
    }
    Some(times)
}
