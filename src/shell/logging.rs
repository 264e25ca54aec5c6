//! The log file and crash reports. Both go to the state folder only; neither holds message text (the log does at `trace`).

use std::backtrace::Backtrace;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::PanicHookInfo;
use std::path::{Path, PathBuf};

use tracing_appender::non_blocking::WorkerGuard;
use tracing_appender::rolling::{RollingFileAppender, Rotation};
use tracing_subscriber::EnvFilter;

use super::dirs::make_private;
use crate::config::LogConfig;
use crate::text::caught::expected;

/// Writes what is left when dropped.
#[must_use]
pub struct LogGuard(#[expect(dead_code, reason = "held for its drop")] Option<WorkerGuard>);

/// Starts the log: one file a day. Without a writable folder there is no log; the program works all the same.
pub fn start(state: &Path, config: &LogConfig, verbose: u8) -> LogGuard {
    let level = match (std::env::var("SALA_CHAT_LOG"), verbose) {
        (Ok(filter), _) => filter,
        (_, 0) => config.level.clone(),
        (_, _) => "debug".to_owned(),
    };
    if level == "off" || make_private(state).is_err() {
        return LogGuard(None);
    }
    let appender = RollingFileAppender::builder()
        .rotation(Rotation::DAILY)
        .filename_prefix("sala-chat")
        .filename_suffix("log")
        .max_log_files(config.keep_files)
        .build(state);
    let Ok(appender) = appender else {
        return LogGuard(None);
    };
    let (writer, guard) = tracing_appender::non_blocking(appender);
    // Libraries are chatty; they are heard from `warn`.
    let filter = if level.contains(['=', ',']) { level } else { format!("warn,sala_chat={level}") };
    let subscriber =
        tracing_subscriber::fmt().with_env_filter(EnvFilter::new(filter)).with_writer(writer).with_ansi(false).finish();
    // A second start in one process (tests) keeps the first log.
    let _ = tracing::subscriber::set_global_default(subscriber);
    LogGuard(Some(guard))
}

/// From now on a panic writes a report and one line about it. Set before the terminal is, whose own hook restores the
/// screen first.
pub fn catch_panics(state: PathBuf) {
    std::panic::set_hook(Box::new(move |info| {
        if expected() {
            return;
        }
        let place = keep_report(&state, info);
        let _ = writeln!(
            std::io::stderr(),
            "sala-chat crashed. Your text is saved. Resume: sala-chat -c. Report: {}",
            place.map_or_else(|| "could not be written".to_owned(), |p| p.display().to_string())
        );
    }));
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
    let now = jiff::Zoned::now().strftime("%Y%m%d-%H%M%S").to_string();
    let path = state.join(format!("crash-{now}-{}.txt", std::process::id()));
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path).ok()?;
    file.write_all(report.as_bytes()).ok()?;
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_tells_the_place_but_no_text_of_a_conversation() {
        let dir = tempfile::tempdir().unwrap();
        let path = write_report(dir.path(), "panic at here\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "panic at here\n");
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
