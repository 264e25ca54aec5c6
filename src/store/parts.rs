//! Unfinished files at places the user chose (`NAME.<process>.part` of an export): noted in `locks/` while they are
//! written, so that the next start can remove the leftovers of a killed process.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::OFlags;

use super::directory::Layout;
use super::disk::{Disk, open_plain};

const PREFIX: &str = "part-";

/// The note about one file, removed on drop.
#[derive(Debug)]
pub(super) struct Announced<'a> {
    disk: &'a dyn Disk,
    note: PathBuf,
    _held: File,
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        let _ = self.disk.remove(&self.note);
    }
}

pub(super) fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    path.with_file_name(name)
}

/// Notes that `part` is being written. Best effort: an export works without a note.
pub(super) fn announce<'a>(layout: &Layout, disk: &'a dyn Disk, part: &Path) -> Option<Announced<'a>> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let note = layout.locks.join(format!("{PREFIX}{}-{n}", std::process::id()));
    let mut held = open_plain(&note, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC).ok()?;
    // Locked while it is still empty: an empty note names nothing.
    held.try_lock().ok()?;
    held.write_all(part.as_os_str().as_bytes()).ok()?;
    Some(Announced { disk, note, _held: held })
}

pub(super) fn remove_left(layout: &Layout, disk: &dyn Disk) {
    for name in disk.list(&layout.locks).unwrap_or_default() {
        let process = name.to_str().and_then(|n| n.strip_prefix(PREFIX)?.split_once('-')).map(|(pid, _)| pid);
        let Some(process) = process.filter(|p| p.parse::<u32>().is_ok()) else { continue };
        let note = layout.locks.join(&name);
        let Ok(held) = open_plain(&note, OFlags::RDWR) else { continue };
        if held.try_lock().is_err() {
            continue;
        }
        let mut bytes = Vec::new();
        if (&held).take(8192).read_to_end(&mut bytes).is_ok() {
            let part = Path::new(OsStr::from_bytes(&bytes));
            let ours = bytes.ends_with(format!(".{process}.part").as_bytes()) && part.is_absolute();
            let me = rustix::process::geteuid().as_raw();
            if ours && disk.look(part).is_ok_and(|l| l.is_file && l.owner == me) {
                let _ = disk.remove(part);
            }
        }
        let _ = disk.remove(&note);
    }
}
