//! Every file effect of the store uses [`Disk`], so that tests can cut the power after any of them.
//!
//! Owns nothing. Paths are absolute. [`RealDisk`] opens the directory a path names and works inside it by name, and
//! follows a link in neither place: a link planted in the data directory cannot redirect a write, read or removal
//! elsewhere. (Links above the data directory are the user's own; the store resolves them once when it opens.) SQLite
//! does its own file work; [`Disk::before_commit`] puts its commits into the same order of effects.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{AtFlags, Mode, OFlags};

pub trait DiskFile: Send {
    /// After an error the file may contain a part of the bytes.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// After an error the file's bytes are unknown.
    fn sync(&mut self) -> io::Result<()>;
}

/// Facts about a directory entry. Links are not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    pub bytes: u64,
    /// A plain file: no directory, link, pipe or device.
    pub is_file: bool,
    pub is_dir: bool,
    /// Device and inode: another file under the same name has another pair.
    pub identity: (u64, u64),
    /// Permission bits, `0o777`.
    pub mode: u32,
    pub owner: u32,
    pub modified: SystemTime,
}

/// The effects the store needs from a file system. All errors are the system's.
pub trait Disk: Send + Sync + std::fmt::Debug {
    /// Creates a new file, mode 0600. An existing file loses the name and is not written to.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Replaces `to` with `from`, both in one directory.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes creations, renames and removals in `dir` durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// A missing file is no error.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// `len` bytes from `offset` of a plain file; fewer is an error.
    fn read_at(&self, path: &Path, offset: u64, len: u64) -> io::Result<Vec<u8>>;
    fn read_into(&self, path: &Path, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let bytes = self.read_at(path, offset, into.len() as u64)?;
        into.copy_from_slice(&bytes);
        Ok(())
    }
    fn look(&self, path: &Path) -> io::Result<Look>;
    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>>;
    /// Creates a directory and its parents, mode 0700 where new. Refuses a link to one.
    fn make_dir(&self, dir: &Path) -> io::Result<()>;
    /// Bytes an unprivileged process may still write below `dir`.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64>;
    fn before_commit(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a file under the name `part` and moves it to its place in the same directory: all of it, durable, or nothing.
pub(super) fn write_whole(
    disk: &dyn Disk,
    part: &Path,
    to: &Path,
    fill: impl FnOnce(&mut dyn DiskFile) -> io::Result<()>,
) -> io::Result<()> {
    let write = || -> io::Result<()> {
        let mut file = disk.create(part)?;
        fill(&mut *file)?;
        file.sync()?;
        disk.rename(part, to)?;
        to.parent().map_or(Ok(()), |dir| disk.sync_dir(dir))
    };
    write().inspect_err(|_| {
        let _ = disk.remove(part);
    })
}

#[derive(Debug, Default, Clone, Copy)]
pub struct RealDisk;

impl DiskFile for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

/// Opens a directory; a link in its place is an error.
fn directory(dir: &Path) -> io::Result<File> {
    // A relative name of one part has the empty path as its parent.
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(dir, flags, Mode::empty())?))
}

fn place(path: &Path) -> io::Result<(File, &OsStr)> {
    match (path.parent(), path.file_name()) {
        (Some(dir), Some(name)) => Ok((directory(dir)?, name)),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "not the name of a file")),
    }
}

/// Opens a plain file by name inside its directory. Never waits for the other end of a pipe, never follows a link.
pub(super) fn open_plain(path: &Path, flags: OFlags) -> io::Result<File> {
    let (dir, name) = place(path)?;
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::openat(&dir, name, flags, Mode::from_raw_mode(0o600))?);
    match file.metadata()? {
        found if !found.is_file() => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a plain file")),
        // A hard link elsewhere would be written as well.
        found if flags.intersects(OFlags::RDWR | OFlags::WRONLY) && found.nlink() > 1 => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "it has another name elsewhere"))
        }
        _ => Ok(file),
    }
}

impl Disk for RealDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.remove(path)?;
        Ok(Box::new(open_plain(path, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let ((dir, from), (_, to)) = (place(from)?, place(to)?);
        Ok(rustix::fs::renameat(&dir, from, &dir, to)?)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        directory(dir)?.sync_all()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = place(path)?;
        match rustix::fs::unlinkat(&dir, name, AtFlags::empty()) {
            Err(rustix::io::Errno::NOENT) => Ok(()),
            other => Ok(other?),
        }
    }

    fn read_at(&self, path: &Path, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        let file = open_plain(path, OFlags::RDONLY)?;
        // Never reserve more than the file has: `len` may be from a damaged header.
        let have = file.metadata()?.len().saturating_sub(offset);
        if have < len {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("{len} bytes wanted at {offset}, {have} there"),
            ));
        }
        let mut bytes = vec![0; usize::try_from(len).map_err(io::Error::other)?];
        file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    fn read_into(&self, path: &Path, offset: u64, into: &mut [u8]) -> io::Result<()> {
        open_plain(path, OFlags::RDONLY)?.read_exact_at(into, offset)
    }

    fn look(&self, path: &Path) -> io::Result<Look> {
        let found = fs::symlink_metadata(path)?;
        Ok(Look {
            bytes: found.len(),
            is_file: found.is_file(),
            is_dir: found.is_dir(),
            identity: (found.dev(), found.ino()),
            mode: found.mode() & 0o777,
            owner: found.uid(),
            modified: found.modified()?,
        })
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(directory(dir)?)? {
            let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
            if name != OsStr::new(".") && name != OsStr::new("..") {
                names.push(PathBuf::from(name));
            }
        }
        Ok(names)
    }

    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        match fs::symlink_metadata(dir) {
            Ok(found) if found.is_dir() => Ok(()),
            Ok(found) if found.is_symlink() => {
                Err(io::Error::new(io::ErrorKind::NotADirectory, format!("{} is a link", dir.display())))
            }
            Ok(_) => Err(io::ErrorKind::NotADirectory.into()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
            }
            Err(e) => Err(e),
        }
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        fs4::available_space(dir)
    }
}
