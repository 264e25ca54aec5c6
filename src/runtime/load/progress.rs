//! Progress of a load.

use std::time::{Duration, Instant};

use super::super::execute::per_second;
use super::super::executor::{PrefillStats, Progress, Sink};
use super::super::verb::Verb;
use super::super::{State, grouped};
use super::Item;
use crate::core::transcript::Message;
use crate::runtime::protocol::{Activity, FileProgress, FileState, Level, ReadingProgress};

pub(super) struct Progressing {
    files: Vec<FileProgress>,
    /// Tokens of the current document that need no reading.
    before: u64,
    /// Tokens of the load that are in the state at the start of the current document's job.
    done: u64,
    pub(super) total: u64,
    left_after: u64,
    started: Instant,
    /// Tokens read by earlier jobs, and the time they took.
    read: u64,
    reading: Duration,
}

impl Progressing {
    pub(super) fn new(items: &[Item], left_after: u64) -> Progressing {
        let file = |i: &Item| FileProgress { name: i.name.clone(), tokens: i.tokens, state: FileState::Waiting };
        Progressing {
            files: items.iter().map(file).collect(),
            before: 0,
            done: 0,
            total: items.iter().map(|i| i.tokens).sum(),
            left_after,
            started: Instant::now(),
            read: 0,
            reading: Duration::ZERO,
        }
    }

    pub(super) fn begin(&mut self, at: usize, items: &[Item], to_read: u64) {
        let tokens = items.get(at).map_or(0, |i| i.tokens);
        self.before = tokens.saturating_sub(to_read);
        self.done = items.iter().take(at).map(|i| i.tokens).sum::<u64>() + self.before;
    }

    pub(super) fn end(&mut self, at: usize, stats: &PrefillStats, took: Duration, restored: f64) {
        self.read += stats.read;
        self.reading += took;
        self.done += stats.read;
        if let Some(file) = self.files.get_mut(at) {
            match (&file.state, stats.read) {
                (FileState::Waiting, 0) => file.state = FileState::FromLibrary(restored),
                (FileState::Waiting | FileState::Reading(_), _) => file.state = FileState::Done(took.as_secs_f64()),
                (FileState::Done(_) | FileState::FromLibrary(_), _) => {}
            }
        }
    }

    pub(super) fn shown(&self) -> Activity {
        self.show(0, per_second(self.read, self.reading))
    }

    fn show(&self, more: u64, tokens_per_s: f64) -> Activity {
        Activity::Reading(ReadingProgress {
            files: self.files.clone(),
            done: self.done + more,
            total: self.total,
            tokens_per_s,
            elapsed_ms: self.started.elapsed().as_secs_f64() * 1000.0,
            left_after: self.left_after,
        })
    }
}

pub(super) struct LoadReading<'a> {
    pub(super) progress: &'a mut Progressing,
    pub(super) at: usize,
}

impl Sink<Verb> for LoadReading<'_> {
    fn reading(&mut self, state: &mut Verb, progress: Progress) -> bool {
        let p = &mut self.progress;
        if let Some(file) = p.files.get_mut(self.at) {
            file.state = FileState::Reading(p.before + progress.done);
        }
        // Average over the whole load, so that the estimated time left does not jump.
        let speed = per_second(p.read + progress.done, p.reading + progress.elapsed);
        let shown = p.show(progress.done, speed);
        state.working(shown);
        true
    }
}

impl State {
    pub(super) fn say_changed(&self, messages: &[Message]) {
        // Other lines report an unreadable database.
        let known = self.disk.store.hashes_by_path().unwrap_or_default();
        for info in messages.iter().filter_map(|m| m.meta.document.as_ref()) {
            let read = info.path.as_ref().and_then(|path| known.get(path));
            if read.is_some_and(|hashes| !hashes.contains(&info.hash)) {
                self.note(Level::Info, format!("{} changed on disk since it was read. Reading again.", info.name));
            }
        }
    }

    pub(super) fn say_loaded(&mut self, items: &[Item], started: Instant) {
        let total: u64 = items.iter().map(|i| i.tokens).sum();
        let kept: u64 = items.iter().filter(|i| i.kept).map(|i| i.tokens).sum();
        let seconds = started.elapsed().as_secs_f64();
        let what = match items {
            [one] => one.name.clone(),
            many => format!("{} files", many.len()),
        };
        let text = match kept {
            _ if self.engine.server().is_some() => {
                format!("{what}: about {} tokens, which the server reads with the next question.", grouped(total))
            }
            0 => format!("Read {what}: {} tokens in {seconds:.1} s.", grouped(total)),
            k if k == total => format!("{what}: {} tokens from library, {seconds:.1} s.", grouped(total)),
            k => format!(
                "Read {what}: {} tokens in {seconds:.1} s, {} of them from library.",
                grouped(total),
                grouped(k)
            ),
        };
        self.note(Level::Info, text);
    }
}
