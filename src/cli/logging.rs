//! The log file and crash reports. Both go to the state folder only; neither holds message text (the log does at `trace`).

use std::backtrace::Backtrace;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::panic::PanicHookInfo;
use std::path::{Path, PathBuf};

use tracing_appender::non_blocking::WorkerGuard;
use tracing_subscriber::EnvFilter;

use super::about;
use super::dirs::{Dirs, make_private};
use crate::config::settings::LogConfig;
use crate::text::clock;

/// Starts the log, one file a day. There is none in a folder that cannot be written or is another program's data.
#[must_use]
pub fn start(dirs: &Dirs, config: &LogConfig, verbose: u8) -> Option<WorkerGuard> {
    let state = dirs.state.as_path();
    let foreign = state.starts_with(&dirs.data) && crate::store::check_folder(&dirs.data).is_err();
    let level = match (std::env::var("SALA_CHAT_LOG"), verbose) {
        (Ok(filter), _) => filter,
        (_, 0) => config.level.clone(),
        (_, _) => "debug".to_owned(),
    };
    let filter = if level.contains(['=', ',']) { level.clone() } else { format!("warn,sala_chat={level}") };
    // Parsed here: the lossy way prints what it does not understand.
    let filter = EnvFilter::try_new(filter);
    let (Ok(filter), true) = (filter, level != "off" && !foreign && make_private(state).is_ok()) else {
        return None;
    };
    let file = DailyFile { folder: state.to_owned(), keep: config.keep_files, open: None };
    let (writer, guard) = tracing_appender::non_blocking(file);
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(false).finish();
    // A second start in one process (tests) keeps the first log.
    let _ = tracing::subscriber::set_global_default(subscriber);
    Some(guard)
}

/// `sala-chat.2026-01-31.log`, another one each day (UTC), the oldest removed; all of them for this user only.
struct DailyFile {
    folder: PathBuf,
    keep: usize,
    open: Option<(String, File)>,
}

const LOG_PREFIX: &str = "sala-chat.";
const LOG_SUFFIX: &str = ".log";

impl DailyFile {
    fn file(&mut self, day: &str) -> std::io::Result<&mut File> {
        if self.open.as_ref().is_none_or(|(of, _)| of != day) {
            let path = self.folder.join(format!("{LOG_PREFIX}{day}{LOG_SUFFIX}"));
            let file = private(OpenOptions::new().append(true).create(true), &path)?;
            // An earlier version may have made it readable for others.
            file.set_permissions(Permissions::from_mode(0o600))?;
            self.open = Some((day.to_owned(), file));
            self.prune();
        }
        self.open.as_mut().map(|(_, file)| file).ok_or(ErrorKind::NotFound.into())
    }

    /// Removes the oldest; failures are ignored.
    fn prune(&self) {
        let is_ours = |name: &str| {
            let day = name.strip_prefix(LOG_PREFIX).and_then(|n| n.strip_suffix(LOG_SUFFIX));
            day.is_some_and(|d| d.len() == 10 && d.bytes().all(|b| b.is_ascii_digit() || b == b'-'))
        };
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
        names.retain(|name| is_ours(name));
        names.sort();
        for name in names.iter().rev().skip(self.keep.max(1)) {
            let _ = std::fs::remove_file(self.folder.join(name));
        }
    }
}

impl Write for DailyFile {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let day = clock::now().strftime("%Y-%m-%d").to_string();
        self.file(&day)?.write(line)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.open.as_mut().map_or(Ok(()), |(_, file)| file.flush())
    }
}

fn private(how: &mut OpenOptions, path: &Path) -> std::io::Result<File> {
    let flags = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0);
    how.mode(0o600).custom_flags(flags).open(path)
}

/// Logs a panic and writes version, place and backtrace into a file of `state`. A message made at run time may quote a
/// conversation and is left out.
pub(super) fn keep_report(state: &Path, info: &PanicHookInfo<'_>) -> Option<PathBuf> {
    let message = info.payload().downcast_ref::<&'static str>().copied().unwrap_or("(message left out)");
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    let thread = std::thread::current();
    let first = format!("panic at {place}: {message}");
    tracing::error!("{first}");
    let report = format!(
        "{first}\n{} on {}, thread {}\n\n{}\n",
        about::program(),
        about::system(),
        thread.name().unwrap_or("without name"),
        Backtrace::force_capture()
    );
    write_report(state, &report)
}

fn write_report(state: &Path, report: &str) -> Option<PathBuf> {
    make_private(state).ok()?;
    let now = clock::local().strftime("%Y%m%d-%H%M%S").to_string();
    let path = state.join(format!("crash-{now}-{}.txt", std::process::id()));
    let mut file = private(OpenOptions::new().write(true).create(true).truncate(true), &path).ok()?;
    file.write_all(report.as_bytes()).ok()?;
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_the_place_but_no_text_of_a_conversation() {
        let dir = tempfile::tempdir().unwrap();
        let path = write_report(dir.path(), "panic at here\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "panic at here\n");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn the_log_is_private_starts_anew_each_day_and_keeps_a_few_files() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("sala-chat.2026-01-02.log"), "before\n").unwrap();
        std::fs::write(at("sala-chat.notes.log"), "somebody's").unwrap();
        let mut log = DailyFile { folder: dir.path().to_owned(), keep: 2, open: None };
        for day in ["2026-01-02", "2026-01-02", "2026-01-03", "2026-01-04"] {
            log.file(day).unwrap().write_all(b"line\n").unwrap();
            let mode = std::fs::metadata(at(&format!("sala-chat.{day}.log"))).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{day}");
            if day == "2026-01-02" {
                assert!(std::fs::read_to_string(at("sala-chat.2026-01-02.log")).unwrap().starts_with("before\nline\n"));
            }
        }
        let mut names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["sala-chat.2026-01-03.log", "sala-chat.2026-01-04.log", "sala-chat.notes.log"]);
        std::os::unix::fs::symlink(at("sala-chat.notes.log"), at("sala-chat.2026-01-05.log")).unwrap();
        assert!(log.file("2026-01-05").is_err(), "a link is not written through");
    }
}
