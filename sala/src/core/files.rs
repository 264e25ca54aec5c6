//! Small foreign files (settings, a model's JSON files, imports), read with a limit, and atomic writes of settings.
//! Neither a pipe nor a device can block the program or fill the memory: only regular files are read, opened without
//! waiting, up to a known size, into memory that may fail to allocate.

use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

pub const SETTINGS_BYTES: u64 = 1 << 20;
/// `config.json`, `tokenizer_config.json`, an index of weights; known files are below 3 MiB.
pub const MODEL_CONFIG_BYTES: u64 = 32 << 20;
/// `tokenizer.json`; known files are below 40 MiB.
pub const TOKENIZER_BYTES: u64 = 128 << 20;
/// Header of a safetensors file; the limit of its library.
pub const HEADER_BYTES: u64 = 100 << 20;
/// An export of conversations; years of use make less than 300 MiB.
pub const IMPORT_BYTES: u64 = 512 << 20;

/// An error, or a message with one, in plain words: `not found` for `No such file or directory (os error 2)`.
pub fn plain_words(error: &impl Display) -> String {
    let mut text = error.to_string().replace("No such file or directory", "not found");
    while let Some(start) = text.find(" (os error ") {
        let Some(length) = text.get(start..).and_then(|rest| rest.find(')')) else { break };
        text.replace_range(start..=start + length, "");
    }
    text
}

/// Opens a regular file, and no folder, pipe, device or socket; the size it has now.
pub fn open(path: &Path) -> Result<(File, u64)> {
    let file = open_at_once(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok((file, meta.len()))
}

/// Opens any file without waiting: opening a pipe without a writer would block. Reading a pipe does not wait, either.
pub fn open_at_once(path: &Path) -> Result<File> {
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Whether there is a regular file, or a link to one. Fails where the system does not let that be seen.
pub fn is_there(path: &Path) -> Result<bool> {
    match path.metadata() {
        Ok(meta) => Ok(meta.is_file()),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Reads a regular file of at most `most` bytes.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    let (file, size) = open(path)?;
    let too_large = |size: u64| {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        Error::new(ErrorKind::FileTooLarge, format!("{} MiB, the limit is {} MiB", mib(size), mib(most)))
    };
    if size > most {
        return Err(too_large(size));
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(usize::try_from(size).unwrap_or(usize::MAX)).map_err(|_| ErrorKind::OutOfMemory)?;
    // The file may have grown.
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(too_large(bytes.len() as u64)) } else { Ok(bytes) }
}

/// Reads a regular file of at most `most` bytes as UTF-8.
pub fn read_text(path: &Path, most: u64) -> Result<String> {
    String::from_utf8(read(path, most)?).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Error::new(ErrorKind::InvalidData, format!("not UTF-8 text (byte {at})"))
    })
}

/// Writes a file in a folder that is there, whole or not at all. A link stays one: what it leads to is written.
///
/// # Errors
/// The file stays as it was, unless only its folder could not be synced.
pub fn replace(path: &Path, contents: &[u8]) -> Result<()> {
    let file = match std::fs::canonicalize(path) {
        Ok(file) => file,
        // A link without a target, or no file yet.
        Err(e) if e.kind() == ErrorKind::NotFound => match (std::fs::read_link(path), path.parent()) {
            (Ok(to), Some(folder)) => folder.join(to),
            _ => path.to_owned(),
        },
        Err(e) => return Err(e),
    };
    write_synced(&file, contents)?.persist(&file).map_err(|e| e.error)?;
    sync_folder(&file)
}

/// Writes a file that is not there, in a folder that is, for its owner alone, whole or not at all.
///
/// # Errors
/// There is one, and it stays as it was; or the folder cannot be written.
pub fn create(path: &Path, contents: &[u8]) -> Result<()> {
    write_synced(path, contents)?.persist_noclobber(path).map_err(|e| e.error)?;
    sync_folder(path)
}

/// A path as a user writes it: `~/` is the home folder.
pub fn below_home(path: &str, home: Option<&Path>) -> PathBuf {
    path.strip_prefix("~/").zip(home).map_or_else(|| path.into(), |(rest, home)| home.join(rest))
}

/// Names of the files of a folder with this extension, without it, sorted. None where there is no such folder.
pub fn stems(folder: &Path, extension: &str) -> Vec<String> {
    let paths = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let ours = paths.filter(|path| path.extension().is_some_and(|e| e == extension));
    let mut names: Vec<String> = ours.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect();
    names.sort_unstable();
    names
}

pub fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Syncs the folder of a file: without it the file's name is not durable. A file system without such a sync is
/// accepted.
pub fn sync_folder(file: &Path) -> Result<()> {
    match File::open(folder_of(file)).and_then(|folder| folder.sync_all()) {
        Err(e) if matches!(e.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        // A folder may be writable but not readable.
        Err(e) if e.kind() == ErrorKind::PermissionDenied => Ok(()),
        done => done,
    }
}

/// A synced temporary file in the folder of `file`.
fn write_synced(file: &Path, contents: &[u8]) -> Result<NamedTempFile> {
    let mut new = NamedTempFile::new_in(folder_of(file))?;
    new.write_all(contents)?;
    new.as_file().sync_all()?;
    Ok(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system_are_worded_without_numbers() {
        assert_eq!(plain_words(&Error::from_raw_os_error(2)), "not found");
        let both = "a: Permission denied (os error 13); b: Is a directory (os error 21)";
        assert_eq!(plain_words(&both), "a: Permission denied; b: Is a directory");
    }

    #[test]
    fn what_a_link_leads_to_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("kept/file"), dir.path().join("link"));
        std::fs::create_dir(dir.path().join("kept")).unwrap();
        std::os::unix::fs::symlink("kept/file", &link).unwrap();
        std::fs::write(&file, "before").unwrap();
        replace(&link, b"after").unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "after");
        replace(&dir.path().join("new"), b"text").unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("new")).unwrap(), "text");
        assert!(replace(&dir.path().join("none/new"), b"text").is_err());
        // To nothing yet.
        std::fs::remove_file(&file).unwrap();
        replace(&link, b"again").unwrap();
        assert_eq!((link.is_symlink(), std::fs::read_to_string(&file).unwrap()), (true, "again".into()));
    }

    #[test]
    fn what_cannot_be_seen_is_not_called_absent() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link, own) = (dir.path().join("file"), dir.path().join("link"), dir.path().join("own"));
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!([&file, &link, &file.join("in it")].map(|path| is_there(path).unwrap()), [false; 3]);
        std::fs::write(&file, "text").unwrap();
        let found = [&file, &link, &file.join("in it"), &dir.path().to_path_buf()].map(|path| is_there(path).unwrap());
        assert_eq!(found, [true, true, false, false]);
        // A link to itself, which no user can open.
        std::os::unix::fs::symlink(&own, &own).unwrap();
        assert!(is_there(&own).is_err());
    }

    #[test]
    fn only_regular_files_up_to_the_limit_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a");
        std::fs::write(&file, "text").unwrap();
        assert_eq!(read_text(&file, 4).unwrap(), "text");
        let large = read(&file, 3).unwrap_err();
        assert_eq!((large.kind(), large.to_string().as_str()), (ErrorKind::FileTooLarge, "1 MiB, the limit is 1 MiB"));
        std::fs::write(&file, b"ab\xff").unwrap();
        assert_eq!(read_text(&file, 4).unwrap_err().to_string(), "not UTF-8 text (byte 2)");
        assert_eq!(read(dir.path(), 4).unwrap_err().to_string(), "not a regular file");
        assert_eq!(read(Path::new("/dev/zero"), 4).unwrap_err().to_string(), "not a regular file");
        assert_eq!(read(&dir.path().join("none"), 4).unwrap_err().kind(), ErrorKind::NotFound);
        // A pipe without a writer.
        let pipe = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert_eq!(read(&pipe, 4).unwrap_err().to_string(), "not a regular file");
        // No byte of it is read.
        File::create(&file).unwrap().set_len(1 << 43).unwrap();
        assert_eq!(read(&file, 1 << 30).unwrap_err().kind(), ErrorKind::FileTooLarge);
    }
}
