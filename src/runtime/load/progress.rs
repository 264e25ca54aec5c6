//! Progress of a load, and a stop inside a document: the user decides how to continue, and the part that was read is
//! kept.

use std::time::Duration;

use super::super::executor::Progress;
use super::super::{Activity, Attendance, Done, PrefillStats, Rendered, Sink, State, Verb, grouped, per_second};
use super::{Item, Load};
use crate::core::counted;
use crate::runtime::protocol::{FileState, ReadingProgress};

impl Load {
    fn begun(&self) -> u64 {
        self.items.first().map_or(0, Item::start)
    }

    fn seconds(&self) -> f64 {
        self.started.map_or(0.0, |at| at.elapsed().as_secs_f64())
    }

    pub(super) fn shown(&self, position: u64) -> Activity {
        self.show(position, 0, Duration::ZERO)
    }

    /// The speed is the average over the whole load, so that the estimated time left does not jump.
    fn show(&self, position: u64, more: u64, elapsed: Duration) -> Activity {
        Activity::Reading(ReadingProgress {
            files: self.items.iter().map(|item| item.file.clone()).collect(),
            done: position.saturating_sub(self.begun()),
            total: self.total,
            tokens_per_s: per_second(self.read + more, self.reading + elapsed),
            elapsed_ms: self.seconds() * 1000.0,
            left_after: self.left_after,
        })
    }
}

impl Sink<Verb> for Load {
    fn reading(&mut self, state: &mut Verb, progress: Progress) -> bool {
        let Progress { done, position, elapsed, .. } = progress;
        if let Some(item) = self.items.get_mut(self.at) {
            item.file.state = FileState::Reading(position.saturating_sub(item.start()));
        }
        state.working(self.show(position, done, elapsed));
        true
    }
}

impl State {
    pub(super) fn say_loaded(&mut self, load: &Load) {
        let kept: u64 = load.items.iter().filter(|i| i.kept).map(|i| i.file.tokens).sum();
        let seconds = load.seconds();
        let what = match load.items.as_slice() {
            [one] => one.file.name.clone(),
            many => counted(many.len() as u64, "file"),
        };
        let (total, from_library) = (counted(load.total, "token"), grouped(kept));
        self.info(match kept {
            _ if self.engine.server().is_some() => {
                format!("{what}: about {total}, which the server reads with the next question.")
            }
            0 => format!("Read {what}: {total} in {seconds:.1} s."),
            kept if kept == load.total => format!("{what}: {total} from library, {seconds:.1} s."),
            _ => format!("Read {what}: {total} in {seconds:.1} s, {from_library} of them from library."),
        });
    }
}

impl Verb {
    /// True: the user continues.
    pub(super) async fn load_stopped(&mut self, load: &mut Load, rendered: &Rendered) -> Done<bool> {
        // The state may be lost while the question waits.
        let upto = self.here.slot.live.text_bytes();
        let done = self.here.slot.live.position().saturating_sub(load.begun()).min(load.total);
        let name = load.items.get(load.at).map_or("", |i| i.file.name.as_str());
        let (done, total) = (grouped(done), grouped(load.total));
        let text = format!("Stopped at {done} of {total} tokens, inside {name}. What is read stays read.");
        let choices = [('1', "continue"), ('\x1b', "keep what is read")];
        self.show_tree();
        self.report_meters();
        let asks = self.attendance == Attendance::Present && !self.quitting;
        let goes_on = asks && self.ask_user(text, &choices).await == '1';
        // The following work can be stopped again.
        self.here.slot.begin();
        if goes_on {
            let shown = load.shown(self.here.slot.live.position());
            self.activity(shown);
            return Ok(true);
        }
        self.keep_part(load, rendered, upto).await?;
        self.report_meters();
        Ok(false)
    }

    /// Ends a load inside a document: the document is cut to the part that was read, and its state is kept. `upto`: bytes
    /// of the rendered text that were read.
    async fn keep_part(&mut self, load: &mut Load, rendered: &Rendered, upto: usize) -> Done<PrefillStats> {
        // After the load began again, this document is the last one that was added, wherever the reading is.
        if let Some(message) = load.messages.iter_mut().take(load.added).rfind(|m| m.is_half_read()) {
            let text = self.engine.renderer.read_part(rendered, message, upto).unwrap_or_default();
            let name = message.meta.document.as_ref().map_or(String::new(), |d| d.name.clone());
            if text.trim().is_empty() {
                self.move_head(message.parent)?;
                self.info(format!("The state does not reach {name}; it is left out."));
            } else {
                let lines = text.lines().count() as u64;
                if let Some(info) = &mut message.meta.document {
                    info.lines = lines;
                    // A stop after the last words leaves a complete document.
                    info.complete = info.is_whole(&text);
                    info.tokens = self.engine.tokenizer().encode_plain(&text)?.len() as u64;
                }
                message.text = text;
                self.amend(message);
                let lines = grouped(lines);
                self.info(format!("Kept what was read: {name} ends at line {lines}. /undo takes it back."));
            }
        }
        self.show_session();
        // Reads the few words up to the end: after a restart, state is found by a document that ends in it. A stop must
        // not start a longer reading.
        self.sync_a_few().await
    }
}
