//! The log file and crash reports. Both go to the state folder only; neither holds message text (the log does at `trace`).

use std::backtrace::Backtrace;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::PanicHookInfo;
use std::path::{Path, PathBuf};

use tracing_appender::non_blocking::WorkerGuard;
use tracing_appender::rolling::{RollingFileAppender, Rotation};
use tracing_subscriber::EnvFilter;

use super::dirs::{Dirs, make_private};
use crate::config::settings::LogConfig;
use crate::text::clock;

#[must_use]
pub struct LogGuard(#[expect(dead_code, reason = "held for its drop")] Option<WorkerGuard>);

/// Starts the log: one file a day. Without a writable folder there is no log; the program works all the same. A folder given
/// as data directory that is somebody else's gets none.
pub fn start(dirs: &Dirs, config: &LogConfig, verbose: u8) -> LogGuard {
    let state = dirs.state.as_path();
    let foreign = state.starts_with(&dirs.data) && crate::store::check_folder(&dirs.data).is_err();
    let level = match (std::env::var("SALA_CHAT_LOG"), verbose) {
        (Ok(filter), _) => filter,
        (_, 0) => config.level.clone(),
        (_, _) => "debug".to_owned(),
    };
    // Libraries are chatty; they are heard from `warn`.
    let filter = if level.contains(['=', ',']) { level.clone() } else { format!("warn,sala_chat={level}") };
    // Parsed here: the lossy way prints what it does not understand.
    let filter = EnvFilter::try_new(filter);
    let (Ok(filter), true) = (filter, level != "off" && !foreign && make_private(state).is_ok()) else {
        return LogGuard(None);
    };
    // Days are UTC; the folder is private.
    let file = RollingFileAppender::builder().rotation(Rotation::DAILY).max_log_files(config.keep_files.max(1));
    let Ok(file) = file.filename_prefix("sala-chat").filename_suffix("log").build(state) else { return LogGuard(None) };
    let (writer, guard) = tracing_appender::non_blocking(file);
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(false).finish();
    // A second start in one process (tests) keeps the first log.
    let _ = tracing::subscriber::set_global_default(subscriber);
    LogGuard(Some(guard))
}

/// Logs a panic and writes its report into `state`; where, unless that fails.
pub(super) fn keep_report(state: &Path, info: &PanicHookInfo<'_>) -> Option<PathBuf> {
    let report = report(info);
    tracing::error!("{}", report.lines().next().unwrap_or_default());
    write_report(state, &report)
}

/// Version, place, backtrace. A message made at run time may quote a conversation and is left out.
fn report(info: &PanicHookInfo<'_>) -> String {
    let message = info.payload().downcast_ref::<&'static str>().copied().unwrap_or("(message left out)");
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    let thread = std::thread::current();
    format!(
        "panic at {place}: {message}\nsala-chat {} on {} {}, thread {}\n\n{}\n",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        std::env::consts::ARCH,
        thread.name().unwrap_or("without name"),
        Backtrace::force_capture()
    )
}

fn write_report(state: &Path, report: &str) -> Option<PathBuf> {
    make_private(state).ok()?;
    let now = clock::local().strftime("%Y%m%d-%H%M%S").to_string();
    let path = state.join(format!("crash-{now}-{}.txt", std::process::id()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).ok()?;
    file.write_all(report.as_bytes()).ok()?;
    Some(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_report_has_the_place_but_no_text_of_a_conversation() {
        let dir = tempfile::tempdir().unwrap();
        let path = write_report(dir.path(), "panic at here\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "panic at here\n");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
