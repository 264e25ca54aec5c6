//! Every file effect of the store goes through [`Disk`], so that tests can cut the power after any of them.
//!
//! Owns nothing. Paths are absolute. SQLite does its own file work; [`Disk::before_commit`] puts its commits into the
//! same order of effects.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A file being written.
pub trait DiskFile: Send {
    /// Appends all of `bytes`.
    ///
    /// # Errors
    /// As the system says; part of the bytes may be in the file then.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Makes what was written durable.
    ///
    /// # Errors
    /// As the system says; nothing may be assumed about the file's bytes then.
    fn sync(&mut self) -> io::Result<()>;
}

/// The effects the store needs from a file system. All errors are the system's.
#[allow(clippy::missing_errors_doc)]
pub trait Disk: Send + Sync + std::fmt::Debug {
    /// Makes a new file, mode 0600; an existing one is emptied.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Replaces `to` with `from`, both in one directory.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes creations, renames and removals in `dir` durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Removes a file; one that does not exist is no error.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// `len` bytes from `offset`; fewer is an error.
    fn read_at(&self, path: &Path, offset: u64, len: u64) -> io::Result<Vec<u8>>;
    /// The same into memory that is there already.
    fn read_into(&self, path: &Path, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let bytes = self.read_at(path, offset, into.len() as u64)?;
        into.copy_from_slice(&bytes);
        Ok(())
    }
    /// Size of a file in bytes.
    fn len(&self, path: &Path) -> io::Result<u64>;
    /// Names of the files in a directory.
    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>>;
    /// Makes a directory and its parents, mode 0700 where new.
    fn make_dir(&self, dir: &Path) -> io::Result<()>;
    /// Bytes an unprivileged process may still write below `dir`.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64>;
    /// Called before every database commit.
    fn before_commit(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The machine's own file system.
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

impl Disk for RealDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        private_file(&mut options);
        Ok(Box::new(options.open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        // Directories cannot be opened as files on Windows; renames are durable there once the file was flushed.
        if cfg!(unix) { File::open(dir)?.sync_all() } else { Ok(()) }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        match fs::remove_file(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn read_at(&self, path: &Path, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(offset))?;
        let want = usize::try_from(len).map_err(io::Error::other)?;
        // Never reserve more than the file can give: `len` may come from a damaged header.
        let have = file.metadata()?.len().saturating_sub(offset);
        if have < len {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("{len} bytes wanted at {offset}, {have} there"),
            ));
        }
        let mut bytes = Vec::with_capacity(want);
        // `read_to_end` fills the reserved space without zeroing it first.
        file.take(len).read_to_end(&mut bytes)?;
        if bytes.len() != want {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(bytes)
    }

    fn read_into(&self, path: &Path, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(into)
    }

    fn len(&self, path: &Path) -> io::Result<u64> {
        Ok(fs::metadata(path)?.len())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            names.push(PathBuf::from(entry?.file_name()));
        }
        Ok(names)
    }

    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(dir)
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        fs4::available_space(dir)
    }
}

/// Readable by the user only.
pub(super) fn private_file(options: &mut OpenOptions) {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    #[cfg(not(unix))]
    let _ = options;
}
