//! A [`Disk`] that fails on demand: for the crash matrix and for tests of every failure.
//!
//! It works on real files and remembers unsynced effects. [`FaultDisk::crash_at`] cuts the power at one effect: what was not
//! durable is lost, kept or torn by choice, and every later effect fails, as for a dead process. Database commits are effects,
//! too, so "before this commit" and "after it" are both points of the matrix.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use crossbeam_channel::{Receiver, Sender};
use sala_chat::store::{Disk, DiskFile, Look, RealDisk};

/// What a power cut does to bytes and names that were not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The disk had written them anyway.
    Keep,
    /// Unsynced writes are lost, removals and renames are undone.
    Drop,
    /// Half of the bytes are there; names as for `Keep`.
    Torn,
}

/// Kinds of effects that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Making a file.
    Create,
    /// Writing to one.
    Write,
    /// Syncing a file or a directory.
    Sync,
    /// Renaming.
    Rename,
    /// Reading.
    Read,
    /// A database commit.
    Commit,
}

/// The failing disk. Clones share one fate.
#[derive(Clone, Debug, Default)]
pub struct FaultDisk(Arc<Mutex<Faults>>);

#[derive(Debug, Default)]
struct Faults {
    effects: u64,
    crash_at: Option<(u64, Loss)>,
    off: bool,
    failing: Option<(Effect, io::ErrorKind)>,
    /// Bytes that may still be written.
    room: Option<u64>,
    free: Option<u64>,
    read_only: bool,
    lying: bool,
    /// Effects of the threads of this name wait here.
    held: Option<(&'static str, Receiver<()>)>,
    /// Files with bytes that were not synced: how many are.
    durable: HashMap<PathBuf, u64>,
    /// Changes of names that were not synced, oldest first.
    names: Vec<NameChange>,
}

#[derive(Debug)]
enum NameChange {
    Created(PathBuf),
    Renamed { from: PathBuf, to: PathBuf, replaced: Option<Vec<u8>> },
    Removed { path: PathBuf, bytes: Vec<u8> },
}

impl FaultDisk {
    /// A disk that works.
    pub fn new() -> FaultDisk {
        FaultDisk::default()
    }

    /// Cuts the power during effect number `n`, counted from 0 over the disk's life.
    pub fn crash_at(&self, n: u64, loss: Loss) {
        self.faults().crash_at = Some((n, loss));
    }

    /// Effects so far.
    pub fn effects(&self) -> u64 {
        self.faults().effects
    }

    /// Whether the power is off.
    pub fn is_off(&self) -> bool {
        self.faults().off
    }

    /// All effects of this kind fail from now on.
    pub fn fail(&self, effect: Effect, error: io::ErrorKind) {
        self.faults().failing = Some((effect, error));
    }

    /// After so many more bytes the disk is full, for commits, too.
    pub fn full_after(&self, bytes: u64) {
        self.faults().room = Some(bytes);
    }

    /// What [`Disk::free_bytes`] answers.
    pub fn pretend_free(&self, bytes: u64) {
        self.faults().free = Some(bytes);
    }

    /// Nothing can be written.
    pub fn make_read_only(&self) {
        self.faults().read_only = true;
    }

    /// Syncs report success and do nothing: to see that a test would notice a missing one.
    pub fn lie_about_syncs(&self) {
        self.faults().lying = true;
    }

    /// Every effect of the threads of this name waits until what is returned is dropped.
    pub fn hold(&self, thread: &'static str) -> Sender<()> {
        let (release, held) = crossbeam_channel::unbounded();
        self.faults().held = Some((thread, held));
        release
    }

    /// Everything works again, except that a power cut is for ever.
    pub fn heal(&self) {
        let mut f = self.faults();
        f.failing = None;
        f.room = None;
        f.free = None;
        f.read_only = false;
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Counts an effect. `Ok(Some(loss))`: the power fails during it.
    fn begin(&self, effect: Effect) -> io::Result<Option<Loss>> {
        let held = self.faults().held.clone();
        if let Some((thread, held)) = held
            && std::thread::current().name() == Some(thread)
        {
            // No message is ever sent: it returns when the other end is dropped.
            let _ = held.recv();
        }
        let mut f = self.faults();
        if f.off {
            return Err(io::Error::other("the power is off"));
        }
        if effect != Effect::Read {
            if f.read_only {
                return Err(io::ErrorKind::ReadOnlyFilesystem.into());
            }
            let n = f.effects;
            f.effects += 1;
            if let Some((at, loss)) = f.crash_at
                && at == n
            {
                return Ok(Some(loss));
            }
        }
        match f.failing {
            Some((failing, error)) if failing == effect => Err(error.into()),
            _ => Ok(None),
        }
    }

    /// Runs an effect that happens wholly or not at all.
    fn whole(&self, effect: Effect, run: impl FnOnce(&mut Faults) -> io::Result<()>) -> io::Result<()> {
        match self.begin(effect)? {
            None => run(&mut self.faults()),
            Some(loss) => {
                if loss == Loss::Keep {
                    run(&mut self.faults())?;
                }
                self.cut(loss)
            }
        }
    }

    /// The power fails: settles everything not synced.
    fn cut(&self, loss: Loss) -> io::Result<()> {
        let mut f = self.faults();
        f.off = true;
        for (path, durable) in std::mem::take(&mut f.durable) {
            let Ok(meta) = fs::metadata(&path) else {
                continue;
            };
            let left = match loss {
                Loss::Keep => meta.len(),
                Loss::Drop => durable,
                Loss::Torn => durable + meta.len().saturating_sub(durable) / 2,
            };
            OpenOptions::new().write(true).open(&path)?.set_len(left)?;
        }
        if loss == Loss::Drop {
            for change in std::mem::take(&mut f.names).into_iter().rev() {
                match change {
                    NameChange::Created(path) => RealDisk.remove(&path)?,
                    NameChange::Removed { path, bytes } => fs::write(path, bytes)?,
                    NameChange::Renamed { from, to, replaced } => {
                        fs::rename(&to, from)?;
                        if let Some(bytes) = replaced {
                            fs::write(to, bytes)?;
                        }
                    }
                }
            }
        }
        Err(io::Error::other("the power went off"))
    }
}

struct FaultFile {
    disk: FaultDisk,
    path: PathBuf,
    file: Box<dyn DiskFile>,
}

impl DiskFile for FaultFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self.disk.begin(Effect::Write)? {
            Some(loss) => {
                let part = match loss {
                    Loss::Keep => bytes.len(),
                    Loss::Torn => bytes.len() / 2,
                    Loss::Drop => 0,
                };
                self.file.write(bytes.get(..part).unwrap_or_default())?;
                self.disk.cut(loss)
            }
            None => {
                let room = {
                    let mut f = self.disk.faults();
                    let part =
                        f.room.map_or(bytes.len(), |r| bytes.len().min(usize::try_from(r).unwrap_or(usize::MAX)));
                    if let Some(room) = &mut f.room {
                        *room -= part as u64;
                    }
                    part
                };
                self.file.write(bytes.get(..room).unwrap_or_default())?;
                if room < bytes.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
            }
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        let (path, file) = (self.path.clone(), &mut self.file);
        self.disk.whole(Effect::Sync, |f| {
            file.sync()?;
            if !f.lying {
                f.durable.remove(&path);
            }
            Ok(())
        })
    }
}

impl Disk for FaultDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut made = None;
        self.whole(Effect::Create, |f| {
            let new = !path.exists();
            made = Some(RealDisk.create(path)?);
            if new {
                f.names.push(NameChange::Created(path.to_owned()));
            }
            f.durable.insert(path.to_owned(), 0);
            Ok(())
        })?;
        let file = made.ok_or_else(|| io::Error::other("not made"))?;
        Ok(Box::new(FaultFile { disk: self.clone(), path: path.to_owned(), file }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.whole(Effect::Rename, |f| {
            let replaced = fs::read(to).ok();
            RealDisk.rename(from, to)?;
            if let Some(durable) = f.durable.remove(from) {
                f.durable.insert(to.to_owned(), durable);
            }
            f.names.push(NameChange::Renamed { from: from.to_owned(), to: to.to_owned(), replaced });
            Ok(())
        })
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.whole(Effect::Sync, |f| {
            RealDisk.sync_dir(dir)?;
            if f.lying {
                return Ok(());
            }
            f.names.retain(|change| match change {
                NameChange::Created(path) | NameChange::Removed { path, .. } => path.parent() != Some(dir),
                NameChange::Renamed { to, .. } => to.parent() != Some(dir),
            });
            Ok(())
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.whole(Effect::Rename, |f| {
            let bytes = fs::read(path).ok();
            RealDisk.remove(path)?;
            f.durable.remove(path);
            if let Some(bytes) = bytes {
                f.names.push(NameChange::Removed { path: path.to_owned(), bytes });
            }
            Ok(())
        })
    }

    fn read_at(&self, path: &Path, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        self.begin(Effect::Read)?;
        RealDisk.read_at(path, offset, len)
    }

    fn look(&self, path: &Path) -> io::Result<Look> {
        if self.is_off() {
            return Err(io::Error::other("the power is off"));
        }
        RealDisk.look(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        RealDisk.list(dir)
    }

    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.make_dir(dir)
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        match self.faults().free {
            Some(bytes) => Ok(bytes),
            None => RealDisk.free_bytes(dir),
        }
    }

    fn before_commit(&self) -> io::Result<()> {
        self.whole(Effect::Commit, |f| match f.room {
            // A commit needs a few pages.
            Some(room) if room < 16 << 10 => Err(io::ErrorKind::StorageFull.into()),
            Some(_) | None => Ok(()),
        })?;
        if self.is_off() { Err(io::Error::other("the power is off")) } else { Ok(()) }
    }
}
