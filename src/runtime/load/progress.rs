//! Progress of a load.

use std::time::{Duration, Instant};

use super::super::executor::Progress;
use super::super::{Activity, PrefillStats, Sink, State, Verb, grouped, per_second};
use super::{Item, Load};
use crate::core::transcript::{Message, MessageId};
use crate::runtime::protocol::{FileProgress, FileState, ReadingProgress};

impl Load {
    pub(super) fn new(
        begun_at: Option<MessageId>,
        messages: Vec<Message>,
        items: Vec<Item>,
        library: bool,
        left_after: u64,
    ) -> Load {
        let file = |i: &Item| FileProgress { name: i.name.clone(), tokens: i.tokens, state: FileState::Waiting };
        Load {
            begun_at,
            messages,
            library,
            started: Instant::now(),
            at: 0,
            added: 0,
            files: items.iter().map(file).collect(),
            total: items.iter().map(|i| i.tokens).sum(),
            items,
            left_after,
            done: 0,
            before: 0,
            read: 0,
            reading: Duration::ZERO,
            tree_shown: None,
            restored: 0.0,
            begun_again: false,
            upto: 0,
            reached: 0,
        }
    }

    pub(super) fn begin(&mut self, to_read: u64) {
        let tokens = self.items.get(self.at).map_or(0, |i| i.tokens);
        self.before = tokens.saturating_sub(to_read);
        self.done = self.items.iter().take(self.at).map(|i| i.tokens).sum::<u64>() + self.before;
    }

    pub(super) fn end(&mut self, stats: &PrefillStats, took: Duration) {
        self.read += stats.read;
        self.reading += took;
        self.done += stats.read;
        if let Some(file) = self.files.get_mut(self.at) {
            match (&file.state, stats.read) {
                (FileState::Waiting, 0) => file.state = FileState::FromLibrary(self.restored),
                (FileState::Waiting | FileState::Reading(_), _) => file.state = FileState::Done(took.as_secs_f64()),
                (FileState::Done(_) | FileState::FromLibrary(_), _) => {}
            }
        }
    }

    pub(super) fn shown(&self) -> Activity {
        self.show(0, Duration::ZERO)
    }

    /// The speed is the average over the whole load, so that the estimated time left does not jump.
    fn show(&self, more: u64, elapsed: Duration) -> Activity {
        Activity::Reading(ReadingProgress {
            files: self.files.clone(),
            done: self.done + more,
            total: self.total,
            tokens_per_s: per_second(self.read + more, self.reading + elapsed),
            elapsed_ms: self.started.elapsed().as_secs_f64() * 1000.0,
            left_after: self.left_after,
        })
    }
}

impl Sink<Verb> for Load {
    fn reading(&mut self, state: &mut Verb, progress: Progress) -> bool {
        if let Some(file) = self.files.get_mut(self.at) {
            file.state = FileState::Reading(self.before + progress.done);
        }
        state.working(self.show(progress.done, progress.elapsed));
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
                self.info(format!("{} changed on disk since it was read. Reading again.", info.name));
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
        self.info(text);
    }
}
