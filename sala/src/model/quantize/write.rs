//! Writes files into a destination folder: by one process at a time, under a temporary name until they are complete
//! and on the disk.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo, TensorView};
use tempfile::NamedTempFile;

use super::at;
use crate::core::files;
use crate::model::{ModelError, Result};

/// Prefix of an incomplete file's name.
pub(super) const PARTIAL: &str = ".part-";
const PARTIAL_OF_LIBRARY: &str = ".tmp";
const LETTERS_OF_LIBRARY: usize = 6;
pub(super) const LOCK: &str = ".sala-chat.lock";
const TRIES: usize = 100;
const BUFFER_BYTES: usize = 1 << 20;
/// From this size on several cores hash faster than one.
const FOR_ALL_CORES: usize = 128 << 10;

#[derive(Debug)]
pub struct Claim {
    folder: PathBuf,
    made: bool,
    _lock: File,
}

impl Claim {
    /// Locks a folder, and makes it if needed.
    pub fn take(folder: &Path) -> Result<Claim> {
        let made = !folder.exists();
        std::fs::create_dir_all(folder).map_err(at(folder))?;
        match Claim::of_existing(folder).map_err(at(&folder.join(LOCK)))? {
            Some(mut claim) => {
                claim.made = made;
                Ok(claim)
            }
            None => Err(ModelError::InUse { path: folder.into(), owner: owner(folder) }),
        }
    }

    /// Locks an existing folder. `None` if another process holds the lock.
    fn of_existing(folder: &Path) -> io::Result<Option<Claim>> {
        let path = folder.join(LOCK);
        for _ in 0..TRIES {
            let mut open = OpenOptions::new();
            open.read(true).write(true).create(true).truncate(false);
            let lock = open.custom_flags(no_follow()).open(&path)?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                // A disk without locks: the user must avoid two runs at once.
                Err(TryLockError::Error(_)) => {}
            }
            // The previous owner may have removed the file after we opened it: a lock on a removed file protects
            // nothing.
            let same =
                |m: std::fs::Metadata| lock.metadata().is_ok_and(|lock| (lock.dev(), lock.ino()) == (m.dev(), m.ino()));
            if path.symlink_metadata().is_ok_and(same) {
                // The lock alone protects the folder; without the process id another run only has a vaguer message.
                let _ = lock.set_len(0).and_then(|()| (&lock).write_all(std::process::id().to_string().as_bytes()));
                return Ok(Some(Claim { folder: folder.into(), made: false, _lock: lock }));
            }
        }
        Ok(None)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Removed while locked: a process that has opened the file by now finds that it has no name any more.
        remove_lock(&self.folder);
        if self.made {
            // Fails, as intended, for a folder with files.
            let _ = std::fs::remove_dir(&self.folder);
        }
    }
}

pub(super) fn is_claimed(folder: &Path) -> bool {
    let lock = OpenOptions::new().read(true).custom_flags(no_follow()).open(folder.join(LOCK));
    lock.is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Removes the lock file. Only for a lock that no process holds: a killed run leaves the file.
pub(super) fn remove_lock(folder: &Path) {
    // A file that remains does not lock: the system's lock decides.
    let _ = std::fs::remove_file(folder.join(LOCK));
}

fn owner(folder: &Path) -> String {
    let mut text = String::new();
    let lock = OpenOptions::new().read(true).custom_flags(no_follow()).open(folder.join(LOCK));
    let read = lock.and_then(|lock| lock.take(16).read_to_string(&mut text));
    match text.parse::<u32>() {
        Ok(process) if read.is_ok() => format!("process {process}"),
        _ => "another process".to_owned(),
    }
}

/// Flag for opening a file of the folder itself: the target of a link may belong to others.
fn no_follow() -> i32 {
    i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0)
}

/// Whether a name is that of an incomplete file, of this version or an earlier one.
pub(super) fn is_partial(name: &str) -> bool {
    let of_library = |rest: &str| rest.len() == LETTERS_OF_LIBRARY && rest.bytes().all(|b| b.is_ascii_alphanumeric());
    name.starts_with(PARTIAL) || name.strip_prefix(PARTIAL_OF_LIBRARY).is_some_and(of_library)
}

pub(super) fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(at(path)(e)),
        _ => Ok(()),
    }
}

/// A temporary file in the folder of `path`, with permissions by the user's umask.
fn begin(path: &Path) -> io::Result<NamedTempFile> {
    let readable = std::fs::Permissions::from_mode(0o666);
    tempfile::Builder::new().prefix(PARTIAL).permissions(readable).tempfile_in(files::folder_of(path))
}

/// Syncs a complete file and renames it: an index must never exist without its files.
fn put(partial: NamedTempFile, path: &Path) -> Result<()> {
    partial.as_file().sync_all().map_err(at(path))?;
    partial.persist(path).map_err(|e| at(path)(e.error))?;
    files::sync_folder(path).map_err(at(path))
}

/// Atomic: the file is complete or absent.
pub(super) fn write_text(path: &Path, text: &str) -> Result<()> {
    let mut partial = begin(path).map_err(at(path))?;
    partial.write_all(text.as_bytes()).map_err(at(path))?;
    put(partial, path)
}

/// A tensor of a new file.
pub(in crate::model) struct Made<'a> {
    pub(in crate::model) name: String,
    pub(in crate::model) dtype: Dtype,
    pub(in crate::model) shape: Vec<usize>,
    pub(in crate::model) bytes: Cow<'a, [u8]>,
}

/// Writes a safetensors file atomically. Returns the hash of all its bytes.
pub(in crate::model) fn write_tensors(
    path: &Path,
    tensors: &[Made<'_>],
    metadata: HashMap<String, String>,
) -> Result<String> {
    let partial = begin(path).map_err(at(path))?;
    let hash = stream(partial.as_file(), tensors, metadata).map_err(at(path))?;
    put(partial, path)?;
    Ok(hash)
}

/// A file and the hash of the written bytes, not of the bytes that the disk holds later.
struct Hashed<W> {
    file: W,
    hasher: blake3::Hasher,
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        let taken = bytes.get(..written).unwrap_or_default();
        if taken.len() < FOR_ALL_CORES {
            self.hasher.update(taken)
        } else {
            self.hasher.update_rayon(taken)
        };
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Same bytes as [`safetensors::serialize_to_file`]. That function replaces the file by one of its own, with
/// permissions for the user alone, and returns no handle to sync. Returns the hash of all bytes.
fn stream(file: impl Write, tensors: &[Made<'_>], metadata: HashMap<String, String>) -> io::Result<String> {
    let views = tensors.iter().map(|Made { name, dtype, shape, bytes }| {
        TensorView::new(*dtype, shape.clone(), bytes).map(|view| (name.clone(), view))
    });
    let mut tensors = views.collect::<Result<Vec<_>, _>>().map_err(io::Error::other)?;
    // The widest numbers first, which keeps all of them aligned.
    tensors.sort_by(|(a, left), (b, right)| right.dtype().cmp(&left.dtype()).then_with(|| a.cmp(b)));
    let (mut infos, mut end) = (Vec::with_capacity(tensors.len()), 0);
    for (name, view) in &tensors {
        let start = end;
        end += view.data().len();
        let info = TensorInfo { dtype: view.dtype(), shape: view.shape().to_vec(), data_offsets: (start, end) };
        infos.push((name.clone(), info));
    }
    let header = Metadata::new(Some(metadata), infos).map_err(io::Error::other)?;
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(size_of::<u64>()), b' ');
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, Hashed { file, hasher: blake3::Hasher::new() });
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    for (_, view) in &tensors {
        out.write_all(view.data())?;
    }
    out.flush()?;
    Ok(out.get_ref().hasher.finalize().to_hex().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_tensors_are_those_of_the_library_and_are_read_by_others() {
        let dir = tempfile::tempdir().unwrap();
        let large = 2 * BUFFER_BYTES + 1;
        let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(large).collect();
        let tensors = || {
            let new = |name: &str, dtype, shape: &[usize], size: usize| {
                (name.to_owned(), TensorView::new(dtype, shape.to_vec(), &bytes[..size]).unwrap())
            };
            vec![
                new("b.bytes", safetensors::Dtype::U8, &[3], 3),
                new("a.bytes", safetensors::Dtype::U8, &[1, 5], 5),
                new("z.floats", safetensors::Dtype::F32, &[2, 3], 24),
                new("halves", safetensors::Dtype::BF16, &[2], 4),
                new("none", safetensors::Dtype::F32, &[0], 0),
                new("large", safetensors::Dtype::U8, &[large], large),
            ]
        };
        let metadata = || HashMap::from([("made_from".to_owned(), "a hash 1e-4".to_owned())]);
        let (ours, plain) = (dir.path().join("part-000.safetensors"), dir.path().join("plain"));
        let made = tensors().into_iter().map(|(name, view)| Made {
            name,
            dtype: view.dtype(),
            shape: view.shape().to_vec(),
            bytes: view.data().into(),
        });
        let hash = write_tensors(&ours, &made.collect::<Vec<_>>(), metadata()).unwrap();
        let theirs = safetensors::serialize(tensors(), Some(metadata())).unwrap();
        assert_eq!(std::fs::read(&ours).unwrap(), theirs);
        assert_eq!(hash, blake3::hash(&theirs).to_hex().to_string());
        std::fs::write(&plain, "").unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&ours), mode(&plain), "as any file of the user's");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "nothing is left beside it");
    }

    #[test]
    fn a_folder_is_written_by_one_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("made/for/this");
        let claim = Claim::take(&out).unwrap();
        assert!(is_claimed(&out));
        let refused = Claim::take(&out).unwrap_err();
        assert_eq!(refused.exit(), crate::core::Exit::InUse);
        let message = refused.to_string();
        assert!(message.contains(&format!("process {}", std::process::id())) && !message.contains('\n'), "{message}");
        std::fs::write(out.join("part-000.safetensors"), "text").unwrap();
        drop(claim);
        assert!(!is_claimed(&out));
        assert_eq!(std::fs::read_dir(&out).unwrap().count(), 1, "the lock goes, what was written stays");
        // A killed run leaves the file and no lock.
        std::fs::write(out.join(LOCK), "1").unwrap();
        assert!(!is_claimed(&out));
        drop(Claim::take(&out).unwrap());
        let empty = dir.path().join("empty");
        drop(Claim::take(&empty).unwrap());
        assert!(!empty.exists(), "made for nothing");
    }
}
