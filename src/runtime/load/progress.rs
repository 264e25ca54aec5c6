//! Progress of a load, and a stop inside a document: the user decides how to continue, and the part that was read is kept.

use std::time::{Duration, Instant};

use super::super::executor::Progress;
use super::super::{Activity, Attendance, Done, PrefillStats, Rendered, Sink, State, Verb, grouped, per_second};
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

impl Verb {
    /// True: the user continues.
    pub(super) async fn load_stopped(&mut self, load: &mut Load, rendered: &Rendered) -> Done<bool> {
        // After the load began again, the state may hold less than was read before.
        load.upto = load.upto.max(self.here.slot.live.text_bytes());
        load.reached = load.reached.max(self.here.slot.live.position());
        let begun: u64 = load.items.first().map_or(0, |i| i.end - i.tokens);
        let done = load.reached.saturating_sub(begun).min(load.total);
        let last = load.at.max(load.added.saturating_sub(1));
        let name = load.items.get(last).map_or("", |i| i.name.as_str());
        let (done, total) = (grouped(done), grouped(load.total));
        let text = format!("Stopped at {done} of {total} tokens, inside {name}. What is read stays read.");
        let choices = [('1', "continue"), ('2', "go back"), ('\x1b', "keep what is read")];
        self.show_tree();
        self.report_meters();
        let key = match self.attendance == Attendance::Absent || self.quitting {
            true => '\x1b',
            false => self.ask_user(text, &choices).await,
        };
        // The following work can be stopped again.
        self.here.slot.begin();
        if key == '1' {
            self.activity(load.shown());
            return Ok(true);
        }
        let kept = self.keep_part(load, rendered).await;
        match (key, kept) {
            ('2', Ok(_)) => self.go(load.begun_at, "Went back to").await?,
            ('2', Err(e)) => {
                self.move_head(load.begun_at)?;
                self.show_session();
                return Err(e);
            }
            (_, kept) => {
                kept?;
                self.report_meters();
            }
        }
        Ok(false)
    }

    /// Ends a load inside a document: the document is cut to the part that was read, and its state is kept.
    async fn keep_part(&mut self, load: &mut Load, rendered: &Rendered) -> Done<PrefillStats> {
        self.here.slot.begin();
        // After the load began again, the state may hold less than was read before. A stop must not start a new reading.
        let short = self.here.slot.live.text_bytes() < load.upto;
        // In that case the document is the last one that was added, wherever the reading is; the documents before it
        // are complete.
        if let Some(message) = load.messages.iter_mut().take(load.added).rfind(|m| m.is_half_read()) {
            let text = self.engine.renderer.read_part(rendered, message, load.upto).unwrap_or_default();
            let name = message.meta.document.as_ref().map_or(String::new(), |d| d.name.clone());
            if !text.trim().is_empty() {
                let lines = text.lines().count() as u64;
                if let Some(info) = &mut message.meta.document {
                    info.lines = lines;
                    // A stop after the last words leaves a complete document.
                    info.complete = info.is_whole(&text);
                    info.tokens = self.engine.renderer.model().tokenizer.encode_plain(&text)?.len() as u64;
                }
                message.text = text;
                self.amend(message);
                self.info(format!("Kept what was read: {name} ends at line {}.", grouped(lines)));
                self.show_session();
                // Reads the few words up to its end: after a restart, state is found by a document that ends in it.
                return self.sync_to_the_end(short).await;
            }
            self.move_head(message.parent)?;
            self.info(format!("Nothing of {name} was read; it is left out."));
        }
        self.show_session();
        match short {
            true => self.sync_to_the_end(true).await,
            false => self.sync().await,
        }
    }
}
