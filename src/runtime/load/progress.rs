//! What is shown while documents are read.

use std::time::{Duration, Instant};

use super::super::State;
use super::super::execute::{Fed, Progress, Watch, per_second};
use super::{Item, Load};
use crate::runtime::protocol::{Activity, FileProgress, FileState, ReadingProgress};

/// How far a load is.
pub(super) struct Progressing {
    files: Vec<FileProgress>,
    /// Tokens of the present document that need no reading.
    before: u64,
    /// Tokens of the load that are in the state when the present document's job begins.
    done: u64,
    pub(super) total: u64,
    left_after: u64,
    started: Instant,
    /// Tokens read by the jobs before the present one, and how long they took.
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

    /// Document `at` is begun, with `to_read` tokens to read.
    pub(super) fn begin(&mut self, at: usize, items: &[Item], to_read: u64) {
        let tokens = items.get(at).map_or(0, |i| i.tokens);
        self.before = tokens.saturating_sub(to_read);
        self.done = items.iter().take(at).map(|i| i.tokens).sum::<u64>() + self.before;
    }

    /// Document `at` is read.
    pub(super) fn end(&mut self, at: usize, fed: &Fed, took: Duration, restored: f64) {
        self.read += fed.read;
        self.reading += took;
        self.done += fed.read;
        if let Some(file) = self.files.get_mut(at) {
            match (&file.state, fed.read) {
                (FileState::Waiting, 0) => file.state = FileState::FromLibrary(restored),
                (FileState::Waiting | FileState::Reading(_), _) => file.state = FileState::Done(took.as_secs_f64()),
                (FileState::Done(_) | FileState::FromLibrary(_), _) => {}
            }
        }
    }

    /// As it stands between two documents.
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

impl Watch for Box<Load> {
    fn reading(&mut self, runtime: &mut State, progress: Progress) {
        let at = self.at;
        let p = &mut self.progress;
        if let Some(file) = p.files.get_mut(at) {
            file.state = FileState::Reading(p.before + progress.done);
        }
        // Over the whole load: what it says of the time left does not jump.
        let speed = per_second(p.read + progress.done, p.reading + progress.elapsed);
        let shown = p.show(progress.done, speed);
        runtime.working(shown);
    }
}
